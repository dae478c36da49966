"""Where agents run, by the pods of the chart."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from joulie.adapters.kubernetes.api.core import Pod

_POOL = "agent-pool"
_COMPONENTS = frozenset({"agent", "agent-nvidia", "agent-amd", _POOL})
"""Components of the chart that are agents."""
_NOT_RUNNING = frozenset({None, "", "Pending", "Succeeded", "Failed"})
"""A pod whose node is lost, with the phase Unknown, counts as running."""


class Agent(NamedTuple):
    """A pod of the chart that is an agent.

    Attributes:
        node_name: node on which it runs; empty while it does not.
        of_pool: whether it serves other nodes.
    """

    node_name: str
    of_pool: bool


def agent_of(pod: Pod) -> Agent | None:
    """The pod as an agent; None for other pods."""
    labels = pod.metadata.labels
    component = labels.get("app.kubernetes.io/component", "")
    if labels.get("app.kubernetes.io/part-of") != "joulie" or component not in _COMPONENTS:
        return None
    runs = pod.status.phase not in _NOT_RUNNING and pod.metadata.deletion_timestamp is None
    return Agent(pod.spec.node_name if runs else "", component == _POOL)


def agent_nodes(pods: Iterable[Agent | None]) -> frozenset[str] | None:
    """Nodes on which an agent of a DaemonSet runs; None where agents are none of the chart's pods, or serve others."""
    agents = [pod for pod in pods if pod is not None]
    if not agents or any(agent.of_pool for agent in agents):
        return None
    return frozenset(agent.node_name for agent in agents if agent.node_name)
