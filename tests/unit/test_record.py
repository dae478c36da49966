"""`joulie record`: a cluster's API server, Prometheus and ledger, as a folder of Parquet files."""

import asyncio
import json
import math
import time
from types import SimpleNamespace
from urllib.parse import parse_qs

import pytest

from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.connection import connect
from joulie.adapters.kubernetes.resources import NODES, PODS
from joulie.adapters.ledger import open_ledger
from joulie.adapters.recording_files import Head, RecordingError, RecordingFiles
from joulie.apps.cli import main as joulie
from joulie.apps.cli import record
from joulie.domain.accounting.records import Cycle, PodMeta, PowerQuality, Sample, ZoneSignals
from joulie.domain.grid.series import constant
from joulie.domain.recording import Period, PodRecord, Pseudonyms, merge_pods
from joulie_lab.fakes.kubernetes import FakeCluster
from support.scripted_server import serving

NOW_S = 1_800_000_000.0 // 3600.0 * 3600.0 + 600.0
HOURS = Period.last(3 * 3600.0, NOW_S).hours
SECRET = "s3cr3t-token"


class MetricsServer:
    """Prometheus: one node, of which a quarter of an hour was not measured, and pods that are no more."""

    def __init__(self):
        self.failing_hour = None
        self.queries = []

    async def __call__(self, request, answer):
        form = parse_qs(request.body.decode())
        if "start" not in form:
            await answer.whole(200, _answer("vector", []))
            return
        query, (start_s, end_s) = form["query"][0], (float(form[key][0]) for key in ("start", "end"))
        self.queries.append(query)
        if self.failing_hour is not None and self.failing_hour.from_s < end_s <= self.failing_hour.until_s:
            await answer.whole(422, json.dumps({"status": "error", "error": "query timed out"}).encode())
            return
        await answer.whole(200, _answer("matrix", list(self.series(query, start_s, end_s))))

    def series(self, query, start_s, end_s):
        times = [start_s + 300.0 * step for step in range(round((end_s - start_s) / 300.0) + 1)]
        gone = {"namespace": "team", "pod": "gone", "uid": "uid-gone"}
        if "joulie_rapl" in query:
            yield {"node": "n1"}, [(at, 200.0) for at in times if not _unmeasured(at)]
        elif "increase(steps_total[300s])" in query:
            yield gone, [(at, 30.0) for at in times if not _unmeasured(at)]
            yield {"namespace": "team", "pod": "names-another"}, [(at, 30.0) for at in times]
        elif "container_cpu" in query:
            yield gone, [(at, 3.0) for at in times]
        elif "kube_pod_info" in query:
            yield gone | {"node": "n1", "created_by_kind": "Job", "created_by_name": "train"}, [(end_s, 1.0)]
        elif "kube_pod_annotations" in query:
            notes = {"progress_metric": "steps_total", "grid_trial": "july waits train"}
            yield gone | {f"annotation_joulie_io_{key}": value for key, value in notes.items()}, [(end_s, 1.0)]
        elif "kube_pod_created" in query:
            yield gone, [(end_s, HOURS[0].from_s + 60.0)]
        elif "kube_pod_start_time" in query:
            yield gone, [(end_s, HOURS[0].from_s + 90.0)]
        elif "kube_pod_completion_time" in query and end_s > HOURS[1].from_s + 1.0:
            yield gone, [(end_s, HOURS[1].from_s + 900.0)]
        elif "kube_pod_status_phase" in query and end_s > HOURS[1].from_s + 1.0:
            yield gone | {"phase": "Succeeded"}, [(end_s, 1.0)]
        elif "kube_pod_container_resource_requests" in query:
            yield gone | {"container": "a", "resource": "cpu"}, [(end_s, 4.0)]
            yield gone | {"container": "b", "resource": "memory"}, [(end_s, 2.0 * 1024**3)]


def _unmeasured(at_s):
    return HOURS[1].from_s < at_s <= HOURS[1].from_s + 900.0


def _answer(kind, series):
    result = [{"metric": labels, "values": [[at, str(value)] for at, value in samples]} for labels, samples in series]
    return json.dumps({"status": "success", "data": {"resultType": kind, "result": result}}).encode()


@pytest.fixture(autouse=True)
def a_clock_that_stands(monkeypatch):
    monkeypatch.setattr(record, "time", SimpleNamespace(time=lambda: NOW_S, strftime=time.strftime, gmtime=time.gmtime))


@pytest.fixture
def ledger_url(tmp_path):
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    ledger = open_ledger(url)
    gone = PodMeta("uid-gone", "team", "gone", "Job", "train", "n1", "DE", HOURS[0].from_s, 1.0, 1.0)
    signals = {"DE": ZoneSignals(constant(300.0, HOURS[0].from_s, NOW_S))}
    for number in range(13):
        at_s = HOURS[0].from_s + number * 300.0
        ledger.append(Cycle(at_s, [Sample(gone, 100.0, 0.0, 0.0, PowerQuality.MEASURED, "kepler")], signals=signals))
    ledger.close()
    return url


@pytest.fixture
def recorded(tmp_path, capsys, ledger_url):
    """Records a cluster. Gives exit status, output and error."""

    async def main(server, arguments):
        file = tmp_path / "kubeconfig"
        async with FakeCluster() as cluster, serving(server) as url:
            cluster.kubeconfig(file)
            async with KubeClient(connect(kubeconfig=file, environ={})) as client:
                await _fill(client)
            where = ["--kubeconfig", str(file), "--prometheus", url, "--ledger", ledger_url]
            return await asyncio.to_thread(_run, capsys, ["record", *where, "--since", "3h", *arguments])

    return lambda server, *arguments: asyncio.run(main(server, arguments))


async def _fill(client):
    if (await client.list(NODES)).items:
        return
    labels = {"joulie.io/hw.cpu-model": "AMD-EPYC-9654", "joulie.io/hw.cpu-sockets": "2"}
    resources = {"cpu": "192", "memory": "1Ti"}
    await client.create(
        NODES,
        {"metadata": {"name": "n1", "labels": labels}, "status": {"capacity": resources, "allocatable": resources}},
    )
    container = {
        "name": "main",
        "image": "train",
        "env": [{"name": "TOKEN", "value": SECRET}],
        "resources": {"requests": {"cpu": "2", "memory": "1Gi"}},
    }
    notes = {"joulie.io/workload-class": "performance", "joulie.io/grid-trial": "july at-once train", "note": SECRET}
    meta = {"name": "here", "annotations": notes}
    await client.create(PODS, {"metadata": meta, "spec": {"containers": [container]}}, namespace="default")


def _run(capsys, arguments):
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        joulie.main(arguments)
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


@pytest.mark.slow
def test_a_recording_has_what_was_measured_and_nothing_else(recorded, tmp_path):
    out = tmp_path / "week"
    status, text, err = recorded(MetricsServer(), "--out", str(out), "-o", "json")
    assert (status, err) == (0, "")
    summary = json.loads(text)
    assert (summary["nodes"], summary["pods"], summary["missing_hours"]) == (1, 2, [])
    assert summary["power_coverage"] == pytest.approx(33 / 36)
    files = RecordingFiles.open(out)
    power = files.table("power")
    assert set(power["power_w"]) == {200.0}
    assert not [at for at in power["time_s"] if _unmeasured(at)], "a gap has no rows, and is never zero"
    (node,) = files.nodes()
    assert (node.cpu_model, node.sockets, node.idle_w) == ("AMD EPYC 9654", 2, 128.0)
    gone, here = sorted(files.pods(), key=lambda one: one.name)
    assert (here.workload_class, here.cpu_cores, here.node, here.exit) == ("performance", 2.0, None, None)
    assert (gone.owner_kind, gone.owner_name, gone.node) == ("Job", "train", "n1")
    assert (gone.cpu_cores, gone.memory_gib, gone.exit) == (4.0, 2.0, "succeeded")
    assert (gone.started_s, gone.ended_s) == (HOURS[0].from_s + 90.0, HOURS[1].from_s + 900.0)
    energy, signals = files.table("energy"), files.table("signals")
    assert energy["measured_j"].sum() == pytest.approx(100.0 * 3600.0)
    assert signals["intensity_g_per_kwh"].to_list() == [pytest.approx(300.0)]
    assert signals["price_per_kwh"].to_list() == [None], "unknown, not free"


@pytest.mark.slow
def test_progress_is_recorded_of_pods_that_name_its_metric_and_its_gaps_stay(recorded, tmp_path):
    out, server = tmp_path / "week", MetricsServer()
    assert recorded(server, "--out", str(out))[0] == 0
    files = RecordingFiles.open(out)
    assert {one.name: one.progress_metric for one in files.pods()} == {"gone": "steps_total", "here": None}
    ((key, course),) = files.progress().items()
    assert key == ("team", "gone"), "what does not name the metric has no progress"
    assert course.steps.tolist() == [*range(12), *range(15, 36)]
    assert set(course.increases) == {30.0}
    for path in (out / "progress").iterdir():
        path.unlink()
    (out / "progress").rmdir()
    assert files.progress() == {}, "a recording from before there was progress can be read"
    server.queries = []
    assert recorded(server, "--out", str(out))[0] == 0
    assert not [query for query in server.queries if "joulie_rapl" in query]
    assert len(files.progress()["team", "gone"].steps) == 33, "and gets what is missing"


@pytest.mark.slow
def test_how_pods_were_drawn_is_recorded_and_what_the_ledger_knows_of_them(recorded, tmp_path):
    assert recorded(MetricsServer(), "--out", str(tmp_path / "week"))[0] == 0
    files = RecordingFiles.open(tmp_path / "week")
    assert {one.name: (one.trial, one.trial_arm, one.trial_workload) for one in files.pods()} == {
        "gone": ("july", "treatment", "train"),
        "here": ("july", "control", "train"),
    }
    found = files.accounted()
    used = found.used["uid-gone"]
    assert (used.energy_kwh, used.carbon_g, used.covered_s) == pytest.approx((0.1, 30.0, 3600.0))
    assert math.isnan(used.cost), "a price that nobody knows is not zero"
    assert found.carbon == {int(HOURS[0].from_s // 3600.0): pytest.approx(300.0)}
    assert found.price == {}


def test_pods_from_before_there_was_progress_are_read(tmp_path):
    import polars as pl

    files = RecordingFiles.create(tmp_path / "week", Head(Period(0.0, 3600.0), 300.0, anonymised=False))
    files.write("pods", [{"uid": "u", "namespace": "team", "name": "a"}])
    (part,) = (tmp_path / "week" / "pods").iterdir()
    pl.read_parquet(part).drop("progress_metric", "trial", "trial_arm", "trial_workload").write_parquet(part)
    assert files.pods() == [PodRecord("u", "team", "a")]


@pytest.mark.slow
def test_an_hour_that_fails_is_missing_and_the_same_command_adds_it(recorded, tmp_path):
    out, server = tmp_path / "week", MetricsServer()
    server.failing_hour = HOURS[1]
    status, text, err = recorded(server, "--out", str(out))
    assert status == 1
    assert "is missing: " in err
    assert "1 hours are missing" in text
    assert {round(at) for at in RecordingFiles.open(out).table("power")["time_s"]}.isdisjoint(
        {round(HOURS[1].from_s + 1800.0)}
    )
    server.failing_hour, server.queries = None, []
    assert recorded(server, "--out", str(out))[0] == 0
    assert len([query for query in server.queries if "joulie_rapl" in query]) == 1, "only the missing hour is asked"


@pytest.mark.slow
def test_an_anonymised_recording_holds_no_names_and_none_holds_secrets(recorded, tmp_path):
    for folder, arguments in (("plain", []), ("hidden", ["--anonymise"])):
        out = tmp_path / folder
        assert recorded(MetricsServer(), "--out", str(out), *arguments)[0] == 0
        content = (
            "".join(row for path in out.rglob("*.parquet") for row in map(str, _rows(path)))
            + (out / "recording.json").read_text()
        )
        assert SECRET not in content
        assert ("train" in content) == (folder == "plain")
        if folder == "hidden":
            assert not [name for name in ("'n1'", "team", "gone", "DE") if name in content]
            assert (tmp_path / "hidden.key").stat().st_mode & 0o777 == 0o600


def _rows(path):
    import polars as pl

    return pl.read_parquet(path).to_dicts()


def test_what_is_there_is_not_overwritten(recorded, tmp_path):
    other = tmp_path / "documents"
    other.mkdir()
    (other / "letter.txt").write_text("Dear")
    status, _, err = recorded(MetricsServer(), "--out", str(other))
    assert status == 2
    assert "is not empty and not a recording" in err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--step", "7m"], "invalid --step 7m"),
        (["--since", "10m"], "at least the last 1h"),
        (["--since", "x"], "not a duration"),
    ],
)
def test_wrong_times_are_one_line(recorded, tmp_path, arguments, problem):
    status, _, err = recorded(MetricsServer(), "--out", str(tmp_path / "week"), *arguments)
    assert status == 2
    assert problem in err
    assert len(err.splitlines()) == 1


def test_of_each_field_the_last_known_value_counts():
    first = PodRecord("u", "team", "a", started_s=5.0, node="n1")
    later = PodRecord("u", "team", "a", ended_s=9.0, exit="failed")
    (merged,) = merge_pods([first, later])
    assert (merged.node, merged.started_s, merged.ended_s, merged.exit) == ("n1", 5.0, 9.0, "failed")


def test_pseudonyms_are_stable_and_differ_by_kind_and_key():
    names = Pseudonyms(b"key")
    row = {"node": "a", "pod": "a", "name": "a", "power_w": 3.0, "uid": None}
    hidden = names.of(row)
    assert hidden["pod"] == hidden["name"] != hidden["node"]
    assert (hidden["power_w"], hidden["uid"]) == (3.0, None)
    assert Pseudonyms(b"other").of(row)["node"] != hidden["node"] == names.of(row)["node"]


def test_a_damaged_recording_is_named(tmp_path):
    head = Head(Period(0.0, 3600.0), 300.0, anonymised=False)
    files = RecordingFiles.create(tmp_path / "week", head)
    files.write("power", [{"time_s": 300.0, "node": "n1", "power_w": math.pi}], head.period)
    (part,) = (tmp_path / "week" / "power").iterdir()
    part.write_bytes(b"PAR1")
    with pytest.raises(RecordingError, match="record again"):
        files.table("power")
    with pytest.raises(RecordingError, match="not a recording"):
        RecordingFiles.open(tmp_path)
