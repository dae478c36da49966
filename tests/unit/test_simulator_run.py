"""Runs of the simulator service without a cluster: its clock, exact ends of jobs, and what it leaves behind."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from joulie.adapters.kubernetes.errors import ApiError, ConflictError, ConnectionLostError
from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie_lab.apps.simulator.clock import SimulatedClock
from joulie_lab.apps.simulator.cluster import ClusterSync
from joulie_lab.apps.simulator.main import build_world
from joulie_lab.apps.simulator.metrics import SimulatorMetrics
from joulie_lab.apps.simulator.recorder import Recorder
from joulie_lab.apps.simulator.results import ResultsError, read_outcome, write_outcome
from joulie_lab.apps.simulator.run import Run, RunState
from joulie_lab.apps.simulator.settings import SimulatorSettings
from joulie_lab.apps.simulator.trace_player import JobState, TracePlayer
from joulie_lab.apps.simulator.world import Place, World
from joulie_lab.simulation.experiment.outcome import Drain, JobEnd
from joulie_lab.simulation.live.jobs import RunningPod, activity
from joulie_lab.simulation.live.nodes import NodeSpec
from joulie_lab.simulation.trace import JobProfile, TraceJob

DURATION_S = 1000.0
SAMPLES = 50


class Wall:
    """A wall clock that is set by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def job(job_id: str, **changes: Any) -> TraceJob:
    """Four cores at full use for 100 s."""
    facts: dict[str, Any] = {"job_id": job_id, "workload_id": job_id, "submit_s": 0.0, "requests": {"cpu": "4"}}
    facts |= {"cpu_units": 400.0, "profile": JobProfile(1.0), "cpu_class": "compute_bound"}
    return TraceJob(**facts | changes)


def world() -> World:
    made = build_world(SimulatorSettings())
    cpu = BUILTIN_CATALOGUE.cpu("AMD EPYC 9654").model
    assert cpu is not None
    made.set_nodes({NodeSpec(name, cpu, 2, 192.0): Place() for name in ("n0", "n1")})
    return made


def started(player: TracePlayer, made: World, *job_ids: str) -> None:
    """Jobs run on n0 from now on."""
    for record in player.due(made.time_s):
        player.submitted(record)
        if record.job.job_id in job_ids:
            player.started(record.pod_key, "n0", made.time_s)
            gang, size = player.gang(record.job)
            pod = RunningPod(record.pod_key, "n0", 4.0, 0.0, activity(record.job), record.work, gang, size)
            made.put_pod(pod)


def run_of(*jobs: TraceJob) -> tuple[Run, Wall]:
    made, wall, player = world(), Wall(), TracePlayer.of(jobs, "s")
    clock = SimulatedClock(10.0, wall, duration_s=DURATION_S)
    return Run(made, clock, player, Recorder(made, player, DURATION_S, samples=SAMPLES)), wall


def test_time_begins_when_told_and_stops_at_the_end() -> None:
    run, wall = run_of()
    wall.now_s += 50.0
    run.catch_up()
    assert (run.state, run.world.time_s) == (RunState.WAITING, 0.0)
    run.start()
    wall.now_s += 2.0
    run.start()
    run.catch_up()
    assert (run.state, run.world.time_s) == (RunState.RUNNING, 20.0)
    wall.now_s += 1e6
    run.catch_up()
    assert (run.state, run.world.time_s) == (RunState.OVER, DURATION_S)


class LosesAnAnswer:
    """An API server whose first answer never arrives, though it has created the pod."""

    def __init__(self) -> None:
        self.pods: set[str] = set()

    async def create(self, resource: Any, pod: dict[str, Any], namespace: str) -> None:
        del resource, namespace
        name = pod["metadata"]["name"]
        if name in self.pods:
            raise ConflictError(409, "AlreadyExists", "it exists")
        self.pods.add(name)
        raise ConnectionLostError("timed out", sent=True)


def test_a_job_whose_creation_was_not_answered_is_not_lost() -> None:
    run, _ = run_of(job("a"))
    client: Any = LosesAnAnswer()
    side = ClusterSync(client, run, SimulatorMetrics(run.world), node_selector="", catalogue=BUILTIN_CATALOGUE)
    run.start()

    async def ticks() -> None:
        await side.tick()
        assert run.player is not None
        assert run.player.records["a"].state is JobState.WAITING
        await side.tick()

    asyncio.run(ticks())
    assert run.player is not None
    assert run.player.records["a"].state is JobState.SUBMITTED


class Refuses:
    """An API server that answers the first writes to finished pods with these errors."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls: list[str] = []

    async def patch(self, _resource: Any, name: str, _body: Any, **_where: Any) -> None:
        self.calls.append(f"patch {name}")
        if self.errors:
            raise self.errors.pop(0)

    async def delete(self, _resource: Any, name: str, *_where: Any, **_more: Any) -> None:
        self.calls.append(f"delete {name}")


@pytest.mark.parametrize(
    ("errors", "calls"),
    [
        ([], ["patch a", "delete a"]),
        (
            [ApiError(500, "InternalError", "etcd"), ConnectionLostError("timed out", sent=True)],
            ["patch a"] * 3 + ["delete a"],
        ),
        ([ApiError(403, "Forbidden", "no")], ["patch a"]),
    ],
)
def test_the_pod_of_a_job_that_is_done_is_removed_as_soon_as_the_server_lets_it(
    errors: list[Exception], calls: list[str]
) -> None:
    run, wall = run_of(job("a"))
    assert run.player is not None
    client: Any = Refuses(*errors)
    metrics = SimulatorMetrics(run.world)
    side = ClusterSync(client, run, metrics, node_selector="", catalogue=BUILTIN_CATALOGUE)
    # The nodes of this world are none of the cache.
    side._nodes_changed = False
    run.start()
    started(run.player, run.world, "a")

    async def ticks() -> None:
        for _ in range(5):
            wall.now_s += 11.0
            await side.tick()

    asyncio.run(ticks())
    assert client.calls == calls
    assert (
        metrics.registry.get_sample_value("joulie_sim_job_completed_total", {"class": "standard", "node": "n0"}) == 1.0
    )


def test_how_closely_the_clock_was_followed_is_told() -> None:
    run, _ = run_of()
    assert run.recorder is not None
    assert run.recorder.outcome(cooled=False).pace is None
    for clock_s in (7.0, 7.1, 7.2, 8.3):
        run.recorder.polled(clock_s)
    pace = run.recorder.outcome(cooled=False).pace
    assert pace is not None
    assert (pace.mean_s, pace.p99_s) == pytest.approx((1.3 / 3.0, 1.1 - 0.02 * 1.0))


def test_results_do_not_hang_on_how_often_the_world_is_looked_at() -> None:
    def outcome(ticks: int) -> tuple[float, float | None, float]:
        run, wall = run_of(job("a"), job("b", cpu_units=1000.0))
        assert run.player is not None
        assert run.recorder is not None
        run.start()
        started(run.player, run.world, "a", "b")
        for _ in range(ticks):
            wall.now_s += DURATION_S / 10.0 / ticks
            run.catch_up()
        found = run.recorder.outcome(cooled=True)
        assert found.cooling_j is not None
        assert found.jobs[0].end is JobEnd.COMPLETED
        return found.it_j, found.jobs[0].end_s, found.cooling_j

    seldom, often = outcome(1), outcome(40)
    assert seldom == pytest.approx(often, rel=1e-4)
    assert seldom[1] == pytest.approx(100.0, abs=0.1)


def test_the_rest_of_a_run_can_be_worked_out_at_once() -> None:
    run, wall = run_of(job("a"))
    assert run.recorder is not None
    run.start()
    wall.now_s += 1.0
    run.finish()
    run.catch_up()
    outcome = run.recorder.outcome(cooled=False)
    assert (run.state, outcome.duration_s, outcome.cooling_j) == (RunState.OVER, DURATION_S, None)
    assert len(outcome.series.time_s) == SAMPLES + 1
    assert np.trapezoid(outcome.series.it_w, outcome.series.time_s) == pytest.approx(outcome.it_j, rel=1e-2)
    assert outcome.jobs[0].end is JobEnd.WAITING


def test_a_service_without_an_end_cannot_be_finished() -> None:
    run = Run(world(), SimulatedClock(1.0, Wall()), None, None)
    with pytest.raises(ValueError, match="SIM_DURATION"):
        run.finish()


def test_drains_before_the_start_are_no_part_of_the_run() -> None:
    run, wall = run_of()
    recorder = run.recorder
    assert recorder is not None
    recorder.node("n0", eco=False, draining=True)
    recorder.node("n0", eco=True, draining=False)
    recorder.node("n1", eco=False, draining=True)
    run.start()
    wall.now_s += 3.0
    run.catch_up()
    recorder.node("n1", eco=True, draining=False)
    recorder.node("n0", eco=False, draining=True)
    drains = recorder.outcome(cooled=False).drains
    assert drains == (Drain("n1", 0.0, 30.0), Drain("n0", 30.0, None))


def test_performance_pods_on_eco_nodes_are_seen() -> None:
    run, _ = run_of(job("a", annotations={"joulie.io/workload-class": "performance"}), job("b"))
    assert run.recorder is not None
    assert run.player is not None
    started(run.player, run.world, "a", "b")
    run.recorder.node("n0", eco=True, draining=False)
    run.start()
    run.catch_up()
    series = run.recorder.outcome(cooled=False).series
    assert series.performance_pods_on_eco.tolist() == [1]
    assert series.running.tolist() == [2]


def test_outcomes_survive_the_file(tmp_path: Path) -> None:
    run, wall = run_of(job("a"))
    assert run.recorder is not None
    run.start()
    wall.now_s += 30.0
    run.catch_up()
    outcome = run.recorder.outcome(cooled=True)
    write_outcome(tmp_path / "results.json", outcome)
    read = read_outcome(tmp_path / "results.json")
    assert read.jobs == outcome.jobs
    assert read.nodes == outcome.nodes
    assert read.series.running.dtype == np.int64
    assert np.array_equal(read.series.it_w, outcome.series.it_w)
    (tmp_path / "results.json").write_text('{"duration_s": 1}')
    with pytest.raises(ResultsError, match=r"results\.json"):
        read_outcome(tmp_path / "results.json")
