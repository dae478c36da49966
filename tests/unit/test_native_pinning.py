"""Jobs that name their GPU model, and workloads that run again."""

from collections import Counter

from joulie.domain.hardware.resolve import GPU_MODEL_KEY
from joulie_lab.simulation.experiment.scenario import NodeGroup
from joulie_lab.simulation.live.jobs import activity
from joulie_lab.simulation.native.nodes import sim_nodes
from joulie_lab.simulation.native.pinning import pinned
from joulie_lab.simulation.workloads.recurrence import recurring

from .test_native_runtime import job

NODES = sim_nodes(
    [
        NodeGroup(name="many", count=3, cpu="AMD EPYC 9654", gpu="NVIDIA H100 NVL", gpus=8),
        NodeGroup(name="few", count=1, cpu="AMD EPYC 9654", gpu="NVIDIA L40S", gpus=4),
        NodeGroup(name="amd", count=1, cpu="AMD EPYC 9654", gpu="AMD Instinct MI300X", gpus=8),
        NodeGroup(name="cpu", count=1, cpu="AMD EPYC 9655"),
    ]
)
JOBS = [job(f"j{number}", float(number), gpus=1 + number % 4) for number in range(300)]


def test_jobs_are_bound_to_models_of_their_vendor_that_hold_them_by_the_number_of_gpus() -> None:
    models = Counter(one.node_selector[GPU_MODEL_KEY] for one in pinned(JOBS, NODES, 1))
    assert set(models) == {"NVIDIA-H100-NVL", "NVIDIA-L40S"}
    assert 5.0 < models["NVIDIA-H100-NVL"] / models["NVIDIA-L40S"] < 8.0
    large = pinned([job("large", gpus=8)], NODES, 1)
    assert large[0].node_selector == {GPU_MODEL_KEY: "NVIDIA-H100-NVL"}


def test_what_no_node_can_hold_and_what_needs_no_gpu_stays_as_it_is() -> None:
    jobs = [job("huge", gpus=16), job("none")]
    assert pinned(jobs, NODES, 1) == jobs


def test_runs_of_one_owner_behave_alike_and_keep_their_durations() -> None:
    found = recurring(JOBS, 0.65, 1)
    owned = [one for one in found if one.owner]
    assert 0.5 < len(owned) / len(JOBS) < 0.7
    by_id = {one.job_id: one for one in found}
    for one in owned:
        before = by_id[one.owner]
        assert before.submit_s < one.submit_s
        assert activity(before) == activity(one)
        assert one.shape == before.shape
    assert [one.ideal_s for one in found] == [one.ideal_s for one in JOBS]
    assert recurring(JOBS, 0.0, 1) == JOBS
