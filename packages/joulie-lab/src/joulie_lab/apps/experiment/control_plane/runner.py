"""One run of an experiment on a real control plane."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from joulie.domain.grid.series import Series
from joulie.domain.quantities import JOULES_PER_KWH
from joulie.domain.units import SECONDS_PER_HOUR
from joulie_lab.adapters.job_trace import write_trace
from joulie_lab.apps.experiment.control_plane.pace import operator_variables, seconds, why_too_fast, why_too_slow
from joulie_lab.apps.experiment.control_plane.site import ControlPlaneRunError, Site
from joulie_lab.apps.experiment.jobs import trace_jobs
from joulie_lab.apps.simulator.results import ResultsError, read_outcome
from joulie_lab.control_plane import (
    ApiError,
    BinariesError,
    KubectlError,
    LocalControlPlane,
    NotReachedError,
    ProcessFailedError,
    wait_for,
)
from joulie_lab.control_plane.chart import find_chart
from joulie_lab.control_plane.programs import LOOPBACK, Ports, extender_configuration, simulated_devices
from joulie_lab.program.facility import intensity_g_per_kwh, price_per_kwh
from joulie_lab.simulation.experiment.outcome import JobEnd, JobOutcome, Outcome
from joulie_lab.simulation.experiment.plan import PhysicsChoice
from joulie_lab.simulation.experiment.scenario import Experiment, Variant
from joulie_lab.simulation.job_response import IdleStates
from joulie_lab.simulation.native.fitting import unfit
from joulie_lab.simulation.native.nodes import SimNode, sim_nodes
from joulie_lab.simulation.schedulers import KUBE_SCHEDULERS, extender_aim
from joulie_lab.simulation.trace import TraceJob

Progress = Callable[[float, float, str], None]
"""Called with the simulated time done, the simulated time in total, s, and a short status."""

_TICK = "100ms"
_POLL_S = 0.5
_READY_S = 120.0
_QUIET_S = 600.0
"""Simulated time without a job after which the rest of a run without jobs is computed in one step, s."""
_SCHEDULER: Mapping[str, Any] = {
    # Wall time, not simulated time: the minimum that kube-scheduler accepts.
    "podInitialBackoffSeconds": 1,
    "podMaxBackoffSeconds": 1,
}
"""What the extender scores by under the schedulers that have one."""
_EXTENDER_TIMEOUT = "10s"
"""A busy machine must not make kube-scheduler go on without its extender, as it should in a cluster."""


@dataclass(frozen=True)
class _Run:
    """Inputs of one run."""

    experiment: Experiment
    variant: Variant
    seed: int
    physics: PhysicsChoice
    time_scale: float
    folder: Path
    nodes: tuple[SimNode, ...]
    jobs: tuple[TraceJob, ...]
    intensity_g_per_kwh: Series | None
    price_per_kwh: Series | None
    ports: Ports

    @property
    def duration_s(self) -> float:
        return (self.experiment.hours + self.experiment.drain_hours) * SECONDS_PER_HOUR

    @property
    def results(self) -> Path:
        return self.folder / "results.json"


def run_on_control_plane(
    experiment: Experiment,
    variant: Variant,
    seed: int,
    physics: PhysicsChoice,
    *,
    time_scale: float,
    folder: Path,
    progress: Progress,
    chart: Path | None = None,
) -> Outcome:
    """Run a trace on a control plane of its own, with each program of the variant as a process.

    Simulated time starts once all nodes, twins and programs are ready, the profiles have settled and the caps are
    applied.

    Args:
        experiment: the experiment.
        variant: the variant to run.
        seed: seed of jobs and weather.
        physics: physics assumptions.
        time_scale: simulated seconds per wall second.
        folder: folder for trace, results and logs of this run.
        progress: called with the progress of the run.
        chart: folder of Joulie's chart; None to find it next to the source.

    Raises:
        ControlPlaneRunError: the run cannot start, or failed.
    """
    chart = chart or find_chart()
    nodes = sim_nodes(experiment.cluster.groups)
    problem = why_not(experiment, variant)
    if problem is None and variant.joulie:
        problem = why_too_fast(len(nodes), experiment.control, time_scale)
    if chart is None:
        problem = "Joulie's chart, which grants the programs' rights, was not found: run this in the source tree"
    if problem is not None or chart is None:
        raise ControlPlaneRunError(f"variant {variant.name}: {problem}")
    folder.mkdir(parents=True, exist_ok=True)
    jobs = trace_jobs(experiment, seed)
    run = _Run(
        experiment,
        variant,
        seed,
        physics,
        time_scale,
        folder.resolve(),
        nodes,
        jobs.jobs,
        # Needed only at the end, but read now, so that an invalid file does not fail a run after hours.
        intensity_g_per_kwh(experiment),
        price_per_kwh(experiment),
        Ports.free(),
    )
    run.results.unlink(missing_ok=True)
    progress(0.0, run.duration_s, "starting a control plane")
    try:
        with _site(run, chart) as site:
            _start_programs(run, site, progress)
            notes = _play(run, site, progress)
        return _completed(run, read_outcome(run.results), (*jobs.notes, *notes))
    except (BinariesError, ProcessFailedError, KubectlError, ApiError, NotReachedError, ResultsError) as error:
        raise ControlPlaneRunError(f"variant {variant.name}: {error}") from error


def why_not(experiment: Experiment, variant: Variant) -> str | None:
    """Why a variant of an experiment cannot run on a control plane; None if it can."""
    if variant.scheduler not in KUBE_SCHEDULERS:
        return f"scheduler {variant.scheduler} exists natively only; a control plane has {', '.join(KUBE_SCHEDULERS)}"
    cooling = experiment.cooling
    if cooling.kind not in ("none", "linear", "dx") or cooling != type(cooling).model_validate(cooling.kind):
        return f"cooling {cooling.kind} with custom parameters exists natively only"
    return None


@contextmanager
def _site(run: _Run, chart: Path) -> Iterator[Site]:
    scheduler = dict(_SCHEDULER)
    if extender_aim(run.variant.scheduler) is not None:
        scheduler["extenders"] = [extender_configuration(run.ports.extender_url, timeout=_EXTENDER_TIMEOUT)]
    with LocalControlPlane(log_folder=run.folder / "logs", scheduler_configuration=scheduler) as plane:
        site = Site(plane, chart)
        try:
            yield site
        finally:
            site.close()


def _start_programs(run: _Run, site: Site, progress: Progress) -> None:
    """Start the programs, and wait until everything is ready for simulated time to start."""
    site.add_cluster(run.nodes, {job.namespace for job in run.jobs})
    ports = run.ports
    _start(site, "simulator", "joulie-simulator", ports.simulator_url, simulator_variables(run))
    if run.variant.joulie:
        agent, operator = f"{LOOPBACK}:{ports.agent}", f"{LOOPBACK}:{ports.operator}"
        _start(site, "agent", "joulie-agent-pool", f"http://{agent}", _agent_variables(run, agent))
        _start(site, "operator", "joulie-operator", f"http://{operator}", _operator_variables(run, operator))
    aim = extender_aim(run.variant.scheduler)
    if aim is not None:
        metrics = f"{LOOPBACK}:{ports.extender_metrics}"
        own = {"PORT": str(ports.extender), "METRICS_ADDR": metrics, "SHUTDOWN_DELAY": "0s"}
        variables = own | {"SCORING": aim.value}
        _start(site, "extender", "joulie-extender", f"http://{metrics}", variables)
    if run.variant.joulie:
        progress(0.0, run.duration_s, "waiting for profiles and caps")
        _await(lambda: site.settled(len(run.nodes)), "all nodes have their profile and their caps")


def _start(site: Site, name: str, account: str, url: str, variables: Mapping[str, str]) -> None:
    site.start(name, account, url, variables)
    _await(lambda: site.ready(name), f"{name} is ready")


def _await(reached: Callable[[], bool], what: str) -> None:
    wait_for(reached, _READY_S, what, poll_s=_POLL_S / 2.0)


def _play(run: _Run, site: Site, progress: Progress) -> tuple[str, ...]:
    """Run the simulation to its end. Returns notes for the reader of the results."""
    url = run.ports.simulator_url
    never = {job.job_id for job, _ in unfit(run.jobs, run.nodes)}
    notes = [f"on a real control plane, {run.time_scale:g} times as fast as the clock"]
    busy_s = 0.0
    site.post(f"{url}/run/start")
    while (state := site.get(f"{url}/run"))["state"] != "over":
        now_s, jobs = state["simulatedSeconds"], state["jobs"]
        progress(
            now_s, run.duration_s, f"{jobs['completed']:,} of {len(run.jobs):,} jobs done, {jobs['running']:,} run"
        )
        if jobs["waiting"] or jobs["running"] or _may_run(site, url, jobs["submitted"], never):
            busy_s = now_s
        elif now_s - busy_s > _QUIET_S:
            site.post(f"{url}/run/finish")
            hours = (run.duration_s - now_s) / SECONDS_PER_HOUR
            notes.append(f"the last {hours:.1f} h, without a job, were computed in one step")
            break
        time.sleep(_POLL_S)
    _await(run.results.exists, "the simulator writes its results")
    progress(run.duration_s, run.duration_s, "done")
    return tuple(notes)


def _may_run(site: Site, url: str, submitted: int, never: Set[str]) -> bool:
    """Whether a pending pod may still get a node; jobs are queried only if all of them may be unschedulable."""
    if submitted == 0 or submitted > len(never):
        return submitted > 0
    jobs = site.get(f"{url}/debug/jobs")["jobs"]
    return any(job["state"] == "submitted" and job["jobId"] not in never for job in jobs)


def simulator_variables(run: _Run) -> dict[str, str]:
    """Environment variables of the simulator service."""
    trace = run.folder / "trace.jsonl.gz"
    write_trace(trace, run.jobs)
    climate = asdict(run.experiment.climate)
    # The service counts all its nodes as managed, so without Joulie it must disable deep idle for managed-only runs.
    unmanaged = run.physics.idle_states is IdleStates.MANAGED and not run.variant.joulie
    return {
        "SIM_ADDR": f"{LOOPBACK}:{run.ports.simulator}",
        "SIM_WORKLOAD_TRACE_PATH": str(trace),
        "SIM_TIME_SCALE": f"{run.time_scale:g}",
        "SIM_TICK_INTERVAL": _TICK,
        "SIM_SEED": str(run.seed),
        "SIM_IDLE_STATES": str(IdleStates.NONE if unmanaged else run.physics.idle_states),
        "SIM_GPU_THROUGHPUT": run.physics.gpu_throughput,
        "SIM_COOLING": run.experiment.cooling.kind,
        "SIM_AMBIENT_MEAN_C": f"{climate.pop('mean_c')!r}",
        "SIM_AMBIENT_AMPLITUDE_C": f"{climate.pop('daily_amplitude_k')!r}",
        "SIM_CLIMATE_JSON": json.dumps(climate),
        "SIM_START": "on-request",
        "SIM_DURATION": seconds(run.duration_s),
        "SIM_RESULTS_PATH": str(run.results),
    }


def _agent_variables(run: _Run, address: str) -> dict[str, str]:
    state = run.folder / "agent"
    state.mkdir(exist_ok=True)
    return {
        "RECONCILE_INTERVAL": seconds(run.experiment.control.agent_s / run.time_scale),
        "METRICS_ADDR": address,
        "STATE_DIR": str(state),
        # The simulated hardware does not outlive the run.
        "RESTORE_ON_EXIT": "false",
        **simulated_devices(run.ports.simulator_url),
    }


def _operator_variables(run: _Run, address: str) -> dict[str, str]:
    wiring = {
        "METRICS_ADDR": address,
        "TELEMETRY_HTTP_ENDPOINT": f"{run.ports.simulator_url}/telemetry",
        "POWER_SOURCES": "http",
        "PROMETHEUS_ADDRESS": "none",
        "AGENT_POD_SELECTOR": "",
        "LEADER_ELECT": "false",
        "ENABLE_CLASSIFIER": "false",
        "SIM_TIME_SCALE": f"{run.time_scale:g}",
    }
    return wiring | operator_variables(run.variant, run.experiment.control, run.time_scale)


def _completed(run: _Run, outcome: Outcome, notes: tuple[str, ...]) -> Outcome:
    """Complete the outcome with what the simulator service does not know."""
    never = {job.job_id: problem for job, problem in unfit(run.jobs, run.nodes)}
    families = {node.name: node.family for node in run.nodes}
    return replace(
        outcome,
        jobs=tuple(_with_unschedulable(job, never) for job in outcome.jobs),
        nodes=tuple(replace(node, family=families[node.name]) for node in outcome.nodes),
        carbon_g=None if run.intensity_g_per_kwh is None else weighted_kwh(outcome, run.intensity_g_per_kwh),
        cost=None if run.price_per_kwh is None else weighted_kwh(outcome, run.price_per_kwh),
        notes=(*notes, *outcome.notes),
        invalid=why_too_slow(outcome.pace, run.experiment.control, run.time_scale) or "",
    )


def weighted_kwh(outcome: Outcome, weight_per_kwh: Series) -> float:
    """Energy of a run, weighted by a factor that changes over time, such as its carbon intensity.

    The total energy is exact; its distribution over time is that of the samples of the series.
    """
    series = outcome.series
    power_w = series.it_w + series.cooling_w
    edges_s = np.append(series.time_s, outcome.duration_s)
    shares = power_w * np.diff(edges_s)
    weights = [
        float(weight_per_kwh.integral(from_s, until_s)) / (until_s - from_s) if until_s > from_s else 0.0
        for from_s, until_s in pairwise(edges_s.tolist())
    ]
    energy_kwh = (outcome.it_j + (outcome.cooling_j or 0.0)) / JOULES_PER_KWH
    return energy_kwh * float(np.average(weights, weights=shares))


def _with_unschedulable(job: JobOutcome, never: Mapping[str, str]) -> JobOutcome:
    if job.end is JobEnd.WAITING and job.job_id in never:
        return replace(job, end=JobEnd.UNSCHEDULABLE, problem=never[job.job_id])
    return job
