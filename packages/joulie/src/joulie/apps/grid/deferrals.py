"""The deferral of a gated pod: its request, the start of its delay, and the exceptions that are never held."""

from __future__ import annotations

from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.kubernetes.resources import DAEMON_SETS
from joulie.apps.grid.facts import GatedPod
from joulie.apps.grid.observe import GridView
from joulie.apps.grid.pending import Deferral
from joulie.domain.grid.deferral import Release, ReleaseReason, Waiting
from joulie.domain.grid.request import Asked


def deferral_of(key: Key, pod: GatedPod, view: GridView) -> Deferral:
    """Compute the deferral of a gated pod.

    The delay counts from the creation of the pod. When a pending pod is deleted, its owner creates a new one, which
    must not start a new delay: it counts from the creation of an owner none of whose pods has run, or the start of a
    Job.

    Args:
        key: key of the pod.
        pod: cached facts of the pod.
        view: watch caches with its owner and namespace.
    """
    request = view.request(key.namespace, pod.asking, pod.owner)
    since_s, finish_by_s = pod.created_s, None
    job, replicas = view.job_of(key, pod), view.replicas_of(key, pod)
    settled = None
    if pod.owner is not None and pod.owner.kind == DAEMON_SETS.kind:
        settled = Release(ReleaseReason.REPLACEMENT, "pods of a DaemonSet are never held")
    elif replicas is not None and pod.owner is not None:
        if not (replicas.working or view.has_run(replicas.uid)):
            since_s = min(since_s, replicas.created_s)
        elif request.asked_by is not Asked.POD:
            text = f"replaces a pod of {pod.owner.kind} {pod.owner.name} that has run"
            settled = Release(ReleaseReason.REPLACEMENT, text)
    elif job is not None:
        since_s = min(since_s, since_s if job.started_s is None else job.started_s)
        finish_by_s = job.finish_by_s
    return Deferral(view.zone(request, pod.asking), Waiting(request, since_s, finish_by_s), settled)
