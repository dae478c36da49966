"""Draws a chart of a demo over time: power, node classes and jobs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from joulie_lab.apps.demo.snapshot import Snapshot

_COLOURS = {"performance": "#2a9d8f", "draining": "#e9c46a", "eco": "#457b9d", "unknown": "#bbbbbb"}


def draw(snapshots: Sequence[Snapshot], path: Path) -> None:
    """Draw snapshots over simulated time into a PNG file."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    minutes = [item.simulated_s / 60.0 for item in snapshots]
    figure, (power, classes, jobs) = plt.subplots(3, 1, figsize=(9, 8), sharex=True, layout="constrained")
    power.plot(minutes, [item.it_power_w / 1000.0 for item in snapshots], label="nodes", color="#d62828")
    power.plot(minutes, [item.cooling_w / 1000.0 for item in snapshots], label="cooling", color="#003049")
    power.set_ylabel("power, kW")
    power.set_ylim(bottom=0.0)
    power.legend(loc="upper right")
    counts = {
        name: [sum(node.schedulable_class == name for node in item.nodes) for item in snapshots] for name in _COLOURS
    }
    classes.stackplot(minutes, *counts.values(), labels=list(counts), colors=list(_COLOURS.values()))
    classes.set_ylabel("nodes by class")
    classes.legend(loc="upper right")
    jobs.plot(minutes, [item.running for item in snapshots], label="running", color="#2a9d8f")
    jobs.plot(minutes, [item.waiting for item in snapshots], label="waiting", color="#e76f51")
    jobs.plot(minutes, [item.completed for item in snapshots], label="done", color="#264653")
    jobs.set_ylabel("jobs")
    jobs.set_xlabel("simulated time, min")
    jobs.legend(loc="upper left")
    figure.savefig(path, dpi=110)
    plt.close(figure)
