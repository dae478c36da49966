"""Report of an experiment, from its folder alone: one HTML file, and one PNG for each chart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from joulie_lab.apps.experiment.artefacts import ArtefactError, Artefacts
from joulie_lab.simulation.experiment.charts import comparison_charts, run_charts
from joulie_lab.simulation.experiment.compare import Comparison, compare
from joulie_lab.simulation.experiment.outcome import Outcome
from joulie_lab.simulation.experiment.plan import PhysicsChoice
from joulie_lab.simulation.experiment.scenario import Experiment
from joulie_lab.simulation.experiment.tables import (
    PART_COLUMNS,
    figure_rows,
    part_rows,
    side_by_side_columns,
    side_by_side_rows,
    title,
    unequal_work,
)
from joulie_lab.simulation.report.html import render_page
from joulie_lab.simulation.report.png import render_png

REPORT = "report.html"


def write_report(artefacts: Artefacts) -> Path:
    """Write ``report.html`` and the charts into the folder.

    Returns:
        Path of the report.

    Raises:
        ArtefactError: the folder is not that of an experiment, has no finished run, or cannot be written.
    """
    experiment = artefacts.experiment()
    comparison = compare(experiment, artefacts.records())
    if not comparison.results:
        raise ArtefactError(f"{artefacts.folder}: no run is finished: there is nothing to report")
    physics, seed, runs = _shown(artefacts, comparison)
    charts = [*comparison_charts(comparison), *run_charts(runs)]
    where = f"seed {seed}, {physics}"
    page = render_page(
        "experiment.html",
        charts,
        scenario=experiment,
        facts=_facts(experiment, artefacts.manifest()),
        physics=[
            {
                "title": title(experiment.name, results),
                "unequal": unequal_work(results),
                "columns": ("", *(result.variant for result in results)),
                "rows": figure_rows(results),
            }
            for results in (comparison.under(each) for each in comparison.physics)
        ],
        baseline=comparison.baseline,
        side_by_side={"columns": side_by_side_columns(comparison), "rows": side_by_side_rows(comparison)},
        parts={"columns": PART_COLUMNS, "rows": part_rows(comparison)},
        invalid=[f"{key} does not count: {why}" for key, why in artefacts.invalid().items()],
        left_out=comparison.left_out,
        notes=list(dict.fromkeys(note for run in runs.values() for note in run.notes)),
        charts_note=f"Bars with intervals are of all seeds; everything else is of {where}.",
    )
    target = artefacts.folder / REPORT
    try:
        target.write_text(page, encoding="utf-8")
        for chart in charts:
            (artefacts.folder / f"{chart.key}.png").write_bytes(render_png(chart, experiment.name))
    except OSError as error:
        raise ArtefactError(f"{artefacts.folder}: cannot be written: {error.strerror}") from error
    return target


def _shown(artefacts: Artefacts, comparison: Comparison) -> tuple[PhysicsChoice, int, dict[str, Outcome]]:
    """Runs for the charts: those of the first physics, and of its first seed with the most variants."""
    physics = comparison.physics[0]
    keys = [key for key in artefacts.finished() if key.physics == physics]
    seeds = sorted({key.seed for key in keys})
    seed = max(seeds, key=lambda seed: (sum(key.seed == seed for key in keys), -seed))
    return physics, seed, {key.variant: artefacts.read(key).outcome for key in keys if key.seed == seed}


def _facts(experiment: Experiment, manifest: dict[str, Any]) -> list[tuple[str, str]]:
    cluster = experiment.cluster
    identity = manifest["identity"]
    scale = identity["time_scale"]
    where = "natively" if scale is None else f"on a real control plane, {scale:g} times as fast"
    trace = experiment.workload.trace
    source = "generated, one trace a seed" if trace is None else Path(trace).name
    nodes = sum(group.count for group in cluster.groups)
    facts = [
        ("Cluster", f"{nodes:,} nodes ({', '.join(f'{group.count} × {group.name}' for group in cluster.groups)})"),
        ("Jobs", source),
        ("Time", f"{experiment.hours:g} h of arrivals and {experiment.drain_hours:g} h to finish"),
        (
            "Control",
            f"operator every {experiment.control.operator_s:g} s, agents every {experiment.control.agent_s:g} s",
        ),
        ("Cooling", experiment.cooling.kind),
        ("Ran", f"{where}, Joulie {manifest['joulie']}"),
    ]
    facts.extend((f"Variant {variant.name}", variant.description or "–") for variant in experiment.variants)
    return facts
