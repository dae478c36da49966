"""Commands of benchmarks that count how often intervals hold a known truth: their common loop and figure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

from joulie.program.errors import UserError
from joulie_lab.adapters.executors import ExecutorError
from joulie_lab.apps.bench.figures import panels
from joulie_lab.apps.bench.run import tell
from joulie_lab.benchmarks.coverage import Coverage, Work
from joulie_lab.program.parallel import Executor, executed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

T = TypeVar("T")
_SEEDS_A_TASK = 20


def play_settings(
    play: Callable[[Work], tuple[str, list[T]]], settings: Iterable[str], count: int, where: Executor, what: str
) -> dict[str, list[T]]:
    """Play a number of trials of each setting.

    Args:
        play: plays trials of one setting, and returns its name and what they said; workers must be able to import it.
        settings: names of the settings.
        count: number of trials of each; their seeds begin at 0.
        where: where to run.
        what: what one is called: trials.

    Raises:
        UserError: the executor failed.
    """
    names = list(settings)
    work = [
        Work(name, tuple(range(first, min(first + _SEEDS_A_TASK, count))))
        for name in names
        for first in range(0, count, _SEEDS_A_TASK)
    ]
    tell(f"{count} {what} in each of {len(names)} settings")
    found: defaultdict[str, list[T]] = defaultdict(list)
    try:
        for name, some in executed(play, work, where):
            found[name] += some
    except ExecutorError as error:
        raise UserError(str(error)) from error
    return {name: found[name] for name in names}


def coverage_figure(settings: Mapping[str, Coverage]) -> Figure:
    """How often an interval holds the truth, by setting, with two standard errors; 95 % is what it promises."""
    drawn_figure, (axes,) = panels(1)
    for place, one in enumerate(settings.values()):
        error = 2.0 * math.sqrt(one.holds_pct * (100.0 - one.holds_pct) / one.trials)
        axes.errorbar(one.holds_pct, place, xerr=error, fmt="o", color="C0")
    axes.axvline(95.0, linestyle="--", color="grey")
    axes.set_yticks(range(len(settings)), list(settings))
    axes.invert_yaxis()
    axes.set(xlabel="trials whose interval holds the truth, %", xlim=(90.0, 100.0))
    return drawn_figure
