"""The folder of an experiment: what was run, what came of it, and how to tell that it is still the same experiment.

::

    scenario.yaml    the experiment, everything in it that was given by options or in other files
    manifest.json    versions, checksums of traces, how it ran
    runs/KEY/        a finished run: run.json, metrics.json, jobs.parquet, nodes.parquet, series.parquet, events.jsonl

A run's folder appears whole or not at all, so that an interrupted experiment goes on where it was.
"""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from joulie import __version__
from joulie.adapters.parquet_files import ParquetError, read_columns, read_rows, write_columns, write_rows
from joulie.domain.power.cpu import IdleStates
from joulie.simulation.experiment.compare import Record
from joulie.simulation.experiment.files import load_experiment
from joulie.simulation.experiment.metrics import RunMetrics, metrics
from joulie.simulation.experiment.outcome import Drain, JobEnd, JobOutcome, NodeOutcome, Outcome, OutcomeSeries
from joulie.simulation.experiment.plan import PhysicsChoice, RunKey
from joulie.simulation.experiment.scenario import Experiment
from joulie.simulation.positions import ScenarioError
from joulie.simulation.sweep_state import code_digest, differences

_SCENARIO = "scenario.yaml"
_MANIFEST = "manifest.json"
_RUNS = "runs"
_CHOSEN = {"variants", "seeds", "physics", "description"}
"""What may grow from one call to the next without making the finished runs worthless."""


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
            if there is not None and (told := list(differences(there, this))):
                raise ArtefactError(
                    f"{self.folder}: holds runs of another experiment ({'; '.join(told)});"
                    " name another folder with --out, or forget its runs with --fresh"
                )
            self._drop_changed_variants(experiment)
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / _SCENARIO).write_text(_as_yaml(experiment), encoding="utf-8")
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
            ArtefactError: the folder is none of an experiment.
        """
        return _read_json(self.folder / _MANIFEST)

    def run_folder(self, key: RunKey) -> Path:
        """Where a run's files are, or will be."""
        return self.folder / _RUNS / key.folder

    def finished(self) -> list[RunKey]:
        """The runs that are here, in the order of the experiment's variants.

        Raises:
            ArtefactError: the folder is none of an experiment, or a run in it is damaged.
        """
        order = [variant.name for variant in self.experiment().variants]
        keys = [_key(_read_json(file)["key"]) for file in (self.folder / _RUNS).glob("[!.]*/run.json")]
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
                records.append(Record(key, RunMetrics(**_read_json(place))))
            except TypeError as error:
                raise ArtefactError(f"{place}: is of another version of Joulie; run again with --fresh") from error
        return records

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
            if before.get(variant.name) != variant:
                for place in (self.folder / _RUNS).glob(f"{variant.name}-seed*"):
                    shutil.rmtree(place)


def identity(experiment: Experiment, on: str, time_scale: float | None) -> dict[str, Any]:
    """What two calls must share to share runs: everything but the choice of variants, seeds and physics."""
    return {
        "version": __version__,
        "code": code_digest(),
        "on": on,
        "time_scale": time_scale,
        **experiment.model_dump(mode="json", exclude=_CHOSEN),
    }


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
    values = experiment.model_dump(mode="json", exclude_defaults=True)
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
    scalars = ("duration_s", "it_j", "cooling_j", "carbon_g", "cost", "notes")
    said = {name: getattr(outcome, name) for name in scalars}
    key = {"variant": run.key.variant, "seed": run.key.seed, **run.key.physics._asdict()}
    _write_json(place / "run.json", {"key": key, "how": asdict(run.how), "outcome": said})


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
    said = _read_json(place / "run.json")
    scalars = said["outcome"]
    events = [json.loads(line) for line in (place / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    outcome = Outcome(
        **{**scalars, "notes": tuple(scalars["notes"])},
        jobs=tuple(JobOutcome(**{**row, "end": JobEnd(row["end"])}) for row in read_rows(place / "jobs.parquet")),
        nodes=tuple(NodeOutcome(**row) for row in read_rows(place / "nodes.parquet")),
        drains=tuple(
            Drain(event["node"], event["time_s"], event["end_s"]) for event in events if event["event"] == "drain"
        ),
        series=OutcomeSeries(**read_columns(place / "series.parquet")),
    )
    return FinishedRun(key, outcome, HowItRan(**said["how"]))


def _key(said: Mapping[str, Any]) -> RunKey:
    physics = PhysicsChoice(IdleStates(said["idle_states"]), said["gpu_throughput"])
    return RunKey(said["variant"], said["seed"], physics)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n", encoding="utf-8")


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
