"""``joulie bench owners``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from platformdirs import user_state_path

from joulie.program.errors import UserError
from joulie_lab.apps.bench.figures import panels, title
from joulie_lab.apps.bench.report import Page, Report, Table
from joulie_lab.apps.bench.run import JOBS, PATH, benchmark
from joulie_lab.apps.experiment.artefacts import ArtefactError, Artefacts, identity
from joulie_lab.apps.experiment.main import NATIVE, finish
from joulie_lab.benchmarks.owners import (
    ASSUMPTIONS,
    CAUSES,
    DEFAULT,
    MAIN,
    ORACLE,
    SMALL,
    VARIANTS,
    ClusterFigures,
    OwnersResult,
    Part,
    VariantFigures,
    result_of,
    summarise,
)
from joulie_lab.benchmarks.results import Estimate
from joulie_lab.simulation.experiment.plan import run_keys
from joulie_lab.simulation.experiment.scenario import Experiment
from joulie_lab.simulation.sweep_state import identity_digest

if TYPE_CHECKING:
    from matplotlib.figure import Figure


BY_CAUSE = "Savings by cause, percentage points"


def tables(result: OwnersResult) -> Iterator[Table]:
    """What each variant saves and costs, by cluster."""
    for name, cluster in {**result.clusters, **result.assumptions}.items():
        yield _saved(name, cluster)
    for name, cluster in result.causes.items():
        yield _saved(_policies(name), cluster)
    parts = [
        (f"{variant}, {name}", *(_text(each, 2, sign="+") for each in _parts(found)))
        for name, cluster in result.causes.items()
        for variant, found in cluster.variants.items()
        if found.saved_by_caps_pct is not None
    ]
    if parts:
        yield Table(BY_CAUSE, ("", "saved, %", "by placement", "by caps"), parts)


def _parts(found: VariantFigures) -> tuple[Estimate | None, ...]:
    return found.saved_pct, found.saved_by_placement_pct, found.saved_by_caps_pct


def _policies(name: str) -> str:
    """Title of the table of policies that cap nodes on a cluster, which may be among the others too."""
    return f"Policies that cap nodes: {name}"


def _saved(name: str, cluster: ClusterFigures) -> Table:
    return Table(
        name,
        (
            "",
            "saved, %",
            "",
            "of busy GPUs, %",
            "price saved a day",
            "P95, standard",
            "P95, performance",
            "wait, h",
            "unfinished",
        ),
        [
            (
                variant,
                found.saved_pct.text(2, sign="+"),
                found.claim if variant != cluster.baseline else "baseline",
                _text(found.busy_saved_pct, 2, sign="+"),
                found.saved_price_per_day.text(2),
                _text(found.p95_standard, 3),
                _text(found.p95_performance, 3),
                _text(found.wait_h, 2),
                found.unfinished.text(1),
            )
            for variant, found in cluster.variants.items()
        ],
    )


def _text(value: Estimate | None, digits: int, *, sign: str = "") -> str:
    return "–" if value is None else value.text(digits, sign=sign)


def figure(result: OwnersResult) -> Figure:
    """Saved energy over the slowdown of standard jobs."""
    drawn, axes = panels(len(result.clusters))
    for one, (name, cluster) in zip(axes, result.clusters.items(), strict=True):
        for variant, found in cluster.variants.items():
            if found.p95_standard is None:
                continue
            at = (found.p95_standard.mean, found.saved_pct.mean)
            one.errorbar(*at, yerr=found.saved_pct.half_width, fmt="o")
            one.annotate(variant, at, textcoords="offset points", xytext=(6, 4))
        one.set(xlabel="P95 of the slowdown of standard jobs", ylabel="saved, %")
        title(one, name)
    return drawn


_OWNERS: Mapping[str, tuple[str, ...]] = {
    "Identical GPUs": ("all-h100", "all-a100", "h100-41"),
    "Mixed GPUs, each job on the model that it names": ("hetero-41",),
    "CPUs only": ("cpu-only-40",),
}
"""Kinds of owners with their clusters, in the order of the page."""
_PACKED = "packed"
_VERDICTS = {
    "saves": "Joulie saves, of the energy of all nodes, {}.",
    "costs": "Joulie costs energy; it saves, of the energy of all nodes, {}.",
    "no effect shown": "no effect is shown; Joulie saves, of the energy of all nodes, {}.",
    "did other work": "nothing can be said, as other work was done; saved was, of the energy of all nodes, {}.",
}


def sentences(result: OwnersResult) -> Iterator[str]:
    """What each kind of owner gets without any setting: a sentence for each verdict, and what else would save."""
    for kind, names in _OWNERS.items():
        owned = {name: result.clusters[name] for name in names if name in result.clusters}
        for claim, verdict in _VERDICTS.items():
            found = {name: one.variants[DEFAULT] for name, one in owned.items() if one.variants[DEFAULT].claim == claim}
            if found:
                told = verdict.format(_told(found))
                yield f"**{kind}**: in mode enforce with nothing else set, {told}{_beside(owned)}"


def _told(found: Mapping[str, VariantFigures]) -> str:
    text = _listed([f"{one.saved_pct.text(1)} % on {name}" for name, one in found.items()])
    if busy := [f"{one.busy_saved_pct.text(1)} %" for one in found.values() if one.busy_saved_pct]:
        text += f" (of that of busy GPUs {_listed(busy)})"
    if slow := [one.p95_standard.text(3) for one in found.values() if one.p95_standard]:
        text += f", at a P95 slowdown of standard jobs of {_listed(slow)}"
    return text


def _beside(owned: Mapping[str, ClusterFigures]) -> str:
    """What the best limits save, and packing where it saves more than the default."""
    best = [f"{one.variants[ORACLE].saved_pct.text(1)} %" for one in owned.values() if ORACLE in one.variants]
    text = f" The best limits in hindsight save {_listed(best)}." if best else ""
    for cluster in owned.values():
        packed = cluster.variants.get(_PACKED)
        if packed and packed.claim == "saves" and packed.saved_pct.mean > cluster.variants[DEFAULT].saved_pct.mean:
            text += f" Packing without Joulie (MostAllocated) saves {packed.saved_pct.text(1)} %."
    return text


def _listed(texts: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(texts[:-1]), texts[-1])))


def _page(result: OwnersResult) -> dict[str, Any]:
    return {
        "tables": {table.title: table for table in tables(result)},
        "variants": {variant.name: variant.description for variant in VARIANTS},
        "sentences": list(sentences(result)),
        "causes": {name: _policies(name) for name in result.causes},
        "by_cause": BY_CAUSE,
        "eco": max((_pods_on_eco(cluster) for cluster in result.causes.values()), default=0.0),
    }


def _pods_on_eco(cluster: ClusterFigures) -> float:
    """Pods that need full power and ran on capped nodes, the largest mean of a variant."""
    counts = [found.performance_pods_on_eco for found in cluster.variants.values()]
    return max(count.mean for count in counts if count is not None)


REPORT = Report(tables, figure)
PAGE = Page(OwnersResult, "experiments/owners.md", _page, {"img/owners.png": figure})


@benchmark("owners", REPORT)
@JOBS
@click.option("--folder", type=PATH, help="Folder for finished runs.  [default: in the user's data folder]")
def owners(*, small: bool, jobs: int | None, folder: Path | None) -> OwnersResult:
    """Measure what owners of GPUs and CPUs save at equal work; stored runs of an earlier call are reused."""
    place = folder or user_state_path("joulie") / "owners"

    def finished(parts: Mapping[str, Part]) -> dict[str, ClusterFigures]:
        return {name: _figures(part.experiment(), place, jobs) for name, part in parts.items()}

    try:
        if small:
            return result_of(finished(SMALL))
        return result_of(finished(MAIN), finished(ASSUMPTIONS), finished(CAUSES))
    except ArtefactError as error:
        raise UserError(str(error)) from error


def _figures(experiment: Experiment, place: Path, jobs: int | None) -> ClusterFigures:
    # Named by the identity of the runs, so that runs of other code are stored elsewhere.
    digest = identity_digest(identity(experiment, NATIVE, None))
    artefacts = Artefacts(place / f"{experiment.name}-{digest}")
    finish(experiment, run_keys(experiment), artefacts, jobs=jobs)
    return summarise(experiment, artefacts.records())
