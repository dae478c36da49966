"""Settings of the demo's programs: intervals short enough to watch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from joulie_lab.control_plane.programs import LOOPBACK, Ports, simulated_devices

RECONCILE_INTERVAL_S = 1.0
DRAIN_SETTLING_S = 3.0
POWER_TREND_WINDOW_S = 30.0
POLICY: Mapping[str, str] = {
    "POLICY_TYPE": "queue_aware_v1",
    "QUEUE_HP_BASE_FRAC": "0.25",
    "QUEUE_PERF_PER_HP_NODE": "2",
    "QUEUE_HOLD": "0s",
    "GPU_ECO_CAP_PCT_OF_MAX": "70",
}
"""Settings of the operator that decide classes and caps."""


def environments(
    ports: Ports, kubeconfig: Path, trace: Path, *, seed: int, speed: float, state_dir: Path
) -> Mapping[str, Mapping[str, str]]:
    """Environment variables of each program.

    Args:
        ports: ports to listen on.
        kubeconfig: kubeconfig of the cluster.
        trace: file of the jobs.
        seed: seed of the simulator.
        speed: simulated seconds per second.
        state_dir: folder of the agent's state.
    """
    simulator = ports.simulator_url
    shared = {"KUBECONFIG": str(kubeconfig)}
    own = {
        "simulator": {
            "SIM_ADDR": f"{LOOPBACK}:{ports.simulator}",
            "SIM_WORKLOAD_TRACE_PATH": str(trace),
            "SIM_TIME_SCALE": f"{speed:g}",
            "SIM_TICK_INTERVAL": "500ms",
            "SIM_SEED": str(seed),
        },
        "agent": {
            "RECONCILE_INTERVAL": f"{RECONCILE_INTERVAL_S:g}s",
            "METRICS_ADDR": f"{LOOPBACK}:{ports.agent}",
            "STATE_DIR": str(state_dir),
            **simulated_devices(simulator),
        },
        "operator": {
            "RECONCILE_INTERVAL": f"{RECONCILE_INTERVAL_S:g}s",
            "METRICS_ADDR": f"{LOOPBACK}:{ports.operator}",
            **POLICY,
            "DRAIN_SETTLING": f"{DRAIN_SETTLING_S:g}s",
            "POWER_POLL_INTERVAL": "1s",
            "POWER_STALE_AFTER": "15s",
            "POWER_TREND_WINDOW": f"{POWER_TREND_WINDOW_S:g}s",
            "TELEMETRY_HTTP_ENDPOINT": simulator + "/telemetry",
            "AGENT_POD_SELECTOR": "",
            "PROMETHEUS_ADDRESS": "none",
            "LEADER_ELECT": "false",
        },
        "extender": {
            "SCORING": "energy",
            "PORT": str(ports.extender),
            "METRICS_ADDR": f"{LOOPBACK}:{ports.extender_metrics}",
            "SHUTDOWN_DELAY": "0s",
        },
    }
    return {name: shared | variables for name, variables in own.items()}
