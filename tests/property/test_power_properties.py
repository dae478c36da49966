"""What must hold for every curve, load, cap and step length."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulie.domain.dynamics import lagged, lagged_mean
from joulie.domain.hardware import BUILTIN_CATALOGUE, GpuModel
from joulie.domain.power.cpu import CpuPower
from joulie.domain.power.gpu import MEASURED_RESPONSE, LimitResponse, natural_power_w, operate_gpu
from joulie.domain.units import InvalidQuantityError
from joulie_lab.machines.gpu_clock import ClockPower
from joulie_lab.simulation.gpu_response import SWEPT, drawn
from joulie_lab.simulation.job_response import (
    THROUGHPUT_MODELS,
    Boundness,
    NoPublishedExponentError,
    activity_factor,
    cpu_throughput,
)

quick = settings(max_examples=50, deadline=None)
UNIT = st.floats(0.0, 1.0)
CAPS_W = st.floats(0.0, 2000.0) | st.just(np.inf)
CPUS = st.sampled_from(
    [CpuPower.of(model, sockets) for model in BUILTIN_CATALOGUE.cpus for sockets in (1, 2)]
    + [CpuPower(np.linspace(90.0, 600.0, 11), np.asarray(500.0), np.asarray(1.15), np.asarray(0.3))]
)


def responses() -> list[LimitResponse]:
    models: list[LimitResponse] = [MEASURED_RESPONSE]
    for gpu in BUILTIN_CATALOGUE.gpus:
        for make in THROUGHPUT_MODELS.values():
            try:
                models.append(make(gpu, 1))
            except NoPublishedExponentError:
                continue
    return models


MODELS = st.sampled_from(responses())


@quick
@given(power=CPUS, util=UNIT, cap_w=CAPS_W, activity=st.floats(0.35, 1.0), deep=st.booleans())
def test_solved_clock_meets_the_cap_or_is_saturated(
    power: CpuPower, util: float, cap_w: float, activity: float, deep: bool
) -> None:
    state = power.operate(util, cap_w, activity=activity, deep_idle=deep)
    assert power.frequency_floor <= state.frequency <= 1.0
    if state.saturated:
        assert state.frequency == power.frequency_floor
        assert state.package_w > cap_w
    else:
        assert state.package_w <= cap_w * (1.0 + 1e-9)
    free = power.operate(util, activity=activity, deep_idle=deep)
    if cap_w >= free.package_w:
        assert state == free
    elif not state.saturated and state.frequency > power.frequency_floor:
        # No watt of the budget is wasted.
        assert state.package_w == pytest.approx(cap_w, rel=1e-9)


@quick
@given(power=CPUS, util=UNIT, caps_w=st.tuples(CAPS_W, CAPS_W), activity=st.floats(0.35, 1.0), deep=st.booleans())
def test_deeper_cpu_cap_never_more_power_or_throughput(
    power: CpuPower, util: float, caps_w: tuple[float, float], activity: float, deep: bool
) -> None:
    low = power.operate(util, min(caps_w), activity=activity, deep_idle=deep)
    high = power.operate(util, max(caps_w), activity=activity, deep_idle=deep)
    assert low.wall_w <= high.wall_w + 1e-9
    assert low.frequency <= high.frequency
    assert cpu_throughput(low.frequency) <= cpu_throughput(high.frequency)


@quick
@given(power=CPUS, utils=st.tuples(UNIT, UNIT), cap_w=CAPS_W, deep=st.booleans())
def test_more_load_never_less_power(power: CpuPower, utils: tuple[float, float], cap_w: float, deep: bool) -> None:
    less = power.operate(min(utils), cap_w, deep_idle=deep)
    more = power.operate(max(utils), cap_w, deep_idle=deep)
    assert less.wall_w <= more.wall_w + 1e-9
    assert power.curve_w[-1] * (1 + 1e-12) >= more.wall_w > 0.0


@quick
@given(
    nodes=st.lists(st.tuples(CPUS, UNIT, CAPS_W, st.booleans()), min_size=1, max_size=6),
    activity=st.floats(0.35, 1.0),
)
def test_a_fleet_is_its_nodes(nodes: list[tuple[CpuPower, float, float, bool]], activity: float) -> None:
    fleet = CpuPower.fleet([node[0] for node in nodes], np.arange(len(nodes)))
    utils, caps_w, deep = (np.array([node[i] for node in nodes]) for i in (1, 2, 3))
    together = fleet.operate(utils, caps_w, activity=activity, deep_idle=deep)
    for row, (power, util, cap_w, sleeps) in enumerate(nodes):
        alone = power.operate(util, cap_w, activity=activity, deep_idle=sleeps)
        np.testing.assert_allclose([field[row] for field in together], [float(field) for field in alone], rtol=1e-14)


@quick
@given(memory=UNIT, io=UNIT, bound=st.sampled_from(list(Boundness)), clocks=st.tuples(UNIT, UNIT))
def test_activity_and_throughput_are_bounded_and_monotone(
    memory: float, io: float, bound: Boundness, clocks: tuple[float, float]
) -> None:
    assert 0.35 <= activity_factor(memory, io, bound) <= 1.0
    slow = cpu_throughput(min(clocks), memory, io, bound)
    fast = cpu_throughput(max(clocks), memory, io, bound)
    assert 0.0 <= slow <= fast + 1e-12 <= 1.0 + 2e-12
    assert cpu_throughput(1.0, memory, io, bound) == pytest.approx(1.0)


@quick
@given(model=MODELS, natural_w=st.floats(10.0, 700.0), limits_w=st.tuples(CAPS_W, CAPS_W), memory=UNIT)
def test_a_smaller_gpu_limit_never_gives_more(
    model: LimitResponse, natural_w: float, limits_w: tuple[float, float], memory: float
) -> None:
    low, high = (model.under(natural_w, limit_w, 700.0, memory) for limit_w in sorted(limits_w))
    for below, above in zip(low.throughput, high.throughput, strict=True):
        assert -1e-12 <= below <= above + 1e-12 <= 1.0 + 1e-9
    assert low.power_w <= high.power_w * (1.0 + 1e-12) <= natural_w * (1.0 + 2e-12)
    assert low.power_w <= min(limits_w)
    assert model.under(natural_w, 700.0, 700.0, memory).throughput.median == pytest.approx(1.0)


@quick
@given(key=st.text(max_size=20), seed=st.none() | st.integers(0, 99), limits_w=st.tuples(CAPS_W, CAPS_W))
def test_every_drawn_job_responds_like_a_job(key: str, seed: int | None, limits_w: tuple[float, float]) -> None:
    model = SWEPT.of_gpu("H100", seed).for_jobs(np.array(drawn(key)))
    low, high = (model.under(400.0, limit_w, 700.0) for limit_w in sorted(limits_w))
    assert 0.0 <= low.throughput.median <= high.throughput.median + 1e-12 <= 1.0 + 1e-9
    assert low.power_w <= high.power_w * (1.0 + 1e-12) <= 400.0 * (1.0 + 2e-12)
    assert low.power_w <= min(limits_w)
    assert drawn(key) == drawn(key)


@quick
@given(
    gpu=st.sampled_from(BUILTIN_CATALOGUE.gpus),
    model=MODELS,
    util=UNIT,
    memory=UNIT,
    caps_w=st.tuples(CAPS_W, CAPS_W),
    deep=st.booleans(),
)
def test_gpu_power_is_bounded_and_follows_the_cap(
    gpu: GpuModel, model: LimitResponse, util: float, memory: float, caps_w: tuple[float, float], deep: bool
) -> None:
    limits = (gpu.idle_w, gpu.default_w)
    low, high = (
        operate_gpu(*limits, util, cap_w, memory_share=memory, deep_idle=deep, response=model)
        for cap_w in sorted(caps_w)
    )
    assert low.power_w <= high.power_w <= high.natural_w <= limits[1] + 1e-9
    assert low.throughput.median <= high.throughput.median + 1e-12
    assert low.saturated or low.power_w <= min(caps_w)


@quick
@given(idle_w=st.floats(0.0, 100.0), dynamic_w=st.floats(0.0, 700.0), utils=st.tuples(UNIT, UNIT), memory=UNIT)
def test_gpu_natural_power_grows_with_load(
    idle_w: float, dynamic_w: float, utils: tuple[float, float], memory: float
) -> None:
    less, more = natural_power_w(idle_w, idle_w + dynamic_w, sorted(utils), memory)
    assert idle_w <= less <= more + 1e-9 <= idle_w + dynamic_w + 2e-9


CLOCK_POWERS = st.builds(
    ClockPower,
    base_w=st.floats(0.0, 300.0),
    linear_w=st.floats(1.0, 500.0),
    nonlinear_w=st.floats(0.0, 3000.0),
    transition=UNIT,
)


@quick
@given(power=CLOCK_POWERS, cap_w=CAPS_W, floor=st.floats(0.05, 1.0))
def test_gpu_clock_meets_the_cap_or_is_at_its_floor(power: ClockPower, cap_w: float, floor: float) -> None:
    clock = power.clock_under(cap_w, floor)
    assert floor <= clock <= 1.0
    assert clock == floor or power.power_w(clock) <= cap_w * (1.0 + 1e-9) + 1e-9
    if floor < clock < 1.0:
        assert power.power_w(clock) == pytest.approx(cap_w, rel=1e-9, abs=1e-9)


@quick
@given(
    current=st.floats(0.0, 1000.0),
    target=st.floats(0.0, 1000.0),
    steps_s=st.lists(st.floats(0.01, 100.0), min_size=1, max_size=6),
    tau_s=st.floats(0.0, 100.0),
)
def test_lag_does_not_depend_on_the_step_length(
    current: float, target: float, steps_s: list[float], tau_s: float
) -> None:
    value = current
    energy_j = 0.0
    for step_s in steps_s:
        energy_j += float(lagged_mean(value, target, step_s, tau_s)) * step_s
        value = float(lagged(value, target, step_s, tau_s))
    total_s = sum(steps_s)
    assert value == pytest.approx(float(lagged(current, target, total_s, tau_s)), abs=1e-6)
    assert energy_j == pytest.approx(float(lagged_mean(current, target, total_s, tau_s)) * total_s, rel=1e-6, abs=1e-6)
    assert min(current, target) - 1e-9 <= value <= max(current, target) + 1e-9


@quick
@given(
    bad=st.sampled_from([np.nan, -1e-9, np.inf, -np.inf]), others=st.lists(UNIT, max_size=4), place=st.integers(0, 4)
)
def test_bad_elements_are_refused_wherever_they_stand(bad: float, others: list[float], place: int) -> None:
    utils = [*others[:place], bad, *others[place:]]
    with pytest.raises(InvalidQuantityError) as caught:
        CpuPower.of(BUILTIN_CATALOGUE.cpus[0], 2).operate(utils)
    assert caught.value.quantity == "util"
    with pytest.raises(InvalidQuantityError):
        operate_gpu(60.0, 400.0, utils)
