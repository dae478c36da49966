"""`kubectl joulie recommend`: what would be better off elsewhere, and how GPUs could be shared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from rich.console import Group
from rich.text import Text

from joulie.adapters.kubernetes.api.v1alpha1 import NodeTwin
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.resources import NODE_TWINS
from joulie.apps.kubectl.columns import Column, count, laid_out, measured, named
from joulie.apps.kubectl.table import console
from joulie.program.documents import print_document


@dataclass(frozen=True)
class MoveRow:
    """A workload that would be better off elsewhere.

    Attributes:
        node: where it runs.
        namespace: of the workload.
        workload: its kind and name.
        reason: why.
    """

    node: str
    namespace: str
    workload: str
    reason: str | None


@dataclass(frozen=True)
class SlicingRow:
    """How the GPUs of a node could be shared.

    Attributes:
        node: that has them.
        mode: mig, time-slicing or none.
        slice_type: partition profile.
        slices_per_gpu: slices of each GPU.
        total_slices: slices of the node.
        gain_pct: points of utilisation that GPUs would gain.
        confidence: 0..1.
        reason: why.
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
    "node": named("NODE", lambda row: row.node, least=16),
    "namespace": named("NAMESPACE", lambda row: row.namespace, least=10),
    "workload": named("WORKLOAD", lambda row: row.workload, least=20),
    "reason": named("REASON", lambda row: row.reason, least=20, ends=True),
}
_SLICING: Mapping[str, Column[SlicingRow]] = {
    "node": named("NODE", lambda row: row.node, least=16),
    "mode": named("MODE", lambda row: row.mode),
    "slice": named("SLICE", lambda row: row.slice_type),
    "per-gpu": measured("PER-GPU", lambda row: row.slices_per_gpu, rank=2),
    "total": measured("TOTAL", lambda row: row.total_slices, rank=3),
    "gain": measured("GAIN", lambda row: row.gain_pct, "{:+.0f}%"),
    "confidence": measured("CONF", lambda row: row.confidence, "{:.1f}", rank=1),
    "reason": named("REASON", lambda row: row.reason, least=20, ends=True),
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
    out = console()
    wide = form == "wide"
    out.print(
        Group(
            Text(_moves_line(moves)),
            *laid_out(_MOVES, moves, out.width, wide=wide)[: None if moves else 0],
            Text(),
            Text(_slicing_line(slicing)),
            *laid_out(_SLICING, slicing, out.width, wide=wide)[: None if slicing else 0],
        ),
        crop=False,
    )


def move_rows(twins: Iterable[NodeTwin]) -> list[MoveRow]:
    """What would be better off elsewhere, in the order of the twins."""
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
    """How GPUs could be shared, in the order of the twins."""
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


def _moves_line(moves: Sequence[MoveRow]) -> str:
    if not moves:
        return (
            "Nothing needs to be moved: no node that drains or is under stress has pods that may be and fit elsewhere."
        )
    nodes = len({row.node for row in moves})
    verb = "would be" if len(moves) == 1 else "would each be"
    return f"{count(len(moves), 'workload')} on {count(nodes, 'node')} {verb} better off elsewhere"


def _slicing_line(slicing: Sequence[SlicingRow]) -> str:
    if not slicing:
        return "There is nothing to say about sharing GPUs: no node has GPUs whose agent says how they can be shared."
    return f"GPUs of {count(len(slicing), 'node')} could be shared like this (Joulie never does it itself)"
