"""What must hold for every cluster that a twin looks at."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulie.domain.cooling_stress import linear_cooling_stress
from joulie.domain.twin import hardware_density, headroom_score, power_trend_w_per_min, twin_fleet
from joulie.domain.units import InvalidQuantityError
from support.twin_readings import Row, fleet_readings

quick = settings(max_examples=50, deadline=None)
POWER_W = st.floats(0.0, 10_000.0)
POSITIVE_W = st.floats(1.0, 10_000.0)
SAMPLES = st.lists(st.tuples(st.floats(0.0, 3600.0), POWER_W), max_size=6).map(tuple)
HARDWARE = st.tuples(POSITIVE_W, POWER_W, st.integers(1, 512), st.integers(0, 16))
PERCENT = st.none() | st.floats(1.0, 100.0)
ROWS = st.builds(
    Row,
    hardware=st.none() | HARDWARE,
    measured_w=st.none() | POWER_W,
    cpu_cap_percent=PERCENT,
    gpu_cap_percent=PERCENT,
    samples=SAMPLES,
    rack=st.none() | st.sampled_from(["r1", "r2"]),
    zone=st.none() | st.sampled_from(["hot", "cold"]),
    ambient_k=st.none() | st.floats(250.0, 330.0),
)
CLUSTERS = st.lists(ROWS, max_size=6)


def scores(rows: list[Row]) -> dict[str, np.ndarray]:
    """All columns of the twins of these nodes."""
    twin = twin_fleet(fleet_readings(rows))
    return {column.name: getattr(twin, column.name) for column in dataclasses.fields(twin)}


@quick
@given(rows=CLUSTERS)
def test_scores_are_bounded_and_present_exactly_with_data(rows: list[Row]) -> None:
    twin = twin_fleet(fleet_readings(rows))
    has_data = [row.hardware is not None and row.measured_w is not None for row in rows]
    np.testing.assert_array_equal(twin.scored, has_data)
    for column in scores(rows).values():
        np.testing.assert_array_equal(np.isfinite(column) & twin.scored, has_data)
    for score in (twin.headroom, twin.cooling_stress, twin.psu_stress, twin.density):
        assert np.all((score[twin.scored] >= 0.0) & (score[twin.scored] <= 100.0))
        assert np.all(np.isnan(score[~twin.scored]))
    pue = twin.estimated_pue[twin.scored]
    assert np.all((pue >= 1.05) & (pue <= 1.4))
    capped_w, tdp_w = twin.cpu_capped_w + twin.gpu_capped_w, twin.cpu_tdp_w + twin.gpu_tdp_w
    assert np.all(capped_w[twin.scored] <= tdp_w[twin.scored] * (1 + 1e-12))


@quick
@given(rows=CLUSTERS, data=st.data())
def test_order_of_nodes_does_not_matter(rows: list[Row], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(rows))))
    shuffled = scores([rows[index] for index in order])
    for name, column in scores(rows).items():
        np.testing.assert_allclose(shuffled[name], column[list(order)], rtol=1e-9, atol=1e-9, err_msg=name)


@quick
@given(rows=CLUSTERS.filter(bool), extra_w=st.floats(0.0, 5000.0), index=st.integers(0, 5))
def test_more_power_never_more_headroom_nor_less_stress(rows: list[Row], extra_w: float, index: int) -> None:
    at = index % len(rows)
    power_w = rows[at].measured_w
    if power_w is None:
        return
    hotter = list(rows)
    hotter[at] = dataclasses.replace(rows[at], measured_w=power_w + extra_w)
    before, after = scores(rows), scores(hotter)
    scored = before["scored"]
    assert np.all(after["headroom"][scored] <= before["headroom"][scored] + 1e-9)
    for name in ("cooling_stress", "psu_stress"):
        assert np.all(after[name][scored] >= before[name][scored] - 1e-9)


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
@given(rows=CLUSTERS)
def test_one_node_alone_has_the_scores_that_do_not_need_its_rack(rows: list[Row]) -> None:
    together = scores(rows)
    for index, row in enumerate(rows):
        for name, column in scores([row]).items():
            if name not in {"psu_stress"}:
                np.testing.assert_array_equal(column[0], together[name][index], err_msg=name)


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
@given(bad=st.sampled_from([np.nan, np.inf, -1.0]), rows=CLUSTERS.filter(bool), index=st.integers(0, 5))
def test_bad_power_is_refused_with_the_index_of_its_node(bad: float, rows: list[Row], index: int) -> None:
    at = index % len(rows)
    broken = [*rows[:at], dataclasses.replace(rows[at], measured_w=bad), *rows[at + 1 :]]
    with pytest.raises(InvalidQuantityError, match=f"at index {at}$"):
        twin_fleet(fleet_readings(broken))
