"""Scraping of /metrics endpoints in the Prometheus text format."""

from __future__ import annotations

import math
from collections.abc import Collection

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from joulie.adapters.prometheus.answers import MAX_BYTES, PrometheusError, Series
from joulie.http_client import RequestError, fetch, shown_body

_TIMEOUT_S = 10.0


async def scrape(client: httpx2.AsyncClient, url: str, metrics: Collection[str]) -> list[Series]:
    """Scrape a /metrics endpoint and return the series of some of its metrics.

    Lines of other metrics are skipped before they are parsed: an agent of a thousand nodes exports many.

    Args:
        client: HTTP client to send the request with.
        url: address of the endpoint.
        metrics: sample names to keep, as they appear in the text.

    Raises:
        PrometheusError: the request failed, or the response is not in the text format.
    """
    try:
        response, body = await fetch(client, "GET", url, max_bytes=MAX_BYTES, timeout=_TIMEOUT_S)
    except RequestError as error:
        raise PrometheusError(f"{url}: {error}") from error
    if not response.is_success:
        raise PrometheusError(f"{url}: {response.status_code}: {shown_body(body)}")
    text = body.decode(errors="replace")
    starts = tuple(f"{name}{end}" for name in metrics for end in ("{", " "))
    wanted = "".join(f"{line}\n" for line in text.splitlines() if line.startswith(starts))
    try:
        samples = [sample for family in text_string_to_metric_families(wanted) for sample in family.samples]
        series = [Series(sample.name, sample.labels, float(sample.value)) for sample in samples]
    except (ValueError, KeyError, IndexError) as error:
        raise PrometheusError(f"{url}: not in the Prometheus text format: {error}") from error
    return [one for one in series if math.isfinite(one.value)]
