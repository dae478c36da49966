"""Metrics of the simulator service; their names are a documented interface.

Node metrics are read from the world at each scrape, so that they cost nothing per tick and the series of removed nodes
disappear.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from joulie_lab.apps.simulator.world import WORK_RATE_HELP, World, pods_by_node, work_rates


class SimulatorMetrics:
    """All metrics of the program."""

    def __init__(self, world: World, catch_up: Callable[[], float] = time.time) -> None:
        """Create the metrics of a world.

        Args:
            world: the world.
            catch_up: advances it to the present before it is read; returns the time that its state is of, s since the
                epoch.
        """
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "joulie_sim_requests", "HTTP requests.", ["route", "method", "status"], registry=self.registry
        )
        self.request_seconds = Histogram(
            "joulie_sim_request_duration_seconds",
            "Time to respond to a request.",
            ["route", "method"],
            registry=self.registry,
        )
        self.controls = Counter(
            "joulie_sim_controls", "Control requests received.", ["node", "action"], registry=self.registry
        )
        self.control_actions = Counter(
            "joulie_sim_control_actions",
            "Control requests by result.",
            ["node", "action", "result"],
            registry=self.registry,
        )
        self.jobs_submitted = Counter(
            "joulie_sim_job_submitted", "Jobs submitted: their pod was created.", ["class"], registry=self.registry
        )
        self.jobs_completed = Counter(
            "joulie_sim_job_completed", "Jobs completed.", ["class", "node"], registry=self.registry
        )
        self.job_seconds = Histogram(
            "joulie_sim_job_completion_seconds",
            "Simulated time from submission to completion.",
            buckets=(30, 60, 300, 900, 3600, 4 * 3600, 24 * 3600, 7 * 24 * 3600),
            registry=self.registry,
        )
        self.tick_seconds = Histogram(
            "joulie_sim_tick_duration_seconds", "Time to advance the simulation by one tick.", registry=self.registry
        )
        self.registry.register(_NodeCollector(world, catch_up))


class _NodeCollector:
    """Gauges of the nodes, computed at each scrape."""

    def __init__(self, world: World, catch_up: Callable[[], float]) -> None:
        self._world = world
        self._catch_up = catch_up
        self._traffic = _MemoryTraffic()

    def collect(self) -> Iterable[Metric]:
        world, epoch_s = self._world, self._catch_up()
        fleet, state, names = world.fleet, world.fleet.state, world.node_names
        gauges = {
            "cap_watts": ("Effective package power cap, sum of all packages.", state.cpu_cap_now_w),
            "rapl_cap_watts": ("Requested package power cap, sum of all packages; +Inf if uncapped.", state.cpu_cap_w),
            "throttle_pct": ("Reduction of the CPU clock below its maximum, %.", (1.0 - state.throttle_now) * 100.0),
            "power_watts": ("Power of the whole node.", fleet.wall_w),
            "cpu_util": ("CPU utilisation, 0..1.", fleet.load.cpu_util),
            "freq_scale": ("CPU clock as a fraction of its maximum, 0..1.", fleet.frequency),
        }
        for suffix, (text, values) in gauges.items():
            family = GaugeMetricFamily(f"joulie_sim_node_{suffix}", text, labels=["node"])
            for name, value in zip(names, values.tolist(), strict=True):
                family.add_metric([name], value)
            yield family
        running = GaugeMetricFamily("joulie_sim_node_running_pods", "Running pods.", labels=["node"])
        counts = pods_by_node(world.workload.pods.values())
        for name in names:
            running.add_metric([name], counts.get(name, 0))
        yield running
        rates = GaugeMetricFamily("joulie_sim_pod_work_rate", WORK_RATE_HELP, labels=["namespace", "pod"])
        for labels, rate in work_rates(world):
            rates.add_metric([labels["namespace"], labels["pod"]], rate)
        yield rates
        yield from _gpus(world, epoch_s, self._traffic)
        classes = GaugeMetricFamily("joulie_sim_node_class_info", "Hardware of a node.", labels=["node", "class"])
        for spec in fleet.specs:
            classes.add_metric([spec.name, spec.gpu.key if spec.gpu else spec.cpu.key], 1)
        yield classes
        yield GaugeMetricFamily("datacenter_total_it_power_watts", "Power of all nodes.", value=world.it_power_w)
        yield GaugeMetricFamily("datacenter_cooling_power_watts", "Power of cooling.", value=world.cooling.cooling_w)


_DCGM_LABELS = ("UUID", "gpu", "Hostname", "modelName", "namespace", "pod")


class _MemoryTraffic:
    """Memory traffic of GPUs as their counters show it: the mean since the read before, by the steps done meanwhile.

    Each step of a job moves the same bytes, whatever the limit of its GPU; that is assumed.
    """

    _AT_FULL_RATE = 0.4
    """Share of the time in which memory moves data while steps are undisturbed; assumed."""

    def __init__(self) -> None:
        self._time_s = -math.inf
        self._done: Mapping[tuple[str, ...], float] = {}
        self._shares: Mapping[tuple[str, ...], float] = {}

    def shares(self, done: Mapping[tuple[str, ...], float], time_s: float) -> Mapping[tuple[str, ...], float]:
        """Share of the time in which memory moved data, 0..1, by GPU and pod; absent at the first read of a pod.

        Args:
            done: steps done so far, in seconds of undisturbed ones.
            time_s: simulated time, s.
        """
        if time_s > self._time_s:
            rate = self._AT_FULL_RATE / (time_s - self._time_s)
            self._shares = {key: rate * (done[key] - self._done[key]) for key in done.keys() & self._done.keys()}
            self._time_s, self._done = time_s, done
        return self._shares


def _gpus(world: World, epoch_s: float, traffic: _MemoryTraffic) -> Iterator[Metric]:
    """GPUs of pods with a job of a sweep as dcgm-exporter shows them, and the pods' own counters of work.

    They carry the time that the world's state is of: where simulated time runs fast, a scrape that is late by some
    hundredths of a second would be noise in the rates.
    """
    power = GaugeMetricFamily("DCGM_FI_DEV_POWER_USAGE", "Power of a GPU, W, and its pod.", labels=_DCGM_LABELS)
    work = CounterMetricFamily(
        "joulie_sim_pod_work", "Work done by a pod with a job of a sweep.", labels=["namespace", "pod"]
    )
    moved = GaugeMetricFamily(
        "DCGM_FI_PROF_DRAM_ACTIVE", "Share of the time in which memory moves data, 0..1.", labels=_DCGM_LABELS
    )
    held = {tuple(labels[name] for name in _DCGM_LABELS): at for labels, *at in world.held_gpus()}
    shares = traffic.shares({values: done for values, (_, done) in held.items()}, world.time_s)
    for values, (power_w, done) in held.items():
        power.add_metric(values, power_w, timestamp=epoch_s)
        work.add_metric(values[-2:], done, timestamp=epoch_s)
        if values in shares:
            moved.add_metric(values, shares[values], timestamp=epoch_s)
    yield from (power, work, moved)
