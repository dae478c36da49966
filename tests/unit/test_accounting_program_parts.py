"""Parts of the accounting program: who is asked, what pods draw, what policies say, and its server."""

import asyncio
import json
import ssl
from dataclasses import replace
from types import SimpleNamespace

import httpx2
import msgspec
import numpy as np
import pytest

from joulie.adapters.kubernetes import metrics_server
from joulie.adapters.kubernetes.api.core import (
    Container,
    ContainerRun,
    ContainerState,
    ContainerStatus,
    Node,
    NodeStatus,
    PodSpec,
    PodStatusWithContainers,
    PodWithContainers,
)
from joulie.adapters.kubernetes.api.meta import ObjectMeta
from joulie.adapters.kubernetes.errors import ConnectionLostError
from joulie.adapters.kubernetes.metrics_server import MetricsUnavailableError
from joulie.adapters.kubernetes.pods import Owner
from joulie.adapters.ledger import open_ledger
from joulie.adapters.prometheus.node_exporter import NodeCpus
from joulie.adapters.prometheus.nodes import NodeIndex
from joulie.adapters.prometheus.readings import GpuDevice, PodPower
from joulie.apps.accounting import main as program
from joulie.apps.accounting.facts import AccountedNamespace, AccountedPod, keep_node, keep_pod
from joulie.apps.accounting.policies import NAMESPACE_BUDGET_KWH, NAMESPACE_BUDGET_PERIOD, namespace_budget, pod_policy
from joulie.apps.accounting.powers import NodeSite, idle_quality, powers
from joulie.apps.accounting.settings import AccountingSettings, node_power_ranges
from joulie.apps.accounting.signals import zone_signals
from joulie.apps.accounting.usage import Readings, UsageReader
from joulie.domain.accounting.budget import BudgetAction
from joulie.domain.accounting.identity import NodeFacts, PowerRange, PowerSettings, node_power
from joulie.domain.accounting.profiles import CpuProfile, GpuProfile, HardwareProfiles, Profiles, Scaling
from joulie.domain.accounting.records import PowerQuality
from joulie.domain.grid import names
from joulie.domain.grid.series import Series
from joulie.domain.grid.signals import Basis, GridSignal, Measure, Provenance
from joulie.domain.signal import Quality, Reading
from joulie.domain.usage import PodUsage
from joulie.program.settings import settings_from
from joulie_lab.fakes.kubernetes import FakeCluster
from support.prometheus_answers import NOW_S, asked_of, matrix, vector

POD = {"namespace": "team", "pod": "p"}
KEPLER_POD = {"pod_namespace": "team", "pod_name": "p"}
KEY = ("team", "p")
NO_SERVER = MetricsUnavailableError("none")
INDEX = NodeIndex.from_aliases({"n1": (), "n2": ()})


# ---- who is asked


@pytest.fixture
def read(monkeypatch):
    """What a reader makes of a Prometheus and of a Metrics Server."""

    def ask(answers, *, server=NO_SERVER, pods=frozenset({KEY}), times=1):
        calls = []

        async def pod_usage(client):
            calls.append(client)
            if isinstance(server, Exception):
                raise server
            return server

        monkeypatch.setattr(metrics_server, "pod_usage", pod_usage)
        clock = [NOW_S]
        found = []

        async def main(prometheus):
            reader = UsageReader("client", prometheus, window_s=60.0, timeout_s=5.0, now_s=lambda: clock[0])
            for _ in range(times):
                found.append(await reader.read(set(pods), INDEX))
                clock[0] += 30.0
            return reader

        reader, queries = asked_of(answers, main)
        return SimpleNamespace(found=found[-1], up=reader.states.up, asked=len(calls), queries=queries)

    return ask


KEPLER = {"kepler_pod_cpu_joules_total{state=\"running\", zone=~\"package": vector((KEPLER_POD, 50.0)),
          "kepler_pod_cpu_joules_total{state=\"running\", zone=~\"dram": vector((KEPLER_POD, 5.0))}  # fmt: skip
CADVISOR = {"container_cpu_usage_seconds_total": vector((POD, 1.5)),
            "container_memory_working_set_bytes": vector((POD, 2e9))}  # fmt: skip


def test_use_is_asked_for_also_where_kepler_measures_for_it_is_shown(read):
    told = read(KEPLER | CADVISOR)
    assert told.found.power[KEY] == PodPower(50.0, 5.0, None)
    assert told.found.usage["cadvisor"].cpu_cores == {KEY: 1.5}
    assert told.asked == 0


def test_a_pod_that_kepler_does_not_know_is_not_left_to_its_requests(read):
    """A node without Kepler is too small a part of the cluster to be noticed, and stays so."""
    others = {("team", f"p{number}") for number in range(99)}
    told = read({query: vector(*(({"pod_namespace": n, "pod_name": p}, 5.0) for n, p in others)) for query in KEPLER}
                | CADVISOR, pods={KEY, *others})  # fmt: skip
    assert told.found.usage["cadvisor"].cpu_cores[KEY] == 1.5


def test_where_kepler_knows_no_memory_cadvisor_does(read):
    told = read(dict(list(KEPLER.items())[:1]) | CADVISOR)
    assert told.found.power[KEY].cpu_w == 50.0
    assert told.found.usage["cadvisor"].memory_bytes == {KEY: 2e9}
    assert told.asked == 0


def test_the_metrics_server_is_asked_where_prometheus_knows_too_few(read):
    server = PodUsage({("team", "q"): 0.5}, {})
    told = read(CADVISOR, server=server, pods={KEY, ("team", "q")})
    assert list(told.found.usage) == ["cadvisor", "metrics-server"]


def test_a_cluster_without_a_metrics_server_is_asked_again_only_now_and_then(read):
    assert read({}, times=5).asked == 1
    assert read({}, times=11).asked == 2


def test_sources_that_fail_are_told_and_leave_the_rest_to_others(read):
    told = read({"": {"status": "error", "error": "overload"}}, server=ConnectionLostError("away", sent=False))
    assert told.found == Readings({}, {}, {}, ())
    sources = ("kepler", "agents", "platform", "dcgm", "cadvisor", "node-exporter", "metrics-server")
    assert told.up == dict.fromkeys(sources, False)


def test_how_busy_and_how_fast_nodes_are_comes_from_node_exporter(read):
    answers = {
        "node_cpu_seconds_total": vector(({"instance": "n1:9100"}, 4.5), ({"instance": "n10:9100"}, 9.0)),
        "node_cpu_scaling_frequency_hertz": vector(({"instance": "n1:9100"}, 2.0e9), ({"node": "n2"}, -1.0)),
    }
    assert read(CADVISOR | answers).found.cpus == NodeCpus({"n1": 4.5}, {"n1": 2.0e9})


# ---- what pods draw


def pod(name="p", cpu_cores=2.0, gpus=0.0, node="n1", **more):
    return AccountedPod(f"uid-{name}", "team", name, node, Owner("Pod", name), None, cpu_cores, 0.0, gpus, **more)


def place(gpus=0, workloads=None):
    facts = NodeFacts(
        "n1", {"nvidia.com/gpu.product": "Test GPU 7"}, cpu_cores=10.0, allocatable_gpus={"nvidia.com/gpu": float(gpus)}
    )
    profiles = HardwareProfiles(gpus=Profiles({"Test GPU 7": GpuProfile(50.0, 450.0, workloads or {})}))
    return NodeSite("n1", "u1", node_power(facts, profiles, PowerSettings(PowerRange(100.0, 400.0))), "DE")


def test_idle_power_is_keplers_where_it_knows_it():
    readings = Readings({("team", "p"): PodPower(30.0, 4.0)}, {"n1": 70.0})
    found = powers([place()], [pod()], [None], readings)
    assert found.cpu_w[0] == pytest.approx(30.0 + 70.0 * 0.2)
    assert found.mem_w[0] == pytest.approx(4.0)
    assert found.idle_cpu_w[0] == pytest.approx(70.0 * 0.8)
    assert (found.quality, found.source) == ([PowerQuality.MEASURED], ["kepler"])


def test_what_runs_beside_pods_is_the_nodes_and_slow_cpus_draw_less():
    profiles = HardwareProfiles(cpus=Profiles({"Test CPU 5": CpuProfile(100.0, 400.0, None, 3.0e9, Scaling.QUADRATIC)}))
    facts = NodeFacts("n1", {"node.kubernetes.io/cpu-model": "Test-CPU-5"}, cpu_cores=10.0)
    slow = NodeSite("n1", "u1", node_power(facts, profiles, PowerSettings()), "DE")
    use = {"cadvisor": PodUsage({KEY: 2.0}, {})}
    found = powers([slow], [pod()], [None], Readings(usage=use, cpus=NodeCpus({"n1": 8.0}, {"n1": 1.5e9})))
    busy_w = 300.0 * 0.8**1.4 * 0.25
    assert found.cpu_w[0] == pytest.approx(100.0 * 0.2 + busy_w * 2.0 / 8.0)
    assert found.idle_cpu_w[0] == pytest.approx(100.0 * 0.8 + busy_w * 6.0 / 8.0)


def test_a_type_of_work_draws_its_share_of_a_gpu():
    found = powers([place(2, {"inference": 0.6})], [pod(gpus=1.0)], ["inference"], Readings())
    assert found.gpu_w[0] == pytest.approx(450.0 * 0.6)
    assert found.idle_gpu_w[0] == pytest.approx(50.0)
    assert found.quality == [PowerQuality.ASSUMED]


def test_slices_and_turns_of_a_gpu_are_shared():
    pods = [pod("a", gpus=0.5), pod("b", gpus=0.5), pod("c", gpus=3 / 7)]
    turns = GpuDevice("n1", "GPU-1", None, None, Reading(0.0, 200.0), 90.0, (("team", "a"), ("team", "b")), True)
    slice_ = GpuDevice("n1", "GPU-2", "1", "3g.40gb", Reading(0.0, 350.0), 40.0, (("team", "c"),), False)
    found = powers([place(2)], pods, [None] * 3, Readings(gpus=[turns, slice_]))
    assert found.gpu_w[:2].tolist() == pytest.approx([100.0, 100.0])
    assert 0.0 < found.gpu_w[2] <= 350.0


H100 = "NVIDIA-H100-80GB-HBM3"


def divided(allocatable, **labels):
    labels = {f"nvidia.com/gpu.{key}": text for key, text in labels.items()}
    node = Node(metadata=ObjectMeta("n1", labels=labels), status=NodeStatus(allocatable={"cpu": "96", **allocatable}))
    return NodeSite("n1", "u1", node_power(keep_node(node).facts, HardwareProfiles(), PowerSettings()), "DE")


def test_h9_pods_of_mig_instances_are_charged_their_share_of_the_gpu():
    """The 56 instances that the device plugin counts as GPUs are 8 GPUs."""
    site = divided({"nvidia.com/gpu": "56"}, product=f"{H100}-MIG-1g.10gb", count="56")
    found = powers([site], [pod("one", gpus=1.0), pod("seven", gpus=7.0)], [None] * 2, Readings())
    assert site.power.gpus == 8
    assert found.gpu_w.tolist() == pytest.approx([100.0, 700.0])
    assert found.idle_gpu_w[0] == pytest.approx((8 - 8 / 7) * site.power.gpu.idle_w)


def test_h9_instances_of_several_profiles_are_gpus_without_any_label():
    """The strategy `mixed`: half of the first GPU is free, the other one is whole."""
    site = divided({"nvidia.com/gpu": "1", "nvidia.com/mig-1g.10gb": "4", "nvidia.com/mig-3g.40gb": "1"})
    found = powers([site], [pod("slice", gpus=3 / 7), pod("whole", gpus=1.0)], [None] * 2, Readings())
    assert site.power.gpus == 2
    assert found.gpu_w[0] == pytest.approx(found.gpu_w[1] * 3 / 7)
    assert found.idle_gpu_w[0] == pytest.approx(site.power.gpu.idle_w * 4 / 7)


def test_trap_a_gpu_of_which_nobody_says_anything_is_not_zero():
    unread = GpuDevice("n1", "GPU-1", None, None, None, None, (("team", "p"),), False)
    found = powers([place(1)], [pod(gpus=1.0)], [None], Readings(gpus=[unread]))
    assert found.gpu_w[0] == pytest.approx(450.0)


def test_a_gpu_whose_holder_nobody_names_is_as_busy_as_its_node():
    device = GpuDevice("n1", "GPU-1", None, None, Reading(0.0, 200.0), 25.0, (), False)
    readings = Readings(usage={"cadvisor": PodUsage({KEY: 1.0}, {})}, gpus=[device])
    found = powers([place(1)], [pod(gpus=1.0)], [None], readings)
    assert found.gpu_w[0] == pytest.approx(50.0 + 400.0 * 0.25)
    assert found.quality == [PowerQuality.MODELLED]
    unsaid = powers([place(1)], [pod(gpus=1.0)], [None], Readings(usage=readings.usage))
    assert unsaid.quality == [PowerQuality.ASSUMED]


def test_keplers_gpu_power_is_without_idle_power_which_comes_on_top():
    readings = Readings({KEY: PodPower(30.0, 4.0, 120.0)}, {"n1": 70.0})
    found = powers([place(2)], [pod(gpus=1.0)], [None], readings)
    assert found.gpu_w[0] == pytest.approx(170.0)
    assert found.idle_gpu_w[0] == pytest.approx(50.0)
    assert found.quality == [PowerQuality.MEASURED]


def test_a_pod_on_a_node_whose_idle_power_is_only_modelled_is_not_called_measured():
    found = powers([place()], [pod()], [None], Readings({KEY: PodPower(30.0, 4.0)}))
    assert (found.quality, found.source) == ([PowerQuality.MODELLED], ["kepler"])


def test_what_the_agent_of_a_node_measured_is_what_its_pods_and_nobody_pay():
    use = {"cadvisor": PodUsage({("team", "a"): 3.0}, {})}
    readings = Readings(usage=use, cpus=NodeCpus({"n1": 8.0}, {}), cpu_w={"n1": 180.0}, gpu_w={"n1": (400.0, 2)})
    found = powers([place(2)], [pod("a", gpus=1.0), pod("b", cpu_cores=1.0)], [None] * 2, readings)
    # 100 W idle, of which 2 and 1 of 10 cores are reserved; 80 W more, of which 3 and 1 of 8 busy cores are pods'.
    assert found.cpu_w.tolist() == pytest.approx([20.0 + 30.0, 10.0 + 10.0])
    assert found.cpu_w.sum() + found.idle_cpu_w[0] == pytest.approx(180.0)
    # By the profile the pod's GPU draws 450 W and the other 50 W; together they drew 400 W.
    assert (found.gpu_w[0], found.idle_gpu_w[0]) == pytest.approx((360.0, 40.0))
    assert found.source == ["agents", "agents"]
    assert found.quality == [PowerQuality.ASSUMED, PowerQuality.ASSUMED], (
        "nobody says how busy its GPU is, or what b uses"
    )


def test_kepler_and_dcgm_have_the_word_where_agents_measure_too():
    device = GpuDevice("n1", "GPU-1", None, None, Reading(0.0, 200.0), 25.0, (("team", "p"),), False)
    measured = Readings({KEY: PodPower(30.0, 4.0)}, {"n1": 70.0}, gpus=[device])
    expected = powers([place(1)], [pod(gpus=1.0)], [None], measured)
    both = replace(measured, cpu_w={"n1": 500.0}, gpu_w={"n1": (300.0, 1)})
    found = powers([place(1)], [pod(gpus=1.0)], [None], both)
    assert (found.cpu_w[0], found.idle_cpu_w[0]) == (expected.cpu_w[0], expected.idle_cpu_w[0])
    assert found.gpu_w[0] == expected.gpu_w[0] == pytest.approx(200.0)
    assert found.source == ["kepler"]


def test_gpus_that_an_agent_measured_in_part_are_by_their_profile():
    found = powers([place(2)], [], [], Readings(gpu_w={"n1": (60.0, 1)}))
    assert found.idle_gpu_w.tolist() == [100.0]


def agent(node, power_w, age_s):
    """An agent that Prometheus scraped just now, and whose last cycle ended some seconds ago."""
    values = {
        "joulie_rapl_package_total_power_watts": power_w,
        "joulie_agent_last_cycle_timestamp_seconds": NOW_S - age_s,
    }
    return [({"__name__": name, "node": node}, [(0, value)]) for name, value in values.items()]


def test_agents_that_hang_are_not_believed(read):
    answers = {"joulie_rapl": matrix(*agent("n1", 180.0, 10.0), *agent("n2", 90.0, 70.0))}
    told = read(answers)
    assert told.found.cpu_w == {"n1": 180.0}
    assert told.up["agents"]


def test_g16_a_servers_own_meter_is_what_its_pods_and_nobody_pay(read):
    """The source `platform`: fans and power supplies are in no other reading."""
    meter = {"__name__": "kepler_platform_watts", "node_name": "n1", "power_control_name": "Server Power Control"}
    answers = {"kepler_platform": matrix((meter, [(5, 520.0)])), **CADVISOR}
    readings = read(answers).found
    found = powers([place(2)], [pod(gpus=1.0)], [None], readings)
    idle_w = found.idle_cpu_w + found.idle_mem_w + found.idle_gpu_w
    total_w = (found.cpu_w + found.mem_w + found.gpu_w).sum() + idle_w.sum()
    assert total_w == pytest.approx(520.0, rel=1e-12)
    plain = powers([place(2)], [pod(gpus=1.0)], [None], replace(readings, whole_w={}))
    assert found.cpu_w / plain.cpu_w == pytest.approx(found.idle_gpu_w / plain.idle_gpu_w), "all parts alike"
    assert found.source == ["platform"]
    quality = idle_quality(place(2), readings, by_agent=False, has_gpus=True)
    assert quality == (PowerQuality.MODELLED, "platform")


def test_g16_an_old_reading_of_a_servers_meter_is_not_believed(read):
    meter = {"__name__": "kepler_platform_watts", "node_name": "n1"}
    assert read({"kepler_platform": matrix((meter, [(61, 520.0)]))}).found.whole_w == {}


def test_nodes_of_the_past_and_no_pods_at_all_are_fine():
    assert powers([], [], [], Readings()).cpu_w.shape == (0,)
    assert not np.isnan(powers([place()], [], [], Readings()).idle_cpu_w).any()


def test_when_a_pod_ended_is_what_its_containers_say():
    conditions = json.loads('[{"type": "Ready", "status": "False", "lastTransitionTime": "2027-01-15T08:00:20Z"}]')
    ended = PodWithContainers(
        metadata=ObjectMeta(name="p", namespace="team", uid="u"),
        spec=PodSpec(node_name="n1", containers=(Container("c"),)),
        status=PodStatusWithContainers(phase="Succeeded", conditions=(SimpleNamespace(**_camel(conditions[0])),)),
    )
    assert keep_pod(ended).ended_s == 1_800_000_020.0
    ran = ContainerRun("2027-01-15T08:00:05Z", "2027-01-15T08:00:50Z")
    setup = ContainerRun("2027-01-15T08:00:02Z", "2027-01-15T08:00:04Z")
    status = PodStatusWithContainers(
        phase="Succeeded", conditions=ended.status.conditions, start_time="2027-01-15T08:00:00Z",
        container_statuses=(ContainerStatus(ContainerState(terminated=ran)),),
        init_container_statuses=(ContainerStatus(ContainerState(terminated=setup)),),
    )  # fmt: skip
    told = keep_pod(msgspec.structs.replace(ended, status=status))
    assert (told.started_s, told.ended_s) == (1_800_000_002.0, 1_800_000_050.0), "it was never ready"
    again = msgspec.structs.replace(status.container_statuses[0], restart_count=1)
    told = keep_pod(msgspec.structs.replace(ended, status=msgspec.structs.replace(status, container_statuses=(again,))))
    assert told.started_s == 1_800_000_000.0, "only the last start of a container is known"
    assert (
        keep_pod(PodWithContainers(metadata=ObjectMeta(name="p"), status=PodStatusWithContainers(phase="Pending")))
        is None
    )


def _camel(condition):
    return {
        "type": condition["type"],
        "status": condition["status"],
        "last_transition_time": condition["lastTransitionTime"],
    }


# ---- policies


def test_a_pods_word_beats_its_types_and_its_namespaces():
    policies = AccountedNamespace(
        {names.POLICIES_LABEL: names.POLICIES_ENABLED},
        {
            names.POLICY_PREFIX + "pue": "1.5",
            names.POLICY_PREFIX + "energy-budget-kwh": "4",
            names.WORKLOAD_PREFIX + "batch-energy-budget-kwh": "2",
            names.WORKLOAD_PREFIX + "batch-policy-energy-budget-action": "notify",
        },
    )
    batch = AccountedPod("u", "team", "p", "n1", Owner("Job", "j"), annotations={names.GPU_WORKLOAD_TYPE: "training"})
    found = pod_policy(batch, policies)
    assert (found.pue, found.budget.limit_j, found.budget.action) == (1.5, 2 * 3.6e6, BudgetAction.NOTIFY)
    assert found.gpu_workload_type == "training"
    own = pod_policy(pod(annotations={names.ENERGY_BUDGET_KWH: "1", names.PUE: "1.2"}), policies)
    assert (own.pue, own.budget.limit_j) == (1.2, 3.6e6)
    assert pod_policy(pod(), None).budget is None


@pytest.mark.parametrize("text", ["", "-1", "nan", "inf", "0", "1e10", "five"])
def test_a_budget_that_is_none_is_a_mistake_and_no_budget(text):
    found = pod_policy(pod(annotations={names.ENERGY_BUDGET_KWH: text}), None)
    assert found.budget is None
    assert len(found.mistakes) == 1


def test_a_namespaces_budget_begins_anew():
    said = AccountedNamespace(annotations={NAMESPACE_BUDGET_KWH: "10", NAMESPACE_BUDGET_PERIOD: "day"})
    declared, mistakes = namespace_budget(said)
    budget = declared.now("team", 1_800_000_000.0)
    assert (budget.scope, budget.since_s, mistakes) == ("team", 1_799_971_200.0, ())
    said = AccountedNamespace(annotations={NAMESPACE_BUDGET_KWH: "10", NAMESPACE_BUDGET_PERIOD: "year"})
    _declared, (mistake,) = namespace_budget(said)
    assert "'year' is not one of hour, day, week, month" in mistake


# ---- the grid


class Feed:
    def __init__(self, history, value=None, time_s=0.0):
        self._history = history
        provenance = Provenance("test", "DE", Basis.MARGINAL)
        self._signal = (
            GridSignal(Measure.CARBON, "DE")
            if value is None
            else GridSignal(Measure.CARBON, "DE", Quality.STALE, value, time_s, provenance)
        )

    def want(self, zone):
        return True

    def carbon(self, zone):
        return self._signal

    def price(self, zone):
        return None

    def history(self, measure, zone):
        return self._history


def known(history, *signal, now_s=120.0):
    return zone_signals(Feed(history, *signal), ["DE"], Basis.AVERAGE, now_s)["DE"]


def test_what_is_known_of_the_grid_reaches_until_now():
    past = Series([0.0, 60.0], [100.0, 200.0], 90.0)
    found = known(past, 200.0, 60.0)
    assert found.marginal == Series([0.0, 60.0, 90.0], [100.0, 200.0, 200.0], 120.0)
    assert (found.intensity, found.price) == (None, None)
    assert known(past, 200.0, 60.0, now_s=70.0).marginal == Series([0.0, 60.0], [100.0, 200.0], 70.0)


def test_trap_a_signal_that_is_missing_is_not_made_up():
    past = Series([0.0], [100.0], 90.0)
    assert known(past).intensity == past
    assert known(None).intensity is None
    assert known(past, 300.0, 110.0).marginal == Series([110.0], [300.0], 120.0), "nobody knows of 90 to 110"


# ---- settings and the server


def test_settings_have_the_names_of_the_seed():
    environment = {
        "METRICS_SAMPLING_INTERVAL": "15s", "MAX_SAMPLES_PER_POD": "100", "COMPLETED_POD_RETENTION": "2h",
        "DOWNSAMPLING_STRATEGY": "lttb", "NODE_DEFAULT_IDLE_POWER": "50", "NODE_DEFAULT_MAX_POWER": "300",
    }  # fmt: skip
    found = settings_from(AccountingSettings, environment)
    assert (found.sampling_interval_s, found.max_samples_per_pod, found.completed_pod_retention_s) == (
        15.0,
        100,
        7200.0,
    )
    assert (found.node_default_idle_w, found.node_default_max_w) == (50.0, 300.0)
    kept = program.ledger_settings(found)
    assert (kept.max_samples_per_pod, kept.retention_s) == (100, 7200.0)
    with pytest.raises(ValueError, match="NODE_DEFAULT_IDLE_POWER"):
        AccountingSettings(node_default_idle_w=500.0)
    with pytest.raises(ValueError, match="METRICS_TLS_CERT_FILE"):
        AccountingSettings(metrics_key_file="k")


def test_trap_a_nodes_own_power_is_of_its_whole_name():
    ranges = node_power_ranges({"NODE_POWER_CONFIG_node-1": "idle:50,max:300", "PATH": "/bin"})
    settings = PowerSettings(by_node=ranges)
    assert settings.of("node-1") == PowerRange(50.0, 300.0)
    assert settings.of("node-10") is None
    with pytest.raises(ValueError, match="NODE_POWER_CONFIG_n: must be like"):
        node_power_ranges({"NODE_POWER_CONFIG_n": "50"})


def test_the_address_of_the_ledger_may_be_in_a_file_and_is_never_shown(tmp_path):
    file = tmp_path / "url"
    file.write_text("postgresql://joulie:secret@db/joulie\n")
    assert AccountingSettings(ledger_url_file=file).ledger_address() == "postgresql://joulie:secret@db/joulie"
    assert "secret" not in repr(AccountingSettings(ledger_url="postgresql://joulie:secret@db/joulie"))


def test_the_program_serves_over_https_and_stops(tmp_path, unused_port):
    async def main():
        async with FakeCluster() as cluster:
            settings = AccountingSettings(
                kubeconfig=cluster.kubeconfig(tmp_path / "kubeconfig"), metrics_addr=f"127.0.0.1:{unused_port}",
                prometheus_address="", carbon_sources=("static",), source_settings={"carbon": {"static": 100.0}},
            )  # fmt: skip
            ledger = open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
            stop = asyncio.Event()
            serving = asyncio.create_task(program.serve(settings, program.sampler_of(settings, {}), ledger, stop))
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            async with httpx2.AsyncClient(verify=context, base_url=f"https://127.0.0.1:{unused_port}") as http:
                async with asyncio.timeout(20.0):
                    while not serving.done():
                        try:
                            ready = await http.get("/readyz")
                            counted = "joulie_accounting_cycles_total" in (await http.get("/metrics")).text
                        except httpx2.TransportError:
                            await asyncio.sleep(0.02)
                            continue
                        if ready.status_code == 200 and counted:
                            break
                        await asyncio.sleep(0.02)
                energy = await http.get("/api/v1/energy?by=pod")
                missing = await http.get("/nothing")
            stop.set()
            await serving
            ledger.close()
            return energy, missing

    energy, missing = asyncio.run(main())
    assert energy.status_code == 401, energy.text
    assert missing.status_code == 404


@pytest.fixture
def unused_port():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]
