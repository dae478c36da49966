"""Postings: IT energy by workload, hour and the factors that it was booked on, from which all figures follow."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import Connection, func, insert, select, update

from joulie.adapters.ledger import schema
from joulie.adapters.ledger.schema import FACTOR_COLUMNS
from joulie.adapters.ledger.statements import bulk, upsert
from joulie.domain.accounting.factors import (
    FACTOR_KINDS,
    OUTAGE_SLOT_S,
    SIGNAL_KINDS,
    UNKNOWN_SLOT_S,
    FactorKind,
    Factors,
    Steps,
    amounts,
)
from joulie.domain.accounting.integrate import Pieces
from joulie.domain.accounting.records import Energy, PodMeta, PowerQuality
from joulie.domain.quantities import SECONDS_PER_HOUR

AT_ONCE = 500
"""Values in one statement: databases bound their number."""
_KEY = ("hour", "namespace", "owner_kind", "owner_name", "zone", "quality", *FACTOR_COLUMNS)
_JOULES = ("cpu_j", "mem_j", "gpu_j")
_NEW_FACTOR = insert(schema.factors)


@dataclass(frozen=True)
class Use:
    """A factor that energy is booked on: a step of a signal within an hour, or a PUE in an hour.

    Attributes:
        kind: which factor.
        from_s: start of the step or of the hour, whichever is later, s since the epoch.
        value: its value; None: unknown.
    """

    kind: FactorKind
    from_s: float
    value: float | None


def slot_s(connection: Connection, zone: str, kind: FactorKind) -> float:
    """Length of the slots for energy while a signal is missing, s."""
    signals = schema.signals.c
    known = select(func.count()).where(signals.zone == zone, signals.measure == kind.value)
    return OUTAGE_SLOT_S if connection.scalar(known) else UNKNOWN_SLOT_S


class Postings:
    """The postings of one cycle and zone.

    Args:
        connection: connection with the open transaction.
        zone: zone of the grid.
        first_hour: first hour that is not closed; energy of an earlier one is booked in it.
    """

    def __init__(self, connection: Connection, zone: str, first_hour: int) -> None:
        self._connection = connection
        self._zone = zone
        self._first_hour = first_hour
        self._numbers: dict[tuple[Use, ...], int] = {}
        self._ends_s: list[float] = []
        self._joules: dict[tuple[Any, ...], list[float]] = {}

    def add(
        self, pieces: Pieces, signals: Sequence[Steps], pods: Sequence[PodMeta], qualities: Sequence[PowerQuality]
    ) -> None:
        """Add pieces of stretches.

        Args:
            pieces: of stretches of this zone.
            signals: that they were integrated with, in the order of `SIGNAL_KINDS`.
            pods: by stretch.
            qualities: by stretch.
        """
        # Sums by stretch, hour and steps first: a long gap has many pieces.
        hours = (pieces.low_s // SECONDS_PER_HOUR).astype(np.int64)
        keys = np.column_stack((pieces.stretch, hours, pieces.step))
        first = np.flatnonzero(np.append(True, (np.diff(keys, axis=0) != 0).any(axis=1)))
        joules = np.add.reduceat(pieces.energy[:, :3], first, axis=0).tolist()
        ends_s = pieces.high_s[np.append(first[1:], len(keys)) - 1].tolist()
        # Most pods use the same factors: they are looked up once, and summed by number.
        numbers: dict[tuple[float, ...], int] = {}
        for (stretch, hour, *steps), it_j, end_s in zip(keys[first].tolist(), joules, ends_s, strict=True):
            pod = pods[stretch]
            used = (hour, *steps, pod.pue, pod.gpu_pue)
            if used not in numbers:
                numbers[used] = self._number(hour * SECONDS_PER_HOUR, signals, steps, pod)
            number = numbers[used]
            self._ends_s[number] = max(self._ends_s[number], end_s)
            booked = max(hour, self._first_hour)
            place = (booked, pod.namespace, pod.owner_kind, pod.owner_name, qualities[stretch].value, number)
            found = self._joules.setdefault(place, [0.0, 0.0, 0.0])
            for part, value in enumerate(it_j):
                found[part] += value

    def _number(self, hour_s: float, signals: Sequence[Steps], steps: Sequence[int], pod: PodMeta) -> int:
        """Number of the factors of an hour, in the order of `FACTOR_KINDS`."""
        uses = (
            *(_use(kind, one, step, hour_s) for kind, one, step in zip(SIGNAL_KINDS, signals, steps, strict=True)),
            Use(FactorKind.PUE, hour_s, pod.pue),
            Use(FactorKind.GPU_PUE, hour_s, pod.gpu_pue),
        )
        if uses not in self._numbers:
            self._numbers[uses] = len(self._numbers)
            self._ends_s.append(-math.inf)
        return self._numbers[uses]

    def write(self) -> None:
        """Write them, and the factors that are new."""
        until_s: dict[Use, float] = {}
        for uses, end_s in zip(self._numbers, self._ends_s, strict=True):
            for use in uses:
                last_s = end_s if use.kind in SIGNAL_KINDS else use.from_s + SECONDS_PER_HOUR
                until_s[use] = max(last_s, until_s.get(use, -math.inf))
        by_use = self._factor_ids(until_s)
        ids = [tuple(by_use[use] for use in uses) for uses in self._numbers]
        rows = [
            (hour, namespace, kind, name, self._zone, quality, *ids[number], *it_j)
            for (hour, namespace, kind, name, quality, number), it_j in self._joules.items()
        ]
        bulk(self._connection, upsert(self._connection, schema.postings, added=_JOULES), (*_KEY, *_JOULES), rows)

    def _factor_ids(self, until_s: Mapping[Use, float]) -> dict[Use, int]:
        """Ids of factors, given until when each is used. One that was corrected is not: it is not what it was."""
        found = self._find(until_s)
        new = [use for use in until_s if use not in found]
        rows = [(self._zone, use.kind.value, use.from_s, until_s[use], use.value, use.value, "") for use in new]
        names = ("zone", "kind", "from_s", "until_s", "booked", "current", "changed_by")
        bulk(self._connection, _NEW_FACTOR, names, rows)
        found |= self._find(new)
        factors = schema.factors.c
        for use, (number, known_s) in found.items():
            if until_s[use] > known_s:
                extended = update(schema.factors).where(factors.id == number).values(until_s=until_s[use])
                self._connection.execute(extended)
        return {use: number for use, (number, _) in found.items()}

    def _find(self, uses: Sequence[Use] | Mapping[Use, float]) -> dict[Use, tuple[int, float]]:
        factors = schema.factors.c
        starts_s = sorted({use.from_s for use in uses})
        found = {}
        for first in range(0, len(starts_s), AT_ONCE):
            query = select(factors.id, factors.kind, factors.from_s, factors.booked, factors.until_s).where(
                factors.zone == self._zone,
                factors.changed_by == "",
                factors.from_s.in_(starts_s[first : first + AT_ONCE]),
            )
            for number, kind, from_s, booked, until_s in self._connection.execute(query):
                use = Use(FactorKind(kind), from_s, booked)
                if use in uses:
                    found[use] = number, until_s
        return found


@dataclass(frozen=True, slots=True)
class Posting:
    """IT energy of a workload in an hour on certain factors.

    Attributes:
        hour: whole hours since the epoch.
        workload: namespace, kind and name of the owner, and zone.
        quality: of the power.
        factors: ids, in the order of `FACTOR_KINDS`.
        it_j: energy of CPU, memory and GPUs, J.
    """

    hour: int
    workload: tuple[str, str, str, str]
    quality: PowerQuality
    factors: tuple[int, ...]
    it_j: tuple[float, float, float]

    def energy(self, values: Mapping[int, float | None]) -> Energy:
        """Its energy, emissions and cost on values of its factors."""
        return amounts(*self.it_j, self.quality, Factors(*(values[one] for one in self.factors)))  # type: ignore[arg-type]


def posting_of(row: Sequence[Any]) -> Posting:
    """The posting in a row of the table."""
    hour, namespace, kind, name, zone, quality, *others = row
    count = len(FACTOR_COLUMNS)
    return Posting(
        hour,
        (namespace, kind, name, zone),
        PowerQuality(quality),
        tuple(others[:count]),
        (others[count], others[count + 1], others[count + 2]),
    )


def postings_on(connection: Connection, kind: FactorKind, numbers: Sequence[int], from_hour: int) -> Iterator[Posting]:
    """All postings from an hour on that rest on some factors of one kind."""
    column = schema.postings.c[FACTOR_COLUMNS[FACTOR_KINDS.index(kind)]]
    for first in range(0, len(numbers), AT_ONCE):
        query = select(schema.postings).where(
            schema.postings.c.hour >= from_hour, column.in_(numbers[first : first + AT_ONCE])
        )
        for row in connection.execute(query):
            yield posting_of(row)


def _use(kind: FactorKind, steps: Steps, place: int, hour_s: float) -> Use:
    value = float(steps.values[place])
    return Use(kind, max(hour_s, float(steps.starts_s[place])), None if math.isnan(value) else value)
