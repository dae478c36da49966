"""Ceilings on the replicas of autoscalers in the grid controller: what is lowered, when, and how it comes back."""

import asyncio
from functools import partial

import msgspec
import pytest

from joulie.adapters.kubernetes.autoscalers import autoscaler_of, restore_all
from joulie.adapters.kubernetes.resources import (
    CUSTOM_RESOURCE_DEFINITIONS,
    DEPLOYMENTS,
    EVENTS,
    HORIZONTAL_POD_AUTOSCALERS,
    SCALED_OBJECTS,
)
from joulie.adapters.kubernetes.times import rfc3339
from joulie.adapters.program_api.grid import GridAnswer
from joulie.apps.grid.ceilings import BACK_OFF_S
from joulie.apps.grid.status_endpoint import GridStatus
from joulie.domain.grid import names
from joulie.domain.grid.ceilings import CHANGE_INTERVAL_S
from joulie.domain.grid.request import GridDefaults
from joulie.domain.grid.series import Series
from joulie.domain.mode import Mode
from support import grid_stage
from support.grid_stage import NS, ZONE
from support.played import played

CAP = {names.CARBON_MAX_REPLICAS: "200: 10, 400: 25%"}


class Autoscalers:
    """Autoscalers of a stage, and steps of the controller."""

    def __init__(self, stage):
        self.stage, self.keda = stage, False
        self.follow()

    def follow(self):
        caches = self.stage.term.ceilings.caches
        for kind in (HORIZONTAL_POD_AUTOSCALERS.kind, *([SCALED_OBJECTS.kind] if self.keda else [])):
            self.stage.tasks.append(asyncio.create_task(caches[kind].run()))

    def restart(self):
        """Another replica leads."""
        self.stage.start()
        self.follow()

    async def hpa(self, name="web", *, maximum=20, minimum=2, annotations=CAP, running=4, owner=None):
        body = {
            "metadata": {"name": name, "annotations": annotations, "ownerReferences": [owner] if owner else []},
            "spec": {
                "maxReplicas": maximum,
                "minReplicas": minimum,
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
            },
        }
        await self.stage.client.create(HORIZONTAL_POD_AUTOSCALERS, body, NS)
        await self.runs(name, running)

    async def runs(self, name="web", running=4):
        body = {"status": {"currentReplicas": running, "desiredReplicas": running}}
        await self.stage.client.patch(HORIZONTAL_POD_AUTOSCALERS, name, body, namespace=NS, subresource="status")

    async def edit(self, name="web", *, annotations=None, **spec):
        body = {"spec": spec, "metadata": {"annotations": annotations or {}}}
        await self.stage.client.patch(HORIZONTAL_POD_AUTOSCALERS, name, body, namespace=NS)

    async def step(self, carbon=None, *, passed_s=CHANGE_INTERVAL_S):
        """Time passes, the grid and the watches are heard, and one step is taken."""
        stage = self.stage
        stage.now_s += passed_s
        if carbon is not None:
            stage.carbon.values[ZONE] = carbon
        await stage.feed.refresh()
        await self.seen()
        await stage.term.ceilings.step()
        await stage.term.events.flush()

    async def install_keda(self):
        """KEDA's resource, as far as Joulie uses it."""
        names_ = {"plural": "scaledobjects", "kind": "ScaledObject", "singular": "scaledobject"}
        schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
        version = {
            "name": "v1alpha1",
            "served": True,
            "storage": True,
            "schema": schema,
            "subresources": {"status": {}},
        }
        spec = {"group": "keda.sh", "names": names_, "scope": "Namespaced", "versions": [version]}
        body = {"metadata": {"name": "scaledobjects.keda.sh"}, "spec": spec}
        await self.stage.client.create(CUSTOM_RESOURCE_DEFINITIONS, body)
        self.keda = True
        self.restart()

    async def scaled_object(self, name="queue", *, running=12, annotations=CAP, **spec):
        """A ScaledObject, and the autoscaler that KEDA makes for it with a copy of its annotations."""
        body = {"metadata": {"name": name, "annotations": annotations}, "spec": spec}
        made = await self.stage.client.create(SCALED_OBJECTS, body, NS)
        owner = {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "name": name, "uid": made.metadata.uid,
                 "controller": True}  # fmt: skip
        await self.hpa(f"keda-hpa-{name}", annotations=annotations, running=running, owner=owner)

    async def seen(self):
        caches = self.stage.term.ceilings.caches
        for resource in (HORIZONTAL_POD_AUTOSCALERS, *([SCALED_OBJECTS] if self.keda else [])):
            cache = caches[resource.kind]
            await cache.wait_synced()
            listed = {one.metadata.name: autoscaler_of(one) for one in (await self.stage.client.list(resource)).items}
            wanted = {name: one for name, one in listed.items() if one.annotations or one.scaled_object}
            await self.stage.until(
                lambda cache=cache, wanted=wanted: {key.name: one for key, one in cache.objects.items()} == wanted
            )

    async def get(self, name="web"):
        return await self.stage.client.get(HORIZONTAL_POD_AUTOSCALERS, name, NS)

    async def maximum(self, name="web"):
        return (await self.get(name)).spec.max_replicas

    async def record(self, name="web"):
        text = (await self.get(name)).metadata.annotations.get(names.REPLICA_CEILING)
        return None if text is None else msgspec.json.decode(text)

    async def notes(self, reason):
        return [one.message for one in (await self.stage.client.list(EVENTS)).items if one.reason == reason]

    def count(self, decision):
        return self.stage.counted("joulie_grid_replica_ceilings", decision=decision)


play = partial(grid_stage.play, kind=Autoscalers, replica_ceilings_enabled=True)


@played(play)
async def test_a_maximum_is_lowered_while_intensity_is_high_and_restored_when_it_falls(here):
    await here.hpa()
    await here.step(150.0)
    assert (await here.maximum(), await here.record()) == (20, None)
    await here.step(300.0)
    assert await here.maximum() == 10
    assert (await here.record())["original"] == 20
    assert here.count("carbon") == 1
    await here.step(450.0)
    assert await here.maximum() == 5, "25 % of the original 20"
    await here.step(250.0)
    assert await here.maximum() == 10
    await here.step(150.0)
    assert (await here.maximum(), await here.record()) == (20, None)
    (lowered, again) = await here.notes("CeilingLowered")
    assert lowered.startswith("maximum 20 -> 10, of 20 originally: carbon intensity 300 gCO2eq/kWh (DE")
    assert again.startswith("maximum 10 -> 5")
    (lifted,) = await here.notes("CeilingLifted")
    assert lifted.startswith("maximum 10 -> 20")


@played(play)
async def test_the_status_tells_ceilings_lowered_ones_first(here):
    await here.hpa("high", maximum=40, running=30)
    await here.hpa("plain", annotations={})
    await here.hpa("exempt", annotations=CAP | {names.MAX_REPLICAS_EXEMPT: "0-6 00:00-24:00"})
    await here.step(300.0)
    await here.step()
    status = GridStatus(here.stage.feed)
    status.controller = here.stage.term
    _code, answer = status.answer({}, here.stage.now_s)
    answer = msgspec.json.decode(msgspec.json.encode(answer), type=GridAnswer)
    assert [(one.name, one.maximum, one.original, one.decision) for one in answer.ceilings] == [
        ("high", await here.maximum("high"), 40, "carbon"),
        ("exempt", 20, 20, "exempt"),
    ]
    lowered = answer.ceilings[0]
    assert lowered.lowered
    assert lowered.running == 30
    assert lowered.text.startswith("carbon intensity 300 gCO2eq/kWh (DE")
    await here.edit("exempt", annotations={names.REPLICA_CEILING: "nonsense"})
    await here.step()
    invalid = status.answer({}, here.stage.now_s)[1].ceilings[1]
    assert (invalid.decision, "is invalid" in invalid.text) == ("invalid", True)
    assert status.answer({"pod": [f"{NS}/x"]}, here.stage.now_s)[1].ceilings == []


@played(play)
async def test_neither_floor_nor_minimum_is_undercut(here):
    await here.hpa("floored", annotations={names.CARBON_MAX_REPLICAS: "1", names.MAX_REPLICAS_FLOOR: "7"})
    await here.hpa("minimum", annotations={names.CARBON_MAX_REPLICAS: "0%"}, minimum=6, running=6)
    await here.hpa("small", annotations={names.CARBON_MAX_REPLICAS: "50"})
    await here.step(300.0)
    assert [await here.maximum(name) for name in ("floored", "minimum", "small")] == [7, 6, 20]


@played(play)
async def test_no_step_stops_more_than_half_of_what_runs(here):
    await here.hpa(running=18)
    seen = []
    for running in (18, 9, 5, 5):
        await here.runs(running=running)
        await here.step(450.0)
        seen.append(await here.maximum())
    assert seen == [9, 5, 5, 5]


@played(play)
async def test_a_maximum_changes_at_most_every_ten_minutes_and_not_within_the_band(here):
    await here.hpa()
    await here.step(300.0)
    await here.step(100.0, passed_s=60.0)
    assert await here.maximum() == 10, "too soon"
    await here.step(195.0)
    assert await here.maximum() == 10, "within 5 % below the threshold"
    await here.step(189.0)
    assert await here.maximum() == 20
    await here.step(300.0, passed_s=60.0)
    assert await here.maximum() == 20, "too soon"


@played(play)
async def test_a_missing_signal_restores_the_maximum_at_once_and_says_so(here):
    await here.hpa()
    await here.step(300.0)
    here.stage.carbon.values[ZONE] = None
    await here.step(passed_s=3700.0)
    assert (await here.maximum(), await here.record()) == (20, None)
    assert here.count("missing") == 1
    (note,) = await here.notes("GridSignalMissing")
    assert note.startswith("no ceiling holds: carbon intensity of DE is not known")


@played(play)
async def test_a_removed_annotation_restores_the_maximum_at_once(here):
    await here.hpa()
    await here.step(300.0)
    await here.edit(annotations={names.CARBON_MAX_REPLICAS: None})
    await here.step(passed_s=1.0)
    assert (await here.maximum(), await here.record()) == (20, None)


@played(play)
async def test_somebody_elses_maximum_wins_and_is_the_original_one_from_then_on(here):
    await here.hpa()
    await here.step(300.0)
    await here.edit(maxReplicas=30)
    await here.step(passed_s=1.0)
    assert (await here.maximum(), await here.record()) == (30, None)
    await here.step()
    assert (await here.maximum(), (await here.record())["original"]) == (10, 30)
    await here.step(100.0)
    assert await here.maximum() == 30
    (note,) = await here.notes("CeilingOverridden")
    assert note.startswith("somebody else set the maximum to 30")


@played(play)
async def test_a_gitops_controller_that_restores_the_maximum_is_not_fought(here):
    await here.hpa()
    maxima = []
    for _ in range(6):
        await here.step(300.0)
        maxima.append(await here.maximum())
        await here.edit(maxReplicas=20)
        await here.step(passed_s=1.0)
    assert maxima == [10, 10, 20, 20, 20, 20]
    assert here.count("contested") == 1
    (note,) = await here.notes("CeilingContested")
    assert "GitOps" in note
    await here.step(passed_s=BACK_OFF_S)
    assert await here.maximum() == 10, "tried again"


@played(play)
async def test_a_scaled_object_is_lowered_and_its_own_autoscaler_never(here):
    await here.install_keda()
    await here.scaled_object(running=12)
    before = (await here.get("keda-hpa-queue")).metadata.resource_version
    await here.step(450.0)
    scaled = await here.stage.client.get(SCALED_OBJECTS, "queue", NS)
    assert scaled.spec.max_replica_count == 10
    copied = {names.REPLICA_CEILING: scaled.metadata.annotations[names.REPLICA_CEILING]}
    assert (await here.get("keda-hpa-queue")).metadata.resource_version == before
    await here.edit("keda-hpa-queue", annotations=copied, maxReplicas=10)
    before = (await here.get("keda-hpa-queue")).metadata.resource_version
    await here.step(100.0)
    scaled = await here.stage.client.get(SCALED_OBJECTS, "queue", NS)
    assert scaled.spec.max_replica_count is None, "none was set"
    assert names.REPLICA_CEILING not in scaled.metadata.annotations
    assert await restore_all(here.stage.client) == ([], [])
    assert (await here.get("keda-hpa-queue")).metadata.resource_version == before


@played(play)
async def test_a_new_leader_goes_on_where_the_last_one_stopped(here):
    await here.hpa(running=18)
    await here.step(450.0)
    assert await here.maximum() == 9
    here.restart()
    await here.step(passed_s=60.0)
    assert await here.maximum() == 9, "its predecessor changed it a minute ago"
    await here.step()
    assert await here.maximum() == 5
    await here.step(100.0)
    assert await here.maximum() == 20


@played(play)
async def test_a_ceiling_is_lifted_after_the_maximum_delay_until_power_has_been_clean(here):
    await here.hpa(annotations={**CAP, names.MAX_DELAY: "1h"})
    await here.step(300.0)
    await here.step(passed_s=3600.0)
    assert await here.maximum() == 20
    here.restart()
    await here.step(passed_s=7200.0)
    assert (await here.maximum(), here.count("max-delay")) == (20, 1)
    await here.step(100.0)
    assert await here.record() is None
    await here.step(300.0)
    assert await here.maximum() == 10


@played(play)
async def test_a_malformed_annotation_lowers_nothing_and_is_reported(here):
    await here.hpa(annotations={**CAP, names.MAX_REPLICAS_EXEMPT: "workdays"})
    await here.step(450.0)
    await here.step()
    assert await here.maximum() == 20
    (note,) = await here.notes("InvalidAnnotation")
    assert "'workdays' is not times such as 1-5 08:00-18:00 Europe/Berlin" in note


@played(play)
async def test_two_malformed_annotations_are_one_event_and_not_one_a_step(here):
    await here.hpa(annotations={names.CARBON_MAX_REPLICAS: "few", names.MAX_REPLICAS_FLOOR: "-1"})
    for _ in range(3):
        await here.step(450.0)
    (event,) = (await here.stage.client.list(EVENTS)).items
    assert (event.reason, event.count) == ("InvalidAnnotation", 1)
    assert "'few'" in event.message
    assert "'-1'" in event.message


@played(play)
async def test_an_invalid_record_is_reported_and_left_alone(here):
    await here.hpa(annotations={**CAP, names.REPLICA_CEILING: "20"})
    await here.step(100.0)
    assert (await here.maximum(), here.count("invalid")) == (20, 1)
    (note,) = await here.notes("InvalidAnnotation")
    assert names.REPLICA_CEILING in note
    _restored, problems = await restore_all(here.stage.client)
    assert len(problems) == 1


@played(play)
async def test_a_replica_that_lost_leadership_writes_nothing(here):
    await here.hpa()
    here.stage.leading = False
    await here.step(300.0)
    assert await here.maximum() == 20


@played(play)
async def test_whoever_finds_the_record_can_restore_the_maximum(here):
    await here.hpa("a")
    await here.hpa("b")
    await here.step(300.0)
    await here.edit("b", maxReplicas=15)
    assert await restore_all(here.stage.client) == (["HorizontalPodAutoscaler default/a"], [])
    assert [await here.maximum(name) for name in "ab"] == [20, 15]
    assert [await here.record(name) for name in "ab"] == [None, None]


@played(play, dry_run_enabled=True)
async def test_a_dry_run_says_what_it_would_do_and_writes_nothing(here):
    await here.hpa()
    await here.step(300.0)
    assert (await here.maximum(), here.count("observed")) == (20, 1)
    (note,) = await here.notes("CeilingPlanned")
    assert note.startswith("would lower the maximum from 20 to 10: carbon intensity 300")


@played(play)
async def test_observe_mode_restores_what_was_lowered(here):
    await here.hpa()
    await here.step(300.0)
    here.stage.view._mode = Mode.OBSERVE
    await here.step(passed_s=1.0)
    assert (await here.maximum(), await here.record()) == (20, None)


LIMITED = {"type": "ScalingLimited", "status": "True", "reason": "TooManyReplicas"}


@played(play)
async def test_what_a_ceiling_withholds_is_counted_and_told_with_its_method(here):
    client = here.stage.client
    container = {"name": "c", "image": "none", "resources": {"requests": {"cpu": "20"}}}
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container]}}
    body = {"metadata": {"name": "web"}, "spec": {"template": template}}
    await client.create(DEPLOYMENTS, body, NS)
    await here.hpa(running=10)
    target = {"type": "Utilization", "averageUtilization": 50}
    metric = {"type": "Resource", "resource": {"name": "cpu", "target": target}}
    await here.edit(metrics=[metric])
    await here.step(300.0)
    now = {"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": 75}}}
    status = {"status": {"conditions": [LIMITED], "currentMetrics": [now]}}
    await client.patch(HORIZONTAL_POD_AUTOSCALERS, "web", status, namespace=NS, subresource="status")
    await here.step(300.0, passed_s=1.0)
    for _ in range(6):
        await here.step(300.0)
    counted = here.stage.counted
    # 10 run at 75 % of a target of 50 %: 15 are wanted, 10 allowed. Each draws 100 W.
    assert counted("joulie_grid_ceiling_withheld_replicas") == 5
    assert counted("joulie_grid_ceiling_withheld_replica_hours_total", namespace=NS) == pytest.approx(5.0)
    assert counted("joulie_grid_ceiling_withheld_kwh_total", namespace=NS) == pytest.approx(0.5)
    await here.step(100.0)
    saved_g = counted("joulie_grid_ceiling_estimated_savings_gco2eq", namespace=NS)
    # The last ten minutes are counted at the value that ended them.
    assert saved_g == pytest.approx(0.5 * (300.0 - 100.0))
    (lifted,) = await here.notes("CeilingLifted")
    assert lifted.endswith("withheld 5.8 replica hours, about 0.583 kWh; if all of that runs now, it saves 100 gCO2eq")


@played(play)
async def test_the_next_expected_change_is_told(here):
    now_s = here.stage.now_s
    here.stage.carbon.ahead = Series([now_s, now_s + 7200.0], [300.0, 100.0], now_s + 36_000.0)
    await here.hpa()
    await here.step(300.0)
    (lowered,) = await here.notes("CeilingLowered")
    assert lowered.endswith(f"expected to become 20 at {rfc3339(now_s + 7200.0)}")
    assert here.stage.counted("joulie_grid_ceiling_next_change_timestamp_seconds") == now_s + 7200.0


@played(play)
async def test_no_ceiling_holds_in_exempt_times(here):
    # The stage's clock begins on Friday 2027-01-15 at 08:00 UTC.
    await here.hpa(annotations={**CAP, names.MAX_REPLICAS_EXEMPT: "5 09:00-10:00; 0,6 00:00-24:00 Europe/Berlin"})
    seen = []
    for passed_s in (600.0, 3000.0, 1800.0, 2400.0):
        await here.step(300.0, passed_s=passed_s)
        seen.append(await here.maximum())
    assert seen == [10, 20, 20, 10]


@played(play, defaults=GridDefaults(price_enabled=True))
async def test_prices_lower_the_maximum_too(here):
    await here.hpa(annotations={names.PRICE_MAX_REPLICAS: "-0.05: 15, 0.2: 10"})
    seen = []
    for price in (-0.1, 0.1, 0.3):
        here.stage.price.values[ZONE] = price
        await here.step()
        seen.append(await here.maximum())
    assert seen == [20, 15, 10]
