"""The command `joulie agent`: connects the agent to the API server, device backends and HTTP endpoints."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import click
import httpx2

from joulie.adapters.control_http import HttpControl
from joulie.adapters.cpu.cpufreq import Cpufreq
from joulie.adapters.cpu.cpuinfo import CpuInfoReader
from joulie.adapters.cpu.hsmp import Hsmp
from joulie.adapters.cpu.rapl import Rapl, RaplMeter
from joulie.adapters.gpu.amdgpu import Amdgpu, AmdgpuMeter
from joulie.adapters.gpu.amdsmi import AmdSmi, AmdSmiMeter, amdsmi_session
from joulie.adapters.gpu.nvml import Nvml, NvmlClocks, NvmlMeter, nvml_session
from joulie.adapters.gpu.pci import AMD, NVIDIA, gpus_on_bus
from joulie.adapters.gpu.rocm_smi import RocmSmi
from joulie.adapters.hardware_yaml import catalogue_of
from joulie.adapters.kubelet.pod_resources import PodResources
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.slices import claimable_gpus
from joulie.adapters.saved_clocks import SavedClocks
from joulie.adapters.saved_limits import SavedLimits
from joulie.apps.agent.agent import CONCURRENCY, Agent, Scope
from joulie.apps.agent.claims import NamedClaims
from joulie.apps.agent.gpu_limits import GpuHolders
from joulie.apps.agent.gpus import GpuBackends
from joulie.apps.agent.handover import successor
from joulie.apps.agent.host import Host, HostBackends
from joulie.apps.agent.metering import Sampler
from joulie.apps.agent.metrics import registry
from joulie.apps.agent.node import NodeAgent
from joulie.apps.agent.remote import RemoteNode
from joulie.apps.agent.reporting import Reporter
from joulie.apps.agent.routing import Route, from_settings
from joulie.apps.agent.settings import AgentSettings
from joulie.domain.hardware import Catalogue
from joulie.host_files import OS_FILES, boot_id
from joulie.http_client import tls_context
from joulie.program import logs, tracing
from joulie.program.commands import Command, CommandGroup
from joulie.program.http import AddressError, Probes, Server, observability_app, parse_address
from joulie.program.run import run
from joulie.program.settings import settings_options

if TYPE_CHECKING:
    from joulie.apps.agent.queries import PowerQueries

_log = logging.getLogger(__name__)


_OTHERS = (
    Command("agent inspect", "joulie.apps.agent.inspection", "Show what Joulie finds on this machine and can cap."),
)


@click.group("agent", cls=CommandGroup, path="agent", lazy=_OTHERS, invoke_without_command=True)
@settings_options(AgentSettings)
def agent(settings: AgentSettings) -> None:
    """Enforce the power caps of nodes and report the results.

    In daemonset mode one agent runs on each node: it publishes the node's NodeHardware, brings CPUs and GPUs to the
    caps of its NodeTwin, and restores the limits that it found when it is stopped. In pool mode one agent serves many
    nodes over HTTP.
    """
    logs.configure(settings.log_level, settings.log_format)
    tracing.configure("joulie-agent")
    try:
        address = parse_address(settings.metrics_addr)
        catalogue = catalogue_of(settings.hardware_catalog)
    except (AddressError, ValueError) as error:
        raise click.UsageError(str(error)) from error
    # uvloop pays off in pools only; in a daemonset its memory would be used on every node.
    run(lambda stop: serve(settings, address, catalogue, stop), fast_loop=settings.mode == "pool")


async def serve(
    settings: AgentSettings,
    address: tuple[str, int],
    catalogue: Catalogue,
    stop: asyncio.Event,
    *,
    on_port: Callable[[int], None] = lambda _port: None,
) -> None:
    """Run the agent until `stop` is set.

    Args:
        settings: agent settings.
        address: listen address of metrics and probes.
        catalogue: hardware catalogue.
        stop: ends the agent when set.
        on_port: called with the port of metrics and probes.
    """
    host = build_host(settings, catalogue) if settings.mode == "daemonset" else None
    kubelet = PodResources(settings.pod_resources_socket)
    scope = (
        Scope(settings.node_name)
        if settings.mode == "daemonset"
        else Scope(None, settings.pool_node_selector, settings.pool_shards, settings.shard)
    )
    async with (
        KubeClient.connect(
            kubeconfig=settings.kubeconfig, context=settings.context, user_agent="joulie-agent"
        ) as client,
        _HttpClients() as endpoints,
    ):

        def make_node(name: str) -> NodeAgent:
            remote = RemoteNode(
                name, endpoints.control, endpoints.power_w, settings.dvfs, simulate_only=settings.simulate_only
            )
            boot = partial(_boot, settings.host_proc) if host is not None else lambda: None
            reporter = Reporter(client, name, time.time, boot)
            return NodeAgent(
                name,
                host,
                remote,
                reporter,
                catalogue,
                time.time,
                settings.default_mode,
                GpuHolders(NamedClaims(kubelet.gpus, partial(claimable_gpus, client, name), time.monotonic).gpus),
                settings.gpu_limit_lease_s,
            )

        loop = Agent(
            client,
            scope,
            make_node,
            from_settings(settings),
            settings.reconcile_interval_s,
            settings.restore_timeout_s,
            clock=time.monotonic,
        )
        ready, alive = Probes(), Probes()
        ready.add("agent", loop.why_not_ready)
        alive.add("agent", loop.why_not_alive)
        if host is not None:
            alive.add("gpu", host.why_not_alive)
        app = observability_app(ready, registry(loop.nodes.values), alive=alive)
        async with Server(app, address) as server:
            on_port(server.port)
            _log.info("started", extra={"mode": settings.mode, "port": server.port, "node": settings.node_name})
            async with _using(host):
                await loop.run(stop, restores=partial(_restores, settings, client))


async def _restores(settings: AgentSettings, client: KubeClient) -> bool:
    """Whether this agent, which is stopping, restores the original limits."""
    if not settings.restore_on_exit:
        return False
    if settings.node_name is None or not settings.daemonset_names:
        return True
    heir = await successor(client, settings.namespace, settings.daemonset_names, settings.node_name)
    if heir is not None:
        _log.info("limits stay: the next agent takes over", extra={"node": settings.node_name, "daemonset": heir})
    return heir is None


@asynccontextmanager
async def _using(host: Host | None) -> AsyncIterator[None]:
    """Sample energy counters between the cycles where needed; let the GPU drivers go at the end."""
    if host is None:
        yield
        return
    sampler = asyncio.create_task(Sampler(host.cpu_meter, time.monotonic).run())
    try:
        yield
    finally:
        sampler.cancel()
        host.hold_gpus("the agent has stopped")


def _boot(host_proc: Path) -> str | None:
    """Id of the host's boot, as the kubelet reports it too; None where it cannot be read."""
    try:
        return boot_id(OS_FILES, host_proc)
    except OSError:
        return None


def build_host(settings: AgentSettings, catalogue: Catalogue) -> Host:
    """Controller of the machine that the agent runs on, with all device backends."""
    backends = host_backends(settings, catalogue)
    return Host(backends, settings.dvfs, simulate_only=settings.simulate_only, gpu_clocks=settings.gpu_clocks)


def host_backends(settings: AgentSettings, catalogue: Catalogue) -> HostBackends:
    """All device backends of the machine that the agent runs on."""
    nvidia, amd = nvml_session(), amdsmi_session()
    host_sys, host_proc = settings.host_sys, settings.host_proc
    return HostBackends(
        cpu_info=CpuInfoReader(host_proc, host_sys).read,
        cpu_limiters=(Rapl(host_sys), Hsmp(settings.host_dev / "hsmp")),
        frequency=Cpufreq(host_sys),
        cpu_meters=(RaplMeter(host_sys),),
        gpus=(
            GpuBackends(NVIDIA, (Nvml(nvidia),), (NvmlMeter(nvidia),), (nvidia,)),
            GpuBackends(
                AMD, (Amdgpu(host_sys), AmdSmi(amd), RocmSmi()), (AmdgpuMeter(host_sys), AmdSmiMeter(amd)), (amd,)
            ),
        ),
        store=SavedLimits(settings.state_dir / "limits.json", host_proc),
        catalogue=catalogue,
        gpus_on_bus=partial(gpus_on_bus, host_sys),
        clocks=NvmlClocks(nvidia),
        clock_store=SavedClocks(settings.state_dir / "clocks.json", host_proc),
    )


class _HttpClients:
    """Clients of HTTP endpoints and Prometheus over one connection pool, created on first use."""

    def __init__(self) -> None:
        self._client: httpx2.AsyncClient | None = None
        self._queries: PowerQueries | None = None
        self._controls: dict[tuple[str | None, str | None], HttpControl] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if self._client is not None:
            await self._client.aclose()

    def control(self, telemetry_endpoint: str | None, control_endpoint: str | None) -> HttpControl:
        """Client of a telemetry and a control endpoint; None for an endpoint that is not used."""
        key = (telemetry_endpoint, control_endpoint)
        if key not in self._controls:
            self._controls[key] = HttpControl(telemetry_endpoint, control_endpoint, self._pool())
        return self._controls[key]

    async def power_w(self, node: str, route: Route) -> float | None:
        """CPU power of a node from Prometheus, W; None if unavailable."""
        if self._queries is None:
            # Imported on first use: few agents query Prometheus, and the module costs memory on every node.
            from joulie.apps.agent.queries import PowerQueries

            self._queries = PowerQueries(self._pool(), time.monotonic)
        return await self._queries.power_w(node, route)

    def _pool(self) -> httpx2.AsyncClient:
        if self._client is None:
            self._client = httpx2.AsyncClient(verify=tls_context(), limits=httpx2.Limits(max_connections=CONCURRENCY))
        return self._client
