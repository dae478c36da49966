"""Start the demo: as tasks of this process on a fake cluster, or as processes on a real control plane."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.resources import NODES
from joulie.apps.agent.main import serve as serve_agent
from joulie.apps.agent.settings import AgentSettings
from joulie.apps.extender.main import serve as serve_extender
from joulie.apps.extender.settings import ExtenderSettings
from joulie.apps.operator.main import serve as serve_operator
from joulie.apps.operator.settings import OperatorSettings
from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie.program.http import parse_address
from joulie.program.settings import settings_from
from joulie_lab.adapters.crd import custom_resource_definitions
from joulie_lab.apps.demo.programs import environments
from joulie_lab.apps.demo.scenario import demo_nodes, demo_trace
from joulie_lab.apps.simulator.main import load_player
from joulie_lab.apps.simulator.main import serve as serve_simulator
from joulie_lab.apps.simulator.settings import SimulatorSettings
from joulie_lab.control_plane.programs import Ports, extender_configuration
from joulie_lab.fakes.extender import ExtenderSettings as SchedulerExtender
from joulie_lab.fakes.kubelet import FakeKubelet
from joulie_lab.fakes.kubernetes import FakeCluster
from joulie_lab.fakes.scheduler import FakeScheduler

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DemoRun:
    """One run of the demo.

    Attributes:
        nodes: number of nodes.
        jobs: number of jobs.
        length_s: simulated time over which jobs arrive, s.
        speed: simulated seconds per second.
        seed: seed of the trace and of the simulator.
        folder: folder of trace, logs and kubeconfig.
    """

    nodes: int
    jobs: int
    length_s: float
    speed: float
    seed: int
    folder: Path

    def write_trace(self) -> Path:
        """Write the jobs to a trace file."""
        path = self.folder / "trace.jsonl"
        lines = demo_trace(self.seed, self.jobs, self.length_s)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        return path


@dataclass(frozen=True)
class DemoCluster:
    """A running demo.

    Attributes:
        kubeconfig: kubeconfig of the cluster.
        simulator_url: address of the simulator service.
        title: headline of the view.
    """

    kubeconfig: Path
    simulator_url: str
    title: str


@asynccontextmanager
async def on_fake_cluster(run: DemoRun) -> AsyncIterator[DemoCluster]:
    """Run the fake cluster and every program as tasks of this process."""
    ports = Ports.free()
    async with FakeCluster(custom_resource_definitions()) as cluster:
        kubeconfig = cluster.kubeconfig(run.folder / "kubeconfig")
        async with KubeClient.connect(kubeconfig=kubeconfig, user_agent="joulie-demo") as client:
            for node in demo_nodes(run.nodes):
                await client.create(NODES, node)
        stop = asyncio.Event()
        programs = _tasks(environments_of(run, ports, kubeconfig), stop)
        scheduler = FakeScheduler(cluster.api, SchedulerExtender(ports.extender_url))
        tasks = [asyncio.create_task(work) for work in (*programs, scheduler.run(), FakeKubelet(cluster.api).run())]
        title = f"Joulie on a fake cluster of {run.nodes} nodes, hardware simulated"
        try:
            yield DemoCluster(kubeconfig, ports.simulator_url, title)
        finally:
            stop.set()
            for task in tasks[len(programs) :]:
                task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def on_control_plane(run: DemoRun) -> Iterator[DemoCluster]:
    """Run a real control plane on this machine and every program as a process of its own."""
    # Imported here: certificates need an optional dependency.
    from joulie_lab.control_plane import LocalControlPlane

    ports = Ports.free()
    with LocalControlPlane(
        log_folder=run.folder, scheduler_configuration={"extenders": [extender_configuration(ports.extender_url)]}
    ) as plane:
        for definition in custom_resource_definitions():
            plane.kubectl("apply", "-f", "-", input=json.dumps(definition))
        plane.await_definitions()
        plane.create_nodes(demo_nodes(run.nodes))
        for name, variables in environments_of(run, ports, plane.kubeconfig).items():
            plane.spawn(name, [sys.executable, "-m", "joulie", name], environment=dict(variables))
        title = f"Joulie on a real control plane with {run.nodes} KWOK nodes, hardware simulated"
        yield DemoCluster(plane.kubeconfig, ports.simulator_url, title)


def environments_of(run: DemoRun, ports: Ports, kubeconfig: Path) -> dict[str, dict[str, str]]:
    """Environment variables of all programs."""
    state_dir = run.folder / "agent"
    state_dir.mkdir(exist_ok=True)
    variables = environments(ports, kubeconfig, run.write_trace(), seed=run.seed, speed=run.speed, state_dir=state_dir)
    return {name: dict(own) for name, own in variables.items()}


def _tasks(variables: dict[str, dict[str, str]], stop: asyncio.Event) -> list[Coroutine[Any, Any, None]]:
    simulator = settings_from(SimulatorSettings, variables["simulator"])
    agent = settings_from(AgentSettings, variables["agent"])
    return [
        serve_simulator(simulator, load_player(simulator), stop),
        serve_agent(agent, parse_address(agent.metrics_addr), BUILTIN_CATALOGUE, stop),
        serve_operator(settings_from(OperatorSettings, variables["operator"]), BUILTIN_CATALOGUE, stop),
        serve_extender(settings_from(ExtenderSettings, variables["extender"]), BUILTIN_CATALOGUE, stop),
    ]
