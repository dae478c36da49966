"""The generated CRDs in the real API server: every value comes back, wrong objects are refused with a reason."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from joulie.adapters.kubernetes import names, resources
from joulie.adapters.kubernetes.api import v1alpha1
from joulie.adapters.kubernetes.api.meta import ObjectMeta
from joulie.adapters.kubernetes.resources import Resource
from joulie_lab.adapters import crd
from joulie_lab.adapters.crd import CustomKind
from joulie_lab.control_plane import ApiError, LocalControlPlane

pytestmark = [pytest.mark.control_plane, pytest.mark.slow]

COMPONENTS = ("etcd", "kube-apiserver")

VARIANTS = 10
"""More than the longest enumeration has values."""


@pytest.fixture(scope="module")
def plane(plane: LocalControlPlane) -> LocalControlPlane:
    plane.create_all(resources.CUSTOM_RESOURCE_DEFINITIONS.path(), crd.custom_resource_definitions())
    plane.await_definitions()
    return plane


def value_of(schema: dict[str, Any], variant: int) -> Any:
    """A value with all that the schema allows; over the variants, each enumerated value and each bound."""
    if "enum" in schema:
        return schema["enum"][variant % len(schema["enum"])]
    match schema["type"]:
        case "object" if "additionalProperties" in schema:
            return {f"example.com/key-{number}": "v" for number in range(1 + variant % 3)}
        case "object":
            return {name: value_of(part, variant) for name, part in schema["properties"].items()}
        case "array":
            items = [value_of(schema["items"], variant) for _ in range(1 + variant % 2)]
            keys = schema.get("x-kubernetes-list-map-keys", ())
            return [item | {key: f"{key}{n}" for key in keys} for n, item in enumerate(items)] if keys else items
        case "boolean":
            return variant % 2 == 0
        case "integer":
            return max(schema.get("minimum", 0), min(variant * 7, schema.get("maximum", 1000)))
        case "number":
            low, high = schema.get("minimum", -50), schema.get("maximum", 1200) - bool(schema.get("exclusiveMaximum"))
            return [high, min(80, high), min(80.5, high), low + 0.125][variant % 4]
    if schema.get("format") == "date-time":
        return "2026-03-13T12:00:00Z"
    candidates = (f"text{variant}", f"https://sim.example/{{node}}/{variant}", f"{variant:02}:30", "1-5")
    return next(text for text in candidates if re.match(schema.get("pattern", ""), text))


def body_of(kind: CustomKind, variant: int) -> dict[str, Any]:
    """A whole object of the kind."""
    schema = crd.custom_resource_definition(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    parts = {part: value_of(schema["properties"][part], variant) for part in ("spec", "status")}
    if kind.resource is resources.TELEMETRY_PROFILES:
        target = parts["spec"]["target"]
        ways = ("nodeName", "nodeSelector")
        for name in ways if target["scope"] == "cluster" else [ways[variant // 2 % 2]]:
            del target[name]
    if kind.resource is resources.ENERGY_BUDGETS and parts["spec"]["window"] == "rolling":
        del parts["spec"]["timeZone"]
    if kind.resource is resources.POWER_TRIALS:
        spec = parts["spec"]
        if spec["judges"] == "deferral":
            for name in ("pairs", "blockMinutes", "washoutMinutes", "washout", "nodeSelector"):
                del spec[name]
            del spec["guard"]["maxSlowdownPercent"]
        else:
            spec["washoutMinutes"] = spec["blockMinutes"] - 1
            for name in ("days", ("washout", "washoutMinutes")[variant // 2 % 2]):
                del spec[name]
    if kind.resource is resources.POWER_BUDGETS:
        spec = parts["spec"]
        spec["breaker"]["ratedWatts"] = spec["watts"]
        spec["timeZone"] = "Europe/Berlin"
        spec["follow"]["high"] = spec["follow"]["low"] + 1
        del spec["follow"][("query", "signal")[variant // 2 % 2]]
        for reduction in spec["reductions"]:
            del reduction[("watts", "reducePercent")[variant % 2]]
            reduction["end"] = "2026-03-13T13:00:00Z"
    metadata = {"name": f"round-trip-{variant}"}
    return {"apiVersion": kind.resource.api_version, "kind": kind.resource.kind, "metadata": metadata, **parts}


def plain(value: msgspec.Struct) -> dict[str, Any]:
    """The struct as it goes over the wire."""
    return dict(msgspec.json.decode(msgspec.json.encode(value)))


def namespace_of(kind: CustomKind) -> str | None:
    return "default" if kind.resource.namespaced else None


@pytest.mark.parametrize("variant", range(VARIANTS))
@pytest.mark.parametrize("kind", crd.CUSTOM_KINDS, ids=lambda kind: kind.resource.kind)
def test_every_value_comes_back(plane: LocalControlPlane, kind: CustomKind, variant: int) -> None:
    body = body_of(kind, variant)
    sent = msgspec.convert(body, kind.resource.type)
    assert plain(sent) == body, "the struct knows all that the schema allows"

    collection = kind.resource.path(namespace_of(kind))
    created = plane.request("POST", collection, plain(sent))
    one = f"{collection}/{body['metadata']['name']}"
    plane.request("PUT", f"{one}/status", {**created, "status": plain(sent.status)})
    stored = plane.request("GET", one)

    assert (stored["spec"], stored["status"]) == (body["spec"], body["status"]), "nothing is pruned"
    read = msgspec.json.decode(msgspec.json.encode(stored), type=kind.resource.type)
    assert (read.spec, read.status) == (sent.spec, sent.status)
    plane.request("DELETE", one)


def test_whole_watts_stay_numbers(plane: LocalControlPlane) -> None:
    twin = v1alpha1.NodeTwin(
        api_version=resources.NODE_TWINS.api_version,
        kind="NodeTwin",
        metadata=ObjectMeta(name="whole-watts"),
        spec=v1alpha1.NodeTwinSpec(
            node_name="whole-watts", profile="eco", cpu=v1alpha1.CpuCap(package_power_cap_watts=210.0)
        ),
    )
    plane.request("POST", resources.NODE_TWINS.path(), plain(twin))
    one = resources.NODE_TWINS.path(name="whole-watts")
    stored = plane.request("GET", one)
    assert isinstance(stored["spec"]["cpu"]["packagePowerCapWatts"], int), "the API server drops the decimal point"
    read = msgspec.json.decode(msgspec.json.encode(stored), type=v1alpha1.NodeTwin)
    assert read.spec.cpu is not None
    assert read.spec.cpu.package_power_cap_watts == 210.0
    plane.request("DELETE", one)


TWIN = {"nodeName": "n", "profile": "eco"}
HTTP = {"type": "http", "http": {"endpoint": "https://sim.example/{node}"}}


def target(**fields: Any) -> dict[str, Any]:
    return {"target": fields}


REFUSED = {
    "profile unknown": (resources.NODE_TWINS, {**TWIN, "profile": "turbo"}, 'Unsupported value: "turbo"'),
    "profile missing": (resources.NODE_TWINS, {"nodeName": "n"}, "spec.profile: Required value"),
    "node name missing": (resources.NODE_TWINS, {"profile": "eco"}, "spec.nodeName: Required value"),
    "node name empty": (resources.NODE_TWINS, {**TWIN, "nodeName": ""}, "spec.nodeName"),
    "cap of zero percent": (
        resources.NODE_TWINS,
        {**TWIN, "cpu": {"packagePowerCapPctOfMax": 0}},
        "packagePowerCapPctOfMax",
    ),
    "cap above the maximum": (
        resources.NODE_POWER_PROFILES,
        {**TWIN, "cpu": {"packagePowerCapPctOfMax": 100.5}},
        "should be less than or equal to 100",
    ),
    "cap below a watt": (
        resources.NODE_TWINS,
        {**TWIN, "gpu": {"powerCap": {"capWattsPerGpu": 0.5}}},
        "should be greater than or equal to 1",
    ),
    "watts as text": (resources.NODE_TWINS, {**TWIN, "cpu": {"packagePowerCapWatts": "210"}}, "must be of type number"),
    "scope of a GPU cap": (resources.NODE_TWINS, {**TWIN, "gpu": {"powerCap": {"scope": "node"}}}, "perGpu"),
    "workload without a name": (
        resources.WORKLOAD_PROFILES,
        {"workloadRef": {"kind": "Job"}},
        "spec.workloadRef.name: Required value",
    ),
    "no node at all": (
        resources.TELEMETRY_PROFILES,
        target(scope="node"),
        "scope node needs either nodeName or nodeSelector",
    ),
    "two ways to name nodes": (
        resources.TELEMETRY_PROFILES,
        target(scope="node", nodeName="n", nodeSelector={"a": "b"}),
        "scope node needs either nodeName or nodeSelector",
    ),
    "a node for the cluster": (
        resources.TELEMETRY_PROFILES,
        target(scope="cluster", nodeName="n"),
        "scope cluster applies to all nodes",
    ),
    "empty selector": (resources.TELEMETRY_PROFILES, target(scope="node", nodeSelector={}), "nodeSelector"),
    "http without endpoint": (
        resources.TELEMETRY_PROFILES,
        target(scope="cluster") | {"controls": {"cpu": {"type": "http"}}},
        "type http needs http.endpoint",
    ),
    "prometheus without query": (
        resources.TELEMETRY_PROFILES,
        target(scope="cluster") | {"sources": {"context": {"type": "prometheus"}}},
        "type prometheus needs prometheus.address and prometheus.query",
    ),
    "no URL": (
        resources.TELEMETRY_PROFILES,
        target(scope="cluster") | {"controls": {"cpu": {"type": "http", "http": {"endpoint": "sim:80"}}}},
        "controls.cpu.http.endpoint",
    ),
    "one address for many nodes": (
        resources.TELEMETRY_PROFILES,
        target(scope="node", nodeSelector={"a": "b"})
        | {"sources": {"gpu": {"type": "http", "http": {"endpoint": "https://sim.example/power"}}}},
        "must contain {node} if the target can be more than one node",
    ),
    "washout as long as a block": (
        resources.POWER_TRIALS,
        {"blockMinutes": 60},
        "the washout must be shorter than a block",
    ),
    "a budget above its breaker's rating": (
        resources.POWER_BUDGETS,
        {"watts": 11_000, "breaker": {"ratedWatts": 10_000}},
        "watts must not exceed the breaker's ratedWatts",
    ),
    "a budget of nothing": (resources.POWER_BUDGETS, {"watts": 0}, "greater than or equal to 1"),
    "a time after midnight": (
        resources.POWER_BUDGETS,
        {"watts": 1, "schedule": [{"start": "20:00", "end": "24:30", "watts": 1}]},
        "spec.schedule[0].end",
    ),
    **{
        f"the time zone {zone}": (
            resources.POWER_BUDGETS,
            {"watts": 1, "timeZone": zone, "schedule": [{"start": "20:00", "end": "24:00", "watts": 1}]},
            reason,
        )
        for zone, reason in (
            ("Mars/Olympus", "unknown time zone Mars/Olympus"),
            ("01:00", "must be an IANA time zone"),
            ("Local", "must be an IANA time zone"),
        )
    },
    "a washout of both kinds": (
        resources.POWER_TRIALS,
        {"washout": "auto", "washoutMinutes": 60},
        "a washout is either auto or so many minutes",
    ),
    "blocks in a trial of deferral": (
        resources.POWER_TRIALS,
        {"judges": "deferral", "pairs": 12},
        "a trial of deferral has days",
    ),
    "a bound of slowdown in a trial of deferral": (
        resources.POWER_TRIALS,
        {"judges": "deferral", "guard": {"maxSlowdownPercent": 5}},
        "a trial of deferral has days",
    ),
    "days of blocks": (resources.POWER_TRIALS, {"days": 7}, "a trial of deferral has days"),
    "too few pairs for an interval": (resources.POWER_TRIALS, {"pairs": 5}, "greater than or equal to 12"),
}


@pytest.mark.parametrize(("resource", "spec", "reason"), REFUSED.values(), ids=REFUSED)
def test_wrong_objects_are_refused(
    plane: LocalControlPlane, resource: Resource[Any], spec: dict[str, Any], reason: str
) -> None:
    body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": "wrong"}, "spec": spec}
    with pytest.raises(ApiError) as refusal:
        plane.request("POST", resource.path("default" if resource.namespaced else None), body)
    assert refusal.value.status == 422
    assert reason in str(refusal.value)


def test_right_telemetry_targets_are_taken(plane: LocalControlPlane) -> None:
    for number, spec in enumerate(
        (
            target(scope="node", nodeName="n")
            | {"sources": {"cpu": HTTP | {"http": {"endpoint": "http://n.example/"}}}},
            target(scope="node", nodeSelector={"a": "b"}) | {"controls": {"gpu": HTTP}, "sources": {"cpu": HTTP}},
            target(scope="cluster"),
        )
    ):
        one = apply(plane, resources.TELEMETRY_PROFILES, f"right-{number}", "test", {"spec": spec})
        assert contains(one["spec"], spec), one["spec"]
        plane.request("DELETE", resources.TELEMETRY_PROFILES.path(name=one["metadata"]["name"]))


def contains(stored: Any, given: Any) -> bool:
    """Whether nothing given was pruned; the API server adds defaults."""
    if not isinstance(given, dict):
        return bool(stored == given)
    return isinstance(stored, dict) and all(key in stored and contains(stored[key], given[key]) for key in given)


def apply(
    plane: LocalControlPlane,
    resource: Resource[Any],
    name: str,
    manager: str,
    parts: dict[str, Any],
    subresource: str = "",
) -> Any:
    """Server-side apply, not forced: a field of another manager would be a conflict."""
    body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name}, **parts}
    path = f"{resource.path(name=name, subresource=subresource or None)}?fieldManager={manager}"
    return plane.request("PATCH", path, body, content_type="application/apply-patch+yaml")


@pytest.fixture
def twin(plane: LocalControlPlane) -> Iterator[str]:
    name = "ip-10-0-0-1.eu-west-1.compute.internal"
    apply(
        plane, resources.NODE_TWINS, name, names.OPERATOR_FIELD_MANAGER, {"spec": {"nodeName": name, "profile": "eco"}}
    )
    yield name
    plane.request("DELETE", resources.NODE_TWINS.path(name=name))


def test_operator_and_agent_do_not_erase_each_other(plane: LocalControlPlane, twin: str) -> None:
    condition = {
        "type": "Draining",
        "status": "True",
        "reason": "EcoPlanned",
        "lastTransitionTime": "2026-03-13T12:00:00Z",
        "message": "",
    }
    report = v1alpha1.ControlStatus(
        cpu=v1alpha1.ControlResult(backend="rapl", result=v1alpha1.ControlOutcome.APPLIED, message="210 W")
    )

    def operator(status: dict[str, Any]) -> dict[str, Any]:
        parts = {"status": status}
        stored = apply(plane, resources.NODE_TWINS, twin, names.OPERATOR_FIELD_MANAGER, parts, "status")
        return dict(stored["status"])

    def agent(status: v1alpha1.ControlStatus) -> dict[str, Any]:
        parts = {"status": {"controlStatus": plain(status)}}
        stored = apply(plane, resources.NODE_TWINS, twin, names.AGENT_FIELD_MANAGER, parts, "status")
        return dict(stored["status"])

    operator({"schedulableClass": "draining", "estimatedPUE": 1.2, "conditions": [condition]})
    both = agent(report)
    assert (both["schedulableClass"], both["controlStatus"]["cpu"]["result"]) == ("draining", "applied")

    # What a manager no longer says goes away, what the other says stays.
    after_operator = operator({"schedulableClass": "eco"})
    assert after_operator == {"schedulableClass": "eco", "controlStatus": {"cpu": both["controlStatus"]["cpu"]}}
    after_agent = agent(v1alpha1.ControlStatus(gpu=v1alpha1.ControlResult(result="none")))
    assert after_agent == {"schedulableClass": "eco", "controlStatus": {"gpu": {"result": "none"}}}

    with pytest.raises(ApiError, match="conflict") as conflict:
        operator({"controlStatus": {"gpu": {"result": "applied"}}})
    assert conflict.value.status == 409


def test_status_and_spec_are_written_apart(plane: LocalControlPlane, twin: str) -> None:
    apply(
        plane,
        resources.NODE_TWINS,
        twin,
        names.OPERATOR_FIELD_MANAGER,
        {"status": {"schedulableClass": "eco"}},
        "status",
    )
    stored = plane.request("GET", resources.NODE_TWINS.path(name=twin))
    changed = copy.deepcopy(stored)
    changed["spec"]["profile"] = "performance"
    changed["status"] = {"schedulableClass": "performance"}
    written = plane.request("PUT", resources.NODE_TWINS.path(name=twin), changed)
    assert (written["spec"]["profile"], written["status"]["schedulableClass"]) == ("performance", "eco")


def test_of_a_trial_only_the_stop_can_change(plane: LocalControlPlane) -> None:
    def applied(spec: dict[str, Any]) -> dict[str, Any]:
        return apply(plane, resources.POWER_TRIALS, "fixed", "test", {"spec": spec})

    applied({"pairs": 12})
    for change in ({"pairs": 13}, {"blockMinutes": 720}, {"seed": 1}, {"washout": "auto"}, {"judges": "enforcement"}):
        with pytest.raises(ApiError, match="a trial cannot be changed"):
            applied({"pairs": 12} | change)
    stopped = applied({"pairs": 12, "stop": True})
    assert stopped["spec"]["stop"] is True
    plane.request("DELETE", resources.POWER_TRIALS.path(name="fixed"))


def test_the_node_of_a_twin_cannot_change(plane: LocalControlPlane, twin: str) -> None:
    with pytest.raises(ApiError, match="nodeName is immutable"):
        plane.request(
            "PATCH",
            resources.NODE_TWINS.path(name=twin),
            {"spec": {"nodeName": "other"}},
            content_type="application/merge-patch+json",
        )


def test_kubectl_shows_the_columns(plane: LocalControlPlane, twin: str) -> None:
    apply(
        plane,
        resources.NODE_TWINS,
        twin,
        names.OPERATOR_FIELD_MANAGER,
        {"status": {"schedulableClass": "eco", "predictedPowerHeadroomScore": 62.5}},
        "status",
    )
    for kind in crd.CUSTOM_KINDS:
        plane.kubectl("get", kind.short_name, "--all-namespaces")
    header, row = plane.kubectl("get", "nt", twin).splitlines()
    assert header.split()[:4] == ["NAME", "PROFILE", "CLASS", "HEADROOM"]
    assert row.split()[:4] == [twin, "eco", "eco", "62.5"]
    assert twin in plane.kubectl("get", "joulie", "-o", "name")
    assert "Power cap of each package, W." in plane.kubectl("explain", "nodetwin.spec.cpu.packagePowerCapWatts")
