"""What a machine is made of, and the work that it is given. Values, without state."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

INTEL_ENERGY_UNIT_J = 61.035e-6
"""Resolution of package counters of Intel servers as the kernel rounds it; 32 bits of it wrap at 262,143 J."""

AMD_ENERGY_UNIT_J = 15.258e-6
"""Resolution of AMD's package counters; 32 bits of it wrap at 65,532 J."""

DRAM_ENERGY_UNIT_J = 15.3e-6
"""Resolution of DRAM counters of Intel servers; 32 bits of it wrap at 65,713 J."""


@dataclass(frozen=True)
class Rapl:
    """RAPL zones as powercap shows them.

    Attributes:
        limits: whether packages have power limits; AMD's have energy counters only.
        locked: the firmware has locked the limits: `enabled` reads 0, writes are refused.
        max_power: whether the long-term limit states a maximum; else `max_power_uw` reads 0.
        limit_w: long-term limit after a boot, W; None for the TDP.
        window_s: time window of the long-term limit, s.
        energy_unit_j: resolution of the packages' counters, J.
        dram: packages have a DRAM zone.
        core: packages have a core zone.
        uncore: packages have an uncore zone.
        psys: there is a platform zone.
        mmio: the packages are listed a second time, by intel-rapl-mmio.
    """

    limits: bool = True
    locked: bool = False
    max_power: bool = True
    limit_w: float | None = None
    window_s: float = 0.999424
    energy_unit_j: float = INTEL_ENERGY_UNIT_J
    dram: bool = False
    core: bool = False
    uncore: bool = False
    psys: bool = False
    mmio: bool = False


@dataclass(frozen=True)
class Cpufreq:
    """A scaling driver.

    Attributes:
        driver: as scaling_driver names it.
        cpus_per_policy: logical CPUs that change frequency together.
        table_hz: frequencies that the driver can set, ascending; empty where it sets any.
    """

    driver: str
    cpus_per_policy: int = 1
    table_hz: tuple[float, ...] = ()


@dataclass(frozen=True)
class Hsmp:
    """Socket power limits through /dev/hsmp; the firmware clips limits to the range, W."""

    min_w: float
    max_w: float


@dataclass(frozen=True)
class Cpu:
    """One kind of socket.

    Attributes:
        model: model name as /proc/cpuinfo prints it; empty on Arm.
        vendor: ``GenuineIntel``, ``AuthenticAMD`` or empty on Arm.
        cores: cores of a socket.
        tdp_w: thermal design power of a socket, W.
        idle_w: power of a socket in its deepest package idle state, W.
        peak_w: power of a socket at full load and maximum frequency, were it not limited, W.
        min_hz: minimum frequency, Hz.
        max_hz: maximum frequency, Hz.
        threads_per_core: 2 with simultaneous multithreading.
    """

    model: str
    vendor: str
    cores: int
    tdp_w: float
    idle_w: float
    peak_w: float
    min_hz: float
    max_hz: float
    threads_per_core: int = 2


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU; powers in W.

    Attributes:
        model: name as the driver prints it.
        vendor: ``nvidia`` or ``amd``.
        idle_w: power without work.
        min_w: minimum power limit.
        default_w: power limit after a boot.
        max_w: maximum power limit.
        pci_device: PCI device id as the kernel prints it; AMD only.
        max_sm_hz: largest SM clock, Hz; 0 where it cannot be locked.
    """

    model: str
    vendor: str
    idle_w: float
    min_w: float
    default_w: float
    max_w: float
    pci_device: str = ""
    max_sm_hz: float = 0.0


def amd_unique_id(number: int) -> str:
    """The unique id of a machine's GPU, as the amdgpu driver writes it."""
    return f"{number + 0x1000:016x}"


@dataclass(frozen=True)
class Spec:
    """A machine.

    Attributes:
        name: as commands and tests name it.
        title: what it stands for.
        cpu: its sockets.
        sockets: number of sockets.
        dies: RAPL packages of a socket.
        rapl: powercap zones; None without the driver.
        cpufreq: frequency scaling; None without a driver.
        hsmp: AMD's host system management port; None without the driver.
        gpu: its GPUs; None without.
        gpus: number of GPUs.
        other_gpu: GPUs of a second vendor; None without.
        other_gpus: number of them.
        sources: public pages that the figures come from; what none of them states is an assumption.
    """

    name: str
    title: str
    cpu: Cpu
    sockets: int = 2
    dies: int = 1
    rapl: Rapl | None = None
    cpufreq: Cpufreq | None = None
    hsmp: Hsmp | None = None
    gpu: Gpu | None = None
    gpus: int = 0
    other_gpu: Gpu | None = None
    other_gpus: int = 0
    sources: tuple[str, ...] = ()

    @property
    def packages(self) -> int:
        """Number of RAPL packages."""
        return self.sockets * self.dies

    @property
    def gpu_kinds(self) -> tuple[Gpu, ...]:
        """Kind of each GPU."""
        first = (self.gpu,) * self.gpus if self.gpu else ()
        return first + ((self.other_gpu,) * self.other_gpus if self.other_gpu else ())

    @property
    def gpu_ids(self) -> tuple[str, ...]:
        """ID of each GPU, as the agent names it."""
        return tuple(
            f"GPU-{number if kind.vendor == 'nvidia' else amd_unique_id(number)}"
            for number, kind in enumerate(self.gpu_kinds)
        )

    @property
    def threads_per_package(self) -> int:
        """Logical CPUs of a RAPL package."""
        return self.cpu.cores // self.dies * self.cpu.threads_per_core

    @property
    def package_max_w(self) -> float:
        """TDP of a RAPL package, W."""
        return self.cpu.tdp_w / self.dies


@dataclass(frozen=True)
class Load:
    """Work wanted over time, as a share of what CPUs and GPUs could do at maximum frequency.

    Attributes:
        steps: start, s, and share from then on, 0 to 1; ascending, from 0 s.
        period_s: time after which the steps start again, s; None to keep the last one.
    """

    steps: tuple[tuple[float, float], ...] = ((0.0, 1.0),)
    period_s: float | None = None

    def __post_init__(self) -> None:
        starts = [start for start, _ in self.steps]
        if not starts or starts[0] != 0.0 or starts != sorted(set(starts)):
            raise ValueError("a load's steps start at 0 s and ascend")
        if not all(0.0 <= share <= 1.0 for _, share in self.steps):
            raise ValueError("a load's shares are from 0 to 1")
        if self.period_s is not None and self.period_s <= starts[-1]:
            raise ValueError("a load's period is longer than its last step's start")

    @classmethod
    def parse(cls, text: str) -> Self:
        """``0.8``, or steps such as ``0:0.2,60:1.0``, with ``/120`` at the end for a period of 120 s.

        Raises:
            ValueError: the text is not a load.
        """
        steps, _, period = text.partition("/")
        if ":" not in steps:
            return cls(((0.0, float(steps)),))
        pairs = (step.split(":") for step in steps.split(","))
        return cls(tuple((float(start), float(share)) for start, share in pairs), float(period) if period else None)

    def text(self) -> str:
        """As `parse` reads it."""
        steps = ",".join(f"{start:g}:{share:g}" for start, share in self.steps)
        return steps if self.period_s is None else f"{steps}/{self.period_s:g}"

    def pieces(self, from_s: float, until_s: float) -> Iterator[tuple[float, float]]:
        """Durations, s, and shares between two times."""
        starts = [start for start, _ in self.steps]
        while from_s < until_s:
            place_s = from_s % self.period_s if self.period_s else from_s
            index = bisect_right(starts, place_s)
            next_s = starts[index] if index < len(starts) else self.period_s or float("inf")
            end_s = min(until_s, from_s + max(next_s - place_s, 1e-9))
            yield end_s - from_s, self.steps[index - 1][1]
            from_s = end_s
