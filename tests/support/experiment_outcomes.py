"""Outcomes of runs, made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from joulie_lab.simulation.experiment.outcome import Drain, JobEnd, JobOutcome, NodeOutcome, Outcome, OutcomeSeries


def job(name: str, **changes: Any) -> JobOutcome:
    """Submitted at 10 s, run from 20 s to 120 s, as long as it takes alone; 3,600 core-s and 7,200 GPU-s of work."""
    usual = JobOutcome(
        job_id=name,
        workload_id=name,
        workload_type="training",
        workload_class="standard",
        end=JobEnd.COMPLETED,
        submit_s=10.0,
        ideal_s=100.0,
        cpu_units=3600.0,
        gpu_units=7200.0,
        cpu_units_done=3600.0,
        gpu_units_done=7200.0,
        node="a-0",
        start_s=20.0,
        end_s=120.0,
    )
    return replace(usual, **changes)


def outcome(*jobs: JobOutcome, node_kwh: tuple[float, ...] = (1.0, 2.0, 4.0, 5.0), **changes: Any) -> Outcome:
    """Two hours on two nodes each of two families, at a power that rises from 6 to 8 kW and falls again."""
    nodes = zip(("a-0", "a-1", "b-0", "b-1"), ("A", "A", "B", "B"), node_kwh, strict=True)
    usual = Outcome(
        duration_s=7200.0,
        it_j=sum(node_kwh) * 3.6e6,
        cooling_j=3.6e6,
        jobs=jobs or (job("one"), job("two", workload_class="performance")),
        nodes=tuple(NodeOutcome(name, family, kwh * 3.6e6) for name, family, kwh in nodes),
        drains=(Drain("a-0", 60.0, 160.0), Drain("b-0", 100.0, None)),
        series=series(),
    )
    return replace(usual, **changes)


def series(**changes: Any) -> OutcomeSeries:
    """A sample an hour."""
    count = np.zeros(3, dtype=np.int64)
    usual = OutcomeSeries(
        time_s=np.array([0.0, 3600.0, 7200.0]),
        it_w=np.array([6000.0, 8000.0, 6000.0]),
        cooling_w=np.full(3, 500.0),
        outdoor_k=np.full(3, 290.0),
        running=np.array([0, 2, 0]),
        waiting=count,
        eco_nodes=np.array([2, 2, 2]),
        draining_nodes=count,
        capped_nodes=np.array([0, 1, 0]),
        throttled_nodes=count,
        performance_pods_on_eco=count,
    )
    return replace(usual, **changes)
