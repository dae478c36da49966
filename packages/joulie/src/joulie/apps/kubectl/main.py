"""`kubectl joulie`: read-only commands that use the cluster permissions of the user who runs them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from joulie import __version__
from joulie.apps.kubectl import budget as budget_table
from joulie.apps.kubectl import energy as energy_table
from joulie.apps.kubectl import power_budget as power_budget_table
from joulie.apps.kubectl import profiles as profiles_table
from joulie.apps.kubectl import report as report_table
from joulie.apps.kubectl import savings as savings_table
from joulie.apps.kubectl import top as top_table
from joulie.apps.kubectl.export import FORMATS
from joulie.apps.kubectl.options import (
    Command,
    Decorator,
    EnergyGroup,
    accounting_endpoint,
    accounting_options,
    all_endpoints,
    all_programs_options,
    cluster_options,
    grid_endpoint,
    grid_options,
    limit_option,
    namespace_options,
    operator_endpoint,
    operator_options,
    output_option,
    run_with_client,
    since_option,
    table_options,
)
from joulie.apps.kubectl.overview import COLUMNS
from joulie.program.command_line import run_command_line

_NO_FILE_COMPLETION = ":4"
"""Directive for kubectl's completion: do not complete file names."""


@click.group("kubectl-joulie", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kubectl-joulie")
def kubectl_joulie() -> None:
    """Show energy and power of the cluster, and explain where pods run."""


@kubectl_joulie.command("status")
@cluster_options
@click.option("-l", "--selector", default="", help="Label selector of the nodes to show.")
@table_options(COLUMNS, "name")
@click.option("-W", "--watch", is_flag=True, help="Update the table continuously until interrupted.")
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

    Prints a summary and one row per node. HEADROOM is the power left below the caps and COOLING the share of cooling
    capacity in use, both 0 to 100. CPU%, MEM% and GPU% are requests relative to the node's allocatable resources; caps
    are per CPU package and per GPU. SOURCE is the source of the power measurement and AGE the age of the twin.
    """
    from joulie.apps.kubectl.status import View, show_status, watch_status

    if watch and output not in {"table", "wide"}:
        raise click.UsageError("-W requires -o table or wide")
    view = View(selector=selector, output=output, sort_by=sort_by, reverse=reverse)
    run_with_client(
        lambda client: watch_status(client, view) if watch else show_status(client, view),
        kubeconfig=kubeconfig,
        context=context,
    )


@kubectl_joulie.group("top")
def top() -> None:
    """Show power and energy of nodes, pods or namespaces."""


def _top_options(kind: str) -> Decorator:
    """Options of all `top` commands."""

    def decorate(command: Command) -> Command:
        table = table_options(top_table.COLUMNS[kind], "power")
        return cluster_options(table(limit_option(operator_options(command))))

    return decorate


def _show_top(
    kind: str, namespace: str | None, *, kubeconfig: Path | None, context: str | None, **options: Any
) -> None:
    request = top_table.Request(
        kind,
        namespace,
        options["output"],
        options["sort_by"],
        options["reverse"],
        options["limit"],
        operator_endpoint(options),
    )
    run_with_client(lambda client: top_table.show_top(client, request), kubeconfig=kubeconfig, context=context)


@top.command("nodes")
@_top_options("nodes")
def top_nodes(**options: Any) -> None:
    """Show the power of nodes, highest first.

    Prints the total and one row per node. RANGE is the 90 % interval of the power where it is estimated and not
    measured. SHARE is the share of the total. ENERGY is counted since the operator became leader. SOURCE is the source
    of the measurement, and QUALITY says whether the sample is fresh, stale or missing. -o wide adds the idle power of
    the node and the power that no pod accounts for.
    """
    _show_top("nodes", None, **options)


@top.command("pods")
@_top_options("pods")
@namespace_options()
def top_pods(namespace: str, all_namespaces: bool, **options: Any) -> None:
    """Show the power of pods, highest first.

    A pod's power is its share of the node's power above idle, plus the power of the GPUs that it holds. An unknown
    power is shown as -, which is not zero. The columns are those of `top nodes`; -o wide adds the measurement by which
    the node's power is divided among pods.
    """
    _show_top("pods", None if all_namespaces else namespace, **options)


@top.command("namespaces")
@_top_options("namespaces")
def top_namespaces(**options: Any) -> None:
    """Show the power of namespaces, highest first.

    POWER is the sum over the pods with known power; UNKNOWN is the number of the others.
    """
    _show_top("namespaces", None, **options)


def _account_options(command: Command) -> Command:
    """Options of all commands that query the accounting program."""
    return cluster_options(namespace_options()(since_option(accounting_options(command))))


@kubectl_joulie.command("energy")
@_account_options
@click.option(
    "--by",
    type=EnergyGroup(),
    default="job",
    show_default=True,
    help="Group to sum by; job stands for any workload, label:KEY for a label of pods that the accounting keeps.",
)
@table_options(energy_table.ORDERS, "energy")
@limit_option
def energy(kubeconfig: Path | None, context: str | None, namespace: str, all_namespaces: bool, **options: Any) -> None:
    """Show energy, emissions and cost by pod, workload, namespace, node, day or label.

    ENERGY includes the PUE of the data centre. MEASURED is the share of the energy with measured power, ASSUMED the
    share estimated from requests alone; the rest is modelled from measured utilisation. NO-CO2 is the share with
    unknown carbon intensity, which is not part of CO2EQ. Only whole hours are counted. -o wide adds the devices.
    Without -n, namespaces, nodes and labels of the whole cluster are shown; __idle__ is the energy of nodes that
    belongs to no pod.
    """
    everywhere = all_namespaces or (options["by"] not in {"pod", "job", "day"} and not namespace)
    request = energy_table.Request(
        options["by"],
        None if everywhere else namespace,
        options["since_s"],
        options["output"],
        options["sort_by"],
        options["reverse"],
        options["limit"],
        accounting_endpoint(options),
    )
    run_with_client(lambda client: energy_table.show_energy(client, request), kubeconfig=kubeconfig, context=context)


@kubectl_joulie.command("savings")
@_account_options
@table_options(savings_table.COLUMNS, "completed")
@limit_option
def savings(kubeconfig: Path | None, context: str | None, namespace: str, all_namespaces: bool, **options: Any) -> None:
    """Show emissions and cost saved by pods that waited for cleaner or cheaper power.

    Savings are negative if waiting made it worse. METHOD timeseries applies the pod's power to the intensity or price
    from the time when the pod was first held; simple multiplies the difference between the two times by the energy.
    """
    request = savings_table.Request(
        None if all_namespaces else namespace,
        options["since_s"],
        options["output"],
        options["sort_by"],
        options["reverse"],
        options["limit"],
        accounting_endpoint(options),
    )
    run_with_client(lambda client: savings_table.show_savings(client, request), kubeconfig=kubeconfig, context=context)


@kubectl_joulie.command("report")
@click.argument("month", required=False)
@cluster_options
@namespace_options("workloads")
@accounting_options
@click.option("-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", help="Output format.")
def report(
    month: str | None,
    kubeconfig: Path | None,
    context: str | None,
    namespace: str,
    all_namespaces: bool,
    output: str,
    **options: Any,
) -> None:
    """Report the emissions of a MONTH (2026-10, UTC); without one, of the month that lasts.

    One row per workload: its SCI score (ISO/IEC 21031), and location- and market-based emissions (GHG Protocol). All
    namespaces (-A) also have what nodes used and kept for nobody. `joulie ledger report` prints the same.
    """
    request = report_table.Request(month, None if all_namespaces else namespace, output, accounting_endpoint(options))
    run_with_client(lambda client: report_table.show_report(client, request), kubeconfig=kubeconfig, context=context)


@kubectl_joulie.command("export")
@_account_options
@click.option("--format", "form", type=click.Choice(FORMATS), default="csv", show_default=True, help="File format.")
@click.option(
    "-f",
    "--file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Output file.  [default: standard output]",
)
def export(kubeconfig: Path | None, context: str | None, namespace: str, all_namespaces: bool, **options: Any) -> None:
    """Export the stored energy rows.

    One row per pod and hour, or per workload and day for older data: energy by device, PUE, carbon intensity,
    emissions, price and cost. The format opencost sums them by pod, as OpenCost allocations.
    """
    from joulie.apps.kubectl.export import Request
    from joulie.apps.kubectl.export import export as write

    selected = None if all_namespaces else namespace
    request = Request(options["form"], options["file"], selected, options["since_s"], accounting_endpoint(options))
    run_with_client(lambda client: write(client, request), kubeconfig=kubeconfig, context=context)


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

    One row per workload. CPU and GPU are levels of use, each with the bottleneck (BOUND) and the utilisation (UTIL);
    CPU-CAP and GPU-CAP are the sensitivity to power caps. MOVABLE says whether the pods may be restarted on another
    node. CONF is the confidence, 0 to 1; below 0.5 it rests on annotations only. -o wide adds the reasons.
    """
    view = profiles_table.View(None if all_namespaces else namespace, selector, output, sort_by, reverse)
    run_with_client(lambda client: profiles_table.show_profiles(client, view), kubeconfig=kubeconfig, context=context)


@kubectl_joulie.group("budget", invoke_without_command=True)
@cluster_options
@namespace_options("budgets")
@table_options(budget_table.COLUMNS, "name")
@click.pass_context
def budget(
    called: click.Context,
    kubeconfig: Path | None,
    context: str | None,
    namespace: str,
    all_namespaces: bool,
    output: str,
    sort_by: str,
    reverse: bool,
) -> None:
    """Show energy, emissions and cost budgets.

    One row per EnergyBudget. USED is the largest used share of a limit, and FORECAST the share expected at the end of
    the period at the present pace; - is unknown. HOLDING says whether new pods wait, PODS and JOBS how many do, and
    ENDS when the period turns. -o wide adds the reasons, -o json and -o yaml the amounts.
    """
    if called.invoked_subcommand is not None:
        return
    view = budget_table.View(None if all_namespaces else namespace, output, sort_by, reverse)
    run_with_client(lambda client: budget_table.show_budgets(client, view), kubeconfig=kubeconfig, context=context)


@budget.command("power")
@cluster_options
@table_options(power_budget_table.COLUMNS, "name")
def budget_power(kubeconfig: Path | None, context: str | None, output: str, sort_by: str, reverse: bool) -> None:
    """Show power budgets.

    One row per PowerBudget. DRAWN-W is what its nodes draw, WORST-W what they could draw under the limits in force,
    and CURTAILED how many may draw less than they could; - is unknown. STATE is the reason of the condition Enforced.
    -o wide adds the message, and how many nodes have no fresh reading.
    """
    view = power_budget_table.View(output, sort_by, reverse)
    run_with_client(
        lambda client: power_budget_table.show_power_budgets(client, view), kubeconfig=kubeconfig, context=context
    )


@kubectl_joulie.command("recommend")
@cluster_options
@output_option
def recommend(kubeconfig: Path | None, context: str | None, output: str) -> None:
    """Show the operator's recommendations.

    Workloads that should move to another node, and how GPUs could be shared: GAIN is in percentage points of
    utilisation; CONF grows with the number of profiles and is 1 from ten profiles.
    """
    from joulie.apps.kubectl.recommend import show_recommendations

    run_with_client(lambda client: show_recommendations(client, output), kubeconfig=kubeconfig, context=context)


@kubectl_joulie.command("limits")
@cluster_options
@output_option
def limits(kubeconfig: Path | None, context: str | None, output: str) -> None:
    """Show the power limits of GPUs, job by job.

    LIMIT is in force by the agent's report, ORIGINAL what the GPU had before Joulie. SLOWDOWN is the time for the same
    work over that without the limit, SAVED the energy for the same work; CONF is the probability that the bound is
    exceeded by no more than 1 %.
    """
    from joulie.apps.kubectl.limits import show_limits

    run_with_client(lambda client: show_limits(client, output), kubeconfig=kubeconfig, context=context)


@kubectl_joulie.command("grid")
@cluster_options
@output_option
@grid_options
def grid(kubeconfig: Path | None, context: str | None, output: str, **options: Any) -> None:
    """Show carbon intensity and prices by zone, and the number of pods that wait for them.

    AGE is the time since the start of the value's validity. QUALITY is missing if there is no value; no pod waits for
    it then. LOWEST AHEAD is the minimum of the forecast and its time. -o wide adds the waiting pods, one line for pods
    with the same decision.
    """
    from joulie.apps.kubectl.grid import Request, show_grid

    request = Request(output, grid_endpoint(options))
    run_with_client(lambda client: show_grid(client, request), kubeconfig=kubeconfig, context=context)


@kubectl_joulie.command("web")
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
    from joulie.apps.kubectl.web.main import Request, serve

    request = Request(port, namespace, open_browser, *all_endpoints(options))
    run_with_client(lambda client: serve(client, request), kubeconfig=kubeconfig, context=context)


@kubectl_joulie.group("explain")
def explain() -> None:
    """Explain decisions."""


@explain.command("pod")
@cluster_options
@click.argument("name")
@click.option("-n", "--namespace", default="", help="Namespace of the pod. [default: that of the context]")
@output_option
@click.option(
    "--top", type=click.IntRange(min=1), default=10, show_default=True, help="Maximum number of nodes, best first."
)
@click.option(
    "--extender-service",
    default="joulie-system/joulie-extender:extender",
    show_default=True,
    help="Namespace, service and port of the extender, reached through the API server; with TLS:"
    " joulie-system/https:joulie-extender:extender.",
)
@click.option("--extender-url", help="URL of the extender, to connect directly, such as http://127.0.0.1:9877.")
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
    """Explain the placement of the pod NAME.

    Prints where it runs or why it waits (for the grid: latest start, and what would release it), then the extender's
    score of each node. HEADROOM and COOLING are points for the power left below the caps, after adding the pod, and
    for the cooling capacity left; TREND, CONGESTION and CAPPED add or subtract points. SCORE is their sum, 0 to 100;
    kube-scheduler receives it as 0 to 10. A node without data scores 50. -o wide adds MARGINAL, the power that the pod
    would add, in W.
    """
    from joulie.apps.kubectl.explain import Request, explain_placement

    request = Request(namespace, name, output, top, extender_service, extender_url, grid_endpoint(options))
    run_with_client(lambda client: explain_placement(client, request), kubeconfig=kubeconfig, context=context)


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the kubectl plugin.

    Exit codes: 1 with a one-line message for cluster errors, 2 with a one-line message for usage errors, 130 when
    interrupted.
    """
    sys.exit(run_command_line(kubectl_joulie, "kubectl joulie", arguments, error_prefix="Error: "))


def complete() -> None:
    """Print completions in the protocol of kubectl plugins: one per line with its help, then a directive."""
    from click.shell_completion import ShellComplete

    *before, incomplete = sys.argv[1:] or [""]
    completer = ShellComplete(kubectl_joulie, {}, "kubectl joulie", "")
    for item in completer.get_completions(before, incomplete):
        click.echo(f"{item.value}\t{item.help}" if item.help else item.value)
    click.echo(_NO_FILE_COMPLETION)
