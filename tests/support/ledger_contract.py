"""What every ledger does, whatever database it is in. A test module subclasses it and gives `open`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import event, select

from joulie.adapters.ledger import LedgerSettings, SqlLedger, schema
from joulie.adapters.ledger.folding import MAX_LABEL_SETS
from joulie.adapters.signing import Ed25519Signer, verify_signature
from joulie.adapters.thinning import thinner
from joulie.domain.accounting.budget import Budget, BudgetAction, crossing
from joulie.domain.accounting.embodied import WHOLE_NODE, Asset, Reservation, Spread
from joulie.domain.accounting.factors import FactorKind
from joulie.domain.accounting.journal import EntryKind, Month, Reason
from joulie.domain.accounting.records import (
    OTHER_VALUE,
    BudgetScope,
    Completion,
    Cycle,
    Energy,
    Grouping,
    Held,
    Method,
    PodMeta,
    PowerQuality,
    Sample,
    UnitCount,
    ZoneSignals,
    idle_account,
)
from joulie.domain.accounting.sci import WorkloadKey
from joulie.domain.accounting.thinning import Strategy
from joulie.domain.grid.series import Series, constant
from joulie.domain.grid.signals import Basis, Measure
from joulie.domain.runtimes import Run, Workload
from support.ledger_site import END_S, JUNE_S, MAY, Site, month_of, new_key

HOUR_S = 3600.0
T0 = 1_750_000_000.0 // 86400.0 * 86400.0
OPEN = Callable[..., SqlLedger]


class DiedError(RuntimeError):
    """The program was killed."""


def pod(name: str = "train", uid: str | None = None, **fields: Any) -> PodMeta:
    values: dict[str, Any] = {
        "namespace": "team-a",
        "owner_kind": "Job",
        "owner_name": "train",
        "node": "node-1",
        "zone": "DE",
        "pue": 1.0,
        "gpu_pue": 1.0,
    }
    return PodMeta(uid or f"{name}-uid", name=name, **(values | fields))


def sample(meta: PodMeta, cpu_w: float, mem_w: float = 0.0, gpu_w: float = 0.0, **fields: Any) -> Sample:
    return Sample(meta, cpu_w, mem_w, gpu_w, **({"quality": PowerQuality.MODELLED, "source": "cadvisor"} | fields))


def steady(intensity: float = 500.0, price: float = 0.3, basis: Basis = Basis.AVERAGE) -> dict[str, ZoneSignals]:
    span = (T0 - 10 * 86400.0, T0 + 10 * 86400.0)
    carbon = "intensity" if basis is Basis.AVERAGE else "marginal"
    return {"DE": ZoneSignals(**{carbon: constant(intensity, *span), "price": constant(price, *span)})}


def only(ledger: SqlLedger, by: Grouping = Grouping.NAMESPACE, **options: Any) -> Energy:
    (row,) = ledger.usage(by, **options)
    return row.energy


def contents(ledger: SqlLedger) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of all tables; pods by uid and factors by what they say, since their numbers may differ."""
    with ledger._engine.begin() as connection:
        uids = {row.id: row.uid for row in connection.execute(select(schema.pods))}
        factors = {row.id: tuple(row)[1:] for row in connection.execute(select(schema.factors))}
        tables = {
            table.name: connection.execute(select(table)).mappings().all() for table in schema.metadata.sorted_tables
        }
    names = {("pods", "id"): uids, ("hours", "pod_id"): uids, ("samples", "pod_id"): uids, ("factors", "id"): factors}
    names |= {("postings", name): factors for name in schema.FACTOR_COLUMNS}
    rows = {
        name: [
            tuple(names[name, key][value] if (name, key) in names else value for key, value in row.items())
            for row in rows
        ]
        for name, rows in tables.items()
    }
    return {name: sorted(found, key=lambda row: [str(value) for value in row]) for name, found in rows.items()}


def dies_at(ledger: SqlLedger, statement: int) -> None:
    """Let the program die before its n-th statement from now on."""
    left = [statement]

    def count(*_: object) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise DiedError

    event.listen(ledger._engine, "before_cursor_execute", count)


def _do(ledger: SqlLedger, cycle: Cycle | None) -> None:
    """Append a cycle; None: prune."""
    if cycle is None:
        ledger.prune(T0 + 10 * 86400)
    else:
        ledger.append(cycle)


class LedgerContract:
    """The tests, without the fixture `open`: pytest refuses them in a class that does not give it.

    It opens the ledger of this test, any number of times.
    """

    def test_energy_between_samples_is_counted_by_all_groupings(self, open: OPEN) -> None:
        ledger = open()
        ledger.append(Cycle(T0, [sample(pod(pue=1.2, gpu_pue=1.5), 100, 10, 0)], signals=steady()))
        result = ledger.append(Cycle(T0 + 60, [sample(pod(pue=1.2, gpu_pue=1.5), 200, 10, 400)], signals=steady()))
        energy = only(ledger)
        assert (energy.cpu_j, energy.mem_j, energy.gpu_j) == (9000, 600, 12000)
        assert energy.energy_j == pytest.approx(9600 * 1.2 + 12000 * 1.5)
        assert energy.emissions_g == pytest.approx(energy.energy_j / 3.6e6 * 500)
        assert energy.cost == pytest.approx(energy.energy_j / 3.6e6 * 0.3)
        assert result.added == {"team-a": energy}
        (by_pod,) = ledger.usage(Grouping.POD)
        assert (by_pod.uid, by_pod.namespace, by_pod.name, by_pod.node) == ("train-uid", "team-a", "train", "node-1")
        assert (by_pod.from_s, by_pod.until_s) == (T0, T0 + 60)
        (by_job,) = ledger.usage(Grouping.JOB)
        assert (by_job.namespace, by_job.owner_kind, by_job.owner_name) == ("team-a", "Job", "train")
        assert only(ledger, Grouping.NODE) == only(ledger, Grouping.DAY) == energy
        assert only(ledger, namespace="team-a") == energy
        assert list(ledger.usage(Grouping.NAMESPACE, namespace="team-b")) == []

    def test_energy_by_two_groupings_adds_up_to_that_by_one(self, open: OPEN) -> None:
        ledger = open()
        pods = [pod(name, namespace=team, node=node) for name, team, node in (
            ("a", "team-a", "node-1"), ("b", "team-a", "node-2"), ("c", "team-b", "node-1"))]  # fmt: skip
        for step in range(7):
            samples = [sample(one, 100.0 * (number + 1)) for number, one in enumerate(pods)]
            ledger.append(Cycle(T0 + step * 600.0, samples, signals=steady()))
        rows = ledger.usage(Grouping.NAMESPACE, also=frozenset({Grouping.NODE}))
        assert [(row.namespace, row.node) for row in rows] == [
            ("team-b", "node-1"), ("team-a", "node-2"), ("team-a", "node-1"),
        ]  # fmt: skip
        for team in ("team-a", "team-b"):
            whole = only(ledger, namespace=team).energy_j
            assert sum(row.energy.energy_j for row in rows if row.namespace == team) == pytest.approx(whole)
        hours = ledger.usage(Grouping.NODE, also=frozenset({Grouping.HOUR}), node="node-1")
        assert [(row.node, row.from_s, row.until_s) for row in hours] == [("node-1", T0, T0 + 3600.0)]
        assert hours[0].energy.cpu_j == 3600.0 * (100.0 + 300.0)
        ledger.append(Cycle(T0 + 10 * 86400.0))
        ledger.prune(T0 + 10 * 86400.0)
        folded = ledger.usage(Grouping.NAMESPACE, also=frozenset({Grouping.DAY}))
        assert {row.namespace: row.energy.cpu_j for row in folded} == {"team-a": 1.08e6, "team-b": 1.08e6}
        assert ledger.usage(Grouping.NODE, node="node-1") == []

    def test_energy_by_labels_adds_up_to_all_before_and_after_folding(self, open: OPEN) -> None:
        ledger = open()
        teams = {"a": (("cost-centre", "7"), ("team", "vision")), "b": (("team", "vision"),), "c": ()}
        idle = idle_account("node-1", "n1", "DE", 1.0, 1.0)
        for hour in range(3):
            samples = [sample(pod(name, labels=labels), 100.0 + ord(name)) for name, labels in teams.items()]
            ledger.append(Cycle(T0 + hour * HOUR_S, [*samples, sample(idle, 50.0)], signals=steady()))

        def by_labels(*keys: str) -> dict[tuple[str, ...], float]:
            rows = ledger.usage(Grouping.LABEL, labels=keys)
            assert sum(row.energy.energy_j for row in rows) == pytest.approx(
                sum(row.energy.energy_j for row in ledger.usage(Grouping.NAMESPACE)), rel=1e-12
            )
            return {row.labels: row.energy.cpu_j for row in rows}

        expected = {
            ("team",): {("vision",): 2 * HOUR_S * 395.0, ("",): 2 * HOUR_S * 199.0, ("__idle__",): 2 * HOUR_S * 50.0},
            ("cost-centre", "team"): {
                ("7", "vision"): 2 * HOUR_S * 197.0, ("", "vision"): 2 * HOUR_S * 198.0,
                ("", ""): 2 * HOUR_S * 199.0, ("__idle__", "__idle__"): 2 * HOUR_S * 50.0,
            },
        }  # fmt: skip
        assert {keys: by_labels(*keys) for keys in expected} == expected
        assert list(ledger.usage(Grouping.LABEL, labels=["team"], namespace="team-b")) == []
        ledger.append(Cycle(T0 + 10 * 86400.0))
        ledger.prune(T0 + 10 * 86400.0)
        assert ledger.counts()["hours"] == 0
        assert {keys: by_labels(*keys) for keys in expected} == expected
        assert {row.pod.labels for row in ledger.export()} == set(teams.values())
        days = ledger.usage(Grouping.LABEL, also=frozenset({Grouping.DAY, Grouping.NAMESPACE}), labels=["team"])
        assert {(row.namespace, row.labels) for row in days} == {
            ("team-a", ("vision",)), ("team-a", ("",)), ("", ("__idle__",)),
        }  # fmt: skip
        assert open().verify(verify_signature).broken is None

    def test_labels_that_tenants_choose_cannot_fill_the_journal(self, open: OPEN) -> None:
        ledger = open()
        metas = [pod(f"p{number}", labels=(("run", str(number)),)) for number in range(3 * MAX_LABEL_SETS)]
        for hour in range(2):
            samples = [sample(meta, 1.0 + number) for number, meta in enumerate(metas)]
            ledger.append(Cycle(T0 + hour * HOUR_S, samples, signals=steady()))
        whole = only(ledger).energy_j
        ledger.prune(T0 + 10 * 86400.0)
        rows = ledger.usage(Grouping.LABEL, labels=["run"])
        assert len(rows) == ledger.counts()["entries"] == MAX_LABEL_SETS
        assert sum(row.energy.energy_j for row in rows) == pytest.approx(whole, rel=1e-12)
        assert rows[0].labels == (OTHER_VALUE,)
        assert {row.labels for row in rows[1:]} == {(str(number),) for number in range(41, 60)}

    def test_what_is_said_twice_counts_once(self, open: OPEN) -> None:
        ledger = open()
        cycles = [Cycle(T0 + 30 * number, [sample(pod(), 100 + number)], signals=steady()) for number in range(5)]
        for cycle in cycles:
            ledger.append(cycle)
        once = contents(ledger)
        results = [ledger.append(cycle) for cycle in (cycles[4], cycles[2], cycles[4])]
        assert [result.late for result in results] == [1, 1, 1]
        assert not any(result.added.get("team-a", Energy()).energy_j for result in results)
        assert contents(ledger) == once

    def test_runs_are_joined_by_job_and_only_finished_ones_count(self, open: OPEN) -> None:
        ledger, etl = open(), Workload("team-a", "CronJob", "etl")
        first = Run("job-1", etl, T0, T0 + 60.0, 60.0, finished=False)
        ledger.record_runs([first, Run("job-2", etl, T0, T0 + 90.0, 90.0, finished=True)])
        assert ledger.run_durations() == {etl: [90.0]}
        second = Run("job-1", etl, T0 + 60.0, T0 + 100.0, 40.0, finished=True)
        for _ in range(2):
            ledger.record_runs([first, second])
        assert open().run_durations() == {etl: [100.0, 90.0]}

    def test_texts_are_kept_beside_the_accounts(self, open: OPEN) -> None:
        ledger = open()
        assert ledger.texts() == {}
        ledger.keep({"a": "1", "version": "of nothing"})
        ledger.keep({"a": "2" * 100_000})
        ledger.close()
        assert open().texts() == {"a": "2" * 100_000, "version": "of nothing"}

    def test_the_latest_runs_of_a_workload_are_kept(self, open: OPEN) -> None:
        ledger = open()
        often, seldom = Workload("a", "CronJob", "often"), Workload("a", "CronJob", "seldom")
        runs = [Run(f"o{one}", often, T0 + one, T0 + 2 * one + 1, one + 1.0, finished=True) for one in range(60)]
        ledger.record_runs([*runs, Run("s", seldom, T0, T0 + 5.0, 5.0, finished=True)])
        latest = [float(one) for one in range(60, 10, -1)]
        assert ledger.run_durations() == {often: latest, seldom: [5.0]}
        ledger.prune(T0 + 86400.0)
        assert ledger.run_durations() == {often: latest, seldom: [5.0]}
        assert len(contents(ledger)["runs"]) == 51
        ledger.prune(T0 + 91 * 86400.0)
        assert ledger.run_durations() == {}

    def test_trap_history_is_lost_on_restart(self, open: OPEN) -> None:
        ledger = open()
        ledger.append(Cycle(T0, [sample(pod(), 100)], signals=steady()))
        ledger.append(Cycle(T0 + 30, [sample(pod(), 100)], signals=steady()))
        ledger.close()
        ledger = open()
        assert ledger.open_pods()["train-uid"].sampled_s == T0 + 30
        ledger.append(Cycle(T0 + 90, [sample(pod(), 100)], signals=steady()))
        assert only(ledger).energy_j == pytest.approx(9000)
        assert only(ledger).assumed_j == 0.0

    def test_a_gap_is_counted_and_said_to_be_assumed(self, open: OPEN) -> None:
        ledger = open(LedgerSettings(max_gap_s=300))
        ledger.append(Cycle(T0, [sample(pod(), 100)]))
        ledger.append(Cycle(T0 + 4 * HOUR_S, [sample(pod(), 300)]))
        assert only(ledger).energy_j == pytest.approx(200 * 4 * HOUR_S)
        assert only(ledger).assumed_j == only(ledger).energy_j

    def test_a_pod_is_accounted_from_its_start_to_its_end(self, open: OPEN) -> None:
        ledger = open()
        ledger.append(Cycle(T0))
        early = pod(started_s=T0 + 10)
        ledger.append(Cycle(T0 + 30, [sample(early, 100)]))
        result = ledger.append(Cycle(T0 + 60, completions=[Completion(early.uid, T0 + 45)]))
        assert only(ledger).energy_j == pytest.approx(3500)
        (done,) = result.completed
        assert (done.from_s, done.until_s, done.energy.energy_j) == (T0 + 10, T0 + 45, pytest.approx(3500))
        assert ledger.open_pods() == {}

    def test_nothing_is_counted_of_the_time_before_there_was_a_ledger(self, open: OPEN) -> None:
        ledger = open()
        ledger.append(Cycle(T0, [sample(pod(started_s=T0 - 86400), 100)]))
        ledger.append(Cycle(T0 + 30, [sample(pod(started_s=T0 - 86400), 100)]))
        assert only(ledger).energy_j == pytest.approx(3000)

    def test_a_pod_that_lived_between_two_samples_is_accounted(self, open: OPEN) -> None:
        ledger = open()
        ledger.append(Cycle(T0))
        short = pod(started_s=T0 + 5)
        cycle = Cycle(
            T0 + 30, [sample(short, 100, quality=PowerQuality.ASSUMED)], [Completion(short.uid, T0 + 25)], steady()
        )
        (done,) = ledger.append(cycle).completed
        assert done.energy.energy_j == done.energy.assumed_j == pytest.approx(2000)
        again = ledger.append(cycle)
        assert (again.completed, again.late) == ([], 2)
        assert only(ledger).energy_j == pytest.approx(2000)

    def test_two_pods_of_one_name_are_two(self, open: OPEN) -> None:
        ledger = open()
        first, second = pod(uid="first"), pod(uid="second")
        for time_s in (T0, T0 + 30):
            ledger.append(Cycle(time_s, [sample(first, 100)]))
        ledger.append(Cycle(T0 + 60, [sample(second, 10)], [Completion("first", T0 + 30)]))
        ledger.append(Cycle(T0 + 90, [sample(second, 10)]))
        assert {row.uid: row.energy.energy_j for row in ledger.usage(Grouping.POD)} == {"first": 3000, "second": 300}

    def test_a_sample_that_is_no_power_is_refused_and_its_time_counted_by_the_next(self, open: OPEN) -> None:
        ledger = open()
        ledger.append(Cycle(T0, [sample(pod(), 100)]))
        result = ledger.append(Cycle(T0 + 30, [sample(pod(), float("nan")), sample(pod("b"), -1)]))
        assert result.refused == 2
        ledger.append(Cycle(T0 + 60, [sample(pod(), 100)]))
        assert only(ledger).energy_j == pytest.approx(6000)

    def test_measured_and_assumed_parts_are_told_apart(self, open: OPEN) -> None:
        ledger = open()
        kepler = {"quality": PowerQuality.MEASURED, "source": "kepler"}
        ledger.append(Cycle(T0, [sample(pod("a"), 100, **kepler), sample(pod("b"), 100)]))
        ledger.append(Cycle(T0 + 10, [sample(pod("a"), 100, **kepler), sample(pod("b"), 100)]))
        energy = only(ledger)
        assert (energy.energy_j, energy.measured_j, energy.assumed_j) == (2000, 1000, 0)

    def test_trap_average_and_marginal_intensity_mixed(self, open: OPEN) -> None:
        ledger = open()
        ledger.append(Cycle(T0, [sample(pod(), 1000)], signals=steady()))
        ledger.append(Cycle(T0 + 30, [sample(pod(), 1000)], signals=steady(900.0, basis=Basis.MARGINAL)))
        energy = only(ledger)
        assert energy.emissions_g == 0.0
        assert energy.energy_without_intensity_j == energy.energy_j
        assert energy.marginal_g == pytest.approx(30000 / 3.6e6 * 900)
        assert energy.cost > 0.0
        ledger.append(Cycle(T0 + 60, [sample(pod(), 1000)], signals=steady(100.0)))
        assert only(ledger).emissions_g == pytest.approx(30000 / 3.6e6 * 100)
        assert only(ledger).marginal_g == energy.marginal_g

    def test_a_pod_s_facts_follow_the_latest_sample(self, open: OPEN) -> None:
        ledger = open()
        ledger.append(Cycle(T0, [sample(pod(pue=1.0), 100)]))
        held = Held(carbon_since_s=T0 - HOUR_S, initial_g_per_kwh=400.0)
        ledger.append(Cycle(T0 + 10, [sample(pod(pue=1.5, held=held), 100)]))
        assert ledger.open_pods()["train-uid"].pod == pod(pue=1.5, held=held)
        assert only(ledger).energy_j == pytest.approx(1500)

    @pytest.mark.slow
    def test_savings_are_those_of_the_same_profile_when_it_was_first_held(self, open: OPEN) -> None:
        ledger = open(LedgerSettings(max_samples_per_pod=8))
        series = Series([T0 - 2 * HOUR_S, T0], [600.0, 100.0], T0 + 2 * HOUR_S)
        signals = {"DE": ZoneSignals(series, price=constant(0.2, T0, T0 + 2 * HOUR_S))}
        held = Held(carbon_since_s=T0 - 2 * HOUR_S, price_since_s=T0 - HOUR_S, initial_per_kwh=0.5, bind_per_kwh=0.2)
        meta = pod(held=held, started_s=T0)
        ledger.append(Cycle(T0))
        for minute in range(1, 61):
            ledger.append(Cycle(T0 + 60 * minute, [sample(meta, 1000)], signals=signals))
        cycle = Cycle(T0 + HOUR_S + 60, completions=[Completion(meta.uid, T0 + HOUR_S)], signals=signals)
        (done,) = ledger.append(cycle).completed
        assert done.energy.energy_j == pytest.approx(3.6e6)
        assert done.carbon is not None
        assert done.cost is not None
        assert (done.carbon.amount, done.carbon.method) == (pytest.approx(500), Method.TIMESERIES)
        # Nobody knows the prices of the hour before, so the two moments must do.
        assert (done.cost.amount, done.cost.method) == (pytest.approx(0.3), Method.SIMPLE)
        assert ledger.append(cycle).completed == []
        rows = ledger.savings()
        assert {(row.measure, row.amount, row.uid) for row in rows} == {
            (Measure.CARBON, done.carbon.amount, meta.uid),
            (Measure.PRICE, done.cost.amount, meta.uid),
        }
        assert ledger.savings(since_s=T0 + 3 * HOUR_S) == []
        assert ledger.savings(namespace="team-b") == []
        ledger.prune(T0 + 5 * 86400)
        folded = ledger.savings()
        assert {(row.measure, row.uid, row.pods) for row in folded} == {(Measure.CARBON, "", 1), (Measure.PRICE, "", 1)}
        assert sum(row.amount for row in folded) == pytest.approx(done.carbon.amount + done.cost.amount)

    @pytest.mark.slow
    def test_recorded_samples_give_the_energy_again(self, open: OPEN) -> None:
        ledger = open()
        ledger.append(Cycle(T0))
        meta = pod(started_s=T0 + 7.25, pue=1.3, gpu_pue=1.7)
        for number in range(1, 30):
            power_w = (100.0 + 37.0 * number % 91, 3.5 + number / 7, 40.0 * (number % 3))
            ledger.append(Cycle(T0 + 30 * number, [sample(meta, *power_w)], signals=steady(321.0)))
        ledger.append(Cycle(T0 + 900, completions=[Completion(meta.uid, T0 + 881.5)], signals=steady(321.0)))
        times, cpu, mem, gpu = np.array(ledger.profile(meta.uid)).T
        energy_j = np.trapezoid(1.3 * (cpu + mem) + 1.7 * gpu, times)
        assert (times[0], times[-1]) == (T0 + 7.25, T0 + 881.5)
        assert only(ledger).energy_j == pytest.approx(energy_j, rel=1e-9)
        assert only(ledger).emissions_g == pytest.approx(energy_j / 3.6e6 * 321, rel=1e-9)
        assert ledger.profile("nobody") == []

    @pytest.mark.slow
    @pytest.mark.parametrize("strategy", list(Strategy))
    def test_profiles_are_thinned_and_energy_is_not(self, open: OPEN, strategy: Strategy) -> None:
        ledger = open(LedgerSettings(max_samples_per_pod=40, thinner=thinner(strategy)))
        metas = [pod(str(number)) for number in range(12)]
        most = 0
        for number in range(100):
            power_w = 100.0 + 50.0 * (number % 7)
            ledger.append(Cycle(T0 + 30 * number, [sample(meta, power_w) for meta in metas]))
            most = max(most, *(len(ledger.profile(meta.uid)) for meta in metas[:2]))
        assert 30 <= most <= 40
        assert ledger.counts()["samples"] == sum(len(ledger.profile(meta.uid)) for meta in metas)
        powers = [100.0 + 50.0 * (number % 7) for number in range(100)]
        assert only(ledger).energy_j == pytest.approx(12 * 30 * float(np.trapezoid(powers)), rel=1e-12)

    def test_a_pod_that_has_ended_stays_so(self, open: OPEN) -> None:
        ledger = open()
        ledger.append(Cycle(T0, [sample(pod(), 100)]))
        ledger.append(Cycle(T0 + 30, completions=[Completion("train-uid", T0 + 30)]))
        result = ledger.append(Cycle(T0 + 60, [sample(pod(), 100)], [Completion("train-uid", T0 + 55)]))
        assert (result.late, result.completed, result.added) == (2, [], {})
        assert only(ledger).energy_j == pytest.approx(3000)

    def test_a_history_with_a_gap_is_no_history(self, open: OPEN) -> None:
        ledger = open()
        day = [Series([T0 + hour * HOUR_S], [100.0], T0 + (hour + 1) * HOUR_S) for hour in range(5)]
        held = Held(carbon_since_s=T0 + 0.5 * HOUR_S, initial_g_per_kwh=300.0, bind_g_per_kwh=100.0)
        meta = pod(held=held, started_s=T0 + 3 * HOUR_S)
        for hour in (0, 2, 3, 4):  # the intensity of the second hour was missing
            signals = {"DE": ZoneSignals(day[hour])}
            running = [sample(meta, 1000)] if hour >= 3 else []
            ledger.append(Cycle(T0 + (hour + 1) * HOUR_S, running, signals=signals))
        (done,) = ledger.append(Cycle(T0 + 6 * HOUR_S, completions=[Completion(meta.uid, T0 + 5 * HOUR_S)])).completed
        assert done.carbon is not None
        assert (done.carbon.method, done.carbon.amount) == (Method.SIMPLE, pytest.approx(400))

    @pytest.mark.slow
    def test_trap_per_pod_series_are_never_removed(self, open: OPEN) -> None:
        keep = LedgerSettings(max_samples_per_pod=20, retention_s=600, hours_kept_s=2 * HOUR_S)
        ledger = open(keep)
        ledger.append(Cycle(T0))
        most = 0
        for number in range(12 * 6):
            time_s = T0 + 300 * (number + 1)
            meta = pod(f"job-{number}", started_s=time_s - 300)
            gone = [Completion(f"job-{number - 3}-uid", time_s)] if number >= 3 else []
            stays = pod("web", owner_kind="Deployment", owner_name="web", started_s=T0)
            ledger.append(Cycle(time_s, [sample(meta, 100), sample(stays, 50)], gone, steady()))
            ledger.prune(time_s)
            most = max(most, ledger.counts()["samples"])
        ledger.prune(T0 + 86400 + 2 * HOUR_S)
        counts = ledger.counts()
        assert counts["pods"] < 40
        assert most <= 20 + 30
        assert counts["entries"] <= 80
        total = sum(row.energy.energy_j for row in ledger.usage(Grouping.NAMESPACE))
        assert total == pytest.approx(sum(row.energy.energy_j for row in ledger.export()), rel=1e-12)
        web = [row for row in ledger.usage(Grouping.JOB) if row.owner_name == "web"]
        assert web[0].energy.energy_j == pytest.approx(50 * 300 * 72, rel=1e-12)

    @pytest.mark.slow
    def test_folding_changes_no_sum(self, open: OPEN) -> None:
        ledger = open()
        for hour in range(30):
            metas = [pod(str(name), namespace=f"team-{name % 2}") for name in range(4)]
            ledger.append(
                Cycle(T0 + hour * HOUR_S, [sample(meta, 10.0 * hour + 1) for meta in metas], signals=steady())
            )
        before = {by: ledger.usage(by) for by in (Grouping.NAMESPACE, Grouping.JOB, Grouping.DAY)}
        ledger.prune(T0 + 4 * 86400)
        assert ledger.counts()["hours"] == 0
        for by, rows in before.items():
            after = {(row.namespace, row.owner_name, row.from_s // 86400): row.energy for row in ledger.usage(by)}
            for row in rows:
                energy = after[(row.namespace, row.owner_name, row.from_s // 86400)]
                assert energy.energy_j == pytest.approx(row.energy.energy_j, rel=1e-12)
                assert energy.emissions_g == pytest.approx(row.energy.emissions_g, rel=1e-12)
        (folded,) = ledger.usage(Grouping.POD)
        assert folded.uid == ""
        ledger.append(Cycle(T0 + 30 * HOUR_S, [sample(pod("0", namespace="team-0"), 301)]))
        assert len(ledger.usage(Grouping.POD)) == 2

    @pytest.mark.slow
    def test_trap_totals_are_never_the_least_bit_lower(self, open: OPEN) -> None:
        """Sums that are made anew differ in their last bits, and a counter that falls by one counts as reset."""
        keep = LedgerSettings(hours_kept_s=HOUR_S, days_kept_s=86400.0)
        ledger = open(keep)
        metas = [pod(str(number), namespace=f"team-{number % 2}") for number in range(5)]
        sums: dict[str, Energy] = {}
        for number in range(60):
            samples = [sample(meta, 0.1 * number + one / 7) for one, meta in enumerate(metas)]
            cycle = Cycle(T0 + 3977.3 * number, samples, signals=steady())
            for namespace, energy in ledger.append(cycle).added.items():
                sums[namespace] = sums.get(namespace, Energy()) + energy
            assert ledger.append(cycle).added == {}
            if number % 30 == 29:
                ledger.prune(cycle.time_s)
                ledger.close()
                ledger = open(keep)
                assert ledger.totals() == sums
        kept_j = sum(row.energy.energy_j for row in ledger.usage(Grouping.NAMESPACE))
        assert kept_j < 0.9 * sum(one.energy_j for one in sums.values()), "the first days are kept no more"
        end_s = T0 + 60 * 3977.3
        ledger.append(Cycle(end_s, completions=[Completion(meta.uid, end_s) for meta in metas]))
        for days in (5, 10):
            ledger.prune(end_s + days * 86400.0)
        assert ledger.totals() == {}, "nothing else is left of these namespaces"

    def test_usage_of_a_time_is_rounded_outwards_to_hours(self, open: OPEN) -> None:
        ledger = open()
        for hour in range(5):
            ledger.append(Cycle(T0 + hour * HOUR_S, [sample(pod(), 100)]))
        assert only(ledger, since_s=T0 + 1.5 * HOUR_S, until_s=T0 + 2.5 * HOUR_S).energy_j == pytest.approx(2 * 360_000)
        assert len(list(ledger.export(since_s=T0 + 3 * HOUR_S))) == 1

    def test_what_nodes_draw_for_nobody_is_in_the_sums(self, open: OPEN) -> None:
        ledger = open()
        idle = idle_account("node-1", "node-uid", "DE", 1.0, 1.0)
        for time_s in (T0, T0 + 10):
            ledger.append(Cycle(time_s, [sample(pod(), 20), sample(idle, 80)]))
        assert {row.namespace: row.energy.energy_j for row in ledger.usage(Grouping.NAMESPACE)} == {
            "team-a": 200,
            "": 800,
        }
        assert only(ledger, Grouping.NODE).energy_j == 1000

    def test_a_crossing_is_acted_on_once_and_until_it_has_been(self, open: OPEN) -> None:
        ledger = open()
        crossed = crossing(Budget("train-uid", 1000.0, BudgetAction.ANNOTATE), 1500.0, T0)
        assert crossed is not None
        assert ledger.cross([crossed]) == [crossed]
        ledger.close()
        ledger = open()  # it died before it had acted
        assert ledger.cross([crossed]) == [crossed]
        ledger.acted(crossed)
        assert ledger.cross([crossed]) == []
        raised = crossing(Budget("train-uid", 1200.0, BudgetAction.ANNOTATE), 1600.0, T0 + 30)
        assert raised is not None
        assert ledger.cross([raised]) == [raised]

    @pytest.mark.slow
    def test_dying_between_statements_loses_nothing_and_counts_nothing_twice(self, open: OPEN) -> None:
        held = Held(carbon_since_s=T0 - HOUR_S, initial_g_per_kwh=400.0, bind_g_per_kwh=300.0)
        metas = [pod(str(number), started_s=T0 + number, held=held if number % 2 else None) for number in range(4)]
        cycles = [
            Cycle(T0, signals=steady()),
            Cycle(T0 + 30, [sample(meta, 100) for meta in metas[:3]], signals=steady()),
            Cycle(T0 + 60, [sample(meta, 130) for meta in metas], [Completion("1-uid", T0 + 50)], steady()),
        ]
        calm = open(name="calm")
        for cycle in cycles:
            calm.append(cycle)
        calm.prune(T0 + 10 * 86400)
        expected = contents(calm)
        for statement in range(1, 80, 3):
            ledger = open(name=f"dies-{statement}")
            ledger.append(cycles[0])
            dies_at(ledger, statement)
            died = False
            for cycle in (*cycles[1:], None):
                try:
                    _do(ledger, cycle)
                except DiedError:
                    died = True
                    ledger.close()
                    ledger = open(name=f"dies-{statement}")
                    _do(ledger, cycle)
            ledger.close()
            assert contents(open(name=f"dies-{statement}")) == expected, f"died before statement {statement}"
            if not died:
                assert statement > 40
                return
        raise AssertionError("there are more statements than were tried")

    # ---- budgets

    def test_a_budget_counts_its_pods_by_quarters_of_an_hour(self, open: OPEN) -> None:
        ledger = open()
        mine, other = pod(), pod("other")
        quarter_s = 900.0
        scope = BudgetScope("team-a/daily", "team-a", T0, frozenset({mine.uid}), by_labels=True)
        for count in range(9):
            samples = [sample(mine, 100.0), sample(other, 1000.0)]
            ledger.append(Cycle(T0 + count * 300.0, samples, signals=steady(), budgets=[scope]))
        found = ledger.budget_counts({scope.key: (T0 + quarter_s, T0 + 2 * quarter_s), "unknown": (T0, T0)})
        (count,) = found.values()
        assert count.counted_since_s == T0
        assert count.used.energy_j == pytest.approx(100.0 * 1500.0, rel=1e-12)
        assert count.used.emissions_g == pytest.approx(100.0 * 1500.0 / 3.6e6 * 500.0, rel=1e-12)
        assert count.recent.energy_j == pytest.approx(100.0 * 600.0, rel=1e-12)

    def test_a_long_gap_is_counted_in_the_periods_that_it_was_in(self, open: OPEN) -> None:
        ledger = open()
        scope = BudgetScope("team-a/daily", "team-a", T0, frozenset({pod().uid}))
        for time_s in (T0, T0 + 10 * HOUR_S):
            ledger.append(Cycle(time_s, [sample(pod(), 100.0)], signals=steady(), budgets=[scope]))
        count = ledger.budget_counts({scope.key: (T0 + 4.25 * HOUR_S, T0 + 9 * HOUR_S)})[scope.key]
        assert count.used.energy_j == pytest.approx(100.0 * 5.75 * HOUR_S, rel=1e-12)
        assert count.recent.energy_j == pytest.approx(100.0 * HOUR_S, rel=1e-12)

    def test_a_count_is_cut_where_its_period_begins(self, open: OPEN) -> None:
        ledger = open()
        turn_s = T0 + 123.5
        scope = BudgetScope("team-a/daily", "team-a", turn_s, frozenset({pod().uid}), by_labels=True)
        for time_s in (T0, T0 + 200.0):
            ledger.append(Cycle(time_s, [sample(pod(), 100.0)], signals=steady(), budgets=[scope]))
        count = ledger.budget_counts({scope.key: (turn_s, T0)})[scope.key]
        assert count.used.energy_j == pytest.approx(100.0 * 76.5, rel=1e-12)
        assert count.recent.energy_j == pytest.approx(100.0 * 200.0, rel=1e-12)

    def test_a_new_budget_begins_with_what_the_accounts_have_of_its_period(self, open: OPEN) -> None:
        ledger = open(LedgerSettings(hours_kept_s=2 * HOUR_S))
        other = pod("other", owner_name="other")
        for time_s in (T0, T0 + 4 * HOUR_S, T0 + 8 * HOUR_S):
            ledger.append(Cycle(time_s, [sample(pod(), 100.0), sample(other, 1000.0)], signals=steady()))
        ledger.prune(T0 + 8 * HOUR_S)  # six hours are folded
        until_s = T0 + 9 * HOUR_S
        pods = frozenset({pod().uid})
        of_job = BudgetScope("job", "team-a", T0, pods, "Job", "train")
        labelled = BudgetScope("label", "team-a", T0, pods, by_labels=True)
        for _ in range(2):  # the second one is late, and says nothing new
            ledger.append(Cycle(until_s, [sample(pod(), 100.0)], signals=steady(), budgets=[of_job, labelled]))
        found = ledger.budget_counts({"job": (T0, T0), "label": (T0, T0)})
        assert found["job"].used.energy_j == pytest.approx(100.0 * 9 * HOUR_S, rel=1e-12)
        assert found["job"].counted_since_s == T0
        assert found["label"].used.energy_j == pytest.approx(100.0 * HOUR_S, rel=1e-12)
        assert found["label"].counted_since_s == until_s

    def test_counts_of_budgets_outlive_the_program_and_are_dropped_after_a_month(self, open: OPEN) -> None:
        scope = BudgetScope("team-a/daily", "team-a", T0, frozenset({pod().uid}))
        ledger = open()
        for time_s in (T0, T0 + HOUR_S):
            ledger.append(Cycle(time_s, [sample(pod(), 100.0)], signals=steady(), budgets=[scope]))
        ledger.close()
        ledger = open()
        assert ledger.budget_counts({scope.key: (T0, T0)})[scope.key].used.energy_j == pytest.approx(360000.0)
        ledger.prune(T0 + 34 * 86400.0)
        assert ledger.budget_counts({scope.key: (T0, T0)}) == {}

    @pytest.mark.slow
    def test_corrections_of_a_closed_month_are_booked_in_the_open_one(self, open: OPEN, tmp_path: Path) -> None:
        ledger, site = open(), Site()
        for index in range(0, len(site.times_s), 6):
            ledger.append(site.cycle(index))
        assert ledger.rebook(site.published(), END_S)
        entry = ledger.close_month(MAY, Ed25519Signer(new_key(tmp_path / "key.pem")), END_S)
        assert ledger.closed_s() == MAY.ends_s
        before = month_of(ledger, MAY)
        site.set(FactorKind.PUE, JUNE_S - 5 * HOUR_S, JUNE_S + HOUR_S, 1.5)
        span_s = (JUNE_S - 5 * HOUR_S, JUNE_S + HOUR_S)
        done = ledger.correct("DE", FactorKind.PUE, span_s, 1.5, Reason("me", "metered"), END_S)
        assert {one.entry.from_s for one in done} == {JUNE_S, END_S}
        assert month_of(ledger, MAY) == before
        ledger.prune(END_S + 10 * 86400.0)
        found = ledger.verify(verify_signature, published={entry.number: entry.hash})
        assert (found.broken, found.months) == (None, ("2025-05",))
        assert {row["record"] for row in ledger.evidence()} == {"ledger", "factors", "postings", "entries"}

    def test_what_is_reserved_and_delivered_is_the_same_before_and_after_it_is_folded(self, open: OPEN) -> None:
        ledger = open()
        asset = Asset("server", "a test", 1e8, Spread(3e5, 2e5, 9e5))
        half, whole = (Reservation(asset, WHOLE_NODE * share) for share in (0.5, 1.0))
        node = idle_account("node-1", "node-uid", "DE", 1.0, 1.0)
        job, web = (WorkloadKey("team-a", "Job", "train"), WorkloadKey("team-a", "Deployment", "web"))
        sources = {("DE", 1.0, 1.0): "own meters"}
        for time_s in (T0, T0 + HOUR_S):
            samples = [sample(pod(), 100.0, reservation=half), sample(node, 10.0, reservation=whole)]
            ledger.append(Cycle(time_s, samples, signals=steady(), pue_sources=sources))
        delivered = UnitCount("image", 5.0, "annotation")
        end = Completion(pod().uid, T0 + 2 * HOUR_S, delivered)
        ledger.append(Cycle(T0 + 2 * HOUR_S, [sample(node, 10.0, reservation=whole)], [end], steady()))
        assert ledger.book_units(T0, web, UnitCount("request", 7.0, "query"))
        before = ledger.month(Month.of(T0))
        reserved = {one.workload.name: one.reserved_s.cpu for one in before.reserved}
        assert reserved == {"train": pytest.approx(HOUR_S), "node-1": pytest.approx(HOUR_S)}
        assert set(before.units) == {(job, delivered), (web, UnitCount("request", 7.0, "query"))}
        assert [one.source for one in before.pues] == ["own meters"]
        ledger.prune(T0 + 4 * 86400.0)
        assert not ledger.book_units(T0, web, UnitCount("request", 7.0, "query")), "booked already"
        after = ledger.month(Month.of(T0))
        assert (set(after.reserved), set(after.units)) == (set(before.reserved), set(before.units))
        assert after.pues == before.pues
        noted = [row for row in ledger.evidence() if row.get("kind") == EntryKind.PUE]
        assert (noted[-1]["from_s"], noted[-1]["zone"]) == (T0, "DE")
        assert json.loads(noted[-1]["note"]) == {"pue": 1.0, "gpu_pue": 1.0, "source": "own meters"}
        assert {key: energy.energy_j for key, energy in after.energy.items()} == pytest.approx(
            {key: energy.energy_j for key, energy in before.energy.items()}
        )
        assert ledger.verify(verify_signature).broken is None
