"""The openb trace: how it is read, inflated and changed, and where the compiled loop places its pods."""

import numpy as np
import pytest

from joulie.domain.scoring import fragmentation, sharing
from joulie_lab.adapters.published.errors import PublishedDataError
from joulie_lab.adapters.published.openb import (
    GPU_POWER,
    MODELS,
    Nodes,
    Pods,
    read_nodes,
    read_pods,
    read_reference,
)
from joulie_lab.benchmarks.gpu_sharing import baselines, policies
from joulie_lab.benchmarks.gpu_sharing.arrivals import arrivals, sample, with_named_models, with_shared_part
from joulie_lab.benchmarks.gpu_sharing.kernel import NOWHERE
from joulie_lab.benchmarks.gpu_sharing.play import Setup, place, play
from joulie_lab.benchmarks.gpu_sharing.policies import POLICIES

NODES_HEAD = "sn,cpu_milli,memory_mib,gpu,model"
PODS_HEAD = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec"


def test_nodes_and_pods_are_read():
    nodes = read_nodes([NODES_HEAD, "a,64000,1024,2,P100", "b,8000,2048,1,T4"])
    assert [column.tolist() for column in nodes] == [[64_000, 8000], [1024, 2048], [2, 1], [0, 1]]
    pods = read_pods([PODS_HEAD, "p,12000,16,1,460,", "q,1000,8,0,0,", "r,1000,8,8,1000,T4|G2"])
    assert pods.demand_milli.tolist() == [460, 0, 8000]
    assert pods.models.tolist() == [-1, -1, 1 << MODELS.index("T4") | 1 << MODELS.index("G2")]


@pytest.mark.parametrize(
    ("read", "line", "message"),
    [
        (read_nodes, "a,64000,1024,2,H100", "line 2: unknown power of GPU model 'H100'"),
        (read_nodes, "a,64000,1024,0,T4", "line 2: a node without GPUs"),
        (read_nodes, "a,64000,-1,2,T4", "line 2: memory_mib -1 is negative"),
        (read_nodes, "a,64000", "line 2: unknown power of GPU model ''"),
        (read_pods, "p,x,16,1,460,", "line 2: cpu_milli 'x' is not a whole number"),
        (read_pods, "p,12000,16,2,460,", "line 2: invalid request of 2 GPUs at 460 thousandths each"),
        (read_pods, "p,12000,16,1,0,", "line 2: invalid request of 1 GPUs at 0 thousandths"),
        (read_pods, "p,12000,16,1,1000,H100", "line 2: gpu_spec names the unknown GPU model 'H100'"),
        (read_pods, "p,12000,16,0,0,", "has no pods with GPUs"),
        (read_reference, "openb_pod_list_default,06-FGD,1.0", "line 2: not a curve"),
    ],
)
def test_a_line_that_is_no_copy_is_named(read, line, message):
    heads = {read_nodes: NODES_HEAD, read_pods: PODS_HEAD, read_reference: "workload,sc_policy,0"}
    with pytest.raises(PublishedDataError, match=message):
        read([heads[read], line])


def test_published_curves_are_means_of_seeds():
    grid = ",".join(map(str, range(131)))
    rows = [f"openb_pod_list_default,06-FGD,{','.join([value] * 131)}" for value in ("1.0", "2.0")]
    curves = read_reference([f"workload,sc_policy,{grid}", *rows, f"another,06-FGD,{','.join(['9'] * 131)}"])
    assert {name: curve.tolist() for name, curve in curves.items()} == {"FGD": [1.5] * 131}


def test_every_pod_arrives_once_before_the_trace_is_drawn_from():
    nodes, pods = sample(3)
    arriving = arrivals(pods, nodes, seed=5)
    n_pods = len(pods.gpus)
    assert sorted(arriving.pods[:n_pods]) == list(range(n_pods))
    total = pods.demand_milli[arriving.pods].sum()
    assert 1.3 * nodes.gpu_milli - 8000 < total <= 1.3 * nodes.gpu_milli
    again = arrivals(pods, nodes, seed=5)
    assert all(np.array_equal(one, other) for one, other in zip(arriving, again, strict=True))
    few = arrivals(pods, nodes, seed=5, ratio=0.5)
    assert pods.demand_milli[few.pods].sum() <= 0.5 * nodes.gpu_milli
    assert np.array_equal(few.pods, arriving.pods[: len(few.pods)])


def test_changed_traces():
    nodes, pods = sample(3)
    shared = with_shared_part(pods, 0.6, seed=1)
    part = shared.demand_milli[(shared.gpus == 1) & (shared.gpu_milli < 1000)].sum() / shared.demand_milli.sum()
    assert part == pytest.approx(0.6, abs=0.04)
    assert np.count_nonzero(shared.gpus) == np.count_nonzero(pods.gpus)
    named = with_named_models(pods, nodes, 0.5, seed=1)
    bound = named.models != -1
    assert np.mean(bound[pods.gpus > 0]) == pytest.approx(0.5, abs=0.08)
    assert not bound[pods.gpus == 0].any()
    # Eight GPUs are found on two models only.
    large = bound & (pods.gpus == 8)
    assert set(named.models[large]) <= {1 << MODELS.index("G2"), 1 << MODELS.index("G3")}


def tiny():
    """A cluster of eight nodes and pods that overfill it."""
    nodes, pods = sample(7)
    return nodes.of(np.array([0, 1, 26, 27, 58, 64, 65, 68])), pods


@pytest.mark.slow
@pytest.mark.parametrize("name", [*(name for name in POLICIES if name not in ("FGD", "joulie-packed")), "drawn"])
def test_pods_are_placed_as_by_scoring_all_nodes_anew(name):
    """The compiled loop, which keeps scores, against plain Python, which does not."""
    policy = POLICIES.get(name) or policies.Policy(policies.FGD, "random")
    nodes, pods = tiny()
    setup = Setup.of(nodes, with_named_models(pods, nodes, 0.2, seed=1))
    arriving = arrivals(setup.pods, nodes, seed=2)
    course = place(setup, policy, arriving)
    assert course.node.tolist() == plainly(setup, policy, arriving)
    assert NOWHERE in course.node, "the cluster is overfilled"
    assert course.used_milli[-1] == setup.pods.demand_milli[arriving.pods[course.node != NOWHERE]].sum()


@pytest.mark.slow
def test_a_run_is_the_same_again_and_never_gives_more_than_there_is():
    setup = Setup.of(*tiny())
    run, again = (play(setup, POLICIES["joulie-frugal"], 1) for _ in range(2))
    assert np.array_equal(run.power_w, again.power_w)
    assert np.all(np.diff(run.allocation_pct) >= 0.0)
    assert run.allocation_pct[-1] <= 100.0
    assert run.allocation_pct[10] == pytest.approx(10.0, abs=2.5)
    assert 50.0 < run.all_placed_until_pct < 110.0


def plainly(setup, policy, arriving):
    """Placements by the formulas alone."""
    nodes, pods = setup.nodes.of(arriving.node_order), setup.pods
    watts = np.array([GPU_POWER[MODELS[model]].limit_w - GPU_POWER[MODELS[model]].idle_w for model in nodes.model])
    if policy.order == "watts":
        nodes = nodes.of(np.argsort(watts, kind="stable"))
    lean = fragmentation.lean_cpu_milli_per_gpu(nodes.cpu_milli, nodes.gpus)
    cluster = [Node(nodes, index, setup.typical, lean, policy) for index in range(len(nodes.gpus))]
    return [
        plain_step(cluster, pods, pod, policy, draws) for pod, draws in zip(arriving.pods, arriving.draws, strict=True)
    ]


def plain_step(cluster, pods, pod, policy, draws):
    options = [(index, *found) for index, node in enumerate(cluster) if (found := node.best(pods, pod)) is not None]
    if not options:
        return NOWHERE
    added = [option[2] for option in options]
    if policy.score == policies.PWR_FGD:
        spread = max(added) - min(added)
        shares = [int((1.0 - (w - min(added)) / spread) * 100) if spread else 100 for w in added]
        weight = policy.power_weight
        scores = [weight * share + (1.0 - weight) * option[1] for share, option in zip(shares, options, strict=True)]
    else:
        scores = [option[1] for option in options]
    equals = [option for option, score in zip(options, scores, strict=True) if score == pytest.approx(max(scores))]
    index, _, _, gpu = equals[int(draws[0] * len(equals))] if policy.order == "random" else equals[0]
    node = cluster[index]
    if policy.score == policies.RANDOM and pods.gpus[pod] == 1 and pods.gpu_milli[pod] < 1000:
        fitting = [number for number, left in enumerate(node.left) if left >= pods.gpu_milli[pod]]
        gpu = fitting[int(draws[1] * len(fitting))]
    node.take(pods, pod, gpu)
    return index


class Node:
    """One node of the plain way."""

    def __init__(self, nodes: Nodes, index: int, typical, lean: float, policy: policies.Policy):
        self.cpu = self.cpu_left = int(nodes.cpu_milli[index])
        self.memory_left = int(nodes.memory_mib[index])
        self.left = np.full(nodes.gpus[index], 1000)
        self.model = int(nodes.model[index])
        self.kinds = 0
        self.typical, self.lean, self.policy = typical, lean, policy

    def best(self, pods: Pods, pod: int):
        """Score, added W and GPU; None if the pod does not fit."""
        gpus, milli = int(pods.gpus[pod]), int(pods.gpu_milli[pod])
        request = (int(pods.cpu_milli[pod]), int(pods.memory_mib[pod]), gpus, milli)
        there = gpus == 0 or pods.models[pod] & 1 << self.model
        if not there or not sharing.fits(self.cpu_left, self.memory_left, self.left, *request):
            return None
        free = int(self.left.sum())
        tightest = baselines.tightest_gpu(self.left, milli)
        match self.policy.score:
            case policies.RANDOM:
                return 0, 0.0, tightest
            case policies.DOT_PRODUCT:
                return baselines.dot_product_score(self.cpu_left, free, request[0], gpus * milli), 0.0, tightest
            case policies.BEST_FIT:
                return baselines.best_fit_score(self.cpu_left, free, request[0], gpus * milli), 0.0, tightest
            case policies.GPU_PACKING:
                return baselines.gpu_packing_score(self.left, gpus, milli), 0.0, tightest
            case policies.GPU_CLUSTERING:
                return (
                    baselines.gpu_clustering_score(free, self.kinds, baselines.request_kind(gpus, milli)),
                    0.0,
                    tightest,
                )
        return max((self.option(request, gpu) for gpu in self.candidates(gpus, milli)), key=lambda found: found[0])

    def candidates(self, gpus: int, milli: int):
        part = gpus == 1 and milli < 1000
        return [number for number, left in enumerate(self.left) if left >= milli] if part else [sharing.NO_GPU]

    def option(self, request, gpu: int):
        cpu, _, gpus, milli = request
        after = self.left.copy()
        sharing.take(after, gpus, milli, gpu)
        added_w = self.power_w(self.cpu_left - cpu, after) - self.power_w(self.cpu_left, self.left)
        added = self.fragmentation(self.cpu_left - cpu, after) - self.fragmentation(self.cpu_left, self.left)
        if self.policy.score == policies.JOULIE:
            added += self.shortage(self.cpu_left - cpu, after) - self.shortage(self.cpu_left, self.left)
            return fragmentation.joulie_steps(added, added_w, self.policy.power_weight), 0.0, gpu
        return baselines.fgd_score(added), added_w, gpu

    def fragmentation(self, cpu_left: int, left):
        return fragmentation.fragmentation_milli(cpu_left, left, 1 << self.model, self.typical)

    def shortage(self, cpu_left: int, left):
        return fragmentation.cpu_shortage_milli(cpu_left, left, self.lean)

    def power_w(self, cpu_left: int, left):
        gpu = GPU_POWER[MODELS[self.model]]
        return sharing.shared_node_power_w(cpu_left, self.cpu, left, gpu.idle_w, gpu.limit_w)

    def take(self, pods: Pods, pod: int, gpu: int):
        gpus, milli = int(pods.gpus[pod]), int(pods.gpu_milli[pod])
        self.cpu_left -= int(pods.cpu_milli[pod])
        self.memory_left -= int(pods.memory_mib[pod])
        sharing.take(self.left, gpus, milli, gpu)
        self.kinds |= baselines.request_kind(gpus, milli)
