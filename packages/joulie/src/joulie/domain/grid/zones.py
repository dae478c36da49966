"""Grid zones of nodes and pods.

Zones have the names of Electricity Maps. The table of cloud regions holds those whose place and grid are evident from
what the clouds publish; a setting adds others. Source: spec, grid.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from joulie.domain.grid import names
from joulie.domain.scheduling.labels import Requirement
from joulie.domain.scheduling.node_rules import selector_requirements

REGION_LABEL = "topology.kubernetes.io/region"
_OLD_REGION_LABEL = "failure-domain.beta.kubernetes.io/region"
_PROVIDERS = {"aws": "aws", "gce": "gcp", "azure": "azure"}

CLOUD_REGIONS: Mapping[str, str] = {
    "aws:af-south-1": "ZA",
    "aws:ap-east-1": "HK",
    "aws:ap-northeast-1": "JP-TK",
    "aws:ap-northeast-2": "KR",
    "aws:ap-northeast-3": "JP-KN",
    "aws:ap-south-1": "IN-WE",
    "aws:ap-southeast-1": "SG",
    "aws:ap-southeast-2": "AU-NSW",
    "aws:ap-southeast-4": "AU-VIC",
    "aws:ca-central-1": "CA-QC",
    "aws:eu-central-1": "DE",
    "aws:eu-central-2": "CH",
    "aws:eu-north-1": "SE-SE3",
    "aws:eu-south-1": "IT-NO",
    "aws:eu-south-2": "ES",
    "aws:eu-west-1": "IE",
    "aws:eu-west-2": "GB",
    "aws:eu-west-3": "FR",
    "aws:sa-east-1": "BR-CS",
    "aws:us-east-1": "US-MIDA-PJM",
    "aws:us-east-2": "US-MIDA-PJM",
    "aws:us-west-1": "US-CAL-CISO",
    "aws:us-west-2": "US-NW-PACW",
    "azure:australiaeast": "AU-NSW",
    "azure:australiasoutheast": "AU-VIC",
    "azure:brazilsouth": "BR-CS",
    "azure:canadacentral": "CA-ON",
    "azure:canadaeast": "CA-QC",
    "azure:centralus": "US-MIDW-MISO",
    "azure:eastasia": "HK",
    "azure:eastus": "US-MIDA-PJM",
    "azure:eastus2": "US-MIDA-PJM",
    "azure:francecentral": "FR",
    "azure:germanywestcentral": "DE",
    "azure:japaneast": "JP-TK",
    "azure:japanwest": "JP-KN",
    "azure:koreacentral": "KR",
    "azure:northeurope": "IE",
    "azure:norwayeast": "NO-NO1",
    "azure:southafricanorth": "ZA",
    "azure:southcentralus": "US-TEX-ERCO",
    "azure:southeastasia": "SG",
    "azure:swedencentral": "SE-SE3",
    "azure:switzerlandnorth": "CH",
    "azure:uksouth": "GB",
    "azure:ukwest": "GB",
    "azure:westeurope": "NL",
    "azure:westus": "US-CAL-CISO",
    "gcp:asia-east1": "TW",
    "gcp:asia-east2": "HK",
    "gcp:asia-northeast1": "JP-TK",
    "gcp:asia-northeast2": "JP-KN",
    "gcp:asia-northeast3": "KR",
    "gcp:asia-south1": "IN-WE",
    "gcp:asia-southeast1": "SG",
    "gcp:australia-southeast1": "AU-NSW",
    "gcp:australia-southeast2": "AU-VIC",
    "gcp:europe-central2": "PL",
    "gcp:europe-north1": "FI",
    "gcp:europe-southwest1": "ES",
    "gcp:europe-west1": "BE",
    "gcp:europe-west2": "GB",
    "gcp:europe-west3": "DE",
    "gcp:europe-west4": "NL",
    "gcp:europe-west6": "CH",
    "gcp:europe-west8": "IT-NO",
    "gcp:europe-west9": "FR",
    "gcp:europe-west10": "DE",
    "gcp:europe-west12": "IT-NO",
    "gcp:northamerica-northeast1": "CA-QC",
    "gcp:northamerica-northeast2": "CA-ON",
    "gcp:southamerica-east1": "BR-CS",
    "gcp:us-central1": "US-MIDW-MISO",
    "gcp:us-east4": "US-MIDA-PJM",
    "gcp:us-east5": "US-MIDA-PJM",
    "gcp:us-south1": "US-TEX-ERCO",
}
"""Zone of a region, by ``provider:region``."""


def region_zone(region: str, provider_id: str, table: Mapping[str, str]) -> str | None:
    """Zone of a cloud's region.

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
    return (region and region_zone(region, provider_id, table)) or default


def zone_of_pod(
    requested: str | None,
    node_selector: Mapping[str, str],
    affinity: Sequence[Iterable[Requirement]],
    default: str,
    table: Mapping[str, str] = CLOUD_REGIONS,
) -> str:
    """Zone in which a pod will run, as far as it states one: by annotation, by its node selector, by its node affinity.

    Args:
        requested: `GridRequest.zone`.
        node_selector: ``spec.nodeSelector``.
        affinity: terms of its required node affinity, of which one must hold.
        default: where it does not say, or names several zones.
        table: see `region_zone`.
    """
    if requested:
        return requested
    selected = _zones_of(selector_requirements(node_selector), table)
    by_term = [_zones_of(term, table) for term in affinity]
    allowed = set().union(*by_term) if all(by_term) else set()
    zones = selected & allowed if selected and allowed else selected or allowed
    return zones.pop() if len(zones) == 1 else default


def _zones_of(terms: Iterable[Requirement], table: Mapping[str, str]) -> set[str]:
    """The zones that a conjunction of conditions allows; empty where it says nothing that is known of zones.

    A region that is not in the table could be anywhere, so it leaves its condition without a say.
    """
    allowed: set[str] = set()
    for term in terms:
        if term.operator != "In" or not term.values:
            continue
        if term.key == names.ZONE:
            zones: set[str | None] = set(term.values)
        elif term.key in {REGION_LABEL, _OLD_REGION_LABEL}:
            zones = {region_zone(value, "", table) for value in term.values}
        else:
            continue
        known = {zone for zone in zones if zone is not None}
        if len(known) == len(zones):
            allowed = allowed & known if allowed else known
    return allowed
