"""CustomResourceDefinitions, generated from the typed definition in `joulie.adapters.kubernetes.api.v1alpha1`.

Types, bounds, enumerations and CEL rules come from the structs, descriptions from their docstrings. ``python -m
joulie_lab.adapters.crd FOLDER`` writes one file a kind, which is how the chart's are made; without a folder it
prints them all.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import yaml

from joulie.adapters.kubernetes import resources
from joulie.adapters.kubernetes.api.meta import KubernetesObject
from joulie.adapters.kubernetes.resources import Resource

_TYPE_META = {
    "apiVersion": {"type": "string", "description": "Group and version of the kind."},
    "kind": {"type": "string", "description": "The kind."},
    "metadata": {"type": "object"},
}
_SCALARS = {
    msgspec.inspect.StrType: "string",
    msgspec.inspect.FloatType: "number",
    msgspec.inspect.IntType: "integer",
    msgspec.inspect.BoolType: "boolean",
}


@dataclass(frozen=True)
class Column:
    """A column of ``kubectl get``; those of priority 1 are shown with ``-o wide`` only."""

    name: str
    type: str
    path: str
    priority: int = 0

    def definition(self) -> dict[str, Any]:
        """The column as the CRD has it."""
        wide = {"priority": self.priority} if self.priority else {}
        return {"name": self.name, "type": self.type, "jsonPath": self.path, **wide}


_AGE = Column("Age", "date", ".metadata.creationTimestamp")


@dataclass(frozen=True)
class CustomKind:
    """What a kind's CRD says beside the schema."""

    resource: Resource[Any]
    short_name: str
    columns: tuple[Column, ...]


CUSTOM_KINDS = (
    CustomKind(
        resources.NODE_HARDWARES,
        "nhw",
        (
            Column("CPU", "string", ".status.cpu.model"),
            Column("Sockets", "integer", ".status.cpu.sockets"),
            Column("Cores", "integer", ".status.cpu.totalCores"),
            Column("GPU", "string", ".status.gpu.model"),
            Column("GPUs", "integer", ".status.gpu.count"),
            Column("Quality", "string", ".status.quality.overall"),
            Column("CPU-Control", "boolean", ".status.capabilities.cpuControl", 1),
            Column("GPU-Control", "boolean", ".status.capabilities.gpuControl", 1),
            _AGE,
        ),
    ),
    CustomKind(
        resources.NODE_TWINS,
        "nt",
        (
            Column("Profile", "string", ".spec.profile"),
            Column("Class", "string", ".status.schedulableClass"),
            Column("Headroom", "number", ".status.predictedPowerHeadroomScore"),
            Column("Cooling", "number", ".status.predictedCoolingStressScore"),
            Column("Power-W", "number", ".status.powerMeasurement.measuredNodePowerW"),
            Column("Source", "string", ".status.powerMeasurement.source"),
            Column("CPU-Control", "string", ".status.controlStatus.cpu.result"),
            Column("GPU-Control", "string", ".status.controlStatus.gpu.result"),
            Column("PSU", "number", ".status.predictedPsuStressScore", 1),
            Column("CPU-Cap-Pct", "number", ".spec.cpu.packagePowerCapPctOfMax", 1),
            Column("CPU-Cap-W", "number", ".spec.cpu.packagePowerCapWatts", 1),
            Column("GPU-Cap-Pct", "number", ".spec.gpu.powerCap.capPctOfMax", 1),
            Column("GPU-Cap-W", "number", ".spec.gpu.powerCap.capWattsPerGpu", 1),
            Column("Policy", "string", ".spec.policy.name", 1),
            Column("Updated", "date", ".status.lastUpdated"),
        ),
    ),
    CustomKind(
        resources.NODE_POWER_PROFILES,
        "npp",
        (
            Column("Node", "string", ".spec.nodeName"),
            Column("Profile", "string", ".spec.profile"),
            Column("CPU-Cap-Pct", "number", ".spec.cpu.packagePowerCapPctOfMax"),
            Column("CPU-Cap-W", "number", ".spec.cpu.packagePowerCapWatts"),
            Column("Override", "string", r".metadata.labels.joulie\.io/override"),
            _AGE,
        ),
    ),
    CustomKind(
        resources.TELEMETRY_PROFILES,
        "tp",
        (
            Column("Scope", "string", ".spec.target.scope"),
            Column("Node", "string", ".spec.target.nodeName"),
            Column("CPU-Source", "string", ".spec.sources.cpu.type"),
            Column("CPU-Control", "string", ".spec.controls.cpu.type"),
            Column("GPU-Control", "string", ".spec.controls.gpu.type"),
            Column("Nodes", "integer", ".status.nodes.matched"),
            _AGE,
        ),
    ),
    CustomKind(
        resources.WORKLOAD_PROFILES,
        "wp",
        (
            Column("Class", "string", ".status.criticality.class"),
            Column("CPU", "string", ".status.cpu.intensity"),
            Column("GPU", "string", ".status.gpu.intensity"),
            Column("CPU-Cap", "string", ".status.cpu.capSensitivity"),
            Column("GPU-Cap", "string", ".status.gpu.capSensitivity"),
            Column("Movable", "boolean", ".status.migratability.reschedulable"),
            Column("Confidence", "number", ".status.confidence"),
            Column("Kind", "string", ".spec.workloadRef.kind", 1),
            Column("Workload", "string", ".spec.workloadRef.name", 1),
            Column("CPU-Util", "number", ".status.cpu.avgUtilizationPct", 1),
            Column("GPU-Util", "number", ".status.gpu.avgUtilizationPct", 1),
            Column("Bound", "string", ".status.cpu.bound", 1),
            Column("Node", "string", ".spec.nodeName", 1),
            Column("Updated", "date", ".status.lastUpdated", 1),
            _AGE,
        ),
    ),
    CustomKind(
        resources.ENERGY_BUDGETS,
        "eb",
        (
            Column("Period", "string", ".spec.period"),
            Column("Action", "string", ".spec.action"),
            Column("Used-Pct", "number", ".status.usedPct"),
            Column("Forecast-Pct", "number", ".status.forecastPct"),
            Column("Held-Pods", "integer", ".status.held.pods"),
            Column("Held-Jobs", "integer", ".status.held.jobs"),
            Column("Ends", "string", ".status.periodEnd"),
            Column("Limit-kWh", "number", ".spec.limits.energyKWh", 1),
            Column("Limit-gCO2eq", "number", ".spec.limits.emissionsG", 1),
            Column("Limit-Cost", "number", ".spec.limits.cost", 1),
            Column("Updated", "date", ".status.lastUpdated", 1),
            _AGE,
        ),
    ),
    CustomKind(
        resources.POWER_TRIALS,
        "pt",
        (
            Column("Running", "string", '.status.conditions[?(@.type=="Running")].status'),
            Column("Reason", "string", '.status.conditions[?(@.type=="Running")].reason'),
            Column("Block", "integer", ".status.block"),
            Column("Enforced", "string", ".status.treated"),
            Column("Started", "date", ".status.protocol.startTime"),
            Column("Ends", "string", ".status.protocol.endTime"),
            Column("Seed", "integer", ".status.protocol.seed", 1),
            _AGE,
        ),
    ),
    CustomKind(
        resources.POWER_BUDGETS,
        "pb",
        (
            Column("Limit-W", "number", ".status.limitWatts"),
            Column("Measured-W", "number", ".status.measuredWatts"),
            Column("Worst-W", "number", ".status.worstCaseWatts"),
            Column("Nodes", "integer", ".status.nodes"),
            Column("Curtailed", "integer", ".status.curtailedNodes"),
            Column("Enforced", "string", '.status.conditions[?(@.type=="Enforced")].status'),
            Column("Reason", "string", '.status.conditions[?(@.type=="Enforced")].reason'),
            Column("Blind", "string", '.status.conditions[?(@.type=="Blind")].status', 1),
            Column("Infeasible", "string", '.status.conditions[?(@.type=="Infeasible")].status', 1),
            _AGE,
        ),
    ),
)


def custom_resource_definitions() -> list[dict[str, Any]]:
    """The CRDs of all kinds, as the API server takes them."""
    return [custom_resource_definition(kind) for kind in CUSTOM_KINDS]


def custom_resource_definition(kind: CustomKind) -> dict[str, Any]:
    """The CRD of one kind."""
    resource = kind.resource
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{resource.plural}.{resource.group}"},
        "spec": {
            "group": resource.group,
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "names": {
                "kind": resource.kind,
                "listKind": f"{resource.kind}List",
                "plural": resource.plural,
                "singular": resource.kind.lower(),
                "shortNames": [kind.short_name],
                "categories": ["joulie"],
            },
            "versions": [
                {
                    "name": resource.version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": msgspec.json.decode(_root(resource.type))},  # type: ignore[arg-type]
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [column.definition() for column in kind.columns],
                }
            ],
        },
    }


@cache
def _root(type_: type[KubernetesObject]) -> bytes:
    """Schema of a whole object, as JSON; what is common to all kinds is the API server's business."""
    schema = _struct(type_)
    own = {name: part for name, part in schema["properties"].items() if name not in _TYPE_META}
    return msgspec.json.encode(schema | {"properties": _TYPE_META | own})


def _struct(type_: type[msgspec.Struct]) -> dict[str, Any]:
    """Schema of a struct with its fields, documented by the docstrings."""
    info = msgspec.inspect.type_info(type_)
    assert isinstance(info, msgspec.inspect.StructType)
    meanings = _meanings(type_)
    schema: dict[str, Any] = {"type": "object", "description": _summary(type_), "properties": {}}
    for field in info.fields:
        if issubclass(type_, KubernetesObject) and field.encode_name in _TYPE_META:
            continue
        if field.name not in meanings:
            raise ValueError(f"{type_.__name__}.{field.name} has no description: add it to the docstring's Attributes")
        schema["properties"][field.encode_name] = {"description": meanings[field.name], **_schema(field.type)}
    required = [field.encode_name for field in info.fields if field.required]
    if required:
        schema["required"] = required
    rules = getattr(type_, "rules", ())
    if rules:
        schema["x-kubernetes-validations"] = [rule._asdict() for rule in rules]
    return schema


def _schema(info: msgspec.inspect.Type) -> dict[str, Any]:
    """Structural schema of a type, without references."""
    match info:
        case msgspec.inspect.Metadata(type=inner, extra_json_schema=extra):
            return _schema(inner) | (extra or {})
        case msgspec.inspect.UnionType(types=types):
            (present,) = (option for option in types if not isinstance(option, msgspec.inspect.NoneType))
            return _schema(present)
        case msgspec.inspect.VarTupleType(item_type=item):
            return {"type": "array", "items": _schema(item)}
        case msgspec.inspect.DictType(value_type=value):
            return {"type": "object", "additionalProperties": _schema(value)}
        case msgspec.inspect.StructType(cls=cls):
            schema = _struct(cls)
            # The field says better what the struct is for.
            return {name: part for name, part in schema.items() if name != "description"}
        case _:
            return {"type": _SCALARS[type(info)]}


def _summary(type_: type) -> str:
    """The docstring without its sections, one paragraph a line."""
    text = inspect.getdoc(type_) or ""
    paragraphs = text.partition("\n\nAttributes:\n")[0].split("\n\n")
    return "\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _meanings(type_: type) -> Mapping[str, str]:
    """What each field means, from the Attributes of the type's docstring and of those that it extends."""
    meanings: dict[str, str] = {}
    for cls in reversed(type_.__mro__):
        section = inspect.cleandoc(cls.__doc__ or "").partition("Attributes:\n")[2].partition("\n\n")[0]
        for name, text in re.findall(r"^    (\w+): ((?:.|\n {8})+)", section, re.MULTILINE):
            words = " ".join(text.split())
            meanings[name] = words[:1].upper() + words[1:]
    return meanings


def to_yaml(document: Mapping[str, Any]) -> str:
    """One document of YAML, keys in their order."""
    return yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True, width=120)


def files() -> dict[str, str]:
    """Every CRD as YAML by its file name."""
    return {
        f"{kind.resource.group}_{kind.resource.plural}.yaml": to_yaml(custom_resource_definition(kind))
        for kind in CUSTOM_KINDS
    }


def main(arguments: list[str]) -> None:
    """Write the CRDs to a folder, or print them."""
    if not arguments:
        sys.stdout.write("---\n".join(files().values()))
        return
    for name, text in files().items():
        Path(arguments[0], name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
