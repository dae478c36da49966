"""`joulie bench native`: its parts by a counted clock, and the small sample as CI runs it."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest

from joulie.apps.cli.main import main
from joulie_lab.apps.bench.native import tables
from joulie_lab.benchmarks import native

ROOT = Path(__file__).parents[2]
RANGES = ROOT / "benchmarks" / "native.yaml"


@pytest.mark.slow
def test_growth_is_in_runs_of_the_smallest_size_and_the_fastest_round_counts() -> None:
    ticks = itertools.chain([0.0, 5.0, 5.0, 7.0, 7.0, 13.0, 13.0, 17.0], itertools.cycle([0.0, 2.0]))
    plan = replace(native.SMALL, nodes=2, jobs=5, rounds=2)
    runs, growth = native.growth_of(plan, lambda: next(ticks), lambda stage: None)
    kube = runs["kube"]
    assert (kube["once"].cpu_s, kube["jobs_x_2"].cpu_s) == (2.0, 4.0)
    assert kube["once"].us_per_event == pytest.approx(2.0 / 10 * 1e6)
    assert growth["kube"] == pytest.approx(
        {"jobs_x_2": 2.0, "jobs_x_4": 1.0, "nodes_x_2": 1.0, "nodes_x_4": 1.0, "both_x_2": 1.0}
    )
    sizes = [(one.nodes, one.jobs, one.completed) for one in runs["joulie"].values()]
    assert sizes == [(2, 5, 5), (2, 10, 10), (2, 20, 20), (4, 5, 5), (8, 5, 5), (4, 10, 10)]
    growth_table, _ = tables(native.NativeResult(runs, growth, {}))
    assert list(growth_table.rows)[1] == ("kube, jobs x 2", "2", "10", "4.0", "200,000", "2.00")


def test_both_ways_are_timed_on_the_same_jobs_and_none_differs() -> None:
    ticks = itertools.count(0.0, 2.0)
    found = native.beside_plain(native.SMALL.beside, "static_partition", lambda: next(ticks))
    assert found.events > 0
    assert found.times_faster == 1.0
    assert found.other_ends == 0


@pytest.mark.slow
def test_the_small_sample_holds_its_ranges(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["bench", "native", "--small", "--ranges", str(RANGES), "--json", str(tmp_path / "j")])
    assert caught.value.code == 0, capsys.readouterr().err
    assert json.loads((tmp_path / "j").read_text())["missed"] == []
