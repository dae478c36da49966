"""What must hold for every workload that is classified, and for everything that consumes a profile."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from joulie.domain.drain import GuardedPod, SchedulableClass
from joulie.domain.policy import Intensity, PodDemand, PodPhase, PowerConstraint, WorkloadClass
from joulie.domain.profiles.cap_response import CapChange, CapResponse, cap_response, pooled, with_response
from joulie.domain.profiles.profile import EnergyUse, GpuProfile, Hints, Use
from joulie.domain.profiles.reschedule import (
    MovablePod,
    NodeLoad,
    NodeState,
    RescheduleSettings,
    Workload,
    plan_rescheduling,
)
from joulie.domain.profiles.rules import HINTS_ONLY, classify, decayed
from joulie.domain.profiles.slicing import recommend_slicing
from joulie.domain.scoring.extender import NodeClass, PodView, Sensitivity, TwinView, extender_score
from joulie.domain.signal import Reading
from joulie.domain.workload import CpuBound, GpuBound, GpuLevel, Level, SlicingMode

quick = settings(max_examples=100, deadline=None)

THRESHOLDS_PCT = (0.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0, 65.0, 70.0, 75.0, 100.0)
PERCENTAGES = st.sampled_from(THRESHOLDS_PCT) | st.floats(0.0, 100.0)
ENERGIES = st.builds(
    EnergyUse,
    package_j=st.floats(0.0, 1e6),
    dram_j=st.none() | st.floats(0.0, 1e6),
    gpu_j=st.none() | st.floats(0.0, 1e6),
)
USES = st.builds(
    Use,
    cpu_util_pct=st.none() | PERCENTAGES,
    memory_pressure_pct=st.none() | PERCENTAGES,
    gpu_util_pct=st.none() | PERCENTAGES,
    holds_gpus=st.booleans(),
    gpu_memory_activity_pct=st.none() | PERCENTAGES,
    energy=st.none() | ENERGIES,
)
LEVELS = st.none() | st.sampled_from(list(Level))
HINTS = st.builds(
    Hints,
    workload_class=st.none() | st.sampled_from(list(WorkloadClass)),
    reschedulable=st.none() | st.booleans(),
    cpu_sensitivity=LEVELS,
    gpu_sensitivity=LEVELS,
)
RANK = [Level.LOW, Level.MEDIUM, Level.HIGH]


@quick
@given(HINTS, st.none() | USES)
def test_annotations_always_win(hints: Hints, use: Use | None) -> None:
    result = classify(hints, use)
    assert result.workload_class is (hints.workload_class or WorkloadClass.STANDARD)
    assert result.reschedulable is hints.reschedulable
    if hints.cpu_sensitivity is not None:
        assert result.cpu.cap_sensitivity is hints.cpu_sensitivity
    if hints.gpu_sensitivity is not None:
        assert result.gpu.cap_sensitivity == hints.gpu_sensitivity.value


@quick
@given(HINTS, st.none() | USES)
def test_confidence_says_what_there_was(hints: Hints, use: Use | None) -> None:
    result = classify(hints, use)
    assert result.confidence in {0.3, 0.5, 0.65, 0.7, 0.85}
    measured = use is not None and use.measured
    assert (result.confidence == 0.3) is (not measured) is (result.reason == HINTS_ONLY)
    bare = classify(Hints(), use)
    assert (result.confidence > bare.confidence) is (measured and hints.any)


@quick
@given(HINTS, USES)
def test_nothing_is_said_of_what_was_not_measured(hints: Hints, use: Use) -> None:
    result = classify(hints, use)
    assert (result.cpu.intensity is None) is (use.cpu_util_pct is None or not use.measured)
    if use.measured and use.gpu_util_pct is None:
        expected = None if use.holds_gpus else GpuLevel.NONE
        assert result.gpu.intensity is expected
        assert result.gpu.avg_utilization_pct is None


@quick
@given(USES)
def test_every_conclusion_stands_in_the_reason(use: Use) -> None:
    result = classify(Hints(), use)
    if result.reason == HINTS_ONLY:
        return
    parts = result.reason.split("; ")
    if result.cpu.intensity is not None:
        assert parts[0].startswith(f"cpu-intensity={result.cpu.intensity} (")
    bounds = [part for part in parts if "cpu-bound=" in part]
    assert bool(bounds) is (result.cpu.bound is not None)
    if bounds:
        assert f"cpu-bound={result.cpu.bound}" in bounds[-1]
        implied = {CpuBound.MEMORY, CpuBound.IO}
        assert result.cpu.bound in implied or f"cap-sensitivity={result.cpu.cap_sensitivity} " in bounds[-1]
    if use.gpu_util_pct is not None:
        assert any(part.startswith(f"gpu-intensity={result.gpu.intensity} (util ") for part in parts)
    assert len(result.reason) < 512


@quick
@given(st.lists(PERCENTAGES, min_size=2, max_size=5))
def test_more_use_is_never_less_intensity(utils_pct: list[float]) -> None:
    for less, more in pairwise(sorted(utils_pct)):
        low, high = (classify(Hints(), Use(cpu_util_pct=util, gpu_util_pct=util)) for util in (less, more))
        assert low.cpu.intensity is not None
        assert high.cpu.intensity is not None
        assert RANK.index(low.cpu.intensity) <= RANK.index(high.cpu.intensity)
        order = [GpuLevel.NONE, GpuLevel.LOW, GpuLevel.MEDIUM, GpuLevel.HIGH]
        assert low.gpu.intensity is not None
        assert high.gpu.intensity is not None
        assert order.index(low.gpu.intensity) <= order.index(high.gpu.intensity)


@quick
@given(USES)
def test_a_workload_without_use_of_gpus_has_no_gpu_profile(use: Use) -> None:
    gpu = classify(Hints(), use).gpu
    assert (gpu.intensity is GpuLevel.NONE) is (gpu.bound is GpuBound.NONE) is (gpu.cap_sensitivity is GpuLevel.NONE)


@quick
@given(HINTS, USES, HINTS, st.lists(st.integers(0, 5), max_size=4))
def test_decay_in_steps_is_decay_at_once(before: Hints, use: Use, now: Hints, steps: list[int]) -> None:
    """So the profile itself is all that must be remembered."""
    measured = classify(before, use)
    stepwise = decayed(measured, now, 0.0)
    for count in steps:
        following = decayed(stepwise, now, count * 900.0)
        assert following.confidence <= stepwise.confidence
        stepwise = following
    at_once = decayed(measured, now, sum(steps) * 900.0)
    assert stepwise == replace(at_once, confidence=stepwise.confidence)
    assert abs(stepwise.confidence - at_once.confidence) < 1e-5
    assert 0.3 <= at_once.confidence <= measured.confidence


@quick
@given(
    HINTS,
    USES,
    st.builds(CapResponse, slowdown=st.just(0.5), low=st.floats(-1.0, 0.5), high=st.floats(0.5, 2.0)),
)
def test_measured_sensitivity_changes_nothing_else(hints: Hints, use: Use, response: CapResponse) -> None:
    result = classify(hints, use)
    refined = with_response(result, hints, cpu=response, gpu=response)
    assert refined.reason.startswith(result.reason)
    if hints.cpu_sensitivity is not None:
        assert refined.cpu == result.cpu
    if hints.gpu_sensitivity is not None:
        assert refined.gpu == result.gpu
    assert replace(refined.cpu, cap_sensitivity=None) == replace(result.cpu, cap_sensitivity=None)
    assert (refined.confidence, refined.workload_class) == (result.confidence, result.workload_class)


@quick
@given(
    depths=st.tuples(st.floats(0.0, 0.6), st.floats(0.0, 0.6)),
    slowdown=st.floats(0.0, 1.0),
    rate=st.floats(1e-3, 1e9),
    noise=st.lists(st.floats(0.9, 1.1), min_size=40, max_size=40),
)
def test_the_unit_of_throughput_does_not_matter(
    depths: tuple[float, float], slowdown: float, rate: float, noise: list[float]
) -> None:
    change = CapChange(300.0, *depths)

    def response(unit: float) -> CapResponse | None:
        rates = [
            (1.0 - slowdown * (depths[0] if index < 20 else depths[1])) * factor for index, factor in enumerate(noise)
        ]
        return cap_response(
            [Reading(index * 15.0, unit * value) for index, value in enumerate(rates)], change, settling_s=0.0
        )

    one, other = response(1.0), response(rate)
    assert (one is None) is (other is None)
    if one is not None and other is not None:
        np.testing.assert_allclose(
            (one.slowdown, one.low, one.high), (other.slowdown, other.low, other.high), rtol=1e-6, atol=1e-6
        )
        assert one.low <= one.slowdown <= one.high


@quick
@given(st.lists(st.tuples(st.floats(-1.0, 1.0), st.floats(0.0, 1.0)), min_size=1, max_size=5))
def test_pooling_is_never_less_sure(rows: list[tuple[float, float]]) -> None:
    responses = [CapResponse(middle, middle - half, middle + half) for middle, half in rows]
    result = pooled(responses)
    if result is not None:
        assert result.high - result.low <= min(r.high - r.low for r in responses) + 1e-8
        assert min(r.low for r in responses) - 1e-9 <= result.slowdown <= max(r.high for r in responses) + 1e-9


GPU_PROFILES = st.lists(
    st.builds(
        GpuProfile,
        intensity=st.none() | st.sampled_from(list(GpuLevel)),
        avg_utilization_pct=st.none() | st.floats(0.0, 100.0),
    ),
    max_size=20,
)


@quick
@given(GPU_PROFILES, st.integers(0, 16), st.sets(st.sampled_from(["mig", "time-slicing", "none", "mps"])), st.randoms())
def test_slicing_is_possible_and_in_bounds(profiles: list[GpuProfile], gpus: int, modes: set[str], random: Any) -> None:
    result = recommend_slicing(profiles, gpus, modes)
    shuffled = list(profiles)
    random.shuffle(shuffled)
    again = recommend_slicing(shuffled, gpus, modes)
    assert (result is None) is (again is None) is (gpus == 0 or not modes & {"mig", "time-slicing"})
    if result is None or again is None:
        return
    assert (again.mode, again.slice_type, again.reason) == (result.mode, result.slice_type, result.reason)
    assert result.mode in modes | {SlicingMode.NONE}
    assert 0.0 <= result.confidence <= 1.0
    assert result.estimated_utilization_gain_pct is None or 0.0 <= result.estimated_utilization_gain_pct <= 100.0
    if result.total_slices is not None:
        assert result.slices_per_gpu is not None
        assert result.total_slices == result.slices_per_gpu * gpus


POD_ROWS = st.fixed_dictionaries(
    {
        "power_w": st.floats(0.0, 400.0),
        "cpu_cores": st.integers(0, 32).map(float),
        "memory_gib": st.integers(0, 64).map(float),
        "gpus": st.sampled_from([0.0, 0.0, 1.0]),
        "reschedulable": st.sampled_from([True, True, False, None]),
        "performance": st.booleans(),
        "sensitivity": LEVELS,
        "age_s": st.sampled_from([0.0, 3600.0]),
        "daemon": st.sampled_from([False, False, True]),
        "mirror": st.sampled_from([False, False, True]),
        "terminating": st.sampled_from([False, False, True]),
    }
)
LOADS = st.builds(
    NodeLoad,
    capped_w=st.floats(500.0, 2000.0),
    measured_w=st.floats(0.0, 2000.0),
    cooling_stress_pct=st.floats(0.0, 100.0),
    psu_stress_pct=st.floats(0.0, 100.0),
    psu_capacity_w=st.floats(1e3, 1e5),
)
NODE_ROWS = st.fixed_dictionaries(
    {
        "schedulable": st.sampled_from(list(SchedulableClass)),
        "load": st.none() | LOADS,
        "accepts_pods": st.booleans(),
        "rack": st.sampled_from([None, "r1", "r2"]),
        "free_cpu_cores": st.integers(-4, 64).map(float),
        "free_memory_gib": st.integers(-4, 128).map(float),
        "free_gpus": st.integers(0, 2).map(float),
        "free_pods": st.integers(0, 4),
        "pods": st.lists(POD_ROWS, max_size=4),
    }
)
CLUSTERS = st.lists(NODE_ROWS, max_size=6)
RESCHEDULE = st.builds(
    RescheduleSettings,
    headroom_pct=st.sampled_from([0.0, 5.0, 20.0]),
    max_per_node=st.integers(0, 3),
    max_per_cycle=st.integers(0, 5),
)


def build(rows: list[dict[str, Any]]) -> list[NodeState]:
    nodes = []
    for index, row in enumerate(rows):
        pods = [
            MovablePod("ns", f"p{index}-{at}", Workload("ns", "Job", f"w{index}-{at % 2}"), **pod)
            for at, pod in enumerate(row["pods"])
        ]
        nodes.append(NodeState(f"n{index}", **(row | {"pods": tuple(pods)})))
    return nodes


@quick
@given(CLUSTERS, RESCHEDULE)
def test_only_pods_that_say_so_are_evicted_and_only_where_they_fit(
    rows: list[dict[str, Any]], setup: RescheduleSettings
) -> None:
    nodes = {node.name: node for node in build(rows)}
    pods = {pod.name: (pod, node) for node in nodes.values() for pod in node.pods}
    plan = plan_rescheduling(nodes.values(), setup)
    assert len(plan.evictions) <= setup.max_per_cycle
    taken: dict[str, list[MovablePod]] = {}
    left: dict[str, int] = {}
    for eviction in plan.evictions:
        pod, node = pods[eviction.pod]
        target = nodes[eviction.target]
        left[node.name] = left.get(node.name, 0) + 1
        assert eviction.node == node.name != target.name
        assert pod.reschedulable is True
        assert not any((pod.daemon, pod.mirror, pod.terminating))
        assert target.accepts_pods
        assert target.load is not None
        assert target.schedulable is SchedulableClass.PERFORMANCE or (
            target.schedulable is SchedulableClass.ECO and not pod.performance
        )
        taken.setdefault(target.name, []).append(pod)
        assert any((r.node, r.workload) == (node.name, pod.workload) for r in plan.recommendations)
    assert all(count <= setup.max_per_node for count in left.values())
    for name, guests in taken.items():
        target = nodes[name]
        assert target.load is not None
        assert len(guests) <= target.free_pods
        for resource in ("cpu_cores", "memory_gib", "gpus"):
            assert sum(getattr(pod, resource) for pod in guests) <= getattr(target, f"free_{resource}") + 1e-6
        # What leaves the target in the same cycle is not counted on.
        assert target.load.measured_w + sum(pod.power_w for pod in guests) <= target.load.capped_w * 0.9 + 1e-6


@quick
@given(CLUSTERS, RESCHEDULE, st.randoms())
def test_the_order_of_nodes_and_pods_decides_nothing(
    rows: list[dict[str, Any]], setup: RescheduleSettings, random: Any
) -> None:
    nodes = build(rows)
    shuffled = [replace(node, pods=tuple(random.sample(node.pods, len(node.pods)))) for node in nodes]
    random.shuffle(shuffled)
    assert plan_rescheduling(nodes, setup) == plan_rescheduling(shuffled, setup)


@quick
@given(CLUSTERS)
def test_a_node_that_is_well_loses_nothing(rows: list[dict[str, Any]]) -> None:
    setup = RescheduleSettings()
    plan = plan_rescheduling(build(rows), setup)
    by_name = {node.name: node for node in build(rows)}
    rack_pct: dict[str | None, float] = {}
    for node in by_name.values():
        if node.load is not None:
            rack_pct[node.rack] = max(rack_pct.get(node.rack, 0.0), node.load.psu_stress_pct)
    for recommendation in plan.recommendations:
        node = by_name[recommendation.node]
        if node.schedulable is not SchedulableClass.DRAINING:
            assert node.load is not None
            assert node.load.cooling_stress_pct > 90.0 or rack_pct[node.rack] > 90.0


# What profiles do to those who consume them.

DEPTHS = st.floats(0.0, 1.0)
SENSITIVITIES = st.sampled_from(list(Sensitivity))


def twins(cpu_depths: list[float], gpu_depths: list[float]) -> TwinView:
    """Nodes that differ in the depth of their caps alone."""
    count = len(cpu_depths)
    return TwinView(
        node_class=np.full(count, NodeClass.PERFORMANCE),
        fresh=np.ones(count, dtype=np.bool_),
        capped_w=np.full(count, 1000.0),
        measured_w=np.full(count, 300.0),
        cooling_stress_pct=np.full(count, 30.0),
        headroom_score=np.full(count, 70.0),
        trend_w_per_min=np.zeros(count),
        cpu_cap_fraction=1.0 - np.array(cpu_depths),
        gpu_cap_fraction=1.0 - np.array(gpu_depths),
    )


@quick
@given(SENSITIVITIES, SENSITIVITIES, DEPTHS, DEPTHS, DEPTHS, st.booleans())
def test_deeper_caps_are_larger_penalties(
    cpu: Sensitivity, gpu: Sensitivity, depth: float, other: float, untouched: float, performance: bool
) -> None:
    pod = PodView(performance=performance, cpu_sensitivity=cpu, gpu_sensitivity=gpu)
    shallow, deep = sorted((depth, other))
    for view, sensitivity in (
        (twins([shallow, deep], [untouched] * 2), cpu),
        (twins([untouched] * 2, [shallow, deep]), gpu),
    ):
        scores = extender_score(pod, view, np.zeros(2))
        # Nothing else differs, and the penalty is in proportion to the depth.
        np.testing.assert_allclose(scores[0] - scores[1], sensitivity * (deep - shallow), atol=1e-9)


@quick
@given(st.lists(st.tuples(DEPTHS, DEPTHS), min_size=1, max_size=6))
def test_more_sensitive_pods_never_score_better(depths: list[tuple[float, float]]) -> None:
    view = twins([cpu for cpu, _ in depths], [gpu for _, gpu in depths])
    marginal_w = np.zeros(len(depths))
    for less, more in pairwise(sorted(Sensitivity)):
        for part in ("cpu_sensitivity", "gpu_sensitivity"):
            mild = extender_score(PodView(**{part: less}), view, marginal_w)  # type: ignore[arg-type]
            keen = extender_score(PodView(**{part: more}), view, marginal_w)  # type: ignore[arg-type]
            assert (keen <= mild + 1e-9).all()


DEMANDS = st.builds(
    PodDemand,
    phase=st.sampled_from(list(PodPhase)),
    workload_class=st.none() | st.sampled_from(list(WorkloadClass)),
    constraint=st.sampled_from(list(PowerConstraint)),
    intensity=st.none() | st.sampled_from(list(Intensity)),
    confidence=st.sampled_from([0.0, 0.3, 0.499, 0.5, 0.7, 1.0]),
)


@quick
@given(DEMANDS)
def test_high_intensity_weighs_double_and_only_with_confidence(demand: PodDemand) -> None:
    bare = replace(demand, intensity=None, confidence=0.0).weight
    sure = demand.intensity is Intensity.HIGH and demand.confidence >= 0.5
    assert bare in {0, 1}
    assert demand.weight == (2 * bare if sure else bare)


@quick
@given(
    st.none() | st.sampled_from(list(WorkloadClass)),
    st.sampled_from(list(PowerConstraint)),
    st.none() | st.booleans(),
)
def test_what_a_pod_says_of_being_moved_decides_whether_it_holds_a_drain(
    workload_class: WorkloadClass | None, constraint: PowerConstraint, reschedulable: bool | None
) -> None:
    silent = GuardedPod(workload_class, constraint)
    pod = GuardedPod(workload_class, constraint, reschedulable)
    assert pod.blocks is (silent.blocks if reschedulable is None else not reschedulable)
