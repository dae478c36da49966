"""``joulie web``: serves the pages in the cluster, to each of its users what they may see."""

from __future__ import annotations

import asyncio
import logging
import platform
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import click
from prometheus_client import CollectorRegistry
from starlette.requests import Request

from joulie.adapters.kubernetes.client import KubeClient
from joulie.apps.kubectl.accounting import AccountingEndpoint
from joulie.apps.kubectl.leader import LeaderEndpoint
from joulie.apps.kubectl.web.aggregated import AggregatedApi
from joulie.apps.kubectl.web.aggregation import Aggregation
from joulie.apps.kubectl.web.api import WebApi
from joulie.apps.kubectl.web.metrics import WebMetrics
from joulie.apps.kubectl.web.programs import Programs
from joulie.apps.kubectl.web.readers import Readers
from joulie.apps.kubectl.web.server import OPERATIONS, application
from joulie.apps.kubectl.web.sessions import Sessions
from joulie.apps.kubectl.web.settings import WebSettings
from joulie.apps.kubectl.web.sign_in import READER, ClusterAccess
from joulie.apps.kubectl.web.watching import Cluster
from joulie.program import logs, tracing
from joulie.program.certificates import https_files
from joulie.program.http import Probes, Server, lame_duck, observability_app, parse_address
from joulie.program.run import run
from joulie.program.settings import settings_options

_COMPONENT = "joulie-web"

_log = logging.getLogger(__name__)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@settings_options(WebSettings)
def web(settings: WebSettings) -> None:
    """Serve the pages of `kubectl joulie web` in the cluster.

    Readers sign in with a token of the cluster, or through an OIDC proxy. The API server says who they are and which
    namespaces and kinds of objects they see.
    """
    logs.configure(settings.log_level, settings.log_format)
    tracing.configure(_COMPONENT)
    run(lambda stop: serve(settings, stop))


async def serve(
    settings: WebSettings, stop: asyncio.Event, listening: Callable[[int, int | None], None] | None = None
) -> None:
    """Serve until told to stop.

    Args:
        settings: settings of the program.
        stop: set to stop.
        listening: told the ports of the pages and of the proxy's server, once they are open.
    """
    registry = CollectorRegistry()
    metrics = WebMetrics(registry)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            KubeClient.connect(kubeconfig=settings.kubeconfig, context=settings.context, user_agent=_COMPONENT)
        )
        cluster = Cluster(client, "")
        cluster.watch_all()
        readers = Readers(client, cluster, programs_of(settings, client), time.time)
        sessions = Sessions(settings.session_max_age_s, time.time)

        async def api_of(request: Request) -> WebApi:
            return await readers.api_of(request.scope[READER].user)

        probes = Probes()
        probes.add("caches", cluster.why_not_ready)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="joulie-")))
        files = https_files(
            settings.cert_file,
            settings.key_file,
            folder,
            (platform.node(), f"{settings.service_name}.{settings.namespace}.svc", "localhost"),
            time.time(),
        )
        pages = application(api_of)
        access = ClusterAccess(pages, readers, sessions, metrics)
        server = await stack.enter_async_context(
            Server(
                metrics.timed(access, time.monotonic),
                parse_address(settings.addr),
                tls=files if settings.tls else None,
                stop=stop,
            )
        )
        proxy = None
        if settings.proxy_addr:
            trusting = ClusterAccess(pages, readers, sessions, metrics, settings.proxy_headers)
            proxy = await stack.enter_async_context(
                Server(
                    metrics.timed(trusting, time.monotonic),
                    parse_address(settings.proxy_addr),
                    tls=settings.proxy_files(files),
                    stop=stop,
                )
            )
        await stack.enter_async_context(
            Server(observability_app(probes, registry), parse_address(settings.metrics_addr))
        )
        _log.info("listening", extra={"port": server.port, "proxy_port": proxy.port if proxy else None})
        if listening is not None:
            listening(server.port, proxy.port if proxy else None)
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(_watch(cluster))
            if settings.aggregated_api_addr:
                aggregation = Aggregation(
                    client,
                    lambda front: metrics.timed(AggregatedApi(pages, front, OPERATIONS), time.monotonic),
                    parse_address(settings.aggregated_api_addr),
                    files,
                    folder,
                    registers=settings.cert_file is None,
                )
                tasks.create_task(aggregation.run(stop))
            await lame_duck(stop, probes, settings.shutdown_delay_s)
            watching.cancel()


def programs_of(settings: WebSettings, client: KubeClient) -> Programs:
    """Joulie's other programs, reached within the cluster."""
    return Programs(
        client,
        LeaderEndpoint(settings.namespace, settings.operator_port, None, in_cluster=True),
        LeaderEndpoint(
            settings.namespace, settings.grid_port, None, program="grid", https=True, verify=False, in_cluster=True
        ),
        AccountingEndpoint(
            settings.namespace,
            settings.grid_port,
            settings.accounting_url,
            verify=False,
            token_file=settings.accounting_token_file,
        ),
    )


async def _watch(cluster: Cluster) -> None:
    async with asyncio.TaskGroup() as tasks:
        await cluster.start(tasks)
