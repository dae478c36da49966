"""Whatever exporters say, in whatever order: a node's power is believable or missing."""

import math

from hypothesis import given
from hypothesis import strategies as st

from joulie.adapters.prometheus.node_sums import NodeSums, latest_of, rate_of
from joulie.adapters.prometheus.readings import Rejection
from joulie.domain.signal import Reading

MAX_W = 3000.0
numbers = st.floats(allow_nan=False, allow_infinity=False)
samples = st.lists(
    st.builds(Reading, st.floats(min_value=0.0, max_value=2e9), numbers | st.floats(min_value=0.0, max_value=1e6)),
    max_size=6,
)
series = st.tuples(st.sampled_from(["n1", "n2"]), st.sampled_from("abc"), samples)


def added(all_series, read):
    sums = NodeSums()
    for node, device, found in all_series:
        sums.add("cpu", node, device, read(tuple(found), MAX_W))
    return sums


@given(st.lists(series, max_size=12), st.sampled_from([rate_of, latest_of]), st.randoms(use_true_random=False))
def test_sums_are_believable_and_do_not_depend_on_the_order(all_series, read, random):
    sums = added(all_series, read)
    for node, reading in sums.sums("cpu").items():
        assert 0.0 <= reading.value <= MAX_W * sums.counts("cpu")[node]
        assert math.isfinite(reading.time_s)
    shuffled = list(all_series)
    random.shuffle(shuffled)
    again = added(shuffled, read)
    assert again.counts("cpu") == sums.counts("cpu")
    for node, reading in again.sums("cpu").items():
        assert reading.time_s == sums.sums("cpu")[node].time_s
        assert math.isclose(reading.value, sums.sums("cpu")[node].value, rel_tol=1e-12)


@given(st.lists(series, max_size=12))
def test_a_node_is_there_exactly_if_each_of_its_devices_was_read(all_series):
    sums = added(all_series, rate_of)
    readable = {}
    for node, device, found in all_series:
        good = isinstance(rate_of(tuple(found), MAX_W), Reading)
        readable.setdefault(node, {}).setdefault(device, []).append(good)
    whole = {node for node, devices in readable.items() if all(any(goods) for goods in devices.values())}
    assert sums.sums("cpu").keys() == whole
    bad = sum(not good for devices in readable.values() for goods in devices.values() for good in goods)
    assert sum(count for reason, count in sums.rejected.items() if reason is not Rejection.DUPLICATE) == bad
