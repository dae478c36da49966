"""Maps devices of ResourceClaims to GPUs, by what DRA drivers publish about them in ResourceSlices.

Sources: kubernetes-sigs/dra-driver-nvidia-gpu and ROCm/k8s-gpu-dra-driver, deviceinfo.go; Kubernetes, Standard Device
Attributes for Dynamic Resource Allocation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from joulie.adapters.kubernetes.api.devices import ResourceSlice
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.resources import RESOURCE_SLICES
from joulie.domain.gpu_allocations import claimed_device

_IDENTITIES = {"gpu.nvidia.com": "uuid", "gpu.amd.com": "resource.kubernetes.io/pciBusID"}
"""Attribute by which the GPU's own driver knows it, by DRA driver."""


async def claimable_gpus(client: KubeClient, node: str) -> Mapping[str, str]:
    """UUID or PCI address of each GPU that claims may get on a node, by `claimed_device`.

    Raises:
        KubernetesError: ResourceSlices cannot be listed.
    """
    return names_in((await client.list(RESOURCE_SLICES, field_selector=f"spec.nodeName={node}")).items)


def names_in(slices: Iterable[ResourceSlice]) -> Mapping[str, str]:
    """UUID or PCI address of each GPU; a MIG partition has a UUID of its own, one of AMD's the address of its GPU."""
    newest: dict[tuple[str, str], int] = {}
    listed = [one.spec for one in slices if one.spec.driver in _IDENTITIES]
    for spec in listed:
        pool = spec.driver, spec.pool.name
        newest[pool] = max(spec.pool.generation, newest.get(pool, 0))
    return {
        claimed_device(spec.driver, spec.pool.name, device.name): attribute.string
        for spec in listed
        if spec.pool.generation == newest[spec.driver, spec.pool.name]
        for device in spec.devices
        if (attribute := device.attributes.get(_IDENTITIES[spec.driver])) is not None and attribute.string
    }
