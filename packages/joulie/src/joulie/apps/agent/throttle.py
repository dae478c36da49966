"""CPU throttle that holds a power cap by frequency, for host and HTTP backends alike.

A frequency limit holds a cap only as far as power shows it. So the throttle is confirmed by measured power; without a
reading it is a fixed share of the frequency range, which is safe as far as anything is without one, and said to be
unconfirmed.
"""

from __future__ import annotations

from dataclasses import dataclass

from joulie.adapters.kubernetes.api.v1alpha1 import ControlOutcome
from joulie.domain.actuation import WantedCap
from joulie.domain.dvfs import DvfsSettings, DvfsState, open_loop_throttle_pct, step
from joulie.domain.hardware import CapRange

MISSING_READINGS = 2
"""Readings in a row that may be missing before the throttle no longer follows measured power."""

_TOLERATED_SHARE = 0.03
_FULL_PERCENT = 100.0


@dataclass(frozen=True)
class Throttling:
    """A throttle, and what is known of its effect.

    Attributes:
        throttle_pct: 0 (the highest frequency) to 100 %.
        result: applied if measured power is within the cap, unconfirmed without that, error if readings are lost.
        how: how the frequency is limited; constant while nothing changes.
    """

    throttle_pct: float
    result: ControlOutcome
    how: str


@dataclass(frozen=True)
class PowerReading:
    """Power of all packages in one cycle, as the frequency controller needs it.

    Attributes:
        power_w: W; None if this cycle has no sample.
        measured: whether power can be measured on this node at all.
        problem: why there is no sample; constant while nothing changes.
    """

    power_w: float | None
    measured: bool
    problem: str = ""


class Throttle:
    """CPU throttle of one node.

    Attributes:
        settings: settings of the frequency controller.
        state: state of the frequency controller, including the throttle in force.
    """

    def __init__(self, settings: DvfsSettings, throttle_pct: float = 0.0) -> None:
        self.settings = settings
        self.state = DvfsState(throttle_pct=throttle_pct)
        self._cap_w: float | None = None
        self._missing = 0
        self._within_cap = False

    def hold(
        self, cap: WantedCap, limits: CapRange | None, packages: int, reading: PowerReading, now_s: float
    ) -> Throttling | None:
        """Throttle for a cap; None if it can be derived neither from power nor from a cap range.

        Args:
            cap: cap of each package.
            limits: cap range of one package; None if unknown.
            packages: number of packages.
            reading: power of all packages.
            now_s: monotonic time, s.
        """
        cap_w = cap.in_watts(limits)
        if not reading.measured or cap_w is None:
            unknown = "the CPU's maximum power is unknown" if reading.measured else "power cannot be measured"
            return self._open_loop(cap, limits, ControlOutcome.UNCONFIRMED, f"by a fixed share, since {unknown}")
        if cap_w * packages != self._cap_w:
            self._cap_w, self._within_cap = cap_w * packages, False
        if reading.power_w is None:
            return self._without_reading(cap, limits, reading.problem)
        self._missing = 0
        self.state = step(self.state, reading.power_w, self._cap_w, now_s, self.settings)
        self._judge(reading.power_w, self._cap_w)
        return self._measured()

    def release(self) -> None:
        """Reset the controller to an unthrottled state."""
        self.state = DvfsState()
        self._cap_w, self._missing, self._within_cap = None, 0, False

    def _judge(self, power_w: float, cap_w: float) -> None:
        """Decide whether measured power is within the cap; noise around it changes nothing."""
        most_w = cap_w + min(self.settings.high_margin_w, _TOLERATED_SHARE * cap_w)
        # Smoothed power follows a load that has just risen too late to confirm a cap.
        if self.state.ema_w is not None and max(self.state.ema_w, power_w) <= most_w:
            self._within_cap = True
        elif self.state.above >= self.settings.trip_count or self.state.action is not None:
            self._within_cap = False

    def _measured(self) -> Throttling:
        throttle_pct = self.state.throttle_pct
        if self._within_cap:
            return Throttling(throttle_pct, ControlOutcome.APPLIED, "by measured power")
        if throttle_pct >= _FULL_PERCENT:
            how = "to its minimum, and measured power is still above the cap"
        else:
            how = "by measured power, which is not within the cap yet"
        return Throttling(throttle_pct, ControlOutcome.UNCONFIRMED, how)

    def _without_reading(self, cap: WantedCap, limits: CapRange | None, problem: str) -> Throttling:
        """The throttle stays for a reading or two; then it is at least a fixed share."""
        self._missing += 1
        self._within_cap = self._within_cap and not self.state.above  # silence confirms nothing
        if self._missing <= MISSING_READINGS:
            if self.state.ema_w is not None:
                return self._measured()
            how = "by measured power, of which there is no reading yet"
            return Throttling(self.state.throttle_pct, ControlOutcome.UNCONFIRMED, how)
        self._within_cap = False
        how = f"by a fixed share, since power cannot be read: {problem or 'no reading'}"
        held_pct = self.state.throttle_pct
        fixed = self._open_loop(cap, limits, ControlOutcome.ERROR, how)
        if fixed is None or fixed.throttle_pct < held_pct:  # never more power than while it was measured
            self.state = DvfsState(throttle_pct=held_pct)
        return Throttling(self.state.throttle_pct, ControlOutcome.ERROR, how)

    def _open_loop(
        self, cap: WantedCap, limits: CapRange | None, result: ControlOutcome, how: str
    ) -> Throttling | None:
        percent = cap.in_percent(limits)
        if percent is None:
            return None
        self.state = DvfsState(throttle_pct=open_loop_throttle_pct(percent))
        return Throttling(self.state.throttle_pct, result, how)
