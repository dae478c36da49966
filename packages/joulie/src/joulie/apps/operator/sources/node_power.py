"""Sources of node power. Each is read for all nodes at once and returns samples with their time."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import httpx2

from joulie.adapters.control_http import HostTelemetry, HttpControl, HttpControlError
from joulie.adapters.prometheus import Prometheus
from joulie.adapters.prometheus.dcgm import Dcgm
from joulie.adapters.prometheus.nodes import NodeIndex
from joulie.adapters.prometheus.readings import NodePower
from joulie.domain.control import ControlledNode
from joulie.domain.gpu_holders import GpuDevice
from joulie.domain.signal import Reading
from joulie.ports.telemetry import SourceError

CONCURRENCY = 32
"""Maximum number of concurrent requests to endpoints of nodes."""
_NODE_LABEL = "node"

T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Parts:
    """Power by node and part. A part that is measured incompletely (one of two GPUs) has no entry.

    Attributes:
        cpu: power of all CPU packages, W.
        gpu: power of all GPUs, W.
        whole: power of the node, if the source cannot separate CPUs and GPUs, W.
    """

    cpu: Mapping[str, Reading] = field(default_factory=dict)
    gpu: Mapping[str, Reading] = field(default_factory=dict)
    whole: Mapping[str, Reading] = field(default_factory=dict)

    def nodes(self) -> set[str]:
        """Nodes with at least one measured part."""
        return self.cpu.keys() | self.gpu.keys() | self.whole.keys()


class NodePowerSource(Protocol):
    """A source of node power."""

    name: str
    """Name in POWER_SOURCES."""

    async def read(self, nodes: Sequence[ControlledNode]) -> Parts:
        """Read the power of these nodes, as far as the source has it.

        Raises:
            SourceError: the read failed for all nodes.
        """
        ...


class QuerySource:
    """Power of whole nodes by a PromQL query from the settings."""

    name = "prometheus"

    def __init__(self, prometheus: Prometheus, query: str) -> None:
        """Read `query`, whose series must have the label ``node``."""
        self._prometheus = prometheus
        self._query = query

    async def read(self, nodes: Sequence[ControlledNode]) -> Parts:
        """See `NodePowerSource.read`; several series of a node are summed."""
        series = await self._prometheus.query(self._query)
        known = {node.name for node in nodes}
        found: dict[str, Reading] = {}
        for one in series:
            node = one.labels.get(_NODE_LABEL)
            if node in known and one.time_s is not None and one.value >= 0.0:
                time_s, power_w = found.get(node, Reading(one.time_s, 0.0))
                found[node] = Reading(min(time_s, one.time_s), power_w + one.value)
        if series and not found:
            raise SourceError(f"{self._query!r}: no series has a label {_NODE_LABEL} that names a node in scope")
        return Parts(whole=found)


class ExporterSource:
    """Power of nodes measured by agents or by an exporter.

    Args:
        name: name in POWER_SOURCES.
        ask: reads the power of the nodes with the given names.
        rejected: called with the number of ignored series, by reason.
    """

    def __init__(
        self,
        name: str,
        ask: Callable[[Collection[str]], Awaitable[NodePower]],
        rejected: Callable[[str, Mapping[str, int]], None] = lambda _source, _counts: None,
    ) -> None:
        self.name = name
        self._ask = ask
        self._rejected = rejected
        self.dynamic_w: Mapping[str, float] = {}
        """Dynamic CPU power, the part that the exporter attributes to work, by node, W."""

    async def read(self, nodes: Sequence[ControlledNode]) -> Parts:
        """See `NodePowerSource.read`. A part is included only if all packages, or all GPUs, of a node were measured."""
        sockets = {node.name: node.hardware.cpu.sockets for node in nodes}
        gpus = {node.name: gpus_of(node) for node in nodes}
        power = await self._ask(sockets.keys())
        self._rejected(self.name, {reason.value: count for reason, count in power.rejected.items()})
        self.dynamic_w = {node: reading.value for node, reading in power.cpu_dynamic.items()}
        return Parts(
            cpu={
                node: reading
                for node, reading in power.cpu.items()
                if node in sockets and power.cpu_count.get(node, sockets[node]) >= sockets[node]
            },
            gpu={node: reading for node, reading in power.gpu.items() if power.gpu_count.get(node) == gpus.get(node)},
            whole={node: reading for node, reading in power.whole.items() if node in sockets},
        )


class DcgmSource:
    """Power of GPUs by NVIDIA's DCGM exporter, which also reports the pods that hold them.

    Attributes:
        devices: GPUs of the last read.
    """

    name = "dcgm"

    def __init__(self, dcgm: Dcgm, index: Callable[[], NodeIndex]) -> None:
        self._dcgm = dcgm
        self._index = index
        self.devices: tuple[GpuDevice, ...] = ()

    async def read(self, nodes: Sequence[ControlledNode]) -> Parts:
        """See `NodePowerSource.read`. A node is included only if all of its GPUs were measured."""
        try:
            self.devices = tuple(await self._dcgm.devices(self._index()))
        except SourceError:
            self.devices = ()
            raise
        by_node: dict[str, dict[str, Reading | None]] = defaultdict(dict)
        for device in self.devices:
            by_node[device.node][device.uuid] = device.power_w
        gpu: dict[str, Reading] = {}
        for node in nodes:
            readings = [reading for reading in by_node.get(node.name, {}).values() if reading is not None]
            if readings and len(readings) == gpus_of(node):
                gpu[node.name] = Reading(min(one.time_s for one in readings), sum(one.value for one in readings))
        return Parts(gpu=gpu)


class HttpSource:
    """Telemetry over HTTP, from the simulator or a gateway to management controllers."""

    name = "http"

    def __init__(self, client: httpx2.AsyncClient, endpoint: str, now_s: Callable[[], float]) -> None:
        """Read `endpoint`: once per node if it contains ``{node}``, else once for all nodes."""
        self._control = HttpControl(endpoint, None, client)
        self._by_node = "{node}" in endpoint
        self._now_s = now_s

    async def read(self, nodes: Sequence[ControlledNode]) -> Parts:
        """See `NodePowerSource.read`."""
        telemetry = await (self._each(nodes) if self._by_node else self._control.all_telemetry())
        return telemetry_parts(telemetry, nodes, self._now_s())

    async def _each(self, nodes: Sequence[ControlledNode]) -> Mapping[str, HostTelemetry]:
        found: dict[str, HostTelemetry] = {}
        failures: list[str] = []

        async def ask(node: str) -> None:
            try:
                found[node] = await self._control.telemetry(node)
            except HttpControlError as error:
                failures.append(str(error))

        await bounded(ask, [node.name for node in nodes])
        if failures:
            _log.warning("cannot read telemetry of nodes", extra={"nodes": len(failures), "first": failures[0]})
        if nodes and not found:
            raise SourceError(failures[0])
        return found


def telemetry_parts(telemetry: Mapping[str, HostTelemetry], nodes: Sequence[ControlledNode], now_s: float) -> Parts:
    """Answers of telemetry endpoints as readings of the current time; GPU power of a node without GPUs is ignored."""
    cpu: dict[str, Reading] = {}
    gpu: dict[str, Reading] = {}
    for node in nodes:
        answer = telemetry.get(node.name)
        if answer is None:
            continue
        if answer.package_power_w is not None:
            cpu[node.name] = Reading(now_s, answer.package_power_w)
        if answer.gpu_power_w is not None and gpus_of(node):
            gpu[node.name] = Reading(now_s, answer.gpu_power_w)
    return Parts(cpu, gpu)


def gpus_of(node: ControlledNode) -> int:
    """Number of GPUs of a node."""
    return 0 if node.hardware.gpu is None else node.hardware.gpu.count


async def bounded(ask: Callable[[T], Awaitable[None]], targets: Iterable[T]) -> None:
    """Call `ask` for all targets, at most `CONCURRENCY` at a time."""
    queue = iter(targets)

    async def work() -> None:
        for target in queue:  # shared: each worker takes the next
            await ask(target)

    async with asyncio.TaskGroup() as group:
        for _ in range(CONCURRENCY):
            group.create_task(work())
