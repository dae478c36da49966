"""Whatever is asked for, and whatever is found: limits stay in range, originals come back."""

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from joulie.domain.actuation import (
    LimitedDevice,
    WantedCap,
    cpu_range,
    die_shares,
    gpu_range,
    same_limit,
    wanted_limits,
)
from joulie.domain.hardware import CapRange
from joulie.domain.limit_records import LimitPlan, LimitRecord, plan_cap, plan_restore

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


def capped(cap: WantedCap, devices: list[LimitedDevice], records: Mapping[str, LimitRecord]) -> LimitPlan:
    wanted = wanted_limits(cap, devices)
    return plan_cap(wanted.found, wanted.limits_w, records, same_limit)


def after(plan: LimitPlan, devices: list[LimitedDevice]) -> list[LimitedDevice]:
    return [replace(device, limit_w=plan.writes.get(device.id, device.limit_w)) for device in devices]


@given(caps, device_lists())
def test_cap_then_lift_gives_the_limits_back(cap: WantedCap, devices: list[LimitedDevice]) -> None:
    plan = capped(cap, devices, {})
    now = after(plan, devices)
    back = after(plan_restore(wanted_limits(WantedCap(), now).found, plan.records), now)
    for before, restored in zip(devices, back, strict=True):
        assert (before.limit_w is None) == (restored.limit_w is None)
        if before.limit_w is not None and restored.limit_w is not None:
            assert same_limit(before.limit_w, restored.limit_w)


@given(st.lists(caps, min_size=1, max_size=4), device_lists())
def test_h2_no_course_of_caps_raises_a_limit(course: list[WantedCap], devices: list[LimitedDevice]) -> None:
    originals = {device.id: device.limit_w for device in devices}
    records: dict[str, LimitRecord] = {}
    for cap in course:
        plan = capped(cap, devices, records)
        records |= plan.records
        # Nothing is written that was not read, and nothing that could not be taken back.
        assert plan.writes.keys() <= records.keys()
        devices = after(plan, devices)
        for device in devices:
            original_w = originals[device.id]
            if original_w is None:
                assert device.limit_w is None
            else:
                assert device.limit_w is not None
                assert device.limit_w <= original_w


@given(caps, device_lists())
def test_a_second_plan_writes_nothing(cap: WantedCap, devices: list[LimitedDevice]) -> None:
    plan = capped(cap, devices, {})
    again = capped(cap, after(plan, devices), plan.records)
    assert (again.writes, again.records) == ({}, {})
    assert again.targets.keys() == plan.targets.keys()


@given(caps, device_lists())
def test_every_device_has_a_target_or_a_reason(cap: WantedCap, devices: list[LimitedDevice]) -> None:
    wanted = wanted_limits(cap, devices)
    plan = plan_cap(wanted.found, wanted.limits_w, {}, same_limit)
    refused = plan.refused.keys() | wanted.refused.keys()
    if not cap.lifted:
        assert plan.targets.keys() | refused == {device.id for device in devices}
    assert not plan.targets.keys() & refused
    for device in devices:
        if device.id in plan.writes and device.limits is not None:
            assert device.limits.min_w <= wanted.limits_w[device.id] <= device.limits.max_w


@given(st.dictionaries(st.integers(0, 3), st.lists(st.none() | watts, min_size=1, max_size=4), max_size=4), watts)
def test_h8_dies_never_get_more_than_their_socket(sockets: dict[int, list[float | None]], cap_w: float) -> None:
    maxima = {f"package-{n}-die-{die}": max_w for n, dies in sockets.items() for die, max_w in enumerate(dies)}
    shares = die_shares(maxima)
    for number, dies in sockets.items():
        parts = [shares[f"package-{number}-die-{die}"] for die in range(len(dies))]
        assert abs(sum(parts) - 1.0) < 1e-9
        assert all(part > 0.0 for part in parts)
        assert abs(sum(part * cap_w for part in parts) - cap_w) < 1e-6 * cap_w


@given(st.none() | watts, st.none() | watts, st.none() | watts, st.none() | ranges())
def test_ranges_are_ranges(
    min_w: float | None, max_w: float | None, default_w: float | None, catalogue: CapRange | None
) -> None:
    for limits in (cpu_range(min_w, max_w, catalogue), gpu_range(min_w, max_w, default_w, catalogue)):
        assert limits is None or limits.min_w <= limits.base_w <= limits.max_w
