"""`joulie bench openb`: its small sample, what is committed of the whole one, and what it says of wrong data."""

import json
from pathlib import Path

import pytest

from joulie.apps.cli.main import main
from joulie_lab.adapters.published.openb import NODES_FILE, PODS_FILE
from joulie_lab.benchmarks.ranges import load_ranges, misses

ROOT = Path(__file__).parents[2]
RANGES = ROOT / "benchmarks" / "openb.yaml"


def joulie(*arguments):
    with pytest.raises(SystemExit) as caught:
        main([*map(str, arguments)])
    return caught.value.code


@pytest.mark.slow
def test_the_small_sample_holds_its_ranges(tmp_path, capsys):
    status = joulie(
        "bench", "openb", "--small", "--ranges", RANGES, "--json", tmp_path / "j", "--plots", tmp_path, "-o", "table"
    )
    captured = capsys.readouterr()
    assert (status, captured.err.count("missed")) == (0, 0), captured.err
    assert "joulie-frugal" in captured.err, "progress"
    assert "joulie-frugal" in captured.out
    document = json.loads((tmp_path / "j").read_text())
    assert document["published"]["FGD"]["published_pct"] is None, "nothing is published of a made-up trace"
    assert (tmp_path / "openb.png").read_bytes().startswith(b"\x89PNG")


def test_the_committed_result_holds_its_ranges():
    result = json.loads((ROOT / "benchmarks" / "results" / "openb.json").read_text(encoding="utf-8"))
    assert misses(load_ranges(RANGES, small=False), result) == []


def test_without_the_data_it_says_where_to_get_it(tmp_path, capsys):
    assert joulie("bench", "openb", "--data", tmp_path / "nowhere") == 2
    error = capsys.readouterr().err
    assert "joulie bench fetch openb" in error
    assert PODS_FILE in error


def test_a_broken_line_is_named(tmp_path, capsys):
    (tmp_path / NODES_FILE).write_text("sn,cpu_milli,memory_mib,gpu,model\na,many,1,2,T4\n", encoding="utf-8")
    assert joulie("bench", "openb", "--data", tmp_path) == 2
    assert f"{NODES_FILE}: line 2: cpu_milli 'many' is not a whole number" in capsys.readouterr().err
