"""Who takes part in the search for power limits, who holds a GPU, and what is measured of a job."""

import asyncio
import math
from dataclasses import dataclass, field, replace
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from joulie.adapters.kubernetes.api.core import Pod
from joulie.adapters.kubernetes.api.v1alpha1 import (
    ControlStatus,
    GpuLimit,
    GpuStatus,
    NodeTwin,
    PodReference,
    SmClockStatus,
)
from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.kubernetes.pods import PodFacts, ProfileFacts, pod_facts
from joulie.adapters.kubernetes.profiles import ProfileIndex
from joulie.apps.operator.desired import desired_node
from joulie.apps.operator.leader import Leader
from joulie.apps.operator.limits.controller import GpuLimits
from joulie.apps.operator.limits.jobs import Holders, bound, jobs, needs_exporter, stated
from joulie.apps.operator.limits.measure import MAX_METRICS, Meters
from joulie.apps.operator.limits.metrics import GpuLimitMetrics
from joulie.apps.operator.settings import OperatorSettings
from joulie.domain.capping.held_out import NO_HOLDOUT, NOT_PAYING, HeldOut
from joulie.domain.capping.knobs import TunedJob
from joulie.domain.capping.live import MAX_FAILURES, NO_PROGRESS, NOT_IN_FORCE, JobGpus, LiveJob
from joulie.domain.capping.node_limits import PowerCeiling
from joulie.domain.capping.prior import POOLED
from joulie.domain.control import ControlSettings, Decision, Memory, Snapshot, controlled_node, decide
from joulie.domain.drain import ActivePerformance, NodeState
from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie.domain.hardware.resolve import resolve
from joulie.domain.policies import POLICIES
from joulie.domain.policy import Cap, PolicySettings, WorkloadClass
from support.prometheus_answers import asked_of, vector

LABELS = {
    "joulie.io/hw.cpu-model": "AMD-EPYC-9965",
    "joulie.io/hw.cpu-sockets": "2",
    "joulie.io/hw.gpu-model": "NVIDIA-L40S",
    "joulie.io/hw.gpu-count": "2",
}
TRAIN, OTHER = ("ml", "train-0"), ("ml", "other-0")


def decision(
    state: NodeState | None = None,
    *,
    enforced: bool = True,
    share: float = 1.0,
    ceiling: PowerCeiling | None = None,
) -> Decision:
    node = controlled_node("n", resolve(None, LABELS, {"cpu": 384.0}, BUILTIN_CATALOGUE), enforced=enforced)
    snapshot = Snapshot(1000.0, (node,), ceilings={} if ceiling is None else {"n": ceiling})
    policy = POLICIES["static_partition"](PolicySettings(static_hp_frac=share))
    return decide(snapshot, Memory({"n": state or ActivePerformance()}), ControlSettings(), policy)


def pod(key: tuple[str, str], gpus: int = 1, *, phase: str = "Running", **annotations: str) -> PodFacts:
    names = {name.replace("_", "-"): value for name, value in annotations.items()}
    document = {
        "metadata": {
            "namespace": key[0],
            "name": key[1],
            "uid": key[1],
            "annotations": {f"joulie.io/{name}": value for name, value in names.items()},
        },
        "spec": {
            "nodeName": "n",
            "containers": [{"name": "main", "resources": {"requests": {"nvidia.com/gpu": str(gpus)}}}],
        },
        "status": {"phase": phase, "startTime": "2026-01-01T00:00:00Z"},
    }
    return pod_facts(msgspec.convert(document, Pod))


@dataclass
class View:
    """What the search reads of the cluster."""

    gpus: tuple[GpuStatus, ...]
    facts: tuple[PodFacts, ...]
    workload_profiles: ProfileIndex[Any] = field(default_factory=ProfileIndex)

    @property
    def pods(self) -> dict[Key, PodFacts]:
        return {Key(one.namespace, one.name): one for one in self.facts}

    def twin_of(self, _node: str) -> NodeTwin:
        document = {"metadata": {"name": "n"}, "spec": {"nodeName": "n", "profile": "performance"}}
        twin = msgspec.convert(document, NodeTwin)
        status = msgspec.structs.replace(twin.status, control_status=ControlStatus(gpus=self.gpus))
        return msgspec.structs.replace(twin, status=status)


def gpu(
    name: str, pods: tuple[tuple[str, str], ...] | None, *, shared: bool = False, limit_w: float = 350.0
) -> GpuStatus:
    listed = None if pods is None else tuple(PodReference(pod, namespace) for namespace, pod in pods)
    return GpuStatus(name, limit_w, 350.0, 100.0, listed, shared)


def held(view: View, exported: Holders | None = None, **state: Any) -> dict[str, str]:
    """Pod by GPU."""
    found = jobs(decision(**state), cast("Any", view), OperatorSettings(), exported or {})
    return {one: holder[1] for job in found.values() for _, one, holder in job.gpus}


def with_own_limit(facts: PodFacts, text: str) -> PodFacts:
    document = {
        "metadata": {"namespace": "ml", "name": facts.name, "annotations": {"dynamo.nvidia.com/gpu-power-limit": text}}
    }
    read = pod_facts(msgspec.convert(document, Pod))
    assert bool(read.mistakes) == (read.gpu_power_limit_w is None)
    return msgspec.structs.replace(facts, gpu_power_limit_w=read.gpu_power_limit_w)


@pytest.mark.parametrize(
    ("text", "baseline_w"),
    [("250", 250.0), ("900", 350.0), ("50", 100.0), ("much", 350.0), ("nan", 350.0), ("-1", 350.0)],
)
def test_a_limit_that_a_pod_states_is_an_upper_bound(text: str, baseline_w: float) -> None:
    view = View((gpu("a", (TRAIN,)),), (with_own_limit(pod(TRAIN), text),))
    found = jobs(decision(), cast("Any", view), OperatorSettings(), {})
    assert [(key.baseline_w, key.original_w) for key in found] == [(baseline_w, 350.0)]


def test_a_limit_that_a_pod_states_holds_for_pods_without_a_search_too() -> None:
    facts = with_own_limit(pod(TRAIN, workload_class="performance"), "250")
    view = View((gpu("a", (TRAIN,)), gpu("b", ())), (facts,))
    assert not jobs(decision(), cast("Any", view), OperatorSettings(), {})
    assert list(stated(decision(), cast("Any", view), {})) == [("n", "a", 250.0, TRAIN)]


def test_holder_by_the_kubelet_is_the_pod_that_still_runs() -> None:
    facts = (pod(TRAIN), pod(OTHER, phase="Succeeded"))
    assert held(View((gpu("a", (OTHER, TRAIN)), gpu("b", (OTHER,))), facts)) == {"a": "train-0"}
    assert held(View((gpu("a", (TRAIN,), shared=True),), facts)) == {}
    both = (pod(TRAIN), pod(OTHER))
    assert held(View((gpu("a", (OTHER, TRAIN)), gpu("b", ())), both)) == {}


def test_without_the_kubelet_the_exporter_says_then_the_only_pod_holds_all() -> None:
    unknown = (gpu("a", None), gpu("b", None))
    alone, both = View(unknown, (pod(TRAIN, 2),)), View(unknown, (pod(TRAIN), pod(OTHER)))
    assert needs_exporter(decision(), cast("Any", alone))
    assert not needs_exporter(decision(), cast("Any", View((gpu("a", ()),), ())))
    assert held(alone) == {"a": "train-0", "b": "train-0"}
    assert held(both) == {}
    assert held(both, {("n", "a"): (TRAIN,), ("n", "b"): (OTHER,)}) == {"a": "train-0", "b": "other-0"}
    assert held(View(unknown, (pod(TRAIN), pod(OTHER, phase="Pending")))) == {}


def test_drain_cap_and_observe_mode_go_first() -> None:
    view = View((gpu("a", (TRAIN,)),), (pod(TRAIN),))
    limits = (GpuLimit("a", PodReference("train-0", "ml"), 250.0),)
    assert held(view) == {"a": "train-0"}
    assert desired_node(decision(), 0, gpu_limits=limits).spec.gpu_limits == limits
    for other in (decision(enforced=False), decision(share=0.0)):
        assert desired_node(other, 0, gpu_limits=limits).spec.gpu_limits == ()
    assert held(view, enforced=False) == held(view, share=0.0) == {}


def test_a_power_budget_does_not_go_first_and_a_cap_beside_it_does() -> None:
    view = View((gpu("a", (TRAIN,)), gpu("b", (TRAIN,))), (pod(TRAIN, 2),))
    ceiling = PowerCeiling(None, 250.0)
    limits = (GpuLimit("a", PodReference("train-0", "ml"), 200.0),)
    bounded = decision(ceiling=ceiling)
    assert bounded.nodes[0].wanted.gpu == Cap(watts=250.0)
    (job,) = jobs(bounded, cast("Any", view), OperatorSettings(), {}, {"n": 250.0}).values()
    assert (job.baseline_w, job.ceiling_w, job.bounded_w) == (350.0, 250.0, 250.0)
    spec = desired_node(bounded, 0, gpu_limits=limits, ceiling=ceiling).spec
    assert spec.gpu_limits == limits
    assert spec.gpu is not None
    assert spec.gpu.power_cap.cap_watts_per_gpu == 250.0
    # An eco node is capped by its policy, whatever a budget says.
    assert (
        desired_node(decision(share=0.0, ceiling=ceiling), 0, gpu_limits=limits, ceiling=ceiling).spec.gpu_limits == ()
    )


def test_of_the_ceilings_between_two_looks_the_lowest_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []

    def spied(*args: Any) -> dict[Any, Any]:
        seen.append(args[-1]["n"])
        return {}

    monkeypatch.setattr("joulie.apps.operator.limits.controller.jobs", spied)
    ceilings: dict[str, PowerCeiling] = {}
    none = cast("Any", None)
    search = GpuLimits(
        Leader(none, cast("Any", View((), ())), OperatorSettings(), none, lambda: True, lambda: 1000.0),
        none,
        none,
        GpuLimitMetrics(CollectorRegistry()),
        lambda: None,
        ceilings.get,
    )
    search.decided(decision())

    def changed(ceiling_w: float | None) -> None:
        ceilings["n"] = PowerCeiling(None, ceiling_w)
        search.bounded(("n",))

    for ceilings_w in ((300.0,), (200.0, 320.0), (), (None,), ()):
        for ceiling_w in ceilings_w:
            changed(ceiling_w)
        asyncio.run(search.look())
    assert seen == [300.0, 200.0, 320.0, math.inf, math.inf]


def test_limit_in_force_is_that_of_all_gpus_of_a_job() -> None:
    view = View((gpu("a", (TRAIN,), limit_w=300.0), gpu("b", (TRAIN,))), (pod(TRAIN, 2),))
    (job,) = jobs(decision(), cast("Any", view), OperatorSettings(), {}).values()
    assert (job.baseline_w, job.in_force_w) == (350.0, None)


FREE, OTHER_KIND = SmClockStatus(1980.0), SmClockStatus(1410.0)
LOCKED, UNSEEN = SmClockStatus(1980.0, 1770.0, "applied"), SmClockStatus(1980.0, 1770.0, "unconfirmed")
OVERRIDDEN = SmClockStatus(None, None, "error", "something overrides the lock")


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (FREE, FREE, (1.98e9, 1.98e9)),
        (LOCKED, LOCKED, (1.98e9, 1.77e9)),
        (LOCKED, FREE, (1.98e9, None)),
        (LOCKED, UNSEEN, (1.98e9, None)),
        (UNSEEN, UNSEEN, (1.98e9, None)),
        (FREE, None, None),
        (FREE, OTHER_KIND, None),
        (FREE, OVERRIDDEN, None),
        (None, None, None),
    ],
)
def test_a_clock_in_force_is_that_of_all_gpus_of_a_job_as_read(
    first: SmClockStatus | None, second: SmClockStatus | None, expected: tuple[float, float | None] | None
) -> None:
    gpus = [
        msgspec.structs.replace(gpu(name, (TRAIN,)), sm_clock=clock) for name, clock in (("a", first), ("b", second))
    ]
    trains = pod(TRAIN, 2, progress_metric="steps_total")
    (job,) = jobs(decision(), cast("Any", View(tuple(gpus), (trains,))), OperatorSettings(), {}).values()
    found = job.clocks
    assert (None if found is None else (found.largest_hz, found.in_force_hz)) == expected


def test_clocks_are_not_tried_where_progress_is_counted_in_cycles() -> None:
    gpus = (msgspec.structs.replace(gpu("a", (TRAIN,)), sm_clock=FREE),)
    for settings, tried in ((OperatorSettings(), False), (OperatorSettings(gpu_limits_progress_query="steps"), True)):
        (job,) = jobs(decision(), cast("Any", View(gpus, (pod(TRAIN),))), settings, {}).values()
        assert (job.clocks is not None) is tried


@pytest.mark.parametrize(
    ("annotations", "settings", "expected"),
    [
        ({}, {}, 1.05),
        ({"gpu_limits": "false"}, {}, None),
        ({"workload_class": "performance"}, {}, None),
        ({"workload_class": "performance", "gpu_limits": "true"}, {}, 1.02),
        ({"workload_class": "performance"}, {"gpu_limits_performance": True}, 1.02),
        ({"workload_class": "performance"}, {"gpu_limits_performance_namespaces": ("ml",)}, 1.02),
        ({"workload_class": "performance", "gpu_limits": "false"}, {"gpu_limits_performance": True}, None),
    ],
)
def test_bound_by_class_and_consent(
    annotations: dict[str, str], settings: dict[str, Any], expected: float | None
) -> None:
    assert bound(pod(TRAIN, **annotations), ProfileFacts(), OperatorSettings(**settings)) == expected


def test_profile_that_says_performance_needs_consent_too() -> None:
    profile = ProfileFacts(workload_class=WorkloadClass.PERFORMANCE)
    assert bound(pod(TRAIN), profile, OperatorSettings()) is None


def test_progress_annotation_names_a_metric_and_no_query() -> None:
    assert pod(TRAIN, progress_metric="train_steps_total").progress_metric == "train_steps_total"
    refused = pod(TRAIN, progress_metric='x) or up{job="secret"}')
    assert refused.progress_metric == ""
    assert "is not the name of a metric" in refused.mistakes[0]


JOB = JobGpus(frozenset({TRAIN}), (("n", "a", TRAIN), ("n", "b", TRAIN)), 350.0, 100.0, 350.0)


def measured(answers: dict[str, Any], metric: str = "", query: str = "") -> tuple[Any, list[str]]:
    async def ask(prometheus: Any) -> Any:
        return (await Meters(prometheus, query).measure({metric}, 180.0))(metric, JOB)

    return asked_of(answers, ask)


def test_power_and_progress_by_the_sources_best_first() -> None:
    power = {"POWER_USAGE": vector(({"UUID": "a"}, 300.0), ({"gpu": "b"}, 200.0))}
    steps = {"steps_total": vector(({"namespace": "ml", "pod": "train-0"}, 3.0))}
    active = {"SM_ACTIVE": vector(({"UUID": "a"}, 900.0), ({"UUID": "b"}, 1100.0))}
    assert measured({**power, **steps, **active}, "steps_total")[0] == (250.0, 3.0, None)
    assert measured({**power, **steps, **active}, "", "rate(steps_total[{window}])")[0] == (250.0, 3.0, None)
    found, queries = measured({**power, **active})
    assert found == (250.0, 1000.0, 1000.0)
    assert all("180s" in query for query in queries)
    # What is missing is never made up, nor replaced by another measure in mid-search.
    assert measured({**power, **active}, "steps_total")[0] == (250.0, None, None)
    assert measured({"POWER_USAGE": vector(({"UUID": "a"}, 300.0))})[0] == (None, None, None)


@pytest.mark.parametrize(
    ("moved", "counted"), [((0.5, 0.3), 0.4), ((0.004, 0.002), None), ((0.0, 0.0), None), ((0.5, 1.5), None)]
)
def test_memory_traffic_is_counted_beside_progress_where_it_tells(
    moved: tuple[float, float], counted: float | None
) -> None:
    answers = {
        "POWER_USAGE": vector(({"UUID": "a"}, 300.0), ({"UUID": "b"}, 200.0)),
        "steps_total": vector(({"namespace": "ml", "pod": "train-0"}, 3.0)),
        "DRAM_ACTIVE": vector(*(({"UUID": uuid}, share) for uuid, share in zip("ab", moved, strict=True))),
    }
    assert measured(answers, "steps_total")[0] == (250.0, 3.0, counted)


def test_queries_for_tenants_are_bounded() -> None:
    async def ask(prometheus: Any) -> Any:
        return await Meters(prometheus, "").measure({f"metric_{n}" for n in range(100)}, 180.0)

    _, queries = asked_of({}, ask)
    assert len(queries) == MAX_METRICS + 2  # beside them power and memory traffic


def test_states_and_withdrawn_limits_are_counted() -> None:
    registry = CollectorRegistry()
    metrics = GpuLimitMetrics(registry)
    free = LiveJob.found(JOB, None)
    trial = replace(free, limit_w=300.0)
    alone = replace(free, held_out=HeldOut(drawn=True))
    metrics.show(map(TunedJob, (free, trial, replace(trial, failures=MAX_FAILURES), alone)), NO_HOLDOUT)
    metrics.count_withdrawn(TunedJob(trial), TunedJob(replace(free, problem=NO_PROGRESS)))
    metrics.count_withdrawn(TunedJob(free, trial), TunedJob(replace(free, problem=NOT_IN_FORCE)))  # of the clock
    metrics.count_withdrawn(TunedJob(free), TunedJob(replace(free, problem=NO_PROGRESS)))  # it had no limit
    metrics.count_withdrawn(TunedJob(alone), TunedJob(replace(free, problem=NOT_PAYING)))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"joulie_operator_gpu_limits_{name}", labels)

    states = [value("workloads", state=state) for state in ("full-power", "trial", "held", "left-alone", "given-up")]
    assert states == [1.0, 1.0, 0.0, 1.0, 1.0]
    reasons = ("progress", "not-in-force", "not-paying")
    assert [value("withdrawn_total", reason=reason) for reason in reasons] == [1.0, 1.0, 1.0]
    metrics.stood_down()
    assert value("workloads", state="trial") is None


def test_prior_agrees_with_the_published_sweeps() -> None:
    """Energy for the same work and throughput at 0.6 to 1.0 of natural power: between those of the four GPUs."""
    ratios = np.log([0.6, 0.7, 0.8, 0.9, 1.0])
    none = np.zeros(0)
    energy = np.exp(POOLED.energy.given(ratios, none, none).mean)
    throughput = np.exp(-POOLED.slowdown.given(ratios, none, none).mean)
    assert np.all(energy >= np.array([0.73, 0.74, 0.79, 0.84, 0.89]) - 0.02)
    assert np.all(energy <= np.array([0.97, 0.83, 0.82, 0.86, 0.92]) + 0.02)
    assert np.all(throughput >= np.array([0.60, 0.80, 0.91, 0.94, 0.97]) - 0.03)
    assert np.all(throughput <= np.array([0.76, 0.86, 0.92, 0.96, 0.99]) + 0.03)
