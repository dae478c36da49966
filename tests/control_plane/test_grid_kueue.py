"""AdmissionChecks on a real API server, with Kueue's own definitions; the test plays Kueue's part."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from joulie.adapters.kubernetes.api.kueue import AdmissionCheckState, CheckState
from joulie.adapters.kubernetes.client import ConflictError, Key, KubeClient
from joulie.adapters.kubernetes.connection import connect
from joulie.adapters.kubernetes.events import EventRecorder
from joulie.adapters.kubernetes.kueue import (
    CONTROLLER_NAME,
    KueueResources,
    find_kueue,
    release_workloads,
    write_status,
)
from joulie.adapters.kubernetes.multikueue import MultiKueueResources, write_nomination
from joulie.adapters.kubernetes.resources import CUSTOM_RESOURCE_DEFINITIONS, EVENTS, NAMESPACES
from joulie.adapters.kubernetes.times import rfc3339
from joulie.apps.grid.kueue import KueueChecks
from joulie.apps.grid.leader import Leader
from joulie.apps.grid.metrics import ControllerMetrics
from joulie.apps.grid.multikueue import NominationResult
from joulie.apps.grid.observe import GridView
from joulie.apps.grid.settings import ControllerSettings
from joulie.domain.grid import names
from joulie.domain.grid.deferral import Conditions
from joulie.domain.grid.request import GridDefaults
from joulie.domain.grid.signals import Basis, GridSignal, Measure, Provenance
from joulie.domain.signal import Quality
from joulie_lab.control_plane import LocalControlPlane
from support.kueue_stage import Json, Kueue

pytestmark = [pytest.mark.control_plane, pytest.mark.slow]

COMPONENTS = ("etcd", "kube-apiserver")

CHECK = "grid"
ZONE = "DE"
WAIT_S = 120.0


@pytest.fixture(scope="module")
def definitions(kueue_definitions: Path) -> list[Json]:
    """As Kueue's module has them: both versions, and nothing that converts between them.

    Only Kueue's installation adds its webhook for that. What Joulie reads and writes is the same in both.
    """
    return [yaml.safe_load(path.read_bytes()) for path in sorted(kueue_definitions.glob("*.yaml"))]


@pytest.fixture(scope="module")
def plane(plane: LocalControlPlane, definitions: list[Json]) -> LocalControlPlane:
    install(plane, definitions)
    return plane


def install(plane: LocalControlPlane, wanted: list[Json]) -> None:
    plane.create_all(CUSTOM_RESOURCE_DEFINITIONS.path(), wanted)
    plane.await_definitions()


def only(definition: Json, version: str) -> Json:
    """The definition of a Kueue that serves one version alone."""
    versions = [one for one in definition["spec"]["versions"] if one["name"] == version]
    return {**definition, "spec": {**definition["spec"], "versions": versions}}


def now_s() -> float:
    return time.time()  # noqa: TID251 - the API server's creation times are real


def carbon(intensity: float | None) -> Conditions:
    if intensity is None:
        return Conditions(GridSignal(Measure.CARBON, ZONE, problem="no answer"))
    origin = Provenance("static", ZONE, Basis.AVERAGE)
    return Conditions(GridSignal(Measure.CARBON, ZONE, Quality.FRESH, intensity, now_s(), origin))


@dataclass
class World:
    """A namespace with Kueue's part, Joulie's part, and the grid."""

    client: KubeClient
    kueue: Kueue
    namespace: str
    grid: dict[str, Conditions] = field(default_factory=lambda: {ZONE: carbon(300.0)})
    ahead_s: float = 0.0
    nominated: list[NominationResult] = field(default_factory=list)

    async def becomes(self, name: str, state: str, check: str = CHECK) -> Json:
        async def there() -> Json | None:
            found = await self.kueue.state(name, check)
            return found if found["state"] == state else None

        return await eventually(there, f"{name} is {state}")

    async def stays(self, name: str, state: str, check: str = CHECK) -> None:
        await asyncio.sleep(1.0)
        assert (await self.kueue.state(name, check))["state"] == state

    async def event(self, name: str, reason: str) -> str:
        async def there() -> str | None:
            for event in (await self.client.list(EVENTS, namespace=self.namespace)).items:
                if event.involved_object.name == name and event.reason == reason:
                    return event.message
            return None

        return await eventually(there, f"event {reason} on {name}")


async def eventually(found: Callable[[], Awaitable[Any]], what: str) -> Any:
    """What is found once it is not None."""
    clock = asyncio.get_running_loop().time
    until_s = clock() + WAIT_S
    while clock() < until_s:
        value = await found()
        if value is not None:
            return value
        await asyncio.sleep(0.05)
    raise AssertionError(f"not within {WAIT_S} s: {what}")


@asynccontextmanager
async def world(plane: LocalControlPlane, namespace: str, *, answering: bool = True) -> AsyncIterator[World]:
    async with KubeClient(connect(kubeconfig=plane.kubeconfig)) as client:
        await client.create(NAMESPACES, {"metadata": {"name": namespace}})
        resources = await find_kueue(client)
        assert resources is not None
        here = World(client, Kueue(client, resources, namespace), namespace)
        view = GridView(client, GridDefaults(), ZONE, {})
        events = EventRecorder(client, "joulie-grid")
        leader = Leader(
            client,
            view,
            ControllerSettings(multikueue_dispatcher=True),
            cast("ControllerMetrics", SimpleNamespace(decided=lambda _reason: None, nominated=here.nominated.append)),
            events,
            lambda: True,
            lambda: now_s() + here.ahead_s,
        )
        checks = KueueChecks(leader, here.grid.get)
        running = [asyncio.create_task(one.run()) for one in (view, events)]
        if answering:
            running.append(asyncio.create_task(checks.run()))
        await view.wait_synced()
        try:
            yield here
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            multikueue = MultiKueueResources.for_version(resources.workloads.version)
            for resource in (resources.checks, multikueue.configs, multikueue.clusters):
                for one in (await client.list(resource)).items:
                    await client.delete(resource, one.metadata.name)


async def is_active(client: KubeClient, resources: KueueResources) -> bool | None:
    check = await client.get(resources.checks, CHECK)
    return any(one.type == "Active" and one.status == "True" for one in check.status.conditions) or None


def test_a_workload_waits_without_quota_and_starts_when_the_grid_is_clean(plane: LocalControlPlane) -> None:
    async def run() -> None:
        async with world(plane, "kueue-waits") as here:
            await here.kueue.check(CHECK, CONTROLLER_NAME)
            resources = await find_kueue(here.client)
            assert resources is not None
            assert resources.workloads.version == "v1beta2"
            await eventually(lambda: is_active(here.client, resources), "the check is active")

            await here.kueue.submit("train", {names.MAX_DELAY: "2h"})
            await here.kueue.reserve("train", CHECK)
            held = await here.becomes("train", "Retry")
            assert held["requeue_after_s"] == 600
            assert "carbon intensity 300 gCO2eq/kWh" in held["message"]
            assert "above 200" in held["message"]
            assert "waits" in await here.event("train", "GridHold")

            # Kueue would keep the quota until the delay is over.
            await here.kueue.delay("train")
            assert (await here.becomes("train", "Pending"))["message"] == held["message"]

            async def evicted() -> bool | None:
                return await here.kueue.is_evicted("train") or None

            await eventually(evicted, "the workload is evicted")

            # The quota is not taken back yet: nothing may be answered then.
            await here.stays("train", "Pending")
            await here.kueue.end_eviction("train", CHECK)
            await here.stays("train", "Pending")

            here.grid[ZONE] = carbon(200.0)
            await here.kueue.reserve("train", CHECK)
            started = await here.becomes("train", "Ready")
            assert started["requeue_after_s"] is None
            (annotations,) = started["annotations"]
            assert annotations[names.SKIP] == "true"  # not gated a second time
            assert annotations[names.INITIAL_CARBON_INTENSITY] == "300.00"
            assert annotations[names.BIND_CARBON_INTENSITY] == "200.00"
            assert {names.CARBON_DELAY_TIMESTAMP, names.BIND_TIMESTAMP} <= annotations.keys()
            assert "within 200" in await here.event("train", "GridReleased")

    asyncio.run(run())


def test_what_does_not_wait(plane: LocalControlPlane) -> None:
    async def run() -> None:
        async with world(plane, "kueue-runs") as here:
            await here.kueue.check(CHECK, CONTROLLER_NAME)
            await here.kueue.check("other", "example.com/other")

            # Nobody asks that it waits, or it says that it must not.
            await here.kueue.submit("plain", {}, schedulerName="default-scheduler")
            await here.kueue.submit("skips", {names.SKIP: "true"})
            for name in ("plain", "skips"):
                await here.kueue.reserve(name, CHECK)
                assert (await here.becomes(name, "Ready"))["annotations"] == []

            # Its check is somebody else's.
            await here.kueue.submit("foreign", {})
            await here.kueue.reserve("foreign", "other")
            await here.stays("foreign", "Pending", "other")

            # A malformed annotation counts as absent, and is reported.
            await here.kueue.submit("mistaken", {names.CARBON_THRESHOLD: "clean"})
            await here.kueue.reserve("mistaken", CHECK, "other")
            assert "above 200" in (await here.becomes("mistaken", "Retry"))["message"]
            assert "'clean'" in await here.event("mistaken", "InvalidAnnotation")
            assert (await here.kueue.state("mistaken", "other"))["state"] == "Pending"

            # What is not known holds nobody, and not for want of an answer about a zone yet.
            here.grid[ZONE] = carbon(None)
            await here.kueue.submit("blind", {})
            await here.kueue.reserve("blind", CHECK)
            assert "not known" in (await here.becomes("blind", "Ready"))["message"]

            # A zone whose sources have not answered yet is waited for, but not past the latest start.
            await here.kueue.submit("elsewhere", {names.ZONE: "GB", names.MAX_DELAY: "3s"})
            await here.kueue.reserve("elsewhere", CHECK)
            assert "longest delay" in (await here.becomes("elsewhere", "Ready"))["message"]

            # Neither does anything past its longest delay.
            here.grid[ZONE] = carbon(300.0)
            here.ahead_s = 86400.0
            await here.kueue.submit("late", {})
            await here.kueue.reserve("late", CHECK)
            assert "longest delay" in (await here.becomes("late", "Ready"))["message"]

    asyncio.run(run())


async def dispatched(here: World) -> None:
    """The best cluster is nominated, then the next; Kueue assigns one, which nobody changes."""
    resources = await find_kueue(here.client)
    assert resources is not None
    workloads = resources.workloads

    async def nominated(*expected: str) -> bool | None:
        found = await here.client.get(workloads, "train", here.namespace)
        return found.status.nominated_cluster_names == expected or None

    here.grid |= {"FR": carbon(50.0), ZONE: carbon(300.0)}
    await here.kueue.check(CHECK, CONTROLLER_NAME)
    await here.kueue.clusters(one=ZONE, two="FR")
    await here.kueue.submit("train", {names.SKIP: "true"})
    await here.kueue.reserve("train", CHECK, "multikueue")
    await eventually(lambda: nominated("two"), "the best cluster is nominated")
    assert "two (FR" in await here.event("train", "GridNominated")
    await here.kueue.connect("two", "False")
    await eventually(lambda: nominated("one"), "a cluster that is lost is replaced")

    async def counted() -> bool | None:
        return here.nominated == [NominationResult.BEST, NominationResult.BEST] or None

    await eventually(counted, "both nominations are counted")

    found = await here.client.get(workloads, "train", here.namespace)
    assert found.has("QuotaReserved")
    assert [one.state for one in found.status.admission_checks] == ["Ready", "Pending"]
    # The API server refuses both fields together: Kueue can remove the nomination only where no other manager owns it.
    await here.kueue.assign("train", "one")
    assert await nominated()
    stale = found.metadata.resource_version
    key = Key(here.namespace, "train")
    with pytest.raises(ConflictError):
        await write_nomination(here.client, MultiKueueResources.for_version(workloads.version), key, stale, ["two"])


def test_a_cluster_of_multikueue_is_nominated_and_assigned(plane: LocalControlPlane) -> None:
    async def run() -> None:
        async with world(plane, "kueue-clusters") as here:
            await dispatched(here)

    asyncio.run(run())


def test_a_check_that_comes_later_is_answered(plane: LocalControlPlane) -> None:
    async def run() -> None:
        async with world(plane, "kueue-later") as here:
            await here.kueue.submit("early", {names.MAX_DELAY: "90s"})
            await here.kueue.reserve("early", CHECK)
            await here.stays("early", "Pending")
            await here.kueue.check(CHECK, CONTROLLER_NAME)
            requeue_after_s = (await here.becomes("early", "Retry"))["requeue_after_s"]
            assert 60 <= requeue_after_s <= 90  # never past the latest start

    asyncio.run(run())


def test_without_a_controller_everything_goes(plane: LocalControlPlane) -> None:
    async def run() -> None:
        async with world(plane, "kueue-dead", answering=False) as here:
            await here.kueue.check(CHECK, CONTROLLER_NAME)
            await here.kueue.check("other", "example.com/other")
            await here.kueue.submit("waits", {})
            await here.kueue.reserve("waits", CHECK, "other")
            await here.kueue.submit("queued", {})
            assert await release_workloads(here.client, now_s(), "nobody answers") == ["kueue-dead/waits"]
            assert (await here.kueue.state("waits", CHECK))["message"] == "nobody answers"
            await here.stays("waits", "Ready")
            await here.stays("waits", "Pending", "other")
            assert await release_workloads(here.client, now_s(), "nobody answers") == []

    asyncio.run(run())


def test_trap_an_answer_about_an_earlier_version_is_refused(plane: LocalControlPlane) -> None:
    # Kueue may begin to evict a workload while the decision about it is made.
    async def run() -> None:
        async with world(plane, "kueue-race", answering=False) as here:
            resources = await find_kueue(here.client)
            assert resources is not None
            await here.kueue.submit("train", {})
            await here.kueue.reserve("train", CHECK)
            seen = await here.client.get(resources.workloads, "train", "kueue-race")
            await here.kueue.begin_eviction("train", CHECK)
            ready = AdmissionCheckState(CHECK, CheckState.READY, rfc3339(now_s()), "clean")
            key, version = Key("kueue-race", "train"), seen.metadata.resource_version
            with pytest.raises(ConflictError):
                await write_status(here.client, resources.workloads, key, version, {"admissionChecks": [ready]})
            assert (await here.kueue.state("train", CHECK))["state"] == "Pending"

    asyncio.run(run())


def test_the_older_version_of_the_api(plane: LocalControlPlane, definitions: list[Json]) -> None:
    for definition in definitions:
        plane.request("DELETE", CUSTOM_RESOURCE_DEFINITIONS.path(name=definition["metadata"]["name"]))

    async def none_left(client: KubeClient) -> bool | None:
        return await find_kueue(client) is None or None

    async def run() -> None:
        async with KubeClient(connect(kubeconfig=plane.kubeconfig)) as client:
            await eventually(lambda: none_left(client), "Kueue's API is gone")
            assert await release_workloads(client, now_s(), "nobody answers") == []
        await asyncio.to_thread(install, plane, [only(definition, "v1beta1") for definition in definitions])
        async with world(plane, "kueue-older") as here:
            await here.kueue.check(CHECK, CONTROLLER_NAME)
            await here.kueue.submit("train", {})
            await here.kueue.reserve("train", CHECK)
            assert (await here.becomes("train", "Retry"))["requeue_after_s"] == 600
        async with world(plane, "kueue-older-clusters") as here:
            await dispatched(here)

    asyncio.run(run())
