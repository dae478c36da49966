"""Runs exec credential plugins: client.authentication.k8s.io/v1 and v1beta1.

Source: Kubernetes reference, "client-go credential plugins".
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from joulie.adapters.kubernetes.errors import ConfigurationError

_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_CLUSTER_EXTENSION = "client.authentication.k8s.io/exec"
_CLUSTER_KEYS = (
    "server",
    "tls-server-name",
    "insecure-skip-tls-verify",
    "certificate-authority-data",
    "proxy-url",
    "disable-compression",
)


@dataclass(frozen=True, repr=False)
class Credential:
    """A credential issued by a plugin. It has no repr, which could end up in a log.

    Attributes:
        token: bearer token; None if the plugin issued a certificate only.
        certificate: PEM client certificate; None if the plugin issued a token only.
        key: PEM private key of the certificate.
        expires_at: expiry, s since the epoch; None if the credential does not expire.
    """

    token: str | None = None
    certificate: str | None = None
    key: str | None = None
    expires_at: float | None = None


class _Status(msgspec.Struct, rename="camel"):
    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: datetime | None = None


class _ExecCredential(msgspec.Struct, rename="camel"):
    api_version: str
    kind: str
    status: _Status | None = None


class ExecPlugin:
    """Caches a plugin's credential and runs the plugin again when it expires or the server rejects it."""

    def __init__(
        self,
        command: str,
        arguments: tuple[str, ...],
        environment: Mapping[str, str],
        *,
        api_version: str,
        install_hint: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._command = command
        self._arguments = arguments
        self._environment = environment
        self._api_version = api_version
        self._install_hint = install_hint
        self._clock = clock
        self._lock = asyncio.Lock()
        self._credential: Credential | None = None

    @classmethod
    def from_config(cls, exec_: Mapping[str, Any], cluster: Mapping[str, Any]) -> ExecPlugin:
        """Create the plugin of a kubeconfig user.

        Args:
            exec_: exec section of the user; a relative command that contains a slash must have been made absolute.
            cluster: cluster section, passed to the plugin if provideClusterInfo is set.

        Raises:
            ConfigurationError: unsupported API version, or interactiveMode Always without a terminal.
        """
        version = exec_.get("apiVersion", "")
        command = exec_.get("command", "")
        if version not in _VERSIONS:
            raise ConfigurationError(
                f"exec plugin {command}: unsupported apiVersion {version!r}; supported: {', '.join(_VERSIONS)}"
            )
        interactive = exec_.get("interactiveMode", "IfAvailable") != "Never" and sys.stdin.isatty()
        if exec_.get("interactiveMode") == "Always" and not interactive:
            raise ConfigurationError(
                f"exec plugin {command} needs a terminal (interactiveMode Always), but stdin is not one"
            )
        spec: dict[str, Any] = {"interactive": interactive}
        if exec_.get("provideClusterInfo"):
            spec["cluster"] = _cluster_info(cluster)
        info = {"apiVersion": version, "kind": "ExecCredential", "spec": spec}
        environment = {item["name"]: item["value"] for item in exec_.get("env") or ()}
        environment["KUBERNETES_EXEC_INFO"] = msgspec.json.encode(info).decode()
        return cls(
            command,
            tuple(exec_.get("args") or ()),
            environment,
            api_version=version,
            install_hint=exec_.get("installHint") or "",
        )

    async def credential(self, *, rejected: Credential | None = None) -> Credential:
        """Return a credential that is neither expired nor `rejected`; concurrent callers share one run of the plugin.

        Raises:
            ConfigurationError: the plugin failed or its output is not a valid ExecCredential.
        """
        async with self._lock:
            known = self._credential
            expired = known is not None and known.expires_at is not None and known.expires_at <= self._clock()
            if known is None or expired or known is rejected:
                known = self._credential = self._parse(await self._run())
            return known

    async def _run(self) -> bytes:
        try:
            process = await asyncio.create_subprocess_exec(
                self._command,
                *self._arguments,
                env={**os.environ, **self._environment},
                stdout=asyncio.subprocess.PIPE,  # stderr is inherited, as with kubectl: it is meant for the user
            )
        except OSError as error:
            hint = f"; {self._install_hint.strip()}" if self._install_hint else ""
            raise ConfigurationError(f"exec plugin {self._command}: {error.strerror}{hint}") from None
        output, _ = await process.communicate()
        if process.returncode:
            raise ConfigurationError(
                f"exec plugin {self._command} failed with exit status {process.returncode}; see its output on stderr"
            )
        return output

    def _parse(self, output: bytes) -> Credential:
        try:
            answer = msgspec.json.decode(output, type=_ExecCredential)
        except msgspec.DecodeError as error:
            raise ConfigurationError(
                f"exec plugin {self._command} printed an invalid ExecCredential: {error}"
            ) from None
        status = answer.status or _Status()
        if answer.kind != "ExecCredential" or answer.api_version != self._api_version:
            raise ConfigurationError(
                f"exec plugin {self._command} printed {answer.api_version} {answer.kind}, "
                f"expected {self._api_version} ExecCredential"
            )
        if bool(status.client_certificate_data) != bool(status.client_key_data):
            raise ConfigurationError(
                f"exec plugin {self._command} returned a certificate without its key, or a key without its certificate"
            )
        if not status.token and not status.client_certificate_data:
            raise ConfigurationError(f"exec plugin {self._command} returned neither a token nor a certificate")
        return Credential(
            token=status.token,
            certificate=status.client_certificate_data,
            key=status.client_key_data,
            expires_at=status.expiration_timestamp.timestamp() if status.expiration_timestamp else None,
        )


def _cluster_info(cluster: Mapping[str, Any]) -> dict[str, Any]:
    info = {key: cluster[key] for key in _CLUSTER_KEYS if key in cluster}
    for item in cluster.get("extensions") or ():
        if item.get("name") == _CLUSTER_EXTENSION:
            info["config"] = item.get("extension")
    return info
