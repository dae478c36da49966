"""A machine's state and physics: power by load, limits and frequency, and the counters that run with it.

Time is an argument. The power of a package is that of its idle state, or what keeps it awake plus the switching power
of its busy cores, proportional to f V(f)^2 with a voltage that is affine in the frequency. A running average power
limit lets a package draw more than the limit, up to the short-term limit, until the exponential average over its time
window reaches the limit; from there on it draws the limit (Intel, Software Developer's Manual, volume 3B, RAPL).
Shapes of curves are assumptions; they obey the limits as hardware does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from joulie_lab.machines.gpu_clock import ClockPower
from joulie_lab.machines.specs import DRAM_ENERGY_UNIT_J, INTEL_ENERGY_UNIT_J, Gpu, Load, Spec

POWER_UNIT_W = 0.125
"""RAPL's power unit on Intel, W."""

_RAW_LIMIT_MASK = 0x7FFF
_COUNTER_STATES = 2**32
_AWAKE_SHARE = 0.1
_VOLTAGE_AT_0_HZ = 0.5
_SHORT_TERM_FACTOR = 1.2
_GRUB, _KEXEC = 0x72, 0xD0
"""Loader and version, of four bits each, as the boot protocol of x86 has them."""
_DRAM_W, _PLATFORM_W = 20.0, 150.0
_CORE_SHARE = 0.6
_UNCORE_SHARE = 0.1
_GPU_TRANSITION, _GPU_CLOCK_FLOOR, _GPU_CLOCK_SENSITIVITY = 0.6, 0.1, 0.5


def in_power_units(limit_w: float) -> float:
    """A limit as the register holds it: rounded down to power units, higher bits lost."""
    return (math.floor(limit_w / POWER_UNIT_W) & _RAW_LIMIT_MASK) * POWER_UNIT_W


@dataclass
class Limits:
    """Limit registers of a package: long and short term, W.

    Attributes:
        power_w: by constraint, long term first.
        window_s: by constraint.
        enabled: whether the long-term limit holds.
    """

    power_w: list[float]
    window_s: list[float]
    enabled: bool = True


@dataclass
class Package:
    """State of a RAPL package.

    Attributes:
        limits: its registers by control type: intel-rapl, and intel-rapl-mmio where there is one.
        hsmp_w: limit set through HSMP, W; of a socket, in its first package.
        policy_max_hz: limit of each cpufreq policy, Hz.
        average_w: running average that the long-term limit applies to, W.
        power_w: power now, W.
        energy_j: energy since the boot, J.
        dram_j: energy of its memory since the boot, J.
    """

    limits: dict[str, Limits]
    hsmp_w: float | None
    policy_max_hz: list[float]
    policy_min_hz: list[float]
    average_w: float
    power_w: float
    energy_j: float = 0.0
    dram_j: float = 0.0


@dataclass
class GpuState:
    """State of a GPU.

    Attributes:
        limit_w: power limit, W.
        power_w: power now, W.
        energy_j: energy since the boot, J.
        locked_hz: maximum that the SM clock is locked to, Hz; None without a lock.
        share: its work now, of what it could do.
    """

    limit_w: float
    power_w: float
    energy_j: float = 0.0
    locked_hz: float | None = None
    share: float = 0.0

    def run(self, kind: Gpu, share: float, duration_s: float) -> None:
        """Let time pass with a share of the work that it could do."""
        self.share = share
        self.power_w = min(self._wanted_w(kind), self.limit_w)
        if self.locked_hz is not None and share > 0.0:
            self.power_w = min(float(self._curve(kind).power_w(self._locked(kind))), self.limit_w)
        self.energy_j += self.power_w * duration_s

    def clock(self, kind: Gpu) -> float:
        """SM clock under load now, as a share of the largest."""
        return min(self._locked(kind), float(self._curve(kind).clock_under(self.limit_w, _GPU_CLOCK_FLOOR)))

    def speed(self, kind: Gpu) -> float:
        """Work that it does now, over that at the largest clock."""
        return 1.0 / (1.0 - _GPU_CLOCK_SENSITIVITY + _GPU_CLOCK_SENSITIVITY / self.clock(kind))

    def _curve(self, kind: Gpu) -> ClockPower:
        """Of the wanted power above idle, half is linear, half begins at the transition."""
        half_w = (self._wanted_w(kind) - kind.idle_w) / 2.0
        return ClockPower(kind.idle_w, half_w, half_w / (1.0 - _GPU_TRANSITION) ** 2, _GPU_TRANSITION)

    def _wanted_w(self, kind: Gpu) -> float:
        return kind.idle_w + self.share * (kind.max_w - kind.idle_w)

    def _locked(self, kind: Gpu) -> float:
        return min(1.0, self.locked_hz / kind.max_sm_hz) if self.locked_hz and kind.max_sm_hz else 1.0


@dataclass
class Machine:
    """A machine that runs.

    Attributes:
        spec: what it is made of.
        load: its work.
        now_s: time up to which its state is known, s.
        boots: number of boots.
        loader: what started the kernel, as x86 kernels tell it.
    """

    spec: Spec
    load: Load = field(default_factory=Load)
    now_s: float = 0.0
    boots: int = 0
    loader: int = _GRUB

    def __post_init__(self) -> None:
        self.boot()

    @property
    def boot_id(self) -> str:
        """The kernel's random boot id; here by the number of boots."""
        return f"00000000-0000-4000-8000-{self.boots:012d}"

    def boot(self) -> None:
        """Start with the firmware's limits and counters at 0."""
        spec = self.spec
        self.boots += 1
        self.loader = _GRUB
        self.booted_s = self.now_s
        self.offline: set[int] = set()  # policies whose CPUs are all offline
        self.platform_j = 0.0
        self.packages = [self._new_package() for _ in range(spec.packages)]
        self.gpus = [GpuState(gpu.default_w, gpu.idle_w) for gpu in spec.gpu_kinds]

    def kexec(self) -> None:
        """Start another kernel, which resets no device; the limits of frequencies are the kernel's own."""
        self.boots += 1
        self.loader = _KEXEC
        self.booted_s = self.now_s
        for package in self.packages:
            package.policy_max_hz = self._new_package().policy_max_hz
        self.reload_gpu_driver()

    def reload_gpu_driver(self) -> None:
        """Load the driver of the GPUs anew, which forgets locked clocks."""
        for gpu in self.gpus:
            gpu.locked_hz = None

    def advance(self, now_s: float) -> None:
        """Let time pass, with the limits that are in force."""
        if now_s <= self.now_s:
            return
        for duration_s, share in self.load.pieces(self.now_s, now_s):
            for package in self.packages:
                self._run_package(package, share, duration_s)
            for gpu, kind in zip(self.gpus, self.spec.gpu_kinds, strict=True):
                gpu.run(kind, share, duration_s)
            watts = sum(package.power_w for package in self.packages) + _PLATFORM_W
            self.platform_j += watts * duration_s
        self.now_s = now_s

    def counter_uj(self, energy_j: float, unit_j: float) -> int:
        """An energy counter of 32 bits as powercap shows it, microjoules."""
        return math.floor(math.floor(energy_j / unit_j) % _COUNTER_STATES * unit_j * 1e6)

    def demand_w(self, share: float, frequency_hz: float) -> float:
        """Power of a package without power limits, W.

        Args:
            share: work wanted, of what it could do at maximum frequency.
            frequency_hz: its frequency; below the maximum, cores are busy for longer.
        """
        cpu, dies = self.spec.cpu, self.spec.dies
        if share <= 0.0:
            return cpu.idle_w / dies
        relative = frequency_hz / cpu.max_hz
        busy = min(1.0, share / relative)
        voltage = _VOLTAGE_AT_0_HZ + (1.0 - _VOLTAGE_AT_0_HZ) * relative
        span_w = cpu.peak_w - cpu.idle_w
        awake_w = cpu.idle_w + _AWAKE_SHARE * span_w
        return (awake_w + (1.0 - _AWAKE_SHARE) * span_w * busy * relative * voltage**2) / dies

    def _new_package(self) -> Package:
        spec, rapl = self.spec, self.spec.rapl
        limits = {}
        if rapl is not None and rapl.limits:
            long_w = in_power_units(rapl.limit_w or spec.package_max_w)
            short_w = in_power_units(long_w * _SHORT_TERM_FACTOR)
            for control_type in ("intel-rapl", *(["intel-rapl-mmio"] if rapl.mmio else [])):
                limits[control_type] = Limits([long_w, short_w], [rapl.window_s, 0.00244], not rapl.locked)
        per_policy = spec.cpufreq.cpus_per_policy if spec.cpufreq else 1
        policies = spec.threads_per_package // per_policy if spec.cpufreq else 0
        idle_w = spec.cpu.idle_w / spec.dies
        return Package(
            limits,
            spec.cpu.tdp_w if spec.hsmp else None,
            [spec.cpu.max_hz] * policies,
            [spec.cpu.min_hz] * policies,
            idle_w,
            idle_w,
        )

    def _run_package(self, package: Package, share: float, duration_s: float) -> None:
        cpu = self.spec.cpu
        limits_hz = package.policy_max_hz
        frequency_hz = sum(limits_hz) / len(limits_hz) if limits_hz else cpu.max_hz
        wanted_w, floor_w = self.demand_w(share, frequency_hz), self.demand_w(share, cpu.min_hz)
        socket_w = package.hsmp_w if package.hsmp_w is not None else math.inf
        wanted_w = min(wanted_w, max(socket_w, floor_w))
        running = [limits for limits in package.limits.values() if limits.enabled]
        strictest = min(running, key=lambda limits: limits.power_w[0], default=None)
        if strictest is None:
            energy_j, power_w = wanted_w * duration_s, wanted_w
        else:
            energy_j, power_w = _under_average_limit(package, strictest, wanted_w, floor_w, duration_s)
        package.energy_j += energy_j
        package.power_w = power_w
        package.dram_j += _DRAM_W * (0.3 + 0.7 * share) / self.spec.dies * duration_s

    def zone_j(self, zone: str, package: Package) -> tuple[float, float]:
        """Energy of a RAPL zone and the resolution of its counter, J."""
        unit_j = self.spec.rapl.energy_unit_j if self.spec.rapl else INTEL_ENERGY_UNIT_J
        energy_j = {
            "package": package.energy_j,
            "core": package.energy_j * _CORE_SHARE,
            "uncore": package.energy_j * _UNCORE_SHARE,
            "dram": package.dram_j,
            "psys": self.platform_j,
        }[zone]
        return energy_j, DRAM_ENERGY_UNIT_J if zone == "dram" else unit_j


def _under_average_limit(
    package: Package, limits: Limits, wanted_w: float, floor_w: float, duration_s: float
) -> tuple[float, float]:
    """Energy, J, and power at the end, W, under a running average limit; moves the average."""
    window_s = limits.window_s[0]
    limit_w = max(limits.power_w[0], floor_w)
    average_w = package.average_w
    if wanted_w <= limit_w:
        package.average_w = wanted_w + (average_w - wanted_w) * math.exp(-duration_s / window_s)
        return wanted_w * duration_s, wanted_w
    burst_w = max(limit_w, min(wanted_w, limits.power_w[1]))
    burst_s = 0.0
    if average_w < limit_w < burst_w:
        burst_s = min(duration_s, window_s * math.log((burst_w - average_w) / (burst_w - limit_w)))
    if burst_s == duration_s and burst_s > 0.0:
        package.average_w = burst_w + (average_w - burst_w) * math.exp(-duration_s / window_s)
        return burst_w * duration_s, burst_w
    package.average_w = limit_w
    return burst_w * burst_s + limit_w * (duration_s - burst_s), limit_w
