"""B6, operator: time of a step and memory, by size of the cluster, and of a decision about budgets.

    python benchmarks/operator_step.py [--nodes 1000 --nodes 10000] [--pods-per-node 10] [--steps 20]

The operator's caches list the cluster over HTTP from the fake API server, which runs in a process of its own, so that
the memory measured is the operator's alone. A step decides from a snapshot and compares the decision with what is
stored about each node. In a calm one power varies by 0.1 % and nothing has to be written; in a busy one the power of
every node jumps, and every NodeTwin was written since the step before; what the watch's news of those writes costs,
between the steps, is measured on its own. Every node is under a power budget. Times of a step are CPU time of its one
thread, which a busy machine blurs little. Prints one JSON object a size; exits with 1 if a target is missed.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np
from msgspec.structs import replace as replace_fields

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.api.meta import ObjectMeta, OwnerReference
from joulie.adapters.kubernetes.api.v1alpha1 import NodeTwin
from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.control_reports import requests_cap
from joulie.adapters.kubernetes.resources import NODE_TWINS, NODES
from joulie.apps.operator.apply import NODES_PER_YIELD, Publisher
from joulie.apps.operator.desired import desired_node, with_timestamps
from joulie.apps.operator.observe import ClusterView
from joulie.apps.operator.settings import OperatorSettings
from joulie.domain.capping.budgets import Budget, BudgetMemory, BudgetNodes, decide_budgets
from joulie.domain.capping.node_limits import PowerCeiling
from joulie.domain.control import Decision, Facility, Memory, decide
from joulie.domain.control_power import SourceReadings
from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie.domain.policies import POLICIES
from joulie.domain.units import FloatArray
from joulie.program.collector import spare_what_lives_long
from joulie_lab.fakes.kubernetes.api import Writer
from joulie_lab.fakes.kubernetes.cluster import FakeCluster

TARGET_NODES = 10_000
TARGET_STEP_S = 0.300
TARGET_MEMORY_MB = 300.0
BUDGETS = 500
TARGET_BUDGETS_S = 0.300
"""CPU time of a decision about so many PowerBudgets over all nodes: racks in rows in a hall."""

_GPUS = (None, "NVIDIA-H100-NVL", "NVIDIA-L40S")


def node(index: int) -> dict[str, Any]:
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


def pod(index: int, nodes: int) -> dict[str, Any]:
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


def serve(pipe: Connection, nodes: int, pods: int) -> None:
    async def main() -> None:
        async with FakeCluster() as fake:
            node_kind, pod_kind = fake.api.kind("", "v1", "nodes"), fake.api.kind("", "v1", "pods")
            for index in range(nodes):
                fake.api.create(node_kind, "", node(index), Writer("benchmark"))
            for index in range(pods):
                fake.api.create(pod_kind, "default", pod(index, nodes), Writer("benchmark"))
            pipe.send(str(fake.kubeconfig(Path(tempfile.mkdtemp()) / "kubeconfig")))
            await asyncio.to_thread(pipe.recv)

    asyncio.run(main())


def budgets_s(nodes: int, steps: int) -> float:
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


def resident_mb() -> float:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024.0
    raise RuntimeError("/proc/self/status has no VmRSS")


class Operator:
    """The operator's step, timed, on a view of the cluster."""

    def __init__(self, client: KubeClient, view: ClusterView, settings: OperatorSettings) -> None:
        self.view = view
        self.settings = settings
        self.policy = POLICIES["queue_aware_v1"](settings.policy)
        self.now_s = 1.8e9
        self.memory = Memory()
        self.ceilings: dict[str, PowerCeiling] = {}
        self.publisher = Publisher(
            client,
            view,
            settings,
            may_write=lambda: False,
            wrote=lambda _kind: None,
            now_s=lambda: self.now_s,
            ceiling=lambda node: self.ceilings[node],
        )

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
            assert facts is not None
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


def spread(name: str, times_s: Sequence[float]) -> dict[str, float]:
    """Least and median of some times, ms."""
    return {
        f"{name}_least_ms": round(min(times_s) * 1e3, 1),
        f"{name}_median_ms": round(median(times_s) * 1e3, 1),
    }


async def measure(kubeconfig: Path, nodes: int, pods: int, steps: int) -> dict[str, float]:
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
        operator = Operator(client, view, settings)
        usual_w = rng.uniform(200, 700, nodes)
        # Until drains have settled, every node is written and shown.
        for _ in range(3):
            operator.now_s += 60.0
            operator.stored(operator.step(usual_w)[0])
        spare_what_lives_long()
        calm, busy, heard_s = [], [], []
        for _ in range(steps):
            _, *times, written = operator.step(usual_w * rng.uniform(0.999, 1.001, nodes))
            assert written == 0, f"{written} nodes to write in a calm step"
            calm.append(times)
        for _ in range(steps):
            decision, *times, written = operator.step(rng.uniform(200, 700, nodes))
            assert written > 0.9 * nodes, f"only {written} nodes to write in a busy step"
            busy.append(times)
            heard_s.append(operator.stored(decision))
    resident = resident_mb()
    return {
        "nodes": nodes,
        "pods": pods,
        "sync_s": round(sync_s, 2),
        **spread("calm_decide", [decide_s for decide_s, _ in calm]),
        **spread("calm_compare", [compare_s for _, compare_s in calm]),
        **spread("calm_step", [sum(times) for times in calm]),
        **spread("busy_decide", [decide_s for decide_s, _ in busy]),
        **spread("busy_compare", [compare_s for _, compare_s in busy]),
        **spread("busy_step", [sum(times) for times in busy]),
        **spread("busy_watch", heard_s),
        "budgets": BUDGETS,
        "budgets_median_ms": round(budgets_s(nodes, steps) * 1e3, 1),
        "resident_mb": round(resident, 1),
    }


def in_own_process(pipe: Connection, kubeconfig: Path, nodes: int, pods: int, steps: int) -> None:
    pipe.send(asyncio.run(measure(kubeconfig, nodes, pods, steps)))


@click.command()
@click.option("--nodes", "sizes", multiple=True, type=int, default=(1_000, 5_000, TARGET_NODES), show_default=True)
@click.option("--pods-per-node", default=10, show_default=True)
@click.option("--steps", default=20, show_default=True)
def main(sizes: tuple[int, ...], pods_per_node: int, steps: int) -> None:
    """Time of a step, and memory, by size of the cluster."""
    spawn = multiprocessing.get_context("spawn")
    missed = False
    for nodes in sizes:
        pods = nodes * pods_per_node
        ours, theirs = spawn.Pipe()
        server = spawn.Process(target=serve, args=(theirs, nodes, pods))
        server.start()
        kubeconfig = Path(ours.recv())
        mine, yours = spawn.Pipe()
        measured = spawn.Process(target=in_own_process, args=(yours, kubeconfig, nodes, pods, steps))
        measured.start()
        yours.close()  # so that a failure there ends this, too
        result = mine.recv()
        measured.join()
        ours.send("done")
        server.join()
        print(json.dumps(result), flush=True)
        if nodes <= TARGET_NODES:
            missed |= result["calm_step_median_ms"] > TARGET_STEP_S * 1e3
            missed |= result["busy_step_median_ms"] > TARGET_STEP_S * 1e3
            missed |= result["resident_mb"] > TARGET_MEMORY_MB
            missed |= result["budgets_median_ms"] > TARGET_BUDGETS_S * 1e3
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
