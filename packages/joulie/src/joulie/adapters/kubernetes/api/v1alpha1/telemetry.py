"""TelemetryProfile: telemetry sources and control backends of nodes, configured by an object instead of variables."""

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
    """Scope of a profile's target."""

    NODE = "node"
    CLUSTER = "cluster"


class SourceType(StrEnum):
    """Type of a telemetry source."""

    NONE = "none"
    HOST = "host"
    HTTP = "http"
    PROMETHEUS = "prometheus"


class ControlType(StrEnum):
    """Type of a control backend."""

    NONE = "none"
    HOST = "host"
    HTTP = "http"


class ControlMode(StrEnum):
    """How an HTTP backend caps CPUs."""

    AUTO = "auto"
    RAPL = "rapl"
    DVFS = "dvfs"


class Target(JoulieStruct, frozen=True):
    """The nodes that the profile applies to.

    Attributes:
        scope: node (one node by name, or several by labels) or cluster (all nodes).
        node_name: name of the node.
        node_selector: labels that the nodes must have.
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
    """An HTTP endpoint that returns power readings.

    Attributes:
        endpoint: URL; {node} is replaced by the node's name.
        timeout_seconds: request timeout, s.
    """

    endpoint: Url
    timeout_seconds: TimeoutSeconds | None = None


class PrometheusSource(JoulieStruct, frozen=True):
    """A Prometheus query that returns power readings.

    Attributes:
        address: URL of Prometheus.
        query: PromQL query; {node} is replaced by the node's name.
    """

    address: Url
    query: Query


class Source(JoulieStruct, frozen=True):
    """Source of one kind of measurement.

    Attributes:
        type: none, host (the node's own interfaces), http or prometheus.
        http: HTTP endpoint; required for type http.
        prometheus: Prometheus query; required for type prometheus.
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
    """Telemetry sources.

    Attributes:
        cpu: source of CPU power.
        gpu: source of GPU power.
        context: source of facility context.
    """

    cpu: Source | None = None
    gpu: Source | None = None
    context: Source | None = None


class HttpControl(JoulieStruct, frozen=True):
    """An HTTP endpoint that applies caps.

    Attributes:
        endpoint: URL; {node} is replaced by the node's name.
        mode: how CPUs are capped: by power limit (rapl), by frequency (dvfs), or by power limit with frequency as
            fallback (auto). GPUs are always capped by power limit; objects of older versions say powercap there.
        timeout_seconds: request timeout, s.
    """

    endpoint: Url
    mode: Annotated[str, one_of(ControlMode, "powercap")] | None = None
    timeout_seconds: TimeoutSeconds | None = None


class Control(JoulieStruct, frozen=True):
    """Control backend of one subsystem.

    Attributes:
        type: none, host (the node's own interfaces) or http.
        http: HTTP endpoint; required for type http.
    """

    rules: ClassVar[tuple[Rule, ...]] = (_HTTP_RULE,)

    type: Annotated[str, one_of(ControlType)]
    http: HttpControl | None = None


class Controls(JoulieStruct, frozen=True):
    """Control backends.

    Attributes:
        cpu: backend that caps CPUs.
        gpu: backend that caps GPUs.
    """

    cpu: Control | None = None
    gpu: Control | None = None


class TelemetryProfileSpec(JoulieStruct, frozen=True):
    """Telemetry sources and control backends of the target nodes.

    Attributes:
        target: nodes that the profile applies to.
        sources: telemetry sources.
        controls: control backends.
    """

    # One endpoint for several nodes would report the same power for each of them.
    rules: ClassVar[tuple[Rule, ...]] = tuple(
        Rule(
            f"has(self.target.nodeName) || !has(self.sources) || !has(self.sources.{part})"
            f" || !has(self.sources.{part}.http) || self.sources.{part}.http.endpoint.contains('{{node}}')",
            f"sources.{part}.http.endpoint must contain {{node}} if the target can be more than one node",
        )
        for part in ("cpu", "gpu")
    )

    target: Target
    sources: Sources | None = None
    controls: Controls | None = None


class MatchedNodes(JoulieStruct, frozen=True):
    """Numbers of matched nodes by control result; written by the operator.

    Attributes:
        matched: number of nodes that the target matches.
        applied: number of these whose agent applied the caps.
        blocked: number of these whose agent cannot apply caps.
        failed: number of these whose agent failed to apply the caps.
    """

    matched: Count | None = None
    applied: Count | None = None
    blocked: Count | None = None
    failed: Count | None = None


class TelemetryProfileStatus(JoulieStruct, frozen=True):
    """Results of power control with the profile.

    Attributes:
        control: result reported by the agent, if the target is one node.
        nodes: numbers of nodes by result, if the target can be more than one node.
        conditions: conditions of the profile.
    """

    control: ControlStatus | None = None
    nodes: MatchedNodes | None = None
    conditions: Conditions = ()


class TelemetryProfile(KubernetesObject, kw_only=True, frozen=True):
    """Telemetry sources and control backends of some nodes; if none matches a node, its agent uses its own settings.

    Attributes:
        spec: target nodes and their backends.
        status: results of power control.
    """

    metadata: ObjectMeta
    spec: TelemetryProfileSpec
    status: TelemetryProfileStatus = TelemetryProfileStatus()
