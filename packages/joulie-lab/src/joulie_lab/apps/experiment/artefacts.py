"""Artefact folder of an experiment: its scenario, its finished runs, and a fingerprint to detect changes.

::

    scenario.yaml    the experiment, including what was given by options or in other files
    manifest.json    versions, checksums of traces, how it ran
    runs/KEY/        a finished run: run.json, metrics.json, jobs.parquet, nodes.parquet, series.parquet, events.jsonl

A run's folder is created atomically, so that an interrupted experiment can be resumed.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import msgspec
import yaml

from joulie import __version__
from joulie.adapters.parquet_files import write_rows
from joulie_lab.adapters.parquet_files import ParquetError, read_columns, read_rows, write_columns
from joulie_lab.simulation.experiment.compare import Record
from joulie_lab.simulation.experiment.files import load_experiment, named_files
from joulie_lab.simulation.experiment.metrics import RunMetrics, metrics
from joulie_lab.simulation.experiment.outcome import (
    Drain,
    JobEnd,
    JobOutcome,
    NodeOutcome,
    Outcome,
    OutcomeSeries,
    Pace,
)
from joulie_lab.simulation.experiment.plan import PhysicsChoice, RunKey
from joulie_lab.simulation.experiment.scenario import Experiment, Throughput, Variant
from joulie_lab.simulation.job_response import IdleStates
from joulie_lab.simulation.positions import ScenarioError
from joulie_lab.simulation.sweep_state import code_digest, differences

_SCENARIO = "scenario.yaml"
_MANIFEST = "manifest.json"
_RUNS = "runs"
_RUN = "run.json"
_CHOSEN = {"variants", "seeds", "physics", "description"}
"""Fields that may change between calls without invalidating finished runs."""
_DESCRIPTIVE_FIELDS = {"description", "without_caps"}
"""Fields of a variant that do not affect its runs."""
_PRODUCT_SOURCES = ("domain", "adapters", "program", "apps.agent", "apps.extender", "apps.operator")
_LAB_SOURCES = ("simulation", "adapters", "fakes", "control_plane", "program", "apps.experiment", "apps.simulator")
_SOURCES = (*(f"joulie.{name}" for name in _PRODUCT_SOURCES), *(f"joulie_lab.{name}" for name in _LAB_SOURCES))
"""Source packages that determine the results; the command line and the other programs only show them."""
_DIGEST_DIGITS = 16


class ArtefactError(ValueError):
    """An artefact folder cannot be used; the message says why and what to do."""


@dataclass(frozen=True)
class Provenance:
    """How a run was made.

    Attributes:
        on: ``native`` or ``control-plane``.
        trace: checksum of the jobs of the run.
        seconds: wall time of the run, s.
        time_scale: simulated seconds per wall second; None for native runs.
    """

    on: str
    trace: str
    seconds: float
    time_scale: float | None = None


@dataclass(frozen=True)
class FinishedRun:
    """A finished run, as stored in its folder."""

    key: RunKey
    outcome: Outcome
    how: Provenance


@dataclass(frozen=True)
class _RunId:
    """Key of a run in ``run.json``."""

    variant: str
    seed: int
    idle_states: IdleStates
    gpu_throughput: Throughput


@dataclass(frozen=True)
class _RunFile:
    """Required fields of ``run.json``."""

    key: _RunId
    outcome: dict[str, Any]


class Artefacts:
    """Artefact folder of one experiment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def begin(self, experiment: Experiment, on: str, time_scale: float | None, *, fresh: bool = False) -> None:
        """Write scenario and manifest before anything runs.

        Args:
            experiment: the experiment.
            on: ``native`` or ``control-plane``.
            time_scale: simulated seconds per wall second; None for native runs.
            fresh: whether to remove runs of another experiment, or of other code, from the folder.

        Raises:
            ArtefactError: the folder holds runs of another experiment, or cannot be written.
        """
        this = identity(experiment, on, time_scale)
        try:
            if fresh and (self.folder / _MANIFEST).exists():
                shutil.rmtree(self.folder / _RUNS, ignore_errors=True)
                (self.folder / _SCENARIO).unlink(missing_ok=True)
                (self.folder / _MANIFEST).unlink()
            stored = self._stored_identity()
            if stored is None and self._run_files():
                raise ArtefactError(
                    f"{self.folder}: holds runs that no {_MANIFEST} tells the experiment of;"
                    f" name another folder with --out, or remove {self.folder / _RUNS}"
                )
            if stored is not None and (found := list(differences(stored, this))):
                raise ArtefactError(
                    f"{self.folder}: holds runs of another experiment ({'; '.join(found)});"
                    " name another folder with --out, or forget its runs with --fresh"
                )
            self._drop_changed_variants(experiment)
            self.folder.mkdir(parents=True, exist_ok=True)
            _write_text(self.folder / _SCENARIO, _as_yaml(experiment))
            _write_json(self.folder / _MANIFEST, {"identity": this, **_versions()})
        except OSError as error:
            raise ArtefactError(f"{self.folder}: cannot be written: {error.strerror}") from error

    def experiment(self) -> Experiment:
        """Read the experiment.

        Raises:
            ArtefactError: the folder is not that of an experiment.
        """
        try:
            return load_experiment(str(self.folder / _SCENARIO))
        except ScenarioError as error:
            raise ArtefactError(f"{self.folder}: is not the folder of an experiment: {error}") from error

    def manifest(self) -> dict[str, Any]:
        """Read the manifest: versions and identity of the experiment.

        Raises:
            ArtefactError: the folder is not that of an experiment, or its manifest is damaged.
        """
        place = self.folder / _MANIFEST
        manifest = _read_json(place)
        known = manifest.get("identity")
        if not isinstance(known, dict) or not {"on", "time_scale"} <= known.keys() or "joulie" not in manifest:
            raise ArtefactError(f"{place}: is damaged: it does not say what the runs are of; run again with --fresh")
        return manifest

    def run_folder(self, key: RunKey) -> Path:
        """Folder of a run's files, whether it exists yet or not."""
        return self.folder / _RUNS / key.folder

    def finished(self) -> list[RunKey]:
        """Keys of the finished runs, in the order of the experiment's variants.

        Raises:
            ArtefactError: the folder is not that of an experiment, or a run in it is damaged.
        """
        order = [variant.name for variant in self.experiment().variants]
        keys = [_key(file) for file in self._run_files()]
        return sorted((key for key in keys if key.variant in order), key=lambda key: (order.index(key.variant), key))

    def add(self, run: FinishedRun) -> None:
        """Store a finished run.

        Raises:
            ArtefactError: the run cannot be written.
        """
        place = self.run_folder(run.key)
        part = place.with_name(f".{place.name}.part")
        try:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            _write_run(part, run)
            shutil.rmtree(place, ignore_errors=True)
            part.rename(place)
        except OSError as error:
            raise ArtefactError(f"{place}: cannot be written: {error.strerror}") from error

    def read(self, key: RunKey) -> FinishedRun:
        """Read a finished run.

        Raises:
            ArtefactError: the run does not exist, or cannot be read.
        """
        place = self.run_folder(key)
        try:
            return _read_run(place, key)
        except (OSError, ParquetError, ValueError, TypeError, KeyError) as error:
            raise ArtefactError(f"{place}: is not a finished run: {error}") from error

    def records(self) -> list[Record]:
        """Read the metrics of all finished runs, in the order of `finished`.

        Raises:
            ArtefactError: the folder is not that of an experiment, or a run in it is damaged.
        """
        records = []
        for key in self.finished():
            place = self.run_folder(key) / "metrics.json"
            try:
                records.append(Record(key, msgspec.convert(_read_json(place), RunMetrics)))
            except msgspec.ValidationError as error:
                raise ArtefactError(
                    f"{place}: is damaged or of another version of Joulie ({error}); run again with --fresh"
                ) from error
        return records

    def invalid(self) -> dict[RunKey, str]:
        """Finished runs that do not count, and why.

        Raises:
            ArtefactError: the folder is not that of an experiment, or a run in it is damaged.
        """
        outcomes = {key: _read_json(self.run_folder(key) / _RUN)["outcome"] for key in self.finished()}
        return {key: outcome["invalid"] for key, outcome in outcomes.items() if outcome.get("invalid")}

    def _run_files(self) -> list[Path]:
        return list((self.folder / _RUNS).glob(f"[!.]*/{_RUN}"))

    def _stored_identity(self) -> dict[str, Any] | None:
        """Identity of the experiment whose runs are stored here; None without a manifest."""
        if not (self.folder / _MANIFEST).exists():
            return None
        known: dict[str, Any] = self.manifest()["identity"]
        return known

    def _drop_changed_variants(self, experiment: Experiment) -> None:
        """Remove the runs of variants whose definition has changed."""
        if not (self.folder / _SCENARIO).exists():
            return
        before = {variant.name: variant for variant in self.experiment().variants}
        for variant in experiment.variants:
            # A variant that the last call did not have may have had other settings before.
            was = before.get(variant.name)
            if was is None or _effective(was) != _effective(variant):
                for place in (self.folder / _RUNS).glob(f"{variant.name}-seed*"):
                    shutil.rmtree(place)


def identity(experiment: Experiment, on: str, time_scale: float | None) -> dict[str, Any]:
    """Identity of an experiment: calls with equal identities share runs, whatever their variants, seeds and physics.

    Files that the experiment names (trace, FMU, carbon intensity) are compared by content, not by path.

    Raises:
        ArtefactError: such a file cannot be read.
    """
    values = experiment.model_dump(mode="json", exclude=_CHOSEN)
    contents = {}
    for path, name in named_files(experiment).items():
        _put(values, path, None)
        contents[".".join(map(str, path))] = _file_digest(name)
    code = code_digest(_SOURCES)
    return {"version": __version__, "code": code, "on": on, "time_scale": time_scale, **contents, **values}


def _file_digest(name: str) -> str:
    try:
        with Path(name).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:_DIGEST_DIGITS]
    except OSError as error:
        raise ArtefactError(f"{name}: cannot be read: {error.strerror}") from error


def _effective(variant: Variant) -> dict[str, Any]:
    """Fields of a variant that affect its runs."""
    return variant.model_dump(exclude=_DESCRIPTIVE_FIELDS)


def _versions() -> dict[str, Any]:
    from importlib.metadata import version

    packages = ("numpy", "scipy", "pydantic", "polars")
    return {
        "joulie": __version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "packages": {name: version(name) for name in packages},
    }


def _as_yaml(experiment: Experiment) -> str:
    """The experiment as YAML with absolute paths, valid from any working directory."""
    values = experiment.model_dump(mode="json", exclude_defaults=True)
    for path, name in named_files(experiment).items():
        _put(values, path, str(Path(name).resolve()))
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=120)


def _write_run(place: Path, run: FinishedRun) -> None:
    outcome = run.outcome
    write_rows(place / "jobs.parquet", [asdict(job) for job in outcome.jobs])
    write_rows(place / "nodes.parquet", [asdict(node) for node in outcome.nodes])
    write_columns(
        place / "series.parquet", {item.name: getattr(outcome.series, item.name) for item in fields(outcome.series)}
    )
    _write_json(place / "metrics.json", asdict(metrics(outcome)))
    with (place / "events.jsonl").open("w", encoding="utf-8") as lines:
        lines.writelines(json.dumps(event, allow_nan=False) + "\n" for event in _events(outcome))
    scalars = ("duration_s", "it_j", "cooling_j", "busy_gpu_j", "busy_gpu_s", "carbon_g", "cost", "notes", "invalid")
    values = {name: getattr(outcome, name) for name in scalars}
    values["pace"] = outcome.pace and asdict(outcome.pace)
    key = {"variant": run.key.variant, "seed": run.key.seed, **run.key.physics._asdict()}
    _write_json(place / _RUN, {"key": key, "how": asdict(run.how), "outcome": values})


def _events(outcome: Outcome) -> list[dict[str, Any]]:
    """Events in order of time: drains, and jobs that were not completed."""
    drains = [
        {"time_s": drain.start_s, "event": "drain", "node": drain.node, "end_s": drain.end_s}
        for drain in outcome.drains
    ]
    jobs = [
        {"time_s": job.submit_s, "event": str(job.end), "job": job.job_id, "problem": job.problem}
        for job in outcome.jobs
        if job.end is not JobEnd.COMPLETED
    ]
    events: list[dict[str, Any]] = [*drains, *jobs]
    return sorted(events, key=lambda event: (event["time_s"], event["event"]))


def _read_run(place: Path, key: RunKey) -> FinishedRun:
    document = _read_json(place / _RUN)
    scalars = document["outcome"]
    pace = scalars["pace"]
    events = [json.loads(line) for line in (place / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    outcome = Outcome(
        **{**scalars, "notes": tuple(scalars["notes"]), "pace": pace and Pace(**pace)},
        jobs=tuple(JobOutcome(**{**row, "end": JobEnd(row["end"])}) for row in read_rows(place / "jobs.parquet")),
        nodes=tuple(NodeOutcome(**row) for row in read_rows(place / "nodes.parquet")),
        drains=tuple(
            Drain(event["node"], event["time_s"], event["end_s"]) for event in events if event["event"] == "drain"
        ),
        series=OutcomeSeries(**read_columns(place / "series.parquet")),
    )
    return FinishedRun(key, outcome, Provenance(**document["how"]))


def _key(file: Path) -> RunKey:
    """Read the key of a run from its ``run.json``.

    Raises:
        ArtefactError: the file is damaged.
    """
    read = _read_json(file)
    try:
        key = msgspec.convert(read, _RunFile).key
    except msgspec.ValidationError as error:
        raise ArtefactError(f"{file}: is damaged ({error}); remove {file.parent} and run again") from error
    return RunKey(key.variant, key.seed, PhysicsChoice(key.idle_states, key.gpu_throughput))


def _put(values: dict[str, Any], path: Sequence[str | int], value: Any) -> None:
    """Set a value inside nested mappings."""
    *parents, last = path
    for name in parents:
        values = values[str(name)]
    values[str(last)] = value


def _write_text(path: Path, text: str) -> None:
    """Write a file atomically."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def _write_json(path: Path, value: Any) -> None:
    _write_text(path, json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ArtefactError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ArtefactError(f"{path}: is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ArtefactError(f"{path}: is not a JSON object")
    return value
