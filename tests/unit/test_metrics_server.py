"""metrics.k8s.io as Metrics Server really answers."""

import asyncio
import json

import pytest

from joulie.adapters.kubernetes.errors import ApiError
from joulie.adapters.kubernetes.metrics_server import MetricsUnavailableError, node_usage, pod_usage
from support.scripted_server import client_of

TIME = "2026-03-13T12:00:00Z"
TIME_S = 1773403200.0


def asked(tmp_path, read, pages, status=200):
    """What `read` makes of pages of items, and the queries that it sent."""
    requests = []

    async def handle(request, answer):
        requests.append((request.path, request.query))
        page = int(request.query.get("continue", 0))
        more = {"continue": str(page + 1)} if page + 1 < len(pages) else {}
        body = {"kind": "List", "metadata": more, "items": pages[page]}
        await answer.whole(status, json.dumps(body).encode() if status == 200 else b"no")

    async def main():
        async with client_of(handle, tmp_path) as client:
            return await read(client)

    return asyncio.run(main()), requests


def pod(name, *usages, namespace="default"):
    containers = [{"name": f"c{index}", "usage": usage} for index, usage in enumerate(usages)]
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": "x"}},
        "timestamp": TIME,
        "window": "15.2s",
        "containers": containers,
    }


def node(name, usage, timestamp=TIME):
    return {"metadata": {"name": name}, "timestamp": timestamp, "window": "10.03s", "usage": usage}


def test_pods_are_the_sum_of_their_containers(tmp_path):
    pages = [
        [pod("a", {"cpu": "1500m", "memory": "1Gi"}, {"cpu": "250000000n", "memory": "512Mi"})],
        [pod("b", {"cpu": "0", "memory": "1000Ki"}, namespace="other")],
    ]
    usage, requests = asked(tmp_path, pod_usage, pages)
    assert usage.cpu_cores == {("default", "a"): 1.75, ("other", "b"): 0.0}
    assert usage.memory_bytes == {("default", "a"): 1.5 * 2**30, ("other", "b"): 1024_000.0}
    assert requests == [
        ("/apis/metrics.k8s.io/v1beta1/pods", {"limit": "5000"}),
        ("/apis/metrics.k8s.io/v1beta1/pods", {"limit": "5000", "continue": "1"}),
    ]


def test_what_is_missing_or_broken_is_left_out_not_zero(tmp_path):
    pages = [
        [
            pod("none"),
            pod("half", {"cpu": "1"}, {"cpu": "1", "memory": "1Gi"}),
            pod("negative", {"cpu": "-1", "memory": "1Gi"}),
            pod("nonsense", {"cpu": "many", "memory": "1Gi"}),
            {"metadata": {"namespace": "nameless"}},
            "no object",
        ]
    ]
    usage, _ = asked(tmp_path, pod_usage, pages)
    assert usage.cpu_cores == {("default", "half"): 2.0}
    assert usage.memory_bytes == {("default", "negative"): 2**30, ("default", "nonsense"): 2**30}


def test_nodes_have_the_time_of_their_measurement(tmp_path):
    pages = [[node("n1", {"cpu": "2500m", "memory": "1Gi"}), node("n2", {}), node("n3", {"cpu": "1"}, "yesterday")]]
    usage, requests = asked(tmp_path, node_usage, pages)
    assert usage == {"n1": (TIME_S, 2.5)}
    assert requests[0][0] == "/apis/metrics.k8s.io/v1beta1/nodes"


def test_no_items_at_all(tmp_path):
    assert asked(tmp_path, node_usage, [None])[0] == {}


@pytest.mark.parametrize("status", [403, 404, 503])
def test_a_cluster_without_it_says_so(tmp_path, status):
    with pytest.raises(MetricsUnavailableError, match=str(status)):
        asked(tmp_path, pod_usage, [[]], status)


def test_other_errors_stay_what_they_are(tmp_path):
    with pytest.raises(ApiError, match="401"):
        asked(tmp_path, pod_usage, [[]], 401)


def test_an_answer_that_is_no_list(tmp_path):
    async def handle(_request, answer):
        await answer.whole(200, b"<html>")

    async def main():
        async with client_of(handle, tmp_path) as client:
            await pod_usage(client)

    with pytest.raises(MetricsUnavailableError):
        asyncio.run(main())
