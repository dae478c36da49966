"""Binding throughput of the real kube-scheduler, with and without an extender (benchmark B6).

On a local control plane with KWOK's nodes, pods are created while the scheduler is stopped, and are scheduled when it
starts. It takes them in order of priority, and every few hundred pods the configuration changes: pods handled by an
extender that manages a resource they request, or pods as changed by the admission policies. The speed of the machine
varies more over minutes than the configurations differ, so interleaving exposes all of them to the same variation.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import accumulate
from pathlib import Path
from statistics import harmonic_mean
from typing import Any

import numpy as np

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.resources import NODE_TWINS
from joulie.adapters.kubernetes.times import rfc3339
from joulie.adapters.kubernetes.writer import write_all
from joulie.domain.units import FloatArray
from joulie_lab.adapters import crd
from joulie_lab.benchmarks.extender.servers import served
from joulie_lab.benchmarks.results import Figures
from joulie_lab.control_plane import LocalControlPlane, kwok_node, wait_for
from joulie_lab.control_plane.ports import free_port

WAYS = ("none", "admission", "rule", "constants", "joulie")
"""Configurations: no extender; no extender and the chart's admission policies; the same without the preference for eco
nodes; an extender that returns constants; `joulie extender`."""

RATIOS = {
    "joulie_to_constants": ("joulie", "constants"),
    "admission_to_none": ("admission", "none"),
    "rule_to_none": ("rule", "none"),
}
"""Ratios of rates, by name."""

_PODS = "/api/v1/namespaces/default/pods"
_PRIORITIES = "/apis/scheduling.k8s.io/v1/priorityclasses"
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_READY_S = 60.0
_ROUND_S = 300.0
_EXTENDERS = ("constants", "joulie")
_POLICIES: Mapping[str, tuple[tuple[str, ...], str]] = {
    "admission": ((), "standard"),
    "rule": (("--set", "steering.admission.preferEco=false"), "performance"),
}
"""Extra chart values of each configuration with admission policies, and the workload class that they change."""
_ROOM = {"cpu": "96"}
"""Allocatable cores of a node, enough that no node ever fills."""
_STALENESS = "24h"
"""Twins never become stale here, because nothing refreshes them."""
_IDLE = ("kwok", "kube-controller-manager")
"""Programs that are not started: bound pods need not run, and in a cluster kubelets have cores of their own."""

Note = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """Size of a measurement.

    Attributes:
        nodes: number of nodes.
        pods: number of pods per turn with an extender, each with one core and of class standard; the configurations
            without an extender, which are twice as fast, have twice as many.
        rounds: number of turns of each configuration; the first is not counted.
    """

    nodes: int
    pods: int
    rounds: int


FULL = (Plan(nodes=1_000, pods=250, rounds=21), Plan(nodes=5_000, pods=250, rounds=21))
SMALL = (Plan(nodes=500, pods=60, rounds=4),)


class Rates(Figures, frozen=True):
    """Bound pods per second by configuration, ratios with their 95 % intervals, and the rates of every round."""

    none: float
    admission: float
    rule: float
    constants: float
    joulie: float
    joulie_to_constants: float
    admission_to_none: float
    rule_to_none: float
    intervals_95: Mapping[str, tuple[float, float]]
    rounds: Mapping[str, Sequence[float]]


class BindingResult(Figures, frozen=True):
    """The result, by number of nodes."""

    bound_per_s: Mapping[str, Rates]


def measure(plans: tuple[Plan, ...], chart: Path, note: Note) -> BindingResult:
    """Measure bound pods per second by number of nodes and configuration, and ratios with 95 % intervals.

    Args:
        plans: the sizes to measure.
        chart: folder of Joulie's chart with the admission policies.
        note: called with progress messages.
    """
    return BindingResult({str(plan.nodes): _measured(plan, chart, note) for plan in plans})


def _measured(plan: Plan, chart: Path, note: Note) -> Rates:
    node_names = [f"node-{index:05d}" for index in range(plan.nodes)]
    turns = _turns(plan)
    with LocalControlPlane(audit=True, report=note) as plane, ExitStack() as stack:
        note(f"{plan.nodes:,} nodes and their NodeTwins are created")
        _create_cluster(plane, node_names)
        plane.stop(*_IDLE, "kube-scheduler")
        note(f"{sum(len(turn.pods) for turn in turns):,} pods are created")
        _create_pods(plane, chart, turns)
        ports = {"constants": stack.enter_context(served("constants", node_names)), "joulie": _start_extender(plane)}
        rates = _rates(turns, _bound_s(plane, ports, turns, note))
    return Rates(
        **{way: harmonic_mean(found) for way, found in rates.items()},
        **{name: _ratio(rates[ours], rates[theirs]) for name, (ours, theirs) in RATIOS.items()},
        intervals_95={name: _interval(rates[ours], rates[theirs]) for name, (ours, theirs) in RATIOS.items()},
        rounds=rates,
    )


@dataclass(frozen=True)
class Turn:
    """Consecutive pods with the same configuration.

    Attributes:
        place: position in the order of turns.
        way: name of the configuration.
        pods: names of the pods.
    """

    place: int
    way: str
    pods: Sequence[str]


def _turns(plan: Plan) -> list[Turn]:
    """The turns, in a different order in each round, because the backlog of a turn slows the next one."""
    rng = random.Random(1)  # noqa: S311 - no secret
    ways = [way for _ in range(plan.rounds) for way in rng.sample(WAYS, len(WAYS))]
    return [Turn(place, way, _pod_names(place, plan.pods, way)) for place, way in enumerate(ways)]


def _pod_names(turn: int, pods: int, way: str) -> list[str]:
    count = pods if way in _EXTENDERS else 2 * pods
    return [f"work-{turn}-{index}" for index in range(count)]


def _rates(turns: Sequence[Turn], bound_s: Sequence[float]) -> dict[str, list[float]]:
    """Pods bound per second by configuration, in every turn after the first round.

    Bindings run beside the scheduling and overtake each other, so a turn lasts from when as many pods are bound as the
    turns before have, until as many more are as it has itself.

    Args:
        turns: in their order.
        bound_s: when pods were bound, s, rising.
    """
    firsts = accumulate((len(turn.pods) for turn in turns[:-1]), initial=0)
    starts_s = [bound_s[first] for first in firsts]
    ends_s = [*starts_s[1:], bound_s[-1]]
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    for turn, start_s, end_s in list(zip(turns, starts_s, ends_s, strict=True))[len(WAYS) :]:
        rates[turn.way].append(len(turn.pods) / (end_s - start_s))
    return rates


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Ratio of the mean rates over all turns."""
    return harmonic_mean(ours) / harmonic_mean(theirs)


def _interval(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """95 % interval of `_ratio` by the bootstrap over rounds."""
    from scipy.stats import bootstrap

    pod_s = np.reciprocal(ours), np.reciprocal(theirs)
    found = bootstrap(pod_s, _mean_ratio, paired=True, vectorized=True, method="percentile", rng=1)
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def _mean_ratio(ours_s: FloatArray, theirs_s: FloatArray, axis: int) -> FloatArray:
    ratio: FloatArray = theirs_s.mean(axis=axis) / ours_s.mean(axis=axis)
    return ratio


# ---- pods


def _create_pods(plane: LocalControlPlane, chart: Path, turns: Sequence[Turn]) -> None:
    """Create the pods of all turns; those of configurations with admission pass through its policies."""
    plane.create_all(_PRIORITIES, [_priority(turn, len(turns) - turn.place) for turn in turns])
    for way in WAYS:
        created = [_pod(pod, way, priority=_class_name(turn)) for turn in turns if turn.way == way for pod in turn.pods]
        with _steered(plane, chart, way) if way in _POLICIES else nullcontext():
            plane.create_all(_PODS, created)


def _bound_s(plane: LocalControlPlane, ports: Mapping[str, int], turns: Sequence[Turn], note: Note) -> list[float]:
    """Times at which pods were bound, s, in ascending order."""
    plane.configure_scheduler({"extenders": [_entry(way, port) for way, port in ports.items()]})
    rounds = turns[len(WAYS) - 1 :: len(WAYS)]
    for done, turn in enumerate(rounds, start=1):
        # A small request: looking through thousands of pods would cost the API server what is measured here.
        wait_for(partial(_is_bound, plane, turn.pods[-1]), _ROUND_S, f"the pods of round {done} are bound", poll_s=1.0)
        note(f"round {done} of {len(rounds)} is bound")
    count = sum(len(turn.pods) for turn in turns)
    # The audit log is a little behind.
    return wait_for(lambda: _all_bindings(plane, count), _READY_S, "each binding is in the audit log")


def _is_bound(plane: LocalControlPlane, name: str) -> bool:
    return bool(plane.request("GET", f"{_PODS}/{name}")["spec"].get("nodeName"))


def _all_bindings(plane: LocalControlPlane, pods: int) -> list[float]:
    """Times at which pods were bound, s, in ascending order; empty until all pods are bound."""
    bound_s = sorted(_received_s(event) for event in plane.audit_events() if _is_binding(event))
    return bound_s if len(bound_s) >= pods else []


@contextmanager
def _steered(plane: LocalControlPlane, chart: Path, way: str) -> Iterator[None]:
    """Install the chart's admission policies and wait until they are in force."""
    told, changed = _POLICIES[way]
    options = (
        "--set",
        "mode=enforce,steering.mode=admission",
        "--show-only",
        "templates/steering.yaml",
        "--kube-version",
        "1.36.0",
    )
    policies = plane.helm("template", "joulie", chart.resolve(), *options, *told)
    plane.kubectl("apply", "-f", "-", input=policies)
    try:
        wait_for(lambda: _is_steered(plane, changed), _READY_S, "the admission policies are in force")
        yield
    finally:
        plane.kubectl("delete", "-f", "-", input=policies)
        wait_for(lambda: not _is_steered(plane, changed), _READY_S, "the admission policies are out of force")


def _is_steered(plane: LocalControlPlane, workload_class: str) -> bool:
    tried = plane.request("POST", f"{_PODS}?dryRun=All", _pod("tried", "none", workload_class=workload_class))
    return "affinity" in tried["spec"]


def _is_binding(event: Mapping[str, Any]) -> bool:
    return bool(
        event["objectRef"].get("subresource") == "binding" and event["responseStatus"]["code"] in range(200, 300)
    )


def _received_s(event: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp()


def _pod(name: str, way: str, *, workload_class: str = "standard", priority: str = "") -> dict[str, Any]:
    managed = {_managed(way): "1"} if way in _EXTENDERS else {}
    resources = {"requests": {"cpu": "1", **managed}, "limits": managed}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": {names.WORKLOAD_CLASS_ANNOTATION: workload_class}},
        "spec": {
            "containers": [{"name": "main", "image": "none", "resources": resources}],
            "priorityClassName": priority,
        },
    }


def _priority(turn: Turn, value: int) -> dict[str, Any]:
    """PriorityClass that schedules the pods of a turn before those of the next."""
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": _class_name(turn)},
        "value": value,
        "preemptionPolicy": "Never",
    }


def _class_name(turn: Turn) -> str:
    return f"turn-{turn.place}"


def _managed(way: str) -> str:
    """Name of the extended resource that makes kube-scheduler call this extender for a pod."""
    return f"bench.joulie.io/{way}"


def _entry(way: str, port: int) -> dict[str, Any]:
    """The documented entry, for some pods only, and not ignorable: an extender that fails must be noticed."""
    return {
        "urlPrefix": f"http://127.0.0.1:{port}",
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "weight": 1,
        "nodeCacheCapable": True,
        "httpTimeout": "1s",
        "ignorable": False,
        "managedResources": [{"name": _managed(way), "ignoredByScheduler": True}],
    }


# ---- the cluster


def _create_cluster(plane: LocalControlPlane, node_names: Sequence[str]) -> None:
    """Nodes, every second one eco, and what the operator would have written about them."""
    plane.create_all(_CRDS, crd.custom_resource_definitions())
    plane.await_definitions()
    profiles = {name: "eco" if index % 2 else "performance" for index, name in enumerate(node_names)}
    plane.create_nodes(
        kwok_node(name, labels={names.POWER_PROFILE_LABEL: profile}, allocatable=_ROOM)
        for name, profile in profiles.items()
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
