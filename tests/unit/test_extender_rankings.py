"""What /prioritize remembers between calls; that it changes no answer is among the properties."""

import msgspec
import pytest

from joulie.adapters.kubernetes.api.core import Pod
from joulie.adapters.kubernetes.pods import ProfileFacts
from joulie.apps.extender import rankings
from joulie.apps.extender.fleet import Fleet, FleetView
from joulie.apps.extender.judge import JudgedPod, judge
from joulie.apps.extender.node_facts import LoadFacts, TwinFacts, TwinNumbers
from joulie.apps.extender.rankings import Rankings
from joulie.domain.scoring.extender import NodeClass

NAMES = ["a", "b", "c"]


class Counted:
    """How often all nodes were scored, and how many entries were looked up by slot."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.scored = 0
        self.picked: list[int] = []
        score, pick = rankings.scored, rankings._picked

        def scored(*args: object) -> object:
            self.scored += 1
            return score(*args)  # type: ignore[arg-type]

        def picked(*args: object) -> object:
            found = pick(*args)  # type: ignore[arg-type]
            self.picked.append(len(found))
            return found

        monkeypatch.setattr(rankings, "scored", scored)
        monkeypatch.setattr(rankings, "_picked", picked)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


@pytest.fixture
def fleet() -> Fleet:
    fleet = Fleet(300.0)
    for index, name in enumerate(NAMES):
        fleet.set_twin(name, twin(100.0 * index))
        fleet.set_load(name, LoadFacts(cores=64.0, cpu_max_w=1000.0))
    return fleet


def twin(measured_w: float) -> TwinFacts:
    return TwinFacts(NodeClass.PERFORMANCE, TwinNumbers(1000.0, measured_w, 20.0, 60.0, 0.0, 1.0, 1.0), 1000.0)


def pod(cpu: str = "1", name: str = "p") -> JudgedPod:
    raw = {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}}
    return judge(msgspec.convert(raw, Pod), lambda _pod: ProfileFacts())


def ask(kept: Rankings, fleet: FleetView, names: list[str] = NAMES, cpu: str = "1") -> bytes:
    return kept.answer(pod(cpu), names, fleet)


def test_a_kind_of_pod_is_scored_once_a_view(fleet: Fleet, counted: Counted) -> None:
    kept, view = Rankings(), fleet.view(1000.0)
    first = kept.answer(pod(name="p-1"), NAMES, view)
    assert kept.answer(pod(name="p-2"), NAMES, view) == first
    assert counted.scored == 1
    ask(kept, view, cpu="48")
    assert counted.scored == 2
    ask(kept, fleet.view(1001.0))
    assert counted.scored == 3


def test_few_candidates_of_a_new_kind_and_then_all_nodes_at_hand(fleet: Fleet, counted: Counted) -> None:
    kept, view = Rankings(), fleet.view(1000.0)
    ask(kept, view, ["b"])
    assert counted.picked == [1]
    ask(kept, view, ["b"])
    assert counted.picked == [1, 3]
    ask(kept, view, ["a", "c"])
    assert counted.picked == [1, 3]


def test_another_kind_costs_what_is_different(fleet: Fleet, counted: Counted) -> None:
    fleet.set_twin("c", None)
    kept, view = Rankings(), fleet.view(1000.0)
    small = ask(kept, view)
    assert counted.picked == [3]
    large = ask(kept, view, cpu="48")
    assert counted.picked == [3, 2], "the node without a twin stays neutral"
    assert large != small
    assert large == ask(Rankings(), view, cpu="48")
    assert ask(kept, view) == small


def test_a_new_view_costs_what_changed(fleet: Fleet, counted: Counted) -> None:
    kept = Rankings()
    for _ in range(2):
        before = ask(kept, fleet.view(1000.0))
    fleet.set_twin("b", twin(900.0))
    counted.picked.clear()
    after = ask(kept, fleet.view(1001.0))
    assert counted.picked == [1]
    assert before != after == ask(Rankings(), fleet.view(1001.0))


def test_an_older_view_is_answered_as_it_was(fleet: Fleet) -> None:
    kept, older = Rankings(), fleet.view(1000.0)
    for _ in range(2):
        before = ask(kept, older)
    fleet.set_twin("b", twin(900.0))
    assert ask(kept, fleet.view(1001.0)) != before
    assert ask(kept, older) == before


def test_a_node_in_the_place_of_another(fleet: Fleet) -> None:
    kept = Rankings()
    for _ in range(2):
        ask(kept, fleet.view(1000.0))
    fleet.set_twin("a", None)
    fleet.set_load("a", None)
    fleet.set_twin("new", twin(900.0))
    for cpu in ("48", "1"):
        for names in (["a", "b"], ["a"], ["new", "a"], ["new"]):
            assert ask(kept, fleet.view(1000.0), names, cpu) == ask(Rankings(), fleet.view(1000.0), names, cpu)


def test_the_kinds_asked_for_last_are_remembered(fleet: Fleet, counted: Counted) -> None:
    kept, view = Rankings(), fleet.view(1000.0)
    for cpu in range(1, 200):
        ask(kept, view, cpu=str(cpu))
        ask(kept, view, cpu="1000")
    assert len(kept._known) == rankings._CACHED_KINDS
    assert counted.scored == 200
