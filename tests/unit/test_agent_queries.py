"""Power of nodes that an agent asks Prometheus for."""

import asyncio

import httpx2
import pytest

from joulie.adapters.kubernetes.api import v1alpha1 as api
from joulie.adapters.kubernetes.api.meta import ObjectMeta
from joulie.apps.agent.queries import PowerQueries
from joulie.apps.agent.routing import Route, Routing, Via, choose, from_settings
from joulie.apps.agent.settings import AgentSettings

BY_NODE = Route(Via.PROMETHEUS, "http://p:9090", 3.0, 'w{instance="{node}:9100"}')
OF_ALL = Route(Via.PROMETHEUS, "http://p:9090", 3.0, "w")


def ask(route, *nodes, answers, clock=lambda: 0.0):
    """Power of nodes, one after another, and the queries that were sent."""
    asked = []

    def handle(request):
        query = httpx2.QueryParams(request.read().decode())["query"]
        asked.append(query)
        if query not in answers:
            return httpx2.Response(400, json={"status": "error", "error": "bad"})
        result = [{"metric": labels, "value": [1, str(value)]} for labels, value in answers[query]]
        return httpx2.Response(200, json={"status": "success", "data": {"resultType": "vector", "result": result}})

    async def main():
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(handle)) as client:
            queries = PowerQueries(client, clock)
            return [await queries.power_w(node, route) for node in nodes]

    return asyncio.run(main()), asked


def test_a_query_about_one_node_is_all_about_it():
    answers = {'w{instance="n1:9100"}': [({"package": "0"}, 40.0), ({"package": "1"}, 50.0)]}
    assert ask(BY_NODE, "n1", "n2", answers=answers)[0] == [90.0, None]


def test_trap_node_1_is_not_node_10():
    series = [({"node": "n-1"}, 10.0), ({"node": "n-10"}, 99.0), ({}, 7.0)]
    found, asked = ask(OF_ALL, "n-1", "n-10", "n-2", answers={"w": series})
    assert (found, asked) == ([10.0, 99.0, None], ["w"])


def test_an_answer_is_shared_for_a_short_while():
    times = iter([0.0, 1.0, 6.0])
    _, asked = ask(OF_ALL, "a", "b", "c", answers={"w": []}, clock=lambda: next(times))
    assert asked == ["w", "w"]


def test_negative_power_is_no_measurement():
    assert ask(OF_ALL, "n", answers={"w": [({"node": "n"}, -5.0)]})[0] == [None]


FALLBACK = Routing(*(Route(Via.HOST),) * 4)


def test_a_profile_brings_its_own_server_and_query():
    source = api.Source("prometheus", prometheus=api.PrometheusSource("http://p:9090", "w"))
    profile = api.TelemetryProfile(
        metadata=ObjectMeta(name="mine"), spec=api.TelemetryProfileSpec(api.Target("cluster"), api.Sources(cpu=source))
    )
    route = choose("n", {}, [profile], FALLBACK).cpu_source
    assert (route, route.provides_power) == (OF_ALL, True)


def test_variables_name_the_server_and_the_query():
    given = {"node_name": "n", "cpu_source": "prometheus"}
    settings = AgentSettings(**given, prometheus_address="http://p:9090", cpu_prometheus_query="w")
    assert from_settings(settings).cpu_source == OF_ALL
    assert not from_settings(AgentSettings(**given)).cpu_source.provides_power
    with pytest.raises(ValueError, match="go together"):
        AgentSettings(**given, cpu_prometheus_query="w")
