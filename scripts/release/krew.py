"""Builds the kubectl plugin for krew: archives that need no Python, and the manifest with their checksums.

`krew.py archive FOLDER` makes FOLDER/kubectl-joulie_OS_ARCH.tar.gz for the machine that it runs on;
`krew.py manifest TAG FOLDER` writes FOLDER/joulie.yaml for the archives there and rejects an invalid manifest.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import platform
import re
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import yaml
from commands import ROOT, UV, CommandError, run

TEMPLATE = ROOT / "deploy" / "krew" / "joulie.yaml"
PLATFORMS = ("linux_amd64", "linux_arm64", "darwin_arm64")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
_SHORT_DESCRIPTION_LENGTH = 50
"""Maximum length that `kubectl krew search` displays."""
_SEMANTIC_VERSION = re.compile(r"v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?")


def archive_name(of: str) -> str:
    """The file name of a platform's archive: OS_ARCH."""
    return f"kubectl-joulie_{of}.tar.gz"


def make_archive(folder: Path) -> Path:
    """Freeze `kubectl-joulie` for this machine, with the dependencies of the lock file.

    Raises:
        CommandError: a step failed.
    """
    machine = platform.machine()
    of = f"{platform.system().lower()}_{_ARCHITECTURES.get(machine, machine)}"
    with tempfile.TemporaryDirectory() as work:
        environment, built = Path(work) / "environment", Path(work) / "built"
        run(UV, "sync", "--quiet", "--locked", "--package", "joulie", "--no-default-groups", "--group", "freeze",
            "--no-editable", "--python", sys.executable, env={"UV_PROJECT_ENVIRONMENT": str(environment)})  # fmt: skip
        programs = environment / "bin"
        run(programs / "pyinstaller", "--onefile", "--name", "kubectl-joulie", "--log-level", "WARN", "--distpath",
            built, "--workpath", f"{work}/work", "--specpath", work, "--collect-data", "joulie.apps.kubectl.web",
            "--collect-submodules", "joulie.apps.kubectl", programs / "kubectl-joulie")  # fmt: skip
        (packages,) = environment.glob("lib/python*/site-packages")
        files = {
            "kubectl-joulie": (built / "kubectl-joulie").read_bytes(),
            "LICENSE": (ROOT / "LICENSE").read_bytes(),
            "THIRD-PARTY-LICENSES": _licences(packages).encode(),
        }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / archive_name(of)
    with gzip.GzipFile(path, "wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755 if name == "kubectl-joulie" else 0o644
            archive.addfile(entry, io.BytesIO(content))
    return path


def checksum(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _licences(packages: Path) -> str:
    """The licence texts of all packages that are frozen into the program."""
    texts = []
    for package in sorted(distributions(path=[str(packages)]), key=lambda package: package.name.lower()):
        for file in package.files or ():
            if re.search(r"(?i)\.dist-info/.*(licen[cs]e|copying|notice)", str(file)):
                heading = f"{package.name} {package.version}: {file.name}"
                texts.append(f"{heading}\n{'=' * len(heading)}\n\n{package.locate_file(file).read_text()}\n")
    return "\n".join(texts)


def render_manifest(template: str, tag: str, checksums: Mapping[str, str]) -> str:
    """Fill in the template as krew-release-bot does.

    Args:
        template: text of deploy/krew/joulie.yaml.
        tag: tag of the release, such as v1.2.3.
        checksums: SHA-256 of each archive by its file name.
    """

    def source(match: re.Match[str]) -> str:
        address = match[1].replace("{{ .TagName }}", tag)
        # Quoted: a checksum of digits alone would be a number.
        return f'uri: {address}\n      sha256: "{checksums[address.rpartition("/")[2]]}"'

    filled = re.sub(r'\{\{addURIAndSha "(.+)" \.TagName \}\}', source, template)
    return filled.replace("{{ .TagName }}", tag)


def problems(manifest: Mapping[str, Any], name: str) -> Iterator[str]:
    """The violations of krew's documented rules and of its own validation in a manifest.

    Args:
        manifest: the parsed manifest.
        name: name of its file without the suffix.
    """
    spec = manifest.get("spec", {})
    if (manifest.get("apiVersion"), manifest.get("kind")) != (
        "krew.googlecontainertools.github.com/v1alpha2",
        "Plugin",
    ):
        yield "apiVersion and kind: must be krew.googlecontainertools.github.com/v1alpha2 and Plugin"
    if manifest.get("metadata", {}).get("name") != name:
        yield f"metadata.name: must be that of the file, {name}"
    if not re.fullmatch(r"(?!kube-|kubernetes-)[a-z0-9]+(-[a-z0-9]+)*", name):
        yield f"metadata.name: {name!r} must be lower-case words with hyphens, without the prefix kube"
    if not _SEMANTIC_VERSION.fullmatch(str(spec.get("version", ""))):
        yield f"spec.version: {spec.get('version')!r} must be a semantic version with the prefix v"
    for field in ("homepage", "shortDescription", "description"):
        if not spec.get(field):
            yield f"spec.{field}: required"
    short = spec.get("shortDescription") or ""
    if len(short) > _SHORT_DESCRIPTION_LENGTH or "\n" in short or short.endswith("."):
        yield f"spec.shortDescription: one line of at most {_SHORT_DESCRIPTION_LENGTH} characters, without a full stop"
    if not spec.get("platforms"):
        yield "spec.platforms: required"
    for index, of in enumerate(spec.get("platforms") or ()):
        for problem in _platform_problems(of):
            yield f"spec.platforms[{index}].{problem}"


def _platform_problems(of: Mapping[str, Any]) -> Iterator[str]:
    selector = of.get("selector") or {}
    keys = {*selector.get("matchLabels", {}), *(rule["key"] for rule in selector.get("matchExpressions", ()))}
    if not keys or not keys <= {"os", "arch"}:
        yield "selector: must match os, arch or both, and nothing else"
    if not re.fullmatch(r"https://\S+\.(zip|tar\.gz)", of.get("uri", "")):
        yield "uri: must be the https address of a .zip or .tar.gz"
    if not re.fullmatch(r"[0-9a-f]{64}", str(of.get("sha256", ""))):
        yield "sha256: must be 64 lower-case hexadecimal digits"
    if not of.get("bin"):
        yield "bin: required"
    files = of.get("files")
    if files is not None and not (files and all(move.get("from") and move.get("to") for move in files)):
        yield "files: leave it out, or give from and to of each"


def check_manifest(text: str) -> None:
    """Reject a manifest that krew would reject.

    Raises:
        ValueError: the manifest violates a rule; the message lists all problems.
    """
    if found := list(problems(yaml.safe_load(text), TEMPLATE.stem)):
        raise ValueError("; ".join(found))


def main(arguments: list[str]) -> int:
    """Run the command and return its exit status."""
    try:
        match arguments:
            case ["archive", folder]:
                print(make_archive(Path(folder)))  # noqa: T201
            case ["manifest", tag, folder]:
                archives = [Path(folder) / archive_name(of) for of in PLATFORMS]
                checksums = {path.name: checksum(path) for path in archives}
                text = render_manifest(TEMPLATE.read_text(encoding="utf-8"), tag, checksums)
                check_manifest(text)
                (Path(folder) / TEMPLATE.name).write_text(text, encoding="utf-8")
            case _:
                print(__doc__, file=sys.stderr)  # noqa: T201
                return 2
    except (CommandError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
