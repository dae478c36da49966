"""The compiled engine against the plain NumPy way, and its indexes against sets and scans."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulie_lab.simulation.cluster import Cluster, NodePool
from joulie_lab.simulation.engine import SCHEDULERS, EngineResult, QueueSettings, simulate
from joulie_lab.simulation.engine.index import empty_bitsets, insert, next_member, remove
from joulie_lab.simulation.engine.reference import simulate_plain
from joulie_lab.simulation.workload import published_jobs

POOLS = st.builds(
    lambda count, cores, cpu_max_w, gpus, gpu_max_w, gpu_idle_w: NodePool(
        "pool", count, cores, cpu_max_w, gpus, gpu_max_w if gpus else 0.0, gpu_idle_w if gpus else 0.0
    ),
    count=st.integers(1, 9),
    cores=st.sampled_from([32, 96, 128]),
    cpu_max_w=st.sampled_from([333.3, 500.0, 700.0]),
    gpus=st.sampled_from([0, 0, 4, 8]),
    gpu_max_w=st.sampled_from([300.0, 700.0]),
    gpu_idle_w=st.sampled_from([0.0, 50.0, 100.0]),
)
QUEUES = st.sampled_from([None, QueueSettings(), QueueSettings(sleep_after_min=25.0, wake_min=0.0)])


def assert_same(fast: EngineResult, plain: EngineResult) -> None:
    for name in ("arrived", "dropped", "running", "waiting", "awake_nodes"):
        assert np.array_equal(getattr(fast.series, name), getattr(plain.series, name)), name
    np.testing.assert_allclose(fast.series.it_w, plain.series.it_w, rtol=1e-12)
    assert (fast.wakes, fast.unfinished) == (plain.wakes, plain.unfinished)
    assert fast.core_hours == pytest.approx(plain.core_hours)
    assert fast.useful_work_kwh == pytest.approx(plain.useful_work_kwh)
    if plain.wait_min is not None:
        assert np.array_equal(fast.wait_min, plain.wait_min)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@given(
    pools=st.lists(POOLS, min_size=1, max_size=3),
    queue=QUEUES,
    seed=st.integers(0, 10_000),
    rate=st.sampled_from([0.002, 0.01]),
    step_s=st.sampled_from([60.0, 60.0, 30.0, 300.0]),
)
@settings(max_examples=6, deadline=None)
def test_compiled_engine_is_the_plain_one(
    scheduler: str, pools: list[NodePool], queue: QueueSettings | None, seed: int, rate: float, step_s: float
) -> None:
    cluster = Cluster(tuple(pools))
    jobs = published_jobs(seed, 1.0, rate)
    arguments = {"n_steps": 80, "step_s": step_s, "seed": seed, "queue": queue}
    assert_same(simulate(cluster, jobs, scheduler, **arguments), simulate_plain(cluster, jobs, scheduler, **arguments))  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["drop", "queue"])
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_compiled_engine_is_the_plain_one_under_load(scheduler: str, mode: str) -> None:
    cluster = Cluster((NodePool("cpu", 24, 96, 700.0), NodePool("gpu", 6, 128, 500.0, 8, 700.0, 100.0)))
    jobs = published_jobs(11, 2.0, 0.02 if mode == "drop" else 0.004)
    arguments = {"n_steps": 150, "seed": 11, "queue": QueueSettings() if mode == "queue" else None}
    assert_same(simulate(cluster, jobs, scheduler, **arguments), simulate_plain(cluster, jobs, scheduler, **arguments))  # type: ignore[arg-type]


@given(
    seed=st.integers(0, 1000), scheduler=st.sampled_from(SCHEDULERS), rate=st.sampled_from([0.01, 0.05]), queue=QUEUES
)
@settings(max_examples=30, deadline=None)
def test_jobs_are_conserved_and_power_is_bounded(
    seed: int, scheduler: str, rate: float, queue: QueueSettings | None
) -> None:
    cluster = Cluster((NodePool("cpu", 16, 96, 700.0), NodePool("gpu", 4, 128, 500.0, 8, 700.0, 100.0)))
    jobs = published_jobs(seed, 1.0, rate)
    played = simulate(cluster, jobs, scheduler, n_steps=120, seed=seed, queue=queue)
    series = played.series
    arrived = int(series.arrived.sum())
    assert arrived == len(jobs)
    assert np.all(series.it_w > 0.0)
    assert np.all(series.it_w <= cluster.peak_w)
    if queue is None:
        assert np.all(series.waiting == 0)
        assert np.all(series.dropped <= series.arrived)
    else:
        assert series.dropped.sum() == 0
        assert played.unfinished is not None
        assert played.unfinished >= int(series.waiting[-1])


@given(st.integers(1, 5000), st.lists(st.tuples(st.booleans(), st.integers(0, 4999)), max_size=60))
@settings(max_examples=50, deadline=None)
def test_bitsets_are_sets(size: int, steps: list[tuple[bool, int]]) -> None:
    bits = empty_bitsets(2, size)
    members: set[int] = set()
    for adding, drawn in steps:
        position = drawn % size
        (insert if adding else remove)(bits, 1, position)
        (members.add if adding else members.discard)(position)
        start = (position * 7) % size
        assert next_member(bits, 1, start) == min((m for m in members if m >= start), default=-1)
    assert next_member(bits, 0, 0) == -1
