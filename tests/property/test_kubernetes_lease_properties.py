"""Two electors against a server with any delays, losses and clocks: never two leaders at once."""

import asyncio
import random  # noqa: TID251 - jitter of an adapter, seeded here
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from joulie.adapters.kubernetes.api.core import Lease
from joulie.adapters.kubernetes.client import ConflictError, ConnectionLostError, NotFoundError
from joulie.adapters.kubernetes.lease import LeaderElector
from support.virtual_time import run_virtually

LEASE_S, DEADLINE_S, RETRY_S = 15.0, 10.0, 2.0


class Server:
    lease: Lease | None = None
    version = 0


class Link:
    """One candidate's way to the server: at times slow, or cut for a while, in either direction."""

    def __init__(self, server: Server, rng: random.Random, trouble: float, slowest_s: float) -> None:
        self.server, self.rng, self.trouble, self.slowest_s = server, rng, trouble, slowest_s
        self.cut_until_s = 0.0

    async def _travel(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if self.rng.random() < self.trouble / 4:
            self.cut_until_s = now_s + self.rng.uniform(0.0, 40.0)
        slow = self.rng.random() < self.trouble
        await asyncio.sleep(self.rng.uniform(0.0, self.slowest_s) if slow else 0.01)
        if now_s < self.cut_until_s:
            raise ConnectionLostError("lost", sent=True)

    async def _serve(self, act: Callable[[], Lease]) -> Lease:
        async def on_the_wire() -> Lease:
            await self._travel()
            try:
                return act()
            finally:
                await self._travel()

        # What was sent arrives, even if the sender has given up waiting.
        return await asyncio.shield(asyncio.ensure_future(_consumed(on_the_wire())))

    async def get(self, resource: Any, name: str, namespace: str) -> Lease:
        def act() -> Lease:
            if self.server.lease is None:
                raise NotFoundError(404, "NotFound", "")
            return self.server.lease

        return await self._serve(act)

    async def create(self, resource: Any, body: Lease, namespace: str) -> Lease:
        def act() -> Lease:
            if self.server.lease is not None:
                raise ConflictError(409, "AlreadyExists", "")
            return self._store(body)

        return await self._serve(act)

    async def replace(self, resource: Any, name: str, body: Lease, *, namespace: str) -> Lease:
        def act() -> Lease:
            if (
                self.server.lease is None
                or body.metadata.resource_version != self.server.lease.metadata.resource_version
            ):
                raise ConflictError(409, "Conflict", "")
            return self._store(body)

        return await self._serve(act)

    def _store(self, body: Lease) -> Lease:
        self.server.version += 1
        metadata = msgspec.structs.replace(body.metadata, resource_version=str(self.server.version))
        self.server.lease = msgspec.structs.replace(body, metadata=metadata)
        return self.server.lease


async def _consumed(work: Any) -> Any:
    """An error that nobody waits for any more must not be reported as forgotten."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await task


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(),
    trouble=st.floats(0.1, 0.9),
    slowest_s=st.floats(1.0, 12.0),
    offsets=st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)),
    rates=st.tuples(st.floats(0.9, 1.1), st.floats(0.9, 1.1)),
    cleanup_s=st.floats(0.0, 1.0),
)
def test_two_electors_never_lead_at_once(
    seed: int,
    trouble: float,
    slowest_s: float,
    offsets: tuple[float, float],
    rates: tuple[float, float],
    cleanup_s: float,
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        rng = random.Random(seed)
        server = Server()
        working: set[str] = set()
        electors: list[LeaderElector] = []

        async def lead(me: str) -> None:
            assert not working, f"{me} begins while {working} has not ended"
            working.add(me)
            try:
                await asyncio.sleep(rng.uniform(5.0, 200.0))
            finally:
                try:
                    await asyncio.sleep(cleanup_s)
                finally:  # the lease may be lost while cleaning up
                    working.discard(me)

        async def candidate(index: int) -> None:
            me = f"candidate-{index}"
            elector = LeaderElector(
                Link(server, rng, trouble, slowest_s),
                namespace="ns",
                name="l",
                identity=me,
                lease_s=LEASE_S,
                renew_deadline_s=DEADLINE_S,
                retry_s=RETRY_S,
                clock=lambda: offsets[index] + rates[index] * loop.time(),
                epoch=lambda: 0.0,  # renewals at the same written time must do as well
                rng=rng,
            )
            electors.append(elector)
            while True:
                await elector.run(lambda: lead(me))

        tasks = [asyncio.ensure_future(_consumed(candidate(index))) for index in range(2)]
        for _ in range(200):
            await asyncio.sleep(1.0)
            assert sum(elector.is_leader for elector in electors) <= 1
            for task in tasks:
                assert not task.done(), task.result()
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task

    run_virtually(main())
