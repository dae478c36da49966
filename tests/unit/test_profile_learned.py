"""The learned option: what it sees in a course, what it refines, and what it leaves alone."""

import re

import numpy as np
import pytest

from joulie.domain.profiles.learned import FEATURES, SAMPLES, Course, features, refined, verdict_of
from joulie.domain.profiles.profile import EnergyUse, Hints, Use
from joulie.domain.profiles.rules import classify
from joulie.domain.profiles.tree import Leaf, Split, Target
from joulie.domain.profiles.trees import TREES
from joulie.domain.units import InvalidQuantityError
from joulie.domain.workload import CpuBound, GpuBound, GpuLevel, Level

STEP_S = 30.0


def level(percent: float, noise: float = 2.0) -> np.ndarray:
    rng = np.random.default_rng(5)
    return np.clip(percent + rng.normal(0.0, noise, SAMPLES), 0.0, 100.0)


def changed(before: float, after: float, at: int = SAMPLES // 2) -> np.ndarray:
    return np.where(np.arange(SAMPLES) < at, level(before), level(after))


def turns(high: float, low: float, period: int) -> np.ndarray:
    return np.where(np.arange(SAMPLES) % period < period / 2, level(high), level(low))


def use_of(cpu: np.ndarray, gpu: np.ndarray | None = None, **more: float | EnergyUse) -> Use:
    gpu_pct = None if gpu is None else float(np.nanmean(gpu))
    return Use(float(np.nanmean(cpu)), gpu_util_pct=gpu_pct, holds_gpus=gpu is not None, **more)  # type: ignore[arg-type]


def seen(cpu: np.ndarray, gpu: np.ndarray | None = None, **more: float) -> dict[str, float]:
    return features(use_of(cpu, gpu, **more), Course(STEP_S, cpu, gpu))


def test_a_steady_course_has_no_change_and_no_rhythm() -> None:
    known = seen(level(60.0))
    assert (known["cpu_change"], known["cpu_rhythm"], known["cpu_period"]) == (0.0, 0.0, 0.0)
    assert known["cpu_late"] == known["cpu_mean"] == pytest.approx(60.0, abs=2.0)
    assert seen(np.full(SAMPLES, 60.0))["cpu_spread"] == 0.0


def test_a_change_is_found_with_what_came_after_it() -> None:
    known = seen(changed(10.0, 80.0, at=13))
    assert known["cpu_change"] == pytest.approx(70.0, abs=4.0)
    assert known["cpu_late"] == pytest.approx(known["cpu_busy"]) == pytest.approx(80.0, abs=2.0)
    assert known["cpu_mean"] < 40.0


@pytest.mark.parametrize("period", [4, 6, 8])
def test_a_rhythm_is_found_with_its_period(period: int) -> None:
    known = seen(turns(90.0, 20.0, period))
    assert known["cpu_period"] == period * STEP_S
    assert known["cpu_rhythm"] > 60.0
    assert known["cpu_busy"] == pytest.approx(90.0, abs=2.0)


def test_gpus_that_wait_for_cpus_run_against_them() -> None:
    assert seen(turns(90.0, 10.0, 6), 100.0 - turns(90.0, 10.0, 6))["together"] < -90.0
    assert seen(turns(90.0, 10.0, 6), np.full(SAMPLES, 50.0))["together"] == 0.0


def test_trap_missing_samples_are_not_zero() -> None:
    whole = turns(90.0, 20.0, 6)
    holes = np.where(np.arange(SAMPLES) % 5 == 4, np.nan, whole)
    known = seen(holes)
    assert known["cpu_mean"] == pytest.approx(float(np.nanmean(holes)))
    assert known["cpu_period"] == 180.0
    steady = seen(np.where(np.arange(SAMPLES) % 5 == 4, np.nan, level(60.0, noise=3.0)))
    assert steady["cpu_period"] == 0.0, "holes have a rhythm, the course has none"
    assert "gpu_mean" not in known
    silent = features(use_of(whole), Course(STEP_S, whole, np.full(SAMPLES, np.nan)))
    assert silent == seen(whole)


def test_a_course_with_many_holes_says_nothing() -> None:
    holes = np.where(np.arange(SAMPLES) % 2 == 0, np.nan, 80.0)
    assert seen(holes) == {}
    use = use_of(holes)
    before = classify(Hints(), use)
    assert refined(before, Hints(), use, Course(STEP_S, holes)) == before


def test_a_course_without_a_step_is_refused() -> None:
    with pytest.raises(InvalidQuantityError):
        Course(0.0, level(1.0))


def test_work_that_began_within_the_window_counts_as_it_is_now() -> None:
    cpu = changed(8.0, 96.0, at=8)
    use = use_of(cpu)
    before = classify(Hints(), use)
    after = refined(before, Hints(), use, Course(STEP_S, cpu))
    assert (before.cpu.intensity, after.cpu.intensity) == (Level.MEDIUM, Level.HIGH)
    added = after.reason.removeprefix(before.reason)
    shown = r"; learned: cpu-intensity=high \(util 6\d%>31%, lately 9\d%>74%, busy 9\d%>89%\)"
    assert re.fullmatch(shown, added), added
    assert after.confidence == before.confidence


def test_gpus_that_are_about_to_be_fed_are_not_idle() -> None:
    cpu, gpu = level(80.0), level(5.0)
    use = use_of(cpu, gpu)
    before = classify(Hints(), use)
    after = refined(before, Hints(), use, Course(STEP_S, cpu, gpu))
    assert (before.gpu.intensity, after.gpu.intensity) == (GpuLevel.LOW, GpuLevel.MEDIUM)


def test_gpus_that_never_reach_the_cap_are_hardly_slowed_by_it() -> None:
    cpu, gpu = level(10.0), level(60.0)
    use = use_of(cpu, gpu, gpu_memory_activity_pct=20.0)
    before = classify(Hints(), use)
    after = refined(before, Hints(), use, Course(STEP_S, cpu, gpu))
    assert (before.gpu.cap_sensitivity, after.gpu.cap_sensitivity) == (GpuLevel.MEDIUM, GpuLevel.LOW)
    assert "learned: gpu-cap-sensitivity=low (gpu-busy 6" in after.reason


def test_trap_an_annotation_is_never_refined() -> None:
    cpu, gpu = level(10.0), level(60.0)
    use = use_of(cpu, gpu, gpu_memory_activity_pct=20.0)
    hints = Hints(gpu_sensitivity=Level.HIGH)
    before = classify(hints, use)
    after = refined(before, hints, use, Course(STEP_S, cpu, gpu))
    assert after.gpu.cap_sensitivity is GpuLevel.HIGH
    assert "learned: gpu-cap-sensitivity" not in after.reason


def test_what_bounds_and_what_energies_say_of_the_cpu_stays() -> None:
    cpu = changed(8.0, 96.0, at=8)
    use = use_of(cpu, energy=EnergyUse(100.0, 100.0))
    before = classify(Hints(), use)
    assert before.cpu.bound is CpuBound.MEMORY
    after = refined(before, Hints(), use, Course(STEP_S, cpu))
    assert after.cpu.intensity is Level.HIGH
    assert (after.cpu.bound, after.cpu.cap_sensitivity) == (before.cpu.bound, before.cpu.cap_sensitivity)


def test_gpus_that_idle_or_are_not_measured_stay_so() -> None:
    cpu, idle = level(80.0), np.zeros(SAMPLES)
    for use in (use_of(cpu, idle), Use(80.0, holds_gpus=True)):
        before = classify(Hints(), use)
        after = refined(before, Hints(), use, Course(STEP_S, cpu, idle))
        assert after.gpu == before.gpu
        assert after.gpu.bound in {GpuBound.NONE, None}


def test_a_tree_shows_the_way_and_never_rounds_across_a_threshold() -> None:
    tree = (Split("cpu_mean", 40, 1, 2), Leaf(Level.HIGH), Split("cpu_mean", 20, 3, 4), Leaf(Level.LOW), Leaf(None))
    assert verdict_of(tree, {"cpu_mean": 40.2}) == (Level.HIGH, ("util 41%>40%",))
    assert verdict_of(tree, {"cpu_mean": 40.0}) == (Level.LOW, ("util 40%≤40%", "util 40%>20%"))
    assert verdict_of(tree, {"cpu_mean": 3.0}) is None
    assert verdict_of(tree, {}) is None
    assert verdict_of((Split("gpu_period", 60, 1, 1), Leaf(Level.LOW)), {"gpu_period": 90.0}) == (
        Level.LOW,
        ("gpu-period 90 s>60 s",),
    )


@pytest.mark.parametrize("tree", TREES.values(), ids=[str(target) for target in TREES])
def test_the_committed_trees_are_small_and_whole(tree: tuple[Split | Leaf, ...]) -> None:
    assert len(tree) <= 15
    reached = {0}
    for place, row in enumerate(tree):
        if isinstance(row, Split):
            assert row.feature in FEATURES
            assert min(row.then, row.otherwise) > place, "a way leads on"
            reached |= {row.then, row.otherwise}
    assert reached == set(range(len(tree)))
    assert any(isinstance(row, Leaf) and row.level is not None for row in tree)


def test_the_committed_trees_leave_the_cpu_s_sensitivity_alone() -> None:
    assert TREES.keys() == {Target.CPU_INTENSITY, Target.GPU_INTENSITY, Target.GPU_SENSITIVITY}
