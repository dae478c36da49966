"""Locked clocks over any course of wishes, kills, reboots, driver reloads, refusals and locks without effect.

After each step the saved file names each GPU whose clock Joulie has locked, and one of which nothing is reported is
not locked. A cycle without faults and without wishes leaves no lock, whatever came before.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from joulie.adapters.kubernetes.api.v1alpha1 import ControlOutcome
from joulie.apps.agent.gpu_clocks import GpuClocks
from joulie.domain.locked_clocks import ANY_GPU, OVERRIDDEN, ClockAction, LockedClock, SmClock
from joulie.ports.devices import ControlFailedError, ControlRefusedError

GPUS = ("a", "b")
LARGEST_HZ, WISHES_HZ = 1.98e9, (1.782e9, 1.386e9)
PLACES = ("save", "saved", "lock", "locked", "reset", "was reset")


class Killed(BaseException):
    """SIGKILL."""


@dataclass(frozen=True)
class Faults:
    """What goes wrong in one cycle: where the process is killed, and on which GPUs."""

    killed: str = ""
    refusing: frozenset[str] = frozenset()
    failing: frozenset[str] = frozenset()
    ignoring: frozenset[str] = frozenset()
    idle: frozenset[str] = frozenset()
    capped: frozenset[str] = frozenset()
    lost: frozenset[str] = frozenset()
    silent: bool = False
    disk_full: bool = False


@dataclass
class Driver:
    """The GPUs, their driver, and the file on the disk; a `ClockLimiter` and a `ClockStore`."""

    faults: Faults = Faults()
    locks_hz: dict[str, float] = field(default_factory=dict)
    saved: frozenset[str] = frozenset()
    unreadable: bool = False

    def at(self, place: str) -> None:
        if self.faults.killed == place:
            raise Killed

    def clocks(self) -> Sequence[SmClock]:
        if self.faults.silent:
            raise ControlFailedError("the driver does not answer")
        return [self._clock(gpu) for gpu in GPUS if gpu not in self.faults.lost]

    def _clock(self, gpu: str) -> SmClock:
        idle = gpu in self.faults.idle
        now_hz = 2.1e8 if idle else min(LARGEST_HZ, self.locks_hz.get(gpu, LARGEST_HZ))
        return SmClock(gpu, now_hz, LARGEST_HZ, idle, not idle and gpu in self.faults.capped, slowed=False)

    def lock(self, gpu: str, max_hz: float) -> float:
        self.at("lock")
        assert gpu in self.saved, "locked before that was saved"
        if gpu in self.faults.refusing:
            raise ControlRefusedError("no permission")
        if gpu not in self.faults.ignoring:
            self.locks_hz[gpu] = max_hz
        self.at("locked")
        if gpu in self.faults.failing:
            raise ControlFailedError("timed out")
        return max_hz

    def reset(self, gpu: str) -> None:
        self.at("reset")
        if gpu in self.faults.failing:
            raise ControlFailedError("timed out")
        self.locks_hz.pop(gpu, None)
        self.at("was reset")

    def load(self) -> frozenset[str]:
        if self.unreadable:
            raise OSError("input/output error")
        return self.saved

    def save(self, gpus: Collection[str]) -> None:
        self.at("save")
        if self.faults.disk_full:
            raise OSError("no space left on device")
        self.saved = frozenset(gpus)
        self.at("saved")


@dataclass(frozen=True)
class Step:
    """A cycle with wishes, or an event between cycles."""

    wishes_hz: dict[str, float] | None = None
    faults: Faults = Faults()
    event: str = ""


class Life:
    def __init__(self) -> None:
        self.driver = Driver()
        self.agent = self._agent()

    def _agent(self) -> GpuClocks:
        return GpuClocks(self.driver, self.driver, enabled=True)

    def take(self, step: Step) -> None:
        if step.event:
            self._happen(step.event)
        if step.wishes_hz is None:
            return
        self.driver.faults = step.faults
        before = self.driver.locks_hz.copy()
        try:
            self.agent.enforce(step.wishes_hz)
        except Killed:
            self.agent = self._agent()
        else:
            self._check_reports(step, before)
        self.driver.faults = Faults()
        self._check_saved()

    def _happen(self, event: str) -> None:
        if event == "driver":
            self.driver.locks_hz.clear()
        elif event == "reboot":
            self.driver.locks_hz.clear()
            self.driver.saved = frozenset()
        elif event == "corrupt":
            self.driver.saved = frozenset({ANY_GPU})
        if event in {"reboot", "corrupt", "restart"}:
            self.agent = self._agent()

    def _check_saved(self) -> None:
        assert ANY_GPU in self.driver.saved or self.driver.locks_hz.keys() <= self.driver.saved

    def _check_reports(self, step: Step, before: dict[str, float]) -> None:
        assert step.wishes_hz is not None
        for gpu, report in self.agent.seen.items():
            if report.result is None:
                assert gpu not in self.driver.locks_hz
            elif report.result is ControlOutcome.APPLIED:
                assert before[gpu] == report.max_hz == step.wishes_hz[gpu], "applied is what was read"
        unseen = self.driver.locks_hz.keys() - self.agent.seen.keys()
        assert unseen <= step.faults.lost or (step.faults.silent and ANY_GPU in self.driver.saved)


gpus = st.frozensets(st.sampled_from(GPUS), max_size=2)
faults = st.just(Faults()) | st.builds(
    Faults,
    st.sampled_from(("", *PLACES)),
    gpus,
    gpus,
    gpus,
    gpus,
    gpus,
    gpus,
    st.sampled_from((False, False, False, True)),
    st.sampled_from((False, False, False, True)),
)
wishes = st.dictionaries(st.sampled_from(GPUS), st.sampled_from(WISHES_HZ))
steps = st.builds(Step, wishes, faults, st.sampled_from(("", "", "", "restart", "driver", "reboot", "corrupt")))


@settings(max_examples=200, deadline=None)
@given(st.lists(steps, min_size=1, max_size=12))
def test_no_clock_is_locked_but_what_the_file_says(course: list[Step]) -> None:
    life = Life()
    for step in course:
        life.take(step)
    life.take(Step({}))
    assert not life.driver.locks_hz
    life.take(Step({}, event="restart"))
    assert not life.driver.locks_hz
    assert all(report.result is None for report in life.agent.seen.values())


@given(st.sampled_from(PLACES))
def test_a_kill_at_any_place_leaves_no_lock_to_the_next_process(place: str) -> None:
    life = Life()
    life.take(Step({"a": WISHES_HZ[0]}, Faults(killed=place)))
    life.take(Step({}, Faults(killed=place)))
    life.take(Step({}))
    assert (life.driver.locks_hz, life.driver.saved) == ({}, frozenset())


@given(st.sampled_from(GPUS), st.sampled_from(WISHES_HZ))
def test_a_lock_is_applied_once_it_was_read_under_load(gpu: str, wish_hz: float) -> None:
    life, seen = Life(), []
    idle = Faults(idle=frozenset(GPUS))
    for cycle in (idle, Faults(), idle, Faults(capped=frozenset(GPUS)), Faults(), idle):
        life.take(Step({gpu: wish_hz}, cycle))
        report = life.agent.seen[gpu]
        seen.append((report.max_hz, report.result))
    unconfirmed = ControlOutcome.UNCONFIRMED
    assert seen == [(None, unconfirmed), *[(wish_hz, unconfirmed)] * 3, *[(wish_hz, ControlOutcome.APPLIED)] * 2]


def test_a_lock_without_effect_is_an_error_and_is_not_tried_again_before_the_driver_is_loaded_anew() -> None:
    life, ignoring = Life(), Faults(ignoring=frozenset("a"))
    for _ in range(3):
        life.take(Step({"a": WISHES_HZ[0]}, ignoring))
    for _ in range(3):
        life.take(Step({"a": WISHES_HZ[0]}))
        assert (life.agent.seen["a"].result, life.agent.seen["a"].message) == (ControlOutcome.ERROR, OVERRIDDEN)
        assert life.agent.seen["a"].largest_hz is None, "no second knob"
        assert (life.driver.locks_hz, life.driver.saved) == ({}, frozenset())
    life.take(Step({"a": WISHES_HZ[0]}, Faults(silent=True)))  # the driver is being replaced
    life.take(Step({"a": WISHES_HZ[0]}))
    life.take(Step({"a": WISHES_HZ[0]}))
    assert life.agent.seen["a"].result is ControlOutcome.APPLIED


def test_a_lock_without_effect_is_noticed_beside_bursts_that_the_power_limit_slows() -> None:
    """An H100 names its power limit in every sample of such a job, between the bursts as well."""
    between = SmClock("a", LARGEST_HZ, LARGEST_HZ, idle=False, at_power_limit=True, slowed=False)
    burst, wish_hz, known = replace(between, now_hz=1.364e9), WISHES_HZ[0], LockedClock()
    actions = []
    for sample in (burst, burst, between, burst, burst, between):
        known, action = known.looked(sample, wish_hz, may_be_locked=known.asked_hz is not None)
        actions.append(str(action))
        known = known.locked(wish_hz, wish_hz) if action is ClockAction.LOCK else known
    assert actions == ["lock", "nothing", "lock", "nothing", "nothing", "reset"]
    assert known.problem == OVERRIDDEN


def test_a_driver_that_forgot_a_lock_is_told_again() -> None:
    life = Life()
    for event in ("", "", "driver", ""):
        life.take(Step({"a": WISHES_HZ[0]}, event=event))
    assert life.driver.locks_hz == {"a": WISHES_HZ[0]}
    assert life.agent.seen["a"].result is ControlOutcome.APPLIED


def test_a_new_process_frees_a_clock_before_it_locks_it_again() -> None:
    """Only from a free clock can it be seen that a lock acts."""
    life, seen = Life(), []
    life.take(Step({"a": WISHES_HZ[1]}))
    for event in ("restart", "", ""):
        life.take(Step({"a": WISHES_HZ[0]}, event=event))
        seen.append((life.driver.locks_hz.get("a"), life.agent.seen["a"].result))
    unconfirmed = ControlOutcome.UNCONFIRMED
    assert seen == [(None, unconfirmed), (WISHES_HZ[0], unconfirmed), (WISHES_HZ[0], ControlOutcome.APPLIED)]


def test_a_refused_lock_leaves_no_entry_and_says_why() -> None:
    life = Life()
    life.take(Step({"a": WISHES_HZ[0]}, Faults(refusing=frozenset("a"))))
    assert life.driver.saved == frozenset()
    assert life.agent.seen["a"].message == "refused: no permission"


def test_locks_of_others_stay_and_those_of_joulie_go_though_it_is_switched_off() -> None:
    life = Life()
    life.driver.locks_hz["b"] = 1e9  # an administrator's
    life.agent.enforce({"a": WISHES_HZ[0]})
    off = GpuClocks(life.driver, life.driver, enabled=False)
    off.enforce({"b": WISHES_HZ[0]})
    assert life.driver.locks_hz == {"b": 1e9}
    assert off.seen["b"].result is ControlOutcome.BLOCKED
    assert life.driver.saved == frozenset()


def test_nobody_asks_the_driver_where_the_knob_is_off() -> None:
    driver = Driver(Faults(silent=True))
    off = GpuClocks(driver, driver, enabled=False)
    off.enforce({})
    assert not off.seen


def test_a_file_that_cannot_be_read_leaves_every_gpu_in_doubt_and_locks_none() -> None:
    life = Life()
    life.driver.unreadable = True
    life.agent.enforce({"a": WISHES_HZ[0]})
    assert {report.result for report in life.agent.seen.values()} == {ControlOutcome.ERROR}
    assert life.agent.seen.keys() == {"a", ANY_GPU}
    assert not life.driver.locks_hz
    life.driver.unreadable = False
    life.take(Step({"a": WISHES_HZ[0]}))
    assert life.driver.locks_hz == {"a": WISHES_HZ[0]}
