"""Parts of the real node that need neither root nor its programs."""

import json
import os
import struct
import tarfile
from pathlib import Path

import pytest

from joulie_lab.control_plane.node import configuration, debian_programs, host, images, names, preflight
from joulie_lab.control_plane.node.__main__ import main
from joulie_lab.control_plane.node.prepared import FOLDER_VARIABLE, folder_of
from joulie_lab.control_plane.tools import BinariesError

DUAL = host.Addresses(("10.87.0.0/24", "fd87::/64"), ("10.88.0.0/24", "fd88::/112"))


def query(name: str, kind: int) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack(">HHHHHH", 7, 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", kind, 1)


def services(name: str, namespace: str) -> list[str] | None:
    return ["10.88.0.9", "fd88::9"] if (name, namespace) == ("extender", "joulie") else None


@pytest.mark.parametrize(("kind", "address"), [(1, bytes([10, 88, 0, 9])), (28, b"\xfd\x88" + 13 * b"\0" + b"\x09")])
def test_a_service_has_its_cluster_addresses(kind: int, address: bytes) -> None:
    answer = names.answer(query("Extender.joulie.svc.cluster.local", kind), services)
    assert struct.unpack_from(">HHHH", answer) == (7, 0x8400, 1, 1)
    assert answer.endswith(struct.pack(">H", len(address)) + address)


@pytest.mark.parametrize("name", ["other.joulie.svc.cluster.local", "example.com", "extender.joulie.svc"])
def test_any_other_name_does_not_exist(name: str) -> None:
    answer = names.answer(query(name, 1), services)
    assert struct.unpack_from(">HHHH", answer) == (7, 0x8403, 1, 0)


@pytest.mark.parametrize("broken", [b"", b"\0" * 12, query("a.b", 1)[:-3], query("a.b", 1)[:14]])
def test_what_is_no_query_is_refused(broken: bytes) -> None:
    with pytest.raises(ValueError, match="not"):
        names.answer(broken, services)


def test_the_bridge_has_the_first_address_of_each_family(tmp_path: Path) -> None:
    assert DUAL.bridge == ["10.87.0.1", "fd87::1"]
    network = json.loads(configuration.pod_network(DUAL, tmp_path))
    assert [item["type"] for item in network["plugins"]] == ["bridge", "portmap"]
    assert network["plugins"][0]["ipam"]["ranges"] == [[{"subnet": "10.87.0.0/24"}], [{"subnet": "fd87::/64"}]]
    kubelet = json.loads(
        configuration.kubelet(
            tmp_path, DUAL, authority=tmp_path / "ca", certificate=tmp_path / "crt", key=tmp_path / "key", port=1
        )
    )
    assert (kubelet["clusterDNS"], kubelet["cgroupRoot"]) == (["10.87.0.1"], "/joulie-node")


def test_a_static_program_becomes_an_image_archive(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF")
    images.write_static_image(tmp_path / "image.tar", "localhost/p:1", program, "/usr/bin/p")
    with tarfile.open(tmp_path / "image.tar") as image:
        (manifest,) = json.load(image.extractfile("manifest.json"))
        settings = json.load(image.extractfile(manifest["Config"]))["config"]
        with tarfile.open(fileobj=image.extractfile(manifest["Layers"][0])) as layer:
            assert [(item.name, item.mode) for item in layer] == [("usr/bin/p", 0o755)]
    assert manifest["RepoTags"] == ["localhost/p:1"]
    assert (settings["Entrypoint"], settings["Env"]) == (["/usr/bin/p"], ["PATH=/usr/bin"])
    assert images.compressed_mb(tmp_path / "image.tar") < 0.001


def test_a_node_is_started_in_namespaces_of_its_own_only() -> None:
    with pytest.raises(BinariesError, match="namespaces of its own"):
        host.set_up(DUAL)
    with pytest.raises(BinariesError, match="is not set"):
        folder_of({})
    assert folder_of({FOLDER_VARIABLE: "/cache"}) == Path("/cache")


def test_a_machine_that_cannot_run_a_node_is_told_what_it_lacks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(["--if-possible", "false"]) == 0
    assert main(["true"]) == 1
    told = "left out: the tests of a real node, for this machine lacks root\n"
    assert capsys.readouterr().err == 2 * told


def test_nothing_is_installed_where_the_kernel_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(preflight, "_FUSE", Path("/dev/no-such-device"))
    monkeypatch.setattr(debian_programs, "install", lambda report: pytest.fail("installs packages"))
    assert main(["--if-possible", "false"]) == 0
