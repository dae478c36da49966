"""Settings of the operator: what users write, what the domain gets, what is refused and how."""

import importlib.metadata

import click
import pytest
from click.testing import CliRunner

from joulie.apps.operator import plugins
from joulie.apps.operator.main import operator
from joulie.apps.operator.settings import OperatorSettings
from joulie.domain.cooling_stress import linear_cooling_stress
from joulie.domain.energy_split import EnergyBounds
from joulie.domain.policies import POLICIES, StaticPartition
from joulie.domain.policy import DEFAULT_CAPS, Cap, PolicySettings, Profile
from joulie.domain.scheduling.labels import LabelSelector
from joulie.program.settings import settings_options


def read(**environment):
    """The settings that a program gets from its environment, and what was printed."""
    found = []

    @click.command()
    @settings_options(OperatorSettings)
    def command(settings):
        found.append(settings)

    result = CliRunner(env=environment).invoke(command, [])
    return (found[0] if found else None), result.output


def test_the_defaults_are_the_documented_ones():
    settings, _ = read()
    assert settings.reconcile_interval_s == 60.0
    assert settings.selector == LabelSelector.parse("joulie.io/managed=true")
    assert settings.control.caps == DEFAULT_CAPS
    assert settings.policy == PolicySettings()
    assert settings.control.drain.timeout_s == 1800.0
    assert settings.leader_elect


def test_prometheus_is_where_its_operator_puts_it_unless_there_is_none():
    assert read()[0].prometheus_address == "http://prometheus-operated.monitoring:9090"
    assert read(PROMETHEUS_ADDRESS="none")[0].prometheus_address == ""
    assert read(PROMETHEUS_ADDRESS="https://p/prom")[0].prometheus_address == "https://p/prom"


def test_caps_in_watts_and_by_model():
    settings, _ = read(
        CPU_WRITE_ABSOLUTE_CAPS="true",
        GPU_ECO_CAP_PCT_OF_MAX="50",
        GPU_MODEL_CAPS_JSON='{"H100 NVL": {"minCapWatts": 250, "maxCapWatts": 400}, "L40S": {"maxCapWatts": 300}}',
    )
    eco, performance = settings.control.caps[Profile.ECO], settings.control.caps[Profile.PERFORMANCE]
    assert (eco.cpu, performance.cpu) == (Cap(60.0, 120.0), Cap(100.0, 5000.0))
    assert eco.gpu_cap("NVIDIA-H100-NVL") == Cap(watts=250.0)
    assert eco.gpu_cap("NVIDIA L40S") == Cap(watts=150.0)
    assert performance.gpu_cap("NVIDIA H100 NVL") == Cap(watts=400.0)
    assert eco.gpu_cap("another") == Cap(50.0)


def test_a_drain_without_a_timeout():
    settings, _ = read(DRAIN_TIMEOUT="0", DRAIN_ESCALATION="force")
    assert settings.control.drain.timeout_s is None


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"NODE_SELECTOR": "a b"}, "NODE_SELECTOR"),
        ({"POWER_SOURCES": "agents,scaphandre"}, "POWER_SOURCES: unknown source 'scaphandre'; known: platform, agents"),
        ({"GPU_MODEL_CAPS_JSON": '{"L40S": 300}'}, "GPU_MODEL_CAPS_JSON: L40S: expected"),
        ({"GPU_MODEL_CAPS_JSON": '{"L40S": {"maxCapWatts": "300"}}'}, "L40S.maxCapWatts: a number of watts"),
        ({"GPU_MODEL_CAPS_JSON": '{"L40S": {"maxCapWatts": 300, "minCapWatts": 301}}'}, "is above maxCapWatts"),
        ({"GPU_MODEL_CAPS_JSON": '{"L40S": {"maxCapWatts": 300, "max": 301}}'}, "expected"),
        ({"RACK_CAPACITY_WATTS_JSON": '{"r1": 0}'}, "RACK_CAPACITY_WATTS_JSON: r1"),
        ({"QUEUE_HP_MIN": "5", "QUEUE_HP_MAX": "4"}, "QUEUE_HP_MIN"),
        ({"CPU_ECO_CAP_PCT_OF_MAX": "0"}, "1..100"),
        ({"ENERGY_SLOWDOWN_BOUND_STANDARD": "0.9"}, "ENERGY_SLOWDOWN_BOUND_STANDARD"),
        (
            {"ENERGY_GPU_UTILIZATION_LOW_PCT": "60", "ENERGY_GPU_UTILIZATION_HIGH_PCT": "50"},
            "ENERGY_GPU_UTILIZATION_LOW_PCT (60) must be at most ENERGY_GPU_UTILIZATION_HIGH_PCT (50)",
        ),
        ({"DRAIN_ESCALATION": "kill"}, "hold"),
        ({"RECONCILE_INTERVAL": "3m"}, "RECONCILE_INTERVAL (180 s) must be at most half of TWIN_STALENESS_THRESHOLD"),
        ({"POWER_POLL_INTERVAL": "2m"}, "POWER_POLL_INTERVAL (120 s) must be below POWER_STALE_AFTER"),
    ],
)
def test_what_cannot_be_is_refused_by_name(environment, words):
    settings, output = read(**environment)
    assert settings is None
    assert words in output


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        (
            {"POLICY_TYPE": "static_partitoin"},
            f"POLICY_TYPE: unknown policy 'static_partitoin'; allowed: {', '.join(sorted(POLICIES))}",
        ),
        ({"COOLING_MODEL": "ice"}, "COOLING_MODEL: unknown cooling model 'ice'; allowed: linear"),
        ({"METRICS_ADDR": "8081"}, "invalid address"),
        ({"PROMETHEUS_USERNAME": "joulie"}, "a user name and a password file go together"),
        ({"PROMETHEUS_CA_FILE": "/no/such/file"}, "/no/such/file"),
    ],
)
def test_the_program_does_not_start_with_what_it_does_not_know(environment, words):
    result = CliRunner(env=environment).invoke(operator, [])
    assert result.exit_code == 2
    assert words in result.output


def test_plug_ins_are_found_by_entry_point(monkeypatch):
    entries = importlib.metadata.EntryPoints(
        [
            importlib.metadata.EntryPoint("mine", "joulie.domain.policies:StaticPartition", "joulie.policies"),
            importlib.metadata.EntryPoint("broken", "joulie.no_such_module:thing", "joulie.policies"),
            importlib.metadata.EntryPoint(
                "plant", "joulie.domain.cooling_stress:linear_cooling_stress", "joulie.cooling_models"
            ),
        ]
    )
    monkeypatch.setattr(plugins, "entry_points", entries.select)
    assert plugins.policy("mine", PolicySettings()) == StaticPartition(PolicySettings())
    assert plugins.cooling_model("plant") is linear_cooling_stress
    with pytest.raises(plugins.PluginError, match="'broken'"):
        plugins.policy("broken", PolicySettings())
    with pytest.raises(ValueError, match=r"allowed: broken, energy_per_work, .*mine, "):
        plugins.policy("other", PolicySettings())
    assert plugins.cooling_model("linear") is linear_cooling_stress
    with pytest.raises(ValueError, match="unknown cooling model 'fmu'; allowed: linear, plant"):
        plugins.cooling_model("fmu")


@pytest.mark.parametrize(
    ("environment", "limits"),
    [
        ({}, True),
        ({"PROMETHEUS_ADDRESS": "none"}, False),
        ({"POLICY_TYPE": "static_partition"}, False),
        ({"POLICY_TYPE": "static_partition", "GPU_LIMITS": "true"}, True),
        ({"GPU_LIMITS": "False"}, False),
        ({"GPU_LIMITS": "auto", "POLICY_TYPE": "full_power"}, True),
    ],
)
def test_jobs_are_limited_by_default_where_nodes_are_not_and_progress_can_be_read(environment, limits):
    settings, _ = read(**environment)
    assert settings.policy_type == environment.get("POLICY_TYPE", "full_power")
    assert settings.limits_jobs is limits


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"GPU_LIMITS": "sometimes"}, "auto, true or false is expected"),
        ({"GPU_LIMITS": "true", "PROMETHEUS_ADDRESS": "none"}, "GPU_LIMITS needs PROMETHEUS_ADDRESS"),
    ],
)
def test_limits_of_jobs_that_cannot_be_are_refused(environment, words):
    settings, output = read(**environment)
    assert settings is None
    assert words in output


def test_bounds_of_energy_per_work_are_taken_as_they_are_said():
    settings, _ = read(ENERGY_GPU_UTILIZATION_LOW_PCT="40", ENERGY_GPU_UTILIZATION_HIGH_PCT="58")
    assert settings.policy.energy == EnergyBounds(1.02, 1.15, 0.40, 0.58, count_spread=True)
    settings, _ = read(ENERGY_SLOWDOWN_BOUND_STANDARD="1.3", ENERGY_COUNT_JOB_SPREAD="false")
    assert settings.policy.energy == EnergyBounds(1.02, 1.3, 0.2, 1.0, count_spread=False)
