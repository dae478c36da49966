"""Watches ResourceClaims where the cluster has them (resource.k8s.io/v1, Kubernetes 1.34), and keeps pods up to date.

Nothing waits for them: a cluster without dynamic resource allocation does not serve them, and a chart of before does
not permit them. Such a cluster is asked again now and then, since an upgrade brings them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable
from contextlib import aclosing

from joulie.adapters.kubernetes.api.devices import ResourceClaim
from joulie.adapters.kubernetes.cache import Cache, Key
from joulie.adapters.kubernetes.claims import ClaimedGpus, claimed_gpus, with_claims
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import KubernetesError, NotFoundError
from joulie.adapters.kubernetes.pods import PodFacts
from joulie.adapters.kubernetes.resources import RESOURCE_CLAIMS
from joulie.adapters.kubernetes.wire import Scope

_RETRY_S = 600.0
"""Pause before a cluster that does not serve claims is asked again."""

_log = logging.getLogger(__name__)


class Claims:
    """The ResourceClaims of the cluster.

    Args:
        client: Kubernetes client.
        changed: called with the pods whose claims changed.
    """

    def __init__(self, client: KubeClient, changed: Callable[[Key], None]) -> None:
        self._client = client
        self._changed = changed
        self._cache: Cache[ResourceClaim, ClaimedGpus] = Cache(client, RESOURCE_CLAIMS, claimed_gpus)
        self._cache.add_listener(self._claim_changed)
        self._users: dict[Key, set[Key]] = defaultdict(set)

    async def run(self) -> None:
        """Watch the claims until cancelled."""
        while not await self._served():
            await asyncio.sleep(_RETRY_S)
        await self._cache.run()

    async def _served(self) -> bool:
        try:
            async with aclosing(self._client.pages(Scope(RESOURCE_CLAIMS, None, "", ""), 1)) as pages:
                await anext(pages)
        except NotFoundError:
            return False
        except KubernetesError as error:
            _log.warning("GPUs of ResourceClaims are not counted", extra={"problem": str(error)})
            return False
        return True

    def counted(self, pod: PodFacts) -> PodFacts:
        """The pod with the GPUs of its claims among its requests."""
        if not pod.claims:
            return pod
        found = (self._cache.objects.get(Key(pod.namespace, name)) for name in pod.claims)
        return with_claims(pod, [claim for claim in found if claim is not None])

    def pod_changed(self, key: Key, old: PodFacts | None, new: PodFacts | None) -> None:
        """Remember which claims a pod uses."""
        before, after = (() if pod is None else pod.claims for pod in (old, new))
        if before == after:
            return
        for name in before:
            claim = Key(key.namespace, name)
            self._users[claim].discard(key)
            if not self._users[claim]:
                del self._users[claim]
        for name in after:
            self._users[Key(key.namespace, name)].add(key)

    def _claim_changed(self, key: Key, _old: ClaimedGpus | None, _new: ClaimedGpus | None) -> None:
        for pod in sorted(self._users.get(key, ())):
            self._changed(pod)
