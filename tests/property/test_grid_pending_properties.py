"""Whatever the grid, its sources and the controller's replicas do, nobody is held past the latest start."""

import math
from unittest.mock import patch

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from joulie.adapters.kubernetes.cache import Key
from joulie.apps.grid import pending
from joulie.apps.grid.pending import Deferral, PendingPod, PendingQueue
from joulie.domain.grid.deferral import Conditions, FinishBy, Waiting
from joulie.domain.grid.release import Limits
from joulie.domain.grid.request import Asked, GridRequest, Mode
from joulie.domain.grid.series import Series
from joulie.domain.grid.signals import GridSignal, Measure
from joulie.domain.signal import Quality

HOUR_S = 3600.0
ZONES = ("DE", "FR")

pods = st.builds(
    lambda zone, threshold, delay_h, created_h, priority, mode, finish_h: (
        Deferral(
            zone,
            Waiting(
                GridRequest(
                    asked_by=Asked.POD,
                    carbon_threshold_g_per_kwh=threshold,
                    max_delay_s=delay_h * HOUR_S,
                    mode=mode,
                ),
                created_h * HOUR_S,
                None if finish_h is None else FinishBy((created_h + finish_h) * HOUR_S, "the deadline of its Job"),
            ),
        ),
        priority,
    ),
    st.sampled_from(ZONES),
    st.sampled_from([100.0, 200.0, 300.0]),
    st.floats(0.0, 30.0),
    st.floats(0.0, 10.0),
    st.integers(-5, 5),
    st.sampled_from([Mode.THRESHOLD, Mode.OPTIMAL]),
    st.none() | st.floats(1.0, 20.0),
)
# When something happens, where, and the new value; None for an outage, "restart" for another leader.
happenings = st.tuples(
    st.floats(0.0, 40.0),
    st.sampled_from(ZONES),
    st.none() | st.floats(0.0, 500.0) | st.just("restart") | st.just("silence"),
)


class Life:
    """A queue that a controller serves whenever something happens or the queue asks for it."""

    def __init__(self, crowd, ahead, burst):
        self.waiting = {Key("ns", f"p{index}"): pod for index, pod in enumerate(crowd)}
        self.went = {}
        self.now_s = 0.0
        self.values, self.silent = dict.fromkeys(ZONES, 400.0), set()
        self.ahead = Series(HOUR_S * np.arange(1.0, len(ahead) + 1), ahead, 100 * HOUR_S)
        self.limits = Limits(0.001, burst)
        self.begin()

    def begin(self):
        """A leader that remembers nothing."""
        self.pending = PendingQueue(self.limits, self.now_s)
        for key, (deferral, priority) in self.waiting.items():
            if key not in self.went and deferral.waiting.held_since_s <= self.now_s:
                self.pending.put(
                    PendingPod(key, key.name, priority, deferral.waiting.held_since_s), deferral, held=True
                )

    def look(self, zone):
        if zone in self.silent:
            return None
        signal = GridSignal(Measure.CARBON, zone)
        if self.values[zone] is not None:
            ahead = self.ahead.between(self.now_s, math.inf)
            signal = GridSignal(Measure.CARBON, zone, Quality.FRESH, self.values[zone], self.now_s, forecast=ahead)
        return Conditions(signal)

    def attend_until(self, at_s):
        while True:
            self.pending.decide(self.look, self.now_s)
            for going in self.pending.take_due(self.now_s):
                assert going.pod.key not in self.went
                self.went[going.pod.key] = self.now_s
                self.pending.remove(going.pod.key)
            if self.pending.next_s > at_s or self.now_s >= at_s:
                break
            self.now_s = min(at_s, max(self.now_s, self.pending.next_s))
        self.now_s = at_s

    def happens(self, where, what):
        if isinstance(where, Key):
            deferral, priority = self.waiting[where]
            if where not in self.went:
                self.pending.put(PendingPod(where, where.name, priority, self.now_s), deferral)
        elif what == "restart":
            self.begin()
        elif what == "silence":
            self.silent ^= {where}
            self.pending.zone_changed(where)
        elif where is not None:
            self.values[where] = what
            self.pending.zone_changed(where)


@patch.object(pending, "UNKNOWN_ZONE_RETRY_S", 600.0)  # zones are silent for hours, not seconds
@settings(max_examples=40)
@given(
    st.lists(pods, min_size=1, max_size=12),
    st.lists(happenings, max_size=12),
    st.lists(st.floats(0.0, 500.0), min_size=1, max_size=48),
    st.integers(1, 5),
)
def test_nobody_is_held_past_the_latest_start(crowd, events, ahead, burst):
    life = Life(crowd, ahead, burst)
    arrivals = [(deferral.waiting.held_since_s, key, None) for key, (deferral, _priority) in life.waiting.items()]
    changes = [(at_h * HOUR_S, where, what) for at_h, where, what in events]
    for at_s, where, what in [*sorted([*changes, *arrivals], key=lambda one: one[0]), (60 * HOUR_S, None, None)]:
        life.attend_until(at_s)
        life.happens(where, what)
    assert life.went.keys() == life.waiting.keys()
    for key, at_s in life.went.items():
        waiting = life.waiting[key][0].waiting
        due_s = max(waiting.latest_start_s, waiting.held_since_s)
        assert at_s <= due_s or math.isclose(at_s, due_s)
