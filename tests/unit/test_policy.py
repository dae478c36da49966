import pytest

from joulie.domain.hardware import CapRange
from joulie.domain.hysteresis import PreviousPlan
from joulie.domain.policies import POLICIES
from joulie.domain.policy import (
    DEFAULT_CAPS,
    Cap,
    ClusterSnapshot,
    Intensity,
    PodDemand,
    PodPhase,
    PolicyNode,
    PolicySettings,
    PolicySettingsError,
    PowerConstraint,
    Profile,
    ProfileCaps,
    WorkloadClass,
    performance_demand,
)
from joulie.domain.units import InvalidQuantityError


def nodes(count: int, family: str = "cpu", density: float = 50.0) -> tuple[PolicyNode, ...]:
    return tuple(PolicyNode(f"{family}-{index:03}", family, density) for index in range(count))


def snapshot(*groups: tuple[PolicyNode, ...], demand: int = 0, now_s: float = 0.0) -> ClusterSnapshot:
    return ClusterSnapshot(tuple(node for group in groups for node in group), demand, now_s)


def performance(policy: str, snap: ClusterSnapshot, **settings: float) -> list[str]:
    plan = POLICIES[policy](PolicySettings(**settings)).plan(snap)  # type: ignore[arg-type]
    assert set(plan.profiles) == {node.name for node in snap.nodes}
    assert plan.policy == policy
    return [name for name, profile in plan.profiles.items() if profile is Profile.PERFORMANCE]


@pytest.mark.parametrize(
    ("count", "fraction", "expected"),
    [(10, 0.5, 5), (5, 0.5, 3), (3, 0.5, 2), (1, 0.5, 1), (50, 0.29, 15), (10, 0.0, 0), (10, 1.0, 10), (0, 0.5, 0)],
)
def test_static_partition_rounds_halves_up(count: int, fraction: float, expected: int) -> None:
    assert len(performance("static_partition", snapshot(nodes(count)), static_hp_frac=fraction)) == expected


def test_full_power_leaves_every_node_as_it_is() -> None:
    assert len(performance("full_power", snapshot(nodes(5)))) == 5
    assert performance("full_power", snapshot(())) == []


@pytest.mark.parametrize(("demand", "expected"), [(0, 6), (60, 6), (61, 7), (95, 10), (10_000, 10)])
def test_queue_aware_follows_demand(demand: int, expected: int) -> None:
    assert len(performance("queue_aware_v1", snapshot(nodes(10), demand=demand))) == expected


def held(demand: int, before: int, age_s: float, policy: str = "queue_aware_v1") -> tuple[int, float | None]:
    """Performance nodes of 10 after a plan with `before` of them, and when the plan is due."""
    snap = ClusterSnapshot(nodes(10), demand, 1000.0, previous=PreviousPlan(before, age_s))
    plan = POLICIES[policy](PolicySettings()).plan(snap)
    return plan.performance_nodes, plan.due_s


@pytest.mark.parametrize(
    ("demand", "before", "age_s", "expected"),
    [
        (71, 7, 0.0, (8, None)),  # up at once
        (70, 7, 0.0, (7, None)),
        (60, 7, 299.0, (7, 2501.0)),  # down after a while, the longer the closer to the threshold
        (60, 7, 1799.0, (7, 1001.0)),
        (60, 7, 1800.0, (6, None)),
        (55, 7, 299.0, (7, 1001.0)),
        (55, 7, 300.0, (6, None)),
        (0, 10, 300.0, (6, None)),
    ],
)
@pytest.mark.parametrize("policy", ["queue_aware_v1", "energy_per_work"])
def test_l10_performance_nodes_follow_demand_up_at_once_and_down_after_a_while(
    policy: str, demand: int, before: int, age_s: float, expected: tuple[int, float | None]
) -> None:
    assert held(demand, before, age_s, policy) == expected


def test_l3_shares_count_nodes_that_cannot_run_pods() -> None:
    for policy, expected in (("static_partition", 5), ("queue_aware_v1", 6)):
        plan = POLICIES[policy](PolicySettings()).plan(ClusterSnapshot(nodes(8), 0, 0.0, unavailable=2))
        assert plan.performance_nodes == expected


def test_queue_aware_is_clamped() -> None:
    snap = snapshot(nodes(10), demand=95)
    assert len(performance("queue_aware_v1", snap, queue_hp_max=4)) == 4
    assert len(performance("queue_aware_v1", snapshot(nodes(10)), queue_hp_base_frac=0.0)) == 1
    assert len(performance("queue_aware_v1", snapshot(nodes(3)), queue_hp_min=7)) == 3


def test_densest_first_name_breaks_ties() -> None:
    snap = snapshot(nodes(3, density=10.0), (PolicyNode("z", "cpu", 90.0),))
    assert performance("static_partition", snap) == ["z", "cpu-000"]


def test_family_floor_goes_before_density() -> None:
    snap = snapshot(nodes(6, "H100", 100.0), nodes(2, "L40S", 80.0), nodes(2, "EPYC", 20.0))
    assert sorted(performance("static_partition", snap, static_hp_frac=0.4)) == [
        "EPYC-000",
        "H100-000",
        "H100-001",
        "L40S-000",
    ]


def test_family_floor_holds_while_hp_allows() -> None:
    snap = snapshot(nodes(6, "H100", 100.0), nodes(2, "L40S", 80.0), nodes(2, "EPYC", 20.0))
    assert sorted(performance("static_partition", snap, static_hp_frac=0.2)) == ["H100-000", "L40S-000"]


def test_rule_swap_alternates_between_the_first_two() -> None:
    def eco(now_s: float) -> list[str]:
        plan = POLICIES["rule_swap_v1"](PolicySettings(rule_swap_interval_s=60.0)).plan(snapshot(nodes(4), now_s=now_s))
        return [name for name, profile in plan.profiles.items() if profile is Profile.ECO]

    assert [eco(t) for t in (0.0, 59.9, 60.0, 120.0)] == [["cpu-000"], ["cpu-000"], ["cpu-001"], ["cpu-000"]]


def test_rule_swap_keeps_the_last_node_of_a_family() -> None:
    snap = snapshot(nodes(1, "H100", 100.0), nodes(2, "EPYC", 20.0))
    for now_s in (0.0, 60.0):
        plan = POLICIES["rule_swap_v1"](PolicySettings()).plan(ClusterSnapshot(snap.nodes, 0, now_s))
        assert plan.profiles["H100-000"] is Profile.PERFORMANCE
        assert list(plan.profiles.values()).count(Profile.PERFORMANCE) == 2


def test_rule_swap_on_one_node_and_on_none() -> None:
    assert performance("rule_swap_v1", snapshot(nodes(1))) == []
    assert performance("rule_swap_v1", snapshot()) == []


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"static_hp_frac": 1.1}, "STATIC_HP_FRAC"),
        ({"static_hp_frac": float("nan")}, "STATIC_HP_FRAC"),
        ({"queue_hp_base_frac": -0.1}, "QUEUE_HP_BASE_FRAC"),
        ({"queue_hp_min": 5, "queue_hp_max": 4}, "QUEUE_HP_MIN"),
        ({"queue_hp_min": -1}, "QUEUE_HP_MIN"),
        ({"queue_perf_per_hp_node": 0}, "QUEUE_PERF_PER_HP_NODE"),
        ({"rule_swap_interval_s": 0.0}, "swap interval"),
    ],
)
def test_bad_settings_are_refused_by_name(settings: dict[str, float], name: str) -> None:
    with pytest.raises(PolicySettingsError, match=name):
        PolicySettings(**settings)  # type: ignore[arg-type]


def test_bad_snapshots_are_refused() -> None:
    with pytest.raises(ValueError, match="listed twice: cpu-000"):
        snapshot(nodes(2), nodes(1))
    with pytest.raises(InvalidQuantityError, match="density"):
        snapshot((PolicyNode("a", "cpu", float("nan")),))
    with pytest.raises(InvalidQuantityError, match="performance_demand"):
        snapshot(nodes(1), demand=-1)


PERFORMANCE_POD = PodDemand(PodPhase.RUNNING, WorkloadClass.PERFORMANCE)


def test_trap_only_running_performance_pods_counted() -> None:
    pods = [PERFORMANCE_POD, PodDemand(PodPhase.PENDING, WorkloadClass.PERFORMANCE)]
    assert performance_demand(pods) == 2


def test_demand_rules() -> None:
    constrained = PodDemand(PodPhase.PENDING, None, PowerConstraint.PERFORMANCE_ONLY)
    assert constrained.weight == 1
    assert PodDemand(PodPhase.FINISHED, WorkloadClass.PERFORMANCE).weight == 0
    assert PodDemand(PodPhase.RUNNING).weight == 0
    assert PodDemand(PodPhase.RUNNING, None, PowerConstraint.UNKNOWN).weight == 0


def test_annotation_wins_over_constraint() -> None:
    assert PodDemand(PodPhase.RUNNING, WorkloadClass.STANDARD, PowerConstraint.PERFORMANCE_ONLY).weight == 0
    assert PodDemand(PodPhase.RUNNING, WorkloadClass.PERFORMANCE, PowerConstraint.ECO_ONLY).weight == 1


@pytest.mark.parametrize(("confidence", "weight"), [(0.49, 1), (0.5, 2), (1.0, 2)])
def test_high_intensity_counts_twice_only_with_confidence(confidence: float, weight: int) -> None:
    pod = PodDemand(PodPhase.RUNNING, WorkloadClass.PERFORMANCE, intensity=Intensity.HIGH, confidence=confidence)
    assert pod.weight == weight


H100 = CapRange(200.0, 400.0, 400.0)


def test_default_caps() -> None:
    eco = DEFAULT_CAPS[Profile.ECO]
    assert eco.gpu_cap("NVIDIA H100 NVL").for_device(H100) == 240.0
    assert eco.cpu.for_device(CapRange(100.0, 360.0, 360.0)) == 216.0
    assert DEFAULT_CAPS[Profile.PERFORMANCE].gpu.for_device(H100) == 400.0


def test_watts_win_over_percent_and_are_clamped() -> None:
    assert Cap(percent=50.0, watts=300.0).for_device(H100) == 300.0
    assert Cap(watts=50.0).for_device(H100) == 200.0


def test_trap_per_model_watts_matched_by_substring() -> None:
    caps = ProfileCaps(Cap(60.0), Cap(60.0), {"NVIDIA-L40S": 250.0})
    assert caps.gpu_cap("NVIDIA L40S").watts == 250.0
    assert caps.gpu_cap("NVIDIA L40").watts is None
    assert caps.gpu_cap(None).watts is None


def test_trap_gpu_percent_of_default_limit_not_of_maximum() -> None:
    assert Cap(100.0).for_device(CapRange(100.0, 500.0, 450.0)) == 450.0


@pytest.mark.parametrize("cap", [{"percent": 0.0}, {"percent": 120.0}, {"watts": 0.0}, {"watts": float("nan")}])
def test_bad_caps_are_refused(cap: dict[str, float]) -> None:
    with pytest.raises(InvalidQuantityError):
        Cap(**cap)
