"""What waits for an EnergyBudget, and which budget holds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from joulie.adapters.kubernetes.api.core import Pod
from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.kubernetes.pods import workload_of
from joulie.adapters.kubernetes.resources import JOBS
from joulie.apps.grid.facts import JobFacts, created_s
from joulie.domain.accounting.energy_budget import BudgetTarget
from joulie.domain.grid import names


class UnboundPod(msgspec.Struct, frozen=True, gc=False):
    """Cached facts of a pod without a node.

    Attributes:
        uid: UID of the pod.
        created_s: creation, s since the epoch.
        workload: kind and name of its workload.
        job_uid: UID of its Job; empty without one.
        labels: its labels.
        gated: whether it has the gate of budgets.
    """

    uid: str
    created_s: float
    workload: tuple[str, str]
    job_uid: str
    labels: dict[str, str]
    gated: bool


def keep_unbound(pod: Pod) -> UnboundPod | None:
    """Cached facts of a pod; None while it is being deleted.

    Raises:
        QuantityError: the creation time is invalid.
    """
    meta = pod.metadata
    if meta.deletion_timestamp is not None:
        return None
    controller, workload = meta.controller, workload_of(meta, meta.controller)
    return UnboundPod(
        meta.uid,
        created_s(meta),
        (workload.kind, workload.name),
        controller.uid if controller is not None and controller.kind == JOBS.kind else "",
        meta.labels,
        any(gate.name == names.BUDGET_GATE for gate in pod.spec.scheduling_gates),
    )


class Holder(NamedTuple):
    """A budget that holds now.

    Attributes:
        key: namespace and name of the budget.
        target: pods that it is for.
        suspends: whether it suspends running Jobs that may be interrupted.
        text: why it holds and until when, for people.
    """

    key: Key
    target: BudgetTarget
    suspends: bool
    text: str


class Waiter(NamedTuple):
    """A Job or pod that waits, in the order in which it is released.

    Attributes:
        since_s: since when it waits, s since the epoch.
        key: namespace and name.
        job: the Job; None for a pod.
        pod: the pod; None for a Job.
    """

    since_s: float
    key: Key
    job: JobFacts | None = None
    pod: UnboundPod | None = None

    @property
    def name(self) -> str:
        """Kind, namespace and name: unique."""
        return f"{'pod' if self.job is None else 'job'} {self.key}"


def holder_of(
    holders: Mapping[str, list[Holder]], key: Key, workload: tuple[str, str], labels: Mapping[str, str]
) -> Holder | None:
    """A budget that holds a workload's pods; of several, the one that suspends."""
    found = [one for one in holders.get(key.namespace, ()) if one.target.matches(key.namespace, *workload, labels)]
    return max(found, key=lambda one: one.suspends, default=None)
