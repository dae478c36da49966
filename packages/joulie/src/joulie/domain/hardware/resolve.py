"""Hardware of a node: as its agent reported it, else from its labels, else from its allocatable resources.

Devices are resolved one by one: a node whose agent could read its CPU but not its GPUs still gets these from labels. A
number that a device reported about itself takes precedence over the catalogue's. No limit is guessed where neither
knows: a device without a range has none, and only its power is estimated, which says so.

Cores are physical ones, whether an agent counted them or not: Kubernetes counts logical CPUs, so without an agent they
are divided by the threads of a core (`_physical_cores`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from joulie.domain.hardware.catalogue import Catalogue, Match, ModelT, Quality, normalised
from joulie.domain.hardware.estimates import THREADS_PER_CORE, Estimate, estimated_cpu_tdp, estimated_gpu_limit
from joulie.domain.hardware.mig import divided_gpus, mig_profile
from joulie.domain.hardware.models import CapRange, CpuModel, GpuModel

CPU_MODEL_KEY = "joulie.io/hw.cpu-model"
CPU_SOCKETS_KEY = "joulie.io/hw.cpu-sockets"
GPU_MODEL_KEY = "joulie.io/hw.gpu-model"
GPU_COUNT_KEY = "joulie.io/hw.gpu-count"
GPU_PRODUCT_KEYS = ("joulie.io/gpu.product", "nvidia.com/gpu.product", "amd.com/gpu.product-name")
"""Node labels that name a GPU, best first, after `GPU_MODEL_KEY`; GPU_PRODUCT_LABEL_KEYS replaces them."""
GPU_PHYSICAL_COUNT_KEY = "nvidia.com/gpu.count"
GPU_REPLICAS_KEY = "nvidia.com/gpu.replicas"
ARCHITECTURE_KEY = "kubernetes.io/arch"
HARDWARE_KEYS = frozenset(
    {
        ARCHITECTURE_KEY,
        CPU_MODEL_KEY,
        CPU_SOCKETS_KEY,
        GPU_MODEL_KEY,
        GPU_COUNT_KEY,
        GPU_PHYSICAL_COUNT_KEY,
        GPU_REPLICAS_KEY,
    }
)
"""All labels that are read, beside those that name the GPU's product."""
GPU_RESOURCES: Mapping[str, str] = {"nvidia.com/gpu": "NVIDIA", "amd.com/gpu": "AMD"}
"""Vendor by extended resource."""

UNKNOWN_FAMILY = "unknown"
_ARCHITECTURES_OF_ONE_THREAD = frozenset({"arm64"})
_OWN_LIMITS = "its limits are those that it reports"
_MOST_OF_ONE_DEVICE_W = 100_000.0
_LEAST_CPU, _MOST_CPUS = 0.001, 1_000_000.0
"""Outside these, a limit or a count was misread; Kubernetes counts no less than a thousandth of a CPU."""
_RESERVED_SHARE = 0.1
"""Maximum share of a machine's CPUs that are reserved, and missing from what it offers to pods."""


@dataclass(frozen=True)
class ReportedHardware:
    """What an agent found on its node (NodeHardware); None, and for watts 0 too, is what it could not find.

    Attributes:
        cpu_model: catalogue key of the CPU.
        cpu_raw: its model string.
        sockets: CPU packages.
        cores: physical cores of the node.
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
        cores: physical cores of the node; 0 where nobody says.
        cap_range: limits of one package; None where neither it nor the catalogue says.
        quality: how well its power is known.
        tdp_estimate: TDP of all packages where `cap_range` is None and the cores are known.
        share: part of its packages that the node has: below 1 on a virtual machine, which has fewer cores than they.
    """

    model: str | None
    raw: str | None
    sockets: int
    cores: float
    cap_range: CapRange | None
    quality: Quality
    tdp_estimate: Estimate | None = None
    share: float = 1.0

    @property
    def packages_max_w(self) -> float | None:
        """TDP of its packages, W, whatever part of them the node has; None where it is not known."""
        return None if self.cap_range is None else self.sockets * self.cap_range.base_w

    @property
    def caveat(self) -> str | None:
        """Where its power comes from if not from the catalogue; None if from there, or if it is not known at all."""
        if self.model is not None or (self.cap_range is None and self.tdp_estimate is None):
            return None
        source = _OWN_LIMITS if self.cap_range else f"TDP estimated from {self.cores:g} cores, {self.tdp_estimate}"
        return f"{self.raw or 'CPU of unknown model'} is not in the catalogue: {source}"


@dataclass(frozen=True)
class GpuDevices:
    """The GPUs of a node, which are all of one model.

    Attributes:
        model: catalogue key, None where not recognised.
        raw: model string, None where nobody says.
        vendor: ``NVIDIA``, ``AMD`` or what was reported; None where nobody says.
        count: physical devices, at least 1.
        cap_range: limits of one device; None where neither it nor the catalogue says.
        quality: how well its power is known.
        instances: GPUs that pods can request of each device: MIG instances with the strategy ``single``, else 1.
    """

    model: str | None
    raw: str | None
    vendor: str | None
    count: int
    cap_range: CapRange | None
    quality: Quality
    instances: int = 1

    @property
    def requested_max_w(self) -> float | None:
        """Default limit behind one GPU that a pod requests, W; None where it is not known."""
        return None if self.cap_range is None else self.cap_range.base_w / self.instances

    @property
    def caveat(self) -> str | None:
        """Where its power comes from if not from the catalogue; None if from there."""
        if self.model is not None:
            return None
        source = _OWN_LIMITS if self.cap_range else f"limit of one estimated, {estimated_gpu_limit(self.vendor)}"
        return f"{self.raw or 'GPU of unknown model'} is not in the catalogue: {source}"


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
        """TDP of the node's part of its CPU packages, W; None where it is not known."""
        packages_w = self.cpu.packages_max_w
        return None if packages_w is None else packages_w * self.cpu.share

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
    def gpu_estimate(self) -> Estimate | None:
        """Default limit of all GPUs together where it is not known; None where it is, or there are none."""
        if self.gpu is None or self.gpu.cap_range is not None:
            return None
        return estimated_gpu_limit(self.gpu.vendor).times(self.gpu.count)

    @property
    def limits(self) -> tuple[float, float, int, int] | None:
        """CPU TDP (W), GPU TDP (W), cores and GPUs as the twin takes them.

        What one device does not say is estimated, and leaves the others as they are; None where not even the number of
        cores is known.
        """
        cpu_w = _known_or_expected(self.cpu_max_w, self.cpu.tdp_estimate)
        gpu_w = _known_or_expected(self.gpu_max_w, self.gpu_estimate)
        cores = round(self.cpu.cores)
        if cpu_w is None or gpu_w is None or cores < 1:
            return None
        return cpu_w, gpu_w, cores, 0 if self.gpu is None else self.gpu.count

    @property
    def estimated(self) -> tuple[str, ...]:
        """What of `limits` is estimated, a phrase for each device."""
        parts = (self.cpu, self.gpu)
        return tuple(part.caveat for part in parts if part is not None and part.cap_range is None and part.caveat)


def resolve(
    reported: ReportedHardware | None,
    labels: Mapping[str, str],
    allocatable: Mapping[str, float],
    catalogue: Catalogue,
    *,
    capacity_cpus: float | None = None,
    gpu_product_keys: Sequence[str] = GPU_PRODUCT_KEYS,
) -> ResolvedHardware:
    """The hardware of one node.

    Args:
        reported: what its agent published, None where it has not.
        labels: the node's labels.
        allocatable: what the node offers to pods, by resource: ``cpu`` in cores, extended resources as counts.
        catalogue: known models.
        capacity_cpus: logical CPUs of the node, those reserved included; None where only `allocatable` is at hand.
        gpu_product_keys: labels that may name the GPU, best first.
    """
    found = reported or ReportedHardware()
    warnings: list[str] = []
    threads = _cpus(capacity_cpus) or _cpus(allocatable.get("cpu"))
    cpu, cpu_source = _cpu(found, labels, threads, catalogue, warnings)
    gpu, gpu_source = _gpu(found, labels, allocatable, catalogue, gpu_product_keys, warnings)
    sources = {cpu_source, gpu_source}
    source = next((name for name in ("nodehardware", "labels") if name in sources), "allocatable")
    return ResolvedHardware(cpu, gpu, source, tuple(warnings))


def _cpu(
    found: ReportedHardware,
    labels: Mapping[str, str],
    threads: float | None,
    catalogue: Catalogue,
    warnings: list[str],
) -> tuple[CpuDevices, str]:
    reported = _first_text(found.cpu_model, found.cpu_raw)
    raw = reported or _first_text(labels.get(CPU_MODEL_KEY))
    model, quality = _recognised(catalogue.cpu, found.cpu_model, found.cpu_raw, labels.get(CPU_MODEL_KEY))
    counted = found.sockets if _positive(found.sockets) else _whole_number(labels, CPU_SOCKETS_KEY, warnings)
    cores = _cpus(found.cores) or _physical_cores(threads, labels, model, counted)
    sockets = counted or _likely_sockets(model, cores)
    if cores is None and model is not None:
        cores = float(sockets * model.cores_per_socket)
    catalogued = None if model is None else model.cap_range
    limits = _cap_range(found.cpu_min_w, found.cpu_max_w, found.cpu_max_w, catalogued)
    estimate = estimated_cpu_tdp(cores, counted) if limits is None and cores is not None else None
    if counted is None:
        quality = _at_most_heuristic(quality)
    if model is None and (limits is not None or estimate is not None):
        quality = Quality.HEURISTIC
    source = "nodehardware" if reported or _watts(found.cpu_max_w) else "labels" if raw else "allocatable"
    share = 1.0
    if model is not None and cores is not None and not _is_whole_machine(found, labels):
        share = min(1.0, cores / (sockets * model.cores_per_socket))
    name, known = found.cpu_raw or raw, cores or 0.0
    return CpuDevices(_key(model), name, sockets, known, limits, quality, estimate, share), source


def _is_whole_machine(found: ReportedHardware, labels: Mapping[str, str]) -> bool:
    """Whether the packages are the node's own: it reports their limits, or only its administrator counts them."""
    return bool(_watts(found.cpu_max_w)) or (not _positive(found.sockets) and CPU_SOCKETS_KEY in labels)


def _physical_cores(
    threads: float | None, labels: Mapping[str, str], model: CpuModel | None, sockets: int | None
) -> float | None:
    """Physical cores of a node with this many logical CPUs; None where nobody counts either.

    A node that offers nearly all threads of the packages that its labels count is that machine, what it reserves
    included; one that offers as many CPUs as these have cores has its threads switched off. Any other may be a part of
    a machine: its CPUs are divided by the threads of a core, of its model or else of its architecture.
    """
    if threads is None:
        return None
    per_core = THREADS_PER_CORE if model is None else model.threads_per_core
    if labels.get(ARCHITECTURE_KEY) in _ARCHITECTURES_OF_ONE_THREAD:
        per_core = 1
    if model is not None and sockets is not None:
        machine = sockets * model.cores_per_socket
        for logical in (machine * per_core, machine):
            if logical * (1.0 - _RESERVED_SHARE) <= threads <= logical:
                return float(machine)
    return float(max(1, math.ceil(threads / per_core)))


def _gpu(
    found: ReportedHardware,
    labels: Mapping[str, str],
    allocatable: Mapping[str, float],
    catalogue: Catalogue,
    product_keys: Sequence[str],
    warnings: list[str],
) -> tuple[GpuDevices | None, str]:
    reported = bool(_positive(found.gpu_count))
    offered = [name for name in GPU_RESOURCES if allocatable.get(name, 0.0) >= 1.0]
    resource = offered[0] if offered else None
    if len(offered) > 1:
        warnings.append(f"GPUs of one vendor only are counted, {offered[0]}; the node also offers {offered[1]}")
    named = [labels[key] for key in (GPU_MODEL_KEY, *product_keys) if labels.get(key)]
    count = found.gpu_count if reported else _labelled_gpu_count(labels, allocatable, resource, named, warnings)
    if not count:
        return None, ""
    raw = _first_text(found.gpu_raw, found.gpu_model, *named)
    model, quality = _recognised(catalogue.gpu, found.gpu_model, found.gpu_raw, *named)
    catalogued = None if model is None else model.cap_range
    limits = _cap_range(found.gpu_min_w, found.gpu_max_w, found.gpu_default_w, catalogued)
    if model is None and limits is not None:
        quality = Quality.HEURISTIC
    requested = GPU_RESOURCES[resource] if resource else "NVIDIA" if divided_gpus(allocatable) else None
    vendor = found.gpu_vendor or (model.vendor if model else None) or requested
    source = "nodehardware" if reported else "labels" if named else "allocatable"
    return GpuDevices(_key(model), raw, vendor, count, limits, quality, _instances(named)), source


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
    if count is not None:
        return _whole_gpus(count, products, warnings)
    divided = divided_gpus(allocatable)
    if divided:
        warnings.append(
            f"the MIG instances are of at least {divided} GPUs; set the label {GPU_COUNT_KEY} if there are more"
        )
    if resource is None:
        return divided or None
    replicas = _whole_number(labels, GPU_REPLICAS_KEY, warnings) or 1
    return _whole_gpus(max(1, int(allocatable[resource]) // replicas), products, warnings) + divided


def _whole_gpus(count: int, products: Sequence[str], warnings: list[str]) -> int:
    """Physical GPUs behind a count that is of MIG instances where the product names a MIG profile."""
    instances = _instances(products)
    if count % instances:
        warnings.append(
            f"{count} MIG instances, {instances} to a GPU: at least {math.ceil(count / instances)} GPUs; "
            f"set the label {GPU_COUNT_KEY} if there are more"
        )
    return math.ceil(count / instances)


def _instances(products: Sequence[str]) -> int:
    """MIG instances of each GPU that the product names; 1 where it names whole GPUs."""
    return next((profile.per_gpu for profile in map(mig_profile, products) if profile is not None), 1)


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


def _cpus(number: float | None) -> float | None:
    """CPUs or cores of a node, or None for what no node has."""
    known = _positive(number)
    return known if known is not None and _LEAST_CPU <= known <= _MOST_CPUS else None


def _watts(power_w: float | None) -> float | None:
    """A limit of one device, or None for what no device has."""
    known_w = _positive(power_w)
    return known_w if known_w is not None and known_w <= _MOST_OF_ONE_DEVICE_W else None


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
    """Sockets where nobody counted them: as few as can hold the cores."""
    if model is None or cores is None:
        return 1
    return math.ceil(cores / model.cores_per_socket)


def _known_or_expected(known_w: float | None, estimate: Estimate | None) -> float | None:
    if known_w is not None:
        return known_w
    return None if estimate is None else estimate.expected_w


def _cap_range(
    min_w: float | None, max_w: float | None, base_w: float | None, catalogued: CapRange | None
) -> CapRange | None:
    """Limits of one device: what it said of itself, gaps filled from the catalogue, moved into what it said."""
    largest_w = _watts(max_w) or _watts(base_w)
    if largest_w is None:
        return catalogued
    smallest_w = _watts(min_w) or (0.0 if catalogued is None else catalogued.min_w)
    smallest_w = min(smallest_w, largest_w)
    hundred_w = _watts(base_w) or (largest_w if catalogued is None else catalogued.base_w)
    return CapRange(smallest_w, largest_w, min(max(hundred_w, smallest_w), largest_w))
