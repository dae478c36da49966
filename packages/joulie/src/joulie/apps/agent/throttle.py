"""CPU throttle that holds a power cap by frequency, for host and HTTP backends alike."""

from __future__ import annotations

from joulie.domain.actuation import WantedCap
from joulie.domain.dvfs import DvfsSettings, DvfsState, open_loop_throttle_pct, step
from joulie.domain.hardware import CapRange


class Throttle:
    """CPU throttle of one node.

    Attributes:
        settings: settings of the frequency controller.
        state: state of the frequency controller, including the throttle in force.
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
        """Throttle for a cap, percent; None if it can be derived neither from power nor from a cap range.

        Args:
            cap: cap of each package.
            limits: cap range of one package; None if unknown.
            packages: number of packages.
            power_w: current total power of all packages, W; None if this cycle has no sample.
            now_s: monotonic time, s.
            measured: whether power can be measured on this node; if so, a missing sample changes nothing.
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
        """Reset the controller to an unthrottled state."""
        self.state = DvfsState()
