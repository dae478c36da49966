"""B6, operator: time from snapshot to decision and memory, by size of the cluster, and of a decision about budgets.

    python benchmarks/operator_step.py [--nodes 1000 --nodes 10000] [--pods-per-node 10] [--steps 20]

The operator's caches list the cluster over HTTP from the fake API server, which runs in a process of its own, so that
the memory measured is the operator's alone. Times of a step are CPU time of its one thread, which a busy machine does
not blur. Prints one JSON object a size; exits with 1 if a target is missed.
"""

from __future__ import annotations

import asyncio
import gc
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np

from joulie.adapters.kubernetes.client import KubeClient
from joulie.apps.operator.desired import desired_node, status_matches
from joulie.apps.operator.observe import ClusterView
from joulie.apps.operator.settings import OperatorSettings
from joulie.domain.capping.budgets import Budget, BudgetMemory, BudgetNodes, decide_budgets
from joulie.domain.control import Facility, Memory, decide
from joulie.domain.control_power import SourceReadings
from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie.domain.policy import POLICIES
from joulie_lab.fakes.kubernetes.api import Writer
from joulie_lab.fakes.kubernetes.cluster import FakeCluster

TARGET_NODES = 10_000
TARGET_DECIDE_S = 0.150
TARGET_MEMORY_MB = 700.0
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


async def measure(kubeconfig: Path, nodes: int, pods: int, steps: int) -> dict[str, float]:
    settings = OperatorSettings(kubeconfig=kubeconfig)
    policy, rng = POLICIES["queue_aware_v1"](settings.policy), np.random.default_rng(0)
    async with KubeClient.connect(kubeconfig=kubeconfig) as client:
        view = ClusterView(client, settings, BUILTIN_CATALOGUE)
        watching = asyncio.create_task(view.run())
        began = time.perf_counter()
        await view.wait_synced()
        sync_s = time.perf_counter() - began
        gc.collect()
        gc.freeze()
        memory, decide_s, compare_s = Memory(), [], []
        now_s = 1.8e9
        statuses: list[Any] = []
        for _ in range(steps):
            now_s += 60.0
            names = [one.name for one in view.nodes]
            samples = {
                name: (now_s - 5.0, watts) for name, watts in zip(names, rng.uniform(200, 700, len(names)), strict=True)
            }
            began = time.thread_time()
            readings = [SourceReadings.of("http", names, samples)]
            decision = decide(view.snapshot(memory, readings, Facility(), now_s), memory, settings.control, policy)
            decide_s.append(time.thread_time() - began)
            memory = decision.memory
            began = time.thread_time()
            wanted = [desired_node(decision, index) for index in range(len(decision.nodes))]
            _ = [status_matches(one.status, old) for one, old in zip(wanted, statuses, strict=False)]
            compare_s.append(time.thread_time() - began)
            statuses = [one.status for one in wanted]
        watching.cancel()
    resident = resident_mb()
    return {
        "nodes": nodes,
        "pods": pods,
        "sync_s": round(sync_s, 2),
        "decide_median_ms": round(median(decide_s) * 1e3, 1),
        "decide_max_ms": round(max(decide_s) * 1e3, 1),
        "compare_median_ms": round(median(compare_s) * 1e3, 1),
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
    """Time from snapshot to decision, and memory, by size of the cluster."""
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
        result = mine.recv()
        measured.join()
        ours.send("done")
        server.join()
        print(json.dumps(result), flush=True)
        if nodes <= TARGET_NODES:
            missed |= result["decide_median_ms"] > TARGET_DECIDE_S * 1e3 or result["resident_mb"] > TARGET_MEMORY_MB
            missed |= result["budgets_median_ms"] > TARGET_BUDGETS_S * 1e3
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
