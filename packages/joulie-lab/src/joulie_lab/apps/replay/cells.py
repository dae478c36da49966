"""The sentences and cells that table and page share."""

from __future__ import annotations

from joulie_lab.apps.replay.run import Replay
from joulie_lab.simulation.replay.fit import Errors
from joulie_lab.simulation.replay.forecast import PolicyForecast


def headline(result: Replay) -> str:
    """What came out, in one sentence."""
    if result.refused:
        return f"No forecast: {result.refused}."
    saving = [one for one in result.forecasts if one.saving is not None]
    if not saving:
        return "No saving can be stated: no policy did the same work as no power management."
    best = max(saving, key=lambda one: one.saving or 0.0)
    assert best.interval is not None
    low, high = best.interval
    if low <= 0.0:
        return f"No policy is sure to save energy; the best, {best.policy}, saves {low:.1%} to {high:.1%}."
    return f"{best.policy} would have saved {best.saving:.1%} of the energy ({low:.1%} to {high:.1%}), by replay."


def error_sentence(held_out: Errors) -> str:
    """How far the model is off where it was not fitted."""
    return (
        f"In the second half of the past, which it was not fitted to, the model predicts {held_out.bias:+.2%} of the "
        f"measured energy; its hourly power of the cluster is off by {held_out.cluster_error:.2%}, of a node by "
        f"{held_out.node_error:.2%}."
    )


def forecast_cells(one: PolicyForecast) -> tuple[str, ...]:
    """A row of the table of policies."""
    interval = "" if one.interval is None else f"{one.interval[0]:.2%} to {one.interval[1]:.2%}"
    other_work = f"other work ({one.work_pct:.1f} %)" if one.interval is None and one.work_pct else "baseline"
    return (
        one.policy,
        f"{one.energy_kwh:,.0f}",
        other_work if one.saving is None else f"{one.saving:.2%}",
        interval,
        *(
            _number(one.figures[name], digits)
            for name, digits in (
                ("slowdown_p95_performance", 3),
                ("slowdown_p95_standard", 3),
                ("wait_p95_s", 0),
                ("unfinished", 0),
            )
        ),
    )


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
