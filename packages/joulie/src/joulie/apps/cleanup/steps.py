"""The steps of a cleanup: take over the leases, lift all caps, wait for the agents, then remove labels and gates.

The order matters: the leaders are stopped first, so that nobody sets a cap or a gate again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.api.core import Job as BatchJob
from joulie.adapters.kubernetes.api.core import Node, Pod
from joulie.adapters.kubernetes.api.v1alpha1 import NodeTwin
from joulie.adapters.kubernetes.autoscalers import restore_all
from joulie.adapters.kubernetes.client import KubeClient, PatchKind
from joulie.adapters.kubernetes.control_reports import not_restored_reason
from joulie.adapters.kubernetes.errors import ConflictError, KubernetesError, NotFoundError
from joulie.adapters.kubernetes.gating import set_gating
from joulie.adapters.kubernetes.kueue import release_workloads
from joulie.adapters.kubernetes.multikueue import nominate_all
from joulie.adapters.kubernetes.resources import JOBS, LEASES, NODE_TWINS, NODES, PODS, SERVICE_ACCOUNTS
from joulie.adapters.kubernetes.sleep_marks import has_asleep_taint, mark_patch, removable_patch, sleep_mark
from joulie.adapters.kubernetes.times import rfc3339_micro
from joulie.adapters.kubernetes.writer import Job, write_all

GATE_PREFIX = "joulie.io/"
GRID_LEASE = "joulie-grid"
GRID_SUSPENDED_SINCE = "joulie.io/grid-suspended-since"
GRID_WORK_DONE = "joulie.io/grid-work-done"
"""Annotations of a Job suspended by the grid controller."""
BUDGET_WAITING_SINCE = "joulie.io/budget-waiting-since"
"""Annotation of a Job suspended by the grid controller for an EnergyBudget."""
HANDOVER_S = 11.0
"""Time until a leader that lost its Lease has stopped, s: it leads for 10 s after a renewal, plus its last write."""
LEASE_RENEW_INTERVAL_S = 20.0
"""Interval of renewing the Leases, s: removing thousands of gates takes longer than the duration of a Lease."""
_HOLDER = "joulie-cleanup"
_LEASE_S = 60
"""Lease duration, s: after this time a leader that still runs, or is installed again, can take the Lease."""
_log = logging.getLogger(__name__)


@dataclass
class Outcome:
    """Result of a cleanup.

    Attributes:
        restored: number of nodes whose agent reported that no cap is in force.
        not_restored: latest report of the agent, by node, for all other nodes.
        labels_removed: number of nodes whose labels were removed.
        nodes_opened: number of nodes that slept.
        nodes_off: those of them that are not ready: nobody switches them on any more.
        gates_removed: number of pods whose gates were removed.
        jobs_resumed: number of resumed Jobs that the grid controller had suspended.
        maxima_restored: number of autoscalers whose maximum the grid controller had lowered.
        workloads_released: number of Kueue workloads that waited for the grid.
        unscheduled: released pods that no scheduler has bound yet, as namespace/name.
        problems: error messages.
    """

    restored: int = 0
    not_restored: dict[str, str] = field(default_factory=dict)
    labels_removed: int = 0
    nodes_opened: int = 0
    nodes_off: list[str] = field(default_factory=list)
    gates_removed: int = 0
    jobs_resumed: int = 0
    maxima_restored: int = 0
    workloads_released: int = 0
    unscheduled: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def is_lifted(twin: NodeTwin) -> bool:
    """Whether a twin requests no cap."""
    spec = twin.spec
    draining = spec.scheduling is not None and bool(spec.scheduling.draining)
    uncapped = spec.cpu is None and spec.gpu is None and not spec.gpu_limits
    return spec.profile == "performance" and uncapped and not draining


def _is_marked(node: Node) -> bool:
    """Whether anything of sleep is written on a node."""
    return len(mark_patch(node, "")) > 1 or bool(removable_patch(node))


def _is_suspended_by_grid(job: BatchJob) -> bool:
    """Whether the grid controller suspended a Job; Jobs suspended by others stay suspended."""
    marks = (GRID_SUSPENDED_SINCE, BUDGET_WAITING_SINCE)
    return job.spec.suspend and any(job.metadata.annotations.get(mark) for mark in marks)


class Cleanup:
    """Cleanup of one cluster; it is idempotent, and another run completes what is left.

    Args:
        client: Kubernetes API client.
        lease_namespace: namespace of the Leases of operator and grid controller.
        lease_name: name of the operator's Lease.
        profile_label: node label of the power profile.
        schedulers: names of the schedulers that are removed after the cleanup: pods of theirs are bound before.
        service_account: ServiceAccount that the Leases are deleted with; empty to let them expire.
        multikueue_dispatcher: whether Joulie was the dispatcher of MultiKueue.
        handover_s: maximum time that a leader may write after it lost its Lease, s.
        poll_s: interval of polling the agents' reports, s; longer than the API server's cache of admission policies.
        clock: monotonic time, s.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        lease_namespace: str,
        lease_name: str,
        profile_label: str = names.POWER_PROFILE_LABEL,
        schedulers: Sequence[str] = (),
        service_account: str = "",
        multikueue_dispatcher: bool = False,
        handover_s: float = HANDOVER_S,
        poll_s: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._lease_namespace = lease_namespace
        self._leases = (lease_name, GRID_LEASE)
        self._labels = (profile_label, names.DRAINING_LABEL)
        self._schedulers = tuple(schedulers)
        self._service_account = service_account
        self._multikueue_dispatcher = multikueue_dispatcher
        self._handover_s = handover_s
        self._poll_s = poll_s
        self._clock = clock
        self._outcome = Outcome()

    async def run(self, *, timeout_s: float) -> Outcome:
        """Run all steps; errors of single objects are collected and do not stop the cleanup.

        Args:
            timeout_s: maximum time to wait for the agents, s.

        Raises:
            KubernetesError: the objects of the cluster cannot be listed.
        """
        began_s = self._clock()
        await self._own_leases()
        leaders_stopped_s = began_s + (self._handover_s if await self._take_leases() else 0.0)
        async with self._renew_in_background(*self._leases):
            await self._lift_until_restored(
                leaders_stopped_s, max(began_s + timeout_s, leaders_stopped_s + 2.0 * self._poll_s)
            )
            nodes = (await self._client.list(NODES)).items
            await self._write_all([self._opener(node) for node in nodes if _is_marked(node)])
            await self._write_all(
                [self._unlabeller(node, *found) for node in nodes if (found := self._labels_of(node))]
                + [self._range_unlabeller(node) for node in nodes if _has_range_labels(node)]
            )
            await self._release_grid()
            await self._await_schedulers(timeout_s)
        return self._outcome

    async def release_grid(self, *, timeout_s: float) -> Outcome:
        """Release all pods and Jobs that wait for the grid; does nothing if there never was a grid controller.

        Args:
            timeout_s: maximum time to wait until the released pods are bound, s.

        Raises:
            KubernetesError: see `run`.
        """
        if await self._take_lease(GRID_LEASE):
            async with self._renew_in_background(GRID_LEASE):
                await asyncio.sleep(self._handover_s)
                await self._release_grid()
                await self._await_schedulers(timeout_s)
        return self._outcome

    async def restore_maxima(self) -> Outcome:
        """Restore the maxima of autoscalers, once no grid controller lowers them any more."""
        restored, problems = await restore_all(self._client)
        self._outcome.maxima_restored = len(restored)
        self._outcome.problems += problems
        return self._outcome

    async def _release_grid(self) -> None:
        if await self._stop_gating():
            await asyncio.sleep(self._poll_s)
        jobs = (await self._client.list(JOBS)).items
        await self._write_all([self._resumer(job) for job in jobs if _is_suspended_by_grid(job)])
        await self.restore_maxima()
        try:
            released = set(await release_workloads(self._client, time.time(), "Joulie was removed"))
            if self._multikueue_dispatcher:
                released.update(await nominate_all(self._client))
            self._outcome.workloads_released = len(released)
        except KubernetesError as error:
            self._outcome.problems.append(str(error))
        pods = (await self._client.list(PODS, field_selector="spec.nodeName=")).items
        gated = [pod for pod in pods if any(gate.name.startswith(GATE_PREFIX) for gate in pod.spec.scheduling_gates)]
        await self._write_all([self._releaser(pod) for pod in gated])

    async def _await_schedulers(self, timeout_s: float) -> None:
        """Wait until the pods of the schedulers that are removed are bound; afterwards nobody would bind them."""
        deadline_s = self._clock() + timeout_s
        while self._schedulers:
            pods = (await self._client.list(PODS, field_selector="spec.nodeName=")).items
            # Pods with gates of others wait for somebody else.
            waiting = [
                f"{pod.metadata.namespace}/{pod.metadata.name}"
                for pod in pods
                if pod.spec.scheduler_name in self._schedulers and not pod.spec.scheduling_gates
            ]
            self._outcome.unscheduled = sorted(waiting)
            if not waiting or self._clock() >= deadline_s:
                return
            _log.info("waiting for pods to be scheduled", extra={"pods": len(waiting)})
            await asyncio.sleep(self._poll_s)

    async def _own_leases(self) -> None:
        """Let the Leases be deleted with the release's ServiceAccount, so that a new release need not wait for them."""
        if not self._service_account:
            return
        try:
            account = await self._client.get(SERVICE_ACCOUNTS, self._service_account, self._lease_namespace)
            owner = {"apiVersion": "v1", "kind": "ServiceAccount", "name": self._service_account}
            body = {"metadata": {"ownerReferences": [{**owner, "uid": account.metadata.uid}]}}
            for name in (*self._leases, *self._schedulers[:1]):
                with suppress(NotFoundError):
                    await self._client.patch(LEASES, name, body, namespace=self._lease_namespace)
        except KubernetesError as error:
            # They expire by themselves; the account of an earlier release may not be allowed to do this.
            _log.warning("leases stay behind", extra={"problem": str(error)})

    @asynccontextmanager
    async def _renew_in_background(self, *leases: str) -> AsyncIterator[None]:
        """Keep renewing Leases in the background; failed renewals are retried."""

        async def renew() -> None:
            while True:
                await asyncio.sleep(LEASE_RENEW_INTERVAL_S)
                for name in leases:
                    try:
                        await self._take_lease(name)
                    except KubernetesError as error:
                        _log.warning("lease not renewed", extra={"lease": name, "problem": str(error)})

        task = asyncio.create_task(renew())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _take_leases(self) -> bool:
        """Take or renew the Leases, so that no replica leads; returns whether any Lease exists."""
        held = [await self._take_lease(name) for name in self._leases]
        return any(held)

    async def _take_lease(self, name: str) -> bool:
        now = rfc3339_micro(time.time())
        spec = {"holderIdentity": _HOLDER, "leaseDurationSeconds": _LEASE_S, "renewTime": now}
        try:
            await self._client.patch(LEASES, name, {"spec": spec}, namespace=self._lease_namespace)
        except NotFoundError:
            return False
        return True

    async def _stop_gating(self) -> bool:
        """Stop the admission of gates to new pods; returns whether it may have been active."""
        try:
            await set_gating(self._client, self._lease_namespace, enabled=False)
        except NotFoundError:
            return False
        except KubernetesError as error:
            self._outcome.problems.append(str(error))
        return True

    async def _lift_until_restored(self, leaders_stopped_s: float, deadline_s: float) -> None:
        """Lift all caps until every agent has restored its node and no leader can set a cap again, or the timeout."""
        while True:
            twins = (await self._client.list(NODE_TWINS)).items
            capped = [twin.spec.node_name for twin in twins if not is_lifted(twin)]
            await self._write_all([self._lifter(twin) for twin in twins if not is_lifted(twin)])
            waiting = {twin.spec.node_name: not_restored_reason(twin) for twin in twins if not_restored_reason(twin)}
            now_s = self._clock()
            if now_s >= deadline_s or (now_s >= leaders_stopped_s and not waiting and not capped):
                break
            _log.info("waiting for agents", extra={"nodes": len(waiting), "seconds_left": round(deadline_s - now_s)})
            await asyncio.sleep(self._poll_s)
            await self._take_leases()
        self._outcome.restored = len(twins) - len(waiting)
        self._outcome.not_restored = dict(sorted(waiting.items()))
        if capped:
            more = f" and {len(capped) - 1} more" if len(capped) > 1 else ""
            self._outcome.problems.append(
                f"caps were set again during the cleanup, on {capped[0]}{more}: an operator runs without the"
                f" Lease {self._lease_namespace}/{self._leases[0]}; stop it, then run the cleanup again"
            )

    def _lifter(self, twin: NodeTwin) -> Job:
        absent = dict.fromkeys(("cpu", "gpu", "gpuLimits", "scheduling", "policy"))
        uncapped = {"profile": "performance", **absent}

        async def lift() -> None:
            await self._client.patch(
                NODE_TWINS, twin.metadata.name, {"spec": uncapped}, field_manager=names.CLEANUP_FIELD_MANAGER
            )

        return lift

    def _labels_of(self, node: Node) -> list[str]:
        """Joulie's labels of a node; that of a pending restore stays where the restore is not confirmed."""
        done = node.metadata.name not in self._outcome.not_restored
        removed = (*self._labels, names.RESTORE_PENDING_LABEL) if done else self._labels
        if names.TRIAL_LABEL in node.metadata.labels:
            removed = (*removed, names.TRIAL_LABEL, names.MODE_LABEL)
        return [label for label in removed if label in node.metadata.labels]

    def _unlabeller(self, node: Node, *keys: str) -> Job:
        async def unlabel() -> None:
            labels = dict.fromkeys(keys)
            await self._client.patch(
                NODES, node.metadata.name, {"metadata": {"labels": labels}}, field_manager=names.CLEANUP_FIELD_MANAGER
            )
            self._outcome.labels_removed += 1

        return unlabel

    def _opener(self, node: Node) -> Job:
        async def open_to_pods() -> None:
            await self._client.patch(
                NODES,
                node.metadata.name,
                [*mark_patch(node, ""), *removable_patch(node)],
                kind=PatchKind.JSON,
                field_manager=names.CLEANUP_FIELD_MANAGER,
            )
            slept = sleep_mark(node) != "" or has_asleep_taint(node)
            self._outcome.nodes_opened += slept
            if slept and any(one.type == "Ready" and one.status != "True" for one in node.status.conditions):
                self._outcome.nodes_off.append(node.metadata.name)

        return open_to_pods

    def _range_unlabeller(self, node: Node) -> Job:
        """Gives up the labels of GPUs' ranges: those that somebody else has set stay."""

        async def unlabel() -> None:
            body = {"metadata": {"uid": node.metadata.uid}}
            manager = names.GPU_RANGE_FIELD_MANAGER
            with suppress(ConflictError):  # the node is gone
                await self._client.apply(NODES, node.metadata.name, body, field_manager=manager, force=False)

        return unlabel

    def _resumer(self, job: BatchJob) -> Job:
        notes = dict.fromkeys((GRID_SUSPENDED_SINCE, GRID_WORK_DONE, BUDGET_WAITING_SINCE))
        body = {"metadata": {"uid": job.metadata.uid, "annotations": notes}, "spec": {"suspend": False}}

        async def resume() -> None:
            await self._client.patch(
                JOBS,
                job.metadata.name,
                body,
                namespace=job.metadata.namespace,
                field_manager=names.CLEANUP_FIELD_MANAGER,
            )
            self._outcome.jobs_resumed += 1

        return resume

    def _releaser(self, pod: Pod) -> Job:
        gates = [{"name": gate.name} for gate in pod.spec.scheduling_gates]
        others = [gate for gate in gates if not gate["name"].startswith(GATE_PREFIX)]
        # The list is replaced as a whole: the test protects changes by other controllers in the meantime.
        patch = [
            {"op": "test", "path": "/spec/schedulingGates", "value": gates},
            {"op": "replace", "path": "/spec/schedulingGates", "value": others},
        ]

        async def release() -> None:
            await self._client.patch(
                PODS, pod.metadata.name, patch, kind=PatchKind.JSON, namespace=pod.metadata.namespace
            )
            self._outcome.gates_removed += 1

        return release

    async def _write_all(self, writes: Sequence[Job]) -> None:
        for failure in await write_all(writes):
            if not isinstance(failure.error, NotFoundError):
                self._outcome.problems.append(str(failure.error))


def _has_range_labels(node: Node) -> bool:
    return any(label in node.metadata.labels for label in names.GPU_LIMIT_RANGE_LABELS)
