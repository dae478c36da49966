"""Which node a series is about. Names are matched exactly: node-1 is not node-10."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Self

NODE_LABELS = (
    "node",
    "node_name",
    "exported_node",
    "kubernetes_node",
    "nodename",
    "Hostname",
    "hostname",
    "exported_instance",
    "instance",
)
"""Labels that name a node, most telling first. An exporter's own `instance` is renamed `exported_instance`."""
_HOST_PORT = re.compile(r"(?:\[(?P<ipv6>[^\[\]]+)\]|(?P<host>[^:\[\]]+))(?::\d+)?")


class NodeIndex:
    """The nodes of a cluster by everything that they are called.

    Args:
        names: their names.
        aliases: node by another name of it.
    """

    def __init__(self, names: Iterable[str], aliases: Mapping[str, str]) -> None:
        self.names = frozenset(names)
        self._aliases = dict(aliases)

    @classmethod
    def of(cls, nodes: Mapping[str, Iterable[str]]) -> Self:
        """The index of nodes by name, each with its aliases (hostname label, addresses).

        An alias that two nodes share stands for neither.
        """
        owners: dict[str, set[str]] = {}
        for name, aliases in nodes.items():
            for alias in aliases:
                if alias:
                    owners.setdefault(alias, set()).add(name)
        return cls(nodes, {alias: next(iter(names)) for alias, names in owners.items() if len(names) == 1})

    def node_of(self, labels: Mapping[str, str]) -> str | None:
        """The node that a series with these labels is about; None where no label names one.

        All labels are first compared with names, then with aliases.
        """
        values = [
            _host(value) if label.endswith("instance") else value
            for label in NODE_LABELS
            if (value := labels.get(label))
        ]
        for value in values:
            if value in self.names:
                return value
        return next((self._aliases[value] for value in values if value in self._aliases), None)


def _host(instance: str) -> str:
    """A target without its port: ``10.0.0.1:9100``, ``[fd00::1]:9100``, or a name alone."""
    match = _HOST_PORT.fullmatch(instance)
    return instance if match is None else match["ipv6"] or match["host"]
