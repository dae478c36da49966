"""GPUs that pods hold by claims: their names in ResourceSlices, and what happens where those cannot be read."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.resources import RESOURCE_SLICES
from joulie.adapters.kubernetes.slices import claimable_gpus
from joulie.apps.agent.claims import RETRY_S, NamedClaims
from joulie.domain.gpu_allocations import Allocation, Holding, NodeGpu, claimed_device, holdings
from joulie_lab.fakes.kubernetes import FakeCluster

NODE = "gpu-node"
NVIDIA, AMD = "gpu.nvidia.com", "gpu.amd.com"
TRAIN, SERVE = ("ml", "train-0"), ("ml", "serve-0")
FIRST, SECOND = "GPU-5a3c1f0e-0000-0000-0000-00000000000a", "GPU-5a3c1f0e-0000-0000-0000-00000000000b"
ADDRESS = "0000:41:00.0"
PCI = "resource.kubernetes.io/pciBusID"


class Node:
    """What an agent sees of a kubelet and of a cluster; a test changes both."""

    def __init__(self, cluster: FakeCluster, client: KubeClient) -> None:
        self.cluster = cluster
        self.client = client
        self.now_s = 0.0
        self.reads = 0
        self.held: list[Allocation] = []
        self._claims = NamedClaims(self._answer, self._names, lambda: self.now_s)

    async def _answer(self) -> list[Allocation]:
        return self.held

    async def _names(self) -> Mapping[str, str]:
        self.reads += 1
        return await claimable_gpus(self.client, NODE)

    async def offer(self, driver: str, names: Mapping[str, Mapping[str, str]], **spec: Any) -> None:
        """Publish a slice of devices with these attributes."""
        devices = [
            {
                "name": device,
                "attributes": {key: {"string": text} for key, text in texts.items()} | {"numaNode": {"int": 1}},
                "capacity": {"memory": {"value": "80Gi"}},
            }
            for device, texts in names.items()
        ]
        generation, node = spec.pop("generation", 9), spec.pop("node", NODE)
        pool = {"name": node, "generation": generation, "resourceSliceCount": 1}
        body = {"driver": driver, "nodeName": node, "pool": pool, "devices": devices}
        await self.client.create(RESOURCE_SLICES, {"metadata": {"name": f"{node}-{driver}-{generation}"}, "spec": body})

    async def devices(self) -> list[tuple[str, ...]]:
        """Devices that pods hold, by the names that are known."""
        return [one.devices for one in await self._claims.gpus()]


def play(tmp_path: Path, scenario: Callable[[Node], Awaitable[None]]) -> None:
    async def main() -> None:
        async with FakeCluster() as cluster:
            kubeconfig = cluster.kubeconfig(tmp_path / "kubeconfig")
            async with KubeClient.connect(kubeconfig=kubeconfig) as client:
                await scenario(Node(cluster, client))

    asyncio.run(main())


def claimed(device: str, driver: str = NVIDIA) -> str:
    return claimed_device(driver, NODE, device)


def test_claimed_gpus_have_their_drivers_names(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        await node.offer(NVIDIA, {"gpu-0": {"type": "gpu", "uuid": FIRST}, "gpu-1": {"type": "gpu", "uuid": SECOND}})
        await node.offer(AMD, {"gpu-1-129": {"type": "amdgpu", PCI: ADDRESS}})
        await node.offer(NVIDIA, {"gpu-0": {"uuid": "GPU-of-another-node"}}, node="other-node")
        node.held = [
            Allocation(TRAIN, (claimed("gpu-1"), claimed("gpu-1-129", AMD))),
            Allocation(SERVE, (FIRST,)),
        ]
        assert await node.devices() == [(SECOND, ADDRESS), (FIRST,)]
        held = holdings(node.held, [NodeGpu(FIRST, False), NodeGpu(SECOND, False)], indexed=True)
        assert held[SECOND].shared, "without names it may be any"
        named = [Allocation(TRAIN, (await node.devices())[0][:1])]
        assert holdings(named, [NodeGpu(SECOND, False)], indexed=True) == {SECOND: Holding((TRAIN,))}

    play(tmp_path, scenario)


def test_slices_are_read_when_claims_change_and_not_otherwise(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        await node.devices()
        assert node.reads == 0, "nobody holds a GPU by a claim"
        await node.offer(NVIDIA, {"gpu-0": {"uuid": FIRST}, "gpu-1": {"uuid": SECOND}})
        both = claimed("gpu-0"), claimed("gpu-1")
        node.held = [Allocation(TRAIN, both)]
        for order in (both, both[::-1], both):
            node.held = [Allocation(TRAIN, order)]
            assert sorted((await node.devices())[0]) == [FIRST, SECOND]
        assert node.reads == 1
        # Of an older generation, which a driver that was restarted has left: names may have changed their GPU.
        await node.offer(NVIDIA, {"gpu-0": {"uuid": SECOND}, "gpu-1": {"uuid": FIRST}}, generation=10)
        node.held = [Allocation(SERVE, both[:1])]
        assert await node.devices() == [(SECOND,)]
        assert node.reads == 2

    play(tmp_path, scenario)


def test_without_slices_devices_keep_their_ids_and_are_asked_for_again(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.held = [Allocation(TRAIN, (claimed("gpu-0"),))]
        node.cluster.fail_next(1, 403, path="resourceslices")
        assert await node.devices() == [(claimed("gpu-0"),)]
        assert await node.devices() == [(claimed("gpu-0"),)]
        assert node.reads == 1
        await node.offer(NVIDIA, {"gpu-0": {"uuid": FIRST}})
        node.now_s += RETRY_S
        assert await node.devices() == [(FIRST,)]
        # Another pod comes while the API server refuses: what the name means now is not known.
        node.cluster.fail_next(1, 403, path="resourceslices")
        node.held = [Allocation(SERVE, (claimed("gpu-0"),))]
        assert await node.devices() == [(claimed("gpu-0"),)]
        node.now_s += RETRY_S
        assert await node.devices() == [(FIRST,)]

    play(tmp_path, scenario)
