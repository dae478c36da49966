"""The command `joulie agent inspect`: what Joulie finds on this machine, measures and can cap, and why not otherwise.

It reads what the agent reads, and writes nothing. Reports of bugs ask for its output.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from joulie.adapters.cpu.cpuinfo import CpuInfo
from joulie.adapters.hardware_yaml import catalogue_of
from joulie.apps.agent.discovery import CPU_VENDORS, gpu_vendor
from joulie.apps.agent.frequency import BACKEND as DVFS
from joulie.apps.agent.gpus import GpuBackends
from joulie.apps.agent.host import HostBackends
from joulie.apps.agent.limits import device_range
from joulie.apps.agent.metering import UNREADABLE, socket_of
from joulie.apps.agent.settings import AgentSettings, HostSettings
from joulie.domain.actuation import cpu_range
from joulie.domain.hardware import CapRange, Catalogue, CpuModel, Quality
from joulie.domain.limit_records import usable_limit
from joulie.ports.devices import ControlFailedError, ControlRefusedError, NoBackendError, PowerDevice, PowerLimiter
from joulie.program.documents import print_document
from joulie.program.settings import settings_options

Document = dict[str, Any]

SHOWN_PERCENT = 60.0
"""Cap that is computed as an example, percent: the default of eco nodes."""

GPU_PATIENCE_S = 20.0
"""Time after which GPU drivers are reported as not responding, s."""

_UNREAD = "the limit in force cannot be read, so it is never written"
_FORMS = ("table", "json", "yaml")


@click.command("inspect")
@settings_options(HostSettings)
@click.option("-o", "--output", type=click.Choice(_FORMS), default="table", show_default=True, help="Output format.")
def inspect(settings: HostSettings, output: str) -> None:
    """Show what Joulie finds on this machine, measures and can cap, by which backend, and why not by others.

    It reads only. Without root, files that only root may read or write are shown as unusable.
    """
    from joulie.apps.agent.main import host_backends

    try:
        catalogue = catalogue_of(settings.hardware_catalog)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    agent = AgentSettings(
        node_name="inspect", host_sys=settings.host_sys, host_proc=settings.host_proc, host_dev=settings.host_dev
    )
    found = inspected(host_backends(agent, catalogue))
    if output == "table":
        click.echo("\n".join(_lines(found)))
    else:
        print_document(found, output)


def inspected(backends: HostBackends) -> Document:
    """The document that `joulie agent inspect -o json` prints: watts of CPUs by socket, None where unknown."""
    cpu = _Cpu.of(backends)
    gpus = _gpus_in_time(backends)
    would_cap = {"cpu_w": cpu.cap_w, "gpu_w": gpus.caps_w, "backend": cpu.backend}
    return {
        "cpu": cpu.document(),
        "gpus": gpus.devices,
        "would_cap": {"at_pct": {f"{SHOWN_PERCENT:g}": would_cap}},
        "problems": [*cpu.problems(), *gpus.problems],
    }


@dataclass(frozen=True)
class _Cpu:
    """The CPUs as the agent would use them."""

    info: CpuInfo
    model: CpuModel | None
    exact: bool
    packages: Mapping[str, Sequence[PowerDevice]]
    listed: Sequence[Document]
    zones: Sequence[str]
    unusable: Mapping[str, str]
    source: str | None
    why_unmeasured: str | None

    @classmethod
    def of(cls, backends: HostBackends) -> _Cpu:
        info = backends.cpu_info()
        match = backends.catalogue.cpu(info.model or "")
        packages = _by_socket(_packages(backends.cpu_limiters))
        listed = [_backend(one.name, one.unavailable) for one in backends.cpu_limiters]
        listed.append(_backend(DVFS, backends.frequency.unavailable))
        meter = next(iter(backends.cpu_meters), None)
        why = meter.unavailable() if meter else "no backend is configured"
        read = [one.device_id for one in meter.energy() if socket_of(one.device_id)] if meter else []
        known = [device.id for devices in packages.values() for device in devices]
        unusable = {name: why or UNREADABLE for name in known if name not in read}
        sockets = {socket_of(name) for name in read}
        if why is None and unusable:
            why = f"{', '.join(unusable)}: {UNREADABLE}"
        elif why is None and len(sockets) < (info.sockets or 0):
            why = f"only {len(sockets)} of {info.sockets} sockets have an energy counter"
        source = meter.name if meter and why is None else None
        exact = match.quality is Quality.EXACT
        return cls(info, match.model, exact, packages, listed, read, unusable, source, why)

    @property
    def sockets(self) -> int | None:
        """Number of sockets, also those whose CPUs are all offline."""
        measured = {socket_of(zone) for zone in self.zones}
        return max(self.info.sockets or 0, len(self.packages), len(measured)) or None

    @property
    def limits(self) -> CapRange | None:
        """Cap range of a socket: as its dies report it together, else of its model."""
        maxima = [_total(device.max_w for device in devices) for devices in self.packages.values()]
        minima = [_total(device.min_w for device in devices) for devices in self.packages.values()]
        known_w = [max_w for max_w in maxima if max_w]
        least_w = [min_w for min_w in minima if min_w]
        return cpu_range(
            min(least_w, default=None), min(known_w, default=None), self.model.cap_range if self.model else None
        )

    @property
    def limits_w(self) -> list[float | None] | None:
        """Limit in force of each socket; None where the number of sockets is unknown."""
        found = [
            _total(usable_limit(device.limit_w) for device in self.packages[number])
            for number in sorted(self.packages, key=int)
        ]
        return found or ([None] * self.sockets if self.sockets else None)

    @property
    def by_limit(self) -> bool:
        """Whether the backend sets limits of packages, not of frequencies."""
        return self.backend not in {None, DVFS}

    @property
    def unread(self) -> list[str]:
        """Packages whose limit in force is not known, which therefore get none."""
        devices = [device for found in self.packages.values() for device in found]
        return [device.id for device in devices if usable_limit(device.limit_w) is None]

    @property
    def n_packages(self) -> int:
        return sum(map(len, self.packages.values()))

    @property
    def backend(self) -> str | None:
        return next((one["name"] for one in self.listed if one["usable"]), None)

    @property
    def cap_w(self) -> float | None:
        """Limit of a socket under the cap, W: less where all limits in force are lower, since none is ever raised."""
        if self.limits is None or self.backend is None or (self.by_limit and len(self.unread) == self.n_packages):
            return None
        return _lowered(self.limits.from_percent(SHOWN_PERCENT), self.limits_w or ())

    def document(self) -> Document:
        info, limits = self.info, self.limits
        exact_w = self.model.tdp_w if self.model and self.exact else None
        return {
            "model": info.model,
            "vendor": CPU_VENDORS.get(info.vendor, info.vendor) if info.vendor else None,
            "sockets": self.sockets,
            "cores": info.cores,
            "threads": info.threads,
            "tdp_w": exact_w or (limits.base_w if limits else None),
            "cap_range_w": _ends(limits),
            "limits_w": self.limits_w,
            "power": {"source": self.source, "zones": list(self.zones), "unusable": dict(self.unusable)},
            "backends": list(self.listed),
        }

    def problems(self) -> list[str]:
        found = []
        if not self.info.model:
            found.append("CPU: no model name in cpuinfo: only what the machine itself reports is known")
        elif self.model is None:
            found.append(f"CPU: {self.info.model} is not in the catalogue")
        if self.why_unmeasured is not None:
            found.append(f"CPU power cannot be measured: {self.why_unmeasured}")
        if self.backend is None:
            found.append("CPU: no backend can cap it")
        elif self.limits is None:
            found.append("CPU: its maximum power is unknown, so caps have no limit in watts")
        if self.by_limit and self.unread:
            found.append(f"CPU: {', '.join(self.unread)}: {_UNREAD}")
        if self.packages and len(self.packages) < (self.info.sockets or 0):
            found.append(f"CPU: {len(self.packages)} of {self.info.sockets} sockets are listed as packages")
        if self.info.sockets and self.info.sockets < (self.sockets or 0):
            found.append(f"CPU: CPUs of {self.info.sockets} of {self.sockets} sockets are online")
        return found


@dataclass(frozen=True)
class _Gpus:
    """The GPUs as the agent would use them: documents, limits under the cap, W, and problems."""

    devices: list[Document] = field(default_factory=list)
    caps_w: dict[str, float | None] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, backends: HostBackends) -> _Gpus:
        found = cls()
        on_bus = backends.gpus_on_bus()
        for vendor in backends.gpus:
            found._add(vendor, on_bus.get(vendor.vendor, 0), backends.catalogue)
        return found

    def _add(self, vendor: GpuBackends, on_bus: int, catalogue: Catalogue) -> None:
        listed = [_backend(one.name, one.unavailable) for one in vendor.limiters]
        devices, why = _first_listed(vendor.limiters)
        self.problems.extend(f"GPUs: {reason}" for reason in why)
        if not devices and on_bus:
            self.problems.append(_without_driver(on_bus, vendor.vendor, listed))
        any_usable = any(one["usable"] for one in listed)
        if devices and not any_usable:
            self.problems.append(f"GPUs: no backend can cap those of {vendor.vendor}")
        for device in devices:
            limits = device_range(device, catalogue, "")
            known = catalogue.gpu(device.model).model if device.model else None
            self.devices.append(
                {
                    "uuid": device.id,
                    "model": device.model,
                    "vendor": known.vendor.lower() if known else gpu_vendor(device.model or ""),
                    "limit_w": usable_limit(device.limit_w),
                    "default_w": device.default_w,
                    "range_w": _ends(limits),
                    "mig": device.mig,
                    "backends": listed,
                }
            )
            why_not = _why_not_capped(device, limits) if any_usable else None
            if why_not:
                self.problems.append(f"GPU {device.id}: {why_not}")
            cap_w = limits.from_percent(SHOWN_PERCENT) if limits and any_usable and not why_not else None
            self.caps_w[device.id] = _lowered(cap_w, (device.limit_w,))


def _why_not_capped(device: PowerDevice, limits: CapRange | None) -> str | None:
    if usable_limit(device.limit_w) is None:
        return _UNREAD
    return None if limits else "neither it nor the catalogue states its maximum power, so it gets no cap in percent"


def _ends(limits: CapRange | None) -> list[float] | None:
    """Both ends of a range, W, without the noise of computing with floats."""
    return [round(limits.min_w, 3), round(limits.max_w, 3)] if limits else None


def _backend(name: str, unavailable: Callable[[], str | None]) -> Document:
    try:
        why = unavailable()
    except (ControlFailedError, ControlRefusedError, OSError, ValueError) as error:
        why = str(error)
    return {"name": name, "usable": why is None, "why": why}


def _packages(limiters: Sequence[PowerLimiter]) -> Sequence[PowerDevice]:
    """Packages of the backend that limits them, else of one that reads their limit, else of one that lists them."""
    usable = [limiter for limiter in limiters if limiter.unavailable() is None]
    listings = [_listed(limiter)[0] for limiter in (*usable, *limiters)]
    readable = [one for one in listings if any(device.limit_w is not None for device in one)]
    return next((one for one in (*readable, *listings) if one), ())


def _without_driver(count: int, vendor: str, listed: Sequence[Document]) -> str:
    """GPUs on the PCI bus that no backend lists."""
    why = "; ".join(f"{one['name']}: {one['why']}" for one in listed)
    return f"GPUs: {count} {vendor} on the PCI bus, but no driver responds: {why}"


def _first_listed(limiters: Sequence[PowerLimiter]) -> tuple[Sequence[PowerDevice], list[str]]:
    """Devices of the first backend that lists any; without one, why the backends that should know do not."""
    problems = []
    for limiter in limiters:
        devices, problem = _listed(limiter)
        if devices:
            return devices, []
        if problem:
            problems.append(problem)
    return (), problems


def _listed(limiter: PowerLimiter) -> tuple[Sequence[PowerDevice], str | None]:
    try:
        return limiter.devices(), None
    except NoBackendError:
        return (), None
    except (ControlFailedError, ControlRefusedError, OSError, ValueError) as error:
        return (), f"{limiter.name}: {error}"


def _by_socket(packages: Iterable[PowerDevice]) -> Mapping[str, Sequence[PowerDevice]]:
    """Packages by socket number: a socket has one package, or one for each of its dies."""
    found: dict[str, list[PowerDevice]] = {}
    for package in packages:
        if number := socket_of(package.id):
            found.setdefault(number, []).append(package)
    return found


def _total(values_w: Iterable[float | None]) -> float | None:
    """Sum, W; None if any is unknown."""
    known_w = list(values_w)
    return None if None in known_w else sum(value_w or 0.0 for value_w in known_w)


def _lowered(cap_w: float | None, limits_w: Iterable[float | None]) -> float | None:
    """The cap, W; less where all limits in force are lower, since a limit is never raised."""
    known_w = [limit_w for limit_w in limits_w if limit_w]
    if cap_w is None:
        return None
    return round(min(cap_w, max(known_w)) if known_w else cap_w, 3)


def _gpus_in_time(backends: HostBackends) -> _Gpus:
    """The GPUs, read in a thread: a driver that hangs cannot be interrupted."""
    found: list[_Gpus] = []

    def read() -> None:
        try:
            found.append(_Gpus.of(backends))
        except Exception as error:  # from a vendor's library
            found.append(_Gpus(problems=[f"GPUs: {type(error).__name__}: {error}"]))
        for client in (client for vendor in backends.gpus for client in vendor.clients):
            client.hold("inspected")

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(GPU_PATIENCE_S)
    late = _Gpus(problems=[f"GPUs: the drivers have not responded within {GPU_PATIENCE_S:g} s"])
    return found[0] if found else late


def _lines(found: Document) -> Iterable[str]:
    """The document for people."""
    cpu = found["cpu"]
    yield f"CPU       {cpu['model'] or 'unknown model'}"
    yield "          " + ", ".join(f"{name} {_count(cpu[name])}" for name in ("sockets", "cores", "threads"))
    yield f"TDP       {_watts(cpu['tdp_w'], ' a socket')}, cap range {_range(cpu['cap_range_w'])}"
    yield f"limits    {', '.join(map(_watts, cpu['limits_w'] or [])) or 'unknown'}"
    power = cpu["power"]
    yield f"power     {power['source'] or 'not measured'}: {', '.join(power['zones']) or 'no energy counter'}"
    yield from (f"          {name}: {why}" for name, why in power["unusable"].items())
    yield from _backend_lines(cpu["backends"])
    for gpu in found["gpus"]:
        yield f"GPU       {gpu['model'] or 'unknown model'} ({gpu['uuid']})"
        limits = f"limit {_watts(gpu['limit_w'])}, default {_watts(gpu['default_w'])}"
        yield f"          {limits}, range {_range(gpu['range_w'])}"
    for backends in {str(gpu["backends"]): gpu["backends"] for gpu in found["gpus"]}.values():
        yield from _backend_lines(backends)
    for percent, cap in found["would_cap"]["at_pct"].items():
        by = f" by {cap['backend']}" if cap["backend"] else ""
        yield f"{percent} % cap  {_watts(cap['cpu_w'], ' a socket')}{by}"
        yield from (f"          {_watts(cap_w)} for GPU {uuid}" for uuid, cap_w in cap["gpu_w"].items())
    yield from (f"problem   {problem}" for problem in found["problems"])


def _backend_lines(backends: Sequence[Document]) -> Iterable[str]:
    for backend in backends:
        yield f"  {backend['name']:<8}{'usable' if backend['usable'] else backend['why']}"


def _count(number: int | None) -> str:
    return "?" if number is None else str(number)


def _watts(power_w: float | None, of: str = "") -> str:
    return "unknown" if power_w is None else f"{power_w:g} W{of}"


def _range(limits_w: Sequence[float] | None) -> str:
    return "unknown" if limits_w is None else f"{limits_w[0]:g} to {limits_w[1]:g} W"
