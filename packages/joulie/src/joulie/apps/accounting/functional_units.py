"""Books what workloads have delivered in each UTC day, by the queries of the inventory file.

A day is asked for once it is over, and again until Prometheus has an answer: no answer is no zero. Queries are the
operator's, since a query in an annotation would let tenants read each other's metrics with Joulie's rights.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from joulie.adapters.prometheus import Prometheus, PrometheusError
from joulie.apps.accounting.async_ledger import AsyncLedger
from joulie.domain.accounting.inventory import UnitQuery
from joulie.domain.accounting.records import UnitCount
from joulie.domain.accounting.sci import WorkloadKey

SECONDS_PER_DAY = 86400.0
_SETTLED_S = 300.0
"""How long after its end a day is asked for, s: scrapes come late."""
_DAYS = 7
"""Days that are asked for again: fewer than LEDGER_CLOSE_AFTER, and Prometheus usually keeps more."""

_log = logging.getLogger(__name__)


class FunctionalUnits:
    """Books functional units by queries.

    Args:
        prometheus: client; None if there is no Prometheus.
        ledger: energy ledger.
        queries: of all workloads.
    """

    def __init__(self, prometheus: Prometheus | None, ledger: AsyncLedger, queries: Sequence[UnitQuery]) -> None:
        self._prometheus = prometheus
        self._ledger = ledger
        self._queries = queries
        self._booked: set[tuple[UnitQuery, float]] = set()

    async def book_due(self, now_s: float) -> None:
        """Book all days of the last week that are over and not booked."""
        last_s = (now_s - _SETTLED_S) // SECONDS_PER_DAY * SECONDS_PER_DAY
        days_s = [last_s - number * SECONDS_PER_DAY for number in range(1, _DAYS + 1)]
        self._booked = {(query, day_s) for query, day_s in self._booked if day_s in days_s}
        for query in self._queries:
            for day_s in days_s:
                if (query, day_s) not in self._booked and await self._book(query, day_s):
                    self._booked.add((query, day_s))

    async def _book(self, query: UnitQuery, day_s: float) -> bool:
        """Book one day of a workload; False if there is no answer yet."""
        amount = await self._ask(query, day_s + SECONDS_PER_DAY)
        if amount is None:
            return False
        workload = WorkloadKey(query.namespace, query.kind, query.name)
        count = UnitCount(query.unit, amount, f"query {query.query}")
        await self._ledger.call(lambda ledger: ledger.book_units(day_s, workload, count))
        return True

    async def _ask(self, query: UnitQuery, until_s: float) -> float | None:
        """Units in the day before a time, s since the epoch; None without an answer, which is logged."""
        if self._prometheus is None:
            return None
        text = query.query.replace("$window", f"{SECONDS_PER_DAY:.0f}s")
        place = {"namespace": query.namespace, "workload": f"{query.kind}/{query.name}"}
        try:
            found = await self._prometheus.query_range(text, until_s, until_s, SECONDS_PER_DAY)
        except PrometheusError as error:
            _log.warning("functional units are not known yet", extra={**place, "problem": str(error)})
            return None
        values = [one.value for series in found for one in series.samples]
        if len(values) != 1 or not 0.0 <= values[0] < math.inf:
            problem = f"the query gave {len(values)} values; it must give one number, 0 or more"
            _log.warning("functional units are not known yet", extra={**place, "problem": problem})
            return None
        return values[0]
