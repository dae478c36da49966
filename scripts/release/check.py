"""Builds and verifies a release without publishing it: `make release-check`.

The results are in out/release. Exit status: 0 if every check passed, else 1; the table names those that failed.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import image
import krew
import version
from commands import ROOT, UV, CommandError, run

from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.resources import NODES
from joulie_lab.adapters.crd import custom_resource_definitions
from joulie_lab.control_plane import BinariesError, obtain
from joulie_lab.fakes.kubernetes import FakeCluster

OUT = ROOT / "out" / "release"
WHEELS = OUT / "wheels"
ACTIONLINT = "github.com/rhysd/actionlint/cmd/actionlint@v1.7.12"
_MIB = 2**20
_OF_THE_LABORATORY = ("joulie_lab", "numba", "llvmlite", "polars", "matplotlib", "scipy", "fmpy")
"""Packages that must not be in the product's image."""


class Row(NamedTuple):
    """A line of the table.

    Attributes:
        name: name of the check.
        size_mib: size of the file or tree that was built, MiB; None if nothing was built.
        detail: result in words.
    """

    name: str
    size_mib: float | None
    detail: str


def one_version() -> list[Row]:
    """The version is the same in both packages, the pin, the chart and the lock file."""
    found = version.versions()
    if len(set(found.values())) != 1:
        raise CommandError(f"versions disagree: {found}; run make version VERSION=...")
    run(UV, "lock", "--quiet", "--check")
    return [Row("version", None, f"{current()} in {len(found)} places and in the lock file")]


def wheels() -> list[Row]:
    """Build both wheels."""
    rows = []
    for package in ("joulie", "joulie-lab"):
        run(UV, "build", "--quiet", "--wheel", "--package", package, "--out-dir", WHEELS)
        path = WHEELS / f"{package.replace('-', '_')}-{current()}-py3-none-any.whl"
        rows.append(Row(f"wheel {package}", path.stat().st_size / _MIB, path.name))
    return rows


def clean_environments() -> list[Row]:
    """Test the wheels in clean environments: tests/release."""
    text = run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/release",
               env={"JOULIE_WHEELS": str(WHEELS)})  # fmt: skip
    return [Row("wheels installed", None, text.strip().splitlines()[-1])]


def image_of_the_product() -> list[Row]:
    """Check that the default image contains nothing of the laboratory, and that its SBOM is valid."""
    prefix, row = _image("joulie")
    (packages,) = prefix.glob("lib/python*/site-packages")
    if unwanted := sorted({path.name for path in packages.iterdir()} & set(_OF_THE_LABORATORY)):
        raise CommandError(f"the image holds what only the laboratory needs: {', '.join(unwanted)}")
    run(prefix / "bin" / "joulie", "operator", "--help")
    sbom = OUT / "joulie.cdx.json"
    run(UV, "run", "--quiet", "--isolated", "--locked", "--only-group", "release", "cyclonedx-py", "environment",
        "--output-reproducible", "--of", "JSON", "--validate", "-o", sbom, prefix / "bin" / "python")  # fmt: skip
    document = json.loads(sbom.read_text(encoding="utf-8"))
    components = {component["name"]: component["version"] for component in document["components"]}
    if components.get("joulie") != current():
        raise CommandError(f"the SBOM does not name joulie {current()}")
    detail = f"CycloneDX {document['specVersion']}, {len(components)} components, valid"
    return [row, Row("SBOM of the image", sbom.stat().st_size / _MIB, detail)]


def image_of_the_laboratory() -> list[Row]:
    """Check that the simulator service's image starts with a read-only file system except for /tmp."""
    prefix, row = _image("lab")
    read_only = {"HOME": "/proc/none", "XDG_CACHE_HOME": str(OUT / "tmp")}
    run(prefix / "bin" / "joulie", "simulator", "--help", env=read_only)
    return [row]


def _image(target: str) -> tuple[Path, Row]:
    prefix = image.build(target, OUT / f"image-{target}")
    sizes = image.contents(prefix)
    lines = "".join(f"{size} {name}\n" for name, size in sizes.items())
    (OUT / f"image-{target}.txt").write_text(lines, encoding="utf-8")
    detail = f"/opt/joulie, {len(sizes)} files, Python {platform.python_version()}; the base image is not counted"
    return prefix, Row(f"image {target}", sum(sizes.values()) / _MIB, detail)


def plugin() -> list[Row]:
    """Check that the kubectl plugin runs without Python, and that the manifest follows krew's rules."""
    archive = krew.make_archive(OUT / "krew")
    with tarfile.open(archive) as files:
        names = files.getnames()
        files.extractall(OUT / "krew" / "unpacked", filter="data")
    program = OUT / "krew" / "unpacked" / "kubectl-joulie"
    begun_s = time.perf_counter()  # noqa: TID251 - what a user waits
    said = _run_alone(program, "--version")
    took_s = time.perf_counter() - begun_s  # noqa: TID251
    if current() not in said:
        raise CommandError(f"kubectl-joulie --version says {said!r}")
    asyncio.run(_read_a_cluster(program))
    checksums = {krew.archive_name(of): "0" * 64 for of in krew.PLATFORMS} | {archive.name: krew.checksum(archive)}
    manifest = krew.render_manifest(krew.TEMPLATE.read_text(encoding="utf-8"), f"v{current()}", checksums)
    krew.check_manifest(manifest)
    (OUT / "krew" / krew.TEMPLATE.name).write_text(manifest, encoding="utf-8")
    started = f"{', '.join(names)}; starts in {took_s:.1f} s, shows the nodes of a fake cluster"
    others = len(krew.PLATFORMS) - 1
    return [
        Row(f"krew {archive.name}", archive.stat().st_size / _MIB, started),
        Row("krew manifest", None, f"valid; the release workflow fills in {others} more checksums"),
    ]


def _run_alone(program: Path, *arguments: str, **variables: str) -> str:
    """Run a program with an environment in which no Python can be found."""
    ended = subprocess.run(  # noqa: S603 - what was just built
        [program, *arguments], capture_output=True, text=True, check=False, env={"PATH": "/nonexistent", **variables}
    )
    if ended.returncode:
        raise CommandError(f"{program.name} {' '.join(arguments)}: exit status {ended.returncode}\n{ended.stderr}")
    return ended.stdout


async def _read_a_cluster(program: Path) -> None:
    async with FakeCluster(custom_resource_definitions()) as cluster:
        kubeconfig = cluster.kubeconfig(OUT / "kubeconfig")
        async with KubeClient.connect(kubeconfig=kubeconfig) as client:
            await client.create(NODES, {"metadata": {"name": "node-1"}})
        table = await asyncio.to_thread(_run_alone, program, "status", "--kubeconfig", str(kubeconfig))
    if "node-1" not in table:
        raise CommandError(f"kubectl-joulie status does not show the node: {table}")


def chart() -> list[Row]:
    """Lint, package and render the chart with Helm."""
    try:
        helm = obtain(lambda line: print(line, file=sys.stderr))["helm"]  # noqa: T201
    except BinariesError as error:
        raise CommandError(f"helm: {error}") from error
    folder = ROOT / "deploy" / "helm" / "joulie"
    run(helm, "lint", "--strict", folder)
    run(helm, "package", folder, "--destination", OUT)
    package = OUT / f"joulie-{current()}.tgz"
    on = ("simulator.enabled=true", "grid.enabled=true", "dashboards.enabled=true")
    objects = run(helm, "template", "joulie", package, "--set", ",".join(on)).count("\nkind: ")
    return [Row("chart", package.stat().st_size / _MIB, f"{package.name}, linted, {objects} objects rendered from it")]


def workflows() -> list[Row]:
    """Check the workflows with actionlint."""
    if shutil.which("go") is None:
        raise CommandError("go is not on the PATH: actionlint is a Go module; install Go from https://go.dev/dl")
    files = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    run("go", "run", ACTIONLINT, *files, env={"GOFLAGS": "-mod=mod"})
    return [
        Row(
            "workflows",
            None,
            f"{', '.join(file.name for file in files)}: actionlint {ACTIONLINT.partition('@')[2]} reports nothing",
        )
    ]


def site() -> list[Row]:
    """Build the documentation with warnings as errors."""
    folder = OUT / "site"
    run(sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", folder,
        env={"NO_MKDOCS_2_WARNING": "1"})  # fmt: skip
    sizes = image.contents(folder)
    return [Row("site", sum(sizes.values()) / _MIB, f"{sum(name.endswith('.html') for name in sizes)} pages")]


STEPS: Mapping[str, Callable[[], list[Row]]] = {
    "version": one_version,
    "wheels": wheels,
    "wheels installed": clean_environments,
    "image joulie": image_of_the_product,
    "image lab": image_of_the_laboratory,
    "krew": plugin,
    "chart": chart,
    "workflows": workflows,
    "site": site,
}


def current() -> str:
    """The version of the release that is checked."""
    return next(iter(version.versions().values()))


def main() -> int:
    """Run every step, print the table, and return the exit status."""
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    os.environ.pop("VIRTUAL_ENV", None)
    rows: list[tuple[str, Row]] = []
    for name, step in STEPS.items():
        print(f"release-check: {name} ...", file=sys.stderr, flush=True)  # noqa: T201
        try:
            rows += [("ok", row) for row in step()]
        except (CommandError, OSError, ValueError) as error:
            print(f"release-check: {name}: {error}", file=sys.stderr, flush=True)  # noqa: T201
            rows.append(("FAILED", Row(name, None, str(error).strip().splitlines()[-1])))
    width = max(len(row.name) for _, row in rows)
    for outcome, row in rows:
        size = "" if row.size_mib is None else f"{row.size_mib:.2f} MiB"
        print(f"{outcome:6}  {row.name:{width}}  {size:>10}  {row.detail}")  # noqa: T201
    return int(any(outcome != "ok" for outcome, _ in rows))


if __name__ == "__main__":
    sys.exit(main())
