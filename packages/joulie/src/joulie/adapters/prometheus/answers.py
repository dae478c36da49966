"""Answers of Prometheus as values.

Numbers arrive as text. NaN and infinities are legal there and no measurement: they are left out, never zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from joulie.domain.signal import Reading
from joulie.ports import SourceError

MAX_BYTES = 64 << 20
"""Maximum size of a response; a hundred thousand series take about 20 MB."""


class PrometheusError(SourceError):
    """No answer, or one that cannot be understood; the message says from where and what came."""


class PrometheusUnavailableError(PrometheusError):
    """The server did not answer, or said that it cannot now. What was asked is not to blame."""


@dataclass(frozen=True, slots=True)
class Series:
    """One value of a series.

    Attributes:
        name: of the metric; empty where a query's result has none.
        labels: without the name.
        value: finite.
        time_s: s since the epoch; None where the endpoint gives no time.
    """

    name: str
    labels: Mapping[str, str]
    value: float
    time_s: float | None = None


@dataclass(frozen=True, slots=True)
class History:
    """The samples of a series over some time.

    Attributes:
        name: of the metric; empty where a query's result has none.
        labels: without the name.
        samples: finite ones, oldest first; may be none.
    """

    name: str
    labels: Mapping[str, str]
    samples: tuple[Reading, ...]


class Data(msgspec.Struct, rename="camel"):
    """The data of an answer: its kind, and what came."""

    result_type: str
    result: msgspec.Raw = msgspec.Raw(b"[]")


class Answer(msgspec.Struct, rename="camel"):
    """What every answer of the HTTP API holds."""

    status: str
    data: Data | None = None
    error: str = ""
    error_type: str = ""
    warnings: list[str] = []


class _Vector(msgspec.Struct):
    metric: dict[str, str]
    value: Reading | None = None  # none of a native histogram


class _Matrix(msgspec.Struct):
    metric: dict[str, str]
    values: tuple[Reading, ...] = ()  # none of a native histogram


_decode_scalar = msgspec.json.Decoder(Reading, strict=False).decode  # not strict: numbers are texts
_decode_vector = msgspec.json.Decoder(list[_Vector], strict=False).decode
_decode_matrix = msgspec.json.Decoder(list[_Matrix], strict=False).decode


def vector_of(data: Data) -> list[Series]:
    """The series of an instant query.

    Raises:
        ValueError: neither a vector nor a scalar, or its values are no numbers.
    """
    match data.result_type:
        case "vector":
            found = [(one.metric, one.value) for one in _decode_vector(_readable(data.result)) if one.value is not None]
        case "scalar":
            found = [({}, _decode_scalar(_readable(data.result)))]
        case other:
            raise ValueError(f"a vector or a scalar is expected, got a {other}")
    return [
        Series(metric.pop("__name__", ""), metric, value, time_s)
        for metric, (time_s, value) in found
        if math.isfinite(value)
    ]


def matrix_of(data: Data) -> list[History]:
    """The series of a range query, or of an instant query of a range selector.

    Raises:
        ValueError: no matrix, or its values are no numbers.
    """
    if data.result_type != "matrix":
        raise ValueError(f"a matrix is expected, got a {data.result_type}")
    return [
        History(one.metric.pop("__name__", ""), one.metric, _finite(one.values))
        for one in _decode_matrix(_readable(data.result))
    ]


def _readable(result: msgspec.Raw) -> bytes:
    """With infinity as msgspec reads it. Samples end with a bracket, labels never do."""
    return bytes(result).replace(b'"+Inf"]', b'"Inf"]')


def _finite(samples: tuple[Reading, ...]) -> tuple[Reading, ...]:
    if math.isfinite(sum(value for _, value in samples)):
        return samples
    return tuple(sample for sample in samples if math.isfinite(sample.value))
