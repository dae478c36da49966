"""GPUs that a real kubelet gives to pods: the agent names their holders, and a job's limit reaches its GPU alone.

The kubelet learns of the GPUs from a device plugin of our own; the driver's library is the one of `tests/native`,
where the chart looks for that of a driver on the host. One job is a pod that feels its GPU's limit and serves its own
progress; its limit is searched over a Prometheus that scrapes the pod and the agent.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from joulie.adapters.kubernetes import names
from joulie.domain.capping.choice import Reason
from joulie_lab.control_plane import obtain_prometheus, wait_for
from joulie_lab.control_plane.node import host, images
from support import fake_gpus, limited_job
from support.device_plugin import RESOURCE, DevicePlugin, device_plugin
from support.fake_gpus import FakeGpus
from support.loop import NODES
from support.prometheus_server import PrometheusServer
from support.real_site import AGENT, ECO_W, NODE, PATIENCE_S, SCHEDULER, Site

GPUS = 4
UUIDS = [f"GPU-00000000-0000-0000-0000-{number:012}" for number in range(GPUS)]
DEFAULT_W, OWN_W = 700.0, 450.0
SMALL_W = 150.0
"""What a job draws that the smallest power limit of the GPUs, 200 W, does not reach."""
CLOCK_STEP_MHZ = 15.0
SEARCH_S = 600.0
DRIVER = host.FOLDER / "driver"
BOUND = 1.05
PROFILES = "/apis/joulie.io/v1alpha1/namespaces/default/workloadprofiles"
NVIDIA_AGENT = f"{AGENT}-nvidia"


@dataclass
class GpuNode:
    """The node with its GPUs: what the driver has in force, and what the kubelet says."""

    site: Site
    driver: FakeGpus
    plugin: DevicePlugin
    prometheus: PrometheusServer

    def limits_w(self) -> dict[str, float]:
        """Limits that the driver has, by UUID."""
        return {uuid: self.driver.read(number, "set_mw") / 1e3 for number, uuid in enumerate(UUIDS)}

    def held(self, pod: str) -> dict[str, Any]:
        """What the profile of a pod keeps of its limit."""
        profiles = self.site.plane.request("GET", PROFILES)["items"]
        found = {one["metadata"]["name"]: one.get("status", {}).get("gpuLimit", {}) for one in profiles}
        return dict(found.get(f"pod-{pod}", {}))

    def run(self, name: str, annotations: Mapping[str, str] | None = None, **spec: Any) -> str:
        """Run a pod that asks for one GPU, and return the UUID that the kubelet gave it."""
        before = len(self.plugin.given)
        spec |= {"annotations": annotations or {}, "limits": {RESOURCE: "1"}, "schedulerName": SCHEDULER}
        self.site.run_pod(name, **spec)
        self.site.await_running(name)
        (uuid,) = self.plugin.given[before:]
        return uuid

    def run_job(self, name: str, natural_w: float = limited_job.NATURAL_W) -> str:
        """Run a job on one GPU, let Prometheus scrape it and the agent, and return the GPU's UUID.

        Args:
            name: of its pod.
            natural_w: what it draws without limits, W.
        """
        driver = {"name": "driver", "mountPath": str(DRIVER)}
        environment = {
            "FAKE_GPU_STATE": f"{DRIVER}/state",
            limited_job.LIBRARY_VARIABLE: f"{DRIVER}/{fake_gpus.LIBRARIES['fake_nvml']}",
            limited_job.NATURAL_VARIABLE: f"{natural_w:g}",
        }
        container = {
            "image": images.JOULIE,
            "command": ["/opt/joulie/bin/python", "-c", Path(limited_job.__file__).read_text()],
            "env": [{"name": variable, "value": value} for variable, value in environment.items()],
            "volumeMounts": [driver],
            "securityContext": {"runAsUser": 0},  # the state of the driver is root's
        }
        volumes = [{"name": "driver", "hostPath": {"path": str(DRIVER)}}]
        annotations = {names.PROGRESS_METRIC_ANNOTATION: limited_job.METRIC}
        uuid = self.run(name, annotations, container=container, volumes=volumes)
        job, agent = self.site.find_pod(name), self.site.pod(NVIDIA_AGENT)
        own = {"targets": [f"{job['status']['podIP']}:{limited_job.PORT}"]}
        own["labels"] = {"namespace": "default", "pod": name}
        agents = {"targets": [f"{agent['status']['podIP']}:8080"]}
        self.prometheus.process.stop()
        self.prometheus.start(
            [{"job_name": "job", "static_configs": [own]}, {"job_name": "agent", "static_configs": [agents]}]
        )
        return uuid

    def await_holders(self, names: Mapping[str, str]) -> None:
        """Wait until the agent reports that these pods hold these GPUs, by UUID, and nobody the others."""
        expected = {uuid: [names[uuid]] if uuid in names else [] for uuid in UUIDS}

        def are_reported() -> bool:
            gpus = self.site.twin().get("status", {}).get("controlStatus", {}).get("gpus", ())
            reported = {gpu["id"]: [pod["name"] for pod in gpu.get("pods", ())] for gpu in gpus}
            assert reported == expected
            return True

        wait_for(are_reported, PATIENCE_S, "the agent names the holders")

    def await_rows(self, expected: Mapping[str, tuple[str, float]]) -> None:
        """Wait until `kubectl joulie limits` shows these jobs and limits of GPUs, by UUID."""

        def are_shown() -> bool:
            rows = {row["gpu"]: row for row in json.loads(self.site.joulie("limits", "-o", "json"))["gpus"]}
            assert {uuid: (rows[uuid]["job"], rows[uuid]["limit_w"]) for uuid in expected} == expected
            assert all(row["original_w"] == DEFAULT_W for row in rows.values())
            return True

        wait_for(are_shown, PATIENCE_S, "the limits are shown")

    def await_limits(self, **limits_w: float) -> None:
        """Wait until GPUs have these limits, and all others that of the driver's default."""
        expected_w = dict.fromkeys(UUIDS, DEFAULT_W) | limits_w
        wait_for(lambda: self.limits_w() == expected_w, PATIENCE_S, f"the limits are {expected_w}")


@pytest.fixture(scope="module")
def prometheus(enforced: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusServer]:
    """A server where pods reach it, not started yet."""
    folder = tmp_path_factory.mktemp("prometheus")
    program = obtain_prometheus(lambda _line: None)
    server = PrometheusServer(program, folder, host=enforced.addresses.bridge[0])
    yield server
    server.process.stop()


@pytest.fixture(scope="module")
def gpus(enforced: Site, prometheus: PrometheusServer) -> Iterator[GpuNode]:
    """The product's default policy on a node with GPUs; limits are searched at a pace of seconds."""
    DRIVER.mkdir()
    library = fake_gpus.build(DRIVER, "fake_nvml")
    with pytest.MonkeyPatch.context() as environment:
        driver = fake_gpus.install(library, DRIVER, environment, gpus=GPUS)
    settings = {
        "PROMETHEUS_ADDRESS": prometheus.address,
        "GPU_LIMITS_INTERVAL": "1s",
        "GPU_LIMITS_SETTLING": "4s",
        "GPU_LIMITS_WINDOW": "8s",
        "RECONCILE_INTERVAL": "2s",
        "CLASSIFY_INTERVAL": "1s",
    }
    values = enforced.values(operator={"settings": settings})
    agent = values["agent"]
    agent["settings"] = {"RECONCILE_INTERVAL": "1s", "GPU_CLOCKS": "true"}
    agent["hostPaths"]["podResources"] = f"{host.FOLDER}/kubelet/pod-resources"
    agent["kinds"] = {"nvidia": {"driverRoot": str(DRIVER), "nvmlLibrary": library.name}}
    agent["extraEnv"] = [{"name": "FAKE_GPU_STATE", "value": f"{DRIVER}/state"}]
    agent["extraVolumes"] = [{"name": "driver", "hostPath": {"path": str(DRIVER)}}]
    agent["extraVolumeMounts"] = [{"name": "driver", "mountPath": str(DRIVER)}]
    with device_plugin(UUIDS) as plugin:
        enforced.label_node(**{"gpu-vendor": "nvidia"})
        enforced.install(values)
        wait_for(lambda: len(enforced.pods(NVIDIA_AGENT)) == 1, PATIENCE_S, "the agent for NVIDIA's GPUs is there")
        enforced.await_rollout()
        wait_for(lambda: allocatable(enforced) == str(GPUS), PATIENCE_S, "the kubelet offers the GPUs")
        yield GpuNode(enforced, driver, plugin, prometheus)
    enforced.label_node(**{"gpu-vendor": None})
    enforced.install(enforced.values())
    enforced.await_rollout(agents=1)
    enforced.await_limits(ECO_W)


def allocatable(site: Site) -> str | None:
    """GPUs that the node offers."""
    return site.plane.request("GET", f"{NODES}/{NODE}")["status"]["allocatable"].get(RESOURCE)


def test_a_jobs_limit_reaches_its_gpu_alone_and_ends_with_it(gpus: GpuNode) -> None:
    first = gpus.run("first")
    limited = gpus.run("limited", {names.GPU_POWER_LIMIT_ANNOTATION: f"{OWN_W:g}"})
    gpus.await_holders({first: "first", limited: "limited"})
    gpus.await_limits(**{limited: OWN_W})
    gpus.await_rows({first: ("Pod/first", DEFAULT_W), limited: ("Pod/limited", OWN_W)})

    gpus.site.kill(gpus.site.pod(NVIDIA_AGENT))
    gpus.await_limits(**{limited: OWN_W})
    gpus.site.delete_pods("limited")
    gpus.await_limits()
    # Whoever gets the GPU next has all of its power.
    held = {first: "first"} | {gpus.run(name): name for name in ("second", "third", "fourth")}
    assert sorted(held) == UUIDS
    gpus.await_holders(held)
    assert gpus.limits_w() == dict.fromkeys(UUIDS, DEFAULT_W)
    gpus.site.delete_pods(*held.values())


def test_a_limit_ends_when_the_agent_leaves_the_node(gpus: GpuNode) -> None:
    limited = gpus.run("limited", {names.GPU_POWER_LIMIT_ANNOTATION: f"{OWN_W:g}"})
    gpus.await_limits(**{limited: OWN_W})
    gpus.site.label_node(managed=None)
    gpus.await_limits()
    gpus.site.label_node(managed="true")
    gpus.await_limits(**{limited: OWN_W})
    gpus.site.delete_pods("limited")
    gpus.await_limits()


def test_a_jobs_limit_is_found_by_its_own_progress_and_ends_with_it(gpus: GpuNode) -> None:
    uuid = gpus.run_job("train")
    tried_w: set[float] = set()

    def is_held() -> bool:
        tried_w.add(gpus.limits_w()[uuid])
        held = gpus.held("train")
        assert held.get("watts", DEFAULT_W) < DEFAULT_W, f"{held}, tried {tried_w}"
        assert held["reason"] == Reason.MEASURED
        return True

    def is_shown() -> dict[str, Any]:
        held = gpus.held("train")
        (row,) = (row for row in json.loads(gpus.site.joulie("limits", "-o", "json"))["gpus"] if row["gpu"] == uuid)
        shown = [row[name] for name in ("job", "knob", "limit_w", "why", "slowdown", "saved_pct")]
        assert shown == ["Pod/train", "power", *(held[name] for name in ("watts", "reason", "slowdown", "savedPct"))]
        assert gpus.limits_w() == dict.fromkeys(UUIDS, DEFAULT_W) | {uuid: held["watts"]}
        return held

    wait_for(is_held, SEARCH_S, "a limit of the job is held")
    held = wait_for(is_shown, SEARCH_S, "the limit that its profile keeps is in force and shown")
    assert (held["baselineWatts"], held["maxSlowdown"]) == (DEFAULT_W, BOUND)
    assert DEFAULT_W in tried_w
    assert tried_w - {DEFAULT_W, held["watts"]}
    # What was measured over Prometheus is how the process fares under the limit of its device; a gauge of power may be
    # a reading late.
    slowdown = limited_job.slowdown(held["watts"]) / limited_job.slowdown(DEFAULT_W)
    energy = limited_job.power_w(held["watts"]) * slowdown / limited_job.NATURAL_W
    assert slowdown < BOUND
    assert held["slowdown"] == pytest.approx(slowdown, abs=0.02)
    assert held["savedPct"] == pytest.approx(100.0 * (1.0 - energy), abs=5.0)
    gpus.site.delete_pods("train")
    gpus.await_limits()


def test_a_jobs_clock_is_locked_where_no_power_limit_reaches_and_ends_with_it(gpus: GpuNode) -> None:
    uuid = gpus.run_job("small", SMALL_W)
    number, locked = UUIDS.index(uuid), set()

    def is_held() -> bool:
        locked.add(gpus.driver.read(number, "lock_mhz"))
        held = gpus.held("small")
        assert held.get("maxSmClockMhz") is not None, f"{held}, locked {locked}"
        return True

    def is_shown() -> dict[str, Any]:
        held = gpus.held("small")
        (row,) = (row for row in json.loads(gpus.site.joulie("limits", "-o", "json"))["gpus"] if row["gpu"] == uuid)
        shown = [row[name] for name in ("job", "knob", "max_sm_clock_mhz", "clock_result", "why", "slowdown")]
        kept = [held[name] for name in ("maxSmClockMhz", "reason", "slowdown")]
        assert shown == ["Pod/small", "clock", kept[0], "applied", *kept[1:]]
        # The GPU locks to the supported clock below.
        assert 0.0 <= held["maxSmClockMhz"] - gpus.driver.read(number, "lock_mhz") < CLOCK_STEP_MHZ
        return held

    wait_for(is_held, SEARCH_S, "a clock of the job is held")
    held = wait_for(is_shown, SEARCH_S, "the clock that its profile keeps is locked and shown")
    assert (held["watts"], held["baselineWatts"], held["maxSlowdown"]) == (DEFAULT_W, DEFAULT_W, BOUND)
    assert gpus.limits_w() == dict.fromkeys(UUIDS, DEFAULT_W)
    assert len(locked - {0}) > 1, "others were tried"
    clock = held["maxSmClockMhz"] / limited_job.LARGEST_MHZ
    assert held["slowdown"] == pytest.approx(limited_job.slowdown(DEFAULT_W, SMALL_W, clock), abs=0.02)
    assert held["savedPct"] > 10.0
    gpus.site.delete_pods("small")
    wait_for(lambda: gpus.driver.read(number, "lock_mhz") == 0, PATIENCE_S, "the clock is free again")
