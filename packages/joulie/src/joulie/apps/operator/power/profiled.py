"""Sources of power and ambient temperature that TelemetryProfiles define for their nodes."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import httpx2
import numpy as np

from joulie.adapters.control_http import HostTelemetry, HttpControl, HttpControlError
from joulie.adapters.kubernetes.api import v1alpha1 as api
from joulie.adapters.prometheus import Prometheus, PrometheusError, Series
from joulie.adapters.prometheus.nodes import NodeIndex
from joulie.apps.operator.power.facility import kelvin
from joulie.apps.operator.sources.catalogue import PROFILE_HTTP, PROFILE_PROMETHEUS
from joulie.apps.operator.sources.node_power import Parts, bounded, gpus_of
from joulie.apps.operator.telemetry import Route
from joulie.domain.control import ControlledNode
from joulie.domain.signal import Reading
from joulie.domain.units import BoolArray
from joulie.ports.telemetry import SourceError

_NODE = "{node}"
_TIMEOUT_S = 3.0

Routes = Callable[[], Mapping[str, Route]]
"""Returns the effective profile by node."""
Servers = Callable[[str], Prometheus]
"""Returns the client of a Prometheus by address."""


class Allowed(NamedTuple):
    """Which kinds of source each node's TelemetryProfile allows; arrays of shape ``(n_nodes,)``.

    Attributes:
        by_any: any of the operator's own sources, since no profile sets a source.
        by_host: agents.
        by_profile: a source defined by a profile.
        by_model: estimates.
    """

    by_any: BoolArray
    by_host: BoolArray
    by_profile: BoolArray
    by_model: BoolArray

    @classmethod
    def of(cls, stated: Sequence[api.Source | None]) -> Allowed:
        """Masks for one part of the nodes, from the source that each node's profile sets; None if it sets none."""
        kinds = np.array(["" if source is None else str(source.type) for source in stated], dtype=object)
        any_ = np.asarray(kinds == "", dtype=np.bool_)
        return cls(
            any_,
            any_ | np.asarray(kinds == api.SourceType.HOST.value, dtype=np.bool_),
            np.isin(kinds, (api.SourceType.HTTP.value, api.SourceType.PROMETHEUS.value)),
            np.asarray(kinds != api.SourceType.NONE.value, dtype=np.bool_),
        )


def allowed(nodes: Sequence[ControlledNode], routes: Mapping[str, Route]) -> tuple[Allowed, Allowed]:
    """Masks for CPUs and for GPUs, from the TelemetryProfiles of nodes."""
    if not routes:
        everybody = np.ones(len(nodes), dtype=np.bool_)
        anybody = Allowed(everybody, everybody, ~everybody, everybody)
        return anybody, anybody
    stated = [routes[node.name].sources if node.name in routes else api.Sources() for node in nodes]
    return Allowed.of([one.cpu for one in stated]), Allowed.of([one.gpu for one in stated])


class ProfiledHttp:
    """HTTP endpoints defined by profiles; one request serves all parts of a node with the same endpoint.

    Attributes:
        failed: error message by node whose endpoint did not answer, or not completely.
        ambient: ambient temperature by node, degrees Celsius.
    """

    name = PROFILE_HTTP

    def __init__(self, client: httpx2.AsyncClient, routes: Routes, now_s: Callable[[], float]) -> None:
        self._client = client
        self._routes = routes
        self._now_s = now_s
        self.failed: dict[str, str] = {}
        self.ambient: dict[str, Reading] = {}

    async def read(self, nodes: Sequence[ControlledNode]) -> Parts:
        """See `NodePowerSource.read`."""
        wanted = [
            (node, part, source.http)
            for node in nodes
            for part, source in _sources(self._routes().get(node.name))
            if source.http is not None
        ]
        answers, failed = await self._answers(
            {(node.name, http.endpoint): float(http.timeout_seconds or _TIMEOUT_S) for node, _, http in wanted}
        )
        now_s = self._now_s()
        found: dict[str, dict[str, Reading]] = {"cpu": {}, "gpu": {}, "context": {}}
        for node, part, http in wanted:
            answer = answers.get((node.name, http.endpoint))
            value = None if answer is None else _value(answer, part)
            if value is not None:
                found[part][node.name] = Reading(now_s, value)
            elif answer is not None and (part != "gpu" or gpus_of(node)):
                failed[node.name] = f"the answer of {http.endpoint} lacks: {part}"
        self.failed = failed
        self.ambient = _last_samples(self.ambient, failed) | found["context"]
        return _parts(found, failed)

    async def _answers(
        self, timeouts_s: Mapping[tuple[str, str], float]
    ) -> tuple[dict[tuple[str, str], HostTelemetry], dict[str, str]]:
        """Answers by node and endpoint, and error messages by node."""
        answers: dict[tuple[str, str], HostTelemetry] = {}
        failed: dict[str, str] = {}

        async def ask(target: tuple[str, str]) -> None:
            node, endpoint = target
            try:
                async with asyncio.timeout(timeouts_s[target]):
                    answers[target] = await HttpControl(endpoint, None, self._client).telemetry(node)
            except (HttpControlError, TimeoutError) as error:
                failed[node] = str(error) or f"no answer from {endpoint} within {timeouts_s[target]:g} s"

        await bounded(ask, sorted(timeouts_s))
        return answers, failed


class ProfiledPrometheus:
    """Prometheus queries defined by profiles; nodes with identical queries share one request.

    Attributes:
        failed: error message by node whose query failed, or whose answer has no series of the node.
        ambient: ambient temperature by node, degrees Celsius.
    """

    name = PROFILE_PROMETHEUS

    def __init__(self, servers: Servers, routes: Routes, index: Callable[[], NodeIndex]) -> None:
        self._servers = servers
        self._routes = routes
        self._index = index
        self.failed: dict[str, str] = {}
        self.ambient: dict[str, Reading] = {}

    async def read(self, nodes: Sequence[ControlledNode]) -> Parts:
        """See `NodePowerSource.read`."""
        routes = self._routes()
        wanted: dict[tuple[str, str], list[_Wanted]] = defaultdict(list)
        for node in nodes:
            for part, source in _sources(routes.get(node.name)):
                if source.prometheus is not None:
                    text = source.prometheus.query.replace(_NODE, node.name)
                    alone = routes[node.name].named or text != source.prometheus.query
                    wanted[source.prometheus.address, text].append(_Wanted(node.name, part, alone))
        found: dict[str, dict[str, Reading]] = {"cpu": {}, "gpu": {}, "context": {}}
        failed: dict[str, str] = {}
        index = self._index()

        async def ask(query: tuple[str, str]) -> None:
            address, text = query
            try:
                series = await self._servers(address).query(text)
            except PrometheusError as error:
                failed.update({one.node: str(error) for one in wanted[query]})
                return
            by_node = _by_node(series, index)
            for one in wanted[query]:
                reading = _reading(by_node, one)
                if reading is None:
                    failed[one.node] = f"{text!r}: no series is about the node"
                else:
                    found[one.part][one.node] = reading

        await bounded(ask, sorted(wanted))
        self.failed = failed
        self.ambient = _last_samples(self.ambient, failed) | found["context"]
        return _parts(found, failed)


def _last_samples(old: Mapping[str, Reading], failed: Mapping[str, str]) -> dict[str, Reading]:
    """The last samples of nodes whose read failed: they are kept and become stale."""
    return {node: reading for node, reading in old.items() if node in failed}


def _parts(found: Mapping[str, Mapping[str, Reading]], failed: Mapping[str, str]) -> Parts:
    """The readings by part.

    Raises:
        SourceError: all reads failed.
    """
    if failed and not any(found.values()):
        raise SourceError(f"cannot read any of {len(failed)} nodes: {next(iter(failed.values()))}")
    return Parts(found["cpu"], found["gpu"])


def node_ambient_k(readings: Mapping[str, Reading], oldest_s: float) -> dict[str, float]:
    """Ambient temperature by node, K, from readings in degrees Celsius not older than `oldest_s`."""
    return {
        node: temperature_k
        for node, reading in readings.items()
        if reading.time_s >= oldest_s and (temperature_k := kelvin(reading.value)) is not None
    }


class _Wanted(NamedTuple):
    """A part of a node that a query is to provide."""

    node: str
    part: str
    alone: bool
    """Whether the query is for this node alone, so that series without a node name belong to it."""


def _value(answer: HostTelemetry, part: str) -> float | None:
    return {"cpu": answer.package_power_w, "gpu": answer.gpu_power_w, "context": answer.ambient_c}[part]


def _sources(route: Route | None) -> Iterator[tuple[str, api.Source]]:
    """The sources in a node's profile, by part."""
    if route is None:
        return
    for part, source in (("cpu", route.sources.cpu), ("gpu", route.sources.gpu), ("context", route.sources.context)):
        if source is not None:
            yield part, source


def _by_node(series: Iterable[Series], index: NodeIndex) -> dict[str | None, list[Series]]:
    found: dict[str | None, list[Series]] = defaultdict(list)
    for one in series:
        found[index.node_of(one.labels)].append(one)
    return found


def _reading(by_node: Mapping[str | None, Sequence[Series]], wanted: _Wanted) -> Reading | None:
    """The node's reading: the sum of its series for power, the mean for temperature; None without a valid series."""
    series = by_node.get(wanted.node) or (by_node.get(None, ()) if wanted.alone and len(by_node) == 1 else ())
    power = wanted.part != "context"
    known = [one for one in series if one.time_s is not None and (one.value >= 0.0 or not power)]
    if not known:
        return None
    total = sum(one.value for one in known)
    return Reading(min(one.time_s or 0.0 for one in known), total if power else total / len(known))
