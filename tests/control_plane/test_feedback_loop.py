"""The loop closes: load raises power, headroom falls, the next pod goes elsewhere, a cap lowers power and slows work.

What was seen is kept as a time series in out/evidence/feedback-loop.json, from which scripts/feedback_loop_page.py
makes docs/experiments/feedback-loop.md.
"""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from joulie_lab.control_plane import ApiError, LocalControlPlane, wait_for
from support.loop import ACTIVE, ECO, H100, NODES, PATIENCE_S, Loop, Program, node, pod

pytestmark = [pytest.mark.control_plane, pytest.mark.slow]

EVIDENCE = Path(__file__).parents[2] / "out" / "evidence" / "feedback-loop.json"
HOT = "hot"
CALM = ("calm-0", "calm-1", "calm-2")
SAMPLE_S = 0.5
QUIET_SAMPLES = 20

# A node has 192 cores and 8 GPUs of 400 W. The calm nodes have fewer cores left, so that without Joulie the next pod
# would go to the hot one; kube-scheduler does not count GPUs when it spreads pods.
LOAD = {"cpu": "40", "nvidia.com/gpu": "5"}
IDLE = {"cpu": "80"}
PROBE = {"cpu": "4"}
GPU_DEFAULT_W, ECO_SHARE = 400.0, 0.6
JOB_WORK_S, JOB_EVERY_S, JOBS = 60.0, 15.0, 400
JOBS_A_PHASE = 6
JOBS_LABEL = "example.com/jobs"
"""Where the jobs of the trace may run: nowhere, until a test says so."""


def trace_of_small_jobs() -> str:
    """Equal jobs, one after the other: how long each takes tells how fast its node works."""
    lines = [
        {
            "type": "job",
            "jobId": f"job-{number:03d}",
            "submitTimeOffsetSec": number * JOB_EVERY_S,
            "podTemplate": {
                "requests": {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"},
                "nodeSelector": {JOBS_LABEL: "yes"},
            },
            "work": {"cpuUnits": 0.0, "gpuUnits": JOB_WORK_S},
            "workloadClass": {"gpu": "gpu.compute_bound"},
            "workloadProfile": {"cpuUtilization": 0.1, "gpuUtilization": 1.0},
        }
        for number in range(JOBS)
    ]
    return "".join(json.dumps(line) + "\n" for line in lines)


class Observer:
    """Samples simulator and NodeTwins from the side, and remembers when things were done."""

    def __init__(self, loop: Loop, simulator: Program) -> None:
        self._loop = loop
        self._simulator = simulator
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.samples: list[dict[str, Any]] = []
        self.marks: list[dict[str, Any]] = []

    def __enter__(self) -> "Observer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def mark(self, text: str) -> float:
        """Note what happens now; the simulated time, s."""
        time_s = float(self.telemetry(HOT)["simulatedSeconds"])
        self.marks.append({"simulatedSeconds": time_s, "text": text})
        return time_s

    def telemetry(self, name: str) -> dict[str, Any]:
        return dict(self._simulator.get(f"/telemetry/{name}"))

    def power_w(self) -> float:
        """Power of the hot node now."""
        return devices_w(self.telemetry(HOT))

    def peak_w(self, since_s: float) -> float:
        """Most power that the hot node was seen to draw since a moment: jobs come and go, and GPUs idle in between."""
        since = [sample for sample in self.samples if sample["node"] == HOT and sample["simulatedSeconds"] >= since_s]
        return max(float(sample["powerW"]) for sample in since)

    def gpu_limit_w(self) -> float:
        """Limit of each of its GPUs now."""
        return float(self.telemetry(HOT)["gpu"]["capWattsPerGpu"])

    def jobs(self) -> list[dict[str, float]]:
        """Start and end of the jobs that are done, simulated s."""
        described = self._simulator.get("/debug/jobs")["jobs"]
        done = [job for job in described if job["completedSeconds"] is not None]
        return [{key: job[key] for key in ("startedSeconds", "completedSeconds")} for job in done]

    def job_seconds(self, since_s: float) -> list[float]:
        """How long the jobs took that began after a moment, shortest first, simulated s."""
        return sorted(
            job["completedSeconds"] - job["startedSeconds"] for job in self.jobs() if job["startedSeconds"] >= since_s
        )

    def await_jobs(self, since_s: float, phase: str) -> list[float]:
        """Wait until some jobs of a phase are done; how long they took."""
        eventually(lambda: len(self.job_seconds(since_s)) >= JOBS_A_PHASE, f"jobs are done {phase}")
        return self.job_seconds(since_s)

    def _run(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            try:
                self.samples += self._sample()
            except (ApiError, OSError):
                continue  # evidence with a gap is evidence still

    def _sample(self) -> Iterator[dict[str, Any]]:
        twins = self._loop.twins()
        for name in (HOT, CALM[0]):
            told, status = self.telemetry(name), twins.get(name, {}).get("status", {})
            power = status.get("powerMeasurement", {})
            yield {
                "node": name,
                "simulatedSeconds": told["simulatedSeconds"],
                "powerW": devices_w(told),
                "gpuLimitW": told["gpu"]["capWattsPerGpu"],
                "cappedW": power.get("nodeCappedPowerW"),
                "headroom": status.get("predictedPowerHeadroomScore"),
                "class": status.get("schedulableClass"),
            }


def devices_w(telemetry: Mapping[str, Any]) -> float:
    """CPUs and GPUs of a node together."""
    return float(telemetry["packagePowerWatts"] + telemetry["gpu"]["powerWattsTotal"])


def headroom(loop: Loop, name: str) -> float:
    value = loop.twin(name).get("status", {}).get("predictedPowerHeadroomScore")
    assert value is not None, f"{name} has no headroom score yet"
    return float(value)


def where_next(loop: Loop, name: str) -> str:
    """Where a pod goes that may go anywhere."""
    loop.create(pod(name, requests=PROBE, annotations={"sim.joulie.io/cpu-util-pct": "0"}))
    placed = loop.await_placed(name)
    loop.delete_pods(name)
    return placed


def place(loop: Loop, name: str, on: str, requests: dict[str, str], util_pct: int) -> None:
    annotations = {f"sim.joulie.io/{device}-util-pct": str(util_pct) for device in ("cpu", "gpu")}
    loop.create(pod(name, on=on, requests=requests, annotations=annotations))
    loop.await_placed(name)


def eventually(predicate: Callable[[], Any], message: str) -> Any:
    return wait_for(predicate, PATIENCE_S, message, poll_s=0.3)


def test_the_loop_closes(start_control_plane: Callable[..., LocalControlPlane], tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(trace_of_small_jobs())
    plane = start_control_plane()
    loop = Loop(plane)
    plane.create_nodes([node(name, H100) for name in (HOT, *CALM)])
    simulator = loop.start_simulator(SIM_WORKLOAD_TRACE_PATH=str(trace), SIM_TIME_SCALE="10", SIM_TICK_INTERVAL="100ms")
    loop.start_agent()
    # All nodes begin at full power: classes play no part in where pods go.
    loop.start_operator(STATIC_HP_FRAC="1.0")
    loop.start_extender()
    for name in (HOT, *CALM):
        loop.await_state(name, ACTIVE)
    for name in CALM:
        place(loop, f"idle-{name}", name, IDLE, 0)
    with Observer(loop, simulator) as seen:
        try:
            _play(loop, seen)
        finally:
            EVIDENCE.parent.mkdir(parents=True, exist_ok=True)
            story = {"hot": HOT, "calm": CALM[0], "marks": seen.marks, "samples": seen.samples, "jobs": seen.jobs()}
            EVIDENCE.write_text(json.dumps(story, indent=1) + "\n")
    loop.raise_if_any_ended()


def _play(loop: Loop, seen: Observer) -> None:
    eventually(lambda: all(headroom(loop, name) > 70 for name in (HOT, *CALM)), "all nodes have headroom")
    quiet_w = seen.power_w()
    seen.mark("nothing to do")
    eventually(lambda: len(seen.samples) >= QUIET_SAMPLES, "the quiet nodes are sampled")
    assert where_next(loop, "first") == HOT, "it has the most room, and as much power left as the others"

    # Load raises power, and headroom falls.
    place(loop, "work", HOT, LOAD, 100)
    loop.patch(f"{NODES}/{HOT}", {"metadata": {"labels": {JOBS_LABEL: "yes"}}})
    loaded_s = seen.mark("load")
    eventually(lambda: seen.power_w() > quiet_w + 1000, "load raises power")
    eventually(lambda: headroom(loop, HOT) < 50 and headroom(loop, CALM[0]) > 70, "headroom falls where the load is")
    # The next pods go elsewhere, though the hot node still has the most room.
    eventually(lambda: where_next(loop, "second") in CALM, "the extender knows of it")
    assert {where_next(loop, f"next-{number}") for number in range(3)} <= set(CALM)
    seen.mark("the next pods go elsewhere")
    free_s = seen.await_jobs(loaded_s, "at full power")
    free_w = seen.peak_w(loaded_s)

    # An eco cap lowers power and slows the work.
    loop.override(HOT, "eco")
    seen.mark("to be eco")
    loop.await_state(HOT, ECO)
    seen.mark("eco")
    eventually(lambda: seen.gpu_limit_w() == ECO_SHARE * GPU_DEFAULT_W, "the cap reaches the GPUs")
    eventually(lambda: seen.power_w() < 0.8 * free_w, "the cap lowers power")
    capped_s = seen.mark("capped")
    slow_s = seen.await_jobs(capped_s, "under the cap")
    assert slow_s[0] > free_s[-1], f"jobs took {slow_s} s under the cap, {free_s} s before"
    report = loop.twin(HOT)["status"]["controlStatus"]["gpu"]
    assert (report["backend"], report["result"]) == ("http", "applied")

    # And back again.
    loop.lift_overrides()
    loop.await_state(HOT, ACTIVE)
    eventually(lambda: seen.gpu_limit_w() == GPU_DEFAULT_W, "the cap is lifted")
    freed_s = seen.mark("full power again")
    assert seen.await_jobs(freed_s, "at full power again")[-1] < slow_s[0]
