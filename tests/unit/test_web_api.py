"""The API of the pages: its description holds for its answers, and files and sums are what the ledger has."""

import asyncio
import csv
import errno
import io
import json
import tempfile

import jsonschema
import msgspec
import polars
import pytest
from pypdf import PdfReader

from joulie.adapters.kubernetes.api.v1alpha1 import PowerTrial
from joulie.adapters.program_api.energy import EnergyItem, ExportItem, SavingsItem
from joulie.apps.kubectl.web import server
from joulie.apps.kubectl.web.energy import daily_factors, saved_by_method
from joulie.apps.kubectl.web.plans import trial_item
from joulie.apps.kubectl.web.programs import Programs
from joulie.program.http import Server
from support.web_reviews import ADMINISTRATOR, Reviews, tenant, web_stage
from support.web_stage import energy_app, fleet, programs_app

NOW_S = 1_770_000_000.0
EVERYTHING = ADMINISTRATOR | {("get", "energy", ""), ("get", "energy", "team-1")}
TENANT = tenant("team-1") | {("get", "energy", "team-1")}


@pytest.fixture(scope="module")
def accounts(tmp_path_factory):
    return energy_app(tmp_path_factory.mktemp("energy"), days=3, now_s=NOW_S, label_keys=("team",))


@pytest.fixture(scope="module")
def runner():
    """The one event loop of all requests to `accounts`: that of the ledger's lock."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def ask(accounts, runner):
    """Answers to requests of one user."""

    def get(*paths, user="anna"):
        async def main():
            async with Server(programs_app(accounts), ("127.0.0.1", 0)) as server:
                reviews = Reviews({"anna": EVERYTHING, "tom": TENANT})
                stage = web_stage(reviews, fleet(12, 3, "2026-02-02T02:40:00Z"), f"http://127.0.0.1:{server.port}")
                async with stage.client(authorization=f"Bearer {user}") as client:
                    return [await client.get(path) for path in paths]

        return runner.run(main())

    return get


def closed(schema):
    """The schema, in which objects have no field that it does not name."""
    if isinstance(schema, dict):
        found = {key: closed(value) for key, value in schema.items()}
        return {**found, "additionalProperties": False} if "properties" in schema else found
    return [closed(value) for value in schema] if isinstance(schema, list) else schema


@pytest.mark.slow
def test_every_answer_is_as_the_description_says(ask):
    (described,) = ask("/api/v1/openapi.json")
    document = described.json()
    paths = list(document["paths"])
    asked = [path.replace("{name}", "node-0002") + ("?format=ndjson" if "export" in path else "") for path in paths]
    for path, answer in zip(paths, ask(*asked), strict=True):
        assert answer.status_code == 200, (path, answer.text)
        ((kind, content),) = document["paths"][path]["get"]["responses"]["200"]["content"].items()
        assert answer.headers["content-type"] == kind
        schema = closed({**content["schema"], "components": document["components"]})
        lines = answer.text.splitlines() if "ndjson" in kind else [answer.text]
        assert lines
        for line in lines:
            jsonschema.validate(json.loads(line), schema, cls=jsonschema.Draft202012Validator)


@pytest.mark.parametrize(
    ("query", "named"),
    [("pods?state=all", "state"), ("fleet?limit=0", "limit"), ("fleet?continue=x", "continue"),
     ("export?format=xlsx", "format")],
)  # fmt: skip
def test_invalid_parameters_are_named(ask, query, named):
    (answer,) = ask(f"/api/v1/{query}")
    assert (answer.status_code, f"invalid {named}" in answer.text, len(answer.text.splitlines())) == (400, True, 1)


def test_an_export_has_the_rows_of_the_ledger_as_csv_and_as_lines(ask):
    table, lines = ask("/api/v1/export", "/api/v1/export?format=ndjson")
    rows = list(csv.DictReader(io.StringIO(table.text)))
    found = [json.loads(line) for line in lines.text.splitlines()]
    assert list(rows[0]) == list(ExportItem.__struct_fields__)
    assert len(rows) == len(found) > 0
    assert [float(row["energy_j"]) for row in rows] == [one["energy_j"] for one in found]
    assert table.headers["content-disposition"] == 'attachment; filename="energy.csv"'


@pytest.mark.slow
def test_an_export_as_parquet_has_the_same_rows_and_leaves_nothing_behind(ask, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    table, lines, page = ask("/api/v1/export?format=parquet", "/api/v1/export?format=ndjson", "/energy")
    assert table.headers["content-disposition"] == 'attachment; filename="energy.parquet"'
    rows = polars.read_parquet(io.BytesIO(table.content))
    found = [json.loads(line) for line in lines.text.splitlines()]
    assert rows.columns == list(ExportItem.__struct_fields__)
    assert rows["energy_j"].to_list() == [one["energy_j"] for one in found]
    assert rows["pue"].to_list() == [one["pue"] for one in found]
    assert list(tmp_path.iterdir()) == []
    assert "format=parquet" in page.text


def test_without_the_library_nobody_is_offered_parquet(ask, monkeypatch):
    monkeypatch.setattr(server, "can_write_parquet", lambda: False)
    table, page = ask("/api/v1/export?format=parquet", "/energy")
    assert (table.status_code, "invalid format" in table.text) == (400, True)
    assert "format=parquet" not in page.text


def test_lines_that_are_no_export_leave_no_parquet_file(ask, tmp_path, monkeypatch):
    async def broken(self, query):
        async def parts():
            yield b'{"uid": 1}\n'

        return parts()

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(Programs, "export", broken)
    (answer,) = ask("/api/v1/export?format=parquet")
    assert (answer.status_code, "unexpected response" in answer.text) == (503, True)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_line(ask, tmp_path, monkeypatch):
    async def full(parts, file):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(server, "write_parquet", full)
    (answer,) = ask("/api/v1/export?format=parquet")
    assert (answer.status_code, answer.text) == (507, "the file cannot be written: No space left on device\n")
    assert list(tmp_path.iterdir()) == []


def test_a_tenant_exports_and_sums_their_own_namespace_only(ask):
    whole, mine, page, report = ask(
        "/api/v1/export", "/api/v1/export?namespace=team-1&format=ndjson", "/energy", "/api/v1/report", user="tom"
    )
    assert (whole.status_code, report.status_code) == (403, 403)
    assert {json.loads(line)["namespace"] for line in mine.text.splitlines()} == {"team-1"}
    # Without a choice, the page shows the first namespace that the reader may see.
    assert "<option selected>team-1</option>" in page.text
    assert "team-2" not in page.text


def text_of(content):
    """The text of a PDF, and the JSON that is attached to it."""
    found = PdfReader(io.BytesIO(content))
    (attached,) = found.attachments["report.json"]
    return " ".join(page.extract_text() for page in found.pages), json.loads(attached)


@pytest.mark.slow
def test_a_month_s_report_is_a_pdf_too_with_savings_by_how_they_are_known(ask):
    pdf, answer, page, wrong = ask(
        "/api/v1/report?format=pdf&month=2026-02&namespace=",
        "/api/v1/report?month=2026-02",
        "/energy",
        "/api/v1/report?format=docx",
    )
    assert pdf.headers["content-type"] == "application/pdf"
    assert pdf.headers["content-disposition"] == 'attachment; filename="report-2026-02.pdf"'
    text, attached = text_of(pdf.content)
    assert attached == answer.json()
    limits, waiting = attached["savings"]
    assert (limits["howKnown"], limits["leftOut"], "savedPct" in waiting) == ("measured by holdout", 15, False)
    for said in ("Emissions of 2026-02", "measured by holdout since", "too few yet", "Not signed"):
        assert said in text, said
    assert "<option>2026-02</option><option>2026-01</option><option>2025-12</option>" in page.text
    assert "Download PDF" in page.text
    assert "measured by holdout: 15 of 300 windows of time were left alone by chance" in page.text
    assert (wrong.status_code, "invalid format" in wrong.text) == (400, True)


def test_a_tenant_s_pdf_has_their_own_namespace_only(ask):
    whole, other, mine = ask(
        *(f"/api/v1/report?format=pdf&month=2026-02&namespace={one}" for one in ("", "team-2", "team-1")), user="tom"
    )
    assert (whole.status_code, other.status_code) == (403, 403)
    text, attached = text_of(mine.content)
    assert {line["namespace"] for line in attached["workloads"]} == {"team-1"}
    assert attached["savings"] == [], "what holdouts say is of all namespaces together"
    assert "team-2" not in text
    (page,) = ask("/energy", user="tom")
    assert "of 300 windows" not in page.text


def test_an_owner_s_page_has_what_limits_of_their_own_workloads_save(accounts, runner):
    def profile(namespace, windows):
        saving = {
            "windows": windows,
            "leftOut": 15,
            "meanLogEnergy": -0.08,
            "errorLogEnergy": 0.002,
            "naturalWatts": 600.0,
        }
        return "workloadprofiles", {
            "apiVersion": "joulie.io/v1alpha1", "kind": "WorkloadProfile",
            "metadata": {"name": "train", "namespace": namespace},
            "spec": {"workloadRef": {"kind": "Job", "namespace": namespace, "name": "train"}},
            "status": {"gpuLimit": {"watts": 500.0, "holdout": saving}},
        }  # fmt: skip

    async def main():
        async with Server(programs_app(accounts), ("127.0.0.1", 0)) as served:
            objects = [*fleet(12, 3, "2026-02-02T02:40:00Z"), profile("team-1", 310), profile("team-2", 470)]
            stage = web_stage(Reviews({"tom": TENANT}), objects, f"http://127.0.0.1:{served.port}")
            async with stage.client(authorization="Bearer tom") as client:
                return (await client.get("/energy")).text

    page = runner.run(main())
    assert "measured by holdout: 15 of 310 windows of time were left alone by chance" in page
    assert '<td class="n">7.7 %</td>' in page
    assert "of 470 windows" not in page


def test_without_the_library_nobody_is_offered_a_pdf(ask, monkeypatch):
    monkeypatch.setattr(server, "can_write_pdf", lambda: False)
    pdf, page = ask("/api/v1/report?format=pdf", "/energy")
    assert (pdf.status_code, "invalid format" in pdf.text) == (400, True)
    assert "Download PDF" not in page.text


def test_the_energy_page_tells_finance_what_is_known_and_how(ask):
    (page,) = ask("/energy?days=7")
    for text in ("Idle", "Measured", "Estimated", "Assumed", "Lowest ahead", "Modelled, not measured", "400 g/kWh"):
        assert text in page.text, text


def test_energy_by_label_and_day_is_on_the_page_and_in_the_api(ask):
    page, by_team, stranger = ask("/energy?days=7&by=label:team", "/api/v1/energy?by=label:team", "/energy?by=label:x")
    items = {item["name"]: item["energyJ"] for item in by_team.json()["items"]}
    assert set(items) == {"vision", "nlp", "__unlabelled__"}
    (whole,) = ask("/api/v1/energy?by=day")
    assert sum(items.values()) == pytest.approx(sum(item["energyJ"] for item in whole.json()["items"]), rel=1e-12)
    assert '<th scope="row">without this label</th>' in page.text
    assert '<a href="/energy?days=7&amp;by=label%3Ateam" aria-current="true">team</a>' in page.text
    assert "label x is not in ENERGY_LABELS" in stranger.text
    (mine,) = ask("/api/v1/energy?by=label:team,namespace&namespace=team-1", user="tom")
    assert {item["namespace"] for item in mine.json()["items"]} == {"team-1"}


def test_what_the_operator_and_the_grid_controller_tell_is_bounded_by_the_reader_s_pods(ask):
    paths = {
        "/api/v1/power": 200,
        "/api/v1/power?kind=pods": 403,
        "/api/v1/power?kind=pods&namespace=team-1": 200,
        "/api/v1/power?kind=pods&namespace=team-2": 403,
        "/api/v1/power?kind=namespaces&namespace=team-1": 403,
        "/api/v1/power?kind=racks": 400,
        "/api/v1/grid": 403,
        "/api/v1/grid?pod=team-1/train-0": 200,
        "/api/v1/grid?pod=team-2/train-0": 403,
        "/api/v1/grid?pod=/team-1": 403,
    }
    assert {path: answer.status_code for path, answer in zip(paths, ask(*paths, user="tom"), strict=True)} == paths
    power, grid = ask("/api/v1/power?kind=pods", "/api/v1/grid")
    assert (power.json()["items"][0]["powerW"], grid.json()["waiting"]) == (612.0, {"carbon": 3})


def test_signals_do_not_tell_tenants_how_many_pods_of_others_wait(ask):
    (mine,), (everything,) = ask("/api/v1/signals", user="tom"), ask("/api/v1/signals")
    assert (mine.json()["waiting"], everything.json()["waiting"]) == (None, {"carbon": 3})
    assert len(mine.json()["signals"]) == 2


def test_one_pod_is_asked_for_by_its_name(ask):
    found, none = (
        answer.json()["pods"]
        for answer in ask("/api/v1/pods?namespace=team-1&name=pod-1-0", "/api/v1/pods?namespace=team-2&name=pod-1-0")
    )
    assert [(pod["namespace"], pod["name"]) for pod in found] == [("team-1", "pod-1-0")]
    assert none == []


def test_gains_and_losses_are_summed_apart():
    amounts = (
        ("a", "carbon", "timeseries", 5.0, 1),
        ("b", "carbon", "timeseries", -2.0, 1),
        ("", "price", "simple", 1.0, 4),
    )
    items = [
        SavingsItem(name, "x", 0.0, measure, method, saved, pods=pods) for name, measure, method, saved, pods in amounts
    ]
    carbon, price = saved_by_method(items)
    assert (carbon.gains, carbon.losses, carbon.pods, carbon.method) == (5.0, 2.0, 2, "timeseries")
    assert (price.gains, price.losses, price.pods) == (1.0, 0.0, 4)


def test_an_unknown_intensity_of_a_day_is_none_not_zero():
    known = EnergyItem("a", start=0.0, end=3600.0, energy_j=3.6e6, emissions_g=100.0, energy_without_price_j=3.6e6)
    partly = EnergyItem("a", start=90000.0, end=93600.0, energy_j=7.2e6, emissions_g=100.0,
                        energy_without_intensity_j=3.6e6, cost=0.5)  # fmt: skip
    first, second = daily_factors([known, partly])
    assert (first.intensity_g_per_kwh, first.price_per_kwh) == (100.0, None)
    assert (second.intensity_g_per_kwh, second.price_per_kwh) == (100.0, 0.25)


def test_a_power_budget_tells_what_lowers_it_what_is_left_for_pods_and_what_its_events_achieved():
    evening = {"name": "evening", "limitWatts": 8400.0, "meanWatts": 8300.0, "compliedSeconds": 12.0,
               "baselineWatts": 11300.0, "shedWatts": 3000.0}  # fmt: skip
    status = {"limitWatts": 8400.0, "limitReason": "evening", "podHeadroomWatts": 350.0, "reductions": [evening]}
    tight = {"limitWatts": 9000.0, "limitReason": "schedule", "podHeadroomWatts": -20.0}
    objects = [
        ("powerbudgets", {"apiVersion": "joulie.io/v1alpha1", "kind": "PowerBudget", "metadata": {"name": name},
                          "spec": {"watts": 12000.0}, "status": of})
        for name, of in (("hall", status), ("rack", tight), ("site", {"limitWatts": 12000.0, "limitReason": "spec"}))
    ]  # fmt: skip
    stage = web_stage(Reviews({"anna": ADMINISTRATOR}), objects)

    async def story():
        async with stage.client(authorization="Bearer anna") as client:
            return await client.get("/api/v1/plans"), await client.get("/plans")

    answer, page = asyncio.run(story())
    hall, rack, site = answer.json()["powerBudgets"]
    assert (hall["specW"], hall["limitW"], hall["limitBy"], hall["podHeadroomW"]) == (12000.0, 8400.0, "evening", 350.0)
    assert [(one["shedW"], one["compliedS"]) for one in hall["events"]] == [(3000.0, 12.0)]
    assert (rack["limitBy"], site["events"]) == ("schedule", [])
    for text in (
        "the limit is 8.4 kW instead of 12.0 kW by event evening; 350 W left for pods that need full power; "
        "event evening: 3.0 kW shed, within its limit after 12s",
        "the limit is 9.0 kW instead of 12.0 kW by schedule; pods that need full power wait",
        '<td class="wide">-</td>',
    ):
        assert text in page.text, text


def test_a_trial_of_deferral_tells_its_days_and_has_no_blocks():
    status = {"workloads": {"startTime": "2026-02-01T00:00:00Z", "endTime": "2026-03-01T00:00:00Z", "seed": 7}}
    trial = {"apiVersion": "joulie.io/v1alpha1", "kind": "PowerTrial", "metadata": {"name": "winter"},
             "spec": {"judges": "deferral"}, "status": status}  # fmt: skip
    found = trial_item(msgspec.convert(trial, PowerTrial), messages=True)
    assert (found.starts, found.ends) == ("2026-02-01T00:00:00Z", "2026-03-01T00:00:00Z")
    assert (found.blocks, found.nodes, found.treated) == (None, None, None)
