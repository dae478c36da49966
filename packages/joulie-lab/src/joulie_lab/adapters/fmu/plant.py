"""Runs any FMI 2.0 or 3.0 co-simulation FMU as a cooling plant."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

from joulie.domain.units import non_negative, positive
from joulie_lab.adapters.fmu.archive import read_description, require_binary, unpack
from joulie_lab.adapters.fmu.instance import Fmi2Instance, Fmi3Instance, FmuInstance
from joulie_lab.adapters.fmu.variables import Channel, FmuMapping, find_variable, resolve
from joulie_lab.simulation.cooling_plant import CoolingOutput, CoolingPlantError

logger = logging.getLogger(__name__)

_MAX_PARTIAL_STEPS = 1000
_RELATIVE_TIME_TOLERANCE = 1e-9
_COLDEST_ROOM_K, _HOTTEST_ROOM_K = 150.0, 500.0


class FmuPlant:
    """A cooling plant that runs an FMU through FMPy.

    The file is checked when the object is created, so that an invalid FMU is found before a run starts. Entering the
    context unpacks and instantiates the FMU; the first step initializes it with that step's inputs; leaving the context
    frees the instance and removes the unpacked files, even after a failure.

    Attributes:
        notes: units that were converted or assumed, one line each.
    """

    def __init__(
        self,
        path: Path,
        mapping: FmuMapping | None = None,
        parameters: Mapping[str, float] | None = None,
        step_s: float | None = None,
    ) -> None:
        """Read and check the FMU.

        Args:
            path: the FMU file.
            mapping: names of its variables.
            parameters: parameters to set before the run, by name, in the FMU's units.
            step_s: communication step within a plant step, s. By default a plant step is one communication step if the
                FMU supports variable steps; otherwise the FMU's fixed step size or that of its default experiment.

        Raises:
            CoolingPlantError: the FMU cannot be used; the message says why and what to do.
        """
        self._path = path
        self._description = read_description(path)
        require_binary(path, self._description)
        channels = resolve(path, self._description, mapping or FmuMapping())
        self._inputs, self._outputs, self.notes = channels
        self._parameters = [self._parameter(name, value) for name, value in (parameters or {}).items()]
        self._step_s = float(positive("step_s", step_s)) if step_s is not None else _own_step_s(self._description)
        self._folder: TemporaryDirectory[str] | None = None
        self._instance: FmuInstance | None = None
        self._initialized = False
        self._time_s = 0.0
        for note in self.notes:
            logger.info("%s: %s", path, note)

    def __enter__(self) -> Self:
        """Unpack and instantiate the FMU.

        Raises:
            CoolingPlantError: damaged archive, or the FMU cannot be instantiated.
        """
        self._folder = TemporaryDirectory(prefix="joulie-fmu-", ignore_cleanup_errors=True)
        self._initialized, self._time_s = False, 0.0
        try:
            folder = Path(self._folder.name).resolve()
            unpack(self._path, self._description, folder)
            self._instance = self._instantiate(folder)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Free the instance and remove the unpacked files."""
        instance, self._instance = self._instance, None
        folder, self._folder = self._folder, None
        try:
            if instance is not None:
                instance.release()
        finally:
            if folder is not None:
                folder.cleanup()

    def step(self, it_w: float, outdoor_k: float, dt_s: float) -> CoolingOutput:
        """Advance the FMU by `dt_s` under constant inputs and read its outputs.

        Raises:
            InvalidQuantityError: an input is not finite or out of range.
            CoolingPlantError: the FMU failed, does not support this step, or returned impossible values.
        """
        if self._instance is None:
            raise CoolingPlantError(f"{self._path}: not running; use the plant in a with statement")
        references = [channel.reference for channel in self._inputs]
        it, outdoor = self._inputs
        values = [
            it.to_fmu(float(non_negative("it_w", it_w))),
            outdoor.to_fmu(float(positive("outdoor_k", outdoor_k))),
        ]
        if self._initialized:
            self._instance.set(references, values)
        else:
            self._instance.initialize(self._parameters, references, values)
            self._initialized = True
        for step_s in self._communication_steps(float(positive("dt_s", dt_s))):
            self._advance(self._instance, self._time_s + step_s)
        return self._read(self._instance)

    def _instantiate(self, folder: Path) -> FmuInstance:
        if self._description.fmiVersion.startswith("2."):
            return Fmi2Instance(str(self._path), self._description, folder)
        discrete = any(channel.discrete for channel in self._inputs)
        return Fmi3Instance(str(self._path), self._description, folder, discrete_inputs=discrete)

    def _parameter(self, name: str, value: float) -> tuple[int, float]:
        variable = find_variable(self._path, self._description, name)
        if variable.causality != "parameter":
            raise CoolingPlantError(f"{self._path}: {name} is not a parameter but has causality {variable.causality}")
        if not math.isfinite(value):
            raise CoolingPlantError(f"{self._path}: parameter {name} must be finite, got {value:g}")
        return variable.valueReference, float(value)

    def _communication_steps(self, dt_s: float) -> list[float]:
        """The communication steps of a plant step of `dt_s`."""
        if self._step_s is None:
            return [dt_s]
        count = round(dt_s / self._step_s)
        if count < 1 or not math.isclose(count * self._step_s, dt_s, rel_tol=_RELATIVE_TIME_TOLERANCE):
            raise CoolingPlantError(
                f"{self._path}: a step of {dt_s:g} s is not a multiple of its communication step of {self._step_s:g} s"
            )
        return [self._step_s] * count

    def _advance(self, instance: FmuInstance, target_s: float) -> None:
        """Advance to `target_s`, even if the FMU returns early."""
        tolerance_s = _RELATIVE_TIME_TOLERANCE * max(1.0, target_s)
        for _ in range(_MAX_PARTIAL_STEPS):
            reached_s = instance.advance(self._time_s, target_s - self._time_s)
            if reached_s >= target_s - tolerance_s:
                self._time_s = target_s
                return
            if not reached_s > self._time_s:
                raise instance.failure(f"made no progress from {self._time_s:g} s towards {target_s:g} s")
            self._time_s = reached_s
        raise instance.failure(f"returned early {_MAX_PARTIAL_STEPS} times before {target_s:g} s")

    def _read(self, instance: FmuInstance) -> CoolingOutput:
        raw = instance.get([channel.reference for channel in self._outputs])
        converted = [channel.from_fmu(value) for channel, value in zip(self._outputs, raw, strict=True)]
        output = CoolingOutput(*converted)
        limits = ((0.0, math.inf), (_COLDEST_ROOM_K, _HOTTEST_ROOM_K), (-math.inf, math.inf))
        for channel, value, (low, high) in zip(self._outputs, output, limits, strict=True):
            if not (math.isfinite(value) and low <= value <= high):
                raise instance.failure(self._impossible(channel, value))
        return output

    def _impossible(self, channel: Channel, value: float) -> str:
        hint = " (if it is in degrees Celsius, its unit must be declared)" if 0.0 < value < _COLDEST_ROOM_K else ""
        unit = {0: " W", 1: " K"}.get(self._outputs.index(channel), "")
        return f"output {channel.name} is {value:g}{unit} at {self._time_s:g} s, which cannot be{hint}"


def _own_step_s(description: Any) -> float | None:
    """The communication step that an FMU requires, s; None if it supports any."""
    simulation = description.coSimulation
    experiment = description.defaultExperiment
    if simulation.fixedInternalStepSize is not None:
        return float(simulation.fixedInternalStepSize)
    if simulation.canHandleVariableCommunicationStepSize or experiment is None or experiment.stepSize is None:
        return None
    return float(experiment.stepSize)
