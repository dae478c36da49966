"""Where the operator gets power from, and what it makes of gaps."""

import asyncio
import json

import httpx2
import pytest

from joulie.adapters.prometheus import Prometheus
from joulie.apps.operator.power import (
    AgentSource,
    FacilityFeed,
    HttpSource,
    PowerFeed,
    PrometheusSource,
    SourceError,
)
from joulie.apps.operator.settings import OperatorSettings
from joulie.domain.control import Facility, controlled_node
from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie.domain.hardware.resolve import resolve

CPU = resolve(None, {"joulie.io/hw.cpu-model": "AMD-EPYC-9654"}, {"cpu": 96.0}, BUILTIN_CATALOGUE)
GPU = resolve(
    None, {"joulie.io/hw.gpu-model": "NVIDIA-L40S", "joulie.io/hw.gpu-count": "2"}, {"cpu": 96.0}, BUILTIN_CATALOGUE
)
NODES = [controlled_node("cpu", CPU, rack='r"1', zone="z"), controlled_node("gpu", GPU), controlled_node("node-1", CPU)]


def run(make, handle, *, now_s=lambda: 1000.0):
    """Read a source made by `make` from a client that `handle` answers."""

    async def main():
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(handle)) as client:
            return await make(client, now_s).read(NODES)

    return asyncio.run(main())


def text(*lines):
    return httpx2.Response(200, text="".join(f"{line}\n" for line in lines))


def agents(*urls):
    return lambda client, now_s: AgentSource(client, lambda: urls, now_s)


def test_agents_tell_of_cpu_and_gpus_together():
    def handle(request):
        return text(
            'joulie_rapl_package_total_power_watts{node="gpu"} 100',
            'joulie_gpu_power_watts{node="gpu",gpu="0"} 50',
            'joulie_gpu_power_watts{node="gpu",gpu="1"} 60',
            'joulie_rapl_package_total_power_watts{node="cpu"} 0',
            'joulie_rapl_package_total_power_watts{node="node-10"} 999',
        )

    assert run(agents("http://one/metrics"), handle) == {"gpu": (1000.0, 210.0), "cpu": (1000.0, 0.0)}


def test_an_agent_that_hangs_yet_answers_tells_of_old_samples():
    def handle(_request):
        return text(
            'joulie_rapl_package_total_power_watts{node="cpu"} 70',
            'joulie_agent_last_cycle_timestamp_seconds{node="cpu"} 640.5',
            'joulie_rapl_package_total_power_watts{node="node-1"} 80',
        )

    assert run(agents("http://one/metrics"), handle) == {"cpu": (640.5, 70.0), "node-1": (1000.0, 80.0)}


def test_a_node_measured_in_part_is_not_measured():
    def handle(_request):
        return text(
            'joulie_rapl_package_total_power_watts{node="gpu"} 100', 'joulie_gpu_power_watts{node="gpu",gpu="0"} 5'
        )

    assert run(agents("http://one/metrics"), handle) == {}


def test_one_agent_that_is_down_costs_its_own_nodes_only():
    def handle(request):
        if request.url.host == "down":
            return httpx2.Response(500)
        return text('joulie_rapl_package_total_power_watts{node="cpu"} 70')

    assert run(agents("http://up/metrics", "http://down/metrics"), handle) == {"cpu": (1000.0, 70.0)}
    with pytest.raises(SourceError, match="none of 1 agents"):
        run(agents("http://down/metrics"), handle)
    assert run(agents(), handle) == {}


def test_prometheus_sums_the_series_of_a_node():
    def handle(_request):
        series = [
            {"metric": {"node": "cpu", "zone": "0"}, "value": [900, "40"]},
            {"metric": {"node": "cpu", "zone": "1"}, "value": [910, "50"]},
            {"metric": {"node": "elsewhere"}, "value": [910, "1"]},
        ]
        return httpx2.Response(200, json={"status": "success", "data": {"resultType": "vector", "result": series}})

    def make(client, _now_s):
        return PrometheusSource(Prometheus("http://p", client), "w")

    assert run(make, handle) == {"cpu": (900.0, 90.0)}


def test_a_query_whose_series_name_no_node_is_an_error_not_silence():
    def handle(_request):
        series = [{"metric": {"instance": "cpu"}, "value": [1, "1"]}]
        return httpx2.Response(200, json={"status": "success", "data": {"resultType": "vector", "result": series}})

    with pytest.raises(SourceError, match="label node"):
        run(lambda client, _now_s: PrometheusSource(Prometheus("http://p", client), "w"), handle)


@pytest.mark.parametrize("endpoint", ["http://sim/telemetry", "http://sim/telemetry/{node}"])
def test_telemetry_of_all_at_once_and_of_each(endpoint):
    told = {
        "cpu": {"packagePowerWatts": 200.5},
        "gpu": {"cpu": {"packagePowerWatts": 100}, "gpu": {"powerWattsTotal": 300}},
        "node-1": {},
    }

    def handle(request):
        name = request.url.path.removeprefix("/telemetry").strip("/")
        return httpx2.Response(200, content=json.dumps(told[name] if name else {"nodes": told}).encode())

    found = run(lambda client, now_s: HttpSource(client, endpoint, now_s), handle)
    assert found == {"cpu": (1000.0, 200.5), "gpu": (1000.0, 400.0)}


def test_a_telemetry_endpoint_that_is_down_is_an_error():
    with pytest.raises(SourceError, match="503"):
        run(lambda client, now_s: HttpSource(client, "http://sim/t", now_s), lambda _request: httpx2.Response(503))
    with pytest.raises(SourceError, match="503"):
        run(lambda client, now_s: HttpSource(client, "http://s/{node}", now_s), lambda _request: httpx2.Response(503))


class Scripted:
    """A source that says what a test has it say."""

    name = "rapl"

    def __init__(self, *answers):
        self.answers = list(answers)

    async def read(self, _nodes):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_source_that_fails_keeps_its_samples_and_their_age():
    failed = []
    source = Scripted({"cpu": (1.0, 10.0), "gpu": (1.0, 20.0)}, SourceError("down"), {"cpu": (3.0, 30.0)})
    feed = PowerFeed([source], failed.append)

    def now():
        (reading,) = feed.readings(["cpu", "gpu"])
        return list(zip(reading.time_s.tolist(), reading.power_w.tolist(), strict=True))

    asyncio.run(feed.read(NODES))
    assert now() == [(1.0, 10.0), (1.0, 20.0)]
    asyncio.run(feed.read(NODES))
    assert now() == [(1.0, 10.0), (1.0, 20.0)]
    assert failed == ["rapl"]
    asyncio.run(feed.read(NODES))
    assert now() == [(3.0, 30.0), (1.0, 20.0)]


def test_the_building_is_known_as_far_as_it_is_measured():
    values = {
        "datacenter_ambient_temperature_celsius": ["20", "30"],
        "datacenter_total_it_power_watts": ["1000", "3000"],
        "datacenter_cooling_power_watts": ["1000"],
        'zone_c{zone="z"}': ["35"],
        'rack_w{rack="r\\"1"}': ["700", "50"],
    }
    clock = [1000.0]

    def handle(request):
        series = [{"metric": {}, "value": [1, value]} for value in values[request.url.params["query"]]]
        return httpx2.Response(200, json={"status": "success", "data": {"resultType": "vector", "result": series}})

    async def main():
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(handle)) as client:
            settings = OperatorSettings(
                facility_zone_ambient_template='zone_c{zone="%s"}',
                facility_rack_power_template='rack_w{rack="%s"}',
                power_stale_s=60.0,
            )
            feed = FacilityFeed(Prometheus("http://p", client), settings, lambda: clock[0])
            assert feed.facility() == Facility()
            await feed.read(NODES)
            measured = feed.facility()
            clock[0] += 61.0
            return measured, feed.facility()

    measured, later = asyncio.run(main())
    assert measured == Facility(ambient_k=298.15, zone_ambient_k={"z": 308.15}, rack_power_w={'r"1': 750.0}, pue=1.25)
    assert later == Facility()
