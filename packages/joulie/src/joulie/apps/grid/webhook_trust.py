"""Certificate and registration of the webhook, which make the API server trust and call it.

All replicas serve the same self-signed certificate, which is kept in a Secret. The registered CA bundle contains it and
its predecessor, so that no call fails during a rotation.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from joulie.adapters.kubernetes.api.core import Secret
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import ConflictError, KubernetesError
from joulie.adapters.kubernetes.resources import MUTATING_WEBHOOK_CONFIGURATIONS, SECRETS
from joulie.adapters.kubernetes.wire import PatchKind
from joulie.program.certificates import KeyPair, expires_s, self_signed, write_files
from joulie.program.http import TlsFiles
from joulie.waiting import set_within

VALID_S = 90 * 86400.0
RENEW_BEFORE_S = 30 * 86400.0
CHECK_S = 60.0
"""Interval at which certificate and registration are checked."""
RETRY_S = 5.0
"""The same interval after a failure."""

PODS_WEBHOOK = "pods.grid.joulie.io"
NAMESPACES_WEBHOOK = "namespaces.grid.joulie.io"
BUDGETS_WEBHOOK = "budgets.grid.joulie.io"
ASKS_CONDITION = "asks"
"""Match condition by which the first webhook is called only for pods that request deferral themselves."""
_BUDGET_CONDITIONS = frozenset({"not-bound", "not-of-a-daemonset-nor-static"})
"""Match conditions that count for budgets, too."""

_CERTIFICATE, _KEY, _PREVIOUS = "tls.crt", "tls.key", "previous.crt"

_log = logging.getLogger(__name__)


class Trust(NamedTuple):
    """Certificates that the replicas share.

    Attributes:
        pair: current certificate and key.
        previous: previous certificate, which a replica may still serve; empty for none.
    """

    pair: KeyPair
    previous: bytes = b""

    @property
    def bundle(self) -> bytes:
        """CA bundle for the API server, PEM."""
        return self.pair.certificate + self.previous


def trust_of(data: Mapping[str, str]) -> Trust | None:
    """Decode the certificates of a Secret; None if they are missing or invalid.

    Args:
        data: data of the Secret, base64 by key.
    """
    try:
        certificate, key, previous = (
            base64.b64decode(data.get(name, ""), validate=True) for name in (_CERTIFICATE, _KEY, _PREVIOUS)
        )
        expires_s(certificate)
    except (binascii.Error, ValueError):
        return None
    return Trust(KeyPair(certificate, key), previous) if key else None


def renewed(trust: Trust | None, hosts: Sequence[str], now_s: float) -> Trust | None:
    """Create a new certificate if the current one is missing or soon expires; None if it is still good.

    Args:
        trust: current certificates; None for none.
        hosts: host names of the server.
        now_s: current time, s since the epoch.
    """
    if trust is not None and expires_s(trust.pair.certificate) - now_s > RENEW_BEFORE_S:
        return None
    return Trust(self_signed(hosts, now_s, valid_s=VALID_S), trust.pair.certificate if trust is not None else b"")


def data_of(trust: Trust) -> dict[str, str]:
    """Data of the Secret, base64 by key."""
    parts = {_CERTIFICATE: trust.pair.certificate, _KEY: trust.pair.key, _PREVIOUS: trust.previous}
    return {name: base64.b64encode(part).decode() for name, part in parts.items()}


class OwnCertificate:
    """The webhook's self-signed certificate, shared by its replicas in a Secret.

    Args:
        client: Kubernetes client.
        namespace: namespace of the Secret.
        name: name of the Secret.
        hosts: host names of the server.
        clock: current time, s since the epoch.
    """

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        name: str,
        hosts: Sequence[str],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._hosts = hosts
        self._clock = clock
        self._served: KeyPair | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="joulie-webhook-")
        self.files: TlsFiles | None = None

    async def obtain(self) -> Trust:
        """Read the shared certificate, renew it if it is due, and write it to files.

        Raises:
            KubernetesError: the Secret cannot be read or written; of two concurrent renewals, only one succeeds.
        """
        secret: Secret = await self._client.get(SECRETS, self._name, self._namespace)
        trust = trust_of(secret.data)
        fresh = renewed(trust, self._hosts, self._clock())
        if fresh is not None:
            version = {"resourceVersion": secret.metadata.resource_version}
            body = {"metadata": version, "data": data_of(fresh)}
            await self._client.patch(SECRETS, self._name, body, namespace=self._namespace)
            _log.info("created a new certificate", extra={"secret": f"{self._namespace}/{self._name}"})
            trust = fresh
        assert trust is not None, "renewed where there was none"
        if trust.pair != self._served:
            self.files = write_files(Path(self._folder.name), trust.pair)
            self._served = trust.pair
        return trust


class Registration:
    """Registration of the webhook in a MutatingWebhookConfiguration.

    Args:
        client: Kubernetes client.
        name: name of the MutatingWebhookConfiguration.
    """

    def __init__(self, client: KubeClient, name: str) -> None:
        self._client = client
        self._name = name

    async def write(self, bundle: bytes | None, namespaces: Sequence[str], budgeted: Sequence[str] = ()) -> None:
        """Write CA bundle and namespaces if they differ from the registered ones.

        Args:
            bundle: CA bundle, PEM; None if it is registered elsewhere.
            namespaces: namespaces that request deferral for all their pods.
            budgeted: namespaces with an EnergyBudget that holds new pods.

        Raises:
            KubernetesError: the configuration cannot be read or written.
        """
        found = await self._client.get(MUTATING_WEBHOOK_CONFIGURATIONS, self._name)
        wanted = registered_webhooks(found.webhooks, bundle, namespaces, budgeted)
        if wanted == list(found.webhooks):
            return
        body: list[dict[str, Any]] = [
            {"op": "test", "path": "/metadata/resourceVersion", "value": found.metadata.resource_version},
            {"op": "replace", "path": "/webhooks", "value": wanted},
        ]
        await self._client.patch(MUTATING_WEBHOOK_CONFIGURATIONS, self._name, body, kind=PatchKind.JSON)
        _log.info("registered the webhook", extra={"namespaces": len(namespaces)})


def registered_webhooks(
    found: Sequence[dict[str, Any]], bundle: bytes | None, namespaces: Sequence[str], budgeted: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Desired webhooks of the configuration.

    The chart registers a webhook for pods that request deferral themselves. A second one, without that condition, is
    called for all pods of namespaces that request deferral, and a third one for all pods of namespaces whose budget
    holds; they are present only while there are such namespaces. All keep the chart's exclusions.

    Args:
        found: registered webhooks.
        bundle: CA bundle, PEM; None to keep the registered one.
        namespaces: namespaces that request deferral for all their pods.
        budgeted: namespaces with an EnergyBudget that holds new pods.
    """
    wanted: list[dict[str, Any]] = []
    for one in found:
        if one["name"] in (NAMESPACES_WEBHOOK, BUDGETS_WEBHOOK):
            continue
        if one["name"] != PODS_WEBHOOK:
            wanted.append(one)
            continue
        trusted = {} if bundle is None else {"caBundle": base64.b64encode(bundle).decode()}
        pods = {**one, "clientConfig": {**one["clientConfig"], **trusted}}
        wanted.append(pods)
        if namespaces:
            wanted.append(_for_namespaces(pods, NAMESPACES_WEBHOOK, namespaces, lambda name: name != ASKS_CONDITION))
        if budgeted:
            wanted.append(_for_namespaces(pods, BUDGETS_WEBHOOK, budgeted, lambda name: name in _BUDGET_CONDITIONS))
    return wanted


def _for_namespaces(
    pods: dict[str, Any], name: str, namespaces: Sequence[str], keeps: Callable[[str], bool]
) -> dict[str, Any]:
    """The chart's webhook for all pods of some namespaces, with the match conditions that `keeps` names."""
    named = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": list(namespaces)}
    excluded = pods.get("namespaceSelector", {}).get("matchExpressions", ())
    return {
        **pods,
        "name": name,
        "namespaceSelector": {"matchExpressions": [*excluded, named]},
        "matchConditions": [each for each in pods.get("matchConditions", ()) if keeps(each["name"])],
    }


class Keeper:
    """Maintains certificate and registration of the webhook.

    Args:
        registration: registration of the webhook.
        certificate: the webhook's own certificate, or files that are managed elsewhere.

    Attributes:
        problem: error of the last attempt; None if it succeeded.
        expires_s: expiry of the certificate, s since the epoch.
    """

    def __init__(self, registration: Registration, certificate: OwnCertificate | TlsFiles) -> None:
        self.problem: str | None = "not registered yet"
        self.expires_s = 0.0
        self._registration = registration
        self._certificate = certificate

    async def obtain(self, stop: asyncio.Event) -> TlsFiles | None:
        """Wait for the certificate's files; None if `stop` is set before."""
        if isinstance(self._certificate, TlsFiles):
            return self._certificate
        while not stop.is_set():
            try:
                await self._certificate.obtain()
            except KubernetesError as error:
                self._failed(error)
            else:
                return self._certificate.files
            await set_within(stop, RETRY_S)
        return None

    async def keep(self, namespaces: Sequence[str], budgeted: Sequence[str] = ()) -> None:
        """Check certificate and registration once; a failure is logged and retried at the next check.

        Args:
            namespaces: namespaces that request deferral for all their pods.
            budgeted: namespaces with an EnergyBudget that holds new pods.
        """
        try:
            bundle = await self._bundle()
            await self._registration.write(bundle, namespaces, budgeted)
        except (KubernetesError, OSError, ValueError) as error:
            self._failed(error)
        else:
            self.problem = None

    async def _bundle(self) -> bytes | None:
        if isinstance(self._certificate, TlsFiles):
            self.expires_s = expires_s(self._certificate.certificate.read_bytes())
            return None
        trust = await self._certificate.obtain()
        self.expires_s = expires_s(trust.pair.certificate)
        return trust.bundle

    def _failed(self, error: Exception) -> None:
        self.problem = str(error)
        if not isinstance(error, ConflictError):
            _log.warning("certificate or registration not updated, retrying", extra={"problem": str(error)})
