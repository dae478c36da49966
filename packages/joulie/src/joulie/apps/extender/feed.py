"""Watch caches whose listeners keep the fleet up to date."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.api.core import ConfigMap, Namespace, Node, Pod
from joulie.adapters.kubernetes.api.v1alpha1 import NodeHardware, NodeTwin, PowerBudget, WorkloadProfile
from joulie.adapters.kubernetes.api.v1alpha1.power import EffectiveCapState, PowerMeasurement
from joulie.adapters.kubernetes.cache import Cache, Key, Watching
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.hardware import allocatable_devices, reported_hardware
from joulie.adapters.kubernetes.intensities import CONFIG_MAP as INTENSITIES_CONFIG_MAP
from joulie.adapters.kubernetes.intensities import Intensities, read_intensities
from joulie.adapters.kubernetes.pods import PodFacts, ProfileFacts
from joulie.adapters.kubernetes.profiles import ProfileEntry, ProfileIndex, profile_entry
from joulie.adapters.kubernetes.resources import (
    CONFIG_MAPS,
    NAMESPACES,
    NODE_HARDWARES,
    NODE_TWINS,
    NODES,
    PODS,
    POWER_BUDGETS,
    WORKLOAD_PROFILES,
)
from joulie.adapters.kubernetes.times import parse_rfc3339, time_or_none
from joulie.apps.extender.fleet import Fleet
from joulie.apps.extender.judge import StartingPod, placed_pod, sharing_pod, starting_pod
from joulie.apps.extender.node_facts import LoadFacts, TwinFacts, TwinNumbers, ZoneHints
from joulie.apps.extender.power_room import BoundPod, BudgetRoom, PowerRoom
from joulie.domain.accounting.profiles import stated_pue
from joulie.domain.grid import names as grid_names
from joulie.domain.grid.power_limits import POWER_LIMIT_KEYS
from joulie.domain.grid.zones import ZONE_LABELS
from joulie.domain.hardware import Catalogue
from joulie.domain.hardware.resolve import ARCHITECTURE_KEY, ReportedHardware, ResolvedHardware, resolve
from joulie.domain.mode import Mode, mode_of
from joulie.domain.power_estimate import gpu_idle_w
from joulie.domain.quantities import InvalidQuantityError
from joulie.domain.resource_quantity import QuantityError
from joulie.domain.scoring.extender import NodeClass
from joulie.domain.scoring.occupancy import Occupancy, PlacedPod
from joulie.domain.scoring.shared_gpus import SharedGpus, SharingPod

_CLASSES = {"performance": NodeClass.PERFORMANCE, "eco": NodeClass.ECO, "draining": NodeClass.DRAINING}
_COUNTED_LABELS = ("joulie.io/", "nvidia.com/", "amd.com/", ARCHITECTURE_KEY)
_NO_PROFILE = ProfileFacts()
_BOUND = "spec.nodeName!="
_POLICIES = tuple(key.removeprefix(grid_names.PREFIX) for key in (*POWER_LIMIT_KEYS, grid_names.GPU_WORKLOAD_TYPE))
_V = TypeVar("_V")


@dataclass(frozen=True)
class OfNode(Generic[_V]):
    """What is kept of an object that belongs to a node, with the name of the node."""

    node: str
    content: _V


@dataclass(frozen=True)
class NodeFacts:
    """What is kept of a Node.

    Attributes:
        labels: those that may say something about power or hardware.
        offered: CPUs (cores) and GPUs that pods can request.
        zone: what it says about its grid zone; None if that is not known.
        pue: PUE that its annotation says; None without one, and if that is invalid.
        gpu_pue: the same of GPUs.
    """

    labels: dict[str, str]
    offered: dict[str, float]
    zone: ZoneHints | None = None
    pue: float | None = None
    gpu_pue: float | None = None


@dataclass(frozen=True)
class NodeLabels:
    """How the labels of a node are read.

    Attributes:
        profile_key: label of the operator's power profile.
        mode: mode of nodes without a label of their own.
    """

    profile_key: str = names.POWER_PROFILE_LABEL
    mode: Mode = Mode.ENFORCE

    def state(self, labels: Mapping[str, str]) -> tuple[NodeClass, bool]:
        """The class that the operator's labels give a node, and whether it counts (not in observe mode)."""
        enforced = mode_of(labels.get(names.MODE_LABEL), self.mode) is Mode.ENFORCE
        if names.DRAINING_LABEL in labels:
            return NodeClass.DRAINING, enforced
        return _CLASSES.get(labels.get(self.profile_key, ""), NodeClass.UNKNOWN), enforced

    def node_class(self, labels: Mapping[str, str]) -> NodeClass:
        """The class of a node without a NodeTwin; UNKNOWN in observe mode."""
        labelled, enforced = self.state(labels)
        return labelled if enforced else NodeClass.UNKNOWN


DEFAULT_LABELS = NodeLabels()


@dataclass(frozen=True)
class WatchState:
    """State of a watch.

    Attributes:
        resource: plural of the resource.
        objects: number of cached objects.
        synced: whether the first list is complete.
        silence_s: time since the API server last sent anything, s.
        problem: error of the last list or watch; None if it succeeded.
    """

    resource: str
    objects: int
    synced: bool
    silence_s: float
    problem: str | None


class Feed(Watching):
    """Watches twins, hardware, nodes, profiles and policies of namespaces, and updates the fleet."""

    def __init__(
        self,
        client: KubeClient,
        fleet: Fleet,
        catalogue: Catalogue,
        *,
        min_confidence: float,
        silence_s: float,
        labels: NodeLabels = DEFAULT_LABELS,
        intensity_namespace: str = "",
        occupancy: Occupancy | None = None,
        shared: SharedGpus | None = None,
        power: PowerRoom | None = None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """Prepare the watches; `run` starts them.

        Args:
            client: Kubernetes client.
            fleet: the fleet to update.
            catalogue: hardware catalogue.
            min_confidence: minimum confidence of a profile's sensitivities, 0..1.
            silence_s: silence after which a watch is reopened, s.
            labels: how to read the labels of nodes.
            intensity_namespace: namespace of the grid controller's intensities; empty without any.
            occupancy: takes the pods of the nodes; None without SCORING=marginal, which is what watches pods.
            shared: takes them with SCORING=frugal, which watches pods too; None with another.
            power: room of power budgets; None where pods do not wait for power. Pods are watched for it from the first
                PowerBudget on.
            now_s: current time, s since the epoch.
        """
        self._shared = shared
        self._power = power
        self._budget_seen = asyncio.Event()
        self._occupancy = occupancy
        self._now_s = now_s
        self._labels = labels
        self._fleet = fleet
        self._catalogue = catalogue
        self._min_confidence = min_confidence
        self._reported: dict[str, ReportedHardware] = {}
        self._nodes: dict[str, NodeFacts] = {}
        self._profiles: ProfileIndex[ProfileEntry] = ProfileIndex()
        self.changes = 0
        """Changes so far: a view made at another count is out of date."""
        watch = partial(Cache, client, idle_s=silence_s)
        self._twins: Cache[NodeTwin, OfNode[TwinFacts]] = watch(NODE_TWINS, keep_twin)
        self._hardware: Cache[NodeHardware, OfNode[ReportedHardware]] = watch(NODE_HARDWARES, keep_hardware)
        self._node_cache: Cache[Node, NodeFacts] = watch(NODES, partial(keep_node, profile_key=labels.profile_key))
        self._profile_cache: Cache[WorkloadProfile, ProfileEntry] = watch(WORKLOAD_PROFILES, profile_entry)
        self._namespaces: Cache[Namespace, dict[str, str]] = watch(NAMESPACES, keep_policies)
        self._intensities: Cache[ConfigMap, Intensities] | None = None
        if intensity_namespace:
            self._intensities = watch(
                CONFIG_MAPS,
                read_intensities,
                namespace=intensity_namespace,
                field_selector=f"metadata.name={INTENSITIES_CONFIG_MAP}",
            )
            self._intensities.add_listener(self._intensities_changed)
        self._pods: Cache[Pod, PlacedPod] | Cache[Pod, SharingPod] | None = None
        if occupancy is not None:
            placed: Cache[Pod, PlacedPod] = watch(PODS, placed_pod, field_selector=_BOUND)
            placed.add_listener(self._pod_changed)
            self._pods = placed
        elif shared is not None:
            sharing: Cache[Pod, SharingPod] = watch(PODS, sharing_pod, field_selector=_BOUND)
            sharing.add_listener(self._sharing_pod_changed)
            self._pods = sharing
        # These decide no readiness: placement does not fail where budgets cannot be read.
        self._budgets: Cache[PowerBudget, BudgetRoom] = watch(POWER_BUDGETS, keep_room)
        self._budgets.add_listener(self._budget_changed)
        self._starting: Cache[Pod, StartingPod] = watch(PODS, self._keep_starting, field_selector=_BOUND)
        self._starting.add_listener(self._starting_pod_changed)
        self._twins.add_listener(self._twin_changed)
        self._hardware.add_listener(self._hardware_changed)
        self._node_cache.add_listener(self._node_changed)
        self._profile_cache.add_listener(self._profiles.changed)
        self._namespaces.add_listener(self._policies_changed)

    @property
    def caches(self) -> Mapping[str, Cache[Any, Any]]:
        """The caches by what they hold."""
        caches: dict[str, Cache[Any, Any]] = {
            NODE_TWINS.plural: self._twins,
            NODE_HARDWARES.plural: self._hardware,
            NODES.plural: self._node_cache,
            WORKLOAD_PROFILES.plural: self._profile_cache,
            NAMESPACES.plural: self._namespaces,
        }
        if self._intensities is not None:
            caches[CONFIG_MAPS.plural] = self._intensities
        if self._pods is not None:
            caches[PODS.plural] = self._pods
        return caches

    def states(self) -> Iterator[WatchState]:
        """How each watch is doing."""
        caches = dict(self.caches)
        if self._power is not None:
            caches[POWER_BUDGETS.plural] = self._budgets
            if self._budget_seen.is_set() and self._pods is None:
                caches[PODS.plural] = self._starting
        for name, cache in caches.items():
            yield WatchState(name, len(cache.objects), cache.synced, cache.silence_s(), cache.problem)

    async def run(self) -> None:
        """Run all caches until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(super().run())
            if self._power is not None:
                group.create_task(self._budgets.run())
                group.create_task(self._follow_pods(self._power))

    async def _follow_pods(self, power: PowerRoom) -> None:
        """Watch pods from the first budget on, once profiles and nodes, which they are judged by, are known."""
        await self._budget_seen.wait()
        await self.wait_synced()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._starting.run())
            await self._starting.wait_synced()
            power.ready = True
            self.changes += 1

    def profile(self, pod: PodFacts) -> ProfileFacts:
        """What the pod's WorkloadProfile says, as far as it counts; of several, somebody's own before the classifier's.

        Criticality and migratability go back to somebody's annotation; sensitivities are measured and count only with
        enough confidence.
        """
        entry = self._profiles.effective((pod.namespace, pod.owner))
        if entry is None:
            return _NO_PROFILE
        found = entry.facts
        if found.confidence >= self._min_confidence:
            return found
        return msgspec.structs.replace(found, cpu_sensitivity=None, gpu_sensitivity=None)

    def _twin_changed(self, _key: Key, old: OfNode[TwinFacts] | None, new: OfNode[TwinFacts] | None) -> None:
        self.changes += 1
        if old is not None and (new is None or new.node != old.node):
            self._fleet.set_twin(old.node, None)
        if new is not None:
            self._fleet.set_twin(new.node, new.content)

    def _hardware_changed(
        self, _key: Key, old: OfNode[ReportedHardware] | None, new: OfNode[ReportedHardware] | None
    ) -> None:
        if old is not None:
            self._reported.pop(old.node, None)
        if new is not None:
            self._reported[new.node] = new.content
        for node in {found.node for found in (old, new) if found is not None}:
            self._load_changed(node)

    def _node_changed(self, key: Key, _old: NodeFacts | None, new: NodeFacts | None) -> None:
        if new is None:
            del self._nodes[key.name]
        else:
            self._nodes[key.name] = new
        if new is None:
            self._fleet.set_label_class(key.name, None)
            self._fleet.set_zone(key.name, None)
        else:
            labelled, enforced = self._labels.state(new.labels)
            self._fleet.set_label_class(key.name, labelled, enforced=enforced)
            self._fleet.set_zone(key.name, new.zone)
        self._load_changed(key.name)

    def _intensities_changed(self, _key: Key, _old: Intensities | None, new: Intensities | None) -> None:
        self.changes += 1
        self._fleet.set_intensities(new)

    def _pod_changed(self, key: Key, _old: PlacedPod | None, new: PlacedPod | None) -> None:
        self.changes += 1
        if self._occupancy is not None:
            self._occupancy.set_pod(key, new, self._now_s())

    def _sharing_pod_changed(self, key: Key, _old: SharingPod | None, new: SharingPod | None) -> None:
        self.changes += 1
        if self._shared is not None:
            self._shared.set_pod(key, new)

    def _budget_changed(self, key: Key, _old: BudgetRoom | None, new: BudgetRoom | None) -> None:
        self.changes += 1
        self._budget_seen.set()
        if self._power is not None:
            self._power.set_budget(key.name, new)

    def _keep_starting(self, pod: Pod) -> StartingPod | None:
        return starting_pod(pod, self.profile, self._now_s())

    def _starting_pod_changed(self, key: Key, _old: StartingPod | None, new: StartingPod | None) -> None:
        self.changes += 1
        if self._power is None:
            return
        bound = None
        if new is not None:
            added_w = math.ceil(self._fleet.added_w(new.node, new.requests, performance=new.full_power))
            bound = BoundPod(new.node, new.uid, added_w, new.full_power, new.running_since_s)
        self._power.set_pod(key, bound, self._now_s())

    def _policies_changed(self, key: Key, _old: dict[str, str] | None, new: dict[str, str] | None) -> None:
        self.changes += 1
        self._fleet.set_policies(key.name, new)

    def _load_changed(self, node: str) -> None:
        self.changes += 1
        facts, reported = self._nodes.get(node), self._reported.get(node)
        if facts is None and reported is None:
            self._fleet.set_load(node, None)
        else:
            self._fleet.set_load(node, load_facts(facts or NodeFacts({}, {}), reported, self._catalogue))


def keep_twin(twin: NodeTwin) -> OfNode[TwinFacts] | None:
    """What placement needs of a NodeTwin; None for one under a name that is not its node's, which nobody keeps up."""
    node = twin.spec.node_name
    if twin.metadata.name != names.object_name(node):
        return None
    return OfNode(node, twin_facts(twin))


def keep_room(budget: PowerBudget) -> BudgetRoom | None:
    """What a PowerBudget has left for pods; None where it holds none back, or says nothing."""
    room_w, updated_s = budget.status.pod_headroom_watts, time_or_none(budget.status.last_updated)
    if room_w is None or updated_s is None or not math.isfinite(room_w):
        return None
    return BudgetRoom(room_w, updated_s)


def twin_facts(twin: NodeTwin) -> TwinFacts:
    """Class, scores and age of a NodeTwin, or the flaw that keeps its scores from counting."""
    status = twin.status
    node_class = _CLASSES.get(status.schedulable_class or "", NodeClass.UNKNOWN)
    facts = TwinFacts(node_class, None, None, budgets=status.power_budgets)
    try:
        if status.last_updated is not None:
            facts = replace(facts, updated_s=parse_rfc3339(status.last_updated))
        return replace(facts, numbers=_numbers(twin))
    except (QuantityError, InvalidQuantityError) as error:
        return replace(facts, flaw=f"NodeTwin: {error}")


def _numbers(twin: NodeTwin) -> TwinNumbers:
    """The scores of a twin.

    Raises:
        InvalidQuantityError: one is missing or out of range.
    """
    status = twin.status
    power = status.power_measurement or PowerMeasurement()
    caps = status.effective_cap_state or EffectiveCapState()
    return TwinNumbers(
        capped_w=_there("nodeCappedPowerW", power.node_capped_power_w),
        measured_w=_there("measuredNodePowerW", power.measured_node_power_w),
        cooling_stress_pct=_there("predictedCoolingStressScore", status.predicted_cooling_stress_score),
        headroom_score=_there("predictedPowerHeadroomScore", status.predicted_power_headroom_score),
        # Absent are a trend with fewer than two samples and a subsystem without a cap: these are no gaps.
        trend_w_per_min=power.power_trend_w_per_min or 0.0,
        cpu_cap_fraction=1.0 if caps.cpu_pct is None else caps.cpu_pct / 100.0,
        gpu_cap_fraction=1.0 if caps.gpu_pct is None else caps.gpu_pct / 100.0,
    )


def _there(field: str, value: float | None) -> float:
    if value is None:
        raise InvalidQuantityError(field, "is missing")
    return value


def keep_hardware(hardware: NodeHardware) -> OfNode[ReportedHardware] | None:
    """What an agent reported; None for an object under a name that is not its node's."""
    node = hardware.spec.node_name
    if hardware.metadata.name != names.object_name(node):
        return None
    return OfNode(node, reported_hardware(hardware))


def keep_node(node: Node, profile_key: str = names.POWER_PROFILE_LABEL) -> NodeFacts:
    """What placement needs of a Node."""
    counted = (*_COUNTED_LABELS, profile_key)
    labels = {key: value for key, value in node.metadata.labels.items() if key.startswith(counted)}
    meta = node.metadata
    zone = ZoneHints(
        {key: meta.labels[key] for key in ZONE_LABELS if key in meta.labels},
        {key: meta.annotations[key] for key in (grid_names.ZONE,) if key in meta.annotations},
        node.spec.provider_id,
    )
    pue, gpu_pue = (stated_pue(meta.annotations, key) for key in (grid_names.PUE, grid_names.GPU_PUE))
    return NodeFacts(labels, allocatable_devices(node), zone, pue, gpu_pue)


def keep_policies(namespace: Namespace) -> dict[str, str] | None:
    """The enabled policies of a namespace about the power of nodes; None for one without any, which costs no memory."""
    meta = namespace.metadata
    if meta.labels.get(grid_names.POLICIES_LABEL) != grid_names.POLICIES_ENABLED:
        return None
    prefixes = (grid_names.POLICY_PREFIX, grid_names.WORKLOAD_PREFIX)
    return {
        key: text for key, text in meta.annotations.items() if key.startswith(prefixes) and key.endswith(_POLICIES)
    } or None


def load_facts(node: NodeFacts, reported: ReportedHardware | None, catalogue: Catalogue) -> LoadFacts:
    """What a node draws at full load, as far as it is known.

    Cores are those that pods can request: an agent counts physical ones, of which a pod's CPU is a thread.
    """
    hardware = resolve(reported, node.labels, node.offered, catalogue)
    gpu = hardware.gpu
    return LoadFacts(
        cores=node.offered.get("cpu") or hardware.cpu.cores or None,
        cpu_max_w=hardware.cpu_max_w,
        gpu_max_w=None if gpu is None else gpu.requested_max_w,
        gpu_vendor=None if gpu is None else gpu.vendor,
        gpus=0.0 if gpu is None else float(gpu.count),
        gpu_idle_w=gpu_idle_w(hardware, catalogue),
        gpu_instances=1 if gpu is None else gpu.instances,
        gpu_model="" if gpu is None else gpu.raw or gpu.model or "",
        pue=node.pue,
        gpu_pue=node.gpu_pue,
        floor_w=_floor_w(hardware),
    )


def _floor_w(hardware: ResolvedHardware) -> float | None:
    """Power of all CPUs and GPUs under their lowest limits, W; None where it is not known."""
    cpu, gpu = hardware.cpu, hardware.gpu
    if cpu.cap_range is None or (gpu is not None and gpu.cap_range is None):
        return None
    gpu_w = 0.0 if gpu is None or gpu.cap_range is None else gpu.count * gpu.cap_range.min_w
    return cpu.sockets * cpu.share * cpu.cap_range.min_w + gpu_w
