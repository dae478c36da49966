"""The compiled loops over running jobs give what the plain formulas give, to the last digit."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from joulie_lab.simulation.live.jobs import Demands, time_to_do
from joulie_lab.simulation.live.nodes import FleetLoad
from joulie_lab.simulation.native.kernels import ends_of, finish_load, rates_of, sum_demands

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
    of_nodes, of_devices = np.zeros((3, N_NODES)), np.zeros((6, N_NODES, N_DEVICES))
    busy, deviation = np.zeros((N_NODES, N_DEVICES), dtype=np.bool_), np.zeros((N_NODES, N_DEVICES, 3))
    sum_demands(np.arange(len(node)), node, demands, devices, of_nodes, of_devices)
    finish_load(of_nodes, of_devices, cores, busy, deviation)
    found = FleetLoad(*of_nodes, busy, *of_devices[1:3], deviation)
    plain = Demands._make(demands).load(node, cores, devices, N_DEVICES)
    for name in vars(plain):
        np.testing.assert_array_equal(getattr(found, name), getattr(plain, name), err_msg=name)


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
