"""The comparison of decisions with what is stored, kept from cycle to cycle, is the one made anew."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from joulie.adapters.kubernetes.api.meta import ObjectMeta, OwnerReference
from joulie.adapters.kubernetes.api.v1alpha1 import NodeTwin, RescheduleRecommendation, WorkloadReference
from joulie.apps.operator.comparison import Comparison, Stored, need_of
from joulie.apps.operator.desired import Grounds, desired_node, desired_words, with_timestamps
from joulie.apps.operator.facts import NodeFacts
from joulie.apps.operator.rescheduler.advice import NO_ADVICE, Advice
from joulie.domain.capping.node_limits import PowerCeiling
from joulie.domain.control import ControlSettings, Memory, Snapshot, controlled_node, decide
from joulie.domain.control_power import SourceReadings
from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie.domain.hardware.resolve import resolve
from joulie.domain.policies import POLICIES
from joulie.domain.policy import PolicySettings

NAMES = ("a", "b", "c")
HARDWARE = resolve(
    None,
    {"joulie.io/hw.cpu-model": "AMD-EPYC-9654", "joulie.io/hw.cpu-sockets": "2"},
    {"cpu": 192.0},
    BUILTIN_CATALOGUE,
)
NODES = tuple(controlled_node(name, HARDWARE) for name in NAMES)
ADVICE = Advice((RescheduleRecommendation(WorkloadReference("Job", "ns", "job"), "for a reason"),))
OVERDUE_S = 240.0

POWER_W = st.sampled_from([None, 300.0, 300.0, 301.0, 305.0, 310.0, 600.0])
EDITS = st.sampled_from(["written", "written", "none", "none", "label", "pending", "profile", "gone", "unmanaged"])
MOMENTS = st.tuples(
    st.sampled_from([1.0, 30.0, 100.0]),
    st.dictionaries(st.sampled_from(NAMES), st.integers(1, 2)),
    *(
        st.dictionaries(st.sampled_from(NAMES), one)
        for one in (POWER_W, st.just(ADVICE), st.just(PowerCeiling(200.0, None)), EDITS)
    ),
)


def edited(stored, edit, name, wanted, now_s):
    """What is stored about a node after somebody wrote it."""
    facts, twin = stored
    match edit:
        case "written":
            owner = OwnerReference("v1", "Node", name, "uid")
            status = with_timestamps(wanted.status, None, now_s)
            twin = NodeTwin(metadata=ObjectMeta(name=name, owner_references=(owner,)), spec=wanted.spec, status=status)
            labels = {"profile_label": wanted.profile_label, "draining_label": wanted.draining_label}
            return Stored(msgspec.structs.replace(facts, **labels), twin)
        case "label":
            return Stored(msgspec.structs.replace(facts, profile_label="other"), twin)
        case "pending":
            return Stored(msgspec.structs.replace(facts, labels={"joulie.io/restore-pending": "true"}), twin)
        case "unmanaged":
            return Stored(msgspec.structs.replace(facts, managed=not facts.managed), twin)
        case "gone":
            return Stored(facts, None)
        case "profile" if twin is not None:
            return Stored(facts, msgspec.structs.replace(twin, spec=msgspec.structs.replace(twin.spec, profile="eco")))
        case _:
            return stored


@settings(max_examples=100)
@given(st.lists(MOMENTS, min_size=2, max_size=8), st.integers(0, 3), st.sets(st.sampled_from(NAMES)))
def test_what_has_to_be_written_is_that_of_a_comparison_made_anew(moments, cut, told):
    policy, memory, comparison, now_s = POLICIES["static_partition"](PolicySettings()), Memory(), Comparison(), 1e9
    stored = {name: Stored(NodeFacts("uid", True, True, None, None, {}, {}), None) for name in NAMES}
    for passed_s, blocking, power_w, advice, ceilings, edits in moments:
        now_s += passed_s
        samples = {name: (now_s, watts) for name, watts in power_w.items() if watts is not None}
        readings = (SourceReadings.of("http", NAMES, samples),)
        decision = decide(Snapshot(now_s, NODES, blocking=blocking, power=readings), memory, ControlSettings(), policy)
        memory = decision.memory
        asked = [(advice.get(name, NO_ADVICE), (), ceilings.get(name)) for name in NAMES]
        wanted = [desired_node(decision, index, *one) for index, one in enumerate(asked)]
        grounds = [Grounds.of(decision, index, *one) for index, one in enumerate(asked)]
        # Twice: of the second time nothing changed but the numbers that are close already.
        for _ in range(2):
            seen, due = [stored[name] for name in NAMES], {"now_s": now_s, "overdue_s": OVERDUE_S}
            kept = [
                *comparison.needs(grounds[:cut], seen[:cut], decision.twin, 0, **due),
                *comparison.needs(grounds[cut:], seen[cut:], decision.twin, cut, **due),
            ]
            anew = [need_of(*pair, **due) for pair in zip(wanted, seen, strict=True)]
            assert [need for _, need in kept] == anew
            for name, one in zip(NAMES, wanted, strict=True):
                stored[name] = edited(stored[name], edits.get(name), name, one, now_s)
            # What the watch tells of is compared when it comes in.
            for index in (index for index, name in enumerate(NAMES) if name in told):
                words = comparison.wanted(grounds[index], stored[NAMES[index]])
                assert words == desired_words(grounds[index])
