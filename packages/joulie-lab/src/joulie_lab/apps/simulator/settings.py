"""Settings of the simulator service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joulie.program.http import parse_address
from joulie.program.settings import Kind, ProgramSettings, setting
from joulie_lab.simulation.job_response import THROUGHPUT_MODELS, IdleStates


@dataclass(frozen=True, kw_only=True)
class SimulatorSettings(ProgramSettings):
    """Settings of `joulie simulator`; the names are the documented ones."""

    address: str = setting("SIM_ADDR", ":18080", kind=Kind.TEXT, help="Listen address of the HTTP API.")
    node_selector: str = setting(
        "SIM_NODE_SELECTOR", "joulie.io/managed=true", kind=Kind.TEXT, help="Label selector of the simulated nodes."
    )
    trace: Path | None = setting(
        "SIM_WORKLOAD_TRACE_PATH", None, kind=Kind.PATH, help="JSONL trace whose jobs are created as pods."
    )
    skip_bad_lines: bool = setting(
        "SIM_TRACE_SKIP_BAD_LINES", "false", kind=Kind.BOOLEAN, help="Start in spite of broken lines in the trace."
    )
    scheduler_name: str = setting(
        "SIM_SCHEDULER_NAME", "default-scheduler", kind=Kind.TEXT, help="Scheduler of the pods that are created."
    )
    tick_s: float = setting(
        "SIM_TICK_INTERVAL", "1s", kind=Kind.DURATION, minimum=0.05, maximum=60.0, help="Wall time between two steps."
    )
    time_scale: float = setting(
        "SIM_TIME_SCALE", "1", kind=Kind.NUMBER, minimum=0.01, maximum=10_000.0, help="Simulated seconds a second."
    )
    seed: int = setting("SIM_SEED", "42", kind=Kind.INTEGER, minimum=0, help="Seed of all that is random.")
    idle_states: str = setting(
        "SIM_IDLE_STATES",
        "all",
        kind=Kind.CHOICE,
        choices=tuple(IdleStates),
        help="Nodes that enter deep idle states; `managed` and `all` are the same for simulated nodes.",
    )
    gpu_throughput: str = setting(
        "SIM_GPU_THROUGHPUT",
        "measured",
        kind=Kind.CHOICE,
        choices=tuple(THROUGHPUT_MODELS),
        help="How GPU work slows under a limit: measured sweeps, or the published exponent.",
    )
    cooling: str = setting(
        "SIM_COOLING",
        "linear",
        kind=Kind.CHOICE,
        choices=("none", "linear", "dx"),
        help="Cooling plant: a proxy as large as the cluster, or the published DX plant of a hall of 2,500 nodes.",
    )
    ambient_mean_c: float = setting(
        "SIM_AMBIENT_MEAN_C", "22", kind=Kind.NUMBER, minimum=-40.0, maximum=60.0, unit="°C", help="Mean outdoors."
    )
    ambient_amplitude_c: float = setting(
        "SIM_AMBIENT_AMPLITUDE_C", "8", kind=Kind.NUMBER, minimum=0.0, maximum=40.0, unit="K", help="Swing of a day."
    )

    climate: Mapping[str, Any] = setting(
        "SIM_CLIMATE_JSON",
        "{}",
        kind=Kind.JSON,
        help="The rest of the outdoor temperature: daily_lag_h, slow_amplitude_k, slow_period_h, noise_std_k.",
    )
    start: str = setting(
        "SIM_START",
        "at-once",
        kind=Kind.CHOICE,
        choices=("at-once", "on-request"),
        help="When simulated time begins to pass: at once, or when POST /run/start asks for it.",
    )
    duration_s: float = setting(
        "SIM_DURATION",
        "0s",
        kind=Kind.DURATION,
        minimum=0.0,
        help="Simulated time after which the run is over and nothing changes any more; 0 for never.",
    )
    results: Path | None = setting(
        "SIM_RESULTS_PATH",
        None,
        kind=Kind.PATH,
        help="JSON file of the run's results, written when it is over, or when the program is stopped before.",
    )
    gangs: str = setting(
        "SIM_GANGS",
        "together",
        kind=Kind.CHOICE,
        choices=("together", "singly"),
        help="Whether the scheduler gets a gang's pods once all of them have room, or each at once: then two gangs can "
        "block each other.",
    )

    def __post_init__(self) -> None:
        parse_address(self.address)
        if self.results is not None and self.duration_s == 0.0:
            raise ValueError("SIM_RESULTS_PATH needs SIM_DURATION, the length of the run")
