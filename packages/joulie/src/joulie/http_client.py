"""Bounded HTTP requests of the adapters, how their errors are worded, and which certificates are accepted.

A response's body is read up to a maximum number of bytes. What fails below HTTP, such as a lost connection, a TLS
alert or a timeout, becomes one error. Whether to repeat a request, and when to stop sending them, is the adapter's
decision: it knows its server.
"""

from __future__ import annotations

import os
import ssl
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import Any

import httpx2

_SHOWN_BYTES = 200


def tls_context(ca_file: str | PathLike[str] | None = None, *, verify: bool = True) -> ssl.SSLContext:
    """A client's TLS context: host name and chain are verified, certificates accepted as other clients do.

    That of the system's authorities, which take 30 ms to read, is shared: who changes one makes it by
    `new_tls_context`.

    Args:
        ca_file: PEM certificates of trusted authorities; None for the system's.
        verify: whether to verify at all.

    Raises:
        OSError: the file cannot be read, or has no certificate (`ssl.SSLError`).
    """
    if ca_file is None and verify:
        return _of_the_system(*map(_version, ("SSL_CERT_FILE", "SSL_CERT_DIR")))
    return new_tls_context(ca_file, verify=verify)


def new_tls_context(ca_file: str | PathLike[str] | None = None, *, verify: bool = True) -> ssl.SSLContext:
    """A TLS context of the caller's own; arguments and errors as of `tls_context`."""
    if ca_file is not None and verify:
        return accept_as_others(ssl.create_default_context(cafile=ca_file))
    return accept_as_others(httpx2.create_ssl_context(verify=verify))


@lru_cache(maxsize=1)
def _of_the_system(_file: tuple[str, int], _folder: tuple[str, int]) -> ssl.SSLContext:
    return new_tls_context()


def _version(variable: str) -> tuple[str, int]:
    """The place that a variable names, and when it was changed, ns since the epoch; 0 where it cannot be read."""
    place = os.environ.get(variable, "")
    try:
        return place, Path(place).stat().st_mtime_ns if place else 0
    except OSError:
        return place, 0


def accept_as_others(context: ssl.SSLContext) -> ssl.SSLContext:
    """Clear the flag with which Python 3.13 refuses the certificates of many clusters, and return the context.

    VERIFY_X509_STRICT wants a key usage of authorities, and of all certificates the identifier of their issuer's key.
    kubectl, curl and browsers accept certificates without: those of EKS have no such identifier.
    """
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


class RequestError(Exception):
    """A request without a complete response; the cause is the HTTP client's error, if there is one."""


class ResponseTooLargeError(RequestError):
    """A response whose body exceeds the maximum size."""


async def fetch(
    client: httpx2.AsyncClient, method: str, url: str, *, max_bytes: int, **request: Any
) -> tuple[httpx2.Response, bytes]:
    """Send a request and read the whole response, whatever its status.

    Args:
        client: connection pool to send with.
        method: HTTP method.
        url: address to send to.
        max_bytes: maximum size of the response's body, bytes.
        **request: passed on to `httpx2.AsyncClient.stream`, such as headers and timeout.

    Raises:
        ResponseTooLargeError: the body exceeds `max_bytes`.
        RequestError: the connection failed, or the response did not arrive in time.
    """
    body = bytearray()
    try:
        async with client.stream(method, url, **request) as response:
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > max_bytes:
                    raise ResponseTooLargeError(f"response of more than {max_bytes} bytes")
    except (httpx2.HTTPError, OSError) as error:  # a TLS alert after the handshake is an OSError
        raise RequestError(str(error) or type(error).__name__) from error
    return response, bytes(body)


def is_overloaded(response: httpx2.Response) -> bool:
    """Whether a status blames the server, not the request: 429 or 5xx, so that the same request may succeed later."""
    return response.status_code == httpx2.codes.TOO_MANY_REQUESTS or response.is_server_error


def shown_url(url: str) -> str:
    """A URL for an error message: without user, password and query, which may hold secrets."""
    return str(httpx2.URL(url).copy_with(username=None, password=None, query=None, fragment=None))


def shown_body(body: bytes) -> str:
    """The beginning of a body for an error message."""
    return body[:_SHOWN_BYTES].decode(errors="replace").strip()
