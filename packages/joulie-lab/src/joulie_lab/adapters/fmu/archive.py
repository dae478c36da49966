"""Reads FMU files, which are untrusted zip archives.

Only the members that a run needs are unpacked, into a separate folder and within size limits. Members that would be
written outside that folder are rejected.
"""

from __future__ import annotations

import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from joulie_lab.simulation.cooling_plant import CoolingPlantError

MAX_UNPACKED_BYTES = 2 * 1024**3
MAX_DESCRIPTION_BYTES = 64 * 1024**2
DESCRIPTION = "modelDescription.xml"


def read_description(path: Path) -> Any:
    """Read and validate the model description of an FMU that can be co-simulated.

    Returns:
        FMPy's ``ModelDescription``, of FMI 2.0 or 3.0, with co-simulation.

    Raises:
        CoolingPlantError: not a complete zip archive, unsafe members, a missing or invalid description, an
            unsupported FMI version, or an FMU for model exchange only.
    """
    description = read_any_description(path)
    if description.coSimulation is None:
        kind = "model exchange" if description.modelExchange is not None else "scheduled execution"
        raise CoolingPlantError(f"{path}: provides {kind} only; export it for co-simulation")
    return description


def read_any_description(path: Path) -> Any:
    """Like `read_description`, for FMUs of any kind."""
    from fmpy.model_description import ValidationError, read_model_description

    with _open(path) as archive:
        names = archive.namelist()
        if DESCRIPTION not in names:
            raise CoolingPlantError(f"{path}: not an FMU: there is no {DESCRIPTION} in the archive")
        if archive.getinfo(DESCRIPTION).file_size > MAX_DESCRIPTION_BYTES:
            raise CoolingPlantError(f"{path}: {DESCRIPTION} is larger than {MAX_DESCRIPTION_BYTES} bytes")
        try:
            description = read_model_description(str(path))
        except ValidationError as error:
            raise CoolingPlantError(f"{path}: invalid {DESCRIPTION}: {_some(error.problems)}") from error
        except (zipfile.BadZipFile, zlib.error, EOFError):
            raise
        except Exception as error:  # FMPy raises plain Exception for descriptions that it cannot read
            raise CoolingPlantError(f"{path}: {DESCRIPTION} cannot be read: {error}") from error
    if not description.fmiVersion.startswith(("2.", "3.")):
        raise CoolingPlantError(f"{path}: FMI {description.fmiVersion} is not supported; export it as FMI 2.0 or 3.0")
    return description


def member_names(path: Path) -> list[str]:
    """Names of the archive's members.

    Raises:
        CoolingPlantError: not a complete zip archive, or unsafe members.
    """
    with _open(path) as archive:
        return archive.namelist()


def platforms(names: list[str]) -> list[str]:
    """Platforms with an included binary, by the folder names of the FMI standard."""
    parts = (PurePosixPath(name).parts for name in names)
    return sorted({part[1] for part in parts if len(part) > 2 and part[0] == "binaries"})


def binary_member(description: Any) -> str:
    """Name of the archive member with the binary for this machine."""
    import fmpy

    folder = fmpy.platform if description.fmiVersion.startswith("2.") else fmpy.platform_tuple
    return f"binaries/{folder}/{description.coSimulation.modelIdentifier}{fmpy.sharedLibraryExtension}"


def require_binary(path: Path, description: Any) -> None:
    """Check that an FMU has a binary for this machine.

    Raises:
        CoolingPlantError: no binary for this platform; the message lists the available ones.
    """
    names = member_names(path)
    wanted = binary_member(description)
    if wanted in names:
        return
    present = ", ".join(platforms(names)) or "none"
    hint = "; it includes C sources, compile them for this platform" if _has_sources(names) else ""
    raise CoolingPlantError(f"{path}: no binary for this platform ({wanted}); binaries for: {present}{hint}")


def unpack(path: Path, description: Any, folder: Path) -> None:
    """Unpack the members that a run needs into `folder`: the description, this platform's binaries and the resources.

    Raises:
        CoolingPlantError: unsafe members, too large, or damaged data.
    """
    wanted = (DESCRIPTION, binary_member(description).rpartition("/")[0] + "/", "resources/")
    with _open(path) as archive:
        members = [info for info in archive.infolist() if info.filename.startswith(wanted)]
        size = sum(info.file_size for info in members)
        if size > MAX_UNPACKED_BYTES:
            raise CoolingPlantError(f"{path}: unpacks to {size} bytes, more than {MAX_UNPACKED_BYTES}")
        # zipfile never writes more than the declared size, and verifies the checksum.
        archive.extractall(folder, members)
    (folder / "resources").mkdir(exist_ok=True)  # FMI passes this path to the FMU, which may open it


@contextmanager
def _open(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                _refuse_unsafe(path, info)
            yield archive
    except FileNotFoundError:
        raise CoolingPlantError(f"{path}: no such file") from None
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise CoolingPlantError(f"{path}: not a complete zip archive, truncated or damaged ({error})") from error
    except (OSError, NotImplementedError, RuntimeError) as error:
        if isinstance(error, CoolingPlantError):
            raise
        raise CoolingPlantError(f"{path}: cannot be read: {error}") from error


def _refuse_unsafe(path: Path, info: zipfile.ZipInfo) -> None:
    name = info.orig_filename
    parts = PurePosixPath(name).parts
    if name.startswith("/") or "\\" in name or ":" in name or ".." in parts:
        raise CoolingPlantError(f"{path}: rejected, its member {name!r} points outside the archive")
    if stat.S_ISLNK(info.external_attr >> 16):
        raise CoolingPlantError(f"{path}: rejected, its member {name!r} is a symbolic link")


def _has_sources(names: list[str]) -> bool:
    return any(name.startswith("sources/") and name.endswith(".c") for name in names)


def _some(problems: list[str], limit: int = 3) -> str:
    more = f" (and {len(problems) - limit} more)" if len(problems) > limit else ""
    return "; ".join(problems[:limit]) + more
