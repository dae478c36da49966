"""`kubectl joulie energy`, `savings` and `export`, and `joulie nodes annotate`: what people and programs read."""

import asyncio
import csv
import json
from types import SimpleNamespace

import msgspec
import pytest
import yaml

from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.resources import NODE_HARDWARES, NODES
from joulie.adapters.program_api.aggregated import API_ROOT
from joulie.adapters.program_api.energy import TOKEN_HEADER
from joulie.adapters.program_api.report import report_answer
from joulie.apps.cli import main as joulie
from joulie.apps.kubectl import main as plugin
from joulie.apps.kubectl import savings
from joulie.apps.kubectl.energy import format_energy, format_mass
from joulie.domain.accounting.identity import CPU_MODEL_LABEL, GPU_MODEL_LABEL
from joulie.domain.accounting.inventory import Inventory
from joulie.domain.accounting.journal import Month
from joulie.domain.accounting.records import Energy
from joulie.domain.accounting.sci import MonthRecords, WorkloadKey, report
from joulie_lab.fakes.kubernetes import FakeCluster
from support.scripted_server import kubeconfig, serving

NOW_S = 1_800_000_000.0
KWH = 3.6e6
TRAIN = {
    "name": "train", "namespace": "team", "kind": "Job", "cpuJ": KWH, "gpuJ": KWH, "energyJ": 3 * KWH,
    "measuredJ": 1.5 * KWH, "emissionsG": 900.0, "cost": 0.75,
}  # fmt: skip
DARK = {
    "name": "web", "namespace": "team", "kind": "Deployment", "cpuJ": 1800.0, "energyJ": 3600.0, "assumedJ": 3600.0,
    "energyWithoutIntensityJ": 3600.0, "energyWithoutPriceJ": 3600.0,
}  # fmt: skip
SAVINGS = [
    {"name": "a", "namespace": "team", "completed": NOW_S - 60.0, "measure": "carbon", "method": "timeseries",
     "amount": 1200.0, "energyJ": KWH},
    {"name": "a", "namespace": "team", "completed": NOW_S - 60.0, "measure": "price", "method": "simple",
     "amount": -0.05, "energyJ": KWH},
]  # fmt: skip
ROW = {
    "uid": "u1", "namespace": "team", "pod": "train-x", "owner_kind": "Job", "owner_name": "train", "node": "n1",
    "zone": "DE", "from_s": NOW_S, "until_s": NOW_S + 3600.0, "source": "kepler", "cpu_j": 300.0, "mem_j": 100.0,
    "gpu_j": 600.0, "pue": 1.0, "gpu_pue": 1.0, "energy_j": 1000.0, "measured_j": 1000.0, "assumed_j": 0.0,
    "emissions_g": 5.0, "energy_without_intensity_j": 0.0, "intensity_g_per_kwh": 18000.0, "cost": 2.0,
    "energy_without_price_j": 0.0, "price_per_kwh": 7200.0, "currency": "EUR",
}  # fmt: skip


@pytest.fixture(autouse=True)
def a_clock_that_stands(monkeypatch):
    monkeypatch.setattr(savings, "time", SimpleNamespace(time=lambda: NOW_S))


class Accounting:
    """The API server, with the accounting program behind its Service proxy."""

    def __init__(self):
        self.asked = []
        self.headers = []
        self.items = [TRAIN, DARK]
        self.rows = [ROW, ROW | {"from_s": NOW_S + 3600.0, "until_s": NOW_S + 7200.0}]
        self.status = 200
        self.profiles = (403, b'{"kind": "Status", "code": 403, "reason": "Forbidden"}')
        self.aggregated = (404, b"404 page not found")
        self.passed_over = 0

    async def __call__(self, request, answer):
        if request.path.startswith(API_ROOT) and self.aggregated != (200, b""):
            self.passed_over += 1
            await answer.whole(*self.aggregated)
            return
        self.asked.append((request.path, request.query))
        self.headers.append(request.headers)
        common = {"since": NOW_S - 86400.0, "until": NOW_S, "currency": "EUR"}
        if self.status != 200:
            await answer.whole(self.status, b'{"error": "the ledger is locked"}')
        elif request.path.endswith("/energy"):
            await answer.whole(200, json.dumps(common | {"by": request.query["by"], "items": self.items}).encode())
        elif request.path.endswith("/workloadprofiles"):
            await answer.whole(*self.profiles)
        elif request.path.endswith("/savings"):
            await answer.whole(200, json.dumps(common | {"items": SAVINGS}).encode())
        elif request.path.endswith("/report"):
            month, namespace = Month.parse(request.query["month"]), request.query.get("namespace")
            energy = {(WorkloadKey("team", "Job", "train"), "DE"): Energy(energy_j=KWH, emissions_g=300.0)}
            records = MonthRecords(month, 0.0, closed=True, energy=energy)
            await answer.whole(200, msgspec.json.encode(report_answer(report(records, Inventory(), namespace))))
        else:
            await answer.whole(200, "".join(json.dumps(row) + "\n" for row in self.rows).encode())


@pytest.fixture
def asked(tmp_path, capsys):
    """Runs a command against an accounting program. Gives exit status, output and error."""

    def ask(accounting, *arguments, direct=False):
        async def main():
            async with serving(accounting) as url:
                file = tmp_path / "kubeconfig"
                file.write_text(kubeconfig(url))
                where = ["--kubeconfig", str(file)] + (["--accounting-url", url] if direct else [])
                return await asyncio.to_thread(_run, plugin.main, capsys, [*arguments, *where])

        return asyncio.run(main())

    return ask


def _run(program, capsys, arguments):
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        program(arguments)
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


def words(text):
    return [" ".join(line.split()) for line in text.splitlines()]


def test_energy_is_told_in_units_that_suit_and_says_what_is_not_known(asked):
    accounting = Accounting()
    status, out, err = asked(accounting, "energy", "-n", "team")
    assert (status, err) == (0, "")
    assert words(out) == [
        "2 workloads: 3.00kWh, 900.0g CO2eq, 0.75 EUR in the last 24h",
        "1.0Wh with unknown carbon intensity; its emissions are not included",
        "1.0Wh with unknown price; its cost is not included",
        "",
        "NAMESPACE WORKLOAD ENERGY CO2EQ COST MEASURED NO-CO2 ASSUMED",
        "team Job/train 3.00kWh 900.0g 0.7500 50% 0% 0%",
        "team Deployment/web 1.0Wh - - 0% 100% 100%",
    ]
    (found,) = accounting.asked
    path = "/api/v1/namespaces/joulie-system/services/https:joulie-accounting:10259/proxy/api/v1/energy"
    assert found == (path, {"since": "86400", "namespace": "team", "by": "job"})


@pytest.mark.parametrize("command", ["energy", "savings", "export", "report"])
def test_the_aggregated_api_is_asked_first_and_sent_no_token(asked, command):
    accounting = Accounting()
    accounting.aggregated = (200, b"")
    month = ("2026-10",) if command == "report" else ()
    status, _, err = asked(accounting, command, *month, "-n", "team")
    assert (status, err) == (0, "")
    (path, query), *_ = accounting.asked  # savings also reads WorkloadProfiles
    assert (path, query["namespace"]) == (f"{API_ROOT}/{command}", "team")
    assert query.get("format") == ("ndjson" if command == "export" else None)
    assert TOKEN_HEADER not in accounting.headers[0]


@pytest.mark.parametrize(
    ("aggregated", "status"),
    [
        ((404, b"404 page not found"), 0),
        ((503, b"service unavailable"), 0),
        ((504, b"timeout"), 0),
        # A cluster without it, and a user who may do little there.
        ((403, b'{"kind": "Status", "code": 403, "reason": "Forbidden", "message": "energy is forbidden"}'), 0),
        ((403, b"you may not get energy.joulie.io in all namespaces"), 1),
    ],
)
def test_only_an_aggregated_api_that_is_not_there_is_passed_over(asked, aggregated, status):
    accounting = Accounting()
    accounting.aggregated = aggregated
    found, _, err = asked(accounting, "energy", "-n", "team")
    assert (found, "you may not get energy.joulie.io" in err) == (status, bool(status))
    assert len(accounting.asked) == (0 if status else 1)
    assert accounting.passed_over == 1  # the API server may take a minute to say so


def test_energy_by_a_label_is_asked_for_in_the_whole_cluster(asked):
    accounting = Accounting()
    accounting.items = [{"name": "vision", "labels": {"team": "vision"}, "energyJ": KWH}]
    status, out, err = asked(accounting, "energy", "--by", "label:team")
    assert (status, err, accounting.asked[0][1]) == (0, "", {"since": "86400", "by": "label:team"})
    assert words(out)[0].startswith("1 value: 1.00kWh")
    assert [line.split()[:2] for line in words(out)[-2:]] == [["TEAM", "ENERGY"], ["vision", "1.00kWh"]]
    assert "is not one of 'pod', 'job'" in asked(accounting, "energy", "--by", "label:")[2]


def test_trap_emissions_that_nobody_knows_are_not_zero(asked):
    accounting = Accounting()
    accounting.items = [DARK]
    out = asked(accounting, "energy", "--since", "all")[1]
    assert words(out)[0] == "1 workload: 1.0Wh in the last 24h"
    assert "since" not in accounting.asked[-1][1]


def test_namespaces_and_nodes_are_those_of_the_cluster_unless_one_is_named(asked):
    accounting = Accounting()
    asked(accounting, "energy", "--by", "namespace")
    assert "namespace" not in accounting.asked[-1][1]
    asked(accounting, "energy", "--by", "pod")
    assert accounting.asked[-1][1]["namespace"] == "default"
    asked(accounting, "energy", "--by", "pod", "-A")
    assert "namespace" not in accounting.asked[-1][1]


@pytest.mark.parametrize(("form", "load"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_energy_for_programs(asked, form, load):
    told = load(asked(Accounting(), "energy", "-o", form, "--sort-by", "name")[1])
    assert [item["name"] for item in told["items"]] == ["web", "train"], "by kind first"
    assert told["total"]["energyJ"] == 3 * KWH + 3600.0
    assert told["total"]["energyWithoutIntensityJ"] == 3600.0


def test_savings_of_both_measures_and_below_zero(asked):
    out = asked(Accounting(), "savings", direct=True)[1]
    assert words(out) == [
        "Deferral saved 1.20kg CO2eq and -0.05 EUR for pods completed in the last 24h (modelled)",
        "",
        "NAMESPACE POD MEASURE SAVED ENERGY METHOD COMPLETED",
        "team a carbon 1.20kg 1.00kWh timeseries 60s",
        "team a price -0.0500 1.00kWh simple 60s",
    ]
    document = json.loads(asked(Accounting(), "savings", "-o", "json")[1])
    assert (document["total"], document["howKnown"]) == ({"carbonG": 1200.0, "cost": -0.05}, "modelled")


def test_savings_of_limits_are_told_as_the_holdout_measures_them(asked):
    accounting = Accounting()
    holdout = {
        "windows": 600, "leftOut": 30, "savedPct": 8.0, "lowPct": 7.0, "highPct": 9.0, "meanLogEnergy": -0.0834,
        "errorLogEnergy": 0.003, "naturalWatts": 400.0,
    }  # fmt: skip
    profile = {
        "metadata": {"name": "train", "namespace": "team"},
        "spec": {"workloadRef": {"kind": "Job", "namespace": "team", "name": "train"}},
        "status": {"gpuLimit": {"watts": 250.0, "holdout": holdout}},
    }
    listing = {"kind": "WorkloadProfileList", "metadata": {"resourceVersion": "1"}, "items": [profile]}
    accounting.profiles = (200, json.dumps(listing).encode())
    line = asked(accounting, "savings", "-A", direct=True)[1].splitlines()[1]
    assert line.startswith("Limits of GPUs save 8.0 % of the energy for the same work (7.")
    limits = json.loads(asked(accounting, "savings", "-A", "-o", "json")[1])["limits"]
    assert (limits["howKnown"], limits["leftOut"]) == ("measured by holdout", 30)
    accounting.profiles = (403, b"{}")
    assert json.loads(asked(accounting, "savings", "-A", "-o", "json")[1])["limits"] is None


def test_export_as_csv_parquet_and_opencost(asked, tmp_path):
    import polars

    accounting = Accounting()
    rows = list(csv.DictReader(asked(accounting, "export", "-A")[1].splitlines()))
    assert [(row["pod"], float(row["energy_j"])) for row in rows] == [("train-x", 1000.0)] * 2
    file = tmp_path / "energy.parquet"
    assert asked(accounting, "export", "--format", "parquet", "-f", str(file))[0] == 0
    assert polars.read_parquet(file)["emissions_g"].sum() == 10.0
    told = json.loads(asked(accounting, "export", "--format", "opencost")[1])
    (allocation,) = told["data"][0].values()
    assert allocation["totalCost"] == pytest.approx(4.0)
    assert [allocation[key] for key in ("cpuCost", "ramCost", "gpuCost")] == pytest.approx([1.2, 0.4, 2.4])
    assert allocation["minutes"] == 120.0
    assert allocation["properties"]["controllerKind"] == "job"
    status, _, err = asked(accounting, "export", "--format", "parquet")
    assert (status, "--file" in err) == (2, True)


@pytest.mark.parametrize(
    ("change", "direct", "said"),
    [
        ({"status": 503}, True, '503: {"error": "the ledger is locked"}'),
        ({"status": 404}, False, "behind Service joulie-system/joulie-accounting does not answer this"),
        ({"items": [{"name": 7}]}, False, "unexpected response from the accounting program"),
    ],
)
def test_what_goes_wrong_is_one_line(asked, change, direct, said):
    accounting = Accounting()
    for name, value in change.items():
        setattr(accounting, name, value)
    status, out, err = asked(accounting, "energy", direct=direct)
    (line,) = err.splitlines()
    assert (status, out) == (1, "")
    assert said in line


def test_units():
    assert [format_energy(joules) for joules in (0.0, 360.0, 3.6e6, 7.2e9)] == ["0.0Wh", "0.1Wh", "1.00kWh", "2.00MWh"]
    assert [format_mass(grams) for grams in (1.0, -2500.0, 3e6)] == ["1.0g", "-2.50kg", "3.00t"]


# ---- joulie nodes annotate


@pytest.fixture
def on_cluster(tmp_path, capsys):
    """Runs `joulie nodes annotate` on a cluster of three nodes; gives what it says, and the nodes."""

    async def made(client):
        status = {"cpu": {"rawModel": "Intel(R) Xeon(R) Gold 6148 CPU @ 2.40GHz", "model": "Intel-Xeon-Gold-6148"}}
        for name, labels in (
            ("by-agent", {}),
            ("by-label", {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}),
            ("by-nobody", {}),
        ):
            await client.create(NODES, {"metadata": {"name": name, "labels": labels}})
        await client.create(NODE_HARDWARES, {"metadata": {"name": "by-agent"}, "spec": {"nodeName": "by-agent"}})
        await client.apply(NODE_HARDWARES, "by-agent", {"status": status}, field_manager="a", subresource="status")

    def play(*arguments, times=1):
        async def main():
            async with FakeCluster() as cluster:
                file = cluster.kubeconfig(tmp_path / "kubeconfig")
                async with KubeClient.connect(kubeconfig=file) as client:
                    await made(client)
                    command = ["nodes", "annotate", *arguments, "--kubeconfig", str(file), "-o", "json"]
                    for _ in range(times):
                        status, out, err = await asyncio.to_thread(_run, joulie.main, capsys, command)
                    found = {node.metadata.name: node.metadata for node in (await client.list(NODES)).items}
                    return status, json.loads(out)["nodes"], err, found

        return asyncio.run(main())

    return play


def test_nodes_get_the_raw_name_and_its_label(on_cluster):
    status, rows, _, nodes = on_cluster()
    assert status == 0
    assert {row["node"]: (row["cpu_source"], row["gpu_source"], row["result"]) for row in rows} == {
        "by-agent": ("agent", None, "written"),
        "by-label": (None, "label", "written"),
        "by-nobody": (None, None, "nothing known"),
    }
    assert nodes["by-agent"].annotations[CPU_MODEL_LABEL] == "Intel(R) Xeon(R) Gold 6148 CPU @ 2.40GHz"
    assert nodes["by-agent"].labels[CPU_MODEL_LABEL] == "Intel-Xeon-Gold-6148-CPU-2.40GHz"
    assert nodes["by-label"].annotations[GPU_MODEL_LABEL] == "NVIDIA-A100-SXM4-80GB"


def test_a_second_run_changes_nothing_and_a_dry_one_writes_nothing(on_cluster):
    assert {row["result"] for row in on_cluster(times=2)[1]} == {"unchanged", "nothing known"}
    _, rows, _, nodes = on_cluster("--dry-run")
    assert {row["result"] for row in rows} == {"would write", "nothing known"}
    assert all(CPU_MODEL_LABEL not in node.annotations for node in nodes.values())


def test_a_report_is_of_a_month_and_a_namespace_or_all(asked):
    accounting = Accounting()
    status, out, _ = asked(accounting, "report", "2026-10", "-n", "team")
    assert (status, accounting.asked[-1][1]) == (0, {"month": "2026-10", "namespace": "team"})
    assert "Emissions of 2026-10 in namespace team (closed)" in out
    assert "team/Job/train" in out
    assert "(unallocated)" not in out
    document = json.loads(asked(accounting, "report", "2026-10", "-A", "-o", "json")[1])
    assert accounting.asked[-1][1] == {"month": "2026-10"}
    assert (document["namespace"], document["total"]["locationBasedG"]) == (None, 300.0)
    assert (
        "Nothing is booked in 2026-10 in namespace other." in asked(accounting, "report", "2026-10", "-n", "other")[1]
    )


def test_g15_the_token_of_the_user_is_sent_where_the_proxy_keeps_it(asked, tmp_path):
    accounting = Accounting()
    file = tmp_path / "token"
    file.write_text("tenant-token\n")
    for direct, header, value in (
        (False, TOKEN_HEADER, "tenant-token"),
        (True, "authorization", "Bearer tenant-token"),
    ):
        assert asked(accounting, "energy", "--token-file", str(file), direct=direct)[0] == 0
        assert accounting.headers[-1].get(header) == value
