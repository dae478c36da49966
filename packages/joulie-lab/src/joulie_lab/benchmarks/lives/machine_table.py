"""What the agent does on each modelled machine: find, measure, cap, lift, and restore after a kill."""

from __future__ import annotations

from collections import Counter

from joulie.adapters.cpu import cpuinfo
from joulie.adapters.kubernetes.control_reports import RESTORED
from joulie.apps.agent.outcome import Outcome
from joulie.domain.actuation import WantedCap
from joulie_lab.benchmarks.lives.bed import CYCLE_S, LIFTED, Bed, small, state_folder
from joulie_lab.benchmarks.lives.faults import Faults
from joulie_lab.benchmarks.results import Figures
from joulie_lab.machines.files import MachineFiles, light_path
from joulie_lab.machines.library import MACHINES
from joulie_lab.machines.machine import Machine
from joulie_lab.machines.specs import Load

CAP = WantedCap(percent=60.0)
_SETTLING_CYCLES = 45
"""Time that a frequency controller gets, cycles of 20 s; a power limit holds at once."""
_HELD_CYCLES = 30
"""Ten minutes, over which power is averaged."""


class Cap(Figures, frozen=True):
    """A cap of 60 % on the CPUs or GPUs.

    Attributes:
        backend: backend that enforces it.
        result: result that is reported.
        power_share: mean power over ten minutes under the cap, of the power without one.
    """

    backend: str
    result: str
    power_share: float


class MachineRow(Figures, frozen=True):
    """What the agent does on a machine.

    Attributes:
        title: what the machine stands for.
        found: sockets, cores and GPUs that the agent finds.
        power_error: relative error of the CPUs' power at full load; None where it cannot be measured.
        cpu: cap on the CPUs.
        gpu: cap on the GPUs; None without any.
        lifted: all limits are as before once the cap is lifted.
        restored: all limits are as before once an agent that was killed under a cap has a successor without one.
    """

    title: str
    found: str
    power_error: float | None
    cpu: Cap
    gpu: Cap | None
    lifted: bool
    restored: bool


def machine_row(name: str) -> MachineRow:
    """Run an agent on a machine, without faults."""
    spec = MACHINES[name]
    with state_folder() as folder:
        bed = Bed(small(spec), Load(), Faults(), folder)
        untouched = bed.limits()
        power_error, natural_w = _measure(bed)
        gpu_natural_w = sum(gpu.power_w for gpu in bed.machine.gpus)
        (cpu, gpu), cpu_w, gpu_w = _hold(bed)
        lifted = _is_lifted(bed) and bed.limits() == untouched
        bed.cycle(CAP)
        bed.wait(CYCLE_S)
        bed.host = None  # killed
        restored = _is_lifted(bed) and bed.limits() == untouched
        return MachineRow(
            title=spec.title,
            found=_found(name, bed),
            power_error=power_error,
            cpu=Cap(cpu.backend, cpu.result.value, cpu_w / natural_w),
            gpu=Cap(gpu.backend, gpu.result.value, gpu_w / gpu_natural_w) if spec.gpu_kinds else None,
            lifted=lifted,
            restored=restored,
        )


def _found(name: str, bed: Bed) -> str:
    """Sockets and cores of the whole machine, not of the one with two cores a die."""
    root = light_path("/machine")
    files = MachineFiles(Machine(MACHINES[name]), lambda: 0.0, root)
    info = cpuinfo.read(root / "proc", root / "sys", files)
    seen = bed.host.observation if bed.host else None
    gpus = f", {len(MACHINES[name].gpu_kinds)} GPUs" if seen and len(seen.gpus) == len(bed.machine.gpus) > 0 else ""
    return f"{info.sockets} x {(info.cores or 0) // (info.sockets or 1)} cores{gpus}"


def _power_w(bed: Bed) -> float:
    return sum(package.power_w for package in bed.machine.packages)


def _measure(bed: Bed) -> tuple[float | None, float]:
    """Relative error of the measured power, and the power that is drawn, W."""
    for _ in range(3):
        bed.cycle(LIFTED)
        bed.wait(CYCLE_S)
    bed.cycle(LIFTED)
    true_w = _power_w(bed)
    seen = bed.host.observation if bed.host else None
    measured_w = seen.cpu_power.package_power_w if seen else None
    return None if measured_w is None else abs(measured_w / true_w - 1.0), true_w


def _hold(bed: Bed) -> tuple[tuple[Outcome, Outcome], float, float]:
    """The usual outcomes under the cap once it has settled, and the mean power of CPUs and GPUs meanwhile, W."""
    for _ in range(_SETTLING_CYCLES):
        bed.cycle(CAP)
        bed.wait(CYCLE_S)
    began_j = _energies_j(bed)
    outcomes = []
    for _ in range(_HELD_CYCLES):
        outcomes.append(bed.cycle(CAP))
        bed.wait(CYCLE_S)
    cpu_j, gpu_j = _energies_j(bed)
    usual = Counter(outcomes).most_common(1)[0][0]
    held_s = _HELD_CYCLES * CYCLE_S
    return usual, (cpu_j - began_j[0]) / held_s, (gpu_j - began_j[1]) / held_s


def _energies_j(bed: Bed) -> tuple[float, float]:
    machine = bed.machine
    return sum(package.energy_j for package in machine.packages), sum(gpu.energy_j for gpu in machine.gpus)


def _is_lifted(bed: Bed) -> bool:
    """Whether an agent without a cap reports that nothing is left of one."""
    outcomes = bed.cycle(LIFTED)
    bed.wait(CYCLE_S)
    return all(outcome.message.startswith(RESTORED) for outcome in outcomes)
