"""Describes an FMU: interfaces, platforms, capabilities and variables."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from joulie_lab.adapters.fmu.archive import member_names, platforms, read_any_description
from joulie_lab.adapters.fmu.plant import FmuPlant
from joulie_lab.adapters.fmu.variables import FmuMapping, declared_unit
from joulie_lab.simulation.cooling_plant import CoolingPlantError

_CAPABILITIES = (
    "canHandleVariableCommunicationStepSize",
    "fixedInternalStepSize",
    "canGetAndSetFMUstate",
    "canSerializeFMUstate",
    "canBeInstantiatedOnlyOncePerProcess",
    "needsExecutionTool",
    "hasEventMode",
    "mightReturnEarlyFromDoStep",
)


@dataclass(frozen=True)
class VariableDescription:
    """One variable; `start` is as written in the FMU, None without a start value."""

    name: str
    causality: str
    variability: str
    type: str
    unit: str | None
    start: str | None
    description: str | None


@dataclass(frozen=True)
class FmuDescription:
    """The description of an FMU, and whether it can be used as a cooling plant.

    Attributes:
        interfaces: the provided ones of co-simulation, model-exchange and scheduled-execution.
        platforms: folders of binaries, by their FMI names.
        has_sources: whether C sources are included.
        capabilities: FMI's flags of the co-simulation interface, by their FMI names; empty without it.
        plant_problem: why it cannot be used as a cooling plant with the default names; None if it can.
        plant_notes: units that would be converted or assumed, one line each.
    """

    file: str
    fmi_version: str
    model_name: str
    generation_tool: str | None
    interfaces: list[str]
    platforms: list[str]
    has_sources: bool
    capabilities: dict[str, Any]
    default_step_s: float | None
    plant_problem: str | None
    plant_notes: list[str]
    variables: list[VariableDescription]

    def as_dict(self) -> dict[str, Any]:
        """The description as plain JSON values."""
        return asdict(self)


def describe_fmu(path: Path) -> FmuDescription:
    """Read an FMU's description.

    Raises:
        CoolingPlantError: not a readable FMU of version 2.0 or 3.0.
    """
    description = read_any_description(path)
    names = member_names(path)
    problem, notes = None, []
    try:
        notes = list(FmuPlant(path, FmuMapping()).notes)
    except CoolingPlantError as error:
        problem = str(error).removeprefix(f"{path}: ")
    step = description.defaultExperiment.stepSize if description.defaultExperiment else None
    simulation = description.coSimulation
    return FmuDescription(
        file=str(path),
        fmi_version=description.fmiVersion,
        model_name=description.modelName,
        generation_tool=description.generationTool,
        interfaces=_interfaces(description),
        platforms=platforms(names),
        has_sources=any(name.startswith("sources/") and name.endswith(".c") for name in names),
        capabilities={name: getattr(simulation, name) for name in _CAPABILITIES} if simulation else {},
        default_step_s=None if step is None else float(step),
        plant_problem=problem,
        plant_notes=notes,
        variables=[_variable(variable) for variable in description.modelVariables],
    )


def _interfaces(description: Any) -> list[str]:
    kinds = {
        "co-simulation": description.coSimulation,
        "model-exchange": description.modelExchange,
        "scheduled-execution": description.scheduledExecution,
    }
    return [name for name, interface in kinds.items() if interface is not None]


def _variable(variable: Any) -> VariableDescription:
    return VariableDescription(
        name=variable.name,
        causality=variable.causality,
        variability=variable.variability,
        type=variable.type,
        unit=declared_unit(variable),
        start=variable.start,
        description=variable.description,
    )
