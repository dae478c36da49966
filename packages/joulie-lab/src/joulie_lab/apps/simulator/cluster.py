"""Synchronises the simulated world with a cluster: watches nodes and pods, creates and completes the trace's pods."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.api.core import Node, Pod
from joulie.adapters.kubernetes.cache import Cache, Key
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import (
    ApiError,
    ConflictError,
    KubernetesError,
    NotFoundError,
    TooManyRequestsError,
)
from joulie.adapters.kubernetes.pods import SimulatedUse, pod_facts, simulated_use
from joulie.adapters.kubernetes.requests import Requests
from joulie.adapters.kubernetes.resources import NODES, PODS
from joulie.adapters.kubernetes.writer import Job, write_all
from joulie.domain.hardware import Catalogue
from joulie.domain.hardware.resolve import resolve
from joulie.domain.policy import PodPhase, Profile
from joulie.domain.resource_quantity import QuantityError, parse_quantity
from joulie_lab.apps.simulator.gangs import Capacity, GangGate, Release, Used
from joulie_lab.apps.simulator.metrics import SimulatorMetrics
from joulie_lab.apps.simulator.run import Run, RunState
from joulie_lab.apps.simulator.trace_player import JobRecord, TracePlayer
from joulie_lab.apps.simulator.world import Place
from joulie_lab.simulation.live.jobs import Activity, RunningPod, activity
from joulie_lab.simulation.live.measured_jobs import MeasuredJob
from joulie_lab.simulation.live.nodes import NodeSpec
from joulie_lab.simulation.native.nodes import HOSTNAME_LABEL

GpuJobs = Callable[[str, str], MeasuredJob | None]
"""Creates the job of a sweep, by its name, for a pod, by its key; None where there is none of that name."""

_DEFAULT_UTIL = 0.5
_log = logging.getLogger(__name__)


class SimulatedNode(NamedTuple):
    """The part of a node that the world uses, with its power state from labels; `problem` if it cannot be simulated."""

    spec: NodeSpec | None
    place: Place
    problem: str = ""
    eco: bool = False
    draining: bool = False
    capacity: Capacity | None = None


class _Hardware(NamedTuple):
    """Hardware of a node; `problem` if it cannot be determined."""

    spec: NodeSpec | None
    problem: str = ""


class LivePod(NamedTuple):
    """The part of a pod that the world uses."""

    node: str
    running: bool
    requests: Requests
    use: SimulatedUse


def simulated_node(node: Node, catalogue: Catalogue) -> SimulatedNode:
    """Derive a node's hardware from its labels and allocatable resources, and its power state from labels."""
    name, labels = node.metadata.name, node.metadata.labels
    place = Place(labels.get(names.RACK_LABEL), labels.get(names.COOLING_ZONE_LABEL))
    allocatable: dict[str, float] = {}
    for resource, text in node.status.allocatable.items():
        try:
            allocatable[resource] = parse_quantity(text)
        except QuantityError as error:
            return SimulatedNode(None, place, f"allocatable {resource}: {error}")
    eco, draining = labels.get(names.POWER_PROFILE_LABEL) == Profile.ECO, names.DRAINING_LABEL in labels
    full_power = not (eco or draining)
    capacity = (
        None if node.spec.unschedulable else Capacity.from_allocatable(name, labels, allocatable, full_power=full_power)
    )
    hardware = _hardware_of(name, labels, allocatable, catalogue)
    return SimulatedNode(hardware.spec, place, hardware.problem, eco, draining, capacity)


def _hardware_of(
    name: str, labels: Mapping[str, str], allocatable: Mapping[str, float], catalogue: Catalogue
) -> _Hardware:
    hardware = resolve(None, labels, allocatable, catalogue)
    cpu = catalogue.cpu(hardware.cpu.model or hardware.cpu.raw or "").model
    if cpu is None:
        return _Hardware(None, f"CPU {hardware.cpu.raw!r} is not in the catalogue: set joulie.io/hw.cpu-model")
    cores = allocatable.get("cpu", 0.0) or hardware.cpu.cores
    gpu = hardware.gpu
    if gpu is None:
        return _Hardware(NodeSpec(name, cpu, hardware.cpu.sockets, cores))
    model = catalogue.gpu(gpu.model or gpu.raw or "").model
    if model is None:
        return _Hardware(None, f"GPU {gpu.raw!r} is not in the catalogue: set joulie.io/hw.gpu-model")
    return _Hardware(NodeSpec(name, cpu, hardware.cpu.sockets, cores, model, gpu.count))


def live_pod(pod: Pod) -> LivePod | None:
    """Reduce a pod to the part that the world uses; None if it is not bound to a node."""
    facts = pod_facts(pod)
    if not facts.node_name or facts.phase is PodPhase.FINISHED:
        return None
    # Only pods that the kubelet (or KWOK) reports as Running use resources.
    return LivePod(facts.node_name, pod.status.phase == "Running", facts.requests, simulated_use(pod))


class ClusterSync:
    """Keeps the simulated world and the cluster synchronised.

    Attributes:
        nodes: cache of the simulated nodes.
        pods: cache of the pods that are bound to nodes.
    """

    def __init__(
        self,
        client: KubeClient,
        run: Run,
        metrics: SimulatorMetrics,
        *,
        node_selector: str,
        catalogue: Catalogue,
        clock: Callable[[], float] = time.monotonic,
        gpu_job: GpuJobs = lambda *_: None,
    ) -> None:
        self._client = client
        self._gpu_job = gpu_job
        self._clock = clock
        self._run = run
        self._world = run.world
        self._player = run.player
        self._metrics = metrics
        self._nodes_changed = self._capacity_changed = True
        self._to_remove: list[str] = []
        self._gate = GangGate(run.player.gangs()) if run.player is not None and run.player.holds_gangs else None
        self.nodes: Cache[Node, SimulatedNode] = Cache(
            client, NODES, lambda node: simulated_node(node, catalogue), label_selector=node_selector
        )
        self.pods: Cache[Pod, LivePod] = Cache(client, PODS, live_pod, field_selector="spec.nodeName!=")
        self.nodes.add_listener(self._on_node)
        self.pods.add_listener(self._on_pod)

    def why_not_ready(self) -> str | None:
        """The caches that have not completed their first list; None if all have."""
        missing = [name for name, cache in (("nodes", self.nodes), ("pods", self.pods)) if not cache.synced]
        return f"not listed yet: {', '.join(missing)}" if missing else None

    async def tick(self) -> None:
        """Advance the world to the present, and write its results to the cluster."""
        if self._nodes_changed:
            self._nodes_changed = False
            kept = [node for node in self.nodes.objects.values() if node.spec is not None]
            self._world.set_nodes({node.spec: node.place for node in kept if node.spec is not None})
        with self._metrics.tick_seconds.time():
            self._run.catch_up()
        done = [pod.key for pod in self._run.take_finished()]
        for pod_key in done:
            self._note_completed(pod_key)
        again, self._to_remove = self._to_remove, []
        await self._write_concurrently([self._remover(pod_key) for pod_key in (*again, *done)])
        if self._player is not None and self._run.state is RunState.RUNNING:
            await self._write_concurrently([self._submitter(record) for record in self._player.due(self._world.time_s)])
        if self._gate is not None and self._player is not None and (self._capacity_changed or self._gate.needs_polling):
            self._capacity_changed = False
            nodes = [node.capacity for node in self.nodes.objects.values() if node.capacity is not None]
            decision = self._gate.next(nodes, self._used(), self._unplaced(self._player), self._clock())
            await self._write_concurrently([self._releaser(one) for one in decision.release])
            await self._write_concurrently([self._stopper(one) for one in decision.stop])

    def _on_node(self, key: Key, old: SimulatedNode | None, new: SimulatedNode | None) -> None:
        self._nodes_changed = self._capacity_changed = True
        if self._run.recorder is not None:
            self._run.catch_up()
            self._run.recorder.node(
                key.name, eco=new is not None and new.eco, draining=new is not None and new.draining
            )
        if new is not None and new.problem and (old is None or old.problem != new.problem):
            _log.warning("node is not simulated", extra={"node": key.name, "reason": new.problem})
            self._world.note("node-refused", node=key.name, message=new.problem)

    def _on_pod(self, key: Key, old: LivePod | None, new: LivePod | None) -> None:
        pod_key = f"{key.namespace}/{key.name}"
        self._capacity_changed = True
        self._run.catch_up()
        if new is None:
            self._pod_gone(pod_key)
        elif new.running and (old is None or not old.running or old.node != new.node):
            self._pod_runs(pod_key, new)

    def _pod_runs(self, pod_key: str, pod: LivePod) -> None:
        record = self._player.started(pod_key, pod.node, self._world.time_s) if self._player else None
        requests = pod.requests
        if record is None:
            use, job = _annotated(pod.use, requests), self._gpu_job(pod.use.gpu_job, pod_key)
            if pod.use.gpu_job and job is None:
                _log.warning("unknown job of a sweep", extra={"pod": pod_key, "job": pod.use.gpu_job})
            self._world.put_pod(RunningPod(pod_key, pod.node, requests.cpu_cores, requests.gpus, use, gpu_job=job))
            return
        assert self._player is not None
        gang, size = self._player.gang(record.job)
        self._world.put_pod(
            RunningPod(
                pod_key,
                pod.node,
                requests.cpu_cores,
                requests.gpus,
                activity(record.job),
                record.work,
                gang,
                size,
            )
        )
        self._world.note("job-started", job=record.job.job_id, pod=pod_key, node=pod.node)

    def _pod_gone(self, pod_key: str) -> None:
        left = self._world.workload.work_left(pod_key) if pod_key in self._world.workload else None
        self._world.workload.remove(pod_key)
        record = self._player.lost(pod_key, left) if self._player else None
        if record is not None:
            self._world.note("job-interrupted", job=record.job.job_id, pod=pod_key)

    def _note_completed(self, pod_key: str) -> None:
        record = self._player.job_of_pod(pod_key) if self._player else None
        if record is not None and record.completed_s is not None:
            self._metrics.jobs_completed.labels(record.workload_class, record.node).inc()
            self._metrics.job_seconds.observe(record.completed_s - record.job.submit_s)
            self._world.note("job-completed", job=record.job.job_id, pod=pod_key, node=record.node)

    def _remover(self, pod_key: str) -> Job:
        """A write that removes a completed job's pod; the job remains completed even if that fails."""
        namespace, _, name = pod_key.partition("/")

        async def remove() -> None:
            try:
                await self._client.patch(
                    PODS, name, {"status": {"phase": "Succeeded"}}, namespace=namespace, subresource="status"
                )
                await self._client.delete(PODS, name, namespace, grace_s=0)
            except NotFoundError:
                return
            except ApiError as error:
                if _is_transient(error):
                    self._to_remove.append(pod_key)
                else:
                    _log.warning("finished pod not removed", extra={"pod": pod_key, "error": str(error)})
            except KubernetesError:
                self._to_remove.append(pod_key)
                raise

        return remove

    def _submitter(self, record: JobRecord) -> Job:
        async def submit() -> None:
            assert self._player is not None
            try:
                await self._client.create(PODS, self._player.pod(record), record.job.namespace)
            except ConflictError:
                # The pod exists: the simulator was restarted in the middle of the trace.
                pass
            except ApiError as error:
                if _is_transient(error):
                    self._player.retry(record)
                else:
                    self._player.refused(record, str(error))
                    _log.warning("job refused", extra={"job": record.job.job_id, "error": str(error)})
                    self._world.note("job-refused", job=record.job.job_id, message=str(error))
                return
            except KubernetesError:
                # No response: if the pod was created nevertheless, the retry gets a conflict.
                self._player.retry(record)
                raise
            self._player.submitted(record)
            self._capacity_changed = True
            self._metrics.jobs_submitted.labels(record.workload_class).inc()
            self._adopt(record)

        return submit

    def _used(self) -> Iterator[Used]:
        """Requests of the pods on nodes."""
        for pod in self.pods.objects.values():
            yield Used(pod.node, pod.requests.cpu_cores, pod.requests.memory_gib, pod.requests.gpus)

    def _unplaced(self, player: TracePlayer) -> Iterator[JobRecord]:
        """Jobs outside gangs whose pods wait for the scheduler."""
        for record in player.alone():
            if Key(record.job.namespace, record.pod_name) not in self.pods.objects:
                yield record

    def _releaser(self, release: Release) -> Job:
        record, spec = release.record, {"schedulingGates": None}
        # The node selector of a gated pod may be extended, which pins the pod to a node.
        bound = {} if release.hostname is None else {"nodeSelector": {HOSTNAME_LABEL: release.hostname}}

        async def ungate() -> None:
            try:
                await self._client.patch(PODS, record.pod_name, {"spec": spec | bound}, namespace=record.job.namespace)
                record.held = False
            except NotFoundError:
                self._pod_gone(record.pod_key)
            finally:
                self._capacity_changed |= record.held

        return ungate

    def _stopper(self, record: JobRecord) -> Job:
        pod_key, pod_name = record.pod_key, record.pod_name

        async def stop() -> None:
            self._capacity_changed = True
            with suppress(NotFoundError):
                await self._client.delete(PODS, pod_name, record.job.namespace, grace_s=0)
            self._run.catch_up()
            self._pod_gone(pod_key)

        return stop

    def _adopt(self, record: JobRecord) -> None:
        """Start a job whose pod was already running when it was recognised as the job's."""
        pod = self.pods.objects.get(Key(record.job.namespace, record.pod_name))
        if pod is not None and pod.running:
            self._pod_runs(record.pod_key, pod)

    async def _write_concurrently(self, writes: list[Job]) -> None:
        """Run writes concurrently; failures are logged and never end the program."""
        for failure in await write_all(writes):
            _log.warning("write failed", extra={"error": str(failure.error)})


def _is_transient(error: ApiError) -> bool:
    """Whether a retry may succeed."""
    return isinstance(error, TooManyRequestsError) or error.status >= 500


def _annotated(use: SimulatedUse, requests: Requests) -> Activity:
    """Activity of a pod outside the trace: from its annotations, else half of its requests."""
    gpu_default = _DEFAULT_UTIL if requests.gpus > 0.0 else 0.0
    return Activity(
        cpu_util=_share(use.cpu_util_pct, _DEFAULT_UTIL),
        gpu_util=_share(use.gpu_util_pct, gpu_default),
        memory_intensity=_share(use.memory_pressure_pct, 0.0),
    )


def _share(percent: float | None, default: float) -> float:
    return default if percent is None else percent / 100.0
