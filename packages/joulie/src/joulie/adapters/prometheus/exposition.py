"""The text of /metrics endpoints."""

from __future__ import annotations

import math
from collections.abc import Collection

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from joulie.adapters.prometheus.answers import PrometheusError, Series, read_answer

_TIMEOUT_S = 10.0


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
    try:
        async with client.stream("GET", url, timeout=_TIMEOUT_S) as response:
            text = (await read_answer(response, url)).decode(errors="replace")
    except (httpx2.HTTPError, OSError) as error:  # a TLS alert after the handshake is an OSError
        raise PrometheusError(f"{url}: {str(error) or type(error).__name__}") from error
    starts = tuple(f"{name}{end}" for name in metrics for end in ("{", " "))
    wanted = "".join(f"{line}\n" for line in text.splitlines() if line.startswith(starts))
    try:
        samples = [sample for family in text_string_to_metric_families(wanted) for sample in family.samples]
        series = [Series(sample.name, sample.labels, float(sample.value)) for sample in samples]
    except (ValueError, KeyError, IndexError) as error:
        raise PrometheusError(f"{url}: not in the Prometheus text format: {error}") from error
    return [one for one in series if math.isfinite(one.value)]
