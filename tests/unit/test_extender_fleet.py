import math

import numpy as np
import pytest

from joulie.apps.extender.fleet import N_SCORES, REFUSALS, UNKNOWN_SLOT, Fleet, slots_of
from joulie.apps.extender.node_facts import LoadFacts, TwinFacts, TwinNumbers
from joulie.domain.mode import Mode
from joulie.domain.scoring.extender import NodeClass
from joulie.domain.units import InvalidQuantityError

NUMBERS = TwinNumbers(
    capped_w=1000.0,
    measured_w=400.0,
    cooling_stress_pct=40.0,
    headroom_score=60.0,
    trend_w_per_min=12.0,
    cpu_cap_fraction=0.6,
    gpu_cap_fraction=1.0,
)


def twin(node_class: NodeClass = NodeClass.PERFORMANCE, updated_s: float | None = 100.0) -> TwinFacts:
    return TwinFacts(node_class, NUMBERS, updated_s)


def slot(fleet: Fleet, name: str) -> int:
    return int(slots_of(fleet.view(100.0).roster, [name])[0])


def test_a_twin_is_seen_by_the_next_view_and_by_no_earlier_one() -> None:
    fleet = Fleet(300.0)
    before = fleet.view(100.0)
    fleet.set_twin("a", twin())
    after = fleet.view(100.0)
    place = after.roster.slots["a"]
    assert "a" not in before.roster.slots
    assert after.twins.fresh[place]
    assert after.twins.capped_w[place] == 1000.0
    assert after.twins.node_class[place] == NodeClass.PERFORMANCE
    fleet.set_twin("a", twin(NodeClass.ECO))
    assert after.twins.node_class[place] == NodeClass.PERFORMANCE


@pytest.mark.parametrize(
    ("now_s", "fresh"), [(100.0, True), (400.0, True), (400.1, False), (-200.0, True), (-200.1, False)]
)
def test_freshness_by_age(now_s: float, fresh: bool) -> None:
    fleet = Fleet(300.0)
    fleet.set_twin("a", twin(updated_s=100.0))
    view = fleet.view(now_s)
    assert bool(view.twins.fresh[view.roster.slots["a"]]) is fresh
    assert (fleet.why_stale("a", now_s) == "") is fresh


def test_reasons_for_a_neutral_score() -> None:
    fleet = Fleet(300.0)
    fleet.set_twin("old", twin(updated_s=0.0))
    fleet.set_twin("future", twin(updated_s=1000.0))
    fleet.set_twin("undated", twin(updated_s=None))
    fleet.set_twin("flawed", TwinFacts(NodeClass.ECO, None, 100.0, flaw="NodeTwin: measuredNodePowerW: is missing"))
    fleet.set_label_class("bare", NodeClass.UNKNOWN)
    assert fleet.why_stale("old", 400.0) == "NodeTwin is 400 s old, above 300 s"
    assert fleet.why_stale("future", 100.0) == "NodeTwin was updated 900 s in the future: clocks differ"
    assert fleet.why_stale("undated", 100.0) == "NodeTwin has no lastUpdated"
    assert fleet.why_stale("flawed", 100.0) == "NodeTwin: measuredNodePowerW: is missing"
    assert fleet.why_stale("bare", 100.0) == fleet.why_stale("never-heard-of", 100.0) == "no NodeTwin"
    assert not fleet.view(100.0).twins.fresh[[slot(fleet, name) for name in ("undated", "flawed", "bare")]].any()


def test_class_by_twin_then_by_label() -> None:
    fleet = Fleet(300.0)
    fleet.set_label_class("a", NodeClass.ECO)
    assert fleet.view(0.0).twins.node_class[slot(fleet, "a")] == NodeClass.ECO
    fleet.set_twin("a", twin(NodeClass.PERFORMANCE))
    assert fleet.view(0.0).twins.node_class[slot(fleet, "a")] == NodeClass.PERFORMANCE
    fleet.set_twin("a", twin(NodeClass.UNKNOWN))
    assert fleet.view(0.0).twins.node_class[slot(fleet, "a")] == NodeClass.ECO
    fleet.set_twin("a", twin(NodeClass.DRAINING, updated_s=-1e6))
    assert fleet.view(0.0).twins.node_class[slot(fleet, "a")] == NodeClass.DRAINING, "an old twin still says eco"


def test_a_node_in_observe_mode_is_neutral_and_closed_to_nobody() -> None:
    fleet = Fleet(300.0)
    for name, enforced in (("watched", False), ("canary", True)):
        fleet.set_twin(name, twin(NodeClass.ECO))
        fleet.set_label_class(name, NodeClass.ECO, enforced=enforced)
    view = fleet.view(100.0)
    assert set(view.refusals[NodeClass.ECO]) == {"canary"}
    assert view.twins.node_class[slot(fleet, "watched")] == NodeClass.UNKNOWN
    assert not view.twins.fresh[slot(fleet, "watched")]
    assert fleet.why_stale("watched", 100.0) == "the node is in observe mode"
    fleet.set_label_class("watched", NodeClass.ECO, enforced=True)
    view = fleet.view(100.0)
    assert (set(view.refusals[NodeClass.ECO]), view.twins.fresh[slot(fleet, "watched")]) == (
        {"watched", "canary"},
        True,
    )


def test_in_observe_mode_a_twin_without_a_node_is_neutral() -> None:
    fleet = Fleet(300.0, mode=Mode.OBSERVE)
    fleet.set_twin("a", twin(NodeClass.ECO))
    assert fleet.view(100.0).twins.node_class[slot(fleet, "a")] == NodeClass.UNKNOWN
    assert fleet.why_stale("a", 100.0) == fleet.why_stale("never-heard-of", 100.0) == "the node is in observe mode"


def test_unknown_nodes_share_the_neutral_slot() -> None:
    fleet = Fleet(300.0)
    fleet.set_twin("a", twin())
    view = fleet.view(100.0)
    assert slots_of(view.roster, ["x", "a", "y"]).tolist() == [UNKNOWN_SLOT, 1, UNKNOWN_SLOT]
    assert not view.twins.fresh[UNKNOWN_SLOT]
    assert view.twins.node_class[UNKNOWN_SLOT] == NodeClass.UNKNOWN


def test_a_node_of_which_nothing_is_left_makes_room() -> None:
    fleet = Fleet(300.0)
    fleet.set_twin("a", twin(NodeClass.ECO))
    fleet.set_load("a", LoadFacts(cores=4.0))
    view = fleet.view(100.0)
    fleet.set_twin("a", None)
    assert len(fleet) == 1
    fleet.set_load("a", None)
    assert len(fleet) == 0
    fleet.set_label_class("b", NodeClass.UNKNOWN)
    assert fleet.view(100.0).roster.slots == {"b": 1}
    assert fleet.view(100.0).twins.node_class[1] == NodeClass.UNKNOWN, "nothing of the former tenant"
    assert not fleet.view(100.0).twins.fresh[1]
    assert fleet.view(100.0).load.cores[1] == 1.0
    assert view.roster.slots == {"a": 1}, "views that are out keep their roster"
    assert view.roster.entries[1 * N_SCORES + 7] == b'{"Host":"a","Score":7}'


def test_closed_nodes_by_class() -> None:
    fleet = Fleet(300.0)
    eco, draining = NodeClass.ECO, NodeClass.DRAINING
    assert fleet.view(0.0).refusals == {eco: {}, draining: {}}
    fleet.set_label_class("a", eco)
    fleet.set_twin("b", twin(draining))
    before = fleet.view(0.0)
    assert before.refusals[eco] == {"a": f'"a":"{REFUSALS[eco]}"'.encode()}
    assert before.refusals[draining] == {"b": f'"b":"{REFUSALS[draining]}"'.encode()}
    assert fleet.view(1.0).refusals is before.refusals, "nothing changed"
    fleet.set_twin("b", twin(eco))
    fleet.set_label_class("a", None)
    after = fleet.view(0.0)
    assert (set(after.refusals[eco]), set(after.refusals[draining])) == ({"b"}, set())
    fleet.set_twin("b", twin(NodeClass.PERFORMANCE))
    assert fleet.view(0.0).refusals == {eco: {}, draining: {}}
    assert set(before.refusals[eco]) == {"a"}, "views that are out keep theirs"


def test_growth_keeps_what_was_there() -> None:
    fleet = Fleet(300.0)
    for index in range(200):
        fleet.set_twin(f"n{index}", TwinFacts(NodeClass(index % 3), NUMBERS, float(index)))
    view = fleet.view(0.0)
    assert [view.updated_s[view.roster.slots[f"n{index}"]] for index in range(200)] == list(range(200))
    assert view.roster.entries[view.roster.slots["n150"] * N_SCORES + 10] == b'{"Host":"n150","Score":10}'


def test_cluster_figures_leave_out_what_is_stale() -> None:
    fleet = Fleet(300.0)
    fleet.set_twin("fresh", TwinFacts(NodeClass.PERFORMANCE, NUMBERS, 1000.0))
    fleet.set_twin("stale", TwinFacts(NodeClass.PERFORMANCE, NUMBERS, 0.0))
    view = fleet.view(1000.0)
    assert view.twins.cluster_trend_w_per_min == 12.0
    assert view.twins.perf_pressure == 40.0


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        (LoadFacts(), (150.0, 1.0, 350.0)),
        (LoadFacts(cores=96.0), (336.0, 96.0, 350.0)),
        (LoadFacts(cores=96.0, cpu_max_w=700.0, gpu_max_w=300.0, gpu_vendor="AMD"), (700.0, 96.0, 300.0)),
        (LoadFacts(cores=96.0, gpu_vendor="AMD"), (336.0, 96.0, 400.0)),
        (LoadFacts(cores=math.nan), (150.0, 1.0, 350.0)),
    ],
)
def test_fallbacks_of_full_load(load: LoadFacts, expected: tuple[float, float, float]) -> None:
    fleet = Fleet(300.0)
    fleet.set_load("a", load)
    found = fleet.view(0.0).load
    assert (found.cpu_max_w[1], found.cores[1], found.gpu_max_w[1]) == expected


def test_quotes_in_names_are_escaped() -> None:
    fleet = Fleet(300.0)
    fleet.set_twin('a"b', twin())
    assert fleet.view(0.0).roster.entries[N_SCORES] == b'{"Host":"a\\"b","Score":0}'


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("capped_w", 0.0),
        ("measured_w", -1.0),
        ("cooling_stress_pct", 101.0),
        ("headroom_score", np.nan),
        ("trend_w_per_min", np.inf),
        ("cpu_cap_fraction", 1.01),
        ("gpu_cap_fraction", -0.1),
    ],
)
def test_impossible_numbers_are_refused_by_name(name: str, value: float) -> None:
    values = {field: getattr(NUMBERS, field) for field in NUMBERS.__dataclass_fields__} | {name: value}
    with pytest.raises(InvalidQuantityError) as caught:
        TwinNumbers(**values)
    assert caught.value.quantity == name
