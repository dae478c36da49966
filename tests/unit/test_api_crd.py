"""The generated CRDs: what the API server demands of a schema, and what the issue demands of each kind."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from joulie.adapters.kubernetes.api.v1alpha1.fields import JoulieStruct
from joulie_lab.adapters import crd

CRDS = {definition["spec"]["names"]["kind"]: definition for definition in crd.custom_resource_definitions()}


def schema(kind: str) -> dict[str, Any]:
    return dict(CRDS[kind]["spec"]["versions"][0]["schema"]["openAPIV3Schema"])


def field(kind: str, path: str) -> dict[str, Any]:
    found = schema(kind)
    for name in path.split("."):
        found = found["properties"][name]
    return found


def parts(node: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from parts(child, f"{path}.{name}")
    for name in ("items", "additionalProperties"):
        if name in node:
            yield from parts(node[name], f"{path}[]")


@pytest.mark.parametrize("kind", CRDS)
def test_every_field_has_type_description_and_bounds(kind: str) -> None:
    for path, part in parts(schema(kind), kind):
        assert part["type"] in {"object", "array", "string", "number", "integer", "boolean"}, path
        if path.endswith("[]") or path in {kind, f"{kind}.apiVersion", f"{kind}.kind", f"{kind}.metadata"}:
            continue
        assert part["description"].endswith("."), path
        if part["type"] == "string":
            assert "enum" in part or "maxLength" in part, path
        if part["type"] == "array":
            assert "maxItems" in part, path


@pytest.mark.parametrize("kind", CRDS)
def test_every_kind_has_status_columns_and_conditions(kind: str) -> None:
    spec = CRDS[kind]["spec"]
    version = spec["versions"][0]
    assert version["subresources"] == {"status": {}}
    assert spec["names"]["categories"] == ["joulie"]
    assert field(kind, "status.conditions")["x-kubernetes-list-map-keys"] == ["type"]
    assert "spec" in schema(kind)["required"]
    for column in version["additionalPrinterColumns"]:
        if not column["jsonPath"].startswith(".metadata"):
            field(kind, column["jsonPath"].removeprefix(".").partition("[")[0])


def test_names_and_scopes() -> None:
    names = {
        kind: (item["spec"]["names"]["plural"], item["spec"]["names"]["shortNames"]) for kind, item in CRDS.items()
    }
    assert names == {
        "NodeHardware": ("nodehardwares", ["nhw"]),
        "NodeTwin": ("nodetwins", ["nt"]),
        "NodePowerProfile": ("nodepowerprofiles", ["npp"]),
        "TelemetryProfile": ("telemetryprofiles", ["tp"]),
        "WorkloadProfile": ("workloadprofiles", ["wp"]),
        "EnergyBudget": ("energybudgets", ["eb"]),
        "PowerTrial": ("powertrials", ["pt"]),
        "PowerBudget": ("powerbudgets", ["pb"]),
    }
    namespaced = [kind for kind, item in CRDS.items() if item["spec"]["scope"] == "Namespaced"]
    assert namespaced == ["WorkloadProfile", "EnergyBudget"]


def test_bounds_and_enumerations() -> None:
    percent = field("NodeTwin", "spec.cpu.packagePowerCapPctOfMax")
    assert (percent["minimum"], percent["exclusiveMinimum"], percent["maximum"]) == (0, True, 100)
    assert field("NodeTwin", "spec.gpu.powerCap.capWattsPerGpu")["minimum"] == 1
    assert {"rapl", "nvml", "http-error"} < set(field("NodeTwin", "status.powerMeasurement.source")["enum"])
    assert field("NodeTwin", "status.controlStatus.cpu.result")["enum"] == [
        *("applied", "unconfirmed", "observed", "blocked", "error", "none")
    ]
    assert "minimum" not in field("NodeTwin", "status.powerMeasurement.powerTrendWPerMin")
    assert field("NodeTwin", "spec") != field("NodePowerProfile", "spec"), "an override may be pointed at another node"


def test_a_field_without_description_is_refused() -> None:
    class Undocumented(JoulieStruct, frozen=True):
        """Has a field that the docstring forgets."""

        watts: float | None = None

    with pytest.raises(ValueError, match=r"Undocumented.watts has no description"):
        crd._struct(Undocumented)


@pytest.mark.slow
def test_printed_as_yaml(capsys: pytest.CaptureFixture[str]) -> None:
    crd.main([])
    assert [document["metadata"]["name"] for document in yaml.safe_load_all(capsys.readouterr().out)] == [
        item["metadata"]["name"] for item in CRDS.values()
    ]
