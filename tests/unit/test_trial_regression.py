"""The regression beside a trial's saving: effects that are put in come out, whatever hours and families are like."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulie.domain.trial.draw import TrialNode, draw
from joulie.domain.trial.estimate import NodeBlock, evaluate
from joulie.domain.trial.protocol import Arm
from joulie.domain.trial.regression import regress

pytestmark = pytest.mark.slow

FAMILY = {f"n{number}": ("cpu" if number < 6 else "gpu") for number in range(12)}
BLOCK_S = 3600.0


def trial(seed, effect, *, noise=0.0, work=1.0, silent=0.0):
    """Energy per work by hour, by family and by treatment, with noise by node and block."""
    rng = np.random.default_rng(seed)
    nodes = [TrialNode(name, family, float(rng.uniform(1, 2))) for name, family in FAMILY.items()]
    protocol = draw(nodes, start_s=0.0, pairs=12, seed=seed, block_s=BLOCK_S, washout_s=0.0)
    measured = []
    for block in protocol.blocks():
        arms, hour = protocol.arms_at(block.start_s), rng.lognormal(0.0, 0.4)
        for name, family in FAMILY.items():
            per_work = hour * (3.0 if family == "gpu" else 1.0) * math.exp(noise * rng.normal())
            per_work *= 1.0 - effect if arms[name] is Arm.TREATMENT else 1.0
            done = work if work else rng.uniform(0.5, 2.0)
            energy_j = None if rng.random() < silent else per_work * done
            measured.append(NodeBlock(name, block.index, energy_j, {"team": done}))
    return protocol, measured


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), effect=st.floats(-0.3, 0.6))
def test_an_effect_is_found_exactly_where_hours_and_families_explain_the_rest(seed, effect):
    protocol, measured = trial(seed, effect, work=0.0)
    found = regress(protocol, measured, {"team": 5.0}, FAMILY)
    # Within a family the sum of energies over that of work is the ratio itself.
    assert found.saved == pytest.approx(effect, abs=1e-9)
    assert found.error == pytest.approx(0.0, abs=1e-6)


def test_it_agrees_with_the_saving_by_contrasts_and_its_error_is_honest():
    found = []
    for seed in range(60):
        protocol, measured = trial(seed, 0.05, noise=0.05, silent=0.03)
        one = regress(protocol, measured, {"team": 1.0}, FAMILY)
        other = evaluate(protocol, measured, {"team": 1.0}).saving
        assert one.saved == pytest.approx(other.saved, abs=0.02)
        found.append((one.saved, one.error))
    saved, errors = np.array(found).T
    assert saved.mean() == pytest.approx(0.05, abs=0.003)
    assert errors.mean() == pytest.approx(saved.std(ddof=1), rel=0.25)


def test_nothing_is_said_of_few_pairs_or_without_two_halves():
    protocol, measured = trial(1, 0.05)
    assert regress(protocol, [one for one in measured if one.block < 8], {"team": 1.0}, FAMILY) is None
    first = [one for one in measured if one.node in protocol.first_half]
    assert regress(protocol, first, {"team": 1.0}, FAMILY) is None
    assert regress(protocol, [], {"team": 1.0}, FAMILY) is None
    assert regress(protocol, measured, {}, FAMILY) is None, "nobody's work counts"
