"""Nodes that are switched off while they sleep, through the operator against the fake cluster and fake machines."""

import asyncio
import dataclasses

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.resources import NODES
from joulie.adapters.power_switches.file import SwitchKind
from joulie.apps.operator.main import operator
from joulie.apps.operator.settings.sleep import SleepMode
from joulie.apps.operator.sleep.metrics import SleepMetrics
from joulie.apps.operator.sleep.power import NodePower, Sleeper
from joulie.domain.mode import Mode
from joulie.domain.sleep.snapshot import SleepSettings
from joulie.domain.sleep.states import Asleep, Awake, Cordoned, Waking
from support import sleep_stage
from support.operator_stage import staged, until
from support.power_switches import OFF, ON, Site
from support.sleep_stage import add, add_pod, asleep, closed, events, look, messages, sample

pytestmark = pytest.mark.slow

ANNOTATED = {"annotations": {names.POWER_SWITCH_ANNOTATION: "redfish"}}


def play(body, tmp_path, *nodes, annotated=True, may_force=False, **more):
    """Play with nodes that have a switch; n1 has a pod and no switch."""
    site = Site(*(nodes or ("n2",)), may_force=may_force)

    async def scenario(stage):
        connect(stage, site)
        await add(stage, "n1")
        await add_pod(stage, "job", "n1", cpu="60")
        for name in site.machines:
            await add(stage, name)
            if annotated:
                await stage.client.patch(NODES, name, {"metadata": ANNOTATED})
                await until(lambda name=name: stage.view.node(name).power_switch)
        await site.kubelets(stage)
        await body(stage, site)

    sleep_stage.play(scenario, tmp_path, **more)


def connect(stage, site):
    stage.loop._sleep._power._switches = site


async def restarted(stage, site, **settings):
    await sleep_stage.restarted(stage, **settings)
    connect(stage, site)


async def later(stage, site, passed_s=10.0, times=1):
    for _ in range(times):
        await look(stage, passed_s)
        await site.kubelets(stage)


async def all_off(stage, site):
    await asleep(stage)
    await later(stage, site, times=2)
    assert {machine.power for machine in site.machines.values()} == {OFF}


async def wakes(stage, site, name="n2"):
    await add_pod(stage, "large", cpu="32")
    await later(stage, site, times=3)
    assert site.machines[name].power is ON
    assert name not in await closed(stage)


def test_an_empty_node_is_switched_off_and_a_pod_wakes_it(tmp_path):
    async def body(stage, site):
        await all_off(stage, site)
        assert site.machines["n2"].calls == ["off"]
        await later(stage, site, times=5)
        assert site.machines["n2"].calls == ["off"], "told once"
        assert sample(stage, "switched_off_nodes") == 1.0
        await add_pod(stage, "large", cpu="32")
        await look(stage)
        assert await messages(stage) == {"n2 is being woken for it": 1}
        assert await closed(stage) == {"n2": "waking"}
        await site.kubelets(stage)
        await later(stage, site)
        assert await closed(stage) == {}
        assert site.machines["n2"].calls == ["off", "on"]
        assert sample(stage, "switched_off_nodes") == 0.0
        assert sample(stage, "switch_errors_total") == 0.0

    play(body, tmp_path)


@pytest.mark.parametrize("how", [{"annotated": False}, {"mode": Mode.OBSERVE}, {"sleep": SleepMode.OBSERVE}])
def test_a_node_that_does_not_say_so_or_is_observed_is_not_switched(tmp_path, how):
    async def body(stage, site):
        await asleep(stage)
        await later(stage, site, 60.0, times=40)
        assert site.machines["n2"].calls == []
        assert ("n2", "Asleep") in await events(stage) or ("n2", "WouldSleep") in await events(stage)
        assert not {("n2", "Opened"), ("n2", "WouldOpen")} & await events(stage), "that it is on says nothing"

    play(body, tmp_path, **how)


def test_an_observed_node_would_wake_for_a_pod_and_then_be_open(tmp_path):
    async def body(stage, site):
        await asleep(stage)
        await add_pod(stage, "large", cpu="32")
        states = []
        for _ in range(3):
            planned = stage.loop._sleep.planned("n2")
            states.append(planned and planned.state)
            await later(stage, site)
        assert states == ["asleep", "waking", None]
        would = [reason for name, reason in await events(stage) if name == "n2"]
        assert sorted(would) == ["WouldCloseToSleep", "WouldOpen", "WouldSleep", "WouldWake"]
        assert site.machines["n2"].calls == []

    play(body, tmp_path, mode=Mode.OBSERVE)


@pytest.mark.parametrize("entry", [None, SwitchKind.IPMI], ids=["none", "of another kind than annotated"])
def test_a_node_without_its_entry_in_the_file_rests(tmp_path, entry):
    async def body(stage, site):
        machine = site.machines["n2"]
        if entry is None:
            del site.machines["n2"]
        else:
            site.kind = entry
        await asleep(stage)
        assert await closed(stage) == {"n2": "asleep"}
        await add_pod(stage, "large", cpu="32")
        await look(stage)
        assert await closed(stage) == {}
        assert machine.calls == []

    play(body, tmp_path)


def test_a_switch_that_does_not_answer_leaves_the_node_cordoned(tmp_path):
    async def body(stage, site):
        site.machines["n2"].answers = False
        await asleep(stage)
        await later(stage, site, 60.0, times=40)
        assert await closed(stage) == {"n2": "cordoned"}
        assert sample(stage, "errors_total") > 0.0
        await add_pod(stage, "large", cpu="32")
        await look(stage)
        assert await closed(stage) == {}, "it is open at once"

    play(body, tmp_path)


def test_a_node_that_is_needed_on_its_way_down_is_opened_only_when_it_has_booted(tmp_path):
    async def body(stage, site):
        site.machines["n2"].shuts_down_in = 4
        await asleep(stage)
        assert await closed(stage) == {"n2": "asleep"}
        await add_pod(stage, "large", cpu="32")
        while site.machines["n2"].boots == 1:
            await later(stage, site)
            assert await closed(stage) == {"n2": "waking"}, "it is ready still"
        await later(stage, site, times=2)
        assert await closed(stage) == {}
        assert site.machines["n2"].calls == ["off", "on"]

    play(body, tmp_path)


@pytest.mark.parametrize("needed", [False, True])
def test_a_node_that_does_not_obey_is_opened_after_the_timeout(tmp_path, needed):
    async def body(stage, site):
        site.machines["n2"].obeys = False
        await asleep(stage)
        if needed:
            await add_pod(stage, "large", cpu="32")
        await later(stage, site, 20.0, times=27)
        assert set((await closed(stage)).values()) == {"waking" if needed else "asleep"}
        await later(stage, site, 20.0, times=5)
        assert await closed(stage) == {}
        assert site.machines["n2"].calls == ["off"], "a shutdown is asked for once"

    play(body, tmp_path)


def test_force_is_used_five_minutes_later_where_the_switch_may(tmp_path):
    async def body(stage, site):
        site.machines["n2"].obeys = False
        await asleep(stage)
        await later(stage, site, 20.0, times=13)
        assert site.machines["n2"].calls == ["off"]
        await later(stage, site, 20.0, times=4)
        assert site.machines["n2"].calls == ["off", "force off"]
        await wakes(stage, site)

    play(body, tmp_path, may_force=True)


def test_a_node_that_does_not_wake_is_told_again_then_given_up_and_another_one_wakes(tmp_path):
    async def body(stage, site):
        await all_off(stage, site)
        for machine in site.machines.values():
            machine.wakes = False
        await add_pod(stage, "large", cpu="32")
        await later(stage, site)
        (first,) = [name for name, state in (await closed(stage)).items() if state == "waking"]
        for _ in range(2):
            await later(stage, site, 600.0)
        assert (await closed(stage))[first] == "waking"
        await later(stage, site, 600.0)
        assert (await closed(stage))[first] == "failed"
        assert (first, "DoesNotWake") in await events(stage)
        (other,) = set(site.machines) - {first}
        site.machines[other].wakes = True
        await later(stage, site, times=3)
        assert site.machines[other].power is ON
        assert set(await closed(stage)) == {first}
        site.machines[first].wakes = True
        await site.machines[first].on()  # somebody went there
        await site.kubelets(stage)
        await later(stage, site)
        assert await closed(stage) == {}

    play(body, tmp_path, "n2", "n3")


def test_an_operator_killed_between_mark_and_switch_costs_a_look(tmp_path):
    async def body(stage, site):
        machine = site.machines["n2"]
        power = stage.loop._sleep._power
        power.follow = none
        await asleep(stage)
        assert (await closed(stage), machine.calls) == ({"n2": "asleep"}, [])
        await restarted(stage, site)
        await later(stage, site, times=2)
        assert machine.calls == ["off"]
        stage.loop._sleep._power.follow = none
        await add_pod(stage, "large", cpu="32")
        await later(stage, site)
        assert (await closed(stage), machine.calls) == ({"n2": "waking"}, ["off"])
        await restarted(stage, site)
        await later(stage, site, times=2)
        assert (await closed(stage), machine.calls) == ({}, ["off", "on"])

    async def none(_sleepers):
        return []

    play(body, tmp_path)


@pytest.mark.parametrize("how", [{"sleep": SleepMode.OFF}, {"sleep": SleepMode.OBSERVE}])
def test_whatever_is_off_is_switched_on_when_sleep_is(tmp_path, how):
    async def body(stage, site):
        await all_off(stage, site)
        await restarted(stage, site, **how)
        await later(stage, site, times=3)
        assert (await closed(stage), site.machines["n2"].power) == ({}, ON)

    play(body, tmp_path)


def test_a_node_whose_annotation_goes_while_it_is_off_is_switched_on_when_it_is_needed(tmp_path):
    async def body(stage, site):
        await all_off(stage, site)
        await stage.client.patch(NODES, "n2", {"metadata": {"annotations": {names.POWER_SWITCH_ANNOTATION: None}}})
        await until(lambda: not stage.view.node("n2").power_switch)
        await wakes(stage, site)

    play(body, tmp_path)


def test_a_node_that_came_up_by_itself_is_not_told_off_in_a_boot_that_its_mark_does_not_name(tmp_path):
    async def body(stage, site):
        await all_off(stage, site)
        await site.machines["n2"].on()  # mains power came back
        await site.kubelets(stage)
        await restarted(stage, site)  # nobody remembers that it was off
        await later(stage, site, times=5)
        assert site.machines["n2"].calls == ["off", "on"]
        await wakes(stage, site)

    play(body, tmp_path)


def test_a_node_without_the_id_of_its_boot_rests(tmp_path):
    async def body(stage, site):
        await stage.client.patch(NODES, "n2", {"status": {"nodeInfo": {"bootID": ""}}}, subresource="status")
        await until(lambda: not stage.view.node("n2").boot_id)
        await asleep(stage)
        await look(stage, 60.0, times=20)
        assert site.machines["n2"].calls == []
        assert await closed(stage) == {"n2": "asleep"}

    play(body, tmp_path)


def test_a_file_that_cannot_be_read_keeps_the_switches_that_were_known(tmp_path):
    async def body(stage, site):
        await all_off(stage, site)
        site.broken = True
        await wakes(stage, site)
        assert sample(stage, "switch_errors_total") > 0.0

    play(body, tmp_path)


def test_no_more_nodes_boot_at_once_than_may(tmp_path):
    nodes = [f"m{index}" for index in range(4)]

    async def body(stage, site):
        await all_off(stage, site)
        await restarted(stage, site, sleep=SleepMode.OFF, sleeping=dataclasses.replace(SleepSettings(), max_waking=1))
        for booted in range(1, 5):
            await look(stage)
            assert sum(machine.power is ON for machine in site.machines.values()) == booted
            await site.kubelets(stage)
        await look(stage)
        assert await closed(stage) == {}

    play(body, tmp_path, *nodes)


def test_whoever_lost_the_lease_switches_nothing(tmp_path):
    async def body(stage, site):
        power = stage.loop._sleep._power
        follow, power.follow = power.follow, none
        await asleep(stage)
        power.follow = follow
        stage.leading = False
        with pytest.raises(Exception, match="no longer holds the lease"):
            await stage.loop._sleep.look()
        assert site.machines["n2"].calls == []

    async def none(_sleepers):
        return []

    play(body, tmp_path)


def test_a_pod_that_comes_between_mark_and_switch_keeps_the_power_on(tmp_path):
    async def body(stage, site):
        machine = site.machines["n2"]
        added = set()
        power = stage.loop._sleep._power
        follow = power.follow

        async def follow_after_a_pod(sleepers):
            sleepers = list(sleepers)
            if sleepers and not added:
                added.add("late")
                await add_pod(stage, "late", "n2")
            return await follow(sleepers)

        power.follow = follow_after_a_pod
        await asleep(stage)
        assert machine.calls == []
        assert added
        await later(stage, site, 20.0, times=35)
        assert (machine.power, await closed(stage)) == (ON, {})

    play(body, tmp_path)


# ---- settings


def test_the_settings_name_the_file(tmp_path):
    path = tmp_path / "switches.yaml"
    path.write_text("switches: {n2: {redfish: 'https://bmc/redfish/v1/Systems/1'}}")

    async def main():
        async with staged(tmp_path, {"SLEEP_SWITCHES": str(path)}) as stage:
            power = stage.loop._sleep._power
            power.reload()
            assert power._switches.get("n2").switch.system == "https://bmc/redfish/v1/Systems/1"
            await power.aclose()
        async with staged(tmp_path) as stage:
            assert stage.loop._sleep._power._switches is None

    asyncio.run(main())


def test_authorities_that_cannot_be_read_are_a_usage_error(tmp_path):
    result = CliRunner().invoke(operator, ["--sleep-switches-ca", str(tmp_path / "none")])
    assert (result.exit_code, "No such file" in result.output) == (2, True), result.output


# ---- what must never happen

EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["wants on", "wants off", "cordons", "pod comes", "pod goes", "comes up", "dies", "answers"]),
        st.booleans(),
    ),
    max_size=30,
)


@given(EVENTS, st.booleans(), st.booleans())
def test_power_is_never_cut_under_a_pod_nor_while_the_mark_does_not_want_it(happened, may_force, obeys):
    asyncio.run(_power_course(happened, may_force, obeys))


async def _power_course(happened, may_force, obeys):
    site = Site("n", may_force=may_force)
    machine = site.machines["n"]
    machine.obeys = obeys
    now_s, pods, state, empty_when_told = 0.0, 0, Awake(), []

    async def still_empty(_name, told):
        return state == told and pods == 0

    async def off(*, force=False, switch=machine.off):
        empty_when_told.append((pods == 0, isinstance(state, Asleep)))
        await switch(force=force)

    machine.off = off
    power = NodePower(site, SleepMetrics(CollectorRegistry()), still_empty, may_write=lambda: True, now_s=lambda: now_s)
    for what, flag in happened:
        now_s += 200.0
        before = state
        match what:
            case "wants on":
                state = Waking(now_s, 1)
            case "wants off":
                state = Asleep(now_s)
            case "cordons":
                state = Cordoned(now_s)
            case "pod comes":
                pods += 1
            case "pod goes":
                pods = max(0, pods - 1)
            case "comes up":
                machine.power = ON
            case "dies":
                machine.wakes = flag
            case "answers":
                machine.answers = flag
        # The decision may be made of a view that is old.
        await power.follow([Sleeper("n", "uid", before if flag else state)])
    assert set(empty_when_told) <= {(True, True)}
    machine.answers = machine.wakes = True
    machine.shuts_down_in, machine._left = 0, None
    state = Waking(now_s, 1)
    await power.follow([Sleeper("n", "uid", state)])
    assert machine.power is ON, "what is wanted comes about"
