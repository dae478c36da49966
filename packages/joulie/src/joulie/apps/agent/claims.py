"""Maps devices of ResourceClaims to GPUs: the kubelet reports the names that their DRA driver gave them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from joulie.adapters.kubernetes.errors import KubernetesError
from joulie.domain.gpu_allocations import Allocation, is_claimed
from joulie.domain.usage import PodKey

RETRY_S = 60.0
"""Pause after a list of ResourceSlices that failed, or that did not have all devices, s."""

_log = logging.getLogger(__name__)


class NamedClaims:
    """GPUs that pods hold, those of claims by the names of the GPU's driver as far as ResourceSlices tell.

    They are read when claims of the node change, since names may mean other GPUs after a driver was loaded anew.

    Args:
        allocations: asks the kubelet; raises SourceError.
        names: reads the names of GPUs that claims may get, by `claimed_device`; raises KubernetesError.
        clock: monotonic time, s.
    """

    def __init__(
        self,
        allocations: Callable[[], Awaitable[Sequence[Allocation]]],
        names: Callable[[], Awaitable[Mapping[str, str]]],
        clock: Callable[[], float],
    ) -> None:
        self._allocations = allocations
        self._read_names = names
        self._clock = clock
        self._names: Mapping[str, str] = {}
        self._claims: frozenset[tuple[PodKey, str]] = frozenset()
        self._retry_at_s = float("-inf")
        self._told = False

    async def gpus(self) -> list[Allocation]:
        """GPUs that pods hold; a device of a claim that cannot be named keeps its ID.

        Raises:
            SourceError: the kubelet does not answer.
        """
        found = await self._allocations()
        claims = frozenset((one.pod, device) for one in found for device in one.devices if is_claimed(device))
        if claims != self._claims:
            self._claims, self._names, self._retry_at_s = claims, {}, float("-inf")
        if any(device not in self._names for _, device in claims) and self._clock() >= self._retry_at_s:
            self._retry_at_s = self._clock() + RETRY_S
            await self._read()
        return [one._replace(devices=tuple(self._names.get(name, name) for name in one.devices)) for one in found]

    async def _read(self) -> None:
        try:
            self._names, self._told = await self._read_names(), False
        except KubernetesError as error:
            if not self._told:
                _log.warning("GPUs of claims are not known", extra={"problem": str(error)})
            self._told = True
