"""Which programs play, and the settings that make them quick enough to watch."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_LOOPBACK = "127.0.0.1"


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
        """Ports that nobody listens on now."""
        sockets = [socket.create_server((_LOOPBACK, 0)) for _ in range(5)]
        ports = [int(item.getsockname()[1]) for item in sockets]
        for item in sockets:
            item.close()
        return cls(*ports)

    @property
    def simulator_url(self) -> str:
        """Address of the simulator service."""
        return f"http://{_LOOPBACK}:{self.simulator}"

    @property
    def extender_url(self) -> str:
        """Address of the scheduler extender."""
        return f"http://{_LOOPBACK}:{self.extender}"


def environments(
    ports: Ports, kubeconfig: Path, trace: Path, *, seed: int, speed: float, state_dir: Path
) -> Mapping[str, Mapping[str, str]]:
    """The environment variables of each program.

    Args:
        ports: where they listen.
        kubeconfig: which cluster.
        trace: jobs to play.
        seed: of the simulator.
        speed: simulated seconds a second.
        state_dir: where the agent may keep its state.
    """
    simulator = ports.simulator_url
    shared = {"KUBECONFIG": str(kubeconfig)}
    own = {
        "simulator": {
            "SIM_ADDR": f"{_LOOPBACK}:{ports.simulator}",
            "SIM_WORKLOAD_TRACE_PATH": str(trace),
            "SIM_TIME_SCALE": f"{speed:g}",
            "SIM_TICK_INTERVAL": "500ms",
            "SIM_SEED": str(seed),
        },
        "agent": {
            "AGENT_MODE": "pool",
            "POOL_SHARD_ID": "0",
            "RECONCILE_INTERVAL": "1s",
            "METRICS_ADDR": f"{_LOOPBACK}:{ports.agent}",
            "STATE_DIR": str(state_dir),
            "TELEMETRY_CPU_SOURCE": "http",
            "TELEMETRY_GPU_SOURCE": "http",
            "TELEMETRY_CPU_CONTROL": "http",
            "TELEMETRY_GPU_CONTROL": "http",
            "TELEMETRY_CPU_HTTP_ENDPOINT": simulator + "/telemetry/{node}",
            "TELEMETRY_GPU_HTTP_ENDPOINT": simulator + "/telemetry/{node}",
            "TELEMETRY_CPU_CONTROL_HTTP_ENDPOINT": simulator + "/control/{node}",
            "TELEMETRY_GPU_CONTROL_HTTP_ENDPOINT": simulator + "/control/{node}",
        },
        "operator": {
            "RECONCILE_INTERVAL": "1s",
            "METRICS_ADDR": f"{_LOOPBACK}:{ports.operator}",
            "POLICY_TYPE": "queue_aware_v1",
            "QUEUE_HP_BASE_FRAC": "0.25",
            "QUEUE_PERF_PER_HP_NODE": "2",
            "DRAIN_SETTLING": "3s",
            "GPU_ECO_CAP_PCT_OF_MAX": "70",
            "POWER_POLL_INTERVAL": "1s",
            "POWER_STALE_AFTER": "15s",
            "POWER_TREND_WINDOW": "30s",
            "TELEMETRY_HTTP_ENDPOINT": simulator + "/telemetry",
            "AGENT_POD_SELECTOR": "",
            "PROMETHEUS_ADDRESS": "none",
            "LEADER_ELECT": "false",
        },
        "extender": {
            "PORT": str(ports.extender),
            "METRICS_ADDR": f"{_LOOPBACK}:{ports.extender_metrics}",
        },
    }
    return {name: shared | variables for name, variables in own.items()}


def extender_configuration(ports: Ports) -> dict[str, object]:
    """The extender as a KubeSchedulerConfiguration names it."""
    return {
        "urlPrefix": ports.extender_url,
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "preemptVerb": "preempt",
        "weight": 1,
        "enableHTTPS": False,
        "nodeCacheCapable": True,
        "ignorable": True,
        "httpTimeout": "1s",
    }
