"""Reads hardware profiles of the Compute Gardener Scheduler from YAML, and reports invalid entries by file and line.

An invalid entry is ignored and reported; accounting continues with all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import yaml

from joulie.domain.accounting.profiles import (
    CloudInstance,
    CpuProfile,
    GpuProfile,
    HardwareProfiles,
    MemProfile,
    Profiles,
    Scaling,
)

_HZ_PER_GHZ = 1e9
_MB_PER_GB = 1000.0
_MAX_W = 1e6
_MAX_PUE = 10.0

_Watts = Annotated[float, msgspec.Meta(ge=0.0, le=_MAX_W)]
_Positive = Annotated[float, msgspec.Meta(gt=0.0, le=_MAX_W)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=100_000)]
_Pue = Annotated[float, msgspec.Meta(ge=1.0, le=_MAX_PUE)]

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)
P = TypeVar("P")


class HardwareProfilesError(ValueError):
    """A file that cannot be read or is not YAML; the message names the file, and the line if known."""


class _Cpu(msgspec.Struct):
    idlePower: _Watts  # noqa: N815 - keys of the file
    maxPower: _Positive  # noqa: N815
    numCores: Annotated[int, msgspec.Meta(ge=1, le=100_000)] | None = None  # noqa: N815
    baseFrequencyGHz: _Positive | None = None  # noqa: N815
    powerScaling: Scaling = Scaling.LINEAR  # noqa: N815
    frequencyRangeGHz: Any = None  # noqa: N815 - known, but power is bounded by maxPower whatever the turbo

    def profile(self) -> CpuProfile:
        _check_power_range(self.idlePower, self.maxPower)
        base_hz = None if self.baseFrequencyGHz is None else self.baseFrequencyGHz * _HZ_PER_GHZ
        return CpuProfile(self.idlePower, self.maxPower, self.numCores, base_hz, self.powerScaling)


class _Gpu(msgspec.Struct):
    idlePower: _Watts  # noqa: N815
    maxPower: _Positive  # noqa: N815
    workloadTypes: dict[str, Annotated[float, msgspec.Meta(gt=0.0, le=1.0)]] = {}  # noqa: N815

    def profile(self) -> GpuProfile:
        _check_power_range(self.idlePower, self.maxPower)
        return GpuProfile(self.idlePower, self.maxPower, self.workloadTypes)


class _Memory(msgspec.Struct):
    idlePowerPerGB: _Watts  # noqa: N815
    maxPowerPerGB: _Positive  # noqa: N815
    baseIdlePower: _Watts = 0.0  # noqa: N815

    def profile(self) -> MemProfile:
        _check_power_range(self.idlePowerPerGB, self.maxPowerPerGB)
        return MemProfile(self.idlePowerPerGB, self.maxPowerPerGB, self.baseIdlePower)


class _Instance(msgspec.Struct):
    cpuModel: Annotated[str, msgspec.Meta(min_length=1)]  # noqa: N815
    gpuModel: str = ""  # noqa: N815
    memoryType: str = ""  # noqa: N815
    numCPUs: _Count | None = None  # noqa: N815
    numCores: _Count | None = None  # noqa: N815
    numGPUs: _Count | None = None  # noqa: N815
    totalMemory: Annotated[float, msgspec.Meta(gt=0.0, le=1e9)] | None = None  # noqa: N815 - MB
    memChannels: Any = None  # noqa: N815
    currentFreqGHz: Any = None  # noqa: N815
    cpuTdpWatts: Any = None  # noqa: N815

    def profile(self) -> CloudInstance:
        memory_gb = None if self.totalMemory is None else self.totalMemory / _MB_PER_GB
        cpus = self.numCPUs or self.numCores
        return CloudInstance(self.cpuModel, self.gpuModel, self.memoryType, cpus, self.numGPUs, memory_gb)


def _check_power_range(idle_w: float, max_w: float) -> None:
    if max_w <= idle_w:
        raise ValueError(f"maximum power {max_w:g} W must be above idle power {idle_w:g} W")


def load_hardware_profiles(path: Path) -> HardwareProfiles:
    """Profiles of a file; `problems` has its ignored entries.

    Raises:
        HardwareProfilesError: the file cannot be read or is not YAML.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise HardwareProfilesError(f"{path}: cannot be read: {error}") from error
    return parse_hardware_profiles(text, str(path))


def parse_hardware_profiles(text: str, name: str) -> HardwareProfiles:
    """Profiles from YAML text; `name` is the file name for messages. See `load_hardware_profiles`."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise HardwareProfilesError(f"{name}:{mark.line + 1 if mark else 1}: not YAML: {error.problem}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise HardwareProfilesError(f"{name}:1: not YAML: {str(error).splitlines()[0]}") from error
    return _Reader(name).profiles(root)


class _Reader:
    """Reads the sections of one file and collects the problems."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._problems: list[str] = []

    def profiles(self, root: yaml.Node | None) -> HardwareProfiles:
        sections: dict[str, Any] = {}
        readers: dict[str, Callable[[yaml.Node, str], Any]] = {
            "defaultPUE": lambda node, where: self._value(node, where, _Pue),
            "defaultGPUPUE": lambda node, where: self._value(node, where, _Pue),
            "cpuProfiles": lambda node, where: self._entries(node, where, _Cpu, _Cpu.profile),
            "gpuProfiles": lambda node, where: self._entries(node, where, _Gpu, _Gpu.profile),
            "memProfiles": lambda node, where: self._entries(node, where, _Memory, _Memory.profile),
            "cloudInstanceMapping": lambda node, where: {
                provider: self._entries(types, f"{where}.{provider}", _Instance, _Instance.profile)
                for provider, types in self._items(node, where)
            },
        }
        for key, node in self._items(root, "the file"):
            if key in readers:
                sections[key] = readers[key](node, key)
            else:
                self._report(node, f"{key} is unknown; expected one of {', '.join(readers)}")
        default = HardwareProfiles()
        return HardwareProfiles(
            cpus=Profiles(sections.get("cpuProfiles")),
            gpus=Profiles(sections.get("gpuProfiles"), longer_names=True),
            memories=Profiles(sections.get("memProfiles")),
            instances=sections.get("cloudInstanceMapping", {}),
            pue=sections.get("defaultPUE") or default.pue,
            gpu_pue=sections.get("defaultGPUPUE") or default.gpu_pue,
            problems=tuple(self._problems),
        )

    def _report(self, node: yaml.Node | None, problem: str) -> None:
        self._problems.append(f"{self._file}:{1 if node is None else node.start_mark.line + 1}: {problem}")

    def _items(self, node: yaml.Node | None, where: str) -> Iterator[tuple[str, yaml.Node]]:
        """Keys and values of a mapping; the first of duplicate keys counts."""
        if not isinstance(node, yaml.MappingNode):
            self._report(node, f"{where} must be a mapping")
            return
        seen: set[str] = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.value in seen:
                self._report(key, f"{where}: {key.value!r} is duplicate; the first one is used")
                continue
            seen.add(key.value)
            yield key.value, value

    def _value(self, node: yaml.Node, where: str, kind: type[T]) -> T | None:
        """Value of a node; None and a reported problem if it is invalid."""
        try:
            return msgspec.convert(yaml.constructor.SafeConstructor().construct_document(node), kind)
        except (msgspec.ValidationError, yaml.YAMLError) as error:
            self._report(node, f"{where}: {str(error).splitlines()[0]}; entry ignored")
            return None

    def _entries(self, node: yaml.Node, where: str, kind: type[S], profile: Callable[[S], P]) -> dict[str, P]:
        found: dict[str, P] = {}
        for name, entry in self._items(node, where):
            place = f"{where}.{name}"
            for key, value in self._items(entry, place):
                if key not in kind.__struct_fields__:
                    self._report(value, f"{place}.{key} is unknown")
            read = self._value(entry, place, kind) if isinstance(entry, yaml.MappingNode) else None
            try:
                if read is not None:
                    found[name] = profile(read)
            except ValueError as error:
                self._report(entry, f"{place}: {error}; entry ignored")
        return found
