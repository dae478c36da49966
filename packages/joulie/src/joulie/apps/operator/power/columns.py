"""What sources say of all nodes, as arrays, and which sources together make the power of a whole node.

A node's power is that of its CPU packages and its GPUs. Few sources know both, so the CPU part of one is completed by
the GPU part of another: of agents, DCGM, Kepler, or, as the last resort, of the hardware model. A node with GPUs counts
as measured only where all of them were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np

from joulie.domain.control_power import SourceReadings
from joulie.domain.power_estimate import PowerEstimate
from joulie.domain.signal import Reading
from joulie.domain.units import BoolArray, FloatArray

MODEL = "model"
"""The GPU part where the hardware model stands in."""
_AND = "+"


class Column(NamedTuple):
    """Power of one part of all nodes; arrays of shape ``(n_nodes,)``, NaN where it is not known.

    Attributes:
        time_s: s since the epoch.
        power_w: W.
        low_w: lower end of the interval that an estimate lies in, W; the power itself where it was measured.
        high_w: upper end, W.
    """

    time_s: FloatArray
    power_w: FloatArray
    low_w: FloatArray
    high_w: FloatArray

    @classmethod
    def of(cls, nodes: Sequence[str], readings: Mapping[str, Reading]) -> Self:
        """What was measured, in the order of `nodes`."""
        rows = np.full((len(nodes), 2), np.nan)
        if readings:
            nothing = (np.nan, np.nan)
            rows[:] = [readings.get(node, nothing) for node in nodes]
        power_w = rows[:, 1]
        return cls(rows[:, 0], power_w, power_w, power_w)

    @classmethod
    def estimated(cls, time_s: FloatArray, estimate: PowerEstimate) -> Self:
        """What a model makes of something that was true at `time_s`."""
        time_s = np.where(np.isnan(estimate.power_w), np.nan, time_s)
        return cls(time_s, estimate.power_w, estimate.low_w, estimate.high_w)

    @property
    def known(self) -> BoolArray:
        """Where there is a value."""
        return ~np.isnan(self.power_w)

    def where(self, wanted: BoolArray) -> Column:
        """This column without the nodes that are not wanted."""
        return Column(*(np.where(wanted, values, np.nan) for values in self))

    def without_stale(self, oldest_s: float, down: BoolArray) -> Column:
        """This column with samples of nodes that are down put back to the beginning of time, up to `oldest_s`."""
        return self._replace(time_s=np.where(down & (self.time_s <= oldest_s), 0.0, self.time_s))

    def or_nothing(self, absent: BoolArray) -> Column:
        """This column with 0 W, of whatever time, where there is nothing that could draw power."""
        return Column(np.where(absent, np.inf, self.time_s), *(np.where(absent, 0.0, values) for values in self[1:]))

    def plus(self, other: Column) -> Column:
        """Both parts together, as old as the older one; not known where one is not."""
        return Column(
            np.minimum(self.time_s, other.time_s),
            *(mine + others for mine, others in zip(self[1:], other[1:], strict=True)),
        )


@dataclass(frozen=True, eq=False)
class SourceColumns:
    """What one source says of all nodes.

    Attributes:
        name: as POWER_SOURCES has it.
        cpu: of all CPU packages of a node.
        gpu: of all GPUs of a node.
        whole: of whole nodes, where the source cannot tell the two apart.
    """

    name: str
    cpu: Column
    gpu: Column
    whole: Column

    def masked(self, cpu: BoolArray, gpu: BoolArray) -> SourceColumns:
        """This source without the parts that it may not be asked for."""
        return replace(self, cpu=self.cpu.where(cpu), gpu=self.gpu.where(gpu), whole=self.whole.where(cpu & gpu))

    def mapped(self, change: Callable[[Column], Column]) -> SourceColumns:
        """This source with all columns changed."""
        return replace(self, cpu=change(self.cpu), gpu=change(self.gpu), whole=change(self.whole))


@dataclass(frozen=True, eq=False)
class Candidate:
    """Power of nodes by one source, or by two that complete each other.

    Attributes:
        name: of the CPU's source, and of the GPUs' where that is another; see `sources_of`.
        cpu: CPU part; NaN where only the sum is known.
        gpu: GPU part; 0 W without GPUs, NaN where only the sum is known.
        total: of the node.
    """

    name: str
    cpu: Column
    gpu: Column
    total: Column

    @classmethod
    def of_whole(cls, name: str, whole: Column, has_gpus: BoolArray) -> Self:
        """Power of whole nodes; without GPUs that is the CPU part."""
        nothing = whole.where(np.zeros_like(has_gpus))
        return cls(name, whole.where(~has_gpus), nothing.or_nothing(~has_gpus), whole)

    @property
    def readings(self) -> SourceReadings:
        """As decisions take it."""
        known = self.total.known
        return SourceReadings(
            self.name,
            np.where(known, self.total.time_s, 0.0),
            np.where(known, self.total.power_w, 0.0),
            known,
        )


def sources_of(name: str) -> tuple[str, str]:
    """Source of the CPU part and source of the GPU part of a candidate."""
    cpu, _, gpu = name.partition(_AND)
    return cpu, gpu or cpu


def candidates(
    measured: Sequence[SourceColumns],
    gpus: Sequence[SourceColumns],
    estimated_cpu: Mapping[str, Column],
    modelled_gpu: Column,
    has_gpus: BoolArray,
) -> list[Candidate]:
    """All ways to know the power of nodes, best first: measured, then in part, then estimated.

    Args:
        measured: sources of CPU power or of whole nodes, most trusted first.
        gpus: sources of GPU power, most trusted first; one that is also in `measured` completes itself first.
        estimated_cpu: CPU power by the hardware model, by source of how busy it is, most trusted first.
        modelled_gpu: GPU power by the hardware model.
        has_gpus: which nodes have GPUs.
    """
    return [
        *(one for source in measured for one in _measured(source, gpus, has_gpus)),
        *(_joined(f"{source.name}{_AND}{MODEL}", source.cpu, modelled_gpu.where(has_gpus)) for source in measured),
        *(one for name, cpu in estimated_cpu.items() for one in _estimated(name, cpu, gpus, modelled_gpu, has_gpus)),
    ]


def _measured(source: SourceColumns, gpus: Sequence[SourceColumns], has_gpus: BoolArray) -> Iterator[Candidate]:
    if source.whole.known.any():
        yield Candidate.of_whole(source.name, source.whole, has_gpus)
    yield _joined(source.name, source.cpu, source.gpu.or_nothing(~has_gpus))
    for gpu in gpus:
        if gpu.name != source.name:
            yield _joined(f"{source.name}{_AND}{gpu.name}", source.cpu, gpu.gpu.where(has_gpus))


def _estimated(
    name: str, cpu: Column, gpus: Sequence[SourceColumns], modelled_gpu: Column, has_gpus: BoolArray
) -> Iterator[Candidate]:
    for gpu in gpus:
        yield _joined(f"{name}{_AND}{gpu.name}", cpu, gpu.gpu.where(has_gpus))
    yield _joined(name, cpu, modelled_gpu.or_nothing(~has_gpus))


def _joined(name: str, cpu: Column, gpu: Column) -> Candidate:
    return Candidate(name, cpu, gpu, cpu.plus(gpu))
