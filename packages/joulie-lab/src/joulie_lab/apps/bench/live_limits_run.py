"""Runs jobs of the sweeps on a real control plane, under Joulie's agent and operator and a real Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joulie.adapters.kubernetes import names
from joulie.program.errors import UserError
from joulie_lab.apps.experiment.control_plane.pace import seconds
from joulie_lab.apps.experiment.control_plane.site import Site
from joulie_lab.benchmarks.live_limits import CARDS, LiveJob, Sample
from joulie_lab.control_plane import LocalControlPlane, kwok_node, wait_for
from joulie_lab.control_plane.chart import find_chart
from joulie_lab.control_plane.ports import free_port
from joulie_lab.control_plane.programs import LOOPBACK, Ports, simulated_devices
from joulie_lab.control_plane.prometheus import obtain_prometheus, start_prometheus
from joulie_lab.simulation.live.measured_jobs import Account

WINDOW_S, SETTLING_S = 180.0, 30.0
"""Default window and settling time of the search, s."""
_SCRAPE_S, _LOOK_S, _AGENT_S, _OPERATOR_S = 15.0, 15.0, 10.0, 15.0
_SAMPLE_S = 60.0
_PATIENCE_S = 180.0
_CPU_MODEL = "AMD-EPYC-9654"
_PODS = "/api/v1/namespaces/default/pods"


@dataclass(frozen=True)
class Plan:
    """A run.

    Attributes:
        jobs: jobs of the GPUs of all nodes.
        files: the sweeps by card.
        time_scale: simulated seconds per second of wall time.
        noise: standard deviation of rate and power over three minutes, as a share.
        seed: of the noise and of the phases' moments.
    """

    jobs: Sequence[LiveJob]
    files: Mapping[str, Path]
    time_scale: float
    noise: float
    seed: int

    def wall(self, simulated_s: float) -> str:
        """A simulated duration as a setting in wall time."""
        return seconds(simulated_s / self.time_scale)


class LiveRun:
    """A run whose programs are ready and whose pods run; simulated time begins with `start`.

    Attributes:
        plan: of the run.
        site: its control plane and programs.
        url: address of the simulator service.
    """

    def __init__(self, plan: Plan, site: Site, url: str) -> None:
        self.plan, self.site, self.url = plan, site, url

    def start(self) -> None:
        """Start simulated time, and wait until all jobs do steps."""
        self.site.post(f"{self.url}/run/start")
        wait_for(lambda: len(self.sample().limits_w) == len(self.plan.jobs), _PATIENCE_S, "all jobs do steps")

    def sample(self) -> Sample:
        """All jobs now."""
        self.site.raise_if_broken()
        answer = self.site.get(f"{self.url}/debug/gpu-jobs")
        jobs = {job["pod"].partition("/")[2]: job for job in answer["jobs"]}
        return Sample(
            answer["simulatedSeconds"],
            {pod: job["limitWatts"] for pod, job in jobs.items()},
            {pod: _account(job) for pod, job in jobs.items()},
        )

    def samples(self, duration_s: float, tell: Callable[[str], None]) -> list[Sample]:
        """Samples once a simulated minute until the end."""
        samples = [self.sample()]
        while samples[-1].time_s < duration_s:
            time.sleep(_SAMPLE_S / self.plan.time_scale)
            samples.append(self.sample())
            if samples[-1].time_s // 1800.0 > samples[-2].time_s // 1800.0:
                baselines_w = {job.pod: float(job.truth.truth.limits_w[0]) for job in self.plan.jobs}
                limited = sum(limit_w < baselines_w[pod] for pod, limit_w in samples[-1].limits_w.items())
                tell(f"{samples[-1].time_s / 3600.0:.1f} h: {limited} of {len(baselines_w)} jobs limited")
        return samples


@contextmanager
def live_run(plan: Plan, logs: Path | None = None) -> Iterator[LiveRun]:
    """A control plane with the plan's nodes, programs and pods.

    Raises:
        UserError: the chart was not found.
    """
    chart = find_chart()
    if chart is None:
        raise UserError("Joulie's chart, which grants the programs' rights, was not found: run this in the source tree")
    program, ports, prometheus = obtain_prometheus(lambda _line: None), Ports.free(), free_port()
    with LocalControlPlane(log_folder=logs) as plane:
        site = Site(plane, chart)
        try:
            plane.create_nodes(_nodes(plan.jobs))
            _start(site, "simulator", "joulie-simulator", ports.simulator_url, _simulator(plan, ports))
            start_prometheus(
                plane,
                program,
                f"{LOOPBACK}:{ports.simulator}",
                port=prometheus,
                interval_s=_SCRAPE_S / plan.time_scale,
            )
            _start(site, "agent", "joulie-agent-pool", f"http://{LOOPBACK}:{ports.agent}", _agent(plan, plane, ports))
            address = f"http://{LOOPBACK}:{prometheus}"
            operator = _operator(plan, ports, address)
            _start(site, "operator", "joulie-operator", f"http://{LOOPBACK}:{ports.operator}", operator)
            nodes = len({job.node for job in plan.jobs})
            wait_for(lambda: site.settled(nodes), _PATIENCE_S, "all nodes have their caps")
            plane.create_all(_PODS, (_pod(plan, job) for job in plan.jobs))
            wait_for(lambda: _all_run(plane), _PATIENCE_S, "all jobs run")
            yield LiveRun(plan, site, ports.simulator_url)
        finally:
            site.close()


def _start(site: Site, name: str, account: str, url: str, variables: Mapping[str, str]) -> None:
    site.start(name, account, url, variables)
    wait_for(lambda: site.ready(name), _PATIENCE_S, f"{name} is ready")


def _all_run(plane: LocalControlPlane) -> bool:
    return all(pod["status"].get("phase") == "Running" for pod in plane.request("GET", _PODS)["items"])


def _nodes(jobs: Sequence[LiveJob]) -> Iterator[dict[str, Any]]:
    cards = {job.node: job.card for job in jobs}
    for node, card in cards.items():
        gpus = str(sum(job.node == node for job in jobs))
        labels = {
            names.MANAGED_LABEL: "true",
            names.HW_CPU_MODEL_LABEL: _CPU_MODEL,
            names.HW_CPU_SOCKETS_LABEL: "2",
            names.HW_GPU_MODEL_LABEL: CARDS[card],
            names.HW_GPU_COUNT_LABEL: gpus,
        }
        yield kwok_node(node, labels=labels, allocatable={"cpu": "192", "nvidia.com/gpu": gpus})


def _pod(plan: Plan, job: LiveJob) -> dict[str, Any]:
    gpu = {"nvidia.com/gpu": "1"}
    annotations = {
        names.PROGRESS_METRIC_ANNOTATION: "joulie_sim_pod_work_total",
        names.SIM_GPU_JOB_ANNOTATION: f"{plan.files[job.card].stem}:{job.truth.name}",
        names.SIM_CPU_UTIL_PCT_ANNOTATION: "5",
        **job.takes_part.annotations,
    }
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "1", **gpu}, "limits": gpu}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": job.pod, "annotations": annotations},
        "spec": {"nodeName": job.node, "containers": [container], "terminationGracePeriodSeconds": 0},
    }


def _simulator(plan: Plan, ports: Ports) -> dict[str, str]:
    return {
        "SIM_ADDR": f"{LOOPBACK}:{ports.simulator}",
        "SIM_TIME_SCALE": f"{plan.time_scale:g}",
        "SIM_TICK_INTERVAL": "200ms",
        "SIM_SEED": str(plan.seed),
        "SIM_START": "on-request",
        "SIM_COOLING": "none",
        "SIM_GPU_SWEEPS": ",".join(map(str, plan.files.values())),
        "SIM_GPU_NOISE": f"{plan.noise!r}",
    }


def _agent(plan: Plan, plane: LocalControlPlane, ports: Ports) -> dict[str, str]:
    state = plane.folder / "agent"
    state.mkdir()
    return {
        "RECONCILE_INTERVAL": plan.wall(_AGENT_S),
        "METRICS_ADDR": f"{LOOPBACK}:{ports.agent}",
        "STATE_DIR": str(state),
        **simulated_devices(ports.simulator_url),
    }


def _operator(plan: Plan, ports: Ports, prometheus: str) -> dict[str, str]:
    return {
        "MODE": "enforce",
        "METRICS_ADDR": f"{LOOPBACK}:{ports.operator}",
        "TELEMETRY_HTTP_ENDPOINT": f"{ports.simulator_url}/telemetry",
        "POWER_SOURCES": "http",
        "PROMETHEUS_ADDRESS": prometheus,
        "AGENT_POD_SELECTOR": "",
        "LEADER_ELECT": "false",
        "POLICY_TYPE": "static_partition",
        "STATIC_HP_FRAC": "1",
        "RECONCILE_INTERVAL": plan.wall(_OPERATOR_S),
        "GPU_LIMITS": "true",
        "GPU_LIMITS_WINDOW": plan.wall(WINDOW_S),
        "GPU_LIMITS_SETTLING": plan.wall(SETTLING_S),
        "GPU_LIMITS_INTERVAL": plan.wall(_LOOK_S),
    }


def _account(job: Mapping[str, Any]) -> Account:
    return Account(
        job["timeSeconds"], job["energyJoules"], job["freeTimeSeconds"], job["freeEnergyJoules"], job["work"]
    )
