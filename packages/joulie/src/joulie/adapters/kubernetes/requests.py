"""Reads a pod's CPU, memory and GPU requests and limits; `joulie.domain.scheduling.requests` aggregates them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import msgspec

from joulie.adapters.kubernetes.api.core import Container, Pod, Quantities
from joulie.domain.hardware.mig import mig_share
from joulie.domain.resource_quantity import QuantityError, parse_quantity
from joulie.domain.scheduling.requests import Amounts, InitContainer, effective_requests, pod_amounts

_BYTES_PER_GIB = 1024.0**3
_POD_LEVEL = ("cpu", "memory")
_WHOLE_GPUS = {
    "nvidia.com/gpu": "NVIDIA",
    # A time slice may draw as much power as the whole device.
    "nvidia.com/gpu.shared": "NVIDIA",
    "amd.com/gpu": "AMD",
    "gpu.intel.com/i915": "Intel",
    "gpu.intel.com/xe": "Intel",
}


class Requests(msgspec.Struct, frozen=True, gc=False):
    """Resource requests of a pod.

    Attributes:
        cpu_cores: requested CPU, cores.
        memory_gib: requested memory, GiB.
        gpus: number of requested GPUs; a MIG partition counts as its share of the compute slices.
        gpu_vendor: NVIDIA, AMD or Intel; None if no GPU is requested.
    """

    cpu_cores: float = 0.0
    memory_gib: float = 0.0
    gpus: float = 0.0
    gpu_vendor: str | None = None


def pod_requests(pod: Pod) -> tuple[Requests, tuple[str, ...]]:
    """The pod's requests, and a message per invalid quantity (which the API server should have rejected).

    What the node has allocated to a container counts instead of its spec, from which it differs while an in-place
    resize is pending.
    """
    mistakes: list[str] = []
    spec = pod.spec
    allocated = {
        one.name: one.allocated_resources
        for one in (*pod.status.container_statuses, *pod.status.init_container_statuses)
        if one.allocated_resources
    }
    pod_level: Amounts = {}
    if spec.resources is not None:
        found = _amounts(effective_requests(spec.resources.requests, spec.resources.limits), "pod", mistakes)
        pod_level = {key: found[key] for key in _POD_LEVEL if key in found}
    amounts = pod_amounts(
        [_container(one, allocated, mistakes) for one in spec.containers],
        [
            InitContainer(_container(one, allocated, mistakes), one.restart_policy == "Always")
            for one in spec.init_containers
        ],
        pod_level,
        _amounts(spec.overhead, "overhead", mistakes),
    )
    cores, memory_bytes = amounts.pop("cpu", 0.0), amounts.pop("memory", 0.0)
    vendor = max(sorted(amounts), key=lambda name: amounts[name], default=None)
    gpus = amounts[vendor] if vendor is not None else 0.0
    return _shared(cores, memory_bytes / _BYTES_PER_GIB, gpus, vendor if gpus > 0.0 else None), tuple(mistakes)


def offered_gpus(allocatable: Mapping[str, str | int | float]) -> float:
    """GPUs that a node offers to pods, counted as in `Requests`; invalid quantities are omitted."""
    amounts = _amounts(allocatable, "node", [])
    return sum(number for key, number in amounts.items() if key not in _POD_LEVEL)


def memory_limit_gib(pod: Pod) -> float | None:
    """Memory limit of the pod, GiB; None if a container has no valid limit.

    A pod-level limit takes precedence. Init containers other than sidecars do not count: in a running pod they ended.
    """
    if pod.spec.resources is not None and "memory" in pod.spec.resources.limits:
        limits = [pod.spec.resources.limits]
    else:
        sidecars = [one for one in pod.spec.init_containers if one.restart_policy == "Always"]
        limits = [one.resources.limits for one in (*pod.spec.containers, *sidecars)]
    try:
        return sum(parse_quantity(limit["memory"]) for limit in limits) / _BYTES_PER_GIB or None
    except (KeyError, QuantityError):
        return None


def _container(container: Container, allocated: Mapping[str, Quantities], mistakes: list[str]) -> Amounts:
    resources = container.resources
    wanted = effective_requests(resources.requests, resources.limits)
    if container.name in allocated:
        wanted = {**wanted, **allocated[container.name]}
    return _amounts(wanted, container.name, mistakes)


def _amounts(quantities: Mapping[str, str | int | float], where: str, mistakes: list[str]) -> Amounts:
    """Parse quantities to numbers: cores, bytes, and GPUs by vendor."""
    amounts: Amounts = {}
    for resource, text in quantities.items():
        key, share = _resource_key(resource)
        if key is None:
            continue
        try:
            number = parse_quantity(text)
        except QuantityError as error:
            mistakes.append(f"{where}: {resource}: {error}")
            continue
        if number < 0.0:
            mistakes.append(f"{where}: {resource}: invalid quantity {text!r}: negative")
            continue
        amounts[key] = amounts.get(key, 0.0) + number * share
    return amounts


@lru_cache(maxsize=1024)
def _resource_key(resource: str) -> tuple[str | None, float]:
    """The key that a resource is summed under (None: ignored), and the weight of one unit."""
    if resource in _POD_LEVEL:
        return resource, 1.0
    if resource in _WHOLE_GPUS:
        return _WHOLE_GPUS[resource], 1.0
    share = mig_share(resource)
    return (None, 0.0) if share is None else ("NVIDIA", share)


@lru_cache(maxsize=8192)
def _shared(cpu_cores: float, memory_gib: float, gpus: float, gpu_vendor: str | None) -> Requests:
    """A shared value for all pods with the same requests, to save memory: a hundred thousand are cached."""
    return Requests(cpu_cores, memory_gib, gpus, gpu_vendor)
