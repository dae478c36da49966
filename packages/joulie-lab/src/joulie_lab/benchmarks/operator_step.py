"""Time of an operator's step, and its memory, by size of the cluster; and of a decision about many power budgets.

The operator's caches list the cluster over HTTP from the fake API server, which runs in a process of its own, so that
the memory measured is the operator's alone. A step decides from a snapshot and compares the decision with what is
stored about each node. In a calm one power varies by 0.1 % and nothing has to be written; in a busy one the power of
every node jumps, and every NodeTwin was written since the step before; what the watch's news of those writes costs,
between the steps, is measured on its own. Every node is under a power budget. Times of a step are CPU time of its one
thread, which a busy machine blurs little.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from msgspec.structs import replace as replace_fields

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.api.meta import ObjectMeta, OwnerReference
from joulie.adapters.kubernetes.api.v1alpha1 import NodeTwin
from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.control_reports import requests_cap
from joulie.adapters.kubernetes.events import EventRecorder
from joulie.adapters.kubernetes.resources import NODE_TWINS, NODES
from joulie.apps.operator.apply import NODES_PER_YIELD, Publisher
from joulie.apps.operator.desired import desired_node, with_timestamps
from joulie.apps.operator.leader import Leader
from joulie.apps.operator.observe import ClusterView
from joulie.apps.operator.settings import OperatorSettings
from joulie.collector import spare_what_lives_long
from joulie.domain.capping.budgets import Budget, BudgetMemory, BudgetNodes, decide_budgets
from joulie.domain.capping.node_limits import PowerCeiling
from joulie.domain.control import Decision, Facility, Memory, decide
from joulie.domain.control_power import SourceReadings
from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie.domain.policies import POLICIES
from joulie.domain.units import FloatArray
from joulie_lab.benchmarks.results import Figures
from joulie_lab.fakes.kubernetes.api import Writer
from joulie_lab.fakes.kubernetes.cluster import FakeCluster

SIZES = (1_000, 5_000, 10_000)
"""Numbers of nodes."""
BUDGETS = 500
"""Number of PowerBudgets over all nodes that one decision is about: racks in rows in a hall."""

_GPUS = (None, "NVIDIA-H100-NVL", "NVIDIA-L40S")


class Step(Figures, frozen=True):
    """CPU time of a step, medians, ms: to decide, to compare with what is stored, and both."""

    decide_ms: float
    compare_ms: float
    step_ms: float


class SizeFigures(Figures, frozen=True):
    """Figures of one size of cluster.

    Attributes:
        nodes: number of nodes.
        pods: number of pods.
        sync_s: time until the caches were filled, s.
        calm: a step in which nothing has to be written.
        busy: a step in which every node has to be written.
        watch_ms: CPU time of the watch's news of all NodeTwins and labels that were written, median, ms.
        budgets_ms: CPU time of a decision about the power budgets, median, ms.
        resident_mb: resident memory of the operator, MiB.
    """

    nodes: int
    pods: int
    sync_s: float
    calm: Step
    busy: Step
    watch_ms: float
    budgets_ms: float
    resident_mb: float


class OperatorStepResult(Figures, frozen=True):
    """Figures by number of nodes; `steps` calm and as many busy steps, `budgets` power budgets."""

    steps: int
    budgets: int
    sizes: Mapping[str, SizeFigures]


def _node(index: int) -> dict[str, Any]:
    labels = {
        "joulie.io/managed": "true",
        "joulie.io/hw.cpu-model": "AMD-EPYC-9654",
        "joulie.io/hw.cpu-sockets": "2",
        "joulie.io/rack": f"rack-{index // 40}",
        "joulie.io/cooling-zone": f"zone-{index // 1000}",
        "kubernetes.io/hostname": f"node-{index:05d}",
        "topology.kubernetes.io/zone": "a",
    }
    gpu = _GPUS[index % 3]
    if gpu is not None:
        labels |= {"joulie.io/hw.gpu-model": gpu, "joulie.io/hw.gpu-count": "4"}
    allocatable = {"cpu": "192", "memory": "1Ti", "pods": "110"} | ({"nvidia.com/gpu": "4"} if gpu else {})
    return {
        "metadata": {"name": f"node-{index:05d}", "labels": labels},
        "status": {"allocatable": allocatable, "capacity": allocatable},
    }


def _pod(index: int, nodes: int) -> dict[str, Any]:
    performance = index % 5 == 0
    environment = [{"name": f"VARIABLE_{number}", "value": "some text of usual length"} for number in range(10)]
    container = {
        "name": "main",
        "image": "registry.example/team/image:v1",
        "env": environment,
        "resources": {"requests": {"cpu": "4", "memory": "16Gi"}},
    }
    return {
        "metadata": {
            "name": f"job-{index // 10:05d}-{index:06d}",
            "namespace": "default",
            "labels": {"app": f"app-{index % 100}"},
            "annotations": {"joulie.io/workload-class": "performance"} if performance else {},
            "ownerReferences": [
                {
                    "apiVersion": "batch/v1",
                    "kind": "Job",
                    "name": f"job-{index // 10:05d}",
                    "uid": f"{index // 10}",
                    "controller": True,
                }
            ],
        },
        "spec": {"nodeName": f"node-{index % nodes:05d}", "containers": [container]},
        "status": {"phase": "Running"},
    }


def _serve(pipe: Connection, nodes: int, pods: int) -> None:
    async def main() -> None:
        async with FakeCluster() as fake:
            node_kind, pod_kind = fake.api.kind("", "v1", "nodes"), fake.api.kind("", "v1", "pods")
            for index in range(nodes):
                fake.api.create(node_kind, "", _node(index), Writer("benchmark"))
            for index in range(pods):
                fake.api.create(pod_kind, "default", _pod(index, nodes), Writer("benchmark"))
            pipe.send(str(fake.kubeconfig(Path(tempfile.mkdtemp()) / "kubeconfig")))
            await asyncio.to_thread(pipe.recv)

    asyncio.run(main())


def _budgets_s(nodes: int, steps: int) -> float:
    """Median CPU time of a decision about `BUDGETS` nested power budgets, s."""
    rng, full_w = np.random.default_rng(0), np.full(nodes, 6_446.0)
    names = tuple(f"node-{index:05d}" for index in range(nodes))
    critical = np.arange(nodes) % 3 == 0
    seen = BudgetNodes(
        names, critical, 0.55 * full_w, full_w, 0.8 * full_w, 0.8 * full_w, np.ones(nodes, dtype=np.bool_),
        full_w * rng.uniform(0.4, 0.8, nodes), np.zeros(nodes), np.zeros(nodes, dtype=np.int64),
    )  # fmt: skip
    racks, rows = BUDGETS * 9 // 10, BUDGETS // 10 - 1
    parts = [*np.array_split(np.arange(nodes), racks), *np.array_split(np.arange(nodes), rows), np.arange(nodes)]
    budgets = [
        Budget(f"budget-{index}", 0.85 * 6_446.0 * part.size, part) for index, part in enumerate(parts) if part.size
    ]
    memory: Mapping[str, BudgetMemory] = {}
    times_s = []
    for step in range(steps):
        began = time.thread_time()
        memory = decide_budgets(2.0 * step, seen, budgets, memory).memory
        times_s.append(time.thread_time() - began)
    return median(times_s)


def _resident_mb() -> float:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024.0
    raise RuntimeError("/proc/self/status has no VmRSS")


class _Operator:
    """The operator's step, timed, on a view of the cluster."""

    def __init__(self, client: KubeClient, view: ClusterView, settings: OperatorSettings) -> None:
        self.view = view
        self.settings = settings
        self.policy = POLICIES["queue_aware_v1"](settings.policy)
        self.now_s = 1.8e9
        self.memory = Memory()
        self.ceilings: dict[str, PowerCeiling] = {}
        leader = Leader(client, view, settings, EventRecorder(client, ""), lambda: False, lambda: self.now_s)
        self.publisher = Publisher(leader, wrote=lambda _kind: None, ceiling=lambda node: self.ceilings[node])

    def step(self, power_w: FloatArray) -> tuple[Decision, float, float, int]:
        """One step at these powers: the decision, CPU time to decide and to compare (s), and nodes to write."""
        self.now_s += 5.0
        nodes = [one.name for one in self.view.nodes]
        samples = {name: (self.now_s - 0.5, watts) for name, watts in zip(nodes, power_w.tolist(), strict=True)}
        self.ceilings = {name: PowerCeiling(300.0, 290.0) for name in nodes}
        began_s = time.thread_time()
        readings = [SourceReadings.of("http", nodes, samples)]
        snapshot = replace(self.view.snapshot(self.memory, readings, Facility(), self.now_s), ceilings=self.ceilings)
        decision = decide(snapshot, self.memory, self.settings.control, self.policy)
        decided_s = time.thread_time()
        self.publisher.adopt(decision)
        needs = [self.publisher.needs(decision, first) for first in range(0, len(nodes), NODES_PER_YIELD)]
        compared_s = time.thread_time()
        self.memory = decision.memory
        return decision, decided_s - began_s, compared_s - decided_s, sum(map(len, needs))

    def stored(self, decision: Decision) -> float:
        """Show the decision as written, as the watch would: CPU time of its listeners and caches, s."""
        heard_s = 0.0
        for index, node in enumerate(decision.nodes):
            name = node.node.name
            facts = self.view.node(name)
            if facts is None:
                raise RuntimeError(f"node {name} is not in the view")
            wanted = desired_node(decision, index, ceiling=self.ceilings[name])
            written = NodeTwin(
                metadata=ObjectMeta(
                    name=name,
                    owner_references=(OwnerReference(api_version="v1", kind="Node", name=name, uid=facts.uid),),
                ),
                spec=wanted.spec,
                status=with_timestamps(wanted.status, None, self.now_s),
            )
            began_s = time.thread_time()
            # What the watch does with an object that it was sent.
            self.view.caches[NODE_TWINS.plural]._put(Key("", name), written)
            labels = dict(facts.labels)
            if requests_cap(wanted.spec):
                labels[names.RESTORE_PENDING_LABEL] = "true"
            seen = replace_fields(
                facts, labels=labels, profile_label=wanted.profile_label, draining_label=wanted.draining_label
            )
            self.view.caches[NODES.plural].update(Key("", name), seen)
            heard_s += time.thread_time() - began_s
        return heard_s


def _medians(times_s: Sequence[Sequence[float]]) -> Step:
    """Of steps' times to decide and to compare, s."""
    decide_s, compare_s = zip(*times_s, strict=True)
    return Step(_ms(decide_s), _ms(compare_s), _ms([sum(times) for times in times_s]))


def _ms(times_s: Sequence[float]) -> float:
    return round(median(times_s) * 1e3, 1)


async def _measure(kubeconfig: Path, nodes: int, pods: int, steps: int) -> SizeFigures:
    settings = OperatorSettings(kubeconfig=kubeconfig)
    rng = np.random.default_rng(0)
    async with KubeClient.connect(kubeconfig=kubeconfig) as client:
        view = ClusterView(client, settings, BUILTIN_CATALOGUE)
        watching = asyncio.create_task(view.run())
        began = time.perf_counter()
        await view.wait_synced()
        sync_s = time.perf_counter() - began
        watching.cancel()
        spare_what_lives_long()
        operator = _Operator(client, view, settings)
        usual_w = rng.uniform(200, 700, nodes)
        # Until drains have settled, every node is written and shown.
        for _ in range(3):
            operator.now_s += 60.0
            operator.stored(operator.step(usual_w)[0])
        spare_what_lives_long()
        calm, busy, heard_s = [], [], []
        for _ in range(steps):
            _, *times, written = operator.step(usual_w * rng.uniform(0.999, 1.001, nodes))
            if written:
                raise RuntimeError(f"{written} nodes to write in a calm step")
            calm.append(times)
        for _ in range(steps):
            decision, *times, written = operator.step(rng.uniform(200, 700, nodes))
            if written <= 0.9 * nodes:
                raise RuntimeError(f"only {written} nodes to write in a busy step")
            busy.append(times)
            heard_s.append(operator.stored(decision))
    resident = _resident_mb()
    return SizeFigures(
        nodes=nodes,
        pods=pods,
        sync_s=round(sync_s, 2),
        calm=_medians(calm),
        busy=_medians(busy),
        watch_ms=_ms(heard_s),
        budgets_ms=round(_budgets_s(nodes, steps) * 1e3, 1),
        resident_mb=round(resident, 1),
    )


def _in_own_process(pipe: Connection, kubeconfig: Path, nodes: int, pods: int, steps: int) -> None:
    pipe.send(asyncio.run(_measure(kubeconfig, nodes, pods, steps)))


def measure(sizes: Sequence[int], pods_per_node: int, steps: int, tell: Callable[[str], None]) -> OperatorStepResult:
    """Measure clusters of these sizes, one after the other.

    Args:
        sizes: numbers of nodes.
        pods_per_node: number of pods on each node.
        steps: number of calm and of busy steps.
        tell: told which size is measured.

    Raises:
        EOFError: a process failed; it has printed why.
    """
    found = {}
    for nodes in sizes:
        tell(f"{nodes:,} nodes")
        found[str(nodes)] = _of_size(nodes, nodes * pods_per_node, steps)
    return OperatorStepResult(steps, BUDGETS, found)


def _of_size(nodes: int, pods: int, steps: int) -> SizeFigures:
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    server = spawn.Process(target=_serve, args=(theirs, nodes, pods), daemon=True)
    server.start()
    theirs.close()
    kubeconfig = Path(ours.recv())
    mine, yours = spawn.Pipe()
    measured = spawn.Process(target=_in_own_process, args=(yours, kubeconfig, nodes, pods, steps), daemon=True)
    measured.start()
    yours.close()  # so that a failure there ends this, too
    found: SizeFigures = mine.recv()
    measured.join()
    ours.send("done")
    server.join()
    return found
