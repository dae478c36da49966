"""Exports the built-in DX plant as an FMI 2.0 co-simulation FMU.

The FMU contains its C source and the FMI headers, so that it can be compiled for another platform; its binary is for
the machine that built it. Builds are reproducible except for the compiler's output.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import tempfile
import zipfile
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5
from xml.etree import ElementTree as ET

from joulie import __version__
from joulie.output_files import output_file
from joulie_lab.simulation.dx_plant import DxParameters

MODEL_IDENTIFIER = "dx_plant"
SOURCE_FILE = "dx_plant.c"
MODEL_HEADER = "dx_plant_model.h"
FMI_HEADERS = ("fmi2Functions.h", "fmi2FunctionTypes.h", "fmi2TypesPlatform.h")
COMPILE_FLAGS = ("-std=c99", "-O2", "-fPIC", "-shared", "-ffp-contract=off")

# Parameters of the room are fixed while the plant runs; all others may be tuned between steps.
_FIXED = {"room_length_m", "room_width_m", "room_height_m", "thermal_mass_factor", "start_k"}
_BASE_UNITS = {
    "W": {"kg": 1, "m": 2, "s": -3},
    "K": {"K": 1},
    "1/K": {"K": -1},
    "1": {},
    "m": {"m": 1},
    "kg/m3": {"kg": 1, "m": -3},
    "kg/s": {"kg": 1, "s": -1},
    "Pa": {"kg": 1, "m": -1, "s": -2},
}
_OLDEST_ZIP_DATE = (1980, 1, 1, 0, 0, 0)


class FmuBuildError(RuntimeError):
    """Building the FMU failed; the message says why and what to do."""


@dataclass(frozen=True)
class _Variable:
    """A variable of the FMU; its value reference is its position."""

    name: str
    kind: str
    unit: str
    description: str
    start: float = 0.0
    may_be_zero: bool = False
    maximum: float = math.inf


def build_fmu(output: Path, parameters: DxParameters | None = None) -> Path:
    """Write the plant as an FMU; an existing file is replaced only when the new one is complete.

    Args:
        output: the file to write.
        parameters: start values of the FMU's parameters.

    Returns:
        `output`.

    Raises:
        FmuBuildError: no C compiler, a failed compilation, or a folder that cannot be written.
    """
    variables = _variables(parameters or DxParameters())
    source = resources.files(__package__).joinpath("source", SOURCE_FILE).read_text(encoding="utf-8")
    content = "\n".join([__version__, source, *map(repr, variables)])
    guid = f"{{{uuid5(NAMESPACE_URL, content)}}}"
    sources = {SOURCE_FILE: source, MODEL_HEADER: _model_header(variables, guid), **_fmi_headers()}
    if not output.parent.is_dir():
        raise FmuBuildError(f"{output}: the folder {output.parent} does not exist")
    with tempfile.TemporaryDirectory(prefix="joulie-fmu-") as folder:
        binary = compile_sources(sources, Path(folder))
        members = {
            "modelDescription.xml": _model_description(variables, guid),
            f"binaries/{_platform()}/{binary.name}": binary.read_bytes(),
            **{f"sources/{name}": text.encode() for name, text in sources.items()},
        }
    _write_archive(output, members)
    return output


def compile_sources(sources: dict[str, str], folder: Path) -> Path:
    """Compile `sources` (file name -> text) in `folder` with the system's C compiler.

    Returns:
        The shared library.

    Raises:
        FmuBuildError: no compiler, or it failed.
    """
    from fmpy import sharedLibraryExtension

    compiler = _find_compiler()
    for name, text in sources.items():
        (folder / name).write_text(text, encoding="utf-8")
    library = folder / f"{MODEL_IDENTIFIER}{sharedLibraryExtension}"
    command = [compiler, *COMPILE_FLAGS, "-o", str(library), str(folder / SOURCE_FILE), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode != 0:
        raise FmuBuildError(f"{compiler} failed with status {done.returncode}: {_first_line(done.stderr)}")
    return library


def _find_compiler() -> str:
    for candidate in filter(None, (os.environ.get("CC"), "cc", "gcc", "clang")):
        if found := shutil.which(candidate):
            return found
    raise FmuBuildError("no C compiler found (looked for $CC, cc, gcc, clang): install one, e.g. gcc or clang")


def _first_line(text: str) -> str:
    return next((line for line in text.splitlines() if "error" in line), text.strip()[:200]) or "no message"


def _platform() -> str:
    from fmpy import platform

    return str(platform)


def _fmi_headers() -> dict[str, str]:
    """The FMI 2.0 headers (2-clause BSD), as FMPy ships them."""
    folder = resources.files("fmpy").joinpath("c-code")
    return {name: folder.joinpath(name).read_text(encoding="utf-8") for name in FMI_HEADERS}


def _variables(parameters: DxParameters) -> list[_Variable]:
    """Inputs and outputs under the names of the published plant, then the parameters under Joulie's names."""
    ports = [
        _Variable("Q_IT", "INPUT", "W", "Heat of the IT equipment", 0.0, may_be_zero=True),
        _Variable("T_outdoor", "INPUT", "K", "Outdoor temperature", 298.15),
        _Variable("P_cooling", "OUTPUT", "W", "Electrical power of the plant"),
        _Variable("T_indoor", "OUTPUT", "K", "Temperature of the room"),
        _Variable("COP", "OUTPUT", "1", "Heat removed over electrical power"),
    ]
    return ports + [
        _Variable(
            name=item.name,
            kind="FIXED" if item.name in _FIXED else "TUNABLE",
            unit=item.metadata["unit"],
            description=item.metadata["description"],
            start=float(getattr(parameters, item.name)),
            may_be_zero=item.metadata["may_be_zero"],
            maximum=item.metadata["maximum"],
        )
        for item in fields(parameters)
    ]


def _model_header(variables: list[_Variable], guid: str) -> str:
    def table(declaration: str, values: list[str]) -> str:
        return f"static const {declaration}[N_VARIABLES] = {{\n    " + ",\n    ".join(values) + "\n};\n"

    references = "".join(f"    VR_{variable.name.upper()},\n" for variable in variables)
    maxima = ["INFINITY" if math.isinf(variable.maximum) else repr(variable.maximum) for variable in variables]
    return "\n".join(
        [
            "/* Generated by joulie fmu build from the plant's parameters. */",
            f'#define MODEL_GUID "{guid}"',
            "typedef enum { INPUT, OUTPUT, FIXED, TUNABLE } Kind;",
            f"enum {{\n{references}    N_VARIABLES\n}};",
            table("char *const NAME", [f'"{variable.name}"' for variable in variables]),
            table("Kind KIND", [variable.kind for variable in variables]),
            table("int MAY_BE_ZERO", [str(int(variable.may_be_zero)) for variable in variables]),
            table("double MAXIMUM", maxima),
            table("double START", [repr(variable.start) for variable in variables]),
        ]
    )


def _model_description(variables: list[_Variable], guid: str) -> bytes:
    root = ET.Element(
        "fmiModelDescription",
        fmiVersion="2.0",
        modelName="JoulieDxPlant",
        guid=guid,
        description="DX cooling plant with airside economizer of a data hall",
        license="Apache-2.0",
        generationTool=f"Joulie {__version__}",
        variableNamingConvention="flat",
    )
    simulation = ET.SubElement(
        root,
        "CoSimulation",
        modelIdentifier=MODEL_IDENTIFIER,
        canHandleVariableCommunicationStepSize="true",
        canGetAndSetFMUstate="true",
        canSerializeFMUstate="true",
    )
    ET.SubElement(ET.SubElement(simulation, "SourceFiles"), "File", name=SOURCE_FILE)
    units = ET.SubElement(root, "UnitDefinitions")
    for unit in sorted({variable.unit for variable in variables}):
        exponents = {base: str(exponent) for base, exponent in _BASE_UNITS[unit].items()}
        ET.SubElement(ET.SubElement(units, "Unit", name=unit), "BaseUnit", exponents)
    categories = ET.SubElement(root, "LogCategories")
    ET.SubElement(categories, "Category", name="logStatusError", description="Why a call failed")
    ET.SubElement(root, "DefaultExperiment", startTime="0", stopTime="172800", stepSize="60")
    model_variables = ET.SubElement(root, "ModelVariables")
    for reference, variable in enumerate(variables):
        _describe_variable(model_variables, reference, variable)
    structure = ET.SubElement(root, "ModelStructure")
    for part in ("Outputs", "InitialUnknowns"):
        unknowns = ET.SubElement(structure, part)
        for index, variable in enumerate(variables, start=1):
            if variable.kind == "OUTPUT":
                ET.SubElement(unknowns, "Unknown", index=str(index))
    ET.indent(root)
    return b'<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode").encode()


def _describe_variable(parent: ET.Element, reference: int, variable: _Variable) -> None:
    attributes = {
        "INPUT": {"causality": "input", "variability": "continuous"},
        "OUTPUT": {"causality": "output", "variability": "continuous", "initial": "calculated"},
        "FIXED": {"causality": "parameter", "variability": "fixed", "initial": "exact"},
        "TUNABLE": {"causality": "parameter", "variability": "tunable", "initial": "exact"},
    }[variable.kind]
    attributes |= {"name": variable.name, "valueReference": str(reference), "description": variable.description}
    element = ET.SubElement(parent, "ScalarVariable", attributes)
    real = ET.SubElement(element, "Real", unit=variable.unit)
    if variable.kind == "OUTPUT":
        return
    real.set("min", "0")
    if math.isfinite(variable.maximum):
        real.set("max", repr(variable.maximum))
    real.set("start", repr(variable.start))


def _write_archive(output: Path, members: dict[str, bytes]) -> None:
    try:
        with output_file(output) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members.items():
                info = zipfile.ZipInfo(name, date_time=_OLDEST_ZIP_DATE)
                info.compress_type = zipfile.ZIP_DEFLATED
                info.external_attr = 0o644 << 16
                archive.writestr(info, content)
    except OSError as error:
        raise FmuBuildError(f"{output}: cannot be written: {error.strerror or error}") from error
