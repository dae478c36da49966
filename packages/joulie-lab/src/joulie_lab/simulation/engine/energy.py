"""The `marginal-energy` scheduler in the compiled loop: learned job statistics, expected node states, and the search.

The formulas are those of `joulie.domain.scoring.energy` and `joulie.domain.lifetimes`; this module keeps
their state. A search scores the nodes that are up and one node at rest of each pool, because those are identical.
"""

from __future__ import annotations

import numpy as np

from joulie.domain import lifetimes
from joulie.domain.scoring import energy
from joulie_lab.simulation.compiled import compilable, compiled_inner
from joulie_lab.simulation.engine.index import insert, next_member, remove
from joulie_lab.simulation.engine.power import job_cpu_w, job_gpu_w
from joulie_lab.simulation.engine.state import (
    N_UP,
    N_WAITING,
    NEXT_JOB,
    NOW_W,
    RING,
    WAITED_MIN,
    EnergyState,
    Nodes,
    Rules,
    Run,
)

for _formula in (
    lifetimes.hazard_per_min,
    lifetimes.survival,
    lifetimes.mean_remaining_min,
    energy.stranded_gpus,
    energy.extension_min,
    energy.placement_cost_w_min,
    energy.marginal_cost_w_min,
    energy.packing_rank,
    energy.may_hold,
):
    compilable(_formula)

UTIL_PRIOR = 0.6
"""Prior mean utilisation of a job class, with the weight of one job."""


@compiled_inner
def at_rest(rules: Rules, nodes: Nodes, node: int) -> bool:
    """Whether a node is asleep, or empty in a mode without sleep."""
    return bool(nodes.asleep[node]) if rules.queueing else bool(nodes.first_job[node] < 0)


@compiled_inner
def _bin(state: EnergyState, age_min: float) -> int:
    return int(state.bin_of_minute[min(int(age_min), len(state.bin_of_minute) - 1)])


@compiled_inner
def record_at_risk(run: Run, job_class: int, age_steps: int) -> None:
    """Record that a job of the class was at risk of ending in the step before it reached `age_steps`."""
    rules, state = run.rules, run.energy
    if age_steps >= 1:
        state.at_risk_min[job_class, _bin(state, (age_steps - 1) * rules.step_min)] += rules.step_min


@compiled_inner
def record_end(run: Run, job: int) -> None:
    """Record the lifetime and the utilisation of a job that has ended."""
    jobs, rules, state = run.jobs, run.rules, run.energy
    job_class = state.job_class[job]
    length = jobs.length_steps[job]
    record_at_risk(run, job_class, length)
    state.ends[job_class, _bin(state, (length - 1) * rules.step_min)] += 1.0
    state.ended[job_class] += 1.0
    state.cpu_util_sum[job_class] += jobs.cpu_util[job]
    state.gpu_util_sum[job_class] += jobs.gpu_util[job]


@compiled_inner
def _update_life_tables(run: Run) -> None:
    state, energy_rules = run.energy, run.energy_rules
    n_classes, n_bins = state.ends.shape
    for job_class in range(n_classes):
        for which in range(n_bins):
            state.hazard_per_min[job_class, which] = lifetimes.hazard_per_min(
                state.ends[job_class, which],
                state.at_risk_min[job_class, which],
                energy_rules.prior_mean_min,
                energy_rules.prior_weight_min,
            )
        # The last bin is open-ended: its hazard is constant.
        state.remaining_at_edge_min[job_class, n_bins - 1] = 1.0 / state.hazard_per_min[job_class, n_bins - 1]
        for which in range(n_bins - 2, -1, -1):
            state.remaining_at_edge_min[job_class, which] = lifetimes.mean_remaining_min(
                state.edges_min[which + 1] - state.edges_min[which],
                state.hazard_per_min[job_class, which],
                state.remaining_at_edge_min[job_class, which + 1],
            )


@compiled_inner
def _remaining_min(state: EnergyState, job_class: int, age_min: float) -> float:
    """Expected remaining minutes of a job of this age; the time to its start is added for a negative age."""
    if age_min <= 0.0:
        return float(state.remaining_at_edge_min[job_class, 0] - age_min)
    which = _bin(state, age_min)
    if which == state.ends.shape[1] - 1:
        return float(state.remaining_at_edge_min[job_class, which])
    return float(
        lifetimes.mean_remaining_min(
            state.edges_min[which + 1] - age_min,
            state.hazard_per_min[job_class, which],
            state.remaining_at_edge_min[job_class, which + 1],
        )
    )


@compiled_inner
def observe(run: Run, step: int) -> None:
    """Update the life tables, the list of nodes that are up, and their expected busy times."""
    pools, jobs, rules, nodes, links, state = run.pools, run.jobs, run.rules, run.nodes, run.links, run.energy
    kept = 0
    for which in range(run.scratch.counters[N_UP]):
        node = state.up[which]
        if at_rest(rules, nodes, node):
            state.is_up[node] = False
            insert(state.resting, nodes.pool[node], node - pools.start[nodes.pool[node]])
            continue
        state.up[kept] = node
        kept += 1
        job = nodes.first_job[node]
        while job >= 0:
            record_at_risk(run, state.job_class[job], step - links.end_step[job] + jobs.length_steps[job])
            job = links.next_on_node[job]
    run.scratch.counters[N_UP] = kept
    _update_life_tables(run)
    state.gauges[NOW_W] = run.scratch.cluster_ring_w[step % RING]
    for which in range(kept):
        node = state.up[which]
        busy_min = 0.0
        job = nodes.first_job[node]
        while job >= 0:
            left_min = (links.end_step[job] - step) * rules.step_min
            if not run.energy_rules.oracle:
                age_min = jobs.length_steps[job] * rules.step_min - left_min
                left_min = _remaining_min(state, state.job_class[job], age_min)
            busy_min = max(busy_min, left_min)
            job = links.next_on_node[job]
        state.busy_min[node] = busy_min


@compiled_inner
def expected_duration_min(run: Run, job: int) -> float:
    """Expected duration of a job that has not started, min."""
    if run.energy_rules.oracle:
        return float(run.jobs.length_steps[job] * run.rules.step_min)
    return float(run.energy.remaining_at_edge_min[run.energy.job_class[job], 0])


@compiled_inner
def expected_power_w(run: Run, job: int, pool: int) -> float:
    """Expected power of a job on a pool, from the mean utilisation of its class so far, W."""
    state = run.energy
    job_class = state.job_class[job]
    shape = run.jobs.shape[job]
    weight = state.ended[job_class] + 1.0
    cpu_util = (state.cpu_util_sum[job_class] + UTIL_PRIOR) / weight
    power_w = job_cpu_w(run.pools, run.rules, pool, run.shapes.cores[shape], cpu_util)
    if run.shapes.gpus[shape] > 0:
        gpu_util = (state.gpu_util_sum[job_class] + UTIL_PRIOR) / weight
        power_w += job_gpu_w(run.pools, run.shapes, run.rules, pool, shape, gpu_util)
    return power_w


@compiled_inner
def _first_pool_for(run: Run, shape: int) -> int:
    """Index of the first pool whose nodes have the GPUs requested by a shape; 0 if none has."""
    for pool in range(len(run.pools.cores)):
        if run.pools.gpus[pool] >= run.shapes.gpus[shape]:
            return pool
    return 0


@compiled_inner
def minimum_energy_node(run: Run, job: int, step: int) -> int:
    """Feasible node with the minimum added energy; ties go to the fullest node, then the lowest index; -1 if none."""
    pools, shapes, nodes, state = run.pools, run.shapes, run.nodes, run.energy
    shape = run.jobs.shape[job]
    cores = shapes.cores[shape]
    gpus = shapes.gpus[shape]
    duration_min = expected_duration_min(run, job)
    n_up = run.scratch.counters[N_UP]
    best = -1
    best_cost = np.inf
    best_rank: float = np.inf
    for which in range(n_up + len(pools.cores)):
        if which < n_up:
            node = state.up[which]
        else:
            position = next_member(state.resting, which - n_up, 0)
            if position < 0:
                continue
            node = pools.start[which - n_up] + position
        if nodes.free_cores[node] < cores or nodes.free_gpus[node] < gpus:
            continue
        pool = nodes.pool[node]
        cost = _cost_w_min(run, job, node, duration_min, step)
        node_cores_per_gpu = pools.cores[pool] / max(1, pools.gpus[pool])
        rank = float(energy.packing_rank(nodes.free_cores[node], nodes.free_gpus[node], node_cores_per_gpu))
        if cost < best_cost or (cost == best_cost and (rank < best_rank or (rank == best_rank and node < best))):
            best = node
            best_cost = cost
            best_rank = rank
    return best


@compiled_inner
def _cost_w_min(run: Run, job: int, node: int, duration_min: float, step: int) -> float:
    pools, shapes, nodes, rules, state = run.pools, run.shapes, run.nodes, run.rules, run.energy
    energy_rules = run.energy_rules
    pool = nodes.pool[node]
    shape = run.jobs.shape[job]
    wake_w_min = 0.0
    if at_rest(rules, nodes, node):
        busy_min = -(energy_rules.wake_min + energy_rules.wake_stay_min)
        wake_w_min = expected_power_w(run, job, pool) * energy_rules.wake_min
    elif nodes.first_job[node] < 0:
        busy_min = float((nodes.empty_step[node] - step) * rules.step_min)
    else:
        busy_min = float(state.busy_min[node])
    return float(
        energy.marginal_cost_w_min(
            state.base_w[pool],
            busy_min,
            wake_w_min,
            1.0 if pools.gpus[pool] > 0 else 0.0,
            float(nodes.free_cores[node]),
            float(nodes.free_gpus[node]),
            state.stranded_gpu_w[pool],
            state.surcharge_w_per_core,
            energy_rules.cores_per_gpu,
            duration_min,
            float(shapes.cores[shape]),
            float(shapes.gpus[shape]),
        )
    )


@compiled_inner
def governor_holds(run: Run, job: int, node: int, step: int) -> bool:
    """Whether the ramp governor delays the job; if not, its power is added to the present power."""
    state = run.energy
    pool = run.nodes.pool[node]
    wakes = at_rest(run.rules, run.nodes, node)
    job_w = expected_power_w(run, job, pool)
    rise_w = job_w - run.pools.gpu_idle_w[pool] * run.shapes.gpus[run.jobs.shape[job]]
    if wakes:
        rise_w += state.base_w[pool]
    step_min = run.rules.step_min
    waited_min = (step - run.jobs.first_step[job]) * step_min
    mean_wait_min = (state.gauges[WAITED_MIN] + step_min) / run.scratch.counters[NEXT_JOB]
    # Nothing is recorded before the first step, so there is no rise yet.
    before_w = run.record.it_w[step - 1] if step > 0 else state.gauges[NOW_W]
    held = energy.may_hold(
        waited_min,
        mean_wait_min,
        state.gauges[NOW_W],
        rise_w,
        before_w,
        job_w >= run.energy_rules.heavy_w,
        wakes,
        run.energy_rules.limits,
    )
    if not held:
        state.gauges[NOW_W] += rise_w
    return bool(held)


@compiled_inner
def is_deferrable(run: Run, job: int, step: int) -> bool:
    """Whether the governor considers a job after the others: it is heavy and has not reached the hold limit."""
    hold_limit_min = run.energy_rules.limits[2]
    if (step - run.jobs.first_step[job]) * run.rules.step_min >= hold_limit_min:
        return False
    pool = _first_pool_for(run, run.jobs.shape[job])
    return expected_power_w(run, job, pool) >= run.energy_rules.heavy_w


@compiled_inner
def order_for_governor(run: Run, waiting: int, step: int) -> None:
    """Partition the waiting jobs for the governor: deferrable jobs last, each part in order of arrival."""
    jobs, buffer = run.scratch.waiting, run.energy.merged
    first = 0
    last = 0
    for which in range(waiting):
        job = jobs[which]
        if is_deferrable(run, job, step):
            buffer[last] = job
            last += 1
        else:
            jobs[first] = job
            first += 1
    for which in range(last):
        jobs[first + which] = buffer[which]


@compiled_inner
def restore_order(run: Run, waiting: int) -> None:
    """Merge the two parts of `order_for_governor` by arrival, which is the order of job numbers."""
    jobs, buffer = run.scratch.waiting, run.energy.merged
    middle = 1
    while middle < waiting and jobs[middle] > jobs[middle - 1]:
        middle += 1
    left = 0
    right = middle
    for which in range(waiting):
        if right >= waiting or (left < middle and jobs[left] < jobs[right]):
            buffer[which] = jobs[left]
            left += 1
        else:
            buffer[which] = jobs[right]
            right += 1
    for which in range(waiting):
        jobs[which] = buffer[which]


@compiled_inner
def add_waiting_time(run: Run) -> None:
    """Add one step of waiting time for each job in the queue."""
    run.energy.gauges[WAITED_MIN] += run.scratch.counters[N_WAITING] * run.rules.step_min


@compiled_inner
def record_start(run: Run, job: int, node: int, delay_steps: int) -> None:
    """Record the start of a job on a node, which is up from now on; call before the node's job list changes."""
    pools, nodes, state = run.pools, run.nodes, run.energy
    if not state.is_up[node]:
        state.is_up[node] = True
        remove(state.resting, nodes.pool[node], node - pools.start[nodes.pool[node]])
        state.up[run.scratch.counters[N_UP]] = node
        run.scratch.counters[N_UP] += 1
    if nodes.first_job[node] < 0:
        state.busy_min[node] = 0.0
    delay_min = delay_steps * run.rules.step_min
    state.gauges[WAITED_MIN] += delay_min
    busy_min = expected_duration_min(run, job) + delay_min
    state.busy_min[node] = max(state.busy_min[node], busy_min)
