"""Signing in to `joulie web` in a real browser, over HTTPS: cookies, policies and forms as browsers see them."""

import time
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from joulie.program.certificates import self_signed, write_files
from joulie.program.http import Server
from support.axe import violations
from support.web_reviews import Reviews, tenant, web_stage
from support.web_stage import fleet, served

pytestmark = pytest.mark.ui


@pytest.fixture(scope="module")
def stage(tmp_path_factory, browser):
    files = write_files(tmp_path_factory.mktemp("tls"), self_signed(["127.0.0.1"], time.time()))  # noqa: TID251
    web = web_stage(Reviews({"tom": tenant("team-1")}), fleet(12, 4, "2026-02-02T02:40:00Z"))

    @asynccontextmanager
    async def make():
        async with Server(web.app, ("127.0.0.1", 0), tls=files) as server:
            yield SimpleNamespace(url=f"https://127.0.0.1:{server.port}")

    browser.call("Security.setIgnoreCertificateErrors", ignore=True)
    with served(make) as running:
        yield running
    browser.call("Security.setIgnoreCertificateErrors", ignore=False)


def submitted(browser, script):
    """Run a script that submits a form, and wait for the page that follows."""
    browser.events.clear()
    browser.evaluate(script)
    browser.await_load()


def test_a_tenant_signs_in_sees_their_own_pods_and_signs_out(browser, stage):
    browser.open(stage.url + "/pods", 390)
    assert browser.evaluate("location.pathname") == "/login"
    assert browser.evaluate("document.documentElement.scrollWidth") <= 390
    submitted(
        browser, "document.querySelector('#token').value = 'tom'; document.querySelector('.sign-in button').click()"
    )
    assert browser.evaluate("location.pathname") == "/"
    assert browser.complaints() == []
    assert browser.evaluate("document.cookie") == ""
    browser.open(stage.url + "/pods", 390)
    names = browser.evaluate("[...document.querySelectorAll('.card .name')].map(n => n.textContent.split('/')[0])")
    assert set(names) == {"team-1"}
    assert browser.evaluate("document.documentElement.scrollWidth") <= 390
    submitted(browser, "document.querySelector('.reader button').click()")
    assert browser.evaluate("location.pathname") == "/login"
    browser.open(stage.url + "/pods", 390)
    assert browser.evaluate("location.pathname") == "/login"


def test_axe_finds_nothing_on_the_page_for_signing_in(browser, stage):
    assert violations(browser, stage.url + "/login") == []
