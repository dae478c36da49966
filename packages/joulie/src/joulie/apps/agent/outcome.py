"""What became of the caps of one node's CPUs or GPUs, in the words of NodeTwin's `controlStatus`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from joulie.adapters.kubernetes.api.v1alpha1 import ControlOutcome
from joulie.domain.actuation import WantedCap

RESTORED = "restored"
"""First word of the message while no cap is in force: `joulie cleanup` waits for it."""


@dataclass(frozen=True)
class Outcome:
    """The result of one cycle. Messages hold nothing that fluctuates, since a change of them is written to the API.

    Attributes:
        backend: what carried it out: rapl, hsmp, dvfs, nvml, amdsmi, rocm-smi, http or none.
        result: applied, blocked, error or none.
        message: for people.
    """

    backend: str
    result: ControlOutcome
    message: str


def restored(backend: str, what: str) -> Outcome:
    """No cap is in force."""
    return Outcome(backend, ControlOutcome.APPLIED, f"{RESTORED}: {what}")


def blocked(backend: str, message: str) -> Outcome:
    """A cap was asked for and cannot be enforced."""
    return Outcome(backend, ControlOutcome.BLOCKED, message)


def failed(backend: str, message: str) -> Outcome:
    """A cap was asked for, and enforcing it failed; the next cycle tries again."""
    return Outcome(backend, ControlOutcome.ERROR, message)


def no_gpu(tried: Outcome | None = None) -> Outcome:
    """A GPU cap on a node without GPUs; `tried` has the word of the backends that were asked."""
    return Outcome("none", ControlOutcome.NONE, f"no GPU: {tried.message}" if tried else "the node has no GPU")


@dataclass
class Enforcement:
    """What happened to each device of one backend.

    Attributes:
        in_force_w: limits as read back, W.
        refused: devices that cannot be limited, and why.
        failed: devices that should have been limited, and what went wrong.
    """

    in_force_w: dict[str, float] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def problems(self) -> Mapping[str, str]:
        """Everything that stands in the way, by device."""
        return self.refused | self.failed

    def outcome(self, backend: str, cap: WantedCap) -> Outcome:
        """The backend's outcome: one device that is not limited keeps the whole from counting as applied."""
        limits = _grouped(self.in_force_w)
        done = f"{limits} in force{_asked(cap)}" if limits else "no limit in force"
        if not self.problems:
            return Outcome(backend, ControlOutcome.APPLIED, done)
        result = ControlOutcome.ERROR if self.failed else ControlOutcome.BLOCKED
        return Outcome(backend, result, f"{done}; {listed(self.problems)}")


def listed(problems: Mapping[str, str]) -> str:
    """Problems by device; those that all devices share are told once."""
    reasons: dict[str, list[str]] = {}
    for device, reason in problems.items():
        reasons.setdefault(reason, []).append(device)
    return "; ".join(f"{', '.join(devices)}: {reason}" for reason, devices in reasons.items())


def _grouped(limits_w: Mapping[str, float]) -> str:
    """``2 x 162 W`` or ``1 x 300 W, 7 x 240 W``."""
    counts: dict[str, int] = {}
    for limit_w in sorted(limits_w.values(), reverse=True):
        text = f"{limit_w:.4g} W"
        counts[text] = counts.get(text, 0) + 1
    return ", ".join(f"{count} x {text}" for text, count in counts.items())


def _asked(cap: WantedCap) -> str:
    if cap.cap_w is not None:
        return f" for a cap of {cap.cap_w:g} W"
    return "" if cap.percent is None else f" for a cap of {cap.percent:g} %"
