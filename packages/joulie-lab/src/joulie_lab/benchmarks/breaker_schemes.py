"""Power capping schemes for a breaker: each takes power readings of the servers and returns a power limit per server.

The published schemes use the same actuator as Joulie's here, a power limit per server, with the thresholds of their
papers: Thunderbolt's from a public re-implementation, POLCA's quoted without access to the paper. Unspecified details
are assumed: how long Thunderbolt stays armed, its share without telemetry, the power of a server at a clock. Schemes
are stateful, like the programs that they represent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from joulie.domain.capping.feed import FeedReading, FeedServers, FeedSettings, decide_feed, first_memory
from joulie.domain.units import FloatArray
from joulie_lab.simulation.polca import next_stage, power_share


class Scheme(Protocol):
    """A power capping scheme."""

    def limits_w(self, now_s: float, reading: FeedReading | None) -> FloatArray:
        """Power limits of all servers, W.

        Args:
            now_s: current time, s.
            reading: latest reading; None before the first.
        """
        ...


class Open:
    """No limits at all."""

    def __init__(self, servers: FeedServers, settings: FeedSettings, rng: np.random.Generator) -> None:
        self._servers = servers

    def limits_w(self, now_s: float, reading: FeedReading | None) -> FloatArray:
        """Full power."""
        return self._servers.full_w


class Static:
    """Every server at its equal share of the rating, always."""

    def __init__(self, servers: FeedServers, settings: FeedSettings, rng: np.random.Generator) -> None:
        self._limit_w = np.asarray(settings.rating_w * servers.full_w / servers.full_w.sum())

    def limits_w(self, now_s: float, reading: FeedReading | None) -> FloatArray:
        """The equal share."""
        return self._limit_w


class Uniform:
    """Every server at its equal share of the rating, from 98 % of the rating until 90 % are drawn again."""

    def __init__(self, servers: FeedServers, settings: FeedSettings, rng: np.random.Generator) -> None:
        self._servers, self._settings = servers, settings
        self._share_w = settings.rating_w * servers.full_w / servers.full_w.sum()
        self._limiting = False

    def limits_w(self, now_s: float, reading: FeedReading | None) -> FloatArray:
        """The equal share while limiting."""
        if reading is not None:
            load = reading.power_w.sum() / self._settings.rating_w
            self._limiting = bool(load > 0.98) or (self._limiting and bool(load > 0.90))
        return self._share_w if self._limiting else self._servers.full_w


class Thunderbolt:
    """Two thresholds, multiplicative decrease and random unthrottling (Li et al., OSDI'20), on standard servers.

    Above the high threshold the share that they may use is multiplied by 0.01, above the low one, once the high one was
    passed, by 0.75. Below, each server waits a random time and is let free. Without telemetry they are held at a fixed
    share.
    """

    HIGH, LOW = 0.98, 0.96
    HARD, SOFT = 0.01, 0.75
    JAIL = 0.5
    WAIT_S = (1.0, 10.0)
    CALM_S = 300.0
    """How long nothing must have passed the low threshold for it to be disarmed."""

    def __init__(self, servers: FeedServers, settings: FeedSettings, rng: np.random.Generator) -> None:
        self._servers, self._settings, self._rng = servers, settings, rng
        self._share = np.ones(servers.full_w.size)
        self._free_s = np.full(servers.full_w.size, -np.inf)
        self._armed_until_s = -np.inf

    def limits_w(self, now_s: float, reading: FeedReading | None) -> FloatArray:
        """Limits by the share of each standard server."""
        if reading is None or now_s - reading.time_s > self._settings.stale_s:
            return self._limits_of(np.minimum(self._share, self.JAIL))
        load = reading.power_w.sum() / self._settings.rating_w
        if load > self.HIGH:
            self._throttle(now_s, self.HARD)
        elif load > self.LOW and now_s < self._armed_until_s:
            self._throttle(now_s, self.SOFT)
        else:
            self._share = np.where(self._free_s <= now_s, 1.0, self._share)
        return self._limits_of(self._share)

    def _throttle(self, now_s: float, multiplier: float) -> None:
        self._armed_until_s = now_s + self.CALM_S
        self._share = np.maximum(self._share * multiplier, 0.01)
        self._free_s = now_s + self._rng.uniform(*self.WAIT_S, self._share.size)

    def _limits_of(self, share: FloatArray) -> FloatArray:
        servers = self._servers
        limit_w = servers.floor_w + share * (servers.full_w - servers.floor_w)
        return np.where(servers.critical, servers.full_w, limit_w)


class Polca:
    """`joulie_lab.simulation.polca`, with the power of all servers over the rating as the load."""

    def __init__(self, servers: FeedServers, settings: FeedSettings, rng: np.random.Generator) -> None:
        self._servers, self._settings = servers, settings
        self._stage = 0

    def limits_w(self, now_s: float, reading: FeedReading | None) -> FloatArray:
        """Limits by the stage that the load has reached."""
        if reading is not None:
            self._stage = next_stage(float(reading.power_w.sum()) / self._settings.rating_w, self._stage)
        critical, standard = (power_share(self._stage, critical=critical) for critical in (True, False))
        share = np.where(self._servers.critical, critical, standard)
        return np.maximum(self._servers.full_w * share, self._servers.floor_w)


class Joulie:
    """`joulie.domain.capping.feed`."""

    def __init__(self, servers: FeedServers, settings: FeedSettings, rng: np.random.Generator) -> None:
        self._servers, self._settings = servers, settings
        self._memory = first_memory(servers, settings, 0.0)

    def limits_w(self, now_s: float, reading: FeedReading | None) -> FloatArray:
        """Limits decided by `joulie.domain.capping.feed`."""
        decision = decide_feed(now_s, reading, self._servers, self._settings, self._memory)
        self._memory = decision.memory
        return decision.limit_w


SCHEMES: Mapping[str, Callable[[FeedServers, FeedSettings, np.random.Generator], Scheme]] = {
    "no limits": Open,
    "static share": Static,
    "uniform": Uniform,
    "Thunderbolt": Thunderbolt,
    "POLCA": Polca,
    "Joulie": Joulie,
}
