"""The benchmark of attribution: its clusters are true to themselves, and what is wrong shows."""

import json
from pathlib import Path

import numpy as np
import pytest

from joulie.apps.cli.main import main
from joulie_lab.benchmarks import attribution
from joulie_lab.benchmarks.attribution import Tally
from joulie_lab.benchmarks.attribution_clusters import WRAPS_AT_J, CpuCluster, GpuCluster, Sharing, _Meter
from joulie_lab.benchmarks.ranges import load_ranges, misses
from joulie_lab.benchmarks.results import plain

ROOT = Path(__file__).parents[2]
RANGES = ROOT / "benchmarks" / "attribution.yaml"
W = np.array


def samples(cluster, count):
    return [cluster.sample() for _ in range(count)]


def test_what_pods_truly_draw_is_never_more_than_the_node_draws_above_idle():
    fits = []
    for sample in samples(CpuCluster(20, np.random.default_rng(7)), 30):
        assert (sample.true_w >= 0.0).all()
        assert (sample.saved_w > -1e-9).all()
        known = sample.pods.node >= 0
        of_node_w = np.bincount(sample.pods.node[known], sample.true_w[known], 20)
        read = ~np.isnan(sample.nodes.power_w)
        fits += (of_node_w <= sample.nodes.power_w - sample.idle_w + 1e-6)[read].tolist()
    # A reading after a lost one is the mean of two steps.
    assert np.mean(fits) > 0.95


@pytest.mark.parametrize("sharing", Sharing)
def test_what_gpu_pods_truly_draw_is_what_their_devices_draw(sharing):
    for sample in samples(GpuCluster(3, sharing, np.random.default_rng(7)), 30):
        assert (sample.holds.share > 0.0).all()
        if (sample.holds.pod >= 0).all() and not np.isnan(sample.devices.power_w).any():
            held = np.zeros(len(sample.node_of_device))
            np.add.at(held, sample.holds.device, sample.holds.share)
            whole = held > 1.0 - 1e-9
            drawn_w = sample.devices.power_w[whole].sum()
            assert sample.true_w.sum() >= drawn_w - 1e-6
            assert sample.true_w.sum() <= sample.devices.power_w[held > 0.0].sum() + 1e-6


def test_the_same_seed_makes_the_same_samples():
    one, two = (samples(CpuCluster(5, np.random.default_rng(3)), 5)[-1] for _ in range(2))
    np.testing.assert_array_equal(one.pods.weight, two.pods.weight)
    np.testing.assert_array_equal(one.nodes.power_w, two.nodes.power_w)


def test_trap_counters_that_wrap_or_reset_give_no_negative_and_no_absurd_power():
    wrapping = _Meter(WRAPS_AT_J - 100.0, WRAPS_AT_J, 1000.0)
    assert wrapping.count(3000.0, reset=False)
    assert wrapping.read(15.0) == pytest.approx(200.0)
    silent = _Meter(WRAPS_AT_J - 100.0, None, 1000.0)
    silent.count(3000.0, reset=False)
    power_w = silent.read(15.0)
    assert np.isnan(power_w) or 0.0 <= power_w <= 200.0, "its source did not say where it wraps"
    silent.count(3000.0, reset=False)
    assert silent.read(30.0) == pytest.approx(200.0), "and from there it goes on"
    reset = _Meter(100_000.0, WRAPS_AT_J, 1000.0)
    reset.count(3000.0, reset=True)
    assert np.isnan(reset.read(15.0)), "as a wrap it would be 10 kW"


def test_power_that_is_lost_or_made_up_shows():
    nan = np.nan
    kept = Tally()
    kept.conserved(W([100.0, nan]), W([30.0, nan, 20.0]), W([0, 0, 0]), W([[10.0, nan], [40.0, nan]]))
    assert (kept.conservation_error, kept.smallest_part_w) == (0.0, 10.0)
    assert (kept.powers, kept.powers_unknown) == (1, 1)
    for pods_w, rest_w, error in (
        (W([30.0]), W([[60.0]]), 0.1),
        (W([50.0]), W([[60.0]]), 0.1),
        (W([30.0]), W([[nan]]), nan),
    ):
        tally = Tally()
        tally.conserved(W([100.0]), pods_w, W([0]), rest_w)
        assert tally.conservation_error == pytest.approx(error, nan_ok=True)
    negative = Tally()
    negative.conserved(W([100.0]), W([130.0]), W([0]), W([[-30.0]]))
    assert (negative.conservation_error, negative.smallest_part_w) == (0.0, -30.0)


def test_rules_are_compared_on_the_pods_that_joulie_tells():
    tally = Tally()
    tally.conserved(W([100.0]), W([30.0]), W([0]), W([[70.0]]))
    tally.compared(W([40.0, 5.0]), {"joulie": W([30.0, np.nan]), "other": W([60.0, 1000.0])})
    found = plain(tally.figures())
    assert (found["pods_told"], found["told_pct"], found["mean_true_w"]) == (1, 50.0, 40.0)
    assert found["rules"]["joulie"] == {"mean_abs_error_w": 10.0, "error_pct": 25.0, "charged_pct": 75.0}
    assert found["rules"]["other"]["error_pct"] == 50.0


def test_the_time_of_a_sample_is_the_fastest():
    ticks = iter([0.0, 3.0, 4.0, 10.0, 11.0, 13.0])
    plan = attribution.AttributionPlan(seeds=(1,), samples=1, nodes=1, gpu_nodes=1, timed_nodes=10, repeats=2)
    found = plain(attribution._timed(plan, lambda: next(ticks)))
    assert (found["cpu_ms"], found["gpu_ms"], found["pods"]) == (1000.0, 1000.0, 100)


def test_the_committed_report_holds_its_ranges_and_is_what_the_page_says():
    report = json.loads((ROOT / "benchmarks" / "results" / "attribution.json").read_text())
    assert (report["benchmark"], report["small"]) == ("attribution", False)
    assert misses(load_ranges(RANGES, small=False), report) == []
    page = (ROOT / "docs" / "concepts" / "power-attribution.md").read_text()
    for tally in (report["cpu"], *report["gpu"].values()):
        found = tally["rules"]["joulie"]
        error = f"{found['mean_abs_error_w']:.2f} W, {found['error_pct']:.1f} %" if found["error_pct"] > 0.01 else "0"
        assert f"| {tally['powers']:,} | {tally['conservation_error']:.1e} | {tally['pods_told']:,} | {error} |" in page
    for rule, digits in (("cores_in_step_true_idle", 1), ("cores_in_step", 1), ("requests", 1), ("idle_to_each", 0)):
        assert f"| {report['cpu']['rules'][rule]['error_pct']:.{digits}f} % |" in page


@pytest.mark.slow
def test_the_small_sample_holds_its_ranges(tmp_path, capsys):
    files = ("--ranges", RANGES, "--json", tmp_path / "j", "--plots", tmp_path)
    with pytest.raises(SystemExit) as caught:
        main(["bench", "attribution", "--small", *map(str, files)])
    captured = capsys.readouterr()
    assert caught.value.code == 0, captured.err
    assert "GPU time-sliced, node to each" in captured.out
    assert "seed 1" in captured.err
    document = json.loads((tmp_path / "j").read_text())
    assert (document["benchmark"], document["small"], document["missed"]) == ("attribution", True, [])
    assert (tmp_path / "attribution.png").read_bytes().startswith(b"\x89PNG")
