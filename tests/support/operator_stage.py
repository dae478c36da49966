"""An operator against the fake cluster that steps when it is told to: real requests, schemas held, its own clock."""

import asyncio
import dataclasses
from collections import Counter
from contextlib import asynccontextmanager

import httpx2

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.client import KubeClient, RetryPolicy
from joulie.adapters.kubernetes.connection import connect
from joulie.adapters.kubernetes.resources import NODE_TWINS, NODES, PODS
from joulie.apps.operator.loop import ControlLoop
from joulie.apps.operator.metrics import OperatorMetrics
from joulie.apps.operator.observe import ClusterView
from joulie.apps.operator.power.wiring import Clients
from joulie.apps.operator.settings import OperatorSettings
from joulie.domain.cooling_stress import linear_cooling_stress
from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie.domain.policies import POLICIES
from joulie.domain.policy import PolicySettings
from joulie.program.settings import settings_from
from joulie_lab.adapters.crd import custom_resource_definitions
from joulie_lab.fakes.kubernetes import FakeCluster

N1, N2 = "ip-10-0-0-1.eu-west-1.compute.internal", "node-2"
LABELS = {"joulie.io/managed": "true", "joulie.io/hw.cpu-model": "AMD-EPYC-9654", "joulie.io/hw.cpu-sockets": "2"}
EPOCH_S = 1_800_000_000.0


async def until(condition):
    async with asyncio.timeout(60.0):
        while not (met := condition()):
            await asyncio.sleep(0)
        return met


class Stage:
    """An operator that steps when it is told to."""

    def __init__(self, cluster, client, settings, *, transport=None):
        self.cluster, self.client, self.settings = cluster, client, settings
        self.now_s = EPOCH_S
        self.leading = True
        self.wake = asyncio.Event()
        self.view = ClusterView(client, settings, BUILTIN_CATALOGUE, wake=self.wake.set)
        self.http = httpx2.AsyncClient(transport=transport)
        self.prometheus = None
        self.start()

    def start(self):
        """A new term: nothing is remembered."""
        self.metrics = OperatorMetrics()
        self.loop = ControlLoop(
            self.settings, BUILTIN_CATALOGUE, Clients(self.client, self.http, self.prometheus), self.view, self.wake,
            self.metrics,
            policy=POLICIES[self.settings.policy_type](self.settings.policy), cooling=linear_cooling_stress,
            may_write=lambda: self.leading, now_s=lambda: self.now_s,
        )  # fmt: skip

    async def step(self, passed_s=0.0, *, result="success"):
        """One step, and the caches have seen what it wrote. Returns what it wrote."""
        self.now_s += passed_s
        before = self.writes()
        self.wake.clear()
        steps = self.steps(result)
        await self.loop.step()
        assert self.steps(result) == steps + 1.0
        await self.caught_up()
        return self.writes() - before

    def steps(self, result):
        found = self.metrics.registry.get_sample_value("joulie_operator_reconciles_total", {"result": result})
        return found or 0.0

    async def caught_up(self):
        twins = {item.metadata.name: item for item in (await self.client.list(NODE_TWINS)).items}
        nodes = {item.metadata.name: item for item in (await self.client.list(NODES)).items}
        await until(
            lambda: (
                {key.name: twin.metadata.resource_version for key, twin in self.view.twins.items()}
                == {name: twin.metadata.resource_version for name, twin in twins.items()}
                and all(
                    (facts := self.view.node(name)) is not None
                    and facts.uid == node.metadata.uid
                    and facts.profile_label == node.metadata.labels.get(names.POWER_PROFILE_LABEL)
                    and facts.managed == self.settings.selector.matches(node.metadata.labels)
                    for name, node in nodes.items()
                )
            )
        )

    def writes(self):
        return Counter(
            {
                sample.labels["kind"]: int(sample.value)
                for family in self.metrics.writes.collect()
                for sample in family.samples
                if sample.name.endswith("_total")
            }
        )

    async def add_node(self, name, *, cpus="192", **labels):
        status = {"allocatable": {"cpu": cpus}}
        await self.client.create(NODES, {"metadata": {"name": name, "labels": LABELS | labels}, "status": status})
        await until(lambda: self.view.node(name))

    async def add_pod(self, name, node="", *, priority=None, **annotations):
        spec = {"nodeName": node, "containers": [{"name": "c"}]}
        if priority is not None:
            spec["priority"] = priority
        meta = {"name": name, "annotations": {key.replace("_", "-"): value for key, value in annotations.items()}}
        meta["annotations"] = {f"joulie.io/{key}": value for key, value in meta["annotations"].items()}
        await self.client.create(PODS, {"metadata": meta, "spec": spec, "status": {"phase": "Running"}}, "default")

    async def report(self, name, control):
        """A node's agent reports the state of its limits."""
        body, manager = {"status": {"controlStatus": control}}, names.AGENT_FIELD_MANAGER
        await self.client.apply(NODE_TWINS, names.object_name(name), body, field_manager=manager, subresource="status")

    async def twin(self, name):
        return await self.client.get(NODE_TWINS, names.object_name(name))


@asynccontextmanager
async def staged(tmp_path, environment=None, *, kind=Stage, **settings):
    """A stage of a kind, on a fake cluster of its own, whose operator has these settings."""
    values = {"agent_pod_selector": "", "policy": PolicySettings(static_hp_frac=0.5), **settings}
    async with FakeCluster(custom_resource_definitions()) as cluster:
        kubeconfig = cluster.kubeconfig(tmp_path / "kubeconfig")
        retry = RetryPolicy(attempts=2, initial_wait_s=0.001)
        async with KubeClient(connect(kubeconfig=kubeconfig), retry=retry) as client:
            read = settings_from(OperatorSettings, {"POLICY_TYPE": "static_partition"} | (environment or {}))
            stage = kind(cluster, client, dataclasses.replace(read, **values))
            watching = asyncio.create_task(stage.view.run())
            try:
                await stage.view.wait_synced()
                yield stage
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
                await stage.http.aclose()


def play(body, tmp_path, **settings):
    async def main():
        async with staged(tmp_path, **settings) as stage:
            await body(stage)

    asyncio.run(main())
