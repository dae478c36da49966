"""What Joulie costs a node: memory and CPU of each pod at the chart's own intervals, idle and loaded; its image."""

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from joulie_lab.control_plane.node import images
from joulie_lab.control_plane.node.prepared import ARCHIVES, folder_of
from support.real_site import ECO_W, SCHEDULER, Site
from support.scenario_log import ScenarioLog, now_s

SETTLED_S, WINDOW_S = 30.0, 60.0
AGENT_MIB, IMAGE_MB = 40.0, 120.0

Json = dict[str, Any]


@pytest.fixture(scope="module", autouse=True)
def _usual_intervals(enforced: Site) -> Iterator[None]:
    """The tests' quick cycles are nobody's costs."""
    agent = {key: value for key, value in enforced.values()["agent"].items() if key != "settings"}
    enforced.install({**enforced.values(operator={"replicas": 2}), "agent": agent})
    time.sleep(SETTLED_S)
    yield
    enforced.install(enforced.values())
    enforced.await_limits(ECO_W)


def test_memory_and_cpu_of_each_pod(enforced: Site, scenario_log: ScenarioLog) -> None:
    idle = measured(enforced, lambda: time.sleep(WINDOW_S))
    loaded = measured(enforced, lambda: work(enforced))
    rows = [
        {"pod": name, **idle[name], **{f"loaded_{key}": value for key, value in loaded[name].items()}}
        for name in sorted(idle)
    ]
    scenario_log.figures["pods"] = rows
    print(table(rows))  # noqa: T201 - for whoever runs it
    (agent,) = [row for row in rows if "joulie-agent" in row["pod"]]
    assert max(agent["resident_mib"], agent["loaded_resident_mib"]) < AGENT_MIB


def test_the_image_is_small(enforced: Site, scenario_log: ScenarioLog) -> None:
    sizes = {name: round(images.compressed_mb(folder_of() / archive), 1) for name, archive in ARCHIVES.items()}
    scenario_log.figures["images_mb"] = sizes
    assert sizes["joulie"] < IMAGE_MB


def measured(site: Site, wait: Callable[[], None]) -> dict[str, Json]:
    """Memory now and CPU while waiting, by pod."""
    pods = site.pods()
    before = {pod["metadata"]["name"]: (site.node.cpu_s(pod), now_s()) for pod in pods}
    wait()
    figures = {}
    for pod in pods:
        name = pod["metadata"]["name"]
        used_s, since_s = before[name]
        memory = site.node.memory(pod)
        figures[name] = {
            "resident_mib": round(memory.resident_mib, 1),
            "working_set_mib": round(memory.working_set_mib, 1),
            "millicores": round(1000 * (site.node.cpu_s(pod) - used_s) / (now_s() - since_s), 1),
        }
    return figures


def work(site: Site) -> None:
    """For a minute the machine's load changes, pods come and go, and somebody looks."""
    ends_s = now_s() + WINDOW_S
    for number in itertools.count():
        site.machine.set_load(("0.3", "1.0")[number % 2])
        site.run_pod("job", schedulerName=SCHEDULER)
        site.await_running("job")
        site.joulie("status")
        site.delete_pods("job")
        if number % 2 and now_s() > ends_s:
            return


def table(rows: list[Json]) -> str:
    """All figures of all pods, in columns."""
    lines = [list(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
