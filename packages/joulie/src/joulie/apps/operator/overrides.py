"""Writes the `Counted` condition of NodePowerProfiles, so that an override without effect shows the reason."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import msgspec

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.api.v1alpha1 import Condition, ConditionStatus
from joulie.adapters.kubernetes.errors import NotFoundError
from joulie.adapters.kubernetes.resources import NODE_POWER_PROFILES
from joulie.adapters.kubernetes.times import rfc3339
from joulie.adapters.kubernetes.writer import write_all
from joulie.apps.operator.apply import Problem
from joulie.apps.operator.facts import COUNTED_CONDITION, OverrideFacts
from joulie.apps.operator.leader import Leader
from joulie.domain.control import Override


class OverrideConditions:
    """Keeps the `Counted` condition of all NodePowerProfiles up to date.

    Args:
        leader: this replica while it leads.
    """

    def __init__(self, leader: Leader) -> None:
        self._client, self._view = leader.client, leader.view
        self._settings, self._may_write, self._now_s = leader.settings, leader.may_write, leader.now_s

    async def publish(self) -> list[Problem]:
        """Write the conditions that changed. Returns the profiles whose writes failed; the next cycle retries them."""
        effective = self._view.effective_overrides()
        now = rfc3339(self._now_s())
        changed: list[tuple[str, Condition]] = []
        for key, facts in self._view.overrides.items():
            wanted = self._condition(facts, effective)
            old = facts.counted
            if old is None or _contents(old) != _contents(wanted):
                since = old.last_transition_time if old is not None and old.status == wanted.status else now
                changed.append((key.name, msgspec.structs.replace(wanted, last_transition_time=since)))
        jobs = [partial(self._write, name, condition) for name, condition in changed]
        failures = await write_all(jobs, concurrency=self._settings.write_concurrency)
        return [Problem(f"nodepowerprofile/{changed[one.index][0]}", one.error) for one in failures]

    def _condition(self, facts: OverrideFacts, effective: Mapping[str, Override]) -> Condition:
        node = self._view.node(facts.node)
        if facts.override is None:
            return _counted(False, "NotAnOverride", f"it has no effect without the label {names.OVERRIDE_LABEL}=true")
        if node is None:
            return _counted(False, "UnknownNode", f"unknown node {facts.node!r}")
        winner = effective[facts.node]
        if winner != facts.override:
            return _counted(
                False,
                "Superseded",
                f"{winner.name} overrides {facts.node}: of several overrides the first by name is effective",
            )
        if not node.eligible:
            why = "it is cordoned or reserved" if node.managed else "NODE_SELECTOR does not select it"
            return _counted(False, "NodeNotPlanned", f"{facts.node} is not planned: {why}")
        if not node.enforced:
            return _counted(False, "ObserveMode", f"{facts.node} is in observe mode: the override is only planned")
        return _counted(
            True, "Applied", f"it takes precedence over the policy on {facts.node}, but not over the drain guard"
        )

    async def _write(self, name: str, condition: Condition) -> None:
        if not self._may_write():
            return
        body = {"status": {"conditions": [condition]}}
        manager = names.OPERATOR_FIELD_MANAGER
        try:
            await self._client.apply(NODE_POWER_PROFILES, name, body, field_manager=manager, subresource="status")
        except NotFoundError:
            return


def _counted(holds: bool, reason: str, message: str) -> Condition:
    status = ConditionStatus.TRUE if holds else ConditionStatus.FALSE
    return Condition(COUNTED_CONDITION, status, reason, "", message)


def _contents(condition: Condition) -> tuple[str, str, str]:
    """A condition without its transition time."""
    return condition.status, condition.reason, condition.message
