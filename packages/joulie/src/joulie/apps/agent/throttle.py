"""Throttling of CPUs to a power cap: when frequencies go down, and how far; for host and HTTP backends alike."""

from __future__ import annotations

from joulie.domain.actuation import WantedCap
from joulie.domain.dvfs import DvfsSettings, DvfsState, open_loop_throttle_pct, step
from joulie.domain.hardware import CapRange


class Throttle:
    """The throttle of one node.

    Attributes:
        state: the controller's memory; its throttle is the one in force.
    """

    def __init__(self, settings: DvfsSettings, throttle_pct: float = 0.0) -> None:
        self.settings = settings
        self.state = DvfsState(throttle_pct=throttle_pct)

    def wanted_pct(
        self,
        cap: WantedCap,
        limits: CapRange | None,
        packages: int,
        power_w: float | None,
        now_s: float,
        *,
        measured: bool,
    ) -> float | None:
        """The throttle for a cap, percent; None where neither power nor a base tells.

        Args:
            cap: cap of each package.
            limits: range of one package.
            packages: number of packages.
            power_w: power of all packages now, W; None where this cycle has no sample.
            now_s: monotonic time, s.
            measured: whether power can be measured here at all; a missing sample then changes nothing.
        """
        cap_w = cap.in_watts(limits)
        if measured and cap_w is not None:
            self.state = step(self.state, power_w, cap_w * packages, now_s, self.settings)
            return self.state.throttle_pct
        percent = cap.in_percent(limits)
        if percent is None:
            return None
        self.state = DvfsState(throttle_pct=open_loop_throttle_pct(percent))
        return self.state.throttle_pct

    def release(self) -> None:
        """Forget everything: nothing is throttled."""
        self.state = DvfsState()
