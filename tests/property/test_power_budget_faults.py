"""Power budgets under faults: the promise holds whatever is lost, late, stuck, wrong, killed or lowered."""

from dataclasses import dataclass, field, replace

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from joulie.domain.capping.budgets import Breaker, Budget, BudgetNodes, decide_budgets
from joulie.domain.capping.feed import FeedReading, FeedServers, FeedSettings, FeedState, decide_feed, first_memory
from joulie.domain.capping.trip import EARLIEST

STEP_S, RESPONSE_S = 2.0, 16.0
"""Time between two decisions, and the response time of the budgets."""
N = 6
FLOOR_W, FULL_W = 300.0, 1000.0
EPS_W = 1e-6


@dataclass
class Cluster:
    """The API server with what is asked for and confirmed, the devices, and what the agents do.

    An agent that lives sets what it is asked for in its next step and confirms it in the one after.
    """

    confirmed_w: np.ndarray = field(default_factory=lambda: np.full(N, FULL_W))
    asked_w: np.ndarray = field(default_factory=lambda: np.full(N, FULL_W))
    device_w: np.ndarray = field(default_factory=lambda: np.full(N, FULL_W))
    answered_s: np.ndarray = field(default_factory=lambda: np.zeros(N))

    def agents(self, now_s, dead=frozenset(), away=False):
        """One step of the agents; without the API server they neither learn nor confirm anything."""
        if away:
            return
        for index in range(N):
            if index in dead:
                continue
            self.confirmed_w[index] = self.device_w[index]
            self.device_w[index] = self.asked_w[index]
            if self.confirmed_w[index] == self.asked_w[index]:
                self.answered_s[index] = now_s

    def seen(self, now_s, power_w=None, read_s=None):
        """What an operator sees: a node that has not confirmed for the response time cannot be steered."""
        waits = self.confirmed_w != self.asked_w
        steerable = ~waits | (now_s - self.answered_s <= RESPONSE_S)
        return BudgetNodes(
            tuple(f"node-{index}" for index in range(N)),
            np.arange(N) % 3 == 0,
            np.full(N, FLOOR_W),
            np.full(N, FULL_W),
            np.maximum(self.confirmed_w, self.asked_w),
            self.asked_w.copy(),
            steerable,
            np.full(N, np.nan) if power_w is None else power_w,
            np.full(N, now_s if read_s is None else read_s),
        )


faults = st.lists(
    st.tuples(
        st.sampled_from(
            ["none", "agents killed", "operator killed", "API away", "two leaders", "clock jumps", "lowered"]
        ),
        st.integers(1, 20),
        st.integers(0, 2**N - 1),
        st.floats(0.3, 1.1),
    ),
    min_size=1,
    max_size=6,
)


@settings(deadline=None, max_examples=60)
@given(faults)
@example([("lowered", 1, 0, 0.5), ("agents killed", 8, 1, 1.0)])
def test_power_over_a_budget_never_lasts_longer_than_its_response_time(course):
    """A budget is over only while the API server or the operator is away, nodes do not answer, or it is too low.

    That an agent fell silent just when its limit fell takes the response time to be found out.
    """
    cluster, memory, limit_w, now_s, jump_s, over_s = Cluster(), {}, 0.8 * N * FULL_W, 0.0, 0.0, 0.0
    for kind, steps, who, share in [("none", 10, 0, 1.0), *course, ("none", 10, 0, 1.0)]:
        dead = {index for index in range(N) if who >> index & 1} if kind == "agents killed" else frozenset()
        if kind == "lowered":
            limit_w = share * N * FULL_W
        if kind == "clock jumps":
            jump_s += 1e4 * (share - 0.7)
        if kind == "operator killed":
            memory = {}
        stale = None
        for _ in range(steps):
            now_s += STEP_S
            away = kind == "API away"
            cluster.agents(now_s, dead, away)
            before_w = float(cluster.device_w.sum())
            if kind not in ("operator killed", "API away"):
                budget = Budget("hall", limit_w, np.arange(N), RESPONSE_S)
                seen = cluster.seen(now_s)
                decision = decide_budgets(now_s + jump_s, seen, [budget], memory)
                memory = decision.memory
                if kind == "two leaders" and stale is not None:
                    cluster.asked_w = stale  # the write of a leader that was slow lands last
                    stale = None
                else:
                    stale = decision.limit_w.copy()
                    cluster.asked_w = decision.limit_w.copy()
            else:
                assert cluster.device_w.sum() <= max(before_w, cluster.asked_w.sum()) + EPS_W, "nobody raises power"
            # What nobody can lower: nodes whose agents do not answer.
            least_w = sum(cluster.device_w[index] if index in dead else FLOOR_W for index in range(N))
            within = float(cluster.device_w.sum()) <= max(limit_w, least_w) + EPS_W
            held_up = kind in ("operator killed", "API away") or any(
                seen.steerable[index] and cluster.confirmed_w[index] != cluster.asked_w[index] for index in dead
            )
            over_s = 0.0 if within else over_s + (0.0 if held_up else STEP_S)
            assert over_s <= RESPONSE_S


@settings(deadline=None, max_examples=60)
@given(faults)
def test_a_budget_that_is_kept_stays_kept_whoever_is_killed(course):
    cluster, memory, limit_w, now_s = Cluster(), {}, 0.7 * N * FULL_W, 0.0
    kept = False
    for kind, steps, who, _ in [("none", 10, 0, 1.0), *course]:
        if kind in ("lowered", "two leaders"):
            continue
        dead = {index for index in range(N) if who >> index & 1} if kind == "agents killed" else frozenset()
        if kind == "operator killed":
            memory = {}
        for _ in range(steps):
            now_s += STEP_S
            cluster.agents(now_s, dead, kind == "API away")
            if kind not in ("operator killed", "API away"):
                decision = decide_budgets(now_s, cluster.seen(now_s), [Budget("hall", limit_w, np.arange(N))], memory)
                memory, cluster.asked_w = decision.memory, decision.limit_w.copy()
            total_w = float(np.maximum(cluster.device_w, cluster.asked_w).sum())
            assert not kept or total_w <= limit_w + EPS_W
            kept = kept or total_w <= limit_w + EPS_W
    assert kept


@settings(deadline=None, max_examples=20)
@given(st.floats(0.05, 0.29))
def test_a_budget_below_what_is_possible_goes_to_the_floors_and_says_what_is_missing(share):
    cluster, memory = Cluster(), {}
    limit_w = share * N * FULL_W
    for step in range(6):
        cluster.agents(step * STEP_S)
        decision = decide_budgets(
            step * STEP_S, cluster.seen(step * STEP_S), [Budget("b", limit_w, np.arange(N))], memory
        )
        memory, cluster.asked_w = decision.memory, decision.limit_w.copy()
    assert cluster.device_w.tolist() == [FLOOR_W] * N
    assert decision.outcomes["b"].missing_w == N * FLOOR_W - limit_w


FEED_N, RATING_W = 13, 10_000.0
readings = st.lists(
    st.tuples(
        st.sampled_from(["true", "late", "lost", "stuck", "5 % low", "5 % high", "agents killed", "clock jumps"]),
        st.integers(1, 25),
        st.floats(0.1, 1.0),
        st.integers(1, 3),
    ),
    min_size=1,
    max_size=6,
)


@settings(deadline=None, max_examples=60)
@given(readings)
def test_the_breakers_thermal_element_never_trips_whatever_is_read(course):
    """13 nodes of 1 kW on a feed for 10; readings are late, lost, stuck or wrong by 5 %; agents die for a while."""
    assert not breaker_trips(course)


def test_readings_count_with_their_error_and_none_that_is_stuck_is_believed():
    servers = FeedServers(np.zeros(2, dtype=bool), np.full(2, 300.0), np.full(2, 1000.0), np.ones(2))
    exact = FeedSettings(1600.0, EARLIEST, RESPONSE_S)
    heats, states = [], []
    for settings_, moves in ((exact, True), (replace(exact, reading_error=0.05), True), (exact, False)):
        memory = first_memory(servers, settings_, 0.0)
        for step in range(1, 20):
            reading = FeedReading(2.0 * step, np.full(2, 700.0 + (step % 2) * 1e-3 * moves))
            decision = decide_feed(2.0 * step, reading, servers, settings_, memory)
            memory = decision.memory
        heats.append(memory.heat)
        states.append(decision.state)
    assert heats[1] > heats[0] * 1.02
    assert states == [FeedState.RIDE_THROUGH, FeedState.RIDE_THROUGH, FeedState.BLIND]


def breaker_trips(course, reading_error=0.05):
    full_w = np.full(FEED_N, 1000.0)
    breaker = Breaker(RATING_W, EARLIEST, reading_error)
    budget = Budget("feed", 9_900.0, np.arange(FEED_N), RESPONSE_S, breaker)
    device_w, confirmed_w, asked_w = full_w.copy(), full_w.copy(), full_w.copy()
    waits_s = np.zeros(FEED_N)
    memory, heat, now_s, jump_s, step = {}, 0.8, 0.0, 0.0, 0
    held, taken = np.full(FEED_N, 500.0), [(0.0, np.full(FEED_N, 500.0))]
    for kind, steps, demand, few in [("true", 10, 0.5, 1), *course]:
        if kind == "clock jumps":
            jump_s += 1e4 * (demand - 0.5)
        for _ in range(steps):
            now_s, step = now_s + STEP_S, step + 1
            drawn_w = np.minimum(demand * full_w, device_w)
            load = float(drawn_w.sum()) / RATING_W
            heat = float(EARLIEST.heated(heat, load, STEP_S))
            if EARLIEST.trips(heat, load):
                return True
            dead = set(range(few)) if kind == "agents killed" else set()
            for index in set(range(FEED_N)) - dead:
                confirmed_w[index], device_w[index] = device_w[index], asked_w[index]
            waits_s = np.where(confirmed_w != asked_w, waits_s + STEP_S, 0.0)
            taken.append((now_s + jump_s, drawn_w - 1e-3 * (step % 3)))
            if kind != "stuck":
                held = taken[-1][1]
            read_s, power_w = taken[max(len(taken) - 1 - 2, 0)] if kind == "late" else (now_s + jump_s, held)
            power_w = power_w * {"5 % low": 0.95, "5 % high": 1.05}.get(kind, 1.0)
            lost = kind == "lost"
            seen = BudgetNodes(
                tuple(map(str, range(FEED_N))), np.arange(FEED_N) < 6, np.full(FEED_N, 300.0), full_w,
                np.maximum(confirmed_w, asked_w), asked_w.copy(), waits_s <= RESPONSE_S,
                np.full(FEED_N, np.nan) if lost else power_w, np.full(FEED_N, read_s),
            )  # fmt: skip
            decision = decide_budgets(now_s + jump_s, seen, [budget], memory)
            memory, asked_w = decision.memory, decision.limit_w.copy()
    return False
