"""The admission webhook: reviews byte for byte, who gets the gate, its certificate and what is registered of it."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulie.adapters.kubernetes.api.core import Pod
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.resources import CONFIG_MAPS, ENERGY_BUDGETS, NAMESPACES
from joulie.apps.grid import webhook as program
from joulie.apps.grid.facts import NamespaceFacts
from joulie.apps.grid.webhook import GatingView, WebhookMetrics, WebhookSettings, review, webhook_app
from joulie.apps.grid.webhook_trust import (
    BUDGETS_WEBHOOK,
    NAMESPACES_WEBHOOK,
    PODS_WEBHOOK,
    RENEW_BEFORE_S,
    VALID_S,
    data_of,
    registered_webhooks,
    renewed,
    trust_of,
)
from joulie.domain.grid.names import BUDGET_GATE
from joulie.domain.grid.request import GridDefaults, request_of
from joulie.domain.mode import Mode
from joulie.program.certificates import KeyPair, expires_s, https_files, self_signed, write_files
from joulie.program.http import Server, TlsFiles
from joulie_lab.adapters.crd import custom_resource_definitions
from joulie_lab.control_plane.ports import free_port
from joulie_lab.fakes.kubernetes import FakeCluster
from support.grid_admission_cases import ARRIVALS, DEFER, GATE, OTHER, SEED, Arrival

NOW_S = 1_780_000_000.0
HOSTS = ("joulie-grid-webhook.joulie-system.svc", "localhost", "127.0.0.1")


def decoded(arrival: Arrival) -> Pod:
    import msgspec

    return msgspec.convert(arrival.pod("default"), Pod)


def policy(arrival: Arrival) -> NamespaceFacts:
    return NamespaceFacts("u", {}, {DEFER: arrival.asking} if arrival.asking else {})


def review_of(pod: Any, uid: Any = "705ab4f5-6393-11e8-b7cc-42010a800002") -> bytes:
    request = {"uid": uid, "operation": "CREATE", "namespace": "default", "object": pod}
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).encode()


def always(_namespace: str, _pod: Pod) -> tuple[str, ...]:
    return (GATE,)


# ---- who gets the gate


@pytest.mark.parametrize("name", ARRIVALS)
def test_who_gets_the_gate(name: str) -> None:
    arrival = ARRIVALS[name]
    newly_gated = arrival.gated and GATE in arrival.expected_gates
    assert program.wants_gate(decoded(arrival), policy(arrival)) is newly_gated


@pytest.mark.parametrize("name", ARRIVALS)
def test_the_controller_would_hold_exactly_those(name: str) -> None:
    """The decision's own words; bound pods, DaemonSets and pods that are gated already are admission's business."""
    arrival = ARRIVALS[name]
    if arrival.owner == "DaemonSet" or "nodeName" in arrival.spec or name == "gated already":
        return
    asked = request_of(
        arrival.spec.get("schedulerName", "default-scheduler"),
        arrival.annotations,
        {},
        arrival.owner or None,
        {},
        {DEFER: arrival.asking} if arrival.asking else {},
        GridDefaults(),
    )
    assert asked.defer is arrival.gated


def test_static_pods_are_never_held() -> None:
    assert not program.wants_gate(decoded(Arrival(False, spec=SEED, owner="Node")), NamespaceFacts("", {}, {}))


# ---- reviews


def test_trap_the_patch_is_an_array_and_the_uid_comes_back() -> None:
    status, body, result = review(review_of(ARRIVALS["asks"].pod("default")), always)
    answer = json.loads(body)
    assert (status, result) == (200, "gated")
    assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    response = answer["response"]
    assert response["uid"] == "705ab4f5-6393-11e8-b7cc-42010a800002"
    assert (response["allowed"], response["patchType"]) == (True, "JSONPatch")
    assert json.loads(base64.b64decode(response["patch"])) == [
        {"op": "add", "path": "/spec/schedulingGates", "value": [{"name": GATE}]}
    ]


def test_gates_of_others_stay() -> None:
    pod = Arrival(True, spec={**SEED, **OTHER}).pod("default")
    response = json.loads(review(review_of(pod), always).body)["response"]
    assert json.loads(base64.b64decode(response["patch"])) == [
        {"op": "add", "path": "/spec/schedulingGates/-", "value": {"name": GATE}}
    ]


def test_what_needs_no_gate_is_left_as_it_came() -> None:
    status, body, result = review(review_of(ARRIVALS["plain"].pod("default")), lambda _namespace, _pod: ())
    assert (status, result) == (200, "left")
    assert json.loads(body)["response"] == {"uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "allowed": True}


@pytest.mark.parametrize("pod", [None, 7, [], {"spec": {"schedulingGates": "all"}}, {"metadata": {"labels": [1]}}])
def test_a_pod_that_cannot_be_read_is_let_in(pod: Any) -> None:
    status, body, result = review(review_of(pod), always)
    assert (status, result) == (200, "malformed")
    assert json.loads(body)["response"]["allowed"] is True
    assert "patch" not in json.loads(body)["response"]


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"null", b"[]", b"\xff", b'{"request": {}}', review_of({}, uid=""), review_of({}, uid=7), b"[" * 9999],
)
def test_trap_a_review_without_a_uid_is_an_error(body: bytes) -> None:
    status, _body, result = review(body, always)
    assert (status, result) == (400, "malformed")


@given(st.binary(max_size=200))
def test_no_bytes_break_it(body: bytes) -> None:
    assert review(body, always).status in (200, 400)


def test_over_the_wire(tmp_path: Path) -> None:
    """TLS with its own certificate; wrong paths, methods and endless bodies; a patch for who asks."""
    metrics = WebhookMetrics()

    async def main() -> None:
        files = write_files(tmp_path, self_signed(HOSTS, wall_clock_s()))
        trusting = ssl.create_default_context(cafile=str(files.certificate))
        app = webhook_app(lambda _namespace, pod: (GATE,) if pod.spec.scheduler_name else (), metrics)
        async with (
            Server(app, ("127.0.0.1", 0), tls=files) as server,
            httpx.AsyncClient(verify=trusting, base_url=f"https://localhost:{server.port}") as client,
        ):
            pod = ARRIVALS["the seed's scheduler"].pod("default")
            answer = await client.post("/mutate", content=review_of(pod))
            assert answer.json()["response"]["patchType"] == "JSONPatch"
            assert (await client.get("/mutate")).status_code == 404
            assert (await client.post("/other", content=b"{}")).status_code == 404
            assert (await client.post("/mutate", content=b"nonsense")).status_code == 400
            endless = await client.post("/mutate", content=b" " * (program.MAX_BODY_BYTES + 1))
            assert endless.status_code == 413

    asyncio.run(main())
    counted = {result: metrics.reviews[result]._value.get() for result in metrics.reviews}
    assert counted == {"gated": 1.0, "left": 0.0, "malformed": 1.0}


def wall_clock_s() -> float:
    import time

    return time.time()  # noqa: TID251 - OpenSSL looks at the world's clock


# ---- what it knows


def test_it_gates_while_the_configmap_says_so(tmp_path: Path) -> None:
    async def scenario(client: KubeClient) -> None:
        await client.create(NAMESPACES, {"metadata": {"name": "joulie-system"}})
        await client.create(NAMESPACES, {"metadata": {"name": "batch", "annotations": {DEFER: "true"}}})
        view = GatingView(client, "joulie-system")
        assert view.why_not_ready() is not None
        watching = asyncio.create_task(view.run())
        await view.wait_synced()
        plain, asks = decoded(ARRIVALS["plain"]), decoded(ARRIVALS["asks"])
        assert not view.gates("default", asks), "nobody has said so"
        await client.create(
            CONFIG_MAPS,
            {"metadata": {"name": "joulie-grid-gating"}, "data": {"enabled": "true"}},
            "joulie-system",
        )
        while not view.gates("default", asks):
            await asyncio.sleep(0)
        assert not view.gates("default", plain)
        assert view.gates("batch", plain)
        assert view.deferring == ("batch",)
        watching.cancel()

    play(tmp_path, scenario)


def test_it_gates_all_pods_while_the_budget_of_their_namespace_holds(tmp_path: Path) -> None:
    async def scenario(client: KubeClient) -> None:
        await client.create(NAMESPACES, {"metadata": {"name": "joulie-system"}})
        gating = {"metadata": {"name": "joulie-grid-gating"}, "data": {"enabled": "true"}}
        await client.create(CONFIG_MAPS, gating, "joulie-system")
        budget = {"metadata": {"name": "daily"}, "spec": {"limits": {"energyKWh": 1.0}, "period": "day"}}
        await client.create(ENERGY_BUDGETS, budget, "default")
        view = GatingView(client, "joulie-system")
        watching = asyncio.create_task(view.run())
        await view.wait_synced()
        plain, asks = decoded(ARRIVALS["plain"]), decoded(ARRIVALS["asks"])
        while not view.gates("default", asks):
            await asyncio.sleep(0)
        assert (view.gates("default", plain), view.budgeted) == ((), ())
        since = {"lastTransitionTime": "2026-01-01T00:00:00Z"}
        holding = {"type": "Holding", "status": "True", "reason": "Exhausted", **since}
        status = {"status": {"conditions": [holding]}}
        await client.patch(ENERGY_BUDGETS, "daily", status, namespace="default", subresource="status")
        while not view.budgeted:
            await asyncio.sleep(0)
        assert view.gates("default", plain) == (BUDGET_GATE,)
        assert view.gates("default", asks) == (GATE, BUDGET_GATE)
        assert view.gates("joulie-system", plain) == ()
        daemon = decoded(Arrival(False, spec={}, owner="DaemonSet"))
        critical = decoded(Arrival(False, spec={"priorityClassName": "system-node-critical"}))
        assert view.gates("default", daemon) == view.gates("default", critical) == ()
        watching.cancel()

    play(tmp_path, scenario)


def test_it_gates_nothing_in_namespaces_in_observe_mode(tmp_path: Path) -> None:
    async def scenario(client: KubeClient) -> None:
        await client.create(NAMESPACES, {"metadata": {"name": "joulie-system"}})
        for name, mode in (("watched", "observe"), ("canary", "enforce")):
            meta = {"name": name, "annotations": {DEFER: "true"}, "labels": {"joulie.io/mode": mode}}
            await client.create(NAMESPACES, {"metadata": meta})
        gating = {"metadata": {"name": "joulie-grid-gating"}, "data": {"enabled": "true"}}
        await client.create(CONFIG_MAPS, gating, "joulie-system")
        plain, asks = decoded(ARRIVALS["plain"]), decoded(ARRIVALS["asks"])
        for mode, default in ((Mode.OBSERVE, False), (Mode.ENFORCE, True)):
            view = GatingView(client, "joulie-system", mode)
            watching = asyncio.create_task(view.run())
            await view.wait_synced()
            assert [bool(view.gates(one, plain)) for one in ("watched", "canary")] == [False, True]
            assert bool(view.gates("default", asks)) is default
            assert view.deferring == ("canary",)
            watching.cancel()

    play(tmp_path, scenario)


def play(tmp_path: Path, scenario: Callable[[KubeClient], Awaitable[None]]) -> None:
    async def main() -> None:
        async with FakeCluster(custom_resource_definitions()) as cluster:
            kubeconfig = cluster.kubeconfig(tmp_path / "kubeconfig")
            async with KubeClient.connect(kubeconfig=kubeconfig) as client, asyncio.timeout(30.0):
                await scenario(client)

    asyncio.run(main())


# ---- its certificate


def test_a_certificate_is_renewed_before_it_ends_and_the_old_one_is_trusted_meanwhile() -> None:
    first = renewed(None, HOSTS, NOW_S)
    assert first is not None
    assert first.bundle == first.pair.certificate
    assert expires_s(first.pair.certificate) == pytest.approx(NOW_S + VALID_S, abs=1.0)
    assert renewed(first, HOSTS, NOW_S + VALID_S - RENEW_BEFORE_S - 60.0) is None
    second = renewed(first, HOSTS, NOW_S + VALID_S - RENEW_BEFORE_S + 60.0)
    assert second is not None
    assert second.pair != first.pair
    assert second.bundle == second.pair.certificate + first.pair.certificate
    assert trust_of(data_of(second)) == second


@pytest.mark.parametrize("data", [{}, {"tls.crt": "?"}, {"tls.crt": "bm90aGluZw=="}])
def test_a_secret_that_holds_none_is_filled(data: dict[str, str]) -> None:
    assert trust_of(data) is None


def test_a_certificate_without_its_key_is_none() -> None:
    first = renewed(None, HOSTS, NOW_S)
    assert first is not None
    made = data_of(first)
    assert trust_of({**made, "tls.key": ""}) is None


def test_no_key_is_ever_shown(tmp_path: Path) -> None:
    pair = self_signed(HOSTS, NOW_S)
    assert "PRIVATE" not in f"{pair!r} {pair} {renewed(None, HOSTS, NOW_S)}"
    files = write_files(tmp_path, pair)
    assert files.key.stat().st_mode & 0o077 == 0


def test_given_files_win(tmp_path: Path) -> None:
    given_files = TlsFiles(tmp_path / "a.crt", tmp_path / "a.key")
    assert https_files(given_files.certificate, given_files.key, tmp_path, HOSTS, NOW_S) == given_files
    made = https_files(None, None, tmp_path, HOSTS, NOW_S)
    assert b"BEGIN CERTIFICATE" in made.certificate.read_bytes()


def test_half_a_certificate_is_refused() -> None:
    with pytest.raises(ValueError, match="go together"):
        WebhookSettings(tls_cert_file=Path("a"))


# ---- its registration

EXCLUDED = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system"]}
CHART = [
    {
        "name": PODS_WEBHOOK,
        "clientConfig": {"service": {"name": "w", "namespace": "joulie-system"}},
        "namespaceSelector": {"matchExpressions": [EXCLUDED]},
        "matchConditions": [{"name": "not-bound", "expression": "true"}, {"name": "asks", "expression": "false"}],
    },
    {"name": "other.example.com", "clientConfig": {}},
]


def test_namespaces_that_ask_get_a_webhook_of_their_own() -> None:
    wanted = registered_webhooks(CHART, b"PEM", ["a", "b"])
    assert [one["name"] for one in wanted] == [PODS_WEBHOOK, NAMESPACES_WEBHOOK, "other.example.com"]
    pods, namespaces, other = wanted
    assert pods["clientConfig"]["caBundle"] == namespaces["clientConfig"]["caBundle"] == "UEVN"
    assert other == CHART[1]
    assert [one["name"] for one in namespaces["matchConditions"]] == ["not-bound"]
    excluded, asking = namespaces["namespaceSelector"]["matchExpressions"]
    assert excluded == EXCLUDED, "kube-system may ask: its pods do not wait for a webhook"
    assert (asking["operator"], asking["values"]) == ("In", ["a", "b"])
    assert registered_webhooks(wanted, b"PEM", ["a", "b"]) == wanted
    assert [one["name"] for one in registered_webhooks(wanted, b"PEM", [])] == [PODS_WEBHOOK, "other.example.com"]


def test_cert_managers_bundle_is_left_alone() -> None:
    assert registered_webhooks(CHART, None, []) == CHART


def test_a_third_webhook_is_for_namespaces_whose_budget_holds() -> None:
    budgets = registered_webhooks(CHART, b"PEM", [], ["c"])
    (held,) = (one for one in budgets if one["name"] == BUDGETS_WEBHOOK)
    assert held["namespaceSelector"]["matchExpressions"][-1]["values"] == ["c"]
    assert {one["name"] for one in held["matchConditions"]} <= {"not-bound", "not-of-a-daemonset-nor-static"}
    assert registered_webhooks(budgets, b"PEM", [], ["c"]) == budgets
    assert "KeyPair" in repr(KeyPair(b"", b""))


# ---- its end


def test_r2_when_told_to_stop_it_is_not_ready_and_reviews_on(tmp_path: Path) -> None:
    files = write_files(tmp_path, self_signed(HOSTS, wall_clock_s()))

    async def main() -> None:
        async with FakeCluster(custom_resource_definitions()) as cluster:
            settings = WebhookSettings(
                kubeconfig=cluster.kubeconfig(tmp_path / "kubeconfig"),
                address=f"127.0.0.1:{free_port()}",
                metrics_addr=f"127.0.0.1:{free_port()}",
                tls_cert_file=files.certificate,
                tls_key_file=files.key,
                shutdown_delay_s=3600.0,
            )
            stop = asyncio.Event()
            running = asyncio.create_task(program.serve(settings, stop))
            tls = ssl.create_default_context(cafile=str(files.certificate))
            async with asyncio.timeout(30.0), httpx.AsyncClient(verify=tls, trust_env=False) as client:

                async def answered(method: str, url: str, content: bytes = b"") -> httpx.Response:
                    while True:
                        try:
                            return await client.request(method, url, content=content)
                        except httpx.ConnectError:
                            await asyncio.sleep(0)

                mutate = f"https://{settings.address}/mutate"
                assert (await answered("POST", mutate, review_of({}))).status_code == 200
                stop.set()
                ready = await answered("GET", f"http://{settings.metrics_addr}/readyz")
                assert "shutdown: shutting down" in ready.text
                assert (await answered("POST", mutate, review_of({}))).status_code == 200
            running.cancel()
            await asyncio.wait([running])

    asyncio.run(main())
