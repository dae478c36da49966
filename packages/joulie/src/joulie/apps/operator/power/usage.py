"""What pods and nodes use: by which work the power of a node is shared, and how busy a node without sensors is.

Sources are asked best first, and the next one only while pods are left that nobody measured: each answer is as long as
the cluster has pods.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import KubernetesError
from joulie.adapters.kubernetes.metrics_server import MetricsUnavailableError, node_usage, pod_usage
from joulie.adapters.prometheus import PrometheusError
from joulie.adapters.prometheus.cadvisor import Cadvisor
from joulie.adapters.prometheus.kepler import Kepler
from joulie.adapters.prometheus.nodes import NodeIndex
from joulie.apps.operator.power.sources import SourceError
from joulie.apps.operator.power.states import SourceStates
from joulie.domain.signal import Reading
from joulie.domain.usage import PodKey

WATTS_SOURCE = "kepler"
"""The source whose weights are dynamic watts; those of the others are cores."""
ENOUGH = 0.9
"""Share of the running pods from which no further source is asked: some are too young to have been measured."""


_ASK_AGAIN_S = 300.0

T = TypeVar("T")


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


class UsageSource(Protocol):
    """Something that knows the work of pods, and perhaps how busy nodes are."""

    name: str

    async def pods(self) -> Mapping[PodKey, float]:
        """The work of each pod that it knows.

        Raises:
            SourceError: it knows nothing, for a reason.
        """
        ...

    async def nodes(self) -> Mapping[str, Reading]:
        """Busy cores of each node that it knows; may be none.

        Raises:
            SourceError: it knows nothing, for a reason.
        """
        ...


class KeplerUsage:
    """Dynamic CPU power of pods by Kepler."""

    name = WATTS_SOURCE

    def __init__(self, kepler: Kepler) -> None:
        self._kepler = kepler

    async def pods(self) -> Mapping[PodKey, float]:
        """See `UsageSource.pods`; W."""
        try:
            power = await self._kepler.pods()
        except PrometheusError as error:
            raise SourceError(str(error)) from error
        return {pod: one.cpu_w for pod, one in power.items() if one.cpu_w is not None}

    async def nodes(self) -> Mapping[str, Reading]:
        """Nothing: its nodes are read as a source of power."""
        return {}


class CadvisorUsage:
    """Busy cores by cAdvisor, over Prometheus."""

    name = "cadvisor"

    def __init__(self, cadvisor: Cadvisor, index: Callable[[], NodeIndex], window_s: float) -> None:
        self._cadvisor = cadvisor
        self._index = index
        self._window_s = window_s

    async def pods(self) -> Mapping[PodKey, float]:
        """See `UsageSource.pods`; cores."""
        try:
            return (await self._cadvisor.pods(self._window_s)).cpu_cores
        except PrometheusError as error:
            raise SourceError(str(error)) from error

    async def nodes(self) -> Mapping[str, Reading]:
        """See `UsageSource.nodes`."""
        try:
            return await self._cadvisor.nodes(self._index(), self._window_s)
        except PrometheusError as error:
            raise SourceError(str(error)) from error


class MetricsServerUsage:
    """Busy cores by Metrics Server, over the Kubernetes API. A cluster without one is asked again now and then.

    Args:
        client: to ask with.
        now_s: s since the epoch.
    """

    name = "metrics-server"

    def __init__(self, client: KubeClient, now_s: Callable[[], float]) -> None:
        self._client = client
        self._now_s = now_s
        self._missing_since_s = -math.inf

    async def pods(self) -> Mapping[PodKey, float]:
        """See `UsageSource.pods`; cores. Nothing where the cluster has no Metrics Server."""
        usage = await self._asked(pod_usage)
        return {} if usage is None else usage.cpu_cores

    async def nodes(self) -> Mapping[str, Reading]:
        """See `UsageSource.nodes`. Nothing where the cluster has no Metrics Server."""
        return await self._asked(node_usage) or {}

    async def _asked(self, ask: Callable[[KubeClient], Awaitable[T]]) -> T | None:
        if self._now_s() - self._missing_since_s < _ASK_AGAIN_S:
            return None
        try:
            return await ask(self._client)
        except MetricsUnavailableError:
            self._missing_since_s = self._now_s()
            return None
        except KubernetesError as error:
            raise SourceError(str(error)) from error


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
        try:
            async with asyncio.timeout(self._timeout_s):
                busy, weights = await asyncio.gather(source.nodes(), source.pods())
        except TimeoutError:
            self._states.failed(source.name, f"no answer within {self._timeout_s:g} s")
        except SourceError as error:
            self._states.failed(source.name, str(error))
        else:
            self._busy[source.name] = busy
            self._weights[source.name] = PodWeights(source.name, weights, self._now_s())
            self._states.answered(source.name, len(weights))

    def weights(self, oldest_s: float) -> list[PodWeights]:
        """The work of pods as sources said not before `oldest_s`, best source first."""
        found = (self._weights.get(source.name) for source in self._sources)
        return [one for one in found if one is not None and one.read_at_s >= oldest_s]

    def busy_cores(self, source: str) -> Mapping[str, Reading]:
        """Busy cores of nodes as a source said last."""
        return self._busy.get(source, {})
