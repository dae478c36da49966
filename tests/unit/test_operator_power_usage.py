"""Who is asked how busy pods are, and when nobody else need be."""

import asyncio

import httpx2
import pytest

from joulie.adapters.kubernetes import metrics_server
from joulie.adapters.kubernetes.errors import ConnectionLostError
from joulie.adapters.kubernetes.metrics_server import MetricsServer, MetricsUnavailableError
from joulie.adapters.prometheus import Prometheus
from joulie.apps.operator.power.wiring import Clients, wire
from joulie.apps.operator.settings import OperatorSettings
from joulie.apps.operator.sources.usage import UsageFeed
from joulie.domain.signal import Reading
from joulie.domain.usage import PodUsage
from joulie.ports.telemetry import SourceError
from joulie.program.sources import SourceStates

PODS = {("team", f"p{number}") for number in range(20)}


class Scripted:
    def __init__(self, name, *, pods=(), nodes=None, fails=False):
        self.name, self.fails, self.asked = name, fails, 0
        self._pods = {("team", f"p{number}"): 1.0 for number in pods}
        self._nodes = {node: Reading(5.0, cores) for node, cores in (nodes or {}).items()}

    async def pods(self):
        self.asked += 1
        if self.fails:
            raise SourceError("down")
        return self._pods

    async def nodes(self):
        return self._nodes


def read(*sources, nodes=(), pods=PODS, times=1):
    clock = [1000.0]
    states = SourceStates()
    feed = UsageFeed(sources, states, 1.0, lambda: clock[0])
    for _ in range(times):
        asyncio.run(feed.read(set(nodes), pods))
        clock[0] += 30.0
    return feed, states


def asked(*sources):
    return [source.asked for source in sources]


def test_the_next_source_is_asked_only_for_pods_that_nobody_measured():
    kepler, cadvisor, server = (
        Scripted("kepler", pods=range(5)), Scripted("cadvisor", pods=range(19)), Scripted("metrics-server")
    )  # fmt: skip
    feed, _ = read(kepler, cadvisor, server)
    assert asked(kepler, cadvisor, server) == [1, 1, 0]
    assert [(one.source, len(one.by_pod)) for one in feed.weights(0.0)] == [("kepler", 5), ("cadvisor", 19)]


def test_a_source_that_is_enough_makes_others_old_news():
    kepler, cadvisor = Scripted("kepler", pods=range(20)), Scripted("cadvisor", pods=range(20), nodes={"n": 3.0})
    feed, _ = read(kepler, cadvisor)
    assert asked(kepler, cadvisor) == [1, 0]
    assert feed.busy_cores("cadvisor") == {}


def test_nodes_without_a_sensor_are_asked_for_whatever_pods_say():
    kepler, cadvisor = Scripted("kepler", pods=range(20)), Scripted("cadvisor", nodes={"n": 3.0})
    feed, _ = read(kepler, cadvisor, nodes={"n"})
    assert asked(kepler, cadvisor) == [1, 1]
    assert feed.busy_cores("cadvisor") == {"n": Reading(5.0, 3.0)}


def test_a_source_that_fails_keeps_what_it_said_until_it_is_stale():
    cadvisor = Scripted("cadvisor", pods=range(20))
    feed, states = read(cadvisor)
    cadvisor.fails = True
    asyncio.run(feed.read(set(), PODS))
    assert states.up == {"cadvisor": False}
    assert [one.read_at_s for one in feed.weights(1000.0)] == [1000.0]
    assert feed.weights(1000.1) == []


def server_usage(monkeypatch, answers, clock):
    """What a Metrics Server is asked, that answers in turn."""
    left = list(answers)
    seen = []

    async def pod_usage(client):
        seen.append(client)
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(metrics_server, "pod_usage", pod_usage)
    return MetricsServer("client", lambda: clock[0]), seen


def test_a_cluster_without_metrics_server_is_asked_now_and_then_and_that_is_no_failure(monkeypatch):
    clock = [1000.0]
    found = PodUsage({("team", "p0"): 2.0}, {})
    source, seen = server_usage(monkeypatch, [MetricsUnavailableError("none"), found], clock)
    assert asyncio.run(source.pods()).cpu_cores == {}
    clock[0] += 299.0
    assert asyncio.run(source.pods()).cpu_cores == {}
    assert len(seen) == 1
    clock[0] += 1.0
    assert asyncio.run(source.pods()).cpu_cores == {("team", "p0"): 2.0}


def test_an_api_server_that_is_away_is_a_failure(monkeypatch):
    source, _ = server_usage(monkeypatch, [ConnectionLostError("away", sent=False)], [1000.0])
    with pytest.raises(SourceError, match="away"):
        asyncio.run(source.pods())


def wired(*, prometheus=True, **settings):
    http = httpx2.AsyncClient()
    clients = Clients(None, http, Prometheus("http://p:9090", http) if prometheus else None)
    found = wire(
        OperatorSettings(agent_pod_selector="", prometheus_address="http://p:9090", **settings),
        clients, index=lambda: None, routes=dict, rejected=lambda *_: None, now_s=lambda: 0.0,
    )  # fmt: skip
    asyncio.run(http.aclose())
    return [one.name for one in found.power], [one.name for one in found.usage], found.dcgm is not None


def test_sources_are_those_that_are_listed_and_have_an_address():
    assert wired() == (["platform", "kepler", "node-exporter"], ["kepler", "cadvisor", "metrics-server"], True)
    assert wired(prometheus=False) == ([], ["metrics-server"], False)
    assert wired(sources=("requests",)) == ([], [], False)
    assert wired(sources=("cadvisor", "kepler")) == (["kepler"], ["cadvisor", "kepler"], True)
    assert wired(sources=("http", "prometheus"), telemetry_http_endpoint="http://sim", power_prometheus_query="w") == (
        ["http", "prometheus"],
        [],
        False,
    )


def test_a_server_of_the_same_address_is_asked_with_the_same_credentials():
    http = httpx2.AsyncClient()
    prometheus = Prometheus("http://p:9090", http)
    clients, settings = Clients(None, http, prometheus), OperatorSettings(prometheus_address="http://p:9090/")
    assert clients.server("http://p:9090", settings) is prometheus
    assert clients.server("http://other:9090", settings) is not prometheus
    asyncio.run(http.aclose())
