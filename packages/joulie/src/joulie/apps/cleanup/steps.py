"""The steps of a cleanup, in the order that leaves nothing behind: who decides first, labels and gates last."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.api.core import Job as BatchJob
from joulie.adapters.kubernetes.api.core import Node, Pod
from joulie.adapters.kubernetes.api.v1alpha1 import NodeTwin
from joulie.adapters.kubernetes.client import KubeClient, PatchKind
from joulie.adapters.kubernetes.errors import KubernetesError, NotFoundError
from joulie.adapters.kubernetes.gating import set_gating
from joulie.adapters.kubernetes.kueue import open_checks
from joulie.adapters.kubernetes.resources import JOBS, LEASES, NODE_TWINS, NODES, PODS
from joulie.adapters.kubernetes.times import rfc3339_micro
from joulie.adapters.kubernetes.writer import Job, write_all

RESTORED = "restored"
"""First word of an agent's message while no cap is in force."""
GATE_PREFIX = "joulie.io/"
GRID_LEASE = "joulie-grid"
GRID_SUSPENDED_SINCE = "joulie.io/grid-suspended-since"
GRID_WORK_DONE = "joulie.io/grid-work-done"
"""Annotations of a Job that the grid's controller has suspended."""
HANDOVER_S = 11.0
"""By then a leader that lost its Lease has stopped: it leads for 10 s after a renewal, and its last write ends."""
HOLD_EVERY_S = 20.0
"""How often the Leases are renewed: thousands of gates take longer to lift than a Lease lasts."""
_HOLDER = "joulie-cleanup"
_LEASE_S = 60
"""A leader that is still there leads again so long after the cleanup, and one that is installed anew begins."""
_log = logging.getLogger(__name__)


@dataclass
class Outcome:
    """What a cleanup did.

    Attributes:
        restored: nodes whose agent reported that no cap is in force.
        unanswered: the others, with what their agent said last.
        labels_removed: nodes that lost labels.
        gates_removed: pods that lost gates.
        jobs_resumed: Jobs that the grid's controller had suspended.
        workloads_released: workloads of Kueue that waited for the grid.
        problems: what failed, a sentence each.
    """

    restored: int = 0
    unanswered: dict[str, str] = field(default_factory=dict)
    labels_removed: int = 0
    gates_removed: int = 0
    jobs_resumed: int = 0
    workloads_released: int = 0
    problems: list[str] = field(default_factory=list)


def is_lifted(twin: NodeTwin) -> bool:
    """Whether a twin asks for no cap."""
    spec = twin.spec
    draining = spec.scheduling is not None and bool(spec.scheduling.draining)
    return spec.profile == "performance" and spec.cpu is None and spec.gpu is None and not draining


def last_word(twin: NodeTwin) -> str:
    """What stands against a node being as it was found, in its agent's words; empty where nothing does."""
    control = twin.status.control_status
    if control is None or control.cpu is None or control.gpu is None:
        return "no agent has ever reported"
    reports = {"CPU": control.cpu, "GPU": control.gpu}
    return "; ".join(
        f"{device} {report.result}: {report.message or 'no message'}"
        for device, report in reports.items()
        if not (report.message or "").startswith(RESTORED)
    )


def _is_suspended_by_grid(job: BatchJob) -> bool:
    """Whether a Job stands still because the grid's controller said so: one that somebody else stopped stays so."""
    return job.spec.suspend and bool(job.metadata.annotations.get(GRID_SUSPENDED_SINCE))


class Cleanup:
    """A cleanup of one cluster; it may be run again, and then finishes what is left.

    Args:
        client: of the cluster.
        lease_namespace: of the Leases of operator and grid controller.
        lease_name: of the operator's Lease.
        profile_label: the label of nodes that says their profile.
        handover_s: how long a leader may write after it lost its Lease, s.
        poll_s: pause between two looks at the agents' reports, s; the API server forgets an admission policy in less.
        clock: monotonic time, s.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        lease_namespace: str,
        lease_name: str,
        profile_label: str = names.POWER_PROFILE_LABEL,
        handover_s: float = HANDOVER_S,
        poll_s: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._lease_namespace = lease_namespace
        self._leases = (lease_name, GRID_LEASE)
        self._labels = (profile_label, names.DRAINING_LABEL)
        self._handover_s = handover_s
        self._poll_s = poll_s
        self._clock = clock
        self._outcome = Outcome()

    async def run(self, *, timeout_s: float) -> Outcome:
        """Clean up; what fails for one object is noted and does not stop the rest.

        Args:
            timeout_s: how long to wait for the agents, s.

        Raises:
            KubernetesError: the cluster cannot be read at all.
        """
        began_s = self._clock()
        quiet_s = began_s + (self._handover_s if await self._hold_leases() else 0.0)
        async with self._holding(*self._leases):
            await self._lift_until_restored(quiet_s, max(began_s + timeout_s, quiet_s + 2.0 * self._poll_s))
            nodes = (await self._client.list(NODES)).items
            labelled = [node for node in nodes if any(label in node.metadata.labels for label in self._labels)]
            await self._each([self._unlabeller(node) for node in labelled])
            await self._let_go()
        return self._outcome

    async def let_go(self) -> Outcome:
        """Only the grid's part: nobody waits for it any more. Where it has never been, nothing is done.

        Raises:
            KubernetesError: as `run`.
        """
        if await self._hold_lease(GRID_LEASE):
            async with self._holding(GRID_LEASE):
                await asyncio.sleep(self._handover_s)
                await self._let_go()
        return self._outcome

    async def _let_go(self) -> None:
        if await self._stop_gating():
            await asyncio.sleep(self._poll_s)
        jobs = (await self._client.list(JOBS)).items
        await self._each([self._resumer(job) for job in jobs if _is_suspended_by_grid(job)])
        try:
            self._outcome.workloads_released = len(await open_checks(self._client, time.time(), "Joulie was removed"))
        except KubernetesError as error:
            self._outcome.problems.append(str(error))
        pods = (await self._client.list(PODS, field_selector="spec.nodeName=")).items
        gated = [pod for pod in pods if any(gate.name.startswith(GATE_PREFIX) for gate in pod.spec.scheduling_gates)]
        await self._each([self._releaser(pod) for pod in gated])

    @asynccontextmanager
    async def _holding(self, *leases: str) -> AsyncIterator[None]:
        """Hold Leases for as long as it takes; one that cannot be renewed now is tried again."""

        async def renew() -> None:
            while True:
                await asyncio.sleep(HOLD_EVERY_S)
                for name in leases:
                    try:
                        await self._hold_lease(name)
                    except KubernetesError as error:
                        _log.warning("lease not renewed", extra={"lease": name, "problem": str(error)})

        task = asyncio.create_task(renew())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _hold_leases(self) -> bool:
        """Take or renew the Leases, so that nobody leads. Returns whether there are any."""
        held = [await self._hold_lease(name) for name in self._leases]
        return any(held)

    async def _hold_lease(self, name: str) -> bool:
        now = rfc3339_micro(time.time())
        spec = {"holderIdentity": _HOLDER, "leaseDurationSeconds": _LEASE_S, "renewTime": now}
        try:
            await self._client.patch(LEASES, name, {"spec": spec}, namespace=self._lease_namespace)
        except NotFoundError:
            return False
        return True

    async def _stop_gating(self) -> bool:
        """Let admission gate no new pods. Returns whether it may have done so."""
        try:
            await set_gating(self._client, self._lease_namespace, enabled=False)
        except NotFoundError:
            return False
        except KubernetesError as error:
            self._outcome.problems.append(str(error))
        return True

    async def _lift_until_restored(self, quiet_s: float, deadline_s: float) -> None:
        """Lift all caps until every agent has answered and nobody can set a cap again, or time is up."""
        while True:
            twins = (await self._client.list(NODE_TWINS)).items
            capped = [twin.spec.node_name for twin in twins if not is_lifted(twin)]
            await self._each([self._lifter(twin) for twin in twins if not is_lifted(twin)])
            waiting = {twin.spec.node_name: last_word(twin) for twin in twins if last_word(twin)}
            now_s = self._clock()
            if now_s >= deadline_s or (now_s >= quiet_s and not waiting and not capped):
                break
            _log.info("waiting for agents", extra={"nodes": len(waiting), "seconds_left": round(deadline_s - now_s)})
            await asyncio.sleep(self._poll_s)
            await self._hold_leases()
        self._outcome.restored = len(twins) - len(waiting)
        self._outcome.unanswered = dict(sorted(waiting.items()))
        if capped:
            more = f" and {len(capped) - 1} more" if len(capped) > 1 else ""
            self._outcome.problems.append(
                f"caps were set anew while they were lifted, on {capped[0]}{more}: an operator runs that does not lead"
                f" by the Lease {self._lease_namespace}/{self._leases[0]}; stop it, then clean up again"
            )

    def _lifter(self, twin: NodeTwin) -> Job:
        uncapped = {"profile": "performance", "cpu": None, "gpu": None, "scheduling": None, "policy": None}

        async def lift() -> None:
            await self._client.patch(
                NODE_TWINS, twin.metadata.name, {"spec": uncapped}, field_manager=names.CLEANUP_FIELD_MANAGER
            )

        return lift

    def _unlabeller(self, node: Node) -> Job:
        async def unlabel() -> None:
            labels = dict.fromkeys(self._labels)
            await self._client.patch(
                NODES, node.metadata.name, {"metadata": {"labels": labels}}, field_manager=names.CLEANUP_FIELD_MANAGER
            )
            self._outcome.labels_removed += 1

        return unlabel

    def _resumer(self, job: BatchJob) -> Job:
        notes = dict.fromkeys((GRID_SUSPENDED_SINCE, GRID_WORK_DONE))
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
        # The list is atomic: the test keeps a gate that another controller added or removed since.
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

    async def _each(self, writes: Sequence[Job]) -> None:
        for failure in await write_all(writes):
            if not isinstance(failure.error, NotFoundError):
                self._outcome.problems.append(str(failure.error))
