"""Compiled loops of the scheduler: feasible nodes and their scores, pending kinds that fit, and gangs' counts.

They make the same operations as `NodeCapacity.feasible`, `default_scores`, `extender_score` and
`joulie_lab.simulation.gangs`, which stay the reference: a property test holds both together to the last digit.
"""

from __future__ import annotations

import numpy as np

from joulie.domain.marginal import marginal_w
from joulie.domain.scheduling.scores import EXTENDER_POINTS, MAX_NODE_SCORE
from joulie.domain.scoring import formulas
from joulie.domain.scoring.extender import WIRE_MAXIMUM
from joulie.domain.scoring.formulas import NEUTRAL_SCORE
from joulie.domain.units import BoolArray, FloatArray, FloatLike, IntArray
from joulie_lab.simulation.compiled import compilable, compiled, compiled_inner
from joulie_lab.simulation.native.nodes import MAX_PODS
from joulie_lab.simulation.trace import WHOLE_GPU_MILLI

N_NEEDS = 7
"""Columns that describe a kind: CPU, memory, both as LeastAllocated counts them, GPUs, share of each GPU, thousandths,
and the row of the nodes that it may use."""
_HALF = MAX_NODE_SCORE // 2


for _formula in (
    marginal_w,
    formulas.clamp,
    formulas.headroom_pct,
    formulas.projected_headroom_pct,
    formulas.joulie_points,
    formulas.joulie_score,
):
    compilable(_formula)


@compiled_inner
def _left_over(allocatable: int, asked: int) -> int:
    """LeastAllocated's points of one resource: `(allocatable - asked) * MAX_NODE_SCORE // allocatable`.

    A quotient of floats, put right by the remainder: an integer division takes ten times as long.
    """
    if not 0 < allocatable >= asked:
        return 0
    free = (allocatable - asked) * MAX_NODE_SCORE
    points = int(free / allocatable)
    if points * allocatable > free:
        return points - 1
    return points + 1 if (points + 1) * allocatable <= free else points


@compiled_inner
def _evenness(milli_cpu: int, memory_bytes: int, cpu_size: int, memory_size: int) -> int:
    if cpu_size <= 0 or memory_size <= 0:
        return MAX_NODE_SCORE
    deviation = abs((min(milli_cpu / cpu_size, 1.0) - min(memory_bytes / memory_size, 1.0)) / 2.0)
    return int((1.0 - deviation) * MAX_NODE_SCORE)


@compiled_inner
def _wire_score(pod: FloatArray, load: FloatArray, terms: FloatArray) -> int:
    """The extender's score of a node, 0..10, as `extender_score` and `wire_score` have it.

    Args:
        pod: cores, memory in GiB and GPUs that it requests, the coefficient of its GPUs, whether congestion steers it,
            points that it loses under caps of CPU and GPU, and whether it must not be moved.
        load: what the node draws at full load: its CPUs, W; cores; and a GPU, W.
        terms: of its twin: limit and power, W; cooling stress, %; points of trend and congestion; depth of the caps of
            CPU and GPU; whether it is fresh, and draining.
    """
    score: FloatLike = NEUTRAL_SCORE
    if terms[7] != 0.0:
        added_w = marginal_w(load[0], pod[0] / load[1], pod[1], pod[2], load[2], pod[3])
        headroom_pct = formulas.projected_headroom_pct(terms[0], terms[1], added_w)
        base = formulas.joulie_score(headroom_pct, terms[2], terms[3], 0.0)
        congestion = terms[4] if pod[4] != 0.0 else 0.0
        score = formulas.clamp(base + congestion - (pod[5] * terms[5] + pod[6] * terms[6]), 0.0, 100.0)
    if pod[7] != 0.0 and terms[8] != 0.0:
        score = 0.0
    return int(np.floor(score / (100.0 / WIRE_MAXIMUM) + 0.5))


@compiled
def best_nodes(
    kind: IntArray,
    usable: BoolArray,
    allocatable: IntArray,
    requested: IntArray,
    nonzero_requested: IntArray,
    pods: IntArray,
    free_gpus: IntArray,
    max_free_milli: IntArray,
    pod: FloatArray,
    load: FloatArray,
    terms: FloatArray,
    best: IntArray,
) -> tuple[int, int]:
    """Find the feasible nodes with the highest score of kube-scheduler, and an extender's.

    Args:
        kind: the pod's kind, see `N_NEEDS`.
        usable: nodes that rules, class and GPU resource admit, shape ``(n_groups, n_nodes)``.
        allocatable: CPU and memory of each node, shape ``(2, n_nodes)``.
        requested: by its pods.
        nonzero_requested: the same, as LeastAllocated counts it.
        pods: number of its pods.
        free_gpus: see `NodeCapacity`.
        max_free_milli: see `NodeCapacity`.
        pod: see `_wire_score`.
        load: see `_wire_score`, of all nodes.
        terms: see `_wire_score`, of all nodes; no columns without an extender.
        best: the nodes found, in order; changed.

    Returns:
        Number of feasible nodes, and of those in `best`.
    """
    cpu, memory, gpus, milli = kind[0], kind[1], kind[4], kind[5]
    mine = usable[kind[6]]
    feasible, count, highest = 0, 0, -1
    for node in range(len(mine)):
        if not (
            mine[node]
            and allocatable[0, node] - requested[0, node] >= cpu
            and allocatable[1, node] - requested[1, node] >= memory
            and pods[node] < MAX_PODS
        ):
            continue
        if gpus > 0 and (max_free_milli[node] < milli if milli < WHOLE_GPU_MILLI else free_gpus[node] < gpus):
            continue
        feasible += 1
        cpu_size, memory_size = allocatable[0, node], allocatable[1, node]
        total = _left_over(cpu_size, nonzero_requested[0, node] + kind[2])
        total += _left_over(memory_size, nonzero_requested[1, node] + kind[3])
        score = total // 2 if cpu_size > 0 and memory_size > 0 else total
        if cpu != 0 or memory != 0:
            after = _evenness(requested[0, node] + cpu, requested[1, node] + memory, cpu_size, memory_size)
            before = _evenness(requested[0, node], requested[1, node], cpu_size, memory_size)
            score += _HALF + (_HALF + after - before) // 2
        if terms.shape[1]:
            score += _wire_score(pod, load[:, node], terms[:, node]) * EXTENDER_POINTS
        if score > highest:
            highest, count = score, 0
        if score == highest:
            best[count] = node
            count += 1
    return feasible, count


@compiled
def fitting_kinds(
    nodes: IntArray,
    kinds: IntArray,
    needs: IntArray,
    usable: BoolArray,
    allocatable: IntArray,
    requested: IntArray,
    free_gpus: IntArray,
    max_free_milli: IntArray,
    found: BoolArray,
) -> None:
    """Mark the kinds of which one more pod fits one of these nodes.

    Args:
        nodes: the nodes.
        kinds: the kinds that are asked for.
        needs: all kinds, see `N_NEEDS`, shape ``(n_kinds, N_NEEDS)``.
        usable: see `best_nodes`.
        allocatable: see `best_nodes`.
        requested: see `best_nodes`.
        free_gpus: see `NodeCapacity`.
        max_free_milli: see `NodeCapacity`.
        found: by place in `kinds`; changed.
    """
    for at in range(len(kinds)):
        kind = kinds[at]
        for node in nodes:
            if (
                usable[needs[kind, 6], node]
                and allocatable[0, node] - requested[0, node] >= needs[kind, 0]
                and allocatable[1, node] - requested[1, node] >= needs[kind, 1]
                and (
                    max_free_milli[node] >= needs[kind, 5]
                    if needs[kind, 5] < WHOLE_GPU_MILLI
                    else free_gpus[node] >= needs[kind, 4]
                )
            ):
                found[at] = True
                break


@compiled
def count_pods(
    nodes: IntArray,
    kinds: IntArray,
    places: IntArray,
    needs: IntArray,
    usable: BoolArray,
    allocatable: IntArray,
    requested: IntArray,
    pods: IntArray,
    free_milli: IntArray,
    counts: IntArray,
    totals: IntArray,
    hosts: IntArray,
) -> None:
    """Count again how many pods of some kinds fit some nodes, as `max_pods` does.

    Args:
        nodes: the nodes whose capacity or class has changed.
        kinds: the kinds.
        places: their rows in the counts.
        needs: all kinds, see `N_NEEDS`, shape ``(n_kinds, N_NEEDS)``.
        usable: see `best_nodes`.
        allocatable: see `best_nodes`.
        requested: see `best_nodes`.
        pods: number of pods of each node.
        free_milli: free share of each GPU, thousandths, shape ``(n_nodes, n_devices)``.
        counts: pods of each kind on each node, shape ``(n_places, n_nodes)``; changed.
        totals: their sums, shape ``(n_places,)``; changed.
        hosts: numbers of nodes that fit at least one, shape ``(n_places,)``; changed.
    """
    for at in range(len(kinds)):
        kind, place = kinds[at], places[at]
        gpus, milli = needs[kind, 4], needs[kind, 5]
        for node in nodes:
            number = 0
            if usable[needs[kind, 6], node]:
                number = MAX_PODS - pods[node]
                for resource in range(2):
                    amount = needs[kind, resource]
                    if amount > 0:
                        number = min(number, (allocatable[resource, node] - requested[resource, node]) // amount)
                if gpus > 0:
                    shares, whole = 0, 0
                    for device in range(free_milli.shape[1]):
                        per_gpu = free_milli[node, device] // milli
                        shares += per_gpu
                        whole += per_gpu > 0
                    number = min(number, shares if milli < WHOLE_GPU_MILLI else whole // gpus)
                number = max(number, 0)
            hosts[place] += int(number > 0) - int(counts[place, node] > 0)
            totals[place] += number - counts[place, node]
            counts[place, node] = number
