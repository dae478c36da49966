"""The caps of a node: as its profile asks for them, and as its devices clamp them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from joulie.domain.hardware import CapRange
from joulie.domain.hardware.resolve import ResolvedHardware
from joulie.domain.policy import Cap, Profile, ProfileCaps

CapsByProfile = Mapping[Profile, ProfileCaps]


class NodeCaps(NamedTuple):
    """The caps of one node, and their effect on its devices."""

    cpu: Cap | None
    """Of one package; None uncapped."""
    gpu: Cap | None
    """Of one GPU; None uncapped, or no GPU."""
    cpu_percent: float
    """In force, percent of the TDP, after clamping to what the device accepts."""
    gpu_percent: float


UNCAPPED = NodeCaps(None, None, 100.0, 100.0)
_UNCAPPED = Cap()


class CapTable:
    """Caps by profile and hardware; worked out once for all nodes that share an object of hardware.

    Args:
        usual: caps that each profile asks for, where a plan does not say otherwise.
        absolute_gpu_caps: whether GPU percentages are stated as watts where the device's range is known.
    """

    def __init__(self, usual: CapsByProfile, *, absolute_gpu_caps: bool = False) -> None:
        self._usual = usual
        self._absolute_gpu_caps = absolute_gpu_caps
        # By identity, since the hash of hardware costs more than the caps. The objects are kept: the identity of one
        # that is gone may be another's.
        self._known: dict[tuple[Profile, int, int], tuple[NodeCaps, ResolvedHardware, CapsByProfile]] = {}

    def of(self, hardware: ResolvedHardware, profile: Profile, planned: CapsByProfile | None = None) -> NodeCaps:
        """The caps of a profile: those that the plan has for the node, else the usual ones."""
        asked = self._usual if planned is None else planned
        key = (profile, id(hardware), id(asked))
        if key not in self._known:
            self._known[key] = self._caps(hardware, asked[profile], self._usual[profile]), hardware, asked
        return self._known[key][0]

    def overridden(
        self,
        hardware: ResolvedHardware,
        profile: Profile,
        cpu: Cap | None,
        gpu: Cap | None,
        planned: CapsByProfile | None = None,
    ) -> NodeCaps:
        """The caps of a profile, but `cpu` for a package and `gpu` for a GPU where they are given."""
        asked = self._usual if planned is None else planned
        return self._caps(hardware, asked[profile], self._usual[profile], cpu, gpu)

    def _caps(
        self,
        hardware: ResolvedHardware,
        asked: ProfileCaps,
        usual: ProfileCaps,
        cpu: Cap | None = None,
        gpu: Cap | None = None,
    ) -> NodeCaps:
        cpu_cap = cpu or asked.cpu or usual.cpu or _UNCAPPED
        cpu_percent = _in_force_percent(cpu_cap, hardware.cpu.cap_range)
        if hardware.gpu is None:
            return NodeCaps(cpu_cap, None, cpu_percent, 100.0)
        limits = hardware.gpu.cap_range
        names = (hardware.gpu.raw, hardware.gpu.model)
        gpu_cap = gpu or asked.gpu_cap(*names) or usual.gpu_cap(*names) or _UNCAPPED
        if self._absolute_gpu_caps and limits is not None:
            gpu_cap = Cap(gpu_cap.percent, gpu_cap.for_device(limits))
        return NodeCaps(cpu_cap, gpu_cap, cpu_percent, _in_force_percent(gpu_cap, limits))


def _in_force_percent(cap: Cap, limits: CapRange | None) -> float:
    """The cap in force, percent of the base: clamped by the device, at most 100."""
    if limits is None:
        return 100.0 if cap.watts is not None else cap.percent
    return min(100.0, cap.for_device(limits) / limits.base_w * 100.0)
