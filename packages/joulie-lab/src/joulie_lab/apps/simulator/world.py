"""The simulated world behind the HTTP API: nodes, the pods on them, and the facility around them.

Nothing here reads a clock or accesses a cluster: callers pass in time steps, pods and nodes.
"""

from __future__ import annotations

import math
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

import numpy as np

from joulie.domain.quantities import JOULES_PER_KWH, ZERO_CELSIUS_K, InvalidQuantityError
from joulie.domain.units import FloatArray, positive
from joulie_lab.apps.simulator.demand import DemandPlay
from joulie_lab.simulation.cooling_plant import CoolingOutput, CoolingPlant
from joulie_lab.simulation.job_response import IdleStates
from joulie_lab.simulation.live.facility import WEATHER_STEP_S, Weather
from joulie_lab.simulation.live.fleet import LiveFleet
from joulie_lab.simulation.live.jobs import RunningPod, Workload
from joulie_lab.simulation.live.measured_jobs import MeasuredJob
from joulie_lab.simulation.live.nodes import FleetLoad, NodeSpec

_EVENTS_KEPT = 1000
_MIN_PLANT_W = 1000.0
_LONGEST_STEP_S = WEATHER_STEP_S
_INSTANT_S = 1e-9
_SHORTEST_STEP_S = 1e-3
"""Minimum length of a step that ends with a job's completion, s: decreasing rates must not cause ever shorter steps."""

ControlOutcome = Literal["applied", "blocked", "error"]


class UnknownNodeError(LookupError):
    """A node that is not simulated."""


@dataclass(frozen=True)
class Place:
    """Location of a node: the values of its rack and cooling-zone labels."""

    rack: str | None = None
    zone: str | None = None


class Finished(NamedTuple):
    """A pod that completed its job.

    Attributes:
        key: pod key.
        time_s: simulated time of the completion, s.
    """

    key: str
    time_s: float


@dataclass(frozen=True)
class ControlResult:
    """Result of a control request."""

    result: ControlOutcome
    message: str


class World:
    """The simulated nodes, workload and facility.

    Attributes:
        time_s: simulated time since the start, s.
        workload: running pods.
        events: recent events, newest last; bounded.
        cooling: state of the cooling plant after the last step.
        outdoor_k: outdoor temperature in the last step, K.
        demand: demand that replaces that of pods once all of its nodes exist; None for none.
    """

    def __init__(
        self,
        weather: Weather,
        plant_for: Callable[[float], CoolingPlant] | None,
        *,
        idle_states: IdleStates = IdleStates.ALL,
        gpu_model: str,
        seed: int | None = None,
    ) -> None:
        """Create a world without nodes.

        Args:
            weather: outdoor temperature.
            plant_for: creates the cooling plant for a given power of all nodes at full load, W; called again when the
                set of nodes changes. None for no cooling.
            idle_states: nodes that enter deep idle states.
            gpu_model: name of the GPU throughput model.
            seed: draws how jobs on each GPU model respond; None for typical GPUs.
        """
        self.time_s = 0.0
        self.workload = Workload()
        self.events: deque[dict[str, Any]] = deque(maxlen=_EVENTS_KEPT)
        self._weather = weather
        self._plant_for = plant_for
        self._idle_states = idle_states
        self._gpu_model = gpu_model
        self._seed = seed
        self._index: dict[str, int] = {}
        self._places: dict[str, Place] = {}
        self.outdoor_k = weather.outdoor_k(0.0)
        self.cooling = CoolingOutput(0.0, self.outdoor_k, math.inf)
        self._cooling_energy_j = 0.0
        self._gone_energy_j = 0.0
        self.fleet = self._fleet(())
        self._new_fleet = True
        self._gpu_jobs: dict[tuple[int, int], MeasuredJob] = {}
        self.demand: DemandPlay | None = None
        self._plant = plant_for(_MIN_PLANT_W) if plant_for else None

    def set_nodes(self, nodes: Mapping[NodeSpec, Place]) -> None:
        """Set the simulated nodes; nodes that stay keep their state."""
        specs = sorted(nodes, key=lambda spec: spec.name)
        self._places = {spec.name: place for spec, place in nodes.items()}
        if specs == list(self.fleet.specs):
            return
        staying = set(specs)
        for index, spec in enumerate(self.fleet.specs):
            if spec not in staying:
                self._gone_energy_j += float(self.fleet.state.energy_j[index])
        fleet = self._fleet(specs)
        fleet.adopt(self.fleet)
        self.fleet = fleet
        self._new_fleet = True
        self._index = {spec.name: index for index, spec in enumerate(specs)}
        self._plant = self._plant_for(max(fleet.peak_w, _MIN_PLANT_W)) if self._plant_for else None

    def step(self, dt_s: float) -> list[Finished]:
        """Advance everything by `dt_s` of simulated time.

        A job that completes in between leaves its node at that moment, so that results do not depend on the step
        length.

        Returns:
            The pods whose jobs completed, in order; they no longer use resources.
        """
        until_s = self.time_s + dt_s
        done: list[Finished] = []
        while self.time_s < until_s:
            next_done_s = max(self.workload.next_done_s(self.fleet), _SHORTEST_STEP_S)
            dt_s = min(until_s - self.time_s, _LONGEST_STEP_S, next_done_s)
            if self._plays:
                dt_s = min(dt_s, math.floor(self.time_s + _INSTANT_S) + 1.0 - self.time_s)
            done += self._step(dt_s)
        self.time_s = until_s
        return done

    def _step(self, dt_s: float) -> list[Finished]:
        self.outdoor_k = self._weather.outdoor_k(self.time_s)
        fleet, keys = self.fleet, list[str]()
        before_j = float(fleet.state.energy_j.sum())
        if fleet.specs:
            self._set_load()
            fleet.advance(dt_s, self.outdoor_k)
            if self.demand is not None and self._plays:
                self.demand.record(fleet, self._index, self.time_s, self.time_s + dt_s)
            for (node, device), job in self._gpu_jobs.items():
                job.did(dt_s, float(fleet.gpu_device_w[node, device]), float(fleet.mean_gpu_throughput[node, device]))
            keys = self.workload.advance(fleet, dt_s)
        if self._plant is not None:
            mean_w = (float(fleet.state.energy_j.sum()) - before_j) / dt_s
            self.cooling = self._plant.step(mean_w, self.outdoor_k, dt_s)
            self._cooling_energy_j += self.cooling.cooling_w * dt_s
        self.time_s += dt_s
        for key in keys:
            self.workload.remove(key)
        return [Finished(key, self.time_s) for key in keys]

    @property
    def _plays(self) -> bool:
        return self.demand is not None and all(name in self._index for name in self.demand.demand.nodes)

    def readable(self, node: str) -> bool:
        """Whether a node's telemetry can be read now."""
        return self.demand is None or not self.demand.loses(node, self.time_s)

    def _set_load(self) -> None:
        """Update the fleet's load if the running pods changed: computing operating points is most of a step's cost."""
        load, before = self.workload.load(self.fleet), self.fleet.load
        if self.demand is not None and self._plays:
            load = self.demand.load(load, self._index, self.time_s)
        columns = [(getattr(load, item.name), getattr(before, item.name)) for item in fields(FleetLoad)]
        differs = [(now != then).reshape(len(now), -1).any(axis=1) for now, then in columns]
        changed = np.logical_or.reduce(differs) | self._new_fleet
        self._new_fleet = False
        self._gpu_jobs = {(node, device): job for _, node, device, job in self.workload.measured()}
        for (node, _), job in self._gpu_jobs.items():
            job.at(job.account.time_s)
            changed[node] = True
        self.fleet.gpu_jobs = self._gpu_jobs
        nodes = np.flatnonzero(changed)
        self.fleet.set_load(FleetLoad(*(now[nodes] for now, _ in columns)), nodes)

    @property
    def node_names(self) -> Sequence[str]:
        """The simulated nodes in the order of the fleet's arrays."""
        return [spec.name for spec in self.fleet.specs]

    @property
    def it_energy_j(self) -> float:
        """Energy of all nodes since the start, including removed nodes, J."""
        return float(self.fleet.state.energy_j.sum()) + self._gone_energy_j

    @property
    def cooling_energy_j(self) -> float:
        """Energy of the cooling plant since the start, J."""
        return self._cooling_energy_j

    @property
    def it_power_w(self) -> float:
        """Power of all nodes, W."""
        return float(self.fleet.wall_w.sum())

    @property
    def pue(self) -> float | None:
        """Total power divided by IT power; None if IT power is 0."""
        return 1.0 + self.cooling.cooling_w / self.it_power_w if self.it_power_w > 0.0 else None

    def rack_power_w(self) -> dict[str, float]:
        """Power by rack, W."""
        return self._grouped(self.fleet.wall_w, {name: place.rack for name, place in self._places.items()})

    def zones(self) -> list[str]:
        """The cooling zones of the nodes."""
        return sorted({place.zone for place in self._places.values() if place.zone is not None})

    def energy(self) -> dict[str, Any]:
        """Energy since the start, kWh, and current power: total, for cooling, and by current node."""
        by_node = {name: float(self.fleet.state.energy_j[i]) / JOULES_PER_KWH for name, i in self._index.items()}
        return {
            "simulatedSeconds": self.time_s,
            "itPowerW": self.it_power_w,
            "coolingPowerW": self.cooling.cooling_w,
            "itKwh": self.it_energy_j / JOULES_PER_KWH,
            "coolingKwh": self.cooling_energy_j / JOULES_PER_KWH,
            "nodesKwh": by_node,
        }

    def telemetry(self, node: str) -> dict[str, Any]:
        """Sensor readings of a node, as returned by GET /telemetry/{node}.

        Raises:
            UnknownNodeError: the node is not simulated.
        """
        i = self._place(node)
        fleet, state, spec = self.fleet, self.fleet.state, self.fleet.specs[i]
        telemetry: dict[str, Any] = {
            "node": node,
            "simulatedSeconds": self.time_s,
            "packagePowerWatts": float(state.package_mean_w[i]),
            "instantPackagePowerWatts": float(state.package_w[i]),
            "nodePowerWatts": float(fleet.wall_w[i]),
            "cpu": {
                "packagePowerWatts": float(state.package_mean_w[i]),
                "instantPowerWatts": float(state.package_w[i]),
                "utilization": float(fleet.load.cpu_util[i]),
                "memoryIntensity": float(fleet.load.memory_intensity[i]),
                "ioIntensity": float(fleet.load.io_intensity[i]),
                "freqScale": float(fleet.frequency[i]),
                "temperatureC": float(state.temperature_k[i]) - ZERO_CELSIUS_K,
                "saturated": bool(fleet.saturated[i]),
                "capWattsPerPackage": _finite(state.cpu_cap_w[i] / spec.sockets),
                "capRange": fleet.cap_range_w(i),
            },
        }
        if spec.gpu is not None:
            busy, devices_w = fleet.load.gpu_busy[i], fleet.gpu_device_w[i, : spec.gpus].tolist()
            telemetry["gpu"] = {
                "powerWattsTotal": float(state.gpu_w[i]),
                "avgPowerWattsTotal": float(state.gpu_mean_w[i]),
                "utilization": float(fleet.load.gpu_util[i, : spec.gpus].mean()),
                "memoryIntensity": float(fleet.load.gpu_memory_share[i].sum() / max(1, np.count_nonzero(busy))),
                "capWattsPerGpu": float(state.gpu_cap_w[i, : spec.gpus].min()),
                "devices": [
                    {
                        "index": n,
                        "uuid": gpu_uuid(node, n),
                        "powerWatts": power_w,
                        "limitWatts": float(state.gpu_cap_w[i, n]),
                        "defaultLimitWatts": spec.gpu.default_w,
                        "minLimitWatts": spec.gpu.cap_range.min_w,
                    }
                    for n, power_w in enumerate(devices_w)
                ],
            }
        return telemetry

    def state(self, node: str) -> dict[str, Any]:
        """Telemetry of a node and the state behind it: identity, location and pods.

        Raises:
            UnknownNodeError: the node is not simulated.
        """
        spec = self.fleet.specs[self._place(node)]
        place = self._places[node]
        return self.telemetry(node) | {
            "hardware": {
                "cpuModel": spec.cpu.key,
                "sockets": spec.sockets,
                "cores": spec.cores,
                "gpuModel": spec.gpu.key if spec.gpu else None,
                "gpus": spec.gpus,
            },
            "rack": place.rack,
            "coolingZone": place.zone,
            "pods": sorted(pod.key for pod in self.workload.pods.values() if pod.node == node),
        }

    def control(self, node: str, action: str, fields: Mapping[str, Any]) -> ControlResult:
        """Execute a request of POST /control/{node}.

        Raises:
            UnknownNodeError: the node is not simulated.
        """
        i = self._place(node)
        try:
            outcome = self._control(i, action, fields)
        except (InvalidQuantityError, TypeError, ValueError) as error:
            outcome = ControlResult("error", str(error))
        self.note("control", node=node, action=action, result=outcome.result, message=outcome.message)
        return outcome

    def note(self, kind: str, **facts: Any) -> None:
        """Record an event for /debug/events."""
        self.events.append({"simulatedSeconds": self.time_s, "kind": kind, **facts})

    def put_pod(self, pod: RunningPod) -> None:
        """Add a running pod to its node."""
        self.workload.put(pod)

    def _control(self, i: int, action: str, fields: Mapping[str, Any]) -> ControlResult:
        match action:
            case "rapl.set_power_cap_watts":
                cap_w = self.fleet.cap_cpu(i, _watts(fields, "capWatts"))
                text = "uncapped" if cap_w is None else f"package cap {cap_w:g} W"
                return ControlResult("applied", text)
            case "dvfs.set_throttle_pct":
                return ControlResult("applied", f"throttle {self.fleet.throttle_cpu(i, fields['throttlePct']):g} %")
            case "gpu.set_power_cap_watts":
                by_device = self._by_device(i, fields)
                limit_w = self.fleet.cap_gpus(i, _watts(fields, "capWattsPerGpu"))
                if limit_w is None:
                    return ControlResult("blocked", "the node has no GPUs")
                for device, own_w in by_device.items():
                    self.fleet.cap_gpus(i, min(limit_w, own_w), device)
                return ControlResult("applied", f"GPU limit {limit_w:g} W")
            case _:
                known = "rapl.set_power_cap_watts, dvfs.set_throttle_pct, gpu.set_power_cap_watts"
                return ControlResult("error", f"unknown action {action!r}; known: {known}")

    def _by_device(self, i: int, fields: Mapping[str, Any]) -> Mapping[int, float]:
        """Limits of single GPUs in a request, W, by their index on the node."""
        spec, by_gpu = self.fleet.specs[i], fields.get("capWattsByGpu", {})
        devices = {gpu_uuid(spec.name, n): n for n in range(spec.gpus)}
        if unknown := sorted(by_gpu.keys() - devices.keys()):
            raise ValueError(f"capWattsByGpu: node {spec.name} has no GPU {', '.join(unknown)}")
        return {devices[gpu]: float(positive(gpu, watts)) for gpu, watts in by_gpu.items()}

    def gpu_jobs(self) -> list[dict[str, Any]]:
        """Pods with a job of a sweep: what each did, and what the same would have taken without a limit."""
        fleet = self.fleet
        return [
            {
                "pod": pod.key,
                "node": pod.node,
                "uuid": gpu_uuid(pod.node, device),
                "job": job.name,
                "phase": job.phase,
                "limitWatts": float(fleet.state.gpu_cap_w[node, device]),
                "powerWatts": float(fleet.gpu_device_w[node, device]),
                "throughput": float(fleet.gpu_throughput[node, device]),
                "timeSeconds": job.account.time_s,
                "energyJoules": job.account.energy_j,
                "freeTimeSeconds": job.account.free_time_s,
                "freeEnergyJoules": job.account.free_energy_j,
                "work": job.account.work,
            }
            for pod, node, device, job in self.workload.measured()
        ]

    def held_gpus(self) -> Iterator[tuple[dict[str, str], float, float]]:
        """GPUs of these pods: labels as dcgm-exporter writes them, power in W, and work done so far."""
        for pod, node, device, job in self.workload.measured():
            gpu = self.fleet.specs[node].gpu
            namespace, _, name = pod.key.partition("/")
            labels = {
                "UUID": gpu_uuid(pod.node, device),
                "gpu": str(device),
                "Hostname": pod.node,
                "modelName": gpu.key if gpu else "",
                "namespace": namespace,
                "pod": name,
            }
            yield labels, float(self.fleet.gpu_device_w[node, device]), job.account.work

    def _place(self, node: str) -> int:
        try:
            return self._index[node]
        except KeyError:
            raise UnknownNodeError(f"node {node!r} is not simulated") from None

    def _fleet(self, specs: Sequence[NodeSpec]) -> LiveFleet:
        return LiveFleet(
            specs,
            ambient_k=self.outdoor_k,
            idle_states=self._idle_states,
            gpu_model=self._gpu_model,
            seed=self._seed,
        )

    def _grouped(self, values: FloatArray, group_of: Mapping[str, str | None]) -> dict[str, float]:
        totals: dict[str, float] = {}
        for name, i in self._index.items():
            group = group_of.get(name)
            if group is not None:
                totals[group] = totals.get(group, 0.0) + float(values[i])
        return totals


def gpu_uuid(node: str, index: int) -> str:
    """UUID of a simulated GPU, the same in every run."""
    return f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{index}.{node}')}"


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _watts(fields: Mapping[str, Any], name: str) -> float | None:
    """The cap in a request: null removes the cap, a missing value is an error."""
    if name not in fields:
        raise ValueError(f"{name} is missing")
    value = fields[name]
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ValueError(f"{name} must be a number of watts or null, got {value!r}")
    return value


def pods_by_node(pods: Iterable[RunningPod]) -> dict[str, int]:
    """Number of running pods per node."""
    counts: dict[str, int] = {}
    for pod in pods:
        counts[pod.node] = counts.get(pod.node, 0) + 1
    return counts


WORK_RATE_HELP = "Work rate of a running pod, work per second: GPU-seconds with GPUs, else core-seconds."


def work_rates(world: World) -> Iterator[tuple[dict[str, str], float]]:
    """Work rates of the running pods, with their labels."""
    for key, rate in world.workload.work_rates(world.fleet).items():
        namespace, _, name = key.partition("/")
        yield {"namespace": namespace, "pod": name}, rate
