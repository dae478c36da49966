"""Power of nodes that nobody measures, estimated from what their pods request: the last source, and shown as such."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from joulie.domain.hardware import Catalogue
from joulie.domain.hardware.resolve import ResolvedHardware
from joulie.domain.marginal import CPU_LOAD, GPU_COEFFICIENT_STANDARD
from joulie.domain.power.cpu import CpuPower
from joulie.domain.power.gpu import natural_power_w
from joulie.domain.units import FloatArray, finite, non_negative, positive


def requested_power_w(
    hardware: Sequence[ResolvedHardware],
    requested_cores: npt.ArrayLike,
    requested_gpus: npt.ArrayLike,
    catalogue: Catalogue,
    *,
    cpu_cap_percent: npt.ArrayLike = 100.0,
    gpu_cap_percent: npt.ArrayLike = 100.0,
) -> FloatArray:
    """Expected power of the CPU packages and GPUs of nodes, W, shape ``(n_nodes,)``.

    Requested cores are expected to be busy to 70 %, requested GPUs to 65 %, as marginal power has it; what that draws,
    idle power included, is what the catalogue's curves say of the model. Caps limit it.

    Args:
        hardware: of each node. Nodes that share an object are worked out together.
        requested_cores: by running pods, shape ``(n_nodes,)``.
        requested_gpus: by running pods, shape ``(n_nodes,)``.
        catalogue: known models.
        cpu_cap_percent: CPU cap in force, percent of the TDP.
        gpu_cap_percent: GPU cap in force, percent of the default limit.

    Returns:
        Power; NaN for a node of whose CPU or GPUs the catalogue has no curve.

    Raises:
        InvalidQuantityError: an input is NaN or out of range.
    """
    cores = non_negative("requested_cores", requested_cores)
    gpus = non_negative("requested_gpus", requested_gpus)
    cpu_cap = _caps("cpu_cap_percent", cpu_cap_percent, cores.shape)
    gpu_cap = _caps("gpu_cap_percent", gpu_cap_percent, cores.shape)
    power_w = np.full(cores.shape, np.nan)
    kinds = {id(one): one for one in hardware}
    kind_of_node = np.array([id(one) for one in hardware], dtype=np.int64)
    for identity, kind in kinds.items():
        of_kind = np.flatnonzero(kind_of_node == identity)
        power_w[of_kind] = _cpu_w(kind, cores[of_kind], cpu_cap[of_kind], catalogue) + _gpu_w(
            kind, gpus[of_kind], gpu_cap[of_kind], catalogue
        )
    return power_w


def _caps(quantity: str, percent: npt.ArrayLike, shape: tuple[int, ...]) -> FloatArray:
    return np.broadcast_to(positive(quantity, finite(quantity, percent, maximum=100.0)), shape)


def _cpu_w(kind: ResolvedHardware, cores: FloatArray, cap_percent: FloatArray, catalogue: Catalogue) -> FloatArray:
    cpu = kind.cpu
    model = None if cpu.model is None else catalogue.cpu(cpu.model).model
    tdp_w = kind.cpu_max_w
    if model is None or tdp_w is None or cpu.cores <= 0.0:
        return np.full(cores.shape, np.nan)
    busy = CPU_LOAD * np.minimum(1.0, cores / cpu.cores)
    return CpuPower.of(model, cpu.sockets).operate(busy, tdp_w * cap_percent / 100.0).package_w


def _gpu_w(kind: ResolvedHardware, gpus: FloatArray, cap_percent: FloatArray, catalogue: Catalogue) -> FloatArray:
    devices = kind.gpu
    if devices is None:
        return np.zeros(gpus.shape)
    model = None if devices.model is None else catalogue.gpu(devices.model).model
    if model is None or devices.cap_range is None:
        return np.full(gpus.shape, np.nan)
    limit_w = devices.cap_range.base_w
    busy_w = natural_power_w(model.idle_w, max(limit_w, model.idle_w), GPU_COEFFICIENT_STANDARD)
    used = np.minimum(gpus, devices.count)
    return used * np.minimum(busy_w, limit_w * cap_percent / 100.0) + (devices.count - used) * model.idle_w
