"""The folder of an experiment: what was run, what came of it, and how to tell that it is still the same experiment.

::

    scenario.yaml    the experiment, everything in it that was given by options or in other files
    manifest.json    versions, checksums of traces, how it ran
    runs/KEY/        a finished run: run.json, metrics.json, jobs.parquet, nodes.parquet, series.parquet, events.jsonl

A run's folder appears whole or not at all, so that an interrupted experiment goes on where it was.
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
"""What may grow from one call to the next without making the finished runs worthless."""
_SAID_OF_VARIANT = {"description", "without_caps"}
"""What tells of a variant and changes none of its runs."""
_PRODUCT_SOURCES = ("domain", "adapters", "program", "apps.agent", "apps.extender", "apps.operator")
_LAB_SOURCES = ("simulation", "adapters", "fakes", "control_plane", "program", "apps.experiment", "apps.simulator")
_SOURCES = (*(f"joulie.{name}" for name in _PRODUCT_SOURCES), *(f"joulie_lab.{name}" for name in _LAB_SOURCES))
"""The code that figures come from; the command line and the other programs only show them."""
_DIGEST_DIGITS = 16


class ArtefactError(ValueError):
    """A folder that cannot be used; the message says why and what to do."""


@dataclass(frozen=True)
class HowItRan:
    """Circumstances of a run that are no result.

    Attributes:
        on: ``native`` or ``control-plane``.
        trace: checksum of the jobs that were played.
        seconds: wall time of the run, s.
        time_scale: simulated seconds in one; None natively, where there is no such thing.
    """

    on: str
    trace: str
    seconds: float
    time_scale: float | None = None


@dataclass(frozen=True)
class FinishedRun:
    """A run as it lies in its folder."""

    key: RunKey
    outcome: Outcome
    how: HowItRan


@dataclass(frozen=True)
class _RunId:
    """A run's key as ``run.json`` has it."""

    variant: str
    seed: int
    idle_states: IdleStates
    gpu_throughput: Throughput


@dataclass(frozen=True)
class _RunFile:
    """What must be right in a ``run.json`` for its run to be there at all."""

    key: _RunId
    outcome: dict[str, Any]


class Artefacts:
    """The folder of one experiment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def begin(self, experiment: Experiment, on: str, time_scale: float | None, *, fresh: bool = False) -> None:
        """Write down what is run, before anything runs.

        Args:
            experiment: all of it.
            on: ``native`` or ``control-plane``.
            time_scale: simulated seconds in one; None natively.
            fresh: forget the runs of another experiment, or of other code, that lie there.

        Raises:
            ArtefactError: the folder holds runs of another experiment, or cannot be written.
        """
        this = identity(experiment, on, time_scale)
        try:
            if fresh and (self.folder / _MANIFEST).exists():
                shutil.rmtree(self.folder / _RUNS, ignore_errors=True)
                (self.folder / _SCENARIO).unlink(missing_ok=True)
                (self.folder / _MANIFEST).unlink()
            there = self._known()
            if there is None and self._run_files():
                raise ArtefactError(
                    f"{self.folder}: holds runs that no {_MANIFEST} tells the experiment of;"
                    f" name another folder with --out, or remove {self.folder / _RUNS}"
                )
            if there is not None and (told := list(differences(there, this))):
                raise ArtefactError(
                    f"{self.folder}: holds runs of another experiment ({'; '.join(told)});"
                    " name another folder with --out, or forget its runs with --fresh"
                )
            self._drop_changed_variants(experiment)
            self.folder.mkdir(parents=True, exist_ok=True)
            _write_text(self.folder / _SCENARIO, _as_yaml(experiment))
            _write_json(self.folder / _MANIFEST, {"identity": this, **_versions()})
        except OSError as error:
            raise ArtefactError(f"{self.folder}: cannot be written: {error.strerror}") from error

    def experiment(self) -> Experiment:
        """What was run.

        Raises:
            ArtefactError: the folder is none of an experiment.
        """
        try:
            return load_experiment(str(self.folder / _SCENARIO))
        except ScenarioError as error:
            raise ArtefactError(f"{self.folder}: is no folder of an experiment: {error}") from error

    def manifest(self) -> dict[str, Any]:
        """Versions and how it ran.

        Raises:
            ArtefactError: the folder is none of an experiment, or its manifest is damaged.
        """
        place = self.folder / _MANIFEST
        manifest = _read_json(place)
        known = manifest.get("identity")
        if not isinstance(known, dict) or not {"on", "time_scale"} <= known.keys() or "joulie" not in manifest:
            raise ArtefactError(f"{place}: is damaged: it does not say what the runs are of; run again with --fresh")
        return manifest

    def run_folder(self, key: RunKey) -> Path:
        """Where a run's files are, or will be."""
        return self.folder / _RUNS / key.folder

    def finished(self) -> list[RunKey]:
        """The runs that are here, in the order of the experiment's variants.

        Raises:
            ArtefactError: the folder is none of an experiment, or a run in it is damaged.
        """
        order = [variant.name for variant in self.experiment().variants]
        keys = [_key(file) for file in self._run_files()]
        return sorted((key for key in keys if key.variant in order), key=lambda key: (order.index(key.variant), key))

    def add(self, run: FinishedRun) -> None:
        """Keep a finished run.

        Raises:
            ArtefactError: it cannot be written.
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
        """A finished run.

        Raises:
            ArtefactError: it is not there, or cannot be read.
        """
        place = self.run_folder(key)
        try:
            return _read_run(place, key)
        except (OSError, ParquetError, ValueError, TypeError, KeyError) as error:
            raise ArtefactError(f"{place}: is no finished run: {error}") from error

    def records(self) -> list[Record]:
        """The figures of all finished runs, in the order of `finished`.

        Raises:
            ArtefactError: the folder is none of an experiment, or a run in it is damaged.
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
        """The finished runs that do not count, and why.

        Raises:
            ArtefactError: the folder is none of an experiment, or a run in it is damaged.
        """
        said = {key: _read_json(self.run_folder(key) / _RUN)["outcome"] for key in self.finished()}
        return {key: outcome["invalid"] for key, outcome in said.items() if outcome.get("invalid")}

    def _run_files(self) -> list[Path]:
        return list((self.folder / _RUNS).glob(f"[!.]*/{_RUN}"))

    def _known(self) -> dict[str, Any] | None:
        """What the runs that lie here are of; None where there are none."""
        if not (self.folder / _MANIFEST).exists():
            return None
        known: dict[str, Any] = self.manifest()["identity"]
        return known

    def _drop_changed_variants(self, experiment: Experiment) -> None:
        """Forget the runs of variants that now mean something else."""
        if not (self.folder / _SCENARIO).exists():
            return
        before = {variant.name: variant for variant in self.experiment().variants}
        for variant in experiment.variants:
            # A variant that the last call did not have may have had other settings before.
            was = before.get(variant.name)
            if was is None or _decides(was) != _decides(variant):
                for place in (self.folder / _RUNS).glob(f"{variant.name}-seed*"):
                    shutil.rmtree(place)


def identity(experiment: Experiment, on: str, time_scale: float | None) -> dict[str, Any]:
    """What two calls must share to share runs: everything but the choice of variants, seeds and physics.

    Files that the experiment names (trace, FMU, carbon intensity) count by content, wherever they lie.

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


def _decides(variant: Variant) -> dict[str, Any]:
    """What of a variant its runs come from."""
    return variant.model_dump(exclude=_SAID_OF_VARIANT)


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
    """The experiment as a file that means the same from any working directory."""
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
    scalars = ("duration_s", "it_j", "cooling_j", "carbon_g", "cost", "notes", "invalid")
    said = {name: getattr(outcome, name) for name in scalars}
    said["pace"] = outcome.pace and asdict(outcome.pace)
    key = {"variant": run.key.variant, "seed": run.key.seed, **run.key.physics._asdict()}
    _write_json(place / _RUN, {"key": key, "how": asdict(run.how), "outcome": said})


def _events(outcome: Outcome) -> list[dict[str, Any]]:
    """What happened once, in the order of time: drains, and jobs that came to nothing."""
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
    said = _read_json(place / _RUN)
    scalars = said["outcome"]
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
    return FinishedRun(key, outcome, HowItRan(**said["how"]))


def _key(file: Path) -> RunKey:
    """Which run a ``run.json`` is of.

    Raises:
        ArtefactError: it is damaged.
    """
    read = _read_json(file)
    try:
        said = msgspec.convert(read, _RunFile).key
    except msgspec.ValidationError as error:
        raise ArtefactError(f"{file}: is damaged ({error}); remove {file.parent} and run again") from error
    return RunKey(said.variant, said.seed, PhysicsChoice(said.idle_states, said.gpu_throughput))


def _put(values: dict[str, Any], path: Sequence[str | int], value: Any) -> None:
    """Set a value inside nested mappings."""
    *parents, last = path
    for name in parents:
        values = values[str(name)]
    values[str(last)] = value


def _write_text(path: Path, text: str) -> None:
    """Write a file, whole or not at all."""
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
        raise ArtefactError(f"{path}: is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise ArtefactError(f"{path}: is no JSON object")
    return value
