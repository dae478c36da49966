"""Lookup of policies and cooling models by name: built in, or from other distributions by Python entry points.

A policy is registered in the group ``joulie.policies`` as a callable that takes `PolicySettings` and returns a
`Policy`; a cooling model in ``joulie.cooling_models`` as a `CoolingStressModel`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from joulie.domain.cooling_stress import COOLING_MODELS, CoolingStressModel, UnknownCoolingModelError
from joulie.domain.policies import POLICIES
from joulie.domain.policy import Policy, PolicySettings, UnknownPolicyError

POLICY_GROUP = "joulie.policies"
COOLING_GROUP = "joulie.cooling_models"


class PluginError(ValueError):
    """A configured plug-in that cannot be loaded."""


def policy(name: str, settings: PolicySettings) -> Policy:
    """The policy called `name`, built in or from a plug-in.

    Raises:
        UnknownPolicyError: unknown name; the message names POLICY_TYPE and the allowed values.
        PluginError: the plug-in cannot be loaded.
    """
    found = _found(name, POLICIES, POLICY_GROUP)
    if found is None:
        allowed = ", ".join(_names(POLICIES, POLICY_GROUP))
        raise UnknownPolicyError(f"POLICY_TYPE: unknown policy {name!r}; allowed: {allowed}")
    made: Policy = found(settings)
    return made


def cooling_model(name: str) -> CoolingStressModel:
    """The cooling model called `name`, built in or from a plug-in.

    Raises:
        UnknownCoolingModelError: unknown name; the message names COOLING_MODEL and the allowed values.
        PluginError: the plug-in cannot be loaded.
    """
    found: CoolingStressModel | None = _found(name, COOLING_MODELS, COOLING_GROUP)
    if found is None:
        allowed = ", ".join(_names(COOLING_MODELS, COOLING_GROUP))
        raise UnknownCoolingModelError(f"COOLING_MODEL: unknown cooling model {name!r}; allowed: {allowed}")
    return found


def _found(name: str, built_in: Mapping[str, Any], group: str) -> Any:
    """The object called `name`; None if unknown. A plug-in cannot replace a built-in; only the named one is loaded."""
    if name in built_in:
        return built_in[name]
    entry = next(iter(entry_points(group=group, name=name)), None)
    return None if entry is None else _loaded(entry)


def _loaded(entry: EntryPoint) -> Any:
    try:
        return entry.load()
    except Exception as error:
        raise PluginError(f"cannot load plug-in {entry.name!r} ({entry.value}) of {entry.group}: {error}") from error


def _names(built_in: Mapping[str, Any], group: str) -> list[str]:
    return sorted({*built_in, *(entry.name for entry in entry_points(group=group))})
