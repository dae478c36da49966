"""The GPUs of the host: those of each vendor are operated by its own backends, side by side.

A cap is in force only where it is on the GPUs of all vendors. Vendors without GPUs are left alone, but for limits of an
earlier cycle, which are restored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from joulie.apps.agent.limits import LimitWriter
from joulie.apps.agent.metering import PowerMeter, PowerSample
from joulie.apps.agent.originals import OriginalLimits
from joulie.apps.agent.outcome import Outcome, all_of, format_cap, format_limits, observed, observed_without_cap
from joulie.domain.actuation import LimitedDevice, WantedCap
from joulie.domain.limit_records import LimitRecord
from joulie.ports.devices import DriverClient, PowerDevice, PowerLimiter, PowerSource


@dataclass(frozen=True)
class GpuBackends:
    """Backends of one vendor's GPUs; candidates are in order of preference.

    Attributes:
        vendor: as `joulie.adapters.gpu.pci.gpus_on_bus` names it.
        limiters: backends of power limits.
        meters: sources of power.
        clients: connections to drivers, which are given up for driver upgrades.
    """

    vendor: str
    limiters: Sequence[PowerLimiter]
    meters: Sequence[PowerSource] = ()
    clients: Sequence[DriverClient] = ()


@dataclass(frozen=True)
class GpuObservation:
    """State of the host's GPUs in one cycle.

    Attributes:
        gpus: GPUs that respond; those of a vendor with a problem are those seen last.
        problem: why not all GPUs are known now, None if they are.
        lost: GPUs that are left out, and why.
        exist: whether there are GPUs, known or not.
        indexed: whether the position of each GPU is its driver's index: all respond and are of one vendor.
        control: whether the GPUs can be capped.
        measured: whether GPU power can be measured.
        power: GPU power and energy.
    """

    gpus: tuple[PowerDevice, ...] = ()
    problem: str | None = None
    lost: tuple[str, ...] = ()
    exist: bool = False
    indexed: bool = False
    control: bool = False
    measured: bool = False
    power: PowerSample = field(default_factory=PowerSample)


class Gpus:
    """Observes GPUs and enforces caps on them.

    Args:
        backends: of each vendor.
        on_bus: number of GPUs on the PCI bus by vendor, whether or not a driver responds.
        originals: store of the original limits.
        describe: adds cap ranges to devices.
        simulate_only: compute limits, but write none.
    """

    def __init__(
        self,
        backends: Sequence[GpuBackends],
        on_bus: Callable[[], Mapping[str, int]],
        originals: OriginalLimits,
        describe: Callable[[Sequence[PowerDevice]], Sequence[LimitedDevice]],
        *,
        simulate_only: bool = False,
    ) -> None:
        self._vendors = [_Vendor(one, originals, describe, simulate_only=simulate_only) for one in backends]
        self._read_bus = on_bus
        self._on_bus: Mapping[str, int] | None = None
        self.seen = GpuObservation(problem="not read yet")
        """The latest observation."""
        self.records: Mapping[str, LimitRecord] = {}
        """Limits that Joulie had replaced when the GPUs were last observed, by GPU."""
        self.resets: Mapping[str, int] = {}
        """Times until then that another program replaced a limit of Joulie's by a higher one, by GPU."""

    def observe(self, now_s: float) -> None:
        """Read GPUs, their limits and their power; `now_s` is monotonic time, s."""
        for vendor in self._vendors:
            vendor.observe(now_s, self._bus())
        self.records = {gpu: record for vendor in self._vendors for gpu, record in vendor.records().items()}
        self.resets = {gpu: times for vendor in self._vendors for gpu, times in vendor.writer.resets.items()}
        present = self._present()
        lost = tuple(lost for vendor in self._vendors for lost in vendor.lost)
        problems = [vendor.problem for vendor in present if vendor.problem]
        known = tuple(gpu for vendor in self._vendors for gpu in vendor.gpus)
        self.seen = GpuObservation(
            gpus=known,
            problem="; ".join(problems) or None,
            lost=lost,
            exist=bool(known or lost or self._bus()),
            indexed=len(present) == 1 and not problems and not lost,
            control=bool(present) and all(vendor.writer.available_backend() != "none" for vendor in present),
            measured=bool(present) and all(vendor.meter.available() is not None for vendor in present),
            power=_together(vendor.power for vendor in self._vendors),
        )

    def enforce(self, cap: WantedCap) -> Outcome:
        """Apply a cap to the GPUs of all vendors."""
        if cap.lifted:
            return all_of([vendor.writer.lift() for vendor in self._vendors])
        present = self._present()
        for vendor in self._vendors:
            if present and vendor not in present:
                vendor.writer.lift()
        return all_of([self._cap(vendor, cap) for vendor in present or self._vendors])

    def plan(self, cap: WantedCap) -> Outcome:
        """What a cap would do, in observe mode; nothing is written."""
        vendors = self._present() or self._vendors
        return all_of([planned(vendor.planner, self._part(vendor, cap)) for vendor in vendors])

    def why_not_alive(self) -> str | None:
        """Why the agent must be restarted: a GPU driver was replaced; None if it need not."""
        reasons = (client.restart_reason for vendor in self._vendors for client in vendor.clients)
        return next((reason for reason in reasons if reason is not None), None)

    def hold(self, reason: str | None, of: str | None = None) -> None:
        """Disconnect from the drivers for as long as there is a reason to; None connects again on the next use.

        Args:
            reason: why.
            of: the vendor whose drivers are meant; None for all.
        """
        for vendor in self._vendors:
            for client in vendor.clients if of in {None, vendor.vendor} else ():
                client.hold(reason)

    def _cap(self, vendor: _Vendor, cap: WantedCap) -> Outcome:
        part = self._part(vendor, cap)
        return vendor.writer.lift() if part.lifted else vendor.writer.cap(part)[0]

    def _part(self, vendor: _Vendor, cap: WantedCap) -> WantedCap:
        """The cap without the limits of single GPUs of other vendors."""
        others = {gpu.id for other in self._vendors if other is not vendor for gpu in other.gpus}
        return replace(cap, by_device=tuple((gpu, limit_w) for gpu, limit_w in cap.by_device if gpu not in others))

    def _present(self) -> list[_Vendor]:
        """Vendors that have GPUs here, or may have: their backend does not respond, and the bus does not tell."""
        return [vendor for vendor in self._vendors if vendor.is_present(self._bus())]

    def _bus(self) -> Mapping[str, int]:
        """Number of GPUs on the PCI bus by vendor; read once."""
        if self._on_bus is None:
            self._on_bus = self._read_bus()
        return self._on_bus


class _Vendor:
    """The GPUs of one vendor."""

    def __init__(
        self,
        backends: GpuBackends,
        originals: OriginalLimits,
        describe: Callable[[Sequence[PowerDevice]], Sequence[LimitedDevice]],
        *,
        simulate_only: bool,
    ) -> None:
        self.vendor = backends.vendor
        self.clients = backends.clients
        self.writer = LimitWriter(backends.limiters, originals, describe, simulate_only=simulate_only, yields=True)
        self.planner = LimitWriter(backends.limiters, originals, describe, simulate_only=True)
        self.meter = PowerMeter(backends.meters)
        self.gpus: tuple[PowerDevice, ...] = ()
        self.problem: str | None = None
        self.power = PowerSample()
        self._originals = originals

    @property
    def lost(self) -> Sequence[str]:
        return [lost for client in self.clients for lost in client.lost]

    def observe(self, now_s: float, on_bus: Mapping[str, int]) -> None:
        found, problem = self.writer.found()
        if not found and problem is None:
            problem = "; ".join(self.lost) or self._without_driver(on_bus)
        self.gpus = self.gpus if problem else tuple(found)
        self.problem = problem
        self.power = self.meter.read(now_s)

    def is_present(self, on_bus: Mapping[str, int]) -> bool:
        if self.gpus or self.lost or on_bus.get(self.vendor):
            return True
        return self.problem is not None and not on_bus

    def records(self) -> Mapping[str, LimitRecord]:
        return {
            device: record
            for limiter in reversed(self.writer.limiters)
            for device, record in self._originals.for_backend(limiter.name).items()
        }

    def _without_driver(self, on_bus: Mapping[str, int]) -> str | None:
        """Why GPUs on the PCI bus are not known: no driver responds; None without any."""
        count = on_bus.get(self.vendor)
        return f"no driver responds for GPUs on the PCI bus: {count} {self.vendor}" if count else None


def planned(planner: LimitWriter, cap: WantedCap) -> Outcome:
    """What a writer that writes nothing would have in force; its own outcome where it could limit no device."""
    if cap.lifted:
        return observed_without_cap(planner.available_backend())
    outcome, limits_w = planner.cap(cap)
    return observed(outcome.backend, f"{format_limits(limits_w)}{format_cap(cap)}") if limits_w else outcome


def _together(samples: Iterable[PowerSample]) -> PowerSample:
    together = PowerSample()
    for sample in samples:
        together = PowerSample(
            {**together.power_w, **sample.power_w},
            {**together.energy_j, **sample.energy_j},
            {**together.problems, **sample.problems},
        )
    return together
