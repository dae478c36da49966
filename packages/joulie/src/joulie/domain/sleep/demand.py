"""Forecast of demand: the pods that are expected, from those that came at this time of earlier days.

Arrivals are counted by kind of pod in slots of five minutes, over four weeks. What is expected of a stretch of time is
a quantile of what came in that stretch on earlier days, less what has come in it today: a batch that starts at nine
each day is expected until it is there, and no longer. Days of the same weekday count alone once there are three of
them. Without such days nothing is expected. Days are those of UTC.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from joulie.domain.quantities import finite_number, positive_number
from joulie.domain.scheduling.node_rules import NodeRules
from joulie.domain.sleep.snapshot import ExpectedPods, Room
from joulie.domain.units import IntArray

SLOT_S = 300.0
SLOTS_PER_DAY = 288
MAX_DAYS = 28
"""Earlier days that count."""
MAX_KINDS = 64
"""Kinds of pods that are told apart; the rarest gives way to a new one."""
_RING = (MAX_DAYS + 1) * SLOTS_PER_DAY
_MIN_DAYS = 2
_MIN_WEEKDAYS = 3
_STEPS_PER_OCTAVE = 2.0
_MAX_RULES_CHARS = 1000
_MAX_COUNT = np.iinfo(np.uint16).max


@dataclass(frozen=True)
class ForecastSettings:
    """Settings of the forecast of demand.

    Attributes:
        quantile: quantile of earlier days that is expected, 0..1; 0 expects nothing.
        ahead_s: time before demand at which a node is woken for it, s: what it takes to wake.
        keep_s: time before demand within which a node is not put to sleep, s.
    """

    quantile: float = 0.5
    ahead_s: float = 300.0
    keep_s: float = 600.0

    def __post_init__(self) -> None:
        finite_number("quantile", self.quantile, minimum=0.0, maximum=1.0)
        positive_number("ahead_s", self.ahead_s)
        finite_number("keep_s", self.keep_s, minimum=self.ahead_s)


@dataclass(frozen=True)
class DemandState:
    """A history as it is kept over a restart.

    Attributes:
        latest: latest slot, number since the epoch.
        kinds: requests and rules of each kind.
        seen: of the slots of the ring, whether anybody watched; one bit each.
        counts: arrivals by kind and slot of the ring, 16 bits each, little-endian.
    """

    latest: int
    kinds: tuple[tuple[Room, NodeRules], ...]
    seen: bytes
    counts: bytes


_Kind = tuple[tuple[int, ...], NodeRules]


class DemandHistory:
    """Arrivals of pods in the last four weeks; it takes 1.1 MB."""

    def __init__(self) -> None:
        self._latest: int | None = None
        self._rows: dict[_Kind, int] = {}
        self._pods: list[tuple[Room, NodeRules]] = []
        self._seen = np.zeros(_RING, np.bool_)
        self._counts = np.zeros((MAX_KINDS, _RING), np.uint16)

    @property
    def days(self) -> float:
        """Time that was watched, days."""
        return float(self._seen.sum()) / SLOTS_PER_DAY

    def watch(self, now_s: float) -> None:
        """Somebody watches now: what has not come in this slot did not come."""
        slot = math.floor(now_s / SLOT_S)
        if self._latest is None or abs(slot - self._latest) >= _RING:
            self._seen[:], self._counts[:] = False, 0
        elif slot > self._latest:
            passed = np.arange(self._latest + 1, slot + 1) % _RING
            self._seen[passed], self._counts[:, passed] = False, 0
        # A clock that went back a little goes on in the slots that are there.
        if self._latest is None or slot > self._latest or abs(slot - self._latest) >= _RING:
            self._latest = slot
        self._seen[slot % _RING] = True

    def arrived(self, requests: Room, rules: NodeRules, now_s: float) -> None:
        """A pod came that kube-scheduler may bind."""
        row = self._row(requests, rules)
        if row is not None:
            self.watch(now_s)
            at = row, math.floor(now_s / SLOT_S) % _RING
            self._counts[at] = min(_MAX_COUNT, int(self._counts[at]) + 1)

    def expected(self, now_s: float, settings: ForecastSettings) -> tuple[ExpectedPods, ...]:
        """The pods that are expected now, large ones first."""
        if settings.quantile == 0.0 or not self._pods:
            return ()
        soon = self._to_come(now_s, settings.ahead_s, settings.quantile)
        later = np.maximum(soon, self._to_come(now_s, settings.keep_s, settings.quantile))
        found = [
            ExpectedPods(requests, rules, int(soon[row]), int(later[row]))
            for row, (requests, rules) in enumerate(self._pods)
            if later[row]
        ]
        return tuple(sorted(found, key=lambda one: (-one.requests.gpus, -one.requests.cores, -one.requests.memory_gib)))

    def _to_come(self, now_s: float, within_s: float, quantile: float) -> IntArray:
        """Pods of each kind that are expected within a time, shape ``(n_kinds,)``."""
        slot, last = math.floor(now_s / SLOT_S), math.floor((now_s + within_s) / SLOT_S)
        # From the slot before: what comes every day at about the same time has come, or is late.
        stretch = np.arange(slot - 1, last + 1)
        days = stretch - SLOTS_PER_DAY * np.arange(1, MAX_DAYS + 1)[:, np.newaxis]
        latest = slot if self._latest is None else self._latest
        watched = self._seen[days % _RING].all(axis=1) & (days[:, 0] > latest - _RING)
        weekdays = watched & (np.arange(1, MAX_DAYS + 1) % 7 == 0)
        chosen = weekdays if weekdays.sum() >= _MIN_WEEKDAYS else watched
        counts = self._counts[: len(self._pods)]
        if chosen.sum() < _MIN_DAYS:
            return np.zeros(len(counts), np.int64)
        came = counts[:, days[chosen] % _RING].sum(axis=2, dtype=np.int64)
        usual = np.quantile(came, quantile, axis=1, method="higher")
        today = counts[:, stretch[:2] % _RING].sum(axis=1, dtype=np.int64)
        return np.asarray(np.maximum(0, usual - today))

    # ---- kinds of pods

    def _row(self, requests: Room, rules: NodeRules) -> int | None:
        """The row of a pod's kind, as large as the largest of it; None for one that is not told apart."""
        if len(repr(rules)) > _MAX_RULES_CHARS or not all(math.isfinite(one) and one >= 0.0 for one in requests):
            return None
        kind = _kind(requests, rules)
        row = self._rows.get(kind)
        if row is None:
            row = self._new_row()
            self._rows[kind] = row
            self._pods[row : row + 1] = [(requests, rules)]
        else:
            before, _ = self._pods[row]
            self._pods[row] = Room(*map(max, before, requests)), rules
        return row

    def _new_row(self) -> int:
        if len(self._pods) < MAX_KINDS:
            return len(self._pods)
        row = int(self._counts.sum(axis=1, dtype=np.int64).argmin())
        self._rows = {kind: other for kind, other in self._rows.items() if other != row}
        self._counts[row] = 0
        return row

    # ---- over a restart

    def state(self) -> DemandState | None:
        """What is kept over a restart; None before anything was watched."""
        if self._latest is None:
            return None
        counts = self._counts[: len(self._pods)].astype("<u2").tobytes()
        return DemandState(self._latest, tuple(self._pods), np.packbits(self._seen).tobytes(), counts)

    @classmethod
    def restored(cls, state: DemandState) -> DemandHistory:
        """The history that was kept.

        Raises:
            ValueError: it is damaged.
        """
        history, n_kinds = cls(), len(state.kinds)
        if n_kinds > MAX_KINDS or len(state.counts) != 2 * n_kinds * _RING or len(state.seen) != math.ceil(_RING / 8):
            raise ValueError(f"a demand history of {n_kinds} kinds does not have {len(state.counts)} bytes")
        for row, (requests, rules) in enumerate(state.kinds):
            if not all(math.isfinite(one) and one >= 0.0 for one in requests):
                raise ValueError(f"pods cannot request {requests}")
            history._rows[_kind(requests, rules)] = row
        history._latest, history._pods = state.latest, list(state.kinds)
        history._seen[:] = np.unpackbits(np.frombuffer(state.seen, np.uint8), count=_RING)
        history._counts[:n_kinds] = np.frombuffer(state.counts, "<u2").reshape(n_kinds, _RING)
        return history


def _kind(requests: Room, rules: NodeRules) -> _Kind:
    """Pods whose requests are alike to within half an octave, and whose rules are the same."""
    steps = tuple(0 if one <= 0.0 else 1000 + round(_STEPS_PER_OCTAVE * math.log2(one)) for one in requests)
    return steps, rules
