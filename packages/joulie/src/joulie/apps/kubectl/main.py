"""`kubectl joulie`: read-only commands that use the cluster permissions of the user who runs them."""

from __future__ import annotations

import sys

import click

from joulie import __version__
from joulie.program.command_line import run_command_line
from joulie.program.commands import Command, CommandGroup

_COMMANDS = (
    Command("kubectl budget", "joulie.apps.kubectl.budget", "Show energy, emissions and cost budgets."),
    Command(
        "kubectl energy",
        "joulie.apps.kubectl.energy",
        "Show energy, emissions and cost by pod, workload, namespace, node, day or label.",
    ),
    Command("kubectl explain", "joulie.apps.kubectl.explain", "Explain decisions."),
    Command("kubectl export", "joulie.apps.kubectl.export", "Export the stored energy rows."),
    Command(
        "kubectl grid",
        "joulie.apps.kubectl.grid",
        "Show carbon intensity and prices by zone, and the number of pods that wait for them.",
    ),
    Command("kubectl limits", "joulie.apps.kubectl.limits", "Show the power limits of GPUs, job by job."),
    Command("kubectl profiles", "joulie.apps.kubectl.profiles", "Show how workloads use power."),
    Command("kubectl recommend", "joulie.apps.kubectl.recommend", "Show the operator's recommendations."),
    Command(
        "kubectl report",
        "joulie.apps.kubectl.report",
        "Report the emissions of a MONTH (2026-10, UTC); without one, of the month that lasts.",
    ),
    Command(
        "kubectl savings",
        "joulie.apps.kubectl.savings",
        "Show emissions and cost saved by pods that waited for cleaner or cheaper power.",
    ),
    Command("kubectl status", "joulie.apps.kubectl.status", "Show the energy state of the nodes."),
    Command("kubectl top", "joulie.apps.kubectl.top", "Show power and energy of nodes, pods or namespaces."),
    Command(
        "kubectl web",
        "joulie.apps.kubectl.web.main",
        "Serve pages about the cluster to your browser, with your own rights.",
    ),
)
_NO_FILE_COMPLETION = ":4"
"""Directive for kubectl's completion: do not complete file names."""


@click.group(
    "kubectl-joulie",
    cls=CommandGroup,
    path="kubectl",
    lazy=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="kubectl-joulie")
def kubectl_joulie() -> None:
    """Show energy and power of the cluster, and explain where pods run."""


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
