"""Wide jobs split into node-sized ones: nothing lost, nothing too wide, nothing uneven."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from joulie_lab.simulation import runner
from joulie_lab.simulation.jobs import JobColumns
from joulie_lab.simulation.scenario_files import load_scenario

TABLE = "workload={csv: jobs.csv, columns: {arrival: a, duration: d, cores: c}, split_at_cores: 96}"
SCENARIO = load_scenario("quick", (TABLE,))


@given(st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 64)), min_size=1, max_size=30))
def test_splitting_conserves(requests):
    cores, gpus = (np.array(column) for column in zip(*requests, strict=True))
    n = len(requests)
    columns = JobColumns(
        place="jobs.csv:",
        line=np.arange(n),
        arrival_s=np.arange(n, dtype=float),
        duration_s=np.ones(n),
        cores=cores,
        gpus=gpus,
        cpu_util=np.ones(n),
        gpu_util=np.ones(n),
        job_class=np.zeros(n, dtype=np.int64),
        class_names=("job",),
    )
    with patch.object(runner, "warm_up"):  # nothing compiled is needed here
        table = runner.Runner(SCENARIO, clock=lambda: 0.0, read_jobs=lambda spec: columns).jobs(1).table
    index = table.arrival_s.astype(int)
    np.testing.assert_array_equal(np.bincount(index, weights=table.cores), cores)
    np.testing.assert_array_equal(np.bincount(index, weights=table.gpus), gpus)
    assert table.cores.max() <= 96
    for job in range(n):
        parts = table.cores[index == job]
        assert parts.max() - parts.min() <= 1
