"""Builds the status of a NodeHardware, from the devices of the agent's host or from the labels of a remote node."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from joulie.adapters.kubernetes.api import v1alpha1 as api
from joulie.apps.agent.host import Observation
from joulie.apps.agent.limits import device_range
from joulie.apps.agent.outcome import format_problems
from joulie.domain.actuation import cpu_range
from joulie.domain.hardware import CapRange, Catalogue, CpuModel, Quality, normalised
from joulie.domain.hardware.resolve import CpuDevices, GpuDevices, ReportedHardware, ResolvedHardware, resolve
from joulie.ports.devices import PowerDevice

_HZ_PER_MHZ = 1e6
_NO_GPU = api.GpuHardware(present=False, count=0, control_available=False, telemetry_available=False)
CPU_VENDORS = {"GenuineIntel": "intel", "AuthenticAMD": "amd"}
_NVIDIA = re.compile(r"nvidia|tesla", re.IGNORECASE)
_AMD = re.compile(r"\bamd\b|instinct|radeon", re.IGNORECASE)
# NVIDIA Multi-Instance GPU user guide, supported GPUs.
_MIG = re.compile(r"\b(a30|a100|h20|h100|h200|gh200|b100|b200|gb200)\b")


def hardware_of_host(
    seen: Observation, catalogue: Catalogue, stored_gpu: api.GpuHardware | None = None
) -> api.NodeHardwareStatus:
    """NodeHardware status of the agent's host.

    Args:
        seen: what the agent observed.
        catalogue: hardware catalogue.
        stored_gpu: GPUs as published earlier, which stay while the GPU driver does not respond.
    """
    return _status(_host_cpu(seen, catalogue), _host_gpu(seen, catalogue, stored_gpu))


def hardware_from_labels(
    hardware: ResolvedHardware, *, controls: tuple[bool, bool], telemetry: tuple[bool, bool]
) -> api.NodeHardwareStatus:
    """NodeHardware status of a remote node.

    Args:
        hardware: hardware resolved from the node's labels.
        controls: whether the CPUs and the GPUs can be capped (over HTTP).
        telemetry: whether the power of the CPUs and of the GPUs can be measured.
    """
    cpu = _labelled_cpu(hardware.cpu, controls[0], telemetry[0], hardware.warnings)
    gpu = _NO_GPU if hardware.gpu is None else _gpu_hardware(hardware.gpu, controls[1], telemetry[1])
    return _status(cpu, gpu)


def _status(cpu: api.CpuHardware, gpu: api.GpuHardware) -> api.NodeHardwareStatus:
    qualities = {part.quality for part in (cpu, gpu) if part is cpu or gpu.present}
    worst = next(quality for quality in reversed(Quality) if quality in qualities)
    return api.NodeHardwareStatus(
        cpu=cpu,
        gpu=gpu,
        capabilities=api.HardwareCapabilities(
            cpu_control=cpu.control_available,
            gpu_control=gpu.control_available,
            cpu_telemetry=cpu.telemetry_available,
            gpu_telemetry=gpu.telemetry_available,
        ),
        quality=api.OverallQuality(overall=worst.value, warnings=(*cpu.warnings, *gpu.warnings)),
    )


def _host_cpu(seen: Observation, catalogue: Catalogue) -> api.CpuHardware:
    info = seen.cpu
    match = catalogue.cpu(info.model or "")
    sockets = seen.sockets
    cores = info.cores or None
    # A virtual machine has nothing to cap: a range would make its part of a package pass for all of it.
    cap_range = seen.cpu_range if seen.packages or seen.policies else None
    reported = ReportedHardware(
        cpu_raw=info.model or None,
        sockets=sockets,
        cores=cores,
        cpu_max_w=cap_range.base_w if cap_range else None,
    )
    known = resolve(reported, {}, {}, catalogue).cpu
    warnings = () if info.model else ("the CPU's model string cannot be read",)
    if info.sockets and seen.packages and info.sockets > seen.limited_sockets:
        warnings = (*warnings, f"{info.sockets} sockets, but {seen.limited_sockets} packages with a power limit")
    if info.sockets and info.sockets < (sockets or 0):
        warnings = (*warnings, f"{sockets} sockets, but CPUs of {info.sockets} are online")
    if seen.cpu_power.problems:
        warnings = (*warnings, f"no CPU power: {format_problems(seen.cpu_power.problems)}")
    if known.caveat:
        warnings = (*warnings, known.caveat)
    return api.CpuHardware(
        raw_model=info.model or None,
        model=match.model.key if match.model else None,
        vendor=CPU_VENDORS.get(info.vendor, info.vendor) if info.vendor else None,
        sockets=sockets,
        total_cores=cores,
        cores_per_socket=cores // sockets if cores and sockets else None,
        driver_family=seen.driver or None,
        cap_range=_cpu_cap_range(cap_range),
        landmarks=_landmarks(seen, match.model),
        control_available=seen.cpu_control,
        telemetry_available=seen.cpu_measured and not seen.cpu_power.problems,
        quality=known.quality.value,
        warnings=warnings,
    )


def _host_gpu(seen: Observation, catalogue: Catalogue, stored: api.GpuHardware | None) -> api.GpuHardware:
    unknown = () if seen.gpu_problem is None else (f"the GPUs are not known now: {seen.gpu_problem}",)
    if not seen.gpus:
        # A driver that does not respond is no reason to forget GPUs that an earlier agent has seen.
        known = stored if unknown and stored is not None and stored.present else _NO_GPU
        return msgspec.structs.replace(known, control_available=False, telemetry_available=False, warnings=unknown)
    # GPUs of the other vendor, whose driver does not respond, are not forgotten either.
    known_count = (stored.count or 0) if unknown and stored is not None else 0
    first = seen.gpus[0]
    raw = first.model or ""
    match = catalogue.gpu(raw)
    limits = device_range(first, catalogue, "")
    devices = GpuDevices(
        match.model.key if match.model else None,
        raw or None,
        match.model.vendor if match.model else gpu_vendor(raw),
        max(len(seen.gpus), known_count),
        limits,
        match.quality if match.model or limits is None else Quality.HEURISTIC,
    )
    described = _gpu_hardware(devices, seen.gpu_control, seen.gpu_measured)
    return msgspec.structs.replace(
        described, warnings=(*_mixed_models_warning(seen.gpus), *described.warnings, *(unknown or seen.gpus_lost))
    )


def _labelled_cpu(cpu: CpuDevices, control: bool, telemetry: bool, warnings: tuple[str, ...]) -> api.CpuHardware:
    cores = round(cpu.cores) or None
    known = cpu_range(None, None, cpu.cap_range)
    return api.CpuHardware(
        raw_model=cpu.raw,
        model=cpu.model,
        vendor=cpu.model.split(maxsplit=1)[0].lower() if cpu.model else None,
        sockets=cpu.sockets,
        total_cores=cores,
        cores_per_socket=cores // cpu.sockets or None if cores else None,
        cap_range=_cpu_cap_range(known),
        control_available=control,
        telemetry_available=telemetry,
        quality=cpu.quality.value,
        warnings=(*warnings, cpu.caveat) if cpu.caveat else warnings,
    )


def _gpu_hardware(gpu: GpuDevices, control: bool, telemetry: bool) -> api.GpuHardware:
    return api.GpuHardware(
        present=True,
        raw_model=gpu.raw,
        model=gpu.model,
        vendor=gpu.vendor.lower() if gpu.vendor else None,
        count=gpu.count,
        cap_range_per_gpu=_gpu_cap_range(gpu.cap_range),
        slicing=_slicing(gpu.raw or ""),
        control_available=control,
        telemetry_available=telemetry,
        quality=gpu.quality.value,
        warnings=(gpu.caveat,) if gpu.caveat else (),
    )


def _cpu_cap_range(known: CapRange | None) -> api.CpuCapRange | None:
    """CPU cap range to publish; its maximum is the base of percentages (100 %), which the twin takes for the TDP."""
    if known is None:
        return None
    return api.CpuCapRange(
        type=api.CapRangeType.PACKAGE.value, min_watts_per_socket=known.min_w, max_watts_per_socket=known.base_w
    )


def _gpu_cap_range(known: CapRange | None) -> api.GpuCapRange | None:
    if known is None:
        return None
    return api.GpuCapRange(min_watts=known.min_w, max_watts=known.max_w, default_watts=known.base_w)


def _landmarks(seen: Observation, model: CpuModel | None) -> api.CpuLandmarks | None:
    if not seen.policies:
        return None
    return api.CpuLandmarks(
        min_freq_mhz=min(policy.min_hz for policy in seen.policies) / _HZ_PER_MHZ,
        nominal_freq_mhz=model.base_hz / _HZ_PER_MHZ if model and model.base_hz else None,
        max_boost_mhz=max(policy.max_hz for policy in seen.policies) / _HZ_PER_MHZ,
    )


def gpu_vendor(raw_model: str) -> str | None:
    """Vendor of a GPU that is not in the catalogue, guessed from its name; None if unknown."""
    if _NVIDIA.search(raw_model):
        return "nvidia"
    return "amd" if _AMD.search(raw_model) else None


def _slicing(raw_model: str) -> api.GpuSlicing | None:
    """Slicing modes: time slicing on NVIDIA GPUs, and MIG on the models that support it; None for other vendors."""
    if not _NVIDIA.search(raw_model):
        return None
    partitioned = (api.SlicingMode.MIG.value,) if _MIG.search(normalised(raw_model)) else ()
    return api.GpuSlicing(supported=True, modes=(*partitioned, api.SlicingMode.TIME_SLICING.value))


def _mixed_models_warning(gpus: Sequence[PowerDevice]) -> tuple[str, ...]:
    models = sorted({gpu.model or "unknown" for gpu in gpus})
    return () if len(models) == 1 else (f"GPUs of several models, described by the first: {', '.join(models)}",)
