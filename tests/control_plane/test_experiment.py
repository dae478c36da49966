"""`joulie experiment` on a real control plane: the same trace gives what it gives natively."""

import json
from pathlib import Path

import pytest

from joulie_lab.adapters.job_trace import write_trace
from joulie_lab.apps.experiment.control_plane import run_on_control_plane
from joulie_lab.apps.experiment.jobs import trace_jobs
from joulie_lab.apps.experiment.native import run_native
from joulie_lab.simulation.experiment.fidelity import fidelity
from joulie_lab.simulation.experiment.files import load_experiment
from joulie_lab.simulation.experiment.outcome import JobEnd, Outcome
from joulie_lab.simulation.experiment.plan import PhysicsChoice
from joulie_lab.simulation.experiment.scenario import Experiment
from joulie_lab.simulation.trace import JobProfile, TraceJob

pytestmark = [pytest.mark.control_plane, pytest.mark.slow]

SEED = 1
TIME_SCALE = 100.0
# 71 jobs in three quarters of an hour, gangs among them; a quarter of them wait for room.
SHORT_FORM = (
    "workload.generate.arrivals.workloads_per_hour=30",
    "workload.generate.duration_scale=0.5",
    "control={operator_s: 60, agent_s: 30}",
    "hours=0.75",
    "drain_hours=0.75",
)


NOWHERE = {
    "too-large": "cores",
    "other-vendor": "amd.com/gpu",
    "wide-0": "gang",
    "wide-1": "gang",
    "wide-2": "gang",
}
"""Jobs that the cluster can never hold, and a word of why."""


def with_bad_jobs(experiment: Experiment, trace: Path) -> Experiment:
    """The experiment with its jobs in a file, beside broken lines and jobs that no node can hold."""

    def job(job_id: str, requests: dict[str, str], *, gang: bool = False) -> TraceJob:
        name = job_id.partition("-")[0] if gang else job_id
        profile = JobProfile(cpu_utilization=0.5)
        return TraceJob(job_id, name, 60.0, requests, 600.0, profile=profile, gang=gang)

    bad = [
        job("too-large", {"cpu": "5000"}),
        job("other-vendor", {"cpu": "1", "amd.com/gpu": "64"}),
        *(job(f"wide-{member}", {"cpu": "1", "nvidia.com/gpu": "8"}, gang=True) for member in range(3)),
    ]
    write_trace(trace, [*trace_jobs(experiment, SEED).jobs, *bad])
    with trace.open("a") as lines:
        lines.write('{"type": "job", "jobId": "cut off\n')
        lines.write('{"type": "job", "jobId": "late", "submitTimeOffsetSec": -1, "podTemplate": {"requests": {}}}\n')
    played = {"trace": str(trace), "skip_bad_lines": True}
    return Experiment.model_validate_json(json.dumps(experiment.model_dump(mode="json") | {"workload": played}))


def both(variant_name: str, folder: Path) -> tuple[Outcome, Outcome]:
    """A variant natively and on a control plane."""
    experiment = with_bad_jobs(load_experiment("quick", sets=SHORT_FORM), folder / "trace.jsonl")
    (variant,) = (one for one in experiment.variants if one.name == variant_name)
    seen: list[float] = []
    native = run_native(experiment, variant, SEED, PhysicsChoice())
    played = run_on_control_plane(
        experiment,
        variant,
        SEED,
        PhysicsChoice(),
        time_scale=TIME_SCALE,
        folder=folder,
        progress=lambda done_s, _total_s, _words: seen.append(done_s),
    )
    assert seen == sorted(seen)
    assert seen[-1] == played.duration_s == native.duration_s
    return native, played


@pytest.mark.usefixtures("control_plane_binaries")
@pytest.mark.parametrize("variant", ["A", "B"])
def test_a_control_plane_gives_what_the_native_runtime_gives(variant: str, tmp_path: Path) -> None:
    native, played = both(variant, tmp_path)
    compared = fidelity(native, played)
    assert compared.holds, compared
    for outcome in (native, played):
        ends = {job.job_id: (job.end, job.problem) for job in outcome.jobs}
        nowhere = {job_id: ends.pop(job_id) for job_id in NOWHERE}
        assert {end for end, _ in nowhere.values()} == {JobEnd.UNSCHEDULABLE}
        assert [job_id for job_id, (_, why) in nowhere.items() if NOWHERE[job_id] not in why] == []
        assert {end for end, _ in ends.values()} == {JobEnd.COMPLETED}
        assert sum("left out" in note for note in outcome.notes) == 2
    assert played.series.performance_pods_on_eco.max() == 0
    assert played.series.eco_nodes.max() == native.series.eco_nodes.max() == (4 if variant == "B" else 0)
    assert played.cooling_j == pytest.approx(native.cooling_j, rel=0.05)
