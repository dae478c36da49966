"""Caps through the chart's DaemonSet reach the hardware, the load follows, and the original limits come back."""

import json

import pytest

from joulie_lab.control_plane import wait_for
from support.real_site import AGENT, ECO_W, NODE, ORIGINAL_W, PATIENCE_S, Site


@pytest.fixture(scope="module")
def installed(site: Site) -> Site:
    """The release in force, the node managed, its load wanting all it can have."""
    site.install(site.values())
    site.machine.set_load("1.0")
    site.label_node(managed="true")
    site.await_rollout()
    return site


def await_limits(site: Site, expected_w: float) -> None:
    wait_for(lambda: site.machine.limits_w() == [expected_w] * 2, PATIENCE_S, f"limits of {expected_w} W")


def await_control(site: Site, result: str) -> None:
    """Wait until the agent reports `result` for the twin as it is."""

    def is_reported() -> bool:
        twin = site.twin()
        control = twin.get("status", {}).get("controlStatus", {})
        assert control.get("observedGeneration") == twin["metadata"]["generation"], control
        assert control.get("cpu", {}).get("result") == result, control
        return True

    wait_for(is_reported, PATIENCE_S, f"the CPU's result is {result}")


def test_a_cap_reaches_the_hardware_and_the_load_follows(installed: Site) -> None:
    await_limits(installed, ECO_W)
    await_control(installed, "applied")
    # The running average takes a few time windows.
    wait_for(
        lambda: installed.machine.power_w() == pytest.approx(2 * ECO_W, rel=0.03), PATIENCE_S, "the power is the cap's"
    )
    assert "eco" in installed.joulie("status")


def test_an_agent_killed_finds_the_limits_that_it_set(installed: Site) -> None:
    pod = installed.pod(AGENT)
    installed.node.kill(pod)

    def is_back() -> bool:
        (status,) = installed.pod(AGENT)["status"]["containerStatuses"]
        return status["restartCount"] > 0 and status["ready"]

    wait_for(is_back, PATIENCE_S, "the agent runs again")
    assert installed.machine.limits_w() == [ECO_W] * 2
    saved = json.loads((installed.state_folder / "limits.json").read_text())
    assert str(ORIGINAL_W) in json.dumps(saved)


def test_a_performance_pod_lifts_the_cap_and_lets_it_return(installed: Site) -> None:
    installed.run_pod("urgent", nodeName=NODE, annotations={"joulie.io/workload-class": "performance"})
    await_limits(installed, ORIGINAL_W)
    wait_for(lambda: installed.machine.power_w() > 2 * ECO_W * 1.1, PATIENCE_S, "the load gets its power")
    installed.plane.kubectl("delete", "pod", "urgent", "--now")
    await_limits(installed, ECO_W)


def test_after_a_reboot_the_new_limits_are_the_original_ones(installed: Site) -> None:
    installed.node.power_off()
    installed.machine.boot()
    assert installed.machine.limits_w() == [ORIGINAL_W] * 2
    installed.node.reboot()
    installed.await_rollout()
    await_limits(installed, ECO_W)


def test_an_upgrade_of_the_release_keeps_the_cap_and_the_originals(installed: Site) -> None:
    installed.install(installed.values(agent={"podAnnotations": {"example.com/release": "2"}}))
    await_limits(installed, ECO_W)
    installed.plane.helm("rollback", "joulie", "--namespace", "joulie-system")
    installed.await_rollout()
    await_limits(installed, ECO_W)


def test_uninstalling_restores_the_original_limits(installed: Site) -> None:
    installed.uninstall()
    assert installed.machine.limits_w() == [ORIGINAL_W] * 2
    assert installed.pods() == []
