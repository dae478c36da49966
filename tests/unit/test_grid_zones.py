"""Zones of nodes and pods."""

import pytest

from joulie.domain.grid import names
from joulie.domain.grid.zones import CLOUD_REGIONS, REGION_LABEL, region_zone, zone_of_node, zone_of_pod
from joulie.domain.scheduling.labels import Requirement

AWS = "aws:///eu-central-1a/i-0123"


def test_a_nodes_own_word_counts_first() -> None:
    region = {REGION_LABEL: "eu-central-1"}
    assert zone_of_node({**region, names.ZONE: "AT"}, {names.ZONE: "CH"}, AWS, "FR") == "AT"
    assert zone_of_node(region, {names.ZONE: "CH"}, AWS, "FR") == "CH"
    assert zone_of_node(region, {}, AWS, "FR") == "DE"
    assert zone_of_node({}, {}, AWS, "FR") == "FR"
    assert zone_of_node({REGION_LABEL: "on-mars-1"}, {}, AWS, "FR") == "FR"


@pytest.mark.parametrize(
    ("region", "provider", "zone"),
    [
        ("us-west-1", "aws", "US-CAL-CISO"),
        ("us-west1", "aws", None),
        ("europe-west1", "gce", "BE"),
        ("westeurope", "azure", "NL"),
        ("eu-west-2", "", "GB"),
        ("eu-west-2", "kind", "GB"),
        ("us-west1", "", None),
    ],
)
def test_regions(region: str, provider: str, zone: str | None) -> None:
    assert region_zone(region, f"{provider}://x" if provider else "", CLOUD_REGIONS) == zone


def test_a_setting_extends_the_table() -> None:
    table = {**CLOUD_REGIONS, "aws:eu-central-1": "DE-LU", "rack-7": "AT"}
    assert region_zone("eu-central-1", AWS, table) == "DE-LU"
    assert zone_of_node({REGION_LABEL: "rack-7"}, {}, "", "FR", table) == "AT"
    assert zone_of_node({REGION_LABEL: "rack-7"}, {}, AWS, "FR", table) == "AT"


def test_a_region_that_two_clouds_have_elsewhere_is_not_guessed() -> None:
    table = {"aws:north": "SE", "gcp:north": "NO"}
    assert region_zone("north", "", table) is None
    assert region_zone("north", "gce://p/z/i", table) == "NO"


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


def test_the_table_names_clouds_and_zones() -> None:
    for key, zone in CLOUD_REGIONS.items():
        provider, _, region = key.partition(":")
        assert provider in {"aws", "gcp", "azure"}
        assert region
        assert zone[:2].isupper()
