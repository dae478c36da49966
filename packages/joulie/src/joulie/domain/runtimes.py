"""How long workloads run, learned from their earlier runs. This module needs no numpy."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

MIN_RUNS = 3
"""Minimum number of finished runs from which a runtime is learned."""
MAX_RUNS = 50
"""Number of a workload's latest runs that count."""
_SERVICES = frozenset({"Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Node", ""})
"""Kinds of owners whose pods run until they are replaced; mirror pods belong to nodes."""
_GENERATED = re.compile(r"-(?:[bcdfghjklmnpqrstvwxz2456789]{5}|\d{6,}(?:-\d+)?)$", re.ASCII)
"""Suffix of a generated name: Kubernetes' five letters and digits, or a time such as 20261123-0830."""


class Workload(NamedTuple):
    """Whose runs are alike: those of a CronJob, of Jobs of one template, or of another owner of pods."""

    namespace: str
    kind: str
    name: str
    """Of the owner, without the generated suffix: Jobs made from one template share it."""


def workload_of(namespace: str, kind: str, name: str) -> Workload | None:
    """The workload of an owner of pods; None for services, whose pods do not end by themselves.

    Args:
        namespace: of the owner.
        kind: of the owner: the CronJob, else the Job, else the controller of the pods.
        name: of the owner.
    """
    return None if kind in _SERVICES else Workload(namespace, kind, _GENERATED.sub("", name))


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a workload, or the part of it that is known.

    Attributes:
        uid: UID of the Job, else of the pod.
        workload: whose run it is.
        started_s: start of its first pod, s since the epoch.
        ended_s: end of its last pod, s since the epoch.
        ran_s: time between them in which a pod ran, s: a suspended Job does not.
        finished: whether a pod has succeeded. Runs that only failed say nothing about how long the work takes.
    """

    uid: str
    workload: Workload
    started_s: float
    ended_s: float
    ran_s: float
    finished: bool

    def joined(self, other: Run) -> Run:
        """This run with another pod's part. A part that is known already adds nothing."""
        after_s = max(0.0, other.ended_s - max(other.started_s, self.ended_s))
        before_s = max(0.0, min(other.ended_s, self.started_s) - other.started_s)
        return replace(
            self,
            started_s=min(self.started_s, other.started_s),
            ended_s=max(self.ended_s, other.ended_s),
            ran_s=self.ran_s + before_s + after_s,
            finished=self.finished or other.finished,
        )


class LearnedRuntime(NamedTuple):
    """The runtime of a workload, from its earlier runs."""

    runtime_s: float
    """s."""
    quantile: float
    """Share of the runs that took no longer."""
    runs: int
    """How many there are."""


def learned_runtime(durations_s: Sequence[float], quantile: float) -> LearnedRuntime | None:
    """The runtime that a share of the runs did not exceed; None from fewer than `MIN_RUNS`.

    It is the duration of a run: the shortest for which the share holds, so of few runs the longest.

    Args:
        durations_s: of the runs, s.
        quantile: the share, 0..1.
    """
    if len(durations_s) < MIN_RUNS:
        return None
    rank = max(1, math.ceil(quantile * len(durations_s)))
    return LearnedRuntime(sorted(durations_s)[rank - 1], quantile, len(durations_s))
