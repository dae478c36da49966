"""What hardware a node has, from whoever knows."""

import pytest

from joulie.domain.hardware import BUILTIN_CATALOGUE, CapRange, Quality
from joulie.domain.hardware.resolve import ReportedHardware, ResolvedHardware, resolve


def resolved(
    reported: ReportedHardware | None = None,
    labels: dict[str, str] | None = None,
    allocatable: dict[str, float] | None = None,
) -> ResolvedHardware:
    return resolve(reported, labels or {}, allocatable or {}, BUILTIN_CATALOGUE)


GPU_NODE = {
    "joulie.io/hw.cpu-model": "AMD EPYC 9654 96-Core Processor",
    "joulie.io/hw.cpu-sockets": "2",
    "joulie.io/hw.gpu-model": "NVIDIA H100 NVL",
    "joulie.io/hw.gpu-count": "4",
}


def test_labels_identify_a_gpu_node():
    node = resolved(labels=GPU_NODE, allocatable={"cpu": 192.0, "nvidia.com/gpu": 4.0})
    assert node.source == "labels"
    assert node.cpu.model == "AMD EPYC 9654"
    assert node.cpu.quality is Quality.EXACT
    assert node.family == "NVIDIA H100 NVL"
    assert node.limits == (720.0, 1600.0, 192, 4)


def test_what_a_device_says_of_itself_goes_before_the_catalogue():
    node = resolved(
        ReportedHardware(
            cpu_model="AMD EPYC 9654",
            sockets=2,
            cores=192,
            cpu_min_w=100.0,
            cpu_max_w=400.0,
            gpu_raw="NVIDIA H100 NVL",
            gpu_count=8,
            gpu_min_w=200.0,
            gpu_max_w=400.0,
            gpu_default_w=310.0,
        ),
        labels=GPU_NODE,
    )
    assert node.source == "nodehardware"
    assert node.cpu.cap_range == CapRange(100.0, 400.0, 400.0)
    assert node.gpu is not None
    assert node.gpu.cap_range == CapRange(200.0, 400.0, 310.0)  # the default limit is 100 %, not the maximum
    assert node.limits == (800.0, 2480.0, 192, 8)


def test_devices_are_resolved_one_by_one():
    node = resolved(ReportedHardware(cpu_model="AMD EPYC 9965", sockets=2, cores=384, gpu_count=0), labels=GPU_NODE)
    assert node.cpu.model == "AMD EPYC 9965"
    assert node.gpu is not None
    assert (node.gpu.model, node.gpu.count) == ("NVIDIA H100 NVL", 4)


def test_an_unknown_cpu_that_reports_its_range_has_limits():
    node = resolved(ReportedHardware(cpu_raw="Nobody's CPU", sockets=4, cores=64, cpu_max_w=205.0))
    assert node.cpu.quality is Quality.HEURISTIC
    assert node.limits == (820.0, 0.0, 64, 0)


def test_zero_watts_mean_that_sysfs_does_not_say():
    node = resolved(ReportedHardware(cpu_model="AMD EPYC 9654", sockets=1, cores=96, cpu_max_w=0.0))
    assert node.cpu.cap_range == CapRange(320.0, 400.0, 360.0)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(900.0, 500.0, CapRange(500.0, 500.0, 500.0)), (float("nan"), 500.0, CapRange(320.0, 500.0, 500.0))],
)
def test_a_range_that_contradicts_itself_is_moved_not_refused(low, high, expected):
    node = resolved(ReportedHardware(cpu_model="AMD EPYC 9654", sockets=1, cpu_min_w=low, cpu_max_w=high))
    assert node.cpu.cap_range == expected


def test_gpus_of_a_node_that_only_offers_them():
    node = resolved(allocatable={"cpu": 64.0, "amd.com/gpu": 8.0})
    assert node.source == "allocatable"
    assert node.gpu is not None
    assert (node.gpu.vendor, node.gpu.count, node.gpu.cap_range) == ("AMD", 8, None)
    assert node.family == "unknown"


@pytest.mark.parametrize(
    "labels",
    [
        {"nvidia.com/gpu.count": "2", "nvidia.com/gpu.replicas": "4"},
        {"nvidia.com/gpu.replicas": "4"},
    ],
)
def test_time_slicing_does_not_multiply_gpus(labels):
    node = resolved(labels=labels | {"nvidia.com/gpu.product": "NVIDIA-L40S-SHARED"}, allocatable={"nvidia.com/gpu": 8})
    assert node.gpu is not None
    assert (node.gpu.count, node.gpu.model) == (2, "NVIDIA L40S")


def test_sockets_nobody_counted_are_as_few_as_hold_the_threads():
    one = resolved(labels={"joulie.io/hw.cpu-model": "AMD EPYC 9654"}, allocatable={"cpu": 192.0})
    two = resolved(labels={"joulie.io/hw.cpu-model": "AMD EPYC 9654"}, allocatable={"cpu": 384.0})
    assert (one.cpu.sockets, two.cpu.sockets) == (1, 2)
    assert one.cpu.quality is Quality.HEURISTIC


def test_a_label_that_cannot_be_read_is_named():
    node = resolved(labels=GPU_NODE | {"joulie.io/hw.cpu-sockets": "two"})
    assert node.warnings == ("label joulie.io/hw.cpu-sockets: must be a whole number, got 'two'; ignored",)


def test_a_node_of_which_nothing_is_known():
    node = resolved()
    assert (node.source, node.family, node.limits, node.gpu) == ("allocatable", "unknown", None, None)
