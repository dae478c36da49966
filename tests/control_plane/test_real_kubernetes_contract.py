"""The contract that the fake API server is held to, held by the real one: where they differ, the fake is wrong."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import httpx2 as httpx
import pytest

from joulie.adapters.kubernetes.client import ConflictError, KubeClient, RetryPolicy
from joulie.adapters.kubernetes.connection import connect
from joulie.adapters.kubernetes.resources import CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES, SERVICE_ACCOUNTS
from joulie_lab.adapters.crd import custom_resource_definitions
from joulie_lab.control_plane import LocalControlPlane
from support import object_contract, watch_contract
from support.subject import Subject

pytestmark = [pytest.mark.control_plane, pytest.mark.slow]

CHECKS = [*object_contract.CHECKS, *watch_contract.CHECKS]
COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager")


@pytest.fixture(scope="module")
def plane(plane: LocalControlPlane) -> LocalControlPlane:
    """Its own: the checks restart it."""
    plane.create_all(CUSTOM_RESOURCE_DEFINITIONS.path(), custom_resource_definitions())
    plane.await_definitions()
    return plane


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_real_api_server(check: Callable[[Subject], Awaitable[None]], plane: LocalControlPlane) -> None:
    async def restart() -> None:
        # Not in another thread: the processes end with the thread that starts them.
        plane.restart("kube-apiserver")

    async def compact() -> None:
        await compact_etcd(plane)

    async def run() -> None:
        async with KubeClient(connect(kubeconfig=plane.kubeconfig), retry=RetryPolicy(attempts=1)) as client:
            subject = Subject(client, plane.kubeconfig, restart=restart, compact=compact)
            await client.create(NAMESPACES, {"metadata": {"name": subject.namespace}})
            try:
                # Pods need it, and the controller that makes it is slow to come back from a restart.
                with suppress(ConflictError):
                    await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default"}}, subject.namespace)
                await check(subject)
            finally:
                await client.delete(NAMESPACES, subject.namespace)

    asyncio.run(run())


async def compact_etcd(plane: LocalControlPlane) -> None:
    """Make etcd forget all versions but the newest, through its JSON gateway."""
    transport = httpx.AsyncHTTPTransport(uds=str(plane.folder / "etcd.sock"))
    async with httpx.AsyncClient(transport=transport, base_url="http://etcd") as etcd:
        found = await etcd.post("/v3/kv/range", json={"key": "AA==", "limit": "1"})
        revision = found.json()["header"]["revision"]
        compacted = await etcd.post("/v3/kv/compaction", json={"revision": revision, "physical": True})
        assert compacted.status_code == httpx.codes.OK, compacted.text
