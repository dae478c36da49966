"""Rows and tables of `kubectl joulie status`."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from joulie.adapters.kubernetes.api.core import Node, Pod
from joulie.adapters.kubernetes.api.v1alpha1 import NodeTwin
from joulie.adapters.kubernetes.times import rfc3339
from joulie.apps.kubectl.agents import agent_nodes, agent_of
from joulie.apps.kubectl.columns import sorted_rows
from joulie.apps.kubectl.overview import COLUMNS, NodeRow, bound_pod, document, node_rows, summary, summary_lines
from joulie.apps.kubectl.table import Cell, Heading, table

NOW_S = 1_750_000_000.0


def node(name: str = "n1", **labels: str) -> Node:
    allocatable = {"cpu": "64", "memory": "256Gi", "nvidia.com/gpu": "8"}
    content = {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": allocatable}}
    return msgspec.convert(content, Node)


def twin(name: str = "n1", *, spec: Any = None, age_s: float = 12.0, **status: Any) -> NodeTwin:
    content: dict[str, Any] = {
        "metadata": {"name": name, "generation": 3},
        "spec": {"nodeName": name, "profile": "eco", **(spec or {})},
        "status": {"lastUpdated": rfc3339(NOW_S - age_s), **status},
    }
    if "controlStatus" in status:
        content["status"]["controlStatus"] = {"observedGeneration": 3, **status["controlStatus"]}
    return msgspec.convert(content, NodeTwin)


def pod(name: str, on: str = "n1", phase: str = "Running", **requests: str) -> Pod:
    container = {"name": "main", "image": "none", "resources": {"requests": requests}}
    spec = {"nodeName": on, "containers": [container]}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec, "status": {"phase": phase}}, Pod)


def row(*pods: Pod, of: NodeTwin | None = None, **labels: str) -> NodeRow:
    (found,) = node_rows([node(**labels)], [of] if of else [], map(bound_pod, pods), NOW_S)
    return found


def control(result: str, message: str = "why") -> dict[str, Any]:
    return {"backend": "rapl", "result": result, "message": message, "updatedAt": rfc3339(NOW_S)}


def rows_of(*names: str, **headroom: float) -> list[NodeRow]:
    twins = [twin(name, schedulableClass="eco", predictedPowerHeadroomScore=headroom[name]) for name in headroom]
    return node_rows([node(name) for name in names], twins, [], NOW_S)


# ---- rows


def test_requests_are_shares_of_what_the_node_offers() -> None:
    gpu = {"nvidia.com/gpu": "2"}
    found = row(
        pod("a", cpu="16", memory="64Gi", **gpu),
        pod("b", cpu="16"),
        pod("done", phase="Succeeded", cpu="64"),
        pod("elsewhere", on="n2", cpu="64"),
    )
    assert (found.cpu_requested_pct, found.memory_requested_pct, found.gpu_requested_pct) == (50.0, 25.0, 25.0)
    assert found.pods == 2


def test_what_a_twin_says() -> None:
    found = row(
        of=twin(
            spec={"cpu": {"packagePowerCapPctOfMax": 60}, "gpu": {"powerCap": {"capWattsPerGpu": 300}}},
            schedulableClass="eco",
            predictedPowerHeadroomScore=38.2,
            predictedCoolingStressScore=41,
            powerMeasurement={"source": "rapl", "measuredNodePowerW": 300, "powerTrendWPerMin": -3},
            controlStatus={"cpu": control("applied"), "gpu": control("none")},
        ),
        **{"joulie.io/rack": "r1"},
    )
    assert (found.schedulable_class, found.cpu_cap, found.gpu_cap) == ("eco", "60%", "300W")
    assert (found.headroom_score, found.power_w, found.power_source, found.age_s) == (38.2, 300.0, "rapl", 12.0)
    assert (found.cpu_control, found.gpu_control, found.rack, found.notes) == ("rapl:applied", "rapl:none", "r1", ())


def test_a_node_without_a_twin_is_unknown_and_says_why() -> None:
    found = row()
    assert (found.schedulable_class, found.headroom_score, found.age_s) == ("unknown", None, None)
    assert found.notes[0].startswith("no NodeTwin")
    assert COLUMNS["headroom"].text(found) == "-"


def test_notes_tell_why_data_is_missing_and_caps_are_not_in_force() -> None:
    condition = {
        "type": "PowerKnown",
        "status": "False",
        "reason": "NoSource",
        "message": "no source knows it",
        "lastTransitionTime": rfc3339(NOW_S),
    }
    found = row(
        of=twin(conditions=[condition], controlStatus={"cpu": control("blocked", "no RAPL"), "gpu": control("applied")})
    )
    assert found.notes == ("no source knows it", "CPU cap blocked: no RAPL")


def test_r5_a_report_counts_for_the_cap_that_it_was_made_for() -> None:
    cap = {"cpu": {"packagePowerCapPctOfMax": 70}}
    for generation in (2, None):
        control_status = {"cpu": control("applied"), "gpu": control("none"), "observedGeneration": generation}
        found = row(of=twin(spec=cap, controlStatus=control_status))
        assert (found.cpu_cap, found.cpu_control, found.gpu_control) == ("70%", "no report", None)
        assert found.notes == ("CPU cap not confirmed: the agent has not reported about this cap",)
        assert summary([found])["controlProblems"] == ["n1"]
    assert row(of=twin(spec=cap)).cpu_control == "no report", "no agent has ever reported"
    assert row(of=twin(spec=cap, controlStatus={"cpu": control("applied")})).cpu_control == "rapl:applied"
    assert row(of=twin()).cpu_control is None, "nothing was asked for"


def test_r5_a_missing_agent_is_visible() -> None:
    def agent(on: str, component: str = "agent", phase: str = "Running") -> Pod:
        labels = {"app.kubernetes.io/part-of": "joulie", "app.kubernetes.io/component": component}
        return msgspec.structs.replace(
            pod("joulie-agent", on, phase),
            metadata=msgspec.structs.replace(pod("joulie-agent").metadata, labels=labels),
        )

    def agents(*pods: Pod) -> frozenset[str] | None:
        return agent_nodes(map(agent_of, pods))

    assert agents(pod("other")) is None, "agents may run without pods"
    assert agents(agent("n1"), agent("n2", "agent-pool")) is None, "a pool serves nodes of others"
    assert agents(agent("n1", "agent-nvidia"), agent("n2", phase="Pending")) == {"n1"}
    nodes = [node(name) for name in ("n1", "n2", "n3")]
    rows = node_rows(nodes, [twin("n1"), twin("n2")], [], NOW_S, agents=frozenset({"n1"}))
    assert [any("no agent runs" in note for note in one.notes) for one in rows] == [False, True, False]
    assert summary(rows)["withoutAgent"] == ["n2"]
    assert "no agent runs on 1 node: n2" in summary_lines(summary(rows))


def test_what_would_be_done_in_observe_mode() -> None:
    planned = {"profile": "eco", "cpu": {"packagePowerCapPctOfMax": 60}, "gpu": {"powerCap": {"capPctOfMax": 60}}}
    assert row(of=twin(planned={**planned, "draining": True})).planned == "eco 60% (drain first)"
    assert row(of=twin(planned={**planned, "gpu": {"powerCap": {"capWattsPerGpu": 300}}})).planned == "eco 60%/300W"
    found = row(of=twin(planned={"profile": "performance"}))
    assert (found.planned, row(of=twin()).planned) == ("performance", None)
    assert summary([found])["observed"] == ["n1"]
    assert "observe mode, nothing applied, on 1 node" in summary_lines(summary([found]))


def test_how_a_node_would_sleep() -> None:
    sleep = {"state": "asleep", "since": rfc3339(NOW_S - 60.0), "reason": "empty and cordoned"}
    found = row(of=twin(planned={"sleep": sleep}))
    assert (found.planned, found.planned_sleep) == (None, "asleep")
    assert "would be asleep: empty and cordoned" in found.notes
    assert COLUMNS["planned"].text(row(of=twin(planned={"profile": "eco", "sleep": sleep}))) == "eco, asleep"
    facts = summary([found])
    assert (facts["plannedSleep"], facts["observed"], facts["sleep"]) == ({"asleep": 1}, [], {}), "its caps are applied"
    assert "would be closed to pods so that they can sleep: 1 asleep" in summary_lines(facts)


@pytest.mark.parametrize(
    ("mark", "shown", "why"),
    [
        ("", "-", None),
        (f"emptying since {NOW_S - 60:.0f}", "emptying 60s", "its pods are moved"),
        (f"cordoned since {NOW_S - 60:.0f}", "cordoned 60s", "sleeps soon"),
        (f"asleep since {NOW_S - 7200:.0f} boot 1-2", "asleep 2h", "until a pod needs it"),
        (f"waking since {NOW_S - 60:.0f} attempt 2", "waking 60s", "told 2 times"),
        (f"failed since {NOW_S - 60:.0f}", "failed 60s", "did not wake"),
        ("nonsense", "waking 0s", "not ready yet"),
    ],
)
def test_whether_a_node_sleeps_and_why_it_is_closed(mark: str, shown: str, why: str | None) -> None:
    bare = node()
    metadata = msgspec.structs.replace(bare.metadata, annotations={"joulie.io/sleep-state": mark} if mark else {})
    (found,) = node_rows([msgspec.structs.replace(bare, metadata=metadata)], [twin()], [], NOW_S)
    assert COLUMNS["sleep"].text(found) == shown
    assert [why in note for note in found.notes] == ([] if why is None else [True])
    state = shown.partition(" ")[0]
    assert summary([found])["sleep"] == ({} if why is None else {state: 1})
    lines = summary_lines(summary([found]))
    assert lines[1:] == ([] if why is None else [f"closed to pods so that they can sleep: 1 {state}"])


def test_twins_are_found_by_the_node_that_they_name() -> None:
    """An object's name may differ from its node's."""
    other = msgspec.structs.replace(
        twin("Node_1", schedulableClass="eco"), metadata=msgspec.structs.replace(twin().metadata, name="node-1-abc")
    )
    (found,) = node_rows([node("Node_1")], [other], [], NOW_S)
    assert found.schedulable_class == "eco"


# ---- order


def test_what_deserves_attention_comes_first_and_the_unknown_last() -> None:
    rows = rows_of("a", "b", "c", a=80.0, c=5.0)
    assert [one.name for one in sorted_rows(rows, COLUMNS["headroom"])] == ["c", "a", "b"]
    assert [one.name for one in sorted_rows(rows, COLUMNS["age"])] == ["a", "c", "b"]
    assert [one.name for one in sorted_rows(rows, COLUMNS["name"], reverse=True)] == ["c", "b", "a"]


@pytest.mark.parametrize("column", COLUMNS)
def test_every_column_sorts_what_is_known_and_what_is_not(column: str) -> None:
    full = row(
        of=twin(
            spec={"cpu": {"packagePowerCapPctOfMax": 60}, "gpu": {"powerCap": {"capWattsPerGpu": 300}}},
            schedulableClass="eco",
            predictedPowerHeadroomScore=1,
            predictedCoolingStressScore=1,
            predictedPsuStressScore=1,
            estimatedPUE=1.1,
            planned={"profile": "eco"},
            powerMeasurement={
                "source": "rapl",
                "measuredNodePowerW": 3,
                "nodeCappedPowerW": 4,
                "powerTrendWPerMin": 1,
            },
            controlStatus={"cpu": control("applied"), "gpu": control("applied")},
        ),
        **{"joulie.io/rack": "r1", "joulie.io/cooling-zone": "z1"},
    )
    full = replace(full, sleep="asleep", sleep_s=60.0)
    bare = msgspec.structs.replace(node("n0"), status=msgspec.structs.replace(node().status, allocatable={}))
    (empty,) = node_rows([bare], [], [], NOW_S)
    in_order = sorted_rows([empty, full], COLUMNS[column])
    assert in_order == ([empty, full] if column in {"name", "pods"} else [full, empty])


# ---- summary


def test_summary() -> None:
    rows = node_rows(
        [node("a"), node("b"), node("c"), node("d")],
        [
            twin(
                "a",
                schedulableClass="performance",
                predictedPowerHeadroomScore=80,
                predictedCoolingStressScore=10,
                powerMeasurement={"measuredNodePowerW": 1500},
                controlStatus={"cpu": control("error"), "gpu": control("none")},
            ),
            twin(
                "b",
                schedulableClass="eco",
                predictedPowerHeadroomScore=20,
                predictedCoolingStressScore=70,
                powerMeasurement={"measuredNodePowerW": 900},
                age_s=301.0,
            ),
            twin("c", schedulableClass="draining"),
        ],
        map(bound_pod, [pod("p", on="a", cpu="1")]),
        NOW_S,
    )
    assert summary_lines(summary(rows)) == [
        "4 nodes (1 performance, 1 eco, 1 draining, 1 unknown), 1 pod",
        "2.4 kW measured on 2 nodes, mean headroom 50, highest cooling stress 70",
        "caps not in force on 1 node: a",
        "data older than 5 min on 1 node: b",
    ]
    assert document(rows)["summary"]["classes"]["draining"] == 1
    assert document(rows)["nodes"][1]["name"] == "b"


def test_summary_of_nothing() -> None:
    assert summary_lines(summary([])) == ["0 nodes, 0 pods"]


def test_summary_names_some_of_many() -> None:
    names = [f"n{number}" for number in range(9)]
    facts = summary(rows_of(*names)) | {"controlProblems": names}
    assert summary_lines(facts)[-1] == "caps not in force on 9 nodes: n0, n1, n2, n3, n4 and 4 more"


# ---- tables

HEADINGS = [
    Heading("NODE", min_width=8),
    Heading("W", right=True),
    Heading("CPU%", right=True, rank=1),
    Heading("PODS", right=True, rank=2),
]
ROWS = [
    [Cell("ip-10-0-0-17.internal"), Cell("1200"), Cell("5"), Cell("3")],
    [Cell("b"), Cell("7"), Cell("80"), Cell("12")],
]


def lines(width: int) -> list[str]:
    return [line.plain for line in table(HEADINGS, ROWS, width)]


def test_a_table_that_fits_is_whole() -> None:
    assert lines(40) == [
        "NODE                      W  CPU%  PODS",
        "ip-10-0-0-17.internal  1200     5     3",
        "b                         7    80    12",
    ]


def test_names_are_shortened_before_columns_go() -> None:
    assert lines(30) == [
        "NODE             W  CPU%  PODS",
        "ip-10-…ernal  1200     5     3",
        "b                7    80    12",
    ]


def test_what_matters_least_goes_first_and_that_is_said() -> None:
    assert lines(20) == [
        "NODE         W  CPU%",
        "ip-1…nal  1200     5",
        "b            7    80",
        "not shown in 20 columns: PODS",
    ]
    assert lines(14)[-1] == "not shown in 14 columns: CPU%, PODS"


def test_a_terminal_that_is_too_narrow_gets_what_must_be_shown() -> None:
    assert lines(9)[1] == "ip-10-0-0-17.internal  1200"


def test_notes_lose_their_end() -> None:
    note = [Heading("N"), Heading("NOTE", min_width=4, truncate_end=True)]
    assert [line.plain for line in table(note, [[Cell("a"), Cell("no power source")]], 10)][1] == "a  no pow…"


def test_no_rows() -> None:
    assert [line.plain for line in table(HEADINGS, [], 80)] == ["NODE  W  CPU%  PODS"]
