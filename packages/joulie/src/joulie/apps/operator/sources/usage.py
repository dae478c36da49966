"""CPU usage of pods and nodes: weights to attribute node power to pods, and utilisation of nodes without power sensors.

Sources are read in order of trust, the next one only while unmeasured pods remain, since each answer grows with the
number of pods in the cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from joulie.domain.signal import Reading
from joulie.domain.usage import PodKey
from joulie.program.sources import SourceStates

SUFFICIENT_SHARE = 0.9
"""Share of measured pods from which no further source is read: some pods are too young to be measured."""


@dataclass(frozen=True)
class PodWeights:
    """Weights of pods by one source.

    Attributes:
        source: name of the source.
        by_pod: busy cores of each pod; for Kepler its dynamic power, W.
        read_at_s: time of the reading, s since the epoch.
    """

    source: str
    by_pod: Mapping[PodKey, float]
    read_at_s: float


@dataclass(frozen=True)
class UsageSource:
    """A source of CPU usage of pods, and optionally of nodes.

    Attributes:
        name: name in POWER_SOURCES.
        pods: reads the weight of each pod.
        nodes: reads the busy cores of each node; may be empty.
    """

    name: str
    pods: Callable[[], Awaitable[Mapping[PodKey, float]]]
    nodes: Callable[[], Awaitable[Mapping[str, Reading]]]


class UsageFeed:
    """Reads usage and keeps the latest readings.

    Args:
        sources: sources, most trusted first.
        states: records the result of each reading.
        timeout_s: timeout per source, s.
        now_s: current time, s since the epoch.
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
            nodes: managed nodes without a power sensor, whose power is estimated from utilisation.
            pods: all pods that run on managed nodes.
        """
        unmeasured = pods
        for source in self._sources:
            if not nodes and len(unmeasured) <= (1.0 - SUFFICIENT_SHARE) * len(pods):
                # Earlier readings of a source that is no longer read would only become stale.
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
        """Weights of pods not older than `oldest_s`, most trusted source first."""
        found = (self._weights.get(source.name) for source in self._sources)
        return [one for one in found if one is not None and one.read_at_s >= oldest_s]

    def busy_cores(self, source: str) -> Mapping[str, Reading]:
        """Busy cores of nodes in the last reading of a source."""
        return self._busy.get(source, {})
