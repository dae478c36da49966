"""Scenarios: what is read, and how every problem is named."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from joulie_lab.simulation.positions import ScenarioError, parse_document
from joulie_lab.simulation.scenario import Kept
from joulie_lab.simulation.scenario_files import Setting, json_schema, load_scenario, shipped_names
from joulie_lab.simulation.workload import CPU_ABOVE_8_CORES, JOB_CLASSES

VALID = """\
name: mine
cluster:
  pools:
    - {name: cpu, count: 3, cores: 96, cpu_max_w: 700}
workload:
  published:
    rate: 0.001
hours: 4
"""


@pytest.fixture
def write(tmp_path: Path):
    def _write(text: str) -> str:
        file = tmp_path / "mine.yaml"
        file.write_text(text, encoding="utf-8")
        return str(file)

    return _write


def problems(source: str, sets: tuple[str, ...] = ()) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(source, sets)
    return [problem.replace(source, "FILE") for problem in caught.value.problems]


def test_shipped_scenarios_are_valid():
    assert shipped_names() == ["equal-work-2500", "pai-100k", "published-2500", "published-28", "quick"]
    for name in shipped_names():
        assert load_scenario(name).name == name


def test_every_published_class_can_be_thinned():
    assert set(get_args(Kept)) == {*JOB_CLASSES, CPU_ABOVE_8_CORES}


def test_the_published_scenario_is_the_published_experiment():
    scenario = load_scenario("published-2500")
    assert (scenario.cluster.n_nodes, scenario.cluster.peak_w) == (2500, 4.45e6)
    assert (scenario.n_steps, scenario.mode, scenario.seeds) == (2880, "drop", (42,))
    assert scenario.cluster.pools[1].peak_w == 6100.0


def test_equal_work_has_its_drain_and_thinning():
    scenario = load_scenario("equal-work-2500")
    assert (scenario.n_arrival_steps, scenario.n_steps) == (24 * 60, 36 * 60)
    assert scenario.workload.published is not None
    assert scenario.workload.published.keep == {"gpu-training": 1.0 / 110.0, "cpu-above-8-cores": 0.22}
    assert scenario.cluster.pools[1].gpu_idle_w == 70.0


def test_defaults_are_the_published_ones(write):
    scenario = load_scenario(write(VALID))
    assert scenario.step_s == 60.0
    assert scenario.cooling.kind == "none"
    assert scenario.climate.mean_c == 23.0


def test_every_problem_is_named_with_its_line(write):
    text = VALID.replace("hours: 4", "hours: -4").replace("rate: 0.001", "rat: 1") + "climat: {}\nmode: quue\n"
    found = problems(write(text))
    assert found[0].startswith(
        "FILE:7: workload.published.rat: unknown key, did you mean rate?; allowed are keep, rate"
    )
    assert found[1] == "FILE:8: hours: must be greater than 0, got -4"
    assert found[2].startswith("FILE:9: climat: unknown key, did you mean climate?")
    assert found[3] == "FILE:10: mode: must be 'drop' or 'queue', got 'quue', did you mean queue?"
    assert len(found) == 4


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("count: 3", "count: 0", "FILE:4: cluster.pools[0].count: must be above zero, got 0"),
        ("count: 3", "count: '3'", "FILE:4: cluster.pools[0].count: must be a valid integer, got '3'"),
        ("count: 3", "count: yes", "FILE:4: cluster.pools[0].count: must be a valid integer, got True"),
        ("cpu_max_w: 700", "cpu_max_w: .nan", "FILE:4: cluster.pools[0].cpu_max_w: must be a finite number, got nan"),
        (", cores: 96", "", "FILE:4: cluster.pools[0].cores: missing; give a whole number"),
        ("rate: 0.001", "rate: .inf", "FILE:7: workload.published.rate: must be a finite number, got inf"),
        ("hours: 4", "hours: 2026-01-01", "FILE:8: hours: must be a valid number, got '2026-01-01'"),
        ("hours: 4", "hours: 0.001", "FILE:8: hours: 0.001 h is not a multiple of the 60 s step"),
        ("hours: 4", "hours: 4\nhours: 5", "FILE:9: hours: duplicate key; keep one of them"),
        ("hours: 4", "hours: &h 4\nstep_s: *h", "FILE:9: not valid YAML: aliases are not supported: repeat the value"),
        ("hours: 4", "hours: 4\nseeds: [1, 1]", "FILE:9: seeds: duplicates: 1, 1"),
        ("hours: 4", "hours: 4\nschedulers: []", "FILE:9: schedulers: is empty; name at least one"),
        (
            "hours: 4",
            "hours: 4\ndrain_hours: 1",
            "FILE:9: drain_hours: has no meaning in mode drop; set mode: queue or",
        ),
        ("hours: 4", "hours: 2\nmode: queue", "FILE:8: hours: the spread of power needs two steps after hour 2, where"),
        (
            "hours: 4",
            "hours: 4\ncooling: {dx: {rated_cop: 0}}",
            "FILE:9: cooling.dx.rated_cop: must be above zero",
        ),
        ("hours: 4", "hours: 4\ncooling: {dx: {}, linear: {}}", "FILE:9: cooling: has linear and dx; name one plant"),
        ("hours: 4", "hours: [4", "FILE:9: not valid YAML: "),
    ],
)
def test_one_problem(write, old, new, expected):
    found = problems(write(VALID.replace(old, new)))
    assert len(found) == 1
    assert found[0].startswith(expected)


def test_an_unknown_scheduler_lists_the_known_ones(write):
    (found,) = problems(write(VALID + "schedulers: [most-alocated, joulie]\n"))
    assert found.startswith("FILE:9: schedulers[0]: unknown scheduler 'most-alocated'; did you mean most-allocated?")
    assert "joulie-legacy" in found


def test_a_workload_has_one_source(write):
    text = VALID.replace("  published:\n    rate: 0.001", "  csv: a.csv\n  parquet: b.parquet")
    (found,) = problems(write(text))
    assert found == "FILE:5: workload: needs exactly one of published, csv, parquet; got csv and parquet"


def test_a_table_needs_columns(write):
    (found,) = problems(write(VALID.replace("  published:\n    rate: 0.001", "  csv: a.csv")))
    assert found == "FILE:5: workload.columns: missing: name the columns of arrival and duration"


def test_numbers_as_people_write_them(write):
    assert load_scenario(write(VALID.replace("hours: 4", "hours: 1e1"))).hours == 10.0


def test_not_a_mapping(write):
    assert problems(write("")) == ["FILE:1: a scenario is a mapping of keys to values"]
    assert problems(write("- 3")) == ["FILE:1: a scenario is a mapping of keys to values"]


def test_overrides_pass_the_same_checks(write):
    source = write(VALID)
    scenario = load_scenario(source, ("hours=6", "cluster.pools[0].count=7", "cooling.dx.rated_cop=4"))
    assert (scenario.hours, scenario.cluster.n_nodes) == (6.0, 7)
    assert scenario.cooling.dx is not None
    assert scenario.cooling.dx.rated_cop == 4.0
    assert problems(source, ("hours=six",)) == ["--set hours=six: hours: must be a valid number, got 'six'"]
    assert problems(source, ("cluster.pools.5.count=1",)) == [
        "--set cluster.pools.5.count=1: cluster.pools[5]: no such element, the list has 1"
    ]
    assert problems(source, ("hours",)) == ["--set hours: not of the form key.path=value"]
    assert problems(source, ("name.x=1",))[0].startswith("--set name.x=1: name is 'mine', which has no keys")


def test_settings_come_before_overrides(write):
    source = write(VALID)
    settings = [Setting(("hours",), 5, "--hours"), Setting(("cooling",), "dx", "--cooling")]
    scenario = load_scenario(source, ("cooling.dx.rated_cop=5",), settings)
    assert scenario.hours == 5.0
    assert scenario.cooling.dx is not None
    assert scenario.cooling.dx.rated_cop == 5.0


def test_files_are_relative_to_where_they_are_named(write, tmp_path):
    table = "  csv: jobs.csv\n  columns: {arrival: a, duration: {column: d, unit: h}, cores: c}"
    source = write(VALID.replace("  published:\n    rate: 0.001", table))
    scenario = load_scenario(source)
    spec = scenario.workload.table()
    assert spec.path == tmp_path / "jobs.csv"
    assert spec.columns["duration"].factor == 3600.0
    assert load_scenario(source, ("workload.csv=other.csv",)).workload.table().path == Path("other.csv")


def test_unknown_name_and_file(tmp_path):
    with pytest.raises(ScenarioError, match="no scenario 'quik', did you mean quick"):
        load_scenario("quik")
    with pytest.raises(ScenarioError, match=r"none\.yaml: No such file"):
        load_scenario(str(tmp_path / "none.yaml"))


def test_places_know_their_line():
    document = parse_document("a:\n  - b: 1\n    c: 2\n", "f")
    assert document.location(("a", 0, "c")) == "f:3"
    assert document.location(("a", 0, "gone")) == "f:2"


def test_the_schema_knows_the_nested_parts():
    schema = json_schema()
    assert schema["required"] == ["name", "cluster", "workload", "hours"]
    assert schema["additionalProperties"] is False
    assert schema["$defs"]["Cooling"]["anyOf"][0] == {"enum": ["none", "linear", "dx"]}
    assert set(schema["$defs"]["NodePool"]["required"]) == {"name", "count", "cores", "cpu_max_w"}
