"""Side by side with Karpenter: its own program and KWOK provider, the operator, the real kube-scheduler."""

from __future__ import annotations

import sys

import pytest

from joulie.adapters.kubernetes import names
from joulie_lab.control_plane import LocalControlPlane, wait_for
from joulie_lab.control_plane.karpenter import obtain_karpenter
from joulie_lab.control_plane.ports import free_port
from support.loop import CPU_ONLY, PATIENCE_S, PODS, Json, Loop, node, pod

pytestmark = [pytest.mark.control_plane, pytest.mark.slow]

POOL = "default"
POOL_LABEL = "karpenter.sh/nodepool"
CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
CONSOLIDATE_S = 30
"""Long enough for Joulie's mark to be seen before Karpenter removes the node."""
SLEEP = {
    "SLEEP": "enforce",
    "SLEEP_INTERVAL": "300ms",
    "SLEEP_EMPTY": "1s",
    "SLEEP_SETTLE": "1s",
    "SLEEP_MIN_AWAKE": "0",
    "POLICY_TYPE": "full_power",
}
NODE_CLASS: Json = {"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": {"name": POOL}}
NODE_POOL: Json = {
    "apiVersion": "karpenter.sh/v1",
    "kind": "NodePool",
    "metadata": {"name": POOL},
    "spec": {
        "template": {
            "metadata": {"labels": {names.MANAGED_LABEL: "true"}},
            "spec": {
                "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": POOL},
                "requirements": [{"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]}],
            },
        },
        "disruption": {"consolidationPolicy": "WhenEmpty", "consolidateAfter": f"{CONSOLIDATE_S}s"},
    },
}


def _tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def start_karpenter(loop: Loop) -> None:
    """Install its definitions and a pool that grows for pods that wait, and run it."""
    found = obtain_karpenter(_tell)
    for path in found.definitions:
        loop.plane.kubectl("apply", "--server-side", "-f", path)
    loop.plane.await_definitions()
    environment = {
        "KUBECONFIG": str(loop.plane.kubeconfig),
        "DISABLE_LEADER_ELECTION": "true",
        "METRICS_PORT": str(free_port()),
        "HEALTH_PROBE_PORT": str(free_port()),
        "BATCH_IDLE_DURATION": "1s",
    }
    loop.plane.spawn("karpenter", [str(found.program)], environment=environment)
    loop.plane.request("POST", "/apis/karpenter.kwok.sh/v1alpha1/kwoknodeclasses", NODE_CLASS)
    loop.plane.request("POST", "/apis/karpenter.sh/v1/nodepools", NODE_POOL)


def claims(loop: Loop) -> set[str]:
    return {one["metadata"]["name"] for one in loop.get(CLAIMS)["items"]}


def removable(loop: Loop, name: str) -> Json | None:
    """A node that Joulie has marked for its autoscaler."""
    found = loop.get(f"/api/v1/nodes/{name}")
    assert found is not None, f"{name} was removed before it was marked"
    return found if names.REMOVABLE_ANNOTATION in found["metadata"].get("annotations", {}) else None


def await_taints(loop: Loop, name: str, *wanted: str) -> None:
    def reached() -> bool:
        taints = {one["key"] for one in loop.get(f"/api/v1/nodes/{name}")["spec"].get("taints", [])}
        assert taints == set(wanted), taints
        return True

    wait_for(reached, PATIENCE_S, f"{name} has the taints {wanted}")


def await_running(loop: Loop, *pods: str) -> None:
    def all_run() -> bool:
        phases = {one["metadata"]["name"]: one["status"].get("phase") for one in loop.get(PODS)["items"]}
        assert phases == dict.fromkeys(pods, "Running"), phases
        return True

    wait_for(all_run, PATIENCE_S, f"pods {pods} run, and no other")


def test_karpenter_removes_the_empty_node_that_joulie_marks_and_both_wake_no_more_than_is_needed(
    plane: LocalControlPlane,
) -> None:
    loop = Loop(plane, "mode=enforce", "operator.settings.SLEEP=enforce")
    plane.create_nodes(node(name, CPU_ONLY) for name in ("n1", "n2"))
    loop.create(pod("busy", on="n1", requests={"cpu": "300"}))
    assert loop.await_placed("busy") == "n1"
    start_karpenter(loop)
    loop.start_operator(**SLEEP)
    await_taints(loop, "n2", names.ASLEEP_TAINT)

    # A pod for Karpenter's nodes: Joulie's that sleeps stays asleep.
    loop.create(pod("theirs", nodeSelector={POOL_LABEL: POOL}))
    grown = loop.await_placed("theirs")
    (claim,) = claims(loop)
    await_taints(loop, grown)
    await_taints(loop, "n2", names.ASLEEP_TAINT)

    # A pod for a node that sleeps: Joulie wakes it, and Karpenter does not add nodes in circles.
    loop.create(pod("ours", on="n2", requests={"cpu": "200"}))
    assert loop.await_placed("ours") == "n2"
    assert claims(loop) == {claim}

    # Their node is empty: Joulie marks it and closes it not; Karpenter removes it.
    loop.delete_pods("theirs")
    marked = wait_for(lambda: removable(loop, grown), PATIENCE_S, f"{grown} is marked")
    assert names.SLEEP_STATE_ANNOTATION not in marked["metadata"]["annotations"]
    assert "taints" not in marked["spec"], "marked before Karpenter begins to remove it"
    wait_for(lambda: not claims(loop), PATIENCE_S, "Karpenter removes its empty node")
    wait_for(lambda: loop.get(f"/api/v1/nodes/{grown}") is None, PATIENCE_S, f"{grown} is gone")
    await_running(loop, "busy", "ours")
    tainted = [
        event
        for event in plane.audit_events()
        if event.get("objectRef", {}).get("name") == grown and names.ASLEEP_TAINT in str(event.get("requestObject"))
    ]
    assert tainted == []
    assert loop.refused() == []
