"""Watch caches of workload objects of Kubernetes' built-in kinds: their UIDs and the hints in their annotations.

They are needed because a pod does not contain the UID of its Deployment or CronJob, and because an annotation on the
workload object takes effect without a restart of its pods. If watching a kind is forbidden, both are unavailable.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from joulie.adapters.kubernetes.api.meta import KubernetesObject
from joulie.adapters.kubernetes.cache import Cache, Key, Watching
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.pods import Owner, read_hints
from joulie.adapters.kubernetes.profiles import WorkloadKey
from joulie.adapters.kubernetes.resources import CRON_JOBS, DAEMON_SETS, DEPLOYMENTS, JOBS, STATEFUL_SETS, Resource
from joulie.domain.profiles.profile import Hints

_KINDS: tuple[Resource[Any], ...] = (DEPLOYMENTS, STATEFUL_SETS, DAEMON_SETS, JOBS, CRON_JOBS)

_log = logging.getLogger(__name__)


class OwnerFacts(msgspec.Struct, frozen=True):
    """The cached fields of a workload object.

    Attributes:
        api_version: API version of its kind.
        uid: UID of the object.
        hints: hints from its annotations.
        mistakes: one message per invalid annotation.
    """

    api_version: str
    uid: str
    hints: Hints
    mistakes: tuple[str, ...] = ()


class Owners(Watching):
    """Watches the workload objects of Kubernetes' built-in kinds.

    Args:
        client: Kubernetes client.
        changed: called with each workload that was added or whose annotations changed.
    """

    def __init__(self, client: KubeClient, changed: Callable[[WorkloadKey], None]) -> None:
        self._changed = changed
        self._caches: dict[str, Cache[Any, OwnerFacts]] = {}
        for resource in _KINDS:
            cache: Cache[Any, OwnerFacts] = Cache(client, resource, partial(keep_owner, resource))
            cache.add_listener(partial(self._owner_changed, resource.kind))
            self._caches[resource.kind] = cache

    @property
    def caches(self) -> Mapping[str, Cache[Any, Any]]:
        """The caches by kind."""
        return self._caches

    def find(self, workload: WorkloadKey) -> OwnerFacts | None:
        """The cached fields of a workload object; None if unknown."""
        namespace, owner = workload
        cache = self._caches.get(owner.kind)
        return None if cache is None else cache.objects.get(Key(namespace, owner.name))

    def is_gone(self, workload: WorkloadKey) -> bool | None:
        """Whether the object no longer exists; None if unknown."""
        cache = self._caches.get(workload[1].kind)
        return None if cache is None or not cache.synced else self.find(workload) is None

    def _owner_changed(self, kind: str, key: Key, old: OwnerFacts | None, new: OwnerFacts | None) -> None:
        if new is None:
            return
        for mistake in new.mistakes if old is None or old.mistakes != new.mistakes else ():
            _log.warning("%s", mistake, extra={"workload": f"{kind} {key}"})
        self._changed((key.namespace, Owner(kind, key.name)))


def keep_owner(resource: Resource[Any], found: KubernetesObject) -> OwnerFacts:
    """Reduce a workload object to the fields that the classifier caches."""
    mistakes: list[str] = []
    hints = read_hints(found.metadata.annotations, mistakes)
    return OwnerFacts(resource.api_version, found.metadata.uid, hints, tuple(mistakes))
