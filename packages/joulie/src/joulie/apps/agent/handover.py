"""Whether another agent takes over when this one stops: then the caps stay, as during a rollout of the DaemonSet."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from joulie.adapters.kubernetes.api.core import DaemonSetWithTemplate, Node, Toleration
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import KubernetesError, NotFoundError
from joulie.adapters.kubernetes.resources import DAEMON_SETS_WITH_TEMPLATE, NODES

PATIENCE_S = 5.0
"""Time for asking the API server, s; the rest of the shutdown is for restoring."""

_ADDED_TOLERATIONS = tuple(
    Toleration(key=f"node.kubernetes.io/{condition}", operator="Exists")
    for condition in ("not-ready", "unreachable", "disk-pressure", "memory-pressure", "pid-pressure", "unschedulable")
)
"""Tolerations that every pod of a DaemonSet gets. Source: Kubernetes documentation, DaemonSet."""

_log = logging.getLogger(__name__)


async def successor(client: KubeClient, namespace: str, daemon_sets: Sequence[str], node_name: str) -> str | None:
    """Name of the DaemonSet that will start the next agent on a node; None without one, and in doubt.

    Args:
        client: Kubernetes API client.
        namespace: namespace of the DaemonSets.
        daemon_sets: names of the DaemonSets of agents.
        node_name: node name.
    """
    try:
        async with asyncio.timeout(PATIENCE_S):
            nodes = (await client.list(NODES, field_selector=f"metadata.name={node_name}")).items
            for name in daemon_sets:
                if nodes and await _wants(client, namespace, name, nodes[0]):
                    return name
    except (KubernetesError, TimeoutError) as error:
        _log.warning("cannot tell whether another agent follows: limits are restored", extra={"error": str(error)})
    return None


async def _wants(client: KubeClient, namespace: str, name: str, node: Node) -> bool:
    try:
        daemon_set = await client.get(DAEMON_SETS_WITH_TEMPLATE, name, namespace)
    except NotFoundError:
        return False
    return wants(daemon_set, node)


def wants(daemon_set: DaemonSetWithTemplate, node: Node) -> bool:
    """Whether a DaemonSet creates a pod on a node; one that is being deleted creates none."""
    # Imported when the agent stops: it would cost memory on every node.
    from joulie.adapters.kubernetes.placement import required_terms, requirements
    from joulie.domain.scheduling.node_rules import NodeRules, Term, selector_requirements

    if daemon_set.metadata.deletion_timestamp is not None or node.metadata.deletion_timestamp is not None:
        return False
    pod = daemon_set.spec.template.spec
    terms = required_terms(pod)
    rules = NodeRules(
        selector_requirements(pod.node_selector),
        None
        if terms is None
        else tuple(Term(requirements(one.match_expressions), requirements(one.match_fields)) for one in terms),
        (*pod.tolerations, *_ADDED_TOLERATIONS),
    )
    return rules.admits(node.metadata.labels, node.metadata.name, node.spec.taints)
