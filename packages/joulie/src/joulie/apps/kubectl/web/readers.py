"""Who reads the pages in the cluster, and what they may see, by TokenReview and SubjectAccessReview."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec

from joulie.adapters.kubernetes.access import UserInfo, is_allowed, user_of
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.resources import PODS, Resource
from joulie.apps.kubectl.web.api import WebApi
from joulie.apps.kubectl.web.programs import Programs
from joulie.apps.kubectl.web.watching import KEPT, Cluster, ClusterView, Visibility

AUDIENCE = "joulie-web"
"""Audience of tokens that serve for signing in here and for nothing else; those for the API server are accepted too."""
_REMEMBERED_S = 60.0
"""How long an answer of the API server is used, s."""
_MAX_REMEMBERED = 100_000
_MAX_REVIEWS = 16
"""Maximum number of SubjectAccessReviews asked for at a time."""
_MAX_TOKEN_REVIEWS = 4
"""The same of TokenReviews, which everybody can cause: those must not keep readers waiting who have signed in."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Remembered(Generic[K, V]):
    """Values that are used for a minute, the oldest forgotten first."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._values: OrderedDict[K, tuple[float, V]] = OrderedDict()

    def get(self, key: K) -> V | None:
        at_s, value = self._values.get(key, (0.0, None))
        return value if 0.0 <= self._now_s() - at_s < _REMEMBERED_S else None

    def put(self, key: K, value: V) -> V:
        self._values.pop(key, None)
        self._values[key] = (self._now_s(), value)
        if len(self._values) > _MAX_REMEMBERED:
            self._values.popitem(last=False)
        return value


class Readers:
    """Asks the API server who readers are and what they may see.

    Args:
        client: Kubernetes client of the program, which may create both reviews.
        cluster: caches of the whole cluster.
        programs: Joulie's programs, asked with the rights of this program.
        now_s: current time, s since the epoch.
    """

    def __init__(self, client: KubeClient, cluster: Cluster, programs: Programs, now_s: Callable[[], float]) -> None:
        self._client = client
        self._cluster = cluster
        self._programs = programs
        self._reviews = asyncio.Semaphore(_MAX_REVIEWS)
        self._token_reviews = asyncio.Semaphore(_MAX_TOKEN_REVIEWS)
        self._users: _Remembered[str, UserInfo] = _Remembered(now_s)
        self._allowed: _Remembered[tuple[str, tuple[tuple[str, str], ...]], bool] = _Remembered(now_s)
        self._visible: _Remembered[str, Visibility] = _Remembered(now_s)

    async def user_of(self, token: str) -> UserInfo | None:
        """The user of a bearer token; None for a token that the API server does not accept.

        Raises:
            KubernetesError: the API server cannot be asked.
        """
        digest = hashlib.sha256(token.encode()).hexdigest()
        user = self._users.get(digest)
        if user is None:
            async with self._token_reviews:
                user = await user_of(self._client, token, AUDIENCE) or await user_of(self._client, token)
            if user is not None:
                self._users.put(digest, user)
        return user

    async def api_of(self, user: UserInfo) -> WebApi:
        """The API as a user may see it.

        Raises:
            KubernetesError: the API server cannot be asked.
        """
        key = _key(user)
        visibility = self._visible.get(key) or self._visible.put(key, await self._visibility(user))
        programs = replace(self._programs, may=partial(self.may, user))
        return WebApi(ClusterView(self._cluster, visibility), programs)

    async def may(self, user: UserInfo, verb: str, group: str, resource: str, **where: str) -> bool:
        """Whether a user may do something.

        Args:
            user: the user.
            verb: get or list.
            group: API group.
            resource: plural name of the resource.
            where: namespace and name; all without them.

        Raises:
            KubernetesError: the API server cannot be asked.
        """
        attributes = {"verb": verb, "group": group, "resource": resource, **where}
        key = (_key(user), tuple(sorted(attributes.items())))
        known = self._allowed.get(key)
        if known is not None:
            return known
        async with self._reviews:
            return self._allowed.put(key, await is_allowed(self._client, user, attributes))

    async def _visibility(self, user: UserInfo) -> Visibility:
        allowed = await asyncio.gather(*(self.may(user, "list", resource.group, resource.plural) for resource in KEPT))
        kinds = frozenset(resource.plural for resource, yes in zip(KEPT, allowed, strict=True) if yes)
        own: dict[str, frozenset[str]] = {}
        if PODS.plural not in kinds:
            # Budgets and profiles are asked for only where pods may be listed: there may be a thousand namespaces.
            own[PODS.plural] = await self._where(user, PODS, self._cluster.namespaces())
        candidates = own.get(PODS.plural, self._cluster.namespaces())
        for resource in KEPT:
            if resource.namespaced and resource is not PODS and resource.plural not in kinds:
                own[resource.plural] = await self._where(user, resource, candidates)
        missing = [
            resource.plural for resource in KEPT if resource.plural not in kinds and not own.get(resource.plural)
        ]
        problems = [f"not shown, since you may not list them: {', '.join(missing)}"] if missing else []
        if own.get(PODS.plural):
            problems.append("only pods of namespaces whose pods you may list are shown")
        return Visibility(kinds, frozenset(own.items()), tuple(problems))

    async def _where(self, user: UserInfo, resource: Resource[Any], namespaces: frozenset[str]) -> frozenset[str]:
        ordered = sorted(namespaces)
        allowed = await asyncio.gather(
            *(self.may(user, "list", resource.group, resource.plural, namespace=one) for one in ordered)
        )
        return frozenset(one for one, yes in zip(ordered, allowed, strict=True) if yes)


def _key(user: UserInfo) -> str:
    return hashlib.sha256(msgspec.json.encode(user, order="deterministic")).hexdigest()
