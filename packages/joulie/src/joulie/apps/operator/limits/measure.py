"""Power and progress of jobs over a window, by a few queries for all jobs together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from joulie.adapters.prometheus import Prometheus, PrometheusError, Series
from joulie.adapters.prometheus.pods import pod_values
from joulie.adapters.prometheus.progress import MAX_METRICS, MAX_PER_S, by_pod
from joulie.adapters.prometheus.zones import MAX_DEVICE_W
from joulie.domain.capping.live import JobGpus
from joulie.domain.usage import PodKey

_STEP_S = 15
_TRAFFIC = "avg by (UUID) (avg_over_time(DCGM_FI_PROF_DRAM_ACTIVE[{window}]))"
"""Share of the time in which a GPU's memory moves data: bytes a second, whose number for a step no limit changes."""
_LEAST_TRAFFIC = 0.01
"""Share from which traffic tells of the work; below it, what else moves data is too much of it."""

_log = logging.getLogger(__name__)


class Measured(NamedTuple):
    """A job over a window; None for what was not measured for all of it.

    Attributes:
        power_w: of a GPU, W.
        progress_per_s: of a pod, 1/s.
        counted_per_s: work by the counters of its GPUs, where progress comes from elsewhere, 1/s.
    """

    power_w: float | None = None
    progress_per_s: float | None = None
    counted_per_s: float | None = None


class Meters:
    """Measures jobs by Prometheus.

    Args:
        prometheus: the server that scrapes dcgm-exporter or Joulie's agents, and the pods' progress.
        progress_query: PromQL of the progress of pods that name no metric; empty for counters of their GPUs.
        failed: called for each query that failed.
    """

    def __init__(self, prometheus: Prometheus, progress_query: str, failed: Callable[[], None] = lambda: None) -> None:
        self._prometheus = prometheus
        self._failed = failed
        self._progress_query = progress_query

    async def measure(self, metrics: Collection[str], window_s: float) -> Callable[[str, JobGpus], Measured]:
        """Query what the windows of jobs need, which end now.

        Args:
            metrics: metrics that jobs name as their progress; "" where one names none.
            window_s: length of the windows, s.

        Returns:
            What was measured of a job with a metric; nothing where a query failed.
        """
        window = f"{window_s:.0f}s"
        power_w = by_gpu(await self._ask(_power(window)), MAX_DEVICE_W)
        progress: dict[str, Mapping[PodKey, float]] = {}
        for metric in sorted(metric for metric in metrics if metric)[:MAX_METRICS]:
            query = by_pod("rate", metric, window)
            progress[metric] = pod_values(await self._ask(query), MAX_PER_S)
        counted: Mapping[str, float] = {}
        traffic: Mapping[str, float] = {}
        if any(metrics) or self._progress_query:
            traffic = by_gpu(await self._ask(_TRAFFIC.replace("{window}", window)), 1.0)
        if "" in metrics and self._progress_query:
            query = self._progress_query.replace("{window}", window)
            progress[""] = pod_values(await self._ask(query), MAX_PER_S)
        elif "" in metrics:
            counted = by_gpu(await self._ask(_activity(window)), MAX_PER_S)

        def of(metric: str, job: JobGpus) -> Measured:
            gpus = [gpu for _, gpu, _ in job.gpus]
            if not metric and not self._progress_query:
                own = mean_of(counted, gpus)
                return Measured(mean_of(power_w, gpus), own, own)
            rates, moved = mean_of(progress.get(metric, {}), job.pods), mean_of(traffic, gpus)
            return Measured(mean_of(power_w, gpus), rates, moved if moved and moved >= _LEAST_TRAFFIC else None)

        return of

    async def _ask(self, query: str) -> list[Series]:
        try:
            return await self._prometheus.query(query)
        except PrometheusError as error:
            self._failed()
            _log.info("cannot measure jobs", extra={"query": query, "problem": str(error)})
            return []


def _power(window: str) -> str:
    """Power by GPU: of dcgm-exporter, whose label UUID names it, and of Joulie's agents, whose label gpu does."""
    metrics = "DCGM_FI_DEV_POWER_USAGE|joulie_gpu_power_watts"
    return f'avg by (UUID, gpu) (avg_over_time({{__name__=~"{metrics}"}}[{window}]))'


def _activity(window: str) -> str:
    product = "DCGM_FI_PROF_SM_ACTIVE * DCGM_FI_DEV_SM_CLOCK"
    return f"avg by (UUID) (avg_over_time(({product})[{window}:{_STEP_S}s]))"


def by_gpu(series: Iterable[Series], maximum: float) -> dict[str, float]:
    """Values by ID of a GPU; those below 0 or above `maximum` are left out."""
    found: dict[str, float] = {}
    for one in series:
        gpu = one.labels.get("UUID") or one.labels.get("gpu", "")
        if gpu and 0.0 <= one.value <= maximum:
            found.setdefault(gpu, one.value)
    return found


def mean_of(values: Mapping[str, float] | Mapping[PodKey, float], keys: Iterable[object]) -> float | None:
    """Mean over keys; None where one has no value."""
    known = [values.get(key) for key in keys]  # type: ignore[call-overload]
    if not known or any(value is None for value in known):
        return None
    return float(sum(known) / len(known))
