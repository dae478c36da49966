"""Invariants of the fake cluster: server-side apply, patches, watches, placement."""

import asyncio
import copy
import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulie_lab.fakes.kubernetes import FakeCluster, ownership, patches, watch
from joulie_lab.fakes.kubernetes.api import Writer
from joulie_lab.fakes.kubernetes.errors import StatusError
from joulie_lab.fakes.kubernetes.kinds import NODE, POD, Json, Kind, Shape
from joulie_lab.fakes.kubernetes.ownership import Manager, Managers, after_update, apply, owned_fields
from joulie_lab.fakes.kubernetes.selectors import label_selection
from joulie_lab.fakes.kubernetes.watch import WatchRequest
from joulie_lab.fakes.scheduler import FakeScheduler
from support.virtual_time import run_virtually

SHAPE = Shape(keyed={"conditions": ("type",)}, sets=frozenset({"finalizers"}), atomic=frozenset({"selector"}))
CONFIG_MAP = Kind("", "v1", "configmaps", "ConfigMap")
MANAGERS = ("operator", "agent", "hand")

scalars = st.one_of(st.integers(0, 3), st.sampled_from(["x", "y"]), st.booleans())
conditions = st.lists(
    st.fixed_dictionaries({"type": st.sampled_from("ABC"), "status": st.sampled_from(["True", "False"])}),
    max_size=3,
    unique_by=lambda condition: condition["type"],
)
parts = st.fixed_dictionaries(
    {},
    optional={
        "one": scalars,
        "two": scalars,
        "cpu": st.fixed_dictionaries({}, optional={"watts": scalars, "pct": scalars}).filter(bool),
        "plain": st.lists(scalars, min_size=1, max_size=2),
        "conditions": conditions.filter(bool),
        "finalizers": st.lists(st.sampled_from("abc"), min_size=1, max_size=2, unique=True),
        "selector": st.dictionaries(st.sampled_from("ab"), st.sampled_from("xy"), min_size=1, max_size=2),
    },
)
configs = parts.map(lambda part: {"spec": part} if part else {})
steps = st.lists(st.tuples(st.sampled_from(MANAGERS), configs, st.booleans()), max_size=8)


def writer(name: str, operation: str = "Apply") -> Manager:
    return Manager(name, operation, "", "v1", frozenset(), "now")


def play(history: list[tuple[str, Json, bool]]) -> tuple[Json, Managers]:
    """An object after applies, those in conflict left out."""
    obj: Json = {}
    managers: Managers = ()
    for name, config, force in history:
        try:
            obj, managers = apply(obj, config, managers, writer(name), SHAPE, force=force)
        except StatusError:
            continue
    return obj, managers


@given(steps, st.sampled_from(MANAGERS), configs)
def test_what_is_applied_by_force_is_there(history: list[Any], name: str, config: Json) -> None:
    obj, managers = play(history)
    after, owners = apply(obj, config, managers, writer(name), SHAPE, force=True)
    found = owned_fields(after, SHAPE)
    for path, value in owned_fields(config, SHAPE).items():
        assert found[path] == value
    own = next((manager.fields for manager in owners if manager.name == name), frozenset())
    assert own == frozenset(owned_fields(config, SHAPE))


@given(steps, st.sampled_from(MANAGERS), configs)
def test_what_force_changes_is_nobody_elses_any_more(history: list[Any], name: str, config: Json) -> None:
    obj, managers = play(history)
    before = owned_fields(obj, SHAPE)
    after, owners = apply(obj, config, managers, writer(name), SHAPE, force=True)
    changed = {path for path, value in owned_fields(after, SHAPE).items() if before.get(path) != value}
    assert all(manager.fields.isdisjoint(changed) for manager in owners if manager.name != name)


@given(steps)
def test_owners_own_what_is_there_and_somebody_owns_all_of_it(history: list[Any]) -> None:
    obj, managers = play(history)
    found = frozenset(owned_fields(obj, SHAPE))
    owned = frozenset().union(*(manager.fields for manager in managers))
    assert owned == found


@given(steps, st.sampled_from(MANAGERS), configs)
def test_applying_twice_changes_nothing(history: list[Any], name: str, config: Json) -> None:
    obj, managers = play(history)
    once = apply(obj, config, managers, writer(name), SHAPE, force=True)
    again = apply(once[0], config, once[1], writer(name), SHAPE, force=True)
    assert again[0] == once[0]
    assert {m.identity: m.fields for m in again[1]} == {m.identity: m.fields for m in once[1]}


@given(steps, configs)
def test_without_force_nothing_that_another_owns_changes(history: list[Any], config: Json) -> None:
    obj, managers = play(history)
    before = owned_fields(obj, SHAPE)
    others = [path for manager in managers if manager.name != "agent" for path in manager.fields]
    try:
        after, _ = apply(obj, config, managers, writer("agent"), SHAPE, force=False)
    except StatusError:
        return
    found = owned_fields(after, SHAPE)
    assert all(found[path] == before[path] for path in others)


@given(steps)
def test_when_all_managers_let_go_nothing_is_left(history: list[Any]) -> None:
    obj, managers = play(history)
    for name in MANAGERS:
        obj, managers = apply(obj, {}, managers, writer(name), SHAPE, force=True)
    assert owned_fields(obj, SHAPE).keys() <= {("f:spec",)}
    assert managers == ()


@given(steps, configs)
def test_an_update_takes_over_exactly_what_it_changes(history: list[Any], new: Json) -> None:
    obj, managers = play(history)
    before, after = owned_fields(obj, SHAPE), owned_fields(new, SHAPE)
    owners = after_update(managers, before, after, writer("editor", "Update"))
    changed = {path for path in after if path not in before or before[path] != after[path]}
    edited = next((m.fields for m in owners if m.operation == "Update"), frozenset())
    assert edited == changed
    assert all(manager.fields <= after.keys() for manager in owners)
    assert all(manager.fields.isdisjoint(changed) for manager in owners if manager.operation == "Apply")


@given(steps, configs, st.booleans())
def test_inputs_are_never_changed(history: list[Any], config: Json, force: bool) -> None:
    obj, managers = play(history)
    before = copy.deepcopy((obj, config))
    with suppress(StatusError):
        apply(obj, config, managers, writer("agent"), SHAPE, force=force)
    patches.merge_patch(obj, config)
    patches.strategic_merge_patch(obj, config, SHAPE)
    assert (obj, config) == before


@given(configs, configs)
def test_a_merge_patch_makes_one_object_of_another(old: Json, new: Json) -> None:
    def difference(before: Any, after: Any) -> Any:
        if not isinstance(before, dict) or not isinstance(after, dict):
            return after
        gone = dict.fromkeys(before.keys() - after.keys())
        return gone | {key: difference(before.get(key), value) for key, value in after.items()}

    assert patches.merge_patch(old, difference(old, new)) == new


@given(configs)
def test_managed_fields_name_every_field(config: Json) -> None:
    fields = frozenset(owned_fields(config, SHAPE))
    (entry,) = ownership.managed_fields((Manager("m", "Apply", "status", "v1", fields, "now"),))

    def leaves(tree: Json, path: ownership.Path = ()) -> set[ownership.Path]:
        if not tree:
            return {path}
        here = {path} if "." in tree else set()
        return here.union(*(leaves(below, (*path, key)) for key, below in tree.items() if key != "."))

    assert leaves(entry["fieldsV1"]) - {()} == fields
    assert entry["subresource"] == "status"


writes = st.lists(
    st.tuples(st.sampled_from(["put", "label", "delete"]), st.sampled_from("abc"), st.sampled_from(["in", "out"])),
    max_size=25,
)


@given(writes, st.integers(0, 25), st.booleans())
def test_a_list_and_the_watch_from_it_are_the_state(changes: list[Any], listed_after: int, selected: bool) -> None:
    """Whoever lists and then follows the watch knows the objects, also through a selector."""
    test = Writer("test")
    chosen = (lambda obj: obj["metadata"].get("labels", {}).get("is") == "in") if selected else None

    async def run() -> tuple[dict[str, int], dict[str, int]]:
        api = FakeCluster().api
        table = api.store.table(CONFIG_MAP)

        def state() -> dict[str, int]:
            return {s.key.name: s.revision for s in table.in_order("") if chosen is None or chosen(s.obj)}

        known, start = state(), api.store.revision
        for number, (what, name, value) in enumerate(changes):
            if number == listed_after:
                known, start = state(), api.store.revision
            found = api.find(CONFIG_MAP, "default", name)
            body = {"metadata": {"name": name, "labels": {"is": value}}, "data": {"n": str(number)}}
            if what == "delete" and found:
                api.delete(CONFIG_MAP, "default", name)
            elif what != "delete" and found:
                api.replace(CONFIG_MAP, "default", name, body, test)
            elif what != "delete":
                api.create(CONFIG_MAP, "default", body, test)
        request = WatchRequest(CONFIG_MAP, "", chosen, start, 1.0, None)
        async for portion in watch.stream(api.store, request, lambda: False, lambda: 0.0):
            for event in map(watch_event, portion.splitlines()):
                if event["type"] == "DELETED":
                    del known[event["object"]["metadata"]["name"]]
                else:
                    metadata = event["object"]["metadata"]
                    assert (event["type"] == "ADDED") is (metadata["name"] not in known)
                    known[metadata["name"]] = int(metadata["resourceVersion"])
        return known, state()

    known, state = run_virtually(run())
    assert known == state


def watch_event(line: bytes) -> Json:
    event: Json = json.loads(line)
    return event


@given(st.lists(st.integers(1, 8), max_size=12), st.lists(st.integers(1, 16), min_size=1, max_size=4))
def test_the_scheduler_never_overcommits_and_leaves_nothing_that_fits(pods: list[int], nodes: list[int]) -> None:
    test = Writer("test")

    async def run() -> dict[str, list[int]]:
        api = FakeCluster().api
        for number, cores in enumerate(nodes):
            amounts = {"cpu": str(cores), "pods": "110"}
            api.create(NODE, "", {"metadata": {"name": f"n{number}"}, "status": {"allocatable": amounts}}, test)
        running = asyncio.create_task(FakeScheduler(api).run())
        for number, cores in enumerate(pods):
            container = {"name": "c", "resources": {"requests": {"cpu": str(cores)}}}
            api.create(POD, "default", {"metadata": {"name": f"p{number}"}, "spec": {"containers": [container]}}, test)
        await asyncio.sleep(1)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        placed: dict[str, list[int]] = {}
        for stored in api.store.table(POD).in_order(""):
            cores = int(stored.obj["spec"]["containers"][0]["resources"]["requests"]["cpu"])
            placed.setdefault(stored.obj["spec"].get("nodeName", ""), []).append(cores)
        return placed

    placed = run_virtually(run())
    waiting = placed.pop("", [])
    left = {f"n{number}": cores - sum(placed.get(f"n{number}", [])) for number, cores in enumerate(nodes)}
    assert all(cores >= 0 for cores in left.values())
    assert not waiting or min(waiting) > max(left.values())
    assert sum(map(len, placed.values())) + len(waiting) == len(pods)


@pytest.mark.parametrize("selector", ["a in b", "in (a)", "a,,(", "=b", "a=b=c"])
def test_broken_selectors_are_refused(selector: str) -> None:
    with pytest.raises(StatusError):
        label_selection(selector)
