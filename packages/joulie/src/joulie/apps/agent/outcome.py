"""Result of enforcing the caps of a node's CPUs or GPUs, as reported in the `controlStatus` of its NodeTwin."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from joulie.adapters.kubernetes import control_reports
from joulie.adapters.kubernetes.api.v1alpha1 import ControlOutcome, ControlResult
from joulie.adapters.kubernetes.control_reports import RESTORED
from joulie.domain.actuation import WantedCap, same_limit
from joulie.domain.saved_records import ReportedLimits

SIMULATED = f"{control_reports.SIMULATED} written"
"""Prefix of the message where limits are only planned."""

NEVER_CHANGED = "; no limit was changed so far, for none could be saved"
"""End of the message where no limit in force is one of Joulie's."""

_CAP = re.compile(r" for a cap of (?P<value>[0-9.e+]+) (?P<unit>[W%])(;|$)")
"""A cap in force in a message, as `format_cap` writes it."""
_SINGLE = "set for single devices"
_LEFT = re.compile(rf"((?:[0-9.e+]+ W, )*[0-9.e+]+ W) (?:may be in force|{_SINGLE})")
"""Further limits in a message, as `format_left` and `Enforcement.outcome` write them."""


@dataclass(frozen=True)
class Outcome:
    """Result of enforcing a cap in one cycle.

    Attributes:
        backend: backend that enforced the cap: rapl, hsmp, dvfs, nvml, amdgpu, amdsmi, rocm-smi, http or none; several
            joined by ``+`` where GPUs are of two vendors, or more than one may hold limits, such as nvml+amdgpu.
        result: applied, blocked, error or none.
        message: human-readable details. It contains no fluctuating values: every change is a write to the API.
    """

    backend: str
    result: ControlOutcome
    message: str


def reported_limits(result: ControlResult) -> Sequence[ReportedLimits]:
    """Limits that may be in force by a stored result, by backend; none if it says that none is."""
    found = _reported_limits(result)
    return () if found is None else [replace(found, backend=name) for name in backends_of(found.backend)]


def _reported_limits(result: ControlResult) -> ReportedLimits | None:
    if not result.backend or result.result in {ControlOutcome.NONE, ControlOutcome.OBSERVED}:
        return None
    message = result.message or ""
    if message.startswith((RESTORED, SIMULATED)) or message.endswith(NEVER_CHANGED):
        return None
    try:
        stated = _CAP.search(message)
        value = float(stated["value"]) if stated else 0.0
        cap = stated and (WantedCap(value) if stated["unit"] == "W" else WantedCap(percent=value))
        left = ", ".join(_LEFT.findall(message))
        limits_w = {float(limit.removesuffix(" W")) for limit in left.split(", ") if limit}
    except ValueError:
        return ReportedLimits(result.backend)
    complete = result.result == ControlOutcome.APPLIED and (cap is not None or message.endswith(_SINGLE))
    return ReportedLimits(result.backend, cap, tuple(sorted(limits_w)), complete=complete)


def restored(backend: str, what: str) -> Outcome:
    """Outcome while no cap is in force."""
    return Outcome(backend, ControlOutcome.APPLIED, f"{RESTORED}: {what}")


def unconfirmed(backend: str, message: str) -> Outcome:
    """Outcome of a requested cap that no reading confirms yet."""
    return Outcome(backend, ControlOutcome.UNCONFIRMED, message)


def blocked(backend: str, message: str) -> Outcome:
    """Outcome of a requested cap that cannot be enforced."""
    return Outcome(backend, ControlOutcome.BLOCKED, message)


def failed(backend: str, message: str) -> Outcome:
    """Outcome of a requested cap that failed to be enforced; the next cycle retries."""
    return Outcome(backend, ControlOutcome.ERROR, message)


def observed(backend: str, what: str) -> Outcome:
    """Outcome in observe mode: nothing is written; `what` would be."""
    return Outcome(backend, ControlOutcome.OBSERVED, f"observe mode, nothing is written; otherwise {what}")


def observed_without_cap(backend: str) -> Outcome:
    """Outcome in observe mode while no cap is requested."""
    return Outcome(backend, ControlOutcome.OBSERVED, f"{RESTORED}: observe mode, no cap requested")


_WORST_FIRST = (
    ControlOutcome.ERROR,
    ControlOutcome.BLOCKED,
    ControlOutcome.UNCONFIRMED,
    ControlOutcome.OBSERVED,
    ControlOutcome.APPLIED,
)
_JOINED = "+"


def backends_of(text: str) -> list[str]:
    """The backends that `joined` has made one text of."""
    return text.split(_JOINED)


def worst(results: Iterable[ControlOutcome]) -> ControlOutcome:
    """The worst of at least one result."""
    return min(results, key=_WORST_FIRST.index)


def all_of(outcomes: Sequence[Outcome]) -> Outcome:
    """The outcome of backends that operate side by side: the worst result, the backends by name, joined by ``+``."""
    # What has no backend has nothing to restore, and its message must not lead one of limits that are not restored.
    concerned = [one for one in outcomes if one.backend != "none" or not one.message.startswith(RESTORED)]
    distinct = list(dict.fromkeys(concerned or outcomes))
    used = [one for one in distinct if one.backend != "none"]
    first = distinct[0]
    if len(distinct) == 1 or (first.message.startswith(RESTORED) and len({one.message for one in distinct}) == 1):
        return Outcome(joined(one.backend for one in used), first.result, first.message)
    # A backend that holds no limit is named nowhere: a later process would look for one.
    holding = [one for one in used if not one.message.startswith(RESTORED)]
    result = worst(one.result for one in distinct)
    simulated = all(one.message.startswith(SIMULATED) for one in distinct)
    lead = f"{SIMULATED}; otherwise " if simulated else ""
    parts = (
        one.message.removeprefix(lead) if one.backend == "none" else f"{one.backend}: {one.message.removeprefix(lead)}"
        for one in distinct
    )
    return Outcome(joined(one.backend for one in holding), result, lead + "; ".join(parts))


def joined(backends: Iterable[str]) -> str:
    """Backends as one outcome names them; ``none`` without any."""
    return _JOINED.join(dict.fromkeys(backends)) or "none"


def no_gpu(tried: Outcome | None = None) -> Outcome:
    """Outcome of a GPU cap on a node without GPUs; `tried` is the outcome of the backends, if any were tried."""
    return Outcome("none", ControlOutcome.NONE, f"no GPU: {tried.message}" if tried else "the node has no GPU")


@dataclass
class Enforcement:
    """Result of enforcing a cap on each device of one backend.

    Attributes:
        in_force_w: limits read back by device, W (Hz for frequency limits).
        refused: reason by device for devices that cannot be limited.
        failed: error by device for devices whose limit could not be set.
        left_w: limits written to devices with a problem, which may be in force there, W.
    """

    in_force_w: dict[str, float] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    left_w: Sequence[float] = ()

    @property
    def problems(self) -> Mapping[str, str]:
        """Refusals and errors by device."""
        return self.refused | self.failed

    def outcome(self, backend: str, cap: WantedCap) -> Outcome:
        """Outcome of the backend; it is `applied` only if every device is limited."""
        limits = format_limits(self.in_force_w)
        done = f"{limits} in force{format_cap(cap)}{self._format_single(cap)}" if limits else "no limit in force"
        if not self.problems:
            return Outcome(backend, ControlOutcome.APPLIED, done)
        result = ControlOutcome.ERROR if self.failed else ControlOutcome.BLOCKED
        return Outcome(backend, result, f"{done}; {format_problems(self.problems)}{format_left(self.left_w)}")

    def _format_single(self, cap: WantedCap) -> str:
        """Text about limits of single devices, but for those whose owners have set lower ones; empty without any."""
        set_w = {self.in_force_w[device] for device, limit_w in cap.by_device if self._holds(device, limit_w)}
        return f"; {_format_w(set_w)} {_SINGLE}" if set_w else ""

    def _holds(self, device: str, limit_w: float) -> bool:
        in_force_w = self.in_force_w.get(device)
        return in_force_w is not None and (in_force_w > limit_w or same_limit(in_force_w, limit_w))


def format_problems(problems: Mapping[str, str]) -> str:
    """One-line text of problems by device; devices with the same problem are grouped."""
    reasons: dict[str, list[str]] = {}
    for device, reason in problems.items():
        reasons.setdefault(reason, []).append(device)
    return "; ".join(f"{', '.join(devices)}: {reason}" for reason, devices in reasons.items())


def format_limits(limits_w: Mapping[str, float]) -> str:
    """Limits grouped by value: ``2 x 162 W`` or ``1 x 300 W, 7 x 240 W``."""
    counts: dict[str, int] = {}
    for limit_w in sorted(limits_w.values(), reverse=True):
        text = f"{limit_w:.4g} W"
        counts[text] = counts.get(text, 0) + 1
    return ", ".join(f"{count} x {text}" for text, count in counts.items())


def format_left(limits_w: Iterable[float]) -> str:
    """Text about limits that devices with a problem may have; empty without any.

    A later process needs it if its saved limits are lost.
    """
    limits = _format_w(limits_w)
    return f"; {limits} may be in force" if limits else ""


def _format_w(limits_w: Iterable[float]) -> str:
    return ", ".join(f"{limit_w:.4g} W" for limit_w in sorted(set(limits_w), reverse=True))


def format_cap(cap: WantedCap) -> str:
    """Text about the cap that limits are in force for; empty without one."""
    if cap.cap_w is not None:
        return f" for a cap of {cap.cap_w:g} W"
    return "" if cap.percent is None else f" for a cap of {cap.percent:g} %"
