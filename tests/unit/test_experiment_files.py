"""Experiments: what is read, and how every problem is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from joulie.domain.policies import QueueAware
from joulie.domain.policy import Profile
from joulie_lab.apps.experiment.settings import VariantError, build_control, check_variants, operator_settings
from joulie_lab.simulation.experiment.files import experiment_names, load_experiment
from joulie_lab.simulation.experiment.plan import PhysicsChoice, RunKey, choices, run_keys
from joulie_lab.simulation.experiment.scenario import ControlTimes, Variant
from joulie_lab.simulation.native.nodes import sim_nodes
from joulie_lab.simulation.positions import ScenarioError
from joulie_lab.simulation.scenario_files import load_scenario

VALID = """\
name: mine
cluster:
  groups:
    - {name: gpu, count: 2, cpu: AMD EPYC 9654, gpu: NVIDIA L40S, gpus: 4}
workload:
  trace: jobs.jsonl
variants:
  - {name: A, joulie: false, scheduler: kube}
  - name: B
    operator: {POLICY_TYPE: static_partition}
hours: 4
"""


def written(folder: Path, text: str, name: str = "mine.yaml") -> str:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return str(file)


def problems(folder: Path, text: str) -> list[str]:
    source = written(folder, text)
    with pytest.raises(ScenarioError) as caught:
        load_experiment(source)
    return [problem.replace(source, "FILE") for problem in caught.value.problems]


@pytest.mark.parametrize("name", experiment_names())
def test_a_shipped_experiment_is_whole(name: str) -> None:
    experiment = load_experiment(name)
    assert experiment.name == name
    check_variants(experiment)
    nodes = sim_nodes(experiment.cluster.groups)
    size = name.rpartition("-")[2]
    assert not size.isdigit() or len(nodes) == int(size)


def test_the_published_cluster_of_many_kinds() -> None:
    experiment = load_experiment("hetero-41")
    nodes = sim_nodes(experiment.cluster.groups)
    assert sum(node.spec.gpus for node in nodes) == 12 * 8 + 6 * 4 + 7 * 4 + 2 * 8 + 6 * 4
    assert len({node.family for node in nodes}) == 8
    assert (experiment.control.operator_s, experiment.control.agent_s, experiment.hours) == (20.0, 10.0, 22.0)
    caps = build_control(experiment.variants[1], experiment.control).settings.caps[Profile.ECO]
    assert (caps.cpu.percent, caps.gpu.percent) == (60.0, 70.0)


def test_files_are_named_from_where_the_experiment_stands(tmp_path: Path) -> None:
    experiment = load_experiment(written(tmp_path, VALID))
    assert experiment.workload.trace == str(tmp_path / "jobs.jsonl")


def test_a_cluster_file_is_read_in_and_its_lines_are_named(tmp_path: Path) -> None:
    groups = "groups:\n  - {name: cpu, count: 3, cpu: AMD EPYC 9655}\n"
    cluster = written(tmp_path, groups, "cluster.yaml")
    text = VALID.replace(VALID[VALID.index("  groups") : VALID.index("workload")], "  file: cluster.yaml\n")
    source = written(tmp_path, text)
    assert [group.count for group in load_experiment(source).cluster.groups] == [3]
    assert load_experiment(source, ["cluster.groups[0].count=7"]).cluster.groups[0].count == 7
    written(tmp_path, groups.replace("count: 3", "count: 0"), "cluster.yaml")
    assert problems(tmp_path, text) == [f"{cluster}:2: cluster.groups[0].count: must be greater than 0, got 0"]
    written(tmp_path, "nodes: 3\n", "cluster.yaml")
    assert problems(tmp_path, text)[0].startswith(f"{cluster}:1: a cluster file is a mapping with groups")
    (tmp_path / "cluster.yaml").unlink()
    assert problems(tmp_path, text) == [f"FILE:3: cluster.file: {cluster}: No such file or directory"]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("hours: 4", "hours: 0", "FILE:11: hours: must be greater than 0, got 0"),
        ("gpus: 4", "gpus: 0", "FILE:4: cluster.groups[0].gpus: a GPU model and a number of GPUs belong together"),
        ("scheduler: kube", "scheduler: joulie", "FILE:8: variants[0].scheduler: joulie: false has no extender; say"),
        (
            "scheduler: kube",
            "scheduler: joulie-energy",
            "FILE:8: variants[0].scheduler: joulie: false has no extender; say",
        ),
        ("name: B", "name: A", "FILE:7: variants: two variants have one name"),
        ("name: B", "name: B\n    without_caps: D", "FILE:10: variants[1].without_caps: no variant D; there are A, B"),
        ("trace: jobs.jsonl", "generate: {gpu_shar: 1}", "FILE:6: workload.generate.gpu_shar: unknown key, did you"),
    ],
)
def test_one_problem(tmp_path: Path, old: str, new: str, expected: str) -> None:
    found = problems(tmp_path, VALID.replace(old, new))
    assert len(found) == 1
    assert found[0].startswith(expected)


def test_scenarios_and_experiments_are_told_apart(tmp_path: Path) -> None:
    source = written(tmp_path, VALID)
    with pytest.raises(
        ScenarioError, match=r"mine\.yaml:7: variants belong to an experiment; use: joulie experiment run "
    ):
        load_scenario(source)
    with pytest.raises(ScenarioError, match="hetero-41 is an experiment; use: joulie experiment run hetero-41"):
        load_scenario("hetero-41")
    scenario = written(tmp_path, "name: s\nschedulers: [joulie]\n")
    with pytest.raises(ScenarioError, match=r"mine\.yaml:2: schedulers are of a scenario: joulie simulate "):
        load_experiment(scenario)


def test_a_scheduler_that_nobody_has_is_refused_by_name(tmp_path: Path) -> None:
    text = VALID.replace("- name: B\n", "- name: B\n    scheduler: joulie-enery\n")
    with pytest.raises(VariantError, match=r"variant B: scheduler: must be one of .*did you mean joulie-energy\?"):
        check_variants(load_experiment(written(tmp_path, text)))


def test_settings_are_what_the_operator_would_make_of_them() -> None:
    operator = {"POLICY_TYPE": "queue_aware_v1", "QUEUE_HP_MIN": "3", "DRAIN_SETTLING": "90s"}
    control = build_control(Variant(name="C", operator=operator), ControlTimes(operator_s=20.0))
    assert isinstance(control.policy, QueueAware)
    assert control.policy.settings.queue_hp_min == 3
    assert control.settings.drain.settling_s == 90.0
    assert operator_settings(Variant(name="C"), ControlTimes(operator_s=20.0)).reconcile_interval_s == 20.0


@pytest.mark.parametrize(
    ("operator", "says"),
    [
        ({"STATIC_HP_FRACTION": "0.3"}, "operator.STATIC_HP_FRACTION: unknown setting, did you mean STATIC_HP_FRAC?"),
        ({"STATIC_HP_FRAC": "1.3"}, "operator.STATIC_HP_FRAC: .*1.3 is out of range: expected 0..1"),
        ({"POLICY_TYPE": "magic"}, "POLICY_TYPE: unknown policy 'magic'; allowed"),
        ({"RECONCILE_INTERVAL": "5s"}, "set by control.operator_s"),
        ({"QUEUE_HP_MIN": "3", "QUEUE_HP_MAX": "2"}, "QUEUE_HP_MIN must be within 0..QUEUE_HP_MAX"),
    ],
)
def test_a_setting_that_the_operator_would_refuse_is_refused_by_name(operator: dict[str, str], says: str) -> None:
    with pytest.raises(VariantError, match=f"variant X: .*{says}"):
        build_control(Variant(name="X", operator=operator), ControlTimes())


def test_every_variant_runs_with_every_seed_under_every_physics() -> None:
    experiment = load_experiment("quick", ["seeds=[1, 2]", "physics.gpu_throughput=[measured, published]"])
    keys = run_keys(experiment)
    assert len(keys) == len(set(keys)) == 2 * 2 * 2
    assert choices(experiment.physics)[0] == PhysicsChoice()
    assert keys[:2] == [RunKey("A", 1, PhysicsChoice()), RunKey("B", 1, PhysicsChoice())]
    assert keys[0].folder == "A-seed1-all-measured"
