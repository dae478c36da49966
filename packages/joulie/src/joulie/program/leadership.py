"""One of several replicas leads, by a Lease; the others stand by with warm caches."""

from __future__ import annotations

import gc
import platform
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from joulie.adapters.kubernetes.cache import Watching
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.lease import LeaderElector
from joulie.program.settings import Kind, ProgramSettings, setting


@dataclass(frozen=True, kw_only=True)
class LeaderSettings(ProgramSettings):
    """Settings of programs of which one replica leads."""

    leader_elect: bool = setting(
        "LEADER_ELECT",
        "true",
        kind=Kind.BOOLEAN,
        help="Act only while holding the lease, so that replicas can stand by.",
    )
    namespace: str = setting(
        "POD_NAMESPACE",
        "joulie-system",
        kind=Kind.TEXT,
        help="Namespace that Joulie runs in: of the lease, and of what else it keeps or looks for there.",
    )
    identity: str | None = setting(
        "POD_NAME", None, kind=Kind.TEXT, help="Name of this replica in the lease; the host's name by default."
    )
    write_concurrency: int = setting(
        "WRITE_CONCURRENCY", "16", kind=Kind.INTEGER, minimum=1, maximum=256, help="Writes to the API server at once."
    )


async def lead(
    settings: LeaderSettings,
    client: KubeClient,
    lease: str,
    view: Watching,
    work: Callable[[Callable[[], bool]], Awaitable[None]],
) -> None:
    """Wait for the caches, then work whenever this replica leads.

    Args:
        settings: of the program.
        client: to hold the lease with.
        lease: its name.
        view: the caches.
        work: what a leader does until it is cancelled; it is told how to ask whether it may still write.
    """
    await view.wait_synced()
    # What the caches hold stays: the collector need not look at a hundred thousand pods again and again.
    gc.collect()
    gc.freeze()
    if not settings.leader_elect:
        await work(lambda: True)
        return
    replica = settings.identity or platform.node()
    elector = LeaderElector(
        client, namespace=settings.namespace, name=lease, identity=f"{replica}_{uuid.uuid4().hex[:8]}"
    )
    await elector.run(lambda: work(lambda: elector.is_leader))
