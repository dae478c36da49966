"""What pods and nodes use: by which work the power of a node is shared, and how busy a node without sensors is.

Sources are asked best first, and the next one only while pods are left that nobody measured: each answer is as long as
the cluster has pods.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from joulie.domain.signal import Reading
from joulie.domain.usage import PodKey
from joulie.program.sources import SourceStates

ENOUGH = 0.9
"""Share of the running pods from which no further source is asked: some are too young to have been measured."""


@dataclass(frozen=True)
class PodWeights:
    """The work of pods by one source.

    Attributes:
        source: its name.
        by_pod: cores, or watts of Kepler's.
        read_at_s: s since the epoch.
    """

    source: str
    by_pod: Mapping[PodKey, float]
    read_at_s: float


@dataclass(frozen=True)
class UsageSource:
    """Something that knows the work of pods, and perhaps how busy nodes are.

    Attributes:
        name: as POWER_SOURCES has it.
        pods: reads the work of each pod that it knows.
        nodes: reads the busy cores of each node that it knows; may be none.
    """

    name: str
    pods: Callable[[], Awaitable[Mapping[PodKey, float]]]
    nodes: Callable[[], Awaitable[Mapping[str, Reading]]]


class UsageFeed:
    """Reads usage and keeps what was said last.

    Args:
        sources: best first.
        states: told how each reading went.
        timeout_s: how long one source may take, s.
        now_s: s since the epoch.
    """

    def __init__(
        self, sources: Sequence[UsageSource], states: SourceStates, timeout_s: float, now_s: Callable[[], float]
    ) -> None:
        self._sources = tuple(sources)
        self._states = states
        self._timeout_s = timeout_s
        self._now_s = now_s
        self._weights: dict[str, PodWeights] = {}
        self._busy: dict[str, Mapping[str, Reading]] = {}

    async def read(self, nodes: set[str], pods: set[PodKey]) -> None:
        """Read the sources once.

        Args:
            nodes: those in scope whose power no sensor measures: how busy they are is what it is estimated from.
            pods: all that run on nodes in scope.
        """
        unmeasured = pods
        for source in self._sources:
            if not nodes and len(unmeasured) <= (1.0 - ENOUGH) * len(pods):
                # What it said before is not kept up any more.
                self._weights.pop(source.name, None)
                self._busy.pop(source.name, None)
                continue
            await self._read(source)
            await asyncio.sleep(0)
            nodes = nodes - self._busy.get(source.name, {}).keys()
            if source.name in self._weights:
                unmeasured = unmeasured - self._weights[source.name].by_pod.keys()

    async def _read(self, source: UsageSource) -> None:
        asking = asyncio.gather(source.nodes(), source.pods())
        found = await self._states.ask(source.name, asking, self._timeout_s, lambda answer: answer[1])
        if found is not None:
            self._busy[source.name], weights = found
            self._weights[source.name] = PodWeights(source.name, weights, self._now_s())

    def weights(self, oldest_s: float) -> list[PodWeights]:
        """The work of pods as sources said not before `oldest_s`, best source first."""
        found = (self._weights.get(source.name) for source in self._sources)
        return [one for one in found if one is not None and one.read_at_s >= oldest_s]

    def busy_cores(self, source: str) -> Mapping[str, Reading]:
        """Busy cores of nodes as a source said last."""
        return self._busy.get(source, {})
