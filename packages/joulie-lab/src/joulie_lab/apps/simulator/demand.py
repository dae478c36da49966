"""Power demand of nodes, given second by second in place of their pods' use, and how it was met.

A file of arrays (``.npz``): ``nodes`` names them; ``demand`` is the utilisation of all their devices, 0..1, shape
``(n_seconds, n_nodes)``; ``lost`` says when their telemetry is lost, of the same shape. The last second lasts on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from joulie.domain.units import BoolArray, FloatArray, finite
from joulie_lab.simulation.live.fleet import LiveFleet
from joulie_lab.simulation.live.nodes import FleetLoad


class DemandError(ValueError):
    """A file of demand that cannot be used; the message says why."""


@dataclass(frozen=True, eq=False)
class Demand:
    """Demand of nodes.

    Attributes:
        nodes: names.
        share: utilisation of each node's CPUs and GPUs, 0..1, shape ``(n_seconds, n_nodes)``.
        lost: when telemetry is lost, of the same shape.
    """

    nodes: tuple[str, ...]
    share: FloatArray
    lost: BoolArray

    def __post_init__(self) -> None:
        finite("demand", self.share, minimum=0.0, maximum=1.0)
        if self.share.ndim != 2 or self.share.shape[1] != len(self.nodes) or not len(self.share):
            raise DemandError(f"demand has shape {self.share.shape}, but there are {len(self.nodes)} nodes")
        if self.lost.shape != self.share.shape:
            raise DemandError(f"lost has shape {self.lost.shape}, but demand has {self.share.shape}")

    @classmethod
    def read(cls, path: Path) -> Demand:
        """Read a file.

        Raises:
            DemandError: it is missing or invalid.
        """
        try:
            with np.load(path, allow_pickle=False) as arrays:
                nodes = tuple(str(name) for name in arrays["nodes"])
                return cls(
                    nodes, np.asarray(arrays["demand"], dtype=np.float64), np.asarray(arrays["lost"], dtype=bool)
                )
        except (OSError, KeyError, ValueError) as error:
            raise DemandError(f"{path}: {error}") from error

    def write(self, path: Path) -> None:
        """Write a file."""
        np.savez_compressed(path, nodes=np.array(self.nodes), demand=self.share, lost=self.lost)


@dataclass
class DemandPlay:
    """Plays a demand on a fleet and records, for each second, what the nodes drew and did.

    Attributes:
        demand: that is played.
        power_w: mean power of each whole node, W, a row for each second that is over.
        rate: mean rate of its GPUs' work, as a share of that without limits.
        limit_w: limit of its GPUs at the end of the second, W, each.
    """

    demand: Demand
    power_w: list[FloatArray] = field(default_factory=list)
    rate: list[FloatArray] = field(default_factory=list)
    limit_w: list[FloatArray] = field(default_factory=list)
    _before_j: FloatArray | None = None
    _done: FloatArray | None = None

    def second(self, time_s: float) -> int:
        """The row of the demand at a time."""
        return min(int(time_s + 1e-9), len(self.demand.share) - 1)

    def loses(self, node: str, time_s: float) -> bool:
        """Whether a node's telemetry is lost."""
        return node in self.demand.nodes and bool(self.demand.lost[self.second(time_s), self.demand.nodes.index(node)])

    def load(self, base: FleetLoad, index: Mapping[str, int], time_s: float) -> FleetLoad:
        """Load of the fleet: that of its pods where no demand is given."""
        share, row = self.demand.share[self.second(time_s)], self._rows(index)
        cpu_util, gpu_util, gpu_busy = base.cpu_util.copy(), base.gpu_util.copy(), base.gpu_busy.copy()
        cpu_util[row] = share
        gpu_util[row] = share[:, np.newaxis]
        gpu_busy[row] = True
        return FleetLoad(
            cpu_util, base.memory_intensity, base.io_intensity, gpu_busy, gpu_util, base.gpu_memory_share,
            base.gpu_deviation,
        )  # fmt: skip

    def record(self, fleet: LiveFleet, index: Mapping[str, int], from_s: float, to_s: float) -> None:
        """Take a step into account; a step never crosses the end of a second."""
        row = self._rows(index)
        done = fleet.mean_gpu_throughput[row].mean(axis=1) * (to_s - from_s)
        self._done = done if self._done is None else self._done + done
        if int(to_s + 1e-9) == int(from_s + 1e-9):
            return
        now_j = fleet.state.energy_j[row]
        before_j = now_j - fleet.wall_w[row] if self._before_j is None else self._before_j
        self.power_w.append(now_j - before_j)
        self.rate.append(np.minimum(self._done, 1.0))
        self.limit_w.append(fleet.state.gpu_cap_w[row].min(axis=1))
        self._before_j, self._done = now_j.copy(), None

    def to_json(self) -> dict[str, Any]:
        """What was recorded, with whole watts and rates in thousandths."""

        def rows(found: Sequence[FloatArray], digits: int) -> list[list[float]]:
            return [np.round(one, digits).tolist() for one in found]

        return {
            "nodes": list(self.demand.nodes),
            "powerWatts": rows(self.power_w, 0),
            "rate": rows(self.rate, 4),
            "limitWatts": rows(self.limit_w, 0),
        }

    def _rows(self, index: Mapping[str, int]) -> list[int]:
        return [index[name] for name in self.demand.nodes]
