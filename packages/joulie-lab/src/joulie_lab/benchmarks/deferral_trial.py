"""Benchmark deferral-trial: whether the interval of a trial of deferral holds the truth.

Every trial is a recording of pods that goes through the product's own measurement: workloads with runs of their own
size, pace and patience under a carbon intensity with days, weather and noise, a week before the trial and two weeks in
it. Known effects are put on what treated workloads use; what disturbs a trial is put on top. In two settings no effect
is put on: treated pods wait for the hour of yesterday's lowest intensity, which pays more for some than for others, and
the truth is what all of them would have emitted that way over what all would have without waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from joulie.domain.recording import Exit, PodRecord
from joulie.domain.trial.protocol import Arm
from joulie.domain.trial.workload_measure import Accounted, Used, measure_workloads
from joulie.domain.trial.workload_protocol import Drawn, WorkloadProtocol
from joulie.domain.trial.workloads import Found, Quantity, evaluate_workloads
from joulie.domain.units import SECONDS_PER_HOUR, BoolArray, FloatArray, IntArray
from joulie_lab.benchmarks.coverage import Coverage, Interval, Work, coverage, false_savings_pct
from joulie_lab.benchmarks.results import Figures

EFFECTS = (0.0, 0.02, 0.05, 0.10)
_BEFORE_D, _TRIAL_D, _AFTER_D = 7, 14, 2
_HOURS = 24 * (_BEFORE_D + _TRIAL_D + _AFTER_D)
_TRIAL = "bench"


class DeferralTrialResult(Figures, frozen=True):
    """Trials by setting, each of `workloads` workloads unless its name has another number.

    Attributes:
        workloads: number of workloads.
        settings: coverage of the saving of carbon per work.
        true_saving_pct: mean of the true saving by setting, %.
        waited_h: mean of by how much longer those that waited did, by setting, h.
    """

    workloads: int
    settings: Mapping[str, Coverage]
    true_saving_pct: Mapping[str, float]
    waited_h: Mapping[str, float]

    @property
    def false_savings_pct(self) -> float:
        """Largest share of trials without an effect whose lower bound is above zero, %."""
        return false_savings_pct(self.settings)


@dataclass(eq=False)
class Course:
    """Runs of all workloads while a trial is being made, arrays of one value for each run.

    Attributes:
        workload: index of the workload.
        hour: hour in which it comes.
        energy_kwh: that it would use, kWh.
        length_h: how long it runs, h.
        patience_h: how long it may wait, h.
        failed: whether it fails, half way.
        silent: whether its energy is not known.
    """

    workload: IntArray
    hour: IntArray
    energy_kwh: FloatArray
    length_h: IntArray
    patience_h: IntArray
    failed: BoolArray
    silent: BoolArray


@dataclass(frozen=True)
class Setting:
    """What trials are like.

    Attributes:
        effect: share that treated workloads save; None where they really wait.
        disturbances: what disturbs them.
        workloads: number of workloads.
    """

    effect: float | None
    disturbances: Sequence[Callable[[Course, np.random.Generator], None]] = field(default=())
    workloads: int = 32


def _drift(course: Course, rng: np.random.Generator) -> None:
    """The energy of a run changes from day to day, of each workload in its own direction."""
    count = int(course.workload.max()) + 1
    trend = rng.uniform(-0.3, 0.3, (count, 1)) * np.linspace(0.0, 1.0, _HOURS // 24)
    walk = np.cumsum(rng.normal(0.0, 0.03, trend.shape), axis=1)
    course.energy_kwh *= np.exp((trend + walk)[course.workload, course.hour // 24])


def _imbalance(course: Course, rng: np.random.Generator) -> None:
    """Some workloads are many times as large as others."""
    course.energy_kwh *= rng.lognormal(0.0, 1.0, int(course.workload.max()) + 1)[course.workload]


def _failures(course: Course, rng: np.random.Generator) -> None:
    """Runs of some workloads fail often, and those of one in eight for days."""
    count = int(course.workload.max()) + 1
    course.failed |= rng.random(len(course.hour)) < rng.beta(1.0, 12.0, count)[course.workload]
    broken, since_h = rng.random(count) < 1.0 / 8.0, rng.integers(_HOURS, size=count)
    late_h = course.hour - since_h[course.workload]
    course.failed |= broken[course.workload] & (late_h >= 0) & (late_h < 72)


def _dropouts(course: Course, rng: np.random.Generator) -> None:
    """The energy of 3 % of the runs is not known, nor that of one workload for a quarter of the time."""
    course.silent |= rng.random(len(course.hour)) < 0.03
    first = rng.integers(_HOURS * 3 // 4)
    during = (course.hour >= first) & (course.hour < first + _HOURS // 4)
    course.silent |= during & (course.workload == rng.integers(course.workload.max() + 1))


def _bursts(course: Course, rng: np.random.Generator) -> None:
    """Runs of some days are larger by heavy-tailed factors, for all workloads alike."""
    days = np.exp(np.clip(0.3 * rng.standard_t(3, _HOURS // 24), -1.5, 1.5))
    course.energy_kwh *= days[course.hour // 24]


DISTURBANCES = {
    "drifting runs": _drift,
    "workloads of unlike size": _imbalance,
    "failing runs": _failures,
    "unknown energy": _dropouts,
    "bursts of load": _bursts,
}
_ALL = tuple(DISTURBANCES.values())
SETTINGS: Mapping[str, Setting] = {
    **{f"{effect:.0%}, all disturbances": Setting(effect, _ALL) for effect in EFFECTS},
    **{f"0%, {name}": Setting(0.0, (one,)) for name, one in DISTURBANCES.items()},
    "0%, 14 workloads": Setting(0.0, workloads=14),
    "real waits": Setting(None),
    "real waits, all disturbances": Setting(None, _ALL),
}


def intensity(rng: np.random.Generator) -> FloatArray:
    """Carbon intensity of each hour, g/kWh: days, weather of some days, and noise."""
    hours = np.arange(_HOURS + 48)
    weather = np.zeros(len(hours))
    for hour in hours[1:]:
        weather[hour] = 0.98 * weather[hour - 1] + rng.normal(0.0, 8.0)
    daily = 90.0 * np.sin((hours + rng.uniform(0.0, 24.0)) * 2.0 * np.pi / 24.0)
    return np.asarray(np.maximum(320.0 + daily + weather + rng.normal(0.0, 10.0, len(hours)), 30.0))


def course_of(setting: Setting, rng: np.random.Generator) -> Course:
    """Runs of workloads that come once or twice a day around hours of their own."""
    count = setting.workloads
    a_day = rng.choice([1, 1, 2], count)
    size, length_h = rng.lognormal(0.0, 0.5, count), rng.choice([1, 2, 4], count)
    patience_h, first_h = rng.choice([0, 6, 12, 24], count), rng.uniform(0.0, 24.0, count)
    workload = np.repeat(np.arange(count), a_day * (_BEFORE_D + _TRIAL_D))
    number = np.concatenate([np.arange(runs) for runs in a_day * (_BEFORE_D + _TRIAL_D)])
    hour = number * 24.0 / a_day[workload] + first_h[workload] / a_day[workload] + rng.normal(0.0, 1.0, len(number))
    return Course(
        workload,
        np.clip(hour, 0.0, 24.0 * (_BEFORE_D + _TRIAL_D) - 1.0).astype(np.int64),
        size[workload] * rng.lognormal(0.0, 0.1, len(number)),
        length_h[workload],
        patience_h[workload],
        np.zeros(len(number), dtype=np.bool_),
        np.zeros(len(number), dtype=np.bool_),
    )


def _best_starts(course: Course, carbon: FloatArray) -> IntArray:
    """Delay to the start at which yesterday's intensity was lowest, h."""
    delays = np.arange(25)
    mean = np.array([np.convolve(carbon, np.ones(length), "full")[length - 1 :] / length for length in range(1, 5)])
    hours = np.maximum(course.hour[:, np.newaxis] + delays - 24, 0)
    expected = mean[course.length_h - 1][np.arange(len(hours))[:, np.newaxis], hours]
    expected = np.where(delays <= course.patience_h[:, np.newaxis], expected, np.inf)
    return np.asarray(expected.argmin(axis=1))


def _emitted(course: Course, carbon: FloatArray, delay_h: IntArray) -> FloatArray:
    """What each run emits if it starts so much later, g."""
    total = np.concatenate([[0.0], np.cumsum(carbon)])
    begin = course.hour + delay_h
    mean = (total[begin + course.length_h] - total[begin]) / course.length_h
    return np.asarray(course.energy_kwh * np.where(course.failed, 0.5, 1.0) * mean)


def played(setting: Setting, seed: int) -> tuple[Found | None, float, float]:
    """One trial: the saving of carbon that is found, the true one, and by how much longer pods waited, h."""
    rng = np.random.default_rng([18, seed])
    carbon, course = intensity(rng), course_of(setting, rng)
    for disturb in setting.disturbances:
        disturb(course, rng)
    protocol = WorkloadProtocol(_BEFORE_D * 24 * SECONDS_PER_HOUR, (_BEFORE_D + _TRIAL_D) * 24 * SECONDS_PER_HOUR, seed)
    names = [f"work-of-{number}" for number in range(setting.workloads)]
    arms = [protocol.arm_of("bench", name) for name in names]
    in_trial = course.hour >= 24 * _BEFORE_D
    treated = np.array([arm is Arm.TREATMENT for arm in arms])[course.workload] & in_trial
    at_once = _emitted(course, carbon, np.zeros_like(course.hour))
    delay_h = _best_starts(course, carbon)
    if setting.effect is None:
        later = _emitted(course, carbon, delay_h)
        truth = 1.0 - float(later[in_trial].sum() / at_once[in_trial].sum())
    else:
        later, delay_h, truth = at_once * (1.0 - setting.effect), np.zeros_like(delay_h), setting.effect
    emitted = np.where(treated, later, at_once)
    pods = list(_pods(course, names, arms, in_trial, np.where(treated, delay_h, 0)))
    used_kwh = course.energy_kwh * np.where(course.failed, 0.5, 1.0)
    used = {
        pod.uid: Used(kwh, grams)
        for pod, kwh, grams, silent in zip(pods, used_kwh.tolist(), emitted.tolist(), course.silent, strict=True)
        if not silent
    }
    table = Accounted(used, dict(enumerate(carbon.tolist())), {})
    found = evaluate_workloads(measure_workloads(_TRIAL, protocol, pods, table).outcomes, seed)
    wait_s = 0.0 if found.wait is None else found.wait.value
    return found.savings.get(Quantity.CARBON), truth, wait_s / SECONDS_PER_HOUR


def _pods(
    course: Course, names: Sequence[str], arms: Sequence[Arm], in_trial: BoolArray, delay_h: IntArray
) -> Iterable[PodRecord]:
    notes = [Drawn(_TRIAL, arm, name).recorded for name, arm in zip(names, arms, strict=True)]
    columns = (course.workload, course.hour, course.length_h, course.failed, in_trial, delay_h)
    for number, (workload, hour, length, failed, taken, delay) in enumerate(
        zip(*(one.tolist() for one in columns), strict=True)
    ):
        came_s, started_s = hour * SECONDS_PER_HOUR, (hour + delay) * SECONDS_PER_HOUR
        yield PodRecord(
            f"{number}", "bench", f"{number}", "Job", f"{names[workload]}-{29384000 + number}", cpu_cores=4.0,
            arrived_s=came_s, started_s=started_s, ended_s=started_s + length * SECONDS_PER_HOUR, node="node",
            exit=Exit.FAILED if failed else Exit.SUCCEEDED, **(notes[workload] if taken else {}),
        )  # fmt: skip


class Judged(NamedTuple):
    """What one trial said: bounds (None without), the truth, and by how much longer pods waited, h."""

    low: float | None
    high: float | None
    truth: float
    waited_h: float


def trials_of(work: Work) -> tuple[str, list[Judged]]:
    """What trials said, with the name of their setting."""
    found = []
    for seed in work.seeds:
        one, truth, waited_h = played(SETTINGS[work.name], seed)
        found.append(Judged(None if one is None else one.low, None if one is None else one.high, truth, waited_h))
    return work.name, found


def summed_up(trials: Sequence[Judged]) -> Coverage:
    """How often the intervals hold the truth; trials that gave none do not count."""
    given = [Interval(one.low, one.high, one.truth) for one in trials if one.low is not None and one.high is not None]
    return coverage(given, len(given))
