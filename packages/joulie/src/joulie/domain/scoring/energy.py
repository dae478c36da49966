"""`marginal-energy`: place each job where it adds the least energy; a ramp governor smooths the starts.

Nodes that run nothing can be at rest (asleep, or merely empty where nodes cannot sleep) at a fraction of their base
power. So what a placement costs is not the job's own power, which it draws anywhere, but how much longer it keeps a
node from resting, what it makes unusable, and whether it takes a GPU node for work that needs none. docs/design/0006
has the derivation and the ablations.

Like `formulas`, these are bare arithmetic on scalars or arrays, so that the simulator compiles the same source.
Costs are in W min, the node's base power times minutes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from joulie.domain.units import FloatLike, non_negative, positive


@dataclass(frozen=True)
class EnergyPolicy:
    """Settings of `marginal-energy` and its ramp governor; the defaults were tuned on seeds 1-6 of benchmark B2.

    Attributes:
        wake_stay_min: minutes that a woken node is expected to stay up beyond the job that wakes it.
        stranded_gpu: price of a stranded GPU, in base powers of its node per GPU.
        gpu_node_surcharge: surcharge for a core of CPU work on a GPU node, in base powers of a CPU node per core.
        cores_per_gpu: free cores that a free GPU needs to stay usable.
        prior_mean_min: expected duration of a class of which no job has ended.
        prior_weight_min: job minutes that this expectation is worth.
        rise_fraction: rise of power that the governor allows in a minute, of the cluster's peak.
        fill_fraction: heavy jobs are kept to fill falls deeper than this, of the cluster's peak.
        heavy_fraction: power from which a job is heavy, of the cluster's peak.
        hold_limit_min: longest delay by the governor.
        wait_budget_min: mean wait above which the governor holds nothing.
        wake_budget_min: mean wait above which it holds no job to avoid a wake.
        wake_hold_min: how long a job is held before it may wake a node.
    """

    wake_stay_min: float = 100.0
    stranded_gpu: float = 1.0
    gpu_node_surcharge: float = 1.0
    cores_per_gpu: float = 4.0
    prior_mean_min: float = 60.0
    prior_weight_min: float = 60.0
    rise_fraction: float = 0.006
    fill_fraction: float = 0.002
    heavy_fraction: float = 0.0002
    hold_limit_min: float = 5.0
    wait_budget_min: float = 0.09
    wake_budget_min: float = 0.08
    wake_hold_min: float = 1.0

    def __post_init__(self) -> None:
        for field in fields(self):
            non_negative(field.name, getattr(self, field.name))
        for name in ("cores_per_gpu", "prior_mean_min", "prior_weight_min"):
            positive(name, getattr(self, name))


def stranded_gpus(free_gpus: FloatLike, free_cores: FloatLike, cores_per_gpu: float) -> FloatLike:
    """Free GPUs for which a node has no cores left."""
    return np.maximum(0.0, free_gpus - free_cores / cores_per_gpu)


def extension_min(duration_min: FloatLike, busy_min: FloatLike) -> FloatLike:
    """How much longer a job keeps a running node up that would be busy for `busy_min` anyway."""
    return np.maximum(0.0, duration_min - busy_min)


def placement_cost_w_min(
    base_w: FloatLike, up_min: FloatLike, wake_w_min: FloatLike, unusable_w: FloatLike, duration_min: FloatLike
) -> FloatLike:
    """Energy that a placement adds beyond the job's own, W min.

    Args:
        base_w: base power of the node above its power at rest, W.
        up_min: minutes that the placement keeps the node from resting.
        wake_w_min: what the job draws while the node wakes, W min.
        unusable_w: price of the GPUs stranded and surcharge for CPU work on a GPU node, W.
        duration_min: expected duration of the job.
    """
    return base_w * up_min + wake_w_min + unusable_w * duration_min


def marginal_cost_w_min(
    base_w: FloatLike,
    busy_min: FloatLike,
    wake_w_min: FloatLike,
    has_gpus: FloatLike,
    free_cores: FloatLike,
    free_gpus: FloatLike,
    stranded_gpu_w: FloatLike,
    surcharge_w_per_core: float,
    cores_per_gpu: float,
    duration_min: FloatLike,
    cores: FloatLike,
    gpus: FloatLike,
) -> FloatLike:
    """Cost of a job on a node: the whole rule, for the simulator's kernel, its reference and the extender.

    Args:
        base_w: base power of the node above its power at rest, W.
        busy_min: minutes for which the node would be up anyway; negative where the job keeps it up for longer than its
            own duration: minus the minutes that an awake node has been empty, or minus the minutes that waking takes
            and that a woken node is expected to stay up.
        wake_w_min: what the job draws while the node wakes, W min; 0 where it is awake.
        has_gpus: 1 where the node has GPUs, else 0.
        free_cores: cores of the node that no job has requested.
        free_gpus: GPUs of the node that no job has requested.
        stranded_gpu_w: price of a stranded GPU of the node, W.
        surcharge_w_per_core: surcharge for CPU work on a node with GPUs, W a core.
        cores_per_gpu: free cores that a free GPU needs to stay usable.
        duration_min: expected duration of the job.
        cores: cores that the job requests.
        gpus: GPUs that the job requests.
    """
    before = stranded_gpus(free_gpus, free_cores, cores_per_gpu)
    after = stranded_gpus(free_gpus - gpus, free_cores - cores, cores_per_gpu)
    unusable_w = stranded_gpu_w * (after - before) + surcharge_w_per_core * cores * (gpus == 0.0)
    up_min = extension_min(duration_min, busy_min)
    return placement_cost_w_min(base_w, up_min, wake_w_min, has_gpus * unusable_w, duration_min)


def packing_rank(free_cores: FloatLike, free_gpus: FloatLike, cores_per_gpu_of_node: FloatLike) -> FloatLike:
    """How empty a node is, in cores; among equal costs the fullest node wins."""
    return free_cores + cores_per_gpu_of_node * free_gpus


def may_hold(
    waited_min: float,
    mean_wait_min: float,
    now_w: float,
    rise_w: float,
    before_w: float,
    heavy: bool,
    wakes: bool,
    limits: tuple[float, float, float, float, float, float],
) -> bool:
    """Whether the governor keeps a job for a later minute.

    Args:
        waited_min: how long the job has waited.
        mean_wait_min: mean wait of all jobs so far, were this one held.
        now_w: the cluster's power with the starts of this minute, W.
        rise_w: what the job's start would add, W.
        before_w: the cluster's power a minute ago, W.
        heavy: whether the job is worth keeping to fill a fall.
        wakes: whether the job would wake a node.
        limits: (rise_w, fill_w, hold_limit_min, wait_budget_min, wake_budget_min, wake_hold_min).
    """
    rise_limit_w, fill_w, hold_limit_min, wait_budget_min, wake_budget_min, wake_hold_min = limits
    if waited_min >= hold_limit_min or mean_wait_min > wait_budget_min:
        return False
    if now_w + rise_w > before_w + rise_limit_w:
        return True
    if heavy and now_w + rise_w > before_w - fill_w:
        return True
    return wakes and waited_min < wake_hold_min and mean_wait_min <= wake_budget_min
