"""The agent's metrics: documented names, no zero for what is missing, no series of nodes that went."""

from types import SimpleNamespace
from typing import Any

from prometheus_client import generate_latest

from joulie.adapters.cpu.cpuinfo import CpuInfo
from joulie.adapters.kubernetes.api.v1alpha1 import ControlOutcome
from joulie.apps.agent.gpu_clocks import ClockReport
from joulie.apps.agent.host import Observation
from joulie.apps.agent.metering import PowerSample
from joulie.apps.agent.metrics import registry
from joulie.apps.agent.outcome import Outcome, blocked
from joulie.apps.agent.views import TwinView
from joulie.domain.dvfs import DvfsAction, DvfsState
from joulie.ports.devices import DeviceKind, FrequencyPolicy, PowerDevice

SEEN = Observation(
    CpuInfo(None, None, None, None, None),
    gpus=(PowerDevice("GPU-0", DeviceKind.GPU, limit_w=420.0), PowerDevice("GPU-1", DeviceKind.GPU)),
    policies=(FrequencyPolicy("policy0", 0.8e9, 3.5e9, 3.2e9, 2.1e9), FrequencyPolicy("policy4", 0.8e9, 3.5e9, 3.5e9)),
    cpu_power=PowerSample({"package-0": 150.0, "dram-0": 9.0}, {"package-0": 5.0, "dram-0": 1.0}),
    gpu_power=PowerSample({"GPU-0": 333.0}),
)
CLOCKS = {"GPU-0": ClockReport(1.98e9, 1.395e9, ControlOutcome.APPLIED), "GPU-1": ClockReport(1.98e9)}


def node(name: str, **changes: Any) -> SimpleNamespace:
    facts: dict[str, Any] = {
        "name": name,
        "mode": "dvfs",
        "inputs": SimpleNamespace(twin=TwinView(name, policy="static_partition")),
        "cpu": Outcome("dvfs", ControlOutcome.APPLIED, "1 x 123 W in force"),
        "gpu": blocked("nvml", "no permission"),
        "cpu_cap_w": 123.0,
        "cpu_power_w": 150.0,
        "errors": 2,
        "last_cycle_epoch_s": 1_800_000_000.25,
        "throttle": SimpleNamespace(state=DvfsState(throttle_pct=20.0, ema_w=155.0, above=1)),
        "actions": {DvfsAction.UP: 2, DvfsAction.DOWN: 0},
        "host": SimpleNamespace(observation=SEEN, gpu_resets={"GPU-0": 3}, gpu_clocks=CLOCKS),
    }
    return SimpleNamespace(**(facts | changes))


def scraped(*nodes: SimpleNamespace) -> list[str]:
    text = generate_latest(registry(lambda: nodes)).decode()  # type: ignore[arg-type, return-value]
    return [line for line in text.splitlines() if line.startswith("joulie_")]


def test_documented_series() -> None:
    lines = scraped(node("n1"))
    for line in (
        'joulie_backend_mode{mode="dvfs",node="n1"} 1.0',
        'joulie_backend_mode{mode="rapl",node="n1"} 0.0',
        'joulie_agent_control{node="n1",result="applied",subsystem="cpu"} 1.0',
        'joulie_agent_control{node="n1",result="blocked",subsystem="gpu"} 1.0',
        'joulie_policy_cap_watts{node="n1",policy="static_partition"} 123.0',
        'joulie_rapl_energy_uj{node="n1",zone="package-0"} 5e+06',
        'joulie_rapl_estimated_power_watts{node="n1",zone="dram-0"} 9.0',
        'joulie_rapl_package_total_power_watts{node="n1"} 150.0',
        'joulie_dvfs_observed_power_watts{node="n1"} 150.0',
        'joulie_dvfs_ema_power_watts{node="n1"} 155.0',
        'joulie_dvfs_throttle_pct{node="n1"} 20.0',
        'joulie_dvfs_above_trip_count{node="n1"} 1.0',
        'joulie_dvfs_below_trip_count{node="n1"} 0.0',
        'joulie_dvfs_actions_total{action="throttle_up",node="n1"} 2.0',
        'joulie_dvfs_cpu_cur_freq_khz{cpu="0",node="n1"} 2.1e+06',
        'joulie_dvfs_cpu_max_freq_khz{cpu="0",node="n1"} 3.2e+06',
        'joulie_gpu_power_watts{gpu="GPU-0",node="n1"} 333.0',
        'joulie_gpu_power_limit_watts{gpu="GPU-0",node="n1"} 420.0',
        'joulie_gpu_limit_resets_total{gpu="GPU-0",node="n1"} 3.0',
        'joulie_gpu_sm_clock_control{gpu="GPU-0",node="n1",result="applied"} 1.0',
        'joulie_agent_control{node="n1",result="applied",subsystem="clock"} 1.0',
        'joulie_agent_last_cycle_timestamp_seconds{node="n1"} 1.80000000025e+09',
        'joulie_reconcile_errors_total{node="n1"} 2.0',
    ):
        assert line in lines


def test_missing_is_not_zero() -> None:
    text = "\n".join(scraped(node("n1")))
    assert 'gpu="GPU-1"' not in text
    assert 'joulie_dvfs_cpu_cur_freq_khz{cpu="4"' not in text


def test_a_clock_that_cannot_be_locked_or_reset_is_told_by_the_series_that_the_alert_reads() -> None:
    clocks = CLOCKS | {"GPU-1": ClockReport(result=ControlOutcome.ERROR, message="reset: unknown error")}
    lines = scraped(node("n1", host=SimpleNamespace(observation=SEEN, gpu_resets={}, gpu_clocks=clocks)))
    told = [line for line in lines if line.startswith("joulie_agent_control") and "clock" in line]
    assert told == ['joulie_agent_control{node="n1",result="error",subsystem="clock"} 1.0']
    free = SimpleNamespace(observation=SEEN, gpu_resets={}, gpu_clocks={"GPU-1": ClockReport(1.98e9)})
    assert not any('subsystem="clock"' in line for line in scraped(node("n1", host=free)))


def test_node_without_a_host_or_a_twin() -> None:
    lines = scraped(node("n1", host=None, inputs=None, cpu=None, gpu=None, mode="none", last_cycle_epoch_s=None))
    absent = ("joulie_rapl", "joulie_gpu", "joulie_policy", "joulie_agent_last_cycle", "joulie_agent_control")
    assert not any(line.startswith(absent) for line in lines)
    assert 'joulie_backend_mode{mode="none",node="n1"} 1.0' in lines


def test_series_of_a_node_end_with_it() -> None:
    assert any('node="n2"' in line for line in scraped(node("n1"), node("n2")))
    assert not any('node="n2"' in line for line in scraped(node("n1")))
