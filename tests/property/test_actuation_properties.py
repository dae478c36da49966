"""Whatever is asked for, and whatever is found: limits stay in range, originals come back, power is never absurd."""

from hypothesis import assume, given
from hypothesis import strategies as st

from joulie.domain.actuation import (
    PLAUSIBLE_POWER_W,
    LimitedDevice,
    WantedCap,
    cpu_range,
    gpu_range,
    mean_power_w,
    plan_limits,
    same_limit,
)
from joulie.domain.hardware import CapRange

watts = st.floats(1.0, 2000.0)
caps = st.builds(WantedCap, st.none() | watts, st.none() | st.floats(0.1, 100.0))


@st.composite
def ranges(draw: st.DrawFn) -> CapRange:
    low_w, base_w, high_w = sorted(draw(st.tuples(watts, watts, watts)))
    return CapRange(low_w, high_w, base_w)


@st.composite
def device_lists(draw: st.DrawFn) -> list[LimitedDevice]:
    count = draw(st.integers(0, 8))
    return [LimitedDevice(f"d{n}", draw(st.none() | watts), draw(st.none() | ranges())) for n in range(count)]


@given(caps, device_lists())
def test_cap_then_lift_gives_the_limits_back(cap: WantedCap, devices: list[LimitedDevice]) -> None:
    plan = plan_limits(cap, devices, {})
    after = [LimitedDevice(d.id, plan.writes_w.get(d.id, d.limit_w), d.limits) for d in devices]
    back = plan_limits(WantedCap(), after, plan.originals_w)
    for device, capped in zip(devices, after, strict=True):
        now_w = back.writes_w.get(device.id, capped.limit_w)
        if device.limit_w is not None:
            assert now_w is not None
            assert same_limit(device.limit_w, now_w)


@given(caps, device_lists())
def test_a_second_plan_writes_nothing(cap: WantedCap, devices: list[LimitedDevice]) -> None:
    plan = plan_limits(cap, devices, {})
    after = [LimitedDevice(d.id, plan.writes_w.get(d.id, d.limit_w), d.limits) for d in devices]
    again = plan_limits(cap, after, plan.originals_w)
    assert again.writes_w == {}
    assert again.targets_w.keys() == plan.targets_w.keys() or cap.lifted


@given(caps, device_lists())
def test_every_device_has_a_target_or_a_reason(cap: WantedCap, devices: list[LimitedDevice]) -> None:
    plan = plan_limits(cap, devices, {})
    if not cap.lifted:
        assert plan.targets_w.keys() | plan.refused.keys() == {device.id for device in devices}
    assert not plan.targets_w.keys() & plan.refused.keys()
    # Nothing is written that could not be taken back.
    assert plan.writes_w.keys() <= plan.originals_w.keys()
    for device in devices:
        target_w = plan.targets_w.get(device.id)
        if target_w is not None and device.limits is not None:
            assert device.limits.min_w <= target_w <= device.limits.max_w


@given(st.none() | watts, st.none() | watts, st.none() | watts, st.none() | ranges())
def test_ranges_are_ranges(
    min_w: float | None, max_w: float | None, default_w: float | None, catalogue: CapRange | None
) -> None:
    for limits in (cpu_range(min_w, max_w, catalogue), gpu_range(min_w, max_w, default_w, catalogue)):
        assert limits is None or limits.min_w <= limits.base_w <= limits.max_w


energies = st.floats(0.0, 262_143.0)


@given(energies, energies, st.floats(0.01, 600.0), st.none() | st.just(262_143.0))
def test_power_is_plausible_or_unknown(
    before_j: float, after_j: float, elapsed_s: float, wraps_at_j: float | None
) -> None:
    power_w = mean_power_w(before_j, after_j, elapsed_s, wraps_at_j=wraps_at_j)
    assert power_w is None or 0.0 <= power_w <= PLAUSIBLE_POWER_W


@given(st.floats(0.0, 1500.0), energies, st.floats(1.0, 60.0))
def test_a_wrapping_counter_tells_the_true_power(power_w: float, before_j: float, elapsed_s: float) -> None:
    wraps_at_j = 262_143.0
    after_j = (before_j + power_w * elapsed_s) % wraps_at_j
    assume(elapsed_s * PLAUSIBLE_POWER_W < wraps_at_j)
    found_w = mean_power_w(before_j, after_j, elapsed_s, wraps_at_j=wraps_at_j)
    assert found_w is not None
    assert abs(found_w - power_w) < 1e-3
