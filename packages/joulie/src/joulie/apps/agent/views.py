"""Reduced views of the objects that the agent caches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from joulie.adapters.kubernetes.api import v1alpha1 as api
from joulie.adapters.kubernetes.api.core import Node
from joulie.adapters.kubernetes.hardware import capacity_cpus
from joulie.domain.actuation import WantedCap
from joulie.domain.resource_quantity import QuantityError, parse_quantity

_NO_CAP = WantedCap()
_FNV_OFFSET, _FNV_PRIME, _UINT32 = 0x811C9DC5, 0x01000193, 0xFFFFFFFF


@dataclass(frozen=True)
class TwinView:
    """Caps that a NodeTwin requests.

    Attributes:
        node_name: node name.
        cpu: cap of each CPU package.
        gpu: cap of each GPU.
        policy: name of the policy, or the power profile, that set the caps.
        reported: stored control status; None if none was reported.
        generation: generation of the object, which changes with its spec only; 0 if unknown.
        gpu_limits: limits of single GPUs.
        last_updated: when the operator last wrote the status, as it states it: a change says that it is alive.
    """

    node_name: str
    cpu: WantedCap = _NO_CAP
    gpu: WantedCap = _NO_CAP
    policy: str = ""
    reported: api.ControlStatus | None = None
    generation: int = 0
    gpu_limits: tuple[api.GpuLimit, ...] = ()
    last_updated: str | None = None


@dataclass(frozen=True)
class NodeView:
    """Identity, labels and resources of a Node.

    Attributes:
        uid: UID of the object.
        labels: labels of the node.
        allocatable: allocatable quantity by resource.
        capacity_cpus: logical CPUs, those reserved included; None if unknown.
    """

    uid: str
    labels: Mapping[str, str]
    allocatable: Mapping[str, float]
    capacity_cpus: float | None = None


@dataclass(frozen=True)
class HardwareView:
    """Stored spec and status of a NodeHardware."""

    spec: api.NodeHardwareSpec
    status: api.NodeHardwareStatus


def twin_view(twin: api.NodeTwin) -> TwinView:
    """Caps that a NodeTwin requests.

    Raises:
        InvalidQuantityError: a cap is invalid; the cache then keeps the previous view.
    """
    cpu, gpu = twin.spec.cpu, twin.spec.gpu.power_cap if twin.spec.gpu else None
    return TwinView(
        twin.spec.node_name,
        WantedCap(cpu.package_power_cap_watts, cpu.package_power_cap_pct_of_max) if cpu else _NO_CAP,
        WantedCap(gpu.cap_watts_per_gpu, gpu.cap_pct_of_max) if gpu else _NO_CAP,
        (twin.spec.policy.name or "" if twin.spec.policy else "") or twin.spec.profile,
        twin.status.control_status,
        twin.metadata.generation,
        twin.spec.gpu_limits,
        twin.status.last_updated,
    )


def node_view(node: Node) -> NodeView:
    """Labels and resources of a node; resources with an invalid quantity are omitted."""
    allocatable = {}
    for resource, text in node.status.allocatable.items():
        try:
            allocatable[resource] = parse_quantity(text)
        except QuantityError:
            continue
    return NodeView(node.metadata.uid, node.metadata.labels, allocatable, capacity_cpus(node))


def hardware_view(hardware: api.NodeHardware) -> HardwareView:
    """Spec and status of a NodeHardware."""
    return HardwareView(hardware.spec, hardware.status)


def shard_of(node_name: str, shards: int) -> int:
    """Shard of a node in a pool: 32-bit FNV-1a hash of its name, modulo the number of shards."""
    value = _FNV_OFFSET
    for byte in node_name.encode():
        value = (value ^ byte) * _FNV_PRIME & _UINT32
    return value % shards
