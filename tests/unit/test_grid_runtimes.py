"""Learned runtimes, from a real ledger over the accounting program's HTTP API to the decisions of the controller."""

import asyncio
from contextlib import asynccontextmanager

import httpx2
import pytest
from prometheus_client import CollectorRegistry

from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.kubernetes.resources import JOBS, PODS
from joulie.adapters.ledger import LedgerSettings, open_ledger
from joulie.apps.accounting.api import EnergyApi
from joulie.apps.accounting.async_ledger import AsyncLedger
from joulie.apps.grid.guard import Cluster, overdue
from joulie.apps.grid.runtimes import MAX_AGE_S
from joulie.apps.grid.status_endpoint import GridStatus
from joulie.apps.kubectl.grid import _deferral_sentences
from joulie.domain.grid import names
from joulie.domain.grid.series import Series
from joulie.domain.runtimes import Run, Workload
from joulie.program.http import Probes, Server, observability_app
from support.grid_stage import EPOCH_S, NS, staged

pytestmark = pytest.mark.slow  # whole controllers on the fake cluster

HOUR_S = 3600.0
MINUTE_S = 60.0


class Accounting:
    """The ledger and its API, which a test lets be away."""

    def __init__(self, ledger):
        self.ledger = ledger
        self.away = False
        self.app = EnergyApi(AsyncLedger(ledger), "EUR", lambda: EPOCH_S).before(
            observability_app(Probes(), CollectorRegistry())
        )

    async def __call__(self, scope, receive, send):
        if self.away:
            scope = scope | {"path": "/nowhere"}
        await self.app(scope, receive, send)

    def learn(self, kind, name, *durations_s):
        workload = Workload(NS, kind, name)
        runs = [Run(f"{name}-{at}", workload, 0.0, at + one, one, finished=True) for at, one in enumerate(durations_s)]
        self.ledger.record_runs(runs)


@asynccontextmanager
async def learning(tmp_path, **settings):
    """A controller on the fake cluster and the accounting program that it asks."""
    ledger = open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}", LedgerSettings())
    accounting = Accounting(ledger)
    try:
        async with (
            Server(accounting, ("127.0.0.1", 0)) as server,
            staged(tmp_path, accounting_url=f"http://127.0.0.1:{server.port}", **settings) as stage,
            httpx2.AsyncClient() as http,
        ):
            stage.ask = lambda: stage.runtimes.refresh(http)
            yield stage, accounting
    finally:
        ledger.close()


def play(body, tmp_path, **settings):
    async def main():
        async with learning(tmp_path, **settings) as (stage, accounting):
            await body(stage, accounting)

    asyncio.run(main())


def explained(stage, pod):
    """What `kubectl joulie explain` says, and the JSON that it reads."""
    status = GridStatus(stage.feed)
    status.controller = stage.term
    _code, answer = status.answer({"pod": [f"{NS}/{pod}"]}, stage.now_s)
    (item,) = answer.cases
    return " ".join(_deferral_sentences(item)), item


def test_a_cron_job_waits_as_long_as_its_earlier_runs_allow(tmp_path):
    async def body(stage, accounting):
        accounting.learn("CronJob", "hourly", *[8 * MINUTE_S] * 18, 10 * MINUTE_S, 50 * MINUTE_S)
        cron = await stage.cron_job("hourly", schedule="0 * * * *")
        assert await stage.ask()
        owner = await stage.job("hourly-29999999", owner=cron)
        await stage.pod("hourly-1", owner=owner)
        await stage.look(MINUTE_S)
        assert await stage.gated() == ["hourly-1"]
        text, item = explained(stage, "hourly-1")
        assert "expected to run for 8m (90% of its last 20 runs took no longer)" in text
        assert (item.runtime_s, item.runtime_quantile, item.runtime_runs) == (480.0, 0.9, 20)
        (event,) = await stage.events("GridHold")
        assert "to run for 8 min (90% of its last 20 runs took no longer)" in event.message
        pod = await stage.client.get(PODS, "hourly-1", NS)
        assert pod.metadata.annotations[names.LEARNED_RUNTIME] == "480s, 0.9 of 20 runs"

        # The guard asks nobody: it reads the annotation.
        await stage.until(lambda: names.LEARNED_RUNTIME in stage.view.pods[NS, "hourly-1"].asking.annotations)
        cluster = Cluster(
            stage.view.pods, stage.view.jobs, {NS: stage.view.namespace(NS)}, stage.view.caches["cronjobs"].objects
        )
        assert list(overdue(cluster, stage.settings.defaults, EPOCH_S + 51 * MINUTE_S)) == []
        assert list(overdue(cluster, stage.settings.defaults, EPOCH_S + 52 * MINUTE_S)) == [Key(NS, "hourly-1")]

        await stage.look(51 * MINUTE_S - 1.0)
        assert await stage.gated() == ["hourly-1"]
        await stage.look(1.0)
        assert await stage.gated() == []

    play(body, tmp_path)


def test_a_new_answer_is_decided_by_and_an_annotation_wins(tmp_path):
    async def body(stage, accounting):
        for name, said in (("learns", {}), ("states", {names.RUNTIME: "3h"})):
            owner = await stage.job(f"{name}-x7k2b", activeDeadlineSeconds=int(4 * HOUR_S))
            await stage.pod(name, owner=owner, annotations=said)
        await stage.look(MINUTE_S)
        assert explained(stage, "learns")[1].latest_start_in_s == pytest.approx(3 * HOUR_S - MINUTE_S)
        for name in ("learns", "states"):
            accounting.learn("Job", name, *[2 * HOUR_S] * 3)
        assert await stage.ask()
        await stage.look()
        assert explained(stage, "learns")[1].latest_start_in_s == pytest.approx(2 * HOUR_S - MINUTE_S)
        text, item = explained(stage, "states")
        assert (item.latest_start_in_s, item.runtime_runs) == (pytest.approx(HOUR_S - MINUTE_S), None)
        assert "expected to run for 3h00m (as stated)" in text

    play(body, tmp_path)


def test_the_best_window_is_that_of_the_learned_runtime(tmp_path):
    async def body(stage, accounting):
        starts = [EPOCH_S + HOUR_S * hour for hour in range(24)]
        values = [300.0, 90.0, 300.0, 100.0, 100.0, 100.0, *[300.0] * 18]  # one very good hour, or three good ones
        stage.carbon.ahead = Series(starts, values, EPOCH_S + 24 * HOUR_S)
        accounting.learn("Job", "train", *[3 * HOUR_S] * 4)
        owner = await stage.job("train")
        await stage.pod("train-1", owner=owner, annotations={names.MODE: "optimal"})
        await stage.look()
        assert stage.term.next_s == EPOCH_S + HOUR_S  # an hour is assumed
        assert await stage.ask()
        await stage.look()
        assert stage.term.next_s == EPOCH_S + 3 * HOUR_S

    play(body, tmp_path)


def test_without_accounting_the_default_counts_and_everybody_is_told(tmp_path):
    async def body(stage, accounting):
        accounting.away = True
        assert not await stage.ask()
        owner = await stage.job("etl", activeDeadlineSeconds=int(4 * HOUR_S))
        await stage.pod("etl-1", owner=owner)
        await stage.look()
        text, item = explained(stage, "etl-1")
        assert "expected to run for 1h00m (assumed, since accounting does not answer)" in text
        assert item.latest_start_in_s == pytest.approx(3 * HOUR_S)
        assert stage.counted("joulie_grid_learned_runtimes_up") == 0.0

        accounting.away = False
        accounting.learn("Job", "etl", *[2 * HOUR_S] * 3)
        assert await stage.ask()
        assert stage.counted("joulie_grid_learned_runtimes_up") == 1.0
        assert stage.counted("joulie_grid_learned_runtimes") == 1.0

        accounting.away = True
        stage.now_s += MAX_AGE_S - 1.0
        assert not await stage.ask()
        assert stage.counted("joulie_grid_learned_runtimes") == 1.0  # the last answer counts for a while
        stage.now_s += 1.0
        assert not await stage.ask()
        assert stage.counted("joulie_grid_learned_runtimes") == 0.0
        await stage.pod("etl-2", owner=owner)
        await stage.look()
        assert "assumed, since accounting does not answer" in explained(stage, "etl-2")[0]

    play(body, tmp_path)


def test_g15_the_token_is_read_anew_for_each_request(tmp_path):
    token, sent = tmp_path / "token", []

    async def main():
        async def app(scope, receive, send):
            sent.append(dict(scope["headers"]).get(b"authorization"))
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b'{"quantile": 0.9, "items": []}'})

        async with (
            Server(app, ("127.0.0.1", 0)) as server,
            staged(tmp_path, accounting_url=f"http://127.0.0.1:{server.port}", accounting_token_file=token) as stage,
            httpx2.AsyncClient() as http,
        ):
            assert not await stage.runtimes.refresh(http), "without the file nothing is sent"
            for content in ("first\n", "second"):
                token.write_text(content)
                assert await stage.runtimes.refresh(http)

    asyncio.run(main())
    assert sent == [b"Bearer first", b"Bearer second"]


@pytest.mark.parametrize("answer", [b"", b"[]", b'{"quantile": 0.9, "items": [{"runtimeS": "soon"}]}'])
def test_an_answer_that_is_none_changes_nothing(tmp_path, answer):
    async def main():
        async def app(scope, receive, send):
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": answer})

        async with (
            Server(app, ("127.0.0.1", 0)) as server,
            staged(tmp_path, accounting_url=f"http://127.0.0.1:{server.port}") as stage,
            httpx2.AsyncClient() as http,
        ):
            assert not await stage.runtimes.refresh(http)
            assert stage.counted("joulie_grid_learned_runtimes") == 0.0

    asyncio.run(main())


def test_an_interruptible_job_is_resumed_in_time_for_its_learned_runtime(tmp_path):
    async def body(stage, accounting):
        accounting.learn("Job", "train", *[5 * HOUR_S] * 3)
        assert await stage.ask()
        said = {names.MODE: "interruptible", names.INTERRUPTIBLE: "true", names.MAX_DELAY: "2h"}
        await stage.job("train-20270115", template=said)
        await stage.look(HOUR_S)
        job = await stage.client.get(JOBS, "train-20270115", NS)
        assert job.spec.suspend
        assert job.metadata.annotations[names.LEARNED_RUNTIME] == "18000s, 0.9 of 3 runs"
        assert stage.term.jobs.next_s == EPOCH_S + 3 * HOUR_S  # one of its five is done

    play(body, tmp_path)
