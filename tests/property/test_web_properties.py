"""What a reader who may see some namespaces finds in answers and pages: nothing of the others."""

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from joulie.adapters.kubernetes.client import KubeClient
from joulie.apps.kubectl.accounting import AccountingEndpoint
from joulie.apps.kubectl.leader import LeaderEndpoint
from joulie.apps.kubectl.web import pages
from joulie.apps.kubectl.web.api import WebApi
from joulie.apps.kubectl.web.programs import Programs
from joulie.apps.kubectl.web.watching import Cluster
from joulie.program.http import json_body
from joulie_lab.fakes.kubernetes import FakeCluster
from support.web_stage import fill, node, twin, watch

OURS = "team-0"
SECRET = "hidden"


@st.composite
def objects(draw: st.DrawFn) -> list[tuple[str, dict[str, Any]]]:
    """Pods, twins that name them, profiles and budgets, of our namespace and of one that nobody should see."""
    found: list[tuple[str, dict[str, Any]]] = []
    holders = []
    for number in range(draw(st.integers(1, 6))):
        namespace = draw(st.sampled_from([OURS, SECRET]))
        name = f"{namespace}-pod-{number}"
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
    held = twin(2, "2026-03-01T00:00:00Z")
    held["metadata"]["name"] = held["spec"]["nodeName"] = "node-0000"
    held["spec"]["gpuLimits"] = [{"id": "GPU-2", "watts": 500.0, "pod": holder}] if limited else []
    held["status"]["controlStatus"]["gpus"][0]["pods"] = [holder]
    found += [("nodes", node(0)), ("nodetwins", held)]
    for namespace in draw(st.sets(st.sampled_from([OURS, SECRET]))):
        found.append(("energybudgets", {
            "apiVersion": "joulie.io/v1alpha1", "kind": "EnergyBudget",
            "metadata": {"name": f"{namespace}-budget", "namespace": namespace},
            "spec": {"limits": {"energyKWh": 1.0}, "period": "day"},
        }))  # fmt: skip
    return found


async def all_that_is_shown(tmp_path: Any, found: list[tuple[str, dict[str, Any]]]) -> bytes:
    async with FakeCluster() as fake:
        fill(fake, found)
        # The API server refuses lists of all namespaces to this reader.
        for plural in ("pods", "workloadprofiles", "energybudgets"):
            group = "/api/v1" if plural == "pods" else "/apis/joulie.io/v1alpha1"
            fake.fail_next(1, 403, path=f"{group}/{plural}")
        async with KubeClient.connect(kubeconfig=fake.kubeconfig(tmp_path / "kubeconfig")) as client:
            cluster = Cluster(client, OURS)
            await cluster.find_scopes()
            assert cluster.visible == {OURS}
            nowhere = "http://127.0.0.1:9"
            leader = LeaderEndpoint("joulie-system", 1, nowhere)
            api = WebApi(
                cluster, Programs(client, leader, leader, AccountingEndpoint("joulie-system", 1, nowhere, verify=False))
            )
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(watch(cluster))
                while not cluster.synced:
                    await asyncio.sleep(0.005)
                shown = [
                    api.fleet({}),
                    await api.node("node-0000"),
                    await api.health({}),
                    await api.pods({}),
                    await api.pods({"namespace": SECRET}),
                ]
                texts = [
                    pages.render("node.html", path="/", query={}, answer=shown[1]),
                    pages.render("pods.html", path="/pods", query={}, answer=shown[3]),
                    pages.render("health.html", path="/health", query={}, answer=shown[2]),
                ]
                watching.cancel()
    return b"".join(map(json_body, shown)) + "".join(texts).encode()


@settings(max_examples=25, deadline=None)
@given(found=objects())
def test_a_tenant_sees_nothing_of_another_namespace(tmp_path_factory: Any, found: Any) -> None:
    shown = asyncio.run(all_that_is_shown(tmp_path_factory.mktemp("web"), found))
    assert SECRET.encode() not in shown
    mine = [body["metadata"]["name"] for plural, body in found if plural == "pods" and SECRET not in str(body)]
    assert all(name.encode() in shown for name in mine)
