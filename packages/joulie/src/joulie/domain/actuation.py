"""Device limits from the caps of a NodeTwin.

Pure arithmetic on what the agent has just read; the agent's main program reads and writes the devices.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from joulie.domain.hardware.models import CapRange
from joulie.domain.limit_records import FoundLimit, usable_limit
from joulie.domain.quantities import finite_number, positive_number

CPU_FLOOR_SHARE = 0.2
"""Minimum CPU limit as a share of the base where the device states none (powercap never does).

The catalogue's lower end is that of the configurable TDP, a firmware setting; limiters go far below it (60 % of an
EPYC 9654 is 216 W, its configurable TDP starts at 320 W), so most caps would have no effect.
"""

SAME_LIMIT_W = 1.0
"""Limits closer than this are one limit, W: devices round what is written (RAPL to 1/8 W, some firmware to 1 W)."""

_FULL_PERCENT = 100.0
_DIE_SUFFIX = re.compile(r"(?<=^package-)(\d+)-die-\d+$")


@dataclass(frozen=True)
class WantedCap:
    """The cap of one kind of device as a NodeTwin asks for it. Watts win over percent (spec: NodeTwin).

    Attributes:
        cap_w: limit of one device, W.
        percent: limit in percent of the device's base, 0 (exclusive) to 100.
        by_device: limits of single devices, W, which count where they are lower; by device, each once.
    """

    cap_w: float | None = None
    percent: float | None = None
    by_device: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        if self.cap_w is not None:
            positive_number("cap_w", self.cap_w)
        if self.percent is not None:
            finite_number("percent", positive_number("percent", self.percent), maximum=_FULL_PERCENT)
        for device, limit_w in self.by_device:
            positive_number(device, limit_w)

    @property
    def lifted(self) -> bool:
        """Whether the cap is lifted: all devices get back the limits that they had before Joulie."""
        return self._uncapped and not self.by_device

    @property
    def _uncapped(self) -> bool:
        """Whether devices without a limit of their own have none."""
        return self.cap_w is None and self.percent in {None, _FULL_PERCENT}

    def asks_of(self, device: str) -> bool:
        """Whether a device is to be limited."""
        return not self._uncapped or any(one == device for one, _ in self.by_device)

    def of_device(self, device: LimitedDevice) -> float | None:
        """The limit of a device, W, within its range; None where it has none, or a percentage has no base."""
        own = [limit_w for one, limit_w in self.by_device if one == device.id]
        own = own if device.limits is None else list(map(device.limits.clamped, own))
        common_w = None if self._uncapped else self.in_watts(device.limits, device.share)
        return min(own if common_w is None else [common_w, *own], default=None)

    def in_watts(self, limits: CapRange | None, share: float = 1.0) -> float | None:
        """The limit of one device, W, within its range; None where a percentage has no base, or no cap is set.

        Args:
            limits: range of the device.
            share: part of a cap in watts that is for this device.
        """
        if self.cap_w is not None:
            own_w = self.cap_w * share
            return own_w if limits is None else limits.clamped(own_w)
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
        share: part of a cap in watts that is for this device: dies share the cap of their socket.
        clips: whether it may put another limit in force than the one written: it states no smallest one.
    """

    id: str
    limit_w: float | None
    limits: CapRange | None
    share: float = 1.0
    clips: bool = False


def socket_of(device_id: str) -> str:
    """Socket of a RAPL package zone, ``package-0`` of ``package-0-die-1``; any other device is its own."""
    return _DIE_SUFFIX.sub(r"\1", device_id)


def die_shares(maxima_w: Mapping[str, float | None]) -> dict[str, float]:
    """Part of its socket's power of each device: by the maxima where all dies of the socket state one, else equal.

    Args:
        maxima_w: maximum limit by device, W; None where the device states none.
    """
    sockets: dict[str, dict[str, float | None]] = {}
    for device_id, max_w in maxima_w.items():
        sockets.setdefault(socket_of(device_id), {})[device_id] = max_w
    shares: dict[str, float] = {}
    for dies in sockets.values():
        known = [max_w for max_w in dies.values() if max_w is not None]
        total_w = sum(known) if len(known) == len(dies) else 0.0
        for device_id, max_w in dies.items():
            shares[device_id] = max_w / total_w if max_w and total_w > 0.0 else 1.0 / len(dies)
    return shares


def unsure_dies(device_ids: Collection[str]) -> set[str]:
    """Dies whose share of their socket is not known now: a package whose id cannot be read may be their sibling.

    A wrong share gives them a wrong limit, and takes a limit of Joulie's whose record was lost for their owner's.
    """
    if all(device_id.startswith("package-") for device_id in device_ids):
        return set()
    return {device_id for device_id in device_ids if _DIE_SUFFIX.search(device_id)}


def scaled_range(limits: CapRange | None, share: float) -> CapRange | None:
    """The part of a socket's range that is for one of its dies; None if the range is unknown."""
    return limits and CapRange(limits.min_w * share, limits.max_w * share, limits.base_w * share)


def socket_range(dies: Iterable[CapRange | None]) -> CapRange | None:
    """Range of a socket from those of its dies; None if that of a die is unknown."""
    ranges = tuple(dies)
    known = [limits for limits in ranges if limits is not None]
    if not known or len(known) < len(ranges):
        return None
    return CapRange(
        sum(limits.min_w for limits in known),
        sum(limits.max_w for limits in known),
        sum(limits.base_w for limits in known),
    )


@dataclass(frozen=True)
class WantedLimits:
    """What a cap asks of the devices of one backend.

    Attributes:
        found: the devices, with what is needed to find their originals again.
        limits_w: limit by device, W.
        refused: why a device gets no limit, by device.
        released: devices that nothing is asked of, while others are limited.
    """

    found: Sequence[FoundLimit]
    limits_w: Mapping[str, float]
    refused: Mapping[str, str]
    released: Collection[str] = ()


def wanted_limits(
    cap: WantedCap,
    devices: Iterable[LimitedDevice],
    earlier: WantedCap | None = None,
    earlier_limits_w: Iterable[float] = (),
) -> WantedLimits:
    """The limit of each device under a cap; none where nothing is asked of it.

    Args:
        cap: what is asked for, by GPU or socket.
        devices: the devices now.
        earlier: cap of an earlier process that may still be in force; None without one.
        earlier_limits_w: further limits of an earlier process that may still be in force, W.
    """
    found: list[FoundLimit] = []
    wanted: dict[str, float] = {}
    released: list[str] = []
    absent = dict(cap.by_device)
    refused: dict[str, str] = {}
    for device in devices:
        absent.pop(device.id, None)
        target_w = cap.of_device(device)
        default_w = None if device.limits is None else device.limits.base_w
        caps = (cap, earlier) if earlier else (cap,)
        asked_w = (one.of_device(seen) for one in caps for seen in _as_seen(device))
        candidates = tuple(limit_w for limit_w in (*asked_w, *earlier_limits_w) if limit_w is not None)
        limit_w, floor_known = usable_limit(device.limit_w), not device.limits or device.limits.min_w > 0.0
        found.append(FoundLimit(device.id, limit_w, default_w, candidates, device.clips, floor_known))
        if target_w is not None:
            wanted[device.id] = target_w
        elif cap.asks_of(device.id):
            refused[device.id] = "a percentage needs the device's maximum, which neither it nor the catalogue states"
        else:
            released.append(device.id)
    refused |= dict.fromkeys(absent, "no such device")
    return WantedLimits(found, wanted, refused, () if cap.lifted else released)


def _as_seen(device: LimitedDevice) -> Iterable[LimitedDevice]:
    """A device as it is, and as a process took it that could not read its model, whose smallest limit is that of."""
    yield device
    if device.clips and device.limits is not None:
        yield replace(device, limits=replace(device.limits, min_w=0.0))


def same_limit(one_w: float, other_w: float) -> bool:
    """Whether two limits are equal up to the rounding of devices."""
    return abs(one_w - other_w) <= SAME_LIMIT_W
