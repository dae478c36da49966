"""`kubectl joulie recommend`: workloads that should move to another node, and how GPUs could be shared."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from rich.console import Group
from rich.text import Text

from joulie.adapters.kubernetes.api.v1alpha1 import NodeTwin
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.resources import NODE_TWINS
from joulie.adapters.kubernetes.times import time_or_none
from joulie.apps.kubectl.columns import Column, format_age, format_count, number_column, table_lines, text_column
from joulie.apps.kubectl.options import cluster_options, output_option, run_with_client
from joulie.apps.kubectl.overview import STALE_S
from joulie.apps.kubectl.table import console
from joulie.program.documents import print_document


@dataclass(frozen=True)
class MoveRow:
    """A workload that should move to another node.

    Attributes:
        node: node that it runs on.
        namespace: namespace of the workload.
        workload: kind and name of the workload.
        reason: reason of the recommendation.
    """

    node: str
    namespace: str
    workload: str
    reason: str | None


@dataclass(frozen=True)
class SlicingRow:
    """Recommended sharing of a node's GPUs.

    Attributes:
        node: node name.
        mode: mig, time-slicing or none.
        slice_type: partition profile.
        slices_per_gpu: number of slices per GPU.
        total_slices: number of slices on the node.
        gain_pct: estimated gain of GPU utilisation, percentage points.
        confidence: confidence of the recommendation, 0..1.
        reason: reason of the recommendation.
    """

    node: str
    mode: str | None
    slice_type: str | None
    slices_per_gpu: int | None
    total_slices: int | None
    gain_pct: float | None
    confidence: float | None
    reason: str | None


_MOVES: Mapping[str, Column[MoveRow]] = {
    "node": text_column("NODE", lambda row: row.node, min_width=16),
    "namespace": text_column("NAMESPACE", lambda row: row.namespace, min_width=10),
    "workload": text_column("WORKLOAD", lambda row: row.workload, min_width=20),
    "reason": text_column("REASON", lambda row: row.reason, min_width=20, truncate_end=True),
}
_SLICING: Mapping[str, Column[SlicingRow]] = {
    "node": text_column("NODE", lambda row: row.node, min_width=16),
    "mode": text_column("MODE", lambda row: row.mode),
    "slice": text_column("SLICE", lambda row: row.slice_type),
    "per-gpu": number_column("PER-GPU", lambda row: row.slices_per_gpu, rank=2),
    "total": number_column("TOTAL", lambda row: row.total_slices, rank=3),
    "gain": number_column("GAIN", lambda row: row.gain_pct, "{:+.0f}%"),
    "confidence": number_column("CONF", lambda row: row.confidence, "{:.1f}", rank=1),
    "reason": text_column("REASON", lambda row: row.reason, min_width=20, truncate_end=True),
}


async def show_recommendations(client: KubeClient, form: str) -> None:
    """Print what the operator recommends.

    Raises:
        KubernetesError: the twins cannot be listed.
    """
    twins = sorted((await client.list(NODE_TWINS)).items, key=lambda twin: twin.spec.node_name)
    moves, slicing = move_rows(twins), slicing_rows(twins)
    if form in {"json", "yaml"}:
        document = {"reschedule": [asdict(row) for row in moves], "slicing": [asdict(row) for row in slicing]}
        print_document(document, form)
        return
    if not twins:
        click.echo("Nothing is known: there are no NodeTwins; is the operator installed and running?")
        return
    out = console()
    wide = form == "wide"
    out.print(
        Group(
            *_outdated(twins),
            Text(_moves_line(moves)),
            *table_lines(_MOVES, moves, out.width, wide=wide)[: None if moves else 0],
            Text(),
            Text(_slicing_line(slicing)),
            *table_lines(_SLICING, slicing, out.width, wide=wide)[: None if slicing else 0],
        ),
        crop=False,
    )


def move_rows(twins: Iterable[NodeTwin]) -> list[MoveRow]:
    """Recommended moves, in the order of the twins."""
    return [
        MoveRow(
            twin.spec.node_name,
            one.workload_ref.namespace or "",
            f"{one.workload_ref.kind}/{one.workload_ref.name}",
            one.reason,
        )
        for twin in twins
        for one in twin.status.reschedule_recommendations
    ]


def slicing_rows(twins: Iterable[NodeTwin]) -> list[SlicingRow]:
    """Recommended GPU slicing, in the order of the twins."""
    return [
        SlicingRow(
            twin.spec.node_name,
            found.mode,
            found.slice_type,
            found.slices_per_gpu,
            found.total_slices,
            found.estimated_utilization_gain,
            found.confidence,
            found.reason,
        )
        for twin in twins
        if (found := twin.status.gpu_slicing_recommendation) is not None
    ]


def _outdated(twins: Iterable[NodeTwin]) -> Sequence[Text]:
    updated_s = [at_s for twin in twins if (at_s := time_or_none(twin.status.last_updated)) is not None]
    if not updated_s or (age_s := time.time() - max(updated_s)) < STALE_S:
        return ()
    return (Text(f"Outdated: the operator published nothing for {format_age(age_s)}.", style="red"),)


def _moves_line(moves: Sequence[MoveRow]) -> str:
    if not moves:
        return "No moves recommended: no draining or stressed node has movable pods that fit on another node."
    nodes = len({row.node for row in moves})
    return f"{format_count(len(moves), 'workload')} on {format_count(nodes, 'node')} should move to another node"


def _slicing_line(slicing: Sequence[SlicingRow]) -> str:
    if not slicing:
        return "No GPU sharing recommended: no agent reports GPUs that can be shared."
    return (
        f"GPUs of {format_count(len(slicing), 'node')} could be shared as follows (Joulie does not change this itself)"
    )


@click.command("recommend")
@cluster_options
@output_option
def recommend(kubeconfig: Path | None, context: str | None, output: str) -> None:
    """Show the operator's recommendations.

    Workloads that should move to another node, and how GPUs could be shared: GAIN is in percentage points of
    utilisation; CONF grows with the number of profiles and is 1 from ten profiles.
    """
    run_with_client(lambda client: show_recommendations(client, output), kubeconfig=kubeconfig, context=context)
