"""Runs a day of jobs on a real control plane with nodes that sleep, many times faster than the clock."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import numpy as np

from joulie.program.errors import UserError
from joulie_lab.adapters.job_trace import write_trace
from joulie_lab.apps.experiment.control_plane.pace import seconds
from joulie_lab.apps.experiment.control_plane.site import Site
from joulie_lab.benchmarks.marginal_cluster import BOOT_S, Course, Pace, Plan, Way, awake_s, class_of, trace_jobs
from joulie_lab.control_plane import LocalControlPlane, wait_for
from joulie_lab.control_plane.chart import find_chart
from joulie_lab.control_plane.components import Network
from joulie_lab.control_plane.power_switches import ANNOTATION, PowerSwitches
from joulie_lab.control_plane.programs import LOOPBACK, Ports, extender_configuration

LOOK_S = 0.3
"""SLEEP_INTERVAL, s of wall time: what an operator beside a control plane on two cores keeps up with."""
RETRY_S = 1.0
"""kube-scheduler's backoff, s of wall time: the shortest that it accepts."""
WEIGHTS = {Way.ENERGY: 1, Way.MARGINAL: 20}
"""Of the extender: the chart's, and what SCORING=marginal asks for."""
_WAKE_TIMEOUT_S = 30.0
"""SLEEP_WAKE_TIMEOUT guards against nodes that do not wake, of which there are none: no part of the control."""
_PATIENCE_S = 300.0
_POLL_S = 0.5
_TELL_S = 10.0
_LATE_H = 2.0
"""Simulated time after the end of a run for which jobs may be late, h."""
_LOOKS = re.compile(r"^joulie_operator_sleep_decide_duration_seconds_count (\S+)$", re.MULTILINE)
_RESOURCES = [{"name": "cpu", "weight": 1}, {"name": "memory", "weight": 1}]


def run_day(
    plan: Plan, way: Way, time_scale: float, folder: Path, tell: Callable[[str], None], logs: Path | None = None
) -> tuple[Course, Pace]:
    """Play all jobs of a plan; at its start all nodes are off but one of each kind.

    Args:
        plan: what is run.
        way: how nodes are chosen.
        time_scale: simulated seconds per second of wall time.
        folder: folder for the trace.
        tell: told what happens.
        logs: folder for the logs of the programs.

    Returns:
        What came of it, and how fast the operator and the scheduler were, in simulated time.

    Raises:
        UserError: the chart was not found.
    """
    ports = Ports.free()
    with _programs(plan, way, time_scale, ports, folder, logs) as (site, switches):
        url, operator_url = ports.simulator_url, f"http://{LOOPBACK}:{ports.operator}"
        wait_for(lambda: _n_on(switches) <= len(plan.groups), _PATIENCE_S, "nodes that nobody needs are off")
        began = time.time(), _looks(operator_url)
        site.post(f"{url}/run/start")
        clock: list[tuple[float, float]] = []
        holding: list[int] = []
        told_s = 0.0
        while True:
            now_s, jobs = _read(site, url, clock)
            quiet = jobs["completed"] == len(plan.jobs) and _n_on(switches) <= len(plan.groups)
            if quiet or now_s > plan.end_s + 3600.0 * _LATE_H:
                break
            if time.time() - told_s >= _TELL_S:
                told_s = time.time()
                holding.append(_n_bound(site) - jobs["running"])
                tell(f"{way}: {now_s / 3600.0:.1f} h, {jobs['completed']} jobs done, {_n_on(switches)} nodes on")
            time.sleep(_POLL_S)
        ended = time.time(), _looks(operator_url)
        found = site.get(f"{url}/debug/jobs")["jobs"]
    course = put_together(plan, found, switches, clock)
    passed_s = time_scale * (ended[0] - began[0])
    # Jobs that are on a node and do not run, over the jobs that came and went in that time: Little's law.
    hold_s = max(0.0, float(np.mean(holding))) * passed_s / len(plan.jobs)
    # Most jobs find room at once: what they wait beside that is what a binding takes.
    bind_s = max(0.0, float(np.nanmedian(course.start_s - plan.jobs.arrival_s)) - hold_s)
    return course, Pace(passed_s / max(1.0, ended[1] - began[1]), bind_s, time_scale * RETRY_S, hold_s)


@contextmanager
def _programs(
    plan: Plan, way: Way, time_scale: float, ports: Ports, folder: Path, logs: Path | None
) -> Iterator[tuple[Site, PowerSwitches]]:
    chart = find_chart()
    if chart is None:
        raise UserError("Joulie's chart, which grants the programs' rights, was not found: run this in the source tree")
    scoring = {Way.ENERGY: "energy", Way.MARGINAL: "marginal"}.get(way)
    values = ["mode=enforce", "operator.settings.SLEEP=enforce"]
    if scoring is not None:
        values.append(f"extender.settings.SCORING={scoring}")
    trace = folder / "trace.jsonl.gz"
    write_trace(trace, trace_jobs(plan))
    with LocalControlPlane(
        log_folder=logs, network=Network(switched_nodes=True), scheduler_configuration=_scheduler(way, ports)
    ) as plane:
        site = Site(plane, chart, *values)
        try:
            site.add_cluster(plan.nodes, {class_of(plan, job) for job in range(len(plan.jobs))}, ANNOTATION)
            switches = PowerSwitches(plane, [node.name for node in plan.nodes], BOOT_S / time_scale)
            with switches.serving():
                _start(site, "simulator", "joulie-simulator", ports.simulator_url, _simulator(ports, trace, time_scale))
                of_operator = _operator(way, switches, plane, ports, folder, time_scale)
                _start(site, "operator", "joulie-operator", f"http://{LOOPBACK}:{ports.operator}", of_operator)
                if scoring is not None:
                    metrics = f"{LOOPBACK}:{ports.extender_metrics}"
                    of_extender = {
                        "MODE": "enforce",
                        "PORT": str(ports.extender),
                        "METRICS_ADDR": metrics,
                        "SCORING": scoring,
                        "SHUTDOWN_DELAY": "0s",
                        "SIM_TIME_SCALE": f"{time_scale:g}",
                    }
                    _start(site, "extender", "joulie-extender", f"http://{metrics}", of_extender)
                yield site, switches
        finally:
            site.close()


def _scheduler(way: Way, ports: Ports) -> dict[str, Any]:
    configuration: dict[str, Any] = {"podInitialBackoffSeconds": 1, "podMaxBackoffSeconds": 1}
    if way in WEIGHTS:
        extender = extender_configuration(ports.extender_url, timeout="10s") | {"weight": WEIGHTS[way]}
        configuration["extenders"] = [extender]
    if way is Way.MOST_ALLOCATED:
        arguments = {"scoringStrategy": {"type": "MostAllocated", "resources": _RESOURCES}}
        plugin = {"name": "NodeResourcesFit", "args": arguments}
        configuration["profiles"] = [{"schedulerName": "default-scheduler", "pluginConfig": [plugin]}]
    return configuration


def _simulator(ports: Ports, trace: Path, time_scale: float) -> dict[str, str]:
    return {
        "SIM_ADDR": f"{LOOPBACK}:{ports.simulator}",
        "SIM_WORKLOAD_TRACE_PATH": str(trace),
        "SIM_TIME_SCALE": f"{time_scale:g}",
        "SIM_TICK_INTERVAL": "100ms",
        "SIM_START": "on-request",
        "SIM_COOLING": "none",
    }


def _operator(
    way: Way, switches: PowerSwitches, plane: LocalControlPlane, ports: Ports, folder: Path, time_scale: float
) -> dict[str, str]:
    # Only SCORING=energy reads powers; written often they are the main load of the API server.
    interval = "2s" if way is Way.ENERGY else "20s"
    return {
        "MODE": "enforce",
        "METRICS_ADDR": f"{LOOPBACK}:{ports.operator}",
        "TELEMETRY_HTTP_ENDPOINT": f"{ports.simulator_url}/telemetry",
        "POWER_SOURCES": "http",
        "POWER_POLL_INTERVAL": interval,
        "PROMETHEUS_ADDRESS": "none",
        "AGENT_POD_SELECTOR": "",
        "LEADER_ELECT": "false",
        "ENABLE_CLASSIFIER": "false",
        "POLICY_TYPE": "full_power",
        "RECONCILE_INTERVAL": interval,
        "SIM_TIME_SCALE": f"{time_scale:g}",
        "SLEEP": "enforce",
        "SLEEP_INTERVAL": seconds(LOOK_S),
        "SLEEP_EMPTY": seconds(600.0 / time_scale),
        "SLEEP_SETTLE": seconds(60.0 / time_scale),
        "SLEEP_WAKE_TIMEOUT": seconds(_WAKE_TIMEOUT_S),
        "SLEEP_SWITCHES": str(switches.write_file(folder / "switches.yaml")),
        "SLEEP_SWITCHES_CA": str(plane.authority.certificate),
    }


def _start(site: Site, name: str, account: str, url: str, variables: Mapping[str, str]) -> None:
    site.start(name, account, url, variables)
    wait_for(lambda: site.ready(name), _PATIENCE_S, f"{name} is ready")


def _n_on(switches: PowerSwitches) -> int:
    return sum(machine.is_on for machine in switches.machines.values())


def _n_bound(site: Site) -> int:
    """Number of pods that take room on a node."""
    pods = site.plane.request("GET", "/api/v1/pods?fieldSelector=spec.nodeName!=")["items"]
    return sum(pod["status"]["phase"] not in {"Succeeded", "Failed"} for pod in pods)


def _looks(operator_url: str) -> float:
    """Number of looks at sleeping nodes so far."""
    found = _LOOKS.search(httpx2.get(f"{operator_url}/metrics", timeout=30.0, trust_env=False).raise_for_status().text)
    return 0.0 if found is None else float(found[1])


def _read(site: Site, url: str, clock: list[tuple[float, float]]) -> tuple[float, Mapping[str, int]]:
    """Simulated time, s, and the number of jobs by state; notes both clocks."""
    site.raise_if_broken()
    before_s = time.time()
    state = site.get(f"{url}/run")
    clock.append(((before_s + time.time()) / 2.0, float(state["simulatedSeconds"])))
    return float(state["simulatedSeconds"]), state["jobs"]


def put_together(
    plan: Plan, jobs: list[Mapping[str, Any]], switches: PowerSwitches, clock: list[tuple[float, float]]
) -> Course:
    """Put everything on the simulated clock, on which jobs were timed.

    Args:
        plan: what was run.
        jobs: what the simulator says of the jobs.
        switches: when the power of nodes was switched, s since the epoch.
        clock: seconds since the epoch and simulated seconds at the same moments.
    """
    wall_s, simulated_s = zip(*clock, strict=True)
    index = {node.name: index for index, node in enumerate(plan.nodes)}
    by_id = {one["jobId"]: one for one in jobs}
    found = [by_id[job.job_id] for job in trace_jobs(plan)]
    awake, wakes = np.zeros(len(index)), 0
    for name, machine in switches.machines.items():
        times_s = np.interp([at_s for at_s, _ in machine.switched], wall_s, simulated_s, left=-1.0)
        switched = [(float(at_s), on) for at_s, (_, on) in zip(times_s, machine.switched, strict=True)]
        awake[index[name]] = awake_s(switched, plan.end_s)
        wakes += sum(on and at_s >= 0.0 for at_s, on in switched)
    return Course(
        start_s=np.array([one["startedSeconds"] for one in found], dtype=np.float64),
        end_s=np.array([one["completedSeconds"] for one in found], dtype=np.float64),
        node=np.array([index.get(one["node"], -1) for one in found]),
        awake_s=awake,
        wakes=wakes,
        moves=sum(one["attempts"] > 1 for one in found),
    )
