"""Real control planes and a real Prometheus for the tests of this folder.

Programs that are missing are built or fetched; no test is skipped for them.
"""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from joulie_lab.control_plane import (
    COMPONENTS,
    Binaries,
    LocalControlPlane,
    obtain,
    obtain_kueue_definitions,
    obtain_prometheus,
    obtain_promtool,
)
from joulie_lab.control_plane.binaries import cache_root
from joulie_lab.control_plane.go_build import download_module
from support.prometheus_server import PrometheusServer

StartControlPlane = Callable[..., LocalControlPlane]

AUTOSCALERS_VARIABLE = "JOULIE_TEST_AUTOSCALERS"
collect_ignore_glob = [] if AUTOSCALERS_VARIABLE in os.environ else ["test_autoscaler_*.py"]


def pytest_report_header() -> str | None:
    """Say what is left out: programs that no other test needs take minutes to build."""
    return "left out: tests of autoscalers; `make autoscalers` runs them" if collect_ignore_glob else None


def _tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")


@pytest.fixture(scope="session", autouse=True)
def _programs_at_full_speed() -> Iterator[None]:
    """Programs that these tests start are not measured: coverage would slow them down several times."""
    measured = os.environ.pop("COVERAGE_PROCESS_CONFIG", None)
    yield
    if measured is not None:
        os.environ["COVERAGE_PROCESS_CONFIG"] = measured


@pytest.fixture(scope="session")
def control_plane_binaries(request: pytest.FixtureRequest) -> Binaries:
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        return obtain(_tell)


@pytest.fixture(scope="session")
def control_plane(
    control_plane_binaries: Binaries, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalControlPlane]:
    """The control plane that the tests of a session (of a worker, with xdist) share.

    Use namespaces and node names of your own, remove your nodes, and stop nothing.
    """
    logs = tmp_path_factory.mktemp("control-plane")
    with LocalControlPlane(binaries=control_plane_binaries, log_folder=logs, audit=True) as plane:
        yield plane


@pytest.fixture(scope="module")
def plane(
    request: pytest.FixtureRequest, control_plane_binaries: Binaries, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalControlPlane]:
    """A control plane of a test file's own, with an audit log; the file's COMPONENTS say which, else all."""
    logs = tmp_path_factory.mktemp(request.module.__name__.rpartition(".")[2])
    components = getattr(request.module, "COMPONENTS", COMPONENTS)
    with LocalControlPlane(
        binaries=control_plane_binaries, components=components, log_folder=logs, audit=True
    ) as plane:
        yield plane


@pytest.fixture
def start_control_plane(control_plane_binaries: Binaries, tmp_path: Path) -> Iterator[StartControlPlane]:
    """Start control planes of the test's own, with LocalControlPlane's options; they end with the test."""
    started: list[LocalControlPlane] = []

    def start(**options: Any) -> LocalControlPlane:
        logs = tmp_path / f"plane-{len(started)}"
        plane = LocalControlPlane(binaries=control_plane_binaries, **{"log_folder": logs, **options})
        started.append(plane)
        plane.start()
        return plane

    yield start
    for plane in reversed(started):
        plane.close()


@pytest.fixture(scope="session")
def prometheus_program(request: pytest.FixtureRequest) -> Path:
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        return obtain_prometheus(_tell)


@pytest.fixture(scope="session")
def promtool(request: pytest.FixtureRequest) -> Path:
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        return obtain_promtool(_tell)


@pytest.fixture
def prometheus(prometheus_program: Path, tmp_path: Path) -> Iterator[PrometheusServer]:
    """A Prometheus of the test's own, not started yet."""
    folder = tmp_path / "prometheus"
    folder.mkdir()
    server = PrometheusServer(prometheus_program, folder)
    yield server
    server.process.kill()


@pytest.fixture(scope="session")
def kueue_definitions(request: pytest.FixtureRequest) -> Path:
    """The folder of Kueue's own CustomResourceDefinitions."""
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        return obtain_kueue_definitions(_tell)


@pytest.fixture(scope="session")
def scaled_objects(request: pytest.FixtureRequest) -> Path:
    """KEDA's own CustomResourceDefinition of ScaledObjects, from its pinned Go module."""
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        module = download_module("keda", "github.com/kedacore/keda/v2", cache_root(os.environ), _tell)
    return module / "config/crd/bases/keda.sh_scaledobjects.yaml"
