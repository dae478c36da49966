"""What waiting for the grid saves, by the workloads that the grid controller leaves alone by chance (GRID_HOLDOUT).

The outcome is what a pod emitted, over the mean energy of its workload's earlier pods times the intensity when it came.
Both are known before the draw acts. So it is measured emissions that are compared, not the same energy at the intensity
of another time: a pod that waited ran on other nodes, beside other pods.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from joulie.apps.accounting.facts import AccountedPod
from joulie.domain.accounting.holdout_evidence import NO_MONTHS
from joulie.domain.accounting.records import CompletedPod
from joulie.domain.grid import names
from joulie.domain.trial.holdout import Expected, left_out
from joulie.domain.units import joules_to_kwh

_MAX_REMEMBERED = 10_000
"""Workloads, and runs, that are remembered; the oldest are forgotten first."""
_ARMS = {"waits": False, "left-alone": True}
_MEMORY = 20.0


class Draw(NamedTuple):
    """What chance said of a workload."""

    left_out: bool
    share: float

    @classmethod
    def noted(cls, annotations: Mapping[str, str]) -> Draw | None:
        """The draw that is noted on a pod; None without one, or where it cannot be read."""
        arm, _, share = annotations.get(names.HOLDOUT, "").partition(" ")
        found = _number(share)
        return Draw(_ARMS[arm], found) if arm in _ARMS and found is not None and found < 1.0 else None


class DeferralMemory(msgspec.Struct, frozen=True):
    """What the next outcome is compared to, and what has counted: kept beside the evidence.

    Attributes:
        expected: fields of `Expected`.
        workloads: namespace, kind, name, mean logarithm of the energy of pods, and their number, oldest first.
        seen: runs that have counted, oldest first.
    """

    expected: tuple[float, float, float, float]
    workloads: list[tuple[str, str, str, float, float]]
    seen: list[str]


class DeferralHoldout:
    """What completed pods say about waiting.

    Attributes:
        evidence: what they say, by month.
    """

    def __init__(self) -> None:
        self.evidence = NO_MONTHS
        self._expected = Expected(0.0, 0.0)
        self._log_energy: dict[tuple[str, str, str], tuple[float, float]] = {}
        self._seen: dict[str, None] = {}

    @property
    def memory(self) -> DeferralMemory:
        """What is kept beside the evidence."""
        expected = self._expected
        return DeferralMemory(
            (expected.treated, expected.left, expected.treated_units, expected.left_units),
            [(*workload, *usual) for workload, usual in self._log_energy.items()],
            list(self._seen),
        )

    def restore(self, memory: DeferralMemory) -> None:
        """Go on from what was kept.

        Raises:
            ValueError: it says what cannot be.
        """
        numbers = [*memory.expected, *(value for one in memory.workloads for value in one[3:])]
        counts = [*memory.expected[2:], *(one[4] for one in memory.workloads)]
        if not all(map(math.isfinite, numbers)) or min(counts) <= 0.0:
            raise ValueError("the memory of the holdout has numbers that cannot be")
        self._expected = Expected(*memory.expected)
        self._log_energy = {one[:3]: one[3:] for one in memory.workloads[-_MAX_REMEMBERED:]}
        self._seen = dict.fromkeys(memory.seen[-_MAX_REMEMBERED:])

    def completed(self, ended: Iterable[CompletedPod], pods: Mapping[str, AccountedPod]) -> None:
        """Take in pods that ended.

        A pod counts that succeeded, whose emissions are known, and that is the first of its run to end: pods of one Job
        were drawn together.
        """
        for done in ended:
            pod = pods.get(done.pod.uid)
            if pod is None or not pod.succeeded or done.energy.energy_j <= 0.0:
                continue
            workload, log_energy = (pod.namespace, pod.owner.kind, pod.owner.name), math.log(done.energy.energy_j)
            usual = self._log_energy.pop(workload, None)
            if usual is not None:
                self._count(done, pod, usual[0])
            mean, count = usual or (log_energy, 0.0)
            self._log_energy[workload] = (mean + (log_energy - mean) / (min(count, _MEMORY) + 1.0), count + 1.0)
            _forget_oldest(self._log_energy)

    def _count(self, done: CompletedPod, pod: AccountedPod, usual_log_energy: float) -> None:
        drawn = Draw.noted(pod.annotations)
        intensity = _number(pod.annotations.get(names.INITIAL_CARBON_INTENSITY, ""))
        run = pod.uid if pod.controller is None else pod.controller.uid
        known = done.energy.energy_without_intensity_j <= 0.0 and done.energy.emissions_g > 0.0
        if drawn is None or intensity is None or not known or run in self._seen:
            return
        if left_out(run, drawn.share) != drawn.left_out:
            return  # somebody else noted it: chance had said otherwise
        self._seen[run] = None
        _forget_oldest(self._seen)
        expected_g = intensity * joules_to_kwh(math.exp(usual_log_energy))
        outcome = math.log(done.energy.emissions_g / expected_g)
        effect = self._expected.effect(outcome, drawn.share, left_out=drawn.left_out, weight=expected_g)
        self.evidence = self.evidence.added(done.until_s, effect)
        self._expected = self._expected.learned(outcome, left_out=drawn.left_out)


def _number(text: str) -> float | None:
    """A finite number above zero; None for anything else."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0.0 else None


def _forget_oldest(kept: dict[Any, Any]) -> None:
    if len(kept) > _MAX_REMEMBERED:
        del kept[next(iter(kept))]
