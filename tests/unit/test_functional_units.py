"""Functional units by PromQL: once a day, until there is an answer, and never twice."""

import pytest

from joulie.adapters.ledger import open_ledger
from joulie.apps.accounting.async_ledger import AsyncLedger
from joulie.apps.accounting.functional_units import FunctionalUnits
from joulie.domain.accounting.inventory import UnitQuery
from joulie.domain.accounting.journal import Month
from joulie.domain.accounting.records import UnitCount
from joulie.domain.accounting.sci import WorkloadKey
from support.prometheus_answers import NOW_S, asked_of, matrix

QUERY = UnitQuery("shop", "Deployment", "web", "request", "sum(increase(requests[$window]))")
NOW_DAY_S = NOW_S // 86400.0 * 86400.0


def booked(tmp_path, answer, times=1):
    """What a ledger has after some looks, and the queries."""
    ledger = open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}")

    async def ask(prometheus):
        for _ in range(times):
            await FunctionalUnits(prometheus, AsyncLedger(ledger), [QUERY]).book_due(NOW_DAY_S + 3600.0)

    _, queries = asked_of({"increase": answer}, ask)
    found = ledger.month(Month.of(NOW_S)).units
    ledger.close()
    return found, queries


def test_each_day_of_the_last_week_is_booked_once(tmp_path):
    found, queries = booked(tmp_path, matrix(({}, [(0, 41.5)])), times=2)
    assert sum(count.amount for _, count in found) == 7 * 41.5
    assert {(workload, count.unit) for workload, count in found} == {
        (WorkloadKey("shop", "Deployment", "web"), "request")
    }
    assert set(queries) == {"sum(increase(requests[86400s]))"}
    booked(tmp_path, matrix(({}, [(0, 99.0)])))
    assert sum(count.amount for _, count in booked(tmp_path, matrix())[0]) == 7 * 41.5


@pytest.mark.parametrize(
    "answer",
    [matrix(), matrix(({}, [(0, -1.0)])), matrix(({"a": "1"}, [(0, 1.0)]), ({"a": "2"}, [(0, 1.0)]))],
    ids=["nothing", "negative", "several"],
)
def test_no_answer_is_no_zero(tmp_path, answer, caplog):
    assert booked(tmp_path, answer)[0] == []
    assert "functional units are not known yet" in caplog.text


def test_days_of_a_closed_month_take_no_units(tmp_path, monkeypatch):
    ledger = open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    monkeypatch.setattr("joulie.adapters.ledger.store.state_of", lambda _connection: {"closed_s": repr(NOW_DAY_S)})
    count = UnitCount("request", 1.0, "query")
    assert not ledger.book_units(NOW_DAY_S - 86400.0, WorkloadKey("shop", "Deployment", "web"), count)
    ledger.close()
