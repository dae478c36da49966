"""The cluster as the decision about sleep sees it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.pods import PodFacts
from joulie.adapters.kubernetes.profiles import WorkloadKey
from joulie.adapters.kubernetes.requests import offered_gpus
from joulie.apps.operator.facts import NodeFacts, ProfileEntry
from joulie.apps.operator.observe import ClusterView
from joulie.apps.operator.settings import OperatorSettings
from joulie.apps.operator.sleep.keep import CLOSED, Keep, acts_on, keep_released, keep_rule
from joulie.apps.operator.sleep.volumes import VolumeNodes, holders
from joulie.domain.capping.admission import UNLIMITED_ROOM, PodRoom
from joulie.domain.control import ControlledNode
from joulie.domain.hardware import Catalogue
from joulie.domain.hardware.estimates import TYPICAL_IDLE_SHARE
from joulie.domain.policy import PodPhase
from joulie.domain.power_estimate import gpu_idle_w
from joulie.domain.sleep.commands import Remembered, recalled
from joulie.domain.sleep.snapshot import NOTHING, BoundPod, Room, SleepNode, WaitingPod
from joulie.domain.sleep.states import Asleep, SleepState, Waking

_PASSING_TAINTS = frozenset(
    {
        names.ASLEEP_TAINT,
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
        "node.cloudprovider.kubernetes.io/shutdown",
    }
)
"""Taints that go when the node wakes."""


def is_job(pod: PodFacts) -> bool:
    """Whether a pod keeps the node that it is bound to awake."""
    return pod.phase is not PodPhase.FINISHED and not pod.daemon and not pod.static


def is_marked(facts: NodeFacts) -> bool:
    """Whether anything of sleep is written on a node."""
    return bool(facts.sleep_mark or facts.asleep or facts.removable)


@dataclass(frozen=True)
class Seen:
    """The cluster at one moment.

    Attributes:
        now_s: s since the epoch.
        controlled: the managed nodes.
        facts: these, and nodes that are marked and no longer managed, by name.
        pods: all pods.
        volumes: volumes that cannot be used from everywhere; None if they are not known.
        profiles: effective WorkloadProfiles; these and the next two only where nodes are emptied.
        pod_power_w: measured power of pods by UID, W.
        pod_room: room that power budgets have for pods that are moved.
    """

    now_s: float
    controlled: Sequence[ControlledNode]
    facts: Mapping[str, NodeFacts]
    pods: Sequence[PodFacts]
    volumes: Sequence[VolumeNodes] | None
    profiles: Mapping[WorkloadKey, ProfileEntry] = field(default_factory=dict)
    pod_power_w: Mapping[str, float] = field(default_factory=dict)
    pod_room: PodRoom = UNLIMITED_ROOM


def see(view: ClusterView, volumes: Sequence[VolumeNodes] | None, now_s: float) -> Seen:
    """The cluster now."""
    facts = {name: one for name, one in view.node_facts if one.managed or is_marked(one)}
    return Seen(now_s, view.nodes, facts, tuple(view.pods.values()), volumes)


class Fleet:
    """The nodes and pods of a look; making it takes long on a large cluster, and needs no event loop.

    Args:
        seen: the cluster.
        settings: operator settings.
        catalogue: hardware catalogue.
        switches: whether a node is switched off when it sleeps.
        pods: the pods that keep nodes awake, by name of the node; empty where nodes are not emptied.

    Attributes:
        facts: what is known of the nodes, by name.
        acting: nodes that are put to sleep, not only reported.
        rules: the rule that keeps each node awake; None for none.
        waiting: pods that wait for a node.
    """

    def __init__(
        self,
        seen: Seen,
        settings: OperatorSettings,
        catalogue: Catalogue,
        switches: Callable[[str, NodeFacts], bool],
        pods: Mapping[str, tuple[BoundPod, ...]],
    ) -> None:
        self.facts = seen.facts
        self.acting = frozenset(name for name, facts in seen.facts.items() if acts_on(facts, settings))
        labels = {name: facts.labels for name, facts in seen.facts.items()}
        held = None if seen.volumes is None else holders(seen.volumes, labels)
        self.rules = {name: keep_rule(name, facts, settings, held) for name, facts in seen.facts.items()}
        self.waiting = _waiting(seen.pods)
        self._settings = settings
        self._catalogue = catalogue
        self._switches = switches
        self._pods = pods
        self._now_s = seen.now_s
        self._controlled = {node.name: node for node in seen.controlled}
        self._jobs: Counter[str] = Counter()
        self._used: dict[str, Room] = {}
        for pod in seen.pods:
            node = pod.node_name
            if node and pod.phase is not PodPhase.FINISHED:
                self._jobs[node] += is_job(pod)
                self._used[node] = _sum(self._used.get(node, NOTHING), requests_of(pod))

    def as_they_are(self, memory: Mapping[str, Remembered]) -> list[SleepNode]:
        """The nodes as they are; those that are not acted on are kept awake, or woken.

        Args:
            memory: what is remembered of nodes, by UID.
        """
        found: list[SleepNode] = []
        for name, facts in self.facts.items():
            keep = self.rules[name] if name in self.acting else keep_released(facts, self._settings)
            state = recalled(memory.get(facts.uid), facts.sleep_mark, tainted=facts.asleep, now_s=self._now_s)
            found.append(self._node(name, facts, keep, facts.sleep_mark, state))
        return found

    def as_if_acting(self, virtual: Mapping[str, Remembered], nodes: Iterable[SleepNode]) -> list[SleepNode]:
        """The nodes as if those that are only observed were acted on.

        Args:
            virtual: marks that would have been written, and what is remembered of nodes, by UID.
            nodes: the nodes as they are.
        """
        return [self._if_acting(node, virtual) if self.is_observed(node.name) else node for node in nodes]

    def is_observed(self, name: str) -> bool:
        """Whether it is only reported what would be done with a node; one with a mark is released first."""
        facts = self.facts[name]
        return facts.managed and name not in self.acting and not is_marked(facts)

    def _if_acting(self, node: SleepNode, virtual: Mapping[str, Remembered]) -> SleepNode:
        facts = self.facts[node.name]
        remembered = virtual.get(facts.uid)
        mark = "" if remembered is None else remembered.mark
        state = recalled(remembered, mark, tainted=bool(mark), now_s=self._now_s)
        found = self._node(node.name, facts, self.rules[node.name], mark, state)
        if found.switchable and isinstance(state, Asleep | Waking):
            # It would be off, and then in another boot: that it is on says nothing.
            found = replace(found, ready=found.ready and isinstance(state, Waking), boot="")
        return found

    def just_read(self, seen: SleepNode, facts: NodeFacts, jobs: int) -> SleepNode:
        """A node as it was just read, for the check before a command is carried out.

        Args:
            seen: as it was decided about.
            facts: as just read.
            jobs: pods that keep it awake, as just counted.
        """
        keep = keep_rule(seen.name, facts, self._settings, ())
        if not acts_on(facts, self._settings):
            keep = keep_released(facts, self._settings)
        return replace(
            seen, mark=facts.sleep_mark, ready=facts.ready, boot=facts.boot_id, keep=keep or seen.keep, jobs=jobs
        )

    def _node(self, name: str, facts: NodeFacts, keep: Keep | None, mark: str, state: SleepState) -> SleepNode:
        allocatable = Room(
            facts.offered.get("cpu", 0.0),
            facts.memory_gib or math.inf,
            offered_gpus(facts.offered),
            facts.max_pods or math.inf,
        )
        controlled = self._controlled.get(name)
        return SleepNode(
            name=name,
            family="" if controlled is None or keep in CLOSED else controlled.hardware.family,
            state=state,
            mark=mark,
            ready=facts.ready,
            boot=facts.boot_id,
            switchable=self._switches(name, facts),
            keep=keep or "",
            jobs=self._jobs[name],
            allocatable=allocatable,
            free=allocatable.less(self._used.get(name, NOTHING)),
            labels=facts.labels,
            taints=tuple(taint for taint in facts.taints if taint.key not in _PASSING_TAINTS),
            base_w=0.0 if controlled is None else self._idle_w(controlled),
            pods=self._pods.get(name, ()),
        )

    def _idle_w(self, node: ControlledNode) -> float:
        cpu_max_w, *_ = node.limits
        return TYPICAL_IDLE_SHARE * cpu_max_w + gpu_idle_w(node.hardware, self._catalogue)


def requests_of(pod: PodFacts) -> Room:
    """What a pod takes of a node."""
    asked = pod.requests
    return Room(asked.cpu_cores, asked.memory_gib, asked.gpus, 1.0)


def _sum(one: Room, other: Room) -> Room:
    return Room(*(a + b for a, b in zip(one, other, strict=True)))


def _waiting(pods: Iterable[PodFacts]) -> tuple[WaitingPod, ...]:
    """Pods that kube-scheduler may bind, in the order in which it takes them; those of DaemonSets belong to a node."""
    waiting = [
        pod
        for pod in pods
        if pod.phase is PodPhase.PENDING
        and not (pod.node_name or pod.gated or pod.terminating or pod.daemon or pod.static)
    ]
    waiting.sort(key=lambda pod: -pod.priority)
    return tuple(WaitingPod(f"{pod.namespace}/{pod.name}", requests_of(pod), pod.placement) for pod in waiting)
