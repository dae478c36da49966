"""`kubectl joulie web`: serves the pages on loopback with the rights of the user's kubeconfig."""

from __future__ import annotations

import asyncio
import logging
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from joulie.adapters.kubernetes.client import KubeClient
from joulie.apps.kubectl.accounting import AccountingEndpoint
from joulie.apps.kubectl.leader import LeaderEndpoint
from joulie.apps.kubectl.options import all_endpoints, all_programs_options, cluster_options, run_with_client
from joulie.apps.kubectl.web.access import LOGIN_PATH, LoopbackAccess
from joulie.apps.kubectl.web.api import WebApi
from joulie.apps.kubectl.web.programs import Programs
from joulie.apps.kubectl.web.server import application
from joulie.apps.kubectl.web.watching import Cluster, ClusterView
from joulie.program.http import Server


@dataclass(frozen=True)
class Request:
    """Options of the command.

    Attributes:
        port: port on 127.0.0.1; 0 for a free one.
        namespace: namespace that is shown where the user may not list all; empty for that of the context.
        open_browser: whether to open the page in a browser.
        operator: address of the operator.
        grid: address of the grid controller.
        accounting: address of the accounting program.
    """

    port: int
    namespace: str
    open_browser: bool
    operator: LeaderEndpoint
    grid: LeaderEndpoint
    accounting: AccountingEndpoint


async def serve(client: KubeClient, request: Request) -> None:
    """Serve until interrupted.

    Raises:
        KubernetesError: the API server cannot be asked.
        click.ClickException: the port is in use.
    """
    logging.getLogger("joulie").setLevel(logging.ERROR)  # pages show what is outdated
    cluster = Cluster(client, request.namespace or client.connection.namespace)
    view = ClusterView(cluster, await cluster.find_scopes())
    api = WebApi(view, Programs(client, request.operator, request.grid, request.accounting))

    async def api_of(_request: object) -> WebApi:
        return api

    access = LoopbackAccess(application(api_of))
    try:
        server = Server(access, ("127.0.0.1", request.port))
    except OSError as error:
        raise click.ClickException(f"cannot listen on 127.0.0.1:{request.port}: {error.strerror} (--port)") from None
    async with asyncio.TaskGroup() as tasks:
        await cluster.start(tasks)
        async with server:
            url = f"http://127.0.0.1:{server.port}{LOGIN_PATH}?token={access.token}"
            click.echo(f"{url}\nThe link works once, on this machine. Ctrl-C ends the server.")
            if request.open_browser:
                webbrowser.open(url)
            await asyncio.Event().wait()


@click.command("web")
@cluster_options
@click.option(
    "-n", "--namespace", default="", help="Namespace to show to users who may not list all. [default: of the context]"
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, show_default=True, help="Port on 127.0.0.1; 0 for a free one."
)
@click.option("--open/--no-open", "open_browser", default=True, show_default=True, help="Open the page in a browser.")
@all_programs_options
def web(
    kubeconfig: Path | None, context: str | None, namespace: str, port: int, open_browser: bool, **options: Any
) -> None:
    """Serve pages about the cluster to your browser, with your own rights.

    Fleet and Health for who runs the cluster, My pods for who waits in it, Energy for who pays for it. Pages and the
    JSON API below /api/v1 are served on this machine only and are read only; the printed link works once.
    """
    request = Request(port, namespace, open_browser, *all_endpoints(options))
    run_with_client(lambda client: serve(client, request), kubeconfig=kubeconfig, context=context)
