"""Simulated nodes: their hardware, and what loads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from joulie.domain.hardware import CpuModel, GpuModel
from joulie.domain.units import BoolArray, FloatArray, positive
from joulie_lab.simulation.gpu_response import N_PARAMETERS


@dataclass(frozen=True)
class NodeSpec:
    """Hardware of a simulated node.

    Attributes:
        name: node name.
        cpu: CPU model.
        sockets: number of CPU packages.
        cores: allocatable cores.
        gpu: GPU model; None without GPUs.
        gpus: number of GPUs.
    """

    name: str
    cpu: CpuModel
    sockets: int
    cores: float
    gpu: GpuModel | None = None
    gpus: int = 0

    def __post_init__(self) -> None:
        positive("sockets", self.sockets)
        positive("cores", self.cores)
        if (self.gpu is None) != (self.gpus == 0):
            raise ValueError(f"invalid node {self.name}: a GPU model and a GPU count belong together")


@dataclass(frozen=True, eq=False)
class FleetLoad:
    """Load of the nodes: arrays of shape ``(n_nodes,)`` for CPUs and ``(n_nodes, n_devices)`` for GPUs.

    `n_devices` is the maximum number of GPUs of a node; devices that a node does not have are not busy.

    Attributes:
        cpu_util: share of the node's cores in use, 0..1.
        memory_intensity: memory intensity of the CPU work, 0..1.
        io_intensity: I/O intensity of the CPU work, 0..1.
        gpu_busy: whether a pod holds the GPU, or a share of it.
        gpu_util: utilisation of each GPU, 0..1.
        gpu_memory_share: share of the GPU's work that is memory-bound, 0..1.
        gpu_deviation: how its job responds to a limit, a `JobDeviation`, shape ``(n_nodes, n_devices, 3)``.
    """

    cpu_util: FloatArray
    memory_intensity: FloatArray
    io_intensity: FloatArray
    gpu_busy: BoolArray
    gpu_util: FloatArray
    gpu_memory_share: FloatArray
    gpu_deviation: FloatArray

    @classmethod
    def idle(cls, n_nodes: int, n_devices: int = 1) -> FleetLoad:
        """Load of nodes on which nothing runs."""
        cpu_util, memory, io = np.zeros((3, n_nodes))
        gpu_util, gpu_memory = np.zeros((2, n_nodes, n_devices))
        deviation = np.zeros((n_nodes, n_devices, N_PARAMETERS))
        return cls(
            cpu_util, memory, io, np.zeros((n_nodes, n_devices), dtype=np.bool_), gpu_util, gpu_memory, deviation
        )


class GpuJob(Protocol):
    """A job with a response of its own to its GPU's power limit."""

    def operate(self, limit_w: float) -> tuple[float, float]:
        """Power of the GPU, W, and rate of work as a share of that without a limit."""
