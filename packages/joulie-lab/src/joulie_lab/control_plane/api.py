"""A small client of the local API server with the administrator's certificate; creates thousands of objects fast."""

from __future__ import annotations

import contextlib
import json
import ssl
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any

from joulie_lab.control_plane.certificates import Certificate
from joulie_lab.control_plane.ports import LOOPBACK

# More connections do not create objects faster: the API server and etcd are busy by then.
_CONNECTIONS = 12
_TIMEOUT_S = 60.0


class ApiError(RuntimeError):
    """The API server rejected a request or did not respond: `status` is the HTTP status, None without a response."""

    def __init__(self, status: int | None, message: str) -> None:
        super().__init__(message)
        self.status = status


class AdminApi:
    """Requests to https://`address`:`port`, verified against the control plane's own authority."""

    def __init__(self, authority: Path, identity: Certificate, address: str = LOOPBACK) -> None:
        """Create the client; `port` is called when the API server has been started, at `address`."""
        self.port = 0
        self._address = address
        self._idle: defaultdict[int, deque[HTTPSConnection]] = defaultdict(deque)
        self._context = ssl.create_default_context(cafile=str(authority))
        self._context.load_cert_chain(identity.certificate, identity.key)

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        content_type: str = "application/json",
        timeout_s: float = _TIMEOUT_S,
        port: int | None = None,
    ) -> Any:
        """Make one request and return the decoded response, or its text if it is not JSON.

        Args:
            method: the HTTP method.
            path: URL path, including the query: "/api/v1/nodes?limit=5".
            body: object to send; None for none.
            content_type: media type of the body: "application/merge-patch+json", "application/apply-patch+yaml" ...
            timeout_s: timeout for connecting and for each read, s.
            port: port of another component on loopback, for its /healthz or /metrics; None for the API server's.

        Raises:
            ApiError: the response is an error, or there is none.
        """
        if method == "GET":
            return self._get(path, timeout_s, self.port if port is None else port)
        with self._connect(port, timeout_s) as connection:
            return _exchange(connection, method, path, body, content_type)

    def close(self) -> None:
        """Close the connections that were kept."""
        for idle in self._idle.values():
            while idle:
                idle.pop().close()

    def _get(self, path: str, timeout_s: float, port: int) -> Any:
        """Read over a kept connection: a TLS handshake costs both sides more than a look at an object."""
        idle = self._idle[port]
        while True:
            try:
                kept = idle.pop()
            except IndexError:
                kept = None
            connection = kept or self._connection(port, timeout_s)
            connection.timeout = timeout_s
            if connection.sock is not None:
                connection.sock.settimeout(timeout_s)
            try:
                answer = _exchange(connection, "GET", path, None, "")
            except ApiError as error:
                if error.status is not None:
                    idle.append(connection)
                    raise
                connection.close()
                # A connection that was kept may have been closed since by a server that was started again.
                if kept is None or isinstance(error.__cause__, TimeoutError):
                    raise
            else:
                idle.append(connection)
                return answer

    def create_all(self, path: str, objects: Sequence[Mapping[str, Any]]) -> None:
        """Create objects in the collection `path` over a dozen persistent connections.

        Raises:
            ApiError: the first rejection; later objects may or may not exist.
        """

        def create_share(share: Sequence[Mapping[str, Any]]) -> None:
            with self._connect(None, _TIMEOUT_S) as connection:
                for item in share:
                    _exchange(connection, "POST", path, item, "application/json")

        shares = [objects[first::_CONNECTIONS] for first in range(min(_CONNECTIONS, len(objects)))]
        with ThreadPoolExecutor(max_workers=_CONNECTIONS) as pool:
            for created in [pool.submit(create_share, share) for share in shares]:
                created.result()

    @contextlib.contextmanager
    def _connect(self, port: int | None, timeout_s: float) -> Iterator[HTTPSConnection]:
        with contextlib.closing(self._connection(self.port if port is None else port, timeout_s)) as connection:
            yield connection

    def _connection(self, port: int, timeout_s: float) -> HTTPSConnection:
        address = self._address if port == self.port else LOOPBACK
        return HTTPSConnection(address, port, timeout=timeout_s, context=self._context)


def _exchange(
    connection: HTTPSConnection, method: str, path: str, body: Mapping[str, Any] | None, content_type: str
) -> Any:
    headers = {"Accept": "application/json"}
    content = None
    if body is not None:
        content = json.dumps(body).encode()
        headers["Content-Type"] = content_type
    try:
        connection.request(method, path, content, headers)
        with connection.getresponse() as response:
            answer = response.read()
    except (OSError, HTTPException) as error:
        raise ApiError(None, f"{method} {path} at {connection.host}:{connection.port}: no answer: {error!r}") from error
    is_json = response.headers.get_content_type() == "application/json"
    decoded: Any = json.loads(answer) if is_json else answer.decode(errors="replace")
    if response.status >= 400:
        told = decoded.get("message", decoded) if isinstance(decoded, dict) else decoded
        raise ApiError(response.status, f"{method} {path}: {response.status}: {told}")
    return decoded
