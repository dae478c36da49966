"""Kubernetes' objects of dynamic resource allocation: claims for devices, and the devices that drivers offer."""

from __future__ import annotations

import msgspec

from joulie.adapters.kubernetes.api.meta import ApiStruct, KubernetesObject


class DeviceAllocation(ApiStruct, frozen=True):
    """A device that was allocated to a claim; with admin access it is only looked at, not used."""

    driver: str
    pool: str
    device: str
    admin_access: bool = False


class DeviceAllocations(ApiStruct, frozen=True):
    """The devices of a claim."""

    results: tuple[DeviceAllocation, ...] = ()


class ClaimAllocation(ApiStruct, frozen=True):
    """What was allocated to a claim."""

    devices: DeviceAllocations = DeviceAllocations()


class ClaimConsumer(ApiStruct, frozen=True):
    """An object that may use a claim, usually a pod."""

    resource: str = ""
    name: str = ""
    uid: str = ""


class ResourceClaimStatus(ApiStruct, frozen=True):
    """Status of a ResourceClaim."""

    allocation: ClaimAllocation | None = None
    reserved_for: tuple[ClaimConsumer, ...] = ()


class ResourceClaim(KubernetesObject, frozen=True):
    """A claim for devices (dynamic resource allocation)."""

    status: ResourceClaimStatus = ResourceClaimStatus()


class DeviceAttribute(ApiStruct, frozen=True):
    """What a driver says about a device; only texts are read."""

    string: str | None = None


class SliceDevice(ApiStruct, frozen=True):
    """A device that a driver offers."""

    name: str
    attributes: dict[str, DeviceAttribute] = msgspec.field(default_factory=dict)


class DevicePool(ApiStruct, frozen=True):
    """The pool of a slice; slices of older generations than the newest are obsolete."""

    name: str
    generation: int = 0


class ResourceSliceSpec(ApiStruct, frozen=True):
    """Devices of one driver in one pool."""

    driver: str
    pool: DevicePool
    devices: tuple[SliceDevice, ...] = ()


class ResourceSlice(KubernetesObject, frozen=True, kw_only=True):
    """Devices that a driver offers for claims (dynamic resource allocation)."""

    spec: ResourceSliceSpec
