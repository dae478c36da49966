"""Power and energy of pods, and how they are asked for."""

import asyncio
import json
import sys
from dataclasses import replace

import numpy as np
import pytest
from prometheus_client import generate_latest

from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.kubernetes.pods import Owner, PodFacts
from joulie.adapters.kubernetes.requests import Requests
from joulie.adapters.prometheus.readings import GpuDevice
from joulie.apps.operator.metrics import OperatorMetrics
from joulie.apps.operator.power.metrics import OTHER, SHOWN_NAMESPACES
from joulie.apps.operator.power.pods import Meters, NodesPower, Work, running_pods, shared
from joulie.apps.operator.power.report import PowerReport, PowerReports
from joulie.apps.operator.sources.usage import PodWeights
from joulie.domain.control import controlled_node
from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie.domain.hardware.resolve import resolve
from joulie.domain.policy import PodPhase
from joulie.domain.signal import Reading

CPU = resolve(None, {"joulie.io/hw.cpu-model": "AMD-EPYC-9654"}, {"cpu": 96.0}, BUILTIN_CATALOGUE)
GPU = resolve(
    None,
    {
        "joulie.io/hw.cpu-model": "AMD-EPYC-9654",
        "joulie.io/hw.gpu-model": "NVIDIA-L40S",
        "joulie.io/hw.gpu-count": "2",
    },
    {"cpu": 96.0},
    BUILTIN_CATALOGUE,
)
NODES = (controlled_node("c", CPU), controlled_node("g", GPU))


def pod(name, node, *, namespace="team", cores=1.0, gpus=0.0, phase=PodPhase.RUNNING, uid=None):
    return PodFacts(namespace, name, uid or f"uid-{name}", phase, node, Requests(cores, 1.0, gpus), Owner("Job", "j"))


def power(*, cpu=(300.0, 400.0), gpu=(0.0, 200.0), idle=(100.0, 100.0), gpu_idle=(0.0, 60.0), estimated=False):
    cpu_w, gpu_w = np.array(cpu), np.array(gpu)
    total_w = cpu_w + gpu_w
    bounds = (0.9 * total_w, 1.2 * total_w) if estimated else (total_w, total_w)
    return NodesPower(
        NODES, ("kepler", "kepler+dcgm"), np.full(2, 1000.0), cpu_w, gpu_w, total_w, *bounds,
        np.array(idle), np.array(gpu_idle), np.full(2, 96.0),
    )  # fmt: skip


def share(pods, work=None, **given):
    async def main():
        objects = {Key(one.namespace, one.name): one for one in pods}
        running = await running_pods(objects, NODES)
        return await shared(power(**given), running, work or Work())

    return asyncio.run(main())


def by_pod(shares, values=None):
    listed = (shares.pod_w if values is None else values).round(6).tolist()
    return {one.name: watts for one, watts in zip(shares.running.pods, listed, strict=True)}


def weights(source, **by_name):
    return PodWeights(source, {("team", name): value for name, value in by_name.items()}, 1000.0)


def conserved(shares):
    pods_w = np.nan_to_num(shares.pod_cpu_w) + np.nan_to_num(shares.pod_gpu_w)
    of_node = np.bincount(shares.running.node, pods_w, 2)
    np.testing.assert_allclose(of_node + shares.idle_w + shares.system_w, shares.power.total_w, rtol=1e-9)


def test_trap_idle_power_is_charged_to_nobody():
    work = Work([weights("cadvisor", a=30.0, b=10.0)], {"cadvisor": {"c": Reading(1000.0, 50.0)}})
    shares = share([pod("a", "c"), pod("b", "c")], work)
    # 200 W above idle, 50 cores busy: 4 W a core.
    assert by_pod(shares) == {"a": 120.0, "b": 40.0}
    assert (shares.idle_w[0], shares.system_w[0]) == (100.0, pytest.approx(40.0))
    conserved(shares)


def test_pods_on_their_way_out_or_elsewhere_get_nothing():
    shares = share([pod("a", "c"), pod("done", "c", phase=PodPhase.FINISHED), pod("b", "c-1"), pod("wait", "")])
    assert set(by_pod(shares)) == {"a"}


def test_units_never_mix_on_a_node():
    pods = [pod("a", "c"), pod("b", "c"), pod("d", "c"), pod("e", "g", cores=24.0)]
    work = Work([weights("kepler", a=7.0), weights("cadvisor", a=1.0, b=1.0)], {"cadvisor": {"c": Reading(0.0, 4.0)}})
    shares = share(pods, work)
    # Kepler has measured one of three pods on c, cAdvisor two, and nobody those on g.
    assert shares.weight_source == ("cadvisor", "requests")
    found = by_pod(shares)
    assert (found["a"], found["b"], found["e"]) == (50.0, 50.0, 75.0)
    assert np.isnan(found["d"])
    conserved(shares)


def test_kepler_s_watts_stay_as_they_are():
    work = Work([weights("kepler", a=70.0, b=30.0)], dynamic_w={"c": 200.0})
    assert by_pod(share([pod("a", "c"), pod("b", "c")], work)) == {"a": 70.0, "b": 30.0}


def device(uuid, watts, *holders, mig=None, profile=None, util=None):
    reading = None if watts is None else Reading(1000.0, watts)
    return GpuDevice("g", uuid, mig, profile, reading, util, tuple(("team", one) for one in holders), len(holders) > 1)


def gpu_shares(pods, *devices):
    shares = share(pods, Work(devices=devices))
    conserved(shares)
    return by_pod(shares, shares.pod_gpu_w)


def test_trap_each_gpu_is_charged_to_who_holds_it():
    pods = [pod("a", "g", gpus=1.0), pod("b", "g"), pod("c", "c")]
    found = gpu_shares(pods, device("0", 150.0, "a"), device("1", 50.0))
    assert found == {"a": 150.0, "b": 0.0, "c": 0.0}


def test_a_pod_that_moved_is_not_charged_for_the_gpu_that_it_left():
    # A StatefulSet's pod keeps its name, and DCGM's last scrape knows it where it was.
    pods = [pod("a", "c", gpus=1.0), pod("b", "g", gpus=1.0)]
    found = gpu_shares(pods, device("0", 150.0, "a"), device("1", 50.0, "b"))
    assert np.isnan(found.pop("a"))
    assert found == {"b": 50.0}


def test_the_devices_share_what_the_node_is_judged_by():
    # DCGM says 300 W where the better source says 200.
    found = gpu_shares([pod("a", "g", gpus=1.0)], device("0", 225.0, "a"), device("1", 75.0))
    assert found == {"a": 150.0}


def test_pods_that_take_turns_share_the_device_evenly():
    pods = [pod("a", "g", gpus=1.0), pod("b", "g", gpus=1.0)]
    found = gpu_shares(pods, device("0", 150.0, "a", "b", util=90.0), device("1", 50.0))
    assert found == {"a": 75.0, "b": 75.0}


def test_mig_instances_share_by_slices_and_by_what_they_do():
    pods = [pod("a", "g", gpus=3 / 7), pod("b", "g", gpus=3 / 7)]
    found = gpu_shares(
        pods,
        device("0", 130.0, "a", mig="1", profile="3g.40gb", util=100.0),
        device("0", 130.0, "b", mig="2", profile="3g.40gb", util=0.0),
        device("0", 130.0, mig="3", profile="1g.10gb", util=0.0),
        device("1", 70.0),
    )
    idle_w = 30.0 * 3 / 7
    assert found == {"a": pytest.approx(100.0 + idle_w), "b": pytest.approx(idle_w)}


def test_without_dcgm_a_lone_pod_has_the_gpus_that_it_asks_for():
    assert gpu_shares([pod("a", "g", gpus=2.0)]) == {"a": 200.0}
    assert gpu_shares([pod("a", "g", gpus=1.0)]) == {"a": 170.0}  # half the idle power is nobody's


def test_h9_without_dcgm_a_lone_pod_has_the_mig_instances_that_it_asks_for(monkeypatch):
    divided = replace(GPU, gpu=replace(GPU.gpu, instances=7))
    monkeypatch.setattr(sys.modules[__name__], "NODES", (NODES[0], controlled_node("g", divided)))
    assert gpu_shares([pod("a", "g", gpus=7.0)]) == {"a": 170.0}
    assert gpu_shares([pod("a", "g", gpus=14.0)]) == {"a": 200.0}


def test_without_dcgm_nobody_can_tell_two_pods_apart():
    shares = share([pod("a", "g", gpus=1.0), pod("b", "g", gpus=1.0)])
    assert np.isnan(shares.pod_w).all()
    assert shares.system_w[1] >= 200.0
    conserved(shares)


def test_a_node_whose_parts_nobody_knows_charges_nobody():
    shares = share([pod("a", "c")], cpu=(np.nan, np.nan))
    assert np.isnan(shares.pod_w).all()
    assert np.isnan(shares.idle_w).all()


def metered(*polls, gap_s=120.0):
    """Energy after polls of (time, pods, CPU power of node c)."""

    async def main():
        meters = Meters(0.0)
        for now_s, pods, cpu_w in polls:
            shares = share_of(pods, cpu_w)
            meters = await meters.extended(await shares, now_s, gap_s)
        return meters

    async def share_of(pods, cpu_w):
        running = await running_pods({Key(one.namespace, one.uid): one for one in pods}, NODES)
        work = Work([PodWeights("cadvisor", {(one.namespace, one.name): 1.0 for one in pods}, 0.0)])
        return await shared(power(cpu=(cpu_w, 100.0), gpu=(0.0, 60.0)), running, work)

    return asyncio.run(main())


def test_energy_is_the_integral_of_power():
    one = [pod("a", "c")]
    meters = metered((0.0, one, 300.0), (30.0, one, 400.0), (60.0, one, 400.0))
    assert meters.pod_j.tolist() == [30.0 * 250.0 + 30.0 * 300.0]
    assert meters.node_j.tolist()[0] == 30.0 * 350.0 + 30.0 * 400.0
    assert meters.namespace_j == {"team": meters.pod_j[0]}


def test_a_gap_that_nobody_measured_adds_nothing():
    one = [pod("a", "c")]
    meters = metered((0.0, one, 300.0), (500.0, one, 300.0), (530.0, one, 300.0))
    assert meters.pod_j.tolist() == [30.0 * 200.0]
    assert metered((0.0, one, 300.0), (30.0, one, np.nan), (60.0, one, 300.0)).pod_j.tolist() == [0.0]


def test_a_clock_that_goes_back_takes_nothing_away():
    one = [pod("a", "c")]
    assert metered((100.0, one, 300.0), (70.0, one, 300.0)).pod_j.tolist() == [0.0]


def test_a_pod_of_the_same_name_is_another_pod_and_its_namespace_remembers_both():
    first, second = pod("a", "c", uid="1"), pod("a", "c", uid="2")
    meters = metered((0.0, [first], 300.0), (30.0, [first], 300.0), (60.0, [second], 300.0), (90.0, [second], 300.0))
    assert meters.pod_j.tolist() == [30.0 * 200.0]
    assert meters.namespace_j == {"team": 60.0 * 200.0}


def report(pods=None, *, estimated=False):
    pods = pods or [pod("a", "c"), pod("b", "g", gpus=2.0, namespace="other-team"), pod("x", "c")]
    work = Work([weights("cadvisor", a=1.0, b=1.0)])
    shares = share(pods, work, estimated=estimated)
    meters = asyncio.run(Meters(500.0).extended(shares, 1010.0, 120.0))
    return PowerReport(shares, meters, 120.0)


def ask(reports, path="/debug/power", query="", now_s=1010.0):
    sent = []

    async def send(message):
        sent.append(message)

    async def fallback(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    scope = {"path": path, "query_string": query.encode()}
    asyncio.run(reports.before(fallback, lambda: now_s)(scope, None, send))
    return sent[0]["status"], json.loads(sent[1]["body"])


def test_only_the_leader_knows():
    reports = PowerReports()
    assert ask(reports) == (503, {"leader": False})
    reports.leading = True
    assert ask(reports) == (200, {"now": 1010.0, "leader": True, "since": None, "kind": "nodes", "items": []})
    assert ask(reports, query="kind=cats")[0] == 400
    assert ask(reports, path="/metrics")[0] == 404


def test_nodes_pods_and_namespaces_are_listed_with_what_is_known_of_them():
    reports = PowerReports()
    reports.leading, reports.latest = True, report()
    _, answer = ask(reports, query="kind=nodes")
    assert (answer["since"], [one["name"] for one in answer["items"]]) == (500.0, ["g", "c"])
    assert answer["items"][1] == {
        "name": "c", "powerW": 300.0, "cpuW": 300.0, "idleW": 100.0, "systemW": 0.0, "energyJ": 0.0,
        "quality": "fresh", "source": "kepler", "weightSource": "cadvisor", "ageS": 10.0,
    }  # fmt: skip
    _, answer = ask(reports, query="kind=pods&namespace=team")
    assert [one["name"] for one in answer["items"]] == ["a", "x"]
    assert answer["items"][0] == {
        "name": "a", "namespace": "team", "node": "c", "powerW": 200.0, "cpuW": 200.0, "energyJ": 0.0,
        "quality": "fresh", "source": "kepler", "weightSource": "cadvisor", "ageS": 10.0,
    }  # fmt: skip
    assert answer["items"][1]["quality"] == "missing"
    assert "powerW" not in answer["items"][1]
    _, answer = ask(reports, query="kind=namespaces")
    listed = [(one["name"], one["pods"], one["unknownPods"]) for one in answer["items"]]
    assert listed == [("other-team", 1, 0), ("team", 2, 1)]
    assert ask(reports, query="kind=pods&limit=1")[1]["items"][0]["name"] == "b"
    assert ask(reports, query="kind=nodes", now_s=1200.0)[1]["items"][0]["quality"] == "stale"


def test_trap_unknown_power_of_a_namespace_is_not_zero():
    reports = PowerReports()
    work = Work([weights("cadvisor", a=1.0, b=1.0)])
    shares = share([pod("a", "c"), pod("b", "c"), pod("x", "c", namespace="dark")], work)
    meters = asyncio.run(Meters(500.0).extended(shares, 1010.0, 120.0))
    reports.leading, reports.latest = True, PowerReport(shares, meters, 120.0)
    (team, dark) = ask(reports, query="kind=namespaces")[1]["items"]
    assert (team["name"], team["powerW"]) == ("team", 200.0)
    assert (dark["name"], dark["pods"], dark["unknownPods"]) == ("dark", 1, 1)
    assert "powerW" not in dark


def test_an_estimate_shows_its_interval():
    reports = PowerReports()
    reports.leading, reports.latest = True, report(estimated=True)
    node = next(one for one in ask(reports)[1]["items"] if one["name"] == "c")
    assert (node["lowW"], node["highW"]) == (270.0, 360.0)
    one = ask(reports, query="kind=pods&namespace=team")[1]["items"][0]
    assert (one["lowW"], one["powerW"], one["highW"]) == (180.0, 200.0, 240.0)


def test_metrics_of_power_and_none_by_pod():
    metrics = OperatorMetrics()
    metrics.lead()
    metrics.power.reports.latest = report()

    def value(name, **labels):
        return metrics.registry.get_sample_value(f"joulie_operator_{name}", labels)

    parts = [value("node_power_watts", node="c", part=part) for part in ("idle", "system", "pods")]
    assert parts == [100.0, 0.0, 200.0]
    assert value("node_device_power_watts", node="g", device="gpu") == 200.0
    assert value("node_device_power_watts", node="c", device="gpu") is None
    assert value("namespace_power_watts", namespace="team") == 200.0
    assert b"uid-" not in generate_latest(metrics.registry)
    metrics.stood_down()
    assert value("node_power_watts", node="c", part="idle") is None


def test_trap_namespaces_are_bounded_in_the_metrics():
    metrics = OperatorMetrics()
    pods = [pod(f"p{number}", "c", namespace=f"n{number}") for number in range(SHOWN_NAMESPACES + 50)]
    metrics.power.reports.latest = PowerReport(share(pods), Meters(0.0), 120.0)
    (family,) = (one for one in metrics.power.collect() if one.name == "joulie_operator_namespace_power_watts")
    shown = {sample.labels["namespace"]: sample.value for sample in family.samples}
    assert len(shown) == SHOWN_NAMESPACES + 1
    assert sum(shown.values()) == pytest.approx(200.0 * min(1.0, len(pods) / max(96.0, len(pods))))
    assert OTHER in shown
