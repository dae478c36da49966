"""`marginal-energy`: its arithmetic by hand, its governor, and what it learns of jobs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulie.domain.lifetimes import MAX_AGE_MIN, bin_edges_min, hazard_per_min, mean_remaining_min
from joulie.domain.scoring.energy import (
    EnergyPolicy,
    extension_min,
    may_hold,
    packing_rank,
    placement_cost_w_min,
    stranded_gpus,
)
from joulie.domain.units import InvalidQuantityError
from joulie_lab.simulation.cluster import Cluster, NodePool
from joulie_lab.simulation.engine import QueueSettings, simulate
from joulie_lab.simulation.workload import published_jobs, thinned

KEEP = {"gpu-training": 1.0 / 110.0, "cpu-above-8-cores": 0.22}
"""Share of the jobs that are kept, by class, as equal-work has them."""
LIMITS = (100.0, 30.0, 5.0, 0.09, 0.08, 1.0)
"""Rise and fill in W, then longest hold, the two budgets of mean wait, and the hold before a wake, in min."""


def test_a_job_within_a_nodes_busy_time_costs_nothing() -> None:
    assert extension_min(30.0, np.array([0.0, 20.0, 30.0, 90.0])).tolist() == [30.0, 10.0, 0.0, 0.0]
    assert placement_cost_w_min(154.0, 0.0, 0.0, 0.0, 30.0) == 0.0


def test_cost_by_hand() -> None:
    assert placement_cost_w_min(154.0, 133.0, 180.0, 2.0, 30.0) == 154.0 * 133.0 + 180.0 + 60.0


def test_gpus_are_stranded_when_the_cores_run_out() -> None:
    assert stranded_gpus(np.array([8.0, 8.0, 8.0]), np.array([32.0, 16.0, 0.0]), 4.0).tolist() == [0.0, 4.0, 8.0]


def test_the_fuller_node_ranks_first() -> None:
    assert packing_rank(16.0, 1.0, 16.0) < packing_rank(0.0, 3.0, 16.0)


@pytest.mark.parametrize(
    ("changes", "held"),
    [
        ({}, False),
        ({"rise_w": 101.0}, True),
        ({"rise_w": 101.0, "waited_min": 5.0}, False),
        ({"rise_w": 101.0, "mean_wait_min": 0.091}, False),
        ({"now_w": 960.0}, False),
        ({"now_w": 965.0, "heavy": True}, True),
        ({"now_w": 955.0, "heavy": True}, False),
        ({"wakes": True}, True),
        ({"wakes": True, "waited_min": 1.0}, False),
        ({"wakes": True, "mean_wait_min": 0.081}, False),
    ],
)
def test_what_the_governor_holds(changes: dict[str, float], held: bool) -> None:
    arguments = {
        "waited_min": 0.0,
        "mean_wait_min": 0.05,
        "now_w": 1000.0,
        "rise_w": 10.0,
        "before_w": 1000.0,
        "heavy": False,
        "wakes": False,
    }
    assert may_hold(**arguments | changes, limits=LIMITS) is held  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [np.nan, -1.0])
def test_policy_refuses_what_cannot_be(value: float) -> None:
    with pytest.raises(InvalidQuantityError, match="wake_stay_min"):
        EnergyPolicy(wake_stay_min=value)
    with pytest.raises(InvalidQuantityError, match="cores_per_gpu"):
        EnergyPolicy(cores_per_gpu=0.0)


def test_age_bins_reach_a_month() -> None:
    edges = bin_edges_min()
    assert edges[:4].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert edges[-2] < MAX_AGE_MIN <= edges[-1]
    assert np.all(np.diff(edges) >= 1.0)


def test_before_any_job_ended_the_prior_holds() -> None:
    hazard = hazard_per_min(0.0, 0.0, 60.0, 60.0)
    assert 1.0 / hazard == pytest.approx(60.0)
    assert mean_remaining_min(1e9, hazard, 0.0) == pytest.approx(60.0)


@given(
    hazard=st.floats(1e-6, 10.0), width_min=st.floats(0.0, 1e4), after_min=st.floats(0.0, 1e5), longer=st.floats(0, 1e4)
)
@settings(max_examples=50)
def test_remaining_life_is_positive_and_grows_with_what_comes_after(
    hazard: float, width_min: float, after_min: float, longer: float
) -> None:
    life = mean_remaining_min(width_min, hazard, after_min)
    assert life >= 0.0
    assert mean_remaining_min(width_min, hazard, after_min + longer) >= life


def test_a_constant_hazard_has_the_same_remaining_life_at_every_age() -> None:
    widths = np.array([0.5, 3.0, 40.0])
    assert mean_remaining_min(widths, 0.02, 50.0) == pytest.approx([50.0] * 3)


CLUSTER = Cluster((NodePool("cpu", 2000, 96, 700.0), NodePool("gpu", 500, 128, 500.0, 8, 700.0, 70.0)))


@pytest.mark.slow
def test_marginal_energy_uses_less_energy_and_the_governor_smooths() -> None:
    """Six hours of benchmark B2 and their drain, on a seed that nothing was tuned on."""
    jobs = thinned(published_jobs(501, 6.0), KEEP)
    energy_wmin: dict[str, float] = {}
    ramp_w: dict[str, float] = {}
    for name in ("most-allocated", "marginal-energy", "marginal-energy-ramp"):
        played = simulate(CLUSTER, jobs, name, n_steps=1080, seed=501, queue=QueueSettings())
        assert played.unfinished == 0
        energy_wmin[name] = float(played.series.it_w.sum())
        ramp_w[name] = float(np.percentile(np.abs(np.diff(played.series.it_w[120:360])), 99))
    assert energy_wmin["marginal-energy"] < 0.98 * energy_wmin["most-allocated"]
    assert energy_wmin["marginal-energy-ramp"] < 0.98 * energy_wmin["most-allocated"]
    assert ramp_w["marginal-energy-ramp"] < 0.8 * ramp_w["marginal-energy"]


@pytest.mark.slow
def test_no_job_is_held_longer_than_the_limit() -> None:
    jobs = thinned(published_jobs(77, 2.0, 0.1), KEEP)
    played = simulate(CLUSTER, jobs, "marginal-energy-ramp", n_steps=700, seed=77, queue=QueueSettings())
    assert played.wait_min is not None
    assert played.wait_min.max() <= EnergyPolicy().hold_limit_min + QueueSettings().wake_min
