"""Runtimes learned from earlier runs: the accounting program's answers, asked for on every replica."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx2

from joulie.adapters.program_api.runtimes import fetch_runtimes
from joulie.domain.grid.request import GridRequest
from joulie.domain.runtimes import LearnedRuntime, Workload
from joulie.http_client import RequestError, tls_context

REFRESH_S = 300.0
RETRY_S = 30.0
MAX_AGE_S = 3600.0
"""Time for which the last answer counts while the accounting program is away, s; then defaults do."""
_TIMEOUT_S = 10.0

_log = logging.getLogger(__name__)


class LearnedRuntimes:
    """The learned runtimes of all workloads; without the accounting program none, and requests say so.

    Args:
        url: base URL of the accounting program; empty for none.
        ca_file: certificates that its certificate is verified by; None to accept any, such as its self-signed one.
        token_file: file with the token to send, read for each request, since it expires; None for none.
        quantile: share of the earlier runs that took no longer than the learned runtime, 0..1.
        now_s: current time, s since the epoch.
        asked: called after each request with whether it was answered, and the number of workloads known.

    Attributes:
        changed: called with the workloads whose runtime has changed.
    """

    def __init__(
        self,
        url: str,
        ca_file: Path | None,
        token_file: Path | None,
        quantile: float,
        now_s: Callable[[], float],
        asked: Callable[[bool, int], None],
    ) -> None:
        self._url = url
        self._ca_file = ca_file
        self._token_file = token_file
        self._quantile = quantile
        self._now_s = now_s
        self._known: Mapping[Workload, LearnedRuntime] = {}
        self._answered_s = -math.inf
        self._problem = "accounting has not answered yet" if url else ""
        self.changed: Callable[[set[Workload]], None] = lambda _workloads: None
        self._asked = asked

    def apply(self, request: GridRequest, workload: Workload | None) -> GridRequest:
        """The request with the learned runtime of its workload, unless it states its own.

        Args:
            request: the request.
            workload: whose it is; None for services, and where the owner is not known.
        """
        if workload is None or request.runtime_stated:
            return request
        return request.with_runtime(self._known.get(workload), self._problem)

    async def run(self) -> None:
        """Ask regularly until cancelled."""
        if not self._url:
            return
        verify = tls_context(self._ca_file, verify=self._ca_file is not None)
        async with httpx2.AsyncClient(timeout=_TIMEOUT_S, verify=verify) as http:
            while True:
                await asyncio.sleep(REFRESH_S if await self.refresh(http) else RETRY_S)

    async def refresh(self, http: httpx2.AsyncClient) -> bool:
        """Ask once. Returns whether there was an answer."""
        try:
            token = "" if self._token_file is None else self._token_file.read_text(encoding="utf-8").strip()
            known = await fetch_runtimes(http, self._url, self._quantile, token)
        except (RequestError, httpx2.InvalidURL, OSError) as error:
            self._failed(str(error))
            return False
        self._answered_s, self._problem = self._now_s(), ""
        self._replace(known)
        self._asked(True, len(known))
        return True

    def _failed(self, problem: str) -> None:
        _log.warning("no learned runtimes", extra={"problem": problem})
        if self._now_s() >= self._answered_s + MAX_AGE_S:
            self._problem = "accounting does not answer"
            self._replace({})
        self._asked(False, len(self._known))

    def _replace(self, known: Mapping[Workload, LearnedRuntime]) -> None:
        before, self._known = self._known, known
        self.changed({one for one in before.keys() | known.keys() if before.get(one) != known.get(one)})
