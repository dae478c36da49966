"""Alertmanager's webhook as a source of events of power budgets."""

import asyncio
import json

import httpx2
import pytest

from joulie.adapters.alertmanager import MAX_ALERTS, NotificationError, read_notification
from joulie.adapters.kubernetes.resources import POWER_BUDGETS
from joulie.apps.operator.budgets.alerts import MAX_BODY_BYTES, MAX_ENTRIES, AlertReductions
from joulie.apps.operator.settings.budgets import PowerBudgetSettings
from joulie.domain.mode import Mode
from support.operator_stage import play

# As Alertmanager writes it: Go's encoding/json, with & and < escaped, one line and a newline.
WIRE = (
    rb'{"receiver":"joulie","status":"firing","alerts":[{"status":"firing","labels":{"alertname":"GridStress",'
    rb'"joulie_power_budget":"hall","severity":"page"},"annotations":{"summary":"frequency \u003c 49.8 Hz"},'
    rb'"startsAt":"2026-11-27T09:52:26.739266876+01:00","endsAt":"0001-01-01T00:00:00Z","generatorURL":'
    rb'"http://prometheus:9090/graph?g0.expr=grid_hz+%3C+49.8\u0026g0.tab=1","fingerprint":"1a30ba71cca2921f"}],'
    rb'"groupLabels":{"alertname":"GridStress"},"commonLabels":{"alertname":"GridStress","joulie_power_budget":"hall",'
    rb'"severity":"page"},"commonAnnotations":{"summary":"frequency \u003c 49.8 Hz"},"externalURL":'
    rb'"http://alertmanager:9093","version":"4","groupKey":"{}/{severity=\"page\"}:{alertname=\"GridStress\"}",'
    rb'"truncatedAlerts":0}' + b"\n"
)
NAME = "alert-1a30ba71cca2921f"
TOKEN = "s3cret"


def notification(*alerts, version="4"):
    return json.dumps({"version": version, "status": "firing", "alerts": list(alerts)}).encode()


def alert(fingerprint="1a30ba71cca2921f", status="firing", **labels):
    return {"status": status, "fingerprint": fingerprint, "labels": labels}


def test_the_bytes_of_alertmanager_are_read():
    (one,) = read_notification(WIRE)
    assert (one.status, one.fingerprint) == ("firing", "1a30ba71cca2921f")
    assert one.labels == {"alertname": "GridStress", "joulie_power_budget": "hall", "severity": "page"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b"\xff",
        b"[" * 100_000,
        WIRE.replace(b'"version":"4"', b'"version":"5"'),
        WIRE.replace(b'"version":"4",', b""),
        notification(alert("../../x")),
        notification(alert("1A30BA71CCA2921F")),
        notification(alert(status="pending")),
        notification({"status": "firing", "fingerprint": "1a30ba71cca2921f", "labels": {"a": 1}}),
        notification(*[alert()] * (MAX_ALERTS + 1)),
    ],
    ids=lambda body: repr(body[:40]),
)
def test_what_is_no_notification_is_refused(body):
    with pytest.raises(NotificationError):
        read_notification(body)


class Site:
    """Budgets in the fake cluster, and the webhook as Alertmanager sees it."""

    def __init__(self, stage, token_file, **more):
        self.stage = stage
        settings = PowerBudgetSettings(**({"alerts_budgets": ("hall", "rack"), "alerts_hold_s": 3600.0} | more))
        token_file.write_text(f"{TOKEN}\n")
        self.app = AlertReductions(stage.client, settings, token_file, lambda: stage.now_s).app

    async def create(self, *names):
        for name in names:
            await self.stage.client.create(POWER_BUDGETS, {"metadata": {"name": name}, "spec": {"watts": 9000.0}})

    async def post(self, body, path="/alerts", method="POST", token=TOKEN):
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(self.app), base_url="http://op") as http:
            return (await http.request(method, path, content=body, headers=headers)).status_code

    async def reductions(self, name):
        return {one.name: one for one in (await self.stage.client.get(POWER_BUDGETS, name)).spec.reductions}

    async def limit_w(self, name):
        """What the operator takes the budget for."""
        version = (await self.stage.client.get(POWER_BUDGETS, name)).metadata.resource_version
        while not any(one.metadata.resource_version == version for one in self.stage.view.power_budgets.values()):
            await asyncio.sleep(0)
        self.stage.loop._budgets.decide()
        return self.stage.loop._budgets._stored[name].limit.limit_w


def played(body, tmp_path, **more):
    async def main(stage):
        await body(stage, Site(stage, tmp_path / "token", **more))

    play(main, tmp_path, mode=Mode.ENFORCE)


def test_an_alert_reduces_its_budget_until_it_is_resolved_and_returns_by_the_ramp(tmp_path):
    async def body(stage, site):
        await stage.add_node("node-0")
        await site.create("hall", "rack")
        assert await site.post(WIRE) == 200
        assert await site.limit_w("hall") == 7200.0
        assert await site.reductions("rack") == {}
        stage.now_s += 100.0
        assert await site.post(WIRE) == 200  # Alertmanager repeats itself
        start, end = ((await site.reductions("hall"))[NAME].start, (await site.reductions("hall"))[NAME].end)
        assert start < end
        stage.now_s += 50.0
        assert await site.post(notification(alert(status="resolved", joulie_power_budget="hall"))) == 200
        assert (await site.reductions("hall"))[NAME].start == start
        assert (await site.reductions("hall"))[NAME].end < end
        stage.now_s += 150.0
        assert await site.limit_w("hall") == pytest.approx(8100.0, abs=30.0), "half of the ramp"
        stage.now_s += 151.0
        assert await site.post(notification(alert("f" * 16, joulie_power_budget="hall"))) == 200
        assert set(await site.reductions("hall")) == {"alert-" + "f" * 16}, "what is over makes room"

    played(body, tmp_path)


def test_an_alert_whose_end_nobody_tells_ends_by_itself(tmp_path):
    async def body(stage, site):
        await stage.add_node("node-0")
        await site.create("hall")
        await site.post(WIRE)
        stage.now_s += 3600.0 + 301.0
        assert await site.limit_w("hall") == 9000.0

    played(body, tmp_path)


def test_who_has_no_token_and_what_is_malformed_or_too_large_changes_nothing(tmp_path):
    async def body(stage, site):
        await site.create("hall", "rack", "other")
        assert await site.post(WIRE, token=None) == 401
        assert await site.post(WIRE, token="wrong") == 401
        assert await site.post(b"{") == 400
        assert await site.post(b" " * (MAX_BODY_BYTES + 1)) == 413
        assert await site.post(WIRE, path="/") == 404
        assert await site.post(WIRE, method="GET") == 405
        assert await site.post(notification(alert(joulie_power_budget="other"))) == 200, (
            "not one that alerts may reduce"
        )
        (tmp_path / "token").write_text("\n")
        assert await site.post(WIRE, token="") == 401, "an empty token opens nothing"
        (tmp_path / "token").unlink()
        assert await site.post(WIRE) == 401
        for name in ("hall", "rack", "other"):
            assert await site.reductions(name) == {}

    played(body, tmp_path)


def test_an_alert_asks_for_no_more_than_it_may_and_never_lifts_a_limit(tmp_path):
    async def body(stage, site):
        await site.create("hall", "rack")
        asked = {"a": "5", "b": "80", "c": "-50", "d": "much", "e": "nan", "f": "0"}
        for letter, percent in asked.items():
            await site.post(notification(alert(letter * 16, joulie_reduce_percent=percent)))
        for name in ("hall", "rack"):  # without a label, all that alerts may reduce
            found = {one[-1]: entry.reduce_percent for one, entry in (await site.reductions(name)).items()}
            assert found == {"a": 5.0, "b": 20.0, "c": 20.0, "d": 20.0, "e": 20.0, "f": 20.0}

    played(body, tmp_path)


def test_alerts_are_bounded_and_leave_the_entries_of_others_alone(tmp_path):
    async def body(stage, site):
        await site.create("hall")
        mine = {"name": "dr-1", "start": "2026-01-01T00:00:00Z", "end": "2026-01-01T01:00:00Z", "watts": 5.0}
        await stage.client.apply(POWER_BUDGETS, "hall", {"spec": {"reductions": [mine]}}, field_manager="grid")
        for index in range(MAX_ENTRIES + 3):
            stage.now_s += 1.0
            await site.post(notification(alert(f"{index:016x}")))
        found = await site.reductions("hall")
        assert len(found) == MAX_ENTRIES + 1
        assert found["dr-1"].watts == 5.0
        assert f"alert-{MAX_ENTRIES + 2:016x}" in found, "the newest counts"

    played(body, tmp_path)
