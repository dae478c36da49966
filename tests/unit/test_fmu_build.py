"""The exported plant: valid, faithful, settable, and made of its own sources."""

import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import fmpy
import numpy as np
import pytest
from fmpy.fmi1 import FMICallException
from fmpy.fmi2 import FMU2Slave
from fmpy.validation import validate_fmu

from joulie_lab.adapters.fmu import FmuPlant
from joulie_lab.adapters.fmu import build as build_module
from joulie_lab.adapters.fmu.build import COMPILE_FLAGS, FmuBuildError, build_fmu
from joulie_lab.adapters.fmu.instance import _fmi2_callbacks
from joulie_lab.simulation.climate import Climate
from joulie_lab.simulation.cooling import DxPlant, run_plant
from joulie_lab.simulation.dx_plant import DxParameters

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def dx_fmu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_fmu(tmp_path_factory.mktemp("fmu") / "dx_plant.fmu")


@pytest.fixture
def instance(dx_fmu: Path, tmp_path: Path) -> Iterator[FMU2Slave]:
    """A bare instance under FMPy, before initialization; what it logs is dropped."""
    description = fmpy.read_model_description(str(dx_fmu))
    folder = fmpy.extract(str(dx_fmu), str(tmp_path / "unpacked"))
    slave = FMU2Slave(guid=description.guid, unzipDirectory=str(folder), modelIdentifier="dx_plant")
    callbacks, _ = _fmi2_callbacks(lambda _status, _message: None)
    slave.instantiate(callbacks=callbacks)
    slave.references = {variable.name: variable.valueReference for variable in description.modelVariables}
    yield slave
    slave.freeInstance()


def initialize(slave: FMU2Slave) -> None:
    slave.setupExperiment()
    slave.enterInitializationMode()
    slave.exitInitializationMode()


def read(slave: FMU2Slave) -> list[float]:
    return slave.getReal([slave.references[name] for name in ("P_cooling", "T_indoor", "COP")])


def write(slave: FMU2Slave, **values: float) -> None:
    slave.setReal([slave.references[name] for name in values], list(values.values()))


def two_days(mean_c: float, load_w: float) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    it_w = load_w * (0.6 + 0.4 * rng.random(2880))
    return it_w, Climate(mean_c=mean_c).outdoor_k(2880, 60.0, rng)


def test_passes_validation(dx_fmu: Path) -> None:
    assert validate_fmu(str(dx_fmu)) == []


@pytest.mark.parametrize(("mean_c", "load_w"), [(23.0, 2.6e6), (16.0, 4e5), (5.0, 2e5), (38.0, 3e6)])
def test_follows_the_built_in_plant_over_two_days(dx_fmu: Path, mean_c: float, load_w: float) -> None:
    it_w, outdoor_k = two_days(mean_c, load_w)
    ours = run_plant(DxPlant(), it_w, outdoor_k, 60.0)
    theirs = run_plant(FmuPlant(dx_fmu), it_w, outdoor_k, 60.0)
    np.testing.assert_allclose(theirs.cooling_w, ours.cooling_w, rtol=1e-6)
    np.testing.assert_allclose(theirs.room_k, ours.room_k, rtol=1e-6)
    np.testing.assert_allclose(theirs.cop, ours.cop, rtol=1e-6)


def test_start_values_and_parameters_are_two_ways_to_the_same_plant(dx_fmu: Path, tmp_path: Path) -> None:
    changes = {"coil_capacity_w": 4.5e6, "start_k": 295.0, "minimum_outdoor_air": 0.0, "room_height_m": 6.0}
    baked = build_fmu(tmp_path / "baked.fmu", DxParameters(**changes))
    it_w, outdoor_k = (series[:200] for series in two_days(16.0, 1e6))
    expected = run_plant(DxPlant(DxParameters(**changes)), it_w, outdoor_k, 60.0)
    for plant in (FmuPlant(baked), FmuPlant(dx_fmu, parameters=changes)):
        series = run_plant(plant, it_w, outdoor_k, 60.0)
        np.testing.assert_allclose(series.cooling_w, expected.cooling_w, rtol=1e-9)
        np.testing.assert_allclose(series.room_k, expected.room_k, rtol=1e-9)


def test_several_instances_at_once_do_not_share_state(dx_fmu: Path) -> None:
    with FmuPlant(dx_fmu) as one, FmuPlant(dx_fmu) as other:
        cold = one.step(0.0, 250.0, 3600.0)
        assert other.step(0.0, 298.15, 3600.0).room_k == 298.15
        assert cold.room_k < 260.0


def test_can_be_compiled_again_from_its_own_sources(dx_fmu: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(dx_fmu) as archive:
        archive.extractall(tmp_path)
    binary = next((tmp_path / "binaries").glob("*/*"))
    binary.unlink()
    sources = tmp_path / "sources"
    command = ["cc", *COMPILE_FLAGS, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-o", str(binary)]
    subprocess.run([*command, str(sources / "dx_plant.c"), "-lm"], check=True, cwd="/")
    again = tmp_path / "again.fmu"
    with zipfile.ZipFile(again, "w") as archive:
        for path in (tmp_path / "modelDescription.xml", binary):
            archive.write(path, path.relative_to(tmp_path))
    it_w, outdoor_k = (series[:100] for series in two_days(16.0, 1e6))
    series = [run_plant(FmuPlant(path), it_w, outdoor_k, 60.0).cooling_w.tolist() for path in (dx_fmu, again)]
    assert series[0] == series[1]


def test_the_same_parameters_give_the_same_file(dx_fmu: Path, tmp_path: Path) -> None:
    again = build_fmu(tmp_path / "again.fmu")
    assert again.read_bytes() == dx_fmu.read_bytes()
    other = build_fmu(tmp_path / "other.fmu", DxParameters(rated_cop=4.0))
    guids = {fmpy.read_model_description(str(path)).guid for path in (dx_fmu, other)}
    assert len(guids) == 2


def test_state_can_be_saved_restored_and_reset(instance: FMU2Slave) -> None:
    initialize(instance)
    write(instance, Q_IT=1e5, T_outdoor=280.0)
    start = read(instance)
    instance.doStep(0.0, 600.0)
    saved, halfway = instance.getFMUstate(), read(instance)
    stored = instance.serializeFMUstate(saved)
    instance.doStep(600.0, 600.0)
    assert read(instance) != halfway
    instance.setFMUstate(saved)
    assert read(instance) == halfway
    instance.doStep(600.0, 600.0)
    restored = instance.deSerializeFMUstate(stored)
    instance.setFMUstate(restored)
    assert read(instance) == halfway
    instance.freeFMUstate(saved)
    instance.freeFMUstate(restored)
    instance.reset()
    initialize(instance)
    write(instance, Q_IT=1e5, T_outdoor=280.0)
    assert read(instance) == start


def test_tunable_parameters_change_while_stepping_fixed_ones_do_not(instance: FMU2Slave) -> None:
    initialize(instance)
    write(instance, Q_IT=2e6, T_outdoor=300.0)
    instance.doStep(0.0, 60.0)
    before, *_ = read(instance)
    write(instance, rated_cop=6.0)
    assert read(instance)[0] < before
    with pytest.raises(FMICallException, match="fmi2SetReal failed with status 3"):
        write(instance, room_length_m=10.0)


@pytest.mark.parametrize("bad", [{"Q_IT": float("nan")}, {"T_outdoor": 0.0}, {"fan_efficiency": 1.5}])
def test_impossible_values_are_an_error_of_the_step(instance: FMU2Slave, bad: dict[str, float]) -> None:
    initialize(instance)
    write(instance, **bad)
    with pytest.raises(FMICallException, match="fmi2DoStep failed with status 3"):
        instance.doStep(0.0, 60.0)


def test_calls_out_of_order_are_errors(instance: FMU2Slave) -> None:
    with pytest.raises(FMICallException):
        instance.doStep(0.0, 60.0)


def test_without_a_compiler_the_error_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(FmuBuildError, match="no C compiler found"):
        build_fmu(tmp_path / "dx.fmu")
    assert list(tmp_path.iterdir()) == []


def test_a_compiler_that_fails_is_quoted_and_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_module, "COMPILE_FLAGS", (*COMPILE_FLAGS, "-include", "missing.h"))
    target = tmp_path / "dx.fmu"
    target.write_text("old")
    with pytest.raises(FmuBuildError, match=r"failed with status 1: .*missing\.h"):
        build_fmu(target)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(FmuBuildError, match=r"the folder .* does not exist"):
        build_fmu(tmp_path / "nowhere" / "dx.fmu")


def test_a_target_that_is_a_folder_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(FmuBuildError, match="cannot be written"):
        build_fmu(tmp_path / "taken")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
