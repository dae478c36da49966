"""What Joulie keeps of Kueue's workloads and checks, and what it answers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from joulie.adapters.kubernetes.api.kueue import (
    AdmissionCheck,
    AdmissionCheckState,
    CheckState,
    PodSet,
    PodSetUpdate,
    Workload,
)
from joulie.adapters.kubernetes.api.meta import OwnerReference
from joulie.adapters.kubernetes.kueue import QueuedObject, delayed, is_gated, is_ours, unanswered
from joulie.adapters.kubernetes.multikueue import last_check
from joulie.adapters.kubernetes.times import rfc3339
from joulie.apps.grid.apply import noted_at_release
from joulie.apps.grid.facts import Asking, GatedPod, Owner, asking_of, created_s, grid_annotations, owner_of
from joulie.domain.grid import names
from joulie.domain.grid.deferral import Conditions, Hold

ACTIVE = "Active"
"""Condition of an AdmissionCheck that somebody answers."""
_CARRIED = frozenset(
    {
        names.INITIAL_CARBON_INTENSITY,
        names.INITIAL_ELECTRICITY_RATE,
        names.CARBON_DELAY_TIMESTAMP,
        names.PRICE_DELAY_TIMESTAMP,
    }
)


class PodSetFacts(msgspec.Struct, frozen=True):
    """Cached facts of a pod set: its name and its grid annotations."""

    name: str
    annotations: dict[str, str]


class WorkloadFacts(msgspec.Struct, frozen=True):
    """Cached facts of a workload that waits: at Joulie's admission gate, or with quota for its checks.

    Attributes:
        uid: UID.
        version: ``metadata.resourceVersion``.
        created_s: creation, s since the epoch.
        owners: the objects that the workload represents: a Job, a pod, or all the pods of a group.
        asking: annotations and labels of its pod templates.
        notes: its own grid annotations: start of the delay, initial intensity and price, when its gate was lifted.
        pod_sets: its pod sets.
        gated: whether it has Joulie's admission gate.
        pending: names of the unanswered checks.
        delayed: all its checks while it waits to be requeued and still holds quota; see
            `joulie.adapters.kubernetes.kueue.delayed`.
        checks: names of all its checks.
        last_check: see `joulie.adapters.kubernetes.multikueue.last_check`.
        nominated: worker clusters that are nominated for it.
    """

    uid: str
    version: str
    created_s: float
    owners: tuple[OwnerReference, ...]
    asking: Asking
    notes: dict[str, str]
    pod_sets: tuple[PodSetFacts, ...]
    gated: bool
    pending: tuple[str, ...]
    delayed: tuple[AdmissionCheckState, ...]
    checks: tuple[str, ...] = ()
    last_check: str | None = None
    nominated: tuple[str, ...] = ()

    @property
    def released_at(self) -> str | None:
        """Time at which Joulie decided to lift its admission gate, RFC 3339; None before, or without a gate."""
        return self.notes.get(names.BIND_TIMESTAMP)


class CheckFacts(msgspec.Struct, frozen=True):
    """Cached facts of one of Joulie's AdmissionChecks.

    Attributes:
        version: ``metadata.resourceVersion``.
        generation: ``metadata.generation``.
        active: whether its condition Active is True.
    """

    version: str
    generation: int
    active: bool


# ---- cached facts


def keep_check(check: AdmissionCheck) -> CheckFacts | None:
    """The cached facts of an AdmissionCheck; None for checks of other controllers."""
    if not is_ours(check):
        return None
    active = any(one.type == ACTIVE and one.status == "True" for one in check.status.conditions)
    return CheckFacts(check.metadata.resource_version, check.metadata.generation, active)


def keep_workload(workload: Workload) -> WorkloadFacts | None:
    """The cached facts of a workload; None unless it waits for Joulie.

    Raises:
        QuantityError: a timestamp is invalid.
    """
    gated, pending, waits = is_gated(workload), unanswered(workload), delayed(workload)
    if not (gated or pending or waits):
        return None
    meta = workload.metadata
    return WorkloadFacts(
        uid=meta.uid,
        version=meta.resource_version,
        created_s=created_s(meta),
        owners=meta.owner_references,
        asking=_asking(workload.spec.pod_sets),
        notes=grid_annotations(meta.annotations),
        pod_sets=tuple(
            PodSetFacts(one.name, grid_annotations(one.template.metadata.annotations)) for one in workload.spec.pod_sets
        ),
        gated=gated,
        pending=pending,
        delayed=waits,
        checks=tuple(one.name for one in workload.status.admission_checks),
        last_check=last_check(workload),
        nominated=workload.status.nominated_cluster_names,
    )


def as_pod(workload: WorkloadFacts, owners: Sequence[QueuedObject]) -> GatedPod:
    """The facts of a gated pod that stands for all pods of a workload, which start together.

    What their templates do not state is taken from the owners: templates of Kueue's pod integration have no metadata.

    Args:
        workload: cached facts of the workload.
        owners: its owners; the first one that sets a key wins.
    """
    annotations: dict[str, str] = {}
    for one in reversed(owners):
        annotations |= grid_annotations(one.metadata.annotations)
    labels = (one.metadata.labels.get(names.WORKLOAD_TYPE_LABEL) for one in owners)
    asking = msgspec.structs.replace(
        workload.asking,
        annotations=annotations | workload.asking.annotations,
        workload_label=workload.asking.workload_label or next(filter(None, labels), None),
    )
    return GatedPod(workload.uid, workload.created_s, 0, _pods_owner(owners), asking)


def _pods_owner(owners: Sequence[QueuedObject]) -> Owner | None:
    """The controller of a workload's pods: the owner that is no pod, else the controller of the first pod."""
    if not owners:
        return None
    first = owners[0]
    if first.is_pod:
        return owner_of(first.metadata)
    return Owner(first.resource.kind, first.metadata.name, first.metadata.uid)


def _asking(pod_sets: Sequence[PodSet]) -> Asking:
    """The merged annotations of a workload's pod sets, which start together: the first pod set that sets a key wins."""
    askings = [asking_of(one.template.metadata, one.template.spec) for one in pod_sets]
    if not askings:
        return Asking()
    annotations: dict[str, str] = {}
    for one in reversed(askings):
        annotations |= one.annotations
    gardened = [one for one in askings if one.scheduler_name == names.SCHEDULER_NAME]
    return msgspec.structs.replace((gardened or askings)[0], annotations=annotations)


# ---- check states


def retry(checks: Iterable[str], hold: Hold, now_s: float, max_requeue_s: float) -> tuple[AdmissionCheckState, ...]:
    """Check states of a workload that waits.

    Args:
        checks: names of the checks.
        hold: the decision.
        now_s: s since the epoch.
        max_requeue_s: maximum delay before the workload is requeued, s. No decision wakes after the latest start, so it
            is always back by then.
    """
    after_s = math.floor(min(hold.wake_s - now_s, max_requeue_s))
    return tuple(
        AdmissionCheckState(
            name,
            CheckState.RETRY,
            rfc3339(now_s),
            hold_text(hold),
            requeue_after_seconds=max(after_s, 1),
        )
        for name in checks
    )


def ready(
    checks: Sequence[str], text: str, now_s: float, updates: tuple[PodSetUpdate, ...]
) -> tuple[AdmissionCheckState, ...]:
    """Check states of a workload that starts; only the first carries the pod set updates, which must not repeat.

    Args:
        checks: names of the checks.
        text: reason, for people.
        now_s: s since the epoch.
        updates: annotations for the pods.
    """
    return tuple(
        AdmissionCheckState(
            name, CheckState.READY, rfc3339(now_s), text, pod_set_updates=updates if name == checks[0] else ()
        )
        for name in checks
    )


def pod_set_updates(
    workload: WorkloadFacts,
    owners: Iterable[QueuedObject],
    conditions: Conditions,
    now_s: float,
    place: Mapping[str, str] = MappingProxyType({}),
) -> tuple[PodSetUpdate, ...]:
    """Annotations for the pods of a workload that starts: those of released pods, and one that skips the gate.

    Annotations that the pods have stay unchanged, since Kueue refuses to admit a workload whose check changes them.
    Earlier versions of Kueue require an update of every pod set or of none.

    Args:
        workload: cached facts of the workload.
        owners: its owners; pods may be among them.
        conditions: conditions in its zone.
        now_s: s since the epoch.
        place: annotation of the chosen zone, if there were several.
    """
    taken = {key for one in owners if one.is_pod for key in one.metadata.annotations}
    notes = {key: value for key, value in workload.notes.items() if key in _CARRIED}
    wanted = {names.SKIP: "true", **notes, **noted_at_release(conditions, workload.notes, now_s), **place}
    return tuple(
        PodSetUpdate(
            one.name, {key: value for key, value in wanted.items() if key not in taken | one.annotations.keys()}
        )
        for one in workload.pod_sets
    )


def hold_text(hold: Hold) -> str:
    """Why and until when a workload waits, for people."""
    return f"waits: {hold.text}; it starts by {rfc3339(hold.latest_start_s)} at the latest, if there is quota"
