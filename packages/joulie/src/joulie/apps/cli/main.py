"""The ``joulie`` command group; sub-commands are imported when they run."""

from __future__ import annotations

import sys

import click

from joulie import __version__
from joulie.program.command_line import run_command_line
from joulie.program.commands import Command, CommandGroup

_SHELLS = ("bash", "zsh", "fish")
_COMMANDS = (
    Command("operator", "joulie.apps.operator.main", "Decide power states and caps of a cluster's nodes."),
    Command("agent", "joulie.apps.agent.main", "Enforce caps on a node, or on a pool of nodes."),
    Command("extender", "joulie.apps.extender.main", "Filter and score nodes for kube-scheduler."),
    Command("grid", "joulie.apps.grid.main", "Defer pods until power is cleaner or cheaper."),
    Command("accounting", "joulie.apps.accounting.main", "Account for energy, emissions and cost of every pod."),
    Command("web", "joulie.apps.kubectl.web.program", "Serve pages about the cluster to its users."),
    Command("ledger", "joulie.apps.cli.ledger", "Verify, correct, close and export the accounts of energy."),
    Command("record", "joulie.apps.cli.record", "Record a cluster's pods, use and power, to replay them."),
    Command("caps", "joulie.apps.cli.caps", "Find power limits that save energy without slowing jobs down."),
    Command("nodes", "joulie.apps.cli.nodes", "Annotate nodes with their hardware."),
    Command(
        "cleanup", "joulie.apps.cleanup.main", "Lift all caps and remove Joulie's labels and gates from a cluster."
    ),
)
_LABORATORY = (
    (
        *("demo", "simulate", "scenario", "workload", "sweep", "experiment", "bench", "fmu", "simulator", "machine"),
        "replay",
        "trial",
    ),
    "pip install joulie-lab",
)
"""Commands of the distribution joulie-lab; using one that is not installed prints how to install it."""


@click.group(
    cls=CommandGroup,
    lazy=_COMMANDS,
    elsewhere=_LABORATORY,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="joulie")
def cli() -> None:
    """Joulie, the energy brain of Kubernetes."""


@cli.command()
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(shell: str) -> None:
    """Print a shell's completion script.

    For bash: eval "$(joulie completion bash)"
    """
    from click.shell_completion import ShellComplete, get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    completer: ShellComplete = kind(cli, {}, "joulie", "_JOULIE_COMPLETE")
    # The template is used directly: `source()` would start a shell to check its version.
    click.echo(completer.source_template % completer.source_vars())


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit.

    Exit codes: 2 for user errors, 1 for files and streams that fail, with one line on stderr; 130 when interrupted.
    """
    sys.exit(run_command_line(cli, "joulie", arguments, error_prefix="joulie: error: "))
