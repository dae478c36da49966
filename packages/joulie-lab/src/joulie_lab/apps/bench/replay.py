"""``joulie bench replay``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, process_time
from typing import TYPE_CHECKING

from joulie.domain.units import SECONDS_PER_HOUR
from joulie_lab.apps.bench.figures import bar_sets
from joulie_lab.apps.bench.report import Page, Report, Table
from joulie_lab.apps.bench.run import benchmark, tell
from joulie_lab.apps.experiment.settings import build_control
from joulie_lab.apps.replay.run import Question, peak_mib, variant_of
from joulie_lab.apps.replay.run import replay as replay_recording
from joulie_lab.benchmarks.native import FULL as NATIVE_FULL
from joulie_lab.benchmarks.native import NO_POLICY, POLICY_NAMES, Beside, beside_plain
from joulie_lab.benchmarks.native import SMALL as NATIVE_SMALL
from joulie_lab.benchmarks.native import Plan as NativePlan
from joulie_lab.benchmarks.recorded_week import FULL, LARGE, SMALL, SMALL_LARGE, Plan, Plant, kwh
from joulie_lab.benchmarks.results import Figures
from joulie_lab.program.parallel import Executor
from joulie_lab.simulation.experiment.scenario import ControlTimes
from joulie_lab.simulation.report.bars import Bars
from joulie_lab.simulation.report.png import draw

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_POLICIES = ("energy_per_work",)
_WORKERS = 2
_ANY_ERROR = 1.0
"""Bound of the large replay's error: it is asked what it costs, whatever the model is worth."""


class Forecast(Figures, frozen=True):
    """A forecast beside what the plant then gives, as shares of the energy without power management."""

    saving: float
    low: float
    high: float
    true_saving: float
    missed_by_pct: float
    """How far the plant's saving is outside of the interval, percentage points; 0 inside."""


class Runs(Figures, frozen=True):
    """What the run of a policy in the large replay cost the process that executed it."""

    events: int
    """Arrivals and ends of pods."""
    cpu_s: float
    events_per_s: float
    """By CPU time."""


class Large(Figures, frozen=True):
    """A replay of all policies on a large cluster, one run of each, in two processes.

    Attributes:
        nodes: number of nodes.
        jobs: number of pods that ran in the recording.
        hours: length of the recording, h.
        wall_s: from the start of the replay to its forecasts, s.
        judging_cpu_s: CPU time of reading the recording and judging the model, s.
        runs_cpu_s: CPU time of all runs, s.
        peak_mib: largest resident memory of the replaying process, which had made the recording before, MiB.
        worker_peak_mib: likewise of the larger of the two processes that execute runs, MiB.
        runs: by policy.
        beside_plain: by policy, the first hours of such a cluster by compiled loops and by the plain formulas.
    """

    nodes: int
    jobs: int
    hours: int
    wall_s: float
    judging_cpu_s: float
    runs_cpu_s: float
    peak_mib: float
    worker_peak_mib: float
    runs: Mapping[str, Runs]
    beside_plain: Mapping[str, Beside]


class ReplayResult(Figures, frozen=True):
    """Errors on the second half of the recording, in % of the measured power, and forecasts by policy."""

    nodes: int
    hours: int
    jobs: int
    bias_pct: float
    cluster_error_pct: float
    node_error_pct: float
    catalogue_bias_pct: float
    coverage_pct: float
    forecasts: Mapping[str, Forecast]
    large: Large


def tables(result: ReplayResult) -> Iterator[Table]:
    """Errors, forecasts beside the truth, and what a large replay costs."""
    rows = [
        ("bias", f"{result.bias_pct:+.2f}"),
        ("error of the cluster's hourly power", f"{result.cluster_error_pct:.2f}"),
        ("error of single nodes' hourly power", f"{result.node_error_pct:.2f}"),
        ("bias of the catalogue, not fitted", f"{result.catalogue_bias_pct:+.2f}"),
        ("node-hours measured", f"{result.coverage_pct:.2f}"),
    ]
    title = f"Second half of {result.hours} h of {result.nodes:,} nodes and {result.jobs:,} pods"
    yield Table(title, ("", "%"), rows)
    yield Table(
        "Savings",
        ("policy", "forecast", "95 % interval", "the plant gives", "missed by, points"),
        [
            (
                policy,
                f"{one.saving:.2%}",
                f"{one.low:.2%} to {one.high:.2%}",
                f"{one.true_saving:.2%}",
                f"{one.missed_by_pct:.2f}",
            )
            for policy, one in result.forecasts.items()
        ],
    )
    large = result.large
    size = f"{large.hours} h of {large.nodes:,} nodes and {large.jobs:,} pods"
    yield Table(
        f"{size}, {len(large.runs)} policies, {_WORKERS} processes",
        ("", ""),
        [
            ("from start to forecasts, min", f"{large.wall_s / 60.0:.1f}"),
            ("CPU time: reading and judging, min", f"{large.judging_cpu_s / 60.0:.1f}"),
            ("CPU time: runs, min", f"{large.runs_cpu_s / 60.0:.1f}"),
            ("peak memory of the main process, MiB", f"{large.peak_mib:,.0f}"),
            ("peak memory of a worker, MiB", f"{large.worker_peak_mib:,.0f}"),
        ],
    )
    yield Table(
        "Arrivals and ends a second of CPU time",
        ("policy", "events", "whole replay", "first hours, plain", "first hours, compiled", "times faster", "differ"),
        [
            (
                policy,
                f"{one.events:,}",
                f"{one.events_per_s:,.0f}",
                f"{1e6 / beside.plain_us:,.0f}",
                f"{1e6 / beside.compiled_us:,.0f}",
                f"{beside.times_faster:.1f}",
                f"{beside.other_ends}",
            )
            for policy, one in large.runs.items()
            for beside in (large.beside_plain[policy],)
        ],
    )


def figure(result: ReplayResult) -> Figure:
    """Forecast savings beside the true ones."""
    values = {
        "forecast": [100.0 * one.saving for one in result.forecasts.values()],
        "plant": [100.0 * one.true_saving for one in result.forecasts.values()],
    }
    return draw(Bars("replay", "Energy saved", tuple(result.forecasts), "saved, %", tuple(bar_sets(values))), "")


REPORT = Report(tables, figure)
PAGE = Page(
    ReplayResult,
    "howto/replay.md",
    lambda result: {"block": "\n\n".join(f"{one.title}:\n\n{one}" for one in tables(result))},
)


@benchmark("replay", REPORT)
def replay(*, small: bool) -> ReplayResult:
    """Record the plant, replay the recording, and play the plant under the same policies."""
    with TemporaryDirectory() as folder:
        # First, while the memory of this process holds nothing else.
        large = measure_large(
            SMALL_LARGE if small else LARGE, NATIVE_SMALL if small else NATIVE_FULL, Path(folder) / "large"
        )
        return measure(SMALL if small else FULL, Path(folder) / "week", large)


def measure_large(plan: Plan, beside: NativePlan, folder: Path) -> Large:
    """Replay all policies on the recording of a large plant, and run its first hours by the plain formulas too."""
    tell(f"recording {plan.nodes:,} nodes")
    Plant(plan).record(folder)
    tell(f"replaying {plan.nodes:,} nodes")
    policies = tuple(one for one in POLICY_NAMES if one != NO_POLICY)
    question = Question(policies, plan.seeds, _ANY_ERROR, _ANY_ERROR, plan.drain_hours * SECONDS_PER_HOUR)
    before_s, cpu_before_s = monotonic(), process_time()
    found = replay_recording(folder, question, Executor(_WORKERS))
    wall_s, judging_cpu_s = monotonic() - before_s, process_time() - cpu_before_s
    memory_mib = peak_mib()
    plain = {}
    for policy in POLICY_NAMES:
        tell(f"{beside.beside.hours} h of {beside.beside.nodes:,} nodes both ways, {policy}")
        plain[policy] = beside_plain(beside.beside, policy, process_time)
    return Large(
        nodes=found.nodes,
        jobs=found.jobs,
        hours=plan.hours,
        wall_s=wall_s,
        judging_cpu_s=judging_cpu_s,
        runs_cpu_s=sum(one.cpu_s for one in found.costs),
        peak_mib=memory_mib,
        worker_peak_mib=max(one.peak_mib for one in found.costs),
        runs={one.policy: Runs(one.events, one.cpu_s, one.events / one.cpu_s) for one in found.costs},
        beside_plain=plain,
    )


def measure(plan: Plan, folder: Path, large: Large) -> ReplayResult:
    """Record the plant into a folder, replay it, and play the plant under the same policies."""
    plant = Plant(plan)
    tell("recording the plant")
    unmanaged_kwh = plant.record(folder)
    tell("replaying the recording")
    question = Question(_POLICIES, plan.seeds, drain_s=plan.drain_hours * SECONDS_PER_HOUR)
    found = replay_recording(folder, question, Executor(1))
    forecasts = {}
    for one in found.forecasts:
        if one.saving is not None and one.interval is not None:
            tell(f"playing the plant under {one.policy}")
            variant = variant_of(one.policy)
            _, true_w = plant.play(build_control(variant, ControlTimes()), variant.scheduler)
            saving = 1.0 - kwh(true_w) / unmanaged_kwh
            low, high = one.interval
            missed_by = max(low - saving, saving - high, 0.0)
            forecasts[one.policy] = Forecast(one.saving, low, high, saving, 100.0 * missed_by)
    held_out, catalogue = found.judged.held_out, found.judged.catalogue
    return ReplayResult(
        nodes=found.nodes,
        hours=plan.hours,
        jobs=found.jobs,
        bias_pct=100.0 * held_out.bias,
        cluster_error_pct=100.0 * held_out.cluster_error,
        node_error_pct=100.0 * held_out.node_error,
        catalogue_bias_pct=100.0 * catalogue.bias,
        coverage_pct=100.0 * held_out.coverage,
        forecasts=forecasts,
        large=large,
    )
