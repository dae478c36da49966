"""Benchmark openb-cluster: pods of the openb trace arrive at the real kube-scheduler, which asks `joulie extender`.

As in benchmark openb, pods arrive one after the other until they have asked for 130 % of all GPU, none ends, and one
that fits nowhere is turned away. They say in annotations what part of a GPU they want. The default scheduler is asked
beside it, with the extender's filter alone: without that it would bind pods to GPUs that have no room for them.
Allocation and power are worked out from where pods were bound, by the benchmark's own model of power and the extender's
assumption about devices (docs/design/0038), and compared with the benchmark's own run on the same nodes and arrivals.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from joulie.adapters.kubernetes.gpu_parts import GPU_COUNT_ANNOTATION, GPU_MILLI_ANNOTATION
from joulie.domain.scoring.fragmentation import ANY_MODEL, NodeKind, node_power_w
from joulie.domain.scoring.shared_gpus import GpuDemand, SharingPod, gpus_left
from joulie.domain.scoring.sharing import SOCKET_IDLE_W, SOCKET_LIMIT_W
from joulie.domain.units import FloatArray, IntArray
from joulie_lab.adapters import crd
from joulie_lab.adapters.published.openb import GPU_POWER, MODELS, Nodes, Pods
from joulie_lab.benchmarks.gpu_sharing.arrivals import ARRIVED, Arrivals, arrivals
from joulie_lab.benchmarks.gpu_sharing.kernel import NOWHERE
from joulie_lab.benchmarks.gpu_sharing.play import Setup, place
from joulie_lab.benchmarks.gpu_sharing.policies import JOULIE_FRUGAL, POLICIES
from joulie_lab.benchmarks.results import Figures
from joulie_lab.control_plane import LocalControlPlane, kwok_node, wait_for
from joulie_lab.control_plane.ports import free_port

WEIGHT = 20
"""Of the extender, above the sum of the default scheduler's plugins."""
LOADS_PCT = (20.0, 80.0)
"""GPU arrived between which powers are compared, percent of the cluster's."""
DEFAULT, FRUGAL, NATIVE, FGD = "default scheduler", "SCORING=frugal", "benchmark, joulie-frugal", "benchmark, FGD"
_PODS = "/api/v1/namespaces/default/pods"
_READY_S, _BOUND_S = 90.0, 120.0
_VIEW_S = 0.25
"""How long the next pod waits after the extender was told of the last: its view is a tenth of a second old at most."""
_IDLE = ("kwok", "kube-controller-manager")

Note = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """How much is run.

    Attributes:
        nodes: number of the trace's nodes, drawn at random.
        arrived: GPU that arrives, of all that these have.
        seed: of the nodes and the order of arrivals.
    """

    nodes: int
    arrived: float = ARRIVED
    seed: int = 47


FULL, SMALL = Plan(40), Plan(5, 0.6)


class Way(Figures, frozen=True):
    """A way of placing the same pods.

    Attributes:
        allocation_pct: GPU given in the end, percent of the cluster's.
        power_kw: mean power between `LOADS_PCT`.
        power_pct: mean of the powers there relative to the benchmark's FGD.
        all_placed_until_pct: GPU arrived before the first pod that fitted nowhere, or in all, percent.
        turned_away: pods that fitted nowhere.
        unjudged_nodes: nodes on which pods do not add up in the end.
        p99_ms: 99th percentile of the extender's answers to /prioritize, ms; None where it was not asked.
        curve_pct: GPU given after each arrival, percent.
        curve_kw: power after each arrival.
    """

    allocation_pct: float
    power_kw: float
    power_pct: float
    all_placed_until_pct: float
    turned_away: int
    unjudged_nodes: int
    p99_ms: float | None
    curve_pct: Sequence[float]
    curve_kw: Sequence[float]


class OpenbClusterResult(Figures, frozen=True):
    """The result, by way."""

    nodes: int
    all_nodes: int
    gpus: int
    arrivals: int
    seed: int
    arrived_pct: Sequence[float]
    ways: Mapping[str, Way]
    same_node_pct: float


def measure(nodes: Nodes, pods: Pods, plan: Plan, plane: LocalControlPlane, note: Note) -> OpenbClusterResult:
    """All figures of the benchmark.

    Args:
        nodes: of the trace.
        pods: of the trace.
        plan: how much is run.
        plane: a control plane of its own.
        note: told what is run next.
    """
    part = nodes.of(np.sort(np.random.default_rng(plan.seed).permutation(len(nodes.gpus))[: plan.nodes]))
    arriving = arrivals(pods, part, plan.seed, plan.arrived)
    setup, ordered = Setup.of(part, pods), part.of(arriving.node_order)
    note("the benchmark's own run")
    placed: dict[str, IntArray] = {}
    for name, policy in ((FGD, "FGD"), (NATIVE, JOULIE_FRUGAL)):
        placed[name] = _in_order(place(setup, POLICIES[policy], arriving).node, ordered, policy)
    cluster = _Cluster(plane, ordered, note)
    seen: dict[str, tuple[int, float | None]] = {}
    for name, verbs in ((DEFAULT, ("filterVerb",)), (FRUGAL, ("filterVerb", "prioritizeVerb"))):
        note(f"{len(arriving.pods):,} pods arrive: {name}")
        placed[name], unjudged, p99_ms = cluster.play(pods.of(arriving.pods), verbs, name)
        seen[name] = unjudged, p99_ms
    return _result(placed, seen, ordered, pods, arriving, plan, len(nodes.gpus))


def _in_order(chosen: IntArray, ordered: Nodes, policy: str) -> IntArray:
    """Nodes of a native run as numbers in the order of names, which a policy's own order of nodes is not."""
    if POLICIES[policy].order != "watts":
        return chosen
    added_w = np.array([one.limit_w - one.idle_w for one in GPU_POWER.values()])
    order = np.argsort(added_w[ordered.model], kind="stable")
    return np.where(chosen == NOWHERE, NOWHERE, order[chosen])


def _result(
    placed: Mapping[str, IntArray],
    seen: Mapping[str, tuple[int, float | None]],
    nodes: Nodes,
    pods: Pods,
    arriving: Arrivals,
    plan: Plan,
    all_nodes: int,
) -> OpenbClusterResult:
    demand = pods.demand_milli[arriving.pods]
    arrived_pct = 100.0 * np.cumsum(demand) / nodes.gpu_milli
    compared = (arrived_pct >= LOADS_PCT[0]) & (arrived_pct <= LOADS_PCT[1])
    power_w = {name: _power_w(chosen, nodes, pods.of(arriving.pods)) for name, chosen in placed.items()}
    ways = {}
    for name, chosen in placed.items():
        given_pct = 100.0 * np.cumsum(np.where(chosen == NOWHERE, 0, demand)) / nodes.gpu_milli
        away = np.flatnonzero(chosen == NOWHERE)
        unjudged, p99_ms = seen.get(name, (0, None))
        ways[name] = Way(
            allocation_pct=float(given_pct[-1]),
            power_kw=float(power_w[name][compared].mean()) / 1000.0,
            power_pct=float((100.0 * power_w[name] / power_w[FGD])[compared].mean()),
            all_placed_until_pct=float(arrived_pct[away[0] - 1] if len(away) else arrived_pct[-1]),
            turned_away=len(away),
            unjudged_nodes=unjudged,
            p99_ms=p99_ms,
            curve_pct=given_pct.tolist(),
            curve_kw=(power_w[name] / 1000.0).tolist(),
        )
    return OpenbClusterResult(
        nodes=len(nodes.gpus),
        all_nodes=all_nodes,
        gpus=int(nodes.gpus.sum()),
        arrivals=len(arriving.pods),
        seed=plan.seed,
        arrived_pct=arrived_pct.tolist(),
        ways=ways,
        same_node_pct=float(100.0 * np.mean(placed[FRUGAL] == placed[NATIVE])),
    )


def _power_w(chosen: IntArray, nodes: Nodes, pods: Pods) -> FloatArray:
    """Power of all nodes after each arrival, W."""
    on_node: list[list[SharingPod]] = [[] for _ in nodes.gpus]
    kinds = [
        NodeKind(int(cpu), ANY_MODEL, *GPU_POWER[MODELS[model]], SOCKET_IDLE_W, SOCKET_LIMIT_W)
        for cpu, model in zip(nodes.cpu_milli, nodes.model, strict=True)
    ]
    watts = np.array([_node_w(node, nodes, kinds[node], []) for node in range(len(kinds))])
    course = np.zeros(len(chosen))
    for arrival, node in enumerate(chosen):
        if node != NOWHERE:
            demand = GpuDemand(int(pods.gpus[arrival]), int(pods.gpu_milli[arrival]))
            on_node[node].append(SharingPod("", str(arrival), int(pods.cpu_milli[arrival]), demand))
            watts[node] = _node_w(int(node), nodes, kinds[node], on_node[node])
        course[arrival] = watts.sum()
    return course


def _node_w(node: int, nodes: Nodes, kind: NodeKind, pods: Sequence[SharingPod]) -> float:
    left, _ = gpus_left(int(nodes.gpus[node]), pods)
    return node_power_w(kind.cpu_milli - sum(pod.cpu_milli for pod in pods), left, kind)


class _Cluster:
    """The nodes on a control plane, and pods that arrive one by one."""

    def __init__(self, plane: LocalControlPlane, nodes: Nodes, note: Note) -> None:
        self._plane, self._note = plane, note
        self._names = [f"openb-{number:04d}" for number in range(len(nodes.gpus))]
        plane.create_all("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd.custom_resource_definitions())
        plane.await_definitions()
        plane.create_nodes(
            kwok_node(
                name,
                labels={"nvidia.com/gpu.product": MODELS[model], "nvidia.com/gpu.count": str(gpus)},
                allocatable={
                    "cpu": f"{cpu}m",
                    "memory": f"{memory}Mi",
                    "pods": "1001",
                    GPU_MILLI_ANNOTATION: str(1000 * gpus),
                },
            )
            for name, cpu, memory, gpus, model in zip(
                self._names, nodes.cpu_milli, nodes.memory_mib, nodes.gpus, nodes.model, strict=True
            )
        )
        plane.stop(*_IDLE)

    def play(self, pods: Pods, verbs: Sequence[str], title: str) -> tuple[IntArray, int, float | None]:
        """Nodes of the pods, nodes that the extender cannot judge in the end, and its 99th percentile in ms."""
        self._plane.kubectl("delete", "pods", "--all", "-n", "default", "--force", "--wait")
        port, metrics_port = free_port(), free_port()
        environment = {
            "KUBECONFIG": str(self._plane.kubeconfig),
            "PORT": str(port),
            "METRICS_ADDR": f"127.0.0.1:{metrics_port}",
            "SCORING": "frugal",
        }
        command = [sys.executable, "-m", "joulie", "extender"]
        program = self._plane.spawn(f"extender-{len(verbs)}", command, environment=environment)
        scoring = partial(_get, metrics_port, "/debug/scoring")
        wait_for(
            lambda: len((scoring() or {"nodes": []})["nodes"]) == len(self._names), _READY_S, "the extender is ready"
        )
        extender = {verb: verb.removesuffix("Verb") for verb in verbs}
        self._plane.configure_scheduler(
            {
                "percentageOfNodesToScore": 100,
                "extenders": [
                    {
                        "urlPrefix": f"http://127.0.0.1:{port}",
                        "weight": WEIGHT,
                        "nodeCacheCapable": True,
                        "httpTimeout": "20s",
                        "ignorable": False,
                        **extender,
                    }
                ],
            }
        )
        chosen, n_bound = np.full(len(pods.gpus), NOWHERE), 0
        for arrival in range(len(chosen)):
            name = f"pod-{arrival:05d}"
            self._plane.request("POST", _PODS, _pod(name, pods, arrival))
            node = wait_for(partial(self._answer, name), _BOUND_S, f"{name} is bound or turned away", poll_s=0.02)
            if node == _AWAY:
                self._plane.request("DELETE", f"{_PODS}/{name}?gracePeriodSeconds=0")
                continue
            chosen[arrival], n_bound = self._names.index(node), n_bound + 1
            wait_for(partial(_sees, scoring, n_bound), _BOUND_S, f"the extender sees {name}", poll_s=0.02)
            time.sleep(_VIEW_S)
            if arrival % 50 == 0:
                self._note(f"{title}: {arrival} of {len(chosen)}")
        asked = json.dumps(_pod("probe", pods, 0)).encode()
        shown = _get(metrics_port, "/debug/explain", asked) or {"nodes": []}
        unjudged = sum(bool(one["whyNeutral"]) for one in shown["nodes"])
        p99_ms = _p99_ms(_text(metrics_port, "/metrics") or "") if "prioritizeVerb" in verbs else None
        program.stop()
        return chosen, unjudged, p99_ms

    def _answer(self, name: str) -> str:
        """The node of a pod, `_AWAY` if it fits nowhere, empty while that is open."""
        pod = self._plane.request("GET", f"{_PODS}/{name}")
        if node := pod["spec"].get("nodeName"):
            return str(node)
        conditions = pod.get("status", {}).get("conditions") or ()
        return _AWAY if any(one.get("reason") == "Unschedulable" for one in conditions) else ""


_AWAY = "turned away"


def _pod(name: str, pods: Pods, arrival: int) -> dict[str, Any]:
    requests = {"cpu": f"{pods.cpu_milli[arrival]}m", "memory": f"{pods.memory_mib[arrival]}Mi"}
    annotations, gpus, milli = {}, int(pods.gpus[arrival]), int(pods.gpu_milli[arrival])
    if gpus:
        requests[GPU_MILLI_ANNOTATION] = str(gpus * milli)
        annotations = {GPU_MILLI_ANNOTATION: str(milli), GPU_COUNT_ANNOTATION: str(gpus)}
    container = {"name": "main", "image": "pause", "resources": {"requests": requests, "limits": requests}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "annotations": annotations},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
    }


def _sees(scoring: Callable[[], Any], n_pods: int) -> bool:
    watches = (scoring() or {"watches": []})["watches"]
    return any(one["resource"] == "pods" and one["objects"] == n_pods for one in watches)


def _get(port: int, path: str, body: bytes | None = None) -> Any:
    text = _text(port, path, body)
    return None if text is None else json.loads(text)


def _text(port: int, path: str, body: bytes | None = None) -> str | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", body, 10) as answer:
            return str(answer.read().decode())
    except OSError:
        return None


def _p99_ms(metrics: str) -> float | None:
    """Upper bound of the bucket that holds the 99th percentile of /prioritize, ms."""
    buckets = [
        (float(line.split('le="')[1].split('"')[0]), float(line.split()[-1]))
        for line in metrics.splitlines()
        if line.startswith("joulie_extender_request_seconds_bucket") and 'verb="prioritize"' in line
    ]
    total = max((count for _, count in buckets), default=0.0)
    return next((1000.0 * bound for bound, count in sorted(buckets) if count >= 0.99 * total), None) if total else None
