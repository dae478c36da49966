import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from joulie.adapters.kubernetes.api.core import Lease, LeaseSpec
from joulie.adapters.kubernetes.api.meta import ObjectMeta
from joulie.adapters.kubernetes.api.v1alpha1 import NodeTwin
from joulie.adapters.kubernetes.client import (
    ConflictError,
    ConnectionLostError,
    EventKind,
    ForbiddenError,
    GoneError,
    InvalidError,
    Key,
    KubeClient,
    KubernetesError,
    NotFoundError,
    PatchKind,
    RetryPolicy,
    TooManyRequestsError,
    UnreadableAnswerError,
)
from joulie.adapters.kubernetes.resources import LEASES, NODE_TWINS, NODES, PODS
from joulie.adapters.kubernetes.wire import split_lines
from support.scripted_server import Answer, Handler, Request, client_of

Talk = Callable[[KubeClient], Coroutine[Any, Any, Any]]


class Script:
    """Gives its answers in turn, the last one for ever, and remembers what it was asked."""

    def __init__(self, *answers: tuple[int, Any] | tuple[int, Any, str]) -> None:
        self.answers = list(answers)
        self.requests: list[Request] = []

    async def __call__(self, request: Request, answer: Answer) -> None:
        self.requests.append(request)
        status, body, *headers = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if status == 0:
            answer.drop()
        else:
            await answer.whole(status, body if isinstance(body, bytes) else json.dumps(body).encode(), *headers)


def ask(handler: Handler, tmp_path: Path, talk: Talk, **options: Any) -> Any:
    async def main() -> Any:
        async with client_of(handler, tmp_path, **options) as client:
            return await talk(client)

    return asyncio.run(main())


def failure(code: int, reason: str, message: str = "because", **details: Any) -> dict[str, Any]:
    return {"kind": "Status", "code": code, "reason": reason, "message": message, "details": details}


def node(name: str, version: str = "1") -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": version}}


def listing(*items: Any, version: str = "7", token: str = "") -> dict[str, Any]:
    return {"metadata": {"resourceVersion": version, "continue": token}, "items": list(items)}


# ---- objects


def test_an_object_is_decoded_into_its_type(tmp_path: Path) -> None:
    script = Script((200, node("n1")))
    found = ask(script, tmp_path, lambda client: client.get(NODES, "n1"))
    assert (type(found), found.metadata.name) == (NODES.type, "n1")
    assert script.requests[0].path == "/api/v1/nodes/n1"
    assert script.requests[0].headers["user-agent"] == "joulie"


def test_whole_watts_survive_both_ways(tmp_path: Path) -> None:
    twin = {
        "metadata": {"name": "n1"},
        "spec": {"nodeName": "n1", "profile": "eco", "cpu": {"packagePowerCapWatts": 200}},
    }
    script = Script((200, twin))
    found = ask(script, tmp_path, lambda client: client.get(NODE_TWINS, "n1"))
    cap_w = found.spec.cpu.package_power_cap_watts
    assert (type(cap_w), cap_w) == (float, 200.0)

    ask(script, tmp_path, lambda client: client.apply(NODE_TWINS, "n1", found, field_manager="test"))
    assert json.loads(script.requests[-1].body)["spec"]["cpu"]["packagePowerCapWatts"] == 200


def test_apply_fills_in_what_every_object_needs(tmp_path: Path) -> None:
    script = Script((200, node("n1")))
    body = {"metadata": {"labels": {"a": "b"}}}
    ask(script, tmp_path, lambda client: client.apply(NODES, "n1", body, field_manager="joulie", subresource="status"))
    request = script.requests[0]
    assert (request.method, request.path) == ("PATCH", "/api/v1/nodes/n1/status")
    assert request.query == {"fieldManager": "joulie", "force": "true"}
    assert request.headers["content-type"] == "application/apply-patch+yaml"
    assert json.loads(request.body) == {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n1", "labels": {"a": "b"}},
    }


def test_create_takes_the_namespace_from_the_object(tmp_path: Path) -> None:
    script = Script((201, {"metadata": {"name": "l"}}))
    lease = Lease(metadata=ObjectMeta(name="l", namespace="power"), spec=LeaseSpec(holder_identity="me"))
    ask(script, tmp_path, lambda client: client.create(LEASES, lease))
    assert script.requests[0].path == "/apis/coordination.k8s.io/v1/namespaces/power/leases"


def test_delete_says_which_object_is_meant(tmp_path: Path) -> None:
    script = Script((200, {}))
    ask(script, tmp_path, lambda client: client.delete(PODS, "p", "ns", grace_s=0, uid="u", propagation="Background"))
    assert json.loads(script.requests[0].body) == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "gracePeriodSeconds": 0,
        "preconditions": {"uid": "u"},
        "propagationPolicy": "Background",
    }


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_json_cannot_carry_is_refused_before_it_is_sent(tmp_path: Path, value: float) -> None:
    script = Script((200, {}))
    body = {"status": {"powerMeasurement": {"measuredNodePowerW": value}}}
    with pytest.raises(InvalidError, match=r"status\.powerMeasurement\.measuredNodePowerW"):
        ask(script, tmp_path, lambda client: client.patch(NODE_TWINS, "n1", body))
    assert script.requests == []


def test_an_object_that_does_not_fit_says_where(tmp_path: Path) -> None:
    script = Script((200, {"metadata": {"name": "n1", "labels": {"a": 1}}}))
    with pytest.raises(UnreadableAnswerError, match=r"Node n1: .*\$\.metadata\.labels"):
        ask(script, tmp_path, lambda client: client.get(NODES, "n1"))


def test_version(tmp_path: Path) -> None:
    assert ask(Script((200, {"gitVersion": "v1.36.3"})), tmp_path, lambda client: client.version()) == "v1.36.3"


# ---- errors


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (404, "NotFound", NotFoundError),
        (409, "Conflict", ConflictError),
        (410, "Expired", GoneError),
        (403, "Forbidden", ForbiddenError),
        (422, "Invalid", InvalidError),
    ],
)
def test_errors_have_types_and_are_not_repeated(tmp_path: Path, code: int, reason: str, kind: type) -> None:
    script = Script((code, failure(code, reason)))
    with pytest.raises(kind) as raised:
        ask(script, tmp_path, lambda client: client.get(NODES, "n1"))
    assert (raised.value.status, raised.value.reason, raised.value.message) == (code, reason, "because")
    assert len(script.requests) == 1


def test_forbidden_says_what_to_grant(tmp_path: Path) -> None:
    script = Script((403, failure(403, "Forbidden")))
    with pytest.raises(ForbiddenError, match=r"grant the verb patch on nodetwins\.joulie\.io/status n1"):
        ask(
            script,
            tmp_path,
            lambda client: client.apply(NODE_TWINS, "n1", {}, field_manager="test", subresource="status"),
        )


def test_refused_at_admission_is_no_matter_of_rbac(tmp_path: Path) -> None:
    answer = failure(403, "Forbidden", "ValidatingAdmissionPolicy 'x' with binding 'x' denied request: not your node")
    with pytest.raises(ForbiddenError, match="not your node") as raised:
        ask(Script((403, answer)), tmp_path, lambda client: client.get(NODES, "n1"))
    assert "RBAC" not in str(raised.value)


def test_an_error_that_is_no_status_object_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(KubernetesError, match="<html>bad gateway"):
        ask(Script((502, b"<html>bad gateway</html>")), tmp_path, lambda client: client.get(NODES, "n1"))


# ---- repeating


@pytest.mark.parametrize("first", [(429, failure(429, "TooManyRequests")), (503, failure(503, "x")), (0, b"")])
def test_reading_is_repeated_when_the_server_is_busy_or_gone(tmp_path: Path, first: tuple[int, Any]) -> None:
    script = Script(first, (200, node("n1")))
    assert ask(script, tmp_path, lambda client: client.get(NODES, "n1")).metadata.name == "n1"
    assert len(script.requests) == 2


@pytest.mark.parametrize("status", [0, 500])
def test_creating_is_not_repeated_once_it_was_sent(tmp_path: Path, status: int) -> None:
    script = Script((status, failure(500, "x")), (201, node("n1")))
    with pytest.raises(KubernetesError) as raised:
        ask(script, tmp_path, lambda client: client.create(NODES, {"metadata": {"name": "n1"}}))
    assert len(script.requests) == 1
    if status == 0:
        assert isinstance(raised.value, ConnectionLostError)
        assert raised.value.sent


def test_creating_is_repeated_when_the_server_refused_it_for_its_load(tmp_path: Path) -> None:
    script = Script((429, failure(429, "TooManyRequests")), (201, node("n1")))
    ask(script, tmp_path, lambda client: client.create(NODES, {"metadata": {"name": "n1"}}))
    assert len(script.requests) == 2


def test_json_patches_are_not_repeated(tmp_path: Path) -> None:
    script = Script((500, failure(500, "x")), (200, node("n1")))
    patch = [{"op": "add", "path": "/spec/taints/-", "value": {}}]
    with pytest.raises(KubernetesError):
        ask(script, tmp_path, lambda client: client.patch(NODES, "n1", patch, kind=PatchKind.JSON))
    assert json.loads(script.requests[0].body) == patch


def test_an_eviction_against_a_disruption_budget_is_not_repeated(tmp_path: Path) -> None:
    script = Script((429, failure(429, "TooManyRequests", causes=[{"reason": "DisruptionBudget"}])))
    with pytest.raises(TooManyRequestsError) as raised:
        ask(script, tmp_path, lambda client: client.create_subresource(PODS, "p", "eviction", {}, "ns"))
    assert raised.value.disruption_budget
    assert len(script.requests) == 1


def test_attempts_are_bounded(tmp_path: Path) -> None:
    script = Script((503, failure(503, "ServiceUnavailable")))
    with pytest.raises(KubernetesError, match="503"):
        ask(script, tmp_path, lambda client: client.get(NODES, "n1"))
    assert len(script.requests) == 3


def test_a_longer_retry_after_than_we_would_wait_is_the_callers(tmp_path: Path) -> None:
    script = Script((429, failure(429, "TooManyRequests"), "retry-after: 3600\r\n"))
    with pytest.raises(TooManyRequestsError) as raised:
        ask(script, tmp_path, lambda client: client.get(NODES, "n1"))
    assert raised.value.retry_after_s == 3600.0
    assert len(script.requests) == 1


def test_retry_after_is_honoured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def note(delay_s: float) -> None:
        waits.append(delay_s)

    monkeypatch.setattr("stamina._core._smart_sleep", note)
    script = Script((429, failure(429, "TooManyRequests"), "retry-after: 7\r\n"), (200, node("n1")))
    policy = RetryPolicy(max_wait_s=10.0)
    ask(script, tmp_path, lambda client: client.get(NODES, "n1"), retry=policy)
    assert waits == [7.0]


def test_a_refused_connection_was_not_sent(tmp_path: Path) -> None:
    async def never(request: Request, answer: Answer) -> None:
        raise AssertionError(request)

    async def main() -> None:
        async with client_of(never, tmp_path) as client:
            client.connection.server = "http://127.0.0.1:1"
            with pytest.raises(ConnectionLostError, match=r"no answer from http://127\.0\.0\.1:1") as raised:
                await client.create(NODES, node("n1"))
            assert not raised.value.sent

    asyncio.run(main())


def test_waiting_for_an_answer_can_be_cancelled(tmp_path: Path) -> None:
    async def stall(request: Request, answer: Answer) -> None:
        asked.set()
        await asyncio.Event().wait()

    async def main() -> None:
        async with client_of(stall, tmp_path) as client:
            task = asyncio.create_task(client.get(NODES, "n1"))
            await asked.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asked = asyncio.Event()
    asyncio.run(main())


# ---- lists


def test_lists_are_read_page_by_page(tmp_path: Path) -> None:
    script = Script((200, listing(node("a"), token="next")), (200, listing(node("b"))))
    found = ask(script, tmp_path, lambda client: client.list(NODES, label_selector="a=b", page_size=1))
    assert [item.metadata.name for item in found.items] == ["a", "b"]
    assert found.resource_version == "7"
    assert script.requests[0].query == {"limit": "1", "labelSelector": "a=b"}
    assert script.requests[1].query == {"limit": "1", "labelSelector": "a=b", "continue": "next"}


def test_a_list_that_expires_is_started_again_with_larger_pages_at_last_in_one_piece(tmp_path: Path) -> None:
    page, gone = (200, listing(node("a"), token="next")), (410, failure(410, "Expired"))
    script = Script(page, gone, page, gone, (200, listing(node("a"), node("b"))))
    found = ask(script, tmp_path, lambda client: client.list(NODES, page_size=1))
    assert [item.metadata.name for item in found.items] == ["a", "b"]
    assert [request.query.get("limit") for request in script.requests] == ["1", "1", "10", "10", None]


def test_an_unreadable_object_costs_only_itself(tmp_path: Path) -> None:
    bad = {"metadata": {"name": "bad"}, "spec": {"unschedulable": "perhaps"}}
    script = Script((200, listing(node("a"), bad, "what?", node("b"))))
    found = ask(script, tmp_path, lambda client: client.list(NODES))
    assert [item.metadata.name for item in found.items] == ["a", "b"]
    assert [item.key for item in found.unreadable] == [Key("", "bad"), None]
    assert "$.spec.unschedulable" in found.unreadable[0].problem


def test_an_empty_list_may_be_null(tmp_path: Path) -> None:
    found = ask(Script((200, {"metadata": {"resourceVersion": "7"}, "items": None})), tmp_path, lambda c: c.list(NODES))
    assert (found.items, found.resource_version) == ([], "7")


def test_long_lists_come_in_portions(tmp_path: Path) -> None:
    script = Script((200, listing(*(node(f"n{i}") for i in range(1201)))))
    assert len(ask(script, tmp_path, lambda client: client.list(NODES, page_size=0)).items) == 1201


def test_what_is_no_list_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UnreadableAnswerError, match="list nodes: not a list"):
        ask(Script((200, b"[]")), tmp_path, lambda client: client.list(NODES))


# ---- watches


def change(kind: str, obj: Any) -> bytes:
    return json.dumps({"type": kind, "object": obj}).encode() + b"\n"


def watch(tmp_path: Path, *chunks: bytes) -> list[Any]:
    async def serve(request: Request, answer: Answer) -> None:
        requests.append(request)
        await answer.begin()
        for chunk in chunks:
            await answer.chunk(chunk)
        await answer.end()

    async def talk(client: KubeClient) -> list[Any]:
        return [event async for event in client.watch(NODES, "5", timeout_s=9)]

    requests: list[Request] = []
    try:
        return ask(serve, tmp_path, talk)
    finally:
        assert requests[0].query == {
            "watch": "1",
            "resourceVersion": "5",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": "9",
        }


def test_changes_arrive_whole_however_the_stream_is_cut(tmp_path: Path) -> None:
    stream = change("ADDED", node("a", "6")) + change("DELETED", node("b", "7")) + change("BOOKMARK", node("", "8"))
    cut = [stream[:10], stream[10:90], stream[90:91], stream[91:]]
    events = watch(tmp_path, *cut)
    assert [(event.kind, event.key.name, event.resource_version) for event in events] == [
        (EventKind.ADDED, "a", "6"),
        (EventKind.DELETED, "b", "7"),
        (EventKind.BOOKMARK, "", "8"),
    ]
    assert events[0].object.metadata.name == "a"


def test_an_error_event_is_raised_by_type(tmp_path: Path) -> None:
    with pytest.raises(GoneError, match="too old"):
        watch(tmp_path, change("ERROR", failure(410, "Expired", "too old resource version")))


def test_an_unreadable_change_keeps_its_key_and_version(tmp_path: Path) -> None:
    bad = {**node("a", "6"), "spec": {"unschedulable": "perhaps"}}
    (event,) = watch(tmp_path, change("MODIFIED", bad))
    assert (event.key, event.resource_version, event.object) == (Key("", "a"), "6", None)
    assert "$.spec.unschedulable" in event.problem


@pytest.mark.parametrize("line", [b"nonsense\n", change("SURPRISE", node("a")), change("ADDED", {"metadata": 1})])
def test_a_stream_of_something_else_is_an_error(tmp_path: Path, line: bytes) -> None:
    with pytest.raises(UnreadableAnswerError):
        watch(tmp_path, line)


def test_a_watch_that_is_refused_says_why(tmp_path: Path) -> None:
    async def talk(client: KubeClient) -> list[Any]:
        return [event async for event in client.watch(NODES, "5")]

    with pytest.raises(ForbiddenError, match="grant the verb watch on nodes"):
        ask(Script((403, failure(403, "Forbidden"))), tmp_path, talk)


def test_a_broken_watch_is_a_lost_connection(tmp_path: Path) -> None:
    async def serve(request: Request, answer: Answer) -> None:
        await answer.begin()
        await answer.chunk(change("ADDED", node("a")))
        answer.drop()

    async def talk(client: KubeClient) -> None:
        async for event in client.watch(NODES, "5"):
            seen.append(event.key.name)  # noqa: PERF401 - kept as far as the stream got

    seen: list[str] = []
    with pytest.raises(ConnectionLostError):
        ask(serve, tmp_path, talk)
    assert seen == ["a"]


def test_lines_are_split_once() -> None:
    async def chunks() -> Any:
        for piece in (b"", b"a", b"b\nc\n\nd", b"e", b"\n", b"unfinished"):
            yield piece

    async def main() -> list[bytes]:
        return [line async for line in split_lines(chunks())]

    assert asyncio.run(main()) == [b"ab", b"c", b"", b"de"]


def test_twins_are_typed() -> None:
    assert NODE_TWINS.type is NodeTwin
