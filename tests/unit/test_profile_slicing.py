import pytest

from joulie.domain.profiles.profile import GpuProfile
from joulie.domain.profiles.slicing import SlicingRecommendation, recommend_slicing
from joulie.domain.workload import GpuLevel, SlicingMode

BOTH = ("mig", "time-slicing")


def of(*levels: str) -> list[GpuProfile]:
    return [GpuProfile(GpuLevel(level)) for level in levels]


def recommended(profiles: list[GpuProfile], modes: tuple[str, ...] = BOTH) -> SlicingRecommendation:
    result = recommend_slicing(profiles, 8, modes)
    assert result is not None
    return result


@pytest.mark.parametrize(
    ("level", "mode", "slice_type", "per_gpu", "total"),
    [
        ("low", SlicingMode.MIG, "1g.10gb", 7, 56),
        ("medium", SlicingMode.MIG, "3g.40gb", 2, 16),
        ("high", SlicingMode.NONE, None, 1, 8),
        ("none", SlicingMode.TIME_SLICING, None, None, None),
    ],
)
def test_the_majority_decides(
    level: str, mode: SlicingMode, slice_type: str | None, per_gpu: int | None, total: int | None
) -> None:
    others = [other for other in ("low", "medium", "high") if other != level]
    result = recommended(of(level, level, *others))
    assert (result.mode, result.slice_type, result.slices_per_gpu, result.total_slices) == (
        mode,
        slice_type,
        per_gpu,
        total,
    )
    assert result.reason.startswith(f"2 of {2 + len(others)} GPU workloads are of {level} intensity: ")


def test_nothing_seen_is_shared_by_time_without_confidence() -> None:
    unknown = [GpuProfile()]
    result = recommended(unknown)
    assert (result.mode, result.confidence) == (SlicingMode.TIME_SLICING, 0.0)
    assert result.reason == "no GPU workload seen: pods can share GPUs by time"


@pytest.mark.parametrize(("count", "confidence"), [(1, 0.1), (9, 0.9), (10, 1.0), (30, 1.0)])
def test_confidence_grows_with_the_number_of_profiles(count: int, confidence: float) -> None:
    assert recommended(of(*["low"] * count)).confidence == pytest.approx(confidence)


def test_among_equals_the_larger_share_wins() -> None:
    assert recommended(of("low", "high")).mode is SlicingMode.NONE
    assert recommended(of("low", "medium")).slice_type == "3g.40gb"


def test_gpus_that_cannot_be_partitioned_are_shared_by_time() -> None:
    assert recommended(of("low"), ("time-slicing",)).mode is SlicingMode.TIME_SLICING
    assert recommended(of("high"), ("time-slicing",)).mode is SlicingMode.NONE
    assert recommended([], ("mig",)).mode is SlicingMode.NONE


@pytest.mark.parametrize(("gpus", "modes"), [(0, BOTH), (8, ()), (8, ("none",)), (8, ("mps",))])
def test_nothing_is_recommended_without_gpus_or_support(gpus: int, modes: tuple[str, ...]) -> None:
    assert recommend_slicing(of("low"), gpus, modes) is None


def test_the_gain_follows_from_what_was_measured() -> None:
    light = [GpuProfile(GpuLevel.LOW, avg_utilization_pct=10.0), GpuProfile(GpuLevel.LOW)]
    assert recommended(light).estimated_utilization_gain_pct == pytest.approx(7 * 10.0 - 10.0)
    # One that wants more than its partition has gets no more than that.
    busy = [GpuProfile(GpuLevel.LOW, avg_utilization_pct=20.0)]
    assert recommended(busy).estimated_utilization_gain_pct == pytest.approx(100.0 - 20.0)
    medium = [GpuProfile(GpuLevel.MEDIUM, avg_utilization_pct=69.0)]
    assert recommended(medium).estimated_utilization_gain_pct == pytest.approx(600.0 / 7.0 - 69.0)


def test_an_unknown_gain_is_not_zero() -> None:
    assert recommended(of("low")).estimated_utilization_gain_pct is None
    assert recommended(of("none")).estimated_utilization_gain_pct is None
    assert recommended(of("high")).estimated_utilization_gain_pct == 0.0
