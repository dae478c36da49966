"""What the demo's jobs use without power management: kube-scheduler alone and no caps, in virtual time."""

from __future__ import annotations

from joulie.domain.quantities import JOULES_PER_KWH
from joulie_lab.adapters.job_trace import load_jobs
from joulie_lab.apps.demo.runtime import DemoRun
from joulie_lab.apps.demo.scenario import demo_groups
from joulie_lab.apps.demo.snapshot import Snapshot
from joulie_lab.apps.demo.view import clock
from joulie_lab.simulation.experiment.outcome import Outcome
from joulie_lab.simulation.native.nodes import sim_nodes
from joulie_lab.simulation.native.runtime import Setup, run


def without_management(demo: DemoRun, duration_s: float) -> Outcome:
    """Run the demo's jobs on its nodes for this many simulated seconds, without Joulie."""
    jobs = load_jobs(demo.write_trace(), skip_bad_lines=False).jobs
    setup = Setup(nodes=sim_nodes(demo_groups(demo.nodes)), duration_s=duration_s, seed=demo.seed, n_samples=2)
    return run(setup, jobs)


def difference(now: Snapshot, baseline: Outcome) -> str:
    """What power management saved and what it cost in time, in two lines; `baseline` is as long as the demo was."""
    if not now.finished:
        return "saved    unknown: the demo ended before its jobs were done"
    before_kwh = baseline.it_j / JOULES_PER_KWH
    saved_kwh = before_kwh - now.it_kwh
    verb, compared = ("saved", "of") if saved_kwh >= 0.0 else ("used ", "more than")
    ends_s = [job.end_s for job in baseline.jobs]
    done_s = max((end_s for end_s in ends_s if end_s is not None), default=0.0)
    without = "had not ended by then" if None in ends_s else f"ended {clock(now.simulated_s - done_s)} earlier"
    return (
        f"{verb}    {abs(saved_kwh):.2f} kWh ({abs(saved_kwh) / before_kwh:.1%}) {compared} the {before_kwh:.2f} kWh"
        f" without power management;\n         without it, the last job {without}"
    )
