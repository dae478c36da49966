"""What must hold for every load, climate and room."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from joulie_lab.simulation.cooling import DxPlant, LinearPlant, run_plant
from joulie_lab.simulation.dx_plant import DxParameters, dx_flows, dx_room_after, outdoor_air_share

PUBLISHED = DxParameters()
LOADS_W = st.floats(0.0, 5e6)
OUTDOOR_K = st.floats(253.15, 323.15)
ROOM_K = st.floats(273.15, 308.15)
STEPS_S = st.floats(1.0, 3600.0)

quick = settings(max_examples=50, deadline=None)


@quick
@given(it_w=LOADS_W, outdoor_k=OUTDOOR_K, room_k=ROOM_K)
def test_heat_flows_are_bounded_and_cover_the_load(it_w: float, outdoor_k: float, room_k: float) -> None:
    flows = dx_flows(PUBLISHED, it_w, outdoor_k, room_k)
    assert flows.free_w >= 0.0
    assert 0.0 <= flows.mechanical_w <= it_w
    assert flows.free_w + flows.mechanical_w == pytest.approx(max(it_w, flows.free_w))
    assert 0.2**3 * PUBLISHED.full_fan_w <= flows.fan_w * (1 + 1e-12)
    assert flows.fan_w <= PUBLISHED.full_fan_w
    assert 0.0 <= flows.compressor_w <= flows.mechanical_w / PUBLISHED.minimum_cop
    assert flows.cop * flows.cooling_w == pytest.approx(flows.free_w + flows.mechanical_w)


@quick
@given(it_w=LOADS_W, outdoor_k=OUTDOOR_K, room_k=ROOM_K, dt_s=STEPS_S)
def test_energy_balance_of_the_room(it_w: float, outdoor_k: float, room_k: float, dt_s: float) -> None:
    """The exact step agrees with the heat that flowed, integrated finely (Simpson) along the exact path."""
    times_s = np.linspace(0.0, dt_s, 201)
    path_k = np.array([dx_room_after(PUBLISHED, it_w, outdoor_k, room_k, float(t)) for t in times_s])
    flows = dx_flows(PUBLISHED, it_w, outdoor_k, path_k)
    net_w = it_w - flows.free_w - flows.mechanical_w
    weights = np.tile([2.0, 4.0], 101)[:201]
    weights[0] = weights[-1] = 1.0
    integral_j = float(np.sum(weights * net_w)) * (dt_s / 200) / 3
    stored_j = PUBLISHED.room_capacity_j_per_k * (path_k[-1] - room_k)
    assert stored_j == pytest.approx(integral_j, rel=1e-5, abs=1.0)


@quick
@given(it_w=LOADS_W, outdoor_k=OUTDOOR_K, room_k=ROOM_K, dt_s=STEPS_S)
def test_the_room_never_warms_nor_gets_colder_than_outdoors(
    it_w: float, outdoor_k: float, room_k: float, dt_s: float
) -> None:
    after_k = dx_room_after(PUBLISHED, it_w, outdoor_k, room_k, dt_s)
    assert after_k <= room_k
    assert after_k >= min(room_k, outdoor_k) - 1e-9


@quick
@given(it_w=LOADS_W, outdoor_k=OUTDOOR_K, room_k=ROOM_K, first_s=STEPS_S, second_s=STEPS_S)
def test_two_steps_are_one_longer_step(
    it_w: float, outdoor_k: float, room_k: float, first_s: float, second_s: float
) -> None:
    halfway_k = dx_room_after(PUBLISHED, it_w, outdoor_k, room_k, first_s)
    twice_k = dx_room_after(PUBLISHED, it_w, outdoor_k, halfway_k, second_s)
    assert twice_k == pytest.approx(dx_room_after(PUBLISHED, it_w, outdoor_k, room_k, first_s + second_s), rel=1e-12)


@quick
@given(low_w=LOADS_W, more_w=LOADS_W, outdoor_k=OUTDOOR_K, room_k=ROOM_K)
def test_more_load_never_takes_less_cooling(low_w: float, more_w: float, outdoor_k: float, room_k: float) -> None:
    low = dx_flows(PUBLISHED, low_w, outdoor_k, room_k)
    high = dx_flows(PUBLISHED, low_w + more_w, outdoor_k, room_k)
    assert high.cooling_w >= low.cooling_w * (1 - 1e-12)
    assert dx_room_after(PUBLISHED, low_w + more_w, outdoor_k, room_k, 60.0) >= (
        dx_room_after(PUBLISHED, low_w, outdoor_k, room_k, 60.0) - 1e-9
    )


@quick
@given(it_w=LOADS_W, outdoor_k=OUTDOOR_K, warmer_k=st.floats(0.0, 30.0), room_k=ROOM_K)
def test_warmer_outdoors_never_takes_less_cooling(
    it_w: float, outdoor_k: float, warmer_k: float, room_k: float
) -> None:
    cool, warm = (dx_flows(PUBLISHED, it_w, at_k, room_k).cooling_w for at_k in (outdoor_k, outdoor_k + warmer_k))
    assert warm >= cool * (1 - 1e-12)


@quick
@given(outdoor_k=OUTDOOR_K, minimum=st.floats(0.0, 1.0))
def test_economizer_stays_within_its_limits(outdoor_k: float, minimum: float) -> None:
    share = outdoor_air_share(DxParameters(minimum_outdoor_air=minimum), outdoor_k)
    assert minimum <= share <= 1.0
    if outdoor_k <= 286.15:
        assert share == 1.0
    if outdoor_k >= 291.13:
        assert share == minimum


@quick
@given(rooms=st.lists(st.tuples(LOADS_W, OUTDOOR_K, ROOM_K), min_size=1, max_size=20), dt_s=STEPS_S)
def test_many_rooms_at_once_are_each_room_alone(rooms: list[tuple[float, float, float]], dt_s: float) -> None:
    it_w, outdoor_k, room_k = (np.array(column) for column in zip(*rooms, strict=True))
    together = dx_flows(PUBLISHED, it_w, outdoor_k, room_k)
    after_k = dx_room_after(PUBLISHED, it_w, outdoor_k, room_k, dt_s)
    for index, room in enumerate(rooms):
        alone = dx_flows(PUBLISHED, *room)
        assert [column[index] for column in together] == pytest.approx(list(alone), rel=1e-12)
        assert after_k[index] == pytest.approx(dx_room_after(PUBLISHED, *room, dt_s), rel=1e-12)


@quick
@given(it_w=st.floats(1.0, 5e6), more_w=LOADS_W, outdoor_k=OUTDOOR_K)
def test_linear_proxy_is_bounded_and_monotone(it_w: float, more_w: float, outdoor_k: float) -> None:
    plant = LinearPlant(rated_it_w=2e6)
    low, high = plant.step(it_w, outdoor_k, 60.0), plant.step(it_w + more_w, outdoor_k, 60.0)
    assert 0.05 * it_w * (1 - 1e-12) <= low.cooling_w <= 0.4 * it_w * (1 + 1e-12)
    assert high.cooling_w >= low.cooling_w


@quick
@given(loads=st.lists(LOADS_W, min_size=2, max_size=20), data=st.data())
def test_what_a_run_shows_does_not_depend_on_the_future(loads: list[float], data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, len(loads) - 1))
    assume(loads[cut] != 0.0)
    it_w, outdoor_k = np.array(loads), np.full(len(loads), 288.0)
    changed = it_w.copy()
    changed[cut:] = 0.0
    one, other = (run_plant(DxPlant(), series, outdoor_k, 60.0) for series in (it_w, changed))
    # Outputs of step `cut` come from the inputs before it, so they agree too.
    assert one.cooling_w[: cut + 1].tolist() == other.cooling_w[: cut + 1].tolist()
