"""Signals from a real Prometheus that scrapes replay exporters.

What is expected is computed from the scripts of the exporters, never with a query: a wrong query cannot agree.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import httpx2
import pytest

from joulie.adapters.prometheus import Prometheus, PrometheusAuth, PrometheusError, PrometheusUnavailableError, connect
from joulie.adapters.prometheus.answers import History
from joulie.adapters.prometheus.cadvisor import Cadvisor
from joulie.adapters.prometheus.dcgm import Dcgm
from joulie.adapters.prometheus.kepler import Kepler
from joulie.adapters.prometheus.node_exporter import NodeExporter
from joulie.adapters.prometheus.nodes import NodeIndex
from joulie.adapters.prometheus.readings import (
    GpuDevice,
    GpuUse,
    NodePower,
    PodKey,
    PodPower,
    PodUsage,
    Rejection,
    Steps,
)
from joulie.domain.profiles.profile import EnergyUse
from joulie.domain.signal import Reading
from joulie_lab.control_plane import wait_for
from joulie_lab.control_plane.certificates import CertificateAuthority
from support.exporters import (
    RAPL_PACKAGE_RANGE_J,
    Container,
    Exporters,
    Gpu,
    Machine,
    MigInstance,
    ScriptedPod,
    Zone,
    cadvisor,
    dcgm,
    install,
    kepler_new,
    kepler_old,
)
from support.prometheus_server import INTERVAL_S, PrometheusServer

T = TypeVar("T")

pytestmark = pytest.mark.slow

WINDOW_S = 4.0
SCRAPES_OF_A_WINDOW = int(WINDOW_S / INTERVAL_S)
PATIENCE_S = 60.0
# Half-second scrapes by a busy machine: a script's rate and the scrapes' own times differ by some per cent.
NEAR = 0.05


@dataclass(frozen=True)
class Site:
    """Machines whose exporters a Prometheus scrapes."""

    server: PrometheusServer
    exporters: Exporters
    machines: Mapping[str, Machine]

    @property
    def index(self) -> NodeIndex:
        return NodeIndex.from_aliases({name: [machine.address] for name, machine in self.machines.items()})

    def ask(self, question: Callable[[Prometheus], Awaitable[T]]) -> T:
        async def main() -> T:
            async with connect(self.server.address) as prometheus:
                return await question(prometheus)

        return asyncio.run(main())

    def eventually(self, question: Callable[[Prometheus], Awaitable[T]], holds: Callable[[T], None], what: str) -> T:
        """Ask until the answer is as it should be: the assertions of `holds` pass."""

        def answered() -> tuple[T]:
            answer = self.ask(question)
            holds(answer)
            return (answer,)

        return wait_for(answered, PATIENCE_S, what, poll_s=INTERVAL_S)[0]


def machines() -> list[Machine]:
    web = ScriptedPod(
        "shop",
        "web-0",
        [
            Container("nginx", cores=3.0, cpu_w=45.0, dram_w=3.0, memory_bytes=6 * 2**30),
            Container("proxy", cores=0.5, cpu_w=5.0, dram_w=1.0, memory_bytes=2**30),
        ],
    )
    # The same name in another namespace, and a name that the first one begins.
    twin = ScriptedPod("test", "web-0", [Container(cores=0.25, cpu_w=4.0)])
    longer = ScriptedPod("shop", "web-01", [Container(cores=1.5, cpu_w=20.0)])
    train = ScriptedPod("ml", "train-0", [Container(cores=8.0, cpu_w=80.0, dram_w=6.0, gpu_w=230.0)])
    idle = ScriptedPod("ml", "idle-0", [Container(cores=0.0)])
    ended = ScriptedPod("ml", "train-0", [Container(cores=0.0, cpu_w=55.0)])
    slices = [
        MigInstance("3g.40gb", 1, 0.8, 0.7, ("ml", "infer-0")),
        MigInstance("1g.10gb", 7, 0.2, 0.1, ("ml", "infer-1")),
        MigInstance("1g.10gb", 8, 0.0, 0.0),
    ]
    gpus = [
        Gpu("GPU-11111111", 60.0, 230.0, util_pct=92, mem_copy_util_pct=30, holders=[("ml", "train-0")]),
        Gpu("GPU-22222222", 60.0, 100.0, mig=slices),
        Gpu("GPU-33333333", 60.0, 90.0, 50, 64, dram_active=0.65, holders=[("ml", "note-0"), ("ml", "note-1")]),
        Gpu("GPU-44444444", 60.0, 0.0),
    ]
    two = [Zone(50.0, 70.0), Zone(50.0, 30.0)]
    memory = [Zone(8.0, 6.0), Zone(8.0, 2.0)]
    return [
        Machine("node-1", "10.0.0.1", two, memory, pods=[web, twin], psys=Zone(300.0, 50.0), has_mmio=True),
        Machine("node-10", "10.0.0.10", [Zone(40.0, 160.0)], pods=[longer]),
        Machine("node-2", "10.0.0.3", [Zone(45.0, 15.0), Zone(45.0, 20.0)], [Zone(5.0, 1.0), Zone(5.0, 2.0)]),
        Machine("gpu-1", "10.0.0.2", [Zone(90.0, 110.0)], [Zone(12.0, 9.0)], gpus, [train, idle], [ended]),
    ]


@pytest.fixture(scope="module")
def sites(prometheus_program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Site]]:
    """Three clusters, started together: a Prometheus takes five seconds to its first scrape.

    The load of "kepler-0.9" and of "kepler-0.11" stays as it is. Each machine of "lively" is one test's, to change.
    """
    with Exporters() as exporters:
        started: dict[str, Site] = {}

        def start(name: str, cluster: Sequence[Machine], jobs: Sequence[Mapping[str, object]]) -> None:
            server = PrometheusServer(prometheus_program, tmp_path_factory.mktemp("prometheus"))
            started[name] = Site(server, exporters, {machine.name: machine for machine in cluster})
            server.start(jobs, wait=False)

        try:
            for name, kepler in (("kepler-0.9", kepler_old), ("kepler-0.11", kepler_new)):
                cluster = machines()
                jobs = install(exporters, cluster, kepler=kepler, prefix=f"/{name}")
                node_10, node_2 = (one for one in cluster if one.name in ("node-10", "node-2"))
                exporters.pages[f"/{name}/node-10/kubelet"] = partial(cadvisor, node_10, old_labels=True)
                exporters.pages[f"/{name}/node-2/kepler"] = partial(kepler_new, node_2, aggregated=False)
                start(name, cluster, jobs)
            start("lively", *_lively(exporters))
            for one in started.values():
                one.server.wait_until_up()
                one.server.wait_for_samples("up", SCRAPES_OF_A_WINDOW)
            yield started
        finally:
            for one in started.values():
                one.server.process.kill()


def _lively(exporters: Exporters) -> tuple[list[Machine], list[dict[str, Any]]]:
    twice = quiet_machine("twice", gpus=[Gpu("GPU-1", 60.0, 40.0, 70, holders=[("default", "on-twice")])])
    cluster = [quiet_machine("restarts"), quiet_machine("follows"), quiet_machine("vanishes"), twice]
    jobs = install(exporters, cluster, prefix="/lively")
    # A second scrape of the same exporters, as two ServiceMonitors give.
    for render in (kepler_new, dcgm, cadvisor):
        path = f"/again/{render.__name__}"
        exporters.pages[path] = partial(render, twice)
        jobs.append(exporters.job(f"again-{render.__name__}", {path: {"node": "twice"}}, honor_labels=True))
    # Series without a pod are dropped, as kube-prometheus-stack does.
    kept = quiet_machine("kept")
    exporters.pages["/kept"] = lambda: "".join(
        f"{line}\n" for line in cadvisor(kept).splitlines() if 'pod=""' not in line
    )
    jobs.append(exporters.job("kubelet-kept", {"/kept": {"node": "kept"}}, honor_labels=True))
    return [*cluster, kept], jobs


@pytest.fixture(params=["kepler-0.9", "kepler-0.11"])
def site(sites: Mapping[str, Site], request: pytest.FixtureRequest) -> Site:
    return sites[request.param]


@pytest.fixture
def lively(sites: Mapping[str, Site]) -> Site:
    return sites["lively"]


def near(expected: Mapping[T, float]) -> dict[T, object]:
    return {name: pytest.approx(value, rel=NEAR, abs=1e-3) for name, value in expected.items()}


def values(readings: Mapping[str, Reading]) -> dict[str, float]:
    return {name: reading.value for name, reading in readings.items()}


def quiet_machine(name: str, **options: Any) -> Machine:
    """One package of 50 W and one pod of 20 W and 2 cores."""
    work = ScriptedPod("default", f"on-{name}", [Container(cores=2.0, cpu_w=20.0)])
    return Machine(name, f"{name}.example", [Zone(30.0, 20.0)], pods=[work], **options)


# -- what each exporter says, read by its adapter


def test_nodes_by_kepler(site: Site) -> None:
    def holds(power: NodePower) -> None:
        assert values(power.cpu) == near({name: one.cpu_w for name, one in site.machines.items()})
        assert values(power.dram) == near({name: one.dram_w for name, one in site.machines.items() if one.dram})
        assert values(power.gpu) == near({"gpu-1": 520.0 + 60.0 + 80.0})
        assert power.gpu_count == {"gpu-1": 4}
        assert values(power.cpu_dynamic) == near({"node-1": 100.0, "node-10": 160.0, "node-2": 35.0, "gpu-1": 110.0})
        assert not power.rejected

    site.eventually(lambda p: Kepler(p, WINDOW_S).nodes(site.index), holds, "Kepler's power of nodes")


def test_pods_by_kepler(site: Site) -> None:
    def holds(found: Mapping[PodKey, PodPower]) -> None:
        cpu_w = {key: one.cpu_w for key, one in found.items() if one.cpu_w is not None and key[0] != "system"}
        assert cpu_w == near(
            {
                ("shop", "web-0"): 50.0,
                ("test", "web-0"): 4.0,
                ("shop", "web-01"): 20.0,
                ("ml", "train-0"): 80.0,  # what the ended pod of this name took is not its power
                ("ml", "idle-0"): 0.0,
            }
        )
        assert found["shop", "web-0"].dram_w == pytest.approx(4.0, rel=NEAR)
        assert found["ml", "train-0"].gpu_w == pytest.approx(230.0, rel=NEAR)
        assert not found["shop", "web-0"].gpu_w

    site.eventually(lambda p: Kepler(p, WINDOW_S).pods(), holds, "Kepler's power of pods")


def test_energy_of_pods_by_kepler(site: Site) -> None:
    def holds(found: Mapping[PodKey, EnergyUse]) -> None:
        assert found["ml", "train-0"] == EnergyUse(
            pytest.approx(80.0 * WINDOW_S, rel=NEAR),
            pytest.approx(6.0 * WINDOW_S, rel=NEAR),
            pytest.approx(230.0 * WINDOW_S, rel=NEAR),
        )

    site.eventually(lambda p: Kepler(p, WINDOW_S).energy(WINDOW_S), holds, "Kepler's energy of pods")


def test_nodes_by_node_exporter(site: Site) -> None:
    """Not the platform, which holds everything, and not the package that the kernel tells of twice."""

    def holds(power: NodePower) -> None:
        assert values(power.cpu) == near({name: one.cpu_w for name, one in site.machines.items()})
        assert values(power.dram) == near({name: one.dram_w for name, one in site.machines.items() if one.dram})
        assert not power.gpu
        assert power.rejected == {Rejection.DUPLICATE: 2}

    site.eventually(lambda p: NodeExporter(p, WINDOW_S).nodes(site.index), holds, "node_exporter's power of nodes")


def test_nodes_by_dcgm(site: Site) -> None:
    """A GPU whose power three slices repeat, and one that two pods share, count once."""

    def holds(power: NodePower) -> None:
        assert values(power.gpu) == {"gpu-1": pytest.approx(290.0 + 160.0 + 150.0 + 60.0)}
        assert power.gpu_count == {"gpu-1": 4}
        assert not power.cpu

    site.eventually(lambda p: Dcgm(p, WINDOW_S).nodes(site.index), holds, "DCGM's power of nodes")


def test_devices_by_dcgm(site: Site) -> None:
    def holds(devices: list[GpuDevice]) -> None:
        told = [(one.uuid[4:8], one.mig_instance, one.util_pct, one.holders, one.shared) for one in devices]
        assert told == [
            ("1111", None, 92.0, (("ml", "train-0"),), False),
            ("2222", "1", 80.0, (("ml", "infer-0"),), False),
            ("2222", "7", 20.0, (("ml", "infer-1"),), False),
            ("2222", "8", 0.0, (), False),
            ("3333", None, 50.0, (("ml", "note-0"), ("ml", "note-1")), True),
            ("4444", None, 0.0, (), False),
        ]
        assert [one.power_w.value for one in devices] == pytest.approx([290.0, 160.0, 160.0, 160.0, 150.0, 60.0])

    site.eventually(lambda p: Dcgm(p, WINDOW_S).devices(site.index), holds, "DCGM's devices")


def test_pods_by_dcgm(site: Site) -> None:
    """Memory activity is profiled where it can be, else that of copies; the exporter's own pod holds nothing."""

    def holds(found: Mapping[PodKey, GpuUse]) -> None:
        assert found == {
            ("ml", "train-0"): GpuUse(pytest.approx(92.0), pytest.approx(30.0), 1),
            ("ml", "infer-0"): GpuUse(pytest.approx(80.0), pytest.approx(70.0), 1),
            ("ml", "infer-1"): GpuUse(pytest.approx(20.0), pytest.approx(10.0), 1),
            ("ml", "note-0"): GpuUse(pytest.approx(50.0), pytest.approx(65.0), 1),
            ("ml", "note-1"): GpuUse(pytest.approx(50.0), pytest.approx(65.0), 1),
        }

    site.eventually(lambda p: Dcgm(p, WINDOW_S).pods(WINDOW_S), holds, "DCGM's use of GPUs by pods")


def test_courses_of_gpus_by_dcgm(site: Site) -> None:
    """At each step what `pods` says of the window: the same queries over time."""
    (now,) = site.server.query("vector(time())")
    end_s = float(now["value"][1])

    def holds(found: Mapping[PodKey, Mapping[float, float]]) -> None:
        assert {pod: list(course.values())[-1:] for pod, course in found.items()} == {
            ("ml", "train-0"): [pytest.approx(92.0)],
            ("ml", "infer-0"): [pytest.approx(80.0)],
            ("ml", "infer-1"): [pytest.approx(20.0)],
            ("ml", "note-0"): [pytest.approx(50.0)],
            ("ml", "note-1"): [pytest.approx(50.0)],
        }

    steps = Steps(end_s - 4.0, end_s, 2.0, WINDOW_S)
    site.eventually(lambda p: Dcgm(p, WINDOW_S).courses(steps), holds, "DCGM's courses of pods")


def test_pods_by_cadvisor(site: Site) -> None:
    """Neither the sums of cgroups nor the sandbox count; labels of old and new kubelets do."""

    def holds(found: PodUsage) -> None:
        cores = {("shop", "web-0"): 3.5, ("test", "web-0"): 0.25, ("shop", "web-01"): 1.5, ("ml", "train-0"): 8.0}
        assert found.cpu_cores == near(cores | {("ml", "idle-0"): 0.0})
        held_bytes = dict.fromkeys((*cores, ("ml", "idle-0")), 2.0**30) | {("shop", "web-0"): 7.0 * 2**30}
        assert found.memory_bytes == pytest.approx(held_bytes)

    site.eventually(lambda p: Cadvisor(p).pods(WINDOW_S), holds, "cAdvisor's use by pods")


def test_nodes_by_cadvisor(site: Site) -> None:
    def holds(found: Mapping[str, Reading]) -> None:
        assert values(found) == near({name: one.busy_cores for name, one in site.machines.items()})

    site.eventually(lambda p: Cadvisor(p).nodes(site.index, WINDOW_S), holds, "cAdvisor's busy cores of nodes")


def test_nodes_by_cadvisor_without_series_of_whole_nodes(lively: Site) -> None:
    """The node's pods are what is left; other nodes keep what runs outside of pods."""

    def holds(found: Mapping[str, Reading]) -> None:
        assert {name: values(found)[name] for name in ("kept", "follows")} == near({"kept": 2.0, "follows": 2.5})

    lively.eventually(lambda p: Cadvisor(p).nodes(lively.index, WINDOW_S), holds, "busy cores of both nodes")


def test_all_signals_take_a_handful_of_queries(site: Site) -> None:
    """However many pods there are: queries are of the whole cluster."""

    def asked() -> int:
        return site.server.queries_answered()

    async def everything(prometheus: Prometheus) -> None:
        kepler, dcgm_, cadvisor_ = Kepler(prometheus, WINDOW_S), Dcgm(prometheus, WINDOW_S), Cadvisor(prometheus)
        await kepler.nodes(site.index)
        await kepler.energy(WINDOW_S)
        await NodeExporter(prometheus, WINDOW_S).nodes(site.index)
        await dcgm_.devices(site.index)
        await dcgm_.pods(WINDOW_S)
        await cadvisor_.pods(WINDOW_S)
        await cadvisor_.nodes(site.index, WINDOW_S)

    before = asked()
    site.ask(everything)
    assert 0 < asked() - before <= 17


# -- things that go wrong


def test_trap_a_counter_that_starts_again_is_never_negative_and_never_absurd(lively: Site) -> None:
    machine = lively.machines["restarts"]
    package, container = machine.packages[0], machine.pods[0].containers[0]
    # Kepler is restarted now, the kernel's counter wraps soon.
    package.restart_kepler()
    container.package.restart()
    container.cpu.restart()
    package.rapl.restart(RAPL_PACKAGE_RANGE_J - 50.0 * 2.0)

    async def everything(prometheus: Prometheus) -> tuple[NodePower, NodePower, Mapping[PodKey, PodPower], PodUsage]:
        kepler = Kepler(prometheus, WINDOW_S)
        return (
            await kepler.nodes(lively.index),
            await NodeExporter(prometheus, WINDOW_S).nodes(lively.index),
            await kepler.pods(),
            await Cadvisor(prometheus).pods(WINDOW_S),
        )

    for _ in range(2 * SCRAPES_OF_A_WINDOW):
        lively.server.wait_for_scrapes()
        by_kepler, by_node_exporter, pods, usage = lively.ask(everything)
        for power in (by_kepler, by_node_exporter):
            # The jump to just below the range's end is one that no reader can know: the interval is not believed.
            if "restarts" in power.cpu:
                # Where the machine is short of time, scrapes are late, and the windows not what they should be.
                assert power.cpu["restarts"].value == pytest.approx(50.0, rel=0.5)
        # Prometheus' rate() takes the interval of the drop for time: less than the truth, never more, never below 0.
        assert 0.0 <= pods["default", "on-restarts"].cpu_w <= 20.0 * (1.0 + 2 * NEAR)
        assert 0.0 <= usage.cpu_cores["default", "on-restarts"] <= 2.0 * (1.0 + 2 * NEAR)
    assert package.rapl.read() < 1000.0, "the kernel's counter should have wrapped"

    def holds(found: tuple[NodePower, NodePower, Mapping[PodKey, PodPower], PodUsage]) -> None:
        assert found[1].cpu["restarts"].value == pytest.approx(50.0, rel=NEAR)

    lively.eventually(everything, holds, "the power of the node, as before")


def test_power_follows_the_load(lively: Site) -> None:
    lively.machines["follows"].packages[0].draw(170.0)

    def holds(power: NodePower) -> None:
        assert power.cpu["follows"].value == pytest.approx(200.0, rel=NEAR)

    lively.eventually(lambda p: Kepler(p, WINDOW_S).nodes(lively.index), holds, "Kepler tells of the load")
    lively.eventually(lambda p: NodeExporter(p, WINDOW_S).nodes(lively.index), holds, "node_exporter tells of the load")


def test_trap_an_exporter_that_is_gone_is_missing_not_zero(lively: Site) -> None:
    for job in ("kepler", "kubelet"):
        del lively.exporters.pages[f"/lively/vanishes/{job}"]
    wait_for(lambda: lively.server.query('up{job="kepler"} == 0'), PATIENCE_S, "Kepler is down")
    (scrapes,) = lively.ask(lambda p: p.query_samples('up{job="kepler",instance="vanishes"}[1m]'))
    last_s = max(sample.time_s for sample in scrapes.samples if sample.value == 1.0)

    left: list[Reading] = []

    def gone() -> bool:
        cpu = lively.ask(lambda p: Kepler(p, WINDOW_S).nodes(lively.index)).cpu
        if "vanishes" in cpu:
            left.append(cpu["vanishes"])
        return "vanishes" not in cpu

    wait_for(gone, PATIENCE_S, "no reading is left")
    # Of the samples that are left, and at their own time; of two samples, one that was late changes the power most.
    assert all(0.0 < reading.value < 2 * 50.0 and reading.time_s <= last_s for reading in left), (left, last_s)
    pod = ("default", "on-vanishes")
    wait_for(lambda: pod not in lively.ask(lambda p: Kepler(p, WINDOW_S).pods()), PATIENCE_S, "no power is left")
    wait_for(
        lambda: pod not in lively.ask(lambda p: Cadvisor(p).pods(WINDOW_S)).cpu_cores, PATIENCE_S, "no use is left"
    )
    assert "vanishes" in lively.ask(lambda p: NodeExporter(p, WINDOW_S).nodes(lively.index)).cpu


def test_trap_what_was_not_scraped_is_not_idleness(lively: Site) -> None:
    """A window longer than the time of the scrapes, as of a new Prometheus, of one that was away, and of young pods."""
    pod = ("default", "on-kept")

    def cores(window_s: float, step_s: float | None) -> float | None:
        return lively.ask(lambda p: Cadvisor(p).pods(window_s, step_s=step_s)).cpu_cores.get(pod)

    def near_two(window_s: float, step_s: float) -> bool:
        return cores(window_s, step_s) == pytest.approx(2.0, rel=NEAR)

    # Windows of which a slow machine, too, has scraped a small part.
    assert cores(6000.0, None) < 0.5, "by the rate of Prometheus itself"
    wait_for(lambda: near_two(600.0, 2.0), PATIENCE_S, "its use by steps")
    assert cores(6000.0, 2400.0) is None, "no step was scraped from its beginning"
    wait_for(lambda: near_two(4.0, 3.0), PATIENCE_S, "its use in a window too short for steps")


def test_trap_an_outage_of_prometheus_is_not_idleness(prometheus: PrometheusServer) -> None:
    """Nor is the time until a window has been scraped again; all through it a pod uses 2 cores or is not known."""
    machine = quiet_machine("steady")
    with Exporters() as exporters:
        site = Site(prometheus, exporters, {machine.name: machine})
        prometheus.start(install(exporters, [machine]))

        def cores() -> float | None:
            usage = site.ask(lambda p: Cadvisor(p).pods(WINDOW_S, step_s=WINDOW_S / 2.0))
            return usage.cpu_cores.get(("default", "on-steady"))

        told = [wait_for(cores, PATIENCE_S, "its use is known")]
        prometheus.process.pause()
        counter = machine.pods[0].containers[0].cpu
        missed_s = counter.read() + 2.0 * WINDOW_S
        wait_for(lambda: counter.read() >= missed_s, PATIENCE_S, "the pod has used a window's time of 2 cores")
        prometheus.process.resume()
        for _ in range(2 * SCRAPES_OF_A_WINDOW):
            told.append(cores())
            prometheus.wait_for_scrapes()

        def known_again() -> bool:
            told.append(cores())
            return told[-1] is not None

        wait_for(known_again, PATIENCE_S, "its use is known again", poll_s=INTERVAL_S)
    assert None in told, "the outage should have left a step out"
    known = [value for value in told if value is not None]
    assert known == [pytest.approx(2.0, rel=2 * NEAR)] * len(known)


def test_courses_of_pods_are_of_the_time_that_was_scraped(lively: Site) -> None:
    """Twenty samples, most of them before the first scrape."""
    pod = ("default", "on-kept")
    (scraped,) = lively.ask(lambda p: p.query_samples('up{job="kubelet-kept"}[1h]'))
    end_s = scraped.samples[0].time_s + 15.0
    now = partial(lively.server.query, "vector(time())")
    wait_for(lambda: float(now()[0]["value"][1]) > end_s, PATIENCE_S, "a quarter of a minute was scraped")
    course = lively.ask(lambda p: Cadvisor(p).courses(Steps(end_s - 57.0, end_s, 3.0, 3.0)))[pod]
    assert 0 < len(course) < 20
    # A scrape that is late moves work from one step to the next.
    assert fmean(course.values()) == pytest.approx(2.0, rel=4 * NEAR)
    assert all(0.0 < cores < 4.0 for cores in course.values())


def test_trap_two_scrapes_of_one_exporter_are_not_twice_the_power(lively: Site) -> None:
    pod = ("default", "on-twice")

    def holds(power: NodePower) -> None:
        assert power.cpu["twice"].value == pytest.approx(50.0, rel=NEAR)
        assert power.gpu["twice"].value == pytest.approx(100.0)

    lively.eventually(lambda p: Kepler(p, WINDOW_S).nodes(lively.index), holds, "Kepler's power of the node, once")

    def others() -> bool:
        assert values(lively.ask(lambda p: Dcgm(p, WINDOW_S).nodes(lively.index)).gpu) == near({"twice": 100.0})
        assert lively.ask(lambda p: Dcgm(p, WINDOW_S).pods(WINDOW_S))[pod].devices == 1
        assert lively.ask(lambda p: Kepler(p, WINDOW_S).pods())[pod].cpu_w == pytest.approx(20.0, rel=2 * NEAR)
        assert lively.ask(lambda p: Cadvisor(p).pods(WINDOW_S)).cpu_cores[pod] == pytest.approx(2.0, rel=2 * NEAR)
        busy = lively.ask(lambda p: Cadvisor(p).nodes(lively.index, WINDOW_S))
        assert busy["twice"].value == pytest.approx(2.5, rel=2 * NEAR)
        return True

    wait_for(others, PATIENCE_S, "everything else, once", poll_s=INTERVAL_S)


HUGE = "x" * 1_000_000


def hostile_text() -> str:
    """Expositions that nobody should have to read, all about nodes and pods of the cluster, or of none."""

    def energy(node: str, value: str, more: str = "") -> str:
        return (
            f'kepler_node_cpu_joules_total{{node_name="{node}",path="/p",zone="package"{more}}} {value}\n'
            f'node_rapl_package_joules_total{{node="{node}",index="0",path="/intel-rapl:0"{more}}} {value}\n'
        )

    def pod(name: str, value: str, more: str = "") -> str:
        who = f'namespace="default",pod="{name}",container="main",id="/{name}"{more}'
        kepler = f'pod_namespace="default",pod_name="{name}",pod_id="1",state="running",zone="package"{more}'
        return (
            f"container_cpu_usage_seconds_total{{{who}}} {value}\n"
            f"container_memory_working_set_bytes{{{who}}} {value}\n"
            f"kepler_pod_cpu_joules_total{{{kepler}}} {value}\n"
        )

    elapsed_s = time.monotonic()  # noqa: TID251 - a counter's own clock
    second = f"{elapsed_s:f}"
    strange = {"nan": "NaN", "inf": "+Inf", "minus-inf": "-Inf", "negative": f"-{second}", "absurd": f"{second}e12"}
    lines = [energy(f"bad-{name}", value) + pod(f"bad-{name}", value) for name, value in strange.items()]
    lines += [energy(f"nowhere-{number}", second) for number in range(2000)]
    lines += [energy(HUGE, second), energy("bad-huge", second, f',huge="{HUGE}"'), pod(HUGE, second)]
    lines += [
        f'DCGM_FI_DEV_POWER_USAGE{{gpu="0",UUID="{uuid}",Hostname="good"}} {value}\n'
        for uuid, value in (("GPU-1", "NaN"), (HUGE, "100"), ("", "100"))
    ]
    # The same series twice in one scrape: Prometheus keeps the first.
    return "".join([*lines, energy("bad-twice", second), energy("bad-twice", f"{9000.0 * elapsed_s:f}")])


def test_trap_a_hostile_exposition_harms_nobody_else(prometheus: PrometheusServer) -> None:
    good = quiet_machine("good")
    pod = ("default", "on-good")
    strange = ("nan", "inf", "minus-inf", "negative", "absurd")
    bad = [f"bad-{one}" for one in (*strange, "huge", "twice")]
    index = NodeIndex.from_aliases({"good": [good.address], **dict.fromkeys(bad, ())})
    with Exporters() as exporters:
        exporters.pages["/hostile"] = hostile_text
        hostile = exporters.job("hostile", {"/hostile": {}}, honor_labels=True)
        site = Site(prometheus, exporters, {"good": good})
        prometheus.start([*install(exporters, [good]), hostile])
        prometheus.wait_for_samples("up", SCRAPES_OF_A_WINDOW)

        async def everything(client: Prometheus) -> tuple[NodePower, NodePower, NodePower]:
            return (
                await Kepler(client, WINDOW_S).nodes(index),
                await NodeExporter(client, WINDOW_S).nodes(index),
                await Dcgm(client, WINDOW_S).nodes(index),
            )

        def holds(found: tuple[NodePower, NodePower, NodePower]) -> None:
            for power in found[:2]:
                assert values(power.cpu) == near({"good": 50.0, "bad-huge": 1.0, "bad-twice": 1.0})
                assert power.rejected == {
                    Rejection.UNKNOWN_NODE: 2001,
                    Rejection.NOT_FINITE: 3,
                    Rejection.NEGATIVE: 1,
                    Rejection.ABSURD: 1,
                }
            assert not found[2].gpu, "a node of which one GPU cannot be read has no GPU power"

        site.eventually(everything, holds, "the good are read and the bad are counted")

        def only_the_good() -> bool:
            pods = site.ask(lambda p: Kepler(p, WINDOW_S).pods())
            usage = site.ask(lambda p: Cadvisor(p).pods(WINDOW_S))
            for found in (pods, usage.cpu_cores, usage.memory_bytes):
                assert found.keys() == {pod}
            assert pods[pod].cpu_w == pytest.approx(20.0, rel=2 * NEAR)
            assert usage.cpu_cores[pod] == pytest.approx(2.0, rel=2 * NEAR)
            return True

        wait_for(only_the_good, PATIENCE_S, "pods of the good exporter are read", poll_s=INTERVAL_S)


# -- the server itself


def test_a_prometheus_that_is_killed_is_not_asked_again_until_it_may_be_back(prometheus: PrometheusServer) -> None:
    now_s = 0.0

    async def main() -> None:
        nonlocal now_s
        async with connect(prometheus.address, timeout_s=1.0, now_s=lambda: now_s) as client:
            assert await client.query("1") != []
            assert client.problem is None
            prometheus.process.kill()
            for _ in range(3):
                assert client.problem is None
                with pytest.raises(PrometheusUnavailableError):
                    await client.query("1")
            assert client.problem
            prometheus.start()
            with pytest.raises(PrometheusUnavailableError, match="request not sent"):
                await client.query("1")
            now_s += 31.0
            assert await client.query("1") != []
            assert client.problem is None

    prometheus.start([])
    asyncio.run(main())


def test_a_prometheus_that_answers_nothing_costs_its_timeout_and_no_more(prometheus: PrometheusServer) -> None:
    async def main() -> None:
        async with connect(prometheus.address, timeout_s=0.5) as client:
            with pytest.raises(PrometheusUnavailableError) as raised:
                await client.query("1")
            # A request that timed out is not sent again.
            assert isinstance(raised.value.__cause__, httpx2.TimeoutException)

    prometheus.start([])
    prometheus.process.pause()
    asyncio.run(main())


def test_a_wrong_query_is_no_reason_not_to_ask_others(lively: Site) -> None:
    async def main() -> None:
        async with connect(lively.server.address) as client:
            for _ in range(5):
                with pytest.raises(PrometheusError, match="parse error") as raised:
                    await client.query("sum(")
                assert not isinstance(raised.value, PrometheusUnavailableError)
            assert client.problem is None
            with pytest.raises(PrometheusError, match="expected a vector or a scalar, got a matrix"):
                await client.query("up[1m]")
            with pytest.raises(PrometheusError, match="expected a matrix, got a vector"):
                await client.query_samples("up")

    asyncio.run(main())


def test_samples_come_with_the_times_of_their_scrapes_and_ranges_with_their_steps(site: Site) -> None:
    def holds(histories: Sequence[History]) -> None:
        assert len(histories) == len(site.machines)
        for history in histories:
            times_s = [sample.time_s for sample in history.samples]
            steps_s = [after_s - before_s for before_s, after_s in pairwise(times_s)]
            assert steps_s == [pytest.approx(INTERVAL_S, abs=0.1)] * len(steps_s)

    # A busy machine scrapes late.
    histories = site.eventually(
        lambda p: p.query_samples('up{job="kepler"}[4s]'), holds, "samples as often as they are scraped"
    )
    end_s = histories[0].samples[-1].time_s
    (ranged,) = site.ask(lambda p: p.query_range("vector(7)", end_s - 4.0, end_s, 1.0))
    assert [sample.value for sample in ranged.samples] == [7.0] * 5


# bcrypt of "a long secret": the cheapest, to check it quickly.
HASH = "$2b$04$iHZz120sFy.eS.ko3sX/2OMolI1VTT2Vl.zBFNtt8Lwgr6KbYdHgW"


def test_who_asks_is_known_by_password_and_certificate(prometheus_program: Path, tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path / "authority")
    served = authority.issue("server", hosts=["127.0.0.1"])
    client = authority.issue("client")
    server = PrometheusServer(
        prometheus_program,
        tmp_path,
        web={
            "tls_server_config": {
                "cert_file": str(served.certificate),
                "key_file": str(served.key),
                "client_auth_type": "RequireAndVerifyClientCert",
                "client_ca_file": str(authority.certificate),
            },
            "basic_auth_users": {"joulie": HASH},
        },
    )
    password, wrong = tmp_path / "password", tmp_path / "wrong"
    password.write_text("a long secret\n")
    wrong.write_text("another secret")
    certificate = {"client_cert_file": client.certificate, "client_key_file": client.key}
    whole = {"username": "joulie", "password_file": password, "ca_file": authority.certificate, **certificate}

    async def asked(auth: PrometheusAuth) -> object:
        async with connect(server.address, auth, timeout_s=5.0) as prometheus:
            return await prometheus.query("vector(1)")

    server.process.start()
    try:
        wait_for(lambda: _answers(asked(PrometheusAuth(**whole))), PATIENCE_S, "the server answers who may ask")
        for missing in (
            {"password_file": wrong},
            {"client_cert_file": None, "client_key_file": None},
            {"ca_file": None},
        ):
            with pytest.raises(PrometheusError) as raised:
                asyncio.run(asked(PrometheusAuth(**whole | missing)))
            assert "secret" not in str(raised.value)
    finally:
        server.process.kill()


def _answers(question: Awaitable[object]) -> bool:
    try:
        return bool(asyncio.run(question))
    except PrometheusUnavailableError as error:
        raise AssertionError(str(error)) from error
