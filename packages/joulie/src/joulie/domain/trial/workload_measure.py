"""What became of each workload in a trial of deferral, by the pods of a recording.

Whose a pod is, the grid controller has noted on it. What is expected of its work is known from before the trial: the
mean energy of the workload's earlier pods that completed, else of those of its namespace with the same requests, times
the signal when the pod came. Work is completed pods: what failed pods used counts, and their work does not.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from joulie.domain.quantities import SECONDS_PER_HOUR
from joulie.domain.recording import Exit, PodRecord
from joulie.domain.trial.protocol import Arm
from joulie.domain.trial.workload_protocol import WorkloadProtocol, drawn_name
from joulie.domain.trial.workloads import Amount, Quantity, WorkloadOutcome

MIN_COVERED = 0.9
"""Least share of a pod's time of which its energy must be known."""

_Place = tuple[str, str]
"""Namespace and name of a workload."""


class Used(NamedTuple):
    """What a pod used; NaN where it is not known."""

    energy_kwh: float
    carbon_g: float = math.nan
    cost: float = math.nan
    covered_s: float = math.inf
    """Time of its life in which its energy is known, s."""


@dataclass(frozen=True)
class Accounted:
    """What was accounted for pods, and the signals of the time.

    Attributes:
        used: by UID of the pod.
        carbon: carbon intensity of each hour since the epoch, gCO2eq/kWh, over all zones.
        price: likewise, currency/kWh.
    """

    used: Mapping[str, Used]
    carbon: Mapping[int, float]
    price: Mapping[int, float]

    def knows(self, pod: PodRecord) -> bool:
        """Whether what a pod used is known of (nearly) all of its time."""
        used = self.used.get(pod.uid)
        if used is None or pod.started_s is None or pod.ended_s is None:
            return False
        return used.covered_s >= MIN_COVERED * (pod.ended_s - pod.started_s)


@dataclass(frozen=True)
class MeasuredWorkloads:
    """What the pods of a trial did.

    Attributes:
        outcomes: of each workload, by name.
        unfinished: pods of the trial that have not ended in the recording, by arm: of more than a few, those that wait
            are left out more often than others.
        unmetered: pods of which no energy is known.
        unexpected: workloads that nothing is known of to expect.
        misdrawn: workloads on which another draw is noted than the seed gives.
        by_kin: workloads of which is expected what others of their namespace with the same requests used.
    """

    outcomes: Sequence[WorkloadOutcome]
    unfinished: Mapping[Arm, int]
    unmetered: int
    unexpected: int
    misdrawn: int
    by_kin: int


def measure_workloads(
    trial: str, protocol: WorkloadProtocol, pods: Sequence[PodRecord], accounted: Accounted, *, named: bool = True
) -> MeasuredWorkloads:
    """Measure a trial of deferral.

    Args:
        trial: its name.
        protocol: its draw.
        pods: all pods of the recording.
        accounted: what they used.
        named: whether names are the real ones; pseudonyms cannot be drawn again.
    """
    drawn, misdrawn = _drawn(trial, protocol, pods, named=named)
    own, kin = _earlier(protocol, pods, accounted, drawn.owners)
    by_workload: defaultdict[_Place, list[PodRecord]] = defaultdict(list)
    for pod in pods:
        place = drawn.of(pod)
        if place is not None and place in drawn.arms and pod.arrived_s is not None and protocol.covers(pod.arrived_s):
            by_workload[place].append(pod)
    unfinished: Counter[Arm] = Counter()
    outcomes, counts = [], Counter[str]()
    for place, came in sorted(by_workload.items()):
        arm = drawn.arms[place]
        unfinished[arm] += sum(pod.exit is None for pod in came)
        ended = [pod for pod in came if pod.exit is not None]
        metered = [pod for pod in ended if accounted.knows(pod)]
        counts["unmetered"] += len(ended) - len(metered)
        each_kwh = [own.get(place) or kin.get(_kin(pod)) for pod in metered]
        if metered and place not in own:
            counts["by_kin" if all(each_kwh) else "unexpected"] += 1
        outcomes.append(_outcome(place, arm, came, ended, _amounts(metered, each_kwh, accounted)))
    return MeasuredWorkloads(
        outcomes,
        {arm: unfinished[arm] for arm in Arm},
        counts["unmetered"],
        counts["unexpected"],
        misdrawn,
        counts["by_kin"],
    )


def _outcome(
    place: _Place,
    arm: Arm,
    came: Sequence[PodRecord],
    ended: Sequence[PodRecord],
    amounts: Mapping[Quantity, Amount],
) -> WorkloadOutcome:
    waits_s = [
        max(pod.started_s - pod.arrived_s, 0.0)
        for pod in came
        if pod.started_s is not None and pod.arrived_s is not None
    ]
    failed = sum(pod.exit == Exit.FAILED for pod in ended)
    return WorkloadOutcome(*place, arm, len(ended), failed, len(waits_s), math.fsum(waits_s), amounts)


# ---- whose a pod is


@dataclass(frozen=True)
class _Draws:
    """Arms of the workloads of a trial, and the workloads of owners of pods."""

    arms: Mapping[_Place, Arm]
    owners: Mapping[_Place, _Place]

    def of(self, pod: PodRecord) -> _Place | None:
        """Whose a pod is, whether it is noted on it or not."""
        if pod.trial_workload:
            return pod.namespace, pod.trial_workload
        return self.owners.get(_owner(pod))


def _drawn(trial: str, protocol: WorkloadProtocol, pods: Iterable[PodRecord], *, named: bool) -> tuple[_Draws, int]:
    """The workloads of which a pod says that it takes part, and how many of them say something else than the draw."""
    noted: defaultdict[_Place, set[str]] = defaultdict(set)
    owners: dict[_Place, _Place] = {}
    for pod in pods:
        if pod.trial == trial and pod.trial_arm and pod.trial_workload:
            place = pod.namespace, pod.trial_workload
            noted[place].add(pod.trial_arm)
            owners[_owner(pod)] = place
    arms = {}
    for place, found in noted.items():
        known = [arm for arm in Arm if found == {arm.value}]
        if known and (not named or protocol.arm_of(*place) is known[0]):
            arms[place] = known[0]
    return _Draws(arms, owners), len(noted) - len(arms)


def _owner(pod: PodRecord) -> _Place:
    name = pod.owner_name or pod.name
    return pod.namespace, drawn_name(pod.namespace, pod.owner_kind or "Pod", name) or name


# ---- what is expected


def _kin(pod: PodRecord) -> tuple[object, ...]:
    return pod.namespace, pod.cpu_cores, pod.memory_gib, pod.gpus


def _earlier(
    protocol: WorkloadProtocol, pods: Iterable[PodRecord], accounted: Accounted, owners: Mapping[_Place, _Place]
) -> tuple[Mapping[_Place, float], Mapping[tuple[object, ...], float]]:
    """Mean energy of a completed pod before the trial, kWh: by workload, and by namespace and requests."""
    own: defaultdict[_Place, list[float]] = defaultdict(list)
    kin: defaultdict[tuple[object, ...], list[float]] = defaultdict(list)
    for pod in pods:
        before = pod.ended_s is not None and pod.ended_s < protocol.start_s
        if not before or pod.exit != Exit.SUCCEEDED or not accounted.knows(pod):
            continue
        energy_kwh, owner = accounted.used[pod.uid].energy_kwh, _owner(pod)
        if energy_kwh > 0.0:
            own[owners.get(owner, owner)].append(energy_kwh)
            kin[_kin(pod)].append(energy_kwh)
    return {key: math.fsum(one) / len(one) for key, one in own.items()}, {
        key: math.fsum(one) / len(one) for key, one in kin.items()
    }


def _amounts(
    pods: Sequence[PodRecord], each_kwh: Sequence[float | None], accounted: Accounted
) -> Mapping[Quantity, Amount]:
    """Measured and expected amounts; without those of which too little is known."""
    signals = {Quantity.ENERGY: None, Quantity.CARBON: accounted.carbon, Quantity.COST: accounted.price}
    if not pods or not all(each_kwh):
        return {}
    found = {}
    for place, (quantity, signal) in enumerate(signals.items()):
        measured = expected = 0.0
        counted = False
        for pod, energy_kwh in zip(pods, each_kwh, strict=True):
            per_kwh = 1.0 if signal is None else signal.get(int((pod.arrived_s or 0.0) // SECONDS_PER_HOUR), math.nan)
            amount = accounted.used[pod.uid][place]
            if math.isfinite(amount) and per_kwh > 0.0:
                counted = True
                measured += amount
                expected += per_kwh * (energy_kwh or 0.0) if pod.exit == Exit.SUCCEEDED else 0.0
        if counted:
            found[quantity] = Amount(measured, expected)
    return found
