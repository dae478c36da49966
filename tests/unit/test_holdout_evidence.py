"""Evidence of holdouts that outlives programs: what is kept by month, by whom, and what is made of spoilt texts."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import ConnectionLostError
from joulie.adapters.kubernetes.events import EventRecorder
from joulie.adapters.kubernetes.holdout import CONFIG_MAP, EVIDENCE_KEY
from joulie.adapters.kubernetes.resources import CONFIG_MAPS, NAMESPACES
from joulie.apps.operator.limits.evidence import SAVE_S, KeptEvidence
from joulie.domain.accounting.holdout_evidence import MONTHS_KEPT, NO_MONTHS, EvidenceByMonth, MonthOfEvidence
from joulie.domain.accounting.journal import Month
from joulie.domain.trial.holdout import Effect, Evidence
from joulie_lab.fakes.kubernetes import FakeCluster

NAMESPACE = "joulie-system"
NOV_S = Month(2026, 11).starts_s
ALONE, TREATED = Effect(-0.08, 0.01, True, 700.0), Effect(-0.07, 0.02, False, 700.0)

effects = st.builds(
    Effect, st.floats(-2, 2), st.floats(-2, 2), st.booleans(), st.floats(1e-3, 1e6, allow_subnormal=False)
)


def after(effect: Effect, count: int, time_s: float = NOV_S) -> EvidenceByMonth:
    evidence = NO_MONTHS
    for _ in range(count):
        evidence = evidence.added(time_s, effect)
    return evidence


@pytest.mark.slow
@given(st.lists(st.tuples(st.floats(0.0, 4e9), effects), max_size=30))
def test_kept_evidence_is_what_it_was(units: list[tuple[float, Effect]]) -> None:
    evidence = NO_MONTHS
    for time_s, effect in units:
        evidence = evidence.added(time_s, effect)
    assert EvidenceByMonth.parse(evidence.text()) == evidence
    assert len(evidence.months) <= MONTHS_KEPT
    months = {str(Month.of(time_s)) for time_s, _ in units}
    if len(months) <= MONTHS_KEPT:
        assert sum(one.evidence.units for one in evidence.months.values()) == len(units)


def test_now_is_of_the_fewest_latest_months_that_say_something() -> None:
    oct_s, sep_s = Month(2026, 10).starts_s, Month(2026, 9).starts_s
    none = Effect(0.0, 0.01, True, 700.0)
    evidence = after(none, 50, sep_s) + after(ALONE, 6, oct_s) + after(ALONE, 5, NOV_S)
    assert evidence.now.units == 11, "September says that nothing was saved, and is not asked"
    assert evidence.months["2026-10"] == MonthOfEvidence(oct_s, after(ALONE, 6).months["2026-11"].evidence)
    assert after(ALONE, 3).now.bounds is None


def test_a_copy_keeps_the_longer_of_two_evidences_of_a_month() -> None:
    copy = after(ALONE, 20)
    assert copy.updated(after(ALONE, 3)).now.units == 20, "begun anew elsewhere"
    assert copy.updated(after(ALONE, 23)).now.units == 23


GOOD: dict[str, Any] = json.loads(after(ALONE, 12).text())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "[" * 100_000,
        '{"2026-11": 3}',
        '{"2026-11": {}}',
        json.dumps({"2026-13": GOOD["2026-11"]}),
        json.dumps({"2026-10": GOOD["2026-11"]}),
        *(
            json.dumps({"2026-11": GOOD["2026-11"] | wrong})
            for wrong in (
                {"units": 5},
                {"units": 12.5},
                {"units": True},
                {"left_out": -1},
                {"weight": 0.0},
                {"weight": -1.0},
                {"square": -1e-9},
                {"effect": float("nan")},
                {"effect": float("inf")},
                {"effect": "0"},
                {"effect": 10**400},
                {"since_s": 1e300},
                {"other": 1},
            )
        ),
    ],
)
def test_a_spoilt_text_is_an_error_and_no_evidence(text: str) -> None:
    with pytest.raises(ValueError, match="evidence of a holdout cannot be read"):
        EvidenceByMonth.parse(text)


class Stage:
    """A cluster with the ConfigMap, and leaders that keep evidence in it."""

    def __init__(self, cluster: FakeCluster, client: KubeClient) -> None:
        self.cluster, self.client = cluster, client
        self.events: list[tuple[str, str]] = []
        self.leads = True

    def leader(self) -> KeptEvidence:
        recorder = EventRecorder(self.client, "joulie-operator")
        recorder.emit = lambda to, _kind, why, _what: self.events.append((to.name, why))  # type: ignore[method-assign]
        return KeptEvidence(self.client, recorder, NAMESPACE, lambda: self.leads)

    async def make(self, **data: str) -> None:
        await self.client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        await self.client.create(CONFIG_MAPS, {"metadata": {"name": CONFIG_MAP}, "data": data}, NAMESPACE)

    async def stored(self) -> EvidenceByMonth:
        return EvidenceByMonth.parse((await self.client.get(CONFIG_MAPS, CONFIG_MAP, NAMESPACE)).data[EVIDENCE_KEY])


def play(tmp_path: Path, scenario: Callable[[Stage], Awaitable[None]]) -> None:
    async def main() -> None:
        async with FakeCluster() as cluster:
            kubeconfig = cluster.kubeconfig(tmp_path / "kubeconfig")
            async with KubeClient.connect(kubeconfig=kubeconfig) as client, asyncio.timeout(30.0):
                await scenario(Stage(cluster, client))

    asyncio.run(main())


def test_the_next_leader_goes_on_where_the_killed_one_has_written(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.make()
        first = stage.leader()
        await first.keep(NOV_S)
        for _ in range(20):
            first.add(NOV_S, ALONE)
        await first.keep(NOV_S + 10.0)
        assert (await stage.client.get(CONFIG_MAPS, CONFIG_MAP, NAMESPACE)).data == {}, "not with every window"
        await first.keep(NOV_S + SAVE_S)
        first.add(NOV_S, ALONE)  # killed before this is written

        second = stage.leader()
        assert second.now.units == 0
        second.add(NOV_S, TREATED)
        assert second.now.units == 0, "what it alone knows is not the saving"
        await second.keep(NOV_S + 600.0)
        assert (second.now.units, second.now.left_out) == (21, 20)
        assert second.now.interval == (after(ALONE, 20) + after(TREATED, 1)).now.interval

    play(tmp_path, scenario)


def test_of_two_leaders_neither_overwrites_nor_repeats_the_others_windows(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.make()
        old, new = stage.leader(), stage.leader()
        now_s = NOV_S
        for turn in range(6):
            for leader in (old, new):
                leader.add(NOV_S, ALONE if leader is old else TREATED)
                await leader.keep(now_s + turn * SAVE_S)
        found = (await stage.stored()).months["2026-11"].evidence
        assert (found.units, found.left_out) == (12, 6)
        # At the same moment: one is refused by the version that it had read, and writes with its next turn.
        old.add(NOV_S, ALONE)
        new.add(NOV_S, TREATED)
        await asyncio.gather(old.keep(now_s + 6 * SAVE_S), new.keep(now_s + 6 * SAVE_S))
        await asyncio.gather(old.keep(now_s + 7 * SAVE_S), new.keep(now_s + 7 * SAVE_S))
        await asyncio.gather(old.keep(now_s + 8 * SAVE_S), new.keep(now_s + 8 * SAVE_S))
        found = (await stage.stored()).months["2026-11"].evidence
        assert (found.units, found.left_out) == (14, 7)
        # Who has lost the lease writes nothing.
        stage.leads = False
        old.add(NOV_S, ALONE)
        await old.keep(now_s + 9 * SAVE_S)
        assert (await stage.stored()).months["2026-11"].evidence.units == 14

    play(tmp_path, scenario)


def test_a_write_whose_answer_was_lost_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.make()
        leader = stage.leader()
        await leader.keep(NOV_S)
        leader.add(NOV_S, ALONE)
        real = stage.client.patch

        async def breaks(*arguments: Any, **named: Any) -> None:
            await real(*arguments, **named)
            raise ConnectionLostError("no answer", sent=True)

        monkeypatch.setattr(stage.client, "patch", breaks)
        await leader.keep(NOV_S + SAVE_S)
        assert leader.now.units == 1
        monkeypatch.setattr(stage.client, "patch", real)
        leader.add(NOV_S, TREATED)
        await leader.keep(NOV_S + 2 * SAVE_S)
        assert leader.now.units == 2
        assert (await stage.stored()).months["2026-11"].evidence.units == 2

    play(tmp_path, scenario)


def test_spoilt_evidence_is_reported_and_begun_anew(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.make(**{EVIDENCE_KEY: '{"2026-11": {"units": 0}}'})
        leader = stage.leader()
        await leader.keep(NOV_S)
        assert stage.events == [(CONFIG_MAP, "HoldoutEvidenceSpoilt")]
        assert leader.now == Evidence(), "no saving of zero, and no interval"
        for _ in range(12):
            leader.add(NOV_S + 5.0, ALONE)
        await leader.keep(NOV_S + SAVE_S)
        assert (await stage.stored()).months["2026-11"].since_s == NOV_S + 5.0
        # Spoilt under a running leader: it knows what was there.
        body = {"data": {EVIDENCE_KEY: "spoilt"}}
        await stage.client.patch(CONFIG_MAPS, CONFIG_MAP, body, namespace=NAMESPACE)
        leader.add(NOV_S + 6.0, ALONE)
        await leader.keep(NOV_S + 2 * SAVE_S)
        assert (await stage.stored()).months["2026-11"].evidence.units == 13
        assert len(stage.events) == 3

    play(tmp_path, scenario)


def test_while_it_cannot_be_read_nothing_is_said_and_nothing_lost(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.make()
        leader = stage.leader()
        for _ in range(12):
            leader.add(NOV_S, ALONE)
        stage.cluster.fail_next(1, 403, path="configmaps")
        await leader.keep(NOV_S)
        assert leader.now == Evidence()
        stage.cluster.recover()
        await leader.keep(NOV_S + 15.0)
        assert leader.now.interval is not None

    play(tmp_path, scenario)


def test_without_the_config_map_evidence_is_that_of_this_leader(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        leader = stage.leader()
        for _ in range(12):
            leader.add(NOV_S, ALONE)
        await leader.keep(NOV_S)
        await leader.keep(NOV_S + SAVE_S)
        assert leader.now.units == 12
        await stage.make()
        await leader.keep(NOV_S + 2 * SAVE_S)
        assert (await stage.stored()).months["2026-11"].evidence.units == 12, "it was made meanwhile"
        # Emptied under a running leader, such as by a new installation: it knows what was there.
        body = {"data": {EVIDENCE_KEY: None}}
        await stage.client.patch(CONFIG_MAPS, CONFIG_MAP, body, namespace=NAMESPACE)
        leader.add(NOV_S, ALONE)
        await leader.keep(NOV_S + 3 * SAVE_S)
        assert (await stage.stored()).months["2026-11"].evidence.units == 13

    play(tmp_path, scenario)
