"""Native runs keep their invariants whatever the jobs, the policy and the scheduler."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulie.domain.policies import POLICIES
from joulie.domain.policy import PolicySettings
from joulie_lab.simulation.climate import Climate
from joulie_lab.simulation.experiment.outcome import JobEnd, JobOutcome, Outcome
from joulie_lab.simulation.experiment.scenario import NodeGroup
from joulie_lab.simulation.live.fleet import LiveFleet
from joulie_lab.simulation.live.nodes import FleetLoad
from joulie_lab.simulation.native.control import Control
from joulie_lab.simulation.native.nodes import sim_nodes
from joulie_lab.simulation.native.runtime import Setup, run
from joulie_lab.simulation.trace import GPU_MILLI_KEY, WORKLOAD_CLASS_KEY, JobProfile, TraceJob

NODES = sim_nodes(
    [
        NodeGroup(name="cpu", count=2, cpu="AMD EPYC 9965", cores=32.0, memory_gib=64.0),
        NodeGroup(name="gpu", count=2, cpu="AMD EPYC 9654", cores=32.0, memory_gib=64.0, gpu="NVIDIA L40S", gpus=2),
    ]
)
DURATION_S = 4000.0


@st.composite
def traces(draw: st.DrawFn) -> list[TraceJob]:
    """Workloads of one to three pods, gangs or not, some of them larger than any node."""
    jobs: list[TraceJob] = []
    for number in range(draw(st.integers(1, 8))):
        members, gang = draw(st.integers(1, 3)), draw(st.booleans())
        cores, gpus = draw(st.sampled_from([0, 1, 4, 20, 32, 40])), draw(st.integers(0, 3))
        share = draw(st.sampled_from(["1000", "300"]))
        work_s, util = draw(st.floats(0.0, 2000.0)), draw(st.floats(0.1, 1.0))
        annotations = {GPU_MILLI_KEY: share} | draw(st.sampled_from([{}, {WORKLOAD_CLASS_KEY: "performance"}]))
        submit_s = float(draw(st.integers(0, 1500)))
        jobs += [
            TraceJob(
                job_id=f"{number}-{member}",
                workload_id=str(number),
                submit_s=submit_s,
                requests={"cpu": str(cores), "memory": "1Gi", "nvidia.com/gpu": str(gpus)},
                annotations=annotations,
                gang=gang,
                cpu_units=work_s * cores * util,
                gpu_units=work_s * gpus * util,
                profile=JobProfile(cpu_utilization=util, gpu_utilization=util),
            )
            for member in range(members)
        ]
    return jobs


POLICY_NAMES = st.sampled_from([None, *sorted(POLICIES)])


def setup(policy: str | None, **changes: object) -> Setup:
    own = PolicySettings(static_hp_frac=0.5, queue_hp_base_frac=0.25, queue_perf_per_hp_node=2)
    control = None if policy is None else Control(POLICIES[policy](own))
    given_setup = Setup(
        nodes=NODES,
        duration_s=DURATION_S,
        control=control,
        scheduler="kube" if control is None else "joulie",
        n_samples=5,
        facility_step_s=1000.0,
    )
    return replace(given_setup, **changes)  # type: ignore[arg-type]


@settings(max_examples=25, deadline=None)
@given(traces(), POLICY_NAMES, st.sampled_from(["together", "singly"]), st.booleans())
def test_invariants(jobs: list[TraceJob], policy: str | None, gangs: str, share_gpus: bool) -> None:
    outcome = run(setup(policy, gangs=gangs, share_gpus=share_gpus), jobs)
    assert sorted(one.job_id for one in outcome.jobs) == sorted(one.job_id for one in jobs)
    assert outcome.it_j == pytest.approx(sum(node.energy_j for node in outcome.nodes))
    assert outcome.series.performance_pods_on_eco.max() == 0
    asked = {one.job_id: one for one in jobs}
    for one in outcome.jobs:
        ends_and_works(one)
    nothing_overflows(outcome, asked, share_gpus=share_gpus)
    first_come_first_served(outcome.jobs, asked)


def ends_and_works(one: JobOutcome) -> None:
    """A job has one end, and its work is done exactly where it is completed."""
    assert (one.end is JobEnd.COMPLETED) == (one.end_s is not None)
    assert 0.0 <= one.cpu_units_done <= one.cpu_units
    assert 0.0 <= one.gpu_units_done <= one.gpu_units
    assert (one.problem == "") == (one.end in {JobEnd.COMPLETED, JobEnd.RUNNING})
    if one.end is JobEnd.COMPLETED:
        assert (one.cpu_units_done, one.gpu_units_done) == (one.cpu_units, one.gpu_units)
        assert one.start_s is not None
        assert one.end_s is not None
        assert one.submit_s <= one.start_s + 1e-5
        # 1e-3: what is left unfollowed of a limit that has all but arrived, and the moment of an event.
        assert one.end_s - one.start_s >= one.ideal_s * (1.0 - 1e-3) - 1e-3


def nothing_overflows(outcome: Outcome, asked: dict[str, TraceJob], *, share_gpus: bool) -> None:
    """No node holds more than it has, at any start of a pod."""
    capacity = {node.name: (node.spec.cores, float(node.spec.gpus)) for node in NODES}
    placed = [one for one in outcome.jobs if one.start_s is not None]
    for moment in placed:
        now_s = moment.start_s or 0.0
        there = [
            asked[one.job_id].shape
            for one in placed
            if one.node == moment.node
            and (one.start_s or 0.0) <= now_s < (DURATION_S + 1.0 if one.end_s is None else one.end_s)
        ]
        cores, gpus = capacity[moment.node]
        assert sum(shape.cores for shape in there) <= cores
        assert sum(shape.gpus * (shape.gpu_share if share_gpus else 1.0) for shape in there) <= gpus + 1e-9


def first_come_first_served(outcomes: Sequence[JobOutcome], asked: dict[str, TraceJob]) -> None:
    """Of pods that ask for the same, outside of gangs, the first one submitted starts first."""
    lines: dict[object, list[JobOutcome]] = {}
    for one in outcomes:
        job = asked[one.job_id]
        if not job.gang and one.end not in {JobEnd.UNSCHEDULABLE, JobEnd.REFUSED}:
            lines.setdefault((job.shape, job.is_performance), []).append(one)
    for line in lines.values():
        starts = [np.inf if one.start_s is None else one.start_s for one in line]
        assert starts == sorted(starts)


@settings(max_examples=8, deadline=None)
@given(traces(), POLICY_NAMES, st.integers(0, 99))
def test_the_same_seed_gives_the_same_run_and_looking_on_changes_nothing(
    jobs: list[TraceJob], policy: str | None, seed: int
) -> None:
    first = run(setup(policy, seed=seed), jobs)
    again = run(setup(policy, seed=seed), jobs)
    watched = run(setup(policy, seed=seed, n_samples=80), jobs)
    assert first.jobs == again.jobs
    assert first.nodes == again.nodes
    assert first.drains == again.drains
    assert [one.node for one in watched.jobs] == [one.node for one in first.jobs]
    assert watched.it_j == pytest.approx(first.it_j, rel=1e-3)


@settings(max_examples=6, deadline=None)
@given(traces(), st.sampled_from(["static_partition", "queue_aware_v1"]))
def test_cycles_that_are_left_out_would_have_changed_nothing(jobs: list[TraceJob], policy: str) -> None:
    usual = run(setup(policy), jobs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LiveFleet, "telemetry_settling_s", DURATION_S)
        every = run(setup(policy), jobs)
    assert [(one.node, one.end, one.start_s) for one in usual.jobs] == [
        (one.node, one.end, one.start_s) for one in every.jobs
    ]
    ends_s, their_ends_s = ([one.end_s for one in found.jobs if one.end_s is not None] for found in (usual, every))
    assert ends_s == pytest.approx(their_ends_s, rel=1e-12)
    assert usual.drains == every.drains
    assert usual.it_j == pytest.approx(every.it_j, rel=1e-12)


@settings(max_examples=25, deadline=None)
@given(
    traces(),
    POLICY_NAMES,
    st.sampled_from(["together", "singly"]),
    st.booleans(),
    st.sampled_from([22.0, 52.0]),
    st.sampled_from(["measured", "published"]),
)
def test_compiled_runs_are_the_plain_ones(
    jobs: list[TraceJob], policy: str | None, gangs: str, share_gpus: bool, mean_c: float, gpu_throughput: str
) -> None:
    # At 52 degrees nodes are throttled; two of the four policies lower the limits of GPUs.
    plan = setup(
        policy,
        gangs=gangs,
        share_gpus=share_gpus,
        climate=Climate(mean_c=mean_c),
        gpu_limit_pct=60.0,
        gpu_throughput=gpu_throughput,
    )
    compiled, plain = (run(replace(plan, compiled=compiled), jobs) for compiled in (True, False))
    assert [(one.node, one.end, one.problem) for one in compiled.jobs] == [
        (one.node, one.end, one.problem) for one in plain.jobs
    ]
    for name in ("start_s", "end_s"):
        ours, theirs = (
            [value for one in found.jobs if (value := getattr(one, name)) is not None] for found in (compiled, plain)
        )
        assert ours == pytest.approx(theirs, rel=1e-9)
    assert compiled.drains == plain.drains
    assert compiled.it_j == pytest.approx(plain.it_j, rel=1e-12)
    assert compiled.busy_gpu_j == pytest.approx(plain.busy_gpu_j, rel=1e-12)
    np.testing.assert_allclose(compiled.series.it_w, plain.series.it_w, rtol=1e-12)
    np.testing.assert_array_equal(compiled.series.capped_nodes, plain.series.capped_nodes)


LOADS = st.tuples(st.floats(0.0, 1.0), st.integers(0, 2), st.floats(0.0, 1.0))


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(LOADS, st.floats(0.2, 20.0), st.sampled_from([None, 150.0, 220.0])), min_size=1, max_size=4),
    st.sampled_from([295.0, 345.0]),
)
def test_a_long_step_takes_the_energy_of_many_short_ones(
    course: list[tuple[tuple[float, int, float], float, float | None]], ambient_k: float
) -> None:
    long, short = (LiveFleet([NODES[2].spec], ambient_k=ambient_k) for _ in range(2))
    for (util, gpus, gpu_util), dt_s, cap_w in course:
        busy = np.arange(2) < gpus
        load = replace(
            FleetLoad.idle(1, n_devices=2),
            cpu_util=np.array([util]),
            gpu_busy=busy[np.newaxis],
            gpu_util=np.where(busy, gpu_util, 0.0)[np.newaxis],
        )
        for fleet in (long, short):
            fleet.cap_cpu(0, cap_w)
            fleet.cap_gpus(0, cap_w)
        long.step(dt_s, load, ambient_k)
        ticks = int(np.ceil(dt_s / 0.25))
        for _ in range(ticks):
            short.step(dt_s / ticks, load, ambient_k)
    # A limit that begins or ends to bind within the step counts by its mean: at most its way, 200 W, times its lag, on
    # each of two GPUs.
    slack_j = 200.0 * 0.5 * 2 * len(course)
    assert long.state.energy_j[0] == pytest.approx(short.state.energy_j[0], rel=1e-3, abs=slack_j)
    assert long.state.temperature_k[0] == pytest.approx(short.state.temperature_k[0], abs=1.0)


def test_weather_is_part_of_the_seed() -> None:
    noisy = setup(None, climate=Climate(noise_std_k=2.0), duration_s=600.0)
    a, b = (run(replace(noisy, seed=seed), []).series.outdoor_k for seed in (1, 2))
    assert not np.array_equal(a, b)
