"""`kubectl joulie` against the fake cluster and a real extender: what people and programs read, and how it fails."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from rich.console import Group

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.resources import EVENTS, NODE_TWINS, NODES, PODS
from joulie.apps.extender.main import serve
from joulie.apps.extender.settings import ExtenderSettings
from joulie.apps.kubectl import main as plugin
from joulie.apps.kubectl import status
from joulie.apps.kubectl.status import View, watch_status
from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie_lab.adapters.crd import custom_resource_definitions
from joulie_lab.control_plane.ports import free_port
from joulie_lab.fakes.kubernetes import FakeCluster

pytestmark = pytest.mark.slow  # whole programs on the fake cluster

CLASSES = {"busy": "performance", "calm": "performance", "frugal": "eco", "leaving": "draining"}
HEADROOM = {"busy": 20.0, "calm": 90.0, "frugal": 60.0, "leaving": 70.0}
UNSCHEDULABLE = "0/2 nodes are available: 2 node(s) run under eco power caps."


@dataclass
class Ended:
    """How a command ended."""

    status: int
    out: str
    err: str


class Stage:
    """A fake cluster with nodes, twins and an extender."""

    def __init__(
        self,
        cluster: FakeCluster,
        client: KubeClient,
        kubeconfig: Path,
        extender_url: str,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        self._cluster = cluster
        self.client = client
        self.kubeconfig = kubeconfig
        self.extender_url = extender_url
        self._capsys = capsys

    async def joulie(self, *arguments: str, extender: bool = True) -> Ended:
        """Run the plugin in a thread of its own, as its process would."""
        where = ["--kubeconfig", str(self.kubeconfig)]
        if arguments[0] == "explain" and extender:
            where += ["--extender-url", self.extender_url]
        self._capsys.readouterr()
        status = await asyncio.to_thread(_status_of, [*arguments, *where])
        captured = self._capsys.readouterr()
        return Ended(status, captured.out, captured.err)

    def refuse(self, path: str) -> None:
        """Requests of this path are forbidden from now on."""
        self._cluster.fail_next(9, 403, path=path)

    async def add_node(self, name: str, schedulable_class: str, headroom: float) -> None:
        allocatable = {"cpu": "64", "memory": "256Gi"}
        labels = {names.HW_CPU_MODEL_LABEL: "AMD-EPYC-9654", names.HW_CPU_SOCKETS_LABEL: "1"}
        node = {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": allocatable}}
        await self.client.create(NODES, node)
        profile = "eco" if schedulable_class == "eco" else "performance"
        spec = {
            "nodeName": name,
            "profile": profile,
            "cpu": {"packagePowerCapPctOfMax": 60 if profile == "eco" else 100},
        }
        capped_w = 216.0 if profile == "eco" else 360.0
        status = {
            "schedulableClass": schedulable_class,
            "predictedPowerHeadroomScore": headroom,
            "predictedCoolingStressScore": 25,
            "lastUpdated": self._cluster.api.timestamp(),
            "effectiveCapState": {"cpuPct": 100, "gpuPct": 100},
            "powerMeasurement": {
                "source": "http",
                "measuredNodePowerW": capped_w * (1 - headroom / 100),
                "nodeCappedPowerW": capped_w,
                "cpuCappedPowerW": capped_w,
                "nodeTdpW": 360,
                "cpuTdpW": 360,
                "powerTrendWPerMin": 0,
            },
        }
        manager = names.OPERATOR_FIELD_MANAGER
        await self.client.apply(NODE_TWINS, name, {"spec": spec}, field_manager=manager)
        await self.client.apply(NODE_TWINS, name, {"status": status}, field_manager=manager, subresource="status")

    async def add_pod(
        self,
        name: str,
        *,
        workload_class: str = "standard",
        status: Any = None,
        namespace: str = "default",
        **spec: Any,
    ) -> None:
        container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "8", "memory": "16Gi"}}}
        metadata = {"name": name, "annotations": {names.WORKLOAD_CLASS_ANNOTATION: workload_class}}
        await self.client.create(PODS, {"metadata": metadata, "spec": {"containers": [container], **spec}}, namespace)
        if status is not None:
            await self.client.patch(PODS, name, {"status": status}, namespace=namespace, subresource="status")


def _status_of(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as ended:
        plugin.main(arguments)
    return int(ended.value.code or 0)


async def _until_ready(url: str, nodes: int) -> None:
    async with httpx2.AsyncClient(trust_env=False, base_url=url) as http:
        while True:
            try:
                ready = (await http.get("/readyz")).status_code == 200
                if ready and len((await http.get("/debug/scoring")).json()["nodes"]) == nodes:
                    return
            except httpx2.ConnectError:
                pass
            await asyncio.sleep(0.01)


@pytest.fixture
def on_stage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[[Callable[[Stage], Awaitable[None]]], None]:
    """Plays a scenario on a cluster of four nodes with an extender."""

    def play(scenario: Callable[[Stage], Awaitable[None]]) -> None:
        async def main() -> None:
            async with FakeCluster(custom_resource_definitions()) as cluster:
                kubeconfig = cluster.kubeconfig(tmp_path / "kubeconfig")
                metrics = f"127.0.0.1:{free_port()}"
                settings = ExtenderSettings(
                    kubeconfig=kubeconfig, port=free_port(), metrics_addr=metrics, shutdown_delay_s=0.0
                )
                async with KubeClient.connect(kubeconfig=kubeconfig) as client, asyncio.timeout(60.0):
                    stage = Stage(cluster, client, kubeconfig, f"http://{metrics}", capsys)
                    for name, schedulable_class in CLASSES.items():
                        await stage.add_node(name, schedulable_class, HEADROOM[name])
                    stop = asyncio.Event()
                    extender = asyncio.create_task(serve(settings, BUILTIN_CATALOGUE, stop))
                    await _until_ready(stage.extender_url, len(CLASSES))
                    await scenario(stage)
                    stop.set()
                    await extender

        asyncio.run(main())

    return play


OnStage = Callable[[Callable[[Stage], Awaitable[None]]], None]


# ---- status


def test_status(on_stage: OnStage) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.add_pod("p", nodeName="busy", status={"phase": "Running"})
        ended = await stage.joulie("status", "--sort-by", "headroom")
        assert (ended.status, ended.err) == (0, "")
        lines = ended.out.splitlines()
        assert lines[0] == "4 nodes (2 performance, 1 eco, 1 draining), 1 pod"
        assert lines[2] == "caps not in force on 1 node: frugal", "no agent has reported"
        assert " ".join(lines[4].split()) == (
            "NODE CLASS HEADROOM COOLING CPU% MEM% GPU% PODS CPU-CAP GPU-CAP POWER SOURCE AGE"
        )
        assert [line.split()[0] for line in lines[5:]] == ["busy", "frugal", "leaving", "calm"]
        assert " ".join(lines[5].split()[:-1]) == "busy performance 20 25 12 6 - 1 100% - 288W http"

    on_stage(scenario)


def test_status_for_programs(on_stage: OnStage) -> None:
    async def scenario(stage: Stage) -> None:
        told = json.loads((await stage.joulie("status", "-o", "json")).out)
        assert [row["name"] for row in told["nodes"]] == sorted(CLASSES)
        assert told["summary"]["classes"] == {"performance": 2, "eco": 1, "draining": 1, "unknown": 0}
        again = yaml.safe_load((await stage.joulie("status", "-o", "yaml")).out)
        for document in (told, again):
            for row in document["nodes"]:
                del row["age_s"]
        assert told == again
        wide = (await stage.joulie("status", "-o", "wide")).out
        assert "CPU-CONTROL" in wide
        assert "not shown" not in wide

    on_stage(scenario)


def test_the_sleep_of_nodes_is_shown_where_there_is_any(on_stage: OnStage) -> None:
    async def scenario(stage: Stage) -> None:
        assert "SLEEP" not in (await stage.joulie("status")).out
        mark = {names.SLEEP_STATE_ANNOTATION: "asleep since 1750000000"}
        await stage.client.patch(NODES, "calm", {"metadata": {"annotations": mark}})
        assert "SLEEP" in (await stage.joulie("status")).out
        assert "calm: asleep until a pod needs it" in (await stage.joulie("status", "-o", "wide")).out

    on_stage(scenario)


def test_status_of_selected_nodes(on_stage: OnStage) -> None:
    async def scenario(stage: Stage) -> None:
        assert (await stage.joulie("status", "-l", "tier=gold")).out == "0 nodes, 0 pods\n"
        assert (await stage.joulie("status", "-l", names.HW_CPU_SOCKETS_LABEL + "=1")).out.startswith("4 nodes")

    on_stage(scenario)


class Screen:
    """Stands for the terminal that rich keeps up to date."""

    pages: list[str]

    def __init__(self, **_options: Any) -> None:
        pass

    def __enter__(self) -> "Screen":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, page: Group, *, refresh: bool) -> None:
        assert refresh
        self.pages.append("\n".join(str(line) for line in page.renderables))


def test_watching_follows_the_cluster(on_stage: OnStage, monkeypatch: pytest.MonkeyPatch) -> None:
    pages: list[str] = []
    monkeypatch.setattr(Screen, "pages", pages, raising=False)
    monkeypatch.setattr(status, "Live", Screen)
    monkeypatch.setattr(status, "_REFRESH_S", 0.01)

    async def scenario(stage: Stage) -> None:
        watching = asyncio.create_task(watch_status(stage.client, View("", "table", "name", reverse=False)))
        while not pages:
            await asyncio.sleep(0.01)
        assert pages[0].startswith("4 nodes (2 performance, 1 eco, 1 draining), 0 pods")
        body = {"status": {"schedulableClass": "eco"}}
        await stage.client.patch(NODE_TWINS, "leaving", body, subresource="status")
        while not pages[-1].startswith("4 nodes (2 performance, 2 eco), 0 pods"):
            await asyncio.sleep(0.01)
        watching.cancel()
        await asyncio.wait([watching])

    on_stage(scenario)


def test_watching_what_may_not_be_read_fails_at_once(on_stage: OnStage) -> None:
    async def scenario(stage: Stage) -> None:
        stage.refuse("/nodetwins")
        ended = await stage.joulie("status", "-W")
        (line,) = ended.err.splitlines()
        assert ended.status == 1
        assert line.startswith("Error: list nodetwins.joulie.io: 403")

    on_stage(scenario)


# ---- explain


def test_a_running_pod(on_stage: OnStage) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.add_pod("web", nodeName="busy", status={"phase": "Running"})
        ended = await stage.joulie("explain", "pod", "web", "--top", "1")
        assert (ended.status, ended.err) == (0, "")
        lines = ended.out.splitlines()
        assert lines[:3] == [
            "default/web: standard pod that requests 8 CPU, 16 GiB",
            "It is running on busy; the scores are those of a placement now.",
            "4 of 4 nodes are allowed for its class.",
        ]
        # The best node, and the pod's own however it fares.
        assert [line.split()[0] for line in lines[5:-1]] == ["NODE", "calm", "busy"]
        assert lines[-1] == "and 2 more (--top)"

    on_stage(scenario)


def test_a_performance_pod_without_a_performance_node(on_stage: OnStage) -> None:
    async def scenario(stage: Stage) -> None:
        for name in ("busy", "calm"):
            status = {"schedulableClass": "eco"}
            await stage.client.patch(NODE_TWINS, name, {"status": status}, subresource="status")
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": UNSCHEDULABLE}
        status = {"phase": "Pending", "conditions": [condition]}
        await stage.add_pod("critical", workload_class="performance", status=status)

        async def refused() -> list[str]:
            return (await stage.joulie("explain", "pod", "critical")).out.splitlines()

        while (lines := await refused())[2] != "0 of 4 nodes are allowed for its class.":
            await asyncio.sleep(0.01)
        assert lines[0] == "default/critical: performance pod that requests 8 CPU, 16 GiB"
        assert lines[1] == f"It waits (Unschedulable): {UNSCHEDULABLE}"
        refusals = [set(line.rpartition(": ")[2].split(", ")) for line in lines[3:5]]
        assert sorted(refusals, key=len) == [{"leaving"}, {"busy", "calm", "frugal"}]
        assert len(lines) == 6

    on_stage(scenario)


def test_a_pod_that_waits_for_a_node_that_sleeps(on_stage: OnStage) -> None:
    async def scenario(stage: Stage) -> None:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room."}
        await stage.add_pod("large", status={"phase": "Pending", "conditions": [condition]})
        about = {"kind": "Pod", "name": "large", "namespace": "default"}
        said = (("a", "18:05", "calm is waking"), ("b", "18:04", "calm is being woken for it"))
        for name, at, message in said:
            event = {"metadata": {"name": name}, "involvedObject": about, "reason": "WaitsForNode", "message": message}
            await stage.client.create(EVENTS, {**event, "lastTimestamp": f"2026-11-27T{at}:00Z"}, "default")
        lines = (await stage.joulie("explain", "pod", "large")).out.splitlines()
        assert lines[1] == "It waits (Unschedulable): no room; calm is waking (2026-11-27T18:05:00Z)."

    on_stage(scenario)


def test_a_gated_pod(on_stage: OnStage) -> None:
    async def scenario(stage: Stage) -> None:
        gates = [{"name": "joulie.io/carbon"}]
        await stage.add_pod("green", workload_class="gold", schedulingGates=gates)
        lines = (await stage.joulie("explain", "pod", "green")).out.splitlines()
        assert "invalid value 'gold': must be performance or standard" in lines[1]
        assert lines[2] == "It waits for its scheduling gates: joulie.io/carbon."

    on_stage(scenario)


def test_the_explanation_for_programs(on_stage: OnStage) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.add_pod("web")
        told = json.loads((await stage.joulie("explain", "pod", "web", "-o", "json")).out)
        assert told["state"] == {
            "phase": "Pending",
            "node": None,
            "gates": [],
            "reason": None,
            "message": None,
            "lastEvent": None,
            "waitsForNode": None,
        }
        best = told["nodes"][0]
        assert best["node"] == "calm"
        terms = ("headroomPoints", "coolingPoints", "trendPoints", "congestionPoints", "cappedPoints")
        assert best["score"] == pytest.approx(sum(best[term] for term in terms))
        again = yaml.safe_load((await stage.joulie("explain", "pod", "web", "-o", "yaml")).out)
        assert again["pod"] == told["pod"]
        assert "MARGINAL" in (await stage.joulie("explain", "pod", "web", "-o", "wide")).out

    on_stage(scenario)


def test_the_namespace_is_the_contexts_unless_it_is_given(on_stage: OnStage) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.add_pod("web", namespace="default")
        context = stage.kubeconfig.read_text().replace("namespace: default", "namespace: other")
        stage.kubeconfig.write_text(context)
        ended = await stage.joulie("explain", "pod", "web")
        assert ended.err.startswith("Error: get pods web in namespace other: 404")
        assert (await stage.joulie("explain", "pod", "web", "-n", "default")).status == 0

    on_stage(scenario)


# ---- failures: one line each, and the right status


def test_an_unknown_pod(on_stage: OnStage) -> None:
    async def scenario(stage: Stage) -> None:
        ended = await stage.joulie("explain", "pod", "nope")
        assert (ended.status, ended.out) == (1, "")
        assert ended.err == 'Error: get pods nope in namespace default: 404 NotFound: pods "nope" not found\n'

    on_stage(scenario)


def test_without_an_extender_the_state_is_told_all_the_same(on_stage: OnStage) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.add_pod("web", nodeName="busy", status={"phase": "Running"})
        refused = f"http://127.0.0.1:{free_port()}"
        for where in (["--extender-url", refused], []):
            ended = await stage.joulie("explain", "pod", "web", *where, extender=False)
            (line,) = ended.err.splitlines()
            assert (ended.status, ended.out) == (1, "")
            assert line.startswith(
                "Error: default/web is running on busy; no scores: the extender does not respond"
                " (see --extender-service and --extender-url): "
            )

    on_stage(scenario)


@pytest.mark.parametrize("refused", ["/proxy/debug/explain", "/pods/web", "/events"])
def test_who_may_not_ask_for_scores_is_told_what_the_aggregated_api_says(
    on_stage: OnStage, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    pod = {
        "namespace": "default", "name": "web", "workload": "Pod/web", "state": "limited", "node": "busy", "since": 0.0,
        "why": "its GPU is limited to 450 W", "latestStart": 1.8e9, "slowdown": 1.034, "savedPct": 12.34,
    }  # fmt: skip
    shown = [pod]
    asked: list[tuple[str, Mapping[str, str]]] = []

    async def served(_client: object, path: str, query: Mapping[str, str]) -> bytes:
        asked.append((path, query))
        answer = {"at": 0.0, "problems": [], "namespaces": [], "counts": {}, "pods": shown, "budgets": []}
        return json.dumps(answer).encode()

    async def scenario(stage: Stage) -> None:
        await stage.add_pod("web", nodeName="busy", status={"phase": "Running"})
        stage.refuse(refused)
        ended = await stage.joulie("explain", "pod", "web", extender=False)
        assert (ended.status, ended.out) == (1, ""), "as before without the aggregated API"
        monkeypatch.setattr("joulie.apps.kubectl.explain.query_aggregated", served)
        ended = await stage.joulie("explain", "pod", "web", extender=False)
        lines = ended.out.splitlines()
        assert (ended.status, ended.err) == (0, "")
        assert lines[:3] == [
            "default/web is limited on busy: its GPU is limited to 450 W",
            "  starts at the latest at 2027-01-15T08:00:00Z",
            "  its limit makes it 1.03 times as long and saves 12.3 % of its energy",
        ]
        assert lines[3].startswith("  scores are not shown: ")
        assert asked[-1] == ("/api/v1/pods", {"namespace": "default", "name": "web"})
        told = json.loads((await stage.joulie("explain", "pod", "web", "-o", "json", extender=False)).out)
        assert (told["pod"]["why"], "not shown" in told["missing"]) == (pod["why"], True)
        shown.clear()
        ended = await stage.joulie("explain", "pod", "web", extender=False)
        assert (ended.status, ended.out) == (1, ""), "a pod that may not be seen is none"

    on_stage(scenario)


def test_an_extender_that_answers_with_an_error(on_stage: OnStage) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.add_pod("web")
        elsewhere = f"{stage.extender_url}/no-such-path"
        ended = await stage.joulie("explain", "pod", "web", "--extender-url", elsewhere, extender=False)
        assert ended.status == 1
        assert f"{elsewhere}/debug/explain: 404" in ended.err

    on_stage(scenario)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["stat"], "No such command 'stat'. Did you mean 'status'? (see kubectl joulie --help)"),
        (["status", "-o", "xml"], "'xml' is not one of 'table', 'wide', 'json', 'yaml'"),
        (["status", "-W", "-o", "json"], "-W requires -o table or wide (see kubectl joulie status --help)"),
        (["explain", "pod"], "Missing argument 'NAME' (see kubectl joulie explain pod --help)"),
        (["status", "--kubeconfig", "/no/such/file"], "'/no/such/file' does not exist"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _status_of(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("Error: ")
    assert message in line


@pytest.mark.parametrize(
    ("service", "path"),
    [
        ("ns/joulie-extender:extender", "/api/v1/namespaces/ns/services/joulie-extender:extender/proxy/debug/explain"),
        ("ns/https:ext:9876", "/api/v1/namespaces/ns/services/https:ext:9876/proxy/debug/explain"),
    ],
)
def test_the_way_through_the_api_server(on_stage: OnStage, service: str, path: str) -> None:
    """The fake cluster has no proxy; the error names the path that was asked for."""

    async def scenario(stage: Stage) -> None:
        await stage.add_pod("web")
        ended = await stage.joulie("explain", "pod", "web", "--extender-service", service, extender=False)
        assert f"post {path}: 404" in ended.err

    on_stage(scenario)


@pytest.mark.parametrize("service", ["joulie-extender:9876", "ns/joulie-extender", "ns/a/b:1", "/x:1"])
def test_a_service_that_is_none(on_stage: OnStage, service: str) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.add_pod("web")
        ended = await stage.joulie("explain", "pod", "web", "--extender-service", service, extender=False)
        assert ended.status == 2
        assert f"invalid --extender-service {service!r}: expected namespace/service:port" in ended.err

    on_stage(scenario)


def test_a_cluster_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{free_port()}"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [cluster],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [context],
        "current-context": "c",
    }
    kubeconfig.write_text(yaml.safe_dump(content))
    assert _status_of(["status", "--kubeconfig", str(kubeconfig)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("Error: ")


def test_the_help_says_of_each_command_what_its_own_help_says() -> None:
    commands = {one.path: one for one in plugin._COMMANDS}
    assert {path: one.help for path, one in commands.items()} == {
        path: one.load().get_short_help_str(200) for path, one in commands.items()
    }


# ---- completion


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["st"], ["status\tShow the energy state of the nodes."]),
        (["status", "--sort-by", "cpu"], ["cpu", "cpu-cap", "cpu-control"]),
        (["explain", "p"], ["pod\tExplain the placement of the pod NAME."]),
    ],
)
def test_completion(
    words: list[str], offered: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["kubectl_complete-joulie", *words])
    plugin.complete()
    assert capsys.readouterr().out.splitlines() == [*offered, ":4"]
