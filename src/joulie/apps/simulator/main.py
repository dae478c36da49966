"""`joulie simulator`: the service as a program."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import click

from joulie.adapters.job_trace import JobTraceError, read_trace
from joulie.adapters.kubernetes.client import KubeClient
from joulie.apps.program import logs, tracing
from joulie.apps.program.http import Probes, Server, parse_address
from joulie.apps.program.run import every, run
from joulie.apps.program.settings import settings_options
from joulie.apps.simulator.api import Api
from joulie.apps.simulator.cluster import ClusterSide
from joulie.apps.simulator.metrics import SimulatorMetrics
from joulie.apps.simulator.settings import SimulatorSettings
from joulie.apps.simulator.trace_player import TracePlayer
from joulie.apps.simulator.world import Weather, World
from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie.domain.power.cpu import IdleStates
from joulie.domain.trace import TraceJob
from joulie.ports import CoolingPlant
from joulie.simulation.climate import Climate
from joulie.simulation.cooling import DxPlant, LinearPlant

_SHOWN_ERRORS = 10
_log = logging.getLogger(__name__)


@click.command("simulator")
@settings_options(SimulatorSettings)
def simulator(settings: SimulatorSettings) -> None:
    """Simulate the hardware and the work of a cluster's nodes behind an HTTP API.

    The nodes are those that SIM_NODE_SELECTOR selects; their labels say what hardware they are. Agents read telemetry
    and send caps by HTTP, pods of the scheduler's choice draw power, and the jobs of a trace advance under the caps in
    force, are completed and deleted.
    """
    logs.configure(settings.log_level, settings.log_format)
    tracing.configure("joulie-simulator")
    try:
        player = load_player(settings)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    run(lambda stop: serve(settings, player, stop), fast_loop=True)


async def serve(settings: SimulatorSettings, player: TracePlayer | None, stop: asyncio.Event) -> None:
    """Run the service until `stop` is set."""
    world = build_world(settings)
    metrics = SimulatorMetrics(world)
    probes = Probes()
    async with KubeClient.connect(
        kubeconfig=settings.kubeconfig, context=settings.context, user_agent="joulie-simulator"
    ) as client:
        side = ClusterSide(
            client, world, player, metrics, node_selector=settings.node_selector, catalogue=BUILTIN_CATALOGUE
        )
        probes.add("caches", side.why_not_ready)
        async with (
            Server(Api(world, player, metrics, probes).app(), parse_address(settings.address)) as server,
            asyncio.TaskGroup() as tasks,
        ):
            watches = [tasks.create_task(cache.run()) for cache in (side.nodes, side.pods)]
            _log.info("serving", extra={"port": server.port})
            await _when_synced(side, stop)
            async for _ in every(settings.tick_s, stop):
                await side.tick(settings.tick_s * settings.time_scale)
            for watch in watches:
                watch.cancel()


def build_world(settings: SimulatorSettings) -> World:
    """The world that settings describe, without nodes."""
    climate = Climate(mean_c=settings.ambient_mean_c, daily_amplitude_k=settings.ambient_amplitude_c)
    weather = Weather(climate, settings.seed)
    dx = DxPlant()
    # The published plant has one size; the proxy is as large as the cluster.
    plant_for: Callable[[float], CoolingPlant] = LinearPlant if settings.cooling == "linear" else lambda _peak_w: dx
    return World(weather, plant_for, idle_states=IdleStates(settings.idle_states), gpu_model=settings.gpu_throughput)


async def _when_synced(side: ClusterSide, stop: asyncio.Event) -> None:
    """Wait for the first lists: a world that starts without its nodes would lose the first jobs' time."""
    stopped = asyncio.create_task(stop.wait())
    for cache in (side.nodes, side.pods):
        synced = asyncio.create_task(cache.wait_synced())
        await asyncio.wait({synced, stopped}, return_when=asyncio.FIRST_COMPLETED)
        synced.cancel()
    stopped.cancel()


def load_player(settings: SimulatorSettings) -> TracePlayer | None:
    """The player of the trace that the settings name, if they do.

    Raises:
        ValueError: the trace cannot be used.
    """
    if settings.trace is None:
        return None
    jobs = _jobs(settings.trace, skip_bad_lines=settings.skip_bad_lines)
    return TracePlayer.of(jobs, settings.scheduler_name)


def _jobs(path: Path, *, skip_bad_lines: bool) -> list[TraceJob]:
    """All jobs of a trace.

    Raises:
        JobTraceError: lines are broken and were not to be skipped.
    """
    jobs: list[TraceJob] = []
    errors: list[str] = []
    for item in read_trace(path):
        if isinstance(item, JobTraceError):
            errors.append(str(item))
        else:
            jobs.append(item)
    if errors and not skip_bad_lines:
        more = [f"and {len(errors) - _SHOWN_ERRORS} more"] if len(errors) > _SHOWN_ERRORS else []
        hint = "SIM_TRACE_SKIP_BAD_LINES=true leaves them out"
        raise JobTraceError("\n".join([*errors[:_SHOWN_ERRORS], *more, hint]))
    for error in errors:
        _log.warning("line left out", extra={"error": error})
    return jobs
