"""What holds for unit tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from joulie_lab.control_plane.certificates import CertificateAuthority
from support.fake_gpus import FakeGpus, build, install


@pytest.fixture(scope="session")
def _one_authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return CertificateAuthority(tmp_path_factory.mktemp("authority")).certificate


@pytest.fixture(autouse=True, scope="module")
def _nobody_to_trust(_one_authority: Path) -> Iterator[None]:
    """Clients trust one authority instead of the system's hundreds, which take each client 50 ms to load."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(_one_authority))
        yield


@pytest.fixture(scope="session")
def _nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"), "fake_nvml")


@pytest.fixture
def driver(_nvml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGpus:
    """Two NVIDIA GPUs of 200 to 800 W, 700 W by default."""
    folder = tmp_path / "driver"
    folder.mkdir()
    return install(_nvml, folder, monkeypatch)


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that a test starts are not measured: coverage imports modules of its own and of Joulie's."""
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)
