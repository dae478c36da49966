"""The small sample of `joulie bench traces`, as CI runs it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from joulie.apps.cli.main import main
from joulie_lab.apps.bench.page import render
from joulie_lab.apps.bench.traces import PAGE
from joulie_lab.benchmarks.traces import TracesResult, bounded, reported_runs, summarise
from joulie_lab.simulation.experiment.compare import Record
from joulie_lab.simulation.experiment.files import load_experiment
from joulie_lab.simulation.experiment.metrics import metrics
from joulie_lab.simulation.experiment.plan import PhysicsChoice, RunKey, run_keys
from joulie_lab.simulation.job_response import IdleStates
from support.experiment_outcomes import outcome

ROOT = Path(__file__).parents[2]
RANGES = ROOT / "benchmarks" / "traces.yaml"
TEMPLATES = ROOT / "benchmarks" / "pages"


def test_what_is_run_is_what_is_shown() -> None:
    keys = [key for key in reported_runs(load_experiment("hetero-41")) if key.seed == 11]
    shown = Counter((key.physics.idle_states.value, key.physics.gpu_throughput) for key in keys)
    assert shown == {("all", "measured"): 7, ("managed", "measured"): 4, ("all", "published"): 4}


def test_bounds_are_those_of_one_variant_beside_the_first() -> None:
    bounded_runs = bounded(load_experiment("hetero-41"))
    assert [variant.name for variant in bounded_runs.variants] == ["A", "D-2", "D-5", "D-10", "D-15", "D-25"]
    said = [variant.operator["ENERGY_SLOWDOWN_BOUND_STANDARD"] for variant in bounded_runs.variants[1:]]
    assert said == ["1.02", "1.05", "1.1", "1.15", "1.25"]
    assert len(run_keys(bounded_runs)) == 12


def measured(seeds: int, kwh: dict[str, float]) -> TracesResult:
    """A result with these energies, a little more from seed to seed."""
    experiment = load_experiment("hetero-41")
    records = [
        Record(RunKey(name, seed, physics), metrics(outcome(it_j=(value + seed * (name != "A")) * 3.6e6)))
        for physics in (PhysicsChoice(), PhysicsChoice(IdleStates.MANAGED))
        for seed in range(seeds)
        for name, value in kwh.items()
    ]
    bounds = bounded(experiment)
    steps = [
        Record(RunKey(variant.name, seed, PhysicsChoice()), metrics(outcome(it_j=(100.0 - step) * 3.6e6)))
        for seed in (11, 12)
        for step, variant in enumerate(bounds.variants)
    ]
    return TracesResult({"hetero-41": summarise(experiment, records)}, summarise(bounds, steps))


def test_the_page_calls_no_difference_a_saving() -> None:
    found = render("traces", PAGE, measured(3, {"A": 100.0, "B": 99.5, "D": 90.0}), templates=TEMPLATES)
    assert "B: no difference shown (-0.50 ± 2.48 %); D: saves 9.00 ± 2.48 %." in found
    assert "the same B: no difference shown" in found
    assert "| 1.25 | +5.00 ±0.00 |" in found
    one_seed = TracesResult(measured(1, {"A": 100.0, "B": 101.0}).experiments)
    found = render("traces", PAGE, one_seed, templates=TEMPLATES)
    assert "B: uses 1.00 % (one seed) more" in found
    assert "bound of slowdown saves" not in found


@pytest.mark.slow
def test_the_small_sample_holds_its_ranges(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--small", "--jobs", "1", "--folder", tmp_path, "--json", tmp_path / "j", "--plots", tmp_path]
    with pytest.raises(SystemExit) as caught:
        main(["bench", "traces", *map(str, arguments), "--ranges", str(RANGES)])
    captured = capsys.readouterr()
    assert caught.value.code == 0, captured.err
    document = json.loads((tmp_path / "j").read_text(encoding="utf-8"))
    assert set(document["experiments"]["quick"]["figures"]) == {"all-measured", "managed-measured"}
    assert (tmp_path / "traces.png").read_bytes().startswith(b"\x89PNG")
