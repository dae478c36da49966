"""The demo: nodes and jobs, snapshots, the view, the recording, and one short run on the fake cluster."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from joulie.adapters.kubernetes.api.core import Node
from joulie.adapters.kubernetes.api.meta import ObjectMeta
from joulie.adapters.kubernetes.api.v1alpha1 import NodeTwin
from joulie.adapters.kubernetes.api.v1alpha1.power import (
    EffectiveCapState,
    NodeTwinSpec,
    NodeTwinStatus,
    PowerMeasurement,
)
from joulie.domain.hardware import BUILTIN_CATALOGUE, Quality
from joulie_lab.adapters.job_trace import JobTraceError, read_trace
from joulie_lab.apps.demo.baseline import difference, without_management
from joulie_lab.apps.demo.runtime import DemoRun
from joulie_lab.apps.demo.scenario import FAMILIES, demo_nodes, demo_trace
from joulie_lab.apps.demo.snapshot import Snapshot, take_snapshot
from joulie_lab.apps.demo.view import View, changes, headline, line, sparkline


def twin(name: str, schedulable_class: str, power_w: float, cap_pct: float = 100.0) -> NodeTwin:
    status = NodeTwinStatus(
        schedulable_class=schedulable_class,
        predicted_power_headroom_score=40.0,
        effective_cap_state=EffectiveCapState(cpu_pct=cap_pct, gpu_pct=100.0),
        power_measurement=PowerMeasurement(measured_node_power_w=power_w, node_capped_power_w=900.0, node_tdp_w=1000.0),
    )
    return NodeTwin(metadata=ObjectMeta(name=name), spec=NodeTwinSpec(node_name=name, profile="eco"), status=status)


def moment(*twins: NodeTwin, completed: int = 0, nodes: tuple[str, ...] = ("a", "b")) -> Snapshot:
    jobs = [{"state": "completed"}] * completed + [{"state": "submitted"}, {"state": "running"}, {"state": "waiting"}]
    energy = {"simulatedSeconds": 90, "itPowerW": 1500, "coolingPowerW": 300, "itKwh": 1.5, "coolingKwh": 0.25}
    return take_snapshot([Node(metadata=ObjectMeta(name=name)) for name in nodes], twins, [], energy, jobs)


def test_the_hardware_is_in_the_catalogue() -> None:
    for family in FAMILIES:
        assert BUILTIN_CATALOGUE.cpu(family.cpu_model).quality is Quality.EXACT
        if family.gpus:
            assert BUILTIN_CATALOGUE.gpu(family.gpu_model).quality is Quality.EXACT


def test_nodes_come_in_families() -> None:
    names = [node["metadata"]["name"] for node in demo_nodes(7)]
    assert names == ["cpu-0", "cpu-1", "cpu-2", "h100-0", "h100-1", "l40s-0", "l40s-1"]


def test_the_trace_is_valid_and_the_same_for_a_seed(tmp_path: Path) -> None:
    lines = list(demo_trace(7, 50, 1800.0))
    assert lines == list(demo_trace(7, 50, 1800.0))
    assert lines != list(demo_trace(8, 50, 1800.0))
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(json.dumps(item) for item in lines))
    jobs = list(read_trace(path))
    assert len(jobs) == 50
    assert not any(isinstance(job, JobTraceError) for job in jobs)


def test_a_node_without_a_twin_is_unknown() -> None:
    now = moment(twin("a", "eco", 300.0))
    assert [node.schedulable_class for node in now.nodes] == ["eco", "unknown"]
    assert (now.waiting, now.running, now.total) == (1, 1, 3)


def test_an_event_is_shown_once() -> None:
    before = moment(twin("a", "performance", 300.0), twin("b", "eco", 1.0, 60.0))
    after = moment(twin("a", "draining", 300.0), twin("b", "eco", 1.0, 50.0), completed=2)
    assert changes(None, before) == []
    assert changes(before, before) == []
    assert changes(before, after) == [
        "0:01:30  a: performance -> draining",
        "0:01:30  b: CPU cap now 50 %",
        "0:01:30  2 jobs done",
    ]


def test_lines_for_logs_and_views() -> None:
    now = moment(twin("a", "eco", 300.0))
    assert "PUE 1.17" in headline(now)
    assert "1 eco, 1 unknown" in line(now)
    assert View("title").render(now).renderables


@pytest.mark.parametrize(("width", "height", "nodes"), [(80, 24, 12), (60, 24, 12), (80, 24, 300), (114, 50, 12)])
def test_u6_the_view_fits_the_terminal(width: int, height: int, nodes: int) -> None:
    names = tuple(f"h100-{number}" for number in range(nodes))
    now = moment(*(twin(name, "performance", 300.0, 60.0) for name in names), nodes=names)
    console = Console(width=width, height=height, color_system=None)
    with console.capture() as captured:
        console.print(View("Joulie on a fake cluster, hardware simulated", width, height).render(now))
    lines = captured.get().splitlines()
    assert len(lines) < height
    header = next(row for row in lines if "NODE" in row)
    assert all(name in header for name in ("CLASS", "POWER", "CAPS", "PODS"))
    text = "\n".join(lines)
    assert text.count("performance") == text.count("CPU 60%") == 12
    assert (f"... and {nodes - 12} more nodes" in text) == (nodes == 300)


@pytest.mark.slow
def test_u6_the_demo_ends_with_the_difference_to_no_power_management(tmp_path: Path) -> None:
    run = DemoRun(3, 5, 600.0, 40.0, 42, tmp_path)
    baseline = without_management(run, 7200.0)
    now = replace(moment(completed=1), simulated_s=7200.0, total=1, it_kwh=baseline.it_j / 3.6e6 / 2.0)
    assert f"(50.0%) of the {baseline.it_j / 3.6e6:.2f} kWh without power management" in difference(now, baseline)
    more = replace(now, it_kwh=3.0 * now.it_kwh)
    assert "(50.0%) more than the" in difference(more, baseline)
    assert "unknown" in difference(replace(now, total=2), baseline)


def test_sparkline() -> None:
    assert sparkline([0.0, 4.0, 8.0]) == " ▄█"
    assert sparkline([0.0, 0.0]) == "  "


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recording") / "demo.svg"
    command = [sys.executable, "-m", "joulie", "demo", "--record", str(path)]
    subprocess.run(command, capture_output=True, check=True, timeout=300)
    return path


@pytest.mark.slow
def test_the_committed_recording_is_what_the_demo_records(recorded: Path) -> None:
    committed = Path(__file__).parents[2] / "docs" / "img" / "demo.svg"
    again = "it has drifted: run joulie demo --record docs/img/demo.svg"
    assert recorded.read_text(encoding="utf-8") == committed.read_text(encoding="utf-8"), again


@pytest.mark.slow
def test_the_recording_shows_the_loop_and_fetches_nothing(recorded: Path) -> None:
    text = recorded.read_text(encoding="utf-8")
    ElementTree.fromstring(text)
    assert text.count("<g class=") >= 10
    assert text.count("poster") == 2
    assert all(word in text for word in ("draining -&gt; eco", "eco -&gt; performance", "CPU 60% GPU 70%"))
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.slow
def test_the_demo_closes_the_loop(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "joulie", "demo", "--jobs", "12", "--duration", "25", "--report", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    samples = json.loads((tmp_path / "samples.json").read_text())
    assert any(sample["running"] for sample in samples)
    classes = {node["schedulable_class"] for sample in samples for node in sample["nodes"]}
    assert {"performance", "draining", "eco"} <= classes
    assert any(node["control"] == "applied" and node["cpu_cap_pct"] == 60.0 for node in samples[-1]["nodes"])
    assert (tmp_path / "power.png").stat().st_size > 10_000
