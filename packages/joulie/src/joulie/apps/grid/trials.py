"""Trials of deferral, as the operator has drawn them; the grid controller only reads them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import KubernetesError, NotFoundError
from joulie.adapters.kubernetes.power_trials import workload_protocol_of
from joulie.adapters.kubernetes.resources import POWER_TRIALS
from joulie.domain.trial.workload_protocol import WorkloadProtocol
from joulie.domain.units import InvalidQuantityError

LOOK_S = 10.0
"""Interval of reading the trials, s: pods that are created in the first seconds of one wait as without it."""

_log = logging.getLogger(__name__)


class DeferralTrial(NamedTuple):
    """A trial of deferral: its name and its draw."""

    name: str
    protocol: WorkloadProtocol


class DeferralTrials:
    """Follows the trials of deferral that are drawn, those that are over included: their pods may still wait.

    Args:
        client: Kubernetes client.
        changed: called when they change.

    Attributes:
        known: the trials, in order of their start.
        looked: set once they were looked at, with an answer or without.
    """

    def __init__(self, client: KubeClient, changed: Callable[[], None]) -> None:
        self.known: tuple[DeferralTrial, ...] = ()
        self.looked = asyncio.Event()
        self._client = client
        self._changed = changed

    async def run(self) -> None:
        """Look at them until cancelled; while they cannot be read, the last answer counts."""
        while True:
            try:
                await self.look()
            except KubernetesError as error:
                _log.warning("trials not read", extra={"error": str(error)})
            self.looked.set()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Look at them once.

        Raises:
            KubernetesError: they cannot be read.
        """
        found = []
        try:
            listed = (await self._client.list(POWER_TRIALS)).items
        except NotFoundError:  # the definition is not installed
            listed = []
        for trial in listed:
            try:
                protocol = workload_protocol_of(trial)
            except (ValueError, InvalidQuantityError) as error:
                _log.warning("trial not followed", extra={"trial": trial.metadata.name, "error": str(error)})
                continue
            if protocol is not None:
                found.append(DeferralTrial(trial.metadata.name, protocol))
        trials = tuple(sorted(found, key=lambda one: (one.protocol.start_s, one.name)))
        if trials != self.known:
            self.known = trials
            self._changed()
