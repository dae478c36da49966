"""The control plane of one run: what the scenario's cluster is made of, and Joulie's programs beside it."""

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

# A run may take many hours of the clock; a program whose token ends is refused everything.
_TOKEN_S = 7 * 86400
_TIMEOUT_S = 10.0
_REFUSED_BY_RBAC = re.compile(r"is forbidden: User [^\n]*")
_MIB_PER_GIB = 1024.0
_TWINS = "/apis/joulie.io/v1alpha1/nodetwins"


class ControlPlaneRunError(RuntimeError):
    """A run that cannot begin or go on; the message says why, with the end of the log where a program is at fault."""


@dataclass(frozen=True)
class Program:
    """One of Joulie's programs.

    Attributes:
        process: it.
        url: where its probes are.
    """

    process: ManagedProcess
    url: str


class Site:
    """A control plane with a scenario's nodes, and the programs that are started on it."""

    def __init__(self, plane: LocalControlPlane, chart: Path) -> None:
        """Install what the chart gives the programs.

        Args:
            plane: that has been started.
            chart: folder of Joulie's chart.
        """
        self.plane = plane
        self._programs: dict[str, Program] = {}
        self._read_bytes: dict[str, int] = {}
        self._http = httpx2.Client(timeout=_TIMEOUT_S, trust_env=False)
        install_rights(plane, render(plane, chart))

    def add_cluster(self, nodes: Sequence[SimNode], namespaces: set[str]) -> None:
        """Create the nodes, and the namespaces that jobs want beside the default one."""
        self.plane.create_nodes(node_object(node) for node in nodes)
        for name in sorted(namespaces - {"default"}):
            self.plane.kubectl("create", "namespace", name)

    def start(self, name: str, account: str, url: str, variables: Mapping[str, str]) -> None:
        """Start a program under its ServiceAccount of the chart.

        Args:
            name: of its command.
            account: its ServiceAccount.
            url: where its probes will be.
            variables: its environment.
        """
        kubeconfig = self.plane.kubeconfig_for(account, NAMESPACE, duration_s=_TOKEN_S)
        process = self.plane.spawn(
            name, [sys.executable, "-m", "joulie", name], environment={"KUBECONFIG": str(kubeconfig), **variables}
        )
        self._programs[name] = Program(process, url)

    def ready(self, name: str) -> bool:
        """Whether a program says that it is ready."""
        self.raise_if_broken()
        try:
            return self._http.get(f"{self._programs[name].url}/readyz").status_code == httpx2.codes.OK
        except httpx2.TransportError:
            return False

    def settled(self, nodes: int) -> bool:
        """Whether all nodes have their profile, nothing drains, and the agents have told what became of their caps."""
        self.raise_if_broken()
        twins = self.plane.request("GET", _TWINS)["items"]
        return len(twins) == nodes and all(map(_is_settled, twins))

    def get(self, url: str) -> dict[str, Any]:
        """What the simulator answers; it may be busy, so it is asked again before it counts as gone.

        Raises:
            ControlPlaneRunError: it does not answer.
        """
        return self._ask(lambda: self._http.get(url))

    def post(self, url: str) -> dict[str, Any]:
        """What the simulator answers to an order.

        Raises:
            ControlPlaneRunError: it does not answer.
        """
        return self._ask(lambda: self._http.post(url))

    def raise_if_broken(self) -> None:
        """Tell of a program or a part of the control plane that ended, and of one that may not do what it must.

        Raises:
            ControlPlaneRunError: with the end of its log.
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
        """Let go of the connections; the control plane stops the programs."""
        self._http.close()

    def _ask(self, send: Callable[[], httpx2.Response]) -> dict[str, Any]:
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
        # A line that is not whole yet is read again.
        whole = text.rpartition(b"\n")[0]
        self._read_bytes[name] = self._read_bytes.get(name, 0) + len(whole)
        return whole.decode(errors="replace")


def node_object(node: SimNode) -> dict[str, Any]:
    """A node of a scenario as KWOK plays it."""
    allocatable = {
        "cpu": f"{round(node.spec.cores * 1000)}m",
        "memory": f"{round(node.memory_gib * _MIB_PER_GIB)}Mi",
        "pods": str(MAX_PODS),
    }
    if node.spec.gpus:
        allocatable[node.gpu_resource] = str(node.spec.gpus)
    return kwok_node(node.name, labels=node.labels, allocatable=allocatable)


def _is_settled(twin: Mapping[str, Any]) -> bool:
    status, draining = twin.get("status", {}), twin["spec"].get("scheduling", {}).get("draining", False)
    control = status.get("controlStatus", {})
    cpu, gpu = (control.get(part, {}).get("result") for part in ("cpu", "gpu"))
    capped = cpu == "applied" and gpu in ("applied", "none")  # none: a node without GPUs
    return not draining and status.get("schedulableClass") in ("performance", "eco") and capped
