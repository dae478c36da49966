from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from joulie.domain.quantities import InvalidQuantityError
from joulie_lab.simulation.trace import JobProfile, TraceJob, TraceLine, TraceMetadata
from joulie_lab.simulation.workloads.description import TraceCounter
from joulie_lab.simulation.workloads.generator import generate
from joulie_lab.simulation.workloads.settings import GeneratorSettings
from joulie_lab.simulation.workloads.transforms import Scale, Slice, scaled, sliced

JOBS = list(generate(GeneratorSettings(), seed=4, hours=12.0))


def job(job_id: str = "a", **changes: Any) -> TraceJob:
    made = TraceJob(job_id=job_id, workload_id=job_id, submit_s=0.0, requests={"cpu": "4"}, cpu_units=200.0)
    return replace(made, **changes)


def only_jobs(lines: list[TraceLine]) -> list[TraceJob]:
    return [line for line in lines if isinstance(line, TraceJob)]


def test_a_window_starts_at_zero() -> None:
    kept = only_jobs(list(sliced(JOBS, Slice(3600.0, 7200.0))))
    before = [one for one in JOBS if 3600.0 <= one.submit_s < 7200.0]
    assert [one.job_id for one in kept] == [one.job_id for one in before]
    assert [one.submit_s for one in kept] == pytest.approx([one.submit_s - 3600.0 for one in before])


def test_families_are_kept_by_name() -> None:
    kept = only_jobs(list(sliced(JOBS, Slice(families=("debug_eval", "analytics")))))
    assert Counter(one.workload_type for one in kept) == {
        name: sum(one.workload_type == name for one in JOBS) for name in ("debug_eval", "analytics")
    }


def test_members_that_come_later_than_their_gang_stay_in_it() -> None:
    early, late = job("a", gang=True, workload_id="g"), job("b", gang=True, workload_id="g", submit_s=500.0)
    assert only_jobs(list(sliced([early, late], Slice(0.0, 100.0)))) == [early, late]
    assert only_jobs(list(sliced([early, late], Slice(400.0, 600.0)))) == []


def test_descriptions_stay_with_what_they_describe() -> None:
    lines: list[TraceLine] = [
        TraceMetadata({"source": "all"}),
        TraceMetadata({"workloadId": "a", "submitTimeOffsetSec": 50}),
        TraceMetadata({"workloadId": "b"}),
        job("a", submit_s=50.0),
        job("b", submit_s=150.0),
    ]
    assert list(sliced(lines, Slice(20.0, 100.0))) == [
        TraceMetadata({"source": "all"}),
        TraceMetadata({"workloadId": "a", "submitTimeOffsetSec": 30.0}),
        job("a", submit_s=30.0),
    ]
    assert list(scaled(lines, Scale(rate=0.0))) == [TraceMetadata({"source": "all"})]
    twice = list(scaled(lines, Scale(rate=2.0)))
    assert Counter(line.values.get("workloadId") for line in twice if isinstance(line, TraceMetadata)) == {
        None: 1,
        "a": 1,
        "b": 1,
        "a-c1": 1,
        "b-c1": 1,
    }


@pytest.mark.parametrize("rate", [0.3, 0.999, 1.0, 1.7, 3.0])
def test_arrivals_are_thinned_or_copied_by_workload(rate: float) -> None:
    changed = only_jobs(list(scaled(JOBS, Scale(rate=rate, seed=1))))
    before, after = ({one.workload_id for one in jobs} for jobs in (JOBS, changed))
    assert len(after) == pytest.approx(rate * len(before), abs=4.0 * (rate % 1.0) ** 0.5 * len(before) ** 0.5)
    assert len({one.job_id for one in changed}) == len(changed)
    times = [one.submit_s for one in changed]
    assert times == sorted(times)
    members = Counter(one.workload_id for one in JOBS)
    for workload, number in Counter(one.workload_id for one in changed).items():
        assert number == members[workload.partition("-c")[0]]
    assert changed == only_jobs(list(scaled(JOBS, Scale(rate=rate, seed=1))))
    if rate == 1.0:
        assert changed == JOBS


def test_copies_of_copies_have_names_of_their_own() -> None:
    twice = list(scaled([job("a")], Scale(rate=2.0)))
    found = only_jobs(list(scaled(scaled(twice, Scale(rate=2.0)), Scale(rate=3.0))))
    assert len({one.job_id for one in found}) == len({one.workload_id for one in found}) == 12


def test_a_description_stays_though_the_first_job_is_cut_off_or_comes_before_it() -> None:
    described = TraceMetadata({"workloadId": "w"})
    trials = [job(f"t{number}", workload_id="w", submit_s=100.0 * number) for number in range(3)]
    orders: tuple[list[TraceLine], ...] = ([described, *trials], [*trials, described])
    for lines in orders:
        kept = list(sliced(lines, Slice(50.0)))
        assert [line for line in kept if isinstance(line, TraceMetadata)] == [described]
        assert len(only_jobs(kept)) == 2


def test_the_shortest_work_stays_work() -> None:
    (short,) = only_jobs(list(scaled([job()], Scale(duration=1e-9))))
    assert short.ideal_s == pytest.approx(1e-9 * job().ideal_s)


def test_copies_come_within_the_spread_and_whole_gangs_at_once() -> None:
    gang = [job(f"m{number}", workload_id="g", gang=True, submit_s=100.0) for number in range(3)]
    copies = [one for one in only_jobs(list(scaled(gang, Scale(rate=4.0, spread_s=60.0)))) if "-c" in one.job_id]
    assert len(copies) == 9
    for copy in ("-c1", "-c2", "-c3"):
        times = {one.submit_s for one in copies if one.workload_id == f"g{copy}"}
        assert len(times) == 1
        assert 100.0 <= times.pop() <= 160.0


def test_longer_jobs_have_more_work() -> None:
    (longer,) = only_jobs(list(scaled([job()], Scale(duration=2.5))))
    assert longer.ideal_s == pytest.approx(2.5 * job().ideal_s)


@pytest.mark.parametrize("size", [0.1, 0.5, 1.5, 3.0])
def test_larger_jobs_take_as_long(size: float) -> None:
    profile = JobProfile(cpu_utilization=0.5, gpu_utilization=0.5)
    requests = {"cpu": "3", "memory": "10Gi", "nvidia.com/gpu": "2", "ephemeral-storage": "1Gi"}
    before = job(requests=requests, profile=profile, cpu_units=150.0, gpu_units=100.0)
    share = replace(
        before,
        job_id="b",
        requests=requests | {"nvidia.com/gpu": "1"},
        annotations={"alibabacloud.com/gpu-milli": "300"},
        gpu_units=15.0,
    )
    whole, shared = only_jobs(list(scaled([before, share], Scale(size=size))))
    assert whole.shape.cores == pytest.approx(3.0 * size)
    assert whole.shape.memory_gib == pytest.approx(10.0 * size, abs=1e-3)
    assert whole.shape.gpus == max(1, round(2 * size))
    assert shared.shape.gpus == 1
    assert shared.shape.gpu_share == pytest.approx(min(1.0, 0.3 * size))
    assert whole.ideal_s == pytest.approx(100.0)
    assert shared.ideal_s == pytest.approx(100.0)
    assert whole.requests["ephemeral-storage"] == "1Gi"


@pytest.mark.parametrize(
    "make",
    [
        lambda: Slice(-1.0),
        lambda: Slice(10.0, 10.0),
        lambda: Scale(rate=-1.0),
        lambda: Scale(rate=1e9),
        lambda: Scale(duration=0.0),
        lambda: Scale(size=float("nan")),
    ],
)
def test_what_cannot_be_is_refused(make: Any) -> None:
    with pytest.raises(InvalidQuantityError):
        make()


def test_a_description_counts_everything() -> None:
    profile = JobProfile(cpu_utilization=0.5, gpu_utilization=0.5)
    gpu = {"cpu": "2", "nvidia.com/gpu": "2"}
    jobs = [
        job("a", workload_type="x", submit_s=0.0),  # 4 cores for 100 s
        job("b", workload_type="x", submit_s=50.0, annotations={"joulie.io/workload-class": "performance"}),
        *(
            job(f"g{number}", workload_type="y", workload_id="g", gang=True, requests=gpu, submit_s=100.0)
            for number in range(2)
        ),
        job(
            "s",
            workload_type="y",
            submit_s=200.0,
            requests={"cpu": "1", "amd.com/gpu": "1"},
            annotations={"alibabacloud.com/gpu-milli": "500"},
            profile=profile,
            cpu_units=0.0,
            gpu_units=900.0,
        ),
    ]
    found = TraceCounter.from_jobs(jobs).description()
    assert (found.jobs, found.workloads, found.gangs, found.largest_gang) == (5, 4, 1, 2)
    assert (found.performance_jobs, found.shared_gpu_jobs) == (1, 1)
    assert found.gpus_of_jobs == {0: 2, 1: 1, 2: 2}
    assert found.gpu_resources == {"amd.com/gpu": 1, "nvidia.com/gpu": 2}
    assert (found.first_submit_s, found.last_submit_s) == (0.0, 200.0)
    assert sum(found.arrivals) == 5
    assert found.duration_s is not None
    assert found.duration_s.max == pytest.approx(3600.0)
    assert found.core_hours == pytest.approx((4 * 100 + 4 * 100 + 2 * 2 * 200 + 3600) / 3600.0)
    assert found.gpu_hours == pytest.approx((2 * 2 * 200 + 0.5 * 3600) / 3600.0)
    assert found.cores.peak == 8.0
    # 4 cores to 50 s, 8 to 100 s, then 8 (one x, two y) to 150 s, 4 to 200 s.
    assert found.cores.mean == pytest.approx((4 * 50 + 8 * 50 + 8 * 50 + 4 * 50) / 200.0)
    assert found.gpus.peak == 4.5
    x, y = found.families[1], found.families[0]
    assert (x.family, x.jobs, x.workloads, x.gangs, x.mean_cores, x.mean_gpus) == ("x", 2, 2, 0, 4.0, 0.0)
    assert (y.family, y.jobs, y.workloads, y.gangs) == ("y", 3, 2, 1)


def test_a_workload_of_two_families_is_one_workload() -> None:
    pods = [job("a", workload_id="w", workload_type="x"), job("b", workload_id="w", workload_type="y")]
    assert TraceCounter.from_jobs(pods).description().workloads == 1


def test_an_empty_trace_has_no_durations_and_no_load() -> None:
    found = TraceCounter.from_jobs([]).description()
    assert (found.jobs, found.first_submit_s, found.duration_s, found.cores.mean) == (0, None, None, None)
    assert found.cores.peak == 0.0
