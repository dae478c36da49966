"""`joulie demo`: see the loop close, without a cluster."""

from __future__ import annotations

import asyncio
import json
import logging
import tempfile
from collections.abc import Sequence
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
from joulie_lab.apps.demo.scene import Scene, scene
from joulie_lab.apps.demo.stage import Plot, Stage, control_plane_stage, fake_stage
from joulie_lab.apps.demo.view import View, headline, line

_REFRESH_S = 0.5
_LINE_EVERY = 10
"""Where there is no terminal, a line is printed for every so many refreshes."""


@click.command("demo")
@click.option("--control-plane", is_flag=True, help="Play on a real Kubernetes control plane on this machine.")
@click.option("--nodes", type=click.IntRange(3, 500), default=12, show_default=True, help="Number of nodes.")
@click.option("--jobs", type=click.IntRange(1, 10_000), default=110, show_default=True, help="Number of jobs.")
@click.option("--speed", type=click.FloatRange(1.0, 1000.0), default=40.0, show_default=True, help="Time-lapse factor.")
@click.option("--seed", type=click.IntRange(min=0), default=42, show_default=True, help="Seed of jobs and weather.")
@click.option("--duration", "duration_s", type=click.FloatRange(min=1.0), help="Stop after so many seconds.")
@click.option(
    "--report",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the time series and its picture.",
)
def demo(
    control_plane: bool,
    nodes: int,
    jobs: int,
    speed: float,
    seed: int,
    duration_s: float | None,
    report: Path | None,
) -> None:
    """Watch Joulie run a cluster whose hardware is simulated, in time-lapse.

    Jobs come, the operator splits the nodes into performance and eco and drains them first, the agent caps them, the
    extender places pods by power, the simulator feels all of it. Everything runs in this process on a fake cluster;
    with --control-plane, as separate processes on a real API server, scheduler and KWOK. Ends when all jobs are done,
    or with Ctrl-C.
    """
    with tempfile.TemporaryDirectory(prefix="joulie-demo-") as name:
        folder = Path(name)
        length_s = 45.0 * speed
        plot = Plot(nodes, jobs, length_s, speed, seed, folder)
        if control_plane:
            click.echo("starting a control plane (it is built once, which takes some minutes)", err=True)
            with control_plane_stage(plot) as stage:
                scenes = asyncio.run(_watch(stage, duration_s))
        else:
            _quiet(folder / "programs.log")
            scenes = asyncio.run(_play_here(plot, duration_s))
    if not scenes:
        raise click.ClickException("nothing was seen: no program got as far as answering")
    click.echo(headline(scenes[-1]))
    if report is not None:
        _write(report, scenes)


async def _play_here(plot: Plot, duration_s: float | None) -> list[Scene]:
    async with fake_stage(plot) as stage:
        return await _watch(stage, duration_s)


async def _watch(stage: Stage, duration_s: float | None) -> list[Scene]:
    """Show what happens until the jobs are done, the time is up or the user has seen enough."""
    scenes: list[Scene] = []
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + duration_s if duration_s is not None else float("inf")
    async with (
        KubeClient.connect(kubeconfig=stage.kubeconfig, user_agent="joulie-demo") as client,
        httpx2.AsyncClient(base_url=stage.simulator_url, trust_env=False) as simulator,
    ):
        nodes: Cache[Node, Node] = Cache(client, NODES, lambda node: node)
        twins: Cache[NodeTwin, NodeTwin] = Cache(client, NODE_TWINS, lambda twin: twin)
        pods: Cache[Pod, PodFacts] = Cache(client, PODS, pod_facts)
        watches = [asyncio.create_task(work()) for work in (nodes.run, twins.run, pods.run)]
        console = Console()
        view = View(stage.title)
        try:
            with Live(console=console, auto_refresh=False) as live:
                while loop.time() < ends_s:
                    now = await _look(simulator, nodes, twins, pods)
                    if now is not None:
                        scenes.append(now)
                        picture = view.render(now)
                        if console.is_terminal:
                            live.update(picture, refresh=True)
                        elif len(scenes) % _LINE_EVERY == 1:
                            console.print(line(now), soft_wrap=True)
                        if now.finished:
                            break
                    await asyncio.sleep(_REFRESH_S)
        except asyncio.CancelledError:
            # Ctrl-C: the user has seen enough.
            pass
        finally:
            for watch in watches:
                watch.cancel()
    return scenes


async def _look(
    simulator: httpx2.AsyncClient,
    nodes: Cache[Node, Node],
    twins: Cache[NodeTwin, NodeTwin],
    pods: Cache[Pod, PodFacts],
) -> Scene | None:
    """The scene now; None while the programs are still starting."""
    try:
        energy = (await simulator.get("/debug/energy")).raise_for_status().json()
        jobs = (await simulator.get("/debug/jobs")).raise_for_status().json()["jobs"]
    except httpx2.HTTPError:
        return None
    return scene(nodes.objects.values(), twins.objects.values(), pods.objects.values(), energy, jobs)


def _write(folder: Path, scenes: Sequence[Scene]) -> None:
    from joulie_lab.apps.demo.picture import draw

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "samples.json").write_text(json.dumps([item.as_row() for item in scenes]), encoding="utf-8")
    draw(scenes, folder / "power.png")
    click.echo(f"wrote {folder}/samples.json and {folder}/power.png", err=True)


def _quiet(log_file: Path) -> None:
    """Send the programs' logs to a file: the terminal belongs to the view."""
    logging.basicConfig(filename=log_file, level=logging.INFO, force=True)
