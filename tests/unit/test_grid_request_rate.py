"""The rate limit of requests to grid sources, which all programs of an installation keep together."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulie.adapters.grid.provider import OwnRequestRate
from joulie.adapters.kubernetes.client import KubeClient, RetryPolicy
from joulie.adapters.kubernetes.connection import connect
from joulie.adapters.kubernetes.request_rate import CONFIG_MAP, SharedRequestRate
from joulie.adapters.kubernetes.resources import CONFIG_MAPS
from joulie.domain.request_rate import next_request
from joulie.ports.grid import GridSourceError
from joulie_lab.fakes.kubernetes import FakeCluster

NS = "default"
T0 = 1_800_000_000.0
HOST = "api.electricitymaps.com"


@given(st.lists(st.floats(0.0, 30.0), max_size=60), st.sampled_from([0.5, 1.0, 2.5, 10.0]))
def test_g10_no_window_holds_more_than_the_limit(pauses_s: list[float], per_minute: float) -> None:
    now_s, sent_s, remembered = T0, [], []
    for pause_s in pauses_s:
        now_s += pause_s
        at_s, reserved = next_request(remembered, now_s, per_minute)
        assert at_s >= now_s
        if at_s - now_s <= 60.0:  # who would wait longer gives up
            remembered = reserved
            sent_s.append(at_s)
    count = max(1, int(per_minute))
    assert len(remembered) <= count
    for first_s, later_s in zip(sent_s, sent_s[count:], strict=False):
        assert later_s - first_s >= 60.0 * count / per_minute - 1e-3


def test_g10_a_clock_that_was_set_back_stops_nothing() -> None:
    assert next_request([T0 + 7200.0] * 10, T0, 10.0)[0] == T0


def on_cluster(tmp_path, story, *, with_map=True):
    """Run `story` with clients of one fake cluster, one for each program."""

    async def main():
        async with FakeCluster() as cluster:
            kubeconfig = cluster.kubeconfig(tmp_path / "kubeconfig")
            clients = [KubeClient(connect(kubeconfig=kubeconfig), retry=RetryPolicy(attempts=1)) for _ in range(3)]
            async with clients[0], clients[1], clients[2]:
                if with_map:
                    await clients[0].create(CONFIG_MAPS, {"metadata": {"name": CONFIG_MAP}}, NS)
                await story(cluster, clients)

    asyncio.run(main())


def test_g10_the_replicas_and_accounting_share_one_limit(tmp_path):
    async def story(_cluster, clients):
        programs = [SharedRequestRate(client, NS, lambda: T0, OwnRequestRate()) for client in clients]
        waits_s = []
        for _ in range(8):  # all three at once, each in turn
            waits_s += await asyncio.gather(*(one.reserve(HOST, 10.0, 60.0) for one in programs))
        sent = sorted(wait_s for wait_s in waits_s if wait_s <= 60.0)
        assert sent == [0.0] * 10 + [60.0] * 10
        assert len([wait_s for wait_s in waits_s if wait_s > 60.0]) == 4
        assert await programs[0].reserve("api.watttime.org", 10.0, 60.0) == 0.0  # another host, its own limit
        found = await clients[0].get(CONFIG_MAPS, CONFIG_MAP, NS)
        assert sorted(found.data) == [HOST, "api.watttime.org"]

    on_cluster(tmp_path, story)


def test_g10_what_others_wrote_into_the_map_stops_nothing(tmp_path):
    async def story(_cluster, clients):
        await clients[0].patch(CONFIG_MAPS, CONFIG_MAP, {"data": {HOST: "nonsense"}}, namespace=NS)
        assert await SharedRequestRate(clients[1], NS, lambda: T0, OwnRequestRate()).reserve(HOST, 10.0, 60.0) == 0.0

    on_cluster(tmp_path, story)


def test_g10_without_the_map_a_program_keeps_the_limit_by_itself(tmp_path, caplog):
    async def story(_cluster, clients):
        rate = SharedRequestRate(clients[0], NS, lambda: T0, OwnRequestRate(lambda: 0.0))
        assert [await rate.reserve(HOST, 2.0, 60.0) for _ in range(4)] == [0.0, 0.0, 60.0, 60.0]

    on_cluster(tmp_path, story, with_map=False)
    assert len([record for record in caplog.records if "rate limit is not shared" in record.message]) == 1


def test_g10_an_api_server_that_is_away_sends_nothing(tmp_path):
    async def story(cluster, clients):
        await cluster.stop()
        with pytest.raises(GridSourceError, match="shared rate limit cannot be read"):
            await SharedRequestRate(clients[0], NS, lambda: T0, OwnRequestRate()).reserve(HOST, 10.0, 60.0)

    on_cluster(tmp_path, story)
