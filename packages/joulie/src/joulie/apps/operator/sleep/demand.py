"""Learns demand from the pods that arrive, and forecasts it."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace

from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.demand import CONFIG_MAP, read_demand, write_demand
from joulie.adapters.kubernetes.errors import KubernetesError, NotFoundError
from joulie.adapters.kubernetes.pods import PodFacts
from joulie.apps.operator.settings import OperatorSettings
from joulie.apps.operator.sleep.nodes import requests_of
from joulie.domain.sleep.demand import DemandHistory
from joulie.domain.sleep.snapshot import ExpectedPods

_SAVE_S = 900.0
"""Interval at which the history is kept; an operator that is killed loses as much at most."""

_log = logging.getLogger(__name__)


class Demand:
    """The history of demand, which a ConfigMap keeps over restarts.

    Args:
        client: Kubernetes client.
        settings: operator settings.
    """

    def __init__(self, client: KubeClient, settings: OperatorSettings) -> None:
        self._client = client
        self._settings = settings
        self._history: DemandHistory | None = None
        self._saved_s = 0.0
        self._kept = True
        # UIDs of pods that have come; None before the first look, at which those that are there are no arrivals.
        self._known: set[str] | None = None

    @property
    def days(self) -> float:
        """Time that was watched in the last four weeks, days."""
        return 0.0 if self._history is None else self._history.days

    async def load(self, now_s: float) -> None:
        """Read the history that was kept; one that is missing or damaged is begun anew."""
        if self._history is not None or not self._settings.forecast.quantile:
            return
        try:
            self._history = await read_demand(self._client, self._settings.namespace)
        except NotFoundError:
            self._kept, self._history = False, DemandHistory()
            _log.warning(
                "demand is learned anew by each leader: ConfigMap is missing", extra={"config_map": CONFIG_MAP}
            )
        except ValueError as error:
            self._history = DemandHistory()
            _log.warning("history of demand is begun anew", extra={"error": str(error)})
        except KubernetesError as error:
            # Begun anew, it would overwrite the one that is there: without it nothing is expected meanwhile.
            _log.warning("history of demand not read", extra={"error": str(error)})
        self._saved_s = now_s

    async def save(self, now_s: float) -> None:
        """Keep the history from time to time."""
        history = self._history
        if history is None or not self._kept or abs(now_s - self._saved_s) < _SAVE_S:
            return
        self._saved_s = now_s
        try:
            await write_demand(self._client, self._settings.namespace, history)
        except (KubernetesError, ValueError) as error:
            _log.warning("history of demand not kept", extra={"error": str(error)})

    def until_back(self, now_s: float) -> tuple[ExpectedPods, ...]:
        """The pods that are expected while a node that is emptied now would sleep."""
        settings = self._settings
        if self._history is None:
            return ()
        keep_s = max(settings.forecast.keep_s, settings.consolidation.horizon_s)
        return self._history.expected(now_s, replace(settings.forecast, keep_s=keep_s))

    def expected(self, pods: Iterable[PodFacts], now_s: float) -> tuple[ExpectedPods, ...]:
        """Learn from the pods that have come since the last look; returns those that are expected."""
        history = self._history
        if history is None:
            return ()
        history.watch(now_s)
        known, before = set(), self._known
        for pod in pods:
            if pod.daemon or pod.static or pod.gated:
                continue
            known.add(pod.uid)
            if before is not None and pod.uid not in before:
                history.arrived(requests_of(pod), pod.placement, now_s)
        self._known = known
        return history.expected(now_s, self._settings.forecast)
