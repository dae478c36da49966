"""Prometheus: instant queries over its HTTP API, and the text of /metrics endpoints.

Values arrive as text. NaN and infinities are legal there and no measurement: such series are left out, never zero.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx2
import msgspec
from prometheus_client.parser import text_string_to_metric_families

_TIMEOUT_S = 10.0
_MAX_BYTES = 256 << 20
_SHOWN_CHARS = 200


class PrometheusError(RuntimeError):
    """No answer, or one that cannot be understood; the message says from where and what came."""


@dataclass(frozen=True)
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


class _Vector(msgspec.Struct):
    metric: dict[str, str]
    value: tuple[float, str]


class _Data(msgspec.Struct, rename="camel"):
    result_type: str
    result: msgspec.Raw = msgspec.Raw(b"[]")


class _Answer(msgspec.Struct, rename="camel"):
    status: str
    data: _Data | None = None
    error: str = ""


class Prometheus:
    """Instant queries to one server.

    Args:
        address: such as ``http://prometheus:9090``.
        client: shared; its owner closes it.
    """

    def __init__(self, address: str, client: httpx2.AsyncClient) -> None:
        self._url = f"{address.rstrip('/')}/api/v1/query"
        self._client = client

    async def query(self, promql: str) -> list[Series]:
        """All series of an instant query, which may be none.

        Raises:
            PrometheusError: no answer, or an error, or something other than a vector or a scalar.
        """
        body = await _get(self._client, self._url, {"query": promql})
        try:
            answer = msgspec.json.decode(body, type=_Answer)
            if answer.status != "success" or answer.data is None:
                raise PrometheusError(f"{self._url}: {promql!r}: {answer.error or answer.status}")
            return list(_series(answer.data))
        except (msgspec.DecodeError, ValueError) as error:
            raise PrometheusError(f"{self._url}: {promql!r}: {error}: {_start(body)}") from error


def _series(data: _Data) -> Iterator[Series]:
    match data.result_type:
        case "vector":
            for one in msgspec.json.decode(data.result, type=list[_Vector]):
                name = one.metric.pop("__name__", "")
                yield from _finite(Series(name, one.metric, float(one.value[1]), one.value[0]))
        case "scalar":
            time_s, text = msgspec.json.decode(data.result, type=tuple[float, str])
            yield from _finite(Series("", {}, float(text), time_s))
        case other:
            raise ValueError(f"a vector or a scalar is expected, got a {other}")


def _finite(series: Series) -> Iterator[Series]:
    if math.isfinite(series.value):
        yield series


async def scrape(client: httpx2.AsyncClient, url: str, metrics: Collection[str]) -> list[Series]:
    """The series of some metrics of a /metrics endpoint.

    Lines of other metrics are skipped before they are parsed: an agent of a thousand nodes has many.

    Args:
        client: to ask with.
        url: of the endpoint.
        metrics: names of samples, as they stand in the text.

    Raises:
        PrometheusError: no answer, or one that is not in the text format.
    """
    text = (await _get(client, url, {})).decode(errors="replace")
    starts = tuple(f"{name}{end}" for name in metrics for end in ("{", " "))
    wanted = "".join(f"{line}\n" for line in text.splitlines() if line.startswith(starts))
    try:
        samples = [sample for family in text_string_to_metric_families(wanted) for sample in family.samples]
        return [
            found for sample in samples for found in _finite(Series(sample.name, sample.labels, float(sample.value)))
        ]
    except (ValueError, KeyError, IndexError) as error:
        raise PrometheusError(f"{url}: not in the Prometheus text format: {error}") from error


async def _get(client: httpx2.AsyncClient, url: str, params: Mapping[str, Any]) -> bytes:
    content = bytearray()
    try:
        async with client.stream("GET", url, params=params, timeout=_TIMEOUT_S) as response:
            async for chunk in response.aiter_bytes():
                content += chunk
                if len(content) > _MAX_BYTES:
                    raise PrometheusError(f"{url}: answer of more than {_MAX_BYTES} bytes")
    except httpx2.HTTPError as error:
        raise PrometheusError(f"{url}: {str(error) or type(error).__name__}") from error
    if not response.is_success:
        raise PrometheusError(f"{url}: {response.status_code}: {_start(content)}")
    return bytes(content)


def _start(body: bytes | bytearray) -> str:
    return bytes(body[:_SHOWN_CHARS]).decode(errors="replace").strip()
