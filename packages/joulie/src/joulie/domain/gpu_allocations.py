"""Which pod holds which GPU, by what the kubelet says that it gave to containers. This module needs no numpy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from joulie.domain.usage import PodKey

_REPLICA = "::"
"""Between a device and the number of its replica, in the IDs of NVIDIA's device plugin under time slicing and MPS."""


class Allocation(NamedTuple):
    """Devices of one kind that a pod holds."""

    pod: PodKey
    devices: tuple[str, ...]
    """IDs as the device plugin made them up: UUIDs, PCI addresses, indices, or any with the number of a replica; for
    devices of claims see `claimed_device`."""


class NodeGpu(NamedTuple):
    """One GPU of a node, in the order of its driver."""

    id: str
    partitioned: bool
    """Whether it is divided, so that pods hold parts of it."""
    address: str | None = None
    """Its PCI address; None where unknown."""


def claimed_device(driver: str, pool: str, device: str) -> str:
    """ID of a device of a claim (dynamic resource allocation) in an `Allocation`."""
    return f"{driver}/{pool}/{device}"


def is_claimed(device: str) -> bool:
    """Whether an ID in an `Allocation` is that of a claim's device, which names no GPU."""
    return "/" in device


@dataclass(frozen=True)
class Holding:
    """Who holds a GPU.

    Attributes:
        pods: sorted; pods that have ended may be among them.
        shared: whether pods hold parts of it, or may do so.
    """

    pods: tuple[PodKey, ...] = ()
    shared: bool = False


def holdings(allocations: Iterable[Allocation], gpus: Sequence[NodeGpu], *, indexed: bool) -> Mapping[str, Holding]:
    """Who holds each GPU of a node, by its ID.

    An ID that names no GPU may be a part of any: then every GPU without a known holder counts as shared.

    Args:
        allocations: GPUs that the kubelet gave to pods.
        gpus: all GPUs of the node.
        indexed: whether the position of a GPU in `gpus` is its index; not so where one does not respond.
    """
    known = {gpu.id.lower(): gpu.id for gpu in gpus}
    known |= {gpu.address.lower(): gpu.id for gpu in gpus if gpu.address}
    if indexed:
        known |= {str(index): gpu.id for index, gpu in enumerate(gpus)}
    pods: dict[str, set[PodKey]] = {gpu.id: set() for gpu in gpus}
    shared = {gpu.id for gpu in gpus if gpu.partitioned}
    unmatched = False
    for allocation in allocations:
        for device in allocation.devices:
            whole, replica, _ = device.partition(_REPLICA)
            gpu = known.get(whole.lower())
            if gpu is None:
                unmatched = True
                continue
            pods[gpu].add(allocation.pod)
            if replica:
                shared.add(gpu)
    return {
        gpu: Holding(tuple(sorted(holders)), gpu in shared or (unmatched and not holders))
        for gpu, holders in pods.items()
    }
