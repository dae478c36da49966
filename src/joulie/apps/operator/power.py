"""Where the operator gets the power of nodes, and of the building, from.

Sources are read at their own pace and keep their last samples; a step takes what is there and judges its age. A source
that fails keeps its old samples, which then grow stale in plain sight.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

import httpx2

from joulie.adapters.control_http import HostTelemetry, HttpControl, HttpControlError
from joulie.adapters.prometheus import Prometheus, PrometheusError, Series, scrape
from joulie.apps.operator.settings import OperatorSettings
from joulie.domain.control import ControlledNode, Facility
from joulie.domain.control_power import SourceReadings
from joulie.domain.quantities import ZERO_CELSIUS_K

CONCURRENCY = 32
"""Requests to agents, or to endpoints of nodes, at once."""
_CPU_METRIC = "joulie_rapl_package_total_power_watts"
_GPU_METRIC = "joulie_gpu_power_watts"
_CYCLE_METRIC = "joulie_agent_last_cycle_timestamp_seconds"
_NODE_LABEL = "node"

T = TypeVar("T")

_log = logging.getLogger(__name__)

Samples = Mapping[str, tuple[float, float]]
"""Time (s since the epoch) and power (W) by node."""


class SourceError(RuntimeError):
    """A source that could not be read at all; the message says why."""


class NodePowerSource(Protocol):
    """Something that knows the power of whole nodes."""

    name: str
    """As NodeTwin's powerMeasurement.source has it."""

    async def read(self, nodes: Sequence[ControlledNode]) -> Samples:
        """Power of those nodes that it knows; one that it knows in part only is left out.

        Raises:
            SourceError: it knows nothing of any node, for a reason.
        """
        ...


class AgentSource:
    """RAPL and NVML as the agents publish them on /metrics.

    A sample is as old as the cycle that it was measured in: an agent that hangs, yet answers, tells of ever older ones.
    Agents that do not publish when that was are taken to have measured just now.

    Args:
        client: to ask with.
        urls: addresses of the agents' /metrics now.
        now_s: s since the epoch.
    """

    name = "rapl"

    def __init__(
        self, client: httpx2.AsyncClient, urls: Callable[[], Iterable[str]], now_s: Callable[[], float]
    ) -> None:
        self._client = client
        self._urls = urls
        self._now_s = now_s

    async def read(self, nodes: Sequence[ControlledNode]) -> Samples:
        """See `NodePowerSource.read`. A node with GPUs counts only if all of them were measured."""
        urls = sorted(set(self._urls()))
        cpu_w: dict[str, tuple[float, float]] = {}
        cycle_ended_s: dict[str, float] = {}
        gpus_w: dict[str, list[float]] = defaultdict(list)
        failures: list[str] = []

        async def ask(url: str) -> None:
            try:
                series = await scrape(self._client, url, (_CPU_METRIC, _GPU_METRIC, _CYCLE_METRIC))
            except PrometheusError as error:
                failures.append(str(error))
                return
            read_at_s = self._now_s()
            for one in series:
                node = one.labels.get(_NODE_LABEL)
                if node is None or one.value < 0.0:
                    continue
                if one.name == _CPU_METRIC:
                    cpu_w[node] = read_at_s, one.value
                elif one.name == _CYCLE_METRIC:
                    cycle_ended_s[node] = one.value
                else:
                    gpus_w[node].append(one.value)

        await _bounded(ask, urls)
        if failures:
            _log.warning("agents did not answer", extra={"agents": len(failures), "first": failures[0]})
        if urls and len(failures) == len(urls):
            raise SourceError(f"none of {len(urls)} agents answered: {failures[0]}")
        found: dict[str, tuple[float, float]] = {}
        for node in nodes:
            own, devices = cpu_w.get(node.name), _gpus(node)
            if own is not None and len(gpus_w.get(node.name, ())) == devices:
                read_at_s, power_w = own
                found[node.name] = cycle_ended_s.get(node.name, read_at_s), power_w + sum(gpus_w.get(node.name, ()))
        return found


class PrometheusSource:
    """Power of nodes as Prometheus has it."""

    name = "prometheus"

    def __init__(self, prometheus: Prometheus, query: str) -> None:
        """Ask `query`, whose series carry the label node."""
        self._prometheus = prometheus
        self._query = query

    async def read(self, nodes: Sequence[ControlledNode]) -> Samples:
        """See `NodePowerSource.read`; several series of a node are summed."""
        try:
            series = await self._prometheus.query(self._query)
        except PrometheusError as error:
            raise SourceError(str(error)) from error
        known = {node.name for node in nodes}
        found: dict[str, tuple[float, float]] = {}
        for one in series:
            node = one.labels.get(_NODE_LABEL)
            if node in known and one.time_s is not None and one.value >= 0.0:
                time_s, power_w = found.get(node, (one.time_s, 0.0))
                found[node] = min(time_s, one.time_s), power_w + one.value
        if series and not found:
            raise SourceError(f"{self._query!r}: no series has a label {_NODE_LABEL} that names a node in scope")
        return found


class HttpSource:
    """Telemetry over HTTP: the simulator's, or a management controller's gateway."""

    name = "http"

    def __init__(self, client: httpx2.AsyncClient, endpoint: str, now_s: Callable[[], float]) -> None:
        """Ask `endpoint`: of each node where it contains ``{node}``, else of all at once."""
        self._control = HttpControl(endpoint, None, client)
        self._by_node = "{node}" in endpoint
        self._now_s = now_s

    async def read(self, nodes: Sequence[ControlledNode]) -> Samples:
        """See `NodePowerSource.read`. A node with GPUs counts only if their power is told, too."""
        telemetry = await (self._each(nodes) if self._by_node else self._all())
        now_s = self._now_s()
        found: dict[str, tuple[float, float]] = {}
        for node in nodes:
            told = telemetry.get(node.name)
            if told is None or told.package_power_w is None or (told.gpu_power_w is None and _gpus(node)):
                continue
            found[node.name] = now_s, told.package_power_w + (told.gpu_power_w or 0.0)
        return found

    async def _all(self) -> Mapping[str, HostTelemetry]:
        try:
            return await self._control.all_telemetry()
        except HttpControlError as error:
            raise SourceError(str(error)) from error

    async def _each(self, nodes: Sequence[ControlledNode]) -> Mapping[str, HostTelemetry]:
        found: dict[str, HostTelemetry] = {}
        failures: list[str] = []

        async def ask(node: str) -> None:
            try:
                found[node] = await self._control.telemetry(node)
            except HttpControlError as error:
                failures.append(str(error))

        await _bounded(ask, [node.name for node in nodes])
        if failures:
            _log.warning("telemetry of nodes failed", extra={"nodes": len(failures), "first": failures[0]})
        if nodes and not found:
            raise SourceError(failures[0])
        return found


def _gpus(node: ControlledNode) -> int:
    return 0 if node.hardware.gpu is None else node.hardware.gpu.count


async def _bounded(ask: Callable[[T], Awaitable[None]], targets: Iterable[T]) -> None:
    """Ask all targets, at most `CONCURRENCY` at once."""
    queue = iter(targets)

    async def work() -> None:
        for target in queue:  # shared: each worker takes the next
            await ask(target)

    async with asyncio.TaskGroup() as group:
        for _ in range(CONCURRENCY):
            group.create_task(work())


class PowerFeed:
    """The last samples of all sources.

    Args:
        sources: best first.
        failed: called with the name of a source whose reading failed.
    """

    def __init__(
        self, sources: Sequence[NodePowerSource], failed: Callable[[str], None] = lambda _source: None
    ) -> None:
        self._sources = tuple(sources)
        self._failed = failed
        self._samples: dict[str, dict[str, tuple[float, float]]] = {source.name: {} for source in self._sources}

    async def read(self, nodes: Sequence[ControlledNode]) -> None:
        """Read all sources once. What one does not know this time keeps its old sample, and that its age."""
        await asyncio.gather(*(self._read(source, nodes) for source in self._sources))

    async def _read(self, source: NodePowerSource, nodes: Sequence[ControlledNode]) -> None:
        try:
            fresh = await source.read(nodes)
        except SourceError as error:
            self._failed(source.name)
            _log.warning("power source failed", extra={"source": source.name, "error": str(error)})
            return
        known = {node.name for node in nodes}
        kept = {node: sample for node, sample in self._samples[source.name].items() if node in known}
        self._samples[source.name] = {**kept, **fresh}

    def readings(self, nodes: Sequence[str]) -> list[SourceReadings]:
        """What each source said last, in the order of `nodes`."""
        return [SourceReadings.of(source.name, nodes, self._samples[source.name]) for source in self._sources]


class FacilityFeed:
    """Measurements of the building from Prometheus, with their age.

    Args:
        prometheus: to ask.
        settings: queries.
        now_s: s since the epoch.
        failed: called with the name of a query that failed.
    """

    def __init__(
        self,
        prometheus: Prometheus,
        settings: OperatorSettings,
        now_s: Callable[[], float],
        failed: Callable[[str], None] = lambda _query: None,
    ) -> None:
        self._prometheus = prometheus
        self._settings = settings
        self._now_s = now_s
        self._failed = failed
        self._values: dict[tuple[str, str], tuple[float, float]] = {}

    async def read(self, nodes: Sequence[ControlledNode]) -> None:
        """Ask for the building, and for the zones and racks of these nodes where there is a template."""
        settings = self._settings
        queries = {
            ("ambient", ""): settings.facility_ambient_query,
            ("it", ""): settings.facility_it_power_query,
            ("cooling", ""): settings.facility_cooling_power_query,
        }
        for kind, template, places in (
            ("zone", settings.facility_zone_ambient_template, {node.zone for node in nodes}),
            ("rack", settings.facility_rack_power_template, {node.rack for node in nodes}),
        ):
            if template:
                queries |= {(kind, place): template.replace("%s", _quoted(place)) for place in places if place}
        keys = {key for key, query in queries.items() if query}
        self._values = {key: value for key, value in self._values.items() if key in keys}

        async def ask(key: tuple[str, str]) -> None:
            try:
                value = _merged(await self._prometheus.query(queries[key]), mean=key[0] in {"ambient", "zone"})
            except PrometheusError as error:
                self._failed(key[0])
                _log.warning("facility metric failed", extra={"query": queries[key], "error": str(error)})
                return
            if value is not None:
                self._values[key] = self._now_s(), value

        await _bounded(ask, sorted(keys))

    def facility(self) -> Facility:
        """What is fresh of it."""
        oldest_s = self._now_s() - self._settings.power_stale_s
        fresh = {key: value for key, (time_s, value) in self._values.items() if time_s >= oldest_s}
        ambient_c = fresh.get(("ambient", ""))
        it_w, cooling_w = fresh.get(("it", "")), fresh.get(("cooling", ""))
        pue = None if it_w is None or cooling_w is None or it_w <= 0.0 else (it_w + max(0.0, cooling_w)) / it_w
        return Facility(
            ambient_k=None if ambient_c is None else _kelvin(ambient_c),
            zone_ambient_k={
                place: kelvin
                for (kind, place), celsius in fresh.items()
                if kind == "zone" and (kelvin := _kelvin(celsius)) is not None
            },
            rack_power_w={place: power for (kind, place), power in fresh.items() if kind == "rack" and power >= 0.0},
            pue=pue,
        )


def _kelvin(celsius: float) -> float | None:
    """Kelvin; None of a temperature below absolute zero, which a broken sensor may well report."""
    kelvin = celsius + ZERO_CELSIUS_K
    return kelvin if kelvin > 0.0 else None


def _merged(series: Sequence[Series], *, mean: bool) -> float | None:
    """One number of all series: their mean or their sum, None without any."""
    if not series:
        return None
    total = sum(one.value for one in series)
    return total / len(series) if mean else total


def _quoted(label_value: str) -> str:
    """A label's value as it stands between quotes in PromQL."""
    return label_value.replace("\\", "\\\\").replace('"', '\\"')
