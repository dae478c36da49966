"""``joulie bench limits``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from joulie.domain.capping.choice import Goal
from joulie_lab.apps.bench.data import published_sweeps
from joulie_lab.apps.bench.figures import panels, title
from joulie_lab.apps.bench.report import Page, Report, Table
from joulie_lab.apps.bench.run import PATH, benchmark, tell
from joulie_lab.benchmarks.capping import synthetic_sweeps
from joulie_lab.benchmarks.claims import HONEST_HOURS, LYING_HOURS
from joulie_lab.benchmarks.limit_response import COMPARED, FILES, INTERVAL, LimitsResult, measure
from joulie_lab.simulation.report.charts import PALETTE

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_CHECKED = {"traffic": "memory traffic", "power": "power alone"}


def tables(result: LimitsResult) -> Iterator[Table]:
    """The response as measured, the prediction for a GPU that was left out, the search, and the check of claims."""
    yield Table(
        "Response to a limit",
        ("GPU", "limit / natural", "jobs", "power", "throughput, 10th", "median", "90th", "energy per work"),
        [
            (
                gpu,
                ratio.replace("_", "."),
                str(cell.jobs),
                *(f"{value:.2f}" for value in (cell.power, cell.throughput_p10, cell.throughput, cell.throughput_p90)),
                f"{cell.energy:.2f}",
            )
            for gpu, found in result.gpus.items()
            for ratio, cell in found.cells.items()
        ],
        labels=2,
    )
    yield Table(
        "A GPU predicted from the others",
        (
            "GPU",
            "measurements",
            "median error, throughput",
            "largest",
            "coverage",
            "median error, power",
            "largest",
            "coverage",
        ),
        [
            (
                gpu,
                str(found.left_out.measurements),
                f"{found.left_out.throughput_error:.3f}",
                f"{found.left_out.throughput_worst_error:.3f}",
                f"{100.0 * found.left_out.throughput_coverage:.0f} %",
                f"{found.left_out.power_error:.3f}",
                f"{found.left_out.power_worst_error:.3f}",
                f"{100.0 * found.left_out.power_coverage:.0f} %",
            )
            for gpu, found in result.gpus.items()
        ],
    )
    yield Table(
        "The search, taught by the other GPUs",
        (
            "GPU",
            "windows",
            "oracle, %",
            "saved, %",
            "share of the oracle, %",
            "of that to 1.4, %",
            "windows for each job",
            "jobs over the bound",
            "over by 1 %, % of jobs",
            "largest slowdown",
        ),
        [
            (
                gpu,
                name,
                f"{found.oracle_pct:.1f}",
                search.saved_pct.text(2),
                search.share.text(1, 100.0),
                search.share_to_1_4.text(1, 100.0),
                f"{search.windows.mean:.1f}",
                search.violations.text(1),
                search.violations_by_1pct.text(2, 100.0),
                f"{search.worst_slowdown.worst:.3f}",
            )
            for gpu, found in result.gpus.items()
            for name, search in (("exact", found.exact), (f"{100.0 * result.noise:g} % noise", found.noisy))
        ],
        labels=2,
    )
    yield Table(
        "Shares of the oracle's saving, %",
        ("GPU", "the search, exact", "no deeper than others have shown", "best three limits in hindsight"),
        [
            (
                gpu,
                *(f"{100.0 * share:.1f}" for share in (found.exact.share.mean, found.reach.shown, found.reach.three)),
            )
            for gpu, found in result.gpus.items()
        ],
    )
    yield Table(
        "Jobs that count their work",
        ("checked by", "jobs", "doubted", "to the end", "saved, %", "over the bound by 1 %"),
        [
            (
                _CHECKED[by],
                *(str(count) for count in (found.jobs, found.doubted, found.doubted_at_end)),
                f"{found.saved_pct:.2f}",
                str(found.over_bound_by_1pct),
            )
            for by, found in result.claims.honest.items()
        ],
    )
    yield Table(
        "Jobs that lie",
        (
            "checked by",
            "lie",
            "jobs",
            "contradicted",
            "slowed beyond the bound and a window",
            "most time lost beyond the bound, windows",
            "P95 slowdown",
        ),
        [
            (
                _CHECKED[by],
                said,
                *(str(count) for count in (found.jobs, found.contradicted, found.beyond_a_window)),
                f"{found.most_windows:.2f}",
                f"{found.p95_slowdown:.3f}",
            )
            for by, lies in result.claims.lying.items()
            for said, found in lies.items()
        ],
        labels=2,
    )


def figure(result: LimitsResult) -> Figure:
    """Median throughput and energy for the same work over limit / natural power."""
    drawn, axes = panels(2)
    for quantity, name, one in (("throughput", "Throughput", axes[0]), ("energy", "Energy for the same work", axes[1])):
        for (gpu, found), color in zip(result.gpus.items(), PALETTE, strict=False):
            ratios = [float(ratio.replace("_", ".")) for ratio in found.cells]
            values = [getattr(cell, quantity) for cell in found.cells.values()]
            one.plot(ratios, values, "o-", color=color, label=gpu)
        one.set(xlabel="limit / natural power")
        title(one, f"{name}, median job")
    axes[0].legend(frameon=False)
    return drawn


def _page(result: LimitsResult) -> dict[str, Any]:
    response, predicted, search, reach, honest, lying = tables(result)
    return {
        "response": response,
        "predicted": predicted,
        "search": search,
        "reach": reach,
        "honest": honest,
        "lying": lying,
        "hours": (HONEST_HOURS, LYING_HOURS),
        "goal": Goal(),
        "compared": COMPARED,
        "interval": INTERVAL,
    }


REPORT = Report(tables, figure)
PAGE = Page(LimitsResult, "experiments/limits.md", _page, {"img/limits.png": figure})


@benchmark("limits", REPORT)
@click.option("--data", type=PATH, help="Folder with the published sweeps.  [default: the fetched copy]")
def limits(*, small: bool, data: Path | None) -> LimitsResult:
    """Measure the response to power limits, its prediction for another GPU, and the live search."""
    sweeps = synthetic_sweeps(seed=1) if small else published_sweeps(data, FILES)
    if small:
        return measure(sweeps, (1, 2), tell, claimed=slice(None, None, 8), hours=(3.0, 1.0))
    return measure(sweeps, tuple(range(1, 9)), tell)
