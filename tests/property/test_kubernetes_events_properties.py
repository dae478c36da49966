import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from joulie.adapters.kubernetes.api.core import Event
from joulie.adapters.kubernetes.api.meta import ObjectReference
from joulie.adapters.kubernetes.errors import ApiError, ConflictError, ConnectionLostError
from joulie.adapters.kubernetes.events import EventRecorder, TokenBucket


class Server:
    """Counts what is written; loses what its faults say: a request, or only the answer."""

    def __init__(self, faults: Sequence[str] = ()) -> None:
        self.counts: dict[str, int] = {}
        self._faults = iter(faults)

    def _answer(self, act: Callable[[], None]) -> None:
        fault = next(self._faults, "")
        if fault == "busy":
            raise ApiError(503, "ServiceUnavailable", "")
        if fault != "request":
            act()
        if fault:
            raise ConnectionLostError("", sent=fault == "answer")

    async def create(self, resource: Any, body: Event, namespace: str) -> None:
        def act() -> None:
            if body.metadata.name in self.counts:
                raise ConflictError(409, "AlreadyExists", "")
            self.counts[body.metadata.name] = body.count or 0

        self._answer(act)

    async def patch(self, resource: Any, name: str, body: dict[str, Any], *, namespace: str) -> None:
        def act() -> None:
            assert body["count"] >= self.counts[name], "a count never falls"
            self.counts[name] = body["count"]

        self._answer(act)


emission = st.tuples(st.integers(0, 3), st.sampled_from("abc"), st.floats(0.0, 400.0), st.booleans())
faults = st.lists(st.sampled_from(["", "", "request", "answer", "busy"]), max_size=40)


@given(emissions=st.lists(emission, max_size=80), faults=faults)
def test_every_event_is_counted_once_or_dropped(
    emissions: list[tuple[int, str, float, bool]], faults: list[str]
) -> None:
    now_s = 0.0

    async def main() -> None:
        nonlocal now_s
        for index, message, pause_s, flush in emissions:
            now_s += pause_s
            recorder.emit(ObjectReference(kind="Pod", name=f"p{index}"), "Normal", "Seen", message)
            if flush:
                await recorder.flush()
        for _ in range(len(faults) + 1):
            await recorder.flush()

    server = Server(faults)
    recorder = EventRecorder(server, "test", clock=lambda: now_s)
    asyncio.run(main())
    assert sum(server.counts.values()) + recorder.dropped == len(emissions)


@given(
    burst=st.integers(1, 50),
    refill_per_s=st.floats(0.001, 10.0),
    steps=st.lists(st.floats(-10.0, 10.0), max_size=100),
)
def test_a_bucket_never_gives_more_than_it_got(burst: int, refill_per_s: float, steps: list[float]) -> None:
    bucket = TokenBucket(burst, refill_per_s, 0.0)
    now_s = latest_s = 0.0
    taken = 0
    for step_s in steps:
        now_s += step_s
        latest_s = max(latest_s, now_s)
        taken += bucket.take(now_s)
        assert taken <= burst + latest_s * refill_per_s + 1e-6
