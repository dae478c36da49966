"""`joulie grid webhook`: gates pods at creation, for API servers without MutatingAdmissionPolicy.

Errors never block a pod: it is then admitted unchanged.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge
from starlette.requests import ClientDisconnect, Request

from joulie.adapters.kubernetes.api.core import ConfigMap, Namespace, Pod
from joulie.adapters.kubernetes.api.v1alpha1 import EnergyBudget
from joulie.adapters.kubernetes.cache import Cache, Key, Watching
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.energy_budgets import HOLDING, condition_of
from joulie.adapters.kubernetes.gating import CONFIG_MAP as GATING_CONFIG_MAP
from joulie.adapters.kubernetes.resources import CONFIG_MAPS, DAEMON_SETS, ENERGY_BUDGETS, NAMESPACES, NODES
from joulie.apps.grid.facts import Asking, NamespaceFacts, asking_of, keep_namespace, owner_of
from joulie.apps.grid.requests import NO_POLICY, requested
from joulie.apps.grid.webhook_trust import CHECK_S, RETRY_S, Keeper, OwnCertificate, Registration
from joulie.domain.grid import names
from joulie.domain.grid.request import GridDefaults
from joulie.domain.mode import Mode
from joulie.program import logs
from joulie.program.http import (
    AsgiApp,
    Probes,
    Receive,
    Scope,
    Send,
    Server,
    TlsFiles,
    lame_duck,
    observability_app,
    parse_address,
    respond,
)
from joulie.program.run import run
from joulie.program.settings import ModeSettings, ServerSettings, settings_options
from joulie.settings import path, text
from joulie.waiting import set_within

MAX_BODY_BYTES = 8 * 2**20
"""Maximum size of a review: an object has at most 1.5 MiB in etcd, and a review contains it once."""
_DEFAULTS = GridDefaults()
_API_VERSION = "admission.k8s.io/v1"
_NEVER_HELD = frozenset({DAEMON_SETS.kind, NODES.kind})
"""Kinds of owners whose pods are never gated; a Node owns the mirror pod of a static pod."""
_CRITICAL = frozenset({"system-cluster-critical", "system-node-critical"})
"""Priority classes whose pods no budget holds."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class WebhookSettings(ModeSettings, ServerSettings):
    """Settings of `joulie grid webhook`.

    Raises:
        ValueError: settings contradict each other.
    """

    namespace: str = text("POD_NAMESPACE", "joulie-system", "Namespace of the Service, Secret and gating ConfigMap.")
    name: str = text(
        "WEBHOOK_NAME",
        "joulie-grid-webhook",
        "Name of the Service, of the Secret and of the MutatingWebhookConfiguration.",
    )
    address: str = text("WEBHOOK_ADDR", ":9443", "Listen address of the webhook, HTTPS, which the API server calls.")
    metrics_addr: str = text("METRICS_ADDR", ":8082", "Listen address of /metrics and probes.")
    tls_cert_file: Path | None = path(
        "WEBHOOK_TLS_CERT_FILE",
        None,
        "Certificate chain, PEM, such as cert-manager's, which then also registers it. If empty, the webhook creates, "
        "rotates and registers its own.",
    )
    tls_key_file: Path | None = path("WEBHOOK_TLS_KEY_FILE", None, "Private key of that certificate, PEM.")

    def __post_init__(self) -> None:
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("WEBHOOK_TLS_CERT_FILE and WEBHOOK_TLS_KEY_FILE go together")

    @property
    def given_files(self) -> TlsFiles | None:
        """Files of a certificate that is managed elsewhere; None if the webhook creates its own."""
        if self.tls_cert_file is None or self.tls_key_file is None:
            return None
        return TlsFiles(self.tls_cert_file, self.tls_key_file)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Host names of the Service, for the certificate."""
        return tuple(f"{self.name}.{self.namespace}{suffix}" for suffix in (".svc", ".svc.cluster.local", ""))


# ---- reviews


class _Identified(msgspec.Struct):
    uid: str


class _PodRequest(_Identified):
    namespace: str = ""
    object: msgspec.Raw = msgspec.Raw(b"null")


class _UidReview(msgspec.Struct):
    request: _Identified


class _PodReview(msgspec.Struct):
    request: _PodRequest


class _Response(msgspec.Struct, rename="camel", omit_defaults=True):
    uid: str
    allowed: bool
    patch_type: str | None = None
    patch: str | None = None


class _Answer(msgspec.Struct, rename="camel"):
    response: _Response
    api_version: str = _API_VERSION
    kind: str = "AdmissionReview"


class Verdict(NamedTuple):
    """Response to an admission review.

    Attributes:
        status: HTTP status.
        body: AdmissionReview with the response, or an error text.
        result: ``gated``, ``left`` or ``malformed``, for the metric.
    """

    status: int
    body: bytes
    result: str


def review(body: bytes, gates: Callable[[str, Pod], Sequence[str]]) -> Verdict:
    """Respond to an admission review.

    A review with a UID is always allowed, even if its pod is invalid. Without a UID the response is an error, and the
    failure policy admits the pod as well.

    Args:
        body: AdmissionReview, JSON.
        gates: the gates that a pod of a namespace gets.
    """
    try:
        uid = msgspec.json.decode(body, type=_UidReview).request.uid
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Verdict(400, f"not an AdmissionReview with a uid: {error}\n".encode(), "malformed")
    if not uid:
        return Verdict(400, b"not an AdmissionReview with a uid: it is empty\n", "malformed")
    try:
        request = msgspec.json.decode(body, type=_PodReview).request
        pod = msgspec.json.decode(request.object, type=Pod)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        _log.warning("invalid pod admitted unchanged", extra={"problem": str(error)})
        return Verdict(200, _encoded(_Response(uid, allowed=True)), "malformed")
    wanted = gates(request.namespace or pod.metadata.namespace, pod)
    if not wanted:
        return Verdict(200, _encoded(_Response(uid, allowed=True)), "left")
    patch = base64.b64encode(msgspec.json.encode(patch_of(pod, wanted))).decode()
    return Verdict(200, _encoded(_Response(uid, allowed=True, patch_type="JSONPatch", patch=patch)), "gated")


def patch_of(pod: Pod, gates: Sequence[str]) -> list[dict[str, object]]:
    """JSON patch (RFC 6902) that adds gates to a pod's scheduling gates."""
    values = [{"name": gate} for gate in gates]
    if pod.spec.scheduling_gates:
        return [{"op": "add", "path": "/spec/schedulingGates/-", "value": value} for value in values]
    return [{"op": "add", "path": "/spec/schedulingGates", "value": values}]


def wants_gate(pod: Pod, policy: NamespaceFacts) -> bool:
    """Whether a pod that is being created is to be gated; the chart's admission policy is the same rule in CEL.

    Args:
        pod: pod to be created.
        policy: facts of its namespace.
    """
    meta, spec = pod.metadata, pod.spec
    if not _may_be_gated(pod, names.GATE):
        return False
    return requested(asking_of(meta, spec), owner_of(meta), policy, _DEFAULTS).defer


def _may_be_gated(pod: Pod, gate: str) -> bool:
    """Whether a gate can be added to a pod that is being created."""
    if pod.spec.node_name or any(one.name == gate for one in pod.spec.scheduling_gates):
        return False
    return all(owner.kind not in _NEVER_HELD for owner in pod.metadata.owner_references)


def _encoded(response: _Response) -> bytes:
    return msgspec.json.encode(_Answer(response))


# ---- the program


class WebhookMetrics:
    """Metrics of the webhook."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        reviews = Counter(
            "joulie_grid_webhook_reviews",
            "Number of pods reviewed: gated, left unchanged, or malformed.",
            ["result"],
            registry=self.registry,
        )
        self.reviews = {result: reviews.labels(result) for result in ("gated", "left", "malformed")}
        self.certificate_expires = Gauge(
            "joulie_grid_webhook_certificate_expiry_seconds",
            "Expiry of the serving certificate, s since the epoch.",
            registry=self.registry,
        )


class GatingView(Watching):
    """Watch caches from which the webhook decides: namespaces, and whether gating is enabled.

    Args:
        client: Kubernetes client.
        namespace: namespace of the gating ConfigMap.
        mode: mode of namespaces without a label of their own.
    """

    def __init__(self, client: KubeClient, namespace: str, mode: Mode = Mode.ENFORCE) -> None:
        self._mode = mode
        self._namespaces: Cache[Namespace, NamespaceFacts] = Cache(client, NAMESPACES, keep_namespace)
        self._gating: Cache[ConfigMap, bool] = Cache(
            client,
            CONFIG_MAPS,
            lambda found: found.data.get("enabled") == "true",
            namespace=namespace,
            field_selector=f"metadata.name={GATING_CONFIG_MAP}",
        )
        self._gating_key = Key(namespace, GATING_CONFIG_MAP)
        self._budgets: Cache[EnergyBudget, bool] = Cache(client, ENERGY_BUDGETS, _is_holding)

    async def run(self) -> None:
        """Follow the cluster until cancelled. EnergyBudgets are not needed for readiness: their CRD may be missing."""
        async with asyncio.TaskGroup() as group:
            group.create_task(super().run())
            group.create_task(self._budgets.run())

    @property
    def deferring(self) -> tuple[str, ...]:
        """Names of the namespaces that request deferral for all their pods, sorted; without those in observe mode."""
        return tuple(
            sorted(
                key.name
                for key, policy in self._namespaces.objects.items()
                if requested(Asking(), None, policy, _DEFAULTS).defer and not policy.observed(self._mode)
            )
        )

    @property
    def budgeted(self) -> tuple[str, ...]:
        """Names of the namespaces with an EnergyBudget that holds new pods, sorted."""
        return tuple(sorted({key.namespace for key, holding in self._budgets.objects.items() if holding}))

    def gates(self, namespace: str, pod: Pod) -> tuple[str, ...]:
        """The gates that a pod of a namespace gets."""
        policy = self._namespaces.objects.get(Key("", namespace), NO_POLICY)
        if not self._gating.objects.get(self._gating_key) or policy.observed(self._mode):
            return ()
        wanted = {
            names.GATE: wants_gate(pod, policy),
            names.BUDGET_GATE: namespace in self.budgeted
            and _may_be_gated(pod, names.BUDGET_GATE)
            and pod.spec.priority_class_name not in _CRITICAL,
        }
        return tuple(gate for gate, needed in wanted.items() if needed)

    def add_listener(self, callback: Callable[[], None]) -> None:
        """Call `callback` when namespaces or what their budgets hold change."""
        self._namespaces.add_listener(lambda _key, _old, _new: callback())
        self._budgets.add_listener(lambda _key, _old, _new: callback())

    @property
    def caches(self) -> Mapping[str, Cache[Any, Any]]:
        """Caches by resource."""
        return {NAMESPACES.plural: self._namespaces, CONFIG_MAPS.plural: self._gating}


def _is_holding(budget: EnergyBudget) -> bool:
    condition = condition_of(budget, HOLDING)
    return condition is not None and condition.status == "True"


def webhook_app(gates: Callable[[str, Pod], Sequence[str]], metrics: WebhookMetrics) -> AsgiApp:
    """ASGI application that the API server calls: POST /mutate."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if (scope["method"], scope["path"]) != ("POST", "/mutate"):
            await respond(send, 404, b"not found; use POST /mutate\n")
            return
        try:
            body = await _body(Request(scope, receive))
        except ClientDisconnect:
            return
        if body is None:
            await respond(send, 413, f"review larger than the maximum of {MAX_BODY_BYTES} bytes\n".encode())
            return
        verdict = review(body, gates)
        metrics.reviews[verdict.result].inc()
        kind = b"application/json" if verdict.status == 200 else b"text/plain; charset=utf-8"
        await respond(send, verdict.status, verdict.body, kind)

    return app


async def _body(request: Request) -> bytes | None:
    """Body of a request; None if it exceeds the maximum size."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            return None
    return bytes(body)


@click.command("webhook")
@settings_options(WebhookSettings)
def webhook(settings: WebhookSettings) -> None:
    """Gate pods at creation, for API servers without MutatingAdmissionPolicy."""
    logs.configure(settings.log_level, settings.log_format)
    run(partial(serve, settings), fast_loop=True)


async def serve(settings: WebhookSettings, stop: asyncio.Event) -> None:
    """Serve until `stop` is set.

    Args:
        settings: settings of the program.
        stop: set to end.
    """
    metrics, probes = WebhookMetrics(), Probes()
    connection = KubeClient.connect(
        kubeconfig=settings.kubeconfig, context=settings.context, user_agent="joulie-grid-webhook"
    )
    async with connection as client:
        view = GatingView(client, settings.namespace, settings.mode)
        keeper = _keeper(client, settings)
        probes.add("cluster", view.why_not_ready)
        probes.add("certificate and registration", lambda: keeper.problem)
        async with Server(observability_app(probes, metrics.registry), parse_address(settings.metrics_addr)):
            files = await keeper.obtain(stop)
            if files is None:
                return
            address = parse_address(settings.address)
            webhook_server = Server(webhook_app(view.gates, metrics), address, tls=files, stop=stop)
            async with webhook_server as server, asyncio.TaskGroup() as group:
                _log.info("listening", extra={"port": server.port})
                tasks = [
                    group.create_task(view.run()),
                    group.create_task(_maintain(keeper, view, metrics)),
                ]
                await lame_duck(stop, probes, settings.shutdown_delay_s)
                for task in tasks:
                    task.cancel()


def _keeper(client: KubeClient, settings: WebhookSettings) -> Keeper:
    registration = Registration(client, settings.name)
    if settings.given_files is not None:
        return Keeper(registration, settings.given_files)
    return Keeper(registration, OwnCertificate(client, settings.namespace, settings.name, settings.hosts))


async def _maintain(keeper: Keeper, view: GatingView, metrics: WebhookMetrics) -> None:
    """Rotate the certificate and update the registration, periodically and when namespaces change."""
    changed = asyncio.Event()
    view.add_listener(changed.set)
    await view.wait_synced()
    while True:
        changed.clear()
        await keeper.keep(view.deferring, view.budgeted)
        metrics.certificate_expires.set(keeper.expires_s)
        await set_within(changed, CHECK_S if keeper.problem is None else RETRY_S)
