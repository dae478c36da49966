"""``joulie operator``: the program that runs the cluster's control loop.

Every replica keeps its watch caches warm and serves metrics; the one that holds the Lease runs the control loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import click
import httpx2

from joulie.adapters.hardware_yaml import catalogue_of
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.prometheus import PrometheusError
from joulie.apps.operator import plugins
from joulie.apps.operator.budgets.alerts import AlertReductions
from joulie.apps.operator.loop import ControlLoop
from joulie.apps.operator.metrics import OperatorMetrics
from joulie.apps.operator.observe import ClusterView
from joulie.apps.operator.power.wiring import Clients
from joulie.apps.operator.settings import OperatorSettings
from joulie.domain.hardware import Catalogue
from joulie.http_client import tls_context
from joulie.program import logs, tracing
from joulie.program.http import Probes, Server, TlsFiles, observability_app, parse_address
from joulie.program.leadership import lead
from joulie.program.run import run, run_parts
from joulie.program.settings import settings_options

LEASE_NAME = "joulie-operator"

_log = logging.getLogger(__name__)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@settings_options(OperatorSettings)
def operator(settings: OperatorSettings) -> None:
    """Plan power profiles, guard drains and keep the digital twins of all nodes.

    Several replicas may run: the one that holds a Lease leads, the others stand by with warm caches.
    """
    logs.configure(settings.log_level, settings.log_format)
    tracing.configure("joulie-operator")
    try:
        plugins.policy(settings.policy_type, settings.policy)
        plugins.cooling_model(settings.cooling_model)
        catalogue = catalogue_of(settings.hardware_catalog)
        parse_address(settings.metrics_addr)
        if settings.alerts_addr:
            parse_address(settings.alerts_addr)
        settings.prometheus_auth.tls_context()
        tls_context(settings.sleep_switches_ca)
    except (OSError, ValueError, PrometheusError) as error:
        raise click.UsageError(str(error)) from error
    run(lambda stop: serve(settings, catalogue, stop))


async def serve(settings: OperatorSettings, catalogue: Catalogue, stop: asyncio.Event) -> None:
    """Run the operator until `stop` is set.

    Args:
        settings: operator settings.
        catalogue: hardware catalogue.
        stop: set to request a graceful shutdown, which releases the lease so that another replica takes over at once.
    """
    metrics = OperatorMetrics()
    probes = Probes()
    client = KubeClient.connect(kubeconfig=settings.kubeconfig, context=settings.context, user_agent="joulie-operator")
    async with client, httpx2.AsyncClient(verify=tls_context()) as http, settings.prometheus() as prometheus:
        wake = asyncio.Event()
        view = ClusterView(client, settings, catalogue, wake=wake.set)
        probes.add("caches", view.why_not_ready)
        app = metrics.power.reports.before(observability_app(probes, metrics.registry), time.time)
        clients = Clients(client, http, prometheus)
        async with Server(app, parse_address(settings.metrics_addr)) as server, _alerts(settings, client):
            _log.info("operator started", extra={"metrics_port": server.port, "policy": settings.policy_type})
            # The control loop ends first: it releases the lease, for which it still needs the client.
            lead = _lead(settings, catalogue, clients, view, wake, metrics)
            await run_parts(stop, {"caches": view.run(), "control loop": lead})
    _log.info("operator stopped")


@asynccontextmanager
async def _alerts(settings: OperatorSettings, client: KubeClient) -> AsyncIterator[None]:
    """Answer Alertmanager's webhook meanwhile, if that is asked for."""
    if not settings.alerts_addr or settings.alerts_token_file is None:
        yield
        return
    app = AlertReductions(client, settings, settings.alerts_token_file, time.time).app
    certificate, key = settings.alerts_certificate, settings.alerts_key
    tls = None if certificate is None or key is None else TlsFiles(certificate, key)
    async with Server(app, parse_address(settings.alerts_addr), tls=tls) as server:
        _log.info("alerts reduce power budgets", extra={"port": server.port, "tls": tls is not None})
        yield


async def _lead(
    settings: OperatorSettings,
    catalogue: Catalogue,
    clients: Clients,
    view: ClusterView,
    wake: asyncio.Event,
    metrics: OperatorMetrics,
) -> None:
    """Run the control loop whenever this replica leads."""

    async def control(may_write: Callable[[], bool]) -> None:
        loop = ControlLoop(
            settings,
            catalogue,
            clients,
            view,
            wake,
            metrics,
            policy=plugins.policy(settings.policy_type, replace(settings.policy, catalogue=catalogue)),
            cooling=plugins.cooling_model(settings.cooling_model),
            may_write=may_write,
            now_s=time.time,
        )
        metrics.lead()
        try:
            await loop.run()
        finally:
            metrics.stood_down()

    await lead(settings, clients.client, LEASE_NAME, view, control)
