"""`joulie simulator`: the service as a program."""

from __future__ import annotations

import asyncio
import logging
import math
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import click

from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.power_sweeps import read_power_sweeps
from joulie.domain.capping.replay import true_jobs
from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie.program import logs, tracing
from joulie.program.http import Probes, Server, parse_address
from joulie.program.run import every, run
from joulie.program.settings import settings_options
from joulie_lab.adapters.job_trace import JobTraceError, read_trace
from joulie_lab.apps.simulator.api import Api
from joulie_lab.apps.simulator.clock import SimulatedClock
from joulie_lab.apps.simulator.cluster import ClusterSync, GpuJobs
from joulie_lab.apps.simulator.demand import Demand, DemandPlay
from joulie_lab.apps.simulator.metrics import SimulatorMetrics
from joulie_lab.apps.simulator.recorder import Recorder
from joulie_lab.apps.simulator.results import write_outcome
from joulie_lab.apps.simulator.run import Run, RunState
from joulie_lab.apps.simulator.settings import SimulatorSettings
from joulie_lab.apps.simulator.trace_player import TracePlayer
from joulie_lab.apps.simulator.world import World
from joulie_lab.simulation.climate import Climate
from joulie_lab.simulation.cooling import DxPlant, LinearPlant
from joulie_lab.simulation.cooling_plant import CoolingPlant
from joulie_lab.simulation.experiment.outcome import Outcome
from joulie_lab.simulation.job_response import IdleStates
from joulie_lab.simulation.live.facility import Weather
from joulie_lab.simulation.live.measured_jobs import MeasuredJob, Noise
from joulie_lab.simulation.trace import TraceJob

_SHOWN_ERRORS = 10
_RESOLUTION_TICKS = 0.25
"""Changes within this fraction of a tick are treated as simultaneous."""
_WEATHER_S = 14 * 86400.0
"""Period after which the weather of a service without SIM_DURATION repeats, s."""
_log = logging.getLogger(__name__)


@click.command("simulator")
@settings_options(SimulatorSettings)
def simulator(settings: SimulatorSettings) -> None:
    """Simulate the hardware and work of a cluster's nodes behind an HTTP API.

    SIM_NODE_SELECTOR selects the nodes; their labels describe their hardware. Agents read telemetry and send caps by
    HTTP. Pods draw power on the nodes where the scheduler places them. The jobs of a trace progress under the caps in
    force; completed ones are deleted.
    """
    logs.configure(settings.log_level, settings.log_format)
    tracing.configure("joulie-simulator")
    try:
        player = load_player(settings)
        gpu_jobs = load_gpu_jobs(settings)
        _ = _climate(settings)
        if settings.demand is not None:
            _ = Demand.read(settings.demand)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    run(lambda stop: serve(settings, player, stop, gpu_jobs), fast_loop=True)


async def serve(
    settings: SimulatorSettings, player: TracePlayer | None, stop: asyncio.Event, gpu_jobs: GpuJobs = lambda *_: None
) -> None:
    """Run the service until `stop` is set.

    Args:
        settings: of the service.
        player: jobs of the trace; None without one.
        stop: ends the service.
        gpu_jobs: creates the jobs of sweeps.
    """
    simulation = build_run(settings, player)

    def catch_up() -> float:
        simulation.catch_up()
        return time.time() - simulation.lag_s

    metrics = SimulatorMetrics(simulation.world, catch_up)
    probes = Probes()
    async with KubeClient.connect(
        kubeconfig=settings.kubeconfig, context=settings.context, user_agent="joulie-simulator"
    ) as client:
        sync = ClusterSync(
            client,
            simulation,
            metrics,
            node_selector=settings.node_selector,
            catalogue=BUILTIN_CATALOGUE,
            gpu_job=gpu_jobs,
        )
        probes.add("caches", sync.why_not_ready)
        async with (
            Server(Api(simulation, metrics, probes).app(), parse_address(settings.address)) as server,
            asyncio.TaskGroup() as tasks,
        ):
            watches = [tasks.create_task(cache.run()) for cache in (sync.nodes, sync.pods)]
            _log.info("serving", extra={"port": server.port})
            await _when_synced(sync, stop)
            if settings.start == "at-once":
                simulation.start()
            await _run_ticks(simulation, sync, settings, stop)
            for watch in watches:
                watch.cancel()


async def _run_ticks(simulation: Run, sync: ClusterSync, settings: SimulatorSettings, stop: asyncio.Event) -> None:
    """Tick until `stop` is set; results are written once, at the end of the run or when it is stopped early."""
    results = None if simulation.recorder is None else settings.results
    async for _ in every(settings.tick_s, stop):
        await sync.tick()
        if simulation.recorder is not None and simulation.state is RunState.RUNNING:
            simulation.recorder.polled(time.monotonic())
        if results is not None and simulation.state is RunState.OVER:
            _write_results(simulation, settings, results)
            results = None
    if results is not None:
        simulation.catch_up()
        _write_results(simulation, settings, results)


def _write_results(simulation: Run, settings: SimulatorSettings, results: Path) -> None:
    assert simulation.recorder is not None
    outcome = simulation.recorder.outcome(cooled=settings.cooling != "none")
    write_outcome(results, _with_pace(outcome, settings.tick_s))
    _log.info("results written", extra={"path": str(results), "simulated_s": simulation.world.time_s})


def _with_pace(outcome: Outcome, tick_s: float) -> Outcome:
    """Add the pace to the outcome's notes."""
    if outcome.pace is None:
        return outcome
    every = f"{outcome.pace.mean_s:.2f} s of wall time (P99 {outcome.pace.p99_s:.2f} s)"
    note = f"the simulator polled the cluster every {every}; configured interval: {tick_s:g} s"
    return replace(outcome, notes=(*outcome.notes, note))


def build_run(settings: SimulatorSettings, player: TracePlayer | None) -> Run:
    """Create the run that the settings describe, without nodes.

    Raises:
        ValueError: a parameter of the climate is unknown or out of range.
    """
    world = build_world(settings)
    duration_s = settings.duration_s or math.inf
    clock = SimulatedClock(settings.time_scale, time.monotonic, duration_s=duration_s)
    recorder = Recorder(world, player, duration_s) if settings.duration_s else None
    resolution_s = settings.tick_s * settings.time_scale * _RESOLUTION_TICKS
    return Run(world, clock, player, recorder, resolution_s=resolution_s)


def build_world(settings: SimulatorSettings) -> World:
    """Create the world that the settings describe, without nodes.

    Raises:
        ValueError: a parameter of the climate is unknown or out of range, or the demand is invalid.
    """
    weather = Weather(_climate(settings), settings.seed, settings.duration_s or _WEATHER_S)
    dx = DxPlant()
    # The published plant has a fixed size; the proxy is scaled to the cluster.
    plants: dict[str, Callable[[float], CoolingPlant] | None] = {
        "none": None,
        "linear": LinearPlant,
        "dx": lambda _peak_w: dx,
    }
    world = World(
        weather,
        plants[settings.cooling],
        idle_states=IdleStates(settings.idle_states),
        gpu_model=settings.gpu_throughput,
        seed=settings.seed,
    )
    if settings.demand is not None:
        world.demand = DemandPlay(Demand.read(settings.demand))
    return world


def _climate(settings: SimulatorSettings) -> Climate:
    try:
        return Climate(
            mean_c=settings.ambient_mean_c, daily_amplitude_k=settings.ambient_amplitude_c, **settings.climate
        )
    except TypeError as error:
        raise ValueError(f"SIM_CLIMATE_JSON: {error}") from error


async def _when_synced(sync: ClusterSync, stop: asyncio.Event) -> None:
    """Wait for the first lists: a world started without its nodes would delay the first jobs."""
    stopped = asyncio.create_task(stop.wait())
    for cache in (sync.nodes, sync.pods):
        synced = asyncio.create_task(cache.wait_synced())
        await asyncio.wait({synced, stopped}, return_when=asyncio.FIRST_COMPLETED)
        synced.cancel()
    stopped.cancel()


def load_player(settings: SimulatorSettings) -> TracePlayer | None:
    """Load the trace in the settings; None without one.

    Raises:
        ValueError: the trace is invalid.
    """
    if settings.trace is None:
        return None
    jobs = _jobs(settings.trace, skip_bad_lines=settings.skip_bad_lines)
    return TracePlayer.of(jobs, settings.scheduler_name, holds_gangs=settings.gangs == "together")


def load_gpu_jobs(settings: SimulatorSettings) -> GpuJobs:
    """Load the sweeps in the settings.

    Raises:
        ValueError: a file is missing or invalid.
    """
    sweeps = {
        f"{path.stem}:{job.name}": job.truth
        for path in settings.gpu_sweeps
        for job in true_jobs(read_power_sweeps(path).jobs)
    }
    noise = Noise(settings.gpu_noise)

    def of(name: str, pod_key: str) -> MeasuredJob | None:
        seed = zlib.crc32(f"{settings.seed}/{pod_key}".encode())
        return MeasuredJob(name, sweeps[name], seed, noise) if name in sweeps else None

    return of


def _jobs(path: Path, *, skip_bad_lines: bool) -> list[TraceJob]:
    """All jobs of a trace.

    Raises:
        JobTraceError: lines are invalid and SIM_TRACE_SKIP_BAD_LINES is not set.
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
        hint = "SIM_TRACE_SKIP_BAD_LINES=true skips them"
        raise JobTraceError("\n".join([*errors[:_SHOWN_ERRORS], *more, hint]))
    for error in errors:
        _log.warning("line left out", extra={"error": error})
    return jobs
