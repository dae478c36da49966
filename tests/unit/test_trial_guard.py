"""The guard of a trial: what its sequence promises, and what breaks a bound."""

import math

import numpy as np
import pytest

from joulie.domain.trial.guard import Bounds, EndedPod, Harm, broken, estimates, sequence, used
from joulie.domain.trial.protocol import Arm
from joulie.domain.units import InvalidQuantityError

ARMS = (Arm.CONTROL, Arm.TREATMENT)


def pods(rng, count, slowdown=0.0, failures=(0.02, 0.02), wait_s=30.0):
    """Pods of five owners with runtimes of their own, alternating between the arms."""
    found = []
    for _ in range(count):
        arm = ARMS[int(rng.integers(2))]
        owner = int(rng.integers(5))
        runtime_s = 600.0 * 3.0**owner * rng.lognormal(0.0, 0.2) * (1.0 + slowdown * (arm is Arm.TREATMENT))
        failed = bool(rng.random() < failures[arm is Arm.TREATMENT])
        found.append(EndedPod(f"job-{owner}", arm, runtime_s, failed, float(rng.exponential(wait_s))))
    return found


@pytest.mark.slow
def test_the_sequence_holds_at_all_looks_together():
    rng = np.random.default_rng(3)
    missed = missed_by_an_interval = 0
    for _ in range(400):
        values = rng.exponential(1.0, 2000) - 1.0
        counts = np.arange(40, 2001, 20)
        means = np.cumsum(values)[counts - 1] / counts
        errors = np.array([values[:count].std(ddof=1) / math.sqrt(count) for count in counts])
        bounds = [sequence(*one) for one in zip(means, errors, counts.tolist(), strict=True)]
        missed += any(low > 0.0 or high < 0.0 for low, high in bounds)
        missed_by_an_interval += bool((np.abs(means) > 1.96 * errors).any())
    assert missed <= 20  # 5 %
    assert missed_by_an_interval > 80


def test_estimates_tell_what_was_done_to_pods():
    found = estimates(pods(np.random.default_rng(1), 3000, slowdown=0.10, failures=(0.02, 0.12), wait_s=45.0))
    assert found[Harm.SLOWDOWN].value == pytest.approx(0.10, abs=0.02)
    assert found[Harm.FAILURES].value == pytest.approx(0.10, abs=0.02)
    assert found[Harm.WAIT].value == pytest.approx(45.0, rel=0.1)
    for one in found.values():
        assert one.low < one.value < one.high


def test_owners_seen_under_one_arm_say_nothing_of_slowdown():
    rng = np.random.default_rng(1)
    mixed = [
        one._replace(owner="long", runtime_s=1e5) if one.arm is Arm.TREATMENT else one._replace(owner="short")
        for one in pods(rng, 500)
    ]
    assert Harm.SLOWDOWN not in estimates(mixed)


def test_a_bound_is_broken_only_when_even_the_lower_bound_exceeds_it():
    found = estimates(pods(np.random.default_rng(1), 3000, slowdown=0.10))
    assert broken(found, Bounds(slowdown=0.15)) == ""
    assert broken(found, Bounds(slowdown=0.099)) == ""
    assert broken(found, Bounds(slowdown=0.05)).startswith("pods on enforced nodes run longer by 1")
    assert broken(found, Bounds()) == ""


def test_how_much_of_a_bound_is_used_is_told_beyond_doubt():
    found = estimates(pods(np.random.default_rng(1), 3000, slowdown=0.10))
    low = found[Harm.SLOWDOWN].low
    assert used(found, Bounds(slowdown=0.5, wait_s=1e9)) == {
        Harm.SLOWDOWN: pytest.approx(low / 0.5),
        Harm.WAIT: pytest.approx(0.0, abs=1e-6),
    }
    assert used(found, Bounds(slowdown=low * 0.99))[Harm.SLOWDOWN] > 1.0
    assert used(found, Bounds(slowdown=0.0)) == {}
    no_harm = estimates(pods(np.random.default_rng(2), 400))
    assert used(no_harm, Bounds(failures=0.1))[Harm.FAILURES] == 0.0


def test_nothing_is_judged_by_few_pods():
    found = estimates(pods(np.random.default_rng(1), 30, slowdown=5.0))
    assert found == {}


@pytest.mark.slow
def test_the_sequence_seldom_ends_a_trial_that_harms_nobody():
    stopped = 0
    for seed in range(60):
        ended = pods(np.random.default_rng(seed), 400)
        looks = range(40, 401, 40)
        stopped += any(broken(estimates(ended[:count]), Bounds(slowdown=0.0, failures=0.0)) for count in looks)
    assert stopped <= 4


@pytest.mark.parametrize("name", ["slowdown", "failures", "wait_s"])
@pytest.mark.parametrize("value", [math.nan, -0.1, math.inf])
def test_bounds_are_checked(name, value):
    with pytest.raises(InvalidQuantityError, match=name):
        Bounds(**{name: value})


def test_errors_of_a_sequence_are_checked():
    with pytest.raises(InvalidQuantityError, match="count"):
        sequence(0.0, 1.0, 0)
    with pytest.raises(InvalidQuantityError, match="error"):
        sequence(0.0, math.nan, 5)
