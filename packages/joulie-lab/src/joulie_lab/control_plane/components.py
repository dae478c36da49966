"""Command lines of the components: everything on loopback or private sockets, with TLS and RBAC."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joulie_lab.control_plane.binaries import Binaries
from joulie_lab.control_plane.certificates import Certificate
from joulie_lab.control_plane.tools import STAGES

_SERVICE_ACCOUNT_ISSUER = "https://kubernetes.default.svc.cluster.local"
_SCHEDULER_API = "kubescheduler.config.k8s.io/v1"
# Never used: etcd requires an advertised address, but its only member is reached over its socket.
_NO_ADDRESS = "http://localhost:1"

# For clouds, pod networks, volumes and kubelets, which do not exist here; the TTL controller writes to every node.
_CONTROLLERS_OFF = (
    "node-ipam-controller",
    "node-route-controller",
    "service-lb-controller",
    "cloud-node-lifecycle-controller",
    "certificatesigningrequest-signing-controller",
    "persistentvolume-attach-detach-controller",
    "ttl-controller",
)

# One event per write, at its completion; reads are not recorded.
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "Metadata", "verbs": ["create", "update", "patch", "delete", "deletecollection"]},
        {"level": "None"},
    ],
}


@dataclass(frozen=True)
class Layout:
    """Paths of one control plane's files."""

    folder: Path
    binaries: Binaries
    authority: Path
    server: Certificate
    service_account: Certificate

    @property
    def audit_policy(self) -> Path:
        """The audit policy's file."""
        return self.folder / "audit-policy.json"

    @property
    def scheduler_configuration(self) -> Path:
        """The KubeSchedulerConfiguration's file."""
        return self.folder / "kube-scheduler.json"

    def kubeconfig(self, name: str) -> Path:
        """The kubeconfig file of the user `name`."""
        return self.folder / f"{name}.kubeconfig"

    @property
    def etcd_socket(self) -> str:
        """The URL of etcd's socket, whose folder only its owner can access."""
        return f"unix://{self.folder}/etcd.sock"


def etcd(layout: Layout) -> list[str]:
    """Return the command line of etcd, without syncing to disk: faster, but data is lost if the machine crashes."""
    return [
        str(layout.binaries["etcd"]),
        "--name=local",
        f"--data-dir={layout.folder / 'etcd'}",
        "--unsafe-no-fsync",
        f"--listen-client-urls={layout.etcd_socket}",
        f"--advertise-client-urls={_NO_ADDRESS}",
        f"--listen-peer-urls=unix://{layout.folder}/peer.sock",
        f"--initial-advertise-peer-urls={_NO_ADDRESS}",
        f"--initial-cluster=local={_NO_ADDRESS}",
        "--log-level=warn",
    ]


def api_server(layout: Layout, port: int, audit_log: Path | None) -> list[str]:
    """Return the command line of kube-apiserver."""
    command = [
        str(layout.binaries["kube-apiserver"]),
        f"--etcd-servers={layout.etcd_socket}",
        *_serving(layout, port),
        "--advertise-address=127.0.0.1",
        # 127.0.0.1 is not a valid endpoint of the Service "kubernetes", which nothing here uses.
        "--endpoint-reconciler-type=none",
        f"--client-ca-file={layout.authority}",
        # There is no aggregated API server, but other components look up how its calls are authenticated.
        f"--requestheader-client-ca-file={layout.authority}",
        "--requestheader-allowed-names=front-proxy",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--authorization-mode=RBAC",
        "--anonymous-auth=false",
        f"--service-account-issuer={_SERVICE_ACCOUNT_ISSUER}",
        f"--service-account-key-file={layout.service_account.certificate}",
        f"--service-account-signing-key-file={layout.service_account.key}",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--allow-privileged",
        # Nodes here are Ready when created; the not-ready taint would only cost another write per node.
        "--disable-admission-plugins=TaintNodesByCondition",
    ]
    if audit_log is not None:
        layout.audit_policy.write_text(json.dumps(AUDIT_POLICY))
        command += [
            f"--audit-policy-file={layout.audit_policy}",
            f"--audit-log-path={audit_log}",
            "--audit-log-maxsize=10000",  # maximum file size, MB: effectively no rotation
        ]
    return command


def controller_manager(layout: Layout, port: int) -> list[str]:
    """Return the command line of kube-controller-manager."""
    return [
        str(layout.binaries["kube-controller-manager"]),
        *_serving(layout, port),
        *_delegation(layout, "kube-controller-manager"),
        f"--kubeconfig={layout.kubeconfig('kube-controller-manager')}",
        "--use-service-account-credentials",
        f"--service-account-private-key-file={layout.service_account.key}",
        f"--root-ca-file={layout.authority}",
        "--leader-elect=false",
        "--controllers=*," + ",".join(f"-{name}" for name in _CONTROLLERS_OFF),
        # KWOK updates its nodes every ten to twenty minutes only, and nodes must survive a stopped KWOK.
        "--node-monitor-grace-period=1h",
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
    ]


def scheduler(layout: Layout, port: int) -> list[str]:
    """Return the command line of kube-scheduler."""
    return [
        str(layout.binaries["kube-scheduler"]),
        *_serving(layout, port),
        *_delegation(layout, "kube-scheduler"),
        f"--config={layout.scheduler_configuration}",
    ]


def scheduler_configuration(layout: Layout, given: Mapping[str, Any]) -> dict[str, Any]:
    """Complete the caller's KubeSchedulerConfiguration with the settings of this control plane.

    Client-side rate limiting is disabled unless configured, so that only the cluster limits; leader election is off.
    """
    connection = {
        "qps": 5000,
        "burst": 10000,
        **given.get("clientConnection", {}),
        "kubeconfig": str(layout.kubeconfig("kube-scheduler")),
    }
    return {
        "apiVersion": _SCHEDULER_API,
        "kind": "KubeSchedulerConfiguration",
        **given,
        "clientConnection": connection,
        "leaderElection": {"leaderElect": False},
    }


def kwok(layout: Layout, port: int) -> list[str]:
    """Return the command line of kwok, which simulates all nodes and the pods on them."""
    return [
        str(layout.binaries["kwok"]),
        f"--kubeconfig={layout.kubeconfig('kwok')}",
        "--manage-all-nodes",
        *(f"--config={stage}" for stage in sorted(layout.binaries[STAGES].glob("*.yaml"))),
        # Renewing each node's Lease every ten seconds would be the main load of a large idle cluster, for no use.
        "--node-lease-duration-seconds=0",
        f"--server-address=127.0.0.1:{port}",
        f"--tls-cert-file={layout.server.certificate}",
        f"--tls-private-key-file={layout.server.key}",
    ]


def _serving(layout: Layout, port: int) -> list[str]:
    return [
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--tls-cert-file={layout.server.certificate}",
        f"--tls-private-key-file={layout.server.key}",
    ]


def _delegation(layout: Layout, name: str) -> list[str]:
    kubeconfig = layout.kubeconfig(name)
    return [f"--authentication-kubeconfig={kubeconfig}", f"--authorization-kubeconfig={kubeconfig}"]
