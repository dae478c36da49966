"""Leader election among replicas by a Lease; standby replicas keep their caches warm."""

from __future__ import annotations

import platform
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from joulie.adapters.kubernetes.cache import Watching
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.lease import LeaderElector
from joulie.collector import spare_what_lives_long
from joulie.program.settings import ProgramSettings
from joulie.settings import boolean, integer, text


class NotLeadingError(RuntimeError):
    """Raised instead of writing after this process lost the lease."""


@dataclass(frozen=True, kw_only=True)
class LeaderSettings(ProgramSettings):
    """Settings of programs with leader election."""

    leader_elect: bool = boolean(
        "LEADER_ELECT", True, "Act only while holding the lease, so that replicas can stand by."
    )
    namespace: str = text(
        "POD_NAMESPACE",
        "joulie-system",
        "Namespace that Joulie runs in: of the lease, and of what else it keeps or looks for there.",
    )
    identity: str | None = text("POD_NAME", None, "Name of this replica in the lease; the host's name by default.")
    write_concurrency: int = integer(
        "WRITE_CONCURRENCY", "16", "Writes to the API server at once.", minimum=1, maximum=256
    )


async def lead(
    settings: LeaderSettings,
    client: KubeClient,
    lease: str,
    view: Watching,
    work: Callable[[Callable[[], bool]], Awaitable[None]],
) -> None:
    """Wait for the caches, then run `work` whenever this replica is the leader.

    Args:
        settings: settings of leader election.
        client: Kubernetes API client for the Lease.
        lease: name of the Lease.
        view: caches to wait for.
        work: the leader's work, until it is cancelled; its argument returns whether this replica still leads.
    """
    await view.wait_synced()
    spare_what_lives_long()
    if not settings.leader_elect:
        await work(lambda: True)
        return
    replica = settings.identity or platform.node()
    elector = LeaderElector(
        client, namespace=settings.namespace, name=lease, identity=f"{replica}_{uuid.uuid4().hex[:8]}"
    )
    await elector.run(lambda: work(lambda: elector.is_leader))
