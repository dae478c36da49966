"""A real Kubernetes control plane on this machine, for tests and for `joulie demo --control-plane`.

kube-apiserver, etcd, kube-scheduler, kube-controller-manager and KWOK run as child processes with TLS and RBAC on,
reachable from this machine only. It is not meant for production: etcd does not even sync to disk.
"""

from joulie_lab.control_plane.api import ApiError
from joulie_lab.control_plane.binaries import Binaries, obtain
from joulie_lab.control_plane.cluster import COMPONENTS, KubectlError, LocalControlPlane
from joulie_lab.control_plane.kueue import obtain_kueue_definitions
from joulie_lab.control_plane.nodes import kwok_node
from joulie_lab.control_plane.postgres import Postgres, obtain_postgres
from joulie_lab.control_plane.process import ManagedProcess, ProcessFailedError
from joulie_lab.control_plane.prometheus import obtain_prometheus, obtain_promtool
from joulie_lab.control_plane.tools import BinariesError
from joulie_lab.control_plane.waiting import NotReachedError, wait_for

__all__ = [
    "COMPONENTS",
    "ApiError",
    "Binaries",
    "BinariesError",
    "KubectlError",
    "LocalControlPlane",
    "ManagedProcess",
    "NotReachedError",
    "Postgres",
    "ProcessFailedError",
    "kwok_node",
    "obtain",
    "obtain_kueue_definitions",
    "obtain_postgres",
    "obtain_prometheus",
    "obtain_promtool",
    "wait_for",
]
