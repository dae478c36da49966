"""Upgraded from the chart and the programs of an earlier commit: one DaemonSet, its saved limits, its gates."""

import json
import shutil
from collections.abc import Iterator

import pytest

from joulie.domain.grid import names as grid_names
from joulie_lab.control_plane.node import host, images
from support import earlier_release
from support.loop import NAMESPACE
from support.real_site import ECO_W, ORIGINAL_W, SCHEDULER, Site

REVISION = "1"
DEFERRED = "held-before"


@pytest.fixture(scope="module")
def earlier(site: Site) -> Iterator[Site]:
    """The earlier release in force on a node that has never seen another: capped, one pod held."""
    site.plane.kubectl("delete", "crd", "-l", "app.kubernetes.io/part-of=joulie")
    shutil.rmtree(site.state_folder, ignore_errors=True)
    repository, _, _ = images.JOULIE.rpartition(":")
    site.node.ctr("images", "tag", images.JOULIE, f"{repository}:{earlier_release.TAG}")
    folder = host.FOLDER / "earlier"
    chart = earlier_release.unpack(folder)
    with earlier_release.running(site.plane, folder, site.machine.folder):
        site.install(earlier_values(site), chart)
        site.label_node(managed="true")
        site.await_rollout(agents=1)
        site.await_limits(ECO_W)
        site.run_pod(DEFERRED, annotations={grid_names.DEFER: "true"}, schedulerName=SCHEDULER)
        assert is_held(site)
        yield site


def earlier_values(site: Site) -> dict:
    """Values of today's chart that the earlier one knows too."""
    values = site.values()
    del values["mode"]
    values["image"]["tag"] = earlier_release.TAG
    values["agent"] = {name: values["agent"][name] for name in ("stateDir", "settings")}
    return values


def is_held(site: Site) -> bool:
    return site.find_pod(DEFERRED)["spec"].get("schedulingGates") == [{"name": grid_names.GATE}]


def test_an_upgrade_keeps_caps_original_limits_and_gates(earlier: Site) -> None:
    """The earlier agent lifts its cap when it is stopped, as it always did; nothing is ever above the original."""
    with earlier.machine.watched() as seen:
        earlier.install(earlier.values())
        earlier.await_rollout(agents=1)
        earlier.await_limits(ECO_W)
    assert seen <= {ECO_W, ORIGINAL_W}
    assert is_held(earlier)
    assert str(ORIGINAL_W) in json.dumps(json.loads((earlier.state_folder / "limits.json").read_text()))


def test_a_rollback_does_too_and_so_does_the_next_upgrade(earlier: Site) -> None:
    with earlier.machine.watched() as seen:
        earlier.plane.helm("rollback", "joulie", REVISION, "--namespace", NAMESPACE)
        earlier.await_rollout(agents=1)
        earlier.await_limits(ECO_W)
        earlier.install(earlier.values())
        earlier.await_rollout(agents=1)
        earlier.await_limits(ECO_W)
    assert seen <= {ECO_W, ORIGINAL_W}
    assert is_held(earlier)


def test_uninstalling_afterwards_restores_the_original_limits(earlier: Site) -> None:
    earlier.uninstall()
    assert earlier.machine.limits_w() == [ORIGINAL_W] * 2
    assert earlier.joulie_labels() == {"joulie.io/managed"}
    earlier.await_running(DEFERRED)
    earlier.delete_pods(DEFERRED)
