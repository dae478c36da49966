"""Benchmark B6 on the real kube-scheduler, the short form: every pod is bound in all ways."""

import sys
from pathlib import Path

import pytest

from joulie_lab.apps.bench.binding import tables
from joulie_lab.benchmarks import binding
from joulie_lab.benchmarks.ranges import load_ranges, misses
from joulie_lab.benchmarks.results import plain
from joulie_lab.control_plane import Binaries

pytestmark = [pytest.mark.control_plane, pytest.mark.slow]

ROOT = Path(__file__).parents[2]


def test_pods_are_bound_in_all_ways(control_plane_binaries: Binaries, capsys: pytest.CaptureFixture[str]) -> None:
    """It raises unless each pod is bound, by an extender that must answer or by policies in force."""
    measured = binding.measure(binding.SMALL, ROOT / "deploy/helm/joulie", lambda line: None)
    (table,) = tables(measured)
    with capsys.disabled():
        for row in table.rows:
            sys.stdout.write(f"\nbound pods a second: {dict(zip(table.columns, row, strict=True))}")
    (found,) = measured.bound_per_s.values()
    assert all(len(rates) == 3 for rates in found.rounds.values())
    # Wide: three rounds on a shared machine.
    assert misses(load_ranges(ROOT / "benchmarks/binding.yaml", small=True), plain(measured)) == []
