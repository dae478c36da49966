"""The loop that searches for power limits of the GPUs of workloads.

It looks at the jobs every few seconds, measures those whose window is complete, and asks `domain.capping.choice` for
the next limit. The control loop publishes the limits in `spec.gpuLimits` of the NodeTwins, agents set them. A new
leader begins without memory: all limits are withdrawn, and a workload starts at its baseline and then where it was held
before, which its WorkloadProfile remembers.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.api.v1alpha1 import GpuLimit, HeldGpuLimit, PodReference
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import KubernetesError
from joulie.adapters.kubernetes.profiles import WorkloadKey
from joulie.adapters.kubernetes.resources import WORKLOAD_PROFILES
from joulie.adapters.kubernetes.times import rfc3339
from joulie.adapters.prometheus import Prometheus, PrometheusError
from joulie.adapters.prometheus.dcgm import Dcgm
from joulie.adapters.prometheus.nodes import NodeIndex
from joulie.apps.operator.limits.jobs import Holders, JobKey, by_node, jobs, needs_exporter, stated
from joulie.apps.operator.limits.measure import Measured, Meters
from joulie.apps.operator.limits.metrics import GpuLimitMetrics
from joulie.apps.operator.observe import ClusterView
from joulie.apps.operator.settings import OperatorSettings
from joulie.domain.capping.choice import Goal, Hold
from joulie.domain.capping.live import LiveJob
from joulie.domain.capping.node_limits import PowerCeiling
from joulie.domain.capping.prior import POOLED
from joulie.domain.control import Decision

_SLOWDOWN_BAND = 0.005
"""Change of a held limit's slowdown or saving up to which its profile is not written again."""

_Gpu = tuple[str, str]
"""Node and ID of a GPU."""

_log = logging.getLogger(__name__)


class GpuLimits:
    """Searches limits while this replica leads; a new instance is made each time it becomes leader.

    Memory is bounded by the number of workloads that hold GPUs.

    Args:
        client: Kubernetes client.
        view: cached view of the cluster.
        settings: operator settings.
        prometheus: where power and progress are measured.
        index: nodes by the labels of exporters.
        metrics: metrics of the search.
        wake: called when limits changed.
        ceiling: returns the upper bound of a node's caps by power budgets.
        may_write: whether this process still holds the lease.
        now_s: current time, s since the epoch.
    """

    def __init__(
        self,
        client: KubeClient,
        view: ClusterView,
        settings: OperatorSettings,
        prometheus: Prometheus,
        index: Callable[[], NodeIndex],
        metrics: GpuLimitMetrics,
        wake: Callable[[], None],
        ceiling: Callable[[str], PowerCeiling | None],
        *,
        may_write: Callable[[], bool],
        now_s: Callable[[], float],
    ) -> None:
        self._client = client
        self._view = view
        self._settings = settings
        self._metrics = metrics
        self._meters = Meters(prometheus, settings.gpu_limits_progress_query, metrics.query_errors.inc)
        self._dcgm = Dcgm(prometheus, settings.gpu_limits_pace.window_s)
        self._index = index
        self._wake = wake
        self._ceiling = ceiling
        self._lowest_w: dict[str, float] = {}
        self._may_write = may_write
        self._now_s = now_s
        self._decision: Decision | None = None
        self._jobs: dict[JobKey, LiveJob] = {}
        self._limits: Mapping[str, tuple[GpuLimit, ...]] = {}

    def decided(self, decision: Decision) -> None:
        """Take the latest decision: limits are searched on the nodes that it leaves at full power."""
        self._decision = decision

    def bounded(self, nodes: Iterable[str]) -> None:
        """Take the ceilings of nodes that changed: of those between two looks the lowest counts."""
        for node in nodes:
            self._lowest_w[node] = self._ceiling_w(node)

    def _ceiling_w(self, node: str) -> float:
        """Lowest bound of a GPU's limit on a node since the last look, W; infinite for none."""
        ceiling = self._ceiling(node)
        now_w = math.inf if ceiling is None or ceiling.gpu_w is None else ceiling.gpu_w
        return min(now_w, self._lowest_w.get(node, math.inf))

    def of_node(self, node: str) -> tuple[GpuLimit, ...]:
        """Limits of a node's GPUs."""
        return self._limits.get(node, ())

    async def run(self) -> None:
        """Search until cancelled."""
        try:
            while True:
                await asyncio.sleep(self._settings.gpu_limits_interval_s)
                try:
                    await self.look()
                except Exception:
                    _log.exception("search for power limits failed")
                    self._publish({})
        finally:
            self._metrics.stood_down()

    async def look(self) -> None:
        """Look at the jobs once, and take the windows that are complete."""
        decision = self._decision
        if decision is None:
            return
        exported = await self._holders(decision)
        now_s = self._now_s()
        ceilings_w = {node.node.name: self._ceiling_w(node.node.name) for node in decision.nodes}
        self._lowest_w.clear()
        found, before = jobs(decision, self._view, self._settings, exported, ceilings_w), self._jobs
        self._jobs = {
            key: before[key].observed(job, now_s)
            if key in before
            else LiveJob.found(job, self._learned_w(key, job.bounded_w))
            for key, job in found.items()
        }
        await self._measure(now_s)
        limits = dict(self._stated(decision, exported))
        limits |= self._searched(limits)
        self._publish(limits)
        self._metrics.show(self._jobs.values())
        for key, job in self._jobs.items():
            self._metrics.count_withdrawn(before.get(key), job)

    async def _holders(self, decision: Decision) -> Holders:
        """Holders by dcgm-exporter's labels, where the kubelet did not tell; whole GPUs only."""
        if not needs_exporter(decision, self._view):
            return {}

        try:
            devices = await self._dcgm.devices(self._index())
        except PrometheusError as error:
            self._metrics.query_errors.inc()
            _log.info("cannot read the holders of GPUs", extra={"problem": str(error)})
            return {}
        return {(one.node, one.uuid): one.holders for one in devices if one.mig_instance is None and not one.shared}

    async def _measure(self, now_s: float) -> None:
        pace = self._settings.gpu_limits_pace
        due = {key: job for key, job in self._jobs.items() if (due_s := job.due_s(pace)) is not None and due_s <= now_s}
        if not due:
            return
        measured = await self._meters.measure({key.progress_metric for key in due}, pace.window_s)
        for key, job in due.items():
            after = self._after(key, job, measured(key.progress_metric, job.job), now_s)
            self._jobs[key] = after
            if (after.limit_w, after.problem) != (job.limit_w, job.problem):
                _log.info("power limit of a workload", extra=_described(key, after))
            if isinstance(after.step, Hold) and not after.problem:
                await self._remember(key, after.job.baseline_w, after.step)

    @staticmethod
    def _after(key: JobKey, job: LiveJob, measured: Measured, now_s: float) -> LiveJob:
        return job.measured(measured.power_w, measured.progress_per_s, POOLED, Goal(key.max_slowdown), now_s)

    def _stated(self, decision: Decision, exported: Holders) -> Iterator[tuple[_Gpu, GpuLimit]]:
        """Limits that pods state themselves."""
        for node, gpu, watts, (namespace, name) in stated(decision, self._view, exported):
            owner = names.GPU_POWER_LIMIT_ANNOTATION
            yield (node, gpu), GpuLimit(gpu, watts, PodReference(name, namespace), owner)

    def _searched(self, others: Mapping[_Gpu, GpuLimit]) -> dict[_Gpu, GpuLimit]:
        """Limits of the search that are below all others of their GPU."""
        limited = ((job.job, job.limit_w) for job in self._jobs.values() if job.limited)
        return {
            (node, gpu): GpuLimit(gpu, watts, PodReference(name, namespace))
            for node, gpu, watts, (namespace, name) in by_node(limited)
            if (node, gpu) not in others or watts < others[node, gpu].watts
        }

    def _publish(self, found: Mapping[_Gpu, GpuLimit]) -> None:
        limits: dict[str, list[GpuLimit]] = {}
        for (node, _), limit in found.items():
            limits.setdefault(node, []).append(limit)
        published = {node: tuple(sorted(found, key=lambda limit: limit.id)) for node, found in limits.items()}
        if published != self._limits:
            self._limits = published
            self._wake()

    # ---- what was learned

    def _stored(self, workload: WorkloadKey) -> HeldGpuLimit | None:
        entry = self._view.workload_profiles.effective(workload)
        return None if entry is None else entry.status.gpu_limit

    def _learned_w(self, key: JobKey, baseline_w: float) -> float | None:
        """Limit at which an earlier run of the workload was held on GPUs with the same baseline, W."""
        stored = self._stored(key.workload)
        if stored is None or (stored.baseline_watts, stored.max_slowdown) != (baseline_w, key.max_slowdown):
            return None
        return stored.watts

    async def _remember(self, key: JobKey, baseline_w: float, held: Hold) -> None:
        """Keep a held limit in the workload's profile, where it has one."""
        limit = HeldGpuLimit(
            watts=held.limit_w,
            baseline_watts=baseline_w,
            max_slowdown=key.max_slowdown,
            reason=held.reason.value,
            slowdown=None if held.slowdown is None else round(held.slowdown, 4),
            saved_pct=None if held.saving is None else round(100.0 * held.saving, 2),
            confidence=round(held.confidence, 3),
        )
        stored, entry = self._stored(key.workload), self._view.workload_profiles.effective(key.workload)
        if entry is None or not entry.automatic or (stored is not None and _alike(limit, stored)):
            return
        if not self._may_write():
            return
        namespace, owner = key.workload
        status = {"gpuLimit": msgspec.structs.replace(limit, last_updated=rfc3339(self._now_s()))}
        try:
            await self._client.apply(
                WORKLOAD_PROFILES,
                names.profile_name(owner.kind, owner.name),
                {"status": status},
                field_manager=names.GPU_LIMITS_FIELD_MANAGER,
                namespace=namespace,
                subresource="status",
            )
        except KubernetesError as error:
            workload = f"{namespace}/{owner.name}"
            _log.warning("held power limit not saved", extra={"workload": workload, "error": str(error)})


def _alike(one: HeldGpuLimit, other: HeldGpuLimit) -> bool:
    same = (one.watts, one.baseline_watts, one.max_slowdown, one.reason) == (
        other.watts,
        other.baseline_watts,
        other.max_slowdown,
        other.reason,
    )
    close = abs((one.slowdown or 1.0) - (other.slowdown or 1.0)) <= _SLOWDOWN_BAND
    return same and close and abs((one.saved_pct or 0.0) - (other.saved_pct or 0.0)) <= 100.0 * _SLOWDOWN_BAND


def _described(key: JobKey, job: LiveJob) -> Mapping[str, object]:
    namespace, owner = key.workload
    why = job.problem or ("" if job.step is None else job.step.reason if isinstance(job.step, Hold) else job.step.why)
    return {"workload": f"{namespace}/{owner.name}", "gpus": len(job.job.gpus), "limit_w": job.limit_w, "why": why}
