"""What must hold in a life, against the machine's own state."""

from __future__ import annotations

from collections.abc import Mapping

from joulie.adapters.kubernetes.api.v1alpha1 import ControlOutcome
from joulie.adapters.kubernetes.control_reports import RESTORED
from joulie.apps.agent.outcome import Outcome
from joulie.domain.actuation import WantedCap
from joulie.domain.dvfs import DvfsSettings
from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie_lab.benchmarks.lives.bed import Bed
from joulie_lab.machines.specs import Spec

_FLOOR_SHARE = 0.2
_TOLERANCE_W = 1.0
_UNNOTICED_CYCLES = 4
"""Cycles for which a load may exceed a cap that a frequency limit held before."""


class Judge:
    """Compares what the agent does and reports with the machine.

    Attributes:
        violations: what must not be, one line each.
        powers_w: mean power that the CPUs drew between two cycles since the last boot, W.
        unknown: whether a cap is left at the end whose record was lost, and the agent reports so.
        unnoticed: whether a cap is left at the end that nothing tells from an administrator's limit.

    Args:
        bed: the machine and its agent; the limits that it has now are the originals.
    """

    def __init__(self, bed: Bed) -> None:
        self._bed = bed
        self._spec = bed.machine.spec
        self._originals = bed.limits()
        self.violations: list[str] = []
        self.powers_w: list[float] = []
        # The agent was killed in its last cycle; saved limits were lost; no report can tell what was lost.
        self._unreported = self._lost = self._untold = False
        self.unknown = self.unnoticed = False

    def note_boot(self) -> None:
        """The firmware has set the limits, and counters have begun again."""
        self._originals = self._bed.limits()
        self.powers_w.clear()

    def note_loss(self) -> None:
        """The saved limits are lost."""
        self._untold = self._untold or self._holds_unreported_caps()
        self._lost = True

    def note_void_loss(self) -> None:
        """What was known of a loss is void."""
        self._untold = self._untold or self._lost

    def fail(self, what: str) -> None:
        """Note a violation."""
        self.violations.append(f"cycle {self._bed.faults.cycle}: {what}")

    def check_cycle(self, cpu: Outcome, gpu: Outcome, cap: WantedCap, gpu_cap: WantedCap) -> None:
        """Check limits, power and outcomes after a cycle with a cap of the CPUs and one of the GPUs."""
        self._unreported = False
        self._check_limits()
        self._check_power()
        self._check_outcome("cpu", cpu, cap)
        self._check_outcome("gpu", gpu, gpu_cap)

    def check_killed_cycle(self) -> None:
        """Check limits after a cycle in which the agent was killed."""
        self._unreported = True
        self._check_limits()

    def check_end(self) -> None:
        """Check that everything is as it was found."""
        for name, value in self._bed.limits().items():
            original = self._originals[name]
            if value >= original * 0.998 - 0.2:
                continue
            last = self._bed.reported["gpu" if name.startswith("gpu") else "cpu"]
            if self._lost and last.result is ControlOutcome.ERROR:
                self.unknown = True
            elif self._untold:
                self.unnoticed = True
            else:
                self.fail(f"a cap is left: {name} is {value:g}, was {original:g}")

    def _check_limits(self) -> None:
        for name, value in self._bed.limits().items():
            original = self._originals[name]
            allowed = max(original, self._bed.default(name)) if self._lost and _written(name) else original
            if value > allowed * 1.0001:
                self.fail(f"{name} is {value:g}, above the original {original:g}")
            if value != original and not _written(name):
                self.fail(f"{name} was written: {value:g}")

    def _check_power(self) -> None:
        seen = self._bed.host.observation if self._bed.host else None
        power_w = seen.cpu_power.package_power_w if seen else None
        if power_w is None:
            return
        # A counter that is read late counts its energy in the next cycle.
        stale = "stale read" in self._bed.faults.met
        tolerated = (0.01, 3.0) if stale else (0.98, 1.02)
        if not self.powers_w or not min(self.powers_w) * tolerated[0] <= power_w <= max(self.powers_w) * tolerated[1]:
            known = [round(power, 1) for power in self.powers_w]
            self.fail(f"power is reported as {power_w:.1f} W, drawn were {known}")

    def _check_outcome(self, kind: str, outcome: Outcome, cap: WantedCap) -> None:
        if outcome.result is not ControlOutcome.APPLIED:
            return
        limits = {name: value for name, value in self._bed.limits().items() if _is_of(kind, name)}
        if outcome.message.startswith(RESTORED):
            low = [name for name, value in limits.items() if value < self._originals[name] * 0.998 - 0.2]
            if low and not self._lost:
                self.fail(f"{kind} is reported as restored, but {low[0]} is {limits[low[0]]:g}")
        elif outcome.backend == "dvfs":
            self._check_throttle(cap)
        else:
            self._check_cap(kind, outcome, cap, limits)

    def _holds_unreported_caps(self) -> bool:
        """Whether a cap is in force that no report could name: the agent was killed before the first one."""
        limits = self._bed.limits()
        return any(
            limits[name] < self._originals[name]
            for kind in ("cpu", "gpu")
            if self._unreported or kind not in self._bed.reported
            for name in limits
            if _is_of(kind, name)
        )

    def _check_throttle(self, cap: WantedCap) -> None:
        """A cap by frequency that is reported as applied has not been exceeded for long."""
        most_w = _cpu_cap_w(cap, self._spec) * self._spec.packages * 1.1 + 2 * DvfsSettings().high_margin_w
        lately = self.powers_w[-_UNNOTICED_CYCLES:]
        if len(lately) == _UNNOTICED_CYCLES and min(lately) > most_w:
            self.fail(f"cpu cap is reported as applied by dvfs, but power was {min(lately):.0f} W at least")

    def _check_cap(self, kind: str, outcome: Outcome, cap: WantedCap, limits: Mapping[str, float]) -> None:
        """Every device of the backend is at the cap or below; all GPUs, whoever operates them."""
        part = {"rapl": "intel-rapl 0", "hsmp": "hsmp"}.get(outcome.backend, "gpu")
        for name, limit_w in limits.items():
            if name.endswith(part) or name.startswith(part):
                most_w = _gpu_cap_w(name, cap, self._spec) if kind == "gpu" else _cpu_cap_w(cap, self._spec)
                if limit_w > most_w + _TOLERANCE_W:
                    self.fail(f"{kind} cap is reported as applied by {outcome.backend}, but {name} is {limit_w:g} W")
                elif kind == "gpu" and not self._lost and limit_w < min(most_w, self._originals[name]) - _TOLERANCE_W:
                    self.fail(f"{name} is {limit_w:g} W, lower than anybody asks for")


def _written(name: str) -> bool:
    """Whether Joulie writes a value at all."""
    return name.endswith(("intel-rapl 0", "hsmp")) or "policy" in name or name.startswith("gpu")


def _is_of(kind: str, name: str) -> bool:
    return name.startswith("gpu") is (kind == "gpu")


def _gpu_cap_w(name: str, cap: WantedCap, spec: Spec) -> float:
    """The most that a GPU may be limited to under a cap, W."""
    number = int(name.removeprefix("gpu "))
    gpu = spec.gpu_kinds[number]
    wanted_w = cap.cap_w if cap.cap_w is not None else (cap.percent or 100.0) / 100.0 * gpu.default_w
    own_w = dict(cap.by_device).get(spec.gpu_ids[number], wanted_w)
    known = BUILTIN_CATALOGUE.gpu(gpu.model).model
    min_w = gpu.min_w or (known.cap_range.min_w if known else 0.0)
    return min(max(min(own_w, wanted_w), min_w), gpu.max_w)


def _cpu_cap_w(cap: WantedCap, spec: Spec) -> float:
    """The most that a package may be limited to under a cap, W."""
    max_w = spec.hsmp.max_w if spec.hsmp else spec.package_max_w
    wanted_w = cap.cap_w / spec.dies if cap.cap_w is not None else (cap.percent or 100.0) / 100.0 * max_w
    return max(wanted_w, _FLOOR_SHARE * max_w)
