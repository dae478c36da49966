"""Lives of the agent on modelled machines, with faults, in virtual time; a life is a seed.

Each life takes one machine through discovery, metering, caps, limits of the jobs on single GPUs, lifts, kills and
restarts, and ends with caps lifted. Up to three faults hit single accesses or a few in a row: errors, garbage, short
or stale reads, refused or ignored writes, limits that cannot be saved, lost or corrupt saved limits, reboots, kills
between any two accesses, pauses in which counters wrap. What is checked, against the machine's own state:

- no limit is ever above the one that an administrator or the firmware had set; where the saved limits were lost, not
  above the device's default;
- at the end everything is as it was found; nothing else was ever written. Where the saved limits were lost, a limit
  whose original nobody knows may stay, if the agent reports an error: such lives are counted. So are those in which
  they were lost before any report of the cap, since that is an administrator's limit for all one can tell;
- power that is reported is the power that was drawn: neither zero nor a part for what could not be read;
- a cap reported as applied holds on every device, and a job's limit on its GPU alone; limits reported as restored are.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from joulie.domain.actuation import WantedCap
from joulie_lab.benchmarks.lives.bed import CYCLE_S, LIFTED, Bed, small
from joulie_lab.benchmarks.lives.checks import Judge
from joulie_lab.benchmarks.lives.draws import (
    CAPPED_CYCLES,
    STATE_LOST,
    administer,
    draw_cap,
    draw_faults,
    draw_job_limits,
    draw_load,
)
from joulie_lab.benchmarks.lives.faults import Faults, Killed
from joulie_lab.machines.library import MACHINES

_QUIET_CYCLES = 2


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


def run_life(machine: str, seed: str, folder: Path) -> Life:
    """One life on a machine; it has at least one cap and one fault.

    Args:
        machine: name of the machine.
        seed: everything that is drawn follows from it.
        folder: folder for the saved limits; a fast one.
    """
    for attempt in range(100):
        rng, jobs = (random.Random(f"{machine} {seed} {attempt}{of}") for of in ("", " jobs"))  # noqa: S311
        life = _Run(machine, rng, jobs, folder).run()
        if life.faults or life.violations:
            return life
    raise RuntimeError(f"no fault came up on {machine} with seed {seed}")


class _Run:
    """A life while it lasts."""

    def __init__(self, machine: str, rng: random.Random, jobs: random.Random, folder: Path) -> None:
        self._rng = rng
        self._jobs = jobs
        self._spec = spec = small(MACHINES[machine])
        faults, self._between = draw_faults(machine, rng)
        self._bed = Bed(spec, draw_load(rng), Faults(faults), folder)
        administer(self._bed.machine, rng)
        self._judge = Judge(self._bed)
        self._caps = 0

    def run(self) -> Life:
        cap, limits = draw_cap(self._rng, self._spec), draw_job_limits(self._jobs, self._spec)
        for cycle in range(CAPPED_CYCLES + _QUIET_CYCLES):
            self._bed.faults.start_cycle(cycle)
            if self._jobs.random() < 0.3:
                limits = draw_job_limits(self._jobs, self._spec)
            if cycle >= CAPPED_CYCLES:
                cap, limits = LIFTED, ()
            elif cycle and self._rng.random() < 0.3:
                cap = LIFTED if self._rng.random() < 0.5 and self._caps else draw_cap(self._rng, self._spec)
            for kind in self._between.get(cycle, ()):
                self._strike(kind)
            self._caps += not cap.lifted
            self._cycle(cap, replace(cap, by_device=limits))
            self._pass_time(CYCLE_S)
        judge, met = self._judge, self._bed.faults.met
        judge.check_end()
        return Life(self._spec.name, self._caps, met, judge.violations, judge.unknown, judge.unnoticed)

    def _cycle(self, cap: WantedCap, gpu_cap: WantedCap) -> None:
        bed, judge = self._bed, self._judge
        try:
            cpu, gpu = bed.cycle(cap, gpu_cap)
        except Killed:
            bed.host = None
            judge.check_killed_cycle()
            return
        except Exception as error:
            judge.fail(f"raised {type(error).__name__}: {error}")
            bed.host = None
            return
        judge.check_cycle(cpu, gpu, cap, gpu_cap)

    def _strike(self, kind: str) -> None:
        """A fault between two cycles."""
        bed = self._bed
        bed.faults.met[kind] += 1
        if kind == "pause":
            bed.files.forget()  # a read may be late by a cycle, not by minutes
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
                self._judge.note_void_loss()
        elif kind == "reboot":
            bed.machine.boot()
            bed.files.forget()
            bed.reported.clear()  # older than the boot
            self._judge.note_boot()
            return
        if kind in STATE_LOST:
            self._judge.note_loss()

    def _pass_time(self, duration_s: float, *, sampled: bool = True) -> None:
        machine = self._bed.machine
        before_j, before_s = sum(package.energy_j for package in machine.packages), machine.now_s
        try:
            self._bed.wait(duration_s, sampled=sampled)
        except Killed:
            self._bed.host = None
            self._bed.wait(before_s + duration_s - self._bed.now_s)
        energy_j = sum(package.energy_j for package in machine.packages) - before_j
        self._judge.powers_w.append(energy_j / (machine.now_s - before_s))
