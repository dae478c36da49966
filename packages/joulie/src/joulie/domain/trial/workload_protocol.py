"""The protocol of a trial of deferral: which workloads wait, and which start at once. This module needs no numpy."""

from __future__ import annotations

from dataclasses import dataclass

from joulie.domain.runtimes import workload_of
from joulie.domain.trial.holdout import left_out
from joulie.domain.trial.protocol import Arm


@dataclass(frozen=True)
class WorkloadProtocol:
    """What a trial of deferral does, fixed before it starts.

    Attributes:
        start_s: since when pods are drawn that are created, s since the epoch.
        end_s: until when, s since the epoch.
        seed: seed of the draw.
    """

    start_s: float
    end_s: float
    seed: int

    def covers(self, created_s: float) -> bool:
        """Whether a pod created at a time takes part; it then does to its end, which may come after the trial's."""
        return self.start_s <= created_s < self.end_s

    def arm_of(self, namespace: str, workload: str) -> Arm:
        """Whether chance lets a workload wait (treatment) or start at once (control)."""
        return Arm.CONTROL if left_out(f"{self.seed}/{namespace}/{workload}", 0.5) else Arm.TREATMENT


WORDS = {Arm.TREATMENT: "waits", Arm.CONTROL: "at-once"}
"""Arms in notes on pods."""


@dataclass(frozen=True)
class Drawn:
    """How a workload was drawn, as it is noted on its pods.

    Attributes:
        trial: name of the trial.
        arm: how.
        workload: name of the workload in the draw; its namespace is the pod's.
    """

    trial: str
    arm: Arm
    workload: str

    def __str__(self) -> str:
        return f"{self.trial} {WORDS[self.arm]} {self.workload}"

    @property
    def recorded(self) -> dict[str, str]:
        """The fields of a `joulie.domain.recording.PodRecord` that say the same."""
        return {"trial": self.trial, "trial_arm": self.arm.value, "trial_workload": self.workload}

    @classmethod
    def read(cls, text: str) -> Drawn | None:
        """What a note says; None if it says nothing that can be read."""
        trial, _, rest = text.partition(" ")
        word, _, workload = rest.partition(" ")
        arm = next((arm for arm, one in WORDS.items() if one == word), None)
        return cls(trial, arm, workload) if trial and workload and arm is not None else None


def drawn_name(namespace: str, kind: str, name: str) -> str | None:
    """The name by which an owner of pods is drawn: Jobs of one CronJob or template share it; None for services.

    Args:
        namespace: of the owner.
        kind: of the topmost owner that is known.
        name: of that owner.
    """
    found = workload_of(namespace, kind, name)
    return None if found is None else found.name
