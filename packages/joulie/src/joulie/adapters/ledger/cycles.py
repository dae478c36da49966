"""Books one accounting cycle: extends every pod's account from its last sample to the new one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import Connection

from joulie.adapters.ledger import budgets, schema
from joulie.adapters.ledger.accounts import Account, Power, add_accounts, find_accounts, write_accounts
from joulie.adapters.ledger.postings import Postings, slot_s
from joulie.adapters.ledger.profiles import NewSample, keep_profiles
from joulie.adapters.ledger.reservations import asset_ids, count_units, note_pue_sources, reserve
from joulie.adapters.ledger.savings import with_savings, write_savings
from joulie.adapters.ledger.signals import remember
from joulie.adapters.ledger.statements import bulk, set_state, state_of, upsert
from joulie.domain.accounting.embodied import Asset
from joulie.domain.accounting.factors import SIGNAL_KINDS, Steps, steps_between
from joulie.domain.accounting.integrate import Buckets, Stretches, by_span, integrate, qualities
from joulie.domain.accounting.records import (
    BUDGET_SLOT_S,
    ENERGY_FIELDS,
    Cycle,
    CycleResult,
    Energy,
    PowerQuality,
    Sample,
    ZoneSignals,
)
from joulie.domain.accounting.thinning import Thinner
from joulie.domain.quantities import SECONDS_PER_HOUR
from joulie.domain.units import FloatArray

_HOURS_PER_DAY = 24
_AT_ONCE = 1000
"""Intervals integrated at once; after a long gap each one is split into many buckets."""
_NO_SIGNALS = ZoneSignals()


@dataclass(frozen=True, slots=True)
class _Stretch:
    """An interval of one pod that this cycle accounts."""

    account: Account
    from_s: float
    until_s: float
    from_w: Power
    until_w: Power
    measured: bool
    assumed: bool

    @property
    def quality(self) -> PowerQuality:
        """How its power is known, between both samples."""
        if self.assumed:
            return PowerQuality.ASSUMED
        return PowerQuality.MEASURED if self.measured else PowerQuality.MODELLED


class Booking:
    """One cycle within one transaction.

    Args:
        connection: connection with the open transaction.
        cycle: the cycle.
        max_gap_s: gap between samples beyond which the power counts as assumed, s.
        max_samples: maximum number of samples of a pod's profile.
        thinner: selects the samples that are kept.
    """

    def __init__(
        self, connection: Connection, cycle: Cycle, max_gap_s: float, max_samples: int, thinner: Thinner
    ) -> None:
        self._connection = connection
        self._cycle = cycle
        self._max_gap_s = max_gap_s
        self._max_samples = max_samples
        self._thinner = thinner
        self._late = 0
        self._first_hour = 0
        self._asset_ids: dict[Asset | None, int] = {}
        self._started: list[Account] = []
        self._ended: list[Account] = []
        self._stretches: list[_Stretch] = []
        self._new_samples: list[NewSample] = []

    def book(self) -> CycleResult:
        """Write the cycle and return what it added."""
        state = state_of(self._connection)
        self._asset_ids = asset_ids(self._connection, self._cycle.samples)
        began_s = float(state.get("began_s", self._cycle.time_s))
        self._first_hour = int(float(state.get("closed_s", "0")) // SECONDS_PER_HOUR)
        signals = self._cycle.signals
        refused = self._follow(began_s)
        add_accounts(self._connection, self._started)
        moved = (stretch.account for stretch in self._stretches)
        changed = list({id(account): account for account in (*self._started, *moved, *self._ended)}.values())
        budgets.begin(self._connection, self._cycle, began_s)
        added = self._integrate(changed, signals)
        first_day = self._first_hour // _HOURS_PER_DAY
        booked = [(one.account, one.from_s, one.until_s) for one in self._stretches]
        reserve(self._connection, booked, first_day)
        delivered = {one.uid: one.delivered for one in self._cycle.completions if one.delivered is not None}
        count_units(self._connection, self._ended, delivered, first_day)
        note_pue_sources(self._connection, booked, self._cycle.pue_sources, first_day)
        keep_profiles(self._connection, self._new_samples, changed, self._max_samples, self._thinner)
        write_accounts(self._connection, changed)
        for zone, known in signals.items():
            remember(self._connection, zone, known, self._cycle.time_s)
        completed = [with_savings(self._connection, account) for account in self._ended]
        write_savings(self._connection, completed)
        if "began_s" not in state:
            set_state(self._connection, {"began_s": repr(began_s)})
        return CycleResult(added, completed, self._late, refused)

    def _follow(self, began_s: float) -> int:
        """Extend all accounts to the cycle; returns the number of invalid samples."""
        sound = [one for one in self._cycle.samples if _is_sound(one)]
        ends = {one.uid: min(one.time_s, self._cycle.time_s) for one in self._cycle.completions}
        accounts = find_accounts(self._connection, {one.pod.uid for one in sound} | ends.keys())
        for sample in sound:
            uid = sample.pod.uid
            time_s = ends.get(uid, self._cycle.time_s)
            if uid not in accounts:
                accounts[uid] = self._start(sample, time_s, began_s)
            elif not accounts[uid].completed and time_s > accounts[uid].sampled_s:
                self._move(accounts[uid], sample, time_s)
            else:
                self._late += 1
        for uid, end_s in ends.items():
            account = accounts.get(uid)
            if account is None or account.completed:
                self._late += 1
            else:
                self._end(account, end_s)
        return len(self._cycle.samples) - len(sound)

    def _start(self, sample: Sample, time_s: float, began_s: float) -> Account:
        """Open the account of a new pod: from its start, but not before the ledger's first cycle."""
        started_s = sample.pod.started_s
        from_s = time_s if started_s is None else min(max(started_s, began_s), time_s)
        account = Account.new(sample, from_s)
        self._note_reservation(account, sample)
        self._started.append(account)
        self._remember_power(account, from_s)
        if time_s > from_s:
            self._move(account, sample, time_s)
        return account

    def _move(self, account: Account, sample: Sample, time_s: float) -> None:
        """Account the interval up to a sample."""
        measured, assumed = qualities(account.quality, sample.quality, time_s - account.sampled_s > self._max_gap_s)
        power_w = (sample.cpu_w, sample.mem_w, sample.gpu_w)
        self._stretches.append(
            _Stretch(account, account.sampled_s, time_s, account.power_w, power_w, measured, assumed)
        )
        account.pod, account.sampled_s, account.power_w = sample.pod, time_s, power_w
        account.quality, account.source = sample.quality, sample.source
        self._note_reservation(account, sample)
        self._remember_power(account, time_s)

    def _note_reservation(self, account: Account, sample: Sample) -> None:
        if sample.reservation is not None:
            account.asset_id = self._asset_ids[sample.reservation.asset]
            account.shares = sample.reservation.shares

    def _end(self, account: Account, end_s: float) -> None:
        """Account the interval up to the end of a pod, at its last power."""
        if end_s > account.sampled_s:
            gap = end_s - account.sampled_s > self._max_gap_s
            measured, assumed = qualities(account.quality, account.quality, gap)
            power_w = account.power_w
            self._stretches.append(_Stretch(account, account.sampled_s, end_s, power_w, power_w, measured, assumed))
            account.sampled_s = end_s
            self._remember_power(account, end_s)
        account.completed = True
        self._ended.append(account)

    def _remember_power(self, account: Account, time_s: float) -> None:
        account.samples += 1
        self._new_samples.append(NewSample(account, time_s, account.power_w))

    def _integrate(self, changed: Sequence[Account], signals: Mapping[str, ZoneSignals]) -> dict[str, Energy]:
        """Integrate the intervals into hours and accounts; returns the energy by namespace."""
        place = {id(account): index for index, account in enumerate(changed)}
        namespaces = sorted({account.pod.namespace for account in changed})
        number = {namespace: index for index, namespace in enumerate(namespaces)}
        by_account = np.array([account.energy for account in changed]).reshape(-1, len(ENERGY_FIELDS))
        by_namespace = np.zeros((len(namespaces), len(ENERGY_FIELDS)))
        by_zone: dict[str, list[_Stretch]] = {}
        for stretch in self._stretches:
            by_zone.setdefault(stretch.account.pod.zone, []).append(stretch)
        for zone, all_of_zone in by_zone.items():
            known = signals.get(zone, _NO_SIGNALS)
            postings = Postings(self._connection, zone, self._first_hour)
            for first in range(0, len(all_of_zone), _AT_ONCE):
                own = all_of_zone[first : first + _AT_ONCE]
                stretches = _arrays(own)
                steps = self._steps(zone, known, stretches)
                pieces = integrate(stretches, steps)
                postings.add(pieces, steps, [one.account.pod for one in own], [one.quality for one in own])
                buckets = by_span(pieces)
                accounts = np.array([place[id(one.account)] for one in own])[buckets.stretch]
                np.add.at(by_account, accounts, buckets.energy)
                spaces = np.array([number[one.account.pod.namespace] for one in own])[buckets.stretch]
                np.add.at(by_namespace, spaces, buckets.energy)
                self._write_hours(own, buckets)
            postings.write()
            self._count_for_budgets(zone, all_of_zone, known)
        for account, energy in zip(changed, by_account.tolist(), strict=True):
            account.energy = energy
        self._add_totals(namespaces, by_namespace)
        return {namespace: Energy(*by_namespace[index].tolist()) for namespace, index in number.items()}

    def _steps(self, zone: str, known: ZoneSignals, stretches: Stretches) -> list[Steps]:
        """The signals of a zone over all of the stretches, in the order of `SIGNAL_KINDS`."""
        span = float(stretches.from_s.min()), float(stretches.until_s.max())
        return [
            steps_between(series, *span, slot_s(self._connection, zone, kind))
            for kind, series in zip(SIGNAL_KINDS, (known.intensity, known.marginal, known.price), strict=True)
        ]

    def _add_totals(self, namespaces: Sequence[str], added: FloatArray) -> None:
        statement = upsert(self._connection, schema.totals, added=ENERGY_FIELDS)
        rows = [(namespace, *energy) for namespace, energy in zip(namespaces, added.tolist(), strict=True)]
        bulk(self._connection, statement, ("namespace", *ENERGY_FIELDS), rows)

    def _write_hours(self, stretches: Sequence[_Stretch], buckets: Buckets) -> None:
        statement = upsert(self._connection, schema.hours, added=ENERGY_FIELDS, replaced=("until_s",))
        rows = [
            (
                stretches[place].account.id,
                max(hour, self._first_hour),
                max(stretches[place].from_s, hour * SECONDS_PER_HOUR),
                min(stretches[place].until_s, (hour + 1) * SECONDS_PER_HOUR),
                *energy,
            )
            for place, hour, energy in zip(
                buckets.stretch.tolist(), buckets.hour.tolist(), buckets.energy.tolist(), strict=True
            )
        ]
        bulk(self._connection, statement, ("pod_id", "hour", "from_s", "until_s", *ENERGY_FIELDS), rows)

    def _count_for_budgets(self, zone: str, stretches: Sequence[_Stretch], known: ZoneSignals) -> None:
        """Count the intervals of one zone for the budgets of their pods."""
        for scope in self._cycle.budgets:
            own = [one for one in stretches if one.account.pod.uid in scope.pods]
            if own:
                arrays = _arrays(own)
                pieces = integrate(arrays, self._steps(zone, known, arrays), BUDGET_SLOT_S, [scope.since_s])
                budgets.add(self._connection, scope, pieces)


def _is_sound(sample: Sample) -> bool:
    """Whether all powers are finite and not negative."""
    return all(0.0 <= power_w < math.inf for power_w in (sample.cpu_w, sample.mem_w, sample.gpu_w))


def _arrays(stretches: Sequence[_Stretch]) -> Stretches:
    pods = [one.account.pod for one in stretches]
    return Stretches(
        np.array([one.from_s for one in stretches]),
        np.array([one.until_s for one in stretches]),
        np.array([one.from_w for one in stretches]),
        np.array([one.until_w for one in stretches]),
        np.array([(pod.pue, pod.pue, pod.gpu_pue) for pod in pods]),
        np.array([one.measured for one in stretches]),
        np.array([one.assumed for one in stretches]),
    )
