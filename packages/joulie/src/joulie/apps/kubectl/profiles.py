"""`kubectl joulie profiles`: power-related classification of workloads, from their WorkloadProfiles."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click
from rich.console import Group
from rich.text import Text

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.api.v1alpha1 import CpuUse, Criticality, GpuUse, Migratability, WorkloadProfile
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.resources import WORKLOAD_PROFILES
from joulie.adapters.kubernetes.times import time_or_none
from joulie.apps.kubectl.columns import (
    Column,
    age_column,
    format_count,
    number_column,
    sorted_rows,
    table_lines,
    text_column,
)
from joulie.apps.kubectl.options import cluster_options, namespace_options, run_with_client, table_options
from joulie.apps.kubectl.table import console
from joulie.program.documents import print_document

_MIN_CONFIDENCE = 0.5
"""Default of the setting CLASSIFY_MIN_CONFIDENCE."""
_YES_NO = {True: "yes", False: "no", None: None}
_LEVELS = {level: rank for rank, level in enumerate(("high", "medium", "low", "none"))}


@dataclass(frozen=True)
class ProfileRow:
    """One WorkloadProfile; fields that it does not set are None.

    Attributes:
        namespace: namespace of the workload.
        workload: kind and name of the workload.
        workload_class: performance or standard.
        reschedulable: whether its pods may be restarted on another node.
        cpu_intensity: level of CPU use.
        cpu_bound: bottleneck of CPU use.
        cpu_util_pct: CPU utilisation relative to the requests, percent.
        cpu_sensitivity: sensitivity to CPU power caps.
        gpu_intensity: level of GPU use.
        gpu_bound: bottleneck of GPU use.
        gpu_util_pct: GPU utilisation, percent.
        gpu_sensitivity: sensitivity to GPU power caps.
        confidence: confidence of the classification, 0..1.
        age_s: time since the classification, s.
        manual: whether the profile was written by hand and not by the classifier.
        move: reason to move the workload to another node.
        reason: reason of the classification.
    """

    namespace: str
    workload: str
    workload_class: str | None
    reschedulable: bool | None
    cpu_intensity: str | None
    cpu_bound: str | None
    cpu_util_pct: float | None
    cpu_sensitivity: str | None
    gpu_intensity: str | None
    gpu_bound: str | None
    gpu_util_pct: float | None
    gpu_sensitivity: str | None
    confidence: float | None
    age_s: float | None
    manual: bool
    move: str | None
    reason: str | None


@dataclass(frozen=True)
class View:
    """Options of the command.

    Attributes:
        namespace: namespace of the workloads; empty for that of the context, None for all.
        selector: label selector of the profiles.
        output: table, wide, json or yaml.
        sort_by: name of the column to sort by.
        reverse: whether to reverse the order.
    """

    namespace: str | None
    selector: str
    output: str
    sort_by: str
    reverse: bool


def _level_column(title: str, value: Callable[[ProfileRow], str | None], *, rank: int = 0) -> Column[ProfileRow]:
    """Column of levels (high, medium, low, none); highest first."""
    return replace(text_column(title, value, rank=rank), key=lambda row: _LEVELS.get(value(row) or "", len(_LEVELS)))


COLUMNS: Mapping[str, Column[ProfileRow]] = {
    "namespace": text_column("NAMESPACE", lambda row: row.namespace, min_width=10),
    "name": text_column("WORKLOAD", lambda row: row.workload, min_width=20),
    "class": text_column("CLASS", lambda row: row.workload_class, rank=1),
    "movable": text_column("MOVABLE", lambda row: _YES_NO[row.reschedulable], rank=4),
    "cpu": _level_column("CPU", lambda row: row.cpu_intensity),
    "cpu-bound": text_column("BOUND", lambda row: row.cpu_bound, rank=6),
    "cpu-util": number_column("UTIL", lambda row: row.cpu_util_pct, "{:.0f}%", rank=8),
    "cpu-cap": _level_column("CPU-CAP", lambda row: row.cpu_sensitivity, rank=2),
    "gpu": _level_column("GPU", lambda row: row.gpu_intensity),
    "gpu-bound": text_column("BOUND", lambda row: row.gpu_bound, rank=7),
    "gpu-util": number_column("UTIL", lambda row: row.gpu_util_pct, "{:.0f}%", rank=9),
    "gpu-cap": _level_column("GPU-CAP", lambda row: row.gpu_sensitivity, rank=3),
    "confidence": replace(
        number_column("CONF", lambda row: row.confidence, "{:.2f}"), style=lambda row: "dim" if is_hint(row) else ""
    ),
    "age": age_column("AGE", lambda row: row.age_s, rank=5),
    "move": text_column("MOVE", lambda row: row.move, wide=True),
    "reason": text_column("REASON", lambda row: row.reason, wide=True),
}


async def show_profiles(client: KubeClient, view: View) -> None:
    """Print the profiles.

    Raises:
        KubernetesError: the profiles cannot be listed.
    """
    namespace = view.namespace if view.namespace != "" else client.connection.namespace
    found = await client.list(WORKLOAD_PROFILES, namespace=namespace, label_selector=view.selector)
    rows = [profile_row(profile, time.time()) for profile in found.items]
    rows.sort(key=lambda row: (row.namespace, row.workload))
    rows = sorted_rows(rows, COLUMNS[view.sort_by], reverse=view.reverse)
    if view.output in {"json", "yaml"}:
        print_document({"profiles": [asdict(row) for row in rows]}, view.output)
        return
    out = console()
    shown = {name: column for name, column in COLUMNS.items() if name != "namespace" or namespace is None}
    lines = table_lines(shown, rows, out.width, wide=view.output == "wide") if rows else []
    out.print(Group(Text(_summary(rows, namespace)), *([Text(), *lines] if lines else [])), crop=False)


def profile_row(profile: WorkloadProfile, now_s: float) -> ProfileRow:
    """Row of a profile; `now_s` is the time, s since the epoch."""
    status, reference = profile.status, profile.spec.workload_ref
    cpu, gpu = status.cpu or CpuUse(), status.gpu or GpuUse()
    return ProfileRow(
        namespace=reference.namespace or profile.metadata.namespace,
        workload=f"{reference.kind}/{reference.name}",
        workload_class=(status.criticality or Criticality()).workload_class,
        reschedulable=(status.migratability or Migratability()).reschedulable,
        cpu_intensity=cpu.intensity,
        cpu_bound=cpu.bound,
        cpu_util_pct=cpu.avg_utilization_pct,
        cpu_sensitivity=cpu.cap_sensitivity,
        gpu_intensity=gpu.intensity,
        gpu_bound=gpu.bound,
        gpu_util_pct=gpu.avg_utilization_pct,
        gpu_sensitivity=gpu.cap_sensitivity,
        confidence=status.confidence,
        age_s=_age_s(status.last_updated, now_s),
        manual=profile.metadata.labels.get(names.MANAGED_BY_LABEL) != names.CLASSIFIER,
        move=status.reschedule_reason if status.reschedule_recommended else None,
        reason=status.classification_reason,
    )


def is_hint(row: ProfileRow) -> bool:
    """Whether the confidence is below the default minimum, so that the profile rests on annotations only."""
    return row.confidence is None or row.confidence < _MIN_CONFIDENCE


def _summary(rows: Sequence[ProfileRow], namespace: str | None) -> str:
    if not rows:
        where = "" if namespace is None else f" in namespace {namespace} (-A for all)"
        return f"No WorkloadProfiles found{where}."
    parts = [
        f"{sum(row.workload_class == 'performance' for row in rows)} performance",
        f"{sum(is_hint(row) for row in rows)} from annotations only",
    ]
    manual, moves = sum(row.manual for row in rows), sum(row.move is not None for row in rows)
    parts += [f"{manual} manual"] if manual else []
    parts += [f"{moves} recommended to move"] if moves else []
    return f"{format_count(len(rows), 'workload')}: {', '.join(parts)}"


def _age_s(time_text: str | None, now_s: float) -> float | None:
    time_s = time_or_none(time_text)
    return None if time_s is None else now_s - time_s


@click.command("profiles")
@cluster_options
@namespace_options("workloads")
@click.option("-l", "--selector", default="", help="Label selector of the profiles to show.")
@table_options(COLUMNS, "name")
def profiles(
    kubeconfig: Path | None,
    context: str | None,
    namespace: str,
    all_namespaces: bool,
    selector: str,
    output: str,
    sort_by: str,
    reverse: bool,
) -> None:
    """Show how workloads use power.

    One row per workload. CPU and GPU are levels of use, each with the bottleneck (BOUND) and the utilisation (UTIL);
    CPU-CAP and GPU-CAP are the sensitivity to power caps. MOVABLE says whether the pods may be restarted on another
    node. CONF is the confidence, 0 to 1; below 0.5 it rests on annotations only. -o wide adds the reasons.
    """
    view = View(None if all_namespaces else namespace, selector, output, sort_by, reverse)
    run_with_client(lambda client: show_profiles(client, view), kubeconfig=kubeconfig, context=context)
