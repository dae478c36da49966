"""Switches the gates that admission adds to new pods and to queued objects of Kueue on and off.

A MutatingAdmissionPolicy adds a gate while it is bound; the webhook, while the ConfigMap enables it. A ConfigMap as
a parameter of the policy would be simpler, but once the last binding that names a parameter is deleted, an API server
never reads that parameter again: kubernetes/kubernetes#130887.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from joulie.adapters.kubernetes.api.meta import KubernetesObject
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import NotFoundError
from joulie.adapters.kubernetes.resources import CONFIG_MAPS, Resource

POLICIES = ("joulie-grid", "joulie-grid-kueue")
"""Names of the MutatingAdmissionPolicies for pods and for what Kueue queues, and of their bindings."""
BUDGET_POLICY = "joulie-budget"
"""Name of the MutatingAdmissionPolicy for EnergyBudgets, and of its binding, which names the namespaces."""
CONFIG_MAP = "joulie-grid-gating"
FIELD_MANAGER = "joulie-grid"
_GROUP = "admissionregistration.k8s.io"
_VERSIONS = ("v1", "v1beta1")


async def set_gating(client: KubeClient, namespace: str, *, enabled: bool) -> None:
    """Enable or disable the gating of new pods. Idempotent.

    Args:
        client: Kubernetes client.
        namespace: namespace of the ConfigMap.
        enabled: whether new pods are gated.

    Raises:
        KubernetesError: a write failed; the change may be incomplete.
    """
    if not enabled:
        for name in (*POLICIES, BUDGET_POLICY):
            await _unbind(client, name)
    await client.patch(
        CONFIG_MAPS,
        CONFIG_MAP,
        {"data": {"enabled": str(enabled).lower()}},
        namespace=namespace,
        field_manager=FIELD_MANAGER,
    )
    if enabled:
        for name in POLICIES:
            await _bind(client, name)


async def set_budget_gating(client: KubeClient, namespaces: Sequence[str]) -> None:
    """Gate new pods of these namespaces, and of no others, for EnergyBudgets. Idempotent.

    The webhook learns of them from the budgets' status.

    Raises:
        KubernetesError: a write failed; the change may be incomplete.
    """
    if not namespaces:
        await _unbind(client, BUDGET_POLICY)
        return
    named = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": list(namespaces)}
    await _bind(client, BUDGET_POLICY, {"matchResources": {"namespaceSelector": {"matchExpressions": [named]}}})


async def _bind(client: KubeClient, name: str, where: Mapping[str, Any] = MappingProxyType({})) -> None:
    for version in _VERSIONS:
        policies = _resource(version, "MutatingAdmissionPolicy", "mutatingadmissionpolicies")
        with suppress(NotFoundError):
            policy = await client.get(policies, name)
            # Owned by its policy and deleted with it: a policy installed later stays unbound until gating is enabled.
            owner = {"apiVersion": policies.api_version, "kind": policies.kind, "name": name}
            body = {
                "metadata": {"ownerReferences": [{**owner, "uid": policy.metadata.uid}]},
                "spec": {"policyName": name, **where},
            }
            await client.apply(_bindings(version), name, body, field_manager=FIELD_MANAGER)
            return


async def _unbind(client: KubeClient, name: str) -> None:
    for version in _VERSIONS:
        with suppress(NotFoundError):
            await client.delete(_bindings(version), name)
            return


def _bindings(version: str) -> Resource[KubernetesObject]:
    return _resource(version, "MutatingAdmissionPolicyBinding", "mutatingadmissionpolicybindings")


def _resource(version: str, kind: str, plural: str) -> Resource[KubernetesObject]:
    return Resource(_GROUP, version, plural, kind, False, KubernetesObject)
