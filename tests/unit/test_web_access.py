"""The pages on loopback answer only to who started them, and by the names of this machine."""

import asyncio

import httpx2
import pytest

from joulie.apps.kubectl.web.access import COOKIE, LOGIN_PATH, LoopbackAccess
from joulie.program.http import respond


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
