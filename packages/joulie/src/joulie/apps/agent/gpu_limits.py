"""Limits of single GPUs: which of those that a NodeTwin asks for are valid now, and what is reported about GPUs.

A limit is for one pod and lasts as long as the operator that watches the pod's progress is alive: it ends with the
pod's hold on the GPU, and when the NodeTwin's `lastUpdated` has not changed for a while, whoever is at fault (a dead
operator, an unreachable API server, a watch that is stuck).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from joulie.adapters.kubernetes.api import v1alpha1 as api
from joulie.apps.agent.gpu_clocks import ClockReport
from joulie.apps.agent.views import TwinView
from joulie.domain.actuation import WantedCap, same_limit
from joulie.domain.gpu_allocations import Allocation, Holding, NodeGpu, holdings
from joulie.domain.limit_records import LimitRecord
from joulie.domain.locked_clocks import ANY_GPU
from joulie.ports.devices import PowerDevice
from joulie.ports.telemetry import SourceError

_log = logging.getLogger(__name__)

KEPT_S = 60.0
"""Time for which holders count while the kubelet does not answer, s: a busy one may be late, and a limit that came and
went with each answer would be no limit. Whoever gets a GPU meanwhile is in the operator's own list of pods."""

HZ_PER_MHZ = 1e6

Allocations = Callable[[], Awaitable[Sequence[Allocation]]]
"""Asks the kubelet which GPUs pods hold; raises SourceError."""


class GpuHolders:
    """Who holds the GPUs of this machine, as last read.

    Args:
        allocations: asks the kubelet.
        clock: monotonic time, s.
    """

    def __init__(self, allocations: Allocations, clock: Callable[[], float] = time.monotonic) -> None:
        self._allocations = allocations
        self._clock = clock
        self._read: Sequence[Allocation] | None = None
        self._read_at_s = float("-inf")
        self._problem: str | None = None

    async def read(self) -> None:
        """Ask the kubelet; where that fails for long, whatever the reason, holders are not known. Logged once.

        It comes before the caps: a fault in here must not stop those of the CPUs.
        """
        problem, unexpected = None, False
        try:
            self._read, self._read_at_s = await self._allocations(), self._clock()
        except SourceError as error:
            problem = str(error)
        except Exception as error:
            problem, unexpected = f"{type(error).__name__}: {error}", True
        if self._clock() - self._read_at_s > KEPT_S:
            self._read = None
        if problem is not None and self._problem is None:
            _log.warning("the kubelet does not say who holds GPUs", extra={"problem": problem}, exc_info=unexpected)
        self._problem = problem

    def of(self, gpus: Sequence[PowerDevice], *, complete: bool) -> Mapping[str, Holding]:
        """Holders by GPU; empty where they are not known.

        Args:
            gpus: GPUs that respond, in the order of their driver.
            complete: whether all do, so that the position of each is its index.
        """
        if self._read is None:
            return {}
        found = [NodeGpu(gpu.id, bool(gpu.mig), gpu.address) for gpu in gpus]
        return holdings(self._read, found, indexed=complete)


class LimitLease:
    """Tells whether the operator still renews a NodeTwin.

    Args:
        duration_s: time without a change of `lastUpdated` after which it does not, s.
    """

    def __init__(self, duration_s: float) -> None:
        self._duration_s = duration_s
        self._stated: str | None = None
        self._since_s = 0.0

    def holds(self, last_updated: str | None, now_s: float) -> bool:
        """Whether it is renewed.

        Args:
            last_updated: as the NodeTwin states it now.
            now_s: monotonic time, s. Timestamps are not compared with it: clocks differ between machines.
        """
        if last_updated != self._stated:
            self._stated, self._since_s = last_updated, now_s
        return last_updated is not None and now_s - self._since_s <= self._duration_s


def with_gpu_limits(cap: WantedCap, twin: TwinView, held: Mapping[str, Holding]) -> WantedCap:
    """A cap of all GPUs with the limits of single ones.

    A limit counts where the pod that it is for holds the GPU alone, and where the kubelet did not say who does: then
    the operator knows it from elsewhere.
    """
    limits = {limit.id: limit.watts for limit in _valid(twin, held) if limit.watts is not None}
    return replace(cap, by_device=tuple(sorted(limits.items())))


def max_sm_clocks(twin: TwinView, held: Mapping[str, Holding]) -> tuple[tuple[str, float], ...]:
    """GPUs whose SM clock is to be locked, and to what, Hz; the same limits count as in `with_gpu_limits`."""
    limits = _valid(twin, held)
    clocks = {limit.id: limit.max_sm_clock_mhz * HZ_PER_MHZ for limit in limits if limit.max_sm_clock_mhz is not None}
    return tuple(sorted(clocks.items()))


def _valid(twin: TwinView, held: Mapping[str, Holding]) -> Sequence[api.GpuLimit]:
    return [limit for limit in twin.gpu_limits if _is_for_holder(limit, held.get(limit.id))]


def _is_for_holder(limit: api.GpuLimit, holding: Holding | None) -> bool:
    if holding is None:
        return True
    return not holding.shared and (limit.pod.namespace, limit.pod.name) in holding.pods


def gpu_statuses(
    gpus: Sequence[PowerDevice],
    held: Mapping[str, Holding],
    records: Mapping[str, LimitRecord],
    clocks: Mapping[str, ClockReport],
) -> tuple[api.GpuStatus, ...]:
    """What is reported about each GPU.

    Args:
        gpus: GPUs that respond.
        held: who holds them; empty where that is not known.
        records: limits that Joulie replaced, by GPU.
        clocks: SM clocks, by GPU.
    """
    return tuple(
        _gpu_status(
            gpu, held.get(gpu.id), records.get(gpu.id), clocks.get(gpu.id) or clocks.get(ANY_GPU, ClockReport())
        )
        for gpu in sorted(gpus, key=lambda gpu: gpu.id)
    )


def _gpu_status(
    gpu: PowerDevice, holding: Holding | None, record: LimitRecord | None, clock: ClockReport
) -> api.GpuStatus:
    pods = [] if holding is None else [api.PodReference(name=name, namespace=space) for space, name in holding.pods]
    return api.GpuStatus(
        id=gpu.id,
        limit_watts=gpu.limit_w,
        original_watts=gpu.limit_w if record is None else record.original,
        min_watts=gpu.min_w,
        pods=None if holding is None else tuple(pods),
        shared=None if holding is None else holding.shared,
        owner=_owner(gpu, record),
        sm_clock=None if clock == ClockReport() else _clock_status(clock),
    )


def _clock_status(clock: ClockReport) -> api.SmClockStatus:
    return api.SmClockStatus(
        None if clock.largest_hz is None else clock.largest_hz / HZ_PER_MHZ,
        None if clock.max_hz is None else clock.max_hz / HZ_PER_MHZ,
        clock.result,
        clock.message or None,
    )


def _owner(gpu: PowerDevice, record: LimitRecord | None) -> str | None:
    """Whose limit is in force on a GPU that Joulie limits; None where nobody can tell."""
    if record is None or record.original is None or not record.written or gpu.limit_w is None:
        return None
    return "joulie" if record.has_written(gpu.limit_w, same_limit) else "other"
