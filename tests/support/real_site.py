"""A cluster of one real node with a modelled machine, on which the chart's own pods run from the built image."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from ipaddress import ip_network
from pathlib import Path
from threading import Event
from typing import Any, Self

import yaml

from joulie.adapters.kubernetes import names
from joulie_lab.control_plane import LocalControlPlane, ManagedProcess, wait_for
from joulie_lab.control_plane.components import Network
from joulie_lab.control_plane.node import RealNode, host, images
from joulie_lab.control_plane.node.prepared import ARCHIVES, folder_of, programs
from support.loop import NAMESPACE, NODES, OVERRIDES, PODS, TWINS, kubectl_joulie

NODE = "metal.example"
MACHINE = "xeon-8380-lowered"
MAXIMUM_W, ORIGINAL_W, ECO_W = 270.0, 200.0, 162.0
"""Of each of its two packages: by the hardware, as the firmware lowered it, and 60 % of the maximum."""

CHART = Path(__file__).parents[2] / "deploy/helm/joulie"
PATIENCE_S = 180.0
SCHEDULER = "joulie-scheduler"
_COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
AGENT = "agent"

Json = dict[str, Any]
Note = Callable[[str], None]


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

    @contextmanager
    def watched(self) -> Iterator[set[float]]:
        """Every limit that is in force while the block runs, looked at ten times a second."""
        seen: set[float] = set()
        ended = Event()

        def watch() -> None:
            while not ended.wait(0.1):
                seen.update(self.limits_w())

        with ThreadPoolExecutor(1) as pool:
            watching = pool.submit(watch)
            try:
                yield seen
            finally:
                ended.set()
                watching.result()

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

    def __init__(self, logs: Path, note: Note, *, extended_certificates: bool = False, machine: str = MACHINE) -> None:
        """Configure it; `note` is told what happens. By default its certificates lack what EKS's lack."""
        self._note = note
        prepared = folder_of()
        self.addresses = host.addresses()
        self._stack = ExitStack()
        host.set_up(self.addresses)
        binaries = programs(_tell)
        self.machine = ModelledMachine(machine, logs / "machine.log")
        self.plane = LocalControlPlane(
            binaries=binaries,
            components=_COMPONENTS,
            network=Network(self.addresses.bridge[0], self.addresses.services, real_nodes=True),
            extended_certificates=extended_certificates,
            audit=True,
            log_folder=logs,
        )
        self.node = RealNode(
            self.plane,
            binaries,
            self.addresses,
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
        """Values of the chart for this cluster, in force: its images, the machine's files, every program."""
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
            # A busy test machine must not make kube-scheduler go on without its extender, as it should in a cluster.
            "scheduler": {
                "enabled": True,
                "name": SCHEDULER,
                "image": {"repository": "localhost/kube-scheduler"},
                "extenderTimeout": "20s",
            },
            "extender": {"service": {"clusterIP": self.extender_address}},
            "agent": {**agent, **given.pop("agent", {})},
            # One node: it is in eco.
            "operator": {
                "replicas": 2,
                "settings": {"POLICY_TYPE": "static_partition", "STATIC_HP_FRAC": "0.0", "RECONCILE_INTERVAL": "2s"},
            },
            # Above the threshold for good: who asks to be deferred waits.
            "grid": {"enabled": True, "signals": {"CARBON_SOURCES": "static", "CARBON_STATIC_INTENSITY": "900"}},
            # There is no storage class.
            "accounting": {"persistence": {"enabled": False}},
            **given,
        }

    def install(self, values: Mapping[str, Any], chart: Path = CHART) -> None:
        """Install or upgrade the release, and wait until every pod of it is Ready."""
        where = ("--namespace", NAMESPACE, "--create-namespace")
        self.plane.helm(
            "upgrade", "--install", "joulie", chart, *where, "-f", "-", input=json.dumps(values), timeout_s=PATIENCE_S
        )
        self.await_rollout()
        self._note(f"installed, mode {values.get('mode', 'enforce by default')}: {len(self.pods())} pods are Ready")

    def uninstall(self) -> None:
        """Delete the release, with its hook."""
        self.plane.helm("uninstall", "joulie", "--namespace", NAMESPACE, timeout_s=PATIENCE_S)
        self._note("uninstalled")

    def await_rollout(self, agents: int = 0) -> None:
        """Wait until Deployments, DaemonSets and StatefulSets of the release are rolled out, with some agents at least.

        Raises:
            NotReachedError: they are not in time; the message has the pods.
        """
        wait_for(lambda: self.is_rolled_out(agents), PATIENCE_S, "all pods of the release are Ready")

    def is_rolled_out(self, agents: int = 0) -> bool:
        """Whether they are.

        Raises:
            AssertionError: with what is missing.
        """
        assert len(self.pods(AGENT)) >= agents
        pods = self.pods()
        waiting = [pod["metadata"]["name"] for pod in pods if not is_ready(pod)]
        assert not waiting, f"{waiting}: {self.troubles()[-8:]}"
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
    def extender_address(self) -> str:
        """Address of the extender's Service, as a scheduler outside the cluster's DNS needs it."""
        return str(ip_network(self.addresses.services[0])[9])

    @property
    def state_folder(self) -> Path:
        """Where agents keep the original limits on the node."""
        return host.FOLDER / "state"

    def await_limits(self, expected_w: float) -> None:
        """Wait until every package has this limit."""
        wait_for(lambda: self.machine.limits_w() == [expected_w] * 2, PATIENCE_S, f"limits of {expected_w} W")
        self._note(f"the limits are 2 x {expected_w:g} W, the power is {self.machine.power_w():.0f} W")

    # -- looking

    def pods(self, component: str = "", namespace: str = NAMESPACE) -> list[Json]:
        """Pods of the release that are not being deleted, or those of one component."""
        query = f"?labelSelector=app.kubernetes.io/component%3D{component}" if component else ""
        items = self.plane.request("GET", f"/api/v1/namespaces/{namespace}/pods{query}")["items"]
        return [pod for pod in items if "deletionTimestamp" not in pod["metadata"] and _stays(pod)]

    def pod(self, component: str) -> Json:
        """The one pod of a component."""
        (pod,) = self.pods(component)
        return pod

    def troubles(self) -> list[str]:
        """Warnings among the cluster's events, the latest last."""
        events = self.plane.request("GET", "/api/v1/events?fieldSelector=type%3DWarning")["items"]
        events.sort(key=lambda event: event["metadata"]["creationTimestamp"])
        return [f"{event['involvedObject']['name']}: {event['reason']}: {event['message']}" for event in events]

    def twin(self) -> Json:
        """The node's NodeTwin."""
        twin: Json = self.plane.request("GET", f"{TWINS}/{NODE}")
        return twin

    def lease_holder(self, name: str) -> str:
        """Who holds a Lease of the release; empty while there is none."""
        lease = self.plane.request("GET", f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{name}")
        return str(lease["spec"].get("holderIdentity", ""))

    def joulie_labels(self) -> set[str]:
        """Names of the node's labels that Joulie knows."""
        labels = self.plane.request("GET", f"{NODES}/{NODE}")["metadata"]["labels"]
        return {name for name in labels if name.startswith("joulie.io/")}

    def extender_configuration(self) -> Json:
        """The extender's entry in the chart's scheduler, for one that does not know the cluster's names."""
        path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{SCHEDULER}"
        configuration = yaml.safe_load(self.plane.request("GET", path)["data"]["configuration.yaml"])
        (entry,) = configuration["extenders"]
        return {**entry, "urlPrefix": f"http://{self.extender_address}:9876"}

    def joulie(self, *arguments: str) -> str:
        """What `kubectl joulie` prints."""
        return kubectl_joulie(self.plane, *arguments)

    def execute(self, component: str, *command: str) -> str:
        """Run a command in the first pod of a component."""
        pod = self.pods(component)[0]["metadata"]["name"]
        return self.plane.kubectl("exec", "--namespace", NAMESPACE, pod, "--", *command)

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

    def override(self, profile: str) -> None:
        """Pin the node's profile, as an administrator may."""
        body = {
            "apiVersion": "joulie.io/v1alpha1",
            "kind": "NodePowerProfile",
            "metadata": {"name": "pinned", "labels": {names.OVERRIDE_LABEL: "true"}},
            "spec": {"nodeName": NODE, "profile": profile},
        }
        self.plane.request("POST", OVERRIDES, body)

    def lift_override(self) -> None:
        """Unpin it."""
        self.plane.request("DELETE", f"{OVERRIDES}/pinned")

    def kill(self, pod: Mapping[str, Any]) -> None:
        """Kill a pod's processes and wait until the kubelet has started it again and it is Ready."""
        self.node.kill(pod)
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}"
        before = pod["status"]["containerStatuses"][0]["restartCount"]

        def is_back() -> bool:
            (status,) = self.plane.request("GET", path)["status"]["containerStatuses"]
            return status["restartCount"] > before and status["ready"]

        wait_for(is_back, PATIENCE_S, f"{pod['metadata']['name']} runs again")

    @contextmanager
    def performance_pod(self, name: str = "urgent", **spec: Any) -> Iterator[None]:
        """A pod of the class performance while the block runs."""
        self.run_pod(name, annotations={names.WORKLOAD_CLASS_ANNOTATION: "performance"}, **spec)
        try:
            yield
        finally:
            self.delete_pods(name)

    def enforce_pod_security(self, level: str, *options: str) -> None:
        """Label the namespace of the release with a level of the Pod Security Standards."""
        label = f"pod-security.kubernetes.io/enforce={level}"
        self.plane.kubectl("label", "--overwrite", *options, "namespace", NAMESPACE, label)

    def run_pod(self, name: str, **spec: Any) -> None:
        """Create a pod in the namespace default.

        Args:
            name: its name.
            spec: of the pod; with `annotations`, `limits` of its container's resources, and fields of its `container`,
                which sleeps by default.
        """
        annotations, limits = spec.pop("annotations", {}), spec.pop("limits", {})
        container = {
            "name": "main",
            "image": images.PAUSE,
            "imagePullPolicy": "Never",
            "resources": {"requests": {"cpu": "10m", "memory": "8Mi"}, "limits": limits},
            **spec.pop("container", {}),
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

    def find_pod(self, name: str) -> Json:
        """A pod of the namespace default."""
        pod: Json = self.plane.request("GET", f"{PODS}/{name}")
        return pod

    def await_running(self, name: str) -> Json:
        """Wait until a pod of the namespace default runs, and return it.

        Raises:
            NotReachedError: it does not in time; the message has its status.
        """

        def running() -> Json:
            pod = self.find_pod(name)
            assert pod["status"].get("phase") == "Running", pod["status"]
            return pod

        return wait_for(running, PATIENCE_S, f"pod {name} runs")

    def delete_pods(self, *names: str) -> None:
        """Delete pods of the namespace default and wait until they are gone."""
        self.plane.kubectl("delete", "pod", *names, "--now", "--wait")


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Whether a pod's condition Ready is true."""
    conditions = {item["type"]: item["status"] for item in pod.get("status", {}).get("conditions", ())}
    return conditions.get("Ready") == "True"


def _stays(pod: Mapping[str, Any]) -> bool:
    """Whether it is no Job's: those of the grid's guard come and go."""
    return all(owner["kind"] != "Job" for owner in pod["metadata"].get("ownerReferences", ()))


def _tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")
