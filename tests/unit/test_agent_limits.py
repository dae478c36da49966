"""Limits of a node's own devices: which backend, what is saved, what is said."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from joulie.adapters.kubernetes.api.v1alpha1 import ControlResult
from joulie.apps.agent.cpu import CpuControl, CpuFacts
from joulie.apps.agent.frequency import FrequencyWriter
from joulie.apps.agent.limits import LimitWriter, limited_devices
from joulie.apps.agent.metering import PowerMeter
from joulie.apps.agent.originals import OriginalLimits
from joulie.apps.agent.outcome import Outcome, reported_limits
from joulie.apps.agent.throttle import PowerReading, Throttle
from joulie.domain.actuation import LimitedDevice, WantedCap
from joulie.domain.dvfs import DvfsSettings
from joulie.domain.hardware import BUILTIN_CATALOGUE, CapRange
from joulie.domain.limit_records import LimitRecord
from joulie.domain.quantities import InvalidQuantityError
from joulie.domain.saved_records import LostRecords, ReportedLimits, SavedRecords
from joulie.ports.devices import (
    ControlFailedError,
    ControlRefusedError,
    DeviceKind,
    EnergyReading,
    FrequencyPolicy,
    NoBackendError,
    PowerDevice,
)

ECO, LIFTED = WantedCap(percent=60.0), WantedCap()
PACKAGE = CapRange(40.0, 200.0, 200.0)
DVFS = DvfsSettings(ema_alpha=1.0, trip_count=1, cooldown_s=0.0)


class Store:
    """The file of original limits; `saved` replaces what the next process finds."""

    def __init__(self) -> None:
        self.content: dict[str, LimitRecord] = {}
        self.saved: SavedRecords | None = None
        self.full = self.broken = False
        self.saves = 0
        self.booted_at_s: float | None = None

    def load(self) -> SavedRecords:
        if self.broken:
            raise OSError("input/output error")
        return self.saved or SavedRecords(found=self.saves > 0)

    def save(self, saved: SavedRecords) -> None:
        if self.full:
            raise OSError("no space left on device")
        self.saves += 1
        self.content, self.saved = dict(saved.records), saved

    def booted_at_epoch_s(self) -> float | None:
        return self.booted_at_s

    @property
    def originals(self) -> dict[str, float | None]:
        return {key: record.original for key, record in self.content.items()}


Describe = Callable[[Sequence[PowerDevice]], Sequence[LimitedDevice]]


class Limiter:
    def __init__(self, name: str, **limits_w: float) -> None:
        self.name = name
        self.limits_w = limits_w
        self.reason: str | None = None
        self.errors: dict[str, Exception] = {}
        self.log: list[tuple[str, float]] = []
        self.unreadable: set[str] = set()
        self.listings = 0

    def unavailable(self) -> str | None:
        return self.reason

    def devices(self) -> Sequence[PowerDevice]:
        self.listings += 1
        return [
            PowerDevice(name, DeviceKind.CPU_PACKAGE, limit_w=None if name in self.unreadable else limit_w, max_w=200.0)
            for name, limit_w in self.limits_w.items()
        ]

    def set_limit(self, device_id: str, limit_w: float) -> float:
        if device_id in self.errors:
            raise self.errors[device_id]
        self.log.append((device_id, limit_w))
        self.limits_w[device_id] = limit_w
        return limit_w


class Frequencies:
    """Two policies whose driver rounds down to 100 MHz."""

    driver = "acpi-cpufreq"

    def __init__(self) -> None:
        self.limits_hz = {"policy0": 3.5e9, "policy1": 3.5e9}
        self.step_hz = 1e8
        self.steps_hz: tuple[float, ...] = ()
        self.reason: str | None = None
        self.writes = 0
        self.listings = 0

    def unavailable(self) -> str | None:
        return self.reason

    def policies(self) -> Sequence[FrequencyPolicy]:
        self.listings += 1
        return [
            FrequencyPolicy(name, 0.8e9, 3.5e9, limit_hz, steps_hz=self.steps_hz)
            for name, limit_hz in self.limits_hz.items()
        ]

    def set_limit(self, policy_id: str, limit_hz: float) -> float:
        self.writes += 1
        self.limits_hz[policy_id] = limit_hz // self.step_hz * self.step_hz
        return self.limits_hz[policy_id]


@pytest.fixture
def store() -> Store:
    return Store()


def writer(store: Store, *limiters: Limiter) -> LimitWriter:
    return LimitWriter(limiters, OriginalLimits(store), described)


def described(devices: Sequence[PowerDevice]) -> list[LimitedDevice]:
    return [LimitedDevice(device.id, device.limit_w, PACKAGE) for device in devices]


def unlimited(devices: Sequence[PowerDevice]) -> list[LimitedDevice]:
    """Devices that state no range."""
    return [LimitedDevice(device.id, device.limit_w, None) for device in devices]


def test_originals_are_saved_before_anything_is_written(store: Store) -> None:
    rapl = Limiter("rapl", a=200.0)
    store.full = True
    outcome, in_force = writer(store, rapl).cap(ECO)
    assert (outcome.result, in_force, rapl.log) == ("error", {}, [])
    assert "no space left" in outcome.message


def test_restored_limits_are_forgotten(store: Store) -> None:
    rapl = Limiter("rapl", a=180.0)
    limits = writer(store, rapl)
    limits.cap(ECO)
    assert store.content == {"rapl/a": LimitRecord(180.0, (120.0,))}
    assert limits.lift().message.startswith("restored")
    assert (store.content, rapl.limits_w) == ({}, {"a": 180.0})
    # From now on the limit is its owner's.
    rapl.limits_w["a"] = 150.0
    limits.lift()
    assert rapl.limits_w == {"a": 150.0}


class Stubborn(Limiter):
    """Accepts every limit; `shown_w` is what it shows instead of those in force, `ignores` whether it keeps them."""

    shown_w: float | None = None
    ignores = False

    def devices(self) -> Sequence[PowerDevice]:
        found = super().devices()
        return [replace(one, limit_w=self.shown_w) for one in found] if self.shown_w else found

    def set_limit(self, device_id: str, limit_w: float) -> float:
        return self.limits_w[device_id] if self.ignores else super().set_limit(device_id, limit_w)


def test_h5_original_that_is_read_late_is_written_nevertheless(store: Store) -> None:
    """A limit read as it was before the cap looks restored; the cap would stay, and its record be gone."""
    rapl = Stubborn("rapl", a=180.0)
    limits = writer(store, rapl)
    limits.cap(ECO)
    rapl.shown_w = 180.0
    assert limits.lift().message.startswith("restored")
    assert rapl.limits_w == {"a": 180.0}


def test_h1_write_that_changes_nothing_restores_nothing(store: Store) -> None:
    """A cap just below the original differs from it by less than drivers round."""
    rapl = Stubborn("rapl", a=120.4)
    limits = writer(store, rapl)
    for cap_w in (80.0, 120.0):
        limits.cap(WantedCap(cap_w=cap_w))
    assert rapl.limits_w == {"a": 120.0}
    rapl.ignores = True
    outcome = limits.lift()
    assert (outcome.result, "still in force" in outcome.message) == ("error", True)
    rapl.ignores = False
    assert limits.lift().message.startswith("restored")
    assert rapl.limits_w == {"a": 120.4}


@pytest.mark.parametrize("error", [ControlRefusedError("EROFS"), ControlFailedError("EIO")])
def test_device_that_takes_no_limit_has_its_original(store: Store, error: Exception) -> None:
    rapl = Limiter("rapl", a=180.0)
    limits = writer(store, rapl)
    rapl.errors["a"] = error
    limits.cap(ECO)
    assert store.content
    assert limits.lift().message.startswith("restored")
    assert not store.content


def test_second_backend_takes_over_and_the_first_gives_up_its_caps(store: Store) -> None:
    rapl, hsmp = Limiter("rapl", a=200.0), Limiter("hsmp", a=190.0)
    rapl.reason = "not now"
    limits = writer(store, rapl, hsmp)
    assert limits.cap(ECO)[0].backend == "hsmp"
    rapl.reason = None
    assert limits.cap(ECO)[0].backend == "rapl"
    assert (rapl.limits_w, hsmp.limits_w) == ({"a": 120.0}, {"a": 190.0})
    assert store.originals == {"rapl/a": 200.0}


def test_failing_device_is_an_error_and_the_others_are_limited(store: Store) -> None:
    rapl = Limiter("rapl", a=200.0, b=200.0)
    rapl.errors["a"] = ControlFailedError("accepted, but 200 W is in force")
    outcome, in_force = writer(store, rapl).cap(ECO)
    assert (outcome.result, in_force) == ("error", {"b": 120.0})
    assert (
        outcome.message
        == "1 x 120 W in force for a cap of 60 %; a: accepted, but 200 W is in force; 120 W may be in force"
    )


def test_refusing_backend_is_blocked_and_says_why(store: Store) -> None:
    rapl = Limiter("rapl", a=200.0, b=200.0)
    rapl.errors |= {name: ControlRefusedError("locked by the firmware") for name in ("a", "b")}
    outcome, _ = writer(store, rapl).cap(ECO)
    assert (outcome.backend, outcome.result) == ("none", "blocked")
    assert outcome.message == "rapl: a, b: locked by the firmware"


def test_vanished_device_is_not_called_restored(store: Store) -> None:
    rapl = Limiter("rapl", a=200.0, b=200.0)
    limits = writer(store, rapl)
    limits.cap(ECO)
    del rapl.limits_w["b"]
    outcome = limits.lift()
    assert (outcome.result, store.originals) == ("error", {"rapl/b": 200.0})
    assert "b: not listed by rapl" in outcome.message


def test_h4_unreadable_device_is_left_out_and_holds_nothing_up(store: Store) -> None:
    rapl = Limiter("rapl", a=200.0, b=80.0)
    rapl.unreadable = {"b"}
    limits = writer(store, rapl)
    outcome, in_force = limits.cap(ECO)
    assert (outcome.result, in_force) == ("blocked", {"a": 120.0})
    assert "b: the limit in force cannot be read" in outcome.message
    assert store.originals == {"rapl/a": 200.0}
    assert limits.lift().message.startswith("restored")
    assert (rapl.limits_w, store.content) == ({"a": 200.0, "b": 80.0}, {})


def test_h4_original_of_a_package_that_refuses_writes_is_the_one_read(store: Store) -> None:
    rapl = Limiter("rapl", a=200.0, b=150.0)
    rapl.errors["b"] = ControlRefusedError("locked by the firmware")
    limits = writer(store, rapl)
    limits.cap(ECO)
    assert store.originals == {"rapl/a": 200.0, "rapl/b": 150.0}
    assert limits.lift().message.startswith("restored")
    assert store.content == {}


def test_h6_unusable_original_leaves_no_other_device_capped(store: Store) -> None:
    rapl, frequencies = Limiter("rapl", a=120.0, b=120.0, c=120.0), Frequencies()
    frequencies.limits_hz["policy0"] = 2.0e9
    store.saved = SavedRecords(
        {
            "rapl/a": LimitRecord(None),
            "rapl/b": LimitRecord(180.0),
            "rapl/c": LimitRecord(200.0),
            "dvfs/policy0": LimitRecord(3.5e9),
        },
        found=True,
    )
    rapl.errors["b"] = InvalidQuantityError("limit_w", "must be above zero, got 0")
    outcome = control(store, frequencies, rapl).enforce(LIFTED, facts(None), 0.0)
    assert outcome.result == "error"
    assert "a: the limit in force may be a cap" in outcome.message
    assert "b: limit_w: must be above zero" in outcome.message
    assert rapl.limits_w == {"a": 120.0, "b": 120.0, "c": 200.0}
    assert frequencies.limits_hz["policy0"] == 3.5e9


def lost(*, earlier: Mapping[str, LimitRecord] | None = None, reason: str | None = "corrupt") -> SavedRecords:
    loss = LostRecords(reason, everywhere=True) if reason else None
    return SavedRecords(earlier=earlier or {}, lost=loss, found=True)


def test_h5_cap_in_force_is_not_taken_for_an_original_once_the_file_is_lost(store: Store) -> None:
    rapl = Limiter("rapl", a=120.0, b=150.0, c=200.0)
    store.saved = lost()
    limits = writer(store, rapl)
    assert limits.cap(ECO)[0].result == "applied"
    # a has the limit that the cap asks for: it goes back to the device's default. b has another one, its owner's.
    assert store.originals == {"rapl/a": 200.0, "rapl/b": 150.0, "rapl/c": 200.0}
    assert limits.lift().message.startswith("restored")
    assert rapl.limits_w == {"a": 200.0, "b": 150.0, "c": 200.0}


def test_h5_limit_that_was_restored_is_its_owners_again(store: Store) -> None:
    rapl = Limiter("rapl", a=150.0)
    store.saved = lost()
    limits = writer(store, rapl)
    limits.cap(ECO)
    limits.lift()
    limits.cap(WantedCap(cap_w=150.0))
    limits.lift()
    assert rapl.limits_w == {"a": 150.0}


def test_h5_caps_that_outlive_a_boot_are_lifted(store: Store) -> None:
    """As after kexec, which resets no register; after a reboot the limits are others, and the records are void."""
    rapl = Limiter("rapl", a=120.0, b=160.0)
    record = LimitRecord(180.0, (120.0,))
    store.saved = lost(earlier={"rapl/a": record, "rapl/b": record}, reason=None)
    limits = writer(store, rapl)
    assert limits.lift().message.startswith("restored")
    assert rapl.limits_w == {"a": 180.0, "b": 160.0}
    assert store.content == {}


def test_h5_cap_close_to_its_original_is_lifted_after_kexec(store: Store) -> None:
    """A cap of 179 W replaced one of 150 W, the original is 180 W: a device has its original or it has not."""
    rapl = Limiter("rapl", a=179.0, b=180.0)
    record = LimitRecord(180.0, (150.0, 179.0))
    store.saved = replace(lost(earlier={"rapl/a": record, "rapl/b": record}, reason=None), kexec=True)
    assert writer(store, rapl).lift().message.startswith("restored")
    assert (rapl.limits_w, rapl.log) == ({"a": 180.0, "b": 180.0}, [("a", 180.0)])


@pytest.mark.parametrize("problem", ["list error", "no driver", "not listed"])
@pytest.mark.parametrize("kexec", [True, False])
def test_h5_devices_not_seen_since_kexec_are_not_reported_as_restored(
    store: Store, monkeypatch: pytest.MonkeyPatch, problem: str, kexec: bool
) -> None:
    """After a reboot their limits are reset; without kexec, a GPU that was removed would be an error for good.

    Kexec looks like a reboot on some machines: what is there and cannot be read is not known to be reset.
    """
    gpus = Limiter("amdgpu", b=200.0)
    store.saved = replace(lost(earlier={"amdgpu/a": LimitRecord(180.0, (120.0,))}, reason=None), kexec=kexec)

    def busy() -> Sequence[PowerDevice]:
        raise (NoBackendError if problem == "no driver" else ControlFailedError)("busy")

    left = kexec or problem == "list error"
    with monkeypatch.context() as broken:
        if problem != "not listed":
            broken.setattr(gpus, "devices", busy)
        for process in (writer(store, gpus), writer(store, gpus)):
            outcome = process.lift()
            assert outcome.message.startswith("original limits not restored: a: " if left else "restored")
            assert outcome.result == ("error" if left else "applied")
    assert gpus.log == []
    gpus.limits_w["a"] = 120.0
    assert process.lift().message.startswith("restored")
    assert gpus.limits_w == {"a": 180.0, "b": 200.0}


def test_h5_device_without_a_readable_id_may_be_one_that_is_missing(store: Store) -> None:
    gpus = Limiter("amdgpu", **{"0000:01:00.0": None})
    store.saved = lost(earlier={"amdgpu/GPU-a": LimitRecord(180.0, (120.0,))}, reason=None)
    outcome = writer(store, gpus).lift()
    assert (outcome.backend, outcome.result) == ("amdgpu", "error")
    assert outcome.message.startswith("original limits not restored: 0000:01:00.0: the limit in force cannot be read")


def test_h5_a_die_is_judged_once_its_siblings_have_names(store: Store) -> None:
    """Alone it would get its socket's whole cap, and its own part of an earlier one would be taken for the owner's."""
    rapl = Limiter("rapl", **{"package-0-die-0": 110.0, "intel-rapl:1": None, "package-1": 180.0})
    originals = OriginalLimits(store)
    cap = WantedCap(cap_w=220.0)
    originals.note_reported(ReportedLimits("rapl", cap, complete=True), math.inf)
    limits = LimitWriter([rapl], originals, lambda found: limited_devices(found, BUILTIN_CATALOGUE, "a CPU"))

    assert limits.cap(cap)[0].result == "blocked"
    assert (rapl.log, store.originals) == ([], {})
    del rapl.limits_w["intel-rapl:1"]
    rapl.limits_w["package-0-die-1"] = 110.0
    assert limits.cap(cap)[0].result == "applied"
    assert limits.lift().message.startswith("restored")
    assert rapl.limits_w == {"package-0-die-0": 200.0, "package-0-die-1": 200.0, "package-1": 180.0}


def test_h5_without_a_default_the_limit_is_unknown_left_and_reported(store: Store) -> None:
    rapl = Limiter("rapl", a=120.0)
    store.saved = lost()

    limits = LimitWriter([rapl], OriginalLimits(store), unlimited)
    outcome = limits.cap(WantedCap(cap_w=120.0))[0]
    assert (outcome.result, rapl.log) == ("blocked", [])
    # The next process knows it, too.
    again = LimitWriter([rapl], OriginalLimits(store), unlimited)
    assert "original is not known" in again.lift().message
    assert again.cap(WantedCap(cap_w=90.0))[0].result == "blocked"
    # Somebody sets a limit: it is known again.
    rapl.limits_w["a"] = 170.0
    assert again.lift().message.startswith("restored")
    assert again.cap(WantedCap(cap_w=90.0))[0].result == "applied"
    assert store.originals == {"rapl/a": 170.0}


@pytest.mark.parametrize(("reported_at_s", "original_w"), [(100.0, 200.0), (50.0, None)])
def test_h5_deleted_file_is_noticed_by_the_last_report_of_this_boot(
    store: Store, reported_at_s: float, original_w: float | None
) -> None:
    rapl = Limiter("rapl", a=120.0)
    store.booted_at_s = 70.0
    originals = OriginalLimits(store)
    originals.note_reported(ReportedLimits("rapl", complete=True), reported_at_s)
    limits = LimitWriter([rapl], originals, described)
    limits.cap(ECO)
    assert store.originals == ({} if original_w is None else {"rapl/a": original_w})
    limits.lift()
    assert rapl.limits_w == {"a": original_w or 120.0}


def report(outcome: Outcome) -> ReportedLimits | None:
    return next(iter(reported_limits(ControlResult(outcome.backend, outcome.result, outcome.message))), None)


def test_h5_report_names_every_limit_that_may_be_in_force(store: Store) -> None:
    """It is all that is known once the file is lost: a cap that fails leaves those before it in force."""
    rapl = Limiter("rapl", a=200.0, b=200.0)
    limits = writer(store, rapl)
    limits.cap(ECO)
    rapl.errors["a"] = ControlFailedError("busy")
    found = report(limits.cap(WantedCap(percent=90.0))[0])
    assert found == ReportedLimits("rapl", WantedCap(percent=90.0), (120.0, 180.0))
    rapl.errors["b"] = ControlFailedError("busy")
    for outcome in (limits.cap(WantedCap(cap_w=50.0))[0], limits.lift()):
        found = report(outcome)
        assert found is not None
        assert found.backend == "rapl"
        assert {120.0, 180.0, 50.0} >= set(found.limits_w) >= {120.0, 180.0}
    rapl.reason = "driver not loaded"
    assert report(limits.cap(ECO)[0]) == found
    # The file is lost, and the driver is back.
    store.saved, rapl.reason = SavedRecords(), None
    rapl.errors.clear()
    originals = OriginalLimits(store)
    originals.note_reported(found, 0.0)
    assert LimitWriter([rapl], originals, described).lift().message.startswith("restored")
    assert rapl.limits_w == {"a": 200.0, "b": 200.0}


@pytest.mark.parametrize("percent", [90.0, None])
def test_h5_report_names_limits_of_single_devices(store: Store, percent: float | None) -> None:
    gpus = Limiter("nvml", a=200.0, b=200.0, c=90.0)
    cap = WantedCap(percent=percent, by_device=(("a", 100.0), ("c", 100.0)))
    outcome = writer(store, gpus).cap(cap)[0]
    assert outcome.message.endswith("; 100 W set for single devices")
    found = report(outcome)
    assert found is not None
    # The file is lost.
    store.saved = SavedRecords()
    originals = OriginalLimits(store)
    originals.note_reported(found, 0.0)
    assert LimitWriter([gpus], originals, described).lift().message.startswith("restored")
    assert gpus.limits_w == {"a": 200.0, "b": 200.0, "c": 90.0}


def test_h5_report_names_limits_of_another_boot_that_could_not_be_read_since(store: Store) -> None:
    rapl = Limiter("rapl", a=120.0, b=200.0)
    store.saved = SavedRecords(earlier={"rapl/a": LimitRecord(200.0, (120.0,))}, found=True)
    rapl.unreadable.add("a")
    rapl.errors["b"] = ControlFailedError("busy")
    found = report(writer(store, rapl).cap(WantedCap(percent=30.0))[0])
    assert found is not None
    assert (found.backend, found.limits_w) == ("rapl", (60.0, 120.0))
    # The file is lost as well.
    store.saved = SavedRecords()
    rapl.unreadable.clear()
    originals = OriginalLimits(store)
    originals.note_reported(found, 0.0)
    assert LimitWriter([rapl], originals, described).lift().message.startswith("restored")
    assert rapl.limits_w == {"a": 200.0, "b": 200.0}


def after_loss_of_all(store: Store, limiter: Limiter, found: ReportedLimits | None, describe: Describe) -> LimitWriter:
    """A process that has nothing but the last report."""
    store.saved = SavedRecords()
    originals = OriginalLimits(store)
    assert found is not None
    originals.note_reported(found, 0.0)
    return LimitWriter([limiter], originals, describe)


def test_h5_doubt_about_a_limit_outlives_a_second_loss(store: Store) -> None:
    """A cap that no device takes replaces the report that named the limit in force."""
    rapl = Limiter("rapl", a=120.0)

    def after_loss(found: ReportedLimits | None) -> LimitWriter:
        return after_loss_of_all(store, rapl, found, unlimited)

    limits = after_loss(ReportedLimits("rapl", WantedCap(cap_w=120.0), complete=True))
    outcome = limits.cap(WantedCap(percent=30.0))[0]
    assert (outcome.backend, outcome.result, rapl.log) == ("rapl", "blocked", [])
    assert "original is not known" in after_loss(report(outcome)).lift().message


def test_h5_backend_that_cannot_be_listed_keeps_its_doubt_through_a_second_loss(store: Store) -> None:
    rapl = Limiter("rapl", a=120.0)

    def after_loss(found: ReportedLimits | None) -> LimitWriter:
        return after_loss_of_all(store, rapl, found, described)

    limits = after_loss(ReportedLimits("rapl", WantedCap(percent=60.0), complete=True))
    rapl.reason = "cannot list the zones"
    outcome = limits.cap(WantedCap(percent=60.0))[0]
    assert (outcome.backend, outcome.result) == ("rapl", "blocked")
    rapl.reason = None
    assert "original is not known" in after_loss(report(outcome)).lift().message


def test_h5_report_names_every_backend_that_may_hold_limits(store: Store) -> None:
    """A later process that has nothing but the report takes the limits of a backend that is not named for others'."""
    rapl, hsmp = Limiter("rapl", a=200.0), Limiter("hsmp", b=225.0)
    rapl.reason, hsmp.errors["b"] = "no package zones", ControlFailedError("EIO")
    store.saved = SavedRecords()
    originals = OriginalLimits(store)
    for backend in ("rapl", "hsmp"):
        originals.note_reported(ReportedLimits(backend, WantedCap(percent=60.0), (225.0,)), 0.0)
    outcome = LimitWriter([rapl, hsmp], originals, described).cap(ECO)[0]
    assert outcome.backend == "rapl+hsmp"
    result = ControlResult(backend=outcome.backend, result=outcome.result, message=outcome.message)
    assert [found.backend for found in reported_limits(result)] == ["rapl", "hsmp"]


@pytest.mark.parametrize("cap", [WantedCap(cap_w=195.0), WantedCap(percent=26.0)])
def test_h5_limit_below_a_floor_that_was_not_known_when_it_was_written_is_lifted(store: Store, cap: WantedCap) -> None:
    """The model, garbled when the cap was written, is what the catalogue's smallest limit is found by."""
    amdgpu = Limiter("amdgpu", a=195.0)

    def known(devices: Sequence[PowerDevice]) -> list[LimitedDevice]:
        return [LimitedDevice(one.id, one.limit_w, CapRange(350.0, 750.0, 750.0), clips=True) for one in devices]

    limits = after_loss_of_all(store, amdgpu, ReportedLimits("amdgpu", cap, complete=True), known)
    assert limits.lift().message.startswith("restored")
    assert amdgpu.limits_w == {"a": 750.0}


def test_h5_limit_of_a_gpu_whose_floor_is_not_known_now_is_not_its_owners(store: Store) -> None:
    """The model, garbled after the record was lost, hides that a cap of 311 W was raised to 350 W."""
    amdgpu = Limiter("amdgpu", a=350.0)
    floor_w = 0.0

    def seen(devices: Sequence[PowerDevice]) -> list[LimitedDevice]:
        return [LimitedDevice(one.id, one.limit_w, CapRange(floor_w, 750.0, 750.0), clips=True) for one in devices]

    cap = WantedCap(cap_w=311.0)
    limits = after_loss_of_all(store, amdgpu, ReportedLimits("amdgpu", cap, complete=True), seen)
    assert "original is not known" in limits.cap(cap)[0].message
    floor_w = 350.0
    assert LimitWriter([amdgpu], OriginalLimits(store), seen).lift().message.startswith("restored")
    assert amdgpu.limits_w == {"a": 750.0}


def hsmp_clipped(store: Store, hsmp: Limiter, *, kexec: bool) -> Outcome:
    """Lift caps of 168 W saved in an earlier boot, from devices that state a maximum, but no minimum."""
    records = {f"hsmp/{name}": LimitRecord(280.0, (168.0,)) for name in hsmp.limits_w}
    store.saved = SavedRecords(earlier=records, found=True, kexec=kexec)

    def clipping(devices: Sequence[PowerDevice]) -> list[LimitedDevice]:
        return [LimitedDevice(one.id, one.limit_w, CapRange(56.0, 280.0, 280.0), clips=True) for one in devices]

    return LimitWriter([hsmp], OriginalLimits(store), clipping).lift()


def test_h5_limit_that_a_device_may_have_clipped_is_not_its_owners(store: Store) -> None:
    """HSMP clips to a range that it does not tell; killed before the answer, nobody knows what became of a cap."""
    hsmp = Limiter("hsmp", a=225.0, b=110.0, c=280.0)
    message = hsmp_clipped(store, hsmp, kexec=False).message
    assert message.startswith("original limits not restored: a: ")
    assert "not known" in message
    assert hsmp.log == []


def test_h5_limit_that_a_device_clipped_is_lifted_after_kexec(store: Store) -> None:
    """No firmware has reset the register: the saved original holds, as in the boot before."""
    hsmp = Limiter("hsmp", a=225.0, b=110.0, c=280.0)
    assert hsmp_clipped(store, hsmp, kexec=True).message.startswith("restored")
    assert hsmp.log == [("a", 280.0)]
    assert store.content == {}


def test_h5_first_start_takes_the_limits_that_it_finds(store: Store) -> None:
    rapl = Limiter("rapl", a=120.0)
    limits = writer(store, rapl)
    assert limits.cap(ECO)[0].result == "applied"
    limits.lift()
    assert (rapl.limits_w, rapl.log) == ({"a": 120.0}, [])


def test_saved_limits_that_cannot_be_read_stop_writes_until_they_can(store: Store) -> None:
    rapl = Limiter("rapl", a=120.0)
    store.saved = SavedRecords({"rapl/a": LimitRecord(180.0)}, found=True)
    store.broken = True
    limits = writer(store, rapl)
    assert limits.cap(WantedCap(cap_w=90.0))[0].result == "error"
    assert "input/output error" in limits.lift().message
    assert rapl.log == []
    store.broken = False
    assert limits.lift().message.startswith("restored")
    assert rapl.limits_w == {"a": 180.0}


def test_h7_one_save_before_the_writes_and_one_after_the_restore(store: Store) -> None:
    gpus = Limiter("nvml", **{f"gpu-{number}": 200.0 for number in range(16)})
    limits = writer(store, gpus)
    limits.cap(ECO)
    assert (store.saves, len(gpus.log)) == (1, 16)
    limits.cap(ECO)
    assert (store.saves, len(gpus.log)) == (1, 16)
    limits.lift()
    assert (store.saves, len(gpus.log), store.content) == (2, 32, {})


def test_h7_one_listing_a_cycle(store: Store) -> None:
    rapl = Limiter("rapl", a=200.0)
    limits = writer(store, rapl)
    for cap in (ECO, ECO):
        limits.devices()
        limits.cap(cap)
    limits.devices()
    limits.lift()
    assert rapl.listings == 3
    # Without a listing since the last write, the devices are listed again.
    limits.cap(ECO)
    limits.lift()
    assert rapl.limits_w == {"a": 200.0}


def control(store: Store, frequencies: Frequencies, *limiters: Limiter, dvfs: DvfsSettings = DVFS) -> CpuControl:
    originals = OriginalLimits(store)
    frequency = FrequencyWriter(frequencies, originals, dvfs)
    limits = LimitWriter(limiters, originals, described)
    return CpuControl(limits, frequency, Throttle(dvfs, throttle_pct=frequency.throttle_in_force_pct()))


def facts(power_w: float | None) -> CpuFacts:
    return CpuFacts(
        PACKAGE, 2, PowerReading(power_w, measured=True, problem="package-1: its energy counter has stopped")
    )


def test_throttle_follows_power_and_is_taken_back(store: Store) -> None:
    frequencies, rapl = Frequencies(), Limiter("rapl", a=200.0)
    rapl.reason = "no RAPL"
    cpu = control(store, frequencies, rapl)
    outcome = cpu.enforce(ECO, facts(300.0), 0.0)
    assert (outcome.backend, outcome.result) == ("dvfs", "unconfirmed")
    assert "not within the cap yet" in outcome.message
    assert frequencies.limits_hz == {"policy0": 3.2e9, "policy1": 3.2e9}
    outcome = cpu.enforce(ECO, facts(239.0), 10.0)
    assert (outcome.result, outcome.message) == ("applied", "frequency limited by measured power; rapl: no RAPL")
    rapl.reason = None
    assert cpu.enforce(ECO, facts(300.0), 20.0).backend == "rapl"
    assert frequencies.limits_hz == {"policy0": 3.5e9, "policy1": 3.5e9}
    assert cpu.throttle.state.throttle_pct == 0.0


def test_h1_load_that_has_just_risen_does_not_confirm_a_cap(store: Store) -> None:
    """Smoothed power is still below the cap then, and readings that are missing afterwards confirm nothing either."""
    frequencies, rapl = Frequencies(), Limiter("rapl", a=200.0)
    rapl.reason = "no RAPL"
    cpu = control(store, frequencies, rapl, dvfs=DvfsSettings())
    assert cpu.enforce(WantedCap(percent=70.0), facts(50.0), 0.0).result == "applied"
    for power_w, now_s in ((300.0, 20.0), (300.0, 40.0), (None, 60.0), (None, 80.0)):
        assert cpu.enforce(ECO, facts(power_w), now_s).result == "unconfirmed"


def test_h1_power_that_was_above_the_cap_is_not_confirmed_by_silence(store: Store) -> None:
    frequencies, rapl = Frequencies(), Limiter("rapl", a=200.0)
    rapl.reason = "no RAPL"
    cpu = control(store, frequencies, rapl, dvfs=DvfsSettings())
    assert cpu.enforce(ECO, facts(200.0), 0.0).result == "applied"
    cpu.enforce(ECO, facts(500.0), 20.0)
    assert cpu.enforce(ECO, facts(None), 40.0).result == "unconfirmed"


def test_h1_frequency_controller_without_readings_says_so_and_holds_a_fixed_share(store: Store) -> None:
    frequencies, rapl = Frequencies(), Limiter("rapl", a=200.0)
    rapl.reason = "no RAPL"
    cpu = control(store, frequencies, rapl)
    assert cpu.enforce(ECO, facts(None), 0.0).result == "unconfirmed"
    cpu.enforce(ECO, facts(None), 20.0)
    outcome = cpu.enforce(ECO, facts(None), 40.0)
    assert (outcome.backend, outcome.result) == ("dvfs", "error")
    assert outcome.message == (
        "frequency limited by a fixed share, since power cannot be read: package-1: its energy counter has stopped; "
        "rapl: no RAPL"
    )
    # 40 % of the span from 3.5 down to 0.8 GHz, less than that only if power showed the need.
    assert set(frequencies.limits_hz.values()) == {2.4e9}
    assert cpu.enforce(ECO, facts(None), 60.0) == outcome
    assert cpu.enforce(ECO, facts(230.0), 80.0).result == "applied"


def test_h1_lost_readings_never_raise_the_frequency(store: Store) -> None:
    frequencies = Frequencies()
    cpu = control(store, frequencies)
    for number in range(8):
        cpu.enforce(ECO, facts(300.0), 20.0 * number)
    held = dict(frequencies.limits_hz)
    assert max(held.values()) < 2.4e9
    for number in range(8, 14):
        cpu.enforce(ECO, facts(None), 20.0 * number)
    assert frequencies.limits_hz == held


def test_h1_one_missing_reading_changes_nothing(store: Store) -> None:
    cpu = control(store, Frequencies())
    applied = cpu.enforce(ECO, facts(230.0), 0.0)
    assert applied.result == "applied"
    assert [cpu.enforce(ECO, facts(None), 20.0), cpu.enforce(ECO, facts(230.0), 40.0)] == [applied, applied]


def test_h1_power_that_stays_above_the_cap_is_unconfirmed(store: Store) -> None:
    cpu = control(store, Frequencies())
    outcomes = [cpu.enforce(ECO, facts(300.0), 20.0 * number) for number in range(20)]
    assert {outcome.result for outcome in outcomes} == {"unconfirmed"}
    assert "to its minimum, and measured power is still above the cap" in outcomes[-1].message


def test_rounding_of_the_driver_is_no_drift(store: Store) -> None:
    frequencies = Frequencies()
    cpu = control(store, frequencies)
    cpu.enforce(ECO, facts(300.0), 0.0)
    written = frequencies.writes
    cpu.enforce(ECO, facts(240.0), 20.0)
    assert frequencies.writes == written
    frequencies.limits_hz["policy1"] = 3.5e9
    cpu.enforce(ECO, facts(240.0), 40.0)
    assert frequencies.limits_hz["policy1"] == 3.2e9


def test_a_cap_just_below_the_last_one_is_written_though_the_driver_rounded_that_up(store: Store) -> None:
    class RoundingUp(Limiter):
        extra_w = 1.0

        def set_limit(self, device_id: str, limit_w: float) -> float:
            return super().set_limit(device_id, limit_w + self.extra_w)

    hsmp = RoundingUp("hsmp", a=200.0)
    limits = writer(store, hsmp)
    assert limits.cap(WantedCap(cap_w=122.0))[1] == {"a": 123.0}
    limits.cap(WantedCap(cap_w=122.0))
    assert hsmp.log == [("a", 123.0)], "what the driver rounded is no drift"
    hsmp.extra_w = 0.0
    assert limits.cap(WantedCap(cap_w=121.0))[1] == {"a": 121.0}


def test_restarted_agent_goes_on_from_the_throttle_in_force(store: Store) -> None:
    frequencies = Frequencies()
    control(store, frequencies).enforce(ECO, facts(300.0), 0.0)
    again = control(store, frequencies)
    assert again.throttle.state.throttle_pct == pytest.approx(11.1, abs=0.1)
    again.enforce(LIFTED, facts(100.0), 20.0)
    assert frequencies.limits_hz == {"policy0": 3.5e9, "policy1": 3.5e9}


def test_frequency_is_never_raised_above_its_original_limit(store: Store) -> None:
    frequencies = Frequencies()
    frequencies.limits_hz["policy0"] = 2.0e9
    control(store, frequencies).enforce(ECO, facts(300.0), 0.0)
    assert frequencies.limits_hz == {"policy0": 2.0e9, "policy1": 3.2e9}


def test_h7_hundreds_of_policies_are_listed_once_and_saved_once(store: Store) -> None:
    frequencies = Frequencies()
    frequencies.limits_hz = {f"policy{number}": 3.5e9 for number in range(512)}
    cpu = control(store, frequencies)
    frequencies.listings = 0
    cpu.enforce(ECO, facts(300.0), 0.0)
    assert (frequencies.listings, frequencies.writes, store.saves) == (1, 512, 1)
    cpu.enforce(LIFTED, facts(100.0), 20.0)
    assert (frequencies.listings, frequencies.writes, store.saves) == (2, 1024, 2)
    assert store.content == {}


def test_limits_rounded_by_the_driver_are_known_to_the_next_process(store: Store) -> None:
    frequencies = Frequencies()
    frequencies.step_hz = 5e8
    cpu = control(store, frequencies)
    cpu.enforce(ECO, facts(300.0), 0.0)
    assert store.content["dvfs/policy0"] == LimitRecord(3.5e9, (3.23e9, 3.0e9))
    assert (frequencies.writes, store.saves) == (2, 2)
    cpu.enforce(ECO, facts(240.0), 20.0)
    assert (frequencies.writes, store.saves) == (2, 2)
    again = control(store, frequencies)
    again.enforce(WantedCap(percent=90.0), facts(100.0), 0.0)
    assert frequencies.limits_hz["policy0"] == 3.0e9
    again.enforce(WantedCap(percent=90.0), facts(100.0), 20.0)
    assert frequencies.limits_hz["policy0"] == 3.5e9


def test_h5_limit_of_a_table_is_known_before_it_is_written(store: Store) -> None:
    """One that only the driver's answer tells is lost with that answer: a later process takes it for its owner's."""
    frequencies = Frequencies()
    frequencies.steps_hz = (1.5e9, 3.0e9, 3.5e9)
    control(store, frequencies).enforce(ECO, facts(300.0), 0.0)
    assert store.content["dvfs/policy0"] == LimitRecord(3.5e9, (3.0e9,))
    assert frequencies.limits_hz["policy0"] == 3.0e9


def test_h5_throttle_in_force_is_not_taken_for_an_original(store: Store) -> None:
    frequencies = Frequencies()
    frequencies.limits_hz = {"policy0": 2.96e9, "policy1": 3.1e9, "policy2": 3.5e9}
    store.saved = lost()
    cpu = control(store, frequencies)
    cpu.enforce(ECO, facts(300.0), 0.0)
    assert store.originals["dvfs/policy0"] == 3.5e9
    assert "dvfs/policy1" not in store.originals
    cpu.enforce(LIFTED, facts(300.0), 20.0)
    assert frequencies.limits_hz == {"policy0": 3.5e9, "policy1": 3.1e9, "policy2": 3.5e9}


def test_h5_report_names_frequency_limits_that_cannot_be_reached(store: Store) -> None:
    """A report of no backend would hide them, should the file be lost next."""
    frequencies = Frequencies()
    rapl = Limiter("rapl")
    rapl.reason = "no zones"
    cpu = control(store, frequencies, rapl)
    cpu.enforce(ECO, facts(1000.0), 0.0)
    assert frequencies.writes
    frequencies.reason = "no cpufreq policy"
    outcome = cpu.enforce(ECO, facts(1000.0), 20.0)
    assert (outcome.backend, outcome.result) == ("dvfs", "blocked")


def test_nothing_works(store: Store) -> None:
    frequencies, rapl = Frequencies(), Limiter("rapl", a=200.0)
    rapl.reason, frequencies.reason = "a virtual machine", "no scaling driver"
    outcome = control(store, frequencies, rapl).enforce(ECO, facts(None), 0.0)
    assert (outcome.backend, outcome.result) == ("none", "blocked")
    assert outcome.message == "rapl: a virtual machine; dvfs: no scaling driver"


class Counters:
    name = "rapl"

    def __init__(self, **energies_j: float) -> None:
        self.energies_j = energies_j
        self.broken = False

    def unavailable(self) -> str | None:
        return None

    def energy(self) -> Sequence[EnergyReading]:
        if self.broken:
            raise ControlFailedError("does not answer")
        return [EnergyReading(name.replace("_", "-"), value, 262_143.0) for name, value in self.energies_j.items()]

    def power_w(self) -> dict[str, float]:
        return {}


def test_trap_only_packages_are_added_up() -> None:
    counters = Counters(package_0=0.0, package_1=0.0, dram_0=0.0, psys=0.0, core_0=0.0)
    meter = PowerMeter([counters])
    assert meter.read(0.0).package_power_w is None
    counters.energies_j = dict.fromkeys(counters.energies_j, 2000.0)
    sample = meter.read(20.0)
    assert sample.package_power_w == 200.0
    assert sample.power_w["psys"] == 100.0


def test_half_of_the_packages_is_no_total() -> None:
    counters = Counters(package_0=0.0)
    meter = PowerMeter([counters])
    meter.read(0.0)
    counters.energies_j = {"package_0": 2000.0, "package_1": 5.0}
    assert meter.read(20.0).package_power_w is None


def test_failing_meter_is_no_zero() -> None:
    counters = Counters(package_0=0.0)
    counters.broken = True
    assert PowerMeter([counters]).read(0.0).package_power_w is None
