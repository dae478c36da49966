import numba
import numpy as np
import pytest

from joulie.domain.marginal import (
    FullLoad,
    PodRequests,
    cpu_max_or_fallback_w,
    gpu_coefficient,
    gpu_max_or_fallback_w,
    marginal_w,
)
from joulie.domain.units import InvalidQuantityError


def added_w(
    cpu_max_w: float, node_cores: float, requests: PodRequests, gpu_max_w: float = 350.0, *, performance: bool = False
) -> float:
    """Power that a pod adds to one node."""
    load = FullLoad(np.array([cpu_max_w]), np.array([node_cores]), np.array([gpu_max_w]))
    return float(load.marginal_w(requests, performance=performance)[0])


def test_cpu_pod() -> None:
    watts = added_w(700.0, 96, PodRequests(cores=24))
    assert watts == pytest.approx(700 * 0.7 * 0.25)


@pytest.mark.parametrize(("memory_gib", "factor"), [(0.0, 1.0), (10.0, 1.1), (30.0, 1.3), (500.0, 1.3)])
def test_memory_factor(memory_gib: float, factor: float) -> None:
    watts = added_w(100.0, 10, PodRequests(cores=10, memory_gib=memory_gib))
    assert watts == pytest.approx(70.0 * factor)


def test_gpu_pod_by_class() -> None:
    requests = PodRequests(cores=16, gpus=2)
    base = 500 * 0.7 * 16 / 128
    assert added_w(500.0, 128, requests, 700.0) == pytest.approx(base + 2 * 700 * 0.65)
    assert added_w(500.0, 128, requests, 700.0, performance=True) == pytest.approx(base + 2 * 700 * 0.85)


def test_pod_larger_than_the_node_counts_as_the_node() -> None:
    assert added_w(100.0, 4, PodRequests(cores=400)) == pytest.approx(70.0)


def test_fallbacks() -> None:
    assert cpu_max_or_fallback_w(None, 8) == 150.0
    assert cpu_max_or_fallback_w(None, 100) == 350.0
    assert cpu_max_or_fallback_w(280.0, 100) == 280.0
    assert gpu_max_or_fallback_w(None) == 350.0
    assert gpu_max_or_fallback_w(None, "NVIDIA") == 350.0
    assert gpu_max_or_fallback_w(None, "amd") == 400.0
    assert gpu_max_or_fallback_w(300.0, "AMD") == 300.0


def test_without_memory_it_is_the_published_formula_bit_for_bit() -> None:
    rng = np.random.default_rng(1)
    fraction, cpu_max_w, gpu_max_w = rng.uniform(0.0, 2.0, 500), rng.uniform(100, 900, 500), rng.uniform(0, 700, 500)
    gpus = rng.integers(0, 9, 500).astype(float)
    coefficient = gpu_coefficient(rng.random(500) < 0.5)
    np.testing.assert_array_equal(
        marginal_w(cpu_max_w, fraction, 0.0, gpus, gpu_max_w, coefficient),
        cpu_max_w * 0.7 * np.minimum(1.0, fraction) + gpus * gpu_max_w * coefficient,
    )


def test_it_compiles_for_scalars() -> None:
    compiled = numba.njit(marginal_w)
    arguments = (500.0, 16 / 128, 12.0, 2.0, 700.0, 0.85)
    assert compiled(*arguments) == marginal_w(*arguments)


@pytest.mark.parametrize(("index", "name"), [(0, "cpu_max_w"), (1, "cores"), (2, "gpu_max_w")])
@pytest.mark.parametrize("bad", [float("nan"), 0.0, -1.0])
def test_a_bad_node_is_refused_by_name(index: int, name: str, bad: float) -> None:
    columns = [np.array([700.0]), np.array([96.0]), np.array([350.0])]
    columns[index] = np.array([bad])
    with pytest.raises(InvalidQuantityError) as caught:
        FullLoad(*columns)
    assert caught.value.quantity == name


@pytest.mark.parametrize("bad", [float("nan"), 0.0, -5.0])
def test_trap_zero_watts_from_the_world_is_not_a_fallback(bad: float) -> None:
    with pytest.raises(InvalidQuantityError):
        cpu_max_or_fallback_w(bad, 8)
    with pytest.raises(InvalidQuantityError):
        gpu_max_or_fallback_w(bad)
