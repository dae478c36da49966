"""The classifier: thresholds on measured use, energy ratios, and annotations, which always win.

Every conclusion leaves a part in the reason, so that people can check it. A part names the cap sensitivity where the
bound alone does not determine it. Numbers in a part are rounded, but never across the threshold that the part is about.

Source: spec, profiles; the form of the reasons is the seed's (WorkloadProfile Guide). The decisions that these leave
open are listed in docs/concepts/workload-profiles.md.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import NamedTuple

from joulie.domain.policy import WorkloadClass
from joulie.domain.profiles.profile import Classification, CpuProfile, EnergyUse, GpuProfile, Hints, Use
from joulie.domain.quantities import finite_number, positive_number
from joulie.domain.workload import CpuBound, GpuBound, GpuLevel, Level

CPU_HIGH_PCT = 75
CPU_MEDIUM_PCT = 30
CPU_COMPUTE_PCT = 65
CPU_SENSITIVE_PCT = 70
CPU_MEMORY_BOUND_PCT = 60
CPU_IO_PCT = 20
MEMORY_PRESSURE_PCT = 50
GPU_HIGH_PCT = 70
GPU_MEDIUM_PCT = 25
GPU_BUSY_PCT = 40
GPU_MEMORY_BOUND_PCT = 60
PACKAGE_ENERGY_RATIO = 0.70
DRAM_ENERGY_RATIO = 0.40

CONFIDENCE_HINTS = 0.3
CONFIDENCE_UTILISATION = 0.5
CONFIDENCE_ENERGY = 0.7
CONFIDENCE_ANNOTATIONS = 0.15
CONFIDENCE_STEP = 0.1
"""Confidence that a classification loses for every step without metrics."""
DECAY_STEP_S = 900.0
"""Length of such a step: the interval of reclassification, s."""

HINTS_ONLY = "hints only (no metrics available)"
METRICS_MISSING = "metrics missing (last values kept)"
_SEPARATOR = "; "


class _Bound(NamedTuple):
    """The CPU bound, and the part of the reason that explains it."""

    bound: CpuBound
    sensitivity: Level
    reason: str


def classify(hints: Hints, use: Use | None) -> Classification:
    """Classify a workload.

    Args:
        hints: its annotations.
        use: its measured use; None where nothing was measured.

    Raises:
        InvalidQuantityError: a measured value is NaN, infinite or out of its range.
    """
    if use is None or not use.measured:
        return _annotated(hints, CpuProfile(), GpuProfile(), [HINTS_ONLY], CONFIDENCE_HINTS)
    _check(use)
    cpu, reasons = _cpu_profile(use)
    gpu, gpu_reasons = _gpu_profile(use)
    reasons += gpu_reasons
    override = None if use.energy is None else _energy_bound(use.energy, use)
    if override is not None:
        cpu = replace(cpu, bound=override.bound, cap_sensitivity=override.sensitivity)
        reasons.append(f"kepler override: {override.reason}")
    return _annotated(hints, cpu, gpu, reasons + _annotation_reasons(hints), _confidence(hints, use))


def decayed(
    previous: Classification, hints: Hints, unmeasured_s: float, step_s: float = DECAY_STEP_S
) -> Classification:
    """A measured classification after its metrics have vanished: the values stay, the confidence falls.

    It falls by `CONFIDENCE_STEP` for every whole step without metrics, down to that of hints. The result may be decayed
    further: two steps at once are the same as one after the other, so nothing but the profile must be remembered.

    Args:
        previous: what was concluded last, measured or already decayed.
        hints: the annotations as they are now, which win.
        unmeasured_s: time since `previous` was concluded, s; one below zero counts as none.
        step_s: length of a step, s.

    Raises:
        InvalidQuantityError: a time is NaN or infinite, or the step not above zero.
    """
    if previous.cpu.avg_utilization_pct is None and previous.gpu.avg_utilization_pct is None:
        return classify(hints, None)
    steps = finite_number("unmeasured_s", unmeasured_s) // positive_number("step_s", step_s)
    fallen = round(previous.confidence - CONFIDENCE_STEP * steps, 6)
    confidence = min(previous.confidence, max(CONFIDENCE_HINTS, fallen))
    current = _annotation_reasons(hints)
    replaced = {METRICS_MISSING, *(_subject(part) for part in current)}
    kept = [part for part in previous.reason.split(_SEPARATOR) if _subject(part) not in replaced]
    fell = confidence < previous.confidence or METRICS_MISSING in previous.reason
    missing = [METRICS_MISSING] if fell else []
    return _annotated(hints, previous.cpu, previous.gpu, [*kept, *current, *missing], confidence)


def _subject(part: str) -> str:
    """What a part of a reason is about, where annotations may replace it; else the part itself."""
    name = part.partition("=")[0].rpartition(": ")[2]  # without who says so, as in "learned: "
    return name if name.endswith("-cap-sensitivity") else part


def _annotated(hints: Hints, cpu: CpuProfile, gpu: GpuProfile, reasons: list[str], confidence: float) -> Classification:
    """The conclusion with everything that people said of the workload."""
    if hints.cpu_sensitivity is not None:
        cpu = replace(cpu, cap_sensitivity=hints.cpu_sensitivity)
    if hints.gpu_sensitivity is not None:
        gpu = replace(gpu, cap_sensitivity=GpuLevel(hints.gpu_sensitivity.value))
    return Classification(
        workload_class=hints.workload_class or WorkloadClass.STANDARD,
        reschedulable=hints.reschedulable,
        cpu=cpu,
        gpu=gpu,
        reason=_SEPARATOR.join(reasons),
        confidence=confidence,
    )


def _annotation_reasons(hints: Hints) -> list[str]:
    said = (("cpu", hints.cpu_sensitivity), ("gpu", hints.gpu_sensitivity))
    return [f"{part}-cap-sensitivity={level} (annotation override)" for part, level in said if level is not None]


def _confidence(hints: Hints, use: Use) -> float:
    energy = use.energy is not None and _tells(use.energy)
    measured = CONFIDENCE_ENERGY if energy else CONFIDENCE_UTILISATION
    return round(min(1.0, measured + (CONFIDENCE_ANNOTATIONS if hints.any else 0.0)), 6)


def _cpu_profile(use: Use) -> tuple[CpuProfile, list[str]]:
    util_pct = use.cpu_util_pct
    if util_pct is None:
        return CpuProfile(), []
    intensity, text = _intensity(util_pct, CPU_HIGH_PCT, CPU_MEDIUM_PCT)
    bound = _cpu_bound(util_pct, use.memory_pressure_pct, use.gpu_util_pct)
    profile = CpuProfile(intensity, bound.bound, util_pct, bound.sensitivity)
    return profile, [f"cpu-intensity={intensity} ({text})", bound.reason]


def _cpu_bound(util_pct: float, pressure_pct: float | None, gpu_util_pct: float | None) -> _Bound:
    """The first rule that holds. Memory pressure that is not known fulfils neither the first nor the second."""
    if pressure_pct is not None and pressure_pct > MEMORY_PRESSURE_PCT and util_pct < CPU_MEMORY_BOUND_PCT:
        shown = _above(pressure_pct, MEMORY_PRESSURE_PCT)
        return _Bound(CpuBound.MEMORY, Level.LOW, f"cpu-bound=memory (mem-pressure {shown})")
    if pressure_pct is not None and pressure_pct < MEMORY_PRESSURE_PCT and util_pct > CPU_COMPUTE_PCT:
        high = util_pct > CPU_SENSITIVE_PCT
        level, limit = (Level.HIGH, CPU_SENSITIVE_PCT) if high else (Level.MEDIUM, CPU_COMPUTE_PCT)
        shown = _above(util_pct, limit, maximum=100 if high else CPU_SENSITIVE_PCT)
        return _Bound(CpuBound.COMPUTE, level, f"cpu-bound=compute, cap-sensitivity={level} (util {shown})")
    if gpu_util_pct is not None and gpu_util_pct > GPU_BUSY_PCT and gpu_util_pct > util_pct:
        shown = _above(gpu_util_pct, GPU_BUSY_PCT)
        return _Bound(CpuBound.MIXED, Level.LOW, f"cpu-bound=mixed, cap-sensitivity=low (gpu-util {shown})")
    if util_pct < CPU_IO_PCT:
        shown = f"{_percent(util_pct, maximum=CPU_IO_PCT - 1)}<{CPU_IO_PCT}%"
        return _Bound(CpuBound.IO, Level.LOW, f"cpu-bound=io (util {shown})")
    pressure = "unknown" if pressure_pct is None else _percent(pressure_pct)
    reason = f"cpu-bound=mixed, cap-sensitivity=medium (util {_percent(util_pct)}, mem-pressure {pressure})"
    return _Bound(CpuBound.MIXED, Level.MEDIUM, reason)


def _energy_bound(energy: EnergyUse, use: Use) -> _Bound | None:
    """The bound that energies prove; None where they do not, or where a required one was not measured."""
    if not energy.dram_j or not _tells(energy):
        return None
    memory = energy.dram_j / (energy.package_j + energy.dram_j)
    if memory > DRAM_ENERGY_RATIO:
        shown = _ratio_above(memory, DRAM_ENERGY_RATIO)
        return _Bound(CpuBound.MEMORY, Level.LOW, f"cpu-bound=memory (mem-energy ratio {shown})")
    gpu_j = _gpu_energy_j(energy, use)
    if gpu_j is None:
        return None
    package = energy.package_j / (energy.package_j + energy.dram_j + gpu_j)
    if package > PACKAGE_ENERGY_RATIO:
        shown = _ratio_above(package, PACKAGE_ENERGY_RATIO)
        return _Bound(
            CpuBound.COMPUTE, Level.HIGH, f"cpu-bound=compute, cap-sensitivity=high (cpu-energy ratio {shown})"
        )
    return None


def _tells(energy: EnergyUse) -> bool:
    """Whether there is anything to compare.

    An energy of zero counts as not measured: a package that works and its memory draw something in any window, and
    exporters show zero where the hardware has no counter.
    """
    return energy.package_j > 0.0 and energy.dram_j is not None and energy.dram_j > 0.0


def _gpu_energy_j(energy: EnergyUse, use: Use) -> float | None:
    """Energy of the workload's GPUs, J: none without GPUs, unknown where GPUs that work show no energy."""
    if not _holds_gpus(use):
        return 0.0
    idle = use.gpu_util_pct == 0.0
    return energy.gpu_j if energy.gpu_j or idle else None


def _holds_gpus(use: Use) -> bool:
    return use.holds_gpus or use.gpu_util_pct is not None


def _gpu_profile(use: Use) -> tuple[GpuProfile, list[str]]:
    util_pct = use.gpu_util_pct
    if not _holds_gpus(use):
        return GpuProfile(GpuLevel.NONE, GpuBound.NONE, None, GpuLevel.NONE), []
    if util_pct is None:
        return GpuProfile(), []
    if util_pct == 0.0:
        idle = GpuProfile(GpuLevel.NONE, GpuBound.NONE, util_pct, GpuLevel.NONE)
        return idle, ["gpu-intensity=none (util 0%)"]
    level, text = _intensity(util_pct, GPU_HIGH_PCT, GPU_MEDIUM_PCT)
    reasons = [f"gpu-intensity={level} ({text})"]
    activity_pct = use.gpu_memory_activity_pct
    if activity_pct is not None and activity_pct > GPU_MEMORY_BOUND_PCT:
        bound = GpuBound.MEMORY
        reasons.append(f"gpu-bound=memory (mem-activity {_above(activity_pct, GPU_MEMORY_BOUND_PCT)})")
    else:
        bound = GpuBound.COMPUTE if util_pct > GPU_BUSY_PCT else GpuBound.MIXED
    return GpuProfile(GpuLevel(level.value), bound, util_pct, _gpu_sensitivity(level, bound)), reasons


def _gpu_sensitivity(intensity: Level, bound: GpuBound) -> GpuLevel:
    if intensity is Level.HIGH and bound is GpuBound.COMPUTE:
        return GpuLevel.HIGH
    return GpuLevel.LOW if intensity is Level.LOW else GpuLevel.MEDIUM


def _intensity(util_pct: float, high_pct: int, medium_pct: int) -> tuple[Level, str]:
    """How hard something works, and the text that shows it."""
    if util_pct >= high_pct:
        return Level.HIGH, f"util {_percent(util_pct, minimum=high_pct)}≥{high_pct}%"
    if util_pct >= medium_pct:
        return Level.MEDIUM, f"util {_percent(util_pct, minimum=medium_pct, maximum=high_pct - 1)}"
    return Level.LOW, f"util {_percent(util_pct, maximum=medium_pct - 1)}"


def _above(value_pct: float, limit_pct: int, maximum: int = 100) -> str:
    return f"{_percent(value_pct, minimum=limit_pct + 1, maximum=maximum)}>{limit_pct}%"


def _percent(value_pct: float, *, minimum: int = 0, maximum: int = 100) -> str:
    """A rounded percentage, kept on its side of the thresholds that it was compared with."""
    return f"{min(max(value_pct, minimum), maximum):.0f}%"


def _ratio_above(ratio: float, limit: float) -> str:
    return f"{max(ratio, limit + 0.01):.2f}>{limit:.2f}"


def _check(use: Use) -> None:
    """Refuse implausible measurements: a bad number must not become a conclusion."""
    for name in ("cpu_util_pct", "memory_pressure_pct", "gpu_util_pct", "gpu_memory_activity_pct"):
        value = getattr(use, name)
        if value is not None:
            finite_number(name, value, minimum=0.0, maximum=100.0)
    if use.energy is not None:
        for field in fields(use.energy):
            value = getattr(use.energy, field.name)
            if value is not None:
                finite_number(field.name, value, minimum=0.0)
