"""The page of a trial: one self-contained file without scripts, which begins with the saving and its interval."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from joulie import __version__
from joulie.adapters.kubernetes.times import rfc3339
from joulie.domain.trial.estimate import Contrast
from joulie_lab.apps.trial.result import TrialReport, saving_words
from joulie_lab.apps.trial.workloads import ARM_COLUMNS, COLUMNS, WorkloadReport

_LEFT, _WIDTH, _TOP, _HEIGHT = 60.0, 920.0, 20.0, 220.0
_TICKS = 5


class _Point(NamedTuple):
    x: str
    y: str
    kind: str
    title: str


@dataclass(frozen=True)
class _Plot:
    """Positions in the drawing, and texts of its axis."""

    points: Sequence[_Point]
    ticks: Sequence[tuple[str, str]]
    zero: str
    estimate: str
    interval: tuple[str, str] | None


def render(report: TrialReport) -> str:
    """Render the page."""
    whole = report.result.whole
    return _template("trial.html").render(
        version=__version__,
        name=report.name,
        report=report,
        whole="" if report.refused or whole is None else saving_words(whole),
        plot=_plot(report),
        rows=list(_rows(report)),
    )


def render_workloads(report: WorkloadReport) -> str:
    """Render the page of a trial of deferral."""
    return _template("trial_workloads.html").render(
        version=__version__,
        report=report,
        start=rfc3339(report.protocol.start_s),
        end=rfc3339(report.protocol.end_s),
        arm_columns=[one.capitalize() for one in ARM_COLUMNS],
        columns=[one.capitalize() for one in COLUMNS],
    )


def _template(name: str) -> Template:
    environment = Environment(
        loader=PackageLoader("joulie_lab.simulation.report"), autoescape=True, undefined=StrictUndefined
    )
    return environment.get_template(name)


def _saved(one: Contrast) -> float | None:
    return None if one.log_ratio is None else -math.expm1(one.log_ratio)


def _plot(report: TrialReport) -> _Plot:
    contrasts, saving = report.result.contrasts, report.saving
    interval = None if saving is None or saving.low is None or saving.high is None else (saving.low, saving.high)
    shown = [value for one in contrasts if (value := _saved(one)) is not None]
    low, high = min(0.0, *shown, *(interval or ()), 0.0), max(0.01, *shown, *(interval or ()), 0.01)

    def y(value: float) -> float:
        return _TOP + _HEIGHT * (high - value) / (high - low)

    points = [
        _Point(
            f"{_LEFT + _WIDTH * (one.pair + 0.5) / len(contrasts):.1f}",
            f"{y(value):.1f}",
            "whole" if one.whole else "half",
            f"pair {one.pair + 1}: {value:+.2%}",
        )
        for one in contrasts
        if (value := _saved(one)) is not None
    ]
    ticks = [low + (high - low) * place / (_TICKS - 1) for place in range(_TICKS)]
    return _Plot(
        points,
        [(f"{y(value) + 4:.1f}", f"{value:.1%}") for value in ticks],
        f"{y(0.0):.1f}",
        "" if saving is None else f"{y(saving.saved):.1f}",
        None if interval is None else (f"{y(interval[1]):.1f}", f"{y(interval[0]) - y(interval[1]):.1f}"),
    )


def _rows(report: TrialReport) -> Iterator[Sequence[str]]:
    starts = list(report.protocol.blocks())[::2]
    for one, block in zip(report.result.contrasts, starts, strict=True):
        saved = _saved(one)
        yield (
            str(one.pair + 1),
            rfc3339(block.start_s),
            block.treated.value,
            "–" if saved is None else f"{saved:+.2%}",
            str(one.nodes),
            one.why_not,
        )
