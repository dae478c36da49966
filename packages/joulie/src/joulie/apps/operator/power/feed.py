"""Latest samples of all power sources. If a source fails, its old samples are kept and become stale."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from joulie.apps.operator.power.columns import Column, SourceColumns
from joulie.apps.operator.sources.node_power import NodePowerSource, Parts
from joulie.domain.control import ControlledNode
from joulie.domain.signal import Reading
from joulie.program.sources import SourceStates

_PARTS = tuple(field.name for field in fields(Parts))


@dataclass
class _Kept:
    """Samples of one source, and the same as arrays in the order of `nodes`."""

    parts: Parts
    nodes: tuple[ControlledNode, ...] | None = None
    columns: SourceColumns | None = None


class PowerFeed:
    """Reads all sources and keeps their latest samples.

    Args:
        sources: sources in any order, with unique names.
        states: records the result of each reading.
        timeout_s: timeout per reading, s, so that a hanging source does not delay the others for long.

    Attributes:
        sources: the given sources.
    """

    def __init__(self, sources: Sequence[NodePowerSource], states: SourceStates, timeout_s: float) -> None:
        self.sources = tuple(sources)
        self._states = states
        self._timeout_s = timeout_s
        self._kept = {source.name: _Kept(Parts()) for source in self.sources}

    async def read(self, nodes: Sequence[ControlledNode]) -> None:
        """Read all sources once. A node missing from a reading keeps its old sample with its old time."""
        await asyncio.gather(*(self._read(source, nodes) for source in self.sources))

    async def _read(self, source: NodePowerSource, nodes: Sequence[ControlledNode]) -> None:
        fresh = await self._states.ask(source.name, source.read(nodes), self._timeout_s, Parts.nodes)
        if fresh is not None:
            known = {node.name for node in nodes}
            old = self._kept[source.name].parts
            merged = {part: _merged(getattr(old, part), getattr(fresh, part), known) for part in _PARTS}
            self._kept[source.name] = _Kept(Parts(**merged))

    def columns(self, name: str, nodes: tuple[ControlledNode, ...]) -> SourceColumns:
        """Latest samples of a source, in the order of `nodes`."""
        kept = self._kept[name]
        if kept.nodes is not nodes or kept.columns is None:
            names = [node.name for node in nodes]
            kept.columns = SourceColumns(
                name,
                Column.of(names, kept.parts.cpu),
                Column.of(names, kept.parts.gpu),
                Column.of(names, kept.parts.whole),
            )
            kept.nodes = nodes
        return kept.columns


def _merged(old: Mapping[str, Reading], fresh: Mapping[str, Reading], known: set[str]) -> dict[str, Reading]:
    return {node: reading for node, reading in {**old, **fresh}.items() if node in known}
