"""Converts the hardware in NodeHardware and Node objects to the domain's types."""

from __future__ import annotations

from collections.abc import Mapping

from joulie.adapters.kubernetes.api.core import Node
from joulie.adapters.kubernetes.api.v1alpha1 import NodeHardware
from joulie.domain.hardware.mig import mig_share
from joulie.domain.hardware.resolve import GPU_RESOURCES, ReportedHardware
from joulie.domain.resource_quantity import QuantityError, parse_quantity

_HOSTNAME_LABEL = "kubernetes.io/hostname"
_COUNTED_RESOURCES = frozenset({"cpu", *GPU_RESOURCES})


def reported_hardware(hardware: NodeHardware) -> ReportedHardware:
    """Convert the hardware that the agent discovered; fields are None if it did not find them."""
    cpu, gpu = hardware.status.cpu, hardware.status.gpu
    package = None if cpu is None else cpu.cap_range
    device = None if gpu is None else gpu.cap_range_per_gpu
    return ReportedHardware(
        cpu_model=cpu.model if cpu else None,
        cpu_raw=cpu.raw_model if cpu else None,
        sockets=cpu.sockets if cpu else None,
        cores=cpu.total_cores if cpu else None,
        cpu_min_w=package.min_watts_per_socket if package else None,
        cpu_max_w=package.max_watts_per_socket if package else None,
        gpu_model=gpu.model if gpu else None,
        gpu_raw=gpu.raw_model if gpu else None,
        gpu_vendor=gpu.vendor if gpu else None,
        gpu_count=gpu.count if gpu else None,
        gpu_min_w=device.min_watts if device else None,
        gpu_max_w=device.max_watts if device else None,
        gpu_default_w=device.default_watts if device else None,
    )


def allocatable_devices(node: Node) -> dict[str, float]:
    """Allocatable CPU cores, GPUs and MIG instances of a node, by resource name; invalid quantities are omitted."""
    devices: dict[str, float] = {}
    for resource, text in node.status.allocatable.items():
        if resource not in _COUNTED_RESOURCES and mig_share(resource) is None:
            continue
        try:
            devices[resource] = parse_quantity(text)
        except QuantityError:
            continue
    return devices


def capacity_cpus(node: Node) -> float | None:
    """Logical CPUs of a node, those reserved included; None if it does not say."""
    return amount(node.status.capacity, "cpu") or None


def node_aliases(node: Node) -> tuple[str, ...]:
    """Other names of a node: its host name and its addresses."""
    addresses = (one.address for one in node.status.addresses)
    return tuple(filter(None, (node.metadata.labels.get(_HOSTNAME_LABEL), *addresses)))


def amount(quantities: Mapping[str, str | int | float], resource: str) -> float:
    """Amount of a resource; 0 if it is missing, negative or invalid."""
    try:
        return max(0.0, parse_quantity(quantities.get(resource, "0")))
    except QuantityError:
        return 0.0
