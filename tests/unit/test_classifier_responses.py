"""What is learned of a workload from changes of caps: which changes count, whose pods, and whose cap it was."""

import pytest
from prometheus_client import CollectorRegistry

from joulie.apps.operator.classifier.metrics import ClassifierMetrics
from joulie.apps.operator.classifier.responses import (
    SETTLING_S,
    WINDOW_S,
    CapResponses,
    Change,
    Depths,
    Responses,
    _by_node,
    responses_to,
    throughput,
)
from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie.domain.power.gpu import operate_gpu
from joulie.domain.signal import Reading
from joulie.domain.workload import Level
from joulie_lab.apps.simulator.main import build_world
from joulie_lab.apps.simulator.settings import SimulatorSettings
from joulie_lab.apps.simulator.world import Place
from joulie_lab.simulation.job_response import throughput_model
from joulie_lab.simulation.live.jobs import Activity, RunningPod
from joulie_lab.simulation.live.nodes import NodeSpec

START_S = 1_800_000_000.0
STEP_S = 30.0
UNCAPPED, CPU_CAPPED, BOTH_CAPPED = Depths(0.0, 0.0), Depths(0.4, 0.0), Depths(0.4, 0.4)


def change(before=UNCAPPED, after=CPU_CAPPED):
    return Change(START_S, START_S + 30.0, before, after)


def rates(before, after, noise=0.0):
    """Before and after the change; while it settles, anything."""
    settled_s = START_S + 30.0 + SETTLING_S
    return [
        Reading(at, (before if at < START_S else after if at >= settled_s else 1e6) + noise * (index % 2))
        for index in range(-20, 25)
        if (at := START_S + STEP_S * index) <= change().due_s
    ]


@pytest.mark.parametrize(("after", "level"), [(70.0, Level.HIGH), (92.0, Level.MEDIUM), (99.0, Level.LOW)])
def test_the_change_itself_does_not_count_nor_what_settles(after, level):
    found = responses_to(change(), rates(100.0, after), gpus=False)
    assert found.cpu is not None
    assert (found.cpu.level, found.gpu) == (level, None)
    assert found.cpu.slowdown == pytest.approx((1.0 - after / 100.0) / 0.4)


def test_a_cap_that_is_lifted_tells_the_same():
    found = responses_to(change(CPU_CAPPED, UNCAPPED), rates(70.0, 100.0), gpus=False)
    assert found.cpu is not None
    assert found.cpu.slowdown == pytest.approx(0.75)


def test_caps_of_gpus_say_nothing_of_workloads_without():
    found = responses_to(change(UNCAPPED, BOTH_CAPPED), rates(100.0, 70.0), gpus=False)
    assert found.cpu is not None
    assert (found.cpu.level, found.gpu) == (Level.HIGH, None)
    only_gpu = responses_to(change(UNCAPPED, Depths(0.0, 0.4)), rates(100.0, 70.0), gpus=False)
    assert only_gpu == Responses()


def test_trap_of_two_caps_at_once_nobody_knows_which_it_was():
    both = change(UNCAPPED, BOTH_CAPPED)
    assert responses_to(both, rates(100.0, 70.0), gpus=True) == Responses(None, None)
    hardly = responses_to(both, rates(100.0, 99.5), gpus=True)
    assert hardly.cpu is not None
    assert hardly.gpu is not None
    assert (hardly.cpu.level, hardly.gpu.level) == (Level.LOW, Level.LOW), "neither slows more than both"


class Pod:
    def __init__(self, name, node="n1", since_s=START_S - WINDOW_S, terminating=False):
        self.namespace, self.name, self.node_name = "default", name, node
        self.running_since_s, self.terminating = since_s, terminating


def judged(*pods):
    return {node: [pod.name for pod in there] for node, there in _by_node(pods, {"n1": change(), "n2": change()})}


def test_pods_count_that_ran_through_the_windows_and_nobody_beside_one_that_did_not():
    assert judged(Pod("a"), Pod("b"), Pod("c", "n2"), Pod("elsewhere", "n3")) == {"n1": ["a", "b"], "n2": ["c"]}
    assert judged(Pod("a"), Pod("new", since_s=START_S - WINDOW_S + 1.0), Pod("c", "n2")) == {"n2": ["c"]}
    assert judged(Pod("a"), Pod("going", terminating=True)) == {}
    assert judged(Pod("a"), Pod("waiting", since_s=None)) == {}


def test_throughput_is_of_the_times_that_all_pods_are_known_at():
    times_s = [START_S - WINDOW_S - 30.0, START_S - 60.0, START_S - 30.0, START_S + 300.0, START_S + 5000.0]
    one = dict.fromkeys(times_s, 2.0)
    two = {START_S - 30.0: 3.0, START_S + 300.0: 1.0, START_S + 5000.0: 1.0}
    courses = {("default", "a"): one, ("default", "b"): two}
    assert throughput([Pod("a"), Pod("b")], change(), courses) == [(START_S - 30.0, 5.0), (START_S + 300.0, 3.0)]
    assert throughput([Pod("a"), Pod("c")], change(), courses) == []


class Stage:
    """Nodes whose caps a test sets."""

    def __init__(self):
        self.responses = CapResponses(None, "work", ClassifierMetrics(CollectorRegistry()))
        self.now_s = START_S

    def note(self, depths, passed_s=STEP_S):
        self.now_s += passed_s
        self.responses._record_changes(depths, self.now_s)
        return self.responses._pending


def test_a_change_counts_from_when_the_node_was_last_seen_without_it():
    stage = Stage()
    assert stage.note({"n1": UNCAPPED}) == {}
    seen_s = stage.now_s
    assert stage.note({"n1": CPU_CAPPED, "new": CPU_CAPPED}) == {
        "n1": Change(seen_s, seen_s + STEP_S, UNCAPPED, CPU_CAPPED)
    }


def test_changes_that_follow_each_other_tell_nothing():
    stage = Stage()
    stage.note({"n1": UNCAPPED})
    assert stage.note({"n1": CPU_CAPPED})
    assert stage.note({"n1": UNCAPPED}) == {}, "the window after the first one is spoilt"
    assert stage.note({"n1": CPU_CAPPED}) == {}, "and so is that before the next"
    stage.note({"n1": CPU_CAPPED}, WINDOW_S)
    assert stage.note({"n1": UNCAPPED})


def test_nodes_that_go_are_forgotten():
    stage = Stage()
    stage.note({"n1": UNCAPPED})
    stage.note({"n1": CPU_CAPPED})
    assert stage.note({}) == {}
    assert (stage.responses._changed_s, stage.responses._depths) == ({}, {})


def test_a_simulated_gpu_job_is_found_as_sensitive_as_its_physics_is():
    settings = SimulatorSettings()
    made = build_world(settings)
    gpu = BUILTIN_CATALOGUE.gpu("NVIDIA H100 NVL").model
    cpu = BUILTIN_CATALOGUE.cpu("AMD EPYC 9654").model
    assert gpu is not None
    assert cpu is not None
    made.set_nodes({NodeSpec(name, cpu, 2, 192.0, gpu, 8): Place() for name in ("train", "serve")})
    for name, busy in (("train", 1.0), ("serve", 0.3)):
        made.workload.put(RunningPod(f"team/{name}", name, 8.0, 1.0, Activity(0.2, gpu_util=busy)))
    courses = {("team", "train"): {}, ("team", "serve"): {}}
    for index in range(-20, 25):
        if index == 0:
            for node in made.node_names:
                cap = {"capWattsPerGpu": 0.6 * gpu.default_w}
                assert made.control(node, "gpu.set_power_cap_watts", cap).result == "applied"
        made.step(STEP_S)
        for (namespace, pod), course in courses.items():
            course[START_S + STEP_S * index] = made.workload.work_rates(made.fleet)[f"{namespace}/{pod}"]

    def level(name):
        pod = Pod(name)
        pod.namespace = "team"
        capped = change(UNCAPPED, Depths(0.0, 0.4))
        return responses_to(capped, throughput([pod], capped, courses), gpus=True).gpu

    train, serve = level("train"), level("serve")
    assert train is not None
    assert serve is not None
    assert (train.level, serve.level) == (Level.HIGH, Level.LOW)
    physics = operate_gpu(
        gpu.idle_w, gpu.default_w, 1.0, 0.6 * gpu.default_w, response=throughput_model("measured", gpu, settings.seed)
    )
    assert train.slowdown == pytest.approx((1.0 - physics.throughput.median) / 0.4, abs=0.02)
