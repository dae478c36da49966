"""Closes months of the ledger, and publishes the journal's head outside of it."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from joulie.adapters.kubernetes.api.meta import ObjectReference
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import KubernetesError
from joulie.adapters.kubernetes.events import EventRecorder, Severity
from joulie.adapters.kubernetes.resources import CONFIG_MAPS
from joulie.apps.accounting.async_ledger import AsyncLedger
from joulie.domain.accounting.journal import Entry, Month, Signer
from joulie.ports.ledger import LedgerError

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
        self._published_s: float | None = None
        """End of the last closed month when the heads were published last, s since the epoch."""

    async def close_due(self, now_s: float) -> None:
        """Close the last month that is due; earlier ones are closed with it. A failure is retried at the next call."""
        signer = self._signer
        month = Month.of(Month.of(now_s - self._close_after_s).starts_s - 1.0)
        closed_s = await self._ledger.call(lambda ledger: ledger.closed_s())
        if signer is not None and closed_s < month.ends_s:
            try:
                entry = await self._ledger.call(lambda ledger: ledger.close_month(month, signer, now_s))
            except LedgerError as error:
                _log.warning("month not closed", extra={"month": str(month), "problem": str(error)})
            else:
                self._announce(month, entry)
                closed_s = month.ends_s
        if self._heads.name and closed_s != self._published_s and await self._publish():
            self._published_s = closed_s

    def _announce(self, month: Month, entry: Entry) -> None:
        head = f"{entry.number}:{entry.hash}"
        _log.info("month closed", extra={"month": str(month), "head": head})
        self._emit("Normal", "LedgerMonthClosed", f"{month} is closed; head of the journal: {head}")

    async def _publish(self) -> bool:
        """Publish the heads that are not published, also those of months closed by hand or before a restart.

        A head that was published stays what it is: it is what a ledger that was changed is found out by.
        """
        closings = await self._ledger.call(lambda ledger: ledger.closings())
        heads = {str(Month.of(one.from_s)): f"{one.number}:{one.hash}" for one in closings}
        if not heads:
            return True
        try:
            found = await self._client.get(CONFIG_MAPS, self._heads.name, namespace=self._heads.namespace)
            missing = {month: head for month, head in heads.items() if month not in found.data}
            if missing:
                data = {"data": missing}
                await self._client.patch(CONFIG_MAPS, self._heads.name, data, namespace=self._heads.namespace)
        except KubernetesError as error:
            _log.warning("heads of the ledger not published", extra={"problem": str(error), **heads})
            return False
        for month in sorted(heads.keys() & found.data.keys()):
            if found.data[month] != heads[month]:
                text = f"{month} was published with the head {found.data[month]}, and the ledger has {heads[month]} now"
                _log.error("the ledger was changed after its head was published", extra={"problem": text})
                self._emit("Warning", "LedgerHeadDiffers", text)
        return True

    def _emit(self, severity: Severity, reason: str, text: str) -> None:
        if self._heads.name:
            about = ObjectReference("ConfigMap", self._heads.name, "v1", self._heads.namespace)
            self._events.emit(about, severity, reason, text)
