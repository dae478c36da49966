"""GPUs and the pods that hold them, and the power that each pod is charged for the GPUs that it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from joulie.domain.attribution import GpuDevices, GpuHolds, attribute_gpu, gpu_power_of_pods_w
from joulie.domain.signal import Reading
from joulie.domain.units import FloatArray
from joulie.domain.usage import PodKey

_MIG_SLICES = 7


@dataclass(frozen=True)
class GpuDevice:
    """One GPU, or one MIG instance of one.

    Attributes:
        node: where it is.
        uuid: of the whole GPU, for MIG instances as well.
        mig_instance: its GPU instance ID; None of a whole GPU.
        mig_profile: such as ``1g.10gb``; None of a whole GPU.
        power_w: of the whole GPU, the same for all of its MIG instances; None where it is not measured.
        util_pct: time that it is busy, 0..100; None where it is not measured.
        holders: pods that it is assigned to, sorted.
        shared: whether several pods take turns on it (time slicing).
    """

    node: str
    uuid: str
    mig_instance: str | None
    mig_profile: str | None
    power_w: Reading | None
    util_pct: float | None
    holders: tuple[PodKey, ...]
    shared: bool


class HeldGpus:
    """Collects the GPUs of a cluster and who holds them, then shares their power."""

    def __init__(self) -> None:
        self._node: list[int] = []
        self._power_w: list[float] = []
        self._idle_w: list[float] = []
        self._holds: list[tuple[int, int, float, float]] = []

    def add(self, node: int, power_w: float, idle_w: float) -> int:
        """Add a device; returns its index.

        Args:
            node: index of its node.
            power_w: of the device, W.
            idle_w: what it draws idle, W; NaN: not known.
        """
        self._node.append(node)
        self._power_w.append(power_w)
        self._idle_w.append(idle_w)
        return len(self._node) - 1

    def hold(self, pod: int, device: int, share: float, activity: float = np.nan) -> None:
        """Add a pod that holds a share of a device; see `GpuHolds`."""
        self._holds.append((pod, device, share, activity))

    def add_listed(
        self,
        node: int,
        devices: Sequence[GpuDevice],
        pods: Mapping[PodKey, int],
        idle_w: float,
        total_w: float | None = None,
    ) -> None:
        """Add the measured GPUs of a node as an exporter lists them, with the pods that hold them.

        Args:
            node: its index.
            devices: its GPUs and MIG instances.
            pods: index of each pod that has GPUs there; holders that it does not know are charged all the same.
            idle_w: what one GPU draws idle, W; NaN: not known.
            total_w: of all of them, W, where another source measured it: that is what is shared, no more and no less.
        """
        measured_w = {one.uuid: one.power_w.value for one in devices if one.power_w is not None}
        sum_w = sum(measured_w.values())
        index = {}
        for uuid, power_w in measured_w.items():
            share = power_w / sum_w if sum_w > 0.0 else 1.0 / len(measured_w)
            index[uuid] = self.add(node, power_w if total_w is None else total_w * share, idle_w)
        for one in devices:
            if one.uuid in index:
                share = 1.0 if one.mig_instance is None else _mig_share(one.mig_profile)
                # How busy the whole is says nothing of those who take turns on it.
                activity = np.nan if one.util_pct is None or one.shared else one.util_pct / 100.0
                for pod in one.holders:
                    self.hold(pods.get(pod, -1), index[one.uuid], share / len(one.holders), activity)

    def attributed(self, n_pods: int, n_nodes: int) -> tuple[FloatArray, FloatArray]:
        """GPU power of each pod, W, shape ``(n_pods,)``, and of each node what nobody holds, W, shape ``(n_nodes,)``.

        NaN for a pod of which no hold is known, and for one of which a device cannot be told.
        """
        pod, device, share, activity = np.array(self._holds, dtype=np.float64).reshape(-1, 4).T
        holds = GpuHolds(pod.astype(np.int64), device.astype(np.int64), share, activity)
        found = attribute_gpu(GpuDevices(np.array(self._power_w), np.array(self._idle_w)), holds)
        told = np.zeros(n_pods, dtype=np.bool_)
        told[holds.pod[holds.pod >= 0]] = True
        pods_w = np.where(told, gpu_power_of_pods_w(holds, found, n_pods), np.nan)
        unheld_w = np.bincount(np.array(self._node, dtype=np.int64), np.nan_to_num(found.idle_w), n_nodes)
        return pods_w, unheld_w.astype(np.float64)


def _mig_share(profile: str | None) -> float:
    """Share of a GPU that a MIG instance has, by its compute slices: ``3g.40gb`` has 3 of 7. NaN if it does not say."""
    slices = (profile or "").partition("g.")[0]
    return min(1.0, int(slices) / _MIG_SLICES) if slices.isdecimal() else np.nan
