"""Device limits from the caps of a NodeTwin.

Pure arithmetic on what the agent has just read; the agent's main program reads and writes the devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from joulie.domain.hardware.models import CapRange
from joulie.domain.quantities import finite_number, positive_number

CPU_FLOOR_SHARE = 0.2
"""Minimum CPU limit as a share of the base where the device states none (powercap never does).

The catalogue's lower end is that of the configurable TDP, a firmware setting; limiters go far below it (60 % of an
EPYC 9654 is 216 W, its configurable TDP starts at 320 W), so most caps would have no effect.
"""

SAME_LIMIT_W = 0.5
"""Limits closer than this are one limit, W: devices round what is written (RAPL to 1/8 W, some firmware to 1 W)."""

_FULL_PERCENT = 100.0


@dataclass(frozen=True)
class WantedCap:
    """The cap of one kind of device as a NodeTwin asks for it. Watts win over percent (spec: NodeTwin).

    Attributes:
        cap_w: limit of one device, W.
        percent: limit in percent of the device's base, 0 (exclusive) to 100.
    """

    cap_w: float | None = None
    percent: float | None = None

    def __post_init__(self) -> None:
        if self.cap_w is not None:
            positive_number("cap_w", self.cap_w)
        if self.percent is not None:
            finite_number("percent", positive_number("percent", self.percent), maximum=_FULL_PERCENT)

    @property
    def lifted(self) -> bool:
        """Whether the cap is lifted: the device gets back the limit that it had before Joulie."""
        return self.cap_w is None and self.percent in {None, _FULL_PERCENT}

    def in_watts(self, limits: CapRange | None) -> float | None:
        """The limit of one device, W, within its range; None where a percentage has no base, or no cap is set."""
        if self.cap_w is not None:
            return self.cap_w if limits is None else limits.clamped(self.cap_w)
        if self.percent is None or limits is None:
            return None
        return limits.from_percent(self.percent)

    def in_percent(self, limits: CapRange | None) -> float | None:
        """The limit in percent of the base, at most 100; None where watts have no base, or no cap is set."""
        if self.cap_w is None:
            return self.percent
        return None if limits is None else min(_FULL_PERCENT, self.cap_w / limits.base_w * _FULL_PERCENT)


def cpu_range(min_w: float | None, max_w: float | None, catalogue: CapRange | None) -> CapRange | None:
    """Range of one CPU package's limit: from the device, else from the catalogue; None if unknown to both.

    Args:
        min_w: minimum limit that the device reports, W; None if it reports none.
        max_w: maximum limit that the device reports, which is its 100 %, W; None if it reports none.
        catalogue: limits of the model; its base is the TDP.
    """
    if max_w is not None:
        base_w, top_w = max_w, max_w
    elif catalogue is not None:
        base_w, top_w = catalogue.base_w, catalogue.max_w
    else:
        return None
    floor_w = CPU_FLOOR_SHARE * base_w if min_w is None else min(min_w, base_w)
    return CapRange(floor_w, top_w, base_w)


def gpu_range(
    min_w: float | None, max_w: float | None, default_w: float | None, catalogue: CapRange | None
) -> CapRange | None:
    """Range of one GPU's limit: from the device, else from the catalogue; None if no base is known.

    Args:
        min_w: minimum limit that the device reports, W.
        max_w: maximum limit that the device reports, W.
        default_w: default limit, which is 100 % of it, W.
        catalogue: limits of the model.
    """
    base_w = default_w or (catalogue.base_w if catalogue else None)
    if base_w is None:
        return None
    low_w = min_w if min_w is not None else catalogue.min_w if catalogue else 0.0
    top_w = max_w if max_w is not None else catalogue.max_w if catalogue else base_w
    return CapRange(min(low_w, base_w), max(top_w, base_w), base_w)


@dataclass(frozen=True)
class LimitedDevice:
    """One device as it is now.

    Attributes:
        id: stable name.
        limit_w: limit in force, W; None where it cannot be read.
        limits: range of the limit; None where unknown.
    """

    id: str
    limit_w: float | None
    limits: CapRange | None


@dataclass(frozen=True)
class LimitPlan:
    """Limits to write to the devices.

    Attributes:
        targets_w: limit that should be in force, by device, W.
        writes_w: those targets that are not in force yet, W.
        originals_w: limits by device to save before the first of these writes, W.
        refused: why a device gets no limit, by device.
    """

    targets_w: Mapping[str, float]
    writes_w: Mapping[str, float]
    originals_w: Mapping[str, float]
    refused: Mapping[str, str]


def plan_limits(cap: WantedCap, devices: Iterable[LimitedDevice], originals_w: Mapping[str, float]) -> LimitPlan:
    """Decide the limit of each device: the same cap on each, or its original where the cap is lifted.

    A device whose original limit is unknown keeps its limit: a cap that could not be lifted again is never written.

    Args:
        cap: what is asked for.
        devices: the devices now.
        originals_w: limits from before Joulie's first write, W, by device.
    """
    targets: dict[str, float] = {}
    saves: dict[str, float] = {}
    refused: dict[str, str] = {}
    devices = tuple(devices)
    for device in devices:
        original_w = originals_w.get(device.id)
        if cap.lifted:
            if original_w is not None:
                targets[device.id] = original_w
            continue
        target_w = cap.in_watts(device.limits)
        found_w = _restorable_w(device) if original_w is None else original_w
        if target_w is None:
            refused[device.id] = "a percentage needs the device's maximum, which neither it nor the catalogue states"
        elif found_w is None:
            refused[device.id] = "the limit in force cannot be read, so it could not be restored"
        else:
            targets[device.id] = target_w
            saves[device.id] = found_w
    writes = {
        device.id: targets[device.id]
        for device in devices
        if device.id in targets and not same_limit(device.limit_w, targets[device.id])
    }
    unsaved = {name: saves[name] for name in writes if name in saves and name not in originals_w}
    return LimitPlan(targets, writes, unsaved, refused)


def _restorable_w(device: LimitedDevice) -> float | None:
    """The limit to go back to, W: the one in force, else the device's 100 %."""
    if device.limit_w is not None:
        return device.limit_w
    return None if device.limits is None else device.limits.base_w


def same_limit(one_w: float | None, other_w: float) -> bool:
    """Whether two limits are equal up to the rounding of devices; an unknown limit equals no other."""
    return one_w is not None and abs(one_w - other_w) <= SAME_LIMIT_W
