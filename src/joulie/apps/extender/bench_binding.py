"""Pods that the real kube-scheduler binds in a second, with and without an extender (benchmark B6).

On a local control plane with KWOK's nodes, pods are created while the scheduler is stopped and released by its start.
Ways take turns within one run, since the machine differs more from minute to minute than they do from each other.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from joulie.adapters.control_plane import LocalControlPlane, kwok_node, wait_for
from joulie.adapters.control_plane.ports import free_port
from joulie.adapters.kubernetes import crd, names
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.resources import NODE_TWINS
from joulie.adapters.kubernetes.times import rfc3339
from joulie.adapters.kubernetes.writer import write_all
from joulie.apps.extender.bench import served

WAYS = ("none", "admission", "rule", "constants", "joulie")
"""No extender; none, and the chart's admission policies; those without the preference for eco nodes; an extender of
constants; `joulie extender`."""

_RATIOS = {
    "joulie_to_constants": ("joulie", "constants"),
    "admission_to_none": ("admission", "none"),
    "rule_to_none": ("rule", "none"),
}
RATIOS = tuple(name.replace("_to_", " / ") for name in _RATIOS)
"""What `rows` ends with."""

_PODS = "/api/v1/namespaces/default/pods"
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_READY_S = 60.0
_LONGEST_S = 600.0
_POLICIES: Mapping[str, tuple[tuple[str, ...], str]] = {
    "admission": ((), "standard"),
    "rule": (("--set", "steering.admission.preferEco=false"), "performance"),
}
"""Of the ways with admission policies: what the chart is told besides, and a class whose pods are changed."""
_STALENESS = "24h"
"""Nobody refreshes the twins here."""
_IDLE = ("kwok", "kube-controller-manager")
"""Would only compete for the cores: bound pods need not run, and on a cluster kubelets have cores of their own."""

Note = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What to measure.

    Attributes:
        nodes: of the cluster.
        pods: bound by each way in each round, each of one core and of class standard.
        rounds: turns that the ways take; the first is not counted.
        settle_s: pause before a turn, s, in which what the last one left behind is worked off.
    """

    nodes: int
    pods: int
    rounds: int
    settle_s: float = 2.0


FULL = (Plan(nodes=1_000, pods=1_000, rounds=4), Plan(nodes=5_000, pods=1_000, rounds=4))
SMALL = (Plan(nodes=500, pods=200, rounds=2, settle_s=0.0),)


def measure(plans: tuple[Plan, ...], chart: Path, note: Note) -> dict[str, Any]:
    """Bound pods a second by number of nodes and way, and ratios of ways that took turns.

    Args:
        plans: what to measure.
        chart: folder of Joulie's chart, which has the admission policies.
        note: told what is being measured.
    """
    return {"bound_per_s": {str(plan.nodes): _measured(plan, chart, note) for plan in plans}}


def rows(figures: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """The figures as a table: nodes, and of each way the median, then the ratios."""
    for nodes, found in figures["bound_per_s"].items():
        ratios = (found[ratio] for ratio in _RATIOS)
        yield f"{int(nodes):,}", *(f"{found[way]:.0f}" for way in WAYS), *(f"{ratio:.3f}" for ratio in ratios)


def plot(figures: Mapping[str, Any]) -> bytes:
    """Bound pods a second by way and number of nodes, each round a dot: a PNG image."""
    from io import BytesIO

    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.0, 3.6), layout="constrained")
    axes = figure.add_subplot()
    measured = figures["bound_per_s"].values()
    for place, way in enumerate(WAYS):
        places = [index + 0.2 * (place - (len(WAYS) - 1) / 2.0) for index in range(len(measured))]
        axes.bar(places, [found[way] for found in measured], width=0.18, label=way)
        for x, found in zip(places, measured, strict=True):
            axes.scatter([x] * len(found["rounds"][way]), found["rounds"][way], color="black", s=6)
    axes.set(ylabel="bound pods a second", xlabel="nodes")
    axes.set_xticks(range(len(measured)), [f"{int(nodes):,}" for nodes in figures["bound_per_s"]])
    axes.legend(frameon=False, fontsize="small")
    image = BytesIO()
    figure.savefig(image, format="png")
    return image.getvalue()


def _measured(plan: Plan, chart: Path, note: Note) -> dict[str, Any]:
    node_names = [f"node-{index:05d}" for index in range(plan.nodes)]
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    with LocalControlPlane(audit=True, report=note) as plane, ExitStack() as stack:
        note(f"{plan.nodes:,} nodes and their NodeTwins are created")
        _create_cluster(plane, node_names)
        plane.stop(*_IDLE)
        ports = {"constants": stack.enter_context(served("constants", node_names)), "joulie": _start_extender(plane)}
        for turn in range(plan.rounds):
            # There and back, so that none always follows the same other.
            for way in WAYS if turn % 2 else reversed(WAYS):
                time.sleep(plan.settle_s)
                rate = _turn(plane, way, ports.get(way), plan.pods, chart)
                note(f"{plan.nodes:,} nodes, round {turn + 1} of {plan.rounds}, {way}: {rate:.0f} pods a second")
                if turn:
                    rates[way].append(rate)
    return {
        **{way: median(found) for way, found in rates.items()},
        **{name: _ratio(rates[ours], rates[theirs]) for name, (ours, theirs) in _RATIOS.items()},
        "rounds": rates,
    }


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Median of the ratios round by round."""
    return median(one / other for one, other in zip(ours, theirs, strict=True))


# ---- a turn


def _turn(plane: LocalControlPlane, way: str, port: int | None, pods: int, chart: Path) -> float:
    """Pods bound a second in one of the ways."""
    plane.stop("kube-scheduler")
    plane.request("DELETE", f"{_PODS}?gracePeriodSeconds=0")
    wait_for(lambda: not plane.request("GET", f"{_PODS}?limit=1")["items"], _READY_S, "the last pods are gone")
    with _steered(plane, chart, way) if way in _POLICIES else nullcontext():
        plane.create_all(_PODS, [_pod(f"work-{index}") for index in range(pods)])
    since = len(plane.audit_events())
    plane.configure_scheduler({} if port is None else {"extenders": [_entry(port)]})
    unbound = f"{_PODS}?limit=1&fieldSelector=spec.nodeName%3D"
    wait_for(lambda: not plane.request("GET", unbound)["items"], _LONGEST_S, "all pods are bound", poll_s=0.5)
    # The audit log is a little behind.
    bound_s = wait_for(lambda: _bound_s(plane, since, pods), _READY_S, f"{pods} bindings in the audit log", poll_s=0.5)
    return (pods - 1) / (max(bound_s) - min(bound_s))


def _bound_s(plane: LocalControlPlane, since: int, pods: int) -> list[float]:
    """When each pod was bound, s; nothing while it is not known of all."""
    found = [_received_s(event) for event in plane.audit_events()[since:] if _is_binding(event)]
    return found if len(found) >= pods else []


@contextmanager
def _steered(plane: LocalControlPlane, chart: Path, way: str) -> Iterator[None]:
    """The chart's admission policies in force."""
    told, changed = _POLICIES[way]
    options = ("--set", "steering.mode=admission", "--show-only", "templates/steering.yaml", "--kube-version", "1.36.0")
    policies = plane.helm("template", "joulie", chart.resolve(), *options, *told)
    plane.kubectl("apply", "-f", "-", input=policies)
    try:
        wait_for(lambda: _is_steered(plane, changed), _READY_S, "the admission policies are in force")
        yield
    finally:
        plane.kubectl("delete", "-f", "-", input=policies)
        wait_for(lambda: not _is_steered(plane, changed), _READY_S, "the admission policies are out of force")


def _is_steered(plane: LocalControlPlane, workload_class: str) -> bool:
    tried = plane.request("POST", f"{_PODS}?dryRun=All", _pod("tried", workload_class))
    return "affinity" in tried["spec"]


def _is_binding(event: Mapping[str, Any]) -> bool:
    return bool(
        event["objectRef"].get("subresource") == "binding" and event["responseStatus"]["code"] in range(200, 300)
    )


def _received_s(event: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp()


def _pod(name: str, workload_class: str = "standard") -> dict[str, Any]:
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "1"}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": {names.WORKLOAD_CLASS_ANNOTATION: workload_class}},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
    }


def _entry(port: int) -> dict[str, Any]:
    """The documented entry, but an extender that fails must show here."""
    return {
        "urlPrefix": f"http://127.0.0.1:{port}",
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "weight": 1,
        "nodeCacheCapable": True,
        "httpTimeout": "1s",
        "ignorable": False,
    }


# ---- the cluster


def _create_cluster(plane: LocalControlPlane, node_names: Sequence[str]) -> None:
    """Nodes, every second one eco, and what the operator would have written about them."""
    plane.create_all(_CRDS, crd.custom_resource_definitions())
    plane.await_definitions()
    profiles = {name: "eco" if index % 2 else "performance" for index, name in enumerate(node_names)}
    plane.create_nodes(
        kwok_node(name, labels={names.POWER_PROFILE_LABEL: profile}) for name, profile in profiles.items()
    )
    asyncio.run(_write_twins(plane.kubeconfig, profiles))


async def _write_twins(kubeconfig: Path, profiles: Mapping[str, str]) -> None:
    async with KubeClient.connect(kubeconfig=kubeconfig) as client:

        async def write(index: int, name: str, profile: str) -> None:
            capped_w = 1000.0 if profile == "performance" else 600.0
            headroom = float(index * 37 % 100)
            status = {
                "schedulableClass": profile,
                "predictedPowerHeadroomScore": headroom,
                "predictedCoolingStressScore": float(index * 53 % 100),
                "powerMeasurement": {
                    "nodeCappedPowerW": capped_w,
                    "measuredNodePowerW": capped_w * (1.0 - headroom / 100.0),
                },
                "lastUpdated": rfc3339(time.time()),
            }
            apply = partial(client.apply, NODE_TWINS, name, field_manager=names.OPERATOR_FIELD_MANAGER)
            await apply({"spec": {"nodeName": name, "profile": profile}})
            await apply({"status": status}, subresource="status")

        failures = await write_all(
            partial(write, index, name, profile) for index, (name, profile) in enumerate(profiles.items())
        )
    if failures:
        raise RuntimeError(f"{len(failures)} NodeTwins could not be written: {failures[0].error}")


def _start_extender(plane: LocalControlPlane) -> int:
    """Run `joulie extender`; returns its port once it knows all twins."""
    port, metrics_port = free_port(), free_port()
    environment = {
        "KUBECONFIG": str(plane.kubeconfig),
        "PORT": str(port),
        "METRICS_ADDR": f"127.0.0.1:{metrics_port}",
        "TWIN_STALENESS_THRESHOLD": _STALENESS,
    }
    process = plane.spawn("extender", [sys.executable, "-m", "joulie", "extender"], environment=environment)

    def knows() -> bool:
        process.raise_if_ended()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/debug/scoring", timeout=10) as answer:
                known = json.loads(answer.read())["nodes"]
        except OSError:
            return False
        return bool(known) and all(node["fresh"] for node in known)

    wait_for(knows, _READY_S, "the extender knows the twins", poll_s=0.5)
    return port
