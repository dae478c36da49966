"""`joulie experiment` on a real control plane: the same trace gives what it gives natively."""

from pathlib import Path

import pytest

from joulie.apps.experiment.control_plane import run_on_control_plane
from joulie.apps.experiment.native import run_native
from joulie.simulation.experiment.fidelity import fidelity
from joulie.simulation.experiment.files import load_experiment
from joulie.simulation.experiment.outcome import JobEnd, Outcome
from joulie.simulation.experiment.plan import PhysicsChoice

pytestmark = [pytest.mark.control_plane, pytest.mark.slow]

SEED = 1
TIME_SCALE = 150.0
# 71 jobs in three quarters of an hour, gangs among them; a quarter of them wait for room.
SHORT_FORM = (
    "workload.generate.arrivals.workloads_per_hour=30",
    "workload.generate.duration_scale=0.5",
    "control={operator_s: 60, agent_s: 30}",
    "hours=0.75",
    "drain_hours=0.75",
)


def both(variant_name: str, folder: Path) -> tuple[Outcome, Outcome]:
    """A variant natively and on a control plane."""
    experiment = load_experiment("quick", sets=SHORT_FORM)
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
    assert {job.end for job in played.jobs} == {JobEnd.COMPLETED}
    assert played.series.performance_pods_on_eco.max() == 0
    assert played.series.eco_nodes.max() == native.series.eco_nodes.max() == (4 if variant == "B" else 0)
    assert played.cooling_j == pytest.approx(native.cooling_j, rel=0.05)
