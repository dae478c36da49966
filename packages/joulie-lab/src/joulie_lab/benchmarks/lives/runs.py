"""Many faulted lives of the agent, counted, beside what it does on each machine without faults."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from joulie_lab.adapters.executors import in_processes
from joulie_lab.benchmarks.lives.bed import state_folder
from joulie_lab.benchmarks.lives.life import Life, run_life
from joulie_lab.benchmarks.lives.machine_table import MachineRow, machine_row
from joulie_lab.benchmarks.results import Figures
from joulie_lab.machines.library import MACHINES

FULL_RUNS, SMALL_RUNS, SEED = 100_000, 500, 7
_CHUNK = 250
_SHOWN_VIOLATIONS = 100


class MachineCounts(Figures, frozen=True):
    """Lives on one machine, cycles with a cap, accesses and moments that went wrong, and violations."""

    lives: int
    caps: int
    faults: int
    violations: int


class LivesResult(Figures, frozen=True):
    """Lives with faults.

    Attributes:
        seed: seed of all lives.
        runs: number of lives.
        machines: counts by machine.
        faults: number of accesses and moments that went wrong, by kind.
        lives_with: number of lives with a fault of a kind.
        without_cap: number of lives without any cap.
        without_fault: number of lives without any fault.
        unknown: number of lives that end with a cap whose record was lost, as the agent reports.
        unnoticed: number of lives that end with a cap that nothing tells from an administrator's limit.
        violations: number of violations.
        shown: the first violations, with the number of their life.
        table: what the agent does on each machine without faults.
    """

    seed: int
    runs: int
    machines: dict[str, MachineCounts]
    faults: dict[str, int]
    lives_with: dict[str, int]
    without_cap: int
    without_fault: int
    unknown: int
    unnoticed: int
    violations: int
    shown: tuple[str, ...]
    table: dict[str, MachineRow]


@dataclass(frozen=True)
class _Chunk:
    """Numbers of lives that run in one process."""

    machines: tuple[str, ...]
    seed: int
    numbers: range


def measure(
    *, runs: int, seed: int, first: int, machines: Sequence[str], n_workers: int, tell: Callable[[str], None]
) -> LivesResult:
    """Run lives, and the agent without faults on each machine.

    Args:
        runs: number of lives.
        seed: seed of all lives.
        first: number of the first life; a life follows from seed and number.
        machines: machines that the lives take turns on; empty for all.
        n_workers: number of processes.
        tell: called with lines of progress.
    """
    names = tuple(machines) or tuple(MACHINES)
    chunks = [
        _Chunk(names, seed, range(start, min(start + _CHUNK, first + runs)))
        for start in range(first, first + runs, _CHUNK)
    ]
    counted = _Counted()
    for done, lives in enumerate(in_processes(_run_chunk, chunks, n_workers), start=1):
        for number, life in lives:
            counted.add(number, life)
        if done % max(1, len(chunks) // 20) == 0:
            tell(f"{min(done * _CHUNK, runs):,} of {runs:,} lives, {counted.n_violations} violations")
    return LivesResult(
        seed=seed,
        runs=runs,
        machines={name: counted.of_machine(name) for name in names},
        faults=dict(sorted(counted.faults.items())),
        lives_with=dict(sorted(counted.lives_with.items())),
        without_cap=counted.without_cap,
        without_fault=counted.without_fault,
        unknown=counted.unknown,
        unnoticed=counted.unnoticed,
        violations=counted.n_violations,
        shown=tuple(sorted(counted.violations)[:_SHOWN_VIOLATIONS]),
        table={name: machine_row(name) for name in names},
    )


def _run_chunk(chunk: _Chunk) -> list[tuple[int, Life]]:
    logging.disable(logging.CRITICAL)  # the agent reports each fault
    try:
        with state_folder() as folder:
            return [
                (number, run_life(chunk.machines[number % len(chunk.machines)], f"{chunk.seed} {number}", folder))
                for number in chunk.numbers
            ]
    finally:
        logging.disable(logging.NOTSET)


class _Counted:
    """Sums over lives."""

    def __init__(self) -> None:
        self.lives: Counter[str] = Counter()
        self.caps: Counter[str] = Counter()
        self.faults_on: Counter[str] = Counter()
        self.violations_on: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.lives_with: Counter[str] = Counter()
        self.without_cap = self.without_fault = self.unknown = self.unnoticed = 0
        self.violations: list[str] = []

    @property
    def n_violations(self) -> int:
        return sum(self.violations_on.values())

    def add(self, number: int, life: Life) -> None:
        self.lives[life.machine] += 1
        self.caps[life.machine] += life.caps
        self.faults_on[life.machine] += sum(life.faults.values())
        self.faults.update(life.faults)
        self.lives_with.update(life.faults.keys())
        self.without_cap += not life.caps
        self.without_fault += not life.faults
        self.unknown += life.unknown
        self.unnoticed += life.unnoticed
        self.violations_on[life.machine] += len(life.violations)
        self.violations += [f"life {number} on {life.machine}: {what}" for what in life.violations[:3]]

    def of_machine(self, name: str) -> MachineCounts:
        return MachineCounts(self.lives[name], self.caps[name], self.faults_on[name], self.violations_on[name])
