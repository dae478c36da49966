"""The ``joulie`` command: one group, whose sub-commands are imported when they run."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from joulie import __version__
from joulie.apps.cli.errors import UserError

_INTERRUPTED = 130
_SHELLS = ("bash", "zsh", "fish")


class _Lazy(NamedTuple):
    """A sub-command by module and what help says about it, so that help imports nothing."""

    module: str
    help: str


_COMMANDS: Mapping[str, _Lazy] = {
    "demo": _Lazy("joulie.apps.demo.main", "Watch the whole loop on simulated hardware, in time-lapse."),
    "simulate": _Lazy("joulie.apps.cli.simulate", "Play a scenario under one or more schedulers."),
    "scenario": _Lazy("joulie.apps.cli.scenario", "List, show and validate scenarios; print their JSON Schema."),
    "workload": _Lazy("joulie.apps.workload.main", "Make, import, check, describe, cut and stretch job traces."),
    "sweep": _Lazy("joulie.apps.cli.sweep", "Run variants x seeds on all cores, resumable."),
    "experiment": _Lazy("joulie.apps.cli.experiment", "Play a trace under several policies; tell what each saves."),
    "bench": _Lazy("joulie.apps.cli.bench", "Run the benchmarks that Joulie is judged by."),
    "fmu": _Lazy("joulie.apps.cli.fmu", "Build, describe and validate cooling plants as FMUs."),
    "operator": _Lazy("joulie.apps.operator.main", "Decide power states and caps of a cluster's nodes."),
    "agent": _Lazy("joulie.apps.agent.main", "Enforce caps on a node, or on a pool of nodes."),
    "extender": _Lazy("joulie.apps.extender.main", "Filter and score nodes for kube-scheduler."),
    "simulator": _Lazy("joulie.apps.simulator.main", "Simulate the hardware and work of a cluster's nodes."),
    "grid": _Lazy("joulie.apps.grid.main", "Let pods wait for clean or cheap power."),
    "accounting": _Lazy("joulie.apps.accounting.main", "Account for energy, emissions and cost of every pod."),
    "caps": _Lazy("joulie.apps.cli.caps", "Find power limits that save energy without slowing jobs down."),
    "nodes": _Lazy("joulie.apps.cli.nodes", "Say on nodes what hardware they have."),
    "cleanup": _Lazy("joulie.apps.cleanup.main", "Lift all caps and take Joulie's labels and gates off a cluster."),
}


class LazyGroup(click.Group):
    """A group that knows its sub-commands by name; each is the click object of that name in its module."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, lazy or not, in the order of the help."""
        return [*_COMMANDS, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a lazy sub-command."""
        lazy = _COMMANDS.get(cmd_name)
        if lazy is None:
            return super().get_command(ctx, cmd_name)
        try:
            command = getattr(import_module(lazy.module), cmd_name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] == "joulie":
                raise
            raise UserError(f"{cmd_name} needs {error.name}: pip install 'joulie[simulate,control-plane]'") from error
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the sub-commands from the table, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self._summaries().items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the names of sub-commands, without importing them; options as usual."""
        if incomplete.startswith("-"):
            return click.Command.shell_complete(self, ctx, incomplete)
        return [
            CompletionItem(name, help=summary)
            for name, summary in self._summaries().items()
            if name.startswith(incomplete)
        ]

    def _summaries(self) -> dict[str, str]:
        own = {name: command.get_short_help_str() for name, command in self.commands.items()}
        return {name: lazy.help for name, lazy in _COMMANDS.items()} | own


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
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
    # The template itself: `source()` would start a shell to look at its version.
    click.echo(completer.source_template % completer.source_vars())


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit.

    Errors of the user exit with 2 and one line on stderr, an interruption with 130.
    """
    sys.exit(_run(arguments))


def _run(arguments: list[str] | None) -> int:
    try:
        result: Any = cli.main(args=arguments, prog_name="joulie", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "joulie"
        UserError(f"{error.format_message().rstrip('.')} (see {command} --help)").show()
        return error.exit_code
    except click.ClickException as error:
        UserError(error.format_message()).show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("joulie: interrupted", err=True)
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader (a pager, head) has left: nothing to tell it, and Python must not try once more at exit.
        sys.stdout = None
        return 0
    return result if isinstance(result, int) else 0
