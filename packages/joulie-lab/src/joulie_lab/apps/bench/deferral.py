"""``joulie bench deferral``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from joulie.domain.grid.forecast import MAX_HISTORY_DAYS
from joulie_lab.adapters.published.intensity import PUBLISHED, synthetic_zones
from joulie_lab.adapters.published.pai_jobs import HOME
from joulie_lab.apps.bench.data import published_jobs, published_zones
from joulie_lab.apps.bench.figures import bar_sets, horizontal_bars, legend_below, panels, title
from joulie_lab.apps.bench.report import Page, Report, Table
from joulie_lab.apps.bench.run import PATH, benchmark, tell
from joulie_lab.benchmarks.deferral import FORECASTERS, FULL, SMALL, DeferralResult, JobFigures, ZoneFigures, measure
from joulie_lab.benchmarks.deferral_capacity import LOAD, CapacityResult, synthetic_jobs
from joulie_lab.benchmarks.deferral_waitawhile import NOISES_PCT, WaitAwhileResult
from joulie_lab.simulation.report.charts import PALETTE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN = "4h_24h"
_TARGET_PCT = {"DE": 75, "GB": 75, "CISO-2021": 95, "CISO-2022": 95}


def tables(result: DeferralResult) -> Iterator[Table]:
    """Savings, forecast errors, savings with limited CPUs, and Let's Wait Awhile."""
    yield _savings("jobs in one piece", {name: zone.windows for name, zone in result.zones.items()})
    yield _savings("jobs that may be interrupted", {name: zone.slots for name, zone in result.zones.items()})
    yield _errors(result.zones)
    yield _capacity(result.capacity)
    if result.waitawhile is not None:
        yield _waitawhile(result.waitawhile)


def _savings(what: str, zones: Mapping[str, Mapping[str, JobFigures]]) -> Table:
    rules = next(iter(next(iter(zones.values())).values())).rules
    return Table(
        f"Saved, %: {what}",
        ("zone", "job", "slack", "oracle", *rules, "joulie of oracle", "late"),
        [
            (
                name,
                *case.split("_"),
                found.oracle_pct.text(1),
                *(rule.saved_pct.text(1) for rule in found.rules.values()),
                f"{100.0 * found.rules['joulie'].share.mean:.1f} %",
                str(found.late),
            )
            for name, cases in zones.items()
            for case, found in cases.items()
        ],
    )


def _errors(zones: Mapping[str, ZoneFigures]) -> Table:
    simple = (*FORECASTERS, "last value")
    return Table(
        "Mean absolute error, gCO2eq/kWh",
        ("zone", "ahead", *simple, "joulie, % of the best other"),
        [
            (name, lead, *(f"{found[who]:.1f}" for who in simple), f"{100.0 * found['relative']:.0f}")
            for name, zone in zones.items()
            for lead, found in zone.errors.items()
        ],
    )


def _capacity(result: CapacityResult) -> Table:
    return Table(
        "Saved with limited CPUs",
        (
            "zone",
            "bound, %",
            "known future, %",
            "Joulie, %",
            "of the bound",
            "late",
            "late if held to the last",
            "late if not held",
            "CPUs in use",
            "wait, h",
        ),
        [
            (
                zone,
                f"{found.bound_pct:.1f}",
                f"{found.known_future_pct:.1f}",
                f"{found.saved_pct:.1f}",
                f"{found.share_of_bound:.0%}",
                f"{found.late} of {found.jobs}",
                str(found.late_held_to_the_last),
                str(found.late_not_held),
                f"{found.load:.0%}",
                f"{found.wait_h:.1f}",
            )
            for zone, found in result.zones.items()
        ],
    )


def _waitawhile(result: WaitAwhileResult) -> Table:
    noises = (f"noise {noise} %" for noise in NOISES_PCT)
    return Table(
        "Let's Wait Awhile, scenario II: saved, %",
        ("zone", "done by", "how", *noises, "the noise costs, %", "published"),
        [
            (
                zone,
                done_by.replace("_", " "),
                how,
                *(f"{found.saved_pct[str(noise)]:.2f}" for noise in NOISES_PCT),
                f"{found.noise_cost_pct:.6f}",
                "" if found.published_noise_cost_pct is None else f"{found.published_noise_cost_pct:.6f}",
            )
            for zone, by_deadline in result.zones.items()
            for done_by, by_how in by_deadline.items()
            for how, found in by_how.items()
        ],
        labels=3,
    )


def figure(result: DeferralResult) -> Figure:
    """Share of the oracle's saving by rule, and errors against the best simple forecast."""
    drawn, (savings, errors) = panels(2)
    zones = result.zones
    rules = next(iter(zones.values())).windows[_SHOWN].rules
    shares = {rule: [100.0 * zone.windows[_SHOWN].rules[rule].share.mean for zone in zones.values()] for rule in rules}
    horizontal_bars(savings, list(zones), bar_sets(shares))
    savings.set_xlim(0.0, 100.0)
    title(savings, "Saved of what the oracle saves, %: 4 h, may wait 24 h")
    legend_below(savings, 3)
    for (name, zone), color in zip(zones.items(), PALETTE, strict=False):
        leads_h = [int(lead.removesuffix("h")) for lead in zone.errors]
        relative = [100.0 * found["relative"] for found in zone.errors.values()]
        errors.plot(leads_h, relative, "o-", color=color, label=name)
    errors.axhline(100.0, color="black", linewidth=1.0)
    errors.set(xlabel="hours ahead", ylim=(0.0, 105.0))
    title(errors, "Error of Joulie's forecast, % of the best simple one's")
    errors.legend(frameon=False, fontsize="small", loc="lower right")
    return drawn


def _page(result: DeferralResult) -> dict[str, Any]:
    found = {name: zone.windows[_SHOWN] for name, zone in result.zones.items()}
    windows, slots, errors, capacity, *repeated = tables(result)
    homes = dict.fromkeys(zone.home for zone in PUBLISHED.values())
    return {
        "LOAD": LOAD,
        "MAX_HISTORY_DAYS": MAX_HISTORY_DAYS,
        "WARM_UP_DAYS": FULL.warm_up_days,
        "JOBS_HOME": HOME,
        "shares": [jobs.rules["joulie"].share.mean for jobs in found.values()],
        "replayed": sum(zone.replayed.jobs for zone in result.zones.values()),
        "differ": sum(zone.replayed.differ for zone in result.zones.values()),
        "headline": Table(
            "",
            ("", "oracle saves, %", "Joulie saves, %", "of the oracle", "target"),
            [
                (
                    name,
                    jobs.oracle_pct.text(1),
                    jobs.rules["joulie"].saved_pct.text(1),
                    f"{jobs.rules['joulie'].share.text(1, 100.0)} %",
                    f"{_TARGET_PCT[name]} %" if name in _TARGET_PCT else "",
                )
                for name, jobs in found.items()
            ],
        ),
        "windows": windows,
        "slots": slots,
        "errors": errors,
        "capacity": capacity,
        "waitawhile": repeated[0],
        "cold_start": Table(
            "",
            ("", "Joulie", "yesterday"),
            [
                (name, *(f"{100.0 * share:.0f} %" for share in zone.cold_start.values()))
                for name, zone in result.zones.items()
            ],
        ),
        "files": " and ".join(
            ", ".join(f"`{zone.file}`" for zone in PUBLISHED.values() if zone.home == home)
            + f" of [{home.removeprefix('github.com/')}](https://{home})"
            for home in homes
        ),
    }


REPORT = Report(tables, figure)
PAGE = Page(DeferralResult, "experiments/deferral.md", _page, {"img/deferral.png": figure})


@benchmark("deferral", REPORT)
@click.option("--data", type=PATH, help="Folder with published carbon intensities; --small uses synthetic ones.")
@click.option("--jobs", "jobs_file", type=PATH, help="The published job trace; --small uses a synthetic one.")
def deferral(*, small: bool, data: Path | None, jobs_file: Path | None) -> DeferralResult:
    """Measure forecasts and deferral against the offline optimum."""
    zones = synthetic_zones(seed=1) if small else published_zones(data)
    jobs = synthetic_jobs(seed=1) if small else published_jobs(jobs_file)
    return measure(zones, jobs, SMALL if small else FULL, tell)
