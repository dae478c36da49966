"""RAPL zones as exporters label them: the same package may be there twice, over MSRs and over MMIO."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from joulie.adapters.prometheus.answers import History
from joulie.adapters.prometheus.node_sums import NodeSums, rate_of
from joulie.adapters.prometheus.nodes import NodeIndex
from joulie.adapters.prometheus.readings import Rejection

MAX_DEVICE_W = 3000.0
"""More than any CPU package or GPU draws, W."""
_MMIO = "-mmio"


class Zone(NamedTuple):
    """A counter of one zone of one node."""

    part: str
    """As `NodeSums` has it."""
    device: str
    """Name of the zone within its part."""
    path: str
    """In sysfs; empty where the exporter does not say."""
    history: History


def add_zones(sums: NodeSums, index: NodeIndex, zones: Iterable[Zone]) -> None:
    """Add the power of these zones to `sums`; one over MMIO only where the node's part has no other."""
    placed: list[tuple[str, Zone]] = []
    for zone in zones:
        node = index.node_of(zone.history.labels)
        if node is None:
            sums.reject(Rejection.UNKNOWN_NODE)
        else:
            placed.append((node, zone))
    standard = {(node, zone.part) for node, zone in placed if _MMIO not in zone.path}
    for node, zone in placed:
        if _MMIO in zone.path and (node, zone.part) in standard:
            sums.reject(Rejection.DUPLICATE)
        else:
            sums.add(zone.part, node, zone.device, rate_of(zone.history.samples, MAX_DEVICE_W))
