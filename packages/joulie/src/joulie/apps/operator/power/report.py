"""The latest power report: read by the metrics, and served at ``GET /debug/power`` for ``kubectl joulie top``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from joulie.adapters.program_api.power import MAX_ITEMS, POWER_PATH, Item
from joulie.apps.operator.power.pods import Meters, Shares
from joulie.domain.signal import Quality
from joulie.domain.units import BoolArray, FloatArray, IntArray
from joulie.program.http import AsgiApp, answering

_DEFAULT_LIMIT = 500


class Kind(StrEnum):
    """Kind of objects that a request lists."""

    NODES = "nodes"
    PODS = "pods"
    NAMESPACES = "namespaces"


@dataclass(frozen=True, eq=False)
class PowerReport:
    """Power and energy as of the last poll.

    Attributes:
        shares: power attributed to pods.
        meters: energy meters.
        stale_after_s: age from which a sample is stale, s.
    """

    shares: Shares
    meters: Meters
    stale_after_s: float

    def items(
        self, kind: Kind, now_s: float, *, namespace: str | None = None, limit: int = _DEFAULT_LIMIT
    ) -> list[Item]:
        """Items in descending order of power; unknown power comes last.

        Args:
            kind: kind of objects to list.
            now_s: current time, s since the epoch.
            namespace: namespace to restrict pods or namespaces to; None for all.
            limit: maximum number of items.
        """
        shares = self.shares
        match kind:
            case Kind.NODES:
                everything = np.arange(len(shares.power.nodes))
                return [self._node(row, now_s) for row in _largest(shares.power.total_w, everything, limit)]
            case Kind.PODS:
                rows = np.flatnonzero(self._in_namespace(namespace))
                return [self._pod(row, now_s) for row in _largest(shares.pod_w, rows, limit)]
            case Kind.NAMESPACES:
                found = [item for item in self._namespaces() if namespace is None or item.name == namespace]
                return sorted(found, key=lambda item: (-(item.power_w or 0.0), item.name))[:limit]

    def _in_namespace(self, namespace: str | None) -> BoolArray:
        """Which pods are in a namespace; all pods for None."""
        running = self.shares.running
        if namespace is None:
            return np.ones(len(running.pods), dtype=np.bool_)
        index = running.namespaces.index(namespace) if namespace in running.namespaces else -1
        return np.asarray(running.namespace == index)

    def _node(self, row: int, now_s: float) -> Item:
        shares, power = self.shares, self.shares.power
        source, time_s = power.source[row], float(power.time_s[row])
        return Item(
            power.nodes[row].name,
            power_w=_known(power.total_w[row]),
            low_w=self._bound(power.low_w, row),
            high_w=self._bound(power.high_w, row),
            cpu_w=_known(power.cpu_w[row]),
            gpu_w=_known(power.gpu_w[row]) if power.nodes[row].hardware.gpu else None,
            idle_w=_known(shares.idle_w[row]),
            system_w=_known(shares.system_w[row]),
            energy_j=_known(self.meters.node_j[row]),
            quality=self._quality(row, now_s).value,
            source=source,
            weight_source=shares.weight_source[row] or None,
            age_s=None if source is None else round(max(0.0, now_s - time_s), 1),
        )

    def _pod(self, row: int, now_s: float) -> Item:
        shares, power = self.shares, self.shares.power
        pod, node = shares.running.pods[row], int(shares.running.node[row])
        pod_w, total_w = float(shares.pod_w[row]), float(power.total_w[node])
        estimated = power.low_w[node] < total_w or power.high_w[node] > total_w
        share = pod_w / total_w if total_w > 0.0 and estimated else math.nan
        source = power.source[node]
        return Item(
            pod.name,
            namespace=pod.namespace,
            node=pod.node_name,
            power_w=_known(pod_w),
            low_w=_known(share * power.low_w[node]),
            high_w=_known(share * power.high_w[node]),
            cpu_w=_known(shares.pod_cpu_w[row]),
            gpu_w=_known(shares.pod_gpu_w[row]) if pod.requests.gpus > 0.0 else None,
            energy_j=_known(self.meters.pod_j[row]),
            quality=(Quality.MISSING if math.isnan(pod_w) else self._quality(node, now_s)).value,
            source=source,
            weight_source=shares.weight_source[node] or None,
            age_s=None if source is None else round(max(0.0, now_s - float(power.time_s[node])), 1),
        )

    def _namespaces(self) -> Iterator[Item]:
        power_w, count, unknown = self.by_namespace()
        for name, energy_j in self.meters.namespace_j.items():
            yield Item(
                name,
                power_w=power_w.get(name, None if unknown.get(name) else 0.0),
                energy_j=energy_j,
                pods=count.get(name, 0),
                unknown_pods=unknown.get(name, 0),
            )

    def by_namespace(self) -> tuple[dict[str, float], dict[str, int], dict[str, int]]:
        """By namespace: power (W) of the pods with known power, number of pods, and number of pods with unknown power.

        A namespace in which the power of all pods is unknown has no power.
        """
        names, of_pod = self.shares.running.namespaces, self.shares.running.namespace
        pod_w = self.shares.pod_w
        sums = (
            np.bincount(of_pod, np.nan_to_num(pod_w), len(names)),
            np.bincount(of_pod, minlength=len(names)),
            np.bincount(of_pod, np.isnan(pod_w), len(names)).astype(np.int64),
        )
        power_w, count, unknown = (dict(zip(names, values.tolist(), strict=True)) for values in sums)
        return {name: power_w[name] for name in names if count[name] > unknown[name]}, count, unknown

    def _quality(self, node: int, now_s: float) -> Quality:
        if self.shares.power.source[node] is None:
            return Quality.MISSING
        fresh = abs(now_s - float(self.shares.power.time_s[node])) <= self.stale_after_s
        return Quality.FRESH if fresh else Quality.STALE

    def _bound(self, bound_w: FloatArray, row: int) -> float | None:
        """A bound of an estimate, W; None if the power was measured."""
        total_w = self.shares.power.total_w[row]
        return None if bound_w[row] == total_w else _known(bound_w[row])


def _largest(power_w: FloatArray, rows: IntArray, limit: int) -> list[int]:
    """The rows with the largest power in descending order; unknown power comes last."""
    listed = np.nan_to_num(power_w[rows], nan=-1.0)
    return [int(row) for row in rows[np.argsort(-listed, kind="stable")][:limit]]


def _known(value: float) -> float | None:
    return None if math.isnan(value) else round(float(value), 3)


class PowerReports:
    """Serves the latest report at ``GET /debug/power`` while this replica leads.

    Attributes:
        latest: report of the last poll; None while another replica leads, and before the first poll.
        leading: whether this replica leads.
    """

    def __init__(self) -> None:
        self.latest: PowerReport | None = None
        self.leading = False

    def before(self, app: AsgiApp, now_s: Callable[[], float]) -> AsgiApp:
        """An application that serves this path, and passes all other requests to `app`."""
        return answering(POWER_PATH, lambda query: self.answer(query, now_s()), app)

    def answer(self, query: Mapping[str, list[str]], now_s: float) -> tuple[int, Mapping[str, Any]]:
        """Status and body of the answer to a query."""
        if not self.leading:
            return 503, {"leader": False}
        try:
            kind = Kind(query.get("kind", ["nodes"])[-1])
            limit = int(query.get("limit", [str(_DEFAULT_LIMIT)])[-1])
        except ValueError:
            return 400, {"error": "invalid kind or limit: kind must be nodes, pods or namespaces, limit a whole number"}
        namespaces = query.get("namespace", [])
        namespace = namespaces[-1] if namespaces else None
        items: list[Item] = []
        since_s = None
        if self.latest is not None:
            items = self.latest.items(kind, now_s, namespace=namespace, limit=max(0, min(limit, MAX_ITEMS)))
            since_s = self.latest.meters.since_s
        return 200, {"now": now_s, "leader": True, "since": since_s, "kind": kind.value, "items": items}
