"""``joulie grid best`` and ``joulie grid wait``: the best time for a run, for pipelines and scripts.

They decide as the controller does, from the same sources and settings. A missing signal holds nobody up: it is said on
stderr, and the exit status tells.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import click
import msgspec

from joulie.adapters.grid.build import open_feed
from joulie.adapters.grid.feed import GridFeed
from joulie.adapters.grid.settings import GridSettings
from joulie.adapters.kubernetes.times import rfc3339
from joulie.adapters.prometheus.settings import PrometheusSettings
from joulie.domain.durations import duration_s
from joulie.domain.grid.deferral import (
    Conditions,
    FinishBy,
    Hold,
    Release,
    ReleaseReason,
    Waiting,
    decide,
    duration_text,
)
from joulie.domain.grid.request import Asked, GridRequest, Mode
from joulie.domain.grid.signals import GridSignal
from joulie.program import logs
from joulie.program.documents import print_document
from joulie.program.settings import settings_options

PATIENCE_S = 60.0
"""How long the sources may take for their first answer, s."""
LONGEST_SLEEP_S = 60.0
_POLL_S = 0.2


class ExitStatus(IntEnum):
    """Exit statuses, beside 2 for a usage error; with a command, its own status takes the place of these."""

    BEST = 0
    NO_SIGNAL = 3
    """Neither carbon intensity nor price is known: start at once."""
    DEADLINE = 4
    """The latest start came first."""


_STATUSES = {ReleaseReason.MISSING: ExitStatus.NO_SIGNAL, ReleaseReason.DEADLINE: ExitStatus.DEADLINE}


@dataclass(frozen=True, kw_only=True)
class PipelineSettings(GridSettings, PrometheusSettings):
    """Settings of `joulie grid best` and `joulie grid wait`: those of the controller's signals."""


class BestTime(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The answer of `joulie grid best`.

    Attributes:
        zone: grid zone.
        start: when to start, RFC 3339.
        start_in_s: time until then, s.
        latest_start: until when to start, RFC 3339.
        reason: why: window, clean, missing, deadline, carbon, price or both.
        text: the same in words.
        carbon_now_g_per_kwh: expected mean of a run that starts now, gCO2eq/kWh; absent where it is unknown.
        carbon_best_g_per_kwh: expected mean of a run that starts then, gCO2eq/kWh.
        price_now_per_kwh: the same for the price, currency/kWh.
        price_best_per_kwh: the same for the price, currency/kWh.
    """

    zone: str
    start: str
    start_in_s: float
    latest_start: str
    reason: str
    text: str
    carbon_now_g_per_kwh: float | None = None
    carbon_best_g_per_kwh: float | None = None
    price_now_per_kwh: float | None = None
    price_best_per_kwh: float | None = None


class _Duration(click.ParamType[float]):
    """Duration option in s, above 0."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse a duration such as ``2h`` into seconds."""
        try:
            seconds = value if isinstance(value, float) else duration_s(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if seconds <= 0.0:
            self.fail("must be longer than 0", param, ctx)
        return seconds


def _run_options(command: Callable[..., None]) -> Callable[..., None]:
    """Options that say what is to run, and until when."""
    options = (
        click.option("--duration", "runtime_s", type=_Duration(), required=True, help="How long it runs: 2h, 90m."),
        click.option("--within", "within_s", type=_Duration(), required=True, help="It is to be done after: 24h."),
        click.option("--zone", help="Grid zone; the setting ELECTRICITY_MAP_API_REGION if omitted."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command("best")
@_run_options
@click.option("-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", help="Output format.")
@settings_options(PipelineSettings)
def best(settings: PipelineSettings, runtime_s: float, within_s: float, zone: str | None, output: str) -> None:
    """Print the best time for a run by carbon intensity and price.

    Exit status 0: the time is by signals. 3: no signal is known, so the time is now. 2: a usage error.
    """
    waiting = _waiting(settings, runtime_s, within_s, time.time(), Mode.OPTIMAL)
    _quiet()
    answer, status = asyncio.run(_best(_in_zone(settings, zone), waiting))
    if output == "table":
        _print(answer)
    else:
        print_document(msgspec.to_builtins(answer), output)
    raise SystemExit(status)


@click.command("wait", context_settings={"allow_interspersed_args": False})
@_run_options
@click.option("--mode", type=click.Choice(["optimal", "threshold"]), default="optimal", help="How the time is chosen.")
@settings_options(PipelineSettings)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def wait(
    settings: PipelineSettings,
    runtime_s: float,
    within_s: float,
    zone: str | None,
    mode: str,
    command: tuple[str, ...],
) -> None:
    """Wait for the best time, then run COMMAND, whose exit status is handed through.

    Without COMMAND, exit status 0: the time has come. 3: no signal is known. 4: the latest start came first. In all of
    these cases a command is run. 2: a usage error, and nothing is run.
    """
    waiting = _waiting(settings, runtime_s, within_s, time.time(), Mode(mode))
    _quiet()
    release = asyncio.run(_wait(_in_zone(settings, zone), waiting))
    if not command:
        raise SystemExit(_STATUSES.get(release.reason, ExitStatus.BEST))
    try:
        os.execvp(command[0], command)  # noqa: S606 - running the user's command is the purpose
    except OSError as error:
        click.echo(f"cannot run {command[0]}: {error.strerror}", err=True)
        # Exit statuses of POSIX shells: 127, command not found; 126, not executable.
        raise SystemExit(127 if isinstance(error, FileNotFoundError) else 126) from error


def _quiet() -> None:
    """What matters of failing sources is in the decision's text."""
    logs.configure("error", "text")


def _waiting(settings: GridSettings, runtime_s: float, within_s: float, now_s: float, mode: Mode) -> Waiting:
    """The run as the controller sees a pod that asks to wait.

    Raises:
        click.UsageError: there is no time for the run.
    """
    if within_s < runtime_s:
        raise click.UsageError(
            f"invalid --within: {duration_text(within_s)} is shorter than --duration {duration_text(runtime_s)}"
        )
    defaults = settings.defaults
    request = GridRequest(
        asked_by=Asked.POD,
        carbon_enabled=defaults.carbon_enabled,
        carbon_threshold_g_per_kwh=defaults.carbon_threshold_g_per_kwh,
        price_enabled=defaults.price_enabled,
        price_threshold_per_kwh=defaults.price_threshold_per_kwh,
        max_delay_s=within_s,
        mode=mode,
        runtime_s=runtime_s,
        runtime_stated=True,
        carbon_weight=defaults.carbon_weight,
        price_weight=defaults.price_weight,
    )
    return Waiting(request, now_s, FinishBy(now_s + within_s, "the end of --within"))


def _in_zone(settings: PipelineSettings, zone: str | None) -> PipelineSettings:
    """The settings of a run in a zone, which is also that of files without a column of zones."""
    return replace(settings, electricity_map_api_region=zone) if zone else settings


def _covering(settings: PipelineSettings, waiting: Waiting) -> PipelineSettings:
    """The settings, with forecasts that reach to the end of the run."""
    request = waiting.request
    return replace(
        settings, defaults=replace(settings.defaults, max_delay_s=request.max_delay_s, runtime_s=request.runtime_s)
    )


@asynccontextmanager
async def _open_feed(settings: PipelineSettings, waiting: Waiting) -> AsyncIterator[GridFeed]:
    """The signals' feed; sources that cannot be used are a usage error."""
    async with AsyncExitStack() as stack:
        try:
            feed = await stack.enter_async_context(open_feed(_covering(settings, waiting), settings.prometheus))
        except ValueError as error:
            raise click.UsageError(str(error)) from error
        yield feed


async def _best(settings: PipelineSettings, waiting: Waiting) -> tuple[BestTime, ExitStatus]:
    zone = settings.electricity_map_api_region
    async with _open_feed(settings, waiting) as feed:
        conditions = await _first_answer(feed, zone)
    now_s = time.time()  # forecasts begin when they were asked for
    decision = decide(waiting, conditions, now_s)
    start_s = decision.wake_s if isinstance(decision, Hold) else now_s
    carbon, price = (
        _means(signal, waiting.request.runtime_s, now_s, start_s) for signal in (conditions.carbon, conditions.price)
    )
    answer = BestTime(
        zone,
        rfc3339(start_s),
        round(start_s - now_s, 1),
        rfc3339(waiting.latest_start_s),
        decision.reason,
        decision.text,
        *carbon,
        *price,
    )
    missing = isinstance(decision, Release) and decision.reason is ReleaseReason.MISSING
    return answer, ExitStatus.NO_SIGNAL if missing else ExitStatus.BEST


async def _wait(settings: PipelineSettings, waiting: Waiting) -> Release:
    zone = settings.electricity_map_api_region
    async with _open_feed(settings, waiting) as feed:
        conditions = await _first_answer(feed, zone)
        told = None
        while True:
            now_s = time.time()
            decision = decide(waiting, conditions, now_s)
            if isinstance(decision, Release):
                click.echo(f"starts: {decision.text}", err=True)
                return decision
            if decision.reason != told:
                told = decision.reason
                latest = rfc3339(decision.latest_start_s)
                click.echo(f"waits: {decision.text}; it starts by {latest} at the latest", err=True)
            await asyncio.sleep(min(decision.wake_s - now_s, LONGEST_SLEEP_S))
            await feed.refresh()
            conditions = _conditions(feed, zone)


async def _first_answer(feed: GridFeed, zone: str) -> Conditions:
    """Conditions in a zone once its sources have answered or failed; missing ones after `PATIENCE_S`."""
    if not feed.want(zone):
        raise click.UsageError(f"invalid --zone {zone!r}: expected a name such as DE or US-CAL-CISO")
    try:
        async with asyncio.timeout(PATIENCE_S):
            await feed.refresh()
            while not feed.asked(zone):  # the history comes after a forecast, and Joulie's own is made of it
                await asyncio.sleep(_POLL_S)
                await feed.refresh()
    except TimeoutError:
        click.echo(f"the sources of {zone} have not answered for {duration_text(PATIENCE_S)}", err=True)
    return _conditions(feed, zone)


def _conditions(feed: GridFeed, zone: str) -> Conditions:
    return Conditions(feed.carbon(zone), feed.price(zone))


def _means(
    signal: GridSignal | None, runtime_s: float, now_s: float, start_s: float
) -> tuple[float | None, float | None]:
    """Expected means of a run that starts now, and of one that starts later; None where they are not forecast."""
    ahead = None if signal is None else signal.forecast
    if ahead is None:
        return None, None
    return ahead.mean(now_s, now_s + runtime_s), ahead.mean(start_s, start_s + runtime_s)


def _print(answer: BestTime) -> None:
    begins = "now" if answer.start_in_s <= 0.0 else f"in {duration_text(answer.start_in_s)}"
    click.echo(f"{answer.start} ({begins}) in {answer.zone}: {answer.text}")
    for name, unit, now, best_ in (
        ("carbon intensity", "gCO2eq/kWh", answer.carbon_now_g_per_kwh, answer.carbon_best_g_per_kwh),
        ("price", "/kWh", answer.price_now_per_kwh, answer.price_best_per_kwh),
    ):
        if now is not None and best_ is not None:
            click.echo(f"  expected {name} of a run: {best_:.4g} {unit} then, {now:.4g} if it starts now")
