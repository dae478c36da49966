"""The published generator against NumPy's scalar calls, and thinning."""

from __future__ import annotations

import numpy as np
import pytest

from joulie.domain.units import InvalidQuantityError
from joulie_lab.simulation.workload import JobTable, published_jobs, thinned

KEEP = {"gpu-training": 1.0 / 110.0, "cpu-above-8-cores": 0.22}


def scalar_jobs(seed: int, hours: float) -> list[tuple[float, float, int, int, bool, float, float]]:
    """The published procedure, word for word, with `Generator`'s scalar calls."""
    rng = np.random.default_rng(seed)
    t, jobs = 0.0, []
    while t < hours * 3600:
        phase = 2 * np.pi * ((t / 3600) % 24 - 4) / 24
        rate = (0.25 + 0.70 * (1 - np.cos(phase)) / 2) * 80 / 60
        t += rng.exponential(1 / max(rate, 0.001))
        if t >= hours * 3600:
            break
        for _ in range(int(rng.integers(50, 201)) if rng.random() < 0.10 else 1):
            r, gpus, performance, gpu_util = rng.random(), 0, False, 0.0
            if r < 0.35:
                cores, cpu_util, duration = rng.choice([1, 2, 4, 8]), rng.uniform(0.3, 0.8), rng.uniform(60, 600)
            elif r < 0.55:
                performance = bool(rng.random() < 0.3)
                cores, cpu_util = rng.choice([16, 32, 48, 64]), rng.uniform(0.4, 0.9)
                duration = rng.uniform(300, 3600)
            elif r < 0.80:
                performance = True
                cores, gpus = rng.choice([16, 32, 64]), int(rng.choice([1, 2, 4, 8]))
                cpu_util, gpu_util = rng.uniform(0.3, 0.6), rng.uniform(0.6, 0.95)
                duration = rng.uniform(3600, 28800)
            elif r < 0.92:
                cores, gpus = rng.choice([4, 8, 16]), int(rng.choice([1, 2]))
                cpu_util, gpu_util = rng.uniform(0.3, 0.6), rng.uniform(0.3, 0.7)
                duration = rng.uniform(60, 900)
            else:
                performance = True
                cores, cpu_util, duration = rng.choice([64, 96]), rng.uniform(0.5, 0.95), rng.uniform(1800, 7200)
            jobs.append((t, duration, int(cores), gpus, performance, cpu_util, gpu_util))
    return jobs


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 42])
def test_published_jobs_are_the_scalar_draws(seed: int) -> None:
    table = published_jobs(seed, 0.5)
    rows = list(
        zip(
            table.arrival_s.tolist(),
            table.duration_s.tolist(),
            table.cores.tolist(),
            table.gpus.tolist(),
            table.performance.tolist(),
            table.cpu_util.tolist(),
            table.gpu_util.tolist(),
            strict=True,
        )
    )
    assert rows == scalar_jobs(seed, 0.5)


def test_rate_scales_the_number_of_jobs() -> None:
    assert 0.05 < len(published_jobs(3, 24.0, 0.01)) / len(published_jobs(3, 24.0, 0.1)) < 0.2


@pytest.mark.parametrize(("name", "value"), [("hours", 0.0), ("hours", np.nan), ("rate_scale", -1.0)])
def test_generator_refuses_what_cannot_be(name: str, value: float) -> None:
    with pytest.raises(InvalidQuantityError, match=name):
        published_jobs(**({"seed": 1, "hours": 1.0} | {name: value}))  # type: ignore[arg-type]


def test_thinning_keeps_by_one_draw_a_job() -> None:
    jobs = published_jobs(42, 1.0)
    kept = thinned(jobs, KEEP)
    draws = np.random.default_rng(7).random(len(jobs))
    large_cpu = (jobs.gpus == 0) & (jobs.cores > 8)
    training = jobs.job_class == jobs.class_names.index("gpu-training")
    expected = (draws < 1.0) & ~(large_cpu & (draws >= 0.22)) & ~(training & (draws >= 1.0 / 110.0))
    assert np.array_equal(kept.arrival_s, jobs.arrival_s[expected])
    assert np.array_equal(kept.cores, jobs.cores[expected])


@pytest.mark.parametrize(("keep", "message"), [({"batch": 0.5}, "batch"), ({"gpu-training": 1.5}, "gpu-training")])
def test_thinning_refuses_unknown_classes_and_probabilities(keep: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidQuantityError, match=message):
        thinned(published_jobs(1, 0.05), keep)


def test_job_table_refuses_disorder_and_nan() -> None:
    jobs = published_jobs(1, 0.05)
    columns = {name: getattr(jobs, name) for name in JobTable.__dataclass_fields__}
    with pytest.raises(InvalidQuantityError, match="sorted"):
        JobTable(**columns | {"arrival_s": jobs.arrival_s[::-1]})
    with pytest.raises(InvalidQuantityError, match="cpu_util"):
        JobTable(**columns | {"cpu_util": np.full(len(jobs), np.nan)})
