"""``joulie bench``: one command per benchmark, with tables, a plot, JSON and committed ranges."""

from __future__ import annotations

import click

from joulie.program.commands import Command, CommandGroup
from joulie_lab.apps.bench.fetch import fetch
from joulie_lab.apps.bench.registry import SUMMARIES, module_of
from joulie_lab.apps.bench.run import OUTPUT

_COMMANDS = (
    *(Command(f"bench {name}", module_of(name), f"Measure {summary}.") for name, summary in SUMMARIES.items()),
    Command("bench fidelity", module_of("fidelity"), "Compare runs on a control plane with native ones."),
    Command("bench page", module_of("page"), "Write the documentation pages of benchmarks, in a checkout."),
)


@click.group(cls=CommandGroup, path="bench", lazy=_COMMANDS)
def bench() -> None:
    """Run Joulie's benchmarks.

    Each benchmark prints tables and checks its figures against committed ranges. Figures out of range are listed, and
    the exit status is 1.
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
