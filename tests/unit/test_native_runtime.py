"""Native runs: pods find nodes as kube-scheduler places them, work takes its time, nothing hangs, energy is right."""

import gc
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from joulie.domain.grid.series import constant
from joulie.domain.policies import POLICIES
from joulie.domain.policy import PolicySettings
from joulie_lab.simulation.climate import Climate
from joulie_lab.simulation.cooling import LinearPlant
from joulie_lab.simulation.experiment.outcome import JobEnd, JobOutcome, Outcome
from joulie_lab.simulation.experiment.scenario import NodeGroup
from joulie_lab.simulation.job_response import IdleStates
from joulie_lab.simulation.live.fleet import LiveFleet
from joulie_lab.simulation.live.jobs import RunningPod, Work, Workload, activity
from joulie_lab.simulation.native.control import Control
from joulie_lab.simulation.native.nodes import UnknownHardwareError, sim_nodes
from joulie_lab.simulation.native.runtime import Setup, run
from joulie_lab.simulation.schedulers import NATIVE_SCHEDULERS, UnknownSchedulerError
from joulie_lab.simulation.trace import GPU_MILLI_KEY, WORKLOAD_CLASS_KEY, JobProfile, TraceJob

CPU = NodeGroup(name="cpu", count=2, cpu="AMD EPYC 9965", cores=64.0, memory_gib=256.0)
GPU = NodeGroup(name="gpu", count=2, cpu="AMD EPYC 9654", cores=64.0, memory_gib=256.0, gpu="NVIDIA H100 NVL", gpus=4)
NODES = sim_nodes([CPU, GPU])
HOUR_S = 3600.0
NVIDIA = "nvidia.com/gpu"


def job(name: str, submit_s: float = 0.0, *, work_s: float = 600.0, **facts: Any) -> TraceJob:
    """A job of 8 cores (and `gpus` GPUs) that takes `work_s` where nothing holds it up."""
    gpus, cores = facts.pop("gpus", 0), facts.pop("cores", 8)
    share, resource = facts.pop("share", 1.0), facts.pop("resource", NVIDIA)
    annotations: dict[str, str] = {} if share == 1.0 else {GPU_MILLI_KEY: str(round(1000 * share))}
    if facts.pop("performance", False):
        annotations[WORKLOAD_CLASS_KEY] = "performance"
    requests = {"cpu": str(cores), "memory": "4Gi"} | ({resource: str(gpus)} if gpus else {})
    return TraceJob(
        **{
            "job_id": name,
            "workload_id": name,
            "submit_s": submit_s,
            "requests": requests,
            "annotations": annotations,
            "cpu_units": work_s * cores * 0.8,
            "gpu_units": work_s * gpus * share * 0.9,
            "profile": JobProfile(cpu_utilization=0.8, gpu_utilization=0.9 if gpus else 0.0),
        }
        | facts
    )


def setup(**changes: Any) -> Setup:
    return replace(Setup(nodes=NODES, duration_s=2 * HOUR_S, n_samples=9), **changes)


def half_eco(**changes: Any) -> Setup:
    policy = POLICIES["static_partition"](PolicySettings(static_hp_frac=0.5))
    return setup(**{"control": Control(policy), "scheduler": "joulie"} | changes)


def by_id(outcome: Outcome) -> Mapping[str, JobOutcome]:
    return {one.job_id: one for one in outcome.jobs}


def test_a_job_takes_the_time_that_its_work_says() -> None:
    one = run(setup(), [job("a", 100.0)]).jobs[0]
    assert (one.end, one.start_s) == (JobEnd.COMPLETED, 100.0)
    assert one.end_s == pytest.approx(700.0)
    assert one.cpu_units_done == one.cpu_units


def test_pods_without_gpus_are_spread_over_the_emptiest_nodes() -> None:
    outcome = run(setup(), [job(f"j{number}", cores=16) for number in range(4)])
    assert sorted(one.node for one in outcome.jobs) == ["cpu-0", "cpu-1", "gpu-0", "gpu-1"]


def test_a_full_cluster_makes_pods_wait_in_order() -> None:
    jobs = [job(f"j{number}", float(number), cores=64) for number in range(9)]
    outcome = run(setup(), jobs)
    starts = [one.start_s or 0.0 for one in outcome.jobs]
    assert starts == sorted(starts)
    assert [round(start) for start in starts] == [0, 1, 2, 3, 600, 601, 602, 603, 1200]


def test_priority_goes_before_order_and_what_fits_passes_what_does_not() -> None:
    full = [job("soon", cores=56), *(job(f"full{number}", cores=56, work_s=9000.0) for number in range(3))]
    later = [
        job("first", 1.0, cores=40),
        job("second", 2.0, cores=48),
        job("urgent", 3.0, cores=56, priority_class="urgent"),
        job("small", 4.0),
    ]
    found = by_id(run(setup(priorities={"": 0, "urgent": 10}, duration_s=3 * HOUR_S), [*full, *later]))
    starts = [found[name].start_s for name in ("small", "urgent", "first", "second")]
    assert starts == pytest.approx([4.0, 600.0, 1200.0, 1800.0])
    assert run(setup(), [later[2]]).jobs[0].problem == "unknown PriorityClass urgent"


@pytest.mark.parametrize("compiled", [True, False])
def test_all_that_fits_a_freed_node_starts_at_once(compiled: bool) -> None:
    full = [job("soon", cores=64), *(job(f"full{number}", cores=64, work_s=9000.0) for number in range(3))]
    single = [job("large", 1.0, cores=50), job("medium", 2.0, cores=20), job("small", 3.0, cores=6)]
    gangs = [
        job(f"{gang}{member}", 4.0, cores=2, gang=True, workload_id=gang) for gang in ("g", "h") for member in range(2)
    ]
    found = by_id(run(setup(compiled=compiled), [*full, *single, *gangs]))
    starts = {name: one.start_s for name, one in found.items() if one.submit_s > 0.0}
    freed = ("large", "small", "g0", "g1", "h0", "h1")
    assert starts == pytest.approx(dict.fromkeys(freed, 600.0) | {"medium": 1200.0})


def test_what_can_never_run_is_told_apart_and_nothing_hangs() -> None:
    gang = [job(f"g{number}", gpus=4, gang=True, workload_id="g") for number in range(3)]
    jobs = [
        job("large", cores=65),
        job("amd", gpus=1, resource="amd.com/gpu"),
        job("elsewhere", node_selector={"zone": "b"}),
        job("endless", requests={"cpu": "0"}),
        job("fine"),
        *gang,
    ]
    found = by_id(run(setup(), jobs))
    assert {name: one.end for name, one in found.items()} == {
        "large": JobEnd.UNSCHEDULABLE,
        "amd": JobEnd.UNSCHEDULABLE,
        "elsewhere": JobEnd.UNSCHEDULABLE,
        "endless": JobEnd.REFUSED,
        "fine": JobEnd.COMPLETED,
        **dict.fromkeys(("g0", "g1", "g2"), JobEnd.UNSCHEDULABLE),
    }
    assert "65 cores" in found["large"].problem
    assert "amd.com/gpu" in found["amd"].problem
    assert "gang g" in found["g2"].problem


def two_gangs() -> list[TraceJob]:
    """Each needs three of the four GPU halves; one by one they would take two each."""
    return [
        job(f"{gang}{member}", member, gpus=3, gang=True, workload_id=gang)
        for member in range(2)
        for gang in ("first", "second")
    ]


def test_gangs_that_come_one_by_one_can_wait_for_each_other_and_are_reported() -> None:
    outcome = run(setup(gangs="singly"), two_gangs())
    assert {one.end for one in outcome.jobs} == {JobEnd.WAITING}
    assert {one.problem for one in outcome.jobs} == {"1 of 2 members placed"}
    assert {one.gpu_units_done for one in outcome.jobs} == {0.0}


def test_gangs_that_are_let_go_together_run_one_after_the_other() -> None:
    found = by_id(run(setup(), two_gangs()))
    assert {one.end for one in found.values()} == {JobEnd.COMPLETED}
    assert [found[name].end_s for name in ("first0", "second0")] == pytest.approx([601.0, 1201.0])


def test_a_gang_goes_on_when_its_first_member_is_done() -> None:
    members = [job(f"m{n}", work_s=600.0 * (n + 1), gpus=1, gang=True, workload_id="m") for n in range(2)]
    assert [one.end_s for one in run(setup(), members).jobs] == pytest.approx([600.0, 1200.0])


def test_gpus_are_shared_only_where_the_setup_says_so() -> None:
    jobs = [job(f"s{number}", gpus=1, share=0.5, cores=2) for number in range(16)]
    together, apart = run(setup(share_gpus=True), jobs), run(setup(), jobs)
    assert {one.start_s for one in together.jobs} == {0.0}
    assert sum(one.start_s == 0.0 for one in apart.jobs) == 8
    assert {one.end for one in apart.jobs} == {JobEnd.COMPLETED}


def test_two_halves_on_one_gpu_take_the_power_of_a_whole() -> None:
    one_node = sim_nodes([GPU.model_copy(update={"count": 1})])
    whole = run(setup(nodes=one_node), [job("whole", gpus=1)])
    halves = [job(name, cores=4, gpus=1, share=0.5) for name in ("left", "right")]
    shared, apart = (run(setup(nodes=one_node, share_gpus=share), halves) for share in (True, False))
    assert shared.it_j == pytest.approx(whole.it_j, rel=1e-9)
    # Two GPUs that are half used are awake both.
    assert apart.it_j > shared.it_j + 600.0 * 50.0


def test_performance_pods_stay_off_eco_nodes_and_caps_slow_the_others() -> None:
    jobs = [job(f"p{n}", cores=32, performance=True) for n in range(8)] + [
        job(f"s{n}", gpus=4, gpu_class="compute_bound") for n in range(2)
    ]
    outcome = run(half_eco(), jobs)
    assert {one.node for one in outcome.jobs if one.workload_class == "performance"} == {"cpu-0", "gpu-0"}
    assert outcome.series.performance_pods_on_eco.max() == 0
    assert outcome.series.eco_nodes.tolist() == [2] * 9
    capped = [one for one in outcome.jobs if one.workload_class == "standard"]
    assert {one.node for one in capped} == {"gpu-1"}
    # 240 of the 366 W that they would draw; each job responds in its own way.
    first_s, second_s = ((one.end_s or 0.0) - (one.start_s or 0.0) for one in capped)
    assert 600.0 * 1.05 < min(first_s, second_s) < max(first_s, second_s) < 600.0 * 1.5
    assert abs(first_s - second_s) > 6.0
    unruled = run(replace(half_eco(), scheduler="kube"), jobs)
    assert unruled.series.performance_pods_on_eco.max() > 0


def test_a_queue_of_performance_pods_opens_nodes_and_their_end_drains_them() -> None:
    settings = PolicySettings(queue_hp_base_frac=0.25, queue_perf_per_hp_node=1)
    jobs = [job(f"p{number}", 60.0, cores=48, performance=True) for number in range(4)]
    outcome = run(half_eco(control=Control(POLICIES["queue_aware_v1"](settings))), jobs)
    assert {one.end for one in outcome.jobs} == {JobEnd.COMPLETED}
    assert outcome.series.eco_nodes.tolist()[0] == outcome.series.eco_nodes.tolist()[-1] == 3
    assert len(outcome.drains) == 3
    assert all(drain.end_s is not None and drain.end_s - drain.start_s >= 30.0 for drain in outcome.drains)


def test_a_cap_slows_what_follows_and_not_what_was_done() -> None:
    """A job is an hour old when the performance pod beside it ends and their node is drained and capped."""
    queue = PolicySettings(queue_hp_base_frac=0.0, queue_hp_min=0, queue_perf_per_hp_node=1)
    beside = job("beside", work_s=3000.0, performance=True)
    slowed = job("slowed", 200.0, work_s=3600.0, gpus=4, gpu_class="compute_bound")
    ends = []
    for n_samples in (11, 801):
        control = Control(POLICIES["queue_aware_v1"](queue))
        nodes = sim_nodes([GPU.model_copy(update={"count": 1})])
        outcome = run(setup(nodes=nodes, duration_s=7200.0, control=control, n_samples=n_samples), [beside, slowed])
        ends.append(by_id(outcome)["slowed"].end_s)
    assert ends[0] == pytest.approx(ends[1], abs=0.5)
    # About 700 of its 3,600 s are left when the cap comes.
    assert ends[0] is not None
    assert 3800.0 < ends[0] < 4300.0


@pytest.mark.parametrize("name", NATIVE_SCHEDULERS)
def test_every_scheduler_places_all_jobs(name: str) -> None:
    jobs = [job(f"j{number}", 30.0 * number, gpus=number % 3, performance=number % 2 == 0) for number in range(12)]
    outcome = run(setup(scheduler=name), jobs)
    assert {one.end for one in outcome.jobs} == {JobEnd.COMPLETED}


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnknownSchedulerError, match="fgd"):
        run(setup(scheduler="fgd"), [])
    with pytest.raises(UnknownHardwareError, match="Pentium"):
        sim_nodes([NodeGroup(name="old", count=1, cpu="Pentium")])


@pytest.mark.slow
@pytest.mark.parametrize("policy_share", [1.0, 0.5])
def test_energy_and_ends_are_those_of_small_ticks(policy_share: float) -> None:
    """The same placements, played in ticks of a second by the simulator service's fleet and workload."""
    jobs = []
    for number in range(12):
        # Neighbours whose GPUs are busy and half busy: a limit slows only some of them.
        count, util = number % 3, 0.9 if number % 2 else 0.5
        use = JobProfile(cpu_utilization=0.8, gpu_utilization=util if count else 0.0)
        facts = {"cores": 24, "gpus": count, "gpu_units": 222.0 * count * util, "profile": use}
        jobs.append(job(f"j{number}", 20.0 * number, work_s=222.0, **facts))
    policy = POLICIES["static_partition"](PolicySettings(static_hp_frac=policy_share))
    given = setup(control=Control(policy), scheduler="joulie", duration_s=600.0)
    outcome = run(given, jobs)
    ambient_k = given.climate.mean_c + 273.15
    fleet, pods = LiveFleet([node.spec for node in NODES], ambient_k=ambient_k, seed=given.seed), Workload()
    eco = {1, 3} if policy_share == 0.5 else set()
    for node in eco:
        fleet.cap_cpu(node, 0.6 * NODES[node].spec.cpu.tdp_w)
        fleet.cap_gpus(node, 0.6 * 400.0)
    fleet.advance(100.0, ambient_k)
    fleet.state.energy_j[:] = 0.0
    traced = {one.job_id: one for one in jobs}
    due = sorted(outcome.jobs, key=lambda one: one.start_s or 0.0)
    ends: dict[str, float] = {}
    for now_s in range(600):
        while due and (due[0].start_s or 0.0) <= now_s:
            one, asked = due[0], traced[due[0].job_id]
            left = Work(asked.cpu_units, asked.gpu_units)
            gpus = float(asked.shape.gpus)
            pods.put(RunningPod(one.job_id, one.node, asked.shape.cores, gpus, activity(asked), left))
            del due[0]
        left_s = 1.0
        while left_s > 1e-9:
            fleet.set_load(pods.load(fleet))
            dt_s = max(min(left_s, pods.next_done_s(fleet)), 1e-6)
            fleet.advance(dt_s, ambient_k)
            left_s -= dt_s
            for key in pods.advance(fleet, dt_s):
                ends[key] = now_s + 1.0 - left_s
                pods.remove(key)
    assert {node.name: node.energy_j for node in outcome.nodes} == pytest.approx(
        {node.name: float(fleet.state.energy_j[place]) for place, node in enumerate(NODES)}, rel=1e-3
    )
    assert {one.job_id: one.end_s for one in outcome.jobs if one.end_s} == pytest.approx(
        ends,
        abs=1.0,  # a pod that waited starts with the next tick there
    )


def test_samples_and_facility_steps_do_not_change_the_energy() -> None:
    jobs = [job(f"j{number}", 97.0 * number, gpus=1, performance=number % 3 == 0) for number in range(12)]
    coarse = run(half_eco(), jobs)
    fine = run(half_eco(n_samples=200, facility_step_s=31.0), jobs)
    assert fine.it_j == pytest.approx(coarse.it_j, rel=1e-9)
    assert [one.end_s for one in fine.jobs] == pytest.approx([one.end_s for one in coarse.jobs])
    assert fine.it_j == pytest.approx(np.trapezoid(fine.series.it_w, fine.series.time_s), rel=0.02)


def test_the_building_is_counted() -> None:
    given = setup(
        climate=Climate(daily_amplitude_k=0.0, slow_amplitude_k=0.0, noise_std_k=0.0),
        plant=LinearPlant,
        intensity_g_per_kwh=constant(400.0, 0.0, 2 * HOUR_S),
        price_per_kwh=constant(0.1, 0.0, 2 * HOUR_S),
    )
    outcome = run(given, [job(f"j{number}", work_s=450.0, cores=60) for number in range(4)])
    series = outcome.series
    assert outcome.cooling_j is not None
    # The plant sees power as it is: the mean of a step in which the jobs end would cool for less.
    plant = LinearPlant(LiveFleet([node.spec for node in NODES], ambient_k=300.0).peak_w)
    busy, idle = (plant.step(float(series.it_w[place]), float(series.outdoor_k[0]), 1.0).cooling_w for place in (0, -1))
    assert outcome.cooling_j == pytest.approx(450.0 * busy + (2 * HOUR_S - 450.0) * idle, rel=1e-4)
    facility_kwh = (outcome.it_j + outcome.cooling_j) / 3.6e6
    assert outcome.carbon_g == pytest.approx(400.0 * facility_kwh)
    assert outcome.cost == pytest.approx(0.1 * facility_kwh)
    assert run(setup(), []).cooling_j is None


def test_managed_idle_needs_joulie() -> None:
    idle = {
        states: run(setup(idle_states=states, duration_s=HOUR_S), []).it_j
        for states in (IdleStates.ALL, IdleStates.MANAGED, IdleStates.NONE)
    }
    assert idle[IdleStates.MANAGED] == idle[IdleStates.NONE] > idle[IdleStates.ALL]
    managed = run(half_eco(idle_states=IdleStates.MANAGED, duration_s=HOUR_S), []).it_j
    assert managed == pytest.approx(idle[IdleStates.ALL])


def test_late_jobs_are_left_out_and_counted() -> None:
    outcome = run(setup(arrivals_s=60.0), [job("a"), job("b", 60.0), job("c", 61.0)])
    assert [one.job_id for one in outcome.jobs] == ["a"]
    assert outcome.notes == ("2 jobs submitted after the arrivals are left out",)


def test_jobs_that_have_not_ended_keep_what_they_did() -> None:
    outcome = run(setup(duration_s=300.0), [job("a", work_s=600.0)])
    assert outcome.jobs[0].end is JobEnd.RUNNING
    assert outcome.jobs[0].cpu_units_done == pytest.approx(outcome.jobs[0].cpu_units / 2.0)


def test_reference_cycles_are_collected_again_after_a_run_that_failed() -> None:
    def fail(done_s: float, total_s: float) -> None:
        assert not gc.isenabled()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(setup(), [job("a")], on_progress=fail)
    assert gc.isenabled()
