"""Whatever is measured and whoever runs: pods, system and idle sum up to what a node is judged by."""

import asyncio

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.kubernetes.pods import Owner, PodFacts
from joulie.adapters.kubernetes.requests import Requests
from joulie.adapters.prometheus.readings import GpuDevice
from joulie.apps.operator.power.pods import Meters, NodesPower, Work, running_pods, shared
from joulie.apps.operator.sources.usage import PodWeights
from joulie.domain.control import controlled_node
from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie.domain.hardware.resolve import resolve
from joulie.domain.policy import PodPhase
from joulie.domain.signal import Reading

CPU = resolve(None, {}, {"cpu": 96.0}, BUILTIN_CATALOGUE)
GPU = resolve(
    None, {"joulie.io/hw.gpu-model": "NVIDIA-L40S", "joulie.io/hw.gpu-count": "2"}, {"cpu": 96.0}, BUILTIN_CATALOGUE
)
NODES = (controlled_node("n0", CPU), controlled_node("n1", GPU), controlled_node("n2", GPU))
PLACES = ("n0", "n1", "n2", "elsewhere")
HAS_GPUS = np.array([False, True, True])

watts = st.one_of(st.just(np.nan), st.floats(0.0, 5000.0))
cores = st.floats(0.0, 512.0)
names = st.integers(0, 12).map(lambda number: f"p{number}")


@st.composite
def powers(draw):
    cpu, gpu, idle, gpu_idle = (np.array([draw(watts) for _ in NODES]) for _ in range(4))
    gpu = np.where(HAS_GPUS, gpu, 0.0)
    total = cpu + gpu
    return NodesPower(
        NODES, ("kepler",) * 3, np.zeros(3), cpu, gpu, total, total, total, idle, gpu_idle, np.full(3, 96.0)
    )


@st.composite
def pods(draw):
    chosen = draw(st.lists(names, unique=True, max_size=12))
    return [
        PodFacts(
            "team", name, f"uid-{name}", draw(st.sampled_from(PodPhase)), draw(st.sampled_from(PLACES)),
            Requests(draw(cores), 1.0, draw(st.sampled_from([0.0, 0.0, 1 / 7, 1.0, 2.0]))), Owner("Job", "j"),
        )
        for name in chosen
    ]  # fmt: skip


@st.composite
def work(draw):
    def weights(source):
        return PodWeights(source, {("team", name): draw(cores) for name in draw(st.sets(names))}, 0.0)

    devices = [
        GpuDevice(
            node, uuid, mig, profile, draw(st.none() | st.floats(0.0, 800.0).map(lambda value: Reading(0.0, value))),
            draw(st.none() | st.floats(0.0, 100.0)), holders, len(holders) > 1,
        )
        for node in ("n1", "n2")
        for uuid in draw(st.sets(st.sampled_from(["a", "b", "c"])))
        for mig, profile in draw(st.sampled_from([[(None, None)], [("1", "3g.40gb"), ("2", "4g.40gb")], [("1", None)]]))
        for holders in [tuple(("team", name) for name in sorted(draw(st.sets(names, max_size=3))))]
    ]  # fmt: skip
    busy = {"cadvisor": {node.name: Reading(0.0, draw(cores)) for node in NODES if draw(st.booleans())}}
    dynamic = {node.name: draw(st.floats(0.0, 5000.0)) for node in NODES if draw(st.booleans())}
    return Work([weights("kepler"), weights("cadvisor")], busy, dynamic, devices)


def shares_of(power, found, known):
    async def main():
        return await shared(
            power, await running_pods({Key(one.namespace, one.name): one for one in found}, NODES), known
        )

    return asyncio.run(main())


@given(powers(), pods(), work())
def test_power_is_conserved(power, found, known):
    shares = shares_of(power, found, known)
    parts = np.nan_to_num(shares.pod_cpu_w) + np.nan_to_num(shares.pod_gpu_w)
    drawn_w = np.bincount(shares.running.node, parts, len(NODES))
    judged = ~np.isnan(power.total_w)
    total_w = drawn_w + shares.idle_w + shares.system_w
    np.testing.assert_allclose(total_w[judged], power.total_w[judged], rtol=1e-9, atol=1e-6)
    for values in (shares.pod_cpu_w, shares.pod_gpu_w, shares.idle_w, shares.system_w):
        assert (values[~np.isnan(values)] >= 0.0).all()


@given(st.lists(st.tuples(st.floats(0.0, 300.0), powers(), pods()), max_size=5))
def test_energy_never_falls_and_namespaces_hold_what_pods_drew(polls):
    async def main():
        meters, now_s, total_j = Meters(0.0), 0.0, 0.0
        for passed_s, power, found in polls:
            now_s += passed_s
            running = await running_pods({Key(one.namespace, one.name): one for one in found}, NODES)
            before = meters
            meters = await meters.extended(await shared(power, running, Work()), now_s, 120.0)
            added_j = sum(
                meters.pod_j[row] - (before.pod_j[before.pods[uid]] if uid in before.pods else 0.0)
                for uid, row in meters.pods.items()
            )
            assert added_j >= 0.0
            assert np.isfinite(meters.pod_j).all()
            assert np.isfinite(meters.node_j).all()
            total_j += added_j
        assert np.isclose(sum(meters.namespace_j.values()), total_j)

    asyncio.run(main())
