"""Nodes that hold local volumes: their data is on no other node, and a pod that asks for it can run nowhere else."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from joulie.adapters.kubernetes.api.core import PersistentVolume
from joulie.adapters.kubernetes.cache import Cache
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.placement import requirements
from joulie.adapters.kubernetes.resources import PERSISTENT_VOLUMES
from joulie.domain.scheduling.node_rules import Term

NodeLabels = Mapping[str, Mapping[str, str]]
"""Labels of nodes, by name."""


class VolumeNodes(NamedTuple):
    """Which nodes a volume can be used from: those that one of its terms selects."""

    terms: tuple[Term, ...]
    local: bool
    """Whether it is of kind ``local``; of another kind, it is if it can be used from one node only."""


def volume_nodes(volume: PersistentVolume) -> VolumeNodes | None:
    """Which nodes a volume can be used from; None for all."""
    affinity = volume.spec.node_affinity
    if affinity is None or affinity.required is None:
        return None
    terms = tuple(
        Term(requirements(one.match_expressions), requirements(one.match_fields))
        for one in affinity.required.node_selector_terms
    )
    return VolumeNodes(terms, volume.spec.local is not None)


class LocalVolumes:
    """The local volumes of the cluster.

    Args:
        client: Kubernetes client.
    """

    def __init__(self, client: KubeClient) -> None:
        self._cache: Cache[PersistentVolume, VolumeNodes] = Cache(client, PERSISTENT_VOLUMES, volume_nodes)

    async def run(self) -> None:
        """Watch the volumes until cancelled."""
        await self._cache.run()

    @property
    def all(self) -> tuple[VolumeNodes, ...] | None:
        """Volumes that cannot be used from everywhere; None while they are not known, without rights to say."""
        return tuple(self._cache.objects.values()) if self._cache.synced else None


def holders(volumes: Iterable[VolumeNodes], nodes: NodeLabels) -> frozenset[str]:
    """Names of the nodes that hold local volumes."""
    found: set[str] = set()
    selected = _Selected(nodes)
    for volume in set(volumes):
        names = {name for term in volume.terms for name in selected.by(term)}
        if volume.local or len(names) == 1:
            found |= names
    return frozenset(found)


class _Selected:
    """Nodes that terms select; one that asks for values of a label is looked up by these."""

    def __init__(self, nodes: NodeLabels) -> None:
        self._nodes = nodes
        self._by_label: dict[str, dict[str, list[str]]] = {}

    def by(self, term: Term) -> Iterable[str]:
        return (name for name in self._candidates(term) if term.matches(self._nodes[name], name))

    def _candidates(self, term: Term) -> Iterable[str]:
        asked = next((one for one in term.labels if one.operator == "In"), None)
        if asked is None:
            return self._nodes
        if asked.key not in self._by_label:
            found: dict[str, list[str]] = defaultdict(list)
            for name, labels in self._nodes.items():
                if asked.key in labels:
                    found[labels[asked.key]].append(name)
            self._by_label[asked.key] = found
        index = self._by_label[asked.key]
        return (name for value in asked.values for name in index.get(value, ()))
