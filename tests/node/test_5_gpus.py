"""GPUs that a real kubelet gives to pods: the agent names their holders, and a job's limit reaches its GPU alone.

The kubelet learns of the GPUs from a device plugin of our own; the driver's library is the one of `tests/native`, where
the chart looks for that of a driver on the host.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest

from joulie.adapters.kubernetes import names
from joulie_lab.control_plane import wait_for
from joulie_lab.control_plane.node import host
from support import fake_gpus
from support.device_plugin import RESOURCE, DevicePlugin, device_plugin
from support.fake_gpus import FakeGpus
from support.loop import NODES
from support.real_site import AGENT, ECO_W, NODE, PATIENCE_S, SCHEDULER, Site

GPUS = 4
UUIDS = [f"GPU-00000000-0000-0000-0000-{number:012}" for number in range(GPUS)]
DEFAULT_W, OWN_W = 700.0, 450.0
NO_PROMETHEUS = "http://127.0.0.1:9"
DRIVER = host.FOLDER / "driver"
NVIDIA_AGENT = f"{AGENT}-nvidia"


@dataclass
class GpuNode:
    """The node with its GPUs: what the driver has in force, and what the kubelet says."""

    site: Site
    driver: FakeGpus
    plugin: DevicePlugin

    def limits_w(self) -> dict[str, float]:
        """Limits that the driver has, by UUID."""
        return {uuid: self.driver.read(number, "set_mw") / 1e3 for number, uuid in enumerate(UUIDS)}

    def run(self, name: str, **annotations: str) -> str:
        """Run a pod that asks for one GPU, and return the UUID that the kubelet gave it."""
        before = len(self.plugin.given)
        self.site.run_pod(name, annotations=annotations, limits={RESOURCE: "1"}, schedulerName=SCHEDULER)
        self.site.await_running(name)
        (uuid,) = self.plugin.given[before:]
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
def gpus(enforced: Site) -> Iterator[GpuNode]:
    """The product's default policy on a node with GPUs, of which no Prometheus measures anything."""
    DRIVER.mkdir()
    library = fake_gpus.build(DRIVER, "fake_nvml")
    with pytest.MonkeyPatch.context() as environment:
        driver = fake_gpus.install(library, DRIVER, environment, gpus=GPUS)
    settings = {"PROMETHEUS_ADDRESS": NO_PROMETHEUS, "GPU_LIMITS_INTERVAL": "1s", "RECONCILE_INTERVAL": "2s"}
    values = enforced.values(operator={"settings": settings})
    agent = values["agent"]
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
        yield GpuNode(enforced, driver, plugin)
    enforced.label_node(**{"gpu-vendor": None})
    enforced.install(enforced.values())
    enforced.await_rollout(agents=1)
    enforced.await_limits(ECO_W)


def allocatable(site: Site) -> str | None:
    """GPUs that the node offers."""
    return site.plane.request("GET", f"{NODES}/{NODE}")["status"]["allocatable"].get(RESOURCE)


def test_a_jobs_limit_reaches_its_gpu_alone_and_ends_with_it(gpus: GpuNode) -> None:
    first = gpus.run("first")
    limited = gpus.run("limited", **{names.GPU_POWER_LIMIT_ANNOTATION: f"{OWN_W:g}"})
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
    limited = gpus.run("limited", **{names.GPU_POWER_LIMIT_ANNOTATION: f"{OWN_W:g}"})
    gpus.await_limits(**{limited: OWN_W})
    gpus.site.label_node(managed=None)
    gpus.await_limits()
    gpus.site.label_node(managed="true")
    gpus.await_limits(**{limited: OWN_W})
    gpus.site.delete_pods("limited")
    gpus.await_limits()
