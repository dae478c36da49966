"""Power switches of simulated nodes: one BMC that speaks Redfish for all of them, and their kubelets."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from joulie_lab.control_plane.cluster import LocalControlPlane
from joulie_lab.control_plane.ports import LOOPBACK

ANNOTATION = {"joulie.io/power-switch": "redfish"}
"""Of a node that lets itself be switched off."""
_SYSTEMS = "/redfish/v1/Systems"
_RESET = "Actions/ComputerSystem.Reset"


@dataclass
class SwitchedNode:
    """The machine of a node.

    Attributes:
        switched: when its power was switched, s since the epoch, and whether on.
        boots: how often it has booted.
        dead: whether it no longer goes on; its BMC accepts what it is told.
    """

    switched: list[tuple[float, bool]] = field(default_factory=lambda: [(time.time(), True)])
    boots: int = 1
    dead: bool = False

    @property
    def is_on(self) -> bool:
        """Whether it has power."""
        return self.switched[-1][1]


class PowerSwitches:
    """The machines of some nodes: they go off at once, and are ready again a boot after they were switched on.

    The control plane must leave the status of nodes to it (`Network.switched_nodes`).

    Args:
        plane: the control plane of the nodes.
        nodes: names of the nodes; all are on.
        boot_s: time from the switch to a node that is ready, s.
    """

    def __init__(self, plane: LocalControlPlane, nodes: Sequence[str], boot_s: float) -> None:
        self.machines = {name: SwitchedNode() for name in nodes}
        self._plane, self._boot_s = plane, boot_s
        self._lock = threading.Lock()
        self._timers: list[threading.Timer] = []
        self._server = ThreadingHTTPServer((LOOPBACK, 0), _handler(self))
        self._server.daemon_threads = True
        pair = plane.authority.issue("bmc", hosts=[LOOPBACK])
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.certificate, pair.key)
        # Handshakes belong to the thread of a connection, or one slow client would hold up all others.
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Report the nodes' first boots, and serve until the context ends."""
        for name in self.machines:
            self._report(name, ready=True)
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield
        finally:
            for timer in self._timers:
                timer.cancel()
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def write_file(self, path: Path) -> Path:
        """Write the file that SLEEP_SWITCHES names; returns it."""
        url = f"https://{LOOPBACK}:{self._server.server_port}{_SYSTEMS}"
        path.write_text(json.dumps({"switches": {name: {"redfish": f"{url}/{name}"} for name in self.machines}}))
        return path

    def describe(self, name: str) -> dict[str, Any]:
        """The ComputerSystem of a node."""
        reset = {
            "target": f"{_SYSTEMS}/{name}/{_RESET}",
            "ResetType@Redfish.AllowableValues": ["On", "GracefulShutdown", "ForceOff"],
        }
        state = "On" if self.machines[name].is_on else "Off"
        return {"Id": name, "PowerState": state, "Actions": {"#ComputerSystem.Reset": reset}}

    def reset(self, name: str, kind: str) -> None:
        """Switch a node on or off; what it is already is nothing new."""
        on = kind == "On"
        with self._lock:
            machine = self.machines[name]
            if machine.is_on == on or (on and machine.dead):
                return
            machine.switched.append((time.time(), on))
            if on:
                machine.boots += 1
                timer = threading.Timer(self._boot_s, self._booted, (name, machine.boots))
                timer.daemon = True
                self._timers.append(timer)
                timer.start()
        if not on:
            self._report(name, ready=False)

    def _booted(self, name: str, boot: int) -> None:
        with self._lock:
            machine = self.machines[name]
            if not machine.is_on or machine.boots != boot:
                return  # switched off again meanwhile
        self._report(name, ready=True)

    def _report(self, name: str, *, ready: bool) -> None:
        """What the kubelet of a node says, or the cluster of one that is silent."""
        status = {"type": "Ready", "status": "True" if ready else "Unknown"}
        body = {"status": {"conditions": [status], "nodeInfo": {"bootID": f"{name}-{self.machines[name].boots}"}}}
        self._plane.request(
            "PATCH", f"/api/v1/nodes/{name}/status", body, content_type="application/strategic-merge-patch+json"
        )


def _handler(switches: PowerSwitches) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            name = self._node()
            self._answer(404, {}) if name is None else self._answer(200, switches.describe(name))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            name = self._node()
            if name is None:
                self._answer(404, {})
                return
            switches.reset(name, body["ResetType"])
            self._answer(200, {})

        def _node(self) -> str | None:
            name = self.path.removeprefix(f"{_SYSTEMS}/").partition("/")[0]
            return name if name in switches.machines else None

        def _answer(self, status: int, body: Mapping[str, Any]) -> None:
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing: the operator asks often."""

    return Handler
