"""Lives of the agent on modelled machines, with faults, in virtual time; a life is a seed.

Each life takes one machine through discovery, metering, caps, lifts, kills and restarts, and ends with caps lifted. Up
to three faults hit single accesses or a few in a row: errors, garbage, short or stale reads, refused or ignored writes,
limits that cannot be saved, lost or corrupt saved limits, reboots, kills between any two accesses, pauses in which
counters wrap. What is checked, against the machine's own state:

- no limit is ever above the one that an administrator or the firmware had set; where the saved limits were lost, not
  above the device's default;
- at the end everything is as it was found; nothing else was ever written. Where the saved limits were lost, a limit
  whose original nobody knows may stay, if the agent reports an error: such lives are counted. So are those in which
  they were lost before any report of the cap, since that is an administrator's limit for all one can tell;
- power that is reported is the power that was drawn: neither zero nor a part for what could not be read;
- a cap reported as applied holds on every device; limits reported as restored are.
"""

from __future__ import annotations

import errno
import math
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

from joulie.adapters.cpu.cpufreq import Cpufreq
from joulie.adapters.cpu.cpuinfo import CpuInfoReader
from joulie.adapters.cpu.hsmp import Hsmp
from joulie.adapters.cpu.rapl import Rapl, RaplMeter
from joulie.adapters.gpu.amdgpu import Amdgpu, AmdgpuMeter
from joulie.adapters.kubernetes.api.v1alpha1 import ControlOutcome, ControlResult
from joulie.adapters.kubernetes.control_reports import RESTORED
from joulie.apps.agent.discovery import hardware_of_host
from joulie.apps.agent.host import Host, HostBackends
from joulie.apps.agent.outcome import Outcome, reported_limits
from joulie.domain.actuation import WantedCap
from joulie.domain.dvfs import DvfsSettings
from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie.domain.saved_records import ReportedLimits
from joulie_lab.benchmarks.lives_faults import Fault, Faults, FaultyFiles, FaultyStore, Killed, guard_gpu
from joulie_lab.machines.files import MachineFiles, light_path
from joulie_lab.machines.gpus import ModelledGpus
from joulie_lab.machines.library import MACHINES
from joulie_lab.machines.machine import Machine
from joulie_lab.machines.specs import Load, Spec

CYCLE_S = 20.0
_ROOT = light_path("/machine")
_SYS, _PROC = _ROOT / "sys", _ROOT / "proc"
_LIFTED = WantedCap()
_CAPPED_CYCLES, _QUIET_CYCLES = 5, 2
_GPUS = 2
_FLOOR_SHARE = 0.2
_TOLERANCE_W = 1.0
_UNNOTICED_CYCLES = 4
"""Cycles for which a load may exceed a cap that a frequency limit held before."""

_READ_ERRORS = (errno.EIO, errno.EACCES, errno.ENODATA, errno.EBUSY, errno.ENODEV, errno.EINVAL)
_WRITE_ERRORS = (*_READ_ERRORS, errno.EPERM, errno.EROFS, errno.ETIMEDOUT)
_GARBAGE = ("", "\n", "NaN\n", "-1\n", "<unknown>\n", "1 2\n", "0x10\n", "1e9\n", "18446744073709551616000\n", "\x00\n")
_STATE_LOST = ("state lost", "state corrupt")
_BETWEEN = (*_STATE_LOST, "state of another boot", "reboot", "pause", "killed between cycles")
_CALLS = {
    "read error": "read",
    "garbage": "read",
    "short read": "read",
    "stale read": "read",
    "list error": "list",
    "write refused": "write",
    "write ignored": "write",
    "ioctl error": "ioctl",
    "save refused": "save",
    "gpu error": "gpu",
    "gpu write refused": "gpu write",
    "gpu write failed": "gpu write",
}
"""Kind of access that each kind of fault hits."""

KINDS = (*_CALLS, "kill", *_BETWEEN)
"""Kinds of faults."""

_KILLED_AT = ("read", "write", "written", "ioctl", "answered", "save", "saved", "gpu", "gpu write", "list")


def small(spec: Spec) -> Spec:
    """The same machine with a core a die, two if it is the only one, and at most two GPUs: fewer of each device."""
    cores = spec.dies * (2 if spec.packages == 1 else 1)
    cpufreq = spec.cpufreq and replace(spec.cpufreq, cpus_per_policy=1)
    return replace(
        spec, cpu=replace(spec.cpu, cores=cores, threads_per_core=1), cpufreq=cpufreq, gpus=min(spec.gpus, _GPUS)
    )


@dataclass
class Life:
    """What became of a life.

    Attributes:
        machine: its machine.
        caps: number of cycles in which a cap was asked for.
        faults: number of accesses that went wrong, by kind.
        violations: what must not be, one line each.
        unknown: whether it ends with a cap whose record was lost, and the agent reports that it is not restored.
        unnoticed: whether it ends with a cap that nothing tells from an administrator's limit: its record was lost
            before any report of it, or what was known of the loss was void after kexec on Arm.
    """

    machine: str
    caps: int
    faults: Counter[str]
    violations: list[str]
    unknown: bool
    unnoticed: bool


class Bed:
    """A machine with an agent on it, and what is known about its limits.

    Args:
        spec: the machine.
        load: its work.
        faults: faults of the agent's accesses.
        folder: folder of the saved limits.
    """

    def __init__(self, spec: Spec, load: Load, faults: Faults, folder: Path) -> None:
        self.machine = Machine(spec, load)
        self.now_s = 0.0
        self.faults = faults
        self.state = folder / "limits.json"
        self.state.unlink(missing_ok=True)
        for aside in folder.glob("limits.json.*"):
            aside.unlink()
        self.files = FaultyFiles(MachineFiles(self.machine, lambda: self.now_s, _ROOT), faults)
        self.host: Host | None = None
        self.reported: dict[str, Outcome] = {}

    def backends(self) -> HostBackends:
        """Backends of the machine, as the agent's main module composes them."""
        files = self.files
        gpus = ModelledGpus(self.machine, lambda: self.now_s, partial(guard_gpu, self.faults))
        return HostBackends(
            cpu_info=CpuInfoReader(_PROC, _SYS, files).read,
            cpu_limiters=(Rapl(_SYS, files), Hsmp(_ROOT / "dev/hsmp", files)),
            frequency=Cpufreq(_SYS, files),
            gpu_limiters=(gpus, Amdgpu(_SYS, files)),
            cpu_meters=(RaplMeter(_SYS, files),),
            gpu_meters=(gpus, AmdgpuMeter(_SYS, files)),
            store=FaultyStore(self.state, _PROC, files, self.faults),
            catalogue=BUILTIN_CATALOGUE,
        )

    def start(self) -> Host:
        """Start the agent."""
        self.host = Host(self.backends(), DvfsSettings())
        for outcome in self.reported.values():
            if limits := _reported(outcome):
                self.host.recall(limits, math.inf)
        return self.host

    def cycle(self, cap: WantedCap) -> tuple[Outcome, Outcome]:
        """One cycle of the agent, which is started if it does not run."""
        first = self.host is None
        host = self.host or self.start()
        host.observe_cpu(self.now_s)
        host.observe_gpu(self.now_s)
        if first and (seen := host.observation) is not None:
            hardware_of_host(seen, BUILTIN_CATALOGUE)
        outcomes = host.enforce_cpu(cap, self.now_s), host.enforce_gpu(cap)
        self.reported = dict(zip(("cpu", "gpu"), outcomes, strict=True))
        return outcomes

    def wait(self, duration_s: float, *, sampled: bool = True) -> None:
        """Let time pass; the agent reads counters between the cycles where they need it."""
        until_s = self.now_s + duration_s
        while sampled and self.host is not None and self.now_s + self.host.cpu_meter.sampling_interval_s < until_s:
            self.now_s += self.host.cpu_meter.sampling_interval_s
            self.host.cpu_meter.sample(self.now_s)
        self.now_s = until_s
        self.machine.advance(until_s)

    def limits(self) -> dict[str, float]:
        """Every value that an agent could write, by name."""
        found: dict[str, float] = {}
        for number, package in enumerate(self.machine.packages):
            for control_type, limits in package.limits.items():
                for constraint, limit_w in enumerate(limits.power_w):
                    found[f"package {number} {control_type} {constraint}"] = limit_w
                    found[f"package {number} {control_type} {constraint} window"] = limits.window_s[constraint]
                found[f"package {number} {control_type} enabled"] = float(limits.enabled)
            if package.hsmp_w is not None:
                found[f"package {number} hsmp"] = package.hsmp_w
            for policy, limit_hz in enumerate(package.policy_max_hz):
                found[f"package {number} policy {policy}"] = limit_hz
        for number, gpu in enumerate(self.machine.gpus):
            found[f"gpu {number}"] = gpu.limit_w
        return found

    def default(self, name: str) -> float:
        """The device's default limit: what the agent may restore where the original is lost."""
        spec = self.machine.spec
        if name.startswith("gpu"):
            return spec.gpu.default_w if spec.gpu else 0.0
        if "policy" in name:
            return spec.cpu.max_hz
        if "hsmp" in name:
            return spec.hsmp.max_w if spec.hsmp else 0.0
        return spec.package_max_w


def run_life(machine: str, seed: str, folder: Path) -> Life:
    """One life on a machine; it has at least one cap and one fault.

    Args:
        machine: name of the machine.
        seed: everything that is drawn follows from it.
        folder: folder for the saved limits; a fast one.
    """
    for attempt in range(100):
        life = _Run(machine, random.Random(f"{machine} {seed} {attempt}"), folder).run()  # noqa: S311
        if life.faults or life.violations:
            return life
    raise RuntimeError(f"no fault came up on {machine} with seed {seed}")


class _Run:
    """A life while it lasts."""

    def __init__(self, machine: str, rng: random.Random, folder: Path) -> None:
        self._rng = rng
        spec = small(MACHINES[machine])
        self._spec = spec
        faults, self._between = _draw_faults(machine, rng)
        self._bed = Bed(spec, _draw_load(rng), Faults(faults), folder)
        _administer(self._bed.machine, rng)
        self._originals = self._bed.limits()
        self._lost = self._unreported = self._untold = False
        self._unknown = self._unnoticed = False
        self._violations: list[str] = []
        self._powers_w: list[float] = []
        self._caps = 0

    def run(self) -> Life:
        cap = _draw_cap(self._rng, self._spec)
        for cycle in range(_CAPPED_CYCLES + _QUIET_CYCLES):
            self._bed.faults.start_cycle(cycle)
            if cycle >= _CAPPED_CYCLES:
                cap = _LIFTED
            elif cycle and self._rng.random() < 0.3:
                cap = _LIFTED if self._rng.random() < 0.5 and self._caps else _draw_cap(self._rng, self._spec)
            for kind in self._between.get(cycle, ()):
                self._strike(kind)
            self._caps += not cap.lifted
            self._cycle(cap)
            self._pass_time(CYCLE_S)
        self._check_end()
        met = self._bed.faults.met
        return Life(self._spec.name, self._caps, met, self._violations, self._unknown, self._unnoticed)

    def _cycle(self, cap: WantedCap) -> None:
        bed = self._bed
        try:
            cpu, gpu = bed.cycle(cap)
        except Killed:
            bed.host = None
            self._unreported = True
            self._check_limits()
            return
        except Exception as error:
            self._fail(f"raised {type(error).__name__}: {error}")
            bed.host = None
            return
        self._unreported = False
        self._check_limits()
        self._check_power()
        self._check_outcome("cpu", cpu, cap)
        self._check_outcome("gpu", gpu, cap)

    def _strike(self, kind: str) -> None:
        """A fault between two cycles."""
        bed = self._bed
        bed.faults.met[kind] += 1
        if kind == "pause":
            self._pass_time(self._rng.uniform(60.0, 900.0), sampled=False)
            return
        bed.host = None
        if kind == "state lost":
            bed.state.unlink(missing_ok=True)
        elif kind == "state corrupt" and bed.state.exists():
            bed.state.write_bytes(self._rng.choice((b"", b"{", b"\xff\xfe", b"[]", bed.state.read_bytes()[:-3])))
        elif kind == "state of another boot":
            bed.machine.kexec()
            if not self._spec.cpu.vendor:  # on Arm it looks like a reboot, which voids what is known of a loss
                bed.reported.clear()
                self._untold = self._untold or self._lost
        elif kind == "reboot":
            bed.machine.boot()
            bed.files.forget()
            bed.reported.clear()  # older than the boot
            self._originals = bed.limits()
            self._powers_w.clear()
            return
        if kind in _STATE_LOST:
            self._untold = self._untold or self._holds_unreported_caps()
            self._lost = True

    def _holds_unreported_caps(self) -> bool:
        """Whether a cap is in force that no report could name: the agent was killed before the first one."""
        limits = self._bed.limits()
        return any(
            limits[name] < self._originals[name]
            for kind in ("cpu", "gpu")
            if self._unreported or kind not in self._bed.reported
            for name in limits
            if _is_of(kind, name)
        )

    def _pass_time(self, duration_s: float, *, sampled: bool = True) -> None:
        machine = self._bed.machine
        before_j, before_s = sum(package.energy_j for package in machine.packages), machine.now_s
        try:
            self._bed.wait(duration_s, sampled=sampled)
        except Killed:
            self._bed.host = None
            self._bed.wait(before_s + duration_s - self._bed.now_s)
        energy_j = sum(package.energy_j for package in machine.packages) - before_j
        self._powers_w.append(energy_j / (machine.now_s - before_s))

    def _fail(self, what: str) -> None:
        self._violations.append(f"cycle {self._bed.faults.cycle}: {what}")

    def _check_limits(self) -> None:
        for name, value in self._bed.limits().items():
            original = self._originals[name]
            allowed = max(original, self._bed.default(name)) if self._lost and _written(name) else original
            if value > allowed * 1.0001:
                self._fail(f"{name} is {value:g}, above the original {original:g}")
            if value != original and not _written(name):
                self._fail(f"{name} was written: {value:g}")

    def _check_power(self) -> None:
        seen = self._bed.host.observation if self._bed.host else None
        power_w = seen.cpu_power.package_power_w if seen else None
        if power_w is None:
            return
        # A counter that is read late counts its energy in the next cycle.
        stale = "stale read" in self._bed.faults.met
        tolerated = (0.01, 3.0) if stale else (0.98, 1.02)
        if (
            not self._powers_w
            or not min(self._powers_w) * tolerated[0] <= power_w <= max(self._powers_w) * tolerated[1]
        ):
            known = [round(power, 1) for power in self._powers_w]
            self._fail(f"power is reported as {power_w:.1f} W, drawn were {known}")

    def _check_outcome(self, kind: str, outcome: Outcome, cap: WantedCap) -> None:
        if outcome.result is not ControlOutcome.APPLIED:
            return
        limits = {name: value for name, value in self._bed.limits().items() if _is_of(kind, name)}
        if outcome.message.startswith(RESTORED):
            low = [name for name, value in limits.items() if value < self._originals[name] * 0.998 - 0.2]
            if low and not self._lost:
                self._fail(f"{kind} is reported as restored, but {low[0]} is {limits[low[0]]:g}")
        elif outcome.backend == "dvfs":
            self._check_throttle(cap)
        else:
            self._check_cap(kind, outcome, cap, limits)

    def _check_throttle(self, cap: WantedCap) -> None:
        """A cap by frequency that is reported as applied has not been exceeded for long."""
        most_w = _cap_of("cpu", cap, self._spec) * self._spec.packages * 1.1 + 2 * DvfsSettings().high_margin_w
        lately = self._powers_w[-_UNNOTICED_CYCLES:]
        if len(lately) == _UNNOTICED_CYCLES and min(lately) > most_w:
            self._fail(f"cpu cap is reported as applied by dvfs, but power was {min(lately):.0f} W at least")

    def _check_cap(self, kind: str, outcome: Outcome, cap: WantedCap, limits: Mapping[str, float]) -> None:
        """Every device of the backend is at the cap or below."""
        part = {"rapl": "intel-rapl 0", "hsmp": "hsmp"}.get(outcome.backend, "gpu")
        for name, limit_w in limits.items():
            if name.endswith(part) or name.startswith(part):
                most_w = _cap_of(kind, cap, self._spec)
                if limit_w > most_w + _TOLERANCE_W:
                    self._fail(f"{kind} cap is reported as applied by {outcome.backend}, but {name} is {limit_w:g} W")

    def _check_end(self) -> None:
        for name, value in self._bed.limits().items():
            original = self._originals[name]
            if value >= original * 0.998 - 0.2:
                continue
            last = self._bed.reported["gpu" if name.startswith("gpu") else "cpu"]
            if self._lost and last.result is ControlOutcome.ERROR:
                self._unknown = True
            elif self._untold:
                self._unnoticed = True
            else:
                self._fail(f"a cap is left: {name} is {value:g}, was {original:g}")


def _reported(outcome: Outcome) -> ReportedLimits | None:
    """The limits that a successor finds reported."""
    return reported_limits(ControlResult(backend=outcome.backend, result=outcome.result, message=outcome.message))


def _written(name: str) -> bool:
    """Whether Joulie writes a value at all."""
    return name.endswith(("intel-rapl 0", "hsmp")) or "policy" in name or name.startswith("gpu")


def _is_of(kind: str, name: str) -> bool:
    return name.startswith("gpu") is (kind == "gpu")


def _cap_of(kind: str, cap: WantedCap, spec: Spec) -> float:
    """The most that a device may be limited to under a cap, W."""
    if kind == "gpu" and spec.gpu is not None:
        wanted_w = cap.cap_w if cap.cap_w is not None else (cap.percent or 100.0) / 100.0 * spec.gpu.default_w
        known = BUILTIN_CATALOGUE.gpu(spec.gpu.model).model
        min_w = spec.gpu.min_w or (known.cap_range.min_w if known else 0.0)
        return min(max(wanted_w, min_w), spec.gpu.max_w)
    max_w = spec.hsmp.max_w if spec.hsmp else spec.package_max_w
    wanted_w = cap.cap_w / spec.dies if cap.cap_w is not None else (cap.percent or 100.0) / 100.0 * max_w
    return max(wanted_w, _FLOOR_SHARE * max_w)


def _draw_load(rng: random.Random) -> Load:
    shares = [rng.choice((0.0, 0.2, 0.6, 1.0, rng.random())) for _ in range(3)]
    return Load(tuple((60.0 * number, share) for number, share in enumerate(shares)), 180.0)


def _draw_cap(rng: random.Random, spec: Spec) -> WantedCap:
    if rng.random() < 0.3:
        return WantedCap(cap_w=round(spec.cpu.tdp_w * rng.uniform(0.3, 1.1)))
    return WantedCap(percent=rng.choice((40.0, 60.0, 60.0, 80.0, 95.0)))


def _administer(machine: Machine, rng: random.Random) -> None:
    """Limits that an administrator has lowered, on half of the machines, on each device or on some."""
    if rng.random() < 0.5:
        return
    for package in machine.packages:
        share = rng.choice((1.0, 0.4, 0.62, 0.9))
        for limits in package.limits.values():
            limits.power_w[0] = int(limits.power_w[0] * share * 8) / 8
        if package.hsmp_w is not None:
            package.hsmp_w = max(round(package.hsmp_w * share), machine.spec.hsmp.min_w if machine.spec.hsmp else 0.0)
    for gpu in machine.gpus:
        if machine.spec.gpu is not None:
            gpu.limit_w = max(round(gpu.limit_w * rng.choice((1.0, 0.5, 0.8))), machine.spec.gpu.min_w)


def _draw_faults(machine: str, rng: random.Random) -> tuple[list[Fault], dict[int, list[str]]]:
    """Faults of accesses, and faults between cycles by cycle."""
    accesses: list[Fault] = []
    between: dict[int, list[str]] = {}
    counts = _calls_a_cycle(machine)
    possible = [kind for kind in KINDS if kind not in _CALLS or counts[_CALLS[kind]]]
    for _ in range(rng.choice((1, 1, 2, 3))):
        kind, cycle = rng.choice(possible), rng.randrange(_CAPPED_CYCLES)
        if kind in _BETWEEN:
            between.setdefault(cycle, []).append(kind)
            continue
        call = rng.choice([call for call in _KILLED_AT if counts[call]]) if kind == "kill" else _CALLS[kind]
        nth = rng.randrange(counts[call])
        count = 1 if kind == "kill" else rng.choice((1, 1, 2, 5, 1000))
        accesses.append(Fault(kind, call, cycle, nth, count, _draw_value(kind, rng)))
    return accesses, between


def _draw_value(kind: str, rng: random.Random) -> object:
    if kind == "garbage":
        return rng.choice(_GARBAGE)
    if kind == "short read":
        return rng.choice((0.0, 0.3, 0.7, 0.95))
    if kind == "save refused":
        return rng.choice((errno.ENOSPC, errno.EROFS, errno.EIO))
    return rng.choice(_WRITE_ERRORS if "write" in kind or kind == "ioctl error" else _READ_ERRORS)


@lru_cache(maxsize=len(MACHINES))
def _calls_a_cycle(machine: str) -> Counter[str]:
    """Number of accesses of each kind in the cycle that first writes a cap; where faults are drawn from."""
    with state_folder() as folder:
        bed = Bed(small(MACHINES[machine]), Load(), Faults(), folder)
        bed.cycle(_LIFTED)
        bed.wait(CYCLE_S)
        bed.faults.start_cycle(1)
        bed.cycle(WantedCap(percent=60.0))
        return Counter(bed.faults.calls)


class state_folder:  # noqa: N801 - a context manager
    """A folder for saved limits, in memory where the machine has such a file system."""

    def __enter__(self) -> Path:
        memory = Path("/dev/shm")  # noqa: S108 - fsync of a disk would take most of the time
        self._folder = Path(tempfile.mkdtemp(prefix="joulie-lives-", dir=memory if memory.is_dir() else None))
        return self._folder

    def __exit__(self, *_error: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
