"""Response times of the scheduler extender (benchmark B6), compared with an extender that returns constants.

Both run in separate processes with the HTTP server and the protocol code of the product, and are called alternately
over a persistent connection from another core. They differ in the decision, and in the views that the extender
refreshes ten times a second, since 500 twins change per second.

Calls come in pairs as from kube-scheduler, /prioritize for the nodes that pass /filter, but without the pause in which
it runs its own plugins: the extender ranks nodes in that pause, and here this work must be visible.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import cycle
from multiprocessing.connection import Connection
from time import perf_counter, time
from typing import Any

import msgspec
import numpy as np

from joulie.adapters.kubernetes.names import CPU_SENSITIVITY_ANNOTATION, WORKLOAD_CLASS_ANNOTATION
from joulie.adapters.kubernetes.pods import PodFacts, ProfileFacts
from joulie.apps.extender import wire
from joulie.apps.extender.fleet import Fleet
from joulie.apps.extender.judge import judge, scores
from joulie.apps.extender.main import BUSY_S, VIEW_S
from joulie.apps.extender.metrics import ExtenderMetrics
from joulie.apps.extender.node_facts import LoadFacts, TwinFacts, TwinNumbers
from joulie.apps.extender.server import Extender, max_body_bytes, read_body
from joulie.domain.grid.names import MAX_POWER_WATTS, MIN_EFFICIENCY, POLICY_PREFIX, PREFIX
from joulie.domain.scoring.extender import NodeClass
from joulie.domain.scoring.marginal_energy import ScoringAim
from joulie.domain.scoring.occupancy import LifeClass, Occupancy, PlacedPod
from joulie.program.http import AsgiApp, Probes, Receive, Scope, Send, Server, observability_app, respond
from joulie_lab.benchmarks.results import Figures

VERBS = ("filter", "prioritize")
Naming = Callable[[int], list[str]]
"""Node names by number of nodes."""
_NEUTRAL = 5
_LEAST_FLEET = 5_000
"""Nodes of the cluster: of 5,000 the scheduler usually offers 500."""
_BODIES = 20
"""Different orders and choices of names, so that nothing can be remembered from one call to the next."""
_STALENESS_S = 300.0
_TWINS_CHANGED_S = 500
"""Twins that change in a second, one by one as a watch tells of them: of 5,000 nodes each every ten seconds."""
_PODS_OF_A_NODE = 10
_NAMESPACES = 200
"""Namespaces with policies."""
_TICK_S = 0.01
_WARM_UP = 0.1
_FQDN = "ip-10-{}-{}-12.eu-central-1.compute.internal"


class _Pods(Enum):
    """What calls are about."""

    ALIKE = auto()
    """Standard pods of one Job."""
    PERFORMANCE = auto()
    """Performance pods of one Job, which half of the nodes refuse."""
    DIFFERENT = auto()
    """Standard pods that request this and that: more kinds than an extender remembers."""


@dataclass(frozen=True)
class Plan:
    """What to measure.

    Attributes:
        sizes: numbers of candidate nodes per call.
        calls: number of calls of each kind and size.
        rounds: number of alternations between the extenders.
    """

    sizes: tuple[int, ...]
    calls: int
    rounds: int = 10


FULL = Plan(sizes=(500, 5_000, 10_000), calls=2_000)
SMALL = Plan(sizes=(500,), calls=100, rounds=2)


class Times(Figures, frozen=True):
    """Response times: of the calmest round, and of all calls."""

    p50_ms: float
    p99_ms: float
    p99_of_all_ms: float


@dataclass
class _Series:
    """Response times, s, by round."""

    rounds: list[list[float]] = field(default_factory=list)

    def times(self) -> Times:
        """Quantiles in ms: of the calmest round, since other work on the machine only ever adds; and of all calls."""
        p50, p99 = np.min([np.percentile(times, [50.0, 99.0]) for times in self.rounds], axis=0) * 1e3
        overall = np.percentile(np.concatenate(self.rounds), 99.0) * 1e3
        return Times(float(p50), float(p99), float(overall))


ByVerb = Mapping[str, Times]
BySize = Mapping[str, ByVerb]


class ExtenderResult(Figures, frozen=True):
    """The result, by number of candidates and verb; ratios are those of the medians."""

    joulie: BySize
    constants: BySize
    performance: BySize
    decision_ms: Mapping[str, Times]
    long_names: BySize
    ratio_to_constants: Mapping[str, Mapping[str, float]]
    different: BySize = msgspec.field(default_factory=dict)
    marginal: BySize = msgspec.field(default_factory=dict)
    policies: BySize = msgspec.field(default_factory=dict)
    ratio_to_no_policies: Mapping[str, Mapping[str, float]] = msgspec.field(default_factory=dict)


def measure(plan: Plan, note: Callable[[str], None]) -> ExtenderResult:
    """Response times by extender, verb and number of candidates, and the time of the decision alone.

    Args:
        plan: what to measure.
        note: told what is being measured.
    """
    joulie: dict[str, ByVerb] = {}
    constants: dict[str, ByVerb] = {}
    performance: dict[str, ByVerb] = {}
    decision_ms = {}
    for size in plan.sizes:
        note(f"{size:,} candidates")
        compared = _compare(_short_names, size, plan)
        joulie[str(size)], constants[str(size)] = compared["joulie"], compared["constants"]
        note(f"{size:,} candidates of a performance pod")
        performance[str(size)] = _compare(_short_names, size, plan, _Pods.PERFORMANCE)["joulie"]
        decision_ms[str(size)] = _decision_ms(size, plan)
    ratios = {size: _ratios(joulie[size], constants[size]) for size in joulie}
    longest = plan.sizes[min(1, len(plan.sizes) - 1)]
    others: dict[str, BySize] = {}
    for name, text, naming, pods in (
        ("long_names", f"with names of {len(_long_names(1)[0])} letters", _long_names, _Pods.ALIKE),
        ("different", "of pods that all differ", _short_names, _Pods.DIFFERENT),
    ):
        note(f"{longest:,} candidates {text}")
        compared = _compare(naming, longest, plan, pods)
        others[name] = {str(longest): compared["joulie"]}
        ratios[name] = _ratios(compared["joulie"], compared["constants"])
    note(f"{longest:,} candidates of a performance pod whose namespace limits the power of nodes")
    compared = _compare(_short_names, longest, plan, _Pods.PERFORMANCE, apps=("policies", "joulie"))
    policies = {str(longest): compared["policies"]}
    ratio_to_no_policies = {str(longest): _ratios(compared["policies"], compared["joulie"])}
    marginal: dict[str, ByVerb] = {}
    for size in plan.sizes[:2]:
        note(f"{size:,} candidates with SCORING=marginal")
        marginal[str(size)] = _compare(_short_names, size, plan, apps=("marginal", "constants"))["marginal"]
    return ExtenderResult(
        joulie,
        constants,
        performance,
        decision_ms,
        others["long_names"],
        ratios,
        others["different"],
        marginal,
        policies,
        ratio_to_no_policies,
    )


def _ratios(times: ByVerb, to: ByVerb) -> dict[str, float]:
    """By verb, at the median."""
    return {verb: times[verb].p50_ms / to[verb].p50_ms for verb in VERBS}


def _compare(
    naming: Naming,
    size: int,
    plan: Plan,
    pods: _Pods = _Pods.ALIKE,
    apps: tuple[str, ...] = ("joulie", "constants"),
) -> dict[str, ByVerb]:
    """Response times of extenders, asked in turn for `size` candidates, by verb."""
    names = naming(max(size, _LEAST_FLEET))
    series = {name: {verb: _Series() for verb in VERBS} for name in apps}
    requests = list(_requests(names, size, pods))
    calls = max(1, plan.calls // plan.rounds)
    _pin(-1)
    with ExitStack() as stack:
        ports = {name: stack.enter_context(served(name, names, core=0)) for name in apps}
        callers = {name: stack.enter_context(_Caller(port)) for name, port in ports.items()}
        for _ in range(plan.rounds):
            for name, caller in callers.items():
                pairs = [[caller.ask(one) for one in requests[call % _BODIES]] for call in range(calls)]
                for verb, times in zip(VERBS, zip(*pairs[int(calls * _WARM_UP) :], strict=True), strict=True):
                    series[name][verb].rounds.append(list(times))
    return {name: {verb: found.times() for verb, found in by_verb.items()} for name, by_verb in series.items()}


def _decision_ms(size: int, plan: Plan) -> Times:
    """Time from arrays to scores, without a protocol around it."""
    view = _fleet(_short_names(size), np.random.default_rng(2)).view(time())
    pod = judge(wire.read_args(_body(["n"]))[0], _no_profile)
    series = _Series()
    for _ in range(plan.rounds):
        times = []
        for _ in range(max(1, plan.calls // plan.rounds)):
            began_s = perf_counter()
            scores(pod, view)
            times.append(perf_counter() - began_s)
        series.rounds.append(times)
    return series.times()


# ---- the servers


def _joulie(
    names: list[str], scoring: ScoringAim = ScoringAim.HEADROOM, policies: Mapping[str, str] | None = None
) -> tuple[AsgiApp, Callable[[], None]]:
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry()
    rng = np.random.default_rng(2)
    occupancy = _occupied(names, rng) if scoring is ScoringAim.MARGINAL else None
    fleet = _fleet(names, rng, scoring, occupancy)
    if policies is not None:
        for namespace in (_METADATA["namespace"], *(f"team-{number}" for number in range(_NAMESPACES))):
            fleet.set_policies(namespace, policies)
    extender = Extender(fleet, _no_profile, lambda: (), ExtenderMetrics(registry), time)
    extender.refresh()

    view_due = cycle([False] * (round(VIEW_S / _TICK_S) - 1) + [True])
    busy_due = cycle([False] * (round(BUSY_S / _TICK_S) - 1) + [True])

    def tick() -> None:
        changed = rng.integers(len(names), size=round(_TWINS_CHANGED_S * _TICK_S)).tolist()
        for index in changed:
            fleet.set_twin(names[index], _twin(index, rng))
        if occupancy is not None:
            occupancy.set_pod(changed[0], _placed(names[changed[0]], rng), time())
            if next(busy_due):
                occupancy.refresh(time())
        if next(view_due):
            extender.refresh()

    return extender.app(observability_app(Probes(), registry)), tick


def _marginal(names: list[str]) -> tuple[AsgiApp, Callable[[], None]]:
    """The extender with SCORING=marginal: as many pods as in a full cluster, of which 100 change in a second."""
    return _joulie(names, ScoringAim.MARGINAL)


def _with_policies(names: list[str]) -> tuple[AsgiApp, Callable[[], None]]:
    """The extender where namespaces limit the power and the efficiency of nodes, which all nodes keep."""
    limits = {MAX_POWER_WATTS: "10000", MIN_EFFICIENCY: "0.001"}
    return _joulie(names, policies={key.replace(PREFIX, POLICY_PREFIX): text for key, text in limits.items()})


def _constants(names: list[str]) -> tuple[AsgiApp, Callable[[], None]]:
    """A minimal extender: parse the call and return the same score for every candidate."""
    entries = {name: wire.host_score(wire.json_text(name), _NEUTRAL) for name in names}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        _, given = wire.read_args(await read_body(receive, max_body_bytes("filter", max(FULL.sizes))))
        assert isinstance(given, list)
        if scope["path"] == "/filter":
            answer = wire.filter_result(names=wire.json_text(given))
        else:
            answer = wire.json_array([entries[name] for name in given])
        await respond(send, 200, answer, b"application/json")

    return app, lambda: None


APPS: Mapping[str, Callable[[list[str]], tuple[AsgiApp, Callable[[], None]]]] = {
    "joulie": _joulie,
    "marginal": _marginal,
    "policies": _with_policies,
    "constants": _constants,
}


@contextmanager
def served(name: str, names: list[str], *, core: int | None = None) -> Iterator[int]:
    """The port of an extender in a process of its own.

    Args:
        name: joulie, or constants, which gives every candidate the same.
        names: the nodes that it knows.
        core: which of the processor's it stays on; where the system puts it if not given.
    """
    ours, theirs = multiprocessing.Pipe()
    arguments = (name, names, core, theirs)
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=arguments, daemon=True)
    process.start()
    theirs.close()  # so that a process that dies is not waited for
    try:
        yield int(ours.recv())
    finally:
        with suppress(OSError):
            ours.send(None)
        process.join(timeout=10.0)
        process.kill()


def _serve(name: str, names: list[str], core: int | None, pipe: Connection) -> None:
    import gc

    import uvloop

    if core is not None:
        _pin(core)

    async def main() -> None:
        app, tick = APPS[name](names)
        async with Server(app, ("127.0.0.1", 0)) as server:
            gc.collect()
            gc.freeze()
            pipe.send(server.port)
            while not pipe.poll():
                await asyncio.sleep(_TICK_S)
                tick()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def _pin(core: int) -> None:
    """Stay on one core: the first for servers, the last for the caller."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[core]})


# ---- the caller


class _Caller:
    """A minimal HTTP client on one persistent connection."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = memoryview(bytearray(4 * 2**20))

    def __enter__(self) -> _Caller:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, request: bytes) -> float:
        """Seconds from the first byte out to the last byte in."""
        began_s = perf_counter()
        self._socket.sendall(request)
        received, expected = 0, 0
        while not expected or received < expected:
            count = self._socket.recv_into(self._buffer[received:])
            if not count:
                raise ConnectionError("the extender closed the connection")
            received += count
            expected = expected or _expected(bytes(self._buffer[: min(received, 1024)]))
        seconds = perf_counter() - began_s
        if not bytes(self._buffer[:12]).endswith(b" 200"):
            raise RuntimeError(f"the extender refused: {bytes(self._buffer[:received])[:500]!r}")
        return seconds


def _expected(beginning: bytes) -> int:
    """Length of the answer that begins so, 0 while its header is not complete."""
    header, end, _ = beginning.lower().partition(b"\r\n\r\n")
    if not end:
        return 0
    return len(header) + 4 + int(header.partition(b"content-length: ")[2].partition(b"\r\n")[0])


def _requests(names: list[str], size: int, pods: _Pods) -> Iterator[tuple[bytes, bytes]]:
    """Calls of /filter, and of /prioritize for the nodes that pass it."""
    rng = np.random.default_rng(1)
    for index in range(_BODIES):
        offered = rng.permutation(len(names))[:size].tolist()
        passed = [node for node in offered if not (pods is _Pods.PERFORMANCE and _is_eco(node))]
        cores = 1 + index if pods is _Pods.DIFFERENT else 8
        bodies = [_body([names[node] for node in nodes], pods, cores) for nodes in (offered, passed)]
        yield _request("filter", bodies[0]), _request("prioritize", bodies[1])


def _request(verb: str, body: bytes) -> bytes:
    head = f"POST /{verb} HTTP/1.1\r\nHost: joulie\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


# ---- what is asked


def _body(names: list[str], pods: _Pods = _Pods.ALIKE, cores: int = 8) -> bytes:
    """A call as kube-scheduler makes it, for a pod of a Job."""
    classes = {WORKLOAD_CLASS_ANNOTATION: "performance"} if pods is _Pods.PERFORMANCE else {}
    metadata = {**_METADATA, "annotations": {CPU_SENSITIVITY_ANNOTATION: "high", **classes}}
    requests = {"requests": {"cpu": str(cores), "memory": "16Gi"}, "limits": {"memory": "16Gi"}}
    spec = {**_SPEC, "containers": [{**_CONTAINER, "resources": requests}]}
    pod = {"metadata": metadata, "spec": spec, "status": {"phase": "Pending", "qosClass": "Burstable"}}
    return json.dumps({"Pod": pod, "Nodes": None, "NodeNames": names}, separators=(",", ":")).encode()


_METADATA: dict[str, Any] = {
    "name": "train-7qk2v",
    "namespace": "team",
    "uid": "3e61346f-a27c-46f8-8359-f81ac426d5a0",
    "resourceVersion": "268",
    "labels": {"app": "train", "batch.kubernetes.io/job-name": "train"},
    "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "1", "controller": True}],
}
_CONTAINER: dict[str, Any] = {
    "name": "main",
    "image": "registry.k8s.io/pause:3.10",
    "volumeMounts": [{"name": "kube-api-access-lkxn6", "readOnly": True, "mountPath": "/var/run/secrets"}],
    "imagePullPolicy": "IfNotPresent",
}
_SPEC: dict[str, Any] = {
    "volumes": [{"name": "kube-api-access-lkxn6", "projected": {"defaultMode": 420, "sources": []}}],
    "restartPolicy": "Never",
    "schedulerName": "default-scheduler",
    "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}],
    "priority": 0,
}


def _short_names(count: int) -> list[str]:
    return [f"node-{index:05d}" for index in range(count)]


def _long_names(count: int) -> list[str]:
    return [_FQDN.format(index // 250, index % 250) for index in range(count)]


def _is_eco(index: int) -> bool:
    return index % 2 == 1


def _no_profile(_pod: PodFacts) -> ProfileFacts:
    return ProfileFacts()


def _occupied(names: list[str], rng: np.random.Generator) -> Occupancy:
    """Pods of some hundred workloads on all nodes."""
    occupancy = Occupancy()
    for number in range(_PODS_OF_A_NODE * len(names)):
        occupancy.set_pod(number, _placed(names[number % len(names)], rng), time())
    occupancy.refresh(time())
    return occupancy


def _placed(node: str, rng: np.random.Generator) -> PlacedPod:
    workload, cores, age_s = rng.integers(300), rng.integers(1, 9), rng.exponential(7200.0)
    return PlacedPod(node, float(cores), 0.0, LifeClass(int(workload), service=False, gpu=False), time() - age_s)


def _fleet(
    names: list[str],
    rng: np.random.Generator,
    scoring: ScoringAim = ScoringAim.HEADROOM,
    occupancy: Occupancy | None = None,
) -> Fleet:
    """Nodes with fresh twins, half of them eco."""
    fleet = Fleet(_STALENESS_S, scoring, occupancy=occupancy)
    for index, name in enumerate(names):
        fleet.set_twin(name, _twin(index, rng))
        fleet.set_load(name, LoadFacts(cores=96.0, cpu_max_w=700.0))
    return fleet


def _twin(index: int, rng: np.random.Generator) -> TwinFacts:
    """Any state of a node."""
    eco = _is_eco(index)
    draw = rng.uniform(0.0, 1.0, 4).tolist()
    numbers = TwinNumbers(
        capped_w=600.0 if eco else 1000.0,
        measured_w=100.0 + 500.0 * draw[0],
        cooling_stress_pct=100.0 * draw[1],
        headroom_score=100.0 * draw[2],
        trend_w_per_min=100.0 * draw[3] - 50.0,
        cpu_cap_fraction=0.6 if eco else 1.0,
        gpu_cap_fraction=1.0,
    )
    return TwinFacts(NodeClass.ECO if eco else NodeClass.PERFORMANCE, numbers, time())
