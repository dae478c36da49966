"""What a reader who may see some namespaces finds in answers and pages: nothing of the others."""

import asyncio
import io
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode

import httpx2
from hypothesis import given, settings
from hypothesis import strategies as st
from pypdf import PdfReader

from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.program_api.energy import SAVINGS_PATH, EnergyAnswer, EnergyItem, SavingsAnswer, SavingsItem
from joulie.adapters.program_api.report import REPORT_PATH, report_answer
from joulie.apps.kubectl.accounting import AccountingEndpoint
from joulie.apps.kubectl.leader import LeaderEndpoint
from joulie.apps.kubectl.web.api import WebApi
from joulie.apps.kubectl.web.programs import Programs
from joulie.apps.kubectl.web.server import application
from joulie.apps.kubectl.web.watching import Cluster, ClusterView
from joulie.domain.accounting.inventory import Inventory
from joulie.domain.accounting.journal import Month
from joulie.domain.accounting.records import Energy
from joulie.domain.accounting.sci import MonthRecords, WorkloadKey, report
from joulie.program.http import Server, json_body, respond
from joulie_lab.fakes.kubernetes import FakeCluster
from support.web_reviews import CLUSTER_WIDE, NAMESPACED, NOWHERE, Reviews, tenant, web_stage
from support.web_stage import fill, node, twin, watch

OURS = "team-0"
SECRET = "elsewhere"
MARK = "classified"
"""Part of the names of all that is in the other namespace; no request contains it."""
KINDS = (*CLUSTER_WIDE, *NAMESPACED, "energy", "leases")
PATHS = (
    "/plans", "/api/v1/plans", "/", "/nodes/node-0000", "/health", "/pods", f"/energy?namespace={OURS}", "/energy",
    "/api/v1/fleet", "/api/v1/nodes/node-0000", "/api/v1/health", "/api/v1/pods",
    f"/api/v1/energy?namespace={OURS}", "/api/v1/energy",
    f"/api/v1/report?namespace={OURS}", "/api/v1/report", f"/api/v1/savings?namespace={OURS}", "/api/v1/savings",
    f"/api/v1/pods?namespace={SECRET}", f"/api/v1/energy?namespace={SECRET}", f"/api/v1/energy?node={SECRET}",
)  # fmt: skip


@st.composite
def objects(draw: st.DrawFn) -> list[tuple[str, dict[str, Any]]]:
    """Pods, twins that name them, profiles and budgets, of our namespace and of one that nobody should see."""
    found: list[tuple[str, dict[str, Any]]] = []
    holders = []
    for number in range(draw(st.integers(1, 6))):
        namespace = draw(st.sampled_from([OURS, SECRET]))
        name = f"{MARK if namespace == SECRET else 'own'}-pod-{number}"
        waits = draw(st.booleans())
        gates = draw(st.lists(st.sampled_from(["joulie.io/grid", "joulie.io/budget", "other/gate"]), unique=True))
        spec = {"containers": [{"name": "main", "image": "none", "resources": {"requests": {"nvidia.com/gpu": "1"}}}]}
        spec |= {"schedulingGates": [{"name": gate} for gate in gates]} if waits else {"nodeName": "node-0000"}
        found.append(("pods", {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}, "spec": spec,
            "status": {"phase": "Pending" if waits else "Running"},
        }))  # fmt: skip
        holders.append({"name": name, "namespace": namespace})
    holder = draw(st.sampled_from(holders))
    limited = draw(st.booleans())
    condition = {
        "type": draw(st.sampled_from(["Draining", "CapsInForce"])), "status": draw(st.sampled_from(["True", "False"])),
        "reason": "BlockingPods", "message": f"{holder['namespace']}/{holder['name']} needs full power",
        "lastTransitionTime": "2026-03-01T00:00:00Z",
    }  # fmt: skip
    control = {"backend": "rapl", "result": draw(st.sampled_from(["applied", "blocked", "error", "unconfirmed"])),
               "message": f"held by {holder['namespace']}/{holder['name']}"}  # fmt: skip
    held = twin(2, "2026-03-01T00:00:00Z")
    held["metadata"]["name"] = held["spec"]["nodeName"] = "node-0000"
    held["spec"]["gpuLimits"] = [{"id": "GPU-2", "watts": 500.0, "pod": holder}] if limited else []
    held["status"]["controlStatus"]["gpus"][0]["pods"] = [holder]
    held["status"]["controlStatus"]["cpu"] = control
    held["status"]["conditions"] = [condition]
    if draw(st.booleans()):
        del held["status"]["predictedPowerHeadroomScore"]
    recommended = {
        "workloadRef": {"kind": "Job", "name": holder["name"], "namespace": holder["namespace"]},
        "reason": "x",
    }
    held["status"]["rescheduleRecommendations"] = [recommended] if draw(st.booleans()) else []
    found += [("nodes", node(0)), ("nodetwins", held)]
    for namespace in draw(st.sets(st.sampled_from([OURS, SECRET]))):
        found.append(("energybudgets", {
            "apiVersion": "joulie.io/v1alpha1", "kind": "EnergyBudget",
            "metadata": {"name": f"{MARK if namespace == SECRET else 'own'}-budget", "namespace": namespace},
            "spec": {"limits": {"energyKWh": 1.0}, "period": "day"},
        }))  # fmt: skip
    return found


async def all_that_is_shown(tmp_path: Any, found: list[tuple[str, dict[str, Any]]]) -> dict[str, bytes]:
    """Answers and pages of `kubectl joulie web` for a user who may list one namespace."""
    async with FakeCluster() as fake:
        fill(fake, found)
        # The API server refuses lists of all namespaces to this reader.
        for plural in ("pods", "workloadprofiles", "energybudgets"):
            group = "/api/v1" if plural == "pods" else "/apis/joulie.io/v1alpha1"
            fake.fail_next(1, 403, path=f"{group}/{plural}")
        async with KubeClient.connect(kubeconfig=fake.kubeconfig(tmp_path / "kubeconfig")) as client:
            cluster = Cluster(client, OURS)
            view = ClusterView(cluster, await cluster.find_scopes())
            assert view.visible == {OURS}
            leader = LeaderEndpoint("joulie-system", 1, NOWHERE)
            accounting = AccountingEndpoint("joulie-system", 1, NOWHERE, verify=False)
            api = WebApi(view, Programs(client, leader, leader, accounting))

            async def api_of(_request: object) -> WebApi:
                return api

            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(watch(cluster))
                while not cluster.synced:
                    await asyncio.sleep(0.005)
                transport = httpx2.ASGITransport(app=application(api_of))
                async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
                    shown = {path: (await http.get(path)).content for path in PATHS}
                watching.cancel()
    return shown


def names_of(found: list[tuple[str, dict[str, Any]]]) -> list[str]:
    return [body["metadata"]["name"] for plural, body in found if plural == "pods" and SECRET not in str(body)]


@settings(max_examples=12, deadline=None)
@given(found=objects())
def test_a_tenant_sees_nothing_of_another_namespace(tmp_path_factory: Any, found: Any) -> None:
    answers = asyncio.run(all_that_is_shown(tmp_path_factory.mktemp("web"), found))
    check_nothing_foreign(answers)
    assert all(name.encode() in answers["/api/v1/pods"] for name in names_of(found))


texts = st.one_of(
    st.sampled_from(["", OURS, SECRET, "*", "__idle__", "0", "9", "pdf", "2026-03"]), st.text(max_size=12)
)


@st.composite
def requests(draw: st.DrawFn) -> str:
    """A path of the program with any query, which may name what the reader must not see."""
    path = draw(st.sampled_from(PATHS)).partition("?")[0]
    keys = ("namespace", "node", "by", "step", "since", "state", "limit", "continue", "q", "colour", "group", "days",
            "format", "month")  # fmt: skip
    pairs = draw(st.lists(st.tuples(st.sampled_from(keys), texts), max_size=4))
    return f"{path}?{urlencode(pairs)}" if pairs else path


async def energy(scope: Any, _receive: Any, send: Any) -> None:
    """An accounting program that tells everything to this program, as its rights allow."""
    query = parse_qs(scope["query_string"].decode())
    namespaces = query.get("namespace") or [OURS, SECRET]
    if scope["path"] == REPORT_PATH:
        lines = {(WorkloadKey(one, "Job", one), "DE"): Energy(energy_j=1.0) for one in namespaces}
        records = MonthRecords(Month(2026, 3), 0.0, False, lines)
        await respond(send, 200, json_body(report_answer(report(records, Inventory()))))
        return
    if scope["path"] == SAVINGS_PATH:
        saved = [SavingsItem("pod", one, 0.0, "carbon", "simple", 1.0) for one in namespaces]
        await respond(send, 200, json_body(SavingsAnswer(0.0, 1.0, "EUR", saved)))
        return
    items = [EnergyItem(namespace, energy_j=1.0) for namespace in namespaces]
    await respond(send, 200, json_body(EnergyAnswer("namespace", 0.0, 1.0, "EUR", items)))


async def answers_to(found: Any, asked: list[str], rights: set[Any], url: str) -> dict[str, bytes]:
    """Answers of `joulie web` by path."""
    stage = web_stage(Reviews({"tom": rights}), found, url)
    async with stage.client(authorization="Bearer tom") as client:
        return {path: readable((await client.get(path)).content) for path in [*PATHS, *asked]}


def readable(content: bytes) -> bytes:
    """An answer as people read it: of a PDF, its text and what is attached."""
    if not content.startswith(b"%PDF-"):
        return content
    found = PdfReader(io.BytesIO(content))
    return "".join(page.extract_text() for page in found.pages).encode() + found.attachments["report.json"][0]


def check_nothing_foreign(answers: dict[str, bytes]) -> None:
    for path, content in answers.items():
        assert MARK.encode() not in content, path
        # A page may repeat what the reader asked for.
        assert SECRET.encode() not in content or SECRET in unquote(path), path


@settings(max_examples=30, deadline=None)
@given(found=objects(), asked=st.lists(requests(), max_size=6), may_read_energy=st.booleans())
def test_joulie_web_shows_a_tenant_nothing_of_another_namespace(found: Any, asked: Any, may_read_energy: bool) -> None:
    rights = tenant(OURS) | ({("get", "energy", OURS)} if may_read_energy else set())

    async def main() -> dict[str, bytes]:
        async with Server(energy, ("127.0.0.1", 0)) as server:
            return await answers_to(found, asked, rights, f"http://127.0.0.1:{server.port}")

    answers = asyncio.run(main())
    check_nothing_foreign(answers)
    assert all(name.encode() in answers["/api/v1/pods"] for name in names_of(found))


@settings(max_examples=15, deadline=None)
@given(
    found=objects(),
    rights=st.sets(st.tuples(st.sampled_from(["list", "get"]), st.sampled_from(KINDS), st.sampled_from([OURS, ""]))),
)
def test_rights_in_one_namespace_never_show_another(found: Any, rights: Any) -> None:
    # Who may read a kind in all namespaces rightly sees all of them.
    everywhere = {(verb, kind, "") for verb in ("list", "get") for kind in (*NAMESPACED, "energy")}
    answers = asyncio.run(answers_to(found, [], rights - everywhere, NOWHERE))
    check_nothing_foreign(answers)
    if ("list", "pods", OURS) not in rights:
        assert all(name.encode() not in content for content in answers.values() for name in names_of(found))
