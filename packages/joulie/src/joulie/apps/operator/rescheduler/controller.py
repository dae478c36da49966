"""The rescheduler's loop: look at the cluster, recommend, and evict where that is on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import ConflictError, NotFoundError
from joulie.adapters.kubernetes.events import EventRecorder
from joulie.adapters.kubernetes.resources import WORKLOAD_PROFILES
from joulie.adapters.kubernetes.writer import Job, write_all
from joulie.apps.operator.apply import NotLeadingError
from joulie.apps.operator.facts import ProfileEntry
from joulie.apps.operator.observe import ClusterView
from joulie.apps.operator.rescheduler.advice import Advice, Advisor
from joulie.apps.operator.rescheduler.evictor import Evictor
from joulie.apps.operator.rescheduler.metrics import ReschedulerMetrics
from joulie.apps.operator.rescheduler.survey import Survey, examine
from joulie.apps.operator.settings import OperatorSettings
from joulie.domain.control import Decision
from joulie.domain.profiles.reschedule import Workload

_log = logging.getLogger(__name__)


class Rescheduler:
    """Recommends what should leave its node and how GPUs could be shared, and evicts. One term of leadership.

    Args:
        client: to write with.
        view: of the cluster.
        settings: of the operator.
        metrics: to count in.
        events: to tell of evictions on pods.
        pod_power_w: measured power of pods by UID, W.
        may_write: whether this process still leads.
        now_s: s since the epoch.
    """

    def __init__(
        self,
        client: KubeClient,
        view: ClusterView,
        settings: OperatorSettings,
        metrics: ReschedulerMetrics,
        events: EventRecorder,
        *,
        pod_power_w: Callable[[], Mapping[str, float]],
        may_write: Callable[[], bool],
        now_s: Callable[[], float],
    ) -> None:
        self._client = client
        self._view = view
        self._settings = settings
        self._metrics = metrics
        self._decision: Decision | None = None
        self._pod_power_w = pod_power_w
        self._may_write = may_write
        self._now_s = now_s
        self._advisor = Advisor()
        self._evictor = Evictor(client, view, settings, metrics, events, may_write=may_write, now_s=now_s)

    def decided(self, decision: Decision) -> None:
        """The control loop has decided: its decision is what is looked at from now on."""
        self._decision = decision

    def advice(self, node: str) -> Advice:
        """What is recommended for a node."""
        return self._advisor.of(node)

    async def run(self) -> None:
        """Look at the cluster at every interval, until cancelled."""
        try:
            while True:
                # First of all a pause: a new leader knows nothing yet of what the last one has evicted.
                await asyncio.sleep(self._settings.reschedule_interval_s)
                try:
                    await self.cycle()
                except Exception:
                    _log.exception("rescheduling failed")
        finally:
            self._metrics.stood_down()

    async def cycle(self) -> None:
        """One look at the cluster.

        Raises:
            NotLeadingError: the lease was lost.
        """
        survey = self._survey()
        if survey is None:
            return
        settings = self._settings
        # A cluster full of stress takes a good part of a second: others go on meanwhile.
        found = await asyncio.to_thread(
            examine, survey, settings.rescheduling, self._evictor.resting(), active=settings.active_rescheduling
        )
        self._advisor.take(found.recommendations, found.slicing)
        self._metrics.looked(
            len(found.recommendations), survey.nodes, (namespace for namespace, _ in self._view.ledger.workloads)
        )
        await self._evictor.evict(found.plan.evictions)
        await self._note_on_profiles()

    def _survey(self) -> Survey | None:
        """The cluster now; None while no decision is young enough to be called news."""
        decision, now_s = self._decision, self._now_s()
        if decision is None or now_s - decision.now_s > self._settings.twin_staleness_s / 2.0:
            return None
        return Survey(
            decision,
            dict(self._view.node_facts),
            tuple(self._view.pods.values()),
            self._view.workload_profiles.all_counting(),
            {facts.node: facts.slicing_modes for facts in self._view.hardware.values()},
            self._pod_power_w(),
            self._settings.control,
            self._settings.min_confidence,
            now_s,
        )

    # ---- WorkloadProfiles

    async def _note_on_profiles(self) -> None:
        """Say on the classifier's profiles which workloads would be better off elsewhere."""
        reasons = self._advisor.of_workloads()
        jobs: list[Job] = []
        for key, entry in self._view.profiles.items():
            if entry.automatic:
                namespace, owner = entry.owner
                reason = reasons.get(Workload(namespace, owner.kind, owner.name))
                if (entry.status.reschedule_recommended, entry.status.reschedule_reason) != _said(reason):
                    jobs.append(partial(self._note, key, entry, reason))
        for failure in await write_all(jobs, concurrency=self._settings.write_concurrency):
            _log.warning("profile not written", extra={"error": str(failure.error)})

    async def _note(self, key: Key, entry: ProfileEntry, reason: str | None) -> None:
        if not self._may_write():
            raise NotLeadingError("this process does not lead any more: not written")
        recommended, words = _said(reason)
        status = {} if recommended is None else {"rescheduleRecommended": recommended, "rescheduleReason": words}
        try:
            await self._client.apply(
                WORKLOAD_PROFILES,
                key.name,
                {"metadata": {"uid": entry.uid}, "status": status},
                namespace=key.namespace,
                field_manager=names.OPERATOR_FIELD_MANAGER,
                subresource="status",
            )
        except (ConflictError, NotFoundError):
            return  # gone, or another of the same name


def _said(reason: str | None) -> tuple[bool | None, str | None]:
    """What a profile says: nothing of a workload that is well where it is."""
    return (None, None) if reason is None else (True, reason)
