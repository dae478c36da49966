import dataclasses

import numpy as np
import pytest

from joulie.domain.marginal import FullLoad, PodRequests, gpu_coefficient, marginal_w
from joulie.domain.scoring.extender import (
    NodeClass,
    PodView,
    ScoreTerms,
    Sensitivity,
    TwinView,
    explain,
    extender_score,
)
from joulie.domain.units import InvalidQuantityError

TWINS = TwinView(
    node_class=np.array([NodeClass.PERFORMANCE, NodeClass.ECO, NodeClass.DRAINING, NodeClass.UNKNOWN]),
    fresh=np.array([True, True, True, False]),
    capped_w=np.array([1000.0, 600.0, 1000.0, np.nan]),
    measured_w=np.array([200.0, 300.0, 100.0, np.nan]),
    cooling_stress_pct=np.array([20.0, 50.0, 10.0, np.nan]),
    headroom_score=np.array([80.0, 50.0, 90.0, np.nan]),
    trend_w_per_min=np.array([30.0, -30.0, 0.0, np.nan]),
    cpu_cap_fraction=np.array([1.0, 0.6, 1.0, np.nan]),
    gpu_cap_fraction=np.array([1.0, 0.6, 1.0, np.nan]),
    perf_pressure=40.0,
)
MARGINAL_W = np.full(4, 100.0)


def test_terms_of_a_standard_pod() -> None:
    terms = explain(PodView(cpu_sensitivity=Sensitivity.HIGH), TWINS, MARGINAL_W)
    # Performance node: (1000 - 200 - 100) / 1000 = 70 %; 0.7 * 70 + 0.15 * 80 - 30 / 6 = 56; pressure 0.3 * 40.
    # Eco node: 200 / 600 left; 0.7 * 33.3 + 0.15 * 50 + 5 = 35.8; + 0.1 * 40 - 20 * 0.4.
    np.testing.assert_allclose(terms.headroom_pct[:3], [70.0, 100.0 / 3.0, 80.0])
    np.testing.assert_allclose(terms.headroom_points[:2], [49.0, 70.0 / 3.0])
    np.testing.assert_allclose(terms.cooling_points[:2], [12.0, 7.5])
    np.testing.assert_allclose(terms.trend_points[:2], [5.0, -5.0])
    np.testing.assert_allclose(terms.congestion_points[:3], [-12.0, 4.0, 0.0])
    np.testing.assert_allclose(terms.capped_points[:2], [0.0, 8.0])
    np.testing.assert_allclose(terms.score[:2], [44.0, 70.0 / 3.0 + 7.5 + 5.0 + 4.0 - 8.0])


def test_a_node_without_a_twin_has_a_score_but_no_terms() -> None:
    terms = explain(PodView(), TWINS, MARGINAL_W)
    assert terms.score[3] == 50.0
    for field in dataclasses.fields(ScoreTerms):
        if field.name != "score":
            assert np.isnan(getattr(terms, field.name)[3]), field.name


@pytest.mark.parametrize(
    "pod",
    [
        PodView(),
        PodView(performance=True),
        PodView(reschedulable=False),
        PodView(cpu_sensitivity=Sensitivity.HIGH, gpu_sensitivity=Sensitivity.MEDIUM),
    ],
)
def test_the_explanation_is_the_very_score(pod: PodView) -> None:
    np.testing.assert_array_equal(
        explain(pod, TWINS, MARGINAL_W).score, extender_score(pod, TWINS, MARGINAL_W), strict=True
    )


def test_a_bad_marginal_power_is_refused_when_explained_too() -> None:
    with pytest.raises(InvalidQuantityError, match="marginal_w"):
        explain(PodView(), TWINS, np.array([np.nan, 0.0, 0.0, 0.0]))


@pytest.mark.parametrize("performance", [False, True])
def test_marginal_power_of_a_fleet_is_that_of_each_node(performance: bool) -> None:
    load = FullLoad(np.array([700.0, 500.0]), np.array([96.0, 128.0]), np.array([350.0, 700.0]))
    requests = PodRequests(cores=24.0, memory_gib=12.0, gpus=2.0)
    expected = [
        marginal_w(
            load.cpu_max_w[node],
            24.0 / load.cores[node],
            12.0,
            2.0,
            load.gpu_max_w[node],
            float(gpu_coefficient(performance)),
        )
        for node in range(2)
    ]
    np.testing.assert_array_equal(load.marginal_w(requests, performance=performance), expected)


@pytest.mark.parametrize("name", ["cores", "memory_gib", "gpus"])
def test_bad_requests_are_refused(name: str) -> None:
    for bad in (-1.0, float("nan")):
        with pytest.raises(InvalidQuantityError, match=name):
            PodRequests(**{name: bad})


def test_full_load_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidQuantityError, match="gpu_max_w"):
        FullLoad(np.array([700.0]), np.array([96.0]), np.array([0.0]))
