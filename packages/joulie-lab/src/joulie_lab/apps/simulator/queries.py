"""Instant queries in the manner of Prometheus: a single metric, optionally with equality matchers.

Source: the Prometheus HTTP API, ``/api/v1/query``, where values, including NaN, are strings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from joulie.domain.quantities import ZERO_CELSIUS_K
from joulie_lab.apps.simulator.world import World, work_rates

_SELECTOR = re.compile(r"\s*([a-zA-Z_:][a-zA-Z0-9_:]*)\s*(?:\{(.*)\})?\s*", re.DOTALL)
_MATCHER = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*')


class QueryError(ValueError):
    """An unsupported query; the message says which queries are supported."""


def instant_query(world: World, query: str, now_s: float) -> dict[str, Any]:
    """The response of ``/api/v1/query``.

    Args:
        world: world to query.
        query: a metric name, optionally with ``{label="value"}`` matchers.
        now_s: wall time, s since the epoch.

    Raises:
        QueryError: the query has another form or names an unknown metric.
    """
    name, matchers = _parsed(query)
    series = dict(_samples(world))
    if name not in series:
        raise QueryError(f"unknown metric {name!r}; known: {', '.join(sorted(series))}")
    result: list[dict[str, Any]] = [
        {"metric": {"__name__": name} | dict(labels), "value": [now_s, repr(value)]}
        for labels, value in series[name]
        if all(labels.get(label, "") == wanted for label, wanted in matchers.items())
    ]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


def _parsed(query: str) -> tuple[str, dict[str, str]]:
    whole = _SELECTOR.fullmatch(query)
    if whole is None:
        raise QueryError(
            f'unsupported query {query!r}: only a metric with matchers is supported, such as name{{label="value"}}'
        )
    matchers: dict[str, str] = {}
    rest = (whole[2] or "").strip()
    while rest:
        match = _MATCHER.match(rest)
        if match is None:
            raise QueryError(f'unsupported query {query!r}: only matchers label="value" are supported')
        matchers[match[1]] = re.sub(r"\\(.)", r"\1", match[2])
        rest = rest[match.end() :].removeprefix(",").strip()
    return whole[1], matchers


def _samples(world: World) -> Iterator[tuple[str, list[tuple[Mapping[str, str], float]]]]:
    """All series by metric."""
    ambient_c = world.outdoor_k - ZERO_CELSIUS_K
    zones = [({"zone": zone}, ambient_c) for zone in world.zones()]
    yield "datacenter_ambient_temperature_celsius", [({}, ambient_c), *zones]
    yield "datacenter_room_temperature_celsius", [({}, world.cooling.room_k - ZERO_CELSIUS_K)]
    yield "datacenter_total_it_power_watts", [({}, world.it_power_w)]
    yield "datacenter_cooling_power_watts", [({}, world.cooling.cooling_w)]
    yield "datacenter_pue", [] if world.pue is None else [({}, world.pue)]
    yield "datacenter_rack_power_watts", [({"rack": rack}, power_w) for rack, power_w in world.rack_power_w().items()]
    yield "joulie_sim_pod_work_rate", list(work_rates(world))
