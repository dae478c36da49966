"""`joulie caps replay`: the search for limits on recorded sweeps, what it is told and how it is judged."""

import csv
import json

import numpy as np
import pytest

from joulie.apps.cli.main import main
from joulie.domain.capping.choice import Goal
from joulie.domain.capping.measurements import Measurement, Sweep, SweptJob
from joulie.domain.capping.replay import Outcome, TrueJob, left_out, replay, summarise, true_jobs
from joulie.domain.capping.response import learn_power
from joulie_lab.benchmarks.capping import synthetic_sweeps
from joulie_lab.benchmarks.limit_response import measure, reach_of

pytestmark = pytest.mark.slow

SWEPT = SweptJob(
    "one/a",
    "one",
    (Measurement(300.0, 10.0, 150.0), Measurement(250.0, 9.8, 145.0), Measurement(150.0, 10.4, 120.0)),
)
(JOB,) = true_jobs([SWEPT, SweptJob("broken", "one", (Measurement(300.0, float("nan"), 1.0),))])
KEYS = [
    "jobs",
    "oracle_saved",
    "oracle_saved_to_1_4",
    "saved",
    "share",
    "share_to_1_4",
    "windows",
    "over_bound",
    "over_bound_by_1pct",
    "max_slowdown",
]


def joulie(*arguments):
    with pytest.raises(SystemExit) as caught:
        main([*map(str, arguments)])
    return caught.value.code


def write(path, jobs):
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["job", "network", "power_limit", "time_per_epoch", "average_power"])
        for job in jobs:
            for run in job.measurements:
                table.writerow([job.name, job.family, run.limit_w, run.time_s, run.power_w])
    return path


@pytest.fixture
def files(tmp_path):
    made = synthetic_sweeps(seed=3, jobs_of_family=2)
    return [write(tmp_path / f"{gpu}.csv", jobs) for gpu, jobs in made.items()]


def test_the_oracle_without_limits_that_save_by_chance():
    assert JOB.best_saving(1.05) == pytest.approx(1.0 - 120.0 * 10.4 / 1500.0)
    assert JOB.best_saving(1.0) == pytest.approx(1.0 - 145.0 * 9.8 / 1500.0)
    assert JOB.best_saving(1.0, 1.4) == 0.0, "250 W is 1.67 of its natural power"


def test_a_summary_counts_each_job_alike_and_its_bound_twice():
    slowdowns = {1.0: 0.0, 1.05: 0.1, 1.06: 0.2, 1.07: 0.3}
    outcomes = [Outcome(JOB, 150.0, saving, slowdown, 7, ()) for slowdown, saving in slowdowns.items()]
    found = summarise(outcomes, 1.05)
    assert (found.jobs, found.windows, found.over_bound, found.over_bound_by_1pct) == (4, 28, 2, 1)
    assert found.saved == pytest.approx(0.15)
    assert found.share == pytest.approx(0.15 / JOB.best_saving(1.05))
    assert found.max_slowdown == pytest.approx(1.07)


def test_an_exact_replay_keeps_the_bound_and_tries_three_limits():
    made = {gpu: true_jobs(jobs) for gpu, jobs in synthetic_sweeps(seed=3).items()}
    outcomes = replay(made["A"], left_out(made["A"], made["B"]), Goal(), 0.0, np.random.default_rng(1))
    assert all(one.slowdown <= 1.05 for one in outcomes)
    assert max(len(one.tried_w) for one in outcomes) <= 3
    assert max(one.windows for one in outcomes) <= 4 + 3
    assert summarise(outcomes, 1.05).share > 0.95


@pytest.mark.parametrize("seed", [1, 2])
def test_noise_costs_windows_and_not_the_bound(seed):
    made = {gpu: true_jobs(jobs) for gpu, jobs in synthetic_sweeps(seed=3).items()}
    outcomes = replay(made["A"], left_out(made["A"], made["B"]), Goal(), 0.02, np.random.default_rng(seed))
    found = summarise(outcomes, 1.05)
    assert found.over_bound_by_1pct == 0
    assert found.share > 0.85
    assert found.windows > 10 * found.jobs


def test_the_document_is_the_same_for_the_same_seed(files, capsys):
    documents = []
    for seed in (1, 1, 2):
        arguments = ["--sweeps", files[0], "--teach", files[1], "--noise", "0.02", "--seed", seed, "-o", "json"]
        assert joulie("caps", "replay", *arguments) == 0
        documents.append(json.loads(capsys.readouterr().out))
    assert list(documents[0]) == KEYS
    assert documents[0] == documents[1]
    assert documents[0] != documents[2]
    assert documents[0]["jobs"] == 10


def test_several_files_after_one_option_or_one_after_each(files, capsys):
    documents = []
    for arguments in (["--sweeps", *files], ["--sweeps", files[0], f"--sweeps={files[1]}"]):
        assert joulie("caps", "replay", *arguments, "-o", "json") == 0
        documents.append(json.loads(capsys.readouterr().out))
    assert documents[0] == documents[1]
    assert documents[0]["jobs"] == 20


def test_broken_lines_and_missing_cells_are_reported_and_the_rest_is_replayed(files, capsys):
    lines = files[0].read_text().splitlines()
    del lines[9], lines[3]
    lines.insert(4, "family-0/0,family-0,150,1.0")
    lines.insert(5, "family-0/0,family-0,oops,1.0,100")
    lines.append("single,other,300,10,200")
    files[0].write_text("\n".join(lines))
    assert joulie("caps", "replay", "--sweeps", files[0], "--teach", files[1], "-o", "json") == 0
    captured = capsys.readouterr()
    assert "line 5: 4 fields, the header has 5" in captured.err
    assert "line 6: power_limit is oops, not a number" in captured.err
    assert json.loads(captured.out)["jobs"] == 11


def test_one_network_alone_cannot_teach_itself(tmp_path, capsys):
    file = write(tmp_path / "one.csv", [SWEPT])
    assert joulie("caps", "replay", "--sweeps", file) == 2
    assert "give files with other networks to --teach" in capsys.readouterr().err


def test_the_table_is_for_people(files, capsys):
    assert joulie("caps", "replay", "--sweeps", files[0]) == 0
    assert "jobs over the bound" in capsys.readouterr().out


def test_power_below_what_was_tried_follows_the_limit():
    curve = learn_power([job.truth for job in true_jobs(synthetic_sweeps(seed=3)["A"])])
    at = curve.log_ratio[0] - np.array([0.0, 0.5])
    known, below = curve.given(at, np.empty(0), np.empty(0)).mean
    assert below == pytest.approx(known - 0.5)


def test_a_cell_of_the_response_counts_jobs_whose_limits_reach():
    sweeps = {gpu: jobs[:6] for gpu, jobs in synthetic_sweeps(seed=3).items()}
    result = measure(sweeps, (1,), lambda stage: None, claimed=slice(1), hours=(1.0, 0.5))
    found = result.gpus["A"]
    cell = found.cells["0_9"]
    assert 0 < cell.jobs <= 6
    # The synthetic jobs draw what their limit allows.
    assert cell.power == pytest.approx(0.9, abs=0.02)
    assert cell.throughput_p10 <= cell.throughput <= cell.throughput_p90 <= 1.01
    assert found.exact.violations.worst == 0
    assert found.reach.three <= 1.0
    assert found.reach.shown <= 1.0
    assert result.claims.honest["traffic"].doubted == 0


def test_a_limit_below_all_that_others_have_shown_is_out_of_reach():
    deep = Sweep(np.array([300.0, 200.0, 100.0]), np.array([1.0, 1.0, 1.0]), np.array([200.0, 180.0, 90.0]))
    usual = Sweep(np.array([300.0, 200.0, 100.0]), np.array([1.0, 1.0, 2.0]), np.array([200.0, 180.0, 90.0]))
    own, others = [TrueJob("deep", "one", deep)], [TrueJob("usual", "two", usual)]
    reach = reach_of(own, others, 1.05, own[0].best_saving(1.05))
    assert reach.shown == pytest.approx(0.10 / 0.55)
    assert reach.three == 1.0
