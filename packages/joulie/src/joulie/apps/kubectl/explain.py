"""`kubectl joulie explain pod`: why a pod runs where it does or waits, with the extender's score of every node."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click
import httpx2
import msgspec
from rich.console import Group
from rich.text import Text

from joulie.adapters.kubernetes.api.core import Event, Pod
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import ForbiddenError, KubernetesError
from joulie.adapters.kubernetes.resources import EVENTS, PODS
from joulie.adapters.kubernetes.times import rfc3339
from joulie.adapters.program_api.aggregated import API_ROOT, OWN_ROOT
from joulie.apps.kubectl.aggregated import query_aggregated
from joulie.apps.kubectl.grid import explain_wait
from joulie.apps.kubectl.leader import LeaderEndpoint
from joulie.apps.kubectl.options import cluster_options, grid_endpoint, grid_options, output_option, run_with_client
from joulie.apps.kubectl.table import Cell, Heading, console, table
from joulie.apps.kubectl.web.answers import PodItem, PodsAnswer
from joulie.domain.grid import names
from joulie.http_client import tls_context
from joulie.program.documents import print_document

_TIMEOUT_S = 15.0
_MAX_NAMES = 5
_SERVICE = re.compile(r"([^/:]+)/((?:https?:)?[^/:]+:[^/:]+)")


@dataclass(frozen=True)
class _Term:
    """Column of a term of the extender's score; `key` is its field in the explanation."""

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
class Request:
    """Options of the command.

    Attributes:
        namespace: namespace of the pod; empty for that of the context.
        name: pod name.
        output: table, wide, json or yaml.
        top: maximum number of nodes in the table, best first.
        extender_service: ``namespace/service:port`` of the extender, with ``https:`` before the service for TLS.
        extender_url: base URL of the extender; None to connect through the API server.
        grid: address of the grid controller, which explains why a pod with its scheduling gate waits.
    """

    namespace: str
    name: str
    output: str
    top: int
    extender_service: str
    extender_url: str | None
    grid: LeaderEndpoint


async def explain_placement(client: KubeClient, request: Request) -> None:
    """Print the explanation; what the aggregated API says of the pod, where the user may not ask for scores.

    Raises:
        KubernetesError: the pod cannot be read or the extender does not respond.
        click.UsageError: invalid `extender_service`.
    """
    request = replace(request, namespace=request.namespace or client.connection.namespace)
    try:
        await _explain(client, request)
    except KubernetesError as error:
        refusal = next((one for one in (error, error.__cause__) if isinstance(one, ForbiddenError)), None)
        served = None if refusal is None else await _served(client, request)
        if refusal is None or served is None:
            raise
        _print_served(served, f"scores are not shown: {refusal.message or refusal}", request.output)


async def _explain(client: KubeClient, request: Request) -> None:
    pod = await client.get(PODS, request.name, request.namespace)
    raw = await client.raw("GET", PODS.path(request.namespace, request.name))
    events = await client.list(
        EVENTS,
        namespace=request.namespace,
        field_selector=f"involvedObject.name={request.name},involvedObject.kind=Pod",
    )
    state = _state(pod, events.items)
    if names.GATE in state["gates"]:
        state["grid"] = await explain_wait(client, request.grid, pod, events.items)
    try:
        explanation = json.loads(await _ask(client, request, raw))
    except KubernetesError as error:
        if "grid" in state:  # a gated pod is not scheduled yet, so scores do not matter
            _print_wait(request, state)
            return
        raise KubernetesError(
            f"{request.namespace}/{request.name} {_placement(state)}; no scores: the extender does not respond"
            f" (see --extender-service and --extender-url): {error}"
        ) from error
    answer = {"state": state, **explanation}
    if request.output in {"json", "yaml"}:
        print_document(answer, request.output)
    else:
        out = console()
        out.print(_page(answer, request, out.width), crop=False)


async def _served(client: KubeClient, request: Request) -> PodItem | None:
    """What the aggregated API says of the pod; None without one, or where it does not show the pod."""
    query = {"namespace": request.namespace, "name": request.name}
    body = await query_aggregated(client, f"{OWN_ROOT}/pods", query)
    if body is None:
        return None
    try:
        return next(iter(msgspec.json.decode(body, type=PodsAnswer).pods), None)
    except msgspec.DecodeError as error:
        raise KubernetesError(f"{API_ROOT}/pods: unexpected response: {error}") from error


def _print_served(pod: PodItem, missing: str, output: str) -> None:
    if output in {"json", "yaml"}:
        print_document({"pod": msgspec.to_builtins(pod), "missing": missing}, output)
        return
    where = f" on {pod.node}" if pod.node else ""
    lines = [f"{pod.namespace}/{pod.name} is {pod.state}{where}: {pod.why}"]
    if pod.latest_start is not None:
        lines.append(f"  starts at the latest at {rfc3339(pod.latest_start)}")
    if pod.slowdown is not None and pod.saved_pct is not None:
        lines.append(
            f"  its limit makes it {pod.slowdown:.2f} times as long and saves {pod.saved_pct:.1f} % of its energy"
        )
    click.echo("\n".join([*lines, f"  {missing}"]))


def _print_wait(request: Request, state: Mapping[str, Any]) -> None:
    if request.output in {"json", "yaml"}:
        print_document({"state": state}, request.output)
    else:
        click.echo(f"{request.namespace}/{request.name} {_placement(state)}" + _wait(state))


def _wait(state: Mapping[str, Any]) -> str:
    """Indented lines that say why the grid controller holds a pod."""
    return "".join(f"\n  {line}" for line in state.get("grid", ()))


async def _ask(client: KubeClient, request: Request, pod: bytes) -> bytes:
    if request.extender_url is None:
        return await client.raw("POST", _proxy_path(request.extender_service), body=pod)
    url = request.extender_url.rstrip("/") + "/debug/explain"
    try:
        async with httpx2.AsyncClient(timeout=_TIMEOUT_S, verify=tls_context()) as http:
            answer = await http.post(url, content=pod)
    except httpx2.HTTPError as error:
        raise KubernetesError(f"{url}: {error}") from error
    if answer.status_code != 200:
        raise KubernetesError(f"{url}: {answer.status_code}: {answer.text.strip()}")
    return answer.content


def _proxy_path(service: str) -> str:
    """Path of the extender's explanation endpoint in the API server's proxy.

    Raises:
        click.UsageError: the text is not ``namespace/service:port``.
    """
    found = _SERVICE.fullmatch(service)
    if found is None:
        raise click.UsageError(f"invalid --extender-service {service!r}: expected namespace/service:port")
    namespace, target = found.groups()
    return f"/api/v1/namespaces/{quote(namespace)}/services/{quote(target, safe=':')}/proxy/debug/explain"


def _state(pod: Pod, events: Sequence[Event]) -> dict[str, Any]:
    """Phase, node and gates of the pod, and the latest that the scheduler and the operator said about it."""
    scheduled = next((item for item in pod.status.conditions if item.type == "PodScheduled"), None)
    messages = [event.message for event in events if event.reason in {"FailedScheduling", "Scheduled", "Preempted"}]
    of_sleep = max(
        (event for event in events if event.reason == "WaitsForNode"),
        key=lambda event: event.last_timestamp or "",
        default=None,
    )
    return {
        "phase": pod.status.phase or "Pending",
        "node": pod.spec.node_name or None,
        "gates": [gate.name for gate in pod.spec.scheduling_gates],
        "reason": (scheduled.reason or None) if scheduled else None,
        "message": (scheduled.message or None) if scheduled else None,
        "lastEvent": messages[-1] if messages else None,
        "waitsForNode": None if of_sleep is None else f"{of_sleep.message} ({of_sleep.last_timestamp})",
    }


def _page(answer: Mapping[str, Any], request: Request, width: int) -> Group:
    pod, state, nodes = answer["pod"], answer["state"], answer["nodes"]
    allowed = [node for node in nodes if node["allowed"]]
    lines = [
        f"{pod['namespace']}/{pod['name']}: {pod['workloadClass']} pod that requests {pod['cores']:g} CPU,"
        f" {pod['memoryGib']:g} GiB" + (f", {pod['gpus']:g} GPU" if pod["gpus"] else ""),
        *pod["mistakes"],
        f"It {_placement(state)}"
        + ("; the scores are those of a placement now." if state["node"] else ".")
        + _wait(state),
        f"{len(allowed)} of {len(nodes)} nodes are allowed for its class." + _refusals(nodes),
        f"Pressure on performance nodes {answer['cluster']['perfPressure']:.0f} of 100,"
        f" power of the cluster {answer['cluster']['clusterTrendWPerMin']:+.0f} W/min.",
    ]
    shown = allowed[: request.top]
    # The node that the pod runs on is always shown.
    shown += [node for node in nodes if node["node"] == state["node"] and node not in shown]
    rest = len(allowed) - len(shown)
    footer = [Text(f"and {rest} more (--top)", style="dim")] if rest > 0 else []
    wide = request.output == "wide"
    scores = [Text(), *_scores(shown, state["node"], width, wide=wide)] if shown else []
    return Group(*(Text(line) for line in lines), *scores, *footer)


def _scores(nodes: Sequence[Mapping[str, Any]], own_node: str | None, width: int, *, wide: bool) -> list[Text]:
    """Table of score terms by node; optional terms that are 0 for all nodes are omitted."""
    terms = [
        term for term in _TERMS if wide or (not term.wide and (not term.rank or any(node[term.key] for node in nodes)))
    ]
    notes = [node["refusal"] or node["whyNeutral"] for node in nodes]
    headings = [
        Heading("NODE", min_width=20),
        Heading("CLASS"),
        *(Heading(term.title, right=True, rank=0 if wide else term.rank) for term in terms),
        *([Heading("NOTE", min_width=16, truncate_end=True)] if any(notes) else []),
    ]
    rows = []
    for node, note in zip(nodes, notes, strict=True):
        style = "bold" if node["node"] == own_node else ""
        texts = [node["node"], node["class"], *(_points(node[term.key]) for term in terms), note]
        rows.append([Cell(text, style) for text in texts[: len(headings)]])
    return table(headings, rows, width)


def _refusals(nodes: Sequence[Mapping[str, Any]]) -> str:
    """Lines with the reasons for excluding nodes, each with the first of its nodes."""
    by_reason: dict[str, list[str]] = {}
    for node in nodes:
        if not node["allowed"]:
            by_reason.setdefault(node["refusal"], []).append(node["node"])
    reasons = []
    for reason, refused in by_reason.items():
        more = f" and {len(refused) - _MAX_NAMES} more" if len(refused) > _MAX_NAMES else ""
        reasons.append(f"\n  {len(refused)} {reason}: {', '.join(refused[:_MAX_NAMES])}{more}")
    return "".join(reasons)


def _placement(state: Mapping[str, Any]) -> str:
    if state["node"]:
        return f"is {state['phase'].lower()} on {state['node']}"
    if state["gates"]:
        return f"waits for its scheduling gates: {', '.join(state['gates'])}"
    why = state["message"] or state["lastEvent"] or "the scheduler has not reported a reason yet"
    node = f"; {state['waitsForNode']}" if state["waitsForNode"] else ""
    return f"waits ({state['reason'] or state['phase']}): {why.rstrip('.')}{node}"


def _points(value: float | None) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.1f}"


@click.group("explain")
def explain() -> None:
    """Explain decisions."""


@explain.command("pod")
@cluster_options
@click.argument("name")
@click.option("-n", "--namespace", default="", help="Namespace of the pod. [default: that of the context]")
@output_option
@click.option(
    "--top", type=click.IntRange(min=1), default=10, show_default=True, help="Maximum number of nodes, best first."
)
@click.option(
    "--extender-service",
    default="joulie-system/joulie-extender:extender",
    show_default=True,
    help="Namespace, service and port of the extender, reached through the API server; with TLS:"
    " joulie-system/https:joulie-extender:extender.",
)
@click.option("--extender-url", help="URL of the extender, to connect directly, such as http://127.0.0.1:9877.")
@grid_options
def explain_pod(
    kubeconfig: Path | None,
    context: str | None,
    name: str,
    namespace: str,
    output: str,
    top: int,
    extender_service: str,
    extender_url: str | None,
    **options: Any,
) -> None:
    """Explain the placement of the pod NAME.

    Prints where it runs or why it waits (for the grid: latest start, and what would release it), then the extender's
    score of each node. HEADROOM and COOLING are points for the power left below the caps, after adding the pod, and
    for the cooling capacity left; TREND, CONGESTION and CAPPED add or subtract points. SCORE is their sum, 0 to 100;
    kube-scheduler receives it as 0 to 10. A node without data scores 50. -o wide adds MARGINAL, the power that the pod
    would add, in W.
    """
    request = Request(namespace, name, output, top, extender_service, extender_url, grid_endpoint(options))
    run_with_client(lambda client: explain_placement(client, request), kubeconfig=kubeconfig, context=context)
