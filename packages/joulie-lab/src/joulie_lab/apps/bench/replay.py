"""``joulie bench replay``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from joulie.domain.units import SECONDS_PER_HOUR
from joulie_lab.apps.bench.figures import bar_sets
from joulie_lab.apps.bench.report import Report, Table
from joulie_lab.apps.bench.run import benchmark, tell
from joulie_lab.apps.experiment.settings import build_control
from joulie_lab.apps.replay.run import Question, variant_of
from joulie_lab.apps.replay.run import replay as replay_recording
from joulie_lab.benchmarks.recorded_week import FULL, SMALL, Plan, Plant, kwh
from joulie_lab.benchmarks.results import Figures
from joulie_lab.program.parallel import Executor
from joulie_lab.simulation.experiment.scenario import ControlTimes
from joulie_lab.simulation.report.bars import Bars
from joulie_lab.simulation.report.png import draw

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_POLICIES = ("energy_per_work",)


class Forecast(Figures, frozen=True):
    """A forecast beside what the plant then gives, as shares of the energy without power management."""

    saving: float
    low: float
    high: float
    true_saving: float
    missed_by_pct: float
    """How far the plant's saving is outside of the interval, percentage points; 0 inside."""


class ReplayResult(Figures, frozen=True):
    """Errors on the second half of the recording, in % of the measured power, and forecasts by policy."""

    jobs: int
    bias_pct: float
    cluster_error_pct: float
    node_error_pct: float
    catalogue_bias_pct: float
    coverage_pct: float
    forecasts: Mapping[str, Forecast]


def tables(result: ReplayResult) -> Iterator[Table]:
    """Errors, and forecasts beside the truth."""
    rows = [(name, f"{getattr(result, name):.2f}") for name in result.__struct_fields__ if name.endswith("_pct")]
    yield Table("Second half of the recording", ("", "%"), [(name.replace("_", " "), text) for name, text in rows])
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


def figure(result: ReplayResult) -> Figure:
    """Forecast savings beside the true ones."""
    values = {
        "forecast": [100.0 * one.saving for one in result.forecasts.values()],
        "plant": [100.0 * one.true_saving for one in result.forecasts.values()],
    }
    return draw(Bars("replay", "Energy saved", tuple(result.forecasts), "saved, %", tuple(bar_sets(values))), "")


REPORT = Report(tables, figure)


@benchmark("replay", REPORT)
def replay(*, small: bool) -> ReplayResult:
    """Record the plant, replay the recording, and play the plant under the same policies."""
    with TemporaryDirectory() as folder:
        return measure(SMALL if small else FULL, Path(folder) / "week")


def measure(plan: Plan, folder: Path) -> ReplayResult:
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
        jobs=found.jobs,
        bias_pct=100.0 * held_out.bias,
        cluster_error_pct=100.0 * held_out.cluster_error,
        node_error_pct=100.0 * held_out.node_error,
        catalogue_bias_pct=100.0 * catalogue.bias,
        coverage_pct=100.0 * held_out.coverage,
        forecasts=forecasts,
    )
