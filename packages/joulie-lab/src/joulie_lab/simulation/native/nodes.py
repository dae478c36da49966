"""Nodes of a run: expands the node groups of a scenario into what physics, scheduler and operator need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING

from joulie.domain.accounting.profiles import label_form
from joulie.domain.actuation import cpu_range
from joulie.domain.hardware import BUILTIN_CATALOGUE, CapRange, Catalogue
from joulie.domain.hardware.resolve import (
    CPU_MODEL_KEY,
    CPU_SOCKETS_KEY,
    GPU_COUNT_KEY,
    GPU_MODEL_KEY,
    GPU_RESOURCES,
    ResolvedHardware,
    resolve,
)
from joulie_lab.simulation.live.nodes import NodeSpec

if TYPE_CHECKING:  # the simulator service, which reads no scenarios, starts in half the time
    from joulie_lab.simulation.experiment.scenario import NodeGroup

MANAGED_LABEL = "joulie.io/managed"
HOSTNAME_LABEL = "kubernetes.io/hostname"
MAX_PODS = 110
"""Maximum number of pods on a node: the kubelet's default."""
_RESOURCE_OF_VENDOR = {vendor: resource for resource, vendor in GPU_RESOURCES.items()}


_NAMES_SHOWN = 5


class UnknownHardwareError(ValueError):
    """A node group names a CPU or GPU that is not in the hardware catalogue."""

    def __init__(self, group: str, device: str, name: str, known: Sequence[str]) -> None:
        # Hundreds of names are known: the nearest ones help, or the first show what names look like.
        near = get_close_matches(name, known, _NAMES_SHOWN, cutoff=0.5) or sorted(known)[:_NAMES_SHOWN]
        super().__init__(
            f"group {group}: {device} {name!r} is not in the hardware catalogue; near: {', '.join(near)}"
            "; all are on the reference page Built-in hardware"
        )


@dataclass(frozen=True)
class SimNode:
    """A simulated node.

    Attributes:
        spec: name and hardware, for the physics.
        memory_gib: allocatable memory, GiB.
        gpu_resource: extended resource of its GPUs; empty without GPUs.
        labels: node labels, those of the KWOK node.
        gpu_speed: see `NodeGroup.gpu_speed`.
        hardware: hardware as the operator knows it from the pool agent, which reads these labels.
    """

    spec: NodeSpec
    memory_gib: float
    gpu_resource: str
    labels: Mapping[str, str] = field(hash=False)
    hardware: ResolvedHardware
    gpu_speed: float = 1.0

    @property
    def name(self) -> str:
        """Name of the node."""
        return self.spec.name

    @property
    def family(self) -> str:
        """GPU model, else CPU model."""
        return self.hardware.family


def sim_nodes(groups: Sequence[NodeGroup], catalogue: Catalogue = BUILTIN_CATALOGUE) -> tuple[SimNode, ...]:
    """Expand node groups into nodes, in order, named ``GROUP-0``, ``GROUP-1``, ...

    Raises:
        UnknownHardwareError: a model is not in the catalogue.
    """
    return tuple(node for group in groups for node in _group(group, catalogue))


def _group(group: NodeGroup, catalogue: Catalogue) -> list[SimNode]:
    cpu = catalogue.cpu(group.cpu).model
    if cpu is None:
        raise UnknownHardwareError(group.name, "CPU", group.cpu, [model.key for model in catalogue.cpus])
    gpu = None if group.gpu is None else catalogue.gpu(group.gpu).model
    if group.gpu is not None and gpu is None:
        raise UnknownHardwareError(group.name, "GPU", group.gpu, [model.key for model in catalogue.gpus])
    cores = group.cores or float(cpu.cores_per_socket * group.sockets)
    resource = "" if gpu is None else _RESOURCE_OF_VENDOR[gpu.vendor]
    hardware_labels = _hardware_labels(group)
    offered = {"cpu": cores} | ({resource: float(group.gpus)} if gpu else {})
    # One object for all nodes of the group: later code recognises equal hardware by identity.
    hardware = _as_published(resolve(None, hardware_labels, offered, catalogue))
    return [
        SimNode(
            NodeSpec(name, cpu, group.sockets, cores, gpu, group.gpus),
            group.memory_gib,
            resource,
            {HOSTNAME_LABEL: name, MANAGED_LABEL: "true", **hardware_labels, **group.labels},
            hardware,
            group.gpu_speed,
        )
        for name in (f"{group.name}-{number}" for number in range(group.count))
    ]


def _as_published(labelled: ResolvedHardware) -> ResolvedHardware:
    """Hardware as the pool agent publishes it in NodeHardware: the CPU accepts caps below its cTDP range."""
    known = cpu_range(None, None, labelled.cpu.cap_range)
    published = None if known is None else CapRange(known.min_w, known.base_w, known.base_w)
    return replace(labelled, cpu=replace(labelled.cpu, cap_range=published), source="nodehardware")


def _hardware_labels(group: NodeGroup) -> dict[str, str]:
    """Labels with the hardware names as the group gives them: a model that falls back to another keeps its own name."""
    labels = {CPU_MODEL_KEY: label_form(group.cpu), CPU_SOCKETS_KEY: str(group.sockets)}
    if group.gpu is not None:
        labels |= {GPU_MODEL_KEY: label_form(group.gpu), GPU_COUNT_KEY: str(group.gpus)}
    return labels
