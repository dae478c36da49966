"""Namespaces, folders and the bridge of a node: they end with the process that made them, however it ends."""

from __future__ import annotations

import ipaddress
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from joulie_lab.control_plane.node import cgroups
from joulie_lab.control_plane.tools import BinariesError

FOLDER = Path("/var/lib/joulie-node")
"""Folder of everything that a node writes: in memory, and seen in the node's mount namespace only."""

GROUP = "joulie-node"
"""Control group of all of a node's processes; there is one node on a machine."""

BRIDGE = "joulie0"

_SETTINGS = {
    "net/ipv4/ip_forward": "1",
    "net/ipv6/conf/all/forwarding": "1",
    # Without these, what a pod sends to a Service on its own bridge is not translated.
    "net/bridge/bridge-nf-call-iptables": "1",
    "net/bridge/bridge-nf-call-ip6tables": "1",
}
# Where container runtimes and kubelets write whatever their configuration says.
_HIDDEN = ("/run/netns", "/run/containerd", "/var/log/containers", "/var/lib/cni", "/var/lib/kubelet")
_OUTSIDE_VARIABLE = "JOULIE_NODE_OUTSIDE"
# The shell is the first process of the namespace: it adopts, and so must reap, what containers leave.
_INIT = 'trap "" TERM; "$@" & wait $!'


@dataclass(frozen=True)
class Addresses:
    """Address ranges of the node's pods and of the cluster's Services, IPv4 first; the bridge has the first of each.

    Attributes:
        pods: ranges of the pods.
        services: ranges of the Services.
    """

    pods: tuple[str, ...]
    services: tuple[str, ...]

    @property
    def bridge(self) -> list[str]:
        """Addresses of the bridge, which are the node's."""
        return [str(ipaddress.ip_network(pods)[1]) for pods in self.pods]


def isolated(command: Sequence[str]) -> list[str]:
    """A command line that runs `command` in process, mount and network namespaces of its own."""
    namespaces = ["--fork", "--kill-child", "--pid", "--mount-proc", "--mount", "--net"]
    outside = f"{_OUTSIDE_VARIABLE}={_network_namespace()}"
    return ["env", outside, "unshare", *namespaces, "--", "/bin/sh", "-c", _INIT, "sh", *command]


def is_isolated() -> bool:
    """Whether this process runs in namespaces made by `isolated`."""
    return os.environ.get(_OUTSIDE_VARIABLE, _network_namespace()) != _network_namespace()


def _network_namespace() -> str:
    return str(Path("/proc/self/ns/net").readlink())


def addresses() -> Addresses:
    """Both families where the kernel translates IPv6, else IPv4 alone."""
    dual = Path("/proc/net/if_inet6").exists() and _succeeds(["ip6tables", "-t", "nat", "-S"])
    families = 2 if dual else 1
    return Addresses(("10.87.0.0/24", "fd87::/64")[:families], ("10.88.0.0/24", "fd88::/112")[:families])


def set_up(wanted: Addresses) -> None:
    """Create folders, control group and bridge in this process's namespaces.

    Raises:
        BinariesError: the process runs in the machine's own namespaces.
    """
    if not is_isolated():
        raise BinariesError("a node runs in namespaces of its own: python -m joulie_lab.control_plane.node COMMAND")
    cgroups.end(GROUP)  # of a run that was killed
    _run(["mount", "--make-rshared", "/"])  # kubelets share what they mount with containers
    for folder in (FOLDER, *map(Path, _HIDDEN)):
        folder.mkdir(parents=True, exist_ok=True)
        # In memory: images are unpacked in seconds, and nothing is left on the disk.
        _run(["mount", "-t", "tmpfs", "-o", "mode=755,size=6g", "joulie-node", str(folder)])
    cgroups.create(GROUP)
    for name, value in _SETTINGS.items():
        if (setting := Path("/proc/sys") / name).exists():
            setting.write_text(value)
    _run(["ip", "link", "set", "lo", "up"])
    _run(["ip", "link", "add", BRIDGE, "type", "bridge"])
    for pods, address in zip(wanted.pods, wanted.bridge, strict=True):
        network = ipaddress.ip_network(pods)
        nodad = ["nodad"] if network.version == 6 else []
        _run(["ip", "address", "add", f"{address}/{network.prefixlen}", "dev", BRIDGE, *nodad])
    _run(["ip", "link", "set", BRIDGE, "up"])
    for services in wanted.services:
        # Without a route, programs of the host do not get as far as kube-proxy's translation.
        _run(["ip", "route", "add", services, "dev", BRIDGE])


def end_containers() -> None:
    """End every process of the node, unmount what it mounted, and remove its pods' networks: a power failure."""
    cgroups.end(GROUP)
    for line in reversed(Path("/proc/self/mountinfo").read_text().splitlines()):
        target = line.split()[4].encode().decode("unicode_escape")
        if target.startswith((f"{FOLDER}/kubelet/", f"{FOLDER}/run/", "/run/netns/", "/run/containerd/")):
            _try(["umount", "--lazy", target])
    for namespace in Path("/run/netns").glob("*"):
        namespace.unlink()
    shutil.rmtree(FOLDER / "run", ignore_errors=True)


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - commands of this module
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


def _try(command: Sequence[str]) -> None:
    subprocess.run(command, capture_output=True, check=False)  # noqa: S603 - commands of this module


def _succeeds(command: Sequence[str]) -> bool:
    return shutil.which(command[0]) is not None and (
        subprocess.run(command, capture_output=True, check=False).returncode == 0  # noqa: S603
    )
