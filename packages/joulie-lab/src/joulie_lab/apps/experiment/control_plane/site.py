"""Control plane of one run: creates the nodes of the scenario, and runs Joulie's programs."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from joulie_lab.control_plane import COMPONENTS, LocalControlPlane, ManagedProcess, ProcessFailedError, kwok_node
from joulie_lab.control_plane.chart import NAMESPACE, install_rights, render
from joulie_lab.simulation.native.nodes import MAX_PODS, SimNode

# A run may take many hours of wall time; a program with an expired token is refused everything.
_TOKEN_S = 7 * 86400
_TIMEOUT_S = 10.0
_REFUSED_BY_RBAC = re.compile(r"is forbidden: User [^\n]*")
_MIB_PER_GIB = 1024.0
_TWINS = "/apis/joulie.io/v1alpha1/nodetwins"


class ControlPlaneRunError(RuntimeError):
    """A run cannot start or continue; the message says why, with the end of the log if a program failed."""


@dataclass(frozen=True)
class Program:
    """A running program of Joulie.

    Attributes:
        process: its process.
        url: base URL of its probes.
    """

    process: ManagedProcess
    url: str


class Site:
    """A control plane with a scenario's nodes, and the programs that are started on it."""

    def __init__(self, plane: LocalControlPlane, chart: Path, *values: str) -> None:
        """Install the ServiceAccounts and rights that the chart grants to the programs.

        Args:
            plane: a control plane that has been started.
            chart: folder of Joulie's chart.
            values: values of the chart on which rights depend, each as ``path=value``.
        """
        self.plane = plane
        self._programs: dict[str, Program] = {}
        self._read_bytes: dict[str, int] = {}
        self._http = httpx2.Client(timeout=_TIMEOUT_S, trust_env=False)
        install_rights(plane, render(plane, chart, *values))

    def add_cluster(
        self, nodes: Sequence[SimNode], namespaces: set[str], annotations: Mapping[str, str] | None = None
    ) -> None:
        """Create the nodes, with annotations, and the namespaces of the jobs other than `default`."""
        self.plane.create_nodes(node_object(node, annotations) for node in nodes)
        for name in sorted(namespaces - {"default"}):
            self.plane.kubectl("create", "namespace", name)

    def start(self, name: str, account: str, url: str, variables: Mapping[str, str]) -> None:
        """Start a program under its ServiceAccount of the chart.

        Args:
            name: name of its command.
            account: its ServiceAccount.
            url: base URL of its probes.
            variables: its environment variables.
        """
        kubeconfig = self.plane.kubeconfig_for(account, NAMESPACE, duration_s=_TOKEN_S)
        process = self.plane.spawn(
            name, [sys.executable, "-m", "joulie", name], environment={"KUBECONFIG": str(kubeconfig), **variables}
        )
        self._programs[name] = Program(process, url)

    def ready(self, name: str) -> bool:
        """Whether a program's readiness probe succeeds."""
        self.raise_if_broken()
        try:
            return self._http.get(f"{self._programs[name].url}/readyz").status_code == httpx2.codes.OK
        except httpx2.TransportError:
            return False

    def settled(self, nodes: int) -> bool:
        """Whether all nodes have their profile, none drains, and the agents have reported their caps as applied."""
        self.raise_if_broken()
        twins = self.plane.request("GET", _TWINS)["items"]
        return len(twins) == nodes and all(map(_is_settled, twins))

    def get(self, url: str) -> dict[str, Any]:
        """Send a GET request to the simulator, with retries, since it may be busy. Returns its answer.

        Raises:
            ControlPlaneRunError: the simulator does not answer.
        """
        return self._request(lambda: self._http.get(url))

    def post(self, url: str) -> dict[str, Any]:
        """Send a POST request to the simulator, with retries. Returns its answer.

        Raises:
            ControlPlaneRunError: the simulator does not answer.
        """
        return self._request(lambda: self._http.post(url))

    def raise_if_broken(self) -> None:
        """Check that all processes run, and that no program was refused a request by RBAC.

        Raises:
            ControlPlaneRunError: a program or a component of the control plane ended, or a program lacks a right.
        """
        try:
            for name in COMPONENTS:
                self.plane.process(name).raise_if_ended()
            for program in self._programs.values():
                program.process.raise_if_ended()
        except ProcessFailedError as error:
            raise ControlPlaneRunError(str(error)) from error
        for name, program in self._programs.items():
            if refused := _REFUSED_BY_RBAC.search(self._new_lines(name, program.process.log)):
                raise ControlPlaneRunError(f"{name} lacks a right: {refused[0]}; its log is {program.process.log}")

    def close(self) -> None:
        """Close the connections; the control plane stops the programs."""
        self._http.close()

    def _request(self, send: Callable[[], httpx2.Response]) -> dict[str, Any]:
        for _ in range(3):
            self.raise_if_broken()
            try:
                answer: dict[str, Any] = send().raise_for_status().json()
            except httpx2.HTTPError as error:
                problem = error
            else:
                return answer
        raise ControlPlaneRunError(f"the simulator does not answer: {problem}")

    def _new_lines(self, name: str, log: Path) -> str:
        with log.open("rb") as lines:
            lines.seek(self._read_bytes.get(name, 0))
            text = lines.read()
        # An incomplete last line is read again.
        whole = text.rpartition(b"\n")[0]
        self._read_bytes[name] = self._read_bytes.get(name, 0) + len(whole)
        return whole.decode(errors="replace")


def node_object(node: SimNode, annotations: Mapping[str, str] | None = None) -> dict[str, Any]:
    """KWOK node object for a node of a scenario."""
    allocatable = {
        "cpu": f"{round(node.spec.cores * 1000)}m",
        "memory": f"{round(node.memory_gib * _MIB_PER_GIB)}Mi",
        "pods": str(MAX_PODS),
    }
    if node.spec.gpus:
        allocatable[node.gpu_resource] = str(node.spec.gpus)
    return kwok_node(node.name, labels=node.labels, allocatable=allocatable, annotations=annotations)


def _is_settled(twin: Mapping[str, Any]) -> bool:
    status, draining = twin.get("status", {}), twin["spec"].get("scheduling", {}).get("draining", False)
    control = status.get("controlStatus", {})
    cpu, gpu = (control.get(part, {}).get("result") for part in ("cpu", "gpu"))
    capped = cpu == "applied" and gpu in ("applied", "none")  # none: a node without GPUs
    return not draining and status.get("schedulableClass") in ("performance", "eco") and capped
