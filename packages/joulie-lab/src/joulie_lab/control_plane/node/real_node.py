"""A node that runs containers: containerd, kubelet and kube-proxy on this machine, joined to a local control plane."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from joulie_lab.control_plane.api import ApiError
from joulie_lab.control_plane.binaries import Binaries
from joulie_lab.control_plane.cluster import LocalControlPlane
from joulie_lab.control_plane.kubeconfig import certificate_user, write_kubeconfig
from joulie_lab.control_plane.node import cgroups, configuration, host
from joulie_lab.control_plane.node.names import NameServer
from joulie_lab.control_plane.ports import free_port
from joulie_lab.control_plane.process import ManagedProcess, ProcessFailedError
from joulie_lab.control_plane.waiting import wait_for

_SYSTEM = f"{host.GROUP}/system"
_PODS = f"{host.GROUP}/kubepods"
_READY_S = 120.0
_IMPORT_S = 300.0


@dataclass(frozen=True)
class Memory:
    """Memory of a pod, MiB.

    Attributes:
        resident_mib: without file pages.
        working_set_mib: what the kubelet reports and evicts by: with the file pages in use, which pods may share.
    """

    resident_mib: float
    working_set_mib: float


class RealNode:
    """One node; use it as a context manager, inside the control plane's. The host must have been `set_up`."""

    def __init__(
        self,
        plane: LocalControlPlane,
        binaries: Binaries,
        addresses: host.Addresses,
        *,
        images: Sequence[Path],
        name: str = "real-node",
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Configure the node; `start` runs it.

        Args:
            plane: control plane that listens on the node's bridge.
            binaries: kubelet and kube-proxy.
            addresses: addresses of pods and Services.
            images: archives of images that containerd gets.
            name: name of the Node.
            labels: labels of the Node.
        """
        self.name = name
        self._plane = plane
        self._binaries = binaries
        self._addresses = addresses
        self._images = list(images)
        self._labels = dict(labels or {})
        self._folder = host.FOLDER
        self._stack = contextlib.ExitStack()
        self._processes: list[ManagedProcess] = []

    def __enter__(self) -> Self:
        self._stack.enter_context(NameServer(self._addresses.bridge[0], self._service_addresses))
        self._configure()
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.power_off()
        self._stack.close()

    # -- life

    def start(self) -> None:
        """Start the node's programs and wait until the node is Ready.

        Raises:
            ProcessFailedError: a program ended; the message has the end of its log.
            NotReachedError: the node is not Ready in time.
        """
        self._launch("containerd", ["containerd", "--config", self._folder / "containerd.toml"])
        wait_for(self._containerd_answers, _READY_S, "containerd answers")
        for archive in self._images:
            self.ctr("images", "import", "--snapshotter=overlayfs", archive, timeout_s=_IMPORT_S)
        self._images.clear()
        self._launch("kubelet", self._kubelet())
        self._launch("kube-proxy", self._kube_proxy())
        wait_for(self.is_ready, _READY_S, f"node {self.name} is Ready")

    def power_off(self) -> None:
        """End programs and containers at once, without notice to anybody, as a power failure does."""
        for process in self._processes:
            process.kill()
        self._processes.clear()
        host.end_containers()

    def reboot(self) -> None:
        """Power the node off and start it again: no container is left, what was in memory is gone, disks are kept."""
        self.power_off()
        cgroups.create(host.GROUP)
        before = self._heartbeat()
        self.start()
        wait_for(lambda: self._heartbeat() != before, _READY_S, f"node {self.name} reports again")

    def kill(self, pod: Mapping[str, Any], number: int = signal.SIGKILL) -> None:
        """Send every process of a pod's containers a signal; its sandbox, and so its address, stays."""
        for group in self._container_groups(pod):
            for process in cgroups.processes(group):
                with contextlib.suppress(ProcessLookupError):  # it ended with the container's first process
                    os.kill(process, number)

    def is_ready(self) -> bool:
        """Whether the node's condition Ready is true.

        Raises:
            ProcessFailedError: one of its programs has ended.
        """
        for process in self._processes:
            process.raise_if_ended()
        try:
            node = self._plane.request("GET", f"/api/v1/nodes/{self.name}")
        except ApiError:
            return False
        conditions = {item["type"]: item["status"] for item in node["status"].get("conditions", ())}
        taints = [taint["key"] for taint in node["spec"].get("taints", ())]
        return conditions.get("Ready") == "True" and "node.kubernetes.io/not-ready" not in taints

    def _heartbeat(self) -> str:
        """Renewal of the node's Lease, which its kubelet alone writes; empty while the API server does not answer."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{self.name}"
        with contextlib.suppress(ApiError):
            return str(self._plane.request("GET", path)["spec"]["renewTime"])
        return ""

    # -- measuring

    def memory(self, pod: Mapping[str, Any]) -> Memory:
        """Memory of a pod's containers."""
        resident = working_set = 0
        for group in self._container_groups(pod, "memory"):
            values = {name: int(value) for name, value in _pairs(group / "memory.stat")}
            if cgroups.is_unified():
                used, inactive = "memory.current", values["inactive_file"]
                resident += values["anon"]
            else:
                used, inactive = "memory.usage_in_bytes", values["total_inactive_file"]
                resident += values["total_rss"]
            working_set += int((group / used).read_text()) - inactive
        return Memory(resident / 2**20, working_set / 2**20)

    def cpu_s(self, pod: Mapping[str, Any]) -> float:
        """CPU time of a pod's containers since their start, s."""
        if cgroups.is_unified():
            groups = self._container_groups(pod)
            return sum(int(dict(_pairs(group / "cpu.stat"))["usage_usec"]) for group in groups) / 1e6
        return sum(int((group / "cpuacct.usage").read_text()) for group in self._container_groups(pod, "cpuacct")) / 1e9

    # -- inside

    def ctr(self, *words: str | Path, timeout_s: float = 60.0) -> str:
        """Run containerd's client in the namespace of Kubernetes and return its output.

        Raises:
            ProcessFailedError: its exit status is not zero.
        """
        command = ["ctr", f"--address={self._folder}/containerd.sock", "--namespace=k8s.io", *map(str, words)]
        done = subprocess.run(  # noqa: S603 - a command of this module
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        if done.returncode:
            raise ProcessFailedError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def _configure(self) -> None:
        folder, authority = self._folder, self._plane.authority
        (folder / "cni").mkdir(exist_ok=True)
        (folder / "containerd.toml").write_text(configuration.containerd(folder))
        (folder / "cni/10-joulie.conflist").write_text(configuration.pod_network(self._addresses, folder))
        client = authority.issue("kubelet", common_name=f"system:node:{self.name}", groups=["system:nodes"])
        serving = authority.issue("kubelet-serving", hosts=[*self._addresses.bridge, self.name])
        proxy = authority.issue("kube-proxy", common_name="system:kube-proxy")
        for name, identity in (("kubelet", client), ("kube-proxy", proxy)):
            write_kubeconfig(
                folder / f"{name}.kubeconfig",
                server=self._plane.url,
                authority=authority.certificate,
                user=certificate_user(identity),
            )
        (folder / "kubelet.json").write_text(
            configuration.kubelet(
                folder,
                self._addresses,
                authority=authority.certificate,
                certificate=serving.certificate,
                key=serving.key,
                port=free_port(),
            )
        )
        (folder / "kube-proxy.json").write_text(
            configuration.kube_proxy(
                self._addresses,
                kubeconfig=folder / "kube-proxy.kubeconfig",
                health_port=free_port(),
                metrics_port=free_port(),
            )
        )

    def _kubelet(self) -> list[str | Path]:
        labels = ",".join(f"{key}={value}" for key, value in self._labels.items())
        return [
            self._binaries["kubelet"],
            f"--config={self._folder}/kubelet.json",
            f"--kubeconfig={self._folder}/kubelet.kubeconfig",
            f"--root-dir={self._folder}/kubelet",
            f"--cert-dir={self._folder}/kubelet-pki",
            f"--hostname-override={self.name}",
            f"--node-ip={','.join(self._addresses.bridge)}",
            *([f"--node-labels={labels}"] if labels else []),
        ]

    def _kube_proxy(self) -> list[str | Path]:
        return [
            self._binaries["kube-proxy"],
            f"--config={self._folder}/kube-proxy.json",
            f"--hostname-override={self.name}",
        ]

    def _launch(self, name: str, command: Sequence[str | Path]) -> None:
        cgroups.create(_SYSTEM)
        process = ManagedProcess(
            name, cgroups.joining(_SYSTEM, [str(word) for word in command]), self._plane.log_folder / f"{name}.log"
        )
        process.start()
        self._processes.append(process)

    def _containerd_answers(self) -> bool:
        self._processes[0].raise_if_ended()
        with contextlib.suppress(ProcessFailedError):
            self.ctr("version")
            return True
        return False

    def _container_groups(self, pod: Mapping[str, Any], controller: str = "pids") -> Iterator[Path]:
        ids = [status["containerID"].rpartition("/")[2] for status in pod["status"]["containerStatuses"]]
        for group in (cgroups.controller(controller) / _PODS).rglob(f"pod{pod['metadata']['uid']}"):
            yield from (group / container for container in ids if (group / container).is_dir())

    def _service_addresses(self, name: str, namespace: str) -> Sequence[str] | None:
        try:
            spec = self._plane.request("GET", f"/api/v1/namespaces/{namespace}/services/{name}", timeout_s=2.0)["spec"]
        except ApiError:
            return None
        return [address for address in spec.get("clusterIPs", ()) if address != "None"]


def _pairs(file: Path) -> list[tuple[str, str]]:
    """Names and values of a control group's file."""
    return [(name, value) for name, value in (line.split() for line in file.read_text().splitlines())]
