"""Official builds of the control plane's programs, from a server of this test's own."""

import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from joulie_lab.control_plane import official
from joulie_lab.control_plane.binaries import obtain
from joulie_lab.control_plane.official import HOMES, provide_tool, published_files
from joulie_lab.control_plane.tools import TOOLS, BinariesError, Report, Tool

BY_NAME = {tool.name: tool for tool in TOOLS}
UNREACHABLE = dict.fromkeys(HOMES, "http://127.0.0.1:1")


class Home:
    """Publishes files by path, over a real socket."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.homes = dict.fromkeys(HOMES, f"http://127.0.0.1:{self.server.server_port}")

    def publish(self, path: str, content: bytes) -> str:
        """Publish a file; its SHA-256."""
        self.files[path] = content
        return hashlib.sha256(content).hexdigest()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        home = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                home.asked.append(self.path)
                content = home.files.get(self.path)
                self.send_response(404 if content is None else 200)
                self.end_headers()
                self.wfile.write(content or b"")

            def log_message(self, format: str, *arguments: Any) -> None:
                """Nothing."""

        return Handler


@pytest.fixture
def home() -> Iterator[Home]:
    opened = Home()
    yield opened
    opened.server.shutdown()
    opened.server.server_close()


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the tools that were built instead."""
    names: list[str] = []

    def build(tool: Tool, target: Path, root: Path, report: Report) -> None:
        assert not list(target.iterdir()), "what was downloaded in part is gone"
        names.append(tool.name)

    monkeypatch.setattr(official, "build_tool", build)
    return names


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture(autouse=True)
def _on_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")


def archive(member: str, content: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as opened:
        described = tarfile.TarInfo(member)
        described.size = len(content)
        opened.addfile(described, io.BytesIO(content))
    return packed.getvalue()


def publish_kubernetes(home: Home) -> None:
    for name in BY_NAME["kubernetes"].artefacts:
        path = f"/release/v1.36.3/bin/linux/amd64/{name}"
        home.publish(f"{path}.sha256", home.publish(path, name.encode()).encode())


def test_programs_are_downloaded_and_verified(home: Home, tmp_path: Path, built: list[str], lines: list[str]) -> None:
    publish_kubernetes(home)
    provide_tool(BY_NAME["kubernetes"], tmp_path, tmp_path, lines.append, homes=home.homes)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        name: name for name in BY_NAME["kubernetes"].artefacts
    }
    assert all(path.stat().st_mode & 0o111 for path in tmp_path.iterdir())
    assert lines == [f"kubernetes v1.36.3: downloading about 330 MB from 127.0.0.1:{home.server.server_port}"]
    assert not built


@pytest.mark.parametrize(
    ("tool", "path", "checksums", "member"),
    [
        (
            "etcd",
            "/etcd-io/etcd/releases/download/v3.6.8/etcd-v3.6.8-linux-amd64.tar.gz",
            "/etcd-io/etcd/releases/download/v3.6.8/SHA256SUMS",
            "etcd-v3.6.8-linux-amd64/etcd",
        ),
        (
            "helm",
            "/helm-v4.3.1-linux-amd64.tar.gz",
            "/helm-v4.3.1-linux-amd64.tar.gz.sha256sum",
            "linux-amd64/helm",
        ),
    ],
)
def test_a_program_is_taken_out_of_its_archive(
    home: Home, tmp_path: Path, built: list[str], lines: list[str], tool: str, path: str, checksums: str, member: str
) -> None:
    digest = home.publish(path, archive(member, b"program"))
    home.publish(checksums, f"{'0' * 64}  another.tar.gz\n{digest}  {path.rpartition('/')[2]}\n".encode())
    provide_tool(BY_NAME[tool], tmp_path, tmp_path, lines.append, homes=home.homes)
    assert [(found.name, found.read_bytes()) for found in tmp_path.iterdir()] == [(tool, b"program")]
    assert not built


def test_a_home_that_cannot_be_reached_costs_one_line(tmp_path: Path, built: list[str], lines: list[str]) -> None:
    provide_tool(BY_NAME["kubernetes"], tmp_path, tmp_path, lines.append, homes=UNREACHABLE)
    (line,) = lines
    assert line.startswith("kubernetes v1.36.3: no official build, http://127.0.0.1:1/release/")
    assert "refused" in line
    assert built == ["kubernetes"]


def test_a_file_that_is_not_what_was_published_is_not_used(
    home: Home, tmp_path: Path, built: list[str], lines: list[str]
) -> None:
    publish_kubernetes(home)
    home.files["/release/v1.36.3/bin/linux/amd64/kubectl"] = b"something else"
    provide_tool(BY_NAME["kubernetes"], tmp_path, tmp_path, lines.append, homes=home.homes)
    assert "kubectl: its SHA-256 is " in lines[-1]
    assert built == ["kubernetes"]


def test_without_a_checksum_nothing_is_downloaded(
    home: Home, tmp_path: Path, built: list[str], lines: list[str]
) -> None:
    publish_kubernetes(home)
    home.files["/release/v1.36.3/bin/linux/amd64/kubectl.sha256"] = b"<html>not found</html>"
    provide_tool(BY_NAME["kubernetes"], tmp_path, tmp_path, lines.append, homes=home.homes)
    assert lines[-1].endswith("kubectl.sha256: no SHA-256 of kubectl")
    assert all(path.endswith(".sha256") for path in home.asked)
    assert built == ["kubernetes"]


def test_an_archive_without_the_program_is_not_used(
    home: Home, tmp_path: Path, built: list[str], lines: list[str]
) -> None:
    path = "/helm-v4.3.1-linux-amd64.tar.gz"
    home.publish(f"{path}.sha256sum", home.publish(path, archive("linux-amd64/other", b"")).encode())
    provide_tool(BY_NAME["helm"], tmp_path, tmp_path, lines.append, homes=home.homes)
    assert "linux-amd64/helm cannot be unpacked" in lines[-1]
    assert built == ["helm"]


def test_what_is_not_published_for_this_machine_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    assert published_files(BY_NAME["kwok"]) == []
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert published_files(BY_NAME["helm"]) == []


def test_what_it_will_cost_is_said_before_anything_is_done(tmp_path: Path, lines: list[str]) -> None:
    def fails(tool: Tool, target: Path, root: Path, report: Report) -> None:
        raise BinariesError(f"{len(lines)} lines so far")

    with pytest.raises(BinariesError, match="1 lines so far"):
        obtain(lines.append, environment={"JOULIE_CONTROL_PLANE_DIR": str(tmp_path)}, provide=fails)
    assert lines == [
        "kubernetes v1.36.3, etcd v3.6.8, kwok v0.8.0, helm v4.3.1: missing; official builds, about 375 MB, "
        "are downloaded where they can be reached. "
        "Building all with Go takes about 10 minutes on two cores and 6 GB of disk, once."
    ]
