"""Building blocks of the joulie.io types: bounded fields, validation rules and conditions.

Bounds and enumerations are in the schema only (`extra_json_schema`): the API server enforces them, decoding does not.
The structs themselves reject only non-finite numbers: a NaN would reach the server as null and silently remove the
field.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Annotated, NamedTuple

from msgspec import Meta, field

from joulie.adapters.kubernetes.api.meta import ApiStruct
from joulie.domain.quantities import InvalidQuantityError

MAX_NAME = 253
MAX_TEXT = 1024
MAX_MESSAGE = 32768
MAX_URL = 2048


class Rule(NamedTuple):
    """A CEL validation rule of the CRD, evaluated by the API server on each write."""

    rule: str
    message: str


class JoulieStruct(ApiStruct, frozen=True):
    """Base of the structs in joulie.io objects; rejects non-finite numbers.

    A subclass may define a class attribute ``rules``: a tuple of `Rule`.
    """

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if type(value) is float and not math.isfinite(value):
                raise InvalidQuantityError(f"{type(self).__name__}.{name}", f"must be finite, got {value}")


def one_of(values: type[StrEnum], *more: str) -> Meta:
    """Schema of an enumeration; `more` are values that only objects written by other versions have."""
    return Meta(extra_json_schema={"enum": [*(value.value for value in values), *more]})


def _text(max_length: int, **keywords: object) -> Meta:
    return Meta(extra_json_schema={"maxLength": max_length, **keywords})


def _number(**keywords: object) -> Meta:
    return Meta(extra_json_schema=keywords)


Name = Annotated[str, _text(MAX_NAME, minLength=1)]
Text = Annotated[str, _text(MAX_TEXT)]
GpuId = Annotated[str, _text(MAX_TEXT, minLength=1)]
Message = Annotated[str, _text(MAX_MESSAGE)]
Url = Annotated[str, _text(MAX_URL, pattern="^https?://.+")]
Timestamp = Annotated[str, _text(64, format="date-time")]
"""RFC 3339; see `joulie.adapters.kubernetes.times`."""

Watts = Annotated[float, _number(minimum=0)]
CapWatts = Annotated[float, _number(minimum=1)]
CapPercent = Annotated[float, _number(minimum=0, exclusiveMinimum=True, maximum=100)]
Score = Annotated[float, _number(minimum=0, maximum=100)]
Fraction = Annotated[float, _number(minimum=0, maximum=1)]
Megahertz = Annotated[float, _number(minimum=0)]
CapMegahertz = Annotated[float, _number(minimum=1)]
Count = Annotated[int, _number(minimum=0)]
PositiveCount = Annotated[int, _number(minimum=1)]


def up_to(items: int, **keywords: object) -> Meta:
    """Schema of a list with at most `items` items."""
    return Meta(extra_json_schema={"maxItems": items, **keywords})


class ConditionStatus(StrEnum):
    """Whether a condition holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(JoulieStruct, frozen=True):
    """One aspect of the object's state.

    Attributes:
        type: condition type, unique in the list.
        status: whether the condition holds.
        reason: machine-readable reason, one CamelCase word.
        message: human-readable explanation.
        last_transition_time: time when `status` last changed.
        observed_generation: generation of the object that the condition was computed from.
    """

    type: Annotated[str, _text(316, minLength=1)]
    status: Annotated[str, one_of(ConditionStatus)]
    reason: Annotated[str, _text(MAX_TEXT, minLength=1, pattern="^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")]
    last_transition_time: Timestamp
    message: Message = ""
    observed_generation: Count | None = None


Conditions = Annotated[
    tuple[Condition, ...],
    up_to(16, **{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}),
]


class ControlOutcome(StrEnum):
    """Result of applying a power cap."""

    APPLIED = "applied"
    UNCONFIRMED = "unconfirmed"
    OBSERVED = "observed"
    BLOCKED = "blocked"
    ERROR = "error"
    NONE = "none"


class ControlResult(JoulieStruct, frozen=True):
    """Result of applying the caps of one subsystem; updated when it changes.

    Attributes:
        backend: backend that applies the caps, such as rapl, dvfs, nvml or http.
        result: applied (a reading confirmed it), unconfirmed (written, but no reading confirms that it holds), observed
            (observe mode: nothing is written), blocked (unsupported, no permission, or simulation only), error, or none
            (nothing to do).
        message: human-readable explanation.
        updated_at: time of the last change of the result.
    """

    backend: Text | None = None
    result: Annotated[str, one_of(ControlOutcome)] | None = None
    message: Message | None = None
    updated_at: Timestamp | None = None


class PodReference(JoulieStruct, frozen=True):
    """A pod.

    Attributes:
        name: name of the pod.
        namespace: namespace of the pod.
    """

    name: Name
    namespace: Name


class SmClockStatus(JoulieStruct, frozen=True):
    """SM clock of one GPU; see `docs/design/0037-locked-clocks.md`.

    Attributes:
        largest_mhz: largest SM clock of the GPU, MHz; absent where Joulie may not lock it.
        max_mhz: maximum that it is locked to, MHz; absent without a lock, and where it is not known.
        result: applied once the clock was read at or below the maximum under load, unconfirmed until then, error where
            something overrides the lock or it could not be taken away, blocked where the clock cannot be locked. Absent
            where nothing is asked for and the clock is not locked.
        message: human-readable details.
    """

    largest_mhz: Megahertz | None = None
    max_mhz: Megahertz | None = None
    result: Annotated[str, one_of(ControlOutcome)] | None = None
    message: Message | None = None


class GpuStatus(JoulieStruct, frozen=True):
    """Power limit of one GPU, and the pods that the kubelet gave it to.

    Attributes:
        id: UUID of the GPU, or its PCI address where the driver states none.
        limit_watts: power limit in force, W; absent if it cannot be read.
        original_watts: limit that the GPU had before Joulie's first write, W; absent if it is not known.
        min_watts: smallest limit that it accepts, W.
        pods: pods that hold it, by the kubelet's PodResources API; pods that have ended may still be listed. Absent if
            the kubelet was not asked or did not answer.
        shared: whether pods hold parts of it (MIG, MPS, time slicing).
        owner: whose limit is in force: `joulie`, or `other` where Joulie limits the GPU and another program has set
            another limit. Absent while Joulie does not limit it, or if the limit cannot be told.
        sm_clock: its SM clock, where Joulie may lock it or may have locked it.
    """

    id: GpuId
    limit_watts: Watts | None = None
    original_watts: Watts | None = None
    min_watts: Watts | None = None
    pods: Annotated[tuple[PodReference, ...], up_to(64)] | None = None
    shared: bool | None = None
    owner: Text | None = None
    sm_clock: SmClockStatus | None = None


class ControlStatus(JoulieStruct, frozen=True):
    """Results of power control by subsystem. Written by the agent only.

    Attributes:
        cpu: result for the CPU packages.
        gpu: result for the GPUs.
        observed_generation: generation of the NodeTwin whose caps the results are about. They say nothing about the
            caps of another generation. Absent where no spec was enforced: when an agent that stops restores the limits.
        gpus: GPUs of the node and their limits, by id.
        boot_id: boot of the node in which they were measured, as `status.nodeInfo.bootID` of the Node has it. They say
            nothing about another boot, which has reset the limits.
    """

    cpu: ControlResult | None = None
    gpu: ControlResult | None = None
    observed_generation: Count | None = None
    boot_id: Annotated[str, Meta(extra_json_schema={"maxLength": 64})] | None = field(default=None, name="bootID")
    gpus: Annotated[tuple[GpuStatus, ...], up_to(64)] = ()
