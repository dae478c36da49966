"""`joulie demo`: the whole control loop live in a terminal, without a cluster."""

from __future__ import annotations

import asyncio
import json
import logging
import tempfile
from pathlib import Path

import click
import httpx2
from rich.console import Console
from rich.live import Live

from joulie.adapters.kubernetes.api.core import Node, Pod
from joulie.adapters.kubernetes.api.v1alpha1 import NodeTwin
from joulie.adapters.kubernetes.cache import Cache
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.pods import PodFacts, pod_facts
from joulie.adapters.kubernetes.resources import NODE_TWINS, NODES, PODS
from joulie.program.numbers import FiniteRange
from joulie_lab.apps.demo.runtime import DemoCluster, DemoRun, on_control_plane, on_fake_cluster
from joulie_lab.apps.demo.snapshot import Snapshot, take_snapshot
from joulie_lab.apps.demo.view import View, headline, line
from joulie_lab.program.outputs import Outputs

_REFRESH_S = 0.5
_LINE_EVERY = 10
"""Output that is not a terminal gets one line per this many refreshes."""


@click.command("demo")
@click.option("--control-plane", is_flag=True, help="Play on a real Kubernetes control plane on this machine.")
@click.option("--nodes", type=click.IntRange(3, 500), default=12, show_default=True, help="Number of nodes.")
@click.option("--jobs", type=click.IntRange(1, 10_000), default=110, show_default=True, help="Number of jobs.")
@click.option("--speed", type=FiniteRange(1.0, 1000.0), default=40.0, show_default=True, help="Time-lapse factor.")
@click.option("--seed", type=click.IntRange(min=0), default=42, show_default=True, help="Seed of jobs and weather.")
@click.option("--duration", "duration_s", type=FiniteRange(min=1.0), help="Stop after this many seconds.")
@click.option(
    "--report",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the time series and a chart of it.",
)
@click.option(
    "--record",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Run in virtual time instead and write the terminal as an animated SVG to this file.",
)
def demo(
    control_plane: bool,
    nodes: int,
    jobs: int,
    speed: float,
    seed: int,
    duration_s: float | None,
    report: Path | None,
    record: Path | None,
) -> None:
    """Watch Joulie run a cluster of simulated hardware, in time-lapse.

    Jobs arrive, the operator divides the nodes into performance and eco nodes and drains a node before capping it, the
    agent applies the caps, and the extender places pods by power. The simulator computes the effect on power and on job
    durations. Everything runs in this process on a fake cluster; with --control-plane, as separate processes
    on a real API server, scheduler and KWOK. Ends when all jobs are done, or with Ctrl-C.
    """
    with Outputs() as outputs, tempfile.TemporaryDirectory(prefix="joulie-demo-") as name:
        report_part, record_part = outputs.folder("--report", report), outputs.file("--record", record)
        folder = Path(name)
        length_s = 45.0 * speed
        run = DemoRun(nodes, jobs, length_s, speed, seed, folder)
        if record_part is not None:
            from joulie_lab.apps.demo.recording import record_svg

            svg, last = record_svg(run)
            click.echo(headline(last))
            click.echo(_difference(run, last))
            outputs.write(record_part, svg)
            outputs.commit()
            click.echo(f"wrote {record}", err=True)
            return
        if control_plane:
            click.echo("starting a control plane (the first time, building it takes some minutes)", err=True)
            with on_control_plane(run) as cluster:
                snapshots = asyncio.run(_watch(cluster, duration_s))
        else:
            _quiet(folder / "programs.log")
            snapshots = asyncio.run(_play_here(run, duration_s))
        if not snapshots:
            raise click.ClickException("no data: the simulator did not answer; try a longer --duration")
        click.echo(headline(snapshots[-1]))
        click.echo(_difference(run, snapshots[-1]))
        if report_part is not None:
            from joulie_lab.apps.demo.chart import draw

            outputs.write(report_part / "samples.json", json.dumps([item.as_row() for item in snapshots]))
            draw(snapshots, report_part / "power.png")
            outputs.commit()
            click.echo(f"wrote {report}/samples.json and {report}/power.png", err=True)


async def _play_here(run: DemoRun, duration_s: float | None) -> list[Snapshot]:
    async with on_fake_cluster(run) as cluster:
        return await _watch(cluster, duration_s)


async def _watch(cluster: DemoCluster, duration_s: float | None) -> list[Snapshot]:
    """Show the cluster until all jobs are done, the duration is over or the user presses Ctrl-C."""
    snapshots: list[Snapshot] = []
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + duration_s if duration_s is not None else float("inf")
    async with (
        KubeClient.connect(kubeconfig=cluster.kubeconfig, user_agent="joulie-demo") as client,
        httpx2.AsyncClient(base_url=cluster.simulator_url, trust_env=False) as simulator,
    ):
        nodes: Cache[Node, Node] = Cache(client, NODES, lambda node: node)
        twins: Cache[NodeTwin, NodeTwin] = Cache(client, NODE_TWINS, lambda twin: twin)
        pods: Cache[Pod, PodFacts] = Cache(client, PODS, pod_facts)
        watches = [asyncio.create_task(work()) for work in (nodes.run, twins.run, pods.run)]
        console = Console()
        view = View(cluster.title, console.width, console.height)
        try:
            with Live(console=console, auto_refresh=False) as live:
                while loop.time() < ends_s:
                    now = await _observe(simulator, nodes, twins, pods)
                    if now is not None:
                        snapshots.append(now)
                        frame = view.render(now)
                        if console.is_terminal:
                            live.update(frame, refresh=True)
                        elif len(snapshots) % _LINE_EVERY == 1:
                            console.print(line(now), soft_wrap=True)
                        if now.finished:
                            break
                    await asyncio.sleep(_REFRESH_S)
        except asyncio.CancelledError:
            # Ctrl-C ends the demo normally.
            pass
        finally:
            for watch in watches:
                watch.cancel()
    return snapshots


async def _observe(
    simulator: httpx2.AsyncClient,
    nodes: Cache[Node, Node],
    twins: Cache[NodeTwin, NodeTwin],
    pods: Cache[Pod, PodFacts],
) -> Snapshot | None:
    """Take a snapshot of the cluster; None while the programs are still starting."""
    try:
        energy = (await simulator.get("/debug/energy")).raise_for_status().json()
        jobs = (await simulator.get("/debug/jobs")).raise_for_status().json()["jobs"]
    except httpx2.HTTPError:
        return None
    return take_snapshot(nodes.objects.values(), twins.objects.values(), pods.objects.values(), energy, jobs)


def _difference(run: DemoRun, last: Snapshot) -> str:
    """What the run saved against no power management."""
    from joulie_lab.apps.demo.baseline import difference, without_management

    return difference(last, without_management(run, last.simulated_s))


def _quiet(log_file: Path) -> None:
    """Send the programs' logs to a file, so that they do not disturb the view."""
    logging.basicConfig(filename=log_file, level=logging.INFO, force=True)
