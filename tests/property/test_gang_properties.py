"""Gangs whatever they are made of: seats that are there, all or none, and what the empty cluster holds is run."""

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from joulie.domain.scheduling.scores import PodAmounts
from joulie_lab.apps.simulator.gangs import Capacity, GangGate
from joulie_lab.apps.simulator.trace_player import TracePlayer
from joulie_lab.simulation.experiment.outcome import JobEnd
from joulie_lab.simulation.experiment.scenario import NodeGroup
from joulie_lab.simulation.gangs import FreeCapacity, Group, PodKind, assign_nodes, max_pods
from joulie_lab.simulation.native.nodes import MAX_PODS, sim_nodes
from joulie_lab.simulation.native.runtime import Setup, run
from joulie_lab.simulation.trace import GPU_MILLI_KEY, WHOLE_GPU_MILLI, JobProfile, TraceJob

GPU = "NVIDIA L40S"
NODES = sim_nodes(
    [
        NodeGroup(name="cpu", count=2, cpu="AMD EPYC 9965", cores=32.0, memory_gib=64.0),
        NodeGroup(name="gpu", count=2, cpu="AMD EPYC 9654", cores=24.0, memory_gib=64.0, gpu=GPU, gpus=2),
    ]
)
WORKLOADS, MEMBERS, LONGEST_S = 5, 4, 500.0
ENOUGH_S = WORKLOADS * MEMBERS * LONGEST_S * 1.1
"""All of them one after the other; none is slowed down without caps."""


@st.composite
def traces(draw: st.DrawFn) -> list[TraceJob]:
    """Lone pods and gangs of members that differ, some of which fit no node."""
    jobs: list[TraceJob] = []
    for number in range(draw(st.integers(1, WORKLOADS))):
        submit_s, work_s = draw(st.floats(0.0, 300.0)), draw(st.floats(1.0, LONGEST_S))
        gang = draw(st.booleans())
        for member in range(draw(st.integers(1, MEMBERS)) if gang else 1):
            cores, gpus = draw(st.sampled_from([1, 4, 12, 20, 32])), draw(st.sampled_from([0, 0, 1, 2]))
            jobs.append(
                TraceJob(
                    job_id=f"{number}-{member}",
                    workload_id=str(number),
                    submit_s=submit_s,
                    requests={"cpu": str(cores), "memory": "1Gi", "nvidia.com/gpu": str(gpus)},
                    annotations={GPU_MILLI_KEY: draw(st.sampled_from(["300", "500", "1000"]))} if gpus == 1 else {},
                    gang=gang,
                    cpu_units=work_s * cores,
                    profile=JobProfile(cpu_utilization=1.0),
                )
            )
    return jobs


AMOUNTS = st.integers(-2, 12)
GROUPS = st.builds(
    lambda cpu, gpus, milli, allowed, number: Group(
        PodKind(PodAmounts(cpu, 1), gpus, milli if gpus == 1 else WHOLE_GPU_MILLI), np.array(allowed), number
    ),
    st.integers(0, 8),
    st.integers(0, 3),
    st.sampled_from([300, 500, 1000]),
    st.tuples(st.booleans(), st.booleans(), st.booleans()),
    st.integers(1, 6),
)
ROOMS = st.builds(
    lambda cpu, gpus, pods: FreeCapacity(np.array(cpu), np.full(3, 20), np.array(gpus), np.array(pods)),
    st.tuples(AMOUNTS, AMOUNTS, AMOUNTS),
    st.lists(st.lists(st.sampled_from([0, 400, 1000]), min_size=2, max_size=2), min_size=3, max_size=3),
    st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)),
)


@settings(max_examples=100, deadline=None)
@given(ROOMS, st.lists(GROUPS, min_size=1, max_size=3))
def test_seats_are_there_all_or_none(room: FreeCapacity, groups: list[Group]) -> None:
    found = assign_nodes(room, groups)
    if len(groups) == 1:
        assert (found is not None) == (max_pods(room, groups[0]).sum() >= groups[0].number)
    if found is None:
        return
    assert Counter(seat.group for seat in found) == {index: one.number for index, one in enumerate(groups)}
    left = FreeCapacity(*(amounts.copy() for amounts in room))
    for index, node in found:
        one = groups[index].kind
        assert groups[index].allowed[node]
        free = left.gpu_milli[node]
        gpus = [gpu for gpu in np.argsort(free, kind="stable") if free[gpu] >= one.gpu_milli][: one.gpus]
        assert len(gpus) == one.gpus
        free[gpus] -= one.gpu_milli
        left.milli_cpu[node] -= one.requests.milli_cpu
        left.pods[node] -= 1
        assert left.milli_cpu[node] >= 0 or one.requests.milli_cpu == 0
        assert left.pods[node] >= 0


@settings(max_examples=25, deadline=None)
@given(traces(), st.booleans())
def test_gangs_run_as_a_whole_and_none_that_fits_the_empty_cluster_starves(
    jobs: list[TraceJob], share_gpus: bool
) -> None:
    outcome = run(Setup(NODES, duration_s=ENOUGH_S, n_samples=3, share_gpus=share_gpus), jobs)
    assert {one.end for one in outcome.jobs} <= {JobEnd.COMPLETED, JobEnd.UNSCHEDULABLE}
    asked = {one.job_id: one for one in jobs}
    starts: dict[str, set[float | None]] = {}
    for one in outcome.jobs:
        if asked[one.job_id].gang:
            starts.setdefault(one.workload_id, set()).add(one.start_s)
    assert {len(moments) for moments in starts.values()} <= {1}


@settings(max_examples=25, deadline=None)
@given(traces())
def test_the_service_lets_go_what_a_native_run_places(jobs: list[TraceJob]) -> None:
    sizes = Counter(job.workload_id for job in jobs if job.gang)
    gang = [job for job in jobs if sizes[job.workload_id] > 1 and job.workload_id == max(sizes)]
    native = run(Setup(NODES, duration_s=ENOUGH_S, n_samples=2), gang)
    player = TracePlayer.of(gang, "s", holds_gangs=True)
    for record in player.due(ENOUGH_S):
        player.submitted(record)
    nodes = [
        Capacity(one.name, one.labels, one.spec.cores, one.memory_gib, MAX_PODS, one.spec.gpus, one.gpu_resource, True)
        for one in NODES
    ]
    turn = GangGate(player.gangs()).next(nodes, (), (), 0.0)
    released = {one.record.job.job_id for one in turn.release}
    assert released == {one.job_id for one in native.jobs if one.start_s is not None}
