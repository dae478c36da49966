"""Downloads official builds of the tools over TLS and verifies them with their published checksums."""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
import tarfile
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.parse import urlsplit

from joulie_lab.control_plane.go_build import build_tool
from joulie_lab.control_plane.tools import Report, Tool

HOMES: Mapping[str, str] = {
    "kubernetes": "https://dl.k8s.io",
    "kubelet": "https://dl.k8s.io",
    "etcd": "https://github.com",
    "helm": "https://get.helm.sh",
}
"""Download sites of the tools' official builds. KWOK is built from source, because it publishes no checksums."""

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_CONNECT_S = 5.0
_READ_S = 60.0
_CHUNK_BYTES = 1 << 20
_SHA256 = re.compile(r"[0-9a-f]{64}")


class UnavailableError(Exception):
    """An official build cannot be downloaded, or its checksum does not match."""


@dataclass(frozen=True)
class PublishedFile:
    """One file of a release.

    Attributes:
        url: download URL.
        checksums_url: URL of its SHA-256 checksum, alone or in a line with the file's name.
        artefact: name of the artefact that it contains.
        member: path of the artefact in the archive; empty if the file is the program itself.
    """

    url: str
    checksums_url: str
    artefact: str
    member: str = ""


def published_files(tool: Tool, homes: Mapping[str, str] = HOMES) -> list[PublishedFile]:
    """Return the files that give a tool's artefacts on this kind of machine; none where it is not published for it."""
    architecture = _ARCHITECTURES.get(platform.machine())
    if architecture is None or platform.system() != "Linux" or tool.name not in homes:
        return []
    home, version, system = homes[tool.name], tool.version, f"linux-{architecture}"
    if tool.module == "k8s.io/kubernetes":
        urls = {name: f"{home}/release/{version}/bin/linux/{architecture}/{name}" for name in tool.artefacts}
        return [PublishedFile(url, f"{url}.sha256", name) for name, url in urls.items()]
    if tool.name == "etcd":
        release = f"{home}/etcd-io/etcd/releases/download/{version}"
        name = f"etcd-{version}-{system}"
        return [PublishedFile(f"{release}/{name}.tar.gz", f"{release}/SHA256SUMS", "etcd", f"{name}/etcd")]
    url = f"{home}/helm-{version}-{system}.tar.gz"
    return [PublishedFile(url, f"{url}.sha256sum", "helm", f"{system}/helm")]


def provide_tool(tool: Tool, target: Path, root: Path, report: Report, *, homes: Mapping[str, str] = HOMES) -> None:
    """Download the official build of a tool into the empty folder `target`, else build it there from its Go module.

    Args:
        tool: what to provide.
        target: an empty folder.
        root: where a Go toolchain of our own is kept if one is needed.
        report: told each line of progress.
        homes: the homes of the projects' builds by tool.

    Raises:
        BinariesError: it can neither be downloaded nor built.
    """
    files = published_files(tool, homes)
    if files:
        try:
            _download_all(tool, files, target, report)
        except UnavailableError as error:
            report(f"{tool.name} {tool.version}: no official build, {error}")
            for partial in target.iterdir():
                partial.unlink()
        else:
            return
    build_tool(tool, target, root, report)


def _download_all(tool: Tool, files: list[PublishedFile], target: Path, report: Report) -> None:
    # All checksums first, so that an unreachable site is detected before a large download.
    digests = [_published_digest(file) for file in files]
    report(f"{tool.name} {tool.version}: downloading about {tool.download_mb} MB from {urlsplit(files[0].url).netloc}")
    for file, digest in zip(files, digests, strict=True):
        _download(file, digest, target)


def _open(url: str, timeout_s: float) -> HTTPResponse:
    answer: HTTPResponse = urllib.request.urlopen(url, timeout=timeout_s)  # noqa: S310 - the addresses of HOMES
    return answer


def _published_digest(file: PublishedFile) -> str:
    try:
        with _open(file.checksums_url, _CONNECT_S) as answer:
            lines = answer.read(_CHUNK_BYTES).decode(errors="replace").splitlines()
    except (OSError, HTTPException) as error:
        raise UnavailableError(f"{file.checksums_url}: {error}") from error
    file_name = file.url.rpartition("/")[2]
    for line in lines:
        digest, *names = line.split() or [""]
        if _SHA256.fullmatch(digest) and (not names or names[0].removeprefix("*") == file_name):
            return digest
    raise UnavailableError(f"{file.checksums_url}: no SHA-256 of {file_name}")


def _download(file: PublishedFile, digest: str, target: Path) -> None:
    """Download a file, verify it, and put its artefact into `target`."""
    downloaded = target / f".{file.artefact}"
    found = hashlib.sha256()
    try:
        with _open(file.url, _READ_S) as answer, downloaded.open("wb") as kept:
            while chunk := answer.read(_CHUNK_BYTES):
                found.update(chunk)
                kept.write(chunk)
    except (OSError, HTTPException) as error:
        raise UnavailableError(f"{file.url}: {error}") from error
    if found.hexdigest() != digest:
        raise UnavailableError(f"{file.url}: its SHA-256 is {found.hexdigest()}, published is {digest}")
    program = target / file.artefact
    if file.member:
        _extract(downloaded, file, program)
        downloaded.unlink()
    else:
        downloaded.rename(program)
    program.chmod(0o755)


def _extract(archive: Path, file: PublishedFile, program: Path) -> None:
    try:
        with tarfile.open(archive) as opened, program.open("wb") as kept:
            member = opened.extractfile(file.member)
            if member is None:
                raise UnavailableError(f"{file.url}: {file.member} is not a file")
            shutil.copyfileobj(member, kept)
    except (KeyError, tarfile.TarError, OSError) as error:
        raise UnavailableError(f"{file.url}: {file.member} cannot be unpacked: {error}") from error
