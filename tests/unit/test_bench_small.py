"""The small samples of the benchmarks, as CI runs them: they hold their ranges, and fail when they do not."""

import json
from pathlib import Path

import pytest

from joulie.apps.cli.main import main

RANGES = Path(__file__).parents[2] / "benchmarks"

pytestmark = pytest.mark.slow


def joulie(*arguments):
    with pytest.raises(SystemExit) as caught:
        main([*map(str, arguments)])
    return caught.value.code


@pytest.mark.parametrize("name", ["parity", "equal-work"])
def test_the_small_sample_holds_its_ranges(tmp_path, capsys, name):
    status = joulie(
        "bench", name, "--small", "--ranges", RANGES / f"{name}.yaml", "--json", tmp_path / "j", "--plots", tmp_path
    )
    captured = capsys.readouterr()
    assert (status, captured.err.count("missed")) == (0, 0), captured.err
    assert captured.err.count("most-allocated") > 1, "progress, also where there is no terminal"
    document = json.loads((tmp_path / "j").read_text())
    assert (document["benchmark"], document["small"], document["missed"]) == (name, True, [])
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_a_missed_range_is_status_1_and_its_line(tmp_path, capsys):
    ranges = tmp_path / "r.yaml"
    ranges.write_text(
        "full: []\nsmall: [{metric: reported.joulie.unfinished.mean, min: 1, why: it cannot}]\n", encoding="utf-8"
    )
    status = joulie(
        "bench", "equal-work", "--small", "--seeds", "5", "--jobs", "1", "--ranges", ranges, "--json", tmp_path / "j"
    )
    captured = capsys.readouterr()
    assert status == 1
    assert "missed: reported.joulie.unfinished.mean: 0 is below 1 (it cannot)" in captured.err
    assert "0 of 1 ranges" in captured.out
    assert json.loads((tmp_path / "j").read_text())["seeds"] == [5]


def test_away_from_the_checkout_figures_are_given_unchecked(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status = joulie("bench", "equal-work", "--small", "--seeds", "5", "--jobs", "1", "-o", "json")
    captured = capsys.readouterr()
    assert status == 0, captured.err
    assert json.loads(captured.out)["missed"] == []
    assert "benchmarks/equal-work.yaml not found: ranges are not checked" in captured.err
