"""Benchmark attribution: conservation of attributed power, and its error against the true power of each pod.

Joulie's rule is compared with the same rule on other measurements, and with simpler rules of other tools.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from joulie.domain.attribution import (
    GpuDevices,
    GpuHolds,
    NodePowerParts,
    PodLoads,
    attribute_by_work,
    attribute_gpu,
    gpu_power_of_pods_w,
)
from joulie.domain.units import FloatArray, IntArray
from joulie_lab.benchmarks.attribution_clusters import (
    GPUS_A_NODE,
    CpuCluster,
    CpuSample,
    GpuCluster,
    GpuSample,
    Sharing,
)
from joulie_lab.benchmarks.parity import OnStage
from joulie_lab.benchmarks.results import Figures
from joulie_lab.simulation.runner import Clock


@dataclass(frozen=True)
class AttributionPlan:
    """Size of the benchmark.

    Attributes:
        seeds: seeds, one cluster each.
        samples: number of samples of each cluster.
        nodes: number of CPU nodes of each cluster.
        gpu_nodes: number of GPU nodes of each cluster and sharing mode.
        timed_nodes: number of nodes of the timed sample.
        repeats: number of timed repetitions; the fastest counts, as others include noise of the machine.
    """

    seeds: tuple[int, ...]
    samples: int
    nodes: int
    gpu_nodes: int
    timed_nodes: int
    repeats: int


FULL = AttributionPlan(seeds=(1, 2, 3, 4, 5), samples=480, nodes=200, gpu_nodes=20, timed_nodes=10_000, repeats=50)
SMALL = AttributionPlan(seeds=(1,), samples=60, nodes=40, gpu_nodes=4, timed_nodes=1_000, repeats=5)


class RuleError(Figures, frozen=True):
    """Error of a rule; percentages of the pods' true power."""

    mean_abs_error_w: float
    error_pct: float
    charged_pct: float


class Attributed(Figures, frozen=True):
    """Result for one kind of power: conservation, coverage, and error of each pod's power."""

    conservation_error: float
    smallest_part_w: float
    powers: int
    known_pct: float
    pods_told: int
    told_pct: float
    mean_true_w: float
    rules: Mapping[str, RuleError]
    events: Mapping[str, int]


class Sample(Figures, frozen=True):
    """Size of a timed sample, and its time in milliseconds."""

    nodes: int
    pods: int
    devices: int
    cpu_ms: float
    gpu_ms: float


class AttributionResult(Figures, frozen=True):
    """Result of the benchmark; GPU results by sharing mode."""

    seeds: Sequence[int]
    cpu: Attributed
    gpu: Mapping[str, Attributed]
    sample: Sample


def measure(plan: AttributionPlan, clock: Clock, on_stage: OnStage) -> AttributionResult:
    """All figures of the benchmark.

    Args:
        plan: `FULL` or `SMALL`.
        clock: measures the seconds.
        on_stage: told what is measured next.
    """
    cpu, gpu = Tally(), {sharing: Tally() for sharing in Sharing}
    for seed in plan.seeds:
        on_stage(f"attribution, seed {seed}")
        rng = np.random.default_rng(seed)
        nodes = CpuCluster(plan.nodes, rng)
        devices = {sharing: GpuCluster(plan.gpu_nodes, sharing, rng) for sharing in Sharing}
        for _ in range(plan.samples):
            _judge_cpu(nodes.sample(), cpu)
            for sharing, cluster in devices.items():
                _judge_gpu(cluster.sample(), gpu[sharing])
    on_stage(f"attribution, time of a sample of {plan.timed_nodes:,} nodes")
    by_sharing = {sharing.value: tally.figures() for sharing, tally in gpu.items()}
    return AttributionResult(list(plan.seeds), cpu.figures(), by_sharing, _timed(plan, clock))


@dataclass
class Tally:
    """Running totals over the samples.

    Attributes:
        conservation_error: maximum relative difference between measured power and the sum of its parts.
        smallest_part_w: minimum part of any node, device or pod, W.
        powers: number of known powers of nodes or devices.
        powers_unknown: number of unknown powers of nodes or devices.
        pods: number of pod samples.
        pods_told: number of pod samples with attributed power.
        true_w: sum of the true power of these pods, W.
        error_w: sum of absolute errors by rule, W.
        charged_w: sum of attributed power by rule, W.
        events: number of events in the samples by name.
    """

    conservation_error: float = 0.0
    smallest_part_w: float = math.inf
    powers: int = 0
    powers_unknown: int = 0
    pods: int = 0
    pods_told: int = 0
    true_w: float = 0.0
    error_w: dict[str, float] = field(default_factory=dict)
    charged_w: dict[str, float] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)

    def conserved(self, measured_w: FloatArray, charged_w: FloatArray, index: IntArray, rest_w: FloatArray) -> None:
        """Compare measured power with its parts.

        Args:
            measured_w: power of each node or device, W; NaN if unknown.
            charged_w: power attributed to each pod, W; NaN if unknown.
            index: index of each pod's node or device.
            rest_w: other parts of the measured power, W, shape ``(n_parts, n_measured)``.
        """
        known, told = np.isfinite(measured_w), np.isfinite(charged_w)
        sum_w = np.bincount(index[told], charged_w[told], len(measured_w)) + rest_w.sum(axis=0)
        # A reset counter can read 0 W, and no part may exceed it.
        error = np.abs(sum_w[known] - measured_w[known]) / np.maximum(measured_w[known], 1e-9)
        # NumPy's maximum and minimum propagate NaN, so that lost power is not counted as 0.
        self.conservation_error = float(np.max(error, initial=self.conservation_error))
        parts_w = np.concatenate([charged_w[told], rest_w[:, known].ravel()])
        self.smallest_part_w = float(np.min(parts_w, initial=self.smallest_part_w))
        self.powers += int(known.sum())
        self.powers_unknown += int((~known).sum())

    def compared(self, true_w: FloatArray, rules_w: Mapping[str, FloatArray]) -> None:
        """Compare rules with the true power, on the pods for which the first rule has a value."""
        told = np.isfinite(next(iter(rules_w.values())))
        self.pods += len(told)
        self.pods_told += int(told.sum())
        self.true_w += float(true_w[told].sum())
        for rule, power_w in rules_w.items():
            error_w = np.abs(power_w[told] - true_w[told]).sum()
            self.error_w[rule] = self.error_w.get(rule, 0.0) + float(error_w)
            self.charged_w[rule] = self.charged_w.get(rule, 0.0) + float(power_w[told].sum())

    def happened(self, events: Mapping[str, int]) -> None:
        """Count the events of a sample."""
        for name, count in events.items():
            self.events[name] = self.events.get(name, 0) + count

    def figures(self) -> Attributed:
        """The totals as percentages and means."""
        return Attributed(
            conservation_error=self.conservation_error,
            smallest_part_w=self.smallest_part_w,
            powers=self.powers,
            known_pct=100.0 * self.powers / (self.powers + self.powers_unknown),
            pods_told=self.pods_told,
            told_pct=100.0 * self.pods_told / self.pods,
            mean_true_w=self.true_w / self.pods_told,
            rules={
                rule: RuleError(
                    error_w / self.pods_told,
                    100.0 * error_w / self.true_w,
                    100.0 * self.charged_w[rule] / self.true_w,
                )
                for rule, error_w in self.error_w.items()
            },
            events=self.events,
        )


def _judge_cpu(sample: CpuSample, tally: Tally) -> None:
    nodes, pods = sample.nodes, sample.pods
    result = attribute_by_work(nodes, pods)
    tally.conserved(nodes.power_w, result.pods_w, pods.node, np.stack([result.system_w, result.idle_w]))
    tally.happened(sample.events)

    def charged_w(idle_w: FloatArray, work: FloatArray, weight: FloatArray) -> FloatArray:
        return attribute_by_work(NodePowerParts(nodes.power_w, idle_w, work), PodLoads(pods.node, weight)).pods_w

    not_known = np.full_like(nodes.power_w, np.nan)
    on_node = np.bincount(pods.node[pods.node >= 0], minlength=len(nodes.power_w))
    tally.compared(
        sample.true_w,
        {
            "joulie": result.pods_w,
            "cores_in_step": charged_w(nodes.idle_w, sample.busy_in_step, sample.used_in_step),
            "cores_in_step_true_idle": charged_w(sample.idle_w, sample.busy_in_step, sample.used_in_step),
            "requests": charged_w(nodes.idle_w, not_known, sample.requested_cores),
            "saved_without_it": sample.saved_w,
            "even": nodes.power_w[pods.node] / np.maximum(on_node, 1)[pods.node],
            "idle_to_each": result.pods_w + result.idle_w[pods.node],
        },
    )


def _judge_gpu(sample: GpuSample, tally: Tally) -> None:
    devices, holds, n_pods = sample.devices, sample.holds, len(sample.true_w)
    result = attribute_gpu(devices, holds)
    tally.conserved(devices.power_w, result.holds_w, holds.device, result.idle_w[np.newaxis])
    tally.happened(sample.events)
    known = holds.pod >= 0
    pod, device = holds.pod[known], holds.device[known]
    node_w = np.asarray(np.bincount(sample.node_of_device, np.nan_to_num(devices.power_w)), np.float64)
    node_of_pod = np.zeros(n_pods, np.int64)
    node_of_pod[pod] = sample.node_of_device[device]
    tally.compared(
        sample.true_w,
        {
            "joulie": gpu_power_of_pods_w(holds, result, n_pods),
            "device_to_each": np.asarray(np.bincount(pod, devices.power_w[device], n_pods), np.float64),
            "node_to_each": node_w[node_of_pod],
        },
    )


def _timed(plan: AttributionPlan, clock: Clock) -> Sample:
    """Time of a sample in milliseconds: ten pods per node, GPUs on every fifth node."""
    rng = np.random.default_rng(plan.seeds[0])
    n_nodes, n_pods, n_devices = plan.timed_nodes, 10 * plan.timed_nodes, GPUS_A_NODE * plan.timed_nodes // 5
    nodes = NodePowerParts(rng.uniform(100.0, 800.0, n_nodes), np.full(n_nodes, 100.0), rng.uniform(1.0, 96.0, n_nodes))
    pods = PodLoads(rng.integers(n_nodes, size=n_pods), rng.uniform(0.0, 8.0, n_pods))
    devices = GpuDevices(rng.uniform(60.0, 700.0, n_devices), np.full(n_devices, 60.0))
    pod_of_device = rng.integers(n_pods, size=n_devices)
    holds = GpuHolds(pod_of_device, np.arange(n_devices), np.ones(n_devices), rng.random(n_devices))
    seconds = []
    for _ in range(plan.repeats):
        start_s = clock()
        attribute_by_work(nodes, pods)
        between_s = clock()
        gpu_power_of_pods_w(holds, attribute_gpu(devices, holds), n_pods)
        seconds.append((between_s - start_s, clock() - between_s))
    cpu_s, gpu_s = (min(column) for column in zip(*seconds, strict=True))
    return Sample(n_nodes, n_pods, n_devices, 1000.0 * cpu_s, 1000.0 * gpu_s)
