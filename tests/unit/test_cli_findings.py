"""What users of the command line found, at least one test for each row of the findings."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest

from joulie.apps.cli.main import main
from joulie.program import logs
from joulie_lab.simulation.cooling import CoolingSeries, mean_cop

SWEEP = "network,power_limit,time_per_epoch,average_power\n"
ROWS = "a,250,100,200\na,200,103,170\nb,250,50,220\nb,200,51,180\n"
MAPPING = "arrival=t,duration=len,cores=cpus"


@pytest.fixture
def joulie(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)

    def _joulie(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            main(list(arguments))
        streams = capsys.readouterr()
        return int(caught.value.code or 0), streams.out, streams.err

    return _joulie


def recommend(joulie, tmp_path, rows, *more, gpu="Tesla V100-PCIE-16GB"):
    (tmp_path / "sweep.csv").write_text(SWEEP + rows)
    return joulie("caps", "recommend", "--sweep", "sweep.csv", "--gpu", gpu, *more)


def test_u2_limits_are_recommended_for_a_known_gpu(joulie, tmp_path):
    status, out, _ = recommend(joulie, tmp_path, ROWS, "-o", "json")
    assert status == 0
    (caps,) = json.loads(json.loads(out)["settings"]["GPU_MODEL_CAPS_JSON"]).values()
    assert caps == {"minCapWatts": 200.0, "maxCapWatts": 250.0}


@pytest.mark.parametrize("broken", ["a,250,nan,200\n", "a,250,100\n", "a,250,-1,200\n"])
def test_u2_a_broken_baseline_is_refused(joulie, tmp_path, broken):
    status, out, err = recommend(joulie, tmp_path, broken + ROWS.partition("\n")[2])
    assert (status, out) == (2, "")
    assert "ignored: sweep.csv: line 2" in err
    assert err.splitlines()[-1].startswith("joulie: error: sweep.csv: 1 invalid rows: correct or remove them")


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (ROWS.partition("\n")[2], "job a has no measurement at 250 W"),
        (ROWS.replace(",250,", ",250000,").replace(",200,", ",200000,"), "250000 W is not a power limit of"),
        (ROWS.replace(",250,", ",0.25,").replace(",200,", ",0.2,"), "0.25 W is not a power limit of"),
        (ROWS.replace("100,200", "100,200000"), "an average power of 200000 W"),
    ],
)
def test_u2_other_units_than_watts_and_no_baseline_are_refused(joulie, tmp_path, rows, expected):
    status, out, err = recommend(joulie, tmp_path, rows)
    assert (status, out) == (2, "")
    assert expected in err.splitlines()[-1]


def test_u2_an_unknown_gpu_is_refused_unless_its_range_is_given(joulie, tmp_path):
    status, out, err = recommend(joulie, tmp_path, ROWS, gpu="GTX Banana")
    assert (status, out) == (2, "")
    assert "joulie: error: --gpu: unknown GPU 'GTX Banana'" in err
    status, out, err = recommend(joulie, tmp_path, ROWS, "--max-limit", "250", gpu="GTX Banana")
    assert status == 0
    assert "GTX Banana" in out


def table(joulie, tmp_path, text, columns, *more):
    (tmp_path / "jobs.csv").write_text(text)
    return joulie("workload", "import", "csv", "jobs.csv", "--columns", columns, "--out", "trace.jsonl", *more)


CLASSES = "t,len,cpus,class\n0,600,4,Prod\n60,600,8,batch\n"


@pytest.mark.parametrize("named", ["prod", "PROD", "Production"])
def test_u4_performance_classes_that_no_row_has_are_told(joulie, tmp_path, named):
    status, _, err = table(joulie, tmp_path, CLASSES, f"{MAPPING},class=class", "--performance-classes", named)
    assert status == 2
    assert f"jobs.csv: column class: no row has class {named}, only Prod, batch; nothing is written" in err
    assert not (tmp_path / "trace.jsonl").exists()


def test_u4_performance_classes_need_a_class_column(joulie, tmp_path):
    status, _, err = table(joulie, tmp_path, CLASSES, MAPPING, "--performance-classes", "Prod")
    assert status == 2
    assert "--performance-classes needs class=COLUMN in --columns" in err


@pytest.mark.parametrize("text", ["t,len,cpus\n", "t,len,cpus", "t,len,cpus\n\n\n"])
def test_u4_a_table_without_rows_is_told(joulie, tmp_path, text):
    status, _, err = table(joulie, tmp_path, text, MAPPING)
    assert status == 1
    assert "no jobs in the input: nothing is written" in err
    assert not (tmp_path / "trace.jsonl").exists()


@pytest.mark.parametrize("hours", ["1e9", "1e300"])
@pytest.mark.parametrize("command", ["simulate", "sweep"])
def test_u5_a_time_beyond_memory_is_one_line(joulie, command, hours):
    status, out, err = joulie(command, "quick", "--hours", hours)
    assert (status, out) == (2, "")
    assert err.splitlines() == [
        f"joulie: error: --hours: hours: must be less than or equal to 87840, got {float(hours)}"
    ]


def test_u5_a_report_folder_that_cannot_be_made_is_told_before_the_demo(joulie, tmp_path):
    (tmp_path / "file").write_text("")
    for option in ("--report", "--record"):
        status, out, err = joulie("demo", option, "file/inside", "--duration", "1")
        assert (status, out) == (2, "")
        assert err.splitlines() == [f"joulie: error: {option} file/inside: cannot be written: Not a directory"]


@pytest.mark.parametrize("program", ["operator", "extender"])
def test_u5_no_kubeconfig_is_one_line(joulie, monkeypatch, program, tmp_path):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    status, _, err = joulie(program)
    assert status != 0
    last = err.splitlines()[-1]
    assert "kubeconfig" in last or "none" in last
    assert len(last) < 500
    assert "Traceback" not in err


def test_u7_the_mean_cop_is_a_ratio_of_sums():
    cooling_w = np.array([100.0, 100.0, 0.25])
    series = CoolingSeries(np.full(3, 300.0), np.full(3, 295.0), cooling_w, np.array([4.0, 4.0, 400.0]))
    assert mean_cop(series) == pytest.approx((400.0 + 400.0 + 100.0) / 200.25)


def test_u10_text_logs_have_the_fields(capsys):
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        logs.configure("info", "text")
        logging.getLogger("joulie.test").info("stopping", extra={"node": "n1", "problem": 'no "x" here', "watts": 3.5})
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    line = capsys.readouterr().err.strip()
    assert line.endswith(r'INFO    joulie.test: stopping node=n1 problem="no \"x\" here" watts=3.5')
