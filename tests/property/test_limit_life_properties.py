"""The limits of a machine over any course of caps, lifts, kills, reboots, lost files, unreadable reads, refused writes.

The limit in force is never above the owner's, nothing is written that was not read, a lift leaves no cap or says so,
and a device that fails leaves no other capped. Where the state is lost, a limit that equals one of Joulie's counts as
Joulie's: the device's default is then the owner's limit.

Left out is one course that nobody can judge: the state is lost after a kill whose cap no report has named yet. To all
that is left on the machine and in the cluster, such a cap is a limit of the owner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from joulie.adapters.kubernetes.api.v1alpha1 import ControlResult
from joulie.apps.agent.limits import LimitWriter
from joulie.apps.agent.originals import OriginalLimits
from joulie.apps.agent.outcome import Outcome, reported_limits
from joulie.domain.actuation import LimitedDevice, WantedCap, cpu_range, same_limit
from joulie.domain.saved_records import LostRecords, ReportedLimits, SavedRecords
from joulie.ports.devices import ControlFailedError, ControlRefusedError, DeviceKind, PowerDevice

DEVICES = ("a", "b", "c")
DEFAULT_W = 200.0
ROUNDED_W = 0.25
LIFTED = WantedCap()


class Killed(BaseException):
    """SIGKILL in the middle of a write."""


@dataclass(frozen=True)
class Faults:
    """What goes wrong during one step."""

    unreadable: frozenset[str] = frozenset()
    refusing: frozenset[str] = frozenset()
    failing: frozenset[str] = frozenset()
    killed_after_writes: int | None = None
    disk_full: bool = False

    @property
    def devices(self) -> frozenset[str]:
        return self.unreadable | self.refusing | self.failing


@dataclass(frozen=True)
class Step:
    """A cycle with a cap, or a new process; `state` is what became of the saved file meanwhile."""

    cap: WantedCap | None
    faults: Faults = Faults()
    state: str = "kept"


@dataclass
class Machine:
    """Devices with a default of 200 W, or none stated, and limits that their owners have set."""

    owned_w: dict[str, float]
    stated: bool
    name: str = "rapl"
    limits_w: dict[str, float] = field(default_factory=dict)
    faults: Faults = Faults()
    read: set[str] = field(default_factory=set)
    saved: SavedRecords = field(default_factory=SavedRecords)
    writes: int = 0

    def __post_init__(self) -> None:
        self.limits_w = dict(self.owned_w)

    def unavailable(self) -> str | None:
        return None

    def devices(self) -> Sequence[PowerDevice]:
        readable = {name: limit_w for name, limit_w in self.limits_w.items() if name not in self.faults.unreadable}
        self.read |= readable.keys()
        max_w = DEFAULT_W if self.stated else None
        return [PowerDevice(name, DeviceKind.CPU_PACKAGE, None, readable.get(name), None, max_w) for name in DEVICES]

    def set_limit(self, device_id: str, limit_w: float) -> float:
        if device_id in self.faults.refusing:
            raise ControlRefusedError("locked")
        assert device_id in self.read, "a limit that was never read is written"
        self.limits_w[device_id] = round(limit_w / ROUNDED_W) * ROUNDED_W
        self.writes += 1
        if self.faults.killed_after_writes is not None and self.writes > self.faults.killed_after_writes:
            raise Killed
        if device_id in self.faults.failing:
            raise ControlFailedError("written, but not read back")
        return self.limits_w[device_id]

    def load(self) -> SavedRecords:
        return self.saved

    def save(self, saved: SavedRecords) -> None:
        if self.faults.disk_full:
            raise OSError("no space left on device")
        self.saved = saved

    def booted_at_epoch_s(self) -> float | None:
        return None

    def described(self, devices: Sequence[PowerDevice]) -> list[LimitedDevice]:
        return [LimitedDevice(one.id, one.limit_w, cpu_range(None, one.max_w, None)) for one in devices]


CORRUPT = LostRecords("corrupt", everywhere=True)


class Life:
    """One machine, its processes, and what must hold after every step."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.allowed_w = dict(machine.owned_w)
        self.caps: list[WantedCap] = []
        self.reported_limits: ReportedLimits | None = None
        self.reported = True
        self.writer = self._process()

    def _process(self) -> LimitWriter:
        originals = OriginalLimits(self.machine)
        writer = LimitWriter([self.machine], originals, self.machine.described)
        if self.reported_limits is not None:
            originals.note_reported(self.reported_limits, 0.0)
        return writer

    def take(self, step: Step) -> None:
        self.machine.faults, self.machine.writes = step.faults, 0
        if step.cap is None:
            self._restart(step.state)
            return
        self.caps.append(step.cap)
        try:
            outcome = self.writer.lift() if step.cap.lifted else self.writer.cap(step.cap)[0]
        except Killed:
            self.reported = False
            self.machine.faults = Faults()
            self.writer = self._process()
        else:
            self.reported = True
            found = reported_limits(ControlResult(outcome.backend, outcome.result, outcome.message))
            self.reported_limits = next(iter(found), None)
            self._check_outcome(step, outcome)
        self._check_limits()

    def _restart(self, state: str) -> None:
        machine = self.machine
        saved = machine.saved
        if state == "reboot":
            machine.limits_w = dict(machine.owned_w)
            machine.saved = SavedRecords(earlier={**saved.earlier, **saved.records}, found=saved.found)
            self.reported_limits = None  # the report is older than the boot
        elif state == "kexec":
            unknown = {device: record for device, record in saved.records.items() if record.original is None}
            earlier = {**saved.earlier, **saved.records}
            machine.saved = SavedRecords(unknown, earlier, saved.lost, found=saved.found, kexec=True)
        elif state in {"corrupt", "deleted"} and self.reported:
            machine.saved = SavedRecords(lost=CORRUPT, found=True) if state == "corrupt" else SavedRecords()
            for name, limit_w in machine.limits_w.items():
                if not same_limit(limit_w, machine.owned_w[name]):
                    self.allowed_w[name] = max(DEFAULT_W, self.allowed_w[name])
                    machine.owned_w[name] = DEFAULT_W
        self.writer = self._process()

    def _check_limits(self) -> None:
        """Not above the owner's; one that equals a target of Joulie's may be taken for Joulie's."""
        for name, limit_w in self.machine.limits_w.items():
            if any(self._asks_for(cap, self.machine.owned_w[name]) for cap in self.caps):
                continue
            assert limit_w <= self.allowed_w[name] + ROUNDED_W

    def _asks_for(self, cap: WantedCap, limit_w: float) -> bool:
        target_w = cap.in_watts(cpu_range(None, DEFAULT_W if self.machine.stated else None, None))
        return target_w is not None and abs(target_w - limit_w) <= 1.0

    def _check_outcome(self, step: Step, outcome: Outcome) -> None:
        if step.cap is None:
            return
        if step.cap.lifted:
            for name in DEVICES:
                self._check_lifted(name, step.faults, outcome)
        elif outcome.result == "applied":
            for name in DEVICES:
                target_w = step.cap.in_watts(cpu_range(None, DEFAULT_W if self.machine.stated else None, None))
                assert target_w is not None
                assert self.machine.limits_w[name] <= target_w + 1.0

    def _check_lifted(self, name: str, faults: Faults, outcome: Outcome) -> None:
        """No cap is left, or the outcome names the device."""
        left = self.machine.limits_w[name] < self.machine.owned_w[name] - 1.0
        if left:
            assert not outcome.message.startswith("restored")
            assert name in outcome.message.partition("restored: ")[2] or faults.disk_full
        if name not in faults.devices and not faults.disk_full and left:
            assert "not known" in outcome.message


names = st.frozensets(st.sampled_from(DEVICES), max_size=2)
faults = st.just(Faults()) | st.builds(
    Faults, names, names, names, st.none() | st.integers(0, 3), st.sampled_from([False, False, False, True])
)
caps = st.one_of(
    st.just(LIFTED),
    st.builds(WantedCap, percent=st.sampled_from([30.0, 45.0, 60.0, 80.0])),
    st.builds(WantedCap, cap_w=st.floats(40.0, 260.0)),
)
cycles = st.builds(Step, caps, faults)
restarts = st.builds(
    Step, st.none(), st.just(Faults()), st.sampled_from(["kept", "kept", "reboot", "kexec", "corrupt", "deleted"])
)
owned = st.fixed_dictionaries(
    dict.fromkeys(DEVICES, st.just(DEFAULT_W) | st.integers(200, 1000).map(lambda quarters: quarters * ROUNDED_W))
)


@settings(max_examples=400, deadline=None)
@given(owned, st.booleans(), st.lists(cycles | restarts, min_size=1, max_size=12))
def test_h2_h4_h5_h6_limits_over_any_course(owned_w: dict[str, float], stated: bool, course: list[Step]) -> None:
    life = Life(Machine(owned_w, stated))
    for step in course:
        life.take(step)
    life.take(Step(LIFTED))
