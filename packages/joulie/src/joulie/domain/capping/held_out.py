"""The holdout of one job: windows at random without the limit that it is held at, which say what that limit saves.

A window counts where chance said, before it began, whether the job has its limit. Those of the search do not, nor does
one in which the job changed by more than a limit could: with or without one, the same windows are left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from joulie.domain.capping.choice import Hold, Trial
from joulie.domain.capping.trials import PHASE_CHANGE, Window, findings
from joulie.domain.quantities import finite_number
from joulie.domain.trial.holdout import MAX_UNITS, NO_EVIDENCE, Effect, Evidence, Expected, Interval, left_out

NOT_PAYING = "it has stopped paying"
_SHARE_MAX = 0.5


@dataclass(frozen=True)
class Holdout:
    """What is left alone, and what follows from it.

    Attributes:
        share: probability with which a window is left alone; 0 for no holdout.
        least_saving: saving, as a share of the energy per unit of work, that a limit must still be able to have: one
            whose interval is below it has stopped paying.
        withdraws: whether such a limit is withdrawn, not only reported.
    """

    share: float = 0.0
    least_saving: float = 0.0
    withdraws: bool = False

    def __post_init__(self) -> None:
        finite_number("share", self.share, minimum=0.0, maximum=_SHARE_MAX)
        finite_number("least_saving", self.least_saving, minimum=0.0, maximum=1.0)


NO_HOLDOUT = Holdout()


@dataclass(frozen=True)
class HeldOut:
    """The holdout of one job, between two windows.

    Attributes:
        drawn: whether the window now is left alone; None where chance has not said so: it does not count.
        limit_w: the limit that is held, W.
        natural_w: power of a GPU without it, W: what a window weighs against those of other jobs.
        expected: energy per unit of work that is expected, in logarithms.
        evidence: what the windows say of the limits that it was held at, of the last `MAX_UNITS` windows at most.
        past: what those before them said.
        latest: what the last window said; None where it did not count.
    """

    drawn: bool | None = None
    limit_w: float = 0.0
    natural_w: float = 0.0
    expected: Expected | None = None
    evidence: Evidence = NO_EVIDENCE
    past: Evidence | None = None
    latest: Effect | None = None

    @property
    def known(self) -> Evidence:
        """The evidence to show: the present one, or the one before it while this is too little."""
        return self.evidence if self.past is None or self.evidence.bounds is not None else self.past

    @property
    def interval(self) -> Interval | None:
        """What the limit saves; None while it is not known."""
        return self.known.interval

    def stopped_paying(self, holdout: Holdout) -> bool:
        """Whether the limit surely saves less than it must."""
        found = self.interval
        return found is not None and found.high < holdout.least_saving

    def measured(self, window: Window, holdout: Holdout) -> HeldOut:
        """The state after a window."""
        if self.drawn is None or self.expected is None or window.progress_per_s is None:
            return replace(self, drawn=None, latest=None)
        outcome = math.log(window.power_w / window.progress_per_s)
        surprise = self.expected.surprise(outcome, left_out=self.drawn)
        if abs(surprise) > PHASE_CHANGE:
            return replace(self, drawn=None, expected=self.expected.shifted(surprise), latest=None)
        effect = self.expected.effect(outcome, holdout.share, left_out=self.drawn, weight=self.natural_w)
        begun = replace(self, past=self.evidence, evidence=NO_EVIDENCE) if self.evidence.units >= MAX_UNITS else self
        return replace(
            begun,
            drawn=None,
            expected=self.expected.learned(outcome, left_out=self.drawn),
            evidence=begun.evidence.added(effect),
            latest=effect,
        )

    def drawn_for(
        self, step: Trial | Hold, windows: Sequence[Window], baseline_w: float, unit: str, holdout: Holdout
    ) -> HeldOut:
        """The state with the next window drawn, where a limit is held whose energy and that without it are known.

        Args:
            step: what the search says.
            windows: of the job, in order.
            baseline_w: its own limit, W.
            unit: name of the next window, which no other has.
            holdout: what is left alone.
        """
        if not holdout.share or not isinstance(step, Hold) or step.limit_w >= baseline_w:
            return replace(self, drawn=None)
        begun = self
        if self.expected is None or self.limit_w != step.limit_w:
            levels = findings(windows, baseline_w).levels
            held, own = levels.get(step.limit_w), levels.get(baseline_w)
            if held is None or own is None:
                return replace(self, drawn=None)
            expected = Expected(held.log_energy, own.log_energy, held.windows, own.windows)
            begun = replace(self, limit_w=step.limit_w, natural_w=math.exp(own.log_power), expected=expected)
        return replace(begun, drawn=left_out(unit, holdout.share))


NOT_HELD_OUT = HeldOut()
"""Of a job that no window has been drawn for."""
