"""`joulie grid best` and `joulie grid wait`, and the examples of pipelines that use them."""

import json
import shlex
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from joulie.apps.grid import pipelines
from joulie.apps.grid.main import grid
from support.command_lines import check

EXAMPLES = sorted((Path(__file__).parents[2] / "examples/pipelines").glob("*.yaml"))
STATIC = {"CARBON_SOURCES": "static", "CARBON_STATIC_INTENSITY": "150"}
MISSING = {"CARBON_SOURCES": "static"}
RUN = ["--duration", "1h", "--within", "6h", "--zone", "DE"]


def invoke(*arguments: str, **environment: str):
    return CliRunner().invoke(grid, arguments, env=environment)


# The commands live in real time.
HOUR = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)  # noqa: TID251


@pytest.fixture
def forecast(tmp_path: Path) -> dict[str, str]:
    """A file whose next hours are dirty but for one, three hours from now."""
    values = [400.0] * 24 + [400.0, 390.0, 380.0, 100.0] + [395.0] * 24
    rows = [f"{HOUR + timedelta(hours=at - 24):%Y-%m-%dT%H:%M:%SZ},DE,{value}" for at, value in enumerate(values)]
    path = tmp_path / "intensity.csv"
    path.write_text("\n".join(["datetime,zone,carbon_intensity", *rows]) + "\n")
    return {"CARBON_SOURCES": "file", "CARBON_FILE_PATH": str(path), "CARBON_FILE_OPTIONS": '{"forecast": true}'}


def test_the_best_time_is_in_the_cleanest_hour(forecast: dict[str, str]) -> None:
    result = invoke("best", *RUN, "-o", "json", **forecast)
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert answer["start"] == f"{HOUR + timedelta(hours=3):%Y-%m-%dT%H:%M:%SZ}"
    assert (answer["zone"], answer["reason"]) == ("DE", "window")
    assert answer["carbonBestGPerKwh"] == pytest.approx(100.0)
    assert answer["carbonNowGPerKwh"] > 380.0
    assert yaml.safe_load(invoke("best", *RUN, "-o", "yaml", **forecast).stdout)["start"] == answer["start"]
    table = invoke("best", *RUN, **forecast)
    assert table.stdout.startswith(answer["start"])
    assert "100 gCO2eq/kWh then" in table.stdout


def test_it_is_done_within_the_time_allowed(forecast: dict[str, str]) -> None:
    result = invoke("best", "--duration", "2h", "--within", "2h", "--zone", "DE", "-o", "json", **forecast)
    assert (result.exit_code, json.loads(result.stdout)["startInS"]) == (0, 0.0)


def test_a_file_without_zones_is_of_the_zone_that_is_asked_for(forecast: dict[str, str]) -> None:
    path = Path(forecast["CARBON_FILE_PATH"])
    path.write_text(path.read_text().replace(",DE,", ",").replace(",zone,", ","))
    result = invoke("best", *RUN, "-o", "json", **forecast)
    assert (result.exit_code, json.loads(result.stdout)["reason"]) == (0, "window"), result.output


def test_without_a_signal_the_time_is_now_and_the_exit_status_says_so() -> None:
    best = invoke("best", *RUN, "-o", "json", **MISSING)
    assert (best.exit_code, json.loads(best.stdout)["reason"]) == (3, "missing")
    wait = invoke("wait", *RUN, **MISSING)
    assert wait.exit_code == 3
    assert "starts: carbon intensity of DE is not known" in wait.stderr


def test_when_the_grid_is_clean_nobody_waits() -> None:
    assert invoke("wait", *RUN, "--mode", "threshold", **STATIC).exit_code == 0


def test_the_latest_start_ends_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines, "LONGEST_SLEEP_S", 0.01)
    dirty = STATIC | {"CARBON_STATIC_INTENSITY": "500"}
    result = invoke("wait", "--duration", "1s", "--within", "1200ms", "--mode", "threshold", **dirty)
    assert result.exit_code == 4
    assert "waits: carbon intensity 500" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["best"],
        ["best", "--duration", "2h", "--within", "1h"],
        ["best", "--duration", "soon", "--within", "1h"],
        ["best", "--duration", "0", "--within", "1h"],
        ["best", *RUN[:4], "--zone", "no zone"],
        ["wait", *RUN, "--mode", "guess"],
    ],
)
def test_a_usage_error_runs_nothing(arguments: list[str]) -> None:
    assert invoke(*arguments, **STATIC).exit_code == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "status"),
    [
        ([sys.executable, "-c", "import sys; print('ran'); sys.exit(7)", "--within", "-h"], 7),
        (["/nonexistent/command"], 127),
        (["/"], 126),
    ],
)
@pytest.mark.parametrize("environment", [STATIC, MISSING], ids=["clean", "no signal"])
def test_the_commands_exit_status_is_handed_through(
    command: list[str], status: int, environment: dict[str, str]
) -> None:
    line = [sys.executable, "-m", "joulie", "grid", "wait", *RUN, "--", *command]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    assert done.stdout == ("ran\n" if status == 7 else "")
    assert "starts: " in done.stderr


# ---- examples


def command_lines(value: object) -> list[str]:
    """The command lines of ``joulie`` in a pipeline, as lines of scripts or as arguments of the image."""
    if isinstance(value, dict):
        if value.get("args", [""])[0] == "grid" and "joulie" in value["image"]:
            return [shlex.join(["joulie", *value["args"]])]
        return [line for one in value.values() for line in command_lines(one)]
    if isinstance(value, list):
        return [line for one in value for line in command_lines(one)]
    return [value] if isinstance(value, str) and value.startswith("joulie ") else []


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_the_command_lines_of_the_examples_are_accepted(example: Path) -> None:
    lines = command_lines(yaml.safe_load(example.read_text()))
    assert lines
    for line in lines:
        check(line.partition(" -- ")[0])


def test_there_is_an_example_for_each_system() -> None:
    assert [path.stem for path in EXAMPLES] == ["argo-workflow", "github-action", "gitlab-ci"]
