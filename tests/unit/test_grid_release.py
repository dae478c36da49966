"""In which order held pods go, and how fast."""

from joulie.domain.grid.release import Bucket, Due, Limits, due_now, in_order

LIMITS = Limits(rate_per_s=2.0, burst=3)


def test_order_is_by_urgency_then_priority_then_age_then_name() -> None:
    pods = [
        Due("a/young", 0, 20.0),
        Due("a/old", 0, 10.0),
        Due("a/twin", 0, 10.0),
        Due("a/high", 5, 30.0),
        Due("a/late", -5, 30.0, urgent=True),
    ]
    assert [pod.name for pod in in_order(pods, use_priorities=True)] == [
        "a/late", "a/high", "a/old", "a/twin", "a/young",
    ]  # fmt: skip
    assert [pod.name for pod in in_order(pods, use_priorities=False)] == [
        "a/late", "a/old", "a/twin", "a/young", "a/high",
    ]  # fmt: skip


def test_a_crossing_does_not_let_all_go_at_once() -> None:
    waiting = [Due(f"a/{number:03}", 0, float(number)) for number in range(10)]
    bucket, now_s, sizes = Bucket(3.0, 100.0), 100.0, []
    while waiting:
        releases = due_now(waiting, bucket, now_s, LIMITS)
        assert releases.now == tuple(waiting[: len(releases.now)])
        sizes.append(len(releases.now))
        waiting, bucket = waiting[len(releases.now) :], releases.bucket
        if releases.next_s is not None:
            assert releases.next_s > now_s
            now_s = releases.next_s
    assert sizes == [3, 1, 1, 1, 1, 1, 1, 1]
    assert now_s == 100.0 + 7 / LIMITS.rate_per_s


def test_who_has_come_to_the_latest_start_is_never_delayed() -> None:
    urgent = [Due(f"a/{number}", 0, float(number), urgent=True) for number in range(50)]
    releases = due_now([*urgent, Due("a/other", 0, 0.0)], Bucket(0.0, 0.0), 0.0, LIMITS)
    assert releases.now == tuple(urgent)
    assert releases.next_s == 0.5


def test_urgent_ones_use_up_what_others_could_have_used() -> None:
    pods = [Due("a/urgent", 0, 0.0, urgent=True), Due("a/one", 0, 0.0), Due("a/two", 0, 0.0), Due("a/three", 0, 0.0)]
    assert len(due_now(pods, Bucket(3.0, 0.0), 0.0, LIMITS).now) == 3


def test_a_clock_that_is_set_back_stops_nobody() -> None:
    releases = due_now([Due("a/b", 0, 0.0)], Bucket(0.0, 1000.0), 0.0, LIMITS)
    assert releases.next_s == 0.5
    assert due_now([Due("a/b", 0, 0.0)], releases.bucket, 0.5, LIMITS).now
