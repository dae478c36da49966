"""The classifier's rules. The strings are those of the WorkloadProfile Guide, to the letter."""

import math
from dataclasses import replace
from typing import Any

import pytest

from joulie.domain.policy import WorkloadClass
from joulie.domain.profiles.profile import Classification, CpuProfile, EnergyUse, GpuProfile, Hints, Use
from joulie.domain.profiles.rules import METRICS_MISSING, classify, decayed
from joulie.domain.units import InvalidQuantityError
from joulie.domain.workload import CpuBound, GpuBound, GpuLevel, Level

NO_HINTS = Hints()
COMPUTE = Use(cpu_util_pct=90.0, memory_pressure_pct=20.0)
MEMORY = Use(cpu_util_pct=45.0, memory_pressure_pct=68.0)


def parts(use: Use, hints: Hints = NO_HINTS) -> list[str]:
    return classify(hints, use).reason.split("; ")


def test_the_guides_example() -> None:
    use = Use(
        cpu_util_pct=45.0,
        memory_pressure_pct=68.0,
        gpu_util_pct=92.0,
        energy=EnergyUse(package_j=120e3, dram_j=60e3, gpu_j=420e3),
    )
    assert classify(Hints(reschedulable=True), use) == Classification(
        workload_class=WorkloadClass.STANDARD,
        reschedulable=True,
        cpu=CpuProfile(Level.MEDIUM, CpuBound.MEMORY, 45.0, Level.LOW),
        gpu=GpuProfile(GpuLevel.HIGH, GpuBound.COMPUTE, 92.0, GpuLevel.HIGH),
        reason=(
            "cpu-intensity=medium (util 45%); cpu-bound=memory (mem-pressure 68%>50%); "
            "gpu-intensity=high (util 92%≥70%)"
        ),
        confidence=0.85,
    )


@pytest.mark.parametrize(
    ("use", "hints", "part"),
    [
        (COMPUTE, NO_HINTS, "cpu-intensity=high (util 90%≥75%)"),
        (COMPUTE, NO_HINTS, "cpu-bound=compute, cap-sensitivity=high (util 90%>70%)"),
        (
            replace(COMPUTE, energy=EnergyUse(55.0, 45.0)),
            NO_HINTS,
            "kepler override: cpu-bound=memory (mem-energy ratio 0.45>0.40)",
        ),
        (COMPUTE, Hints(cpu_sensitivity=Level.LOW), "cpu-cap-sensitivity=low (annotation override)"),
    ],
)
def test_the_guides_other_parts(use: Use, hints: Hints, part: str) -> None:
    assert part in parts(use, hints)


def test_hints_alone() -> None:
    hints = Hints(WorkloadClass.PERFORMANCE, reschedulable=False, gpu_sensitivity=Level.HIGH)
    for use in (None, Use(), Use(memory_pressure_pct=80.0, energy=EnergyUse(100.0, 50.0)), Use(holds_gpus=True)):
        assert classify(hints, use) == Classification(
            WorkloadClass.PERFORMANCE,
            False,
            CpuProfile(),
            GpuProfile(cap_sensitivity=GpuLevel.HIGH),
            "hints only (no metrics available)",
            0.3,
        )


@pytest.mark.parametrize(
    ("util_pct", "level", "shown"),
    [
        (100.0, Level.HIGH, "high (util 100%≥75%)"),
        (75.0, Level.HIGH, "high (util 75%≥75%)"),
        (74.999, Level.MEDIUM, "medium (util 74%)"),
        (30.0, Level.MEDIUM, "medium (util 30%)"),
        (29.999, Level.LOW, "low (util 29%)"),
        (0.0, Level.LOW, "low (util 0%)"),
    ],
)
def test_cpu_intensity(util_pct: float, level: Level, shown: str) -> None:
    use = Use(cpu_util_pct=util_pct)
    assert classify(NO_HINTS, use).cpu.intensity is level
    assert parts(use)[0] == f"cpu-intensity={shown}"


@pytest.mark.parametrize(
    ("util_pct", "level", "shown"),
    [
        (70.0, GpuLevel.HIGH, "high (util 70%≥70%)"),
        (69.999, GpuLevel.MEDIUM, "medium (util 69%)"),
        (25.0, GpuLevel.MEDIUM, "medium (util 25%)"),
        (24.999, GpuLevel.LOW, "low (util 24%)"),
        (0.001, GpuLevel.LOW, "low (util 0%)"),
        (0.0, GpuLevel.NONE, "none (util 0%)"),
    ],
)
def test_gpu_intensity(util_pct: float, level: GpuLevel, shown: str) -> None:
    use = Use(gpu_util_pct=util_pct)
    assert classify(NO_HINTS, use).gpu.intensity is level
    assert parts(use) == [f"gpu-intensity={shown}"]


@pytest.mark.parametrize(
    ("cpu_pct", "pressure_pct", "gpu_pct", "bound", "sensitivity", "shown"),
    [
        (45.0, 50.001, None, CpuBound.MEMORY, Level.LOW, "memory (mem-pressure 51%>50%)"),
        (59.999, 80.0, None, CpuBound.MEMORY, Level.LOW, "memory (mem-pressure 80%>50%)"),
        # Neither rule of the first two: pressure or CPU stands exactly at a threshold.
        (45.0, 50.0, None, CpuBound.MIXED, Level.MEDIUM, "mixed, cap-sensitivity=medium (util 45%, mem-pressure 50%)"),
        (60.0, 80.0, None, CpuBound.MIXED, Level.MEDIUM, "mixed, cap-sensitivity=medium (util 60%, mem-pressure 80%)"),
        (90.0, 50.0, None, CpuBound.MIXED, Level.MEDIUM, "mixed, cap-sensitivity=medium (util 90%, mem-pressure 50%)"),
        (65.0, 10.0, None, CpuBound.MIXED, Level.MEDIUM, "mixed, cap-sensitivity=medium (util 65%, mem-pressure 10%)"),
        (65.001, 49.999, None, CpuBound.COMPUTE, Level.MEDIUM, "compute, cap-sensitivity=medium (util 66%>65%)"),
        (70.0, 10.0, None, CpuBound.COMPUTE, Level.MEDIUM, "compute, cap-sensitivity=medium (util 70%>65%)"),
        (70.001, 10.0, None, CpuBound.COMPUTE, Level.HIGH, "compute, cap-sensitivity=high (util 71%>70%)"),
        # A busy GPU decides only after memory and compute.
        (45.0, 68.0, 92.0, CpuBound.MEMORY, Level.LOW, "memory (mem-pressure 68%>50%)"),
        (90.0, 10.0, 95.0, CpuBound.COMPUTE, Level.HIGH, "compute, cap-sensitivity=high (util 90%>70%)"),
        (10.0, 10.0, 40.001, CpuBound.MIXED, Level.LOW, "mixed, cap-sensitivity=low (gpu-util 41%>40%)"),
        (50.0, 10.0, 50.0, CpuBound.MIXED, Level.MEDIUM, "mixed, cap-sensitivity=medium (util 50%, mem-pressure 10%)"),
        (19.999, 10.0, 40.0, CpuBound.IO, Level.LOW, "io (util 19%<20%)"),
        (0.0, None, None, CpuBound.IO, Level.LOW, "io (util 0%<20%)"),
        (20.0, 10.0, None, CpuBound.MIXED, Level.MEDIUM, "mixed, cap-sensitivity=medium (util 20%, mem-pressure 10%)"),
    ],
)
def test_cpu_bound(
    cpu_pct: float, pressure_pct: float | None, gpu_pct: float | None, bound: CpuBound, sensitivity: Level, shown: str
) -> None:
    use = Use(cpu_util_pct=cpu_pct, memory_pressure_pct=pressure_pct, gpu_util_pct=gpu_pct)
    cpu = classify(NO_HINTS, use).cpu
    assert (cpu.bound, cpu.cap_sensitivity) == (bound, sensitivity)
    assert parts(use)[1] == f"cpu-bound={shown}"


def test_trap_missing_memory_pressure_is_not_zero() -> None:
    use = Use(cpu_util_pct=90.0)
    assert classify(NO_HINTS, use).cpu.bound is CpuBound.MIXED
    assert parts(use)[1] == "cpu-bound=mixed, cap-sensitivity=medium (util 90%, mem-pressure unknown)"


@pytest.mark.parametrize(
    ("util_pct", "activity_pct", "bound", "sensitivity", "more"),
    [
        (92.0, None, GpuBound.COMPUTE, GpuLevel.HIGH, []),
        (92.0, 60.0, GpuBound.COMPUTE, GpuLevel.HIGH, []),
        (92.0, 60.001, GpuBound.MEMORY, GpuLevel.MEDIUM, ["gpu-bound=memory (mem-activity 61%>60%)"]),
        (60.0, None, GpuBound.COMPUTE, GpuLevel.MEDIUM, []),
        (40.001, 10.0, GpuBound.COMPUTE, GpuLevel.MEDIUM, []),
        (40.0, 10.0, GpuBound.MIXED, GpuLevel.MEDIUM, []),
        (10.0, None, GpuBound.MIXED, GpuLevel.LOW, []),
        (10.0, 72.4, GpuBound.MEMORY, GpuLevel.LOW, ["gpu-bound=memory (mem-activity 72%>60%)"]),
        (0.0, 72.4, GpuBound.NONE, GpuLevel.NONE, []),
    ],
)
def test_gpu_bound(
    util_pct: float, activity_pct: float | None, bound: GpuBound, sensitivity: GpuLevel, more: list[str]
) -> None:
    use = Use(gpu_util_pct=util_pct, gpu_memory_activity_pct=activity_pct)
    gpu = classify(NO_HINTS, use).gpu
    assert (gpu.bound, gpu.cap_sensitivity) == (bound, sensitivity)
    assert parts(use)[1:] == more


def test_without_gpus() -> None:
    assert classify(NO_HINTS, COMPUTE).gpu == GpuProfile(GpuLevel.NONE, GpuBound.NONE, None, GpuLevel.NONE)


def test_trap_gpus_that_nobody_measures_are_not_idle() -> None:
    assert classify(NO_HINTS, replace(COMPUTE, holds_gpus=True)).gpu == GpuProfile()


def test_a_workload_whose_cpu_is_not_measured() -> None:
    result = classify(NO_HINTS, Use(gpu_util_pct=92.0))
    assert result.cpu == CpuProfile()
    assert result.confidence == 0.5


@pytest.mark.parametrize(
    ("energy", "shown"),
    [
        (EnergyUse(60.0, 40.0), None),
        (EnergyUse(599.0, 401.0), "memory (mem-energy ratio 0.41>0.40)"),
        (EnergyUse(55.0, 45.0), "memory (mem-energy ratio 0.45>0.40)"),
        (EnergyUse(70.0, 30.0), None),
        (EnergyUse(701.0, 299.0), "compute, cap-sensitivity=high (cpu-energy ratio 0.71>0.70)"),
        (EnergyUse(82.0, 18.0), "compute, cap-sensitivity=high (cpu-energy ratio 0.82>0.70)"),
        # Energy of GPUs that the workload does not have belongs to nobody here.
        (EnergyUse(82.0, 18.0, 500.0), "compute, cap-sensitivity=high (cpu-energy ratio 0.82>0.70)"),
    ],
)
def test_energy_ratios(energy: EnergyUse, shown: str | None) -> None:
    use = Use(cpu_util_pct=50.0, memory_pressure_pct=40.0, energy=energy)
    result = classify(NO_HINTS, use)
    overrides = [part for part in parts(use) if part.startswith("kepler override: ")]
    assert overrides == ([] if shown is None else [f"kepler override: cpu-bound={shown}"])
    expected = {None: ("mixed", "medium"), "m": ("memory", "low"), "c": ("compute", "high")}[shown and shown[0]]
    assert (result.cpu.bound, result.cpu.cap_sensitivity) == expected
    assert result.confidence == 0.7


@pytest.mark.parametrize(
    ("energy", "gpu_util_pct", "overrides"),
    [
        (EnergyUse(100.0), None, False),
        (EnergyUse(100.0, 0.0), None, False),
        (EnergyUse(0.0, 10.0), None, False),
        (EnergyUse(90.0, 10.0, None), 50.0, False),
        (EnergyUse(90.0, 10.0, 0.0), 50.0, False),
        (EnergyUse(90.0, 10.0, 0.0), 0.0, True),
        (EnergyUse(90.0, 10.0, 20.0), 50.0, True),
    ],
)
def test_trap_energy_that_is_not_measured_is_not_zero(
    energy: EnergyUse, gpu_util_pct: float | None, overrides: bool
) -> None:
    """Package over package would always be 1: every workload on hardware without a memory counter compute-bound."""
    use = Use(cpu_util_pct=50.0, memory_pressure_pct=40.0, gpu_util_pct=gpu_util_pct, energy=energy)
    assert ("kepler override" in classify(NO_HINTS, use).reason) is overrides


@pytest.mark.parametrize(
    ("use", "hints", "confidence"),
    [
        (None, NO_HINTS, 0.3),
        (None, Hints(reschedulable=True), 0.3),
        (COMPUTE, NO_HINTS, 0.5),
        (COMPUTE, Hints(reschedulable=False), 0.65),
        (replace(COMPUTE, energy=EnergyUse(70.0, 30.0)), NO_HINTS, 0.7),
        (replace(COMPUTE, energy=EnergyUse(70.0, 30.0)), Hints(WorkloadClass.STANDARD), 0.85),
        # Package energy alone has nothing to be compared with.
        (replace(COMPUTE, energy=EnergyUse(70.0)), NO_HINTS, 0.5),
    ],
)
def test_confidence(use: Use | None, hints: Hints, confidence: float) -> None:
    assert classify(hints, use).confidence == confidence


def test_only_people_make_a_workload_performance() -> None:
    busy = Use(cpu_util_pct=100.0, memory_pressure_pct=0.0, gpu_util_pct=100.0)
    assert classify(NO_HINTS, busy).workload_class is WorkloadClass.STANDARD
    assert classify(NO_HINTS, busy).reschedulable is None
    assert classify(Hints(WorkloadClass.PERFORMANCE), busy).workload_class is WorkloadClass.PERFORMANCE


def test_annotations_win_over_everything_measured() -> None:
    hints = Hints(cpu_sensitivity=Level.LOW, gpu_sensitivity=Level.MEDIUM)
    use = replace(COMPUTE, gpu_util_pct=92.0, energy=EnergyUse(80.0, 10.0, 10.0))
    result = classify(hints, use)
    assert (result.cpu.cap_sensitivity, result.gpu.cap_sensitivity) == (Level.LOW, GpuLevel.MEDIUM)
    assert (result.cpu.bound, result.gpu.bound) == (CpuBound.COMPUTE, GpuBound.COMPUTE)
    assert result.reason == (
        "cpu-intensity=high (util 90%≥75%); cpu-bound=compute, cap-sensitivity=high (util 90%>70%); "
        "gpu-intensity=high (util 92%≥70%); "
        "kepler override: cpu-bound=compute, cap-sensitivity=high (cpu-energy ratio 0.80>0.70); "
        "cpu-cap-sensitivity=low (annotation override); gpu-cap-sensitivity=medium (annotation override)"
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.001, 100.001])
@pytest.mark.parametrize("name", ["cpu_util_pct", "memory_pressure_pct", "gpu_util_pct", "gpu_memory_activity_pct"])
def test_what_cannot_be_measured_is_refused(name: str, value: float) -> None:
    values: dict[str, Any] = {"cpu_util_pct": 1.0, "gpu_util_pct": 1.0, name: value}
    with pytest.raises(InvalidQuantityError, match=name):
        classify(NO_HINTS, Use(**values))


@pytest.mark.parametrize("energy", [EnergyUse(math.nan), EnergyUse(-1.0), EnergyUse(1.0, math.inf)])
def test_energy_that_cannot_be_is_refused(energy: EnergyUse) -> None:
    with pytest.raises(InvalidQuantityError, match="_j"):
        classify(NO_HINTS, replace(COMPUTE, energy=energy))


FULL = replace(MEMORY, energy=EnergyUse(70.0, 30.0))


@pytest.mark.parametrize(
    ("unmeasured_s", "confidence"),
    [
        (-5.0, 0.85),
        (0.0, 0.85),
        (899.9, 0.85),
        (900.0, 0.75),
        (2699.0, 0.65),
        (4500.0, 0.35),
        (5400.0, 0.3),
        (1e9, 0.3),
    ],
)
def test_confidence_falls_step_by_step(unmeasured_s: float, confidence: float) -> None:
    hints = Hints(reschedulable=True)
    measured = classify(hints, FULL)
    result = decayed(measured, hints, unmeasured_s)
    assert result.confidence == confidence
    assert (result.cpu, result.gpu) == (measured.cpu, measured.gpu)
    missing = "; " + METRICS_MISSING if confidence < 0.85 else ""
    assert result.reason == measured.reason + missing


def test_annotations_win_while_metrics_are_missing() -> None:
    measured = classify(Hints(WorkloadClass.PERFORMANCE, cpu_sensitivity=Level.HIGH), MEMORY)
    hints = Hints(reschedulable=False, cpu_sensitivity=Level.MEDIUM)
    result = decayed(decayed(measured, hints, 900.0), hints, 900.0)
    assert (result.workload_class, result.reschedulable) == (WorkloadClass.STANDARD, False)
    assert result.cpu.cap_sensitivity is Level.MEDIUM
    assert result.reason == (
        "cpu-intensity=medium (util 45%); cpu-bound=memory (mem-pressure 68%>50%); "
        "cpu-cap-sensitivity=medium (annotation override); metrics missing (last values kept)"
    )


def test_an_annotation_replaces_what_was_learned_before_metrics_went() -> None:
    measured = classify(NO_HINTS, MEMORY)
    learned = replace(measured, reason=measured.reason + "; learned: gpu-cap-sensitivity=high (busy 96%>89%)")
    result = decayed(learned, Hints(gpu_sensitivity=Level.LOW), 0.0)
    assert result.reason == measured.reason + "; gpu-cap-sensitivity=low (annotation override)"


def test_an_annotation_that_went_leaves_its_value_until_metrics_are_back() -> None:
    measured = classify(Hints(cpu_sensitivity=Level.HIGH), MEMORY)
    result = decayed(measured, NO_HINTS, 900.0)
    assert result.cpu.cap_sensitivity is Level.HIGH
    assert "cpu-cap-sensitivity=high (annotation override)" in result.reason


def test_what_was_never_measured_stays_a_hint() -> None:
    hints = Hints(gpu_sensitivity=Level.LOW)
    assert decayed(classify(NO_HINTS, None), hints, 1e6) == classify(hints, None)


def test_decay_refuses_times_that_cannot_be() -> None:
    with pytest.raises(InvalidQuantityError, match="unmeasured_s"):
        decayed(classify(NO_HINTS, MEMORY), NO_HINTS, math.nan)
    with pytest.raises(InvalidQuantityError, match="step_s"):
        decayed(classify(NO_HINTS, MEMORY), NO_HINTS, 1.0, step_s=0.0)
