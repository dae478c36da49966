"""Who may read energy and runtimes of which namespaces: users of the cluster, by RBAC on energy.joulie.io.

The API server has no such resource: it is virtual. Roles may name it all the same, and its authorizers answer for it.
A token is sent in the header Authorization, or in `TOKEN_HEADER` through the API server's proxy, which removes the
former.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TypeVar

from joulie.adapters.kubernetes.access import UserInfo, is_allowed, user_of
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.names import GROUP
from joulie.adapters.program_api.energy import AUDIENCE, ENERGY_RESOURCE, TOKEN_HEADER

K = TypeVar("K")
V = TypeVar("V")

_REMEMBERED = 1000
_REMEMBERED_S = 60.0
"""How long an answer of the API server is used, s."""

Headers = Iterable[tuple[bytes, bytes]]


class AccessDeniedError(Exception):
    """A request that is not answered.

    Attributes:
        status: HTTP status: 401 without a valid token, 403 without the right.
    """

    def __init__(self, status: int, problem: str) -> None:
        super().__init__(problem)
        self.status = status


class Access:
    """Checks who asks, and for what.

    Args:
        client: Kubernetes client of the program.
        now_s: current time, s since the epoch.
    """

    def __init__(self, client: KubeClient, now_s: Callable[[], float]) -> None:
        self._client = client
        self._now_s = now_s
        self._users: OrderedDict[str, tuple[float, UserInfo]] = OrderedDict()
        self._allowed: OrderedDict[tuple[str, str], float] = OrderedDict()

    async def check(self, headers: Headers, namespace: str | None) -> None:
        """Check that the sender of a request may read the energy of a namespace; None for all.

        Raises:
            AccessDeniedError: it may not, or is not known.
            KubernetesError: the API server cannot be asked.
        """
        token = _token(headers)
        if not token:
            raise AccessDeniedError(401, "no token: kubectl joulie takes that of the kubeconfig, or of --token-file")
        digest = hashlib.sha256(token.encode()).hexdigest()
        user = await self._user(digest, token)
        key = (digest, namespace or "")
        now_s = self._now_s()
        if self._allowed.get(key, -_REMEMBERED_S) + _REMEMBERED_S > now_s:
            return
        attributes = {"verb": "get", "group": GROUP, "resource": ENERGY_RESOURCE, "namespace": namespace or ""}
        if not await is_allowed(self._client, user, attributes):
            where = f"namespace {namespace}" if namespace else "all namespaces; ask for one namespace (-n)"
            raise AccessDeniedError(403, f"{user.username} may not get {ENERGY_RESOURCE}.{GROUP} in {where}")
        _remember(self._allowed, key, now_s)

    async def _user(self, digest: str, token: str) -> UserInfo:
        known = self._users.get(digest)
        if known is not None and known[0] + _REMEMBERED_S > self._now_s():
            return known[1]
        user = await user_of(self._client, token) or await user_of(self._client, token, AUDIENCE)
        if user is None:
            raise AccessDeniedError(401, "the cluster does not accept this token")
        _remember(self._users, digest, (self._now_s(), user))
        return user


def _remember(answers: OrderedDict[K, V], key: K, value: V) -> None:
    answers.pop(key, None)
    answers[key] = value
    if len(answers) > _REMEMBERED:
        answers.popitem(last=False)


def _token(headers: Headers) -> str:
    """The token of a request; empty without one."""
    values = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in headers}
    scheme, _, bearer = values.get("authorization", "").partition(" ")
    return (bearer if scheme.lower() == "bearer" else "").strip() or values.get(TOKEN_HEADER, "").strip()
