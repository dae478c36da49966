"""`joulie nodes annotate`: annotates nodes with their CPU and GPU models, from which their power is estimated."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from rich.console import Group

from joulie.adapters.hardware_profiles import load_hardware_profiles
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import ConflictError, NotFoundError
from joulie.adapters.kubernetes.resources import NODE_HARDWARES, NODES
from joulie.apps.accounting.facts import keep_hardware, keep_node
from joulie.apps.kubectl.columns import Column, table_lines, text_column
from joulie.apps.kubectl.options import cluster_options, run_with_client
from joulie.apps.kubectl.table import console
from joulie.domain.accounting.identity import CPU_MODEL_LABEL, GPU_MODEL_LABEL, NodeFacts, cloud_instance
from joulie.domain.accounting.profiles import CloudInstance, HardwareProfiles, label_form
from joulie.domain.hardware.resolve import CPU_MODEL_KEY, GPU_MODEL_KEY, GPU_PRODUCT_KEYS, ReportedHardware
from joulie.program.commands import CommandGroup
from joulie.program.documents import FORMS, print_document

FIELD_MANAGER = "joulie-nodes"
_NFD_CPU_KEY = "feature.node.kubernetes.io/cpu-model.name"


@dataclass(frozen=True)
class DetectedModel:
    """A hardware model and its source.

    Attributes:
        model: value of the annotation; the raw model name where it is known.
        source: annotation, agent, label or instance-type.
    """

    model: str
    source: str


@dataclass(frozen=True)
class Row:
    """Result for a node.

    Attributes:
        node: node name.
        cpu: CPU model; None if unknown.
        cpu_source: source of the CPU model; None if unknown.
        gpu: GPU model; None if unknown or without GPUs.
        gpu_source: source of the GPU model; None if unknown.
        result: written, unchanged, would write, nothing known, or the reason of a refusal.
    """

    node: str
    cpu: str | None
    cpu_source: str | None
    gpu: str | None
    gpu_source: str | None
    result: str


@click.group(cls=CommandGroup, path="nodes", context_settings={"help_option_names": ["-h", "--help"]})
def nodes() -> None:
    """Annotate nodes with their hardware."""


@nodes.command("annotate")
@cluster_options
@click.option("-l", "--selector", default="", help="Label selector of the nodes.")
@click.option(
    "--profiles",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Hardware profiles file, with the models of cloud instance types.",
)
@click.option("--dry-run", is_flag=True, help="Only print what would be written.")
@click.option("-o", "--output", type=click.Choice(FORMS), default="table", show_default=True, help="Output format.")
def annotate(
    kubeconfig: Path | None, context: str | None, selector: str, profiles: Path | None, dry_run: bool, output: str
) -> None:
    """Annotate nodes with their CPU and GPU models.

    The raw name is written to an annotation, and in the form of a label value to a label with the same key:
    node.kubernetes.io/cpu-model and node.kubernetes.io/gpu-model. It is taken from the annotation itself, if present,
    from Joulie's agent, from labels of Node Feature Discovery and of the GPU operator, or from the instance type.
    """
    try:
        known = HardwareProfiles() if profiles is None else load_hardware_profiles(profiles)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    for problem in known.problems:
        click.echo(f"ignored: {problem}", err=True)

    async def work(client: KubeClient) -> None:
        _show([row async for row in _annotated(client, selector, known, dry_run=dry_run)], output)

    run_with_client(work, kubeconfig=kubeconfig, context=context)


def cpu_model(node: NodeFacts, reported: ReportedHardware, instance: CloudInstance | None) -> DetectedModel | None:
    """CPU model of a node from the most reliable source; None if unknown."""
    keys = (CPU_MODEL_LABEL, CPU_MODEL_KEY, _NFD_CPU_KEY)
    return _best(node, keys, reported.cpu_raw or reported.cpu_model, instance.cpu_model if instance else "")


def gpu_model(node: NodeFacts, reported: ReportedHardware, instance: CloudInstance | None) -> DetectedModel | None:
    """GPU model of a node from the most reliable source; None if unknown."""
    keys = (GPU_MODEL_LABEL, GPU_MODEL_KEY, *GPU_PRODUCT_KEYS)
    return _best(node, keys, reported.gpu_raw or reported.gpu_model, instance.gpu_model if instance else "")


def _best(node: NodeFacts, keys: tuple[str, ...], reported: str | None, of_instance: str) -> DetectedModel | None:
    """First known model of: annotation, agent, labels, instance type."""
    candidates = [
        DetectedModel(node.annotations.get(keys[0], "").strip(), "annotation"),
        DetectedModel(reported or "", "agent"),
        *(DetectedModel(node.labels.get(key, "").strip(), "label") for key in keys),
        DetectedModel(of_instance, "instance-type"),
    ]
    return next((candidate for candidate in candidates if candidate.model), None)


async def _annotated(
    client: KubeClient, selector: str, profiles: HardwareProfiles, *, dry_run: bool
) -> AsyncIterator[Row]:
    """Annotate the nodes; yields one row per node."""
    try:
        hardware = dict(keep_hardware(one) for one in (await client.list(NODE_HARDWARES)).items)
    except NotFoundError:  # a cluster without Joulie's CRDs
        hardware = {}
    for node in (await client.list(NODES, label_selector=selector)).items:
        facts = keep_node(node).facts
        instance, reported = cloud_instance(facts, profiles), hardware.get(facts.name, ReportedHardware())
        cpu, gpu = cpu_model(facts, reported, instance), gpu_model(facts, reported, instance)
        result = await _write(client, facts, {CPU_MODEL_LABEL: cpu, GPU_MODEL_LABEL: gpu}, dry_run=dry_run)
        yield Row(
            facts.name,
            None if cpu is None else cpu.model,
            None if cpu is None else cpu.source,
            None if gpu is None else gpu.model,
            None if gpu is None else gpu.source,
            result,
        )


async def _write(
    client: KubeClient, node: NodeFacts, models: Mapping[str, DetectedModel | None], *, dry_run: bool
) -> str:
    """Write the known models to a node; returns the result. Values of other field managers are not overwritten."""
    annotations = {key: one.model for key, one in models.items() if one is not None}
    labels = {key: label_form(model) for key, model in annotations.items() if label_form(model)}
    if not annotations:
        return "nothing known"
    if annotations.items() <= node.annotations.items() and labels.items() <= node.labels.items():
        return "unchanged"
    if dry_run:
        return "would write"
    body = {"metadata": {"annotations": annotations, "labels": labels}}
    try:
        await client.apply(NODES, node.name, body, field_manager=FIELD_MANAGER, force=False)
    except ConflictError as error:
        return f"refused: {error}"
    return "written"


_COLUMNS: Mapping[str, Column[Row]] = {
    "node": text_column("NODE", lambda row: row.node, min_width=20),
    "cpu": text_column("CPU", lambda row: row.cpu, min_width=20),
    "cpu_source": text_column("FROM", lambda row: row.cpu_source, rank=1),
    "gpu": text_column("GPU", lambda row: row.gpu, min_width=12),
    "gpu_source": text_column("FROM", lambda row: row.gpu_source, rank=1),
    "result": text_column("RESULT", lambda row: row.result, min_width=12, truncate_end=True),
}


def _show(rows: list[Row], output: str) -> None:
    if output in {"json", "yaml"}:
        print_document({"nodes": [asdict(row) for row in rows]}, output)
        return
    out = console()
    out.print(Group(*table_lines(_COLUMNS, rows, out.width, wide=output == "wide")), crop=False)
