"""Reduces pods to what Joulie caches of them (for a hundred thousand pods) and converts them to the domain's types.

Invalid annotations are never fatal: each adds a message to `PodFacts.mistakes`, which becomes an event on the pod. This
module imports numpy, through the domain's policy; the agent, which reads no pods, does not import it.
"""

from __future__ import annotations

import math
import re
import sys
from enum import StrEnum
from functools import lru_cache
from typing import TypeVar

import msgspec

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.api.core import Pod
from joulie.adapters.kubernetes.api.meta import ObjectMeta, ObjectReference, OwnerReference
from joulie.adapters.kubernetes.api.v1alpha1 import CpuUse, Criticality, GpuUse, Level, Migratability, WorkloadProfile
from joulie.adapters.kubernetes.placement import placement
from joulie.adapters.kubernetes.requests import Requests, memory_limit_gib, pod_requests
from joulie.adapters.kubernetes.times import time_or_none
from joulie.domain.drain import GuardedPod
from joulie.domain.grid.names import TRIAL
from joulie.domain.policy import MIN_CONFIDENCE, Intensity, PodDemand, PodPhase, PowerConstraint, WorkloadClass
from joulie.domain.profiles.profile import Hints
from joulie.domain.resource_quantity import QuantityError, parse_quantity
from joulie.domain.scheduling.node_rules import ANYWHERE, NodeRules
from joulie.domain.scoring.extender import PodView, Sensitivity
from joulie.domain.usage import METRIC_NAME

_POD_TEMPLATE_HASH = "pod-template-hash"
_CRON_RUN = re.compile(r"(.+)-(\d{8})", re.ASCII)
"""Name of a CronJob's Job: the CronJob's name and the scheduled time, minutes since the epoch."""
_CRON_DELAY_S = 7 * 86400.0
"""How long after the scheduled time pods of the Job may still be created."""
_MAX_DRAWN_CHARS = 600
"""Longest note of a draw: two names and a word."""
_SHOWN_CHARS = 64
_MAX_GPU_W = 10_000.0
"""Maximum length of a user's text in a message."""
_PHASES = {"Pending": PodPhase.PENDING, "Succeeded": PodPhase.FINISHED, "Failed": PodPhase.FINISHED}
_SENSITIVITIES = {Level.HIGH: Sensitivity.HIGH, Level.MEDIUM: Sensitivity.MEDIUM, Level.LOW: Sensitivity.LOW}
_BOOLEANS = {"true": True, "false": False}
_SIMULATED = frozenset(
    {
        names.SIM_CPU_UTIL_PCT_ANNOTATION,
        names.SIM_GPU_UTIL_PCT_ANNOTATION,
        names.SIM_MEMORY_PRESSURE_PCT_ANNOTATION,
        names.SIM_GPU_JOB_ANNOTATION,
    }
)

_EnumT = TypeVar("_EnumT", bound=StrEnum)


class Owner(msgspec.Struct, frozen=True, gc=False):
    """The workload that a pod belongs to, in the pod's namespace; the key of its WorkloadProfile.

    Attributes:
        kind: kind of the pod's controller, or of the Deployment or CronJob above it; Pod for a pod without a
            controller.
        name: name of that object.
    """

    kind: str
    name: str


class ProfileFacts(msgspec.Struct, frozen=True, gc=False):
    """The classification in a WorkloadProfile; fields are None if the profile does not set them.

    Attributes:
        workload_class: workload class, from the criticality.
        reschedulable: whether its pods may be moved, from the migratability.
        cpu_sensitivity: sensitivity to CPU caps.
        gpu_sensitivity: sensitivity to GPU caps.
        intensity: the larger of CPU and GPU intensity.
        confidence: confidence of the classification, 0..1.
    """

    workload_class: WorkloadClass | None = None
    reschedulable: bool | None = None
    cpu_sensitivity: Level | None = None
    gpu_sensitivity: Level | None = None
    intensity: Intensity | None = None
    confidence: float = 0.0


_NO_PROFILE = ProfileFacts()


class SimulatedUse(msgspec.Struct, frozen=True, gc=False):
    """Utilisation to simulate, from a pod's annotations; None if an annotation is missing or invalid.

    Attributes:
        cpu_util_pct: utilisation of the requested cores, %, 0..100.
        gpu_util_pct: utilisation of the requested GPUs, %, 0..100.
        memory_pressure_pct: memory pressure, %, 0..100.
        gpu_job: job of a sweep of power limits that its GPU responds as; empty without one.
    """

    cpu_util_pct: float | None = None
    gpu_util_pct: float | None = None
    memory_pressure_pct: float | None = None
    gpu_job: str = ""


class PodFacts(msgspec.Struct, frozen=True, gc=False):
    """The cached part of a pod.

    Attributes:
        namespace: pod namespace.
        name: pod name.
        uid: pod UID.
        phase: pod phase; a pod whose node is lost counts as running.
        node_name: node that the pod is bound to; empty until bound.
        requests: resource requests, aggregated as kube-scheduler does.
        workload_class: workload class annotation; None if absent, STANDARD if invalid.
        constraint: power constraint from node selector and affinity (the older demand signal).
        reschedulable: reschedulable annotation; None if absent or invalid.
        cpu_sensitivity: CPU cap sensitivity annotation; None if absent or invalid.
        gpu_sensitivity: GPU cap sensitivity annotation; None if absent or invalid.
        daemon: whether the pod belongs to a DaemonSet.
        gated: whether the pod has a scheduling gate.
        terminating: whether the pod is being deleted.
        failed: whether the pod has ended, and not successfully.
        static: whether it is the mirror of a static pod of the kubelet.
        nominated_node: node on which kube-scheduler makes room for the pod by preemption; empty if there is none.
        owner: workload that the pod belongs to.
        controller: controlling owner reference, which may be an intermediate ReplicaSet or Job; None without one.
        running_since_s: start time, s since the epoch; None if the pod is not running.
        memory_limit_gib: memory limit, GiB; None without one.
        placement: rules for the nodes that the pod may run on.
        simulated: utilisation to simulate, used by simulators only; None without annotations.
        mistakes: message per annotation or quantity that is invalid.
        claims: names of the ResourceClaims that the pod uses.
        gpu_limits: annotation that lets it take part in the search for power limits, or not; None if absent or invalid.
        progress_metric: counter of its work; empty without one.
        gpu_power_limit_w: upper bound of the limit of its GPUs that it states, W; None if absent or invalid.
        priority: value of its PriorityClass; 0 without one.
        drawn: its annotation joulie.io/grid-trial, which `joulie.domain.trial.workload_protocol` reads; empty without.
        claimed_gpus: GPUs among `requests` that these claims give to it; 0 until they were looked up.
    """

    namespace: str
    name: str
    uid: str
    phase: PodPhase
    node_name: str
    requests: Requests
    owner: Owner
    workload_class: WorkloadClass | None = None
    constraint: PowerConstraint = PowerConstraint.GENERAL
    reschedulable: bool | None = None
    cpu_sensitivity: Level | None = None
    gpu_sensitivity: Level | None = None
    daemon: bool = False
    gated: bool = False
    terminating: bool = False
    failed: bool = False
    static: bool = False
    nominated_node: str = ""
    controller: OwnerReference | None = None
    running_since_s: float | None = None
    memory_limit_gib: float | None = None
    placement: NodeRules = ANYWHERE
    simulated: SimulatedUse | None = None
    mistakes: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()
    priority: int = 0
    claimed_gpus: float = 0.0
    gpu_limits: bool | None = None
    progress_metric: str = ""
    gpu_power_limit_w: float | None = None
    drawn: str = ""

    @property
    def reference(self) -> ObjectReference:
        """The pod as events name it."""
        return ObjectReference(kind="Pod", name=self.name, api_version="v1", namespace=self.namespace, uid=self.uid)

    @property
    def hints(self) -> Hints:
        """The workload hints in the pod's annotations."""
        return Hints(self.workload_class, self.reschedulable, self.cpu_sensitivity, self.gpu_sensitivity)

    def effective_class(self, profile: ProfileFacts = _NO_PROFILE) -> WorkloadClass | None:
        """The class from the annotation; without one, PERFORMANCE if the profile says so, else None.

        A profile's STANDARD is ignored: every workload without annotations gets it, and it must not outweigh the
        constraint.
        """
        if self.workload_class is None and profile.workload_class is WorkloadClass.PERFORMANCE:
            return WorkloadClass.PERFORMANCE
        return self.workload_class

    def effective_reschedulable(self, profile: ProfileFacts = _NO_PROFILE) -> bool | None:
        """Whether the pod may be moved: from the annotation, else from the profile; None if neither says."""
        return profile.reschedulable if self.reschedulable is None else self.reschedulable

    def movable(self, profile: ProfileFacts = _NO_PROFILE) -> bool:
        """Whether it runs and may be restarted elsewhere; an eviction would delete one without a controller."""
        running = self.phase is PodPhase.RUNNING and self.controller is not None
        return running and self.effective_reschedulable(profile) is True

    def wants_performance(self, profile: ProfileFacts = _NO_PROFILE) -> bool:
        """Whether its class, or else its scheduling constraint, is performance."""
        stated = self.effective_class(profile)
        if stated is None:
            return self.constraint is PowerConstraint.PERFORMANCE_ONLY
        return stated is WorkloadClass.PERFORMANCE

    def demand(self, profile: ProfileFacts = _NO_PROFILE, min_confidence: float = MIN_CONFIDENCE) -> PodDemand:
        """The pod as input of the policy's demand; a profile below `min_confidence` counts as a hint only."""
        return PodDemand(
            self.phase,
            self.effective_class(profile),
            self.constraint,
            profile.intensity,
            profile.confidence,
            min_confidence,
            schedulable=not self.gated and not self.terminating,
        )

    def guarded(self, profile: ProfileFacts = _NO_PROFILE) -> GuardedPod:
        """The pod as input of the drain guard."""
        return GuardedPod(
            self.effective_class(profile),
            self.constraint,
            self.effective_reschedulable(profile),
            bound_to_node=self.daemon or self.static,
        )

    def view(self, profile: ProfileFacts = _NO_PROFILE) -> PodView:
        """The pod as input of the scheduler extender's scoring."""
        return PodView(
            performance=self.effective_class(profile) is WorkloadClass.PERFORMANCE,
            reschedulable=self.effective_reschedulable(profile),
            daemon=self.daemon,
            cpu_sensitivity=_SENSITIVITIES[self.cpu_sensitivity or profile.cpu_sensitivity or Level.LOW],
            gpu_sensitivity=_SENSITIVITIES[self.gpu_sensitivity or profile.gpu_sensitivity or Level.LOW],
        )


def pod_facts(pod: Pod, profile_key: str = names.POWER_PROFILE_LABEL) -> PodFacts:
    """Reduce a pod to its cached part; `profile_key` is the node label of the power profile."""
    meta = pod.metadata
    requests, invalid = pod_requests(pod)
    mistakes = list(invalid)
    controller = meta.controller
    workload_class, reschedulable, cpu_sensitivity, gpu_sensitivity = _annotated_hints(meta.annotations, mistakes)
    rules, constraint = placement(pod.spec, profile_key)
    phase = _PHASES.get(pod.status.phase or "Pending", PodPhase.RUNNING)
    gpu_limits = _AnnotationReader(meta.annotations, mistakes).boolean(names.GPU_LIMITS_ANNOTATION)
    progress_metric = _progress_metric(meta.annotations, mistakes)
    gpu_power_limit_w = _gpu_power_limit_w(meta.annotations, mistakes)
    return PodFacts(
        namespace=sys.intern(meta.namespace),
        name=meta.name,
        uid=meta.uid,
        phase=phase,
        node_name=sys.intern(pod.spec.node_name),
        requests=requests,
        owner=workload_of(meta, controller),
        workload_class=workload_class,
        constraint=constraint,
        reschedulable=reschedulable,
        cpu_sensitivity=cpu_sensitivity,
        gpu_sensitivity=gpu_sensitivity,
        daemon=controller is not None and controller.kind == "DaemonSet",
        gated=bool(pod.spec.scheduling_gates),
        terminating=meta.deletion_timestamp is not None,
        static=controller is not None and controller.kind == "Node",
        nominated_node=sys.intern(pod.status.nominated_node_name),
        controller=None if controller is None else _reference(controller),
        failed=pod.status.phase == "Failed",
        running_since_s=_running_since_s(pod) if phase is PodPhase.RUNNING else None,
        memory_limit_gib=memory_limit_gib(pod),
        placement=rules,
        simulated=None if _SIMULATED.isdisjoint(meta.annotations) else simulated_use(pod),
        mistakes=tuple(mistakes),
        claims=_claims(pod),
        priority=pod.spec.priority or 0,
        gpu_limits=gpu_limits,
        progress_metric=progress_metric,
        gpu_power_limit_w=gpu_power_limit_w,
        drawn=drawn if len(drawn := meta.annotations.get(TRIAL, "")) <= _MAX_DRAWN_CHARS else "",
    )


def _gpu_power_limit_w(annotations: dict[str, str], mistakes: list[str]) -> float | None:
    text = annotations.get(names.GPU_POWER_LIMIT_ANNOTATION)
    if text is None:
        return None
    try:
        limit_w = float(text)
    except ValueError:
        limit_w = math.nan
    if 0.0 < limit_w <= _MAX_GPU_W:
        return limit_w
    shown = text[:_SHOWN_CHARS]
    mistakes.append(f"{names.GPU_POWER_LIMIT_ANNOTATION}: {shown!r} is not a power in W, it is ignored")
    return None


def _progress_metric(annotations: dict[str, str], mistakes: list[str]) -> str:
    """The metric that an annotation names: never a query, which would run with the operator's rights."""
    text = annotations.get(names.PROGRESS_METRIC_ANNOTATION, "")
    if not text or METRIC_NAME.fullmatch(text):
        return sys.intern(text)
    shown = text[:_SHOWN_CHARS]
    mistakes.append(f"{names.PROGRESS_METRIC_ANNOTATION}: {shown!r} is not the name of a metric, it is ignored")
    return ""


def _claims(pod: Pod) -> tuple[str, ...]:
    """Names of the claims that a pod uses; one that is yet to be made from a template has none."""
    if not pod.spec.resource_claims:
        return ()
    made = {one.name: one.resource_claim_name for one in pod.status.resource_claim_statuses}
    named = (one.resource_claim_name or made.get(one.name) for one in pod.spec.resource_claims)
    return tuple(dict.fromkeys(name for name in named if name))


def read_hints(annotations: dict[str, str], mistakes: list[str]) -> Hints:
    """Read the hints in annotations of a pod or workload; each invalid annotation adds a message to `mistakes`."""
    return Hints(*_annotated_hints(annotations, mistakes))


def _annotated_hints(
    annotations: dict[str, str], mistakes: list[str]
) -> tuple[WorkloadClass | None, bool | None, Level | None, Level | None]:
    """Class, reschedulable, CPU and GPU sensitivity; a tuple, because this is on the extender's latency path."""
    reader = _AnnotationReader(annotations, mistakes)
    return (
        reader.workload_class(),
        reader.boolean(names.RESCHEDULABLE_ANNOTATION),
        reader.one_of(Level, names.CPU_SENSITIVITY_ANNOTATION),
        reader.one_of(Level, names.GPU_SENSITIVITY_ANNOTATION),
    )


def profile_facts(profile: WorkloadProfile) -> ProfileFacts:
    """Reduce a WorkloadProfile to its classification; values that this version does not know count as absent."""
    status = profile.status
    cpu, gpu = status.cpu or CpuUse(), status.gpu or GpuUse()
    criticality, migratability = status.criticality or Criticality(), status.migratability or Migratability()
    intensities = [_known(Intensity, use.intensity) for use in (cpu, gpu)]
    return ProfileFacts(
        workload_class=_known(WorkloadClass, criticality.workload_class),
        reschedulable=migratability.reschedulable,
        cpu_sensitivity=_known(Level, cpu.cap_sensitivity),
        gpu_sensitivity=_known(Level, gpu.cap_sensitivity),
        intensity=max((known for known in intensities if known), key=list(Intensity).index, default=None),
        confidence=0.0 if status.confidence is None else status.confidence,
    )


def profile_owner(profile: WorkloadProfile) -> tuple[str, Owner]:
    """Namespace and workload that a profile describes."""
    reference = profile.spec.workload_ref
    return reference.namespace or profile.metadata.namespace, Owner(reference.kind, reference.name)


def simulated_use(pod: Pod) -> SimulatedUse:
    """Read the annotations that simulators use."""
    return SimulatedUse(
        cpu_util_pct=_percent(pod, names.SIM_CPU_UTIL_PCT_ANNOTATION),
        gpu_util_pct=_percent(pod, names.SIM_GPU_UTIL_PCT_ANNOTATION),
        memory_pressure_pct=_percent(pod, names.SIM_MEMORY_PRESSURE_PCT_ANNOTATION),
        gpu_job=pod.metadata.annotations.get(names.SIM_GPU_JOB_ANNOTATION, ""),
    )


class _AnnotationReader:
    """Parses annotations and collects a message for each invalid one."""

    def __init__(self, annotations: dict[str, str], mistakes: list[str]) -> None:
        self._annotations = annotations
        self._mistakes = mistakes

    def workload_class(self) -> WorkloadClass | None:
        """The workload class; STANDARD if the value is invalid, None if absent."""
        key = names.WORKLOAD_CLASS_ANNOTATION
        if key not in self._annotations:
            return None
        return self.one_of(WorkloadClass, key, consequence="treated as standard") or WorkloadClass.STANDARD

    def boolean(self, key: str) -> bool | None:
        """A boolean; None if absent or invalid."""
        text = self._annotations.get(key)
        if text is None:
            return None
        if text not in _BOOLEANS:
            self._reject(key, text, "true or false", "ignored")
        return _BOOLEANS.get(text)

    def one_of(self, values: type[_EnumT], key: str, *, consequence: str = "ignored") -> _EnumT | None:
        """A member of an enumeration; None if absent or invalid."""
        text = self._annotations.get(key)
        known = _known(values, text)
        if text is not None and known is None:
            self._reject(key, text, " or ".join(values), consequence)
        return known

    def _reject(self, key: str, text: str, allowed: str, consequence: str) -> None:
        shown = text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."
        self._mistakes.append(f"annotation {key}: invalid value {shown!r}: must be {allowed}; {consequence}")


def _known(values: type[_EnumT], text: str | None) -> _EnumT | None:
    """The member with the given value; None if there is none."""
    return next((value for value in values if value == text), None) if text else None


def workload_of(meta: ObjectMeta, controller: OwnerReference | None) -> Owner:
    """A pod's workload, derived from the pod alone, since the scheduler extender must not wait for the API server.

    A ReplicaSet's Deployment is recognised by the pod template hash in its name, a Job's CronJob by the scheduled
    minute in its name.
    """
    if controller is None:
        return Owner("Pod", meta.name)
    suffix = "-" + meta.labels.get(_POD_TEMPLATE_HASH, "")
    if controller.kind == "ReplicaSet" and len(suffix) > 1 and controller.name.endswith(suffix):
        return Owner("Deployment", sys.intern(controller.name.removesuffix(suffix)))
    run = _CRON_RUN.fullmatch(controller.name) if controller.kind == "Job" else None
    if run is not None and controller.api_version.startswith("batch/") and _ran_at(int(run[2]), meta):
        return Owner("CronJob", sys.intern(run[1]))
    return Owner(sys.intern(controller.kind), sys.intern(controller.name))


def _ran_at(minute: int, meta: ObjectMeta) -> bool:
    """Whether a pod was created soon after a scheduled minute; eight digits that are a date, say, are far from it."""
    created_s = time_or_none(meta.creation_timestamp)
    return created_s is not None and 0.0 <= created_s - minute * 60.0 <= _CRON_DELAY_S


def _running_since_s(pod: Pod) -> float | None:
    started_s = time_or_none(pod.status.start_time)
    return time_or_none(pod.metadata.creation_timestamp) if started_s is None else started_s


@lru_cache(maxsize=65536)
def _reference(controller: OwnerReference) -> OwnerReference:
    """A shared value for all pods of a controller, to save memory."""
    return controller


def _percent(pod: Pod, key: str) -> float | None:
    text = pod.metadata.annotations.get(key)
    if text is None:
        return None
    try:
        value = parse_quantity(text.strip())
    except QuantityError:
        return None
    return value if 0.0 <= value <= 100.0 else None
