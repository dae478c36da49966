"""Another program that sets the limit of a device while Joulie does: noticed, and yielded to, not fought."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from joulie.domain.actuation import same_limit
from joulie.domain.limit_contest import CALM_LOOKS, PAUSE_LOOKS, RESETS, Contest


def looks(contest: Contest, *limits_w: float | None, put_w: float = 450.0) -> Contest:
    """One look for each limit that is found; Joulie puts its own in force after each, unless it yields."""
    for limit_w in limits_w:
        contest = contest.looked(limit_w, same_limit)
        contest = replace(contest, put=None if contest.yields else put_w)
    return contest


def test_it_yields_after_the_third_time_and_tries_once_more_later() -> None:
    contest = looks(Contest(), 700.0, *[700.0] * (RESETS - 1))
    assert not contest.yields
    contest = looks(contest, 700.0)
    assert (contest.yields, contest.found, contest.total) == (True, 700.0, RESETS)
    contest = looks(contest, *[700.0] * PAUSE_LOOKS)
    assert not contest.yields
    assert looks(contest, 700.0).yields, "one more time is enough"


def test_a_limit_that_stays_a_lower_one_and_one_that_cannot_be_read_are_no_contest() -> None:
    assert looks(Contest(), 700.0, *[450.4] * 50, 300.0, None).total == 0


def test_what_happened_long_ago_is_forgotten() -> None:
    contest = looks(Contest(), 700.0, *[700.0] * (RESETS - 1), *[450.0] * CALM_LOOKS, *[700.0] * (RESETS - 1))
    assert (contest.yields, contest.total) == (False, 2 * (RESETS - 1))


@given(st.lists(st.sampled_from([450.0, 700.0, 300.0, None]), max_size=400))
def test_writes_against_another_program_are_bounded(found: list[float | None]) -> None:
    contest, rewrites = Contest(put=450.0), 0
    for limit_w in found:
        contest = looks(contest, limit_w)
        rewrites += limit_w == 700.0 and not contest.yields
    # Three in a row, then one for each pause; calm stretches allow three anew.
    assert rewrites <= RESETS * (1 + len(found) // CALM_LOOKS) + len(found) // PAUSE_LOOKS
