"""`kubectl joulie web` on a fake cluster, with its programs, in a thread of its own: for tests in a real browser."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.ledger import LedgerSettings, open_ledger
from joulie.adapters.program_api.grid import GRID_PATH, GridAnswer, SignalItem
from joulie.adapters.program_api.power import POWER_PATH, Item
from joulie.apps.accounting.api import EnergyApi
from joulie.apps.accounting.async_ledger import AsyncLedger
from joulie.apps.kubectl.accounting import AccountingEndpoint
from joulie.apps.kubectl.leader import LeaderEndpoint
from joulie.apps.kubectl.web.access import LOGIN_PATH, LoopbackAccess
from joulie.apps.kubectl.web.api import WebApi
from joulie.apps.kubectl.web.programs import Programs
from joulie.apps.kubectl.web.server import application
from joulie.apps.kubectl.web.watching import KEPT, Cluster, ClusterView, Visibility
from joulie.domain.accounting.holdout_evidence import NO_MONTHS
from joulie.domain.accounting.month_savings import DEFERRAL_EVIDENCE, LIMITS_EVIDENCE
from joulie.domain.accounting.records import Cycle, PodMeta, PowerQuality, Sample, ZoneSignals
from joulie.domain.grid.names import GATE
from joulie.domain.grid.series import constant
from joulie.domain.trial.holdout import Effect
from joulie.program.http import AsgiApp, Server, answering, respond
from joulie_lab.fakes.kubernetes import FakeCluster
from joulie_lab.fakes.kubernetes.api import Writer

WRITER = Writer("test")
CLASSES = ("performance", "eco", "draining", "eco")
MODELS = (("AMD-EPYC-9654", ""), ("Intel-Xeon-8480", ""), ("AMD-EPYC-9534", "NVIDIA-H100-80GB-HBM3"))


def node(index: int) -> dict[str, Any]:
    cpu, gpu = MODELS[index % 3]
    labels = {names.RACK_LABEL: f"rack-{index // 20:03}", names.HW_CPU_MODEL_LABEL: cpu}
    labels |= {names.HW_GPU_MODEL_LABEL: gpu} if gpu else {}
    allocatable = {"cpu": "96", "memory": "384Gi", **({"nvidia.com/gpu": "8"} if gpu else {})}
    return {
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": f"node-{index:04}", "labels": labels},
        "status": {"allocatable": allocatable},
    }  # fmt: skip


def twin(index: int, now: str) -> dict[str, Any]:
    """A node's twin: every tenth cap is blocked, every fourth node is draining, one source is unknown."""
    eco = CLASSES[index % 4] == "eco"
    draining = CLASSES[index % 4] == "draining"
    result = "blocked" if index % 10 == 3 else "applied"
    condition = {
        "type": "Draining", "status": "True" if draining else "False", "lastTransitionTime": now,
        "reason": "BlockingPods" if draining else "NotDraining",
        "message": "2 pods on it need full power" if draining else "",
    }  # fmt: skip
    gpu = {"id": f"GPU-{index}", "limitWatts": 500.0, "originalWatts": 700.0,
           "pods": [{"name": f"pod-{index}-0", "namespace": f"team-{index % 5}"}]}  # fmt: skip
    measured = {} if index % 13 == 7 else {"measuredNodePowerW": 300.0 + index % 400, "source": "rapl"}
    status = {
        "schedulableClass": CLASSES[index % 4], "lastUpdated": now, "conditions": [condition],
        "predictedPowerHeadroomScore": float(index * 37 % 101), "predictedCoolingStressScore": float(index * 17 % 101),
        "predictedPsuStressScore": float(index * 7 % 101),
        "powerMeasurement": {"nodeCappedPowerW": 720.0, "powerTrendWPerMin": 1.5, **measured},
        "controlStatus": {
            "observedGeneration": 1, "gpus": [gpu] if index % 3 == 2 else [],
            "cpu": {"backend": "rapl", "result": result, "message": "no RAPL", "updatedAt": now},
        },
    }  # fmt: skip
    limit = {"id": f"GPU-{index}", "watts": 500.0, "pod": gpu["pods"][0]}
    spec = {
        "nodeName": f"node-{index:04}", "profile": "eco" if eco else "performance", "policy": {"name": "queue-aware"},
        "cpu": {"packagePowerCapPctOfMax": 60 if eco or index % 10 == 3 else 100},
        "gpuLimits": [limit] if index % 3 == 2 else [],
    }  # fmt: skip
    return {"apiVersion": "joulie.io/v1alpha1", "kind": "NodeTwin", "metadata": {"name": f"node-{index:04}"},
            "spec": spec, "status": status}  # fmt: skip


def pod(index: int, number: int) -> dict[str, Any]:
    """A pod of a node; every 25th waits: for the grid, or for the scheduler."""
    waits = (index + number) % 25 == 24
    gated = waits and number % 2 == 0
    gpus = {"nvidia.com/gpu": "1"} if index % 3 == 2 and number == 0 else {}
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "2", "memory": "4Gi", **gpus}}}
    message = "0/40 nodes are available: 40 Insufficient cpu."
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": f"pod-{index}-{number}", "namespace": f"team-{index % 5}"},
        "spec": {
            "containers": [container], **({} if waits else {"nodeName": f"node-{index:04}"}),
            **({"schedulingGates": [{"name": GATE}]} if gated else {}),
        },
        "status": {
            "phase": "Pending" if waits else "Running",
            "conditions": [{"type": "PodScheduled", "status": "False", "message": message}] if waits else [],
        },
    }  # fmt: skip


def budget(namespace: str) -> dict[str, Any]:
    return {
        "apiVersion": "joulie.io/v1alpha1", "kind": "EnergyBudget",
        "metadata": {"name": "month", "namespace": namespace},
        "spec": {"limits": {"energyKWh": 120.0}, "period": "month", "action": "gate"},
        "status": {"used": {"energyKWh": 90.0}, "usedPct": 75.0, "forecastPct": 110.0},
    }  # fmt: skip


def plans(now: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """A trial that runs, one that has not been seen, and two power budgets."""

    def condition(kind: str, status: str, reason: str, message: str) -> dict[str, str]:
        return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": now}

    protocol = {
        "startTime": "2026-02-01T00:00:00Z", "endTime": "2026-02-07T00:00:00Z", "blockMinutes": 360,
        "washoutMinutes": 60, "seed": 7, "firstHalf": ["node-0001"], "secondHalf": ["node-0005"],
        "order": ["first", "second"] * 6,
    }  # fmt: skip
    running = {"protocol": protocol, "block": 5, "treated": "first",
               "conditions": [condition("Running", "True", "Running", "block 5 of 24")]}  # fmt: skip
    kept = {"measuredWatts": 9000.0, "worstCaseWatts": 11800.0, "nodes": 20, "curtailedNodes": 3,
            "conditions": [condition("Enforced", "True", "Kept", "3 nodes are limited")]}  # fmt: skip
    over = {"conditions": [condition("Enforced", "False", "Infeasible", "200 W are missing"),
                           condition("Blind", "True", "NoReading", "2 nodes have no fresh reading")]}  # fmt: skip
    for kind, name, spec, status in (
        ("PowerTrial", "eco-in-spring", {"pairs": 12}, running),
        ("PowerTrial", "later", {"pairs": 12}, {}),
        ("PowerBudget", "rack-000", {"watts": 12000.0, "nodeSelector": {names.RACK_LABEL: "rack-000"}}, kept),
        ("PowerBudget", "site", {"watts": 20000.0, "mode": "observe"}, over),
    ):
        yield f"{kind.lower()}s", {
            "apiVersion": "joulie.io/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec,
            "status": status,
        }  # fmt: skip


def fleet(nodes: int, pods_a_node: int, now: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Objects of a cluster, with their plural names."""
    for index in range(nodes):
        yield "nodes", node(index)
        yield "nodetwins", twin(index, now)
        for number in range(pods_a_node):
            yield "pods", pod(index, number)
    for number in range(5):
        yield "energybudgets", budget(f"team-{number}")
    yield from plans(now)


def fill(cluster: FakeCluster, objects: Iterable[tuple[str, dict[str, Any]]]) -> None:
    """Put objects and their namespaces into the cluster, with their status, without HTTP."""
    kinds = {kind.plural: kind for kind in cluster.api.kinds}
    namespaces: set[str] = set()
    for plural, body in objects:
        namespace, name = body["metadata"].get("namespace", ""), body["metadata"]["name"]
        if namespace and namespace not in namespaces:
            namespaces.add(namespace)
            made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
            cluster.api.create(kinds["namespaces"], "", made, WRITER)
        cluster.api.create(kinds[plural], namespace, body, WRITER)
        if "status" in body:
            cluster.api.patch(
                kinds[plural], namespace, name, partial(_with_status, status=body["status"]), Writer("test", "status")
            )


def _with_status(old: dict[str, Any], status: dict[str, Any]) -> dict[str, Any]:
    return {**old, "status": status}


class Web:
    """The running pages.

    Attributes:
        url: base URL.
        login: URL that logs in, once.
    """

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self.login = f"{url}{LOGIN_PATH}?token={token}"


def holdouts_at(now_s: float) -> SimpleNamespace:
    """What holdouts have measured until now: limits of GPUs save 7.7 %, waiting is not known yet."""
    limits = deferral = NO_MONTHS
    for number in range(300):
        limits = limits.added(now_s, Effect(-0.08, 0.01, number % 20 == 0))
        deferral = deferral.added(now_s, Effect(-0.2, 0.05, number % 60 == 0))
    evidence = {LIMITS_EVIDENCE: limits, DEFERRAL_EVIDENCE: deferral}
    return SimpleNamespace(limits=limits, deferral=SimpleNamespace(evidence=deferral), evidence=evidence, problems=[])


def energy_app(
    folder: Path, days: int = 10, groups: int = 10, now_s: float | None = None, label_keys: tuple[str, ...] = ()
) -> AsgiApp:
    """The accounting program's API on a ledger of some days, in which every group draws power all day."""
    if now_s is None:
        now_s = datetime.now(UTC).timestamp()  # noqa: TID251 - the pages compare it with the browser's clock
    ledger = open_ledger(f"sqlite:///{folder / 'ledger.sqlite'}", LedgerSettings(max_gap_s=3600.0))
    first_s = now_s // 86400.0 * 86400.0 - days * 86400.0
    span = (first_s - 86400.0, now_s + 86400.0)
    signals = {"DE": ZoneSignals(intensity=constant(400.0, *span), price=constant(0.25, *span))}
    pods = [
        PodMeta(
            f"uid-{number}",
            f"team-{number % 5}",
            f"pod-{number}",
            "Job",
            f"train-{number}",
            "node-0002",
            "DE",
            first_s,
            labels=(("team", ("vision", "nlp")[number % 2]),) if number else (),
        )
        for number in range(groups)
    ]
    sources = (
        {"quality": PowerQuality.MODELLED, "source": "cadvisor"},
        {"quality": PowerQuality.MEASURED, "source": "kepler"},
    )
    for step in range(days * 48):
        at_s = first_s + step * 1800.0
        samples = [
            Sample(meta, 100.0 + 20.0 * number + 30.0 * (step % 48 > 16), 10.0, 0.0, **sources[number % 2])
            for number, meta in enumerate(pods)
        ]
        ledger.append(Cycle(at_s, samples, signals=signals))
    holdouts = cast("Any", holdouts_at(now_s))
    api = EnergyApi(AsyncLedger(ledger), "EUR", lambda: now_s, label_keys=label_keys, holdouts=holdouts)

    async def missing(_scope: Any, _receive: Any, send: Any) -> None:
        await respond(send, 404, b"not found")

    return api.before(missing)


def programs_app(energy: AsgiApp | None) -> AsgiApp:
    """The operator's power API, and the accounting program's API where there is one."""
    items = [Item("node-0002", power_w=612.0, cpu_w=210.0, gpu_w=352.0, idle_w=40.0, system_w=10.0, low_w=580.0,
                  high_w=650.0, quality="fresh", source="rapl", age_s=4.0)]  # fmt: skip

    async def missing(_scope: Any, _receive: Any, send: Any) -> None:
        await respond(send, 404, b"not found")

    signals = [
        SignalItem("carbon", "DE", "fresh", 312.0, source="electricity-maps", basis="average", age_s=600.0,
                   forecast_source="electricity-maps", forecast_until_s=86400.0, lowest=120.0, lowest_in_s=7200.0),
        SignalItem("price", "DE", "stale", 0.21, source="entsoe", age_s=9000.0, problem="no answer for 2 h"),
    ]  # fmt: skip
    held = GridAnswer(leader=True, now=1.77e9, signals=signals, waiting={"carbon": 3})
    grid = answering(GRID_PATH, lambda _query: (200, msgspec.to_builtins(held)), energy or missing)
    return answering(POWER_PATH, lambda _query: (200, {"items": msgspec.to_builtins(items), "since": 0.0}), grid)


def filled(objects: Iterable[tuple[str, dict[str, Any]]], now_s: Callable[[], float] | None = None) -> Cluster:
    """A cluster whose caches hold the objects, as if they had been listed."""
    cluster = Cluster(None, "", **({"now_s": now_s} if now_s else {}))
    caches = {resource: SimpleNamespace(objects={}, problem=None, synced=True) for resource in KEPT}
    kept = {resource.plural: (resource, keep) for resource, keep in KEPT.items()}
    for plural, body in objects:
        resource, keep = kept[plural]
        meta = body["metadata"]
        value = keep(msgspec.convert(body, resource.type))
        if value is not None:
            caches[resource].objects[meta.get("namespace", ""), meta["name"]] = value
    cluster._caches = caches
    return cluster


@contextmanager
def served(make: Callable[[], AbstractAsyncContextManager[Web]]) -> Iterator[Web]:
    """Pages that are served by an event loop in a thread of its own."""
    ready = threading.Event()
    found: list[Web] = []
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def main() -> None:
        async with make() as running:
            found.append(running)
            ready.set()
            await stop.wait()

    def run() -> None:
        try:
            loop.run_until_complete(main())
        finally:
            ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        ready.wait()
        yield found[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


def web(
    folder: Path, nodes: int = 40, pods_a_node: int = 6, energy: AsgiApp | None = None
) -> AbstractContextManager[Web]:
    """Serve the pages for a fake cluster and programs."""

    @asynccontextmanager
    async def make() -> AsyncIterator[Web]:
        async with FakeCluster() as fake, Server(programs_app(energy), ("127.0.0.1", 0)) as programs:
            fill(fake, fleet(nodes, pods_a_node, fake.api.timestamp()))
            async with KubeClient.connect(kubeconfig=fake.kubeconfig(folder / "kubeconfig")) as client:
                cluster = Cluster(client, "team-0")
                view = ClusterView(cluster, await cluster.find_scopes())
                watching = asyncio.create_task(watch(cluster))
                while not cluster.synced:
                    await asyncio.sleep(0.02)
                async with pages_of(view, client, f"http://127.0.0.1:{programs.port}") as running:
                    yield running
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)

    return served(make)


def large_web(cluster: Cluster) -> AbstractContextManager[Web]:
    """Serve the pages for a cluster that has been filled, without programs."""

    @asynccontextmanager
    async def make() -> AsyncIterator[Web]:
        everything = Visibility(frozenset(resource.plural for resource in KEPT))
        async with pages_of(ClusterView(cluster, everything), None, "http://127.0.0.1:9") as running:
            yield running

    return served(make)


@asynccontextmanager
async def pages_of(view: ClusterView, client: Any, url: str) -> AsyncIterator[Web]:
    """The pages of a cluster, with its programs at a URL."""
    leaders = [LeaderEndpoint("joulie-system", 8081, url, program=name) for name in ("operator", "grid")]
    accounting = AccountingEndpoint("joulie-system", 10259, url, verify=False)
    api = WebApi(view, Programs(client, *leaders, accounting))

    async def api_of(_request: object) -> WebApi:
        return api

    access = LoopbackAccess(application(api_of))
    async with Server(access, ("127.0.0.1", 0)) as server:
        yield Web(f"http://127.0.0.1:{server.port}", access.token or "")


async def watch(cluster: Cluster) -> None:
    """Run the caches until cancelled."""
    async with asyncio.TaskGroup() as tasks:
        await cluster.start(tasks)
