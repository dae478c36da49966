"""What every API server must do with watches, and clients with bad connections: same checks for fake and real."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from joulie.adapters.kubernetes.cache import Backoff, Cache
from joulie.adapters.kubernetes.client import (
    ConnectionLostError,
    EventKind,
    GoneError,
    KubeClient,
    TooManyRequestsError,
)
from joulie.adapters.kubernetes.resources import CONFIG_MAPS, NODE_TWINS, PODS, Resource
from support.object_contract import config_map, pod, twin_spec
from support.subject import WAIT_S, Json, Subject, eventually

# Each real namespace gets this one, at a time of the controller manager's choosing.
OURS = "metadata.name!=kube-root-ca.crt"


async def now(subject: Subject, resource: Resource[Any] = CONFIG_MAPS) -> str:
    """The version to watch from."""
    return (await subject.client.list(resource, namespace=subject.namespace)).resource_version


def seen(events: list[Any]) -> list[tuple[str, str]]:
    return [(event.kind.value, event.key.name) for event in events]


async def check_changes_come_in_order(subject: Subject) -> None:
    start = await now(subject)
    namespace = subject.namespace
    await subject.client.create(CONFIG_MAPS, config_map("a", key="1"), namespace)
    await subject.client.create(CONFIG_MAPS, config_map("b"), namespace)
    await subject.client.patch(CONFIG_MAPS, "a", {"data": {"key": "2"}}, namespace=namespace)
    await subject.client.delete(CONFIG_MAPS, "b", namespace)
    events = await subject.events(CONFIG_MAPS, start, 4, namespace=namespace, field_selector=OURS)
    assert seen(events) == [("ADDED", "a"), ("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b")]
    versions = [int(event.resource_version) for event in events]
    assert versions == sorted(set(versions))
    resumed = await subject.events(CONFIG_MAPS, events[1].resource_version, 2, namespace=namespace, field_selector=OURS)
    assert seen(resumed) == [("MODIFIED", "a"), ("DELETED", "b")]


async def check_an_open_watch_hears_what_happens_later(subject: Subject) -> None:
    start = await now(subject)
    waiting = asyncio.create_task(
        subject.events(CONFIG_MAPS, start, 1, namespace=subject.namespace, field_selector=OURS)
    )
    await asyncio.sleep(0.1)
    await subject.client.create(CONFIG_MAPS, config_map("a"), subject.namespace)
    assert seen(await waiting) == [("ADDED", "a")]


async def check_writes_without_change_are_not_heard_of(subject: Subject) -> None:
    name = subject.name("n")
    await subject.apply(NODE_TWINS, name, "m", {"spec": twin_spec()})
    start = (await subject.client.get(NODE_TWINS, name)).metadata.resource_version
    await subject.apply(NODE_TWINS, name, "m", {"spec": twin_spec()})
    await subject.client.patch(NODE_TWINS, name, {"spec": {"profile": "performance"}})
    await subject.apply(NODE_TWINS, name, "m", {"spec": twin_spec("eco")})
    events = await subject.events(NODE_TWINS, start, 1, field_selector=f"metadata.name={name}")
    assert events[0].object is not None
    assert events[0].object.spec.profile == "eco"


async def check_watches_without_version_begin_with_what_is_there(subject: Subject) -> None:
    for name in ("a", "b"):
        await subject.client.create(CONFIG_MAPS, config_map(name), subject.namespace)
    for start in ("", "0"):
        events = await subject.events(
            CONFIG_MAPS,
            start,
            2,
            namespace=subject.namespace,
            label_selector="",
            field_selector=OURS,
        )
        assert sorted(seen(events)) == [("ADDED", "a"), ("ADDED", "b")]


async def check_entering_and_leaving_a_selector(subject: Subject) -> None:
    namespace = subject.namespace
    start = await now(subject)

    async def label(value: str | None) -> None:
        await subject.client.patch(CONFIG_MAPS, "a", {"metadata": {"labels": {"in": value}}}, namespace=namespace)

    await subject.client.create(CONFIG_MAPS, config_map("a"), namespace)
    await label("yes")
    await subject.client.patch(CONFIG_MAPS, "a", {"data": {"x": "y"}}, namespace=namespace)
    await label("no")
    await subject.client.delete(CONFIG_MAPS, "a", namespace)
    await subject.client.create(CONFIG_MAPS, {"metadata": {"name": "end", "labels": {"in": "yes"}}}, namespace)
    events = await subject.events(CONFIG_MAPS, start, 4, namespace=namespace, label_selector="in=yes")
    assert seen(events) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a"), ("ADDED", "end")]


async def check_field_selectors_follow_a_pod_to_its_node(subject: Subject) -> None:
    namespace = subject.namespace
    start = await now(subject, PODS)
    await subject.client.create(PODS, pod("p"), namespace)
    target = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "p"},
        "target": {"kind": "Node", "name": "n-x"},
    }
    await subject.client.create_subresource(PODS, "p", "binding", target, namespace)
    on_node = await subject.events(PODS, start, 1, namespace=namespace, field_selector="spec.nodeName=n-x")
    waiting = await subject.events(PODS, start, 2, namespace=namespace, field_selector="spec.nodeName=")
    assert seen(on_node) == [("ADDED", "p")]
    assert seen(waiting) == [("ADDED", "p"), ("DELETED", "p")]
    await subject.client.delete(PODS, "p", namespace, grace_s=0)


async def check_bookmarks_tell_from_where_to_resume(subject: Subject) -> None:
    start = await now(subject)
    await subject.client.create(CONFIG_MAPS, config_map("a"), subject.namespace)
    events = []
    # API servers send one shortly before the end of a watch, if something has happened since its beginning.
    async for event in subject.client.watch(
        CONFIG_MAPS, start, namespace=subject.namespace, field_selector=OURS, timeout_s=5
    ):
        events.append(event)
        if event.kind is EventKind.BOOKMARK:
            break
        if len(events) == 1:
            await subject.client.create(CONFIG_MAPS, config_map("b"), subject.namespace)
    assert seen(events) == [("ADDED", "a"), ("ADDED", "b"), ("BOOKMARK", "")]
    assert int(events[2].resource_version) >= int(events[1].resource_version)
    following = await subject.client.create(CONFIG_MAPS, config_map("c"), subject.namespace)
    resumed = await subject.events(
        CONFIG_MAPS, events[-1].resource_version, 1, namespace=subject.namespace, field_selector=OURS
    )
    assert resumed[0].resource_version == following.metadata.resource_version


async def check_a_watch_ends_in_time(subject: Subject) -> None:
    watch = subject.client.watch(
        CONFIG_MAPS, await now(subject), namespace=subject.namespace, field_selector=OURS, timeout_s=1
    )
    async with asyncio.timeout(WAIT_S):
        assert [event.key.name async for event in watch if event.kind is not EventKind.BOOKMARK] == []


async def check_versions_of_long_ago_are_gone(subject: Subject) -> None:
    await subject.restart()  # which empties a real server's cache
    with pytest.raises(GoneError, match="too old resource version"):
        await subject.events(CONFIG_MAPS, "1", 1, namespace=subject.namespace)


async def check_broken_versions_are_refused(subject: Subject) -> None:
    with pytest.raises(Exception, match=r"resourceVersion|resource version"):
        await subject.events(CONFIG_MAPS, "yesterday", 1, namespace=subject.namespace)


# ---- disturbances


@asynccontextmanager
async def cache_of(client: KubeClient, subject: Subject) -> AsyncIterator[Cache[Any, Json]]:
    """A running cache of the check's ConfigMaps."""
    cache: Cache[Any, Json] = Cache(
        client, CONFIG_MAPS, lambda obj: {"version": obj.metadata.resource_version}, namespace=subject.namespace,
        field_selector=OURS, backoff=Backoff(initial_s=0.05, max_s=0.5),
    )  # fmt: skip
    running = asyncio.create_task(cache.run())
    try:
        await asyncio.wait_for(cache.wait_synced(), 30)
        yield cache
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def names(cache: Cache[Any, Json]) -> set[str]:
    return {key.name for key in cache.objects}


async def check_overload_is_waited_out(subject: Subject) -> None:
    async with subject.disturbed() as (client, proxy):
        proxy.refuse(2, 429, 1)
        await client.create(CONFIG_MAPS, config_map("a"), subject.namespace)
        assert len(proxy.requests) == 3
        proxy.refuse(100, 429, 0)
        with pytest.raises(TooManyRequestsError):
            await client.get(CONFIG_MAPS, "a", subject.namespace)


async def check_a_cache_survives_broken_connections(subject: Subject) -> None:
    async with subject.disturbed() as (client, proxy), cache_of(client, subject) as cache:
        await subject.client.create(CONFIG_MAPS, config_map("before"), subject.namespace)
        await eventually(lambda: names(cache) == {"before"})
        await eventually(lambda: cache.counters.watches == 1)
        proxy.break_connections()
        await subject.client.create(CONFIG_MAPS, config_map("meanwhile"), subject.namespace)
        await subject.client.delete(CONFIG_MAPS, "before", subject.namespace)
        await eventually(lambda: names(cache) == {"meanwhile"})
        assert cache.counters.lists == 1


async def check_a_cache_survives_overload(subject: Subject) -> None:
    async with subject.disturbed() as (client, proxy), cache_of(client, subject) as cache:
        await eventually(lambda: cache.counters.watches == 1)
        proxy.refuse(3, 503, 1)
        proxy.break_connections()
        await subject.client.create(CONFIG_MAPS, config_map("a"), subject.namespace)
        await eventually(lambda: names(cache) == {"a"})


async def check_a_slow_watch_loses_nothing(subject: Subject) -> None:
    async with subject.disturbed() as (client, proxy), cache_of(client, subject) as cache:
        proxy.slow_s = 0.05
        for number in range(20):
            await subject.client.create(CONFIG_MAPS, config_map(f"c{number}"), subject.namespace)
        await eventually(lambda: len(cache.objects) == 20)
        found = await subject.client.list(CONFIG_MAPS, namespace=subject.namespace)
        versions = {item.metadata.name: item.metadata.resource_version for item in found.items}
        assert all(kept["version"] == versions[key.name] for key, kept in cache.objects.items())


async def check_a_cache_lists_again_after_a_compaction(subject: Subject) -> None:
    async with subject.disturbed() as (client, proxy), cache_of(client, subject) as cache:
        await subject.client.create(CONFIG_MAPS, config_map("a"), subject.namespace)
        await eventually(lambda: names(cache) == {"a"})
        proxy.refuse(10_000, 503, 1)
        proxy.break_connections()
        await subject.client.delete(CONFIG_MAPS, "a", subject.namespace)
        await subject.client.create(CONFIG_MAPS, config_map("b"), subject.namespace)
        await subject.compact()
        await subject.restart()
        proxy.refuse(0, 503, 1)
        await eventually(lambda: names(cache) == {"b"})
        assert cache.counters.lists == 2


async def check_a_cache_survives_a_restart_of_the_server(subject: Subject) -> None:
    async with cache_of(subject.client, subject) as cache:
        await subject.client.create(CONFIG_MAPS, config_map("a"), subject.namespace)
        await eventually(lambda: names(cache) == {"a"})
        await subject.restart()
        for _ in range(300):
            try:
                await subject.client.create(CONFIG_MAPS, config_map("b"), subject.namespace)
                break
            except ConnectionLostError:
                await asyncio.sleep(0.1)
        await eventually(lambda: names(cache) == {"a", "b"})


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_")]
