"""What must hold for every cluster that a policy plans."""

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from joulie.domain.hardware import CapRange
from joulie.domain.policy import Cap, ClusterSnapshot, Plan, PolicyNode, PolicySettings, Profile, make_policy

quick = settings(max_examples=50, deadline=None)
FAMILIES = ("H100", "L40S", "EPYC 9654", "unknown")
POLICY_NAMES = st.sampled_from(["static_partition", "queue_aware_v1", "rule_swap_v1"])
NODES = st.lists(st.tuples(st.sampled_from(FAMILIES), st.sampled_from([0.0, 25.0, 50.0, 100.0])), max_size=12).map(
    lambda rows: tuple(PolicyNode(f"n{i}", family, density) for i, (family, density) in enumerate(rows))
)
SNAPSHOTS = st.builds(ClusterSnapshot, nodes=NODES, performance_demand=st.integers(0, 200), now_s=st.floats(0.0, 1e6))
SETTINGS = st.builds(
    PolicySettings,
    static_hp_frac=st.floats(0.0, 1.0),
    queue_hp_base_frac=st.floats(0.0, 1.0),
    queue_hp_min=st.integers(0, 4),
    queue_hp_max=st.integers(4, 20),
    queue_perf_per_hp_node=st.integers(1, 20),
)


def performance(plan: Plan) -> set[str]:
    return {name for name, profile in plan.profiles.items() if profile is Profile.PERFORMANCE}


@quick
@given(name=POLICY_NAMES, setup=SETTINGS, snapshot=SNAPSHOTS, data=st.data())
def test_plan_does_not_depend_on_the_order_of_nodes(
    name: str, setup: PolicySettings, snapshot: ClusterSnapshot, data: st.DataObject
) -> None:
    policy = make_policy(name, setup)
    shuffled = ClusterSnapshot(
        tuple(data.draw(st.permutations(snapshot.nodes))), snapshot.performance_demand, snapshot.now_s
    )
    assert policy.plan(snapshot) == policy.plan(shuffled) == policy.plan(snapshot)


@quick
@given(setup=SETTINGS, snapshot=SNAPSHOTS)
def test_performance_count_is_kept(setup: PolicySettings, snapshot: ClusterSnapshot) -> None:
    count = len(snapshot.nodes)
    static = make_policy("static_partition", setup).plan(snapshot)
    assert abs(static.hp_count - Fraction(str(setup.static_hp_frac)) * count) <= Fraction(1, 2)
    queue = make_policy("queue_aware_v1", setup).plan(snapshot)
    served = -(-snapshot.performance_demand // setup.queue_perf_per_hp_node)
    assert min(setup.queue_hp_min, count) <= queue.hp_count <= min(setup.queue_hp_max, count)
    assert queue.hp_count >= min(served, setup.queue_hp_max, count)
    assert set(static.profiles) == set(queue.profiles) == {node.name for node in snapshot.nodes}


@quick
@given(setup=SETTINGS, snapshot=SNAPSHOTS, name=st.sampled_from(["static_partition", "queue_aware_v1"]))
def test_family_floor_is_kept_while_hp_allows(setup: PolicySettings, snapshot: ClusterSnapshot, name: str) -> None:
    plan = make_policy(name, setup).plan(snapshot)
    chosen = [node for node in snapshot.nodes if node.name in performance(plan)]
    families = {node.family for node in snapshot.nodes}
    assert len({node.family for node in chosen}) == min(len(families), plan.hp_count)
    # Beyond the floor nothing less dense goes before something denser of the same family.
    for eco in snapshot.nodes:
        if eco.name not in performance(plan):
            assert all(node.density >= eco.density for node in chosen if node.family == eco.family)


@quick
@given(snapshot=SNAPSHOTS, more=st.integers(0, 100), setup=SETTINGS)
def test_more_demand_never_fewer_performance_nodes(snapshot: ClusterSnapshot, more: int, setup: PolicySettings) -> None:
    policy = make_policy("queue_aware_v1", setup)
    busier = ClusterSnapshot(snapshot.nodes, snapshot.performance_demand + more, snapshot.now_s)
    assert performance(policy.plan(snapshot)) <= performance(policy.plan(busier))


@quick
@given(snapshot=SNAPSHOTS)
def test_rule_swap_has_one_eco_node_among_the_first_two(snapshot: ClusterSnapshot) -> None:
    plan = make_policy("rule_swap_v1").plan(snapshot)
    eco = [name for name, profile in plan.profiles.items() if profile is Profile.ECO]
    assert len(eco) == min(1, len(snapshot.nodes))
    assert all(name in [node.name for node in snapshot.by_density()[:2]] for name in eco)


@quick
@given(
    limits=st.tuples(st.floats(1.0, 500.0), st.floats(0.0, 500.0), st.floats(0.0, 500.0)),
    percents=st.tuples(st.floats(0.1, 100.0), st.floats(0.1, 100.0)),
    watts=st.none() | st.floats(0.1, 2000.0),
)
def test_caps_stay_in_range_and_follow_the_percentage(
    limits: tuple[float, float, float], percents: tuple[float, float], watts: float | None
) -> None:
    device = CapRange(limits[0], limits[0] + limits[1] + limits[2], limits[0] + limits[1])
    low, high = (Cap(percent, watts).for_device(device) for percent in sorted(percents))
    assert device.min_w <= low <= high <= device.max_w
    if watts is None:
        assert high <= device.base_w * (1 + 1e-12)
