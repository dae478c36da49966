"""Caps through the chart's DaemonSet reach the hardware, the load follows, and the original limits are kept."""

import json

import pytest

from joulie_lab.control_plane import wait_for
from support.real_site import AGENT, ECO_W, NODE, ORIGINAL_W, PATIENCE_S, Site


def test_a_cap_reaches_the_hardware_and_the_load_follows(enforced: Site) -> None:
    def is_reported() -> bool:
        twin = enforced.twin()
        control = twin.get("status", {}).get("controlStatus", {})
        assert control.get("observedGeneration") == twin["metadata"]["generation"], control
        assert control.get("cpu", {}).get("result") == "applied", control
        return True

    wait_for(is_reported, PATIENCE_S, "the CPU's cap is applied")
    # The running average takes a few time windows.
    wait_for(
        lambda: enforced.machine.power_w() == pytest.approx(2 * ECO_W, rel=0.03), PATIENCE_S, "the power is the cap's"
    )
    assert "eco" in enforced.joulie("status")


def test_an_agent_killed_finds_the_limits_that_it_set(enforced: Site) -> None:
    enforced.kill(enforced.pod(AGENT))
    assert enforced.machine.limits_w() == [ECO_W] * 2
    saved = json.loads((enforced.state_folder / "limits.json").read_text())
    assert str(ORIGINAL_W) in json.dumps(saved)


def test_a_performance_pod_lifts_the_cap_and_lets_it_return(enforced: Site) -> None:
    with enforced.performance_pod(nodeName=NODE):
        enforced.await_limits(ORIGINAL_W)
        wait_for(lambda: enforced.machine.power_w() > 2 * ECO_W * 1.1, PATIENCE_S, "the load gets its power")
    enforced.await_limits(ECO_W)


def test_after_a_reboot_the_new_limits_are_the_original_ones(enforced: Site) -> None:
    enforced.node.power_off()
    enforced.machine.boot()
    assert enforced.machine.limits_w() == [ORIGINAL_W] * 2
    enforced.node.reboot()
    enforced.await_rollout(agents=1)
    enforced.await_limits(ECO_W)


def test_h16_an_upgrade_and_a_rollback_hand_the_caps_over(enforced: Site) -> None:
    """An agent that a rollout replaces leaves its limits to the next one."""
    with enforced.machine.watched() as seen:
        enforced.install(enforced.values(agent={"podAnnotations": {"example.com/release": "2"}}))
        enforced.plane.helm("rollback", "joulie", "--namespace", "joulie-system")
        enforced.await_rollout(agents=1)
    enforced.await_limits(ECO_W)
    assert seen == {ECO_W}
