"""GPUs by the kubelet's PodResources API: its wire format, its failures, and which GPU an ID means."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulie.adapters.kubelet.pod_resources import PodResources, allocations
from joulie.domain.gpu_allocations import Allocation, Holding, NodeGpu, holdings
from joulie.ports.telemetry import SourceError
from support.pod_resources import kubelet_socket, response

FIRST, SECOND = "GPU-5a3c1f0e-0000-0000-0000-00000000000a", "GPU-5a3c1f0e-0000-0000-0000-00000000000b"
GPUS = [NodeGpu(FIRST, False), NodeGpu(SECOND, False)]
TRAIN, OTHER = ("ml", "train-0"), ("ml", "other-0")


def test_bytes_of_the_kubelet_are_read() -> None:
    message = response(
        {
            TRAIN: {"nvidia.com/gpu": [FIRST, SECOND], "example.com/nic": ["nic-0"]},
            ("kube-system", "agent"): {},
            OTHER: {"amd.com/gpu": ["0000:0c:00.0"], "gpu.nvidia.com/claim": ["gpu-0"], "net.example.com/claim": ["x"]},
        }
    )
    assert allocations(message) == [
        Allocation(TRAIN, (FIRST, SECOND)),
        Allocation(OTHER, ("0000:0c:00.0", "gpu.nvidia.com/node/gpu-0")),
    ]


def test_socket_is_asked_by_grpc(tmp_path: Path) -> None:
    path = tmp_path / "kubelet.sock"
    with kubelet_socket(path) as kubelet:
        kubelet.pods = {("ml", f"train-{number}"): {"nvidia.com/gpu": [f"GPU-{number}"]} for number in range(500)}
        found = asyncio.run(PodResources(path).gpus())
        assert len(found) == 500
        assert found[7] == Allocation(("ml", "train-7"), ("GPU-7",))
        kubelet.error = "unknown service v1.PodResourcesLister"
        with pytest.raises(SourceError, match=r"unknown service v1\.PodResourcesLister"):
            asyncio.run(PodResources(path).gpus())


def test_missing_socket_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=str(tmp_path)):
        asyncio.run(PodResources(tmp_path / "kubelet.sock").gpus())


@given(st.binary(max_size=64), st.integers(0, 200))
def test_malformed_bytes_are_an_error_and_nothing_else(tail: bytes, cut: int) -> None:
    whole = response({TRAIN: {"nvidia.com/gpu": [FIRST, SECOND]}})
    for message in (tail, whole[:cut] + tail):
        try:
            allocations(message)
        except SourceError:
            continue


def test_ids_are_uuids_indices_or_replicas() -> None:
    by_uuid = holdings([Allocation(TRAIN, (FIRST.upper(),))], GPUS, indexed=True)
    by_index = holdings([Allocation(TRAIN, ("0",))], GPUS, indexed=True)
    assert by_uuid == by_index == {FIRST: Holding((TRAIN,)), SECOND: Holding()}
    replicas = [Allocation(TRAIN, (f"{FIRST}::0",)), Allocation(OTHER, (f"{FIRST}::1",))]
    assert holdings(replicas, GPUS, indexed=True)[FIRST] == Holding((OTHER, TRAIN), shared=True)
    # One replica alone is shared all the same: the next pod comes without notice.
    assert holdings(replicas[:1], GPUS, indexed=True)[FIRST].shared


def test_ids_of_amds_device_plugin_are_pci_addresses() -> None:
    amd = [NodeGpu("GPU-90f5f8a3c2b1d4e6", False, "0000:41:00.0"), NodeGpu("GPU-1b2c", True, "0000:42:00.0")]
    held = holdings([Allocation(TRAIN, ("0000:41:00.0",)), Allocation(OTHER, ("amdgpu_xcp_9",))], amd, indexed=True)
    assert held == {amd[0].id: Holding((TRAIN,)), amd[1].id: Holding(shared=True)}


def test_what_names_no_gpu_may_be_a_part_of_any() -> None:
    claimed = [Allocation(TRAIN, (FIRST,)), Allocation(OTHER, ("MIG-1b2c",))]
    assert holdings(claimed, GPUS, indexed=True) == {FIRST: Holding((TRAIN,)), SECOND: Holding(shared=True)}
    # Where a GPU does not respond, positions are not indices.
    assert holdings([Allocation(TRAIN, ("0",))], GPUS, indexed=False)[FIRST] == Holding(shared=True)


def test_mig_gpu_is_shared() -> None:
    assert holdings([], [NodeGpu(FIRST, True)], indexed=True) == {FIRST: Holding(shared=True)}
