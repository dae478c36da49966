"""`joulie bench marginal-cluster`: its accounts and its native side; the other side needs a control plane."""

import asyncio
import json
from collections import Counter
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import click
import httpx2
import numpy as np
import pytest

from joulie.adapters.power_switches.file import SwitchFile
from joulie.domain.scheduling.scores import NodeAmounts
from joulie.http_client import tls_context
from joulie.ports.power_switch import PowerState
from joulie_lab.apps.bench.marginal_cluster import _kept
from joulie_lab.apps.bench.marginal_cluster_run import put_together
from joulie_lab.benchmarks.marginal_cluster import (
    BOOT_S,
    POWER,
    Course,
    Pace,
    Plan,
    Way,
    awake_s,
    bound_kwh,
    energy_kwh,
    engine_above_bound_pct,
    measured,
    plan,
    summarise,
    trace_jobs,
)
from joulie_lab.benchmarks.marginal_native import most_allocated, play
from joulie_lab.control_plane import wait_for
from joulie_lab.control_plane.certificates import CertificateAuthority
from joulie_lab.control_plane.power_switches import PowerSwitches

SEED = 7
FAST = Pace(look_s=30.0)


@cache
def small() -> Plan:
    return plan(SEED, (12, 4), 6.0)


@cache
def played(way: Way) -> Course:
    return play(small(), way, FAST)


def test_a_node_has_power_between_its_switches_and_within_the_run():
    assert awake_s([(-5.0, True)], 100.0) == 100.0
    assert awake_s([(-5.0, True), (-1.0, False)], 100.0) == 0.0
    assert awake_s([(-1.0, False), (10.0, True), (30.0, False), (90.0, True), (120.0, False)], 100.0) == 30.0


@pytest.mark.slow
def test_energy_is_that_of_sleep_of_being_awake_and_of_the_work():
    of = small()
    first = replace(of, jobs=of.jobs.select(np.arange(len(of.jobs)) == np.argmin(of.jobs.gpus)))
    hours, jobs = of.hours, first.jobs
    asleep = POWER.sleep_fraction * (12 * 700.0 + 4 * 500.0) * hours
    work = 6.0 * jobs.cores[0] * jobs.cpu_util[0] * jobs.duration_s[0] / 3600.0
    assert jobs.gpus[0] == 0
    none = np.zeros(16)
    assert energy_kwh(first, none) == pytest.approx((asleep + work) / 1000.0)
    one = none.copy()
    one[[0, 15]] = 3600.0
    added = 0.22 * 700.0 + 0.22 * 500.0 + 8 * 70.0
    assert energy_kwh(first, one) == pytest.approx((asleep + work + added) / 1000.0)


def test_a_gpu_with_a_job_draws_no_idle_power():
    of = small()
    index = int(np.argmax(of.jobs.gpus > 0))
    jobs = of.jobs.select(np.arange(len(of.jobs)) == index)
    with_job, without = replace(of, jobs=jobs), replace(of, jobs=jobs.select(np.zeros(1, bool)))
    coefficient = 0.85 if jobs.performance[0] else 0.65
    gpu_w = jobs.gpus[0] * (700.0 * coefficient * jobs.gpu_util[0] - 70.0)
    work_w = gpu_w + 6.0 * jobs.cores[0] * jobs.cpu_util[0]
    none = np.zeros(16)
    added_kwh = energy_kwh(with_job, none) - energy_kwh(without, none)
    assert added_kwh == pytest.approx(work_w * jobs.duration_s[0] / 3.6e6)


def test_full_nodes_without_gaps_reach_the_bound():
    """Two jobs that fill a node for an hour each: as ideal packing has it."""
    of = small()
    rows = np.arange(len(of.jobs)) < 2
    jobs = replace(
        of.jobs.select(rows),
        arrival_s=np.array([0.0, 3600.0]),
        duration_s=np.array([3600.0, 3600.0]),
        cores=np.array([96, 96], dtype=np.int16),
        gpus=np.zeros(2, dtype=np.int16),
    )
    full = replace(of, jobs=jobs)
    awake = np.zeros(16)
    awake[3] = 7200.0
    assert energy_kwh(full, awake) == pytest.approx(bound_kwh(full))
    awake[3] = 7201.0
    assert energy_kwh(full, awake) > bound_kwh(full)


@pytest.mark.slow
@pytest.mark.parametrize("way", Way)
def test_natively_all_work_is_done_on_nodes_that_are_on_and_have_room(way):
    of, course = small(), played(way)
    jobs = of.jobs
    assert np.all(course.start_s >= jobs.arrival_s)
    assert np.all(course.end_s - course.start_s == pytest.approx(jobs.duration_s))
    for node in range(16):
        mine = np.flatnonzero(course.node == node)
        size = (96, 0) if node < 12 else (128, 8)
        for moment_s in course.start_s[mine]:
            runs = mine[(course.start_s[mine] <= moment_s) & (course.end_s[mine] > moment_s)]
            assert jobs.cores[runs].sum() <= size[0]
            assert jobs.gpus[runs].sum() <= size[1]
        assert course.awake_s[node] >= occupied_s(course, mine)
    run = measured(of, course)
    assert (run.unfinished, run.moves) == (0, 0)
    assert run.above_bound_pct > 0.0
    assert run.wakes > 0
    # Nodes sleep: less than if all were on, and no job waits for longer than looks and a boot take.
    assert run.kwh < energy_kwh(of, np.full(16, of.end_s))
    assert run.p95_wait_min <= (BOOT_S + 3 * FAST.look_s) / 60.0


def occupied_s(course, jobs):
    """Time for which at least one of some jobs runs, s."""
    total_s, until_s = 0.0, 0.0
    for start_s, end_s in sorted(zip(course.start_s[jobs], course.end_s[jobs], strict=True)):
        total_s += max(0.0, end_s - max(start_s, until_s))
        until_s = max(until_s, end_s)
    return total_s


@pytest.mark.slow
def test_a_pace_that_is_slow_makes_jobs_wait():
    of = small()
    course = play(of, Way.MARGINAL, Pace(look_s=120.0, bind_s=10.0, retry_s=240.0, hold_s=60.0))
    slow, fast = measured(of, course), measured(of, played(Way.MARGINAL))
    assert slow.unfinished == 0
    assert slow.mean_wait_min > fast.mean_wait_min + 1.0
    assert np.all(course.start_s - of.jobs.arrival_s >= 60.0)


@pytest.mark.slow
def test_savings_are_of_the_same_work_and_differences_of_savings():
    of = small()
    native = {way: played(way) for way in Way}
    # A control plane on which every node stays on for an hour longer.
    later = {way: replace(course, awake_s=course.awake_s + 225.0) for way, course in native.items()}
    pace = Pace(72.0, 5.0, 240.0)
    on_plane = {way: (course, pace) for way, course in later.items()}
    result = summarise(of, native, on_plane, native, {1: (of, native), 2: (of, native)}, 240.0)
    marginal, default = (result.native[way.value].kwh for way in (Way.MARGINAL, Way.DEFAULT))
    saving = result.saving[Way.DEFAULT.value]
    assert saving.native_pct == pytest.approx(100.0 * (1.0 - marginal / default))
    assert saving.seeds_pct.mean == pytest.approx(saving.native_pct)
    assert saving.paced_pct == saving.native_pct
    pairs = [(one.native_pct, one.plane_pct) for one in result.saving.values()]
    assert result.off_by_points == pytest.approx(max(abs(a - b) for a, b in pairs))
    assert result.plane[Way.MARGINAL.value].awake_node_hours == pytest.approx(
        result.native[Way.MARGINAL.value].awake_node_hours + 1.0
    )
    assert result.paces[Way.ENERGY.value].look_s == 72.0
    assert result.engine_above_bound_pct == pytest.approx(engine_above_bound_pct(of))
    late = on_plane | {Way.ENERGY: (later[Way.ENERGY], replace(pace, hold_s=600.0))}
    slow = summarise(of, native, late, native, {1: (of, native), 2: (of, native)}, 240.0)
    others = [one for name, one in slow.saving.items() if name != Way.ENERGY.value]
    assert slow.too_slow == [Way.ENERGY.value]
    assert slow.off_by_points == pytest.approx(max(abs(one.native_pct - one.plane_pct) for one in others))
    alone = summarise(of, native, {}, {}, {1: (of, native), 2: (of, native)}, 240.0)
    assert (alone.off_by_points, alone.saving[Way.DEFAULT.value].plane_pct) == (None, None)


def broken_days(folder):
    """Empty, text, half of a day, and one without what a day has."""
    np.savez(folder / "whole.npz", energy_kwh=1.0)
    whole = (folder / "whole.npz").read_bytes()
    return [b"", b"no day", whole[: len(whole) // 2], whole]


@pytest.mark.parametrize("number", range(4))
def test_a_kept_day_that_is_broken_is_named_with_what_to_do(tmp_path, number):
    (tmp_path / "day.npz").write_bytes(broken_days(tmp_path)[number])
    with pytest.raises(
        click.ClickException, match=r"day\.npz: not a day that was kept \(.*\); delete it to play the day"
    ):
        _kept(tmp_path, "day", lambda: pytest.fail("played"))


def test_a_day_that_is_kept_is_not_played_again(tmp_path):
    course = Course(np.array([1.0]), np.array([np.nan]), np.array([-1]), np.array([5.0, 6.0]), wakes=2, moves=1)
    plays = []

    def play_it():
        plays.append(1)
        return course, Pace(72.0, 5.0, 240.0, 3.0)

    kept = [_kept(tmp_path, "day", play_it) for _ in range(3)]
    assert len(plays) == 1
    for found, pace in kept:
        assert pace == Pace(72.0, 5.0, 240.0, 3.0)
        assert (found.wakes, found.moves, list(found.awake_s)) == (2, 1, [5.0, 6.0])
        assert np.isnan(found.end_s).all()
    assert _kept(None, "day", play_it)[0] is course


def test_what_the_simulator_says_becomes_a_course_on_its_clock():
    of = small()
    names = [node.name for node in of.nodes]
    jobs = [
        {
            "jobId": job.job_id,
            "startedSeconds": job.submit_s + 30.0,
            "completedSeconds": None if index == 1 else job.submit_s + 90.0,
            "node": "" if index == 1 else names[index % 2],
            "attempts": 2 if index == 0 else 1,
        }
        for index, job in enumerate(trace_jobs(of))
    ]
    # 100 times as fast as the clock, from second 50 of it.
    clock = [(50.0, 0.0), (350.0, 30_000.0)]

    machines = {name: Off() for name in names}
    machines[names[0]].switched = [(0.0, True), (40.0, False), (60.0, True), (70.0, False)]
    course = put_together(of, jobs[::-1], SimpleNamespace(machines=machines), clock)
    assert (course.wakes, course.moves) == (1, 1)
    assert list(course.awake_s) == [1000.0] + [0.0] * 15
    assert list(course.start_s - of.jobs.arrival_s) == pytest.approx([30.0] * len(of.jobs))
    assert list(course.node[:2]) == [0, -1]
    assert np.flatnonzero(np.isnan(course.end_s)).tolist() == [1]


class Off:
    """A machine that is off all the time."""

    def __init__(self):
        self.switched = [(0.0, True), (1.0, False)]


def test_pods_ask_for_what_the_jobs_do_and_run_as_long():
    of = small()
    for job, pod in enumerate(trace_jobs(of)):
        assert pod.ideal_s == pytest.approx(of.jobs.duration_s[job])
        assert (pod.shape.cores, pod.shape.gpus) == (of.jobs.cores[job], of.jobs.gpus[job])
        assert pod.shape.memory_gib == 4.0 * pod.shape.cores
    assert Counter(pod.namespace for pod in trace_jobs(of)).keys() <= set(of.jobs.class_names)


def test_most_allocated_is_the_mean_of_what_is_taken():
    """As mostRequestedScore of kube-scheduler: 3000 of 4000 and 5000 of 10000 are 75 and 50 percent."""
    taken, size = (
        NodeAmounts(np.array([3000, 0]), np.array([5000, 0])),
        NodeAmounts(np.array([4000] * 2), np.full(2, 10_000)),
    )
    assert most_allocated(taken, size).tolist() == [62, 0]


class Plane:
    """In place of a control plane: takes what kubelets say."""

    def __init__(self, folder):
        self.authority = CertificateAuthority(folder)
        self.said = []

    def request(self, method, path, body, *, content_type):
        assert (method, content_type) == ("PATCH", "application/strategic-merge-patch+json")
        ready = body["status"]["conditions"][0]["status"] == "True"
        self.said.append((path.split("/")[4], ready, body["status"]["nodeInfo"]["bootID"]))


def test_switches_of_simulated_nodes_are_what_the_operator_speaks_with(tmp_path):
    plane = Plane(tmp_path / "pki")
    switches = PowerSwitches(plane, ["n1", "n2"], boot_s=0.05)
    file = SwitchFile(switches.write_file(tmp_path / "switches.yaml"), plane.authority.certificate)
    file.reload()
    with switches.serving():
        asyncio.run(off_and_on(file))
        wait_for(lambda: len(plane.said) == 4, 60.0, "the node has booted")
        url = json.loads((tmp_path / "switches.yaml").read_text())["switches"]["n1"]["redfish"]
        with httpx2.Client(verify=tls_context(plane.authority.certificate)) as http:
            assert http.get(url.replace("n1", "n9")).status_code == 404
    assert plane.said[:3] == [("n1", True, "n1-1"), ("n2", True, "n2-1"), ("n1", False, "n1-1")]
    assert plane.said[3] == ("n1", True, "n1-2"), "a boot has a name of its own"
    assert [on for _, on in switches.machines["n1"].switched] == [True, False, True]


async def off_and_on(file):
    switch = file.get("n1").switch
    assert await switch.state() is PowerState.ON
    await switch.off()
    assert await switch.state() is PowerState.OFF
    await switch.on()
    await switch.on()
    assert await switch.state() is PowerState.ON
    await file.aclose()
