"""The rescheduler's loop: analyse the cluster, publish recommendations, and evict pods if eviction is enabled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.kubernetes.errors import ConflictError, NotFoundError
from joulie.adapters.kubernetes.resources import WORKLOAD_PROFILES
from joulie.adapters.kubernetes.writer import Job, write_all
from joulie.apps.operator.facts import ProfileEntry
from joulie.apps.operator.leader import Leader
from joulie.apps.operator.rescheduler.advice import Advice, Advisor
from joulie.apps.operator.rescheduler.analysis import ReschedulerInput, analyse
from joulie.apps.operator.rescheduler.evictor import Evictor
from joulie.apps.operator.rescheduler.metrics import ReschedulerMetrics
from joulie.domain.control import Decision
from joulie.domain.profiles.reschedule import Workload
from joulie.program.leadership import NotLeadingError

_log = logging.getLogger(__name__)


class Rescheduler:
    """Recommends workloads to move and modes of GPU sharing, and evicts pods.

    Created each time this replica becomes leader.

    Args:
        leader: this replica while it leads.
        metrics: rescheduler metrics.
        pod_power_w: measured power of pods by UID, W.
    """

    def __init__(
        self, leader: Leader, metrics: ReschedulerMetrics, *, pod_power_w: Callable[[], Mapping[str, float]]
    ) -> None:
        self._client, self._view = leader.client, leader.view
        self._settings, self._may_write, self._now_s = leader.settings, leader.may_write, leader.now_s
        self._metrics = metrics
        self._decision: Decision | None = None
        self._pod_power_w = pod_power_w
        self._advisor = Advisor()
        self._evictor = Evictor(leader, metrics)

    def decided(self, decision: Decision) -> None:
        """Use this decision of the control loop from now on."""
        self._decision = decision

    def advice(self, node: str) -> Advice:
        """The recommendations for a node."""
        return self._advisor.for_node(node)

    async def run(self) -> None:
        """Run a cycle at every interval, until cancelled."""
        try:
            while True:
                # Pause first: a new leader does not know yet what the previous one has evicted.
                await asyncio.sleep(self._settings.reschedule_interval_s)
                try:
                    await self.cycle()
                except Exception:
                    _log.exception("rescheduling failed")
        finally:
            self._metrics.stood_down()

    async def cycle(self) -> None:
        """Run one cycle.

        Raises:
            NotLeadingError: the lease was lost.
        """
        inputs = self._input()
        if inputs is None:
            return
        settings = self._settings
        # For a large cluster under stress this takes a good part of a second, so it runs in a thread.
        found = await asyncio.to_thread(
            analyse, inputs, settings.rescheduling, self._evictor.cooling_down(), active=settings.active_rescheduling
        )
        self._advisor.update(found.recommendations, found.slicing)
        self._metrics.update(
            len(found.recommendations), inputs.nodes, (namespace for namespace, _ in self._view.ledger.workloads)
        )
        observed = {node.node.name for node in inputs.decision.nodes if not node.node.enforced}
        await self._evictor.evict([eviction for eviction in found.plan.evictions if eviction.node not in observed])
        await self._update_profiles()

    def _input(self) -> ReschedulerInput | None:
        """Input of a cycle; None while there is no recent decision."""
        decision, now_s = self._decision, self._now_s()
        if decision is None or now_s - decision.now_s > self._settings.twin_staleness_s / 2.0:
            return None
        return ReschedulerInput(
            decision,
            dict(self._view.node_facts),
            tuple(self._view.pods.values()),
            self._view.workload_profiles.all_effective(),
            {facts.node: facts.slicing_modes for facts in self._view.hardware.values()},
            self._pod_power_w(),
            self._settings.control,
            self._settings.min_confidence,
            now_s,
        )

    # ---- WorkloadProfiles

    async def _update_profiles(self) -> None:
        """Write the recommendations to the classifier's WorkloadProfiles."""
        reasons = self._advisor.reasons_by_workload()
        jobs: list[Job] = []
        for key, entry in self._view.profiles.items():
            if entry.automatic:
                namespace, owner = entry.owner
                reason = reasons.get(Workload(namespace, owner.kind, owner.name))
                if (entry.status.reschedule_recommended, entry.status.reschedule_reason) != _status_fields(reason):
                    jobs.append(partial(self._write_recommendation, key, entry, reason))
        for failure in await write_all(jobs, concurrency=self._settings.write_concurrency):
            _log.warning("cannot write profile", extra={"error": str(failure.error)})

    async def _write_recommendation(self, key: Key, entry: ProfileEntry, reason: str | None) -> None:
        if not self._may_write():
            raise NotLeadingError("this process no longer holds the lease: not written")
        recommended, text = _status_fields(reason)
        status = {} if recommended is None else {"rescheduleRecommended": recommended, "rescheduleReason": text}
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
            return  # deleted, or replaced by another profile of the same name


def _status_fields(reason: str | None) -> tuple[bool | None, str | None]:
    """`rescheduleRecommended` and `rescheduleReason` of a profile; None without a recommendation."""
    return (None, None) if reason is None else (True, reason)
