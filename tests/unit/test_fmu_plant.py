"""FMUs of others: good ones, broken ones, and ones that break half-way. Small real FMUs are compiled for it."""

import subprocess
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import fmpy
import numpy as np
import pytest

from joulie.domain.units import InvalidQuantityError
from joulie_lab.adapters.fmu import FmuMapping, FmuPlant
from joulie_lab.adapters.fmu import archive as archive_module
from joulie_lab.simulation.cooling import run_plant
from joulie_lab.simulation.cooling_plant import CoolingPlantError

SOURCES = Path(__file__).parent.parent / "fmu_sources"
HEADERS = Path(fmpy.__file__).parent / "c-code"
UNITS = """
<Unit name="W"><BaseUnit kg="1" m="2" s="-3"/></Unit>
<Unit name="kW"><BaseUnit kg="1" m="2" s="-3" factor="1000"/></Unit>
<Unit name="K"><BaseUnit K="1"/></Unit>
<Unit name="degC"><BaseUnit K="1" offset="273.15"/></Unit>
<Unit name="MW"/><Unit name="furlong"/><Unit name="1"/>
"""
VARIABLES = ("Q_IT", "T_outdoor", "P_cooling", "T_indoor", "COP")


def fmi2_description(
    *, kind: str = "CoSimulation", simulation: str = "", units: dict[str, str] | None = None, step: str = ""
) -> str:
    """The toy's modelDescription.xml."""
    names = {name: name for name in VARIABLES}
    lines = []
    for reference, name in enumerate(names):
        unit = {"Q_IT": "W", "T_outdoor": "K", "P_cooling": "W", "T_indoor": "K", "COP": "1"}[name]
        unit = (units or {}).get(name, unit)
        real = f'unit="{unit}"' if unit else ""
        causality, start = ("input", 'start="0"') if reference < 2 else ("output", "")
        lines.append(
            f'<ScalarVariable name="{name}" valueReference="{reference}" causality="{causality}">'
            f"<Real {real} {start}/></ScalarVariable>"
        )
    lines.append(
        '<ScalarVariable name="gain" valueReference="5" causality="parameter" variability="fixed">'
        '<Real start="1"/></ScalarVariable>'
        '<ScalarVariable name="mode" valueReference="6" causality="parameter" variability="fixed">'
        '<Integer start="1"/></ScalarVariable>'
    )
    unknowns = "".join(f'<Unknown index="{index}"/>' for index in (3, 4, 5))
    experiment = f'<DefaultExperiment stepSize="{step}"/>' if step else ""
    return (
        '<?xml version="1.0" encoding="UTF-8"?>'
        '<fmiModelDescription fmiVersion="2.0" modelName="toy" guid="{toy}" variableNamingConvention="flat">'
        f'<{kind} modelIdentifier="toy" {simulation}/><UnitDefinitions>{UNITS}</UnitDefinitions>{experiment}'
        f"<ModelVariables>{''.join(lines)}</ModelVariables>"
        f"<ModelStructure><Outputs>{unknowns}</Outputs><InitialUnknowns>{unknowns}</InitialUnknowns></ModelStructure>"
        "</fmiModelDescription>"
    )


def fmi3_description(*, simulation: str = "", discrete_inputs: bool = False) -> str:
    """The FMI 3.0 toy's modelDescription.xml."""
    variability = "discrete" if discrete_inputs else "continuous"
    inputs = "".join(
        f'<Float64 name="{name}" valueReference="{reference}" causality="input" variability="{variability}" '
        f'unit="{unit}" start="0"/>'
        for reference, (name, unit) in enumerate((("Q_IT", "W"), ("T_outdoor", "K")), start=1)
    )
    outputs = "".join(
        f'<Float64 name="{name}" valueReference="{reference}" causality="output" unit="{unit}"/>'
        for reference, (name, unit) in enumerate((("P_cooling", "W"), ("T_indoor", "K"), ("COP", "1")), start=3)
    )
    structure = "".join(f'<{tag} valueReference="{i}"/>' for tag in ("Output", "InitialUnknown") for i in (3, 4, 5))
    return (
        '<?xml version="1.0" encoding="UTF-8"?>'
        '<fmiModelDescription fmiVersion="3.0" modelName="toy" instantiationToken="{toy}">'
        f'<CoSimulation modelIdentifier="toy" {simulation}/><UnitDefinitions>{UNITS}'
        "</UnitDefinitions><ModelVariables>"
        f'<Float64 name="time" valueReference="0" causality="independent" variability="continuous"/>{inputs}{outputs}'
        f"</ModelVariables><ModelStructure>{structure}</ModelStructure></fmiModelDescription>"
    )


def compile_toy(folder: Path, version: int, *macros: str) -> Path:
    """Compile one of the toys with the given macros."""
    library = folder / f"toy{fmpy.sharedLibraryExtension}"
    sources = [str(SOURCES / f"toy_fmi{version}.c"), str(SOURCES / f"toy_fmi{version}_unused.c")]
    flags = ["-std=c99", "-shared", "-fPIC", f"-I{HEADERS}", *(f"-D{macro}" for macro in macros)]
    subprocess.run(["cc", *flags, "-o", str(library), *sources, "-lm"], check=True)
    return library


def pack(path: Path, description: str, library: Path | None = None, **extra: str) -> Path:
    """Zip an FMU."""
    platform = fmpy.platform if 'fmiVersion="2.0"' in description else fmpy.platform_tuple
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("modelDescription.xml", description)
        name = f"binaries/{platform}/toy{fmpy.sharedLibraryExtension}"
        if library is None:
            archive.writestr(name, "not loaded in this test")
        else:
            archive.write(library, name)
        for member, content in extra.items():
            archive.writestr(member, content)
    return path


def toy2(folder: Path, *macros: str, **description: Any) -> Path:
    return pack(folder / "toy.fmu", fmi2_description(**description), compile_toy(folder, 2, *macros))


def toy3(folder: Path, *macros: str, **description: Any) -> Path:
    return pack(folder / "toy.fmu", fmi3_description(**description), compile_toy(folder, 3, *macros))


VARIABLE_STEPS = 'canHandleVariableCommunicationStepSize="true"'


@pytest.fixture(autouse=True)
def _temporary_folders_in_sight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked = tmp_path / "unpacked"
    unpacked.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(unpacked))


def nothing_left(tmp_path: Path) -> bool:
    return not list((tmp_path / "unpacked").iterdir())


# --- files that are refused before a run ------------------------------------------------------------------------------


def test_a_good_file_is_accepted_with_nothing_to_say(tmp_path: Path) -> None:
    assert FmuPlant(pack(tmp_path / "toy.fmu", fmi2_description())).notes == ()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CoolingPlantError, match=r"none\.fmu: no such file"):
        FmuPlant(tmp_path / "none.fmu")


def test_a_file_that_is_no_archive(tmp_path: Path) -> None:
    path = tmp_path / "text.fmu"
    path.write_text("hello")
    with pytest.raises(CoolingPlantError, match="not a complete zip archive"):
        FmuPlant(path)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_truncated_file(tmp_path: Path, share: float) -> None:
    whole = pack(tmp_path / "toy.fmu", fmi2_description()).read_bytes()
    cut = tmp_path / "cut.fmu"
    cut.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(CoolingPlantError, match=r"cut\.fmu: not a complete zip archive, truncated or damaged"):
        FmuPlant(cut)


def test_a_damaged_member_is_found_when_it_is_unpacked(tmp_path: Path) -> None:
    path = pack(tmp_path / "toy.fmu", fmi2_description())
    path.write_bytes(path.read_bytes().replace(b"not loaded in this test", b"not loaded in that test"))
    with pytest.raises(CoolingPlantError, match="truncated or damaged"):
        FmuPlant(path).__enter__()
    assert nothing_left(tmp_path)


def test_an_archive_without_description(tmp_path: Path) -> None:
    path = tmp_path / "photos.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("cat.txt", "meow")
    with pytest.raises(CoolingPlantError, match=r"there is no modelDescription\.xml"):
        FmuPlant(path)


@pytest.mark.parametrize(
    ("description", "says"),
    [
        ("<not xml", r"modelDescription\.xml cannot be read"),
        ('<fmiModelDescription fmiVersion="2.0"/>', r"invalid modelDescription\.xml"),
        ('<fmiModelDescription fmiVersion="9.9"/>', "Unsupported FMI version"),
        (fmi2_description(kind="ModelExchange"), "provides model exchange only; export it for co-simulation"),
    ],
)
def test_descriptions_that_do_not_serve(tmp_path: Path, description: str, says: str) -> None:
    with pytest.raises(CoolingPlantError, match=says):
        FmuPlant(pack(tmp_path / "toy.fmu", description))


def test_a_missing_variable_names_close_ones(tmp_path: Path) -> None:
    path = pack(tmp_path / "toy.fmu", fmi2_description())
    with pytest.raises(CoolingPlantError, match=r"no variable P_cool \(close: P_cooling\)"):
        FmuPlant(path, FmuMapping(cooling_w="P_cool"))
    with pytest.raises(CoolingPlantError, match=r"no variable zzz \(inputs and outputs: Q_IT, T_outdoor"):
        FmuPlant(path, FmuMapping(cop="zzz"))


def test_variables_of_the_wrong_kind(tmp_path: Path) -> None:
    path = pack(tmp_path / "toy.fmu", fmi2_description())
    with pytest.raises(CoolingPlantError, match="P_cooling is output, but an input is needed"):
        FmuPlant(path, FmuMapping(it_w="P_cooling"))
    with pytest.raises(CoolingPlantError, match="Q_IT is input, but an output is needed"):
        FmuPlant(path, FmuMapping(cooling_w="Q_IT"))
    with pytest.raises(CoolingPlantError, match="mode is not a scalar Real"):
        FmuPlant(path, FmuMapping(cop="mode"))


@pytest.mark.parametrize(("name", "unit"), [("Q_IT", "K"), ("T_indoor", "W"), ("P_cooling", "furlong"), ("COP", "kW")])
def test_a_unit_of_another_quantity_is_refused(tmp_path: Path, name: str, unit: str) -> None:
    path = pack(tmp_path / "toy.fmu", fmi2_description(units={name: unit}))
    with pytest.raises(CoolingPlantError, match=f"variable {name} has unit {unit}, which cannot be converted to"):
        FmuPlant(path)


def test_a_missing_unit_is_assumed_and_said(tmp_path: Path) -> None:
    plant = FmuPlant(pack(tmp_path / "toy.fmu", fmi2_description(units={"T_indoor": ""})))
    assert plant.notes == ("T_indoor declares no unit: taken as K",)


def test_no_binary_for_this_platform(tmp_path: Path) -> None:
    path = tmp_path / "toy.fmu"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("modelDescription.xml", fmi2_description())
        archive.writestr("binaries/amiga68k/toy.library", "")
        archive.writestr("sources/toy.c", "")
    with pytest.raises(
        CoolingPlantError, match=r"no binary for this platform .*binaries for: amiga68k; it includes C so"
    ):
        FmuPlant(path)


@pytest.mark.parametrize("member", ["../evil.txt", "/evil.txt", "resources/../../evil.txt", "C:evil.txt", "a\\b.txt"])
def test_members_that_leave_the_folder_are_refused(tmp_path: Path, member: str) -> None:
    path = pack(tmp_path / "toy.fmu", fmi2_description(), **{member: "evil"})
    with pytest.raises(CoolingPlantError, match="points outside the archive"):
        FmuPlant(path)


def test_symbolic_links_are_refused(tmp_path: Path) -> None:
    path = pack(tmp_path / "toy.fmu", fmi2_description())
    link = zipfile.ZipInfo("resources/passwd")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(CoolingPlantError, match="is a symbolic link"):
        FmuPlant(path)


def test_unpacking_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_module, "MAX_UNPACKED_BYTES", 5000)
    path = pack(tmp_path / "toy.fmu", fmi2_description(), **{"resources/zeros": "0" * 5000})
    with pytest.raises(CoolingPlantError, match="more than 5000"):
        FmuPlant(path).__enter__()
    assert nothing_left(tmp_path)


def test_a_binary_that_cannot_be_loaded(tmp_path: Path) -> None:
    before = Path.cwd()
    with pytest.raises(CoolingPlantError, match="cannot be instantiated: Failed to load shared library"):
        FmuPlant(pack(tmp_path / "toy.fmu", fmi2_description())).__enter__()
    assert nothing_left(tmp_path)
    assert Path.cwd() == before


def test_parameters_are_checked(tmp_path: Path) -> None:
    path = pack(tmp_path / "toy.fmu", fmi2_description())
    with pytest.raises(CoolingPlantError, match=r"no variable gian \(close: gain\)"):
        FmuPlant(path, parameters={"gian": 1.0})
    with pytest.raises(CoolingPlantError, match="Q_IT is not a parameter but has causality input"):
        FmuPlant(path, parameters={"Q_IT": 1.0})
    with pytest.raises(CoolingPlantError, match="parameter gain must be finite"):
        FmuPlant(path, parameters={"gain": float("nan")})


def test_a_step_outside_a_with_statement_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CoolingPlantError, match="with statement"):
        FmuPlant(pack(tmp_path / "toy.fmu", fmi2_description())).step(1.0, 290.0, 60.0)


# --- FMI 2.0, running -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_runs_and_cleans_up(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    path = toy2(tmp_path, f'JOURNAL="{journal}"', simulation=VARIABLE_STEPS)
    with FmuPlant(path, parameters={"gain": 2.0}) as plant:
        assert plant.step(1e6, 300.0, 60.0) == pytest.approx((6e5, 300.0, 3.0))
        assert plant.step(2e6, 301.0, 30.0) == pytest.approx((12e5, 301.0, 3.0))
        with pytest.raises(InvalidQuantityError, match="it_w"):
            plant.step(-1.0, 300.0, 60.0)
    assert journal.read_text().split() == ["instantiate", "terminate", "free"]
    assert nothing_left(tmp_path)


@pytest.mark.slow
def test_units_are_converted_both_ways_and_said(tmp_path: Path) -> None:
    units = {"Q_IT": "kW", "T_outdoor": "degC", "P_cooling": "MW", "T_indoor": "degC"}
    plant = FmuPlant(toy2(tmp_path, units=units))
    assert "Q_IT is converted between kW and W" in plant.notes
    assert len(plant.notes) == 4
    with plant:
        # 2 MW reach the FMU as 2000 kW; it answers 600, which it calls MW; 300 K pass through it as 26.85 degC.
        assert plant.step(2e6, 300.0, 60.0) == pytest.approx((600e6, 300.0, 3.0))


@pytest.mark.slow
def test_an_undeclared_celsius_is_not_taken_for_kelvin(tmp_path: Path) -> None:
    plant = FmuPlant(toy2(tmp_path, units={"T_outdoor": "degC", "T_indoor": ""}))
    with plant, pytest.raises(CoolingPlantError, match=r"T_indoor is 26\.85 K at 60 s.*degrees Celsius"):
        plant.step(1e6, 300.0, 60.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "name", "journal_says"),
    [("fmi2Error", "error", ["instantiate", "free"]), ("fmi2Fatal", "fatal", ["instantiate"])],
)
def test_a_failure_half_way_ends_the_run_with_what_the_fmu_said(
    tmp_path: Path, status: str, name: str, journal_says: list[str]
) -> None:
    journal = tmp_path / "journal"
    plant = FmuPlant(toy2(tmp_path, "FAIL_AT=5", f"FAIL_STATUS={status}", f'JOURNAL="{journal}"'))
    message = rf"the step of 60 s at 300 s failed: fmi2DoStep returned {name}; the FMU said: pump 4 seized"
    with pytest.raises(CoolingPlantError, match=message):
        run_plant(plant, np.full(10, 1e6), np.full(10, 300.0), 60.0)
    assert journal.read_text().split() == journal_says
    assert nothing_left(tmp_path)


@pytest.mark.slow
def test_nan_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(CoolingPlantError, match="output P_cooling is nan W at 240 s"):
        run_plant(FmuPlant(toy2(tmp_path, "NAN_AT=3")), np.full(10, 1e6), np.full(10, 300.0), 60.0)
    assert nothing_left(tmp_path)


@pytest.mark.slow
def test_an_fmu_that_cannot_be_instantiated_says_why(tmp_path: Path) -> None:
    with pytest.raises(
        CoolingPlantError, match=r"cannot be instantiated: .*the FMU said: license number 7 has expired"
    ):
        FmuPlant(toy2(tmp_path, "NO_INSTANCE")).__enter__()
    assert nothing_left(tmp_path)


@pytest.mark.slow
def test_discarded_steps_are_continued_from_where_they_got_to(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    with FmuPlant(toy2(tmp_path, "PARTIAL", f'JOURNAL="{journal}"', simulation=VARIABLE_STEPS)) as plant:
        assert plant.step(1e6, 300.0, 60.0).cooling_w == pytest.approx(3e5)
        assert plant.step(2e6, 300.0, 60.0).cooling_w == pytest.approx(6e5)
    assert journal.read_text().split() == ["instantiate", "terminate", "free"]


@pytest.mark.slow
def test_a_simulation_that_the_fmu_ends(tmp_path: Path) -> None:
    with (
        FmuPlant(toy2(tmp_path, "ENDS")) as plant,
        pytest.raises(CoolingPlantError, match="asked to end the simulation"),
    ):
        plant.step(1e6, 300.0, 60.0)


@pytest.mark.slow
def test_long_steps_are_divided_for_an_fmu_of_fixed_step(tmp_path: Path) -> None:
    path = toy2(tmp_path, "FIXED_STEP=7.5", step="7.5")
    with FmuPlant(path) as plant:
        assert plant.step(1e6, 300.0, 60.0).cooling_w == pytest.approx(3e5)
        with pytest.raises(
            CoolingPlantError, match=r"a step of 50 s is not a multiple of its communication step of 7\.5 s"
        ):
            plant.step(1e6, 300.0, 50.0)
    with FmuPlant(path, step_s=60.0) as plant, pytest.raises(CoolingPlantError, match="returned error"):
        plant.step(1e6, 300.0, 60.0)


@pytest.mark.slow
def test_messages_do_not_flood_the_terminal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    plant = FmuPlant(toy2(tmp_path, "FLOOD=1000", "FAIL_AT=2"))
    with pytest.raises(CoolingPlantError) as caught:
        run_plant(plant, np.full(3, 1e6), np.full(3, 300.0), 60.0)
    assert "flood 999 | pump 4 seized" in str(caught.value)
    assert len(str(caught.value)) < 600
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_instances_and_their_messages_are_kept_apart(tmp_path: Path) -> None:
    good = FmuPlant(toy2(tmp_path))
    (tmp_path / "other").mkdir()
    bad = FmuPlant(toy2(tmp_path / "other", "FAIL_AT=0"))
    with good, bad:
        with pytest.raises(CoolingPlantError, match="pump 4 seized"):
            bad.step(1e6, 300.0, 60.0)
        assert good.step(1e6, 300.0, 60.0).cooling_w == pytest.approx(3e5)
        assert "pump" not in str(good._instance.failure("test"))  # type: ignore[union-attr]


@pytest.mark.slow
def test_a_plant_can_be_run_twice(tmp_path: Path) -> None:
    plant = FmuPlant(toy2(tmp_path))
    first, second = (run_plant(plant, np.full(3, 1e6), np.full(3, 300.0), 60.0) for _ in range(2))
    assert first.cooling_w.tolist() == second.cooling_w.tolist()


# --- FMI 3.0, running -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("macros", "description", "events"),
    [
        ((), {}, 0),
        (("EARLY",), {"simulation": VARIABLE_STEPS + ' mightReturnEarlyFromDoStep="true"'}, 0),
        (("EVENTS",), {"simulation": VARIABLE_STEPS + ' hasEventMode="true"'}, 2),
        (("DISCRETE_INPUTS",), {"simulation": 'hasEventMode="true"', "discrete_inputs": True}, 0),
        ((), {"simulation": VARIABLE_STEPS + ' fixedInternalStepSize="10"'}, 0),
    ],
    ids=["plain", "early", "events", "discrete-inputs", "fixed-step"],
)
def test_fmi3(tmp_path: Path, macros: tuple[str, ...], description: dict[str, Any], events: int) -> None:
    with FmuPlant(toy3(tmp_path, *macros, **description)) as plant:
        assert plant.step(1e6, 300.0, 60.0)[:2] == pytest.approx((3e5, 300.0))
        assert plant.step(2e6, 301.0, 60.0) == pytest.approx((6e5, 301.0, events))
    assert nothing_left(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("macro", "simulation", "says"),
    [
        ("FAIL_AT=0", "", "fmi3DoStep returned error; the FMU said: compressor tripped"),
        ("ENDS", "", "asked to end the simulation at 60 s"),
        ("STUCK", "", "made no progress from 0 s towards 60 s"),
        ("UNSETTLED", 'hasEventMode="true"', "do not settle within 1000 iterations"),
    ],
)
def test_fmi3_failures(
    tmp_path: Path, macro: str, simulation: str, says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    plant = FmuPlant(toy3(tmp_path, macro, simulation=simulation))
    with pytest.raises(CoolingPlantError, match=says):
        run_plant(plant, np.full(3, 1e6), np.full(3, 300.0), 60.0)
    assert nothing_left(tmp_path)
    assert capfd.readouterr() == ("", "")
