import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from joulie.adapters.prometheus.settings import PrometheusSettings
from joulie.apps.grid.settings import ControllerSettings
from joulie.domain.durations import duration_s
from joulie.program import tracing
from joulie.program.settings import ProgramSettings, all_settings, settings_from, settings_options
from joulie.settings import boolean, choice, duration, group, json_object, listed, number, text


@dataclass(frozen=True, kw_only=True)
class Example(ProgramSettings):
    interval_s: float = duration("INTERVAL", "20s", "How often.", minimum=1.0)
    policy: str = choice("POLICY_TYPE", "one", "Which.", ("one", "two"))
    dry: bool = boolean("SIMULATE_ONLY", False, "No writes.")
    share: float = number("SHARE", "0.5", "A share.", minimum=0.0, maximum=1.0)
    caps: dict[str, Any] = json_object("CAPS_JSON", "Caps.")

    def __post_init__(self) -> None:
        if self.dry and self.policy == "two":
            raise ValueError("POLICY_TYPE two writes; SIMULATE_ONLY must be false")


def invoke(*arguments: str, **environment: str) -> tuple[Result, Example | None]:
    seen: list[Example] = []

    @click.command()
    @settings_options(Example)
    def command(settings: Example) -> None:
        seen.append(settings)

    result = CliRunner().invoke(command, arguments, env=environment)
    return result, seen[0] if seen else None


def test_defaults_are_typed() -> None:
    _, settings = invoke()
    assert settings == Example()
    assert settings is not None
    assert (settings.interval_s, settings.dry, settings.caps) == (20.0, False, {})


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("INTERVAL: 1m\nSHARE: 0.25\nPOLICY_TYPE: two\nCAPS_JSON: {H100: {maxCapWatts: 500}}\n")
    _, settings = invoke("--config", str(file), "--policy-type", "one", INTERVAL="2m", POLICY_TYPE="two")
    assert settings == Example(interval_s=120.0, share=0.25, policy="one", caps={"H100": {"maxCapWatts": 500}})


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("POLICY_TYPE", "three", "'POLICY_TYPE'): 'three' is not one of 'one', 'two'"),
        ("INTERVAL", "20", "'INTERVAL'): '20' is not a duration"),
        ("INTERVAL", "10ms", "'INTERVAL'): 10ms is out of range: expected at least 1 s"),
        ("SHARE", "nan", "'SHARE'): nan is out of range: expected 0..1"),
        ("SHARE", "1.5", "'SHARE'): 1.5 is out of range: expected 0..1"),
        ("CAPS_JSON", "[1]", "'CAPS_JSON'): expected a JSON object"),
        ("SIMULATE_ONLY", "perhaps", "'SIMULATE_ONLY')"),
    ],
)
def test_a_wrong_value_names_the_variable_and_what_is_allowed(variable: str, value: str, message: str) -> None:
    result, settings = invoke(**{variable: value})
    assert settings is None
    assert result.exit_code == 2
    assert message in result.output


def test_a_wrong_key_in_the_file_is_refused_with_the_nearest(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("INTERVALL: 1m\n")
    result, _ = invoke("--config", str(file))
    assert result.exit_code == 2
    assert "unknown setting INTERVALL; did you mean INTERVAL?" in result.output


def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("- INTERVAL\n")
    assert "expected a mapping of settings" in invoke("--config", str(file))[0].output


def test_settings_that_contradict_each_other_are_refused() -> None:
    result, _ = invoke("--simulate-only", "--policy-type", "two")
    assert result.exit_code == 2
    assert "SIMULATE_ONLY must be false" in result.output


def test_help_says_default_variable_and_range() -> None:
    help_text = " ".join(invoke("--help")[0].output.split())
    assert "How often. [at least 1 s] [env var: INTERVAL; default: 20s]" in help_text
    assert "default: no-simulate-only" in help_text


def test_all_settings_are_found_by_name() -> None:
    assert list(all_settings(Example))[-5:] == ["INTERVAL", "POLICY_TYPE", "SIMULATE_ONLY", "SHARE", "CAPS_JSON"]
    assert "LOG_LEVEL" in all_settings(Example)


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Limits:
    low: float = 1.0
    high: float = 2.0
    colours: tuple[Colour, ...] = ()

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError("LOW must be at most HIGH")


HIGH = number("HIGH", "20", "Highest.")


def colours(names: str) -> tuple[Colour, ...]:
    return tuple(Colour(name) for name in listed(names))


@dataclass(frozen=True, kw_only=True)
class Grouped(ProgramSettings):
    high: float = HIGH
    key: str | None = text("KEY", None, "A secret.", secret=True)
    colour: Colour = choice("COLOUR", Colour.RED, "Which.", Colour)
    inner: dict[str, Limits] = group(
        dict,
        limits=group(
            Limits,
            low=number("LOW", "10", "Lowest.", to=lambda low: low / 10.0),
            high=HIGH,
            colours=text("COLOURS", "red, blue", "Several.", to=colours),
        ),
    )


def test_a_group_passes_settings_by_name_and_two_may_share_one() -> None:
    assert Grouped().inner == {"limits": Limits(1.0, 20.0, (Colour.RED, Colour.BLUE))}
    settings = settings_from(Grouped, {"LOW": "5", "HIGH": "3", "COLOUR": "blue", "KEY": "hush"})
    assert (settings.high, settings.colour) == (3.0, Colour.BLUE)
    assert settings.inner["limits"] == Limits(0.5, 3.0, (Colour.RED, Colour.BLUE))
    assert list(all_settings(Grouped)).count("HIGH") == 1
    assert settings.key == "hush"
    assert "hush" not in repr(settings)


def test_options_of_groups_have_defaults() -> None:
    seen: list[Grouped] = []

    @click.command()
    @settings_options(Grouped)
    def command(settings: Grouped) -> None:
        seen.append(settings)

    result = CliRunner().invoke(command, ["--high", "30"])
    assert result.exit_code == 0, result.output
    assert (seen[0].colour, seen[0].inner["limits"].high) == (Colour.RED, 30.0)


@pytest.mark.parametrize(
    ("environment", "message"),
    [({"HIGH": "0.5"}, "LOW must be at most HIGH"), ({"COLOURS": "red,green"}, "COLOURS: 'green' is not a valid")],
)
def test_what_a_group_refuses_names_the_setting(environment: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        settings_from(Grouped, environment)


@given(st.integers(0, 99), st.integers(0, 59), st.integers(0, 59))
def test_durations_add_up(hours: int, minutes: int, seconds: int) -> None:
    assert duration_s(f"{hours}h{minutes}m{seconds}s") == hours * 3600 + minutes * 60 + seconds


@pytest.mark.parametrize("text", ["", "20", "s", "-1s", "1x", "1m 30s", "inf"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        duration_s(text)


def test_g14_prometheus_url_is_read_where_the_address_is_not_set() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Querying(PrometheusSettings, ProgramSettings):
        pass

    url, address = {"PROMETHEUS_URL": "http://gardener:9090"}, {"PROMETHEUS_ADDRESS": "http://own:9090"}
    assert settings_from(Querying, {}).prometheus_address == "http://prometheus-operated.monitoring:9090"
    assert settings_from(Querying, url).prometheus_address == "http://gardener:9090"
    assert settings_from(Querying, {**address, **url}).prometheus_address == "http://own:9090"
    seen: list[str] = []

    @click.command()
    @settings_options(Querying)
    def command(settings: Querying) -> None:
        seen.append(settings.prometheus_address)

    for environment in (url, {**url, **address}):
        assert CliRunner().invoke(command, [], env=environment).exit_code == 0
    assert seen == ["http://gardener:9090", "http://own:9090"]


def test_g14_tracing_is_enabled_by_its_setting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    tracing.configure("joulie-grid", enabled=settings_from(ControllerSettings, {}).enable_tracing)
    assert not caplog.records
    tracing.configure(
        "joulie-grid", enabled=settings_from(ControllerSettings, {"ENABLE_TRACING": "true"}).enable_tracing
    )
    assert "pip install joulie[tracing]" in caplog.text
