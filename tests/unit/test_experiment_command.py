"""`joulie experiment`: folders of artefacts, and the commands around them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import yaml

from joulie.apps.cli.main import main
from joulie_lab.apps.experiment.artefacts import ArtefactError, Artefacts, FinishedRun, Provenance, identity
from joulie_lab.simulation.experiment.files import experiment_text, load_experiment
from joulie_lab.simulation.experiment.outcome import JobEnd, Outcome, Pace
from joulie_lab.simulation.experiment.plan import PhysicsChoice, RunKey
from joulie_lab.simulation.experiment.scenario import Experiment
from joulie_lab.simulation.sweep_state import code_digest
from support.experiment_outcomes import job, outcome


def kept(folder: Path, *keys: RunKey, it_j: float = 4e7) -> Artefacts:
    artefacts = Artefacts(folder)
    artefacts.begin(load_experiment("quick"), "native", None)
    for key in keys:
        artefacts.add(FinishedRun(key, outcome(it_j=it_j), Provenance("native", "abc", 1.5)))
    return artefacts


def key(variant: str, seed: int = 1) -> RunKey:
    return RunKey(variant, seed, PhysicsChoice())


def same(first: Outcome, second: Outcome) -> bool:
    if any(
        getattr(first, item.name) != getattr(second, item.name) for item in fields(Outcome) if item.name != "series"
    ):
        return False
    return all(
        np.array_equal(getattr(first.series, item.name), getattr(second.series, item.name))
        for item in fields(first.series)
    )


def exit_code(*arguments: str) -> object:
    with pytest.raises(SystemExit) as caught:
        main([*arguments])
    return caught.value.code or 0


def of_trace(folder: Path, jobs: str, **changes: object) -> Experiment:
    """The quick experiment with a trace of this text, and what else it says."""
    folder.mkdir(exist_ok=True)
    (folder / "jobs.jsonl").write_text(jobs, encoding="utf-8")
    document = yaml.safe_load(experiment_text("quick")) | {"workload": {"trace": "jobs.jsonl"}, **changes}
    (folder / "mine.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    return load_experiment(str(folder / "mine.yaml"))


@pytest.mark.slow
def test_a_file_counts_by_its_content_wherever_it_lies(tmp_path: Path) -> None:
    artefacts = Artefacts(tmp_path / "out")
    artefacts.begin(of_trace(tmp_path / "one", "{}\n"), "native", None)
    artefacts.begin(of_trace(tmp_path / "two", "{}\n"), "native", None)
    with pytest.raises(ArtefactError, match=r'workload\.trace: ".*" in the file, ".*" now'):
        artefacts.begin(of_trace(tmp_path / "two", "{ }\n"), "native", None)
    changed = of_trace(tmp_path / "two", "{}\n", grid={"intensity_file": "jobs.jsonl"})
    with pytest.raises(ArtefactError, match=r"grid\.intensity_file: null in the file"):
        artefacts.begin(changed, "native", None)


def test_the_folder_is_read_from_any_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_trace(tmp_path / "one", "{}\n")
    monkeypatch.chdir(tmp_path)
    artefacts = Artefacts(tmp_path / "out")
    artefacts.begin(load_experiment("one/mine.yaml"), "native", None)
    monkeypatch.chdir("/")
    assert artefacts.experiment().workload.trace == str(tmp_path / "one" / "jobs.jsonl")


def test_figures_come_from_the_code_of_programs_and_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def digest(packages: tuple[str, ...]) -> str:
        asked.extend(packages)
        return code_digest(packages)

    monkeypatch.setattr("joulie_lab.apps.experiment.artefacts.code_digest", digest)
    identity(load_experiment("quick"), "native", None)
    assert {f"joulie.{name}" for name in ("domain", "adapters", "program", "apps.operator")} <= {*asked}
    assert {f"joulie_lab.{name}" for name in ("simulation", "fakes", "apps.experiment", "apps.simulator")} <= {*asked}


def test_another_description_costs_no_run(tmp_path: Path) -> None:
    artefacts = kept(tmp_path, key("A"), key("B"))
    told = load_experiment("quick", ["variants[1].description=better words"])
    artefacts.begin(told, "native", None)
    assert artefacts.finished() == [key("A"), key("B")]
    assert artefacts.experiment() == told


def test_runs_of_nobody_knows_what_are_not_taken(tmp_path: Path) -> None:
    artefacts = kept(tmp_path, key("A"))
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(ArtefactError, match=r"holds runs that no manifest\.json tells"):
        artefacts.begin(load_experiment("quick"), "native", None)


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("manifest.json", "{", "is not JSON"),
        ("manifest.json", "{}", "is damaged: it does not say what the runs are of"),
        ("runs/A-seed1-all-measured/run.json", "{}", "is damaged"),
        ("runs/A-seed1-all-measured/run.json", '{"key": {"variant": "A", "seed": "1"}, "outcome": {}}', "is damaged"),
        ("runs/A-seed1-all-measured/metrics.json", '{"it_kwh": "many"}', "is damaged or of another version"),
        ("runs/A-seed1-all-measured/events.jsonl", "{}\n", "is not a finished run"),
    ],
)
def test_a_damaged_folder_is_told_without_a_traceback(
    file: str, text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept(tmp_path, key("A"), key("B"))
    (tmp_path / file).write_text(text, encoding="utf-8")
    assert exit_code("experiment", "report", str(tmp_path)) == 2
    printed = capsys.readouterr().err
    assert says in printed
    assert file.rpartition("/")[0] in printed


@pytest.mark.slow
def test_a_run_that_does_not_count_is_told_everywhere_and_made_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    late = FinishedRun(
        key("B"), outcome(pace=Pace(0.4, 2.0), invalid="late"), Provenance("control-plane", "abc", 1.0, 20.0)
    )
    artefacts = kept(tmp_path / "plane", key("A"))
    artefacts.add(late)
    assert same(artefacts.read(key("B")).outcome, late.outcome)
    made: list[RunKey] = []

    def played(_experiment: Experiment, keys: list[RunKey], _jobs: int | None) -> Iterator[FinishedRun]:
        made.extend(keys)
        yield from ()

    monkeypatch.setattr("joulie_lab.apps.experiment.runs.play_native", played)
    monkeypatch.setattr("joulie_lab.apps.experiment.report.render_png", lambda *_: b"")
    assert exit_code("experiment", "run", "quick", "--out", str(tmp_path / "plane"), "-o", "json") == 1
    printed = capsys.readouterr()
    assert made == [key("B")]
    assert "B, seed 1, deep idle all, GPU curves measured does not count: late" in printed.err
    assert json.loads(printed.out)["invalid"] == {"B-seed1-all-measured": "late"}
    assert "does not count: late" in (tmp_path / "plane" / "report.html").read_text(encoding="utf-8")
    kept(tmp_path / "ours", key("B"))
    assert exit_code("experiment", "compare", str(tmp_path / "ours"), str(tmp_path / "plane")) == 1
    assert "does not count: late" in capsys.readouterr().err


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    lost = job("lost", end=JobEnd.WAITING, problem="2 of 3 members placed", node="", start_s=None, end_s=None)
    run = FinishedRun(key("A"), outcome(job("one"), lost, notes=("a line left out",)), Provenance("native", "abc", 1.5))
    artefacts = kept(tmp_path)
    artefacts.add(run)
    found = artefacts.read(key("A"))
    assert same(found.outcome, run.outcome)
    assert (found.how, artefacts.finished()) == (run.how, [key("A")])
    events = (artefacts.run_folder(key("A")) / "events.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["event"] for line in events] == ["waiting", "drain", "drain"]


def test_a_folder_of_another_experiment_is_refused_and_half_a_run_is_none(tmp_path: Path) -> None:
    artefacts = kept(tmp_path, key("A"))
    (tmp_path / "runs" / ".B-seed1-all-measured.part").mkdir()
    assert artefacts.finished() == [key("A")]
    other = load_experiment("quick", ["hours=2"])
    with pytest.raises(ArtefactError, match=r"hours: 1.0 in the file, 2.0 now.*--fresh"):
        artefacts.begin(other, "native", None)
    artefacts.begin(other, "native", None, fresh=True)
    assert artefacts.finished() == []


def test_runs_of_a_variant_that_was_changed_are_forgotten(tmp_path: Path) -> None:
    artefacts = kept(tmp_path, key("A"), key("B"))
    artefacts.begin(load_experiment("quick", ["variants[1].operator.STATIC_HP_FRAC='0.25'"]), "native", None)
    assert artefacts.finished() == [key("A")]


@pytest.mark.slow
def test_runs_of_a_variant_that_was_away_for_a_while_are_forgotten(tmp_path: Path) -> None:
    artefacts = kept(tmp_path, key("A"), key("B"))
    both = load_experiment("quick")
    artefacts.begin(both.model_copy(update={"variants": both.variants[:1]}), "native", None)
    artefacts.begin(both, "native", None)
    assert artefacts.finished() == [key("A")]


@pytest.mark.slow
def test_compare_tells_whether_the_targets_are_met(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept(tmp_path / "ours", key("A"))
    kept(tmp_path / "close", key("A"), it_j=4.1e7)
    kept(tmp_path / "far", key("A"), it_j=4.4e7)
    kept(tmp_path / "other", key("B"))
    ours = str(tmp_path / "ours")
    assert exit_code("experiment", "compare", ours, str(tmp_path / "close"), "-o", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found[0]["run"], found[0]["holds"]) == ("A-seed1-all-measured", True)
    assert exit_code("experiment", "compare", ours, str(tmp_path / "far")) == 1
    printed = capsys.readouterr()
    assert "+10.00" in printed.out
    assert "missed: A, seed 1" in printed.err
    assert exit_code("experiment", "compare", ours, str(tmp_path / "other")) == 2
    assert "no run in common" in capsys.readouterr().err
    elsewhere = kept(tmp_path / "elsewhere")
    elsewhere.add(FinishedRun(key("A"), outcome(it_j=4e7), Provenance("native", "another trace", 1.5)))
    assert exit_code("experiment", "compare", ours, str(tmp_path / "elsewhere")) == 2
    assert "different traces" in capsys.readouterr().err


def test_list_and_show(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("experiment", "list", "-o", "json") == 0
    assert {row["name"]: row["nodes"] for row in json.loads(capsys.readouterr().out)}["hetero-41"] == 41
    assert exit_code("experiment", "show", "quick") == 0
    assert "name: quick" in capsys.readouterr().out
    assert exit_code("experiment", "show", "quik") == 2
    assert "did you mean quick?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("quick", "--variants", "A,Z"), "--variants: no variant 'Z'; there are A, B"),
        (("quick", "--seeds", "one"), "--seeds: 'one' is not a whole number"),
        (("quick", "--time-scale", "9"), "belongs to --on control-plane"),
        (("quick", "--on", "control-plane", "--time-scale", "9000"), "--time-scale: a time scale of 9000 is too fast"),
        (("quick", "--set", "variants[1].scheduler=jouli"), "did you mean joulie?"),
        (
            ("quick", "--on", "control-plane", "--set", "variants[1].scheduler=random"),
            "variant B: scheduler random exists natively only",
        ),
        (("quick", "--set", "variants[1].operator.STATIC_HP=1"), "variants[1].operator.STATIC_HP: must be"),
        (("quick", "--set", "variants[1].operator.STATIC_HP='1'"), "operator.STATIC_HP: unknown setting"),
        (("quick", "--set", "cluster.groups[0].gpu=GTX 9000"), "group h100-nvl: GPU 'GTX 9000' is not in the hardware"),
        (("quick", "--set", "workload={trace: none.jsonl}"), "none.jsonl: cannot be read"),
    ],
)
def test_what_cannot_run_is_refused(
    arguments: tuple[str, ...], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("experiment", "run", *arguments, "--jobs", "1", "--out", str(tmp_path / "out")) == 2
    assert says in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_goes_on_where_it_stopped_and_is_drawn_from_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("run", "quick", "--set", "hours=0.1", "--set", "drain_hours=0.3", "--jobs", "1")
    with monkeypatch.context() as quicker:
        quicker.setattr("joulie_lab.apps.experiment.main._report", lambda artefacts: None)
        assert exit_code("experiment", *arguments, "--out", str(tmp_path), "--variants", "A", "-o", "json") == 0
    first = json.loads(capsys.readouterr().out)
    assert exit_code("experiment", *arguments, "--out", str(tmp_path), "-o", "json") == 0
    printed = capsys.readouterr()
    assert "1 of 2 runs are kept" in printed.err
    found = json.loads(printed.out)
    assert found["runs"][0] == first["runs"][0]
    assert [result["variant"] for result in found["results"]] == ["A", "B"]
    assert found["runs"][0]["completed"] == found["runs"][0]["jobs"] > 0
    assert {"power.png", "energy-per-work.png", "families.png"} <= {file.name for file in tmp_path.glob("*.png")}
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "half of the nodes under caps" in page
    assert "http" not in page[: page.index("<script")]
