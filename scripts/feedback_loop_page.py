"""Writes docs/experiments/feedback-loop.md and its chart from the evidence file of the feedback loop test.

    pytest tests/control_plane/test_feedback_loop.py      # writes out/evidence/feedback-loop.json
    python scripts/feedback_loop_page.py

The figures of the page are those of one run. No test compares them, because every run has different times.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
EVIDENCE = ROOT / "out" / "evidence" / "feedback-loop.json"
PAGE = ROOT / "docs" / "experiments" / "feedback-loop.md"
PICTURE = "img/feedback-loop.svg"
HOT_COLOUR, CALM_COLOUR, CAP_COLOUR, TEXT_COLOUR = "#c2410c", "#0f766e", "#7c3aed", "#64748b"
PHASES = ("load", "to be eco", "capped", "full power again")

Sample = Mapping[str, Any]


@dataclass(frozen=True)
class Observations:
    """The observations of one run; times are simulated seconds after the first mark.

    Attributes:
        marks: time of each step of the test by its name, s.
        hot: samples of the node under load.
        calm: samples of another node.
        jobs: start and duration of each job, s.
    """

    marks: Mapping[str, float]
    hot: Sequence[Sample]
    calm: Sequence[Sample]
    jobs: Sequence[tuple[float, float]]

    @classmethod
    def from_evidence(cls, content: Mapping[str, Any]) -> Observations:
        """The observations from the content of the evidence file."""
        began_s = content["marks"][0]["simulatedSeconds"]

        def samples(node: str) -> list[Sample]:
            own = [sample for sample in content["samples"] if sample["node"] == node]
            return [{**sample, "time_s": sample["simulatedSeconds"] - began_s} for sample in own]

        return cls(
            {mark["text"]: mark["simulatedSeconds"] - began_s for mark in content["marks"]},
            samples(content["hot"]),
            samples(content["calm"]),
            [
                (job["startedSeconds"] - began_s, job["completedSeconds"] - job["startedSeconds"])
                for job in content["jobs"]
            ],
        )

    def between(self, first: str, last: str) -> list[Sample]:
        """Samples of the hot node between two marks."""
        return [sample for sample in self.hot if self.marks[first] <= sample["time_s"] < self.marks[last]]

    def jobs_between(self, first: str, last: str | None) -> list[float]:
        """Durations of the jobs that ran entirely between two marks, s."""
        end_s = float("inf") if last is None else self.marks[last]
        return [took_s for start_s, took_s in self.jobs if start_s >= self.marks[first] and start_s + took_s <= end_s]


def draw(run: Observations, path: Path) -> None:
    """Power and cap, headroom, and how long jobs take, over one time axis."""
    mpl.rcParams["svg.hashsalt"] = "joulie"
    mpl.rcParams["font.size"] = 9
    figure = Figure(figsize=(8.0, 6.6), layout="constrained")
    power, headroom, jobs = figure.subplots(3, 1, sharex=True)
    _draw_power(power, run)
    for samples, colour in ((run.hot, HOT_COLOUR), (run.calm, CALM_COLOUR)):
        known = [sample for sample in samples if sample["headroom"] is not None]
        headroom.step([s["time_s"] for s in known], [s["headroom"] for s in known], where="post", color=colour)
    headroom.set_ylabel("headroom score")
    headroom.set_ylim(-4, 104)
    jobs.scatter([start_s for start_s, _ in run.jobs], [took_s for _, took_s in run.jobs], s=22, color=HOT_COLOUR)
    jobs.set_ylabel("duration of equal jobs [s],\nthree at a time")
    jobs.set_ylim(0, 1.25 * max(took_s for _, took_s in run.jobs))
    jobs.set_xlabel("simulated time [s]")
    for axes in (power, headroom, jobs):
        axes.spines[["top", "right"]].set_visible(False)
        for text in PHASES:
            axes.axvline(run.marks[text], color=TEXT_COLOUR, linewidth=0.8, linestyle=":")
    for text in PHASES:
        # The next mark follows soon.
        side = "right" if text == "to be eco" else "left"
        place = power.get_xaxis_transform()
        power.text(run.marks[text], 1.01, f" {text} ", transform=place, color=TEXT_COLOUR, ha=side)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def _draw_power(axes: Axes, run: Observations) -> None:
    for name, samples, colour in (("loaded", run.hot, HOT_COLOUR), ("another", run.calm, CALM_COLOUR)):
        axes.plot([s["time_s"] for s in samples], [s["powerW"] / 1e3 for s in samples], color=colour, label=name)
    known = [sample for sample in run.hot if sample["cappedW"] is not None]
    capped_kw = [sample["cappedW"] / 1e3 for sample in known]
    axes.step(
        [s["time_s"] for s in known],
        capped_kw,
        where="post",
        color=CAP_COLOUR,
        linestyle="--",
        label="allowed by the caps",
    )
    axes.set_ylabel("power of a node [kW]")
    axes.set_ylim(0, 1.1 * max(capped_kw))
    axes.legend(loc="lower right", frameon=False)


def _middle(samples: Sequence[Sample], key: str) -> float:
    """Median of the known values: the first samples of a phase still show the previous one."""
    return float(median(sample[key] for sample in samples if sample[key] is not None))


def page(run: Observations) -> str:
    """The page's text with the figures of this run."""
    free, capped = run.between("the next pods go elsewhere", "to be eco"), run.between("capped", "full power again")
    free_jobs = run.jobs_between("load", "to be eco")
    capped_jobs = run.jobs_between("capped", "full power again")
    last_jobs = run.jobs_between("full power again", None)
    quiet = run.between("nothing to do", "load")[-1]
    limits_w = [_middle(phase, "gpuLimitW") for phase in ([quiet], free, capped)]
    free_w, capped_w = (mean(sample["powerW"] for sample in phase) for phase in (free, capped))
    calm = [sample["headroom"] for sample in run.calm if sample["headroom"] is not None]
    return f"""\
# The feedback loop on a real control plane

*Generated by `scripts/feedback_loop_page.py` from one run of `tests/control_plane/test_feedback_loop.py`.*

Telemetry determines the digital twin, the twin determines caps and scores, caps and placement determine power, and
power is telemetry again. The test runs this loop on a real kube-apiserver, etcd, kube-scheduler and
kube-controller-manager with four KWOK nodes of two CPUs and eight H100 NVL each. Operator, pool agent, extender and
simulator are processes with the permissions of the chart; only the hardware is simulated, at ten times the speed of
real time.

![Power, headroom and job durations over simulated time]({PICTURE})

| | nothing to do | load | capped |
|---|---:|---:|---:|
| power of the node | {quiet["powerW"]:.0f} W | {free_w:.0f} W | {capped_w:.0f} W |
| headroom score | {quiet["headroom"]:.0f} | {_middle(free, "headroom"):.0f} | {_middle(capped, "headroom"):.0f} |
| limit of each GPU | {limits_w[0]:.0f} W | {limits_w[1]:.0f} W | {limits_w[2]:.0f} W |
| an equal GPU job takes | | {mean(free_jobs):.0f} s | {mean(capped_jobs):.0f} s |

1. **Nothing to do.** All nodes have the same headroom. A pod that may run anywhere is placed on the node with the most
   free cores, which is the node to be loaded later: kube-scheduler alone decides.
2. **Load.** Eight GPUs work and the simulated power rises. The operator reads it by HTTP and lowers the headroom score
   of the NodeTwin, and the extender's watch delivers it to `/prioritize`. Pods identical to the first one are now
   placed on the other nodes, whose score stays above {min(calm) - 1:.0f}, although the loaded node still has the most
   free cores.
3. **To be eco.** An administrator pins the node with a NodePowerProfile. It is `draining` for the settling time of the
   test (2 s of real time, 30 s by default), then eco: the operator sets a cap of 60 %, and the agent applies it to each
   GPU.
4. **Capped.** The node draws {1 - capped_w / free_w:.0%} less, and the same job, bound by the GPU's clock, takes
   {mean(capped_jobs) / mean(free_jobs) - 1:.0%} longer. This is the trade-off that a policy makes.
5. **Full power again.** The pin is deleted, the limits return, and jobs take {mean(last_jobs):.0f} s as before.

**Who knew what.** The operator reads the simulated power and is pinned to a cap; how the job responds to it is the
simulator's, and no program knows it.

The test asserts each of these steps, but not these figures. To run it yourself and write this page again:

```console
$ pytest tests/control_plane/test_feedback_loop.py
$ python scripts/feedback_loop_page.py
```
"""


def main() -> None:
    """Write page and picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--evidence", type=Path, default=EVIDENCE, help="what the test wrote")
    run = Observations.from_evidence(json.loads(parser.parse_args().evidence.read_text(encoding="utf-8")))
    draw(run, PAGE.parent / PICTURE)
    PAGE.write_text(page(run), encoding="utf-8")


if __name__ == "__main__":
    main()
