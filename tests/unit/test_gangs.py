"""Gangs: seats for all members at once, natively and on a cluster; one that is not whole gives its places back."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from joulie.adapters.kubernetes.api.core import Node
from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.kubernetes.errors import NotFoundError
from joulie.adapters.kubernetes.pods import SimulatedUse
from joulie.adapters.kubernetes.requests import Requests
from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie_lab.apps.simulator.clock import SimulatedClock
from joulie_lab.apps.simulator.cluster import ClusterSync, LivePod, simulated_node
from joulie_lab.apps.simulator.gangs import PATIENCE_S, Capacity, GangGate, GateDecision, Used
from joulie_lab.apps.simulator.main import build_world
from joulie_lab.apps.simulator.metrics import SimulatorMetrics
from joulie_lab.apps.simulator.run import Run
from joulie_lab.apps.simulator.settings import SimulatorSettings
from joulie_lab.apps.simulator.trace_player import GANG_GATE, JobRecord, JobState, TracePlayer
from joulie_lab.simulation.experiment.outcome import JobEnd
from joulie_lab.simulation.experiment.scenario import NodeGroup
from joulie_lab.simulation.gangs import FreeCapacity, Group, PodKind, assign_nodes, max_pods, whole_gpus
from joulie_lab.simulation.live.jobs import Work
from joulie_lab.simulation.native.fitting import EmptyCluster
from joulie_lab.simulation.native.nodes import sim_nodes
from joulie_lab.simulation.native.runtime import Setup, run
from joulie_lab.simulation.trace import GPU_MILLI_KEY, JobProfile, JobShape, TraceJob

WORK_S = 600.0


def job(job_id: str, gang: str = "", *, cores: float = 4, gpus: int = 0, **facts: Any) -> TraceJob:
    """A pod that works at full use for ten minutes; a member of `gang`, if that is said."""
    requests = {"cpu": str(cores)} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    given: dict[str, Any] = {
        "job_id": job_id,
        "workload_id": gang or job_id,
        "gang": bool(gang),
        "submit_s": 0.0,
        "requests": requests,
    }
    given |= {"cpu_units": WORK_S * cores, "profile": JobProfile(1.0, 1.0 if gpus else 0.0)}
    return TraceJob(**given | facts)


# ---- seats


def room(cores: list[int], gpus: list[int]) -> FreeCapacity:
    free_gpus, n_nodes = np.array(gpus), len(cores)
    return FreeCapacity(np.array(cores) * 1000, np.full(n_nodes, 2**40), whole_gpus(free_gpus), np.full(n_nodes, 110))


def alike(number: int, cores: float, gpus: int = 0, nodes: list[int] | None = None, share: float = 1.0) -> Group:
    allowed = np.isin(np.arange(2), [0, 1] if nodes is None else nodes)
    shape = JobShape(cores=cores, gpus=gpus, gpu_share=share)
    return Group(PodKind.from_shape(shape, share_gpus=share < 1.0), allowed, number)


@pytest.mark.parametrize(
    ("cores", "groups"),
    [
        pytest.param([8, 4], [alike(1, 4), alike(2, 4, gpus=1)], id="a launcher leaves the GPU node to the workers"),
        pytest.param([8, 8], [alike(1, 8), alike(1, 4, nodes=[1])], id="who has one node only goes first"),
        pytest.param([6, 5], [alike(1, 1), alike(2, 5)], id="the large go first"),
    ],
)
def test_members_that_differ_find_seats_whatever_their_order(cores: list[int], groups: list[Group]) -> None:
    for ordered in (groups, groups[::-1]):
        found = assign_nodes(room(cores, [2, 0]), ordered)
        assert found is not None
        assert len(found) == sum(one.number for one in groups)


def test_the_fullest_node_that_has_room_is_taken() -> None:
    found = assign_nodes(room([8, 6], [0, 0]), [alike(1, 6), alike(2, 4)])
    assert found is not None
    assert [seat.node for seat in found] == [1, 0, 0]


def test_what_does_not_fit_as_a_whole_gets_no_seat() -> None:
    assert assign_nodes(room([8, 4], [2, 0]), [alike(3, 1, gpus=1)]) is None
    assert assign_nodes(room([8, 4], [2, 0]), [alike(2, 3, nodes=[1])]) is None
    assert assign_nodes(room([8, 4], [2, 0]), [alike(1, 1, gpus=2), alike(1, 1, gpus=1)]) is None
    full = room([8, 4], [2, 0])._replace(pods=np.array([0, 1]))
    assert assign_nodes(full, [alike(2, 1)]) is None


def test_shares_of_gpus_are_counted_gpu_by_gpu() -> None:
    free = room([64, 64], [2, 0])
    assert max_pods(free, alike(1, 1, gpus=1, share=0.4)).tolist() == [4, 0]
    assert assign_nodes(free, [alike(4, 1, gpus=1, share=0.4), alike(1, 1, gpus=1, share=0.2)]) is not None
    assert assign_nodes(free, [alike(3, 1, gpus=1, share=0.4), alike(1, 1, gpus=1)]) is None
    assert assign_nodes(free, [alike(2, 1, gpus=1, share=0.4), alike(1, 1, gpus=1)]) is not None
    assert free.gpu_milli.tolist() == [[1000, 1000], [0, 0]]


def test_a_node_that_holds_more_than_it_has_takes_nothing() -> None:
    assert max_pods(room([-2, 4], [0, 0]), alike(1, 1)).tolist() == [0, 4]


# ---- natively

GPU_NODE = NodeGroup(name="gpu", count=1, cpu="AMD EPYC 9654", cores=64, memory_gib=64, gpu="NVIDIA L40S", gpus=2)
NODES = sim_nodes([NodeGroup(name="cpu", count=1, cpu="AMD EPYC 9965", cores=32, memory_gib=64), GPU_NODE])


def starts(jobs: Iterable[TraceJob], **setup: Any) -> dict[str, float | None]:
    """When each job started; all are done within their time."""
    outcome = run(replace(Setup(NODES, duration_s=4 * WORK_S, n_samples=3), **setup), jobs)
    assert {one.end for one in outcome.jobs} == {JobEnd.COMPLETED}
    return {one.job_id: None if one.start_s is None else round(one.start_s) for one in outcome.jobs}


def group(**changes: Any) -> NodeGroup:
    facts: dict[str, Any] = {"name": "one", "count": 1, "cpu": "AMD EPYC 9965", "memory_gib": 64.0}
    return NodeGroup(**facts | changes)


def test_members_that_differ_all_get_their_places_at_once() -> None:
    # kube-scheduler would spread: the launcher, first in order, onto the node that the worker needs whole.
    members = [job("launcher", "g", cores=8), job("worker", "g", cores=60, gpus=2)]
    assert starts(members) == {"launcher": 0, "worker": 0}


def test_where_the_scheduler_scatters_a_gang_its_seats_are_those_of_the_gate() -> None:
    # The large one fits both nodes and is spread onto the empty one, that both small ones need.
    nodes = sim_nodes([group(cores=60), group(name="other", cores=84)])
    members = [job("large", "g", cores=60), job("small0", "g", cores=42), job("small1", "g", cores=42)]
    later = [job("full0", cores=84, submit_s=700.0), job("full1", cores=60, submit_s=700.0)]
    found = starts([*members, *later], nodes=nodes)
    assert list(found.values()) == [0, 0, 0, 700, 700]


def test_a_pod_that_waits_gets_its_room_before_a_gang() -> None:
    full = [job("large", cores=64), job("small", cores=32)]
    waits = [job("a0", "a", cores=32, submit_s=1.0), job("a1", "a", cores=32, submit_s=1.0)]
    waits.append(job("alone", cores=60, submit_s=2.0))
    found = starts([*full, *waits])
    assert (found["alone"], found["a0"], found["a1"]) == (600, 1200, 1200)


def test_gangs_share_gpus_where_the_setup_says_so() -> None:
    third: dict[str, Any] = {"annotations": {GPU_MILLI_KEY: "300"}}
    members = [job(f"m{number}", "g", gpus=1, **third) for number in range(6)]
    assert set(starts(members, share_gpus=True).values()) == {0}
    assert "6 GPUs" in (EmptyCluster(NODES).gang_never_fits(members) or "")


def test_a_gang_of_one_is_no_gang() -> None:
    assert starts([job("m", "g")]) == {"m": 0}


# ---- on a cluster


class Held:
    """A player whose pods have all been created, and the gate of its gangs."""

    def __init__(self, *jobs: TraceJob) -> None:
        self.player = TracePlayer.of(jobs, "s", holds_gangs=True)
        self.gate = GangGate(self.player.gangs())
        self.nodes = nodes("n0", "n1")
        self.used: list[Used] = []
        self.now_s = 0.0
        self.create()

    def create(self) -> None:
        for record in self.player.due(0.0):
            self.player.submitted(record)

    def record(self, job_id: str) -> JobRecord:
        return self.player.records[job_id]

    def turn(self, after_s: float = 0.0) -> GateDecision:
        """What the gate wants; pods that it lets go are let go."""
        self.now_s += after_s
        turn = self.gate.next(self.nodes, self.used, self.player.alone(), self.now_s)
        for release in turn.release:
            release.record.held = False
        for record in turn.stop:
            self.player.lost(record.pod_key, None)
        return turn

    def runs(self, *job_ids: str) -> None:
        for job_id in job_ids:
            self.player.started(self.record(job_id).pod_key, "n0", 1.0)


def nodes(*names: str, full_power: bool = True) -> list[Capacity]:
    """Nodes of 192 cores."""
    return [Capacity(name, {}, 192.0, 512.0, 110.0, 0.0, "", full_power) for name in names]


def pair(gang: str) -> list[TraceJob]:
    """Two members of which a node takes one."""
    return [job(f"{gang}{number}", gang, cores=100) for number in range(2)]


def released(turn: GateDecision) -> list[str]:
    return [release.record.job.job_id for release in turn.release]


def test_a_gang_goes_when_all_of_it_fits_and_one_at_a_time() -> None:
    held = Held(*pair("x"), *pair("y"))
    assert held.player.pod(held.record("x0"))["spec"]["schedulingGates"] == [{"name": GANG_GATE}]
    held.nodes = nodes("n0")
    assert held.turn() == GateDecision()
    assert held.record("x0").problem == "gang x: not enough free capacity for 2 pods at once"
    held.nodes = nodes("n0", "n1", "n2", "n3")
    assert released(held.turn()) == ["x0", "x1"]
    # One of its pods could not be let go: that one is tried again, and nothing else goes.
    held.record("x1").held = True
    assert released(held.turn(1.0)) == ["x1"]
    held.runs("x0")
    assert (held.turn(1.0), held.gate.needs_polling) == (GateDecision(), True)
    held.runs("x1")
    assert held.record("x1").problem == ""
    assert released(held.turn()) == ["y0", "y1"]


def test_a_gang_waits_for_its_last_member_and_heeds_the_class_of_nodes() -> None:
    performance: dict[str, Any] = {"annotations": {"joulie.io/workload-class": "performance"}}
    held = Held(job("x0", "x", **performance), job("x1", "x", submit_s=5.0, **performance))
    assert held.turn() == GateDecision()
    for record in held.player.due(5.0):
        held.player.submitted(record)
    held.nodes = nodes("n0", "n1", full_power=False)
    assert held.turn() == GateDecision()
    held.nodes = nodes("n0", "n1")
    assert sorted(released(held.turn())) == ["x0", "x1"]


def test_a_gang_that_does_not_get_its_places_gives_them_back_and_goes_to_the_end_of_the_line() -> None:
    held = Held(*pair("x"), *pair("y"))
    held.turn()
    held.runs("x0")
    assert held.turn(PATIENCE_S - 1.0) == GateDecision()
    # x0 has found a place meanwhile; x1, whose pod somebody deleted, has not, and nobody was told.
    assert held.turn(PATIENCE_S - 1.0) == GateDecision()
    assert [record.job.job_id for record in held.turn(1.0).stop] == ["x0", "x1"]
    assert (held.record("x0").started_s, held.record("x0").node) == (None, "")
    held.create()
    assert released(held.turn()) == ["y0", "y1"]
    held.runs("y0", "y1")
    for gone in ("y0", "y1"):
        held.player.completed(held.record(gone).pod_key, 2.0)
    # The scheduler had its choice: now the gate's seats are bound to be taken.
    assert {release.hostname for release in held.turn().release} == {"n0", "n1"}


def test_a_gang_that_loses_a_member_is_made_whole_or_stopped() -> None:
    held = Held(*pair("x"))
    held.turn()
    held.runs("x0", "x1")
    held.player.lost("default/x1", Work(1.0, 0.0))
    held.used = [Used("n0", 100.0, 0.0, 0.0)]
    assert held.turn() == GateDecision()
    held.create()
    assert released(held.turn()) == ["x1"]
    held.runs("x1")
    held.turn()
    held.player.lost("default/x1-r1", Work(1.0, 0.0))
    held.create()
    held.used.append(Used("n1", 100.0, 0.0, 0.0))
    assert [record.job.job_id for record in held.turn().stop] == ["x0"]


def test_a_gang_that_can_never_be_whole_holds_up_no_other() -> None:
    held = Held(job("large", "huge", cores=999), job("small", "huge"), *pair("a"), *pair("x"))
    held.player.refused(held.record("a1"), "no")
    assert released(held.turn()) == ["x0", "x1"]
    assert held.record("small").problem == "gang huge: not enough free capacity for 2 pods at once"
    assert held.record("a0").problem == "gang a: the API server refused one of its pods"


def test_room_that_the_scheduler_owes_to_another_pod_is_no_gangs_for_a_while() -> None:
    held = Held(job("alone", cores=150), job("too large", cores=500), *pair("x"))
    assert (held.turn(), held.gate.needs_polling) == (GateDecision(), True)
    held.runs("alone")
    held.nodes, held.used = nodes("n0", "n1", "n2"), [Used("n0", 150.0, 0.0, 0.0)]
    assert released(held.turn()) == ["x0", "x1"]
    stuck = Held(job("alone", cores=150), *pair("x"))
    assert stuck.turn() == GateDecision()
    assert released(stuck.turn(PATIENCE_S)) == ["x0", "x1"]


def test_gangs_that_ran_when_the_service_was_started_anew_are_left_alone() -> None:
    held = Held(*pair("x"), *pair("y"))
    held.runs("x0", "x1", "y0")
    held.used = [Used("n0", 100.0, 0.0, 0.0), Used("n1", 100.0, 0.0, 0.0)]
    assert [record.job.job_id for record in held.turn().stop] == ["y0"]
    assert held.record("x0").state is JobState.RUNNING


def test_a_gpu_of_which_pods_have_partitions_is_no_gangs() -> None:
    held = Held(*(job(f"x{number}", "x", gpus=1) for number in range(2)))
    held.nodes = [replace(one, gpus=1.0, gpu_resource="nvidia.com/gpu") for one in held.nodes]
    held.used = [Used("n0", 0.0, 0.0, 0.25)]
    assert held.turn() == GateDecision()
    held.used = []
    assert len(held.turn().release) == 2


def test_a_cordoned_node_has_no_room() -> None:
    facts = {"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "8"}}}
    for unschedulable in (False, True):
        node = decoded(facts | {"spec": {"unschedulable": unschedulable}})
        assert (simulated_node(node, BUILTIN_CATALOGUE).capacity is None) is unschedulable


def decoded(facts: dict[str, Any]) -> Node:
    return msgspec.convert(facts, Node)


class ApiServer:
    """Pods by name, with what was done to them last."""

    def __init__(self) -> None:
        self.pods: dict[str, dict[str, Any]] = {}

    async def create(self, resource: Any, pod: dict[str, Any], namespace: str) -> None:
        del resource, namespace
        self.pods[pod["metadata"]["name"]] = pod["spec"]

    async def patch(self, resource: Any, name: str, body: dict[str, Any], *, namespace: str) -> None:
        del resource, namespace
        if name not in self.pods:
            raise NotFoundError(404, "NotFound", name)
        self.pods[name] |= body["spec"]

    async def delete(self, resource: Any, name: str, namespace: str, *, grace_s: int) -> None:
        del resource, namespace, grace_s
        if self.pods.pop(name, None) is None:
            raise NotFoundError(404, "NotFound", name)


def test_the_service_lets_go_takes_back_and_binds() -> None:
    player = TracePlayer.of([job("alone"), *pair("x")], "s", holds_gangs=True)
    world = build_world(SimulatorSettings())
    simulation = Run(world, SimulatedClock(1.0, lambda: 0.0), player, None)
    server: Any = ApiServer()
    now_s = [0.0]
    side: Any = ClusterSync(
        server,
        simulation,
        SimulatorMetrics(world),
        node_selector="",
        catalogue=BUILTIN_CATALOGUE,
        clock=lambda: now_s[0],
    )
    facts = {"status": {"allocatable": {"cpu": "192", "memory": "1Gi", "pods": "9"}}}
    made = [decoded(facts | {"metadata": {"name": name}}) for name in ("n0", "n1")]
    kept = {node.metadata.name: simulated_node(node, BUILTIN_CATALOGUE) for node in made}
    side.nodes = SimpleNamespace(objects=kept)
    # The scheduler has found a node for this one: nothing is owed to it.
    bound = LivePod("n0", running=False, requests=Requests(cpu_cores=4.0), use=SimulatedUse())
    side.pods = SimpleNamespace(objects={Key("default", "alone"): bound})
    simulation.start()

    def tick(after_s: float) -> None:
        now_s[0] += after_s
        asyncio.run(side.tick())

    tick(0.0)
    del server.pods["alone"]
    assert {spec["schedulingGates"] for spec in server.pods.values()} == {None}
    del server.pods["x1"]
    tick(PATIENCE_S)
    tick(PATIENCE_S)
    assert server.pods == {}
    tick(0.0)
    assert {spec["nodeSelector"]["kubernetes.io/hostname"] for spec in server.pods.values()} == {"n0", "n1"}
    assert set(server.pods) == {"x0-r1", "x1-r1"}
