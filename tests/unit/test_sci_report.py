"""Must show 6: the report of a simulated month, and what an auditor would ask of it."""

import asyncio
import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import httpx2
import numpy as np
import pytest
from click.testing import CliRunner

from joulie.adapters.inventory_file import InventoryFileError, load_inventory
from joulie.adapters.ledger import LedgerSettings, open_ledger
from joulie.adapters.program_api.report import REPORT_PATH
from joulie.adapters.signing import Ed25519Signer, verify_signature
from joulie.apps.accounting.access import Access
from joulie.apps.accounting.api import EnergyApi
from joulie.apps.accounting.async_ledger import AsyncLedger
from joulie.apps.cli.ledger import ledger as command
from joulie.domain.accounting.embodied import estimated_asset
from joulie.domain.accounting.factors import FactorKind
from joulie.domain.accounting.holdout_evidence import NO_MONTHS
from joulie.domain.accounting.journal import Month, Reason
from joulie.domain.accounting.month_savings import DEFERRAL_EVIDENCE, LIMITS_EVIDENCE
from joulie.domain.accounting.records import Completion, Cycle, PowerQuality, Sample
from joulie.domain.accounting.sci import PueUse
from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie.domain.hardware.resolve import resolve
from joulie.domain.trial.holdout import Effect
from support.access_reviews import ApiServer
from support.ledger_site import new_key
from support.sci_month import DAY_S, IMAGES_A_JOB, OCTOBER, REQUESTS_A_DAY, STEP_S, book_month

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "recompute_report.py"
REPORT = ("report", "2026-10", "-o", "json", "--inventory")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The ledger of a closed month, which was corrected afterwards."""
    folder = tmp_path_factory.mktemp("month")
    url, later_s = f"sqlite:///{folder / 'ledger.db'}", OCTOBER.ends_s + 10 * DAY_S
    ledger = open_ledger(url, LedgerSettings(max_gap_s=2 * STEP_S))
    book_month(ledger, folder)
    ledger.close()
    open_month = run(url, "export"), run(url, *REPORT, folder / "inventory.yaml")
    ledger = open_ledger(url, LedgerSettings(max_gap_s=2 * STEP_S))
    ledger.close_month(OCTOBER, Ed25519Signer(new_key(folder / "key.pem")), later_s)
    ledger.correct("DE", FactorKind.PUE, (OCTOBER.starts_s, OCTOBER.ends_s), 1.2, Reason("me", "metered"), later_s)
    assert ledger.verify(verify_signature).broken is None
    ledger.close()
    report = json.loads(run(url, *REPORT, folder / "inventory.yaml"))
    lines = {line["name"]: line for line in report["workloads"] + report["unallocated"]}
    return SimpleNamespace(folder=folder, url=url, report=report, lines=lines, open_month=open_month)


def run(url, *arguments):
    found = CliRunner().invoke(command, ["--ledger", url, *map(str, arguments)], standalone_mode=False)
    assert found.exit_code == 0, (found.output, found.exception)
    return found.output


def test_must_show_6_a_script_of_50_lines_computes_the_report_again(site):
    export, told = site.folder / "export.jsonl", site.folder / "report.json"
    export.write_text(run(site.url, "export"))
    told.write_text(json.dumps(site.report))
    assert len(SCRIPT.read_text().splitlines()) <= 50
    assert "joulie." not in SCRIPT.read_text()
    done = recomputed(export, told)
    assert done.returncode == 0, done.stdout + done.stderr
    site.report["total"]["embodiedG"] *= 1.0 + 1e-8
    told.write_text(json.dumps(site.report))
    site.report["total"]["embodiedG"] /= 1.0 + 1e-8
    assert recomputed(export, told).returncode


def test_must_show_6_a_month_that_is_not_closed_is_computed_again_too(site):
    files = site.folder / "open.jsonl", site.folder / "open.json"
    for file, content in zip(files, site.open_month, strict=True):
        file.write_text(content)
    done = recomputed(*files)
    assert done.returncode == 0, done.stdout + done.stderr


def recomputed(export, told):
    return subprocess.run([sys.executable, "-I", SCRIPT, export, told], capture_output=True, text=True, check=False)


def test_the_sums_over_workloads_and_what_is_unallocated_are_those_of_the_nodes(site):
    total, lines = site.report["total"], site.lines.values()
    for name in ("energyKWh", "locationBasedG", "marketBasedG", "embodiedG", "embodiedLowG", "embodiedHighG"):
        assert sum(line[name] for line in lines) == pytest.approx(total[name], rel=1e-12), name
    days = (OCTOBER.ends_s - OCTOBER.starts_s) / DAY_S
    nodes_g = 0.0
    for one in site.report["embodied"]:
        assert one["nodeDays"] == pytest.approx({"cpu": days, "memory": days, "gpu": days}, rel=1e-12)
        if one["hardware"]:
            parts = (one["hardware"][part]["g"] for part in ("cpu", "memory", "gpu"))
            nodes_g += sum(parts) * days * DAY_S / one["hardware"]["lifespan_s"]
    assert total["embodiedG"] == pytest.approx(nodes_g, rel=1e-12)
    assert len(site.report["embodied"]) == 4
    assert len(site.report["unallocated"]) == 4, "idle and unallocated capacity of each node"


def test_a_score_is_what_the_standard_says_and_needs_all_its_parts(site):
    web, train = site.lines["web"], site.lines["train"]
    assert web["functionalUnits"] == {"unit": "request", "amount": 31 * REQUESTS_A_DAY, "source": "query"}
    assert train["functionalUnits"]["amount"] == 30 * IMAGES_A_JOB
    for line in (web, train):
        carbon_g = line["locationBasedG"] + line["embodiedG"]
        assert line["sciGPerUnit"] == pytest.approx(carbon_g / line["functionalUnits"]["amount"], rel=1e-12)
        assert line["embodiedLowG"] < line["embodiedG"] < line["embodiedHighG"]
    assert site.lines["edge"]["noScoreBecause"] == "no functional unit"
    assert not any("sciGPerUnit" in line for name, line in site.lines.items() if name not in {"web", "train"})


def test_embodied_emissions_are_total_times_time_times_share(site):
    """By hand: half of cpu-1's 80 CPUs would be 40; web requests 2 x 16 of them, and 2 x 32 of 188 GiB."""
    server_g = (150.0 + 66.1 + 6.68 + 2 * 2.99 * 24.3 + 2 * (9.14 + 1.97 * (0.491 + 0.245 * 20))) * 1000.0
    memory_g = 192 * 533.0 / 384.0 * 1000.0
    lifespan_share = 31.0 / (4 * 365.0)
    by_hand = (server_g * 32 / 80 + memory_g * 64 / 188) * lifespan_share
    assert site.lines["web"]["embodiedG"] == pytest.approx(by_hand, rel=1e-9)


def test_hardware_that_nobody_knows_is_said_and_not_zero(site):
    unknown = site.lines["unknown"]
    assert unknown["unknownNodeDays"]["cpu"] == pytest.approx(31 * 0.5)
    assert any("31.00 node days of unknown hardware" in note for note in site.report["notes"])
    text = run(site.url, "report", "2026-10")
    row = next(line for line in text.splitlines() if "Deployment/unknown" in line)
    assert [cell.strip() for cell in row.split("│")][4:6] == ["?", "?"], "neither its amount nor its range is zero"
    assert "83,137+?" in next(line for line in text.splitlines() if "(unallocated)" in line)
    assert "give a factor in the inventory" in text


def test_market_based_takes_instruments_then_the_residual_mix_and_else_is_unknown(site):
    zones = {zone["zone"]: zone for zone in site.report["marketBased"]}
    covered_kwh = 4000.0 * 31 / 365
    assert zones["DE"]["instruments"][0]["coveredKWh"] == pytest.approx(covered_kwh)
    assert site.report["total"]["marketBasedG"] == pytest.approx((zones["DE"]["energyKWh"] - covered_kwh) * 690.0)
    assert zones["FR"]["residualMix"] is None
    without = site.report["total"]["energyWithoutMarketFactorKWh"]
    assert without == pytest.approx(zones["FR"]["energyKWh"])
    bare = json.loads(run(site.url, "report", "2026-10", "-o", "json"))
    assert bare["total"]["marketBasedG"] == 0.0
    assert bare["total"]["energyWithoutMarketFactorKWh"] == pytest.approx(bare["total"]["energyKWh"])


def test_marginal_emissions_are_in_no_sum(site):
    total = site.report["total"]
    assert total["marginalG"] > total["locationBasedG"]
    lines = site.report["workloads"]
    assert all(line["marginalG"] != line["locationBasedG"] for line in lines)


def test_pue_has_its_source_and_a_closed_month_keeps_its_figures(site):
    sources = {one["zone"]: (one["pue"], one["source"].split(",")[0]) for one in site.report["pue"]}
    assert sources == {"DE": (1.25, "own meters"), "FR": (1.1, "assumed: a default of Joulie")}
    assert site.report["closed"]
    web = site.lines["web"]
    assert web["energyKWh"] / web["itEnergyKWh"] == pytest.approx(1.25), "the later correction is in November"
    november = json.loads(run(site.url, "report", "2026-11", "-o", "json"))
    assert november["correctionsOfEarlierMonths"]["energyKWh"] < 0.0
    assert november["total"]["energyKWh"] == pytest.approx(0.0, abs=1e-6)


def test_the_source_of_a_pue_cannot_be_changed_in_a_closed_month(site, tmp_path):
    file = tmp_path / "ledger.db"
    with sqlite3.connect(site.folder / "ledger.db") as connection:
        connection.execute("VACUUM INTO ?", [str(file)])
    with sqlite3.connect(file) as connection:
        changed = connection.execute(
            "UPDATE entries SET note = replace(note, 'own meters', 'guessed') WHERE kind = 'pue' AND zone = 'DE'"
        )
        assert changed.rowcount == 31, "one entry a day"
    connection.close()
    found = CliRunner().invoke(command, ["--ledger", f"sqlite:///{file}", "verify"], standalone_mode=False)
    assert (found.return_value, "BROKEN" in found.output) == (1, True), found.output


def test_an_outage_that_was_published_later_is_in_the_figures(site):
    assert site.report["total"]["energyWithoutIntensityKWh"] == pytest.approx(0.0, abs=1e-9)


# ---- savings, by how they are known


def test_savings_of_the_month_say_how_they_are_known_and_what_is_spoilt_is_not_zero(site, tmp_path):
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with sqlite3.connect(site.folder / "ledger.db") as connection:
        connection.execute("VACUUM INTO ?", [str(tmp_path / "ledger.db")])
    assert site.report["savings"] == [], "no holdout, and nobody waited"

    def months(*units):
        evidence = NO_MONTHS
        for time_s, count, effect in units:
            for number in range(count):
                evidence = evidence.added(time_s, Effect(effect, 0.01, number % 5 == 0))
        return evidence.text()

    ledger = open_ledger(url)
    limits = months((OCTOBER.starts_s - DAY_S, 100, 0.5), (OCTOBER.starts_s + DAY_S, 200, -0.08))
    ledger.keep({LIMITS_EVIDENCE: limits, DEFERRAL_EVIDENCE: months((OCTOBER.starts_s, 20, -0.2))})
    ledger.close()
    measured, waiting = json.loads(run(url, *REPORT, site.folder / "inventory.yaml"))["savings"]
    assert (measured["howKnown"], measured["units"], measured["leftOut"]) == ("measured by holdout", 200, 40)
    assert measured["lowPct"] < measured["savedPct"] < measured["highPct"]
    assert measured["savedPct"] == pytest.approx(100.0 * -np.expm1(-0.08))
    assert measured["since"] == "2026-10-02T00:00Z"
    assert "savedPct" not in waiting, "four were left alone: nothing is said, and not that nothing was saved"
    text = run(url, "report", "2026-10")
    assert "measured by holdout since 2026-10-02T00:00Z, 40 of 200 left alone" in text
    assert "too few yet" in text

    ledger = open_ledger(url)
    ledger.keep({LIMITS_EVIDENCE: limits.replace("200", "-200")})
    ledger.close()
    spoilt = json.loads(run(url, *REPORT, site.folder / "inventory.yaml"))
    assert [one["what"] for one in spoilt["savings"]] == ["waiting: emissions"]
    assert any("evidence of a holdout cannot be read" in note for note in spoilt["notes"])


# ---- by namespace, for tenants


@pytest.fixture(scope="module")
def served(site):
    """Asks the API for the report of October: status and body. Tokens are names of users."""
    inventory = load_inventory(site.folder / "inventory.yaml")

    def ask(query, token):
        async def main():
            ledger = open_ledger(site.url)
            everything = {"", *(line["namespace"] for line in site.report["workloads"])}
            access = Access(ApiServer({"tenant": {"ml"}, "finance": everything}), lambda: 0.0)
            app = EnergyApi(AsyncLedger(ledger), "EUR", lambda: OCTOBER.ends_s + DAY_S, access, inventory).before(None)
            transport = httpx2.ASGITransport(app)
            async with httpx2.AsyncClient(transport=transport, base_url="http://accounting") as http:
                answer = await http.get(REPORT_PATH, params=query, headers={"authorization": f"Bearer {token}"})
            ledger.close()
            return answer.status_code, answer.json()

        return asyncio.run(main())

    return ask


def test_finance_reads_the_report_that_the_ledger_prints(site, served):
    assert served({"month": "2026-10"}, "finance") == (200, site.report)
    assert served({}, "finance")[1]["month"] == "2026-11", "without a month, the one that lasts"
    status, answer = served({"month": "October"}, "finance")
    assert (status, "write it like 2026-10" in answer["error"]) == (400, True)


def test_tenants_read_the_lines_of_their_namespace_and_no_other_figure(site, served):
    assert served({"month": "2026-10"}, "tenant")[0] == 403
    assert served({"month": "2026-10", "namespace": "shop"}, "tenant")[0] == 403
    assert served({"month": "2026-10"}, "nobody")[0] == 401
    status, own = served({"month": "2026-10", "namespace": "ml"}, "tenant")
    assert status == 200
    lines = [line for line in site.report["workloads"] if line["namespace"] == "ml"]
    assert own["workloads"] == lines, "the same figures to the last digit, market-based ones included"
    assert own["unallocated"] == []
    for name in ("energyKWh", "locationBasedG", "marketBasedG", "embodiedG"):
        assert own["total"][name] == pytest.approx(sum(line[name] for line in lines), rel=1e-12)
    zones = {zone["zone"]: zone for zone in own["marketBased"]}
    assert sum(zone["energyKWh"] for zone in zones.values()) == pytest.approx(own["total"]["energyKWh"], rel=1e-12)
    for zone in zones.values():
        covered_kwh = sum(one["coveredKWh"] for one in zone["instruments"]) + zone["residualKWh"]
        assert covered_kwh == pytest.approx(zone["energyKWh"], rel=1e-12)
    days = sum(one["nodeDays"]["cpu"] for one in own["embodied"])
    assert days == pytest.approx(own["total"]["reservedNodeDays"]["cpu"], rel=1e-12)
    assert {one["zone"] for one in own["pue"]} == zones.keys()
    assert "shop" not in json.dumps(own)


def test_namespaces_and_what_nobody_reserved_add_up_to_the_whole_report(site, served):
    names = {line["namespace"] for line in site.report["workloads"]}
    parts = [served({"month": "2026-10", "namespace": name}, "finance")[1]["total"] for name in sorted(names)]
    parts.append(site.report["unallocatedTotal"])
    for name, whole in site.report["total"].items():
        if isinstance(whole, float):
            assert sum(part[name] for part in parts) == pytest.approx(whole, rel=1e-12, abs=1e-9), name


# ---- ledgers of version 2, and files


def test_a_ledger_of_version_2_is_migrated_in_place(tmp_path):
    file = tmp_path / "ledger.db"
    with sqlite3.connect(file) as connection:
        connection.executescript((ROOT / "tests" / "support" / "ledger_v2.sql").read_text())
    connection.close()
    ledger = open_ledger(f"sqlite:///{file}")
    assert ledger.verify(verify_signature).broken is None
    assert {row.namespace: row.energy.energy_j for row in ledger.usage(by="namespace")} == {
        "shop": 950400.0,
        "": pytest.approx(871200.0),
    }
    assert len(ledger.open_pods()) == 2
    found = ledger.month(OCTOBER)
    assert (dict(found.energy), found.reserved) == ({}, [])
    ledger.close()
    open_ledger(f"sqlite:///{file}").close()


def test_a_ledger_of_version_3_is_migrated_and_its_closed_month_stays_what_it_was(tmp_path):
    file = tmp_path / "ledger.db"
    with sqlite3.connect(file) as connection:
        connection.executescript((ROOT / "tests" / "support" / "ledger_v3.sql").read_text())
        (head,) = connection.execute("SELECT hash FROM entries ORDER BY number DESC LIMIT 1").fetchone()
    connection.close()
    ledger = open_ledger(f"sqlite:///{file}", LedgerSettings(max_gap_s=DAY_S))
    found = ledger.verify(verify_signature)
    assert (found.broken, found.months, found.head) == (None, ("2026-10",), head)
    own = PueUse("DE", 1.25, 1.3, "own meters, 2025")
    assert (ledger.month(OCTOBER).closed, ledger.month(OCTOBER).pues) == (True, [own])
    later_s = OCTOBER.ends_s + 2 * DAY_S
    pods = [account.pod for account in ledger.open_pods().values()]
    samples = [Sample(pod, 100.0, 0.0, 0.0, PowerQuality.MEASURED, "test") for pod in pods]
    for time_s in (OCTOBER.ends_s + 7200.0, OCTOBER.ends_s + 10800.0):
        ledger.append(Cycle(time_s, samples, pue_sources={("DE", 1.25, 1.3): "own meters, 2027"}))
    ends = [Completion(pod.uid, OCTOBER.ends_s + 10800.0) for pod in pods]
    ledger.append(Cycle(OCTOBER.ends_s + 10830.0, completions=ends))
    ledger.prune(later_s + 10 * DAY_S)
    november = Month.of(later_s)
    assert [one.source for one in ledger.month(november).pues] == ["own meters, 2026", "own meters, 2027"]
    assert ledger.month(OCTOBER).pues == [own]
    ledger.close_month(november, Ed25519Signer(new_key(tmp_path / "key.pem")), november.ends_s + DAY_S)
    assert ledger.verify(verify_signature).broken is None
    ledger.close()
    open_ledger(f"sqlite:///{file}").close()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("instruments: [{kind: wish, zone: DE}]", "Invalid enum value 'wish'"),
        (
            "instruments: [{kind: contract, zone: DE, from: 2026-01-01, until: 2026-02-01, gPerKWh: 0, source: x}]",
            "kWh",
        ),
        ("residualMixes: [{zone: DE, year: 2026, gPerKWh: .nan, source: AIB}]", "gPerKWh"),
        ("pue: [{zone: DE, pue: 0.9, source: x}]", "pue"),
        ("contracts: []", "unknown field `contracts`"),
        ("nodes: [{matchLabels: {a: b}, kg: 10, lowKg: 20, source: x}]", "in this order"),
        ("nodes: [", "inventory.yaml"),
    ],
)
def test_an_inventory_with_a_mistake_is_refused_whole(tmp_path, text, says):
    file = tmp_path / "inventory.yaml"
    file.write_text(text)
    with pytest.raises(InventoryFileError, match=says):
        load_inventory(file)


@pytest.mark.parametrize(
    ("labels", "cores", "memory_gb", "provider_id"),
    [
        ({}, 80.0, 200.0, ""),
        ({"joulie.io/hw.cpu-model": "Some CPU 7"}, 80.0, 200.0, ""),
        ({"joulie.io/hw.cpu-model": "Intel Xeon Gold 6148"}, 80.0, 0.0, ""),
        ({"joulie.io/hw.cpu-model": "Intel Xeon Gold 6148"}, 4.0, 16.0, ""),
        ({"joulie.io/hw.cpu-model": "Intel Xeon Gold 6148"}, 80.0, 200.0, "aws:///eu-west-3a/i-1"),
    ],
    ids=["no model", "unknown model", "unknown memory", "a part of a server", "a cloud"],
)
def test_hardware_is_estimated_only_where_it_is_known(labels, cores, memory_gb, provider_id):
    hardware = resolve(None, labels, {"cpu": cores}, BUILTIN_CATALOGUE)
    assert estimated_asset(hardware, memory_gb, provider_id) is None
