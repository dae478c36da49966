"""Whatever the grid, the user and the clock do: a maximum is lowered within its bounds, and never lost."""

import math

from hypothesis import given
from hypothesis import strategies as st

from joulie.domain.grid import names
from joulie.domain.grid.ceilings import (
    CHANGE_INTERVAL_S,
    Ceiling,
    CeilingReason,
    Scaling,
    ceiling_request,
    change,
    decide,
    next_change,
)
from joulie.domain.grid.deferral import Conditions
from joulie.domain.grid.maxima import effective, overridden
from joulie.domain.grid.request import GridRequest
from joulie.domain.grid.series import Series
from joulie.domain.grid.signals import GridSignal, Measure
from joulie.domain.signal import Quality

NOW_S = 1_800_000_000.0
texts = st.sampled_from(["5", "0", "50%", "0%", "200: 10", "100: 50%, 300: 3", "999999"])
intensities = st.one_of(st.none(), st.floats(0.0, 1000.0))
replicas = st.integers(1, 1000)


def carbon(value, forecast=None):
    quality = Quality.MISSING if value is None else Quality.FRESH
    return Conditions(GridSignal(Measure.CARBON, "DE", quality, value, NOW_S, forecast=forecast))


def scaling(text, floor, original, minimum, record=None, present=None):
    asked = ceiling_request({names.CARBON_MAX_REPLICAS: text, names.MAX_REPLICAS_FLOOR: str(floor)})
    in_force = present if present is not None and present < original else None
    return Scaling(GridRequest(), asked, original, minimum, in_force, None if record is None else record.since_s)


@given(texts, st.integers(0, 50), replicas, st.integers(0, 50), intensities)
def test_a_ceiling_lies_between_floor_minimum_and_the_original_maximum(text, floor, original, minimum, value):
    wanted = decide(scaling(text, floor, original, minimum), carbon(value), NOW_S)
    assert wanted.maximum <= original
    assert wanted.maximum >= min(original, max(floor, minimum, 1))
    assert value is not None or wanted.maximum == original


class Events:
    """What may happen between two steps."""

    edits = st.one_of(st.none(), st.none(), st.none(), replicas)
    all = st.lists(
        st.tuples(intensities, st.floats(1.0, 20_000.0), edits, st.one_of(st.none(), st.integers(0, 1000))),
        min_size=1, max_size=40,
    )  # fmt: skip


@given(texts, st.integers(0, 20), st.one_of(st.none(), replicas), st.integers(0, 20), Events.all)
def test_the_original_maximum_is_never_lost(text, floor, maximum, minimum, events):
    original, record, now_s, changed_s = maximum, None, NOW_S, 0.0
    for value, passed_s, edit, running in events:
        now_s += passed_s
        if edit is not None:
            maximum = edit
        if record is None or overridden(maximum, record):  # else it was set to what it is
            original, record = maximum, None
        before = effective(maximum)
        wanted = decide(scaling(text, floor, effective(original), minimum, record, before), carbon(value), now_s)
        todo = change(maximum, running, record, wanted, changed_s, now_s)
        if todo is not None:
            maximum, record, lifted = todo.maximum, todo.record, effective(todo.maximum) == effective(original)
            assert lifted or now_s - changed_s >= CHANGE_INTERVAL_S
            stops = min(before if running is None else running, before) - effective(maximum)
            assert stops <= (before if running is None else running) / 2
            changed_s = now_s
        if record is None:
            assert maximum == original
        else:
            assert record.original == original
            assert maximum == record.ceiling
        assert min(effective(original), max(floor, minimum, 1)) <= effective(maximum) <= effective(original)
    nothing = Ceiling(effective(original), CeilingReason.NOT_ASKED, "")
    if record is not None:
        todo = change(maximum, None, record, nothing, changed_s, now_s)
        assert todo is not None
        maximum, record = todo
    assert (maximum, record) == (original, None)


@given(texts, replicas, st.lists(st.floats(0.0, 1000.0), min_size=2, max_size=30))
def test_nothing_changes_before_the_next_expected_change(text, original, values):
    edges = [NOW_S + 1800.0 * step for step in range(len(values))]
    forecast = Series(edges, values, edges[-1] + 1800.0)
    one, now = scaling(text, 1, original, 1), carbon(values[0], forecast)
    found = next_change(one, now, NOW_S)
    first = decide(one, now, NOW_S)
    until_s = math.inf if found is None else found[0]
    for edge_s, value in zip(edges, values, strict=True):
        maximum = decide(one, carbon(value), edge_s).maximum
        if edge_s < until_s:
            assert maximum == first.maximum
        elif edge_s == until_s:
            assert maximum == found[1].maximum != first.maximum
