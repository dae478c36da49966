"""Configuration files of a node's programs: containerd, its network plug-in, kubelet and kube-proxy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from joulie_lab.control_plane.node.host import BRIDGE, GROUP, Addresses
from joulie_lab.control_plane.node.images import PAUSE

_PLUGINS = "/usr/lib/cni"


def containerd(folder: Path) -> str:
    """Configuration of containerd with all of its files in `folder`."""
    return f"""\
version = 2
root = "{folder}/containerd"
state = "{folder}/run/containerd"
disabled_plugins = [
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.tracing.processor.v1.otlp",
]
[grpc]
  address = "{folder}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  # Without CAP_SYS_RESOURCE runc cannot lower a process's score.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{_PLUGINS}"
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
      Root = "{folder}/run/runc"
"""


def pod_network(addresses: Addresses, folder: Path) -> str:
    """Configuration of the network plug-ins: pods on the node's bridge."""
    return json.dumps(
        {
            "cniVersion": "1.0.0",
            "name": "joulie",
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": BRIDGE,
                    "isGateway": True,
                    "hairpinMode": True,
                    "ipam": {
                        "type": "host-local",
                        "dataDir": f"{folder}/run/addresses",
                        "ranges": [[{"subnet": pods}] for pods in addresses.pods],
                        "routes": [{"dst": "::/0" if ":" in pods else "0.0.0.0/0"} for pods in addresses.pods],
                    },
                },
                {"type": "portmap", "capabilities": {"portMappings": True}},
            ],
        }
    )


def kubelet(folder: Path, addresses: Addresses, *, authority: Path, certificate: Path, key: Path, port: int) -> str:
    """KubeletConfiguration: webhook authentication and authorization, cgroupfs, files in `folder`."""
    given: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": addresses.bridge[0],
        "port": port,
        "healthzPort": 0,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(authority)},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(certificate),
        "tlsPrivateKeyFile": str(key),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{GROUP}",
        "enforceNodeAllocatable": [],
        "failCgroupV1": False,
        "failSwapOn": False,
        "localStorageCapacityIsolation": False,
        "clusterDNS": addresses.bridge[:1],
        "clusterDomain": "cluster.local",
        "containerRuntimeEndpoint": f"unix://{folder}/containerd.sock",
        "podLogsDir": f"{folder}/pods",
        "volumePluginDir": f"{folder}/volume-plugins",
        # Disk pressure of the machine is not the node's, and images cannot be fetched again.
        "evictionHard": {"memory.available": "50Mi"},
        "imageGCHighThresholdPercent": 100,
        "nodeStatusReportFrequency": "10s",
    }
    return json.dumps(given, indent=1)


def kube_proxy(addresses: Addresses, *, kubeconfig: Path, health_port: int, metrics_port: int) -> str:
    """KubeProxyConfiguration: iptables, and nothing changed of the machine's connection tracking."""
    return json.dumps(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": str(kubeconfig)},
            "mode": "iptables",
            "clusterCIDR": ",".join(addresses.pods),
            "conntrack": {"maxPerCore": 0},
            "healthzBindAddress": f"127.0.0.1:{health_port}",
            "metricsBindAddress": f"127.0.0.1:{metrics_port}",
        },
        indent=1,
    )
