"""TelemetryProfile: where the agents read power and send caps, as an object instead of variables."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import Meta

from joulie.adapters.kubernetes.api.meta import KubernetesObject, ObjectMeta
from joulie.adapters.kubernetes.api.v1alpha1.fields import (
    MAX_MESSAGE,
    Conditions,
    ControlStatus,
    Count,
    JoulieStruct,
    Name,
    Rule,
    Url,
    one_of,
)

TimeoutSeconds = Annotated[int, Meta(extra_json_schema={"minimum": 1, "maximum": 300})]
Query = Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": MAX_MESSAGE})]
LabelValue = Annotated[str, Meta(extra_json_schema={"maxLength": 63})]
Selector = Annotated[dict[str, LabelValue], Meta(extra_json_schema={"minProperties": 1, "maxProperties": 16})]

_HTTP_RULE = Rule("self.type != 'http' || has(self.http)", "type http needs http.endpoint")


class TargetScope(StrEnum):
    """What a profile applies to."""

    NODE = "node"
    CLUSTER = "cluster"


class SourceType(StrEnum):
    """Where measurements come from."""

    NONE = "none"
    HOST = "host"
    HTTP = "http"
    PROMETHEUS = "prometheus"


class ControlType(StrEnum):
    """Where caps are sent."""

    NONE = "none"
    HOST = "host"
    HTTP = "http"


class ControlMode(StrEnum):
    """How an HTTP backend is asked to cap."""

    AUTO = "auto"
    RAPL = "rapl"
    DVFS = "dvfs"


class Target(JoulieStruct, frozen=True):
    """The nodes that a profile applies to.

    Attributes:
        scope: node (one by name, or some by labels) or cluster (all).
        node_name: the node.
        node_selector: labels that the nodes have.
    """

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.scope != 'node' || has(self.nodeName) != has(self.nodeSelector)",
            "scope node needs either nodeName or nodeSelector",
        ),
        Rule(
            "self.scope != 'cluster' || !(has(self.nodeName) || has(self.nodeSelector))",
            "scope cluster applies to all nodes: remove nodeName and nodeSelector",
        ),
    )

    scope: Annotated[str, one_of(TargetScope)]
    node_name: Name | None = None
    node_selector: Selector | None = None


class HttpSource(JoulieStruct, frozen=True):
    """An HTTP endpoint that answers with power.

    Attributes:
        endpoint: URL; {node} stands for the node's name.
        timeout_seconds: how long to wait for an answer, s.
    """

    endpoint: Url
    timeout_seconds: TimeoutSeconds | None = None


class PrometheusSource(JoulieStruct, frozen=True):
    """A query that Prometheus answers with power.

    Attributes:
        address: URL of Prometheus.
        query: PromQL; {node} stands for the node's name.
    """

    address: Url
    query: Query


class Source(JoulieStruct, frozen=True):
    """Where one kind of measurement comes from.

    Attributes:
        type: none, the host itself, HTTP or Prometheus.
        http: the endpoint, for type http.
        prometheus: the query, for type prometheus.
    """

    rules: ClassVar[tuple[Rule, ...]] = (
        _HTTP_RULE,
        Rule(
            "self.type != 'prometheus' || has(self.prometheus)",
            "type prometheus needs prometheus.address and prometheus.query",
        ),
    )

    type: Annotated[str, one_of(SourceType)]
    http: HttpSource | None = None
    prometheus: PrometheusSource | None = None


class Sources(JoulieStruct, frozen=True):
    """Where measurements come from.

    Attributes:
        cpu: CPU power.
        gpu: GPU power.
        context: facility context.
    """

    cpu: Source | None = None
    gpu: Source | None = None
    context: Source | None = None


class HttpControl(JoulieStruct, frozen=True):
    """An HTTP endpoint that takes caps.

    Attributes:
        endpoint: URL; {node} stands for the node's name.
        mode: for CPUs, by power limit (rapl), by frequency (dvfs), or power limit first (auto). Objects of older
            versions say powercap for GPUs, which is what every mode means there.
        timeout_seconds: how long to wait for an answer, s.
    """

    endpoint: Url
    mode: Annotated[str, one_of(ControlMode, "powercap")] | None = None
    timeout_seconds: TimeoutSeconds | None = None


class Control(JoulieStruct, frozen=True):
    """Where the caps of one subsystem are sent.

    Attributes:
        type: none, the host itself, or HTTP.
        http: the endpoint, for type http.
    """

    rules: ClassVar[tuple[Rule, ...]] = (_HTTP_RULE,)

    type: Annotated[str, one_of(ControlType)]
    http: HttpControl | None = None


class Controls(JoulieStruct, frozen=True):
    """Where caps are sent.

    Attributes:
        cpu: CPU caps.
        gpu: GPU caps.
    """

    cpu: Control | None = None
    gpu: Control | None = None


class TelemetryProfileSpec(JoulieStruct, frozen=True):
    """Backends of the agents on some nodes.

    Attributes:
        target: the nodes.
        sources: where measurements come from.
        controls: where caps are sent.
    """

    # One address for many nodes would give each of them the power of one.
    rules: ClassVar[tuple[Rule, ...]] = tuple(
        Rule(
            f"has(self.target.nodeName) || !has(self.sources) || !has(self.sources.{part})"
            f" || !has(self.sources.{part}.http) || self.sources.{part}.http.endpoint.contains('{{node}}')",
            f"sources.{part}.http.endpoint must contain {{node}} where the target is more than one node",
        )
        for part in ("cpu", "gpu")
    )

    target: Target
    sources: Sources | None = None
    controls: Controls | None = None


class MatchedNodes(JoulieStruct, frozen=True):
    """How the nodes of a profile with a selector fare; written by the operator.

    Attributes:
        matched: nodes that the target matches.
        applied: of these, nodes whose agent applied the caps.
        blocked: nodes whose agent could not.
        failed: nodes whose agent tried and failed.
    """

    matched: Count | None = None
    applied: Count | None = None
    blocked: Count | None = None
    failed: Count | None = None


class TelemetryProfileStatus(JoulieStruct, frozen=True):
    """How control fares.

    Attributes:
        control: result of the agent, where the target is one node.
        nodes: counts, where the target is more than one.
        conditions: what is true of the profile, and why.
    """

    control: ControlStatus | None = None
    nodes: MatchedNodes | None = None
    conditions: Conditions = ()


class TelemetryProfile(KubernetesObject, kw_only=True, frozen=True):
    """Where the agents of some nodes read power and send caps; the agent's variables count where none matches.

    Attributes:
        spec: the backends.
        status: how they fare.
    """

    metadata: ObjectMeta
    spec: TelemetryProfileSpec
    status: TelemetryProfileStatus = TelemetryProfileStatus()
