from dataclasses import replace
from typing import Any

import pytest

from joulie_lab.simulation.experiment.scenario import NodeGroup
from joulie_lab.simulation.native.fitting import EmptyCluster, unfit
from joulie_lab.simulation.native.nodes import sim_nodes
from joulie_lab.simulation.trace import TraceJob

NODES = sim_nodes(
    [
        NodeGroup(name="h", count=2, cpu="AMD EPYC 9654", cores=64, memory_gib=512, gpu="NVIDIA H100 NVL", gpus=8),
        NodeGroup(name="c", count=3, cpu="AMD EPYC 9654", cores=128, memory_gib=256, labels={"disk": "fast"}),
    ]
)


def job(job_id: str = "a", **changes: Any) -> TraceJob:
    made = TraceJob(job_id=job_id, workload_id=job_id, submit_s=0.0, requests={"cpu": "4"}, cpu_units=200.0)
    return replace(made, **changes)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"requests": {"cpu": "128", "memory": "256Gi"}}, None),
        ({"requests": {"cpu": "64", "memory": "512Gi", "nvidia.com/gpu": "8"}}, None),
        ({"requests": {"cpu": "129"}}, "requests 129 cores; the largest node that it may use has 128"),
        ({"requests": {"memory": "1Ti"}}, "requests 1024 GiB; the largest node that it may use has 512"),
        ({"requests": {"nvidia.com/gpu": "9"}}, "requests 9 GPUs; the largest node that it may use has 8"),
        ({"requests": {"amd.com/gpu": "1"}}, "no node has amd.com/gpu"),
        (
            {"requests": {"cpu": "100", "nvidia.com/gpu": "1"}},
            "100 cores, 0 GiB and 1 GPUs; no node that it may use has",
        ),
        ({"node_selector": {"disk": "slow"}}, "no node has the labels"),
        (
            {"node_selector": {"disk": "fast"}, "requests": {"memory": "300Gi"}},
            "the largest node that it may use has 256",
        ),
        ({"node_selector": {"disk": "fast"}, "requests": {"nvidia.com/gpu": "1"}}, "it may use has nvidia.com/gpu"),
        ({"node_selector": {"joulie.io/power-profile": "eco"}}, None),
    ],
)
def test_a_job_that_no_node_could_hold(changes: dict[str, Any], why: str | None) -> None:
    found = EmptyCluster(NODES).never_fits(job(**changes))
    assert found is None if why is None else found is not None and why in found


def gang(number: int, **changes: Any) -> list[TraceJob]:
    return [job(f"m{member}", workload_id="g", gang=True, role="worker", **changes) for member in range(number)]


def test_a_gang_that_could_never_be_held_at_once() -> None:
    cluster = EmptyCluster(NODES)
    eight = {"cpu": "8", "nvidia.com/gpu": "8"}
    assert cluster.gang_never_fits(gang(2, requests=eight)) is None
    too_many = cluster.gang_never_fits(gang(3, requests=eight))
    assert too_many is not None
    assert "its 3 members request 24 cores, 0 GiB and 24 GPUs" in too_many
    too_large = cluster.gang_never_fits([*gang(1), job("x", workload_id="g", gang=True, requests={"cpu": "999"})])
    assert too_large is not None
    assert "requests 999 cores" in too_large


def test_jobs_are_reported_one_by_one_and_gangs_as_a_whole() -> None:
    jobs = [job("fits"), job("large", requests={"cpu": "999"}), *gang(200, requests={"cpu": "64"})]
    found = {one.job_id: why for one, why in unfit(iter(jobs), NODES)}
    assert set(found) == {"large", *(f"m{member}" for member in range(200))}
    assert "gang g: its 200 members" in found["m7"]
