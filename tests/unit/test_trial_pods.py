"""Which pods the guard of a trial judges, and what it sees of them."""

from types import SimpleNamespace

from joulie.apps.operator.trial_pods import TrialPods
from joulie.domain.policy import PodPhase
from joulie.domain.trial.protocol import Arm, Protocol, Treated

PROTOCOL = Protocol(0.0, 3600.0, 0.0, ("a",), ("b",), (), (Treated.FIRST_HALF,) * 12, 1)


def pod(uid="1", node="a", phase=PodPhase.RUNNING, since_s=0.0, **changes):
    facts = {
        "uid": uid,
        "namespace": "ml",
        "owner": SimpleNamespace(kind="Job", name="train"),
        "node_name": node,
        "phase": phase,
        "running_since_s": since_s if phase is PodPhase.RUNNING else None,
        "daemon": False,
        "static": False,
        "gated": False,
        "failed": False,
    }
    return SimpleNamespace(**(facts | changes))


def course(*looks):
    """Pods seen at some times."""
    seen = TrialPods(PROTOCOL)
    for now_s, pods in looks:
        seen.look(pods, now_s)
    return seen.ended


def done(uid="1", node="a", **changes):
    return pod(uid, node, PodPhase.FINISHED, **changes)


def test_a_pod_counts_with_its_arm_its_runtime_and_its_wait():
    waits = pod(node="", phase=PodPhase.PENDING)
    (one,) = course((10.0, [waits]), (60.0, [pod(since_s=50.0)]), (650.0, [done(failed=True)]))
    assert one == ("ml/Job/train", Arm.TREATMENT, 600.0, True, 40.0)
    (other,) = course((10.0, [pod(node="b", since_s=5.0)]), (20.0, [done(node="b")]))
    assert (other.arm, other.runtime_s, other.failed, other.wait_s) == (Arm.CONTROL, 15.0, False, 0.0)


def test_a_pod_counts_once():
    assert len(course((1.0, [pod()]), (2.0, [done()]), (3.0, [done()]))) == 1


def test_pods_under_both_arms_do_not_count():
    assert course((3000.0, [pod(since_s=3000.0)]), (4000.0, [done()])) == []


def test_pods_that_ran_before_the_trial_do_not_count():
    assert course((10.0, [pod(since_s=-500.0)]), (20.0, [done()])) == []


def test_pods_deleted_while_they_ran_daemons_and_other_nodes_do_not_count():
    assert course((1.0, [pod()]), (2.0, []), (3.0, [done()])) == []
    assert course((1.0, [pod(daemon=True)]), (2.0, [done(daemon=True)])) == []
    assert course((1.0, [pod(node="c")]), (2.0, [done(node="c")])) == []


def test_a_gated_pod_does_not_wait_for_a_node():
    held = pod(node="", phase=PodPhase.PENDING, gated=True)
    (one,) = course((10.0, [held]), (60.0, [pod(since_s=50.0)]), (650.0, [done()]))
    assert one.wait_s == 0.0
