"""From performance to eco with performance pods running, through restarts and changes of leadership.

The histories are those of the API server itself: every version of every object, nothing sampled.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import pytest

from joulie.adapters.kubernetes import names
from joulie_lab.control_plane import LocalControlPlane, wait_for
from support.loop import (
    ACTIVE,
    DRAINING,
    ECO,
    L40S,
    PATIENCE_S,
    Loop,
    Program,
    Recording,
    Seen,
    node,
    pod,
)

pytestmark = [pytest.mark.control_plane, pytest.mark.slow]

T = TypeVar("T")

# Half of four nodes, and one more for each performance pod beyond two.
POLICY = {"POLICY_TYPE": "queue_aware_v1", "QUEUE_HP_BASE_FRAC": "0.5", "QUEUE_PERF_PER_HP_NODE": "1"}
REST = {"drain-0": ACTIVE, "drain-1": ACTIVE, "drain-2": ECO, "drain-3": ECO}
# Of the L40S: 350 W a GPU, 270 W a socket.
FULL_POWER_W = (270.0, 350.0)
CAPPED_W = (162.0, 210.0)


class History:
    """What happened to twins, nodes and pods since a moment."""

    def __init__(self, loop: Loop) -> None:
        self.recordings = {kind: loop.record(kind) for kind in ("nodetwins", "nodes", "pods")}
        self._since = 0
        self.begin(loop)

    def begin(self, loop: Loop) -> None:
        """Forget what was before."""
        self._since = int(loop.plane.request("GET", "/api/v1/nodes")["metadata"]["resourceVersion"])

    def of(self, kind: str, name: str) -> list[Seen]:
        return [one for one in self.recordings[kind].seen(name) if one.version > self._since]

    def await_version(self, kind: str, name: str, version: str) -> None:
        """Wait until the recording has arrived at a version of an object."""
        wait_for(
            lambda: any(one.version >= int(version) for one in self.of(kind, name)),
            PATIENCE_S,
            f"the recording of {kind} has {name} of version {version}",
        )

    def twin(self, name: str, field: Callable[[dict[str, Any]], T]) -> list[T]:
        """The values that a field of a NodeTwin took one after the other."""
        return changes(field(one.object) for one in self.of("nodetwins", name))

    def label(self, name: str, label: str) -> list[str | None]:
        """The values that a label of a node took one after the other."""
        return changes(one.object["metadata"]["labels"].get(label) for one in self.of("nodes", name))

    def first(self, kind: str, name: str, holds: Callable[[Seen], bool]) -> int:
        """Version of the first change of an object for which something holds."""
        found = [one.version for one in self.of(kind, name) if holds(one)]
        assert found, f"{kind} {name} never were like that"
        return found[0]


def changes(values: Iterable[T]) -> list[T]:
    kept: list[T] = []
    for value in values:
        if not kept or kept[-1] != value:
            kept.append(value)
    return kept


def profile(twin: dict[str, Any]) -> str:
    return str(twin["spec"]["profile"])


def caps(twin: dict[str, Any]) -> tuple[float, float]:
    spec = twin["spec"]
    return spec["cpu"]["packagePowerCapPctOfMax"], spec["gpu"]["powerCap"]["capPctOfMax"]


def draining(twin: dict[str, Any]) -> bool:
    return bool(twin["spec"]["scheduling"]["draining"])


def schedulable(twin: dict[str, Any]) -> str:
    return str(twin["status"]["schedulableClass"])


def drain_reason(twin: dict[str, Any]) -> str:
    return str(condition(twin)["reason"])


def condition(twin: dict[str, Any]) -> dict[str, Any]:
    (found,) = (one for one in twin["status"]["conditions"] if one["type"] == "Draining")
    return dict(found)


def state(twin: dict[str, Any]) -> tuple[Any, ...]:
    """What a restart must leave as it is: the version of the spec, the class, and since when it drains."""
    return twin["metadata"]["generation"], schedulable(twin), condition(twin)


@pytest.fixture(scope="module")
def loop(plane: LocalControlPlane) -> Loop:
    loop = Loop(plane)
    plane.create_nodes(node(name, L40S) for name in REST)
    loop.start_simulator()
    loop.start_agent()
    loop.start_extender()
    loop.start_operator(**POLICY)
    return loop


@pytest.fixture(scope="module")
def recorded(loop: Loop) -> History:
    loop.create(pod("first", on="drain-0"))  # so that each recording has something to begin with
    loop.await_placed("first")
    await_rest(loop)
    return History(loop)


@pytest.fixture
def history(loop: Loop, recorded: History) -> Iterator[History]:
    """The history of one test, which begins and ends with the nodes at rest and one operator."""
    loop.programs["operator"].start()
    await_rest(loop)
    recorded.begin(loop)
    yield recorded
    loop.delete_pods()
    loop.lift_overrides()
    for name, program in loop.programs.items():
        if name.startswith("operator-"):
            program.process.kill()


def await_rest(loop: Loop) -> None:
    """Wait until nothing is left to be written: no restore either, which the agent confirms last."""
    for name, state in REST.items():
        loop.await_state(name, state)

    def restored() -> bool:
        return not any(names.RESTORE_PENDING_LABEL in loop.labels(name) for name in REST if REST[name] == ACTIVE)

    wait_for(restored, PATIENCE_S, "the restores are confirmed")


def keep_busy(loop: Loop, name: str) -> None:
    """A performance pod on a node, and eco planned for it: the drain holds."""
    loop.create(pod("keeper", workload_class="performance", on=name))
    loop.await_placed("keeper")
    loop.override(name, "eco")
    loop.await_state(name, DRAINING)


def await_caps(loop: Loop, name: str, wanted: tuple[float, float]) -> None:
    def in_force() -> tuple[float, float]:
        said = loop.programs["simulator"].get(f"/telemetry/{name}")
        return said["cpu"]["capWattsPerPackage"], said["gpu"]["capWattsPerGpu"]

    wait_for(lambda: in_force() == wanted, PATIENCE_S, f"the hardware of {name} is limited to {wanted} W")


def await_steps(operator: Program, number: int) -> None:
    """Wait until an operator has reconciled a number of times."""

    def steps() -> float:
        return operator.metric("joulie_operator_reconciles_total", result="success")

    goal = steps() + number
    wait_for(lambda: steps() >= goal, PATIENCE_S, f"{number} more steps")


def assert_one_way_to_eco(history: History, loop: Loop, name: str) -> None:
    """Every field that tells of the drain changed once, or there and back once: no flap."""
    history.await_version("nodetwins", name, loop.twin(name)["metadata"]["resourceVersion"])
    history.await_version(
        "nodes", name, loop.plane.request("GET", f"/api/v1/nodes/{name}")["metadata"]["resourceVersion"]
    )
    assert history.twin(name, profile) == ["performance", "eco"]
    assert history.twin(name, caps) == [(100, 100), (60, 60)]
    assert history.twin(name, draining)[-2:] == [True, False]
    assert history.twin(name, draining).count(True) == 1
    assert history.twin(name, schedulable)[-2:] == ["draining", "eco"]
    assert history.twin(name, schedulable).count("draining") == 1
    assert history.label(name, names.POWER_PROFILE_LABEL) == ["performance", "eco"]
    assert history.label(name, names.DRAINING_LABEL)[-2:] == ["true", None]
    assert history.label(name, names.DRAINING_LABEL).count("true") == 1


def test_a_node_drains_holds_and_then_becomes_eco(loop: Loop, history: History) -> None:
    keep_busy(loop, "drain-1")
    assert condition(loop.twin("drain-1"))["message"] == "1 pod on it needs full power"
    # Nothing new of class performance comes; everything else does; and what runs keeps its power.
    loop.create(pod("late", workload_class="performance", on="drain-1"), pod("plain", on="drain-1"))
    assert "draining" in loop.await_unschedulable("late")
    assert loop.await_placed("plain") == "drain-1"
    await_caps(loop, "drain-1", FULL_POWER_W)
    assert loop.state("drain-1") == DRAINING

    loop.delete_pods("keeper")
    loop.await_state("drain-1", ECO)
    await_caps(loop, "drain-1", CAPPED_W)
    assert "eco" in loop.await_unschedulable("late")
    assert loop.await_placed("plain") == "drain-1"
    assert_one_way_to_eco(history, loop, "drain-1")
    reasons = history.twin("drain-1", drain_reason)
    assert reasons[-3:] == ["BlockingPods", "Settling", "NotDraining"]


def test_trap_eco_caps_are_not_written_while_performance_pods_run(loop: Loop, history: History) -> None:
    keep_busy(loop, "drain-0")
    await_steps(loop.programs["operator"], 4)  # longer than a quiet node would take to settle
    loop.delete_pods("keeper")
    loop.await_state("drain-0", ECO)
    assert_one_way_to_eco(history, loop, "drain-0")
    gone = history.first("pods", "keeper", lambda one: one.kind == "DELETED")
    settling = history.first("nodetwins", "drain-0", lambda one: drain_reason(one.object) == "Settling")
    capped = history.first("nodetwins", "drain-0", lambda one: caps(one.object) != (100, 100))
    closed = history.first("nodetwins", "drain-0", lambda one: schedulable(one.object) == "draining")
    assert closed < gone < settling < capped


def test_power_comes_before_the_word_that_opens_a_node(loop: Loop, history: History) -> None:
    loop.override("drain-3", "performance")
    loop.await_state("drain-3", ACTIVE)
    node_version = loop.plane.request("GET", "/api/v1/nodes/drain-3")["metadata"]["resourceVersion"]
    history.await_version("nodes", "drain-3", node_version)
    history.await_version("nodetwins", "drain-3", loop.twin("drain-3")["metadata"]["resourceVersion"])
    powered = history.first("nodetwins", "drain-3", lambda one: caps(one.object) == (100, 100))
    opened = history.first("nodetwins", "drain-3", lambda one: schedulable(one.object) == "performance")
    label = history.first(
        "nodes", "drain-3", lambda one: one.object["metadata"]["labels"][names.POWER_PROFILE_LABEL] == "performance"
    )
    assert powered < opened < label


def test_trap_pending_performance_pods_are_counted(loop: Loop, history: History) -> None:
    """Demand that waits makes room for itself, and a drain is called off when it returns."""
    for number in range(4):
        loop.create(pod(f"big-{number}", workload_class="performance", requests={"cpu": "40"}))
    placed = {loop.await_placed(f"big-{number}"): f"big-{number}" for number in range(4)}
    assert placed.keys() == REST.keys()
    for name in REST:
        loop.await_state(name, ACTIVE)
    # One less: the last node is to be eco, but a pod runs on it. One more: it is not.
    loop.delete_pods(placed["drain-0"])
    loop.await_state("drain-3", DRAINING)
    loop.create(pod("again", workload_class="performance", requests={"cpu": "40"}))
    assert loop.await_placed("again") == "drain-0"
    loop.await_state("drain-3", ACTIVE)
    history.await_version("nodetwins", "drain-3", loop.twin("drain-3")["metadata"]["resourceVersion"])
    assert history.twin("drain-3", profile)[-2:] in (["performance"], ["eco", "performance"])
    assert history.twin("drain-3", profile).count("performance") == 1
    assert history.twin("drain-3", draining)[-3:] == [False, True, False]


def test_a_drain_goes_on_where_it_was_when_the_operator_comes_back(loop: Loop, history: History) -> None:
    keep_busy(loop, "drain-1")
    before = loop.twins()
    operator = loop.programs["operator"]
    operator.process.kill()
    operator.start()
    loop.await_leader("operator")
    assert {name: state(twin) for name, twin in loop.twins().items()} == {
        name: state(twin) for name, twin in before.items()
    }
    loop.delete_pods("keeper")
    loop.await_state("drain-1", ECO)
    assert_one_way_to_eco(history, loop, "drain-1")


def test_a_drain_ends_after_its_pod_ended_while_no_operator_ran(loop: Loop, history: History) -> None:
    keep_busy(loop, "drain-1")
    operator = loop.programs["operator"]
    operator.process.stop()
    assert operator.process.exit_status == 0
    assert loop.leader() == ""  # a graceful end leaves the lease to whoever comes
    loop.delete_pods("keeper")
    assert loop.state("drain-1") == DRAINING
    operator.start()
    loop.await_state("drain-1", ECO)
    assert_one_way_to_eco(history, loop, "drain-1")


def writes_of_state(loop: Loop, program: Program, name: str = "") -> list[str]:
    """What a program wrote into specs of NodeTwins and into Nodes, by the audit log."""
    return [
        f"{event['verb']} {event['objectRef']['resource']}/{event['objectRef']['name']}"
        for resource in ("nodetwins", "nodes")
        for event in loop.writes(program, resource)
        if "subresource" not in event["objectRef"] and name in ("", event["objectRef"]["name"])
    ]


def test_the_leader_dies_and_the_other_replica_goes_on_without_a_flap_or_a_double_write(
    loop: Loop, history: History
) -> None:
    first, second = loop.programs["operator"], loop.start_operator("operator-b", **POLICY)
    keep_busy(loop, "drain-1")
    assert loop.leader() == "operator"
    assert loop.writes(second) == []  # a replica that stands by writes nothing, not even to the lease
    before = {name: state(twin) for name, twin in loop.twins().items()}
    first.process.kill()
    written = len(writes_of_state(loop, first))

    loop.await_leader("operator-b")
    assert loop.leader() == "operator-b"
    assert loop.state("drain-1") == DRAINING
    # All was as it should be: the new leader had nothing to write but the lease, and news of power.
    assert writes_of_state(loop, second) == []
    assert {name: state(twin) for name, twin in loop.twins().items()} == before

    loop.delete_pods("keeper")
    loop.await_state("drain-1", ECO)
    assert_one_way_to_eco(history, loop, "drain-1")
    assert sorted(writes_of_state(loop, second)) == ["patch nodes/drain-1", "patch nodetwins/drain-1"]
    assert len(writes_of_state(loop, first)) == written


def test_a_leader_that_was_frozen_writes_nothing_when_it_wakes_up_deposed(loop: Loop, history: History) -> None:
    first, second = loop.programs["operator"], loop.start_operator("operator-b", **POLICY)
    loop.await_leader("operator")
    drain_0 = {"kubernetes.io/hostname": "drain-0"}
    loop.set_budget(2000.0, nodeSelector=drain_0)
    loop.await_budget(2000.0)
    loop.set_budget(1900.0, nodeSelector=drain_0)
    first.process.pause()
    loop.await_leader("operator-b")
    loop.await_budget(1900.0)
    # While it sleeps the world changes: to undo that is what it must not do.
    loop.set_budget(1800.0, nodeSelector=drain_0)
    loop.await_budget(1800.0)
    loop.override("drain-3", "performance")
    loop.await_state("drain-3", ACTIVE)
    before, said = len(loop.writes(first)), len(first.log())
    first.process.resume()
    wait_for(lambda: "lost the lease" in first.log()[said:], PATIENCE_S, "the old leader knows that it is none")
    wait_for(lambda: first.metric("joulie_operator_leader") == 0.0, PATIENCE_S, "the old leader stands by")
    loop.override("drain-2", "performance")
    loop.await_state("drain-2", ACTIVE)
    assert loop.leader() == "operator-b"
    assert len(loop.writes(first)) == before
    loop.await_budget(1800.0)
    loop.lift_budgets()
    written = Counter(writes_of_state(loop, second, "drain-2"))
    assert written["patch nodetwins/drain-2"] == 1
    # Its labels; and, once the agent has confirmed the restore, the label that a restore is pending.
    assert written["patch nodes/drain-2"] in (1, 2)
    # And it takes over again when its turn comes.
    second.process.stop()
    loop.await_leader("operator")
    assert loop.state("drain-3") == ACTIVE
    await_caps(loop, "drain-0", FULL_POWER_W)


def test_every_write_was_granted(loop: Loop) -> None:
    assert loop.refused() == []


def test_recordings_miss_nothing(loop: Loop, recorded: History) -> None:
    """Versions of each twin are as many as generations and status writes tell: the histories above are whole."""
    recording: Recording = recorded.recordings["nodetwins"]
    for name in REST:
        generations = {one.object["metadata"]["generation"] for one in recording.seen(name)}
        assert generations == set(range(min(generations), max(generations) + 1))
