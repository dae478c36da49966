"""The release is deleted: its hook leaves the machine, nodes and pods as they were."""

from joulie.domain.grid import names as grid_names
from support.real_site import ORIGINAL_W, SCHEDULER, Site


def test_uninstalling_restores_the_original_limits_and_lets_waiting_pods_go(enforced: Site) -> None:
    enforced.run_pod("deferred", annotations={grid_names.DEFER: "true"}, schedulerName=SCHEDULER)
    assert enforced.find_pod("deferred")["spec"]["schedulingGates"] == [{"name": grid_names.GATE}]
    enforced.uninstall()
    assert enforced.machine.limits_w() == [ORIGINAL_W] * 2
    assert enforced.pods() == []
    assert enforced.joulie_labels() == {"joulie.io/managed"}
    enforced.await_running("deferred")
    enforced.delete_pods("deferred")
