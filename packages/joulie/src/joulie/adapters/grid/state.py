"""State file of a feed: after a restart during an outage, values within their maximum age are still used."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec

from joulie.adapters.grid.zone import ZoneWatch
from joulie.domain.grid.series import Series
from joulie.domain.grid.signals import Measure, Observation
from joulie.domain.quantities import InvalidQuantityError


class StateError(RuntimeError):
    """A state file that cannot be read; the message says which and why."""


class _History(msgspec.Struct):
    starts_s: list[float]
    values: list[float]
    end_s: float


class _Watch(msgspec.Struct):
    measure: Measure
    zone: str
    wanted_s: float
    fetched_s: float
    observation: Observation
    history: _History | None = None
    gaps_s: tuple[tuple[float, float], ...] = ()


def read_state(file: Path) -> list[ZoneWatch]:
    """Read the watched zones of a state file, due to be polled at once; none if there is no file.

    Raises:
        StateError: the file cannot be read.
    """
    try:
        watches = msgspec.json.decode(file.read_bytes(), type=list[_Watch])
        return [_restored(watch) for watch in watches]
    except FileNotFoundError:
        return []
    except (OSError, msgspec.DecodeError, InvalidQuantityError) as error:
        raise StateError(f"{file}: {error}") from error


def write_state(file: Path, watches: Sequence[ZoneWatch]) -> None:
    """Replace the state file atomically; zones without any value are left out.

    Raises:
        OSError: the file cannot be written.
    """
    kept = [
        _Watch(
            watch.measure,
            watch.zone,
            watch.wanted_s,
            watch.fetched_s,
            watch.observation,
            None if watch.history is None else _history(watch.history),
            watch.gaps_s,
        )
        for watch in watches
        if watch.observation is not None
    ]
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(file.name + ".new")
    new.write_bytes(msgspec.json.encode(kept))
    new.replace(file)


def _restored(watch: _Watch) -> ZoneWatch:
    past = watch.history
    return ZoneWatch(
        watch.measure,
        watch.zone,
        wanted_s=watch.wanted_s,
        due_s=-math.inf,
        observation=watch.observation,
        fetched_s=watch.fetched_s,
        failing=True,
        history=None if past is None else Series(past.starts_s, past.values, past.end_s),
        gaps_s=watch.gaps_s,
        missing_from_s=min((past.end_s, *(gap[0] for gap in watch.gaps_s))) if past is not None else -math.inf,
    )


def _history(history: Series) -> _History:
    return _History(history.starts_s.tolist(), history.values.tolist(), history.end_s)
