"""``joulie scenario``: lists, shows and validates scenarios."""

from __future__ import annotations

from typing import Any

import click

from joulie.program.commands import CommandGroup
from joulie.program.errors import UserError

_SETS = click.option("--set", "sets", metavar="KEY=VALUE", multiple=True, help="Override a value; repeatable.")
_SCENARIO = click.argument("scenario", metavar="NAME|FILE.yaml")


@click.group(cls=CommandGroup, path="scenario")
def scenario() -> None:
    """List, show and validate scenarios; print their JSON Schema."""


@scenario.command("list")
@click.option("-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
def list_scenarios(output: str) -> None:
    """List the scenarios that ship with Joulie."""
    from joulie.program.documents import print_document
    from joulie_lab.simulation.scenario_files import load_scenario, shipped_names

    rows: list[dict[str, Any]] = []
    for name in shipped_names():
        entry = load_scenario(name)
        rows.append(
            {"name": name, "nodes": entry.cluster.n_nodes, "hours": entry.hours, "description": entry.description}
        )
    if output != "table":
        print_document(rows, output)
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        click.echo(f"{row['name']:<{width}}  {row['nodes']:>6} nodes  {row['hours']:>6g} h  {row['description']}")


@scenario.command()
@_SCENARIO
def show(scenario: str) -> None:
    """Print the YAML of a scenario, as a starting point for your own."""
    from joulie_lab.simulation.positions import ScenarioError
    from joulie_lab.simulation.scenario_files import scenario_text

    try:
        click.echo(scenario_text(scenario), nl=False)
    except ScenarioError as error:
        raise UserError(str(error)) from error


@scenario.command()
@_SCENARIO
@_SETS
def validate(scenario: str, sets: tuple[str, ...]) -> None:
    """Validate a scenario; every problem is reported with its line. Exit status 2 if there are problems."""
    from joulie_lab.simulation.positions import ScenarioError
    from joulie_lab.simulation.scenario_files import load_scenario

    try:
        loaded = load_scenario(scenario, sets)
    except ScenarioError as error:
        raise UserError(str(error)) from error
    click.echo(f"{scenario}: valid: {loaded.cluster.n_nodes} nodes, {loaded.hours:g} h, mode {loaded.mode}")


@scenario.command()
def schema() -> None:
    """Print the JSON Schema of scenarios, for editors."""
    from joulie.program.documents import print_document
    from joulie_lab.simulation.scenario_files import json_schema

    print_document(json_schema(), "json")
