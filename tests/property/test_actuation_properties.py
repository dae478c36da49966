"""Whatever is asked for, and whatever is found: limits stay in range, originals come back."""

from hypothesis import given
from hypothesis import strategies as st

from joulie.domain.actuation import (
    LimitedDevice,
    WantedCap,
    cpu_range,
    gpu_range,
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
