"""A cluster in which nothing happens costs its API server nothing but refreshes, also with 2,000 nodes."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from control_plane.loop import CPU_ONLY, H100, HARDWARES, L40S, NAMESPACE, NODES, PATIENCE_S, Json, Loop, node, pod

from joulie.adapters.control_plane import Binaries, LocalControlPlane, wait_for
from joulie.adapters.kubernetes import names

pytestmark = [pytest.mark.control_plane, pytest.mark.slow]

OURS = f"system:serviceaccount:{NAMESPACE}:"
OPERATOR = f"{OURS}joulie-operator"
NEWS = ("spec", "status", "labels", "delete")
FAMILIES = {"cpu": CPU_ONLY, "h100": H100, "l40s": L40S}


@pytest.fixture
def loop(control_plane_binaries: Binaries, tmp_path: Path) -> Iterator[Loop]:
    with LocalControlPlane(binaries=control_plane_binaries, log_folder=tmp_path, audit=True) as plane:
        yield Loop(plane)


def create_nodes(loop: Loop, of_each_family: int) -> set[str]:
    nodes = {f"{prefix}-{i:04}": family for prefix, family in FAMILIES.items() for i in range(of_each_family)}
    loop.plane.create_nodes(node(name, family) for name, family in nodes.items())
    return set(nodes)


def news(loop: Loop) -> int:
    """Writes of the operator that say more than that a twin is still true."""
    return int(sum(loop.programs["operator"].metric("joulie_operator_writes_total", kind=kind) for kind in NEWS))


def written(loop: Loop) -> list[Json]:
    """Every write of Joulie's programs."""
    return [event for event in loop.plane.audit_events() if event["user"]["username"].startswith(OURS)]


def target(event: Mapping[str, Any]) -> tuple[str, str, str]:
    """Who wrote what: the ServiceAccount, the resource and the subresource."""
    reference = event["objectRef"]
    return event["user"]["username"], reference["resource"], reference.get("subresource", "")


def received_s(event: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp()


def without_age(twin: Json) -> Json:
    """A NodeTwin without what a refresh changes."""
    metadata = {
        key: value for key, value in twin["metadata"].items() if key not in {"resourceVersion", "managedFields"}
    }
    status = {key: value for key, value in twin["status"].items() if key != "lastUpdated"}
    return {"metadata": metadata, "spec": twin["spec"], "status": status}


def await_quiet(loop: Loop, *, quiet_s: float, timeout_s: float) -> None:
    """Wait until nobody has written anything new for a while."""
    seen: tuple[int, int] | None = None
    since_s = time.monotonic()

    def quiet() -> bool:
        nonlocal seen, since_s
        loop.raise_if_any_ended()
        others = sum(target(event)[0] != OPERATOR for event in written(loop))
        now = news(loop), others
        if now != seen:
            seen, since_s = now, time.monotonic()
        return time.monotonic() - since_s >= quiet_s

    wait_for(quiet, timeout_s, "nobody writes anything new", poll_s=0.5)


def resident_mb(loop: Loop, program: str) -> float:
    status = Path(f"/proc/{loop.programs[program].process.pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def cpu_s(loop: Loop, program: str) -> float:
    """Processor time that a program has used, s."""
    return loop.programs[program].metric("process_cpu_seconds_total")


def test_a_steady_cluster_sees_only_refreshes_and_those_spread(loop: Loop) -> None:
    """Everything runs, with work on the nodes; then nothing happens for three refresh periods."""
    staleness_s, window_s = 20.0, 30.0
    nodes = create_nodes(loop, 20)
    loop.create(*(pod(f"work-{name}", on=name, workload_class="standard", requests={"cpu": "8"}) for name in nodes))
    loop.start_simulator()
    loop.start_agent()
    loop.start_extender(TWIN_STALENESS_THRESHOLD=f"{staleness_s:g}s")
    loop.start_operator(TWIN_STALENESS_THRESHOLD=f"{staleness_s:g}s")
    wait_for(lambda: loop.twins().keys() == nodes, PATIENCE_S, "every node has its NodeTwin")
    await_quiet(loop, quiet_s=8.0, timeout_s=2 * PATIENCE_S)

    before, twins, count = news(loop), loop.twins(), len(written(loop))
    oldest_s = 0.0
    end_s = time.monotonic() + window_s
    while time.monotonic() < end_s:
        now_s = datetime.now().astimezone().timestamp()
        stamps = [datetime.fromisoformat(twin["status"]["lastUpdated"]) for twin in loop.twins().values()]
        oldest_s = max(oldest_s, now_s - min(stamps).timestamp())
        time.sleep(0.5)

    writes = written(loop)[count:]
    leases = (OPERATOR, "leases", "")
    refreshes = [event for event in writes if target(event) == (OPERATOR, "nodetwins", "status")]
    assert {target(event) for event in writes} <= {leases, target(refreshes[0])}
    assert news(loop) == before
    assert {name: without_age(twin) for name, twin in loop.twins().items()} == {
        name: without_age(twin) for name, twin in twins.items()
    }

    # Each twin once in half the staleness threshold, and the twins one after the other.
    per_node = Counter(event["objectRef"]["name"] for event in refreshes)
    assert per_node.keys() == nodes
    periods = window_s / (staleness_s / 2.0)
    assert max(per_node.values()) <= periods + 1
    assert oldest_s < staleness_s
    per_second = Counter(int(received_s(event)) for event in refreshes)
    assert len(per_second) >= 0.8 * window_s
    assert max(per_second.values()) <= 5 * len(nodes) / (staleness_s / 2.0)
    assert not loop.refused()


def test_two_thousand_nodes_converge_and_come_to_rest(loop: Loop) -> None:
    """A pool agent, the operator and the simulator find 2,000 new nodes; the figures are printed."""
    nodes = create_nodes(loop, 667)
    began_s = time.monotonic()
    loop.start_simulator(SIM_TICK_INTERVAL="1s")
    loop.start_agent(RECONCILE_INTERVAL="10s")
    loop.start_operator(RECONCILE_INTERVAL="10s", POWER_POLL_INTERVAL="10s")

    wait_for(lambda: len(loop.get(HARDWARES)["items"]) == len(nodes), 120, "each node has hardware", poll_s=1.0)
    hardware_s = time.monotonic() - began_s
    wait_for(lambda: len(split(loop)) == len(nodes), 120, "each node has a label and a NodeTwin", poll_s=1.0)
    split_s = time.monotonic() - began_s
    await_quiet(loop, quiet_s=25.0, timeout_s=180)
    rest_s = time.monotonic() - began_s - 25.0

    profiles = split(loop)
    # Half of all nodes, in each family at least one; the densest, those with GPUs, first.
    assert Counter(profiles.values()) == {"performance": 1001, "eco": 1000}
    assert {name.split("-")[0] for name, profile in profiles.items() if profile == "performance"} == set(FAMILIES)
    for twin in loop.twins().values():
        assert twin["status"]["powerMeasurement"]["source"] == "http"
        assert {twin["status"]["controlStatus"][device]["result"] for device in ("cpu",)} == {"applied"}
    assert not loop.refused()

    used = {program: cpu_s(loop, program) for program in loop.programs}
    before, count, measured_s = news(loop), len(written(loop)), time.monotonic()
    time.sleep(20.0)
    measured_s = time.monotonic() - measured_s
    writes = written(loop)[count:]
    assert news(loop) == before
    assert {target(event)[:2] for event in writes} <= {(OPERATOR, "leases"), (OPERATOR, "nodetwins")}
    for program, was_s in used.items():
        share = (cpu_s(loop, program) - was_s) / measured_s
        print(f"{program}: {resident_mb(loop, program):.0f} MB resident, {share:.3f} of a core at rest")
    print(
        f"{len(nodes)} nodes: hardware after {hardware_s:.0f} s, twins and labels after {split_s:.0f} s, "
        f"at rest after {rest_s:.0f} s; {len(writes)} refreshes and renewals in {measured_s:.0f} s"
    )


def split(loop: Loop) -> dict[str, str]:
    """The profile of each node on which its label and its NodeTwin agree."""
    labels = {
        item["metadata"]["name"]: item["metadata"]["labels"].get(names.POWER_PROFILE_LABEL)
        for item in loop.get(NODES)["items"]
    }
    twins = {name: twin["spec"]["profile"] for name, twin in loop.twins().items() if twin.get("status")}
    return {name: profile for name, profile in twins.items() if labels.get(name) == profile}
