"""What comes of an eviction, whoever in the operator asks for it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import (
    ConflictError,
    ConnectionLostError,
    KubernetesError,
    NotFoundError,
    TooManyRequestsError,
)
from joulie.adapters.kubernetes.pods import Owner, PodFacts
from joulie.adapters.kubernetes.requests import Requests
from joulie.apps.operator.evictions import Answer, Evictions, Result
from joulie.apps.operator.leader import Leader
from joulie.apps.operator.sleep.moves import Mover
from joulie.domain.policy import PodPhase
from joulie.program.leadership import NotLeadingError

POD = PodFacts("team", "web-1", "u-1", PodPhase.RUNNING, "n1", Requests(), Owner("ReplicaSet", "web"))
BUDGET = TooManyRequestsError(429, "TooManyRequests", "no", retry_after_s=10.0, causes=("DisruptionBudget",))
BUSY = TooManyRequestsError(429, "TooManyRequests", "busy", retry_after_s=2.0)
AWAY = ConnectionLostError("refused", sent=False)


class Api:
    """Answers evictions with one error, or none."""

    def __init__(self, error: KubernetesError | None) -> None:
        self.error = error
        self.bodies: list[dict[str, Any]] = []

    async def create_subresource(self, *args: Any) -> None:
        self.bodies.append(args[3])
        if self.error is not None:
            raise self.error


def evictions(api: Api, *, leads: bool = True) -> Evictions:
    return Evictions(cast("KubeClient", api), lambda: leads)


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (None, Answer(Result.EVICTED)),
        (NotFoundError(404, "NotFound", "gone"), Answer(Result.GONE)),
        (ConflictError(409, "Conflict", "another UID"), Answer(Result.GONE)),
        (BUDGET, Answer(Result.REFUSED, 10.0, BUDGET)),
        (BUSY, Answer(Result.BUSY, 2.0, BUSY)),
        (AWAY, Answer(Result.ERROR, 0.0, AWAY)),
    ],
)
def test_the_answer_of_the_api_server_is_told(error: KubernetesError | None, answer: Answer) -> None:
    api = Api(error)
    assert asyncio.run(evictions(api).evict(POD)) == answer
    assert [body["deleteOptions"] for body in api.bodies] == [{"preconditions": {"uid": "u-1"}}]


def test_a_dry_run_evicts_nothing() -> None:
    api = Api(None)
    assert asyncio.run(evictions(api).evict(POD, dry_run=True)).result is Result.EVICTED
    assert api.bodies[0]["deleteOptions"]["dryRun"] == ["All"]


@pytest.mark.parametrize("dry_run", [True, False])
def test_who_lost_the_lease_asks_nothing(dry_run: bool) -> None:
    api = Api(None)
    with pytest.raises(NotLeadingError):
        asyncio.run(evictions(api, leads=False).evict(POD, dry_run=dry_run))
    assert api.bodies == []


def refusal(error: KubernetesError | None) -> str:
    view = SimpleNamespace(pods={Key("team", "web-1"): POD})
    client, none = cast("Any", Api(error)), cast("Any", None)
    leader = Leader(client, cast("Any", view), none, none, lambda: True, lambda: 0.0)
    return asyncio.run(Mover(leader, none).refusal(["team/web-1", "team/unknown"]))


def test_only_a_disruption_budget_keeps_a_node_from_being_emptied() -> None:
    assert refusal(BUDGET) == "the disruption budget of pod team/web-1 does not let it go"
    assert refusal(NotFoundError(404, "NotFound", "gone")) == refusal(None) == ""
    with pytest.raises(TooManyRequestsError, match="busy"):
        refusal(BUSY)
