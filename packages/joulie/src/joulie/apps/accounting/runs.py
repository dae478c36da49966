"""Runs of workloads, from the pods that have ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from joulie.adapters.kubernetes.resources import JOBS
from joulie.apps.accounting.facts import AccountedPod
from joulie.domain.accounting.records import CompletedPod
from joulie.domain.runtimes import Run, workload_of


def runs_of(completed: Iterable[CompletedPod], pods: Mapping[str, AccountedPod]) -> Iterator[Run]:
    """The runs, or parts of them, that pods which have ended say something about.

    The pods of a Job are one run. What is not known of a pod any more is left out.

    Args:
        completed: pods whose end has been recorded.
        pods: pods of the cluster, also those deleted of late, by UID.
    """
    for done in completed:
        pod = pods.get(done.pod.uid)
        if pod is None or pod.started_s is None or done.until_s <= pod.started_s:
            continue
        workload = workload_of(pod.namespace, pod.owner.kind, pod.owner.name)
        if workload is not None:
            of_job = pod.controller is not None and pod.controller.kind == JOBS.kind
            run_uid = pod.controller.uid if pod.controller is not None and of_job else pod.uid
            ran_s = done.until_s - pod.started_s
            yield Run(run_uid, workload, pod.started_s, done.until_s, ran_s, pod.succeeded)
