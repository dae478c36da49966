"""A simulated day of a cluster's accounts, and the same day calculated in another way.

Pods come and go, some live between two samples, the grid's signals are missing for a while, the program dies three
times: after a cycle that it does not know to be kept, within a transaction, and for an hour. What must come out is
calculated from the generator's own samples: power between two samples is ``p0 * (1 - x) + p1 * x``, so its integral
with a step function is ``p0 * A + p1 * B``, where A and B are sums over the steps.
"""

from __future__ import annotations

import math
import timeit
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from sqlalchemy import event

from joulie.adapters.ledger import LedgerSettings, SqlLedger, open_ledger
from joulie.domain.accounting.records import Completion, Cycle, Grouping, PodMeta, PowerQuality, Sample, ZoneSignals
from joulie.domain.grid.series import Series

START_S = 1_750_000_000.0 - 1_750_000_000.0 % 86400.0 + 7.0  # so that steps and hours fall between samples
DAY_S = 86400.0
STEP_S = 900.0
ZONES = ("DE", "FR")
PUE, GPU_PUE = 1.2, 1.3
UNKNOWN = (20 * 3600.0, 21.5 * 3600.0)
"""When DE's intensity is missing, s after the start of the day."""


class DiedError(RuntimeError):
    """The program was killed."""


@dataclass
class Day:
    """Pods of a day, as arrays; times in s since `START_S`.

    Args:
        running: how many pods run at a time.
        cycle_s: time between samples.
        seed: of the generator.
    """

    running: int
    cycle_s: float
    seed: int = 1
    start: np.ndarray = field(init=False)
    end: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        generator = np.random.default_rng(self.seed)
        count = self.running
        length = generator.choice([DAY_S * 2, 3600.0 * 6, 3600.0, self.cycle_s * 0.4], count, p=[0.7, 0.15, 0.1, 0.05])
        starts, ends, slots = [], [], np.arange(count)
        now = np.where(length > DAY_S, -10.0, generator.uniform(-10.0, 3600.0, count))
        # Each slot is used again when its pod ends, by a pod of the same name and another uid.
        self.slot = np.zeros(0, np.int64)
        while len(slots):
            spread = generator.uniform(0.5, 1.5, len(slots))
            until = now + length * spread
            starts.append(now)
            ends.append(until)
            self.slot = np.append(self.slot, slots)
            pause = np.where(length < self.cycle_s, 1800.0, self.cycle_s)
            again = until + pause < DAY_S
            slots, now, length = slots[again], (until + pause)[again], length[again]
        # As times are kept: s since the epoch, to some 0.2 us.
        self.start, self.end = (START_S + np.concatenate(times) - START_S for times in (starts, ends))
        self.base_w = generator.uniform(1.0, 200.0, (len(self.start), 3))
        self.base_w[generator.random(len(self.start)) < 0.8, 2] = 0.0
        self.phase = generator.uniform(0.0, 6.28, len(self.start))
        steps = np.arange(-3600.0, DAY_S + 7200.0, STEP_S)
        self.steps = steps
        self.intensity = {zone: generator.uniform(20.0, 600.0, len(steps)) for zone in ZONES}
        self.price = generator.uniform(0.01, 0.4, len(steps))
        self.metas = [
            PodMeta(
                uid=f"{pod:08d}-uid",
                namespace=f"team-{slot % 17}",
                name=f"pod-{slot}",
                owner_kind="Job",
                owner_name=f"job-{slot // 5}",
                node=f"node-{slot % 50}",
                zone=ZONES[slot % 2],
                started_s=START_S + start,
                pue=PUE,
                gpu_pue=GPU_PUE,
            )
            for pod, (slot, start) in enumerate(zip(self.slot.tolist(), self.start.tolist(), strict=True))
        ]

    def power_w(self, pods: np.ndarray, at: float) -> np.ndarray:
        return self.base_w[pods] * (1.0 + 0.5 * np.sin(at / 700.0 + self.phase[pods]))[:, None]

    def cycle(self, at: float, before: float) -> tuple[Cycle, np.ndarray]:
        """What is found at a time, when the last look was at `before`; and the pods that are sampled."""
        pods = np.flatnonzero((self.start <= at) & (self.end > before) & ((self.end > at) | (self.start > before)))
        ended = np.flatnonzero((self.end <= at) & (self.end > before))
        power = self.power_w(pods, at).tolist()
        samples = [
            Sample(self.metas[pod], cpu, mem, gpu, PowerQuality.MODELLED, "cadvisor")
            for pod, (cpu, mem, gpu) in zip(pods.tolist(), power, strict=True)
        ]
        completions = [Completion(self.metas[pod].uid, START_S + self.end[pod]) for pod in ended.tolist()]
        recent = (self.steps >= before - 3600.0) & (self.steps <= at)
        steps = START_S + self.steps[recent]
        signals = {
            zone: ZoneSignals(
                intensity=Series(steps, self.intensity[zone][recent], float(steps[-1]) + STEP_S),
                price=Series(steps, self.price[recent], float(steps[-1]) + STEP_S),
            )
            for zone in ZONES
            if not (zone == "DE" and UNKNOWN[0] <= at <= UNKNOWN[1])
        }
        return Cycle(START_S + at, samples, completions, signals), pods


class Reference:
    """The day again: sums by pod of energy, emissions, cost and what is not known, from knots of power."""

    def __init__(self, day: Day) -> None:
        self._day = day
        count = len(day.start)
        self.sums = np.zeros((count, 5))
        self._time = np.full(count, np.nan)
        self._power = np.zeros((count, 3))

    def follow(self, cycle: Cycle, pods: np.ndarray, before: float) -> None:
        at = cycle.time_s - START_S
        day = self._day
        end = np.minimum(day.end[pods], at)
        fresh = np.isnan(self._time[pods])
        power = day.power_w(pods, at)
        from_s = np.where(fresh, np.maximum(day.start[pods], 0.0), self._time[pods])
        from_w = np.where(fresh[:, None], power, self._power[pods])
        self._add(pods, from_s, np.maximum(end, from_s), from_w, power, cycle)
        self._time[pods], self._power[pods] = np.maximum(end, from_s), power
        gone = np.flatnonzero((day.end <= at) & (day.end > before))
        gone = gone[~np.isnan(self._time[gone])]
        self._add(
            gone,
            self._time[gone],
            np.maximum(day.end[gone], self._time[gone]),
            self._power[gone],
            self._power[gone],
            cycle,
        )
        self._time[gone] = day.end[gone]

    def _add(
        self, pods: np.ndarray, a: np.ndarray, b: np.ndarray, from_w: np.ndarray, until_w: np.ndarray, cycle: Cycle
    ) -> None:
        day = self._day
        pue = np.array([PUE, PUE, GPU_PUE])
        p0, p1, length = from_w @ pue, until_w @ pue, b - a
        for zone in ZONES:
            own = (day.slot[pods] % 2 == ZONES.index(zone)) & (length > 0.0)
            known = zone in cycle.signals
            x, y, q0, q1, n = a[own], b[own], p0[own], p1[own], length[own]
            if not len(x):
                continue
            total = np.zeros((len(x), 5))
            for step, g, price in zip(day.steps, day.intensity[zone], day.price, strict=True):
                if step + STEP_S <= x.min() or step >= y.max():
                    continue
                low, high = np.clip(step - x, 0.0, n), np.clip(step + STEP_S - x, 0.0, n)
                weight1 = (high**2 - low**2) / (2.0 * n)
                joules = q0 * (high - low - weight1) + q1 * weight1
                total[:, 0] += joules
                if known:
                    total[:, 1] += joules * g / 3.6e6
                    total[:, 2] += joules * price / 3.6e6
                else:
                    total[:, 3] += joules
                    total[:, 4] += joules
            np.add.at(self.sums, pods[own], total)


@dataclass(frozen=True)
class Outcome:
    """How far the ledger is from the reference, relative, and how long its cycles took."""

    worst_namespace: float
    worst_pod: float
    pods: int
    cycles: int
    deaths: int
    median_cycle_s: float
    slowest_cycle_s: float
    megabytes: float
    unknown_share: float


def run_day(path: Path, running: int, cycle_s: float) -> Outcome:
    """Account for a day, dying three times, and compare."""
    day = Day(running, cycle_s)
    reference = Reference(day)
    settings = LedgerSettings(max_gap_s=20 * cycle_s)
    url = f"sqlite:///{path}"
    ledger = open_ledger(url, settings)
    times = np.arange(0.0, DAY_S, cycle_s)
    died = {len(times) // 5: "after", len(times) // 2: "within", 3 * len(times) // 4: "away"}
    away = int(3600.0 // cycle_s)
    took, before, deaths, skip_to = [], -20.0, 0, 0
    for number, at in enumerate(times.tolist()):
        if number < skip_to:
            continue
        how = died.get(number)
        if how == "away":
            ledger.close()
            ledger = open_ledger(url, settings)
            deaths, skip_to = deaths + 1, number + away
            continue
        cycle, pods = day.cycle(at, before)
        if how is not None:
            _die(ledger, cycle, within=how == "within")
            ledger = open_ledger(url, settings)
            deaths += 1
        begun = timeit.default_timer()
        ledger.append(cycle)
        took.append(timeit.default_timer() - begun)
        if number % max(1, int(600.0 // cycle_s)) == 0:
            ledger.prune(cycle.time_s)
        reference.follow(cycle, pods, before)
        before = at
    outcome = _compare(ledger, day, reference, took, deaths)
    ledger.close()
    return outcome


def _die(ledger: SqlLedger, cycle: Cycle, *, within: bool) -> None:
    """The cycle is kept but nobody hears of it, or it breaks off before its end."""
    if within:

        def kill(*_: object) -> None:
            if seen.pop():
                raise DiedError

        seen = [True, False, False, False]  # at the fourth statement that writes many rows
        event.listen(ledger._engine, "before_cursor_execute", lambda *args: kill() if args[-1] else None)
        try:
            ledger.append(cycle)
        except DiedError:
            pass
        else:
            raise AssertionError("did not die")
    else:
        ledger.append(cycle)
    ledger.close()


def _compare(ledger: SqlLedger, day: Day, reference: Reference, took: list[float], deaths: int) -> Outcome:
    kept = {row.uid: row.energy for row in ledger.usage(Grouping.POD)}
    worst_pod = 0.0
    for pod, meta in enumerate(day.metas):
        if meta.uid in kept:
            worst_pod = max(worst_pod, _deviation(kept[meta.uid], reference.sums[pod]))
    worst_namespace = 0.0
    rows = ledger.usage(Grouping.NAMESPACE)
    for row in rows:
        own = [reference.sums[pod] for pod, meta in enumerate(day.metas) if meta.namespace == row.namespace]
        expected = np.array([math.fsum(column) for column in np.array(own).T])
        worst_namespace = max(worst_namespace, _deviation(row.energy, expected))
    assert {row.namespace for row in rows} == {meta.namespace for meta in day.metas}
    total = sum(row.energy.energy_j for row in rows)
    return Outcome(
        worst_namespace,
        worst_pod,
        len(day.metas),
        len(took),
        deaths,
        float(np.median(took)),
        max(took),
        ledger.counts()["bytes"] / 1e6,
        sum(row.energy.energy_without_intensity_j for row in rows) / total,
    )


def _deviation(energy: object, expected: np.ndarray) -> float:
    names = ("energy_j", "emissions_g", "cost", "energy_without_intensity_j", "energy_without_price_j")
    found = np.array([getattr(energy, name) for name in names])
    scale = np.maximum(np.abs(expected), 1e-300)
    return float(np.max(np.where(expected == found, 0.0, np.abs(found - expected) / scale)))
