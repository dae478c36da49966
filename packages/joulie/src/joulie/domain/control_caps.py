"""The caps of a node: as its profile asks for them, and as its devices clamp them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from joulie.domain.capping.node_limits import PowerCeiling
from joulie.domain.hardware import CapRange
from joulie.domain.hardware.resolve import ResolvedHardware
from joulie.domain.policy import NO_CAP, Cap, Profile, ProfileCaps

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


class ReportedCap(NamedTuple):
    """What a node's agent reports about the cap of one subsystem."""

    cap: Cap | None
    """The cap that it was asked to apply; None for none."""
    result: str
    """In one word, for people: applied, unconfirmed, blocked, error, ..."""
    confirmed: bool
    """Whether a reading confirmed that the cap is in force."""
    unlimited: bool = False
    """Whether nothing can limit the subsystem, so that it has its full power."""


NO_REPORT = ReportedCap(None, "no report", confirmed=False)


class ReportedCaps(NamedTuple):
    """What a node's agent reports about its caps."""

    cpu: ReportedCap = NO_REPORT
    gpu: ReportedCap = NO_REPORT


UNREPORTED = ReportedCaps()


def in_force(caps: NodeCaps, reported: ReportedCaps) -> tuple[NodeCaps, tuple[str, ...]]:
    """The caps with the percentages that are really in force, and the limits that are not.

    A cap counts only once its agent has confirmed this very cap: what is blocked, unconfirmed or not reported yet is
    100 %.

    Returns:
        The caps, and for each subsystem whose planned limit is not in force a few words, such as ``cpu: blocked``.
    """
    missing: list[str] = []
    if caps.cpu_percent < 100.0 and not _confirmed(caps.cpu, reported.cpu):
        missing.append(f"cpu: {_why_not(reported.cpu)}")
        caps = caps._replace(cpu_percent=100.0)
    if caps.gpu_percent < 100.0 and not _confirmed(caps.gpu, reported.gpu):
        missing.append(f"gpu: {_why_not(reported.gpu)}")
        caps = caps._replace(gpu_percent=100.0)
    return caps, tuple(missing)


def is_unlimited(caps: NodeCaps, reported: ReportedCaps) -> bool:
    """Whether a node that is to be capped has its full power, since nothing can limit any part that is to be."""
    limited = [
        (cap, report)
        for cap, percent, report in (
            (caps.cpu, caps.cpu_percent, reported.cpu),
            (caps.gpu, caps.gpu_percent, reported.gpu),
        )
        if percent < 100.0
    ]
    return bool(limited) and all(report.unlimited and _same_cap(cap, report.cap) for cap, report in limited)


def _confirmed(cap: Cap | None, reported: ReportedCap) -> bool:
    return reported.confirmed and _same_cap(cap, reported.cap)


def _why_not(reported: ReportedCap) -> str:
    # An applied report about another cap says nothing about this one.
    return NO_REPORT.result if reported.confirmed else reported.result


def _same_cap(cap: Cap | None, other: Cap | None) -> bool:
    """Whether two caps ask for the same: watts win over percent."""
    if cap is None or other is None:
        return cap is other
    if cap.watts is not None or other.watts is not None:
        return cap.watts == other.watts
    return cap.percent == other.percent


def under(caps: NodeCaps, ceiling: PowerCeiling | None, hardware: ResolvedHardware) -> NodeCaps:
    """The caps, lowered to a ceiling where they are above it."""
    if ceiling is None:
        return caps
    gpu_range = None if hardware.gpu is None else hardware.gpu.cap_range
    cpu, cpu_percent = _lowered(caps.cpu, caps.cpu_percent, ceiling.cpu_w, hardware.cpu.cap_range)
    gpu, gpu_percent = _lowered(caps.gpu, caps.gpu_percent, ceiling.gpu_w, gpu_range)
    return NodeCaps(cpu, gpu, cpu_percent, gpu_percent)


def _lowered(
    cap: Cap | None, percent: float, ceiling_w: float | None, limits: CapRange | None
) -> tuple[Cap | None, float]:
    if ceiling_w is None or limits is None:
        return cap, percent
    if cap is not None and cap != NO_CAP and cap.for_device(limits) <= limits.clamped(ceiling_w):
        return cap, percent
    lower = Cap(watts=ceiling_w)
    return lower, min(percent, _in_force_percent(lower, limits))


UNCAPPED = NodeCaps(None, None, 100.0, 100.0)


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
        cpu_cap = cpu or asked.cpu or usual.cpu or NO_CAP
        cpu_percent = _in_force_percent(cpu_cap, hardware.cpu.cap_range)
        if hardware.gpu is None:
            return NodeCaps(cpu_cap, None, cpu_percent, 100.0)
        limits = hardware.gpu.cap_range
        names = (hardware.gpu.raw, hardware.gpu.model)
        gpu_cap = gpu or asked.gpu_cap(*names) or usual.gpu_cap(*names) or NO_CAP
        if self._absolute_gpu_caps and limits is not None:
            gpu_cap = Cap(gpu_cap.percent, gpu_cap.for_device(limits))
        return NodeCaps(cpu_cap, gpu_cap, cpu_percent, _in_force_percent(gpu_cap, limits))


def _in_force_percent(cap: Cap, limits: CapRange | None) -> float:
    """The cap in force, percent of the base: clamped by the device, at most 100."""
    if limits is None:
        return 100.0 if cap.watts is not None else cap.percent
    return min(100.0, cap.for_device(limits) / limits.base_w * 100.0)
