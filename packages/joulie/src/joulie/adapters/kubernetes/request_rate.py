"""Rate limit of the requests to grid sources that all programs of an installation share, in a ConfigMap.

Each request reserves its time by an optimistic update, so that any number of replicas, also those of a rollout, keep to
the limit together. Ten requests a minute are as many small writes.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

import msgspec

from joulie.adapters.kubernetes.api.core import ConfigMap
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import ConflictError, KubernetesError, NotFoundError
from joulie.adapters.kubernetes.resources import CONFIG_MAPS
from joulie.domain.request_rate import next_request
from joulie.ports.grid import GridSourceError, RequestRate

CONFIG_MAP = "joulie-grid-requests"
_ATTEMPTS = 8
_PAUSE_S = 0.05
_RETRY_S = 30.0

_log = logging.getLogger(__name__)


class SharedRequestRate:
    """Rate limit that the programs of an installation share.

    Args:
        client: Kubernetes API client.
        namespace: namespace of the ConfigMap.
        now_s: current time, s since the epoch.
        alone: rate limit of this program, used where the ConfigMap does not exist.
    """

    def __init__(self, client: KubeClient, namespace: str, now_s: Callable[[], float], alone: RequestRate) -> None:
        self._client = client
        self._namespace = namespace
        self._now_s = now_s
        self._alone = alone
        self._is_alone = False

    async def reserve(self, host: str, per_minute: float, max_wait_s: float) -> float:
        """Reserve a request; see `RequestRate`."""
        key = host.replace(":", "_")
        try:
            for attempt in range(_ATTEMPTS):
                found = await self._client.get(CONFIG_MAPS, CONFIG_MAP, self._namespace)
                now_s = self._now_s()
                at_s, remembered = next_request(_times(found, key), now_s, per_minute)
                if at_s - now_s > max_wait_s or await self._wrote(found, key, remembered):
                    return at_s - now_s
                await asyncio.sleep(random.uniform(0.0, _PAUSE_S * 2**attempt))  # noqa: S311 - jitter
        except NotFoundError:
            if not self._is_alone:
                self._is_alone = True
                _log.warning("rate limit is not shared: ConfigMap is missing", extra={"config_map": CONFIG_MAP})
            return await self._alone.reserve(host, per_minute, max_wait_s)
        except KubernetesError as error:
            raise GridSourceError(
                f"request not sent: the shared rate limit cannot be read or written: {error}", retry_after_s=_RETRY_S
            ) from error
        raise GridSourceError("request not sent: too many programs reserve requests at once", retry_after_s=_RETRY_S)

    async def _wrote(self, found: ConfigMap, key: str, times_s: list[float]) -> bool:
        """Write the times; False if another program was faster."""
        metadata = {"resourceVersion": found.metadata.resource_version}
        data = {key: msgspec.json.encode([round(time_s, 3) for time_s in times_s]).decode()}
        try:
            await self._client.patch(
                CONFIG_MAPS, CONFIG_MAP, {"metadata": metadata, "data": data}, namespace=self._namespace
            )
        except ConflictError:
            return False
        return True


def _times(found: ConfigMap, key: str) -> list[float]:
    """Times of a host's latest requests, s since the epoch; none if the entry is invalid."""
    try:
        return msgspec.json.decode(found.data.get(key, "[]"), type=list[float])
    except msgspec.DecodeError:
        return []
