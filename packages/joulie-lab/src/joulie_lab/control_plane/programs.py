"""Ports and settings of Joulie's programs when they run side by side on one machine."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Any

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Ports:
    """Free ports on loopback."""

    simulator: int
    extender: int
    extender_metrics: int
    agent: int
    operator: int

    @classmethod
    def free(cls) -> Ports:
        """Choose free ports."""
        sockets = [socket.create_server((LOOPBACK, 0)) for _ in range(5)]
        ports = [int(item.getsockname()[1]) for item in sockets]
        for item in sockets:
            item.close()
        return cls(*ports)

    @property
    def simulator_url(self) -> str:
        """Address of the simulator service."""
        return f"http://{LOOPBACK}:{self.simulator}"

    @property
    def extender_url(self) -> str:
        """Address of the scheduler extender."""
        return f"http://{LOOPBACK}:{self.extender}"


def simulated_devices(simulator_url: str) -> dict[str, str]:
    """Settings of a pool agent that reads and caps all devices through the simulator service."""
    settings = {"AGENT_MODE": "pool", "POOL_SHARD_ID": "0"}
    for device in ("CPU", "GPU"):
        settings |= {
            f"TELEMETRY_{device}_SOURCE": "http",
            f"TELEMETRY_{device}_CONTROL": "http",
            f"TELEMETRY_{device}_HTTP_ENDPOINT": f"{simulator_url}/telemetry/{{node}}",
            f"TELEMETRY_{device}_CONTROL_HTTP_ENDPOINT": f"{simulator_url}/control/{{node}}",
        }
    return settings


def extender_configuration(url: str, *, timeout: str = "1s") -> dict[str, Any]:
    """The extender's entry in a KubeSchedulerConfiguration, the same as in the chart."""
    return {
        "urlPrefix": url,
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "preemptVerb": "preempt",
        "weight": 1,
        "enableHTTPS": False,
        "nodeCacheCapable": True,
        "ignorable": True,
        "httpTimeout": timeout,
    }
