"""Replay exporters: scripted machines, told of over HTTP in the words of the real exporters.

Names, help texts, labels and their order, number formats and time stamps are those of Kepler 0.7 and 0.11,
dcgm-exporter 3 and 4, cAdvisor in kubelet, and node_exporter 1.8; the values are scripts of our own. Counters advance
with the clock, by the power and the load that a test sets, so that it knows what an honest reader must find.
"""

import itertools
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

RAPL_PACKAGE_RANGE_J = 262143.328850
"""Where the energy counter of a package starts again at 0, on most Intel machines."""

Labels = Mapping[str, str]
Sample = tuple[Labels, float]
Render = Callable[[], str]


def _now_s() -> float:
    return time.time()  # noqa: TID251 - what scrapes are stamped with


class Counter:
    """A total that goes up by `rate` a second from now on."""

    def __init__(self, rate: float, *, start: float = 0.0, wraps_at: float = math.inf) -> None:
        self._rate = rate
        self._wraps_at = wraps_at
        self.restart(start)

    @property
    def rate(self) -> float:
        return self._rate

    @rate.setter
    def rate(self, rate: float) -> None:
        self.restart(self.read())
        self._rate = rate

    def restart(self, value: float = 0.0) -> None:
        """Go on from another value, as a program does that starts again."""
        self._value, self._since_s = value, _now_s()

    def read(self) -> float:
        return math.fmod(self._value + self._rate * (_now_s() - self._since_s), self._wraps_at)


class Zone:
    """Energy of a package or of its memory, as the kernel counts it and as Kepler does, idle power and work apart."""

    def __init__(self, idle_w: float, work_w: float, *, rapl_start_j: float = 1000.0) -> None:
        self.idle = Counter(idle_w, start=500.0)
        self.work = Counter(work_w, start=700.0)
        self.rapl = Counter(idle_w + work_w, start=rapl_start_j, wraps_at=RAPL_PACKAGE_RANGE_J)

    @property
    def power_w(self) -> float:
        return self.rapl.rate

    def draw(self, work_w: float) -> None:
        """Change the power of the work from now on."""
        self.work.rate = work_w
        self.rapl.rate = self.idle.rate + work_w

    def restart_kepler(self) -> None:
        """What Kepler counted is lost with its pod."""
        self.idle.restart()
        self.work.restart()


class Container:
    """A container: what it uses and the power that Kepler attributes to it, without idle power."""

    def __init__(
        self, name: str = "main", *, cores: float, memory_bytes: float = 2**30, cpu_w: float = 0.0, dram_w: float = 0.0,
        gpu_w: float = 0.0,
    ) -> None:  # fmt: skip
        self.name = name
        self.cpu = Counter(cores, start=60.0)
        self.memory_bytes = memory_bytes
        self.package = Counter(cpu_w, start=40.0)
        self.dram = Counter(dram_w, start=20.0)
        self.gpu = Counter(gpu_w, start=30.0)


_uids = itertools.count(1)


@dataclass
class ScriptedPod:
    """A pod of a machine."""

    namespace: str
    name: str
    containers: list[Container]
    uid: str = field(default_factory=lambda: f"7c57de98-0c20-4854-bfd1-{next(_uids):012x}")


@dataclass
class MigInstance:
    """A slice of a GPU."""

    profile: str
    instance_id: int
    engine_active: float
    dram_active: float
    holder: tuple[str, str] | None = None


@dataclass
class Gpu:
    """A GPU: whole, sliced (`mig`), or shared in turns by several `holders`.

    Attributes:
        dram_active: of DCGM's profiling fields; None where they are not collected.
    """

    uuid: str
    idle_w: float
    work_w: float
    util_pct: int = 0
    mem_copy_util_pct: int = 0
    dram_active: float | None = None
    holders: list[tuple[str, str]] = field(default_factory=list)
    mig: list[MigInstance] = field(default_factory=list)
    model: str = "NVIDIA H100 NVL"

    def __post_init__(self) -> None:
        self.idle = Counter(self.idle_w, start=5000.0)
        self.work = Counter(self.work_w, start=8000.0)

    @property
    def power_w(self) -> float:
        return self.idle.rate + self.work.rate


@dataclass
class Machine:
    """A node, as the exporters on it see it.

    Attributes:
        terminated: pods that ended lately, which Kepler goes on to tell of.
        psys: the whole platform, where the kernel measures it: packages and memory are part of it.
        has_mmio: whether the kernel tells of each package a second time, over memory-mapped registers.
    """

    name: str
    address: str
    packages: list[Zone]
    dram: list[Zone] = field(default_factory=list)
    gpus: list[Gpu] = field(default_factory=list)
    pods: list[ScriptedPod] = field(default_factory=list)
    terminated: list[ScriptedPod] = field(default_factory=list)
    system_cores: float = 0.5
    psys: Zone | None = None
    has_mmio: bool = False

    def __post_init__(self) -> None:
        self._system_cpu = Counter(self.system_cores, start=300.0)

    @property
    def cpu_w(self) -> float:
        return sum(zone.power_w for zone in self.packages)

    @property
    def dram_w(self) -> float:
        return sum(zone.power_w for zone in self.dram)

    @property
    def gpu_w(self) -> float:
        return sum(gpu.power_w for gpu in self.gpus)

    @property
    def busy_cores(self) -> float:
        return self.system_cores + sum(part.cpu.rate for pod in self.pods for part in pod.containers)

    def cpu_seconds(self) -> float:
        return self._system_cpu.read() + sum(part.cpu.read() for pod in self.pods for part in pod.containers)


# -- the text format


def go_float(value: float) -> str:
    """A number as Go's client library prints it."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    exact = Decimal(repr(float(value))).normalize()
    if exact and not -4 <= exact.adjusted() < 6:
        sign, digits, _ = exact.as_tuple()
        rest = "".join(map(str, digits[1:]))
        return f"{'-' * sign}{digits[0]}{'.' * bool(rest)}{rest}e{exact.adjusted():+03d}"
    return f"{exact:f}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") + '"'


def line(name: str, labels: Labels, value: str) -> str:
    """One sample."""
    inside = ",".join(f"{key}={_quoted(text)}" for key, text in labels.items())
    return f"{name}{{{inside}}} {value}"


def family(name: str, kind: str, told: str, samples: Iterable[Sample], *, stamp: str = "") -> Iterator[str]:
    """The lines of a metric; labels sorted, as Go's client library has them."""
    rows = list(samples)
    if rows:
        yield f"# HELP {name} {told}"
        yield f"# TYPE {name} {kind}"
        yield from (line(name, dict(sorted(labels.items())), go_float(value) + stamp) for labels, value in rows)


def _text(*families: Iterable[str]) -> str:
    return "\n".join([row for rows in families for row in rows] + [""])


# -- Kepler up to 0.9: joules of containers and nodes, idle and dynamic apart; the node's name is in `instance`


def kepler_old(machine: Machine) -> str:
    """What Kepler 0.7 says at /metrics."""

    def of_node(devices: Sequence[Zone] | Sequence[Gpu], source: str, share: float = 1.0) -> Iterator[Sample]:
        for index, device in enumerate(devices):
            for mode, counter in (("dynamic", device.work), ("idle", device.idle)):
                labels = {"instance": machine.name, "mode": mode, "package": str(index), "source": source}
                yield labels, share * counter.read()

    def of_containers(counter: Callable[[Container], Counter], source: str) -> Iterator[Sample]:
        parts = [
            ((f"{pod.uid}-{part.name}", part.name, pod.namespace, pod.name), counter(part).read())
            for pod in machine.pods
            for part in pod.containers
        ]
        for who, value in [*parts, (("system_processes", "system_processes", "system", "system_processes"), 12.5)]:
            names = dict(zip(("container_id", "container_name", "container_namespace", "pod_name"), who, strict=True))
            for mode, share in (("dynamic", 1.0), ("idle", 1.6)):
                yield {**names, "mode": mode, "source": source}, share * value

    def energy(scope: str, device: str, source: str, samples: Iterable[Sample]) -> Iterator[str]:
        told = f"Aggregated value in {device} value from {source}"
        return family(f"kepler_{scope}_{device}_joules_total", "counter", told, samples)

    rapl, nvml = "rapl-sysfs", "nvidia-nvml"
    built = {"arch": "amd64", "branch": "main", "os": "linux", "revision": "0000000", "version": "v0.7.12"}
    has_gpus = bool(machine.gpus)
    return _text(
        energy("container", "dram", rapl, of_containers(lambda part: part.dram, rapl)),
        energy("container", "gpu", nvml, of_containers(lambda part: part.gpu, nvml) if has_gpus else ()),
        energy("container", "package", rapl, of_containers(lambda part: part.package, rapl)),
        family("kepler_exporter_build_info", "gauge", "A metric with a constant '1' value.", [(built, 1.0)]),
        energy("node", "core", rapl, of_node(machine.packages, rapl, 0.8)),
        energy("node", "dram", rapl, of_node(machine.dram, rapl)),
        energy("node", "gpu", nvml, of_node(machine.gpus, nvml)),
        energy("node", "package", rapl, of_node(machine.packages, rapl)),
        energy("node", "platform", "acpi", of_node(machine.packages[:1], "acpi", 3.0)),
    )


# -- Kepler from 0.10 on: joules and watts by zone; the node's name is in `node_name`


def kepler_new(machine: Machine, *, aggregated: bool = True) -> str:
    """What Kepler 0.11 says at /metrics.

    Args:
        machine: what it tells of.
        aggregated: whether the zones of one name are one series; 0.10 has one for each, told apart by its path.
    """

    def of_node(value: Callable[[Zone], float]) -> list[Sample]:
        return list(_kepler_zones(machine, value, aggregated=aggregated))

    def of_gpus(value: Callable[[Gpu], float]) -> list[Sample]:
        labels = {"node_name": machine.name, "vendor": "nvidia"}
        return [
            ({**labels, "gpu": str(index), "gpu_uuid": gpu.uuid, "gpu_name": gpu.model}, value(gpu))
            for index, gpu in enumerate(machine.gpus)
        ]

    pod_gpus = [
        (_kepler_pod(machine, pod, "running"), sum(part.gpu.rate for part in pod.containers)) for pod in machine.pods
    ]
    return _text(
        _kepler("node", "cpu_active", "joules_total", of_node(lambda zone: zone.work.read())),
        _kepler("node", "cpu_active", "watts", of_node(lambda zone: zone.work.rate)),
        _kepler("node", "cpu_idle", "joules_total", of_node(lambda zone: zone.idle.read())),
        _kepler("node", "cpu_idle", "watts", of_node(lambda zone: zone.idle.rate)),
        _kepler("node", "cpu", "joules_total", of_node(lambda zone: zone.idle.read() + zone.work.read())),
        _kepler("node", "cpu", "watts", of_node(lambda zone: zone.power_w)),
        _kepler("node", "gpu_active", "watts", of_gpus(lambda gpu: gpu.work.rate)),
        _kepler("node", "gpu_idle", "watts", of_gpus(lambda gpu: gpu.idle.rate)),
        _kepler("node", "gpu", "joules_total", of_gpus(lambda gpu: gpu.idle.read() + gpu.work.read())),
        _kepler("node", "gpu", "watts", of_gpus(lambda gpu: gpu.power_w)),
        _kepler("pod", "cpu", "joules_total", _kepler_pods(machine, Counter.read)),
        _kepler("pod", "cpu", "watts", _kepler_pods(machine, lambda counter: counter.rate)),
        _kepler("pod", "gpu", "watts", [(labels, power_w) for labels, power_w in pod_gpus if power_w]),
    )


def _kepler(scope: str, what: str, unit: str, samples: Iterable[Sample]) -> Iterator[str]:
    device, _, state = what.partition("_")
    kind, quantity = ("gauge", "Power") if unit == "watts" else ("counter", "Energy")
    within = f" in {state} state" if state else ""
    told = f"{quantity} consumption of {device}{within} at {scope} level in {unit.removesuffix('_total')}"
    told = _GPU_TOLD.get(what, told) if scope == "node" else told
    return family(f"kepler_{scope}_{what}_{unit}", kind, told, samples)


_GPU_TOLD = {
    "gpu": "Total GPU power consumption in watts",
    "gpu_active": "GPU active power (total - idle) in watts",
    "gpu_idle": "GPU idle power (auto-detected minimum) in watts",
}


def _kepler_zones(machine: Machine, value: Callable[[Zone], float], *, aggregated: bool) -> Iterator[Sample]:
    psys = [machine.psys] if machine.psys else []
    for zone, sub, parts in (("package", "", machine.packages), ("dram", ":0", machine.dram), ("psys", "", psys)):
        labels = {"node_name": machine.name, "zone": zone}
        if aggregated and len(parts) > 1:
            yield {**labels, "path": f"aggregated-{zone}"}, sum(map(value, parts))
        else:
            for index, part in enumerate(parts):
                yield {**labels, "path": f"/host/sys/class/powercap/intel-rapl:{index}{sub}"}, value(part)


def _kepler_pod(machine: Machine, pod: ScriptedPod, state: str) -> dict[str, str]:
    who = {"pod_id": pod.uid, "pod_name": pod.name, "pod_namespace": pod.namespace}
    return {"node_name": machine.name, "state": state, **who}


def _kepler_pods(machine: Machine, value: Callable[[Counter], float]) -> Iterator[Sample]:
    for state, pods in (("running", machine.pods), ("terminated", machine.terminated)):
        for pod in pods:
            labels = _kepler_pod(machine, pod, state)
            yield {**labels, "zone": "package"}, sum(value(part.package) for part in pod.containers)
            if machine.dram:
                yield {**labels, "zone": "dram"}, sum(value(part.dram) for part in pod.containers)


# -- node_exporter: the kernel's counters as they are, wraps included


def node_exporter(machine: Machine) -> str:
    """What node_exporter's rapl collector says at /metrics."""

    def zones(parts: Sequence[Zone], sub: str, *, mmio: bool = False) -> Iterator[Sample]:
        for index, zone in enumerate(parts):
            for driver in ("intel-rapl", "intel-rapl-mmio")[: 2 if mmio else 1]:
                path = f"/host/sys/class/powercap/{driver}:{index}{sub}"
                yield {"index": str(index), "path": path}, zone.rapl.read()

    def rapl(zone: str, samples: Iterable[Sample]) -> Iterator[str]:
        return family(f"node_rapl_{zone}_joules_total", "counter", f"Current RAPL {zone} value in joules", samples)

    uname = {
        "domainname": "(none)",
        "machine": "x86_64",
        "nodename": machine.name,
        "release": "6.1.0-31-amd64",
        "sysname": "Linux",
        "version": "#1 SMP PREEMPT_DYNAMIC",
    }
    return _text(
        rapl("dram", zones(machine.dram, ":0")),
        rapl("package", zones(machine.packages, "", mmio=machine.has_mmio)),
        rapl("psys", zones([machine.psys] if machine.psys else [], "")),
        family("node_uname_info", "gauge", _UNAME_TOLD, [(uname, 1.0)]),
    )


_UNAME_TOLD = "Labeled system information as provided by the uname system call."


# -- dcgm-exporter


def dcgm(machine: Machine) -> str:
    """What dcgm-exporter says at /metrics, with its mapping of devices to pods on.

    Of a GPU in MIG mode each instance repeats what is measured of the whole device, and the utilisation has no value.
    """
    entities = [(index, gpu, part) for index, gpu in enumerate(machine.gpus) for part in gpu.mig or [None]]

    def rows(value: Callable[[Gpu, MigInstance | None], str | None]) -> Iterator[tuple[Labels, str]]:
        for index, gpu, part in entities:
            if (text := value(gpu, part)) is None:
                continue
            labels = {
                "gpu": str(index),
                "UUID": gpu.uuid,
                "pci_bus_id": f"00000000:{0x17 + index:02X}:00.0",
                "device": f"nvidia{index}",
                "modelName": gpu.model,
            }
            if part is not None:
                labels |= {"GPU_I_PROFILE": part.profile, "GPU_I_ID": str(part.instance_id)}
            labels |= {"Hostname": machine.name, "DCGM_FI_DRIVER_VERSION": "550.90.07"}
            holders = [part.holder] if part is not None and part.holder else gpu.holders if part is None else []
            if not holders:
                yield labels, text
            for vgpu, (namespace, pod) in enumerate(holders):
                shared = {"vgpu": str(vgpu)} if len(holders) > 1 else {}
                yield {**labels, "container": "main", "namespace": namespace, "pod": pod, **shared}, text

    def profiled(
        of_gpu: Callable[[Gpu], float | None], of_part: Callable[[MigInstance], float]
    ) -> Iterator[tuple[Labels, str]]:
        def value(gpu: Gpu, part: MigInstance | None) -> str | None:
            found = of_gpu(gpu) if part is None else of_part(part)
            return None if found is None else f"{found:f}"

        return rows(value)

    def shown(name: str, kind: str, told: str, samples: Iterator[tuple[Labels, str]]) -> Iterator[str]:
        yield f"# HELP DCGM_FI_{name} {told}"
        yield f"# TYPE DCGM_FI_{name} {kind}"
        yield from (line(f"DCGM_FI_{name}", labels, text) for labels, text in samples)

    def energy_mj(gpu: Gpu, part: MigInstance | None) -> str:
        return str(int(1000 * (gpu.idle.read() + gpu.work.read())))

    def unless_sliced(value: Callable[[Gpu], int]) -> Iterator[tuple[Labels, str]]:
        return rows(lambda gpu, part: str(value(gpu)) if part is None else None)

    engine = profiled(
        lambda gpu: None if gpu.dram_active is None else gpu.util_pct / 100, lambda part: part.engine_active
    )
    memory = profiled(lambda gpu: gpu.dram_active, lambda part: part.dram_active)
    return _text(
        shown("DEV_POWER_USAGE", "gauge", "Power draw (in W).", rows(lambda gpu, part: f"{gpu.power_w:f}")),
        shown(
            "DEV_TOTAL_ENERGY_CONSUMPTION", "counter", "Total energy consumption since boot (in mJ).", rows(energy_mj)
        ),
        shown("DEV_GPU_UTIL", "gauge", "GPU utilization (in %).", unless_sliced(lambda gpu: gpu.util_pct)),
        shown(
            "DEV_MEM_COPY_UTIL", "gauge", "Memory utilization (in %).", unless_sliced(lambda gpu: gpu.mem_copy_util_pct)
        ),
        shown("DEV_FB_USED", "gauge", "Framebuffer memory used (in MiB).", rows(lambda gpu, part: "4096")),
        shown("PROF_GR_ENGINE_ACTIVE", "gauge", "Ratio of time the graphics engine is active.", engine),
        shown("PROF_DRAM_ACTIVE", "gauge", _DRAM_ACTIVE_TOLD, memory),
    )


_DRAM_ACTIVE_TOLD = "Ratio of cycles the device memory interface is active sending or receiving data."


# -- cAdvisor, as kubelet has it: with time stamps of its own, and with what the cgroups above a container add up to


def cadvisor(machine: Machine, *, old_labels: bool = False) -> str:
    """What kubelet says at /metrics/cadvisor.

    Args:
        machine: what it tells of.
        old_labels: `pod_name` and `container_name`, as before Kubernetes 1.16.
    """
    cpu, memory = list[Sample](), list[Sample]()

    def add(id: str, seconds: float, held_bytes: float, **who: str) -> None:
        labels = {"container": "", "id": id, "image": "", "name": "", "namespace": "", "pod": "", **who}
        if old_labels:
            labels["container_name"], labels["pod_name"] = labels.pop("container"), labels.pop("pod")
        cpu.append(({**labels, "cpu": "total"}, seconds))
        memory.append((labels, held_bytes))

    of_pods_s = 0.0
    for pod in machine.pods:
        owner = {"namespace": pod.namespace, "pod": pod.name}
        slice_id = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{pod.uid.replace('-', '_')}.slice"
        held_bytes = sum(part.memory_bytes for part in pod.containers)
        pod_s = sum(part.cpu.read() for part in pod.containers) + _PAUSE_CPU_S
        of_pods_s += pod_s
        add(slice_id, pod_s, held_bytes + _PAUSE_BYTES, **owner)
        pause = {"container": "POD"} if old_labels else {}
        scope = f"{slice_id}/cri-containerd-{pod.uid}"
        image = "registry.k8s.io/pause:3.9"
        add(f"{scope}-0.scope", _PAUSE_CPU_S, _PAUSE_BYTES, name=f"{pod.uid}-0", image=image, **pause, **owner)
        for index, part in enumerate(pod.containers, 1):
            who = {"container": part.name, "name": f"{pod.uid}-{index}", "image": "docker.io/library/work:1", **owner}
            add(f"{scope}-{index}.scope", part.cpu.read(), part.memory_bytes, **who)
    add("/", machine.cpu_seconds() + _PAUSE_CPU_S * len(machine.pods), 64 * 2**30)
    add("/kubepods.slice", of_pods_s, 32 * 2**30)
    add("/system.slice/kubelet.service", 0.4 * machine.cpu_seconds(), 2**28)
    stamp = f" {int(_now_s() * 1000)}"
    return _text(
        family(
            "container_cpu_usage_seconds_total", "counter", "Cumulative cpu time consumed in seconds.", cpu, stamp=stamp
        ),
        family("container_memory_working_set_bytes", "gauge", "Current working set in bytes.", memory, stamp=stamp),
    )


_PAUSE_CPU_S = 0.03
_PAUSE_BYTES = 520192.0


# -- over HTTP


class Exporters:
    """All exporters of a cluster on one port, told apart by path; use it in a `with`."""

    def __init__(self) -> None:
        self.pages: dict[str, Render] = {}
        """What is said at each path; other paths are not found. Change it at will."""
        pages = self.pages

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                render = pages.get(self.path)
                body = b"" if render is None else render().encode()
                self.send_response(404 if render is None else 200)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 64

            def handle_error(self, *args: Any) -> None:
                pass  # a Prometheus that is killed breaks off

        self._server = Server(("127.0.0.1", 0), Handler)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def job(self, name: str, targets: Mapping[str, Labels], *, honor_labels: bool = False) -> dict[str, Any]:
        """A scrape configuration of Prometheus: labels of the target by path."""
        return {
            "job_name": name,
            "honor_labels": honor_labels,
            "static_configs": [
                {"targets": [self.address], "labels": {**labels, "__metrics_path__": path}}
                for path, labels in targets.items()
            ],
        }


def install(
    exporters: Exporters,
    machines: Sequence[Machine],
    *,
    kepler: Callable[[Machine], str] | None = kepler_new,
    prefix: str = "",
) -> list[dict[str, Any]]:
    """Serve every exporter of some machines, and return Prometheus' jobs with the labels that the charts give them.

    Those are kube-prometheus-stack's for kubelet and node_exporter, the GPU operator's for DCGM and Kepler's own. Where
    a chart does not set `honorLabels`, the exporter's own `pod`, `namespace` and `instance` become `exported_...`.

    Args:
        exporters: serves them at PREFIX/MACHINE/JOB.
        machines: the nodes of a cluster.
        kepler: which Kepler they have; None for none.
        prefix: tells clusters on the same port apart.
    """
    jobs: dict[str, dict[str, Labels]] = {"kubelet": {}, "node-exporter": {}, "nvidia-dcgm-exporter": {}, "kepler": {}}

    def serve(job: str, machine: Machine, render: Render, namespace: str, **labels: str) -> None:
        path = f"{prefix}/{machine.name}/{job}"
        exporters.pages[path] = render
        pod = {} if job == "kubelet" else {"pod": f"{job}-{machine.name[-5:]}", "container": job}
        jobs[job][path] = {"namespace": namespace, "service": job, **pod, **labels}

    for machine in machines:
        # Late binding is a trap of its own: each page shall tell of its machine.
        def page(render: Callable[[Machine], str], machine: Machine = machine) -> Render:
            return lambda: render(machine)

        serve("kubelet", machine, page(cadvisor), "kube-system", node=machine.name, instance=f"{machine.address}:10250",
              endpoint="https-metrics", metrics_path="/metrics/cadvisor")  # fmt: skip
        serve("node-exporter", machine, page(node_exporter), "monitoring", instance=f"{machine.address}:9100",
              endpoint="http-metrics")  # fmt: skip
        if machine.gpus:
            serve("nvidia-dcgm-exporter", machine, page(dcgm), "gpu-operator", instance=f"{machine.address}:9400",
                  endpoint="gpu-metrics")  # fmt: skip
        if kepler is not None:
            serve("kepler", machine, page(kepler), "kepler", instance=machine.name, endpoint="http")
    return [exporters.job(name, targets, honor_labels=name == "kubelet") for name, targets in jobs.items() if targets]
