"""From asked caps to limits of devices."""

import math

import pytest

from joulie.domain.actuation import (
    LimitedDevice,
    WantedCap,
    cpu_range,
    gpu_range,
    plan_limits,
    same_limit,
)
from joulie.domain.hardware import BUILTIN_CATALOGUE, CapRange
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


def test_plan_writes_only_what_differs() -> None:
    devices = [LimitedDevice("a", 205.0, PACKAGE), LimitedDevice("b", 123.2, PACKAGE)]
    plan = plan_limits(WantedCap(percent=60.0), devices, {})
    assert plan.targets_w == {"a": pytest.approx(123.0), "b": pytest.approx(123.0)}
    assert list(plan.writes_w) == ["a"]
    assert plan.originals_w == {"a": 205.0}


def test_plan_keeps_the_first_originals() -> None:
    plan = plan_limits(WantedCap(cap_w=90.0), [LimitedDevice("a", 123.0, PACKAGE)], {"a": 205.0})
    assert plan.writes_w == {"a": 90.0}
    assert plan.originals_w == {}


def test_lifted_plan_goes_back_to_the_originals_and_touches_nothing_else() -> None:
    devices = [LimitedDevice("a", 123.0, PACKAGE), LimitedDevice("b", 190.0, PACKAGE)]
    plan = plan_limits(WantedCap(percent=100.0), devices, {"a": 180.0})
    assert plan.writes_w == {"a": 180.0}
    assert plan.targets_w == {"a": 180.0}


def test_device_that_could_not_be_restored_is_left_alone() -> None:
    plan = plan_limits(WantedCap(cap_w=90.0), [LimitedDevice("a", None, None)], {})
    assert plan.writes_w == {}
    assert "restored" in plan.refused["a"]


def test_unreadable_limit_is_restored_to_the_base() -> None:
    plan = plan_limits(WantedCap(cap_w=90.0), [LimitedDevice("a", None, PACKAGE)], {})
    assert plan.originals_w == {"a": 205.0}


def test_percentage_without_a_base_is_refused_with_words() -> None:
    plan = plan_limits(WantedCap(percent=60.0), [LimitedDevice("a", 100.0, None)], {})
    assert plan.writes_w == {}
    assert "maximum" in plan.refused["a"]


def test_same_limit_allows_for_rounding() -> None:
    assert same_limit(123.125, 123.0)
    assert not same_limit(124.0, 123.0)
    assert not same_limit(None, 123.0)
