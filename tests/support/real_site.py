"""A cluster of one real node with a modelled machine, on which the chart's own pods run from the built image."""

import json
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from joulie_lab.control_plane import LocalControlPlane, ManagedProcess, wait_for
from joulie_lab.control_plane.components import Network
from joulie_lab.control_plane.node import RealNode, host, images
from joulie_lab.control_plane.node.prepared import ARCHIVES, folder_of, programs
from support.loop import NAMESPACE, NODES, PODS, TWINS, kubectl_joulie

NODE = "metal.example"
MACHINE = "xeon-8380-lowered"
MAXIMUM_W, ORIGINAL_W, ECO_W = 270.0, 200.0, 162.0
"""Of each of its two packages: by the hardware, as the firmware lowered it, and 60 % of the maximum."""

CHART = Path(__file__).parents[2] / "deploy/helm/joulie"
PATIENCE_S = 180.0
_COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
AGENT = "agent"

Json = dict[str, Any]


class ModelledMachine:
    """Files of a machine, mounted by a process of their own where the chart's host paths point."""

    def __init__(self, name: str, log: Path) -> None:
        self.folder = host.FOLDER / "machine"
        command = [sys.executable, "-m", "joulie", "machine", "mount", name, self.folder, "--load", "1.0"]
        self._process = ManagedProcess("machine", command, log)

    def __enter__(self) -> Self:
        self.folder.mkdir()
        self._process.start()
        wait_for(lambda: (self.folder / "sys").exists() or self._process.raise_if_ended(), 30.0, "the machine is there")
        return self

    def __exit__(self, *error: object) -> None:
        self._process.stop()

    def limits_w(self) -> list[float]:
        """Long-term limits in force, by package."""
        zones = sorted((self.folder / "sys/class/powercap").glob("intel-rapl:?"))
        return [int((zone / "constraint_0_power_limit_uw").read_text()) / 1e6 for zone in zones]

    def power_w(self) -> float:
        """Power of its packages now, by the model itself."""
        return sum(
            package["power_w"] for package in json.loads((self.folder / "control/state").read_text())["packages"]
        )

    def set_load(self, load: str) -> None:
        """Change what its programs want, as a share of what it could do."""
        (self.folder / "control/load").write_text(load)

    def boot(self) -> None:
        """Boot: registers and counters as the firmware sets them, another boot id."""
        (self.folder / "control/boot").write_text("1")


class Site:
    """Control plane, node and machine; use it as a context manager."""

    def __init__(self, logs: Path, *, extended_certificates: bool = False, machine: str = MACHINE) -> None:
        """Configure it; by default its certificates lack what EKS's lack."""
        prepared = folder_of()
        addresses = host.addresses()
        self._stack = ExitStack()
        host.set_up(addresses)
        binaries = programs(_tell)
        self.machine = ModelledMachine(machine, logs / "machine.log")
        self.plane = LocalControlPlane(
            binaries=binaries,
            components=_COMPONENTS,
            network=Network(addresses.bridge[0], addresses.services, real_nodes=True),
            extended_certificates=extended_certificates,
            audit=True,
            log_folder=logs,
        )
        self.node = RealNode(
            self.plane,
            binaries,
            addresses,
            images=[prepared / archive for archive in ARCHIVES.values()],
            name=NODE,
        )

    def __enter__(self) -> Self:
        for part in (self.machine, self.plane, self.node):
            self._stack.enter_context(part)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    # -- the release

    def values(self, **given: Any) -> Json:
        """Values of the chart for this cluster, in force: its images, the machine's files, quick cycles."""
        repository, _, tag = images.JOULIE.rpartition(":")
        files = self.machine.folder
        agent = {
            "hostPaths": {part: str(files / part) for part in ("sys", "proc", "dev")},
            "stateDir": str(self.state_folder),
            "settings": {"RECONCILE_INTERVAL": "2s"},
        }
        return {
            "mode": "enforce",
            "image": {"repository": repository, "tag": tag},
            "scheduler": {"image": {"repository": "localhost/kube-scheduler"}},
            "agent": {**agent, **given.pop("agent", {})},
            # One node: it is in eco.
            "operator": {"settings": {"STATIC_HP_FRAC": "0.0", "RECONCILE_INTERVAL": "2s"}},
            **given,
        }

    def install(self, values: Mapping[str, Any], chart: Path = CHART) -> None:
        """Install or upgrade the release, and wait until every pod of it is Ready."""
        where = ("--namespace", NAMESPACE, "--create-namespace")
        self.plane.helm(
            "upgrade", "--install", "joulie", chart, *where, "-f", "-", input=json.dumps(values), timeout_s=PATIENCE_S
        )
        self.await_rollout()

    def uninstall(self) -> None:
        """Delete the release, with its hook."""
        self.plane.helm("uninstall", "joulie", "--namespace", NAMESPACE, timeout_s=PATIENCE_S)

    def await_rollout(self) -> None:
        """Wait until Deployments, DaemonSets and StatefulSets of the release are rolled out.

        Raises:
            NotReachedError: they are not in time; the message has the pods.
        """
        wait_for(self._is_rolled_out, PATIENCE_S, "all pods of the release are Ready")

    def _is_rolled_out(self) -> bool:
        pods = self.pods()
        waiting = [pod["metadata"]["name"] for pod in pods if not is_ready(pod)]
        assert not waiting, f"{waiting}: {self.troubles()}"
        for kind in ("deployments", "daemonsets", "statefulsets"):
            for item in self.plane.request("GET", f"/apis/apps/v1/namespaces/{NAMESPACE}/{kind}")["items"]:
                status = item.get("status", {})
                assert status.get("observedGeneration") == item["metadata"]["generation"], item["metadata"]["name"]
                wanted = status.get("desiredNumberScheduled", item["spec"].get("replicas"))
                updated = status.get("updatedNumberScheduled", status.get("updatedReplicas", 0))
                ready = status.get("numberReady", status.get("readyReplicas", 0))
                assert updated == ready == wanted, item["metadata"]["name"]
        return bool(pods)

    @property
    def state_folder(self) -> Path:
        """Where agents keep the original limits on the node."""
        return host.FOLDER / "state"

    # -- looking

    def pods(self, component: str = "", namespace: str = NAMESPACE) -> list[Json]:
        """Pods of the release that are not being deleted, or those of one component."""
        query = f"?labelSelector=app.kubernetes.io/component%3D{component}" if component else ""
        items = self.plane.request("GET", f"/api/v1/namespaces/{namespace}/pods{query}")["items"]
        return [pod for pod in items if "deletionTimestamp" not in pod["metadata"] and _runs(pod)]

    def pod(self, component: str) -> Json:
        """The one pod of a component."""
        (pod,) = self.pods(component)
        return pod

    def troubles(self) -> list[str]:
        """Warnings among the cluster's events."""
        events = self.plane.request("GET", "/api/v1/events?fieldSelector=type%3DWarning")["items"]
        return [f"{event['involvedObject']['name']}: {event['reason']}: {event['message']}" for event in events][-8:]

    def twin(self) -> Json:
        """The node's NodeTwin."""
        twin: Json = self.plane.request("GET", f"{TWINS}/{NODE}")
        return twin

    def joulie(self, *arguments: str) -> str:
        """What `kubectl joulie` prints."""
        return kubectl_joulie(self.plane, *arguments)

    def logs(self, pod: Mapping[str, Any], *, previous: bool = False) -> str:
        """The log of a pod's first container."""
        words = ["logs", "--namespace", pod["metadata"]["namespace"], pod["metadata"]["name"]]
        return self.plane.kubectl(*words, *(["--previous"] if previous else []))

    # -- acting

    def label_node(self, **labels: str | None) -> None:
        """Set or remove labels of the node; `_` stands for `/` after joulie.io."""
        named = {f"joulie.io/{name}": value for name, value in labels.items()}
        self.plane.request(
            "PATCH", f"{NODES}/{NODE}", {"metadata": {"labels": named}}, content_type="application/merge-patch+json"
        )

    def run_pod(self, name: str, **spec: Any) -> None:
        """Create a pod that sleeps, in the namespace default."""
        annotations = spec.pop("annotations", {})
        container = {
            "name": "main",
            "image": images.PAUSE,
            "imagePullPolicy": "Never",
            "resources": {"requests": {"cpu": "10m", "memory": "8Mi"}},
        }
        self.plane.request(
            "POST",
            PODS,
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "annotations": annotations},
                "spec": {"containers": [container], "terminationGracePeriodSeconds": 0, **spec},
            },
        )


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Whether a pod's condition Ready is true."""
    conditions = {item["type"]: item["status"] for item in pod.get("status", {}).get("conditions", ())}
    return conditions.get("Ready") == "True"


def _runs(pod: Mapping[str, Any]) -> bool:
    return pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")


def _tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")
