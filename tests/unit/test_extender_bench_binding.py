from pathlib import Path

import pytest
from click.testing import CliRunner

from joulie_lab.apps.bench.binding import figure, tables
from joulie_lab.apps.bench.main import bench
from joulie_lab.benchmarks import binding
from joulie_lab.simulation.report.png import png


def test_a_ratio_is_that_of_the_time_taken_with_an_interval_over_rounds() -> None:
    """A machine that is twice as fast in one round must not look like a better extender."""
    ours, theirs = [90.0, 180.0, 45.0], [100.0, 200.0, 50.0]
    assert binding._ratio(ours, theirs) == pytest.approx(0.9)
    assert binding._interval(ours, theirs) == pytest.approx((0.9, 0.9))
    low, high = binding._interval([50.0, 100.0, 50.0, 100.0] * 5, [100.0] * 20)
    assert 0.55 < low < binding._ratio([50.0, 100.0], [100.0, 100.0]) < high < 0.85


def test_each_round_has_every_way_in_an_order_of_its_own() -> None:
    plan = binding.Plan(nodes=5, pods=3, rounds=20)
    turns = binding._turns(plan)
    rounds = {tuple(turn.way for turn in turns[first : first + 5]) for first in range(0, len(turns), 5)}
    assert all(sorted(found) == sorted(binding.WAYS) for found in rounds)
    assert len(rounds) > 10
    assert binding._turns(plan) == turns
    assert {(turn.way, len(turn.pods)) for turn in turns} == {
        *((way, 3) for way in ("constants", "joulie")),
        *((way, 6) for way in ("none", "admission", "rule")),
    }
    assert len({pod for turn in turns for pod in turn.pods}) == sum(len(turn.pods) for turn in turns)


def test_a_turn_lasts_until_its_pods_are_bound() -> None:
    """The first round does not count, and the last turn ends with the last pod."""
    ways = [*binding.WAYS, *reversed(binding.WAYS)]
    turns = [binding.Turn(place, way, [f"{place}-a", f"{place}-b"]) for place, way in enumerate(ways)]
    begun = [0.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 16.0, 20.0, 21.0]
    bound_s = [time for begin in begun for time in (begin, begin + 0.25)]
    rates = binding._rates(turns, bound_s)
    assert rates == {"joulie": [2.0], "constants": [1.0], "rule": [0.5], "admission": [2.0], "none": [8.0]}


def test_only_bindings_that_were_made_count() -> None:
    def event(subresource: str, code: int) -> dict[str, object]:
        return {"objectRef": {"subresource": subresource}, "responseStatus": {"code": code}}

    assert binding._is_binding(event("binding", 201))
    assert not binding._is_binding(event("binding", 409))
    assert not binding._is_binding(event("status", 200))


def test_a_folder_without_the_chart_is_named(tmp_path: Path) -> None:
    result = CliRunner().invoke(bench, ["binding", "--chart", str(tmp_path)])
    assert result.exit_code == 2
    assert f"{tmp_path} is not Joulie's chart: name its folder with --chart" in result.output


@pytest.mark.slow
def test_figures_as_a_table_and_a_picture() -> None:
    found = {"none": 200.0, "constants": 100.0, "joulie": 95.0, "admission": 170.0, "rule": 198.0}
    rounds = {way: [rate - 5.0, rate, rate + 5.0] for way, rate in found.items()}
    ratios = {"joulie_to_constants": 0.95, "admission_to_none": 0.85, "rule_to_none": 0.99}
    intervals = {name: (ratio - 0.1, ratio + 0.1) for name, ratio in ratios.items()}
    rates = binding.Rates(**found, **ratios, intervals_95=intervals, rounds=rounds)
    result = binding.BindingResult({"1000": rates})
    (table,) = tables(result)
    assert list(table.rows) == [
        ("1,000", "200", "170", "198", "100", "95", "0.95 (0.85-1.05)", "0.85 (0.75-0.95)", "0.99 (0.89-1.09)")
    ]
    assert tuple(table.columns[-3:]) == ("joulie / constants", "admission / none", "rule / none")
    assert png(figure(result)).startswith(b"\x89PNG")
