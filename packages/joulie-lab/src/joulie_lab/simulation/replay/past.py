"""A recorded cluster in the form of the simulation, and the power that the model predicts for its past.

The prediction uses what a forecast has: of each pod its mean use, not its use at each moment. So its error is that of a
forecast, but for placement and timing, which are those of the past.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np

from joulie.domain.recording import NodeRecord, Period, PodRecord
from joulie.domain.units import ZERO_CELSIUS_K, FloatArray, IntArray
from joulie_lab.simulation.experiment.scenario import NodeGroup
from joulie_lab.simulation.live.fleet import LiveFleet
from joulie_lab.simulation.live.jobs import Demands, activity, demands_of
from joulie_lab.simulation.native.nodes import HOSTNAME_LABEL, SimNode, UnknownHardwareError, sim_nodes
from joulie_lab.simulation.trace import GPU_RESOURCE_VENDORS, WORKLOAD_CLASS_KEY, JobProfile, TraceJob

DAEMON = "DaemonSet"
"""Kind of the owner of pods that are bound to their node."""
_REFERENCE_AMBIENT_K = ZERO_CELSIUS_K + 22.0
_RESOURCES = {vendor: resource for resource, vendor in GPU_RESOURCE_VENDORS.items()}
_MIN_RUN_S = 1.0


class Use(NamedTuple):
    """Mean measured use of a pod over its life; None where it was not measured."""

    cpu_cores: float | None
    gpu_util: float | None
    """Of its GPUs, 0..1."""


@dataclass(frozen=True, eq=False)
class Cluster:
    """The recorded nodes that can be simulated.

    Attributes:
        nodes: the nodes, as the simulation knows them.
        names: their names in the recording, in the same order.
        left_out: nodes whose hardware is not known, and why.
    """

    nodes: tuple[SimNode, ...]
    names: tuple[str, ...]
    left_out: Mapping[str, str]

    @classmethod
    def of(cls, records: Sequence[NodeRecord]) -> Cluster:
        """Build the nodes of a recording."""
        nodes: list[SimNode] = []
        names: list[str] = []
        left_out: dict[str, str] = {}
        known = sorted((one for one in records if one.cpu_model is not None and one.cores), key=_kind)
        for number, (kind, group) in enumerate(groupby(known, key=_kind)):
            members = [one.node for one in group]
            try:
                found = sim_nodes([_group(f"kind{number}", kind, len(members))])
            except UnknownHardwareError as error:
                left_out |= dict.fromkeys(members, str(error))
                continue
            nodes += found
            names += members
        unknown = (one for one in records if one.cpu_model is None or not one.cores)
        left_out |= {one.node: "its CPU model or cores are not known" for one in unknown}
        return cls(tuple(nodes), tuple(names), left_out)

    def fleet(self) -> LiveFleet:
        """The model of these nodes, idle."""
        return LiveFleet([node.spec for node in self.nodes], ambient_k=_REFERENCE_AMBIENT_K)


def _kind(record: NodeRecord) -> tuple[str, int, float, float, str, int]:
    memory_gib = record.memory_gib or 1024.0
    return (
        record.cpu_model or "",
        record.sockets or 1,
        record.cores or 0.0,
        memory_gib,
        record.gpu_model or "",
        record.gpus,
    )


def _group(name: str, kind: tuple[str, int, float, float, str, int], count: int) -> NodeGroup:
    cpu, sockets, cores, memory_gib, gpu, gpus = kind
    gpus = gpus if gpu else 0
    return NodeGroup(
        name=name, count=count, cpu=cpu, sockets=sockets, cores=cores, memory_gib=memory_gib, gpu=gpu or None, gpus=gpus
    )


class Run(NamedTuple):
    """A pod that ran, as it was and as a job of a trace; times are s after the start of the recording."""

    job: TraceJob
    node: int
    """Index of its node."""
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Past:
    """What ran on the cluster.

    Attributes:
        runs: pods that ran, in order of their start.
        notes: what was left out or assumed, for the reader.
    """

    runs: tuple[Run, ...]
    notes: tuple[str, ...]

    @property
    def jobs(self) -> tuple[TraceJob, ...]:
        """The jobs, for a forecast."""
        return tuple(run.job for run in self.runs)


def past_of(pods: Iterable[PodRecord], use: Mapping[str, Use], cluster: Cluster, period: Period) -> Past:
    """The past of a cluster.

    A pod that ran on after the recording counts until its end; one that ran before counts from its start. A pod whose
    use was not measured is taken to use what the others use of their requests, in the mean.

    Args:
        pods: pods of the recording.
        use: mean use by uid.
        cluster: nodes of the recording.
        period: hours of the recording.
    """
    index = {name: place for place, name in enumerate(cluster.names)}
    ran = [one for one in pods if one.started_s is not None and one.node is not None]
    here = [one for one in ran if one.node in index]
    shares = [
        min(cores / one.cpu_cores, 1.0)
        for one in here
        if one.cpu_cores and (cores := use.get(one.uid, _NOT_MEASURED).cpu_cores) is not None
    ]
    usual = float(np.mean(shares)) if shares else 0.5
    runs: list[Run] = []
    for one in here:
        run = _run(one, use.get(one.uid, _NOT_MEASURED), usual, cluster, index, period)
        if run is not None:
            runs.append(run)
    unmeasured = sum(use.get(one.uid, _NOT_MEASURED).cpu_cores is None for one in here)
    without_class = sum(one.workload_class is None for one in here)
    counted = (
        (len(cluster.left_out), f"nodes are left out: {next(iter(cluster.left_out.values()), '')}"),
        (len(ran) - len(here), "pods are left out: their nodes are"),
        (unmeasured, f"pods without measured CPU use are taken to use {usual:.0%} of their requests"),
        (without_class, "pods without a known class count as standard"),
    )
    notes = tuple(f"{count:,} {text}" for count, text in counted if count)
    return Past(tuple(sorted(runs, key=lambda run: (run.start_s, run.job.job_id))), notes)


_NOT_MEASURED = Use(None, None)


def _run(
    pod: PodRecord, use: Use, usual: float, cluster: Cluster, index: Mapping[str, int], period: Period
) -> Run | None:
    """The run of a pod within the recording; None if there is none."""
    assert pod.started_s is not None
    assert pod.node is not None
    until_s = period.until_s if pod.ended_s is None else min(pod.ended_s, period.until_s)
    start_s = max(pod.started_s, period.from_s)
    if until_s - start_s < _MIN_RUN_S:
        return None
    node = index[pod.node]
    spec = cluster.nodes[node].spec
    requested = pod.cpu_cores or 0.0
    busy = usual * requested if use.cpu_cores is None else min(use.cpu_cores, spec.cores)
    # A pod may use more than it requests: then it needs that much for its work to take as long as it did.
    cores = max(requested, busy)
    gpus = min(round(pod.gpus or 0.0), spec.gpus)
    gpu_util = 0.0 if not gpus else usual if use.gpu_util is None else use.gpu_util
    length_s = until_s - start_s
    arrived_s = pod.started_s if pod.arrived_s is None else pod.arrived_s
    requests = {"cpu": f"{cores:.6f}", "memory": f"{(pod.memory_gib or 0.0) * 1024.0:.3f}Mi"}
    if gpus:
        requests[cluster.nodes[node].gpu_resource or _RESOURCES["NVIDIA"]] = str(gpus)
    bound = {HOSTNAME_LABEL: cluster.nodes[node].name} if pod.owner_kind == DAEMON else {}
    job = TraceJob(
        job_id=pod.uid,
        workload_id=f"{pod.namespace}/{pod.owner_name or pod.name}",
        workload_type=pod.owner_kind or "",
        namespace=pod.namespace,
        submit_s=max(min(arrived_s, pod.started_s), period.from_s) - period.from_s,
        requests=requests,
        annotations={} if pod.workload_class is None else {WORKLOAD_CLASS_KEY: pod.workload_class},
        node_selector=bound,
        cpu_units=busy * length_s,
        gpu_units=gpus * gpu_util * length_s,
        profile=JobProfile(cpu_utilization=busy / cores if cores else 0.0, gpu_utilization=gpu_util),
    )
    return Run(job, node, start_s - period.from_s, until_s - period.from_s)


def predicted_w(cluster: Cluster, runs: Sequence[Run], times_s: FloatArray, step_s: float) -> FloatArray:
    """Power that the model predicts for each node and step, uncapped, W, shape ``(n_nodes, n_steps)``.

    Args:
        cluster: the nodes.
        runs: what ran.
        times_s: ends of the steps, s after the start of the recording, shape ``(n_steps,)``.
        step_s: length of a step, s.
    """
    fleet = cluster.fleet()
    demands, node, gpus = _demands(runs)
    start_s, end_s = (np.array([getattr(run, name) for run in runs]) for name in ("start_s", "end_s"))
    found = np.zeros((len(cluster.nodes), len(times_s)))
    for place, time_s in enumerate(times_s.tolist()):
        # A pod counts with the share of the step in which it ran.
        share = np.clip((np.minimum(end_s, time_s) - np.maximum(start_s, time_s - step_s)) / step_s, 0.0, 1.0)
        here = np.flatnonzero(share > 0.0)
        own = Demands._make(column[here] for column in demands)
        own = own._replace(cpu_util=own.cpu_util * share[here], gpu_util=own.gpu_util * share[here])
        devices = _assign_gpus(node[here], gpus[here], fleet.gpus)
        fleet.set_load(own.load(node[here], fleet.cores, devices, fleet.n_devices))
        found[:, place] = fleet.wall_w
    return found


def _demands(runs: Sequence[Run]) -> tuple[Demands, IntArray, FloatArray]:
    rows = [demands_of(run.job.shape.cores, float(run.job.shape.gpus), activity(run.job)) for run in runs]
    columns = np.array(rows, dtype=np.float64).reshape(len(rows), len(Demands._fields)).T
    demands = Demands._make(columns)
    return demands, np.array([run.node for run in runs], dtype=np.int64), demands.gpus


def _assign_gpus(node: IntArray, gpus: FloatArray, node_gpus: FloatArray) -> IntArray:
    """Assign whole GPUs to pods, each node's from the first on.

    Args:
        node: node of each pod.
        gpus: number of GPUs of each pod.
        node_gpus: number of GPUs of each node; pods in excess of them get none.

    Returns:
        Indices of each pod's GPUs, shape ``(n_pods, maximum GPUs of a pod)``; -1 where it has fewer.
    """
    wanted = gpus.astype(np.int64)
    order = np.argsort(node, kind="stable")
    before = np.cumsum(wanted[order]) - wanted[order]
    here = node[order]
    first = np.zeros_like(wanted)
    first[order] = before - before[np.searchsorted(here, here)]
    places = np.arange(wanted.max(initial=1))
    devices = first[:, np.newaxis] + places
    given = (places < wanted[:, np.newaxis]) & (devices < node_gpus[node][:, np.newaxis])
    return np.where(given, devices, -1)
