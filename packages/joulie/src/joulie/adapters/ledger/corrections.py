"""Corrections: factors of the past that became known late or were wrong, and what follows from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, select, update

from joulie.adapters.ledger import schema
from joulie.adapters.ledger.journal import add_entries, new_entry
from joulie.adapters.ledger.postings import AT_ONCE, Posting, postings_on
from joulie.adapters.ledger.statements import state_of
from joulie.domain.accounting.factors import FactorKind, differs, value_over
from joulie.domain.accounting.journal import Entry, EntryKind, FactorChange, Reason
from joulie.domain.accounting.records import ENERGY_FIELDS, Energy
from joulie.domain.grid.series import Series
from joulie.domain.quantities import SECONDS_PER_HOUR

PROGRAM = "joulie"
"""Who corrects factors by the signals of the grid."""
_LATE = "its signal became known after the energy was booked"
_REVISED = "its source has revised the value"
_SECONDS_PER_DAY = 86400.0


@dataclass(frozen=True)
class _Factor:
    """A row of `schema.factors`."""

    id: int
    zone: str
    kind: FactorKind
    from_s: float
    until_s: float
    current: float | None


def by_signals(
    connection: Connection, history: Mapping[tuple[str, FactorKind], Sequence[Series]], now_s: float
) -> list[Entry]:
    """Correct factors by what is known of the grid now; what somebody has corrected by hand stays."""
    changes: dict[_Factor, FactorChange] = {}
    for (zone, kind), known in history.items():
        for factor in _factors(connection, zone, kind, automatic=True):
            values = (value_over(series, factor.from_s, factor.until_s) for series in known)
            value = next((one for one in values if one is not None), None)
            if value is not None and differs(value, factor.current):
                why = _LATE if factor.current is None else _REVISED
                changes[factor] = _change(factor, value, Reason(PROGRAM, why))
    return _correct(connection, changes, now_s)


def by_hand(
    connection: Connection,
    zone: str,
    kind: FactorKind,
    time_s: tuple[float, float],
    value: float,
    reason: Reason,
    now_s: float,
) -> list[Entry]:
    """Set the factors of one kind that lie within a time; those that reach beyond it are left as they are."""
    from_s, until_s = time_s
    changes = {
        factor: _change(factor, value, reason)
        for factor in _factors(connection, zone, kind)
        if from_s <= factor.from_s and factor.until_s <= until_s and differs(value, factor.current)
    }
    return _correct(connection, changes, now_s)


def _factors(connection: Connection, zone: str, kind: FactorKind, *, automatic: bool = False) -> Iterator[_Factor]:
    factors = schema.factors.c
    query = (
        select(factors.id, factors.from_s, factors.until_s, factors.current)
        .where(factors.zone == zone, factors.kind == kind.value)
        .order_by(factors.from_s, factors.id)
    )
    if automatic:
        query = query.where(factors.changed_by.in_(["", PROGRAM]))
    for number, from_s, until_s, current in connection.execute(query):
        yield _Factor(number, zone, kind, from_s, until_s, current)


def _change(factor: _Factor, value: float, reason: Reason) -> FactorChange:
    return FactorChange(
        factor.kind.value,
        factor.zone,
        factor.from_s,
        factor.until_s,
        factor.current,
        value,
        reason.who,
        reason.why,
    )


def _correct(connection: Connection, changes: Mapping[_Factor, FactorChange], now_s: float) -> list[Entry]:
    """Write factor changes and the differences that follow."""
    if not changes:
        return []
    postings = dict.fromkeys(_affected(connection, changes))
    before = _values(connection, {number for one in postings for number in one.factors})
    after = before | {factor.id: change.becomes for factor, change in changes.items()}
    state = state_of(connection)
    open_s, hours_s = float(state.get("closed_s", "-inf")), float(state.get("folded_s", "-inf"))
    sums: dict[tuple[float, float, tuple[str, str, str, str]], list[float]] = {}
    for posting in postings:
        concerns_s = posting.hour * SECONDS_PER_HOUR
        span_s = SECONDS_PER_HOUR
        if concerns_s < hours_s:
            concerns_s, span_s = concerns_s // _SECONDS_PER_DAY * _SECONDS_PER_DAY, _SECONDS_PER_DAY
        total = sums.setdefault((concerns_s, span_s, posting.workload), [0.0] * len(ENERGY_FIELDS))
        old, new = posting.energy(before), posting.energy(after)
        for place, name in enumerate(ENERGY_FIELDS):
            total[place] += getattr(new, name) - getattr(old, name)
    now_hour_s = now_s // SECONDS_PER_HOUR * SECONDS_PER_HOUR
    entries = [
        new_entry(
            EntryKind.FACTOR,
            now_s,
            (factor.from_s, factor.until_s, factor.from_s),
            ("", "", "", factor.zone),
            note=change.note(),
        )
        for factor, change in changes.items()
    ]
    for (concerns_s, span_s, workload), energy in sorted(sums.items()):
        time_s = (concerns_s, concerns_s + span_s, concerns_s)
        if concerns_s < open_s:
            time_s = (now_hour_s, now_hour_s + SECONDS_PER_HOUR, concerns_s)
        entries.append(new_entry(EntryKind.CORRECTION, now_s, time_s, workload, Energy(*energy)))
    added = add_entries(connection, entries)
    for factor, change in changes.items():
        connection.execute(
            update(schema.factors)
            .where(schema.factors.c.id == factor.id)
            .values(current=change.becomes, changed_by=change.who)
        )
    return added


def _affected(connection: Connection, changes: Mapping[_Factor, FactorChange]) -> Iterator[Posting]:
    kinds: dict[FactorKind, list[_Factor]] = {}
    for factor in changes:
        kinds.setdefault(factor.kind, []).append(factor)
    for kind, factors in kinds.items():
        first_hour = int(min(one.from_s for one in factors) // SECONDS_PER_HOUR)
        yield from postings_on(connection, kind, [one.id for one in factors], first_hour)


def _values(connection: Connection, ids: set[int]) -> dict[int, float | None]:
    """Current values of factors."""
    factors = schema.factors.c
    numbers = sorted(ids)
    found: dict[int, float | None] = {}
    for first in range(0, len(numbers), AT_ONCE):
        query = select(factors.id, factors.current).where(factors.id.in_(numbers[first : first + AT_ONCE]))
        found |= {row.id: row.current for row in connection.execute(query)}
    return found
