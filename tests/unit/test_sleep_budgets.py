"""Nodes that are off or wake under PowerBudgets, through the operator against the fake cluster and fake machines."""

import pytest

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.resources import NODES, POWER_BUDGETS
from support import sleep_stage
from support.operator_stage import until
from support.power_switches import OFF, ON, Site
from support.sleep_stage import add, add_pod, asleep, look, messages

pytestmark = pytest.mark.slow

FULL_W, FLOOR_W = 1.2 * 2 * 360.0, 2 * 320.0 + 0.2 * 2 * 360.0
"""Two EPYC 9654 (320 to 360 W), and what no limit reaches."""
STANDBY_W = 50.0


def play(body, tmp_path, watts):
    """Play with n1, which has a pod and no switch, and n2, which is off."""

    async def scenario(stage):
        site = Site("n2")
        stage.loop._sleep._power._switches = site
        await add(stage, "n1")
        await add_pod(stage, "job", "n1", cpu="60")
        await add(stage, "n2")
        await stage.client.patch(NODES, "n2", {"metadata": {"annotations": {names.POWER_SWITCH_ANNOTATION: "redfish"}}})
        await until(lambda: stage.view.node("n2").power_switch)
        await site.kubelets(stage)
        await stage.client.create(POWER_BUDGETS, {"metadata": {"name": "rack"}, "spec": {"watts": watts}})
        await until(lambda: stage.view.power_budgets)
        await stage.step()
        await confirm(stage)
        await asleep(stage)
        await budgets(stage)
        await body(stage, site)

    sleep_stage.play(scenario, tmp_path)


async def confirm(stage):
    """The agent of n1 confirms the limits in its NodeTwin."""
    twin = await stage.twin("n1")
    one = {"backend": "http", "result": "applied"}
    await stage.report("n1", {"cpu": one, "observedGeneration": twin.metadata.generation})
    await stage.caught_up()


async def budgets(stage):
    """A decision about budgets, as an agent confirms what the one before asked for. Returns the worst case, W."""
    await stage.loop._budgets.look()
    await stage.caught_up()
    return stage.loop._budgets._decided.decision.outcomes["rack"].worst_w


async def later(stage, site, times=1):
    for _ in range(times):
        await look(stage)
        await site.kubelets(stage)


def test_a_node_that_is_off_counts_its_standby_power(tmp_path):
    async def body(stage, site):
        await later(stage, site, times=3)
        assert site.machines["n2"].power is OFF
        assert await budgets(stage) == FULL_W + STANDBY_W

    play(body, tmp_path, 5000.0)


def test_a_node_wakes_once_the_others_have_confirmed_to_give(tmp_path):
    watts = FULL_W + FLOOR_W + 20.0

    async def body(stage, site):
        await later(stage, site, times=3)
        assert await budgets(stage) == FULL_W + STANDBY_W
        await confirm(stage)
        await add_pod(stage, "large", cpu="32")
        await later(stage, site, times=2)
        assert await messages(stage) == {"n2 wakes for it once power budgets have room": 1}
        assert await budgets(stage) == 2 * FULL_W, "n1 has yet to give"
        await later(stage, site)
        assert site.machines["n2"].power is OFF
        await confirm(stage)
        assert await budgets(stage) <= watts
        await later(stage, site)
        assert site.machines["n2"].power is ON
        assert await budgets(stage) <= watts

    play(body, tmp_path, watts)


def test_a_node_stays_off_where_its_boot_breaks_a_budget(tmp_path):
    async def body(stage, site):
        await later(stage, site, times=3)
        await add_pod(stage, "large", cpu="32")
        for _ in range(3):
            await later(stage, site)
            assert await budgets(stage) == FULL_W + STANDBY_W
            await confirm(stage)
        assert site.machines["n2"].power is OFF
        assert any("waits for power" in message for message in await messages(stage))
        await stage.client.delete(POWER_BUDGETS, "rack")
        await until(lambda: not stage.view.power_budgets)
        await stage.loop._budgets.look()
        await later(stage, site, times=2)
        assert site.machines["n2"].power is ON

    play(body, tmp_path, FULL_W + FLOOR_W - 20.0)


def test_a_node_that_somebody_switches_on_counts_as_on(tmp_path):
    async def body(stage, site):
        await later(stage, site, times=3)
        assert await budgets(stage) == FULL_W + STANDBY_W
        machine = site.machines["n2"]
        machine.power = ON  # and its kubelet has yet to start
        calls = list(machine.calls)
        await look(stage, 10.0, times=8)
        assert await budgets(stage) == 2 * FULL_W
        assert machine.calls == calls

    play(body, tmp_path, 5000.0)


def test_a_node_whose_switch_is_silent_counts_as_on_after_five_minutes(tmp_path):
    async def body(stage, site):
        await later(stage, site, times=3)
        site.machines["n2"].answers = False
        await look(stage, 100.0)
        assert await budgets(stage) == FULL_W + STANDBY_W
        await look(stage, 250.0)
        assert await budgets(stage) == 2 * FULL_W

    play(body, tmp_path, 5000.0)


def test_a_leader_that_has_not_decided_wakes_nobody(tmp_path):
    async def body(stage, site):
        await later(stage, site, times=3)
        await sleep_stage.restarted(stage)
        stage.loop._sleep._power._switches = site
        await add_pod(stage, "large", cpu="32")
        await later(stage, site, times=2)
        assert site.machines["n2"].power is OFF
        await budgets(stage)
        await later(stage, site)
        await budgets(stage)
        await later(stage, site, times=2)
        assert site.machines["n2"].power is ON

    play(body, tmp_path, 5000.0)
