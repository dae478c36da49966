"""Settings of the agent; names and defaults are those of the public configuration reference."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path

from joulie.domain.dvfs import DvfsSettings
from joulie.domain.mode import Mode
from joulie.program.settings import ProgramSettings, mode_setting
from joulie.settings import boolean, choice, duration, group, integer, listed, number, path, percentage, text

_HZ_PER_KHZ = 1e3


@dataclass(frozen=True, kw_only=True)
class HostSettings:
    """Where the files of the host are, and what is known of its hardware."""

    host_sys: Path = path("HOST_SYS", "/sys", "Where the host's /sys is mounted.")
    host_proc: Path = path("HOST_PROC", "/proc", "Where the host's /proc is mounted.")
    host_dev: Path = path("HOST_DEV", "/dev", "Where the host's /dev is mounted: device files of CPUs and GPUs.")
    hardware_catalog: Path | None = path(
        "HARDWARE_CATALOG_PATH", None, "YAML file of models beyond the built-in catalogue."
    )


@dataclass(frozen=True, kw_only=True)
class AgentSettings(HostSettings, ProgramSettings):
    """Settings of `joulie agent`."""

    mode: str = choice(
        "AGENT_MODE",
        "daemonset",
        "One agent on each node, or one for a shard of nodes that are reached over HTTP.",
        ("daemonset", "pool"),
    )
    default_mode: Mode = mode_setting()
    node_name: str | None = text("NODE_NAME", None, "Node of this agent; required in daemonset mode.")
    reconcile_interval_s: float = duration(
        "RECONCILE_INTERVAL", "20s", "Time from one cycle to the next.", minimum=0.05
    )
    metrics_addr: str = text("METRICS_ADDR", ":8080", "Address of /metrics, /healthz and /readyz.")
    simulate_only: bool = boolean("SIMULATE_ONLY", False, "Discover and plan, but write no limit to any device.")
    restore_on_exit: bool = boolean(
        "RESTORE_ON_EXIT",
        True,
        "Put the original limits back when the agent is stopped, unless one of DAEMONSET_NAMES starts the next one.",
    )
    daemonset_names: tuple[str, ...] = text(
        "DAEMONSET_NAMES",
        "",
        "DaemonSets of agents, separated by commas. While one of them exists, is not being deleted and matches the "
        "node, an agent that is stopped leaves the caps to the next one. The chart sets it.",
        to=listed,
    )
    namespace: str = text("POD_NAMESPACE", "joulie-system", "Namespace of these DaemonSets.")
    restore_timeout_s: float = duration(
        "RESTORE_TIMEOUT",
        "20s",
        "Time for putting them back; must end before Kubernetes kills the pod (terminationGracePeriodSeconds).",
        minimum=1.0,
    )
    state_dir: Path = path(
        "STATE_DIR", "/var/lib/joulie", "Directory on the host for the limits found before the first write."
    )
    pool_node_selector: str = text(
        "POOL_NODE_SELECTOR", "joulie.io/managed=true", "Labels of the nodes of pool agents."
    )
    pool_shards: int = integer(
        "POOL_SHARDS", "1", "Number of shards that the pool's nodes are divided into.", minimum=1
    )
    pool_shard_id: int | None = integer(
        "POOL_SHARD_ID",
        None,
        "Shard of this agent; without it, the number at the end of POD_NAME or of the host's name.",
        minimum=0,
    )
    pod_resources_socket: Path = path(
        "POD_RESOURCES_SOCKET",
        "/var/lib/kubelet/pod-resources/kubelet.sock",
        "Socket of the kubelet that says which pod holds which GPU; asked on machines with GPUs.",
    )
    gpu_limit_lease_s: float = duration(
        "GPU_LIMIT_LEASE",
        "5m",
        "Limits of single GPUs are lifted when the operator has not renewed the NodeTwin for this long.",
        minimum=1.0,
    )
    gpu_clocks: bool = boolean(
        "GPU_CLOCKS",
        False,
        "Lock the SM clocks of NVIDIA GPUs for jobs that power limits do not reach. Set it only where nobody else "
        "locks clocks: no driver tells which lock is in force, so those of others could not be put back.",
    )
    dvfs: DvfsSettings = group(
        DvfsSettings,
        ema_alpha=number("DVFS_EMA_ALPHA", "0.3", "Weight of the newest power sample.", minimum=0.001, maximum=1),
        high_margin_w=number("DVFS_HIGH_MARGIN_W", "10", "Tolerated power above the cap.", unit="W", minimum=0),
        low_margin_w=number("DVFS_LOW_MARGIN_W", "15", "Power below the cap that leaves room.", unit="W", minimum=0),
        trip_count=integer("DVFS_TRIP_COUNT", "2", "Samples in a row outside a margin before a change.", minimum=1),
        step_pct=percentage("DVFS_STEP_PCT", "10", "Change of the throttle at a time.", minimum=0.1),
        cooldown_s=duration("DVFS_COOLDOWN", "20s", "Pause between two changes of the throttle.", minimum=0),
        min_frequency_hz=number(
            "DVFS_MIN_FREQ_KHZ",
            "1500000",
            "Minimum frequency limit.",
            unit="kHz",
            minimum=1,
            to=lambda khz: khz * _HZ_PER_KHZ,
        ),
    )
    cpu_source: str = choice(
        "TELEMETRY_CPU_SOURCE", "host", "Where CPU power is read.", ("host", "http", "prometheus", "none")
    )
    cpu_source_endpoint: str = text(
        "TELEMETRY_CPU_HTTP_ENDPOINT", "", "URL of CPU telemetry; {node} is the node's name."
    )
    prometheus_address: str = text(
        "TELEMETRY_PROMETHEUS_ADDRESS", "", "Prometheus to ask with TELEMETRY_CPU_SOURCE=prometheus."
    )
    cpu_prometheus_query: str = text(
        "TELEMETRY_CPU_PROMETHEUS_QUERY",
        "",
        "PromQL of the power (W) of all CPU packages of a node; {node} is the node's name. Without it, one query "
        "serves all nodes, and its series say in a label which node they are about. Only frequency control needs "
        "it.",
    )
    cpu_control: str = choice("TELEMETRY_CPU_CONTROL", "host", "Where CPU caps are sent.", ("host", "http", "none"))
    cpu_control_endpoint: str = text(
        "TELEMETRY_CPU_CONTROL_HTTP_ENDPOINT", "", "URL of CPU control; {node} is the node's name."
    )
    cpu_control_mode: str = choice(
        "TELEMETRY_CPU_CONTROL_MODE",
        "auto",
        "How CPUs are capped over HTTP: by power, by frequency, or by power where that works.",
        ("auto", "rapl", "dvfs"),
    )
    gpu_source: str = choice(
        "TELEMETRY_GPU_SOURCE", "host", "Where GPU power is read.", ("host", "http", "prometheus", "none")
    )
    gpu_source_endpoint: str = text(
        "TELEMETRY_GPU_HTTP_ENDPOINT", "", "URL of GPU telemetry; {node} is the node's name."
    )
    gpu_control: str = choice("TELEMETRY_GPU_CONTROL", "host", "Where GPU caps are sent.", ("host", "http", "none"))
    gpu_control_endpoint: str = text(
        "TELEMETRY_GPU_CONTROL_HTTP_ENDPOINT", "", "URL of GPU control; {node} is the node's name."
    )
    gpu_control_mode: str = choice(
        "TELEMETRY_GPU_CONTROL_MODE",
        "auto",
        "Accepted for older configurations; GPUs are always capped by power.",
        ("auto", "rapl", "powercap"),
    )
    http_timeout_s: float = number(
        "TELEMETRY_HTTP_TIMEOUT_SECONDS",
        "3",
        "How long HTTP telemetry and control may take.",
        unit="s",
        minimum=0.1,
        maximum=300,
    )

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other."""
        if self.mode == "daemonset" and not self.node_name:
            raise ValueError("NODE_NAME is required with AGENT_MODE=daemonset; the chart sets it from spec.nodeName")
        for variable, kind, endpoint in (
            ("TELEMETRY_CPU_SOURCE", self.cpu_source, self.cpu_source_endpoint),
            ("TELEMETRY_CPU_CONTROL", self.cpu_control, self.cpu_control_endpoint),
            ("TELEMETRY_GPU_SOURCE", self.gpu_source, self.gpu_source_endpoint),
            ("TELEMETRY_GPU_CONTROL", self.gpu_control, self.gpu_control_endpoint),
        ):
            endpoint_variable = f"{variable.removesuffix('_SOURCE')}_HTTP_ENDPOINT"
            if kind == "http" and not endpoint.startswith(("http://", "https://")):
                raise ValueError(f"{variable}=http needs a URL in {endpoint_variable}, got {endpoint!r}")
            if kind == "http" and self.mode == "pool" and "{node}" not in endpoint:
                raise ValueError(f"{endpoint_variable}={endpoint!r} is one address for all nodes: put {{node}} into it")
        if bool(self.prometheus_address) != bool(self.cpu_prometheus_query):
            raise ValueError("TELEMETRY_PROMETHEUS_ADDRESS and TELEMETRY_CPU_PROMETHEUS_QUERY go together")
        if self.mode == "pool":
            _ = self.shard

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
