"""What is generated has the shares, sizes and tails that the sources state; seeds are fixed."""

from collections import Counter, defaultdict
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from scipy.stats import chisquare, kstest, norm, poisson

from joulie.domain.quantities import InvalidQuantityError
from joulie_lab.simulation.trace import TraceJob
from joulie_lab.simulation.workloads.arrivals import arrivals_s, draw_episodes
from joulie_lab.simulation.workloads.generator import generate
from joulie_lab.simulation.workloads.settings import (
    Arrivals,
    Bursts,
    DebugEval,
    Dips,
    Durations,
    Families,
    GeneratorSettings,
    HpoExperiment,
    Preprocess,
    Range,
    Surges,
)

CALM = Bursts(per_day=0.0)
SIGNIFICANT = 0.001
"""Seeds are fixed: a test that passes does so for ever, and a wrong share of one in twenty is seen."""


@cache
def jobs() -> list[TraceJob]:
    return list(generate(GeneratorSettings(), seed=5, hours=60.0))


@cache
def workloads() -> dict[str, list[TraceJob]]:
    found: defaultdict[str, list[TraceJob]] = defaultdict(list)
    for job in jobs():
        found[job.workload_id].append(job)
    return dict(found)


def gpus(members: list[TraceJob]) -> int:
    """GPUs of a workload, or of one of its trials."""
    sizes = [member.shape.gpus for member in members]
    return max(sizes) if members[0].role == "trial" else sum(sizes)


def check_shares(counted: Counter[str] | Counter[int], shares: dict[str, float] | dict[int, float]) -> None:
    assert set(counted) == set(shares)
    total = sum(counted.values())
    expected = [total * share for share in shares.values()]
    assert chisquare([counted[key] for key in shares], expected).pvalue > SIGNIFICANT  # type: ignore[index]


def arrivals_by_hour(arrivals: Arrivals, days: int) -> np.ndarray:
    times_s = np.array(list(arrivals_s(arrivals, np.random.default_rng(3), days * 86400.0)))
    assert np.all(np.diff(times_s) >= 0.0)
    return np.bincount((times_s // 3600.0).astype(int) % 24, minlength=24) / days


@pytest.mark.slow
def test_families_have_the_shares_of_the_spec() -> None:
    families = Counter(members[0].workload_type for members in workloads().values())
    gpu = {
        "debug_eval": 0.45,
        "single_gpu_training": 0.25,
        "distributed_training": 0.14,
        "parameter_server_training": 0.07,
        "hpo_experiment": 0.09,
    }
    check_shares(Counter({name: families[name] for name in gpu}), gpu)
    cpu = {"preprocess": 0.75, "analytics": 0.25}
    check_shares(Counter({name: families[name] for name in cpu}), cpu)
    with_gpus = sum(families[name] for name in gpu)
    check_shares(Counter(gpu=with_gpus, cpu=families.total() - with_gpus), {"gpu": 0.75, "cpu": 0.25})


def test_workloads_have_the_numbers_of_gpus_of_the_spec() -> None:
    sizes = Counter(gpus(members) for members in workloads().values() if gpus(members))
    check_shares(sizes, {1: 0.80, 2: 0.10, 4: 0.07, 8: 0.03})


def test_a_share_of_workloads_is_performance_as_a_whole() -> None:
    classes = [{member.is_performance for member in members} for members in workloads().values()]
    assert all(len(found) == 1 for found in classes)
    check_shares(Counter(str(found.pop()) for found in classes), {"True": 0.25, "False": 0.75})


def test_durations_are_log_normal_within_their_clamp() -> None:
    for name, family in vars(Families()).items():
        # The members of a gang share one duration: one of them counts.
        firsts = [
            m for members in workloads().values() for m in (members if members[0].role == "trial" else members[:1])
        ]
        drawn_s = np.array([job.ideal_s for job in firsts if job.workload_type == name])
        durations = family.duration
        assert drawn_s.min() >= durations.min_s * 0.999
        assert drawn_s.max() <= durations.max_s * 1.001
        inside = (drawn_s > durations.min_s * 1.01) & (drawn_s < durations.max_s * 0.99)
        low, high = (
            norm.cdf(np.log(limit_s / durations.median_s) / durations.sigma)
            for limit_s in (durations.min_s * 1.01, durations.max_s * 0.99)
        )
        place = norm.cdf(np.log(drawn_s[inside] / durations.median_s) / durations.sigma)
        assert kstest((place - low) / (high - low), "uniform").pvalue > SIGNIFICANT, name
        at_ends = len(drawn_s) - int(inside.sum())
        assert at_ends == pytest.approx(len(drawn_s) * (1.0 - high + low), abs=4.0 * np.sqrt(len(drawn_s)))


@pytest.mark.slow
def test_gpu_jobs_last_as_long_as_those_of_pai() -> None:
    """Quantiles and mean of the 100,000 jobs that GAIA publishes, min; each is at least five minutes long."""
    settings = GeneratorSettings(families=Families(hpo_experiment=HpoExperiment(trials=Range(1, 1))), gpu_share=1.0)
    drawn = generate(settings, seed=11, hours=100.0)
    seen: set[str] = set()
    one_each = [job for job in drawn if not (job.workload_id in seen or seen.add(job.workload_id))]  # type: ignore[func-returns-value]
    minutes = np.array([job.ideal_s for job in one_each]) / 60.0
    long = minutes[minutes >= 5.0]
    found = [*np.quantile(long, (0.5, 0.75, 0.9, 0.99)), long.mean()]
    np.testing.assert_allclose(found, [40.0, 126.0, 332.0, 1444.0, 136.0], rtol=0.15)


def test_gpus_and_cores_are_used_as_the_spec_says() -> None:
    by_gpus: defaultdict[int, list[float]] = defaultdict(list)
    by_family: defaultdict[str, list[float]] = defaultdict(list)
    for members in workloads().values():
        by_gpus[gpus(members)].append(members[-1].profile.gpu_utilization)
        by_family[members[0].workload_type].append(members[0].profile.cpu_utilization)
    for number, mean in ((1, 0.52), (4, 0.45), (8, 0.59)):
        own = by_gpus[number]
        assert np.mean(own) == pytest.approx(mean, abs=4.0 * 0.07 / np.sqrt(len(own)))
    assert set(by_gpus[0]) == {0.0}
    for name, low, high in (
        ("preprocess", 0.50, 0.75),
        ("analytics", 0.75, 0.95),
        ("debug_eval", 0.20, 0.40),
        ("single_gpu_training", 0.20, 0.45),
        ("distributed_training", 0.15, 0.35),
        ("parameter_server_training", 0.20, 0.40),
    ):
        used = by_family[name]
        assert low <= min(used) < low + 0.02
        assert high - 0.02 < max(used) <= high


def test_sixteen_gpus_are_used_less() -> None:
    families = Families(debug_eval=DebugEval(share=1e9, gpus={16: 1.0}))
    drawn = generate(GeneratorSettings(families=families, gpu_share=1.0), seed=1, hours=10.0)
    assert np.mean([job.profile.gpu_utilization for job in drawn]) == pytest.approx(0.40, abs=0.02)


@pytest.mark.slow
def test_arrivals_follow_the_hours_of_the_day() -> None:
    arrivals = Arrivals(workloads_per_hour=100.0, bursts=CALM)
    factors = [0.7] * 8 + [0.95] + [1.2] * 3 + [0.85] + [1.15] * 5 + [0.85, 0.95] + [1.0] * 3 + [0.95]
    days = 12
    counts = arrivals_by_hour(arrivals, days) * days
    expected = np.array(factors) * 100.0 * days
    low, high = poisson.ppf(SIGNIFICANT / 48, expected), poisson.isf(SIGNIFICANT / 48, expected)
    assert np.all((low <= counts) & (counts <= high))
    later = arrivals_by_hour(replace(arrivals, start_h=9.0), days)
    assert later[0] == pytest.approx(120.0, rel=0.1)


def test_a_diurnal_rate_is_least_at_four_and_most_at_sixteen() -> None:
    arrivals = Arrivals(workloads_per_hour=100.0, pattern="diurnal", diurnal_amplitude=0.8, bursts=CALM)
    counts = arrivals_by_hour(arrivals, 12)
    assert counts.mean() == pytest.approx(100.0, rel=0.02)
    around_trough, around_peak = counts[3:5].mean(), counts[15:17].mean()
    assert around_trough == pytest.approx(20.0, rel=0.2)
    assert around_peak == pytest.approx(180.0, rel=0.05)


def test_episodes_begin_evenly_and_may_have_begun_before_the_trace() -> None:
    arrivals = Arrivals(bursts=Bursts(per_day=4.0, hours=6.0), dips=Dips(per_day=2.0, hours=6.0))
    days = 500
    episodes = draw_episodes(arrivals, np.random.default_rng(1), days * 86400.0)
    numbers = Counter(episode.factor for episode in episodes)
    assert numbers[arrivals.bursts.factor] == pytest.approx(4.0 * days, abs=4.0 * (4.0 * days) ** 0.5)
    assert numbers[arrivals.dips.factor] == pytest.approx(2.0 * days, abs=4.0 * (2.0 * days) ** 0.5)
    begins_s = np.array([episode.begin_s for episode in episodes])
    assert begins_s.min() < 0.0
    assert kstest((begins_s + 21600.0) / (days * 86400.0 + 21600.0), "uniform").pvalue > SIGNIFICANT
    assert all(episode.end_s - episode.begin_s == pytest.approx(21600.0) for episode in episodes)


@pytest.mark.slow
def test_bursts_dips_and_surges_change_the_rate_while_they_last() -> None:
    calm = Arrivals(workloads_per_hour=300.0, hourly_factors=(1.0,) * 24, bursts=CALM)
    end_s = 6 * 86400.0
    for arrivals, factor in (
        (replace(calm, bursts=Bursts(per_day=6.0, factor=3.0)), 3.0),
        (replace(calm, dips=Dips(per_day=6.0, factor=0.2)), 0.2),
        (replace(calm, surges=Surges(per_day=3.0, factor=1.5)), 1.5),
    ):
        episodes = draw_episodes(arrivals, np.random.default_rng(9), end_s)
        times_s = np.array(list(arrivals_s(arrivals, np.random.default_rng(9), end_s)))
        depth = sum((times_s >= one.begin_s) & (times_s < one.end_s) for one in episodes)
        lasting = np.zeros(int(end_s / 60.0), dtype=int)
        for one in episodes:
            lasting[max(0, int(one.begin_s / 60.0)) : max(0, int(one.end_s / 60.0))] += 1
        assert 10 < len(episodes) < 60
        for overlapping in (0, 1):
            per_hour = np.sum(depth == overlapping) / (np.sum(lasting == overlapping) / 60.0)
            assert per_hour == pytest.approx(300.0 * factor**overlapping, rel=0.1)


def test_gangs_have_launchers_servers_and_workers_that_end_together() -> None:
    roles: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for members in workloads().values():
        first = members[0]
        roles[first.workload_type].update(member.role for member in members)
        assert len({member.job_id for member in members}) == len(members)
        if not first.gang:
            continue
        assert all(member.gang and member.submit_s == first.submit_s for member in members)
        ideal_s = [member.ideal_s for member in members]
        assert max(ideal_s) == pytest.approx(min(ideal_s), rel=1e-3)
        workers = [member for member in members if member.role == "worker"]
        if first.workload_type == "distributed_training":
            assert [member.role for member in members[: -len(workers)]] == ["launcher"]
            assert len(workers) >= 2
        else:
            assert Counter(member.role for member in members)["ps"] == -(-len(workers) // 4)
    assert set(roles["distributed_training"]) == {"launcher", "worker"}
    assert set(roles["parameter_server_training"]) == {"ps", "worker"}
    assert set(roles["hpo_experiment"]) == {"trial"}
    trials = [len(members) for members in workloads().values() if members[0].role == "trial"]
    assert (min(trials), max(trials)) == (4, 16)


def test_rounding_does_not_lead_out_of_a_range() -> None:
    little = Range(0.0001, 0.0003)
    settings = GeneratorSettings(gpu_share=0.0, families=Families(preprocess=Preprocess(cpu_util=little)))
    drawn = [job for job in generate(settings, 1, 2.0) if job.workload_type == "preprocess"]
    assert drawn
    assert all(little.low <= job.profile.cpu_utilization <= little.high and job.ideal_s > 0.0 for job in drawn)


@pytest.mark.slow
def test_resources_sensitivities_and_rates_are_settings() -> None:
    settings = GeneratorSettings(
        gpu_resources={"nvidia.com/gpu": 1.0, "amd.com/gpu": 3.0},
        duration_scale=0.5,
        gpu_share=1.0,
        namespace="lab",
        gpu_work_rate=2.0,
    )
    drawn = list(generate(settings, seed=2, hours=20.0))
    asked = Counter(job.shape.gpu_resource for job in {job.workload_id: job for job in drawn}.values())
    check_shares(asked, {"nvidia.com/gpu": 0.25, "amd.com/gpu": 0.75})
    assert {job.namespace for job in drawn} == {"lab"}
    debug = [job for job in drawn if job.workload_type == "debug_eval"]
    assert max(job.ideal_s for job in debug) <= 2.0 * 0.5 * 1000.0 * 1.001
    assert {job.gpu_sensitivity for job in drawn if not job.shape.gpus} == {""}
    assert {job.gpu_sensitivity for job in debug} == {"medium"}


def test_the_same_seed_gives_the_same_jobs_and_families_leave_arrivals_alone() -> None:
    settings = GeneratorSettings()
    first = list(generate(settings, seed=1, hours=5.0))
    assert first == list(generate(settings, seed=1, hours=5.0))
    assert first != list(generate(settings, seed=2, hours=5.0))
    other = generate(replace(settings, gpu_share=0.0), seed=1, hours=5.0)
    assert {job.submit_s for job in other} == {job.submit_s for job in first}
    assert [job.submit_s for job in first] == sorted(job.submit_s for job in first)


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: Range(0.5, 0.4), "high"),
        (lambda: Durations(60.0, 1.0, 100.0, 50.0), "max_s"),
        (lambda: Durations(-1.0, 1.0, 1.0, 50.0), "median_s"),
        (lambda: Arrivals(hourly_factors=(1.0,)), "hourly_factors"),
        (lambda: Arrivals(diurnal_amplitude=1.5), "diurnal_amplitude"),
        (lambda: Bursts(factor=-1.0), "factor"),
        (lambda: DebugEval(share=-1.0), "share"),
        (lambda: DebugEval(gpus={0: 1.0}), "gpus"),
        (lambda: DebugEval(cores={2: 0.0}), "cores"),
        (lambda: DebugEval(cpu_util=Range(0.0, 0.5)), "cpu_util"),
        (lambda: DebugEval(io_intensity=Range(0.0, 1.5)), "io_intensity"),
        (lambda: DebugEval(members="trials", gpus={}), "gpus"),
        (lambda: DebugEval(gpu_class="fast"), "gpu_class"),
        (lambda: DebugEval(cpu_sensitivity="none"), "cpu_sensitivity"),
        (lambda: GeneratorSettings(gpu_share=1.1), "gpu_share"),
        (lambda: GeneratorSettings(gpu_resources={"intel.com/gpu": 1.0}), "gpu_resources"),
        (lambda: GeneratorSettings(gpu_util={1: 0.95}), "gpu_util"),
        (lambda: GeneratorSettings(duration_scale=0.0), "duration_scale"),
        (lambda: next(generate(GeneratorSettings(), seed=1, hours=0.0)), "hours"),
    ],
)
def test_what_cannot_be_is_refused_by_name(make: object, names: str) -> None:
    with pytest.raises(InvalidQuantityError) as error:
        make()  # type: ignore[operator]
    assert error.value.quantity == names
