import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from joulie.adapters.kubernetes.api.core import Namespace, Node, Pod
from joulie.adapters.kubernetes.api.meta import ObjectMeta
from joulie.adapters.kubernetes.api.v1alpha1 import NodeHardware, NodeTwin
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.names import CLASSIFIER, MANAGED_BY_LABEL
from joulie.adapters.kubernetes.pods import pod_facts
from joulie.adapters.kubernetes.resources import NAMESPACES, NODE_HARDWARES, NODE_TWINS, NODES, PODS, WORKLOAD_PROFILES
from joulie.apps.extender import answers
from joulie.apps.extender.feed import (
    Feed,
    NodeLabels,
    keep_hardware,
    keep_node,
    keep_policies,
    keep_twin,
    load_facts,
    twin_facts,
)
from joulie.apps.extender.fleet import Fleet
from joulie.apps.extender.node_facts import LoadFacts
from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie.domain.hardware.resolve import ReportedHardware
from joulie.domain.mode import Mode
from joulie.domain.scoring.extender import NodeClass
from joulie.domain.scoring.occupancy import Occupancy
from joulie_lab.fakes.kubernetes import FakeCluster

STATUS: dict[str, Any] = {
    "schedulableClass": "eco",
    "predictedPowerHeadroomScore": 60,
    "predictedCoolingStressScore": 20.5,
    "effectiveCapState": {"cpuPct": 60},
    "powerMeasurement": {"nodeCappedPowerW": 1000, "measuredNodePowerW": 400, "powerTrendWPerMin": -3},
    "lastUpdated": "2026-03-13T12:00:00Z",
}


def twin(status: dict[str, Any] | None = None, *, node: str = "n1", name: str | None = None) -> dict[str, Any]:
    return {
        "metadata": {"name": name or node},
        "spec": {"nodeName": node, "profile": "eco"},
        "status": STATUS if status is None else status,
    }


def facts(status: dict[str, Any]) -> Any:
    return twin_facts(msgspec.convert(twin(status), NodeTwin))


def test_a_twin_as_facts() -> None:
    found = facts(STATUS)
    assert (found.node_class, found.flaw) == (NodeClass.ECO, "")
    assert found.updated_s == 1773403200.0
    assert (found.numbers.capped_w, found.numbers.measured_w, found.numbers.trend_w_per_min) == (1000.0, 400.0, -3.0)
    assert (found.numbers.cpu_cap_fraction, found.numbers.gpu_cap_fraction) == (0.6, 1.0)


def test_trap_whole_watts_are_read() -> None:
    """Watts without a decimal point once decoded to zero."""
    assert facts(STATUS).numbers.capped_w == 1000.0


@pytest.mark.parametrize(
    ("changes", "flaw"),
    [
        ({"predictedPowerHeadroomScore": None}, "predictedPowerHeadroomScore: is missing"),
        ({"powerMeasurement": None}, "nodeCappedPowerW: is missing"),
        ({"powerMeasurement": {"nodeCappedPowerW": 0, "measuredNodePowerW": 1}}, "capped_w: must be above zero"),
        ({"predictedCoolingStressScore": 250}, "cooling_stress_pct: must be within"),
        ({"lastUpdated": "yesterday"}, "invalid time 'yesterday': not RFC 3339"),
    ],
)
def test_a_flawed_twin_keeps_its_class_and_loses_its_scores(changes: dict[str, Any], flaw: str) -> None:
    found = facts({key: value for key, value in (STATUS | changes).items() if value is not None})
    assert (found.node_class, found.numbers) == (NodeClass.ECO, None)
    assert found.flaw.startswith("NodeTwin: ")
    assert flaw in found.flaw


def test_an_empty_status_says_nothing() -> None:
    found = facts({})
    assert (found.node_class, found.numbers, found.updated_s) == (NodeClass.UNKNOWN, None, None)


def test_only_the_object_under_the_nodes_own_name_counts() -> None:
    dotted = "ip-10-0-0-1.eu-central-1.compute.internal"
    kept = keep_twin(msgspec.convert(twin(node=dotted), NodeTwin))
    assert kept is not None
    assert kept.node == dotted
    assert keep_twin(msgspec.convert(twin(node=dotted, name="ip-10-0-0-1"), NodeTwin)) is None
    hardware = {"metadata": {"name": "other"}, "spec": {"nodeName": "n1"}}
    assert keep_hardware(msgspec.convert(hardware, NodeHardware)) is None


def test_hardware_as_load() -> None:
    hardware = {
        "metadata": {"name": "n1"},
        "spec": {"nodeName": "n1"},
        "status": {
            "cpu": {"sockets": 2, "totalCores": 96, "capRange": {"maxWattsPerSocket": 350}},
            "gpu": {"present": True, "vendor": "AMD", "count": 8, "capRangePerGpu": {"defaultWatts": 750}},
        },
    }
    kept = keep_hardware(msgspec.convert(hardware, NodeHardware))
    assert kept is not None
    node = keep_node(msgspec.convert({"metadata": {"name": "n1"}, "status": {"allocatable": {"cpu": "191500m"}}}, Node))
    expected = LoadFacts(191.5, 700.0, 750.0, "AMD", 8.0, gpu_idle_w=900.0, floor_w=0.0)
    assert load_facts(node, kept.content, BUILTIN_CATALOGUE) == expected


def test_hardware_from_labels_and_of_nobody() -> None:
    labels = {"joulie.io/hw.cpu-model": "AMD EPYC 9654", "joulie.io/hw.cpu-sockets": "2", "team": "red"}
    raw = {
        "metadata": {"name": "n1", "labels": labels},
        "status": {"allocatable": {"cpu": "192", "nvidia.com/gpu": "4", "memory": "1Ti", "ephemeral-storage": "1"}},
    }
    node = keep_node(msgspec.convert(raw, Node))
    assert "team" not in node.labels
    assert node.offered == {"cpu": 192.0, "nvidia.com/gpu": 4.0}
    assert load_facts(node, None, BUILTIN_CATALOGUE) == LoadFacts(192.0, 720.0, None, "NVIDIA", 4.0, gpu_idle_w=210.0)
    nobody = keep_node(msgspec.convert({"metadata": {"name": "n1"}}, Node))
    assert load_facts(nobody, ReportedHardware(), BUILTIN_CATALOGUE) == LoadFacts(None, None, None, None)


def test_g14_a_nodes_pues_are_read_from_its_annotations() -> None:
    def kept(pue: str) -> LoadFacts:
        prefix = "compute-gardener-scheduler.kubernetes.io/"
        annotations = {prefix + "pue": pue, prefix + "gpu-pue": "1.3"}
        node = keep_node(msgspec.convert({"metadata": {"name": "n1", "annotations": annotations}}, Node))
        return load_facts(node, None, BUILTIN_CATALOGUE)

    assert (kept("1.25").pue, kept("1.25").gpu_pue) == (1.25, 1.3)
    for invalid in ("", "nan", "0.9", "11", "one"):
        assert kept(invalid).pue is None


# ---- against the fake cluster


def profile(confidence: float, **status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "train", "namespace": "team"},
        "spec": {"workloadRef": {"kind": "Job", "name": "train", "namespace": "team"}},
        "status": {"confidence": confidence, "cpu": {"capSensitivity": "high"}, **status},
    }


def pod_of_train() -> Any:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u", "controller": True}
    return pod_facts(
        msgspec.convert({"metadata": {"name": "train-x", "namespace": "team", "ownerReferences": [owner]}}, Pod)
    )


def with_feed(
    tmp_path: Path,
    body: Callable[[KubeClient, Feed, Fleet], Awaitable[None]],
    occupancy: Occupancy | None = None,
) -> None:
    """Run `body` with a feed that is synced with a fake cluster."""

    async def main() -> None:
        async with FakeCluster() as cluster:
            kubeconfig = cluster.kubeconfig(tmp_path / "kubeconfig")
            async with KubeClient.connect(kubeconfig=kubeconfig) as client:
                fleet = Fleet(300.0)
                feed = Feed(client, fleet, BUILTIN_CATALOGUE, min_confidence=0.5, silence_s=30.0, occupancy=occupancy)
                assert "nodetwins" in (feed.why_not_ready() or "")
                running = asyncio.create_task(feed.run())
                async with asyncio.timeout(20.0):
                    await feed.wait_synced()
                    assert feed.why_not_ready() is None
                    await body(client, feed, fleet)
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    asyncio.run(main())


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0)


def test_the_fleet_follows_the_cluster(tmp_path: Path) -> None:
    async def body(client: KubeClient, feed: Feed, fleet: Fleet) -> None:
        labels = {"joulie.io/power-profile": "eco"}
        await client.create(NODES, {"metadata": {"name": "n1", "labels": labels}})
        await until(lambda: len(fleet) == 1)
        place = fleet.view(0.0).roster.slots["n1"]
        assert fleet.view(0.0).twins.node_class[place] == NodeClass.ECO
        await client.create(NODE_TWINS, twin({}, node="n1"))
        await client.apply(NODE_TWINS, "n1", {"status": STATUS | {"schedulableClass": "draining"}}, field_manager="o",
                           subresource="status")  # fmt: skip
        await until(lambda: fleet.view(0.0).twins.node_class[place] == NodeClass.DRAINING)
        seen = feed.changes
        await client.create(
            NODE_HARDWARES,
            {"metadata": {"name": "n1"}, "spec": {"nodeName": "n1"},
             "status": {"cpu": {"sockets": 2, "capRange": {"maxWattsPerSocket": 300}}}},
        )  # fmt: skip
        await client.apply(
            NODE_HARDWARES, "n1", {"status": {"cpu": {"sockets": 2, "capRange": {"maxWattsPerSocket": 300}}}},
            field_manager="a", subresource="status",
        )  # fmt: skip
        await until(lambda: fleet.view(0.0).load.cpu_max_w[place] == 600.0)
        assert feed.changes > seen
        for resource in (NODE_TWINS, NODE_HARDWARES, NODES):
            await client.delete(resource, "n1")
        await until(lambda: len(fleet) == 0)
        assert {state.resource: state.objects for state in feed.states()} == {
            "nodetwins": 0, "nodehardwares": 0, "nodes": 0, "workloadprofiles": 0, "namespaces": 0,
        }  # fmt: skip

    with_feed(tmp_path, body)


def test_l5_the_power_profile_label_is_the_configured_one_and_a_mode_label_counts(tmp_path: Path) -> None:
    async def body(client: KubeClient, feed: Feed, fleet: Fleet) -> None:
        feed._labels = NodeLabels(mode=Mode.OBSERVE)
        eco = {"joulie.io/power-profile": "eco"}
        await client.create(NODES, {"metadata": {"name": "n1", "labels": eco}})
        await client.create(NODES, {"metadata": {"name": "n2", "labels": eco | {"joulie.io/mode": "enforce"}}})
        await until(lambda: len(fleet) == 2)
        assert set(fleet.view(0.0).refusals[NodeClass.ECO]) == {"n2"}

    with_feed(tmp_path, body)
    node = Node(metadata=ObjectMeta(name="n", labels={"example.org/power": "eco", "other": "x"}))
    assert keep_node(node, "example.org/power").labels == {"example.org/power": "eco"}
    assert NodeLabels("example.org/power").state({"example.org/power": "eco"}) == (NodeClass.ECO, True)
    assert NodeLabels("example.org/power").state({"joulie.io/power-profile": "eco"}) == (NodeClass.UNKNOWN, True)


def test_g14_policies_of_a_namespace_limit_the_power_of_its_pods_nodes(tmp_path: Path) -> None:
    prefix = "compute-gardener-scheduler.kubernetes.io/"
    policies = {prefix + "policy-max-power-watts": "500"}
    asked = {"metadata": {"name": "p", "namespace": "team"}, "spec": {"containers": [{"name": "c"}]}}
    body_of_call = json.dumps({"Pod": asked, "Nodes": None, "NodeNames": ["n1"]}).encode()

    async def body(client: KubeClient, feed: Feed, fleet: Fleet) -> None:
        fleet.set_load("n1", LoadFacts(96.0, 700.0))

        def passed() -> Any:
            return json.loads(answers.filter_nodes(body_of_call, fleet.view(0.0), feed.profile).answer)["NodeNames"]

        metadata = {"name": "team", "annotations": policies}
        await client.create(NAMESPACES, {"metadata": metadata})
        await client.create(
            NAMESPACES, {"metadata": {"name": "plain", "labels": {prefix + "energy-policies": "enabled"}}}
        )
        assert passed() == ["n1"]
        seen = feed.changes
        async with asyncio.timeout(10.0):
            labels = {"labels": {prefix + "energy-policies": "enabled"}}
            await client.patch(NAMESPACES, "team", {"metadata": labels}, field_manager="t")
            await until(lambda: passed() == [])
            assert feed.changes > seen
            assert {state.resource: state.objects for state in feed.states()}["namespaces"] == 1
            await client.delete(NAMESPACES, "team")
            await until(lambda: passed() == ["n1"])

    with_feed(tmp_path, body)


def test_pods_are_watched_for_marginal_scoring_only(tmp_path: Path) -> None:
    occupancy = Occupancy()

    async def body(client: KubeClient, feed: Feed, _fleet: Fleet) -> None:
        def used() -> list[float]:
            return occupancy.view(0.0).used_cores.tolist()

        await client.create(NODES, {"metadata": {"name": "n1"}})
        await client.create(NAMESPACES, {"metadata": {"name": "team"}})
        container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "3"}}}
        for name, node in (("bound", {"nodeName": "n1"}), ("pending", {})):
            spec = {"containers": [container], **node}
            await client.create(PODS, {"metadata": {"name": name}, "spec": spec}, namespace="team")
        await until(lambda: used() == [0.0, 3.0])
        assert {state.resource: state.objects for state in feed.states()}["pods"] == 1
        finished = {"status": {"phase": "Succeeded"}}
        await client.apply(PODS, "bound", finished, field_manager="t", namespace="team", subresource="status")
        await until(lambda: used() == [0.0, 0.0])

    with_feed(tmp_path, body, occupancy)

    async def without(_client: KubeClient, feed: Feed, _fleet: Fleet) -> None:
        assert "pods" not in feed.caches

    with_feed(tmp_path, without)


def test_g14_of_a_namespace_only_policies_about_power_are_kept() -> None:
    prefix = "compute-gardener-scheduler.kubernetes.io/"
    kept = {prefix + "policy-max-power-watts": "500", prefix + "workload-batch-policy-min-efficiency": "0.1"}
    others = {prefix + "policy-carbon-intensity-threshold": "250", prefix + "max-power-watts": "1", "team": "red"}
    enabled = {prefix + "energy-policies": "enabled"}
    assert keep_policies(Namespace(metadata=ObjectMeta(name="n", labels=enabled, annotations=kept | others))) == kept
    assert keep_policies(Namespace(metadata=ObjectMeta(name="n", labels=enabled, annotations=others))) is None
    assert keep_policies(Namespace(metadata=ObjectMeta(name="n", annotations=kept))) is None


def test_profiles_count_by_confidence(tmp_path: Path) -> None:
    async def body(client: KubeClient, feed: Feed, _fleet: Fleet) -> None:
        pod = pod_of_train()
        assert feed.profile(pod).confidence == 0.0
        await client.create(NAMESPACES, {"metadata": {"name": "team"}})
        await client.create(WORKLOAD_PROFILES, profile(0.0), namespace="team")
        hint = {"confidence": 0.3, "cpu": {"capSensitivity": "high"}, "criticality": {"class": "performance"}}
        apply = {"field_manager": "o", "namespace": "team", "subresource": "status"}
        await client.apply(WORKLOAD_PROFILES, "train", {"status": hint}, **apply)
        await until(lambda: feed.profile(pod).confidence == 0.3)
        assert feed.profile(pod).cpu_sensitivity is None, "measured, and not enough"
        assert feed.profile(pod).workload_class == "performance", "somebody's annotation"
        await client.apply(WORKLOAD_PROFILES, "train", {"status": hint | {"confidence": 0.5}}, **apply)
        await until(lambda: feed.profile(pod).cpu_sensitivity == "high")
        await client.delete(WORKLOAD_PROFILES, "train", "team")
        await until(lambda: feed.profile(pod).confidence == 0.0)

    with_feed(tmp_path, body)


def test_trap_somebodys_own_profile_outlives_the_classifiers(tmp_path: Path) -> None:
    """The classifier deletes its own as soon as it sees somebody's: exactly then theirs was once lost."""

    async def body(client: KubeClient, feed: Feed, _fleet: Fleet) -> None:
        pod = pod_of_train()
        await client.create(NAMESPACES, {"metadata": {"name": "team"}})
        automatic = {"name": "job-train", "labels": {MANAGED_BY_LABEL: CLASSIFIER}}
        for name, metadata, confidence in (("z-own", {"name": "z-own"}, 0.9), ("job-train", automatic, 0.5)):
            written = profile(confidence)
            await client.create(WORKLOAD_PROFILES, written | {"metadata": metadata}, namespace="team")
            status, manager = {"status": written["status"]}, {"field_manager": "o", "subresource": "status"}
            await client.apply(WORKLOAD_PROFILES, name, status, namespace="team", **manager)
        await until(lambda: feed.profile(pod).confidence == 0.9)
        await client.delete(WORKLOAD_PROFILES, "job-train", "team")
        await until(lambda: next(one for one in feed.states() if one.resource == "workloadprofiles").objects == 1)
        assert feed.profile(pod).confidence == 0.9
        await client.delete(WORKLOAD_PROFILES, "z-own", "team")
        await until(lambda: feed.profile(pod).confidence == 0.0)

    with_feed(tmp_path, body)
