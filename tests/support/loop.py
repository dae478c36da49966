"""The whole loop on a control plane: each Joulie program a process with its own ServiceAccount and the chart's RBAC.

A test that needs a permission which the chart does not grant fails here as it would on a cluster.
"""

import base64
import json
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from joulie.adapters.kubernetes import names
from joulie_lab.control_plane import ApiError, LocalControlPlane, kwok_node, wait_for
from joulie_lab.control_plane.chart import NAMESPACE, install_rights, render
from joulie_lab.control_plane.ports import free_port
from joulie_lab.control_plane.process import ManagedProcess
from joulie_lab.control_plane.programs import simulated_devices
from support.forked_program import spawn_joulie

TWINS = "/apis/joulie.io/v1alpha1/nodetwins"
HARDWARES = "/apis/joulie.io/v1alpha1/nodehardwares"
OVERRIDES = "/apis/joulie.io/v1alpha1/nodepowerprofiles"
BUDGETS, BUDGET = "/apis/joulie.io/v1alpha1/powerbudgets", "hall"
PODS = "/api/v1/namespaces/default/pods"
NODES = "/api/v1/nodes"
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"

# Two cores serve everything here: what takes a second alone may take many.
PATIENCE_S = 120.0

_CHART = Path(__file__).parents[2] / "deploy/helm/joulie"
_CREDENTIAL_KEY = "authentication.kubernetes.io/credential-id"

Json = dict[str, Any]


@dataclass(frozen=True)
class Family:
    """Hardware that some nodes share."""

    cpu_model: str
    sockets: int
    cores: int
    memory_gib: int
    gpu_model: str = ""
    gpus: int = 0


CPU_ONLY = Family("AMD-EPYC-9965", 2, 384, 1536)
H100 = Family("AMD-EPYC-9654", 2, 192, 1536, "NVIDIA-H100-NVL", 8)
L40S = Family("Intel-Xeon-Gold-6530", 2, 64, 512, "NVIDIA-L40S", 4)


def node(
    name: str,
    family: Family,
    *,
    labels: Mapping[str, str] | None = None,
    taints: Sequence[Mapping[str, str]] = (),
    annotations: Mapping[str, str] | None = None,
) -> Json:
    """A managed node of a family; its labels say what hardware it has."""
    hardware = {names.HW_CPU_MODEL_LABEL: family.cpu_model, names.HW_CPU_SOCKETS_LABEL: str(family.sockets)}
    allocatable = {"cpu": str(family.cores), "memory": f"{family.memory_gib}Gi"}
    if family.gpus:
        hardware |= {names.HW_GPU_MODEL_LABEL: family.gpu_model, names.HW_GPU_COUNT_LABEL: str(family.gpus)}
        allocatable["nvidia.com/gpu"] = str(family.gpus)
    return kwok_node(
        name,
        labels={names.MANAGED_LABEL: "true", **hardware, **(labels or {})},
        allocatable=allocatable,
        taints=taints,
        annotations=annotations,
    )


def pod(
    name: str,
    *,
    workload_class: str = "",
    on: str = "",
    requests: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> Json:
    """A pod; `on` names the one node that it accepts, `spec` adds to its PodSpec."""
    said = {names.WORKLOAD_CLASS_ANNOTATION: workload_class} if workload_class else {}
    wanted = {"cpu": "1", "memory": "1Gi", **(requests or {})}
    # Extended resources want limits too.
    limits = {key: value for key, value in wanted.items() if "/" in key}
    container = {"name": "main", "image": "none", "resources": {"requests": wanted, "limits": limits}}
    if on:
        spec["nodeSelector"] = {"kubernetes.io/hostname": on, **spec.get("nodeSelector", {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {**(labels or {})}, "annotations": {**said, **(annotations or {})}},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0, **spec},
    }


@dataclass(frozen=True)
class State:
    """What a NodeTwin and its node's labels say about the power state."""

    profile: str
    draining: bool
    schedulable: str
    cpu_pct: float | None


ACTIVE = State("performance", False, "performance", 100.0)
DRAINING = State("performance", True, "draining", 100.0)
ECO = State("eco", False, "eco", 60.0)


def state_of(twin: Mapping[str, Any]) -> State:
    """The state that a NodeTwin tells of, in whatever way it was put together."""
    spec, status = twin["spec"], twin.get("status", {})
    return State(
        spec["profile"],
        spec.get("scheduling", {}).get("draining", False),
        status.get("schedulableClass", ""),
        spec.get("cpu", {}).get("packagePowerCapPctOfMax"),
    )


def kubectl_joulie(plane: LocalControlPlane, *arguments: str, kubeconfig: Path | None = None) -> str:
    """What `kubectl joulie` prints: through kubectl, which finds the plugin on the PATH."""
    environment = plane.environment(kubeconfig)
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    return plane.kubectl("joulie", *arguments, environment=environment, kubeconfig=kubeconfig)


def bind_token(plane: LocalControlPlane, kubeconfig: Path, service_account: str, kind: str, name: str) -> None:
    """Put a token that is bound to a Node or a Pod into a ServiceAccount's kubeconfig, as those of pods are."""
    to = ("--bound-object-kind", kind, "--bound-object-name", name)
    token = plane.kubectl("create", "token", service_account, "-n", NAMESPACE, *to)
    content = json.loads(kubeconfig.read_text())
    content["users"][0]["user"]["token"] = token.strip()
    kubeconfig.write_text(json.dumps(content))


class Program:
    """One Joulie program, which can be killed and started again under the same name."""

    def __init__(self, process: ManagedProcess, address: str, credential: str) -> None:
        self.process = process
        self.address = address
        self.credential = credential
        """How the audit log names its token: one of its own for each replica."""

    def start(self) -> None:
        """Run it and wait until it says that it is ready."""
        self.process.start()
        self.await_ready()

    def await_ready(self) -> None:
        """Wait until /readyz says so."""
        # Among a thousand nodes, on a machine that is busy, the first look takes an agent a while.
        wait_for(self.ready, 4 * PATIENCE_S, f"{self.process.name} is ready")

    def ready(self) -> bool:
        """Whether /readyz answers 200 now."""
        self.process.raise_if_ended()
        try:
            with urllib.request.urlopen(f"{self.address}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def get(self, path: str) -> Any:
        """What it answers to a GET, decoded."""
        with urllib.request.urlopen(f"{self.address}{path}", timeout=10) as answer:
            return json.loads(answer.read())

    def post(self, path: str, body: Json) -> Any:
        """What it answers to a POST, decoded."""
        request = urllib.request.Request(f"{self.address}{path}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read())

    def metric(self, name: str, **labels: str) -> float:
        """Sum of a metric's series that carry `labels`."""
        with urllib.request.urlopen(f"{self.address}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(
            float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith((f"{name}{{", f"{name} ")) and all(label in line for label in wanted)
        )

    def log(self) -> str:
        """Its whole log."""
        return self.process.log.read_text(errors="replace")


@dataclass(frozen=True)
class Seen:
    """One change of an object."""

    kind: str
    version: int
    """Of the whole cluster: changes of different objects can be ordered by it."""
    object: Json

    @property
    def name(self) -> str:
        """Of the object."""
        return str(self.object["metadata"]["name"])


class Recording:
    """Every version of every object of a kind that the API server tells of, nothing left out."""

    def __init__(self, process: ManagedProcess) -> None:
        self._process = process
        self._seen: list[Seen] = []
        self._offset = 0

    def seen(self, name: str = "") -> list[Seen]:
        """The changes so far, oldest first; of one object where it is named."""
        with self._process.log.open() as log:
            log.seek(self._offset)
            text = log.read()
        decoder, place = json.JSONDecoder(), 0
        while (start := text.find("{", place)) >= 0:
            try:
                event, place = decoder.raw_decode(text, start)
            except json.JSONDecodeError:
                break  # the rest of it is still to come
            found = event["object"]
            self._seen.append(Seen(event["type"], int(found["metadata"]["resourceVersion"]), found))
        self._offset += len(text[:place].encode())
        return [one for one in self._seen if name in ("", one.name)]

    def stop(self) -> list[Seen]:
        """End it; the changes that it saw."""
        self._process.stop()
        return self.seen()


class Loop:
    """Programs of one control plane, and what tests do with them.

    Attributes:
        programs: those that were started, by name.
        plane: the control plane.
    """

    def __init__(self, plane: LocalControlPlane, *values: str) -> None:
        """Install CRDs, ServiceAccounts and RBAC as the chart has them, and the extender's place in the scheduler.

        Args:
            plane: where to.
            values: of the chart beside those of all tests, each as ``path=value``.
        """
        self.plane = plane
        self.programs: dict[str, Program] = {}
        self._recordings = 0
        self._ports = {name: free_port() for name in ("simulator", "agent", "extender", "extender-metrics")}
        self._rendered = render(plane, _CHART, *values)
        install_rights(plane, self._rendered)

    # -- programs

    def start_simulator(self, **settings: str) -> Program:
        """Hardware that draws power and obeys caps."""
        address = f"127.0.0.1:{self._ports['simulator']}"
        own = {"SIM_ADDR": address, "SIM_TICK_INTERVAL": "250ms", "SIM_TIME_SCALE": "20"}
        return self._start("simulator", "simulator", "joulie-simulator", f"http://{address}", own | settings)

    def start_agent(self, **settings: str) -> Program:
        """One pool agent for all nodes, which reads and caps through the simulator."""
        simulator = f"http://127.0.0.1:{self._ports['simulator']}"
        address = f"127.0.0.1:{self._ports['agent']}"
        own = {
            "RECONCILE_INTERVAL": "1s",
            "METRICS_ADDR": address,
            "STATE_DIR": str(self.plane.folder / "agent-state"),
            **simulated_devices(simulator),
        }
        return self._start("agent", "agent", "joulie-agent-pool", f"http://{address}", own | settings)

    def start_operator(self, replica: str = "operator", **settings: str) -> Program:
        """A replica of the operator, with a token of its own."""
        address = f"127.0.0.1:{free_port()}"
        own = {
            "RECONCILE_INTERVAL": "2s",
            "METRICS_ADDR": address,
            "POD_NAME": replica,
            "POD_NAMESPACE": NAMESPACE,
            "DRAIN_SETTLING": "2s",
            "QUEUE_HOLD": "0s",
            "POLICY_TYPE": "static_partition",
            "POWER_POLL_INTERVAL": "1s",
            "POWER_STALE_AFTER": "30s",
            "TELEMETRY_HTTP_ENDPOINT": f"http://127.0.0.1:{self._ports['simulator']}/telemetry",
            "PROMETHEUS_ADDRESS": "none",
        }
        return self._start(replica, "operator", "joulie-operator", f"http://{address}", own | settings)

    def start_extender(self, **settings: str) -> Program:
        """The extender, and kube-scheduler wired to it as the chart wires its own."""
        metrics = f"127.0.0.1:{self._ports['extender-metrics']}"
        own = {"PORT": str(self._ports["extender"]), "METRICS_ADDR": metrics, "SHUTDOWN_DELAY": "0s"}
        program = self._start("extender", "extender", "joulie-extender", f"http://{metrics}", own | settings)
        self.wire_scheduler()
        return program

    def wire_scheduler(self) -> None:
        """Restart kube-scheduler with the chart's entry for the extender."""
        configured = next(item for item in self._rendered if "configuration.yaml" in item.get("data", {}))
        entry = yaml.safe_load(configured["data"]["configuration.yaml"])["extenders"][0]
        entry["urlPrefix"] = f"http://127.0.0.1:{self._ports['extender']}"
        # A busy test machine must not make kube-scheduler go on without its extender, as it should in a cluster.
        self.plane.configure_scheduler({"extenders": [entry | {"httpTimeout": "20s"}]})

    def leader(self) -> str:
        """The replica of the operator that holds the lease, "" where nobody does."""
        lease = self.get(f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/joulie-operator")
        return str(lease["spec"].get("holderIdentity", "")).rpartition("_")[0] if lease else ""

    def await_leader(self, replica: str) -> None:
        """Wait until a replica leads and has done its first step."""

        def leads() -> bool:
            program = self.programs[replica]
            program.process.raise_if_ended()
            leading = program.metric("joulie_operator_leader") == 1.0
            return leading and program.metric("joulie_operator_reconciles_total", result="success") >= 1.0

        wait_for(leads, PATIENCE_S, f"{replica} leads")

    def _start(
        self,
        name: str,
        command: str,
        service_account: str,
        address: str,
        environment: Mapping[str, str],
        *,
        on_node: str = "",
    ) -> Program:
        kubeconfig = self.plane.folder / f"{name}.kubeconfig"
        issued = self.plane.kubeconfig_for(service_account, NAMESPACE)
        if on_node:
            bind_token(self.plane, issued, service_account, "Node", on_node)
        kubeconfig.touch(mode=0o600)
        kubeconfig.write_text(issued.read_text())
        process = spawn_joulie(self.plane, name, command, {"KUBECONFIG": str(kubeconfig), **environment})
        self.programs[name] = Program(process, address, _credential(kubeconfig))
        self.programs[name].await_ready()
        return self.programs[name]

    def raise_if_any_ended(self) -> None:
        """Tell of a program that ended by itself."""
        for program in self.programs.values():
            program.process.raise_if_ended()

    # -- objects

    def get(self, path: str) -> Any:
        """An object, or None where it does not exist."""
        try:
            return self.plane.request("GET", path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def patch(self, path: str, body: Any, content_type: str = MERGE) -> Any:
        """Change an object as an administrator would."""
        return self.plane.request("PATCH", path, body, content_type=content_type)

    def delete(self, path: str) -> None:
        """Delete an object, at once, and wait until it is gone; one that is not there is fine."""
        try:
            self.plane.request("DELETE", f"{path}?gracePeriodSeconds=0")
        except ApiError as error:
            if error.status != 404:
                raise

    def twin(self, name: str) -> Json:
        """The NodeTwin of a node, {} where there is none."""
        return self.get(f"{TWINS}/{name}") or {}

    def twins(self) -> dict[str, Json]:
        """All NodeTwins by name."""
        return {item["metadata"]["name"]: item for item in self.plane.request("GET", TWINS)["items"]}

    def labels(self, name: str) -> dict[str, str]:
        """The labels of a node."""
        return dict(self.plane.request("GET", f"{NODES}/{name}")["metadata"]["labels"])

    def state(self, name: str) -> State | None:
        """The state that a NodeTwin and its node's labels agree on; None while they do not."""
        told = self._told(name)
        return told if told and self._is_labelled(name, told) else None

    def _told(self, name: str) -> State | None:
        twin = self.twin(name)
        return state_of(twin) if twin.get("status") else None

    def _is_labelled(self, name: str, state: State) -> bool:
        labels = self.labels(name)
        return labels.get(names.POWER_PROFILE_LABEL) == state.profile and (
            (names.DRAINING_LABEL in labels) == state.draining
        )

    def await_state(self, name: str, wanted: State, *, timeout_s: float = PATIENCE_S) -> None:
        """Wait until a node is in a state, and the extender, whose view is up to a tenth of a second old, knows it."""

        def reached() -> bool:
            # The labels are asked for last: most of the many looks end at the NodeTwin.
            told = self._told(name)
            assert told == wanted, f"its NodeTwin says {told}; operators log: {self._log_tails('operator')}"
            assert self._is_labelled(name, wanted), f"its labels do not say so: {self.labels(name)}"
            extender = self.programs.get("extender")
            if extender is not None and extender.process.running:
                seen = {node["node"]: node["class"] for node in extender.get("/debug/scoring")["nodes"]}
                assert seen.get(name) == wanted.schedulable, f"the extender takes it for {seen.get(name)}"
            return True

        wait_for(reached, timeout_s, f"{name} is {wanted}")

    def override(self, name: str, profile: str, **spec: Any) -> None:
        """Pin a node's profile, as an administrator may."""
        self._apply(
            OVERRIDES,
            "NodePowerProfile",
            {"name": f"pin-{name}", "labels": {names.OVERRIDE_LABEL: "true"}},
            {"nodeName": name, "profile": profile, **spec},
        )

    def _apply(self, path: str, kind: str, metadata: Json, spec: Json) -> None:
        """Create or replace what an administrator says in an object of Joulie's."""
        self.plane.request(
            "PATCH",
            f"{path}/{metadata['name']}?fieldManager=administrator&force=true",
            {"apiVersion": "joulie.io/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec},
            content_type="application/apply-patch+yaml",
        )

    def set_budget(self, watts: float, name: str = BUDGET, **spec: Any) -> None:
        """Set a PowerBudget."""
        self._apply(BUDGETS, "PowerBudget", {"name": name}, {"watts": watts, **spec})

    def budget(self, name: str = BUDGET) -> Json:
        """The status of a PowerBudget, its conditions' reasons by their types."""
        status = self.get(f"{BUDGETS}/{name}").get("status", {})
        return {**status, "conditions": {one["type"]: one["reason"] for one in status.get("conditions", ())}}

    def await_budget(self, watts: float, reason: str = "WorstCaseFits", name: str = BUDGET) -> Json:
        """Wait until a PowerBudget says for a reason whether a limit is kept; its status."""

        def told() -> Json:
            status = self.budget(name)
            kept = status["conditions"].get("Enforced")
            assert (kept, status.get("limitWatts")) == (reason, round(watts, 1)), status
            return status

        return wait_for(told, PATIENCE_S, f"the budget {name} of {watts:.0f} W says {reason}")

    def lift_budgets(self) -> None:
        """Delete all."""
        self.plane.request("DELETE", BUDGETS)

    def lift_overrides(self) -> None:
        """Unpin all nodes."""
        self.plane.request("DELETE", OVERRIDES)

    def create(self, *pods: Json) -> None:
        """Create pods in the namespace default."""
        self.plane.create_all(PODS, pods)

    def pod(self, name: str) -> Json:
        """A pod, {} where there is none."""
        return self.get(f"{PODS}/{name}") or {}

    def await_placed(self, name: str) -> str:
        """Wait until a pod runs; the node that it runs on."""

        def running() -> str:
            found = self.pod(name)
            assert found, f"pod {name} does not exist"
            assert found["status"].get("phase") == "Running", f"its status is {found['status']}"
            return str(found["spec"]["nodeName"])

        return wait_for(running, PATIENCE_S, f"pod {name} runs")

    def await_unschedulable(self, name: str) -> str:
        """Wait until the scheduler gives a pod up; why, in its words."""

        def told() -> str:
            found = self.pod(name)
            assert not found["spec"].get("nodeName"), f"pod {name} was placed on {found['spec']['nodeName']}"
            for condition in found["status"].get("conditions", []):
                if condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable":
                    return str(condition["message"])
            return ""

        return wait_for(told, PATIENCE_S, f"pod {name} is Unschedulable")

    def delete_pods(self, *pods: str) -> None:
        """Delete pods, all where none is named, and wait until they are gone."""
        wanted = pods or [item["metadata"]["name"] for item in self.plane.request("GET", PODS)["items"]]
        for name in wanted:
            self.delete(f"{PODS}/{name}")
        wait_for(lambda: not any(self.pod(name) for name in wanted), PATIENCE_S, f"pods {', '.join(wanted)} are gone")

    def wire_scores(self, wanted: Json) -> dict[str, int]:
        """What the extender tells kube-scheduler of each node, 0 to 10, for a pod that need not exist."""
        explained = self.programs["extender"].post("/debug/explain", wanted)
        return {one["node"]: one["wireScore"] for one in explained["nodes"]}

    # -- history

    def record(self, resource: str, *, managed_fields: bool = False) -> Recording:
        """Record every change of a resource from now on."""
        self._recordings += 1
        options = ["--show-managed-fields"] if managed_fields else []
        command = ["kubectl", "get", resource, "--watch", "--output-watch-events", "-o", "json", *options]
        process = self.plane.spawn(
            f"recording-{self._recordings}-{resource}", command, environment=self.plane.environment()
        )
        recording = Recording(process)
        # A list that is empty says nothing, so the first object tells that it listens.
        wait_for(recording.seen, PATIENCE_S, f"the recording of {resource} has begun")
        return recording

    def writes(self, program: Program, resource: str = "") -> list[Json]:
        """What a program wrote so far, by the audit log, oldest first; of one resource where it is named."""
        return [
            event
            for event in self.plane.audit_events()
            if program.credential in event["user"].get("extra", {}).get(_CREDENTIAL_KEY, [])
            and resource in ("", event.get("objectRef", {}).get("resource"))
        ]

    def refused(self) -> list[str]:
        """Writes of Joulie's programs that RBAC refused."""
        ours = f"system:serviceaccount:{NAMESPACE}:"
        return [
            f"{event['user']['username']} {event['verb']} {event['requestURI']}: {event['responseStatus']['message']}"
            for event in self.plane.audit_events()
            if event["user"]["username"].startswith(ours) and event.get("responseStatus", {}).get("code") == 403
        ]

    def _log_tails(self, prefix: str) -> str:
        programs = self.programs.items()
        return "".join(program.process.log_tail()[-600:] for name, program in programs if name.startswith(prefix))


def _credential(kubeconfig: Path) -> str:
    token = json.loads(kubeconfig.read_text())["users"][0]["user"]["token"]
    claims = token.split(".")[1]
    content = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
    return f"JTI={content['jti']}"
