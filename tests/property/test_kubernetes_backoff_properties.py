import random  # noqa: TID251 - jitter of an adapter, seeded here

from hypothesis import given
from hypothesis import strategies as st

from joulie.adapters.kubernetes.cache import Backoff

first = st.floats(0.001, 10.0)


@given(first_s=first, factor=st.floats(1.0, 1000.0), seed=st.integers(), failures=st.integers(1, 2000))
def test_pauses_are_positive_bounded_and_grow_to_their_limit(
    first_s: float, factor: float, seed: int, failures: int
) -> None:
    longest_s = first_s * factor
    backoff = Backoff(first_s, longest_s, random.Random(seed))
    pauses = [backoff.next_s() for _ in range(failures)]
    for index, pause in enumerate(pauses):
        ceiling = min(longest_s, first_s * 2.0 ** min(index, 64))
        assert 0.5 * ceiling <= pause <= ceiling


@given(first_s=first, seed=st.integers(), failures=st.integers(0, 20))
def test_success_starts_over(first_s: float, seed: int, failures: int) -> None:
    backoff = Backoff(first_s, first_s * 64, random.Random(seed))
    for _ in range(failures):
        backoff.next_s()
    backoff.reset()
    assert backoff.next_s() <= first_s
