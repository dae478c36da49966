"""Command lines of the components, with TLS and RBAC: on loopback or private sockets unless a `Network` says else."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joulie_lab.control_plane.binaries import Binaries
from joulie_lab.control_plane.certificates import Certificate
from joulie_lab.control_plane.ports import LOOPBACK
from joulie_lab.control_plane.tools import STAGES

FRONT_PROXY = "front-proxy"
"""Common name of the certificate by which aggregated API servers know the API server."""
_SERVICE_ACCOUNT_ISSUER = "https://kubernetes.default.svc.cluster.local"
_SCHEDULER_API = "kubescheduler.config.k8s.io/v1"
# Never used: etcd requires an advertised address, but its only member is reached over its socket.
_NO_ADDRESS = "http://localhost:1"

# For clouds, pod networks and volumes, which do not exist here; the TTL controller writes to every node.
_CONTROLLERS_OFF = (
    "node-ipam-controller",
    "node-route-controller",
    "service-lb-controller",
    "cloud-node-lifecycle-controller",
    "certificatesigningrequest-signing-controller",
    "persistentvolume-attach-detach-controller",
    "ttl-controller",
)

_FOR_SIMULATED_NODES = (
    "--authorization-mode=RBAC",
    # 127.0.0.1 is not a valid endpoint of the Service "kubernetes", which nothing here uses.
    "--endpoint-reconciler-type=none",
    # Nodes here are Ready when created; the not-ready taint would only cost another write per node.
    "--disable-admission-plugins=TaintNodesByCondition",
)
_FOR_REAL_NODES = (
    "--authorization-mode=Node,RBAC",
    "--enable-admission-plugins=NodeRestriction",
    "--kubelet-preferred-address-types=InternalIP",
)
# KWOK updates its nodes every ten to twenty minutes only, and nodes must survive a stopped KWOK.
_NODES_OUTLIVE_KWOK = "--node-monitor-grace-period=1h"

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
class Network:
    """Where the API server is reached.

    Attributes:
        address: IP address that it listens on; where kubelets run, one that their pods reach.
        service_ranges: address ranges of the Services, at most one of each family.
        real_nodes: whether kubelets join: they are authorized as nodes and watched for failures.
        switched_nodes: whether simulated nodes may be off: KWOK then runs their pods, and leaves their status alone.
    """

    address: str = LOOPBACK
    service_ranges: tuple[str, ...] = ("10.0.0.0/24",)
    real_nodes: bool = False
    switched_nodes: bool = False

    @property
    def server_hosts(self) -> list[str]:
        """Names and addresses in the API server's certificate."""
        services = [str(ipaddress.ip_network(services)[1]) for services in self.service_ranges]
        names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"]
        return list(dict.fromkeys([LOOPBACK, self.address, *services, *names]))


@dataclass(frozen=True)
class Layout:
    """Paths of one control plane's files, and its network."""

    folder: Path
    binaries: Binaries
    authority: Path
    server: Certificate
    service_account: Certificate
    kubelet_client: Certificate
    front_proxy: Certificate
    network: Network = field(default_factory=Network)

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
        *_serving(layout, port, layout.network.address),
        f"--advertise-address={layout.network.address}",
        *(_FOR_REAL_NODES if layout.network.real_nodes else _FOR_SIMULATED_NODES),
        f"--client-ca-file={layout.authority}",
        # By these, aggregated API servers and other components know its own calls.
        f"--proxy-client-cert-file={layout.front_proxy.certificate}",
        f"--proxy-client-key-file={layout.front_proxy.key}",
        f"--requestheader-client-ca-file={layout.authority}",
        f"--requestheader-allowed-names={FRONT_PROXY}",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--anonymous-auth=false",
        f"--service-account-issuer={_SERVICE_ACCOUNT_ISSUER}",
        f"--service-account-key-file={layout.service_account.certificate}",
        f"--service-account-signing-key-file={layout.service_account.key}",
        f"--service-cluster-ip-range={','.join(layout.network.service_ranges)}",
        f"--kubelet-client-certificate={layout.kubelet_client.certificate}",
        f"--kubelet-client-key={layout.kubelet_client.key}",
        f"--kubelet-certificate-authority={layout.authority}",
        "--allow-privileged",
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
        *([] if layout.network.real_nodes else [_NODES_OUTLIVE_KWOK]),
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


_MAKES_READY = "node-fast-node-initialize"
"""Stage of KWOK that makes every node ready that is not."""


def kwok(layout: Layout, port: int) -> list[str]:
    """Return the command line of kwok, which simulates all nodes and the pods on them."""
    stages = [
        stage
        for stage in layout.binaries[STAGES].glob("*.yaml")
        if not (layout.network.switched_nodes and stage.stem == _MAKES_READY)
    ]
    return [
        str(layout.binaries["kwok"]),
        f"--kubeconfig={layout.kubeconfig('kwok')}",
        "--manage-all-nodes",
        *(f"--config={stage}" for stage in sorted(stages)),
        # Renewing each node's Lease every ten seconds would be the main load of a large idle cluster, for no use.
        "--node-lease-duration-seconds=0",
        f"--server-address=127.0.0.1:{port}",
        f"--tls-cert-file={layout.server.certificate}",
        f"--tls-private-key-file={layout.server.key}",
    ]


def _serving(layout: Layout, port: int, address: str = LOOPBACK) -> list[str]:
    return [
        f"--bind-address={address}",
        f"--secure-port={port}",
        f"--tls-cert-file={layout.server.certificate}",
        f"--tls-private-key-file={layout.server.key}",
    ]


def _delegation(layout: Layout, name: str) -> list[str]:
    kubeconfig = layout.kubeconfig(name)
    return [f"--authentication-kubeconfig={kubeconfig}", f"--authorization-kubeconfig={kubeconfig}"]
