"""An operator that lets nodes sleep, against the fake cluster, and looks when it is told to."""

import asyncio
import dataclasses
from contextlib import asynccontextmanager

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.kubernetes.resources import EVENTS, NODES, PODS
from joulie.apps.operator.settings.sleep import SleepMode
from joulie.domain.mode import Mode
from support.operator_stage import LABELS, staged, until

FLEET = ("n1", "n2", "n3")
ROOM = {"cpu": "64", "memory": "256Gi", "pods": "110"}
HOSTNAME = "kubernetes.io/hostname"


def play(body, tmp_path, *, sleep=SleepMode.ENFORCE, mode=Mode.ENFORCE):
    async def main():
        async with staged(tmp_path, sleep=sleep, mode=mode) as stage, watched(stage):
            await body(stage)

    asyncio.run(main())


@asynccontextmanager
async def watched(stage):
    """Watches volumes, as the loop does."""
    local = stage.loop._sleep._volumes
    task = asyncio.create_task(local.run())
    try:
        await until(lambda: local.all is not None)
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def restarted(stage, **settings):
    """Another leader, with other settings perhaps; volumes stay known."""
    local = stage.loop._sleep._volumes
    stage.settings = dataclasses.replace(stage.settings, **settings)
    stage.start()
    stage.loop._sleep._volumes = local


async def fleet(stage, *nodes, **labels):
    for name in nodes or FLEET:
        await add(stage, name, **labels)


async def add(stage, name, *, taints=(), **labels):
    body = {"metadata": {"name": name, "labels": LABELS | {HOSTNAME: name} | labels}, "status": {"allocatable": ROOM}}
    await stage.client.create(NODES, body | {"spec": {"taints": list(taints)}})
    await until(lambda: stage.view.node(name))


async def add_pod(stage, name, node="", *, cpu="8", phase=None, **metadata):
    """A pod; pending without a node."""
    container = {"name": "c", "resources": {"requests": {"cpu": cpu, "memory": "8Gi"}}}
    body = {"metadata": {"name": name} | metadata, "spec": {"nodeName": node, "containers": [container]}}
    await stage.client.create(PODS, body, "default")
    status = {"phase": phase or ("Running" if node else "Pending")}
    await stage.client.patch(PODS, name, {"status": status}, namespace="default", subresource="status")
    await until(
        lambda: (seen := stage.view.pods.get(Key("default", name))) and str(seen.phase) == status["phase"].lower()
    )


async def end_pod(stage, name):
    await stage.client.delete(PODS, name, "default", grace_s=0)
    await until(lambda: Key("default", name) not in stage.view.pods)


async def look(stage, passed_s=10.0, times=1):
    for _ in range(times):
        stage.now_s += passed_s
        await stage.loop._sleep.look()
        await caught_up(stage)
    await stage.loop._events.flush()


async def caught_up(stage):
    stored = {node.metadata.name: node for node in (await stage.client.list(NODES)).items}
    await until(
        lambda: all(
            (facts := stage.view.node(name)) is not None
            and facts.sleep_mark == node.metadata.annotations.get(names.SLEEP_STATE_ANNOTATION, "")
            and facts.removable == node.metadata.annotations.get(names.REMOVABLE_ANNOTATION, "")
            and facts.labels == node.metadata.labels
            and len(facts.taints) == len(node.spec.taints)
            for name, node in stored.items()
        )
    )


async def asleep(stage):
    """Until all that may sleep do."""
    await look(stage, times=1)
    await look(stage, 600.0)
    await look(stage, 20.0, times=4)


async def closed(stage):
    """Nodes with Joulie's taint, and the first word of their mark."""
    found = {}
    for node in (await stage.client.list(NODES)).items:
        mark = node.metadata.annotations.get(names.SLEEP_STATE_ANNOTATION)
        tainted = [(one.key, one.effect) for one in node.spec.taints if one.key == names.ASLEEP_TAINT]
        assert bool(tainted) == (mark is not None), "taint and mark go together"
        if mark is not None:
            assert tainted == [(names.ASLEEP_TAINT, "NoSchedule")]
            found[node.metadata.name] = mark.split()[0]
    return found


async def versions(stage):
    return {node.metadata.name: node.metadata.resource_version for node in (await stage.client.list(NODES)).items}


async def events(stage, kind="Node"):
    found = (await stage.client.list(EVENTS)).items
    return {(one.involved_object.name, one.reason) for one in found if one.involved_object.kind == kind}


async def messages(stage):
    """What waiting pods were told, and how often."""
    return {one.message: one.count for one in (await stage.client.list(EVENTS)).items if one.reason == "WaitsForNode"}


def sample(stage, name, **labels):
    return stage.metrics.registry.get_sample_value(f"joulie_operator_sleep_{name}", labels)
