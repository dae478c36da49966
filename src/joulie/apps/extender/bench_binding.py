"""Pods that the real kube-scheduler binds in a second, with and without an extender (benchmark B6).

On a local control plane with KWOK nodes, pods are created while the scheduler is stopped and released by its start.
Ways take turns within one run, since the machine differs more from minute to minute than they do from each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from time import monotonic
from typing import Any

from joulie.adapters.control_plane import ApiError, LocalControlPlane, kwok_node, wait_for
from joulie.adapters.kubernetes import names
from joulie.apps.extender.bench import served

WAYS = ("none", "constants", "joulie", "admission")
"""No extender; one of constants; Joulie's; and none, but with what steering by admission writes into pods."""
_PODS = "/api/v1/namespaces/default/pods"
_POLL_S = 0.02
_BEGIN, _END = 0.05, 0.95
"""Shares of the pods between which the rate is taken: without the scheduler's start, and without stragglers."""
_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Plan:
    """What to measure.

    Attributes:
        nodes: of the cluster.
        pods: bound by each way in each round.
        rounds: turns that the ways take; the first is not counted.
    """

    nodes: int
    pods: int
    rounds: int


FULL = (Plan(nodes=1_000, pods=1_000, rounds=4), Plan(nodes=5_000, pods=1_000, rounds=4))
SMALL = (Plan(nodes=100, pods=100, rounds=2),)


def measure(plans: tuple[Plan, ...], note: Callable[[str], None]) -> dict[str, Any]:
    """Bound pods a second by number of nodes and way, and ratios of ways that took turns.

    Args:
        plans: what to measure.
        note: told what is being measured.
    """
    return {"bound_per_s": {str(plan.nodes): _measured(plan, note) for plan in plans}}


def rows(figures: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """The figures as a table: nodes, and of each way the median, then the two ratios."""
    for nodes, found in figures["bound_per_s"].items():
        ratios = (found["joulie_to_constants"], found["admission_to_none"])
        yield f"{int(nodes):,}", *(f"{found[way]:.0f}" for way in WAYS), *(f"{ratio:.3f}" for ratio in ratios)


def plot(figures: Mapping[str, Any]) -> bytes:
    """Bound pods a second by way and number of nodes: a PNG image."""
    from io import BytesIO

    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.0, 3.6), layout="constrained")
    axes = figure.add_subplot()
    measured = figures["bound_per_s"]
    for place, way in enumerate(WAYS):
        places = [index + 0.2 * (place - (len(WAYS) - 1) / 2.0) for index in range(len(measured))]
        axes.bar(places, [found[way] for found in measured.values()], width=0.18, label=way)
    axes.set(ylabel="bound pods a second", xlabel="nodes")
    axes.set_xticks(range(len(measured)), [f"{int(nodes):,}" for nodes in measured])
    axes.legend(frameon=False, fontsize="small")
    image = BytesIO()
    figure.savefig(image, format="png")
    return image.getvalue()


def _measured(plan: Plan, note: Callable[[str], None]) -> dict[str, float]:
    node_names = [f"node-{index:05d}" for index in range(plan.nodes)]
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    with ExitStack() as stack:
        plane = stack.enter_context(LocalControlPlane(components=("etcd", "kube-apiserver", "kube-controller-manager")))
        # Pods need the ServiceAccount that it makes; after that it would only compete for the cores.
        plane.stop("kube-controller-manager")
        ports = {way: stack.enter_context(served(way, node_names)) for way in ("constants", "joulie")}
        plane.create_nodes(_node(name, index) for index, name in enumerate(node_names))
        for turn in range(plan.rounds):
            for way in WAYS:
                rate = _bind(plane, way, ports.get(way), plan.pods)
                note(f"{plan.nodes:,} nodes, round {turn + 1} of {plan.rounds}, {way}: {rate:.0f} pods a second")
                if turn:
                    rates[way].append(rate)
    return {
        **{way: median(found) for way, found in rates.items()},
        "joulie_to_constants": _ratio(rates["joulie"], rates["constants"]),
        "admission_to_none": _ratio(rates["admission"], rates["none"]),
    }


def _ratio(ours: list[float], theirs: list[float]) -> float:
    """Median of the ratios round by round."""
    return median(one / other for one, other in zip(ours, theirs, strict=True))


def _bind(plane: LocalControlPlane, way: str, port: int | None, pods: int) -> float:
    """Pods a second that the scheduler binds in this way, from the first twentieth to the last."""
    plane.create_all(_PODS, [_pod(index, steered=way == "admission") for index in range(pods)])
    plane.configure_scheduler({"extenders": [_extender(port)] if port is not None else []})
    began_s, ended_s, _ = [_moment(plane, round(share * pods)) for share in (_BEGIN, _END, 1.0)]
    plane.stop("kube-scheduler")
    plane.request("DELETE", f"{_PODS}?gracePeriodSeconds=0")
    wait_for(lambda: not plane.request("GET", f"{_PODS}?limit=1")["items"], _TIMEOUT_S, "pods are gone")
    return (_END - _BEGIN) * pods / (ended_s - began_s)


def _moment(plane: LocalControlPlane, pods: int) -> float:
    """When so many pods are bound, s."""
    wait_for(lambda: _bound(plane) >= pods, _TIMEOUT_S, f"{pods} pods bound", poll_s=_POLL_S)
    return monotonic()


def _bound(plane: LocalControlPlane) -> int:
    """Pods bound since the scheduler started, as it counts them."""
    try:
        metrics = plane.request("GET", "/metrics", port=plane.port("kube-scheduler"))
    except ApiError:  # it has just started and does not know its clients yet
        return 0
    for line in metrics.splitlines():
        if line.startswith("scheduler_schedule_attempts_total{") and 'result="scheduled"' in line:
            return int(float(line.split()[-1]))
    return 0


def _extender(port: int) -> dict[str, Any]:
    return {
        "urlPrefix": f"http://127.0.0.1:{port}",
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "weight": 1,
        "nodeCacheCapable": True,
        "httpTimeout": "1s",
    }


def _node(name: str, index: int) -> dict[str, Any]:
    """As `joulie.apps.extender.bench` makes its fleet: every other node is eco."""
    return kwok_node(name, labels={names.POWER_PROFILE_LABEL: "eco" if index % 2 else "performance"})


def _pod(index: int, *, steered: bool) -> dict[str, Any]:
    """One core, every other pod of class performance; `steered` as steering by admission would leave it."""
    performance = index % 2 == 0
    spec: dict[str, Any] = {
        "containers": [{"name": "main", "image": "pause", "resources": {"requests": {"cpu": "1"}}}],
        "terminationGracePeriodSeconds": 0,
    }
    if steered:
        spec["affinity"] = {"nodeAffinity": _REQUIRED if performance else _PREFERRED}
    annotations = {names.WORKLOAD_CLASS_ANNOTATION: "performance"} if performance else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"pod-{index}", "annotations": annotations},
        "spec": spec,
    }


_ECO = {"key": names.POWER_PROFILE_LABEL, "values": ["eco"]}
_REQUIRED = {
    "requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [
            {
                "matchExpressions": [
                    {**_ECO, "operator": "NotIn"},
                    {"key": names.DRAINING_LABEL, "operator": "DoesNotExist"},
                ]
            }
        ]
    }
}
_PREFERRED = {
    "preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": 1, "preference": {"matchExpressions": [{**_ECO, "operator": "In"}]}}
    ]
}
