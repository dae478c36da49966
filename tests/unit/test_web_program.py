"""`joulie web` as a program: its servers, readiness, settings, and who may speak to the proxy's port."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable

import httpx2
import pytest
from click.testing import CliRunner

from joulie.apps.kubectl.web.program import serve, web
from joulie.apps.kubectl.web.settings import WebSettings
from joulie.program.settings import settings_from
from joulie_lab.control_plane.certificates import CertificateAuthority
from joulie_lab.control_plane.ports import free_port
from joulie_lab.fakes.kubernetes import FakeCluster

Ports = tuple[int, int, int]


def with_program(tmp_path, body: Callable[[Ports], Awaitable[None]], prepare=lambda _cluster: None, **environment):
    """Run `body` with the ports of the pages, of the proxy's server and of the probes."""

    async def main():
        async with FakeCluster() as cluster:
            prepare(cluster)
            probes = free_port()
            given = {"KUBECONFIG": str(cluster.kubeconfig(tmp_path / "kubeconfig")), "WEB_ADDR": "127.0.0.1:0",
                     "METRICS_ADDR": f"127.0.0.1:{probes}", "SHUTDOWN_DELAY": "0s", **environment}  # fmt: skip
            stop, found = asyncio.Event(), asyncio.get_running_loop().create_future()

            def listening(pages, proxy):
                found.set_result((pages, proxy or 0, probes))

            program = asyncio.create_task(serve(settings_from(WebSettings, given), stop, listening))
            await asyncio.wait({program, found}, return_when=asyncio.FIRST_COMPLETED)
            try:
                await body(await found)
            finally:
                stop.set()
                await asyncio.wait_for(program, 30.0)

    asyncio.run(main())


async def ready(port, expected="ok"):
    """Wait until /readyz begins with this text."""
    async with httpx2.AsyncClient(trust_env=False) as client:
        for _ in range(600):
            answer = await client.get(f"http://127.0.0.1:{port}/readyz")
            if answer.text.startswith(expected):
                return
            await asyncio.sleep(0.02)
    raise AssertionError(answer.text)


def test_headers_count_from_the_proxy_with_its_certificate_only(tmp_path):
    authority = CertificateAuthority(tmp_path / "ca")
    own = authority.issue("web", hosts=["127.0.0.1"])
    proxy = authority.issue("proxy")
    as_anna = {"X-Forwarded-User": "anna"}

    def context(pair=None):
        made = ssl.create_default_context(cafile=str(authority.certificate))
        if pair is not None:
            made.load_cert_chain(pair.certificate, pair.key)
        return made

    async def body(ports):
        pages, proxied, probes = ports
        await ready(probes)
        async with httpx2.AsyncClient(verify=context(), trust_env=False) as stranger:
            direct = await stranger.get(f"https://127.0.0.1:{pages}/api/v1/fleet", headers=as_anna)
            with pytest.raises(httpx2.TransportError):
                await stranger.get(f"https://127.0.0.1:{proxied}/api/v1/fleet", headers=as_anna)
        async with httpx2.AsyncClient(verify=context(proxy), trust_env=False) as client:
            named = await client.get(f"https://127.0.0.1:{proxied}/api/v1/fleet", headers=as_anna)
            unnamed = await client.get(f"https://127.0.0.1:{proxied}/api/v1/fleet")
        # The fake cluster has no reviews: that it is asked what anna may do shows that the header counts.
        assert (direct.status_code, unnamed.status_code) == (401, 401)
        assert (named.status_code, "subjectaccessreviews" in named.text) == (404, True)

    with_program(
        tmp_path, body, PROXY_ADDR="127.0.0.1:0", PROXY_CLIENT_CA_FILE=str(authority.certificate),
        WEB_TLS_CERT_FILE=str(own.certificate), WEB_TLS_KEY_FILE=str(own.key),
    )  # fmt: skip


def test_it_is_not_ready_before_everything_is_listed_and_says_what_is_missing(tmp_path):
    async def body(ports):
        await ready(ports[2], "caches: not listed yet: pods (")

    with_program(tmp_path, body, lambda cluster: cluster.fail_next(1000, 403, path="/api/v1/pods"))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--web-tls-cert-file", "a.pem"], "WEB_TLS_CERT_FILE and WEB_TLS_KEY_FILE go together"),
        (["--proxy-addr", ":8444"], "PROXY_ADDR needs PROXY_CLIENT_CA_FILE"),
        (["--web-addr", "pages"], "invalid address 'pages'"),
        (["--accounting-url", "https://joulie-accounting"], "ACCOUNTING_URL needs ACCOUNTING_TOKEN_FILE"),
        (["--session-max-age", "1s"], "at least"),
    ],
)
def test_settings_that_cannot_be(arguments, complaint):
    result = CliRunner().invoke(web, arguments)
    assert result.exit_code == 2
    assert complaint in result.output
