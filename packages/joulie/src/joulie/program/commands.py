"""Command groups with lazily imported sub-commands, which other distributions can extend.

A distribution registers an entry point in the group ``joulie.commands`` that refers to a sequence of `Command`. The
path of each selects its group: ``"simulate"`` is added to ``joulie``, ``"grid backtest"`` to ``joulie grid``, and
``"kubectl status"`` to ``kubectl joulie``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from joulie.collector import no_collection
from joulie.program.errors import UserError

ENTRY_POINT_GROUP = "joulie.commands"


class Command(NamedTuple):
    """A sub-command that is imported when it runs.

    Attributes:
        path: words of the command after ``joulie``, separated by spaces.
        module: module of the click command, whose name is the last word of the path (with ``_`` for ``-``).
        help: short help, shown by its group.
    """

    path: str
    module: str
    help: str

    def load(self) -> click.Command:
        """Import the command.

        Raises:
            UserError: a required package is not installed.
        """
        name = self.path.rpartition(" ")[2].replace("-", "_")
        try:
            with no_collection():
                command = getattr(import_module(self.module), name)
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package in {"joulie", "joulie_lab"}:
                raise
            distribution = self.module.partition(".")[0].replace("_", "-")
            raise UserError(f"{self.path} requires {package}: pip install {distribution}") from error
        assert isinstance(command, click.Command)
        return command


class CommandGroup(click.Group):
    """A group with commands defined on it, lazily imported ones, and those of other distributions.

    Args:
        path: words of the group after ``joulie``; empty for ``joulie`` itself.
        lazy: commands of this group that are imported when they run.
        elsewhere: names of commands of an optional distribution, and the command that installs it.
        arguments: positional arguments of `click.Group`.
        options: keyword arguments of `click.Group`.
    """

    def __init__(
        self,
        *arguments: Any,
        path: str = "",
        lazy: Sequence[Command] = (),
        elsewhere: tuple[Sequence[str], str] = ((), ""),
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self._path = path
        self._lazy = tuple(lazy)
        self._elsewhere = elsewhere

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All command names, in the order of the help."""
        return list(self._summaries())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a sub-command.

        Raises:
            UserError: its distribution or a required package is not installed.
        """
        # Built-in commands first: a broken plug-in must not stop the operator or an agent.
        command = self._of_group(self._lazy).get(cmd_name)
        if command is None and cmd_name not in self.commands:
            command = self._of_group(_added()).get(cmd_name)
        if command is not None:
            return command.load()
        names, installed_by = self._elsewhere
        if cmd_name in names:
            raise UserError(f"{cmd_name} is not installed: {installed_by}")
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the sub-command of a command line; an error names similar ones, imported or not."""
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            raise click.NoSuchCommand(error.command_name, possibilities=self.list_commands(ctx), ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the sub-commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self._summaries().items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete names of sub-commands without importing them, and options as usual."""
        if incomplete.startswith("-"):
            return click.Command.shell_complete(self, ctx, incomplete)
        return [
            CompletionItem(name, help=summary)
            for name, summary in self._summaries().items()
            if name.startswith(incomplete)
        ]

    def _of_group(self, commands: Sequence[Command]) -> dict[str, Command]:
        """Those of the commands that belong to this group, by name."""
        prefix = f"{self._path} " if self._path else ""
        return {
            name: command
            for command in commands
            if command.path.startswith(prefix) and " " not in (name := command.path.removeprefix(prefix))
        }

    def _summaries(self) -> dict[str, str]:
        lazy = self._of_group(self._lazy)
        lazy |= {name: command for name, command in self._of_group(_added()).items() if name not in lazy}
        return {name: command.help for name, command in lazy.items()} | {
            name: command.get_short_help_str() for name, command in self.commands.items()
        }


@cache
def _added() -> tuple[Command, ...]:
    """Commands of other distributions."""
    return tuple(_loaded())


def _loaded() -> Iterator[Command]:
    for point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: point.name):
        try:
            yield from tuple(point.load())
        except Exception as error:
            click.echo(f"joulie: warning: commands of {point.value} cannot be loaded: {error}", err=True)
