import numba
import numpy as np
import pytest

from joulie.domain.marginal import (
    cpu_max_or_fallback_w,
    estimate_marginal_w,
    gpu_coefficient,
    gpu_max_or_fallback_w,
    marginal_w,
    published_marginal_w,
)
from joulie.domain.units import InvalidQuantityError


def test_cpu_pod() -> None:
    watts = estimate_marginal_w(cpu_max_w=700.0, node_cores=96, pod_cores=24)
    assert watts == pytest.approx(700 * 0.7 * 0.25)


@pytest.mark.parametrize(("memory_gib", "factor"), [(0.0, 1.0), (10.0, 1.1), (30.0, 1.3), (500.0, 1.3)])
def test_memory_factor(memory_gib: float, factor: float) -> None:
    watts = estimate_marginal_w(cpu_max_w=100.0, node_cores=10, pod_cores=10, memory_gib=memory_gib)
    assert watts == pytest.approx(70.0 * factor)


def test_gpu_pod_by_class() -> None:
    common = {"cpu_max_w": 500.0, "node_cores": 128, "pod_cores": 16, "gpus": 2, "gpu_max_w": 700.0}
    base = 500 * 0.7 * 16 / 128
    assert estimate_marginal_w(**common) == pytest.approx(base + 2 * 700 * 0.65)
    assert estimate_marginal_w(**common, performance=True) == pytest.approx(base + 2 * 700 * 0.85)


def test_pod_larger_than_the_node_counts_as_the_node() -> None:
    assert estimate_marginal_w(cpu_max_w=100.0, node_cores=4, pod_cores=400) == pytest.approx(70.0)


def test_fallbacks() -> None:
    assert cpu_max_or_fallback_w(None, 8) == 150.0
    assert cpu_max_or_fallback_w(None, 100) == 350.0
    assert cpu_max_or_fallback_w(280.0, 100) == 280.0
    assert gpu_max_or_fallback_w(None) == 350.0
    assert gpu_max_or_fallback_w(None, "NVIDIA") == 350.0
    assert gpu_max_or_fallback_w(None, "amd") == 400.0
    assert gpu_max_or_fallback_w(300.0, "AMD") == 300.0


def test_published_variant_is_the_one_without_memory_bit_for_bit() -> None:
    rng = np.random.default_rng(1)
    fraction, cpu_max_w, gpu_max_w = rng.uniform(0.0, 2.0, 500), rng.uniform(100, 900, 500), rng.uniform(0, 700, 500)
    gpus = rng.integers(0, 9, 500).astype(float)
    coefficient = gpu_coefficient(rng.random(500) < 0.5)
    np.testing.assert_array_equal(
        marginal_w(cpu_max_w, fraction, 0.0, gpus, gpu_max_w, coefficient),
        published_marginal_w(cpu_max_w, fraction, gpus, gpu_max_w, coefficient),
    )


def test_formulas_compile_for_scalars() -> None:
    compiled = numba.njit(marginal_w)
    published = numba.njit(published_marginal_w)
    arguments = (500.0, 16 / 128, 12.0, 2.0, 700.0, 0.85)
    assert compiled(*arguments) == marginal_w(*arguments)
    assert published(500.0, 0.125, 2.0, 700.0, 0.85) == published_marginal_w(500.0, 0.125, 2.0, 700.0, 0.85)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"cpu_max_w": float("nan")}, "cpu_max_w"),
        ({"cpu_max_w": 0.0}, "cpu_max_w"),
        ({"node_cores": 0}, "node_cores"),
        ({"pod_cores": -1.0}, "pod_cores"),
        ({"memory_gib": float("nan")}, "memory_gib"),
        ({"gpus": -1}, "gpus"),
        ({"gpus": 1}, "gpu_max_w"),
    ],
)
def test_bad_input_is_refused_by_name(changes: dict[str, float], name: str) -> None:
    arguments: dict[str, float] = {"cpu_max_w": 700.0, "node_cores": 96, "pod_cores": 8}
    with pytest.raises(InvalidQuantityError) as caught:
        estimate_marginal_w(**(arguments | changes))
    assert caught.value.quantity == name


@pytest.mark.parametrize("bad", [float("nan"), 0.0, -5.0])
def test_trap_zero_watts_from_the_world_is_not_a_fallback(bad: float) -> None:
    with pytest.raises(InvalidQuantityError):
        cpu_max_or_fallback_w(bad, 8)
    with pytest.raises(InvalidQuantityError):
        gpu_max_or_fallback_w(bad)
