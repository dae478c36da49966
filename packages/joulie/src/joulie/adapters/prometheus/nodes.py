"""Maps the labels of a series to its node. Names are matched exactly: node-1 is not node-10."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Self

NODE_LABELS = (
    "node",
    "node_name",
    "exported_node",
    "kubernetes_node",
    "k8s_node_name",
    "nodename",
    "Hostname",
    "hostname",
    "host_name",
    "exported_instance",
    "instance",
)
"""Labels that name a node, most reliable first. Prometheus renames an exporter's own `instance` `exported_instance`."""
_HOST_PORT = re.compile(r"(?:\[(?P<ipv6>[^\[\]]+)\]|(?P<host>[^:\[\]]+))(?::\d+)?")


class NodeIndex:
    """Index of a cluster's nodes by name and alias.

    Args:
        names: names of the nodes.
        aliases: node name by alias.
    """

    def __init__(self, names: Iterable[str], aliases: Mapping[str, str]) -> None:
        self.names = frozenset(names)
        self._aliases = dict(aliases)

    @classmethod
    def from_aliases(cls, nodes: Mapping[str, Iterable[str]]) -> Self:
        """Create the index from the aliases of each node (hostname label, addresses).

        An alias that several nodes share is left out.
        """
        owners: dict[str, set[str]] = {}
        for name, aliases in nodes.items():
            for alias in aliases:
                if alias:
                    owners.setdefault(alias, set()).add(name)
        return cls(nodes, {alias: next(iter(names)) for alias, names in owners.items() if len(names) == 1})

    def node_of(self, labels: Mapping[str, str]) -> str | None:
        """Node of a series with these labels; None if no label names a known node.

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
    """Host of a target such as ``10.0.0.1:9100``, ``[fd00::1]:9100``, or a name without port."""
    match = _HOST_PORT.fullmatch(instance)
    return instance if match is None else match["ipv6"] or match["host"]
