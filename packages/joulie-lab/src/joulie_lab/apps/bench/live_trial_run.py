"""Runs a PowerTrial on a real control plane with simulated nodes, many times faster than the clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.api.v1alpha1 import PowerTrial
from joulie.adapters.kubernetes.power_trials import protocol_of
from joulie.domain.mode import Mode
from joulie.domain.quantities import JOULES_PER_KWH
from joulie.domain.recording import Exit, PodRecord
from joulie.domain.trial.draw import all_pairs
from joulie.domain.trial.measure import Metered
from joulie.domain.trial.protocol import MIN_PAIRS, Arm, Block, Protocol
from joulie.domain.units import FloatArray
from joulie.program.errors import UserError
from joulie_lab.adapters.job_trace import write_trace
from joulie_lab.apps.experiment.control_plane.pace import operator_variables, seconds
from joulie_lab.apps.experiment.control_plane.site import Site
from joulie_lab.benchmarks.recorded_week import node_record
from joulie_lab.control_plane import LocalControlPlane, wait_for
from joulie_lab.control_plane.chart import find_chart
from joulie_lab.control_plane.programs import LOOPBACK, Ports, simulated_devices
from joulie_lab.simulation.experiment.scenario import ControlTimes, Variant
from joulie_lab.simulation.native.nodes import SimNode
from joulie_lab.simulation.trace import TraceJob

TRIAL = "trial"
BLOCK_S = 60.0
"""Wall time of a block, s: the shortest that a PowerTrial can have."""
WASHOUT_S = 10.0
"""Wall time at the beginning of each block that is not measured, s; a PowerTrial counts its own in minutes."""
_PATH = f"/apis/joulie.io/v1alpha1/powertrials/{TRIAL}"
_STEP_S = 60.0
_TIMES = ControlTimes()
_VARIANT = Variant(name=TRIAL, operator={"POLICY_TYPE": "static_partition", "STATIC_HP_FRAC": "0"})
_SAMPLE_S = 0.5
_WARM_UP_S = 15.0
_PATIENCE_S = 240.0
_SETTLED_S = 30.0
"""Wall time after the beginning of a block at which its labels and caps are looked at, s."""


@dataclass(frozen=True)
class Plan:
    """A run.

    Attributes:
        nodes: the nodes.
        jobs: what runs on them, for longer than the trial.
        time_scale: simulated seconds per second of wall time.
        max_failures_percent: bound of the trial's guard.
        blocks: number of blocks to run before the trial is stopped; None for all.
    """

    nodes: Sequence[SimNode]
    jobs: Sequence[TraceJob]
    time_scale: float
    max_failures_percent: float
    blocks: int | None = None


@dataclass(frozen=True)
class Seen:
    """A block as it was found on the control plane, half of it later.

    Attributes:
        block: the block.
        labelled: nodes whose label joulie.io/mode is that of the draw.
        capped: nodes whose CPUs are capped if they are enforced, and are not if they are observed.
    """

    block: Block
    labelled: int
    capped: int


@dataclass(frozen=True, eq=False)
class LiveTrial:
    """What came of a run; times are simulated seconds after its start, so that powers are those of the nodes.

    Attributes:
        protocol: the operator's draw.
        metered: what the nodes' meters told.
        pods: the jobs as pods.
        seen: the blocks on the control plane.
        switched_s: wall time from the beginning of each block until all CPUs were capped as its draw says, s; the
            length of a block where that was not seen.
        reason: reason of the trial's condition at its end.
        labels_left: nodes that still carried a label of the trial after it.
        scale: simulated seconds that passed in a second of wall time.
    """

    protocol: Protocol
    metered: Metered
    pods: Sequence[PodRecord]
    seen: Sequence[Seen]
    switched_s: Sequence[float]
    reason: str
    labels_left: int
    scale: float


@dataclass
class Samples:
    """Clocks and meters: wall time, s since the epoch; simulated time, s; energy by node, J."""

    wall_s: list[float]
    simulated_s: list[float]
    energy_j: list[list[float]]


def run_trial(plan: Plan, folder: Path, tell: Callable[[str], None], logs: Path | None = None) -> LiveTrial:
    """Run a PowerTrial from its draw to its end.

    Args:
        plan: what is run.
        folder: folder for the trace.
        tell: told what happens.
        logs: folder for the logs of the programs.

    Raises:
        UserError: the chart was not found.
    """
    with _programs(plan, folder, logs) as (site, url):
        site.post(f"{url}/run/start")
        wait_for(lambda: _pods(site, url)[0] >= len(plan.nodes) // 2, _PATIENCE_S, "jobs run")
        time.sleep(_WARM_UP_S)
        spec: dict[str, Any] = {
            "pairs": MIN_PAIRS,
            "blockMinutes": round(BLOCK_S / 60.0),
            "washoutMinutes": 0,
            "seed": 1,
            "guard": {"maxFailuresPercent": plan.max_failures_percent},
        }
        body = {"apiVersion": "joulie.io/v1alpha1", "kind": "PowerTrial", "metadata": {"name": TRIAL}, "spec": spec}
        site.plane.request("POST", _PATH.rpartition("/")[0], body)
        samples = Samples([], [], [])
        names_of = [node.name for node in plan.nodes]
        _sample(site, url, names_of, samples)
        wait_for(lambda: protocol_of(_trial(site)) is not None, _PATIENCE_S, "the operator draws the trial")
        protocol = protocol_of(_trial(site))
        assert protocol is not None
        tell(f"{len(names_of)} nodes, {2 * len(protocol.order)} blocks of {BLOCK_S:g} s")
        seen, switched_s = _follow(plan, site, url, protocol, samples, tell)
        if plan.blocks is not None:
            patch = {"spec": {"stop": True}}
            site.plane.request("PATCH", _PATH, patch, content_type="application/merge-patch+json")
        reasons = ("Stopped",) if plan.blocks is not None else ("Completed", "GuardBroken")
        wait_for(lambda: _reason(site) in reasons, _PATIENCE_S, "the trial ends")
        wait_for(lambda: _labelled(site) == 0, _PATIENCE_S, "the labels go")
        jobs = site.get(f"{url}/debug/jobs")["jobs"]
        reason, left = _reason(site), _labelled(site)
    return put_together(plan, protocol, samples, jobs, seen, switched_s, reason, left)


@contextmanager
def _programs(plan: Plan, folder: Path, logs: Path | None) -> Iterator[tuple[Site, str]]:
    chart = find_chart()
    if chart is None:
        raise UserError("Joulie's chart, which grants the programs' rights, was not found: run this in the source tree")
    ports, trace = Ports.free(), folder / "trace.jsonl.gz"
    write_trace(trace, plan.jobs)
    agent, operator = f"{LOOPBACK}:{ports.agent}", f"{LOOPBACK}:{ports.operator}"
    with LocalControlPlane(log_folder=logs) as plane:
        site = Site(plane, chart)
        try:
            site.add_cluster(plan.nodes, set())
            simulator = {
                "SIM_ADDR": f"{LOOPBACK}:{ports.simulator}",
                "SIM_WORKLOAD_TRACE_PATH": str(trace),
                "SIM_TIME_SCALE": f"{plan.time_scale:g}",
                "SIM_TICK_INTERVAL": "100ms",
                "SIM_START": "on-request",
                "SIM_COOLING": "none",
            }
            _start(site, "simulator", "joulie-simulator", ports.simulator_url, simulator)
            of_agent = {
                "MODE": Mode.OBSERVE.value,
                "RECONCILE_INTERVAL": seconds(_TIMES.agent_s / plan.time_scale),
                "METRICS_ADDR": agent,
                "STATE_DIR": str(folder),
                "RESTORE_ON_EXIT": "false",
                **simulated_devices(ports.simulator_url),
            }
            _start(site, "agent", "joulie-agent-pool", f"http://{agent}", of_agent)
            of_operator = {
                "MODE": Mode.OBSERVE.value,
                "METRICS_ADDR": operator,
                "TELEMETRY_HTTP_ENDPOINT": f"{ports.simulator_url}/telemetry",
                "POWER_SOURCES": "http",
                "PROMETHEUS_ADDRESS": "none",
                "AGENT_POD_SELECTOR": "",
                "LEADER_ELECT": "false",
                "ENABLE_CLASSIFIER": "false",
                "SIM_TIME_SCALE": f"{plan.time_scale:g}",
                **operator_variables(_VARIANT, _TIMES, plan.time_scale),
            }
            _start(site, "operator", "joulie-operator", f"http://{operator}", of_operator)
            twins = "/apis/joulie.io/v1alpha1/nodetwins"
            wait_for(
                lambda: len(plane.request("GET", twins)["items"]) == len(plan.nodes), _PATIENCE_S, "all nodes are known"
            )
            yield site, ports.simulator_url
        finally:
            site.close()


def _start(site: Site, name: str, account: str, url: str, variables: Mapping[str, str]) -> None:
    site.start(name, account, url, variables)
    wait_for(lambda: site.ready(name), _PATIENCE_S, f"{name} is ready")


def _follow(
    plan: Plan, site: Site, url: str, protocol: Protocol, samples: Samples, tell: Callable[[str], None]
) -> tuple[list[Seen], list[float]]:
    """Read clocks and meters until the last block is over, look at each block once, and at when its caps are there."""
    blocks = list(protocol.blocks())[: plan.blocks]
    names_of, seen, switched_s = [node.name for node in plan.nodes], list[Seen](), [BLOCK_S] * len(blocks)
    while samples.wall_s[-1] <= blocks[-1].end_s:
        time.sleep(_SAMPLE_S)
        _sample(site, url, names_of, samples)
        now_s = samples.wall_s[-1]
        block = protocol.block_at(now_s)
        if block is None or block.index >= len(blocks):
            continue
        if switched_s[block.index] == BLOCK_S and _capped(site, url, protocol, block) == len(names_of):
            switched_s[block.index] = now_s - block.start_s
        if len(seen) == block.index and now_s - block.start_s >= _SETTLED_S:
            seen.append(_look(site, url, protocol, block))
            tell(f"block {block.index + 1}: {block.treated}, {_pods(site, url)[1]} jobs done, trial {_reason(site)}")
    return seen, switched_s


def _look(site: Site, url: str, protocol: Protocol, block: Block) -> Seen:
    arms = protocol.arms_at(block.start_s)
    modes = {
        one["metadata"]["name"]: one["metadata"]["labels"].get(names.MODE_LABEL)
        for one in site.plane.request("GET", "/api/v1/nodes")["items"]
    }
    wanted = {Arm.TREATMENT: Mode.ENFORCE, Arm.CONTROL: Mode.OBSERVE}
    return Seen(
        block,
        labelled=sum(modes.get(name) == wanted[arm] for name, arm in arms.items()),
        capped=_capped(site, url, protocol, block),
    )


def _capped(site: Site, url: str, protocol: Protocol, block: Block) -> int:
    """Number of nodes whose CPUs are capped as the block's draw says."""
    nodes = {one["node"]: one for one in site.get(f"{url}/debug/nodes")["nodes"]}
    arms = protocol.arms_at(block.start_s)
    return sum(_is_capped(nodes[name]) == (arm is Arm.TREATMENT) for name, arm in arms.items())


def _is_capped(state: Mapping[str, Any]) -> bool:
    cap_w, limits = state["cpu"]["capWattsPerPackage"], state["cpu"]["capRange"]
    return cap_w is not None and cap_w < limits["maxWattsPerSocket"]


def _sample(site: Site, url: str, names_of: Sequence[str], samples: Samples) -> None:
    before_s = time.time()
    answer = site.get(f"{url}/debug/energy")
    samples.wall_s.append((before_s + time.time()) / 2.0)
    samples.simulated_s.append(answer["simulatedSeconds"])
    samples.energy_j.append([answer["nodesKwh"][name] * JOULES_PER_KWH for name in names_of])


def _trial(site: Site) -> PowerTrial:
    return msgspec.convert(site.plane.request("GET", _PATH), PowerTrial)


def _reason(site: Site) -> str:
    return next((one.reason for one in _trial(site).status.conditions), "")


def _labelled(site: Site) -> int:
    found = site.plane.request("GET", "/api/v1/nodes")["items"]
    return sum(bool({names.TRIAL_LABEL, names.MODE_LABEL} & one["metadata"]["labels"].keys()) for one in found)


def _pods(site: Site, url: str) -> tuple[int, int]:
    """Number of jobs that run, and of those that are done."""
    site.raise_if_broken()
    jobs = site.get(f"{url}/run")["jobs"]
    return jobs["running"], jobs["completed"]


def put_together(
    plan: Plan,
    protocol: Protocol,
    samples: Samples,
    jobs: Sequence[Mapping[str, Any]],
    seen: Sequence[Seen],
    switched_s: Sequence[float],
    reason: str,
    labels_left: int,
) -> LiveTrial:
    """Put everything on the simulated clock, on which energy and runtimes were measured."""
    blocks = list(protocol.blocks())[: plan.blocks]
    start_s, end_s = np.interp([blocks[0].start_s, blocks[-1].end_s], samples.wall_s, samples.simulated_s).tolist()
    block_s = (end_s - start_s) / len(blocks)
    on_simulated = replace(protocol, start_s=start_s, block_s=block_s, washout_s=block_s * WASHOUT_S / BLOCK_S)
    steps = round(block_s / _STEP_S)
    edges_s = start_s + np.arange(len(blocks) * steps + 1) * (block_s / steps)
    energy_j = np.array(samples.energy_j).T
    power_w: FloatArray = np.array(
        [np.diff(np.interp(edges_s, samples.simulated_s, own_j)) / (block_s / steps) for own_j in energy_j]
    )
    records = [node_record(node) for node in plan.nodes]
    by_id = {job.job_id: job for job in plan.jobs}
    pods = [_pod(one, by_id[one["jobId"]]) for one in jobs if one["startedSeconds"] is not None]
    scale = (end_s - start_s) / (blocks[-1].end_s - blocks[0].start_s)
    metered = Metered(records, start_s, block_s / steps, power_w)
    return LiveTrial(on_simulated, metered, pods, seen, switched_s, reason, labels_left, scale)


def _pod(one: Mapping[str, Any], job: TraceJob) -> PodRecord:
    done = one["completedSeconds"] is not None
    return PodRecord(
        uid=job.job_id,
        namespace=job.namespace,
        name=job.job_id,
        owner_kind="Job",
        owner_name=job.workload_id,
        workload_class="standard",
        cpu_cores=job.shape.cores,
        memory_gib=job.shape.memory_gib,
        gpus=0.0,
        arrived_s=one["submittedSeconds"],
        started_s=one["startedSeconds"],
        ended_s=one["completedSeconds"],
        node=one["node"],
        exit=Exit.SUCCEEDED if done else None,
    )


def trial_s(blocks: int | None) -> float:
    """Wall time of a trial, s."""
    return BLOCK_S * (2 * all_pairs(MIN_PAIRS) if blocks is None else blocks)
