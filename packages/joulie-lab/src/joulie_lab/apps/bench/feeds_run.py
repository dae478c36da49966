"""Runs feeds with more servers than their breakers can feed on a real control plane, under PowerBudgets."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import numpy as np

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.api.v1alpha1 import NodeTwin
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import KubernetesError
from joulie.adapters.kubernetes.resources import NODE_TWINS
from joulie.adapters.kubernetes.wire import Key
from joulie.program.errors import UserError
from joulie_lab.apps.simulator.demand import Demand
from joulie_lab.benchmarks import feeds
from joulie_lab.benchmarks.breaker import CASES, Feed, demanded
from joulie_lab.benchmarks.feeds import PlaneRecord, Record, key_of
from joulie_lab.control_plane import LocalControlPlane, ManagedProcess, kwok_node, wait_for
from joulie_lab.control_plane.chart import NAMESPACE, find_chart, install_rights, render
from joulie_lab.control_plane.ports import free_port
from joulie_lab.control_plane.programs import LOOPBACK, simulated_devices

SHARDS = 4
READ_S = AGENT_S = 2.0
"""POWER_POLL_INTERVAL and POWER_BUDGET_INTERVAL, s; agents look at all their nodes every `AGENT_CYCLE_S`."""
AGENT_CYCLE_S = 10.0
KILLED_RESPONSE_S = 40.0
"""Response time of budgets where operators are killed: longer than the takeover by a replica (15 s)."""
KILL_EVERY_S = (25.0, 60.0)
DOWN_S = 4.0
"""How long a killed program stays away before it is started again, s."""
_log = logging.getLogger(__name__)
_TOKEN_S = 86_400
_PATIENCE_S = 300.0
_SETTLED = 0.9
"""Share of the nodes whose limits must be confirmed for the run to begin."""
_BUDGETS = "/apis/joulie.io/v1alpha1/powerbudgets"
_TWINS = "/apis/joulie.io/v1alpha1/nodetwins"
_PODS = "/api/v1/namespaces/default/pods"
_DECIDE = re.compile(
    r'^joulie_operator_power_budget_decide_duration_seconds_bucket\{le="([^"]+)"\} (\S+)$', re.MULTILINE
)


@dataclass(frozen=True)
class Plan:
    """A run.

    Attributes:
        cases: loads, each on a feed of its own.
        seed: of the loads.
        minutes: length, after a minute that does not count.
        on: the feed.
        kills: whether agents and operators are killed at random.
    """

    cases: Sequence[str]
    seed: int
    minutes: float
    on: Feed
    kills: bool

    @property
    def response_s(self) -> float:
        """Response time of the budgets, s."""
        return KILLED_RESPONSE_S if self.kills else feeds.RESPONSE_S

    def nodes(self, case: str) -> list[str]:
        """Names of the servers on a load's feed."""
        return [f"{key_of(case)}-{index:02d}" for index in range(len(self.on.servers.critical))]


@dataclass
class _Program:
    """A program that can be killed and started again."""

    process: ManagedProcess
    url: str
    down_until_s: float | None = None


@dataclass
class _Watched:
    """When NodeTwins changed, and when their agents confirmed it."""

    changed_s: dict[str, tuple[int, float]] = field(default_factory=dict)
    delays_s: list[float] = field(default_factory=list)
    counting: bool = False

    def on_change(self, key: Key, new: NodeTwin) -> None:
        """Take a NodeTwin into account that was created or changed."""
        now_s, generation = time.monotonic(), new.metadata.generation
        known = self.changed_s.get(key.name)
        if known is None or known[0] < generation:
            # Of two changes in a row the first counts until one of them is confirmed.
            self.changed_s[key.name] = (generation, known[1] if known is not None and known[1] > 0.0 else now_s)
        control = new.status.control_status
        if control is not None and control.observed_generation == generation:
            _, since_s = self.changed_s[key.name]
            if self.counting and since_s > 0.0 and known is not None:
                self.delays_s.append(now_s - since_s)
            self.changed_s[key.name] = (generation, 0.0)


def run_feeds(plan: Plan, tell: Callable[[str], None], logs: Path | None = None) -> PlaneRecord:
    """Play all loads at once in real time, and collect what the simulator recorded.

    Raises:
        UserError: the chart was not found.
    """
    chart = find_chart()
    if chart is None:
        raise UserError("Joulie's chart, which grants the programs' rights, was not found: run this in the source tree")
    with LocalControlPlane(log_folder=logs) as plane, httpx2.Client(timeout=30.0, trust_env=False) as http:
        install_rights(plane, render(plane, chart))
        plane.create_nodes(_nodes(plan))
        demand = plane.folder / "demand.npz"
        _demand(plan).write(demand)
        simulator, programs = free_port(), dict[str, _Program]()
        simulator_url = f"http://{LOOPBACK}:{simulator}"
        programs["simulator"] = _start(
            plane, "simulator", "joulie-simulator", simulator_url, _simulator(simulator, demand)
        )
        plane.create_all(_PODS, _pods(plan))
        for shard in range(SHARDS):
            port, name = free_port(), f"agent-{shard}"
            own = _agent(plane, port, shard, simulator_url)
            programs[name] = _start(plane, name, "joulie-agent-pool", f"http://{LOOPBACK}:{port}", own, "agent")
        for replica in ("a", "b") if plan.kills else ("a",):
            port, name = free_port(), f"operator-{replica}"
            own = _operator(plan, port, simulator_url, replica)
            programs[name] = _start(plane, name, "joulie-operator", f"http://{LOOPBACK}:{port}", own, "operator")
        for name, program in programs.items():
            wait_for(partial(_ready, http, program), _PATIENCE_S, f"{name} is ready", poll_s=0.5)
        tell("programs are ready")
        plane.create_all(_BUDGETS, _budgets(plan))
        expected = len(plan.cases) * len(plan.on.servers.critical)
        enough = round(_SETTLED * expected)  # limits go on changing
        wait_for(lambda: _confirmed(plane) >= enough, _PATIENCE_S, "nodes are under confirmed limits", poll_s=2.0)
        with _watching(plane) as watched:
            http.post(f"{simulator_url}/run/start").raise_for_status()
            tell("simulated time runs")
            killed = _play(plan, programs, http, watched, tell)
        feeds_played = _records(plan, http.get(f"{simulator_url}/debug/demand").raise_for_status().json())
        decide_s = max(_decide_p99_s(http, one) for name, one in programs.items() if name.startswith("operator"))
        return PlaneRecord(feeds_played, np.array(watched.delays_s), decide_s, killed)


def _play(
    plan: Plan, programs: Mapping[str, _Program], http: httpx2.Client, watched: _Watched, tell: Callable[[str], None]
) -> dict[str, int]:
    """Wait for the end of the run, and kill programs at random where the plan says so."""
    rng, killed = np.random.default_rng([plan.seed, 9]), Counter[str]()
    mortal = [name for name in programs if name != "simulator"]
    now_s = began_s = time.monotonic()
    end_s, next_kill_s, next_told_s = began_s + feeds.steps(plan.minutes) + 2.0, began_s + feeds.WARM_UP_S, began_s
    while (now_s := time.monotonic()) < end_s:
        watched.counting = now_s - began_s > feeds.WARM_UP_S
        if plan.kills and now_s >= next_kill_s:
            name = str(rng.choice(mortal))
            program = programs[name]
            if program.process.running:
                program.process.kill()
                program.down_until_s = now_s + DOWN_S
                killed[re.sub(r"-\w+$", "", name)] += 1
            next_kill_s = now_s + rng.uniform(*KILL_EVERY_S)
        for program in programs.values():
            if program.down_until_s is not None and now_s >= program.down_until_s:
                program.process.start()
                program.down_until_s = None
            elif program.down_until_s is None:
                program.process.raise_if_ended()
        if now_s >= next_told_s:
            latest_s = max(watched.delays_s[-500:], default=0.0)
            tell(f"{now_s - began_s:.0f} s: {len(watched.delays_s)} confirmed, lately after {latest_s:.1f} s at most")
            next_told_s = now_s + 60.0
        time.sleep(0.5)
    return dict(killed)


def _start(
    plane: LocalControlPlane, name: str, account: str, url: str, variables: Mapping[str, str], program: str = ""
) -> _Program:
    kubeconfig = plane.kubeconfig_for(account, NAMESPACE, duration_s=_TOKEN_S)
    command = [sys.executable, "-m", "joulie", program or name]
    return _Program(plane.spawn(name, command, environment={"KUBECONFIG": str(kubeconfig), **variables}), url)


def _ready(http: httpx2.Client, program: _Program) -> bool:
    program.process.raise_if_ended()
    try:
        return http.get(f"{program.url}/readyz").status_code == httpx2.codes.OK
    except httpx2.TransportError:
        return False


def _confirmed(plane: LocalControlPlane) -> int:
    """Number of nodes whose agent confirmed what their NodeTwin asks for."""
    twins = plane.request("GET", _TWINS)["items"]
    return sum(
        one.get("status", {}).get("controlStatus", {}).get("observedGeneration") == one["metadata"]["generation"]
        for one in twins
    )


async def _watch(client: KubeClient, watched: _Watched) -> None:
    """Watch the NodeTwins; from any version, since a list would have to wait for a busy API server's cache."""
    while True:
        try:
            async for event in client.watch(NODE_TWINS, "0", timeout_s=3600):
                if event.object is not None:
                    watched.on_change(event.key, event.object)
        except KubernetesError as error:
            _log.warning("NodeTwins not watched, trying again: %s", error)
            await asyncio.sleep(1.0)


@contextmanager
def _watching(plane: LocalControlPlane) -> Iterator[_Watched]:
    """Watch the NodeTwins from a thread of its own."""
    watched, stop = _Watched(), threading.Event()

    async def watch() -> None:
        async with KubeClient.connect(kubeconfig=plane.kubeconfig) as client:
            task = asyncio.create_task(_watch(client, watched))
            await asyncio.to_thread(stop.wait)
            task.cancel()

    thread = threading.Thread(target=lambda: asyncio.run(watch()), daemon=True)
    thread.start()
    try:
        yield watched
    finally:
        stop.set()
        thread.join(10.0)


def _demand(plan: Plan) -> Demand:
    nodes, shares, losses = [], [], []
    for case in plan.cases:
        share, lost = demanded(CASES[case], plan.seed, feeds.steps(plan.minutes), plan.on)
        nodes += plan.nodes(case)
        shares.append(share)
        is_lost = np.zeros(share.shape, dtype=np.bool_)
        is_lost[max(lost.start, 0) : max(lost.stop, 0)] = True
        losses.append(is_lost)
    return Demand(tuple(nodes), np.concatenate(shares, axis=1), np.concatenate(losses, axis=1))


def _records(plan: Plan, answer: Mapping[str, Any]) -> dict[str, Record]:
    column = {name: index for index, name in enumerate(answer["nodes"])}
    power_w, rate = (np.array(answer[name], dtype=np.float64) for name in ("powerWatts", "rate"))
    found = {}
    for case in plan.cases:
        mine = [column[name] for name in plan.nodes(case)]
        found[key_of(case)] = Record(power_w[:, mine], rate[:, mine])
    return found


def _decide_p99_s(http: httpx2.Client, program: _Program) -> float:
    """99th percentile of the duration of decisions, upper edge of its bucket, s; 0 without an answer."""
    try:
        text = http.get(f"{program.url}/metrics").raise_for_status().text
    except httpx2.HTTPError:
        return 0.0
    buckets = [(float(edge), float(count)) for edge, count in _DECIDE.findall(text)]
    total = max((count for _, count in buckets), default=0.0)
    return min((edge for edge, count in buckets if total and count >= 0.99 * total), default=0.0)


def _nodes(plan: Plan) -> Iterator[dict[str, Any]]:
    for case in plan.cases:
        labels = {
            names.MANAGED_LABEL: "true",
            names.RACK_LABEL: key_of(case),
            names.HW_CPU_MODEL_LABEL: feeds.CPU_MODEL,
            names.HW_CPU_SOCKETS_LABEL: str(feeds.SOCKETS),
            names.HW_GPU_MODEL_LABEL: feeds.GPU_MODEL,
            names.HW_GPU_COUNT_LABEL: str(feeds.GPUS),
        }
        for name in plan.nodes(case):
            yield kwok_node(
                name, labels=labels, allocatable={"cpu": f"{feeds.CORES:g}", "nvidia.com/gpu": str(feeds.GPUS)}
            )


def _pods(plan: Plan) -> Iterator[dict[str, Any]]:
    """A performance pod on each critical server; what the servers draw is given by the demand."""
    gpus = {"nvidia.com/gpu": str(feeds.GPUS)}
    container = {"name": "main", "image": "none", "resources": {"requests": gpus, "limits": gpus}}
    for case in plan.cases:
        for name, critical in zip(plan.nodes(case), plan.on.servers.critical.tolist(), strict=True):
            if critical:
                yield {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {"name": name, "annotations": {names.WORKLOAD_CLASS_ANNOTATION: "performance"}},
                    "spec": {"nodeName": name, "containers": [container], "terminationGracePeriodSeconds": 0},
                }


def _budgets(plan: Plan) -> Iterator[dict[str, Any]]:
    rating_w = round(plan.on.settings.rating_w)
    for case in plan.cases:
        yield {
            "apiVersion": "joulie.io/v1alpha1",
            "kind": "PowerBudget",
            "metadata": {"name": key_of(case)},
            "spec": {
                "watts": float(round(feeds.TARGET * rating_w)),
                "nodeSelector": {names.RACK_LABEL: key_of(case)},
                "responseSeconds": plan.response_s,
                "breaker": {"ratedWatts": float(rating_w), "readingErrorPercent": 0.0},
            },
        }


def _simulator(port: int, demand: Path) -> dict[str, str]:
    return {
        "SIM_ADDR": f"{LOOPBACK}:{port}",
        "SIM_TICK_INTERVAL": "500ms",
        "SIM_START": "on-request",
        "SIM_COOLING": "none",
        "SIM_DEMAND_PATH": str(demand),
    }


def _agent(plane: LocalControlPlane, port: int, shard: int, simulator_url: str) -> dict[str, str]:
    state = plane.folder / f"agent-{shard}"
    state.mkdir()
    devices = simulated_devices(simulator_url) | {"POOL_SHARD_ID": str(shard)}
    return {
        "RECONCILE_INTERVAL": f"{AGENT_CYCLE_S:g}s",
        "METRICS_ADDR": f"{LOOPBACK}:{port}",
        "STATE_DIR": str(state),
        "POOL_SHARDS": str(SHARDS),
        **devices,
    }


def _operator(plan: Plan, port: int, simulator_url: str, replica: str) -> dict[str, str]:
    return {
        "MODE": "enforce",
        "METRICS_ADDR": f"{LOOPBACK}:{port}",
        "POD_NAME": f"operator-{replica}",
        "TELEMETRY_HTTP_ENDPOINT": f"{simulator_url}/telemetry",
        "POWER_SOURCES": "http",
        "POWER_POLL_INTERVAL": f"{READ_S:g}s",
        "POWER_STALE_AFTER": "30s",
        "POWER_BUDGET_INTERVAL": f"{READ_S:g}s",
        "POWER_BUDGET_OTHER_PCT": f"{feeds.OTHER_PCT:g}",
        "AGENT_POD_SELECTOR": "",
        "LEADER_ELECT": "true" if plan.kills else "false",
        "POLICY_TYPE": "static_partition",
        "STATIC_HP_FRAC": "1",
        "RECONCILE_INTERVAL": "30s",
    }
