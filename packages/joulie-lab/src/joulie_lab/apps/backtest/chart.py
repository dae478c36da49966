"""Draws a backtest: each rule's share of the oracle's saving, and what is saved week by week."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
from matplotlib.figure import Figure

from joulie.domain.grid.signals import Measure
from joulie_lab.apps.backtest.history import JOULIE, YESTERDAY
from joulie_lab.apps.backtest.judge import WEEK_S
from joulie_lab.apps.backtest.run import Result
from joulie_lab.simulation.report.charts import PALETTE
from joulie_lab.simulation.report.png import canvas

_SHOWN = (JOULIE, YESTERDAY)


def draw(result: Result) -> Figure:
    """Draw the carbon of a backtest."""
    figure = canvas(11.0, 4.5)
    shares, weeks = figure.subplots(1, 2)
    rules = result.figures[Measure.CARBON].rules
    for place, rule in enumerate(rules.values()):
        if rule.share is None:
            continue
        low, high = rule.interval or (rule.share, rule.share)
        around = [[100.0 * (rule.share - low)], [100.0 * (high - rule.share)]]
        shares.barh(place, 100.0 * rule.share, xerr=around, color=PALETTE[place % len(PALETTE)], capsize=3)
        shares.text(1.0, place, f"{100.0 * rule.share:.1f}", va="center", color="white")
    shares.set_yticks(range(len(rules)), list(rules))
    shares.invert_yaxis()
    shares.set_xlabel("%, with the 95 % confidence interval")
    shares.set_title("Saved of what the oracle saves", loc="left", fontweight="bold", fontsize="medium")
    outcome = result.outcomes[Measure.CARBON]
    week = (outcome.jobs.arrival_s // WEEK_S).astype(np.int64)
    days = [datetime.fromtimestamp(WEEK_S * one, UTC) for one in np.unique(week)]
    energy = outcome.jobs.weight * outcome.jobs.runtime_s
    for name, means in {"oracle": outcome.best, **{rule: outcome.by_rule[rule] for rule in _SHOWN}}.items():
        saved = [
            100.0 * (1.0 - (energy * means)[week == one].sum() / (energy * outcome.at_once)[week == one].sum())
            for one in np.unique(week)
        ]
        color = "black" if name == "oracle" else PALETTE[list(rules).index(name)]
        weeks.plot(days, saved, color=color, linewidth=1.2, label=name)
    weeks.legend(frameon=False, fontsize="small")
    weeks.set_title("Saved by week of arrival, %", loc="left", fontweight="bold", fontsize="medium")
    for axes in (shares, weeks):
        axes.grid(alpha=0.3, axis="x" if axes is shares else "both")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    return figure
