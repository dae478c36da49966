"""The loop that searches for limits of the GPUs of workloads: of their power, or of their SM clock.

It looks at the jobs every few seconds, measures those whose window is complete, and asks `domain.capping.knobs` for
the next limit. The control loop publishes the limits in `spec.gpuLimits` of the NodeTwins, agents set them. A new
leader begins without memory: all limits are withdrawn, and a workload starts at its baseline and then where it was held
before, which its WorkloadProfile remembers. What holdouts have said goes on over leaders.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.api.meta import ObjectReference
from joulie.adapters.kubernetes.api.v1alpha1 import GpuLimit, HeldGpuLimit, HeldOutSaving, PodReference
from joulie.adapters.kubernetes.errors import KubernetesError
from joulie.adapters.kubernetes.profiles import WorkloadKey
from joulie.adapters.kubernetes.resources import PODS, WORKLOAD_PROFILES
from joulie.adapters.kubernetes.times import rfc3339
from joulie.adapters.prometheus import Prometheus, PrometheusError
from joulie.adapters.prometheus.dcgm import Dcgm
from joulie.adapters.prometheus.nodes import NodeIndex
from joulie.apps.operator.leader import Leader
from joulie.apps.operator.limits.contradicted import contradiction
from joulie.apps.operator.limits.evidence import KeptEvidence
from joulie.apps.operator.limits.held_out import published, restored, stopped_paying
from joulie.apps.operator.limits.jobs import HZ_PER_MHZ, Holders, JobKey, jobs, needs_exporter, stated
from joulie.apps.operator.limits.measure import Measured, Meters
from joulie.apps.operator.limits.metrics import GpuLimitMetrics
from joulie.domain.capping.choice import Goal, Hold, Reason
from joulie.domain.capping.held_out import NOT_HELD_OUT, NOT_PAYING, HeldOut
from joulie.domain.capping.knobs import TunedJob
from joulie.domain.capping.live import JobGpus
from joulie.domain.capping.node_limits import PowerCeiling
from joulie.domain.capping.prior import POOLED
from joulie.domain.control import Decision
from joulie.domain.quantities import InvalidQuantityError

_HOLDOUT_BAND = 20
"""Windows of a holdout up to which its profile is not written again."""
_SLOWDOWN_BAND = 0.005
"""Change of a held limit's slowdown or saving up to which its profile is not written again."""

_Gpu = tuple[str, str]
"""Node and ID of a GPU."""

_log = logging.getLogger(__name__)


class GpuLimits:
    """Searches limits while this replica leads; a new instance is made each time it becomes leader.

    Memory is bounded by the number of workloads that hold GPUs.

    Args:
        leader: this replica while it leads.
        prometheus: where power and progress are measured.
        index: nodes by the labels of exporters.
        metrics: metrics of the search.
        wake: called when limits changed.
        ceiling: returns the upper bound of a node's caps by power budgets.
    """

    def __init__(
        self,
        leader: Leader,
        prometheus: Prometheus,
        index: Callable[[], NodeIndex],
        metrics: GpuLimitMetrics,
        wake: Callable[[], None],
        ceiling: Callable[[str], PowerCeiling | None],
    ) -> None:
        self._client, self._view, self._settings = leader.client, leader.view, leader.settings
        self._events, self._may_write, self._now_s = leader.events, leader.may_write, leader.now_s
        self._metrics = metrics
        self._evidence = KeptEvidence(leader.client, leader.events, leader.settings.namespace, leader.may_write)
        self._first_look = True
        self._meters = Meters(prometheus, leader.settings.gpu_limits_progress_query, metrics.query_errors.inc)
        self._dcgm = Dcgm(prometheus, leader.settings.gpu_limits_pace.window_s)
        self._index = index
        self._wake = wake
        self._ceiling = ceiling
        self._lowest_w: dict[str, float] = {}
        self._decision: Decision | None = None
        self._jobs: dict[JobKey, TunedJob] = {}
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
            key: before[key].observed(job, now_s) if key in before else self._begun(key, job)
            for key, job in found.items()
        }
        self._first_look = False
        await self._measure(now_s)
        if self._settings.gpu_limits_holdout.share:
            await self._evidence.keep(now_s)
        limits = dict(self._stated(decision, exported))
        limits |= self._searched(limits)
        self._publish(limits)
        self._metrics.show(self._jobs.values(), self._settings.gpu_limits_holdout)
        self._metrics.show_holdout(self._evidence.now)
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
            window = measured(key.progress_metric, job.job)
            after = self._after(key, job, window, now_s)
            self._jobs[key] = after
            self._count_in(after, now_s)
            if message := contradiction(key.progress_metric, job, after, window):
                self._warn(key, after, "ProgressContradicted", message)
            if message := stopped_paying(job, after, self._settings.gpu_limits_holdout):
                self._warn(key, after, "LimitStoppedPaying", message)
            if (after.limit_w, after.max_sm_hz, after.active.problem) != (
                job.limit_w,
                job.max_sm_hz,
                job.active.problem,
            ):
                _log.info("limit of a workload", extra=_described(key, after))
            if after.active.problem == NOT_PAYING != job.active.problem:
                stored, why = self._stored(key.workload), published(after)
                if stored is not None and why is not None:  # it must outlive this leader
                    await self._keep(key.workload, msgspec.structs.replace(stored, holdout=why))
            step, told = after.active.step, not after.active.problem and not after.active.left_alone
            if isinstance(step, Hold) and (told or step.reason is Reason.CONTRADICTED):
                await self._remember(key, after, step)

    def _after(self, key: JobKey, job: TunedJob, measured: Measured, now_s: float) -> TunedJob:
        goal, holdout = Goal(key.max_slowdown), self._settings.gpu_limits_holdout
        name = f"{key.workload[0]}/{key.workload[1].kind}/{key.workload[1].name}"
        power_w, progress_per_s, counted_per_s = measured
        return job.measured(power_w, progress_per_s, POOLED, goal, now_s, holdout, name, counted_per_s)

    def _count_in(self, after: TunedJob, now_s: float) -> None:
        """Take a window of the holdout into what all jobs say."""
        latest = after.active.held_out.latest
        if latest is not None:
            self._evidence.add(now_s, latest._replace(weight=latest.weight * len(after.job.gpus)))

    def _warn(self, key: JobKey, job: TunedJob, reason: str, message: str) -> None:
        """Tell the pods of a job, and the log, what became of its limit."""
        workload = f"{key.workload[0]}/{key.workload[1].name}"
        _log.warning("limit of a workload in doubt", extra={"workload": workload, "reason": reason, "why": message})
        for pod in self._view.pods.values():
            if (pod.namespace, pod.name) in job.job.pods:
                regarding = ObjectReference(PODS.kind, pod.name, PODS.api_version, pod.namespace, pod.uid)
                self._events.emit(regarding, "Warning", reason, message)

    def _stated(self, decision: Decision, exported: Holders) -> Iterator[tuple[_Gpu, GpuLimit]]:
        """Limits that pods state themselves."""
        for node, gpu, watts, (namespace, name) in stated(decision, self._view, exported):
            owner = names.GPU_POWER_LIMIT_ANNOTATION
            yield (node, gpu), GpuLimit(gpu, PodReference(name, namespace), watts, owner)

    def _searched(self, others: Mapping[_Gpu, GpuLimit]) -> dict[_Gpu, GpuLimit]:
        """Limits of the search: power limits that are below all others of their GPU, and clocks beside those."""
        return {
            (node, gpu): limit
            for job in self._jobs.values()
            if job.limited
            for node, gpu, (namespace, name) in job.job.gpus
            if (limit := _limit_of(job, gpu, PodReference(name, namespace), others.get((node, gpu)))) is not None
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

    def _begun(self, key: JobKey, job: JobGpus) -> TunedJob:
        """A job seen for the first time: it begins where an earlier run was held on GPUs with the same baseline."""
        stored = self._stored(key.workload)
        if stored is None or (stored.baseline_watts, stored.max_slowdown) != (job.bounded_w, key.max_slowdown):
            return TunedJob.found(job, None)
        held_out = self._held_out(key, stored.holdout)
        if stored.max_sm_clock_mhz is not None and job.clocks is not None:
            return TunedJob.found(job, None, stored.max_sm_clock_mhz * HZ_PER_MHZ / job.clocks.largest_hz, held_out)
        return TunedJob.found(job, stored.watts, held_out=held_out)

    def _held_out(self, key: JobKey, stored: HeldOutSaving | None) -> HeldOut:
        """What the holdout of a workload has said; nothing, reported, where its profile says what cannot be."""
        holdout = self._settings.gpu_limits_holdout
        if stored is None or not holdout.share:
            return NOT_HELD_OUT
        try:
            found = restored(stored)
        except InvalidQuantityError as error:
            workload = f"{key.workload[0]}/{key.workload[1].name}"
            _log.error("evidence of a workload's holdout is spoilt", extra={"workload": workload, "error": str(error)})
            return NOT_HELD_OUT
        # A limit that has stopped paying stays withdrawn from a run; the next run, found later, is tried anew.
        return NOT_HELD_OUT if found.stopped_paying(holdout) and not self._first_look else found

    async def _remember(self, key: JobKey, job: TunedJob, held: Hold) -> None:
        """Keep a held limit in the workload's profile, where it has one."""
        limit = HeldGpuLimit(
            watts=job.limit_w,
            max_sm_clock_mhz=_max_sm_clock_mhz(job),
            baseline_watts=job.job.baseline_w,
            max_slowdown=key.max_slowdown,
            reason=held.reason.value,
            slowdown=None if held.slowdown is None else round(held.slowdown, 4),
            saved_pct=None if held.saving is None else round(100.0 * held.saving, 2),
            confidence=round(held.confidence, 3),
            holdout=published(job),
        )
        stored = self._stored(key.workload)
        # A run without progress so far says nothing against what an earlier one has learned.
        says_nothing = held.slowdown is None and held.reason is not Reason.CONTRADICTED
        if stored is None or not (says_nothing or _alike(limit, stored)):
            await self._keep(key.workload, limit)

    async def _keep(self, workload: WorkloadKey, limit: HeldGpuLimit) -> None:
        # A user's own profile keeps it too: only this field of its status is written.
        place = self._view.workload_profiles.effective_key(workload)
        if place is None or not self._may_write():
            return
        status = {"gpuLimit": msgspec.structs.replace(limit, last_updated=rfc3339(self._now_s()))}
        try:
            await self._client.apply(
                WORKLOAD_PROFILES,
                place.name,
                {"status": status},
                field_manager=names.GPU_LIMITS_FIELD_MANAGER,
                namespace=place.namespace,
                subresource="status",
            )
        except KubernetesError as error:
            where = f"{place.namespace}/{place.name}"
            _log.warning("held power limit not saved", extra={"profile": where, "error": str(error)})


def _alike(one: HeldGpuLimit, other: HeldGpuLimit) -> bool:
    if (one.holdout is None) != (other.holdout is None):
        return False
    if one.holdout is not None and other.holdout is not None:
        grown = one.holdout.windows - other.holdout.windows
        if not 0 <= grown < _HOLDOUT_BAND:
            return False
    same = (one.watts, one.max_sm_clock_mhz, one.baseline_watts, one.max_slowdown, one.reason) == (
        other.watts,
        other.max_sm_clock_mhz,
        other.baseline_watts,
        other.max_slowdown,
        other.reason,
    )
    close = abs((one.slowdown or 1.0) - (other.slowdown or 1.0)) <= _SLOWDOWN_BAND
    return same and close and abs((one.saved_pct or 0.0) - (other.saved_pct or 0.0)) <= 100.0 * _SLOWDOWN_BAND


def _limit_of(job: TunedJob, gpu: str, pod: PodReference, other: GpuLimit | None) -> GpuLimit | None:
    """The limit of one GPU of a job, beside or below another one; None where the other one stays as it is."""
    mhz = _max_sm_clock_mhz(job)
    if mhz is not None:
        return msgspec.structs.replace(other or GpuLimit(gpu, pod), max_sm_clock_mhz=mhz)
    below = other is None or other.watts is None or job.limit_w < other.watts
    return GpuLimit(gpu, pod, job.limit_w) if below else None


def _max_sm_clock_mhz(job: TunedJob) -> float | None:
    return None if job.max_sm_hz is None else float(round(job.max_sm_hz / HZ_PER_MHZ))


def _described(key: JobKey, job: TunedJob) -> Mapping[str, object]:
    namespace, owner = key.workload
    step, problem = job.active.step, job.active.problem
    why = problem or ("" if step is None else step.reason if isinstance(step, Hold) else step.why)
    limits = {"limit_w": job.limit_w, "max_sm_clock_mhz": _max_sm_clock_mhz(job)}
    return {"workload": f"{namespace}/{owner.name}", "gpus": len(job.job.gpus), **limits, "why": why}
