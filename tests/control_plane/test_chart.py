"""The Helm chart: what it renders, whom it allows what, which values it refuses; a real API server takes it."""

from __future__ import annotations

import asyncio
import copy
import functools
import importlib.util
import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from joulie.adapters.kubernetes import gating
from joulie.adapters.kubernetes import intensities as intensities_map
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.demand import CONFIG_MAP
from joulie.adapters.kubernetes.errors import ForbiddenError
from joulie.adapters.kubernetes.holdout import CONFIG_MAP as HOLDOUT_CONFIG_MAP
from joulie.adapters.kubernetes.names import AGENT_FIELD_MANAGER
from joulie.adapters.kubernetes.resources import NODE_HARDWARES, NODE_TWINS, TELEMETRY_PROFILES, Resource
from joulie.apps.accounting.settings import AccountingSettings
from joulie.apps.agent.settings import AgentSettings
from joulie.apps.cleanup.main import CleanupSettings
from joulie.apps.extender.settings import ExtenderSettings
from joulie.apps.grid.guard import LEASE_NAME as GRID_LEASE
from joulie.apps.grid.guard import GuardSettings
from joulie.apps.grid.settings import ControllerSettings
from joulie.apps.grid.webhook import WebhookSettings
from joulie.apps.grid.webhook_trust import ASKS_CONDITION, PODS_WEBHOOK
from joulie.apps.kubectl.web.aggregated import API_SERVICE
from joulie.apps.kubectl.web.settings import WebSettings
from joulie.apps.operator.main import LEASE_NAME
from joulie.apps.operator.settings import OperatorSettings
from joulie.domain.scheduling.labels import Requirement
from joulie.program.settings import all_settings
from joulie_lab.apps.simulator.settings import SimulatorSettings
from joulie_lab.control_plane import ApiError, Binaries, LocalControlPlane, kwok_node, wait_for
from support.loop import bind_token

pytestmark = [pytest.mark.control_plane, pytest.mark.slow]

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "joulie"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
NAMESPACE = "joulie-system"
GRID = ("grid", "grid-guard", "grid-webhook", "accounting")
PROGRAMS = ("operator", "agent", "agent-pool", "extender", "simulator", "web", "cleanup", *GRID)
"""Components with an account of their own."""
AGENTS = ("agent-nvidia", "agent-amd", "agent")
"""DaemonSets of agents, in the order in which a node belongs to one."""
PODS_OF = (*PROGRAMS, "agent-nvidia", "agent-amd")

EVERYTHING: dict[str, Any] = {
    "mode": "enforce",
    "operator": {"alerts": {"enabled": True, "tokenSecretName": "alertmanager", "tlsSecretName": "certificate"}},
    "namespace": {"create": True},
    "agent": {
        "kinds": {"nvidia": {"driverRoot": "/run/nvidia/driver"}},
        "hostPaths": {"proc": "/proc", "dev": "/dev"},
        "seLinuxOptions": {"type": "spc_t"},
    },
    "agentPool": {"enabled": True, "replicas": 2, "useSimulator": True},
    "simulator": {"enabled": True, "traceConfigMap": "jobs"},
    "scheduler": {"enabled": True, "clientCertificateSecretName": "client"},
    "steering": {"mode": "both"},
    "extender": {"tls": {"enabled": True, "secretName": "certificate", "clientCertificates": True}},
    "serviceMonitor": {"enabled": True},
    "hardwareCatalogue": "cpus: []",
    "grid": {
        "enabled": True,
        "kueue": True,
        "multikueue": True,
        "replicaCeilings": True,
        "admission": {"mode": "webhook"},
    },
    "carbonAware": {"electricityMap": {"apiKey": "secret-key"}},
    "priceAware": {"enabled": True, "schedules": [{"name": "tariff", "dayOfWeek": "1-5"}]},
    "metrics": {"serviceMonitor": {"enabled": True}, "prometheus": {"url": "http://prometheus:9090"}},
    "hardwareProfiles": "cpuProfiles: {}",
    "accounting": {"inventory": "pue: []"},
    "web": {
        "enabled": True,
        "proxy": {"enabled": True, "clientCASecretName": "proxy"},
        "aggregatedApi": {"enabled": True},
    },
    "dashboards": {"enabled": True},
    "prometheusRule": {"enabled": True},
}
"""All switches on."""

Document = dict[str, Any]
Render = Callable[..., list[Document]]


class RefusedError(AssertionError):
    """Helm refused the values; the message is its own."""


@pytest.fixture(scope="module")
def rendered_text(control_plane_binaries: Binaries) -> Callable[..., str]:
    """Renders the chart, once for equal values: helm takes a quarter of a second."""

    @functools.cache
    def run(values: str, *arguments: str) -> str:
        command = [control_plane_binaries["helm"], "template", "joulie", CHART, "-n", NAMESPACE, "-f", "-", *arguments]
        ended = subprocess.run(command, input=values, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise RefusedError(ended.stderr)
        return ended.stdout

    def render(values: Mapping[str, Any] | None = None, *arguments: str) -> str:
        return run(json.dumps(values or {}), *arguments)

    return render


@pytest.fixture(scope="module")
def render(rendered_text: Callable[..., str]) -> Render:
    """Documents of a rendered chart, which tests must not change."""

    @functools.cache
    def documents(text: str) -> list[Document]:
        return [document for document in yaml.load_all(text, Loader=yaml.CSafeLoader) if document]

    def render(values: Mapping[str, Any] | None = None, *arguments: str) -> list[Document]:
        return documents(rendered_text(values, *arguments))

    return render


def merged(values: Mapping[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """The values with one of them set."""
    changed = copy.deepcopy(dict(values))
    inner = changed
    for key in path[:-1]:
        inner = inner.setdefault(key, {})
    inner[path[-1]] = value
    return changed


def without_foreign_kinds(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values without kinds of the Prometheus operator, which is not here, and the namespace, which Helm creates."""
    values = merged(values, ("metrics", "serviceMonitor", "enabled"), False)
    for part, switch in (("serviceMonitor", "enabled"), ("prometheusRule", "enabled"), ("namespace", "create")):
        values = merged(values, (part, switch), False)
    return dict(values)


def of_kind(documents: list[Document], *kinds: str) -> dict[str, Document]:
    """Documents of these kinds by the component that they belong to."""
    return {item["metadata"]["name"].removeprefix("joulie-"): item for item in documents if item["kind"] in kinds}


def workloads(documents: list[Document]) -> dict[str, Document]:
    """Pod specs by component."""
    found = of_kind(documents, "Deployment", "DaemonSet", "StatefulSet", "Job", "CronJob")
    jobs = {name: item["spec"].get("jobTemplate", item)["spec"] for name, item in found.items()}
    return {name: item["template"]["spec"] for name, item in jobs.items()}


def environment(spec: Document) -> dict[str, str]:
    (container,) = spec["containers"]
    return {item["name"]: item.get("value", "") for item in container.get("env", ())}


# ---- rendering


def test_lint(control_plane_binaries: Binaries, tmp_path: Path) -> None:
    values = tmp_path / "values.json"
    for content in ({}, EVERYTHING):
        values.write_text(json.dumps(content), encoding="utf-8")
        subprocess.run([control_plane_binaries["helm"], "lint", "--strict", CHART, "-f", values], check=True)


def test_what_is_installed_by_default(render: Render) -> None:
    assert sorted(workloads(render())) == sorted([*AGENTS, "cleanup", "extender", "operator"])
    assert sorted(workloads(render(EVERYTHING))) == sorted([*PODS_OF, "scheduler"])


OTHER_VALUES: dict[tuple[str, ...], Any] = {
    ("image", "digest"): "sha256:" + "0" * 64,
    ("image", "pullPolicy"): "Always",
    ("simulator", "image", "digest"): "sha256:" + "0" * 64,
    ("simulator", "image", "pullPolicy"): "Always",
    ("imagePullSecrets",): [{"name": "pull"}],
    ("log", "level"): "debug",
    ("log", "format"): "text",
    ("steering", "mode"): "extender",
    ("steering", "admission", "apiVersion"): "v1beta1",
    ("extender", "tls", "enabled"): None,
    ("extender", "service", "type"): "NodePort",
    ("agent", "stateDir"): "/srv/joulie",
    ("agent", "seLinuxOptions"): {"type": "other"},
    ("agent", "hostPaths", "sys"): "/srv/sys",
    ("agent", "hostPaths", "proc"): "/srv/proc",
    ("agent", "hostPaths", "dev"): "/srv/dev",
    ("agent", "hostPaths", "podResources"): "/srv/pod-resources",
    ("agent", "kinds", "nvidia", "nodeExpressions"): [{"key": "gpu", "operator": "Exists"}],
    ("agent", "kinds", "nvidia", "driverRoot"): "/",
    ("agent", "kinds", "nvidia", "amdGpus"): True,
    ("agent", "kinds", "amd", "nodeExpressions"): [{"key": "gpu", "operator": "Exists"}],
    ("mode",): "observe",
    ("steering", "admission", "canary"): None,
    ("scheduler", "image", "pullPolicy"): "Always",
    ("scheduler", "extenderTimeout"): "2s",
    ("serviceMonitor", "interval"): "1m",
    ("prometheusRule", "runbooks"): "https://wiki.example/joulie/",
    ("networkPolicy", "metricsFrom"): [{"namespaceSelector": {}}],
    ("networkPolicy", "webFrom"): [{"namespaceSelector": {}}],
    ("web", "service", "type"): "LoadBalancer",
    ("simulator", "enabled"): None,
    ("scheduler", "enabled"): None,
    ("grid", "enabled"): None,
    ("grid", "admission", "mode"): "policy",
    ("grid", "admission", "apiVersion"): None,
    ("grid", "kueue"): False,
    ("grid", "replicaCeilings"): False,
    ("grid", "multikueue"): None,
    ("grid", "kueueResources"): [{"apiGroups": ["example.com"], "resources": ["trains"]}],
    ("grid", "guard", "schedule"): "*/2 * * * *",
    ("priceAware", "schedules"): [{"name": "another"}],
    ("scheduler", "maxSchedulingDelay"): "12h",
    ("carbonAware", "carbonIntensityThreshold"): 120,
    ("carbonAware", "electricityMap", "existingSecret"): "mine",
    ("dryRun", "mode"): "annotate",
    ("dryRun", "filterMode"): "namespace",
    ("metrics", "serviceMonitor", "interval"): "1m",
    ("metrics", "prometheus", "queryTimeout"): "5s",
    ("accounting", "persistence", "size"): "1Gi",
}
"""Where any other value of the same type would not do; None: tested elsewhere, since others depend on it."""


def leaves(values: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in values.items():
        if isinstance(value, dict) and value and key not in {"requests", "limits", "nodeSelector"}:
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value


def another(path: tuple[str, ...], value: Any) -> Any:
    """A different value that the schema allows."""
    if path in OTHER_VALUES:
        return OTHER_VALUES[path]
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case list():
            return [*value, {"key": "k"}] if path[-1] == "tolerations" else [*value, "other"]
        case dict():
            keys = {"signals": "CARBON_SOURCES"}
            return {**value, keys.get(path[-1], "example.com/key"): "7"}
        case _:
            return "other"


def marked(path: tuple[str, ...], mark: str) -> Any:
    """A value that contains a mark, which the chart must pass on as it is; None where it does not."""
    match path[-1]:
        case "settings":
            return {"RECONCILE_INTERVAL" if path == ("agent", "settings") else "KUBE_CONTEXT": mark}
        case "podAnnotations" | "annotations" | "labels" | "nodeSelector":
            return {"example.com/key": mark}
        case "tolerations":
            return [{"key": mark}]
        case "affinity":
            return {"podAffinity": {"mark": mark}}
        case "requests" | "limits":
            return {"cpu": mark}
        case "extraEnv" | "extraVolumes":
            return [{"name": mark}]
        case "extraVolumeMounts":
            return [{"name": mark, "mountPath": "/mnt"}]
        case "priorityClassName" | "tag" | "repository" | "storageClassName" | "traceConfigMap":
            return mark
        case _:
            return None


MARKS = {
    path: mark
    for number, (path, _) in enumerate(leaves(VALUES))
    if marked(path, mark := f"mark-{number}-x") is not None and path != ("grid", "webhook", "annotations")
}
"""Values that one rendering can check together."""


def test_values_are_passed_on(rendered_text: Callable[..., str]) -> None:
    values: dict[str, Any] = EVERYTHING
    for path, mark in MARKS.items():
        values = merged(values, path, marked(path, mark))
    text = rendered_text(values)
    assert [".".join(path) for path, mark in MARKS.items() if mark not in text] == []


@pytest.mark.parametrize("path", [path for path, _ in leaves(VALUES) if path not in MARKS], ids=".".join)
def test_every_value_has_an_effect(rendered_text: Callable[..., str], everything: str, path: tuple[str, ...]) -> None:
    given: Any = EVERYTHING
    default: Any = VALUES
    for key in path:
        given = given.get(key) if isinstance(given, dict) else None
        default = default[key]
    changed = another(path, default if given is None else given)
    if changed is not None:
        assert rendered_text(merged(EVERYTHING, path, changed)) != everything


@pytest.fixture(scope="module")
def everything(rendered_text: Callable[..., str]) -> str:
    return rendered_text(EVERYTHING)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"operater": {}}, "additional properties 'operater' not allowed"),
        ({"mode": "watch"}, "value must be one of 'observe', 'enforce'"),
        ({"mode": None}, "missing property 'mode'"),
        ({"agent": {"kinds": {"tpu": {}}}}, "additional properties 'tpu' not allowed"),
        ({"agent": {"kinds": {"amd": {"nodeExpressions": [{"key": "a", "operator": "Gt"}]}}}}, "value must be one of"),
        ({"agent": {"hostPaths": {"sys": ""}}}, "does not match pattern"),
        ({"operator": {"extraVolumes": [{"emptyDir": {}}]}}, "missing property 'name'"),
        ({"operator": {"replicas": 0}}, "minimum: got 0, want 1"),
        ({"operator": {"settings": {"policyType": "x"}}}, "invalid propertyName 'policyType'"),
        ({"grid": {"signals": {"CARBON_SOURCE": "uk"}}}, "invalid propertyName 'CARBON_SOURCE'"),
        ({"extender": {"settings": {"POLICY_TYPE": "x"}}}, "invalid propertyName 'POLICY_TYPE'"),
        ({"operator": {"settings": {"METRICS_ADDR": ":1"}}}, "invalid propertyName 'METRICS_ADDR'"),
        ({"steering": {"mode": "webhook"}}, "value must be one of 'extender', 'admission', 'both', 'none'"),
        ({"extender": {"tls": {"enabled": True}}}, "/extender/tls/secretName"),
        ({"extender": {"tls": {"clientCertificates": True}}}, "/extender/tls/clientCertificates"),
        ({"extender": {"port": 70000}}, "maximum"),
        ({"image": {"digest": "latest"}}, "does not match pattern"),
        ({"simulator": {"image": {"digest": "latest"}}}, "does not match pattern"),
        ({"agent": {"stateDir": "var"}}, "does not match pattern"),
        ({"log": {"level": "loud"}}, "value must be one of"),
        ({"scheduler": {"enabled": True}, "steering": {"mode": "admission"}}, "scheduler.enabled needs the extender"),
        ({"agentPool": {"enabled": True, "useSimulator": True}}, "agentPool.useSimulator needs simulator.enabled"),
        ({"carbonAware": {"electricityMap": {"apiKey": "k"}}}, "carbonAware.electricityMap needs grid.enabled"),
        ({"dryRun": {"enabled": True}}, "need grid.enabled"),
        ({"dryRun": {"mode": "loud"}}, "value must be one of 'metrics', 'annotate'"),
        ({"grid": {"settings": {"LEASE_NAME": "x"}}}, "invalid propertyName 'LEASE_NAME'"),
        # Twice in a container, it would be refused by the API server, or count without dryRun knowing of it.
        ({"grid": {"settings": {"DRY_RUN_ENABLED": "true"}}}, "invalid propertyName 'DRY_RUN_ENABLED'"),
        ({"grid": {"signals": {"WATTTIME_PASSWORD": "x"}}}, "invalid propertyName 'WATTTIME_PASSWORD'"),
        ({"scheduler": {"maxSchedulingDelay": "a day"}}, "does not match pattern"),
    ],
    ids=lambda item: json.dumps(item) if isinstance(item, dict) else "",
)
def test_wrong_values_are_refused(render: Render, values: dict[str, Any], reason: str) -> None:
    with pytest.raises(RefusedError) as refusal:
        render(values)
    assert reason in str(refusal.value)


def test_the_simulator_has_an_image_of_its_own(render: Render) -> None:
    def images(**values: Any) -> dict[str, str]:
        specs = workloads(render({"simulator": {"enabled": True, **values}, "image": {"tag": "1.2.3"}}))
        return {component: spec["containers"][0]["image"] for component, spec in specs.items()}

    version = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))["appVersion"]
    default = images()
    assert default.pop("simulator") == f"ghcr.io/joulie-k8s/joulie-lab:{version}"
    assert set(default.values()) == {"ghcr.io/joulie-k8s/joulie:1.2.3"}
    digest = "sha256:" + "a" * 64
    mine = images(image={"repository": "registry.example/lab", "tag": "edge", "digest": digest})
    assert mine["simulator"] == f"registry.example/lab@{digest}"


def test_crds_stay_unless_told_otherwise(render: Render) -> None:
    kinds = of_kind(render(), "CustomResourceDefinition")
    assert len(kinds) == 8
    assert all(item["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"} for item in kinds.values())
    dropped = of_kind(render({"crds": {"keep": False}}), "CustomResourceDefinition")
    assert not any("annotations" in item["metadata"] for item in dropped.values())
    assert of_kind(render({"crds": {"install": False}}), "CustomResourceDefinition") == {}


def test_settings_keep_their_digits_and_types(render: Render) -> None:
    settings = {
        "QUEUE_HP_MAX": 1000000,
        "STATIC_HP_FRAC": 0.25,
        "LEADER_ELECT": False,
        "GPU_MODEL_CAPS_JSON": {"a": {"maxCapWatts": 300}},
    }
    given = environment(workloads(render({"operator": {"settings": settings}}))["operator"])
    assert {name: given[name] for name in settings} == {
        "QUEUE_HP_MAX": "1000000",
        "STATIC_HP_FRAC": "0.25",
        "LEADER_ELECT": "false",
        "GPU_MODEL_CAPS_JSON": '{"a":{"maxCapWatts":300}}',
    }


def test_programs_know_every_variable_that_the_chart_sets(render: Render) -> None:
    settings = {
        "operator": OperatorSettings,
        "agent": AgentSettings,
        "agent-nvidia": AgentSettings,
        "agent-amd": AgentSettings,
        "agent-pool": AgentSettings,
        "extender": ExtenderSettings,
        "simulator": SimulatorSettings,
        "cleanup": CleanupSettings,
        "grid": ControllerSettings,
        "grid-guard": GuardSettings,
        "grid-webhook": WebhookSettings,
        "accounting": AccountingSettings,
        "web": WebSettings,
    }
    # Read by the container runtime and by Python, and by the agent for the number of its shard.
    runtime = {"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "LD_LIBRARY_PATH", "PYTHONOPTIMIZE"}
    others = {"agent-pool": {"POD_NAME"}} | dict.fromkeys(AGENTS, runtime)
    values = merged(EVERYTHING, ("agent", "runtimeClassName"), "nvidia")
    for path in (
        ("metrics", "certificateSecretName"),
        ("grid", "webhook", "certificateSecretName"),
        ("web", "certificateSecretName"),
    ):
        values = merged(values, path, "certificate")
    rendered = workloads(render(merged(values, ("accounting", "ledgerSecretName"), "ledger")))
    for component, definition in settings.items():
        known = set(all_settings(definition)) | others.get(component, set())
        given = [item["name"] for item in rendered[component]["containers"][0]["env"]]
        assert set(given) <= known, component
        assert len(set(given)) == len(given), f"{component}: a variable is set twice"


def test_pool_agents_read_the_simulator_and_say_otherwise_by_settings(render: Render) -> None:
    values = merged(EVERYTHING, ("agentPool", "settings"), {"TELEMETRY_GPU_SOURCE": "none"})
    given = environment(workloads(render(values))["agent-pool"])
    assert given["TELEMETRY_CPU_HTTP_ENDPOINT"] == f"http://joulie-simulator.{NAMESPACE}.svc:18080/telemetry/{{node}}"
    assert (given["POOL_SHARDS"], given["TELEMETRY_CPU_SOURCE"], given["TELEMETRY_GPU_SOURCE"]) == ("2", "http", "none")


def test_the_operator_measures_simulated_nodes_unless_told_otherwise(render: Render) -> None:
    def endpoint(**values: Any) -> str | None:
        return environment(workloads(render(values))["operator"]).get("TELEMETRY_HTTP_ENDPOINT")

    on = {"enabled": True}
    elsewhere = "https://gateway/telemetry/{node}"
    assert endpoint() is None
    assert endpoint(simulator=on) == f"http://joulie-simulator.{NAMESPACE}.svc:18080/telemetry"
    assert endpoint(simulator=on, operator={"settings": {"TELEMETRY_HTTP_ENDPOINT": elsewhere}}) == elsewhere


def test_agents_end_restoring_before_they_are_killed(render: Render) -> None:
    values = {"agentPool": {"enabled": True, "terminationGracePeriodSeconds": 90}}
    default = all_settings(AgentSettings)["RESTORE_TIMEOUT"].default
    for component, grace_s, restore in (("agent", 30, default), ("agent-pool", 90, "80s")):
        spec = workloads(render(values))[component]
        assert spec["terminationGracePeriodSeconds"] == grace_s
        assert environment(spec).get("RESTORE_TIMEOUT", default) == restore
    assert default == "20s"


# ---- security


def test_pods_have_the_least_that_they_need(render: Render) -> None:
    for component, spec in workloads(render(EVERYTHING)).items():
        assert (component in AGENTS) is any("hostPath" in volume for volume in spec["volumes"]), component
        (container,) = spec["containers"]
        own, pod = container["securityContext"], spec["securityContext"]
        assert own["readOnlyRootFilesystem"] is True, component
        assert pod["seccompProfile"] == {"type": "RuntimeDefault"}, component
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}, component
        assert "memory" in container["resources"]["limits"], component
        assert not any(spec.get(name) for name in ("hostNetwork", "hostPID", "hostIPC")), component
        if component in AGENTS:
            continue
        assert pod["runAsNonRoot"] is True, component
        assert own["capabilities"] == {"drop": ["ALL"]}, component
        assert own["allowPrivilegeEscalation"] is False, component


def test_the_agent_reaches_every_node_and_writes_little(render: Render) -> None:
    spec = workloads(render())["agent"]
    (container,) = spec["containers"]
    assert spec["tolerations"] == [{"operator": "Exists"}]
    assert container["securityContext"]["privileged"] is True
    writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {"/tmp", "/var/lib/joulie", "/host/sys/devices/virtual", "/host/sys/devices/system/cpu"}
    unprivileged = workloads(render({"agent": {"privileged": False}}))["agent"]["containers"][0]["securityContext"]
    assert "privileged" not in unprivileged
    assert unprivileged["capabilities"] == {"drop": ["ALL"]}


LIST_WATCH = ("list", "watch")
ANSWERS = {
    "admissionchecks.kueue.x-k8s.io": ("list",),
    "multikueueclusters.kueue.x-k8s.io": ("list",),
    "multikueueconfigs.kueue.x-k8s.io": ("list",),
    "workloads.kueue.x-k8s.io": ("get", "list"),
    "workloads/status.kueue.x-k8s.io": ("patch",),
}
QUEUED = dict.fromkeys(
    (
        "jobsets.jobset.x-k8s.io",
        "leaderworkersets.leaderworkerset.x-k8s.io",
        "rayclusters.ray.io",
        "rayjobs.ray.io",
        "trainjobs.trainer.kubeflow.org",
        *(f"{framework}jobs.kubeflow.org" for framework in ("jax", "mpi", "paddle", "pytorch", "tf", "xgboost")),
    ),
    ("get", "patch"),
)
"""What Kueue queues, besides what Joulie reads anyway."""
BINDINGS = "mutatingadmissionpolicybindings.admissionregistration.k8s.io"
AUTOSCALERS = ("horizontalpodautoscalers.autoscaling", "scaledobjects.keda.sh")
RIGHTS: dict[str, dict[str, tuple[str, ...]]] = {
    "operator": {
        "nodes": (*LIST_WATCH, "patch"),
        "pods": LIST_WATCH,
        "events": ("create", "patch"),
        "nodetwins.joulie.io": (*LIST_WATCH, "create", "patch", "delete"),
        "nodepowerprofiles/status.joulie.io": ("patch",),
        "nodetwins/status.joulie.io": ("patch",),
        "powerbudgets.joulie.io": (*LIST_WATCH, "patch"),
        "powerbudgets/status.joulie.io": ("patch",),
        "powertrials.joulie.io": ("list",),
        "powertrials/status.joulie.io": ("patch",),
        "nodehardwares.joulie.io": LIST_WATCH,
        "nodepowerprofiles.joulie.io": LIST_WATCH,
        "telemetryprofiles.joulie.io": LIST_WATCH,
        "telemetryprofiles/status.joulie.io": ("patch",),
        "workloadprofiles.joulie.io": (*LIST_WATCH, "create", "patch", "delete"),
        "workloadprofiles/status.joulie.io": ("patch",),
        "daemonsets.apps": LIST_WATCH,
        "deployments.apps": LIST_WATCH,
        "statefulsets.apps": LIST_WATCH,
        "cronjobs.batch": LIST_WATCH,
        "jobs.batch": LIST_WATCH,
        "nodes.metrics.k8s.io": ("list",),
        "pods.metrics.k8s.io": ("list",),
        "resourceclaims.resource.k8s.io": LIST_WATCH,
    },
    "agent": {
        "nodes": LIST_WATCH,
        "nodetwins.joulie.io": LIST_WATCH,
        "telemetryprofiles.joulie.io": LIST_WATCH,
        "nodehardwares.joulie.io": (*LIST_WATCH, "create", "patch"),
        "nodehardwares/status.joulie.io": ("patch",),
        "nodetwins/status.joulie.io": ("patch",),
        "telemetryprofiles/status.joulie.io": ("patch",),
        "resourceslices.resource.k8s.io": ("list",),
    },
    "extender": {
        "nodes": LIST_WATCH,
        "pods": LIST_WATCH,
        "powerbudgets.joulie.io": LIST_WATCH,
        "namespaces": LIST_WATCH,
        "nodetwins.joulie.io": LIST_WATCH,
        "nodehardwares.joulie.io": LIST_WATCH,
        "workloadprofiles.joulie.io": LIST_WATCH,
    },
    "simulator": {"nodes": LIST_WATCH, "pods": (*LIST_WATCH, "create", "patch", "delete"), "pods/status": ("patch",)},
    "cleanup": {
        "nodes": ("list", "patch"),
        "pods": ("get", "list", "patch"),
        "nodetwins.joulie.io": ("list", "patch"),
        "jobs.batch": ("get", "list", "patch"),
        **dict.fromkeys(AUTOSCALERS, ("get", "list", "patch")),
        "statefulsets.apps": ("get", "patch"),
        BINDINGS: ("delete",),
        **ANSWERS,
        **QUEUED,
    },
    "grid": {
        "nodes": LIST_WATCH,
        "pods": ("get", *LIST_WATCH, "patch"),
        "namespaces": LIST_WATCH,
        "events": ("create", "patch"),
        "jobs.batch": ("get", *LIST_WATCH, "patch"),
        "cronjobs.batch": LIST_WATCH,
        "deployments.apps": ("get", *LIST_WATCH),
        "replicasets.apps": LIST_WATCH,
        "statefulsets.apps": ("get", *LIST_WATCH, "patch"),
        "mutatingadmissionpolicies.admissionregistration.k8s.io": ("get",),
        BINDINGS: ("create", "patch", "delete"),
        "admissionchecks.kueue.x-k8s.io": LIST_WATCH,
        "admissionchecks/status.kueue.x-k8s.io": ("patch",),
        "multikueueclusters.kueue.x-k8s.io": LIST_WATCH,
        "multikueueconfigs.kueue.x-k8s.io": LIST_WATCH,
        "workloads.kueue.x-k8s.io": ("get", *LIST_WATCH, "patch"),
        "workloads/status.kueue.x-k8s.io": ("patch",),
        "energy.joulie.io": ("get",),
        "powertrials.joulie.io": ("list",),
        "energybudgets.joulie.io": LIST_WATCH,
        "energybudgets/status.joulie.io": ("patch",),
        **dict.fromkeys(AUTOSCALERS, ("get", *LIST_WATCH, "patch")),
        **QUEUED,
    },
    "grid-guard": {
        "pods": ("get", "list", "patch"),
        "namespaces": ("list",),
        "jobs.batch": ("get", "list", "patch"),
        "cronjobs.batch": ("list",),
        **dict.fromkeys(AUTOSCALERS, ("get", "list", "patch")),
        "statefulsets.apps": ("get", "patch"),
        BINDINGS: ("delete",),
        **ANSWERS,
        **QUEUED,
    },
    "grid-webhook": {
        "namespaces": LIST_WATCH,
        "mutatingwebhookconfigurations.admissionregistration.k8s.io": ("get", "patch"),
        "energybudgets.joulie.io": LIST_WATCH,
    },
    "accounting": {
        "pods": (*LIST_WATCH, "patch"),
        "nodes": LIST_WATCH,
        "namespaces": (*LIST_WATCH, "patch"),
        "events": ("create", "patch"),
        "nodehardwares.joulie.io": LIST_WATCH,
        "energybudgets.joulie.io": (*LIST_WATCH, "create", "patch", "delete"),
        "energybudgets/status.joulie.io": ("patch",),
        "jobs.batch": ("get", "patch"),
        "pods.metrics.k8s.io": ("list",),
        "tokenreviews.authentication.k8s.io": ("create",),
        "subjectaccessreviews.authorization.k8s.io": ("create",),
    },
    "web": {
        "pods": LIST_WATCH,
        "nodes": LIST_WATCH,
        "nodetwins.joulie.io": LIST_WATCH,
        "nodehardwares.joulie.io": LIST_WATCH,
        "workloadprofiles.joulie.io": LIST_WATCH,
        "energybudgets.joulie.io": LIST_WATCH,
        "powertrials.joulie.io": LIST_WATCH,
        "powerbudgets.joulie.io": LIST_WATCH,
        "energy.joulie.io": ("get",),
        "tokenreviews.authentication.k8s.io": ("create",),
        "subjectaccessreviews.authorization.k8s.io": ("create",),
        "apiservices.apiregistration.k8s.io": ("get", "patch"),
    },
}
RIGHTS["agent-pool"] = {
    resource: verbs for resource, verbs in RIGHTS["agent"].items() if not resource.startswith("resourceslices.")
}


@pytest.mark.parametrize("component", PROGRAMS)
def test_rights(render: Render, component: str) -> None:
    role = of_kind(render(EVERYTHING), "ClusterRole")[component]
    granted: dict[str, set[str]] = {}
    for rule in role["rules"]:
        for resource in rule["resources"]:
            for group in rule["apiGroups"]:
                granted.setdefault(f"{resource}.{group}" if group else resource, set()).update(rule["verbs"])
    assert granted == {resource: set(verbs) for resource, verbs in RIGHTS[component].items()}


def test_rights_are_bound_to_their_own_accounts(render: Render) -> None:
    documents = render(EVERYTHING)
    assert set(of_kind(documents, "ServiceAccount")) == {*PROGRAMS, "scheduler"}
    for component, binding in of_kind(documents, "ClusterRoleBinding").items():
        if component.startswith("scheduler"):
            assert binding["roleRef"]["name"].startswith("system:"), component
            continue
        assert binding["roleRef"]["name"] == f"joulie-{component}"
        if component == "api":  # everybody may ask the aggregated API: the program asks what it may answer them
            assert binding["subjects"][0]["name"] == "system:authenticated"
            continue
        assert [subject["name"] for subject in binding["subjects"]] == [f"joulie-{component}"]
    assert set(of_kind(render({"operator": {"enabled": False}}), "ClusterRole")) == {"agent", "extender", "cleanup"}


def test_rights_in_the_releases_own_namespace(render: Render) -> None:
    roles = of_kind(render(EVERYTHING), "Role")
    granted = {
        component: [(rule["resources"], rule.get("resourceNames"), rule["verbs"]) for rule in role["rules"]]
        for component, role in roles.items()
        if component != "scheduler"
    }
    leases, gating_map = ["leases"], (["configmaps"], [gating.CONFIG_MAP])
    intensities = (["configmaps"], [intensities_map.CONFIG_MAP])
    request_rates = (["configmaps"], ["joulie-grid-requests"])
    assert granted == {
        "operator": [(leases, None, ["create"]), (leases, [LEASE_NAME], ["get", "update"])],
        "agent": [(["daemonsets"], [f"joulie-{name}" for name in AGENTS], ["get"])],
        "extender": [(*intensities, ["get", "list", "watch"])],
        "cleanup": [
            (leases, [LEASE_NAME, GRID_LEASE, "joulie-scheduler"], ["patch"]),
            (["serviceaccounts"], ["joulie-cleanup"], ["get"]),
            (*gating_map, ["patch"]),
        ],
        "grid": [
            (leases, None, ["create"]),
            (leases, [GRID_LEASE], ["get", "update"]),
            (*gating_map, ["patch"]),
            (*intensities, ["patch"]),
            (*request_rates, ["get", "patch"]),
        ],
        "accounting": [(*request_rates, ["get", "patch"]), (["configmaps"], [HOLDOUT_CONFIG_MAP], ["get"])],
        "grid-guard": [(leases, [GRID_LEASE], ["get"]), (*gating_map, ["patch"])],
        "web": [(leases, [LEASE_NAME, GRID_LEASE], ["get"]), (["pods"], None, ["get"])],
        "energy-api": [(["services/proxy"], ["https:joulie-accounting:10259"], ["get"])],
        "grid-webhook": [
            (*gating_map, ["get", "list", "watch"]),
            (["secrets"], ["joulie-grid-webhook"], ["get", "patch"]),
        ],
    }
    assert all_settings(CleanupSettings)["LEASE_NAME"].default == LEASE_NAME
    signed = render(merged(EVERYTHING, ("accounting", "signing", "secretName"), "key"))
    *_, heads = of_kind(signed, "Role")["accounting"]["rules"]
    assert (heads["resources"], heads["resourceNames"], heads["verbs"]) == (
        ["configmaps"],
        ["joulie-ledger-heads"],
        ["get", "patch"],
    )


def test_g15_who_views_a_namespace_may_read_its_energy(render: Render) -> None:
    role = of_kind(render(EVERYTHING), "ClusterRole")["energy-view"]
    assert role["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    assert role["rules"] == [{"apiGroups": ["joulie.io"], "resources": ["energy"], "verbs": ["get"]}]


def test_the_pages_are_off_by_default_and_restricted(render: Render) -> None:
    assert not any("web" in item["metadata"]["name"].split("-")[1:2] for item in render())
    spec = workloads(render({"web": {"enabled": True}, "grid": {"enabled": True}}))["web"]
    given = environment(spec)
    assert (given["WEB_ADDR"], given["METRICS_ADDR"], given["GRID_PORT"]) == (":8443", ":8083", "10259")
    assert given["ACCOUNTING_URL"] == f"https://joulie-accounting.{NAMESPACE}.svc:10259"
    assert given["ACCOUNTING_TOKEN_FILE"] == "/etc/joulie/accounting/token"
    assert not {"PROXY_ADDR", "WEB_TLS_CERT_FILE"} & set(given)
    without = environment(workloads(render({"web": {"enabled": True}}))["web"])
    assert "ACCOUNTING_URL" not in without
    with pytest.raises(RefusedError):
        render({"web": {"enabled": True, "proxy": {"enabled": True}}})
    proxied = render(EVERYTHING)
    given = environment(workloads(proxied)["web"])
    assert (given["PROXY_ADDR"], given["PROXY_CLIENT_CA_FILE"]) == (":8444", "/etc/joulie/proxy/ca.crt")
    ports = {one["name"]: one["port"] for one in of_kind(proxied, "Service")["web"]["spec"]["ports"]}
    assert ports == {"https": 443, "proxy": 8444, "api": 8445}


def test_the_aggregated_api_is_off_by_default_and_leads_to_the_pages_program(render: Render) -> None:
    plain = render({"web": {"enabled": True}})
    assert not any(one["kind"] == "APIService" or one["metadata"].get("namespace") == "kube-system" for one in plain)
    on = render({"web": {"enabled": True, "aggregatedApi": {"enabled": True, "port": 9000}}})
    (registered,) = (one for one in on if one["kind"] == "APIService")
    assert registered["metadata"]["name"] == API_SERVICE
    assert registered["spec"]["service"] == {"name": "joulie-web", "namespace": NAMESPACE, "port": 9000}
    # The program writes it: an upgrade must not take it out.
    assert "caBundle" not in registered["spec"]
    given = environment(workloads(on)["web"])
    assert (given["AGGREGATED_API_ADDR"], given["WEB_SERVICE"]) == (":9000", "joulie-web")
    own = {"enabled": True, "certificateSecretName": "tls", "aggregatedApi": {"enabled": True, "caBundle": "Y2E="}}
    certified = render({"web": own})
    (registered,) = (one for one in certified if one["kind"] == "APIService")
    assert registered["spec"]["caBundle"] == "Y2E="
    rules = of_kind(certified, "ClusterRole")["web"]["rules"]
    assert not any("apiservices" in rule["resources"] for rule in rules)


# ---- kinds of nodes


def wanted_by(spec: Document, labels: Mapping[str, str]) -> bool:
    """Whether a DaemonSet wants a node with these labels, as kube-scheduler and the DaemonSet controller see it."""
    affinity = spec["affinity"].get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    if any(labels.get(key) != value for key, value in spec.get("nodeSelector", {}).items()):
        return False
    if affinity is None:
        return True
    return any(
        all(
            Requirement(one["key"], one["operator"], tuple(one.get("values", ()))).holds(labels)
            for one in term["matchExpressions"]
        )
        for term in affinity["nodeSelectorTerms"]
    )


LABELLED = [
    {},
    {"nvidia.com/gpu.present": "true"},
    {"nvidia.com/gpu.present": "false"},
    {"cloud.google.com/gke-accelerator": "nvidia-l4"},
    {"feature.node.kubernetes.io/pci-0302_10de.present": "true", "nvidia.com/gpu.present": "true"},
    {"karpenter.k8s.aws/instance-gpu-manufacturer": "nvidia"},
    {"karpenter.k8s.aws/instance-gpu-manufacturer": "habana"},
    {"feature.node.kubernetes.io/amd-gpu": "true"},
    {"feature.node.kubernetes.io/pci-1200_1002.present": "true", "joulie.io/gpu-vendor": "amd"},
    {"feature.node.kubernetes.io/pci-1200_1002.present": "true", "nvidia.com/gpu.present": "true"},
    {"joulie.io/gpu-vendor": "nvidia"},
    {"joulie.io/gpu-vendor": "intel"},
]
KINDS: list[dict[str, Any]] = [
    {},
    {"nvidia": {"enabled": False}},
    {"amd": {"enabled": False}},
    {"nvidia": {"enabled": False}, "amd": {"enabled": False}},
]


@pytest.mark.parametrize("kinds", KINDS, ids=json.dumps)
@pytest.mark.parametrize("affinity", [None, "zone"])
def test_every_node_has_exactly_one_agent(render: Render, kinds: dict[str, Any], affinity: str | None) -> None:
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]} for zone in ("a", "b")]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    own = {"nodeAffinity": required} if affinity else {}
    specs = workloads(render({"agent": {"kinds": kinds, "affinity": own}}))
    agents = [name for name in AGENTS if name in specs]
    for labels in LABELLED:
        managed = {"joulie.io/managed": "true", "zone": "b", **labels}
        assert sum(wanted_by(specs[name], managed) for name in agents) == 1, labels
        elsewhere = managed | {"zone": "c"}
        assert sum(wanted_by(specs[name], elsewhere) for name in agents) == (0 if affinity else 1), labels
        assert not any(wanted_by(specs[name], {**labels, "zone": "b"}) for name in agents), "not managed"


@pytest.mark.parametrize("kinds", KINDS, ids=json.dumps)
def test_h17_node_with_a_pending_restore_keeps_its_agent(render: Render, kinds: dict[str, Any]) -> None:
    selector = {"joulie.io/managed": "true", "pool": "a"}
    specs = workloads(render({"agent": {"kinds": kinds, "nodeSelector": selector}}))
    for labels in LABELLED:
        own = [name for name in AGENTS if name in specs and wanted_by(specs[name], {**selector, **labels})]
        pending = {"joulie.io/restore-pending": "true", **labels}
        assert [name for name in AGENTS if name in specs and wanted_by(specs[name], {**pending, "pool": "a"})] == own
        assert len(own) == 1
        assert not any(wanted_by(specs[name], pending) for name in AGENTS if name in specs), "another pool"


def test_nodes_belong_to_the_kind_of_their_gpu(render: Render) -> None:
    def kind(**labels: str) -> list[str]:
        specs = workloads(render())
        found = {"joulie.io/managed": "true", **{key.replace("__", "/"): value for key, value in labels.items()}}
        return [name for name in AGENTS if wanted_by(specs[name], found)]

    assert kind() == ["agent"]
    assert kind(**{"nvidia.com__gpu.present": "true"}) == ["agent-nvidia"]
    assert kind(**{"feature.node.kubernetes.io__amd-gpu": "true"}) == ["agent-amd"]
    assert kind(**{"feature.node.kubernetes.io__amd-gpu": "true", "nvidia.com__gpu.present": "true"}) == [
        "agent-nvidia"
    ]


def test_a_node_is_handed_over_from_agent_to_agent(render: Render) -> None:
    """One starts when the other has left; that of CPU nodes goes on where the only DaemonSet of earlier charts was."""
    documents = of_kind(render(), "DaemonSet")
    selectors = [item["spec"]["selector"]["matchLabels"] for item in documents.values()]
    assert documents["agent"]["spec"]["selector"]["matchLabels"] == {
        "app.kubernetes.io/name": "joulie",
        "app.kubernetes.io/instance": "joulie",
        "app.kubernetes.io/component": "agent",
    }
    for item in documents.values():
        template = item["spec"]["template"]
        (rule,) = template["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        (components,) = rule["labelSelector"]["matchExpressions"]
        assert rule["topologyKey"] == "kubernetes.io/hostname"
        assert set(components["values"]) == set(AGENTS)
        assert sum(selector.items() <= template["metadata"]["labels"].items() for selector in selectors) == 1
        given = environment(template["spec"])
        assert set(given["DAEMONSET_NAMES"].split(",")) == {f"joulie-{other}" for other in AGENTS}


def test_h12_agents_of_amd_nodes_may_write_the_caps_of_their_gpus(render: Render) -> None:
    rocm = {"name": "rocm", "hostPath": {"path": "/opt/rocm"}}
    mount = {"name": "rocm", "mountPath": "/opt/rocm", "readOnly": True}
    spec = workloads(render({"agent": {"extraVolumes": [rocm], "extraVolumeMounts": [mount]}}))["agent-amd"]
    (container,) = spec["containers"]
    writable = {given["mountPath"] for given in container["volumeMounts"] if not given.get("readOnly")}
    assert writable == {"/tmp", "/var/lib/joulie", "/host/sys/devices"}
    assert mount in container["volumeMounts"]
    assert rocm in spec["volumes"]


def test_the_library_of_the_driver_and_the_folders_of_the_host(render: Render) -> None:
    def agents(**agent: Any) -> dict[str, Document]:
        specs = workloads(render({"agent": agent}))
        return {name: specs[name] for name in AGENTS}

    def paths(spec: Document) -> dict[str, str]:
        return {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume}

    operator = agents(kinds={"nvidia": {"runtimeClassName": "nvidia"}})
    assert [spec.get("runtimeClassName") for spec in operator.values()] == ["nvidia", None, None]
    assert ["NVIDIA_VISIBLE_DEVICES" in environment(spec) for spec in operator.values()] == [True, False, False]
    driver = agents(kinds={"nvidia": {"driverRoot": "/run/nvidia/driver/"}})
    library = "/run/nvidia/driver/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
    assert [paths(spec).get("nvml") for spec in driver.values()] == [library, None, None]
    modelled = agents(hostPaths={"sys": "/srv/sys", "proc": "/srv/proc", "dev": "/srv/dev"})
    assert paths(modelled["agent"]) == {
        "state": "/var/lib/joulie",
        "sys": "/srv/sys",
        "sys-virtual": "/srv/sys/devices/virtual",
        "sys-cpu": "/srv/sys/devices/system/cpu",
        "proc": "/srv/proc",
        "dev": "/srv/dev",
    }
    assert paths(modelled["agent-amd"])["sys-devices"] == "/srv/sys/devices"
    both = agents(kinds={"nvidia": {"amdGpus": True}})
    assert {name for name, spec in both.items() if "sys-devices" in paths(spec)} == {"agent-nvidia", "agent-amd"}
    kubelet = "/var/lib/kubelet/pod-resources"
    assert [paths(spec).get("pod-resources") for spec in modelled.values()] == [kubelet, kubelet, None]
    given = environment(modelled["agent"])
    assert [given[name] for name in ("HOST_SYS", "HOST_PROC", "HOST_DEV")] == ["/host/sys", "/host/proc", "/host/dev"]


def test_the_list_of_images_is_complete(control_plane_binaries: Binaries, render: Render) -> None:
    script = CHART.parents[2] / "scripts/list_images.py"
    spec = importlib.util.spec_from_file_location("list_images", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    used = {container["image"] for spec in workloads(render(EVERYTHING)).values() for container in spec["containers"]}
    assert module.images(control_plane_binaries["helm"]) == sorted(used)


# ---- observe and enforce


def test_the_default_is_to_observe(render: Render) -> None:
    programs = ("operator", *AGENTS, "agent-pool", "extender", "grid", "grid-webhook", "accounting")
    values = merged(EVERYTHING, ("mode",), "observe")
    assert VALUES["mode"] == "observe"
    for mode in ("observe", "enforce"):
        specs = workloads(render(merged(values, ("mode",), mode)))
        assert {name: environment(specs[name])["MODE"] for name in programs} == dict.fromkeys(programs, mode)


def test_l15_the_second_scheduler_survives_a_node(render: Render) -> None:
    documents = render({"scheduler": {"enabled": True}})
    assert of_kind(documents, "Deployment")["scheduler"]["spec"]["replicas"] == 2
    assert of_kind(documents, "PodDisruptionBudget")["scheduler"]["spec"]["maxUnavailable"] == 1
    for replicas in (1, 2):
        found = of_kind(render({"scheduler": {"enabled": True, "replicas": replicas}}), "ConfigMap")["scheduler"]
        configuration = yaml.safe_load(found["data"]["configuration.yaml"])
        assert configuration["leaderElection"]["leaderElect"] is True, "a rollout has two for a while"


def test_l15_critical_priorities_have_a_quota(render: Render) -> None:
    quota = of_kind(render(), "ResourceQuota")["critical-pods"]
    (scope,) = quota["spec"]["scopeSelector"]["matchExpressions"]
    used = {spec["priorityClassName"] for spec in workloads(render()).values() if "priorityClassName" in spec}
    assert used == {"system-cluster-critical", "system-node-critical"} == set(scope["values"])
    assert of_kind(render({"priority": {"resourceQuota": False}}), "ResourceQuota") == {}


def test_l15_secrets_and_authorities_can_be_mounted_everywhere(render: Render) -> None:
    sections = {
        "operator": ("operator",),
        "agent": ("agent",),
        "agent-pool": ("agentPool",),
        "extender": ("extender",),
        "scheduler": ("scheduler",),
        "grid": ("grid",),
        "grid-guard": ("grid", "guard"),
        "grid-webhook": ("grid", "webhook"),
        "accounting": ("accounting",),
        "web": ("web",),
        "simulator": ("simulator",),
        "cleanup": ("cleanup",),
    }
    values: dict[str, Any] = EVERYTHING
    volume = {"name": "prometheus", "secret": {"secretName": "prometheus"}}
    mount = {"name": "prometheus", "mountPath": "/etc/prometheus", "readOnly": True}
    for path in sections.values():
        values = merged(values, (*path, "extraEnv"), [{"name": "HTTPS_PROXY", "value": "http://proxy"}])
        values = merged(values, (*path, "extraVolumes"), [volume])
        values = merged(values, (*path, "extraVolumeMounts"), [mount])
    specs = workloads(render(values))
    assert set(sections) | {"agent-nvidia", "agent-amd"} == set(specs)
    for component, spec in specs.items():
        assert volume in spec["volumes"], component
        assert mount in spec["containers"][0]["volumeMounts"], component
        assert environment(spec)["HTTPS_PROXY"] == "http://proxy", component


def test_r2_pods_behind_services_end_after_their_endpoints(render: Render) -> None:
    specs = workloads(render(EVERYTHING))
    for component in ("extender", "grid-webhook"):
        spec = specs[component]
        assert spec["containers"][0]["lifecycle"] == {"preStop": {"sleep": {"seconds": 5}}}
        # The pause, the program's own delay, and the end of its requests.
        assert spec["terminationGracePeriodSeconds"] == 35
    none = workloads(render({"extender": {"preStopSeconds": 0}}))["extender"]
    assert "lifecycle" not in none["containers"][0]


def test_r4_a_namespace_that_admits_the_agents(render: Render) -> None:
    assert of_kind(render(), "Namespace") == {}
    found = of_kind(render({"namespace": {"create": True}}), "Namespace")
    (namespace,) = found.values()
    assert namespace["metadata"] == {
        "name": NAMESPACE,
        "labels": {"pod-security.kubernetes.io/enforce": "privileged"},
    }


EXAMPLES = sorted((CHART / "examples").glob("*.yaml"))


@pytest.mark.parametrize("values", EXAMPLES, ids=lambda path: path.stem)
def test_values_of_clouds_and_distributions(render: Render, values: Path) -> None:
    documents = render(yaml.safe_load(values.read_text(encoding="utf-8")))
    specs = workloads(documents)
    assert set(AGENTS) <= set(specs)
    page = (CHART.parents[2] / "docs/howto/clouds" / values.name).with_suffix(".md").read_text(encoding="utf-8")
    assert f"-f joulie/examples/{values.name}" in page


def test_accounts_on_openshift_use_the_least_constraints(render: Render) -> None:
    assert not any(name.endswith("-scc") for name in of_kind(render(), "Role"))
    values = merged(EVERYTHING, ("openshift",), {"securityContextConstraints": True})
    roles = {name: role for name, role in of_kind(render(values), "Role").items() if name.endswith("-scc")}
    used = {name.removesuffix("-scc"): role["rules"][0]["resourceNames"][0] for name, role in roles.items()}
    assert used == {name: "privileged" if name == "agent" else "nonroot-v2" for name in (*PROGRAMS, "scheduler")}


# ---- the grid


def test_the_grid_is_off_by_default(render: Render) -> None:
    names = {item["metadata"]["name"] for item in render()}
    assert not any("grid" in name or "accounting" in name or "gardener" in name for name in names)


def test_who_gates_pods(render: Render) -> None:
    """The policy where the API server has it, else the webhook, never both."""

    def gatekeepers(mode: str, *arguments: str) -> set[str]:
        documents = render({"grid": {"enabled": True, "admission": {"mode": mode}}}, *arguments)
        kinds = {"MutatingAdmissionPolicy", "MutatingWebhookConfiguration", "MutatingAdmissionPolicyBinding"}
        return {
            f"{item['apiVersion'].rpartition('/')[2]} {item['kind']}" for item in documents if item["kind"] in kinds
        }

    beta = "admissionregistration.k8s.io/v1beta1/MutatingAdmissionPolicy"
    assert gatekeepers("auto", "--kube-version", "1.36.0") == {"v1 MutatingAdmissionPolicy"}
    assert gatekeepers("auto", "--kube-version", "1.33.0") == {"v1 MutatingWebhookConfiguration"}
    # v1beta1 is served only where an administrator says so.
    assert gatekeepers("auto", "--kube-version", "1.34.0") == {"v1 MutatingWebhookConfiguration"}
    assert gatekeepers("auto", "--kube-version", "1.34.0", "--api-versions", beta) == {
        "v1beta1 MutatingAdmissionPolicy"
    }
    assert gatekeepers("policy", "--kube-version", "1.34.0") == {"v1beta1 MutatingAdmissionPolicy"}
    assert gatekeepers("webhook", "--kube-version", "1.36.0") == {"v1 MutatingWebhookConfiguration"}
    values = {"grid": {"enabled": True, "admission": {"mode": "policy", "apiVersion": "v1beta1"}}}
    assert of_kind(render(values), "MutatingAdmissionPolicy")["grid"]["apiVersion"].endswith("/v1beta1")


def test_admission_never_keeps_a_pod_out(render: Render) -> None:
    values = {"grid": {"enabled": True, "admission": {"mode": "webhook"}}}
    (webhook,) = of_kind(render(values), "MutatingWebhookConfiguration")["grid-webhook"]["webhooks"]
    assert (webhook["name"], webhook["failurePolicy"], webhook["timeoutSeconds"]) == (PODS_WEBHOOK, "Ignore", 2)
    assert webhook["matchConditions"][-1]["name"] == ASKS_CONDITION
    assert "caBundle" not in webhook["clientConfig"], "the webhook writes it, and an upgrade must leave it"
    policy = of_kind(render({"grid": {"enabled": True, "admission": {"mode": "policy"}}}), "MutatingAdmissionPolicy")
    assert policy["grid"]["metadata"]["name"] == gating.POLICIES[0]
    assert policy["grid"]["spec"]["failurePolicy"] == "Ignore"
    for spec in (webhook, policy["grid"]["spec"]["matchConstraints"]):
        excluded, modes = spec["namespaceSelector"]["matchExpressions"]
        assert (excluded["operator"], excluded["values"]) == ("NotIn", ["kube-system", NAMESPACE])
        assert modes == {"key": "joulie.io/mode", "operator": "In", "values": ["enforce"]}
    enforced = render({"mode": "enforce", "grid": {"enabled": True, "admission": {"mode": "policy"}}})
    spec = of_kind(enforced, "MutatingAdmissionPolicy")["grid"]["spec"]["matchConstraints"]
    modes = spec["namespaceSelector"]["matchExpressions"][1]
    assert modes == {"key": "joulie.io/mode", "operator": "NotIn", "values": ["observe"]}


def test_gating_is_switched_by_the_programs_alone(render: Render) -> None:
    """What the chart wrote, an upgrade would write again."""
    documents = render(EVERYTHING)
    (found,) = (item for item in documents if item["metadata"]["name"] == gating.CONFIG_MAP)
    assert "data" not in found
    secret = of_kind(documents, "Secret")["grid-webhook"]
    assert "data" not in secret


@pytest.mark.parametrize("mode", ["extender", "admission", "both", "none"])
def test_no_pod_waits_for_a_scheduler_that_nobody_runs(render: Render, mode: str) -> None:
    documents = render({"grid": {"enabled": True}, "steering": {"mode": mode}})
    configuration = yaml.safe_load(of_kind(documents, "ConfigMap")["scheduler"]["data"]["configuration.yaml"])
    profiles = [profile["schedulerName"] for profile in configuration["profiles"]]
    assert profiles == ["joulie-scheduler", "compute-gardener-scheduler"]
    assert ("extenders" in configuration) is (mode in {"extender", "both"})


def test_the_gardeners_values_become_its_settings(render: Render) -> None:
    values = {
        "grid": {"enabled": True, "signals": {"CARBON_SOURCES": "electricity-maps,uk"}},
        "carbonAware": {
            "enabled": False,
            "carbonIntensityThreshold": 150.5,
            "electricityMap": {"apiKey": "secret-key", "region": "DE"},
        },
        "priceAware": {"enabled": True, "provider": "tou", "schedules": [{"name": "a", "dayOfWeek": "1-5"}]},
        "scheduler": {"maxSchedulingDelay": "6h"},
        "dryRun": {"enabled": True, "mode": "annotate", "watchNamespaces": ["a", "b"]},
        "metrics": {"port": 10300, "prometheus": {"url": "http://p:9090"}},
        "hardwareProfiles": "defaultPUE: 1.2",
        "accounting": {"inventory": "pue: []"},
    }
    documents = render(values)
    specs = workloads(documents)
    shared = {
        "CARBON_ENABLED": "false",
        "CARBON_INTENSITY_THRESHOLD": "150.5",
        "CARBON_SOURCES": "electricity-maps,uk",
        "ELECTRICITY_MAP_API_REGION": "DE",
        "ELECTRICITY_MAP_API_KEY_FILE": "/etc/joulie/secrets/api-key",
        "PRICING_ENABLED": "true",
        "PRICING_PROVIDER": "tou",
        "PRICING_SCHEDULES_PATH": "/etc/joulie/grid/schedules.yaml",
        "MAX_SCHEDULING_DELAY": "6h",
        "METRICS_ADDR": ":10300",
        "PROMETHEUS_ADDRESS": "http://p:9090",
    }
    for component in ("grid", "accounting"):
        given = environment(specs[component])
        assert {name: given.get(name) for name in shared} == shared, component
    assert environment(specs["grid"])["DRY_RUN_WATCH_NAMESPACES"] == "a,b"
    assert environment(specs["grid-guard"])["MAX_SCHEDULING_DELAY"] == "6h"
    for component in ("accounting", "extender"):
        assert environment(specs[component])["HARDWARE_PROFILES_PATH"] == "/etc/joulie/grid/hardware-profiles.yaml"
    template = of_kind(documents, "Deployment")["extender"]["spec"]["template"]
    assert template["metadata"]["annotations"]["checksum/hardware-profiles"]
    assert environment(specs["accounting"])["INVENTORY_PATH"] == "/etc/joulie/grid/inventory.yaml"
    assert of_kind(documents, "Secret")["grid"]["stringData"] == {"api-key": "secret-key"}
    files = of_kind(documents, "ConfigMap")["grid"]["data"]
    assert yaml.safe_load(files["schedules.yaml"]) == {"schedules": values["priceAware"]["schedules"]}
    assert files["hardware-profiles.yaml"] == "defaultPUE: 1.2"


def test_the_key_is_in_the_secret_alone(rendered_text: Callable[..., str]) -> None:
    values = {"grid": {"enabled": True}, "carbonAware": {"electricityMap": {"apiKey": "only-once"}}}
    assert rendered_text(values).count("only-once") == 1
    existing = merged(values, ("carbonAware", "electricityMap", "existingSecret"), "mine")
    assert "only-once" not in rendered_text(existing)
    assert "secretName: mine" in rendered_text(existing)


def test_scrapers_find_what_the_gardener_had(render: Render) -> None:
    documents = render(EVERYTHING)
    service = of_kind(documents, "Service")["compute-gardener-scheduler-metrics"]
    monitor = of_kind(documents, "ServiceMonitor")["compute-gardener-scheduler-monitor"]
    labels = {"component": "scheduler", "tier": "control-plane"}
    assert service["spec"]["selector"] == labels
    assert service["spec"]["ports"][0] | {"targetPort": 10259} == {
        "name": "https",
        "port": 10259,
        "targetPort": 10259,
        "protocol": "TCP",
    }
    assert labels.items() <= service["metadata"]["labels"].items()
    assert monitor["spec"]["selector"]["matchLabels"] == labels
    assert (monitor["spec"]["endpoints"][0]["port"], monitor["spec"]["endpoints"][0]["scheme"]) == ("https", "https")
    found = of_kind(documents, "Deployment", "StatefulSet")
    for component in ("grid", "accounting"):
        meta = found[component]["spec"]["template"]["metadata"]
        assert labels.items() <= meta["labels"].items()
        assert {
            "prometheus.io/scrape": "true",
            "prometheus.io/port": "10259",
            "prometheus.io/scheme": "https",
            "prometheus.io/path": "/metrics",
        }.items() <= meta["annotations"].items()
        (container,) = found[component]["spec"]["template"]["spec"]["containers"]
        assert container["ports"] == [{"name": "https", "containerPort": 10259}]


# ---- steering


def extender_of(documents: list[Document]) -> Document:
    configuration = yaml.safe_load(of_kind(documents, "ConfigMap")["scheduler"]["data"]["configuration.yaml"])
    assert configuration["profiles"][0] == {"schedulerName": "joulie-scheduler"}
    (extender,) = configuration["extenders"]
    return dict(extender)


def test_the_second_scheduler_asks_the_extender(render: Render) -> None:
    assert extender_of(render({"scheduler": {"enabled": True}})) == {
        "urlPrefix": f"http://joulie-extender.{NAMESPACE}.svc:9876",
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "preemptVerb": "preempt",
        "weight": 1,
        "httpTimeout": "1s",
        "nodeCacheCapable": True,
        "ignorable": True,
    }


def test_with_both_the_extender_only_scores_and_speaks_tls(render: Render) -> None:
    extender = extender_of(render(EVERYTHING))
    assert "filterVerb" not in extender
    assert "preemptVerb" not in extender
    assert extender["urlPrefix"].startswith("https://")
    assert extender["enableHTTPS"] is True
    assert set(extender["tlsConfig"]) == {"caFile", "certFile", "keyFile"}


def test_modes_of_steering(render: Render) -> None:
    policies = "MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"
    assert of_kind(render(), *policies) == {}
    assert of_kind(render({"steering": {"mode": "admission"}}), *policies) == {}, "no pod is changed in observe mode"
    canary = render({"steering": {"mode": "admission", "admission": {"canary": True}}})
    assert set(of_kind(canary, *policies)) == {"performance"}
    admission = render({"mode": "enforce", "steering": {"mode": "admission"}})
    assert set(of_kind(admission, *policies)) == {"performance", "standard"}
    assert "extender" not in workloads(admission)
    assert of_kind(admission, "PodDisruptionBudget") == {}
    labelled = render(
        {
            "mode": "enforce",
            "steering": {"mode": "admission"},
            "operator": {"settings": {"POWER_PROFILE_LABEL": "example.org/power"}},
        }
    )
    assert json.dumps(of_kind(labelled, policies[0])).count('dyn(\\"example.org/power\\")') == 2, "L5"
    rule_alone = render({"mode": "enforce", "steering": {"mode": "admission", "admission": {"preferEco": False}}})
    assert set(of_kind(rule_alone, *policies)) == {"performance"}
    old = render({"mode": "enforce", "steering": {"mode": "admission"}}, "--kube-version", "1.34.0")
    assert {item["apiVersion"] for item in of_kind(old, *policies).values()} == {"admissionregistration.k8s.io/v1beta1"}


def test_metrics_and_network(render: Render) -> None:
    documents = render(EVERYTHING)
    monitor = "compute-gardener-scheduler-monitor"
    others = {"cleanup", "grid", "grid-guard", "accounting"}
    assert set(of_kind(documents, "ServiceMonitor")) == {*PODS_OF, monitor} - others
    policies = of_kind(documents, "NetworkPolicy")
    assert set(policies) == set(PODS_OF)
    assert "ingress" not in policies["cleanup"]["spec"]
    assert [rule["ports"][0]["port"] for rule in policies["extender"]["spec"]["ingress"]] == [9877, 9876]
    assert [rule["ports"][0]["port"] for rule in policies["grid-webhook"]["spec"]["ingress"]] == [8082, 9443]
    pages = policies["web"]["spec"]["ingress"]
    assert [[one["port"] for one in rule["ports"]] for rule in pages] == [[8083], [8443, 8444], [8445]]
    peers = [{"namespaceSelector": {"matchLabels": {"name": "ingress"}}}]
    only = render(merged(EVERYTHING, ("networkPolicy", "webFrom"), peers))
    assert of_kind(only, "NetworkPolicy")["web"]["spec"]["ingress"][1]["from"] == peers
    assert of_kind(render(), "ServiceMonitor") == {}
    assert set(of_kind(render(), "NetworkPolicy")) == {"operator", *AGENTS, "extender", "cleanup"}
    assert of_kind(render({"networkPolicy": {"enabled": False}}), "NetworkPolicy") == {}


def test_agents_are_kept_to_their_own_nodes(render: Render) -> None:
    def policies(agent: dict[str, Any], version: str) -> dict[str, Document]:
        return of_kind(render({"agent": agent}, "--kube-version", version), "ValidatingAdmissionPolicy")

    # Before, a token need not name its node.
    assert policies({}, "1.31.9") == {}
    assert policies({"enabled": False}, "1.32.0") == {}
    assert policies({"ownNodeOnly": False}, "1.32.0") == {}
    spec = policies({}, "1.32.0")["agent-own-node"]["spec"]
    assert spec["failurePolicy"] == "Fail"
    (rule,) = spec["matchConstraints"]["resourceRules"]
    written = {resource for resource, verbs in RIGHTS["agent"].items() if {"create", "patch"} & {*verbs}}
    assert written <= {f"{resource}.joulie.io" for resource in rule["resources"]}, "all that an agent may write"
    (binding,) = of_kind(render(), "ValidatingAdmissionPolicyBinding").values()
    assert binding["spec"] == {"policyName": "joulie-agent-own-node", "validationActions": ["Deny"]}


def test_cleanup_is_a_hook(render: Render) -> None:
    (job,) = of_kind(render(), "Job").values()
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete"
    assert job["spec"]["template"]["spec"]["containers"][0]["args"] == ["cleanup"]
    assert of_kind(render({"cleanup": {"enabled": False}}), "Job") == {}


@pytest.mark.parametrize("component", ["grid", "grid-guard"])
def test_only_ceilings_may_change_autoscalers(render: Render, component: str) -> None:
    role = of_kind(render({"grid": {"enabled": True}}), "ClusterRole")[component]
    assert not {group for rule in role["rules"] for group in rule["apiGroups"]} & {"autoscaling", "keda.sh"}


def test_only_an_operator_that_reschedules_may_evict(render: Render) -> None:
    def rights(settings: dict[str, str]) -> list[str]:
        role = of_kind(render({"operator": {"settings": settings}}), "ClusterRole")["operator"]
        return [resource for rule in role["rules"] for resource in rule["resources"]]

    assert "pods/eviction" not in rights({})
    assert "pods/eviction" not in rights({"ENABLE_ACTIVE_RESCHEDULING": "false"})
    assert "pods/eviction" in rights({"ENABLE_ACTIVE_RESCHEDULING": "true"})
    empties = {"SLEEP": "enforce", "SLEEP_CONSOLIDATE_NODES": "2"}
    assert "pods/eviction" in rights(empties)
    for change in ({"SLEEP": "observe"}, {"SLEEP": "off"}, {"SLEEP_CONSOLIDATE_NODES": "0"}):
        assert "pods/eviction" not in rights(empties | change)


def test_only_an_operator_that_lets_nodes_sleep_reads_volumes(render: Render) -> None:
    def rights(*sleep: Any) -> dict[str, list[str]]:
        settings = {"SLEEP": sleep[0]} if sleep else {}
        role = of_kind(render({"operator": {"settings": settings}}), "ClusterRole")["operator"]
        return {resource: rule["verbs"] for rule in role["rules"] for resource in rule["resources"]}

    for off in ((), ("off",), (False,)):  # YAML reads off as false
        assert "persistentvolumes" not in rights(*off), off
    for on in ("observe", "enforce", "Enforce"):
        assert rights(on)["persistentvolumes"] == ["list", "watch"]
        assert set(rights(on)) - set(rights()) == {"persistentvolumes"}


@pytest.mark.parametrize(("sleep", "kept"), [("off", False), ("observe", True), ("enforce", True)])
def test_only_an_operator_that_lets_nodes_sleep_keeps_what_it_learned_of_demand(
    render: Render, sleep: str, kept: bool
) -> None:
    objects = render({"operator": {"settings": {"SLEEP": sleep}}})
    named = [rule for rule in of_kind(objects, "Role")["operator"]["rules"] if "configmaps" in rule["resources"]]
    assert [(rule["resourceNames"], rule["verbs"]) for rule in named] == [([CONFIG_MAP], ["get", "patch"])] * kept
    maps = [one for one in objects if one["kind"] == "ConfigMap" and one["metadata"]["name"] == CONFIG_MAP]
    assert len(maps) == kept
    assert not any("data" in one for one in maps), "an upgrade must not take what was learned"


@pytest.mark.parametrize(("share", "kept"), [("0", False), (0, False), ("0.05", True), (0.05, True)])
def test_only_a_holdout_keeps_what_it_measured_and_accounting_only_reads_it(
    render: Render, share: str | float, kept: bool
) -> None:
    objects = render(merged(EVERYTHING, ("operator", "settings", "GPU_LIMITS_HOLDOUT"), share))
    for component, verbs in {"operator": [["get", "patch"]] * kept, "accounting": [["get"]]}.items():
        rules = of_kind(objects, "Role")[component]["rules"]
        granted = [rule["verbs"] for rule in rules if rule.get("resourceNames") == [HOLDOUT_CONFIG_MAP]]
        assert granted == verbs, component
    maps = [one for one in objects if one["kind"] == "ConfigMap" and one["metadata"]["name"] == HOLDOUT_CONFIG_MAP]
    assert len(maps) == kept
    assert not any("data" in one for one in maps), "an upgrade must not take what was measured"


def test_u11_alerts_are_the_files_and_link_to_runbooks(render: Render) -> None:
    assert of_kind(render(), "PrometheusRule") == {}
    ours = yaml.safe_load((CHART / "files/rules/joulie.yaml").read_text())
    (rule,) = of_kind(
        render({"prometheusRule": {"enabled": True, "labels": {"release": "p"}}}), "PrometheusRule"
    ).values()
    assert rule["spec"] == ours
    assert rule["metadata"]["labels"]["release"] == "p"
    runbooks = "https://wiki.example/joulie/"
    (rule,) = of_kind(render({"prometheusRule": {"enabled": True, "runbooks": runbooks}}), "PrometheusRule").values()
    links = [one["annotations"]["runbook_url"] for group in rule["spec"]["groups"] for one in group["rules"]]
    assert links == [f"{runbooks}#{one['alert'].lower()}" for group in ours["groups"] for one in group["rules"]]


# ---- in a real API server


@pytest.fixture(scope="module")
def plane(control_plane_binaries: Binaries) -> Iterator[LocalControlPlane]:
    components = ("etcd", "kube-apiserver", "kube-controller-manager")
    with LocalControlPlane(binaries=control_plane_binaries, components=components) as plane:
        values = json.dumps(without_foreign_kinds(EVERYTHING))
        plane.helm("install", "joulie", CHART, "-n", NAMESPACE, "--create-namespace", "-f", "-", input=values)
        yield plane


def test_everything_is_accepted(plane: LocalControlPlane) -> None:
    installed = plane.kubectl("get", "deployments,daemonsets,statefulsets", "-n", NAMESPACE, "-o", "name").split()
    assert len(installed) == 12
    waiting = plane.kubectl("get", "crd", "-o", "jsonpath={.items[*].metadata.name}").split()
    assert len([name for name in waiting if name.endswith(".joulie.io")]) == 8
    for kind in ("deployments", "statefulsets"):
        wait_for(lambda kind=kind: "joulie" in plane.kubectl("get", kind, "-n", NAMESPACE), 90, f"{kind} listed")


@pytest.mark.parametrize(
    ("component", "allowed", "verb", "resource"),
    [
        ("operator", True, "patch", {"resource": "nodes"}),
        ("operator", False, "create", {"resource": "pods", "subresource": "eviction"}),
        ("operator", False, "delete", {"resource": "nodes"}),
        ("agent", True, "patch", {"group": "joulie.io", "resource": "nodetwins", "subresource": "status"}),
        ("agent", False, "patch", {"group": "joulie.io", "resource": "nodetwins"}),
        ("agent", False, "patch", {"resource": "nodes"}),
        ("agent", False, "list", {"resource": "pods"}),
        ("extender", True, "watch", {"group": "joulie.io", "resource": "nodetwins"}),
        ("extender", True, "list", {"resource": "pods"}),
        ("extender", False, "patch", {"resource": "pods"}),
        ("extender", False, "patch", {"group": "joulie.io", "resource": "powerbudgets"}),
        ("simulator", True, "create", {"resource": "pods"}),
        ("cleanup", True, "patch", {"group": "coordination.k8s.io", "resource": "leases", "name": "joulie-operator"}),
        ("cleanup", False, "patch", {"group": "coordination.k8s.io", "resource": "leases", "name": "other"}),
        ("grid", True, "patch", {"resource": "pods"}),
        ("grid", False, "delete", {"resource": "pods"}),
        ("grid", False, "create", {"resource": "configmaps"}),
        ("grid", False, "get", {"resource": "secrets"}),
        ("grid-guard", True, "patch", {"resource": "configmaps", "name": "joulie-grid-gating"}),
        ("grid-guard", False, "patch", {"resource": "configmaps", "name": "other"}),
        ("grid-webhook", False, "patch", {"resource": "pods"}),
        ("grid-webhook", False, "get", {"resource": "secrets", "name": "joulie-grid"}),
        ("accounting", False, "create", {"group": "batch", "resource": "jobs"}),
        ("web", True, "list", {"group": "joulie.io", "resource": "nodetwins"}),
        ("web", True, "get", {"resource": "pods"}),
        ("web", False, "get", {"resource": "pods", "subresource": "log"}),
        ("web", False, "get", {"resource": "secrets"}),
        ("web", False, "patch", {"group": "joulie.io", "resource": "energybudgets"}),
        ("scheduler", True, "create", {"resource": "pods", "subresource": "binding"}),
        (
            "scheduler",
            True,
            "update",
            {"group": "coordination.k8s.io", "resource": "leases", "name": "joulie-scheduler"},
        ),
    ],
    ids=str,
)
def test_the_api_server_agrees_on_rights(
    plane: LocalControlPlane, component: str, allowed: bool, verb: str, resource: dict[str, str]
) -> None:
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": f"system:serviceaccount:{NAMESPACE}:joulie-{component}",
            "resourceAttributes": {"verb": verb, "namespace": NAMESPACE, **resource},
        },
    }

    def agrees() -> bool:
        answer = plane.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
        return bool(answer["status"]["allowed"] is allowed)

    # It reads what was installed by a watch.
    wait_for(agrees, 90, f"{component} may {'' if allowed else 'not '}{verb}")


RULE = [
    {"key": "joulie.io/power-profile", "operator": "NotIn", "values": ["eco"]},
    {"key": "joulie.io/draining", "operator": "DoesNotExist"},
]
ECO = {
    "weight": 50,
    "preference": {"matchExpressions": [{"key": "joulie.io/power-profile", "operator": "In", "values": ["eco"]}]},
}
ZONE = {"key": "zone", "operator": "In", "values": ["a"]}
FIELD = {"key": "metadata.name", "operator": "In", "values": ["n"]}


def admitted(plane: LocalControlPlane, affinity: Document | None, *, performance: bool, owner: str = "") -> Document:
    """Affinity of a pod as the API server makes it, without creating it."""
    annotations = {"joulie.io/workload-class": "performance"} if performance else {}
    owners = [{"apiVersion": "v1", "kind": owner, "name": "o", "uid": "u", "controller": True}] if owner else []
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "annotations": annotations, "ownerReferences": owners},
        "spec": {
            "containers": [{"name": "c", "image": "i"}],
            **({"affinity": affinity} if affinity is not None else {}),
        },
    }
    made = plane.request("POST", "/api/v1/namespaces/default/pods?dryRun=All", body)
    return dict(made["spec"].get("affinity", {}))


@pytest.fixture(scope="module")
def steered(plane: LocalControlPlane) -> LocalControlPlane:
    """Once the API server has noticed the policies."""

    def noticed() -> bool:
        return all(admitted(plane, None, performance=performance) for performance in (True, False))

    wait_for(noticed, 90, "policies in force")
    return plane


def required(*terms: Document) -> Document:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


def preferred(*terms: Document) -> Document:
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": list(terms)}}


LIKES = {"weight": 1, "preference": {"matchExpressions": [ZONE]}}


@pytest.mark.parametrize(
    ("affinity", "expected"),
    [
        (None, required({"matchExpressions": RULE})),
        ({}, required({"matchExpressions": RULE})),
        ({"podAntiAffinity": {}}, required({"matchExpressions": RULE}) | {"podAntiAffinity": {}}),
        (
            preferred(LIKES),
            {"nodeAffinity": required({"matchExpressions": RULE})["nodeAffinity"] | preferred(LIKES)["nodeAffinity"]},
        ),
        (required({"matchExpressions": [ZONE]}), required({"matchExpressions": [ZONE, *RULE]})),
        (
            required({"matchExpressions": [ZONE]}, {"matchExpressions": [ZONE]}),
            required({"matchExpressions": [ZONE, *RULE]}, {"matchExpressions": [ZONE, *RULE]}),
        ),
        (required({"matchFields": [FIELD]}), required({"matchFields": [FIELD], "matchExpressions": RULE})),
        (required({}, {"matchExpressions": [ZONE]}), required({}, {"matchExpressions": [ZONE, *RULE]})),
    ],
)
def test_performance_pods_get_the_rule_in_every_term(
    steered: LocalControlPlane, affinity: Document | None, expected: Document
) -> None:
    assert admitted(steered, affinity, performance=True) == expected


@pytest.mark.parametrize(
    ("affinity", "expected"),
    [
        (None, preferred(ECO)),
        ({"podAntiAffinity": {}}, preferred(ECO) | {"podAntiAffinity": {}}),
        (preferred(LIKES), preferred(LIKES, ECO)),
        (
            required({"matchExpressions": [ZONE]}),
            {"nodeAffinity": required({"matchExpressions": [ZONE]})["nodeAffinity"] | preferred(ECO)["nodeAffinity"]},
        ),
    ],
)
def test_standard_pods_prefer_eco(steered: LocalControlPlane, affinity: Document | None, expected: Document) -> None:
    assert admitted(steered, affinity, performance=False) == expected


def test_daemonset_pods_are_left_alone(steered: LocalControlPlane) -> None:
    for performance in (True, False):
        assert admitted(steered, None, performance=performance, owner="DaemonSet") == {}
        assert admitted(steered, None, performance=performance, owner="Job") != {}


OWN, OTHER = "own.example", "other.example"
REPORT = {
    "status": {"controlStatus": {"cpu": {"backend": "rapl", "result": "applied", "updatedAt": "2026-01-01T00:00:00Z"}}}
}


def written_by(
    plane: LocalControlPlane, account: str, resource: Resource[Any], name: str, body: Document, *, bound_to: str = ""
) -> str:
    """What the API server answers to a write by an account, "" where it takes it."""
    kubeconfig = plane.kubeconfig_for(account, NAMESPACE)
    if bound_to:
        bind_token(plane, kubeconfig, account, *bound_to.split("/"))

    async def write() -> None:
        async with KubeClient.connect(kubeconfig=kubeconfig) as client:
            part = "status" if "status" in body else ""
            await client.apply(resource, name, body, field_manager=AGENT_FIELD_MANAGER, subresource=part)

    try:
        asyncio.run(write())
    except ForbiddenError as error:
        return error.message
    return ""


@pytest.fixture(scope="module")
def kept(plane: LocalControlPlane) -> LocalControlPlane:
    """Two nodes with twins and profiles, an agent's pod on one of them, and the policy of their agents in force."""
    plane.await_definitions()
    plane.create_nodes([kwok_node(name) for name in (OWN, OTHER)])
    pod = {
        "metadata": {"name": "agent"},
        "spec": {
            "nodeName": OWN,
            "serviceAccountName": "joulie-agent",
            "containers": [{"name": "c", "image": "i"}],
        },
    }
    plane.request("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", pod)
    for name in (OWN, OTHER):
        for resource, spec in (
            (NODE_TWINS, {"nodeName": name, "profile": "performance"}),
            (TELEMETRY_PROFILES, {"target": {"scope": "node", "nodeName": name}}),
        ):
            body = {
                "apiVersion": resource.api_version,
                "kind": resource.kind,
                "metadata": {"name": name},
                "spec": spec,
            }
            plane.request("POST", resource.path(), body)

    def noticed() -> bool:
        return "names no node" in written_by(plane, "joulie-agent", NODE_TWINS, OTHER, REPORT)

    wait_for(noticed, 90, "policy in force")
    return plane


@pytest.mark.parametrize("bound_to", [f"Node/{OWN}", "Pod/agent"])
def test_an_agent_writes_for_its_own_node_alone(kept: LocalControlPlane, bound_to: str) -> None:
    def answer(resource: Resource[Any], name: str, body: Document) -> str:
        return written_by(kept, "joulie-agent", resource, name, body, bound_to=bound_to)

    def refusal(of: str) -> str:
        return f"the agent of node {OWN} writes only what belongs to its node, which {of} does not"

    profile = {"status": {"control": REPORT["status"]["controlStatus"]}}
    hardware = {"status": {"quality": {"overall": "exact"}}}
    kept.kubectl("delete", "nodehardwares", "--all")
    assert refusal(f"nodehardwares {OTHER}") in answer(NODE_HARDWARES, OTHER, {"spec": {"nodeName": OTHER}})
    assert refusal(f"nodehardwares {OTHER}") in answer(NODE_HARDWARES, OTHER, {"spec": {"nodeName": OWN}})
    assert refusal(f"nodehardwares {OWN}") in answer(NODE_HARDWARES, OWN, {"spec": {"nodeName": OTHER}})
    assert refusal(f"nodetwins {OTHER}") in answer(NODE_TWINS, OTHER, REPORT)
    assert refusal(f"telemetryprofiles {OTHER}") in answer(TELEMETRY_PROFILES, OTHER, profile)
    assert answer(NODE_HARDWARES, OWN, {"spec": {"nodeName": OWN}}) == ""
    assert answer(NODE_HARDWARES, OWN, hardware) == ""
    assert answer(NODE_TWINS, OWN, REPORT) == ""
    assert answer(TELEMETRY_PROFILES, OWN, profile) == ""


def test_an_agent_whose_token_names_no_node_is_told_so(kept: LocalControlPlane) -> None:
    told = written_by(kept, "joulie-agent", NODE_TWINS, OWN, REPORT)
    assert "the token of joulie-agent names no node: use a pod's own token, or kubectl create token" in told
    assert f"--namespace {NAMESPACE} --bound-object-kind Node --bound-object-name NODE" in told


def test_agents_of_the_pool_write_for_many_nodes(kept: LocalControlPlane) -> None:
    for name in (OWN, OTHER):
        assert written_by(kept, "joulie-agent-pool", NODE_TWINS, name, REPORT) == ""


@pytest.mark.parametrize("level", ["baseline", "restricted"])
def test_r4_only_the_agents_need_a_privileged_namespace(plane: LocalControlPlane, render: Render, level: str) -> None:
    namespace = f"level-{level}"
    enforced = {"pod-security.kubernetes.io/enforce": level}
    plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace, "labels": enforced}})
    # Accounts and priorities of a release are not here; they change nothing about the level.
    absent = ("serviceAccountName", "priorityClassName", "runtimeClassName")

    def refused(spec: Document) -> str:
        body = {"metadata": {"name": "p"}, "spec": {key: value for key, value in spec.items() if key not in absent}}
        body["spec"]["automountServiceAccountToken"] = False
        try:
            plane.request("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", body)
        except ApiError as error:
            return str(error)
        return ""

    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    wait_for(lambda: plane.request("GET", accounts)["items"], 90, "pods can be created")
    # A claim of a StatefulSet is a volume of its pods.
    values = merged(EVERYTHING, ("accounting", "persistence"), {"enabled": False})
    answers = {name: refused(spec) for name, spec in workloads(render(values)).items()}
    for name, answer in answers.items():
        assert ("violates PodSecurity" in answer) is (name in AGENTS), f"{name}: {answer}"
        assert name in AGENTS or not answer, f"{name}: {answer}"


def test_an_upgrade_that_lifts_caps_says_so_first(plane: LocalControlPlane) -> None:
    def notes() -> str:
        upgrade = ("upgrade", "joulie", CHART, "-n", NAMESPACE, "--reset-then-reuse-values", "--set", "mode=observe")
        return plane.helm(*upgrade, "--dry-run=server").partition("NOTES:\n")[2].lstrip()

    assert notes().startswith("Joulie ")
    # As a chart without the value mode had it.
    plane.kubectl("set", "env", "deployment/joulie-operator", "MODE-", "-n", NAMESPACE)
    assert notes().startswith("CAPS ARE LIFTED NOW")


def test_an_upgrade_without_ceilings_restores_what_they_lowered(plane: LocalControlPlane) -> None:
    def hooks(ceilings: bool) -> dict[str, list[Any]]:
        values = merged(without_foreign_kinds(EVERYTHING), ("grid", "replicaCeilings"), ceilings)
        upgrade = ("upgrade", "joulie", CHART, "-n", NAMESPACE, "-f", "-", "--dry-run=server")
        told = plane.helm(*upgrade, input=json.dumps(values)).partition("HOOKS:\n")[2].partition("MANIFEST:\n")[0]
        found = [one for one in yaml.safe_load_all(told) if one]
        return {
            one["metadata"]["name"]: one["spec"]["template"]["spec"]["containers"][0]["env"]
            for one in found
            if one["metadata"]["annotations"]["helm.sh/hook"] == "post-upgrade"
        }

    assert hooks(True) == {}
    (environment,) = hooks(False).values()
    assert {"name": "CLEANUP_ONLY_CEILINGS", "value": "true"} in environment


def test_r3_who_waits_is_let_go_when_the_grid_is_turned_off(plane: LocalControlPlane) -> None:
    def hooks() -> dict[str, str]:
        documents = filter(None, yaml.safe_load_all(plane.helm("get", "hooks", "joulie", "-n", NAMESPACE)))
        jobs = {job["metadata"]["annotations"]["helm.sh/hook"]: job for job in documents}
        return {
            hook: environment(job["spec"]["template"]["spec"]).get("CLEANUP_ONLY_GRID", "")
            for hook, job in jobs.items()
        }

    # Nothing runs pods here that could end a hook.
    options = ("--no-hooks", "--set", "steering.mode=admission,mode=enforce")
    upgrade = ("upgrade", "joulie", CHART, "-n", NAMESPACE, *options)
    assert set(hooks()) == {"pre-delete"}
    plane.helm(*upgrade)
    assert hooks() == {"pre-delete": "", "pre-upgrade": "true"}
    plane.helm(*upgrade)
    assert set(hooks()) == {"pre-delete"}, "there is nothing of it any more"


def test_uninstalled_crds_stay(plane: LocalControlPlane) -> None:
    plane.helm("uninstall", "joulie", "-n", NAMESPACE, "--no-hooks")
    assert plane.kubectl("get", "deployments", "-n", NAMESPACE, "-o", "name") == ""
    assert plane.kubectl("get", "crd", "nodetwins.joulie.io", "-o", "name").strip().endswith("nodetwins.joulie.io")
