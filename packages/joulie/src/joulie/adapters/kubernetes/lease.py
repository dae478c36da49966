"""Leader election with a coordination.k8s.io Lease.

Like client-go, this never compares its clock with another machine's: a lease counts as expired when it has not changed
for its duration on the observer's own monotonic clock. The leader stops by itself `renew_deadline_s` after it sent its
last successful renewal; no other candidate can acquire the lease before `lease_s` after the server stored that renewal,
which is later. So there is at most one leader, as long as no clock runs lease_s/renew_deadline_s times faster than
another.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from joulie.adapters.kubernetes.api.core import Lease, LeaseSpec
from joulie.adapters.kubernetes.api.meta import ObjectMeta
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import ConflictError, KubernetesError, NotFoundError
from joulie.adapters.kubernetes.resources import LEASES
from joulie.adapters.kubernetes.times import rfc3339_micro

_log = logging.getLogger(__name__)

_RELEASED_S = 1
_JITTER = 0.2
_PAST_DEADLINE_S = 0.01  # a sleep that ends on the deadline itself may find it not yet reached


class Step(StrEnum):
    """A candidate's next action on a lease."""

    CREATE = "create"
    """The lease does not exist."""
    TAKE = "take"
    """The lease was released, or has expired."""
    RENEW = "renew"
    """This candidate holds the lease."""
    WAIT = "wait"
    """Another candidate holds the lease."""


@dataclass(frozen=True)
class Observation:
    """The lease as last read, and when this state of it was first observed.

    Attributes:
        lease: lease as last read; None if it does not exist.
        since_s: time of the first observation on the observer's monotonic clock, s.
    """

    lease: Lease | None
    since_s: float

    @property
    def spec(self) -> LeaseSpec | None:
        """Spec of the lease, which names its holder; None if the lease does not exist."""
        return self.lease.spec if self.lease else None


def observe(before: Observation | None, lease: Lease | None, now_s: float) -> Observation:
    """The observation after reading the lease; its time restarts only if the lease was written in between."""
    if before is not None and before.lease == lease:
        return before
    return Observation(lease, now_s)


def decide(seen: Observation, identity: str, lease_s: float, now_s: float) -> Step:
    """The next action of candidate `identity` on the lease.

    Args:
        seen: last observation of the lease.
        identity: identity of the candidate.
        lease_s: duration assumed if the lease gives none, s.
        now_s: current time on the clock of `seen`, s.
    """
    spec = seen.spec
    if spec is None:
        return Step.CREATE
    if spec.holder_identity == identity:
        return Step.RENEW
    duration_s = spec.lease_duration_seconds or lease_s
    if not spec.holder_identity or now_s >= seen.since_s + duration_s:
        return Step.TAKE
    return Step.WAIT


def claim(seen: LeaseSpec | None, identity: str, lease_s: float, epoch_s: float) -> LeaseSpec:
    """The lease spec that a candidate writes to acquire or renew the lease; its times are informational only.

    Args:
        seen: lease spec as read; None if the lease does not exist.
        identity: identity of the candidate.
        lease_s: lease duration, s.
        epoch_s: wall-clock time, s since the epoch.
    """
    renewal = seen is not None and seen.holder_identity == identity
    transitions = (seen.lease_transitions or 0) if seen else 0
    return LeaseSpec(
        holder_identity=identity,
        # Rounded up: a truncated fraction would let another candidate take over early.
        lease_duration_seconds=max(1, -int(-lease_s // 1)),
        acquire_time=seen.acquire_time if seen and renewal else rfc3339_micro(epoch_s),
        renew_time=rfc3339_micro(epoch_s),
        lease_transitions=transitions if renewal or seen is None else transitions + 1,
    )


class LeaderElector:
    """Runs a coroutine for as long as this process holds a lease.

    Args:
        client: Kubernetes client.
        namespace: lease namespace.
        name: lease name.
        identity: identity of this process; must be unique even across restarts, so use the pod's name and a random
            suffix.
        lease_s: time without a renewal after which another candidate may take over, s.
        renew_deadline_s: time without a renewal after which the leader cancels its work, s; the remainder of `lease_s`
            is left for the work to end.
        retry_s: pause between attempts to acquire or renew, s.
        clock: monotonic clock, s.
        epoch: wall clock, s since the epoch; written to the lease, never compared.
        rng: random generator for the jitter of the pauses.

    Raises:
        ValueError: the times do not satisfy 0 < retry_s < renew_deadline_s < lease_s.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        namespace: str,
        name: str,
        identity: str,
        lease_s: float = 15.0,
        renew_deadline_s: float = 10.0,
        retry_s: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
        epoch: Callable[[], float] = time.time,
        rng: random.Random | None = None,
    ) -> None:
        if not 0 < retry_s < renew_deadline_s < lease_s:
            raise ValueError(
                "invalid leader election times: need 0 < retry_s < renew_deadline_s < lease_s, "
                f"got {retry_s}, {renew_deadline_s}, {lease_s}"
            )
        self.identity = identity
        self.transitions = 0
        """Number of times that this process became the leader."""
        self._client = client
        self._namespace = namespace
        self._name = name
        self._lease_s = lease_s
        self._renew_deadline_s = renew_deadline_s
        self._retry_s = retry_s
        self._clock = clock
        self._epoch = epoch
        self._rng = rng or random.Random()  # noqa: S311 - jitter, no secret
        self._seen: Observation | None = None
        self._renewed_at: float | None = None

    @property
    def is_leader(self) -> bool:
        """Whether this process is the leader now; checked by the clock, so it is right even after a process freeze."""
        return self._renewed_at is not None and self._clock() < self._renewed_at + self._renew_deadline_s

    @property
    def leader(self) -> str:
        """Identity of the last known holder; empty if none."""
        spec = self._seen.spec if self._seen else None
        return (spec.holder_identity or "") if spec else ""

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Wait for the lease, run `lead` while holding it, and start over if it is lost.

        Returns when `lead` returns. If `lead` raises or this call is cancelled, `lead` is ended first and the lease is
        then released, so that another candidate can take over at once.
        """
        while True:
            while not await self._attempt():
                await asyncio.sleep(self._retry_s * (1.0 + _JITTER * self._rng.random()))
            self.transitions += 1
            _log.info("became the leader", extra={"lease": self._name, "identity": self.identity})
            if await self._lead(lead):
                return
            _log.warning("lost the lease", extra={"lease": self._name, "holder": self.leader})

    async def _lead(self, lead: Callable[[], Awaitable[None]]) -> bool:
        """Run `lead` until it ends (True) or the lease is lost (False)."""
        work = asyncio.ensure_future(lead())
        renewals = asyncio.create_task(self._renew_until_lost())
        try:
            await asyncio.wait((work, renewals), return_when=asyncio.FIRST_COMPLETED)
            ended = work.done()
        finally:
            # Keep renewing until the work has really ended: only then may another leader start.
            try:
                await _end(work)
            finally:
                await _end(renewals)
                await self._release()
        for task in (work, renewals):
            if not task.cancelled():
                task.result()
        return ended

    async def _renew_until_lost(self) -> None:
        while True:
            await asyncio.sleep(min(self._retry_s, self._left_s() + _PAST_DEADLINE_S))
            if not self.is_leader:
                self._renewed_at = None
                return
            await self._attempt()

    def _left_s(self) -> float:
        """Time until the renew deadline, s."""
        return 0.0 if self._renewed_at is None else self._renewed_at + self._renew_deadline_s - self._clock()

    async def _attempt(self) -> bool:
        """Read the lease, then acquire or renew it if allowed. Returns whether this process now holds it."""
        try:
            async with asyncio.timeout(self._left_s() if self.is_leader else self._renew_deadline_s):
                seen = await self._read()
                if decide(seen, self.identity, self._lease_s, self._clock()) is Step.WAIT:
                    self._renewed_at = None
                    return False
                sent_at = self._clock()
                await self._write(seen.lease, claim(seen.spec, self.identity, self._lease_s, self._epoch()))
                self._renewed_at = sent_at
        except (ConflictError, TimeoutError):
            return False  # another candidate was faster or the server too slow; the next read will tell
        except KubernetesError as error:
            _log.warning("cannot take or renew the lease", extra={"lease": self._name, "problem": str(error)})
            return False
        return True

    async def _read(self) -> Observation:
        try:
            lease = await self._client.get(LEASES, self._name, self._namespace)
        except NotFoundError:
            lease = None
        self._seen = observe(self._seen, lease, self._clock())
        return self._seen

    async def _write(self, before: Lease | None, spec: LeaseSpec) -> None:
        if before is None:
            new = Lease(metadata=ObjectMeta(name=self._name, namespace=self._namespace), spec=spec)
            lease = await self._client.create(LEASES, new, self._namespace)
        else:
            # The resourceVersion in the metadata makes this fail if the lease was written since it was read.
            changed = Lease(metadata=before.metadata, spec=spec)
            lease = await self._client.replace(LEASES, self._name, changed, namespace=self._namespace)
        self._seen = Observation(lease, self._clock())

    async def _release(self) -> None:
        """Release the lease so that another candidate can take over at once; if this fails, the lease expires."""
        lease = self._seen.lease if self._seen else None
        if not self.is_leader or lease is None:
            return
        self._renewed_at = None
        spec = msgspec.structs.replace(
            lease.spec,
            holder_identity="",
            lease_duration_seconds=_RELEASED_S,
            renew_time=rfc3339_micro(self._epoch()),
        )
        with suppress(KubernetesError, TimeoutError):
            async with asyncio.timeout(self._retry_s):
                await self._write(lease, spec)


async def _end(task: asyncio.Future[None]) -> None:
    """Cancel a task and wait until it has ended, even if the wait itself is cancelled repeatedly."""
    task.cancel()
    cancelled = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
