"""``joulie extender``: filters and scores nodes for kube-scheduler by their digital twins."""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial

import click
from prometheus_client import CollectorRegistry

from joulie.adapters.hardware_profiles import load_hardware_profiles
from joulie.adapters.hardware_yaml import catalogue_of
from joulie.adapters.kubernetes.client import KubeClient
from joulie.apps.extender.feed import Feed, NodeLabels
from joulie.apps.extender.fleet import Fleet
from joulie.apps.extender.metrics import ExtenderMetrics, StateCollector
from joulie.apps.extender.node_facts import DEFAULT_PROFILES
from joulie.apps.extender.power_room import PowerRoom
from joulie.apps.extender.server import Extender
from joulie.apps.extender.settings import ExtenderSettings
from joulie.collector import spare_what_lives_long
from joulie.domain.accounting.profiles import HardwareProfiles
from joulie.domain.hardware import Catalogue
from joulie.domain.quantities import SECONDS_PER_MINUTE
from joulie.domain.scoring.marginal_energy import ScoringAim
from joulie.domain.scoring.occupancy import Occupancy
from joulie.domain.scoring.shared_gpus import SharedGpus
from joulie.program import logs, tracing
from joulie.program.http import ALL_INTERFACES, Probes, Server, lame_duck, observability_app, parse_address
from joulie.program.run import run
from joulie.program.settings import settings_options

VIEW_S = 0.1
"""Debounce of changes before requests see them; far below the settling time of the drain guard."""
_AGE_S = 1.0
"""Interval at which views are renewed without changes, since twins become stale with time."""

_log = logging.getLogger(__name__)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@settings_options(ExtenderSettings)
def extender(settings: ExtenderSettings) -> None:
    """Answer kube-scheduler: keep performance pods off capped nodes, score nodes by their digital twins.

    Register it as an extender in a KubeSchedulerConfiguration, with filterVerb, prioritizeVerb and preemptVerb.
    """
    logs.configure(settings.log_level, settings.log_format)
    tracing.configure("joulie-extender")
    try:
        catalogue = catalogue_of(settings.hardware_catalog)
        profiles = _profiles_of(settings)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    run(partial(serve, settings, catalogue, profiles=profiles), fast_loop=True)


async def serve(
    settings: ExtenderSettings,
    catalogue: Catalogue,
    stop: asyncio.Event,
    *,
    profiles: HardwareProfiles = DEFAULT_PROFILES,
) -> None:
    """Serve until told to stop.

    Args:
        settings: settings of the program.
        catalogue: hardware catalogue.
        stop: set to stop.
        profiles: hardware profiles with the default PUEs.
    """
    registry = CollectorRegistry()
    minute_s = SECONDS_PER_MINUTE / settings.time_scale
    occupancy = Occupancy(minute_s) if settings.scoring is ScoringAim.MARGINAL else None
    shared = SharedGpus() if settings.scoring is ScoringAim.FRUGAL else None
    power = PowerRoom() if settings.pods_wait_for_power else None
    fleet = Fleet(
        settings.twin_staleness_s,
        settings.scoring,
        settings.mode,
        intensity_weight=settings.intensity_weight,
        profiles=profiles,
        occupancy=occupancy,
        shared=shared,
        power=power,
    )
    labels = NodeLabels(settings.power_profile_label, settings.mode)
    connection = KubeClient.connect(
        kubeconfig=settings.kubeconfig, context=settings.context, user_agent="joulie-extender"
    )
    async with connection as client:
        feed = Feed(
            client,
            fleet,
            catalogue,
            min_confidence=settings.min_confidence,
            silence_s=settings.cache_ttl_s,
            labels=labels,
            intensity_namespace=settings.intensity_namespace,
            occupancy=occupancy,
            shared=shared,
            power=power,
        )
        door = Extender(fleet, feed.profile, feed.states, ExtenderMetrics(registry), time.time, labels=labels)
        StateCollector(
            lambda: door.view, feed.states, registry, lambda: (0, 0) if power is None else power.tally(time.time())
        )
        probes = Probes()
        probes.add("caches", feed.why_not_ready)
        probes.add("view", lambda: "nothing was computed yet" if door.view is None else None)
        others = door.debug_app(observability_app(probes, registry))
        async with (
            Server(door.app(others), (ALL_INTERFACES, settings.port), tls=settings.tls, stop=stop) as server,
            Server(others, parse_address(settings.metrics_addr)),
            asyncio.TaskGroup() as group,
        ):
            _log.info("listening", extra={"port": server.port, "tls": settings.tls is not None})
            tasks = [group.create_task(feed.run()), group.create_task(_keep_view(feed, door, occupancy))]
            await lame_duck(stop, probes, settings.shutdown_delay_s)
            for task in tasks:
                task.cancel()


def _profiles_of(settings: ExtenderSettings) -> HardwareProfiles:
    """The hardware profiles; ignored entries are logged.

    Raises:
        HardwareProfilesError: the file cannot be read or is not YAML.
    """
    if settings.hardware_profiles is None:
        return DEFAULT_PROFILES
    profiles = load_hardware_profiles(settings.hardware_profiles)
    for problem in profiles.problems:
        _log.warning("hardware profile is ignored", extra={"problem": problem})
    return profiles


async def _keep_view(feed: Feed, door: Extender, occupancy: Occupancy | None) -> None:
    """Set the first view once all caches are synced, then renew it on changes and as twins age, until cancelled."""
    await feed.wait_synced()
    if occupancy is not None:
        occupancy.refresh(time.time())
    door.refresh()
    # What has been listed lives as long as the process: the collector need not look through it ever again.
    spare_what_lives_long()
    _log.info("ready")
    seen, seen_at_s = feed.changes, time.monotonic()
    refreshed_s = seen_at_s
    while True:
        await asyncio.sleep(VIEW_S)
        now_s = time.monotonic()
        if occupancy is not None and now_s - refreshed_s >= occupancy.refresh_s:
            refreshed_s = now_s
            occupancy.refresh(time.time())
        if feed.changes != seen or now_s - seen_at_s >= _AGE_S:
            seen, seen_at_s = feed.changes, now_s
            door.refresh()
