"""`kubectl joulie`: commands that read a cluster with the rights of whoever runs them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from joulie import __version__
from joulie.adapters.program_api.energy import GROUPS
from joulie.apps.kubectl import energy as energy_table
from joulie.apps.kubectl import profiles as profiles_table
from joulie.apps.kubectl import savings as savings_table
from joulie.apps.kubectl import top as top_table
from joulie.apps.kubectl.export import FORMATS
from joulie.apps.kubectl.options import (
    Command,
    Decorator,
    accounting_at,
    accounting_options,
    cluster_options,
    connected,
    grid_at,
    grid_options,
    limit_option,
    namespace_options,
    operator_at,
    operator_options,
    output_option,
    since_option,
    table_options,
)
from joulie.apps.kubectl.overview import COLUMNS

_NO_FILES = ":4"
"""To kubectl's completion: offer no file names beside these."""
_INTERRUPTED = 130


@click.group("kubectl-joulie", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kubectl-joulie")
def kubectl_joulie() -> None:
    """Energy of the cluster: state of the nodes, and why pods run where they do."""


@kubectl_joulie.command("status")
@cluster_options
@click.option("-l", "--selector", default="", help="Label selector of the nodes to show.")
@table_options(COLUMNS, "name")
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


@kubectl_joulie.group("top")
def top() -> None:
    """Say who draws how much power, and has used how much energy."""


def _top_options(kind: str) -> Decorator:
    """The options that all `top` commands have."""

    def decorate(command: Command) -> Command:
        table = table_options(top_table.COLUMNS[kind], "power")
        return cluster_options(table(limit_option(operator_options(command))))

    return decorate


def _show_top(
    kind: str, namespace: str | None, *, kubeconfig: Path | None, context: str | None, **options: Any
) -> None:
    question = top_table.Question(
        kind,
        namespace,
        options["output"],
        options["sort_by"],
        options["reverse"],
        options["limit"],
        operator_at(options),
    )
    connected(lambda client: top_table.show_top(client, question), kubeconfig=kubeconfig, context=context)


@top.command("nodes")
@_top_options("nodes")
def top_nodes(**options: Any) -> None:
    """Show the power of nodes, most first.

    The total, then a row a node. RANGE is where the true power lies in 9 of 10 cases, where it is estimated and not
    measured. SHARE is of the total. ENERGY counts from when the operator began to lead. SOURCE says who measured, and
    QUALITY whether the sample is fresh, stale or missing. -o wide adds what the node draws idle and what no pod
    explains.
    """
    _show_top("nodes", None, **options)


@top.command("pods")
@_top_options("pods")
@namespace_options()
def top_pods(namespace: str, all_namespaces: bool, **options: Any) -> None:
    """Show the power of pods, most first.

    A pod's power is its share of what its node draws beyond idle, and of the GPUs that it holds. A pod whose power
    nobody can tell has none here, which is not zero. The columns are those of `top nodes`; -o wide adds by whose
    measurement the node's power is shared.
    """
    _show_top("pods", None if all_namespaces else namespace, **options)


@top.command("namespaces")
@_top_options("namespaces")
def top_namespaces(**options: Any) -> None:
    """Show the power of namespaces, most first.

    POWER is the sum over the pods whose power is known; UNKNOWN counts the others.
    """
    _show_top("namespaces", None, **options)


def _account_options(command: Command) -> Command:
    """The options of all commands that ask the accounting program."""
    return cluster_options(namespace_options()(since_option(accounting_options(command))))


@kubectl_joulie.command("energy")
@_account_options
@click.option(
    "--by", type=click.Choice(GROUPS), default="job", show_default=True, help="What to sum by; a job is any workload."
)
@table_options(energy_table.ORDERS, "energy")
@limit_option
def energy(kubeconfig: Path | None, context: str | None, namespace: str, all_namespaces: bool, **options: Any) -> None:
    """Show who has used how much energy, and what it emitted and cost.

    ENERGY is what the data centre draws for it, with PUE. MEASURED is the share of it whose power was measured, ASSUMED
    the one of which nothing but requests was known; the rest was modelled from measured use. NO-CO2 is the share whose
    carbon intensity nobody knew, which is not part of CO2EQ. Hours are counted as a whole. -o wide adds the devices.
    Namespaces and nodes are all shown where -n names none; what nodes draw for nobody is __idle__.
    """
    everywhere = all_namespaces or (options["by"] in {"namespace", "node"} and not namespace)
    question = energy_table.Question(
        options["by"],
        None if everywhere else namespace,
        options["since_s"],
        options["output"],
        options["sort_by"],
        options["reverse"],
        options["limit"],
        accounting_at(options),
    )
    connected(lambda client: energy_table.show_energy(client, question), kubeconfig=kubeconfig, context=context)


@kubectl_joulie.command("savings")
@_account_options
@table_options(savings_table.COLUMNS, "completed")
@limit_option
def savings(kubeconfig: Path | None, context: str | None, namespace: str, all_namespaces: bool, **options: Any) -> None:
    """Show what pods saved by waiting for cleaner or cheaper power.

    Below zero where waiting made it worse. METHOD is timeseries where the same power was put on the intensity or price
    of when the pod was first held, else simple: the difference of the two moments times the energy.
    """
    question = savings_table.Question(
        None if all_namespaces else namespace,
        options["since_s"],
        options["output"],
        options["sort_by"],
        options["reverse"],
        options["limit"],
        accounting_at(options),
    )
    connected(lambda client: savings_table.show_savings(client, question), kubeconfig=kubeconfig, context=context)


@kubectl_joulie.command("export")
@_account_options
@click.option(
    "--format", "form", type=click.Choice(FORMATS), default="csv", show_default=True, help="Form of the file."
)
@click.option(
    "-f", "--file", type=click.Path(dir_okay=False, path_type=Path), help="File to write; without, standard output."
)
def export(kubeconfig: Path | None, context: str | None, namespace: str, all_namespaces: bool, **options: Any) -> None:
    """Write the rows that sums of energy are made of.

    A row a pod and hour, and a row a workload and day once hours are old: energy by device, PUE, intensity, emissions,
    price and cost. opencost sums them by pod in the shape of OpenCost's allocations.
    """
    from joulie.apps.kubectl.export import Question
    from joulie.apps.kubectl.export import export as write

    asked = None if all_namespaces else namespace
    question = Question(options["form"], options["file"], asked, options["since_s"], accounting_at(options))
    connected(lambda client: write(client, question), kubeconfig=kubeconfig, context=context)


@kubectl_joulie.command("profiles")
@cluster_options
@namespace_options("workloads")
@click.option("-l", "--selector", default="", help="Label selector of the profiles to show.")
@table_options(profiles_table.COLUMNS, "name")
def profiles(
    kubeconfig: Path | None,
    context: str | None,
    namespace: str,
    all_namespaces: bool,
    selector: str,
    output: str,
    sort_by: str,
    reverse: bool,
) -> None:
    """Show how workloads use power.

    A row a workload. CPU and GPU are how hard it uses them, each with what bounds it and its utilisation; CPU-CAP and
    GPU-CAP how much a power cap slows it down. MOVABLE says whether its pods may be restarted elsewhere, CONF how
    much data there was, 0 to 1: below 0.5 only annotations. -o wide adds the reasons.
    """
    view = profiles_table.View(None if all_namespaces else namespace, selector, output, sort_by, reverse)
    connected(lambda client: profiles_table.show_profiles(client, view), kubeconfig=kubeconfig, context=context)


@kubectl_joulie.command("recommend")
@cluster_options
@output_option
def recommend(kubeconfig: Path | None, context: str | None, output: str) -> None:
    """Show what the operator recommends.

    Workloads that would be better off on another node, and how GPUs could be shared: GAIN is in points of
    utilisation, CONF how many profiles this rests on, 1 from ten.
    """
    from joulie.apps.kubectl.recommend import show_recommendations

    connected(lambda client: show_recommendations(client, output), kubeconfig=kubeconfig, context=context)


@kubectl_joulie.command("grid")
@cluster_options
@output_option
@grid_options
def grid(kubeconfig: Path | None, context: str | None, output: str, **options: Any) -> None:
    """Show carbon intensity and prices by zone, and how many pods wait for them.

    AGE is since when the value is true; QUALITY is missing where nothing is known, and then nothing waits for it.
    LOWEST AHEAD is the smallest value that is forecast, and when. -o wide adds the pods that wait, those that are
    decided alike in one line.
    """
    from joulie.apps.kubectl.grid import Question, show_grid

    question = Question(output, grid_at(options))
    connected(lambda client: show_grid(client, question), kubeconfig=kubeconfig, context=context)


@kubectl_joulie.group("explain")
def explain() -> None:
    """Say why something is as it is."""


@explain.command("pod")
@cluster_options
@click.argument("name")
@click.option("-n", "--namespace", default="", help="Namespace of the pod; without it, the context's.")
@output_option
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True, help="Nodes to show, best first.")
@click.option(
    "--extender-service",
    default="joulie-system/joulie-extender:extender",
    show_default=True,
    help="Namespace, service and port of the extender, reached through the API server; with TLS it is"
    " joulie-system/https:joulie-extender:extender.",
)
@click.option("--extender-url", help="Address of the extender instead, such as http://127.0.0.1:9877.")
@grid_options
def explain_pod(
    kubeconfig: Path | None,
    context: str | None,
    name: str,
    namespace: str,
    output: str,
    top: int,
    extender_service: str,
    extender_url: str | None,
    **options: Any,
) -> None:
    """Say why the pod NAME is where it is.

    Where it runs or why it waits (for the grid: until when at the latest, and what would let it go), then the
    extender's own arithmetic, node by node. HEADROOM and COOLING are points for the power left below the caps, with
    the pod's own added, and for the cooling capacity left; TREND, CONGESTION and CAPPED add or take points. SCORE is
    their sum, 0 to 100, and what kube-scheduler is told of it is 0 to 10. A node without data scores 50. -o wide adds
    MARGINAL, the power that the pod would add, in W.
    """
    from joulie.apps.kubectl.explain import Question, explain_placement

    question = Question(namespace, name, output, top, extender_service, extender_url, grid_at(options))
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
