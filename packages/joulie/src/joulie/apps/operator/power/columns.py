"""Readings of all nodes as arrays, and combinations of sources for the power of whole nodes.

A node's power is the sum of its CPU packages and its GPUs. Few sources measure both, so the CPU part of one is combined
with the GPU part of another: of agents, DCGM, Kepler, or as a last resort of the hardware model. A node with GPUs
counts as measured only if all of them were.
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
"""Name of the GPU part of a candidate whose GPU power is from the hardware model."""
_AND = "+"


class Column(NamedTuple):
    """Power of one part (CPUs, GPUs or the whole) of all nodes; arrays of shape ``(n_nodes,)``, NaN if unknown.

    Attributes:
        time_s: time of the sample, s since the epoch.
        power_w: power, W.
        low_w: lower bound of an estimate, W; equal to the power if measured.
        high_w: upper bound of an estimate, W; equal to the power if measured.
    """

    time_s: FloatArray
    power_w: FloatArray
    low_w: FloatArray
    high_w: FloatArray

    @classmethod
    def of(cls, nodes: Sequence[str], readings: Mapping[str, Reading]) -> Self:
        """Measured readings, in the order of `nodes`."""
        rows = np.full((len(nodes), 2), np.nan)
        if readings:
            nothing = (np.nan, np.nan)
            rows[:] = [readings.get(node, nothing) for node in nodes]
        power_w = rows[:, 1]
        return cls(rows[:, 0], power_w, power_w, power_w)

    @classmethod
    def estimated(cls, time_s: FloatArray, estimate: PowerEstimate) -> Self:
        """An estimate by the hardware model from inputs measured at `time_s`."""
        time_s = np.where(np.isnan(estimate.power_w), np.nan, time_s)
        return cls(time_s, estimate.power_w, estimate.low_w, estimate.high_w)

    @property
    def known(self) -> BoolArray:
        """Which nodes have a value."""
        return ~np.isnan(self.power_w)

    def where(self, wanted: BoolArray) -> Column:
        """This column restricted to the wanted nodes; NaN for the others."""
        return Column(*(np.where(wanted, values, np.nan) for values in self))

    def without_stale(self, oldest_s: float, down: BoolArray) -> Column:
        """This column with samples up to `oldest_s` marked as stale (time 0) for nodes whose source is down."""
        return self._replace(time_s=np.where(down & (self.time_s <= oldest_s), 0.0, self.time_s))

    def or_nothing(self, absent: BoolArray) -> Column:
        """This column with 0 W (always fresh) for nodes on which the part is absent."""
        return Column(np.where(absent, np.inf, self.time_s), *(np.where(absent, 0.0, values) for values in self[1:]))

    def plus(self, other: Column) -> Column:
        """Sum of both parts, with the older time; NaN if either is unknown."""
        return Column(
            np.minimum(self.time_s, other.time_s),
            *(mine + others for mine, others in zip(self[1:], other[1:], strict=True)),
        )


@dataclass(frozen=True, eq=False)
class SourceColumns:
    """Readings of one source for all nodes.

    Attributes:
        name: source name in POWER_SOURCES.
        cpu: power of all CPU packages of a node.
        gpu: power of all GPUs of a node.
        whole: power of whole nodes, if the source cannot separate CPUs and GPUs.
    """

    name: str
    cpu: Column
    gpu: Column
    whole: Column

    def masked(self, cpu: BoolArray, gpu: BoolArray) -> SourceColumns:
        """These readings restricted to the nodes for which the source may be used, by part."""
        return replace(self, cpu=self.cpu.where(cpu), gpu=self.gpu.where(gpu), whole=self.whole.where(cpu & gpu))

    def mapped(self, change: Callable[[Column], Column]) -> SourceColumns:
        """These readings with a function applied to all columns."""
        return replace(self, cpu=change(self.cpu), gpu=change(self.gpu), whole=change(self.whole))


@dataclass(frozen=True, eq=False)
class Candidate:
    """Power of nodes by one source, or by a combination of two.

    Attributes:
        name: name of the CPU's source, and of the GPUs' source if that differs; see `sources_of`.
        cpu: CPU part; NaN if only the sum is known.
        gpu: GPU part; 0 W without GPUs, NaN if only the sum is known.
        total: power of the node.
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

    @classmethod
    def of_parts(cls, whole: SourceColumns, gpu: SourceColumns, has_gpus: BoolArray) -> Self:
        """Power of whole nodes, of which another source measured the GPUs; the CPU part is all the rest."""
        part = gpu.gpu.where(has_gpus & (gpu.gpu.power_w <= whole.whole.power_w))
        rest = whole.whole.plus(Column(part.time_s, *(-values for values in part[1:])))
        return cls(f"{whole.name}{_AND}{gpu.name}", rest, part, rest.plus(part))

    @property
    def readings(self) -> SourceReadings:
        """The readings in the form that decisions use."""
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
    """All combinations of sources for the power of nodes: fully measured, then partly measured, then estimated.

    Args:
        measured: sources of CPU power or of whole nodes, most trusted first.
        gpus: sources of GPU power, most trusted first; a source in both lists is combined with itself first.
        estimated_cpu: CPU power by the hardware model, by source of the utilisation, most trusted first.
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
        for gpu in gpus:
            yield Candidate.of_parts(source, gpu, has_gpus)
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
