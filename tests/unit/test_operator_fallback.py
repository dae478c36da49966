"""Plug-ins that fail: the step goes on with the default, and the failure is seen."""

import logging

import numpy as np
import pytest

from joulie.apps.operator.fallback import CoolingWithFallback, PolicyWithFallback
from joulie.domain.cooling_stress import linear_cooling_stress
from joulie.domain.policies import FULL_POWER, POLICIES
from joulie.domain.policy import DEFAULT_CAPS, ClusterSnapshot, Plan, PolicyNode, PolicySettings, Profile

SNAPSHOT = ClusterSnapshot((PolicyNode("a", "cpu", 50.0), PolicyNode("b", "cpu", 50.0)), 0, 0.0)
DEFAULT = POLICIES[FULL_POWER](PolicySettings()).plan(SNAPSHOT)


class Broken:
    def __init__(self, answer):
        self.answer = answer

    def plan(self, _snapshot):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


WHOLE = dict.fromkeys("ab", Profile.PERFORMANCE)


@pytest.mark.parametrize(
    "answer",
    [
        ZeroDivisionError("division by zero"),
        None,
        Plan("mine", {"a": Profile.ECO}),
        Plan("mine", WHOLE, {"a": {Profile.ECO: DEFAULT_CAPS[Profile.ECO]}}),
    ],
)
def test_l12_a_policy_that_fails_is_reported_and_the_default_plans(answer, caplog):
    failures = []
    policy = PolicyWithFallback(Broken(answer), PolicySettings(), lambda: failures.append(1))
    with caplog.at_level(logging.ERROR):
        assert policy.plan(SNAPSHOT) == DEFAULT
    assert failures == [1]
    assert [record.message for record in caplog.records] == ["policy failed, using full_power for this step"]


def test_l12_a_policy_that_works_is_left_alone(caplog):
    plan = Plan("mine", WHOLE)
    policy = PolicyWithFallback(Broken(plan), PolicySettings(), lambda: pytest.fail("nothing failed"))
    assert policy.plan(SNAPSHOT) is plan
    assert not caplog.records


NODES = (np.array([500.0, 100.0]), np.array([1000.0, 1000.0]), np.array([293.15, 293.15]), np.array([True, True]), [])


def raising(*_):
    raise KeyError("hall-b")


@pytest.mark.parametrize(
    "model",
    [
        raising,
        lambda *_: np.array([np.nan, 1.0]),
        lambda *_: np.array([1.0, 2.0, 3.0]),
        lambda *_: np.array([10.0, 101.0]),
        lambda *_: None,
    ],
)
def test_l12_a_cooling_model_that_fails_is_reported_and_the_default_answers(model, caplog):
    failures = []
    cooling = CoolingWithFallback(model, lambda: failures.append(1))
    np.testing.assert_array_equal(cooling(*NODES), linear_cooling_stress(*NODES))
    assert failures == [1]
    assert [record.message for record in caplog.records] == ["cooling model failed, using linear for this step"]


def test_l12_a_cooling_model_that_works_is_left_alone():
    cooling = CoolingWithFallback(lambda *_: np.array([10.0, 20.0]), lambda: pytest.fail("nothing failed"))
    assert cooling(*NODES).tolist() == [10.0, 20.0]
