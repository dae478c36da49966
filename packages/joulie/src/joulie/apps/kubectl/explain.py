"""`kubectl joulie explain pod`: what the extender makes of every node for a pod, asked of the extender itself."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

import click
import httpx2
from rich.console import Group
from rich.text import Text

from joulie.adapters.kubernetes.api.core import Event, Pod
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import KubernetesError
from joulie.adapters.kubernetes.resources import EVENTS, PODS
from joulie.apps.kubectl.grid import explain_wait
from joulie.apps.kubectl.leader import Whereabouts
from joulie.apps.kubectl.table import Cell, Heading, console, table
from joulie.domain.grid import names
from joulie.program.documents import print_document

_TIMEOUT_S = 15.0
_SHOWN = 5
_SERVICE = re.compile(r"([^/:]+)/((?:https?:)?[^/:]+:[^/:]+)")


@dataclass(frozen=True)
class _Term:
    """A number of the extender's arithmetic."""

    title: str
    key: str
    rank: int = 0
    wide: bool = False


_TERMS = (
    _Term("MARGINAL", "marginalW", wide=True),
    _Term("HEADROOM", "headroomPoints"),
    _Term("COOLING", "coolingPoints", rank=2),
    _Term("TREND", "trendPoints", rank=4),
    _Term("CONGESTION", "congestionPoints", rank=3),
    _Term("CAPPED", "cappedPoints", rank=1),
    _Term("SCORE", "score"),
    _Term("0..10", "wireScore"),
)


@dataclass(frozen=True)
class Question:
    """What to explain, how, and whom to ask.

    Attributes:
        namespace: of the pod; empty for the context's.
        name: of the pod.
        form: table, wide, json or yaml.
        top: nodes to show in a table, best first.
        extender_service: ``namespace/service:port`` of the extender, ``https:`` before the service where it has TLS.
        extender_url: its address; None to go through the API server.
        grid: the grid controller, which knows why a pod with its gate waits.
    """

    namespace: str
    name: str
    form: str
    top: int
    extender_service: str
    extender_url: str | None
    grid: Whereabouts


async def explain_placement(client: KubeClient, question: Question) -> None:
    """Print the explanation.

    Raises:
        KubernetesError: pod or extender cannot be read.
        click.UsageError: the extender's service is not written as it must be.
    """
    question = replace(question, namespace=question.namespace or client.connection.namespace)
    pod = await client.get(PODS, question.name, question.namespace)
    raw = await client.raw("GET", PODS.path(question.namespace, question.name))
    events = await client.list(
        EVENTS,
        namespace=question.namespace,
        field_selector=f"involvedObject.name={question.name},involvedObject.kind=Pod",
    )
    state = _state(pod, events.items)
    if names.GATE in state["gates"]:
        state["grid"] = await explain_wait(client, question.grid, pod, events.items)
    try:
        explanation = json.loads(await _ask(client, question, raw))
    except KubernetesError as error:
        if "grid" in state:  # no scheduler looks at it yet, so nobody needs scores
            _print_wait(question, state)
            return
        raise KubernetesError(
            f"{question.namespace}/{question.name} {_placement(state)}; no scores, since the extender does not answer"
            f" (see --extender-service and --extender-url): {error}"
        ) from error
    answer = {"state": state, **explanation}
    if question.form in {"json", "yaml"}:
        print_document(answer, question.form)
    else:
        out = console()
        out.print(_page(answer, question, out.width), crop=False)


def _print_wait(question: Question, state: Mapping[str, Any]) -> None:
    if question.form in {"json", "yaml"}:
        print_document({"state": state}, question.form)
    else:
        click.echo(f"{question.namespace}/{question.name} {_placement(state)}" + _wait(state))


def _wait(state: Mapping[str, Any]) -> str:
    """Why the grid holds a pod, a line each."""
    return "".join(f"\n  {line}" for line in state.get("grid", ()))


async def _ask(client: KubeClient, question: Question, pod: bytes) -> bytes:
    if question.extender_url is None:
        return await client.raw("POST", _proxy_path(question.extender_service), body=pod)
    url = question.extender_url.rstrip("/") + "/debug/explain"
    try:
        async with httpx2.AsyncClient(timeout=_TIMEOUT_S) as http:
            answer = await http.post(url, content=pod)
    except httpx2.HTTPError as error:
        raise KubernetesError(f"{url}: {error}") from error
    if answer.status_code != 200:
        raise KubernetesError(f"{url}: {answer.status_code}: {answer.text.strip()}")
    return answer.content


def _proxy_path(service: str) -> str:
    """Path of the extender's explanation through the API server.

    Raises:
        click.UsageError: the text is not ``namespace/service:port``.
    """
    found = _SERVICE.fullmatch(service)
    if found is None:
        raise click.UsageError(f"--extender-service: {service!r} is not namespace/service:port")
    namespace, target = found.groups()
    return f"/api/v1/namespaces/{quote(namespace)}/services/{quote(target, safe=':')}/proxy/debug/explain"


def _state(pod: Pod, events: Sequence[Event]) -> dict[str, Any]:
    """Where the pod is in its life, and what the scheduler last said of it."""
    scheduled = next((item for item in pod.status.conditions if item.type == "PodScheduled"), None)
    said = [event.message for event in events if event.reason in {"FailedScheduling", "Scheduled", "Preempted"}]
    return {
        "phase": pod.status.phase or "Pending",
        "node": pod.spec.node_name or None,
        "gates": [gate.name for gate in pod.spec.scheduling_gates],
        "reason": (scheduled.reason or None) if scheduled else None,
        "message": (scheduled.message or None) if scheduled else None,
        "lastEvent": said[-1] if said else None,
    }


def _page(answer: Mapping[str, Any], question: Question, width: int) -> Group:
    pod, state, nodes = answer["pod"], answer["state"], answer["nodes"]
    open_to_it = [node for node in nodes if node["allowed"]]
    lines = [
        f"{pod['namespace']}/{pod['name']}: {pod['workloadClass']} pod that requests {pod['cores']:g} CPU,"
        f" {pod['memoryGib']:g} GiB" + (f", {pod['gpus']:g} GPU" if pod["gpus"] else ""),
        *pod["mistakes"],
        f"It {_placement(state)}" + ("; the scores are as if it came now." if state["node"] else ".") + _wait(state),
        f"{len(open_to_it)} of {len(nodes)} nodes are open to its class." + _refusals(nodes),
        f"Pressure on performance nodes {answer['cluster']['perfPressure']:.0f} of 100,"
        f" power of the cluster {answer['cluster']['clusterTrendWPerMin']:+.0f} W/min.",
    ]
    shown = open_to_it[: question.top]
    # The node that the pod is on is always worth a line.
    shown += [node for node in nodes if node["node"] == state["node"] and node not in shown]
    rest = len(open_to_it) - len(shown)
    footer = [Text(f"and {rest} more (--top)", style="dim")] if rest > 0 else []
    wide = question.form == "wide"
    scores = [Text(), *_scores(shown, state["node"], width, wide=wide)] if shown else []
    return Group(*(Text(line) for line in lines), *scores, *footer)


def _scores(nodes: Sequence[Mapping[str, Any]], own_node: str | None, width: int, *, wide: bool) -> list[Text]:
    """The arithmetic, a line a node; terms that are nothing for all of them are left out."""
    terms = [
        term for term in _TERMS if wide or (not term.wide and (not term.rank or any(node[term.key] for node in nodes)))
    ]
    notes = [node["refusal"] or node["whyNeutral"] for node in nodes]
    headings = [
        Heading("NODE", least=20),
        Heading("CLASS"),
        *(Heading(term.title, right=True, rank=0 if wide else term.rank) for term in terms),
        *([Heading("NOTE", least=16, ends=True)] if any(notes) else []),
    ]
    rows = []
    for node, note in zip(nodes, notes, strict=True):
        style = "bold" if node["node"] == own_node else ""
        words = [node["node"], node["class"], *(_points(node[term.key]) for term in terms), note]
        rows.append([Cell(word, style) for word in words[: len(headings)]])
    return table(headings, rows, width)


def _refusals(nodes: Sequence[Mapping[str, Any]]) -> str:
    """Why the others are not, each reason with some of its nodes."""
    by_reason: dict[str, list[str]] = {}
    for node in nodes:
        if not node["allowed"]:
            by_reason.setdefault(node["refusal"], []).append(node["node"])
    reasons = []
    for reason, refused in by_reason.items():
        more = f" and {len(refused) - _SHOWN} more" if len(refused) > _SHOWN else ""
        reasons.append(f"\n  {len(refused)} {reason}: {', '.join(refused[:_SHOWN])}{more}")
    return "".join(reasons)


def _placement(state: Mapping[str, Any]) -> str:
    if state["node"]:
        return f"is {state['phase'].lower()} on {state['node']}"
    if state["gates"]:
        return f"waits for its scheduling gates: {', '.join(state['gates'])}"
    why = state["message"] or state["lastEvent"] or "the scheduler has not said why yet"
    return f"waits ({state['reason'] or state['phase']}): {why.rstrip('.')}"


def _points(value: float | None) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.1f}"
