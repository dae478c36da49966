"""What holds for power budgets however they nest, whatever is read, and however slowly agents answer."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from joulie.domain.capping.budgets import Breaker, Budget, BudgetNodes, decide_budgets
from joulie.domain.capping.node_limits import DeviceLimits, NodeLimits
from joulie.domain.capping.trip import EARLIEST

STEP_S = 2.0
EPS_W = 1e-6


@st.composite
def fleets(draw, n_max=8):
    n = draw(st.integers(1, n_max))
    floats = st.floats(50.0, 400.0)
    floor_w = np.array([draw(floats) for _ in range(n)])
    full_w = floor_w + np.array([draw(floats) for _ in range(n)])
    return BudgetNodes(
        tuple(f"node-{index}" for index in range(n)),
        np.array([draw(st.booleans()) for _ in range(n)]),
        floor_w,
        full_w,
        full_w.copy(),
        full_w.copy(),
        np.ones(n, dtype=np.bool_),
        np.full(n, np.nan),
        np.zeros(n),
    )


@st.composite
def budgets_over(draw, nodes, n_max=4):
    n = len(nodes.names)
    found = []
    for index in range(draw(st.integers(1, n_max))):
        covered = np.array(sorted(draw(st.sets(st.integers(0, n - 1), min_size=1))), dtype=np.int64)
        share = draw(st.floats(0.2, 1.2))
        found.append(Budget(f"budget-{index}", share * float(nodes.full_w[covered].sum()), covered))
    return found


fleets_with_budgets = fleets().flatmap(lambda nodes: st.tuples(st.just(nodes), budgets_over(nodes)))
readings = st.floats(0.0, 5000.0) | st.just(float("nan"))


class Agents:
    """Agents that set what they are asked for after a while, or not at all."""

    def __init__(self, nodes, dead=frozenset()):
        self.nodes, self.dead = nodes, dead
        self.confirmed_w = nodes.full_w.copy()

    def answer(self, who):
        """The agents `who` set what they were asked for, and confirm it."""
        for index in set(who) - self.dead:
            self.confirmed_w[index] = self.nodes.asked_w[index]

    def asked(self, limit_w):
        self.nodes = replace(self.nodes, asked_w=limit_w)

    def seen(self, power_w, now_s):
        """What the operator knows: a limit that is asked for but not confirmed may be in force already."""
        in_force_w = np.maximum(self.confirmed_w, self.nodes.asked_w)
        steerable = np.array([index not in self.dead for index in range(len(self.nodes.names))])
        self.nodes = replace(
            self.nodes,
            in_force_w=in_force_w,
            steerable=steerable,
            power_w=np.asarray(power_w),
            read_s=np.full(len(in_force_w), now_s),
        )
        return self.nodes


def possible_w(nodes, budget):
    return max(budget.limit_w, float(np.where(nodes.steerable, nodes.floor_w, nodes.in_force_w)[budget.nodes].sum()))


@settings(deadline=None, max_examples=25)
@given(fleets_with_budgets, st.data())
def test_the_sum_of_worst_cases_never_exceeds_a_budget_once_it_is_kept(case, data):
    nodes, budgets = case
    n = len(nodes.names)
    agents = Agents(nodes, frozenset(data.draw(st.sets(st.integers(0, n - 1), max_size=n // 2))))
    memory, kept = {}, set()
    for step in range(8):
        power_w = [data.draw(readings) for _ in range(n)]
        seen = agents.seen(power_w, step * STEP_S)
        seen = replace(seen, critical=np.array([data.draw(st.booleans()) for _ in range(n)]))
        decision = decide_budgets(step * STEP_S, seen, budgets, memory)
        memory = decision.memory
        agents.asked(decision.limit_w)
        worst_w = np.maximum(agents.confirmed_w, decision.limit_w)
        for budget in budgets:
            total_w = float(worst_w[budget.nodes].sum())
            if budget.name in kept:
                assert total_w <= possible_w(seen, budget) + EPS_W
            if total_w <= possible_w(seen, budget) + EPS_W:
                kept.add(budget.name)
        agents.answer(data.draw(st.sets(st.integers(0, n - 1))))


@settings(deadline=None, max_examples=25)
@given(fleets_with_budgets, st.floats(0.3, 1.0))
def test_a_budget_that_is_lowered_is_kept_as_soon_as_agents_answer(case, share):
    nodes, budgets = case
    agents, memory = Agents(nodes), {}
    for now_s, factor in ((0.0, 1.0), (2.0, 1.0), (4.0, share)):
        in_force = [replace(one, limit_w=one.limit_w * factor) for one in budgets]
        decision = decide_budgets(now_s, agents.seen(nodes.power_w, now_s), in_force, memory)
        memory = decision.memory
        agents.asked(decision.limit_w)
        agents.answer(range(len(nodes.names)))
    after = decide_budgets(6.0, agents.seen(nodes.power_w, 6.0), in_force, memory)
    for budget in in_force:
        outcome = after.outcomes[budget.name]
        floors_w = float(nodes.floor_w[budget.nodes].sum())
        assert outcome.missing_w == max(floors_w - budget.limit_w, 0.0)
        assert outcome.worst_w <= max(budget.limit_w, floors_w) + EPS_W * len(nodes.names)
    assert (decision.limit_w >= nodes.floor_w - EPS_W).all()
    assert (decision.limit_w <= nodes.full_w + EPS_W).all()


@settings(deadline=None, max_examples=20)
@given(fleets_with_budgets, st.data())
def test_readings_change_no_limit_of_a_budget_without_a_breaker(case, data):
    nodes, budgets = case
    blind, reading = {}, {}
    for step in range(6):
        now_s = step * STEP_S
        unread = decide_budgets(now_s, nodes, budgets, blind)
        power_w = np.array([data.draw(readings) for _ in nodes.names])
        seen = replace(nodes, power_w=power_w, read_s=np.full(len(power_w), now_s))
        read = decide_budgets(now_s, seen, budgets, reading)
        blind, reading = unread.memory, read.memory
        assert read.limit_w.tolist() == unread.limit_w.tolist()
        for budget in budgets:
            unknown = ~np.isfinite(power_w[budget.nodes])
            outcome = read.outcomes[budget.name]
            assert outcome.unread == int(unknown.sum())
            least_w = float(nodes.in_force_w[budget.nodes][unknown].sum())
            assert outcome.measured_w >= least_w - EPS_W, "a node without a reading counts with its worst case"


@settings(deadline=None, max_examples=30)
@given(fleets(), st.floats(0.3, 1.1), st.data())
def test_nodes_of_a_lower_priority_are_at_their_floor_before_a_higher_one_gives(nodes, share, data):
    n = len(nodes.names)
    priority = np.array([data.draw(st.sampled_from([-10, 0, 1000])) for _ in range(n)], dtype=np.int64)
    plain = replace(nodes, critical=np.zeros(n, dtype=np.bool_))
    limit_w = share * float(nodes.full_w.sum())
    found = decide_budgets(0.0, replace(plain, priority=priority), [Budget("b", limit_w, np.arange(n))], {}).limit_w
    assert found.sum() <= max(limit_w, float(nodes.floor_w.sum())) + EPS_W * n
    for high in range(n):
        if found[high] < nodes.full_w[high] - 1e-3:
            lower = priority < priority[high]
            assert np.allclose(found[lower], nodes.floor_w[lower], atol=1e-3)
    alike = decide_budgets(0.0, plain, [Budget("b", limit_w, np.arange(n))], {}).limit_w
    same = replace(plain, priority=np.full(n, 7, dtype=np.int64))
    assert decide_budgets(0.0, same, [Budget("b", limit_w, np.arange(n))], {}).limit_w.tolist() == alike.tolist()


@settings(deadline=None, max_examples=20)
@given(fleets_with_budgets)
def test_an_observed_budget_limits_nothing(case):
    nodes, budgets = case
    observed = [replace(one, enforced=False) for one in budgets]
    decision = decide_budgets(0.0, nodes, observed, {})
    assert decision.limit_w.tolist() == nodes.full_w.tolist()
    for budget in observed:
        asked_w = decision.outcomes[budget.name].limit_w
        assert asked_w.sum() <= max(budget.limit_w, float(nodes.floor_w[budget.nodes].sum())) + EPS_W * 10


@settings(deadline=None, max_examples=10)
@given(st.lists(st.tuples(st.integers(1, 20), st.floats(0.1, 1.0), st.booleans()), min_size=1, max_size=5))
def test_a_breaker_behind_a_budget_never_trips(phases):
    """13 nodes on a feed for 10; agents confirm within 4 s."""
    n = 13
    full_w = np.full(n, 1000.0)
    nodes = BudgetNodes(
        tuple(map(str, range(n))), np.arange(n) < 6, np.full(n, 300.0), full_w, full_w.copy(), full_w.copy(),
        np.ones(n, dtype=np.bool_), np.full(n, np.nan), np.zeros(n),
    )  # fmt: skip
    breaker = Breaker(10_000.0, EARLIEST)
    budget = Budget("feed", 9900.0, np.arange(n), response_s=15.0, breaker=breaker)
    agents, memory, heat, now_s = Agents(nodes), {}, 0.9, 0.0
    for steps, demand, read in [(10, 0.5, True), *phases]:
        for _ in range(steps):
            drawn_w = np.minimum(demand * full_w, agents.confirmed_w)
            heat = float(EARLIEST.heated(heat, drawn_w.sum() / breaker.rating_w, STEP_S))
            assert not EARLIEST.trips(heat, drawn_w.sum() / breaker.rating_w)
            now_s += STEP_S
            agents.answer(range(n))
            seen = agents.seen(drawn_w if read else np.full(n, np.nan), now_s)
            decision = decide_budgets(now_s, seen, [budget], memory)
            memory = decision.memory
            agents.asked(decision.limit_w)


devices = st.builds(
    lambda count, min_w, range_w: DeviceLimits(count, min_w, min_w + range_w, min_w + range_w, min_w + range_w),
    st.integers(1, 8), st.floats(1.0, 300.0), st.just(0.0) | st.floats(1.0, 400.0),
)  # fmt: skip


@given(devices, devices, st.floats(0.0, 500.0), st.floats(0.0, 10_000.0))
def test_ceilings_leave_no_more_than_the_limit_or_the_floor(cpu, gpu, other_w, limit_w):
    node = NodeLimits(cpu, gpu, other_w)
    ceiling = node.ceiling(limit_w)
    if ceiling is None:
        assert limit_w >= node.full_w or not (cpu.steerable or gpu.steerable)
        return
    worst_w = other_w
    for device, asked_w in ((cpu, ceiling.cpu_w), (gpu, ceiling.gpu_w)):
        assert (asked_w is None) is not device.steerable
        worst_w += device.devices * (device.full_w if asked_w is None else max(asked_w, device.min_w))
    assert worst_w <= max(limit_w, node.floor_w) + 1e-6
