"""CPU and GPU models: plain numbers for the arithmetic, and beside each number where it comes from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Any, ClassVar

from joulie.domain.quantities import InvalidQuantityError, finite_number, positive_number

CURVE_POINTS = 11
"""Points of a measured power curve: 0, 10, ... 100 % utilisation, as SPECpower_ssj2008 reports them."""


class Provenance(StrEnum):
    """How a hardware fact is known."""

    EXACT = "exact"
    """The vendor's own specification of this part."""
    LISTED = "listed"
    """A public table's figure for this part, not the vendor's own page."""
    MEASURED = "measured"
    """A published measurement of this part."""
    PROXY = "proxy"
    """Scaled from a measurement of a related part."""
    ASSUMED = "assumed"
    """A modelling assumption that nobody measured."""


@dataclass(frozen=True)
class Evidence:
    """Where one fact comes from.

    Attributes:
        provenance: the kind of knowledge.
        source: data sheet, paper or measurement, by its public name.
    """

    provenance: Provenance
    source: str


class HardwareModelError(ValueError):
    """A hardware model that contradicts itself or leaves a fact without evidence."""


@dataclass(frozen=True)
class CapRange:
    """The power limits that one device accepts.

    `base_w` is what 100 % means: the maximum that a CPU package reports (its TDP where only the catalogue speaks), the
    *default* limit of a GPU, which can lie below its maximum. The three are separate because taking the end of the
    range for the base silently moves every cap.

    Attributes:
        min_w: smallest limit, W.
        max_w: largest limit, W.
        base_w: limit at 100 %, W.
    """

    min_w: float
    max_w: float
    base_w: float

    def __post_init__(self) -> None:
        finite_number("min_w", self.min_w, minimum=0.0)
        positive_number("base_w", self.base_w)
        if not self.min_w <= self.base_w <= self.max_w:
            raise InvalidQuantityError(
                "base_w", f"must lie within the device's range [{self.min_w:g}, {self.max_w:g}], got {self.base_w:g}"
            )

    def from_percent(self, percent: float) -> float:
        """Limit in watts at `percent` of the base, clamped to the range (spec: control loop, percent and watts).

        Args:
            percent: 0 (exclusive) to 100.

        Raises:
            InvalidQuantityError: a percentage that is NaN, zero, negative or above 100.
        """
        share = finite_number("percent", positive_number("percent", percent), maximum=100.0) / 100.0
        return self.clamped(share * self.base_w)

    def clamped(self, cap_w: float) -> float:
        """`cap_w` moved into the range, W."""
        return min(max(positive_number("cap_w", cap_w), self.min_w), self.max_w)


@dataclass(frozen=True)
class CpuModel:
    """One CPU model.

    Attributes:
        key: the catalogue's name of it.
        vendor: ``AMD``, ``Intel`` or another.
        cores_per_socket: physical cores.
        tdp_w: thermal design power of one socket, W; what 100 % of a package cap means.
        cap_min_w: lower end of the configurable TDP of one socket, W.
        cap_max_w: upper end of it, W.
        base_hz: base clock, Hz; None where it was never published.
        boost_hz: maximum boost clock, Hz; None where it was never published.
        curve_w: wall power of a whole node with `curve_sockets` sockets, W: either `CURVE_POINTS` values at even steps
            of utilisation, or two, idle and full load, between which the parametric curve is assumed.
        curve_sockets: sockets of the node that the curve describes.
        threads_per_core: logical CPUs of a core, as the part ships.
        aliases: other spellings of this same part.
        stand_in_for: other parts that this one describes closely enough; a match by them is heuristic.
        evidence: where each fact comes from, by field name.
    """

    FACTS: ClassVar[tuple[str, ...]] = (
        "cores_per_socket",
        "tdp_w",
        "cap_min_w",
        "cap_max_w",
        "base_hz",
        "boost_hz",
        "curve_w",
    )

    key: str
    vendor: str
    cores_per_socket: int
    tdp_w: float
    cap_min_w: float
    cap_max_w: float
    base_hz: float | None
    boost_hz: float | None
    curve_w: tuple[float, ...]
    curve_sockets: int = 2
    threads_per_core: int = 2
    aliases: tuple[str, ...] = ()
    stand_in_for: tuple[str, ...] = ()
    evidence: Mapping[str, Evidence] = field(default_factory=dict, hash=False, repr=False)

    def __post_init__(self) -> None:
        positive_number("cores_per_socket", self.cores_per_socket)
        positive_number("curve_sockets", self.curve_sockets)
        positive_number("threads_per_core", self.threads_per_core)
        for clock_hz in (self.base_hz, self.boost_hz):
            if clock_hz is not None:
                positive_number("clock_hz", clock_hz)
        for power_w in self.curve_w:
            positive_number("curve_w", power_w)
        if len(self.curve_w) not in {2, CURVE_POINTS}:
            raise HardwareModelError(f"{self.key}: curve_w needs {CURVE_POINTS} points or 2, got {len(self.curve_w)}")
        if any(higher < lower for lower, higher in pairwise(self.curve_w)):
            raise HardwareModelError(f"{self.key}: curve_w must not fall as utilisation rises")
        if self.base_hz is not None and self.boost_hz is not None and self.boost_hz < self.base_hz:
            raise HardwareModelError(f"{self.key}: boost_hz is below base_hz")
        _ = self.cap_range
        _check_evidence(self.key, self.evidence, _stated(self))

    @property
    def is_stand_in(self) -> bool:
        """Whether its TDP is that of a related part, since its own was never published."""
        return self.evidence["tdp_w"].provenance is Provenance.PROXY

    @property
    def cap_range(self) -> CapRange:
        """Limits of one socket's package; what a device reports about itself takes precedence."""
        return CapRange(self.cap_min_w, self.cap_max_w, self.tdp_w)


@dataclass(frozen=True)
class GpuModel:
    """One GPU model; all powers are of one device.

    Attributes:
        key: the catalogue's name of it.
        vendor: ``NVIDIA`` or ``AMD``.
        cap_min_w: smallest power limit, W.
        cap_max_w: largest power limit, W.
        default_w: default power limit, W; what 100 % means.
        idle_w: draw of an idle device, W.
        compute_gamma: exponent of the published throughput model; None where none was published.
        aliases: other spellings of this same part.
        stand_in_for: other parts that this one describes closely enough; a match by them is heuristic.
        evidence: where each fact comes from, by field name.
    """

    FACTS: ClassVar[tuple[str, ...]] = ("cap_min_w", "cap_max_w", "default_w", "idle_w", "compute_gamma")

    key: str
    vendor: str
    cap_min_w: float
    cap_max_w: float
    default_w: float
    idle_w: float
    compute_gamma: float | None = None
    aliases: tuple[str, ...] = ()
    stand_in_for: tuple[str, ...] = ()
    evidence: Mapping[str, Evidence] = field(default_factory=dict, hash=False, repr=False)

    def __post_init__(self) -> None:
        finite_number("idle_w", self.idle_w, minimum=0.0)
        if self.idle_w >= self.default_w:
            raise HardwareModelError(f"{self.key}: idle_w must be below default_w")
        if self.compute_gamma is not None:
            positive_number("compute_gamma", self.compute_gamma)
        _ = self.cap_range
        _check_evidence(self.key, self.evidence, _stated(self))

    @property
    def is_stand_in(self) -> bool:
        """Whether its limit is that of a related part, since its own was never published."""
        return self.evidence["default_w"].provenance is Provenance.PROXY

    @property
    def cap_range(self) -> CapRange:
        """Limits of one device; what the device reports about itself takes precedence."""
        return CapRange(self.cap_min_w, self.cap_max_w, self.default_w)


def _stated(model: CpuModel | GpuModel) -> list[str]:
    return [name for name in model.FACTS if getattr(model, name) is not None]


def _check_evidence(key: str, evidence: Mapping[str, Any], facts: Iterable[str]) -> None:
    """Refuse a model with a fact without evidence, or evidence for a fact that it lacks."""
    unknown = sorted(set(evidence) - set(facts))
    missing = [name for name in facts if name not in evidence]
    if missing:
        raise HardwareModelError(f"{key}: no evidence for {', '.join(missing)}")
    if unknown:
        raise HardwareModelError(f"{key}: evidence for unknown facts: {', '.join(unknown)}")
