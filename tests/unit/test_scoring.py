"""The scoring formulas on numbers worked by hand, and the published schedulers on small fleets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from joulie.domain.scoring.extender import (
    NodeClass,
    PodView,
    Sensitivity,
    TwinView,
    extender_score,
    may_run,
    performance_pressure,
    wire_score,
)
from joulie.domain.scoring.formulas import NEUTRAL_SCORE
from joulie.domain.units import InvalidQuantityError
from joulie_lab.simulation.placement import Demand, Fleet, marginal_w, place, place_at_random
from joulie_lab.simulation.schedulers import SCORERS


def fleet(**changes: object) -> Fleet:
    """Two CPU nodes, the first half full, and a GPU node with six of eight GPUs taken."""
    columns = {
        "cores": [96.0, 96.0, 128.0],
        "gpus": [0.0, 0.0, 8.0],
        "free_cores": [48.0, 96.0, 64.0],
        "free_gpus": [0.0, 0.0, 2.0],
        "cpu_max_w": [700.0, 700.0, 500.0],
        "gpu_max_w": [0.0, 0.0, 700.0],
        "measured_w": [350.0, 35.0, 3050.0],
        "capped_w": [700.0, 700.0, 6100.0],
        "tdp_w": [700.0, 700.0, 6100.0],
        "trend_w_per_min": [0.0, 0.0, 0.0],
    } | changes
    cluster_trend = columns.pop("cluster_trend_w_per_min", 0.0)
    return Fleet(
        **{name: np.array(values, dtype=float) for name, values in columns.items()},  # type: ignore[arg-type]
        cluster_trend_w_per_min=cluster_trend,  # type: ignore[arg-type]
    )


def score(name: str, demand: Demand, nodes: Fleet | None = None) -> list[float]:
    return SCORERS[name](nodes or fleet(), demand)[0].tolist()


def test_marginal_power_counts_gpus_on_gpu_nodes_alone() -> None:
    watts = marginal_w(fleet(), Demand(48, 2, performance=True))
    assert watts.tolist() == pytest.approx([245.0, 245.0, 500 * 0.7 * 48 / 128 + 2 * 700 * 0.85])


def test_joulie_formula_by_hand() -> None:
    first, second, _ = score("joulie", Demand(48))
    assert first == pytest.approx(0.7 * (700 - 350 - 245) / 7 + 0.15 * 50)
    assert second == pytest.approx(0.7 * (700 - 35 - 245) / 7 + 0.15 * 95)


@pytest.mark.parametrize(("cluster_trend", "points"), [(500.0, 10.0), (500.1, 25.0), (-900.0, 25.0)])
def test_trend_scale_tightens_in_a_burst(cluster_trend: float, points: float) -> None:
    calm = score("t25-adap", Demand(1))[0]
    rising = score("t25-adap", Demand(1), fleet(trend_w_per_min=[60, 0, 0], cluster_trend_w_per_min=cluster_trend))[0]
    assert calm - rising == pytest.approx(points)


def test_trend_of_a_falling_node_is_a_bonus_within_its_cap() -> None:
    falling = fleet(trend_w_per_min=[-1e6, 0, 0])
    assert score("t10", Demand(1), falling)[0] - score("t10", Demand(1))[0] == pytest.approx(10.0)


def test_legacy_formula_by_hand() -> None:
    expected = 0.4 * 50 + 0.3 * (100 - 350 / 4000 * 80) + 0.3 * (100 - 350 / 50000 * 100) - 245 / 20
    assert score("joulie-legacy", Demand(48))[0] == pytest.approx(expected)


def test_idle_gpu_penalty_is_for_jobs_without_gpus() -> None:
    without, bare = score("t20-gpu", Demand(4)), score("t20", Demand(4))
    assert [a - b for a, b in zip(bare, without, strict=True)] == pytest.approx([0.0, 0.0, 20.0])
    assert score("t20-gpu", Demand(4, 1)) == score("t20", Demand(4, 1))


def test_allocation_scores_by_hand() -> None:
    assert score("most-allocated", Demand(1)) == pytest.approx([0.5, 0.0, 1.25])
    assert score("least-allocated", Demand(1)) == pytest.approx([0.5, 1.0, 0.375])
    assert score("gpu-most-allocated", Demand(1)) == pytest.approx([0.5, 0.0, 0.5 - 10])
    assert score("gpu-most-allocated", Demand(1, 1))[2] == pytest.approx(0.25 + 0.75)
    assert score("gpu-avoid", Demand(1)) == pytest.approx([0.5, 0.0, 1.25 - 10])


def test_pwr_counts_the_base_power_of_an_empty_node() -> None:
    first, second, third = score("pwr", Demand(48))
    assert first == pytest.approx(-245.0)
    assert second == pytest.approx(-245.0 - 0.22 * 700)
    assert third == pytest.approx(-500 * 0.7 * 48 / 128)


def test_place_takes_the_best_that_fits_and_the_lowest_of_equals() -> None:
    assert place(fleet(), Demand(1), SCORERS["most-allocated"]).node == 2
    assert place(fleet(), Demand(65), SCORERS["most-allocated"]).node == 1
    equal = fleet(free_cores=[96, 96, 0], measured_w=[35, 35, 3050])
    assert place(equal, Demand(1), SCORERS["joulie"]).node == 0


def test_place_without_room_is_a_value() -> None:
    placement = place(fleet(), Demand(1, 8), SCORERS["joulie"])
    assert (placement.node, placement.criteria, placement.fitting) == (None, (), 0)
    assert place_at_random(fleet(), Demand(97), np.random.default_rng(0)).node is None


def test_random_placement_is_uniform_over_the_fitting() -> None:
    rng = np.random.default_rng(1)
    nodes = [place_at_random(fleet(), Demand(60), rng).node for _ in range(600)]
    assert set(nodes) == {1, 2}
    assert 240 < nodes.count(1) < 360


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("measured_w", [np.nan, 0, 0]),
        ("measured_w", [-1, 0, 0]),
        ("capped_w", [0, 1, 1]),
        ("trend_w_per_min", [0, np.inf, 0]),
        ("free_cores", [1.0]),
    ],
)
def test_fleet_refuses_what_cannot_be(name: str, value: list[float]) -> None:
    with pytest.raises(InvalidQuantityError, match=name):
        fleet(**{name: value})


def test_demand_refuses_negative_cores() -> None:
    with pytest.raises(InvalidQuantityError, match="cores"):
        Demand(-1)


def twins(**changes: object) -> TwinView:
    """A performance node, an eco node, a draining one, and one without a fresh twin."""
    values = {
        "node_class": np.array([NodeClass.PERFORMANCE, NodeClass.ECO, NodeClass.DRAINING, NodeClass.UNKNOWN]),
        "fresh": np.array([True, True, True, False]),
        "capped_w": np.array([700.0, 420.0, 700.0, np.nan]),
        "measured_w": np.array([350.0, 210.0, 350.0, np.nan]),
        "cooling_stress_pct": np.array([50.0, 30.0, 50.0, np.nan]),
        "headroom_score": np.array([50.0, 50.0, 50.0, np.nan]),
        "trend_w_per_min": np.zeros(4),
        "cpu_cap_fraction": np.array([1.0, 0.6, 1.0, np.nan]),
        "gpu_cap_fraction": np.ones(4),
    } | changes
    return TwinView(**values)  # type: ignore[arg-type]


NOTHING = np.zeros(4)


def test_performance_pods_keep_off_eco_and_draining_nodes() -> None:
    assert may_run(PodView(performance=True), twins().node_class).tolist() == [True, False, False, True]
    assert may_run(PodView(), twins().node_class).all()
    assert may_run(PodView(performance=True, daemon=True), twins().node_class).all()


def test_trap_nodes_without_data_scored_best() -> None:
    scores = extender_score(PodView(), twins(), NOTHING)
    assert scores[3] == NEUTRAL_SCORE
    idle = twins(measured_w=np.array([0.0, 0.0, 0.0, np.nan]), cooling_stress_pct=np.zeros(4))
    assert extender_score(PodView(), idle, NOTHING)[:3].min() > NEUTRAL_SCORE


def test_standard_pods_are_steered_to_eco_by_pressure() -> None:
    calm = extender_score(PodView(), twins(), NOTHING)
    pressed = extender_score(PodView(), twins(perf_pressure=50.0), NOTHING)
    assert (pressed - calm).tolist() == pytest.approx([-15.0, 5.0, 0.0, 0.0])
    performance = PodView(performance=True)
    assert np.array_equal(
        extender_score(performance, twins(perf_pressure=50.0), NOTHING), extender_score(performance, twins(), NOTHING)
    )


def test_pressure_is_of_fresh_performance_nodes() -> None:
    view = twins(headroom_score=np.array([20.0, 90.0, 90.0, 90.0]))
    assert performance_pressure(view.headroom_score, view.node_class, view.fresh) == pytest.approx(80.0)
    assert performance_pressure(view.headroom_score, view.node_class, np.zeros(4, bool)) == 0.0


@pytest.mark.parametrize(("sensitivity", "points"), [(Sensitivity.HIGH, 8.0), (Sensitivity.MEDIUM, 4.0)])
def test_sensitive_pods_lose_points_by_depth_of_cap(sensitivity: Sensitivity, points: float) -> None:
    insensitive = extender_score(PodView(), twins(), NOTHING)
    sensitive = extender_score(PodView(cpu_sensitivity=sensitivity), twins(), NOTHING)
    assert (insensitive - sensitive).tolist() == pytest.approx([0.0, points, 0.0, 0.0])


def test_a_pod_that_must_not_move_scores_zero_on_a_draining_node() -> None:
    assert extender_score(PodView(reschedulable=False), twins(), NOTHING)[2] == 0.0
    assert extender_score(PodView(reschedulable=None), twins(), NOTHING)[2] > 0.0


def test_trap_scores_of_0_to_100_on_a_0_to_10_wire() -> None:
    assert wire_score(np.array([0.0, 4.9, 5.0, 50.0, 94.9, 95.0, 100.0])).tolist() == [0, 0, 1, 5, 9, 10, 10]


def test_twin_values_of_fresh_nodes_are_checked() -> None:
    with pytest.raises(InvalidQuantityError, match="capped_w"):
        twins(capped_w=np.array([np.nan, 420.0, 700.0, 1.0]))
    with pytest.raises(InvalidQuantityError, match="marginal_w"):
        extender_score(PodView(), twins(), np.array([np.nan, 0, 0, 0]))
    assert replace(twins(), perf_pressure=100.0).perf_pressure == 100.0
