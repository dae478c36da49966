"""The extender's score by marginal energy: the node to which a pod adds the least power wins.

What a pod adds depends on the node in three ways. GPUs of one family draw more for it than those of another, and less
under a cap; the first work on idle CPUs adds a large step of power, so that a busy node is cheaper than an idle one;
and cores differ. docs/design/0017 has the reasons and the limitations.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from joulie.domain.marginal import FullLoad, PodRequests, gpu_coefficient
from joulie.domain.scoring.extender import NodeClass, PodView, TwinView, extender_score
from joulie.domain.scoring.formulas import NEUTRAL_SCORE
from joulie.domain.units import FloatArray

FIRST_STEP_SHARE = 0.18
"""Power that the first work adds to resting CPUs, as a share of their TDP: 0.11 to 0.20 in the catalogue's curves from
0 to 10 % utilisation."""
AWAKE_SHARE = 0.5
"""Measured power, as a share of the CPUs' TDP, from which a node counts as working already; below it in proportion."""
MIN_ADDED_W = 1.0
"""Minimum power that a pod adds, W: that of a pod without requests."""
RESERVE_POINTS = 20.0
"""Points that a standard pod loses on a performance node, which performance pods need."""


class ScoringAim(StrEnum):
    """SCORING: the aim of the extender's score."""

    HEADROOM = "headroom"
    """Power left under its limit, cool air, a falling trend: the published formula."""
    ENERGY = "energy"
    """The least added power."""
    MARGINAL = "marginal"
    """The least energy over the pod's expected duration, nodes that can rest instead included."""
    FRUGAL = "frugal"
    """The least free GPU made useless and the least added power, for pods that share GPUs."""


def node_scores(
    scoring: ScoringAim, pod: PodView, requests: PodRequests, twins: TwinView, load: FullLoad
) -> FloatArray:
    """Score of each node by `extender_score` or by `energy_score`, 0..100, shape ``(n_nodes,)``."""
    if scoring is ScoringAim.ENERGY:
        return energy_score(pod, requests, twins, load)
    return extender_score(pod, twins, load.marginal_w(requests, performance=pod.performance))


def energy_score(pod: PodView, requests: PodRequests, twins: TwinView, load: FullLoad) -> FloatArray:
    """Score of each node for the pod, 0..100, shape ``(n_nodes,)``: 100 where it adds least, in inverse proportion.

    Args:
        pod: the pod.
        requests: what it asks for.
        twins: the candidate nodes; those without a fresh twin score neutral.
        load: what they draw at full load.
    """
    if not twins.fresh.any():
        return np.full(twins.fresh.shape, NEUTRAL_SCORE)
    added_w = _added_w(pod, requests, twins, load)
    points = 100.0 * added_w[twins.fresh].min() / added_w
    if not pod.performance:
        points = points - np.where(twins.node_class == NodeClass.PERFORMANCE, RESERVE_POINTS, 0.0)
    score = np.where(twins.fresh, np.clip(points, 0.0, 100.0), NEUTRAL_SCORE)
    if pod.reschedulable is False:
        score = np.where(twins.node_class == NodeClass.DRAINING, 0.0, score)
    return np.asarray(score)


def _added_w(pod: PodView, requests: PodRequests, twins: TwinView, load: FullLoad) -> FloatArray:
    """Power that the pod adds to each node, W."""
    fresh = twins.fresh
    share = np.minimum(gpu_coefficient(pod.performance), np.where(fresh, twins.gpu_cap_fraction, 1.0))
    gpus_w = requests.gpus * load.gpu_max_w * share
    cores_w = load.marginal_w(PodRequests(requests.cores, requests.memory_gib), performance=pod.performance)
    awake = np.clip(np.where(fresh, twins.measured_w, 0.0) / (AWAKE_SHARE * load.cpu_max_w), 0.0, 1.0)
    added_w = gpus_w + cores_w + FIRST_STEP_SHARE * load.cpu_max_w * (1.0 - awake)
    return np.maximum(added_w, MIN_ADDED_W)
