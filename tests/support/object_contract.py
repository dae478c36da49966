"""What every API server must do with objects: the fake one and the real one are held to the same checks."""

from __future__ import annotations

from typing import Any

import pytest

from joulie.adapters.kubernetes.client import (
    ApiError,
    ConflictError,
    EventKind,
    GoneError,
    InvalidError,
    NotFoundError,
    PatchKind,
    TooManyRequestsError,
)
from joulie.adapters.kubernetes.resources import (
    CONFIG_MAPS,
    EVENTS,
    HORIZONTAL_POD_AUTOSCALERS,
    LEASES,
    NODE_TWINS,
    NODES,
    PODS,
    RESOURCE_SLICES,
    SERVICE_ACCOUNTS,
    Resource,
)
from joulie.adapters.kubernetes.slices import claimable_gpus
from joulie.domain.gpu_allocations import claimed_device
from support.subject import Json, Subject


def pod(name: str, **spec: Any) -> Json:
    """A pod that no scheduler takes."""
    container = {"name": "main", "image": "example/work", "resources": {"limits": {"cpu": "100m"}}}
    return {
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"schedulerName": "nobody", "containers": [container], **spec},
    }


def config_map(name: str, **data: str) -> Json:
    return {"metadata": {"name": name}, "data": data}


def owners(obj: Json) -> dict[tuple[str, str, str], Json]:
    """managedFields by manager, operation and subresource."""
    entries = obj["metadata"].get("managedFields", ())
    return {(e["manager"], e["operation"], e.get("subresource", "")): e["fieldsV1"] for e in entries}


def version(obj: Json) -> str:
    text: str = obj["metadata"]["resourceVersion"]
    return text


async def check_an_object_is_created_read_and_deleted(subject: Subject) -> None:
    made = await subject.client.create(CONFIG_MAPS, config_map("a", key="value"), subject.namespace)
    read = await subject.client.get(CONFIG_MAPS, "a", subject.namespace)
    assert read == made
    assert read.metadata.uid
    assert read.metadata.creation_timestamp
    await subject.client.delete(CONFIG_MAPS, "a", subject.namespace)
    with pytest.raises(NotFoundError, match='configmaps "a" not found'):
        await subject.client.get(CONFIG_MAPS, "a", subject.namespace)
    with pytest.raises(NotFoundError):
        await subject.client.delete(CONFIG_MAPS, "a", subject.namespace)


async def check_a_second_object_of_the_name_is_refused(subject: Subject) -> None:
    await subject.client.create(CONFIG_MAPS, config_map("a"), subject.namespace)
    with pytest.raises(ConflictError, match="already exists") as refused:
        await subject.client.create(CONFIG_MAPS, config_map("a"), subject.namespace)
    assert refused.value.reason == "AlreadyExists"


async def check_names_can_be_generated(subject: Subject) -> None:
    body = {"metadata": {"generateName": "made-"}}
    made = [await subject.client.create(CONFIG_MAPS, body, subject.namespace) for _ in range(2)]
    assert len({obj.metadata.name for obj in made}) == 2
    assert all(len(obj.metadata.name) == len("made-") + 5 for obj in made)


async def check_bad_names_and_labels_are_refused(subject: Subject) -> None:
    with pytest.raises(InvalidError, match="lowercase RFC 1123 subdomain"):
        await subject.client.create(CONFIG_MAPS, config_map("No_Name"), subject.namespace)
    labelled = {"metadata": {"name": "a", "labels": {"key": "no value!"}}}
    with pytest.raises(InvalidError, match="no value!"):
        await subject.client.create(CONFIG_MAPS, labelled, subject.namespace)


async def check_a_namespace_must_exist(subject: Subject) -> None:
    with pytest.raises(NotFoundError, match='namespaces "nowhere-at-all" not found'):
        await subject.client.create(CONFIG_MAPS, config_map("a"), "nowhere-at-all")
    found = await subject.client.list(CONFIG_MAPS, namespace="nowhere-at-all")
    assert found.items == []


async def check_unknown_resources_are_not_found(subject: Subject) -> None:
    unknown = Resource("joulie.io", "v1alpha1", "nodedreams", "NodeDream", False, NODE_TWINS.type)
    with pytest.raises(NotFoundError):
        await subject.client.list(unknown)


async def check_a_stale_replace_is_a_conflict(subject: Subject) -> None:
    await subject.client.create(CONFIG_MAPS, config_map("a", key="1"), subject.namespace)
    path = CONFIG_MAPS.path(subject.namespace, "a")
    old = await subject.request("GET", path)
    await subject.request("PUT", path, old | {"data": {"key": "2"}})
    with pytest.raises(ConflictError, match="the object has been modified") as refused:
        await subject.request("PUT", path, old | {"data": {"key": "3"}})
    assert refused.value.reason == "Conflict"
    patch = {"metadata": {"resourceVersion": version(old)}, "data": {"key": "4"}}
    with pytest.raises(ConflictError):
        await subject.client.patch(CONFIG_MAPS, "a", patch, namespace=subject.namespace)
    assert (await subject.request("GET", path))["data"] == {"key": "2"}


async def check_a_replace_without_version_overwrites_only_where_the_kind_allows(subject: Subject) -> None:
    await subject.client.create(CONFIG_MAPS, config_map("a", key="1"), subject.namespace)
    await subject.client.replace(CONFIG_MAPS, "a", config_map("a", key="2"), namespace=subject.namespace)
    await subject.client.apply(NODE_TWINS, subject.name("n"), {"spec": twin_spec()}, field_manager="m")
    with pytest.raises(InvalidError, match="must be specified for an update"):
        await subject.client.replace(NODE_TWINS, subject.name("n"), {"spec": twin_spec()})


async def check_replacing_what_is_not_there(subject: Subject) -> None:
    with pytest.raises(NotFoundError):
        await subject.client.replace(CONFIG_MAPS, "none", config_map("none"), namespace=subject.namespace)
    made = await subject.client.replace(LEASES, "new", {"spec": {"holderIdentity": "me"}}, namespace=subject.namespace)
    assert made.metadata.uid


async def check_deleting_by_uid(subject: Subject) -> None:
    made = await subject.client.create(CONFIG_MAPS, config_map("a"), subject.namespace)
    with pytest.raises(ConflictError, match="UID in the precondition"):
        await subject.client.delete(CONFIG_MAPS, "a", subject.namespace, uid="00000000-0000-0000-0000-000000000000")
    await subject.client.delete(CONFIG_MAPS, "a", subject.namespace, uid=made.metadata.uid)


async def check_a_write_that_changes_nothing_is_no_write(subject: Subject) -> None:
    name, manager = subject.name("n"), "steady"
    first = await subject.apply(NODE_TWINS, name, manager, {"spec": twin_spec()})
    again = await subject.apply(NODE_TWINS, name, manager, {"spec": twin_spec()})
    await subject.client.patch(NODE_TWINS, name, {"spec": twin_spec()})
    assert again == first
    assert await subject.read(NODE_TWINS, name) == first
    replaced = await subject.request("PUT", NODE_TWINS.path(name=name), first)
    assert version(replaced) == version(first)


async def check_versions_grow_over_all_resources(subject: Subject) -> None:
    versions = []
    for number in range(3):
        versions.append(await subject.request("POST", CONFIG_MAPS.path(subject.namespace), config_map(f"c{number}")))
        versions.append(await subject.apply(NODE_TWINS, subject.name(f"n{number}"), "m", {"spec": twin_spec()}))
    numbers = [int(version(obj)) for obj in versions]
    assert numbers == sorted(set(numbers))


async def check_generation_counts_changes_of_the_spec_alone(subject: Subject) -> None:
    name = subject.name("n")

    async def generation() -> int:
        count: int = (await subject.read(NODE_TWINS, name))["metadata"]["generation"]
        return count

    await subject.apply(NODE_TWINS, name, "m", {"spec": twin_spec()})
    assert await generation() == 1
    await subject.client.patch(NODE_TWINS, name, {"metadata": {"labels": {"a": "b"}}})
    await subject.client.patch(NODE_TWINS, name, {"status": {"estimatedPUE": 1.2}}, subresource="status")
    assert await generation() == 1
    await subject.client.patch(NODE_TWINS, name, {"spec": {"profile": "eco"}})
    assert await generation() == 2


async def check_status_is_written_by_its_subresource_alone(subject: Subject) -> None:
    name = subject.name("n")
    made = await subject.request("POST", NODE_TWINS.path(), twin(name) | {"status": {"estimatedPUE": 1.5}})
    assert "status" not in made
    await subject.client.patch(NODE_TWINS, name, {"status": {"estimatedPUE": 1.5}})
    assert "status" not in await subject.read(NODE_TWINS, name)
    patch = {"metadata": {"labels": {"a": "b"}}, "spec": {"profile": "eco"}, "status": {"estimatedPUE": 1.25}}
    await subject.client.patch(NODE_TWINS, name, patch, subresource="status")
    read = await subject.read(NODE_TWINS, name)
    assert read["status"] == {"estimatedPUE": 1.25}
    assert read["spec"] == made["spec"]
    assert "labels" not in read["metadata"]
    await subject.request("PUT", NODE_TWINS.path(name=name), read | {"status": {"estimatedPUE": 2}})
    assert (await subject.read(NODE_TWINS, name))["status"] == {"estimatedPUE": 1.25}
    only_status = await subject.request("GET", NODE_TWINS.path(name=name, subresource="status"))
    assert only_status["status"] == {"estimatedPUE": 1.25}


async def check_whole_floats_come_back_as_integers(subject: Subject) -> None:
    name = subject.name("n")
    body = twin(name, cpu={"packagePowerCapWatts": 60.0})
    await subject.request("PATCH", NODE_TWINS.path(name=name), body, media_type=APPLY, fieldManager="m")
    cap_w = (await subject.read(NODE_TWINS, name))["spec"]["cpu"]["packagePowerCapWatts"]
    assert cap_w == 60
    assert isinstance(cap_w, int)


APPLY = "application/apply-patch+yaml"


def twin_spec(profile: str = "performance", **more: Any) -> Json:
    return {"nodeName": "some-node", "profile": profile, **more}


def twin(name: str, **more: Any) -> Json:
    head = {"apiVersion": NODE_TWINS.api_version, "kind": NODE_TWINS.kind}
    return head | {"metadata": {"name": name}, "spec": twin_spec(**more)}


async def check_two_managers_apply_to_one_object(subject: Subject) -> None:
    name = subject.name("n")
    await subject.apply(NODE_TWINS, name, "operator", {"spec": twin_spec()})
    operator = {"status": {"schedulableClass": "eco", "powerMeasurement": {"measuredNodePowerW": 200}}}
    agent = {"status": {"controlStatus": {"cpu": {"backend": "rapl", "result": "applied"}}}}
    await subject.apply(NODE_TWINS, name, "operator", operator, subresource="status")
    both = await subject.apply(NODE_TWINS, name, "agent", agent, subresource="status")
    assert both["status"] == operator["status"] | agent["status"]
    assert owners(both) == {
        ("operator", "Apply", ""): {"f:spec": {"f:nodeName": {}, "f:profile": {}}},
        ("operator", "Apply", "status"): {
            "f:status": {"f:schedulableClass": {}, "f:powerMeasurement": {"f:measuredNodePowerW": {}}}
        },
        ("agent", "Apply", "status"): {"f:status": {"f:controlStatus": {"f:cpu": {"f:backend": {}, "f:result": {}}}}},
    }


async def check_what_a_manager_stops_applying_goes(subject: Subject) -> None:
    name = subject.name("n")
    caps = {"cpu": {"packagePowerCapWatts": 120}, "gpu": {"powerCap": {"scope": "perGpu", "capWattsPerGpu": 200}}}
    await subject.apply(NODE_TWINS, name, "operator", {"spec": twin_spec("eco", **caps)})
    await subject.apply(NODE_TWINS, name, "other", {"spec": {"gpu": {"powerCap": {"scope": "perGpu"}}}})
    left = await subject.apply(NODE_TWINS, name, "operator", {"spec": twin_spec("performance")})
    assert left["spec"] == twin_spec("performance", gpu={"powerCap": {"scope": "perGpu"}})
    gone = await subject.apply(NODE_TWINS, name, "other", {})
    assert gone["spec"] == twin_spec("performance")


async def check_an_emptied_map_goes_with_its_last_field(subject: Subject) -> None:
    name = subject.name("n")
    await subject.apply(NODE_TWINS, name, "operator", {"spec": twin_spec(scheduling={"draining": True})})
    left = await subject.apply(NODE_TWINS, name, "operator", {"spec": twin_spec()})
    assert left["spec"] == twin_spec()


async def check_labels_are_owned_one_by_one(subject: Subject) -> None:
    name = subject.name("n")
    await subject.client.create(NODES, {"metadata": {"name": name, "labels": {"mine": "1"}}})
    await subject.apply(NODES, name, "operator", {"metadata": {"labels": {"joulie.io/power-profile": "eco", "x": "1"}}})
    read = await subject.apply(NODES, name, "operator", {"metadata": {"labels": {"joulie.io/power-profile": "eco"}}})
    assert read["metadata"]["labels"]["joulie.io/power-profile"] == "eco"
    assert read["metadata"]["labels"]["mine"] == "1"
    assert "x" not in read["metadata"]["labels"]
    await subject.apply(NODES, name, "operator", {})
    read = await subject.read(NODES, name)
    assert "joulie.io/power-profile" not in read["metadata"]["labels"]


async def check_conditions_merge_by_type(subject: Subject) -> None:
    def conditions(*kinds: str) -> Json:
        rest = {"status": "True", "reason": "Because", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        return {"status": {"conditions": [{"type": kind, **rest} for kind in kinds]}}

    def types(obj: Json) -> set[str]:
        return {condition["type"] for condition in obj["status"].get("conditions", ())}

    name = subject.name("n")
    await subject.apply(NODE_TWINS, name, "m", {"spec": twin_spec()})
    await subject.apply(NODE_TWINS, name, "one", conditions("A", "B"), subresource="status")
    both = await subject.apply(NODE_TWINS, name, "two", conditions("B", "C"), subresource="status")
    assert types(both) == {"A", "B", "C"}
    left = await subject.apply(NODE_TWINS, name, "one", conditions(), subresource="status")
    assert types(left) == {"B", "C"}
    assert len(left["status"]["conditions"]) == 2


async def check_plain_lists_have_one_owner(subject: Subject) -> None:
    def recommendations(*names: str) -> Json:
        listed = [{"workloadRef": {"kind": "Pod", "name": name, "namespace": "d"}, "reason": "r"} for name in names]
        return {"status": {"rescheduleRecommendations": listed}}

    name = subject.name("n")
    await subject.apply(NODE_TWINS, name, "m", {"spec": twin_spec()})
    await subject.apply(NODE_TWINS, name, "m", recommendations("a", "b"), subresource="status")
    read = await subject.apply(NODE_TWINS, name, "m", recommendations("c"), subresource="status")
    assert [entry["workloadRef"]["name"] for entry in read["status"]["rescheduleRecommendations"]] == ["c"]
    with pytest.raises(ConflictError):
        await subject.apply(NODE_TWINS, name, "other", recommendations("d"), subresource="status")


async def check_conflicts_of_managers(subject: Subject) -> None:
    name = subject.name("n")
    await subject.apply(NODE_TWINS, name, "operator", {"spec": twin_spec("eco")})
    with pytest.raises(ConflictError, match=r'Apply failed with 1 conflict: conflict with "operator".*\.spec\.profile'):
        await subject.apply(NODE_TWINS, name, "admin", {"spec": {"profile": "performance"}})
    agreed = await subject.apply(NODE_TWINS, name, "admin", {"spec": {"profile": "eco"}})
    shared = {"f:spec": {"f:profile": {}}}
    assert owners(agreed)["admin", "Apply", ""] == shared
    assert owners(agreed)["operator", "Apply", ""] == {"f:spec": {"f:nodeName": {}, "f:profile": {}}}
    taken = await subject.apply(NODE_TWINS, name, "admin", {"spec": {"profile": "performance"}}, force=True)
    assert taken["spec"]["profile"] == "performance"
    assert owners(taken)["operator", "Apply", ""] == {"f:spec": {"f:nodeName": {}}}
    await subject.apply(NODE_TWINS, name, "operator", {"spec": {"nodeName": "some-node"}})
    assert (await subject.read(NODE_TWINS, name))["spec"] == twin_spec("performance")


async def check_a_hand_edit_takes_ownership(subject: Subject) -> None:
    name = subject.name("n")
    await subject.apply(NODE_TWINS, name, "operator", {"spec": twin_spec("eco")})
    await subject.client.patch(NODE_TWINS, name, {"spec": {"profile": "performance"}}, field_manager="hand")
    edited = await subject.read(NODE_TWINS, name)
    assert owners(edited)["hand", "Update", ""] == {"f:spec": {"f:profile": {}}}
    with pytest.raises(ConflictError, match="hand"):
        await subject.apply(NODE_TWINS, name, "operator", {"spec": twin_spec("eco")})
    healed = await subject.apply(NODE_TWINS, name, "operator", {"spec": twin_spec("eco")}, force=True)
    assert healed["spec"]["profile"] == "eco"
    assert ("hand", "Update", "") not in owners(healed)


async def check_devices_of_claims_are_selected_by_node(subject: Subject) -> None:
    device = {"name": "gpu-0", "attributes": {"uuid": {"string": "GPU-1"}, "numaNode": {"int": 0}}}
    for node in ("one", "two"):
        pool = {"name": subject.name(node), "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": "gpu.nvidia.com", "nodeName": subject.name(node), "pool": pool, "devices": [device]}
        await subject.client.create(RESOURCE_SLICES, {"metadata": {"name": subject.name(node)}, "spec": spec})
    names = await claimable_gpus(subject.client, subject.name("two"))
    assert names == {claimed_device("gpu.nvidia.com", subject.name("two"), "gpu-0"): "GPU-1"}


async def check_apply_by_uid_makes_no_object(subject: Subject) -> None:
    name = subject.name("n")
    made = await subject.apply(NODE_TWINS, name, "m", {"spec": twin_spec("eco")})
    body = {"metadata": {"uid": made["metadata"]["uid"]}, "spec": twin_spec("performance")}
    assert (await subject.apply(NODE_TWINS, name, "m", body))["spec"]["profile"] == "performance"
    await subject.client.delete(NODE_TWINS, name)
    with pytest.raises(ConflictError, match="no existing object was found"):
        await subject.apply(NODE_TWINS, name, "m", body)
    with pytest.raises(NotFoundError):
        await subject.client.get(NODE_TWINS, name)


async def check_apply_needs_a_manager_and_status_an_object(subject: Subject) -> None:
    body = {"apiVersion": "joulie.io/v1alpha1", "kind": "NodeTwin", "metadata": {"name": subject.name("n")}}
    with pytest.raises(ApiError, match="fieldManager"):
        await subject.request("PATCH", NODE_TWINS.path(name=subject.name("n")), body, media_type=APPLY)
    with pytest.raises(NotFoundError):
        await subject.apply(NODE_TWINS, subject.name("n"), "m", {"status": {"estimatedPUE": 1.1}}, subresource="status")


async def check_the_schema_is_held(subject: Subject) -> None:
    name = subject.name("n")
    with pytest.raises(InvalidError, match=r'spec\.profile: Unsupported value: "turbo"'):
        await subject.client.create(NODE_TWINS, {"metadata": {"name": name}, "spec": twin_spec("turbo")})
    with pytest.raises(InvalidError, match=r"spec\.nodeName: Required value"):
        await subject.client.create(NODE_TWINS, {"metadata": {"name": name}, "spec": {"profile": "eco"}})
    capped = twin_spec(cpu={"packagePowerCapWatts": "many"})
    with pytest.raises(InvalidError, match=r"spec\.cpu\.packagePowerCapWatts.*must be of type number"):
        await subject.client.create(NODE_TWINS, {"metadata": {"name": name}, "spec": capped})
    unknown = twin(name, new=1)
    with pytest.raises(InvalidError, match="'Kind' is missing"):
        await subject.request("POST", NODE_TWINS.path(), {"metadata": {"name": name}, "spec": twin_spec()})
    pruned = await subject.request("POST", NODE_TWINS.path(), unknown)
    assert pruned["spec"] == twin_spec()
    with pytest.raises(ApiError, match=r'unknown field "spec\.new"'):
        await subject.request("POST", NODE_TWINS.path(), unknown, fieldValidation="Strict")


async def check_patches(subject: Subject) -> None:
    await subject.client.create(CONFIG_MAPS, config_map("a", one="1", two="2"), subject.namespace)
    path = CONFIG_MAPS.path(subject.namespace, "a")

    async def patched(body: Any, kind: PatchKind) -> Json:
        await subject.client.patch(CONFIG_MAPS, "a", body, kind=kind, namespace=subject.namespace)
        data: Json = (await subject.request("GET", path)).get("data", {})
        return data

    assert await patched({"data": {"one": None, "three": "3"}}, PatchKind.MERGE) == {"two": "2", "three": "3"}
    operations: list[Json] = [
        {"op": "test", "path": "/data/two", "value": "2"},
        {"op": "move", "from": "/data/two", "path": "/data/one"},
        {"op": "replace", "path": "/data/three", "value": "drei"},
    ]
    assert await patched(operations, PatchKind.JSON) == {"one": "2", "three": "drei"}
    with pytest.raises(InvalidError):
        await patched([{"op": "test", "path": "/data/one", "value": "no"}], PatchKind.JSON)
    assert await patched({"data": {"$patch": "replace", "x": "y"}}, PatchKind.STRATEGIC) == {"x": "y"}
    await subject.client.apply(NODE_TWINS, subject.name("n"), {"spec": twin_spec()}, field_manager="m")
    with pytest.raises(ApiError) as refused:
        await subject.client.patch(NODE_TWINS, subject.name("n"), {}, kind=PatchKind.STRATEGIC)
    assert refused.value.status == 415


async def check_taints_are_replaced_even_by_strategic_patches(subject: Subject) -> None:
    name = subject.name("n")
    await subject.client.create(NODES, {"metadata": {"name": name}})
    for key in ("a", "b"):
        patch = {"spec": {"taints": [{"key": key, "effect": "NoSchedule"}]}}
        await subject.client.patch(NODES, name, patch, kind=PatchKind.STRATEGIC)
    taints = (await subject.read(NODES, name))["spec"]["taints"]
    assert [taint["key"] for taint in taints] == ["b"]
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    idle = {"status": {"conditions": [{"type": "DiskPressure", "status": "False"}]}}
    for patch in (ready, idle):
        await subject.client.patch(NODES, name, patch, kind=PatchKind.STRATEGIC, subresource="status")
    conditions = (await subject.read(NODES, name))["status"]["conditions"]
    assert {"Ready", "DiskPressure"} <= {condition["type"] for condition in conditions}


async def check_lists_are_ordered_and_paged_at_one_version(subject: Subject) -> None:
    names = [f"c{number}" for number in range(7)]
    for name in reversed(names):
        await subject.client.create(CONFIG_MAPS, config_map(name), subject.namespace)
    path = CONFIG_MAPS.path(subject.namespace)
    pages = [await subject.request("GET", path, limit=3)]
    left = pages[0]["metadata"]["remainingItemCount"]
    await subject.client.delete(CONFIG_MAPS, "c6", subject.namespace)
    await subject.client.create(CONFIG_MAPS, config_map("c9"), subject.namespace)
    while token := pages[-1]["metadata"].get("continue"):
        pages.append(await subject.request("GET", path, limit=3, **{"continue": token}))
    found = [item["metadata"]["name"] for page in pages for item in page["items"]]
    assert [name for name in found if name.startswith("c")] == names[: len(found)]
    assert left == len(found) - 3
    assert len({page["metadata"]["resourceVersion"] for page in pages}) == 1
    assert all("kind" not in item for page in pages for item in page["items"])
    everything = await subject.request("GET", path)
    assert {"c9", "c5"} <= {item["metadata"]["name"] for item in everything["items"]}
    assert "continue" not in everything["metadata"]


async def check_a_list_outlives_no_compaction(subject: Subject) -> None:
    for number in range(4):
        await subject.client.create(CONFIG_MAPS, config_map(f"c{number}"), subject.namespace)
    path = CONFIG_MAPS.path(subject.namespace)
    page = await subject.request("GET", path, limit=2)
    await subject.client.create(CONFIG_MAPS, config_map("later"), subject.namespace)
    await subject.compact()
    await subject.restart()  # or a real server answers from its cache
    with pytest.raises(GoneError, match="continue parameter is too old"):
        await subject.request("GET", path, limit=2, **{"continue": page["metadata"]["continue"]})
    with pytest.raises(ApiError) as refused:
        await subject.request("GET", path, limit=2, **{"continue": "nonsense"})
    assert refused.value.status == 400


async def check_label_selectors(subject: Subject) -> None:
    labels = {"a": {"tier": "web", "size": "1"}, "b": {"tier": "db"}, "c": {}}
    for name, own in labels.items():
        body = {"metadata": {"name": name, "labels": own}}
        await subject.client.create(SERVICE_ACCOUNTS, body, subject.namespace)

    async def selected(selector: str) -> set[str]:
        found = await subject.client.list(SERVICE_ACCOUNTS, namespace=subject.namespace, label_selector=selector)
        return {item.metadata.name for item in found.items} - {"default"}

    assert await selected("tier=web") == {"a"}
    assert await selected("tier==web,size=1") == {"a"}
    assert await selected("tier!=web") == {"b", "c"}
    assert await selected("tier in (web, db)") == {"a", "b"}
    assert await selected("tier notin (web,db)") == {"c"}
    assert await selected("tier") == {"a", "b"}
    assert await selected("!tier") == {"c"}
    assert await selected("tier in (web,db),!size") == {"b"}
    with pytest.raises(ApiError) as refused:
        await selected("tier in web")
    assert refused.value.status == 400


async def check_field_selectors(subject: Subject) -> None:
    namespace = subject.namespace
    node = subject.name("n")
    await subject.client.create(NODES, {"metadata": {"name": node}, "spec": {"unschedulable": True}})
    await subject.client.create(PODS, pod("waits"), namespace)
    await subject.client.create(PODS, pod("placed", nodeName="somewhere"), namespace)

    async def pods(selector: str) -> set[str]:
        found = await subject.client.list(PODS, namespace=namespace, field_selector=selector)
        return {item.metadata.name for item in found.items}

    assert await pods("spec.nodeName=somewhere") == {"placed"}
    assert await pods("spec.nodeName=") == {"waits"}
    assert await pods("spec.nodeName!=somewhere,status.phase=Pending") == {"waits"}
    assert await pods("metadata.name=waits") == {"waits"}
    assert await pods(f"metadata.namespace!={namespace}") == set()
    cordoned = await subject.client.list(NODES, field_selector="spec.unschedulable=true")
    assert node in {item.metadata.name for item in cordoned.items}
    with pytest.raises(ApiError, match="field label not supported") as refused:
        await subject.client.list(NODE_TWINS, field_selector="spec.profile=eco")
    assert refused.value.status == 400
    await subject.client.delete(PODS, "placed", namespace, grace_s=0)


async def check_pods_get_their_defaults_and_keep_their_spec(subject: Subject) -> None:
    await subject.client.create(PODS, pod("p"), subject.namespace)
    read = await subject.read(PODS, "p", subject.namespace)
    spec = read["spec"]
    assert spec["containers"][0]["resources"]["requests"] == {"cpu": "100m"}
    assert (spec["restartPolicy"], spec["terminationGracePeriodSeconds"], spec["priority"]) == ("Always", 30, 0)
    assert (read["status"]["phase"], read["status"]["qosClass"]) == ("Pending", "Burstable")
    change = [{"op": "replace", "path": "/spec/containers/0/resources/limits/cpu", "value": "2"}]
    with pytest.raises(InvalidError, match="pod updates may not change fields"):
        await subject.client.patch(PODS, "p", change, kind=PatchKind.JSON, namespace=subject.namespace)
    await subject.client.patch(
        PODS,
        "p",
        {"metadata": {"annotations": {"joulie.io/workload-class": "performance"}}},
        namespace=subject.namespace,
    )
    with pytest.raises(InvalidError, match="containers"):
        await subject.client.create(PODS, {"metadata": {"name": "q"}, "spec": {}}, subject.namespace)


async def check_gates_hold_a_pod_and_can_only_be_removed(subject: Subject) -> None:
    namespace = subject.namespace
    await subject.client.create(PODS, pod("p", schedulingGates=[{"name": "joulie.io/hold"}]), namespace)
    read = await subject.read(PODS, "p", namespace)
    assert [c["reason"] for c in read["status"]["conditions"] if c["type"] == "PodScheduled"] == ["SchedulingGated"]
    with pytest.raises(ConflictError):
        await subject.client.create_subresource(PODS, "p", "binding", binding("p", "n"), namespace)
    more = {"spec": {"schedulingGates": [{"name": "another"}]}}
    with pytest.raises(InvalidError):
        await subject.client.patch(PODS, "p", more, kind=PatchKind.STRATEGIC, namespace=namespace)
    await subject.client.patch(PODS, "p", {"spec": {"schedulingGates": []}}, namespace=namespace)
    assert not (await subject.read(PODS, "p", namespace))["spec"].get("schedulingGates")


def binding(name: str, node: str) -> Json:
    target = {"kind": "Node", "name": node}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}


async def check_binding_places_a_pod_once(subject: Subject) -> None:
    namespace = subject.namespace
    await subject.client.create(PODS, pod("p"), namespace)
    await subject.client.create_subresource(PODS, "p", "binding", binding("p", subject.name("n")), namespace)
    read = await subject.read(PODS, "p", namespace)
    assert read["spec"]["nodeName"] == subject.name("n")
    scheduled = [c["status"] for c in read["status"]["conditions"] if c["type"] == "PodScheduled"]
    assert scheduled == ["True"]
    with pytest.raises(ConflictError, match="already assigned to node"):
        await subject.client.create_subresource(PODS, "p", "binding", binding("p", "other"), namespace)
    with pytest.raises(NotFoundError):
        await subject.client.create_subresource(PODS, "none", "binding", binding("none", "n"), namespace)
    await subject.client.delete(PODS, "p", namespace, grace_s=0)


async def check_pods_end_gracefully_once_placed(subject: Subject) -> None:
    namespace = subject.namespace
    await subject.client.create(PODS, pod("waits"), namespace)
    await subject.client.delete(PODS, "waits", namespace)
    with pytest.raises(NotFoundError):
        await subject.client.get(PODS, "waits", namespace)
    await subject.client.create(PODS, pod("placed", nodeName="no-such-node"), namespace)
    await subject.client.delete(PODS, "placed", namespace)
    ending = await subject.client.get(PODS, "placed", namespace)
    assert ending.metadata.deletion_timestamp
    await subject.client.delete(PODS, "placed", namespace, grace_s=0)
    with pytest.raises(NotFoundError):
        await subject.client.get(PODS, "placed", namespace)


async def check_eviction_respects_budgets(subject: Subject) -> None:
    namespace = subject.namespace
    budgets = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
    await subject.client.create(PODS, pod("free"), namespace)
    await subject.client.create_subresource(PODS, "free", "eviction", eviction("free"), namespace)
    with pytest.raises(NotFoundError):
        await subject.client.get(PODS, "free", namespace)
    await subject.client.create(PODS, pod("kept", nodeName="no-such-node"), namespace)
    running = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    await subject.client.patch(PODS, "kept", running, namespace=namespace, subresource="status")
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}}
    await subject.request("POST", budgets, {"metadata": {"name": "keep"}, "spec": spec})
    with pytest.raises(TooManyRequestsError, match="disruption budget"):
        await subject.client.create_subresource(PODS, "kept", "eviction", eviction("kept"), namespace)
    await subject.request("DELETE", f"{budgets}/keep")
    another = eviction("kept") | {"deleteOptions": {"preconditions": {"uid": "another"}}}
    with pytest.raises(ConflictError):
        await subject.client.create_subresource(PODS, "kept", "eviction", another, namespace)
    assert (await subject.client.get(PODS, "kept", namespace)).metadata.deletion_timestamp is None
    await subject.client.create_subresource(PODS, "kept", "eviction", eviction("kept"), namespace)
    assert (await subject.client.get(PODS, "kept", namespace)).metadata.deletion_timestamp
    await subject.client.delete(PODS, "kept", namespace, grace_s=0)


def eviction(name: str) -> Json:
    return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}


async def check_leases_take_one_writer_at_a_time(subject: Subject) -> None:
    spec = {"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.000000Z"}
    made = await subject.request("POST", LEASES.path(subject.namespace), {"metadata": {"name": "l"}, "spec": spec})
    path = LEASES.path(subject.namespace, "l")
    renewed = made | {"spec": spec | {"renewTime": "2026-01-01T00:00:02.000000Z"}}
    assert (await subject.request("PUT", path, renewed))["spec"] == renewed["spec"]
    with pytest.raises(ConflictError):
        await subject.request("PUT", path, made | {"spec": spec | {"holderIdentity": "b"}})
    with pytest.raises(InvalidError):
        await subject.request("PUT", path, {"metadata": {"name": "l"}, "spec": spec})


async def check_events_are_written_and_selected(subject: Subject) -> None:
    namespace = subject.namespace
    about = {"kind": "Pod", "namespace": namespace, "name": "p", "uid": "1"}
    body = {
        "metadata": {"name": "p.1"}, "involvedObject": about, "reason": "WorkloadClass", "message": "m",
        "type": "Warning", "count": 1, "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
        "source": {"component": "joulie-operator"},
    }  # fmt: skip
    await subject.client.create(EVENTS, body, namespace)
    await subject.client.patch(EVENTS, "p.1", {"count": 2}, namespace=namespace)
    for selector, count in (("involvedObject.name=p", 1), ("reason=Other", 0), ("type=Warning", 1)):
        found = await subject.request("GET", EVENTS.path(namespace), fieldSelector=selector)
        assert len(found["items"]) == count, selector
    assert (await subject.read(EVENTS, "p.1", namespace))["count"] == 2


async def check_finalizers_keep_an_object_until_they_go(subject: Subject) -> None:
    name = subject.name("n")
    body = {"metadata": {"name": name, "finalizers": ["joulie.io/test"]}, "spec": twin_spec()}
    await subject.client.create(NODE_TWINS, body)
    await subject.client.delete(NODE_TWINS, name)
    assert (await subject.client.get(NODE_TWINS, name)).metadata.deletion_timestamp
    await subject.client.patch(NODE_TWINS, name, {"metadata": {"finalizers": []}})
    with pytest.raises(NotFoundError):
        await subject.client.get(NODE_TWINS, name)


async def check_what_is_owned_goes_with_its_owner(subject: Subject) -> None:
    namespace = subject.namespace
    owner = await subject.client.create(CONFIG_MAPS, config_map("owner"), namespace)
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.metadata.uid}
    owned = {"metadata": {"name": "owned", "ownerReferences": [reference]}}
    await subject.client.create(SERVICE_ACCOUNTS, owned, namespace)
    other = {"metadata": {"name": "shared", "ownerReferences": [reference, reference | {"name": "b", "uid": "b"}]}}
    await subject.client.create(SERVICE_ACCOUNTS, other, namespace)
    start = (await subject.client.get(CONFIG_MAPS, "owner", namespace)).metadata.resource_version
    await subject.client.delete(CONFIG_MAPS, "owner", namespace, propagation="Background")
    gone = await subject.events(SERVICE_ACCOUNTS, start, 2, namespace=namespace, field_selector="metadata.name=owned")
    assert gone[-1].kind is EventKind.DELETED


async def check_dry_runs_write_nothing(subject: Subject) -> None:
    path = CONFIG_MAPS.path(subject.namespace)
    answer = await subject.request("POST", path, config_map("a"), dryRun="All")
    assert answer["metadata"]["name"] == "a"
    with pytest.raises(NotFoundError):
        await subject.client.get(CONFIG_MAPS, "a", subject.namespace)


async def check_bodies_must_fit_their_path(subject: Subject) -> None:
    path = CONFIG_MAPS.path(subject.namespace, "a")
    await subject.client.create(CONFIG_MAPS, config_map("a"), subject.namespace)
    for body in (
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "b"}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "elsewhere"}},
    ):
        with pytest.raises(ApiError) as refused:
            await subject.request("PUT", path, body)
        assert refused.value.status == 400


async def check_collections_are_deleted_by_selector(subject: Subject) -> None:
    for name, labels in {"a": {"go": "1"}, "b": {}}.items():
        body = {"metadata": {"name": name, "labels": labels}}
        await subject.client.create(CONFIG_MAPS, body, subject.namespace)
    await subject.request("DELETE", CONFIG_MAPS.path(subject.namespace), labelSelector="go=1")
    names = {item.metadata.name for item in (await subject.client.list(CONFIG_MAPS, namespace=subject.namespace)).items}
    assert names - {"kube-root-ca.crt"} == {"b"}


async def check_an_autoscalers_maximum_changes_at_its_version_only(subject: Subject) -> None:
    """As `joulie.adapters.kubernetes.autoscalers` writes it: the maximum and its record in one patch, or nothing."""
    namespace = subject.namespace
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    spec = {"minReplicas": 2, "maxReplicas": 20, "scaleTargetRef": target}
    made = await subject.client.create(
        HORIZONTAL_POD_AUTOSCALERS, {"metadata": {"name": "web"}, "spec": spec}, namespace
    )

    async def lower(maximum: int, version: str) -> None:
        body = {
            "metadata": {"resourceVersion": version, "annotations": {"joulie.io/replica-ceiling": f"{maximum}"}},
            "spec": {"maxReplicas": maximum},
        }
        await subject.client.patch(HORIZONTAL_POD_AUTOSCALERS, "web", body, namespace=namespace)

    await lower(5, made.metadata.resource_version)
    with pytest.raises(ConflictError):
        await lower(4, made.metadata.resource_version)
    status = {"status": {"currentReplicas": 3, "desiredReplicas": 3}}
    await subject.client.patch(HORIZONTAL_POD_AUTOSCALERS, "web", status, namespace=namespace, subresource="status")
    found = await subject.client.get(HORIZONTAL_POD_AUTOSCALERS, "web", namespace)
    assert (found.spec.max_replicas, found.spec.min_replicas, found.status.current_replicas) == (5, 2, 3)
    assert found.metadata.annotations == {"joulie.io/replica-ceiling": "5"}


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_")]
