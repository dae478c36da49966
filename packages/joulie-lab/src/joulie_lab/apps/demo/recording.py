"""Record the demo without a cluster: the same nodes, jobs and policy in virtual time, as an animated SVG.

The live demo follows the clock, so no two runs are alike. The native runtime makes the same decisions in virtual time:
a seed always gives the same recording, so a test can compare the committed file with what the code makes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from joulie.domain.control import controlled_node
from joulie.domain.quantities import JOULES_PER_KWH
from joulie.domain.scoring.extender import NodeClass
from joulie_lab.adapters.job_trace import load_jobs
from joulie_lab.apps.demo.programs import DRAIN_SETTLING_S, POLICY, POWER_TREND_WINDOW_S, RECONCILE_INTERVAL_S
from joulie_lab.apps.demo.runtime import DemoRun
from joulie_lab.apps.demo.scenario import demo_groups
from joulie_lab.apps.demo.snapshot import NodeSnapshot, Snapshot
from joulie_lab.apps.demo.terminal_svg import animated_svg
from joulie_lab.apps.demo.view import View
from joulie_lab.apps.experiment.settings import build_control
from joulie_lab.program.facility import open_plant
from joulie_lab.simulation.experiment.outcome import JobOutcome, Outcome
from joulie_lab.simulation.experiment.scenario import ControlTimes, Variant
from joulie_lab.simulation.native.nodes import SimNode, sim_nodes
from joulie_lab.simulation.native.runtime import Sample, Setup, run
from joulie_lab.simulation.scenario import Cooling, LinearCooling

_STEP_S = 20.0
"""Simulated time between two snapshots, s."""
_STEPS_PER_FRAME = 12
_LENGTH_S = 7200.0
"""Longest recording, simulated s; it ends when all jobs are done."""


def record_svg(demo: DemoRun) -> tuple[str, Snapshot]:
    """Run the demo in virtual time: an animated SVG of a terminal, and the last snapshot."""
    view = View(f"Joulie on {demo.nodes} simulated nodes, in virtual time")
    snapshots = record(demo)
    rendered = [view.render(snapshot) for snapshot in snapshots]
    chosen = range(0, len(rendered), _STEPS_PER_FRAME)
    busiest = max(range(len(chosen)), key=lambda frame: snapshots[chosen[frame]].running)
    svg = animated_svg([rendered[index] for index in chosen], title="joulie demo", poster=busiest)
    return svg, snapshots[-1]


def record(demo: DemoRun) -> list[Snapshot]:
    """Run the demo in virtual time: its snapshots until all jobs are done."""
    nodes = sim_nodes(demo_groups(demo.nodes))
    interval_s = RECONCILE_INTERVAL_S * demo.speed
    operator = {
        **POLICY,
        "DRAIN_SETTLING": f"{DRAIN_SETTLING_S * demo.speed:g}s",
        "POWER_TREND_WINDOW": f"{POWER_TREND_WINDOW_S * demo.speed:g}s",
    }
    times = ControlTimes(operator_s=interval_s, agent_s=interval_s)
    setup = Setup(
        nodes=nodes,
        duration_s=_LENGTH_S,
        control=build_control(Variant(name="demo", operator=operator), times),
        scheduler="joulie-energy",
        times=times,
        plant=lambda peak_w: open_plant(Cooling(linear=LinearCooling()), peak_w),
        seed=demo.seed,
        n_samples=round(_LENGTH_S / _STEP_S) + 1,
    )
    samples: list[Sample] = []
    jobs = load_jobs(demo.write_trace(), skip_bad_lines=False).jobs
    outcome = run(setup, jobs, on_sample=samples.append)
    snapshots = [_snapshot(nodes, outcome, sample, index) for index, sample in enumerate(samples)]
    done = next((index for index, snapshot in enumerate(snapshots) if snapshot.finished), len(snapshots) - 1)
    return snapshots[: done + 1]


def _snapshot(nodes: Sequence[SimNode], outcome: Outcome, sample: Sample, index: int) -> Snapshot:
    series = outcome.series
    now_s = float(series.time_s[index])
    on_node: dict[str, list[JobOutcome]] = {}
    for job in outcome.jobs:
        if job.start_s is not None and job.start_s <= now_s and (job.end_s is None or now_s < job.end_s):
            on_node.setdefault(job.node, []).append(job)
    return Snapshot(
        simulated_s=now_s,
        it_power_w=float(series.it_w[index]),
        cooling_w=float(series.cooling_w[index]),
        it_kwh=sample.it_j / JOULES_PER_KWH,
        cooling_kwh=sample.cooling_j / JOULES_PER_KWH,
        waiting=int(series.waiting[index]),
        running=int(series.running[index]),
        completed=sum(job.end_s is not None and job.end_s <= now_s for job in outcome.jobs),
        total=len(outcome.jobs),
        nodes=tuple(
            _node_snapshot(node, sample, position, on_node.get(node.name, ())) for position, node in enumerate(nodes)
        ),
    )


def _node_snapshot(node: SimNode, sample: Sample, position: int, jobs: Sequence[JobOutcome]) -> NodeSnapshot:
    twins = sample.twins
    assert twins is not None
    limits = controlled_node(node.name, node.hardware).limits
    node_class = NodeClass(int(twins.node_class[position]))
    return NodeSnapshot(
        name=node.name,
        schedulable_class=node_class.name.lower(),
        power_w=float(twins.measured_w[position]),
        limit_w=float(twins.capped_w[position]),
        tdp_w=limits[0] + limits[1],
        headroom_score=float(twins.headroom_score[position]),
        cooling_stress_score=float(np.asarray(twins.cooling_stress_pct)[position]),
        cpu_cap_pct=float(twins.cpu_cap_fraction[position]) * 100.0,
        gpu_cap_pct=float(twins.gpu_cap_fraction[position]) * 100.0 if node.spec.gpus else None,
        pods=len(jobs),
        performance_pods=sum(job.workload_class == "performance" for job in jobs),
        control="applied" if node_class is NodeClass.ECO else "none",
    )
