"""What benchmarks measured, as tables on the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from joulie.program.tables import Cells, print_table


def print_parity(measured: Mapping[str, Any]) -> None:
    """Figures and speed of `joulie bench parity`."""
    print_table(
        "Figures, seed 42",
        ("", "mean kW", "peak kW", "std kW", "P99 ramp", "dropped", "jobs", "s a run"),
        (
            (
                name,
                f"{run['mean_kw']:.9f}",
                f"{run['peak_kw']:.9f}",
                f"{run['std_kw']:.9f}",
                f"{run['p99_ramp_kw']:.9f}",
                f"{run['dropped']:,}",
                f"{run['jobs']:,}",
                f"{run['seconds']:.2f}",
            )
            for name, run in measured["figures"].items()
        ),
    )
    print_table(
        "Against the plain NumPy way, same first hours",
        ("", "hours", "jobs", "plain s", "engine s", "ratio", "power differs by", "drops differ in"),
        (
            (
                name,
                f"{row['hours']:g}",
                f"{row['jobs']:,}",
                f"{row['plain_s']:.2f}",
                f"{row['fast_s']:.4f}",
                f"{row['ratio']:,.0f}",
                f"{row['largest_relative_power_difference']:.1e}",
                f"{row['differing_drops']} steps",
            )
            for name, row in measured["speed"].items()
        ),
    )
    print_table(
        "Growth with nodes, same workload",
        ("nodes", "scheduler", "jobs", "dropped", "s a run", "µs a job", "plain, µs a job"),
        (
            (f"{row['nodes']:,}", *_growth_cells(row), f"{row['plain_us_per_job']:.1f}")
            for row in measured["growth_with_nodes"]
        ),
    )
    print_table(
        "Growth with jobs, same cluster",
        ("rate", "scheduler", "jobs", "dropped", "s a run", "µs a job"),
        ((f"{row['share']:g}x", *_growth_cells(row)) for row in measured["growth_with_jobs"]),
    )


def _growth_cells(row: Mapping[str, Any]) -> Cells:
    return (
        row["scheduler"],
        f"{row['jobs']:,}",
        f"{row['dropped']:,}",
        f"{row['seconds']:.2f}",
        f"{row['us_per_job']:.2f}",
    )


def print_equal_work(measured: Mapping[str, Any]) -> None:
    """Energy, waits and ramps of `joulie bench equal-work`, beside the lower bound."""

    def cell(value: Mapping[str, float | None], digits: int) -> str:
        half_width = "" if value["half_width"] is None else f" ±{value['half_width']:,.{digits}f}"
        return f"{value['mean']:,.{digits}f}{half_width}"

    columns = {
        "it_kwh": ("energy, kWh", 0),
        "above_bound_pct": ("above bound, %", 2),
        "std_kw": ("std, kW", 1),
        "p99_ramp_kw": ("P99 ramp, kW", 2),
        "peak_kw": ("peak, kW", 0),
        "mean_wait_min": ("mean wait, min", 3),
        "p99_wait_min": ("P99 wait", 1),
        "wakes": ("wakes", 0),
        "unfinished": ("unfinished", 0),
    }
    n_seeds = len(measured["seeds"])
    bound = cell(measured["bound_kwh"], 0)
    print_table(
        f"Mean of {n_seeds} seeds ± 95 % confidence interval; lower bound {bound} kWh",
        ("", *(label for label, _ in columns.values())),
        (
            (name, *(cell(row[key], digits) for key, (_, digits) in columns.items()))
            for name, row in measured["reported"].items()
        ),
    )
    references = next(iter(measured["reported"].values()))["saving_pct"]
    print_table(
        "Energy saved, %, and seeds on which the P99 ramp is not above most-allocated's",
        ("", *(f"against {name}" for name in references), "seeds"),
        (
            (
                name,
                *(cell(value, 2) for value in row["saving_pct"].values()),
                f"{row['ramp_not_above_most_allocated']} of {n_seeds}",
            )
            for name, row in measured["reported"].items()
        ),
    )
    print_table(
        "Seed 42",
        ("", "energy, kWh", "jobs", "P99 ramp, kW", "mean wait, min", "wakes", "s a run"),
        (
            (
                name,
                f"{run['it_kwh']:,.1f}",
                f"{run['jobs']:,}",
                f"{run['p99_ramp_kw']:.2f}",
                f"{run['mean_wait_min']:.4f}",
                f"{run['wakes']:,}",
                f"{run['seconds']:.2f}",
            )
            for name, run in measured["parity"].items()
        ),
    )
