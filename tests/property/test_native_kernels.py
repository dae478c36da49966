"""The compiled loops over running jobs give what the plain formulas give, to the last digit."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from joulie_lab.simulation.live.jobs import Demands, time_to_do
from joulie_lab.simulation.live.nodes import FleetLoad
from joulie_lab.simulation.native.kernels import ends_of, load_of, rates_of, rerate

N_NODES, N_DEVICES = 3, 4


@st.composite
def running(draw):
    """Jobs on nodes: their demands, nodes, GPUs, and a generator for everything else."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n_jobs = draw(st.integers(0, 12))
    demands = rng.random((len(Demands._fields), n_jobs))
    demands[0] = rng.integers(0, 65, n_jobs)
    demands[1] = rng.integers(0, N_DEVICES + 1, n_jobs)
    demands[8] = rng.integers(0, 4, n_jobs)
    demands[9:] -= 0.5
    demands[4:7] = np.where(rng.random((3, n_jobs)) < 0.3, 0.0, demands[4:7])
    held = np.arange(N_DEVICES) < demands[1][:, np.newaxis]
    devices = np.where(held, rng.permuted(np.tile(np.arange(N_DEVICES), (n_jobs, 1)), axis=1), -1)
    return demands, rng.integers(0, N_NODES, n_jobs), devices, rng


@settings(max_examples=200, deadline=None)
@given(running())
def test_loads_are_those_of_demands(jobs):
    demands, node, devices, rng = jobs
    cores = rng.uniform(16.0, 128.0, N_NODES)
    asked = np.flatnonzero(rng.random(N_NODES) < 0.7)
    # A slot without a job keeps what its last job demanded.
    node = np.where(rng.random(len(node)) < 0.2, -1, node)
    load, before = (FleetLoad.idle(N_NODES, N_DEVICES) for _ in range(2))
    marked = np.zeros(N_NODES, dtype=np.bool_)
    room = rng.random((3, N_NODES)), rng.random((6, N_NODES, N_DEVICES))
    load_of(asked, node, demands, devices, cores, marked, *room, *vars(load).values())
    there = node >= 0
    plain = Demands._make(demands[:, there]).load(node[there], cores, devices[there], N_DEVICES)
    assert not marked.any()
    others = np.setdiff1d(np.arange(N_NODES), asked)
    for name in vars(plain):
        np.testing.assert_array_equal(getattr(load, name)[asked], getattr(plain, name)[asked], err_msg=name)
        np.testing.assert_array_equal(getattr(load, name)[others], getattr(before, name)[others], err_msg=name)


@settings(max_examples=200, deadline=None)
@given(running())
def test_rates_and_ends_are_those_of_demands(jobs):
    demands, node, devices, rng = jobs
    slots = np.arange(len(node))
    works = rng.random(len(node)) < 0.8
    frequency, throughput = rng.uniform(0.3, 1.0, N_NODES), rng.uniform(0.2, 1.0, (N_NODES, N_DEVICES))
    rates = np.empty((2, len(node)))
    rates_of(slots, node, demands, devices, works, frequency, throughput, rates)
    plain = np.stack(Demands._make(demands).rates(frequency[node], throughput[node, devices[:, 0]])) * works
    np.testing.assert_array_equal(rates, plain)
    left = np.where(rng.random((2, len(node))) < 0.3, 0.0, rng.uniform(0.0, 1e5, (2, len(node))))
    ends_s = np.zeros(len(node))
    ends_of(slots, rates, left, works, 1234.5, ends_s)
    needs_s = time_to_do((left[0], left[1]), (plain[0], plain[1]))
    np.testing.assert_array_equal(ends_s, 1234.5 + np.where(works, needs_s, np.inf))


@settings(max_examples=200, deadline=None)
@given(running())
def test_jobs_are_rated_anew_where_something_changed(jobs):
    demands, node, devices, rng = jobs
    n_jobs, now_s = len(node), 1234.5
    works, stale = rng.random((2, n_jobs)) < 0.7
    node = np.where(rng.random(n_jobs) < 0.2, -1, node)
    stale &= node >= 0
    asked = np.flatnonzero(rng.random(N_NODES) < 0.7)
    frequency, throughput = rng.uniform(0.3, 1.0, N_NODES), rng.uniform(0.2, 1.0, (N_NODES, N_DEVICES))
    speed, marked = rng.uniform(0.5, 2.0, N_NODES), np.zeros(N_NODES, dtype=np.bool_)
    points = np.column_stack([frequency, throughput * speed[:, np.newaxis]])
    noted = np.where(rng.random(points.shape) < 0.8, points, 1.0)
    left, rate = rng.uniform(0.0, 1e5, (2, n_jobs)), rng.uniform(0.0, 200.0, (2, n_jobs))
    since_s, ends_s = rng.uniform(0.0, now_s, n_jobs), rng.uniform(now_s, 1e4, n_jobs)
    moved = np.zeros(N_NODES, dtype=np.bool_)
    moved[asked] = (noted != points)[asked].any(axis=1)
    anew = stale | (moved[node] & (node >= 0))
    own = Demands._make(demands[:, anew]).rates(frequency[node[anew]], points[node[anew], 1 + devices[anew, 0]])
    expected = {"left": left.copy(), "rate": rate.copy(), "since_s": since_s.copy(), "ends_s": ends_s.copy()}
    expected["left"][:, anew] = np.maximum(left[:, anew] - rate[:, anew] * (now_s - since_s[anew]), 0.0)
    expected["rate"][:, anew] = np.stack(own) * works[anew]
    expected["since_s"][anew] = now_s
    needs_s = time_to_do(tuple(expected["left"][:, anew]), tuple(expected["rate"][:, anew]))
    expected["ends_s"][anew] = now_s + np.where(works[anew], needs_s, np.inf)
    found = {"left": left, "rate": rate, "since_s": since_s, "ends_s": ends_s}
    state = (demands, devices, works, frequency, throughput, speed, now_s, marked, noted, stale)
    next_s = rerate(asked, node, *state, *found.values())
    for name, values in found.items():
        np.testing.assert_array_equal(values, expected[name], err_msg=name)
    np.testing.assert_array_equal(noted[asked], points[asked])
    assert next_s == ends_s.min(initial=np.inf)
    assert not stale.any()
    assert not marked.any()
