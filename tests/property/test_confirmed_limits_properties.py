"""What budgets count of a node, over random courses of its agent, its power and the operator.

The promise of a budget rests on one number: what a node may draw under the limits in force. It must never be less than
what the node's devices really allow, whoever is killed between any two steps; and a node whose agent does not act must
not pass for one that gives, for longer than the response time.
"""

from types import SimpleNamespace

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from joulie.adapters.kubernetes.api.v1alpha1 import NodeTwin
from joulie.apps.operator.budgets.nodes import LimitsOfNodes
from joulie.domain.capping.node_limits import PowerCeiling
from joulie.domain.control_inputs import controlled_node
from joulie.domain.control_power import choose_power
from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie.domain.hardware.resolve import resolve

RESPONSE_S, STEP_S = 16.0, 2.0
LABELS = {"joulie.io/hw.cpu-model": "AMD EPYC 9654", "joulie.io/hw.cpu-sockets": "1"}
HARDWARE = resolve(None, LABELS, {}, BUILTIN_CATALOGUE)
RANGE = HARDWARE.cpu.cap_range


class Site:
    """A node with its agent, the API server's objects about it, and the operator's view of them."""

    def __init__(self) -> None:
        self.now_s = 1e6
        self.device_w = RANGE.base_w
        self.spec_w, self.generation, self.report = None, 1, None
        self.boot, self.ready, self.ready_since_s = 1, True, None
        self.applied = None
        self.asked_w = None
        self.deaf_s = 0.0
        self.lead()

    def lead(self) -> None:
        """Another leader, which remembers nothing."""
        view = SimpleNamespace(
            twin_of=lambda _name: self.twin(),
            node=lambda _name: SimpleNamespace(boot_id=f"boot-{self.boot}"),
            ledger=SimpleNamespace(full_power={}, priorities={}),
        )
        self.limits, self.asked, self.waits_s = LimitsOfNodes(view, 0.0), {}, 0.0

    def twin(self) -> NodeTwin:
        cpu = {} if self.spec_w is None else {"cpu": {"packagePowerCapWatts": self.spec_w}}
        status = {} if self.report is None else {"controlStatus": self.report}
        return msgspec.convert(
            {
                "metadata": {"name": "n", "uid": "u", "generation": self.generation},
                "spec": {"nodeName": "n", "profile": "performance"} | cpu,
                "status": status,
            },
            NodeTwin,
        )

    def happens(self, event: str, watts: float) -> None:
        if event == "ask":  # decided, and written at once
            self.asked = {"n": PowerCeiling(watts, None)}
            self.look()
            if self.spec_w != watts:
                self.spec_w, self.generation = watts, self.generation + 1
        elif event == "apply":
            self.device_w = RANGE.base_w if self.spec_w is None else self.spec_w
            self.applied = self.generation, self.boot
        elif event == "report" and self.applied is not None and self.applied[1] == self.boot:
            one = {"backend": "rapl", "result": "applied"}
            self.report = {"cpu": one, "observedGeneration": self.applied[0], "bootID": f"boot-{self.boot}"}
        elif event == "stop":  # it restores what it found
            self.device_w, self.applied = RANGE.base_w, None
            self.report = {"cpu": {"backend": "rapl", "result": "applied"}}
        elif event == "power cut":
            self.device_w, self.applied, self.boot = RANGE.base_w, None, self.boot + 1
        elif event == "not ready":
            self.ready = False
        elif event == "ready":
            self.ready = True
        elif event == "new leader":
            self.lead()
        elif event == "clock":
            self.now_s += 1e4 * (watts - 350.0)

    def look(self):
        node = controlled_node("n", HARDWARE, not_ready_since_s=None if self.ready else self.now_s - 1.0)
        power = choose_power([], 1, self.now_s, 60.0)
        seen, _ = self.limits.look((node,), self.asked, power, RESPONSE_S, self.now_s)
        return seen


FAULTS = ["", "", "stop", "power cut", "not ready", "ready", "new leader", "clock"]


@st.composite
def courses(draw):
    """Rounds: a limit is asked for, the agent sets it or not and reports or not, and something happens."""
    rounds = draw(
        st.lists(
            st.tuples(
                st.sampled_from(["ask", ""]),
                st.sampled_from([320.0, 360.0]),
                st.sampled_from(["apply", ""]),
                st.sampled_from(["report", ""]),
                st.sampled_from(FAULTS),
            ),
            min_size=1,
            max_size=12,
        )
    )
    return [(event, watts) for ask, watts, *others in rounds for event in (ask, *others) if event]


@settings(deadline=None, max_examples=400)
@given(courses())
def test_a_node_never_counts_with_less_than_its_devices_allow(course):
    site = Site()
    for event, watts in course:
        site.happens(event, watts)
        site.now_s += STEP_S
        seen = site.look()
        assert seen.in_force_w[0] >= site.device_w - 1e-6


@settings(deadline=None, max_examples=400)
@given(courses())
def test_a_node_whose_limit_is_not_in_force_passes_for_one_that_gives_no_longer_than_the_response_time(course):
    """Whatever came before: once its agent no longer acts, others must give what it does not."""
    site = Site()
    for event, watts in course:
        site.happens(event, watts)
        site.now_s += STEP_S
        site.look()
    for _ in range(int(RESPONSE_S / STEP_S) + 2):
        site.now_s += STEP_S
        seen = site.look()
    assert not seen.steerable[0] or seen.in_force_w[0] <= seen.asked_w[0] + 1e-6
