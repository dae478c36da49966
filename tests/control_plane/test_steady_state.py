"""A cluster in which nothing happens costs its API server nothing but refreshes, also with 500 nodes."""

import os
import re
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from joulie.adapters.kubernetes import names
from joulie_lab.control_plane import LocalControlPlane, wait_for
from support.loop import (
    CPU_ONLY,
    H100,
    HARDWARES,
    L40S,
    NAMESPACE,
    NODES,
    PATIENCE_S,
    TWINS,
    Json,
    Loop,
    node,
    pod,
)

pytestmark = [pytest.mark.control_plane, pytest.mark.slow]

OURS = f"system:serviceaccount:{NAMESPACE}:"
OPERATOR = f"{OURS}joulie-operator"
AGENT = f'"{OURS}joulie-agent-pool"'
QUIET_S = 25.0
# 3,000 writes keep one core of the API server busy for minutes where cores are slow and shared.
PATIENT_S = 600.0
FAMILIES = {"cpu": CPU_ONLY, "h100": H100, "l40s": L40S}


def clock_s() -> float:
    return time.monotonic()  # noqa: TID251 - real programs run in real time


@pytest.fixture
def loop(start_control_plane: Callable[..., LocalControlPlane]) -> Loop:
    return Loop(start_control_plane(audit=True))


def create_nodes(loop: Loop, of_each_family: int) -> set[str]:
    nodes = {f"{prefix}-{i:04}": family for prefix, family in FAMILIES.items() for i in range(of_each_family)}
    loop.plane.create_nodes(node(name, family) for name, family in nodes.items())
    return set(nodes)


def news(loop: Loop) -> dict[str, int]:
    """Writes of the operator that say more than that a twin is still true, by what they say."""
    with urllib.request.urlopen(f"{loop.programs['operator'].address}/metrics", timeout=30) as answer:
        kinds = re.findall(r'^joulie_operator_writes_total{kind="(.+)"} (.+)$', answer.read().decode(), re.MULTILINE)
    return {kind: int(float(count)) for kind, count in kinds if kind != "refresh"}


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


def differences(before: Json, after: Json) -> dict[str, tuple[Any, Any]]:
    """Fields of spec and status that differ, but for what a refresh changes."""
    old, new = (without_age(twin) for twin in (before, after))
    old, new = ({**twin["spec"], **twin["status"]} for twin in (old, new))
    return {field: (old.get(field), new.get(field)) for field in old | new if old.get(field) != new.get(field)}


def await_quiet(loop: Loop, *, quiet_s: float, timeout_s: float) -> None:
    """Wait until nobody has written anything new for a while."""
    seen: tuple[dict[str, int], int] | None = None
    since_s = clock_s()

    def quiet() -> bool:
        nonlocal seen, since_s
        loop.raise_if_any_ended()
        # Asked in the cheapest way: whoever waits shares two cores with what it waits for.
        now = news(loop), (loop.plane.log_folder / "audit.jsonl").read_text().count(AGENT)
        if now != seen:
            seen, since_s = now, clock_s()
        return clock_s() - since_s >= quiet_s

    wait_for(quiet, timeout_s, "nobody writes anything new", poll_s=quiet_s / 10)


def count(loop: Loop, path: str) -> int:
    """Number of objects, without reading them."""
    listed = loop.get(f"{path}?limit=1")
    return len(listed["items"]) + int(listed["metadata"].get("remainingItemCount", 0))


def resident_mb(loop: Loop, program: str) -> float:
    status = Path(f"/proc/{loop.programs[program].process.pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def cpu_s(loop: Loop, program: str) -> float:
    """Processor time that a program has used, s."""
    fields = Path(f"/proc/{loop.programs[program].process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_steady_cluster_sees_only_refreshes_and_those_spread(loop: Loop) -> None:
    """Everything runs, with work on the nodes; then nothing happens for three refresh periods."""
    staleness_s, window_s = 20.0, 30.0
    nodes = create_nodes(loop, 20)
    loop.create(*(pod(f"work-{name}", on=name, workload_class="standard", requests={"cpu": "8"}) for name in nodes))
    loop.start_simulator()
    loop.start_agent()
    loop.start_extender(TWIN_STALENESS_THRESHOLD=f"{staleness_s:g}s")
    loop.start_operator(TWIN_STALENESS_THRESHOLD=f"{staleness_s:g}s", RESCHEDULE_INTERVAL="5s")
    wait_for(lambda: loop.twins().keys() == nodes, PATIENCE_S, "every node has its NodeTwin")
    of_gpus = {name for name in nodes if not name.startswith("cpu")}
    wait_for(
        lambda: (
            {name for name, twin in loop.twins().items() if "gpuSlicingRecommendation" in twin["status"]} == of_gpus
        ),
        PATIENCE_S,
        "the operator has said how GPUs can be shared",
        poll_s=1.0,
    )
    await_quiet(loop, quiet_s=8.0, timeout_s=2 * PATIENCE_S)

    before, twins, so_far = news(loop), loop.twins(), len(written(loop))
    oldest_s, changed = 0.0, dict[str, Any]()
    end_s = clock_s() + window_s
    while clock_s() < end_s:
        seen = loop.twins()
        for name, twin in seen.items():
            changed |= {f"{name}.{field}": pair for field, pair in differences(twins[name], twin).items()}
        oldest = min(twin["status"]["lastUpdated"] for twin in seen.values())
        oldest_s = max(oldest_s, time.time() - datetime.fromisoformat(oldest).timestamp())  # noqa: TID251 - as above
        time.sleep(0.5)

    writes = written(loop)[so_far:]
    leases = (OPERATOR, "leases", "")
    refreshes = [event for event in writes if target(event) == (OPERATOR, "nodetwins", "status")]
    assert {target(event) for event in writes} <= {leases, target(refreshes[0])}
    assert not changed
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
    # Where an operator had to wait for the processor it catches up; all at once would be every node in a second.
    assert len(per_second) >= 0.4 * window_s
    assert max(per_second.values()) <= len(nodes) / 2
    assert not loop.refused()


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Say something that is shown although the test passes."""

    def said(line: str) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\n{line}")

    return said


def test_five_hundred_nodes_converge_and_come_to_rest(
    start_control_plane: Callable[..., LocalControlPlane], tell: Callable[[str], None]
) -> None:
    """A pool agent, the operator and the simulator find 504 new nodes, more than a page of a list; figures are printed.

    No pod runs: the rest of a control plane would only take a third of the two cores with leases and owners.
    """
    loop = Loop(start_control_plane(components=("etcd", "kube-apiserver"), audit=True))
    nodes = create_nodes(loop, 168)
    began_s = clock_s()
    loop.start_simulator(SIM_TICK_INTERVAL="1s")
    loop.start_agent(RECONCILE_INTERVAL="10s")
    loop.start_operator(RECONCILE_INTERVAL="10s", POWER_POLL_INTERVAL="10s")

    wait_for(lambda: count(loop, HARDWARES) == len(nodes), PATIENT_S, "each node has hardware", poll_s=1.0)
    hardware_s = clock_s() - began_s
    wait_for(lambda: count(loop, TWINS) == len(nodes), PATIENT_S, "each node has a NodeTwin", poll_s=1.0)
    twins_s = clock_s() - began_s
    # What the operator looks at once a minute comes last.
    advised = "gpuSlicingRecommendation"
    wait_for(lambda: advised in loop.twin("h100-0000").get("status", {}), PATIENT_S, "the first advice is written")
    await_quiet(loop, quiet_s=QUIET_S, timeout_s=PATIENT_S)
    rest_s = clock_s() - began_s - QUIET_S

    profiles = split(loop)
    # Half of all nodes, in each family at least one; the densest, those with GPUs, first.
    assert Counter(profiles.values()) == {"performance": 252, "eco": 252}
    assert {name.split("-")[0] for name, profile in profiles.items() if profile == "performance"} == set(FAMILIES)
    for twin in loop.twins().values():
        assert twin["status"]["powerMeasurement"]["source"] == "http"
        assert twin["status"]["controlStatus"]["cpu"]["result"] == "applied"
    assert not loop.refused()

    used = {program: cpu_s(loop, program) for program in loop.programs}
    before, so_far, began_s = news(loop), len(written(loop)), clock_s()
    time.sleep(20.0)
    measured_s = clock_s() - began_s
    writes = written(loop)[so_far:]
    assert news(loop) == before
    assert {target(event)[:2] for event in writes} <= {(OPERATOR, "leases"), (OPERATOR, "nodetwins")}
    for program, was_s in used.items():
        share = (cpu_s(loop, program) - was_s) / measured_s
        tell(f"{program}: {resident_mb(loop, program):.0f} MB resident, {share:.3f} of a core at rest")
    tell(
        f"{len(nodes)} nodes: hardware after {hardware_s:.0f} s, twins after {twins_s:.0f} s, "
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
