"""Reads hardware profiles of the Compute Gardener Scheduler from YAML, and reports invalid entries by file and line.

An invalid entry is ignored and reported; accounting continues with all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import yaml
from msgspec import field

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
    idle_w: _Watts = field(name="idlePower")
    max_w: _Positive = field(name="maxPower")
    cores: Annotated[int, msgspec.Meta(ge=1, le=100_000)] | None = field(name="numCores", default=None)
    base_ghz: _Positive | None = field(name="baseFrequencyGHz", default=None)
    scaling: Scaling = field(name="powerScaling", default=Scaling.LINEAR)
    # Known, but power is bounded by maxPower whatever the turbo.
    range_ghz: Any = field(name="frequencyRangeGHz", default=None)

    def profile(self) -> CpuProfile:
        _check_power_range(self.idle_w, self.max_w)
        base_hz = None if self.base_ghz is None else self.base_ghz * _HZ_PER_GHZ
        return CpuProfile(self.idle_w, self.max_w, self.cores, base_hz, self.scaling)


class _Gpu(msgspec.Struct):
    idle_w: _Watts = field(name="idlePower")
    max_w: _Positive = field(name="maxPower")
    workload_types: dict[str, Annotated[float, msgspec.Meta(gt=0.0, le=1.0)]] = field(
        name="workloadTypes", default_factory=dict
    )

    def profile(self) -> GpuProfile:
        _check_power_range(self.idle_w, self.max_w)
        return GpuProfile(self.idle_w, self.max_w, self.workload_types)


class _Memory(msgspec.Struct):
    idle_w_per_gb: _Watts = field(name="idlePowerPerGB")
    max_w_per_gb: _Positive = field(name="maxPowerPerGB")
    base_idle_w: _Watts = field(name="baseIdlePower", default=0.0)

    def profile(self) -> MemProfile:
        _check_power_range(self.idle_w_per_gb, self.max_w_per_gb)
        return MemProfile(self.idle_w_per_gb, self.max_w_per_gb, self.base_idle_w)


class _Instance(msgspec.Struct):
    cpu_model: Annotated[str, msgspec.Meta(min_length=1)] = field(name="cpuModel")
    gpu_model: str = field(name="gpuModel", default="")
    memory_type: str = field(name="memoryType", default="")
    cpus: _Count | None = field(name="numCPUs", default=None)
    cores: _Count | None = field(name="numCores", default=None)
    gpus: _Count | None = field(name="numGPUs", default=None)
    memory_mb: Annotated[float, msgspec.Meta(gt=0.0, le=1e9)] | None = field(name="totalMemory", default=None)
    # Known, and not used.
    memory_channels: Any = field(name="memChannels", default=None)
    current_ghz: Any = field(name="currentFreqGHz", default=None)
    cpu_tdp_w: Any = field(name="cpuTdpWatts", default=None)

    def profile(self) -> CloudInstance:
        memory_gb = None if self.memory_mb is None else self.memory_mb / _MB_PER_GB
        return CloudInstance(
            self.cpu_model, self.gpu_model, self.memory_type, self.cpus or self.cores, self.gpus, memory_gb
        )


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
                if key not in kind.__struct_encode_fields__:
                    self._report(value, f"{place}.{key} is unknown")
            read = self._value(entry, place, kind) if isinstance(entry, yaml.MappingNode) else None
            try:
                if read is not None:
                    found[name] = profile(read)
            except ValueError as error:
                self._report(entry, f"{place}: {error}; entry ignored")
        return found
