"""Admission by watts: pods that start never take watts from pods that need full power, and one that fits starts."""

import json

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from joulie.adapters.kubernetes.pods import ProfileFacts
from joulie.apps.extender import answers
from joulie.apps.extender.fleet import Fleet
from joulie.apps.extender.in_flight import InFlight
from joulie.apps.extender.node_facts import LoadFacts, TwinFacts, TwinNumbers
from joulie.apps.extender.power_room import BoundPod, BudgetRoom, PowerRoom
from joulie.domain.capping.admission import SETTLING_S, room_for_pods
from joulie.domain.capping.budgets import Budget, BudgetNodes
from joulie.domain.scoring.extender import NodeClass

N, FLOOR_W, FULL_W = 4, 100.0, 400.0
POD_W = 70.0
NAMES = tuple(f"n{index}" for index in range(N))


class Site:
    """Nodes under budgets, pods on them, the operator that measures and the extender that hears of it.

    A pod draws what is expected of it once it runs, and counts under the budgets from when it is bound.
    """

    def __init__(self, budgets: list[Budget], idle_w: float) -> None:
        self.now_s = 1000.0
        self.idle_w = idle_w
        self.budgets = budgets
        self.power = PowerRoom(ready=True)
        self.fleet = Fleet(1e9, power=self.power)
        for name in NAMES:
            self.fleet.set_label_class(name, None)
            self.fleet.set_load(name, LoadFacts(cores=4.0, cpu_max_w=FULL_W, floor_w=FLOOR_W))
        self.pods: dict[str, tuple[int, bool, float | None]] = {}
        self.unseen: set[str] = set()
        self.measure()
        self.report()

    def drawn_w(self, bound: bool) -> np.ndarray:
        """What nodes draw; with pods that are bound and do not run yet."""
        drawn_w = np.full(N, self.idle_w)
        for node, _, since_s in self.pods.values():
            if bound or (since_s is not None and since_s <= self.now_s):
                drawn_w[node] += POD_W
        return drawn_w

    def critical(self) -> np.ndarray:
        return np.isin(np.arange(N), [node for node, full_power, _ in self.pods.values() if full_power])

    def over_w(self) -> float:
        """By how much the budgets are exceeded with all that may give at its floor, W."""
        drawn_w = np.where(self.critical(), np.maximum(self.drawn_w(True), FLOOR_W), FLOOR_W)
        return max(float(drawn_w[one.nodes].sum()) - one.limit_w for one in self.budgets)

    def measure(self) -> None:
        self.read_w = self.drawn_w(False)
        for index, name in enumerate(NAMES):
            numbers = TwinNumbers(FULL_W, float(self.read_w[index]), 20.0, 60.0, 0.0, 1.0, 1.0)
            covering = tuple(one.name for one in self.budgets if index in one.nodes)
            self.fleet.set_twin(name, TwinFacts(NodeClass.PERFORMANCE, numbers, self.now_s, budgets=covering))

    def report(self) -> None:
        """The operator decides by the last reading, and the extender hears of it."""
        every = np.ones(N)
        nodes = BudgetNodes(
            NAMES, self.critical(), FLOOR_W * every, FULL_W * every, FULL_W * every, FULL_W * every,
            np.ones(N, dtype=bool), self.read_w, self.now_s * every,
        )  # fmt: skip
        for name, room_w in room_for_pods(nodes, self.budgets).items():
            self.power.set_budget(name, BudgetRoom(room_w, self.now_s))

    def ask(self, name: str, full_power: bool) -> list[str]:
        annotations = {"joulie.io/workload-class": "performance" if full_power else "standard"}
        meta = {"name": name, "namespace": "d", "uid": name, "annotations": annotations}
        spec = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}
        body = json.dumps({"Pod": {"metadata": meta, "spec": spec}, "NodeNames": list(NAMES)}).encode()
        found = answers.filter_nodes(body, self.fleet.view(self.now_s), lambda _pod: ProfileFacts())
        return list(json.loads(found.answer)["NodeNames"])

    def tell(self, name: str) -> None:
        """The extender sees a pod on its node."""
        node, full_power, since_s = self.pods[name]
        running_s = since_s if since_s is not None and since_s <= self.now_s else None
        self.power.set_pod(name, BoundPod(NAMES[node], name, int(POD_W), full_power, running_s), self.now_s)
        self.unseen.discard(name)

    def happens(self, event: str, choice: int, new: str) -> None:
        names = sorted(self.pods)
        one = names[choice % len(names)] if names else ""
        if event in ("pod", "standard"):
            self.schedule(new, choice, event == "pod")
        elif event == "end" and one and one not in self.unseen:
            del self.pods[one]
            self.power.set_pod(one, None, self.now_s)
        elif event == "run" and one:
            node, full_power, since_s = self.pods[one]
            self.pods[one] = (node, full_power, since_s or self.now_s)
            self.tell(one)
        unseen = sorted(self.unseen)
        if event == "see one" and unseen:
            self.tell(unseen[choice % len(unseen)])
        if event == "wait":
            for name in unseen:
                self.tell(name)
        if event == "wait":
            # Long enough, sometimes, for a pod to count no longer beside what is measured.
            self.now_s += SETTLING_S if choice % 2 else 10.0
        if event in ("measure", "report", "wait"):
            self.measure()
        if event in ("report", "wait"):
            self.report()

    def schedule(self, name: str, choice: int, full_power: bool) -> None:
        passed = self.ask(name, full_power)
        if passed:
            self.pods[name] = (NAMES.index(passed[choice % len(passed)]), full_power, None)
            self.unseen.add(name)


@st.composite
def budgets(draw):
    covered = st.sets(st.integers(0, N - 1), min_size=1)
    found = draw(st.lists(st.tuples(covered, st.sampled_from([1.0, 1.35, 1.5, 2.1, 2.8])), min_size=1, max_size=3))
    return [
        Budget(f"b{index}", len(nodes) * FLOOR_W * share, np.array(sorted(nodes)))
        for index, (nodes, share) in enumerate(found)
    ]


idle = st.sampled_from([60.0, 150.0])
"""Power of a node without pods: below and above what its lowest limits leave, W."""
events = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "pod",
                "pod",
                "pod",
                "standard",
                "standard",
                "see one",
                "see one",
                "end",
                "run",
                "measure",
                "report",
                "wait",
            ]
        ),
        st.integers(0, 3),
    ),
    min_size=4,
    max_size=40,
)


@settings(deadline=None, max_examples=250)
@given(budgets(), idle, events)
@example(
    [Budget("b0", 540.0, np.arange(N))], 60.0, [("standard", 0), ("pod", 0), ("standard", 0)]
)  # what lowest limits leave unused is used once
def test_pods_that_start_never_make_expected_watts_exceed_a_budget(found, idle_w, course):
    """Bindings are seen late, of pods that need full power and of those that do not."""
    site = Site(found, idle_w)
    for number, (event, choice) in enumerate(course):
        site.happens(event, choice, f"p{number}")
        assert site.over_w() <= 0.5 * len(site.pods) + 1e-6


@settings(deadline=None)
@given(budgets(), idle, st.lists(st.tuples(st.integers(0, N - 1), st.booleans()), max_size=12))
def test_a_pod_that_fits_under_every_budget_of_a_node_is_not_refused_there(found, idle_w, bound):
    """Once nothing is being placed, and all that runs is measured."""
    site = Site(found, idle_w)
    for number, (node, full_power) in enumerate(bound):
        site.pods[f"p{number}"] = (node, full_power, site.now_s)
        site.tell(f"p{number}")
    site.now_s += 2.0 * SETTLING_S
    site.measure()
    site.report()
    for full_power in (True, False):
        passed = site.ask("new", full_power)
        site.power.in_flight = InFlight()
        for index, name in enumerate(NAMES):
            site.pods["new"] = (index, full_power, None)
            kept = all(
                float(np.where(site.critical(), np.maximum(site.drawn_w(True), FLOOR_W), FLOOR_W)[one.nodes].sum())
                <= one.limit_w
                for one in found
                if index in one.nodes
            )
            del site.pods["new"]
            assert name in passed or not kept, "one that fits is refused"
