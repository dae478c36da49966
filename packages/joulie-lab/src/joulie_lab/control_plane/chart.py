"""Installs the CRDs, service accounts and RBAC of Joulie's Helm chart, without the programs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from joulie_lab.control_plane.waiting import wait_for

if TYPE_CHECKING:
    from joulie_lab.control_plane import LocalControlPlane

NAMESPACE = "joulie-system"
PROGRAMS = (
    "mode=enforce",
    "simulator.enabled=true",
    "agentPool.enabled=true",
    "agentPool.useSimulator=true",
    "agent.enabled=true",
    "scheduler.enabled=true",
)
"""Chart values that enable everything needed to run on simulated hardware."""
_FOLDER = Path("deploy/helm/joulie")
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_INSTALLED = {
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts",
    "ClusterRole": f"{_RBAC}/clusterroles",
    "ClusterRoleBinding": f"{_RBAC}/clusterrolebindings",
    "Role": f"{_RBAC}/namespaces/{{namespace}}/roles",
    "RoleBinding": f"{_RBAC}/namespaces/{{namespace}}/rolebindings",
}
"""Collection of each kind that is installed."""
_NAMESPACES_S = 60.0


def find_chart() -> Path | None:
    """Find the folder of Joulie's chart: in the working directory, source tree or installation; None if absent."""
    candidates = (_FOLDER, Path(__file__).parents[5] / _FOLDER, Path(__file__).parent / "charts" / "joulie")
    return next((folder.resolve() for folder in candidates if (folder / "Chart.yaml").exists()), None)


def render(plane: LocalControlPlane, chart: Path, *values: str) -> list[Mapping[str, Any]]:
    """Render the chart's objects.

    Args:
        plane: control plane whose helm renders the chart.
        chart: folder of the chart.
        values: further values besides `PROGRAMS`, each as ``path=value``.
    """
    words = [word for value in (*PROGRAMS, *values) for word in ("--set", value)]
    text = plane.helm("template", "joulie", chart, "--namespace", NAMESPACE, *words)
    return [item for item in yaml.load_all(text, Loader=yaml.CSafeLoader) if item]


def install_rights(plane: LocalControlPlane, objects: Sequence[Mapping[str, Any]]) -> None:
    """Install the chart's CRDs, service accounts and RBAC, for programs that run outside the cluster."""
    plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    collections: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for item in objects:
        if collection := _INSTALLED.get(item["kind"]):
            namespace = item["metadata"].get("namespace", NAMESPACE)
            collections[collection.format(namespace=namespace)].append(item)
    # An API server is ready before it has made its own namespaces, into which some objects go.
    wait_for(lambda: "kube-system" in _namespaces(plane), _NAMESPACES_S, "the namespace kube-system exists")
    for collection, items in collections.items():
        plane.create_all(collection, items)
    plane.await_definitions()


def _namespaces(plane: LocalControlPlane) -> set[str]:
    return {item["metadata"]["name"] for item in plane.request("GET", "/api/v1/namespaces")["items"]}
