"""What a trial measured, as a document that an auditor can recompute, and in sentences."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from joulie.adapters.kubernetes.times import rfc3339
from joulie.domain.recording import PodRecord
from joulie.domain.trial.estimate import Contrast, Saving, TrialResult, evaluate
from joulie.domain.trial.measure import Measured, Metered, measure
from joulie.domain.trial.progress import Unit
from joulie.domain.trial.protocol import Protocol
from joulie.domain.trial.regression import Regression, regress

HOW_KNOWN = "measured by trial"
UNIT_COLUMNS = ("WORKLOAD", "UNIT", "OF THE WORK", "NOT BY ITS METRIC BECAUSE")
_SHOWN = 20


@dataclass(frozen=True)
class TrialReport:
    """A trial and what it measured.

    Attributes:
        name: of the PowerTrial.
        protocol: the draw.
        measured: energy and work by node and block.
        result: the evaluation; its savings count only if nothing refuses them.
        regression: the saving by a regression, to compare; None without one.
        refused: why no saving is given; empty if one is.
    """

    name: str
    protocol: Protocol
    measured: Measured
    result: TrialResult
    regression: Regression | None
    refused: str

    @property
    def saving(self) -> Saving | None:
        """The saving; None if none is given."""
        return None if self.refused else self.result.saving

    @property
    def equal_work(self) -> Saving | None:
        """The saving at equal work; None if none is given."""
        return None if self.refused else self.result.equal_work

    @property
    def headline(self) -> str:
        """What came out, in a sentence."""
        if self.saving is None:
            return f"Trial {self.name}: no saving can be given: {self.refused}"
        return f"Trial {self.name}: {saving_words(self.saving)}"

    @property
    def notes(self) -> Sequence[str]:
        """What a reader must know beside the saving."""
        left_out = len(self.protocol.left_out)
        silent = sum(one.energy_j is None for one in self.measured.blocks)
        return [
            "The interval is that of a test by changes of sign over pairs of blocks: it rests on the random order"
            " alone, and holds for a saving that is the same share in every block.",
            f"{self.measured.both_arms:.1%} of the work is completed pods that ran under both arms. It counts by time,"
            f" an enforced hour as {1.0 / (1.0 + self.measured.slowdown):.3f} of an observed one: pods under one arm"
            f" alone ran {self.measured.slowdown:+.1%} longer where enforced.",
            f"{self.measured.enforced:.1%} of the work was done on enforced nodes: far from half means that pods moved"
            " between the halves.",
            *self._spill_over,
            *self._compared,
            f"{silent} of {len(self.measured.blocks)} node-blocks had a silent meter and count in neither block of"
            f" their pair; {left_out} nodes had no partner.",
            f"{self.measured.uncounted_owners} workloads did work under one arm only, which does not count.",
            *self._claimed,
        ]

    @property
    def _claimed(self) -> Sequence[str]:
        """That progress is a claim, where it counts."""
        if not any(one.metric for one in self.measured.units.values()):
            return []
        return ["Progress is what a workload says of itself, by the counter that its pods name: nobody checks it here."]

    @property
    def _spill_over(self) -> Sequence[str]:
        """The saving at equal work, and what it says of the truth."""
        if self.equal_work is None or self.result.elasticity is None:
            return []
        return [
            f"At equal work of both halves: {saving_words(self.equal_work, 'energy')}. Where nodes have room and pods"
            " that one half does not take go to the other, the truth lies between this and the energy per work; where"
            " nodes are always full, go by the energy per work. 1 % more work takes"
            f" {self.result.elasticity:.2f} % more energy on observed nodes.",
        ]

    @property
    def _compared(self) -> Sequence[str]:
        """The saving by regression."""
        one = self.regression
        if one is None or self.refused:
            return []
        return [
            "To compare, a regression with an effect of each block and of each half's hardware families:"
            f" {one.saved:.1%} of the energy per work, standard error {100.0 * one.error:.1f} points."
        ]

    @property
    def unit_rows(self) -> Sequence[tuple[str, str, str, str]]:
        """What the work of the largest workloads is counted by, and of all that name a metric and are not."""
        weighted: defaultdict[str, float] = defaultdict(float)
        for block in self.measured.blocks:
            for owner, units in block.work.items():
                weighted[owner] += units * self.measured.joules_per_unit.get(owner, 0.0)
        total = math.fsum(weighted.values())
        order = sorted(self.measured.units, key=lambda owner: (-weighted[owner], owner))
        shown = [one for place, one in enumerate(order) if place < _SHOWN or self.measured.units[one].why_not]
        rows = [
            (owner, _unit_words(unit), f"{weighted[owner] / total if total else 0.0:.1%}", unit.why_not)
            for owner, unit in ((owner, self.measured.units[owner]) for owner in shown[: 2 * _SHOWN])
        ]
        more = len(order) - len(rows)
        return [*rows, (f"and {more} more (-o json)", "", "", "")] if more else rows

    def document(self) -> dict[str, object]:
        """Everything that the saving was computed from."""
        protocol = self.protocol
        return {
            "trial": self.name,
            "howKnown": HOW_KNOWN,
            "headline": self.headline,
            "saving": _saving(self.saving),
            "savingAtEqualWork": _saving(self.equal_work),
            "elasticityOfEnergyToWork": self.result.elasticity,
            "regression": None if self.refused else _regression(self.regression),
            "allOrNone": None if self.refused else _saving(self.result.whole),
            "refused": self.refused or None,
            "protocol": {
                "startTime": rfc3339(protocol.start_s),
                "endTime": rfc3339(protocol.end_s),
                "blockSeconds": protocol.block_s,
                "washoutSeconds": protocol.washout_s,
                "seed": protocol.seed,
                "firstHalf": list(protocol.first_half),
                "secondHalf": list(protocol.second_half),
                "leftOut": list(protocol.left_out),
                "order": [one.value for one in protocol.order],
            },
            "pairs": [_pair(one) for one in self.result.contrasts],
            "workOfPodsUnderBothArms": self.measured.both_arms,
            "slowdownOfEnforcedPods": self.measured.slowdown,
            "workOnEnforcedNodes": self.measured.enforced,
            "uncountedWorkloads": self.measured.uncounted_owners,
            "workUnits": {owner: _unit(one) for owner, one in sorted(self.measured.units.items())},
            "joulesPerUnit": dict(self.measured.joules_per_unit),
            "blocks": [
                {"block": one.block, "node": one.node, "energyJ": one.energy_j, "work": dict(one.work)}
                for one in self.measured.blocks
            ],
            "notes": list(self.notes),
        }


def report(
    name: str, protocol: Protocol, pods: Sequence[PodRecord], metered: Metered, max_both_arms: float
) -> TrialReport:
    """Evaluate what a recording holds of a trial.

    Args:
        name: of the PowerTrial.
        protocol: the draw.
        pods: pods of the recording.
        metered: measured power.
        max_both_arms: share of the work by pods that ran under both arms beyond which no saving is given.
    """
    measured = measure(protocol, pods, metered)
    result = evaluate(protocol, measured.blocks, measured.joules_per_unit)
    families = {node.node: f"{node.cpu_model}, {node.gpu_model}, {node.cores}, {node.gpus}" for node in metered.nodes}
    regression = regress(protocol, measured.blocks, measured.joules_per_unit, families)
    return TrialReport(name, protocol, measured, result, regression, _refused(measured, result, max_both_arms))


def _refused(measured: Measured, result: TrialResult, max_both_arms: float) -> str:
    if not measured.blocks:
        return "the recording holds no block of the trial"
    if result.saving is None:
        return "no pair of blocks has measured energy and work in both halves"
    if measured.both_arms > max_both_arms:
        return (
            f"{measured.both_arms:.0%} of the work is of pods that ran under both arms, at most {max_both_arms:.0%} may"
            " be (--max-both-arms): use blocks that are longer than pods run"
        )
    return ""


def saving_words(saving: Saving, of: str = "energy per work") -> str:
    """A saving in words, and of what it is."""
    what = "saved" if saving.saved >= 0.0 else "cost"
    said = f"enforcing {what} {abs(saving.saved):.1%} of the {of}"
    if saving.low is None or saving.high is None:
        return f"{said}; {saving.pairs} pairs of blocks are too few for an interval"
    return f"{said}, 95 % interval {saving.low:.1%} to {saving.high:.1%}, {saving.pairs} pairs of blocks"


def _unit_words(unit: Unit) -> str:
    return unit.metric or "completed pods"


def _unit(unit: Unit) -> dict[str, object]:
    return {"unit": _unit_words(unit), "metric": unit.metric or None, "whyNotMetric": unit.why_not or None}


def _saving(one: Saving | None) -> dict[str, object] | None:
    return None if one is None else {"saved": one.saved, "low": one.low, "high": one.high, "pairs": one.pairs}


def _regression(one: Regression | None) -> dict[str, object] | None:
    return None if one is None else {"saved": one.saved, "standardError": one.error, "pairs": one.pairs}


def _pair(one: Contrast) -> dict[str, object]:
    return {
        "pair": one.pair,
        "allOrNone": one.whole,
        "logRatio": one.log_ratio,
        "logWork": one.log_work,
        "nodes": one.nodes,
        "leftOutBecause": one.why_not or None,
    }
