"""Dry runs of the grid controller against the fake cluster."""

import asyncio

import pytest

from joulie.adapters.kubernetes.names import MODE_LABEL
from joulie.adapters.kubernetes.resources import JOBS, NAMESPACES, PODS
from joulie.domain.grid import names
from joulie.domain.grid.series import Series
from joulie.domain.mode import Mode
from support.grid_stage import NS, ZONE, play
from support.played import played

pytestmark = pytest.mark.slow  # whole controllers on the fake cluster

HOUR_S = 3600.0
ASKS = {"cpu": "100", "memory": "0"}  # 500 W at the default 5 W a core
DRY = "compute_gardener_dryrun_"


async def pod(stage, name, **more):
    containers = [{"name": "c", "resources": {"requests": ASKS}}]
    return await stage.pod(name, gates=[], containers=containers, **more)


async def wait(stage, hours):
    for _ in range(round(2 * hours)):
        await stage.look(HOUR_S / 2)


@played(play, dry_run_enabled=True)
async def test_savings_are_counted_when_they_are_known_by_what_really_was(stage):
    await pod(stage, "train")
    await stage.look()
    assert stage.counted(DRY + "pods_evaluated_total", namespace=NS) == 1
    assert stage.counted(DRY + "pods_would_delay_total", namespace=NS, delay_type="carbon") == 1
    # Nobody forecasts: 0.5 kW for the assumed hour, from 300 down to the threshold of 200 gCO2eq/kWh.
    assert stage.counted(DRY + "estimated_carbon_savings_gco2eq_total", namespace=NS) == pytest.approx(50.0)
    await stage.runs("train")
    await wait(stage, 2)
    await stage.runs("train", "Succeeded")
    await stage.look()
    assert stage.counted(DRY + "pods_completed_total", namespace=NS) == 1
    assert stage.counted(DRY + "pod_energy_consumption_kwh_sum", namespace=NS) == pytest.approx(1.0)
    assert stage.counted(DRY + "pod_runtime_hours_sum", namespace=NS) == pytest.approx(2.0)
    stage.carbon.values[ZONE] = 100.0
    await wait(stage, 2)
    assert stage.counted(DRY + "actual_carbon_savings_gco2eq_total", namespace=NS) == 0.0  # not over yet
    await wait(stage, 1)
    assert stage.counted(DRY + "actual_carbon_savings_gco2eq_total", namespace=NS) == pytest.approx(200.0)
    assert stage.term.dry.next_s == float("inf")


@played(play, dry_run_enabled=True)
async def test_a_wait_that_would_have_cost_counts_against_the_savings(stage):
    await pod(stage, "train", annotations={names.MAX_DELAY: "1h"})
    await stage.look()
    await stage.runs("train")
    await wait(stage, 0.5)
    stage.carbon.values[ZONE] = 500.0
    await stage.runs("train", "Succeeded")
    await stage.look()
    await wait(stage, 1.5)
    assert stage.counted(DRY + "actual_carbon_savings_gco2eq_total", namespace=NS) == pytest.approx(-50.0)


@played(play, dry_run_enabled=True)
async def test_what_is_not_known_is_not_counted_as_zero_savings(stage):
    await pod(stage, "train")
    await stage.look()
    await stage.runs("train")
    stage.carbon.values[ZONE] = None
    await stage.look(HOUR_S)
    await stage.runs("train", "Failed")
    await stage.look()
    for _ in range(12):
        await stage.look(HOUR_S)
    assert stage.counted("joulie_grid_dryrun_unknown_savings_total", measure="carbon") == 1


@played(play, dry_run_enabled=True, dry_run_mode="annotate")
async def test_what_was_decided_is_annotated_where_that_is_asked_for(stage):
    start = stage.now_s
    stage.carbon.ahead = Series([start, start + HOUR_S], [300.0, 150.0], start + 48 * HOUR_S)
    await pod(stage, "held")
    await pod(stage, "runs", annotations={names.CARBON_THRESHOLD: "400"})
    await stage.look()
    noted = await stage.annotations("held")
    assert noted["dry-run-evaluated"] == "true"
    assert noted["dry-run-would-delay"] == "true"
    assert noted["dry-run-delay-type"] == "carbon"
    assert noted["dry-run-carbon-intensity"] == "300.00"
    assert noted["dry-run-carbon-threshold"] == "200.00"
    assert noted["dry-run-estimated-carbon-savings-gco2"] == "75.00"
    assert (await stage.annotations("runs"))["dry-run-would-delay"] == "false"
    stage.start()  # another leader counts nothing twice
    await stage.look()
    assert stage.counted(DRY + "pods_evaluated_total", namespace=NS) == 0


@played(play, dry_run_enabled=True)
async def test_in_metrics_mode_nothing_is_written_and_nothing_held(stage):
    before = await pod(stage, "train")
    await stage.look()
    after = await stage.client.get(PODS, "train", NS)
    assert after.metadata.resource_version == before.metadata.resource_version


def test_only_the_pods_of_the_filter_are_looked_at(tmp_path):
    async def body(stage):
        await stage.namespace("team")
        await stage.namespace("other")
        for namespace in ("team", "other"):
            await pod(stage, "plain", namespace=namespace, scheduler="default-scheduler")
            await pod(stage, "opts-out", namespace=namespace, annotations={names.DEFER: "false"})
            await pod(stage, "asks", namespace=namespace)
        await stage.look()
        watched = stage.settings.dry_run_namespaces
        by_namespace = stage.settings.dry_run_filter_mode == "namespace"
        assert stage.counted(DRY + "pods_would_delay_total", namespace="team", delay_type="carbon") == 1 + by_namespace
        expected = 0 if watched else 1
        assert stage.counted(DRY + "pods_would_delay_total", namespace="other", delay_type="carbon") == expected

    play(body, tmp_path, dry_run_enabled=True)
    play(
        body,
        tmp_path,
        dry_run_enabled=True,
        dry_run_filter_mode="namespace",
        dry_run_namespaces=frozenset({"team", "x"}),
    )


async def resource_version(stage, name, namespace=NS):
    return (await stage.client.get(PODS, name, namespace)).metadata.resource_version


def test_observe_mode_counts_as_a_dry_run_and_writes_nothing(tmp_path):
    async def body(stage):
        before = (await pod(stage, "train")).metadata.resource_version
        await stage.look()
        assert stage.counted(DRY + "pods_would_delay_total", namespace=NS, delay_type="carbon") == 1
        assert await resource_version(stage, "train") == before
        assert stage.term.dry_run

    # Even where annotations were asked for, and outside the namespaces that a dry run would watch.
    play(body, tmp_path, mode=Mode.OBSERVE, dry_run_mode="annotate", dry_run_namespaces=frozenset({"other"}))
    play(body, tmp_path, mode=Mode.OBSERVE, dry_run_enabled=True, dry_run_mode="annotate")


@played(play, mode=Mode.OBSERVE)
async def test_the_label_of_a_namespace_takes_precedence_over_the_mode(stage):
    await stage.namespace("canary", labels={MODE_LABEL: "enforce"})
    await stage.pod("watched")
    await stage.pod("held", namespace="canary")
    await stage.look()
    assert not stage.term.dry_run
    gated = {key.name for key in stage.view.pods}
    assert gated == {"held"}, "what observe mode finds gated is let go"
    await stage.client.patch(NAMESPACES, "canary", {"metadata": {"labels": {MODE_LABEL: "observe"}}})
    await stage.until(lambda: stage.view.observes("canary"))
    await stage.look()
    assert not stage.view.pods
    assert stage.term.dry_run


@played(play)
async def test_a_namespace_in_observe_mode_is_followed_where_others_are_held(stage):
    assert stage.term.dry is None
    await stage.namespace("watched", labels={MODE_LABEL: "observe"})
    await stage.pod("held")
    await stage.pod("free", namespace="watched")
    await stage.look()
    assert {key.name for key in stage.view.pods} == {"held"}
    following = asyncio.create_task(stage.term._run_dry_run())
    await stage.until(lambda: stage.term.dry is not None)
    await stage.look()
    assert stage.counted(DRY + "pods_evaluated_total", namespace="watched") == 1
    assert stage.counted(DRY + "pods_evaluated_total", namespace=NS) == 0
    following.cancel()


def test_a_job_that_was_suspended_is_resumed_in_observe_mode(tmp_path):
    interruptible = {names.DEFER: "true", names.INTERRUPTIBLE: "true", names.MODE: "interruptible"}

    async def body(stage):
        await stage.job("train", template=interruptible)
        await stage.look()
        job = await stage.client.get(JOBS, "train", NS)
        assert job.spec.suspend
        await stage.client.patch(NAMESPACES, NS, {"metadata": {"labels": {MODE_LABEL: "observe"}}})
        await stage.until(lambda: stage.view.observes(NS))
        await stage.look()
        assert not (await stage.client.get(JOBS, "train", NS)).spec.suspend
        await stage.look(HOUR_S)
        assert not (await stage.client.get(JOBS, "train", NS)).spec.suspend

    play(body, tmp_path)
