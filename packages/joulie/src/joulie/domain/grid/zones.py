"""Grid zones of nodes and pods.

Zones have the names of Electricity Maps; `joulie.domain.grid.cloud_regions` holds those of cloud regions, and a setting
adds others. A region that neither names becomes a zone of its own (`aws:moon-1`), of which only a source that knows the
region has a signal: never that of another grid. Source: spec, grid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from joulie.domain.grid import names
from joulie.domain.grid.cloud_regions import CLOUD_REGIONS
from joulie.domain.scheduling.labels import Requirement
from joulie.domain.scheduling.node_rules import selector_requirements

REGION_LABEL = "topology.kubernetes.io/region"
_OLD_REGION_LABEL = "failure-domain.beta.kubernetes.io/region"
ZONE_LABELS = (names.ZONE, REGION_LABEL, _OLD_REGION_LABEL)
"""Labels of a node that tell its zone."""
_PROVIDERS = {"aws": "aws", "gce": "gcp", "azure": "azure"}
_REGION = "region"
"""Stands for the cloud of a region of which only the name is known."""


def region_zone(region: str, provider_id: str, table: Mapping[str, str]) -> str | None:
    """Zone of a cloud's region; None where neither the table nor all clouds with that region agree on one.

    Args:
        region: as the cloud names it.
        provider_id: ``spec.providerID`` of a node there, such as ``aws:///us-east-1a/i-0``; empty where it is not
            known. Then the region counts if all clouds with a region of that name have it in the same zone.
        table: zone by ``provider:region``, or by region alone.
    """
    provider = _PROVIDERS.get(provider_id.partition(":")[0], "")
    if provider:
        return table.get(f"{provider}:{region}", table.get(region))
    zones = {table[key] for key in (region, *(f"{one}:{region}" for one in _PROVIDERS.values())) if key in table}
    return zones.pop() if len(zones) == 1 else None


def zone_of_node(
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    provider_id: str,
    default: str,
    table: Mapping[str, str] = CLOUD_REGIONS,
) -> str:
    """Zone of a node: what its label or annotation ``joulie.io/grid-zone`` says, else its cloud region's, else default.

    A cloud's region without a known zone is a zone of its own: it is not in the default zone.

    Args:
        labels: of the node.
        annotations: of the node.
        provider_id: ``spec.providerID``.
        default: of the cluster.
        table: see `region_zone`.
    """
    stated = labels.get(names.ZONE) or annotations.get(names.ZONE)
    if stated:
        return stated
    region = labels.get(REGION_LABEL) or labels.get(_OLD_REGION_LABEL)
    if not region:
        return default
    provider = _PROVIDERS.get(provider_id.partition(":")[0])
    return region_zone(region, provider_id, table) or (f"{provider}:{region}" if provider else default)


def zone_of_pod(
    requested: str | None,
    node_selector: Mapping[str, str],
    affinity: Sequence[Iterable[Requirement]],
    default: str,
    table: Mapping[str, str] = CLOUD_REGIONS,
) -> str:
    """Zone in which a pod will run, as far as it states one: by annotation, by its node selector, by its node affinity.

    A region without a known zone is a zone of its own, unless another condition tells the zone.

    Args:
        requested: `GridRequest.zone`.
        node_selector: ``spec.nodeSelector``.
        affinity: terms of its required node affinity, of which one must hold.
        default: where it does not say, or names several zones.
        table: see `region_zone`.
    """
    zones = zones_of_pod(requested, node_selector, affinity, table)
    return zones.pop() if len(zones) == 1 else default


def zones_of_pod(
    requested: str | None,
    node_selector: Mapping[str, str],
    affinity: Sequence[Iterable[Requirement]],
    table: Mapping[str, str] = CLOUD_REGIONS,
) -> set[str]:
    """All zones in which a pod says that it may run; empty where it does not say. Arguments as of `zone_of_pod`."""
    if requested:
        return {requested}
    conditions = selector_requirements(node_selector), affinity
    return _zones(*conditions, lambda region: region_zone(region, "", table)) or _zones(
        *conditions, lambda region: region_zone(region, "", table) or f"{_REGION}:{region}"
    )


def is_unmapped_region(zone: str) -> bool:
    """Whether a zone is that of a cloud region without a known zone, or a region that a source is asked for by name."""
    return zone.partition(":")[0] in {*_PROVIDERS.values(), _REGION}


def _zones(
    selector: Iterable[Requirement],
    affinity: Sequence[Iterable[Requirement]],
    zone_of: Callable[[str], str | None],
) -> set[str]:
    """The zones that a node selector and a node affinity allow; empty where they say nothing that is known of zones."""
    selected = _zones_of(selector, zone_of)
    by_term = [_zones_of(term, zone_of) for term in affinity]
    allowed = set().union(*by_term) if all(by_term) else set()
    return selected & allowed if selected and allowed else selected or allowed


def _zones_of(terms: Iterable[Requirement], zone_of: Callable[[str], str | None]) -> set[str]:
    """The zones that a conjunction of conditions allows; empty where it says nothing that is known of zones.

    A region whose zone `zone_of` does not know could be anywhere, so it leaves its condition without a say.
    """
    allowed: set[str] = set()
    for term in terms:
        if term.operator != "In" or not term.values:
            continue
        if term.key == names.ZONE:
            zones: set[str | None] = set(term.values)
        elif term.key in {REGION_LABEL, _OLD_REGION_LABEL}:
            zones = {zone_of(value) for value in term.values}
        else:
            continue
        known = {zone for zone in zones if zone is not None}
        if len(known) == len(zones):
            allowed = allowed & known if allowed else known
    return allowed
