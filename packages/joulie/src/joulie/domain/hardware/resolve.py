"""Hardware of a node: as its agent reported it, else from its labels, else from its allocatable resources.

Devices are resolved one by one: a node whose agent could read its CPU but not its GPUs still gets these from labels. A
number that a device reported about itself goes before the catalogue's. Nothing is guessed where neither knows: a device
without a range has none, and whoever needs a number takes a fallback that says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from joulie.domain.hardware.catalogue import Catalogue, Match, ModelT, Quality, normalised
from joulie.domain.hardware.mig import mig_profile
from joulie.domain.hardware.models import CapRange, CpuModel, GpuModel

CPU_MODEL_KEY = "joulie.io/hw.cpu-model"
CPU_SOCKETS_KEY = "joulie.io/hw.cpu-sockets"
GPU_MODEL_KEY = "joulie.io/hw.gpu-model"
GPU_COUNT_KEY = "joulie.io/hw.gpu-count"
GPU_PRODUCT_KEYS = ("joulie.io/gpu.product", "nvidia.com/gpu.product", "amd.com/gpu.product-name")
"""Node labels that name a GPU, best first, after `GPU_MODEL_KEY`; GPU_PRODUCT_LABEL_KEYS replaces them."""
GPU_PHYSICAL_COUNT_KEY = "nvidia.com/gpu.count"
GPU_REPLICAS_KEY = "nvidia.com/gpu.replicas"
HARDWARE_KEYS = frozenset(
    {CPU_MODEL_KEY, CPU_SOCKETS_KEY, GPU_MODEL_KEY, GPU_COUNT_KEY, GPU_PHYSICAL_COUNT_KEY, GPU_REPLICAS_KEY}
)
"""All labels that are read, beside those that name the GPU's product."""
GPU_RESOURCES: Mapping[str, str] = {"nvidia.com/gpu": "NVIDIA", "amd.com/gpu": "AMD"}
"""Vendor by extended resource."""

UNKNOWN_FAMILY = "unknown"
_THREADS_PER_CORE = 2


@dataclass(frozen=True)
class ReportedHardware:
    """What an agent found on its node (NodeHardware); None, and for watts 0 too, is what it could not find.

    Attributes:
        cpu_model: catalogue key of the CPU.
        cpu_raw: its model string.
        sockets: CPU packages.
        cores: cores of the node.
        cpu_min_w: smallest limit of one package, W.
        cpu_max_w: largest limit of one package, W: what 100 % means.
        gpu_model: catalogue key of the GPUs.
        gpu_raw: their model string.
        gpu_vendor: their vendor.
        gpu_count: number of GPUs.
        gpu_min_w: smallest limit of one GPU, W.
        gpu_max_w: largest limit of one GPU, W.
        gpu_default_w: default limit of one GPU, W: what 100 % means.
    """

    cpu_model: str | None = None
    cpu_raw: str | None = None
    sockets: int | None = None
    cores: float | None = None
    cpu_min_w: float | None = None
    cpu_max_w: float | None = None
    gpu_model: str | None = None
    gpu_raw: str | None = None
    gpu_vendor: str | None = None
    gpu_count: int | None = None
    gpu_min_w: float | None = None
    gpu_max_w: float | None = None
    gpu_default_w: float | None = None


@dataclass(frozen=True)
class CpuDevices:
    """The CPUs of a node.

    Attributes:
        model: catalogue key, None where not recognised.
        raw: model string, None where nobody says.
        sockets: packages, at least 1.
        cores: cores of the node; 0 where nobody says.
        cap_range: limits of one package; None where neither it nor the catalogue says.
        quality: how well the model is known.
    """

    model: str | None
    raw: str | None
    sockets: int
    cores: float
    cap_range: CapRange | None
    quality: Quality


@dataclass(frozen=True)
class GpuDevices:
    """The GPUs of a node, which are all of one model.

    Attributes:
        model: catalogue key, None where not recognised.
        raw: model string, None where nobody says.
        vendor: ``NVIDIA``, ``AMD`` or what was reported; None where nobody says.
        count: physical devices, at least 1.
        cap_range: limits of one device; None where neither it nor the catalogue says.
        quality: how well the model is known.
    """

    model: str | None
    raw: str | None
    vendor: str | None
    count: int
    cap_range: CapRange | None
    quality: Quality


@dataclass(frozen=True)
class ResolvedHardware:
    """The hardware of one node.

    Attributes:
        cpu: its CPUs.
        gpu: its GPUs, None where it has none.
        source: the best source that had a part in it: ``nodehardware``, ``labels`` or ``allocatable``.
        warnings: labels that could not be read, and why.
    """

    cpu: CpuDevices
    gpu: GpuDevices | None
    source: str
    warnings: tuple[str, ...] = ()

    @property
    def cpu_max_w(self) -> float | None:
        """TDP of all CPU packages, W; None where it is not known."""
        limits = self.cpu.cap_range
        return None if limits is None else self.cpu.sockets * limits.base_w

    @property
    def gpu_max_w(self) -> float | None:
        """Default limit of all GPUs together, W; 0 without GPUs, None where it is not known."""
        if self.gpu is None:
            return 0.0
        limits = self.gpu.cap_range
        return None if limits is None else self.gpu.count * limits.base_w

    @property
    def family(self) -> str:
        """GPU model, else CPU model: nodes of one family stand in for one another."""
        devices = self.cpu if self.gpu is None else self.gpu
        if devices.model is not None:
            return devices.model
        return UNKNOWN_FAMILY if devices.raw is None else normalised(devices.raw)

    @property
    def limits(self) -> tuple[float, float, int, int] | None:
        """CPU TDP (W), GPU TDP (W), cores and GPUs as the twin takes them; None unless all of them are known."""
        cpu_w, gpu_w, cores = self.cpu_max_w, self.gpu_max_w, round(self.cpu.cores)
        if cpu_w is None or gpu_w is None or cores < 1:
            return None
        return cpu_w, gpu_w, cores, 0 if self.gpu is None else self.gpu.count


def resolve(
    reported: ReportedHardware | None,
    labels: Mapping[str, str],
    allocatable: Mapping[str, float],
    catalogue: Catalogue,
    *,
    gpu_product_keys: Sequence[str] = GPU_PRODUCT_KEYS,
) -> ResolvedHardware:
    """The hardware of one node.

    Args:
        reported: what its agent published, None where it has not.
        labels: the node's labels.
        allocatable: what the node offers to pods, by resource: ``cpu`` in cores, extended resources as counts.
        catalogue: known models.
        gpu_product_keys: labels that may name the GPU, best first.
    """
    found = reported or ReportedHardware()
    warnings: list[str] = []
    cpu, cpu_source = _cpu(found, labels, allocatable, catalogue, warnings)
    gpu, gpu_source = _gpu(found, labels, allocatable, catalogue, gpu_product_keys, warnings)
    sources = {cpu_source, gpu_source}
    source = next((name for name in ("nodehardware", "labels") if name in sources), "allocatable")
    return ResolvedHardware(cpu, gpu, source, tuple(warnings))


def _cpu(
    found: ReportedHardware,
    labels: Mapping[str, str],
    allocatable: Mapping[str, float],
    catalogue: Catalogue,
    warnings: list[str],
) -> tuple[CpuDevices, str]:
    reported = _first_text(found.cpu_model, found.cpu_raw)
    raw = reported or _first_text(labels.get(CPU_MODEL_KEY))
    model, quality = _recognised(catalogue.cpu, found.cpu_model, found.cpu_raw, labels.get(CPU_MODEL_KEY))
    cores = _positive(found.cores) or _positive(allocatable.get("cpu"))
    sockets = found.sockets if _positive(found.sockets) else _whole_number(labels, CPU_SOCKETS_KEY, warnings)
    if sockets is None:
        sockets, quality = _likely_sockets(model, cores), _at_most_heuristic(quality)
    if cores is None and model is not None:
        cores = float(sockets * model.cores_per_socket)
    catalogued = None if model is None else model.cap_range
    limits = _cap_range(found.cpu_min_w, found.cpu_max_w, found.cpu_max_w, catalogued)
    source = "nodehardware" if reported or _positive(found.cpu_max_w) else "labels" if raw else "allocatable"
    return CpuDevices(_key(model), found.cpu_raw or raw, sockets, cores or 0.0, limits, quality), source


def _gpu(
    found: ReportedHardware,
    labels: Mapping[str, str],
    allocatable: Mapping[str, float],
    catalogue: Catalogue,
    product_keys: Sequence[str],
    warnings: list[str],
) -> tuple[GpuDevices | None, str]:
    reported = bool(_positive(found.gpu_count))
    resource = next((name for name in GPU_RESOURCES if allocatable.get(name, 0.0) >= 1.0), None)
    named = [labels[key] for key in (GPU_MODEL_KEY, *product_keys) if labels.get(key)]
    count = found.gpu_count if reported else _labelled_gpu_count(labels, allocatable, resource, named, warnings)
    if not count:
        return None, ""
    raw = _first_text(found.gpu_raw, found.gpu_model, *named)
    model, quality = _recognised(catalogue.gpu, found.gpu_model, found.gpu_raw, *named)
    catalogued = None if model is None else model.cap_range
    limits = _cap_range(found.gpu_min_w, found.gpu_max_w, found.gpu_default_w, catalogued)
    vendor = found.gpu_vendor or (model.vendor if model else None) or (GPU_RESOURCES[resource] if resource else None)
    source = "nodehardware" if reported else "labels" if named else "allocatable"
    return GpuDevices(_key(model), raw, vendor, count, limits, quality), source


def _labelled_gpu_count(
    labels: Mapping[str, str],
    allocatable: Mapping[str, float],
    resource: str | None,
    products: Sequence[str],
    warnings: list[str],
) -> int | None:
    """Physical GPUs. Sharing multiplies what a node offers to pods, so its own labels go first."""
    count = _whole_number(labels, GPU_COUNT_KEY, warnings)
    if count is not None:
        return count
    count = _whole_number(labels, GPU_PHYSICAL_COUNT_KEY, warnings)
    if count is None:
        if resource is None:
            return None
        replicas = _whole_number(labels, GPU_REPLICAS_KEY, warnings) or 1
        count = max(1, int(allocatable[resource]) // replicas)
    return _whole_gpus(count, products, warnings)


def _whole_gpus(count: int, products: Sequence[str], warnings: list[str]) -> int:
    """Physical GPUs behind a count that is of MIG instances where the product names a MIG profile."""
    profile = next((found for found in map(mig_profile, products) if found is not None), None)
    if profile is None:
        return count
    if count % profile.per_gpu:
        warnings.append(
            f"{count} MIG instances, {profile.per_gpu} to a GPU: at least {math.ceil(count / profile.per_gpu)} GPUs; "
            f"set the label {GPU_COUNT_KEY} if there are more"
        )
    return math.ceil(count / profile.per_gpu)


def _recognised(look_up: Callable[[str], Match[ModelT]], *names: str | None) -> tuple[ModelT | None, Quality]:
    """The first of the names that the catalogue knows."""
    for name in names:
        match = look_up(name) if name else None
        if match is not None and match.model is not None:
            return match.model, match.quality
    return None, Quality.UNAVAILABLE


def _first_text(*texts: str | None) -> str | None:
    return next((text for text in texts if text), None)


def _key(model: CpuModel | GpuModel | None) -> str | None:
    return None if model is None else model.key


def _positive(number: float | None) -> float | None:
    """The number, or None for what stands for "not known": nothing, zero (as sysfs says it), NaN."""
    return number if number is not None and math.isfinite(number) and number > 0 else None


def _at_most_heuristic(quality: Quality) -> Quality:
    return Quality.HEURISTIC if quality is Quality.EXACT else quality


def _whole_number(labels: Mapping[str, str], key: str, warnings: list[str]) -> int | None:
    text = labels.get(key)
    if not text:
        return None
    if text.isascii() and text.isdigit():
        return int(text) or None
    warnings.append(f"label {key}: must be a whole number, got {text!r}; ignored")
    return None


def _likely_sockets(model: CpuModel | None, cores: float | None) -> int:
    """Sockets where nobody counted them: as few as can hold the cores, which Linux counts as threads."""
    if model is None or cores is None:
        return 1
    return math.ceil(cores / (_THREADS_PER_CORE * model.cores_per_socket))


def _cap_range(
    min_w: float | None, max_w: float | None, base_w: float | None, catalogued: CapRange | None
) -> CapRange | None:
    """Limits of one device: what it said of itself, gaps filled from the catalogue, moved into what it said."""
    largest_w = _positive(max_w) or _positive(base_w)
    if largest_w is None:
        return catalogued
    smallest_w = _positive(min_w) or (0.0 if catalogued is None else catalogued.min_w)
    smallest_w = min(smallest_w, largest_w)
    hundred_w = _positive(base_w) or (largest_w if catalogued is None else catalogued.base_w)
    return CapRange(smallest_w, largest_w, min(max(hundred_w, smallest_w), largest_w))
