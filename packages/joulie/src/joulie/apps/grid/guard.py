"""`joulie grid guard`: releases overdue pods and Jobs, whether or not the controller is running.

While no controller renews the Lease, it also stops the gating of new pods, and releases what waits for EnergyBudgets.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import click
import msgspec

from joulie.adapters.kubernetes.api.core import Lease
from joulie.adapters.kubernetes.autoscalers import restore_all
from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import ConflictError, KubernetesError, NotFoundError
from joulie.adapters.kubernetes.gating import set_gating
from joulie.adapters.kubernetes.kueue import release_workloads
from joulie.adapters.kubernetes.multikueue import nominate_all
from joulie.adapters.kubernetes.resources import CRON_JOBS, JOBS, LEASES, NAMESPACES, PODS
from joulie.adapters.kubernetes.times import time_or_none
from joulie.adapters.kubernetes.writer import Job, write_all
from joulie.apps.grid.apply import PodWriter
from joulie.apps.grid.budgets import write_job
from joulie.apps.grid.deadlines import finish_by_of, next_run_of
from joulie.apps.grid.facts import (
    CronJobFacts,
    GatedPod,
    JobFacts,
    NamespaceFacts,
    Owner,
    keep_cron_job,
    keep_gated,
    keep_job,
    keep_namespace,
)
from joulie.apps.grid.jobs import Change, JobWriter
from joulie.apps.grid.requests import NO_POLICY, requested
from joulie.domain.grid import names
from joulie.domain.grid.deferral import Waiting
from joulie.domain.grid.interrupt import Progress
from joulie.domain.grid.request import GridDefaults
from joulie.program import logs
from joulie.program.run import every, run
from joulie.program.settings import ProgramSettings, settings_options
from joulie.settings import boolean, duration, group, text

LEASE_NAME = "joulie-grid"
GRACE_S = 30.0
"""Grace period of a running controller for pods that have just become due: its annotations say more."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class GuardSettings(ProgramSettings):
    """Settings of `joulie grid guard`."""

    namespace: str = text("POD_NAMESPACE", "joulie-system", "Namespace of the controller's Lease and ConfigMap.")
    stale_after_s: float = duration(
        "LEASE_STALE_AFTER",
        "5m",
        "A controller that has not renewed its Lease for so long counts as dead.",
        minimum=1.0,
    )
    interval_s: float = duration("GUARD_INTERVAL", "1m", "Pause between two rounds, without --once.", minimum=0.1)
    replica_ceilings_enabled: bool = boolean("REPLICA_CEILINGS_ENABLED", False, "As the controller's.")
    multikueue_dispatcher: bool = boolean("MULTIKUEUE_DISPATCHER", False, "As the controller's.")
    defaults: GridDefaults = group(
        GridDefaults,
        max_delay_s=duration("MAX_SCHEDULING_DELAY", "24h", "As the controller's.", minimum=0),
        runtime_s=duration("GRID_DEFAULT_RUNTIME", "1h", "As the controller's.", minimum=1.0),
    )


class Round(msgspec.Struct, frozen=True):
    """What one round of the guard found and did.

    Attributes:
        controller_alive: whether the Lease was renewed recently.
        lease_age_s: time since the Lease was renewed or released, s; None if it never was.
        gating_suspended: whether gating of new pods was stopped.
        lifted: pods whose gate was lifted.
        resumed: Jobs that were resumed.
        waiting: number of pods that may still wait.
        restored: autoscalers whose original maximum was restored, since no controller would.
        opened: Kueue workloads whose gate was lifted, whose check was answered, or for which all clusters were
            nominated, since no controller would.
        problems: errors, a sentence each.
    """

    controller_alive: bool
    lease_age_s: float | None
    gating_suspended: bool
    lifted: list[str]
    resumed: list[str]
    waiting: int
    opened: list[str]
    restored: list[str]
    problems: list[str]


class Cluster(NamedTuple):
    """The objects that the guard reads."""

    pods: Mapping[Key, GatedPod]
    jobs: Mapping[Key, JobFacts]
    namespaces: Mapping[str, NamespaceFacts]
    cron_jobs: Mapping[Key, CronJobFacts] = {}

    def policy(self, namespace: str) -> NamespaceFacts:
        """The policy of a namespace; an empty one if the namespace was deleted."""
        return self.namespaces.get(namespace, NO_POLICY)

    def job_of(self, key: Key, pod: GatedPod) -> JobFacts | None:
        """The Job of a pod; None where it belongs to none."""
        job = None if pod.owner is None else self.jobs.get(Key(key.namespace, pod.owner.name))
        return job if job is not None and pod.owner is not None and job.uid == pod.owner.uid else None

    def cron_job_of(self, key: Key, job: JobFacts) -> CronJobFacts | None:
        """The CronJob of a Job; None without one, or while that is suspended."""
        cron_job = None if job.owner is None else self.cron_jobs.get(Key(key.namespace, job.owner.name))
        return cron_job if cron_job is not None and job.owner is not None and cron_job.uid == job.owner.uid else None


@click.command("guard")
@settings_options(GuardSettings)
@click.option("--once", is_flag=True, help="One round, for a CronJob.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="How a round is told.")
def guard(settings: GuardSettings, once: bool, output: str) -> None:
    """Lift the gates of pods past their latest start, resume Jobs; without a living controller, gate no new pods.

    Exit status 1 says that something could not be done; the next round tries again.
    """
    logs.configure(settings.log_level, settings.log_format)
    if not once:
        run(lambda stop: _keep_watch(settings, output, stop))
        return
    done = asyncio.run(_one_round(settings))
    click.echo(_as_text(done, output))
    if done.problems:
        sys.exit(1)


async def _keep_watch(settings: GuardSettings, output: str, stop: asyncio.Event) -> None:
    async for _ in every(settings.interval_s, stop):
        click.echo(_as_text(await _one_round(settings), output))


async def _one_round(settings: GuardSettings) -> Round:
    connection = KubeClient.connect(
        kubeconfig=settings.kubeconfig, context=settings.context, user_agent="joulie-grid-guard"
    )
    async with connection as client:
        return await look_after(client, settings, time.time())


async def look_after(client: KubeClient, settings: GuardSettings, now_s: float) -> Round:
    """One round.

    Args:
        client: of the cluster.
        settings: of the guard.
        now_s: s since the epoch. It is compared with times that other machines wrote: what they differ by delays or
            hastens a release, and minutes of it are taken for a dead controller.
    """
    problems = _Problems()
    age_s, dead, suspended = None, False, False
    with problems:
        age_s = await _lease_age_s(client, settings.namespace, now_s)
        # Only what was read is judged: an API server that does not answer says nothing about the controller.
        dead = not _alive(age_s, settings)
    if dead:
        with problems:
            await set_gating(client, settings.namespace, enabled=False)
            suspended = True
    lifted: list[str] = []
    resumed: list[str] = []
    waiting = 0
    with problems:
        cluster, defaults = await _survey(client), settings.defaults
        by_s = now_s - (GRACE_S if _alive(age_s, settings) else 0.0)
        due, due_jobs = list(overdue(cluster, defaults, by_s)), list(overdue_jobs(cluster, defaults, by_s))
        waiting = len(cluster.pods) - len(due)
        lifted, failures = await _lift(client, {key: cluster.pods[key] for key in due})
        problems.messages += failures
        resumed, failures = await _resume(client, {key: cluster.jobs[key] for key in due_jobs}, now_s)
        problems.messages += failures
    opened: list[str] = []
    restored: list[str] = []
    if dead:
        with problems:
            freed, failures = await _release_budgets(client)
            lifted, resumed = lifted + freed[PODS.kind], resumed + freed[JOBS.kind]
            problems.messages += failures
        with problems:
            opened = await release_workloads(client, now_s, "the grid controller does not answer")
        with problems:
            if settings.multikueue_dispatcher:
                opened = sorted({*opened, *await nominate_all(client)})
        if settings.replica_ceilings_enabled:
            restored, failures = await restore_all(client)
            problems.messages += failures
    alive = _alive(age_s, settings)
    return Round(alive, age_s, suspended, lifted, resumed, waiting, opened, restored, problems.messages)


class _Problems:
    """Context manager that records Kubernetes errors, so that the rest of the round still runs."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, KubernetesError):
            return False
        self.messages.append(str(error))
        return True


def _alive(age_s: float | None, settings: GuardSettings) -> bool:
    return age_s is not None and abs(age_s) <= settings.stale_after_s


def overdue(cluster: Cluster, defaults: GridDefaults, now_s: float) -> Iterator[Key]:
    """The gated pods whose latest start has passed or that do not ask for deferral.

    The delay counts from the creation of the pod or, if earlier, the start of its Job, which may have replaced the pod.

    Args:
        cluster: objects of the cluster.
        defaults: used where neither pod nor namespace sets a value.
        now_s: s since the epoch.
    """
    for key, pod in cluster.pods.items():
        request = requested(pod.asking, pod.owner, cluster.policy(key.namespace), defaults)
        job = cluster.job_of(key, pod)
        started_s = job.started_s if job is not None and job.started_s is not None else pod.created_s
        finish_by = None if job is None else finish_by_of(job, cluster.cron_job_of(key, job))
        waiting = Waiting(request, min(pod.created_s, started_s), finish_by)
        if not request.defer or now_s >= waiting.latest_start_s:
            yield key


def overdue_jobs(cluster: Cluster, defaults: GridDefaults, now_s: float) -> Iterator[Key]:
    """The Jobs suspended by the controller that must resume to finish in time, or no longer ask for interruption.

    Args:
        cluster: objects of the cluster.
        defaults: used where neither Job nor namespace sets a value.
        now_s: s since the epoch.
    """
    for key, job in cluster.jobs.items():
        if not job.suspended_by_us:
            continue
        owner = Owner(JOBS.kind, key.name, job.uid)
        request = requested(job.asking, owner, cluster.policy(key.namespace), defaults)
        next_run = next_run_of(job, cluster.cron_job_of(key, job))
        done_by_s = None if next_run is None else next_run.time_s
        progress = Progress(request, job.created_s, job.work_done_s, True, job.created_s, done_by_s)
        if not (request.defer and request.interruptible) or now_s >= progress.latest_resume_s:
            yield key


async def _lease_age_s(client: KubeClient, namespace: str, now_s: float) -> float | None:
    try:
        lease = await client.get(LEASES, LEASE_NAME, namespace)
    except NotFoundError:
        return None
    return age_s(lease, now_s)


def age_s(lease: Lease, now_s: float) -> float | None:
    """Time since a Lease was last renewed, s; None if it has no valid renew time.

    A leader that stops renews the Lease as it releases it, so a successor gets as long as after a crash.
    """
    renewed_s = time_or_none(lease.spec.renew_time)
    return None if renewed_s is None else now_s - renewed_s


async def _survey(client: KubeClient) -> Cluster:
    unbound = (await client.list(PODS, field_selector="spec.nodeName=")).items
    gated = ((Key(pod.metadata.namespace, pod.metadata.name), keep_gated(pod)) for pod in unbound)
    all_jobs = (await client.list(JOBS)).items
    jobs = ((Key(job.metadata.namespace, job.metadata.name), keep_job(job)) for job in all_jobs)
    all_cron_jobs = (await client.list(CRON_JOBS)).items
    cron_jobs = ((Key(one.metadata.namespace, one.metadata.name), keep_cron_job(one)) for one in all_cron_jobs)
    namespaces = (await client.list(NAMESPACES)).items
    return Cluster(
        {key: pod for key, pod in gated if pod is not None},
        {key: job for key, job in jobs if job is not None},
        {one.metadata.name: keep_namespace(one) for one in namespaces},
        {key: cron_job for key, cron_job in cron_jobs if cron_job is not None},
    )


async def _lift(client: KubeClient, pods: Mapping[Key, GatedPod]) -> tuple[list[str], list[str]]:
    """Lift gates; returns the released pods and the errors."""
    writer = PodWriter(client)
    lifted: list[str] = []

    def lifter(key: Key, pod: GatedPod) -> Job:
        async def lift() -> None:
            await writer.lift(key, pod.uid, {})
            lifted.append(str(key))
            _log.info("released an overdue pod", extra={"pod": str(key)})

        return lift

    failures = await _write([lifter(key, pod) for key, pod in pods.items()])
    return sorted(lifted), failures


async def _resume(client: KubeClient, jobs: Mapping[Key, JobFacts], now_s: float) -> tuple[list[str], list[str]]:
    """Resume Jobs; returns the resumed ones and the errors."""
    writer = JobWriter(client)
    resumed: list[str] = []

    def resumer(key: Key, job: JobFacts) -> Job:
        text = "it must run on to finish in time"
        change = Change(key, job.uid, suspend=False, text=text, since=job.suspended_since, done_s=job.work_done_s)

        async def resume() -> None:
            if await writer.write(change, now_s):
                resumed.append(str(key))
                _log.info("resumed an overdue Job", extra={"job": str(key)})

        return resume

    failures = await _write([resumer(key, job) for key, job in jobs.items()])
    return sorted(resumed), failures


async def _release_budgets(client: KubeClient) -> tuple[dict[str, list[str]], list[str]]:
    """Let go what waits for EnergyBudgets, since nobody would when their period turns.

    Returns:
        The released pods and Jobs by kind, and the errors.
    """
    done: dict[str, list[str]] = {PODS.kind: [], JOBS.kind: []}
    writer = PodWriter(client)

    def lifter(key: Key, uid: str) -> Job:
        async def lift() -> None:
            await writer.lift(key, uid, {}, names.BUDGET_GATE)
            done[PODS.kind].append(str(key))
            _log.info("released a pod that waited for an EnergyBudget", extra={"pod": str(key)})

        return lift

    def resumer(key: Key, job: JobFacts) -> Job:
        async def resume() -> None:
            if await write_job(client, key, job, None):
                done[JOBS.kind].append(str(key))
                _log.info("resumed a Job that waited for an EnergyBudget", extra={"job": str(key)})

        return resume

    jobs: list[Job] = [
        lifter(Key(pod.metadata.namespace, pod.metadata.name), pod.metadata.uid)
        for pod in (await client.list(PODS, field_selector="spec.nodeName=")).items
        if any(gate.name == names.BUDGET_GATE for gate in pod.spec.scheduling_gates)
    ]
    for found in (await client.list(JOBS)).items:
        facts = keep_job(found)
        if facts is not None and facts.budget_since is not None:
            jobs.append(resumer(Key(found.metadata.namespace, found.metadata.name), facts))
    return done, await _write(jobs)


async def _write(jobs: Iterable[Job]) -> list[str]:
    """Run all writes; returns the errors, except for objects that were deleted or changed meanwhile."""
    failures = (failure.error for failure in await write_all(jobs))
    return [str(error) for error in failures if not isinstance(error, NotFoundError | ConflictError)]


def _as_text(done: Round, output: str) -> str:
    if output == "json":
        return msgspec.json.encode(done).decode()
    return "\n".join([_summary(done), *(f"Error: {problem}" for problem in done.problems)])


def _summary(done: Round) -> str:
    controller = "alive" if done.controller_alive else "dead, no new pod is gated" if done.gating_suspended else "dead"
    counts = f"pods released: {len(done.lifted)}, still waiting: {done.waiting}, Jobs resumed: {len(done.resumed)}"
    queued = f", Kueue workloads released: {len(done.opened)}" if done.opened else ""
    maxima = f", maxima of autoscalers restored: {len(done.restored)}" if done.restored else ""
    return f"controller {controller}; {counts}{queued}{maxima}"
