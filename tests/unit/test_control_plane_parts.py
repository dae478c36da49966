"""The parts of the local control plane that need no process."""

import ssl
from pathlib import Path

import pytest
from cryptography import x509

from joulie_lab.control_plane import Binaries, LocalControlPlane, NotReachedError, kwok_node, ports, wait_for
from joulie_lab.control_plane.certificates import Certificate, CertificateAuthority
from joulie_lab.control_plane.components import Layout, scheduler_configuration
from joulie_lab.control_plane.process import ManagedProcess, ProcessFailedError
from joulie_lab.control_plane.tools import TOOLS


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    paths = {artefact: tmp_path / artefact for tool in TOOLS for artefact in tool.artefacts}
    nothing = Certificate(tmp_path / "none.crt", tmp_path / "none.key")
    return Layout(tmp_path, Binaries(paths), tmp_path / "ca.crt", nothing, nothing, nothing, nothing)


def test_waiting_returns_the_first_true_result() -> None:
    results = iter([0, None, 7, 8])
    assert wait_for(lambda: next(results), 10, "seven", poll_s=0) == 7


def test_waiting_takes_a_failed_assertion_for_not_yet() -> None:
    results = iter([1, 2])

    def is_two() -> bool:
        value = next(results)
        assert value == 2, f"it is {value}"
        return True

    assert wait_for(is_two, 10, "two", poll_s=0)


def test_waiting_too_long_tells_what_for_and_what_was_seen() -> None:
    with pytest.raises(NotReachedError, match=r"^not within 0 s: pod a runs \(last seen: False\)$"):
        wait_for(lambda: False, 0, "pod a runs")


def test_other_errors_end_the_wait() -> None:
    with pytest.raises(ZeroDivisionError):
        wait_for(lambda: 1 / 0, 10, "never")


def test_the_scheduler_configuration_is_the_caller_s_but_for_the_connection(layout: Layout) -> None:
    given = {"extenders": [{"urlPrefix": "http://127.0.0.1:1"}], "clientConnection": {"qps": 50, "kubeconfig": "x"}}
    made = scheduler_configuration(layout, given)
    assert made["extenders"] == given["extenders"]
    assert made["clientConnection"] == {
        "qps": 50,
        "burst": 10000,
        "kubeconfig": str(layout.kubeconfig("kube-scheduler")),
    }
    assert made["leaderElection"] == {"leaderElect": False}
    assert made["kind"] == "KubeSchedulerConfiguration"


def test_unknown_components_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"unknown components \['etdc'\]; there are etcd, kube-apiserver"):
        LocalControlPlane(components=("etdc",))


def test_a_control_plane_that_is_not_started_says_so() -> None:
    plane = LocalControlPlane()
    with pytest.raises(ProcessFailedError, match="not started"):
        _ = plane.folder
    with pytest.raises(ProcessFailedError, match="never started"):
        plane.pause("etcd")
    plane.close()


def test_a_node_is_ready_and_has_what_was_asked_for() -> None:
    node = kwok_node(
        "a.b", labels={"x": "y"}, allocatable={"nvidia.com/gpu": "8", "cpu": "4"}, annotations={"note": "n"}
    )
    assert node["metadata"]["labels"]["x"] == "y"
    assert node["metadata"]["labels"]["kubernetes.io/hostname"] == "a.b"
    assert node["metadata"]["annotations"] == {"note": "n"}
    assert node["status"]["allocatable"] == {"cpu": "4", "memory": "128Gi", "pods": "110", "nvidia.com/gpu": "8"}
    assert {c["type"]: c["status"] for c in node["status"]["conditions"]}["Ready"] == "True"


def test_certificates_are_private_and_chain_to_their_authority(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path / "pki")
    issued = authority.issue("extender", groups=["g1", "g2"], hosts=["127.0.0.1", "extender.local"])
    certificate = x509.load_pem_x509_certificate(issued.certificate.read_bytes())
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.certificate.read_bytes()))
    assert certificate.subject.rfc4514_string() == "CN=extender,O=g2,O=g1"
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["extender.local"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    assert issued.key.stat().st_mode & 0o077 == 0
    assert authority.folder.stat().st_mode & 0o077 == 0
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(issued.certificate, issued.key)


def test_a_program_that_cannot_be_run_is_a_named_error(tmp_path: Path) -> None:
    process = ManagedProcess("ghost", [tmp_path / "ghost"], tmp_path / "logs/ghost.log")
    with pytest.raises(ProcessFailedError, match=r"ghost cannot be run: no such program: /.*/ghost"):
        process.start()
    assert not process.running
    process.stop()
    with pytest.raises(ProcessFailedError, match="ghost is not running"):
        process.pause()


def test_a_port_that_was_given_is_given_to_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever got it may need minutes until it listens."""
    first = ports.free_port()
    monkeypatch.setattr(ports, "_PORTS", range(first, first + 1))
    with pytest.raises(ProcessFailedError, match="no free port"):
        ports.free_port()
