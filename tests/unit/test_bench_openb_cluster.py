"""`joulie bench openb-cluster`: what is worked out of where pods were bound; the run itself needs a control plane."""

import numpy as np
import pytest

from joulie_lab.benchmarks import openb_cluster
from joulie_lab.benchmarks.gpu_sharing.arrivals import arrivals, sample
from joulie_lab.benchmarks.gpu_sharing.kernel import NOWHERE
from joulie_lab.benchmarks.gpu_sharing.play import Setup, place
from joulie_lab.benchmarks.gpu_sharing.policies import POLICIES
from joulie_lab.benchmarks.openb_cluster import DEFAULT, FGD, FRUGAL, NATIVE, Plan, measure

PLAN = Plan(nodes=12, seed=3)


class Obedient:
    """In place of a cluster: the default scheduler places nothing, the extender what the benchmark's own run does."""

    def __init__(self, _plane, nodes, _note):
        self.nodes = nodes

    def play(self, pods, verbs, _title):
        if verbs == ("filterVerb",):
            return np.full(len(pods.gpus), NOWHERE), 1, None
        return self.native, 0, 2.5


@pytest.mark.slow
def test_a_cluster_that_does_as_the_benchmark_gives_and_draws_as_much(monkeypatch):
    nodes, pods = sample(1)
    part = nodes.of(np.sort(np.random.default_rng(PLAN.seed).permutation(len(nodes.gpus))[: PLAN.nodes]))
    arriving = arrivals(pods, part, PLAN.seed)
    course = place(Setup.of(part, pods), POLICIES["joulie-frugal"], arriving)
    ordered = part.of(arriving.node_order)
    Obedient.native = openb_cluster._in_order(course.node, ordered, "joulie-frugal")
    monkeypatch.setattr(openb_cluster, "_Cluster", Obedient)
    result = measure(nodes, pods, PLAN, None, lambda _line: None)
    assert list(result.ways) == [FGD, NATIVE, DEFAULT, FRUGAL]
    assert result.same_node_pct == 100.0
    frugal, native, nothing = result.ways[FRUGAL], result.ways[NATIVE], result.ways[DEFAULT]
    assert (frugal.allocation_pct, frugal.power_kw) == (native.allocation_pct, native.power_kw)
    assert frugal.allocation_pct == pytest.approx(100.0 * course.used_milli[-1] / part.gpu_milli)
    # GPUs are assumed anew from where pods were bound, so that one more or less may be in use.
    assert frugal.curve_kw == pytest.approx(list(course.power_w / 1000.0), rel=0.05)
    assert result.ways[FGD].power_pct == 100.0
    assert (frugal.p99_ms, nothing.unjudged_nodes) == (2.5, 1)
    assert (nothing.allocation_pct, nothing.turned_away) == (0.0, result.arrivals)
    assert nothing.curve_kw == [nothing.curve_kw[0]] * result.arrivals


def test_a_pod_says_the_part_in_annotations_and_asks_for_the_sum():
    _, pods = sample(1)
    whole, part, without = (
        int(np.flatnonzero(found)[0])
        for found in (pods.gpus == 8, (pods.gpu_milli < 1000) & (pods.gpus == 1), pods.gpus == 0)
    )
    milli = "alibabacloud.com/gpu-milli"
    asked = {index: openb_cluster._pod("p", pods, index) for index in (whole, part, without)}
    sums = {index: one["spec"]["containers"][0]["resources"]["requests"].get(milli) for index, one in asked.items()}
    assert sums == {whole: "8000", part: str(pods.gpu_milli[part]), without: None}
    assert asked[whole]["metadata"]["annotations"] == {milli: "1000", "alibabacloud.com/gpu-count": "8"}
    assert asked[without]["metadata"]["annotations"] == {}


def test_the_percentile_is_a_bound_from_the_histogram():
    line = 'joulie_extender_request_seconds_bucket{{le="{}",verb="{}"}} {}'
    lines = [line.format(le, "prioritize", n) for le, n in (("0.001", 90), ("0.005", 99), ("+Inf", 100))]
    assert openb_cluster._p99_ms("\n".join([*lines, line.format("0.0002", "filter", 100)])) == 5.0
    assert openb_cluster._p99_ms("") is None
