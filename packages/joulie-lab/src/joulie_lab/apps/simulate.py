"""``joulie simulate``: simulates a scenario under one or more schedulers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from joulie.program.errors import UserError
from joulie.program.numbers import FiniteFloat
from joulie_lab.program.lists import items, whole

if TYPE_CHECKING:
    from joulie_lab.simulation.results import Run
    from joulie_lab.simulation.scenario import Scenario
    from joulie_lab.simulation.scenario_files import Setting

_FILE = click.Path(path_type=Path)


@click.command()
@click.argument("scenario", metavar="SCENARIO")
@click.option("--scheduler", "schedulers", metavar="NAME,...", multiple=True, help="Schedulers to compare.")
@click.option("--seed", "seeds", metavar="N,...", multiple=True, help="Seeds, a run each.")
@click.option("--hours", type=FiniteFloat(), help="Length of the arrival period, h.")
@click.option("--set", "sets", metavar="KEY=VALUE", multiple=True, help="Override a value of the scenario; repeatable.")
@click.option("--cooling", metavar="none|linear|dx|FILE.fmu", help="Cooling plant.")
@click.option("--json", "json_file", type=_FILE, help="Write the runs' records as JSON.")
@click.option("--parquet", "parquet_folder", type=_FILE, help="Write records and time series as Parquet into a folder.")
@click.option("--report", "report_file", type=_FILE, help="Write a report as one HTML file.")
@click.option("--plots", "plots_folder", type=_FILE, help="Write the charts as PNG files into a folder.")
@click.option("-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
def simulate(
    *,
    scenario: str,
    schedulers: tuple[str, ...],
    seeds: tuple[str, ...],
    hours: float | None,
    sets: tuple[str, ...],
    cooling: str | None,
    json_file: Path | None,
    parquet_folder: Path | None,
    report_file: Path | None,
    plots_folder: Path | None,
    output: str,
) -> None:
    """Simulate SCENARIO, a shipped scenario by name (see joulie scenario list) or a YAML file by path.

    Output files are written after the table, either complete or not at all; - is standard output.
    """
    from joulie_lab.program.outputs import Outputs
    from joulie_lab.simulation.positions import ScenarioError
    from joulie_lab.simulation.scenario_files import load_scenario

    try:
        loaded = load_scenario(scenario, sets, list(_settings(schedulers, seeds, hours, cooling)))
    except ScenarioError as error:
        raise UserError(str(error)) from error
    with Outputs() as outputs:
        json_part = outputs.file("--json", json_file)
        report_part = outputs.file("--report", report_file)
        parquet_part = outputs.folder("--parquet", parquet_folder)
        plots_part = outputs.folder("--plots", plots_folder)
        runs = _play(loaded)
        with outputs.beside():
            _print(runs, output)
        if json_part:
            outputs.write(json_part, _render([run.record.as_dict() for run in runs], "json") + "\n")
        if report_part:
            from joulie_lab.simulation.report.html import render_report

            outputs.write(report_part, render_report(loaded, runs))
        if parquet_part:
            _write_parquet(parquet_part, runs)
        if plots_part:
            for name, image in _plots(runs):
                outputs.write(plots_part / name, image)
        outputs.commit()
    for path in (json_file, report_file, parquet_folder, plots_folder):
        if path:
            click.echo(f"wrote {path}", err=True)


def _settings(
    schedulers: Sequence[str], seeds: Sequence[str], hours: float | None, cooling: str | None
) -> Iterable[Setting]:
    """Scenario settings from the command line options."""
    from joulie_lab.simulation.scenario_files import Setting

    if schedulers:
        yield Setting(("schedulers",), items(schedulers), "--scheduler")
    if seeds:
        yield Setting(("seeds",), [whole(item, "--seed") for item in items(seeds)], "--seed")
    if hours is not None:
        yield Setting(("hours",), hours, "--hours")
    if cooling is not None:
        plant: Any = {"fmu": {"file": cooling}} if cooling.lower().endswith(".fmu") else cooling
        yield Setting(("cooling",), plant, "--cooling")


def _play(scenario: Scenario) -> list[Run]:
    """Make all runs: every scheduler for each seed."""
    from joulie.domain.units import InvalidQuantityError
    from joulie_lab.program.facility import open_plant
    from joulie_lab.program.progress import RunProgress
    from joulie_lab.program.runner import runner
    from joulie_lab.simulation.cooling_plant import CoolingPlantError
    from joulie_lab.simulation.jobs import JobTableError
    from joulie_lab.simulation.runner import warm_up

    runs: list[Run] = []
    try:
        plant = open_plant(scenario.cooling, scenario.cluster.peak_w)  # report an unusable plant before the simulation
        with RunProgress(len(scenario.seeds) * len(scenario.schedulers)) as progress:
            for note in getattr(plant, "notes", ()):  # unit conversions of an FMU's variables
                progress.note(note)
            progress.begin("compiling (once an installation)")
            warm_up()
            progress.end()
            player = runner(scenario)
            for seed in scenario.seeds:
                progress.begin(f"jobs of seed {seed}")
                late = player.jobs(seed).late
                progress.end()
                if late:
                    progress.note(f"{late:,} jobs arrive after the first {scenario.hours:g} h and are not simulated")
                for scheduler in scenario.schedulers:
                    progress.begin(f"{scheduler}, seed {seed}")
                    runs.append(player.run(scheduler, seed, progress.step))
                    progress.end(runs[-1].record)
    except (JobTableError, CoolingPlantError, InvalidQuantityError) as error:
        raise UserError(str(error)) from error
    return runs


def _print(runs: Sequence[Run], output: str) -> None:
    if output != "table":
        click.echo(_render([run.record.as_dict() for run in runs], output))
        return
    from joulie.program.tables import console
    from joulie_lab.program.run_tables import print_runs

    print_runs(console(), [run.record for run in runs])


def _render(value: Any, form: str) -> str:
    from joulie.program.documents import render_document

    return render_document(value, form)


def _write_parquet(folder: Path, runs: Sequence[Run]) -> None:
    """Write ``runs.parquet`` with one record per row, and one file of time series per run."""
    from dataclasses import fields

    from joulie.adapters.parquet_files import write_rows
    from joulie_lab.adapters.parquet_files import write_columns

    write_rows(folder / "runs.parquet", [run.record.as_dict() for run in runs])
    for run in runs:
        columns = {item.name: getattr(run.series, item.name) for item in fields(run.series)}
        if run.cooling is not None:
            columns |= {item.name: getattr(run.cooling, item.name) for item in fields(run.cooling)}
        write_columns(folder / f"series-{run.record.scheduler}-{run.record.seed}.parquet", columns)


def _plots(runs: Sequence[Run]) -> Iterable[tuple[str, bytes]]:
    """File name and PNG of each chart and seed."""
    from itertools import groupby

    from joulie_lab.simulation.report.charts import charts
    from joulie_lab.simulation.report.png import render_png

    for seed, group in groupby(runs, key=lambda run: run.record.seed):
        of_seed = list(group)
        for chart in charts(of_seed):
            yield f"{chart.key}-{seed}.png", render_png(chart, f"{of_seed[0].record.scenario}, seed {seed}")
