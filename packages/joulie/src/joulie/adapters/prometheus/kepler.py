"""Kepler: power of nodes and pods. Source: Kepler's metrics reference, up to 0.9 and from 0.10 on.

Up to 0.9, nodes have `kepler_node_package_joules_total` and the like of `dram` and `gpu`, by package and mode, and
containers `kepler_container_package_joules_total` and its like, by mode. The modes are dynamic and idle, and add up.

From 0.10 on, nodes have `kepler_node_cpu_joules_total` by zone and path, and `kepler_node_gpu_watts` by GPU, since
0.11.4 beside `kepler_node_gpu_joules_total` by GPU and without mode; pods have `kepler_pod_cpu_joules_total` by zone
and state, and `kepler_pod_gpu_watts`. Zones overlap (psys holds the package, the package its cores) and are never added
up. A package is the zone ``package`` of RAPL, or ``esocket0``, ``socket1`` and the like of Kepler's hwmon backend.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence

from joulie.adapters.prometheus.answers import History, Series
from joulie.adapters.prometheus.client import Prometheus
from joulie.adapters.prometheus.node_sums import NodeSums, latest_of, rate_of, sum_of_both
from joulie.adapters.prometheus.nodes import NodeIndex
from joulie.adapters.prometheus.pods import pod_values
from joulie.adapters.prometheus.readings import NodePower, PodKey, PodPower, Rejection
from joulie.adapters.prometheus.zones import MAX_DEVICE_W, Zone, add_zones
from joulie.domain.profiles.profile import EnergyUse
from joulie.domain.signal import Reading

_NODE_SELECTOR = (
    '{__name__=~"kepler_node_(package|dram|gpu)_joules_total|kepler_node_cpu(_active)?_joules_total'
    '|kepler_node_gpu_watts", zone!~"(core|uncore|psys|ecore).*"}'
)
_PACKAGE = "package.*|e?socket[0-9]*"
_DRAM = "dram.*"
_GPU_JOULES = "kepler_node_gpu_joules_total"
_OLD_PARTS = {"kepler_node_package_joules_total": "cpu", "kepler_node_dram_joules_total": "dram", _GPU_JOULES: "gpu"}
_GPU_WATTS = "kepler_node_gpu_watts"
_AGGREGATED = "aggregated-"
"""Prefix of the path of a zone that sums up the zones of all sockets."""
_MAX_POD_W = 64 * MAX_DEVICE_W


class Kepler:
    """Power of nodes and pods as measured by Kepler, from whichever of its two metric families has series.

    Args:
        prometheus: client of the server that scrapes it.
        window_s: window over which power is averaged, at least two scrapes long, s.
    """

    def __init__(self, prometheus: Prometheus, window_s: float) -> None:
        self._prometheus = prometheus
        self._window_s = window_s

    async def nodes(self, index: NodeIndex) -> NodePower:
        """CPU, memory and GPU power of nodes.

        A node with dynamic energy only, such as a virtual machine with Kepler up to 0.9, has no CPU power.

        Raises:
            PrometheusError: see `Prometheus.query_samples`.
        """
        histories = await self._prometheus.query_samples(f"{_NODE_SELECTOR}[{self._window_s:.0f}s]")
        return await asyncio.to_thread(_node_power, histories, index)

    async def pods(self) -> Mapping[PodKey, PodPower]:
        """Current power of the work of pods, without idle power.

        Raises:
            PrometheusError: see `Prometheus.query`.
        """
        return await self._pods(self._window_s)

    async def energy(self, window_s: float) -> Mapping[PodKey, EnergyUse]:
        """Energy used by the work of pods over the last `window_s` seconds, without idle energy.

        Raises:
            PrometheusError: see `Prometheus.query`.
        """
        return {
            pod: EnergyUse(
                power.cpu_w * window_s,
                None if power.dram_w is None else power.dram_w * window_s,
                None if power.gpu_w is None else power.gpu_w * window_s,
            )
            for pod, power in (await self._pods(window_s)).items()
            if power.cpu_w is not None
        }

    async def _pods(self, window_s: float) -> dict[PodKey, PodPower]:
        window = f"{window_s:.0f}s"
        queries = (
            f"{_container_rate('package', window)} or {_pod_rate(_PACKAGE, window)}",
            f"{_container_rate('dram', window)} or {_pod_rate(_DRAM, window)}",
            f"{_container_rate('gpu', window)} or {_pod_gpu(window)}",
        )
        answers = await asyncio.gather(*(self._prometheus.query(query) for query in queries))
        return await asyncio.to_thread(_pod_powers, answers)


def _pod_powers(answers: Sequence[Sequence[Series]]) -> dict[PodKey, PodPower]:
    """Power of pods from the results for packages, memory and GPUs."""
    cpu_w, dram_w, gpu_w = (pod_values(series, _MAX_POD_W) for series in answers)
    return {
        pod: PodPower(cpu_w.get(pod), dram_w.get(pod), gpu_w.get(pod))
        for pod in cpu_w.keys() | dram_w.keys() | gpu_w.keys()
    }


def _node_power(histories: Sequence[History], index: NodeIndex) -> NodePower:
    sums = NodeSums()
    gpus = [history for history in histories if _is_of_gpu(history)]
    add_zones(sums, index, _zones(sums, [history for history in histories if not _is_of_gpu(history)]))
    _add_gpus(sums, index, gpus)
    return NodePower(
        cpu=_newest(_modes(sums, "cpu"), sums.sums("cpu new")),
        cpu_count=sums.counts("cpu dynamic") | _package_counts(sums, histories, index),
        cpu_dynamic=_newest(sums.sums("cpu dynamic"), sums.sums("cpu active")),
        dram=_newest(_modes(sums, "dram"), sums.sums("dram new")),
        gpu=_newest(_modes(sums, "gpu"), sums.sums("gpu counter") | sums.sums("gpu gauge")),
        gpu_count=sums.counts("gpu dynamic") | sums.counts("gpu counter") | sums.counts("gpu gauge"),
        rejected=sums.rejected,
    )


# The inner maximum removes duplicates: series of one container or pod from several scrape jobs.


def _container_rate(part: str, window: str) -> str:
    rate = f'rate(kepler_container_{part}_joules_total{{mode="dynamic"}}[{window}])'
    container = f"max by (container_namespace, pod_name, container_id, container_name) ({rate})"
    return f"sum by (container_namespace, pod_name) ({container})"


def _pod_rate(zone: str, window: str) -> str:
    rate = f'rate(kepler_pod_cpu_joules_total{{state="running", zone=~"{zone}"}}[{window}])'
    return f"sum by (pod_namespace, pod_name) (max by (pod_namespace, pod_name, pod_id, zone) ({rate}))"


def _pod_gpu(window: str) -> str:
    mean = f'avg_over_time(kepler_pod_gpu_watts{{state="running"}}[{window}])'
    return f"sum by (pod_namespace, pod_name) (max by (pod_namespace, pod_name, pod_id) ({mean}))"


def _is_of_gpu(history: History) -> bool:
    """Whether a series is of one GPU, as in the newer family; the older one has a mode."""
    return history.name == _GPU_WATTS or (history.name == _GPU_JOULES and "mode" not in history.labels)


def _zones(sums: NodeSums, histories: Sequence[History]) -> Iterator[Zone]:
    for history in histories:
        labels = history.labels
        zone, path = labels.get("zone", ""), labels.get("path", "")
        state = "active" if "_active_" in history.name else "new"
        if history.name in _OLD_PARTS:
            mode = labels.get("mode", "total")
            yield Zone(f"{_OLD_PARTS[history.name]} {mode}", labels.get("package", ""), "", history)
        elif re.fullmatch(_DRAM, zone):
            yield Zone(f"dram {state}", f"{zone}/{path.rpartition('/')[2]}", path, history)
        elif re.fullmatch(_PACKAGE, zone):
            yield Zone(f"cpu {state}", f"{zone}/{path.rpartition('/')[2]}", path, history)
        else:
            sums.reject(Rejection.OTHER_ZONE)


def _add_gpus(sums: NodeSums, index: NodeIndex, histories: Sequence[History]) -> None:
    for history in histories:
        node = index.node_of(history.labels)
        if node is None:
            sums.reject(Rejection.UNKNOWN_NODE)
            continue
        device = history.labels.get("gpu_uuid") or history.labels.get("gpu") or history.labels.get("package", "")
        if history.name == _GPU_WATTS:
            sums.add("gpu gauge", node, device, latest_of(history.samples, MAX_DEVICE_W))
        else:
            sums.add("gpu counter", node, device, rate_of(history.samples, MAX_DEVICE_W))


def _modes(sums: NodeSums, part: str) -> dict[str, Reading]:
    """Sum of the dynamic and idle mode where both have the same number of devices; else of series without a mode."""
    dynamic, idle = sums.counts(f"{part} dynamic"), sums.counts(f"{part} idle")
    whole = sum_of_both(sums.sums(f"{part} dynamic"), sums.sums(f"{part} idle"))
    return sums.sums(f"{part} total") | {
        node: reading for node, reading in whole.items() if dynamic[node] == idle[node]
    }


def _newest(first: Mapping[str, Reading], second: Mapping[str, Reading]) -> dict[str, Reading]:
    """The newer reading of each node: during an upgrade of Kepler, both metric families have series for a while."""
    return {
        node: max(reading for family in (first, second) if (reading := family.get(node)) is not None)
        for node in first.keys() | second.keys()
    }


def _package_counts(sums: NodeSums, histories: Sequence[History], index: NodeIndex) -> dict[str, int]:
    """Number of packages by node, without nodes whose packages are aggregated in one zone."""
    aggregated = {
        index.node_of(history.labels) for history in histories if history.labels.get("path", "").startswith(_AGGREGATED)
    }
    return {node: count for node, count in sums.counts("cpu new").items() if node not in aggregated}
