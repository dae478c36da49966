"""A Prometheus of few lines: answers queries by what they ask for, over the real client."""

import asyncio
import json
import math
from urllib.parse import parse_qs

import httpx2

from joulie.adapters.prometheus import Prometheus

NOW_S = 1_800_000_000.0


def vector(*series):
    """Body of a vector: labels and value of each series."""
    result = [{"metric": labels, "value": [NOW_S, _text(value)]} for labels, value in series]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


def matrix(*series):
    """Body of a matrix: labels and samples (age in s, value) of each series."""
    result = [
        {"metric": labels, "values": [[NOW_S - age_s, _text(value)] for age_s, value in samples]}
        for labels, samples in series
    ]
    return {"status": "success", "data": {"resultType": "matrix", "result": result}}


def counter(labels, rate, *, start=1000.0, ages=(60, 45, 30, 15, 0)):
    """A series that counts `rate` a second."""
    return labels, [(age_s, start + rate * (ages[0] - age_s)) for age_s in ages]


def asked_of(answers, ask):
    """What `ask` makes of a Prometheus, and the queries that it sent.

    Args:
        answers: body by a text that the query contains; the first one that fits. No answer fits: an empty vector.
        ask: coroutine function that gets the client.
    """
    queries = []

    def handle(request):
        query = parse_qs(request.content.decode())["query"][0]
        queries.append(query)
        body = next((body for text, body in answers.items() if text in query), None)
        if body is None:
            body = matrix() if query.endswith("s]") else vector()
        return httpx2.Response(200, content=json.dumps(body).encode())

    async def main():
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(handle)) as client:
            return await ask(Prometheus("http://prometheus:9090", client))

    return asyncio.run(main()), queries


def _text(value):
    if isinstance(value, str):
        return value
    return repr(value) if math.isfinite(value) else {math.inf: "+Inf", -math.inf: "-Inf"}.get(value, "NaN")
