"""Why the API server trusts the webhook: its certificate, and what is registered of it.

The certificate lies in a Secret, so that all replicas serve the same one. It is signed by itself; the API server trusts
it by name, and for a while the one before, so that a rotation lets no call fail.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from joulie.adapters.kubernetes.api.core import Secret
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import ConflictError, KubernetesError
from joulie.adapters.kubernetes.resources import MUTATING_WEBHOOK_CONFIGURATIONS, SECRETS
from joulie.adapters.kubernetes.wire import PatchKind
from joulie.program.certificates import KeyPair, expires_s, self_signed, write_files
from joulie.program.http import TlsFiles

VALID_S = 90 * 86400.0
RENEW_BEFORE_S = 30 * 86400.0
CHECK_S = 60.0
"""Pause between two looks at certificate and registration."""
RETRY_S = 5.0
"""The same while something is wrong."""

PODS_WEBHOOK = "pods.grid.joulie.io"
NAMESPACES_WEBHOOK = "namespaces.grid.joulie.io"
ASKS_CONDITION = "asks"
"""By which the first is called only for pods that ask themselves."""

_CERTIFICATE, _KEY, _PREVIOUS = "tls.crt", "tls.key", "previous.crt"

_log = logging.getLogger(__name__)


class Trust(NamedTuple):
    """What the replicas share.

    Attributes:
        pair: in use.
        previous: the certificate before, which a replica may still serve; empty for none.
    """

    pair: KeyPair
    previous: bytes = b""

    @property
    def bundle(self) -> bytes:
        """What the API server trusts."""
        return self.pair.certificate + self.previous


def trust_of(data: Mapping[str, str]) -> Trust | None:
    """What a Secret holds; None where that is nothing, or spoilt.

    Args:
        data: base64 by name.
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
    """A new certificate where it is time for one; None where the old one is good.

    Args:
        trust: what there is.
        hosts: of the server.
        now_s: s since the epoch.
    """
    if trust is not None and expires_s(trust.pair.certificate) - now_s > RENEW_BEFORE_S:
        return None
    return Trust(self_signed(hosts, now_s, valid_s=VALID_S), trust.pair.certificate if trust is not None else b"")


def data_of(trust: Trust) -> dict[str, str]:
    """What is written to a Secret."""
    parts = {_CERTIFICATE: trust.pair.certificate, _KEY: trust.pair.key, _PREVIOUS: trust.previous}
    return {name: base64.b64encode(part).decode() for name, part in parts.items()}


class OwnCertificate:
    """The webhook's own certificate.

    Args:
        client: to share it through.
        namespace: of the Secret.
        name: of the Secret.
        hosts: of the server.
        clock: s since the epoch.
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
        """The shared certificate, renewed where it is time, and in files.

        Raises:
            KubernetesError: the Secret cannot be read or written; of two replicas that renew at once, one succeeds.
        """
        secret: Secret = await self._client.get(SECRETS, self._name, self._namespace)
        trust = trust_of(secret.data)
        fresh = renewed(trust, self._hosts, self._clock())
        if fresh is not None:
            version = {"resourceVersion": secret.metadata.resource_version}
            body = {"metadata": version, "data": data_of(fresh)}
            await self._client.patch(SECRETS, self._name, body, namespace=self._namespace)
            _log.info("made a new certificate", extra={"secret": f"{self._namespace}/{self._name}"})
            trust = fresh
        assert trust is not None, "renewed where there was none"
        if trust.pair != self._served:
            self.files = write_files(Path(self._folder.name), trust.pair)
            self._served = trust.pair
        return trust


class Registration:
    """What the API server knows of the webhook.

    Args:
        client: to write with.
        name: of the MutatingWebhookConfiguration.
    """

    def __init__(self, client: KubeClient, name: str) -> None:
        self._client = client
        self._name = name

    async def write(self, bundle: bytes | None, namespaces: Sequence[str]) -> None:
        """Say what to trust and which namespaces ask, where the API server knows otherwise.

        Args:
            bundle: certificates, PEM; None where somebody else registers them.
            namespaces: that ask.

        Raises:
            KubernetesError: the configuration cannot be read or written.
        """
        found = await self._client.get(MUTATING_WEBHOOK_CONFIGURATIONS, self._name)
        wanted = registered_webhooks(found.webhooks, bundle, namespaces)
        if wanted == list(found.webhooks):
            return
        body: list[dict[str, Any]] = [
            {"op": "test", "path": "/metadata/resourceVersion", "value": found.metadata.resource_version},
            {"op": "replace", "path": "/webhooks", "value": wanted},
        ]
        await self._client.patch(MUTATING_WEBHOOK_CONFIGURATIONS, self._name, body, kind=PatchKind.JSON)
        _log.info("registered the webhook", extra={"namespaces": len(namespaces)})


def registered_webhooks(
    found: Sequence[dict[str, Any]], bundle: bytes | None, namespaces: Sequence[str]
) -> list[dict[str, Any]]:
    """The webhooks as they should be.

    The chart registers one for the pods that ask themselves. Another one, for all pods of namespaces that ask, is the
    same without that condition; it is there only while a namespace asks. Neither is called for what the chart excludes.

    Args:
        found: as they are.
        bundle: certificates to trust, PEM; None leaves what is there.
        namespaces: that ask.
    """
    wanted: list[dict[str, Any]] = []
    for one in found:
        if one["name"] == NAMESPACES_WEBHOOK:
            continue
        if one["name"] != PODS_WEBHOOK:
            wanted.append(one)
            continue
        trusted = {} if bundle is None else {"caBundle": base64.b64encode(bundle).decode()}
        pods = {**one, "clientConfig": {**one["clientConfig"], **trusted}}
        wanted.append(pods)
        if namespaces:
            named = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": list(namespaces)}
            excluded = one.get("namespaceSelector", {}).get("matchExpressions", ())
            conditions = [each for each in one.get("matchConditions", ()) if each["name"] != ASKS_CONDITION]
            wanted.append(
                {
                    **pods,
                    "name": NAMESPACES_WEBHOOK,
                    "namespaceSelector": {"matchExpressions": [*excluded, named]},
                    "matchConditions": conditions,
                }
            )
    return wanted


class Keeper:
    """Keeps certificate and registration as they should be.

    Args:
        registration: of the webhook.
        certificate: the webhook's own, or files that somebody else keeps.

    Attributes:
        problem: why that failed the last time; None while all is well.
        expires_s: when the certificate ends, s since the epoch.
    """

    def __init__(self, registration: Registration, certificate: OwnCertificate | TlsFiles) -> None:
        self.problem: str | None = "not registered yet"
        self.expires_s = 0.0
        self._registration = registration
        self._certificate = certificate

    async def obtain(self, stop: asyncio.Event) -> TlsFiles | None:
        """The files to serve with, as soon as there are any; None where it is told to stop before."""
        if isinstance(self._certificate, TlsFiles):
            return self._certificate
        while not stop.is_set():
            try:
                await self._certificate.obtain()
            except KubernetesError as error:
                self._failed(error)
            else:
                return self._certificate.files
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), RETRY_S)
        return None

    async def keep(self, namespaces: Sequence[str]) -> None:
        """One look; what fails is said, and tried again at the next one.

        Args:
            namespaces: that ask for their pods.
        """
        try:
            bundle = await self._bundle()
            await self._registration.write(bundle, namespaces)
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
            _log.warning("certificate or registration not kept, will try again", extra={"problem": str(error)})
