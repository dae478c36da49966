"""`kubectl joulie limits`: the limits of GPUs, of their power or their SM clock, job by job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click
from rich.console import Group
from rich.text import Text

from joulie.adapters.kubernetes.api.v1alpha1 import (
    ControlOutcome,
    GpuLimit,
    GpuStatus,
    HeldGpuLimit,
    NodeTwin,
    SmClockStatus,
    WorkloadProfile,
)
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.pods import Owner, pod_facts, profile_owner
from joulie.adapters.kubernetes.profiles import WorkloadKey
from joulie.adapters.kubernetes.resources import NODE_TWINS, PODS, WORKLOAD_PROFILES
from joulie.apps.kubectl.columns import Column, format_count, format_number, number_column, table_lines, text_column
from joulie.apps.kubectl.options import cluster_options, output_option, run_with_client
from joulie.apps.kubectl.table import console
from joulie.domain.usage import PodKey
from joulie.program.documents import print_document

_POWER, _CLOCK = "power", "clock"
_TRIAL = "trial: measuring"
_NOT_LIMITED = "not limited"
_OTHER = "limit of another program"
_NOT_LOCKED = frozenset({ControlOutcome.ERROR, ControlOutcome.BLOCKED})


@dataclass(frozen=True)
class LimitRow:
    """One GPU with its limit.

    Attributes:
        node: node name.
        gpu: ID of the GPU.
        namespace: namespace of the pod that the limit is for, or that holds the GPU; None without one.
        job: kind and name of its workload; None without one.
        limit_w: power limit in force, W; None where it cannot be read.
        max_sm_clock_mhz: maximum of the SM clock that is asked for, MHz; None for none.
        clock_result: what became of it, as in controlStatus; None for none.
        original_w: limit without Joulie, W; None where it is not known.
        knob: what limits the GPU, ``power`` or ``clock``; None where nothing of Joulie's does.
        why: reason of the limit.
        slowdown: time for the same work over that without the limit, as measured or expected; None if unknown.
        saved_pct: energy for the same work that is saved, %; None if unknown.
        confidence: probability that the bound is exceeded by no more than 1 %; None if unknown.
    """

    node: str
    gpu: str
    namespace: str | None
    job: str | None
    limit_w: float | None
    max_sm_clock_mhz: float | None
    clock_result: str | None
    original_w: float | None
    knob: str | None
    why: str
    slowdown: float | None
    saved_pct: float | None
    confidence: float | None


def _format_limit(row: LimitRow) -> str:
    """The limit of the knob in use, with its unit."""
    if row.max_sm_clock_mhz is not None:
        return f"{row.max_sm_clock_mhz:.0f} MHz"
    return format_number(row.limit_w, "{:.0f} W")


COLUMNS: Mapping[str, Column[LimitRow]] = {
    "node": text_column("NODE", lambda row: row.node, min_width=12),
    "gpu": text_column("GPU", lambda row: row.gpu, rank=2, min_width=8),
    "namespace": text_column("NAMESPACE", lambda row: row.namespace, rank=1, min_width=8),
    "job": text_column("JOB", lambda row: row.job, min_width=16),
    "limit": replace(number_column("LIMIT", lambda row: row.limit_w), text=_format_limit),
    "original": number_column("ORIGINAL", lambda row: row.original_w, "{:.0f} W", rank=3),
    "knob": text_column("KNOB", lambda row: row.knob, rank=4),
    "why": text_column("WHY", lambda row: row.why, min_width=12, truncate_end=True),
    "slowdown": number_column("SLOWDOWN", lambda row: row.slowdown, "{:.3f}"),
    "saved": number_column("SAVED", lambda row: row.saved_pct, "{:.1f}%"),
    "confidence": number_column("CONF", lambda row: row.confidence, "{:.2f}", rank=5),
}


async def show_limits(client: KubeClient, form: str) -> None:
    """Print the limits of all GPUs that agents report.

    Raises:
        KubernetesError: twins, pods or profiles cannot be listed.
    """
    twins = (await client.list(NODE_TWINS)).items
    facts = map(pod_facts, (await client.list(PODS, field_selector="spec.nodeName!=")).items)
    owners = {(pod.namespace, pod.name): pod.owner for pod in facts if pod.requests.gpus > 0.0}
    rows = limit_rows(twins, owners, (await client.list(WORKLOAD_PROFILES)).items)
    if form in {"json", "yaml"}:
        print_document({"gpus": [asdict(row) for row in rows]}, form)
        return
    limited = sum(row.knob is not None for row in rows)
    line = f"{format_count(len(rows), 'GPU')} reported, {limited} with a limit of Joulie's for its job"
    out = console()
    lines = table_lines(COLUMNS, rows, out.width, wide=form == "wide")[: None if rows else 0]
    out.print(Group(Text(line), *lines), crop=False)


def limit_rows(
    twins: Iterable[NodeTwin], owners: Mapping[PodKey, Owner], profiles: Iterable[WorkloadProfile]
) -> list[LimitRow]:
    """All GPUs that agents report, by node and ID.

    Args:
        twins: NodeTwins.
        owners: workloads of the pods that hold GPUs.
        profiles: WorkloadProfiles.
    """
    held = {profile_owner(one): one.status.gpu_limit for one in profiles if one.status.gpu_limit is not None}
    return [
        _row(twin, gpu, owners, held)
        for twin in sorted(twins, key=lambda twin: twin.spec.node_name)
        for gpu in (twin.status.control_status.gpus if twin.status.control_status else ())
    ]


def _row(
    twin: NodeTwin, gpu: GpuStatus, owners: Mapping[PodKey, Owner], held: Mapping[WorkloadKey, HeldGpuLimit]
) -> LimitRow:
    limit = next((one for one in twin.spec.gpu_limits if one.id == gpu.id), None)
    pods = [limit.pod] if limit is not None else [pod for pod in gpu.pods or () if (pod.namespace, pod.name) in owners]
    pod = pods[0] if len(pods) == 1 else None
    owner = None if pod is None else owners.get((pod.namespace, pod.name))
    known = held.get((pod.namespace, owner)) if pod is not None and owner is not None else None
    # Figures of another limit than the one that is asked for now say nothing about it.
    shown = known if known is not None and limit is not None and _is_held(known, limit) else None
    clock = gpu.sm_clock if limit is not None and limit.max_sm_clock_mhz is not None else None
    return LimitRow(
        twin.spec.node_name,
        gpu.id,
        None if pod is None else pod.namespace,
        None if owner is None else f"{owner.kind}/{owner.name}",
        gpu.limit_watts,
        None if limit is None else limit.max_sm_clock_mhz,
        None if clock is None else clock.result,
        gpu.original_watts,
        None if limit is None else _POWER if limit.max_sm_clock_mhz is None else _CLOCK,
        _other(gpu, limit, clock) or _why(limit is not None, shown, known),
        None if shown is None else shown.slowdown,
        None if shown is None else shown.saved_pct,
        None if shown is None else shown.confidence,
    )


def _is_held(known: HeldGpuLimit, limit: GpuLimit) -> bool:
    if known.max_sm_clock_mhz != limit.max_sm_clock_mhz:
        return False
    return known.max_sm_clock_mhz is not None or known.watts == limit.watts


def _other(gpu: GpuStatus, limit: GpuLimit | None, clock: SmClockStatus | None) -> str | None:
    """Whose limit it is, where it is not one that Joulie found, or why the clock is not locked."""
    if limit is None:
        return None
    if clock is not None and clock.result in _NOT_LOCKED:
        return f"{clock.result}: {clock.message}"
    return _OTHER if gpu.owner == "other" else limit.owner


def _why(limited: bool, shown: HeldGpuLimit | None, known: HeldGpuLimit | None) -> str:
    if shown is not None:
        return shown.reason or ""
    if limited:
        return _TRIAL
    unlimited = known is not None and known.max_sm_clock_mhz is None and known.watts == known.baseline_watts
    return (known.reason or _NOT_LIMITED) if known is not None and unlimited else _NOT_LIMITED


@click.command("limits")
@cluster_options
@output_option
def limits(kubeconfig: Path | None, context: str | None, output: str) -> None:
    """Show the power limits of GPUs, job by job.

    LIMIT is in force by the agent's report, ORIGINAL what the GPU had before Joulie. SLOWDOWN is the time for the same
    work over that without the limit, SAVED the energy for the same work; CONF is the probability that the bound is
    exceeded by no more than 1 %.
    """
    run_with_client(lambda client: show_limits(client, output), kubeconfig=kubeconfig, context=context)
