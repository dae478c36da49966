"""What must hold for every cluster that a policy plans."""

from fractions import Fraction
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from joulie.domain.actuation import cpu_range
from joulie.domain.hardware import BUILTIN_CATALOGUE, CapRange
from joulie.domain.hardware.resolve import ReportedHardware, ResolvedHardware, resolve
from joulie.domain.hysteresis import Hysteresis, PreviousPlan
from joulie.domain.policies import POLICIES
from joulie.domain.policy import Cap, ClusterSnapshot, Plan, PolicyNode, PolicySettings, Profile

quick = settings(max_examples=50, deadline=None)


def hardware(gpu: str | None = None) -> ResolvedHardware:
    """A node with two AMD EPYC 9654, whose power limits are known, and eight GPUs where a model is given."""
    labels = {"joulie.io/hw.cpu-model": "AMD-EPYC-9654", "joulie.io/hw.cpu-sockets": "2"}
    if gpu is not None:
        labels |= {"joulie.io/hw.gpu-model": gpu, "joulie.io/hw.gpu-count": "8"}
    model = BUILTIN_CATALOGUE.cpu("AMD EPYC 9654").model
    assert model is not None
    limits = cpu_range(None, None, model.cap_range)
    return resolve(
        ReportedHardware(cpu_min_w=limits.min_w, cpu_max_w=limits.base_w), labels, {"cpu": 192.0}, BUILTIN_CATALOGUE
    )


FAMILIES = {
    "H100": hardware("NVIDIA-H100-NVL"),
    "L40S": hardware("NVIDIA-L40S"),
    "MI300X": hardware("AMD-Instinct-MI300X"),
    "EPYC 9654": hardware(),
    "unknown": None,
}
POLICY_NAMES = st.sampled_from(sorted(POLICIES))
# For debugging: one of the first two nodes is always eco, even where that takes the last one of a family.
FLOORED = st.sampled_from(sorted(set(POLICIES) - {"rule_swap_v1"}))
NODES = st.lists(
    st.tuples(st.sampled_from(sorted(FAMILIES)), st.sampled_from([0.0, 25.0, 50.0, 100.0])), max_size=12
).map(
    lambda rows: tuple(
        PolicyNode(f"n{i}", family, density, FAMILIES[family]) for i, (family, density) in enumerate(rows)
    )
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
@given(name=POLICY_NAMES, setup=SETTINGS, snapshot=SNAPSHOTS)
def test_every_node_is_planned_and_caps_are_percentages(
    name: str, setup: PolicySettings, snapshot: ClusterSnapshot
) -> None:
    plan = POLICIES[name](setup).plan(snapshot)
    assert plan.policy == name
    assert set(plan.profiles) == {node.name for node in snapshot.nodes}
    assert set(plan.caps) <= set(plan.profiles)
    for by_profile in plan.caps.values():
        assert set(by_profile) == set(Profile)
        eco, performance = by_profile[Profile.ECO], by_profile[Profile.PERFORMANCE]
        for capped, free in ((eco.gpu, performance.gpu), (eco.cpu, performance.cpu)):
            # A device without a range is left to the administrator, under both profiles.
            assert (capped is None) == (free is None)
            assert capped is None or 0.0 < capped.percent <= free.percent <= 100.0


@quick
@given(name=POLICY_NAMES, setup=SETTINGS, snapshot=SNAPSHOTS, data=st.data())
def test_plan_does_not_depend_on_the_order_of_nodes(
    name: str, setup: PolicySettings, snapshot: ClusterSnapshot, data: st.DataObject
) -> None:
    policy = POLICIES[name](setup)
    shuffled = ClusterSnapshot(
        tuple(data.draw(st.permutations(snapshot.nodes))), snapshot.performance_demand, snapshot.now_s
    )
    assert policy.plan(snapshot) == policy.plan(shuffled) == policy.plan(snapshot)


@quick
@given(setup=SETTINGS, snapshot=SNAPSHOTS)
def test_static_partition_keeps_its_share(setup: PolicySettings, snapshot: ClusterSnapshot) -> None:
    chosen = performance(POLICIES["static_partition"](setup).plan(snapshot))
    assert abs(len(chosen) - Fraction(str(setup.static_hp_frac)) * len(snapshot.nodes)) <= Fraction(1, 2)


FOLLOW_DEMAND = st.sampled_from(["queue_aware_v1", "energy_per_work"])


@quick
@given(name=FOLLOW_DEMAND, setup=SETTINGS, snapshot=SNAPSHOTS)
def test_demand_is_served_within_the_limits(name: str, setup: PolicySettings, snapshot: ClusterSnapshot) -> None:
    count, chosen = len(snapshot.nodes), len(performance(POLICIES[name](setup).plan(snapshot)))
    served = -(-snapshot.performance_demand // setup.queue_perf_per_hp_node)
    assert min(setup.queue_hp_min, count) <= chosen <= min(setup.queue_hp_max, count)
    assert chosen >= min(served, setup.queue_hp_max, count)


@quick
@given(name=FLOORED, setup=SETTINGS, snapshot=SNAPSHOTS)
def test_family_floor_is_kept_while_hp_allows(name: str, setup: PolicySettings, snapshot: ClusterSnapshot) -> None:
    chosen = performance(POLICIES[name](setup).plan(snapshot))
    families = {node.family for node in snapshot.nodes}
    covered = {node.family for node in snapshot.nodes if node.name in chosen}
    assert len(covered) == min(len(families), len(chosen))


@quick
@given(name=FLOORED, setup=SETTINGS, snapshot=SNAPSHOTS)
def test_beyond_the_floor_denser_nodes_of_a_family_go_first(
    name: str, setup: PolicySettings, snapshot: ClusterSnapshot
) -> None:
    chosen = performance(POLICIES[name](setup).plan(snapshot))
    for eco in snapshot.nodes:
        if eco.name not in chosen:
            alike = [node for node in snapshot.nodes if node.name in chosen and node.family == eco.family]
            assert all(node.density >= eco.density for node in alike)


@quick
@given(name=FOLLOW_DEMAND, snapshot=SNAPSHOTS, more=st.integers(0, 100), setup=SETTINGS)
def test_more_demand_never_fewer_performance_nodes(
    name: str, snapshot: ClusterSnapshot, more: int, setup: PolicySettings
) -> None:
    policy = POLICIES[name](setup)
    busier = ClusterSnapshot(snapshot.nodes, snapshot.performance_demand + more, snapshot.now_s)
    before, after = performance(policy.plan(snapshot)), performance(policy.plan(busier))
    assert len(before) <= len(after)
    if name == "queue_aware_v1":
        assert before <= after


@quick
@given(snapshot=SNAPSHOTS)
def test_rule_swap_has_one_eco_node_among_the_first_two(snapshot: ClusterSnapshot) -> None:
    plan = POLICIES["rule_swap_v1"](PolicySettings()).plan(snapshot)
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


HYSTERESIS = st.builds(Hysteresis, hold_s=st.just(0.0) | st.floats(0.1, 600.0), band=st.floats(0.0, 2.0))
DEMANDS = st.lists(st.tuples(st.floats(0.0, 120.0), st.integers(0, 200)), min_size=1, max_size=40)


def followed(looks: list[tuple[float, int]], hysteresis: Hysteresis) -> list[tuple[float, int, int]]:
    """(time, number that demand asks for, number planned) of a cluster of 20 nodes."""
    policy = POLICIES["queue_aware_v1"](PolicySettings(queue_hp_base_frac=0.0, hysteresis=hysteresis))
    pool = tuple(PolicyNode(f"n{index:02}", "cpu", 50.0) for index in range(20))
    found: list[tuple[float, int, int]] = []
    now_s, since_s, before = 0.0, 0.0, None
    for wait_s, demand in looks:
        now_s += wait_s
        previous = None if before is None else PreviousPlan(before, now_s - since_s)
        planned = policy.plan(ClusterSnapshot(pool, demand, now_s, previous=previous)).performance_nodes
        if planned != before:
            before, since_s = planned, now_s
        found.append((now_s, max(1, -(-demand // 10)), planned))
    return found


@given(DEMANDS, HYSTERESIS)
def test_l10_demand_is_always_served_and_reductions_are_rare(
    looks: list[tuple[float, int]], hysteresis: Hysteresis
) -> None:
    history = followed(looks, hysteresis)
    assert all(planned >= needed for _, needed, planned in history)
    assert history[0][1] == history[0][2]
    changed_s = history[0][0]
    for (_, _, before), (now_s, needed, planned) in pairwise(history):
        if planned < before:
            assert now_s - changed_s >= hysteresis.hold_s
            assert planned == needed
        if planned != before:
            changed_s = now_s


@given(DEMANDS, HYSTERESIS)
def test_l10_steady_demand_is_planned_as_published(looks: list[tuple[float, int]], hysteresis: Hysteresis) -> None:
    steady = [*looks, *[(hysteresis.hold_s, looks[-1][1])] * 7]
    _, needed, planned = followed(steady, hysteresis)[-1]
    assert planned == needed
