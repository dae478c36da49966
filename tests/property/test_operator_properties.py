"""What holds of the operator's bookkeeping."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.kubernetes.pods import Owner, PodFacts, ProfileFacts
from joulie.adapters.kubernetes.requests import Requests
from joulie.apps.operator.apply import _RefreshPlan
from joulie.apps.operator.ledger import PodLedger
from joulie.domain.policy import PodPhase, WorkloadClass

OWNERS = [Owner("Job", name) for name in "xyz"]
PODS = st.builds(
    PodFacts,
    namespace=st.just("ns"),
    name=st.sampled_from(["a", "b", "c", "d"]),
    uid=st.just("uid"),
    phase=st.sampled_from(PodPhase),
    node_name=st.sampled_from(["", "n", "m"]),
    requests=st.builds(
        Requests, st.sampled_from([0.1, 0.3, 7.0]), st.just(1.0), st.sampled_from([0.0, 1.0 / 7.0, 4.0]), st.none()
    ),
    owner=st.sampled_from(OWNERS),
    workload_class=st.sampled_from([None, *WorkloadClass]),
)
GONE = st.tuples(st.sampled_from(["a", "b", "c", "d"]), st.none())
PROFILES = st.tuples(st.sampled_from(OWNERS), st.sampled_from([None, ProfileFacts(WorkloadClass.PERFORMANCE)]))


@settings(max_examples=50)
@given(st.lists(st.one_of(PODS, GONE, PROFILES), max_size=40))
def test_sums_are_those_of_counting_anew_whatever_happened_before(changes):
    ledger, pods, profiles = PodLedger(), {}, {}
    for change in changes:
        if isinstance(change, PodFacts):
            ledger.pod_changed(Key("ns", change.name), pods.get(change.name), change)
            pods[change.name] = change
        elif isinstance(change[0], Owner):
            ledger.profile_changed(("ns", change[0]), change[1])
            profiles[change[0]] = change[1]
        elif change[0] in pods:
            ledger.pod_changed(Key("ns", change[0]), pods.pop(change[0]), None)
    anew = PodLedger()
    for owner, profile in profiles.items():
        anew.profile_changed(("ns", owner), profile)
    for name, pod in pods.items():
        anew.pod_changed(Key("ns", name), None, pod)
    assert ledger.demand == anew.demand
    assert ledger.full_power == anew.full_power
    assert ledger.blocking == anew.blocking
    assert ledger.loads == anew.loads


@settings(max_examples=50)
@given(
    st.lists(st.text("abc", min_size=1), unique=True, max_size=20).map(tuple),
    st.floats(10.0, 1000.0),
    st.floats(0.0, 2e9),
    st.lists(st.floats(0.0, 1.0), max_size=10),
)
def test_every_node_has_its_moment_once_in_each_period(nodes, period_s, start_s, cuts):
    plan = _RefreshPlan(nodes, period_s)
    moments_s = [start_s, *sorted(start_s + cut * period_s for cut in cuts), start_s + period_s]
    due = [index for since_s, until_s in itertools.pairwise(moments_s) for index in plan.due(since_s, until_s)]
    # Times since the epoch are exact to a fraction of a microsecond, in which a moment may fall on either side.
    assert abs(len(due) - len(nodes)) <= 1
    assert len(due) - len(set(due)) <= 1
