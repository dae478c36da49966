"""The live view of the demo: nodes with their power and caps, power over time, the latest events."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from joulie_lab.apps.demo.snapshot import NodeSnapshot, Snapshot

_STYLES = {"performance": "green", "eco": "cyan", "draining": "yellow", "unknown": "dim"}
_BLOCKS = " ▁▂▃▄▅▆▇█"
_MAX_BAR_WIDTH = 26
_MAX_CURVE_WIDTH = 60
_MAX_EVENTS = 7
_MIN_EVENTS = 3
_OTHER_ROWS = 8
"""Rows that are neither nodes nor events: title, table header, jobs, energy, power, two of the panel, the cursor."""
_OTHER_COLUMNS = 66
"""Width of all columns but the bar at 80 columns, characters."""
_HEADROOM_FROM, _CONTROL_FROM, _BAR_FROM = 90, 100, 76
"""Terminal widths from which a column is shown, characters."""


class View:
    """Renders snapshots for a terminal of `width` x `height` characters; keeps recent power and events."""

    def __init__(self, title: str, width: int = 114, height: int = 50) -> None:
        self._title = title
        self._width = width
        self._rows = max(1, height - _OTHER_ROWS - _MIN_EVENTS)
        self._height = height
        self._power_w: deque[float] = deque(maxlen=max(10, min(_MAX_CURVE_WIDTH, width - 20)))
        self._events: deque[str] = deque(maxlen=_MAX_EVENTS)
        self._before: Snapshot | None = None

    def render(self, now: Snapshot) -> Group:
        """Render one snapshot."""
        self._events.extend(changes(self._before, now))
        self._power_w.append(now.it_power_w)
        self._before = now
        shown = now.nodes if len(now.nodes) <= self._rows else now.nodes[: self._rows - 1]
        left_out = len(now.nodes) - len(shown)
        rows = len(shown) + bool(left_out)
        events = max(_MIN_EVENTS, min(_MAX_EVENTS, self._height - _OTHER_ROWS - rows))
        lines: list[RenderableType] = [
            Text(f"{self._title}, {clock(now.simulated_s)}", style="bold"),
            _nodes_table(shown, self._width),
            *([Text(f"... and {left_out} more nodes", style="dim")] if left_out else []),
            Text(headline(now)),
            Text.assemble("power    ", (sparkline(self._power_w), "magenta"), f" {now.it_power_w / 1000.0:.1f} kW"),
            Panel(
                Text("\n".join(list(self._events)[-events:]) or "-", no_wrap=True, overflow="ellipsis"),
                title="events",
                title_align="left",
                height=events + 2,
            ),
        ]
        for line in lines:
            if isinstance(line, Text):
                line.no_wrap, line.overflow = True, "ellipsis"
        return Group(*lines)


def headline(now: Snapshot) -> str:
    """Jobs and energy in two lines."""
    pue = f"{1.0 + now.cooling_kwh / now.it_kwh:.2f}" if now.it_kwh > 0.0 else "unknown"
    return (
        f"jobs     {now.waiting} waiting, {now.running} running, {now.completed} of {now.total} done\n"
        f"energy   {now.it_kwh:.2f} kWh + cooling {now.cooling_kwh:.2f} kWh (PUE {pue})"
    )


def line(now: Snapshot) -> str:
    """One line for output that is not a terminal."""
    classes = [node.schedulable_class for node in now.nodes]
    counts = ", ".join(f"{classes.count(name)} {name}" for name in _STYLES if name in classes)
    jobs_and_energy = ", ".join(headline(now).splitlines())
    return f"{clock(now.simulated_s)}  {now.it_power_w / 1000.0:5.1f} kW  {counts};  {jobs_and_energy}"


def changes(before: Snapshot | None, now: Snapshot) -> list[str]:
    """Events between two snapshots, one line each."""
    if before is None:
        return []
    events = []
    at = clock(now.simulated_s)
    old = {node.name: node for node in before.nodes}
    for node in now.nodes:
        last = old.get(node.name)
        if last is None:
            events.append(f"{at}  {node.name} joined")
        elif last.schedulable_class != node.schedulable_class:
            kept = f", {node.performance_pods} performance pods keep their power" if node.performance_pods else ""
            drains = kept if node.schedulable_class == "draining" else ""
            events.append(f"{at}  {node.name}: {last.schedulable_class} -> {node.schedulable_class}{drains}")
        elif last.cpu_cap_pct != node.cpu_cap_pct and node.cpu_cap_pct is not None:
            events.append(f"{at}  {node.name}: CPU cap now {node.cpu_cap_pct:.0f} %")
    if now.completed > before.completed:
        done = now.completed - before.completed
        events.append(f"{at}  {done} {'job' if done == 1 else 'jobs'} done")
    return events


def sparkline(values: Sequence[float] | deque[float]) -> str:
    """A line chart in one line of text, from zero to the largest value."""
    top = max(values, default=0.0)
    if top <= 0.0:
        return _BLOCKS[0] * len(values)
    return "".join(_BLOCKS[round(value / top * (len(_BLOCKS) - 1))] for value in values)


def _nodes_table(nodes: Sequence[NodeSnapshot], width: int) -> Table:
    """The nodes, with the columns that fit."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    bar_width = min(_MAX_BAR_WIDTH, width - _OTHER_COLUMNS)
    columns: dict[str, Callable[[NodeSnapshot], RenderableType]] = {
        "NODE": lambda node: node.name,
        "CLASS": lambda node: Text(node.schedulable_class, style=_style(node)),
        "SHARE OF MAXIMUM": lambda node: _bar(node, bar_width),
        "POWER": lambda node: "-" if node.power_w is None else f"{node.power_w:5.0f} W",
        "HEADROOM": lambda node: "-" if node.headroom_score is None else f"{node.headroom_score:3.0f}",
        "CAPS": _caps,
        "PODS": lambda node: f"{node.pods}" + (f" ({node.performance_pods} perf)" if node.performance_pods else ""),
        "CONTROL": lambda node: node.control or "-",
    }
    for header, from_width in (
        ("SHARE OF MAXIMUM", _BAR_FROM),
        ("HEADROOM", _HEADROOM_FROM),
        ("CONTROL", _CONTROL_FROM),
    ):
        if width < from_width:
            del columns[header]
    for header in columns:
        table.add_column(header if bar_width >= len(header) or header != "SHARE OF MAXIMUM" else "SHARE", no_wrap=True)
    for node in nodes:
        table.add_row(*(cell(node) for cell in columns.values()))
    return table


def _style(node: NodeSnapshot) -> str:
    return _STYLES.get(node.schedulable_class, "")


def _bar(node: NodeSnapshot, width: int) -> ProgressBar | Text:
    if node.power_w is None or not node.tdp_w:
        return Text("")
    return ProgressBar(
        total=node.tdp_w,
        completed=min(node.power_w, node.tdp_w),
        width=width,
        complete_style=_style(node) or "white",
    )


def _caps(node: NodeSnapshot) -> str:
    caps = [
        f"{name} {percent:.0f}%"
        for name, percent in (("CPU", node.cpu_cap_pct), ("GPU", node.gpu_cap_pct))
        if percent is not None and percent < 100.0
    ]
    return " ".join(caps) or "-"


def clock(seconds: float) -> str:
    """Simulated time as h:mm:ss."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
