import math

import numpy as np
import pytest

from joulie.domain.units import InvalidQuantityError
from joulie_lab.simulation.cooling import (
    CoSimulation,
    DxPlant,
    LinearPlant,
    co_simulate,
    cooling_energy_kwh,
    mean_cop,
    mean_pue,
    run_plant,
)
from joulie_lab.simulation.cooling_plant import CoolingOutput
from joulie_lab.simulation.dx_plant import DxParameters, dx_flows, outdoor_air_share

PUBLISHED = DxParameters()


def test_full_mechanical_cooling_by_hand() -> None:
    # 2.5 MW at 35 degC: 5 % outdoor air warmer than the room brings nothing, the coil is past its rating, COP 3.
    flows = dx_flows(PUBLISHED, 2.5e6, 308.15, 298.15)
    assert flows.free_w == 0.0
    assert flows.compressor_w == pytest.approx(2.5e6 / 3.0)
    assert flows.fan_w == pytest.approx(82.84 / 1.2 * 500 / 0.7)
    assert flows.cop == pytest.approx(2.5e6 / (2.5e6 / 3.0 + 82.84 / 1.2 * 500 / 0.7))


def test_part_load_by_hand() -> None:
    # 0.5 MW at 40 degC: half load gains 5 %, five kelvin above the rating cost 12.5 %, the fan runs at half speed.
    flows = dx_flows(PUBLISHED, 0.5e6, 313.15, 298.15)
    assert flows.compressor_w == pytest.approx(0.5e6 / (3.0 * 0.875 * 1.05))
    assert flows.fan_w == pytest.approx(82.84 / 1.2 * 500 / 0.7 / 8)


def test_the_cop_never_falls_below_its_minimum() -> None:
    assert dx_flows(PUBLISHED, 2e6, 400.0, 298.15).compressor_w == 2e6


@pytest.mark.parametrize(
    ("outdoor_k", "share"),
    [(250.0, 1.0), (286.15, 1.0), (288.64, 0.5), (291.0, 0.05), (291.13, 0.05), (320.0, 0.05)],
)
def test_economizer_opens_linearly_between_its_limits(outdoor_k: float, share: float) -> None:
    assert outdoor_air_share(PUBLISHED, outdoor_k) == pytest.approx(share)


def test_the_compressor_is_off_only_below_the_limit() -> None:
    at_limit, below = dx_flows(PUBLISHED, 2e6, np.array([286.15, 286.14]), 298.15).compressor_w
    assert at_limit > 0.0
    assert below == 0.0


def test_a_mild_room_drifts_to_the_equilibrium_with_the_outdoor_air() -> None:
    conductance_w_per_k = 82.84 * 1006
    plant = DxPlant()
    for _ in range(200):
        output = plant.step(2e5, 280.0, 60.0)
    assert output.room_k == pytest.approx(280.0 + 2e5 / conductance_w_per_k)
    assert output.cop == pytest.approx(2e5 / output.cooling_w)


def test_one_long_step_ends_where_many_short_ones_do() -> None:
    short, long = DxPlant(), DxPlant()
    for _ in range(600):
        stepped = short.step(1e5, 284.0, 1.0)
    assert long.step(1e5, 284.0, 600.0) == pytest.approx(stepped, rel=1e-12)


def test_without_outdoor_air_the_room_stands_still() -> None:
    sealed = DxPlant(DxParameters(minimum_outdoor_air=0.0))
    assert sealed.step(0.0, 292.0, 3600.0).room_k == pytest.approx(298.15, abs=1e-9)
    assert sealed.step(1e6, 292.0, 3600.0).room_k == pytest.approx(298.15, abs=1e-9)


def test_entering_a_plant_again_starts_it_again() -> None:
    plant = DxPlant()
    with plant:
        first = plant.step(1e5, 280.0, 600.0)
        assert plant.step(1e5, 280.0, 600.0) != first
    with plant:
        assert plant.step(1e5, 280.0, 600.0) == first


@pytest.mark.parametrize(
    ("load", "outdoor_c", "pue"),
    [(0.0, 20.0, 1.05), (0.5, 20.0, 1.225), (1.0, 20.0, 1.4), (0.4, 30.0, 1.225), (0.4, 100.0, 1.33), (2.0, 20.0, 1.4)],
)
def test_linear_proxy_follows_the_twins_estimate(load: float, outdoor_c: float, pue: float) -> None:
    output = LinearPlant(rated_it_w=1e6).step(load * 1e6, outdoor_c + 273.15, 60.0)
    assert output.cooling_w == pytest.approx((pue - 1.0) * load * 1e6)
    assert output.cop == pytest.approx(1.0 / (pue - 1.0))
    assert output.room_k == 298.15


class _Echo(DxPlant):
    """Reports its input as its output, so that the order of exchange shows."""

    def step(self, it_w: float, outdoor_k: float, dt_s: float) -> CoolingOutput:
        return CoolingOutput(it_w, outdoor_k, dt_s)


def test_a_run_shows_outputs_one_step_late_and_the_first_one_twice() -> None:
    series = run_plant(_Echo(), np.array([10.0, 20.0, 30.0]), np.array([281.0, 282.0, 283.0]), 60.0)
    assert series.cooling_w.tolist() == [10.0, 10.0, 20.0]
    assert series.room_k.tolist() == [281.0, 281.0, 282.0]
    assert series.outdoor_k.tolist() == [281.0, 282.0, 283.0]
    assert series.cop.tolist() == [60.0, 60.0, 60.0]


def test_in_the_loop_and_after_the_run_are_the_same() -> None:
    it_w, outdoor_k = np.linspace(1e5, 3e6, 50), np.linspace(280.0, 310.0, 50)
    loop = CoSimulation(DxPlant(), 60.0)
    rows = [loop.exchange(float(power_w), float(air_k)) for power_w, air_k in zip(it_w, outdoor_k, strict=True)]
    series = run_plant(DxPlant(), it_w, outdoor_k, 60.0)
    assert [row.cooling_w for row in rows] == series.cooling_w.tolist()


def test_an_empty_run_has_an_empty_series() -> None:
    assert run_plant(DxPlant(), np.array([]), np.array([]), 60.0).cooling_w.shape == (0,)


def test_the_plant_is_released_after_a_failure() -> None:
    class Broken(DxPlant):
        released = False

        def step(self, it_w: float, outdoor_k: float, dt_s: float) -> CoolingOutput:
            raise RuntimeError("seized")

        def __exit__(self, *_: object) -> None:
            self.released = True

    plant = Broken()
    with pytest.raises(RuntimeError, match="seized"):
        run_plant(plant, np.array([1.0]), np.array([290.0]), 60.0)
    assert plant.released


def test_summaries() -> None:
    it_w, outdoor_k = np.array([2e6, 1e6, 1e6]), np.full(3, 300.0)
    series = run_plant(LinearPlant(rated_it_w=2e6), it_w, outdoor_k, 1800.0)
    assert mean_pue(it_w, series.cooling_w) == pytest.approx(np.mean((it_w + series.cooling_w) / it_w))
    assert cooling_energy_kwh(series, 1800.0) == pytest.approx(series.cooling_w.sum() * 0.5 / 1000)
    assert mean_cop(series) == pytest.approx((series.cop * series.cooling_w).sum() / series.cooling_w.sum())


def test_pue_without_it_power_is_refused() -> None:
    with pytest.raises(InvalidQuantityError, match="it_w"):
        mean_pue(np.array([1.0, 0.0]), np.array([1.0, 1.0]))


@pytest.mark.parametrize(
    ("it_w", "outdoor_k", "dt_s", "name"),
    [
        (math.nan, 290.0, 60.0, "it_w"),
        (-1.0, 290.0, 60.0, "it_w"),
        (1.0, math.nan, 60.0, "outdoor_k"),
        (1.0, 0.0, 60.0, "outdoor_k"),
        (1.0, 290.0, 0.0, "dt_s"),
        (1.0, 290.0, math.inf, "dt_s"),
    ],
)
@pytest.mark.parametrize("plant", [DxPlant(), LinearPlant(1e6)], ids=["dx", "linear"])
def test_impossible_inputs_are_refused_by_name(
    plant: DxPlant | LinearPlant, it_w: float, outdoor_k: float, dt_s: float, name: str
) -> None:
    with pytest.raises(InvalidQuantityError, match=name):
        plant.step(it_w, outdoor_k, dt_s)


def test_a_bad_value_in_a_series_is_found_before_the_plant_starts() -> None:
    with pytest.raises(InvalidQuantityError, match="it_w: must be finite, got nan at index 1"):
        run_plant(DxPlant(), np.array([1.0, math.nan]), np.array([290.0, 290.0]), 60.0)
    with pytest.raises(InvalidQuantityError, match="one value per step"):
        run_plant(DxPlant(), np.array([1.0, 1.0]), np.array([290.0]), 60.0)


@pytest.mark.parametrize(
    "bad",
    [
        {"coil_capacity_w": 0.0},
        {"room_length_m": -1.0},
        {"fan_efficiency": 1.1},
        {"minimum_outdoor_air": -0.1},
        {"rated_cop": math.nan},
        {"economizer_closed_k": 286.15},
    ],
)
def test_impossible_parameters_are_refused_by_name(bad: dict[str, float]) -> None:
    with pytest.raises(InvalidQuantityError, match=next(iter(bad))):
        DxParameters(**bad)


def test_linear_plant_in_one_go_is_the_stepped_one() -> None:
    plant = LinearPlant(1e6)
    it_w, outdoor_k = np.array([1e5, 9e5, 5e5]), np.array([290.0, 305.0, 300.0])
    whole = run_plant(plant, it_w, outdoor_k, 60.0)
    stepped = co_simulate(plant, it_w.tolist(), outdoor_k, 60.0)
    for name in ("room_k", "cooling_w", "cop"):
        assert np.array_equal(getattr(whole, name), getattr(stepped, name)), name
