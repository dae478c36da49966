"""The deferral of a gated pod: its request, the start of its delay, and the exceptions that are never held."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.kubernetes.resources import DAEMON_SETS, PODS
from joulie.apps.grid.deadlines import finish_by_of
from joulie.apps.grid.facts import GatedPod, Owner, ReplicasFacts
from joulie.apps.grid.observe import GridView
from joulie.apps.grid.pending import Deferral
from joulie.apps.grid.trials import DeferralTrial
from joulie.domain.grid import names
from joulie.domain.grid.deferral import Release, ReleaseReason, Waiting
from joulie.domain.grid.request import Asked, GridRequest
from joulie.domain.trial.holdout import left_out
from joulie.domain.trial.protocol import Arm
from joulie.domain.trial.workload_protocol import Drawn, drawn_name


def deferral_of(key: Key, pod: GatedPod, view: GridView, reachable: Collection[str] = frozenset()) -> Deferral:
    """Compute the deferral of a gated pod.

    The delay counts from the creation of the pod. When a pending pod is deleted, its owner creates a new one, which
    must not start a new delay: it counts from the creation of an owner none of whose pods has run, or the start of a
    Job.

    Args:
        key: key of the pod.
        pod: cached facts of the pod.
        view: watch caches with its owner and namespace.
        reachable: see `GridView.zones`.
    """
    request = view.request(key.namespace, pod.asking, pod.owner)
    since_s, finish_by = pod.created_s, None
    job, replicas = view.job_of(key, pod), view.replicas_of(key, pod)
    settled = None
    if pod.owner is not None and pod.owner.kind == DAEMON_SETS.kind:
        settled = Release(ReleaseReason.REPLACEMENT, "pods of a DaemonSet are never held")
    elif replicas is not None and pod.owner is not None:
        settled = _not_first(replicas, pod, request)
        if settled is None and not replicas.has_run:
            since_s = min(since_s, replicas.created_s)
    elif job is not None:
        since_s = min(since_s, since_s if job.started_s is None else job.started_s)
        finish_by = finish_by_of(job, view.cron_job_of(key.namespace, job))
    zone, *others = view.zones(request, pod.asking, reachable)
    return Deferral(zone, Waiting(request, since_s, finish_by), settled, tuple(others))


def by_chance(
    key: Key, pod: GatedPod, deferral: Deferral, top: Owner | None, trials: Iterable[DeferralTrial], share: float
) -> Deferral:
    """The deferral of a pod where chance decides whether it waits: it is settled for what starts at once.

    A trial of deferral draws the pods that are created while it runs; the holdout draws the others. Pods of one owner
    are one workload.

    Args:
        key: key of the pod.
        pod: cached facts of the pod.
        deferral: its deferral without chance.
        top: the topmost owner that is known: the CronJob of a Job.
        trials: trials of deferral.
        share: share of the workloads that the holdout leaves alone.
    """
    asks = deferral.waiting.request.asked_by is not Asked.NOBODY and not deferral.waiting.request.skip
    if deferral.settled is not None or not asks:
        return deferral
    workload = drawn_name(key.namespace, top.kind if top else PODS.kind, top.name if top else key.name)
    trial = next((one for one in trials if one.protocol.covers(pod.created_s)), None)
    if trial is not None and workload is not None:
        drawn = Drawn(trial.name, trial.protocol.arm_of(key.namespace, workload), workload)
        at_once = Release(ReleaseReason.TRIAL, f"starts at once, by chance, in trial {trial.name}")
        settled = at_once if drawn.arm is Arm.CONTROL else None
        return replace(deferral, settled=settled, drawn=(names.TRIAL, str(drawn)))
    return _in_holdout(pod, deferral, share) if share else deferral


def _in_holdout(pod: GatedPod, deferral: Deferral, share: float) -> Deferral:
    alone = left_out(pod.uid if pod.owner is None else pod.owner.uid, share)
    settled = Release(ReleaseReason.HOLDOUT, f"left alone by chance, as {share:.0%} of all are") if alone else None
    return replace(deferral, settled=settled, drawn=(names.HOLDOUT, f"{'left-alone' if alone else 'waits'} {share:g}"))


def _not_first(replicas: ReplicasFacts, pod: GatedPod, request: GridRequest) -> Release | None:
    """Why the pod of a ReplicaSet, StatefulSet or Deployment is not held; None if it may be.

    Nobody knows what ran before this program did. So a workload that is older than its maximum delay counts as one that
    has run: its first start would be overdue.
    """
    assert pod.owner is not None
    name = f"{pod.owner.kind} {pod.owner.name}"
    if replicas.has_run and request.asked_by is not Asked.POD:
        return Release(ReleaseReason.REPLACEMENT, f"replaces a pod of {name} or of its Deployment that has run")
    if not replicas.has_run and pod.created_s >= replicas.created_s + request.max_delay_s:
        return Release(ReleaseReason.REPLACEMENT, f"the workload of {name} is older than its maximum delay")
    return None
