"""What one workload asks of the grid, after the cascade of its pod, its namespace and the cluster.

A pod's annotation beats the namespace's override for its type of workload, which beats the namespace's policy, which
beats the cluster's default. A value that cannot be read counts as absent, so the next one of the cascade holds, and is
reported. Source: spec, grid; documentation of the Compute Gardener Scheduler.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple, TypeVar

from joulie.domain.durations import duration_s
from joulie.domain.grid import names
from joulie.domain.grid.move import NO_MOVE, Move
from joulie.domain.quantities import SECONDS_PER_HOUR
from joulie.domain.runtimes import LearnedRuntime

_T = TypeVar("_T")
_NUMBER = re.compile(r"(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_MAX_LIMIT = 1e6
_MAX_DURATION_S = 366 * 86400.0
_SHOWN_CHARACTERS = 40
_NOTED_RUNTIME = re.compile(r"(\d{1,8})s, ([01](?:\.\d+)?) of (\d{1,6}) runs", re.ASCII)
_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})


class Mode(StrEnum):
    """How the moment to run is chosen."""

    THRESHOLD = "threshold"
    """As soon as intensity and price are within their limits."""
    OPTIMAL = "optimal"
    """In the best window that is expected before the latest start."""
    INTERRUPTIBLE = "interruptible"
    """In the best hours that are expected, with pauses between them."""


class Asked(StrEnum):
    """Who asks that a pod waits for the grid."""

    POD = "pod"
    NAMESPACE = "namespace"
    NOBODY = "none"


class WorkloadType(StrEnum):
    """The types of workload for which a namespace may have policies of their own."""

    BATCH = "batch"
    SERVICE = "service"
    STATEFUL = "stateful"
    SYSTEM = "system"
    GENERIC = "generic"


GPU_WORKLOAD_TYPES = ("inference", "training", "rendering")
"""What pods say that their GPUs do (``gpu-workload-type``)."""
_TYPE_OF_OWNER = {
    "Job": WorkloadType.BATCH,
    "CronJob": WorkloadType.BATCH,
    "Deployment": WorkloadType.SERVICE,
    "ReplicaSet": WorkloadType.SERVICE,
    "StatefulSet": WorkloadType.STATEFUL,
    "DaemonSet": WorkloadType.SYSTEM,
}


@dataclass(frozen=True, slots=True)
class GridDefaults:
    """What holds for the whole cluster where neither pod nor namespace says otherwise.

    Attributes:
        carbon_enabled: whether carbon intensity holds pods.
        carbon_threshold_g_per_kwh: above which it does, gCO2eq/kWh.
        price_enabled: whether prices hold pods.
        price_threshold_per_kwh: above which they do, currency/kWh; None: in a peak period.
        max_delay_s: how long a pod is held at most, s.
        mode: how the moment to run is chosen.
        runtime_s: how long a workload runs that does not say, s.
        carbon_weight: of carbon in the weighted objective, 0..1.
        price_weight: of the price in it, 0..1.
        move_wh_per_gb: energy of the network for moving data to another zone, Wh/GB.
    """

    carbon_enabled: bool = True
    carbon_threshold_g_per_kwh: float = 200.0
    price_enabled: bool = False
    price_threshold_per_kwh: float | None = None
    max_delay_s: float = 24 * SECONDS_PER_HOUR
    mode: Mode = Mode.THRESHOLD
    runtime_s: float = SECONDS_PER_HOUR
    carbon_weight: float = 0.5
    price_weight: float = 0.5
    move_wh_per_gb: float = 10.0


@dataclass(frozen=True, slots=True)
class GridRequest:
    """What one workload asks.

    Attributes:
        asked_by: who asks that it waits.
        skip: it says that it must not wait.
        carbon_enabled: whether carbon intensity holds it.
        carbon_threshold_g_per_kwh: above which it does, gCO2eq/kWh.
        price_enabled: whether the price holds it.
        price_threshold_per_kwh: above which it does, currency/kWh; None: in a peak period.
        max_delay_s: how long it is held at most, s.
        mode: how the moment to run is chosen.
        interruptible: it may be paused once it runs.
        runtime_s: how long it will run, s.
        runtime_stated: the workload or its namespace says so; else it is learned, or the default.
        learned: the runtime of its earlier runs, where that is used.
        runtime_problem: why nothing is learned, where that is a problem.
        carbon_weight: of carbon in the weighted objective, 0..1.
        price_weight: of the price in it, 0..1.
        zone: of the grid, where it names one.
        data_zone: zone where its data is, where it names one.
        move: what running in another zone costs.
        mistakes: what could not be read, one sentence each, fit for an event.
    """

    asked_by: Asked = Asked.NOBODY
    skip: bool = False
    carbon_enabled: bool = True
    carbon_threshold_g_per_kwh: float = 200.0
    price_enabled: bool = False
    price_threshold_per_kwh: float | None = None
    max_delay_s: float = 24 * SECONDS_PER_HOUR
    mode: Mode = Mode.THRESHOLD
    interruptible: bool = False
    runtime_s: float = SECONDS_PER_HOUR
    runtime_stated: bool = False
    learned: LearnedRuntime | None = None
    runtime_problem: str = ""
    carbon_weight: float = 0.5
    price_weight: float = 0.5
    zone: str | None = None
    data_zone: str | None = None
    move: Move = NO_MOVE
    mistakes: tuple[str, ...] = ()

    @property
    def defer(self) -> bool:
        """Whether it may be held at all."""
        return self.asked_by is not Asked.NOBODY and not self.skip

    @property
    def runtime_basis(self) -> str:
        """Where the runtime comes from, in words."""
        if self.runtime_stated:
            return "as stated"
        if self.learned is not None:
            return f"{self.learned.quantile:.0%} of its last {self.learned.runs} runs took no longer"
        return f"assumed, since {self.runtime_problem}" if self.runtime_problem else "assumed"

    def with_runtime(self, learned: LearnedRuntime | None, problem: str = "") -> GridRequest:
        """The request with a learned runtime, unless it states its own.

        Args:
            learned: from earlier runs; None leaves what was known before.
            problem: why nothing is learned, where that is a problem.
        """
        if self.runtime_stated:
            return self
        if learned is None:
            return self if self.learned is not None else replace(self, runtime_problem=problem)
        return replace(self, runtime_s=learned.runtime_s, learned=learned)


class Candidate(NamedTuple):
    """One value of the cascade."""

    key: str
    """The pod annotation that it stands for."""
    annotation: str
    """Where it is written."""
    text: str
    of_namespace: bool


@dataclass(frozen=True)
class Cascade:
    """Where the values of one pod come from.

    Attributes:
        annotations: of the pod.
        workload: type of the pod's workload.
        namespace_labels: its policies count only where they enable them.
        namespace_annotations: the policies, and Joulie's own annotations, which count without the label.
    """

    annotations: Mapping[str, str]
    workload: WorkloadType
    namespace_labels: Mapping[str, str] = field(default_factory=dict)
    namespace_annotations: Mapping[str, str] = field(default_factory=dict)

    def candidates(self, *keys: str) -> Iterator[Candidate]:
        """The values of pod annotations that mean the same, best first; of one level the first key counts."""
        for key in keys:
            if key in self.annotations:
                yield Candidate(key, key, self.annotations[key], of_namespace=False)
        for level in range(3):
            for key in keys:
                annotation = self._of_namespace(key)[level]
                if annotation in self.namespace_annotations:
                    yield Candidate(key, annotation, self.namespace_annotations[annotation], of_namespace=True)

    def _of_namespace(self, key: str) -> tuple[str, str, str]:
        """The annotations of a namespace for a pod annotation, best first; an empty name stands for none."""
        if not key.startswith(names.PREFIX):
            return ("", "", key)
        if self.namespace_labels.get(names.POLICIES_LABEL) != names.POLICIES_ENABLED:
            return ("", "", "")
        name, workload = key.removeprefix(names.PREFIX), names.WORKLOAD_PREFIX + self.workload
        return (f"{workload}-policy-{name}", f"{workload}-{name}", names.POLICY_PREFIX + name)


def workload_type(label: str | None, owner_kind: str | None) -> WorkloadType:
    """The type of a workload: what its label says, else by the kind of its owner, else generic."""
    if label in {*WorkloadType}:
        return WorkloadType(label or "")
    return _TYPE_OF_OWNER.get(owner_kind or "", WorkloadType.GENERIC)


def gpu_workload_type_in(text: str) -> str:
    """The type of GPU workload that an annotation says.

    Raises:
        ValueError: it is none; the message says what is expected.
    """
    if text not in GPU_WORKLOAD_TYPES:
        raise ValueError("one of " + ", ".join(GPU_WORKLOAD_TYPES))
    return text


def first_readable(
    cascade: Cascade, readers: Mapping[str, Callable[[str], _T]]
) -> tuple[Candidate | None, _T | None, tuple[str, ...]]:
    """The best value of a cascade that can be read.

    Args:
        cascade: where to look.
        readers: for each pod annotation, of which all mean the same, what reads its text. It raises ValueError with
            what the text should have been, as in ``a duration such as 12h or 30m``.

    Returns:
        The candidate, its value, both None where there is none, and a sentence for each better one that is malformed.
    """
    mistakes: list[str] = []
    for candidate in cascade.candidates(*readers):
        try:
            return candidate, readers[candidate.key](candidate.text), tuple(mistakes)
        except ValueError as error:
            mistakes.append(_mistake(candidate, str(error)))
    return None, None, tuple(mistakes)


def stated_runtime_s(annotations: Mapping[str, str]) -> tuple[float | None, tuple[str, ...]]:
    """How long a pod's own annotations say that it will run, s; and a sentence for each that is malformed."""
    readers = {names.RUNTIME: _runtime_s, names.RUNTIME_HOURS: _runtime_of_hours_s}
    if readers.keys().isdisjoint(annotations):
        return None, ()
    _candidate, found_s, mistakes = first_readable(Cascade(annotations, WorkloadType.GENERIC, {}, {}), readers)
    return found_s, mistakes


def request_of(
    scheduler_name: str,
    annotations: Mapping[str, str],
    labels: Mapping[str, str],
    owner_kind: str | None,
    namespace_labels: Mapping[str, str],
    namespace_annotations: Mapping[str, str],
    defaults: GridDefaults,
) -> GridRequest:
    """What a pod asks for.

    Args:
        scheduler_name: ``spec.schedulerName``.
        annotations: of the pod.
        labels: of the pod.
        owner_kind: kind of its controller; None without one.
        namespace_labels: of its namespace.
        namespace_annotations: of its namespace.
        defaults: what else holds.
    """
    workload = workload_type(labels.get(names.WORKLOAD_TYPE_LABEL), owner_kind)
    cascade = Cascade(annotations, workload, namespace_labels, namespace_annotations)
    mistakes: list[str] = []

    def read(readers: Mapping[str, Callable[[str], _T]]) -> _T | None:
        _candidate, value, malformed = first_readable(cascade, readers)
        mistakes.extend(malformed)
        return value

    def otherwise(readers: Mapping[str, Callable[[str], _T]], default: _T) -> _T:
        value = read(readers)
        return default if value is None else value

    asking, defer, malformed = first_readable(cascade, {names.DEFER: boolean})
    mistakes.extend(malformed)
    data_gb = read({names.DATA_GB: carbon_limit})
    runtime_s = read({names.RUNTIME: _runtime_s, names.RUNTIME_HOURS: _runtime_of_hours_s})
    request = GridRequest(
        asked_by=_asked_by(scheduler_name, asking, defer),
        skip=otherwise({names.SKIP: boolean}, default=False),
        carbon_enabled=otherwise({names.CARBON_ENABLED: boolean}, defaults.carbon_enabled),
        carbon_threshold_g_per_kwh=otherwise(
            {names.CARBON_THRESHOLD: carbon_limit}, defaults.carbon_threshold_g_per_kwh
        ),
        price_enabled=defaults.price_enabled,
        price_threshold_per_kwh=otherwise({names.PRICE_THRESHOLD: price_limit}, defaults.price_threshold_per_kwh),
        max_delay_s=otherwise({names.MAX_DELAY: _delay_s}, defaults.max_delay_s),
        mode=otherwise({names.MODE: _mode}, defaults.mode),
        interruptible=otherwise({names.INTERRUPTIBLE: boolean}, default=False),
        runtime_s=defaults.runtime_s if runtime_s is None else runtime_s,
        runtime_stated=runtime_s is not None,
        carbon_weight=defaults.carbon_weight,
        price_weight=defaults.price_weight,
        zone=read({names.ZONE: _zone}),
        data_zone=read({names.DATA_ZONE: _zone}),
        move=Move(data_gb, defaults.move_wh_per_gb, read({names.ENERGY_KWH: _some_energy_kwh})) if data_gb else NO_MOVE,
        mistakes=tuple(mistakes),
    )
    return request.with_runtime(_noted_runtime(annotations.get(names.LEARNED_RUNTIME, "")))


def noted_runtime(learned: LearnedRuntime) -> str:
    """The text of the annotation `names.LEARNED_RUNTIME`."""
    return f"{learned.runtime_s:.0f}s, {learned.quantile:g} of {learned.runs} runs"


def _noted_runtime(text: str) -> LearnedRuntime | None:
    """What the annotation says; None if somebody has made it invalid."""
    found = _NOTED_RUNTIME.fullmatch(text)
    return None if found is None else LearnedRuntime(float(found[1]), float(found[2]), int(found[3]))


def _asked_by(scheduler_name: str, asking: Candidate | None, defer: bool | None) -> Asked:
    """A pod's own word counts, whichever it is; then its scheduler's name; then its namespace's annotation."""
    if asking is not None and not asking.of_namespace:
        return Asked.POD if defer else Asked.NOBODY
    if scheduler_name == names.SCHEDULER_NAME:
        return Asked.POD
    return Asked.NAMESPACE if defer else Asked.NOBODY


def _mistake(candidate: Candidate, expected: str) -> str:
    text = candidate.text
    shown = text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."
    where = " of the namespace" if candidate.of_namespace else ""
    return f"annotation {candidate.annotation}{where} is ignored: {shown!r} is not {expected}"


def boolean(text: str) -> bool:
    """A boolean as Go's ``strconv.ParseBool`` reads it, which the Compute Gardener Scheduler uses.

    The chart's admission policy has the same words in CEL.

    Raises:
        ValueError: any other text.
    """
    if text not in _TRUE | _FALSE:
        raise ValueError("true or false")
    return text in _TRUE


def is_interruptible(annotations: Mapping[str, str]) -> bool:
    """Whether annotations let a running Job be suspended; a malformed value does not."""
    return annotations.get(names.INTERRUPTIBLE) in _TRUE


def carbon_limit(text: str) -> float:
    """A carbon intensity, or another amount that is not negative.

    Raises:
        ValueError: with what the text should have been.
    """
    value = _number(text)
    if value > _MAX_LIMIT:
        raise ValueError(f"a number between 0 and {_MAX_LIMIT:.0f}")
    return value


def price_limit(text: str) -> float:
    """A price, which is negative where the market pays for use.

    Raises:
        ValueError: with what the text should have been.
    """
    stripped = text.strip()
    return -carbon_limit(stripped[1:]) if stripped.startswith("-") else carbon_limit(stripped)


def _number(text: str) -> float:
    if not _NUMBER.fullmatch(text.strip()):
        raise ValueError(f"a number between 0 and {_MAX_LIMIT:.0f}")
    return float(text)


def _delay_s(text: str) -> float:
    try:
        seconds = duration_s(text)
    except ValueError:
        raise ValueError("a duration such as 12h, 1h30m or 30m") from None
    if seconds > _MAX_DURATION_S:
        raise ValueError("a duration of at most 366 days")
    return seconds


def _runtime_s(text: str) -> float:
    return _some_time_s(_delay_s(text))


def _runtime_of_hours_s(text: str) -> float:
    return _some_time_s(_number(text) * SECONDS_PER_HOUR)


def _some_time_s(seconds: float) -> float:
    if not 0.0 < seconds <= _MAX_DURATION_S:
        raise ValueError("a time of more than 0 and at most 366 days")
    return seconds


def _some_energy_kwh(text: str) -> float:
    value = carbon_limit(text)
    if value == 0.0:
        raise ValueError("an energy of more than 0 kWh")
    return value


def _mode(text: str) -> Mode:
    try:
        return Mode(text)
    except ValueError:
        raise ValueError("one of " + ", ".join(Mode)) from None


def _zone(text: str) -> str:
    zone = text.strip()
    if not zone or len(zone) > 100 or not zone.isprintable():
        raise ValueError("the name of a zone such as DE or US-CAL-CISO")
    return zone
