"""The form of the learned trees: rows of a table, the first of which is the root."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from joulie.domain.workload import Level


class Target(StrEnum):
    """What a tree predicts. Those that gain too little are not part of the classifier."""

    CPU_INTENSITY = "cpu-intensity"
    CPU_SENSITIVITY = "cpu-sensitivity"
    """Of workloads without GPUs."""
    FED_CPU_SENSITIVITY = "fed-cpu-sensitivity"
    """Of workloads whose CPUs feed GPUs."""
    GPU_INTENSITY = "gpu-intensity"
    GPU_SENSITIVITY = "gpu-sensitivity"


class Split(NamedTuple):
    """A question: is a feature above a threshold?

    Attributes:
        feature: by name.
        above: the threshold, in the unit of the feature.
        then: row to go to if it is.
        otherwise: row to go to if it is not.
    """

    feature: str
    above: int
    then: int
    otherwise: int


class Leaf(NamedTuple):
    """An answer.

    Attributes:
        level: None where the rules decide.
    """

    level: Level | None


Tree = tuple[Split | Leaf, ...]
