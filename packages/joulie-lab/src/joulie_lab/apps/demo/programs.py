"""Which programs play, and the settings that make them quick enough to watch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from joulie_lab.control_plane.programs import LOOPBACK, Ports, simulated_devices


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
            "SIM_ADDR": f"{LOOPBACK}:{ports.simulator}",
            "SIM_WORKLOAD_TRACE_PATH": str(trace),
            "SIM_TIME_SCALE": f"{speed:g}",
            "SIM_TICK_INTERVAL": "500ms",
            "SIM_SEED": str(seed),
        },
        "agent": {
            "RECONCILE_INTERVAL": "1s",
            "METRICS_ADDR": f"{LOOPBACK}:{ports.agent}",
            "STATE_DIR": str(state_dir),
            **simulated_devices(simulator),
        },
        "operator": {
            "RECONCILE_INTERVAL": "1s",
            "METRICS_ADDR": f"{LOOPBACK}:{ports.operator}",
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
            "METRICS_ADDR": f"{LOOPBACK}:{ports.extender_metrics}",
        },
    }
    return {name: shared | variables for name, variables in own.items()}
