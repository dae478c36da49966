"""Metrics of single pods and nodes with the names and labels of the Compute Gardener Scheduler's current releases.

Its earlier prefix has sums of nodes and namespaces (`joulie.apps.accounting.metrics`). The label namespace is added
wherever the Gardener has the pod's name alone, since pods of several namespaces may have the same one.
Source: elevated-systems/compute-gardener-scheduler, pkg/computegardener/metrics/metrics.go.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from prometheus_client.core import GaugeMetricFamily, Metric

from joulie.apps.accounting.sampler import NodeUse, PodUse, Sampling
from joulie.domain.accounting.records import CompletedPod, Energy, PodMeta
from joulie.domain.quantities import joules_to_kwh

PREFIX = "compute_gardener_scheduler_"
_POD = ("pod", "namespace")
_PHASES = ("baseline", "current", "final")


@dataclass(frozen=True)
class PodPhases:
    """Resource use of a pod: in its first sample, in the last one, and when it ended.

    Attributes:
        pod: whose.
        baseline: in its first sample.
        current: in its last sample.
        ended: whether it has ended, so that its last sample is its final one.
    """

    pod: PodMeta
    baseline: PodUse
    current: PodUse
    ended: bool = False


def pod_phases(
    before: Mapping[str, PodPhases], sampling: Sampling, completed: Mapping[str, CompletedPod], max_pods: int
) -> dict[str, PodPhases]:
    """Phases of the pods that draw most, and of recently completed ones.

    Args:
        before: phases of the last cycle by UID.
        sampling: samples of this cycle.
        completed: completed pods that are exported, by UID.
        max_pods: maximum number of running pods.
    """
    pods = {sample.pod.uid: sample.pod for sample in sampling.samples}
    largest = heapq.nlargest(max_pods, sampling.pods.items(), key=lambda item: item[1].power_w)
    found = {uid: replace(before[uid], ended=True) for uid in completed if uid in before}
    for uid, use in largest:
        old = before.get(uid)
        found[uid] = PodPhases(pods[uid], use if old is None else old.baseline, use)
    return found


def families(
    phases: Mapping[str, PodPhases],
    completed: Mapping[str, CompletedPod],
    nodes: Mapping[str, NodeUse],
    totals: Mapping[str, Energy],
) -> Iterator[Metric]:
    """All families of this module.

    Args:
        phases: resource use of pods by UID.
        completed: recently completed pods by UID, oldest first.
        nodes: resource use by node.
        totals: energy since the start of the ledger, by namespace in the cluster.
    """
    yield from _of_pods(phases)
    yield from _of_completed({(one.pod.name, one.pod.namespace): one for one in completed.values()})
    yield from _of_nodes(nodes)
    yield from _of_namespaces(totals)


def _of_pods(phases: Mapping[str, PodPhases]) -> Iterator[Metric]:
    for name, text, field in (
        ("node_cpu_usage_cores", "CPU use of a pod, cores.", "cpu_cores"),
        ("node_memory_usage_bytes", "Memory use of a pod, bytes.", "memory_bytes"),
        ("node_gpu_power_watts", "Power of a pod's GPUs, W.", "gpu_w"),
        ("node_power_estimate_watts", "Power of a pod, W.", "power_w"),
    ):
        values: dict[tuple[str, ...], float] = {}
        for one in phases.values():
            uses = (None, None, one.current) if one.ended else (one.baseline, one.current, None)
            for phase, use in zip(_PHASES, uses, strict=True):
                if use is not None and not math.isnan(value := getattr(use, field)):
                    values[one.pod.node, one.pod.name, one.pod.namespace, phase] = value
        yield _gauge(name, text, ("node", *_POD, "phase"), values.items())


def _of_completed(latest: Mapping[tuple[str, str], CompletedPod]) -> Iterator[Metric]:
    gpu = {key: joules_to_kwh(one.energy.gpu_j * one.pod.gpu_pue) for key, one in latest.items()}
    yield _gauge("job_gpu_energy_usage_kwh", "Energy of a recently completed pod's GPUs, kWh.", _POD, gpu.items())
    counterfactual = {
        key: one.energy.emissions_g + one.carbon.amount
        for key, one in latest.items()
        if one.carbon is not None and one.energy.energy_without_intensity_j <= 0.0
    }
    yield _gauge(
        "job_counterfactual_carbon_emissions_grams",
        "Emissions that a recently completed pod would have had when it was first held, gCO2eq.",
        _POD,
        counterfactual.items(),
    )
    saved: dict[tuple[str, ...], float] = {}
    deltas: dict[tuple[str, ...], float] = {}
    for key, one in latest.items():
        for kind, saving in ((("carbon", "grams_co2"), one.carbon), (("cost", "dollars"), one.cost)):
            if saving is not None:
                saved[*kind, saving.method.value, *key] = saving.amount
        held = one.pod.held
        if held is None:
            continue
        if held.initial_g_per_kwh is not None and held.bind_g_per_kwh is not None:
            deltas["carbon_intensity_delta", *key] = held.initial_g_per_kwh - held.bind_g_per_kwh
        if held.initial_per_kwh is not None and held.bind_per_kwh is not None:
            deltas["electricity_rate_delta", *key] = held.initial_per_kwh - held.bind_per_kwh
    yield _gauge(
        "estimated_savings",
        "Savings of a recently completed pod by deferral, gCO2eq or currency.",
        ("type", "unit", "method", *_POD),
        saved.items(),
    )
    yield _gauge(
        "scheduling_efficiency",
        "Carbon intensity or price when a recently completed pod was first held, minus that when it ran.",
        ("metric", *_POD),
        deltas.items(),
    )


def _of_nodes(nodes: Mapping[str, NodeUse]) -> Iterator[Metric]:
    pue = {(node,): use.pue for node, use in nodes.items() if not math.isnan(use.pue)}
    yield _gauge("node_pue", "Power usage effectiveness of a node's data centre.", ("node",), pue.items())
    cores_per_w = {(node,): use.cores_per_w for node, use in nodes.items() if not math.isnan(use.cores_per_w)}
    yield _gauge(
        "node_efficiency",
        "Logical CPUs of a node per watt at full utilisation, PUE included.",
        ("node",),
        cores_per_w.items(),
    )


def _of_namespaces(totals: Mapping[str, Energy]) -> Iterator[Metric]:
    """Sums by namespace, which the Gardener's dashboard shows and its scheduler does not export."""
    energy = {(namespace,): joules_to_kwh(one.energy_j) for namespace, one in totals.items()}
    yield _gauge("job_energy_usage_kwh_sum", "Energy of a namespace's pods, kWh.", ("namespace",), energy.items())
    emissions = {(namespace,): one.emissions_g for namespace, one in totals.items()}
    yield _gauge(
        "job_carbon_emissions_grams_sum", "Emissions of a namespace's pods, gCO2eq.", ("namespace",), emissions.items()
    )


def _gauge(
    name: str, text: str, labels: Sequence[str], values: Iterable[tuple[Sequence[str], float]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(PREFIX + name, text, labels=labels)
    for told, value in values:
        family.add_metric(told, value)
    return family
