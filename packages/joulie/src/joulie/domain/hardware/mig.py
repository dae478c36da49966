"""MIG profiles: how many instances of one profile a GPU holds, and how many GPUs a node's instances are of.

With the strategy ``single`` every GPU of a node is divided into instances of one profile, and the device plugin and
node labels count the instances as GPUs: ``nvidia.com/gpu.count=56``, ``nvidia.com/gpu.product=...-MIG-1g.10gb``. With
``mixed`` each profile is a resource of its own, ``nvidia.com/mig-1g.10gb``, beside the GPUs that are not divided. Power
and limits belong to the whole GPU.

Source: NVIDIA Multi-Instance GPU User Guide, supported MIG profiles; AWS and GPU Operator profiles for the B300.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

_PROFILE = re.compile(r"[-_]mig-(?P<slices>\d+)g\.(?P<memory_gb>\d+)gb(?P<media>[.+]me)?", re.IGNORECASE)
_RESOURCE = re.compile(r"nvidia\.com/mig-(?P<slices>\d)g\.(?P<memory_gb>\d+)gb.*", re.IGNORECASE)
_COMPUTE_SLICES = 7
_MEMORY_SLICES = 8
_MEMORY_SLICES_OF = {2: 2, 3: 4, 4: 4, 7: 8}
"""Memory slices of a profile, by its compute slices; of one with a single compute slice by its memory."""

# Products divided into fewer slices, by a word of their name: compute slices, which are also the memory slices.
_SMALL = {"a30": 4, "6000": 4, "5000": 2, "4500": 2}


@dataclass(frozen=True)
class MigProfile:
    """A MIG profile that a product label names.

    Attributes:
        slices: compute slices of an instance.
        memory_gb: its memory, GB, as the profile's name rounds it.
        per_gpu: instances of this profile that a whole GPU holds.
    """

    slices: int
    memory_gb: int
    per_gpu: int


# Memory of the smallest profiles, GB, an eighth of the GPU's: A100 of 40 GB; A100 and H100 of 80 GB; H100 NVL, H20 and
# GH200; H200; B200 and GB200; B300. One compute slice with twice that (1g.20gb of 80 GB) takes two of eight memory
# slices: four instances fit instead of seven.
_SMALLEST_GB = (5, 10, 12, 18, 23, 34)


def mig_share(resource: str) -> float | None:
    """Share of a GPU's compute slices that one unit of a MIG resource has; None of any other resource.

    >>> mig_share("nvidia.com/mig-1g.10gb") == 1 / 7
    True
    >>> mig_share("nvidia.com/gpu") is None
    True
    """
    found = _RESOURCE.fullmatch(resource)
    return None if found is None else int(found["slices"]) / _COMPUTE_SLICES


def divided_gpus(resources: Mapping[str, float]) -> int:
    """The fewest GPUs that hold all MIG instances that a node offers as resources of their own; 0 without any.

    >>> divided_gpus({"nvidia.com/mig-1g.10gb": 2, "nvidia.com/mig-2g.20gb": 1, "nvidia.com/mig-3g.40gb": 1})
    1
    >>> divided_gpus({"nvidia.com/mig-3g.40gb": 16})
    8
    """
    compute = memory = 0.0
    for resource, count in resources.items():
        if found := _RESOURCE.fullmatch(resource):
            slices = int(found["slices"])
            single = 2 if int(found["memory_gb"]) not in _SMALLEST_GB else 1
            compute += count * slices
            memory += count * (single if slices == 1 else _MEMORY_SLICES_OF.get(slices, slices))
    return max(math.ceil(compute / _COMPUTE_SLICES), math.ceil(memory / _MEMORY_SLICES))


def mig_profile(product: str) -> MigProfile | None:
    """The MIG profile in the product label of a node; None where it names whole GPUs.

    >>> mig_profile("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb").per_gpu
    7
    >>> mig_profile("NVIDIA-A30-MIG-2g.12gb").per_gpu
    2
    >>> mig_profile("NVIDIA-H100-80GB-HBM3") is None
    True
    """
    found = _PROFILE.search(product)
    if found is None or int(found["slices"]) == 0:
        return None
    slices, memory_gb = int(found["slices"]), int(found["memory_gb"])
    return MigProfile(slices, memory_gb, 1 if found["media"] else _per_gpu(product[: found.start()], slices, memory_gb))


def _per_gpu(product: str, slices: int, memory_gb: int) -> int:
    words = re.split(r"[^a-z0-9]+", product.lower())
    small = next((_SMALL[word] for word in words if word in _SMALL and ("rtx" in words or word == "a30")), None)
    if small is not None:
        return max(1, small // slices)
    if slices == 1:
        # An A100 with 40 GB names twice its smallest memory as one with 80 GB names its smallest: 1g.10gb.
        doubled = memory_gb not in _SMALLEST_GB or ("40gb" in words and memory_gb != _SMALLEST_GB[0])
        return _MEMORY_SLICES // 2 if doubled else _COMPUTE_SLICES
    return max(1, _COMPUTE_SLICES // slices)
