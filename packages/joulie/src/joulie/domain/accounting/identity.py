"""Hardware and power of a node, from the best source available; each answer names its source.

Best first: annotations and labels of the node, the cloud's instance type, what Joulie's agent found (NodeHardware), the
power that the settings give the node, the default of the settings. A model that has no profile in the file is looked up
in Joulie's own catalogue; a model that is in neither leaves the answer to the next source.

Source: spec, grid, "Hardware identity, best first".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache

import numpy as np

from joulie.domain.accounting.profiles import (
    CloudInstance,
    CpuProfile,
    GpuProfile,
    HardwareProfiles,
    MemProfile,
    Scaling,
)
from joulie.domain.grid import names
from joulie.domain.hardware import BUILTIN_CATALOGUE, Catalogue
from joulie.domain.hardware.estimates import THREADS_PER_CORE
from joulie.domain.hardware.resolve import (
    CPU_MODEL_KEY,
    GPU_MODEL_KEY,
    GPU_PRODUCT_KEYS,
    ReportedHardware,
    ResolvedHardware,
    resolve,
)
from joulie.domain.power_estimate import estimate_cpu_power, estimate_gpu_power
from joulie.domain.quantities import finite_number

CPU_MODEL_LABEL = "node.kubernetes.io/cpu-model"
GPU_MODEL_LABEL = "node.kubernetes.io/gpu-model"
CPU_NAME_KEYS = (
    CPU_MODEL_LABEL,
    names.PREFIX + "cpu-model",
    CPU_MODEL_KEY,
    "feature.node.kubernetes.io/cpu-model.name",
)
"""Annotations (as the hardware prints it) and labels (as `label_form` has it) that name the CPU, best first."""
GPU_NAME_KEYS = (GPU_MODEL_LABEL, names.PREFIX + "gpu-model", GPU_MODEL_KEY, *GPU_PRODUCT_KEYS)
"""The same for the GPU, the GPU operator's among them."""
INSTANCE_TYPE_KEYS = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
NO_GPU = frozenset({"none", "unknown"})
"""Names that nodes without GPUs are annotated with."""

DEFAULT_MEMORY = MemProfile(0.125, 0.375, 1.0)
"""Memory of a node whose type of memory is unknown: DDR4-2666 ECC of the Compute Gardener's profiles."""

_PROVIDERS = {"aws": "aws", "gce": "gcp", "azure": "azure"}
_POWERS = re.compile(r"(idle|max)\s*:\s*(\d+(?:\.\d+)?)", re.ASCII)


class Source(StrEnum):
    """Where the power of a node comes from, best first."""

    LABELS = "labels"
    INSTANCE_TYPE = "instance-type"
    NODE_HARDWARE = "nodehardware"
    NODE_CONFIG = "node-config"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What is known of a node.

    Attributes:
        name: of the node.
        labels: of the node.
        annotations: of the node.
        provider_id: as its cloud names it; empty without one.
        cpu_cores: allocatable logical CPUs; 0 if unknown.
        memory_gb: its memory, GB; 0 if unknown.
        allocatable_gpus: that it offers to pods, by resource: ``nvidia.com/gpu``.
        reported: what Joulie's agent found; None where there is none.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    provider_id: str = ""
    cpu_cores: float = 0.0
    memory_gb: float = 0.0
    allocatable_gpus: Mapping[str, float] = field(default_factory=dict)
    reported: ReportedHardware | None = None


@dataclass(frozen=True, slots=True)
class PowerRange:
    """Power of a node as settings state it (``idle:50,max:300``).

    Attributes:
        idle_w: idle, W.
        max_w: at full utilisation, W.
    """

    idle_w: float
    max_w: float

    def __post_init__(self) -> None:
        finite_number("idle_w", self.idle_w, minimum=0.0)
        finite_number("max_w", self.max_w, minimum=self.idle_w)


@dataclass(frozen=True, slots=True)
class NodePower:
    """Power of a node between idle and full utilisation.

    Attributes:
        cores: logical CPUs; 0 if unknown.
        cpu_idle_w: of its CPUs, idle, W.
        cpu_max_w: of its CPUs at full utilisation, W.
        memory_gb: GB.
        memory: what memory draws; of nothing where `cpu_max_w` is of the whole node.
        gpus: how many it has.
        gpu: what one of them draws; None without.
        base_hz: frequency that the CPUs' power is of, Hz; None if unknown.
        scaling: how it follows a lower frequency.
        cpu_source: where the CPUs' power comes from.
        gpu_source: where the GPUs' power comes from; None without.
        cpu_model: that it was looked up by; empty where only watts are known.
        gpu_instances: GPUs that pods can request of each: MIG instances with the strategy ``single``, else 1.
    """

    cores: float
    cpu_idle_w: float
    cpu_max_w: float
    memory_gb: float
    memory: MemProfile
    gpus: int
    gpu: GpuProfile | None
    base_hz: float | None
    scaling: Scaling
    cpu_source: Source
    gpu_source: Source | None
    cpu_model: str = ""
    gpu_instances: int = 1


@dataclass(frozen=True, slots=True)
class PowerSettings:
    """Power settings of nodes.

    Attributes:
        default: of unknown nodes (NODE_DEFAULT_IDLE_POWER, NODE_DEFAULT_MAX_POWER).
        by_node: of single nodes, by whole name (NODE_POWER_CONFIG_*).
    """

    default: PowerRange = PowerRange(100.0, 400.0)
    by_node: Mapping[str, PowerRange] = field(default_factory=dict)

    def of(self, node: str) -> PowerRange | None:
        """Of a node. Names of variables cannot have dashes and dots everywhere, so underscores stand for both."""
        for name in (node, re.sub(r"[-.]", "_", node)):
            if name in self.by_node:
                return self.by_node[name]
        return None


def parse_power_range(text: str) -> PowerRange:
    """Read ``idle:50,max:300``.

    Raises:
        ValueError: it is written otherwise, or idle is above max.
    """
    found = [_POWERS.fullmatch(part.strip()) for part in text.split(",")]
    powers = {match[1]: float(match[2]) for match in found if match is not None}
    if len(found) != 2 or powers.keys() != {"idle", "max"}:
        raise ValueError(f"must be like idle:50,max:300 (watts), got {text!r}")
    return PowerRange(powers["idle"], powers["max"])


def node_power(
    node: NodeFacts,
    profiles: HardwareProfiles,
    settings: PowerSettings,
    catalogue: Catalogue = BUILTIN_CATALOGUE,
) -> NodePower:
    """Power of a node, by the best source that knows it.

    Args:
        node: what is known of it.
        profiles: of the hardware profiles file.
        settings: used where its hardware is unknown.
        catalogue: Joulie's own.
    """
    instance = cloud_instance(node, profiles)
    resolved = resolve(node.reported, node.labels, {"cpu": node.cpu_cores, **node.allocatable_gpus}, catalogue)
    cores = node.cpu_cores or (instance.cpus if instance and instance.cpus else 0.0) or resolved.cpu.cores
    cpu = _profiled_cpu(node, instance, cores, profiles, catalogue) or _plain_cpu(node, resolved, settings, catalogue)
    gpus = _gpu_count(node, instance, resolved)
    gpu, gpu_source = _gpu(node, instance, resolved, profiles, catalogue) if gpus else (None, None)
    return NodePower(
        cores=cores,
        cpu_idle_w=cpu.profile.idle_w * cpu.packages,
        cpu_max_w=cpu.profile.max_w * cpu.packages,
        memory_gb=node.memory_gb or (instance.memory_gb if instance and instance.memory_gb else 0.0),
        memory=cpu.memory,
        gpus=gpus,
        gpu=gpu,
        base_hz=cpu.profile.base_hz,
        scaling=cpu.profile.scaling,
        cpu_source=cpu.source,
        gpu_source=gpu_source,
        cpu_model=cpu.model,
        gpu_instances=resolved.gpu.instances if resolved.gpu else 1,
    )


@dataclass(frozen=True, slots=True)
class _Cpu:
    """The CPUs of a node: this many packages of a profile, with the memory beside them."""

    profile: CpuProfile
    packages: float
    memory: MemProfile
    source: Source
    model: str = ""


def _profiled_cpu(
    node: NodeFacts, instance: CloudInstance | None, cores: float, profiles: HardwareProfiles, catalogue: Catalogue
) -> _Cpu | None:
    """By the first of its names that the file or the catalogue knows."""
    for model, source in _cpu_names(node, instance):
        profile = profiles.cpus.find(model) or _catalogued_cpu(model, catalogue)
        if profile is not None:
            memory = profiles.memories.find(instance.memory_type) if instance and instance.memory_type else None
            packages = _packages(profile, cores, node.reported)
            return _Cpu(profile, packages, memory or DEFAULT_MEMORY, source, model)
    return None


def _plain_cpu(node: NodeFacts, resolved: ResolvedHardware, settings: PowerSettings, catalogue: Catalogue) -> _Cpu:
    """By the TDP that the agent read, else by the settings."""
    if node.reported is not None and resolved.cpu_max_w is not None:
        return _Cpu(_estimated_cpu(resolved, catalogue), 1.0, DEFAULT_MEMORY, Source.NODE_HARDWARE)
    given = settings.of(node.name)
    watts, source = (settings.default, Source.DEFAULT) if given is None else (given, Source.NODE_CONFIG)
    # These are of the whole node, memory included.
    return _Cpu(CpuProfile(watts.idle_w, watts.max_w), 1.0, MemProfile(0.0, 0.0), source)


def _named(node: NodeFacts, keys: tuple[str, ...]) -> Iterator[str]:
    """Values of annotations and labels; annotations first, since they have the raw name."""
    for said in (node.annotations, node.labels):
        yield from (said[key].strip() for key in keys if said.get(key, "").strip())


def _cpu_names(node: NodeFacts, instance: CloudInstance | None) -> Iterator[tuple[str, Source]]:
    """Names of the CPU, best first."""
    yield from ((name, Source.LABELS) for name in _named(node, CPU_NAME_KEYS))
    if instance is not None:
        yield instance.cpu_model, Source.INSTANCE_TYPE
    if node.reported is not None:
        yield from ((name, Source.NODE_HARDWARE) for name in (node.reported.cpu_raw, node.reported.cpu_model) if name)


def _gpu_names(node: NodeFacts, instance: CloudInstance | None) -> Iterator[tuple[str, Source]]:
    # Several GPUs may be listed with commas; a node's are all of one model.
    for name in _named(node, GPU_NAME_KEYS):
        yield name.split(",")[0].strip(), Source.LABELS
    if instance is not None and instance.gpu_model:
        yield instance.gpu_model, Source.INSTANCE_TYPE
    if node.reported is not None:
        yield from ((name, Source.NODE_HARDWARE) for name in (node.reported.gpu_raw, node.reported.gpu_model) if name)


def cloud_instance(node: NodeFacts, profiles: HardwareProfiles) -> CloudInstance | None:
    """What the file says of the node's instance type: of its provider, or of the only one that has that type."""
    kind = next((node.labels[key] for key in INSTANCE_TYPE_KEYS if node.labels.get(key)), "")
    scheme = node.provider_id.partition(":")[0]
    if scheme in _PROVIDERS:
        return profiles.instances.get(_PROVIDERS[scheme], {}).get(kind)
    found = [types[kind] for types in profiles.instances.values() if kind in types]
    return found[0] if len(found) == 1 else None


def _gpu_count(node: NodeFacts, instance: CloudInstance | None, resolved: ResolvedHardware) -> int:
    said_none = any(name.lower() in NO_GPU for name in _named(node, GPU_NAME_KEYS[:2]))
    if said_none and not any(node.allocatable_gpus.values()):
        return 0
    if resolved.gpu is not None:
        return resolved.gpu.count
    return instance.gpus if instance is not None and instance.gpus else 0


def _gpu(
    node: NodeFacts,
    instance: CloudInstance | None,
    resolved: ResolvedHardware,
    profiles: HardwareProfiles,
    catalogue: Catalogue,
) -> tuple[GpuProfile, Source]:
    """Power of a GPU of the node; that of a typical device if its model is unknown."""
    for model, source in _gpu_names(node, instance):
        profile = profiles.gpus.find(model)
        if profile is not None:
            return profile, source
        known = catalogue.gpu(model).model
        if known is not None:
            return GpuProfile(known.idle_w, known.default_w), source
    if resolved.gpu is None:
        resolved = resolve(ReportedHardware(gpu_count=1), {}, {}, catalogue)
    reported = node.reported is not None and bool(node.reported.gpu_count)
    return _estimated_gpu(resolved, catalogue), Source.NODE_HARDWARE if reported else Source.DEFAULT


@lru_cache(maxsize=1024)
def _estimated_gpu(hardware: ResolvedHardware, catalogue: Catalogue) -> GpuProfile:
    """One of the GPUs of a node."""
    count = 1 if hardware.gpu is None else hardware.gpu.count
    idle_w, max_w = (float(estimate_gpu_power([hardware], util, catalogue).power_w[0]) / count for util in (0.0, 1.0))
    return GpuProfile(idle_w, max_w)


def _catalogued_cpu(model: str, catalogue: Catalogue) -> CpuProfile | None:
    """One package by Joulie's catalogue."""
    known = catalogue.cpu(model).model
    if known is None:
        return None
    package = resolve(ReportedHardware(cpu_model=known.key, sockets=1, cores=known.cores_per_socket), {}, {}, catalogue)
    return replace(_estimated_cpu(package, catalogue), cores=known.cores_per_socket, base_hz=known.base_hz)


@lru_cache(maxsize=1024)
def _estimated_cpu(hardware: ResolvedHardware, catalogue: Catalogue) -> CpuProfile:
    idle_w, max_w = (float(estimate_cpu_power([hardware], util, catalogue).power_w[0]) for util in (0.0, 1.0))
    return CpuProfile(idle_w, max_w)


def _packages(profile: CpuProfile, cores: float, reported: ReportedHardware | None) -> float:
    """How many packages a node has. A virtual machine has a part of one: the share of its logical CPUs."""
    if reported is not None and reported.sockets:
        return float(reported.sockets)
    if profile.cores is None or not cores:
        return 1.0
    threads = THREADS_PER_CORE * profile.cores
    return cores / threads if cores < profile.cores else float(np.ceil(cores / threads))
