"""`kubectl joulie grid`: carbon intensity and prices as the grid controller knows them, and who waits for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec
from rich.console import Group
from rich.text import Text

from joulie.adapters.kubernetes.api.core import Event, Pod
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import KubernetesError
from joulie.adapters.program_api.grid import GRID_PATH, DeferralItem, GridAnswer, SignalItem
from joulie.apps.kubectl.columns import Column, age, aged, count, laid_out, named, number
from joulie.apps.kubectl.leader import Whereabouts, ask_leader
from joulie.apps.kubectl.table import console
from joulie.domain.grid import names
from joulie.domain.quantities import SECONDS_PER_MINUTE
from joulie.program.documents import print_document

_UNITS = {"carbon": "g/kWh", "price": "/kWh"}
_STYLES = {"stale": "yellow", "missing": "red"}
_TOLD = ("GridHold", "GridReleased", "InvalidAnnotation")
_NOTED = {
    "initial carbon intensity": names.INITIAL_CARBON_INTENSITY,
    "initial price": names.INITIAL_ELECTRICITY_RATE,
    "held for carbon since": names.CARBON_DELAY_TIMESTAMP,
    "held for the price since": names.PRICE_DELAY_TIMESTAMP,
}


@dataclass(frozen=True)
class Question:
    """What to show.

    Attributes:
        form: table, wide, json or yaml.
        where: the grid controller.
    """

    form: str
    where: Whereabouts


def _value(signal: SignalItem) -> str:
    words = [] if signal.value is None else [f"{signal.value:g}{_UNITS.get(signal.measure, '')}"]
    return " ".join([*words, *([signal.period] if signal.period else [])]) or "-"


def _source(signal: SignalItem) -> str | None:
    notes = [note for note in (signal.basis, "estimated" if signal.estimated else None) if note]
    return f"{signal.source} ({', '.join(notes)})" if signal.source and notes else signal.source


def _lowest(signal: SignalItem) -> str:
    if signal.lowest is None:
        return "-"
    when = "now" if not signal.lowest_in_s else f"in {age(signal.lowest_in_s)}"
    return f"{number(signal.lowest, '{:g}')} {when}"


def _words(title: str, text: str) -> Column[SignalItem]:
    return named(title, lambda signal: getattr(signal, text))


COLUMNS: Mapping[str, Column[SignalItem]] = {
    "zone": named("ZONE", lambda signal: signal.zone, least=8),
    "measure": _words("MEASURE", "measure"),
    "value": named("VALUE", _value),
    "quality": replace(_words("QUALITY", "quality"), style=lambda signal: _STYLES.get(signal.quality, "")),
    "age": aged("AGE", lambda signal: signal.age_s),
    "source": named("SOURCE", _source, rank=2),
    "lowest": named("LOWEST AHEAD", _lowest, rank=1),
    "forecast": named("FORECAST BY", lambda signal: signal.forecast_source, rank=3),
    "problem": named("PROBLEM", lambda signal: signal.problem, least=20, ends=True),
}


async def ask_grid(client: KubeClient, where: Whereabouts, pod: str = "") -> GridAnswer:
    """What the grid controller that leads knows.

    Args:
        client: of the cluster.
        where: the controller.
        pod: namespace and name of a pod to hear of; empty for all.

    Raises:
        KubernetesError: it cannot be asked.
    """
    answer = await ask_leader(client, where, GRID_PATH, {"pod": pod} if pod else {})
    try:
        return msgspec.convert(answer, GridAnswer)
    except msgspec.ValidationError as error:
        raise KubernetesError(f"{GRID_PATH}: the answer is not the grid controller's: {error}") from error


async def show_grid(client: KubeClient, question: Question) -> None:
    """Print signals, and who waits.

    Raises:
        KubernetesError: the controller cannot be asked.
    """
    answer = await ask_grid(client, question.where)
    if question.form in {"json", "yaml"}:
        print_document(msgspec.to_builtins(answer), question.form)
        return
    out = console()
    wide = question.form == "wide"
    signals = laid_out(COLUMNS, answer.signals, out.width, wide=wide)
    lines = [Text(_summary(answer)), Text(), *signals]
    if wide:
        lines += [Text(), *(Text(_case(case)) for case in answer.cases)]
    out.print(Group(*lines), crop=False)


def _summary(answer: GridAnswer) -> str:
    waiting = {reason: pods for reason, pods in answer.waiting.items() if pods}
    if answer.dry_run:
        return "This is a dry run: nothing waits."
    if not waiting:
        return "Nothing waits for the grid."
    reasons = ", ".join(f"{pods} for {reason}" for reason, pods in waiting.items())
    soon = "" if answer.next_look_in_s is None else f" The next look is in {age(answer.next_look_in_s)}."
    return f"{count(sum(waiting.values()), 'pod')} waiting: {reasons}.{soon}"


def _case(case: DeferralItem) -> str:
    return f"{count(case.pods, 'pod')} such as {case.example}: {'; '.join(explained(case))}"


# ---- one pod


def explained(case: DeferralItem) -> list[str]:
    """What the controller says of a pod, a sentence each."""
    word = {"hold": "waits", "release": "starts"}.get(case.decision)
    lines = [f"{word}: {case.text}" if word else "nothing is decided yet: the zone is new"]
    if case.waiting_s is not None:
        asked_by = "nobody" if case.asked_by in {None, "none"} else f"its {case.asked_by}"
        lines.append(f"delayed for {_span(case.waiting_s)}, as {asked_by} asks, in the mode {case.mode}")
    if case.latest_start_in_s is not None:
        lines.append(f"starts in {_span(case.latest_start_in_s)} at the latest")
    if case.decision == "hold" and case.looked_at_in_s is not None:
        lines.append(f"decided again in {_span(case.looked_at_in_s)}, or when a signal of {case.zone} changes")
    return lines


def _span(seconds: float) -> str:
    """A time span to the minute, or in seconds below one."""
    minutes = round(seconds / SECONDS_PER_MINUTE)
    if seconds < SECONDS_PER_MINUTE:
        return f"{seconds:.0f}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m"


async def explain_wait(client: KubeClient, where: Whereabouts, pod: Pod, events: list[Event]) -> list[str]:
    """Why a pod with the gate waits, a sentence each: by the controller, else by what is written on the pod."""
    name = f"{pod.metadata.namespace}/{pod.metadata.name}"
    try:
        answer = await ask_grid(client, where, name)
    except KubernetesError as error:
        noted = [
            f"{title} {pod.metadata.annotations[key]}"
            for title, key in _NOTED.items()
            if key in pod.metadata.annotations
        ]
        told = [event.message for event in events if event.reason in _TOLD]
        return [*told[-2:], *noted, f"the grid controller does not answer: {error}"]
    if not answer.cases:
        return ["the grid controller has not seen it yet, or is just letting it go"]
    return explained(answer.cases[0])
