"""NodeHardware: hardware of a node, and what can be measured and capped on it."""

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
    """How the hardware was identified."""

    EXACT = "exact"
    HEURISTIC = "heuristic"
    UNAVAILABLE = "unavailable"


class CapRangeType(StrEnum):
    """Unit that a CPU's cap range applies to."""

    PACKAGE = "package"


class NodeHardwareSpec(JoulieStruct, frozen=True):
    """The node that the object describes.

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
        type: unit that the range applies to.
        min_watts_per_socket: minimum cap, W.
        max_watts_per_socket: maximum cap, W.
    """

    type: Annotated[str, one_of(CapRangeType)] | None = None
    min_watts_per_socket: Watts | None = None
    max_watts_per_socket: Watts | None = None


class CpuLandmarks(JoulieStruct, frozen=True):
    """Characteristic frequencies of the CPU.

    Attributes:
        min_freq_mhz: minimum frequency, MHz.
        lowest_nonlinear_freq_mhz: lowest frequency with nonlinear power savings (ACPI CPPC), MHz.
        nominal_freq_mhz: nominal frequency, guaranteed on all cores, MHz.
        max_boost_mhz: maximum boost frequency of one core, MHz.
    """

    min_freq_mhz: Megahertz | None = msgspec.field(default=None, name="minFreqMHz")
    lowest_nonlinear_freq_mhz: Megahertz | None = msgspec.field(default=None, name="lowestNonlinearFreqMHz")
    nominal_freq_mhz: Megahertz | None = msgspec.field(default=None, name="nominalFreqMHz")
    max_boost_mhz: Megahertz | None = msgspec.field(default=None, name="maxBoostMHz")


class CpuHardware(JoulieStruct, frozen=True):
    """The CPUs of the node.

    Attributes:
        raw_model: model name as reported by the machine.
        model: key in the hardware catalogue; absent if not recognised.
        vendor: vendor, such as intel or amd.
        sockets: number of packages.
        total_cores: number of physical cores of all packages.
        cores_per_socket: number of physical cores of one package.
        driver_family: frequency driver, such as intel_pstate or amd-pstate.
        cap_range: range of the power cap of one package.
        landmarks: characteristic frequencies.
        control_available: whether CPU power can be capped.
        telemetry_available: whether CPU power can be measured.
        quality: how the CPU was identified.
        warnings: warnings of the discovery.
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
        min_watts: minimum cap, W.
        max_watts: maximum cap, W.
        default_watts: default limit, which is 100 %, W.
    """

    min_watts: Watts | None = None
    max_watts: Watts | None = None
    default_watts: Watts | None = None


class GpuSlicing(JoulieStruct, frozen=True):
    """Support for GPU sharing.

    Attributes:
        supported: whether the GPUs can be partitioned.
        modes: supported modes, such as mig or time-slicing.
    """

    supported: bool | None = None
    modes: Annotated[tuple[Text, ...], up_to(32)] = ()


class GpuHardware(JoulieStruct, frozen=True):
    """The GPUs of the node, all of one model.

    Attributes:
        present: whether the node has GPUs.
        raw_model: model name as reported by the driver.
        model: key in the hardware catalogue; absent if not recognised.
        vendor: vendor, such as nvidia or amd.
        count: number of GPUs.
        cap_range_per_gpu: range of the power cap of one GPU.
        slicing: support for GPU sharing.
        control_available: whether GPU power can be capped.
        telemetry_available: whether GPU power can be measured.
        quality: how the GPU was identified.
        warnings: warnings of the discovery.
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
        total_bytes: total memory, bytes.
    """

    total_bytes: Annotated[int, msgspec.Meta(extra_json_schema={"minimum": 0, "format": "int64"})] | None = None


class HardwareCapabilities(JoulieStruct, frozen=True):
    """Power telemetry and control available on the node.

    Attributes:
        cpu_control: whether CPU power can be capped.
        gpu_control: whether GPU power can be capped.
        cpu_telemetry: whether CPU power can be measured.
        gpu_telemetry: whether GPU power can be measured.
    """

    cpu_control: bool | None = None
    gpu_control: bool | None = None
    cpu_telemetry: bool | None = None
    gpu_telemetry: bool | None = None


class OverallQuality(JoulieStruct, frozen=True):
    """How the node's hardware was identified.

    Attributes:
        overall: exact (in the hardware catalogue), heuristic or unavailable.
        warnings: warnings of the discovery.
    """

    overall: Annotated[str, one_of(HardwareQuality)] | None = None
    warnings: Warnings = ()


class NodeHardwareStatus(JoulieStruct, frozen=True):
    """The discovered hardware.

    Attributes:
        cpu: CPUs of the node.
        gpu: GPUs of the node.
        memory: memory of the node.
        capabilities: power telemetry and control available on the node.
        quality: how the hardware was identified.
        conditions: conditions of the hardware.
    """

    cpu: CpuHardware | None = None
    gpu: GpuHardware | None = None
    memory: MemoryHardware | None = None
    capabilities: HardwareCapabilities | None = None
    quality: OverallQuality | None = None
    conditions: Conditions = ()


class NodeHardware(KubernetesObject, kw_only=True, frozen=True):
    """The hardware of a node as discovered by its agent.

    Attributes:
        spec: node that the object describes.
        status: discovered hardware.
    """

    metadata: ObjectMeta
    spec: NodeHardwareSpec
    status: NodeHardwareStatus = NodeHardwareStatus()
