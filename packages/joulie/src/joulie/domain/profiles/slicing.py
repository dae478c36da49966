"""Recommendations on sharing the GPUs of a node, for people; never applied by Joulie.

Source: spec, profiles, GPU slicing. Partition names are those of GPUs with 80 GB; other sizes have the same numbers of
slices under names of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from joulie.domain.profiles.profile import GpuProfile
from joulie.domain.workload import GpuLevel, SlicingMode

ENOUGH_PROFILES = 10
"""Number of profiles from which a recommendation has full confidence."""
_COMPUTE_SLICES = 7
"""Compute slices of a GPU that can be partitioned."""


@dataclass(frozen=True)
class SlicingRecommendation:
    """Recommended sharing of a node's GPUs.

    Attributes:
        mode: by partitions, by time, or not at all.
        slice_type: partition profile; None without partitions.
        slices_per_gpu: slices of each GPU; None where time is shared, for any number of pods may.
        total_slices: slices of the node; None where time is shared.
        reason: why, for people.
        estimated_utilization_gain_pct: points of utilisation that a GPU gains once its slices are filled with workloads
            like the measured ones, 0..100; None where that is not known.
        confidence: how many profiles this rests on, 0..1.
    """

    mode: SlicingMode
    slice_type: str | None
    slices_per_gpu: int | None
    total_slices: int | None
    reason: str
    estimated_utilization_gain_pct: float | None
    confidence: float


class _Partition(NamedTuple):
    slice_type: str
    slices_per_gpu: int
    compute_slices: int


_PARTITIONS = {GpuLevel.LOW: _Partition("1g.10gb", 7, 1), GpuLevel.MEDIUM: _Partition("3g.40gb", 2, 3)}
_LARGEST_FIRST = (GpuLevel.HIGH, GpuLevel.MEDIUM, GpuLevel.LOW, GpuLevel.NONE)


def recommend_slicing(profiles: Sequence[GpuProfile], gpus: int, modes: Iterable[str]) -> SlicingRecommendation | None:
    """What fits most of the workloads on a node; None for a node without GPUs, or whose GPUs cannot be shared.

    Low intensity is served by small partitions, medium by halves, high by whole GPUs; where nothing is known or the
    GPUs idle, time is shared. Among equals the one that takes less away from the workloads wins.

    Args:
        profiles: of the workloads that hold GPUs of the node; those of unknown intensity are left out.
        gpus: GPUs of the node.
        modes: how the node's GPUs can be shared; ways that are not known here are left out.
    """
    supported = {mode for mode in SlicingMode if mode in set(modes)} - {SlicingMode.NONE}
    if gpus <= 0 or not supported:
        return None
    counts = Counter(profile.intensity for profile in profiles if profile.intensity is not None)
    known = sum(counts.values())
    # max takes the first of equals: the larger partition.
    level = max(_LARGEST_FIRST, key=counts.__getitem__) if known else GpuLevel.NONE
    observed = f"{counts[level]} of {known} GPU workloads are of {level} intensity" if known else "no GPU workload seen"
    confidence = min(1.0, known / ENOUGH_PROFILES)
    partition = _PARTITIONS.get(level)
    if partition is not None and SlicingMode.MIG in supported:
        return SlicingRecommendation(
            mode=SlicingMode.MIG,
            slice_type=partition.slice_type,
            slices_per_gpu=partition.slices_per_gpu,
            total_slices=partition.slices_per_gpu * gpus,
            reason=f"{observed}: {partition.slices_per_gpu} partitions for each GPU",
            estimated_utilization_gain_pct=_gain_pct(profiles, level, partition),
            confidence=confidence,
        )
    if level is not GpuLevel.HIGH and SlicingMode.TIME_SLICING in supported:
        reason = f"{observed}: pods can share GPUs by time"
        return SlicingRecommendation(SlicingMode.TIME_SLICING, None, None, None, reason, None, confidence)
    reason = f"{observed}: whole GPUs"
    return SlicingRecommendation(SlicingMode.NONE, None, 1, gpus, reason, 0.0, confidence)


def _gain_pct(profiles: Sequence[GpuProfile], level: GpuLevel, partition: _Partition) -> float | None:
    """What a GPU gains when every partition holds one such workload instead of the GPU holding one alone."""
    utils_pct = [
        profile.avg_utilization_pct
        for profile in profiles
        if profile.intensity is level and profile.avg_utilization_pct is not None
    ]
    if not utils_pct:
        return None
    most_pct = 100.0 * partition.compute_slices / _COMPUTE_SLICES
    alone_pct = sum(utils_pct) / len(utils_pct)
    filled_pct = partition.slices_per_gpu * sum(min(util, most_pct) for util in utils_pct) / len(utils_pct)
    return max(0.0, filled_pct - alone_pct)
