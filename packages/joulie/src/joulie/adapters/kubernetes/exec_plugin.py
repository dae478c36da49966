"""Exec credential plugins: client.authentication.k8s.io/v1 and v1beta1.

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
    """What a plugin issued. It has no repr: it would end in a log.

    Attributes:
        token: bearer token, or None.
        certificate: PEM client certificate, or None.
        key: PEM private key of the certificate.
        expires_at: Unix time; None where the credential lives as long as the process.
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
    """Runs a plugin when there is no credential, when it expired, and when the server rejected it."""

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
        """The plugin of a kubeconfig user.

        Args:
            exec_: the user's exec section; a relative command with a slash must have been made absolute.
            cluster: the cluster's section, which the plugin gets to see if it asks for it.

        Raises:
            ConfigurationError: an API version, or a need for a terminal, that cannot be served.
        """
        version = exec_.get("apiVersion", "")
        command = exec_.get("command", "")
        if version not in _VERSIONS:
            raise ConfigurationError(
                f"exec plugin {command}: apiVersion {version!r}; supported: {', '.join(_VERSIONS)}"
            )
        interactive = exec_.get("interactiveMode", "IfAvailable") != "Never" and sys.stdin.isatty()
        if exec_.get("interactiveMode") == "Always" and not interactive:
            raise ConfigurationError(f"exec plugin {command} wants a terminal (interactiveMode Always): there is none")
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
        """A credential that is not expired and is not the `rejected` one; requests that wait share one run.

        Raises:
            ConfigurationError: the plugin failed or its output is not what the protocol says.
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
                stdout=asyncio.subprocess.PIPE,  # stderr stays the program's own, as with kubectl: it is for people
            )
        except OSError as error:
            hint = f"; {self._install_hint.strip()}" if self._install_hint else ""
            raise ConfigurationError(f"exec plugin {self._command}: {error.strerror}{hint}") from None
        output, _ = await process.communicate()
        if process.returncode:
            raise ConfigurationError(f"exec plugin {self._command} ended with {process.returncode}; see its own output")
        return output

    def _parse(self, output: bytes) -> Credential:
        try:
            answer = msgspec.json.decode(output, type=_ExecCredential)
        except msgspec.DecodeError as error:
            raise ConfigurationError(f"exec plugin {self._command} printed no ExecCredential: {error}") from None
        status = answer.status or _Status()
        if answer.kind != "ExecCredential" or answer.api_version != self._api_version:
            raise ConfigurationError(
                f"exec plugin {self._command} printed {answer.api_version} {answer.kind}, "
                f"not {self._api_version} ExecCredential"
            )
        if bool(status.client_certificate_data) != bool(status.client_key_data):
            raise ConfigurationError(f"exec plugin {self._command} gave a certificate without its key, or the reverse")
        if not status.token and not status.client_certificate_data:
            raise ConfigurationError(f"exec plugin {self._command} gave neither a token nor a certificate")
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
