"""Frequency limits of the host's CPUs: the fallback where their power cannot be limited.

Original limits are saved before the first write, and forgotten once they are restored.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from joulie.apps.agent.originals import OriginalLimits
from joulie.apps.agent.outcome import Enforcement
from joulie.domain.dvfs import DvfsSettings, frequency_limit_hz, throttle_of_limit_pct
from joulie.ports import ControlFailedError, ControlRefusedError, FrequencyLimiter, FrequencyPolicy

_log = logging.getLogger(__name__)

BACKEND = "dvfs"
_DRIFT_TOLERANCE = 0.01


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
        self._simulate_only = simulate_only
        # By policy: the limit written and the limit read back, Hz. Drivers round to their own steps, so drift is
        # measured from the value read back.
        self._settled: dict[str, tuple[float, float]] = {}

    @property
    def has_saved_limits(self) -> bool:
        """Whether limits are in force that Joulie wrote, in this process or an earlier one."""
        return bool(self._originals.for_backend(BACKEND))

    def throttle_in_force_pct(self) -> float:
        """Maximum throttle over the policies that an earlier process limited, percent; 0 without any."""
        held = self._originals.for_backend(BACKEND)
        policies = [policy for policy in self.limiter.policies() if policy.id in held] if held else []
        shares = [throttle_of_limit_pct(policy.limit_hz, policy.min_hz, policy.max_hz) for policy in policies]
        return max(shares, default=0.0)

    def apply(self, throttle_pct: float) -> Enforcement:
        """Throttle all policies by a percentage; limits never exceed the original ones."""
        done = Enforcement()
        policies = self.limiter.policies()
        held = self._originals.for_backend(BACKEND)
        targets = {
            policy.id: min(self._target_hz(policy, throttle_pct), held.get(policy.id, policy.limit_hz))
            for policy in policies
        }
        if self._simulate_only:
            done.in_force_w = targets
            return done
        found = {policy.id: policy.limit_hz for policy in policies if policy.id not in held}
        try:
            self._originals.remember(BACKEND, found)
        except OSError as error:
            reason = f"limits not changed: the original limits could not be saved: {error}"
            done.failed = dict.fromkeys(targets, reason)
            return done
        for policy in policies:
            self._apply_to_policy(policy, targets[policy.id], done)
        return done

    def release(self) -> Mapping[str, str]:
        """Restore the original limits and forget them; returns the problems by policy."""
        held = self._originals.for_backend(BACKEND)
        if held and self._simulate_only:
            return dict.fromkeys(held, "SIMULATE_ONLY: nothing is written")
        done = Enforcement()
        policies = {policy.id: policy for policy in self.limiter.policies()} if held else {}
        for name, limit_hz in held.items():
            if name not in policies:
                done.failed[name] = "its CPUs are offline; the original limit remains saved"
                continue
            self._apply_to_policy(policies[name], limit_hz, done)
            if name in done.in_force_w:
                self._forget(name, done)
        self._settled.clear()
        if held and not done.problems:
            _log.info("original frequency limits restored", extra={"policies": len(held)})
        return done.problems

    def _target_hz(self, policy: FrequencyPolicy, throttle_pct: float) -> float:
        return frequency_limit_hz(throttle_pct, policy.min_hz, policy.max_hz, self._settings.min_frequency_hz)

    def _apply_to_policy(self, policy: FrequencyPolicy, target_hz: float, done: Enforcement) -> None:
        settled = self._settled.get(policy.id)
        expected_hz = settled[1] if settled and settled[0] == target_hz else target_hz
        if abs(policy.limit_hz - expected_hz) <= _DRIFT_TOLERANCE * expected_hz:
            done.in_force_w[policy.id] = policy.limit_hz
            return
        try:
            in_force_hz = self.limiter.set_limit(policy.id, target_hz)
        except ControlRefusedError as error:
            done.refused[policy.id] = str(error)
        except ControlFailedError as error:
            done.failed[policy.id] = str(error)
        else:
            done.in_force_w[policy.id] = in_force_hz
            self._settled[policy.id] = (target_hz, in_force_hz)

    def _forget(self, policy_id: str, done: Enforcement) -> None:
        try:
            self._originals.forget(BACKEND, policy_id)
        except OSError as error:
            done.failed[policy_id] = f"restored, but the saved limit could not be deleted: {error}"
