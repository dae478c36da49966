"""Reads the GPUs that ResourceClaims (dynamic resource allocation) give to pods.

A device plugin's GPUs are in a pod's requests. Those of a claim are not: the pod names the claim, the scheduler
allocates devices to it and lists in its status the pods that may use them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

import msgspec

from joulie.adapters.kubernetes.api.devices import ResourceClaim
from joulie.adapters.kubernetes.pods import PodFacts

_GPU_DRIVERS = {"gpu.nvidia.com": "NVIDIA", "gpu.amd.com": "AMD", "gpu.intel.com": "Intel"}
_MIG_PROFILE = re.compile(r"-mig-(\d)g")
_MIG_PLACEMENT = re.compile(r"-mig-\d+-\d+-(\d+)$")
_COMPUTE_SLICES, _MEMORY_SLICES = 7, 8
"""Slices of a MIG-capable GPU: profiles count compute slices, placements memory slices."""


class ClaimedGpus(msgspec.Struct, frozen=True, gc=False):
    """The GPUs of a claim.

    Attributes:
        gpus: number of devices; a MIG partition counts as its share of the GPU.
        vendor: NVIDIA, AMD or Intel.
        users: number of pods that share them.
    """

    gpus: float
    vendor: str
    users: int


def claimed_gpus(claim: ResourceClaim) -> ClaimedGpus | None:
    """The GPUs that were allocated to a claim; None without any. Devices for administrative access do not count."""
    if claim.status.allocation is None:
        return None
    devices = {
        (_GPU_DRIVERS[one.driver], one.pool, one.device)
        for one in claim.status.allocation.devices.results
        if one.driver in _GPU_DRIVERS and not one.admin_access
    }
    if not devices:
        return None
    vendor = max(sorted(_GPU_DRIVERS.values()), key=Counter(one[0] for one in devices).__getitem__)
    users = sum(one.resource == "pods" for one in claim.status.reserved_for)
    return ClaimedGpus(sum(_share(device) for _, _, device in sorted(devices)), vendor, max(1, users))


def with_claims(pod: PodFacts, claims: Iterable[ClaimedGpus]) -> PodFacts:
    """The pod with the GPUs of its claims among its requests; those that pods share count in equal parts."""
    found = list(claims)
    claimed = sum(claim.gpus / claim.users for claim in found)
    requests = pod.requests
    own_gpus = requests.gpus - pod.claimed_gpus
    if own_gpus > 0.0 and requests.gpu_vendor is not None:
        vendor: str | None = requests.gpu_vendor
    else:
        vendor = found[0].vendor if found else None
    wanted = msgspec.structs.replace(requests, gpus=own_gpus + claimed, gpu_vendor=vendor)
    return msgspec.structs.replace(pod, requests=wanted, claimed_gpus=claimed)


def _share(device: str) -> float:
    """How much of a GPU a device is, by its name: 1 unless it is a MIG partition."""
    profile, placement = _MIG_PROFILE.search(device), _MIG_PLACEMENT.search(device)
    if profile is not None:
        return int(profile[1]) / _COMPUTE_SLICES
    return int(placement[1]) / _MEMORY_SLICES if placement is not None else 1.0
