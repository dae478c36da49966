"""What must hold for every cluster that a twin looks at."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulie.domain.cooling_stress import linear_cooling_stress
from joulie.domain.twin import (
    NodeLimits,
    NodeReading,
    PowerSample,
    hardware_density,
    headroom_score,
    power_trend_w_per_min,
    twin_nodes,
)
from joulie.domain.units import InvalidQuantityError

quick = settings(max_examples=50, deadline=None)
POWER_W = st.floats(0.0, 10_000.0)
POSITIVE_W = st.floats(1.0, 10_000.0)
SAMPLES = st.lists(st.builds(PowerSample, time_s=st.floats(0.0, 3600.0), power_w=POWER_W), max_size=6).map(tuple)
LIMITS = st.builds(
    NodeLimits, cpu_tdp_w=POSITIVE_W, gpu_tdp_w=POWER_W, cores=st.integers(1, 512), gpus=st.integers(0, 16)
)
PERCENT = st.none() | st.floats(1.0, 100.0)


def reading(name: str) -> st.SearchStrategy[NodeReading]:
    return st.builds(
        NodeReading,
        node=st.just(name),
        limits=st.none() | LIMITS,
        measured_w=st.none() | POWER_W,
        cpu_cap_percent=PERCENT,
        gpu_cap_percent=PERCENT,
        samples=SAMPLES,
        rack=st.none() | st.sampled_from(["r1", "r2"]),
        zone=st.none() | st.sampled_from(["hot", "cold"]),
        ambient_k=st.none() | st.floats(250.0, 330.0),
    )


CLUSTERS = st.integers(0, 6).flatmap(lambda count: st.tuples(*(reading(f"n{index}") for index in range(count))))


@quick
@given(readings=CLUSTERS)
def test_scores_are_bounded_and_present_exactly_with_data(readings: tuple[NodeReading, ...]) -> None:
    for given_reading, twin in zip(readings, twin_nodes(readings), strict=True):
        has_data = given_reading.limits is not None and given_reading.measured_w is not None
        assert twin.node == given_reading.node
        assert (twin.scores is not None) == has_data == (twin.missing is None)
        if twin.scores is not None:
            scores = twin.scores
            for score in (scores.headroom, scores.cooling_stress, scores.psu_stress, scores.density):
                assert 0.0 <= score <= 100.0
            assert 1.05 <= scores.estimated_pue <= 1.4
            assert scores.capped_w <= scores.tdp_w * (1 + 1e-12)
            assert np.isfinite(scores.power_trend_w_per_min)


@quick
@given(readings=CLUSTERS, data=st.data())
def test_order_of_nodes_does_not_matter(readings: tuple[NodeReading, ...], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(readings))
    by_name = {twin.node: twin for twin in twin_nodes(shuffled)}
    for twin in twin_nodes(readings):
        other = by_name[twin.node]
        assert twin.missing == other.missing
        if twin.scores is not None and other.scores is not None:
            assert dataclasses.astuple(twin.scores) == pytest.approx(
                dataclasses.astuple(other.scores), rel=1e-9, abs=1e-9
            )


@quick
@given(readings=CLUSTERS.filter(bool), extra_w=st.floats(0.0, 5000.0), index=st.integers(0, 5))
def test_more_power_never_more_headroom_nor_less_stress(
    readings: tuple[NodeReading, ...], extra_w: float, index: int
) -> None:
    at = index % len(readings)
    power_w = readings[at].measured_w
    if power_w is None:
        return
    hotter = list(readings)
    hotter[at] = dataclasses.replace(readings[at], measured_w=power_w + extra_w)
    for before, after in zip(twin_nodes(readings), twin_nodes(hotter), strict=True):
        if before.scores is not None and after.scores is not None:
            assert after.scores.headroom <= before.scores.headroom + 1e-9
            assert after.scores.cooling_stress >= before.scores.cooling_stress - 1e-9
            assert after.scores.psu_stress >= before.scores.psu_stress - 1e-9


@quick
@given(capped_w=POSITIVE_W, deeper=st.floats(0.1, 1.0), power_w=POWER_W)
def test_deeper_cap_never_more_headroom(capped_w: float, deeper: float, power_w: float) -> None:
    assert headroom_score(capped_w * deeper, power_w) <= headroom_score(capped_w, power_w) + 1e-9


@quick
@given(power_w=st.lists(POWER_W, min_size=1, max_size=8), tdp_w=POSITIVE_W, ambient_k=st.floats(250.0, 330.0))
def test_scalar_is_array(power_w: list[float], tdp_w: float, ambient_k: float) -> None:
    np.testing.assert_array_equal(headroom_score(tdp_w, power_w), [headroom_score(tdp_w, each) for each in power_w])
    np.testing.assert_array_equal(
        linear_cooling_stress(power_w, tdp_w, ambient_k),
        [linear_cooling_stress(each, tdp_w, ambient_k) for each in power_w],
    )


@quick
@given(readings=CLUSTERS)
def test_one_node_alone_has_the_scores_that_do_not_need_its_rack(readings: tuple[NodeReading, ...]) -> None:
    for single, twin in zip(readings, twin_nodes(readings), strict=True):
        (alone,) = twin_nodes([single])
        if twin.scores is not None:
            assert alone.scores is not None
            assert dataclasses.replace(alone.scores, psu_stress=twin.scores.psu_stress) == twin.scores


@quick
@given(
    samples=st.lists(
        st.tuples(st.floats(0.0, 3600.0), POWER_W), min_size=2, max_size=10, unique_by=lambda s: round(s[0])
    ),
    data=st.data(),
    offset_s=st.floats(0.0, 2e9),
)
def test_trend_ignores_the_order_of_samples_and_the_origin_of_time(
    samples: list[tuple[float, float]], data: st.DataObject, offset_s: float
) -> None:
    times_s, powers_w = np.array(samples).T
    order = data.draw(st.permutations(range(len(samples))))
    trend = power_trend_w_per_min(times_s, powers_w)
    moved = power_trend_w_per_min(times_s[order] + offset_s, powers_w[order])
    assert moved == pytest.approx(trend, rel=1e-4, abs=1e-3 * max(1.0, abs(trend)))


@quick
@given(slope=st.floats(-10.0, 10.0), times=st.lists(st.integers(0, 3600), min_size=2, max_size=10, unique=True))
def test_trend_of_a_straight_line_is_its_slope(slope: float, times: list[int]) -> None:
    times_s = np.array(times, dtype=np.float64)
    assert power_trend_w_per_min(times_s, 40_000.0 + slope * times_s) == pytest.approx(slope * 60.0, abs=1e-6)


@quick
@given(cores=st.integers(0, 1000), gpus=st.integers(0, 32))
def test_density_is_bounded(cores: int, gpus: int) -> None:
    assert 0.0 <= hardware_density(cores, gpus) <= 100.0


@quick
@given(bad=st.sampled_from([np.nan, np.inf, -1.0]), readings=CLUSTERS.filter(bool), index=st.integers(0, 5))
def test_bad_power_is_refused_with_the_name_of_its_node(
    bad: float, readings: tuple[NodeReading, ...], index: int
) -> None:
    broken = list(readings)
    at = index % len(broken)
    broken[at] = dataclasses.replace(broken[at], measured_w=bad)
    with pytest.raises(InvalidQuantityError, match=f"node n{at}:"):
        twin_nodes(broken)
