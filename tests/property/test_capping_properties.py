"""What holds for any job and any demand: limits are offered ones, bounds are kept, breakers stay closed."""

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from joulie.domain.capping.choice import Goal, Reason, choose_limit, next_limit_w
from joulie.domain.capping.feed import FeedReading, FeedServers, FeedSettings, decide_feed, first_memory
from joulie.domain.capping.measurements import Measurement, sweep_of
from joulie.domain.capping.response import learn
from joulie.domain.capping.trip import EARLIEST

LIMITS_W = [100.0, 150.0, 200.0, 250.0, 300.0]
figures = st.floats(min_value=0.1, max_value=1e4) | st.sampled_from([0.0, -1.0, float("nan"), float("inf")])
measurements = st.lists(st.builds(Measurement, st.sampled_from([*LIMITS_W, 400.0]), figures, figures), max_size=12)
OTHERS = learn(
    [
        sweep_of(
            Measurement(limit, 10.0 * max(natural_w / limit, 1.0) ** 2, min(natural_w, limit)) for limit in LIMITS_W
        )
        for natural_w in (150.0, 220.0, 280.0)
    ]
)


@given(measurements, st.floats(min_value=1.0, max_value=2.0), st.permutations(LIMITS_W))
def test_what_is_chosen_was_offered_or_is_the_baseline_and_keeps_the_bound(found, max_slowdown, limits_w):
    sweep, goal = sweep_of(found), Goal(max_slowdown)
    choice = choose_limit(sweep, limits_w, OTHERS, goal)
    assert choice.limit_w in LIMITS_W or choice.limit_w == sweep.limits_w[0]
    if choice.reason in {Reason.MEASURED, Reason.PREDICTED}:
        assert choice.slowdown <= max_slowdown * (1.0 + 1e-9)
        assert choice.energy_ratio <= 1.0
    assert choice.reason is not Reason.PREDICTED or choice.limit_w not in sweep.limits_w
    assert next_limit_w(sweep, limits_w, OTHERS, goal) in {None, *LIMITS_W} - (
        set() if sweep is None else set(sweep.limits_w.tolist())
    )


N, CRITICAL, FULL_W, FLOOR_W = 8, 4, 10_000.0, 4_000.0
SERVERS = FeedServers(np.arange(N) < CRITICAL, np.full(N, FLOOR_W), np.full(N, FULL_W), np.ones(N))
# 30 % more than the feed can serve; critical servers and floors together fit.
SETTINGS = FeedSettings(N * FULL_W / 1.3, EARLIEST, reaction_s=16.0)
phases = st.lists(
    st.tuples(st.integers(1, 60), st.floats(0.1, 1.0), st.floats(0.1, 1.0), st.booleans()), min_size=1, max_size=6
)


WARM = [(60, 0.76, 0.76, True)] * 4
"""At 99 % of the rating until the breaker is as warm."""


@settings(max_examples=25, deadline=None)
@example([*WARM, (60, 1.0, 1.0, True)], 3, 0.8)
@example([*WARM, (60, 1.0, 1.0, False)], 3, 0.8)
@example([(50, 0.4, 0.4, True), (60, 1.0, 1.0, False)], 5, 0.8)
@given(phases, st.integers(0, 9), st.floats(0.0, 0.8))
def test_no_demand_trips_the_breaker_and_critical_servers_are_never_limited(demands, turn, heat):
    assert not trips(demands, turn, heat, agents_every_s=10)


def test_slower_agents_than_the_reaction_that_is_set_trip_it():
    assert trips([*WARM, (60, 1.0, 1.0, True)], 59, 0.8, agents_every_s=60)


def trips(demands, turn, heat, agents_every_s):
    """Readings every 2 s and 3 s late: with agents every 10 s a reaction of 16 s at most."""
    memory, limit_w, asked_w = first_memory(SERVERS, SETTINGS, 0.0), SERVERS.full_w, SERVERS.full_w
    step, drawn, reading = 0, [], None
    for seconds, critical, standard, telemetry in demands:
        wanted_w = FULL_W * np.where(SERVERS.critical, critical, standard)
        for _ in range(seconds):
            if step % 2 == 0:
                if telemetry and step >= 3:
                    # Sensors jitter; readings that never differ would count as stuck.
                    reading = FeedReading(float(step - 3), drawn[step - 3] - 1e-3 * (step % 4))
                decision = decide_feed(float(step), reading, SERVERS, SETTINGS, memory)
                memory, asked_w = decision.memory, decision.limit_w
                assert (asked_w[SERVERS.critical] == FULL_W).all()
            if step % agents_every_s == turn:
                limit_w = asked_w
            drawn.append(np.minimum(wanted_w, limit_w))
            load = float(drawn[-1].sum()) / SETTINGS.rating_w
            heat = float(EARLIEST.heated(heat, load, 1.0))
            if EARLIEST.trips(heat, load):
                return True
            step += 1
    return False
