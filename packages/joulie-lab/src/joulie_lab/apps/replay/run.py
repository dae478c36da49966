"""A replay: judges the model by the past, and forecasts policies where it is good enough."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from time import process_time
from typing import Any, NamedTuple

import numpy as np

from joulie import __version__
from joulie.adapters.recording_files import RecordingFiles
from joulie.domain.units import SECONDS_PER_HOUR, FloatArray, IntArray
from joulie.program.errors import UserError
from joulie_lab.adapters.executors import ExecutorError
from joulie_lab.apps.experiment.settings import build_control
from joulie_lab.apps.replay.reading import mean_use, steps_per_hour
from joulie_lab.program.parallel import Executor, executed
from joulie_lab.program.progress import shown
from joulie_lab.simulation.experiment.scenario import ControlTimes, Variant
from joulie_lab.simulation.native.nodes import SimNode
from joulie_lab.simulation.native.runtime import Setup, run
from joulie_lab.simulation.replay.fit import Errors, Hourly, Line, errors, families, fit, fitted, misfit, resampled
from joulie_lab.simulation.replay.forecast import Model, PolicyForecast, Result, forecast, result_of
from joulie_lab.simulation.replay.past import Cluster, past_of, predicted_w
from joulie_lab.simulation.schedulers import JOULIE, KUBE
from joulie_lab.simulation.trace import TraceJob

BASELINE = "none"
"""No power management: kube-scheduler alone."""
_DRAWS = 400
_SEED = 1
_SAMPLES_PER_HOUR = 12
_KIB, _MIB = 1024.0, 1024.0**2


@dataclass(frozen=True)
class Question:
    """What is asked of a recording.

    Attributes:
        policies: policies to forecast, besides no power management.
        seeds: number of runs of each, which differ in the jobs' responses to limits and in the scheduler's ties.
        max_bias: bias beyond which there is no forecast, as a share.
        max_error: hourly error of the cluster beyond which there is none, as a share.
        drain_s: time after the recording in which its jobs can finish, s.
    """

    policies: tuple[str, ...]
    seeds: int = 3
    max_bias: float = 0.03
    max_error: float = 0.10
    drain_s: float = 24.0 * SECONDS_PER_HOUR


@dataclass(frozen=True, eq=False)
class Judged:
    """The model beside the past.

    Attributes:
        catalogue: error of the model as the catalogue has it, in the second half of the hours.
        fitting: error of the fitted model in the first half, where it was fitted.
        held_out: error of the fitted model in the second half.
        lines: fit by family.
        hourly_w: measured and predicted power of all measured nodes by hour, W; NaN in hours without measurement.
        fitted_hours: number of hours of the first half.
        worst_nodes: nodes with the largest absolute bias in the second half, and that bias.
    """

    catalogue: Errors
    fitting: Errors
    held_out: Errors
    lines: dict[str, Line | None]
    hourly_w: tuple[FloatArray, FloatArray]
    fitted_hours: int
    worst_nodes: tuple[tuple[str, float], ...]


@dataclass(frozen=True, eq=False)
class Replay:
    """The result of a replay.

    Attributes:
        question: what was asked.
        judged: the model beside the past.
        refused: why there is no forecast; empty if there is one.
        forecasts: the policies, no power management first; empty if refused.
        jobs: number of jobs.
        nodes: number of nodes.
        notes: what was left out or assumed.
        costs: what each run cost; no part of the document, which is the same on every machine.
    """

    question: Question
    judged: Judged
    refused: str
    forecasts: tuple[PolicyForecast, ...]
    jobs: int
    nodes: int
    notes: tuple[str, ...]
    costs: tuple[Cost, ...]

    def document(self) -> dict[str, Any]:
        """Plain JSON values; the error of the model comes first."""
        judged = self.judged
        return {
            "version": __version__,
            "error": {
                "held_out": judged.held_out.as_dict(),
                "fitting": judged.fitting.as_dict(),
                "catalogue": judged.catalogue.as_dict(),
                "worst_nodes": dict(judged.worst_nodes),
                "bounds": {"bias": self.question.max_bias, "cluster_error": self.question.max_error},
            },
            "fit": {family: line and line._asdict() for family, line in judged.lines.items()},
            "refused": self.refused or None,
            "policies": [one.as_dict() for one in self.forecasts],
            "nodes": self.nodes,
            "jobs": self.jobs,
            "seeds": self.question.seeds,
            "notes": list(self.notes),
        }


class Work(NamedTuple):
    """A run, serialised for a worker."""

    nodes: tuple[SimNode, ...]
    jobs: tuple[TraceJob, ...]
    variant: Variant
    seed: int
    duration_s: float
    family_of: dict[str, int]
    version: str = __version__


class Cost(NamedTuple):
    """What a run cost the process that executed it."""

    policy: str
    events: int
    """Arrivals and ends of jobs."""
    cpu_s: float
    peak_mib: float
    """Largest resident memory of the process so far, runs before this one included."""


def play(work: Work) -> tuple[Result, Cost]:
    """Execute a run in this process.

    Raises:
        ExecutorError: the worker has another version of Joulie than the caller.
    """
    if work.version != __version__:
        raise ExecutorError(f"a worker has joulie {__version__}, this is {work.version}; install the same on both")
    times = ControlTimes()
    setup = Setup(
        nodes=work.nodes,
        duration_s=work.duration_s,
        control=build_control(work.variant, times) if work.variant.joulie else None,
        scheduler=work.variant.scheduler,
        times=times,
        seed=work.seed,
        n_samples=max(2, round(work.duration_s / SECONDS_PER_HOUR * _SAMPLES_PER_HOUR)),
    )
    n_families = max(work.family_of.values()) + 1
    before_s = process_time()
    outcome = run(setup, work.jobs)
    cpu_s = process_time() - before_s
    result = result_of(outcome, work.variant.name, work.seed, work.family_of, n_families)
    return result, Cost(result.policy, len(work.jobs) + result.figures.completed, cpu_s, peak_mib())


def peak_mib() -> float:
    """Largest resident memory of this process so far, MiB."""
    return getrusage(RUSAGE_SELF).ru_maxrss / (_MIB if sys.platform == "darwin" else _KIB)


def check_policies(policies: Sequence[str]) -> None:
    """Check the names of policies before anything is read.

    Raises:
        VariantError: one of them does not exist.
    """
    for policy in policies:
        if policy != BASELINE:
            build_control(variant_of(policy), ControlTimes())


def variant_of(policy: str) -> Variant:
    """The variant of a policy, with Joulie's extender beside kube-scheduler; no Joulie for the baseline."""
    if policy == BASELINE:
        return Variant(name=policy, joulie=False, scheduler=KUBE)
    return Variant(name=policy, operator={"POLICY_TYPE": policy}, scheduler=JOULIE)


def replay(folder: Path, question: Question, executor: Executor) -> Replay:
    """Judge the model by a recording, and forecast the policies if it is good enough.

    Raises:
        RecordingError: the folder is no recording, or is damaged.
        ValueError: nothing in it can be replayed; the message says why.
        UserError: a run failed.
    """
    files = RecordingFiles.open(folder)
    period = files.head.period
    pods = files.pods()
    cluster = Cluster.of(files.nodes())
    if not cluster.nodes:
        raise ValueError(f"{folder}: no node has known hardware: {next(iter(cluster.left_out.values()), 'no nodes')}")
    past = past_of(pods, mean_use(files, pods), cluster, period)
    if not past.runs:
        raise ValueError(f"{folder}: no pod ran on a node with known hardware")
    times_s, power_w = files.measured_w(cluster.names)
    predicted = predicted_w(cluster, past.runs, times_s, files.head.step_s)
    hourly = Hourly.of(power_w, predicted, steps_per_hour(files))
    names, family = families([node.family for node in cluster.nodes])
    judged = _judge(hourly, names, family, cluster.names, round(period.from_s / SECONDS_PER_HOUR) % 24)
    refused = _refused(judged.held_out, question)
    found: tuple[PolicyForecast, ...] = ()
    costs: tuple[Cost, ...] = ()
    if not refused:
        duration_s = period.until_s - period.from_s + question.drain_s
        family_of = {node.name: int(place) for node, place in zip(cluster.nodes, family, strict=True)}
        work = [
            Work(cluster.nodes, past.jobs, variant_of(policy), seed, duration_s, family_of)
            for policy in dict.fromkeys((BASELINE, *question.policies))
            for seed in range(1, question.seeds + 1)
        ]
        order = [(one.variant.name, one.seed) for one in work]
        done = sorted(_played(work, executor), key=lambda one: order.index((one[0].policy, one[0].seed)))
        found = tuple(forecast([result for result, _ in done], _model(hourly, family, judged)))
        costs = tuple(cost for _, cost in done)
    return Replay(question, judged, refused, found, len(past.runs), len(cluster.nodes), past.notes, costs)


def _judge(hourly: Hourly, names: Sequence[str], family: IntArray, nodes: Sequence[str], first_hour: int) -> Judged:
    n_hours = hourly.known.shape[1]
    half = n_hours // 2
    first, second = hourly.of_hours(0, half), hourly.of_hours(half, n_hours)
    lines = fit(first, family, len(names))
    held_out = fitted(second, family, lines)
    whole = fitted(hourly, family, lines)
    known = whole.known.any(axis=0)
    sums = [np.where(known, np.nansum(one, axis=0), np.nan) for one in (whole.measured_w, whole.predicted_w)]
    own = np.flatnonzero(held_out.known.any(axis=1))
    gap_w, measured_w = (
        np.nansum(one[own], axis=1) for one in (held_out.predicted_w - held_out.measured_w, held_out.measured_w)
    )
    bias = gap_w / measured_w
    worst = np.argsort(-np.abs(bias), kind="stable")[:5].tolist()
    return Judged(
        catalogue=errors(second, first_hour + half),
        fitting=errors(fitted(first, family, lines), first_hour),
        held_out=errors(held_out, first_hour + half),
        lines=dict(zip(names, lines, strict=True)),
        hourly_w=(sums[0], sums[1]),
        fitted_hours=half,
        worst_nodes=tuple((nodes[own[place]], float(bias[place])) for place in worst),
    )


def _refused(held_out: Errors, question: Question) -> str:
    """Why the model is not good enough for a forecast; empty if it is."""
    checks = (
        ("bias", abs(held_out.bias), question.max_bias),
        ("hourly error", held_out.cluster_error, question.max_error),
    )
    broken = [f"its {name} is {value:.1%}, the bound is {bound:.1%}" for name, value, bound in checks if value > bound]
    return f"the model misses the past: {' and '.join(broken)}" if broken else ""


def _model(hourly: Hourly, family: IntArray, judged: Judged) -> Model:
    n_families = len(judged.lines)
    half = judged.fitted_hours
    rng = np.random.default_rng(_SEED)
    lines = list(judged.lines.values())
    draws = resampled(hourly.of_hours(0, half), family, n_families, rng, _DRAWS)
    second = fitted(hourly.of_hours(half, hourly.known.shape[1]), family, lines)
    counts = Counter(family.tolist())
    n_nodes = np.array([float(counts[number]) for number in range(n_families)])
    return Model(lines, draws, misfit(second, family, n_families), n_nodes)


def _played(work: Sequence[Work], executor: Executor) -> Generator[tuple[Result, Cost], None, None]:
    """Execute the runs, with progress on stderr.

    Raises:
        UserError: a run failed, or the executor did.
    """
    try:
        with closing(executed(play, work, executor)) as runs:
            yield from shown(runs, len(work), f"runs, {executor.n_workers} at a time", _described)
    except ExecutorError as error:
        raise UserError(str(error)) from error


def _described(played: tuple[Result, Cost]) -> str:
    result, _ = played
    return f"{result.policy}, seed {result.seed}: {result.figures.it_kwh:,.0f} kWh before the fit"
