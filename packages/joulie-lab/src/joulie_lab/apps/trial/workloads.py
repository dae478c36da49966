"""What a trial of deferral measured, as a document that an auditor can recompute, and in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from joulie.adapters.kubernetes.times import rfc3339
from joulie.domain.quantities import SECONDS_PER_HOUR
from joulie.domain.recording import PodRecord
from joulie.domain.trial.protocol import Arm
from joulie.domain.trial.workload_measure import Accounted, MeasuredWorkloads, measure_workloads
from joulie.domain.trial.workload_protocol import WorkloadProtocol
from joulie.domain.trial.workloads import (
    MIN_OF_AN_ARM,
    MIN_WORKLOADS,
    Found,
    Quantity,
    WorkloadOutcome,
    WorkloadResult,
    evaluate_workloads,
)
from joulie_lab.apps.trial.result import HOW_KNOWN

MOST_UNFINISHED, MOST_UNMETERED = 0.05, 0.05
"""Shares of the trial's pods that may have no end in the recording, or no energy."""
COLUMNS = (
    "WORKLOAD",
    "ARM",
    "PODS",
    "FAILED",
    "MEAN WAIT, h",
    "ENERGY, kWh",
    "OF EXPECTED",
    "CARBON, kg",
    "OF EXPECTED",
)
ARM_COLUMNS = (
    "ARM",
    "WORKLOADS",
    "PODS",
    "MEAN WAIT, h",
    "ENERGY OF EXPECTED",
    "CARBON OF EXPECTED",
    "COST OF EXPECTED",
)
ARM_WORDS = {Arm.TREATMENT: "waits", Arm.CONTROL: "at once"}
QUANTITY_WORDS = {Quantity.CARBON: "carbon emissions", Quantity.COST: "cost", Quantity.ENERGY: "energy"}
"""Quantities by which a trial is told, the first that is known before the others."""
_SHOWN = 40
_NONE = "–"


@dataclass(frozen=True)
class WorkloadReport:
    """A trial of deferral and what it measured.

    Attributes:
        name: of the PowerTrial.
        protocol: the draw.
        measured: what became of each workload.
        result: the evaluation; its savings count only if nothing refuses them.
        refused: why no saving is given; empty if one is.
    """

    name: str
    protocol: WorkloadProtocol
    measured: MeasuredWorkloads
    result: WorkloadResult
    refused: str

    @property
    def savings(self) -> Mapping[Quantity, Found]:
        """The savings by quantity; none if they are refused."""
        return {} if self.refused else self.result.savings

    @property
    def headline(self) -> str:
        """What came out, in a sentence."""
        if self.refused:
            return f"Trial {self.name}: no saving can be given: {self.refused}"
        said = [saved_words(self.savings[one], one) for one in QUANTITY_WORDS if one in self.savings]
        wait = self.result.wait
        waits = "" if wait is None else f"; {_wait_words(wait)}"
        return f"Trial {self.name}: waiting {said[0]}{waits}"

    @property
    def others(self) -> Sequence[str]:
        """The savings beside that of the headline."""
        known = [one for one in QUANTITY_WORDS if one in self.savings]
        return [f"Waiting {saved_words(self.savings[one], one)}." for one in known[1:]]

    @property
    def notes(self) -> Sequence[str]:
        """What a reader must know beside the saving."""
        measured, counts = self.measured, {arm: len(self._of(arm)) for arm in Arm}
        return [
            "Each workload was drawn for itself and for the whole trial, with even chances: so many independent draws"
            f" there are ({counts[Arm.TREATMENT]} waited, {counts[Arm.CONTROL]} did not), however many pods they had."
            " A workload counts as it was drawn, also where its pods never had to wait.",
            "Work is completed pods, weighed by the energy of the workload's earlier ones and the signal when each"
            " came: both were known before the draw. What pods that failed used counts, and is no work.",
            "The interval is that of a test by other draws of as many workloads: it rests on the draw alone for a"
            " saving that is the same share of every workload, and for others where workloads are many.",
            f"The largest workload is {self._largest:.0%} of the expected energy: the larger, the wider the interval.",
            "Pods of both arms share nodes: what waits fills clean hours, also for those that started at once. The"
            " saving is that between the arms side by side; where waiting work crowds nodes, all of it waiting would"
            " save less.",
            f"{measured.by_kin} workloads had completed no pod before the trial and are expected to need what others"
            f" of their namespace with the same requests did; {measured.unexpected} had none such, and count by their"
            f" waits only. {measured.misdrawn} carried another draw than the seed gives, and do not count.",
            f"{sum(measured.unfinished.values())} pods of the trial have no end in the recording; of"
            f" {measured.unmetered} the ledger did not know all of the energy. Energy is what it attributed to pods.",
        ]

    @property
    def arm_rows(self) -> Sequence[Sequence[str]]:
        """The arms, one row each."""
        rows = []
        for arm in (Arm.TREATMENT, Arm.CONTROL):
            own = self._of(arm)
            shares = [_share(own, one) for one in (Quantity.ENERGY, Quantity.CARBON, Quantity.COST)]
            wait_s = self.result.waited_s.get(arm)
            wait = _NONE if wait_s is None else f"{wait_s / SECONDS_PER_HOUR:.2f}"
            rows.append((ARM_WORDS[arm], str(len(own)), str(sum(one.pods for one in own)), wait, *shares))
        return rows

    @property
    def rows(self) -> Sequence[Sequence[str]]:
        """The largest workloads, one row each."""
        by_size = sorted(self.measured.outcomes, key=lambda one: (-_expected_kwh(one), one.namespace, one.workload))
        rows = [_row(one) for one in by_size[:_SHOWN]]
        more = len(by_size) - len(rows)
        return [*rows, (f"and {more} more (-o json)", *[""] * (len(COLUMNS) - 1))] if more else rows

    def document(self) -> dict[str, Any]:
        """Everything that the saving was computed from."""
        measured = self.measured
        return {
            "trial": self.name,
            "judges": "deferral",
            "howKnown": HOW_KNOWN,
            "headline": self.headline,
            "refused": self.refused or None,
            "savings": {quantity.value: _found(one) for quantity, one in self.savings.items()},
            "startedLaterBySeconds": None if self.result.wait is None else _found(self.result.wait),
            "meanWaitSeconds": {arm.value: one for arm, one in self.result.waited_s.items()},
            "protocol": {
                "startTime": rfc3339(self.protocol.start_s),
                "endTime": rfc3339(self.protocol.end_s),
                "seed": self.protocol.seed,
            },
            "workloads": [
                {
                    "namespace": one.namespace,
                    "workload": one.workload,
                    "arm": one.arm.value,
                    "pods": one.pods,
                    "failed": one.failed,
                    "started": one.started,
                    "waitSeconds": one.wait_s,
                    **{quantity.value: amount._asdict() for quantity, amount in one.amounts.items()},
                }
                for one in measured.outcomes
            ],
            "unfinishedPods": {arm.value: count for arm, count in measured.unfinished.items()},
            "unmeteredPods": measured.unmetered,
            "workloadsWithoutExpectation": measured.unexpected,
            "workloadsExpectedByKin": measured.by_kin,
            "misdrawnWorkloads": measured.misdrawn,
            "notes": list(self.notes),
        }

    def _of(self, arm: Arm) -> Sequence[WorkloadOutcome]:
        return [one for one in self.measured.outcomes if one.arm is arm]

    @property
    def _largest(self) -> float:
        sizes = [_expected_kwh(one) for one in self.measured.outcomes]
        return max(sizes, default=0.0) / (sum(sizes) or 1.0)


def workload_report(
    name: str, protocol: WorkloadProtocol, pods: Sequence[PodRecord], accounted: Accounted, *, named: bool
) -> WorkloadReport:
    """Evaluate what a recording holds of a trial of deferral.

    Args:
        name: of the PowerTrial.
        protocol: the draw.
        pods: pods of the recording.
        accounted: what they used.
        named: whether the recording has the real names.
    """
    measured = measure_workloads(name, protocol, pods, accounted, named=named)
    result = evaluate_workloads(measured.outcomes, protocol.seed)
    return WorkloadReport(name, protocol, measured, result, _refused(measured, result))


def _refused(measured: MeasuredWorkloads, result: WorkloadResult) -> str:
    ended = sum(one.pods for one in measured.outcomes)
    unfinished = sum(measured.unfinished.values())
    if not ended:
        return (
            "the recording holds no pod of the trial that has ended; of deleted ones it knows only if"
            " kube-state-metrics publishes the annotation joulie.io/grid-trial"
        )
    if unfinished > MOST_UNFINISHED * (ended + unfinished):
        return (
            f"{unfinished} of its {ended + unfinished} pods have no end in the recording, and what waits lacks it more"
            " often than what does not: record until the last of them has ended"
        )
    if measured.unmetered > MOST_UNMETERED * ended:
        return (
            f"of {measured.unmetered} of {ended} pods the ledger does not know all of the energy: keep it by hour"
            " (LEDGER_HOURS_RETENTION) for as long as the recording"
        )
    if not result.savings:
        return "not both arms have workloads that ran before the trial: record from some days before it on"
    return ""


def saved_words(found: Found, quantity: Quantity) -> str:
    """A saving in words: ``saved 6.1% of the carbon emissions per work, ...``."""
    verb = "saved" if found.value >= 0.0 else "cost"
    said = f"{verb} {abs(found.value):.1%} of the {QUANTITY_WORDS[quantity]} per work"
    counts = f"{found.treated} workloads that waited and {found.untreated} that did not"
    if found.low is None or found.high is None:
        few = min(found.treated, found.untreated) < MIN_OF_AN_ARM or found.treated + found.untreated < MIN_WORKLOADS
        return f"{said}; {counts} are too {'few' if few else 'unlike each other'} for an interval"
    return f"{said}, 95 % interval {found.low:.1%} to {found.high:.1%}, {counts}"


def _wait_words(wait: Found) -> str:
    said = f"pods started {wait.value / SECONDS_PER_HOUR:.1f} h later on average"
    if wait.low is None or wait.high is None:
        return said
    low, high = (f"{one / SECONDS_PER_HOUR:.1f}" for one in (wait.low, wait.high))
    return f"{said} ({low} to {high})"


def _found(one: Found) -> dict[str, Any]:
    names = {"value": "value", "low": "low", "high": "high", "treated": "workloadsThatWaited", "untreated": "others"}
    return {names[key]: value for key, value in one._asdict().items()}


def _expected_kwh(one: WorkloadOutcome) -> float:
    return one.amounts[Quantity.ENERGY].expected if Quantity.ENERGY in one.amounts else 0.0


def _share(outcomes: Sequence[WorkloadOutcome], quantity: Quantity) -> str:
    amounts = [one.amounts[quantity] for one in outcomes if quantity in one.amounts]
    expected = sum(one.expected for one in amounts)
    return f"{sum(one.measured for one in amounts) / expected:.3f}" if expected > 0.0 else _NONE


def _row(one: WorkloadOutcome) -> Sequence[str]:
    wait_h = one.wait_s / one.started / SECONDS_PER_HOUR if one.started else 0.0
    cells = [f"{one.namespace}/{one.workload}", ARM_WORDS[one.arm], str(one.pods), str(one.failed), f"{wait_h:.2f}"]
    for quantity, unit in ((Quantity.ENERGY, 1.0), (Quantity.CARBON, 1e-3)):
        amount = one.amounts.get(quantity)
        cells += [_NONE if amount is None else f"{amount.measured * unit:,.2f}", _share([one], quantity)]
    return cells
