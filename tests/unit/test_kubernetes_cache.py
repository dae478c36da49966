import asyncio
import json
import logging
import random  # noqa: TID251 - jitter of an adapter, seeded here
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from joulie.adapters.kubernetes.api.core import Node
from joulie.adapters.kubernetes.api.meta import ObjectMeta
from joulie.adapters.kubernetes.cache import Backoff, Cache
from joulie.adapters.kubernetes.client import (
    ApiError,
    ConnectionLostError,
    EventKind,
    ForbiddenError,
    GoneError,
    InvalidError,
    Key,
    Listing,
    Unreadable,
    UnreadableAnswerError,
    WatchEvent,
)
from joulie.adapters.kubernetes.resources import NODES
from support.scripted_server import Answer, Request, client_of
from support.virtual_time import run_virtually

LOST = ConnectionLostError("gone", sent=True)
GONE = GoneError(410, "Expired", "too old")
FORBIDDEN = ForbiddenError(403, "Forbidden", "no")


def node(name: str, **labels: str) -> Node:
    return Node(metadata=ObjectMeta(name=name, labels=labels))


def change(kind: str, name: str, version: str, **labels: str) -> WatchEvent[Node]:
    return WatchEvent(EventKind(kind), Key("", name), version, node(name, **labels))


class Server:
    """Plays lists (pages, or an error among them) and watches (changes, or an error at last) in turn."""

    def __init__(self, lists: list[list[Any]], watches: list[list[Any]]) -> None:
        self.lists = lists
        self.watches = watches
        self.page_sizes: list[int] = []
        self.versions: list[str] = []
        self.times_s: list[float] = []
        self.over = asyncio.Event()

    async def pages(self, scope: Any, page_size: int) -> AsyncIterator[Listing[Node]]:
        self.page_sizes.append(page_size)
        for page in self.lists.pop(0):
            if isinstance(page, Exception):
                raise page
            yield page

    @asynccontextmanager
    async def open_watch(self, scope: Any, version: str, **_: float) -> AsyncIterator[Any]:
        self.versions.append(version)
        self.times_s.append(asyncio.get_running_loop().time())
        if not self.watches:
            self.over.set()
            await asyncio.Event().wait()
        steps = self.watches.pop(0)
        if steps[:1] == ["refused"]:
            raise steps[1]

        async def events() -> AsyncIterator[WatchEvent[Node]]:
            for step in steps:
                if isinstance(step, Exception):
                    raise step
                if isinstance(step, float):
                    await asyncio.sleep(step)
                else:
                    yield step

        yield events()


def page(*nodes: Node, version: str = "10", unreadable: tuple[Unreadable, ...] = ()) -> Listing[Node]:
    return Listing(list(nodes), version, list(unreadable))


def follow(
    lists: list[list[Any]], watches: list[list[Any]], keep: Any = lambda node: dict(node.metadata.labels)
) -> tuple[Cache[Node, Any], Server, list[Any]]:
    """Run a cache to the end of the script; gives what its listener heard."""

    async def main() -> tuple[Cache[Node, Any], Server, list[Any]]:
        server = Server(lists, watches)
        clock = asyncio.get_running_loop().time
        cache: Cache[Node, Any] = Cache(server, NODES, keep, clock=clock, backoff=Backoff(rng=random.Random(1)))
        heard: list[Any] = []
        cache.add_listener(lambda key, old, new: heard.append((key.name, old, new)))
        task = asyncio.create_task(cache.run())
        await server.over.wait()
        assert cache.synced
        await cache.wait_synced()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        return cache, server, heard

    return run_virtually(main())


def test_lists_then_watches_from_the_version_of_the_list() -> None:
    cache, server, heard = follow(
        [[page(node("a", x="1")), page(node("b"))]],
        [[change("MODIFIED", "a", "11", x="2"), change("DELETED", "b", "12"), change("ADDED", "c", "13")]],
    )
    assert dict(cache.objects) == {("", "a"): {"x": "2"}, ("", "c"): {}}
    assert heard == [
        ("a", None, {"x": "1"}), ("b", None, {}), ("a", {"x": "1"}, {"x": "2"}), ("b", {}, None), ("c", None, {}),
    ]  # fmt: skip
    assert server.versions == ["10", "13"]


def test_only_what_is_kept_and_changed_is_told() -> None:
    def kept(found: Node) -> str | None:
        return found.metadata.labels.get("keep")

    _, _, heard = follow(
        [[page(node("a"), node("b", keep="1"))]],
        [
            [
                change("MODIFIED", "b", "11", keep="1", noise="1"),
                change("MODIFIED", "b", "12"),
                change("DELETED", "b", "13"),
            ]
        ],
        kept,
    )
    assert heard == [("b", None, "1"), ("b", "1", None)]


def test_a_watch_that_ends_by_its_timeout_is_resumed_at_once() -> None:
    bookmark = WatchEvent(EventKind.BOOKMARK, Key("", ""), "20")
    cache, server, _ = follow([[page(node("a"))]], [[300.0, bookmark]])
    assert server.versions == ["10", "20"]
    assert server.times_s == [0.0, 300.0]
    assert (cache.counters.lists, cache.counters.watches, cache.counters.failures) == (1, 1, 0)


def test_a_broken_watch_resumes_from_the_last_version_after_a_pause() -> None:
    cache, server, _ = follow([[page(node("a"))]], [[change("ADDED", "b", "11"), 5.0, LOST]])
    assert server.versions == ["10", "11"]
    assert 5.25 <= server.times_s[1] <= 5.5
    assert (cache.counters.interruptions, cache.counters.failures, cache.problem) == (1, 0, None)


def test_a_healthy_watch_forgives_the_failures_before_it() -> None:
    _, server, _ = follow([[page(node("a"))]], [*[["refused", LOST]] * 6, [change("ADDED", "b", "11"), LOST]])
    pauses = [later - earlier for earlier, later in zip(server.times_s, server.times_s[1:], strict=False)]
    assert pauses[-2] >= 8.0
    assert pauses[-1] <= 0.5


def test_l6_idle_watches_do_not_lengthen_the_pauses() -> None:
    """API servers send a bookmark a minute: a shorter idle time ends every watch of a quiet resource."""
    _, server, _ = follow([[page(node("a"))]], [*[["refused", LOST]] * 6, *[[30.0, LOST]] * 8])
    pauses = [later - earlier for earlier, later in zip(server.times_s, server.times_s[1:], strict=False)]
    assert pauses[5] >= 8.0
    assert all(30.25 <= pause <= 30.5 for pause in pauses[6:])


def test_r9_an_idle_watch_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        follow([[page(node("a"))]], [[30.0, LOST]] * 3)
    assert caplog.records == []


def test_watches_that_end_as_they_begin_do_not_spin() -> None:
    _, server, _ = follow([[page(node("a"))]], [[], [], [], []])
    pauses = [later - earlier for earlier, later in zip(server.times_s, server.times_s[1:], strict=False)]
    assert all(pause >= 0.25 * 2**index for index, pause in enumerate(pauses))


UNUSABLE = [
    ["refused", GONE],
    [GONE],
    ["refused", ApiError(504, "Timeout", "Too large resource version")],
    ["refused", InvalidError(400, "BadRequest", "invalid resource version")],
    [UnreadableAnswerError("a change without metadata")],
]


@pytest.mark.parametrize("gone", UNUSABLE, ids=["too old", "too old later", "too new", "invalid", "unreadable"])
def test_a_version_of_no_use_lists_again_and_tells_the_differences(gone: list[Any]) -> None:
    cache, server, heard = follow(
        [
            [page(node("same"), node("changed", x="1"), node("vanished"))],
            [page(node("same"), node("changed", x="2"), node("new"), version="30")],
        ],
        [gone],
    )
    assert heard[3:] == [("changed", {"x": "1"}, {"x": "2"}), ("new", None, {}), ("vanished", {}, None)]
    assert server.versions == ["10", "30"]
    assert cache.counters.lists == 2


def test_a_version_that_expired_during_an_outage_costs_no_further_long_pause() -> None:
    """Else a change after an outage of minutes is seen more than a minute after the server is back."""
    pages = [[page(node("a"), version=str(number))] for number in range(5)]
    _, server, _ = follow(pages, [*[["refused", LOST]] * 8, *[["refused", GONE]] * 4])
    pauses = [later - earlier for earlier, later in zip(server.times_s, server.times_s[1:], strict=False)]
    assert pauses[7] >= 15.0
    assert pauses[8] <= 0.5
    assert all(pause >= 0.5 * 2**index for index, pause in enumerate(pauses[9:])), "lists that expire at once"


def test_a_list_that_expires_between_pages_starts_again_with_larger_ones() -> None:
    cache, server, heard = follow([[page(node("a")), GONE], [GONE], [page(node("a"), node("b"))]], [])
    assert server.page_sizes == [500, 5000, 0]
    assert sorted(heard) == [("a", None, {}), ("b", None, {})]
    assert (cache.counters.lists, cache.counters.failures) == (1, 0)


def test_a_list_that_fails_is_tried_again_with_growing_pauses() -> None:
    cache, server, _ = follow([[FORBIDDEN], [LOST], [LOST], [page(node("a"))]], [])
    assert 0.25 + 0.5 + 1.0 <= server.times_s[0] <= 0.5 + 1.0 + 2.0
    assert (cache.counters.failures, cache.problem) == (3, None)


def test_a_failure_is_shown_while_it_lasts(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        server = Server([[FORBIDDEN], [FORBIDDEN]], [])
        cache: Cache[Node, Any] = Cache(server, NODES, lambda node: node, backoff=Backoff(initial_s=100.0))
        task = asyncio.create_task(cache.run())
        await asyncio.sleep(1.0)
        assert not cache.synced
        assert "403 Forbidden" in (cache.problem or "")
        task.cancel()

    with caplog.at_level(logging.WARNING):
        run_virtually(main())
    assert [record.message for record in caplog.records] == ["cannot list or watch nodes, retrying"]


def test_silence_is_counted_from_the_last_sign_of_life() -> None:
    async def main() -> None:
        server = Server([[page(node("a"))]], [[10.0, WatchEvent(EventKind.BOOKMARK, Key("", ""), "11"), 1000.0]])
        clock = asyncio.get_running_loop().time
        cache: Cache[Node, Any] = Cache(server, NODES, lambda node: node, clock=clock)
        task = asyncio.create_task(cache.run())
        await asyncio.sleep(9.0)
        assert cache.silence_s() == 9.0
        await asyncio.sleep(4.0)
        assert cache.silence_s() == 3.0
        task.cancel()

    run_virtually(main())


def test_what_cannot_be_read_leaves_what_was_known() -> None:
    bad = Unreadable(Key("", "known"), "Expected `bool`")
    broken = WatchEvent(EventKind.MODIFIED, Key("", "known"), "12", None, "Expected `bool`")
    cache, server, heard = follow(
        [[page(node("known", x="1"))], [page(version="30", unreadable=(bad, Unreadable(None, "?")))]],
        [[broken], [GONE]],
    )
    assert dict(cache.objects) == {("", "known"): {"x": "1"}}
    assert heard == [("known", None, {"x": "1"})]
    assert server.versions[1] == "12"
    assert cache.counters.unreadable == 3


def test_an_object_that_cannot_be_kept_counts_as_unreadable() -> None:
    def strict(found: Node) -> float:
        return float(found.metadata.labels["watts"])

    cache, _, _ = follow([[page(node("good", watts="1"), node("bad", watts="much"))]], [], strict)
    assert dict(cache.objects) == {("", "good"): 1.0}
    assert cache.counters.unreadable == 1


def test_a_deleted_object_goes_even_if_it_cannot_be_read() -> None:
    gone = WatchEvent(EventKind.DELETED, Key("", "a"), "11", None, "Expected `bool`")
    cache, _, _ = follow([[page(node("a"))]], [[gone]])
    assert dict(cache.objects) == {}


def test_a_listener_that_fails_stops_neither_the_cache_nor_the_others() -> None:
    async def main() -> None:
        server = Server([[page(node("a"), node("b"))]], [])
        cache: Cache[Node, Any] = Cache(server, NODES, lambda node: node)
        heard: list[str] = []
        cache.add_listener(lambda *_: 1 / 0)
        cache.add_listener(lambda key, *_: heard.append(key.name))
        task = asyncio.create_task(cache.run())
        await server.over.wait()
        assert heard == ["a", "b"]
        assert cache.counters.listener_errors == 2
        task.cancel()

    run_virtually(main())


def test_the_view_is_live_and_read_only() -> None:
    cache, _, _ = follow([[page(node("a"))]], [])
    with pytest.raises(TypeError):
        cache.objects[Key("", "b")] = {}  # type: ignore[index]


def test_a_silent_connection_is_opened_anew_from_the_last_version(tmp_path: Path) -> None:
    versions: list[str] = []

    async def serve(request: Request, answer: Answer) -> None:
        if "watch" not in request.query:
            await answer.whole(200, b'{"metadata": {"resourceVersion": "5"}, "items": []}')
            return
        versions.append(request.query["resourceVersion"])
        await answer.begin()
        if len(versions) == 1:
            obj = {"metadata": {"name": "a", "resourceVersion": "6"}}
            await answer.chunk(json.dumps({"type": "ADDED", "object": obj}).encode() + b"\n")
        else:
            reopened.set()
        await asyncio.Event().wait()

    async def main() -> None:
        async with client_of(serve, tmp_path) as client:
            cache: Cache[Node, Any] = Cache(client, NODES, lambda node: 1, idle_s=0.01, backoff=Backoff(0.001, 0.002))
            task = asyncio.create_task(cache.run())
            async with asyncio.timeout(10):
                await reopened.wait()
            assert cache.counters.interruptions >= 1
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    reopened = asyncio.Event()
    asyncio.run(main())
    assert versions[:2] == ["5", "6"]
