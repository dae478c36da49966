"""The operator's view of the cluster: watch caches that keep a few fields of each object, and frozen snapshots."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.api.core import Node, Pod
from joulie.adapters.kubernetes.api.v1alpha1 import (
    NodeHardware,
    NodePowerProfile,
    NodeTwin,
    PowerBudget,
    WorkloadProfile,
)
from joulie.adapters.kubernetes.cache import Cache, Key, Watching
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.pods import PodFacts, pod_facts
from joulie.adapters.kubernetes.profiles import ProfileIndex, WorkloadKey
from joulie.adapters.kubernetes.resources import (
    NODE_HARDWARES,
    NODE_POWER_PROFILES,
    NODE_TWINS,
    NODES,
    PODS,
    POWER_BUDGETS,
    WORKLOAD_PROFILES,
)
from joulie.apps.operator.claims import Claims
from joulie.apps.operator.facts import (
    HardwareFacts,
    NodeFacts,
    OverrideFacts,
    ProfileEntry,
    keep_hardware,
    keep_node,
    keep_override,
    keep_profile,
    reported_caps,
    stored_state,
)
from joulie.apps.operator.ledger import PodLedger
from joulie.apps.operator.settings import OperatorSettings
from joulie.domain.control import ControlledNode, Facility, Memory, Override, Snapshot, StoredState, controlled_node
from joulie.domain.control_caps import UNREPORTED, ReportedCaps
from joulie.domain.control_power import SourceReadings
from joulie.domain.hardware import Catalogue
from joulie.domain.hardware.resolve import HARDWARE_KEYS, ReportedHardware, ResolvedHardware, resolve
from joulie.domain.mode import Mode

_log = logging.getLogger(__name__)


class WorkloadWatcher(Protocol):
    """Listener for changes to workloads and their profiles."""

    def pods_changed(self, workload: WorkloadKey) -> None:
        """A pod of the workload was added, or the hints in a pod's annotations changed."""
        ...

    def profile_changed(self, key: Key) -> None:
        """A WorkloadProfile was added, changed or deleted."""
        ...


class Watcher(Protocol):
    """Listener for changes to objects that the operator itself writes."""

    def twin_changed(self, key: Key, new: NodeTwin | None) -> None:
        """A NodeTwin changed; `new` is None if it was deleted."""
        ...

    def labels_changed(self, node: str, facts: NodeFacts) -> None:
        """The labels that the operator writes on a node changed."""
        ...


class ClusterView(Watching):
    """Caches of all objects that the operator reads, and values derived from them.

    Attributes:
        ledger: running sums over pods.
        watchers: listeners for changes to objects that the operator itself writes.
        workload_watchers: listeners for changes to workloads and their profiles.
        workload_profiles: WorkloadProfiles by workload.
    """

    def __init__(
        self,
        client: KubeClient,
        settings: OperatorSettings,
        catalogue: Catalogue,
        *,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """Create the caches; `run` fills them.

        Args:
            client: Kubernetes client.
            settings: node selector and labels.
            catalogue: hardware catalogue.
            wake: called when something changed that a decision depends on.
        """
        self.ledger = PodLedger(settings.min_confidence)
        self.watchers: list[Watcher] = []
        self.workload_watchers: list[WorkloadWatcher] = []
        self.workload_profiles: ProfileIndex[ProfileEntry] = ProfileIndex()
        self._settings = settings
        self._catalogue = catalogue
        self._wake = wake
        self._controlled: dict[str, ControlledNode] = {}
        self._ordered: tuple[ControlledNode, ...] | None = None
        self._gone: set[str] = set()
        self._reported: dict[str, ReportedHardware] = {}
        self._reported_caps: dict[str, ReportedCaps] = {}
        self._interned: dict[tuple[Any, ...], ResolvedHardware] = {}
        self._nodes: Cache[Node, NodeFacts] = Cache(client, NODES, partial(keep_node, settings=settings))
        self._claims = Claims(client, self._claims_changed)
        self._pods: Cache[Pod, PodFacts] = Cache(client, PODS, self._keep_pod)
        self._twins: Cache[NodeTwin, NodeTwin] = Cache(client, NODE_TWINS, lambda twin: twin)
        self._hardware: Cache[NodeHardware, HardwareFacts] = Cache(client, NODE_HARDWARES, keep_hardware)
        self._overrides: Cache[NodePowerProfile, OverrideFacts] = Cache(client, NODE_POWER_PROFILES, keep_override)
        self._profiles: Cache[WorkloadProfile, ProfileEntry] = Cache(client, WORKLOAD_PROFILES, keep_profile)
        self._power_budgets: Cache[PowerBudget, PowerBudget] = Cache(client, POWER_BUDGETS, lambda budget: budget)
        self._nodes.add_listener(self._node_changed)
        self._pods.add_listener(self._pod_changed)
        self._twins.add_listener(self._twin_changed)
        self._hardware.add_listener(self._hardware_changed)
        self._overrides.add_listener(self._override_changed)
        self._profiles.add_listener(self._profile_changed)

    @property
    def caches(self) -> Mapping[str, Cache[Any, Any]]:
        """The caches by resource name."""
        return {
            NODES.plural: self._nodes,
            PODS.plural: self._pods,
            NODE_TWINS.plural: self._twins,
            NODE_HARDWARES.plural: self._hardware,
            NODE_POWER_PROFILES.plural: self._overrides,
            WORKLOAD_PROFILES.plural: self._profiles,
            POWER_BUDGETS.plural: self._power_budgets,
        }

    async def run(self) -> None:
        """Run all caches until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(super().run())
            group.create_task(self._claims.run())

    # ---- reading

    @property
    def nodes(self) -> tuple[ControlledNode, ...]:
        """The managed nodes, ordered by name; the same object until one of them changes."""
        if self._ordered is None:
            self._ordered = tuple(self._controlled[name] for name in sorted(self._controlled))
        return self._ordered

    def node(self, name: str) -> NodeFacts | None:
        """The cached fields of a node; None if there is no such node."""
        return self._nodes.objects.get(Key("", name))

    @property
    def twins(self) -> Mapping[Key, NodeTwin]:
        """All NodeTwins."""
        return self._twins.objects

    @property
    def node_facts(self) -> Iterator[tuple[str, NodeFacts]]:
        """All nodes by name, managed or not."""
        return ((key.name, facts) for key, facts in self._nodes.objects.items())

    @property
    def pods(self) -> Mapping[Key, PodFacts]:
        """All pods."""
        return self._pods.objects

    @property
    def hardware(self) -> Mapping[Key, HardwareFacts]:
        """All NodeHardwares."""
        return self._hardware.objects

    @property
    def overrides(self) -> Mapping[Key, OverrideFacts]:
        """All NodePowerProfiles."""
        return self._overrides.objects

    @property
    def profiles(self) -> Mapping[Key, ProfileEntry]:
        """All WorkloadProfiles."""
        return self._profiles.objects

    @property
    def power_budgets(self) -> Mapping[Key, PowerBudget]:
        """All PowerBudgets."""
        return self._power_budgets.objects

    def twin_of(self, node: str) -> NodeTwin | None:
        """The NodeTwin of a node; None if there is none yet."""
        return self._twins.objects.get(Key("", names.object_name(node)))

    def snapshot(self, memory: Memory, power: Sequence[SourceReadings], facility: Facility, now_s: float) -> Snapshot:
        """A frozen snapshot of the cluster.

        Args:
            memory: memory after the previous cycle; states missing from it are restored from the nodes' NodeTwins.
            power: readings of the power sources over `nodes`, best first.
            facility: facility measurements.
            now_s: current time, s since the epoch.
        """
        nodes = self.nodes
        unknown = [node.name for node in nodes if node.name not in memory.states]
        stored = {name: state for name in unknown if (state := self._stored_state(name)) is not None}
        return Snapshot(
            now_s,
            nodes,
            self.ledger.performance_demand(self._controlled),
            dict(self.ledger.blocking),
            tuple(power),
            self.effective_overrides(),
            stored,
            facility,
            dict(self.ledger.full_power),
            dict(self._reported_caps),
        )

    def take_replaced(self) -> frozenset[str]:
        """Nodes deleted since the last call; some may exist again as other machines of the same name."""
        replaced = frozenset(self._gone)
        self._gone.clear()
        return replaced

    def _stored_state(self, node: str) -> StoredState | None:
        """The state stored in a node's NodeTwin; None without one, or if it belongs to an earlier node of that name."""
        twin, facts = self.twin_of(node), self.node(node)
        if twin is None or facts is None:
            return None
        owners = twin.metadata.owner_references
        return None if owners and all(owner.uid != facts.uid for owner in owners) else stored_state(twin)

    def effective_overrides(self) -> dict[str, Override]:
        """The effective override by node: of several, the first by name."""
        found: dict[str, Override] = {}
        for _, facts in sorted(self._overrides.objects.items()):
            if facts.override is not None:
                found.setdefault(facts.node, facts.override)
        return found

    # ---- changes

    def _node_changed(self, key: Key, old: NodeFacts | None, new: NodeFacts | None) -> None:
        if old is not None and (new is None or new.uid != old.uid):
            self._gone.add(key.name)
        self._check_mode(key.name, old, new)
        self._control(key.name, new)
        if old is None or new is None or _scope(old) != _scope(new):
            self._wake()
        elif (old.profile_label, old.draining_label) != (new.profile_label, new.draining_label):
            for watcher in self.watchers:
                watcher.labels_changed(key.name, new)

    def _check_mode(self, name: str, old: NodeFacts | None, new: NodeFacts | None) -> None:
        """Warn of a mode label with an unknown value, once."""
        label = None if new is None else new.labels.get(names.MODE_LABEL)
        if label in {None, *Mode} or (old is not None and old.labels.get(names.MODE_LABEL) == label):
            return
        _log.warning("unknown mode, node is observed", extra={"node": name, "label": names.MODE_LABEL, "value": label})

    def _twin_changed(self, key: Key, old: NodeTwin | None, new: NodeTwin | None) -> None:
        self._caps_reported(key, old, new)
        for watcher in self.watchers:
            watcher.twin_changed(key, new)

    def _caps_reported(self, key: Key, old: NodeTwin | None, new: NodeTwin | None) -> None:
        """Remember what is reported about a node's caps; a change counts at once, since scores depend on it."""
        if new is None:
            if old is not None:
                self._reported_caps.pop(old.spec.node_name, None)
            return
        node, reported = new.spec.node_name, reported_caps(new)
        if key.name == names.object_name(node) and self._reported_caps.get(node, UNREPORTED) != reported:
            self._reported_caps[node] = reported
            self._wake()

    def _hardware_changed(self, _key: Key, old: HardwareFacts | None, new: HardwareFacts | None) -> None:
        for facts in (old, new):
            if facts is not None:
                self._reported.pop(facts.node, None)
        if new is not None:
            self._reported[new.node] = new.reported
        for node in {facts.node for facts in (old, new) if facts is not None}:
            self._control(node, self.node(node))
        self._wake()

    def _pod_changed(self, key: Key, old: PodFacts | None, new: PodFacts | None) -> None:
        self._claims.pod_changed(key, old, new)
        if self.ledger.pod_changed(key, old, new):
            self._wake()
        if new is not None and (old is None or old.hints != new.hints):
            for watcher in self.workload_watchers:
                watcher.pods_changed((new.namespace, new.owner))

    def _keep_pod(self, pod: Pod) -> PodFacts:
        return self._claims.counted(pod_facts(pod, profile_key=self._settings.power_profile_label))

    def _claims_changed(self, key: Key) -> None:
        pod = self._pods.objects.get(key)
        if pod is not None:
            self._pods.update(key, self._claims.counted(pod))

    def _profile_changed(self, key: Key, old: ProfileEntry | None, new: ProfileEntry | None) -> None:
        self.workload_profiles.changed(key, old, new)
        changed = False
        for owner in {entry.owner for entry in (old, new) if entry is not None}:
            counts = self.workload_profiles.effective(owner)
            changed |= self.ledger.profile_changed(owner, None if counts is None else counts.facts)
        if changed:
            self._wake()
        for watcher in self.workload_watchers:
            watcher.profile_changed(key)

    def _override_changed(self, _key: Key, old: OverrideFacts | None, new: OverrideFacts | None) -> None:
        before, after = ((facts.node, facts.override) if facts and facts.override else None for facts in (old, new))
        # A profile that is not an override changes no decision, nor does the condition that the operator writes.
        if before != after:
            self._wake()

    def _control(self, name: str, facts: NodeFacts | None) -> None:
        """Update the controlled node of this name."""
        old = self._controlled.pop(name, None)
        if facts is not None and facts.managed:
            self._controlled[name] = controlled_node(
                name,
                self._resolved(name, facts),
                eligible=facts.eligible,
                rack=facts.labels.get(names.RACK_LABEL) or None,
                zone=facts.labels.get(names.COOLING_ZONE_LABEL) or None,
                enforced=facts.enforced,
                not_ready_since_s=facts.not_ready_since_s,
            )
        if self._controlled.get(name) != old:
            self._ordered = None

    def _resolved(self, name: str, facts: NodeFacts) -> ResolvedHardware:
        """The node's hardware; one shared object for identical nodes, so that a cycle computes with it once."""
        reported = self._reported.get(name)
        keys = (*HARDWARE_KEYS, *self._settings.gpu_product_keys)
        labels = {key: facts.labels[key] for key in keys if key in facts.labels}
        alike = (reported, tuple(labels.items()), tuple(sorted(facts.offered.items())), facts.capacity_cpus)
        if alike not in self._interned:
            self._interned[alike] = resolve(
                reported,
                labels,
                facts.offered,
                self._catalogue,
                capacity_cpus=facts.capacity_cpus,
                gpu_product_keys=self._settings.gpu_product_keys,
            )
        return self._interned[alike]


def _scope(facts: NodeFacts) -> tuple[bool, bool, bool, bool]:
    """Facts of a node that every decision depends on."""
    return facts.managed, facts.eligible, facts.enforced, facts.ready
