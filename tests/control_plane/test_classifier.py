"""Workload profiles on a real control plane: the chart's rights, real controllers, and the garbage collector."""

from collections.abc import Iterator
from typing import Any

import pytest

from joulie.adapters.kubernetes import names
from joulie_lab.control_plane import LocalControlPlane, wait_for
from support.loop import ACTIVE, DRAINING, ECO, L40S, PATIENCE_S, Json, Loop, node

pytestmark = [pytest.mark.control_plane, pytest.mark.slow]

PROFILES = "/apis/joulie.io/v1alpha1/namespaces/default/workloadprofiles"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
CRON_JOBS = "/apis/batch/v1/namespaces/nightly/cronjobs"
NIGHTLY_PROFILES = "/apis/joulie.io/v1alpha1/namespaces/nightly/workloadprofiles"
PODS = "/api/v1/namespaces/default/pods"
COMPUTE_BOUND = {names.SIM_CPU_UTIL_PCT_ANNOTATION: "95", names.SIM_MEMORY_PRESSURE_PCT_ANNOTATION: "10"}


@pytest.fixture(scope="module")
def cluster(plane: LocalControlPlane) -> Loop:
    """A control plane with operator and agent, and a CronJob that is due within a minute, while other tests run."""
    found = Loop(plane)
    plane.create_nodes([node("n-0", L40S), node("n-1", L40S)])
    found.start_simulator()
    found.start_agent()
    found.start_operator(CLASSIFY_SIMULATED="true", CLASSIFY_METRICS_WINDOW="1s", CLASSIFY_INTERVAL="1s")
    found.await_leader("operator")
    plane.kubectl("create", "namespace", "nightly")
    # Its pods find no node: KWOK ends pods of Jobs at once.
    job = {"template": template(restartPolicy="Never", nodeSelector={"of": "no-node"})}
    spec = {"schedule": "* * * * *", "jobTemplate": {"spec": job}}
    plane.request("POST", CRON_JOBS, {"metadata": {"name": "every-minute"}, "spec": spec})
    return found


@pytest.fixture
def loop(cluster: Loop) -> Iterator[Loop]:
    """The loop with nothing in the namespace default, before and after."""
    yield cluster
    cluster.lift_overrides()
    for item in cluster.get(DEPLOYMENTS)["items"]:
        cluster.plane.request("DELETE", f"{DEPLOYMENTS}/{item['metadata']['name']}")
    gone = "workloads and their profiles are gone"
    wait_for(lambda: not cluster.get(PODS)["items"] and not cluster.get(PROFILES)["items"], PATIENCE_S, gone)


def template(**spec: Any) -> Json:
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}
    return {
        "metadata": {"labels": {"app": "x"}, "annotations": COMPUTE_BOUND},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0, **spec},
    }


def profile(loop: Loop, name: str) -> Json:
    loop.raise_if_any_ended()
    return dict(loop.get(f"{PROFILES}/{name}") or {})


def await_measured(loop: Loop, name: str) -> Json:
    wait_for(
        lambda: profile(loop, name).get("status", {}).get("confidence", 0.0) >= 0.5,
        2 * PATIENCE_S,
        f"{name} is measured",
    )
    return profile(loop, name)


def test_a_deployment_from_its_first_pod_to_its_end(loop: Loop) -> None:
    meta = {"name": "web", "namespace": "default"}
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "x"}}, "template": template()}
    created = loop.plane.request("POST", DEPLOYMENTS, {"metadata": meta, "spec": spec})
    found = await_measured(loop, "deployment-web")
    assert found["status"]["classificationReason"] == (
        "cpu-intensity=high (util 95%≥75%); cpu-bound=compute, cap-sensitivity=high (util 95%>70%)"
    )
    assert [owner["uid"] for owner in found["metadata"]["ownerReferences"]] == [created["metadata"]["uid"]]
    header, row = loop.plane.kubectl("get", "wp").splitlines()
    assert header.split() == ["NAME", "CLASS", "CPU", "GPU", "CPU-CAP", "GPU-CAP", "MOVABLE", "CONFIDENCE", "AGE"]
    assert row.split()[:5] == ["deployment-web", "standard", "high", "none", "high"]

    # A rollout is the same workload, and an annotation of the Deployment itself restarts nothing.
    pods = {item["metadata"]["uid"] for item in loop.get(PODS)["items"]}
    said = {"metadata": {"annotations": {names.CPU_SENSITIVITY_ANNOTATION: "low"}}}
    loop.patch(f"{DEPLOYMENTS}/web", said)
    wait_for(
        lambda: profile(loop, "deployment-web")["status"]["cpu"]["capSensitivity"] == "low",
        PATIENCE_S,
        "the annotation counts",
    )
    assert {item["metadata"]["uid"] for item in loop.get(PODS)["items"]} == pods
    loop.patch(f"{DEPLOYMENTS}/web", {"spec": {"template": {"metadata": {"labels": {"release": "2"}}}}})
    wait_for(
        lambda: not pods & {item["metadata"]["uid"] for item in loop.get(PODS)["items"]}, PATIENCE_S, "the rollout ends"
    )
    profiles = loop.get(PROFILES)["items"]
    assert [item["metadata"]["uid"] for item in profiles] == [found["metadata"]["uid"]]

    loop.plane.request("DELETE", f"{DEPLOYMENTS}/web")
    wait_for(lambda: not loop.get(PROFILES)["items"], PATIENCE_S, "the profile goes with its Deployment")
    assert not loop.refused()


def equal(found: object, wanted: object) -> bool:
    assert found == wanted
    return True


def capped_points(loop: Loop, pod: Json) -> dict[str, float]:
    """Points that a pod's nodes lose for their caps."""
    explained = loop.programs["extender"].post("/debug/explain", pod)
    return {one["node"]: one["cappedPoints"] for one in explained["nodes"]}


def test_an_unannotated_job_is_classified_and_from_then_on_steered(loop: Loop) -> None:
    loop.start_extender()
    loop.await_state("n-0", ACTIVE)
    loop.await_state("n-1", ECO)
    # KWOK ends pods of Jobs at once, so the workload is a Deployment.
    on_gpu = template()
    on_gpu["metadata"]["annotations"][names.SIM_GPU_UTIL_PCT_ANNOTATION] = "95"
    on_gpu["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/gpu": "1"}
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "x"}}, "template": on_gpu}
    loop.plane.request("POST", DEPLOYMENTS, {"metadata": {"name": "solver", "namespace": "default"}, "spec": spec})
    found = await_measured(loop, "deployment-solver")
    assert found["status"]["gpu"]["capSensitivity"] == "high"
    (first,) = loop.get(PODS)["items"]
    # CPUs and GPUs capped to 60 %: 20 points times 0.4 each.
    wanted = {"n-0": 0.0, "n-1": pytest.approx(16.0)}
    wait_for(lambda: equal(capped_points(loop, first), wanted), PATIENCE_S, "the extender knows the profile")
    stranger = {"metadata": {"name": "stranger", "namespace": "default"}, "spec": first["spec"]}
    assert capped_points(loop, stranger) == {"n-0": 0.0, "n-1": 0.0}


def test_a_profile_that_says_not_reschedulable_holds_the_drain(loop: Loop) -> None:
    """The word of a Deployment's own annotation reaches the drain guard by way of the profile alone."""
    loop.await_state("n-0", ACTIVE)
    meta = {"name": "ledger", "namespace": "default", "annotations": {names.RESCHEDULABLE_ANNOTATION: "false"}}
    on_first = template(nodeSelector={"kubernetes.io/hostname": "n-0"})
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "x"}}, "template": on_first}
    loop.plane.request("POST", DEPLOYMENTS, {"metadata": meta, "spec": spec})
    wait_for(
        lambda: profile(loop, "deployment-ledger").get("status", {}).get("migratability") == {"reschedulable": False},
        PATIENCE_S,
        "the profile says so",
    )
    loop.override("n-0", "eco")
    loop.await_state("n-0", DRAINING)
    loop.patch(f"{DEPLOYMENTS}/ledger", {"metadata": {"annotations": {names.RESCHEDULABLE_ANNOTATION: None}}})
    loop.await_state("n-0", ECO)


def test_a_run_of_a_cron_job_is_known_by_its_name(cluster: Loop) -> None:
    wait_for(lambda: cluster.get(NIGHTLY_PROFILES)["items"], 60.0 + PATIENCE_S, "the first run has a profile")
    (found,) = cluster.get(NIGHTLY_PROFILES)["items"]
    assert found["metadata"]["name"] == "cronjob-every-minute"
    assert found["metadata"]["ownerReferences"][0]["kind"] == "CronJob"
    cluster.plane.request("DELETE", f"{CRON_JOBS}/every-minute")
    wait_for(lambda: not cluster.get(NIGHTLY_PROFILES)["items"], PATIENCE_S, "the profile goes with its CronJob")
    assert not cluster.refused()
