"""NodeHardware: what a node is and what can be measured and capped on it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

import msgspec

from joulie.adapters.kubernetes.api.meta import KubernetesObject, ObjectMeta
from joulie.adapters.kubernetes.api.v1alpha1.fields import (
    Conditions,
    Count,
    JoulieStruct,
    Megahertz,
    Message,
    Name,
    PositiveCount,
    Rule,
    Text,
    Watts,
    one_of,
    up_to,
)

Warnings = Annotated[tuple[Message, ...], up_to(64)]


class HardwareQuality(StrEnum):
    """How well the hardware is known."""

    EXACT = "exact"
    HEURISTIC = "heuristic"
    UNAVAILABLE = "unavailable"


class CapRangeType(StrEnum):
    """What a CPU's cap range applies to."""

    PACKAGE = "package"


class NodeHardwareSpec(JoulieStruct, frozen=True):
    """Which node this is about.

    Attributes:
        node_name: name of the node.
    """

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("self.nodeName == oldSelf.nodeName", "nodeName is immutable: delete the object instead"),
    )

    node_name: Name


class CpuCapRange(JoulieStruct, frozen=True):
    """Range of the power cap of one CPU package.

    Attributes:
        type: what the range applies to.
        min_watts_per_socket: smallest cap, W.
        max_watts_per_socket: largest cap, W.
    """

    type: Annotated[str, one_of(CapRangeType)] | None = None
    min_watts_per_socket: Watts | None = None
    max_watts_per_socket: Watts | None = None


class CpuLandmarks(JoulieStruct, frozen=True):
    """Characteristic frequencies of the CPU.

    Attributes:
        min_freq_mhz: lowest, MHz.
        lowest_nonlinear_freq_mhz: lowest at which performance per watt still pays, MHz.
        nominal_freq_mhz: guaranteed on all cores, MHz.
        max_boost_mhz: highest on one core, MHz.
    """

    min_freq_mhz: Megahertz | None = msgspec.field(default=None, name="minFreqMHz")
    lowest_nonlinear_freq_mhz: Megahertz | None = msgspec.field(default=None, name="lowestNonlinearFreqMHz")
    nominal_freq_mhz: Megahertz | None = msgspec.field(default=None, name="nominalFreqMHz")
    max_boost_mhz: Megahertz | None = msgspec.field(default=None, name="maxBoostMHz")


class CpuHardware(JoulieStruct, frozen=True):
    """The CPUs of the node.

    Attributes:
        raw_model: as the machine prints it.
        model: key in the hardware catalogue, where recognised.
        vendor: who makes it, such as intel or amd.
        sockets: packages.
        total_cores: physical cores of all packages.
        cores_per_socket: physical cores of one package.
        driver_family: frequency driver, such as intel_pstate or amd-pstate.
        cap_range: range of the power cap of one package.
        landmarks: characteristic frequencies.
        control_available: whether power can be capped.
        telemetry_available: whether power can be measured.
        quality: how well the CPU is known.
        warnings: what was odd.
    """

    raw_model: Text | None = None
    model: Text | None = None
    vendor: Text | None = None
    sockets: PositiveCount | None = None
    total_cores: PositiveCount | None = None
    cores_per_socket: PositiveCount | None = None
    driver_family: Text | None = None
    cap_range: CpuCapRange | None = None
    landmarks: CpuLandmarks | None = None
    control_available: bool | None = None
    telemetry_available: bool | None = None
    quality: Annotated[str, one_of(HardwareQuality)] | None = None
    warnings: Warnings = ()


class GpuCapRange(JoulieStruct, frozen=True):
    """Range of the power cap of one GPU.

    Attributes:
        min_watts: smallest cap, W.
        max_watts: largest cap, W.
        default_watts: limit at 100 percent, W.
    """

    min_watts: Watts | None = None
    max_watts: Watts | None = None
    default_watts: Watts | None = None


class GpuSlicing(JoulieStruct, frozen=True):
    """How the GPUs can be shared.

    Attributes:
        supported: whether they can be partitioned.
        modes: the ways, such as mig or time-slicing.
    """

    supported: bool | None = None
    modes: Annotated[tuple[Text, ...], up_to(32)] = ()


class GpuHardware(JoulieStruct, frozen=True):
    """The GPUs of the node, all of one model.

    Attributes:
        present: whether there are any.
        raw_model: as the driver prints it.
        model: key in the hardware catalogue, where recognised.
        vendor: who makes them, such as nvidia or amd.
        count: number of GPUs.
        cap_range_per_gpu: range of the power cap of one GPU.
        slicing: how they can be shared.
        control_available: whether power can be capped.
        telemetry_available: whether power can be measured.
        quality: how well the GPU is known.
        warnings: what was odd.
    """

    present: bool | None = None
    raw_model: Text | None = None
    model: Text | None = None
    vendor: Text | None = None
    count: Count | None = None
    cap_range_per_gpu: GpuCapRange | None = None
    slicing: GpuSlicing | None = None
    control_available: bool | None = None
    telemetry_available: bool | None = None
    quality: Annotated[str, one_of(HardwareQuality)] | None = None
    warnings: Warnings = ()


class MemoryHardware(JoulieStruct, frozen=True):
    """The memory of the node.

    Attributes:
        total_bytes: size, bytes.
    """

    total_bytes: Annotated[int, msgspec.Meta(extra_json_schema={"minimum": 0, "format": "int64"})] | None = None


class HardwareCapabilities(JoulieStruct, frozen=True):
    """What works on the node.

    Attributes:
        cpu_control: CPU power can be capped.
        gpu_control: GPU power can be capped.
        cpu_telemetry: CPU power can be measured.
        gpu_telemetry: GPU power can be measured.
    """

    cpu_control: bool | None = None
    gpu_control: bool | None = None
    cpu_telemetry: bool | None = None
    gpu_telemetry: bool | None = None


class OverallQuality(JoulieStruct, frozen=True):
    """How well the node is known.

    Attributes:
        overall: exact (in the catalogue), heuristic, or unavailable.
        warnings: what was odd.
    """

    overall: Annotated[str, one_of(HardwareQuality)] | None = None
    warnings: Warnings = ()


class NodeHardwareStatus(JoulieStruct, frozen=True):
    """What the agent found.

    Attributes:
        cpu: the CPUs.
        gpu: the GPUs.
        memory: the memory.
        capabilities: what works.
        quality: how well the node is known.
        conditions: what is true of the hardware, and why.
    """

    cpu: CpuHardware | None = None
    gpu: GpuHardware | None = None
    memory: MemoryHardware | None = None
    capabilities: HardwareCapabilities | None = None
    quality: OverallQuality | None = None
    conditions: Conditions = ()


class NodeHardware(KubernetesObject, kw_only=True, frozen=True):
    """The hardware of a node as its agent found it.

    Attributes:
        spec: which node this is about.
        status: what was found.
    """

    metadata: ObjectMeta
    spec: NodeHardwareSpec
    status: NodeHardwareStatus = NodeHardwareStatus()
