"""Keeps the control loop going when a plug-in fails: the built-in default takes its place for that step.

Plug-ins are other people's code. One that raises, or returns what its contract does not allow, must neither stop the
loop nor go unnoticed: the failure is logged and counted each time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from joulie.domain.control import complete
from joulie.domain.cooling_stress import CoolingStressModel, linear_cooling_stress
from joulie.domain.policies import FULL_POWER, POLICIES
from joulie.domain.policy import ClusterSnapshot, Plan, Policy, PolicySettings, Profile
from joulie.domain.units import FloatArray, finite

DEFAULT_COOLING = "linear"

_log = logging.getLogger(__name__)


class PolicyWithFallback:
    """A policy that plans by the default policy, under which no node is capped, whenever the given one fails.

    Args:
        policy: policy to ask first.
        settings: settings of the default policy.
        failed: called after each failure.
    """

    def __init__(self, policy: Policy, settings: PolicySettings, failed: Callable[[], None]) -> None:
        self._policy = policy
        self._default = POLICIES[FULL_POWER](settings)
        self._failed = failed

    def plan(self, snapshot: ClusterSnapshot) -> Plan:
        """See `Policy.plan`."""
        try:
            return _checked(self._policy.plan(snapshot), snapshot)
        except Exception as error:
            _report("policy", self._policy, FULL_POWER, error)
            self._failed()
            return self._default.plan(snapshot)


class CoolingWithFallback:
    """A cooling model that answers by the default model whenever the given one fails.

    Args:
        cooling: model to ask first.
        failed: called after each failure.
    """

    def __init__(self, cooling: CoolingStressModel, failed: Callable[[], None]) -> None:
        self._cooling = cooling
        self._failed = failed

    def __call__(
        self,
        power_w: npt.ArrayLike,
        tdp_w: npt.ArrayLike,
        ambient_k: npt.ArrayLike,
        ambient_known: npt.ArrayLike,
        zones: Sequence[str | None],
    ) -> FloatArray:
        """See `CoolingStressModel`."""
        try:
            stress = self._cooling(power_w, tdp_w, ambient_k, ambient_known, zones)
            checked = finite("cooling stress", stress, minimum=0.0, maximum=100.0)
            return np.asarray(np.broadcast_to(checked, np.shape(power_w)))
        except Exception as error:
            _report("cooling model", self._cooling, DEFAULT_COOLING, error)
            self._failed()
            return linear_cooling_stress(power_w, tdp_w, ambient_k, ambient_known, zones)


def _checked(plan: Plan, snapshot: ClusterSnapshot) -> Plan:
    """The plan, if it keeps to the contract of `Policy`.

    Raises:
        IncompletePlanError: it leaves nodes out.
        ValueError: the caps of a node lack a profile.
    """
    complete(plan, snapshot)
    partial = [name for name, caps in plan.caps.items() if not set(Profile) <= caps.keys()]
    if partial:
        raise ValueError(f"policy {plan.policy!r} has no caps for both profiles of node {partial[0]}")
    return plan


def _report(kind: str, plugin: object, default: str, error: Exception) -> None:
    name = getattr(plugin, "__qualname__", type(plugin).__qualname__)
    _log.error(
        "%s failed, using %s for this step",
        kind,
        default,
        extra={"plugin": name, "error": f"{type(error).__name__}: {error}"},
    )
