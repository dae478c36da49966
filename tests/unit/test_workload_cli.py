"""``joulie workload``, as people call it."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from joulie.apps.cli.main import main
from joulie_lab.adapters.job_trace import load_jobs
from joulie_lab.simulation.workloads.generator import generate
from joulie_lab.simulation.workloads.settings import Arrivals, Families, GeneratorSettings, HpoExperiment

CLUSTER = """
groups:
  - {name: h, count: 2, cpu: AMD EPYC 9654, cores: 64, gpu: NVIDIA H100 NVL, gpus: 8}
  - {name: c, count: 1, cpu: AMD EPYC 9654, cores: 192}
"""


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["workload", *map(str, arguments)])
    return int(stopped.value.code or 0)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "t.jsonl.gz"
    assert run("generate", "--hours", 2, "--seed", 3, "--out", path) == 0
    return path


def job(job_id: str, **changes: Any) -> str:
    requests = changes.pop("requests", {"cpu": "4"})
    line = {"type": "job", "jobId": job_id, "submitTimeOffsetSec": 0, "podTemplate": {"requests": requests}}
    return json.dumps(line | {"work": {"cpuUnits": 60}} | changes)


def test_generated_traces_are_the_generators(trace: Path, tmp_path: Path) -> None:
    assert load_jobs(trace, skip_bad_lines=False).jobs == list(generate(GeneratorSettings(), 3, 2.0))
    again = tmp_path / "again.jsonl.gz"
    run("generate", "--hours", 2, "--seed", 3, "--out", again)
    assert again.read_bytes() == trace.read_bytes()


def test_settings_come_from_file_options_and_sets(tmp_path: Path) -> None:
    file, out = tmp_path / "s.yaml", tmp_path / "t.jsonl"
    file.write_text("gpu_share: 0.2\narrivals: {pattern: diurnal}\nfamilies: {hpo_experiment: {share: 0.5}}\n")
    sets = ("--set", "gpu_util_spread=0.05", "--set", "arrivals.start_h=6")
    assert run("generate", "--hours", 2, "--settings", file, "--gpu-share", 0.9, *sets, "--rate", 30, "--out", out) == 0
    settings = GeneratorSettings(
        arrivals=Arrivals(workloads_per_hour=30.0, pattern="diurnal", start_h=6.0),
        families=Families(hpo_experiment=HpoExperiment(share=0.5)),
        gpu_share=0.9,
        gpu_util_spread=0.05,
    )
    assert load_jobs(out, skip_bad_lines=False).jobs == list(generate(settings, 1, 2.0))
    first = json.loads(out.read_text().splitlines()[0])
    assert (first["type"], first["seed"], first["settings"]["arrivals"]["start_h"]) == ("workload", 1, 6.0)


def test_settings_that_cannot_be_are_named_by_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "s.yaml"
    file.write_text("gpu_share: much\nfamilies:\n  debug_eval:\n    share: -1\n  training: {}\n")
    assert run("generate", "--settings", file, "--out", tmp_path / "t.jsonl") == 2
    said = capsys.readouterr().err
    for part in ("s.yaml:1: gpu_share", "s.yaml:4: families.debug_eval.share", "s.yaml:5: families.training"):
        assert part in said
    assert list(tmp_path.iterdir()) == [file]


def test_a_description_as_json_yaml_and_table(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run("describe", trace, "-o", "json") == 0
    found = json.loads(capsys.readouterr().out)
    jobs = load_jobs(trace, skip_bad_lines=False).jobs
    assert (found["jobs"], found["broken_lines"]) == (len(jobs), 0)
    assert {row["family"] for row in found["families"]} == {one.workload_type for one in jobs}
    assert run("describe", trace, "-o", "yaml") == 0
    assert yaml.safe_load(capsys.readouterr().out)["jobs"] == len(jobs)
    (tmp_path / "c.yaml").write_text(CLUSTER)
    assert run("describe", trace, "--cluster", tmp_path / "c.yaml") == 0
    said = capsys.readouterr().out
    assert "% of 320" in said
    assert "distributed_training" in said


@pytest.mark.slow
def test_plots_are_written(trace: Path, tmp_path: Path) -> None:
    assert run("describe", trace, "--plots", tmp_path / "plots") == 0
    images = {path.name: path.read_bytes() for path in (tmp_path / "plots").iterdir()}
    assert set(images) == {"arrivals.png", "durations.png", "sizes.png", "load.png"}
    assert all(image.startswith(b"\x89PNG") for image in images.values())


def test_all_problems_of_a_trace_are_named_by_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, cluster = tmp_path / "t.jsonl", tmp_path / "c.yaml"
    cluster.write_text(CLUSTER)
    lines = [
        job("fine"),
        '{"type": "job", "jobId":',
        job("back-in-time", work={"cpuUnits": -60}),
        job("large", requests={"cpu": "400"}),
        job("vendor", requests={"cpu": "1", "amd.com/gpu": "1"}),
        *(job(f"m{n}", workloadId="g", gang=True, requests={"cpu": "1", "nvidia.com/gpu": "8"}) for n in range(3)),
        job("fine"),
    ]
    path.write_text("\n".join(lines))
    assert run("validate", path, "--cluster", cluster) == 1
    said = capsys.readouterr().out.splitlines()
    wanted = {
        2: "truncated",
        3: "cpuUnits",
        4: "large: requests 400 cores; the largest node that it may use has 192",
        5: "vendor: no node has amd.com/gpu",
        6: "gang g: its 3 members",
        7: "gang g: its 3 members",
        8: "gang g: its 3 members",
        9: "duplicate jobId fine, first used in line 1",
    }
    for problem, (line, says) in zip(said, wanted.items(), strict=False):
        assert problem.startswith(f"{path}:{line}: ")
        assert says in problem
    assert said[-1] == f"{path}: 6 jobs, 8 problems"
    assert run("validate", path, "-o", "json") == 1
    assert len(json.loads(capsys.readouterr().out)["problems"]) == 3


def test_a_trace_without_problems_is_said_to_be_fine(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run("validate", trace) == 0
    assert capsys.readouterr().out.endswith("jobs, 0 problems\n")


def test_slices_and_scales_go_through_pipes(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    capsysbinary.readouterr()
    assert run("slice", trace, "--from", "30min", "--until", "1.5h", "--out", "-") == 0
    middle = capsysbinary.readouterr().out
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(middle))))
    out = tmp_path / "out.jsonl"
    assert run("scale", "-", "--rate", 2, "--duration", 0.5, "--seed", 7, "--out", out) == 0
    jobs = [one for one in load_jobs(trace, skip_bad_lines=False).jobs if 1800.0 <= one.submit_s < 5400.0]
    assert len(load_jobs(out, skip_bad_lines=False).jobs) == 2 * len(jobs)


def test_broken_lines_stop_a_rewrite_unless_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "t.jsonl", tmp_path / "out.jsonl"
    path.write_text(f"no json\n{job('a')}\n")
    assert run("slice", path, "--out", out) == 1
    said = capsys.readouterr().err
    assert f"{path}:1: " in said
    assert "1 broken lines, nothing is written" in said
    assert list(tmp_path.iterdir()) == [path]
    assert run("slice", path, "--skip-bad-lines", "--out", out) == 0
    assert len(load_jobs(out, skip_bad_lines=False).jobs) == 1
    assert run("describe", path) == 1
    assert run("describe", path, "--skip-bad-lines") == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("describe", "none.jsonl"), "none.jsonl: cannot be read: No such file"),
        (("slice", "t", "--from", "3 weeks"), "invalid duration '3 weeks': write it like 90s, 15min, 2h or 3d"),
        (("slice", "t", "--from", "2h", "--until", "1h"), "until_s: must be after from_s"),
        (("scale", "t", "--size", "0"), "size: must be above zero"),
        (("validate", "t", "--cluster", "none.yaml"), "none.yaml: No such file"),
        (("validate", "t", "--cluster", "hetero"), "no experiment 'hetero'"),
        (("generate", "--set", "gpu_share"), "not of the form key.path=value"),
        (("generate", "--hours", "nan"), "nan is not a finite number"),
        (("generate", "--hours", "1e12"), "hours: must be within"),
        (("generate", "--rate", "1e300"), "arrivals a second: must be within"),
        (("generate", "--set", "arrivals.bursts.per_day=1e30"), "bursts, dips or surges: must be within"),
        (("generate", "--duration-scale", "1e300"), "is not written: duration of its work"),
    ],
)
def test_mistakes_are_said(arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 2
    assert says in capsys.readouterr().err


def test_schemas_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("schema") == 0
    assert "jobId" in json.loads(capsys.readouterr().out)["$defs"]["Job"]["properties"]
    assert run("schema", "--of", "generator") == 0
    assert "gpu_share" in json.loads(capsys.readouterr().out)["properties"]
