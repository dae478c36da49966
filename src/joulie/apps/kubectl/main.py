"""`kubectl joulie`: commands that read a cluster with the rights of whoever runs them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ParamSpec

import click

from joulie import __version__
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import KubernetesError
from joulie.apps.kubectl.overview import COLUMNS

P = ParamSpec("P")
_FORMS = ("table", "wide", "json", "yaml")


def cluster_options(command: Callable[P, Any]) -> Callable[P, Any]:
    """The options that say which cluster, named as kubectl names them."""
    command = click.option("--context", help="Context of the kubeconfig file.")(command)
    return click.option(
        "--kubeconfig",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Kubeconfig file; without it, what kubectl uses.",
    )(command)


def connected(work: Callable[[KubeClient], Awaitable[None]], *, kubeconfig: Path | None, context: str | None) -> None:
    """Run `work` with a client; what goes wrong with the cluster becomes one line for the user."""

    async def talk() -> None:
        async with KubeClient.connect(kubeconfig=kubeconfig, context=context, user_agent="kubectl-joulie") as client:
            await work(client)

    try:
        asyncio.run(talk())
    except KubernetesError as error:
        raise click.ClickException(str(error)) from error


@click.group("kubectl-joulie", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kubectl-joulie")
def kubectl_joulie() -> None:
    """Energy of the cluster: state of the nodes, and why pods run where they do."""


@kubectl_joulie.command("status")
@cluster_options
@click.option("-l", "--selector", default="", help="Label selector of the nodes to show.")
@click.option(
    "-o", "--output", type=click.Choice(_FORMS), default="table", show_default=True, help="Form of the output."
)
@click.option("--sort-by", type=click.Choice(tuple(COLUMNS)), default="name", show_default=True, help="Order of rows.")
@click.option("--reverse", is_flag=True, help="The other way round.")
@click.option("-W", "--watch", is_flag=True, help="Keep the table up to date until interrupted.")
def status(
    kubeconfig: Path | None,
    context: str | None,
    selector: str,
    output: str,
    sort_by: str,
    reverse: bool,
    watch: bool,
) -> None:
    """Show the energy state of the nodes: a summary, then a row a node.

    Headroom is the power left below the caps and cooling the share of cooling capacity in use, both 0 to 100. CPU%,
    MEM% and GPU% are what pods request of what the node offers; the caps are each package's and each GPU's. SOURCE says
    where the power comes from and AGE how old the twin is.
    """
    from joulie.apps.kubectl.status import View, show_status, watch_status

    if watch and output not in {"table", "wide"}:
        raise click.UsageError("-W goes with -o table or wide")
    view = View(selector=selector, form=output, sort_by=sort_by, reverse=reverse)
    connected(
        lambda client: watch_status(client, view) if watch else show_status(client, view),
        kubeconfig=kubeconfig,
        context=context,
    )


@kubectl_joulie.group("explain")
def explain() -> None:
    """Say why something is as it is."""


@explain.command("pod")
@cluster_options
@click.argument("name")
@click.option("-n", "--namespace", default="default", show_default=True, help="Namespace of the pod.")
@click.option(
    "-o", "--output", type=click.Choice(_FORMS), default="table", show_default=True, help="Form of the output."
)
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True, help="Nodes to show, best first.")
@click.option(
    "--extender-service",
    default="joulie-system/joulie-extender:metrics",
    show_default=True,
    help="Namespace, service and port of the extender, reached through the API server.",
)
@click.option("--extender-url", help="Address of the extender instead, such as http://127.0.0.1:9877.")
def explain_pod(
    kubeconfig: Path | None,
    context: str | None,
    name: str,
    namespace: str,
    output: str,
    top: int,
    extender_service: str,
    extender_url: str | None,
) -> None:
    """Explain where the pod NAME runs, or why it waits: the extender's own arithmetic, node by node."""
    from joulie.apps.kubectl.explain import Question, explain_placement

    question = Question(namespace, name, output, top, extender_service, extender_url)
    connected(lambda client: explain_placement(client, question), kubeconfig=kubeconfig, context=context)


def main() -> None:
    """Run the plugin as a program of its own, as kubectl does."""
    kubectl_joulie(prog_name="kubectl joulie")
