"""Node labels with the range of GPUs' power limits: published where asked for, unless somebody else sets them."""

from typing import Any

import pytest

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.resources import NODE_HARDWARES, NODES
from joulie.apps.operator.limits.range_labels import range_labels
from joulie.domain.hardware.resolve import ReportedHardware
from support.operator_stage import N1, N2, play, until
from support.played import played

MIN, MAX = names.GPU_LIMIT_RANGE_LABELS
ON = {"GPU_RANGE_LABELS": "true"}
H100 = {MIN: "200000", MAX: "700000"}
FEATURE_DISCOVERY = "nfd-master"
WRITTEN_BY_OTHERS = {MIN: "100000", MAX: "600000"}


async def add_gpu_node(stage: Any, name: str, vendor: str = "nvidia", **labels: str) -> None:
    await stage.add_node(name, **labels)
    gpu = {"present": True, "vendor": vendor, "count": 8, "capRangePerGpu": {"minWatts": 200.0, "maxWatts": 700.0}}
    body = {"metadata": {"name": name}, "spec": {"nodeName": name}}
    await stage.client.create(NODE_HARDWARES, body)
    await stage.client.apply(
        NODE_HARDWARES, name, {"status": {"gpu": gpu}}, field_manager="joulie-agent", subresource="status"
    )
    await until(lambda: any(facts.node == name and facts.reported.gpu_min_w for facts in stage.view.hardware.values()))


async def ranges(stage: Any, name: str) -> dict[str, str]:
    """Labels of the range, once the operator's cache has them too."""
    stored = (await stage.client.get(NODES, name)).metadata.labels
    await until(lambda: stage.view.node(name).labels == stored)
    return {label: stored[label] for label in names.GPU_LIMIT_RANGE_LABELS if label in stored}


async def relabel(stage: Any, name: str, labels: dict[str, str | None]) -> None:
    await stage.client.patch(NODES, name, {"metadata": {"labels": labels}}, field_manager=FEATURE_DISCOVERY)
    await ranges(stage, name)


def test_ranges_are_whole_milliwatts_of_nvidia_gpus_only() -> None:
    assert range_labels(ReportedHardware(gpu_vendor="nvidia", gpu_min_w=99.9996, gpu_max_w=400.0)) == {
        MIN: "100000",
        MAX: "400000",
    }
    for lacking in (
        ReportedHardware(gpu_vendor="amd", gpu_min_w=100.0, gpu_max_w=400.0),
        ReportedHardware(gpu_vendor="nvidia", gpu_min_w=0.0, gpu_max_w=400.0),
        ReportedHardware(gpu_vendor="nvidia", gpu_min_w=100.0),
        ReportedHardware(),
    ):
        assert range_labels(lacking) == {}


@played(play)
async def test_nothing_is_published_unless_asked_for(stage):
    await add_gpu_node(stage, N1)
    await stage.step()
    assert await ranges(stage, N1) == {}


@played(play, environment=ON)
async def test_published_once_and_given_up_with_the_node(stage):
    await add_gpu_node(stage, N1)
    await add_gpu_node(stage, N2, vendor="amd")
    await stage.step()
    assert await ranges(stage, N1) == H100
    assert await ranges(stage, N2) == {}
    version = (await stage.client.get(NODES, N1)).metadata.resource_version
    await stage.step()
    assert (await stage.client.get(NODES, N1)).metadata.resource_version == version
    await relabel(stage, N1, {names.MANAGED_LABEL: None})
    await stage.step()
    assert await ranges(stage, N1) == {}


@played(play, environment=ON)
async def test_a_node_in_observe_mode_gets_none_and_loses_what_it_had(stage):
    await add_gpu_node(stage, N1)
    await add_gpu_node(stage, N2, **{names.MODE_LABEL: "observe"})
    await stage.step()
    assert (await ranges(stage, N1), await ranges(stage, N2)) == (H100, {})
    await relabel(stage, N1, {names.MODE_LABEL: "observe"})
    await stage.step()
    assert await ranges(stage, N1) == {}


@played(play, environment=ON)
async def test_labels_of_another_writer_are_neither_replaced_nor_removed(stage):
    await add_gpu_node(stage, N1)
    await relabel(stage, N1, dict(WRITTEN_BY_OTHERS))
    await stage.step()
    assert await ranges(stage, N1) == WRITTEN_BY_OTHERS
    version = (await stage.client.get(NODES, N1)).metadata.resource_version
    stage.start()  # another leader
    await stage.step()
    await stage.step()
    assert (await stage.client.get(NODES, N1)).metadata.resource_version == version
    await relabel(stage, N1, {names.MANAGED_LABEL: None})
    await stage.step()
    assert await ranges(stage, N1) == WRITTEN_BY_OTHERS
    # Where they are removed by whoever set them, the range is published.
    await relabel(stage, N1, {names.MANAGED_LABEL: "true", MIN: None, MAX: None})
    await stage.step()
    assert await ranges(stage, N1) == H100


@played(play, environment=ON)
async def test_a_writer_that_comes_later_takes_them_over(stage):
    await add_gpu_node(stage, N1)
    await stage.step()
    await relabel(stage, N1, dict(WRITTEN_BY_OTHERS))
    await stage.step()
    await stage.step()
    assert await ranges(stage, N1) == WRITTEN_BY_OTHERS
    await relabel(stage, N1, {names.MANAGED_LABEL: None})
    await stage.step()
    assert await ranges(stage, N1) == WRITTEN_BY_OTHERS


@played(play, environment=ON)
async def test_a_node_that_was_made_again_is_labelled_and_none_is_made(stage):
    await add_gpu_node(stage, N1)
    await stage.step()
    stale = stage.view.node(N1)
    await stage.client.delete(NODES, N1)
    await stage.loop._range_labels._write(N1, stale, {MIN: "1", MAX: "2"})
    assert [node.metadata.name for node in (await stage.client.list(NODES)).items] == []
    await until(lambda: stage.view.node(N1) is None)
    await stage.add_node(N1)
    await stage.step()
    assert await ranges(stage, N1) == H100


@pytest.mark.parametrize("switched_off", [True, False])
@played(play, environment=ON)
async def test_switched_off_a_new_leader_gives_them_up(stage, switched_off: bool):
    await add_gpu_node(stage, N1)
    await stage.step()
    object.__setattr__(stage.settings, "gpu_range_labels", not switched_off)
    stage.start()
    await stage.step()
    assert await ranges(stage, N1) == ({} if switched_off else H100)
