"""Frequency limits of a node's own CPUs: the fallback where their power cannot be limited."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from joulie.apps.agent.originals import Originals
from joulie.apps.agent.outcome import Enforcement
from joulie.domain.dvfs import DvfsSettings, frequency_limit_hz, throttle_of_limit_pct
from joulie.ports import ControlFailedError, ControlRefusedError, FrequencyLimiter, FrequencyPolicy

_log = logging.getLogger(__name__)

BACKEND = "dvfs"
_SAME_SHARE = 0.01


class FrequencyWriter:
    """Writes throttles to all cpufreq policies.

    Args:
        limiter: the policies.
        originals: the limits from before Joulie.
        settings: has the floor.
        simulate_only: write nothing.
    """

    def __init__(
        self, limiter: FrequencyLimiter, originals: Originals, settings: DvfsSettings, *, simulate_only: bool = False
    ) -> None:
        self.limiter = limiter
        self._originals = originals
        self._settings = settings
        self._simulate_only = simulate_only
        # Drivers round to their own steps: what was read back after a write is what drift is measured from.
        self._settled: dict[str, tuple[float, float]] = {}

    @property
    def holding(self) -> bool:
        """Whether a throttle is in force, also one of an earlier process."""
        return bool(self._originals.of(BACKEND))

    def throttle_in_force_pct(self) -> float:
        """The deepest throttle that an earlier process left, percent; 0 where none did."""
        held = self._originals.of(BACKEND)
        policies = [policy for policy in self.limiter.policies() if policy.id in held] if held else []
        shares = [throttle_of_limit_pct(policy.limit_hz, policy.min_hz, policy.max_hz) for policy in policies]
        return max(shares, default=0.0)

    def apply(self, throttle_pct: float) -> Enforcement:
        """Bring all policies to a throttle; limits are never raised above the original ones."""
        done = Enforcement()
        policies = self.limiter.policies()
        held = self._originals.of(BACKEND)
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
            reason = f"the original limits could not be saved ({error}), so they are not changed"
            done.failed = dict.fromkeys(targets, reason)
            return done
        for policy in policies:
            self._bring(policy, targets[policy.id], done)
        return done

    def release(self) -> Mapping[str, str]:
        """Put the original limits back and forget them; returns the problems by policy."""
        held = self._originals.of(BACKEND)
        if held and self._simulate_only:
            return dict.fromkeys(held, "SIMULATE_ONLY: nothing is written")
        done = Enforcement()
        policies = {policy.id: policy for policy in self.limiter.policies()} if held else {}
        for name, limit_hz in held.items():
            if name not in policies:
                done.failed[name] = "its CPUs are offline; its original limit stays saved"
                continue
            self._bring(policies[name], limit_hz, done)
            if name in done.in_force_w:
                self._forget(name, done)
        self._settled.clear()
        if held and not done.problems:
            _log.info("original frequency limits restored", extra={"policies": len(held)})
        return done.problems

    def _target_hz(self, policy: FrequencyPolicy, throttle_pct: float) -> float:
        return frequency_limit_hz(throttle_pct, policy.min_hz, policy.max_hz, self._settings.min_frequency_hz)

    def _bring(self, policy: FrequencyPolicy, target_hz: float, done: Enforcement) -> None:
        settled = self._settled.get(policy.id)
        expected_hz = settled[1] if settled and settled[0] == target_hz else target_hz
        if abs(policy.limit_hz - expected_hz) <= _SAME_SHARE * expected_hz:
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
            done.failed[policy_id] = f"restored, but the saved limit could not be dropped: {error}"
