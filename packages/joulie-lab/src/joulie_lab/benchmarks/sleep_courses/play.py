"""Courses: first with faults, then without until all that can run has run; results of one and of many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from joulie.domain.sleep.snapshot import ConsolidationSettings, SleepNode, SleepSettings
from joulie_lab.adapters.executors import in_processes
from joulie_lab.benchmarks.results import Figures
from joulie_lab.benchmarks.sleep_courses.cluster import Cluster
from joulie_lab.benchmarks.sleep_courses.operator import Operator

SETTINGS = SleepSettings(
    empty_s=60.0,
    settle_s=30.0,
    wake_timeout_s=180.0,
    obey_looks=12,
    wake_attempts=2,
    failed_s=300.0,
    max_waking=2,
    consolidation=ConsolidationSettings(
        max_nodes=1,
        max_moves=2,
        min_age_s=30.0,
        lost_s=60.0,
        restart_s=10.0,
        boot_s=60.0,
        gain=1.0,
        held_looks=5,
        timeout_s=180.0,
        pause_s=120.0,
    ),
)
FAULTY_STEPS = 90
PEACEFUL_STEPS = 400
FULL_COURSES = 10_000
SMALL_COURSES = 60
_CHUNK = 50


@dataclass(frozen=True)
class Outcome:
    """Result of a course.

    Attributes:
        seed: its seed.
        pods: pods created.
        finished: pods that ended by themselves.
        lost: running pods whose node was switched off.
        unexplained: pending pods to which a decision gave no reason.
        stranded: pods that could have run and have not, long after the last fault.
        too_many_waking: steps in which more nodes were waking than may.
        sleeps: nodes switched off.
        wakes: nodes told to wake.
        given_up: nodes given up.
        emptied: nodes whose pods were all moved.
        moves: pods moved from nodes that are emptied.
        moved_fixed: pods moved that must stay, or more nodes emptied at once than may.
        faults: faults by name.
        slept_share: share of all node-steps in which a node was off.
    """

    seed: int
    pods: int
    finished: int
    lost: int
    stranded: int
    unexplained: int = 0
    too_many_waking: int = 0
    sleeps: int = 0
    wakes: int = 0
    given_up: int = 0
    emptied: int = 0
    moves: int = 0
    moved_fixed: int = 0
    faults: Mapping[str, int] = field(default_factory=dict)
    slept_share: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether nothing happened that must not."""
        return not (self.lost or self.unexplained or self.stranded or self.too_many_waking or self.moved_fixed)


class Course:
    """One random course."""

    def __init__(self, seed: int, settings: SleepSettings = SETTINGS) -> None:
        self._seed = seed
        self._rng = np.random.default_rng(seed)
        settings = replace(settings, min_awake=int(self._rng.integers(2)))
        self._cluster = Cluster(seed, self._rng)
        self._operator = Operator(self._cluster, settings, seed)
        self._seen: list[list[SleepNode]] = []
        self._off_steps = 0

    def play(self) -> Outcome:
        """Play it to its end."""
        cluster, steps = self._cluster, 0
        for step in range(FAULTY_STEPS + PEACEFUL_STEPS):
            if step < FAULTY_STEPS:
                cluster.disturb()
                cluster.arrive()
                if step == FAULTY_STEPS - 1:
                    cluster.want_all()
            elif all(pod.done or not cluster.can_run(pod) for pod in cluster.pods):
                break
            self._live()
            steps += 1
        return Outcome(
            self._seed,
            pods=len(cluster.pods),
            finished=sum(pod.done for pod in cluster.pods),
            lost=cluster.lost,
            stranded=sum(not pod.done and cluster.can_run(pod) for pod in cluster.pods),
            faults=cluster.faults,
            slept_share=self._off_steps / (len(cluster.nodes) * max(1, steps)),
            **self._operator.counts,
        )

    def _live(self) -> None:
        """One step: the cluster lives, the scheduler binds and the operator decides, each by a view that may be old."""
        cluster = self._cluster
        cluster.live()
        self._seen = [*self._seen[-2:], [cluster.read(node) for node in cluster.nodes]]
        if not cluster.api_down:
            cluster.schedule(self._seen[0 if self._rng.random() < 0.5 else -1])
        self._operator.step(self._seen[0 if cluster.api_down else int(self._rng.integers(len(self._seen)))])
        self._off_steps += sum(not node.on for node in cluster.nodes)


class SleepResult(Figures, frozen=True):
    """Sums over all courses; see `Outcome`."""

    courses: int
    broken: int
    without_fault: int
    pods: int
    finished: int
    lost: int
    unexplained: int
    stranded: int
    too_many_waking: int
    sleeps: int
    wakes: int
    given_up: int
    slept_pct: float
    faults: Mapping[str, int]
    emptied: int = 0
    moves: int = 0
    moved_fixed: int = 0


_SUMMED = (
    *("pods", "finished", "lost", "unexplained", "stranded", "too_many_waking"),
    *("sleeps", "wakes", "given_up", "emptied", "moves", "moved_fixed"),
)


def play_courses(
    courses: int, *, first: int = 0, n_workers: int = 1, note: Callable[[str], None] = lambda _text: None
) -> SleepResult:
    """Play a number of courses.

    Args:
        courses: number of courses.
        first: seed of the first; each has the next one.
        n_workers: number of processes.
        note: told of progress, and of courses in which something happened that must not.
    """
    last = first + courses
    chunks = [range(start, min(start + _CHUNK, last)) for start in range(first, last, _CHUNK)]
    outcomes: list[Outcome] = []
    for played in in_processes(_play, chunks, n_workers):
        outcomes += played
        for outcome in played:
            if not outcome.holds:
                note(str(outcome))
        if len(outcomes) // 1000 > (len(outcomes) - len(played)) // 1000:
            note(f"{len(outcomes):,} of {courses:,} courses")
    faults: Counter[str] = Counter()
    for outcome in outcomes:
        faults.update(outcome.faults)
    return SleepResult(
        courses=len(outcomes),
        broken=sum(not outcome.holds for outcome in outcomes),
        without_fault=sum(not outcome.faults for outcome in outcomes),
        slept_pct=100.0 * float(np.mean([outcome.slept_share for outcome in outcomes])),
        faults=dict(sorted(faults.items())),
        **{name: sum(getattr(outcome, name) for outcome in outcomes) for name in _SUMMED},
    )


def _play(seeds: range) -> list[Outcome]:
    return [Course(seed).play() for seed in seeds]
