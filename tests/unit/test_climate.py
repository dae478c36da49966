import math

import numpy as np
import pytest

from joulie.domain.units import InvalidQuantityError
from joulie_lab.simulation.climate import Climate


def test_the_published_temperature_is_one_scalar_draw_a_step_in_step_order() -> None:
    rng = np.random.default_rng(43)
    expected_k = []
    for step in range(500):
        h = step / 60
        day = 6 * math.sin(2 * math.pi * h / 24 - 9 / 24 * 2 * math.pi)
        expected_k.append(273.15 + 23 + day + 2 * math.sin(2 * math.pi * h / 72) + rng.normal(0, 0.5))

    outdoor_k = Climate().outdoor_k(500, 60.0, np.random.default_rng(43))

    assert outdoor_k == pytest.approx(expected_k, rel=1e-14)


def test_the_vectorised_draw_leaves_the_generator_where_scalar_draws_do() -> None:
    vectorised, scalar = np.random.default_rng(7), np.random.default_rng(7)
    Climate().outdoor_k(100, 60.0, vectorised)
    for _ in range(100):
        scalar.normal(0, 0.5)
    assert vectorised.random() == scalar.random()


def test_without_noise_the_day_peaks_six_hours_after_its_lag() -> None:
    climate = Climate(slow_amplitude_k=0.0, noise_std_k=0.0)
    outdoor_k = climate.outdoor_k(24 * 60, 60.0, np.random.default_rng(0))
    assert np.argmax(outdoor_k) == 15 * 60
    assert outdoor_k.max() - outdoor_k.min() == pytest.approx(12.0)
    assert outdoor_k.mean() == pytest.approx(296.15)


@pytest.mark.parametrize(
    "bad",
    [
        {"mean_c": math.nan},
        {"mean_c": -300.0},
        {"noise_std_k": -0.1},
        {"slow_period_h": 0.0},
        {"daily_amplitude_k": math.inf},
    ],
)
def test_impossible_parameters_are_refused_by_name(bad: dict[str, float]) -> None:
    with pytest.raises(InvalidQuantityError, match=next(iter(bad))):
        Climate(**bad)


def test_a_step_without_length_is_refused() -> None:
    with pytest.raises(InvalidQuantityError, match="step_s"):
        Climate().outdoor_k(10, 0.0, np.random.default_rng(0))
