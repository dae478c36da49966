"""The HTTP JSON API of accounting: energy, savings, reports of months, and an export of all rows."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from urllib.parse import parse_qs

import msgspec

from joulie.adapters.kubernetes.errors import KubernetesError
from joulie.adapters.program_api.energy import (
    ENERGY_PATH,
    EXPORT_PATH,
    FOLDED,
    IDLE,
    LABEL_PREFIX,
    MAX_ITEMS,
    SAVINGS_PATH,
    UNLABELLED,
    EnergyAnswer,
    EnergyItem,
    ExportItem,
    HoldoutSaving,
    SavingsAnswer,
    SavingsItem,
)
from joulie.adapters.program_api.report import REPORT_PATH, ReportAnswer, report_answer
from joulie.adapters.program_api.runtimes import RUNTIMES_PATH, RuntimeItem, RuntimesAnswer
from joulie.apps.accounting.access import Access, AccessDeniedError
from joulie.apps.accounting.async_ledger import AsyncLedger
from joulie.apps.accounting.holdouts import Holdouts
from joulie.domain.accounting.inventory import Inventory
from joulie.domain.accounting.journal import Month
from joulie.domain.accounting.month_savings import month_savings
from joulie.domain.accounting.records import ENERGY_FIELDS, ExportRow, Grouping, SavingRow, UsageRow
from joulie.domain.accounting.sci import report
from joulie.domain.quantities import JOULES_PER_KWH
from joulie.domain.runtimes import learned_runtime
from joulie.domain.trial.holdout import Evidence
from joulie.ports.ledger import Ledger, LedgerError, TooManyRowsError
from joulie.program.http import AsgiApp, Receive, Scope, Send, json_body, respond
from joulie.program.queries import QueryError, page_of

_JSON = b"application/json"
_LINES = b"application/x-ndjson"
_ROWS_A_CHUNK = 1000
_SECONDS_PER_DAY = 86400.0
_PATHS = frozenset({ENERGY_PATH, SAVINGS_PATH, REPORT_PATH, EXPORT_PATH, RUNTIMES_PATH})


class _RequestedPeriod(msgspec.Struct, frozen=True):
    """Query parameters common to all paths, and the time of the request.

    Attributes:
        now_s: time of the request, s since the epoch.
        since_s: start of the requested period, s since the epoch; None for all.
        until_s: end of it, likewise; None for now.
        namespace: requested namespace; None for all.
    """

    now_s: float
    since_s: float | None
    until_s: float | None
    namespace: str | None


class EnergyApi:
    """Serves the paths of `joulie.adapters.program_api`: energy, savings, reports, the export and learned runtimes.

    Args:
        ledger: energy ledger.
        currency: currency of costs.
        now_s: current time, s since the epoch.
        access: checks who may read what; None to answer everybody.
        inventory: instruments and residual mixes for reports.
        label_keys: labels of pods that energy can be grouped by.
        holdouts: what holdouts have measured; None without any.
    """

    def __init__(
        self,
        ledger: AsyncLedger,
        currency: str,
        now_s: Callable[[], float],
        access: Access | None = None,
        inventory: Inventory | None = None,
        label_keys: tuple[str, ...] = (),
        holdouts: Holdouts | None = None,
    ) -> None:
        self._label_keys = label_keys
        self._holdouts = holdouts
        self._inventory = inventory or Inventory()
        self._access = access
        self._ledger = ledger
        self._currency = currency
        self._now_s = now_s

    def before(self, app: AsgiApp) -> AsgiApp:
        """An application that serves these paths, and passes all other requests to `app`."""

        async def api(scope: Scope, receive: Receive, send: Send) -> None:
            path = scope["path"]
            if path not in _PATHS:
                await app(scope, receive, send)
                return
            if scope["method"] not in {"GET", "HEAD"}:
                await _respond_error(send, 405, "method not allowed: use GET")
                return
            values = parse_qs(scope.get("query_string", b"").decode(errors="replace"))
            query = {key: texts[-1] for key, texts in values.items()}
            try:
                if self._access is not None:
                    await self._access.check(scope.get("headers", ()), query.get("namespace"))
                await self._answer(path, query, send)
            except AccessDeniedError as error:
                await _respond_error(send, error.status, str(error))
            except KubernetesError as error:
                await _respond_error(send, 503, f"the API server cannot be asked who may read this: {error}")
            except QueryError as error:
                await _respond_error(send, 400, str(error))
            except LedgerError as error:
                await _respond_error(send, 503, str(error))

        return api

    async def _answer(self, path: str, query: Mapping[str, str], send: Send) -> None:
        now_s = self._now_s()
        period = _RequestedPeriod(
            now_s, _before_now_s(query, "since", now_s), _before_now_s(query, "until", now_s), query.get("namespace")
        )
        if path == EXPORT_PATH:
            await self._export(period, send)
            return
        if path == RUNTIMES_PATH:
            await respond(send, 200, msgspec.json.encode(await self._runtimes(query, period.namespace)), _JSON)
            return
        if path == REPORT_PATH:
            await respond(send, 200, json_body(await self._report(query, period)), _JSON)
            return
        answer = await (self._energy(query, period) if path == ENERGY_PATH else self._savings(period))
        await respond(send, 200, json_body(answer), _JSON)

    async def _runtimes(self, query: Mapping[str, str], namespace: str | None) -> RuntimesAnswer:
        quantile = _quantile(query)
        durations = await self._ledger.call(lambda ledger: ledger.run_durations())
        learned = ((workload, learned_runtime(times_s, quantile)) for workload, times_s in durations.items())
        items = [
            RuntimeItem(*workload, runtime_s=runtime.runtime_s, runs=runtime.runs)
            for workload, runtime in learned
            if runtime is not None and namespace in {None, workload.namespace}
        ]
        return RuntimesAnswer(quantile, items)

    async def _report(self, query: Mapping[str, str], period: _RequestedPeriod) -> ReportAnswer:
        try:
            month = Month.parse(query["month"]) if "month" in query else Month.of(period.now_s)
        except ValueError as error:
            raise QueryError(str(error)) from None
        namespace = period.namespace
        records = await self._ledger.call(lambda ledger: ledger.month(month))
        deferred = await self._ledger.call(lambda ledger: ledger.savings(since_s=month.starts_s, namespace=namespace))
        # Holdouts are of all namespaces together: who may not see them all is not told.
        told = self._holdouts if namespace is None else None
        savings = month_savings(month, {} if told is None else told.evidence, deferred)
        problems = () if told is None else told.problems
        return report_answer(report(records, self._inventory, namespace), savings, problems)

    async def _energy(self, query: Mapping[str, str], period: _RequestedPeriod) -> EnergyAnswer:
        by, also, labels = _groupings(query, self._label_keys)
        try:
            rows = await self._ledger.call(
                lambda ledger: ledger.usage(
                    by,
                    also=also,
                    since_s=period.since_s,
                    until_s=period.until_s,
                    namespace=period.namespace,
                    node=query.get("node"),
                    labels=labels,
                )
            )
        except TooManyRowsError as error:
            raise QueryError(str(error)) from None
        shown, next_page = page_of(rows, query, MAX_ITEMS, MAX_ITEMS)
        # Energy is stored by hours and days, so the sums may start earlier than requested.
        asked_s = () if period.since_s is None else (period.since_s,)
        return EnergyAnswer(
            ",".join(_grouping_texts(by, also, labels)),
            min((*asked_s, *(row.from_s for row in rows)), default=period.now_s),
            period.now_s if period.until_s is None else period.until_s,
            self._currency,
            [_energy_item(by, also, labels, row) for row in shown],
            next_page,
            self._label_keys,
        )

    async def _savings(self, period: _RequestedPeriod) -> SavingsAnswer:
        rows = await self._ledger.call(
            lambda ledger: ledger.savings(since_s=period.since_s, namespace=period.namespace)
        )
        since_s = min((row.completed_s for row in rows), default=period.now_s)
        # Holdouts are of all namespaces together: who may not see them all is not told.
        holdouts = self._holdouts if period.namespace is None else None
        return SavingsAnswer(
            since_s if period.since_s is None else period.since_s,
            period.now_s,
            self._currency,
            [_savings_item(row) for row in rows],
            None if holdouts is None else _holdout(holdouts.deferral.evidence.now),
            None if holdouts is None else _holdout(holdouts.limits.now),
        )

    async def _export(self, period: _RequestedPeriod, send: Send) -> None:
        """Stream all rows, one per line, in chunks of a day, since they may not fit into memory.

        Days are safe chunks: while streaming, energy moves from hours into days only, never between days.
        """
        days = await self._ledger.call(lambda ledger: ledger.usage(Grouping.DAY, since_s=period.since_s))
        headers = [(b"content-type", _LINES)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for day in days:
            rows = await self._ledger.call(partial(_exported, day_s=day.from_s, since_s=period.since_s))
            while lines := await asyncio.to_thread(self._lines, rows, period.namespace):
                await send({"type": "http.response.body", "body": lines, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    def _lines(self, rows: Iterator[ExportRow], namespace: str | None) -> bytes:
        chosen = (row for row in rows if namespace is None or row.pod.namespace == namespace)
        items = (export_item(row, self._currency) for row in islice(chosen, _ROWS_A_CHUNK))
        return msgspec.json.Encoder().encode_lines(items)


def export_item(row: ExportRow, currency: str) -> ExportItem:
    """A ledger row in the form of the export."""
    pod, energy = row.pod, row.energy
    with_intensity_j = energy.energy_j - energy.energy_without_intensity_j
    with_price_j = energy.energy_j - energy.energy_without_price_j
    return ExportItem(
        uid=pod.uid,
        namespace=pod.namespace or IDLE,
        pod=pod.name,
        owner_kind=pod.owner_kind,
        owner_name=pod.owner_name,
        node=pod.node,
        zone=pod.zone,
        from_s=row.from_s,
        until_s=row.until_s,
        source=row.source,
        pue=pod.pue if pod.uid else None,
        gpu_pue=pod.gpu_pue if pod.uid else None,
        intensity_g_per_kwh=None if row.correction else _per_kwh(energy.emissions_g, with_intensity_j),
        price_per_kwh=None if row.correction else _per_kwh(energy.cost, with_price_j),
        currency=currency,
        correction=row.correction,
        labels=",".join(f"{key}={value}" for key, value in pod.labels),
        **{name: getattr(energy, name) for name in ENERGY_FIELDS},
    )


def _exported(ledger: Ledger, *, day_s: float, since_s: float | None) -> Iterator[ExportRow]:
    """Rows of the UTC day that contains `day_s`."""
    starts_s = day_s // _SECONDS_PER_DAY * _SECONDS_PER_DAY
    from_s = starts_s if since_s is None else max(starts_s, since_s)
    return ledger.export(since_s=from_s, until_s=starts_s + _SECONDS_PER_DAY)


def _per_kwh(amount: float, energy_j: float) -> float | None:
    return amount / (energy_j / JOULES_PER_KWH) if energy_j > 0.0 else None


def _groupings(
    query: Mapping[str, str], label_keys: tuple[str, ...]
) -> tuple[Grouping, frozenset[Grouping], tuple[str, ...]]:
    """The grouping that names the items, the most specific of those asked for, the others, and keys of labels."""
    texts = {text for text in (*query.get("by", "").split(","), query.get("step", "")) if text}
    labels = {text.removeprefix(LABEL_PREFIX) for text in texts if text.startswith(LABEL_PREFIX)}
    if unknown := sorted(labels - set(label_keys)):
        kept = f"it has {', '.join(label_keys)}" if label_keys else "it is empty"
        raise QueryError(f"invalid by: label {unknown[0]} is not in ENERGY_LABELS of the accounting program: {kept}")
    names = [one.value for one in Grouping if one is not Grouping.LABEL]
    if wrong := [text for text in texts if not text.startswith(LABEL_PREFIX) and text not in names]:
        raise QueryError(
            f"invalid by {wrong[0]!r}: it must be one or two of {', '.join(names)} and {LABEL_PREFIX}KEY, with a comma "
            "between; step is hour or day"
        )
    asked = {Grouping(text) for text in texts if text in names} | ({Grouping.LABEL} if labels else set())
    times = asked & {Grouping.DAY, Grouping.HOUR}
    if query.get("step", "hour") not in {"hour", "day"} or len(texts) > 2 + ("step" in query) or len(times) > 1:
        raise QueryError("invalid by: at most two, and at most one of day and hour, which step may be too")
    by, *also = [one for one in Grouping if one in (asked or {Grouping.NAMESPACE})]
    return by, frozenset(also), tuple(sorted(labels))


def _grouping_texts(by: Grouping, also: frozenset[Grouping], labels: tuple[str, ...]) -> list[str]:
    """Groupings as a query has them."""
    return [
        text
        for one in (by, *sorted(also))
        for text in ([LABEL_PREFIX + key for key in labels] if one is Grouping.LABEL else [one.value])
    ]


def _energy_item(by: Grouping, also: frozenset[Grouping], labels: tuple[str, ...], row: UsageRow) -> EnergyItem:
    item = _named_item(by, row)
    if labels:
        values = {key: value or UNLABELLED for key, value in zip(labels, row.labels, strict=True)}
        item = msgspec.structs.replace(item, labels=values)
    if Grouping.NAMESPACE in also:
        item = msgspec.structs.replace(item, namespace=row.namespace or IDLE)
    if Grouping.NODE in also:
        item = msgspec.structs.replace(item, node=row.node or FOLDED)
    if also & {Grouping.DAY, Grouping.HOUR}:
        item = msgspec.structs.replace(item, start=row.from_s, end=row.until_s)
    return item


def _named_item(by: Grouping, row: UsageRow) -> EnergyItem:
    energy = {name: getattr(row.energy, name) for name in ENERGY_FIELDS}
    match by:
        case Grouping.POD if not row.uid:
            return EnergyItem(FOLDED, namespace=FOLDED, **energy)
        case Grouping.POD:
            return EnergyItem(row.name, namespace=row.namespace or IDLE, node=row.node or None, **energy)
        case Grouping.JOB:
            return EnergyItem(row.owner_name, namespace=row.namespace or IDLE, kind=row.owner_kind, **energy)
        case Grouping.NAMESPACE:
            return EnergyItem(row.namespace or IDLE, **energy)
        case Grouping.NODE | Grouping.LABEL:
            name = row.node or FOLDED if by is Grouping.NODE else row.labels[0] or UNLABELLED
            return EnergyItem(name, **energy)
        case Grouping.DAY | Grouping.HOUR:
            text = datetime.fromtimestamp(row.from_s, UTC).strftime("%Y-%m-%dT%H:00Z")
            return EnergyItem(text if by is Grouping.HOUR else text[: len("2026-03-13")], **energy)


def _holdout(evidence: Evidence) -> HoldoutSaving | None:
    interval = evidence.interval
    if interval is None:
        return None
    saved, low, high = (100.0 * share for share in interval)
    return HoldoutSaving(saved, low, high, evidence.units, evidence.left_out)


def _savings_item(row: SavingRow) -> SavingsItem:
    return SavingsItem(
        row.name,
        row.namespace,
        row.completed_s,
        row.measure.value,
        row.method.value,
        row.amount,
        energy_j=row.energy_j,
        pods=row.pods,
    )


def _before_now_s(query: Mapping[str, str], name: str, now_s: float) -> float | None:
    """An instant given in seconds before now, as s since the epoch; None without it."""
    text = query.get(name)
    if text is None:
        return None
    try:
        span_s = float(text)
    except ValueError:
        span_s = math.nan
    if not 0.0 < span_s < math.inf:
        raise QueryError(f"invalid {name}: it must be a number of seconds before now, above 0")
    return now_s - span_s


def _quantile(query: Mapping[str, str]) -> float:
    try:
        quantile = float(query.get("quantile", "0.9"))
    except ValueError:
        quantile = math.nan
    if not 0.0 < quantile <= 1.0:
        raise QueryError("invalid quantile: it must be a number above 0 and at most 1")
    return quantile


async def _respond_error(send: Send, status: int, problem: str) -> None:
    await respond(send, status, json_body({"error": problem}), _JSON)
