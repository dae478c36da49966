"""What a cluster goes through: the leader dies, the API server is away. Caps hold, and go on afterwards."""

import time

from joulie_lab.control_plane import wait_for
from support.real_site import ECO_W, NODE, ORIGINAL_W, PATIENCE_S, Site

AWAY_S = 120.0


def test_another_operator_leads_after_its_leader_was_killed(enforced: Site) -> None:
    leader = enforced.lease_holder("joulie-operator")
    (pod,) = [pod for pod in enforced.pods("operator") if leader.startswith(pod["metadata"]["name"])]
    with enforced.machine.watched() as seen:
        enforced.node.kill(pod)
        wait_for(lambda: enforced.lease_holder("joulie-operator") != leader, PATIENCE_S, "another one leads")
        enforced.await_rollout(agents=1)
    assert seen == {ECO_W}
    assert_caps_go_on(enforced)


def test_caps_hold_while_the_api_server_is_away_and_go_on_afterwards(enforced: Site) -> None:
    agent = enforced.pod("agent")
    with enforced.machine.watched() as seen:
        enforced.plane.stop("kube-apiserver")
        time.sleep(AWAY_S)
        enforced.plane.start("kube-apiserver")
        # Whoever writes every two seconds backs off by now: the release becomes Ready again on its own.
        enforced.await_rollout(agents=1)
    assert seen == {ECO_W}
    assert_caps_go_on(enforced)
    assert restarts(enforced.pod("agent")) == restarts(agent)


def assert_caps_go_on(site: Site) -> None:
    """A performance pod lifts the cap, which returns after it."""
    with site.performance_pod(nodeName=NODE):
        site.await_limits(ORIGINAL_W)
    site.await_limits(ECO_W)


def restarts(pod: dict) -> int:
    return int(pod["status"]["containerStatuses"][0]["restartCount"])
