"""What the client does when the server fails, hangs, refuses or talks nonsense."""

import asyncio
import json
import logging
import os
import ssl

import httpx2
import pytest

from joulie.adapters.prometheus import (
    History,
    Prometheus,
    PrometheusAuth,
    PrometheusError,
    PrometheusUnavailableError,
    connect,
)
from joulie.adapters.prometheus import client as client_module
from joulie.domain.signal import Reading
from joulie.http_client import tls_context
from joulie_lab.control_plane.certificates import CertificateAuthority
from support.prometheus_answers import vector
from support.scripted_server import serving
from support.virtual_time import run_virtually

OK = (200, vector(({}, 1.0)))
DOWN = (503, "no")
BAD = (400, {"status": "error", "errorType": "bad_data", "error": "parse error"})


class Server:
    """Answers in turn, the last one for ever; an exception is raised instead, a number of seconds is silence."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.requests = []

    async def handle(self, request):
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, int):
            await asyncio.sleep(answer)
            raise httpx2.ReadTimeout("slow")
        status, body = answer
        return httpx2.Response(status, content=body.encode() if isinstance(body, str) else json.dumps(body).encode())


def talking(server, talk, **settings):
    """Run `talk` with a client of the server, in a time that jumps; its clock is the loop's."""

    async def main():
        clock = asyncio.get_running_loop().time
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(server.handle)) as client:
            address = settings.pop("address", "http://prometheus:9090")
            return await talk(Prometheus(address, client, now_s=clock, **settings))

    return run_virtually(main())


async def fails(prometheus, kind=PrometheusUnavailableError):
    with pytest.raises(kind) as raised:
        await prometheus.query("up")
    return raised.value


# ---- repeating


@pytest.mark.parametrize(
    "first",
    [DOWN, (429, "slow down"), httpx2.ConnectError("refused"), httpx2.ReadError("reset"), ssl.SSLError("alert")],
)
def test_a_failure_of_the_server_is_repeated_once(first):
    server = Server(first, OK)

    async def talk(prometheus):
        assert len(await prometheus.query("up")) == 1
        assert prometheus.problem is None

    talking(server, talk)
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    "answer", [BAD, (422, "too many samples"), (401, "who?"), (404, "no such page"), (200, "<html>")]
)
def test_an_answer_is_not_repeated_however_bad(answer):
    server = Server(answer)

    async def talk(prometheus):
        error = await fails(prometheus, PrometheusError)
        assert not isinstance(error, PrometheusUnavailableError)

    talking(server, talk)
    assert len(server.requests) == 1


def test_a_request_that_ran_out_of_time_is_not_repeated():
    server = Server(httpx2.ReadTimeout("slow"))
    talking(server, fails)
    assert len(server.requests) == 1


def test_the_server_is_told_how_long_anyone_waits():
    server = Server(OK)
    talking(server, lambda prometheus: prometheus.query("up"), timeout_s=2.5)
    assert server.requests[0].content == b"query=up&timeout=2.5"
    assert server.requests[0].extensions["timeout"]["read"] == 2.5


# ---- the breaker


def test_after_three_failures_nobody_waits_for_a_dead_server():
    server = Server(DOWN)

    async def talk(prometheus):
        for _ in range(3):
            assert prometheus.problem is None
            await fails(prometheus)
        sent = len(server.requests)
        assert "503" in prometheus.problem
        error = await fails(prometheus)
        assert "next try in 30 s" in str(error)
        assert "503" in str(error)
        assert len(server.requests) == sent

    talking(server, talk)


def test_the_pause_doubles_up_to_five_minutes_and_ends_with_an_answer():
    server = Server(DOWN)

    async def talk(prometheus):
        for _ in range(3):
            await fails(prometheus)
        for pause_s in (30, 60, 120, 240, 300, 300):
            await asyncio.sleep(pause_s - 2)
            sent = len(server.requests)
            await fails(prometheus)
            assert len(server.requests) == sent, f"tried before {pause_s} s"
            await asyncio.sleep(2)
            await fails(prometheus)
            assert len(server.requests) > sent, f"not tried after {pause_s} s"
        server.answers = [OK]
        await asyncio.sleep(300)
        assert prometheus.problem is not None
        await prometheus.query("up")
        assert prometheus.problem is None
        server.answers = [DOWN]  # and it takes three failures again
        await fails(prometheus)
        assert prometheus.problem is None

    talking(server, talk)


def test_one_request_at_a_time_tries_a_server_that_was_dead():
    server = Server(DOWN)

    async def talk(prometheus):
        for _ in range(3):
            await fails(prometheus)
        await asyncio.sleep(30)
        sent = len(server.requests)
        await asyncio.gather(*(fails(prometheus) for _ in range(5)))
        assert len(server.requests) == sent + 2  # one, repeated once

    talking(server, talk)


def test_a_failure_now_and_then_opens_nothing():
    server = Server(DOWN, DOWN, DOWN, DOWN, OK, DOWN)

    async def talk(prometheus):
        await fails(prometheus)
        await fails(prometheus)
        await prometheus.query("up")
        await fails(prometheus)
        assert prometheus.problem is None

    talking(server, talk)


def test_bad_queries_do_not_open_the_breaker():
    server = Server(BAD)

    async def talk(prometheus):
        for _ in range(10):
            await fails(prometheus, PrometheusError)
        assert prometheus.problem is None

    talking(server, talk)
    assert len(server.requests) == 10


def test_a_server_that_says_no_is_alive():
    server = Server(DOWN)

    async def talk(prometheus):
        await fails(prometheus)
        await fails(prometheus)
        server.answers = [BAD]
        await fails(prometheus, PrometheusError)
        server.answers = [DOWN]
        await fails(prometheus)
        assert prometheus.problem is None

    talking(server, talk)


def test_whoever_gives_up_waiting_leaves_the_breaker_as_it_was():
    server = Server(DOWN)

    async def talk(prometheus):
        for _ in range(3):
            await fails(prometheus)
        await asyncio.sleep(30)
        server.answers = [1000]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await prometheus.query("up")
        server.answers = [OK]
        await prometheus.query("up")  # the next one may try at once
        assert prometheus.problem is None

    talking(server, talk)


# ---- answers


def test_samples_of_a_range_selector_have_their_own_times():
    body = {
        "status": "success",
        "data": {
            "resultType": "matrix",
            "result": [
                {
                    "metric": {"__name__": "e", "node": "a"},
                    "values": [[10.5, "1"], [25.25, "NaN"], [40, "+Inf"], [41, "3"]],
                },
                {"metric": {"node": "b"}, "histograms": []},
            ],
        },
    }
    server = Server((200, body))
    found = talking(server, lambda prometheus: prometheus.query_samples("e[1m]"))
    assert found == [
        History("e", {"node": "a"}, (Reading(10.5, 1.0), Reading(41, 3.0))),
        History("", {"node": "b"}, ()),
    ]


def test_a_range_query_says_from_when_to_when():
    server = Server((200, {"status": "success", "data": {"resultType": "matrix", "result": []}}))
    assert talking(server, lambda prometheus: prometheus.query_range("up", 1000.0, 1600.5, 15.0)) == []
    assert server.requests[0].url.path == "/api/v1/query_range"
    assert server.requests[0].content == b"query=up&start=1000.000&end=1600.500&step=15&timeout=10"


@pytest.mark.parametrize("ask", ["query_samples", "query"])
def test_the_wrong_kind_of_answer_is_an_error(ask):
    kind = {"query_samples": "vector", "query": "string"}[ask]
    server = Server((200, {"status": "success", "data": {"resultType": kind, "result": []}}))

    async def talk(prometheus):
        with pytest.raises(PrometheusError, match=f"got a {kind}"):
            await getattr(prometheus, ask)("up")

    talking(server, talk)


def test_native_histograms_are_no_numbers():
    body = {"status": "success", "data": {"resultType": "vector", "result": [{"metric": {}, "histogram": [1, {}]}]}}
    assert talking(Server((200, body)), lambda prometheus: prometheus.query("h")) == []


def test_an_answer_that_never_ends_is_cut_off(monkeypatch):
    monkeypatch.setattr(client_module, "MAX_BYTES", 1000)

    async def talk(prometheus):
        error = await fails(prometheus, PrometheusError)
        assert "more than 1000 bytes" in str(error)
        assert len(str(error)) < 500

    talking(Server((200, "x" * 1001)), talk)


def test_errors_stay_short_however_long_the_query():
    async def talk(prometheus):
        with pytest.raises(PrometheusError) as raised:
            await prometheus.query(" or ".join(["up"] * 10_000))
        assert "'up or up" in str(raised.value)
        assert len(str(raised.value)) < 500

    talking(Server(BAD), talk)


def test_warnings_are_said_once(caplog):
    body = vector() | {"warnings": ["metric might not be a counter"]}

    async def talk(prometheus):
        await prometheus.query("up")
        await prometheus.query("up")

    with caplog.at_level(logging.WARNING):
        talking(Server((200, body)), talk)
    assert [record.warning for record in caplog.records] == ["metric might not be a counter"]


# ---- authentication


def test_a_bearer_token_is_read_anew_for_every_request(tmp_path):
    token = tmp_path / "token"
    token.write_text("first\n")
    server = Server(OK)

    async def talk(prometheus):
        await prometheus.query("up")
        token.write_text("second\n")
        await prometheus.query("up")

    talking(server, talk, auth=PrometheusAuth(bearer_token_file=token))
    assert [request.headers["authorization"] for request in server.requests] == ["Bearer first", "Bearer second"]


def test_a_user_and_a_password(tmp_path):
    (tmp_path / "password").write_text("öpen sesame")
    server = Server(OK)
    auth = PrometheusAuth(username="joulie", password_file=tmp_path / "password")
    talking(server, lambda prometheus: prometheus.query("up"), auth=auth)
    assert server.requests[0].headers["authorization"] == "Basic am91bGllOsO2cGVuIHNlc2FtZQ=="


def test_nobody_in_particular_says_nothing():
    server = Server(OK)
    talking(server, lambda prometheus: prometheus.query("up"))
    assert "authorization" not in server.requests[0].headers


def test_secrets_are_in_no_message(tmp_path):
    (tmp_path / "token").write_text("hunter2")

    async def talk(prometheus):
        error = await fails(prometheus)
        assert "hunter2" not in repr(error) + str(error.__cause__) + str(prometheus.problem)
        assert "prometheus:9090" in str(error)

    for answer in (DOWN, httpx2.ConnectError("refused")):
        talking(
            Server(answer),
            talk,
            address="http://me:hunter2@prometheus:9090",
            auth=PrometheusAuth(bearer_token_file=tmp_path / "token"),
        )


@pytest.mark.parametrize("content", [None, "", "two\nlines", b"\xff\xfe"])
def test_a_secret_that_cannot_be_used_is_an_error_that_names_the_file(tmp_path, content):
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())

    async def talk(prometheus):
        await fails(prometheus, PrometheusError)

    server = Server(OK)
    talking(server, talk, auth=PrometheusAuth(bearer_token_file=file))
    assert not server.requests


@pytest.mark.parametrize(
    "wrong",
    [
        {"bearer_token_file": "t", "username": "u", "password_file": "p"},
        {"username": "u"},
        {"password_file": "p"},
        {"client_key_file": "k"},
    ],
)
def test_settings_that_contradict_each_other(wrong):
    with pytest.raises(ValueError, match="Prometheus"):
        PrometheusAuth(**wrong)


def test_certificates_that_are_none(tmp_path):
    (tmp_path / "ca.pem").write_text("no certificate")

    async def main(auth):
        async with connect("https://prometheus", auth):
            raise AssertionError

    for auth in (PrometheusAuth(ca_file=tmp_path / "ca.pem"), PrometheusAuth(client_cert_file=tmp_path / "none.pem")):
        with pytest.raises(PrometheusError, match="pem"):
            asyncio.run(main(auth))


def test_a_client_of_its_own():
    async def handle(request, answer):
        assert request.headers["content-type"] == "application/x-www-form-urlencoded"
        await answer.whole(200, json.dumps(vector(({"node": request.path}, 1.0))).encode())

    async def main():
        async with serving(handle) as url, connect(f"{url}/thanos/") as prometheus:
            return await prometheus.query("up")

    assert [one.labels for one in asyncio.run(main())] == [{"node": "/thanos/api/v1/query"}]


@pytest.mark.parametrize("extended", [True, False], ids=["strict", "as many issue"])
def test_r1_prometheus_certificates_are_taken_as_other_clients_take_them(tmp_path, monkeypatch, extended):
    usual = ssl.create_default_context

    def strict(*given, **options):
        """A context as Python 3.13 and later make it."""
        context = usual(*given, **options)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)
    authority = CertificateAuthority(tmp_path, extended=extended)
    issued = authority.issue("prometheus", hosts=["127.0.0.1"])
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(issued.certificate, issued.key)

    async def up(_request, answer):
        await answer.whole(200, json.dumps(OK[1]).encode())

    async def main():
        async with serving(up, tls) as url, connect(url, PrometheusAuth(ca_file=authority.certificate)) as prometheus:
            return await prometheus.query("up")

    assert len(asyncio.run(main())) == 1


def test_r1_http_endpoints_certificates_are_taken_as_other_clients_take_them(monkeypatch, tmp_path):
    authority = CertificateAuthority(tmp_path)
    # SSL_CERT_FILE of the image's environment, or a context of the system's authorities.
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    for context in (tls_context(), tls_context(authority.certificate)):
        assert not context.verify_flags & ssl.VERIFY_X509_STRICT
        assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert tls_context(verify=False).verify_mode == ssl.CERT_NONE


def test_the_systems_authorities_are_read_once_until_they_change(monkeypatch, tmp_path):
    authority = CertificateAuthority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    shared = tls_context()
    assert tls_context() is shared
    assert PrometheusAuth().tls_context() is shared
    pair = authority.issue("client")
    own = PrometheusAuth(client_cert_file=pair.certificate, client_key_file=pair.key).tls_context()
    assert own is not shared, "its certificate is not for others"
    os.utime(authority.certificate, ns=(1, 1))
    assert tls_context() is not shared
