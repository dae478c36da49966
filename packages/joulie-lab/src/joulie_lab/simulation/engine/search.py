"""Search for the node of a job: keys and bounds of the trees, exact scores, and classes of equal allocation."""

from __future__ import annotations

import numpy as np

from joulie.domain.scoring import formulas
from joulie_lab.simulation import published
from joulie_lab.simulation.compiled import compilable, compiled_inner
from joulie_lab.simulation.engine.index import (
    FLOOR,
    FREE_CORES,
    FREE_GPUS,
    KEY,
    insert,
    lift,
    next_member,
    rebuild,
    remove,
    set_leaf,
)
from joulie_lab.simulation.engine.state import ClassOrder, Indexes, Nodes, Pools, Rules, Run, Scratch, Shapes
from joulie_lab.simulation.schedulers import AT_RANDOM, BY_CLASS, BY_HEADROOM, BY_KEY, BY_LEGACY

for _formula in (
    formulas.clamp,
    formulas.headroom_pct,
    formulas.projected_headroom_pct,
    published.power_load_pct,
    published.idle_gpu_penalty_points,
    formulas.joulie_points,
    formulas.joulie_score,
    published.legacy_marginal_points,
    published.legacy_score,
):
    compilable(_formula)

_BLOCK_NODES = 128

BOUND_SLACK = 1e-9
"""Tolerance of bounds against rounding, points (scores stay within 200, where doubles have a precision of 3e-14)."""


@compiled_inner
def _class_of(pools: Pools, nodes: Nodes, node: int) -> int:
    pool = nodes.pool[node]
    return int(pools.class_base[pool] + nodes.free_cores[node] * (pools.gpus[pool] + 1) + nodes.free_gpus[node])


@compiled_inner
def leave_class(pools: Pools, order: ClassOrder, indexes: Indexes, nodes: Nodes, node: int) -> None:
    """Remove a node from its class; call before its allocation changes."""
    pool = nodes.pool[node]
    kind = _class_of(pools, nodes, node)
    remove(indexes.classes, kind, node - pools.start[pool])
    indexes.members[kind] -= 1
    if indexes.members[kind] == 0:
        remove(indexes.occupied, pools.cpu_view[pool], order.rank[pools.cpu_view[pool], kind])
        if pools.gpu_view[pool] >= 0:
            remove(indexes.occupied, pools.gpu_view[pool], order.rank[pools.gpu_view[pool], kind])


@compiled_inner
def join_class(pools: Pools, order: ClassOrder, indexes: Indexes, nodes: Nodes, node: int) -> None:
    """Insert a node into the class of its allocation."""
    pool = nodes.pool[node]
    kind = _class_of(pools, nodes, node)
    insert(indexes.classes, kind, node - pools.start[pool])
    indexes.members[kind] += 1
    if indexes.members[kind] == 1:
        insert(indexes.occupied, pools.cpu_view[pool], order.rank[pools.cpu_view[pool], kind])
        if pools.gpu_view[pool] >= 0:
            insert(indexes.occupied, pools.gpu_view[pool], order.rank[pools.gpu_view[pool], kind])


@compiled_inner
def uses_tree(rules: Rules) -> bool:
    """Whether the scheduler searches trees."""
    return rules.family in (BY_HEADROOM, BY_LEGACY, BY_KEY)


@compiled_inner
def write_leaf(pools: Pools, rules: Rules, nodes: Nodes, indexes: Indexes, node: int, climb: bool) -> None:
    """Write the keys of a node into the trees of its views."""
    pool = nodes.pool[node]
    position = node - pools.start[pool]
    free_cores = float(nodes.free_cores[node])
    free_gpus = float(nodes.free_gpus[node])
    # Full nodes are infeasible; nodes on standby are identical, so the lowest index represents them all.
    if nodes.free_cores[node] == 0 or (nodes.standby[node] and next_member(indexes.standby, pool, 0) != position):
        free_cores = -np.inf
        free_gpus = -np.inf
    for with_gpus in range(2):
        view = pools.gpu_view[pool] if with_gpus else pools.cpu_view[pool]
        if view < 0:
            continue
        key = -np.inf
        floor = -np.inf
        if free_cores > 0.0:
            key, floor = _keys(pools, rules, nodes, node, with_gpus == 0)
        if set_leaf(indexes.trees, view, position, free_cores, free_gpus, key, floor) and climb:
            lift(indexes.trees, view, position)


@compiled_inner
def refresh_leaves(pools: Pools, rules: Rules, nodes: Nodes, scratch: Scratch, indexes: Indexes, changed: int) -> None:
    """Write the leaves of the changed nodes: individually if few changed, with a rebuild of the trees if many did."""
    few = changed * 8 < len(nodes.power_w)
    for which in range(changed):
        write_leaf(pools, rules, nodes, indexes, scratch.touched_list[which], few)
    if not few:
        for view in range(len(indexes.trees.base)):
            rebuild(indexes.trees, view)


@compiled_inner
def _penalty(pools: Pools, rules: Rules, nodes: Nodes, node: int, without_gpus: bool) -> float:
    """Penalty for a job without GPUs on a node with idle GPUs, points."""
    pool = nodes.pool[node]
    if not (rules.gpu_penalty and without_gpus and pools.gpus[pool] > 0):
        return 0.0
    if rules.family == BY_KEY:
        return published.GPU_AVOIDANCE_POINTS
    gpus = float(pools.gpus[pool])
    return float(published.idle_gpu_penalty_points(gpus, gpus - nodes.free_gpus[node]))


@compiled_inner
def _keys(pools: Pools, rules: Rules, nodes: Nodes, node: int, without_gpus: bool) -> tuple[float, float]:
    """Key and floor of a node: the score of any job is at most ``max(key - offset, floor)``."""
    pool = nodes.pool[node]
    peak_w = pools.peak_w[pool]
    power_w = nodes.power_w[node]
    penalty = _penalty(pools, rules, nodes, node, without_gpus)
    if rules.family == BY_HEADROOM:
        load_pct = published.power_load_pct(power_w, peak_w)
        headroom_pct = formulas.headroom_pct(peak_w, power_w, 0.0)
        key = formulas.joulie_points(headroom_pct, load_pct, nodes.trend_points[node], penalty)
        return float(key), float(formulas.joulie_points(0.0, load_pct, nodes.trend_points[node], penalty))
    if rules.family == BY_LEGACY:
        return _legacy(pools, nodes, node, 0.0, penalty), -np.inf
    return _keyed_score(pools, rules, nodes, node, penalty), -np.inf


@compiled_inner
def _legacy(pools: Pools, nodes: Nodes, node: int, marginal_w: float, penalty: float) -> float:
    peak_w = pools.peak_w[nodes.pool[node]]
    power_w = nodes.power_w[node]
    score = published.legacy_score(
        formulas.projected_headroom_pct(peak_w, power_w, 0.0),
        published.power_load_pct(power_w, published.LEGACY_COOLING_REFERENCE_W, 80.0),
        published.power_load_pct(power_w, published.LEGACY_RACK_CAPACITY_W, 100.0),
        marginal_w,
        penalty,
        nodes.trend_points[node],
    )
    return float(score)


@compiled_inner
def _keyed_score(pools: Pools, rules: Rules, nodes: Nodes, node: int, penalty: float) -> float:
    """Score that does not depend on the job: allocation or power packing, minus the trend."""
    pool = nodes.pool[node]
    if rules.packs_by_power:
        packing = nodes.power_w[node] / pools.peak_w[pool]
    else:
        packing = (pools.cores[pool] - nodes.free_cores[node]) / pools.cores[pool]
        if pools.gpus[pool] > 0:
            packing += (pools.gpus[pool] - nodes.free_gpus[node]) / pools.gpus[pool]
    return float(packing - nodes.trend_points[node] - penalty)


@compiled_inner
def _exact_score(
    pools: Pools, shapes: Shapes, rules: Rules, nodes: Nodes, node: int, shape: int, without_gpus: bool
) -> float:
    pool = nodes.pool[node]
    penalty = _penalty(pools, rules, nodes, node, without_gpus)
    if rules.family == BY_HEADROOM:
        peak_w = pools.peak_w[pool]
        power_w = nodes.power_w[node]
        score = formulas.joulie_score(
            formulas.projected_headroom_pct(peak_w, power_w, shapes.marginal_w[pool, shape]),
            published.power_load_pct(power_w, peak_w),
            nodes.trend_points[node],
            penalty,
        )
        return float(score)
    if rules.family == BY_LEGACY:
        return _legacy(pools, nodes, node, shapes.marginal_w[pool, shape], penalty)
    return _keyed_score(pools, rules, nodes, node, penalty)


@compiled_inner
def choose(run: Run, shape: int) -> int:
    """Choose a node for a job of this shape; -1 if none is feasible."""
    if run.rules.family == BY_CLASS:
        return _best_by_class(run.pools, run.shapes, run.order, run.indexes, shape)
    if run.rules.family == AT_RANDOM:
        return _at_random(run.shapes, run.nodes, run.rng, shape)
    return _best_by_tree(run, shape)


@compiled_inner
def _best_by_tree(run: Run, shape: int) -> int:
    """Feasible node with the highest score; ties go to the lowest index; -1 if none."""
    pools, shapes, rules, nodes = run.pools, run.shapes, run.rules, run.nodes
    trees, stack = run.indexes.trees, run.scratch.stack
    slots = trees.slots
    cores = float(shapes.cores[shape])
    gpus = float(shapes.gpus[shape])
    without_gpus = shapes.gpus[shape] == 0
    best = -1
    best_score = -np.inf
    for pool in range(len(pools.cores)):
        view = pools.cpu_view[pool] if without_gpus else pools.gpu_view[pool]
        if view < 0:
            continue
        base = trees.base[view]
        leaves = trees.leaves[view]
        offset = shapes.offset[pool, shape]
        stack[0] = 1
        depth = 1
        while depth > 0:
            depth -= 1
            slot = stack[depth]
            row = slots[base + slot]
            if row[FREE_CORES] < cores or row[FREE_GPUS] < gpus:
                continue
            bound = max(row[KEY] - offset, row[FLOOR]) + BOUND_SLACK
            if rules.family == BY_HEADROOM:
                bound = min(max(bound, 0.0), 100.0)
            if bound < best_score:
                continue
            if slot >= leaves:
                node = pools.start[pool] + slot - leaves
                score = _exact_score(pools, shapes, rules, nodes, node, shape, without_gpus)
                if score > best_score or (score == best_score and node < best):
                    best = node
                    best_score = score
                continue
            if bound == best_score and _first_position(slot, leaves) + pools.start[pool] > best:
                continue
            left = 2 * slot
            # The child with the higher bound is pushed last, so that it is searched first.
            if slots[base + left + 1, KEY] > slots[base + left, KEY]:
                stack[depth] = left
                stack[depth + 1] = left + 1
            else:
                stack[depth] = left + 1
                stack[depth + 1] = left
            depth += 2
    return best


@compiled_inner
def _first_position(slot: int, leaves: int) -> int:
    """Position of the leftmost leaf below a slot."""
    while slot < leaves:
        slot *= 2
    return slot - leaves


@compiled_inner
def _best_by_class(pools: Pools, shapes: Shapes, order: ClassOrder, indexes: Indexes, shape: int) -> int:
    """Like `_best_by_tree`, over the classes of equal allocation: by preference, then score, then index."""
    cores = shapes.cores[shape]
    gpus = shapes.gpus[shape]
    best = -1
    best_preference = -np.inf
    best_score = -np.inf
    for pool in range(len(pools.cores)):
        view = pools.cpu_view[pool] if gpus == 0 else pools.gpu_view[pool]
        if view < 0 or pools.cores[pool] < cores or pools.gpus[pool] < gpus:
            continue
        empty = pools.class_base[pool] + pools.cores[pool] * (pools.gpus[pool] + 1) + pools.gpus[pool]
        rank = next_member(indexes.occupied, view, 0)
        found_in_use = False
        while rank >= 0:
            kind = order.by_rank[view, rank]
            if order.free_cores[kind] >= cores and order.free_gpus[kind] >= gpus:
                is_empty = kind == empty
                preference = shapes.preference[pool, shape, 1 if is_empty else 0]
                score = order.score[view, kind]
                if preference > best_preference or (preference == best_preference and score >= best_score):
                    node = pools.start[pool] + next_member(indexes.classes, kind, 0)
                    if preference > best_preference or score > best_score or node < best:
                        best = node
                        best_preference = preference
                        best_score = score
                elif found_in_use:
                    break
                found_in_use = found_in_use or not is_empty
            rank = next_member(indexes.occupied, view, rank + 1)
    return best


@compiled_inner
def _count_fitting(nodes: Nodes, cores: int, gpus: int, first: int, last: int) -> int:
    """Number of feasible nodes among ``first <= node < last``; branch-free, so that it is vectorised."""
    fitting = 0
    for node in range(first, last):
        fitting += (nodes.free_cores[node] >= cores) & (nodes.free_gpus[node] >= gpus)
    return fitting


@compiled_inner
def _at_random(shapes: Shapes, nodes: Nodes, rng: np.random.Generator, shape: int) -> int:
    """Feasible node drawn uniformly, -1 if none: counts by blocks, then searches one block."""
    cores = shapes.cores[shape]
    gpus = shapes.gpus[shape]
    n_nodes = len(nodes.pool)
    fitting = _count_fitting(nodes, cores, gpus, 0, n_nodes)
    if fitting == 0:
        return -1
    chosen = int(rng.random() * fitting)
    first = 0
    while True:
        in_block = _count_fitting(nodes, cores, gpus, first, min(first + _BLOCK_NODES, n_nodes))
        if chosen < in_block:
            break
        chosen -= in_block
        first += _BLOCK_NODES
    node = first - 1
    while chosen >= 0:
        node += 1
        chosen -= _count_fitting(nodes, cores, gpus, node, node + 1)
    return node
