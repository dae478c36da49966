"""From asked caps to limits of devices."""

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest

from joulie.domain.actuation import (
    LimitedDevice,
    WantedCap,
    cpu_range,
    die_shares,
    gpu_range,
    same_limit,
    socket_range,
    unsure_dies,
    wanted_limits,
)
from joulie.domain.hardware import BUILTIN_CATALOGUE, CapRange
from joulie.domain.limit_records import LimitPlan, LimitRecord, plan_cap, plan_restore
from joulie.domain.quantities import InvalidQuantityError

PACKAGE = CapRange(41.0, 205.0, 205.0)
H100 = CapRange(200.0, 400.0, 400.0)


def test_watts_win_over_percent() -> None:
    assert WantedCap(cap_w=150.0, percent=60.0).in_watts(PACKAGE) == 150.0
    assert WantedCap(percent=60.0).in_watts(PACKAGE) == pytest.approx(123.0)


def test_caps_are_clamped_to_what_the_device_takes() -> None:
    assert WantedCap(cap_w=1.0).in_watts(PACKAGE) == 41.0
    assert WantedCap(cap_w=5000.0).in_watts(PACKAGE) == 205.0
    assert WantedCap(percent=10.0).in_watts(H100) == 200.0


def test_percent_without_a_base_is_no_number() -> None:
    assert WantedCap(percent=60.0).in_watts(None) is None
    assert WantedCap(cap_w=100.0).in_watts(None) == 100.0
    assert WantedCap(cap_w=100.0).in_percent(None) is None


@pytest.mark.parametrize(
    ("cap", "lifted"),
    [
        (WantedCap(), True),
        (WantedCap(percent=100.0), True),
        (WantedCap(percent=99.9), False),
        (WantedCap(cap_w=205.0), False),
        (WantedCap(cap_w=205.0, percent=100.0), False),
    ],
)
def test_lifted(cap: WantedCap, lifted: bool) -> None:
    assert cap.lifted is lifted


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_impossible_caps_are_refused(bad: float) -> None:
    with pytest.raises(InvalidQuantityError):
        WantedCap(cap_w=bad)
    with pytest.raises(InvalidQuantityError):
        WantedCap(percent=bad)


def test_percent_above_100_is_refused() -> None:
    with pytest.raises(InvalidQuantityError):
        WantedCap(percent=100.1)


def test_cpu_range_is_the_devices_then_the_catalogues() -> None:
    catalogue = CapRange(320.0, 400.0, 360.0)
    assert cpu_range(None, 205.0, catalogue) == CapRange(41.0, 205.0, 205.0)
    assert cpu_range(100.0, 205.0, None) == CapRange(100.0, 205.0, 205.0)
    assert cpu_range(None, None, None) is None


def test_configurable_tdp_is_no_floor_of_a_limiter() -> None:
    model = BUILTIN_CATALOGUE.cpu("AMD EPYC 9654").model
    assert model is not None
    limits = cpu_range(None, None, model.cap_range)
    # 60 % of the TDP, below the 320 W at which the configurable TDP starts.
    assert WantedCap(percent=60.0).in_watts(limits) == pytest.approx(216.0)


def test_trap_gpu_percent_is_of_the_default_limit() -> None:
    limits = gpu_range(200.0, 800.0, 700.0, None)
    assert WantedCap(percent=60.0).in_watts(limits) == pytest.approx(420.0)


def test_gpu_range_falls_back_to_the_catalogue() -> None:
    assert gpu_range(None, None, None, H100) == H100
    assert gpu_range(None, None, None, None) is None
    assert gpu_range(None, None, 300.0, None) == CapRange(0.0, 300.0, 300.0)


def plan(cap: WantedCap, *devices: LimitedDevice, records: Mapping[str, LimitRecord] | None = None) -> LimitPlan:
    wanted = wanted_limits(cap, devices)
    if cap.lifted:
        return plan_restore(wanted.found, records or {})
    planned = plan_cap(wanted.found, wanted.limits_w, records or {}, same_limit)
    return replace(planned, refused={**planned.refused, **wanted.refused})


def test_plan_writes_only_what_differs() -> None:
    planned = plan(WantedCap(percent=60.0), LimitedDevice("a", 205.0, PACKAGE), LimitedDevice("b", 123.2, PACKAGE))
    assert planned.targets == {"a": pytest.approx(123.0), "b": pytest.approx(123.0, abs=0.5)}
    assert list(planned.writes) == ["a"]
    assert planned.records == {"a": LimitRecord(205.0, (pytest.approx(123.0),))}


def test_plan_keeps_the_first_original() -> None:
    records = {"a": LimitRecord(205.0, (123.0,))}
    planned = plan(WantedCap(cap_w=90.0), LimitedDevice("a", 123.0, PACKAGE), records=records)
    assert planned.writes == {"a": 90.0}
    # Killed between saving and writing, it may be either.
    assert planned.records == {"a": LimitRecord(205.0, (123.0, 90.0))}


def test_lifted_plan_goes_back_to_the_originals_and_touches_nothing_else() -> None:
    devices = [LimitedDevice("a", 123.0, PACKAGE), LimitedDevice("b", 190.0, PACKAGE)]
    planned = plan(WantedCap(percent=100.0), *devices, records={"a": LimitRecord(180.0)})
    assert planned.writes == {"a": 180.0}
    assert planned.targets == {"a": 180.0}


@pytest.mark.parametrize("limits", [None, PACKAGE])
@pytest.mark.parametrize("unreadable", [None, 0.0, math.nan])
def test_h4_unreadable_limit_is_neither_written_nor_saved(unreadable: float | None, limits: CapRange | None) -> None:
    planned = plan(WantedCap(cap_w=90.0), LimitedDevice("a", unreadable, limits))
    assert (planned.writes, planned.records) == ({}, {})
    assert "cannot be read" in planned.refused["a"]


@pytest.mark.parametrize(
    ("original_w", "cap"),
    [(80.0, WantedCap(percent=60.0)), (150.0, WantedCap(cap_w=162.0)), (123.0, WantedCap(percent=60.0))],
)
def test_h2_lower_limit_of_an_administrator_is_not_raised(original_w: float, cap: WantedCap) -> None:
    planned = plan(cap, LimitedDevice("a", original_w, PACKAGE))
    assert planned.targets == {"a": original_w}
    assert (planned.writes, planned.records) == ({}, {})


def test_h2_gpu_limit_of_an_administrator_is_not_raised() -> None:
    limits = gpu_range(200.0, 800.0, 700.0, None)
    assert plan(WantedCap(percent=60.0), LimitedDevice("a", 250.0, limits)).writes == {}


def test_h2_lower_limit_set_while_capped_is_not_raised() -> None:
    records = {"a": LimitRecord(205.0, (123.0,))}
    device = LimitedDevice("a", 70.0, PACKAGE)
    assert plan(WantedCap(percent=60.0), device, records=records).writes == {}
    # One of Joulie's own is raised by a looser cap, and so is one of which an old file does not tell.
    own = LimitedDevice("a", 123.0, PACKAGE)
    assert plan(WantedCap(percent=80.0), own, records=records).writes == {"a": 164.0}
    assert plan(WantedCap(percent=80.0), device, records={"a": LimitRecord(205.0)}).writes == {"a": 164.0}


def test_drift_above_the_cap_is_healed_up_to_the_original() -> None:
    records = {"a": LimitRecord(150.0, (123.0,))}
    assert plan(WantedCap(percent=60.0), LimitedDevice("a", 205.0, PACKAGE), records=records).writes == {"a": 123.0}
    assert plan(WantedCap(percent=90.0), LimitedDevice("a", 205.0, PACKAGE), records=records).writes == {"a": 150.0}


def test_percentage_without_a_base_is_refused_with_words() -> None:
    planned = plan(WantedCap(percent=60.0), LimitedDevice("a", 100.0, None))
    assert planned.writes == {}
    assert "maximum" in planned.refused["a"]


def test_h8_dies_share_the_watts_of_their_socket() -> None:
    dies = [f"package-{socket}-die-{die}" for socket in range(2) for die in range(2)]
    shares = die_shares(dict.fromkeys(dies, 205.0))
    devices = [LimitedDevice(die, 205.0, PACKAGE, shares[die]) for die in dies]
    # Never below what a die takes.
    assert plan(WantedCap(cap_w=300.0), *devices).writes == dict.fromkeys(dies, 150.0)
    assert plan(WantedCap(percent=60.0), *devices).writes == dict.fromkeys(dies, pytest.approx(123.0))
    assert socket_range([PACKAGE, PACKAGE]) == CapRange(82.0, 410.0, 410.0)
    assert socket_range([PACKAGE, None]) is None


def test_h5_shares_of_dies_are_unsure_while_a_package_has_no_name() -> None:
    dies = {"package-0-die-0", "package-0-die-1", "package-1-die-0"}
    assert unsure_dies({*dies, "package-2"}) == set()
    assert unsure_dies({*dies, "package-2", "intel-rapl:3"}) == dies


def test_h8_shares_follow_the_maxima_or_are_equal() -> None:
    assert die_shares({"package-0-die-0": 100.0, "package-0-die-1": 300.0}) == {
        "package-0-die-0": 0.25,
        "package-0-die-1": 0.75,
    }
    assert die_shares({"package-0-die-0": None, "package-0-die-1": 300.0, "package-1": None, "GPU-1": 700.0}) == {
        "package-0-die-0": 0.5,
        "package-0-die-1": 0.5,
        "package-1": 1.0,
        "GPU-1": 1.0,
    }


def test_same_limit_allows_for_rounding() -> None:
    assert same_limit(123.125, 123.0)
    assert not same_limit(124.5, 123.0)
