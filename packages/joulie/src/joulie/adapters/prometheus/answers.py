"""Decoding of Prometheus' API responses.

Values arrive as text. NaN and infinities are legal there but not measurements: they are left out, never read as zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from joulie.domain.signal import Reading
from joulie.ports.telemetry import SourceError

MAX_BYTES = 64 << 20
"""Maximum size of a response; a hundred thousand series take about 20 MB."""


class PrometheusError(SourceError):
    """A failed request or an invalid response; the message names the address and shows the response."""


class PrometheusUnavailableError(PrometheusError):
    """The server did not respond, or is overloaded; the query itself is not the cause."""


@dataclass(frozen=True, slots=True)
class Series:
    """One value of a series.

    Attributes:
        name: metric name; empty if the query's result has none.
        labels: labels without the name.
        value: value, always finite.
        time_s: time of the value, s since the epoch; None if the endpoint gives none.
    """

    name: str
    labels: Mapping[str, str]
    value: float
    time_s: float | None = None


@dataclass(frozen=True, slots=True)
class History:
    """Samples of a series over a period.

    Attributes:
        name: metric name; empty if the query's result has none.
        labels: labels without the name.
        samples: finite samples, oldest first; may be empty.
    """

    name: str
    labels: Mapping[str, str]
    samples: tuple[Reading, ...]


class Data(msgspec.Struct, rename="camel"):
    """Data of a response: result type and undecoded result."""

    result_type: str
    result: msgspec.Raw = msgspec.Raw(b"[]")


class Answer(msgspec.Struct, rename="camel"):
    """Envelope of every response of the HTTP API."""

    status: str
    data: Data | None = None
    error: str = ""
    error_type: str = ""
    warnings: list[str] = []


class _Vector(msgspec.Struct):
    metric: dict[str, str]
    value: Reading | None = None  # absent for a native histogram


class _Matrix(msgspec.Struct):
    metric: dict[str, str]
    values: tuple[Reading, ...] = ()  # absent for a native histogram


_decode_scalar = msgspec.json.Decoder(Reading, strict=False).decode  # not strict: numbers arrive as text
_decode_vector = msgspec.json.Decoder(list[_Vector], strict=False).decode
_decode_matrix = msgspec.json.Decoder(list[_Matrix], strict=False).decode


def vector_of(data: Data) -> list[Series]:
    """Decode the series of an instant query.

    Raises:
        ValueError: the result is neither a vector nor a scalar, or a value is not a number.
    """
    match data.result_type:
        case "vector":
            found = [
                (one.metric, one.value) for one in _decode_vector(_decodable(data.result)) if one.value is not None
            ]
        case "scalar":
            found = [({}, _decode_scalar(_decodable(data.result)))]
        case other:
            raise ValueError(f"expected a vector or a scalar, got a {other}")
    return [
        Series(metric.pop("__name__", ""), metric, value, time_s)
        for metric, (time_s, value) in found
        if math.isfinite(value)
    ]


def matrix_of(data: Data) -> list[History]:
    """Decode the series of a range query, or of an instant query of a range selector.

    Raises:
        ValueError: the result is not a matrix, or a value is not a number.
    """
    if data.result_type != "matrix":
        raise ValueError(f"expected a matrix, got a {data.result_type}")
    return [
        History(one.metric.pop("__name__", ""), one.metric, _finite(one.values))
        for one in _decode_matrix(_decodable(data.result))
    ]


def _decodable(result: msgspec.Raw) -> bytes:
    """The result with infinity in a form that msgspec accepts. Samples end with a bracket, labels never do."""
    return bytes(result).replace(b'"+Inf"]', b'"Inf"]')


def _finite(samples: tuple[Reading, ...]) -> tuple[Reading, ...]:
    if math.isfinite(sum(value for _, value in samples)):
        return samples
    return tuple(sample for sample in samples if math.isfinite(sample.value))
