"""Pages of `kubectl joulie web`, rendered on the server from the API's answers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined

from joulie import __version__
from joulie.apps.kubectl.columns import format_age, format_count, format_number, format_power
from joulie.apps.kubectl.energy import cost, emissions_g, format_energy, format_mass
from joulie.apps.kubectl.web.answers import FleetNode
from joulie.apps.kubectl.web.fleet import UNCAPPED, grouped
from joulie.program.queries import choice, page_of

COLOURS = ("headroom", "class", "cooling", "psu", "power", "age")
GROUPINGS = ("rack", "family")
_ROWS = 50
_STEPS = 5
_UNIT = re.compile(r"(\d)(?=[A-Za-z])")
_CLASSES = {"performance": ("P", 4), "eco": ("E", 2), "draining": ("D", 1)}
_LETTER_UNKNOWN = ("?", None)
_SHOWN_STATES = {
    "none": "-",
    "confirmed": "in force",
    "unconfirmed": "written, not confirmed",
    "notInForce": "not in force",
}


class Tile(NamedTuple):
    """One node in the fleet's map.

    Attributes:
        name: node name.
        text: what the tile says, so that its colour is not the only sign.
        step: step of the colour scale, 0..4; None for unknown.
    """

    name: str
    text: str
    step: int | None


@dataclass(frozen=True)
class FleetView:
    """What the fleet page shows.

    Attributes:
        colour: what the tiles show.
        group: rack or family.
        groups: tiles by group.
        rows: rows of the table on this page, nodes that need attention first.
        found: number of rows on all pages.
        search: part of a node's name that the table is limited to.
        next_page: value of ``continue`` for the next page of the table.
    """

    colour: str
    group: str
    groups: Mapping[str, Sequence[Tile]]
    rows: Sequence[FleetNode]
    found: int
    search: str
    next_page: str | None


def fleet_view(nodes: Mapping[str, FleetNode], query: Mapping[str, str]) -> FleetView:
    """The fleet page's content.

    Raises:
        QueryError: an invalid parameter.
    """
    colour = choice(query, "colour", COLOURS, "headroom")
    group = choice(query, "group", GROUPINGS, "rack")
    max_power_w = max((node.power_w for node in nodes.values() if node.power_w is not None), default=0.0)
    search = query.get("q", "")[:253]
    rows = sorted((node for node in nodes.values() if search in node.name), key=_attention)
    shown, after = page_of(rows, query, _ROWS)
    tiles = {
        title: [_tile(node, colour, max_power_w) for node in found]
        for title, found in grouped(nodes.values(), group).items()
    }
    return FleetView(colour, group, tiles, shown, len(rows), search, after)


def _attention(node: FleetNode) -> tuple[bool, bool, bool, float]:
    headroom = node.headroom_score
    return (
        node.cap_state != "notInForce",
        not (node.stale or node.notes),
        node.next is None,
        -1.0 if headroom is None else headroom,
    )


def _tile(node: FleetNode, colour: str, max_power_w: float) -> Tile:
    if colour == "class":
        text, step = _CLASSES.get(node.schedulable_class, _LETTER_UNKNOWN)
        return Tile(node.name, text, step)
    # Every scale runs from 0, which calls for attention, to 1.
    value, share = {
        "headroom": (node.headroom_score, _share(node.headroom_score, 100.0)),
        "cooling": (node.cooling_stress_score, _inverse(node.cooling_stress_score, 100.0)),
        "psu": (node.psu_stress_score, _inverse(node.psu_stress_score, 100.0)),
        "power": (node.power_w, _inverse(node.power_w, max_power_w)),
        "age": (node.age_s, _inverse(node.age_s, 300.0)),
    }[colour]
    if value is None or share is None:
        return Tile(node.name, "?", None)
    text = format_age(value) if colour == "age" else f"{value / 1000.0:.1f}" if colour == "power" else f"{value:.0f}"
    return Tile(node.name, text, min(int(share * _STEPS), _STEPS - 1))


def _share(value: float | None, whole: float) -> float | None:
    return None if value is None else min(max(value / whole, 0.0), 1.0) if whole > 0.0 else 0.0


def _inverse(value: float | None, whole: float) -> float | None:
    share = _share(value, whole)
    return None if share is None else 1.0 - share


def _instant(value: float | str | None) -> dict[str, str]:
    """An instant for the element ``time``: the browser shows it in its own zone."""
    if value is None:
        return {"iso": "", "text": "-"}
    at = datetime.fromisoformat(value) if isinstance(value, str) else datetime.fromtimestamp(value, UTC)
    return {"iso": at.isoformat(timespec="seconds"), "text": at.strftime("%Y-%m-%d %H:%M UTC")}


def _spaced(text: str) -> str:
    """A quantity with a space before its unit that no line breaks at: 3.2 kWh."""
    return _UNIT.sub("\\1\N{NO-BREAK SPACE}", text, count=1)


def _linked(query: Mapping[str, str], **changes: str | None) -> str:
    """A query string with some parameters changed; without the page, which is another one's then."""
    values = {**{key: value for key, value in query.items() if key != "continue"}, **changes}
    return "?" + urlencode({key: value for key, value in values.items() if value})


def _caps(node: FleetNode) -> str:
    wanted = [f"{device} {cap}" for device, cap in (("CPU", node.cpu_cap), ("GPU", node.gpu_cap)) if cap]
    return ", ".join(one for one in wanted if not one.endswith(UNCAPPED)) or "-"


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("joulie.apps.kubectl.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        age=format_age,
        power=lambda value: "-" if value is None else format_power(value),
        number=format_number,
        count=format_count,
        energy=lambda value: _spaced(format_energy(value)),
        mass=lambda value: "-" if value is None else _spaced(format_mass(value)),
        emissions=emissions_g,
        cost=cost,
        capitalize_first=lambda text: text[:1].upper() + text[1:],
        instant=_instant,
        caps=_caps,
        cap_state=_SHOWN_STATES.__getitem__,
    )
    environment.globals.update(version=__version__, linked=_linked)
    return environment


_PAGES = _environment()


def render(template: str, **values: Any) -> str:
    """A page."""
    return _PAGES.get_template(template).render(**values)
