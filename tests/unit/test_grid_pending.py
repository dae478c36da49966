"""The queue of pending pods alone: its cost with ten thousand pods."""

import time

import pytest

from joulie.adapters.kubernetes.cache import Key
from joulie.apps.grid.pending import Deferral, PendingPod, PendingQueue
from joulie.domain.grid.deferral import Conditions, Waiting
from joulie.domain.grid.release import Limits
from joulie.domain.grid.request import Asked, GridRequest, Mode
from joulie.domain.grid.series import Series
from joulie.domain.grid.signals import GridSignal, Measure
from joulie.domain.signal import Quality

PODS = 10_000
HOUR_S = 3600.0


def crowd(mode, *, flock):
    """a queue with ten thousand pods, `flock` of which ask the same since the same second."""
    pending = PendingQueue(Limits(10.0, 50), 0.0)
    for index in range(PODS):
        since_s = -float(index // flock)
        deferral = Deferral("DE", Waiting(GridRequest(asked_by=Asked.POD, mode=mode), since_s))
        pending.put(PendingPod(Key("ns", f"p{index:05}"), str(index), 0, since_s), deferral)
    return pending


def conditions(value, now_s):
    ahead = Series([now_s + HOUR_S * i for i in range(48)], [value - i % 24 for i in range(48)], now_s + 48 * HOUR_S)
    return Conditions(GridSignal(Measure.CARBON, "DE", Quality.FRESH, value, now_s, forecast=ahead))


def decide_all(pending, known, now_s):
    decided = 0
    while pending.next_decision_s <= now_s:
        decided += len(pending.decide(lambda _zone: known, now_s))
    return decided


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "flock"), [(Mode.THRESHOLD, 1), (Mode.OPTIMAL, 1), (Mode.OPTIMAL, 100)])
def test_ten_thousand_waiting_pods_cost_little(mode, flock):
    pending = crowd(mode, flock=flock)
    decide_all(pending, conditions(300.0, 0.0), 0.0)
    began_s = time.process_time()
    for minute in (5, 10, 15):  # of the twelve signals of an hour, one in five minutes
        now_s = 60.0 * minute
        pending.zone_changed("DE")
        assert decide_all(pending, conditions(300.0, now_s), now_s) == PODS / flock
        assert pending.take_due(now_s) == []
    spent_s = time.process_time() - began_s
    assert spent_s * 4.0 < 60.0  # an hour of signals: less than 1.7 % of one core, on a slow machine


@pytest.mark.slow
def test_ten_thousand_pods_start_one_after_the_other():
    pending = crowd(Mode.THRESHOLD, flock=100)
    pending.decide(lambda _zone: conditions(300.0, 0.0), 0.0)
    pending.zone_changed("DE")
    pending.decide(lambda _zone: conditions(100.0, 60.0), 60.0)
    began_s, now_s, went = time.process_time(), 60.0, []
    while len(went) < PODS:
        now_s = max(now_s + 0.2, pending.next_s)  # the controller looks five times a second at most
        going = pending.take_due(now_s)
        for one in going:
            pending.remove(one.pod.key)
        went += [one.pod.created_s for one in going]
    assert went == sorted(went)
    assert now_s - 60.0 == pytest.approx((PODS - 50) / 10.0, rel=0.01)
    assert time.process_time() - began_s < 0.1 * (now_s - 60.0)


@pytest.mark.slow
def test_nothing_is_looked_at_while_nothing_can_change():
    pending = crowd(Mode.THRESHOLD, flock=PODS)
    asked = []

    def look(zone):
        asked.append(zone)
        return conditions(300.0, 0.0)

    pending.decide(look, 0.0)
    for second in range(1, 1000):
        assert pending.decide(look, float(second)) == []
    assert asked == ["DE"]
