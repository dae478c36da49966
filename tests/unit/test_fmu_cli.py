import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from joulie_lab.apps.fmu import fmu


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(fmu, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "plant.fmu"
    result = invoke("build", "--output", path, "--set", "coil_capacity_w=3e6", "--set", "rated_cop=3.5")
    assert result.exit_code == 0, result.output
    assert result.stderr == f"wrote {path}\n"
    return path


@pytest.mark.slow
def test_build_then_validate(built: Path) -> None:
    result = invoke("validate", built)
    assert (result.exit_code, result.stdout) == (0, f"{built}: no problems found\n")


@pytest.mark.slow
def test_describe_for_people(built: Path) -> None:
    lines = invoke("describe", built).stdout.splitlines()
    assert ["FMI", "version:", "2.0"] in [line.split() for line in lines]
    assert ["cooling", "plant:", "yes"] in [line.split() for line in lines]
    assert ["coil_capacity_w", "parameter", "tunable", "Real", "W", "3000000.0"] in [line.split()[:6] for line in lines]


@pytest.mark.slow
def test_describe_for_machines(built: Path) -> None:
    described = json.loads(invoke("describe", built, "-o", "json").stdout)
    assert described == yaml.safe_load(invoke("describe", built, "-o", "yaml").stdout)
    assert described["capabilities"]["canGetAndSetFMUstate"] is True
    assert described["interfaces"] == ["co-simulation"]
    assert described["has_sources"] is True
    assert described["default_step_s"] == 60.0
    assert described["plant_problem"] is None
    assert {"name": "Q_IT", "causality": "input", "unit": "W"}.items() <= described["variables"][0].items()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["describe", "validate"])
def test_a_truncated_fmu_is_one_clear_line(built: Path, tmp_path: Path, command: str) -> None:
    cut = tmp_path / "cut.fmu"
    cut.write_bytes(built.read_bytes()[:5000])
    result = invoke(command, cut)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"joulie: error: {cut}: not a complete zip archive, truncated or damaged")
    assert result.stderr.count("\n") == 1


def test_a_missing_file_is_one_clear_line(tmp_path: Path) -> None:
    result = invoke("describe", tmp_path / "none.fmu")
    assert (result.exit_code, result.stderr) == (2, f"joulie: error: {tmp_path / 'none.fmu'}: no such file\n")


def test_validate_lists_problems(tmp_path: Path) -> None:
    path = tmp_path / "empty.fmu"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("modelDescription.xml", '<fmiModelDescription fmiVersion="2.0"/>')
    result = invoke("validate", path)
    assert result.exit_code == 1
    assert "is required but missing" in result.stdout


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("coil_capacity=1", "no parameter 'coil_capacity'; try coil_capacity_w"),
        ("rated_cop=three", "'three' is not a number"),
        ("rated_cop", "'' is not a number"),
        ("rated_cop=nan", "rated_cop: must be finite"),
        ("fan_efficiency=2", "fan_efficiency: must be within [0, 1]"),
    ],
)
def test_settings_that_do_not_serve(tmp_path: Path, setting: str, says: str) -> None:
    result = invoke("build", "--output", tmp_path / "plant.fmu", "--set", setting)
    assert result.exit_code == 2
    assert result.stderr.startswith("joulie: error: --set ")
    assert says in result.stderr
    assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_target_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    result = invoke("build", "--output", tmp_path / "nowhere" / "plant.fmu")
    assert result.exit_code == 2
    assert result.stderr.startswith("joulie: error: ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.usefixtures("unmeasured")
def test_the_module_is_light_to_import() -> None:
    code = "import sys, joulie_lab.apps.fmu; print([m for m in ('numpy', 'fmpy', 'yaml', 'lxml') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
