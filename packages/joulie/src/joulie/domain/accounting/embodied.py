"""Embodied emissions of nodes: what making and disposing of their hardware has emitted, by what pods reserve of it.

ISO/IEC 21031 (SCI) charges software ``M = TE * TS * RS``: total embodied emissions, times the time that it holds the
hardware over the expected lifespan, times the share of the resources that it reserves. A node has three parts, each
shared by the resource that it is reserved by: its GPUs by GPUs, its memory by bytes, all else by cores.

Sources of the factors, kgCO2eq, cradle to gate, each with a range:
- Server without CPUs, memory, GPUs and disks: Boavizta, BoaviztAPI (rack case 150, mainboard 66.1, assembly 6.68, two
  power supplies of 2.99 kg at 24.3 per kg); low: power supplies of 1 kg; high: 1000, the base of Davy, "Building an AWS
  EC2 Carbon Emissions Dataset" (Teads, 2021), from Dell's assessment of the R740.
- CPU package: Boavizta, 9.14 + 1.97 per cm2 of die, 0.491 cm2 and 0.245 per core (0.1 to 0.5); high: at least 100, as
  Teads has it.
- Memory: 533 for 384 GiB, "Life Cycle Assessment of Dell R740" (thinkstep, 2019); range: Boavizta's formula, 5.22 + 2.2
  per cm2, for modules of 32 GiB with 2.375 and 0.625 GB/cm2.
- GPU: NVIDIA, "Product Carbon Footprint Summary, HGX H100" (2025): 1312 for eight; low: a powerful GPU of EcoDiag
  (CNRS EcoInfo); high: the same summary of HGX B200, 2274 for eight.
- Lifespan: 4 years, as Boavizta and Teads take it for servers.
Disks, network and buildings are not known to Kubernetes, and are in no estimate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from joulie.domain.hardware.resolve import ResolvedHardware

G_PER_KG = 1000.0
SECONDS_PER_YEAR = 365.0 * 86400.0
LIFESPAN_S = 4.0 * SECONDS_PER_YEAR
PUBLIC_FACTORS = "estimate by public factors (Boavizta, Dell R740 LCA, NVIDIA PCF; without disks and network)"
_GB_PER_GIB = 1.024**3
_HYPERVISORS = ("aws", "azure", "gce", "ibm", "openstack", "vsphere")
"""Schemes of provider IDs of nodes that usually are a part of a server, whose other parts nobody here knows."""


@dataclass(frozen=True, slots=True)
class Spread:
    """An amount with its range, gCO2eq. Adds up: ranges of one method err together.

    Attributes:
        g: best estimate.
        low_g: lower end of the range.
        high_g: upper end of the range.
    """

    g: float = 0.0
    low_g: float = 0.0
    high_g: float = 0.0

    def __add__(self, other: Spread) -> Spread:
        return Spread(self.g + other.g, self.low_g + other.low_g, self.high_g + other.high_g)

    def __mul__(self, factor: float) -> Spread:
        return Spread(self.g * factor, self.low_g * factor, self.high_g * factor)


NO_EMISSIONS = Spread()


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of a node, or for how long they were reserved (share times seconds). Adds up.

    Attributes:
        cpu: of its cores.
        memory: of its memory.
        gpu: of its GPUs.
    """

    cpu: float = 0.0
    memory: float = 0.0
    gpu: float = 0.0

    def __add__(self, other: Shares) -> Shares:
        return Shares(self.cpu + other.cpu, self.memory + other.memory, self.gpu + other.gpu)

    def __mul__(self, factor: float) -> Shares:
        return Shares(self.cpu * factor, self.memory * factor, self.gpu * factor)


NO_SHARES = Shares()
WHOLE_NODE = Shares(1.0, 1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Asset:
    """Hardware of a node, as what it is booked by. Nodes of one kind are one asset.

    Attributes:
        name: what it is, for readers.
        source: where the figures come from.
        lifespan_s: expected lifespan, s.
        cpu: embodied emissions of all that is shared by cores: CPUs, mainboard, case.
        memory: of memory.
        gpu: of all GPUs.
    """

    name: str
    source: str
    lifespan_s: float = LIFESPAN_S
    cpu: Spread = NO_EMISSIONS
    memory: Spread = NO_EMISSIONS
    gpu: Spread = NO_EMISSIONS

    def charged(self, reserved_s: Shares) -> Spread:
        """M = TE * TS * RS of what was reserved (share times seconds)."""
        parts = self.cpu * reserved_s.cpu + self.memory * reserved_s.memory + self.gpu * reserved_s.gpu
        return parts * (1.0 / self.lifespan_s)


@dataclass(frozen=True, slots=True)
class Reservation:
    """What a pod reserves of its node; of the account of a node, all of it.

    Attributes:
        asset: the node's hardware; None where nobody knows its embodied emissions.
        shares: of it, 0..1 each.
    """

    asset: Asset | None
    shares: Shares


def estimated_asset(hardware: ResolvedHardware, memory_gb: float, provider_id: str) -> Asset | None:
    """A node's embodied emissions by public factors; None where its CPU or its part of a server is not known.

    Args:
        hardware: of the node.
        memory_gb: of the node, GB; 0 if unknown.
        provider_id: as its cloud names it; empty without one.
    """
    cpu = hardware.cpu
    is_part = cpu.share < 1.0 or provider_id.partition(":")[0] in _HYPERVISORS
    if is_part or cpu.model is None or cpu.cores <= 0.0 or memory_gb <= 0.0:
        return None
    # Modules come in steps of 8 GiB, of which the kernel keeps some.
    memory_gib = math.ceil(memory_gb / _GB_PER_GIB / 8.0) * 8
    cores_per_package = cpu.cores / cpu.sockets
    packages = Spread(
        9.14 + 1.97 * (0.491 + 0.245 * cores_per_package),
        9.14 + 1.97 * (0.491 + 0.1 * cores_per_package),
        max(100.0, 9.14 + 1.97 * (0.491 + 0.5 * cores_per_package)),
    )
    name = f"{cpu.sockets} x {cpu.model}, {memory_gib} GiB"
    gpus = 0
    if hardware.gpu is not None:
        gpus = hardware.gpu.count
        name += f", {gpus} x {hardware.gpu.model or hardware.gpu.raw or 'GPU'}"
    return Asset(
        name,
        PUBLIC_FACTORS,
        LIFESPAN_S,
        (_SERVER_KG + packages * cpu.sockets) * G_PER_KG,
        _MEMORY_KG_PER_GIB * (memory_gib * G_PER_KG),
        _GPU_KG * (gpus * G_PER_KG),
    )


_SERVER_KG = Spread(150.0 + 66.1 + 6.68 + 2.0 * 2.99 * 24.3, 150.0 + 66.1 + 6.68 + 2.0 * 24.3, 1000.0)
_MEMORY_KG_PER_GIB = Spread(533.0 / 384.0, 5.22 / 32.0 + 2.2 / 2.375, 5.22 / 32.0 + 2.2 / 0.625)
_GPU_KG = Spread(1312.0 / 8.0, 60.0, 2274.0 / 8.0)
