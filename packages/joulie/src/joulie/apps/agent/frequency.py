"""Frequency limits of the host's CPUs: the fallback where their power cannot be limited.

Original limits are saved before the first write, and forgotten once they are restored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from joulie.apps.agent.backend_limits import BackendLimits, one_by_one
from joulie.apps.agent.originals import OriginalLimits
from joulie.apps.agent.outcome import Enforcement
from joulie.domain.dvfs import DvfsSettings, frequency_limit_hz, possible_throttles_pct, throttle_of_limit_pct
from joulie.domain.limit_records import FoundLimit, usable_limit
from joulie.ports.devices import FrequencyLimiter, FrequencyPolicy

BACKEND = "dvfs"
_HZ_PER_KHZ = 1e3
_TOLERANCE = 0.01
"""Relative difference of two frequency limits that count as one: drivers without a table may round."""


class FrequencyWriter:
    """Writes frequency limits to all cpufreq policies.

    Args:
        limiter: access to the policies.
        originals: store of the original limits.
        settings: settings of the frequency controller, with the minimum frequency.
        simulate_only: compute limits, but write none.
    """

    def __init__(
        self,
        limiter: FrequencyLimiter,
        originals: OriginalLimits,
        settings: DvfsSettings,
        *,
        simulate_only: bool = False,
    ) -> None:
        self.limiter = limiter
        self._originals = originals
        self._settings = settings
        self._limits = BackendLimits(
            BACKEND, one_by_one(limiter.set_limit), originals, same_frequency, simulate_only=simulate_only
        )
        # Listed since the last write: hundreds of policies are read once a cycle.
        self._listed: Sequence[FrequencyPolicy] | None = None
        self._possible: dict[tuple[float, float], tuple[float, ...]] = {}

    @property
    def may_hold_limits(self) -> bool:
        """Whether limits may be in force that Joulie wrote, in this process or an earlier one."""
        return self._limits.may_hold_limits

    def policies(self) -> Sequence[FrequencyPolicy]:
        """List the policies; the next write relies on this listing."""
        self._listed = self.limiter.policies()
        return self._listed

    def throttle_in_force_pct(self) -> float:
        """Maximum throttle over the policies that an earlier process limited, percent; 0 without any."""
        held = self._originals.for_backend(BACKEND)
        policies = [policy for policy in self.limiter.policies() if policy.id in held] if held else []
        shares = [throttle_of_limit_pct(policy.limit_hz, policy.min_hz, policy.max_hz) for policy in policies]
        return max(shares, default=0.0)

    def apply(self, throttle_pct: float) -> Enforcement:
        """Throttle all policies by a percentage; limits never exceed the original ones."""
        policies = self._take_listed()
        wanted_hz = {policy.id: self._target_hz(policy, throttle_pct) for policy in policies}
        return self._limits.enforce([self._found(policy, throttle_pct) for policy in policies], wanted_hz)

    def release(self) -> Mapping[str, str]:
        """Restore the original limits and forget them; returns the problems by policy."""
        return self._limits.restore(lambda: [self._found(policy) for policy in self._take_listed()])

    def _found(self, policy: FrequencyPolicy, *throttles_pct: float) -> FoundLimit:
        candidates = tuple(self._target_hz(policy, throttle_pct) for throttle_pct in throttles_pct)
        if self._originals.may_lack_records(BACKEND):
            candidates += self._exactly_written_hz(policy)
        return FoundLimit(policy.id, usable_limit(policy.limit_hz), policy.max_hz, candidates)

    def _exactly_written_hz(self, policy: FrequencyPolicy) -> tuple[float, ...]:
        """The limit in force if a controller may have set it: to the kHz, since its throttles are close to each other.

        A driver with a table rounds them down to one of few limits.

        Possible limits are computed once for policies of one range, of which there are many.
        """
        if policy.limit_hz in policy.steps_hz:
            return (policy.limit_hz,)
        span = (policy.min_hz, policy.max_hz)
        if span not in self._possible:
            throttles_pct = possible_throttles_pct(self._settings)
            self._possible[span] = tuple(self._target_hz(policy, throttle_pct) for throttle_pct in throttles_pct)
        return tuple(hz for hz in self._possible[span] if abs(hz - policy.limit_hz) <= _HZ_PER_KHZ)

    def _target_hz(self, policy: FrequencyPolicy, throttle_pct: float) -> float:
        floor_hz = self._settings.min_frequency_hz
        return frequency_limit_hz(throttle_pct, policy.min_hz, policy.max_hz, floor_hz, policy.steps_hz)

    def _take_listed(self) -> Sequence[FrequencyPolicy]:
        listed, self._listed = self._listed, None
        return self.limiter.policies() if listed is None else listed


def same_frequency(one_hz: float, other_hz: float) -> bool:
    """Whether two frequency limits are equal up to the rounding of drivers."""
    return abs(one_hz - other_hz) <= _TOLERANCE * max(one_hz, other_hz)
