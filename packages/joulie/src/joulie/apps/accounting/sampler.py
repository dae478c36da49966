"""Samples: whose power it is, where, and under which policies.

The operator attributes the power of nodes by the same rule (`joulie.domain.attribution`) for decisions on caps, where
idle power is nobody's. Accounts must add up to what a data centre draws, so that pods pay for the idle power of what
they reserve, and name how each watt is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from joulie.adapters.kubernetes.api.meta import ObjectReference
from joulie.apps.accounting.facts import BYTES_PER_GB, AccountedNamespace, AccountedNode, AccountedPod
from joulie.apps.accounting.policies import PodPolicy, pod_policy
from joulie.apps.accounting.powers import Place, Powers, gpu_pct, idle_quality, powers
from joulie.apps.accounting.usage import Readings
from joulie.apps.accounting.view import ClusterSnapshot
from joulie.domain.accounting.budget import Budget
from joulie.domain.accounting.identity import NodeFacts, PowerSettings, node_power
from joulie.domain.accounting.profiles import HardwareProfiles
from joulie.domain.accounting.records import PodMeta, Sample, idle_account
from joulie.domain.grid.zones import CLOUD_REGIONS, zone_of_node
from joulie.domain.hardware.resolve import ReportedHardware
from joulie.domain.units import FloatArray


@dataclass(frozen=True)
class NodeUse:
    """What the pods of a node use; NaN where nobody says.

    Attributes:
        cpu_cores: busy cores.
        memory_bytes: working set, B.
        gpu_pct: how busy its GPUs are, mean, 0..100.
        power_w: of its pods and of what nobody has reserved, without PUE, W.
    """

    cpu_cores: float
    memory_bytes: float
    gpu_pct: float
    power_w: float


@dataclass(frozen=True)
class Sampling:
    """What one look at the cluster gives.

    Attributes:
        samples: of pods, and of what nodes draw for nobody.
        zones: of the grid, of all of them.
        budgets: of pods that have one, by uid.
        mistakes: what pods and their namespaces say that cannot be read.
        nodes: use of nodes.
        new: pods that the look before did not see.
    """

    samples: Sequence[Sample] = ()
    zones: frozenset[str] = frozenset()
    budgets: Mapping[str, Budget] = field(default_factory=dict)
    mistakes: Mapping[ObjectReference, Sequence[str]] = field(default_factory=dict)
    nodes: Mapping[str, NodeUse] = field(default_factory=dict)
    new: frozenset[str] = frozenset()


@dataclass(frozen=True)
class SamplerSettings:
    """What holds where nobody says.

    Attributes:
        profiles: of hardware.
        power: of nodes whose hardware nobody knows.
        zone: of nodes.
        regions: zone by region of a cloud.
    """

    profiles: HardwareProfiles
    power: PowerSettings
    zone: str
    regions: Mapping[str, str] = field(default_factory=lambda: CLOUD_REGIONS)


class Sampler:
    """Makes samples; remembers what follows from objects that have not changed.

    Args:
        settings: what holds where nobody says.
    """

    def __init__(self, settings: SamplerSettings) -> None:
        self._settings = settings
        self._places: dict[str, tuple[AccountedNode | None, ReportedHardware | None, Place]] = {}
        self._policies: dict[str, tuple[AccountedPod, AccountedNamespace | None, PodPolicy]] = {}

    def zones(self, cluster: ClusterSnapshot) -> frozenset[str]:
        """Zones of all nodes."""
        return frozenset(self._place(name, cluster).zone for name in cluster.nodes)

    def sample(
        self,
        cluster: ClusterSnapshot,
        running: Sequence[AccountedPod],
        brief: Sequence[AccountedPod],
        readings: Readings,
    ) -> Sampling:
        """Sample all pods.

        Args:
            cluster: nodes and namespaces.
            running: pods that run.
            brief: pods that came and went since the last look, of which nobody has measured anything.
            readings: what was said.
        """
        everyone = [*running, *brief]
        new = frozenset(pod.uid for pod in everyone if pod.uid not in self._policies)
        policies = self._policies_of(everyone, cluster.namespaces)
        places = [
            self._place(name, cluster) for name in dict.fromkeys([*cluster.nodes, *(pod.node for pod in everyone)])
        ]
        self._places = {place.name: self._places[place.name] for place in places}
        found = self._powers(places, running, policies, readings)
        samples = self._samples(places, running, policies, found)
        idle = self._idle(places, found, readings)
        if brief:
            samples += self._samples(places, brief, policies, self._powers(places, brief, policies, Readings()))
        return Sampling(
            [*samples, *idle],
            frozenset(place.zone for place in places),
            {uid: policy.budget for uid, policy in policies.items() if policy.budget is not None},
            {_reference(pod): policies[pod.uid].mistakes for pod in everyone if policies[pod.uid].mistakes},
            _use(places, found, gpu_pct(readings.gpus)),
            new,
        )

    # ---- what is remembered

    def _place(self, name: str, cluster: ClusterSnapshot) -> Place:
        """A node, or what is assumed of one that is gone."""
        node, reported = cluster.nodes.get(name), cluster.reported.get(name)
        known = self._places.get(name)
        if known is not None and known[:2] == (node, reported):
            return known[2]
        facts = NodeFacts(name) if node is None else node.facts
        place = Place(
            name,
            "" if node is None else node.uid,
            node_power(replace(facts, reported=reported), self._settings.profiles, self._settings.power),
            zone_of_node(
                facts.labels, facts.annotations, facts.provider_id, self._settings.zone, self._settings.regions
            ),
        )
        self._places[name] = node, reported, place
        return place

    def _policies_of(
        self, pods: Sequence[AccountedPod], namespaces: Mapping[str, AccountedNamespace]
    ) -> dict[str, PodPolicy]:
        known, self._policies = self._policies, {}
        for pod in pods:
            namespace, old = namespaces.get(pod.namespace), known.get(pod.uid)
            if old is None or old[:2] != (pod, namespace):
                old = pod, namespace, pod_policy(pod, namespace)
            self._policies[pod.uid] = old
        return {uid: policy for uid, (_pod, _namespace, policy) in self._policies.items()}

    # ---- samples

    @staticmethod
    def _powers(
        places: Sequence[Place],
        pods: Sequence[AccountedPod],
        policies: Mapping[str, PodPolicy],
        readings: Readings,
    ) -> Powers:
        return powers(places, pods, [policies[pod.uid].gpu_workload_type for pod in pods], readings)

    def _samples(
        self,
        places: Sequence[Place],
        pods: Sequence[AccountedPod],
        policies: Mapping[str, PodPolicy],
        found: Powers,
    ) -> list[Sample]:
        watts = zip(found.cpu_w.tolist(), found.mem_w.tolist(), found.gpu_w.tolist(), strict=True)
        known = zip(found.quality, found.source, strict=True)
        return [
            Sample(self._meta(pod, places[row], policies[pod.uid]), *power_w, *by)
            for pod, row, power_w, by in zip(pods, found.node.tolist(), watts, known, strict=True)
        ]

    def _meta(self, pod: AccountedPod, place: Place, policy: PodPolicy) -> PodMeta:
        profiles = self._settings.profiles
        return PodMeta(
            uid=pod.uid,
            namespace=pod.namespace,
            name=pod.name,
            owner_kind=pod.owner.kind,
            owner_name=pod.owner.name,
            node=pod.node,
            zone=place.zone,
            started_s=pod.started_s,
            pue=profiles.pue if policy.pue is None else policy.pue,
            gpu_pue=profiles.gpu_pue if policy.gpu_pue is None else policy.gpu_pue,
            held=policy.held,
        )

    def _idle(self, places: Sequence[Place], found: Powers, readings: Readings) -> list[Sample]:
        """What nodes draw for nobody; nothing of nodes that are gone."""
        profiles = self._settings.profiles
        watts = zip(found.idle_cpu_w.tolist(), found.idle_mem_w.tolist(), found.idle_gpu_w.tolist(), strict=True)
        return [
            Sample(
                idle_account(place.name, place.uid, place.zone, profiles.pue, profiles.gpu_pue),
                *power_w,
                *idle_quality(place, readings, by_agent=by_agent, has_gpus=power_w[2] > 0.0),
            )
            for place, power_w, by_agent in zip(places, watts, found.by_agent.tolist(), strict=True)
            if place.uid
        ]


def _use(places: Sequence[Place], found: Powers, busy_pct: Mapping[str, float]) -> dict[str, NodeUse]:
    """Use of nodes."""

    def by_node(values: FloatArray) -> FloatArray:
        """Sums of what is known; NaN where nothing is."""
        known = ~np.isnan(values)
        sums = np.bincount(found.node[known], values[known], len(places))
        return np.where(np.bincount(found.node[known], minlength=len(places)) > 0, sums, np.nan)

    cores, memory_gb = by_node(found.cpu_cores), by_node(found.memory_gb)
    pods_w = np.bincount(found.node, found.cpu_w + found.mem_w + found.gpu_w, len(places))
    power_w = pods_w + found.idle_cpu_w + found.idle_mem_w + found.idle_gpu_w
    return {
        place.name: NodeUse(
            float(cores[row]),
            float(memory_gb[row]) * BYTES_PER_GB,
            busy_pct.get(place.name, np.nan),
            float(power_w[row]),
        )
        for row, place in enumerate(places)
        if place.uid
    }


def _reference(pod: AccountedPod) -> ObjectReference:
    return ObjectReference("Pod", pod.name, api_version="v1", namespace=pod.namespace, uid=pod.uid)
