"""Resource use of pods, whichever exporter measured it. This module needs no numpy."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

PodKey = tuple[str, str]
"""Namespace and name of a pod."""
METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,199}")
"""What a pod may name as its progress: never a query, which would run with the reader's rights."""


@dataclass(frozen=True)
class PodUsage:
    """CPU and memory of the pods of a cluster, measured together. A pod that was not measured has no entry.

    Attributes:
        cpu_cores: CPU time per second, cores.
        memory_bytes: working set, B.
    """

    cpu_cores: Mapping[PodKey, float]
    memory_bytes: Mapping[PodKey, float]
