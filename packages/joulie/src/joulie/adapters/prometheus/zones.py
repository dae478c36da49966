"""RAPL zones as exporters label them: the same package may have two zones, over MSRs and over MMIO."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from joulie.adapters.prometheus.answers import History
from joulie.adapters.prometheus.node_sums import NodeSums, rate_of
from joulie.adapters.prometheus.nodes import NodeIndex
from joulie.adapters.prometheus.readings import Rejection

MAX_DEVICE_W = 3000.0
"""Plausible maximum power of a CPU package or GPU, W; larger readings are left out."""
_MMIO = "-mmio"


class Zone(NamedTuple):
    """Energy counter of one zone of a node."""

    part: str
    """Part of the node, as `NodeSums` names it."""
    device: str
    """Name of the zone within its part."""
    path: str
    """Path in sysfs; empty if the exporter does not report it."""
    history: History


def add_zones(sums: NodeSums, index: NodeIndex, zones: Iterable[Zone]) -> None:
    """Add the power of zones to `sums`; zones over MMIO only if the node's part has no others."""
    zones_by_node: list[tuple[str, Zone]] = []
    for zone in zones:
        node = index.node_of(zone.history.labels)
        if node is None:
            sums.reject(Rejection.UNKNOWN_NODE)
        else:
            zones_by_node.append((node, zone))
    standard = {(node, zone.part) for node, zone in zones_by_node if _MMIO not in zone.path}
    for node, zone in zones_by_node:
        if _MMIO in zone.path and (node, zone.part) in standard:
            sums.reject(Rejection.DUPLICATE)
        else:
            sums.add(zone.part, node, zone.device, rate_of(zone.history.samples, MAX_DEVICE_W))
