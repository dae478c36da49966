"""What decisions need from the world, as Protocols.

Each names its contract, units and errors; adapters implement them, `joulie.apps` puts the two together.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:  # they need numpy, which the agent, on every node, must do without
    from joulie.domain.accounting.budget import Crossing
    from joulie.domain.accounting.factors import FactorKind
    from joulie.domain.accounting.journal import Correction, Entry, Month, Signer
    from joulie.domain.accounting.records import (
        BudgetCount,
        Cycle,
        CycleResult,
        Energy,
        ExportRow,
        Grouping,
        OpenPod,
        SavingRow,
        UnitCount,
        UsageRow,
    )
    from joulie.domain.accounting.sci import MonthRecords, WorkloadKey
    from joulie.domain.grid.series import Series
    from joulie.domain.grid.signals import Basis, Measure, Observation
    from joulie.domain.locked_clocks import SmClock
    from joulie.domain.runtimes import Run, Workload
    from joulie.domain.signal import Reading


class ControlRefusedError(RuntimeError):
    """A device that cannot be controlled: not supported, no permission, locked by firmware. Trying again is useless."""


class ControlFailedError(RuntimeError):
    """A write or read that failed although the device can be controlled; the next cycle tries again.

    Attributes:
        in_force: limit in force after a write that had another effect than asked for, W or Hz; None where unknown.
    """

    def __init__(self, message: str, *, in_force: float | None = None) -> None:
        super().__init__(message)
        self.in_force = in_force


class NoBackendError(ControlFailedError):
    """This machine has no such device or driver, as opposed to one that does not respond."""


class SourceError(RuntimeError):
    """A source of telemetry that could not be read at all; the message says why."""


_REFUSALS = {errno.EACCES, errno.EPERM, errno.EROFS, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOTTY}


def control_error(action: str, error: OSError) -> ControlRefusedError | ControlFailedError:
    """`ControlRefusedError` or `ControlFailedError`, by the operating system's `error`.

    Args:
        action: what was tried, and on what: ``write 150 W to /sys/...``.
        error: what the system answered.
    """
    kind = ControlRefusedError if error.errno in _REFUSALS else ControlFailedError
    return kind(f"{action}: {error.strerror or error}")


class DeviceKind(StrEnum):
    """Kind of device that a power limit applies to."""

    CPU_PACKAGE = "cpu"
    GPU = "gpu"


@dataclass(frozen=True)
class PowerDevice:
    """One CPU package or GPU whose power can be read, and limited where `limit_w` is known.

    Attributes:
        id: stable over reboots where the hardware allows: ``package-0``, a GPU's UUID.
        kind: what it is.
        model: the model string as the device or its driver prints it; None where unknown.
        limit_w: the limit in force, W; None where it cannot be read.
        min_w: smallest limit that the device accepts, W; None where it reports none.
        max_w: largest limit that the device accepts, W; None where it reports none (sysfs may report 0).
        default_w: limit at 100 %, W: a GPU's default limit, a CPU's maximum; None where it reports none.
        mig: whether a GPU is divided, into MIG instances or into partitions of an AMD GPU; its power and limit are
            those of the whole GPU. None where that does not apply.
        limitable: whether it has a limit that can be written; False where it has none, or the firmware locks it.
        address: PCI address, by which AMD's device plugin names GPUs: ``0000:0c:00.0``; None where unknown.
    """

    id: str
    kind: DeviceKind
    model: str | None = None
    limit_w: float | None = None
    min_w: float | None = None
    max_w: float | None = None
    default_w: float | None = None
    mig: bool | None = None
    limitable: bool = True
    address: str | None = None


class DriverClient(Protocol):
    """A connection to a GPU driver that can be given up, so that the driver can be replaced or the GPUs reset."""

    @property
    def lost(self) -> Sequence[str]:
        """GPUs that did not respond when last read, and why: ``GPU 3 does not respond: GPU is lost``."""
        ...

    @property
    def restart_reason(self) -> str | None:
        """Why this program must be restarted before the driver can be used again; None if it need not."""
        ...

    def hold(self, reason: str | None) -> None:
        """Disconnect, and refuse work with `reason` (`ControlFailedError`) until called with None."""
        ...


class PowerLimiter(Protocol):
    """A way to limit the power of the CPU packages, or of the GPUs, of one node.

    Candidates are tried in order; one that cannot work says why (`unavailable`) and never raises for it.
    """

    name: str
    """The backend as NodeTwin's controlStatus and `joulie_backend_mode` name it: rapl, hsmp, nvml, amdgpu, amdsmi..."""

    def unavailable(self) -> str | None:
        """Why this backend cannot limit power here, or None if it can."""
        ...

    def devices(self) -> Sequence[PowerDevice]:
        """The devices as they are now, in a stable order; one that does not answer (a lost GPU) is left out.

        Raises:
            NoBackendError: this machine has no such device or driver.
            ControlFailedError: the backend as a whole does not answer.
        """
        ...

    def set_limit(self, device_id: str, limit_w: float) -> float:
        """Write a limit, read it back and return what is in force, W.

        Raises:
            ControlRefusedError: the device cannot be limited.
            ControlFailedError: the write failed, or what was read back is not what was written.
        """
        ...


@runtime_checkable
class JointPowerLimiter(PowerLimiter, Protocol):
    """A backend that sets the limits of several devices together, since each write of its own would take long."""

    def set_limits(
        self, limits_w: Mapping[str, float]
    ) -> Mapping[str, float | ControlRefusedError | ControlFailedError]:
        """Write limits, read them back and return what is in force, W, or what failed, by device; raises nothing."""
        ...


class ClockLimiter(Protocol):
    """Locks the SM clocks of GPUs to a maximum.

    Nothing tells which lock is in force: what was locked is known from `clocks` under load only.
    """

    def clocks(self) -> Sequence[SmClock]:
        """Clocks of the GPUs that state theirs, in a stable order.

        Raises:
            NoBackendError: this machine has no such device or driver.
            ControlFailedError: the driver does not answer.
        """
        ...

    def lock(self, gpu: str, max_hz: float) -> float:
        """Lock a clock from above; returns the largest supported clock up to `max_hz`, to which it is locked, Hz.

        Raises:
            ControlRefusedError: the GPU cannot be locked so; nothing changed.
            ControlFailedError: it may be locked.
        """
        ...

    def reset(self, gpu: str) -> None:
        """Take any lock of a GPU away; without one nothing changes. Raises as `lock`."""
        ...


@dataclass(frozen=True)
class FrequencyPolicy:
    """One cpufreq policy: CPUs that change frequency together.

    Attributes:
        id: ``policy0``.
        min_hz: lowest frequency of the hardware, Hz.
        max_hz: highest frequency of the hardware, Hz.
        limit_hz: upper limit in force (scaling_max_freq), Hz.
        current_hz: frequency now, Hz; None where it cannot be read.
        steps_hz: limits that the driver can set, Hz; empty where it sets any.
    """

    id: str
    min_hz: float
    max_hz: float
    limit_hz: float
    current_hz: float | None = None
    steps_hz: tuple[float, ...] = ()


class FrequencyLimiter(Protocol):
    """Upper frequency limits of a node's CPUs (cpufreq)."""

    @property
    def driver(self) -> str:
        """Driver family: ``intel_pstate``, ``amd-pstate``, ``acpi-cpufreq``, or empty where there is none."""
        ...

    def unavailable(self) -> str | None:
        """Why frequencies cannot be limited here, or None if they can."""
        ...

    def policies(self) -> Sequence[FrequencyPolicy]:
        """All policies as they are now, ordered by number."""
        ...

    def set_limit(self, policy_id: str, limit_hz: float) -> float:
        """Write an upper limit, read it back and return what is in force, Hz; raises as `PowerLimiter.set_limit`."""
        ...


class EnergyReading(NamedTuple):
    """A cumulative energy counter at one moment."""

    device_id: str
    """As `PowerDevice.id`; other RAPL domains by their own names (``dram-0``, ``psys``)."""
    energy_j: float
    """Counter, J."""
    wraps_at_j: float | None
    """Value at which the counter wraps to 0, J; None where it does not wrap, or this is unknown."""


class PowerSource(Protocol):
    """Measured power of a node's CPUs or GPUs.

    A device that cannot be read is left out: missing is never zero.
    """

    name: str
    """rapl or nvml, as NodeTwin's powerMeasurement.source names it."""

    def unavailable(self) -> str | None:
        """Why nothing can be measured here, or None if it can."""
        ...

    def energy(self) -> Sequence[EnergyReading]:
        """All energy counters now; empty where there are none."""
        ...

    def power_w(self) -> dict[str, float]:
        """Power by device now, W, of devices that report it directly (GPUs); empty for those with counters only."""
        ...


class GridSourceError(RuntimeError):
    """No usable answer from a source of grid signals; the message says what to do, and holds no secret.

    Attributes:
        retry_after_s: time after which the source may be asked again, s; None where it states none.
    """

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RequestRate(Protocol):
    """Rate limit of requests to the hosts of grid sources."""

    async def reserve(self, host: str, per_minute: float, max_wait_s: float) -> float:
        """Reserve the next request to a host.

        Args:
            host: host of the source.
            per_minute: maximum number of requests in any minute.
            max_wait_s: time beyond which nothing is reserved, s.

        Returns:
            Time until the request may be sent, s; above `max_wait_s` if it is not reserved.

        Raises:
            GridSourceError: the limit is not known; the request must not be sent.
        """
        ...


class GridSource(Protocol):
    """Carbon intensity or prices of zones of the grid.

    Values are in gCO2eq/kWh or currency/kWh. Every method raises `GridSourceError`; an answer is never for another
    zone, measure or basis than asked for.
    """

    name: str
    """As provenance, metrics and settings name it: electricity-maps, watttime, uk, file, prometheus, json, tou."""
    measure: Measure
    basis: Basis | None
    """Of carbon intensity; None for prices."""

    async def latest(self, zone: str) -> Observation:
        """The value in force now."""
        ...

    async def forecast(self, zone: str, horizon_s: float) -> Series | None:
        """What the source expects from now on; None where it does not forecast."""
        ...

    async def history(self, zone: str, from_s: float, until_s: float) -> Series | None:
        """Past values; None where the source keeps none. The series may be shorter than asked for."""
        ...


class MetricValue(Protocol):
    """The last value of a series, finite; without a time where none is stated."""

    @property
    def value(self) -> float:
        """In the unit of the query."""
        ...

    @property
    def time_s(self) -> float | None:
        """S since the epoch."""
        ...


class MetricHistory(Protocol):
    """The samples of a series, oldest first."""

    @property
    def samples(self) -> Sequence[Reading]:
        """Times in s since the epoch, and values."""
        ...


class MetricsDatabase(Protocol):
    """Answers PromQL. Every method raises `SourceError`; times are in s since the epoch."""

    async def query(self, promql: str) -> Sequence[MetricValue]:
        """All series of an expression now, which may be none."""
        ...

    async def query_range(self, promql: str, start_s: float, end_s: float, step_s: float) -> Sequence[MetricHistory]:
        """The values of an expression at every step."""
        ...


class TooManyRowsError(ValueError):
    """A query whose answer has too many rows; the message says how many are allowed."""


class LedgerError(RuntimeError):
    """A ledger that cannot be used; the message says why and what to do. Nothing of the failed call was kept."""


class Ledger(Protocol):
    """Durable accounts of energy. Methods block, and may be called from any thread, one at a time.

    Each method is one transaction, all or nothing, and idempotent: an interrupted caller repeats the call. Every method
    raises `LedgerError`.
    """

    def append(self, cycle: Cycle) -> CycleResult:
        """Account for the time since each pod's last sample, and for pods that have ended."""
        ...

    def open_pods(self) -> Mapping[str, OpenPod]:
        """All pods whose end is not known, by uid; a restarted program continues with them."""
        ...

    def usage(
        self,
        by: Grouping,
        *,
        also: frozenset[Grouping] = frozenset(),
        since_s: float | None = None,
        until_s: float | None = None,
        namespace: str | None = None,
        node: str | None = None,
        labels: Sequence[str] = (),
    ) -> Sequence[UsageRow]:
        """Sums of energy by one or several groupings, largest first, by days and hours the earliest first.

        Without times over the ledger's whole life. Times are rounded outwards to hours, or to days where hours have
        been folded. Folded energy has no pod and no node: by these it is in one row of empty names, and of one node it
        is left out. `labels` are the keys of the grouping by label.

        Raises:
            TooManyRowsError: several groupings give too many rows to hold.
        """
        ...

    def month(self, month: Month) -> MonthRecords:
        """All that is booked in a month, for its report."""
        ...

    def book_units(self, day_s: float, workload: WorkloadKey, count: UnitCount) -> bool:
        """Book functional units of a UTC day once by workload, unit and source.

        False: they are booked already, or the day's month is closed.
        """
        ...

    def totals(self) -> Mapping[str, Energy]:
        """Energy by namespace over the ledger's whole life, exactly what cycles have added, for counters.

        A namespace is forgotten when nothing else is kept of it.
        """
        ...

    def export(self, *, since_s: float | None = None, until_s: float | None = None) -> Iterator[ExportRow]:
        """All rows that sums are made of, in order of time; corrections are rows of differences."""
        ...

    def rebook(self, history: Mapping[tuple[str, FactorKind], Sequence[Series]], now_s: float) -> Sequence[Correction]:
        """Correct the past by signals that became known late or were revised; returns what was corrected.

        Args:
            history: what is known of the grid by zone and kind: published values only, in parts without gaps.
            now_s: current time, s since the epoch.
        """
        ...

    def close_month(self, month: Month, signer: Signer, now_s: float) -> Entry:
        """Close a month for good: nothing is booked in it any more. Signs the journal, and returns its last entry.

        Also raises where the month is not over, is closed already, or a pod is not accounted until its end.
        """
        ...

    def closed_s(self) -> float:
        """End of the last closed month, s since the epoch; without one, start of the first month, infinite if empty."""
        ...

    def closings(self) -> Sequence[Entry]:
        """Entries that closed the months that are kept, in order."""
        ...

    def profile(self, uid: str) -> Sequence[tuple[float, float, float, float]]:
        """The samples kept of a pod: time, s since the epoch, and power of CPU, memory and GPUs, IT, W."""
        ...

    def savings(self, *, since_s: float | None = None, namespace: str | None = None) -> Sequence[SavingRow]:
        """Savings by waiting, of pods that have ended since then, latest first."""
        ...

    def cross(self, crossings: Sequence[Crossing]) -> Sequence[Crossing]:
        """Remember crossed budgets, and return those that no action was taken on yet."""
        ...

    def acted(self, crossing: Crossing) -> None:
        """Remember that a crossing has been acted on."""
        ...

    def budget_counts(self, asked: Mapping[str, tuple[float, float]]) -> Mapping[str, BudgetCount]:
        """What the pods of budgets have used, by key: since a time, and since a later one (s since the epoch).

        Each is the start of a period that a cycle has named, or a multiple of `BUDGET_SLOT_S`. Keys that no cycle has
        named yet are left out.
        """
        ...

    def record_runs(self, runs: Sequence[Run]) -> None:
        """Remember runs of workloads, joined with the parts of them that are known already."""
        ...

    def run_durations(self) -> Mapping[Workload, Sequence[float]]:
        """Durations of the latest finished runs of each workload, at most `MAX_RUNS` of one, latest first, s."""
        ...

    def texts(self) -> Mapping[str, str]:
        """What programs have kept beside the accounts, by name."""
        ...

    def keep(self, texts: Mapping[str, str]) -> None:
        """Keep texts, each in place of what had its name."""
        ...

    def counts(self) -> Mapping[str, int]:
        """Numbers of ``pods``, ``open_pods``, ``samples``, ``hours``, ``postings``, ``entries``; ``bytes`` if known."""
        ...

    def prune(self, now_s: float) -> None:
        """Drop and fold what is older than it is kept; sums stay the same."""
        ...

    def close(self) -> None:
        """Release the database."""
        ...


class PowerSwitchError(RuntimeError):
    """A power switch that did not answer, refused, or cannot do what was asked; the message says why."""


class PowerState(StrEnum):
    """What a power switch says of its machine."""

    ON = "on"
    OFF = "off"
    CHANGING = "changing"


class PowerSwitch(Protocol):
    """Switches one machine on and off.

    A call returns when it is accepted; `state` tells what came of it. All raise `PowerSwitchError`.
    """

    async def state(self) -> PowerState:
        """Whether the machine has power."""
        ...

    async def on(self) -> None:
        """Switch the machine on; nothing is done where it is on."""
        ...

    async def off(self, *, force: bool = False) -> None:
        """Have the operating system shut down, or cut the power by force; nothing is done where it is off."""
        ...
