"""HTTP routes of `kubectl joulie web`: pages, the API, and static files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from joulie.adapters.kubernetes.errors import ApiError, KubernetesError
from joulie.adapters.program_api.energy import EnergyAnswer, ExportItem, SavingsAnswer
from joulie.adapters.program_api.grid import GridAnswer
from joulie.adapters.program_api.power import PowerAnswer
from joulie.adapters.program_api.report import ReportAnswer
from joulie.apps.kubectl.export import can_write_parquet, csv_of, write_parquet
from joulie.apps.kubectl.report import can_write_pdf, written_pdf
from joulie.apps.kubectl.web import openapi, pages
from joulie.apps.kubectl.web.answers import (
    FleetAnswer,
    HealthAnswer,
    NodeAnswer,
    PlansAnswer,
    PodsAnswer,
    SignalsAnswer,
)
from joulie.apps.kubectl.web.api import WebApi
from joulie.apps.kubectl.web.energy import energy_view
from joulie.apps.kubectl.web.openapi import Operation
from joulie.apps.kubectl.web.programs import problem_of
from joulie.apps.kubectl.web.sign_in import READER
from joulie.domain.accounting.journal import Month
from joulie.program.http import AsgiApp, json_body
from joulie.program.queries import QueryError, choice

_STATIC = Path(__file__).with_name("static")
_EXPORTS = {"csv": "text/csv; charset=utf-8", "ndjson": "application/x-ndjson"}
_PARQUET = "parquet"
_PDF = "pdf"
_UNSIGNED = "Not signed: `joulie ledger report MONTH -o pdf --key FILE` signs."
_PERIOD = {"since": "Start of the period, s before now.", "namespace": "Namespace of the pods."}
_PAGING = {"limit": "Maximum number of items.", "continue": "The field continue of the page before."}
OPERATIONS = (
    Operation("/api/v1/fleet", "All nodes.", FleetAnswer, _PAGING),
    Operation("/api/v1/nodes/{name}", "One node.", NodeAnswer, {}),
    Operation("/api/v1/health", "What works and what does not.", HealthAnswer, {}),
    Operation(
        "/api/v1/pods",
        "Unfinished pods and budgets.",
        PodsAnswer,
        {
            "namespace": "Namespace of the pods.",
            "name": "Name of the only pod.",
            "state": "waiting, limited or running.",
            **_PAGING,
        },
    ),
    Operation(
        "/api/v1/energy",
        "Energy, emissions and cost.",
        EnergyAnswer,
        {
            "by": "One or two of pod, job, namespace, node, day, hour and label:KEY (of labelKeys), comma between.",
            "step": "hour or day: sums of each.",
            "until": "End of the period, s before now.",
            **_PERIOD,
            "node": "Node of the pods.",
            **_PAGING,
        },
    ),
    Operation(
        "/api/v1/savings", "Emissions and cost saved by deferral, negative where it cost.", SavingsAnswer, _PERIOD
    ),
    Operation(
        "/api/v1/report",
        "Emissions of a month by workload (ISO/IEC 21031, GHG Protocol).",
        ReportAnswer,
        {
            "month": "Month of UTC, such as 2026-10; the present one without.",
            "namespace": _PERIOD["namespace"],
            "format": "json, or pdf where typst is installed.",
        },
    ),
    Operation(
        "/api/v1/export",
        "Stored rows, in a file.",
        ExportItem,
        {"format": "csv or ndjson; parquet where Polars is installed.", **_PERIOD},
        media_type="application/x-ndjson",
    ),
    Operation("/api/v1/plans", "What would be changed, trials, and limits of power.", PlansAnswer, {}),
    Operation(
        "/api/v1/power",
        "Power now.",
        PowerAnswer,
        {"kind": "nodes, pods or namespaces.", "namespace": "Namespace of the pods."},
    ),
    Operation(
        "/api/v1/grid",
        "What the grid controller decides, and why.",
        GridAnswer,
        {"pod": "Namespace and name of the only pod, such as team/train-0; all without."},
    ),
    Operation("/api/v1/signals", "Carbon intensity and prices, now and ahead.", SignalsAnswer, {}),
)


ApiOf = Callable[[Request], Awaitable[WebApi]]
"""Finds the API as the sender of a request may see it."""


def application(api_of: ApiOf) -> AsgiApp:
    """The pages and the API, without protection: see `joulie.apps.kubectl.web.access`."""
    routes = _Routes(api_of)
    return Starlette(
        routes=[
            Route("/", routes.fleet_page),
            Route("/nodes/{name}", routes.node_page),
            Route("/health", routes.health_page),
            Route("/pods", routes.pods_page),
            Route("/energy", routes.energy_page),
            Route("/plans", routes.plans_page),
            Route("/api/v1/plans", routes.plans),
            Route("/api/v1/openapi.json", routes.description),
            Route("/api/v1/fleet", routes.fleet),
            Route("/api/v1/nodes/{name}", routes.node),
            Route("/api/v1/health", routes.health),
            Route("/api/v1/pods", routes.pods),
            Route("/api/v1/energy", routes.energy),
            Route("/api/v1/savings", routes.savings),
            Route("/api/v1/report", routes.report),
            Route("/api/v1/export", routes.export),
            Route("/api/v1/signals", routes.signals),
            Route("/api/v1/power", routes.power),
            Route("/api/v1/grid", routes.grid),
            Mount("/static", StaticFiles(directory=_STATIC)),
        ],
        middleware=[Middleware(GZipMiddleware, compresslevel=5)],
        exception_handlers={QueryError: _invalid, KubernetesError: _unavailable},
    )


class _Routes:
    def __init__(self, api_of: ApiOf) -> None:
        self._api_of = api_of

    async def description(self, _request: Request) -> Response:
        return _json(openapi.document(OPERATIONS))

    async def fleet(self, request: Request) -> Response:
        return _json((await self._api_of(request)).fleet(request.query_params))

    async def node(self, request: Request) -> Response:
        answer = await (await self._api_of(request)).node(request.path_params["name"])
        return PlainTextResponse("no such node\n", 404) if answer is None else _json(answer)

    async def health(self, request: Request) -> Response:
        return _json(await (await self._api_of(request)).health(request.query_params))

    async def pods(self, request: Request) -> Response:
        return _json(await (await self._api_of(request)).pods(request.query_params))

    async def energy(self, request: Request) -> Response:
        return _json(await (await self._api_of(request)).programs.energy(request.query_params))

    async def savings(self, request: Request) -> Response:
        return _json(await (await self._api_of(request)).programs.savings(request.query_params))

    async def report(self, request: Request) -> Response:
        forms = ("json", _PDF) if can_write_pdf() else ("json",)
        form = choice(request.query_params, "format", forms, "json")
        answer = await (await self._api_of(request)).programs.report(request.query_params)
        if form != _PDF:
            return _json(answer)
        document = msgspec.to_builtins(answer)
        ends_s = int(Month.parse(answer.month).ends_s)
        content = await asyncio.to_thread(written_pdf, answer, document, ends_s, [_UNSIGNED])
        named = {"content-disposition": f'attachment; filename="report-{answer.month}.pdf"'}
        return Response(content, media_type="application/pdf", headers=named)

    async def signals(self, request: Request) -> Response:
        return _json(await (await self._api_of(request)).signals())

    async def power(self, request: Request) -> Response:
        return _json(await (await self._api_of(request)).programs.power(request.query_params))

    async def grid(self, request: Request) -> Response:
        return _json(await (await self._api_of(request)).programs.grid_state(request.query_params))

    async def plans(self, request: Request) -> Response:
        return _json((await self._api_of(request)).plans())

    async def plans_page(self, request: Request) -> Response:
        return _page(request, "plans.html", answer=(await self._api_of(request)).plans())

    async def export(self, request: Request) -> Response:
        forms = (*_EXPORTS, _PARQUET) if can_write_parquet() else tuple(_EXPORTS)
        form = choice(request.query_params, "format", forms, "csv")
        parts = await (await self._api_of(request)).programs.export(request.query_params)
        # A failure at the beginning is told by the status; later ones can only cut the file off.
        parts = _resumed(await anext(parts, b""), parts)
        named = {"content-disposition": f'attachment; filename="energy.{form}"'}
        if form == _PARQUET:
            return await _parquet(parts, named)
        return StreamingResponse(csv_of(parts) if form == "csv" else parts, media_type=_EXPORTS[form], headers=named)

    async def fleet_page(self, request: Request) -> Response:
        state = (await self._api_of(request)).cluster.state()
        view = pages.fleet_view(state.nodes, request.query_params)
        return _page(request, "fleet.html", answer=state, view=view)

    async def node_page(self, request: Request) -> Response:
        answer = await (await self._api_of(request)).node(request.path_params["name"])
        if answer is None:
            return _page(request, "missing.html", 404, name=request.path_params["name"])
        return _page(request, "node.html", answer=answer)

    async def health_page(self, request: Request) -> Response:
        return _page(request, "health.html", answer=await (await self._api_of(request)).health(request.query_params))

    async def pods_page(self, request: Request) -> Response:
        return _page(request, "pods.html", answer=await (await self._api_of(request)).pods(request.query_params))

    async def energy_page(self, request: Request) -> Response:
        api = await self._api_of(request)
        view = await energy_view(api.programs, api.cluster, request.query_params)
        return _page(request, "energy.html", view=view, parquet=can_write_parquet(), pdf=can_write_pdf())


async def _resumed(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for part in rest:
        yield part


async def _parquet(parts: AsyncIterator[bytes], headers: Mapping[str, str]) -> Response:
    """A Parquet file is written whole before it is sent: its index is at its end."""
    folder = await asyncio.to_thread(mkdtemp, prefix="joulie-export-")
    gone = BackgroundTask(rmtree, folder, ignore_errors=True)
    file = Path(folder) / "energy.parquet"
    try:
        await write_parquet(parts, file)
    except OSError as error:
        await gone()
        return PlainTextResponse(f"the file cannot be written: {error.strerror or error}\n", 507)
    except BaseException:
        await gone()
        raise
    return FileResponse(file, headers=headers, media_type="application/vnd.apache.parquet", background=gone)


def _json(answer: Any) -> Response:
    return Response(json_body(answer), media_type="application/json")


def _page(request: Request, template: str, status: int = 200, **values: Any) -> Response:
    query, reader = request.query_params, request.scope.get(READER)
    return HTMLResponse(pages.render(template, path=request.url.path, query=query, reader=reader, **values), status)


async def _invalid(_request: Request, error: Exception) -> Response:
    return PlainTextResponse(f"{error}\n", 400)


async def _unavailable(_request: Request, error: Exception) -> Response:
    assert isinstance(error, KubernetesError)
    return PlainTextResponse(f"{problem_of(error)}\n", error.status if isinstance(error, ApiError) else 503)
