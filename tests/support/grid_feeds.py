"""A feed of grid signals as the environment of a program asks for it."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from joulie.adapters.grid.build import open_feed
from joulie.adapters.grid.feed import GridFeed
from joulie.adapters.grid.settings import GridSettings
from joulie.adapters.prometheus.settings import PrometheusSettings
from joulie.program.settings import ProgramSettings, settings_from


@dataclass(frozen=True, kw_only=True)
class WatcherSettings(GridSettings, PrometheusSettings, ProgramSettings):
    """Settings of a program that watches the grid."""


def feed_from(environment: dict[str, str], **arguments: Any) -> AbstractAsyncContextManager[GridFeed]:
    """The feed; for `arguments` see `open_feed`."""
    settings = settings_from(WatcherSettings, environment)
    return open_feed(settings, settings.prometheus, **arguments)
