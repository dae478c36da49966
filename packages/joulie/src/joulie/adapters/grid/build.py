"""Creates the feed of grid signals from the settings."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

import httpx2
from prometheus_client import CollectorRegistry

from joulie.adapters.grid.feed import FeedLimits, GridFeed
from joulie.adapters.grid.metrics import GridMetrics
from joulie.adapters.grid.provider import OwnRequestRate
from joulie.adapters.grid.settings import MAX_HORIZON_S, GridSettings
from joulie.adapters.grid.source_context import SourceContext
from joulie.adapters.grid.sources import make_source
from joulie.domain.grid.signals import Measure
from joulie.http_client import tls_context
from joulie.ports.grid import RequestRate
from joulie.ports.telemetry import MetricsDatabase, SourceError

Connect = Callable[[], AbstractAsyncContextManager[MetricsDatabase | None]]


@asynccontextmanager
async def open_feed(
    settings: GridSettings,
    prometheus: Connect,
    *,
    registry: CollectorRegistry | None = None,
    now_s: Callable[[], float] = time.time,
    rate: RequestRate | None = None,
) -> AsyncIterator[GridFeed]:
    """Open the feed of the configured sources; the caller also runs it (`GridFeed.run`).

    Args:
        settings: grid settings of the program.
        prometheus: connects to the server of PROMETHEUS_ADDRESS; called only if a source needs it.
        registry: registry for the feed's metrics; None for no metrics.
        now_s: current time, s since the epoch.
        rate: rate limit that the program shares with others; None for its own.

    Raises:
        ValueError: a source is unknown or its options are invalid, or average and marginal intensity are mixed.
    """
    names_by_measure = {Measure.CARBON: settings.carbon_sources}
    if settings.defaults.price_enabled:
        names_by_measure[Measure.PRICE] = settings.pricing_provider
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(httpx2.AsyncClient(verify=tls_context(), follow_redirects=False))
        server = None
        if any("prometheus" in names for names in names_by_measure.values()):
            server = await _connected(prometheus, stack)
        chains, own_rate = {}, OwnRequestRate()
        for measure, names in names_by_measure.items():
            context = SourceContext(settings, measure, client, server, now_s, rate or own_rate)
            chains[measure] = [make_source(name, context) for name in names]
        metrics = GridMetrics(registry or CollectorRegistry(), now_s=now_s)
        feed = GridFeed(
            chains,
            _limits(settings),
            now_s,
            zone=settings.electricity_map_api_region,
            state_file=settings.grid_state_file,
            fetched=metrics.fetched,
        )
        metrics.signals = lambda: (signal for signal in feed.signals() if feed.confirmed(signal.zone))
        yield feed


async def _connected(prometheus: Connect, stack: AsyncExitStack) -> MetricsDatabase | None:
    try:
        return await stack.enter_async_context(prometheus())
    except SourceError as error:
        raise ValueError(str(error)) from error


def _limits(settings: GridSettings) -> FeedLimits:
    # The forecast should cover a run that starts at the end of the maximum delay.
    needed_s = min(settings.defaults.max_delay_s + settings.defaults.runtime_s, MAX_HORIZON_S)
    return FeedLimits(settings.cache_ttl_s, settings.max_cache_age_s, max(settings.grid_forecast_horizon_s, needed_s))
