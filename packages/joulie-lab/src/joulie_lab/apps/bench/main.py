"""``joulie bench``: the benchmarks, each a command with a table, a plot, JSON and committed ranges."""

from __future__ import annotations

import click

from joulie.program.commands import Command, CommandGroup
from joulie_lab.apps.bench.fetch import fetch
from joulie_lab.apps.bench.registry import SUMMARIES, module_of
from joulie_lab.apps.bench.run import OUTPUT

_COMMANDS = (
    *(Command(f"bench {name}", module_of(name), f"Measure {summary}.") for name, summary in SUMMARIES.items()),
    Command("bench fidelity", module_of("fidelity"), "Compare runs on a control plane with native ones."),
    Command("bench page", module_of("page"), "Write the pages of benchmarks, in a checkout."),
)


@click.group(cls=CommandGroup, path="bench", lazy=_COMMANDS)
def bench() -> None:
    """Run the benchmarks that Joulie is judged by.

    Each prints a table and checks its figures against committed ranges: exit status 1, and a line for each range
    that is missed.
    """


bench.add_command(fetch)


@bench.command("list")
@OUTPUT
def list_benchmarks(*, output: str) -> None:
    """List the benchmarks."""
    if output != "table":
        from joulie.program.documents import print_document

        print_document([{"name": name, "summary": summary} for name, summary in SUMMARIES.items()], output)
        return
    width = max(map(len, SUMMARIES))
    for name, summary in SUMMARIES.items():
        click.echo(f"{name:<{width}}  {summary}")
