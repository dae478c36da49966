"""What benchmarks measure on: data as published, read from copies, or made up for the small samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from joulie.program.errors import UserError

if TYPE_CHECKING:
    from joulie.domain.capping.measurements import SweptJob
    from joulie.domain.units import FloatArray
    from joulie_lab.benchmarks.deferral_capacity import Jobs
    from joulie_lab.benchmarks.gpu_sharing.trace import Nodes, Pods
    from joulie_lab.benchmarks.intensity import Zone
    from joulie_lab.benchmarks.specpower import Systems

    Trace = tuple[Nodes, Pods, Mapping[str, FloatArray] | None]

Read = TypeVar("Read")
_SAMPLE_SEED = 1


def published_systems(data: Path | None, *, small: bool) -> Systems:
    """SPECpower results by system.

    Args:
        data: a copy of the file.
        small: make some up.

    Raises:
        UserError: it is not there, or is no copy.
    """
    from joulie_lab.benchmarks.specpower import HOME, SpecpowerError, enough, read_systems, synthetic_table

    if small:
        return read_systems(synthetic_table(seed=1))
    if data is None:
        raise UserError(f"needs the published results, which are not part of Joulie: --data FILE, a copy of {HOME}")
    try:
        with data.open(encoding="utf-8", newline="") as lines:
            return enough(read_systems(lines))
    except OSError as error:
        raise UserError(f"{data}: {error.strerror}") from error
    except (SpecpowerError, UnicodeDecodeError) as error:
        raise UserError(f"{data}: {error}") from error


def published_zones(data: Path | None, *, small: bool) -> Mapping[str, Zone]:
    """Carbon intensity by zone.

    Args:
        data: folder with copies of the files.
        small: make some up.

    Raises:
        UserError: one is not there, or is no copy.
    """
    from joulie_lab.benchmarks.intensity import PUBLISHED, IntensityError, Zone, read_intensity, synthetic_zones

    if small:
        return synthetic_zones(seed=1)
    if data is None:
        files = "; ".join(f"{zone.file} of {zone.home}" for zone in PUBLISHED.values())
        raise UserError(f"needs published intensities, which are not part of Joulie: --data FOLDER with {files}")
    zones = {}
    for name, published in PUBLISHED.items():
        file = data / published.file
        try:
            with file.open(encoding="utf-8", newline="") as lines:
                zones[name] = Zone(read_intensity(lines), published.step_s)
        except OSError as error:
            raise UserError(f"{file}: {error.strerror}; its home is {published.home}") from error
        except (IntensityError, UnicodeDecodeError) as error:
            raise UserError(f"{file}: {error}") from error
    return zones


def published_jobs(file: Path | None, *, small: bool) -> Jobs:
    """Jobs of the PAI trace.

    Args:
        file: a copy of it.
        small: make some up.

    Raises:
        UserError: it is not there, or is no copy.
    """
    from joulie_lab.benchmarks.deferral_capacity import HOME, TraceError, read_jobs, synthetic_jobs

    if small:
        return synthetic_jobs(seed=1)
    if file is None:
        raise UserError(f"needs a published job trace, which is not part of Joulie: --jobs FILE, a copy of {HOME}")
    try:
        with file.open(encoding="utf-8", newline="") as lines:
            return read_jobs(lines)
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}") from error
    except (TraceError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: {error}") from error


def made_trace() -> Trace:
    """A small cluster and pods in the manner of the trace; nothing is published of it."""
    from joulie_lab.benchmarks.gpu_sharing.arrivals import sample

    return (*sample(_SAMPLE_SEED), None)


def published_trace(folder: Path | None) -> Trace:
    """Nodes, pods and, where the folder has them, the curves of FGD's authors.

    Args:
        folder: with copies of the files; None for where `joulie bench fetch` puts them.

    Raises:
        UserError: one is not there, or is no copy.
    """
    from joulie_lab.adapters.datasets import dataset_folder
    from joulie_lab.benchmarks.gpu_sharing.trace import (
        DATASET,
        HOME,
        NODES_FILE,
        PODS_FILE,
        REFERENCE_FILE,
        read_nodes,
        read_pods,
        read_reference,
    )

    place = folder or dataset_folder(DATASET)
    if not place.is_dir():
        raise UserError(
            f"needs a published trace, which is not part of Joulie: `joulie bench fetch {DATASET}`, "
            f"or --data FOLDER with {NODES_FILE} and {PODS_FILE} of {HOME}"
        )
    reference = place / REFERENCE_FILE
    curves = _read(reference, read_reference) if reference.exists() else {}
    return _read(place / NODES_FILE, read_nodes), _read(place / PODS_FILE, read_pods), curves


def _read(path: Path, read: Callable[[Iterable[str]], Read]) -> Read:
    from joulie_lab.benchmarks.gpu_sharing.trace import OpenbError

    try:
        with path.open(encoding="utf-8", newline="") as lines:
            return read(lines)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    except (OpenbError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: {error}") from error


def published_sweeps(folder: Path | None) -> Mapping[str, tuple[SweptJob, ...]]:
    """The published sweeps by GPU.

    Args:
        folder: with copies of them; None for where `joulie bench fetch` puts them.

    Raises:
        UserError: one is not there, is no file of sweeps, or has too few of them to leave a network out.
    """
    from joulie.apps.cli.caps import read_sweeps
    from joulie_lab.adapters.datasets import dataset_folder
    from joulie_lab.benchmarks.capping import DATASET, FILES, HOME, jobs_of

    place = folder or dataset_folder(DATASET)
    if not place.is_dir():
        raise UserError(
            f"needs published sweeps, which are not part of Joulie: `joulie bench fetch {DATASET}`, "
            f"or --data FOLDER with copies of {', '.join(FILES.values())} of {HOME}"
        )
    found = {}
    for gpu, name in FILES.items():
        found[gpu] = read_sweeps(place / name)
        if len({job.family for job in jobs_of(found[gpu])}) < 2:
            raise UserError(f"{place / name}: needs two networks or more, each measured at two limits")
    return found
