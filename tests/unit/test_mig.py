"""MIG profiles in node labels, and the physical GPUs behind them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulie.adapters.kubernetes.api.core import Node, NodeStatus
from joulie.adapters.kubernetes.api.meta import ObjectMeta
from joulie.adapters.kubernetes.hardware import allocatable_devices
from joulie.adapters.kubernetes.requests import offered_gpus
from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie.domain.hardware.mig import mig_profile
from joulie.domain.hardware.resolve import ReportedHardware, ResolvedHardware, resolve


@pytest.mark.parametrize(
    ("product", "per_gpu"),
    [
        ("NVIDIA-A30-MIG-1g.6gb", 4),
        ("NVIDIA-A30-MIG-1g.6gb.me", 1),
        ("NVIDIA-A30-MIG-2g.12gb", 2),
        ("NVIDIA-A30-MIG-4g.24gb", 1),
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", 7),
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.10gb", 4),
        ("NVIDIA-A100-PCIE-40GB-MIG-2g.10gb", 3),
        ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", 7),
        ("NVIDIA-A100-SXM4-80GB-MIG-1g.20gb", 4),
        ("NVIDIA-A100-80GB-PCIe-MIG-3g.40gb", 2),
        ("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", 7),
        ("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb-SHARED", 7),
        ("NVIDIA-H100-80GB-HBM3-MIG-4g.40gb", 1),
        ("NVIDIA-H100-PCIe-MIG-1g.20gb", 4),
        ("NVIDIA-H100-NVL-MIG-1g.12gb", 7),
        ("NVIDIA-H100-NVL-MIG-1g.24gb", 4),
        ("NVIDIA-H20-MIG-1g.12gb", 7),
        ("NVIDIA-GH200-480GB-MIG-1g.12gb", 7),
        ("NVIDIA-GH200-144G-HBM3e-MIG-1g.36gb", 4),
        ("NVIDIA-H200-MIG-1g.18gb", 7),
        ("NVIDIA-H200-MIG-1g.35gb", 4),
        ("NVIDIA-H200-MIG-7g.141gb", 1),
        ("NVIDIA-B200-MIG-1g.23gb", 7),
        ("NVIDIA-B200-MIG-1g.45gb", 4),
        ("NVIDIA-GB200-MIG-2g.47gb", 3),
        ("NVIDIA-B300-SXM6-AC-MIG-1g.34gb", 7),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition-MIG-1g.24gb", 4),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition-MIG-2g.48gb", 2),
    ],
)
def test_h9_instances_of_a_profile_per_gpu(product: str, per_gpu: int) -> None:
    profile = mig_profile(product)
    assert profile is not None
    assert profile.per_gpu == per_gpu


@pytest.mark.parametrize("product", ["NVIDIA-H100-80GB-HBM3", "NVIDIA-L40S-SHARED", "NVIDIA-A30-MIG-0g.0gb", ""])
def test_h9_a_product_without_a_profile_is_a_whole_gpu(product: str) -> None:
    assert mig_profile(product) is None


def labelled(**labels: str) -> ResolvedHardware:
    keys = {"count": "nvidia.com/gpu.count", "product": "nvidia.com/gpu.product", "own": "joulie.io/hw.gpu-count"}
    return resolve(
        None,
        {keys[name]: text for name, text in labels.items()},
        {"cpu": 192.0, "nvidia.com/gpu": 56.0},
        BUILTIN_CATALOGUE,
    )


@pytest.mark.parametrize("labels", [{"count": "56"}, {}], ids=["label", "allocatable"])
def test_h9_instances_of_the_single_strategy_are_counted_as_the_gpus_that_they_divide(labels: dict[str, str]) -> None:
    hardware = labelled(product="NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", **labels)
    assert hardware.gpu is not None
    assert (hardware.gpu.count, hardware.gpu.model) == (8, "NVIDIA H100 80GB HBM3")
    assert hardware.gpu_max_w == 8 * 700.0
    assert hardware.warnings == ()


def test_h9_a_pod_that_requests_an_instance_draws_its_share_of_the_gpu() -> None:
    """Also where an agent has counted the whole GPUs."""
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb"}
    reported = ReportedHardware(gpu_count=8, gpu_raw="NVIDIA H100 80GB HBM3", gpu_default_w=700.0)
    for found in (None, reported):
        gpu = resolve(found, labels, {"nvidia.com/gpu": 56.0}, BUILTIN_CATALOGUE).gpu
        assert gpu is not None
        assert (gpu.count, gpu.requested_max_w) == (8, 100.0)
    whole = resolve(reported, {}, {"nvidia.com/gpu": 8.0}, BUILTIN_CATALOGUE).gpu
    assert whole is not None
    assert whole.requested_max_w == 700.0


def test_h9_instances_that_do_not_fill_their_gpus_are_told() -> None:
    hardware = labelled(product="NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", count="50")
    assert hardware.gpu is not None
    assert hardware.gpu.count == 8
    assert hardware.warnings == (
        "50 MIG instances, 7 to a GPU: at least 8 GPUs; set the label joulie.io/hw.gpu-count if there are more",
    )


def test_h9_the_count_of_the_administrator_is_of_whole_gpus() -> None:
    hardware = labelled(product="NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", count="24", own="8")
    assert hardware.gpu is not None
    assert hardware.gpu.count == 8


MIXED = {"nvidia.com/mig-1g.10gb": 2.0, "nvidia.com/mig-2g.20gb": 1.0, "nvidia.com/mig-3g.40gb": 1.0}
AT_LEAST = "the MIG instances are of at least {} GPUs; set the label joulie.io/hw.gpu-count if there are more"


@pytest.mark.parametrize(
    ("offered", "count"),
    [
        (MIXED, 1),
        ({name: 8.0 * number for name, number in MIXED.items()}, 8),
        ({"nvidia.com/gpu": 4.0, **{name: 4.0 * number for name, number in MIXED.items()}}, 8),
        ({"nvidia.com/gpu": 0.0, "nvidia.com/mig-1g.20gb": 8.0}, 2),
        ({"nvidia.com/mig-7g.80gb": 3.0}, 3),
        ({"nvidia.com/mig-1g.10gb.me": 1.0, "nvidia.com/mig-1g.10gb": 6.0}, 1),
        ({"nvidia.com/mig-1g.6gb": 4.0}, 1),
        ({"nvidia.com/mig-3g.40gb": 0.0}, None),
    ],
)
def test_h9_instances_of_the_mixed_strategy_are_of_gpus_without_any_label(
    offered: dict[str, float], count: int | None
) -> None:
    hardware = resolve(None, {}, {"cpu": 192.0, **offered}, BUILTIN_CATALOGUE)
    if count is None:
        assert hardware.gpu is None
        return
    assert hardware.gpu is not None
    assert (hardware.gpu.count, hardware.gpu.vendor) == (count, "NVIDIA")
    assert hardware.warnings == (AT_LEAST.format(count - int(offered.get("nvidia.com/gpu", 0))),)


@pytest.mark.parametrize("label", ["nvidia.com/gpu.count", "joulie.io/hw.gpu-count"])
def test_h9_labels_count_the_gpus_of_the_mixed_strategy(label: str) -> None:
    hardware = resolve(None, {label: "8"}, MIXED, BUILTIN_CATALOGUE)
    assert hardware.gpu is not None
    assert (hardware.gpu.count, hardware.warnings) == (8, ())


def test_gpus_of_a_second_vendor_are_told_as_left_out() -> None:
    hardware = resolve(None, {}, {"amd.com/gpu": 2.0, "nvidia.com/gpu": 1.0}, BUILTIN_CATALOGUE)
    assert hardware.gpu is not None
    assert (hardware.gpu.count, hardware.gpu.vendor) == (1, "NVIDIA")
    assert hardware.warnings == (
        "GPUs of one vendor only are counted, nvidia.com/gpu; the node also offers amd.com/gpu",
    )


def test_h9_instances_of_a_node_are_read_with_its_gpus() -> None:
    offered = {"cpu": "96", "memory": "1Ti", "nvidia.com/gpu": "4", "nvidia.com/mig-1g.10gb": "28", "rdma/hca": "1"}
    node = Node(metadata=ObjectMeta("n1"), status=NodeStatus(allocatable=offered))
    assert allocatable_devices(node) == {"cpu": 96.0, "nvidia.com/gpu": 4.0, "nvidia.com/mig-1g.10gb": 28.0}
    assert offered_gpus(offered) == pytest.approx(8.0)


@given(slices=st.integers(1, 9), memory_gb=st.integers(0, 300), name=st.text("ab30-GHgh1246", max_size=20))
def test_any_profile_fits_at_least_once_and_at_most_as_often_as_its_slices(
    slices: int, memory_gb: int, name: str
) -> None:
    profile = mig_profile(f"{name}-MIG-{slices}g.{memory_gb}gb")
    assert profile is not None
    assert 1 <= profile.per_gpu <= max(1, 7 // slices)
