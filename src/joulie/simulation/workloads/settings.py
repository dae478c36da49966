"""The knobs of the generator of job traces."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GeneratorSettings:
    """What is generated.

    Attributes:
        workloads_per_hour: mean arrival rate of workloads, 1/h.
    """

    workloads_per_hour: float = 60.0
