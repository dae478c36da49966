"""Reads the files of a backtest, draws its jobs, and judges the rules on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich.console import Console
from rich.progress import Progress, TaskID

from joulie.adapters.grid.feed import FeedLimits
from joulie.adapters.grid.files import FileOptions, read_table
from joulie.adapters.grid.zone import forecast_step_s
from joulie.domain.grid.forecast import DAY_S
from joulie.domain.grid.series import Series
from joulie.domain.grid.signals import Measure
from joulie.domain.units import FloatArray
from joulie.ports.grid import GridSourceError
from joulie.program.errors import UserError
from joulie_lab.adapters.published import pai_jobs as traces
from joulie_lab.adapters.published.errors import PublishedDataError
from joulie_lab.apps.backtest import judge
from joulie_lab.apps.backtest.history import FORECASTERS, Gaps, History, parts
from joulie_lab.apps.backtest.judge import Jobs, MeasureFigures, Outcome

WARM_UP_DAYS = 14
"""Days at the start of each part of a history in which no job arrives: the forecaster needs some to learn from."""
_HOUR_S = 3600.0
_SHOWN_LINES = 3
_SHOWN_ZONES = 20
_LIMITS = FeedLimits()


@dataclass(frozen=True)
class Question:
    """What is asked.

    Attributes:
        runtime_s: of jobs without a trace, s.
        slack_s: how long a job may wait, s.
        delay_s: how long after the start of its step a value is known, s.
        arrivals: number of jobs, drawn at random; None for one at each step, or all of a trace.
        seed: of arrivals and intervals.
    """

    runtime_s: float
    slack_s: float
    delay_s: float
    arrivals: int | None
    seed: int


@dataclass(frozen=True)
class Source:
    """What was read of one measure.

    Attributes:
        file: name of the file.
        zone: of the values.
        column: header of the values.
        parts: the history between long gaps.
        gaps: missing steps.
        step_s: step of forecasts, s.
        invalid_lines: what is wrong with the lines that were left out.
        repeated_lines: number of lines that repeat the time of an earlier one.
    """

    file: str
    zone: str
    column: str
    parts: Sequence[Series]
    gaps: Gaps
    step_s: float
    invalid_lines: Sequence[str]
    repeated_lines: int

    def notes(self) -> Iterator[str]:
        """What readers of the figures should know of the file."""
        if self.invalid_lines:
            shown = "; ".join(self.invalid_lines[:_SHOWN_LINES])
            yield f"{self.file}: left out as invalid: {_lines(len(self.invalid_lines))}: {shown}"
        if self.repeated_lines:
            yield f"{self.file}: {_lines(self.repeated_lines)} with the time of an earlier one; the last one counts"
        if self.gaps.filled_h:
            yield f"{self.file}: {self.gaps.filled_h:g} h are missing in gaps of up to 6 h; the value before lasts"
        if self.gaps.left_out_h:
            yield f"{self.file}: {self.gaps.left_out_h:g} h are missing in longer gaps; the history begins again there"


@dataclass(frozen=True)
class Result:
    """The result.

    Attributes:
        question: what was asked.
        sources: by measure.
        arrivals: how jobs arrive, in words.
        figures: what rules save, by measure.
        outcomes: of all jobs, by measure.
        notes: what readers should know.
    """

    question: Question
    sources: Mapping[Measure, Source]
    arrivals: str
    figures: Mapping[Measure, MeasureFigures]
    outcomes: Mapping[Measure, Outcome]
    notes: Sequence[str]

    def document(self) -> dict[str, Any]:
        """Plain JSON values."""
        source, carbon = self.sources[Measure.CARBON], msgspec.to_builtins(self.figures[Measure.CARBON])
        found = {
            "zone": source.zone,
            "file": source.file,
            "column": source.column,
            "from": _date(source.parts[0].start_s),
            "until": _date(source.parts[-1].end_s),
            "step_min": source.step_s / 60.0,
            "delay_h": self.question.delay_s / _HOUR_S,
            "slack_h": self.question.slack_s / _HOUR_S,
            "arrivals": self.arrivals,
            "mean_g_per_kwh": carbon.pop("mean"),
            **carbon,
            "interval_of": f"the share; 95 %, {carbon['weeks']} weeks resampled"
            if carbon["weeks"] >= judge.MIN_WEEKS
            else f"the share; none, since jobs arrive in fewer than {judge.MIN_WEEKS} weeks",
            "notes": list(self.notes),
        }
        if Measure.PRICE in self.figures:
            price = msgspec.to_builtins(self.figures[Measure.PRICE])
            column = self.sources[Measure.PRICE].column
            found["price"] = {"column": column, "mean_per_kwh": price.pop("mean"), **price}
        return found


def read(path: Path, measure: Measure, options: FileOptions, zone: str) -> Source:
    """Read the history of one measure.

    Args:
        path: the file.
        measure: carbon or price.
        options: format of the file.
        zone: of a file with several.

    Raises:
        UserError: the file cannot be read, or has several zones and not this one.
    """
    try:
        table = read_table(path, options, measure)
    except GridSourceError as error:
        raise UserError(str(error)) from error
    zones = list(table.zones)
    if len(zones) > 1 and zone.casefold() not in zones:
        raise UserError(f"{path}: has several zones: choose one with --zone: {', '.join(zones[:_SHOWN_ZONES])}")
    name = zone.casefold() if zone.casefold() in zones else zones[0]
    found = table.zones[name]
    step_s = forecast_step_s(found.series)
    whole, gaps = parts(found.series, max(step_s, found.step_s))
    return Source(path.name, name or zone, table.column, whole, gaps, step_s, table.invalid_lines, table.repeated)


def run(sources: Mapping[Measure, Source], jobs_file: Path | None, question: Question) -> Result:
    """Run a backtest, with progress on stderr.

    Args:
        sources: history of each measure.
        jobs_file: job trace; None for jobs of one length.
        question: what is asked.

    Raises:
        UserError: the history is too short, or the trace cannot be read.
    """
    step_s = min(source.step_s for source in sources.values())
    covered = _common([source.parts for source in sources.values()])
    drawn, arrivals = _draw(covered, step_s, question, jobs_file)
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bars:
        outcomes = [
            _play(dict(zip(sources, part, strict=True)), jobs, step_s, question, bars)
            for part, jobs in zip(covered, drawn, strict=True)
            if len(jobs)
        ]
    whole = {measure: judge.joined([one[measure] for one in outcomes]) for measure in sources}
    return Result(
        question,
        sources,
        arrivals,
        {measure: judge.figures(outcome, _mean(sources[measure]), question.seed) for measure, outcome in whole.items()},
        whole,
        [note for source in sources.values() for note in source.notes()],
    )


def _play(
    part: Mapping[Measure, Series], jobs: Jobs, step_s: float, question: Question, bars: Progress
) -> dict[Measure, Outcome]:
    """What every rule does with the jobs of one part of the history."""
    delay = int(np.ceil(question.delay_s / step_s - 1e-9))
    horizon = round(max(_LIMITS.horizon_s, question.slack_s + question.runtime_s) / step_s)
    # A source that is always late needs a higher limit of age, else its signal is missing and holds no job.
    max_age_s = max(_LIMITS.max_age_s, question.delay_s)
    histories = {
        measure: History(measure, series, step_s, delay, horizon, max_age_s) for measure, series in part.items()
    }
    bar = _stage(bars, "forecasts", len(FORECASTERS) * len(histories))
    for history in histories.values():
        for forecaster in FORECASTERS:
            history.expect(forecaster)
            bars.advance(bar)
    at_once = {
        measure: judge.run_means(history, jobs.arrival_s, jobs.runtime_s) for measure, history in histories.items()
    }
    best = {measure: judge.best_means(history, jobs, question.slack_s) for measure, history in histories.items()}
    means: dict[Measure, dict[str, FloatArray]] = {measure: {} for measure in histories}
    late: dict[Measure, dict[str, int]] = {measure: {} for measure in histories}
    for rule in judge.rules_of(list(part)):
        bar = _stage(bars, rule.name, len(jobs))
        starts_s = judge.starts_s(rule, jobs, question.slack_s, histories, partial(bars.advance, bar))
        for measure in rule.judged_on:
            means[measure][rule.name] = judge.run_means(histories[measure], starts_s, jobs.runtime_s)
            late[measure][rule.name] = int((starts_s > jobs.arrival_s + question.slack_s).sum())
    return {
        measure: Outcome(jobs, at_once[measure], best[measure], means[measure], late[measure]) for measure in histories
    }


def _stage(bars: Progress, name: str, total: int) -> TaskID:
    """Show a stage: a bar on a terminal, else a line."""
    if bars.disable:
        bars.console.print(name, highlight=False)
    return bars.add_task(name, total=total)


def _common(histories: Sequence[Sequence[Series]]) -> list[tuple[Series, ...]]:
    """The parts that all histories cover, each from a midnight in UTC."""
    common: list[tuple[Series, ...]] = [()]
    for history in histories:
        common = [cut for before in common for part in history if (cut := _cut(before, part)) is not None]
    return common


def _cut(before: tuple[Series, ...], part: Series) -> tuple[Series, ...] | None:
    every = (*before, part)
    from_s, until_s = max(one.start_s for one in every), min(one.end_s for one in every)
    found = [one.between(from_s, until_s) for one in every]
    return None if None in found else tuple(one for one in found if one is not None)


def _draw(
    covered: Sequence[tuple[Series, ...]], step_s: float, question: Question, jobs_file: Path | None
) -> tuple[list[Jobs], str]:
    """Jobs of each part of the history, whose waits and runs it covers, and how they arrive, in words."""
    rng = np.random.default_rng(question.seed)
    first_s = [part[0].start_s + WARM_UP_DAYS * DAY_S for part in covered]
    last_s = [part[0].end_s - question.slack_s for part in covered]
    if jobs_file is None:
        steps = np.concatenate(
            [
                np.arange(from_s, until_s - question.runtime_s + 1e-3, step_s)
                for from_s, until_s in zip(first_s, last_s, strict=True)
            ]
            or [np.empty(0)]
        )
        if not steps.size:
            raise UserError(_too_short(question))
        arrival_s = steps if question.arrivals is None else np.sort(rng.choice(steps, question.arrivals))
        runtime_s = np.full(len(arrival_s), question.runtime_s)
        weight = np.ones(len(arrival_s))
        when = "one at each step" if question.arrivals is None else "at random steps"
        described = f"{len(arrival_s)} jobs of {question.runtime_s / _HOUR_S:g} h, {when}"
    else:
        # Jobs arrive and run for whole steps, rounded up.
        arrival_h, length_h, weight = _traced(jobs_file).T
        arrival_s = min(first_s, default=0.0) + step_s * np.ceil(arrival_h * _HOUR_S / step_s - 1e-9)
        runtime_s = step_s * np.maximum(np.ceil(length_h * _HOUR_S / step_s - 1e-9), 1.0)
        fits = np.any(
            [
                (arrival_s >= from_s) & (arrival_s + runtime_s <= until_s)
                for from_s, until_s in zip(first_s, last_s, strict=True)
            ],
            axis=0,
        )
        chosen = np.flatnonzero(fits)
        if not chosen.size:
            raise UserError(_too_short(question))
        if question.arrivals is not None and question.arrivals < chosen.size:
            chosen = np.sort(rng.choice(chosen, question.arrivals, replace=False))
        arrival_s, runtime_s, weight = arrival_s[chosen], runtime_s[chosen], weight[chosen]
        described = f"{chosen.size} of the {int(np.sum(fits))} jobs of {jobs_file.name} that the history covers"
    jobs = Jobs(arrival_s, runtime_s, weight)
    place = np.searchsorted(first_s, arrival_s, side="right") - 1
    return [jobs.only(np.flatnonzero(place == part)) for part in range(len(covered))], described


def _lines(count: int) -> str:
    return "1 line" if count == 1 else f"{count} lines"


def _too_short(question: Question) -> str:
    days = WARM_UP_DAYS + 1 + (question.slack_s + question.runtime_s) / DAY_S
    return f"the history is too short: it needs about {days:.0f} days without gaps of more than 6 h"


def _traced(path: Path) -> FloatArray:
    try:
        with path.open(encoding="utf-8-sig") as lines:
            return traces.read_rows(lines)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: {error}") from error
    except PublishedDataError as error:
        raise UserError(f"{path}: {error}") from error


def _mean(source: Source) -> float:
    seconds = sum(part.end_s - part.start_s for part in source.parts)
    return float(sum(part.integral(part.start_s, part.end_s) for part in source.parts)) / seconds


def _date(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="minutes").removesuffix("+00:00") + "Z"
