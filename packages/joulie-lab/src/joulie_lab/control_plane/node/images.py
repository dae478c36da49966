"""Container images without a registry: from the Dockerfile on a base of Debian packages, or of one static file."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from joulie_lab.control_plane.tools import BinariesError, Report

PAUSE = "localhost/pause:1"
JOULIE = "localhost/joulie:node"
LAB = "localhost/joulie-lab:node"

_TARGETS = {JOULIE: "joulie", LAB: "lab"}
_SUITE = "trixie"
_BASE_PACKAGES = ("python3.13", "ca-certificates", "netbase", "tzdata")
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_BUILD_S = 1200.0
_TAIL_LINES = 30
_ARGUMENT = re.compile(r"^ARG (\w+)=(\S+)", re.MULTILINE)
_STAGE = re.compile(r"^FROM (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Store:
    """Buildah's images and layers in a folder of their own, kept between runs."""

    folder: Path

    def run(self, *words: str | Path, timeout_s: float = _BUILD_S) -> str:
        """Run buildah and return its output.

        Raises:
            BinariesError: it failed; the message has the end of its output.
        """
        command = ["buildah", f"--root={self.folder}/root", f"--runroot={self.folder}/run", *map(str, words)]
        done = subprocess.run(  # noqa: S603 - a command of this module
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=timeout_s, check=False,
        )  # fmt: skip
        if done.returncode:
            tail = "\n".join((done.stdout + done.stderr).splitlines()[-_TAIL_LINES:])
            raise BinariesError(f"{' '.join(command)}: exit status {done.returncode}:\n{tail}")
        return done.stdout

    def has(self, image: str) -> bool:
        """Whether there is an image of this name."""
        listed = self.run("images", "--format", "{{.Name}}:{{.Tag}}")
        return image in listed.split()

    def make(self, image: str, content: Path, target: str, environment: Mapping[str, str] | None = None) -> None:
        """Make an image of one layer: the archive or file `content`, put at the path `target`."""
        container = self.run("from", "scratch").strip()
        try:
            self.run("add", "--quiet", container, content, target)
            for name, value in (environment or {}).items():
                self.run("config", "--env", f"{name}={value}", container)
            self.run("commit", "--quiet", container, image)
        finally:
            self.run("rm", container)


def build(source: Path, store: Store, archives: Mapping[str, Path], uv: Path, report: Report) -> None:
    """Build images from the source's Dockerfile and write each as an archive that containerd imports.

    The images that the Dockerfile starts from are made here under their names: Python of Debian, and uv.

    Args:
        source: root of the repository.
        store: where images and layers are kept.
        archives: files to write, replaced, by image: `JOULIE` or `LAB`.
        uv: program for the build.
        report: called with each line of progress.

    Raises:
        BinariesError: a step failed.
    """
    file = source / "deploy/docker/Dockerfile"
    text = file.read_text()
    arguments = dict(_ARGUMENT.findall(text))
    used = {_resolved(name, arguments) for name in _STAGE.findall(text)}
    for image in sorted(name for name in used if "/uv:" in name):
        if not store.has(image):
            store.make(image, uv.resolve(), "/uv")
    for image in sorted(name for name in used if name.startswith("python:")):
        if not store.has(f"docker.io/library/{image}"):
            _make_base(store, f"docker.io/library/{image}", report)
    with tempfile.TemporaryDirectory() as folder:
        trust = Path(folder) / "uv.toml"
        trust.write_text(
            "native-tls = true\n"
        )  # the package index may have a certificate of this machine's authorities
        for image in archives:
            started_s = time.monotonic()
            store.run(
                "bud", "--pull=never", "--layers", "--isolation=chroot", "--network=host", "--quiet",
                f"--volume={trust}:/etc/uv/uv.toml:ro", f"--volume={_CERTIFICATES}:{_CERTIFICATES}:ro",
                "--target", _TARGETS[image], "--tag", image, "--file", file, source,
            )  # fmt: skip
            report(f"{image}: built in {time.monotonic() - started_s:.0f} s")
    store.run("rm", "--all")  # what the stages leave
    for image, archive in archives.items():
        archive.unlink(missing_ok=True)
        store.run("push", "--quiet", image, f"docker-archive:{archive}:{image}")


def write_static_image(archive: Path, name: str, program: Path, entrypoint: str) -> None:
    """Write an image of one static program as an archive that containerd imports.

    Args:
        archive: file to write, replaced.
        name: name of the image, with its tag.
        program: static executable.
        entrypoint: absolute path of the program in the image.
    """
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as content:
        information = content.gettarinfo(program, arcname=entrypoint.lstrip("/"))
        information.mode, information.uid, information.gid = 0o755, 0, 0
        with program.open("rb") as file:
            content.addfile(information, file)
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    configuration = json.dumps(
        {
            "architecture": "arm64" if os.uname().machine == "aarch64" else "amd64",
            "os": "linux",
            "config": {"Entrypoint": [entrypoint], "User": "65535:65535", "Env": [f"PATH={Path(entrypoint).parent}"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
    ).encode()
    manifest = json.dumps([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    with tarfile.open(archive, "w") as image:
        for member, data in (
            ("config.json", configuration),
            ("layer.tar", layer.getvalue()),
            ("manifest.json", manifest),
        ):
            information = tarfile.TarInfo(member)
            information.size = len(data)
            image.addfile(information, io.BytesIO(data))


def compile_pause(folder: Path) -> Path:
    """Compile the static program of `PAUSE` and return its path."""
    program = folder / "pause"
    _run(["cc", "-Os", "-static", "-s", "-o", str(program), str(Path(__file__).with_name("pause.c"))])
    return program


def compressed_mb(archive: Path) -> float:
    """Size of an image archive as a registry would hold it, its layers compressed, MB."""
    size = 0
    with tarfile.open(archive) as image:
        for member in image:
            content = image.extractfile(member)
            if content is not None and member.isfile() and member.name.endswith(".tar"):
                size += _compressed_size(content)
    return size / 1e6


def _compressed_size(content: IO[bytes]) -> int:
    counter = _Counter()
    with gzip.GzipFile(fileobj=counter, mode="wb", compresslevel=6, mtime=0) as packed:
        shutil.copyfileobj(content, packed, 1 << 20)
    return counter.size


class _Counter(io.RawIOBase):
    size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        length = len(memoryview(data))  # type: ignore[arg-type]
        self.size += length
        return length


def _make_base(store: Store, image: str, report: Report) -> None:
    """A base like Docker's official Python image, of Debian's packages: Python answers to `python`, too."""
    report(f"{image}: a root file system of Debian's {_SUITE}")
    with tempfile.TemporaryDirectory(dir=store.folder) as folder:
        archive = Path(folder) / "base.tar"
        links = 'for name in python python3; do ln -sf /usr/bin/python3.13 "$1/usr/local/bin/$name"; done'
        _run(
            [
                "mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(_BASE_PACKAGES)}",
                f"--customize-hook={links}",
                '--customize-hook=rm -rf "$1/usr/share/doc" "$1/usr/share/man" "$1/usr/share/locale"',
                _SUITE, str(archive),
            ]
        )  # fmt: skip
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        store.make(image, archive, "/", {"PATH": path})


def _resolved(name: str, arguments: Mapping[str, str]) -> str:
    return re.sub(r"\$\{?(\w+)\}?", lambda found: arguments.get(found[1], ""), name)


def _run(command: Sequence[str]) -> None:
    if shutil.which(command[0]) is None:
        raise BinariesError(f"no such program: {command[0]}")
    done = subprocess.run(  # noqa: S603 - commands of this module
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_BUILD_S, check=False
    )
    if done.returncode:
        raise BinariesError(f"{' '.join(command)}: exit status {done.returncode}:\n{done.stderr[-3000:]}")
