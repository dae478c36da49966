"""`joulie nodes annotate`: writes on nodes which CPU and GPU they have, so that their power can be told."""

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
class Said:
    """A model and who says so.

    Attributes:
        model: as its annotation has it, raw where anybody knows the raw name.
        source: annotation, agent, label or instance-type.
    """

    model: str
    source: str


@dataclass(frozen=True)
class Row:
    """What becomes of a node.

    Attributes:
        node: its name.
        cpu: its CPU's model; None where nobody knows.
        cpu_source: who says so.
        gpu: its GPUs' model; None without any.
        gpu_source: who says so.
        result: written, unchanged, would write, nothing known, or why it was refused.
    """

    node: str
    cpu: str | None
    cpu_source: str | None
    gpu: str | None
    gpu_source: str | None
    result: str


@click.group(cls=CommandGroup, path="nodes", context_settings={"help_option_names": ["-h", "--help"]})
def nodes() -> None:
    """Say on nodes what hardware they have."""


@nodes.command("annotate")
@cluster_options
@click.option("-l", "--selector", default="", help="Label selector of the nodes.")
@click.option(
    "--profiles",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Hardware profiles file, for the models behind instance types of clouds.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be written.")
@click.option(
    "-o", "--output", type=click.Choice(FORMS), default="table", show_default=True, help="Form of the output."
)
def annotate(
    kubeconfig: Path | None, context: str | None, selector: str, profiles: Path | None, dry_run: bool, output: str
) -> None:
    """Write models of CPU and GPU on nodes.

    The raw name goes into an annotation, its form as a label value into a label of the same key:
    node.kubernetes.io/cpu-model and node.kubernetes.io/gpu-model. It comes from the annotation itself, where there is
    one, from what Joulie's agent found, from labels of Node Feature Discovery and of the GPU operator, or from the
    instance type.
    """
    try:
        known = HardwareProfiles() if profiles is None else load_hardware_profiles(profiles)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    for problem in known.problems:
        click.echo(f"left out: {problem}", err=True)

    async def work(client: KubeClient) -> None:
        _show([row async for row in _annotated(client, selector, known, dry_run=dry_run)], output)

    run_with_client(work, kubeconfig=kubeconfig, context=context)


def cpu_model(node: NodeFacts, reported: ReportedHardware, instance: CloudInstance | None) -> Said | None:
    """The CPU of a node by whoever knows best; None where nobody does."""
    keys = (CPU_MODEL_LABEL, CPU_MODEL_KEY, _NFD_CPU_KEY)
    return _best(node, keys, reported.cpu_raw or reported.cpu_model, instance.cpu_model if instance else "")


def gpu_model(node: NodeFacts, reported: ReportedHardware, instance: CloudInstance | None) -> Said | None:
    """The GPUs of a node by whoever knows best; None where nobody does."""
    keys = (GPU_MODEL_LABEL, GPU_MODEL_KEY, *GPU_PRODUCT_KEYS)
    return _best(node, keys, reported.gpu_raw or reported.gpu_model, instance.gpu_model if instance else "")


def _best(node: NodeFacts, keys: tuple[str, ...], reported: str | None, of_instance: str) -> Said | None:
    """What the annotation says, else the agent, else labels, else the instance type."""
    told = [
        Said(node.annotations.get(keys[0], "").strip(), "annotation"),
        Said(reported or "", "agent"),
        *(Said(node.labels.get(key, "").strip(), "label") for key in keys),
        Said(of_instance, "instance-type"),
    ]
    return next((one for one in told if one.model), None)


async def _annotated(
    client: KubeClient, selector: str, profiles: HardwareProfiles, *, dry_run: bool
) -> AsyncIterator[Row]:
    """A row a node."""
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


async def _write(client: KubeClient, node: NodeFacts, said: Mapping[str, Said | None], *, dry_run: bool) -> str:
    """Write what is known on a node; returns what came of it. What others own with another value stays."""
    annotations = {key: one.model for key, one in said.items() if one is not None}
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


def _show(rows: list[Row], form: str) -> None:
    if form in {"json", "yaml"}:
        print_document({"nodes": [asdict(row) for row in rows]}, form)
        return
    out = console()
    out.print(Group(*table_lines(_COLUMNS, rows, out.width, wide=form == "wide")), crop=False)
