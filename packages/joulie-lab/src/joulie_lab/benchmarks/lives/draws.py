"""What is drawn for a life: its load, caps, faults, and the limits that an administrator had lowered."""

from __future__ import annotations

import errno
import random
from collections import Counter
from functools import lru_cache

from joulie.domain.actuation import WantedCap
from joulie_lab.benchmarks.lives.bed import CYCLE_S, LIFTED, Bed, small, state_folder
from joulie_lab.benchmarks.lives.faults import Fault, Faults
from joulie_lab.machines.library import MACHINES
from joulie_lab.machines.machine import Machine
from joulie_lab.machines.specs import Load, Spec

CAPPED_CYCLES = 5
"""Cycles in which caps are asked for and faults come up."""

_READ_ERRORS = (errno.EIO, errno.EACCES, errno.ENODATA, errno.EBUSY, errno.ENODEV, errno.EINVAL)
_WRITE_ERRORS = (*_READ_ERRORS, errno.EPERM, errno.EROFS, errno.ETIMEDOUT)
_GARBAGE = ("", "\n", "NaN\n", "-1\n", "<unknown>\n", "1 2\n", "0x10\n", "1e9\n", "18446744073709551616000\n", "\x00\n")
STATE_LOST = ("state lost", "state corrupt")
_BETWEEN = (*STATE_LOST, "state of another boot", "reboot", "pause", "killed between cycles")
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


def draw_load(rng: random.Random) -> Load:
    """A load of three parts of a minute each, again and again."""
    shares = [rng.choice((0.0, 0.2, 0.6, 1.0, rng.random())) for _ in range(3)]
    return Load(tuple((60.0 * number, share) for number, share in enumerate(shares)), 180.0)


def draw_cap(rng: random.Random, spec: Spec) -> WantedCap:
    """A cap in watts or percent."""
    if rng.random() < 0.3:
        return WantedCap(cap_w=round(spec.cpu.tdp_w * rng.uniform(0.3, 1.1)))
    return WantedCap(percent=rng.choice((40.0, 60.0, 60.0, 80.0, 95.0)))


def draw_job_limits(rng: random.Random, spec: Spec) -> tuple[tuple[str, float], ...]:
    """Limits of the jobs on some of the GPUs, W, as `WantedCap.by_device` has them; some are out of a GPU's range."""
    return tuple(
        (gpu, float(round(kind.max_w * rng.uniform(0.2, 1.1))))
        for gpu, kind in zip(spec.gpu_ids, spec.gpu_kinds, strict=True)
        if rng.random() < 0.6
    )


def administer(machine: Machine, rng: random.Random) -> None:
    """Limits that an administrator has lowered, on half of the machines, on each device or on some."""
    if rng.random() < 0.5:
        return
    for package in machine.packages:
        share = rng.choice((1.0, 0.4, 0.62, 0.9))
        for limits in package.limits.values():
            limits.power_w[0] = int(limits.power_w[0] * share * 8) / 8
        if package.hsmp_w is not None:
            package.hsmp_w = max(round(package.hsmp_w * share), machine.spec.hsmp.min_w if machine.spec.hsmp else 0.0)
    for gpu, kind in zip(machine.gpus, machine.spec.gpu_kinds, strict=True):
        gpu.limit_w = max(round(gpu.limit_w * rng.choice((1.0, 0.5, 0.8))), kind.min_w)


def draw_faults(machine: str, rng: random.Random) -> tuple[list[Fault], dict[int, list[str]]]:
    """Faults of accesses, and faults between cycles by cycle."""
    accesses: list[Fault] = []
    between: dict[int, list[str]] = {}
    counts = _calls_a_cycle(machine)
    possible = [kind for kind in KINDS if kind not in _CALLS or counts[_CALLS[kind]]]
    for _ in range(rng.choice((1, 1, 2, 3))):
        kind, cycle = rng.choice(possible), rng.randrange(CAPPED_CYCLES)
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
        bed.cycle(LIFTED)
        bed.wait(CYCLE_S)
        bed.faults.start_cycle(1)
        bed.cycle(WantedCap(percent=60.0))
        return Counter(bed.faults.calls)
