"""``joulie accounting``: the program that accounts for energy, emissions and cost of every pod in a durable ledger."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import click

from joulie.adapters.grid.build import open_feed
from joulie.adapters.grid.provider import OwnRequestRate
from joulie.adapters.hardware_profiles import load_hardware_profiles
from joulie.adapters.inventory_file import load_inventory
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.events import EventRecorder
from joulie.adapters.kubernetes.request_rate import SharedRequestRate
from joulie.adapters.ledger import LedgerSettings, open_ledger
from joulie.adapters.prometheus import PrometheusError
from joulie.adapters.signing import Ed25519Signer
from joulie.adapters.thinning import thinner
from joulie.apps.accounting.access import Access
from joulie.apps.accounting.api import EnergyApi
from joulie.apps.accounting.async_ledger import AsyncLedger
from joulie.apps.accounting.budgets import Budgets
from joulie.apps.accounting.closing import Closing, HeadsAddress
from joulie.apps.accounting.controller import Accountant, Components
from joulie.apps.accounting.energy_budgets import EnergyBudgets
from joulie.apps.accounting.facts import HARDWARE_PREFIXES
from joulie.apps.accounting.functional_units import FunctionalUnits
from joulie.apps.accounting.holdouts import Holdouts
from joulie.apps.accounting.metrics import AccountingMetrics
from joulie.apps.accounting.sampler import Sampler, SamplerSettings
from joulie.apps.accounting.settings import AccountingSettings, node_power_ranges
from joulie.apps.accounting.usage import UsageReader
from joulie.apps.accounting.view import ClusterView
from joulie.domain.accounting.identity import PowerRange, PowerSettings
from joulie.domain.accounting.inventory import Inventory
from joulie.domain.accounting.journal import Signer
from joulie.domain.accounting.profiles import HardwareProfiles
from joulie.domain.grid.cloud_regions import CLOUD_REGIONS
from joulie.ports.ledger import Ledger, LedgerError
from joulie.program import logs, tracing
from joulie.program.certificates import https_files
from joulie.program.http import AsgiApp, Probes, Server, TlsFiles, observability_app, parse_address
from joulie.program.run import run, run_parts
from joulie.program.settings import settings_options

_COMPONENT = "joulie-accounting"
_USAGE_TIMEOUT_SHARE = 0.5
"""Timeout of one source, as a share of the sampling interval."""

_log = logging.getLogger(__name__)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@settings_options(AccountingSettings)
def accounting(settings: AccountingSettings) -> None:
    """Account for energy, emissions and cost of every pod.

    Power is sampled, integrated and kept in a ledger that outlives this program. One replica runs.
    """
    logs.configure(settings.log_level, settings.log_format)
    tracing.configure(_COMPONENT, enabled=settings.enable_tracing)
    try:
        parse_address(settings.metrics_addr)
        settings.prometheus_auth.tls_context()
        inventory = Inventory() if settings.inventory is None else load_inventory(settings.inventory)
        sampler = sampler_of(settings, os.environ, inventory)
        keep = ledger_settings(settings)
        key_file = settings.ledger_signing_key_file
        signer = None if key_file is None else Ed25519Signer(key_file)
    except (ValueError, OSError, ImportError, PrometheusError) as error:
        raise click.UsageError(str(error)) from error
    try:
        ledger = open_ledger(settings.ledger_address(), keep)
    except (LedgerError, OSError) as error:
        raise click.ClickException(str(error)) from error
    try:
        run(lambda stop: serve(settings, sampler, ledger, stop, signer, inventory))
    finally:
        ledger.close()


async def serve(
    settings: AccountingSettings,
    sampler: Sampler,
    ledger: Ledger,
    stop: asyncio.Event,
    signer: Signer | None = None,
    inventory: Inventory | None = None,
) -> None:
    """Run the accounting program until `stop` is set.

    Args:
        settings: accounting settings.
        sampler: makes the samples.
        ledger: open ledger; the caller closes it.
        stop: set to request a graceful shutdown.
        signer: key that closes months; None to close none.
        inventory: instruments, residual mixes, and functional units that are counted by a query; None for none.
    """
    inventory = inventory or Inventory()
    metrics = AccountingMetrics(settings.currency, settings.metric_pods, settings.completed_pod_retention_s)
    async_ledger = AsyncLedger(ledger)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            KubeClient.connect(kubeconfig=settings.kubeconfig, context=settings.context, user_agent=_COMPONENT)
        )
        prometheus = await stack.enter_async_context(settings.prometheus())
        rate = SharedRequestRate(client, settings.namespace, time.time, OwnRequestRate())
        feed = await stack.enter_async_context(
            open_feed(settings, settings.prometheus, registry=metrics.registry, rate=rate)
        )
        view = ClusterView(client, time.time, settings.label_keys)
        events = EventRecorder(client, _COMPONENT, instance=platform.node())
        usage = UsageReader(
            client,
            prometheus,
            window_s=settings.prometheus_window_s,
            timeout_s=settings.sampling_interval_s * _USAGE_TIMEOUT_SHARE,
            now_s=time.time,
        )
        budgets = Budgets(client, async_ledger, events, metrics, mode=settings.mode)
        heads = HeadsAddress(settings.namespace, settings.ledger_heads_config_map)
        closing = Closing(client, async_ledger, events, heads, signer, settings.ledger_close_after_s)
        energy_budgets = EnergyBudgets(client, async_ledger, events, settings.currency)
        functional_units = FunctionalUnits(prometheus, async_ledger, inventory.units)
        holdouts = Holdouts(client, async_ledger, settings.namespace)
        components = Components(
            view,
            usage,
            sampler,
            feed,
            async_ledger,
            budgets,
            energy_budgets,
            events,
            metrics,
            closing,
            functional_units,
            holdouts,
        )
        accountant = Accountant(components, settings.sampling_interval_s, settings.carbon_basis, time.time)
        probes = Probes()
        probes.add("caches", view.why_not_ready)
        access = Access(client, time.time) if settings.api_authorization else None
        keys = settings.label_keys
        api = EnergyApi(async_ledger, settings.currency, time.time, access, inventory, keys, holdouts)
        app = api.before(observability_app(probes, metrics.registry))
        server = await stack.enter_async_context(_server(settings, app))
        _log.info("accounting started", extra={"metrics_port": server.port})
        try:
            await run_parts(
                stop,
                {
                    "caches": view.run(),
                    "energy budgets": energy_budgets.run(),
                    "grid": feed.run(),
                    "events": events.run(),
                    "accountant": accountant.run(),
                },
            )
        finally:
            # Wait for a call in flight before the ledger is closed.
            await async_ledger.call(lambda _ledger: None)
            await _keep(holdouts)
    _log.info("accounting stopped")


async def _keep(holdouts: Holdouts) -> None:
    """Keep the evidence of holdouts at the end; what cannot be kept is that of ten minutes."""
    try:
        await holdouts.keep()
    except LedgerError as error:
        _log.error("evidence of holdouts not kept", extra={"problem": str(error)})


def sampler_of(
    settings: AccountingSettings, environment: Mapping[str, str], inventory: Inventory | None = None
) -> Sampler:
    """The sampler configured by the settings and NODE_POWER_CONFIG_*. Invalid hardware profiles are logged and skipped.

    Raises:
        ValueError: invalid profiles file, or invalid power of a node.
    """
    profiles = HardwareProfiles()
    if settings.hardware_profiles is not None:
        profiles = load_hardware_profiles(settings.hardware_profiles)
    for problem in profiles.problems:
        _log.warning("hardware profile is ignored", extra={"problem": problem})
    power = PowerSettings(
        PowerRange(settings.node_default_idle_w, settings.node_default_max_w), node_power_ranges(environment)
    )
    regions = {**CLOUD_REGIONS, **settings.grid_zones}
    inventory = inventory or Inventory()
    for one in inventory.nodes:
        if unread := [key for key in one.labels if not key.startswith(HARDWARE_PREFIXES)]:
            raise ValueError(
                f"INVENTORY_PATH: label {unread[0]} of nodes is not read; use one that begins with "
                + ", ".join(HARDWARE_PREFIXES)
            )
    return Sampler(
        SamplerSettings(profiles, power, settings.electricity_map_api_region, regions, inventory, settings.label_keys)
    )


def ledger_settings(settings: AccountingSettings) -> LedgerSettings:
    """The ledger's limits and retention times.

    Raises:
        ImportError: the downsampling strategy needs a library that is not installed.
    """
    return LedgerSettings(
        max_samples_per_pod=settings.max_samples_per_pod,
        thinner=thinner(settings.downsampling_strategy),
        retention_s=settings.completed_pod_retention_s,
        hours_kept_s=settings.ledger_hours_s,
        days_kept_s=settings.ledger_days_s,
        corrections_s=settings.ledger_corrections_s,
        max_gap_s=max(600.0, 3.0 * settings.sampling_interval_s),
    )


@asynccontextmanager
async def _server(settings: AccountingSettings, app: AsgiApp) -> AsyncIterator[Server]:
    """The program's HTTP server; it uses HTTPS unless that is disabled."""
    with tempfile.TemporaryDirectory(prefix="joulie-") as folder:
        tls: TlsFiles | None = None
        if settings.metrics_tls:
            hosts = (platform.node(), "localhost")
            tls = https_files(settings.metrics_cert_file, settings.metrics_key_file, Path(folder), hosts, time.time())
        async with Server(app, parse_address(settings.metrics_addr), tls=tls) as server:
            yield server
