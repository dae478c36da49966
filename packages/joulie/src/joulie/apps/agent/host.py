"""Observation and power control of the machine that the agent runs on.

All calls block on devices: the agent runs them in threads, outside the event loop, CPUs and GPUs in different ones,
since a GPU driver may hang. The two share nothing but the file of the original limits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from joulie.adapters.cpu.cpuinfo import CpuInfo
from joulie.apps.agent.cpu import CpuControl, CpuFacts
from joulie.apps.agent.frequency import BACKEND as DVFS
from joulie.apps.agent.frequency import FrequencyWriter
from joulie.apps.agent.gpu_clocks import ClockReport, ClockStore, GpuClocks
from joulie.apps.agent.gpus import GpuBackends, Gpus, planned
from joulie.apps.agent.limits import LIFTED, LimitWriter, limited_devices
from joulie.apps.agent.metering import PowerMeter, PowerSample
from joulie.apps.agent.originals import LimitStore, OriginalLimits
from joulie.apps.agent.outcome import (
    NEVER_CHANGED,
    Outcome,
    format_cap,
    format_problems,
    observed,
    observed_without_cap,
)
from joulie.apps.agent.throttle import PowerReading, Throttle
from joulie.domain.actuation import LimitedDevice, WantedCap, cpu_range, socket_of, socket_range
from joulie.domain.dvfs import DvfsSettings
from joulie.domain.energy_counter import PLAUSIBLE_POWER_W, power_bound_w
from joulie.domain.hardware import CapRange, Catalogue
from joulie.domain.limit_records import LimitRecord
from joulie.domain.saved_records import ReportedLimits
from joulie.ports.devices import (
    ClockLimiter,
    DeviceKind,
    FrequencyLimiter,
    FrequencyPolicy,
    PowerDevice,
    PowerLimiter,
    PowerSource,
)


@dataclass(frozen=True)
class HostBackends:
    """Device backends of the host; candidates are in order of preference.

    Attributes:
        cpu_info: reads model, sockets and cores of the CPUs.
        cpu_limiters: backends of CPU package power limits.
        frequency: backend of CPU frequency limits.
        cpu_meters: sources of CPU power.
        gpus: backends of GPUs by vendor.
        gpus_on_bus: number of GPUs on the PCI bus by vendor, whether or not a driver responds.
        store: file of the original limits.
        catalogue: hardware catalogue.
        clocks: locks the SM clocks of GPUs; None where no backend can.
        clock_store: file of the GPUs whose SM clock may be locked.
    """

    cpu_info: Callable[[], CpuInfo]
    cpu_limiters: Sequence[PowerLimiter]
    frequency: FrequencyLimiter
    cpu_meters: Sequence[PowerSource]
    gpus: Sequence[GpuBackends]
    store: LimitStore
    catalogue: Catalogue
    gpus_on_bus: Callable[[], Mapping[str, int]] = dict
    clocks: ClockLimiter | None = None
    clock_store: ClockStore | None = None


@dataclass(frozen=True)
class Observation:
    """State of the host in one cycle.

    Attributes:
        cpu: model, sockets and cores of the CPUs.
        packages: CPU packages, or their dies, listed by the power limiter; empty without one.
        gpus: GPUs that respond; those seen last while there is a problem.
        gpu_problem: why the GPUs are not known now, None if they are.
        gpus_lost: GPUs that are left out, and why.
        gpus_exist: whether there are GPUs, known or not.
        gpus_indexed: whether the position of each GPU is its driver's index.
        policies: cpufreq policies.
        driver: cpufreq driver family; empty without one.
        cpu_range: cap range of one socket; None if unknown.
        cpu_control: whether the CPUs can be capped, by power or by frequency.
        gpu_control: whether the GPUs can be capped.
        cpu_measured: whether CPU power can be measured.
        gpu_measured: whether GPU power can be measured.
        cpu_power: CPU power and energy.
        gpu_power: GPU power and energy.
    """

    cpu: CpuInfo
    packages: tuple[PowerDevice, ...] = ()
    gpus: tuple[PowerDevice, ...] = ()
    policies: tuple[FrequencyPolicy, ...] = ()
    driver: str = ""
    cpu_range: CapRange | None = None
    cpu_control: bool = False
    gpu_control: bool = False
    cpu_measured: bool = False
    gpu_measured: bool = False
    cpu_power: PowerSample = field(default_factory=PowerSample)
    gpu_power: PowerSample = field(default_factory=PowerSample)
    gpu_problem: str | None = None
    gpus_lost: tuple[str, ...] = ()
    gpus_exist: bool = False
    gpus_indexed: bool = False

    @property
    def sockets(self) -> int | None:
        """Number of sockets, also those whose CPUs are all offline; None if nothing tells."""
        return max(self.cpu.sockets or 0, self.cpu_power.sockets, self.limited_sockets) or None

    @property
    def limited_sockets(self) -> int:
        """Number of sockets that the power limiter lists."""
        return len({socket_of(package.id) for package in self.packages})


class Host:
    """Observes the host and enforces caps on its devices.

    Attributes:
        cpu: CPU cap controller.
        cpu_meter: CPU power, by counters that may have to be read more often than once a cycle.

    Args:
        backends: device backends.
        dvfs: settings of the frequency controller.
        simulate_only: compute limits, but write none.
        gpu_clocks: whether the SM clocks of GPUs may be locked.
    """

    def __init__(
        self, backends: HostBackends, dvfs: DvfsSettings, *, simulate_only: bool = False, gpu_clocks: bool = False
    ) -> None:
        self._backends = backends
        self._model = ""
        self._originals = originals = OriginalLimits(backends.store)
        self._frequency = frequency = FrequencyWriter(backends.frequency, originals, dvfs, simulate_only=simulate_only)
        self._cpu_writer = LimitWriter(backends.cpu_limiters, originals, self._describe, simulate_only=simulate_only)
        self._cpu_planner = LimitWriter(backends.cpu_limiters, originals, self._describe, simulate_only=True)
        self._gpus = Gpus(backends.gpus, backends.gpus_on_bus, originals, self._describe, simulate_only=simulate_only)
        self._clocks: GpuClocks | None = None
        if backends.clocks is not None and backends.clock_store is not None:
            self._clocks = GpuClocks(
                backends.clocks, backends.clock_store, enabled=gpu_clocks, simulate_only=simulate_only
            )
        self.cpu = CpuControl(
            self._cpu_writer, frequency, Throttle(dvfs, throttle_pct=frequency.throttle_in_force_pct())
        )
        self._cpu_power_bound_w = PLAUSIBLE_POWER_W
        self.cpu_meter = PowerMeter(backends.cpu_meters, self._max_power_w)
        self._cpu_seen: Observation | None = None

    @property
    def observation(self) -> Observation | None:
        """Latest observation; None before the first of the CPUs."""
        cpu, gpu = self._cpu_seen, self._gpus.seen
        if cpu is None:
            return None
        return replace(
            cpu,
            gpus=gpu.gpus,
            gpu_problem=gpu.problem,
            gpus_lost=gpu.lost,
            gpus_exist=gpu.exist,
            gpus_indexed=gpu.indexed,
            gpu_control=gpu.control,
            gpu_measured=gpu.measured,
            gpu_power=gpu.power,
        )

    def observe_cpu(self, now_s: float) -> None:
        """Read CPUs, their limits and their power; `now_s` is monotonic time, s."""
        backends = self._backends
        power = self.cpu_meter.read(now_s)  # first, since this is the time that it is now
        info = backends.cpu_info()
        self._model = info.model or self._model
        packages = tuple(self._cpu_writer.devices())
        self._cpu_power_bound_w = self._package_power_bound_w(packages)
        limited = self._cpu_writer.available_backend() != "none"
        self._cpu_seen = Observation(
            cpu=info,
            packages=packages,
            policies=tuple(self._frequency.policies()),
            driver=backends.frequency.driver,
            cpu_range=self._socket_range(packages),
            cpu_control=limited or backends.frequency.unavailable() is None,
            cpu_measured=self.cpu_meter.source is not None,
            cpu_power=power.required_of((package.id for package in packages), info.sockets),
        )

    def observe_gpu(self, now_s: float) -> None:
        """Read GPUs, their limits and their power; `now_s` is monotonic time, s."""
        self._gpus.observe(now_s)

    def recall(self, reported: ReportedLimits, at_epoch_s: float) -> None:
        """Note limits that an earlier process reported, and when, in case its saved limits were lost."""
        self._originals.note_reported(reported, at_epoch_s)
        if reported.backend == DVFS:
            # Frequency is limited where power limits failed: these may have been clipped, or be of an earlier cap.
            for limiter in self._backends.cpu_limiters:
                self._originals.note_reported(replace(reported, backend=limiter.name), at_epoch_s)
        elif not reported.complete and any(limiter.name == reported.backend for limiter in self._backends.cpu_limiters):
            # Where power limits work again, those of the frequency may not be restored yet; theirs are recognised.
            self._originals.note_reported(ReportedLimits(DVFS, complete=True), at_epoch_s)

    @property
    def gpu_records(self) -> Mapping[str, LimitRecord]:
        """Limits that Joulie had replaced when the GPUs were last observed, by GPU."""
        return self._gpus.records

    @property
    def gpu_resets(self) -> Mapping[str, int]:
        """Times that another program replaced a limit of Joulie's by a higher one, by GPU."""
        return self._gpus.resets

    def why_not_alive(self) -> str | None:
        """Why the agent must be restarted: a GPU driver was replaced; None if it need not."""
        return self._gpus.why_not_alive()

    def hold_gpus(self, reason: str | None, of: str | None = None) -> None:
        """Disconnect from the GPU drivers of a vendor, or of all, as long as there is a reason to; see `Gpus.hold`."""
        self._gpus.hold(reason, of)

    def enforce_cpu(self, cap: WantedCap, now_s: float) -> Outcome:
        """Apply a cap to the CPUs; requires an earlier `observe_cpu`."""
        seen = self._observed()
        sockets = seen.sockets or 1
        power = seen.cpu_power
        reading = PowerReading(power.package_power_w, seen.cpu_measured, format_problems(power.problems))
        return self._recallable(self.cpu.enforce(cap, CpuFacts(seen.cpu_range, sockets, reading), now_s))

    def enforce_gpu(self, cap: WantedCap) -> Outcome:
        """Apply a cap to the GPUs."""
        return self._recallable(self._gpus.enforce(cap))

    def enforce_clocks(self, asked_hz: Mapping[str, float]) -> None:
        """Bring the SM clocks of GPUs to these maxima, Hz, and take the locks of the others away."""
        if self._clocks is not None:
            self._clocks.enforce(asked_hz)

    @property
    def gpu_clocks(self) -> Mapping[str, ClockReport]:
        """SM clocks after the last `enforce_clocks`, by GPU."""
        return {} if self._clocks is None else self._clocks.seen

    def plan_cpu(self, cap: WantedCap) -> Outcome:
        """What a cap on the CPUs would do, in observe mode; nothing is written."""
        limited = planned(self._cpu_planner, cap)
        if limited.backend != "none" or self._backends.frequency.unavailable() is not None:
            return limited
        if cap.lifted:
            return observed_without_cap(DVFS)
        return observed(DVFS, f"the frequency limited{format_cap(cap)}; {limited.message}")

    def plan_gpu(self, cap: WantedCap) -> Outcome:
        """What a cap on the GPUs would do, in observe mode; nothing is written."""
        return self._gpus.plan(cap)

    def lift_cpu(self, now_s: float) -> Outcome:
        """Lift all caps on the CPUs, including those left by an earlier process."""
        self.observe_cpu(now_s)
        return self.enforce_cpu(LIFTED, now_s)

    def _recallable(self, outcome: Outcome) -> Outcome:
        """The outcome as a later process may take it, which counts reported limits as lost where it finds no file."""
        return replace(outcome, message=outcome.message + NEVER_CHANGED) if self._originals.never_saved else outcome

    def _observed(self) -> Observation:
        if self._cpu_seen is None:
            raise RuntimeError("no observation of the host yet: call observe_cpu before enforcing a cap")
        return self._cpu_seen

    def _max_power_w(self, device_id: str) -> float:
        """The most that a RAPL domain can draw, W; nothing is known of others than packages and their cores."""
        return self._cpu_power_bound_w if device_id.startswith(("package-", "core-")) else PLAUSIBLE_POWER_W

    def _package_power_bound_w(self, packages: Sequence[PowerDevice]) -> float:
        model = self._backends.catalogue.cpu(self._model).model if self._model else None
        known_w = [limit_w for package in packages for limit_w in (package.max_w, package.limit_w)]
        return power_bound_w((*known_w, model.cap_range.max_w if model else None))

    def _describe(self, devices: Sequence[PowerDevice]) -> list[LimitedDevice]:
        if not self._model:  # not read yet: a cap would be another one than with the model's range
            devices = [
                replace(device, limit_w=None) if device.kind is DeviceKind.CPU_PACKAGE else device for device in devices
            ]
        return limited_devices(devices, self._backends.catalogue, self._model)

    def _socket_range(self, packages: Sequence[PowerDevice]) -> CapRange | None:
        sockets: dict[str, list[CapRange | None]] = {}
        for device in self._describe(packages):
            sockets.setdefault(socket_of(device.id), []).append(device.limits)
        ranges = (known for dies in sockets.values() if (known := socket_range(dies)) is not None)
        if found := next(ranges, None):
            return found
        model = self._backends.catalogue.cpu(self._model).model if self._model else None
        return cpu_range(None, None, model.cap_range if model else None)
