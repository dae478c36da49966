"""The classifier's own rules: what a workload is, when it is due, what its use is, what is worth a write."""

import asyncio
import itertools
import math
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulie.adapters.kubernetes.api.meta import OwnerReference
from joulie.adapters.kubernetes.api.v1alpha1 import WorkloadProfileStatus
from joulie.adapters.kubernetes.pods import Owner, PodFacts, SimulatedUse
from joulie.adapters.kubernetes.requests import Requests
from joulie.adapters.kubernetes.times import rfc3339
from joulie.adapters.prometheus.readings import GpuUse
from joulie.apps.operator.classifier.decide import (
    Conclusion,
    Due,
    Schedule,
    WorkloadMemory,
    classification_of,
    conclude,
    due,
    is_waiting,
    status_to_write,
    updated_memory,
)
from joulie.apps.operator.classifier.owners import OwnerFacts
from joulie.apps.operator.classifier.usage import Basis, ClusterUsage, SimulatedUsage, use_of
from joulie.apps.operator.classifier.workloads import combined_hints, workload_of
from joulie.domain.policy import PodPhase, WorkloadClass
from joulie.domain.profiles.profile import EnergyUse, Hints, Use
from joulie.domain.profiles.rules import METRICS_MISSING, classify
from joulie.domain.usage import PodUsage
from joulie.domain.workload import Level

WINDOW_S, PERIOD_S, NOW_S = 600.0, 900.0, 1_800_000_000.0
RHYTHM = Schedule(WINDOW_S, PERIOD_S, NOW_S)
OWNER = Owner("StatefulSet", "db")
GIB = 1024.0**3


def pod(name="db-0", *, age_s=WINDOW_S, cores=2.0, gib=4.0, gpus=0.0, **more):
    return PodFacts(
        namespace="ns", name=name, uid=f"uid-{name}", phase=PodPhase.RUNNING, node_name=more.pop("node", "n1"),
        requests=Requests(cores, gib, gpus, "NVIDIA" if gpus else None), owner=OWNER,
        running_since_s=None if age_s is None else NOW_S - age_s, **more,
    )  # fmt: skip


def workload(*pods, key=("ns", OWNER), owner=None):
    found = workload_of(key, pods or (pod(),), owner)
    assert found is not None
    return found


def usage(cores=None, gib=None, gpus=None, energy=None):
    def keyed(values):
        return {("ns", name): value for name, value in (values or {}).items()}

    memory = {name: value * GIB for name, value in (gib or {}).items()}
    return ClusterUsage(
        PodUsage(keyed(cores), keyed(memory)), keyed(gpus), keyed(energy), absent=Basis.NO_METRICS
    )  # fmt: skip


def stored(use=None, hints=None, *, age_s=0.0, at_s=NOW_S):
    conclusion = Conclusion(classify(hints or Hints(), use), Basis.MEASURED if use else Basis.HINTS)
    written = status_to_write(conclusion, None, PERIOD_S, at_s - age_s)
    assert written is not None
    return written


BUSY = Use(cpu_util_pct=90.0, memory_pressure_pct=20.0)


# ---- workloads


def test_a_workload_goes_with_what_its_pods_say_or_with_what_is_known_of_itself():
    controller = OwnerReference(api_version="example.com/v1", kind="Train", name="t", uid="u1")
    train = ("ns", Owner("Train", "t"))
    assert workload(pod(controller=controller), key=train).reference == controller
    between = OwnerReference(api_version="apps/v1", kind="ReplicaSet", name="web-1", uid="u2")
    web = ("ns", Owner("Deployment", "web"))
    assert workload(pod(controller=between), key=web).reference is None
    known = OwnerFacts("apps/v1", "u3", Hints())
    assert workload(pod(controller=between), key=web, owner=known).reference == OwnerReference(
        api_version="apps/v1", kind="Deployment", name="web", uid="u3"
    )
    assert workload(pod(), key=("ns", Owner("Pod", "db-0"))).reference.uid == "uid-db-0"


def test_only_pods_that_have_not_ended_make_a_workload():
    assert workload_of(("ns", OWNER), [pod(terminating=True)], None) is None
    assert workload_of(("ns", OWNER), [], None) is None
    assert workload_of(("ns", Owner("Node", "n1")), [pod()], None) is None
    ended = msgspec.structs.replace(pod("done"), phase=PodPhase.FINISHED)
    assert workload(ended, pod("live")).pods == (pod("live"),)


def test_one_node_or_none():
    assert workload(pod("a"), pod("b")).node_name == "n1"
    assert workload(pod("a"), pod("b", node="n2")).node_name is None
    assert workload(pod("a", node="")).node_name is None


def test_the_strictest_of_the_pods_counts_and_pods_win_over_their_workload():
    strict = Hints(WorkloadClass.PERFORMANCE, False, Level.HIGH, None)
    lax = Hints(WorkloadClass.STANDARD, True, Level.LOW, Level.LOW)
    assert combined_hints([lax, strict, Hints()], Hints()) == Hints(
        WorkloadClass.PERFORMANCE, False, Level.HIGH, Level.LOW
    )
    assert combined_hints([Hints(reschedulable=False)], lax) == Hints(
        WorkloadClass.STANDARD, False, Level.LOW, Level.LOW
    )
    assert combined_hints([Hints()], Hints()) == Hints()


# ---- use


def test_use_is_the_sum_over_what_is_requested():
    two = workload(pod("a", cores=3.0), pod("b", cores=1.0))
    found = use_of(two, usage({"a": 1.0, "b": 1.0}, {"a": 4.0, "b": 2.0}), WINDOW_S, NOW_S)
    assert found == Use(cpu_util_pct=50.0, memory_pressure_pct=75.0)


def test_pods_that_were_not_measured_count_on_neither_side():
    two = workload(pod("a"), pod("b"))
    found = use_of(two, usage({"a": 1.0}), WINDOW_S, NOW_S)
    assert found == Use(cpu_util_pct=50.0)
    assert use_of(two, usage(), WINDOW_S, NOW_S) is None
    assert use_of(two, usage(gib={"a": 1.0}), WINDOW_S, NOW_S) is None  # memory alone says nothing


def test_without_a_request_a_pod_counts_for_one_core_and_no_memory():
    found = use_of(workload(pod(cores=0.0, gib=0.0)), usage({"db-0": 0.4}, {"db-0": 1.0}), WINDOW_S, NOW_S)
    assert found == Use(cpu_util_pct=40.0)


def test_memory_is_measured_against_the_limit_and_use_above_what_is_requested_is_all():
    one = workload(pod(gib=1.0, memory_limit_gib=4.0))
    assert use_of(one, usage({"db-0": 7.0}, {"db-0": 3.0}), WINDOW_S, NOW_S) == Use(
        cpu_util_pct=100.0, memory_pressure_pct=75.0
    )


def test_young_pods_count_only_where_there_are_no_others():
    young, old = pod("young", age_s=WINDOW_S - 0.1), pod("old", age_s=WINDOW_S)
    busy = usage({"young": 2.0, "old": 0.5})
    assert use_of(workload(young, old), busy, WINDOW_S, NOW_S).cpu_util_pct == 25.0
    assert use_of(workload(young), busy, WINDOW_S, NOW_S).cpu_util_pct == 100.0


def test_gpus_are_averaged_by_device():
    two = workload(pod("a", gpus=1.0), pod("b", gpus=3.0), pod("c", gpus=1.0))
    gpus = {"a": GpuUse(100.0, 40.0, 1), "b": GpuUse(20.0, None, 3), "c": GpuUse(None, None, 1)}
    found = use_of(two, usage(gpus=gpus), WINDOW_S, NOW_S)
    assert (found.gpu_util_pct, found.gpu_memory_activity_pct, found.holds_gpus) == (40.0, 40.0, True)


def test_gpus_that_nobody_measures_are_held_all_the_same():
    found = use_of(workload(pod(gpus=1.0)), usage({"db-0": 1.0}), WINDOW_S, NOW_S)
    assert found == Use(cpu_util_pct=50.0, holds_gpus=True)


def test_energies_are_summed_over_the_pods_whose_memory_was_measured():
    two = workload(pod("a"), pod("b"), pod("c"))
    energy = {"a": EnergyUse(10.0, 4.0, None), "b": EnergyUse(20.0, 6.0, 5.0), "c": EnergyUse(1000.0)}
    found = use_of(two, usage({"a": 1.0}, energy=energy), WINDOW_S, NOW_S)
    assert found.energy == EnergyUse(30.0, 10.0, 5.0)
    assert use_of(workload(pod("c")), usage({"c": 1.0}, energy=energy), WINDOW_S, NOW_S).energy == EnergyUse(1000.0)


@pytest.mark.parametrize("noise_pct", [0.0, 30.0])
def test_simulated_use_is_what_the_annotations_say_give_or_take_noise(noise_pct):
    played = [workload(pod(f"p-{index}", gpus=2.0, simulated=SimulatedUse(60.0, 90.0, 30.0))) for index in range(200)]
    found = asyncio.run(SimulatedUsage(noise_pct).read(played))
    again = asyncio.run(SimulatedUsage(noise_pct).read(played))
    assert found == again
    uses = [use_of(one, found, WINDOW_S, NOW_S) for one in played]
    assert all(use.gpu_util_pct <= 100.0 and use.holds_gpus for use in uses)
    mean_pct = sum(use.cpu_util_pct for use in uses) / len(uses)
    assert mean_pct == pytest.approx(60.0, abs=1e-9 if not noise_pct else 5.0)
    assert (len({use.cpu_util_pct for use in uses}) > 1) == bool(noise_pct)
    assert use_of(workload(pod("silent")), found, WINDOW_S, NOW_S) is None


# ---- due

HINTED = WorkloadMemory(Hints())


@pytest.mark.parametrize(
    ("age_s", "status", "remembered", "expected"),
    [
        (None, None, None, Due.HINTS),
        (0.0, None, None, Due.HINTS),
        (WINDOW_S - 0.1, None, None, Due.HINTS),
        (WINDOW_S, None, None, Due.USE),
        (WINDOW_S, WorkloadProfileStatus(), None, Due.USE),
        (0.0, WorkloadProfileStatus(), HINTED, Due.HINTS),
        (0.0, stored(), HINTED, Due.NOTHING),
        (0.0, stored(), None, Due.HINTS),
        (0.0, stored(), WorkloadMemory(Hints(reschedulable=True)), Due.HINTS),
        (WINDOW_S, stored(), HINTED, Due.USE),
        (WINDOW_S, stored(), None, Due.USE),
        (WINDOW_S, stored(), WorkloadMemory(Hints(), NOW_S), Due.NOTHING),
        (WINDOW_S, stored(), WorkloadMemory(Hints(), NOW_S - PERIOD_S), Due.USE),
        (WINDOW_S, stored(BUSY), None, Due.NOTHING),
        (WINDOW_S, stored(BUSY), WorkloadMemory(Hints(reschedulable=True), NOW_S, NOW_S), Due.USE),
        (None, stored(BUSY), WorkloadMemory(Hints(reschedulable=True), NOW_S, NOW_S), Due.USE),
        (WINDOW_S, stored(BUSY), WorkloadMemory(Hints(), NOW_S - PERIOD_S, NOW_S), Due.USE),
        (None, stored(BUSY), WorkloadMemory(Hints(), NOW_S - PERIOD_S, NOW_S), Due.NOTHING),
        (0.0, stored(BUSY), WorkloadMemory(Hints(), NOW_S - PERIOD_S, NOW_S), Due.USE),
    ],
)
def test_what_a_workload_needs(age_s, status, remembered, expected):
    assert due(workload(pod(age_s=age_s)), status, remembered, RHYTHM, NOW_S) is expected


@pytest.mark.slow
@settings(max_examples=30)
@given(st.text(min_size=1, max_size=20), st.floats(5.0, 200.0), st.integers(2, 6))
def test_every_workload_is_due_once_a_period_whatever_the_cycle(name, cycle_s, periods):
    one = workload(pod(age_s=1e7), key=("ns", Owner("Job", name)))
    remembered, now_s, seen = WorkloadMemory(Hints(), NOW_S, NOW_S), NOW_S, []
    while now_s < NOW_S + periods * PERIOD_S:
        now_s += cycle_s
        if due(one, stored(BUSY), remembered, RHYTHM, now_s) is Due.USE:
            remembered = WorkloadMemory(Hints(), now_s, now_s)
            seen.append(now_s)
    assert abs(len(seen) - periods) <= 1
    assert all(abs(later - earlier - PERIOD_S) <= cycle_s for earlier, later in itertools.pairwise(seen))


@pytest.mark.slow
def test_moments_are_spread_evenly():
    parts = [0] * 10
    for index in range(1000):
        one = workload(pod(age_s=1e7), key=("ns", Owner("Job", f"job-{index:05}")))
        for part in range(10):
            since_s, until_s = NOW_S + part * 90.0, NOW_S + (part + 1) * 90.0
            remembered = WorkloadMemory(Hints(), since_s, since_s)
            parts[part] += due(one, stored(BUSY), remembered, RHYTHM, until_s) is Due.USE
    assert sum(parts) == 1000
    assert all(70 <= count <= 130 for count in parts)


# ---- conclusions


def test_what_is_measured_is_classified_and_remembered():
    found = conclude(workload(), None, None, usage({"db-0": 1.8}), RHYTHM, NOW_S)
    assert (found.basis, found.classification) == (Basis.MEASURED, classify(Hints(), Use(cpu_util_pct=90.0)))
    assert updated_memory(workload(), None, found, NOW_S, asked=True) == WorkloadMemory(Hints(), NOW_S, NOW_S)


def test_without_metrics_hints_remain_and_why_is_said():
    for source, basis, answered_s in (
        (usage(), Basis.NO_METRICS, NOW_S),
        (ClusterUsage(absent=Basis.UNAVAILABLE), Basis.UNAVAILABLE, None),
        (ClusterUsage(), Basis.HINTS, NOW_S),
    ):
        found = conclude(workload(), stored(), HINTED, source, RHYTHM, NOW_S)
        assert (found.basis, found.classification.confidence) == (basis, 0.3)
        assert updated_memory(workload(), HINTED, found, NOW_S, asked=True).answered_s == answered_s


@pytest.mark.parametrize(
    ("measured_ago_s", "confidence", "basis"),
    [(PERIOD_S - 1.0, 0.5, None), (PERIOD_S, 0.4, Basis.NO_METRICS), (10 * PERIOD_S, 0.3, Basis.NO_METRICS)],
)
def test_confidence_falls_by_the_time_since_it_was_measured(measured_ago_s, confidence, basis):
    schedule = Schedule(WINDOW_S, PERIOD_S, NOW_S - 1e6)
    # Written long ago, but measured since without news.
    status = stored(BUSY, age_s=50 * PERIOD_S)
    remembered = WorkloadMemory(Hints(), None, NOW_S - measured_ago_s)
    found = conclude(workload(pod(age_s=1e6)), status, remembered, usage(), schedule, NOW_S)
    assert (found.classification.confidence, found.basis) == (confidence, basis)
    assert found.classification.cpu == classification_of(status).cpu


@pytest.mark.parametrize(
    ("since_s", "age_s"),
    [(NOW_S, 1e6), (NOW_S - 1e6, 10.0), (NOW_S - 1e6, None)],
    ids=["a new leader", "pods that just started", "pods that do not run"],
)
def test_time_in_which_nobody_could_have_measured_takes_no_confidence(since_s, age_s):
    status = stored(BUSY, age_s=1e6)
    found = conclude(workload(pod(age_s=age_s)), status, None, usage(), Schedule(WINDOW_S, PERIOD_S, since_s), NOW_S)
    assert (found.classification.confidence, found.basis) == (0.5, None)
    assert status_to_write(found, status, PERIOD_S, NOW_S) is None


def test_what_is_stored_is_read_back_as_it_was_concluded():
    for hints in (Hints(), Hints(WorkloadClass.PERFORMANCE, False, Level.LOW, Level.HIGH)):
        for use in (None, BUSY, Use(gpu_util_pct=93.0, holds_gpus=True, gpu_memory_activity_pct=70.0)):
            assert classification_of(stored(use, hints)) == classify(hints, use)


def test_words_of_other_versions_count_as_not_said():
    odd = msgspec.structs.replace(stored(BUSY), cpu=msgspec.structs.replace(stored(BUSY).cpu, bound="sideways"))
    assert classification_of(odd).cpu.bound is None


# ---- what is worth a write


@pytest.mark.parametrize(
    ("use", "age_s", "written"),
    [
        (BUSY, 0.0, False),
        (Use(cpu_util_pct=94.9, memory_pressure_pct=24.0), 0.0, False),
        (Use(cpu_util_pct=95.0, memory_pressure_pct=20.0), 0.0, True),
        (Use(cpu_util_pct=85.0, memory_pressure_pct=20.0), 0.0, True),
        (Use(cpu_util_pct=90.0, memory_pressure_pct=50.0), 0.0, True),
        (Use(cpu_util_pct=90.0, memory_pressure_pct=20.0, holds_gpus=True), 0.0, True),
        (BUSY, 4 * PERIOD_S - 1.0, False),
        (BUSY, 4 * PERIOD_S, True),
    ],
    ids=["same", "noise", "more", "less", "bound", "gpu", "young", "old"],
)
def test_only_news_and_old_age_are_written(use, age_s, written):
    found = Conclusion(classify(Hints(), use), Basis.MEASURED)
    status = status_to_write(found, stored(BUSY, age_s=age_s), PERIOD_S, NOW_S)
    assert (status is not None) == written
    if status is not None:
        assert status.last_updated == rfc3339(NOW_S)


def test_hints_are_not_written_for_their_age():
    found = Conclusion(classify(Hints(), None), Basis.HINTS)
    assert status_to_write(found, stored(age_s=1e7), PERIOD_S, NOW_S) is None


def test_a_condition_keeps_the_time_of_its_last_change():
    before = stored(age_s=100.0)
    other = status_to_write(Conclusion(classify(Hints(), None), Basis.NO_METRICS), before, PERIOD_S, NOW_S)
    assert other.conditions[0].last_transition_time == before.conditions[0].last_transition_time
    measured = status_to_write(Conclusion(classify(Hints(), BUSY), Basis.MEASURED), other, PERIOD_S, NOW_S)
    assert measured.conditions[0].last_transition_time == rfc3339(NOW_S)
    assert math.isclose(measured.confidence, 0.5)


def test_what_already_says_that_it_waits_for_prometheus_is_left_alone():
    waiting = status_to_write(Conclusion(classify(Hints(), None), Basis.UNAVAILABLE), None, PERIOD_S, NOW_S)
    assert is_waiting(workload(), waiting, HINTED)
    assert not is_waiting(workload(), waiting, None)
    assert not is_waiting(workload(pod(reschedulable=False)), waiting, HINTED)
    assert not is_waiting(workload(), stored(), HINTED)
    assert not is_waiting(workload(), stored(BUSY), HINTED)
    assert not is_waiting(workload(), None, HINTED)


def test_while_confidence_falls_a_prometheus_that_comes_and_goes_is_no_news():
    losing = replace(classify(Hints(), BUSY), confidence=0.4, reason=METRICS_MISSING)
    before = status_to_write(Conclusion(losing, Basis.NO_METRICS), stored(BUSY), PERIOD_S, NOW_S)
    assert before is not None
    assert status_to_write(Conclusion(losing, Basis.UNAVAILABLE), before, PERIOD_S, NOW_S) is None
    # Where nothing was ever measured, it says why.
    hints = classify(Hints(), None)
    assert status_to_write(Conclusion(hints, Basis.UNAVAILABLE), stored(), PERIOD_S, NOW_S) is not None
