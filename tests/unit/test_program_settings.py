from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from joulie.domain.durations import duration_s
from joulie.program.settings import Kind, ProgramSettings, all_settings, setting, settings_options


@dataclass(frozen=True, kw_only=True)
class Example(ProgramSettings):
    interval_s: float = setting("INTERVAL", "20s", kind=Kind.DURATION, minimum=1.0, help="How often.")
    policy: str = setting("POLICY_TYPE", "one", kind=Kind.CHOICE, choices=("one", "two"), help="Which.")
    dry: bool = setting("SIMULATE_ONLY", "false", kind=Kind.BOOLEAN, help="No writes.")
    share: float = setting("SHARE", "0.5", kind=Kind.NUMBER, minimum=0.0, maximum=1.0, help="A share.")
    caps: dict[str, Any] = setting("CAPS_JSON", "{}", kind=Kind.JSON, help="Caps.")

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
        ("INTERVAL", "10ms", "'INTERVAL'): 10ms is not allowed; at least 1 s"),
        ("SHARE", "nan", "'SHARE'): nan is not allowed; 0..1"),
        ("SHARE", "1.5", "'SHARE'): 1.5 is not allowed; 0..1"),
        ("CAPS_JSON", "[1]", "'CAPS_JSON'): a JSON object is expected"),
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
    assert "a mapping of settings is expected" in invoke("--config", str(file))[0].output


def test_settings_that_contradict_each_other_are_refused() -> None:
    result, _ = invoke("--simulate-only", "--policy-type", "two")
    assert result.exit_code == 2
    assert "SIMULATE_ONLY must be false" in result.output


def test_help_says_default_variable_and_range() -> None:
    help_text = " ".join(invoke("--help")[0].output.split())
    assert "How often. [at least 1 s] [env var: INTERVAL; default: 20s]" in help_text
    assert "default: no-simulate-only" in help_text


def test_all_settings_come_with_their_fields() -> None:
    names = {name: spec.name for name, spec in all_settings(Example)}
    assert names["interval_s"] == "INTERVAL"
    assert names["log_level"] == "LOG_LEVEL"


@given(st.integers(0, 99), st.integers(0, 59), st.integers(0, 59))
def test_durations_add_up(hours: int, minutes: int, seconds: int) -> None:
    assert duration_s(f"{hours}h{minutes}m{seconds}s") == hours * 3600 + minutes * 60 + seconds


@pytest.mark.parametrize("text", ["", "20", "s", "-1s", "1x", "1m 30s", "inf"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        duration_s(text)
