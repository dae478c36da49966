"""The rescheduler's recommendations, by node and in the API's terms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from joulie.adapters.kubernetes.api.v1alpha1 import (
    GpuSlicingRecommendation,
    RescheduleRecommendation,
    WorkloadReference,
)
from joulie.domain.profiles.reschedule import Cause, Recommendation, Workload
from joulie.domain.profiles.slicing import SlicingRecommendation


@dataclass(frozen=True)
class Advice:
    """Recommendations for one node.

    Attributes:
        reschedule: workloads recommended to move to another node.
        slicing: recommended mode of GPU sharing; None without one.
    """

    reschedule: tuple[RescheduleRecommendation, ...] = ()
    slicing: GpuSlicingRecommendation | None = None


NO_ADVICE = Advice()


class Advisor:
    """Keeps the current recommendations.

    A recommendation keeps its first text while its cause lasts: a text with the latest numbers would cause a write
    after every measurement.

    Attributes:
        recommended: current recommendations by node and workload.
    """

    def __init__(self) -> None:
        self.recommended: dict[tuple[str, Workload], Recommendation] = {}
        self._by_node: dict[str, Advice] = {}

    def for_node(self, node: str) -> Advice:
        """The recommendations for a node."""
        return self._by_node.get(node, NO_ADVICE)

    def update(self, recommendations: Iterable[Recommendation], slicing: Mapping[str, SlicingRecommendation]) -> None:
        """Replace the recommendations; one that repeats an earlier one with the same cause keeps its text."""
        before, self.recommended = self.recommended, {}
        by_node: dict[str, list[RescheduleRecommendation]] = {}
        for new in recommendations:
            key = new.node, new.workload
            old = before.get(key)
            self.recommended[key] = kept = old if old is not None and old.cause is new.cause else new
            by_node.setdefault(new.node, []).append(_reschedule(kept))
        self._by_node = {
            node: Advice(tuple(by_node.get(node, ())), _slicing(slicing.get(node)))
            for node in by_node.keys() | slicing.keys()
        }

    def reasons_by_workload(self) -> dict[Workload, str]:
        """Reason to move each workload; if several nodes have one, that of the first cause."""
        order = list(Cause)
        ranked = sorted(self.recommended.values(), key=lambda one: (order.index(one.cause), one.node), reverse=True)
        return {one.workload: f"{one.node}: {one.reason}" for one in ranked}


def _reschedule(recommendation: Recommendation) -> RescheduleRecommendation:
    workload = recommendation.workload
    return RescheduleRecommendation(
        WorkloadReference(workload.kind, workload.name, workload.namespace), recommendation.reason
    )


def _slicing(found: SlicingRecommendation | None) -> GpuSlicingRecommendation | None:
    if found is None:
        return None
    gain_pct = found.estimated_utilization_gain_pct
    return GpuSlicingRecommendation(
        mode=found.mode.value,
        slice_type=found.slice_type,
        slices_per_gpu=found.slices_per_gpu,
        total_slices=found.total_slices,
        reason=found.reason,
        estimated_utilization_gain=None if gain_pct is None else round(gain_pct, 1),
        confidence=found.confidence,
    )
