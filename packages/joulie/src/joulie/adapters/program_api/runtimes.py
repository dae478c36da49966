"""The accounting program's HTTP API for runtimes learned from earlier runs; the grid controller reads it."""

from __future__ import annotations

import httpx2
import msgspec

from joulie.domain.runtimes import LearnedRuntime, Workload
from joulie.http_client import RequestError, fetch, shown_body

RUNTIMES_PATH = "/api/v1/runtimes"
_MAX_BYTES = 32 * 2**20


class RuntimeItem(msgspec.Struct, frozen=True, rename="camel"):
    """The learned runtime of one workload.

    Attributes:
        namespace: namespace of the workload.
        kind: CronJob, Job, or the kind of another owner of pods.
        name: name of the owner, without a generated suffix.
        runtime_s: runtime that the share of its runs did not exceed, s.
        runs: number of runs.
    """

    namespace: str
    kind: str
    name: str
    runtime_s: float = msgspec.field(name="runtimeS")
    runs: int


class RuntimesAnswer(msgspec.Struct, frozen=True):
    """The answer at `RUNTIMES_PATH`.

    Attributes:
        quantile: the share, 0..1.
        items: workloads with enough runs.
    """

    quantile: float
    items: list[RuntimeItem]


async def fetch_runtimes(
    http: httpx2.AsyncClient, base_url: str, quantile: float, token: str = ""
) -> dict[Workload, LearnedRuntime]:
    """Runtimes of all workloads, from the accounting program.

    Args:
        http: HTTP client.
        base_url: URL of the program.
        quantile: share of the runs that a runtime is not to be exceeded by, 0..1.
        token: bearer token to send; empty for none.

    Raises:
        RequestError: the program is away, or its answer is not one.
    """
    url = base_url.rstrip("/") + RUNTIMES_PATH
    headers = {"authorization": f"Bearer {token}"} if token else {}
    params = {"quantile": f"{quantile:g}"}
    response, body = await fetch(http, "GET", url, max_bytes=_MAX_BYTES, params=params, headers=headers)
    if response.status_code != httpx2.codes.OK:
        raise RequestError(f"{url}: {response.status_code}: {shown_body(body)}")
    try:
        answer = msgspec.json.decode(body, type=RuntimesAnswer)
    except msgspec.DecodeError as error:
        raise RequestError(f"{url}: unexpected answer: {error}") from error
    return {
        Workload(one.namespace, one.kind, one.name): LearnedRuntime(one.runtime_s, answer.quantile, one.runs)
        for one in answer.items
    }
