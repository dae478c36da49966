"""Who says how much power pods draw, or how much they use: read anew for every sample, best source first.

A source that fails costs one cycle nothing but its answer: the next one is taken at once, and samples say so. Nothing
is kept from cycle to cycle, for a sample is about its own moment.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import KubernetesError
from joulie.adapters.kubernetes.metrics_server import MetricsUnavailableError, pod_usage
from joulie.adapters.prometheus import Prometheus, PrometheusError
from joulie.adapters.prometheus.cadvisor import Cadvisor
from joulie.adapters.prometheus.dcgm import Dcgm
from joulie.adapters.prometheus.kepler import Kepler
from joulie.adapters.prometheus.node_exporter import NodeCpus, NodeExporter
from joulie.adapters.prometheus.nodes import NodeIndex
from joulie.adapters.prometheus.readings import GpuDevice, PodPower
from joulie.domain.usage import PodKey, PodUsage

KEPLER = "kepler"
DCGM = "dcgm"
CADVISOR = "cadvisor"
METRICS_SERVER = "metrics-server"
NODE_EXPORTER = "node-exporter"
ENOUGH = 0.9
"""Share of the pods from which the Metrics Server is not asked: some are too young to have been measured."""
_ASK_AGAIN_S = 300.0

_NO_CPUS = NodeCpus({}, {})

T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Readings:
    """What was said of pods and GPUs at one moment. What nobody said has no entry.

    Attributes:
        power: of the work of pods, by Kepler, without idle power.
        idle_w: of the CPUs of nodes, by Kepler, W.
        usage: of CPU and memory by source, best first.
        gpus: all GPUs that DCGM knows, with the pods that hold them.
        cpus: of nodes, by node_exporter.
    """

    power: Mapping[PodKey, PodPower] = field(default_factory=dict)
    idle_w: Mapping[str, float] = field(default_factory=dict)
    usage: Mapping[str, PodUsage] = field(default_factory=dict)
    gpus: Sequence[GpuDevice] = ()
    cpus: NodeCpus = _NO_CPUS


class UsageReader:
    """Reads what pods draw and use.

    Args:
        client: to ask the Metrics Server with.
        prometheus: which scrapes Kepler, cAdvisor, DCGM and node_exporter; None for none.
        window_s: time over which rates are averaged, s; at least two scrapes.
        timeout_s: how long one source may take, s.
        now_s: a clock, s.

    Attributes:
        up: whether the last reading went well, by source; sources that were never asked are left out.
    """

    def __init__(
        self,
        client: KubeClient,
        prometheus: Prometheus | None,
        *,
        window_s: float,
        timeout_s: float,
        now_s: Callable[[], float],
    ) -> None:
        self.up: dict[str, bool] = {}
        self._client = client
        self._window_s = window_s
        self._timeout_s = timeout_s
        self._now_s = now_s
        self._no_metrics_server_since_s: float | None = None
        self._kepler = self._dcgm = self._cadvisor = self._node_exporter = None
        if prometheus is not None:
            self._kepler = Kepler(prometheus, window_s)
            self._dcgm = Dcgm(prometheus, window_s)
            self._cadvisor = Cadvisor(prometheus)
            self._node_exporter = NodeExporter(prometheus, window_s)

    async def read(self, pods: set[PodKey], index: NodeIndex) -> Readings:
        """Ask all that Prometheus has at once, and the Metrics Server where that leaves too many pods out.

        Who measures power does not say how busy pods are, which is shown, and needed wherever power is not measured.

        Args:
            pods: that run.
            index: nodes as exporters may call them.
        """
        (power, idle_w), gpus, use, cpus = await asyncio.gather(
            self._power(index), self._gpus(index), self._use_by_cadvisor(), self._cpus(index)
        )
        usage = {} if use is None else {CADVISOR: use}
        unknown = pods if use is None else pods - use.cpu_cores.keys()
        if len(unknown) > (1.0 - ENOUGH) * len(pods):
            use = await self._use_by_metrics_server()
            usage |= {} if use is None else {METRICS_SERVER: use}
        return Readings(power, idle_w, usage, gpus, cpus)

    async def _power(self, index: NodeIndex) -> tuple[Mapping[PodKey, PodPower], Mapping[str, float]]:
        """What Kepler says of the work of pods, and what CPUs draw without the work of anybody."""
        kepler = self._kepler
        if kepler is None:
            return {}, {}
        found = await self._asked(KEPLER, lambda: asyncio.gather(kepler.pods(), kepler.nodes(index)))
        if found is None:
            return {}, {}
        pods, nodes = found
        work = {node: reading.value for node, reading in nodes.cpu_dynamic.items()}
        idle_w = {node: max(0.0, reading.value - work[node]) for node, reading in nodes.cpu.items() if node in work}
        return pods, idle_w

    async def _gpus(self, index: NodeIndex) -> Sequence[GpuDevice]:
        dcgm = self._dcgm
        return () if dcgm is None else await self._asked(DCGM, lambda: dcgm.devices(index)) or ()

    async def _cpus(self, index: NodeIndex) -> NodeCpus:
        """How busy and how fast CPUs are."""
        exporter = self._node_exporter
        return (
            _NO_CPUS if exporter is None else await self._asked(NODE_EXPORTER, lambda: exporter.cpus(index)) or _NO_CPUS
        )

    async def _use_by_cadvisor(self) -> PodUsage | None:
        cadvisor = self._cadvisor
        return None if cadvisor is None else await self._asked(CADVISOR, lambda: cadvisor.pods(self._window_s))

    async def _use_by_metrics_server(self) -> PodUsage | None:
        """Nothing where the cluster has no Metrics Server, which is asked for again now and then."""
        since_s = self._no_metrics_server_since_s
        if since_s is not None and self._now_s() - since_s < _ASK_AGAIN_S:
            return None
        return await self._asked(METRICS_SERVER, self._metrics_server)

    async def _metrics_server(self) -> PodUsage | None:
        try:
            return await pod_usage(self._client)
        except MetricsUnavailableError:
            self._no_metrics_server_since_s = self._now_s()
            return None

    async def _asked(self, source: str, ask: Callable[[], Awaitable[T]]) -> T | None:
        """What a source says; None where it fails, which is logged when it begins to."""
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await ask()
        except (PrometheusError, KubernetesError, TimeoutError) as error:
            if self.up.get(source, True):
                _log.warning(
                    "source failed",
                    extra={"source": source, "error": str(error) or f"no answer in {self._timeout_s:g} s"},
                )
            self.up[source] = False
            return None
        if self.up.get(source) is False:
            _log.info("source is back", extra={"source": source})
        self.up[source] = True
        return answer
