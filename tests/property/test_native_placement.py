"""The compiled pass of the scheduler and the counts of what fits give what the plain code gives, to the last digit."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from joulie.domain.scheduling.node_rules import ANYWHERE
from joulie.domain.scheduling.scores import MAX_NODE_SCORE, PodAmounts
from joulie.domain.scoring.extender import NodeClass, TwinView
from joulie_lab.simulation.experiment.scenario import NodeGroup
from joulie_lab.simulation.gangs import Group, PodKind, max_pods
from joulie_lab.simulation.native.admission import Admission
from joulie_lab.simulation.native.capacity import NodeCapacity
from joulie_lab.simulation.native.kinds import KindTable
from joulie_lab.simulation.native.nodes import sim_nodes
from joulie_lab.simulation.native.placement_kernels import _left_over
from joulie_lab.simulation.native.pods import sim_pod
from joulie_lab.simulation.native.scheduling import compiled_scheduler, make_scheduler
from joulie_lab.simulation.trace import GPU_MILLI_KEY, WORKLOAD_CLASS_KEY, TraceJob

GIB = 1024**3
NODES = sim_nodes(
    [
        NodeGroup(name="cpu", count=4, cpu="AMD EPYC 9965", cores=32.0, memory_gib=64.0),
        NodeGroup(name="gpu", count=4, cpu="AMD EPYC 9654", cores=48.0, memory_gib=96.0, gpu="NVIDIA L40S", gpus=4),
    ]
)
POINTS = (NodeClass.PERFORMANCE, NodeClass.ECO, NodeClass.DRAINING)


def kind(rng: np.random.Generator) -> PodKind:
    gpus = int(rng.integers(0, 4))
    shares = gpus == 1 and rng.random() < 0.5
    return PodKind(
        PodAmounts(int(rng.integers(0, 40)) * 500, int(rng.integers(0, 40)) * GIB),
        gpus,
        int(rng.integers(1, 10)) * 100 if shares else 1000,
        "nvidia.com/gpu" if gpus else "",
        performance=bool(rng.random() < 0.4),
        rules=ANYWHERE,
    )


def cluster(rng: np.random.Generator) -> tuple[NodeCapacity, Admission, KindTable]:
    """Nodes of random class, partly filled."""
    capacity, admission = NodeCapacity(NODES), Admission(NODES, class_rule=True)
    admission.set_classes(rng.choice([int(one) for one in POINTS], len(NODES)))
    for _ in range(int(rng.integers(0, 20))):
        own = kind(rng)
        fits = np.flatnonzero(capacity.feasible(own) & admission.allowed_nodes(own))
        if len(fits):
            capacity.allocate(own, int(rng.choice(fits)))
    return capacity, admission, KindTable(capacity, admission)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_counts_follow_what_changes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    capacity, admission, table = cluster(rng)
    kinds = [kind(rng) for _ in range(4)]
    rows = [table.row(one) for one in kinds]
    for row in rows:
        table.watch(row)
    held: list[tuple[PodKind, int, tuple[int, ...]]] = []
    for _ in range(6):
        own = kind(rng)
        fits = np.flatnonzero(capacity.feasible(own))
        if len(fits):
            node = int(rng.choice(fits))
            held.append((own, node, capacity.allocate(own, node)))
        if held and rng.random() < 0.5:
            capacity.release(*held.pop())
        if rng.random() < 0.3:
            admission.set_classes(rng.choice([int(one) for one in POINTS], len(NODES)))
            table.refresh()
            capacity.mark_changed(range(len(NODES)))
        table.recount()
        for row, one in zip(rows, kinds, strict=True):
            usable = admission.allowed_nodes(one) & capacity.has_gpu_resource(one)
            plain = max_pods(capacity.free(), Group(one, usable))
            assert (table.max_pods(row), table.hosts(row)) == (int(plain.sum()), int(np.count_nonzero(plain)))
        changed = [int(one) for one in rng.choice(len(NODES), 2, replace=False)]
        asked = np.array(sorted(set(rows)), dtype=np.int64)
        plain_rows = {
            row
            for row, one in zip(rows, kinds, strict=True)
            if (capacity.feasible(one) & admission.allowed_nodes(one))[changed].any()
        }
        assert set(table.fitting(asked, changed).tolist()) == plain_rows


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["kube", "joulie"]))
def test_the_compiled_pass_chooses_the_same_node(seed: int, scheduler: str) -> None:
    rng = np.random.default_rng(seed)
    capacity, admission, table = cluster(rng)
    view = twins(rng)
    plain, other = (
        make_scheduler(scheduler, NODES, capacity, lambda: view, np.random.default_rng(seed)) for _ in range(2)
    )
    compiled = compiled_scheduler(other, capacity, table)
    assert compiled is not None
    for number in range(6):
        pod = sim_pod(number, job(rng, number), share_gpus=True)
        candidates = np.flatnonzero(capacity.feasible(pod.kind) & admission.allowed_nodes(pod.kind))
        expected = plain.choose(pod, candidates) if len(candidates) else None
        assert compiled.choose(pod) == expected


def job(rng: np.random.Generator, number: int) -> TraceJob:
    asked = {"cpu": f"{rng.integers(0, 20)}", "memory": f"{rng.integers(0, 20)}Gi"}
    annotations = {WORKLOAD_CLASS_KEY: "performance"} if rng.random() < 0.4 else {}
    if rng.random() < 0.5:
        asked["nvidia.com/gpu"] = "1"
        annotations = annotations | {GPU_MILLI_KEY: f"{rng.integers(1, 10) * 100}"}
    if rng.random() < 0.3:
        annotations = annotations | {"joulie.io/reschedulable": "false"}
    return TraceJob(
        job_id=f"{number}",
        workload_id=f"{number}",
        submit_s=0.0,
        cpu_units=0.0,
        gpu_units=0.0,
        requests=asked,
        annotations=annotations,
    )


def twins(rng: np.random.Generator) -> TwinView:
    n_nodes = len(NODES)
    capped_w = rng.uniform(300.0, 1500.0, n_nodes)
    return TwinView(
        node_class=rng.choice([int(one) for one in POINTS], n_nodes),
        fresh=rng.random(n_nodes) < 0.8,
        capped_w=capped_w,
        measured_w=capped_w * rng.uniform(0.0, 1.2, n_nodes),
        cooling_stress_pct=rng.uniform(0.0, 100.0, n_nodes),
        headroom_score=rng.uniform(0.0, 100.0, n_nodes),
        trend_w_per_min=rng.normal(0.0, 200.0, n_nodes),
        cpu_cap_fraction=rng.uniform(0.3, 1.0, n_nodes),
        gpu_cap_fraction=rng.uniform(0.3, 1.0, n_nodes),
        cluster_trend_w_per_min=float(rng.normal(0.0, 600.0)),
        perf_pressure=float(rng.uniform(0.0, 100.0)),
    )


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 2**55), st.integers(0, 2**55))
def test_points_are_whole_quotients_however_floats_round(allocatable: int, asked: int) -> None:
    expected = max(allocatable - asked, 0) * MAX_NODE_SCORE // allocatable
    assert _left_over.py_func(allocatable, asked) == expected  # type: ignore[attr-defined]
    whole = allocatable // 128 * 100  # quotients that floats may round either way
    if whole:
        assert _left_over.py_func(whole, whole - whole // 100) == 1  # type: ignore[attr-defined]
        assert _left_over.py_func(whole, whole - whole // 100 + 1) == 0  # type: ignore[attr-defined]
