"""The state of a run as plain arrays: what the compiled loop reads and writes.

Named tuples of arrays, since compiled functions take them without a copy. Units and shapes stand by each name.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from joulie.domain.units import BoolArray, FloatArray, IntArray
from joulie_lab.simulation.engine.index import Bitsets, Trees

RING = 10
"""Samples of the published power trend."""


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
    """View of jobs without GPUs on this pool."""
    gpu_view: IntArray
    """View of jobs with GPUs, or -1 where the pool has none."""
    class_base: IntArray
    """First class of the pool; class = base + free_cores * (gpus + 1) + free_gpus."""


class Shapes(NamedTuple):
    """Distinct requests: all jobs of one shape fit and score alike."""

    cores: IntArray
    gpus: IntArray
    performance: BoolArray
    marginal_w: FloatArray
    """Shape ``(n_pools, n_shapes)``."""
    offset: FloatArray
    """Points by which the marginal power lowers a key, shape ``(n_pools, n_shapes)``."""
    preference: FloatArray
    """First criterion of class-based scores, shape ``(n_pools, n_shapes, 2)``: on a node in use, on an empty one."""


class Jobs(NamedTuple):
    """Jobs by row, shape ``(n_jobs,)``."""

    first_step: npt.NDArray[np.int32]
    """First step at whose time the job has arrived."""
    length_steps: npt.NDArray[np.int32]
    shape: npt.NDArray[np.int16]
    cpu_util: FloatArray
    gpu_util: FloatArray


class Rules(NamedTuple):
    """The scheduler and the node power model, as numbers."""

    family: int
    trend: int
    trend_low: float
    trend_high: float
    gpu_penalty: bool
    packs_by_power: bool
    """Family BY_KEY: pack by power rather than by allocation."""
    busy_fraction: float
    """Base power of a node with jobs over its CPU maximum."""
    empty_fraction: float
    """Base power of an awake node without jobs over its CPU maximum."""
    w_per_core: float
    """Power of a fully used core, W; 0 spreads 0.7 of the CPU's maximum over the cores, as published."""
    gpu_performance_coeff: float
    gpu_standard_coeff: float
    step_min: float
    # Queue mode.
    queueing: bool
    sleep_after_steps: int
    wake_steps: int
    sleep_fraction: float


class ClassOrder(NamedTuple):
    """Classes of allocation by view, best first."""

    score: FloatArray
    """Shape ``(n_views, n_classes)``; only the classes of the view's pool count."""
    rank: npt.NDArray[np.int32]
    """Shape ``(n_views, n_classes)``: position of a class in the order of its view."""
    by_rank: npt.NDArray[np.int32]
    """Shape ``(n_views, n_classes)``: class at a position."""
    free_cores: IntArray
    free_gpus: IntArray


class Nodes(NamedTuple):
    """State by node; every array has shape ``(n_nodes,)`` unless it says otherwise."""

    pool: npt.NDArray[np.int32]
    free_cores: IntArray
    free_gpus: IntArray
    power_w: FloatArray
    cpu_sum_w: FloatArray
    gpu_sum_w: FloatArray
    first_job: npt.NDArray[np.int32]
    last_job: npt.NDArray[np.int32]
    ring_w: FloatArray
    """Power at the last steps, shape ``(n_nodes, RING)``, step s in column s mod RING."""
    still_steps: IntArray
    """Steps in a row with the same power, as far as the ring knows."""
    trend_w_per_min: FloatArray
    trend_points: FloatArray
    active: BoolArray
    """Whether the node is in the active list: its trend may change."""
    asleep: BoolArray
    empty_step: IntArray
    """Step at which the node became empty."""
    dozing: BoolArray
    """Whether the node is in a list of nodes that may fall asleep."""
    standby: BoolArray
    """Empty and unchanging: represented by the lowest of its kind, not by a leaf."""


class Links(NamedTuple):
    """Linked lists through jobs and nodes; -1 ends a list."""

    next_on_node: npt.NDArray[np.int32]
    next_ending: npt.NDArray[np.int32]
    node_of_job: npt.NDArray[np.int32]
    end_step: npt.NDArray[np.int32]
    ending_head: npt.NDArray[np.int32]
    """First job that ends at a step, shape ``(n_steps + 1,)``."""
    next_dozing: npt.NDArray[np.int32]
    dozing_head: npt.NDArray[np.int32]
    """First node that may fall asleep at a step, shape ``(n_steps + 1,)``."""


class Scratch(NamedTuple):
    """Lists that live from step to step, and counters."""

    active_list: npt.NDArray[np.int32]
    touched_list: npt.NDArray[np.int32]
    touched: BoolArray
    waiting: npt.NDArray[np.int32]
    refused_step: npt.NDArray[np.int32]
    """Last step at which a shape found no node, shape ``(n_shapes,)``."""
    cluster_ring_w: FloatArray
    stack: IntArray
    counters: IntArray


N_ACTIVE, N_WAITING, NEXT_JOB, RUNNING, AWAKE, WAKES, N_UP = range(7)
N_COUNTERS = 7


class Record(NamedTuple):
    """What is written down, shape ``(n_steps,)``, and the start step of each job, shape ``(n_jobs,)``."""

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
    """Members of each class, positions within the pool."""
    occupied: Bitsets
    """By view: ranks of the classes that have members."""
    members: IntArray
    """Members of each class."""
    standby: Bitsets
    """By pool: nodes on standby."""


WAITED_MIN, NOW_W = range(2)
N_GAUGES = 2


class EnergyRules(NamedTuple):
    """`EnergyPolicy` on this cluster, as numbers."""

    governed: bool
    """Whether the ramp governor may hold jobs back."""
    oracle: bool
    """Durations are known, not learned: a yardstick, not a policy."""
    wake_stay_min: float
    wake_min: float
    cores_per_gpu: float
    prior_mean_min: float
    prior_weight_min: float
    heavy_w: float
    limits: tuple[float, float, float, float, float, float]
    """As `energy.may_hold` takes them."""


class EnergyState(NamedTuple):
    """What the policy knows; classes are those of the job table."""

    edges_min: FloatArray
    bin_of_minute: npt.NDArray[np.int32]
    ends: FloatArray
    """Ends by class and age bin, shape ``(n_classes, n_bins)``; so the next three."""
    at_risk_min: FloatArray
    hazard_per_min: FloatArray
    remaining_at_edge_min: FloatArray
    """Mean residual life at the start of each bin."""
    ended: FloatArray
    """Jobs that ended by class, shape ``(n_classes,)``; so the next two."""
    cpu_util_sum: FloatArray
    gpu_util_sum: FloatArray
    job_class: npt.NDArray[np.int8]
    base_w: FloatArray
    """Base power above that at rest, by pool; so the next."""
    stranded_gpu_w: FloatArray
    surcharge_w_per_core: float
    busy_min: FloatArray
    """Minutes that each node is expected to be busy."""
    up: npt.NDArray[np.int32]
    """Nodes that are not at rest."""
    is_up: BoolArray
    resting: Bitsets
    """By pool: nodes at rest."""
    gauges: FloatArray
    """`WAITED_MIN` and `NOW_W`: minutes waited so far, and the cluster's power with the starts of this step."""
    merged: npt.NDArray[np.int32]
    """Room for a second list of waiting jobs."""


class Run(NamedTuple):
    """All of a run."""

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
