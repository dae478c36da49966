"""The benchmark of profiles: its workloads are what they say, its trees are what training makes, errors show."""

import json
from pathlib import Path

import numpy as np
import pytest

from joulie.apps.cli.main import main
from joulie.domain.profiles.learned import SAMPLES, features, verdict_of
from joulie.domain.profiles.profile import Hints
from joulie.domain.profiles.rules import classify
from joulie.domain.profiles.tree import Leaf, Split, Target
from joulie.domain.profiles.trees import TREES
from joulie.domain.workload import Level
from joulie_lab.benchmarks import profiles
from joulie_lab.benchmarks.profile_levels import LEVELS, cost, said_of
from joulie_lab.benchmarks.profile_traces import GPU_FAMILIES, KNOWN, SHIFTED, _sensitivity
from joulie_lab.benchmarks.profile_training import KEPT, MEAN_FEATURES, module_of, train
from joulie_lab.benchmarks.ranges import load_ranges, misses
from joulie_lab.benchmarks.results import plain

ROOT = Path(__file__).parents[2]
RANGES = ROOT / "benchmarks" / "profiles.yaml"
PLACE = {level: place for place, level in enumerate(LEVELS)}


def drawn(world, count, seed=7):
    return profiles.drawn(world, seed, count)


@pytest.mark.parametrize("world", [KNOWN, SHIFTED], ids=["known", "shifted"])
def test_a_workload_is_seen_as_prometheus_would_show_it(world):
    for one in drawn(world, 10):
        gpus = one.family in GPU_FAMILIES
        assert (one.course.gpu_pct is not None) == one.use.holds_gpus == gpus
        assert one.course.cpu_pct.shape == (SAMPLES,)
        for values, mean in ((one.course.cpu_pct, one.use.cpu_util_pct), (one.course.gpu_pct, one.use.gpu_util_pct)):
            if values is not None:
                assert 0.0 <= np.nanmin(values) <= np.nanmax(values) <= 100.0
                assert np.nanmean(values) == pytest.approx(mean, abs=25.0), "the same window"
        classify(Hints(), one.use)
        assert len(one.truth) == (4 if gpus else 2)


def test_the_same_seed_makes_the_same_workloads_and_another_others():
    one, two, other = (drawn(KNOWN, 3, seed) for seed in (3, 3, 4))
    assert [a.truth for a in one] == [b.truth for b in two]
    assert [a.use for a in one] == [b.use for b in two]
    assert [a.use for a in one] != [b.use for b in other]


def test_true_sensitivity_is_the_time_that_the_same_work_takes_longer():
    assert _sensitivity(np.full(10, 1.0)) is Level.LOW
    assert _sensitivity(np.full(10, 0.95)) is Level.MEDIUM
    assert _sensitivity(np.full(10, 0.87)) is Level.HIGH
    assert _sensitivity(np.where(np.arange(10) < 5, 1.0, 0.7)) is Level.HIGH


@pytest.mark.slow
def test_every_level_occurs_of_everything_that_there_is_to_tell():
    found = {target: set() for target in Target}
    for one in drawn(KNOWN, 150):
        for target, level in one.truth.items():
            found[target].add(level)
    assert all(levels == set(LEVELS) for levels in found.values()), found


def test_a_level_too_low_costs_twice_as_much():
    truth, said = np.array([2, 2, 0, 0, 1]), np.array([0, 1, 2, 1, 1])
    assert cost(truth, said).tolist() == [4.0, 2.0, 2.0, 1.0, 0.0]


def by_hand(one, target):
    """Places of the truth and of what the rules say."""
    return PLACE[one.truth[target]], PLACE[said_of(target, classify(Hints(), one.use))]


@pytest.mark.slow
def test_trained_trees_keep_only_leaves_that_are_better_than_the_rules():
    grown, checks, others = (drawn(KNOWN, 60, seed) for seed in (1, 2, 3))
    trees = train(grown, checks)
    means = train(grown, checks, of=MEAN_FEATURES)
    assert {row.feature for tree in means.values() for row in tree if isinstance(row, Split)} <= MEAN_FEATURES
    target = Target.GPU_SENSITIVITY
    told = [(one, verdict_of(trees[target], features(one.use, one.course))) for one in others if target in one.truth]
    better = [(*by_hand(one, target), PLACE[verdict.level]) for one, verdict in told if verdict is not None]
    truth, rules, learned = np.array(better).T
    assert cost(truth, learned).sum() < cost(truth, rules).sum()
    found = {}
    exec(module_of(trees).replace("from __future__ import annotations\n", ""), found)
    assert found["TREES"] == {target: trees[target] for target in KEPT}, "what is written is what was trained"
    assert all(isinstance(row, Split | Leaf) for tree in trees.values() for row in tree)


@pytest.mark.slow
def test_trees_that_say_the_wrong_thing_show(monkeypatch):
    wrong = {target: (Leaf(Level.LOW),) for target in TREES}
    monkeypatch.setattr("joulie.domain.profiles.learned.TREES", wrong)
    measured = plain(profiles.measure(profiles.SMALL, None, lambda _: None))
    gain = measured["worlds"]["known"]["all"]["cpu-intensity"]["gain"]
    assert gain["cost"]["mean"] < -0.2
    assert gain["right_points"]["mean"] < -10.0
    assert any("gain.cost.low" in line for line in misses(load_ranges(RANGES, small=False), measured))


def test_the_committed_report_holds_its_ranges_and_is_what_the_page_says():
    report = json.loads((ROOT / "benchmarks" / "results" / "profiles.json").read_text())
    assert (report["benchmark"], report["small"]) == ("profiles", False)
    assert misses(load_ranges(RANGES, small=False), report) == []
    page = (ROOT / "docs" / "experiments" / "learned-profiles.md").read_text()
    for world, groups in report["worlds"].items():
        for target in KEPT:
            figures = groups["all"][target]
            cells = [
                f"{figures[name]['right_pct']['mean']:.1f} % / {figures[name]['cost']['mean']:.3f}"
                for name in ("rules", "means", "learned")
            ]
            saved = figures["gain"]["cost"]
            line = f"| {world} | {target} | {' | '.join(cells)} | {saved['mean']:+.3f} ±{saved['half_width']:.3f} |"
            assert line in page


def test_training_needs_all_workloads(capsys, tmp_path):
    with pytest.raises(SystemExit) as caught:
        main(["bench", "profiles", "--small", "--train", str(tmp_path / "t.py")])
    assert caught.value.code != 0
    assert "omit --small" in capsys.readouterr().err


@pytest.mark.slow
def test_the_small_sample_holds_its_ranges(tmp_path, capsys):
    files = ("--ranges", RANGES, "--json", tmp_path / "j", "--plots", tmp_path)
    with pytest.raises(SystemExit) as caught:
        main(["bench", "profiles", "--small", *map(str, files)])
    captured = capsys.readouterr()
    assert caught.value.code == 0, captured.err
    assert "gpu-sensitivity" in captured.out
    assert "shifted workloads, seed 3" in captured.err
    document = json.loads((tmp_path / "j").read_text())
    assert (document["benchmark"], document["small"], document["missed"]) == ("profiles", True, [])
    assert (tmp_path / "profiles.png").read_bytes().startswith(b"\x89PNG")
