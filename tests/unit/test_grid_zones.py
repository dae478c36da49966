"""Zones of nodes and pods."""

import pytest

from joulie.domain.grid import names
from joulie.domain.grid.cloud_regions import CLOUD_REGIONS
from joulie.domain.grid.zones import (
    REGION_LABEL,
    is_unmapped_region,
    region_zone,
    zone_of_node,
    zone_of_pod,
    zones_of_pod,
)
from joulie.domain.scheduling.labels import Requirement

AWS = "aws:///eu-central-1a/i-0123"


def test_a_nodes_own_word_counts_first() -> None:
    region = {REGION_LABEL: "eu-central-1"}
    assert zone_of_node({**region, names.ZONE: "AT"}, {names.ZONE: "CH"}, AWS, "FR") == "AT"
    assert zone_of_node(region, {names.ZONE: "CH"}, AWS, "FR") == "CH"
    assert zone_of_node(region, {}, AWS, "FR") == "DE"
    assert zone_of_node({}, {}, AWS, "FR") == "FR"


@pytest.mark.parametrize(
    ("region", "provider", "zone"),
    [
        ("us-west-1", "aws", "US-CAL-CISO"),
        ("us-west1", "aws", None),
        ("europe-west1", "gce", "BE"),
        ("westeurope", "azure", "NL"),
        ("eu-west-2", "", "GB"),
        ("eu-west-2", "kind", "GB"),
        ("us-west1", "", "US-NW-BPAT"),
        ("us-moon1", "", None),
    ],
)
def test_regions(region: str, provider: str, zone: str | None) -> None:
    assert region_zone(region, f"{provider}://x" if provider else "", CLOUD_REGIONS) == zone


PUBLIC_REGIONS = {
    "aws": "af-south-1 ap-east-1 ap-east-2 ap-northeast-1 ap-northeast-2 ap-northeast-3 ap-south-1 ap-south-2 "
    "ap-southeast-1 ap-southeast-2 ap-southeast-3 ap-southeast-4 ap-southeast-5 ap-southeast-6 ap-southeast-7 "
    "ca-central-1 ca-west-1 eu-central-1 eu-central-2 eu-north-1 eu-south-1 eu-south-2 eu-west-1 eu-west-2 eu-west-3 "
    "il-central-1 me-central-1 me-south-1 mx-central-1 sa-east-1 us-east-1 us-east-2 us-west-1 us-west-2 "
    "cn-north-1 cn-northwest-1 us-gov-east-1 us-gov-west-1 eusc-de-east-1",
    "azure": "australiacentral australiacentral2 australiaeast australiasoutheast austriaeast belgiumcentral "
    "brazilsouth brazilsoutheast canadacentral canadaeast centralindia centralus chilecentral eastasia eastus eastus2 "
    "francecentral francesouth germanynorth germanywestcentral indonesiacentral israelcentral italynorth japaneast "
    "japanwest jioindiacentral jioindiawest koreacentral koreasouth malaysiawest mexicocentral newzealandnorth "
    "northcentralus northeurope norwayeast norwaywest polandcentral qatarcentral southafricanorth southafricawest "
    "southcentralus southeastasia southindia spaincentral swedencentral switzerlandnorth switzerlandwest uaecentral "
    "uaenorth uksouth ukwest westcentralus westeurope westindia westus westus2 westus3 "
    "chinaeast2 chinaeast3 chinanorth2 chinanorth3 usgovarizona usgovtexas usgovvirginia usdodcentral usdodeast",
    "gcp": "africa-south1 asia-east1 asia-east2 asia-northeast1 asia-northeast2 asia-northeast3 asia-south1 "
    "asia-south2 asia-southeast1 asia-southeast2 asia-southeast3 australia-southeast1 australia-southeast2 "
    "europe-central2 "
    "europe-north1 europe-north2 europe-southwest1 europe-west1 europe-west2 europe-west3 europe-west4 europe-west6 "
    "europe-west8 europe-west9 europe-west10 europe-west12 me-central1 me-central2 me-west1 northamerica-northeast1 "
    "northamerica-northeast2 northamerica-south1 southamerica-east1 southamerica-west1 us-central1 us-east1 us-east4 "
    "us-east5 us-south1 us-west1 us-west2 us-west3 us-west4",
}
"""Regions that the clouds list publicly, November 2026 (AWS: endpoints of botocore 1.44)."""


@pytest.mark.parametrize("cloud", sorted(PUBLIC_REGIONS))
def test_g6_every_public_region_of_a_cloud_has_a_zone(cloud: str) -> None:
    unmapped = [region for region in PUBLIC_REGIONS[cloud].split() if f"{cloud}:{region}" not in CLOUD_REGIONS]
    assert not unmapped


def test_g6_a_cloud_region_without_a_known_zone_is_in_no_other_grid() -> None:
    moon = {REGION_LABEL: "moon-1"}
    assert zone_of_node(moon, {}, AWS, "FR") == "aws:moon-1"
    assert zone_of_node(moon, {}, "openstack:///x", "FR") == "FR"  # not a cloud's region, but a site's own name
    assert zone_of_pod(None, moon, [], "FR") == "region:moon-1"
    assert zone_of_pod(None, {**moon, names.ZONE: "GB"}, [], "FR") == "GB"
    assert zone_of_pod(None, moon, [[Requirement(names.ZONE, "In", ("GB",))]], "FR") == "GB"
    assert is_unmapped_region("aws:moon-1")
    assert is_unmapped_region("region:moon-1")
    assert not any(is_unmapped_region(zone) for zone in [*CLOUD_REGIONS.values(), "geo:50.1,8.6", "FR"])


def test_a_setting_extends_the_table() -> None:
    table = {**CLOUD_REGIONS, "aws:eu-central-1": "DE-LU", "rack-7": "AT"}
    assert region_zone("eu-central-1", AWS, table) == "DE-LU"
    assert zone_of_node({REGION_LABEL: "rack-7"}, {}, "", "FR", table) == "AT"
    assert zone_of_node({REGION_LABEL: "rack-7"}, {}, AWS, "FR", table) == "AT"


def test_a_region_that_two_clouds_have_elsewhere_is_not_guessed() -> None:
    table = {"aws:north": "SE", "gcp:north": "NO"}
    assert region_zone("north", "", table) is None
    assert region_zone("north", "gce://p/z/i", table) == "NO"
    assert zone_of_pod(None, {REGION_LABEL: "north"}, [], "FR", table) == "region:north"


def test_where_a_pod_will_run() -> None:
    region = Requirement(REGION_LABEL, "In", ("eu-west-2",))
    either = Requirement(REGION_LABEL, "In", ("eu-west-2", "eu-west-3"))
    other = Requirement("disk", "In", ("ssd",))
    assert zone_of_pod("AT", {REGION_LABEL: "eu-west-2"}, [], "FR") == "AT"
    assert zone_of_pod(None, {REGION_LABEL: "eu-west-2"}, [], "FR") == "GB"
    assert zone_of_pod(None, {names.ZONE: "CH"}, [], "FR") == "CH"
    assert zone_of_pod(None, {}, [[region, other]], "FR") == "GB"
    assert zone_of_pod(None, {}, [[either]], "DE") == "DE"  # ambiguous
    assert zone_of_pod(None, {names.ZONE: "GB"}, [[either]], "DE") == "GB"
    assert zone_of_pod(None, {}, [[region], [other]], "FR") == "FR"  # the other term admits any zone
    assert zone_of_pod(None, {}, [[either, region]], "FR") == "GB"
    assert zone_of_pod(None, {}, [[region, either]], "FR") == "GB"
    assert zone_of_pod(None, {}, [[Requirement(REGION_LABEL, "NotIn", ("eu-west-2",))]], "FR") == "FR"
    assert zone_of_pod(None, {}, [[Requirement(REGION_LABEL, "In", ("eu-west-2", "on-mars-1"))]], "FR") == "FR"
    assert zone_of_pod(None, {}, [], "FR") == "FR"


def test_all_zones_that_a_pod_allows() -> None:
    either = Requirement(REGION_LABEL, "In", ("eu-west-2", "eu-west-3"))
    assert zones_of_pod(None, {}, [[either]]) == {"GB", "FR"}
    assert zones_of_pod("AT", {}, [[either]]) == {"AT"}
    assert zones_of_pod(None, {names.ZONE: "GB"}, [[either]]) == {"GB"}
    assert zones_of_pod(None, {}, [[Requirement("disk", "In", ("ssd",))]]) == set()


def test_the_table_names_clouds_and_zones() -> None:
    for key, zone in CLOUD_REGIONS.items():
        provider, _, region = key.partition(":")
        assert provider in {"aws", "gcp", "azure"}
        assert region
        assert zone[:2].isupper()
