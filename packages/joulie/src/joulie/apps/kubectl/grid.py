"""`kubectl joulie grid`: carbon intensity and prices from the grid controller, and what waits or is limited by them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Group
from rich.text import Text

from joulie.adapters.kubernetes.api.core import Event, Pod
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import KubernetesError
from joulie.adapters.program_api.grid import GRID_PATH, CeilingItem, DeferralItem, GridAnswer, SignalItem
from joulie.apps.kubectl.columns import (
    Column,
    age_column,
    format_age,
    format_count,
    format_number,
    number_column,
    table_lines,
    text_column,
)
from joulie.apps.kubectl.leader import LeaderEndpoint, query_leader
from joulie.apps.kubectl.options import cluster_options, grid_endpoint, grid_options, output_option, run_with_client
from joulie.apps.kubectl.table import console
from joulie.domain.grid import names
from joulie.domain.quantities import SECONDS_PER_MINUTE
from joulie.program.documents import print_document

_UNITS = {"carbon": "g/kWh", "price": "/kWh"}
_STYLES = {"stale": "yellow", "missing": "red"}
_EVENT_REASONS = ("GridHold", "GridReleased", "InvalidAnnotation")
_ANNOTATIONS = {
    "initial carbon intensity": names.INITIAL_CARBON_INTENSITY,
    "initial price": names.INITIAL_ELECTRICITY_RATE,
    "held for carbon since": names.CARBON_DELAY_TIMESTAMP,
    "held for the price since": names.PRICE_DELAY_TIMESTAMP,
}


@dataclass(frozen=True)
class Request:
    """Options of the command.

    Attributes:
        output: table, wide, json or yaml.
        endpoint: address of the grid controller.
    """

    output: str
    endpoint: LeaderEndpoint


def _value(signal: SignalItem) -> str:
    parts = [] if signal.value is None else [f"{signal.value:g}{_UNITS.get(signal.measure, '')}"]
    return " ".join([*parts, *([signal.period] if signal.period else [])]) or "-"


def _source(signal: SignalItem) -> str | None:
    notes = [note for note in (signal.basis, "estimated" if signal.estimated else None) if note]
    return f"{signal.source} ({', '.join(notes)})" if signal.source and notes else signal.source


def _lowest(signal: SignalItem) -> str:
    if signal.lowest is None:
        return "-"
    when = "now" if not signal.lowest_in_s else f"in {format_age(signal.lowest_in_s)}"
    return f"{format_number(signal.lowest, '{:g}')} {when}"


def _attribute_column(title: str, attribute: str) -> Column[SignalItem]:
    return text_column(title, lambda signal: getattr(signal, attribute))


COLUMNS: Mapping[str, Column[SignalItem]] = {
    "zone": text_column("ZONE", lambda signal: signal.zone, min_width=8),
    "measure": _attribute_column("MEASURE", "measure"),
    "value": text_column("VALUE", _value),
    "quality": replace(_attribute_column("QUALITY", "quality"), style=lambda signal: _STYLES.get(signal.quality, "")),
    "age": age_column("AGE", lambda signal: signal.age_s),
    "source": text_column("SOURCE", _source, rank=2),
    "lowest": text_column("LOWEST AHEAD", _lowest, rank=1),
    "forecast": text_column("FORECAST BY", lambda signal: signal.forecast_source, rank=3),
    "problem": text_column("PROBLEM", lambda signal: signal.problem, min_width=20, truncate_end=True),
}


_KINDS = {"HorizontalPodAutoscaler": "hpa"}
CEILINGS: Mapping[str, Column[CeilingItem]] = {
    "namespace": text_column("NAMESPACE", lambda item: item.namespace, min_width=10),
    "name": text_column(
        "AUTOSCALER", lambda item: f"{_KINDS.get(item.kind, item.kind.lower())}/{item.name}", min_width=12
    ),
    "maximum": text_column(
        "MAXIMUM", lambda item: f"{item.maximum} of {item.original}" if item.lowered else f"{item.maximum}"
    ),
    "running": number_column("RUNNING", lambda item: item.running),
    "withheld": number_column("WITHHELD", lambda item: item.withheld, rank=1),
    "decision": text_column("DECISION", lambda item: item.decision),
    "change": age_column("CHANGES IN", lambda item: item.expected_in_s, rank=2),
    "reason": text_column("REASON", lambda item: item.text, wide=True),
}


async def query_grid(client: KubeClient, endpoint: LeaderEndpoint, pod: str = "") -> GridAnswer:
    """Signals and deferrals from the leading grid controller.

    Args:
        client: Kubernetes API client.
        endpoint: address of the grid controller.
        pod: ``namespace/name`` of the only pod to report; empty for all.

    Raises:
        KubernetesError: the controller cannot be queried.
    """
    answer = await query_leader(client, endpoint, GRID_PATH, {"pod": pod} if pod else {})
    try:
        return msgspec.convert(answer, GridAnswer)
    except msgspec.ValidationError as error:
        raise KubernetesError(f"{GRID_PATH}: unexpected response from the grid controller: {error}") from error


async def show_grid(client: KubeClient, request: Request) -> None:
    """Print signals and the number of waiting pods.

    Raises:
        KubernetesError: the controller cannot be queried.
    """
    answer = await query_grid(client, request.endpoint)
    if request.output in {"json", "yaml"}:
        print_document(msgspec.to_builtins(answer), request.output)
        return
    out = console()
    wide = request.output == "wide"
    signals = table_lines(COLUMNS, answer.signals, out.width, wide=wide)
    lines = [Text(_summary(answer)), Text(), *signals]
    if wide:
        lines += [Text(), *(Text(_deferral_line(deferral)) for deferral in answer.cases)]
    if answer.ceilings:
        ceilings = table_lines(CEILINGS, answer.ceilings, out.width, wide=wide)
        lines += [Text(), Text(_ceilings_summary(answer)), Text(), *ceilings]
    out.print(Group(*lines), crop=False)


def _summary(answer: GridAnswer) -> str:
    waiting = {reason: pods for reason, pods in answer.waiting.items() if pods}
    if answer.dry_run:
        return "This is a dry run: no pod is held."
    if not waiting:
        return "No pod waits for the grid."
    reasons = ", ".join(f"{pods} for {reason}" for reason, pods in waiting.items())
    soon = "" if answer.next_look_in_s is None else f" Next decision in {format_age(answer.next_look_in_s)}."
    return f"{format_count(sum(waiting.values()), 'pod')} waiting: {reasons}.{soon}"


def _ceilings_summary(answer: GridAnswer) -> str:
    lowered = sum(item.lowered for item in answer.ceilings)
    asking = format_count(len(answer.ceilings) + answer.ceilings_left_out, "autoscaler")
    more = f", {len(answer.ceilings)} of them shown" if answer.ceilings_left_out else ""
    return f"Ceilings on replicas: {lowered} lowered of {asking}{more}."


def _deferral_line(deferral: DeferralItem) -> str:
    return (
        f"{format_count(deferral.pods, 'pod')} such as {deferral.example}: {'; '.join(_deferral_sentences(deferral))}"
    )


# ---- one pod


def _deferral_sentences(deferral: DeferralItem) -> list[str]:
    """Sentences that explain the controller's decision about a pod."""
    verb = {"hold": "waits", "release": "starts"}.get(deferral.decision)
    lines = [f"{verb}: {deferral.text}" if verb else "no decision yet: the zone is new"]
    if deferral.waiting_s is not None:
        origin = "nobody" if deferral.asked_by in {None, "none"} else f"its {deferral.asked_by}"
        lines.append(f"delayed for {_span(deferral.waiting_s)}, requested by {origin}, mode {deferral.mode}")
    if deferral.runtime_s is not None:
        lines.append(f"expected to run for {_span(deferral.runtime_s)} ({deferral.runtime_basis})")
    if deferral.latest_start_in_s is not None:
        lines.append(f"starts in {_span(deferral.latest_start_in_s)} at the latest")
    if deferral.decision == "hold" and deferral.looked_at_in_s is not None:
        lines.append(f"decided again in {_span(deferral.looked_at_in_s)}, or when a signal of {deferral.zone} changes")
    return lines


def _span(seconds: float) -> str:
    """A duration rounded to minutes, or to seconds below one minute."""
    minutes = round(seconds / SECONDS_PER_MINUTE)
    if seconds < SECONDS_PER_MINUTE:
        return f"{seconds:.0f}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m"


async def explain_wait(client: KubeClient, endpoint: LeaderEndpoint, pod: Pod, events: list[Event]) -> list[str]:
    """Sentences that explain why a gated pod waits, from the grid controller, else from events and annotations."""
    name = f"{pod.metadata.namespace}/{pod.metadata.name}"
    try:
        answer = await query_grid(client, endpoint, name)
    except KubernetesError as error:
        annotations = [
            f"{title} {pod.metadata.annotations[key]}"
            for title, key in _ANNOTATIONS.items()
            if key in pod.metadata.annotations
        ]
        messages = [event.message for event in events if event.reason in _EVENT_REASONS]
        return [*messages[-2:], *annotations, f"the grid controller does not respond: {error}"]
    if not answer.cases:
        return ["the grid controller has not seen the pod yet, or is releasing it"]
    return _deferral_sentences(answer.cases[0])


@click.command("grid")
@cluster_options
@output_option
@grid_options
def grid(kubeconfig: Path | None, context: str | None, output: str, **options: Any) -> None:
    """Show carbon intensity and prices by zone, and the number of pods that wait for them.

    AGE is the time since the start of the value's validity. QUALITY is missing if there is no value; no pod waits for
    it then. LOWEST AHEAD is the minimum of the forecast and its time. -o wide adds the waiting pods, one line for pods
    with the same decision.
    """
    request = Request(output, grid_endpoint(options))
    run_with_client(lambda client: show_grid(client, request), kubeconfig=kubeconfig, context=context)
