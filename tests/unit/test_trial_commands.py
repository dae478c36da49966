"""`joulie trial`: what a recording says of a trial, on the screen, as JSON that can be recomputed, and as a page."""

from __future__ import annotations

import json
import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulie.adapters.kubernetes.power_trials import stored_protocol, stored_workload_protocol
from joulie.adapters.kubernetes.times import rfc3339
from joulie.adapters.recording_files import Head, RecordingFiles
from joulie.apps.cli.main import main
from joulie.domain.recording import Exit, NodeRecord, Period, PodRecord
from joulie.domain.trial.draw import TrialNode, draw
from joulie.domain.trial.measure import Metered, measure
from joulie.domain.trial.protocol import Arm
from joulie.domain.trial.workload_protocol import Drawn, WorkloadProtocol
from joulie_lab.apps.trial import workload_plan

pytestmark = pytest.mark.slow

HOUR_S = 3600.0
START_S = 1_790_000_000.0 // HOUR_S * HOUR_S
STEP_S = 300.0
NODES = [NodeRecord(f"n{index}", cores=8.0) for index in range(4)]
BLOCKS = 28


def drawn(start_s=START_S, seed=3):
    nodes = [TrialNode(one.node, "cpu", float(index)) for index, one in enumerate(NODES)]
    return draw(nodes, start_s=start_s, pairs=12, seed=seed, block_s=HOUR_S, washout_s=600.0)


def pod(node, begin_s, end_s, name="p", owner="team", exit_=Exit.SUCCEEDED):
    return PodRecord(f"{node}-{begin_s}-{name}", "ns", name, "Job", owner, cpu_cores=4.0, started_s=begin_s,
                     ended_s=end_s, node=node, exit=exit_)  # fmt: skip


def power_of(protocol, ratio, n_steps, noise=0.0):
    """100 W, by the hour's factor and the treatment's ratio, with noise by node and hour."""
    rng = np.random.default_rng(5)
    spread = rng.normal(0.0, noise, (len(NODES), math.ceil(n_steps / 12)))
    power_w = np.empty((len(NODES), n_steps))
    for step in range(n_steps):
        arms = protocol.arms_at(START_S + step * STEP_S)
        for row, node in enumerate(NODES):
            treated = arms.get(node.node) is Arm.TREATMENT
            hour = 1.0 + 0.5 * math.sin(step // 12)
            power_w[row, step] = 100.0 * hour * (ratio if treated else 1.0) * math.exp(spread[row, step // 12])
    return power_w


def hourly_pods(hours=BLOCKS, minutes=40):
    """A pod of the same work on every node within every hour, after the washout."""
    return [
        pod(node.node, START_S + hour * HOUR_S + 900.0, START_S + hour * HOUR_S + 900.0 + 60.0 * minutes)
        for hour in range(hours)
        for node in NODES
    ]


def recorded(folder, pods, power_w):
    hours = power_w.shape[1] // 12
    period = Period(START_S, START_S + hours * HOUR_S)
    files = RecordingFiles.create(folder, Head(period, STEP_S, anonymised=False))
    files.write("nodes", [msgspec.to_builtins(node) for node in NODES])
    files.write("pods", [msgspec.to_builtins(one) for one in pods])
    for number, hour in enumerate(period.hours):
        rows = [
            {"time_s": hour.from_s + (step + 1) * STEP_S, "node": node.node, "power_w": float(value)}
            for row, node in enumerate(NODES)
            for step in range(12)
            if not math.isnan(value := power_w[row, 12 * number + step])
        ]
        files.write("power", rows, hour)
    return folder


def trial_file(tmp_path, protocol):
    stored = msgspec.json.decode(msgspec.json.encode(stored_protocol(protocol)))
    body = {"apiVersion": "joulie.io/v1alpha1", "kind": "PowerTrial", "metadata": {"name": "july"}, "spec": {},
            "status": {"protocol": stored}}  # fmt: skip
    file = tmp_path / "july.json"
    file.write_text(json.dumps(body))
    return file


@pytest.fixture
def joulie(capsys):
    def _joulie(*arguments):
        with pytest.raises(SystemExit) as caught:
            main([str(one) for one in arguments])
        streams = capsys.readouterr()
        return int(caught.value.code or 0), streams.out, streams.err

    return _joulie


def test_a_known_saving_is_reported_and_can_be_recomputed(joulie, tmp_path):
    protocol = drawn()
    folder = recorded(tmp_path / "week", hourly_pods(), power_of(protocol, 0.9, 12 * BLOCKS))
    page = tmp_path / "july.html"
    arguments = ("trial", "report", folder, "--file", trial_file(tmp_path, protocol))
    status, out, err = joulie(*arguments, "--html", page)
    assert (status, err) == (0, "")
    assert "enforcing saved 10.0% of the energy per work, 95 % interval 10.0% to 10.0%, 12 pairs of blocks" in out
    assert "saved 10.0%" in page.read_text()
    assert "<script" not in page.read_text()
    document = json.loads(joulie(*arguments, "-o", "json")[1])
    assert document["saving"] == pytest.approx({"saved": 0.1, "low": 0.1, "high": 0.1, "pairs": 12})
    assert (document["allOrNone"]["low"], document["allOrNone"]["pairs"]) == (None, 2)
    by_arm = {arm: [0.0, 0.0] for arm in Arm}
    weights = document["joulesPerUnit"]
    for one in document["blocks"]:
        block = list(protocol.blocks())[one["block"]]
        arm = protocol.arms_at(block.start_s)[one["node"]]
        hour = 1.0 + 0.5 * math.sin(one["block"])
        by_arm[arm][0] += one["energyJ"] / hour
        by_arm[arm][1] += sum(weights[owner] * units for owner, units in one["work"].items())
    energy_per_work = {arm: energy / work for arm, (energy, work) in by_arm.items()}
    assert energy_per_work[Arm.TREATMENT] / energy_per_work[Arm.CONTROL] == pytest.approx(0.9)


def test_pods_that_never_end_count_by_their_metric_and_the_report_says_so(joulie, tmp_path):
    protocol, steps = drawn(), 12 * BLOCKS
    trainers = [
        PodRecord(node.node, "ml", node.node, "StatefulSet", "train", cpu_cores=4.0, started_s=START_S,
                  node=node.node, progress_metric="steps_total")
        for node in NODES
    ]  # fmt: skip
    folder = recorded(tmp_path / "week", [*hourly_pods(), *trainers], power_of(protocol, 0.9, steps))
    rows = [
        {"time_s": START_S + (step + 1) * STEP_S, "namespace": "ml", "pod": node.node, "increase": 30.0}
        for step in range(steps)
        for node in NODES
    ]
    files = RecordingFiles.open(folder)
    files.write("progress", rows, files.head.period.hours[0])
    arguments = ("trial", "report", folder, "--file", trial_file(tmp_path, protocol))
    page = tmp_path / "july.html"
    out = joulie(*arguments, "--html", page)[1]
    assert "steps_total" in out
    assert "<th>ml/StatefulSet/train</th><td>steps_total</td>" in page.read_text()
    document = json.loads(joulie(*arguments, "-o", "json")[1])
    assert {owner: one["unit"] for owner, one in document["workUnits"].items()} == {
        "ml/StatefulSet/train": "steps_total",
        "ns/Job/team": "completed pods",
    }
    assert document["saving"]["saved"] == pytest.approx(0.1)
    assert document["blocks"][0]["work"]["ml/StatefulSet/train"] == pytest.approx(300.0)


def test_no_saving_is_given_where_pods_ran_under_both_arms(joulie, tmp_path):
    protocol = drawn()
    pods = [pod(node.node, START_S, START_S + BLOCKS * HOUR_S, owner=node.node) for node in NODES]
    folder = recorded(tmp_path / "week", hourly_pods() + pods, power_of(protocol, 0.9, 12 * BLOCKS))
    arguments = ("trial", "report", folder, "--file", trial_file(tmp_path, protocol))
    status, out, _ = joulie(*arguments)
    assert status == 1
    assert "no saving can be given: " in out
    assert "use blocks that are longer than pods run" in out
    assert json.loads(joulie(*arguments, "-o", "json")[1])["saving"] is None
    assert joulie(*arguments, "--max-both-arms", "100")[0] == 0


def test_a_silent_meter_takes_its_node_from_both_blocks_of_a_pair(joulie, tmp_path):
    protocol = drawn()
    power_w = power_of(protocol, 0.9, 12 * BLOCKS)
    power_w[1, 12 * 5 + 6] = np.nan
    folder = recorded(tmp_path / "week", hourly_pods(), power_w)
    document = json.loads(joulie("trial", "report", folder, "--file", trial_file(tmp_path, protocol), "-o", "json")[1])
    assert [one["nodes"] for one in document["pairs"]] == [3 if pair == 2 else 4 for pair in range(14)]
    assert document["saving"]["saved"] == pytest.approx(0.1)


def test_what_was_not_recorded_is_left_out_and_said(joulie, tmp_path):
    protocol = drawn(START_S + 10 * HOUR_S)
    folder = recorded(tmp_path / "week", hourly_pods(), power_of(protocol, 0.9, 12 * BLOCKS))
    status, out, _ = joulie("trial", "report", folder, "--file", trial_file(tmp_path, protocol))
    assert status == 0
    assert "not measured in both blocks" in out
    late = drawn(START_S + 1000 * HOUR_S)
    status, out, _ = joulie("trial", "report", folder, "--file", trial_file(tmp_path, late))
    assert (status, "the recording holds no block of the trial" in out) == (1, True)


def test_a_trial_that_is_not_named_or_not_drawn_is_one_line(joulie, tmp_path):
    folder = recorded(tmp_path / "week", [], np.full((4, 12), 100.0))
    assert "name the trial" in joulie("trial", "report", folder)[2]
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    assert "not a PowerTrial in JSON" in joulie("trial", "report", folder, "--file", broken)[2]
    assert "not a recording" in joulie("trial", "report", tmp_path, "--file", trial_file(tmp_path, drawn()))[2]
    broken.write_text(json.dumps({"metadata": {"name": "july"}, "spec": {}}))
    assert "trial july is not drawn yet" in joulie("trial", "report", folder, "--file", broken)[2]


def test_the_plan_says_how_many_pairs_a_saving_needs(joulie, tmp_path):
    folder = recorded(tmp_path / "week", hourly_pods(), power_of(drawn(), 1.0, 12 * BLOCKS, noise=0.05))
    plan = ("trial", "plan", folder, "--block", "1h", "--washout", "10m")
    found = json.loads(joulie(*plan, "--saving", "10", "-o", "json")[1])
    assert found["pairs"] == 12
    assert 0.01 < found["deviation"] < 0.06
    assert found["both_arms"] == 0.0
    smaller = json.loads(joulie(*plan, "--saving", "2", "-o", "json")[1])
    assert smaller["pairs"] > 12
    said = joulie(*plan)[1]
    assert "pairs of blocks" in said
    assert "A washout of 10 min (washoutMinutes) leaves" in said
    follows = json.loads(joulie("trial", "plan", folder, "--block", "1h", "--washout", "auto", "-o", "json")[1])
    assert 0.0 <= follows["still_running"] <= 0.1 or follows["washout_s"] == 1800.0
    assert found["still_running"] > follows["still_running"]
    status, _, err = joulie("trial", "plan", folder)
    assert (status, "the recording has 28 h; with these blocks 168 h are needed" in err) == (2, True)


@settings(max_examples=60, deadline=None)
@given(
    spans=st.lists(
        st.tuples(st.integers(0, 3), st.floats(-HOUR_S, 29 * HOUR_S), st.floats(60.0, 9 * HOUR_S)), max_size=12
    ),
    offset_s=st.sampled_from([0.0, 17.0, 1800.0]),
)
def test_no_pod_counts_more_than_once(spans, offset_s):
    protocol = drawn(START_S + offset_s)
    pods = [
        pod(f"n{node}", START_S + begin, START_S + begin + length, str(i))
        for i, (node, begin, length) in enumerate(spans)
    ]
    found = measure(protocol, pods, Metered(NODES, START_S, STEP_S, np.full((4, 12 * BLOCKS), 100.0)))
    counted = math.fsum(sum(one.work.values()) for one in found.blocks)
    assert 0.0 <= counted <= len(pods) + 1e-9
    assert 0.0 <= found.both_arms <= 1.0 + 1e-9
    assert 0.0 <= found.enforced <= 1.0 + 1e-9


def test_a_pod_under_both_arms_counts_by_what_it_did_under_each():
    protocol = drawn()
    arms_of = [protocol.arms_at(START_S + hour * HOUR_S) for hour in range(BLOCKS)]
    lasts_s = {Arm.CONTROL: 1200.0, Arm.TREATMENT: 1500.0}
    alone = [
        pod(node, START_S + hour * HOUR_S + 900.0, START_S + hour * HOUR_S + 900.0 + lasts_s[arm])
        for hour, arms in enumerate(arms_of)
        for node, arm in arms.items()
    ]
    hour = next(hour for hour in range(0, BLOCKS, 2) if arms_of[hour]["n0"] is Arm.TREATMENT)
    edge_s = START_S + (hour + 1) * HOUR_S
    across = pod("n0", edge_s - 1800.0, edge_s + 1800.0, owner="long")
    other = pod("n0", edge_s + HOUR_S + 900.0, edge_s + HOUR_S + 960.0, owner="long")
    found = measure(
        protocol, [*alone, across, other], Metered(NODES, START_S, STEP_S, np.full((4, 12 * BLOCKS), 100.0))
    )
    assert found.slowdown == pytest.approx(0.25)
    units = {one.block: one.work.get("ns/Job/long", 0.0) for one in found.blocks if one.node == "n0"}
    whole_s = 1800.0 / 1.25 + 1800.0  # as long as it would have run where nothing is enforced
    assert units[hour] == pytest.approx(1800.0 / 1.25 / whole_s)
    assert units[hour + 1] == pytest.approx(1200.0 / whole_s)  # the washout does not count


def test_pods_that_failed_or_still_run_are_no_work():
    protocol = drawn()
    pods = [
        pod("n0", START_S + 900.0, START_S + 1800.0, exit_=Exit.FAILED),
        pod("n1", START_S + 900.0, None, exit_=None),
        pod("elsewhere", START_S + 900.0, START_S + 1800.0),
    ]
    found = measure(protocol, pods, Metered(NODES, START_S, STEP_S, np.full((4, 12 * BLOCKS), 100.0)))
    assert not any(one.work for one in found.blocks)


def test_times_of_the_draw_are_whole_seconds():
    assert stored_protocol(drawn()).start_time == rfc3339(START_S)


# ---- deferral

WORKLOADS = WorkloadProtocol(START_S, START_S + 48 * HOUR_S, 7)


def deferred(folder, ratio, workloads=24, unmetered=0, ended=True, drawn=True, noise=0.0):
    """Pods of workloads every six hours, a day before a trial and two days in it; those that wait, wait two hours."""
    pods, energy, rng = [], [], np.random.default_rng(5)
    for number in range(workloads):
        name = f"nightly-of-{number}"
        waits = WORKLOADS.arm_of("ml", name) is Arm.TREATMENT
        for run in range(12):
            came_s = START_S + (6 * run - 24) * HOUR_S
            in_trial = drawn and came_s >= START_S
            starts_s = came_s + (2 * HOUR_S if waits and in_trial else 60.0)
            drawn_as = Drawn("july", Arm.TREATMENT if waits else Arm.CONTROL, name)
            uid = f"{name}-{run}"
            done = ended or not waits or run < 11
            noted = drawn_as.recorded if in_trial else {}
            one = PodRecord(uid, "ml", uid, "Job", f"{name}-{29384700 + run}", cpu_cores=4.0, arrived_s=came_s,
                            started_s=starts_s, ended_s=starts_s + HOUR_S if done else None, node="n0",
                            exit=Exit.SUCCEEDED if done else None, **noted)  # fmt: skip
            pods.append(one)
            kwh = (1.0 + number) * (ratio if waits and in_trial else 1.0) * math.exp(rng.normal(0.0, noise))
            if number * 12 + run >= unmetered:
                energy.append({"uid": uid, "zone": "DE", "from_s": starts_s, "until_s": starts_s + HOUR_S,
                               "energy_j": 3.6e6 * kwh})  # fmt: skip
    period = Period(START_S - 24 * HOUR_S, START_S + 60 * HOUR_S)
    files = RecordingFiles.create(folder, Head(period, STEP_S, anonymised=False))
    files.write("pods", [msgspec.to_builtins(one) for one in pods])
    for hour in period.hours:
        files.write("energy", [one for one in energy if hour.from_s <= one["from_s"] < hour.until_s], hour)
        signal = {"zone": "DE", "from_s": hour.from_s, "until_s": hour.until_s, "intensity_g_per_kwh": 300.0}
        files.write("signals", [signal], hour)
    return folder


def deferral_file(folder):
    status = msgspec.to_builtins(stored_workload_protocol(WORKLOADS))
    body = {"apiVersion": "joulie.io/v1alpha1", "kind": "PowerTrial", "metadata": {"name": "july"},
            "spec": {"judges": "deferral"}, "status": {"workloads": status}}  # fmt: skip
    path = folder / "deferral.json"
    path.write_text(json.dumps(body))
    return path


def test_a_trial_of_deferral_is_reported_by_workloads_and_can_be_recomputed(joulie, tmp_path):
    folder, page = deferred(tmp_path / "month", 0.8), tmp_path / "july.html"
    arguments = ("trial", "report", folder, "--file", deferral_file(tmp_path))
    status, out, err = joulie(*arguments, "--html", page)
    assert (status, err) == (0, "")
    counts = [arm for number in range(24) if (arm := WORKLOADS.arm_of("ml", f"nightly-of-{number}"))]
    waited = counts.count(Arm.TREATMENT)
    said = f"waiting saved 20.0% of the carbon emissions per work, 95 % interval 20.0% to 20.0%, {waited} workloads"
    assert said in out
    assert "pods started 2.0 h later on average (2.0 to 2.0)" in out
    assert "Waiting saved 20.0% of the energy per work" in out
    assert said in page.read_text()
    assert "<script" not in page.read_text()
    document = json.loads(joulie(*arguments, "-o", "json")[1])
    ratios = {}
    for arm in Arm:
        own = [one["carbon"] for one in document["workloads"] if one["arm"] == arm.value]
        ratios[arm] = sum(one["measured"] for one in own) / sum(one["expected"] for one in own)
    found = document["savings"]["carbon"]
    assert 1.0 - ratios[Arm.TREATMENT] / ratios[Arm.CONTROL] == pytest.approx(found["value"])
    again = WorkloadProtocol(START_S, START_S, document["protocol"]["seed"])
    assert all(again.arm_of(one["namespace"], one["workload"]) == one["arm"] for one in document["workloads"])
    assert "cost" not in document["savings"]


@pytest.mark.parametrize(
    ("recorded", "why"),
    [
        ({"unmetered": 200}, "LEDGER_HOURS_RETENTION"),
        ({"ended": False}, "record until the last of them has ended"),
        ({"workloads": 0}, "holds no pod of the trial"),
    ],
)
def test_no_saving_by_deferral_is_given_where_pods_are_missing(joulie, tmp_path, recorded, why):
    folder = deferred(tmp_path / "month", 0.8, **recorded)
    status, out, _ = joulie("trial", "report", folder, "--file", deferral_file(tmp_path))
    assert (status, "no saving can be given: " in out, why in out) == (1, True, True)


@pytest.fixture
def few_draws(monkeypatch):
    monkeypatch.setattr(workload_plan, "_TRIALS", 25)


@pytest.mark.usefixtures("few_draws")
def test_the_plan_of_a_trial_of_deferral_says_which_saving_the_past_would_have_shown(joulie, tmp_path):
    folder = deferred(tmp_path / "month", 1.0, drawn=False, noise=0.1)
    plan = ("trial", "plan", folder, "--judges", "deferral")
    found = json.loads(joulie(*plan, "--saving", "10", "-o", "json")[1])
    assert (found["quantity"], len(found["lengths"])) == ("carbon", 3)
    days, workloads, seen, smallest = found["lengths"][-1].values()
    assert (days, workloads, found["days"] <= days) == (1.75, 24, True)
    assert seen >= 0.8
    # About 2.8 standard errors: of seven runs of each of 24 workloads that differ by a tenth, the larger ones most.
    assert 0.02 < smallest < 0.1
    assert found["largest"] == pytest.approx(24.0 / sum(range(1, 25)), rel=0.2)
    said = joulie(*plan, "--saving", "10")[1]
    assert f"{found['days']:.1f} days show a saving of 10 % of the carbon emissions per work in 80% of trials" in said
    status, out, _ = joulie(*plan, "--saving", "0.5")
    assert (status, "too small to be seen in 1.8 days" in out) == (0, True)
    assert joulie(*plan, "--namespace", "ml", "-o", "json")[0] == 0


@pytest.mark.usefixtures("few_draws")
@pytest.mark.parametrize(
    ("recorded", "options", "why"),
    [
        ({"unmetered": 200}, (), "LEDGER_HOURS_RETENTION"),
        ({"drawn": True}, (), "a trial of deferral ran in this recording"),
        ({}, ("--namespace", "web"), "no workload that would be drawn completed pods"),
        ({}, ("--block", "1h"), "--block says nothing of a trial that judges deferral"),
    ],
)
def test_what_cannot_plan_a_trial_of_deferral_is_one_line(joulie, tmp_path, recorded, options, why):
    folder = deferred(tmp_path / "month", 1.0, **{"drawn": False} | recorded)
    status, out, err = joulie("trial", "plan", folder, "--judges", "deferral", *options)
    assert (status, out, why in err) == (2, "", True)
    assert "--namespace says nothing" in joulie("trial", "plan", folder, "--namespace", "ml")[2]


@pytest.mark.usefixtures("few_draws")
def test_a_few_workloads_see_nothing(joulie, tmp_path):
    folder = deferred(tmp_path / "month", 1.0, drawn=False, workloads=8)
    found = json.loads(joulie("trial", "plan", folder, "--judges", "deferral", "-o", "json")[1])
    assert [(one["seen"], one["smallest"]) for one in found["lengths"]] == [(0.0, None)] * 3
    assert found["days"] is None
