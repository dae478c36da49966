"""Closes months of the ledger, and publishes the journal's head outside of it."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from joulie.adapters.kubernetes.api.meta import ObjectReference
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import KubernetesError
from joulie.adapters.kubernetes.events import EventRecorder
from joulie.adapters.kubernetes.resources import CONFIG_MAPS
from joulie.apps.accounting.async_ledger import AsyncLedger
from joulie.domain.accounting.journal import Entry, Month, Signer
from joulie.ports import LedgerError

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class HeadsAddress:
    """The ConfigMap that heads are published in.

    Attributes:
        namespace: its namespace.
        name: its name; empty for none.
    """

    namespace: str
    name: str


class Closing:
    """Closes each month some time after its end.

    Args:
        client: Kubernetes client.
        ledger: energy ledger.
        events: event recorder.
        heads: where heads are published.
        signer: private key; None to close no month.
        close_after_s: how long after its end a month is closed, s.
    """

    def __init__(
        self,
        client: KubeClient,
        ledger: AsyncLedger,
        events: EventRecorder,
        heads: HeadsAddress,
        signer: Signer | None = None,
        close_after_s: float = 0.0,
    ) -> None:
        self._client = client
        self._ledger = ledger
        self._events = events
        self._heads = heads
        self._signer = signer
        self._close_after_s = close_after_s
        self._unpublished: dict[str, str] = {}
        """Heads by month that the API server has not taken yet."""

    async def close_due(self, now_s: float) -> None:
        """Close the last month that is due; earlier ones are closed with it. A failure is retried at the next call."""
        signer = self._signer
        month = Month.of(Month.of(now_s - self._close_after_s).starts_s - 1.0)
        if signer is not None and await self._ledger.call(lambda ledger: ledger.closed_s()) < month.ends_s:
            try:
                entry = await self._ledger.call(lambda ledger: ledger.close_month(month, signer, now_s))
            except LedgerError as error:
                _log.warning("month not closed", extra={"month": str(month), "problem": str(error)})
            else:
                self._announce(month, entry)
        await self._publish()

    def _announce(self, month: Month, entry: Entry) -> None:
        head = f"{entry.number}:{entry.hash}"
        _log.info("month closed", extra={"month": str(month), "head": head})
        self._unpublished[str(month)] = head
        if self._heads.name:
            about = ObjectReference("ConfigMap", self._heads.name, "v1", self._heads.namespace)
            self._events.emit(about, "Normal", "LedgerMonthClosed", f"{month} is closed; head of the journal: {head}")

    async def _publish(self) -> None:
        if not self._unpublished or not self._heads.name:
            return
        try:
            await self._client.patch(
                CONFIG_MAPS, self._heads.name, {"data": self._unpublished}, namespace=self._heads.namespace
            )
        except KubernetesError as error:
            _log.warning("head of the ledger not published", extra={"problem": str(error), **self._unpublished})
        else:
            self._unpublished = {}
