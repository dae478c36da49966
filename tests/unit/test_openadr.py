"""The OpenADR client against a VTN that answers as the specification's schema says, and what its events ask for."""

import asyncio
import dataclasses
import json
import math
from urllib.parse import parse_qs

import httpx2
import numpy as np
import pytest

from joulie.adapters import openadr
from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.resources import POWER_BUDGETS
from joulie.adapters.openadr import FOREVER_S, MAX_INTERVALS, PAGE, OpenAdr, OpenAdrError, duration_s
from joulie.apps.operator.budgets.events import BudgetEvents
from joulie.apps.operator.budgets.stored import StoredBudget
from joulie.apps.operator.settings import OperatorSettings
from joulie.domain.capping.budgets import Budget, BudgetOutcome
from joulie.domain.capping.grid_events import GridEvent, merged, reduction_of, signal_at
from joulie.domain.capping.watts_in_force import WattsInForce
from joulie.domain.mode import Mode
from support.operator_stage import play

NOW_S = 1_725_445_800.0  # 2024-09-04T10:30:00Z
LEVELS = {1: 10.0, 2: 20.0, 3: 30.0}


def event(ident="1", payload="IMPORT_CAPACITY_LIMIT", values=(30,), units="KW", **more):
    """An event with all fields that the schema requires."""
    return {
        "id": ident,
        "createdDateTime": "2024-03-06T10:55:26.543Z",
        "modificationDateTime": "2024-03-06T10:55:26.543Z",
        "objectType": "EVENT",
        "programID": "dr",
        "eventName": "activation",
        "priority": 0,
        "targets": [{"type": "GROUP", "values": ["hall"]}],
        "reportDescriptors": None,
        "payloadDescriptors": [
            {"objectType": "EVENT_PAYLOAD_DESCRIPTOR", "payloadType": payload, "units": units, "currency": None}
        ],
        "intervalPeriod": {"start": "2024-09-04T10:30:30.000Z", "duration": "PT1H", "randomizeStart": "PT0S"},
        "intervals": [{"id": 0, "payloads": [{"type": payload, "values": list(values)}]}],
    } | more


class Vtn:
    """A VTN with these events; it knows one client."""

    def __init__(self, events=(), secret=None):
        self.events, self.secret = list(events), secret
        self.tokens, self.asked, self.broken = 0, [], None

    def __call__(self, request):
        if self.broken is not None:
            return self.broken(request)
        if request.url.path == "/vtn/auth/token":
            form = parse_qs(request.content.decode())
            assert form["grant_type"] == ["client_credentials"]
            if form["client_secret"] != [self.secret]:
                return httpx2.Response(401, json={"title": "unauthorized", "status": 401})
            self.tokens += 1
            return httpx2.Response(200, json={"access_token": f"token-{self.tokens}", "expires_in": 3600})
        if self.secret is not None and request.headers.get("authorization") != f"Bearer token-{self.tokens}":
            return httpx2.Response(401, json={"title": "unauthorized", "status": 401})
        query = parse_qs(request.url.query.decode())
        self.asked.append(query)
        skip, limit = int(query["skip"][0]), int(query["limit"][0])
        return httpx2.Response(200, json=self.events[skip : skip + limit])

    def read(self, **more):
        async def main():
            async with httpx2.AsyncClient(transport=httpx2.MockTransport(self)) as http:
                return await OpenAdr("https://vtn.test/vtn/", "dr", http, lambda: NOW_S, **more).events()

        return asyncio.run(main())


def test_events_are_read_with_their_units_and_intervals():
    two = event("2", "SIMPLE", (2,), None, intervals=[
        {"id": 0, "payloads": [{"type": "SIMPLE", "values": [2]}]},
        {"id": 1, "payloads": [{"type": "SIMPLE", "values": [3]}]},
        {"id": 2, "intervalPeriod": {"start": "2024-09-05T00:00:00Z", "duration": "PT30M"},
         "payloads": [{"type": "SIMPLE", "values": [1]}]},
    ])  # fmt: skip
    vtn = Vtn([event(), event("w", values=(30_000,), units="W"), two])
    first_s = NOW_S + 30.0
    assert vtn.read()[:4] == [
        GridEvent("openadr-1-0", first_s, first_s + 3600.0, "IMPORT_CAPACITY_LIMIT", 30_000.0),
        GridEvent("openadr-w-0", first_s, first_s + 3600.0, "IMPORT_CAPACITY_LIMIT", 30_000.0),
        GridEvent("openadr-2-0", first_s, first_s + 3600.0, "SIMPLE", 2.0),
        GridEvent("openadr-2-1", first_s + 3600.0, first_s + 7200.0, "SIMPLE", 3.0),
    ]
    assert vtn.read()[4].end_s - vtn.read()[4].start_s == 1800.0
    assert vtn.asked[0]["programID"] == ["dr"]


def test_an_event_that_begins_now_and_one_without_an_end():
    period = {"start": "0001-01-01", "duration": "P9999Y"}
    (one,) = Vtn([event(intervalPeriod=period)]).read()
    assert (one.start_s, one.end_s) == (NOW_S, NOW_S + FOREVER_S)


@pytest.mark.parametrize(
    "wrong",
    [
        event(payload="EXPORT_PRICE", values=(0.3,)),
        event(payload="PRICE", values=(0.3,), units="THERM"),
        event(values=()),
        event(values=("much",)),
        event(values=(True,)),
        event(values=(-5,)),
        event(units="AMPS"),
        event(intervalPeriod={"start": "soon", "duration": "PT1H"}),
        event(intervalPeriod={"start": "2024-09-04T10:30:30Z", "duration": "an hour"}),
        event(intervalPeriod={"start": "2024-09-04T10:30:30Z", "duration": "PT0S"}),
        event(intervalPeriod=None),
        event(intervals=[]),
    ],
    ids=str,
)
def test_what_cannot_be_understood_is_left_out_and_the_others_count(wrong):
    found = Vtn([wrong | {"id": "wrong"}, event()]).read()
    assert [one.name for one in found] == ["openadr-1-0"]


def starts_s(window, *idents):
    """When events start after 10:30:30, and how long they last, s."""
    period = {"start": "2024-09-04T10:30:30Z", "duration": "PT1H", "randomizeStart": window}
    found = [one for ident in idents for one in Vtn([event(ident, intervalPeriod=period)]).read()]
    nominal_s = Vtn([event()]).read()[0].start_s
    assert {round(one.end_s - one.start_s, 3) for one in found} == {3600.0}
    return [one.start_s - nominal_s for one in found]


def test_a_start_is_randomized_within_its_window_and_the_same_each_time():
    idents = [f"e{number}" for number in range(30)]
    drawn = starts_s("PT10M", *idents)
    assert drawn == starts_s("PT10M", *idents), "the same at each reading"
    assert all(0.0 <= one < 600.0 for one in drawn)
    assert max(drawn) - min(drawn) > 300.0


@pytest.mark.parametrize("window", ["", None, "PT0S", "soon", "-PT5M"])
def test_a_start_without_a_window_that_can_be_read_is_as_told(window):
    assert starts_s(window, "e1") == [0.0]


def test_a_price_and_what_starts_now_are_not_delayed():
    period = {"start": "2024-09-04T10:30:30Z", "duration": "PT1H", "randomizeStart": "PT10M"}
    (price,) = Vtn([event(payload="PRICE", values=(0.1,), units="KWH", intervalPeriod=period)]).read()
    assert price.start_s == Vtn([event()]).read()[0].start_s
    vtn = Vtn([event(intervalPeriod=period | {"start": "0000-00-00"})])
    assert vtn.read()[0].start_s == NOW_S


ASKED = [{"payloadType": kind, "readingType": "MEAN"} for kind in ("DEMAND", "USAGE", "BASELINE", "SETPOINT")]


def reported(measured, *, status=201, polls=1, unread=0, asked=ASKED):
    """What a VTN is told of an hour at 30 kW, by what each of two budgets was measured at."""
    period = {"start": "2024-09-04T10:30:30Z", "duration": "PT1H"}
    vtn, clock, told = Vtn([event("e/1", intervalPeriod=period, reportDescriptors=asked)]), [NOW_S], []

    def answer(request):
        if request.url.path != "/vtn/reports":
            return vtn(request)
        told.append(json.loads(request.content))
        return httpx2.Response(status)

    async def main():
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as http:
            client = OpenAdr("https://vtn.test/vtn", "dr", http, lambda: clock[0])
            settings = dataclasses.replace(OperatorSettings(), openadr_budgets=tuple(measured))
            events = BudgetEvents(None, client, settings, lambda: clock[0])
            await events.poll({}, {})
            stored = {
                name: StoredBudget(
                    Budget(name, 40_000.0, np.arange(2)), WattsInForce(40_000.0, "spec"),
                    tuple(events.asked(name, 40_000.0)), 40_000.0, None,
                )
                for name in measured
            }  # fmt: skip
            start_s, end_s = stored["hall"].reductions[0].start_s, stored["hall"].reductions[0].end_s
            for clock[0] in np.arange(start_s, end_s, 30.0).tolist():
                outcomes = {
                    name: BudgetOutcome(np.zeros(2), watts, watts, 0.0, unread, 0, np.zeros(2, dtype=np.bool_))
                    for name, watts in measured.items()
                }
                events.sampled(stored, outcomes)
            await events.poll({}, stored)
            assert told == [], "not before it is over"
            vtn.events.clear()
            for clock[0] in [end_s + 30.0 * poll for poll in range(1, polls + 1)]:
                await events.poll({}, stored)

    asyncio.run(main())
    return told


def test_an_event_that_asks_for_it_is_reported_once_with_what_was_measured():
    (told,) = reported({"hall": 24_000.0, "rack": 6_000.0}, polls=3)
    assert (told["objectType"], told["programID"], told["eventID"], told["clientName"]) == (
        "REPORT", "dr", "e/1", "joulie",
    )  # fmt: skip
    assert [(one["payloadType"], one["units"]) for one in told["payloadDescriptors"]] == [
        ("DEMAND", "KW"), ("USAGE", "KWH"), ("BASELINE", "KW"),
    ]  # fmt: skip
    hall, rack = told["resources"]
    assert hall["intervalPeriod"] == {"start": "2024-09-04T10:30:30Z", "duration": "PT3600S"}
    assert (hall["resourceName"], rack["resourceName"]) == ("hall", "rack")
    # No baseline is known here, and none is made up.
    assert hall["intervals"] == [
        {"id": 0, "payloads": [{"type": "DEMAND", "values": [24.0]}, {"type": "USAGE", "values": [24.0]}]}
    ]


def test_a_report_that_is_refused_is_sent_again_and_one_that_is_there_is_not(caplog):
    assert len(reported({"hall": 24_000.0}, status=503, polls=3)) == 3
    assert {one.error for one in caplog.records} == {"/reports: HTTP status 503"}
    assert len(reported({"hall": 24_000.0}, status=409, polls=3)) == 1


def test_what_was_not_measured_or_not_asked_for_is_not_reported():
    assert reported({"hall": 24_000.0}, unread=1, polls=2) == []
    assert reported({"hall": 24_000.0}, asked=[{"payloadType": "SETPOINT"}]) == []
    assert reported({"hall": 24_000.0}, asked=None) == []


def test_pages_are_read_to_the_end():
    vtn = Vtn([event(str(index)) for index in range(PAGE + 3)])
    assert len(vtn.read()) == PAGE + 3
    assert [query["skip"] for query in vtn.asked] == [["0"], [str(PAGE)]]


def test_it_logs_in_and_again_when_its_token_is_refused(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("s3cret\n")
    vtn = Vtn([event()], secret="s3cret")

    async def main():
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(vtn)) as http:
            client = OpenAdr("https://vtn.test/vtn", "", http, lambda: NOW_S, client_id="joulie", secret_file=secret)
            await client.events()
            await client.events()
            assert vtn.tokens == 1
            vtn.tokens += 1  # the VTN forgot the token
            await client.events()
            assert vtn.tokens == 3
            secret.write_text("wrong")
            vtn.tokens += 1
            with pytest.raises(OpenAdrError, match="login: HTTP status 401") as caught:
                await client.events()
            assert "wrong" not in str(caught.value)
            assert "s3cret" not in repr(client)

    asyncio.run(main())


def refuse(_request):
    raise httpx2.ConnectError("no route")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (refuse, "no route"),
        (lambda _: httpx2.Response(503), "HTTP status 503"),
        (lambda _: httpx2.Response(200, content=b"<html>"), "unexpected answer"),
        (lambda _: httpx2.Response(200, json={"events": []}), "unexpected answer"),
        (lambda _: httpx2.Response(200, content=b" " * (2 << 20)), "more than"),
        (lambda _: httpx2.Response(200, json=[event()] * PAGE), "more than"),
    ],
)
def test_a_vtn_that_answers_otherwise_is_an_error(answer, message):
    vtn = Vtn()
    vtn.broken = answer
    with pytest.raises(OpenAdrError, match=message):
        vtn.read()


def test_durations():
    texts = ("PT2M", "P1DT2H", "PT0.5S", "P1W", "P9999Y")
    assert [duration_s(text) for text in texts] == [120.0, 93_600.0, 0.5, 604_800.0, FOREVER_S]
    for text in ("", "P", "PT", "1H", "PT-1H", "P1H"):
        with pytest.raises(ValueError, match="duration"):
            duration_s(text)


def test_an_event_reduces_a_budget_by_its_level_or_to_its_limit():
    found = [
        reduction_of(GridEvent("e", 0.0, 10.0, payload, value), 1000.0, LEVELS)
        for payload, value in (("SIMPLE", 2), ("SIMPLE", 0), ("SIMPLE", 7), ("IMPORT_CAPACITY_LIMIT", 800.0))
    ]
    assert [one and one.limit_w for one in found] == [800.0, None, None, 800.0]
    assert reduction_of(GridEvent("e", 0.0, 10.0, "IMPORT_CAPACITY_LIMIT", 2000.0), 1000.0, LEVELS) is None
    assert reduction_of(GridEvent("e", 10.0, 10.0, "SIMPLE", 1), 1000.0, LEVELS) is None
    for value in (math.nan, math.inf):
        for payload in ("SIMPLE", "IMPORT_CAPACITY_LIMIT"):
            assert reduction_of(GridEvent("e", 0.0, 10.0, payload, value), 1000.0, LEVELS) is None


def test_price_and_ghg_are_signals_that_reduce_nothing_by_themselves():
    hours = [
        {"id": index, "payloads": [{"type": "PRICE", "values": [price]}]} for index, price in enumerate((-20, 310))
    ]
    dear = event("p", "PRICE", (), "MWH", intervals=hours)
    found = Vtn([dear, event("g", "GHG", (412.5,), "GHG")]).read()
    first_s = NOW_S + 30.0
    assert found == [
        GridEvent("openadr-p-0", first_s, first_s + 3600.0, "PRICE", -0.02),
        GridEvent("openadr-p-1", first_s + 3600.0, first_s + 7200.0, "PRICE", 0.31),
        GridEvent("openadr-g-0", first_s, first_s + 3600.0, "GHG", 412.5),
    ]
    assert [signal_at(found, "PRICE", at_s) for at_s in (NOW_S, first_s, first_s + 3600.0)] == [None, -0.02, 0.31]
    assert signal_at(found, "GHG", first_s + 3599.0) == 412.5
    assert [reduction_of(one, 1000.0, LEVELS) for one in found] == [None] * 3


def test_a_budget_follows_the_price_of_the_vtn_and_never_rises_by_it(tmp_path):
    async def body(stage):
        await stage.add_node(
            "node-0", **{names.HW_GPU_MODEL_LABEL: "NVIDIA-H100-80GB-HBM3", names.HW_GPU_COUNT_LABEL: "8"}
        )
        follow = {"signal": "price", "low": 0.1, "high": 0.3, "wattsAtHigh": 6000.0}
        await stage.client.create(
            POWER_BUDGETS, {"metadata": {"name": "hall"}, "spec": {"watts": 9000.0, "follow": follow}}
        )
        await stage.step()
        budgets, now = stage.loop._budgets, {"start": "0000-00-00", "duration": "PT1H"}

        async def limit_w(price):
            vtn = Vtn([event(payload="PRICE", values=(price,), units="KWH", intervalPeriod=now)])
            async with httpx2.AsyncClient(transport=httpx2.MockTransport(vtn)) as http:
                budgets._demand_response._openadr = OpenAdr("https://vtn.test/vtn", "dr", http, lambda: stage.now_s)
                stored = {key.name: one for key, one in stage.view.power_budgets.items()}
                await budgets._demand_response.poll(stored, {})
            budgets.decide()
            return budgets._stored["hall"].limit

        assert await limit_w(0.2) == (7500.0, "signal")
        assert await limit_w(0.9) == (6000.0, "signal")
        assert await limit_w(-0.4) == (9000.0, "spec")
        assert await limit_w(0.2) == (7500.0, "signal")
        stage.now_s += 3601.0  # the interval is over, and nothing newer was told
        budgets.decide()
        assert budgets._stored["hall"].limit == (9000.0, "spec"), "a signal that is unknown changes nothing"

    play(body, tmp_path, mode=Mode.ENFORCE)


def test_a_cancelled_event_ends_now_and_one_that_is_over_stays_for_its_ramp():
    holds, later = GridEvent("a", 0.0, 100.0, "SIMPLE", 1), GridEvent("b", 80.0, 100.0, "SIMPLE", 1)
    (ended,) = merged([holds, later], [], 50.0, 300.0)
    assert (ended.name, ended.end_s) == ("a", 50.0)
    assert merged([ended], [], 349.0, 300.0) == [ended]
    assert merged([ended], [], 351.0, 300.0) == []
    assert merged([holds], [holds._replace(value=2)], 50.0, 300.0) == [holds._replace(value=2)]


def test_the_operator_lets_events_of_the_vtn_reduce_the_budgets_that_are_named(tmp_path):
    async def body(stage):
        await stage.add_node(
            "node-0", **{names.HW_GPU_MODEL_LABEL: "NVIDIA-H100-80GB-HBM3", names.HW_GPU_COUNT_LABEL: "8"}
        )
        for name in ("hall", "other"):
            await stage.client.create(POWER_BUDGETS, {"metadata": {"name": name}, "spec": {"watts": 9000.0}})
        await stage.step()
        vtn = Vtn([event(payload="SIMPLE", values=(2,), intervalPeriod={"start": "0000-00-00", "duration": "PT1H"})])
        budgets = stage.loop._budgets
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(vtn)) as http:
            budgets._demand_response._openadr = OpenAdr("https://vtn.test/vtn", "dr", http, lambda: stage.now_s)
            await budgets._demand_response.poll({}, {})
            budgets.decide()
            found = {name: one.limit for name, one in budgets._stored.items()}
            assert (found["hall"].limit_w, found["hall"].reason) == (7200.0, "openadr-1-0")
            assert found["other"].limit_w == 9000.0
            vtn.broken = refuse
            await budgets._demand_response.poll({}, {})
            budgets.decide()
            assert budgets._stored["hall"].limit.limit_w == 7200.0, "a VTN that is away changes nothing"

    play(body, tmp_path, mode=Mode.ENFORCE, openadr_budgets=("hall",))


# ---- a VTN that is wrong, or hostile


def test_an_event_that_starts_now_ends_though_it_is_told_again_and_again():
    vtn, clock = Vtn([event(intervalPeriod={"start": "0001-01-01", "duration": "PT1H"})]), [NOW_S]

    async def main():
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(vtn)) as http:
            client = OpenAdr("https://vtn.test/vtn", "dr", http, lambda: clock[0])
            first = await client.events()
            clock[0] += 1800.0
            assert await client.events() == first
            assert first[0].end_s == NOW_S + 3600.0

    asyncio.run(main())


@pytest.mark.parametrize(
    "wrong",
    [
        {"intervals": [{"id": "first", "payloads": []}]},
        {"intervals": 7},
        {"id": 5},
        {"intervalPeriod": "soon"},
        {"payloadDescriptors": [3]},
        {"reportDescriptors": "all"},
    ],
    ids=str,
)
def test_an_event_of_wrong_types_costs_no_other(wrong, caplog):
    assert [one.name for one in Vtn([event("wrong") | wrong, event()]).read()] == ["openadr-1-0"]
    assert "left out" in caplog.text


def test_a_limit_of_nothing_is_the_lowest_that_there_is():
    (one,) = Vtn([event(values=(0,))]).read()
    assert reduction_of(one, 1000.0, LEVELS).limit_w == 1.0


def test_what_is_told_in_an_id_reaches_no_terminal():
    assert Vtn([event("\x1b[2J\n../x")]).read()[0].name == "openadr-__2J____x-0"


def redirect(request):
    assert request.url.host == "vtn.test"
    return httpx2.Response(302, headers={"location": "https://evil.test/events"})


def nested(_request):
    return httpx2.Response(200, content=b'[{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}]")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (redirect, "HTTP status 302"),
        (
            lambda _: httpx2.Response(200, json=[{"id": "e", "intervals": [{}] * (MAX_INTERVALS + 1)}]),
            "more than 10000 intervals",
        ),
        (nested, "unexpected answer"),
        (lambda _: httpx2.Response(200, content=b"\xff"), "unexpected answer"),
        (lambda _: httpx2.Response(200, content=b"no gzip", headers={"content-encoding": "gzip"}), "incorrect header"),
    ],
)
def test_a_hostile_vtn_is_an_error_and_no_more(answer, message):
    vtn = Vtn()
    vtn.broken = answer
    with pytest.raises(OpenAdrError, match=message):
        vtn.read()


@pytest.mark.parametrize("token", ["\u20ac", "a\r\nx-evil: 1"])
def test_a_token_that_is_no_header_is_an_error(token, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    vtn = Vtn()
    vtn.broken = lambda _: httpx2.Response(200, json={"access_token": token})
    with pytest.raises(OpenAdrError, match="login"):
        vtn.read(client_id="joulie", secret_file=secret)


def test_a_vtn_that_answers_forever_is_given_up(monkeypatch):
    monkeypatch.setattr(openadr, "READ_S", 0.01)

    class Drip(httpx2.AsyncByteStream):
        async def __aiter__(self):
            while True:
                yield b" "
                await asyncio.sleep(0)

    vtn = Vtn()
    vtn.broken = lambda _: httpx2.Response(200, stream=Drip())
    monkeypatch.setattr(openadr, "_MAX_BYTES", 1 << 40)
    with pytest.raises(OpenAdrError, match="not read within"):
        vtn.read()
