"""The openb trace for its benchmark: as published, or made up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from joulie.apps.cli.errors import UserError

if TYPE_CHECKING:
    from joulie.domain.units import FloatArray
    from joulie.simulation.openb.trace import Nodes, Pods

    Trace = tuple[Nodes, Pods, Mapping[str, FloatArray] | None]

Read = TypeVar("Read")
_SAMPLE_SEED = 1


def made_trace() -> Trace:
    """A small cluster and pods in the manner of the trace; nothing is published of it."""
    from joulie.simulation.openb.arrivals import sample

    return (*sample(_SAMPLE_SEED), None)


def published_trace(folder: Path | None) -> Trace:
    """Nodes, pods and, where the folder has them, the curves of FGD's authors.

    Args:
        folder: with copies of the files; None for where `joulie bench fetch` puts them.

    Raises:
        UserError: one is not there, or is no copy.
    """
    from joulie.adapters.datasets import dataset_folder
    from joulie.simulation.openb.trace import (
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
    from joulie.simulation.openb.trace import OpenbError

    try:
        with path.open(encoding="utf-8", newline="") as lines:
            return read(lines)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    except (OpenbError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: {error}") from error
