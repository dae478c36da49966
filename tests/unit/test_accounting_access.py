"""Who may read the energy API; the API server's own answers are tested on a real one."""

import asyncio

import msgspec
import pytest

from joulie.adapters.program_api.energy import TOKEN_HEADER
from joulie.adapters.program_api.runtimes import RUNTIMES_PATH
from joulie.apps.accounting.access import Access
from joulie.apps.accounting.api import EnergyApi
from joulie.apps.accounting.async_ledger import AsyncLedger
from support.access_reviews import ApiServer


class Ledger:
    """Holds nothing."""

    def usage(self, by, **_options):
        return []

    def run_durations(self):
        return {}


@pytest.fixture
def stage():
    server = ApiServer({"tenant": {"team-a"}, "finance": {"", "team-a", "team-b"}, "grid": {""}})
    now = [0.0]

    def ask(query=b"", path="/api/v1/energy", **headers):
        async def main():
            api = EnergyApi(AsyncLedger(Ledger()), "EUR", lambda: now[0], access).before(None)
            sent = []

            async def send(message):
                sent.append(message)

            pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
            scope = {"path": path, "method": "GET", "query_string": query, "headers": pairs}
            await api(scope, None, send)
            return sent[0]["status"], msgspec.json.decode(sent[1]["body"]).get("error", "")

        return asyncio.run(main())

    access = Access(server, lambda: now[0])
    return server, now, ask


def test_g15_the_energy_api_answers_no_pod_without_a_right(stage):
    _, _, ask = stage
    assert ask()[0] == 401
    assert ask(authorization="Bearer nobody")[0] == 401
    assert ask(b"namespace=team-a", authorization="Bearer tenant") == (200, "")
    assert ask(b"namespace=team-a", **{TOKEN_HEADER: "tenant"}) == (200, "")
    assert ask(b"namespace=team-b", authorization="Bearer tenant")[0] == 403
    refused = "tenant may not get energy.joulie.io in all namespaces; ask for one namespace (-n)"
    assert ask(authorization="Bearer tenant") == (403, refused)
    assert ask(authorization="Bearer finance") == (200, "")


def test_g15_learned_runtimes_answer_no_pod_without_a_right(stage):
    _, _, ask = stage
    assert ask(path=RUNTIMES_PATH)[0] == 401
    assert ask(b"namespace=team-a", RUNTIMES_PATH, authorization="Bearer tenant") == (200, "")
    assert ask(b"namespace=team-b", RUNTIMES_PATH, authorization="Bearer tenant")[0] == 403
    assert ask(path=RUNTIMES_PATH, authorization="Bearer tenant")[0] == 403
    assert ask(path=RUNTIMES_PATH, authorization="Bearer grid") == (200, "")


def test_a_token_for_the_accounting_alone_is_accepted_and_one_for_others_is_not(stage):
    server, _, ask = stage
    server.audience_of["finance"] = "vault"
    assert ask(authorization="Bearer grid") == (200, "")
    assert ask(authorization="Bearer finance")[0] == 401


def test_answers_of_the_api_server_are_used_for_a_minute_and_refusals_never(stage):
    server, now, ask = stage
    for _ in range(3):
        ask(b"namespace=team-a", authorization="Bearer tenant")
    assert server.reviews == ["tokenreviews", "subjectaccessreviews"]
    assert ask(b"namespace=team-b", authorization="Bearer tenant")[0] == 403
    server.rights["tenant"].add("team-b")
    assert ask(b"namespace=team-b", authorization="Bearer tenant")[0] == 200
    now[0] += 61.0
    server.rights = {}
    assert ask(b"namespace=team-a", authorization="Bearer tenant")[0] == 401


def test_nobody_is_answered_while_the_api_server_cannot_be_asked(stage):
    server, _, ask = stage
    server.away = True
    assert ask(authorization="Bearer finance")[0] == 503
