"""NVIDIA GPUs from dcgm-exporter: power, utilisation, and the pods that hold them. Source: its default counters.

With MIG every instance has its own series, which carry the UUID of the whole GPU and repeat its power. With time
slicing every pod that shares a GPU has its own series.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from joulie.adapters.prometheus.answers import History, Series
from joulie.adapters.prometheus.client import Prometheus
from joulie.adapters.prometheus.node_sums import NodeSums, latest_of
from joulie.adapters.prometheus.nodes import NodeIndex
from joulie.adapters.prometheus.pods import pod_of
from joulie.adapters.prometheus.readings import GpuDevice, GpuUse, NodePower, PodKey, Rejection, Steps
from joulie.adapters.prometheus.zones import MAX_DEVICE_W
from joulie.domain.signal import Reading

_POWER = "DCGM_FI_DEV_POWER_USAGE"
_UTIL = "DCGM_FI_DEV_GPU_UTIL"
_ENGINE = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"
_DRAM = "DCGM_FI_PROF_DRAM_ACTIVE"
_COPY = "DCGM_FI_DEV_MEM_COPY_UTIL"
_PERCENT_PER_UNIT = {_UTIL: 1.0, _COPY: 1.0, _ENGINE: 100.0, _DRAM: 100.0}
"""Factor that converts a metric to percent: profiling metrics are ratios."""
_BY_SLICE = (
    "job, instance, UUID, uuid, gpu, GPU_I_ID, "
    "namespace, pod, exported_namespace, exported_pod, pod_namespace, pod_name"
)
_MAX_CHARS = 100
"""Maximum length of a GPU's UUID; longer ones are invalid."""


class _Slice(NamedTuple):
    """A whole GPU or one of its MIG instances."""

    uuid: str
    instance: str
    """ID of the MIG instance; empty for a whole GPU."""


class Dcgm:
    """GPUs as measured by dcgm-exporter.

    Args:
        prometheus: client of the server that scrapes it.
        window_s: maximum age of a sample, s.
    """

    def __init__(self, prometheus: Prometheus, window_s: float) -> None:
        self._prometheus = prometheus
        self._window_s = window_s

    async def nodes(self, index: NodeIndex) -> NodePower:
        """GPU power of nodes, with each GPU counted once.

        Raises:
            PrometheusError: see `Prometheus.query_samples`.
        """
        histories = await self._prometheus.query_samples(f"{_POWER}[{self._window_s:.0f}s]")
        return await asyncio.to_thread(_node_power, histories, index)

    async def devices(self, index: NodeIndex) -> list[GpuDevice]:
        """GPUs and MIG instances of known nodes, sorted, with the pods that hold them.

        Raises:
            PrometheusError: see `Prometheus.query_samples`.
        """
        selector = f'{{__name__=~"{_POWER}|{_UTIL}|{_ENGINE}"}}[{self._window_s:.0f}s]'
        histories, exporters = await asyncio.gather(self._prometheus.query_samples(selector), self._exporters())
        return await asyncio.to_thread(_all_devices, histories, index, exporters)

    async def pods(self, window_s: float) -> Mapping[PodKey, GpuUse]:
        """Mean usage of the GPUs that pods hold over the last `window_s` seconds.

        A pod that shares a GPU gets the usage of the whole GPU.

        Raises:
            PrometheusError: see `Prometheus.query`.
        """
        exporters, answers = await asyncio.gather(
            self._exporters(),
            asyncio.gather(*(self._prometheus.query(_mean(metric, window_s)) for metric in _PERCENT_PER_UNIT)),
        )
        percents = {
            metric: _percent_by_slice(metric, series, exporters)
            for metric, series in zip(_PERCENT_PER_UNIT, answers, strict=True)
        }
        held: dict[PodKey, set[_Slice]] = {}
        for found in percents.values():
            for pod, slice_ in found:
                held.setdefault(pod, set()).add(slice_)
        return {pod: _use(pod, slices, percents) for pod, slices in held.items()}

    async def courses(self, steps: Steps) -> Mapping[PodKey, Mapping[float, float]]:
        """Utilisation of pods' GPUs, mean over the GPUs that a pod holds, 0..100, by time in s since the epoch.

        Raises:
            PrometheusError: see `Prometheus.query_range`.
        """
        exporters, util, engine = await asyncio.gather(
            self._exporters(), self._busy(_UTIL, steps), self._busy(_ENGINE, steps)
        )
        held: dict[PodKey, dict[_Slice, dict[str, History]]] = {}
        for metric, histories in ((_UTIL, util), (_ENGINE, engine)):
            for history in histories:
                pod, slice_ = _holder(history.labels, exporters), _slice(history.labels)
                if pod is not None and slice_ is not None:
                    held.setdefault(pod, {}).setdefault(slice_, {})[metric] = history
        return {pod: _mean_course(slices) for pod, slices in held.items()}

    async def _busy(self, metric: str, steps: Steps) -> list[History]:
        return await self._prometheus.query_range(_mean(metric, steps.mean_s), steps.start_s, steps.end_s, steps.step_s)

    async def _exporters(self) -> _Exporters:
        """Scrape targets of the exporters, by job and instance, with the exporters' own pods.

        If targets are labelled with pods, the series of an unused GPU carries the exporter's own pod, which does not
        hold the GPU.
        """
        targets = await self._prometheus.query(f"up and on (job, instance) {_POWER}")
        return frozenset(
            (one.labels.get("job", ""), one.labels.get("instance", ""), pod)
            for one in targets
            if (pod := pod_of(one.labels)) is not None
        )


_Exporters = frozenset[tuple[str, str, PodKey]]


def _slice(labels: Mapping[str, str]) -> _Slice | None:
    uuid = labels.get("UUID") or labels.get("uuid", "")
    return _Slice(uuid, labels.get("GPU_I_ID", "")) if 0 < len(uuid) <= _MAX_CHARS else None


def _holder(labels: Mapping[str, str], exporters: _Exporters) -> PodKey | None:
    pod = pod_of(labels)
    if pod is None or (labels.get("job", ""), labels.get("instance", ""), pod) in exporters:
        return None
    return pod


def _node_power(histories: Sequence[History], index: NodeIndex) -> NodePower:
    sums = NodeSums()
    for history in histories:
        node, slice_ = index.node_of(history.labels), _slice(history.labels)
        if node is None:
            sums.reject(Rejection.UNKNOWN_NODE)
        elif slice_ is None:
            sums.reject(Rejection.ABSURD)
        else:
            sums.add("gpu", node, slice_.uuid, latest_of(history.samples, MAX_DEVICE_W))
    return NodePower(gpu=sums.sums("gpu"), gpu_count=sums.counts("gpu"), rejected=sums.rejected)


def _all_devices(histories: Sequence[History], index: NodeIndex, exporters: _Exporters) -> list[GpuDevice]:
    found: dict[str, dict[_Slice, list[History]]] = {}
    for history in histories:
        node, slice_ = index.node_of(history.labels), _slice(history.labels)
        if node is not None and slice_ is not None and history.samples:
            found.setdefault(node, {}).setdefault(slice_, []).append(history)
    return [device for node, slices in sorted(found.items()) for device in _devices(node, slices, exporters)]


def _devices(node: str, slices: Mapping[_Slice, Sequence[History]], exporters: _Exporters) -> Iterator[GpuDevice]:
    partitioned = {slice_.uuid for slice_ in slices if slice_.instance}
    whole: dict[str, list[History]] = {}
    for slice_, histories in slices.items():
        whole.setdefault(slice_.uuid, []).extend(histories)
    for slice_, histories in sorted(slices.items()):
        if slice_.uuid in partitioned and not slice_.instance:
            continue  # its instances are listed instead
        # After a GPU passed from one pod to another, the window has series of both: those of the last scrape count.
        last_s = max(history.samples[-1].time_s for history in histories)
        current = (history.labels for history in histories if history.samples[-1].time_s == last_s)
        holders = sorted({pod for labels in current if (pod := _holder(labels, exporters)) is not None})
        profiles = (history.labels.get("GPU_I_PROFILE", "") for history in histories)
        yield GpuDevice(
            node,
            slice_.uuid,
            slice_.instance or None,
            next(filter(None, profiles), None),
            _latest(_POWER, whole[slice_.uuid], MAX_DEVICE_W),
            _util_pct(slice_, histories),
            tuple(holders),
            shared=len(holders) > 1,
        )


def _latest(metric: str, histories: Iterable[History], maximum: float) -> Reading | None:
    readings = (latest_of(history.samples, maximum) for history in histories if history.name == metric)
    return max((reading for reading in readings if isinstance(reading, Reading)), default=None)


def _util_pct(slice_: _Slice, histories: Sequence[History]) -> float | None:
    for metric in _util_metrics(slice_):
        reading = _latest(metric, histories, 100.0 / _PERCENT_PER_UNIT[metric])
        if reading is not None:
            return reading.value * _PERCENT_PER_UNIT[metric]
    return None


def _util_metrics(slice_: _Slice) -> tuple[str, str]:
    """Utilisation metrics, best first: DEV_GPU_UTIL of a MIG instance is missing, or that of the whole GPU."""
    return (_ENGINE, _UTIL) if slice_.instance else (_UTIL, _ENGINE)


def _mean(metric: str, window_s: float) -> str:
    """Query for the mean by slice and pod; the maximum merges series that differ in other labels only."""
    return f"max by ({_BY_SLICE}) (avg_over_time({metric}[{window_s:.0f}s]))"


def _percent_by_slice(
    metric: str, series: Iterable[Series], exporters: _Exporters
) -> dict[tuple[PodKey, _Slice], float]:
    found: dict[tuple[PodKey, _Slice], float] = {}
    for one in series:
        pod, slice_ = _holder(one.labels, exporters), _slice(one.labels)
        percent = one.value * _PERCENT_PER_UNIT[metric]
        if pod is not None and slice_ is not None and 0.0 <= percent <= 100.0:
            found[pod, slice_] = max(percent, found.get((pod, slice_), 0.0))
    return found


def _mean_course(slices: Mapping[_Slice, Mapping[str, History]]) -> dict[float, float]:
    """Mean over the slices of a pod, at the times at which all of them have a value."""
    courses = []
    for slice_, histories in slices.items():
        metric = next(metric for metric in _util_metrics(slice_) if metric in histories)
        percents = ((time_s, value * _PERCENT_PER_UNIT[metric]) for time_s, value in histories[metric].samples)
        courses.append({time_s: percent for time_s, percent in percents if 0.0 <= percent <= 100.0})
    common = set.intersection(*(set(course) for course in courses))
    return {time_s: sum(course[time_s] for course in courses) / len(courses) for time_s in sorted(common)}


def _use(
    pod: PodKey, slices: Collection[_Slice], percents: Mapping[str, Mapping[tuple[PodKey, _Slice], float]]
) -> GpuUse:
    def mean(metrics: Callable[[_Slice], Sequence[str]]) -> float | None:
        """Mean over the slices, each by the first metric that it has; None if no slice has any."""
        firsts = [
            next(
                (percents[metric][pod, slice_] for metric in metrics(slice_) if (pod, slice_) in percents[metric]), None
            )
            for slice_ in slices
        ]
        known = [percent for percent in firsts if percent is not None]
        return sum(known) / len(known) if known else None

    return GpuUse(mean(_util_metrics), mean(lambda _slice: (_DRAM, _COPY)), len(slices))
