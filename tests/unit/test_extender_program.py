"""`joulie extender` as a whole against the fake cluster: ready when its caches are, plain and mutual TLS."""

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from click.testing import CliRunner

from joulie.apps.extender.main import extender, serve
from joulie.apps.extender.settings import ExtenderSettings
from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie_lab.control_plane.certificates import CertificateAuthority
from joulie_lab.control_plane.ports import free_port
from joulie_lab.fakes.kubernetes import FakeCluster

pytestmark = pytest.mark.slow

CALL = {"Pod": {"metadata": {"name": "p"}}, "Nodes": None, "NodeNames": ["n1", "n2"]}
Body = Callable[[FakeCluster, ExtenderSettings], Awaitable[None]]


def with_program(
    tmp_path: Path, body: Body, prepare: Callable[[FakeCluster], None] = lambda _: None, **settings: Any
) -> None:
    async def main() -> None:
        async with FakeCluster() as cluster:
            prepare(cluster)
            chosen = ExtenderSettings(
                shutdown_delay_s=0.0,
                kubeconfig=cluster.kubeconfig(tmp_path / "kubeconfig"),
                port=free_port(),
                metrics_addr=f"127.0.0.1:{free_port()}",
                **settings,
            )
            stop = asyncio.Event()
            running = asyncio.create_task(serve(chosen, BUILTIN_CATALOGUE, stop))
            async with asyncio.timeout(30.0):
                await body(cluster, chosen)
                stop.set()
                await running

    asyncio.run(main())


async def ready(settings: ExtenderSettings, expected: int = 200) -> httpx2.Response:
    """The answer of /readyz once it has the expected status."""
    async with httpx2.AsyncClient(trust_env=False) as client:
        while True:
            try:
                answer = await client.get(f"http://{settings.metrics_addr}/readyz")
            except httpx2.ConnectError:
                await asyncio.sleep(0)
                continue
            if answer.status_code == expected:
                return answer


def test_ready_serves_and_stops(tmp_path: Path) -> None:
    async def body(_cluster: FakeCluster, settings: ExtenderSettings) -> None:
        await ready(settings)
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{settings.port}", trust_env=False) as client:
            answer = await client.post("/prioritize", json=CALL)
            assert answer.json() == [{"Host": "n1", "Score": 5}, {"Host": "n2", "Score": 5}]
            assert (await client.get("/readyz")).status_code == 200
            assert (await client.get("/debug/scoring")).json()["nodes"] == []
            metrics = await client.get(f"http://{settings.metrics_addr}/metrics")
            assert 'joulie_extender_requests_total{code="200",verb="prioritize"} 1.0' in metrics.text

    with_program(tmp_path, body)


def test_l2_when_told_to_stop_it_is_not_ready_and_answers_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeCluster() as cluster, asyncio.timeout(30.0):
            settings = ExtenderSettings(
                kubeconfig=cluster.kubeconfig(tmp_path / "kubeconfig"),
                port=free_port(),
                metrics_addr=f"127.0.0.1:{free_port()}",
                shutdown_delay_s=3600.0,
            )
            stop = asyncio.Event()
            running = asyncio.create_task(serve(settings, BUILTIN_CATALOGUE, stop))
            await ready(settings)
            stop.set()
            assert (await ready(settings, expected=503)).text == "shutdown: shutting down\n"
            async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{settings.port}", trust_env=False) as client:
                answer = await client.post("/prioritize", json=CALL)
            assert [entry["Score"] for entry in answer.json()] == [5, 5]
            running.cancel()
            await asyncio.wait([running])

    asyncio.run(main())


def test_not_ready_while_the_twins_are_not_listed(tmp_path: Path) -> None:
    """Forbidden, say, or the CRDs are not there: without its caches the extender would judge blindly."""

    async def body(_cluster: FakeCluster, settings: ExtenderSettings) -> None:
        answer = await ready(settings, expected=503)
        assert "not listed yet: " in answer.text
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{settings.port}", trust_env=False) as client:
            assert (await client.post("/filter", json=CALL)).status_code == 503
            assert (await client.get("/healthz")).status_code == 200

    def prepare(cluster: FakeCluster) -> None:
        cluster.fail_next(1000, 403, path="nodetwins")

    with_program(tmp_path, body, prepare)


def test_mutual_tls_lets_in_only_its_own_clients(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path / "ca")
    own = authority.issue("extender", hosts=["127.0.0.1"])
    scheduler = authority.issue("scheduler")

    async def body(_cluster: FakeCluster, settings: ExtenderSettings) -> None:
        await ready(settings)
        url = f"https://127.0.0.1:{settings.port}/prioritize"
        stranger = ssl.create_default_context(cafile=str(authority.certificate))
        known = ssl.create_default_context(cafile=str(authority.certificate))
        known.load_cert_chain(scheduler.certificate, scheduler.key)
        async with httpx2.AsyncClient(verify=known, trust_env=False) as client:
            answer = await client.post(url, content=json.dumps(CALL))
            assert [entry["Score"] for entry in answer.json()] == [5, 5]
        async with httpx2.AsyncClient(verify=stranger, trust_env=False) as client:
            with pytest.raises(httpx2.TransportError):
                await client.post(url, content=json.dumps(CALL))

    with_program(
        tmp_path,
        body,
        tls_certificate=own.certificate,
        tls_key=own.key,
        tls_client_ca=authority.certificate,
    )


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--port", "70000"], "70000 is out of range: expected 0..65535"),
        (["--cache-ttl", "30"], "write 20s, 1m30s or 500ms"),
        (["--tls-cert-file", "a.pem"], "TLS_CERT_FILE and TLS_KEY_FILE go together"),
        (["--tls-client-ca-file", "a.pem"], "TLS_CLIENT_CA_FILE needs TLS_CERT_FILE"),
        (["--classify-min-confidence", "2"], "0..1"),
        (["--hardware-catalog-path", "/does/not/exist.yaml"], "cannot be read"),
    ],
)
def test_settings_that_cannot_be(arguments: list[str], complaint: str) -> None:
    result = CliRunner().invoke(extender, arguments)
    assert result.exit_code == 2
    assert complaint in result.output


def test_documented_defaults() -> None:
    settings = ExtenderSettings()
    assert (settings.port, settings.metrics_addr) == (9876, ":9877")
    assert (settings.cache_ttl_s, settings.twin_staleness_s, settings.min_confidence) == (30.0, 300.0, 0.5)
    assert settings.tls is None
