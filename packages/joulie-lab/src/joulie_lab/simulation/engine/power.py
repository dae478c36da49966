"""Power of nodes and of their jobs, as defined by the published experiment and the equal-work benchmark."""

from __future__ import annotations

from joulie.domain.marginal import CPU_LOAD
from joulie_lab.simulation.compiled import compiled_inner
from joulie_lab.simulation.engine.state import Jobs, Nodes, Pools, Rules, Shapes


@compiled_inner
def node_power_w(pools: Pools, nodes: Nodes, rules: Rules, node: int) -> float:
    """Power of a node from the sums over its jobs, W."""
    pool = nodes.pool[node]
    if nodes.asleep[node]:
        return float(pools.cpu_max_w[pool] * rules.sleep_fraction)
    busy = nodes.first_job[node] >= 0
    power = nodes.cpu_sum_w[node] + (rules.busy_fraction if busy else rules.empty_fraction) * pools.cpu_max_w[pool]
    if pools.gpus[pool] > 0:
        power += nodes.gpu_sum_w[node] + pools.gpu_idle_w[pool] * nodes.free_gpus[node]
    return float(power)


@compiled_inner
def job_cpu_w(pools: Pools, rules: Rules, pool: int, cores: int, util: float) -> float:
    """CPU power that a job adds to a node, W."""
    if rules.w_per_core > 0.0:
        return rules.w_per_core * cores * util
    return float(pools.cpu_max_w[pool] * CPU_LOAD * (cores / pools.cores[pool]) * util)


@compiled_inner
def job_gpu_w(pools: Pools, shapes: Shapes, rules: Rules, pool: int, shape: int, util: float) -> float:
    """Power of a job on its GPUs, W."""
    coefficient = rules.gpu_performance_coeff if shapes.performance[shape] else rules.gpu_standard_coeff
    return float(shapes.gpus[shape] * pools.gpu_max_w[pool] * coefficient * util)


@compiled_inner
def add_job_power(pools: Pools, shapes: Shapes, jobs: Jobs, rules: Rules, nodes: Nodes, node: int, job: int) -> None:
    """Add a job's terms to its node's sums."""
    pool = nodes.pool[node]
    shape = jobs.shape[job]
    nodes.cpu_sum_w[node] += job_cpu_w(pools, rules, pool, shapes.cores[shape], jobs.cpu_util[job])
    if shapes.gpus[shape] > 0:
        nodes.gpu_sum_w[node] += job_gpu_w(pools, shapes, rules, pool, shape, jobs.gpu_util[job])
