"""Alerts that reduce PowerBudgets: Alertmanager notifies, and each alert that fires becomes an entry of `reductions`.

An entry ends by itself a while after the last notification, so that an alert whose end nobody tells reduces nothing for
ever, and at once, along its ramp, when the alert is resolved. Any replica takes notifications: what they ask for is in
the budget's spec, which the leader reads. Entries can only lower a limit.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from joulie.adapters.alertmanager import Alert, NotificationError, read_notification
from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.api.v1alpha1 import PowerBudget
from joulie.adapters.kubernetes.api.v1alpha1.power_budget import ReductionSpec
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import ConflictError, KubernetesError
from joulie.adapters.kubernetes.resources import POWER_BUDGETS
from joulie.adapters.kubernetes.times import rfc3339, time_or_none
from joulie.apps.operator.settings.budgets import PowerBudgetSettings
from joulie.domain.capping.watts_in_force import RAMP_S
from joulie.program.http import AsgiApp, Receive, Scope, Send, respond

PATH = "/alerts"
BUDGET_LABEL = "joulie_power_budget"
PERCENT_LABEL = "joulie_reduce_percent"
MAX_BODY_BYTES = 1 << 20
MAX_ENTRIES = 8
"""Alerts that reduce one budget at a time: half of the entries that a budget takes."""
_ATTEMPTS = 5
_PREFIX = "alert-"
_log = logging.getLogger(__name__)


class AlertReductions:
    """Answers Alertmanager's webhook.

    Args:
        client: Kubernetes client.
        settings: which budgets alerts may reduce, by how much and for how long.
        token_file: file with the bearer token that Alertmanager sends; read for each notification.
        now_s: current time, s since the epoch.
    """

    def __init__(
        self, client: KubeClient, settings: PowerBudgetSettings, token_file: Path, now_s: Callable[[], float]
    ) -> None:
        self._client = client
        self._settings = settings
        self._token_file = token_file
        self._now_s = now_s

    @property
    def app(self) -> AsgiApp:
        """The ASGI application."""

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            status, message = await self._answer(scope, receive)
            await respond(send, status, f"{message}\n".encode())

        return app

    async def _answer(self, scope: Scope, receive: Receive) -> tuple[int, str]:
        if scope["path"] != PATH:
            return 404, f"not found: alerts go to {PATH}"
        if scope["method"] != "POST":
            return 405, f"{PATH} takes POST"
        if not self._allowed(dict(scope["headers"]).get(b"authorization", b"")):
            return 401, "the bearer token is missing or wrong"
        body = await _body(receive)
        if body is None:
            return 413, f"a notification has at most {MAX_BODY_BYTES} bytes: set max_alerts"
        return await self._take(body)

    async def _take(self, body: bytes) -> tuple[int, str]:
        """Do what a notification asks for. Returns status and message of the answer."""
        try:
            alerts = read_notification(body)
        except NotificationError as error:
            _log.warning("notification refused", extra={"error": str(error)})
            return 400, str(error)
        try:
            for budget, asked in self._by_budget(alerts).items():
                await self._write(budget, asked)
        except KubernetesError as error:
            _log.warning("alert not written to a power budget", extra={"error": str(error)})
            return 503, "not written: try again"  # which Alertmanager does
        return 200, "ok"

    def _allowed(self, header: bytes) -> bool:
        try:
            token = self._token_file.read_bytes().strip()
        except OSError as error:
            _log.error("token of alerts cannot be read: all are refused", extra={"error": str(error)})
            return False
        return bool(token) and secrets.compare_digest(header, b"Bearer " + token)

    def _by_budget(self, alerts: Sequence[Alert]) -> Mapping[str, dict[str, float | None]]:
        """By how much each alert reduces each budget, %, by the name of its entry; None where it is resolved."""
        found: dict[str, dict[str, float | None]] = {}
        allowed = self._settings.alerts_budgets
        for alert in alerts:
            named = alert.labels.get(BUDGET_LABEL)
            if named is not None and named not in allowed:
                _log.warning("an alert names a power budget that alerts may not reduce", extra={"budget": named[:253]})
                continue
            percent = None if alert.status == "resolved" else self._percent(alert)
            for budget in allowed if named is None else (named,):
                found.setdefault(budget, {})[_PREFIX + alert.fingerprint] = percent
        return found

    def _percent(self, alert: Alert) -> float:
        """What an alert asks for, %: at most the setting, which also counts for what cannot be read."""
        most = self._settings.alerts_reduce_pct
        text = alert.labels.get(PERCENT_LABEL)
        try:
            asked = most if text is None else float(text)
        except ValueError:
            asked = -1.0
        if not asked > 0.0:
            _log.warning("an alert asks for no percentage", extra={"label": PERCENT_LABEL, "value": (text or "")[:64]})
            return most
        return min(asked, most)

    async def _write(self, budget: str, asked: Mapping[str, float | None]) -> None:
        """Apply the entries of alerts to a budget.

        Raises:
            KubernetesError: the budget cannot be read or written.
        """
        for attempt in range(_ATTEMPTS):
            found = await self._client.list(POWER_BUDGETS, field_selector=f"metadata.name={budget}")
            if not found.items:
                _log.warning("alerts reduce a power budget that does not exist", extra={"budget": budget})
                return
            stored = found.items[0]
            entries = self._entries(stored, asked)
            if entries == _own(stored):
                return
            meta = {"uid": stored.metadata.uid, "resourceVersion": stored.metadata.resource_version}
            body = {"metadata": meta, "spec": {"reductions": list(entries.values())}}
            try:
                await self._client.apply(POWER_BUDGETS, budget, body, field_manager=names.ALERTS_FIELD_MANAGER)
            except ConflictError:
                if attempt == _ATTEMPTS - 1:
                    raise
                continue
            _log.info("alerts reduce a power budget", extra={"budget": budget, "alerts": sorted(entries)})
            return

    def _entries(self, stored: PowerBudget, asked: Mapping[str, float | None]) -> dict[str, ReductionSpec]:
        """The entries of alerts that a budget is to have: those that hold, or whose ramp does."""
        now_s, hold_s = self._now_s(), self._settings.alerts_hold_s
        now = rfc3339(now_s)
        found = {
            name: one for name, one in _own(stored).items() if (time_or_none(one.end) or 0.0) + RAMP_S > now_s
        }  # fmt: skip
        for name, percent in asked.items():
            before = found.get(name)
            holds = before is not None and (time_or_none(before.end) or 0.0) > now_s
            start = before.start if before is not None and holds else now
            if percent is not None:
                end = rfc3339(now_s + hold_s)
                found[name] = ReductionSpec(
                    name=name, start=start, end=end, reduce_percent=percent, source="Alertmanager"
                )
            elif before is not None and holds:
                ended = ReductionSpec(
                    name=name, start=start, end=now, reduce_percent=before.reduce_percent, source="Alertmanager"
                )
                if (time_or_none(start) or 0.0) < (time_or_none(now) or 0.0):
                    found[name] = ended
                else:
                    del found[name]
        # Those that hold longest go first, if there are too many.
        kept = sorted(found, key=lambda name: found[name].end, reverse=True)[:MAX_ENTRIES]
        if len(kept) < len(found):
            _log.warning(
                "more alerts than a power budget takes", extra={"budget": stored.metadata.name, "alerts": len(found)}
            )
        return {name: found[name] for name in sorted(kept)}


def _own(stored: PowerBudget) -> dict[str, ReductionSpec]:
    """The entries of alerts that a budget has, by name."""
    found = {one.name: one for one in stored.spec.reductions if one.name.startswith(_PREFIX)}
    return dict(sorted(found.items()))


async def _body(receive: Receive) -> bytes | None:
    """The body of a request; None if it is too large."""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            return None
        if not message.get("more_body"):
            return bytes(body)
