"""`joulie grid controller` as a program: its probes, its metrics, its answer about the grid, its lease."""

import asyncio
import gc
import json
import ssl
from datetime import UTC, datetime

import httpx2
import numpy as np
import pytest
from click.testing import CliRunner

from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.connection import connect
from joulie.adapters.kubernetes.lease import LeaderElector
from joulie.adapters.kubernetes.resources import HORIZONTAL_POD_AUTOSCALERS, LEASES, PODS
from joulie.apps.cli.main import cli
from joulie.apps.grid import ceilings, main
from joulie.apps.grid.settings import ControllerSettings
from joulie.apps.kubectl import main as plugin
from joulie.domain.grid import names
from joulie.program.settings import settings_from
from joulie_lab.fakes.kubernetes import FakeCluster
from support.grid_stage import GATES, NS

pytestmark = pytest.mark.slow  # the whole program

DELAY_S = 300.0


class Running:
    """The program in this process, and what it serves."""

    def __init__(self, client, http, port):
        self.client, self._http, self._port = client, http, port

    @property
    def url(self):
        return f"https://127.0.0.1:{self._port}"

    async def get(self, path):
        return await self._http.get(self.url + path)

    async def until(self, path, met):
        async with asyncio.timeout(20.0):
            while True:
                answer = await self.get(path)
                if met(answer):
                    return answer
                await asyncio.sleep(0.02)


def play(body, tmp_path, monkeypatch, **settings):
    ports = []

    class Server(main.Server):
        def __init__(self, app, address, *, tls=None):
            super().__init__(app, address, tls=tls)
            ports.append(self.port)

    monkeypatch.setattr(main, "Server", Server)
    monkeypatch.setattr(gc, "freeze", lambda: None)

    async def run():
        async with FakeCluster() as cluster:
            kubeconfig = cluster.kubeconfig(tmp_path / "kubeconfig")
            values = {
                "kubeconfig": kubeconfig, "metrics_addr": "127.0.0.1:0", "namespace": NS, "identity": "grid-0",
                "carbon_sources": ("static",), "source_settings": {"carbon": {"static": 300.0}},
                "electricity_map_api_region": "DE",
            }  # fmt: skip
            stop = asyncio.Event()
            # The certificate is the program's own, as kube-scheduler's: nobody can verify it.
            trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
            program = asyncio.create_task(main.serve(ControllerSettings(**(values | settings)), stop))
            try:
                async with (
                    KubeClient(connect(kubeconfig=kubeconfig)) as client,
                    httpx2.AsyncClient(verify=trust) as http,
                ):
                    while not ports and not program.done():
                        await asyncio.sleep(0)
                    await body(Running(client, http, ports[0]))
            finally:
                stop.set()
                await program

    asyncio.run(run())


def test_the_program_holds_and_tells(tmp_path, monkeypatch):
    async def body(running):
        await running.until("/readyz", lambda answer: answer.status_code == 200)
        pod = {
            "metadata": {"name": "web", "annotations": {names.MAX_DELAY: "5m"}},
            "spec": {"schedulerName": names.SCHEDULER_NAME, "schedulingGates": GATES, "containers": [{"name": "c"}]},
        }
        await running.client.create(PODS, pod, NS)
        answer = await running.until(
            "/debug/grid", lambda answer: answer.status_code == 200 and answer.json()["waiting"].get("carbon") == 1
        )
        told = answer.json()
        (signal,) = told["signals"]
        assert (signal["zone"], signal["value"], signal["source"]) == ("DE", 300.0, "static")
        (deferral,) = (await running.get(f"/debug/grid?pod={NS}/web")).json()["cases"]
        assert deferral["decision"] == "hold"
        assert "300 gCO2eq/kWh" in deferral["text"]
        assert DELAY_S - 60.0 < deferral["latestStartInS"] <= DELAY_S
        assert (await running.get(f"/debug/grid?pod={NS}/other")).json().get("cases", []) == []
        metrics = (await running.get("/metrics")).text
        assert 'scheduler_compute_gardener_carbon_intensity{data_status="estimated",region="DE"} 300.0' in metrics
        assert 'joulie_grid_waiting_pods{reason="carbon"} 1.0' in metrics
        lease = await running.client.get(LEASES, "joulie-grid", NS)
        assert lease.spec.holder_identity.startswith("grid-0_")

    play(body, tmp_path, monkeypatch)


def test_g12_the_status_tells_a_forecast_whose_minimum_lies_ahead(tmp_path, monkeypatch, capsys):
    now_s = datetime.now(UTC).timestamp()  # noqa: TID251 - the program's own clock
    hours = np.arange(now_s // 3600 * 3600 - 28 * 86400, now_s, 3600)
    values = 300.0 + 200.0 * np.cos(2.0 * np.pi * (hours - now_s) / 86400.0)
    rows = (f"{datetime.fromtimestamp(at, UTC).isoformat()},{value}" for at, value in zip(hours, values, strict=True))
    history = tmp_path / "history.csv"
    history.write_text("\n".join(["time,intensity", *rows]))

    async def body(running):
        await running.until("/readyz", lambda answer: answer.status_code == 200)
        for name, mode in (("web", "optimal"), ("batch", "interruptible")):
            pod = {
                "metadata": {"name": name, "annotations": {names.MODE: mode}},
                "spec": {
                    "schedulerName": names.SCHEDULER_NAME,
                    "schedulingGates": GATES,
                    "containers": [{"name": "c"}],
                },
            }
            await running.client.create(PODS, pod, NS)
        answer = await running.until(
            "/debug/grid", lambda answer: answer.status_code == 200 and len(answer.json().get("cases", [])) == 2
        )
        (signal,) = answer.json()["signals"]
        assert signal["forecastSource"] == "joulie"
        assert signal["lowestInS"] > 6 * 3600.0
        assert signal["lowest"] < signal["value"]
        where = ["--kubeconfig", str(tmp_path / "kubeconfig"), "--grid-url", running.url, "--insecure-skip-tls-verify"]
        assert await asyncio.to_thread(_status_of, ["grid", *where]) == 0
        assert "2 pods waiting" in capsys.readouterr().out

    settings = settings_from(ControllerSettings, {"CARBON_FILE_PATH": str(history)})
    play(body, tmp_path, monkeypatch, carbon_sources=("file",), source_settings=settings.source_settings)


def test_kubectl_shows_ceilings_on_replicas(tmp_path, monkeypatch, capsys):
    async def body(running):
        body = {
            "metadata": {"name": "encoder", "annotations": {names.CARBON_MAX_REPLICAS: "200: 20"}},
            "spec": {"maxReplicas": 40, "minReplicas": 1, "scaleTargetRef": {"kind": "Deployment", "name": "encoder"}},
        }
        await running.client.create(HORIZONTAL_POD_AUTOSCALERS, body, NS)
        await running.until(
            "/debug/grid",
            lambda answer: (
                answer.status_code == 200 and [one["maximum"] for one in answer.json().get("ceilings", [])] == [20]
            ),
        )
        where = ["--kubeconfig", str(tmp_path / "kubeconfig"), "--grid-url", running.url, "--insecure-skip-tls-verify"]
        assert await asyncio.to_thread(_status_of, ["grid", *where]) == 0
        out = capsys.readouterr().out
        assert "Ceilings on replicas: 1 lowered of 1 autoscaler." in out
        (row,) = (line.split() for line in out.splitlines() if "hpa/encoder" in line)
        assert row[:5] == [NS, "hpa/encoder", "20", "of", "40"]

    monkeypatch.setattr(ceilings, "STEP_S", 0.2)
    play(body, tmp_path, monkeypatch, replica_ceilings_enabled=True)


def test_kubectl_says_why_a_pod_waits_and_until_when(tmp_path, monkeypatch, capsys):
    async def joulie(running, *arguments):
        where = ["--kubeconfig", str(tmp_path / "kubeconfig"), "--grid-url", running.url, "--insecure-skip-tls-verify"]
        capsys.readouterr()
        status = await asyncio.to_thread(_status_of, [*arguments, *where])
        captured = capsys.readouterr()
        assert status == 0, captured.err
        return captured.out

    async def body(running):
        await running.until("/debug/grid", lambda answer: answer.status_code == 200)
        assert "No pod waits for the grid." in await joulie(running, "grid")
        pod = {
            "metadata": {"name": "web", "annotations": {names.MAX_DELAY: "5h"}},
            "spec": {"schedulerName": names.SCHEDULER_NAME, "schedulingGates": GATES, "containers": [{"name": "c"}]},
        }
        await running.client.create(PODS, pod, NS)
        await running.until(
            "/debug/grid", lambda answer: answer.status_code == 200 and answer.json()["waiting"].get("carbon") == 1
        )
        table = await joulie(running, "grid", "-o", "wide")
        assert "1 pod waiting: 1 for carbon." in table
        assert "300g/kWh" in table
        assert "1 pod such as default/web: waits: carbon intensity 300 gCO2eq/kWh (DE, static" in table
        (signal,) = json.loads(await joulie(running, "grid", "-o", "json"))["signals"]
        assert signal["value"] == 300.0
        told = (await joulie(running, "explain", "pod", "web")).splitlines()
        assert told[0] == "default/web waits for its scheduling gates: joulie.io/grid"
        assert told[1].startswith("  waits: carbon intensity 300 gCO2eq/kWh (DE, static")
        assert told[3] == "  expected to run for 1h00m (assumed)"
        assert told[4] == "  starts in 5h00m at the latest"
        assert told[5].endswith("or when a signal of DE changes")
        told = json.loads(await joulie(running, "explain", "pod", "web", "-o", "json"))
        assert len(told["state"]["grid"]) == 5

    play(body, tmp_path, monkeypatch)


def test_without_a_controller_the_pod_itself_tells_why_it_waits(tmp_path, capsys):
    async def main():
        async with FakeCluster() as cluster:
            kubeconfig = cluster.kubeconfig(tmp_path / "kubeconfig")
            pod = {
                "metadata": {"name": "web", "annotations": {names.INITIAL_CARBON_INTENSITY: "412.00"}},
                "spec": {"schedulingGates": GATES, "containers": [{"name": "c"}]},
            }
            async with KubeClient(connect(kubeconfig=kubeconfig)) as client:
                await client.create(PODS, pod, NS)
            return await asyncio.to_thread(_status_of, ["explain", "pod", "web", "--kubeconfig", str(kubeconfig)])

    assert asyncio.run(main()) == 0
    told = capsys.readouterr().out
    assert "initial carbon intensity 412.00" in told
    assert "no leader of the grid controller in namespace joulie-system" in told


def _status_of(arguments):
    with pytest.raises(SystemExit) as ended:
        plugin.main(arguments)
    return ended.value.code


def test_who_does_not_lead_says_so(tmp_path, monkeypatch):
    async def body(running):
        assert (await running.get("/healthz")).status_code == 200
        answer = await running.get("/debug/grid")
        assert answer.status_code == 503
        assert answer.json() == {"leader": False}

    monkeypatch.setattr(LeaderElector, "run", lambda _self, _lead: asyncio.Event().wait())
    play(body, tmp_path, monkeypatch)


def test_trap_without_a_key_the_program_runs_and_holds_nobody(tmp_path, monkeypatch):
    async def body(running):
        pod = {
            "metadata": {"name": "web"},
            "spec": {"schedulerName": names.SCHEDULER_NAME, "schedulingGates": GATES, "containers": [{"name": "c"}]},
        }
        await running.client.create(PODS, pod, NS)
        async with asyncio.timeout(20.0):
            while (await running.client.get(PODS, "web", NS)).spec.scheduling_gates:
                await asyncio.sleep(0.02)
        told = (await running.get("/debug/grid")).json()
        assert told["signals"][0]["quality"] == "missing"
        assert "ELECTRICITY_MAP_API_KEY" in told["signals"][0]["problem"]

    play(
        body,
        tmp_path,
        monkeypatch,
        carbon_sources=("electricity-maps",),
        source_settings=ControllerSettings().source_settings,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--metrics-addr", "nowhere"], "invalid address 'nowhere'"),
        (["--metrics-tls-cert-file", "cert.pem"], "METRICS_TLS_CERT_FILE and METRICS_TLS_KEY_FILE go together"),
        (["--releases-per-second", "0"], "at least 0.01"),
    ],
)
def test_wrong_settings_are_named(arguments, message):
    result = CliRunner().invoke(cli, ["grid", "controller", *arguments])
    assert result.exit_code == 2
    assert message in result.output


def test_the_programs_of_the_grid_are_listed():
    result = CliRunner().invoke(cli, ["grid", "--help"])
    assert all(name in result.output for name in ("controller", "guard", "webhook"))
