"""Reads and writes the results file of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from joulie_lab.simulation.experiment.outcome import Outcome


class ResultsError(ValueError):
    """The file is not a valid outcome of a run."""


def write_outcome(path: Path, outcome: Outcome) -> None:
    """Write an outcome as JSON, atomically."""
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(msgspec.json.encode(outcome, enc_hook=_encoded))
    partial.replace(path)


def read_outcome(path: Path) -> Outcome:
    """Read a file written by `write_outcome`.

    Raises:
        ResultsError: the file is not a valid outcome.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Outcome, dec_hook=_decoded)
    except (OSError, msgspec.MsgspecError) as error:
        raise ResultsError(f"{path}: {error}") from error


def _encoded(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise NotImplementedError(f"cannot encode {type(value).__name__} as JSON")


def _decoded(kind: Any, value: Any) -> Any:
    """Arrays of numbers; `kind` is what the dataclass says, such as ``NDArray[np.float64]``."""
    (dtype,) = kind.__args__[1].__args__
    return np.asarray(value, dtype=dtype)
