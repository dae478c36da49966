"""The contract of an API server, held by the fake one."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from joulie.adapters.kubernetes.client import KubeClient, RetryPolicy
from joulie.adapters.kubernetes.connection import connect
from joulie.adapters.kubernetes.resources import NAMESPACES
from joulie_lab.adapters.crd import custom_resource_definitions
from joulie_lab.fakes.kubernetes import FakeCluster
from support import object_contract, watch_contract
from support.subject import Subject

CHECKS = [*object_contract.CHECKS, *watch_contract.CHECKS]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_fake_api_server(check: Callable[[Subject], Awaitable[None]], tmp_path: Path) -> None:
    async def run() -> None:
        async with FakeCluster(custom_resource_definitions(), bookmark_s=0.5) as cluster:
            kubeconfig = cluster.kubeconfig(tmp_path / "kubeconfig")

            async def restart() -> None:
                await cluster.stop()
                await cluster.start()

            async def compact() -> None:
                cluster.compact()

            async with KubeClient(connect(kubeconfig=kubeconfig), retry=RetryPolicy(attempts=1)) as client:
                subject = Subject(client, kubeconfig, restart=restart, compact=compact)
                await client.create(NAMESPACES, {"metadata": {"name": subject.namespace}})
                await check(subject)

    asyncio.run(run())
