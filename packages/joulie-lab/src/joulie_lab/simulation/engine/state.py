"""The state of a run as plain arrays, which the compiled loop reads and writes.

Named tuples of arrays are used because compiled functions take them without a copy. Each field has its unit and shape.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from joulie.domain.units import BoolArray, FloatArray, IntArray
from joulie_lab.simulation.engine.index import Bitsets, Trees

RING = 10
"""Number of samples of the published power trend."""


class Pools(NamedTuple):
    """Hardware by pool; the last axis of every array is the pool."""

    start: IntArray
    cores: IntArray
    gpus: IntArray
    cpu_max_w: FloatArray
    gpu_max_w: FloatArray
    gpu_idle_w: FloatArray
    peak_w: FloatArray
    cpu_view: IntArray
    """Index of the view for jobs without GPUs."""
    gpu_view: IntArray
    """Index of the view for jobs with GPUs; -1 if the pool has none."""
    class_base: IntArray
    """Index of the pool's first allocation class; class = base + free_cores * (gpus + 1) + free_gpus."""


class Shapes(NamedTuple):
    """Distinct requests; all jobs of a shape have the same feasible nodes and scores."""

    cores: IntArray
    gpus: IntArray
    performance: BoolArray
    marginal_w: FloatArray
    """Shape ``(n_pools, n_shapes)``."""
    offset: FloatArray
    """Reduction of a key by the marginal power, points, shape ``(n_pools, n_shapes)``."""
    preference: FloatArray
    """First criterion of class-based scores, shape ``(n_pools, n_shapes, 2)``: on a node in use, on an empty one."""


class Jobs(NamedTuple):
    """The jobs; every array has shape ``(n_jobs,)``."""

    first_step: npt.NDArray[np.int32]
    """First step at which the job has arrived."""
    length_steps: npt.NDArray[np.int32]
    shape: npt.NDArray[np.int16]
    cpu_util: FloatArray
    gpu_util: FloatArray


class Rules(NamedTuple):
    """Parameters of the scheduler and of the node power model."""

    family: int
    trend: int
    trend_low: float
    trend_high: float
    gpu_penalty: bool
    packs_by_power: bool
    """Whether family BY_KEY packs by power instead of by allocation."""
    busy_fraction: float
    """Base power of a node with jobs, as a share of its CPU maximum."""
    empty_fraction: float
    """Base power of an awake node without jobs, as a share of its CPU maximum."""
    w_per_core: float
    """Power of a fully used core, W; 0 distributes 0.7 of the CPU's maximum over the cores, as published."""
    gpu_performance_coeff: float
    gpu_standard_coeff: float
    step_min: float
    # Queue mode.
    queueing: bool
    sleep_after_steps: int
    wake_steps: int
    sleep_fraction: float


class ClassOrder(NamedTuple):
    """Order of the allocation classes by view, best first."""

    score: FloatArray
    """Shape ``(n_views, n_classes)``; only entries of the view's pool are used."""
    rank: npt.NDArray[np.int32]
    """Shape ``(n_views, n_classes)``: position of a class in the order of its view."""
    by_rank: npt.NDArray[np.int32]
    """Shape ``(n_views, n_classes)``: class at a position."""
    free_cores: IntArray
    free_gpus: IntArray


class Nodes(NamedTuple):
    """State of the nodes; every array has shape ``(n_nodes,)`` unless stated otherwise."""

    pool: npt.NDArray[np.int32]
    free_cores: IntArray
    free_gpus: IntArray
    power_w: FloatArray
    cpu_sum_w: FloatArray
    gpu_sum_w: FloatArray
    first_job: npt.NDArray[np.int32]
    last_job: npt.NDArray[np.int32]
    ring_w: FloatArray
    """Ring of the power at the last steps, W, shape ``(n_nodes, RING)``, step s in column s mod RING."""
    steady_steps: IntArray
    """Number of latest steps with unchanged power, within the ring."""
    trend_w_per_min: FloatArray
    trend_points: FloatArray
    active: BoolArray
    """Whether the node is in the active list: its trend may change."""
    asleep: BoolArray
    empty_step: IntArray
    """Step at which the node became empty."""
    sleep_scheduled: BoolArray
    """Whether the node has an entry in the calendar of nodes that may fall asleep."""
    standby: BoolArray
    """Whether the node is empty and unchanging; only the lowest such node of a pool has a leaf."""


class Links(NamedTuple):
    """Linked lists of jobs and nodes; -1 ends a list."""

    next_on_node: npt.NDArray[np.int32]
    next_ending: npt.NDArray[np.int32]
    node_of_job: npt.NDArray[np.int32]
    end_step: npt.NDArray[np.int32]
    ending_head: npt.NDArray[np.int32]
    """First job that ends at a step, shape ``(n_steps + 1,)``."""
    next_to_sleep: npt.NDArray[np.int32]
    sleep_head: npt.NDArray[np.int32]
    """First node that may fall asleep at a step, shape ``(n_steps + 1,)``."""


class Scratch(NamedTuple):
    """Work lists and counters."""

    active_list: npt.NDArray[np.int32]
    touched_list: npt.NDArray[np.int32]
    touched: BoolArray
    waiting: npt.NDArray[np.int32]
    refused_step: npt.NDArray[np.int32]
    """Last step at which a shape had no feasible node, shape ``(n_shapes,)``."""
    cluster_ring_w: FloatArray
    stack: IntArray
    counters: IntArray


N_ACTIVE, N_WAITING, NEXT_JOB, RUNNING, AWAKE, WAKES, N_UP = range(7)
N_COUNTERS = 7


class Record(NamedTuple):
    """Recorded series, shape ``(n_steps,)``, and the start step of each job, shape ``(n_jobs,)``."""

    it_w: FloatArray
    arrived: IntArray
    dropped: IntArray
    running: IntArray
    waiting: IntArray
    awake_nodes: IntArray
    start_step: npt.NDArray[np.int32]


class Indexes(NamedTuple):
    """The placement indexes."""

    trees: Trees
    classes: Bitsets
    """Nodes of each class, as positions within the pool."""
    occupied: Bitsets
    """Ranks of the non-empty classes, by view."""
    members: IntArray
    """Number of nodes in each class."""
    standby: Bitsets
    """Nodes on standby, by pool."""


WAITED_MIN, NOW_W = range(2)
N_GAUGES = 2


class EnergyRules(NamedTuple):
    """Parameters of `EnergyPolicy` for this cluster."""

    governed: bool
    """Whether the ramp governor may hold jobs back."""
    oracle: bool
    """Whether durations are known instead of learned: a reference, not a policy."""
    wake_stay_min: float
    wake_min: float
    cores_per_gpu: float
    prior_mean_min: float
    prior_weight_min: float
    heavy_w: float
    limits: tuple[float, float, float, float, float, float]
    """Limits of `energy.may_hold`."""


class EnergyState(NamedTuple):
    """Learned statistics and expected node states of the policy; classes are those of the job table."""

    edges_min: FloatArray
    bin_of_minute: npt.NDArray[np.int32]
    ends: FloatArray
    """Number of ended jobs by class and age bin, shape ``(n_classes, n_bins)``; likewise the next three."""
    at_risk_min: FloatArray
    hazard_per_min: FloatArray
    remaining_at_edge_min: FloatArray
    """Mean residual life at the start of each bin."""
    ended: FloatArray
    """Number of ended jobs by class, shape ``(n_classes,)``; likewise the next two."""
    cpu_util_sum: FloatArray
    gpu_util_sum: FloatArray
    job_class: npt.NDArray[np.int8]
    base_w: FloatArray
    """Base power above that at rest by pool, W; likewise the next."""
    stranded_gpu_w: FloatArray
    surcharge_w_per_core: float
    busy_min: FloatArray
    """Expected busy time of each node, min."""
    up: npt.NDArray[np.int32]
    """Nodes that are not at rest."""
    is_up: BoolArray
    resting: Bitsets
    """Nodes at rest, by pool."""
    gauges: FloatArray
    """`WAITED_MIN` and `NOW_W`: total waiting time so far, min; cluster power including starts of this step, W."""
    merged: npt.NDArray[np.int32]
    """Buffer for a second list of waiting jobs."""


class Run(NamedTuple):
    """The whole state of a run."""

    pools: Pools
    shapes: Shapes
    jobs: Jobs
    rules: Rules
    energy_rules: EnergyRules
    order: ClassOrder
    nodes: Nodes
    links: Links
    scratch: Scratch
    indexes: Indexes
    energy: EnergyState
    record: Record
    rng: np.random.Generator
