"""`kubectl joulie top`, `profiles` and `recommend`: what people and programs read, and how it fails."""

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.resources import ENERGY_BUDGETS, NODE_TWINS, POWER_BUDGETS, WORKLOAD_PROFILES
from joulie.adapters.kubernetes.times import rfc3339
from joulie.adapters.program_api.aggregated import API_ROOT
from joulie.apps.kubectl import main as plugin
from joulie.apps.kubectl import profiles, top
from joulie_lab.adapters.crd import custom_resource_definitions
from joulie_lab.control_plane.ports import free_port
from joulie_lab.fakes.kubernetes import FakeCluster
from support.scripted_server import kubeconfig, serving

NODES = [
    {"name": "n1", "powerW": 300.0, "cpuW": 300.0, "idleW": 90.0, "systemW": 10.0, "energyJ": 3.6e6 * 2,
     "quality": "fresh", "source": "agents", "weightSource": "cadvisor", "ageS": 4.0},
    {"name": "n2", "powerW": 100.0, "lowW": 80.0, "highW": 130.0, "energyJ": 3.6e5, "quality": "stale",
     "source": "cadvisor", "ageS": 200.0},
    {"name": "n3", "quality": "missing"},
]  # fmt: skip
PODS = [{"name": "p1", "namespace": "team", "node": "n1", "powerW": 200.0, "quality": "fresh", "source": "agents"}]
NAMESPACES = [
    {"name": "team", "powerW": 200.0, "energyJ": 7.2e6, "pods": 2, "unknownPods": 1},
    {"name": "dark", "energyJ": 0.0, "pods": 3, "unknownPods": 3},
]
NOW_S = 1_800_000_000.0
ITEMS = {"nodes": NODES, "pods": PODS, "namespaces": NAMESPACES}


@pytest.fixture(autouse=True)
def a_clock_that_stands(monkeypatch):
    for module in (top, profiles):
        monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: NOW_S))


def run(capsys, *arguments):
    """Run the plugin. Gives exit status, output and error."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        plugin.main([*arguments])
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


class Operator:
    """The API server with the operator's lease, and the operator behind its pod proxy."""

    def __init__(self):
        self.holder = "joulie-operator-abc_12ab34cd"
        self.status = 200
        self.since = True
        self.items = ITEMS
        self.asked = []
        self.aggregated = False

    async def __call__(self, request, answer):
        if request.path.startswith(API_ROOT) and not self.aggregated:
            await answer.whole(404, b"404 page not found")
            return
        self.asked.append((request.path, request.query))
        if request.path.endswith("/leases/joulie-operator"):
            if self.holder is None:
                body = {"kind": "Status", "code": 404, "reason": "NotFound", "message": "not found"}
                await answer.whole(404, json.dumps(body).encode())
                return
            lease = {"metadata": {"name": "joulie-operator"}, "spec": {"holderIdentity": self.holder}}
            await answer.whole(200, json.dumps(lease).encode())
        elif self.status != 200:
            await answer.whole(self.status, b'{"leader": false}')
        else:
            told = {"now": NOW_S, "leader": True, "kind": request.query["kind"], "items": []}
            told |= {"since": NOW_S - 7200.0, "items": self.items[request.query["kind"]]} if self.since else {}
            await answer.whole(200, json.dumps(told).encode())


@pytest.fixture
def asked(tmp_path, capsys):
    """Runs a `top` command against an operator."""

    def ask(operator, *arguments, direct=False):
        async def main():
            async with serving(operator) as url:
                file = tmp_path / "kubeconfig"
                file.write_text(kubeconfig(url))
                where = ["--kubeconfig", str(file)] + (["--operator-url", url] if direct else [])
                return await asyncio.to_thread(run, capsys, "top", *arguments, *where)

        return asyncio.run(main())

    return ask


def words(text):
    return [" ".join(line.split()) for line in text.splitlines()]


def test_top_asks_the_aggregated_api_where_there_is_one(asked):
    operator = Operator()
    operator.aggregated = True
    status, out, err = asked(operator, "pods", "-n", "team")
    assert (status, err, "p1" in out) == (0, "", True)
    assert operator.asked == [(f"{API_ROOT}/power", {"kind": "pods", "limit": "10000", "namespace": "team"})]


def test_top_nodes_asks_the_pod_that_leads(asked):
    operator = Operator()
    status, out, err = asked(operator, "nodes")
    assert (status, err) == (0, "")
    assert words(out) == [
        "3 nodes: 400 W, 2.10 kWh in 2h since the operator became leader",
        "power unknown for 1",
        "",
        "NODE POWER RANGE CPU GPU ENERGY SHARE SOURCE QUALITY AGE",
        "n1 300W - 300W - 2.00kWh 75% agents fresh 4s",
        "n2 100W 80-130W - - 100.0Wh 25% cadvisor stale 3m",
        "n3 - - - - - - - missing -",
    ]
    assert operator.asked[-1] == (
        "/api/v1/namespaces/joulie-system/pods/joulie-operator-abc:8081/proxy/debug/power",
        {"kind": "nodes", "limit": "10000"},
    )


def test_top_wide_adds_what_no_pod_explains(asked):
    _, out, _ = asked(Operator(), "nodes", "-o", "wide")
    assert words(out)[3] == "NODE POWER IDLE SYSTEM RANGE CPU GPU ENERGY SHARE SOURCE QUALITY SHARED BY AGE"
    assert words(out)[4] == "n1 300W 90W 10W - 300W - 2.00kWh 75% agents fresh cadvisor 4s"


def test_top_pods_of_a_namespace_or_of_all(asked):
    operator = Operator()
    _, out, _ = asked(operator, "pods", "-n", "team")
    assert operator.asked[-1][1]["namespace"] == "team"
    assert words(out)[2:] == [
        "POD NODE POWER CPU GPU ENERGY SHARE SOURCE QUALITY AGE", "p1 n1 200W - - - 100% agents fresh -",
    ]  # fmt: skip
    _, out, _ = asked(operator, "pods", "-A")
    assert "namespace" not in operator.asked[-1][1]
    assert words(out)[2].startswith("NAMESPACE POD")
    asked(operator, "pods")
    assert operator.asked[-1][1]["namespace"] == "default"


def test_trap_unknown_power_of_a_namespace_is_not_zero(asked):
    _, out, _ = asked(Operator(), "namespaces")
    assert words(out)[3:] == [
        "NAMESPACE PODS UNKNOWN POWER ENERGY SHARE", "team 2 1 200W 2.00kWh 100%", "dark 3 3 - 0.0Wh -",
    ]  # fmt: skip


def test_top_sorts_and_limits(asked):
    _, out, _ = asked(Operator(), "nodes", "--sort-by", "age", "--limit", "1")
    assert [line.split()[0] for line in words(out)[4:]] == ["n2", "and"]
    assert words(out)[-1] == "and 2 more (--limit)"
    _, out, _ = asked(Operator(), "nodes", "--sort-by", "name", "--reverse")
    assert [line.split()[0] for line in words(out)[4:]] == ["n3", "n2", "n1"]


@pytest.mark.parametrize(("form", "load"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_top_for_programs(asked, form, load):
    _, out, _ = asked(Operator(), "nodes", "-o", form)
    told = load(out)
    assert told["total"]["powerW"] == 400.0
    assert told["total"]["unknown"] == 1
    assert told["items"][0] | {"sharePct": 75.0, "energyKwh": 2.0} == told["items"][0]
    assert "powerW" not in told["items"][2]


def test_an_operator_by_its_address(asked):
    operator = Operator()
    status, _, _ = asked(operator, "nodes", direct=True)
    assert status == 0
    assert [path for path, _ in operator.asked] == ["/debug/power"]


@pytest.mark.parametrize(
    ("change", "direct", "words_of_error"),
    [
        (
            {"holder": None},
            False,
            "no leader of the operator in namespace joulie-system: lease joulie-operator not found",
        ),
        (
            {"holder": ""},
            False,
            "no leader of the operator in namespace joulie-system: lease joulie-operator has no holder",
        ),
        ({"status": 404}, False, "joulie-system/joulie-operator-abc does not respond (see --operator-namespace"),
        ({"status": 503}, True, "this operator is not the leader: use another replica"),
        ({"items": {"nodes": [{"name": 7}]}}, False, "unexpected response from the operator"),
    ],
)
def test_what_goes_wrong_is_one_line(asked, change, direct, words_of_error):
    operator = Operator()
    for name, value in change.items():
        setattr(operator, name, value)
    status, out, err = asked(operator, "nodes", direct=direct)
    (line,) = err.splitlines()
    assert (status, out) == (1, "")
    assert words_of_error in line


def test_nothing_is_said_in_a_sentence(asked):
    operator = Operator()
    operator.items = {"nodes": [], "pods": []}
    assert asked(operator, "pods", "-n", "team")[1] == "No running pods found in namespace team.\n"
    assert asked(operator, "nodes")[1] == "No nodes found.\n"
    operator.since = False
    assert asked(operator, "nodes")[1].startswith("The operator has no measurement yet")


# ---- profiles and recommendations


@pytest.fixture
def on_cluster(tmp_path, capsys):
    """Runs a command on a fake cluster that `prepare` has filled."""

    def play(prepare, *arguments):
        async def main():
            async with FakeCluster(custom_resource_definitions()) as cluster:
                file = cluster.kubeconfig(tmp_path / "kubeconfig")
                async with KubeClient.connect(kubeconfig=file) as client:
                    await prepare(client)
                    return await asyncio.to_thread(run, capsys, *arguments, "--kubeconfig", str(file))

        return asyncio.run(main())

    return play


async def write(client, resource, name, spec, status, namespace=None, labels=None):
    await client.create(resource, {"metadata": {"name": name, "labels": labels or {}}, "spec": spec}, namespace)
    await client.apply(resource, name, {"status": status}, namespace=namespace, field_manager="m", subresource="status")


async def two_budgets(client):
    conditions = [
        {"type": kind, "status": status, "reason": "R", "message": text, "lastTransitionTime": rfc3339(NOW_S)}
        for kind, status, text in (("Holding", "True", "it is exhausted"), ("UsageKnown", "True", "measured"))
    ]
    spec = {
        "limits": {"energyKWh": 1.5, "cost": 20},
        "period": "day",
        "action": "gate",
        "target": {"owner": {"kind": "Job", "name": "train"}, "matchLabels": {"team": "a"}},
    }
    used = {
        "used": {"energyKWh": 1.6, "cost": 2.0},
        "forecast": {"energyKWh": 1.8, "cost": 3.0},
        "usedPct": 106.7,
        "forecastPct": 120.0,
        "periodEnd": "2026-11-24T00:00:00Z",
        "held": {"pods": 3, "jobs": 2},
        "conditions": conditions,
    }
    await write(client, ENERGY_BUDGETS, "daily", spec, used, "default")
    unknown = [{**conditions[1], "status": "False", "message": "the ledger is away"}]
    rolling = {"limits": {"emissionsG": 1000}, "period": "week", "window": "rolling"}
    await write(client, ENERGY_BUDGETS, "green", rolling, {"conditions": unknown}, "kube-public")
    young = {"usedPct": 1.0, "forecastFrom": "2026-12-02T07:00:00Z"}
    monthly = {"limits": {"energyKWh": 500}, "period": "month"}
    await write(client, ENERGY_BUDGETS, "monthly", monthly, young, "kube-system")


def test_budgets_of_all_namespaces(on_cluster):
    status, out, err = on_cluster(two_budgets, "budget", "-A")
    assert (status, err) == (0, "")
    assert words(out) == [
        "3 budgets: 1 holding, 1 of unknown usage, 1 without a forecast until a 24th of the period is measured",
        "",
        "NAMESPACE BUDGET LIMIT PERIOD USED FORECAST ACTION HOLDING PODS JOBS ENDS",
        "default daily 1.5 kWh, 20 cost day 107% 120% gate yes 3 2 2026-11-24T00:00:00Z",
        "kube-public green 1000 gCO2eq rolling week - - report - - - -",
        "kube-system monthly 500 kWh month 1% - report - - - -",
    ]
    wide = words(on_cluster(two_budgets, "budget", "-A", "-o", "wide")[1])
    assert wide[3].endswith("- Job/train,team=a it is exhausted")
    assert wide[4].endswith("- all pods the ledger is away")
    assert wide[5].endswith("2026-12-02T07:00:00Z all pods -")


@pytest.mark.parametrize(("output", "load"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_budgets_for_programs(on_cluster, output, load):
    (row,) = load(on_cluster(two_budgets, "budget", "-n", "default", "-o", output)[1])["budgets"]
    assert (row["used"], row["forecast_pct"], row["holding"]) == ({"energyKWh": 1.6, "cost": 2.0}, 120.0, True)
    nothing = on_cluster(two_budgets, "budget", "-n", "kube-node-lease")[1]
    assert "No EnergyBudgets found in namespace kube-node-lease" in nothing


async def two_profiles(client):
    automatic = {names.MANAGED_BY_LABEL: names.CLASSIFIER}
    train = {
        "criticality": {"class": "performance"},
        "migratability": {"reschedulable": False},
        "cpu": {"intensity": "medium", "bound": "memory", "avgUtilizationPct": 45, "capSensitivity": "low"},
        "gpu": {"intensity": "high", "bound": "compute", "avgUtilizationPct": 92, "capSensitivity": "high"},
        "classificationReason": "cpu-intensity=medium (util 45%)",
        "confidence": 0.85,
        "lastUpdated": rfc3339(NOW_S - 600.0),
        "rescheduleRecommended": True,
        "rescheduleReason": "n1: the node is draining",
    }
    ref = {"kind": "Job", "name": "train", "namespace": "default"}
    await write(client, WORKLOAD_PROFILES, "job-train", {"workloadRef": ref}, train, "default", automatic)
    hint = {"criticality": {"class": "standard"}, "confidence": 0.3}
    ref = {"kind": "Deployment", "name": "web", "namespace": "kube-public"}
    await write(client, WORKLOAD_PROFILES, "mine", {"workloadRef": ref}, hint, "kube-public")


def test_profiles_of_all_namespaces(on_cluster):
    status, out, err = on_cluster(two_profiles, "profiles", "-A", "--sort-by", "confidence")
    assert (status, err) == (0, "")
    assert words(out) == [
        "2 workloads: 1 performance, 1 from annotations only, 1 manual, 1 recommended to move",
        "",
        "NAMESPACE WORKLOAD CLASS MOVABLE CPU BOUND UTIL CPU-CAP GPU BOUND UTIL GPU-CAP CONF AGE",
        "default Job/train performance no medium memory 45% low high compute 92% high 0.85 10m",
        "kube-public Deployment/web standard - - - - - - - - - 0.30 -",
    ]


def test_profiles_of_the_contexts_namespace(on_cluster):
    _, out, _ = on_cluster(two_profiles, "profiles", "-o", "wide")
    assert words(out)[0].startswith("1 workload:")
    assert words(out)[2].startswith("WORKLOAD CLASS")
    assert words(out)[3].endswith("n1: the node is draining cpu-intensity=medium (util 45%)")


def test_profiles_for_programs_and_by_label(on_cluster):
    selected = f"{names.MANAGED_BY_LABEL}={names.CLASSIFIER}"
    told = json.loads(on_cluster(two_profiles, "profiles", "-A", "-l", selected, "-o", "json")[1])
    (row,) = told["profiles"]
    assert (row["workload"], row["gpu_util_pct"], row["manual"]) == ("Job/train", 92.0, False)


async def nothing(_client):
    return


def test_no_profiles_and_no_recommendations_are_sentences(on_cluster):
    said = "No WorkloadProfiles found in namespace default (-A for all).\n"
    assert on_cluster(nothing, "profiles") == (0, said, "")
    status, out, _ = on_cluster(nothing, "recommend")
    assert (status, out) == (0, "Nothing is known: there are no NodeTwins; is the operator installed and running?\n")


def test_u9_what_an_operator_said_long_ago_has_its_age(on_cluster):
    def published(at_s):
        async def prepare(client):
            status = {"lastUpdated": rfc3339(at_s)}
            await write(client, NODE_TWINS, "n1", {"nodeName": "n1", "profile": "eco"}, status)

        return prepare

    _, out, _ = on_cluster(published(4e9), "recommend")
    assert [line.split(":")[0] for line in out.splitlines()] == [
        "No moves recommended",
        "",
        "No GPU sharing recommended",
    ]
    _, out, _ = on_cluster(published(1.7e9), "recommend")
    assert re.match(r"Outdated: the operator published nothing for \d+d\.\n", out)


@pytest.mark.slow
def test_u9_an_unreachable_cluster_is_one_line(tmp_path):
    file = tmp_path / "kubeconfig"
    cluster = {"name": "gone", "cluster": {"server": f"https://127.0.0.1:{free_port()}"}}
    context = {"name": "gone", "context": {"cluster": "gone", "user": "gone"}}
    user = {"name": "gone", "user": {"token": "t"}}
    file.write_text(
        json.dumps({"clusters": [cluster], "contexts": [context], "users": [user], "current-context": "gone"})
    )
    ended = subprocess.run(
        [Path(sys.executable).with_name("kubectl-joulie"), "status", "--kubeconfig", file],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1, ended.stderr
    assert "no answer from https://127.0.0.1" in ended.stderr


async def a_stressed_node(client):
    status = {
        "rescheduleRecommendations": [
            {
                "workloadRef": {"kind": "Deployment", "name": "web", "namespace": "team"},
                "reason": "cooling stress 97%, above 90%",
            }
        ],
        "gpuSlicingRecommendation": {
            "mode": "mig", "sliceType": "1g.10gb", "slicesPerGPU": 7, "totalSlices": 56, "confidence": 0.3,
            "estimatedUtilizationGain": 60, "reason": "3 of 3 GPU workloads are of low intensity",
        },
    }  # fmt: skip
    await write(client, NODE_TWINS, "n1", {"nodeName": "n1", "profile": "eco"}, status)


def test_recommendations(on_cluster):
    _, out, _ = on_cluster(a_stressed_node, "recommend")
    assert words(out) == [
        "1 workload on 1 node should move to another node",
        "NODE NAMESPACE WORKLOAD REASON",
        "n1 team Deployment/web cooling stress 97%, above 90%",
        "",
        "GPUs of 1 node could be shared as follows (Joulie does not change this itself)",
        "NODE MODE SLICE PER-GPU TOTAL GAIN CONF REASON",
        "n1 mig 1g.10gb 7 56 +60% 0.3 3 of 3 GPU workloads are of low intensity",
    ]
    told = json.loads(on_cluster(a_stressed_node, "recommend", "-o", "json")[1])
    assert told["reschedule"][0]["workload"] == "Deployment/web"
    assert told["slicing"][0]["gain_pct"] == 60.0


def test_what_may_not_be_read_is_one_line(tmp_path, capsys):
    async def main():
        async with FakeCluster(custom_resource_definitions()) as cluster:
            file = cluster.kubeconfig(tmp_path / "kubeconfig")
            cluster.fail_next(9, 403, path="/workloadprofiles")
            return await asyncio.to_thread(run, capsys, "profiles", "--kubeconfig", str(file))

    status, out, err = asyncio.run(main())
    (line,) = err.splitlines()
    assert (status, out) == (1, "")
    assert line.startswith("Error: list workloadprofiles.joulie.io in namespace default: 403")


async def two_power_budgets(client):
    for name, spec in {"hall": {}, "rack-7": {"nodeSelector": {"joulie.io/rack": "7"}, "mode": "observe"}}.items():
        await client.create(POWER_BUDGETS, {"metadata": {"name": name}, "spec": {"watts": 18000.0} | spec})
    conditions = [
        {
            "type": kind,
            "status": "True",
            "reason": reason,
            "message": message,
            "lastTransitionTime": "2026-11-24T10:00:00Z",
        }
        for kind, reason, message in (
            ("Enforced", "WorstCaseFits", "nodes could draw 17930 W"),
            ("Blind", "NoReading", "1 of 4 nodes have no fresh reading and count with their worst case"),
        )
    ]
    watts = {"limitWatts": 18000.0, "measuredWatts": 14210.0, "worstCaseWatts": 17930.0, "headroomWatts": 70.0}
    status = watts | {"nodes": 4, "curtailedNodes": 3, "conditions": conditions}
    await client.apply(POWER_BUDGETS, "hall", {"status": status}, field_manager="operator", subresource="status")


def test_the_limit_shown_is_the_one_in_force_with_what_decides_it_and_what_cannot_be_read(on_cluster):
    async def reduced(client):
        await client.create(POWER_BUDGETS, {"metadata": {"name": "hall"}, "spec": {"watts": 18000.0}})
        why = {"status": "False", "reason": "Invalid", "message": "schedule: unknown time zone 'Mars/Olympus'"}
        enforced = {"type": "Enforced", "lastTransitionTime": "2026-11-24T10:00:00Z"} | why
        status = {"limitWatts": 12600.0, "limitReason": "dr-1", "conditions": [enforced]}
        await client.apply(POWER_BUDGETS, "hall", {"status": status}, field_manager="operator", subresource="status")

    (hall,) = json.loads(on_cluster(reduced, "budget", "power", "-o", "json")[1])["powerBudgets"]
    assert (hall["limit_w"], hall["limit_reason"]) == (12600.0, "dr-1")
    wide = words(on_cluster(reduced, "budget", "power", "-o", "wide")[1])[-1]
    assert all(one in wide for one in ("dr-1", "Invalid", "unknown time zone"))


def test_power_budgets(on_cluster):
    status, out, err = on_cluster(two_power_budgets, "budget", "power")
    assert (status, err) == (0, "")
    assert words(out) == [
        "2 power budgets: 1 kept",
        "",
        "BUDGET LIMIT-W DRAWN-W WORST-W FREE-W NODES CURTAILED STATE",
        "hall 18000 14210 17930 70 4 3 WorstCaseFits",
        "rack-7 18000 - - - - - -",
    ]
    wide = words(on_cluster(two_power_budgets, "budget", "power", "-o", "wide")[1])
    assert "joulie.io/rack=7" in wide[-1]
    assert "1 of 4 nodes have no fresh reading" in wide[-2]


@pytest.mark.parametrize(("output", "load"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_power_budgets_for_programs(on_cluster, output, load):
    hall, rack = load(on_cluster(two_power_budgets, "budget", "power", "-o", output)[1])["powerBudgets"]
    assert (hall["worst_case_w"], hall["enforced"], rack["measured_w"]) == (17930.0, True, None)
