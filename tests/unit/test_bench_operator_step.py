"""`joulie bench operator-step`: a calm step writes nothing, a busy one everything, and both are timed."""

from __future__ import annotations

import pytest

from joulie_lab.benchmarks.operator_step import BUDGETS, measure

pytestmark = pytest.mark.slow  # starts processes


def test_steps_are_timed_by_size() -> None:
    told: list[str] = []
    found = measure([12, 30], 2, 2, told.append)
    assert told == ["12 nodes", "30 nodes"]
    assert (found.steps, found.budgets) == (2, BUDGETS)
    for nodes, one in zip((12, 30), found.sizes.values(), strict=True):
        assert (one.nodes, one.pods) == (nodes, 2 * nodes)
        for step in (one.calm, one.busy):
            assert 0.0 < step.decide_ms < step.step_ms
            assert 0.0 < step.compare_ms < step.step_ms
        assert one.watch_ms > 0.0
        assert one.resident_mb > 10.0
