"""`kubectl joulie`: commands that read a cluster with the rights of whoever runs them."""

from __future__ import annotations

import asyncio
import sys
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
_NO_FILES = ":4"
"""To kubectl's completion: offer no file names beside these."""
_INTERRUPTED = 130


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
    """Show the energy state of the nodes.

    A summary, then a row a node. Headroom is the power left below the caps and cooling the share of cooling
    capacity in use, both 0 to 100. CPU%, MEM% and GPU% are what pods request of what the node offers; the caps are
    each package's and each GPU's. SOURCE says where the power comes from and AGE how old the twin is.
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
@click.option("-n", "--namespace", default="", help="Namespace of the pod; without it, the context's.")
@click.option(
    "-o", "--output", type=click.Choice(_FORMS), default="table", show_default=True, help="Form of the output."
)
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True, help="Nodes to show, best first.")
@click.option(
    "--extender-service",
    default="joulie-system/joulie-extender:extender",
    show_default=True,
    help="Namespace, service and port of the extender, reached through the API server; with TLS it is"
    " joulie-system/https:joulie-extender:extender.",
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
    """Say why the pod NAME is where it is.

    Where it runs or why it waits, then the extender's own arithmetic, node by node. HEADROOM and COOLING are points
    for the power left below the caps, with the pod's own added, and for the cooling capacity left; TREND,
    CONGESTION and CAPPED add or take points. SCORE is their sum, 0 to 100, and what kube-scheduler is told of it is
    0 to 10. A node without data scores 50. -o wide adds MARGINAL, the power that the pod would add, in W.
    """
    from joulie.apps.kubectl.explain import Question, explain_placement

    question = Question(namespace, name, output, top, extender_service, extender_url)
    connected(lambda client: explain_placement(client, question), kubeconfig=kubeconfig, context=context)


def main(arguments: list[str] | None = None) -> None:
    """Run the plugin as a program of its own, as kubectl does.

    Exits with 1 and one line where the cluster refuses or fails, with 2 and one line where the command is wrong, with
    130 when interrupted.
    """
    sys.exit(_run(arguments))


def complete() -> None:
    """Print completions as kubectl asks a plugin for them: one a line with its help, then a directive."""
    from click.shell_completion import ShellComplete

    *before, incomplete = sys.argv[1:] or [""]
    completer = ShellComplete(kubectl_joulie, {}, "kubectl joulie", "")
    for item in completer.get_completions(before, incomplete):
        click.echo(f"{item.value}\t{item.help}" if item.help else item.value)
    click.echo(_NO_FILES)


def _run(arguments: list[str] | None) -> int:
    try:
        kubectl_joulie.main(args=arguments, prog_name="kubectl joulie", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "kubectl joulie"
        click.echo(f"Error: {error.format_message().rstrip('.')} (see {command} --help)", err=True)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return _INTERRUPTED
    return 0
