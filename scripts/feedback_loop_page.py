"""Writes docs/experiments/feedback-loop.md and its picture from what the test of the feedback loop saw.

    pytest tests/control_plane/test_feedback_loop.py      # writes out/evidence/feedback-loop.json
    python scripts/feedback_loop_page.py

The numbers of the page are those of one run; a check compares nothing with it, since every run has its own times.
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
class Story:
    """What was seen in one run; times are simulated seconds after the first mark.

    Attributes:
        marks: when what was done, by what it is called.
        hot: samples of the node under load.
        calm: samples of another one.
        jobs: start and duration of the jobs.
    """

    marks: Mapping[str, float]
    hot: Sequence[Sample]
    calm: Sequence[Sample]
    jobs: Sequence[tuple[float, float]]

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Story:
        """The story that the test wrote."""
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
        """Durations of the jobs that ran wholly between two marks, s."""
        end_s = float("inf") if last is None else self.marks[last]
        return [took_s for start_s, took_s in self.jobs if start_s >= self.marks[first] and start_s + took_s <= end_s]


def draw(story: Story, path: Path) -> None:
    """Power and cap, headroom, and how long jobs take, over one time axis."""
    mpl.rcParams["svg.hashsalt"] = "joulie"
    mpl.rcParams["font.size"] = 9
    figure = Figure(figsize=(8.0, 6.6), layout="constrained")
    power, headroom, jobs = figure.subplots(3, 1, sharex=True)
    _draw_power(power, story)
    for samples, colour in ((story.hot, HOT_COLOUR), (story.calm, CALM_COLOUR)):
        known = [sample for sample in samples if sample["headroom"] is not None]
        headroom.step([s["time_s"] for s in known], [s["headroom"] for s in known], where="post", color=colour)
    headroom.set_ylabel("headroom score")
    headroom.set_ylim(-4, 104)
    jobs.scatter([start_s for start_s, _ in story.jobs], [took_s for _, took_s in story.jobs], s=22, color=HOT_COLOUR)
    jobs.set_ylabel("duration of equal jobs [s],\nthree at a time")
    jobs.set_ylim(0, 1.25 * max(took_s for _, took_s in story.jobs))
    jobs.set_xlabel("simulated time [s]")
    for axes in (power, headroom, jobs):
        axes.spines[["top", "right"]].set_visible(False)
        for text in PHASES:
            axes.axvline(story.marks[text], color=TEXT_COLOUR, linewidth=0.8, linestyle=":")
    for text in PHASES:
        # This one is soon followed by the next.
        side = "right" if text == "to be eco" else "left"
        place = power.get_xaxis_transform()
        power.text(story.marks[text], 1.01, f" {text} ", transform=place, color=TEXT_COLOUR, ha=side)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def _draw_power(axes: Axes, story: Story) -> None:
    for name, samples, colour in (("loaded", story.hot, HOT_COLOUR), ("another", story.calm, CALM_COLOUR)):
        axes.plot([s["time_s"] for s in samples], [s["powerW"] / 1e3 for s in samples], color=colour, label=name)
    known = [sample for sample in story.hot if sample["cappedW"] is not None]
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
    """Median of what is known: the first samples of a phase still show the one before."""
    return float(median(sample[key] for sample in samples if sample[key] is not None))


def page(story: Story) -> str:
    """The page's text, with the numbers of this run."""
    free, capped = story.between("the next pods go elsewhere", "to be eco"), story.between("capped", "full power again")
    free_jobs = story.jobs_between("load", "to be eco")
    capped_jobs = story.jobs_between("capped", "full power again")
    last_jobs = story.jobs_between("full power again", None)
    quiet = story.between("nothing to do", "load")[-1]
    limits_w = [_middle(phase, "gpuLimitW") for phase in ([quiet], free, capped)]
    free_w, capped_w = (mean(sample["powerW"] for sample in phase) for phase in (free, capped))
    calm = [sample["headroom"] for sample in story.calm if sample["headroom"] is not None]
    return f"""\
# The feedback loop on a real control plane

*Generated by `scripts/feedback_loop_page.py` from one run of `tests/control_plane/test_feedback_loop.py`.*

Telemetry makes the twin, the twin makes caps and scores, caps and placement make power, and power is telemetry again.
The test plays this on a real kube-apiserver, etcd, kube-scheduler and kube-controller-manager with four KWOK nodes of
two CPUs and eight H100 NVL each. Operator, pool agent, extender and simulator are processes with the rights that the
chart gives them; only the hardware is simulated, at ten times the speed of real time.

![Power, headroom and job durations over simulated time]({PICTURE})

| | nothing to do | load | capped |
|---|---:|---:|---:|
| power of the node | {quiet["powerW"]:.0f} W | {free_w:.0f} W | {capped_w:.0f} W |
| headroom score | {quiet["headroom"]:.0f} | {_middle(free, "headroom"):.0f} | {_middle(capped, "headroom"):.0f} |
| limit of each GPU | {limits_w[0]:.0f} W | {limits_w[1]:.0f} W | {limits_w[2]:.0f} W |
| an equal GPU job takes | | {mean(free_jobs):.0f} s | {mean(capped_jobs):.0f} s |

1. **Nothing to do.** All nodes have the same power left. A pod that may run anywhere goes to the node with the most
   free cores, which is the one that is to be loaded: kube-scheduler alone decides.
2. **Load.** Eight GPUs work; the simulator's power rises, the operator reads it by HTTP and lowers the headroom score
   of the NodeTwin, the extender's watch brings it to `/prioritize`. Pods equal to the first one now go to the other
   nodes, whose score stays above {min(calm) - 1:.0f}, though the loaded node still has the most free cores.
3. **To be eco.** An administrator pins the node by a NodePowerProfile. It is `draining` for the settling time of the
   test (2 s of real time, 30 s by default), then eco: the operator states a cap of 60 %, the agent sends it to each
   GPU.
4. **Capped.** The node draws {1 - capped_w / free_w:.0%} less, and the same job, bound by the GPU's clock, takes
   {mean(capped_jobs) / mean(free_jobs) - 1:.0%} longer. That is the trade which a policy makes.
5. **Full power again.** The pin is deleted, the limits return, and jobs take {mean(last_jobs):.0f} s as before.

The test asserts each of these steps, not these numbers. Run it yourself, and make this page anew:

```console
$ pytest tests/control_plane/test_feedback_loop.py
$ python scripts/feedback_loop_page.py
```
"""


def main() -> None:
    """Write page and picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--evidence", type=Path, default=EVIDENCE, help="what the test wrote")
    story = Story.of(json.loads(parser.parse_args().evidence.read_text(encoding="utf-8")))
    draw(story, PAGE.parent / PICTURE)
    PAGE.write_text(page(story), encoding="utf-8")


if __name__ == "__main__":
    main()
