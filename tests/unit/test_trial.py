"""The draw of a trial and what its blocks say."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulie.domain.trial.draw import TrialNode, draw
from joulie.domain.trial.estimate import NodeBlock, evaluate, interval
from joulie.domain.trial.protocol import WHOLE, Arm, Protocol, Treated, arms
from joulie.domain.units import InvalidQuantityError

HOUR_S = 3600.0
NODES = [TrialNode(f"n{i:02}", "a100" if i < 7 else "h100", float(i % 5)) for i in range(15)]


def _draw(seed: int = 7, pairs: int = 12) -> Protocol:
    return draw(NODES, start_s=0.0, pairs=pairs, seed=seed, block_s=6 * HOUR_S, washout_s=HOUR_S)


def _measured(
    protocol: Protocol,
    ratio: float,
    *,
    half_factor: float = 1.0,
    silent: frozenset[tuple[str, int]] = frozenset(),
    noise: Mapping[tuple[int, str], float] | None = None,
) -> list[NodeBlock]:
    """Every node does 10 units for 100 J each, by the hour's and half's own factors and the treatment's ratio."""
    found = []
    for block in protocol.blocks():
        for names, arm, factor in zip(
            (protocol.first_half, protocol.second_half), arms(block.treated), (1.0, half_factor), strict=True
        ):
            for node in names:
                hour = 1.0 + 0.3 * math.sin(block.index)
                energy_j = 1000.0 * factor * hour * (ratio if arm is Arm.TREATMENT else 1.0)
                energy_j *= math.exp((noise or {}).get((block.index, node), 0.0))
                silenced = (node, block.index) in silent
                found.append(NodeBlock(node, block.index, None if silenced else energy_j, {"team": 10.0}))
    return found


@given(seed=st.integers(0, 2**32), order=st.randoms())
def test_halves_hold_the_same_hardware_and_do_not_depend_on_order(seed: int, order) -> None:  # type: ignore[no-untyped-def]
    shuffled = list(NODES)
    order.shuffle(shuffled)
    protocol = draw(shuffled, start_s=0.0, pairs=12, seed=seed, block_s=HOUR_S, washout_s=0.0)
    assert protocol == draw(NODES, start_s=0.0, pairs=12, seed=seed, block_s=HOUR_S, washout_s=0.0)
    families = {node.name: node.family for node in NODES}
    first, second = (sorted(families[name] for name in half) for half in (protocol.first_half, protocol.second_half))
    assert first == second
    assert len(protocol.left_out) == 1
    assert {*protocol.first_half, *protocol.second_half, *protocol.left_out} == set(families)


@given(seed=st.integers(0, 2**32), pairs=st.integers(12, 40))
def test_each_pair_of_blocks_has_both_arms(seed: int, pairs: int) -> None:
    protocol = _draw(seed, pairs)
    blocks = list(protocol.blocks())
    halves = [one for one in blocks[::2] if one.treated not in WHOLE]
    assert len(halves) == pairs
    assert len(blocks) == 2 * (pairs + pairs // 5)
    for first, second in zip(blocks[::2], blocks[1::2], strict=True):
        assert all(
            {one, other} == set(Arm) for one, other in zip(arms(first.treated), arms(second.treated), strict=True)
        )
    assert blocks[-1].end_s == protocol.end_s


def test_arms_follow_the_clock() -> None:
    protocol = _draw()
    assert protocol.arms_at(-1.0) == {} == protocol.arms_at(protocol.end_s)
    for block in protocol.blocks():
        found = protocol.arms_at(block.start_s)
        assert found == protocol.arms_at(block.end_s - 1.0)
        assert found[protocol.first_half[0]] is arms(block.treated)[0]
        assert not set(found) & set(protocol.left_out)
        assert block.measured_from_s == block.start_s + HOUR_S


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"pairs": 11}, "at least 12"),
        ({"washout_s": 6 * HOUR_S}, "shorter than a block"),
        ({"washout_s": math.nan}, "shorter than a block"),
        ({"nodes": [TrialNode("a", "x", 1.0), TrialNode("b", "y", 1.0)]}, "same hardware"),
    ],
)
def test_a_trial_that_cannot_be_drawn_is_refused(change: Mapping[str, object], why: str) -> None:
    choice: dict[str, object] = {"nodes": NODES, "pairs": 12, "washout_s": 0.0} | dict(change)
    nodes = choice.pop("nodes")
    with pytest.raises(InvalidQuantityError, match=why):
        draw(nodes, start_s=0.0, seed=1, **choice)  # type: ignore[arg-type]


@pytest.mark.slow
@given(ratio=st.floats(0.7, 1.3), half_factor=st.floats(0.5, 2.0), seed=st.integers(0, 1000))
def test_a_constant_ratio_is_found_whatever_hours_and_halves_are_like(
    ratio: float, half_factor: float, seed: int
) -> None:
    protocol = _draw(seed)
    result = evaluate(protocol, _measured(protocol, ratio, half_factor=half_factor), {"team": 100.0})
    assert result.saving is not None
    assert result.saving.saved == pytest.approx(1.0 - ratio, abs=1e-9)
    assert result.saving.pairs == 12


@given(
    ratio=st.floats(0.85, 1.1),
    spilt=st.floats(0.0, 0.05),
    base=st.floats(0.1, 0.6),
    half_factor=st.floats(0.9, 1.1),
    seed=st.integers(0, 1000),
)
@settings(max_examples=25)
def test_at_equal_work_it_does_not_matter_that_pods_went_to_the_other_half(
    ratio: float, spilt: float, base: float, half_factor: float, seed: int
) -> None:
    protocol, rng = _draw(seed), np.random.default_rng(seed)
    measured = []
    for block in protocol.blocks():
        hour = rng.uniform(0.95, 1.05)
        for node, arm in protocol.arms_at(block.start_s).items():
            treated = arm is Arm.TREATMENT
            work = 10.0 * hour * (1.0 - spilt if treated else 1.0 + spilt)
            factor = half_factor if node in protocol.first_half else 1.0
            energy_j = factor * (base * 10.0 + (1.0 - base) * work) * (ratio if treated else 1.0)
            measured.append(NodeBlock(node, block.index, energy_j, {"team": work}))
    result = evaluate(protocol, measured, {"team": 1.0})
    assert result.saving is not None
    assert result.equal_work is not None
    assert result.elasticity == pytest.approx(1.0 - base, abs=0.08)
    assert result.equal_work.saved == pytest.approx(1.0 - ratio, abs=0.01)
    # Per work, the base is divided by less work on the one side and by more on the other.
    assert math.log((1.0 - result.saving.saved) / ratio) == pytest.approx(2.0 * spilt * base, abs=0.005)


def test_without_a_difference_in_work_nothing_is_said_at_equal_work() -> None:
    protocol = _draw()
    result = evaluate(protocol, _measured(protocol, 0.9), {"team": 100.0})
    assert (result.elasticity, result.equal_work) == (None, None)
    assert evaluate(protocol, [], {"team": 100.0}).equal_work is None


def test_whole_blocks_are_told_apart() -> None:
    protocol = _draw()
    result = evaluate(protocol, _measured(protocol, 1.0), {"team": 100.0})
    assert [one.whole for one in result.contrasts] == [treated in WHOLE for treated in protocol.order]
    assert result.whole is not None
    assert (result.whole.pairs, result.whole.low) == (2, None)


def test_a_silent_meter_takes_its_node_from_both_blocks() -> None:
    protocol = _draw()
    node = protocol.first_half[0]
    heavy = [
        NodeBlock(one.node, one.block, None if (one.node, one.block) == (node, 3) else 1e6, one.work)
        if one.node == node
        else one
        for one in _measured(protocol, 0.9)
    ]
    result = evaluate(protocol, heavy, {"team": 100.0})
    everywhere, there = result.contrasts[0], result.contrasts[1]
    assert there.nodes == everywhere.nodes - 1
    if not there.whole:
        assert there.log_ratio == pytest.approx(_without(protocol, node).contrasts[1].log_ratio)


def _without(protocol: Protocol, node: str):  # type: ignore[no-untyped-def]
    measured = [one for one in _measured(protocol, 0.9) if one.node != node]
    return evaluate(protocol, measured, {"team": 100.0})


def test_a_half_without_measurements_leaves_its_pair_out_and_says_so() -> None:
    protocol = _draw()
    silent = frozenset((node.name, 0) for node in NODES)
    result = evaluate(protocol, _measured(protocol, 0.9, silent=silent), {"team": 100.0})
    assert result.contrasts[0].log_ratio is None
    assert "not measured in both blocks" in result.contrasts[0].why_not
    assert all(one.log_ratio is not None for one in result.contrasts[1:])


def test_work_without_a_weight_does_not_count() -> None:
    protocol = _draw()
    measured = [NodeBlock(one.node, one.block, one.energy_j, {"other": 5.0}) for one in _measured(protocol, 0.9)]
    assert evaluate(protocol, measured, {"team": 100.0}).saving is None


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
def test_a_meter_that_lies_is_refused(bad: float) -> None:
    protocol = _draw()
    with pytest.raises(InvalidQuantityError, match="energy_j"):
        evaluate(protocol, [NodeBlock(protocol.first_half[0], 0, bad, {})], {})


def test_fewer_than_six_pairs_have_no_interval() -> None:
    rng = np.random.default_rng(1)
    assert interval(np.array([0.1, 0.2, 0.15, 0.12, 0.11]), rng) is None
    assert interval(np.array([0.1, 0.2, 0.15, 0.12, 0.11, 0.3]), rng) == (0.1, 0.3)


@given(st.lists(st.floats(-0.2, 0.2), min_size=6, max_size=9), st.floats(-0.3, 0.3))
def test_the_interval_is_what_the_test_by_signs_does_not_refuse(contrasts: list[float], effect: float) -> None:
    logs = np.array(contrasts)
    bounds = interval(logs, np.random.default_rng(0))
    assert bounds is not None
    signs = 1 - 2 * ((np.arange(2 ** len(logs))[:, np.newaxis] >> np.arange(len(logs))) & 1)
    sums = signs @ (logs - effect)
    observed = float((logs - effect).sum())
    as_high = float(np.mean(sums >= observed - 1e-12))
    as_low = float(np.mean(sums <= observed + 1e-12))
    inside = bounds[0] + 1e-9 < effect < bounds[1] - 1e-9
    outside = effect < bounds[0] - 1e-9 or effect > bounds[1] + 1e-9
    if inside:
        assert min(as_high, as_low) > 0.025
    if outside:
        assert min(as_high, as_low) <= 0.025


@pytest.mark.slow
def test_an_aa_trial_rarely_claims_a_saving() -> None:
    rng = np.random.default_rng(20261124)
    false, held, trials = 0, 0, 300
    for seed in range(trials):
        protocol = _draw(seed)
        noise = {
            (block.index, node): float(rng.standard_t(4)) * 0.02
            for block in protocol.blocks()
            for node in (*protocol.first_half, *protocol.second_half)
        }
        saving = evaluate(protocol, _measured(protocol, 1.0, noise=noise), {"team": 100.0}).saving
        assert saving is not None
        assert saving.low is not None
        assert saving.high is not None
        false += saving.low > 0.0
        held += saving.low <= 0.0 <= saving.high
    assert held >= 0.93 * trials
    assert false <= 0.04 * trials


def test_treated_is_told_by_half() -> None:
    assert arms(Treated.ALL) == (Arm.TREATMENT, Arm.TREATMENT)
    assert arms(Treated.NONE) == (Arm.CONTROL, Arm.CONTROL)
    assert arms(Treated.SECOND_HALF) == (Arm.CONTROL, Arm.TREATMENT)
