"""What an agent's report in a NodeTwin says about the limits of its node."""

from __future__ import annotations

from joulie.adapters.kubernetes.api.v1alpha1 import ControlOutcome, ControlResult, NodeTwin, NodeTwinSpec

RESTORED = "restored"
"""Prefix of an agent's message while no cap is in force."""

SIMULATED = "SIMULATE_ONLY: nothing is"
"""In an agent's message where limits are only planned."""

_FULL_PERCENT = 100.0


def requests_cap(spec: NodeTwinSpec) -> bool:
    """Whether a NodeTwin asks for a cap below 100 %, or for a limit of a GPU."""
    cpu, gpu = spec.cpu, spec.gpu.power_cap if spec.gpu else None
    return (
        bool(spec.gpu_limits)
        or (cpu is not None and _is_cap(cpu.package_power_cap_watts, cpu.package_power_cap_pct_of_max))
        or (gpu is not None and _is_cap(gpu.cap_watts_per_gpu, gpu.cap_pct_of_max))
    )


def nothing_limits(result: ControlResult) -> bool:
    """Whether a report says that nothing can limit its subsystem: no limit of Joulie's is in force.

    A backend that is named limits some of its devices, or may have limits of an earlier cycle.
    """
    if result.result == ControlOutcome.NONE:
        return True
    unused = (result.backend or "none") == "none" or SIMULATED in (result.message or "")
    return result.result == ControlOutcome.BLOCKED and unused


def _is_cap(watts: float | None, percent: float | None) -> bool:
    return watts is not None or (percent is not None and percent < _FULL_PERCENT)


def not_restored_reason(twin: NodeTwin) -> str:
    """Why a node without a requested cap is not restored, by its agent's report; empty if it is restored.

    An agent in observe mode has set no limit.
    """
    control = twin.status.control_status
    if control is None or control.cpu is None or control.gpu is None:
        return "no agent has reported"
    reports = {"CPU": control.cpu, "GPU": control.gpu}
    problems = "; ".join(
        f"{device} {report.result}: {report.message or 'no message'}"
        for device, report in reports.items()
        if report.result != ControlOutcome.OBSERVED and not (report.message or "").startswith(RESTORED)
    )
    locked = [gpu.id for gpu in control.gpus if gpu.sm_clock is not None and gpu.sm_clock.result is not None]
    if locked:
        problems = "; ".join(filter(None, [problems, f"SM clocks may be locked: {', '.join(locked)}"]))
    # An agent that has stopped for good, and one of an earlier release, state no generation.
    if problems or control.observed_generation in {None, twin.metadata.generation}:
        return problems
    return "the last report is about an earlier spec"
