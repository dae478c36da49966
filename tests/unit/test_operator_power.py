"""Where the operator gets power from, and what it makes of gaps."""

import asyncio
import json

import httpx2
import pytest

from joulie.adapters.prometheus import Prometheus
from joulie.adapters.prometheus.agents import Agents
from joulie.adapters.prometheus.dcgm import Dcgm
from joulie.adapters.prometheus.nodes import NodeIndex
from joulie.adapters.prometheus.readings import NodePower, Rejection
from joulie.apps.operator.power.facility import FacilityFeed
from joulie.apps.operator.power.feed import PowerFeed
from joulie.apps.operator.settings import OperatorSettings
from joulie.apps.operator.sources.node_power import DcgmSource, ExporterSource, HttpSource, Parts, QuerySource
from joulie.domain.control import Facility, controlled_node
from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie.domain.hardware.resolve import resolve
from joulie.domain.signal import Reading
from joulie.ports.telemetry import SourceError
from joulie.program.sources import SourceStates

CPU = resolve(None, {"joulie.io/hw.cpu-model": "AMD-EPYC-9654"}, {"cpu": 96.0}, BUILTIN_CATALOGUE)
TWO_SOCKETS = resolve(
    None,
    {"joulie.io/hw.cpu-model": "AMD-EPYC-9654", "joulie.io/hw.cpu-sockets": "2"},
    {"cpu": 192.0},
    BUILTIN_CATALOGUE,
)
GPU = resolve(
    None, {"joulie.io/hw.gpu-model": "NVIDIA-L40S", "joulie.io/hw.gpu-count": "2"}, {"cpu": 96.0}, BUILTIN_CATALOGUE
)
NODES = (
    controlled_node("cpu", CPU, rack='r"1', zone="z"),
    controlled_node("gpu", GPU),
    controlled_node("node-1", CPU),
)
INDEX = NodeIndex.from_aliases({"cpu": ("10.0.0.1",), "gpu": ("10.0.0.2",), "node-1": ()})


def run(make, handle, *, now_s=lambda: 1000.0):
    """Read a source made by `make` from a client that `handle` answers."""

    async def main():
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(handle)) as client:
            return await make(client, now_s).read(NODES)

    return asyncio.run(main())


def text(*lines):
    return httpx2.Response(200, text="".join(f"{line}\n" for line in lines))


def vector(*series):
    result = [{"metric": metric, "value": [time_s, str(value)]} for metric, time_s, value in series]
    return httpx2.Response(200, json={"status": "success", "data": {"resultType": "vector", "result": result}})


def matrix(*series):
    result = [
        {"metric": metric, "values": [[time_s, str(value)] for time_s, value in values]} for metric, values in series
    ]
    return httpx2.Response(200, json={"status": "success", "data": {"resultType": "matrix", "result": result}})


def agents(*urls, **more):
    return agents_at([(url, None) for url in urls])


def agents_at(endpoints, prometheus=None):
    def make(client, now_s):
        asked = None if prometheus is None else prometheus(client)
        found = Agents(asked, 120.0, client, lambda: endpoints, now_s)
        return ExporterSource("agents", lambda wanted: found.nodes(INDEX, wanted))

    return make


def test_agents_tell_of_cpu_and_gpus():
    def handle(request):
        return text(
            'joulie_rapl_package_total_power_watts{node="gpu"} 100',
            'joulie_gpu_power_watts{node="gpu",gpu="0"} 50',
            'joulie_gpu_power_watts{node="gpu",gpu="1"} 60',
            'joulie_rapl_package_total_power_watts{node="cpu"} 0',
            'joulie_rapl_package_total_power_watts{node="node-10"} 999',
        )

    assert run(agents("http://one/metrics"), handle) == Parts(
        cpu={"cpu": Reading(1000.0, 0.0), "gpu": Reading(1000.0, 100.0)}, gpu={"gpu": Reading(1000.0, 110.0)}
    )


def test_an_agent_that_hangs_yet_answers_tells_of_old_samples():
    def handle(_request):
        return text(
            'joulie_rapl_package_total_power_watts{node="cpu"} 70',
            'joulie_agent_last_cycle_timestamp_seconds{node="cpu"} 640.5',
            'joulie_rapl_package_total_power_watts{node="node-1"} 80',
        )

    found = run(agents("http://one/metrics"), handle)
    assert found.cpu == {"cpu": Reading(640.5, 70.0), "node-1": Reading(1000.0, 80.0)}


def test_gpus_measured_in_part_are_not_measured():
    def handle(_request):
        return text(
            'joulie_rapl_package_total_power_watts{node="gpu"} 100', 'joulie_gpu_power_watts{node="gpu",gpu="0"} 5'
        )

    assert run(agents("http://one/metrics"), handle) == Parts(cpu={"gpu": Reading(1000.0, 100.0)})


def test_one_agent_that_is_down_costs_its_own_nodes_only():
    def handle(request):
        if request.url.host == "down":
            return httpx2.Response(500)
        return text('joulie_rapl_package_total_power_watts{node="cpu"} 70')

    assert run(agents("http://up/metrics", "http://down/metrics"), handle).cpu == {"cpu": Reading(1000.0, 70.0)}
    with pytest.raises(SourceError, match="none of 1 agents"):
        run(agents("http://down/metrics"), handle)
    assert run(agents(), handle) == Parts()


def test_only_agents_that_prometheus_does_not_know_are_scraped():
    asked = []

    def handle(request):
        asked.append(request.url.host)
        if request.url.host == "p":
            return matrix(
                ({"__name__": "joulie_rapl_package_total_power_watts", "node": "cpu"}, [(900, 10), (930, 70)]),
                ({"__name__": "joulie_rapl_package_total_power_watts", "node": "cpu", "pod": "old"}, [(900, 99)]),
                ({"__name__": "joulie_rapl_package_total_power_watts", "instance": "10.0.0.2:8080"}, [(940, 100)]),
                ({"__name__": "joulie_agent_last_cycle_timestamp_seconds", "instance": "10.0.0.2:8080"}, [(940, 935)]),
            )
        return text('joulie_rapl_package_total_power_watts{node="node-1"} 80')

    endpoints = [("http://one/metrics", "node-1"), ("http://two/metrics", "cpu")]
    assert run(agents_at(endpoints, lambda client: Prometheus("http://p", client)), handle).cpu == {
        "cpu": Reading(930.0, 70.0),
        "gpu": Reading(935.0, 100.0),
        "node-1": Reading(1000.0, 80.0),
    }
    assert asked == ["p", "one"]


def test_agents_are_scraped_where_prometheus_is_down():
    def handle(request):
        if request.url.host == "p":
            return httpx2.Response(400, json={"status": "error", "error": "no"})
        return text('joulie_rapl_package_total_power_watts{node="cpu"} 80')

    make = agents_at([("http://one/metrics", None)], lambda client: Prometheus("http://p", client))
    assert run(make, handle).cpu == {"cpu": Reading(1000.0, 80.0)}


def test_a_query_of_whole_nodes_sums_the_series_of_a_node():
    def handle(_request):
        return vector(
            ({"node": "cpu", "zone": "0"}, 900, 40),
            ({"node": "cpu", "zone": "1"}, 910, 50),
            ({"node": "elsewhere"}, 910, 1),
        )

    def make(client, _now_s):
        return QuerySource(Prometheus("http://p", client), "w")

    assert run(make, handle) == Parts(whole={"cpu": Reading(900.0, 90.0)})


def test_a_query_whose_series_name_no_node_is_an_error_not_silence():
    with pytest.raises(SourceError, match="label node"):
        run(
            lambda client, _now_s: QuerySource(Prometheus("http://p", client), "w"),
            lambda _request: vector(({"instance": "cpu"}, 1, 1)),
        )


def exporter(power, **more):
    async def ask(_wanted):
        return power

    return asyncio.run(ExporterSource("kepler", ask, **more).read(NODES))


def test_an_exporter_counts_only_with_all_packages_and_all_gpus():
    two = controlled_node("two", TWO_SOCKETS)

    async def ask(_wanted):
        reading = Reading(1.0, 100.0)
        return NodePower(
            cpu={"two": reading, "cpu": reading, "gpu": reading},
            cpu_count={"two": 1, "cpu": 1},
            gpu={"gpu": reading},
            gpu_count={"gpu": 1},
        )

    found = asyncio.run(ExporterSource("node-exporter", ask).read((*NODES, two)))
    assert found == Parts(cpu={"cpu": Reading(1.0, 100.0), "gpu": Reading(1.0, 100.0)})


def test_what_an_exporter_had_to_leave_out_is_counted():
    counted = {}
    exporter(NodePower(rejected={Rejection.ABSURD: 3}), rejected=counted.__setitem__)
    assert counted == {"kepler": {"absurd": 3}}


def test_dcgm_counts_only_with_all_gpus_of_the_node():
    def power(uuid, watts):
        labels = {"__name__": "DCGM_FI_DEV_POWER_USAGE", "Hostname": "gpu", "UUID": uuid, "gpu": uuid}
        return labels, [(990, watts)]

    def read(*series):
        def handle(request):
            return matrix(*series) if b"%5B" in request.read() else vector()

        return run(lambda client, _now: DcgmSource(Dcgm(Prometheus("http://p", client), 120.0), lambda: INDEX), handle)

    assert read(power("a", 60), power("b", 70)) == Parts(gpu={"gpu": Reading(990.0, 130.0)})
    assert read(power("a", 60)) == Parts()


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
    assert found == Parts(
        cpu={"cpu": Reading(1000.0, 200.5), "gpu": Reading(1000.0, 100.0)}, gpu={"gpu": Reading(1000.0, 300.0)}
    )


def test_a_telemetry_endpoint_that_is_down_is_an_error():
    with pytest.raises(SourceError, match="503"):
        run(lambda client, now_s: HttpSource(client, "http://sim/t", now_s), lambda _request: httpx2.Response(503))
    with pytest.raises(SourceError, match="503"):
        run(lambda client, now_s: HttpSource(client, "http://s/{node}", now_s), lambda _request: httpx2.Response(503))


class Scripted:
    """A source that says what a test has it say."""

    def __init__(self, name, *answers):
        self.name, self.answers = name, list(answers)

    async def read(self, _nodes):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            await asyncio.Event().wait()
        return answer


def parts(**cpu):
    return Parts(cpu={node: Reading(*reading) for node, reading in cpu.items()})


def test_a_source_that_fails_keeps_its_samples_and_their_age(caplog):
    caplog.set_level("INFO")
    failed = []
    source = Scripted(
        "kepler",
        parts(cpu=(1.0, 10.0), gpu=(1.0, 20.0)),
        SourceError("down"),
        SourceError("down"),
        parts(cpu=(3.0, 30.0)),
    )
    states = SourceStates(failed.append)
    feed = PowerFeed([source], states, 1.0)

    def now():
        column = feed.columns("kepler", NODES).cpu
        return list(zip(column.time_s.tolist()[:2], column.power_w.tolist()[:2], strict=True))

    asyncio.run(feed.read(NODES))
    assert (now(), states.up) == ([(1.0, 10.0), (1.0, 20.0)], {"kepler": True})
    for _ in range(2):
        asyncio.run(feed.read(NODES))
        assert (now(), states.up) == ([(1.0, 10.0), (1.0, 20.0)], {"kepler": False})
    assert failed == ["kepler", "kepler"]
    asyncio.run(feed.read(NODES))
    assert now() == [(3.0, 30.0), (1.0, 20.0)]
    # Said once when it fails, and once when it is back.
    assert [record.message for record in caplog.records] == ["source failed", "source recovered"]


def test_a_source_that_hangs_holds_up_nobody():
    states = SourceStates()
    feed = PowerFeed([Scripted("http", None), Scripted("kepler", parts(cpu=(1.0, 10.0)))], states, 0.01)
    asyncio.run(feed.read(NODES))
    assert states.up == {"http": False, "kepler": True}


def test_a_node_that_is_gone_takes_its_samples_along():
    feed = PowerFeed([Scripted("kepler", parts(cpu=(1.0, 10.0)), Parts())], SourceStates(), 1.0)
    asyncio.run(feed.read(NODES))
    asyncio.run(feed.read(NODES[1:]))
    assert not feed.columns("kepler", NODES).cpu.known.any()


def facility(values, *, passed_s=0.0, polls=1, clock=None, **settings):
    """The building as measured, then `passed_s` after the last poll."""
    clock = clock or [1000.0]

    def handle(request):
        query = httpx2.QueryParams(request.read().decode())["query"]
        found = values.get(query, [])
        return vector(*(({}, 1, value) for value in found))

    async def main():
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(handle)) as client:
            given = OperatorSettings(
                facility_zone_ambient_template='zone_c{zone="%s"}',
                facility_rack_power_template='rack_w{rack="%s"}',
                power_stale_s=60.0,
                power_poll_interval_s=30.0,
                **settings,
            )
            feed = FacilityFeed(Prometheus("http://p", client), given, lambda: clock[0], SourceStates())
            assert feed.facility() == Facility()
            for poll in range(polls):
                if poll:
                    clock[0] += 30.0
                    for found in values.values():
                        found[0] = found[0] + 10
                await feed.read(NODES)
            clock[0] += passed_s
            return feed.facility()

    return asyncio.run(main())


def measured():
    return {
        "datacenter_ambient_temperature_celsius": [20, 30],
        "datacenter_total_it_power_watts": [1000, 3000],
        "datacenter_cooling_power_watts": [1000],
        'zone_c{zone="z"}': [35],
        'rack_w{rack="r\\"1"}': [700, 50],
    }


def test_the_building_is_known_as_far_as_it_is_measured():
    assert facility(measured()) == Facility(
        ambient_k=298.15,
        zone_ambient_k={"z": 308.15},
        rack_power_w={'r"1': 750.0},
        it_power_w=4000.0,
        cooling_power_w=1000.0,
        pue=1.25,
        it_ramp_w_per_min=0.0,
        rack_ramp_w_per_min={'r"1': 0.0},
    )
    assert facility(measured(), passed_s=61.0) == Facility()


def test_ramps_go_by_time():
    found = facility(measured(), polls=4)
    assert found.it_ramp_w_per_min == pytest.approx(20.0)
    assert found.rack_ramp_w_per_min == {'r"1': pytest.approx(20.0)}


def test_a_broken_sensor_of_the_building_is_no_measurement():
    found = facility({"datacenter_ambient_temperature_celsius": [-300], "datacenter_total_it_power_watts": [-1]})
    assert found == Facility()
