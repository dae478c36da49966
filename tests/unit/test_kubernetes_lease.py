import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from joulie.adapters.kubernetes.api.core import Lease, LeaseSpec
from joulie.adapters.kubernetes.api.meta import ObjectMeta
from joulie.adapters.kubernetes.client import ConflictError, ConnectionLostError, NotFoundError
from joulie.adapters.kubernetes.lease import LeaderElector, Observation, Step, claim, decide, observe
from support.virtual_time import run_virtually

HELD_SPEC = LeaseSpec(holder_identity="other", lease_duration_seconds=15, renew_time="t", lease_transitions=3)


HELD = Lease(metadata=ObjectMeta(name="l", resource_version="1"), spec=HELD_SPEC)


# ---- the decision


def test_no_lease_is_created() -> None:
    assert decide(Observation(None, 0.0), "me", 15.0, 0.0) is Step.CREATE


def test_a_lease_is_taken_only_after_its_own_duration_without_a_change() -> None:
    seen = observe(None, HELD, 100.0)
    assert decide(seen, "me", 5.0, 114.9) is Step.WAIT
    assert decide(seen, "me", 5.0, 115.0) is Step.TAKE


def test_the_same_lease_again_is_no_sign_of_life() -> None:
    seen = observe(observe(None, HELD, 100.0), HELD, 110.0)
    assert seen.since_s == 100.0


def test_a_renewal_starts_the_wait_anew() -> None:
    renewed = msgspec.structs.replace(HELD, metadata=ObjectMeta(name="l", resource_version="2"))
    seen = observe(observe(None, HELD, 100.0), renewed, 110.0)
    assert decide(seen, "me", 15.0, 120.0) is Step.WAIT


@pytest.mark.parametrize("holder", ["", None])
def test_a_released_lease_is_taken_at_once(holder: str | None) -> None:
    seen = Observation(Lease(spec=msgspec.structs.replace(HELD_SPEC, holder_identity=holder)), 100.0)
    assert decide(seen, "me", 15.0, 100.0) is Step.TAKE


def test_our_own_lease_is_renewed() -> None:
    assert decide(Observation(HELD, 100.0), "other", 15.0, 1000.0) is Step.RENEW


def test_taking_counts_a_transition_and_renewing_does_not() -> None:
    taken = claim(HELD_SPEC, "me", 14.2, 0.0)
    assert (taken.holder_identity, taken.lease_transitions, taken.lease_duration_seconds) == ("me", 4, 15)
    renewed = claim(taken, "me", 14.2, 60.0)
    assert (renewed.lease_transitions, renewed.acquire_time) == (4, "1970-01-01T00:00:00.000000Z")
    assert renewed.renew_time == "1970-01-01T00:01:00.000000Z"
    assert claim(None, "me", 15.0, 0.0).lease_transitions == 0


# ---- the elector


class LeaseStore:
    """The API server's part: one lease with optimistic concurrency, and failures on demand."""

    def __init__(self) -> None:
        self.lease: Lease | None = None
        self.version = 0
        self.failing: Callable[[], Exception | None] = lambda: None

    def _check(self) -> None:
        if error := self.failing():
            raise error

    def _store(self, body: Lease) -> Lease:
        self.version += 1
        metadata = msgspec.structs.replace(body.metadata, resource_version=str(self.version))
        self.lease = msgspec.structs.replace(body, metadata=metadata)
        return self.lease

    async def get(self, resource: Any, name: str, namespace: str) -> Lease:
        self._check()
        if self.lease is None:
            raise NotFoundError(404, "NotFound", "")
        return self.lease

    async def create(self, resource: Any, body: Lease, namespace: str) -> Lease:
        self._check()
        if self.lease is not None:
            raise ConflictError(409, "AlreadyExists", "")
        return self._store(body)

    async def replace(self, resource: Any, name: str, body: Lease, *, namespace: str) -> Lease:
        self._check()
        if self.lease is None or body.metadata.resource_version != self.lease.metadata.resource_version:
            raise ConflictError(409, "Conflict", "")
        return self._store(body)


def elector(store: LeaseStore, identity: str) -> LeaderElector:
    clock = asyncio.get_running_loop().time
    return LeaderElector(store, namespace="ns", name="l", identity=identity, clock=clock, epoch=clock)


class Work:
    """Leads until it is told to end, and remembers when it did."""

    def __init__(self, cleanup_s: float = 0.0) -> None:
        self.periods: list[list[float]] = []
        self.end = asyncio.Event()
        self.cleanup_s = cleanup_s

    async def __call__(self) -> None:
        now = asyncio.get_running_loop().time
        self.periods.append([now()])
        try:
            await self.end.wait()
        finally:
            await asyncio.sleep(self.cleanup_s)
            self.periods[-1].append(now())


async def cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def test_one_leads_and_the_other_takes_over_at_once_when_it_stops() -> None:
    async def main() -> None:
        store, first, second = LeaseStore(), Work(), Work()
        a, b = elector(store, "a"), elector(store, "b")
        running_a = asyncio.create_task(a.run(first))
        await asyncio.sleep(1.0)
        running_b = asyncio.create_task(b.run(second))
        await asyncio.sleep(60.0)
        assert (a.is_leader, b.is_leader, b.leader) == (True, False, "a")
        await cancel(running_a)
        assert store.lease is not None
        assert (store.lease.spec.holder_identity, a.is_leader) == ("", False)
        await asyncio.sleep(3.0)
        assert (b.is_leader, store.lease.spec.lease_transitions) == (True, 1)
        assert first.periods[0][1] <= second.periods[0][0]
        await cancel(running_b)

    run_virtually(main())


def test_a_leader_that_cannot_renew_ends_before_another_may_begin() -> None:
    async def main() -> None:
        store, first, second = LeaseStore(), Work(cleanup_s=3.0), Work()
        a, b = elector(store, "a"), elector(store, "b")
        running_a = asyncio.create_task(a.run(first))
        await asyncio.sleep(1.0)
        running_b = asyncio.create_task(b.run(second))
        await asyncio.sleep(30.0)
        a._client = Partitioned()
        await asyncio.sleep(30.0)
        assert (a.is_leader, b.is_leader) == (False, True)
        assert first.periods[0][1] < second.periods[0][0]
        await cancel(running_a)
        await cancel(running_b)

    class Partitioned:
        async def get(self, *_: Any) -> Lease:
            raise ConnectionLostError("no route", sent=False)

    run_virtually(main())


@pytest.mark.parametrize("hangs_from_s", [0.0, 3.0, 10.0])
def test_a_server_that_fails_and_then_hangs_ends_the_lead_in_time(hangs_from_s: float) -> None:
    async def main() -> None:
        store, work = LeaseStore(), Work()
        a = elector(store, "a")
        running = asyncio.create_task(a.run(work))
        await asyncio.sleep(0.1)
        a._client = FailingThenHanging()
        await asyncio.sleep(30.0)
        assert work.periods[0][1] == pytest.approx(10.0, abs=0.02)
        await cancel(running)

    class FailingThenHanging:
        async def get(self, *_: Any) -> Lease:
            if asyncio.get_running_loop().time() >= hangs_from_s:
                await asyncio.sleep(1e6)
            raise ConnectionLostError("refused", sent=False)

    run_virtually(main())


def test_the_lead_counts_from_the_sending_of_a_renewal_not_from_its_answer() -> None:
    class SlowAnswers(LeaseStore):
        async def create(self, resource: Any, body: Lease, namespace: str) -> Lease:
            stored = self._store(body)
            await asyncio.sleep(8.0)
            return stored

        async def replace(self, *_: Any, **__: Any) -> Lease:
            raise ConnectionLostError("no route", sent=False)

    async def main() -> None:
        a = elector(SlowAnswers(), "a")
        running = asyncio.create_task(a.run(Work()))
        await asyncio.sleep(9.9)
        assert a.is_leader
        await asyncio.sleep(0.2)
        assert not a.is_leader
        await cancel(running)

    run_virtually(main())


def test_a_short_outage_costs_nothing() -> None:
    async def main() -> None:
        store, work = LeaseStore(), Work()
        now = asyncio.get_running_loop().time
        store.failing = lambda: ConnectionLostError("x", sent=True) if 20.0 < now() < 26.0 else None
        a = elector(store, "a")
        running = asyncio.create_task(a.run(work))
        await asyncio.sleep(60.0)
        assert (len(work.periods), a.transitions, a.is_leader) == (1, 1, True)
        await cancel(running)

    run_virtually(main())


def test_a_lease_taken_by_force_ends_the_lead() -> None:
    async def main() -> None:
        store, work = LeaseStore(), Work()
        a = elector(store, "a")
        running = asyncio.create_task(a.run(work))
        await asyncio.sleep(5.0)
        assert store.lease is not None
        store._store(msgspec.structs.replace(store.lease, spec=HELD_SPEC))
        await asyncio.sleep(5.0)
        assert (len(work.periods[0]), a.is_leader, a.leader) == (2, False, "other")
        await asyncio.sleep(20.0)  # the robber never renews
        assert (a.is_leader, a.transitions) == (True, 2)
        await cancel(running)

    run_virtually(main())


def test_run_returns_with_its_work_and_releases() -> None:
    async def main() -> None:
        store, work = LeaseStore(), Work()
        a = elector(store, "a")
        running = asyncio.create_task(a.run(work))
        await asyncio.sleep(5.0)
        work.end.set()
        await running
        assert store.lease is not None
        assert store.lease.spec.holder_identity == ""

    run_virtually(main())


def test_work_that_fails_is_told_and_releases() -> None:
    async def fail() -> None:
        raise RuntimeError("broken")

    async def main() -> None:
        store = LeaseStore()
        with pytest.raises(RuntimeError, match="broken"):
            await elector(store, "a").run(fail)
        assert store.lease is not None
        assert store.lease.spec.holder_identity == ""

    run_virtually(main())


def test_the_lease_is_renewed_until_slow_work_has_ended() -> None:
    async def main() -> None:
        store, first, second = LeaseStore(), Work(cleanup_s=60.0), Work()
        a, b = elector(store, "a"), elector(store, "b")
        running_a = asyncio.create_task(a.run(first))
        await asyncio.sleep(1.0)
        running_b = asyncio.create_task(b.run(second))
        await asyncio.sleep(10.0)
        running_a.cancel()
        await asyncio.sleep(5.0)
        running_a.cancel()  # impatience changes nothing
        with suppress(asyncio.CancelledError):
            await running_a
        assert running_a.cancelled()
        await asyncio.sleep(5.0)
        assert first.periods[0][1] <= second.periods[0][0]
        await cancel(running_b)

    run_virtually(main())


def test_is_leader_follows_the_clock_even_if_nothing_runs() -> None:
    async def main() -> None:
        now_s = 0.0
        store = LeaseStore()
        a = LeaderElector(store, namespace="ns", name="l", identity="a", clock=lambda: now_s)
        running = asyncio.create_task(a.run(Work()))
        await asyncio.sleep(1.0)
        assert a.is_leader
        now_s = 10.0
        assert not a.is_leader
        await cancel(running)

    run_virtually(main())


@pytest.mark.parametrize(("lease_s", "deadline_s", "retry_s"), [(10.0, 10.0, 2.0), (15.0, 2.0, 2.0), (15.0, 10.0, 0.0)])
def test_times_that_could_give_two_leaders_are_refused(lease_s: float, deadline_s: float, retry_s: float) -> None:
    async def main() -> None:
        LeaderElector(
            LeaseStore(), namespace="ns", name="l", identity="a", lease_s=lease_s, renew_deadline_s=deadline_s,
            retry_s=retry_s,
        )  # fmt: skip

    with pytest.raises(ValueError, match="0 < retry_s < renew_deadline_s < lease_s"):
        run_virtually(main())
