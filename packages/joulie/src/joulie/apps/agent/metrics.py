"""The agent's Prometheus metrics, collected from the state of its nodes at each scrape.

A node that is removed takes its series with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from joulie.apps.agent.host import Host, Observation
from joulie.apps.agent.node import NodeAgent
from joulie.apps.agent.outcome import backends_of, worst
from joulie.program.metrics import process_registry

MODES = ("none", "rapl", "hsmp", "dvfs")
_HZ_PER_KHZ = 1e3
_UJ_PER_J = 1e6


def registry(nodes: Callable[[], Iterable[NodeAgent]]) -> CollectorRegistry:
    """Registry with the metrics of all nodes of this agent and of the process."""
    metrics = process_registry()
    metrics.register(_Nodes(nodes))
    return metrics


class _Families:
    """Metric families of one scrape, by name without the prefix ``joulie_``."""

    def __init__(self) -> None:
        self._families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        gauge, counter = GaugeMetricFamily, CounterMetricFamily
        for kind, name, text, labels in (
            (gauge, "backend_mode", "1 for the backend that caps the CPUs, 0 for the others.", ["node", "mode"]),
            (
                gauge,
                "agent_control",
                "1 for the result of enforcing the cap of the CPUs or GPUs in the last cycle, as in controlStatus; "
                "subsystem clock: for the worst result of locking SM clocks, while one is asked for or may be locked.",
                ["node", "subsystem", "result"],
            ),
            (gauge, "policy_cap_watts", "Requested cap of each CPU package, W.", ["node", "policy"]),
            (gauge, "rapl_energy_uj", "RAPL energy counter, uJ.", ["node", "zone"]),
            (
                gauge,
                "rapl_estimated_power_watts",
                "Mean power of a RAPL zone since the last cycle, W.",
                ["node", "zone"],
            ),
            (gauge, "rapl_package_total_power_watts", "Mean power of all CPU packages, W.", ["node"]),
            (gauge, "dvfs_observed_power_watts", "Latest power seen by the frequency controller, W.", ["node"]),
            (
                gauge,
                "dvfs_ema_power_watts",
                "Exponential moving average of power used by the frequency controller, W.",
                ["node"],
            ),
            (gauge, "dvfs_throttle_pct", "Throttle in force, percent.", ["node"]),
            (gauge, "dvfs_above_trip_count", "Consecutive samples above the upper margin.", ["node"]),
            (gauge, "dvfs_below_trip_count", "Consecutive samples below the lower margin.", ["node"]),
            (counter, "dvfs_actions", "Changes of the throttle.", ["node", "action"]),
            (gauge, "dvfs_cpu_cur_freq_khz", "Frequency of a cpufreq policy, kHz.", ["node", "cpu"]),
            (gauge, "dvfs_cpu_max_freq_khz", "Upper frequency limit of a cpufreq policy, kHz.", ["node", "cpu"]),
            (gauge, "gpu_power_watts", "Power of a GPU, W.", ["node", "gpu"]),
            (gauge, "gpu_power_limit_watts", "Power limit of a GPU in force, W.", ["node", "gpu"]),
            (
                gauge,
                "gpu_sm_clock_control",
                "1 for the result of locking the SM clock of a GPU in the last cycle, as in controlStatus.",
                ["node", "gpu", "result"],
            ),
            (
                counter,
                "gpu_limit_resets",
                "Times that another program replaced a limit of Joulie's by a higher one.",
                ["node", "gpu"],
            ),
            (
                gauge,
                "agent_last_cycle_timestamp_seconds",
                "End of the last cycle that measured and enforced, s since the epoch.",
                ["node"],
            ),
            (counter, "reconcile_errors", "Cycles that failed, and devices that failed in a cycle.", ["node"]),
        ):
            self._families[name] = kind(f"joulie_{name}", text, labels=labels)

    def add(self, name: str, value: float | None, *labels: str) -> None:
        """Add a sample; None adds none, since missing is not zero."""
        if value is not None:
            self._families[name].add_metric(list(labels), value)

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._families.values())


class _Nodes(Collector):
    def __init__(self, nodes: Callable[[], Iterable[NodeAgent]]) -> None:
        self._nodes = nodes

    def describe(self) -> Iterable[Metric]:
        return _Families()

    def collect(self) -> Iterable[Metric]:
        families = _Families()
        for node in list(self._nodes()):
            _add_control(families, node)
            if node.host is not None and node.host.observation is not None:
                _add_host(families, node.name, node.host, node.host.observation)
        return families


def _add_control(families: _Families, node: NodeAgent) -> None:
    name = node.name
    families.add("agent_last_cycle_timestamp_seconds", node.last_cycle_epoch_s, name)
    families.add("reconcile_errors", node.errors, name)
    backends = backends_of(node.mode)
    for mode in MODES:
        families.add("backend_mode", float(mode in backends), name, mode)
    for subsystem, outcome in (("cpu", node.cpu), ("gpu", node.gpu)):
        if outcome is not None:
            families.add("agent_control", 1.0, name, subsystem, outcome.result.value)
    twin = node.inputs.twin if node.inputs else None
    if twin is not None:
        families.add("policy_cap_watts", node.cpu_cap_w, name, twin.policy)
    state = node.throttle.state
    if node.mode == "dvfs":
        families.add("dvfs_observed_power_watts", node.cpu_power_w, name)
    families.add("dvfs_ema_power_watts", state.ema_w, name)
    families.add("dvfs_throttle_pct", state.throttle_pct, name)
    families.add("dvfs_above_trip_count", state.above, name)
    families.add("dvfs_below_trip_count", state.below, name)
    for action, count in node.actions.items():
        families.add("dvfs_actions", count, name, action.value)


def _add_host(families: _Families, name: str, host: Host, seen: Observation) -> None:
    for zone, energy_j in seen.cpu_power.energy_j.items():
        families.add("rapl_energy_uj", energy_j * _UJ_PER_J, name, zone)
    for zone, power_w in seen.cpu_power.power_w.items():
        families.add("rapl_estimated_power_watts", power_w, name, zone)
    families.add("rapl_package_total_power_watts", seen.cpu_power.package_power_w, name)
    for policy in seen.policies:
        cpu = policy.id.removeprefix("policy")
        current_hz = policy.current_hz
        families.add("dvfs_cpu_cur_freq_khz", None if current_hz is None else current_hz / _HZ_PER_KHZ, name, cpu)
        families.add("dvfs_cpu_max_freq_khz", policy.limit_hz / _HZ_PER_KHZ, name, cpu)
    for gpu_id, times in host.gpu_resets.items():
        families.add("gpu_limit_resets", times, name, gpu_id)
    for gpu_id, clock in host.gpu_clocks.items():
        if clock.result is not None:
            families.add("gpu_sm_clock_control", 1.0, name, gpu_id, clock.result.value)
    clocks = [clock.result for clock in host.gpu_clocks.values() if clock.result is not None]
    if clocks:
        families.add("agent_control", 1.0, name, "clock", worst(clocks).value)
    for gpu in seen.gpus:
        families.add("gpu_power_watts", seen.gpu_power.power_w.get(gpu.id), name, gpu.id)
        families.add("gpu_power_limit_watts", gpu.limit_w, name, gpu.id)
