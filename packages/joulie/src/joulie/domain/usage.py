"""What pods use, by whomever it was measured. This module needs no numpy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PodKey = tuple[str, str]
"""Namespace and name of a pod."""


@dataclass(frozen=True)
class PodUsage:
    """CPU and memory of the pods of a cluster, measured together. A pod that was not measured has no entry.

    Attributes:
        cpu_cores: CPU time per second, cores.
        memory_bytes: working set, B.
    """

    cpu_cores: Mapping[PodKey, float]
    memory_bytes: Mapping[PodKey, float]
