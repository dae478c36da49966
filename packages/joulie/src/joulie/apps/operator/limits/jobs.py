"""Which workloads take part in the search for power limits, and which GPUs they hold now."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from joulie.adapters.kubernetes.api.v1alpha1 import ControlOutcome, GpuStatus, SmClockStatus
from joulie.adapters.kubernetes.pods import PodFacts, ProfileFacts
from joulie.adapters.kubernetes.profiles import WorkloadKey
from joulie.apps.operator.desired import takes_limits
from joulie.apps.operator.observe import ClusterView
from joulie.apps.operator.settings import OperatorSettings
from joulie.domain.capping.live import JobClocks, JobGpus
from joulie.domain.control import Decision, NodeDecision
from joulie.domain.policy import PodPhase, PowerConstraint, WorkloadClass
from joulie.domain.usage import PodKey

SAME_LIMIT_W = 1.0
HZ_PER_MHZ = 1e6
NO_CEILINGS: Mapping[str, float] = {}

Holders = Mapping[tuple[str, str], tuple[PodKey, ...]]
"""Pods that hold a GPU by an exporter's labels, by node and ID of the GPU."""


class JobKey(NamedTuple):
    """A workload on GPUs of one kind, under one bound; what is measured holds for all of its pods.

    The baseline is the limit without Joulie, `original_w`, or a smaller one that the pods state themselves.
    """

    workload: WorkloadKey
    max_slowdown: float
    progress_metric: str
    baseline_w: float
    min_w: float
    original_w: float


def running_gpu_pods(pods: Iterable[PodFacts]) -> dict[str, dict[PodKey, PodFacts]]:
    """Pods that hold GPUs, by node."""
    found: dict[str, dict[PodKey, PodFacts]] = {}
    for pod in pods:
        if pod.requests.gpus > 0.0 and pod.node_name and pod.phase is not PodPhase.FINISHED:
            found.setdefault(pod.node_name, {})[pod.namespace, pod.name] = pod
    return found


def needs_exporter(decision: Decision, view: ClusterView) -> bool:
    """Whether some GPUs have holders that the kubelet did not tell."""
    return any(gpu.pods is None for node in decision.nodes for gpu in _gpus(node, view))


def jobs(
    decision: Decision,
    view: ClusterView,
    settings: OperatorSettings,
    exported: Holders,
    ceilings_w: Mapping[str, float] = NO_CEILINGS,
) -> Mapping[JobKey, JobGpus]:
    """The jobs whose GPUs may be limited now.

    Args:
        decision: of the last cycle.
        view: the cluster.
        settings: who takes part.
        exported: holders by an exporter's labels, where the kubelet did not answer.
        ceilings_w: upper bound of the limit of one GPU from power budgets, W, by node.
    """
    held: dict[JobKey, list[tuple[str, GpuStatus, PodKey]]] = {}
    for node, gpu, pod in _held(decision, view, exported):
        key = _key(pod, gpu, view, settings)
        if key is not None:
            held.setdefault(key, []).append((node, gpu, (pod.namespace, pod.name)))
    found = {key: _job(key, gpus, ceilings_w) for key, gpus in held.items()}
    if settings.gpu_limits_progress_query:
        return found
    # Counters of GPUs count cycles: by them any lower clock is as much slower, whatever the job does.
    return {key: job if key.progress_metric else replace(job, clocks=None) for key, job in found.items()}


def stated(decision: Decision, view: ClusterView, exported: Holders) -> Iterator[tuple[str, str, float, PodKey]]:
    """Node, GPU, limit (W) and pod of each GPU whose pod states a smaller limit than it has without Joulie."""
    for node, gpu, pod in _held(decision, view, exported):
        limit_w = pod.gpu_power_limit_w
        if limit_w is not None and gpu.original_watts is not None and limit_w < gpu.original_watts:
            yield node, gpu.id, limit_w, (pod.namespace, pod.name)


def _held(decision: Decision, view: ClusterView, exported: Holders) -> Iterator[tuple[str, GpuStatus, PodFacts]]:
    """Node, GPU and pod of each GPU that may be limited and that one pod holds."""
    by_node = running_gpu_pods(view.pods.values())
    for node in decision.nodes:
        pods = by_node.get(node.node.name, {})
        for gpu in _gpus(node, view):
            pod = _holder(node.node.name, gpu, pods, exported)
            if pod is not None:
                yield node.node.name, gpu, pod


def _gpus(node: NodeDecision, view: ClusterView) -> tuple[GpuStatus, ...]:
    """GPUs of a node that may be limited, as its agent reports them."""
    twin = view.twin_of(node.node.name) if takes_limits(node) else None
    control = twin.status.control_status if twin is not None else None
    return control.gpus if control is not None else ()


def _holder(node: str, gpu: GpuStatus, pods: Mapping[PodKey, PodFacts], exported: Holders) -> PodFacts | None:
    """The only pod that holds a GPU, best source first; None where it is shared, or nobody can tell."""
    if gpu.shared:
        return None
    if gpu.pods is not None:
        listed: Iterable[PodKey] = ((pod.namespace, pod.name) for pod in gpu.pods)
    else:
        listed = exported.get((node, gpu.id), ()) or pods
    # Pods that have ended may still be listed.
    live = [pods[pod] for pod in listed if pod in pods]
    return live[0] if len(live) == 1 and live[0].running_since_s is not None and not live[0].terminating else None


def _key(pod: PodFacts, gpu: GpuStatus, view: ClusterView, settings: OperatorSettings) -> JobKey | None:
    if gpu.original_watts is None or gpu.min_watts is None or gpu.limit_watts is None:
        return None
    workload = (pod.namespace, pod.owner)
    entry = view.workload_profiles.effective(workload)
    max_slowdown = bound(pod, ProfileFacts() if entry is None else entry.facts, settings)
    if max_slowdown is None:
        return None
    original_w, own_w = gpu.original_watts, pod.gpu_power_limit_w
    baseline_w = original_w if own_w is None else min(original_w, max(own_w, gpu.min_watts))
    return JobKey(workload, max_slowdown, pod.progress_metric, baseline_w, gpu.min_watts, original_w)


def bound(pod: PodFacts, profile: ProfileFacts, settings: OperatorSettings) -> float | None:
    """The slowdown that a pod may have; None where it takes no part."""
    if pod.gpu_limits is False:
        return None
    constrained = pod.constraint in {PowerConstraint.PERFORMANCE_ONLY, PowerConstraint.UNKNOWN}
    if pod.effective_class(profile) is not WorkloadClass.PERFORMANCE and not constrained:
        return settings.gpu_limits_standard_slowdown
    asked = pod.gpu_limits or settings.gpu_limits_performance
    return (
        settings.gpu_limits_performance_slowdown
        if asked or pod.namespace in settings.gpu_limits_performance_namespaces
        else None
    )


def _job(key: JobKey, held: list[tuple[str, GpuStatus, PodKey]], ceilings_w: Mapping[str, float]) -> JobGpus:
    limits_w = [gpu.limit_watts or 0.0 for _, gpu, _ in held]
    equal = max(limits_w) - min(limits_w) <= SAME_LIMIT_W
    return JobGpus(
        frozenset(pod for _, _, pod in held),
        tuple(sorted((node, gpu.id, pod) for node, gpu, pod in held)),
        key.baseline_w,
        key.min_w,
        limits_w[0] if equal else None,
        min(ceilings_w.get(node, math.inf) for node, _, _ in held),
        _clocks([gpu.sm_clock for _, gpu, _ in held]),
    )


def _clocks(held: Sequence[SmClockStatus | None]) -> JobClocks | None:
    """The SM clocks of a job's GPUs; None where one may not be locked, or they are of several kinds."""
    largest = {None if clock is None else clock.largest_mhz for clock in held}
    largest_mhz = largest.pop()
    if largest or largest_mhz is None:
        return None
    # A lock that was not seen to act, or not seen to be gone, is not in force.
    in_force = {
        largest_mhz if clock.result is None else clock.max_mhz if clock.result == ControlOutcome.APPLIED else None
        for clock in held
        if clock is not None
    }
    in_force_mhz = in_force.pop()
    known = not in_force and in_force_mhz is not None
    return JobClocks(largest_mhz * HZ_PER_MHZ, in_force_mhz * HZ_PER_MHZ if known and in_force_mhz else None)
