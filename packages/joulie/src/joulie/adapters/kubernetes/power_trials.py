"""PowerTrials in the domain's terms."""

from __future__ import annotations

from joulie.adapters.kubernetes.api.v1alpha1 import PowerTrial, TrialProtocol, WorkloadDraw
from joulie.adapters.kubernetes.times import parse_rfc3339, rfc3339
from joulie.domain.quantities import SECONDS_PER_MINUTE
from joulie.domain.trial.guard import Bounds
from joulie.domain.trial.protocol import Protocol, Treated
from joulie.domain.trial.workload_protocol import WorkloadProtocol

RUNNING = "Running"
"""Type of a trial's condition."""


def protocol_of(trial: PowerTrial) -> Protocol | None:
    """The draw of a trial; None before it is drawn.

    Raises:
        ValueError: the stored draw is broken: nobody but the operator writes it.
    """
    stored = trial.status.protocol
    if stored is None:
        return None
    return Protocol(
        parse_rfc3339(stored.start_time),
        stored.block_minutes * SECONDS_PER_MINUTE,
        stored.washout_minutes * SECONDS_PER_MINUTE,
        stored.first_half,
        stored.second_half,
        stored.left_out,
        tuple(Treated(one) for one in stored.order),
        stored.seed,
    )


def stored_protocol(protocol: Protocol) -> TrialProtocol:
    """A draw as the trial's status keeps it. Blocks and washouts are whole minutes, and it starts at a whole second."""
    return TrialProtocol(
        start_time=rfc3339(protocol.start_s),
        end_time=rfc3339(protocol.end_s),
        block_minutes=round(protocol.block_s / SECONDS_PER_MINUTE),
        washout_minutes=round(protocol.washout_s / SECONDS_PER_MINUTE),
        seed=protocol.seed,
        first_half=protocol.first_half,
        second_half=protocol.second_half,
        left_out=protocol.left_out,
        order=tuple(one.value for one in protocol.order),
    )


def workload_protocol_of(trial: PowerTrial) -> WorkloadProtocol | None:
    """The draw of a trial of deferral; None before it is drawn.

    Raises:
        ValueError: the stored draw is broken: nobody but the operator writes it.
    """
    stored = trial.status.workloads
    if stored is None:
        return None
    return WorkloadProtocol(parse_rfc3339(stored.start_time), parse_rfc3339(stored.end_time), stored.seed)


def stored_workload_protocol(protocol: WorkloadProtocol) -> WorkloadDraw:
    """The draw of a trial of deferral as its status keeps it; it starts and ends at whole seconds."""
    return WorkloadDraw(rfc3339(protocol.start_s), rfc3339(protocol.end_s), protocol.seed)


def bounds_of(trial: PowerTrial) -> Bounds | None:
    """What a trial may cost at most; None without a guard.

    Raises:
        InvalidQuantityError: a bound is out of range.
    """
    guard = trial.spec.guard
    if guard is None:
        return None

    def share(percent: float | None) -> float | None:
        return None if percent is None else percent / 100.0

    wait_min = guard.max_wait_minutes
    return Bounds(
        share(guard.max_slowdown_percent),
        share(guard.max_failures_percent),
        None if wait_min is None else wait_min * SECONDS_PER_MINUTE,
    )
