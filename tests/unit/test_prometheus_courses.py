"""The course of pods' use by range queries: cores by cAdvisor, GPUs by dcgm-exporter."""

from joulie.adapters.prometheus.cadvisor import Cadvisor
from joulie.adapters.prometheus.dcgm import Dcgm
from joulie.adapters.prometheus.readings import Steps
from support.prometheus_answers import NOW_S, asked_of, matrix, vector

STEPS = Steps(NOW_S - 60.0, NOW_S, 30.0, 90.0)
POD = {"namespace": "team", "pod": "train"}


def gpu(uuid, **labels):
    return {"UUID": uuid, "gpu": "0", "job": "dcgm", "instance": "10.0.0.1:9400", **POD, **labels}


def gpus(*, util=(), engine=(), targets=()):
    answers = {"up and on": vector(*targets), "GPU_UTIL": matrix(*util), "ENGINE_ACTIVE": matrix(*engine)}
    return asked_of(answers, lambda prometheus: Dcgm(prometheus, 150.0).courses(STEPS))


def test_cores_of_all_pods_come_by_one_query():
    answer = matrix((POD, [(60, 1.0), (30, "NaN"), (0, 2.0)]), ({**POD, "pod": "absurd"}, [(0, 1e9)]), ({}, [(0, 1.0)]))
    found, queries = asked_of({"cpu_usage": answer}, lambda prometheus: Cadvisor(prometheus).courses(STEPS))
    assert found == {("team", "train"): {NOW_S - 60.0: 1.0, NOW_S: 2.0}, ("team", "absurd"): {}}
    (query,) = queries
    assert "[90s]" in query
    assert "sum by (namespace, pod)" in query


def test_gpus_of_a_pod_are_averaged_where_all_of_them_are_known():
    found, queries = gpus(util=[(gpu("GPU-1"), [(60, 90.0), (0, 80.0)]), (gpu("GPU-2"), [(30, 10.0), (0, 40.0)])])
    assert found == {("team", "train"): {NOW_S: 60.0}}
    assert len(queries) == 3


def test_trap_mig_instances_are_judged_by_their_own_engines():
    instance = gpu("GPU-1", GPU_I_ID="3")
    found, _ = gpus(util=[(instance, [(0, 100.0)])], engine=[(instance, [(0, 0.25)])])
    assert found == {("team", "train"): {NOW_S: 25.0}}


def test_a_whole_gpu_without_utilisation_has_that_of_its_engines():
    found, _ = gpus(engine=[(gpu("GPU-1"), [(30, 0.5), (0, 7.0)])])
    assert found == {("team", "train"): {NOW_S - 30.0: 50.0}}, "more than all of the time is no measurement"


def test_trap_the_exporters_own_pod_uses_no_gpu():
    found, _ = gpus(
        util=[(gpu("GPU-1"), [(0, 50.0)])], targets=[({"job": "dcgm", "instance": "10.0.0.1:9400", **POD}, 1.0)]
    )
    assert found == {}
