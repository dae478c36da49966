"""The benchmark of power limits and of the breaker: what is counted, what is committed, and `joulie caps`."""

import json
from pathlib import Path

import click
import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from joulie.apps.cli.main import main
from joulie.apps.operator.settings import OperatorSettings
from joulie.domain.capping.choice import Goal
from joulie.domain.capping.measurements import Measurement, SweptJob
from joulie.domain.capping.trip import EARLIEST
from joulie.domain.policy import Profile
from joulie.program.settings import settings_options
from joulie_lab.benchmarks import breaker, capping
from joulie_lab.benchmarks.breaker_schemes import Open

ROOT = Path(__file__).parents[2]
SWEPT = SweptJob(
    "one/a",
    "one",
    (Measurement(300.0, 10.0, 200.0), Measurement(200.0, 10.4, 150.0), Measurement(100.0, 20.0, 100.0)),
)
(JOB,) = capping.jobs_of([SWEPT, SweptJob("single", "x", (Measurement(300.0, 1.0, 1.0),))])


def joulie(*arguments):
    with pytest.raises(SystemExit) as caught:
        main([*map(str, arguments)])
    return caught.value.code


def test_the_oracle_and_what_is_said_of_a_choice():
    assert [JOB.oracle(bound) for bound in (1.0, 1.05, 3.0)] == [0, 1, 1]
    figures = capping.figures([capping.Chosen(JOB, 1, (2, 1)), capping.Chosen(JOB, 2)], Goal(1.05))
    assert figures.oracle_pct == pytest.approx(22.0)
    assert figures.saving_pct == pytest.approx((22.0 + 0.0) / 2.0)
    assert (figures.violations, figures.worst_slowdown, figures.measured) == (1, 2.0, 1.0)


def test_profiling_is_work_too_and_costs_what_it_costs():
    saving, slowdown = capping.Chosen(JOB, 1, (2,)).with_profiling(length_s=600.0)
    # 30 s at 100 W do 1.5 of 60 units; the other 58.5 take 10.4 s and 1,560 J each.
    assert slowdown == pytest.approx((30.0 + 58.5 * 10.4) / 600.0)
    assert saving == pytest.approx(1.0 - (3000.0 + 58.5 * 1560.0) / 120_000.0)
    assert capping.Chosen(JOB, 0).with_profiling(length_s=600.0) == pytest.approx((0.0, 1.0))


def test_the_network_that_is_tested_teaches_nothing():
    jobs = {gpu: capping.jobs_of(swept) for gpu, swept in capping.synthetic_sweeps(seed=3).items()}
    before = capping.left_out(jobs["A"], jobs["A"])["family-0"]
    changed = [
        capping.Job(job.name, job.family, capping.sweep_of(JOB.measurement(place) for place in range(3)))
        if job.family == "family-0"
        else job
        for job in jobs["A"]
    ]
    after = capping.left_out(jobs["A"], changed)["family-0"]
    assert np.array_equal(before.slowdown.mean, after.slowdown.mean)
    assert not np.array_equal(before.slowdown.mean, capping.left_out(jobs["A"], changed)["family-1"].slowdown.mean)


@pytest.mark.parametrize("budget", [0, 2])
def test_no_more_is_measured_than_allowed(budget):
    jobs = capping.jobs_of(capping.synthetic_sweeps(seed=3, jobs_of_family=1)["A"])
    chosen = capping.replayed(jobs, capping.left_out(jobs, jobs), Goal(), budget)
    assert max(len(one.measured) for one in chosen) == budget


def test_all_schemes_see_the_same_load_and_a_trip_takes_all_power():
    case = breaker.CASES["storm"]
    runs = [breaker.play(case, scheme, 101, 1500) for scheme in ("no limits", "static share")]
    assert np.array_equal(runs[0].demand, runs[1].demand)
    first = runs[0].trips[0]
    assert (runs[0].power_w[first + 1 : first + 1 + breaker.REPAIR_S] == 0.0).all()
    assert runs[1].trips == ()
    critical = breaker.fleet()[0].critical
    dark, limited = (breaker.outcome(run, critical, 300) for run in runs)
    assert dark["critical_lost_pct"] > 30.0
    assert (dark["critical_slowed_pct"], limited["critical_slowed_pct"] > 10.0) == (0.0, True)
    assert limited["peak_load"] <= 1.0 + 1e-9


def test_the_same_seed_gives_the_same_run():
    one, two = (breaker.play(breaker.CASES["inference, blind"], "Thunderbolt", 5, 600) for _ in range(2))
    assert np.array_equal(one.power_w, two.power_w)


@pytest.mark.parametrize("load", [1.1, 1.3, 2.0])
def test_a_breaker_trips_in_its_share_of_the_time_that_is_told(load):
    case = breaker.UNTOLD["storm, trips after 70 % of the time"]
    own = case.trip_of(EARLIEST)
    assert own.time_to_trip_s(0.8, load) == pytest.approx(0.7 * float(EARLIEST.time_to_trip_s(0.8, load)))
    assert breaker.UNTOLD["storm, holds 100 % of the rating"].trip_of(EARLIEST).hold == pytest.approx(1.0)


def test_the_plant_has_the_breakers_own_curve_and_controllers_are_told_the_other(monkeypatch):
    told = []

    def scheme(servers, settings, rng):
        told.append(settings.trip)
        return Open(servers, settings, rng)

    monkeypatch.setitem(breaker.SCHEMES, "no limits", scheme)
    cases = (breaker.CASES["storm"], breaker.UNTOLD["storm, trips after 50 % of the time"])
    usual, sooner = (breaker.play(case, "no limits", 101, 1500) for case in cases)
    assert told == [EARLIEST, EARLIEST]
    assert np.array_equal(usual.demand, sooner.demand)
    assert sooner.trips[0] < usual.trips[0]


@pytest.mark.parametrize(
    ("name", "age_s", "kept"), [("readings 3 s later", 6, 1.0), ("half of the readings lost", 3, 0.5)]
)
def test_readings_come_late_or_are_lost_as_the_case_says(monkeypatch, name, age_s, kept):
    seen = []

    class Watched(Open):
        def limits_w(self, now_s, reading):
            seen.append((now_s, None if reading is None else reading.time_s))
            return super().limits_w(now_s, reading)

    monkeypatch.setitem(breaker.SCHEMES, "no limits", Watched)
    breaker.play(breaker.UNTOLD[f"inference, {name}"], "no limits", 5, 2000)
    fresh = [now_s - time_s for now_s, time_s in seen if time_s is not None and now_s - time_s == age_s]
    assert len(fresh) / len(seen) == pytest.approx(kept, abs=0.05)
    assert min(now_s - time_s for now_s, time_s in seen if time_s is not None) == age_s


@pytest.mark.slow
def test_the_small_sample_holds_its_ranges(tmp_path, capsys):
    ranges = ROOT / "benchmarks" / "capping.yaml"
    status = joulie("bench", "capping", "--small", "--ranges", ranges, "--json", tmp_path / "j", "--plots", tmp_path)
    captured = capsys.readouterr()
    assert (status, captured.err.count("missed")) == (0, 0), captured.err
    assert "breaker: inference" in captured.err
    assert json.loads((tmp_path / "j").read_text())["missed"] == []
    assert (tmp_path / "capping.png").read_bytes().startswith(b"\x89PNG")


def test_without_the_data_it_says_where_to_get_it(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert joulie("bench", "capping") == 2
    assert "joulie bench fetch gpu_power" in capsys.readouterr().err
    assert joulie("bench", "capping", "--data", tmp_path) == 2
    assert "summary_power_a40.csv: No such file" in capsys.readouterr().err


def sweep_table(*networks):
    rows = [f"{network},{limit},10,{limit}" for network in networks for limit in (300, 200)]
    return "\n".join(["network,power_limit,time_per_epoch,average_power", *rows, "bad,300,,200", ""])


def test_published_sweeps_that_were_cut_short_are_refused_and_their_bad_lines_named(tmp_path, capsys):
    (tmp_path / "summary_power_a40.csv").write_text(sweep_table("a", "b"), encoding="utf-8")
    (tmp_path / "summary_power_p100.csv").write_text(sweep_table("a"), encoding="utf-8")
    assert joulie("bench", "capping", "--data", tmp_path) == 2
    err = capsys.readouterr().err
    assert "summary_power_a40.csv: line 6: time_per_epoch is missing, not a number" in err
    assert "summary_power_p100.csv: needs two networks or more" in err


def test_a_job_without_the_largest_limit_of_its_gpu_is_judged_too():
    swept = capping.synthetic_sweeps(seed=3, jobs_of_family=1)
    first, *others = swept["A"]
    swept["A"] = (SweptJob(first.name, first.family, first.measurements[:-2]), *others)
    plan = capping.Plan(budgets=(1,), shown=1, bounds=(1.05,), lengths_s=(600.0,), errors=(), seeds=())
    measured = capping.measure(swept, plan, lambda stage: None)
    assert measured["A"].simpler["one limit for all jobs"].jobs == len(swept["A"])


def operator_settings(environment):
    """What the operator makes of its environment."""
    found = []

    @click.command()
    @settings_options(OperatorSettings)
    def command(settings):
        found.append(settings)

    result = CliRunner(env=environment).invoke(command, [])
    assert result.exit_code == 0, result.output
    return found[0]


@pytest.fixture
def sweep_file(tmp_path):
    file = tmp_path / "sweep.csv"
    file.write_text(
        "job,power_limit,time_per_epoch,average_power\n"
        "a,300,10,250\na,250,10.2,240\na,200,10.4,195\na,150,14,150\n"
        "b,300,10,220\nb,250,10.0,215\nb,200,10.3,190\nb,150,13,150\n"
        "c,300,10,230\n",
        encoding="utf-8",
    )
    return file


def test_caps_recommend_gives_settings_that_the_operator_takes(sweep_file, capsys):
    assert joulie("caps", "recommend", "--sweep", sweep_file, "--gpu", "NVIDIA A40", "-o", "yaml") == 0
    document = yaml.safe_load(capsys.readouterr().out)
    by_job = {row["job"]: row for row in document["jobs"]}
    assert (by_job["a"]["limit_w"], by_job["a"]["reason"]) == (200.0, "measured")
    assert by_job["c"]["next_limit_w"] == 200.0
    eco_w = operator_settings(document["settings"]).control.caps[Profile.ECO].gpu_cap("NVIDIA A40").watts
    assert eco_w == pytest.approx(document["all"]["limit_w"], rel=1e-3)


def test_caps_recommend_as_a_table_to_paste(sweep_file, capsys):
    assert joulie("caps", "recommend", "--sweep", sweep_file, "--gpu", "NVIDIA A40", "--slowdown", "1.5") == 0
    out = capsys.readouterr().out
    assert 'GPU_MODEL_CAPS_JSON=\'{"NVIDIA A40": {"minCapWatts":' in out
    assert "One limit for all:" in out


@pytest.mark.parametrize("job", ["[red]x[/red]", "b [/]", ":fire:", "jöb"])
def test_caps_recommend_prints_names_of_jobs_as_they_are(tmp_path, capsys, job):
    (tmp_path / "x.csv").write_text(
        f"job,power_limit,time_per_epoch,average_power\n{job},300,9,200\n", encoding="utf-8"
    )
    assert joulie("caps", "recommend", "--sweep", tmp_path / "x.csv", "--gpu", "NVIDIA A40") == 0
    assert job in capsys.readouterr().out


@pytest.mark.parametrize("gpu", ["", " "])
def test_caps_recommend_refuses_a_gpu_without_a_name(sweep_file, capsys, gpu):
    assert joulie("caps", "recommend", "--sweep", sweep_file, "--gpu", gpu) == 2
    assert "--gpu: must not be empty" in capsys.readouterr().err


def test_caps_recommend_refuses_what_is_no_sweep(tmp_path, capsys):
    (tmp_path / "x.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    assert joulie("caps", "recommend", "--sweep", tmp_path / "x.csv", "--gpu", "NVIDIA A40") == 2
    assert "x.csv: no column 'power_limit'" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--slowdown", "--error", "--share", "--max-limit"])
def test_caps_recommend_refuses_options_that_are_no_numbers(sweep_file, capsys, option):
    assert joulie("caps", "recommend", "--sweep", sweep_file, "--gpu", "NVIDIA A40", option, "nan") == 2
    assert "nan is not a finite number" in capsys.readouterr().err
