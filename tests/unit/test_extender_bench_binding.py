from pathlib import Path

from click.testing import CliRunner

from joulie.apps.cli.bench import bench
from joulie.apps.extender import bench_binding as binding


def test_ratios_are_taken_round_by_round() -> None:
    """A machine that is twice as fast in one round must not look like a better extender."""
    assert binding._ratio([90.0, 180.0, 45.0], [100.0, 200.0, 50.0]) == 0.9


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


def test_figures_as_a_table_and_a_picture() -> None:
    found = {"none": 200.0, "constants": 100.0, "joulie": 95.0, "admission": 170.0, "rule": 198.0}
    rounds = {way: [rate - 5.0, rate, rate + 5.0] for way, rate in found.items()}
    ratios = {"joulie_to_constants": 0.95, "admission_to_none": 0.85, "rule_to_none": 0.99}
    figures = {"bound_per_s": {"1000": {**found, **ratios, "rounds": rounds}}}
    assert list(binding.rows(figures)) == [("1,000", "200", "170", "198", "100", "95", "0.950", "0.850", "0.990")]
    assert binding.RATIOS == ("joulie / constants", "admission / none", "rule / none")
    assert binding.plot(figures).startswith(b"\x89PNG")
