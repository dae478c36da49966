"""Power from energy counters is true over any number of wraps, or unknown; it is never made up."""

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from joulie.domain.energy_counter import PLAUSIBLE_POWER_W, EnergyTrack, mean_power_w, sampling_interval_s, track

RANGES_J = st.sampled_from([65_532.0, 65_713.0, 262_143.0])
counters = st.integers(0, 262_143_000_000).map(lambda energy_uj: energy_uj * 1e-6)


@given(st.lists(st.tuples(st.floats(-5.0, 600.0), counters), min_size=2, max_size=12), st.none() | RANGES_J)
def test_power_is_plausible_or_unknown(readings: list[tuple[float, float]], wraps_at_j: float | None) -> None:
    found: list[EnergyTrack] = []
    now_s = 0.0
    for pause_s, counter_j in readings:
        now_s += pause_s
        found.append(track(found[-1] if found else None, counter_j, now_s, wraps_at_j=wraps_at_j))
    for number, before in enumerate(found):
        for after in found[number:]:
            power_w = mean_power_w(before, after)
            assert power_w is None or 0.0 < power_w <= PLAUSIBLE_POWER_W * (1.0 + 1e-5)


@given(
    st.lists(st.tuples(st.floats(1.0, 800.0), st.floats(0.05, 1.0)), min_size=1, max_size=60),
    RANGES_J,
    counters,
)
def test_h1_total_is_the_energy_drawn_if_read_often_enough(
    course: list[tuple[float, float]], wraps_at_j: float, first_j: float
) -> None:
    """The course: power drawn up to each reading, W, and the pause before it as a share of the sampling interval."""
    longest_s = sampling_interval_s([(wraps_at_j, 800.0)])
    drawn_j = list(accumulate((power_w * share * longest_s for power_w, share in course), initial=0.0))
    times_s = list(accumulate((share * longest_s for _, share in course), initial=0.0))
    known = None
    for now_s, energy_j in zip(times_s, drawn_j, strict=True):
        known = track(known, (first_j + energy_j) % wraps_at_j, now_s, wraps_at_j=wraps_at_j, max_power_w=800.0)
    assert known is not None
    assert known.since_s == 0.0
    assert abs(known.total_j - drawn_j[-1]) < 1e-3


@given(st.floats(0.05, 500.0), st.integers(1, 40), st.floats(0.0, 300.0))
def test_h10_no_counter_that_moves_is_taken_for_a_stopped_one(
    power_w: float, updates_every_reading: int, first_j: float
) -> None:
    """RAPL's resolution and update rate: whatever a package draws, every reading shows progress."""
    unit_j = 61e-6
    known = None
    for number in range(updates_every_reading + 2):
        counter_j = (first_j + power_w * number) // unit_j * unit_j
        known = track(known, counter_j, float(number))
        assert not known.stale
