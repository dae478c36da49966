"""What the fake cluster has beyond the contract of an API server: its disturbances, bounds and injected time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2 as httpx
import numpy as np
import pytest

from joulie_lab.fakes.kubernetes import FakeCluster, pods, watch
from joulie_lab.fakes.kubernetes.api import Api, Deletion, Writer
from joulie_lab.fakes.kubernetes.errors import StatusError
from joulie_lab.fakes.kubernetes.kinds import CRD, EVENT, NAMESPACE, NODE, POD, Json, Kind
from joulie_lab.fakes.kubernetes.watch import Follower, WatchRequest
from support.virtual_time import run_virtually

TEST = Writer("test")
CONFIG_MAP = Kind("", "v1", "configmaps", "ConfigMap")


def create(api: Api, name: str, **metadata: Any) -> Json:
    return api.create(CONFIG_MAP, "default", {"metadata": {"name": name, **metadata}}, TEST).obj


@asynccontextmanager
async def serving(cluster: FakeCluster) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": f"Bearer {cluster.token}"}
    async with cluster, httpx.AsyncClient(base_url=cluster.url, headers=headers, trust_env=False) as client:
        yield client


def served(play: Callable[[FakeCluster, httpx.AsyncClient], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        cluster = FakeCluster(**options)
        async with serving(cluster) as client:
            await play(cluster, client)

    asyncio.run(run())


def test_failures_on_demand_are_used_up() -> None:
    async def play(cluster: FakeCluster, client: httpx.AsyncClient) -> None:
        cluster.fail_next(1, 429, 3, method="GET", path="/nodes")
        cluster.fail_next(1, 503, path="/pods")
        assert (await client.get("/api/v1/namespaces")).status_code == 200
        refused = await client.get("/api/v1/nodes")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "3")
        assert refused.json()["reason"] == "TooManyRequests"
        assert (await client.get("/api/v1/pods")).json()["reason"] == "ServiceUnavailable"
        assert [(await client.get(f"/api/v1/{what}")).status_code for what in ("nodes", "pods")] == [200, 200]

    served(play)


def test_only_tokens_that_the_cluster_gave_are_taken() -> None:
    async def play(cluster: FakeCluster, client: httpx.AsyncClient) -> None:
        account = "/api/v1/namespaces/default/serviceaccounts"
        assert (await client.get("/api/v1/nodes", headers={"authorization": ""})).status_code == 401
        await client.post(account, json={"metadata": {"name": "agent"}})
        issued = (await client.post(f"{account}/agent/token", json={"spec": {}})).json()["status"]["token"]
        bearer = {"authorization": f"Bearer {issued}"}
        assert (await client.get("/api/v1/nodes", headers=bearer)).status_code == 200
        assert (await client.post(f"{account}/none/token", json={})).status_code == 404

    served(play)


def test_dropped_connections_break_a_watch_in_the_middle() -> None:
    async def play(cluster: FakeCluster, client: httpx.AsyncClient) -> None:
        async with client.stream("GET", "/api/v1/namespaces?watch=1&resourceVersion=0") as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            cluster.drop_connections()
            with pytest.raises(httpx.TransportError):
                async for _ in lines:
                    pass

    served(play)


def test_an_outage_keeps_objects_and_port() -> None:
    async def play(cluster: FakeCluster, client: httpx.AsyncClient) -> None:
        create(cluster.api, "a")
        url = cluster.url
        await cluster.stop()
        with pytest.raises(httpx.TransportError):
            await client.get("/api/v1/configmaps")
        await cluster.start()
        assert cluster.url == url
        found = (await client.get("/api/v1/configmaps")).json()["items"]
        assert [item["metadata"]["name"] for item in found] == ["a"]

    served(play)


def test_watches_end_when_the_server_stops() -> None:
    async def play(cluster: FakeCluster, client: httpx.AsyncClient) -> None:
        async with client.stream("GET", "/api/v1/namespaces?watch=1&resourceVersion=0") as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            stopping = asyncio.create_task(cluster.stop())
            left = [line async for line in lines]
            assert all('"ADDED"' in line for line in left if line)
            await stopping

    served(play)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/api/v1/dreams", 404),
        ("GET", "/api/v1/namespaces/default/nodes/a", 404),
        ("GET", "/api/v1/nodes/a/b/c/d", 404),
        ("GET", "/api/v1/configmaps/a", 404),
        ("POST", "/api/v1/configmaps", 405),
        ("PUT", "/api/v1/namespaces/default/configmaps", 405),
        ("PATCH", "/api/v1/nodes", 405),
        ("OPTIONS", "/api/v1/nodes", 405),
        ("GET", "/api/v1/namespaces/default/pods/a/binding", 405),
        ("GET", "/api/v1/nodes?limit=many", 400),
        ("GET", "/api/v1/nodes?resourceVersion=999999999", 504),
        ("GET", "/readyz", 200),
        ("GET", "/version", 200),
        ("GET", "/apis", 200),
        ("GET", "/apis/joulie.io/v1alpha1", 200),
    ],
)
def test_paths(method: str, path: str, status: int) -> None:
    async def play(cluster: FakeCluster, client: httpx.AsyncClient) -> None:
        assert (await client.request(method, path)).status_code == status

    served(play)


def test_bodies_that_are_no_json_are_refused() -> None:
    async def play(cluster: FakeCluster, client: httpx.AsyncClient) -> None:
        path = "/api/v1/namespaces/default/configmaps"
        for content in (b"metadata:\n  name: a", b"[]"):
            assert (await client.post(path, content=content)).status_code == 400

    served(play)


def test_delayed_watches_come_late() -> None:
    async def run() -> list[float]:
        api = FakeCluster().api
        clock = asyncio.get_running_loop().time
        create(api, "a")
        asyncio.get_running_loop().call_later(1.0, create, api, "b")
        request = WatchRequest(CONFIG_MAP, "", None, None, 10.0, None)
        return [clock() async for _ in watch.stream(api.store, request, lambda: False, lambda: 5.0)]

    assert run_virtually(run()) == [0.0, 6.0]


def test_a_watcher_that_falls_behind_is_told_so() -> None:
    async def run() -> list[bytes]:
        api = FakeCluster(history=10).api
        create(api, "a")
        start = api.store.revision
        for number in range(25):
            create(api, f"c{number}")
        request = WatchRequest(CONFIG_MAP, "", None, start, 10.0, None)
        return [portion async for portion in watch.stream(api.store, request, lambda: False, lambda: 0.0)]

    (only,) = run_virtually(run())
    assert b'"type":"ERROR"' in only
    assert b'"code":410' in only


def test_history_and_snapshots_are_bounded() -> None:
    api = FakeCluster(history=10).api
    for number in range(100):
        create(api, f"c{number}")
    assert len(api.store.table(CONFIG_MAP).since(api.store.table(CONFIG_MAP).floor, 1000)) < 20


def test_old_events_go_first() -> None:
    api = FakeCluster(max_events=3).api
    for number in range(5):
        api.create(EVENT, "default", {"metadata": {"name": f"e{number}"}, "involvedObject": {}}, TEST)
    assert [stored.key.name for stored in api.store.table(EVENT).in_order("")] == ["e2", "e3", "e4"]


def test_time_and_randomness_are_given() -> None:
    def build() -> list[str]:
        rng = np.random.default_rng(7)
        cluster = FakeCluster(now=lambda: datetime(2026, 3, 13, 12, tzinfo=UTC), entropy=rng.bytes)
        made = cluster.api.create(CONFIG_MAP, "default", {"metadata": {"generateName": "g-"}}, TEST).obj["metadata"]
        assert made["creationTimestamp"] == "2026-03-13T12:00:00Z"
        return [made["name"], made["uid"], cluster.token]

    assert build() == build()


def test_a_namespace_takes_its_objects_along() -> None:
    api = FakeCluster().api
    api.create(NAMESPACE, "", {"metadata": {"name": "team"}}, TEST)
    api.create(CONFIG_MAP, "team", {"metadata": {"name": "a"}}, TEST)
    create(api, "b")
    api.delete(NAMESPACE, "", "team")
    assert [stored.key for stored in api.store.table(CONFIG_MAP).in_order("")] == [("default", "b")]


def test_orphans_stay_and_shared_objects_lose_one_owner() -> None:
    api = FakeCluster().api
    references = [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": create(api, name)["metadata"]["uid"]}
        for name in ("one", "two")
    ]
    create(api, "shared", ownerReferences=references)
    create(api, "orphan", ownerReferences=references[:1])
    api.delete(CONFIG_MAP, "default", "one", Deletion(orphan=True))
    orphan = api.get(CONFIG_MAP, "default", "orphan").obj
    assert orphan["metadata"]["ownerReferences"] == []
    api.delete(CONFIG_MAP, "default", "two")
    assert api.find(CONFIG_MAP, "default", "shared") is None


def test_definitions_bring_and_take_their_resource() -> None:
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": {"n": {"type": "integer"}}}}}
    definition = {
        "metadata": {"name": "dreams.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "dreams", "kind": "Dream"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }
    api = FakeCluster([definition]).api
    dreams = api.kind("example.com", "v1", "dreams")
    api.create(dreams, "default", {"metadata": {"name": "a"}, "spec": {"n": 1, "x": 2}}, TEST)
    assert api.get(dreams, "default", "a").obj["spec"] == {"n": 1}
    with pytest.raises(StatusError, match="must be of type integer"):
        api.create(dreams, "default", {"metadata": {"name": "b"}, "spec": {"n": "one"}}, TEST)
    with pytest.raises(StatusError, match="could not find"):
        api.kind("joulie.io", "v1alpha1", "nodetwins")
    api.delete(CRD, "", "dreams.example.com")
    with pytest.raises(StatusError, match="could not find"):
        api.kind("example.com", "v1", "dreams")


def test_followers_miss_nothing_even_when_they_fall_behind() -> None:
    api = FakeCluster(history=5).api
    with Follower(api.store, NODE, asyncio.Event()) as follower:
        api.create(NODE, "", {"metadata": {"name": "a"}}, TEST)
        api.create(NODE, "", {"metadata": {"name": "b"}}, TEST)
        assert [change.new.key.name for change in follower.changes() if change.new] == ["a", "b"]
        assert follower.changes() == []
        for number in range(40):
            api.create(NODE, "", {"metadata": {"name": f"n{number}"}}, TEST)
            api.delete(NODE, "", f"n{number}")
        api.delete(NODE, "", "a")
        api.create(NODE, "", {"metadata": {"name": "c"}}, TEST)
        changes = follower.changes()
        assert [(c.old and c.old.key.name, c.new and c.new.key.name) for c in changes] == [("a", None), (None, "c")]


def test_the_kubeconfig_is_one(tmp_path: Path) -> None:
    async def run() -> None:
        async with FakeCluster() as cluster:
            written = cluster.kubeconfig(tmp_path / "kubeconfig").read_text()
            assert cluster.url in written
            assert cluster.token in written

    asyncio.run(run())


def test_bindings_of_another_pods_uid_are_refused() -> None:
    api = FakeCluster().api
    body = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}}
    api.create(POD, "default", body, TEST)
    with pytest.raises(StatusError, match="UID in precondition"):
        pods.bind(api, "default", "p", {"metadata": {"uid": "other"}, "target": {"name": "n"}})
    with pytest.raises(StatusError, match=r"target\.name"):
        pods.bind(api, "default", "p", {})
