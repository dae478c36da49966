"""Loads and validates published data for the benchmarks; missing data is a one-line user error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from joulie.program.errors import UserError
from joulie_lab.adapters.published.errors import PublishedDataError

if TYPE_CHECKING:
    from joulie.domain.capping.measurements import SweptJob
    from joulie.domain.units import FloatArray
    from joulie_lab.adapters.published.intensity import Zone
    from joulie_lab.adapters.published.openb import Nodes, Pods
    from joulie_lab.adapters.published.pai_jobs import Jobs
    from joulie_lab.adapters.published.specpower import Systems

    Trace = tuple[Nodes, Pods, Mapping[str, FloatArray] | None]

Read = TypeVar("Read")


def published_systems(file: Path | None) -> Systems:
    """Load the SPECpower results from a copy of the table.

    Raises:
        UserError: the copy is missing or invalid.
    """
    from joulie_lab.adapters.published.specpower import HOME, enough, read_systems

    if file is None:
        raise UserError(f"needs the published results, which are not part of Joulie: --data FILE, a copy of {HOME}")
    return _read(file, lambda lines: enough(read_systems(lines)))


def published_folder(folder: Path | None) -> Path:
    """The folder with copies of the published carbon intensities.

    Raises:
        UserError: no folder is given.
    """
    from joulie_lab.adapters.published.intensity import PUBLISHED

    if folder is None:
        files = "; ".join(f"{zone.file} of {zone.home}" for zone in PUBLISHED.values())
        raise UserError(f"needs published intensities, which are not part of Joulie: --data FOLDER with {files}")
    return folder


def published_zones(folder: Path | None) -> Mapping[str, Zone]:
    """Load the carbon intensity by zone from a folder with copies of the files.

    Raises:
        UserError: a file is missing or invalid.
    """
    from joulie_lab.adapters.published.intensity import PUBLISHED, Zone, read_intensity

    folder = published_folder(folder)
    return {
        name: Zone(_read(folder / zone.file, read_intensity, zone.home), zone.step_s)
        for name, zone in PUBLISHED.items()
    }


def published_jobs(file: Path | None) -> Jobs:
    """Load the jobs of the PAI trace from a copy of it.

    Raises:
        UserError: the copy is missing or invalid.
    """
    from joulie_lab.adapters.published.pai_jobs import HOME, read_jobs

    if file is None:
        raise UserError(f"needs a published job trace, which is not part of Joulie: --jobs FILE, a copy of {HOME}")
    return _read(file, read_jobs)


def published_trace(folder: Path | None) -> Trace:
    """Load the nodes, the pods and, if present, the curves of FGD's authors.

    Args:
        folder: folder with copies of the files; None for the folder of `joulie bench fetch`.

    Raises:
        UserError: a file is missing or invalid.
    """
    from joulie_lab.adapters.published import openb

    files = f"{openb.NODES_FILE} and {openb.PODS_FILE} of {openb.HOME}"
    place = _folder(folder, openb.DATASET, "a published trace, which is", files)
    reference = place / openb.REFERENCE_FILE
    curves = _read(reference, openb.read_reference) if reference.exists() else {}
    return _read(place / openb.NODES_FILE, openb.read_nodes), _read(place / openb.PODS_FILE, openb.read_pods), curves


def published_sweeps(folder: Path | None, files: Mapping[str, str] | None = None) -> Mapping[str, tuple[SweptJob, ...]]:
    """Load the published power sweeps by GPU.

    Args:
        folder: folder with copies of the files; None for the folder of `joulie bench fetch`.
        files: file by GPU; None for those of the benchmark `capping`.

    Raises:
        UserError: a file is missing or invalid, or has too few networks to hold one out.
    """
    from joulie.apps.cli.caps import read_sweeps
    from joulie_lab.benchmarks.capping import FILES, jobs_of

    found = {}
    for gpu, path in sweep_files(folder, FILES if files is None else files).items():
        found[gpu] = read_sweeps(path)
        if len({job.family for job in jobs_of(found[gpu])}) < 2:
            raise UserError(f"{path}: needs two networks or more, each measured at two limits")
    return found


def sweep_files(folder: Path | None, files: Mapping[str, str]) -> dict[str, Path]:
    """Paths of the published power sweeps by GPU; see `published_sweeps`."""
    from joulie_lab.benchmarks.capping import DATASET, HOME

    copies = f"copies of {', '.join(files.values())} of {HOME}"
    place = _folder(folder, DATASET, "published sweeps, which are", copies)
    return {gpu: (place / name).absolute() for gpu, name in files.items()}


def _folder(given: Path | None, dataset: str, what: str, files: str) -> Path:
    from joulie_lab.adapters.published.datasets import dataset_folder

    place = given or dataset_folder(dataset)
    if not place.is_dir():
        raise UserError(
            f"needs {what} not part of Joulie: `joulie bench fetch {dataset}`, or --data FOLDER with {files}"
        )
    return place


def _read(path: Path, read: Callable[[Iterable[str]], Read], home: str = "") -> Read:
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            return read(lines)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}{f'; its home is {home}' if home else ''}") from error
    except (PublishedDataError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: {error}") from error
