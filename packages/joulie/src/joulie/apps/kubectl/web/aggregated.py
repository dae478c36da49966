"""The API as an aggregated API of the cluster: the API server authenticates its users, by whatever means they have.

Client certificates and exec plug-ins leave nothing that a program could pass on. The API server authenticates their
users and passes requests on with their names in headers, over TLS with a certificate of its own. Headers are believed
of nobody else: the server accepts only clients with a certificate of the front proxy's authority, and this module only
those of its names.

Source: Kubernetes documentation, Configure the Aggregation Layer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from cryptography import x509
from cryptography.x509.oid import NameOID
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response

from joulie.adapters.kubernetes.access import UserInfo
from joulie.adapters.program_api.aggregated import API_GROUP, API_ROOT, API_VERSION, GROUP_ROOT, OWN_ROOT
from joulie.apps.kubectl.web.access import with_security_headers
from joulie.apps.kubectl.web.openapi import Operation
from joulie.apps.kubectl.web.sign_in import READER, Reader
from joulie.program.http import AsgiApp, Receive, Scope, Send

API_SERVICE = f"{API_VERSION}.{API_GROUP}"
"""Name of the APIService."""

CONFIG_NAMESPACE, CONFIG_NAME = "kube-system", "extension-apiserver-authentication"
"""ConfigMap in which the API server says by what its requests are known."""


class FrontProxyError(ValueError):
    """The API server does not say how its requests are known, or says it in no form that is known."""


@dataclass(frozen=True)
class FrontProxy:
    """By what requests of the API server are known, and where they say who asks.

    Attributes:
        authority: certificates of the authority that signs for it, PEM.
        names: common names of its certificate; empty for any.
        user_headers: headers with the user's name, the first one that is there counts.
        uid_headers: headers with the user's UID, likewise.
        group_headers: headers with a group each.
        extra_prefixes: prefixes of the headers with what else is known of the user.
    """

    authority: str
    names: frozenset[str]
    user_headers: tuple[str, ...]
    uid_headers: tuple[str, ...]
    group_headers: tuple[str, ...]
    extra_prefixes: tuple[str, ...]

    @classmethod
    def read(cls, data: Mapping[str, str]) -> FrontProxy:
        """Read the data of the ConfigMap.

        Raises:
            FrontProxyError: it has no authority, no header of users, or malformed lists.
        """
        authority = data.get("requestheader-client-ca-file", "")
        try:
            x509.load_pem_x509_certificates(authority.encode())
        except ValueError as error:
            raise FrontProxyError(
                f"ConfigMap {CONFIG_NAMESPACE}/{CONFIG_NAME} has no usable requestheader-client-ca-file: does the API "
                f"server run with --requestheader-client-ca-file? ({error})"
            ) from None
        users = _listed(data, "requestheader-username-headers")
        if not users:
            raise FrontProxyError(f"ConfigMap {CONFIG_NAMESPACE}/{CONFIG_NAME} names no header of users")
        return cls(
            authority,
            frozenset(_listed(data, "requestheader-allowed-names")),
            users,
            _listed(data, "requestheader-uid-headers"),
            _listed(data, "requestheader-group-headers"),
            tuple(prefix.lower() for prefix in _listed(data, "requestheader-extra-headers-prefix")),
        )

    def is_sender(self, certificates: Iterable[str]) -> bool:
        """Whether a client is the API server: TLS has checked who signed its certificate, but not its name.

        Args:
            certificates: of the client, PEM, its own one first.
        """
        own = next(iter(certificates), None)
        if own is None:
            return False
        subject = x509.load_pem_x509_certificate(own.encode()).subject
        common = {str(one.value) for one in subject.get_attributes_for_oid(NameOID.COMMON_NAME)}
        return not self.names or bool(common & self.names)

    def user_of(self, headers: Headers) -> UserInfo | None:
        """The user of a request; None if it says none."""
        user = _first(headers, self.user_headers)
        if not user:
            return None
        extra: dict[str, list[str]] = {}
        for name, value in headers.items():
            prefix = next((one for one in self.extra_prefixes if name.startswith(one)), None)
            if prefix is not None:
                extra.setdefault(unquote(name.removeprefix(prefix)), []).append(value)
        groups = [group for name in self.group_headers for group in headers.getlist(name)]
        return UserInfo(user, _first(headers, self.uid_headers), groups, extra)


class AggregatedApi:
    """ASGI application that serves the API below ``/apis``, to the API server and nobody else.

    Args:
        app: the API below ``/api/v1``; it finds the `Reader` in the scope.
        proxy: by what the API server is known.
        operations: operations of the API, for its discovery documents.
    """

    def __init__(self, app: AsgiApp, proxy: FrontProxy, operations: Iterable[Operation]) -> None:
        self._app = app
        self._proxy = proxy
        self._documents = documents(operations)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        response = self._response(scope)
        await (self._app if response is None else response)(scope, receive, with_security_headers(send))

    def _response(self, scope: Scope) -> Response | None:
        """The response to a request that is not passed on; None for one that is, under its own path."""
        certificates = scope.get("extensions", {}).get("tls", {}).get("client_cert_chain", ())
        if not self._proxy.is_sender(certificates):
            return _refused(403, "only the API server is answered here")
        if scope["method"] not in {"GET", "HEAD"}:
            return _refused(405, "this API is read only: use get")
        path = scope["path"].rstrip("/")
        if path in self._documents:
            return JSONResponse(self._documents[path])
        resource = path.removeprefix(API_ROOT)
        if not path.startswith(API_ROOT + "/") or resource.startswith("/namespaces/"):
            return _refused(404, f"not found: see {API_ROOT}; namespaces are a parameter: ?namespace=NAME")
        user = self._proxy.user_of(Headers(scope=scope))
        if user is None:
            return _refused(401, "the API server does not say who asks")
        scope[READER] = Reader(user)
        scope["path"] = OWN_ROOT + resource
        scope["raw_path"] = scope["path"].encode()
        return None


def documents(operations: Iterable[Operation]) -> dict[str, Any]:
    """Discovery documents by path. The only verb is get, so that nobody tries to list, watch or delete."""
    version = {"groupVersion": f"{API_GROUP}/{API_VERSION}", "version": API_VERSION}
    group = {"name": API_GROUP, "versions": [version], "preferredVersion": version}
    kinds = {one.path.removeprefix(f"{OWN_ROOT}/").partition("/")[0]: one.answer.__name__ for one in operations}
    resources = [
        {"name": name, "singularName": "", "namespaced": False, "kind": kind, "verbs": ["get"]}
        for name, kind in sorted(kinds.items())
    ]
    info = {"title": "Joulie", "version": API_VERSION}
    return {
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]},
        GROUP_ROOT: {"kind": "APIGroup", "apiVersion": "v1", **group},
        API_ROOT: {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": version["groupVersion"],
            "resources": resources,
        },
        # Without them the API server logs an error for every attempt to merge them with its own.
        "/openapi/v2": {"swagger": "2.0", "info": info, "paths": {}},
        "/openapi/v3": {"paths": {}},
    }


def _refused(status: int, problem: str) -> Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": problem, "code": status}
    return JSONResponse(body, status)


def _listed(data: Mapping[str, str], key: str) -> tuple[str, ...]:
    try:
        found = json.loads(data.get(key, "[]"))
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise FrontProxyError(f"ConfigMap {CONFIG_NAMESPACE}/{CONFIG_NAME}: {key} is not a list of texts")
    return tuple(found)


def _first(headers: Headers, names: Iterable[str]) -> str:
    return next((value for name in names if (value := headers.get(name, ""))), "")
