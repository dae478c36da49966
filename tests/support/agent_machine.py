"""A machine for agents to run on: a sysfs tree, a fake cluster, and the agent as its program composes it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from joulie.adapters.kubernetes.api.v1alpha1 import ControlResult, ControlStatus, NodeHardware, NodeTwin
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import NotFoundError
from joulie.adapters.kubernetes.names import object_name
from joulie.adapters.kubernetes.resources import NODE_HARDWARES, NODE_TWINS, NODES
from joulie.apps.agent.main import serve
from joulie.apps.agent.settings import AgentSettings
from joulie.domain.dvfs import DvfsSettings
from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie_lab.adapters.crd import custom_resource_definitions
from joulie_lab.fakes.kubernetes import FakeCluster
from support.sysfs_trees import add_topology, zone_file

INTEL = "vendor_id\t: GenuineIntel\nmodel name\t: INTEL(R) XEON(R) GOLD 6530\n"
AMD = "vendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC 9654 96-Core Processor\n"
PATIENCE_S = 180.0


@dataclass
class Machine:
    """Directories that stand for a host, and the settings of its agent."""

    root: Path
    node: str = "node-1"
    cpuinfo: str = INTEL
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sys = self.root / "sys"
        self.sys.mkdir()
        self.proc = self.root / "proc"
        (self.proc / "sys/kernel/random").mkdir(parents=True)
        (self.proc / "sys/kernel/random/boot_id").write_text("00000001-8b1c-4ec5-9d3a-70f4cc4f9f8a\n")
        (self.proc / "cpuinfo").write_text(self.cpuinfo)
        add_topology(self.sys, cpus=8, sockets=2)

    def limit_w(self, zone: str = "intel-rapl:0") -> float:
        return _number(self.limit_file(zone)) / 1e6

    def set_limit_w(self, limit_w: float, zone: str = "intel-rapl:0") -> None:
        # In one piece and of one length, as sysfs does it: a plain file that is cut first reads empty for a moment.
        with self.limit_file(zone).open("r+b", buffering=0) as file:
            file.write(f"{round(limit_w * 1e6):09}".encode())

    def limit_file(self, zone: str) -> Path:
        return zone_file(self.sys, zone, "constraint_0_power_limit_uw")

    def max_khz(self, policy: int = 0) -> int:
        return _number(self.sys / f"devices/system/cpu/cpufreq/policy{policy}/scaling_max_freq")

    @property
    def saved(self) -> str:
        file = self.root / "state/limits.json"
        return file.read_text() if file.exists() else ""

    def agent_settings(self, kubeconfig: Path) -> AgentSettings:
        settings = AgentSettings(
            kubeconfig=kubeconfig,
            node_name=self.node,
            host_sys=self.sys,
            host_proc=self.proc,
            state_dir=self.root / "state",
            reconcile_interval_s=0.05,
            dvfs=DvfsSettings(cooldown_s=0.0),
        )
        return replace(settings, **self.settings)


def _number(file: Path) -> int:
    """What a file holds; a plain file is empty for a moment while the agent writes it, unlike sysfs."""
    while not (text := file.read_text().strip()):
        pass
    return int(text)


class Bench:
    """A cluster with one machine's objects; `cluster` is the fake one."""

    def __init__(self, cluster: FakeCluster | None, client: KubeClient, machine: Machine, kubeconfig: Path) -> None:
        self.cluster = cluster
        self.client = client
        self.machine = machine
        self.kubeconfig = kubeconfig
        self.name = object_name(machine.node)

    async def add_node(self, **labels: str) -> None:
        node = {"metadata": {"name": self.machine.node, "labels": {"joulie.io/managed": "true", **labels}}}
        await self.client.create(NODES, node)

    async def ask(self, *, cpu: dict[str, float] | None = None, gpu: dict[str, float] | None = None) -> None:
        """What the operator does: state the caps."""
        spec: dict[str, Any] = {"nodeName": self.machine.node, "profile": "eco"}
        if cpu is not None:
            spec["cpu"] = cpu
        if gpu is not None:
            spec["gpu"] = {"powerCap": gpu}
        await self.client.apply(NODE_TWINS, self.name, {"spec": spec}, field_manager="joulie-operator")

    async def twin(self) -> NodeTwin:
        return await self.client.get(NODE_TWINS, self.name)

    async def control(self) -> ControlStatus:
        return (await self.twin()).status.control_status or ControlStatus()

    async def cpu(self) -> ControlResult:
        return (await self.control()).cpu or ControlResult()

    async def gpu(self) -> ControlResult:
        return (await self.control()).gpu or ControlResult()

    async def hardware(self) -> NodeHardware | None:
        with contextlib.suppress(NotFoundError):
            return await self.client.get(NODE_HARDWARES, self.name)
        return None

    @contextlib.asynccontextmanager
    async def agent(self) -> AsyncIterator[asyncio.Task[None]]:
        """The agent, stopped by SIGTERM's way at the end; cancel the task to kill it."""
        stop = asyncio.Event()
        settings = self.machine.agent_settings(self.kubeconfig)
        task = asyncio.create_task(serve(settings, ("127.0.0.1", 0), BUILTIN_CATALOGUE, stop))
        try:
            yield task
        finally:
            stop.set()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def kill(self, task: asyncio.Task[None]) -> None:
        """As SIGKILL: nothing is put in order."""
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(condition: Callable[[], Any]) -> None:
    """Wait until a condition holds; it may be a coroutine function."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = condition()
            if asyncio.iscoroutine(found):
                found = await found
            if found:
                return
            await asyncio.sleep(0.01)


def on_cluster(machine: Machine, scenario: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    """Run a scenario on a fake cluster whose schemas are Joulie's."""

    async def main() -> None:
        async with FakeCluster(custom_resource_definitions()) as cluster:
            kubeconfig = cluster.kubeconfig(machine.root / "kubeconfig")
            async with KubeClient.connect(kubeconfig=kubeconfig) as client:
                await scenario(Bench(cluster, client, machine, kubeconfig))

    asyncio.run(main())
