"""``joulie bench live-trial``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import numpy as np

from joulie.domain.trial.estimate import Saving
from joulie.program.numbers import FiniteRange
from joulie_lab.apps.bench.live_trial_native import MAX_BOTH_ARMS, Truth, native_trial, truth_of
from joulie_lab.apps.bench.live_trial_run import BLOCK_S, WASHOUT_S, LiveTrial, Plan, run_trial, trial_s
from joulie_lab.apps.bench.report import Page, Report, Table
from joulie_lab.apps.bench.run import PATH, benchmark, tell
from joulie_lab.apps.trial.result import TrialReport, report
from joulie_lab.benchmarks.results import Figures
from joulie_lab.simulation.experiment.scenario import NodeGroup
from joulie_lab.simulation.native.nodes import SimNode, sim_nodes
from joulie_lab.simulation.report.charts import PALETTE
from joulie_lab.simulation.report.png import canvas
from joulie_lab.simulation.trace import JobProfile, TraceJob

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CPU = "AMD EPYC 9654"
_CORES, _BUSY, _LENGTH_S, _LOAD = 96, 0.95, 800.0, 0.7
"""Cores of a job, their utilisation, its mean run time, s, and the share of the nodes that jobs take in the mean."""
_MEMORY = {"compute": 0.3, "mixed": 0.5, "memory": 0.7}
"""Memory intensity of the jobs, by workload."""
_MAX_FAILURES_PERCENT = 5.0
_SETTLING_S = 600.0
"""Wall time for programs to start and end, for which there are jobs too, s."""
_SMALL_BLOCKS = 2
_SEEDS, _SMALL_SEEDS = range(51, 57), range(51, 52)
"""Seeds of native trials beside the run's own: of others than the estimator was chosen by."""


class Pair(Figures, frozen=True):
    """A pair of blocks.

    Attributes:
        enforced: what was enforced in its first block: first, second, all or none.
        saved: what the enforced half saved, as a share; None if the pair was left out.
    """

    enforced: str
    saved: float | None


class Saved(Figures, frozen=True):
    """A saving of energy per work, as a share, with its 95 % interval where there are pairs enough."""

    saved: float
    low: float | None
    high: float | None
    pairs: int

    @property
    def text(self) -> str:
        """In percent, with the interval."""
        interval = "" if self.low is None or self.high is None else f" ({self.low:.1%} to {self.high:.1%})"
        return f"{self.saved:.1%}{interval}"


class Native(Figures, frozen=True):
    """The same trial in the native runtime: nodes, draw, washout and lateness of the live one.

    Attributes:
        seed: seed of its jobs.
        truth: what enforcing all nodes saves with these jobs, as a share.
        trial: the saving by the trial.
        equal_work: the same at equal work.
    """

    seed: int
    truth: float
    trial: Saved | None
    equal_work: Saved | None


class LiveTrialResult(Figures, frozen=True):
    """A PowerTrial on a real control plane, and what was to be found.

    Attributes:
        nodes: number of nodes.
        time_scale: simulated seconds asked for in a second of wall time.
        scale: likewise, as measured over the trial.
        block_minutes: length of a block, min of wall time.
        blocks: number of blocks.
        reason: reason of the trial's condition at its end.
        labelled_pct: nodes with the mode of the draw, in the middle of each block, %.
        capped_pct: nodes whose CPUs were capped as their mode says, in the middle of each block, %.
        washout_s: wall time at the beginning of each block that does not count, s.
        switched_s: median of the wall time from the beginning of a block until all its CPUs were capped as its draw
            says, s.
        latest_switch_s: the longest of these times, s.
        labels_left: nodes that still carried a label of the trial after it.
        pods: pods that were completed in blocks.
        both_arms: share of the work by pods that ran under both arms.
        slowdown: by which share pods ran longer on enforced nodes.
        enforced: share of the work that was done on enforced nodes.
        refused: why no saving is given; empty if one is.
        trial: the saving by the trial.
        equal_work: the saving at equal work.
        elasticity: by how many per cent the energy of observed nodes grows with 1 % more work.
        all_or_none: that by the blocks in which all nodes were enforced, or none.
        truth: saving of the same jobs on the same nodes, all of them enforced, in the native runtime.
        truth_slowdown: by which factor jobs then run longer in the mean.
        idle_share: share of the energy without enforcement that the nodes would draw idle, in the native runtime.
        held_pct: 100 if the interval of energy per work holds the truth, 0 if not.
        held_at_equal_work_pct: the same of the saving at equal work.
        native: the same trial in the native runtime, first with the run's own jobs.
        pairs: every pair of blocks.
    """

    nodes: int
    time_scale: float
    scale: float
    block_minutes: float
    blocks: int
    reason: str
    labelled_pct: float
    capped_pct: float
    washout_s: float
    switched_s: float
    latest_switch_s: float
    labels_left: int
    pods: int
    both_arms: float
    slowdown: float
    enforced: float
    refused: str
    trial: Saved | None
    equal_work: Saved | None
    elasticity: float | None
    all_or_none: Saved | None
    truth: float
    truth_slowdown: float
    idle_share: float
    held_pct: float | None
    held_at_equal_work_pct: float | None
    native: Sequence[Native]
    pairs: Sequence[Pair]

    @property
    def hidden(self) -> float:
        """Saving that spill-over hides: each half's idle energy is divided by the work that it got."""
        return self.idle_share * float(np.log((1.0 - self.enforced) / self.enforced))

    @property
    def native_bias(self) -> Bias:
        """By how much native trials miss the truth by energy per work."""
        return _bias([one.trial.saved - one.truth for one in self.native if one.trial is not None])

    @property
    def native_bias_at_equal_work(self) -> Bias:
        """By how much they miss it at equal work."""
        return _bias([one.equal_work.saved - one.truth for one in self.native if one.equal_work is not None])


class Bias(NamedTuple):
    """Mean difference from the truth and its standard error, as shares; the error is NaN for one trial."""

    mean: float
    error: float


def _bias(differences: Sequence[float]) -> Bias:
    if not differences:
        return Bias(math.nan, math.nan)
    spread = float(np.std(differences, ddof=1)) if len(differences) > 1 else math.nan
    return Bias(float(np.mean(differences)), spread / math.sqrt(len(differences)))


def tables(result: LiveTrialResult) -> Iterator[Table]:
    """What came out, and every pair."""
    rows = [
        ("saved by the trial, energy per work", _text(result.trial)),
        ("saved by the trial, at equal work", _text(result.equal_work)),
        ("all nodes or none", _text(result.all_or_none)),
        ("the same jobs natively, all nodes enforced and none", f"{result.truth:.1%}"),
        ("blocks", f"{result.blocks}"),
        ("nodes with the mode of the draw", f"{result.labelled_pct:.1f} %"),
        ("nodes capped as their mode says", f"{result.capped_pct:.1f} %"),
        ("from the beginning of a block to its caps, median", f"{result.switched_s:.1f} s"),
        ("the longest", f"{result.latest_switch_s:.1f} s"),
        ("pods completed", f"{result.pods:,}"),
        ("work of pods that ran under both arms", f"{result.both_arms:.1%}"),
        ("enforced pods run longer by", f"{result.slowdown:.1%}"),
        ("work on enforced nodes", f"{result.enforced:.1%}"),
    ]
    yield Table(f"{result.nodes} nodes, {result.scale:.1f} times the clock", ("", ""), rows)
    yield Table(
        "The same trial natively",
        ("jobs", "truth, %", "energy per work", "at equal work"),
        [(f"{one.seed}", f"{100.0 * one.truth:.1f}", _text(one.trial), _text(one.equal_work)) for one in result.native],
    )
    yield Table(
        "Pairs of blocks",
        ("pair", "enforced first", "saved, %"),
        [
            (f"{place}", one.enforced, "-" if one.saved is None else f"{100.0 * one.saved:+.1f}")
            for place, one in enumerate(result.pairs, 1)
        ],
        labels=2,
    )


def _text(saved: Saved | None) -> str:
    return "-" if saved is None else saved.text


def figure(result: LiveTrialResult) -> Figure:
    """What each pair found, the trial's interval, and the truth."""
    drawn = canvas(9.0, 4.0)
    axes = drawn.subplots()
    for whole, colour, label in ((False, PALETTE[0], "halves"), (True, PALETTE[1], "all or none")):
        points = [
            (place, 100.0 * one.saved)
            for place, one in enumerate(result.pairs, 1)
            if one.saved is not None and (one.enforced in ("all", "none")) == whole
        ]
        if points:
            axes.scatter(*zip(*points, strict=True), color=colour, label=label)
    if result.trial is not None and result.trial.low is not None and result.trial.high is not None:
        low, high = 100.0 * result.trial.low, 100.0 * result.trial.high
        axes.axhspan(low, high, color=PALETTE[0], alpha=0.15, label="95 % interval")
    axes.axhline(100.0 * result.truth, color="grey", linestyle="--", label="truth")
    axes.set(xlabel="pair of blocks", ylabel="saved, %")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize="small")
    return drawn


def _page(result: LiveTrialResult) -> dict[str, Any]:
    found, native, pairs = tables(result)
    return {
        "found": found,
        "native": native,
        "pairs": pairs,
        "cpu": _CPU,
        "cores": _CORES,
        "memory": _MEMORY,
        "length_s": _LENGTH_S,
        "load": _LOAD,
        "max_failures_percent": _MAX_FAILURES_PERCENT,
    }


REPORT = Report(tables, figure)
PAGE = Page(LiveTrialResult, "experiments/live-trial.md", _page, {"img/live-trial.png": figure})


@benchmark("live-trial", REPORT)
@click.option("--nodes", default=16, show_default=True, type=click.IntRange(4, 40), help="Number of nodes.")
@click.option("--time-scale", default=100.0, show_default=True, type=FiniteRange(1.0), help="Simulated over wall time.")
@click.option("--seed", default=1, show_default=True, help="Seed of the jobs.")
@click.option("--logs", type=PATH, help="Folder for the logs of the programs, which are kept.")
def live_trial(*, small: bool, nodes: int, time_scale: float, seed: int, logs: Path | None) -> LiveTrialResult:
    """Run a PowerTrial on a real control plane."""
    blocks = _SMALL_BLOCKS if small else None
    if small:
        nodes = 4
    fleet = sim_nodes([NodeGroup(name="node", count=nodes, cpu=_CPU)])
    jobs = made_jobs(fleet, (trial_s(blocks) + _SETTLING_S) * time_scale, seed)
    plan = Plan(fleet, jobs, time_scale, _MAX_FAILURES_PERCENT, blocks)
    with TemporaryDirectory() as folder:
        found = run_trial(plan, Path(folder), tell, logs)
    tell("running the same trial natively")
    return evaluated(plan, found, truth_of(fleet, jobs), seed, _SMALL_SEEDS if small else _SEEDS)


def made_jobs(nodes: Sequence[SimNode], duration_s: float, seed: int) -> list[TraceJob]:
    """Jobs of three workloads that come by chance at a steady rate for this many simulated seconds."""
    rng = np.random.default_rng(seed)
    at_a_time = _LOAD * sum(node.spec.cores for node in nodes) / _CORES
    count = round(duration_s * at_a_time / _LENGTH_S)
    submit_s = np.sort(rng.uniform(0.0, duration_s, count)).tolist()
    length_s = (_LENGTH_S * rng.uniform(0.8, 1.2, count)).tolist()
    workloads = rng.choice(list(_MEMORY), count).tolist()
    return [
        TraceJob(
            job_id=f"job-{number}",
            workload_id=workload,
            submit_s=submit,
            requests={"cpu": f"{_CORES}", "memory": "8Gi"},
            cpu_units=_CORES * _BUSY * length,
            profile=JobProfile(cpu_utilization=_BUSY, memory_intensity=_MEMORY[workload]),
        )
        for number, (submit, length, workload) in enumerate(zip(submit_s, length_s, workloads, strict=True))
    ]


def evaluated(plan: Plan, found: LiveTrial, truth: Truth, seed: int, others: Sequence[int]) -> LiveTrialResult:
    """Evaluate a run as `joulie trial report` does, and the same trial in the native runtime.

    Args:
        plan: what was run.
        found: what came of it.
        truth: what was to be found.
        seed: seed of the run's jobs.
        others: seeds of other jobs of native trials.
    """
    one = report("trial", found.protocol, found.pods, found.metered, MAX_BOTH_ARMS)
    trial, equal_work = _saved(one.saving), _saved(one.equal_work)
    looked = len(found.seen) * len(plan.nodes)
    return LiveTrialResult(
        nodes=len(plan.nodes),
        time_scale=plan.time_scale,
        scale=found.scale,
        block_minutes=BLOCK_S / 60.0,
        blocks=len(found.seen),
        reason=found.reason,
        labelled_pct=100.0 * sum(block.labelled for block in found.seen) / looked,
        capped_pct=100.0 * sum(block.capped for block in found.seen) / looked,
        washout_s=WASHOUT_S,
        switched_s=float(np.median(found.switched_s)),
        latest_switch_s=max(found.switched_s),
        labels_left=found.labels_left,
        pods=_completed(found),
        both_arms=one.measured.both_arms,
        slowdown=one.measured.slowdown,
        enforced=one.measured.enforced,
        refused=one.refused,
        trial=trial,
        equal_work=equal_work,
        elasticity=one.result.elasticity,
        all_or_none=None if one.refused else _saved(one.result.whole),
        truth=truth.saved,
        truth_slowdown=truth.slowdown,
        idle_share=truth.idle_share,
        held_pct=_held(trial, truth.saved),
        held_at_equal_work_pct=_held(equal_work, truth.saved),
        native=list(_natives(plan, found, truth, seed, others)),
        pairs=[
            Pair(
                found.protocol.order[pair.pair], None if pair.log_ratio is None else 1.0 - float(np.exp(pair.log_ratio))
            )
            for pair in one.result.contrasts
        ],
    )


def _natives(plan: Plan, found: LiveTrial, truth: Truth, own: int, others: Sequence[int]) -> Iterator[Native]:
    """The same trial with the run's own jobs, and with others of as many seeds."""
    nodes, protocol = plan.nodes, found.protocol
    late_s = float(np.median(found.switched_s)) * found.scale
    yield _native(own, truth.saved, native_trial(nodes, plan.jobs, protocol, late_s))
    for seed in others:
        jobs = made_jobs(nodes, max(plan.jobs[-1].submit_s, protocol.end_s), seed)
        yield _native(seed, truth_of(nodes, jobs).saved, native_trial(nodes, jobs, protocol, late_s))


def _native(seed: int, truth: float, one: TrialReport) -> Native:
    return Native(seed, truth, _saved(one.saving), _saved(one.equal_work))


def _saved(saving: Saving | None) -> Saved | None:
    return None if saving is None else Saved(saving.saved, saving.low, saving.high, saving.pairs)


def _held(saved: Saved | None, truth: float) -> float | None:
    """100 if an interval holds the truth, 0 if not, None without an interval."""
    if saved is None or saved.low is None or saved.high is None:
        return None
    return 100.0 * (saved.low <= truth <= saved.high)


def _completed(found: LiveTrial) -> int:
    protocol = found.protocol
    end_s = protocol.start_s + len(found.seen) * protocol.block_s
    return sum(one.ended_s is not None and protocol.start_s <= one.ended_s <= end_s for one in found.pods)
