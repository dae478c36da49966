"""The live view of the demo: nodes with their power and caps, power over time, the latest events."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from rich.console import Group
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from joulie_lab.apps.demo.snapshot import NodeSnapshot, Snapshot

_STYLES = {"performance": "green", "eco": "cyan", "draining": "yellow", "unknown": "dim"}
_BLOCKS = " ▁▂▃▄▅▆▇█"
_BAR_WIDTH = 26
_CURVE_WIDTH = 60
_EVENTS_SHOWN = 7


class View:
    """Renders snapshots; keeps recent power and events."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._power_w: deque[float] = deque(maxlen=_CURVE_WIDTH)
        self._events: deque[str] = deque(maxlen=_EVENTS_SHOWN)
        self._before: Snapshot | None = None

    def render(self, now: Snapshot) -> Group:
        """Render one snapshot."""
        self._events.extend(changes(self._before, now))
        self._power_w.append(now.it_power_w)
        self._before = now
        return Group(
            Text(f"{self._title}    simulated time {_clock(now.simulated_s)}", style="bold"),
            _nodes_table(now.nodes),
            Text(headline(now)),
            Text.assemble("power    ", (sparkline(self._power_w), "magenta"), f" {now.it_power_w / 1000.0:.1f} kW"),
            Panel("\n".join(self._events) or "-", title="events", title_align="left", height=_EVENTS_SHOWN + 2),
        )


def headline(now: Snapshot) -> str:
    """Jobs and energy in one line."""
    pue = f"{1.0 + now.cooling_w / now.it_power_w:.2f}" if now.it_power_w > 0.0 else "unknown"
    return (
        f"jobs     {now.waiting} waiting, {now.running} running, {now.completed} of {now.total} done"
        f"    energy {now.it_kwh:.2f} kWh + cooling {now.cooling_kwh:.2f} kWh (PUE {pue})"
    )


def line(now: Snapshot) -> str:
    """One line for output that is not a terminal."""
    classes = [node.schedulable_class for node in now.nodes]
    counts = ", ".join(f"{classes.count(name)} {name}" for name in _STYLES if name in classes)
    return f"{_clock(now.simulated_s)}  {now.it_power_w / 1000.0:5.1f} kW  {counts};  {headline(now)}"


def changes(before: Snapshot | None, now: Snapshot) -> list[str]:
    """Events between two snapshots, one line each."""
    if before is None:
        return []
    events = []
    clock = _clock(now.simulated_s)
    old = {node.name: node for node in before.nodes}
    for node in now.nodes:
        last = old.get(node.name)
        if last is None:
            events.append(f"{clock}  {node.name} joined")
        elif last.schedulable_class != node.schedulable_class:
            kept = f", {node.performance_pods} performance pods keep their power" if node.performance_pods else ""
            drains = kept if node.schedulable_class == "draining" else ""
            events.append(f"{clock}  {node.name}: {last.schedulable_class} -> {node.schedulable_class}{drains}")
        elif last.cpu_cap_pct != node.cpu_cap_pct and node.cpu_cap_pct is not None:
            events.append(f"{clock}  {node.name}: CPU cap now {node.cpu_cap_pct:.0f} %")
    if now.completed > before.completed:
        done = now.completed - before.completed
        events.append(f"{clock}  {done} {'job' if done == 1 else 'jobs'} done")
    return events


def sparkline(values: Sequence[float] | deque[float]) -> str:
    """A line chart in one line of text, from zero to the largest value."""
    top = max(values, default=0.0)
    if top <= 0.0:
        return _BLOCKS[0] * len(values)
    return "".join(_BLOCKS[round(value / top * (len(_BLOCKS) - 1))] for value in values)


def _nodes_table(nodes: Sequence[NodeSnapshot]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in ("NODE", "CLASS", "POWER, SHARE OF MAXIMUM", "", "HEADROOM", "CAPS", "PODS", "CONTROL"):
        table.add_column(header, no_wrap=True)
    for node in nodes:
        style = _STYLES.get(node.schedulable_class, "")
        table.add_row(
            node.name,
            Text(node.schedulable_class, style=style),
            _bar(node, style),
            "-" if node.power_w is None else f"{node.power_w:5.0f} W",
            "-" if node.headroom_score is None else f"{node.headroom_score:3.0f}",
            _caps(node),
            f"{node.pods}" + (f" ({node.performance_pods} perf)" if node.performance_pods else ""),
            node.control or "-",
        )
    return table


def _bar(node: NodeSnapshot, style: str) -> ProgressBar | Text:
    if node.power_w is None or not node.tdp_w:
        return Text("")
    return ProgressBar(
        total=node.tdp_w, completed=min(node.power_w, node.tdp_w), width=_BAR_WIDTH, complete_style=style or "white"
    )


def _caps(node: NodeSnapshot) -> str:
    caps = [
        f"{name} {percent:.0f}%"
        for name, percent in (("CPU", node.cpu_cap_pct), ("GPU", node.gpu_cap_pct))
        if percent is not None and percent < 100.0
    ]
    return " ".join(caps) or "-"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
