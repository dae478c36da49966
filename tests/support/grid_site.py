"""Grid deferral on a control plane: the chart's admission policy, rights and scheduler, its programs as processes.

Electricity Maps is a server of this module whose answers a test chooses zone by zone, so that tests do not meet.
"""

from __future__ import annotations

import json
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from joulie.domain.grid import names
from joulie_lab.control_plane import LocalControlPlane, kwok_node, wait_for
from joulie_lab.control_plane.ports import free_port
from joulie_lab.control_plane.process import ManagedProcess
from support.forked_program import spawn_joulie
from support.loop import Program

NAMESPACE = "joulie-system"
KEY = "key-that-nobody-may-read"
PATIENCE_S = 120.0
MAX_CACHE_AGE_S = 20.0

_CHART = Path(__file__).parents[2] / "deploy/helm/joulie"
_INSTALLED = (
    "ConfigMap",
    "ServiceAccount",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "MutatingAdmissionPolicy",
)
_NODES = 5

Json = dict[str, Any]


def now_s() -> float:
    """s since the epoch."""
    return time.time()  # noqa: TID251 - the programs of these tests live in real time


class ElectricityMaps:
    """The API's latest values, over real sockets; close it in the end.

    Attributes:
        values: gCO2eq/kWh by zone.
        dead: zones that get a 500.
        hanging: zones that get no answer in time.
        asked: how often each zone was asked for.
        kept_waiting: zones that were asked for while hanging.
        keys: what came as ``auth-token``.
    """

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self.dead: set[str] = set()
        self.hanging: set[str] = set()
        self.asked: Counter[str] = Counter()
        self.kept_waiting: set[str] = set()
        self.keys: set[str] = set()
        self._closing = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/v3"

    def close(self) -> None:
        """End it."""
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, path: str, key: str) -> tuple[int, Json]:
        self.keys.add(key)
        parts = urlsplit(path)
        zone = parse_qs(parts.query).get("zone", [""])[0]
        self.asked[zone] += 1
        if zone in self.hanging:
            self.kept_waiting.add(zone)
            self._closing.wait(30.0)
        if zone in self.dead:
            return 500, {"error": "out of order"}
        if not parts.path.endswith("/carbon-intensity/latest"):
            return 403, {"error": "not in your plan"}
        if zone not in self.values:
            return 404, {"error": f"no zone {zone}"}
        hour = (
            datetime.fromtimestamp(now_s(), UTC)
            .replace(minute=0, second=0, microsecond=0)
            .isoformat()
            .replace("+00:00", "Z")
        )
        value = {"zone": zone, "carbonIntensity": self.values[zone], "datetime": hour, "updatedAt": hour}
        return 200, {**value, "emissionFactorType": "lifecycle", "isEstimated": False, "estimationMethod": None}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        answer = self._answer

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = answer(self.path, self.headers.get("auth-token", ""))
                data = json.dumps(body).encode()
                try:
                    self.send_response(status)
                    self.send_header("content-type", "application/json")
                    self.send_header("content-length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                except ConnectionError:
                    pass  # it did not wait

            def log_message(self, format: str, *arguments: Any) -> None:
                """Nothing: the tests look at what the controller says."""

        return Handler


class Site:
    """A control plane with grid deferral installed as the chart installs it."""

    def __init__(self, plane: LocalControlPlane, maps: ElectricityMaps) -> None:
        self.plane = plane
        self.maps = maps
        values = json.dumps(
            {
                "mode": "enforce",
                "grid": {"enabled": True, "admission": {"mode": "policy"}},
                "scheduler": {"enabled": True},
            }
        )
        text = plane.helm("template", "joulie", _CHART, "--namespace", NAMESPACE, "-f", "-", input=values)
        rendered = [item for item in yaml.load_all(text, Loader=yaml.CSafeLoader) if item]
        self._rendered = rendered
        plane.kubectl("create", "namespace", NAMESPACE)
        self._apply(*_INSTALLED)
        plane.create_nodes(kwok_node(f"grid-{number}") for number in range(_NODES))
        (configured,) = (
            yaml.safe_load(item["data"]["configuration.yaml"])
            for item in rendered
            if item["kind"] == "ConfigMap" and "configuration.yaml" in item.get("data", {})
        )
        # One process plays the cluster's own scheduler and the chart's.
        plane.configure_scheduler({"profiles": [{"schedulerName": "default-scheduler"}, *configured["profiles"]]})
        self._key_file = plane.folder / "electricity-maps.key"
        self._key_file.write_text(KEY)
        self._key_file.chmod(0o600)
        self._since = 0
        self.controller: Program | None = None

    # -- programs

    def start_controller(self, name: str = "grid", **settings: str) -> Program:
        """The controller, leading, and new pods gated; the one before it is stopped."""
        if self.controller is not None:
            self.controller.process.stop()
        address = f"127.0.0.1:{free_port()}"
        process = spawn_joulie(
            self.plane,
            name,
            "grid controller",
            {
                "KUBECONFIG": str(self._kubeconfig("joulie-grid")),
                "POD_NAME": name,
                "POD_NAMESPACE": NAMESPACE,
                "METRICS_ADDR": address,
                "METRICS_TLS": "false",
                "KUEUE_ENABLED": "false",
                "ELECTRICITY_MAP_API_KEY_FILE": str(self._key_file),
                # As the Compute Gardener Scheduler has it.
                "ELECTRICITY_MAP_API_URL": f"{self.maps.url}/carbon-intensity/latest?zone=",
                "ELECTRICITY_MAP_API_REGION": "US-CAL-CISO",
                "CACHE_TTL": "1s",
                "MAX_CACHE_AGE": f"{MAX_CACHE_AGE_S:g}s",
                "API_RATE_LIMIT": "100000",
                "API_TIMEOUT": "2s",
                "API_RETRY_DELAY": "50ms",
                "API_MAX_RETRIES": "1",
                "MAX_SCHEDULING_DELAY": "2h",
                **settings,
            },
        )
        self.controller = Program(process, f"http://{address}", "")
        self.controller.await_ready()
        wait_for(self.gates_new_pods, PATIENCE_S, "the controller has turned gating on")
        return self.controller

    def start_operator(self) -> Program:
        """The operator, which manages no node here; with the definitions of the chart's objects."""
        self._apply("CustomResourceDefinition")
        self.plane.await_definitions()
        address = f"127.0.0.1:{free_port()}"
        process = spawn_joulie(
            self.plane,
            "operator",
            "operator",
            {
                "KUBECONFIG": str(self._kubeconfig("joulie-operator")),
                "POD_NAME": "operator",
                "POD_NAMESPACE": NAMESPACE,
                "METRICS_ADDR": address,
                "PROMETHEUS_ADDRESS": "none",
            },
        )
        operator = Program(process, f"http://{address}", "")
        operator.await_ready()
        return operator

    def _apply(self, *kinds: str) -> None:
        wanted = [item for item in self._rendered if item["kind"] in kinds]
        self.plane.kubectl("apply", "-f", "-", input=yaml.dump_all(wanted, Dumper=yaml.CSafeDumper))

    def start_guard(self) -> ManagedProcess:
        """The guard, which looks each second and takes a controller for dead that was silent for eight."""
        return spawn_joulie(
            self.plane,
            "guard",
            "grid guard -o json",
            {
                "KUBECONFIG": str(self._kubeconfig("joulie-grid-guard")),
                "POD_NAMESPACE": NAMESPACE,
                "GUARD_INTERVAL": "1s",
                "LEASE_STALE_AFTER": "8s",
                "MAX_SCHEDULING_DELAY": "2h",
            },
        )

    def _kubeconfig(self, account: str) -> Path:
        path = self.plane.folder / f"{account}.kubeconfig"
        path.touch(mode=0o600)
        path.write_text(self.plane.kubeconfig_for(account, NAMESPACE).read_text())
        return path

    def gates_new_pods(self) -> bool:
        """Whether a pod that asks to wait gets the gate."""
        made = self.plane.request("POST", "/api/v1/namespaces/default/pods?dryRun=All", pod("new"))
        return gates(made) == [names.GATE]

    # -- namespaces and pods

    def namespace(
        self, name: str, *, labels: Mapping[str, str] | None = None, annotations: Mapping[str, str] | None = None
    ) -> Namespace:
        """A namespace of its own for a test, ready for pods."""
        metadata = {"name": name, "labels": {**(labels or {})}, "annotations": {**(annotations or {})}}
        self.plane.request("POST", "/api/v1/namespaces", {"metadata": metadata})
        accounts = f"/api/v1/namespaces/{name}/serviceaccounts"
        wait_for(lambda: self.plane.request("GET", accounts)["items"], PATIENCE_S, f"pods can be created in {name}")
        return Namespace(self, name)


class Namespace:
    """One namespace of a site."""

    def __init__(self, site: Site, name: str) -> None:
        self.site = site
        self.name = name
        self._pods = f"/api/v1/namespaces/{name}/pods"

    def create(self, *bodies: Json) -> None:
        """Create objects as a user does."""
        self.site.plane.kubectl("create", "-n", self.name, "-f", "-", input=yaml.safe_dump_all(bodies))

    def pods(self) -> list[Json]:
        """Its pods."""
        return list(self.site.plane.request("GET", self._pods)["items"])

    def pod(self, name: str) -> Json:
        """The one pod whose name begins so."""
        (found,) = (pod for pod in self.pods() if pod["metadata"]["name"].startswith(name))
        return found

    def await_held(self, *wanted: str, timeout_s: float = PATIENCE_S) -> list[Json]:
        """Wait until pods whose names begin so are noted as held; they are gated, not unschedulable."""

        def held() -> bool:
            pods = [self.pod(name) for name in wanted]
            assert all(gates(pod) == [names.GATE] for pod in pods), [gates(pod) for pod in pods]
            return all(_noted(pod) for pod in pods)

        self._wait(held, timeout_s, f"{', '.join(wanted)} are held")
        pods = [self.pod(name) for name in wanted]
        for pod in pods:
            (condition,) = (one for one in pod["status"]["conditions"] if one["type"] == "PodScheduled")
            assert condition["reason"] == "SchedulingGated"
        return pods

    def await_decided(self, *wanted: str) -> None:
        """Wait until each of the pods whose names begin so is noted as held, or has a node."""
        self._wait(
            lambda: all(_noted(pod) or pod["spec"].get("nodeName") for pod in map(self.pod, wanted)),
            PATIENCE_S,
            f"{', '.join(wanted)} are held or bound",
        )

    def await_bound(self, *wanted: str, timeout_s: float = PATIENCE_S) -> list[Json]:
        """Wait until pods whose names begin so have a node."""
        self._wait(
            lambda: all(self.pod(name)["spec"].get("nodeName") for name in wanted),
            timeout_s,
            f"{', '.join(wanted)} are bound",
        )
        return [self.pod(name) for name in wanted]

    def events(self, reason: str) -> list[str]:
        """Notes of its events of a reason."""
        path = f"/apis/events.k8s.io/v1/namespaces/{self.name}/events"
        return [one["note"] for one in self.site.plane.request("GET", path)["items"] if one["reason"] == reason]

    def await_event(self, reason: str, holds: Callable[[str], bool]) -> None:
        """Wait for an event of a reason whose note is as wanted."""
        wait_for(
            lambda: any(holds(note) for note in self.events(reason)), PATIENCE_S, f"an event {reason} in {self.name}"
        )

    def _wait(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        def holds() -> bool:
            if self.site.controller is not None and self.site.controller.process.running:
                self.site.controller.process.raise_if_ended()
            try:
                return condition()
            except ValueError:  # not created yet
                return False

        wait_for(holds, timeout_s, what)


def pod(name: str, annotations: Mapping[str, str] | None = None, **spec: Any) -> Json:
    """A pod of the Compute Gardener Scheduler, unless `spec` says otherwise."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": {**(annotations or {})}},
        "spec": pod_spec(**spec),
    }


def pod_spec(**more: Any) -> Json:
    """A PodSpec, of the Compute Gardener Scheduler unless it says otherwise."""
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}}}
    return {
        "schedulerName": names.SCHEDULER_NAME,
        "containers": [container],
        "terminationGracePeriodSeconds": 0,
        **more,
    }


def template(annotations: Mapping[str, str], **spec: Any) -> Json:
    """A pod template."""
    return {"metadata": {"labels": {"app": "it"}, "annotations": {**annotations}}, "spec": pod_spec(**spec)}


def job(name: str, annotations: Mapping[str, str], **spec: Any) -> Json:
    """A Job of one pod."""
    made = template(annotations, restartPolicy="Never")
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"template": made, **spec}}


def gates(found: Json) -> list[str]:
    """Names of a pod's scheduling gates."""
    return [gate["name"] for gate in found["spec"].get("schedulingGates", [])]


def said(found: Json, key: str) -> str:
    """A pod's annotation, "" without it."""
    return str(found["metadata"].get("annotations", {}).get(key, ""))


def _noted(found: Json) -> bool:
    return bool(said(found, names.CARBON_DELAY_TIMESTAMP) or said(found, names.PRICE_DELAY_TIMESTAMP))


def write_time_zone(folder: Path, name: str, before_s: int, changes: Iterable[tuple[int, int]]) -> None:
    """A time zone of the test's own, as zoneinfo finds it by PYTHONTZPATH.

    Args:
        folder: to put in PYTHONTZPATH.
        name: of the zone.
        before_s: its offset from UTC before the first change, s.
        changes: when it changes, s since the epoch, and the offset from then on.
    """
    moments = list(changes)
    offsets = [before_s, *(offset for _when, offset in moments)]
    header = struct.pack(">4s1s15x6l", b"TZif", b"2", 0, 0, 0, len(moments), len(offsets), 4)
    kinds = b"".join(struct.pack(">lbB", offset, number > 0, 0) for number, offset in enumerate(offsets))
    which = bytes(range(1, len(offsets)))

    def block(letter: str) -> bytes:
        times = struct.pack(f">{len(moments)}{letter}", *(when for when, _offset in moments))
        return header + times + which + kinds + b"TST\0"

    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(block("l") + block("q") + b"\n\n")
