"""The power of simulated nodes as Prometheus has it: readings that a test delays, loses, holds still or falsifies."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from joulie_lab.control_plane.ports import LOOPBACK
from support.loop import Program

SAMPLE_S = 0.5
LATE_S, STALE_S = 7.0, 15.0
"""Age of late readings; from when on the operator takes none for one."""
LIE = 0.95
_NOISE = 1e-4
"""Of sensors, as a share: readings that stay the same come from one that is stuck."""


class PlantReadings:
    """Samples what nodes draw, keeps it, and answers queries by it.

    Args:
        plant: the simulator.

    Attributes:
        taken: samples so far: s since the epoch, and power of each node, W.
    """

    def __init__(self, plant: Program) -> None:
        self.taken: list[tuple[float, dict[str, float]]] = []
        self._plant = plant
        self._disturbed: Mapping[str, str] = {}
        self._held: Mapping[str, float] = {}
        self._server = ThreadingHTTPServer((LOOPBACK, 0), _handler(self))
        self._server.daemon_threads = True

    @property
    def settings(self) -> dict[str, str]:
        """Settings of an operator that reads nothing else."""
        address = f"http://{LOOPBACK}:{self._server.server_port}"
        return {
            "POWER_SOURCES": "prometheus",
            "POWER_PROMETHEUS_ADDRESS": address,
            "POWER_PROMETHEUS_QUERY": "node_watts",
            "POWER_STALE_AFTER": f"{STALE_S:g}s",
        }

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Sample and serve until the context ends."""
        stop = threading.Event()
        threads = [
            threading.Thread(target=self._keep_sampling, args=(stop,), daemon=True),
            threading.Thread(target=self._server.serve_forever, daemon=True),
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            self._server.shutdown()
            self._server.server_close()
            for thread in threads:
                thread.join()

    def disturb(self, kinds: Mapping[str, str]) -> None:
        """From now on readings of these nodes are late, lost, stuck or lying; those of the others are true."""
        self._held = self.taken[-1][1]
        self._disturbed = kinds

    def drawn_w(self, nodes: Collection[str]) -> float:
        """What these nodes draw together, W."""
        return sum(self.taken[-1][1][node] for node in nodes)

    def longest_over_s(self, nodes: Collection[str], watts: float, since: int) -> float:
        """The longest time without a break for which nodes drew more than that together, s, from a sample on."""
        longest_s, began_s = 0.0, None
        for time_s, power_w in self.taken[since:]:
            over = sum(power_w[node] for node in nodes) > watts
            began_s = (time_s if began_s is None else began_s) if over else None
            longest_s = max(longest_s, 0.0 if began_s is None else time_s - began_s)
        return longest_s

    def answer(self) -> dict[str, Any]:
        """What Prometheus says now."""
        result = [
            {"metric": {"node": node}, "value": [time_s, str(power_w)]}
            for node in self.taken[-1][1]
            if self._disturbed.get(node) != "lost"
            for time_s, power_w in [self._read(node)]
        ]
        return {"status": "success", "data": {"resultType": "vector", "result": result}}

    def _read(self, node: str) -> tuple[float, float]:
        kind = self._disturbed.get(node)
        time_s, power_w = self.taken[-1]
        if kind == "late":
            time_s, power_w = next((one for one in reversed(self.taken) if one[0] <= time_s - LATE_S), self.taken[0])
        if kind == "stuck":
            return time_s, self._held[node]
        true_w = power_w[node] * (1.0 - _NOISE * (len(self.taken) % 3))
        return time_s, true_w * (LIE if kind == "lying" else 1.0)

    def _keep_sampling(self, stop: threading.Event) -> None:
        while not stop.wait(SAMPLE_S):
            with suppress(OSError):
                nodes = self._plant.get("/telemetry")["nodes"]
                now_s = time.time()  # noqa: TID251 - real programs run in real time
                self.taken.append((now_s, {name: one["nodePowerWatts"] for name, one in nodes.items()}))


def _handler(readings: PlantReadings) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            content = json.dumps(readings.answer()).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing: it is asked often."""

    return Handler
