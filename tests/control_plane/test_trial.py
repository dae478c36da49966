"""A PowerTrial on a real control plane: arms change by the clock, observed nodes are left alone, the guard ends it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.api.v1alpha1 import PowerTrial
from joulie.adapters.kubernetes.power_trials import protocol_of, stored_protocol
from joulie.adapters.kubernetes.times import parse_rfc3339
from joulie.apps.operator.trials import GUARD_BROKEN, LOOK_S
from joulie.domain.mode import Mode
from joulie.domain.trial.guard import MIN_PODS
from joulie.domain.trial.protocol import MIN_PAIRS, Arm, Protocol, Treated
from joulie_lab.control_plane import LocalControlPlane, wait_for
from support.audit import foreign_writes
from support.loop import CPU_ONLY, PATIENCE_S, PODS, Loop, node, pod

pytestmark = [pytest.mark.control_plane, pytest.mark.slow]

NODE_NAMES = [f"tried-{number}" for number in range(4)]
TRIALS = "/apis/joulie.io/v1alpha1/powertrials"
TRIAL = f"{TRIALS}/guarded"
BLOCK_S, ELAPSED_S = 60.0, 40.0
"""Length of a block, and how much of the first is over when the operator takes the trial up, as a new leader does."""
WRITTEN = {names.MODE_LABEL, names.TRIAL_LABEL, names.POWER_PROFILE_LABEL, names.RESTORE_PENDING_LABEL}
"""Labels of nodes that come and go with the trial."""
PODS_OF_NODE = MIN_PODS // 2 + 2


@pytest.fixture(scope="module")
def loop(plane: LocalControlPlane) -> Loop:
    """Programs that observe, and would run every node on eco."""
    loop = Loop(plane, "mode=observe")
    plane.create_nodes([node(name, CPU_ONLY) for name in NODE_NAMES])
    mode = Mode.OBSERVE.value
    loop.start_simulator()
    loop.start_agent(MODE=mode)
    loop.start_operator(MODE=mode, STATIC_HP_FRAC="0", DRAIN_SETTLING="0s")
    wait_for(lambda: set(loop.twins()) == set(NODE_NAMES), PATIENCE_S, "all nodes are known")
    return loop


def now_s() -> float:
    return time.time()  # noqa: TID251 - real programs run in real time


def begin(loop: Loop) -> None:
    """Create the trial as it is some time after its draw."""
    spec = {"blockMinutes": 1, "washoutMinutes": 0, "guard": {"maxFailuresPercent": 20}}
    body = {"apiVersion": "joulie.io/v1alpha1", "kind": "PowerTrial", "metadata": {"name": "guarded"}, "spec": spec}
    order = (Treated.FIRST_HALF,) * MIN_PAIRS  # each block is the opposite of the one before
    start_s = float(round(now_s() - ELAPSED_S))
    drawn = Protocol(start_s, BLOCK_S, 0.0, tuple(NODE_NAMES[::2]), tuple(NODE_NAMES[1::2]), (), order, 1)
    loop.plane.request("POST", TRIALS, body)
    loop.patch(f"{TRIAL}/status", {"status": {"protocol": msgspec.to_builtins(stored_protocol(drawn))}})


def trial(loop: Loop) -> PowerTrial:
    return msgspec.convert(loop.get(TRIAL), PowerTrial)


def reason(loop: Loop) -> str:
    return next((one.reason for one in trial(loop).status.conditions), "")


def block_end_s(loop: Loop, number: int) -> float:
    """End of a block, s since the epoch."""
    protocol = protocol_of(trial(loop))
    assert protocol is not None
    return protocol.start_s + number * BLOCK_S


def caps(loop: Loop) -> dict[str, bool]:
    """Whether each node's CPUs are capped, by the simulated hardware."""
    return {
        seen["node"]: (seen["cpu"]["capWattsPerPackage"] or math.inf) < seen["cpu"]["capRange"]["maxWattsPerSocket"]
        for seen in loop.programs["simulator"].get("/debug/nodes")["nodes"]
    }


def in_force(loop: Loop, after: int) -> tuple[int, Mapping[str, Arm]]:
    """Wait until the arms of a block after this one are on the nodes: mode, profile and the caps of their CPUs."""

    def reached() -> tuple[int, Mapping[str, Arm]]:
        one = trial(loop)
        protocol, number = protocol_of(one), one.status.block or 0
        assert protocol is not None
        assert number > after
        arms = protocol.arms_at(protocol.start_s + (number - 0.5) * BLOCK_S)
        capped = caps(loop)
        for name, arm in arms.items():
            labels, enforced = loop.labels(name), arm is Arm.TREATMENT
            written = labels.get(names.MODE_LABEL), labels.get(names.POWER_PROFILE_LABEL)
            seen = *written, names.RESTORE_PENDING_LABEL in labels, capped[name]
            wanted = (Mode.ENFORCE, "eco", True, True) if enforced else (Mode.OBSERVE, None, False, False)
            assert seen == wanted, f"{name} is {seen} in block {number}"
        return number, arms

    return wait_for(reached, PATIENCE_S, f"a block after {after} is in force")


def writes(loop: Loop, node_name: str) -> Iterator[tuple[float, bool]]:
    """When Joulie wrote to a node, and whether that was the trial's label."""
    for event in loop.plane.audit_events():
        if any(name == node_name for _, _, name in foreign_writes([event])):
            by_trial = f"fieldManager={names.TRIAL_FIELD_MANAGER}" in event["requestURI"]
            yield parse_rfc3339(event["requestReceivedTimestamp"]), by_trial


def break_guard(loop: Loop, arms: Mapping[str, Arm], batch: int) -> float:
    """Run pods on all nodes, for long enough that the operator sees them run, and let those of enforced nodes fail.

    Returns:
        When they began to end, s since the epoch.
    """
    arm_of = {f"pod-{batch}-{number}-{on}": arm for on, arm in arms.items() for number in range(PODS_OF_NODE)}
    loop.create(*(pod(name, nodeName=name.split("-", 3)[3], restartPolicy="Never") for name in arm_of))

    def running() -> dict[str, Any]:
        found = {one["metadata"]["name"]: one for one in loop.plane.request("GET", PODS)["items"]}
        own = {name: found[name] for name in arm_of}
        assert {one["status"].get("phase") for one in own.values()} == {"Running"}
        return own

    wait_for(running, PATIENCE_S, "the pods run")
    seen_s = now_s() + LOOK_S + 1.0
    wait_for(lambda: now_s() > seen_s, PATIENCE_S, "the operator has looked")
    ends_s = now_s()
    for name, arm in arm_of.items():
        phase = "Failed" if arm is Arm.TREATMENT else "Succeeded"
        loop.patch(f"{PODS}/{name}/status", {"status": {"phase": phase}})
    return ends_s


def ended(loop: Loop, number: int) -> bool:
    """Wait until the guard has ended the trial or the block is over; whether the guard has."""

    def either() -> str:
        over = trial(loop).status.block != number
        return GUARD_BROKEN if reason(loop) == GUARD_BROKEN else "over" if over else ""

    return wait_for(either, PATIENCE_S, "the guard ends the trial") == GUARD_BROKEN


def test_arms_switch_and_the_guard_ends_the_trial(loop: Loop) -> None:
    """Each switch, who is left alone in a block, and the end for harm that is shown."""
    begin(loop)
    number, arms = in_force(loop, 0)
    first_end_s = block_end_s(loop, 1)
    for name, arm in arms.items():
        written = [by_trial for at_s, by_trial in writes(loop, name) if at_s < first_end_s]
        assert number > 1 or arm is Arm.TREATMENT or written == [True], f"{name} is observed since the beginning"
    for batch in range(3):  # a block that a slow machine has lost half of is too short for pods that run in it alone
        before, arms_before = number, arms
        number, arms = in_force(loop, number)
        assert number > before + 1 or not any(arms[name] is arm for name, arm in arms_before.items())
        since_s = now_s()
        until_s = break_guard(loop, arms, batch)
        until_s = min(until_s, block_end_s(loop, number))
        for name in (name for name, arm in arms.items() if arm is Arm.CONTROL):
            written_s = [at_s for at_s, _ in writes(loop, name) if since_s < at_s < until_s]
            assert written_s == [], f"{name} is left alone between two switches"
        if ended(loop, number):
            break
    else:
        pytest.fail("three blocks did not end the trial")

    def gone() -> bool:
        for name in NODE_NAMES:
            left = WRITTEN & loop.labels(name).keys()
            assert not left, f"{name} still has {left}"
        return not any(caps(loop).values())

    wait_for(gone, PATIENCE_S, "labels and caps are lifted")
    told = ("get", "events", "-A", "--field-selector", f"reason=Trial{GUARD_BROKEN}", "-o", "json")
    events = wait_for(lambda: json.loads(loop.plane.kubectl(*told))["items"], PATIENCE_S, "an event tells why")
    assert [one["type"] for one in events] == ["Warning"]
    assert "fail" in events[0]["message"]
    assert trial(loop).status.conditions[0].status == "False"
    assert {resource for _, resource, _ in foreign_writes(loop.plane.audit_events())} == {"nodes"}
    assert loop.refused() == []
    loop.raise_if_any_ended()
