"""Metric families under a second name, for dashboards and alerts of another program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy

from prometheus_client.core import Metric
from prometheus_client.registry import Collector


def renamed(family: Metric, old: str, new: str) -> Metric:
    """A family with the prefix `new` of its name in place of `old`."""
    again = copy(family)
    again.name = new + family.name.removeprefix(old)
    again.samples = [sample._replace(name=new + sample.name.removeprefix(old)) for sample in family.samples]
    return again


class Renamed(Collector):
    """The families of other collectors with another prefix; those without the old one are left out.

    Args:
        collectors: collectors of the families.
        old: prefix of their names.
        new: prefix in place of it.
    """

    def __init__(self, collectors: Iterable[Collector], old: str, new: str) -> None:
        self._collectors = tuple(collectors)
        self._old, self._new = old, new

    def describe(self) -> Iterable[Metric]:
        """No names in advance: those of the other collectors are checked already."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """The families with the new prefix."""
        for collector in self._collectors:
            for family in collector.collect():
                if family.name.startswith(self._old):
                    yield renamed(family, self._old, self._new)
