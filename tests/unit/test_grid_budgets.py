"""EnergyBudgets in the grid controller: what waits, in which order it goes on, and what if nobody measures."""

import asyncio
from contextlib import suppress
from functools import partial

import pytest

from joulie.adapters.kubernetes.errors import NotFoundError
from joulie.adapters.kubernetes.resources import ENERGY_BUDGETS, EVENTS, JOBS, PODS
from joulie.adapters.kubernetes.times import rfc3339
from joulie.apps.grid.facts import BUDGET_WAITING_SINCE
from joulie.domain.accounting.budget import WhenUnknown
from joulie.domain.grid import names
from joulie.domain.grid.release import Limits
from joulie.domain.mode import Mode
from support import grid_stage
from support.grid_stage import EPOCH_S, NS
from support.played import played

GATE = [{"name": names.BUDGET_GATE}]
TURN_S = EPOCH_S + 3600.0
INTERRUPTIBLE = {names.INTERRUPTIBLE: "true"}


class Budgets:
    """The budgets of a stage: what accounting would say of them, and steps of the controller."""

    def __init__(self, stage):
        self.stage = stage
        self.follow()

    def follow(self):
        holds = self.stage.term.budgets
        self.stage.tasks += [asyncio.create_task(cache.run()) for cache in (holds.budgets, holds.unbound)]

    async def restart(self):
        """Another replica leads."""
        self.stage.start()
        self.follow()

    async def make(self, name="daily", *, used=0.0, action="gate", turns_s=TURN_S, **spec):
        body = {
            "metadata": {"name": name},
            "spec": {"limits": {"energyKWh": 1.0}, "period": "day", "action": action, **spec},
        }
        await self.stage.client.create(ENERGY_BUDGETS, body, NS)
        await self.measure(name, used, turns_s=turns_s)

    async def measure(self, name="daily", used=0.0, *, turns_s=TURN_S):
        status = {"used": {"energyKWh": used}, "lastUpdated": rfc3339(self.stage.now_s)}
        status |= {} if turns_s is None else {"periodEnd": rfc3339(turns_s)}
        await self.stage.client.patch(ENERGY_BUDGETS, name, {"status": status}, namespace=NS, subresource="status")

    async def get(self, name="daily"):
        return await self.stage.client.get(ENERGY_BUDGETS, name, NS)

    async def step(self, passed_s=0.0):
        """Time passes, the watches catch up, and one step is taken."""
        stage, holds = self.stage, self.stage.term.budgets
        stage.now_s += passed_s
        await holds.budgets.wait_synced()
        await holds.unbound.wait_synced()
        await self.seen()
        await holds.step()
        await stage.term.events.flush()
        await self.seen()

    async def seen(self):
        client, holds, view = self.stage.client, self.stage.term.budgets, self.stage.view
        budgets = {one.metadata.name: one for one in (await client.list(ENERGY_BUDGETS)).items}
        jobs = {one.metadata.name: one for one in (await client.list(JOBS)).items}
        pods = (await client.list(PODS, field_selector="spec.nodeName=")).items
        gated = {one.metadata.name: any(g.name == names.BUDGET_GATE for g in one.spec.scheduling_gates) for one in pods}

        def same():
            return (
                {key.name: one.metadata.resource_version for key, one in holds.budgets.objects.items()}
                == {name: one.metadata.resource_version for name, one in budgets.items()}
                and {key.name: (one.suspended, one.budget_since, one.active) for key, one in view.jobs.items()}
                == {
                    name: (one.spec.suspend, one.metadata.annotations.get(BUDGET_WAITING_SINCE), one.status.active)
                    for name, one in jobs.items()
                }
                and {key.name: one.gated for key, one in holds.unbound.objects.items()} == gated
            )

        await self.stage.until(same)

    async def gated(self):
        pods = (await self.stage.client.list(PODS)).items
        return sorted(
            pod.metadata.name
            for pod in pods
            if any(gate.name == names.BUDGET_GATE for gate in pod.spec.scheduling_gates)
        )

    async def suspended(self):
        return sorted(one.metadata.name for one in (await self.stage.client.list(JOBS)).items if one.spec.suspend)

    async def condition(self, name="daily"):
        (one,) = (each for each in (await self.get(name)).status.conditions if each.type == "Holding")
        return one.status, one.reason

    async def notes(self, reason):
        return [one.message for one in (await self.stage.client.list(EVENTS)).items if one.reason == reason]

    async def job(self, name, *, age_s=0.0, active=0, **fields):
        owner = await self.stage.job(name, age_s=age_s, **fields)
        body = {"status": {"active": active}}
        await self.stage.client.patch(JOBS, name, body, namespace=NS, subresource="status")
        return owner

    async def pod(self, name, *, gates=GATE, **fields):
        await self.stage.pod(name, gates=gates, **fields)


play = partial(grid_stage.play, kind=Budgets)


@pytest.mark.slow
@played(play, release_limits=Limits(1.0, 1))
async def test_g4_a_budget_holds_until_its_period_turns_and_then_lets_go_in_order_of_waiting(here):
    await here.make(used=1.2)
    await here.pod("b", age_s=20.0)
    await here.pod("c", age_s=30.0)
    await here.pod("a", age_s=10.0)
    await here.step()
    assert await here.gated() == ["a", "b", "c"]
    assert await here.condition() == ("True", "Exhausted")
    assert (await here.get()).status.held.pods == 3
    await here.step(3000.0)
    await here.restart()
    here.stage.now_s += 599.0
    await here.measure(used=1.2)
    await here.step()
    assert await here.gated() == ["a", "b", "c"], "as long as the period lasts, whoever leads"
    await here.step(1.0)
    assert await here.gated() == ["a", "b"], "the longest waiting first"
    await here.step(1.0)
    assert await here.gated() == ["a"]
    await here.step(1.0)
    assert await here.gated() == []
    assert await here.condition() == ("False", "WithinBudget")
    assert set(await here.notes("BudgetHold")) == {f"waits: EnergyBudget daily is exhausted until {rfc3339(TURN_S)}"}


@played(play)
async def test_g4_a_raised_limit_lets_go_at_once_though_nobody_measures(here):
    await here.make(used=1.2)
    await here.pod("a")
    await here.step()
    assert await here.gated() == ["a"]
    await here.stage.client.patch(ENERGY_BUDGETS, "daily", {"spec": {"limits": {"energyKWh": 2.0}}}, namespace=NS)
    await here.step()
    assert await here.gated() == []


@pytest.mark.slow
@played(play)
async def test_g4_jobs_that_wait_or_may_be_interrupted_are_suspended_and_resumed_by_themselves(here):
    await here.make(used=1.2, action="suspend")
    running = await here.job("may", active=1, age_s=50.0, annotations=INTERRUPTIBLE)
    await here.job("may-by-template", active=1, template=INTERRUPTIBLE)
    await here.job("must-not", active=1)
    waits = await here.job("waits", active=1, age_s=100.0)
    await here.pod("waits-x", gates=[], owner=waits, labels={"batch.kubernetes.io/controller-uid": waits["uid"]})
    await here.pod("may-x", gates=[], owner=running, nodeName="n1")
    await here.step()
    assert await here.suspended() == ["may", "may-by-template", "waits"]
    since = {one.metadata.name: one.metadata.annotations for one in (await here.stage.client.list(JOBS)).items}
    assert since["waits"][BUDGET_WAITING_SINCE] == rfc3339(EPOCH_S - 100.0), "it has waited since its creation"
    assert since["may"][BUDGET_WAITING_SINCE] == rfc3339(EPOCH_S)
    await here.restart()
    await here.step(3599.0)
    assert await here.suspended() == ["may", "may-by-template", "waits"]
    assert (await here.get()).status.held.jobs == 3
    await here.step(1.0)
    assert await here.suspended() == []
    assert all(
        BUDGET_WAITING_SINCE not in one.metadata.annotations for one in (await here.stage.client.list(JOBS)).items
    )


@played(play)
async def test_gate_suspends_nothing_that_runs(here):
    await here.make(used=1.2, action="gate")
    await here.job("may", active=1, annotations=INTERRUPTIBLE)
    half = await here.job("half", active=2)
    await here.pod("half-x", gates=[], owner=half)
    # The watch still shows it without a node, the API server does not: it has just been placed.
    await here.step()
    assert await here.suspended() == []


@played(play)
async def test_a_job_that_somebody_resumes_is_left_alone_until_the_budget_lets_go(here):
    await here.make(used=1.2, action="suspend")
    await here.job("mine", active=1, annotations=INTERRUPTIBLE)
    await here.step()
    assert await here.suspended() == ["mine"]
    await here.stage.client.patch(JOBS, "mine", {"spec": {"suspend": False}}, namespace=NS)
    await here.step(60.0)
    await here.step(60.0)
    assert await here.suspended() == []
    await here.step(3600.0)
    job = await here.stage.client.get(JOBS, "mine", NS)
    assert BUDGET_WAITING_SINCE not in job.metadata.annotations


@played(play)
async def test_a_budget_holds_only_its_own_pods(here):
    await here.make(used=1.2, target={"matchLabels": {"team": "blue"}})
    await here.make("job", used=1.2, target={"owner": {"kind": "Job", "name": "train"}})
    await here.make("report", used=5.0, action="report")
    train = await here.job("train", active=0)
    await here.pod("blue", labels={"team": "blue"})
    await here.pod("red", labels={"team": "red"})
    await here.pod("train-x", owner=train)
    await here.step()
    assert await here.gated() == ["blue", "train-x"]
    assert await here.condition("report") == ("False", "Exhausted")


@pytest.mark.parametrize(
    ("setting", "own", "held"), [("open", None, []), ("closed", None, ["a"]), ("open", "closed", ["a"])]
)
def test_unknown_usage_fails_open_or_closed_and_is_told(tmp_path, setting, own, held):
    async def story(here):
        await here.make(used=0.5, **({} if own is None else {"whenUnknown": own}))
        await here.pod("a")
        await here.step(301.0)
        assert await here.gated() == held
        reason = "UsageUnknownClosed" if held else "UsageUnknownOpen"
        assert await here.condition() == ("True" if held else "False", reason)
        assert len(await here.notes("BudgetUsageUnknown")) == 1
        assert here.stage.counted("joulie_grid_energy_budgets", decision=reason) == 1.0
        await here.measure(used=0.5)
        await here.step()
        assert await here.gated() == []
        assert await here.condition() == ("False", "WithinBudget")

    play(story, tmp_path, budget_when_unknown=WhenUnknown(setting))


@played(play)
async def test_an_exhausted_period_stays_exhausted_though_nobody_measures(here):
    await here.make(used=1.5)
    await here.pod("a")
    await here.step(3000.0)
    assert await here.gated() == ["a"]


@played(play)
async def test_a_rolling_budget_lets_go_below_95_percent(here):
    await here.make(used=1.01, turns_s=None, window="rolling")
    await here.pod("a")
    await here.step()
    await here.measure(used=0.97, turns_s=None)
    await here.step()
    assert await here.gated() == ["a"]
    await here.measure(used=0.94, turns_s=None)
    await here.step()
    assert await here.gated() == []


@played(play, mode=Mode.OBSERVE)
async def test_in_observe_mode_a_budget_is_only_reported(here):
    await here.make(used=1.5, action="suspend")
    await here.job("may", active=1, annotations=INTERRUPTIBLE)
    await here.pod("a")
    await here.step()
    assert (await here.gated(), await here.suspended()) == ([], [])
    assert await here.condition() == ("False", "Exhausted")


@played(play)
async def test_a_budget_that_is_deleted_lets_go(here):
    await here.make(used=1.5)
    await here.pod("a")
    await here.step()
    assert await here.gated() == ["a"]
    with suppress(NotFoundError):
        await here.stage.client.delete(ENERGY_BUDGETS, "daily", NS)
    await here.step()
    assert await here.gated() == []
