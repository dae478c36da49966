"""The state file of a sweep, so that an interrupted sweep can be resumed.

The first line identifies the sweep; every further line is the JSON record of a finished run. A record is synced to disk
before the next run counts. A truncated last line is discarded, and its run is repeated.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import joulie
from joulie_lab.simulation.results import RunRecord
from joulie_lab.simulation.scenario import Scenario
from joulie_lab.simulation.sweep import Task

_DISTRIBUTIONS = {"joulie": Path(joulie.__file__).parent, "joulie_lab": Path(__file__).parents[1]}
_FORMAT = "joulie_sweep"
_VERSION = 1
_HEAD = b'{"' + _FORMAT.encode()
_SHOWN_CHARACTERS = 60


class SweepStateError(ValueError):
    """Invalid state file; the message says why and what to do."""


def code_digest(packages: Iterable[str] = ("joulie.domain", "joulie_lab.simulation")) -> str:
    """Digest of the sources that determine a run's figures, so that results of different code are not mixed.

    Args:
        packages: dotted names of the packages.

    Raises:
        FileNotFoundError: no such package.
    """
    digest = hashlib.sha256()
    for package in packages:
        distribution, *below = package.split(".")
        folder = _DISTRIBUTIONS[distribution].joinpath(*below)
        if not folder.is_dir():
            raise FileNotFoundError(f"package {package} is not at {folder}")
        for source in sorted(folder.rglob("*.py")):
            digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def identity(scenario: Scenario, *, version: str, code: str) -> dict[str, Any]:
    """The inputs that two sweeps must have in common to share runs: everything but schedulers and seeds.

    Files named by the scenario (a job table, an FMU) are compared by content.

    Raises:
        SweepStateError: such a file cannot be read.
    """
    named = (scenario.workload.csv, scenario.workload.parquet, scenario.cooling.fmu and scenario.cooling.fmu.file)
    return {
        "version": version,
        "code": code,
        "files": {name: _file_digest(name) for name in named if name},
        **scenario.model_dump(mode="json", by_alias=True, exclude={"schedulers", "seeds", "description"}),
    }


def identity_digest(sweep: Mapping[str, Any]) -> str:
    """Digest of an identity, 12 hexadecimal digits, for a file name."""
    return hashlib.sha256(json.dumps(sweep, sort_keys=True).encode()).hexdigest()[:12]


class SweepState:
    """The finished runs of one sweep, stored in a file.

    Attributes:
        path: the file.
        records: finished runs by task, both loaded and added.
    """

    def __init__(self, path: Path, sweep: Mapping[str, Any], *, fresh: bool = False) -> None:
        """Open or create the state file of a sweep.

        Args:
            path: the file; it and its folder are created if missing.
            sweep: `identity` of the sweep.
            fresh: discard the stored runs.

        Raises:
            SweepStateError: the file is not a state file, belongs to another sweep, is damaged, or cannot be written.
        """
        self.path = path
        self.records: dict[Task, RunRecord] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            kept = self._read(sweep, fresh=fresh) if path.exists() else b""
            with path.open("ab") as file:
                file.truncate(len(kept))
        except OSError as error:
            raise SweepStateError(f"{path}: cannot be used as the state of a sweep: {error.strerror}") from error
        if not kept:
            self._write({_FORMAT: _VERSION, "sweep": sweep})

    def add(self, record: RunRecord) -> None:
        """Store a finished run; it is synced to disk when this returns.

        Raises:
            SweepStateError: the file cannot be written.
        """
        self._write(record.as_dict())
        self.records[Task(record.scheduler, record.seed)] = record

    def _write(self, value: Mapping[str, Any]) -> None:
        line = json.dumps(value, allow_nan=False).encode() + b"\n"
        try:
            with self.path.open("ab") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise SweepStateError(f"{self.path}: cannot be written: {error.strerror}") from error

    def _read(self, sweep: Mapping[str, Any], *, fresh: bool) -> bytes:
        """Load the runs of the file; returns the part of it that is valid."""
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if not whole and (not content or content.startswith(_HEAD)):
            return b""
        lines = whole.splitlines() or [content]
        header = self._parsed(lines[0], 1)
        if not isinstance(header, dict) or header.get(_FORMAT) != _VERSION:
            raise self._foreign()
        if fresh:
            return b""
        if told := list(differences(header["sweep"], sweep)):
            raise SweepStateError(
                f"{self.path}: holds runs of another sweep ({'; '.join(told)});"
                " name another file with --state, or forget its runs with --fresh"
            )
        for number, line in enumerate(lines[1:], start=2):
            record = self._record(line, number)
            self.records[Task(record.scheduler, record.seed)] = record
        return whole

    def _record(self, line: bytes, number: int) -> RunRecord:
        value = self._parsed(line, number)
        try:
            return RunRecord(**value)
        except TypeError as error:
            raise self._damaged(number) from error

    def _parsed(self, line: bytes, number: int) -> Any:
        try:
            return json.loads(line)
        except ValueError as error:
            raise (self._foreign() if number == 1 else self._damaged(number)) from error

    def _foreign(self) -> SweepStateError:
        return SweepStateError(f"{self.path}: is not the state of a sweep; name another file with --state")

    def _damaged(self, number: int) -> SweepStateError:
        return SweepStateError(f"{self.path}:{number}: is not a finished run; start over with --fresh")


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> Iterable[str]:
    """The differences between two identities, one per key, as text."""
    for key in dict.fromkeys((*there, *here)):
        if there.get(key) != here.get(key):
            was, now = json.dumps(there.get(key)), json.dumps(here.get(key))
            short = len(was) + len(now) <= _SHOWN_CHARACTERS
            yield f"{key}: {was} in the file, {now} now" if short else f"{key} differs"


def _file_digest(name: str) -> str:
    try:
        with Path(name).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise SweepStateError(f"{name}: {error.strerror}") from error
