"""The chart as the README installs it: every pod Ready, everything watched and planned, nothing changed."""

import json
import re
import time

import pytest

from joulie.adapters.kubernetes import names
from joulie.domain.grid import names as grid_names
from joulie_lab.control_plane import KubectlError, wait_for
from support.audit import foreign_writes
from support.loop import NAMESPACE
from support.real_site import AGENT, NODE, ORIGINAL_W, PATIENCE_S, SCHEDULER, Site

AWAY_S = 20.0
PERFORMANCE = {names.WORKLOAD_CLASS_ANNOTATION: "performance"}
WATCHED = {
    "critical": PERFORMANCE,
    "standard": {},
    "movable": {names.RESCHEDULABLE_ANNOTATION: "true"},
    "deferrable": {grid_names.DEFER: "true"},
}
"""Pods that Joulie would refuse, prefer, evict or hold, with their annotations."""


@pytest.fixture(scope="module")
def observed(site: Site) -> Site:
    """The default mode, one node managed."""
    site.install(site.values(mode="observe"))
    site.label_node(managed="true")
    site.await_rollout(agents=1)
    return site


def test_r1_every_pod_becomes_ready(observed: Site) -> None:
    components = {pod["metadata"]["labels"]["app.kubernetes.io/component"] for pod in observed.pods()}
    assert components == {"operator", "extender", "scheduler", "agent", "grid", "accounting"}


def test_r6_what_an_optimised_program_loads_is_compiled_in_the_image(observed: Site) -> None:
    """In a read-only file system every start would compile the rest again: 0.97 s of CPU for 0.41 s."""
    looks = (
        "import os, sys, joulie.apps.agent.main; "
        "print([name for name, module in sys.modules.items() if (file := getattr(module, '__cached__', None)) "
        "and not os.path.exists(file)])"
    )
    for options in (["-OO"], []):
        assert observed.execute("operator", "python", *options, "-c", looks).strip() == "[]"


def test_in_observe_mode_nothing_foreign_is_written_and_nobody_refused_or_preferred(observed: Site) -> None:
    """Plans, placements, deferral, rescheduling: on paper only, by the audit log."""
    wait_for(
        lambda: observed.twin().get("status", {}).get("planned", {}).get("profile") == "eco",
        PATIENCE_S,
        "the node is planned to be eco",
    )
    place_watched_pods(observed)
    assert "eco" in observed.joulie("status")
    assert observed.machine.limits_w() == [ORIGINAL_W] * 2
    wait_for(
        lambda: observed.twin()["status"]["controlStatus"]["cpu"]["result"] == "observed", PATIENCE_S, "it is reported"
    )
    assert foreign_writes(observed.plane.audit_events()) == []


def place_watched_pods(site: Site) -> None:
    """All of them run, as they were asked for; no node is refused or preferred."""
    for name, annotations in WATCHED.items():
        site.run_pod(name, annotations=annotations, schedulerName=SCHEDULER)
    for name, annotations in WATCHED.items():
        found = site.await_running(name)
        assert found["metadata"].get("annotations", {}) == annotations
        assert {"schedulingGates", "affinity", "nodeSelector"} & found["spec"].keys() == set()
        (node,) = json.loads(site.joulie("explain", "pod", name, "-o", "json"))["nodes"]
        assert (node["allowed"], node["wireScore"]) == (True, 5), node
    site.delete_pods(*WATCHED)


def test_r4_only_the_agent_needs_more_than_the_level_restricted(observed: Site) -> None:
    """The API server names the pods that would violate a level, then refuses those of a namespace that enforces it."""
    for level in ("restricted", "baseline"):
        with pytest.raises(KubectlError) as told:
            observed.enforce_pod_security(level, "--dry-run=server", "--warnings-as-errors")
        violating = re.findall(r"^Warning: (joulie-\S+):", told.value.stderr, re.MULTILINE)
        assert violating == [observed.pod("agent")["metadata"]["name"]], told.value.stderr
    observed.enforce_pod_security("baseline")
    observed.plane.kubectl("delete", "pod", "-n", NAMESPACE, observed.pod("agent")["metadata"]["name"])
    wait_for(
        lambda: any('violates PodSecurity "baseline:latest"' in line for line in observed.troubles()),
        PATIENCE_S,
        "the agent is refused",
    )
    observed.enforce_pod_security("privileged")
    observed.plane.kubectl("rollout", "restart", "daemonset/joulie-agent", "-n", NAMESPACE)
    observed.await_rollout(agents=1)


def test_programs_answer_by_every_family_of_addresses_that_the_kernel_has(observed: Site) -> None:
    """Dual stack where the kernel translates IPv6; from pod to pod."""
    for component, port in (("operator", 8081), ("extender", 9877), ("agent", 8080)):
        addresses = [item["ip"] for item in observed.pods(component)[0]["status"]["podIPs"]]
        assert len(addresses) == len(observed.addresses.pods)
        for address in addresses:
            host = f"[{address}]" if ":" in address else address
            asks = f"import urllib.request as r; print(r.urlopen('http://{host}:{port}/readyz', timeout=20).status)"
            assert observed.execute("operator", "python", "-c", asks).strip() == "200"


def test_in_observe_mode_nothing_that_happens_to_a_cluster_leads_to_a_foreign_write(observed: Site) -> None:
    """The stages of the files below, observed: kills, a reboot, upgrade and rollback, no API server, uninstalling."""
    with observed.machine.watched() as seen:
        leader = observed.lease_holder("joulie-operator")
        (pod,) = [pod for pod in observed.pods("operator") if leader.startswith(pod["metadata"]["name"])]
        observed.node.kill(pod)
        observed.kill(observed.pod(AGENT))
        with observed.performance_pod(nodeName=NODE):
            observed.await_running("urgent")
        observed.node.power_off()
        observed.machine.boot()
        observed.node.reboot()
        observed.await_rollout(agents=1)
        observed.install(observed.values(mode="observe", agent={"podAnnotations": {"example.com/release": "2"}}))
        observed.plane.helm("rollback", "joulie", "--namespace", NAMESPACE)
        observed.plane.stop("kube-apiserver")
        time.sleep(AWAY_S)
        observed.plane.start("kube-apiserver")
        observed.await_rollout(agents=1)
        place_watched_pods(observed)
        observed.uninstall()
    assert seen == {ORIGINAL_W}
    assert observed.joulie_labels() == {"joulie.io/managed"}
    assert foreign_writes(observed.plane.audit_events()) == []
