"""The compiled loop that places arriving pods one by one.

A node's score for a request changes only when the node does. Scores are therefore cached by request and node, and
recomputed for nodes that have changed: an arrival visits every node, but computes only a few scores.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from joulie.domain.scoring.fragmentation import (
    GpuRequest,
    NodeKind,
    Outlook,
    TypicalPods,
    cpu_shortage_milli,
    fragmentation_milli,
    joulie_placement,
    joulie_steps,
    node_power_w,
    potential_milli,
    seen_before,
)
from joulie.domain.scoring.sharing import (
    FULL_GPU_MILLI,
    NO_GPU,
    SOCKET_IDLE_W,
    SOCKET_LIMIT_W,
    fits,
    free_milli,
    gpus_with,
    is_part_of_gpu,
    shared_node_power_w,
    sockets_of,
    take,
)
from joulie.domain.units import BoolArray, FloatArray, IntArray
from joulie_lab.adapters.published.openb import Nodes, Pods
from joulie_lab.benchmarks.gpu_sharing.baselines import (
    MAX_SCORE,
    best_fit_score,
    dot_product_score,
    fgd_score,
    gpu_clustering_score,
    gpu_packing_score,
    request_kind,
    tightest_gpu,
)
from joulie_lab.benchmarks.gpu_sharing.policies import (
    BEST_FIT,
    DOT_PRODUCT,
    FGD,
    GPU_CLUSTERING,
    GPU_PACKING,
    JOULIE,
    PWR_FGD,
    RANDOM,
)
from joulie_lab.simulation.compiled import compilable, compiled, compiled_inner

for _formula in (
    best_fit_score,
    cpu_shortage_milli,
    dot_product_score,
    fgd_score,
    fits,
    fragmentation_milli,
    free_milli,
    gpu_clustering_score,
    gpu_packing_score,
    gpus_with,
    is_part_of_gpu,
    joulie_steps,
    request_kind,
    seen_before,
    sockets_of,
    shared_node_power_w,
    take,
    tightest_gpu,
    potential_milli,
    node_power_w,
    joulie_placement,
):
    compilable(_formula)

NOWHERE = -1


class Scoring(NamedTuple):
    """Parameters of the scores.

    Attributes:
        policy: constant of `joulie_lab.benchmarks.gpu_sharing.policies`.
        at_random: whether equals are drawn from, instead of the first taken.
        power_weight: see `Policy`.
        cpu_milli_per_gpu: see `joulie.domain.scoring.fragmentation.cpu_shortage_milli`.
        typical: the pods to expect.
        idle_w: of one GPU without pods by model, W, shape ``(n_models,)``.
        limit_w: of one with pods, W.
    """

    policy: int
    at_random: bool
    power_weight: float
    cpu_milli_per_gpu: float
    typical: TypicalPods
    idle_w: FloatArray
    limit_w: FloatArray


class State(NamedTuple):
    """What changes, arrays of shape ``(n_nodes,)`` but `gpu_left` of ``(n_nodes, most GPUs)``.

    Attributes:
        cpu_left: thousandths of a CPU.
        memory_left: MiB.
        gpu_left: thousandths by GPU; 0 beyond the node's last.
        kinds: bits of `request_kind` of the pods on the node.
        version: number of pods on the node, plus one.
        potential: of the node, milli-GPU.
        power_w: of the node.
    """

    cpu_left: IntArray
    memory_left: IntArray
    gpu_left: IntArray
    kinds: IntArray
    version: IntArray
    potential: FloatArray
    power_w: FloatArray


class Known(NamedTuple):
    """Cached results by request and node, arrays of shape ``(n_requests, n_nodes)``.

    Attributes:
        version: of the node then; 0 for never.
        fits: whether it fits.
        score: higher is better.
        added_w: power that it adds, W.
        gpu: that a part of a GPU is taken from, `NO_GPU` for other requests.
    """

    version: IntArray
    fits: BoolArray
    score: FloatArray
    added_w: FloatArray
    gpu: IntArray


class Scratch(NamedTuple):
    """Work arrays.

    Attributes:
        gpu_left: of one node, shape ``(most GPUs,)``.
        total: scores by node, shape ``(n_nodes,)``.
    """

    gpu_left: IntArray
    total: FloatArray


class Table(NamedTuple):
    """Inputs and state of placement decisions.

    Attributes:
        nodes: in the order that decides between equals.
        requests: the distinct ones.
        scoring: the policy.
        state: of the nodes, changed in place.
        known: changed in place.
        scratch: changed in place.
    """

    nodes: Nodes
    requests: Pods
    scoring: Scoring
    state: State
    known: Known
    scratch: Scratch


class Course(NamedTuple):
    """Recorded state after each arrival; arrays of shape ``(n_arrivals,)``.

    Attributes:
        arrived_milli: GPU requested so far, thousandths.
        used_milli: GPU allocated so far, thousandths.
        power_w: power of all nodes, W.
        node: node of the pod; `NOWHERE` if no node was feasible.
    """

    arrived_milli: IntArray
    used_milli: IntArray
    power_w: FloatArray
    node: IntArray


def _empty_state(nodes: Nodes) -> State:
    """All nodes empty; potential and power are left for `place_all` to fill."""
    n_nodes = len(nodes.gpus)
    gpu_left = np.where(np.arange(nodes.gpus.max()) < nodes.gpus[:, np.newaxis], FULL_GPU_MILLI, 0)
    return State(
        nodes.cpu_milli.copy(),
        nodes.memory_mib.copy(),
        gpu_left,
        np.zeros(n_nodes, dtype=np.int64),
        np.ones(n_nodes, dtype=np.int64),
        np.zeros(n_nodes),
        np.zeros(n_nodes),
    )


def empty_table(nodes: Nodes, requests: Pods, scoring: Scoring) -> Table:
    """All nodes empty, and no score computed yet."""
    n_nodes, most_gpus = len(nodes.gpus), nodes.gpus.max()
    shape = (len(requests.gpus), n_nodes)
    known = Known(
        np.zeros(shape, dtype=np.int64),
        np.zeros(shape, dtype=np.bool_),
        np.zeros(shape),
        np.zeros(shape),
        np.full(shape, NO_GPU, dtype=np.int64),
    )
    scratch = Scratch(np.zeros(most_gpus, dtype=np.int64), np.zeros(n_nodes))
    return Table(nodes, requests, scoring, _empty_state(nodes), known, scratch)


def empty_course(n_arrivals: int) -> Course:
    """Nothing has arrived yet."""
    return Course(
        np.zeros(n_arrivals, dtype=np.int64),
        np.zeros(n_arrivals, dtype=np.int64),
        np.zeros(n_arrivals),
        np.full(n_arrivals, NOWHERE, dtype=np.int64),
    )


@compiled
def place_all(table: Table, arriving: IntArray, draws: FloatArray, course: Course) -> None:
    """Place every arriving pod on the feasible node with the best score; reject it if there is none.

    Args:
        table: changed in place.
        arriving: number of each arriving pod's request, shape ``(n_arrivals,)``.
        draws: uniform numbers, shape ``(n_arrivals, 2)``.
        course: filled.
    """
    nodes, requests, scoring, state, known, scratch = table
    power_w = 0.0
    for node in range(len(nodes.gpus)):
        _refresh(table, node)
        power_w += state.power_w[node]
    arrived_milli, used_milli = 0, 0
    for arrival in range(len(arriving)):
        request = arriving[arrival]
        demand_milli = requests.gpus[request] * requests.gpu_milli[request]
        _score_nodes(table, request)
        node = _best(known.fits[request], scratch.total, scoring.at_random, draws[arrival, 0])
        if node != NOWHERE:
            before_w = state.power_w[node]
            gpu = known.gpu[request, node]
            if scoring.policy == RANDOM and gpu != NO_GPU:
                left = state.gpu_left[node, : nodes.gpus[node]]
                gpu = _drawn_gpu(left, requests.gpu_milli[request], draws[arrival, 1])
            _place(table, request, gpu, node)
            used_milli += demand_milli
            power_w += state.power_w[node] - before_w
        arrived_milli += demand_milli
        course.arrived_milli[arrival] = arrived_milli
        course.used_milli[arrival] = used_milli
        course.power_w[arrival] = power_w
        course.node[arrival] = node


@compiled_inner
def _score_nodes(table: Table, request: int) -> None:
    """Fill `scratch.total` with the scores of a request; those of nodes that it does not fit mean nothing."""
    nodes, _, scoring, state, known, scratch = table
    least_w, most_w = np.inf, -np.inf
    for node in range(len(nodes.gpus)):
        if known.version[request, node] != state.version[node]:
            _look(table, request, node)
        if known.fits[request, node]:
            scratch.total[node] = known.score[request, node]
            least_w = min(least_w, known.added_w[request, node])
            most_w = max(most_w, known.added_w[request, node])
    if scoring.policy == PWR_FGD:
        for node in range(len(nodes.gpus)):
            frugality = float(MAX_SCORE)
            if most_w > least_w:
                # Kubernetes' normalisation of a score: whole points, the best node has all of them.
                frugality = float(
                    int((1.0 - (known.added_w[request, node] - least_w) / (most_w - least_w)) * MAX_SCORE)
                )
            scratch.total[node] *= 1.0 - scoring.power_weight
            scratch.total[node] += scoring.power_weight * frugality


@compiled_inner
def _look(table: Table, request: int, node: int) -> None:
    """Compute a request's score on a node anew."""
    nodes, requests, scoring, state, known, _ = table
    left = state.gpu_left[node, : nodes.gpus[node]]
    cpu_left, cpu = state.cpu_left[node], requests.cpu_milli[request]
    gpus, gpu_milli = requests.gpus[request], requests.gpu_milli[request]
    known.version[request, node] = state.version[node]
    runs_there = gpus == 0 or requests.models[request] & (1 << nodes.model[node]) != 0
    known.fits[request, node] = runs_there and fits(
        cpu_left, state.memory_left[node], left, cpu, requests.memory_mib[request], gpus, gpu_milli
    )
    if not known.fits[request, node]:
        return
    if is_part_of_gpu(gpus, gpu_milli):
        known.gpu[request, node] = tightest_gpu(left, gpu_milli)
    score = 0.0
    if scoring.policy == DOT_PRODUCT:
        score = float(dot_product_score(cpu_left, free_milli(left), cpu, gpus * gpu_milli))
    elif scoring.policy == GPU_CLUSTERING:
        score = float(gpu_clustering_score(free_milli(left), state.kinds[node], request_kind(gpus, gpu_milli)))
    elif scoring.policy == GPU_PACKING:
        score = float(gpu_packing_score(left, gpus, gpu_milli))
    elif scoring.policy == BEST_FIT:
        score = float(best_fit_score(cpu_left, free_milli(left), cpu, gpus * gpu_milli))
    elif scoring.policy in (FGD, PWR_FGD):
        _descend(table, request, node)
        return
    elif scoring.policy == JOULIE:
        steps, added_w, gpu = joulie_placement(
            cpu_left,
            left,
            table.scratch.gpu_left[: nodes.gpus[node]],
            _kind(table, node),
            GpuRequest(cpu, gpus, gpu_milli),
            _outlook(scoring),
            state.potential[node],
            state.power_w[node],
        )
        score, known.added_w[request, node], known.gpu[request, node] = float(steps), added_w, gpu
    known.score[request, node] = score


@compiled_inner
def _descend(table: Table, request: int, node: int) -> None:
    """FGD's score, and the power that a placement adds; a part of a GPU is tried on every GPU whose rest differs."""
    nodes, requests, scoring, state, known, scratch = table
    left, after = state.gpu_left[node, : nodes.gpus[node]], scratch.gpu_left[: nodes.gpus[node]]
    gpus, gpu_milli = requests.gpus[request], requests.gpu_milli[request]
    cpu_after = state.cpu_left[node] - requests.cpu_milli[request]
    model = nodes.model[node]
    part = is_part_of_gpu(gpus, gpu_milli)
    best = -np.inf
    for gpu in range(len(left) if part else 1):
        if part and (left[gpu] < gpu_milli or seen_before(left, gpu)):
            continue
        for other in range(len(left)):
            after[other] = left[other]
        take(after, gpus, gpu_milli, gpu)
        added = _potential_milli(cpu_after, after, model, scoring) - state.potential[node]
        added_w = node_power_w(cpu_after, after, _kind(table, node)) - state.power_w[node]
        score = float(fgd_score(added))
        if score > best:
            best = score
            known.score[request, node] = score
            known.added_w[request, node] = added_w
            if part:
                known.gpu[request, node] = gpu


@compiled_inner
def _potential_milli(cpu_left: int, gpu_left: IntArray, model: int, scoring: Scoring) -> float:
    if scoring.policy == JOULIE:
        return potential_milli(cpu_left, gpu_left, 1 << model, _outlook(scoring))
    return fragmentation_milli(cpu_left, gpu_left, 1 << model, scoring.typical)


@compiled_inner
def _outlook(scoring: Scoring) -> Outlook:
    return Outlook(scoring.typical, scoring.cpu_milli_per_gpu, scoring.power_weight)


@compiled_inner
def _kind(table: Table, node: int) -> NodeKind:
    nodes, scoring = table.nodes, table.scoring
    model = nodes.model[node]
    idle_w, limit_w = scoring.idle_w[model], scoring.limit_w[model]
    return NodeKind(nodes.cpu_milli[node], 1 << model, idle_w, limit_w, SOCKET_IDLE_W, SOCKET_LIMIT_W)


@compiled_inner
def _refresh(table: Table, node: int) -> None:
    """Potential and power of a node whose pods have changed."""
    nodes, scoring, state = table.nodes, table.scoring, table.state
    left, model = state.gpu_left[node, : nodes.gpus[node]], nodes.model[node]
    state.potential[node] = _potential_milli(state.cpu_left[node], left, model, scoring)
    state.power_w[node] = node_power_w(state.cpu_left[node], left, _kind(table, node))


@compiled_inner
def _place(table: Table, request: int, gpu: int, node: int) -> None:
    nodes, requests, state = table.nodes, table.requests, table.state
    gpus, gpu_milli = requests.gpus[request], requests.gpu_milli[request]
    state.cpu_left[node] -= requests.cpu_milli[request]
    state.memory_left[node] -= requests.memory_mib[request]
    take(state.gpu_left[node, : nodes.gpus[node]], gpus, gpu_milli, gpu)
    state.kinds[node] |= request_kind(gpus, gpu_milli)
    state.version[node] += 1
    _refresh(table, node)


@compiled_inner
def _best(fitting: BoolArray, total: FloatArray, at_random: bool, draw: float) -> int:
    """The node with the best score, of equals the first or a drawn one; `NOWHERE` if the request fits none."""
    best, equals, first = -np.inf, 0, NOWHERE
    for node in range(len(total)):
        if fitting[node]:
            if total[node] > best:
                best, equals, first = total[node], 1, node
            elif total[node] == best:
                equals += 1
    if not at_random:
        return first
    skip = int(draw * equals)
    for node in range(len(total)):
        if fitting[node] and total[node] == best:
            if skip == 0:
                return node
            skip -= 1
    return NOWHERE


@compiled_inner
def _drawn_gpu(left: IntArray, gpu_milli: int, draw: float) -> int:
    """One of the GPUs with enough left, each as likely."""
    fitting = 0
    for milli in left:
        if milli >= gpu_milli:
            fitting += 1
    skip = int(draw * fitting)
    for gpu in range(len(left)):
        if left[gpu] >= gpu_milli:
            if skip == 0:
                return gpu
            skip -= 1
    return NO_GPU
