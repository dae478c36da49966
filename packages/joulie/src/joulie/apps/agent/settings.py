"""Settings of the agent; names and defaults are those of the public configuration reference."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path

from joulie.domain.dvfs import DvfsSettings
from joulie.program.settings import Kind, ProgramSettings, setting

_HZ_PER_KHZ = 1e3


@dataclass(frozen=True, kw_only=True)
class AgentSettings(ProgramSettings):
    """Settings of `joulie agent`."""

    mode: str = setting(
        "AGENT_MODE",
        "daemonset",
        kind=Kind.CHOICE,
        choices=("daemonset", "pool"),
        help="One agent on each node, or one for a shard of nodes that are reached over HTTP.",
    )
    node_name: str | None = setting(
        "NODE_NAME", None, kind=Kind.TEXT, help="Node of this agent; required in daemonset mode."
    )
    reconcile_interval_s: float = setting(
        "RECONCILE_INTERVAL", "20s", kind=Kind.DURATION, minimum=0.05, help="Time from one cycle to the next."
    )
    metrics_addr: str = setting(
        "METRICS_ADDR", ":8080", kind=Kind.TEXT, help="Address of /metrics, /healthz and /readyz."
    )
    simulate_only: bool = setting(
        "SIMULATE_ONLY", "false", kind=Kind.BOOLEAN, help="Discover and plan, but write no limit to any device."
    )
    restore_on_exit: bool = setting(
        "RESTORE_ON_EXIT", "true", kind=Kind.BOOLEAN, help="Put the original limits back when the agent is stopped."
    )
    restore_timeout_s: float = setting(
        "RESTORE_TIMEOUT",
        "20s",
        kind=Kind.DURATION,
        minimum=1.0,
        help="Time for putting them back; must end before Kubernetes kills the pod (terminationGracePeriodSeconds).",
    )
    host_sys: Path = setting("HOST_SYS", "/sys", kind=Kind.PATH, help="Where the host's /sys is mounted.")
    host_proc: Path = setting("HOST_PROC", "/proc", kind=Kind.PATH, help="Where the host's /proc is mounted.")
    state_dir: Path = setting(
        "STATE_DIR",
        "/var/lib/joulie",
        kind=Kind.PATH,
        help="Directory on the host for the limits found before the first write.",
    )
    hardware_catalog: Path | None = setting(
        "HARDWARE_CATALOG_PATH", None, kind=Kind.PATH, help="YAML file of models beyond the built-in catalogue."
    )
    pool_node_selector: str = setting(
        "POOL_NODE_SELECTOR", "joulie.io/managed=true", kind=Kind.TEXT, help="Labels of the nodes of pool agents."
    )
    pool_shards: int = setting(
        "POOL_SHARDS",
        "1",
        kind=Kind.INTEGER,
        minimum=1,
        help="Number of shards that the pool's nodes are divided into.",
    )
    pool_shard_id: int | None = setting(
        "POOL_SHARD_ID",
        None,
        kind=Kind.INTEGER,
        minimum=0,
        help="Shard of this agent; without it, the number at the end of POD_NAME or of the host's name.",
    )
    dvfs_ema_alpha: float = setting(
        "DVFS_EMA_ALPHA", "0.3", kind=Kind.NUMBER, minimum=0.001, maximum=1, help="Weight of the newest power sample."
    )
    dvfs_high_margin_w: float = setting(
        "DVFS_HIGH_MARGIN_W", "10", kind=Kind.NUMBER, unit="W", minimum=0, help="Tolerated power above the cap."
    )
    dvfs_low_margin_w: float = setting(
        "DVFS_LOW_MARGIN_W", "15", kind=Kind.NUMBER, unit="W", minimum=0, help="Power below the cap that leaves room."
    )
    dvfs_trip_count: int = setting(
        "DVFS_TRIP_COUNT", "2", kind=Kind.INTEGER, minimum=1, help="Samples in a row outside a margin before a change."
    )
    dvfs_step_pct: float = setting(
        "DVFS_STEP_PCT",
        "10",
        kind=Kind.NUMBER,
        unit="%",
        minimum=0.1,
        maximum=100,
        help="Change of the throttle at a time.",
    )
    dvfs_cooldown_s: float = setting(
        "DVFS_COOLDOWN", "20s", kind=Kind.DURATION, minimum=0, help="Pause between two changes of the throttle."
    )
    dvfs_min_freq_khz: float = setting(
        "DVFS_MIN_FREQ_KHZ", "1500000", kind=Kind.NUMBER, unit="kHz", minimum=1, help="Least frequency limit ever set."
    )
    cpu_source: str = setting(
        "TELEMETRY_CPU_SOURCE",
        "host",
        kind=Kind.CHOICE,
        choices=("host", "http", "prometheus", "none"),
        help="Where CPU power is read.",
    )
    cpu_source_endpoint: str = setting(
        "TELEMETRY_CPU_HTTP_ENDPOINT", "", kind=Kind.TEXT, help="URL of CPU telemetry; {node} is the node's name."
    )
    prometheus_address: str = setting(
        "TELEMETRY_PROMETHEUS_ADDRESS",
        "",
        kind=Kind.TEXT,
        help="Prometheus to ask with TELEMETRY_CPU_SOURCE=prometheus.",
    )
    cpu_prometheus_query: str = setting(
        "TELEMETRY_CPU_PROMETHEUS_QUERY",
        "",
        kind=Kind.TEXT,
        help="PromQL of the power (W) of all CPU packages of a node; {node} is the node's name. Without it, one query "
        "serves all nodes, and its series say in a label which node they are about. Only frequency control needs it.",
    )
    cpu_control: str = setting(
        "TELEMETRY_CPU_CONTROL",
        "host",
        kind=Kind.CHOICE,
        choices=("host", "http", "none"),
        help="Where CPU caps are sent.",
    )
    cpu_control_endpoint: str = setting(
        "TELEMETRY_CPU_CONTROL_HTTP_ENDPOINT", "", kind=Kind.TEXT, help="URL of CPU control; {node} is the node's name."
    )
    cpu_control_mode: str = setting(
        "TELEMETRY_CPU_CONTROL_MODE",
        "auto",
        kind=Kind.CHOICE,
        choices=("auto", "rapl", "dvfs"),
        help="How CPUs are capped over HTTP: by power, by frequency, or by power where that works.",
    )
    gpu_source: str = setting(
        "TELEMETRY_GPU_SOURCE",
        "host",
        kind=Kind.CHOICE,
        choices=("host", "http", "prometheus", "none"),
        help="Where GPU power is read.",
    )
    gpu_source_endpoint: str = setting(
        "TELEMETRY_GPU_HTTP_ENDPOINT", "", kind=Kind.TEXT, help="URL of GPU telemetry; {node} is the node's name."
    )
    gpu_control: str = setting(
        "TELEMETRY_GPU_CONTROL",
        "host",
        kind=Kind.CHOICE,
        choices=("host", "http", "none"),
        help="Where GPU caps are sent.",
    )
    gpu_control_endpoint: str = setting(
        "TELEMETRY_GPU_CONTROL_HTTP_ENDPOINT", "", kind=Kind.TEXT, help="URL of GPU control; {node} is the node's name."
    )
    gpu_control_mode: str = setting(
        "TELEMETRY_GPU_CONTROL_MODE",
        "auto",
        kind=Kind.CHOICE,
        choices=("auto", "rapl", "powercap"),
        help="Accepted for older configurations; GPUs are always capped by power.",
    )
    http_timeout_s: float = setting(
        "TELEMETRY_HTTP_TIMEOUT_SECONDS",
        "3",
        kind=Kind.NUMBER,
        unit="s",
        minimum=0.1,
        maximum=300,
        help="How long HTTP telemetry and control may take.",
    )

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other."""
        if self.mode == "daemonset" and not self.node_name:
            raise ValueError("NODE_NAME is required with AGENT_MODE=daemonset; the chart sets it from spec.nodeName")
        endpoints = {
            "TELEMETRY_CPU_SOURCE": ("TELEMETRY_CPU_HTTP_ENDPOINT", self.cpu_source, self.cpu_source_endpoint),
            "TELEMETRY_CPU_CONTROL": (
                "TELEMETRY_CPU_CONTROL_HTTP_ENDPOINT",
                self.cpu_control,
                self.cpu_control_endpoint,
            ),
            "TELEMETRY_GPU_SOURCE": ("TELEMETRY_GPU_HTTP_ENDPOINT", self.gpu_source, self.gpu_source_endpoint),
            "TELEMETRY_GPU_CONTROL": (
                "TELEMETRY_GPU_CONTROL_HTTP_ENDPOINT",
                self.gpu_control,
                self.gpu_control_endpoint,
            ),
        }
        for variable, (endpoint_variable, kind, endpoint) in endpoints.items():
            if kind == "http" and not endpoint.startswith(("http://", "https://")):
                raise ValueError(f"{variable}=http needs a URL in {endpoint_variable}, got {endpoint!r}")
            if kind == "http" and self.mode == "pool" and "{node}" not in endpoint:
                raise ValueError(f"{endpoint_variable}={endpoint!r} is one address for all nodes: put {{node}} into it")
        if bool(self.prometheus_address) != bool(self.cpu_prometheus_query):
            raise ValueError("TELEMETRY_PROMETHEUS_ADDRESS and TELEMETRY_CPU_PROMETHEUS_QUERY go together")
        if self.mode == "pool":
            _ = self.shard
        _ = self.dvfs

    @property
    def shard(self) -> int:
        """Number of this pool agent's shard.

        Raises:
            ValueError: it is not given and the pod's name does not end in one, or there is no such shard.
        """
        shard = self.pool_shard_id
        if shard is None:
            name = os.environ.get("POD_NAME") or socket.gethostname()
            ordinal = re.search(r"-(\d+)$", name)
            if ordinal is None and self.pool_shards > 1:
                raise ValueError(
                    f"POOL_SHARD_ID is not set and {name!r} does not end in the number of a StatefulSet's pod"
                )
            shard = int(ordinal[1]) if ordinal else 0
        if shard >= self.pool_shards:
            raise ValueError(f"shard {shard} does not exist: POOL_SHARDS={self.pool_shards}, counted from 0")
        return shard

    @property
    def dvfs(self) -> DvfsSettings:
        """Settings of the frequency controller."""
        return DvfsSettings(
            ema_alpha=self.dvfs_ema_alpha,
            high_margin_w=self.dvfs_high_margin_w,
            low_margin_w=self.dvfs_low_margin_w,
            trip_count=self.dvfs_trip_count,
            step_pct=self.dvfs_step_pct,
            cooldown_s=self.dvfs_cooldown_s,
            min_frequency_hz=self.dvfs_min_freq_khz * _HZ_PER_KHZ,
        )
