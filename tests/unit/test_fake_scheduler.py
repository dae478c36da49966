"""The fake scheduler and kubelets: what runs where, and why not."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import httpx2 as httpx
import pytest

from joulie_lab.fakes import placement, scheduler
from joulie_lab.fakes.extender import ExtenderClient, ExtenderError, ExtenderSettings
from joulie_lab.fakes.kubelet import FakeKubelet
from joulie_lab.fakes.kubernetes import FakeCluster
from joulie_lab.fakes.kubernetes.api import Api, Deletion, Writer
from joulie_lab.fakes.kubernetes.errors import StatusError
from joulie_lab.fakes.kubernetes.kinds import NODE, POD, Json
from joulie_lab.fakes.placement import NodeState, PodRequest
from joulie_lab.fakes.scheduler import FakeScheduler
from support.virtual_time import run_virtually

TEST = Writer("test")
GPU_TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


def node(name: str, cpu: str = "4", labels: dict[str, str] | None = None, **spec: Any) -> Json:
    amounts = {"cpu": cpu, "memory": "16Gi", "pods": "10"}
    return {"metadata": {"name": name, "labels": labels or {}}, "spec": spec, "status": {"allocatable": amounts}}


def pod(name: str, cpu: str = "1", **spec: Any) -> Json:
    container = {"name": "main", "image": "work", "resources": {"requests": {"cpu": cpu}}}
    return {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}


def required(*terms: Json) -> Json:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


def expression(key: str, operator: str, *values: str) -> Json:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def node_of(api: Api, name: str) -> str:
    found: str = api.get(POD, "default", name).obj["spec"].get("nodeName", "")
    return found


def scheduled(api: Api, name: str) -> Json:
    conditions = api.get(POD, "default", name).obj["status"].get("conditions", ())
    return next((c for c in conditions if c["type"] == "PodScheduled"), {})


def with_scheduler(
    play: Callable[[Api], Awaitable[None]], nodes: list[Json], extender: ExtenderSettings | None = None
) -> None:
    """Play with a scheduler that runs, in time that passes at once."""

    async def run() -> None:
        api = FakeCluster().api
        for body in nodes:
            api.create(NODE, "", body, TEST)
        running = asyncio.create_task(FakeScheduler(api, extender).run())
        try:
            await play(api)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    run_virtually(run())


def test_pods_spread_to_the_freest_nodes_until_nothing_fits() -> None:
    async def play(api: Api) -> None:
        for number in range(9):
            api.create(POD, "default", pod(f"p{number}"), TEST)
        await asyncio.sleep(1)
        placed = [node_of(api, f"p{number}") for number in range(9)]
        assert sorted(placed) == ["", *["a"] * 4, *["b"] * 4]
        refused = scheduled(api, f"p{placed.index('')}")
        assert (refused["status"], refused["reason"]) == ("False", "Unschedulable")
        assert refused["message"] == "0/2 nodes are available: 2 Insufficient cpu."

    with_scheduler(play, [node("a"), node("b")])


def test_a_refused_pod_is_tried_again_when_another_ends() -> None:
    async def play(api: Api) -> None:
        api.create(POD, "default", pod("first", "4"), TEST)
        api.create(POD, "default", pod("second", "4"), TEST)
        await asyncio.sleep(1)
        assert (node_of(api, "first"), node_of(api, "second")) == ("a", "")
        before = api.get(POD, "default", "second").revision
        await asyncio.sleep(20)
        assert api.get(POD, "default", "second").revision == before
        status = {"status": {"phase": "Succeeded"}}
        api.patch(POD, "default", "first", lambda obj: {**obj, **status}, Writer("kubelet", "status"))
        await asyncio.sleep(2)
        assert node_of(api, "second") == "a"

    with_scheduler(play, [node("a")])


def test_priority_first() -> None:
    async def play(api: Api) -> None:
        api.create(POD, "default", pod("low", "4"), TEST)
        api.create(POD, "default", pod("high", "4", priorityClassName="system-cluster-critical"), TEST)
        await asyncio.sleep(1)
        assert (node_of(api, "low"), node_of(api, "high")) == ("", "a")

    with_scheduler(play, [node("a")])


def test_other_schedulers_gated_and_ending_pods_are_left_alone() -> None:
    async def play(api: Api) -> None:
        api.create(POD, "default", pod("other", schedulerName="other"), TEST)
        api.create(POD, "default", pod("gated", schedulingGates=[{"name": "hold"}]), TEST)
        await asyncio.sleep(1)
        assert (node_of(api, "other"), node_of(api, "gated")) == ("", "")

        def ungate(obj: Json) -> Json:
            return {**obj, "spec": {key: value for key, value in obj["spec"].items() if key != "schedulingGates"}}

        api.patch(POD, "default", "gated", ungate, TEST)
        await asyncio.sleep(1)
        assert node_of(api, "gated") == "a"

    with_scheduler(play, [node("a")])


def test_a_pod_follows_the_label_that_its_node_gets_later() -> None:
    async def play(api: Api) -> None:
        affinity = required(expression("joulie.io/power-profile", "In", "performance"))
        api.create(POD, "default", pod("p", affinity=affinity), TEST)
        await asyncio.sleep(1)
        assert "didn't match Pod's node affinity/selector" in scheduled(api, "p")["message"]
        labels = {"joulie.io/power-profile": "performance"}
        api.patch(NODE, "", "b", lambda obj: {**obj, "metadata": {**obj["metadata"], "labels": labels}}, TEST)
        await asyncio.sleep(2)
        assert node_of(api, "p") == "b"

    with_scheduler(play, [node("a", labels={"joulie.io/power-profile": "eco"}), node("b")])


def test_preferred_affinity_moves_a_pod_but_does_not_hold_it() -> None:
    preferred = [{"weight": 1, "preference": expression("profile", "In", "eco")}]
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}

    async def play(api: Api) -> None:
        for number in range(3):
            api.create(POD, "default", pod(f"p{number}", "2", affinity=affinity), TEST)
        await asyncio.sleep(1)
        assert [node_of(api, f"p{number}") for number in range(3)] == ["eco", "eco", "other"]

    with_scheduler(play, [node("other", "64"), node("eco", "4", labels={"profile": "eco"})])


class ScriptedExtender(ExtenderClient):
    """An extender whose answers are given, and whose questions are kept."""

    filter_answer: ClassVar[Json | int]
    scores: ClassVar[dict[str, int]]
    asked: ClassVar[list[tuple[str, Json]]]

    def __init__(self, settings: ExtenderSettings) -> None:
        super().__init__(settings, httpx.MockTransport(self._answer))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        arguments = json.loads(request.content)
        self.asked.append((request.url.path, arguments))
        if request.url.path.endswith("/filter"):
            if isinstance(self.filter_answer, int):
                return httpx.Response(self.filter_answer)
            return httpx.Response(200, json={"NodeNames": arguments["NodeNames"], **self.filter_answer})
        return httpx.Response(
            200, json=[{"Host": name, "Score": self.scores.get(name, 0)} for name in arguments["NodeNames"]]
        )


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> type[ScriptedExtender]:
    ScriptedExtender.filter_answer, ScriptedExtender.scores, ScriptedExtender.asked = {}, {}, []
    monkeypatch.setattr(scheduler, "ExtenderClient", ScriptedExtender)
    return ScriptedExtender


SETTINGS = ExtenderSettings("http://extender.test/joulie")


def test_the_extender_is_asked_in_kube_schedulers_words(scripted: type[ScriptedExtender]) -> None:
    scripted.scores = {"b": 10}

    async def play(api: Api) -> None:
        api.create(POD, "default", pod("p"), TEST)
        await asyncio.sleep(1)
        # 10 points x 10 outweigh what the emptier node has ahead in LeastAllocated.
        assert node_of(api, "p") == "b"

    with_scheduler(play, [node("a", "64"), node("b", "2")], SETTINGS)
    paths = [path for path, _ in scripted.asked]
    assert paths == ["/joulie/filter", "/joulie/prioritize"]
    _, arguments = scripted.asked[0]
    assert set(arguments) == {"Pod", "Nodes", "NodeNames"}
    assert arguments["Nodes"] is None
    assert sorted(arguments["NodeNames"]) == ["a", "b"]
    assert arguments["Pod"]["metadata"]["name"] == "p"


def test_the_extenders_weight_counts(scripted: type[ScriptedExtender]) -> None:
    scripted.scores = {"b": 1}

    async def play(api: Api) -> None:
        api.create(POD, "default", pod("p"), TEST)
        await asyncio.sleep(1)
        assert node_of(api, "p") == "a"

    nodes = [node("a", "64"), node("b", "2")]
    with_scheduler(play, nodes, SETTINGS)

    async def heavy(api: Api) -> None:
        api.create(POD, "default", pod("p"), TEST)
        await asyncio.sleep(1)
        assert node_of(api, "p") == "b"

    with_scheduler(heavy, nodes, ExtenderSettings("http://extender.test/joulie", weight=10))


def test_what_the_extender_refuses_is_said_on_the_pod(scripted: type[ScriptedExtender]) -> None:
    scripted.filter_answer = {"NodeNames": [], "FailedAndUnresolvableNodes": {"a": "eco", "b": "draining"}}

    async def play(api: Api) -> None:
        api.create(POD, "default", pod("p"), TEST)
        await asyncio.sleep(1)
        assert scheduled(api, "p")["message"] == "0/2 nodes are available: 1 draining, 1 eco."

    with_scheduler(play, [node("a"), node("b")], SETTINGS)
    assert [path for path, _ in scripted.asked] == ["/joulie/filter"]


def test_one_node_left_is_not_scored(scripted: type[ScriptedExtender]) -> None:
    scripted.filter_answer = {"NodeNames": ["b"]}

    async def play(api: Api) -> None:
        api.create(POD, "default", pod("p"), TEST)
        await asyncio.sleep(1)
        assert node_of(api, "p") == "b"

    with_scheduler(play, [node("a"), node("b")], SETTINGS)
    assert [path for path, _ in scripted.asked] == ["/joulie/filter"]


@pytest.mark.parametrize(("ignorable", "expected"), [(True, "a"), (False, "")])
def test_a_failing_extender(scripted: type[ScriptedExtender], ignorable: bool, expected: str) -> None:
    scripted.filter_answer = 500

    async def play(api: Api) -> None:
        api.create(POD, "default", pod("p"), TEST)
        await asyncio.sleep(1)
        assert node_of(api, "p") == expected
        if not ignorable:
            assert "status 500" in scheduled(api, "p")["message"]

    with_scheduler(play, [node("a")], ExtenderSettings("http://extender.test", ignorable=ignorable))


def test_an_extenders_error_and_nonsense_are_errors() -> None:
    async def run() -> None:
        answers = iter([httpx.Response(200, json={"Error": "no twins"}), httpx.Response(200, content=b"<html>")])
        transport = httpx.MockTransport(lambda _: next(answers))
        async with ExtenderClient(SETTINGS, transport) as client:
            with pytest.raises(ExtenderError, match="no twins"):
                await client.filter(pod("p"), ["a"])
            with pytest.raises(ExtenderError, match="malformed"):
                await client.filter(pod("p"), ["a"])

    asyncio.run(run())


# ---- fitting, without a cluster


def fits(spec: Json, body: Json) -> str | None:
    return placement.obstacle(PodRequest.from_object({"spec": {"containers": [], **spec}}), NodeState.from_object(body))


def test_taints_need_tolerations() -> None:
    tainted = node("a", taints=[GPU_TAINT])
    assert fits({}, tainted) == "node(s) had untolerated taint(s)"
    assert fits({"tolerations": [{"operator": "Exists"}]}, tainted) is None
    assert fits({"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]}, tainted) is None
    assert fits({"tolerations": [{"key": "nvidia.com/gpu", "value": "present"}]}, tainted) is None
    assert fits({"tolerations": [{"key": "nvidia.com/gpu", "value": "absent"}]}, tainted) is not None
    assert fits({"tolerations": [{"operator": "Exists", "effect": "NoExecute"}]}, tainted) is not None
    assert fits({}, node("a", taints=[{**GPU_TAINT, "effect": "PreferNoSchedule"}])) is None


def test_cordoned_nodes_take_only_who_tolerates_it() -> None:
    assert fits({}, node("a", unschedulable=True)) == "node(s) were unschedulable"
    tolerated = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}
    assert fits({"tolerations": [tolerated]}, node("a", unschedulable=True)) is None


@pytest.mark.parametrize(
    ("term", "matches"),
    [
        (expression("size", "In", "1", "10"), True),
        (expression("size", "NotIn", "10"), False),
        (expression("other", "NotIn", "10"), True),
        (expression("size", "Exists"), True),
        (expression("size", "DoesNotExist"), False),
        (expression("size", "Gt", "9"), True),
        (expression("size", "Lt", "9"), False),
        (expression("other", "Gt", "9"), False),
        ({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}, True),
        ({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}, False),
        ({}, False),
    ],
)
def test_node_selector_terms(term: Json, matches: bool) -> None:
    body = node("a", labels={"size": "10"})
    assert (fits({"affinity": required(term)}, body) is None) is matches
    # Terms are OR-ed.
    assert fits({"affinity": required(term, expression("size", "Exists"))}, body) is None


def test_requests_are_counted_as_kube_scheduler_counts_them() -> None:
    def container(cpu: str, **more: Any) -> Json:
        return {"name": "c", "resources": {"requests": {"cpu": cpu}}, **more}

    spec = {
        "containers": [container("1"), {"name": "c", "resources": {"limits": {"cpu": "500m", "nvidia.com/gpu": "2"}}}],
        "initContainers": [container("2", restartPolicy="Always"), container("3")],
        "overhead": {"cpu": "100m"},
    }
    request = PodRequest.from_object({"spec": spec})
    # The sidecar runs beside the second init container (5) and beside the containers (3.5).
    assert request.requests == pytest.approx({"cpu": 5.1, "nvidia.com/gpu": 2.0, "pods": 1.0})


@pytest.mark.parametrize(("count", "found"), [(10, 10), (100, 100), (1000, 420), (5000, 500), (20000, 1000)])
def test_the_search_stops_at_an_adaptive_share(count: int, found: int) -> None:
    assert placement.nodes_to_find(count) == found


# ---- kubelets


def with_kubelet(play: Callable[[Api], Awaitable[None]]) -> None:
    async def run() -> None:
        api = FakeCluster().api
        running = asyncio.create_task(FakeKubelet(api, start_s=2.0, stop_s=1.0).run())
        try:
            await play(api)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    run_virtually(run())


def phase(api: Api, name: str) -> str:
    found: str = api.get(POD, "default", name).obj["status"]["phase"]
    return found


def test_pods_start_on_their_node_after_a_while() -> None:
    async def play(api: Api) -> None:
        api.create(NODE, "", node("a"), TEST)
        api.create(POD, "default", pod("placed", nodeName="a"), TEST)
        api.create(POD, "default", pod("waits"), TEST)
        await asyncio.sleep(1.9)
        assert phase(api, "placed") == "Pending"
        await asyncio.sleep(0.2)
        running = api.get(POD, "default", "placed").obj["status"]
        assert running["phase"] == "Running"
        assert running["startTime"]
        assert {c["type"]: c["status"] for c in running["conditions"]}["Ready"] == "True"
        assert phase(api, "waits") == "Pending"

    with_kubelet(play)


def test_deleted_pods_end_after_a_while_and_those_of_lost_nodes_at_once() -> None:
    async def play(api: Api) -> None:
        api.create(NODE, "", node("a"), TEST)
        for name in ("one", "two"):
            api.create(POD, "default", pod(name, nodeName="a"), TEST)
        await asyncio.sleep(3)
        api.delete(POD, "default", "one")
        await asyncio.sleep(0.9)
        assert api.find(POD, "default", "one") is not None
        await asyncio.sleep(0.2)
        assert api.find(POD, "default", "one") is None
        api.delete(NODE, "", "a")
        await asyncio.sleep(0.1)
        assert api.find(POD, "default", "two") is None

    with_kubelet(play)


def test_a_pod_waits_for_its_node() -> None:
    async def play(api: Api) -> None:
        api.create(POD, "default", pod("early", nodeName="late"), TEST)
        await asyncio.sleep(5)
        assert phase(api, "early") == "Pending"
        api.create(NODE, "", node("late"), TEST)
        await asyncio.sleep(3)
        assert phase(api, "early") == "Running"

    with_kubelet(play)


def test_a_pod_of_the_same_name_is_another_one() -> None:
    async def play(api: Api) -> None:
        api.create(NODE, "", node("a"), TEST)
        api.create(POD, "default", pod("p", nodeName="a"), TEST)
        await asyncio.sleep(1)
        api.delete(POD, "default", "p", Deletion(grace_s=0))
        api.create(POD, "default", pod("p", nodeName="a"), TEST)
        await asyncio.sleep(1.5)
        assert phase(api, "p") == "Pending"
        await asyncio.sleep(1)
        assert phase(api, "p") == "Running"

    with_kubelet(play)


def test_deleting_twice_is_not_found() -> None:
    api = FakeCluster().api
    with pytest.raises(StatusError, match='pods "p" not found'):
        api.delete(POD, "default", "p")
