"""SCORING=marginal: the placement rule of `marginal-energy` over the nodes of a cluster.

The cost of a placement is `energy.marginal_cost_w_min`, the function that the simulator's engine compiles. This module
says what its inputs are on a real cluster, and turns costs into an order that survives the integers 0 to 10 of
kube-scheduler's extender protocol: only the cheapest feasible node gets 10. docs/design/0035 has the reasons.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from joulie.domain.scoring.energy import EnergyPolicy, marginal_cost_w_min, packing_rank
from joulie.domain.scoring.extender import WIRE_MAXIMUM
from joulie.domain.scoring.formulas import NEUTRAL_SCORE
from joulie.domain.units import FloatArray, IntArray

SLEEP_AFTER_MIN = 10.0
"""Time for which a node is empty before it counts as at rest, min: that of the equal-work benchmark."""
_POLICY = EnergyPolicy()
_NEUTRAL = round(NEUTRAL_SCORE / 10.0)


@dataclass(frozen=True, eq=False)
class NodeOccupancy:
    """What runs on many nodes; every array has shape ``(n_nodes,)``.

    Attributes:
        base_w: power of a node that is up and idle above that at rest, W; NaN where it is not to be judged.
        busy_min: minutes for which it would be up anyway, see `busy_or_idle_min`.
        cores: cores that pods can request.
        gpus: GPUs that pods can request.
        free_cores: those that no pod has requested.
        free_gpus: those that no pod has requested.
    """

    base_w: FloatArray
    busy_min: FloatArray
    cores: FloatArray
    gpus: FloatArray
    free_cores: FloatArray
    free_gpus: FloatArray

    @property
    def surcharge_w_per_core(self) -> float:
        """Surcharge for CPU work on a GPU node: base power per core of the cheapest node without GPUs, W; 0 if none."""
        without = (self.gpus == 0.0) & np.isfinite(self.base_w)
        return float((self.base_w / self.cores)[without].min(initial=np.inf)) if without.any() else 0.0


@dataclass(frozen=True)
class Job:
    """What the rule needs to know of a job.

    Attributes:
        cores: requested cores.
        gpus: requested GPUs.
        duration_min: expected duration, min.
    """

    cores: float
    gpus: float
    duration_min: float


def busy_or_idle_min(remaining_min: FloatArray, empty_min: FloatArray, n_jobs: IntArray) -> FloatArray:
    """Minutes for which each node would be up anyway, as `energy.marginal_cost_w_min` takes them.

    Args:
        remaining_min: expected minutes until the last job of the node ends.
        empty_min: minutes for which it has been empty.
        n_jobs: number of its jobs.
    """
    at_rest = empty_min >= SLEEP_AFTER_MIN
    return np.where(n_jobs > 0, remaining_min, np.where(at_rest, -_POLICY.wake_stay_min, -empty_min))


def placement_costs(nodes: NodeOccupancy, job: Job, surcharge_w_per_core: float) -> FloatArray:
    """Energy that a job adds on each node beyond its own, W min, shape ``(n_nodes,)``; NaN where it is not judged."""
    base_w = nodes.base_w
    return np.asarray(
        marginal_cost_w_min(
            base_w,
            nodes.busy_min,
            0.0,  # a node that sleeps is no candidate: whoever wakes it has chosen it by its cost
            np.where(nodes.gpus > 0.0, 1.0, 0.0),
            nodes.free_cores,
            nodes.free_gpus,
            _POLICY.stranded_gpu * base_w / np.maximum(1.0, nodes.gpus),
            _POLICY.gpu_node_surcharge * surcharge_w_per_core,
            _POLICY.cores_per_gpu,
            job.duration_min,
            job.cores,
            job.gpus,
        )
    )


def packing_ranks(nodes: NodeOccupancy) -> FloatArray:
    """How empty each node is, in cores; among equal costs the fullest node wins."""
    return np.asarray(packing_rank(nodes.free_cores, nodes.free_gpus, nodes.cores / np.maximum(1.0, nodes.gpus)))


def cheapest(costs_w_min: FloatArray, ranks: FloatArray, number: int) -> Iterator[int]:
    """Indices of the cheapest nodes, which are judged; ties go to the fullest, then to the lowest index."""
    left = np.where(np.isfinite(costs_w_min), costs_w_min, np.inf)
    for _ in range(min(number, len(left))):
        lowest = left.min()
        if not np.isfinite(lowest):
            return
        ties = np.flatnonzero(left == lowest)
        best = int(ties[np.argmin(ranks[ties])])
        yield best
        left[best] = np.inf


def placement_levels(costs_w_min: FloatArray) -> IntArray:
    """Wire scores of the nodes that are not chosen: 9 for the lowest cost to 0 for the highest, 5 where it is NaN."""
    known = np.isfinite(costs_w_min)
    levels = np.where(np.isnan(costs_w_min), _NEUTRAL, 0)
    if known.any():
        costs = costs_w_min[known]
        lowest, highest = float(costs.min()), float(costs.max())
        share = (costs - lowest) / (highest - lowest) if highest > lowest else np.zeros_like(costs)
        levels[known] = np.rint((WIRE_MAXIMUM - 1) * (1.0 - share)).astype(np.int64)
    return levels
