"""``joulie bench live-trial``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from joulie.domain.policies import StaticPartition
from joulie.domain.policy import PolicySettings
from joulie.domain.units import SECONDS_PER_HOUR, ZERO_CELSIUS_K
from joulie.program.numbers import FiniteRange
from joulie_lab.apps.bench.live_trial_run import BLOCK_S, LiveTrial, Plan, run_trial, trial_s
from joulie_lab.apps.bench.report import Page, Report, Table
from joulie_lab.apps.bench.run import PATH, benchmark, tell
from joulie_lab.apps.trial.result import TrialReport, report
from joulie_lab.benchmarks.results import Figures
from joulie_lab.simulation.experiment.outcome import Outcome
from joulie_lab.simulation.experiment.scenario import NodeGroup
from joulie_lab.simulation.live.fleet import LiveFleet
from joulie_lab.simulation.native.control import Control
from joulie_lab.simulation.native.nodes import SimNode, sim_nodes
from joulie_lab.simulation.native.runtime import Setup, run
from joulie_lab.simulation.report.charts import PALETTE
from joulie_lab.simulation.report.png import canvas
from joulie_lab.simulation.schedulers import KUBE
from joulie_lab.simulation.trace import JobProfile, TraceJob

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CPU = "AMD EPYC 9654"
_CORES, _BUSY, _LENGTH_S, _LOAD = 96, 0.95, 800.0, 0.7
"""Cores of a job, their utilisation, its mean run time, s, and the share of the nodes that jobs take in the mean."""
_MEMORY = {"compute": 0.3, "mixed": 0.5, "memory": 0.7}
"""Memory intensity of the jobs, by workload."""
_MAX_BOTH_ARMS, _MAX_FAILURES_PERCENT = 0.25, 5.0
_SETTLING_S = 600.0
"""Wall time for programs to start and end, for which there are jobs too, s."""
_SMALL_BLOCKS = 2
_AMBIENT_K = ZERO_CELSIUS_K + 22.0


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
        labels_left: nodes that still carried a label of the trial after it.
        pods: pods that were completed in blocks.
        both_arms: share of the work by pods that ran under both arms.
        enforced: share of the work that was done on enforced nodes.
        refused: why no saving is given; empty if one is.
        trial: the saving by the trial.
        all_or_none: that by the blocks in which all nodes were enforced, or none.
        truth: saving of the same jobs on the same nodes, all of them enforced, in the native runtime.
        truth_slowdown: by which factor jobs then run longer in the mean.
        idle_share: share of the energy without enforcement that the nodes would draw idle, in the native runtime.
        held_pct: 100 if the interval holds the truth, 0 if not.
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
    labels_left: int
    pods: int
    both_arms: float
    enforced: float
    refused: str
    trial: Saved | None
    all_or_none: Saved | None
    truth: float
    truth_slowdown: float
    idle_share: float
    held_pct: float | None
    pairs: Sequence[Pair]

    @property
    def hidden(self) -> float:
        """Saving that spill-over hides: each half's idle energy is divided by the work that it got."""
        return self.idle_share * float(np.log((1.0 - self.enforced) / self.enforced))


def tables(result: LiveTrialResult) -> Iterator[Table]:
    """What came out, and every pair."""
    rows = [
        ("saved by the trial", "-" if result.trial is None else result.trial.text),
        ("all nodes or none", "-" if result.all_or_none is None else result.all_or_none.text),
        ("the same jobs natively, all nodes enforced and none", f"{result.truth:.1%}"),
        ("blocks", f"{result.blocks}"),
        ("nodes with the mode of the draw", f"{result.labelled_pct:.1f} %"),
        ("nodes capped as their mode says", f"{result.capped_pct:.1f} %"),
        ("pods completed", f"{result.pods:,}"),
        ("work of pods that ran under both arms", f"{result.both_arms:.1%}"),
        ("work on enforced nodes", f"{result.enforced:.1%}"),
    ]
    yield Table(f"{result.nodes} nodes, {result.scale:.1f} times the clock", ("", ""), rows)
    yield Table(
        "Pairs of blocks",
        ("pair", "enforced first", "saved, %"),
        [
            (f"{place}", one.enforced, "-" if one.saved is None else f"{100.0 * one.saved:+.1f}")
            for place, one in enumerate(result.pairs, 1)
        ],
        labels=2,
    )


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
    found, pairs = tables(result)
    return {
        "found": found,
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
    tell("running the same jobs natively")
    return evaluated(plan, found, truth_of(fleet, jobs))


def made_jobs(nodes: Sequence[SimNode], duration_s: float, seed: int) -> list[TraceJob]:
    """Jobs of three workloads that come by chance at a steady rate for so many simulated seconds."""
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


@dataclass(frozen=True)
class Truth:
    """What enforcing all nodes does to the jobs, by the native runtime."""

    saved: float
    slowdown: float
    idle_share: float


def truth_of(nodes: Sequence[SimNode], jobs: Sequence[TraceJob]) -> Truth:
    """Run all jobs with no node and with all nodes enforced."""
    duration_s = jobs[-1].submit_s + SECONDS_PER_HOUR

    def played(control: Control | None) -> Outcome:
        return run(
            Setup(nodes=tuple(nodes), duration_s=duration_s, control=control, scheduler=KUBE, n_samples=100), jobs
        )

    free, capped = played(None), played(Control(StaticPartition(PolicySettings(static_hp_frac=0.0))))
    idle_w = float(LiveFleet([node.spec for node in nodes], ambient_k=_AMBIENT_K).wall_w.sum())
    return Truth(
        saved=1.0 - capped.it_j / free.it_j,
        slowdown=_mean_run_s(capped) / _mean_run_s(free),
        idle_share=idle_w * duration_s / free.it_j,
    )


def _mean_run_s(outcome: Outcome) -> float:
    return float(
        np.mean([one.end_s - one.start_s for one in outcome.jobs if one.end_s is not None and one.start_s is not None])
    )


def evaluated(plan: Plan, found: LiveTrial, truth: Truth) -> LiveTrialResult:
    """Evaluate a run as `joulie trial report` does."""
    one = report("trial", found.protocol, found.pods, found.metered, _MAX_BOTH_ARMS)
    trial = one.saving
    held = None if trial is None or trial.low is None or trial.high is None else trial.low <= truth.saved <= trial.high
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
        labels_left=found.labels_left,
        pods=_completed(found),
        both_arms=one.measured.both_arms,
        enforced=one.measured.enforced,
        refused=one.refused,
        trial=_saved(one, whole=False),
        all_or_none=_saved(one, whole=True),
        truth=truth.saved,
        truth_slowdown=truth.slowdown,
        idle_share=truth.idle_share,
        held_pct=None if held is None else 100.0 * held,
        pairs=[
            Pair(
                found.protocol.order[pair.pair], None if pair.log_ratio is None else 1.0 - float(np.exp(pair.log_ratio))
            )
            for pair in one.result.contrasts
        ],
    )


def _saved(one: TrialReport, *, whole: bool) -> Saved | None:
    saving = one.result.whole if whole else one.saving
    return None if one.refused or saving is None else Saved(saving.saved, saving.low, saving.high, saving.pairs)


def _completed(found: LiveTrial) -> int:
    protocol = found.protocol
    end_s = protocol.start_s + len(found.seen) * protocol.block_s
    return sum(one.ended_s is not None and protocol.start_s <= one.ended_s <= end_s for one in found.pods)
