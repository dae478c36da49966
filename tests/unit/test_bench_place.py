"""The place benchmark: its small sample holds its ranges, and its rules relate as they must."""

from pathlib import Path

import pytest

from joulie_lab.adapters.published.intensity import synthetic_zones
from joulie_lab.apps.bench import place as command
from joulie_lab.benchmarks.place import BEST, BOTH, PLACE, SLACK_H, SMALL, TIME, measure
from joulie_lab.benchmarks.ranges import load_ranges, misses
from joulie_lab.benchmarks.results import plain

pytestmark = pytest.mark.slow

RANGES = Path(__file__).parents[2] / "benchmarks/place.yaml"


@pytest.fixture(scope="module")
def result():
    return measure({"sunny": synthetic_zones(seed=1)["sunny"]}, SMALL, lambda _stage: None)


def test_the_small_sample_holds_its_ranges_and_says_when_not(result):
    ranges = load_ranges(RANGES, small=True)
    assert misses(ranges, plain(result)) == []
    worse = plain(result)
    worse["late"] = 1
    assert len(misses(ranges, worse)) == 1


def test_nothing_beats_the_best_possible_and_no_rule_does_what_it_must_not(result):
    for rules in result.zones["sunny"].values():
        for found in rules.values():
            assert found.g_per_kwh.mean >= rules[BEST].g_per_kwh.mean - 1e-9
            assert found.late == 0
            assert found.wait_h <= SLACK_H
        assert rules[TIME].moved == 0.0
        assert rules[PLACE].wait_h == 0.0
    free = result.zones["sunny"]["0 GB"]
    assert free[BOTH].g_per_kwh.mean < free[PLACE].g_per_kwh.mean


def test_it_is_shown(result):
    (table,) = command.tables(result)
    assert len(table.rows) == 2 * 4
    assert len(command.figure(result).axes) == 1
