"""``joulie grid``: holds pods, Jobs and queued workloads until power is clean or cheap.

`serve` runs the grid feed and the watch caches on every replica, and the controller on the one that holds the Lease.
"""

from __future__ import annotations

import asyncio
import logging
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click

from joulie.adapters.grid.build import open_feed
from joulie.adapters.grid.feed import GridFeed
from joulie.adapters.grid.provider import OwnRequestRate
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.request_rate import SharedRequestRate
from joulie.apps.grid.controller import Controller
from joulie.apps.grid.metrics import ControllerMetrics
from joulie.apps.grid.observe import GridView
from joulie.apps.grid.runtimes import LearnedRuntimes
from joulie.apps.grid.settings import ControllerSettings
from joulie.apps.grid.status_endpoint import GridStatus
from joulie.domain.grid.cloud_regions import CLOUD_REGIONS
from joulie.domain.grid.signals import Measure
from joulie.program import logs, tracing
from joulie.program.certificates import https_files
from joulie.program.commands import Command, CommandGroup
from joulie.program.http import AsgiApp, Probes, Server, TlsFiles, observability_app, parse_address
from joulie.program.leadership import lead
from joulie.program.run import run, run_parts
from joulie.program.settings import settings_options

LEASE_NAME = "joulie-grid"
_OTHERS = (
    Command("grid best", "joulie.apps.grid.pipelines", "Print the best time for a run by carbon intensity and price."),
    Command("grid wait", "joulie.apps.grid.pipelines", "Wait for the best time, then run a command."),
    Command("grid guard", "joulie.apps.grid.guard", "Lift the gates of pods past their latest start, resume Jobs."),
    Command(
        "grid webhook",
        "joulie.apps.grid.webhook",
        "Gate pods at creation, for API servers without MutatingAdmissionPolicy.",
    ),
)

_log = logging.getLogger(__name__)


_LABORATORY = (("backtest",), "pip install joulie-lab")


@click.group(
    cls=CommandGroup,
    path="grid",
    lazy=_OTHERS,
    elsewhere=_LABORATORY,
    context_settings={"help_option_names": ["-h", "--help"]},
)
def grid() -> None:
    """Hold pods until power is clean or cheap."""


@grid.command()
@settings_options(ControllerSettings)
def controller(settings: ControllerSettings) -> None:
    """Decide when gated pods start, and lift their gates.

    Several replicas may run: one leads by holding a Lease, the others stand by with warm caches.
    """
    logs.configure(settings.log_level, settings.log_format)
    tracing.configure("joulie-grid", enabled=settings.enable_tracing)
    try:
        parse_address(settings.metrics_addr)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    run(lambda stop: serve(settings, stop))


async def serve(settings: ControllerSettings, stop: asyncio.Event) -> None:
    """Run the controller until `stop` is set.

    Args:
        settings: settings of the program.
        stop: set for a graceful end, which releases the lease, so that another replica takes over at once.
    """
    client = KubeClient.connect(kubeconfig=settings.kubeconfig, context=settings.context, user_agent="joulie-grid")
    metrics = ControllerMetrics()
    rate = SharedRequestRate(client, settings.namespace, time.time, OwnRequestRate())
    async with client, open_feed(settings, settings.prometheus, registry=metrics.registry, rate=rate) as feed:
        with tempfile.TemporaryDirectory(prefix="joulie-grid-") as folder:
            program = _Program(settings, client, feed, metrics)
            tls = _tls(settings, Path(folder))
            async with Server(program.app(), parse_address(settings.metrics_addr), tls=tls) as server:
                _log.info("grid controller started", extra={"metrics_port": server.port, "https": tls is not None})
                await program.run(stop)
    _log.info("grid controller stopped")


def _tls(settings: ControllerSettings, folder: Path) -> TlsFiles | None:
    if not settings.metrics_tls:
        return None
    configured = settings.metrics_tls_cert_file, settings.metrics_tls_key_file
    return https_files(*configured, folder, [platform.node() or "localhost", "localhost", "127.0.0.1"], time.time())


class _Program:
    """Feed and caches, which run on every replica, and the controller, which runs only while this one leads."""

    def __init__(
        self, settings: ControllerSettings, client: KubeClient, feed: GridFeed, metrics: ControllerMetrics
    ) -> None:
        self._settings = settings
        self._client = client
        self._feed = feed
        self._metrics = metrics
        self._wake = asyncio.Event()
        self._controller: Controller | None = None
        regions = {**CLOUD_REGIONS, **settings.grid_zones}
        self._runtimes = LearnedRuntimes(
            settings.accounting_url,
            settings.accounting_ca_file,
            settings.accounting_token_file,
            settings.runtime_quantile,
            time.time,
            metrics.runtimes_asked,
        )
        self._view = GridView(
            client,
            settings.defaults,
            settings.electricity_map_api_region,
            regions,
            runtimes=self._runtimes,
            mode=settings.mode,
            wake=self._wake.set,
        )
        self._status = GridStatus(feed)
        metrics.show(feed.signals)
        feed.add_listener(self._signal_changed)

    def app(self) -> AsgiApp:
        """ASGI application with probes, metrics and the debug page."""
        probes = Probes()
        probes.add("caches", self._view.why_not_ready)
        return self._status.mounted(observability_app(probes, self._metrics.registry), time.time)

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set or a part fails."""
        # The controller ends first: it releases the lease while the client still works.
        controller = lead(self._settings, self._client, LEASE_NAME, self._view, self._control)
        await run_parts(
            stop,
            {
                "feed": self._feed.run(),
                "caches": self._view.run(),
                "runtimes": self._learn_runtimes(),
                "controller": controller,
            },
        )

    async def _learn_runtimes(self) -> None:
        await self._runtimes.run()
        await asyncio.Event().wait()  # without accounting there is nothing to do, which is no reason to end

    def _signal_changed(self, _measure: Measure, zone: str) -> None:
        if self._controller is not None:
            self._controller.zone_changed(zone)

    async def _control(self, may_write: Callable[[], bool]) -> None:
        leading = Controller(
            self._client,
            self._settings,
            self._view,
            self._feed,
            self._metrics,
            self._wake,
            may_write=may_write,
            now_s=time.time,
        )
        self._controller = self._status.controller = leading
        self._metrics.lead(leading.pending)
        try:
            await leading.run()
        finally:
            self._controller = self._status.controller = None
            self._metrics.stood_down()
