"""`kubectl joulie explain pod`: what the extender makes of every node for a pod, asked of the extender itself."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import click
import httpx2
import yaml
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from joulie.adapters.kubernetes.api.core import Event, Pod
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import KubernetesError
from joulie.adapters.kubernetes.resources import EVENTS, PODS

_TIMEOUT_S = 15.0
_UNLIMITED_WIDTH = 500
_TERMS = ("headroomPoints", "coolingPoints", "trendPoints", "congestionPoints", "cappedPoints", "score", "wireScore")
_HEADERS = ("NODE", "CLASS", "HEADROOM", "COOLING", "TREND", "CONGESTION", "CAPPED", "SCORE", "WIRE", "NOTE")


@dataclass(frozen=True)
class Question:
    """What to explain, how, and whom to ask.

    Attributes:
        namespace: of the pod.
        name: of the pod.
        form: table, wide, json or yaml.
        top: nodes to show in a table, best first.
        extender_service: ``namespace/service:port`` of the extender.
        extender_url: its address; None to go through the API server.
    """

    namespace: str
    name: str
    form: str
    top: int
    extender_service: str
    extender_url: str | None


async def explain_placement(client: KubeClient, question: Question) -> None:
    """Print the explanation.

    Raises:
        KubernetesError: pod or extender cannot be read.
        click.UsageError: the extender's service is not written as it must be.
    """
    pod = await client.get(PODS, question.name, question.namespace)
    raw = await client.raw("GET", PODS.path(question.namespace, question.name))
    explanation = json.loads(await _ask(client, question, raw))
    events = await client.list(
        EVENTS,
        namespace=question.namespace,
        field_selector=f"involvedObject.name={question.name},involvedObject.kind=Pod",
    )
    answer = {"state": _state(pod, events.items), **explanation}
    if question.form == "json":
        click.echo(json.dumps(answer, indent=2))
    elif question.form == "yaml":
        click.echo(yaml.safe_dump(answer, sort_keys=False).rstrip())
    else:
        console = Console()
        if not console.is_terminal:
            console = Console(width=_UNLIMITED_WIDTH)
        console.print(_page(answer, question))


async def _ask(client: KubeClient, question: Question, pod: bytes) -> bytes:
    if question.extender_url is None:
        return await client.raw("POST", _proxy_path(question.extender_service), body=pod)
    url = question.extender_url.rstrip("/") + "/debug/explain"
    try:
        async with httpx2.AsyncClient(timeout=_TIMEOUT_S) as http:
            answer = await http.post(url, content=pod)
    except httpx2.HTTPError as error:
        raise KubernetesError(f"the extender at {url} does not answer: {error}") from error
    if answer.status_code != 200:
        raise KubernetesError(f"the extender at {url} answers {answer.status_code}: {answer.text.strip()}")
    return answer.content


def _proxy_path(service: str) -> str:
    """Path of the extender's explanation through the API server.

    Raises:
        click.UsageError: the text is not ``namespace/service:port``.
    """
    namespace, slash, rest = service.partition("/")
    name, colon, port = rest.partition(":")
    if not (slash and colon and namespace and name and port):
        raise click.UsageError(f"--extender-service: {service!r} is not namespace/service:port")
    return f"/api/v1/namespaces/{quote(namespace)}/services/{quote(name)}:{quote(port)}/proxy/debug/explain"


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


def _page(answer: Mapping[str, Any], question: Question) -> Group:
    pod, state, nodes = answer["pod"], answer["state"], answer["nodes"]
    refused = [node for node in nodes if not node["allowed"]]
    lines = [
        f"{pod['namespace']}/{pod['name']}: {pod['workloadClass']} pod, {pod['cores']:g} cores,"
        f" {pod['memoryGib']:g} GiB, {pod['gpus']:g} GPUs",
        _placement(state),
        f"{len(nodes) - len(refused)} of {len(nodes)} nodes pass the class rule;"
        f" pressure on performance nodes {answer['cluster']['perfPressure']:.0f},"
        f" cluster trend {answer['cluster']['clusterTrendWPerMin']:+.0f} W/min",
        *pod["mistakes"],
    ]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in _HEADERS:
        table.add_column(header, no_wrap=True)
    shown = nodes[: question.top]
    # The node that the pod is on is always worth a line.
    shown += [node for node in nodes[question.top :] if node["node"] == state["node"]]
    for node in shown:
        style = "bold" if node["node"] == state["node"] else ("" if node["allowed"] else "dim")
        cells = [node["node"], node["class"], *(_points(node[term]) for term in _TERMS)]
        table.add_row(*cells, node["refusal"] or node["whyNeutral"], style=style)
    rest = len(nodes) - len(shown)
    footer = [Text(f"and {rest} nodes more (--top)")] if rest > 0 else []
    return Group(*(Text(line) for line in lines), Text(), table, *footer)


def _placement(state: Mapping[str, Any]) -> str:
    if state["node"]:
        return f"{state['phase']} on {state['node']}"
    if state["gates"]:
        return f"waits for its scheduling gates: {', '.join(state['gates'])}"
    why = state["message"] or state["lastEvent"] or "the scheduler has not said why yet"
    return f"waits ({state['reason'] or state['phase']}): {why}"


def _points(value: float | None) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.1f}"
