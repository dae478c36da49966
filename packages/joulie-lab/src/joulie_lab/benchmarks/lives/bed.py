"""A modelled machine with an agent on it."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from joulie.adapters.cpu.cpufreq import Cpufreq
from joulie.adapters.cpu.cpuinfo import CpuInfoReader
from joulie.adapters.cpu.hsmp import Hsmp
from joulie.adapters.cpu.rapl import Rapl, RaplMeter
from joulie.adapters.gpu.amdgpu import Amdgpu, AmdgpuMeter
from joulie.adapters.gpu.pci import AMD, NVIDIA
from joulie.adapters.kubernetes.api.v1alpha1 import ControlResult
from joulie.apps.agent.discovery import hardware_of_host
from joulie.apps.agent.gpus import GpuBackends
from joulie.apps.agent.host import Host, HostBackends
from joulie.apps.agent.outcome import Outcome, reported_limits
from joulie.domain.actuation import WantedCap
from joulie.domain.dvfs import DvfsSettings
from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie.domain.saved_records import ReportedLimits
from joulie_lab.benchmarks.lives.faults import Faults, FaultyFiles, FaultyStore, guard_gpu
from joulie_lab.machines.files import MachineFiles, light_path
from joulie_lab.machines.gpus import ModelledGpus
from joulie_lab.machines.machine import Machine
from joulie_lab.machines.specs import Load, Spec

CYCLE_S = 20.0
LIFTED = WantedCap()
_ROOT = light_path("/machine")
_SYS, _PROC = _ROOT / "sys", _ROOT / "proc"
_GPUS = 2


def small(spec: Spec) -> Spec:
    """The same machine with a core a die, two if it is the only one, and at most two GPUs: fewer of each device."""
    cores = spec.dies * (2 if spec.packages == 1 else 1)
    cpufreq = spec.cpufreq and replace(spec.cpufreq, cpus_per_policy=1)
    return replace(
        spec,
        cpu=replace(spec.cpu, cores=cores, threads_per_core=1),
        cpufreq=cpufreq,
        gpus=min(spec.gpus, 1 if spec.other_gpus else _GPUS),
        other_gpus=min(spec.other_gpus, 1),
    )


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
            cpu_meters=(RaplMeter(_SYS, files),),
            gpus=(
                GpuBackends(NVIDIA, (gpus,), (gpus,)),
                GpuBackends(AMD, (Amdgpu(_SYS, files),), (AmdgpuMeter(_SYS, files),)),
            ),
            store=FaultyStore(self.state, _PROC, files, self.faults),
            catalogue=BUILTIN_CATALOGUE,
        )

    def start(self) -> Host:
        """Start the agent."""
        self.host = Host(self.backends(), DvfsSettings())
        for outcome in self.reported.values():
            for limits in _reported(outcome):
                self.host.recall(limits, math.inf)
        return self.host

    def cycle(self, cap: WantedCap, gpu_cap: WantedCap | None = None) -> tuple[Outcome, Outcome]:
        """One cycle of the agent, which is started if it does not run; GPUs have the same cap if none is given."""
        first = self.host is None
        host = self.host or self.start()
        host.observe_cpu(self.now_s)
        host.observe_gpu(self.now_s)
        if first and (seen := host.observation) is not None:
            hardware_of_host(seen, BUILTIN_CATALOGUE)
        outcomes = host.enforce_cpu(cap, self.now_s), host.enforce_gpu(gpu_cap or cap)
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
            return spec.gpu_kinds[int(name.removeprefix("gpu "))].default_w
        if "policy" in name:
            return spec.cpu.max_hz
        if "hsmp" in name:
            return spec.hsmp.max_w if spec.hsmp else 0.0
        return spec.package_max_w


def _reported(outcome: Outcome) -> Sequence[ReportedLimits]:
    """The limits that a successor finds reported."""
    return reported_limits(ControlResult(backend=outcome.backend, result=outcome.result, message=outcome.message))


class state_folder:  # noqa: N801 - a context manager
    """A folder for saved limits, in memory where the machine has such a file system."""

    def __enter__(self) -> Path:
        memory = Path("/dev/shm")  # noqa: S108 - fsync of a disk would take most of the time
        self._folder = Path(tempfile.mkdtemp(prefix="joulie-lives-", dir=memory if memory.is_dir() else None))
        return self._folder

    def __exit__(self, *_error: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
