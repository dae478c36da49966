import asyncio
from contextlib import suppress
from typing import Any

import pytest

from joulie.adapters.kubernetes.api.core import Event
from joulie.adapters.kubernetes.api.meta import ObjectReference
from joulie.adapters.kubernetes.client import ForbiddenError, NotFoundError
from joulie.adapters.kubernetes.errors import ConnectionLostError
from joulie.adapters.kubernetes.events import EventRecorder, TokenBucket

NODE = ObjectReference(kind="Node", name="n1", api_version="v1", uid="u1")
POD = ObjectReference(kind="Pod", name="p", namespace="team", uid="u2")


class Server:
    """Keeps what is written; refuses on demand."""

    def __init__(self) -> None:
        self.events: dict[tuple[str, str], Event] = {}
        self.patches: list[dict[str, Any]] = []
        self.refuse: Exception | None = None

    async def create(self, resource: Any, body: Event, namespace: str) -> Event:
        if self.refuse:
            raise self.refuse
        assert (namespace, body.metadata.name) not in self.events
        self.events[namespace, body.metadata.name] = body
        return body

    async def patch(self, resource: Any, name: str, body: dict[str, Any], *, namespace: str) -> None:
        if (namespace, name) not in self.events:
            raise NotFoundError(404, "NotFound", "expired")
        self.patches.append({"name": name, **body})


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def recorder(server: Server, clock: Clock) -> EventRecorder:
    return EventRecorder(server, "joulie-operator", instance="pod-1", clock=clock)


def test_an_event_tells_what_happened_to_whom_by_whom() -> None:
    server = Server()
    recording = recorder(server, Clock())
    recording.emit(POD, "Warning", "BadClass", "joulie.io/workload-class=perf is no class")
    asyncio.run(recording.flush())
    ((namespace, name),) = server.events
    event = server.events[namespace, name]
    assert (namespace, event.involved_object, event.type, event.reason) == ("team", POD, "Warning", "BadClass")
    assert (event.count, event.first_timestamp, event.last_timestamp) == (1, *["1970-01-01T00:00:00Z"] * 2)
    assert event.source is not None
    assert (event.source.component, event.source.host) == ("joulie-operator", "pod-1")
    assert name.startswith("p.")


def test_events_on_what_has_no_namespace_go_to_default() -> None:
    server = Server()
    recording = recorder(server, Clock())
    recording.emit(NODE, "Normal", "Capped", "capped to 200 W")
    asyncio.run(recording.flush())
    assert [namespace for namespace, _ in server.events] == ["default"]


def test_the_same_event_is_counted_before_and_after_it_is_written() -> None:
    server, clock = Server(), Clock()
    recording = recorder(server, clock)

    async def main() -> None:
        for _ in range(3):
            recording.emit(NODE, "Normal", "Capped", "capped")
        await recording.flush()
        clock.now_s = 60.0
        recording.emit(NODE, "Normal", "Capped", "capped")
        await recording.flush()

    asyncio.run(main())
    ((_, name),) = server.events
    assert server.events["default", name].count == 3
    assert server.patches == [{"name": name, "count": 4, "lastTimestamp": "1970-01-01T00:01:00Z"}]


@pytest.mark.parametrize("forgotten", ["by the server", "by time"])
def test_a_forgotten_event_starts_anew(forgotten: str) -> None:
    server, clock = Server(), Clock()
    recording = recorder(server, clock)

    async def main() -> None:
        recording.emit(NODE, "Normal", "Capped", "capped")
        await recording.flush()
        if forgotten == "by the server":
            server.events.clear()
        else:
            clock.now_s = 601.0
        recording.emit(NODE, "Normal", "Capped", "capped")
        await recording.flush()

    asyncio.run(main())
    assert [event.count for event in server.events.values()] == [1] * len(server.events)
    assert len(server.events) == (1 if forgotten == "by the server" else 2)
    assert not server.patches


def test_names_are_unique_and_short_enough() -> None:
    server = Server()
    recording = recorder(server, Clock())
    long = ObjectReference(kind="Node", name="n" * 253)
    for index in range(20):
        recording.emit(long, "Normal", "Capped", f"{index}")
    asyncio.run(recording.flush())
    assert len(server.events) == 20
    assert all(len(name) <= 253 for _, name in server.events)


def test_a_noisy_object_is_silenced_alone() -> None:
    server, clock = Server(), Clock()
    recording = recorder(server, clock)
    for index in range(100):
        recording.emit(NODE, "Normal", "Noise", f"{index}")
    recording.emit(POD, "Normal", "Quiet", "once")
    asyncio.run(recording.flush())
    assert sorted(event.reason for event in server.events.values()) == ["Noise"] * 25 + ["Quiet"]
    assert recording.dropped == 75


def test_what_waits_is_bounded() -> None:
    recording = recorder(Server(), Clock())
    for index in range(1500):
        recording.emit(ObjectReference(kind="Pod", name=f"p{index}"), "Normal", "Seen", "seen")
    assert recording.dropped == 500


def test_a_refused_event_is_dropped_and_the_next_is_written() -> None:
    server = Server()
    recording = recorder(server, Clock())

    async def main() -> None:
        server.refuse = ForbiddenError(403, "Forbidden", "namespace is terminating")
        recording.emit(NODE, "Normal", "Capped", "a")
        await recording.flush()
        server.refuse = None
        recording.emit(NODE, "Normal", "Capped", "b")
        await recording.flush()

    asyncio.run(main())
    assert [event.message for event in server.events.values()] == ["b"]
    assert (recording.written, recording.dropped) == (1, 1)


AWAY = ConnectionLostError("connection refused", sent=False)


def test_events_wait_while_the_server_is_away_for_sixty_tries() -> None:
    server = Server()
    recording = recorder(server, Clock())

    async def main() -> None:
        server.refuse = AWAY
        recording.emit(NODE, "Normal", "Capped", "a")
        for _ in range(58):
            await recording.flush()
        recording.emit(NODE, "Normal", "Capped", "a")
        recording.emit(NODE, "Normal", "Capped", "b")
        await recording.flush()
        assert recording.dropped == 0
        server.refuse = None
        await recording.flush()
        assert {event.message: event.count for event in server.events.values()} == {"b": 1, "a": 2}
        server.refuse = AWAY
        recording.emit(NODE, "Normal", "Capped", "c")
        for _ in range(60):
            assert recording.dropped == 0
            await recording.flush()

    asyncio.run(main())
    assert (recording.written, recording.dropped) == (2, 1)


def test_run_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("joulie.adapters.kubernetes.events._RETRY_S", 0.0)

    async def main() -> None:
        server = Server()
        server.refuse = AWAY
        recording = recorder(server, Clock())
        recording.emit(NODE, "Normal", "Capped", "a")
        task = asyncio.create_task(recording.run())
        for _ in range(20):
            await asyncio.sleep(0)
        server.refuse = None
        while not recording.written:
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_run_writes_what_comes() -> None:
    async def main() -> None:
        server = Server()
        recording = recorder(server, Clock())
        task = asyncio.create_task(recording.run())
        for index in range(3):
            recording.emit(NODE, "Normal", "Capped", f"{index}")
            while recording.written <= index:
                await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert len(server.events) == 3

    asyncio.run(main())


def test_a_bucket_refills_with_time_and_not_backwards() -> None:
    bucket = TokenBucket(2, 0.5, 100.0)
    assert [bucket.take(100.0) for _ in range(3)] == [True, True, False]
    assert not bucket.take(50.0)
    assert not bucket.take(101.9)
    assert bucket.take(102.0)
