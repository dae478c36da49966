"""The pages on loopback answer only to who started them, and by the names of this machine."""

import asyncio

import click
import httpx2
import pytest

from joulie.adapters.kubernetes.client import KubeClient
from joulie.apps.kubectl.accounting import AccountingEndpoint
from joulie.apps.kubectl.leader import LeaderEndpoint
from joulie.apps.kubectl.web import main
from joulie.apps.kubectl.web.access import COOKIE, LOGIN_PATH, LoopbackAccess
from joulie.program.http import Server, respond
from joulie_lab.fakes.kubernetes import FakeCluster
from support.web_reviews import NOWHERE
from support.web_stage import fill, fleet


async def page(_scope, _receive, send):
    await respond(send, 200, b"secret")


def asked(*requests, host="127.0.0.1:8080"):
    """Responses to requests (method, path) of one client, which keeps cookies; {token} stands for the token."""

    async def ask():
        access = LoopbackAccess(page)
        token = access.token
        transport = httpx2.ASGITransport(app=access)
        async with httpx2.AsyncClient(transport=transport, base_url=f"http://{host}") as client:
            return [await client.request(method, path.format(token=token)) for method, path in requests]

    return asyncio.run(ask())


LOGIN = ("GET", LOGIN_PATH + "?token={token}")


def test_a_token_opens_a_session_once():
    login, inside, again = asked(LOGIN, ("GET", "/"), LOGIN)
    assert (login.status_code, inside.status_code, inside.text) == (303, 200, "secret")
    assert again.status_code == 401
    cookie = login.headers["set-cookie"].lower()
    assert cookie.startswith(COOKIE)
    assert {"httponly", "samesite=strict"} <= set(cookie.split("; "))


@pytest.mark.parametrize("path", ["/", "/api/v1/fleet", LOGIN_PATH, LOGIN_PATH + "?token=guess", "/static/joulie.js"])
def test_nobody_else_sees_anything(path):
    (answer,) = asked(("GET", path))
    assert (answer.status_code, "secret" in answer.text) == (401, False)


@pytest.mark.parametrize("host", ["evil.example:8080", "127.0.0.1.evil.example:8080", "10.0.0.1:8080", "evil.example"])
def test_a_name_that_somebody_resolves_to_this_machine_is_refused(host):
    assert [answer.status_code for answer in asked(LOGIN, ("GET", "/"), host=host)] == [421, 421]


def test_nothing_can_be_written_and_every_answer_has_the_policy():
    _, post, get = asked(LOGIN, ("POST", "/"), ("GET", "/"))
    assert post.status_code == 405
    for answer in (post, get):
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["cache-control"] == "no-store"


async def serve(client, port=0):
    leaders = (LeaderEndpoint("joulie-system", 8081, NOWHERE, program=name) for name in ("operator", "grid"))
    accounting = AccountingEndpoint("joulie-system", 10259, NOWHERE, verify=False)
    await main.serve(client, main.Request(port, "", True, *leaders, accounting))


def test_the_command_prints_a_link_that_opens_the_cluster_once(tmp_path, capsys, monkeypatch):
    async def story():
        opened = asyncio.get_running_loop().create_future()
        monkeypatch.setattr(main.webbrowser, "open", opened.set_result)
        async with FakeCluster() as fake:
            fill(fake, fleet(3, 1, fake.api.timestamp()))
            async with KubeClient.connect(kubeconfig=fake.kubeconfig(tmp_path / "kubeconfig")) as client:
                serving = asyncio.create_task(serve(client))
                url = await opened
                assert capsys.readouterr().out.startswith(f"{url}\n")
                host = url.partition("/login")[0]
                async with (
                    httpx2.AsyncClient(base_url=host, follow_redirects=True) as browser,
                    httpx2.AsyncClient() as stranger,
                ):
                    page, again = await browser.get(url), await stranger.get(url)
                    nodes = (await browser.get("/api/v1/fleet")).json()["summary"]["nodes"]
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)
                return page.status_code, again.status_code, nodes

    assert asyncio.run(story()) == (200, 401, 3)


def test_a_port_that_is_in_use_is_one_line(tmp_path):
    async def story():
        async with (
            FakeCluster() as fake,
            Server(page, ("127.0.0.1", 0)) as other,
            KubeClient.connect(kubeconfig=fake.kubeconfig(tmp_path / "kubeconfig")) as client,
        ):
            with pytest.raises(click.ClickException, match=rf"^cannot listen on 127.0.0.1:{other.port}: .*--port"):
                await serve(client, other.port)

    asyncio.run(story())
