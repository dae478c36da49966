"""The compiled loop of a run; each step ends jobs, measures power, places jobs and records the result.

A call of `advance` simulates any number of steps on the given state, so that callers can show progress and couple a
cooling plant in between. The order of operations within a step, and of the additions within a node, is the published
experiment's: results are bit-identical to the NumPy implementation in `reference`, which tests compare it with.

It is fast because only changed nodes are visited (calendars for jobs that end and nodes that fall asleep, an active
list for power trends), and because the best node is found by index (see `search`), never by scanning the cluster.
"""

from __future__ import annotations

from joulie.domain.scoring import formulas
from joulie.domain.units import FloatArray
from joulie_lab.simulation import published
from joulie_lab.simulation.compiled import compilable, compiled, compiled_inner
from joulie_lab.simulation.engine import energy
from joulie_lab.simulation.engine.index import insert, next_member, remove
from joulie_lab.simulation.engine.power import add_job_power, node_power_w
from joulie_lab.simulation.engine.search import choose, join_class, leave_class, refresh_leaves, uses_tree, write_leaf
from joulie_lab.simulation.engine.state import (
    AWAKE,
    N_ACTIVE,
    N_WAITING,
    NEXT_JOB,
    RING,
    RUNNING,
    WAKES,
    Links,
    Nodes,
    Pools,
    Rules,
    Run,
    Scratch,
)
from joulie_lab.simulation.schedulers import BY_CLASS, BY_ENERGY, TREND_ADAPTIVE, TREND_NONE, TREND_TDP

for _formula in (formulas.clamp, formulas.trend_points, published.tdp_trend_points):
    compilable(_formula)


@compiled_inner
def least_squares_slope(ring: FloatArray, first: int, count: int) -> float:
    """Slope per step of the `count` latest ring entries, oldest first; `first` is the column of the oldest.

    A single entry has slope zero. The order of operations is the published one: the mean is subtracted from the
    entries, although this only affects rounding.
    """
    if count < 2:
        return 0.0
    mean = 0.0
    for column in range(first, count):
        mean += ring[column]
    for column in range(first):
        mean += ring[column]
    mean /= count
    offset = (1.0 - count) / 2.0
    numerator = 0.0
    for column in range(first, count):
        numerator += offset * (ring[column] - mean)
        offset += 1.0
    for column in range(first):
        numerator += offset * (ring[column] - mean)
        offset += 1.0
    return float(numerator / (count * (count * count - 1.0) / 12.0))


@compiled_inner
def _recount(run: Run, node: int, step: int) -> int:
    """Unlink the jobs of `node` that end by `step`, sum up the others in placement order; returns the number ended."""
    pools, shapes, jobs, nodes, links = run.pools, run.shapes, run.jobs, run.nodes, run.links
    pool = nodes.pool[node]
    nodes.cpu_sum_w[node] = 0.0
    nodes.gpu_sum_w[node] = 0.0
    nodes.free_cores[node] = pools.cores[pool]
    nodes.free_gpus[node] = pools.gpus[pool]
    left = 0
    previous = -1
    job = nodes.first_job[node]
    nodes.first_job[node] = -1
    while job >= 0:
        following = links.next_on_node[job]
        if links.end_step[job] <= step:
            left += 1
            if run.rules.family == BY_ENERGY:
                energy.record_end(run, job)
        else:
            if previous < 0:
                nodes.first_job[node] = job
            else:
                links.next_on_node[previous] = job
            previous = job
            nodes.free_cores[node] -= shapes.cores[jobs.shape[job]]
            nodes.free_gpus[node] -= shapes.gpus[jobs.shape[job]]
            add_job_power(pools, shapes, jobs, run.rules, nodes, node, job)
        job = following
    nodes.last_job[node] = previous
    if previous >= 0:
        links.next_on_node[previous] = -1
    return left


@compiled_inner
def _activate(nodes: Nodes, scratch: Scratch, node: int) -> None:
    if not nodes.active[node]:
        nodes.active[node] = True
        scratch.active_list[scratch.counters[N_ACTIVE]] = node
        scratch.counters[N_ACTIVE] += 1


@compiled_inner
def _set_power(pools: Pools, rules: Rules, nodes: Nodes, scratch: Scratch, node: int) -> None:
    """Update a node's power; a change resets its count of steady steps."""
    power = node_power_w(pools, nodes, rules, node)
    if power != nodes.power_w[node]:
        nodes.power_w[node] = power
        nodes.steady_steps[node] = 0
        _activate(nodes, scratch, node)


@compiled_inner
def _end_jobs(run: Run, step: int) -> None:
    """Remove the jobs that end in this step from their nodes."""
    pools, rules, nodes, links, scratch = run.pools, run.rules, run.nodes, run.links, run.scratch
    n_touched = 0
    job = links.ending_head[step]
    while job >= 0:
        node = links.node_of_job[job]
        if not scratch.touched[node]:
            scratch.touched[node] = True
            scratch.touched_list[n_touched] = node
            n_touched += 1
        job = links.next_ending[job]
    for which in range(n_touched):
        node = scratch.touched_list[which]
        scratch.touched[node] = False
        if rules.family == BY_CLASS:
            leave_class(pools, run.order, run.indexes, nodes, node)
        scratch.counters[RUNNING] -= _recount(run, node, step)
        if rules.family == BY_CLASS:
            join_class(pools, run.order, run.indexes, nodes, node)
        if nodes.first_job[node] < 0:
            nodes.empty_step[node] = step
            if rules.queueing and not nodes.sleep_scheduled[node]:
                _schedule_sleep(rules, nodes, links, node)
        _set_power(pools, rules, nodes, scratch, node)
        _activate(nodes, scratch, node)


@compiled_inner
def _schedule_sleep(rules: Rules, nodes: Nodes, links: Links, node: int) -> None:
    """Enter an empty node into the calendar of nodes that may fall asleep; a node has at most one entry."""
    step = nodes.empty_step[node] + rules.sleep_after_steps
    if step < len(links.sleep_head):
        links.next_to_sleep[node] = links.sleep_head[step]
        links.sleep_head[step] = node
        nodes.sleep_scheduled[node] = True


@compiled_inner
def _fall_asleep(run: Run, step: int) -> None:
    """Put nodes to sleep that have been empty for long enough; reschedule those that were busy in between."""
    rules, nodes, links = run.rules, run.nodes, run.links
    node = links.sleep_head[step]
    while node >= 0:
        following = links.next_to_sleep[node]
        nodes.sleep_scheduled[node] = False
        if nodes.first_job[node] < 0:
            if nodes.empty_step[node] + rules.sleep_after_steps > step:
                _schedule_sleep(rules, nodes, links, node)
            else:
                nodes.asleep[node] = True
                run.scratch.counters[AWAKE] -= 1
                _set_power(run.pools, rules, nodes, run.scratch, node)
        node = following


@compiled_inner
def _trend_points(pools: Pools, rules: Rules, nodes: Nodes, node: int, scale: float) -> float:
    if rules.trend == TREND_TDP:
        peak_w = pools.peak_w[nodes.pool[node]]
        return float(published.tdp_trend_points(nodes.trend_w_per_min[node], peak_w, rules.trend_high))
    if rules.trend == TREND_NONE:
        return 0.0
    return float(formulas.trend_points(nodes.trend_w_per_min[node], scale, rules.trend_low, rules.trend_high))


@compiled_inner
def _measure(run: Run, step: int) -> None:
    """Append power to the rings, compute trends and their points, and update the trees."""
    pools, rules, nodes, scratch, indexes = run.pools, run.rules, run.nodes, run.scratch, run.indexes
    total_w = 0.0
    for node in range(len(nodes.power_w)):
        total_w += nodes.power_w[node]
    column = step % RING
    scratch.cluster_ring_w[column] = total_w
    count = min(step + 1, RING)
    first = (column + 1) % RING if count == RING else 0
    cluster_trend_w_per_min = least_squares_slope(scratch.cluster_ring_w, first, count) / rules.step_min
    scale = formulas.STEADY_TREND_SCALE
    if rules.trend == TREND_ADAPTIVE and abs(cluster_trend_w_per_min) > formulas.BURST_CLUSTER_TREND_W_PER_MIN:
        scale = formulas.BURST_TREND_SCALE
    changed = 0
    kept = 0
    for pool in range(len(pools.cores)):
        lowest = next_member(indexes.standby, pool, 0)
        if lowest >= 0:
            scratch.touched_list[changed] = pools.start[pool] + lowest
            changed += 1
    for which in range(scratch.counters[N_ACTIVE]):
        node = scratch.active_list[which]
        nodes.ring_w[node, column] = nodes.power_w[node]
        nodes.steady_steps[node] += 1
        # Equal samples have no trend; rounding must not create one.
        level = nodes.steady_steps[node] >= count or rules.trend == TREND_NONE
        slope = 0.0 if level else least_squares_slope(nodes.ring_w[node], first, count)
        nodes.trend_w_per_min[node] = slope / rules.step_min
        nodes.trend_points[node] = _trend_points(pools, rules, nodes, node, scale)
        if nodes.steady_steps[node] >= RING:
            nodes.active[node] = False
            if nodes.first_job[node] < 0 and (nodes.asleep[node] or not rules.queueing):
                nodes.standby[node] = True
                insert(indexes.standby, nodes.pool[node], node - pools.start[nodes.pool[node]])
        else:
            scratch.active_list[kept] = node
            kept += 1
        scratch.touched_list[changed] = node
        changed += 1
    scratch.counters[N_ACTIVE] = kept
    if uses_tree(rules):
        refresh_leaves(pools, rules, nodes, scratch, indexes, changed)


@compiled
def prepare(run: Run) -> None:
    """Initialise an empty cluster: every node on standby, with power and indexes filled in."""
    pools, rules, nodes, indexes = run.pools, run.rules, run.nodes, run.indexes
    for node in range(len(nodes.pool)):
        nodes.power_w[node] = node_power_w(pools, nodes, rules, node)
        nodes.ring_w[node, :] = nodes.power_w[node]
        nodes.standby[node] = True
        insert(indexes.standby, nodes.pool[node], node - pools.start[nodes.pool[node]])
        if rules.family == BY_CLASS:
            join_class(pools, run.order, indexes, nodes, node)
        if rules.family == BY_ENERGY:
            insert(run.energy.resting, nodes.pool[node], node - pools.start[nodes.pool[node]])
    if uses_tree(rules):
        for pool in range(len(pools.cores)):
            write_leaf(pools, rules, nodes, indexes, pools.start[pool], True)


@compiled_inner
def _place(run: Run, job: int, node: int, step: int) -> None:
    """Place a job on a node: allocation, power and indexes are updated at once, trends in the next step."""
    pools, shapes, jobs, rules = run.pools, run.shapes, run.jobs, run.rules
    nodes, links, scratch, indexes = run.nodes, run.links, run.scratch, run.indexes
    pool = nodes.pool[node]
    start = step
    if nodes.asleep[node]:
        nodes.asleep[node] = False
        start += rules.wake_steps
        scratch.counters[AWAKE] += 1
        scratch.counters[WAKES] += 1
    if rules.family == BY_ENERGY:
        energy.record_start(run, job, node, start - step)
    if rules.family == BY_CLASS:
        leave_class(pools, run.order, run.indexes, nodes, node)
    shape = jobs.shape[job]
    nodes.free_cores[node] -= shapes.cores[shape]
    nodes.free_gpus[node] -= shapes.gpus[shape]
    if rules.family == BY_CLASS:
        join_class(pools, run.order, run.indexes, nodes, node)
    links.next_on_node[job] = -1
    if nodes.first_job[node] < 0:
        nodes.cpu_sum_w[node] = 0.0
        nodes.gpu_sum_w[node] = 0.0
        nodes.first_job[node] = job
    else:
        links.next_on_node[nodes.last_job[node]] = job
    nodes.last_job[node] = job
    links.node_of_job[job] = node
    run.record.start_step[job] = start
    end = start + jobs.length_steps[job]
    links.end_step[job] = end
    if end < len(links.ending_head):
        links.next_ending[job] = links.ending_head[end]
        links.ending_head[end] = job
    add_job_power(pools, shapes, jobs, rules, nodes, node, job)
    _set_power(pools, rules, nodes, scratch, node)
    _activate(nodes, scratch, node)
    # The sample of this step is corrected, so that the new power already counts as one sample.
    nodes.ring_w[node, step % RING] = nodes.power_w[node]
    nodes.steady_steps[node] = max(1, nodes.steady_steps[node])
    scratch.counters[RUNNING] += 1
    was_standby = nodes.standby[node]
    if was_standby:
        nodes.standby[node] = False
        remove(indexes.standby, pool, node - pools.start[pool])
    if uses_tree(rules):
        write_leaf(pools, rules, nodes, indexes, node, True)
        if was_standby:
            following = next_member(indexes.standby, pool, 0)
            if following >= 0:
                write_leaf(pools, rules, nodes, indexes, pools.start[pool] + following, True)


@compiled_inner
def _try_place(run: Run, job: int, step: int) -> bool:
    """Place a job if it has a feasible node and the scheduler does not delay it; returns whether it was placed."""
    shape = run.jobs.shape[job]
    # Placements only take capacity: a shape that was infeasible in this step stays infeasible in it.
    if run.scratch.refused_step[shape] == step:
        return False
    node = energy.minimum_energy_node(run, job, step) if run.rules.family == BY_ENERGY else choose(run, shape)
    if node < 0:
        run.scratch.refused_step[shape] = step
        return False
    if run.energy_rules.governed and energy.governor_holds(run, job, node, step):
        return False
    _place(run, job, node, step)
    return True


@compiled_inner
def _start_jobs(run: Run, step: int) -> None:
    """Queue the jobs that arrive and start those that fit, longest waiting first."""
    jobs, scratch, record = run.jobs, run.scratch, run.record
    waiting = scratch.counters[N_WAITING]
    while scratch.counters[NEXT_JOB] < len(jobs.first_step) and jobs.first_step[scratch.counters[NEXT_JOB]] <= step:
        scratch.waiting[waiting] = scratch.counters[NEXT_JOB]
        scratch.counters[NEXT_JOB] += 1
        waiting += 1
        record.arrived[step] += 1
    if run.energy_rules.governed:
        energy.order_for_governor(run, waiting, step)
    left = 0
    for which in range(waiting):
        job = scratch.waiting[which]
        if not _try_place(run, job, step):
            scratch.waiting[left] = job
            left += 1
    if run.energy_rules.governed:
        energy.restore_order(run, left)
    if run.rules.queueing:
        scratch.counters[N_WAITING] = left
        record.waiting[step] = left
    else:
        record.dropped[step] = left


@compiled
def advance(run: Run, first_step: int, last_step: int) -> None:
    """Simulate the steps ``first_step <= step < last_step`` on the given state."""
    for step in range(first_step, last_step):
        _end_jobs(run, step)
        if run.rules.queueing:
            _fall_asleep(run, step)
        _measure(run, step)
        if run.rules.family == BY_ENERGY:
            energy.observe(run, step)
        _start_jobs(run, step)
        total_w = 0.0
        for node in range(len(run.nodes.power_w)):
            total_w += run.nodes.power_w[node]
        run.record.it_w[step] = total_w
        run.record.running[step] = run.scratch.counters[RUNNING]
        run.record.awake_nodes[step] = run.scratch.counters[AWAKE]
        if run.rules.family == BY_ENERGY:
            energy.add_waiting_time(run)
