"""Pool agents on a fake cluster, with an HTTP endpoint that stands for the simulator."""

import asyncio
import contextlib
import json
import os
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from joulie.adapters.kubernetes.api.v1alpha1 import NodeTwin
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.resources import NODE_HARDWARES, NODE_TWINS, NODES, TELEMETRY_PROFILES
from joulie.apps.agent import agent
from joulie.apps.agent.main import serve
from joulie.apps.agent.settings import AgentSettings
from joulie.apps.agent.views import shard_of
from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie.program.http import Receive, Scope, Send, Server, respond
from joulie_lab.adapters.crd import custom_resource_definitions
from joulie_lab.fakes.kubernetes import FakeCluster
from support.agent_machine import PATIENCE_S, until

pytestmark = pytest.mark.slow

NAMES = [f"sim-{number}" for number in range(6)]
LABELS = {
    "joulie.io/managed": "true",
    "joulie.io/hw.cpu-model": "AMD-EPYC-9654",
    "joulie.io/hw.cpu-sockets": "2",
    "joulie.io/hw.gpu-model": "NVIDIA-H100-NVL",
    "joulie.io/hw.gpu-count": "8",
}


class Simulator:
    """Takes caps; refuses those of `broken` nodes, and keeps all waiting for `open`."""

    def __init__(self) -> None:
        self.caps: dict[str, dict[str, Any]] = {}
        self.broken: set[str] = set()
        self.open = asyncio.Event()
        self.open.set()
        self.waiting = 0
        self.peak = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = json.loads((await receive())["body"])
        self.waiting += 1
        self.peak = max(self.peak, self.waiting)
        await self.open.wait()
        self.waiting -= 1
        if request["node"] in self.broken:
            await respond(send, 500, b"out of order")
            return
        self.caps.setdefault(request["node"], {}).update(
            {key: value for key, value in request.items() if key.startswith("cap")}
        )
        await respond(send, 200, b'{"result":"applied","message":"ok","state":{}}')


class Pool:
    """A cluster with simulated nodes, and agents to start on it."""

    def __init__(self, client: KubeClient, simulator: Simulator, url: str, kubeconfig: Path) -> None:
        self.client = client
        self.simulator = simulator
        self.url = url
        self.kubeconfig = kubeconfig

    async def add(self, name: str, **labels: str) -> None:
        await self.client.create(NODES, {"metadata": {"name": name, "labels": LABELS | labels}})
        await self.cap(name, 60.0)

    async def cap(self, name: str, percent: float) -> None:
        spec = {
            "nodeName": name,
            "profile": "eco",
            "cpu": {"packagePowerCapPctOfMax": percent},
            "gpu": {"powerCap": {"capPctOfMax": percent}},
        }
        await self.client.apply(NODE_TWINS, name, {"spec": spec}, field_manager="joulie-operator")

    async def twin(self, name: str) -> NodeTwin:
        return await self.client.get(NODE_TWINS, name)

    async def result(self, name: str) -> str | None:
        control = (await self.twin(name)).status.control_status
        return control.cpu.result if control and control.cpu else None

    @contextlib.asynccontextmanager
    async def agent(self, shards: int = 1, shard: int = 0, **settings: Any) -> AsyncIterator[Callable[[], int]]:
        stop = asyncio.Event()
        ports: list[int] = []
        endpoint = f"{self.url}/control/{{node}}"
        values: dict[str, Any] = {
            "cpu_control": "http",
            "cpu_control_endpoint": endpoint,
            "gpu_control": "http",
            "gpu_control_endpoint": endpoint,
            "cpu_control_mode": "rapl",
        }
        chosen = AgentSettings(
            kubeconfig=self.kubeconfig,
            mode="pool",
            pool_shards=shards,
            pool_shard_id=shard,
            **(values | {"reconcile_interval_s": 0.05} | settings),
        )
        task = asyncio.create_task(serve(chosen, ("127.0.0.1", 0), BUILTIN_CATALOGUE, stop, on_port=ports.append))
        self.terminate = stop.set
        try:
            yield lambda: ports[0]
        finally:
            stop.set()
            await task


def on_pool(tmp_path: Path, scenario: Callable[[Pool], Any]) -> None:
    async def main() -> None:
        simulator = Simulator()
        async with (
            FakeCluster(custom_resource_definitions()) as cluster,
            Server(simulator, ("127.0.0.1", 0)) as server,
            KubeClient.connect(kubeconfig=cluster.kubeconfig(tmp_path / "kubeconfig")) as client,
        ):
            await scenario(Pool(client, simulator, f"http://127.0.0.1:{server.port}", tmp_path / "kubeconfig"))

    asyncio.run(main())


def test_caps_of_all_nodes_are_sent_reported_and_lifted_at_the_end(tmp_path: Path) -> None:
    async def scenario(pool: Pool) -> None:
        for name in NAMES:
            await pool.add(name)
        caps = pool.simulator.caps
        async with pool.agent():
            await until(lambda: all(caps.get(name) == {"capWatts": 216.0, "capWattsPerGpu": 240.0} for name in NAMES))
            for name in NAMES:
                await until(lambda name=name: _is(pool, name, "applied"))
            hardware = await pool.client.get(NODE_HARDWARES, NAMES[0])
            assert hardware.status.cpu is not None
            assert hardware.status.gpu is not None
            assert (hardware.status.cpu.model, hardware.status.gpu.count) == ("AMD EPYC 9654", 8)
        assert all(caps[name] == {"capWatts": 360.0, "capWattsPerGpu": 400.0} for name in NAMES)

    on_pool(tmp_path, scenario)


def test_a_changed_cap_is_applied_at_once_and_only_its_node_is_looked_at(tmp_path: Path) -> None:
    async def scenario(pool: Pool) -> None:
        for name in NAMES:
            await pool.add(name)
        async with pool.agent(reconcile_interval_s=600.0):
            for name in NAMES:
                await until(lambda name=name: _is(pool, name, "applied"))
            pool.simulator.caps.clear()
            for percent, cap_w in ((80.0, 320.0), (70.0, 280.0)):
                await pool.cap(NAMES[0], percent)
                await until(lambda cap_w=cap_w: pool.simulator.caps.get(NAMES[0], {}).get("capWattsPerGpu") == cap_w)
            assert list(pool.simulator.caps) == [NAMES[0]]

    on_pool(tmp_path, scenario)


def test_shards_divide_the_nodes(tmp_path: Path) -> None:
    mine = [name for name in NAMES if shard_of(name, 2) == 1]
    assert 0 < len(mine) < len(NAMES)

    async def scenario(pool: Pool) -> None:
        for name in NAMES:
            await pool.add(name)
        async with pool.agent(shards=2, shard=1):
            await until(lambda: len(pool.simulator.caps) >= len(mine))
            for name in mine:
                await until(lambda name=name: _is(pool, name, "applied"))
        assert sorted(pool.simulator.caps) == mine

    on_pool(tmp_path, scenario)


def test_one_broken_node_stops_no_other(tmp_path: Path) -> None:
    async def scenario(pool: Pool) -> None:
        pool.simulator.broken = {NAMES[0]}
        for name in NAMES[:3]:
            await pool.add(name)
        async with pool.agent():
            await until(lambda: _is(pool, NAMES[0], "error"))
            for name in NAMES[1:3]:
                await until(lambda name=name: _is(pool, name, "applied"))
            pool.simulator.broken = set()
            await until(lambda: _is(pool, NAMES[0], "applied"))

    on_pool(tmp_path, scenario)


def test_few_nodes_at_a_time_are_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "CONCURRENCY", 3)

    async def scenario(pool: Pool) -> None:
        simulator = pool.simulator
        for name in NAMES:
            await pool.add(name)
        async with pool.agent():
            for name in NAMES:
                await until(lambda name=name: _is(pool, name, "applied"))
            simulator.open.clear()
            pool.terminate()
            await until(lambda: simulator.waiting == 3)
            simulator.open.set()
        assert all(simulator.caps[name] == {"capWatts": 360.0, "capWattsPerGpu": 400.0} for name in NAMES)
        assert simulator.peak == 3

    on_pool(tmp_path, scenario)


def test_a_stop_ends_the_cycle_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "CONCURRENCY", 2)

    async def scenario(pool: Pool) -> None:
        simulator = pool.simulator
        simulator.open.clear()
        for name in NAMES:
            await pool.add(name)
        async with pool.agent(http_timeout_s=PATIENCE_S):
            await until(lambda: simulator.waiting == 2)
            pool.terminate()
            simulator.open.set()
        # Two were under way, and were restored; the others were not touched any more.
        assert list(simulator.caps.values()) == [{"capWatts": 360.0, "capWattsPerGpu": 400.0}] * 2

    on_pool(tmp_path, scenario)


def test_restoring_ends_in_time_though_an_endpoint_does_not_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(pool: Pool) -> None:
        await pool.add(NAMES[0])
        async with pool.agent(restore_timeout_s=0.05, http_timeout_s=PATIENCE_S):
            await until(lambda: _is(pool, NAMES[0], "applied"))
            pool.simulator.open.clear()
            pool.terminate()
            await until(lambda: "restoring limits timed out" in caplog.messages)
            pool.simulator.open.set()

    on_pool(tmp_path, scenario)


def test_the_last_cycle_grows_old_where_a_cycle_hangs(tmp_path: Path) -> None:
    def ended_s(metrics: str) -> float:
        found = re.search(r'^joulie_agent_last_cycle_timestamp_seconds{node="sim-0"} (\S+)$', metrics, re.MULTILINE)
        assert found is not None
        return float(found[1])

    async def scenario(pool: Pool) -> None:
        await pool.add(NAMES[0])
        async with pool.agent(http_timeout_s=PATIENCE_S) as port:
            await until(lambda: _is(pool, NAMES[0], "applied"))
            first_s = ended_s(await _metrics(port()))
            await until(lambda: _ended_after(port(), first_s))
            pool.simulator.open.clear()
            await pool.cap(NAMES[0], 50.0)
            await until(lambda: pool.simulator.waiting)
            hung_s = ended_s(await _metrics(port()))
            # Many intervals long.
            for _ in range(30):
                assert ended_s(await _metrics(port())) == hung_s
            pool.simulator.open.set()
            await until(lambda: _ended_after(port(), hung_s))

    async def _ended_after(port: int, moment_s: float) -> bool:
        return ended_s(await _metrics(port)) > moment_s

    on_pool(tmp_path, scenario)


def test_node_that_leaves_takes_its_caps_and_series_along(tmp_path: Path) -> None:
    async def scenario(pool: Pool) -> None:
        for name in NAMES[:2]:
            await pool.add(name)
        async with pool.agent() as port:
            for name in NAMES[:2]:
                await until(lambda name=name: _is(pool, name, "applied"))
            assert 'joulie_backend_mode{mode="rapl",node="sim-1"} 1.0' in await _metrics(port())
            await pool.client.patch(NODES, NAMES[1], {"metadata": {"labels": {"joulie.io/managed": None}}})
            await until(lambda: pool.simulator.caps[NAMES[1]] == {"capWatts": 360.0, "capWattsPerGpu": 400.0})
            await until(lambda: _without(port(), NAMES[1]))
            assert NAMES[0] in await _metrics(port())

    on_pool(tmp_path, scenario)


def test_h17_node_that_leaves_is_restored_until_that_is_confirmed(tmp_path: Path) -> None:
    async def scenario(pool: Pool) -> None:
        name = NAMES[0]
        await pool.add(name)
        async with pool.agent():
            await until(lambda: _is(pool, name, "applied"))
            pool.simulator.broken.add(name)
            await pool.client.patch(NODES, name, {"metadata": {"labels": {"joulie.io/managed": None}}})
            await until(lambda: _is(pool, name, "error"))
            assert pool.simulator.caps[name] == {"capWatts": 216.0, "capWattsPerGpu": 240.0}
            pool.simulator.broken.clear()
            await until(lambda: pool.simulator.caps[name] == {"capWatts": 360.0, "capWattsPerGpu": 400.0})
            await until(lambda: _is(pool, name, "applied"))

    on_pool(tmp_path, scenario)


def test_h17_next_agent_restores_nodes_that_left_while_none_ran(tmp_path: Path) -> None:
    """Killed just when a node leaves, an agent leaves nothing behind but the node's label."""

    async def scenario(pool: Pool) -> None:
        name = NAMES[0]
        await pool.add(name)
        async with pool.agent(restore_on_exit=False):
            await until(lambda: _is(pool, name, "applied"))
        left = {"joulie.io/managed": None, "joulie.io/restore-pending": "true"}
        await pool.client.patch(NODES, name, {"metadata": {"labels": left}})
        await pool.add(NAMES[1], **{"joulie.io/managed": "false", "joulie.io/restore-pending": "true"})
        released = {"spec": {"nodeName": name, "profile": "performance"}}
        await pool.client.apply(NODE_TWINS, name, released, field_manager="joulie-operator")
        assert pool.simulator.caps[name] == {"capWatts": 216.0, "capWattsPerGpu": 240.0}
        async with pool.agent(restore_on_exit=False):
            await until(lambda: pool.simulator.caps[name] == {"capWatts": 360.0, "capWattsPerGpu": 400.0})
        assert NAMES[1] not in pool.simulator.caps, "somebody else's: capped, and never through this endpoint"

    on_pool(tmp_path, scenario)


def test_profile_with_a_selector_routes_its_nodes(tmp_path: Path) -> None:
    async def scenario(pool: Pool) -> None:
        await pool.add(NAMES[0], zone="a")
        await pool.add(NAMES[1], zone="b")
        http = {"endpoint": f"{pool.url}/control/{{node}}", "mode": "rapl"}
        spec = {
            "target": {"scope": "node", "nodeSelector": {"zone": "a"}},
            "controls": {"cpu": {"type": "http", "http": http}},
        }
        await pool.client.create(TELEMETRY_PROFILES, {"metadata": {"name": "zone-a"}, "spec": spec})
        nowhere = {"cpu_control": "none", "gpu_control": "none"}
        async with pool.agent(**nowhere):
            await until(lambda: _is(pool, NAMES[0], "applied"))
            await until(lambda: _is(pool, NAMES[1], "blocked"))
            profile = await pool.client.get(TELEMETRY_PROFILES, "zone-a")
            # It stands for many nodes: its counts are the operator's to write.
            assert profile.status.control is None

    on_pool(tmp_path, scenario)


def test_ready_after_the_first_cycle(tmp_path: Path) -> None:
    async def scenario(pool: Pool) -> None:
        await pool.add(NAMES[0])
        async with pool.agent() as port:
            await until(lambda: _is(pool, NAMES[0], "applied"))
            await until(lambda: _answers(port(), "/readyz"))
            assert await _answers(port(), "/healthz")

    on_pool(tmp_path, scenario)


def test_shard_of_is_fnv_1a() -> None:
    # Published test vectors of the 32-bit FNV-1a hash.
    assert [shard_of(text, 2**32) for text in ("", "a", "foobar")] == [0x811C9DC5, 0xE40C292C, 0xBF9CF968]


def test_shard_comes_from_the_pods_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "POD_NAME", "joulie-agent-pool-3")
    assert AgentSettings(mode="pool", pool_shards=4).shard == 3
    with pytest.raises(ValueError, match="shard 3 does not exist"):
        AgentSettings(mode="pool", pool_shards=2)
    monkeypatch.setitem(os.environ, "POD_NAME", "joulie-agent")
    with pytest.raises(ValueError, match="POOL_SHARD_ID"):
        AgentSettings(mode="pool", pool_shards=2)


async def _is(pool: Pool, name: str, result: str) -> bool:
    return await pool.result(name) == result


async def _without(port: int, name: str) -> bool:
    return name not in await _metrics(port)


async def _answers(port: int, path: str) -> bool:
    return (await _get(port, path)).startswith("HTTP/1.1 200")


async def _metrics(port: int) -> str:
    return await _get(port, "/metrics")


async def _get(port: int, path: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer.decode()
