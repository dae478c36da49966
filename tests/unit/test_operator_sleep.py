"""Nodes that sleep, through the operator against the fake cluster."""

import dataclasses
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.demand import CONFIG_MAP, decode_demand
from joulie.adapters.kubernetes.errors import ForbiddenError
from joulie.adapters.kubernetes.resources import CONFIG_MAPS, NAMESPACES, NODES, PERSISTENT_VOLUMES
from joulie.adapters.kubernetes.sleep_marks import TAINT
from joulie.apps.operator.settings import OperatorSettings
from joulie.apps.operator.settings.sleep import SleepMode
from joulie.apps.operator.sleep import controller
from joulie.apps.operator.sleep.keep import Keep
from joulie.apps.operator.sleep.volumes import VolumeNodes, holders
from joulie.domain.mode import Mode
from joulie.domain.scheduling.labels import Requirement
from joulie.domain.scheduling.node_rules import Term
from joulie.domain.sleep.demand import ForecastSettings
from joulie.program.leadership import NotLeadingError
from joulie.program.settings import settings_from
from support.operator_stage import until
from support.played import played
from support.sleep_stage import (
    FLEET,
    HOSTNAME,
    add,
    add_pod,
    asleep,
    closed,
    end_pod,
    events,
    fleet,
    look,
    messages,
    play,
    restarted,
    sample,
    versions,
)

pytestmark = pytest.mark.slow

GPU_TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}


def test_nothing_sleeps_unless_asked():
    assert settings_from(OperatorSettings, {}).sleep is SleepMode.OFF
    assert settings_from(OperatorSettings, {"SLEEP": "false"}).sleep is SleepMode.OFF, "YAML's off"
    assert settings_from(OperatorSettings, {"SLEEP": "Enforce"}).sleep is SleepMode.ENFORCE
    with pytest.raises(ValueError, match="SLEEP: off, observe, enforce is expected, got 'yes'"):
        settings_from(OperatorSettings, {"SLEEP": "yes"})


@played(play, sleep=SleepMode.OFF)
async def test_off_writes_nothing(stage):
    await fleet(stage)
    before = await versions(stage)
    await asleep(stage)
    assert await versions(stage) == before
    assert await events(stage) == set()
    assert sample(stage, "nodes", state="asleep", mode="enforce") is None


@pytest.mark.parametrize("how", [{"sleep": SleepMode.OBSERVE}, {"mode": Mode.OBSERVE}])
def test_observe_says_what_would_be_done_and_writes_nothing(tmp_path, how):
    async def body(stage):
        await fleet(stage)
        before = await versions(stage)
        stage.wake.clear()
        await asleep(stage)
        assert await versions(stage) == before
        would = {"WouldCloseToSleep", "WouldSleep"}
        assert await events(stage) == set(itertools.product(("n1", "n2"), would)), "the first two of three alike"
        assert sample(stage, "nodes", state="asleep", mode="observe") == 2.0
        assert sample(stage, "nodes", state="asleep", mode="enforce") == 0.0
        assert sample(stage, "commands_total", action="powerOff", mode="observe") == 2.0
        assert stage.wake.is_set(), "so that NodeTwins say so at once"
        # No pod waits for a node that is open in truth.
        await add_pod(stage, "wide", cpu="60")
        await add_pod(stage, "wider", cpu="60")
        await look(stage)
        assert await events(stage, "Pod") == set()
        assert {reason for _, reason in await events(stage)} == would | {"WouldOpen"}
        assert await versions(stage) == before
        await stage.step()
        planned = {name: (await stage.twin(name)).status.planned for name in FLEET}
        (sleeps,) = (one.sleep for one in planned.values() if one is not None and one.sleep is not None)
        assert (sleeps.state, sleeps.reason) == ("asleep", "empty and cordoned")
        assert [one is not None and one.profile is not None for one in planned.values()] == [
            stage.settings.mode is Mode.OBSERVE
        ] * 3, "caps are planned where they are only observed"

    play(body, tmp_path, **how)


@played(play)
async def test_an_empty_node_is_closed_then_asleep_and_other_taints_stay(stage):
    await fleet(stage, "n1", "n2")
    await add(stage, "n3", taints=[GPU_TAINT])
    await add_pod(stage, "job", "n1")
    await look(stage)
    await look(stage, 590.0)
    assert await closed(stage) == {}
    await look(stage, 10.0)
    assert await closed(stage) == {"n2": "cordoned", "n3": "cordoned"}, "n1 is the one of its family that stays"
    await look(stage, 30.0)
    await look(stage, 30.0)
    assert set((await closed(stage)).values()) == {"cordoned"}, "three looks at least"
    await look(stage, 10.0)
    assert await closed(stage) == {"n2": "asleep", "n3": "asleep"}
    raw = await stage.client.raw("GET", "/api/v1/nodes/n3")
    assert GPU_TAINT in json.loads(raw)["spec"]["taints"]
    assert sample(stage, "nodes", state="asleep", mode="enforce") == 2.0
    assert {("n2", "ClosedToSleep"), ("n2", "Asleep")} <= await events(stage)
    before = await versions(stage)
    await look(stage, times=5)
    assert await versions(stage) == before, "at rest nothing is written"


@played(play)
async def test_a_pod_opens_a_sleeping_node_and_is_told(stage):
    await fleet(stage, "n1", "n2")
    await add_pod(stage, "job", "n1", cpu="60")
    await asleep(stage)
    assert await closed(stage) == {"n2": "asleep"}
    await add_pod(stage, "small", cpu="2")
    await look(stage)
    assert await closed(stage) == {"n2": "asleep"}, "n1 has room"
    assert await events(stage, "Pod") == set()
    await add_pod(stage, "large", cpu="32")
    await look(stage)
    assert await closed(stage) == {}
    assert await events(stage, "Pod") == {("large", "WaitsForNode")}
    assert await messages(stage) == {"n2 is being woken for it": 1}
    assert sample(stage, "waiting_pods") == 1.0
    # It is gone soon, and the node stays open for ten minutes.
    await end_pod(stage, "large")
    await look(stage, 500.0)
    assert await closed(stage) == {}
    assert sample(stage, "waiting_pods") == 0.0


@played(play)
async def test_a_pod_that_is_on_its_way_opens_a_closed_node(stage):
    await fleet(stage, "n1", "n2")
    await add_pod(stage, "job", "n1")
    await look(stage)
    await look(stage, 600.0)
    assert await closed(stage) == {"n2": "cordoned"}
    await add_pod(stage, "late", "n2")
    await look(stage)
    assert await closed(stage) == {}


async def _nothing(stage):
    await stage.caught_up()


async def _volume(stage):
    affinity = {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": ["n2"]}]}
    spec = {"local": {"path": "/disk"}, "nodeAffinity": {"required": {"nodeSelectorTerms": [affinity]}}}
    await stage.client.create(PERSISTENT_VOLUMES, {"metadata": {"name": "data"}, "spec": spec})
    await until(lambda: stage.loop._sleep._volumes.all)


async def _cordon(stage):
    await stage.client.patch(NODES, "n2", {"spec": {"unschedulable": True}})
    await until(lambda: stage.view.node("n2").cordoned)


async def _taint(stage):
    taint = {"key": "DeletionCandidateOfClusterAutoscaler", "effect": "PreferNoSchedule", "value": "1"}
    node = await stage.client.get(NODES, "n2")
    await stage.client.patch(NODES, "n2", {"spec": {"taints": [*node.spec.taints, taint]}})
    await until(lambda: len(stage.view.node("n2").taints) == len(node.spec.taints) + 1)


def _label(key, value):
    async def label(stage):
        await stage.client.patch(NODES, "n2", {"metadata": {"labels": {key: value}}})
        await until(lambda: stage.view.node("n2").labels.get(key) == value)

    return label


@pytest.mark.parametrize(
    ("keep", "change"),
    [
        (Keep.CONTROL_PLANE, _label("node-role.kubernetes.io/control-plane", "")),
        (Keep.LABEL, _label(names.KEEP_AWAKE_LABEL, "true")),
        (Keep.RESERVED, _label(names.RESERVED_LABEL, "me")),
        (Keep.AUTOSCALER, _label("karpenter.sh/nodepool", "default")),
        (Keep.AUTOSCALER, _taint),
        (Keep.CORDONED, _cordon),
        (Keep.LOCAL_VOLUME, _volume),
    ],
)
@pytest.mark.parametrize("before", [True, False])
@played(play)
async def test_what_keeps_a_node_awake_also_wakes_it(stage, keep, change, before):
    await fleet(stage, "n1", "n2")
    await add_pod(stage, "job", "n1")
    if before:
        await change(stage)
    await asleep(stage)
    assert await closed(stage) == ({} if before else {"n2": "asleep"})
    if not before:
        await change(stage)
        await look(stage)
        assert await closed(stage) == {}
    assert sample(stage, "kept_nodes", reason=keep.value) == 1.0


@pytest.mark.parametrize("change", [_label("node-role.kubernetes.io/control-plane", ""), _cordon])
@played(play)
async def test_a_node_that_pods_cannot_count_on_is_not_the_one_that_stays_awake(stage, change):
    await fleet(stage, "n1", "n2")
    await change(stage)
    await asleep(stage)
    assert await closed(stage) == {}, "n1 is the only one for pods of any kind"


async def _daemon(stage):
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d", "controller": True}
    await add_pod(stage, "daemon", "n2", ownerReferences=[owner])


@pytest.mark.parametrize("change", [_daemon, _label(names.KEEP_AWAKE_LABEL, "false")], ids=["daemon", "label-false"])
@played(play)
async def test_what_keeps_no_node_awake(stage, change):
    await fleet(stage, "n1", "n2")
    await change(stage)
    await add_pod(stage, "job", "n1")
    await asleep(stage)
    assert await closed(stage) == {"n2": "asleep"}


@played(play)
async def test_the_mode_of_a_node_takes_precedence(stage):
    await fleet(stage)
    await add_pod(stage, "job", "n1")
    await _label(names.MODE_LABEL, "observe")(stage)
    await asleep(stage)
    assert await closed(stage) == {"n3": "asleep"}
    assert {("n2", "WouldSleep"), ("n3", "Asleep")} <= await events(stage)
    await stage.client.patch(NODES, "n3", {"metadata": {"labels": {names.MODE_LABEL: "observe"}}})
    await until(lambda: not stage.view.node("n3").enforced)
    await look(stage)
    assert await closed(stage) == {}, "a node that is no longer acted on is opened"


@pytest.mark.parametrize("mode", [SleepMode.OFF, SleepMode.OBSERVE])
@played(play)
async def test_switched_off_opens_what_slept(stage, mode):
    await fleet(stage)
    await asleep(stage)
    assert len(await closed(stage)) == 2
    await restarted(stage, sleep=mode)
    await look(stage)
    assert await closed(stage) == {}


@played(play)
async def test_a_node_that_joulie_no_longer_manages_is_opened(stage):
    await fleet(stage, "n1", "n2")
    await add_pod(stage, "job", "n1")
    await asleep(stage)
    await stage.client.patch(NODES, "n2", {"metadata": {"labels": {names.MANAGED_LABEL: None}}})
    await until(lambda: not stage.view.node("n2").managed)
    await look(stage)
    assert await closed(stage) == {}


@played(play)
async def test_a_new_leader_goes_on_from_the_marks(stage):
    await fleet(stage, "n1", "n2")
    await add_pod(stage, "job", "n1", cpu="60")
    await look(stage)
    await look(stage, 600.0)
    await restarted(stage)
    assert await closed(stage) == {"n2": "cordoned"}
    await look(stage, 30.0, times=3)
    assert await closed(stage) == {"n2": "asleep"}
    await restarted(stage)
    before = await versions(stage)
    await look(stage)
    assert await versions(stage) == before
    await add_pod(stage, "large", cpu="32")
    await look(stage)
    assert await closed(stage) == {}


@played(play)
async def test_a_leader_that_does_not_know_the_volumes_closes_nothing_and_wakes_nobody(stage):
    await fleet(stage)
    await asleep(stage)
    before = await closed(stage)
    assert len(before) == 2
    stage.start()  # whose chart gives no right to list volumes, say
    await look(stage)
    assert await closed(stage) == before
    await add(stage, "n4")
    await asleep(stage)
    assert await closed(stage) == before
    assert sample(stage, "kept_nodes", reason="volumes unknown") == 2.0


@played(play)
async def test_a_mark_that_nobody_can_read_is_removed(stage):
    await fleet(stage, "n1", "n2")
    await stage.client.patch(NODES, "n2", {"metadata": {"annotations": {names.SLEEP_STATE_ANNOTATION: "zzz"}}})
    await until(lambda: stage.view.node("n2").sleep_mark)
    await look(stage)
    node = await stage.client.get(NODES, "n2")
    assert names.SLEEP_STATE_ANNOTATION not in node.metadata.annotations


@played(play)
async def test_a_node_that_does_not_come_back_is_given_up_and_its_pods_are_told_once_for_each_reason(stage):
    await fleet(stage, "n1")
    mark = {"metadata": {"annotations": {names.SLEEP_STATE_ANNOTATION: "zzz"}}}
    await stage.client.patch(NODES, "n1", mark | {"spec": {"taints": [TAINT]}})
    status = {"conditions": [{"type": "Ready", "status": "Unknown"}]}
    await stage.client.patch(NODES, "n1", {"status": status}, subresource="status")
    await until(lambda: stage.view.node("n1").asleep and not stage.view.node("n1").ready)
    await add_pod(stage, "job")
    await look(stage, times=3)
    assert await messages(stage) == {"n1 is waking": 1}
    for _ in range(3):
        await look(stage, 600.0)
    assert await closed(stage) == {"n1": "failed"}
    assert ("n1", "DoesNotWake") in await events(stage)
    await look(stage, times=3)
    told = {"n1 is waking": 1, "the nodes that have room for it do not wake: n1": 1}
    assert await messages(stage) == told
    await stage.client.patch(NODES, "n1", {"status": {"conditions": []}}, subresource="status")
    await until(lambda: stage.view.node("n1").ready)
    await look(stage)
    assert await closed(stage) == {}, "ready after all"


@pytest.mark.parametrize("to_state", ["cordoned", "asleep"])
@played(play)
async def test_a_pod_that_the_view_does_not_show_yet_keeps_the_node_open(stage, to_state, monkeypatch):
    await fleet(stage, "n1", "n2")
    await add_pod(stage, "job", "n1")
    await look(stage)
    if to_state == "asleep":
        await look(stage, 600.0)
        await look(stage, 30.0, times=2)
        assert await closed(stage) == {"n2": "cordoned"}
    before = await closed(stage)
    old = controller.see(stage.view, stage.loop._sleep._volumes.all, stage.now_s + 700.0)
    monkeypatch.setattr(controller, "see", lambda *_: old)
    await add_pod(stage, "late", "n2")
    await stage.loop._sleep.look()
    assert await closed(stage) == before


@played(play)
async def test_a_node_that_changed_since_it_was_read_is_left_for_the_next_look(stage, monkeypatch):
    await fleet(stage)
    await add_pod(stage, "job", "n1")
    await look(stage)
    read = controller.NodeSleep._read

    async def read_then_changed(self, name):
        node = await read(self, name)
        if name == "n2":
            await stage.client.patch(NODES, name, {"metadata": {"labels": {"other": "change"}}})
        return node

    with monkeypatch.context() as patched:
        patched.setattr(controller.NodeSleep, "_read", read_then_changed)
        await look(stage, 600.0)
    assert await closed(stage) == {"n3": "cordoned"}
    assert sample(stage, "errors_total") == 1.0
    await look(stage)
    assert set(await closed(stage)) == {"n2", "n3"}


@played(play)
async def test_whoever_lost_the_lease_writes_nothing(stage):
    await fleet(stage)
    await look(stage)
    before = await versions(stage)
    stage.leading = False
    with pytest.raises(NotLeadingError):
        await look(stage, 600.0)
    assert await versions(stage) == before


@played(play)
async def test_an_api_server_that_is_away_changes_nothing(stage, monkeypatch):
    await fleet(stage)
    await look(stage)

    async def refused(self, name):
        raise ForbiddenError(403, "Forbidden", "no", what="list nodes")

    with monkeypatch.context() as patched:
        patched.setattr(controller.NodeSleep, "_read", refused)
        await look(stage, 600.0)
    assert await closed(stage) == {}
    assert sample(stage, "errors_total") == 2.0
    await look(stage)
    assert len(await closed(stage)) == 2


@played(play)
async def test_a_node_of_an_autoscaler_is_marked_and_left_to_it(stage):
    await fleet(stage, "n1", "n2", **{"karpenter.sh/nodepool": "default"})
    await add_pod(stage, "job", "n1")
    await asleep(stage)
    assert await closed(stage) == {}
    assert stage.view.node("n2").removable == "2027-01-15T08:00:10Z"
    assert not stage.view.node("n1").removable
    assert sample(stage, "removable_nodes") == 1.0
    before = await versions(stage)
    await look(stage, times=3)
    assert await versions(stage) == before
    await add_pod(stage, "late", "n2")
    await look(stage)
    assert not stage.view.node("n2").removable
    await end_pod(stage, "late")
    await asleep(stage)
    assert stage.view.node("n2").removable
    await restarted(stage, sleep=SleepMode.OFF)
    await look(stage)
    assert not stage.view.node("n2").removable


# ---- volumes

LABELS_OF = {
    "a": {HOSTNAME: "a", "zone": "1"},
    "b": {HOSTNAME: "b", "zone": "1"},
    "c": {HOSTNAME: "c", "zone": "2"},
}


def volume(key, *values, local=False, operator="In"):
    return VolumeNodes((Term((Requirement(key, operator, values),)),), local)


@pytest.mark.parametrize(
    ("one", "held"),
    [
        (volume(HOSTNAME, "b"), {"b"}),
        (volume(HOSTNAME, "gone"), set()),
        (volume("zone", "1"), set()),
        (volume("zone", "1", local=True), {"a", "b"}),
        (volume("zone", "2"), {"c"}),
        (volume(HOSTNAME, "a", "b", operator="NotIn"), {"c"}),
        (VolumeNodes((Term((), (Requirement("metadata.name", "In", ("a",)),)),), local=False), {"a"}),
        (VolumeNodes((), local=True), set()),
    ],
)
def test_a_volume_that_one_node_alone_can_use_is_local(one, held):
    assert holders([one], LABELS_OF) == held


REQUIREMENTS = st.builds(
    Requirement,
    st.sampled_from([HOSTNAME, "zone", "none"]),
    st.sampled_from(["In", "NotIn"]),
    st.lists(st.sampled_from(["a", "b", "c", "1", "2"]), min_size=1, max_size=2).map(tuple),
)
VOLUMES = st.builds(
    VolumeNodes,
    st.lists(st.builds(Term, st.lists(REQUIREMENTS, max_size=2).map(tuple)), max_size=2).map(tuple),
    st.booleans(),
)


@given(st.lists(VOLUMES, max_size=4))
def test_the_index_by_labels_finds_what_a_scan_finds(volumes):
    expected = set()
    for one in volumes:
        nodes = {name for name, labels in LABELS_OF.items() if any(term.matches(labels, name) for term in one.terms)}
        if one.local or len(nodes) == 1:
            expected |= nodes
    assert holders(volumes, LABELS_OF) == expected


# ---- the forecast of demand


async def keeps_demand(stage, **data):
    await stage.client.create(NAMESPACES, {"metadata": {"name": stage.settings.namespace}})
    body = {"metadata": {"name": CONFIG_MAP}, "data": data}
    await stage.client.create(CONFIG_MAPS, body, stage.settings.namespace)


@played(play)
async def test_demand_of_earlier_days_keeps_a_node_awake_and_survives_the_operator(stage):
    await keeps_demand(stage)
    await fleet(stage)
    began_s = stage.now_s
    for day in range(2):
        stage.now_s = began_s + day * 86_400.0
        await look(stage, 300.0, times=8)
        await add_pod(stage, f"p{day}", cpu="40")
        await look(stage, 300.0)
        await end_pod(stage, f"p{day}")
        await look(stage, 300.0, times=4)
    assert await closed(stage) == {"n1": "asleep", "n2": "asleep"}
    # The next leader opens no node that sleeps for demand of half an hour from now; one that is empty stays open.
    forecast = ForecastSettings(quantile=0.5, ahead_s=300.0, keep_s=1800.0)
    none_open = dataclasses.replace(stage.settings.sleeping, min_awake=0)
    await restarted(stage, sleeping=none_open, forecast=forecast)
    stage.now_s = began_s + 2 * 86_400.0 + 600.0
    await look(stage, 300.0, times=2)
    assert (sample(stage, "expected_pods", within="keep"), sample(stage, "expected_pods", within="wake")) == (
        1.0,
        0.0,
    )
    assert sample(stage, "ahead_nodes", mode="enforce") == 1.0
    assert 0.0 < sample(stage, "forecast_history_days") < 1.0
    assert await closed(stage) == {"n1": "asleep", "n2": "asleep"}
    # It did not come. Nodes need no time to wake here, so the last one is closed, too.
    await look(stage, 300.0, times=10)
    assert sample(stage, "ahead_nodes", mode="enforce") == 0.0
    assert set(await closed(stage)) == {"n1", "n2", "n3"}


@pytest.mark.parametrize("text", [None, "damaged"])
@played(play)
async def test_a_history_that_is_missing_or_damaged_is_begun_anew(stage, text):
    if text is not None:
        await keeps_demand(stage, history=text)
    await fleet(stage)
    await look(stage, 1000.0, times=2)
    assert sample(stage, "expected_pods", within="keep") == 0.0
    if text is not None:
        kept = await stage.client.get(CONFIG_MAPS, CONFIG_MAP, stage.settings.namespace)
        assert decode_demand(kept.data["history"]).days > 0.0
