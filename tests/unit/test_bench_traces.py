"""The small sample of `joulie bench traces`, as CI runs it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from joulie.apps.cli.main import main
from joulie.simulation.benchmarks.traces import reported_runs
from joulie.simulation.experiment.files import load_experiment

RANGES = Path(__file__).parents[2] / "benchmarks" / "traces.yaml"


def test_what_is_run_is_what_is_shown() -> None:
    keys = [key for key in reported_runs(load_experiment("hetero-41")) if key.seed == 11]
    shown = Counter((key.physics.idle_states.value, key.physics.gpu_throughput) for key in keys)
    assert shown == {("all", "measured"): 7, ("managed", "measured"): 4, ("all", "published"): 4}


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
