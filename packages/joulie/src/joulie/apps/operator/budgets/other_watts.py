"""What no limit of a node reaches, learned from the sources that measure the node and its devices side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from joulie.apps.operator.power.columns import MODEL, sources_of
from joulie.apps.operator.sources.catalogue import PROFILE_PROMETHEUS, STATIC, estimates
from joulie.domain.capping.other_power import OtherPower
from joulie.domain.control_power import SourceReadings
from joulie.domain.units import FloatArray

WHOLE_NODE = frozenset({"platform", "prometheus", PROFILE_PROMETHEUS})
"""Sources that measure the whole node; others leave out what no limit reaches."""
INTERVAL_S = 60.0
"""Time between two readings that are learned from, s."""
APART_S = 15.0
"""How far the times of both readings may be apart, s."""


class OtherWatts:
    """The history of all nodes; it begins anew with each leader."""

    def __init__(self) -> None:
        """Create an empty one."""
        self._names: tuple[str, ...] = ()
        self._known = OtherPower.unknown(0, 0.0)
        self._learned_s = -np.inf

    def watts(
        self,
        names: tuple[str, ...],
        readings: Sequence[SourceReadings],
        full_w: FloatArray,
        share: float,
        now_s: float,
    ) -> FloatArray:
        """What no limit reaches, W, shape ``(n_nodes,)``.

        Args:
            names: names of the nodes.
            readings: of all sources, most trusted first.
            full_w: full power of the CPUs and GPUs of each node, W; 0 where it is not known.
            share: what is counted without a history, as a share of `full_w`.
            now_s: time, s since the epoch.
        """
        if names != self._names:
            place = {name: index for index, name in enumerate(self._names)}
            places = np.array([place.get(name, -1) for name in names], dtype=np.int64)
            self._known = self._known.moved(places) if self._names else OtherPower.unknown(len(names), now_s)
            self._names = names
        if abs(now_s - self._learned_s) >= INTERVAL_S and len(names):
            self._learned_s = now_s
            whole_s, whole_w = _first(readings, WHOLE_NODE, now_s, len(names))
            parts_s, parts_w = _first(
                [one for one in readings if _measures_parts(one.source)], frozenset(), now_s, len(names)
            )
            together = np.abs(whole_s - parts_s) <= APART_S
            self._known = self._known.learned(np.where(together, whole_w, np.nan), parts_w, full_w, now_s)
        return self._known.watts(share * full_w)


def _first(
    readings: Sequence[SourceReadings], sources: frozenset[str], now_s: float, n_nodes: int
) -> tuple[FloatArray, FloatArray]:
    """Time and power of the best recent sample of each node, of some sources if any are named; NaN without one."""
    time_s, power_w = np.full((2, n_nodes), np.nan)
    for one in readings:
        if sources and sources_of(one.source)[0] not in sources:
            continue
        wanted = np.isnan(power_w) & one.known & (np.abs(now_s - one.time_s) <= INTERVAL_S)
        time_s, power_w = np.where(wanted, one.time_s, time_s), np.where(wanted, one.power_w, power_w)
    return time_s, power_w


def _measures_parts(name: str) -> bool:
    """Whether a source measures CPUs and GPUs and nothing else."""
    cpu, gpu = sources_of(name)
    return cpu not in WHOLE_NODE and STATIC not in (cpu, gpu) and gpu != MODEL and not estimates(cpu)
