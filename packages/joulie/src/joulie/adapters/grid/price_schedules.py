"""Parser of the Compute Gardener Scheduler's price schedules: YAML to a tariff, errors with file and line.

Scalars are read as text, not as YAML types: YAML would read a plain ``16:00`` as the number 960, and ``0,6`` as 6.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator
from datetime import date
from pathlib import Path
from typing import TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import yaml

from joulie.domain.grid.tou import MINUTES_PER_DAY, Schedule, TouTariff, parse_clock_min, parse_days

_T = TypeVar("_T")
_KEYS = ("name", "dayOfWeek", "startTime", "endTime", "timezone", "peakRate", "offPeakRate", "holidays")
_HOLIDAY_KEYS = ("dates", "country", "subdivision")
_LAST_MINUTE = MINUTES_PER_DAY - 1


class PriceSchedulesError(ValueError):
    """An invalid file of price schedules; the message starts with ``file:line:``."""


def load_price_schedules(path: Path) -> TouTariff:
    """Read the tariff of a file.

    Raises:
        PriceSchedulesError: the file cannot be read, is not YAML, or has invalid values.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PriceSchedulesError(f"{path}: cannot be read: {error}") from error
    return parse_price_schedules(text, str(path))


def parse_price_schedules(text: str, name: str) -> TouTariff:
    """Parse the text of a file called `name`; see `load_price_schedules`."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise PriceSchedulesError(f"{name}:{mark.line + 1 if mark else 1}: not YAML: {error.problem}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise PriceSchedulesError(f"{name}:1: not YAML: {str(error).splitlines()[0]}") from error
    if root is None:
        raise PriceSchedulesError(f"{name}:1: is empty: expected 'schedules'")
    entries = _Entry(name, "the file", root, ("schedules",)).items("schedules")
    if not entries:
        raise PriceSchedulesError(f"{name}:1: has no schedules")
    return TouTariff(tuple(_schedule(_Entry(name, f"schedules.{at}", node, _KEYS)) for at, node in enumerate(entries)))


class _Entry:
    """A mapping of the file: values by key, and errors with their line."""

    def __init__(self, file: str, where: str, node: yaml.Node, keys: tuple[str, ...]) -> None:
        self._file, self._where, self._node = file, where, node
        self._values: dict[str, yaml.Node] = {}
        if not isinstance(node, yaml.MappingNode):
            raise self.error(None, f"must be a mapping of {', '.join(keys)}")
        for key, value in node.value:
            if key.value not in keys:
                raise self.error(key, f"unknown key {key.value!r}; known: {', '.join(keys)}")
            if key.value in self._values:
                raise self.error(key, f"duplicate key {key.value!r}")
            self._values[key.value] = value

    def error(self, node: yaml.Node | None, problem: str) -> PriceSchedulesError:
        """Create an error at the line of a node, or of the entry itself."""
        line = (node or self._node).start_mark.line + 1
        return PriceSchedulesError(f"{self._file}:{line}: {self._where}: {problem}")

    def items(self, key: str) -> list[yaml.Node]:
        """Items of the list under a key; empty without the key."""
        node = self._values.get(key)
        if node is None:
            return []
        if not isinstance(node, yaml.SequenceNode):
            raise self.error(node, f"{key} must be a list")
        return list(node.value)

    def entry(self, key: str, keys: tuple[str, ...]) -> _Entry | None:
        """Mapping under a key; None without the key."""
        node = self._values.get(key)
        return None if node is None else _Entry(self._file, f"{self._where}.{key}", node, keys)

    def read(self, key: str, reader: Callable[[str], _T]) -> _T:
        """Value of a required key.

        Args:
            key: the key.
            reader: parses the text; raises ValueError with a description of what is expected.

        Raises:
            PriceSchedulesError: the key is missing or its value is invalid.
        """
        value = self.find(key, reader)
        if value is None:
            raise self.error(None, f"{key} is missing")
        return value

    def find(self, key: str, reader: Callable[[str], _T]) -> _T | None:
        """Value of an optional key; None without the key. See `read`."""
        node = self._values.get(key)
        return None if node is None else self.value(key, node, reader)

    def value(self, key: str, node: yaml.Node, reader: Callable[[str], _T]) -> _T:
        """Value of a scalar node; see `read`."""
        if not isinstance(node, yaml.ScalarNode):
            raise self.error(node, f"{key} must be one value")
        try:
            return reader(str(node.value))
        except ValueError as error:
            raise self.error(node, f"{key} is {node.value!r}, not {error}") from error


def _schedule(entry: _Entry) -> Schedule:
    start_min, end_min = entry.read("startTime", _start_min), entry.read("endTime", parse_clock_min)
    if start_min == end_min:
        raise entry.error(None, "startTime and endTime are the same; for a whole day write 00:00 and 24:00")
    calendar = entry.entry("holidays", _HOLIDAY_KEYS)
    return Schedule(
        name=entry.find("name", str) or "",
        days=entry.read("dayOfWeek", parse_days),
        start_min=start_min,
        # In the Compute Gardener the end minute is included, so that 23:59 means midnight.
        end_min=MINUTES_PER_DAY if end_min == _LAST_MINUTE else end_min,
        zone=entry.find("timezone", _zone) or ZoneInfo("UTC"),
        peak_rate=entry.find("peakRate", _rate),
        off_peak_rate=entry.find("offPeakRate", _rate),
        holidays=() if calendar is None else tuple(_holidays(calendar)),
    )


def _holidays(calendar: _Entry) -> Iterator[Container[date]]:
    """The listed dates, and the holiday calendar of a country."""
    yield frozenset(calendar.value("dates", node, _date) for node in calendar.items("dates"))
    subdivision = calendar.find("subdivision", str)
    country = calendar.find("country", lambda text: _country(text, subdivision))
    if country is not None:
        yield country
    elif subdivision is not None:
        raise calendar.error(None, "subdivision needs a country")


def _country(text: str, subdivision: str | None) -> Container[date]:
    try:
        import holidays  # takes half a second, and few tariffs need it
    except ImportError:
        raise ValueError("readable without the package holidays: install joulie[grid]") from None
    try:
        return holidays.country_holidays(text, subdiv=subdivision)
    except NotImplementedError as error:
        raise ValueError(f"a country with known holidays: {error}") from None


def _date(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ValueError("a date such as 2026-12-25") from None


def _start_min(text: str) -> int:
    minutes = parse_clock_min(text)
    if minutes == MINUTES_PER_DAY:
        raise ValueError("a time such as 16:00, at most 23:59")
    return minutes


def _zone(text: str) -> ZoneInfo:
    try:
        return ZoneInfo(text)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError("an IANA time zone such as America/Los_Angeles") from None


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not math.isfinite(rate):
        raise ValueError("a number in currency/kWh")
    return rate
