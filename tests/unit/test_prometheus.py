"""Instant queries and /metrics texts, as they really come."""

import asyncio
import json
import subprocess
import sys

import httpx2
import pytest

from joulie.adapters.prometheus import Prometheus, PrometheusError, Series, scrape
from support.virtual_time import run_virtually


def asked(answer, *, status=200):
    """What a query makes of an answer, and the request that was sent."""
    requests = []

    def handle(request):
        requests.append(request)
        return httpx2.Response(status, content=answer if isinstance(answer, bytes) else json.dumps(answer).encode())

    async def main():
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(handle)) as client:
            return await Prometheus("http://prometheus:9090/", client).query('up{job="x"}')

    return run_virtually(main()), requests[0]


def vector(*series):
    return {"status": "success", "data": {"resultType": "vector", "result": list(series)}}


def test_all_series_of_a_vector():
    found, request = asked(
        vector(
            {"metric": {"__name__": "w", "node": "a"}, "value": [1435781451.781, "12.5"]},
            {"metric": {"node": "b"}, "value": [1435781451, "0"]},
        )
    )
    assert found == [Series("w", {"node": "a"}, 12.5, 1435781451.781), Series("", {"node": "b"}, 0.0, 1435781451.0)]
    assert (request.method, str(request.url)) == ("POST", "http://prometheus:9090/api/v1/query")
    assert request.content == b"query=up%7Bjob%3D%22x%22%7D&timeout=10"


def test_what_is_no_number_is_no_measurement():
    found, _ = asked(vector(*({"metric": {}, "value": [1, text]} for text in ("NaN", "+Inf", "-Inf", "3"))))
    assert [one.value for one in found] == [3.0]


def test_a_scalar_and_an_empty_result():
    assert asked({"status": "success", "data": {"resultType": "scalar", "result": [7, "2"]}})[0] == [
        Series("", {}, 2.0, 7.0)
    ]
    assert asked(vector())[0] == []


@pytest.mark.parametrize(
    ("answer", "status", "words"),
    [
        ({"status": "error", "errorType": "bad_data", "error": "parse error"}, 200, "parse error"),
        ({"status": "success", "data": {"resultType": "matrix", "result": []}}, 200, "got a matrix"),
        (vector({"metric": {}, "value": [1, "many"]}), 200, "many"),
        (b"<html>", 200, "<html>"),
        (b"try later", 503, "503: try later"),
        ({"status": "success"}, 200, "success"),
    ],
)
def test_anything_else_is_an_error_that_says_what_came(answer, status, words):
    with pytest.raises(PrometheusError, match=words):
        asked(answer, status=status)


TEXT = b"""# HELP joulie_gpu_power_watts Power of a GPU, W.
# TYPE joulie_gpu_power_watts gauge
joulie_gpu_power_watts{node="a",gpu="GPU-1"} 55.5
joulie_gpu_power_watts{node="a",gpu="x{y}"} NaN
joulie_gpu_power_watts_more{node="a"} 1.0
joulie_rapl_package_total_power_watts{node="quote\\"d"} 3e2
something_broken{ 1
"""


def scraped(text, status=200):
    async def main():
        transport = httpx2.MockTransport(lambda _request: httpx2.Response(status, content=text))
        async with httpx2.AsyncClient(transport=transport) as client:
            return await scrape(
                client, "http://agent/metrics", ("joulie_gpu_power_watts", "joulie_rapl_package_total_power_watts")
            )

    return asyncio.run(main())


def test_only_the_metrics_that_are_asked_for_are_read():
    assert scraped(TEXT) == [
        Series("joulie_gpu_power_watts", {"node": "a", "gpu": "GPU-1"}, 55.5),
        Series("joulie_rapl_package_total_power_watts", {"node": 'quote"d'}, 300.0),
    ]


def test_a_text_that_is_none_and_an_agent_that_is_gone():
    with pytest.raises(PrometheusError, match="text format"):
        scraped(b'joulie_gpu_power_watts{node="a"} many\n')
    with pytest.raises(PrometheusError, match="404"):
        scraped(b"", status=404)


@pytest.mark.slow
@pytest.mark.usefixtures("unmeasured")
def test_the_agent_gets_it_without_numpy():
    code = "import sys, joulie.adapters.prometheus; print('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
