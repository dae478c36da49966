import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from joulie.adapters.kubernetes.pods import PodFacts, ProfileFacts
from joulie.apps.extender import answers, server
from joulie.apps.extender.feed import WatchState
from joulie.apps.extender.fleet import Fleet, FleetView
from joulie.apps.extender.judge import Profiles
from joulie.apps.extender.metrics import ExtenderMetrics, StateCollector
from joulie.apps.extender.node_facts import LoadFacts, TwinFacts, TwinNumbers
from joulie.apps.extender.rankings import Rankings
from joulie.apps.extender.server import Extender
from joulie.domain.scoring.extender import NodeClass
from joulie.program.http import AsgiApp, Probes, observability_app

NOW_S = 1000.0
WATCH = WatchState("nodetwins", objects=2, synced=True, silence_s=3.0, problem=None)


class Door:
    """An extender with two nodes, and its applications."""

    def __init__(self, *, ready: bool = True) -> None:
        self.registry = CollectorRegistry()
        self.fleet = Fleet(300.0)
        self.broken = False
        for name, node_class, updated_s in (("perf", NodeClass.PERFORMANCE, 990.0), ("eco", NodeClass.ECO, 10.0)):
            numbers = TwinNumbers(1000.0, 400.0, 20.0, 60.0, 12.0, 1.0, 1.0)
            self.fleet.set_twin(name, TwinFacts(node_class, numbers, updated_s))
            self.fleet.set_load(name, LoadFacts(cores=96.0, cpu_max_w=700.0))
        self.fleet.set_label_class("bare", NodeClass.UNKNOWN)
        self.extender = Extender(
            self.fleet, self.profile, lambda: [WATCH], ExtenderMetrics(self.registry), lambda: NOW_S
        )
        StateCollector(lambda: self.extender.view, lambda: [WATCH], self.registry)
        if ready:
            self.extender.refresh()
        debug = self.extender.debug_app(observability_app(Probes(), self.registry))
        self.app = self.extender.app(debug)

    def profile(self, _pod: PodFacts) -> ProfileFacts:
        if self.broken:
            raise RuntimeError("the profile cannot be had")
        return ProfileFacts()

    def ask(self, path: str, body: bytes | list[bytes] = b"", method: str = "POST") -> tuple[int, bytes]:
        return asyncio.run(exchange(self.app, method, path, body))

    def metric(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


async def exchange(app: AsgiApp, method: str, path: str, body: bytes | list[bytes]) -> tuple[int, bytes]:
    """One request and its answer, without a network."""
    parts = body if isinstance(body, list) else [body]
    messages: Iterator[dict[str, Any]] = iter(
        [
            {"type": "http.request", "body": part, "more_body": index < len(parts) - 1}
            for index, part in enumerate(parts)
        ]
    )
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return next(messages)

    async def send(message: Any) -> None:
        sent.append(message)

    await app({"type": "http", "method": method, "path": path, "headers": [], "query_string": b""}, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


POD = {"metadata": {"name": "p", "namespace": "n", "annotations": {"joulie.io/workload-class": "performance"}}}
CALL = json.dumps({"Pod": POD, "Nodes": None, "NodeNames": ["perf", "eco"]}).encode()


def test_verbs_answer() -> None:
    door = Door()
    status, body = door.ask("/filter", CALL)
    assert (status, json.loads(body)["NodeNames"]) == (200, ["perf"])
    status, body = door.ask("/prioritize", CALL)
    assert (status, [entry["Host"] for entry in json.loads(body)]) == (200, ["perf", "eco"])
    preemption = {"Pod": POD, "NodeNameToMetaVictims": {"eco": {"Pods": [], "NumPDBViolations": 0}}}
    assert door.ask("/preempt", json.dumps(preemption).encode()) == (200, b'{"NodeNameToMetaVictims":{}}')


STANDARD = json.dumps({"Pod": {"metadata": {"name": "p"}}, "Nodes": None, "NodeNames": ["perf", "eco"]}).encode()


def counted_rankings(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Grows with each call of /prioritize that was not foreseen."""
    computed: list[bytes] = []
    original = answers.prioritize

    def prioritize(body: bytes, view: FleetView, profiles: Profiles, rankings: Rankings) -> bytes:
        computed.append(body)
        return original(body, view, profiles, rankings)

    monkeypatch.setattr(answers, "prioritize", prioritize)
    return computed


async def after_filter(door: Door, filtered: bytes, asked: bytes) -> tuple[int, bytes]:
    """The answer to /prioritize when the loop had a moment after /filter."""
    await exchange(door.app, "POST", "/filter", filtered)
    await asyncio.sleep(0)
    return await exchange(door.app, "POST", "/prioritize", asked)


@pytest.mark.parametrize(
    ("filtered", "asked"),
    [(STANDARD, STANDARD), (CALL, CALL.replace(b'["perf", "eco"]', b'["perf"]'))],
    ids=["standard", "performance"],
)
def test_the_ranking_after_a_filter_is_foreseen(filtered: bytes, asked: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    door = Door()
    directly = door.ask("/prioritize", asked)
    computed = counted_rankings(monkeypatch)
    assert asyncio.run(after_filter(door, filtered, asked)) == directly
    assert computed == []
    assert door.ask("/prioritize", asked) == directly
    assert computed == [asked]


def test_another_question_than_the_foreseen_gets_its_own_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    door = Door()
    other = STANDARD.replace(b'["perf", "eco"]', b'["eco", "bare"]')
    directly = door.ask("/prioritize", other)
    computed = counted_rankings(monkeypatch)
    assert asyncio.run(after_filter(door, STANDARD, other)) == directly
    assert computed == [other]


def test_trap_what_was_foreseen_of_an_older_view_does_not_count() -> None:
    door = Door()

    async def scenario() -> tuple[int, bytes]:
        await exchange(door.app, "POST", "/filter", STANDARD)
        await asyncio.sleep(0)
        door.fleet.set_twin("perf", None)
        door.extender.refresh()
        return await exchange(door.app, "POST", "/prioritize", STANDARD)

    stale = json.loads(door.ask("/prioritize", STANDARD)[1])
    status, body = asyncio.run(scenario())
    assert status == 200
    assert {entry["Host"]: entry["Score"] for entry in json.loads(body)} == {"perf": 5, "eco": 5}
    assert json.loads(body) != stale


def test_a_body_in_pieces_is_one_body() -> None:
    door = Door()
    assert door.ask("/filter", [CALL[:10], CALL[10:500], CALL[500:]]) == door.ask("/filter", CALL)


def test_not_ready_until_there_is_a_view() -> None:
    door = Door(ready=False)
    for verb in ("filter", "prioritize", "preempt"):
        assert door.ask(f"/{verb}", CALL) == (503, b"not ready: see /readyz\n")
    assert door.ask("/debug/scoring", method="GET")[0] == 503


@pytest.mark.parametrize("verb", ["filter", "prioritize", "preempt"])
def test_malformed_bodies_are_the_callers_fault(verb: str) -> None:
    door = Door()
    status, body = door.ask(f"/{verb}", b'{"Pod": 1}')
    assert status == 400
    assert body.startswith(f"/{verb}: invalid JSON".encode())
    assert door.metric("joulie_extender_requests_total", verb=verb, code="400") == 1.0


def test_an_internal_error_is_told_and_survived() -> None:
    door = Door()
    door.broken = True
    status, body = door.ask("/filter", CALL)
    result = json.loads(body)
    assert (status, result["NodeNames"]) == (200, None)
    assert result["Error"] == "Joulie's extender failed: RuntimeError: the profile cannot be had"
    assert door.ask("/prioritize", CALL)[0] == 500
    door.broken = False
    assert door.ask("/prioritize", CALL)[0] == 200


def test_only_post_for_verbs() -> None:
    assert Door().ask("/filter", method="GET") == (405, b"/filter takes POST, not GET\n")


def test_l12_bodies_are_bounded_by_the_size_of_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_POD_BYTES", 1000)
    monkeypatch.setitem(server._MAX_CANDIDATE_BYTES, "filter", 100)
    door = Door()
    assert server.max_body_bytes("filter", len(door.fleet)) == 1300
    status, _ = door.ask("/filter", [b" " * 1300])
    assert status == 400, "read, and no JSON"
    status, body = door.ask("/filter", [b"x" * 700, b"x" * 601, b"never read"])
    assert status == 413
    assert b"nodeCacheCapable" in body
    assert door.metric("joulie_extender_requests_total", verb="filter", code="413") == 1.0


def test_l12_no_cluster_needs_more_than_the_maximum() -> None:
    assert server.max_body_bytes("filter", 10) < 5 * 2**20
    assert server.max_body_bytes("filter", 5_000) > 150e6
    assert server.max_body_bytes("preempt", 10**6) == 256 * 2**20


def test_l12_what_is_not_ready_reads_no_body() -> None:
    async def receive() -> dict[str, Any]:
        raise AssertionError("a body was read")

    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(Door(ready=False).app({"type": "http", "method": "POST", "path": "/filter"}, receive, send))
    assert sent[0]["status"] == 503


def test_other_paths_go_on() -> None:
    door = Door()
    assert door.ask("/healthz", method="GET")[0] == 200
    assert door.ask("/nothing", method="GET")[0] == 404


def test_scoring_shows_what_scores_are_made_of() -> None:
    status, body = Door().ask("/debug/scoring", method="GET")
    shown = json.loads(body)
    assert status == 200
    assert shown["cluster"] == {
        "perfPressure": 40.0,
        "clusterTrendWPerMin": 12.0,
        "trendScaleWPerMin": 6.0,
        "ageSeconds": 0.0,
    }
    assert shown["watches"] == [
        {"resource": "nodetwins", "objects": 2, "synced": True, "silenceSeconds": 3.0, "problem": None}
    ]
    bare, eco, perf = shown["nodes"]
    assert (perf["node"], perf["class"], perf["fresh"], perf["ageSeconds"]) == ("perf", "performance", True, 10.0)
    assert (perf["cappedW"], perf["cpuMaxW"], perf["whyNeutral"]) == (1000.0, 700.0, "")
    assert (eco["fresh"], eco["whyNeutral"]) == (False, "NodeTwin is 990 s old, above 300 s")
    assert (bare["cappedW"], bare["ageSeconds"], bare["whyNeutral"]) == (None, None, "no NodeTwin")


def test_explanation_of_a_pod() -> None:
    status, body = Door().ask("/debug/explain", json.dumps(POD).encode())
    shown = json.loads(body)
    assert status == 200
    assert (shown["pod"]["name"], shown["pod"]["workloadClass"]) == ("p", "performance")
    perf, bare, eco = shown["nodes"]
    assert (perf["node"], perf["allowed"], perf["headroomPct"], perf["trendPoints"]) == ("perf", True, 60.0, 2.0)
    assert perf["base"] == pytest.approx(42.0 + 12.0 - 2.0)
    assert (perf["score"], perf["wireScore"]) == (perf["base"], 5)
    assert (bare["node"], bare["allowed"], bare["base"], bare["score"]) == ("bare", True, None, 50.0)
    assert (eco["node"], eco["allowed"]) == ("eco", False)
    assert "eco power caps" in eco["refusal"]


def test_explanation_of_what_is_no_pod() -> None:
    status, body = Door().ask("/debug/explain", b"[]")
    assert status == 400
    assert body.startswith(b"/debug/explain: invalid JSON")


def test_before_the_first_view_gauges_have_no_values() -> None:
    door = Door(ready=False)
    assert door.metric("joulie_extender_performance_pressure") is None
    assert door.metric("joulie_extender_nodes", twin="fresh") is None
    assert door.metric("joulie_extender_watched_objects", resource="nodetwins") == 2.0


def test_metrics_count_and_stay_bounded() -> None:
    door = Door()
    for index in range(5):
        pod = {"metadata": {"name": f"p{index}", "annotations": {"joulie.io/workload-class": f"odd-{index}"}}}
        door.ask("/filter", json.dumps({"Pod": pod, "NodeNames": ["perf"]}).encode())
    door.ask("/filter", CALL)
    assert door.metric("joulie_extender_requests_total", verb="filter", code="200") == 6.0
    assert door.metric("joulie_extender_request_seconds_count", verb="filter") == 6.0
    assert door.metric("joulie_extender_refused_nodes_total", verb="filter", node_class="eco") == 1.0
    assert door.metric("joulie_extender_nodes", twin="fresh") == 1.0
    assert door.metric("joulie_extender_nodes", twin="stale") == 1.0
    assert door.metric("joulie_extender_nodes", twin="missing") == 1.0
    assert door.metric("joulie_extender_performance_pressure") == 40.0
    assert door.metric("joulie_extender_watch_silence_seconds", resource="nodetwins") == 3.0
    assert b"odd-" not in generate_latest(door.registry)
