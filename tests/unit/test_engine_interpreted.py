"""The compiled sources as plain Python: the same numbers, and no construct that only the compiler understands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from joulie_lab.simulation.cluster import Cluster, NodePool
from joulie_lab.simulation.engine import SCHEDULERS, QueueSettings, simulate
from joulie_lab.simulation.workload import published_jobs

PROGRAM = f"""
import json, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_engine_interpreted import figures
print(json.dumps(figures()))
"""


def figures() -> list[list[object]]:
    """Energy, drops and wakes of every scheduler in both modes on a small cluster."""
    cluster = Cluster((NodePool("cpu", 8, 96, 700.0), NodePool("gpu", 2, 128, 500.0, 8, 700.0, 100.0)))
    jobs = published_jobs(3, 1.0, 0.01)
    rows: list[list[object]] = []
    for name in SCHEDULERS:
        for queue in (None, QueueSettings()):
            played = simulate(cluster, jobs, name, n_steps=70, seed=3, queue=queue)
            series = played.series
            rows.append([name, float(series.it_w.sum()), int(series.dropped.sum()), played.wakes])
    return rows


@pytest.mark.slow
def test_without_the_compiler_the_numbers_are_the_same() -> None:
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == figures()
