"""Connects to the API server: finds its address and credentials in a kubeconfig or the pod's service account.

lightkube provides the HTTP client, TLS, and basic, token and token-file authentication. This module adds what it lacks:
several files in KUBECONFIG, exec plugins of client.authentication.k8s.io/v1 with expiry and client certificates,
tls-server-name, proxy-url and impersonation.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx2 as httpx
import msgspec
import yaml
from lightkube.config import kubeconfig as lk
from lightkube.config.client_adapter import ConnectionParams
from lightkube.config.models import User
from lightkube.core.exceptions import ConfigError

from joulie.adapters.kubernetes.errors import ConfigurationError, ConnectionLostError
from joulie.adapters.kubernetes.exec_plugin import Credential, ExecPlugin
from joulie.http_client import accept_as_others

_log = logging.getLogger(__name__)
logging.getLogger("httpx2").setLevel(logging.WARNING)  # it logs each request at INFO

SERVICE_ACCOUNT_DIR = Path(lk.SERVICE_ACCOUNT)
_DEFAULT_KUBECONFIG = Path(lk.DEFAULT_KUBECONFIG)
_FILE_KEYS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")

TIMEOUT = httpx.Timeout(connect=5.0, read=30.0, write=30.0, pool=30.0)
_LIMITS = httpx.Limits(max_connections=64, max_keepalive_connections=16, keepalive_expiry=60.0)

# Errors raised before any part of the request was sent.
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError, httpx.UnsupportedProtocol)


@dataclasses.dataclass
class _Params(ConnectionParams):
    # lightkube passes all fields to httpx, including those of a subclass.
    timeout: httpx.Timeout | None = dataclasses.field(default_factory=lambda: TIMEOUT)
    limits: httpx.Limits = dataclasses.field(default_factory=lambda: _LIMITS)
    headers: list[tuple[str, str]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class _Cluster:
    """Cluster settings, including those that lightkube's model lacks."""

    config: lk.SingleConfig
    plugin: ExecPlugin | None = None
    proxy_url: str | None = None
    tls_server_name: str | None = None
    impersonate: tuple[tuple[str, str], ...] = ()


class Connection:
    """An HTTP client of one API server that refreshes its credentials.

    Attributes:
        server: URL of the API server.
        namespace: namespace of the context or of the pod; ``default`` if neither gives one.
        source: origin of the configuration, for messages.
    """

    def __init__(self, cluster: _Cluster, *, source: str, user_agent: str) -> None:
        self.server = cluster.config.cluster.server.rstrip("/")
        if not self.server.startswith(("https://", "http://")):
            raise ConfigurationError(f"{source}: server {self.server!r} is not a URL; write https://HOST:PORT")
        self.namespace = cluster.config.namespace
        self.source = source
        self._cluster = cluster
        # No compression: API servers gzip lists above 128 KiB, which takes both sides longer than a local network does.
        self._headers = [("user-agent", user_agent), ("accept-encoding", "identity"), *cluster.impersonate]
        self._extensions = {"sni_hostname": cluster.tls_server_name} if cluster.tls_server_name else {}
        self._http: httpx.AsyncClient | None = None
        self._certificate: str | None = None
        self._files = _tls_files(cluster.config)
        self._stamp: tuple[tuple[int, int] | None, ...] = ()
        if cluster.config.cluster.insecure:
            _log.warning("the API server's certificate is not verified", extra={"server": self.server})

    def __repr__(self) -> str:
        return f"Connection({self.server!r}, from {self.source})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections."""
        http, self._http = self._http, None  # before the await, during which another task may replace it
        if http is not None:
            await http.aclose()

    async def send(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str | int] | None = None,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
        timeout: httpx.Timeout | None = None,
        stream: bool = False,
    ) -> httpx.Response:
        """Send a request and return the response, whatever its status; with `stream`, the body is left to be read.

        On a 401, the exec plugin is run or the token file is read again, and the request is sent once more.

        Raises:
            ConnectionLostError: no complete response arrived.
            ConfigurationError: no credential could be obtained.
        """
        plugin = self._cluster.plugin
        sent = {"params": params, "headers": dict(headers or {}), "content": content, "timeout": timeout or TIMEOUT}
        credential = await plugin.credential() if plugin else None
        response = await self._send_once(method, path, credential, stream, sent)
        if response.status_code == httpx.codes.UNAUTHORIZED and plugin is not None:
            await response.aclose()
            credential = await plugin.credential(rejected=credential)
            response = await self._send_once(method, path, credential, stream, sent)
        return response

    async def bearer_token(self) -> str | None:
        """The user's bearer token, for programs that ask the API server who it is; None for other credentials.

        Raises:
            ConfigurationError: no credential could be obtained.
        """
        if self._cluster.plugin is not None:
            return (await self._cluster.plugin.credential()).token
        user = self._cluster.config.user or User()
        if user.token or not user.token_file:
            return user.token
        try:
            return Path(user.token_file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ConfigurationError(f"{self.source}: {error}") from None

    async def _send_once(
        self, method: str, path: str, credential: Credential | None, stream: bool, sent: Mapping[str, Any]
    ) -> httpx.Response:
        http = await self._client(credential)
        request = http.build_request(method, self.server + path, extensions=self._extensions, **sent)
        if credential is not None and credential.token:
            request.headers["authorization"] = f"Bearer {credential.token}"
        try:
            return await http.send(request, stream=stream)
        except httpx.TransportError as error:
            raise self.lost(error, f"{method} {path}") from None
        except ConfigError as error:  # the token file is gone
            raise ConfigurationError(f"{self.source}: {error}") from None

    async def _client(self, credential: Credential | None) -> httpx.AsyncClient:
        certificate = credential.certificate if credential else None
        stamp = _stamp(self._files)
        used, renewing = self._http, (certificate, stamp) != (self._certificate, self._stamp)
        if used is not None and not renewing:
            return used
        client = self._new_client(credential) if used is None else self._renewed_client(used, credential)
        # Before the await, during which other tasks send.
        self._http, self._certificate, self._stamp = client, certificate, stamp
        if used is not None and used is not client:
            # Connections made with the old certificates end here, as kubectl's do; watches resume.
            await used.aclose()
        return client

    def _renewed_client(self, used: httpx.AsyncClient, credential: Credential | None) -> httpx.AsyncClient:
        """A client with the certificates as they are now; the one in `used` while they cannot be read."""
        try:
            client = self._new_client(credential)
        except ConfigurationError as error:
            if credential is not None and credential.certificate != self._certificate:
                raise
            _log.warning("certificates not reloaded", extra={"server": self.server, "error": str(error)})
            return used
        _log.info("certificates reloaded", extra={"server": self.server})
        return client

    def _new_client(self, credential: Credential | None) -> httpx.AsyncClient:
        settings = _Params(headers=self._headers, proxy=self._cluster.proxy_url)
        config = self._cluster.config
        if self.server.startswith("http://"):
            # There is nothing to verify, and the authorities of the system take 30 ms to read.
            config = config._replace(cluster=msgspec.structs.replace(config.cluster, insecure=True))
        try:
            arguments = settings.httpx_params(config)
            accept_as_others(arguments["verify"])
            if credential is not None and credential.certificate:
                _load_certificate(arguments["verify"], credential)
            return httpx.AsyncClient(**arguments)
        except (ConfigError, OSError, ssl.SSLError, ValueError) as error:
            raise ConfigurationError(f"{self.source}: cannot use the credentials or certificates: {error}") from None

    def lost(self, error: httpx.TransportError, what: str) -> ConnectionLostError:
        """Convert a transport error to the error that callers handle."""
        text = str(error) or type(error).__name__
        message = f"{what}: no answer from {self.server}: {text}"
        permanent = "CERTIFICATE_VERIFY_FAILED" in text
        if permanent:
            message += f" (check the server address and certificate-authority in {self.source})"
        return ConnectionLostError(message, sent=not isinstance(error, _NOT_SENT), permanent=permanent)


def _tls_files(config: lk.SingleConfig) -> list[Path]:
    """Files of certificates and keys, which a cluster rotates while programs run."""
    user = config.user or User()
    named = (config.cluster.certificate_auth, user.client_cert, user.client_key)
    return [Path(config.abs_file(name)) for name in named if name]


def _stamp(files: list[Path]) -> tuple[tuple[int, int] | None, ...]:
    """What changes when a file is written or replaced; None for one that cannot be read."""
    stamps: list[tuple[int, int] | None] = []
    for file in files:
        try:
            status = file.stat()
        except OSError:
            stamps.append(None)
        else:
            stamps.append((status.st_ino, status.st_mtime_ns))
    return tuple(stamps)


def _load_certificate(context: ssl.SSLContext, credential: Credential) -> None:
    """Load a client certificate by a short-lived private file, since Python's ssl reads them only from files."""
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(f"{credential.certificate}\n{credential.key}\n")
        file.flush()
        context.load_cert_chain(file.name)


def connect(
    *,
    kubeconfig: Path | None = None,
    context: str | None = None,
    user_agent: str = "joulie",
    environ: Mapping[str, str] | None = None,
    service_account_dir: Path = SERVICE_ACCOUNT_DIR,
) -> Connection:
    """Connect by the given kubeconfig, else KUBECONFIG, else the pod's service account, else ~/.kube/config.

    Args:
        kubeconfig: kubeconfig file; None to search.
        context: context to use instead of the current one; if given, the pod's service account is not used.
        user_agent: User-Agent header.
        environ: environment variables; None for those of the process.
        service_account_dir: directory of the pod's service account token.

    Raises:
        ConfigurationError: no usable configuration was found; the message lists what was tried.
    """
    environ = os.environ if environ is None else environ
    listed = [Path(part).expanduser() for part in environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    default = _DEFAULT_KUBECONFIG.expanduser()
    if kubeconfig is not None:
        return _from_files([kubeconfig.expanduser()], "kubeconfig", context, user_agent)
    if listed:
        return _from_files(listed, "KUBECONFIG", context, user_agent)
    if context is None and environ.get("KUBERNETES_SERVICE_HOST") and (service_account_dir / "token").exists():
        return _in_cluster(service_account_dir, user_agent)
    if default.exists():
        return _from_files([default], str(default), context, user_agent)
    raise ConfigurationError(
        f"no cluster configured: no --kubeconfig, KUBECONFIG is not set, {service_account_dir}/token and {default} "
        "do not exist; give --kubeconfig FILE"
    )


def _in_cluster(directory: Path, user_agent: str) -> Connection:
    try:
        config = lk.KubeConfig.from_service_account(directory).get()
    except (ConfigError, KeyError) as error:
        raise ConfigurationError(f"the pod's service account in {directory} cannot be used: {error}") from None
    return Connection(_Cluster(_present(config)), source="the pod's service account", user_agent=user_agent)


def _from_files(files: list[Path], source: str, context: str | None, user_agent: str) -> Connection:
    documents = [_read(file) for file in files if file.exists()]
    if not documents:
        raise ConfigurationError(f"{source}: {', '.join(map(str, files))}: no such file")
    source = f"{source} ({', '.join(str(file) for file in files if file.exists())})"
    merged = _merge(documents)
    try:
        config = _present(lk.KubeConfig.from_dict(merged).get(context))
    except (ConfigError, KeyError, TypeError, msgspec.ValidationError) as error:
        known = ", ".join(sorted(item["name"] for item in merged["contexts"])) or "none"
        text = f"no entry {error}" if isinstance(error, KeyError) else str(error)
        raise ConfigurationError(f"{source}: {text}; contexts there: {known}") from None
    raw_cluster = _named(merged["clusters"], config.context.cluster)["cluster"]
    raw_user = _named(merged["users"], config.context.user)["user"] if config.context.user else {}
    if raw_user.get("auth-provider"):
        raise ConfigurationError(f"{source}: auth-provider was removed from Kubernetes; use an exec plugin")
    cluster = _Cluster(
        config=config,
        plugin=ExecPlugin.from_config(raw_user["exec"], raw_cluster) if raw_user.get("exec") else None,
        proxy_url=raw_cluster.get("proxy-url"),
        tls_server_name=raw_cluster.get("tls-server-name"),
        impersonate=_impersonation(raw_user),
    )
    return Connection(cluster, source=source, user_agent=user_agent)


def _present(config: lk.SingleConfig | None) -> lk.SingleConfig:
    if config is None:
        raise ConfigError("no current context")
    # This module runs exec plugins: lightkube supports neither v1 nor expiry.
    user = config.user or User()
    user.exec = None
    return config._replace(user=user)


def _read(file: Path) -> dict[str, Any]:
    """Read one kubeconfig and make its paths, which are relative to the file, absolute."""
    try:
        document = yaml.safe_load(file.read_bytes()) or {}
    except OSError as error:
        raise ConfigurationError(f"{file}: {error.strerror}") from None
    except yaml.YAMLError as error:
        # The error's own text quotes the file, which may contain secrets.
        mark = getattr(error, "problem_mark", None)
        raise ConfigurationError(f"{file}: invalid YAML{f', line {mark.line + 1}' if mark else ''}") from None
    if not isinstance(document, dict):
        raise ConfigurationError(f"{file}: invalid kubeconfig: must be a mapping")
    for kind in ("clusters", "users"):
        for entry in document.get(kind) or []:
            _absolute(entry.get(kind.removesuffix("s")) or {}, file.parent.absolute())
    return document


def _absolute(entry: dict[str, Any], folder: Path) -> None:
    for key in _FILE_KEYS:
        if entry.get(key):
            entry[key] = str(folder / entry[key])
    plugin = entry.get("exec") or {}
    if os.sep in plugin.get("command", ""):
        plugin["command"] = str(folder / plugin["command"])


def _merge(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge kubeconfigs as kubectl does: the first file that sets the current context, or defines an entry, wins."""
    merged: dict[str, Any] = {}
    for kind in ("clusters", "contexts", "users"):
        entries: dict[str, Any] = {}
        for document in documents:
            for entry in document.get(kind) or []:
                entries.setdefault(entry["name"], entry)
        merged[kind] = list(entries.values())
    merged["current-context"] = next((d["current-context"] for d in documents if d.get("current-context")), None)
    return merged


def _named(entries: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(entry for entry in entries if entry["name"] == name)


def _impersonation(user: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Impersonation headers; without them, a program would have more permissions than its kubeconfig intends."""
    if user.get("as-user-extra"):
        raise ConfigurationError("as-user-extra is not supported; use as, as-uid and as-groups")
    single = (("Impersonate-User", user.get("as")), ("Impersonate-Uid", user.get("as-uid")))
    groups = (("Impersonate-Group", group) for group in user.get("as-groups") or ())
    return tuple((name, value) for name, value in (*single, *groups) if value)
