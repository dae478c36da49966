"""`joulie web`: who gets in, how long, and what others cannot do. The real API server's answers are tested there."""

import asyncio
import re

import pytest

from joulie.apps.kubectl.web.sign_in import FORM_COOKIE, SESSION_COOKIE, ProxyHeaders
from support.web_reviews import ADMINISTRATOR, AUDIENCE, Reviews, tenant, web_stage
from support.web_stage import fleet

NOW = "2026-03-01T00:00:00Z"


@pytest.fixture
def stage():
    return web_stage(Reviews({"anna": ADMINISTRATOR, "tom": tenant("team-1")}), fleet(6, 3, NOW))


def form_value(page):
    return re.search(r'name="form" value="([^"]+)"', page.text)[1]


async def signed_in(client, token="anna"):
    value = form_value(await client.get("/login"))
    return await client.post("/login", data={"token": token, "form": value})


def test_a_pasted_token_opens_a_session_whose_cookie_holds_no_token(stage):
    async def story():
        async with stage.client() as client:
            before = await client.get("/")
            answer = await signed_in(client)
            return before, answer, await client.get("/"), await client.get("/api/v1/fleet")

    before, answer, page, fleet_answer = asyncio.run(story())
    assert (before.status_code, before.headers["location"]) == (303, "/login")
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = next(one for one in answer.headers.get_list("set-cookie") if one.startswith(SESSION_COOKIE))
    assert {"Secure", "HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert "anna" not in cookie
    assert "anna" in page.text
    assert "Sign out" in page.text
    assert len(fleet_answer.json()["nodes"]) == 6


@pytest.mark.parametrize("token", ["nobody", "", " ", "anna x"])
def test_a_token_that_the_cluster_does_not_know_opens_nothing(stage, token):
    async def story():
        async with stage.client() as client:
            answer = await signed_in(client, token)
            return answer, await client.get("/")

    answer, page = asyncio.run(story())
    assert (answer.status_code, page.status_code) == (401, 303)
    assert "does not accept this token" in answer.text
    assert stage.registry.get_sample_value("joulie_web_sign_ins_total", {"result": "refused"}) == 1.0


def test_a_token_of_this_program_s_audience_is_accepted_and_one_of_another_is_not():
    stage = web_stage(
        Reviews({"anna": ADMINISTRATOR, "other": ADMINISTRATOR}, audiences={"anna": AUDIENCE, "other": "vault"})
    )

    async def story():
        async with stage.client() as client:
            return [
                (await client.get("/api/v1/fleet", headers={"authorization": f"Bearer {token}"})).status_code
                for token in ("anna", "other")
            ]

    assert asyncio.run(story()) == [200, 401]


@pytest.mark.parametrize(
    ("fields", "headers", "status"),
    [
        ({"form": "guess"}, {}, 403),
        ({}, {}, 403),
        (None, {"origin": "https://evil.example"}, 403),
        (None, {"sec-fetch-site": "cross-site"}, 403),
        (None, {"sec-fetch-site": "same-site"}, 403),
        (None, {"origin": "https://joulie.example", "sec-fetch-site": "same-origin"}, 303),
    ],
)
def test_no_other_site_signs_anybody_in(stage, fields, headers, status):
    async def story():
        async with stage.client() as client:
            value = form_value(await client.get("/login"))
            data = {"token": "anna", **({"form": value} if fields is None else fields)}
            return await client.post("/login", data=data, headers=headers)

    assert asyncio.run(story()).status_code == status


def test_the_form_s_value_without_its_cookie_is_not_enough(stage):
    async def story():
        async with stage.client() as one, stage.client() as other:
            value = form_value(await one.get("/login"))
            return await other.post("/login", data={"token": "anna", "form": value})

    assert asyncio.run(story()).status_code == 403


def test_signing_out_ends_the_session_and_needs_its_form(stage):
    async def story():
        async with stage.client() as client:
            await signed_in(client)
            cookie = client.cookies[SESSION_COOKIE]
            forged = await client.post("/logout", data={"form": "guess"})
            page = await client.get("/")
            out = await client.post("/logout", data={"form": form_value(page)})
            client.cookies.set(SESSION_COOKIE, cookie, domain="joulie.example")
            return forged, page, out, await client.get("/")

    forged, page, out, after = asyncio.run(story())
    assert (forged.status_code, page.status_code, out.status_code) == (403, 200, 303)
    assert (after.status_code, after.headers["location"]) == (303, "/login")


@pytest.mark.parametrize(("idle_s", "kept"), [(3599.0, True), (3601.0, False)])
def test_a_session_ends_when_it_is_not_used(stage, idle_s, kept):
    async def story():
        async with stage.client() as client:
            await signed_in(client)
            stage.now[0] += idle_s
            return (await client.get("/")).status_code == 200

    assert asyncio.run(story()) is kept


def test_a_session_ends_at_its_maximum_age_and_with_its_token(stage):
    async def story():
        async with stage.client() as client:
            await signed_in(client)
            for _ in range(13):
                stage.now[0] += 3550.0
                aged = await client.get("/")
        async with stage.client() as client:
            await signed_in(client)
            del stage.reviews.rights["anna"]
            at_once = await client.get("/")
            stage.now[0] += 61.0
            return aged, at_once, await client.get("/")

    aged, at_once, revoked = asyncio.run(story())
    assert (aged.status_code, at_once.status_code, revoked.status_code) == (303, 200, 303)


def test_a_right_that_is_taken_away_is_noticed_within_a_minute(stage):
    async def story():
        async with stage.client(authorization="Bearer tom") as client:
            before = (await client.get("/api/v1/pods")).json()
            stage.reviews.rights["tom"] = tenant()
            stage.now[0] += 61.0
            return before, (await client.get("/api/v1/pods")).json()

    before, after = asyncio.run(story())
    assert before["namespaces"] == ["team-1"]
    assert (after["namespaces"], after["pods"], after["budgets"]) == ([], [], [])
    assert any("may not list them" in one and "pods" in one for one in after["problems"])


def test_headers_of_the_proxy_count_on_its_own_server_only(stage):
    as_anna = {"X-Forwarded-User": "anna"}

    async def story():
        async with stage.client() as direct, stage.client(proxy=True) as proxied:
            return [
                (await direct.get("/api/v1/fleet", headers=as_anna)).status_code,
                (await proxied.get("/api/v1/fleet", headers=as_anna)).status_code,
                (await proxied.get("/api/v1/fleet")).status_code,
                (await proxied.get("/api/v1/fleet", headers={"authorization": "Bearer anna"})).status_code,
                (await proxied.get("/", headers=as_anna)).status_code,
                (await proxied.post("/login", data={"token": "anna"}, headers=as_anna)).status_code,
            ]

    assert asyncio.run(story()) == [401, 200, 401, 401, 200, 405]


@pytest.mark.parametrize(
    "headers",
    [
        [("X-Forwarded-User", "anna"), ("X-Forwarded-User", "tom")],
        [("X-Forwarded-User", "")],
        [("X-Forwarded-User", "a" * 254)],
        [("X-Forwarded-User", "system:serviceaccount:kube-system:admin")],
        [("X-Forwarded-User", "tom"), ("X-Forwarded-Groups", "dev, system:masters")],
        [("X-Forwarded-User", "tom"), ("X-Forwarded-Groups", "g," * 1001)],
    ],
)
def test_names_that_the_proxy_must_not_send_are_refused(stage, headers):
    async def story():
        async with stage.client(proxy=True) as client:
            return await client.get("/api/v1/pods", headers=headers)

    assert asyncio.run(story()).status_code in {401, 403}
    assert stage.reviews.asked == []


def test_users_and_groups_of_the_proxy_get_the_prefixes_of_the_api_server():
    proxy = ProxyHeaders("X-Forwarded-User", "X-Forwarded-Groups", "oidc:", "oidc:")
    stage = web_stage(Reviews({"oidc:dev": tenant("team-1")}), fleet(6, 3, NOW), proxy=proxy)

    async def story():
        headers = {"X-Forwarded-User": "tom@example.com", "X-Forwarded-Groups": "ops,dev"}
        async with stage.client(proxy=True) as client:
            return (await client.get("/api/v1/pods", headers=headers)).json()

    assert asyncio.run(story())["namespaces"] == ["team-1"]
    assert {user for user, _ in stage.reviews.asked} == {"oidc:tom@example.com"}


def test_an_api_server_that_is_away_lets_nobody_in_and_says_so(stage):
    stage.reviews.away = True

    async def story():
        async with stage.client() as client:
            form = await client.get("/login")
            answer = await client.post("/login", data={"token": "anna", "form": form_value(form)})
            return answer, await client.get("/api/v1/fleet", headers={"authorization": "Bearer anna"})

    for answer in asyncio.run(story()):
        assert answer.status_code == 503
        assert "the API server cannot be asked who you are" in answer.text


@pytest.mark.parametrize("body", [b"x" * 40_000, b"token=%ff%fe", "token=ä".encode(), b"&" * 50 + b"a=1&" * 50])
def test_what_is_no_form_is_refused(stage, body):
    async def story():
        async with stage.client() as client:
            await client.get("/login")
            return await client.post("/login", content=body)

    assert asyncio.run(story()).status_code in {400, 403, 413}


def test_nothing_but_the_two_forms_can_be_written_and_every_answer_has_the_policy(stage):
    async def story():
        async with stage.client(authorization="Bearer anna") as client:
            return [
                await client.post("/"),
                await client.delete("/api/v1/fleet"),
                await client.get("/login"),
                await client.get("/static/joulie.css"),
                await client.get("/"),
            ]

    answers = asyncio.run(story())
    assert [answer.status_code for answer in answers] == [405, 405, 200, 200, 200]
    for answer in answers:
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["cache-control"] == "no-store"
    assert FORM_COOKIE in answers[2].headers["set-cookie"]


def test_reviews_are_asked_for_once_a_minute(stage):
    async def story():
        async with stage.client(authorization="Bearer tom") as client:
            for _ in range(5):
                await client.get("/api/v1/pods")
            first = len(stage.reviews.asked), len(stage.reviews.tokens)
            stage.now[0] += 61.0
            await client.get("/api/v1/pods")
            return first, (len(stage.reviews.asked), len(stage.reviews.tokens))

    once, twice = asyncio.run(story())
    # Eight kinds in all namespaces, pods in each of five, budgets and profiles in the one that is visible.
    assert once == (15, 2)
    assert twice == (30, 4)


def test_energy_is_refused_by_the_reader_s_rights_not_by_the_program_s(stage):
    stage.reviews.rights["tom"].add(("get", "energy", "team-1"))

    async def story():
        async with stage.client(authorization="Bearer tom") as client:
            return [
                await client.get(f"/api/v1/energy?{query}")
                for query in ("", "namespace=", "namespace=team-2", "namespace=team-1&namespace=team-2")
            ] + [await client.get("/api/v1/energy?namespace=team-2&namespace=team-1")]

    *refused, allowed = asyncio.run(story())
    assert [answer.status_code for answer in refused] == [403] * 4
    assert refused[0].text == "you may not get energy.joulie.io in all namespaces\n"
    # Asked for, but the accounting program of this test is away.
    assert allowed.status_code == 503
