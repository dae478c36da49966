"""What Joulie reads from a pod: requests, class, constraint, owner."""

from typing import Any

import msgspec
import pytest

from joulie.adapters.kubernetes.api.core import Pod
from joulie.adapters.kubernetes.api.v1alpha1 import Level, WorkloadProfile
from joulie.adapters.kubernetes.pods import (
    Owner,
    PodFacts,
    ProfileFacts,
    SimulatedUse,
    pod_facts,
    profile_facts,
    profile_owner,
    read_hints,
    simulated_use,
)
from joulie.domain.drain import GuardedPod
from joulie.domain.policy import Intensity, PodDemand, PodPhase, PowerConstraint, WorkloadClass
from joulie.domain.profiles.profile import Hints
from joulie.domain.scoring.extender import PodView, Sensitivity

PROFILE = "joulie.io/power-profile"


def facts(spec: dict[str, Any] | None = None, **parts: Any) -> PodFacts:
    body = {"metadata": {"name": "p", "namespace": "ns"}, "spec": spec or {}} | parts
    return pod_facts(msgspec.json.decode(msgspec.json.encode(body), type=Pod))


def annotated(**annotations: str) -> PodFacts:
    keys = {f"joulie.io/{key.replace('_', '-')}": value for key, value in annotations.items()}
    return facts(metadata={"name": "p", "annotations": keys})


def container(
    requests: dict[str, Any] | None = None, limits: dict[str, Any] | None = None, **more: str
) -> dict[str, Any]:
    return {"name": "c", "resources": {"requests": requests or {}, "limits": limits or {}}, **more}


def sidecar(requests: dict[str, Any]) -> dict[str, Any]:
    return container(requests, restartPolicy="Always")


def cores(spec: dict[str, Any]) -> float:
    return facts(spec).requests.cpu_cores


# ---- requests


def test_containers_run_together() -> None:
    requests = facts(
        {"containers": [container({"cpu": "500m", "memory": "1Gi"}), container({"cpu": "2", "memory": "512Mi"})]}
    ).requests
    assert (requests.cpu_cores, requests.memory_gib) == (2.5, 1.5)


def test_a_large_init_container_counts_alone() -> None:
    assert (
        cores(
            {
                "containers": [container({"cpu": "1"})],
                "initContainers": [container({"cpu": "4"}), container({"cpu": "3"})],
            }
        )
        == 4.0
    )


def test_sidecars_run_with_the_containers() -> None:
    assert cores({"containers": [container({"cpu": "1"})], "initContainers": [sidecar({"cpu": "500m"})]}) == 1.5


def test_an_init_container_runs_beside_the_sidecars_before_it() -> None:
    init = container({"cpu": "4"})
    after = {"containers": [container({"cpu": "1"})], "initContainers": [sidecar({"cpu": "2"}), init]}
    before = {"containers": [container({"cpu": "1"})], "initContainers": [init, sidecar({"cpu": "2"})]}
    assert (cores(after), cores(before)) == (6.0, 4.0)


def test_limits_stand_in_for_requests() -> None:
    requests = facts(
        {"containers": [container({"cpu": "1"}, {"cpu": "8", "memory": "2Gi", "nvidia.com/gpu": "1"})]}
    ).requests
    assert (requests.cpu_cores, requests.memory_gib, requests.gpus) == (1.0, 2.0, 1.0)


def test_overhead_and_pod_level_requests() -> None:
    spec = {
        "containers": [container({"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "2"})],
        "resources": {"requests": {"cpu": "6"}},
        "overhead": {"cpu": "250m"},
    }
    requests = facts(spec).requests
    assert (requests.cpu_cores, requests.memory_gib, requests.gpus) == (6.25, 1.0, 2.0)


@pytest.mark.parametrize(
    ("resources", "gpus", "vendor"),
    [
        ({"nvidia.com/gpu": "4"}, 4.0, "NVIDIA"),
        ({"amd.com/gpu": "8"}, 8.0, "AMD"),
        ({"gpu.intel.com/i915": "1"}, 1.0, "Intel"),
        ({"nvidia.com/gpu.shared": "1"}, 1.0, "NVIDIA"),
        ({"nvidia.com/mig-3g.40gb": "1", "nvidia.com/mig-1g.10gb": "2"}, 5 / 7, "NVIDIA"),
        ({"nvidia.com/mig-1g.10gb.me": "7"}, 1.0, "NVIDIA"),
        ({"nvidia.com/gpu": "0"}, 0.0, None),
        ({"vendor.example/fpga": "1"}, 0.0, None),
    ],
)
def test_gpus(resources: dict[str, str], gpus: float, vendor: str | None) -> None:
    requests = facts({"containers": [container(resources)]}).requests
    assert requests.gpus == pytest.approx(gpus)
    assert requests.gpu_vendor == vendor


def test_pods_of_a_template_share_their_requests() -> None:
    spec = {"containers": [container({"cpu": "100m"})]}
    assert facts(spec).requests is facts(spec).requests


def test_unreadable_requests_are_reported_and_the_rest_counts() -> None:
    read = facts({"containers": [container({"cpu": "lots", "memory": "-1Gi", "nvidia.com/gpu": "1"})]})
    assert read.requests.gpus == 1.0
    assert len(read.mistakes) == 2
    assert "c: cpu: invalid quantity 'lots'" in read.mistakes[0]


# ---- annotations


def test_classes() -> None:
    assert annotated().workload_class is None
    assert annotated(workload_class="performance").workload_class is WorkloadClass.PERFORMANCE
    assert annotated(workload_class="standard").workload_class is WorkloadClass.STANDARD


@pytest.mark.parametrize("text", ["", "Performance", "eco", "x" * 500])
def test_any_other_class_is_standard_and_told(text: str) -> None:
    read = annotated(workload_class=text)
    assert read.workload_class is WorkloadClass.STANDARD
    (mistake,) = read.mistakes
    assert "joulie.io/workload-class" in mistake
    assert "must be performance or standard; treated as standard" in mistake
    assert len(mistake) < 200


def test_other_annotations() -> None:
    read = annotated(reschedulable="false", cpu_sensitivity="high", gpu_sensitivity="low")
    assert (read.reschedulable, read.cpu_sensitivity, read.gpu_sensitivity) == (False, Level.HIGH, Level.LOW)
    assert read.mistakes == ()
    wrong = annotated(reschedulable="yes", cpu_sensitivity="very")
    assert (wrong.reschedulable, wrong.cpu_sensitivity) == (None, None)
    assert [text.partition(":")[0] for text in wrong.mistakes] == [
        "annotation joulie.io/reschedulable",
        "annotation joulie.io/cpu-sensitivity",
    ]


def test_simulated_use() -> None:
    keys = {
        "sim.joulie.io/cpu-util-pct": "85.5",
        "sim.joulie.io/gpu-util-pct": "900",
        "sim.joulie.io/memory-pressure-pct": "x",
    }
    pod = msgspec.convert({"metadata": {"annotations": keys}}, Pod)
    assert simulated_use(pod) == SimulatedUse(cpu_util_pct=85.5)


# ---- constraints


def terms(*expressions: list[tuple[str, str, list[str]]]) -> dict[str, Any]:
    """A required affinity: terms are OR-ed, expressions of a term AND-ed."""
    listed = [
        {"matchExpressions": [{"key": key, "operator": operator, "values": values} for key, operator, values in term]}
        for term in expressions
    ]
    return {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": listed}}}
    }


PERFORMANCE, ECO = PowerConstraint.PERFORMANCE_ONLY, PowerConstraint.ECO_ONLY
GENERAL, UNKNOWN = PowerConstraint.GENERAL, PowerConstraint.UNKNOWN


def test_l5_constraints_are_read_from_the_configured_label() -> None:
    own = msgspec.convert({"metadata": {}, "spec": {"nodeSelector": {"example.org/power": "performance"}}}, Pod)
    assert pod_facts(own, "example.org/power").constraint is PowerConstraint.PERFORMANCE_ONLY
    assert pod_facts(own).constraint is PowerConstraint.GENERAL


@pytest.mark.parametrize(
    ("spec", "constraint"),
    [
        ({}, GENERAL),
        ({"nodeSelector": {"zone": "a"}}, GENERAL),
        ({"nodeSelector": {PROFILE: "performance"}}, PERFORMANCE),
        ({"nodeSelector": {PROFILE: "eco"}}, ECO),
        ({"nodeSelector": {PROFILE: "turbo"}}, UNKNOWN),
        (terms([(PROFILE, "In", ["performance"])]), PERFORMANCE),
        (terms([(PROFILE, "In", ["performance", "draining-performance"])]), PERFORMANCE),
        (terms([(PROFILE, "In", ["draining-performance"])]), UNKNOWN),
        (terms([(PROFILE, "In", ["performance", "eco"])]), GENERAL),
        (terms([(PROFILE, "NotIn", ["eco"])]), PERFORMANCE),
        (terms([(PROFILE, "NotIn", ["eco"]), ("joulie.io/draining", "DoesNotExist", [])]), PERFORMANCE),
        (terms([(PROFILE, "NotIn", ["performance"])]), ECO),
        (terms([(PROFILE, "NotIn", ["performance", "eco"])]), UNKNOWN),
        (terms([(PROFILE, "Exists", [])]), GENERAL),
        (terms([(PROFILE, "DoesNotExist", [])]), UNKNOWN),
        (terms([(PROFILE, "Gt", ["3"])]), UNKNOWN),
        (terms([(PROFILE, "In", [])]), UNKNOWN),
        (terms([("zone", "In", ["a"])], [(PROFILE, "In", ["eco"])]), GENERAL),
        (terms([(PROFILE, "In", ["eco"])], [(PROFILE, "NotIn", ["eco"])]), GENERAL),
        (terms([(PROFILE, "In", ["eco"])], []), ECO),
        (terms(), UNKNOWN),
        ({"nodeSelector": {PROFILE: "eco"}} | terms([(PROFILE, "In", ["performance"])]), UNKNOWN),
        ({"affinity": {}}, GENERAL),
        ({"affinity": {"nodeAffinity": {}}}, GENERAL),
    ],
)
def test_constraints(spec: dict[str, Any], constraint: PowerConstraint) -> None:
    assert facts(spec).constraint is constraint


# ---- owner and state


def owned(kind: str, name: str, labels: dict[str, str] | None = None, *, controller: bool = True) -> PodFacts:
    reference = {"apiVersion": "v1", "kind": kind, "name": name, "uid": "u", "controller": controller}
    return facts(metadata={"name": "p", "labels": labels or {}, "ownerReferences": [reference]})


def test_owners() -> None:
    assert facts().owner == Owner("Pod", "p")
    assert owned("Job", "train").owner == Owner("Job", "train")
    assert owned("ReplicaSet", "web-7d9f8c", {"pod-template-hash": "7d9f8c"}).owner == Owner("Deployment", "web")
    assert owned("ReplicaSet", "web-7d9f8c").owner == Owner("ReplicaSet", "web-7d9f8c")
    assert owned("Job", "other", controller=False).owner == Owner("Pod", "p")


@pytest.mark.parametrize(
    ("name", "created", "api_version", "owner"),
    [
        ("nightly-29000000", "2025-02-19T21:20:00Z", "batch/v1", Owner("CronJob", "nightly")),  # that very minute
        ("a-b-29000000", "2025-02-20T09:00:00Z", "batch/v1", Owner("CronJob", "a-b")),
        ("nightly-29000000", "2025-02-19T21:19:59Z", "batch/v1", None),
        ("nightly-29000000", "2025-02-27T00:00:00Z", "batch/v1", None),
        ("nightly-29000000", None, "batch/v1", None),
        ("nightly-29000000", "2025-02-19T21:20:00Z", "batch.volcano.sh/v1alpha1", None),
        ("nightly-20250220", "2025-02-19T21:20:00Z", "batch/v1", None),
        ("nightly-manual", "2025-02-19T21:20:00Z", "batch/v1", None),
    ],
)
def test_a_job_belongs_to_a_cron_job_where_its_name_is_the_minute_of_its_pod(
    name: str, created: str | None, api_version: str, owner: Owner | None
) -> None:
    reference = {"apiVersion": api_version, "kind": "Job", "name": name, "uid": "u", "controller": True}
    meta = {"name": "p", "ownerReferences": [reference]} | ({"creationTimestamp": created} if created else {})
    assert facts(metadata=meta).owner == (owner or Owner("Job", name))


def test_what_manages_a_pod_is_kept_once_for_all_of_its_pods() -> None:
    first, second = owned("Job", "train"), owned("Job", "train")
    assert first.controller is not None
    assert (first.controller.kind, first.controller.name, first.controller.uid) == ("Job", "train", "u")
    assert first.controller is second.controller
    assert facts().controller is None


def test_since_when_a_pod_runs() -> None:
    started = {"phase": "Running", "startTime": "1970-01-01T00:01:40Z"}
    assert facts(status=started).running_since_s == 100.0
    assert facts(status=started | {"phase": "Pending"}).running_since_s is None
    created = {"name": "p", "creationTimestamp": "1970-01-01T00:00:10Z"}
    assert facts(status={"phase": "Running"}, metadata=created).running_since_s == 10.0
    assert facts(status={"phase": "Running", "startTime": "soon"}).running_since_s is None


@pytest.mark.parametrize(
    ("spec", "limit_gib"),
    [
        ({"containers": [container(limits={"memory": "1Gi"}), container(limits={"memory": "512Mi"})]}, 1.5),
        ({"containers": [container(limits={"memory": "1Gi"}), container()]}, None),
        ({"containers": [container()], "resources": {"limits": {"memory": "3Gi"}}}, 3.0),
        (
            {
                "containers": [container(limits={"memory": "1Gi"})],
                "initContainers": [container(limits={"memory": "1Gi"}, restartPolicy="Always"), container()],
            },
            2.0,
        ),
        ({"containers": [container(limits={"memory": "much"})]}, None),
        ({"containers": [container(limits={"memory": "0"})]}, None),
    ],
)
def test_the_memory_limit_of_a_pod(spec: dict[str, Any], limit_gib: float | None) -> None:
    assert facts(spec).memory_limit_gib == limit_gib


def test_annotations_are_hints_of_the_workload() -> None:
    read = annotated(workload_class="performance", reschedulable="false", cpu_sensitivity="high", gpu_sensitivity="low")
    assert read.hints == Hints(WorkloadClass.PERFORMANCE, False, Level.HIGH, Level.LOW)
    mistakes: list[str] = []
    assert read_hints({"joulie.io/reschedulable": "perhaps"}, mistakes) == Hints()
    assert mistakes == ["annotation joulie.io/reschedulable: invalid value 'perhaps': must be true or false; ignored"]


def test_what_a_simulation_plays_is_kept_where_there_is_any() -> None:
    meta = {"name": "p", "annotations": {"sim.joulie.io/cpu-util-pct": "40"}}
    assert facts(metadata=meta).simulated == SimulatedUse(cpu_util_pct=40.0)
    assert facts().simulated is None
    assert owned("DaemonSet", "agent").daemon
    assert not owned("Job", "train").daemon


@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        ("", PodPhase.PENDING),
        ("Pending", PodPhase.PENDING),
        ("Running", PodPhase.RUNNING),
        ("Unknown", PodPhase.RUNNING),
        ("Succeeded", PodPhase.FINISHED),
        ("Failed", PodPhase.FINISHED),
    ],
)
def test_phases(phase: str, expected: PodPhase) -> None:
    assert facts(status={"phase": phase}).phase is expected


def test_gates_and_deletion() -> None:
    assert facts({"schedulingGates": [{"name": "joulie.io/grid"}]}).gated
    assert facts(metadata={"name": "p", "deletionTimestamp": "2026-03-13T12:00:00Z"}).terminating
    assert not facts().gated
    assert not facts().terminating


# ---- what the domain makes of it

HEAVY = ProfileFacts(
    workload_class=WorkloadClass.PERFORMANCE,
    reschedulable=True,
    cpu_sensitivity=Level.MEDIUM,
    intensity=Intensity.HIGH,
    confidence=0.7,
)


def test_annotations_win_over_the_profile() -> None:
    read = annotated(workload_class="standard", reschedulable="false", cpu_sensitivity="high")
    assert read.view(HEAVY) == PodView(reschedulable=False, cpu_sensitivity=Sensitivity.HIGH)
    assert read.guarded(HEAVY) == GuardedPod(WorkloadClass.STANDARD, GENERAL, reschedulable=False)


def test_the_profile_speaks_where_there_is_no_annotation() -> None:
    read = annotated()
    assert read.view(HEAVY) == PodView(performance=True, reschedulable=True, cpu_sensitivity=Sensitivity.MEDIUM)
    assert read.demand(HEAVY) == PodDemand(PodPhase.PENDING, WorkloadClass.PERFORMANCE, GENERAL, Intensity.HIGH, 0.7)
    assert read.demand(HEAVY).weight == 2


def test_a_standard_profile_does_not_outweigh_the_constraint() -> None:
    read = facts({"nodeSelector": {PROFILE: "performance"}})
    standard = ProfileFacts(workload_class=WorkloadClass.STANDARD)
    assert read.demand(standard).weight == 1
    assert read.guarded(standard).blocks


def test_profiles() -> None:
    body = {
        "metadata": {"name": "x", "namespace": "ns"},
        "spec": {"workloadRef": {"kind": "Job", "name": "train"}},
        "status": {
            "criticality": {"class": "performance"},
            "migratability": {"reschedulable": False},
            "cpu": {"intensity": "low", "capSensitivity": "low"},
            "gpu": {"intensity": "high", "capSensitivity": "none"},
            "confidence": 0.85,
        },
    }
    profile = msgspec.convert(body, WorkloadProfile)
    assert profile_owner(profile) == ("ns", Owner("Job", "train"))
    assert profile_facts(profile) == ProfileFacts(
        WorkloadClass.PERFORMANCE,
        reschedulable=False,
        cpu_sensitivity=Level.LOW,
        intensity=Intensity.HIGH,
        confidence=0.85,
    )
    empty = msgspec.convert(body | {"status": {}}, WorkloadProfile)
    assert profile_facts(empty) == ProfileFacts()
