"""Settings of the simulator service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joulie.program.http import parse_address
from joulie.program.settings import ProgramSettings
from joulie.settings import boolean, choice, duration, integer, json_object, listed, number, path, text
from joulie_lab.simulation.job_response import THROUGHPUT_MODELS, IdleStates


@dataclass(frozen=True, kw_only=True)
class SimulatorSettings(ProgramSettings):
    """Settings of `joulie simulator`; their names are a documented interface."""

    address: str = text("SIM_ADDR", ":18080", "Listen address of the HTTP API.")
    node_selector: str = text("SIM_NODE_SELECTOR", "joulie.io/managed=true", "Label selector of the simulated nodes.")
    trace: Path | None = path("SIM_WORKLOAD_TRACE_PATH", None, "JSONL trace; each of its jobs is created as a pod.")
    skip_bad_lines: bool = boolean(
        "SIM_TRACE_SKIP_BAD_LINES", False, "Skip invalid lines of the trace instead of failing."
    )
    scheduler_name: str = text("SIM_SCHEDULER_NAME", "default-scheduler", "Scheduler name of the created pods.")
    tick_s: float = duration("SIM_TICK_INTERVAL", "1s", "Tick interval, wall time.", minimum=0.05, maximum=60.0)
    time_scale: float = number(
        "SIM_TIME_SCALE", "1", "Simulated seconds per second of wall time.", minimum=0.01, maximum=10_000.0
    )
    seed: int = integer("SIM_SEED", "42", "Random seed.", minimum=0)
    idle_states: str = choice(
        "SIM_IDLE_STATES",
        "all",
        "Nodes that enter deep idle states; `managed` and `all` are the same for simulated nodes.",
        IdleStates,
    )
    gpu_throughput: str = choice(
        "SIM_GPU_THROUGHPUT",
        "measured",
        "GPU throughput under a power limit: from measured sweeps, or by the published exponent.",
        THROUGHPUT_MODELS,
    )
    gpu_sweeps: tuple[Path, ...] = text(
        "SIM_GPU_SWEEPS",
        "",
        "CSV files of jobs under GPU power limits, separated by commas. The GPU of a pod with the annotation "
        "sim.joulie.io/gpu-job: FILE:JOB, the file without its ending, responds as that job did.",
        to=lambda paths: tuple(map(Path, listed(paths))),
    )
    gpu_noise: float = number(
        "SIM_GPU_NOISE",
        "0.01",
        "Standard deviation of the rate and the power of such a job over three minutes, as a share.",
        minimum=0.0,
        maximum=0.2,
    )
    demand: Path | None = path(
        "SIM_DEMAND_PATH",
        None,
        "File of arrays (.npz: nodes, demand, lost) with the utilisation of nodes by second, in place of their pods', "
        "and when their telemetry is lost.",
    )
    cooling: str = choice(
        "SIM_COOLING",
        "linear",
        "Cooling plant: none, a proxy scaled to the cluster, or the published DX plant of a hall of 2,500 nodes.",
        ("none", "linear", "dx"),
    )
    ambient_mean_c: float = number(
        "SIM_AMBIENT_MEAN_C", "22", "Mean outdoor temperature.", minimum=-40.0, maximum=60.0, unit="°C"
    )
    ambient_amplitude_c: float = number(
        "SIM_AMBIENT_AMPLITUDE_C",
        "8",
        "Daily amplitude of the outdoor temperature.",
        minimum=0.0,
        maximum=40.0,
        unit="K",
    )

    climate: Mapping[str, Any] = json_object(
        "SIM_CLIMATE_JSON",
        "Further parameters of the outdoor temperature: daily_lag_h, slow_amplitude_k, slow_period_h, noise_std_k.",
    )
    start: str = choice(
        "SIM_START",
        "at-once",
        "When simulated time starts: at once, or on POST /run/start.",
        ("at-once", "on-request"),
    )
    duration_s: float = duration(
        "SIM_DURATION",
        "0s",
        "Duration of the run in simulated time, after which nothing changes any more; 0 for no limit.",
        minimum=0.0,
    )
    results: Path | None = path(
        "SIM_RESULTS_PATH",
        None,
        "JSON file for the run's results, written at the end of the run or when the program is stopped before.",
    )
    gangs: str = choice(
        "SIM_GANGS",
        "together",
        "When the scheduler gets a gang's pods: together, once all of them fit, or singly, each at once; then two "
        "gangs can block each other.",
        ("together", "singly"),
    )

    def __post_init__(self) -> None:
        parse_address(self.address)
        if self.results is not None and self.duration_s == 0.0:
            raise ValueError("SIM_RESULTS_PATH requires SIM_DURATION, the duration of the run")
