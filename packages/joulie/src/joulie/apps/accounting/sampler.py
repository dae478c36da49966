"""Samples of power: per pod and for the idle rest of each node, with zone, PUE and quality.

The operator attributes the power of nodes by the same rule (`joulie.domain.attribution`) for decisions on caps, where
idle power is charged to nobody. Accounts must add up to the power of the data centre, so here pods are charged for the
idle power of the resources they reserve, and each sample states how its power is known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from joulie.adapters.kubernetes.api.meta import ObjectReference
from joulie.apps.accounting.facts import BYTES_PER_GB, AccountedNamespace, AccountedNode, AccountedPod
from joulie.apps.accounting.policies import PodPolicy, pod_policy
from joulie.apps.accounting.powers import NodeSite, Powers, gpu_pct, idle_quality, powers
from joulie.apps.accounting.usage import Readings
from joulie.apps.accounting.view import ClusterSnapshot
from joulie.domain.accounting.budget import Budget
from joulie.domain.accounting.embodied import WHOLE_NODE, Asset, Reservation, Shares, estimated_asset
from joulie.domain.accounting.identity import NodeFacts, NodePower, PowerSettings, node_power
from joulie.domain.accounting.inventory import DEFAULT_PUE, Inventory, SourcedPue
from joulie.domain.accounting.profiles import HardwareProfiles
from joulie.domain.accounting.records import PodMeta, Sample, idle_account
from joulie.domain.grid.cloud_regions import CLOUD_REGIONS
from joulie.domain.grid.zones import zone_of_node
from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie.domain.hardware.resolve import ReportedHardware, resolve
from joulie.domain.units import FloatArray

ANNOTATED_PUE = "annotation of the pod or its namespace"


@dataclass(frozen=True)
class NodeUse:
    """Resource use of a node; NaN if unknown.

    Attributes:
        cpu_cores: busy cores of its pods.
        memory_bytes: working set of its pods, B.
        gpu_pct: mean utilisation of its GPUs, 0..100.
        power_w: power of its pods and of its unreserved rest, without PUE, W.
        pue: power usage effectiveness of its data centre.
        cores_per_w: logical CPUs per watt at full utilisation, PUE included.
    """

    cpu_cores: float
    memory_bytes: float
    gpu_pct: float
    power_w: float
    pue: float = math.nan
    cores_per_w: float = math.nan


class PodUse(NamedTuple):
    """Resource use of a pod; NaN if unknown.

    Attributes:
        cpu_cores: busy cores.
        memory_bytes: working set, B.
        gpu_w: power of its GPUs, without PUE, W.
        power_w: its power, without PUE, W.
    """

    cpu_cores: float
    memory_bytes: float
    gpu_w: float
    power_w: float


@dataclass(frozen=True)
class Sampling:
    """Result of sampling the cluster once.

    Attributes:
        samples: samples of pods, and of the idle rest of nodes.
        zones: grid zones of all nodes.
        budgets: energy budgets of pods by UID.
        mistakes: messages about invalid annotations, by object.
        nodes: resource use by node.
        new: UIDs of pods that were not in the previous sampling.
        pods: resource use of running pods by UID.
        pue_sources: sources of PUEs, by zone, PUE and PUE of GPUs.
    """

    samples: Sequence[Sample] = ()
    zones: frozenset[str] = frozenset()
    budgets: Mapping[str, Budget] = field(default_factory=dict)
    mistakes: Mapping[ObjectReference, Sequence[str]] = field(default_factory=dict)
    nodes: Mapping[str, NodeUse] = field(default_factory=dict)
    new: frozenset[str] = frozenset()
    pods: Mapping[str, PodUse] = field(default_factory=dict)
    pue_sources: Mapping[tuple[str, float, float], str] = field(default_factory=dict)


@dataclass(frozen=True)
class SamplerSettings:
    """Hardware profiles and defaults of the sampler.

    Attributes:
        profiles: hardware profiles.
        power: idle and maximum power of nodes with unknown hardware.
        zone: default grid zone of nodes.
        regions: grid zone by cloud region.
        inventory: embodied emissions of nodes, and PUE by zone.
        label_keys: labels of pods that energy can be summed by.
    """

    profiles: HardwareProfiles
    power: PowerSettings
    zone: str
    regions: Mapping[str, str] = field(default_factory=lambda: CLOUD_REGIONS)
    inventory: Inventory = field(default_factory=Inventory)
    label_keys: tuple[str, ...] = ()

    def pue(self, zone: str) -> SourcedPue:
        """PUE of a data centre in a zone, unless an annotation says otherwise."""
        profiles = self.profiles
        default = SourcedPue(profiles.pue, profiles.gpu_pue, "HARDWARE_PROFILES_PATH")
        if (profiles.pue, profiles.gpu_pue) == (DEFAULT_PUE.pue, DEFAULT_PUE.gpu_pue):
            default = DEFAULT_PUE
        return self.inventory.pue.get(zone, default)

    def asset(self, node: NodeFacts, power: NodePower) -> Asset | None:
        """Hardware of a node with its embodied emissions; None if they are unknown."""
        hardware = resolve(
            node.reported, node.labels, {"cpu": node.cpu_cores, **node.allocatable_gpus}, BUILTIN_CATALOGUE
        )
        given = self.inventory.asset(node.labels)
        return given or estimated_asset(hardware, power.memory_gb, node.provider_id)


class Sampler:
    """Makes samples; caches values derived from unchanged objects.

    Args:
        settings: hardware profiles and defaults.
    """

    def __init__(self, settings: SamplerSettings) -> None:
        self._settings = settings
        self._sites: dict[str, tuple[AccountedNode | None, ReportedHardware | None, NodeSite]] = {}
        self._policies: dict[str, tuple[AccountedPod, AccountedNamespace | None, PodPolicy]] = {}

    def zones(self, cluster: ClusterSnapshot) -> frozenset[str]:
        """Grid zones of all nodes."""
        return frozenset(self._site(name, cluster).zone for name in cluster.nodes)

    def sample(
        self,
        cluster: ClusterSnapshot,
        running: Sequence[AccountedPod],
        short_lived: Sequence[AccountedPod],
        readings: Readings,
    ) -> Sampling:
        """Sample all pods.

        Args:
            cluster: nodes and namespaces.
            running: running pods.
            short_lived: pods that started and ended since the last cycle, and so were never measured.
            readings: readings of all sources.
        """
        everyone = [*running, *short_lived]
        new = frozenset(pod.uid for pod in everyone if pod.uid not in self._policies)
        policies = self._policies_of(everyone, cluster.namespaces)
        sites = [self._site(name, cluster) for name in dict.fromkeys([*cluster.nodes, *(pod.node for pod in everyone)])]
        self._sites = {site.name: self._sites[site.name] for site in sites}
        found = self._powers(sites, running, policies, readings)
        samples = self._samples(sites, running, policies, found)
        idle = self._idle(sites, found, readings)
        if short_lived:
            samples += self._samples(
                sites, short_lived, policies, self._powers(sites, short_lived, policies, Readings())
            )
        return Sampling(
            [*samples, *idle],
            frozenset(site.zone for site in sites),
            {uid: policy.budget for uid, policy in policies.items() if policy.budget is not None},
            {_reference(pod): policies[pod.uid].mistakes for pod in everyone if policies[pod.uid].mistakes},
            _use(sites, found, gpu_pct(readings.gpus)),
            new,
            _pod_use(running, found),
            _pue_sources(sites, everyone, policies),
        )

    # ---- cached values

    def _site(self, name: str, cluster: ClusterSnapshot) -> NodeSite:
        """A node with its power model and zone; defaults for a node that is gone."""
        node, reported = cluster.nodes.get(name), cluster.reported.get(name)
        known = self._sites.get(name)
        if known is not None and known[:2] == (node, reported):
            return known[2]
        settings = self._settings
        facts = replace(NodeFacts(name) if node is None else node.facts, reported=reported)
        zone = zone_of_node(facts.labels, facts.annotations, facts.provider_id, settings.zone, settings.regions)
        power = node_power(facts, settings.profiles, settings.power)
        asset, uid = settings.asset(facts, power), "" if node is None else node.uid
        site = NodeSite(name, uid, power, zone, asset, settings.pue(zone))
        self._sites[name] = node, reported, site
        return site

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
        sites: Sequence[NodeSite],
        pods: Sequence[AccountedPod],
        policies: Mapping[str, PodPolicy],
        readings: Readings,
    ) -> Powers:
        return powers(sites, pods, [policies[pod.uid].gpu_workload_type for pod in pods], readings)

    def _samples(
        self,
        sites: Sequence[NodeSite],
        pods: Sequence[AccountedPod],
        policies: Mapping[str, PodPolicy],
        found: Powers,
    ) -> list[Sample]:
        watts = zip(found.cpu_w.tolist(), found.mem_w.tolist(), found.gpu_w.tolist(), strict=True)
        known = zip(found.quality, found.source, strict=True)
        reserved = (Shares(*shares) for shares in found.reserved.tolist())
        return [
            Sample(self._meta(pod, sites[row], policies[pod.uid]), *power_w, *by, Reservation(sites[row].asset, shares))
            for pod, row, power_w, by, shares in zip(pods, found.node.tolist(), watts, known, reserved, strict=True)
        ]

    def _meta(self, pod: AccountedPod, site: NodeSite, policy: PodPolicy) -> PodMeta:
        return PodMeta(
            uid=pod.uid,
            namespace=pod.namespace,
            name=pod.name,
            owner_kind=pod.owner.kind,
            owner_name=pod.owner.name,
            node=pod.node,
            zone=site.zone,
            started_s=pod.started_s,
            pue=site.pue.pue if policy.pue is None else policy.pue,
            gpu_pue=site.pue.gpu_pue if policy.gpu_pue is None else policy.gpu_pue,
            held=policy.held,
            labels=tuple((key, pod.labels[key]) for key in self._settings.label_keys if pod.labels.get(key)),
        )

    @staticmethod
    def _idle(sites: Sequence[NodeSite], found: Powers, readings: Readings) -> list[Sample]:
        """Samples of the unreserved idle power of nodes; none for nodes that are gone."""
        watts = zip(found.idle_cpu_w.tolist(), found.idle_mem_w.tolist(), found.idle_gpu_w.tolist(), strict=True)
        return [
            Sample(
                idle_account(site.name, site.uid, site.zone, site.pue.pue, site.pue.gpu_pue),
                *power_w,
                *idle_quality(site, readings, by_agent=by_agent, has_gpus=power_w[2] > 0.0),
                Reservation(site.asset, WHOLE_NODE),
            )
            for site, power_w, by_agent in zip(sites, watts, found.by_agent.tolist(), strict=True)
            if site.uid
        ]


def _pod_use(pods: Sequence[AccountedPod], found: Powers) -> dict[str, PodUse]:
    """Resource use of pods by UID."""
    power_w = found.cpu_w + found.mem_w + found.gpu_w
    columns = (found.cpu_cores, found.memory_gb * BYTES_PER_GB, found.gpu_w, power_w)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return {pod.uid: PodUse(*row) for pod, row in zip(pods, rows, strict=True)}


def _cores_per_w(power: NodePower, pue: SourcedPue) -> float:
    """Logical CPUs of a node per watt at full utilisation, PUE included; NaN if one of them is unknown."""
    gpu_w = 0.0 if power.gpu is None else power.gpus * power.gpu.max_w
    full_w = power.cpu_max_w * pue.pue + gpu_w * pue.gpu_pue
    return power.cores / full_w if power.cores > 0.0 and full_w > 0.0 else math.nan


def _use(sites: Sequence[NodeSite], found: Powers, busy_pct: Mapping[str, float]) -> dict[str, NodeUse]:
    """Resource use by node."""

    def by_node(values: FloatArray) -> FloatArray:
        """Sums over the pods with a known value; NaN without any."""
        known = ~np.isnan(values)
        sums = np.bincount(found.node[known], values[known], len(sites))
        return np.where(np.bincount(found.node[known], minlength=len(sites)) > 0, sums, np.nan)

    cores, memory_gb = by_node(found.cpu_cores), by_node(found.memory_gb)
    pods_w = np.bincount(found.node, found.cpu_w + found.mem_w + found.gpu_w, len(sites))
    power_w = pods_w + found.idle_cpu_w + found.idle_mem_w + found.idle_gpu_w
    return {
        site.name: NodeUse(
            float(cores[row]),
            float(memory_gb[row]) * BYTES_PER_GB,
            busy_pct.get(site.name, np.nan),
            float(power_w[row]),
            site.pue.pue,
            _cores_per_w(site.power, site.pue),
        )
        for row, site in enumerate(sites)
        if site.uid
    }


def _pue_sources(
    sites: Sequence[NodeSite], pods: Sequence[AccountedPod], policies: Mapping[str, PodPolicy]
) -> dict[tuple[str, float, float], str]:
    """Sources of the PUEs of nodes and pods, by zone, PUE and PUE of GPUs."""
    found = {(site.zone, site.pue.pue, site.pue.gpu_pue): site.pue.source for site in sites}
    by_name = {site.name: site for site in sites}
    for pod in pods:
        policy, site = policies[pod.uid], by_name[pod.node]
        if policy.pue is not None or policy.gpu_pue is not None:
            key = (site.zone, policy.pue or site.pue.pue, policy.gpu_pue or site.pue.gpu_pue)
            found.setdefault(key, ANNOTATED_PUE)
    return found


def _reference(pod: AccountedPod) -> ObjectReference:
    return ObjectReference("Pod", pod.name, api_version="v1", namespace=pod.namespace, uid=pod.uid)
