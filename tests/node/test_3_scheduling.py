"""kube-scheduler with the extender, as the chart runs it and as the docs configure a cluster's own."""

import json
import urllib.request
from collections.abc import Iterator
from contextlib import suppress

import pytest

from joulie_lab.control_plane import wait_for
from support.loop import NAMESPACE
from support.real_site import ECO_W, ORIGINAL_W, PATIENCE_S, SCHEDULER, Site

REFUSAL = "1 node(s) run under eco power caps, closed to performance pods"
CALLS = 100


@pytest.fixture(scope="module", autouse=True)
def _configured(enforced: Site) -> Iterator[None]:
    """The cluster's own scheduler with the extender's entry of the chart, but for the Service's address."""
    enforced.plane.configure_scheduler({"extenders": [enforced.extender_configuration()]})
    yield
    enforced.plane.configure_scheduler({})


@pytest.mark.parametrize("scheduler", [SCHEDULER, "default-scheduler"])
def test_standard_pods_are_placed_and_performance_pods_refused_and_explained(enforced: Site, scheduler: str) -> None:
    enforced.run_pod("ordinary", schedulerName=scheduler)
    enforced.await_running("ordinary")
    with enforced.performance_pod(schedulerName=scheduler):

        def refused() -> bool:
            conditions = enforced.find_pod("urgent")["status"].get("conditions", ())
            assert any(REFUSAL in item.get("message", "") for item in conditions), conditions
            return True

        wait_for(refused, PATIENCE_S, "the pod is refused")
        explained = enforced.joulie("explain", "pod", "urgent")
        assert "eco" in explained, explained
        (node,) = json.loads(enforced.joulie("explain", "pod", "urgent", "-o", "json"))["nodes"]
        assert node["allowed"] is False
        # The operator sees the demand that it cannot place, but the policy keeps the only node in eco.
        assert enforced.machine.limits_w() == [ECO_W] * 2
        enforced.override("performance")
        enforced.await_limits(ORIGINAL_W)
        enforced.await_running("urgent")
    enforced.lift_override()
    enforced.await_limits(ECO_W)
    enforced.delete_pods("ordinary")


def test_r2_no_call_of_the_extender_fails_in_a_rollout(enforced: Site) -> None:
    """Each call by a connection of its own through the Service's address, one after the other, until it is over."""
    url = f"http://{enforced.extender_address}:9876/filter"
    body = json.dumps({"Pod": enforced.pod("agent"), "NodeNames": [enforced.node.name]}).encode()
    enforced.plane.kubectl("rollout", "restart", "deployment/joulie-extender", "-n", NAMESPACE)
    calls = 0
    while calls < CALLS or not is_over(enforced):
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=10) as answer:
            assert json.load(answer)["NodeNames"] == [enforced.node.name]
        calls += 1


def is_over(site: Site) -> bool:
    """Whether the rollout is."""
    with suppress(AssertionError):
        return site.is_rolled_out()
    return False
