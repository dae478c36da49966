"""The engine's conventions on runs small enough to follow by hand."""

from __future__ import annotations

import numpy as np
import pytest

from joulie.domain.units import InvalidQuantityError
from joulie_lab.simulation.cluster import Cluster, NodePool
from joulie_lab.simulation.engine import QueueSettings, UnknownSchedulerError, simulate
from joulie_lab.simulation.workload import JobTable

ONE_NODE = Cluster((NodePool("cpu", 1, 96, 700.0),))


def jobs(*rows: tuple[float, float, int], gpus: int = 0) -> JobTable:
    """Jobs of (arrival s, duration s, cores), all at half load."""
    arrival_s, duration_s, cores = (np.array(column) for column in zip(*rows, strict=True))
    n = len(rows)
    return JobTable(
        arrival_s.astype(float),
        duration_s.astype(float),
        cores.astype(np.int16),
        np.full(n, gpus, np.int16),
        np.zeros(n, np.bool_),
        np.full(n, 0.5),
        np.full(n, 0.5 if gpus else 0.0),
        np.zeros(n, np.int8),
    )


def test_power_of_a_step_by_hand() -> None:
    played = simulate(ONE_NODE, jobs((0.0, 90.0, 48)), "most-allocated", n_steps=4, seed=0)
    busy_w = 700 * 0.7 * 0.5 * 0.5 + 70.0
    assert played.series.it_w.tolist() == pytest.approx([busy_w, busy_w, 35.0, 35.0])
    assert played.series.running.tolist() == [1, 1, 0, 0]


def test_idle_gpus_draw_and_taken_ones_work() -> None:
    cluster = Cluster((NodePool("gpu", 1, 128, 500.0, 8, 700.0, 100.0),))
    played = simulate(cluster, jobs((0.0, 60.0, 64), gpus=2), "joulie", n_steps=2, seed=0)
    busy_w = 500 * 0.7 * 0.5 * 0.5 + 50.0 + 2 * 700 * 0.65 * 0.5 + 600.0
    assert played.series.it_w.tolist() == pytest.approx([busy_w, 825.0])


def test_what_does_not_fit_is_dropped_and_never_retried() -> None:
    played = simulate(ONE_NODE, jobs((0.0, 60.0, 96), (0.0, 60.0, 1), (61.0, 60.0, 96)), "joulie", n_steps=4, seed=0)
    assert played.series.dropped.tolist() == [1, 0, 0, 0]
    assert played.series.arrived.tolist() == [2, 0, 1, 0]
    assert (played.wait_min, played.wakes, played.unfinished) == (None, None, None)


def test_queue_wakes_waits_and_passes() -> None:
    """The waker starts after 3 min; the wide job waits for it to end; the narrow one passes the wide one."""
    table = jobs((0.0, 60.0, 60), (0.0, 60.0, 60), (30.0, 60.0, 10))
    played = simulate(ONE_NODE, table, "most-allocated", n_steps=20, seed=0, queue=QueueSettings())
    assert played.wait_min is not None
    assert played.wait_min.tolist() == [3.0, 4.0, 0.0]
    assert (played.wakes, played.unfinished) == (1, 0)
    assert played.series.waiting.tolist()[:5] == [1, 1, 1, 1, 0]


def test_an_empty_node_sleeps_after_its_minutes() -> None:
    played = simulate(ONE_NODE, jobs((0.0, 60.0, 96)), "pwr", n_steps=20, seed=0, queue=QueueSettings())
    it_w = played.series.it_w
    assert it_w[:4].tolist() == pytest.approx([0.25 * 700 + 6 * 96 * 0.5] * 4)
    assert it_w[4:14].tolist() == pytest.approx([175.0] * 10)
    assert it_w[14:].tolist() == pytest.approx([21.0] * 6)
    assert played.series.awake_nodes.tolist() == [1] * 14 + [0] * 6


def test_a_node_busy_in_between_counts_its_empty_minutes_anew() -> None:
    table = jobs((0.0, 60.0, 1), (8 * 60.0, 60.0, 1))
    played = simulate(ONE_NODE, table, "pwr", n_steps=30, seed=0, queue=QueueSettings())
    assert np.flatnonzero(played.series.awake_nodes == 0)[0] == 9 + 10
    assert played.wakes == 1


def test_unfinished_counts_waiting_and_running_jobs() -> None:
    table = jobs((0.0, 3600.0, 96), (0.0, 60.0, 96))
    played = simulate(ONE_NODE, table, "joulie", n_steps=5, seed=0, queue=QueueSettings())
    assert played.unfinished == 2


def test_work_is_counted_in_full_hours_and_useful_work_within_the_run() -> None:
    played = simulate(ONE_NODE, jobs((0.0, 7200.0, 96)), "joulie", n_steps=60, seed=0)
    assert played.core_hours == pytest.approx(192.0)
    assert played.useful_work_kwh == pytest.approx(490 * 0.5 / 1000)


def test_progress_is_told_to_the_end() -> None:
    seen: list[tuple[int, int]] = []
    table = jobs((0.0, 600.0, 4), (120.0, 600.0, 4))
    whole = simulate(ONE_NODE, table, "joulie", n_steps=250, seed=0)
    parts = simulate(ONE_NODE, table, "joulie", n_steps=250, seed=0, on_progress=lambda *step: seen.append(step))
    assert seen[-1] == (250, 250)
    assert np.array_equal(whole.series.it_w, parts.series.it_w)


def test_unknown_scheduler_names_its_neighbours() -> None:
    with pytest.raises(UnknownSchedulerError, match="did you mean joulie"):
        simulate(ONE_NODE, jobs((0.0, 60.0, 1)), "jouli", n_steps=1, seed=0)


def test_a_cluster_without_nodes_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Cluster(())
    with pytest.raises(InvalidQuantityError, match="count"):
        NodePool("none", 0, 1, 1.0)
