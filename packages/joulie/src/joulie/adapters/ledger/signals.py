"""History of grid signals in the ledger, from which the emissions of an undelayed run are computed."""

from __future__ import annotations

import numpy as np
from sqlalchemy import Connection, func, select

from joulie.adapters.ledger import schema
from joulie.adapters.ledger.statements import bulk, upsert
from joulie.domain.accounting.factors import SIGNAL_KINDS, FactorKind
from joulie.domain.accounting.records import ZoneSignals
from joulie.domain.grid.series import Series

_COLUMNS = ("zone", "measure", "time_s", "until_s", "value")


def remember(connection: Connection, zone: str, known: ZoneSignals, now_s: float) -> None:
    """Store the new part of a zone's signals up to now; forecasts are not stored."""
    for kind, series in zip(SIGNAL_KINDS, (known.intensity, known.marginal, known.price), strict=True):
        if series is not None:
            _remember(connection, zone, kind, series, now_s)


def _remember(connection: Connection, zone: str, measure: FactorKind, series: Series, now_s: float) -> None:
    columns = schema.signals.c
    last_s = connection.scalar(
        select(func.max(columns.until_s)).where(columns.zone == zone, columns.measure == measure.value)
    )
    ends_s = np.minimum(np.append(series.starts_s[1:], series.end_s), now_s)
    new = (ends_s > series.starts_s) & (ends_s > (-np.inf if last_s is None else last_s))
    steps = (series.starts_s[new].tolist(), ends_s[new].tolist(), series.values[new].tolist())
    rows = [(zone, measure.value, *step) for step in zip(*steps, strict=True)]
    bulk(connection, upsert(connection, schema.signals, replaced=("until_s", "value")), _COLUMNS, rows)


def history(connection: Connection, zone: str, measure: FactorKind, from_s: float, until_s: float) -> Series | None:
    """The signal over a time; None unless all of that time is known."""
    columns = schema.signals.c
    rows = connection.execute(
        select(columns.time_s, columns.until_s, columns.value)
        .where(
            columns.zone == zone,
            columns.measure == measure.value,
            columns.until_s > from_s,
            columns.time_s < until_s,
        )
        .order_by(columns.time_s)
    ).all()
    if not rows:
        return None
    starts_s, ends_s, values = np.array(rows, dtype=np.float64).T
    if (ends_s[:-1] < starts_s[1:]).any():
        return None
    series = Series(starts_s, values, ends_s.max())
    return series if series.covers(from_s, until_s) else None
