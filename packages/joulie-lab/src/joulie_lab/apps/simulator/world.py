"""The simulated world behind the HTTP API: nodes, what runs on them, the building around them.

Nothing here reads a clock or talks to a cluster: time comes in steps, pods and nodes as facts.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

import numpy as np

from joulie.domain.quantities import JOULES_PER_KWH, ZERO_CELSIUS_K, InvalidQuantityError
from joulie.domain.units import FloatArray
from joulie_lab.simulation.cooling_plant import CoolingOutput, CoolingPlant
from joulie_lab.simulation.job_response import IdleStates
from joulie_lab.simulation.live.facility import WEATHER_STEP_S, Weather
from joulie_lab.simulation.live.fleet import FleetLoad, LiveFleet, NodeSpec
from joulie_lab.simulation.live.jobs import RunningPod, Workload

_EVENTS_KEPT = 1000
_MIN_PLANT_W = 1000.0
_LONGEST_STEP_S = WEATHER_STEP_S
_SHORTEST_STEP_S = 1e-3
"""A step that ends with a job is no shorter: rates that fall meanwhile must not bring about ever shorter ones."""

ControlOutcome = Literal["applied", "blocked", "error"]


class UnknownNodeError(LookupError):
    """A node that is not simulated."""


@dataclass(frozen=True)
class Place:
    """Where a node stands: the values of its rack and cooling-zone labels."""

    rack: str | None = None
    zone: str | None = None


class Finished(NamedTuple):
    """A pod whose job is done.

    Attributes:
        key: of the pod.
        time_s: when, s of simulated time.
    """

    key: str
    time_s: float


@dataclass(frozen=True)
class ControlResult:
    """What became of a control request."""

    result: ControlOutcome
    message: str


class World:
    """All that is simulated.

    Attributes:
        time_s: simulated time since the start, s.
        workload: the pods that run.
        events: what happened last, newest at the end; bounded.
        cooling: of the last step.
        outdoor_k: of the last step, K.
    """

    def __init__(
        self,
        weather: Weather,
        plant_for: Callable[[float], CoolingPlant] | None,
        *,
        idle_states: IdleStates = IdleStates.ALL,
        gpu_model: str,
    ) -> None:
        """An empty world.

        Args:
            weather: temperature outdoors.
            plant_for: the cooling plant for so much power of all nodes at full load, W; asked again as nodes come and
                go. None without cooling.
            idle_states: which nodes enter deep idle states.
            gpu_model: GPU throughput model by name.
        """
        self.time_s = 0.0
        self.workload = Workload()
        self.events: deque[dict[str, Any]] = deque(maxlen=_EVENTS_KEPT)
        self._weather = weather
        self._plant_for = plant_for
        self._idle_states = idle_states
        self._gpu_model = gpu_model
        self._index: dict[str, int] = {}
        self._places: dict[str, Place] = {}
        self.outdoor_k = weather.outdoor_k(0.0)
        self.cooling = CoolingOutput(0.0, self.outdoor_k, math.inf)
        self._cooling_energy_j = 0.0
        self._gone_energy_j = 0.0
        self.fleet = self._fleet(())
        self._new_fleet = True
        self._plant = plant_for(_MIN_PLANT_W) if plant_for else None

    def set_nodes(self, nodes: Mapping[NodeSpec, Place]) -> None:
        """Simulate exactly these nodes; those that stay keep their history."""
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

        A job that is done in between leaves its node at that moment, so that results do not hang on the length of a
        step.

        Returns:
            The jobs that are done, in order; their pods no longer use anything.
        """
        until_s = self.time_s + dt_s
        done: list[Finished] = []
        while self.time_s < until_s:
            next_done_s = max(self.workload.next_done_s(self.fleet), _SHORTEST_STEP_S)
            done += self._step(min(until_s - self.time_s, _LONGEST_STEP_S, next_done_s))
        self.time_s = until_s
        return done

    def _step(self, dt_s: float) -> list[Finished]:
        self.outdoor_k = self._weather.outdoor_k(self.time_s)
        fleet, keys = self.fleet, list[str]()
        before_j = float(fleet.state.energy_j.sum())
        if fleet.specs:
            self._set_load()
            fleet.advance(dt_s, self.outdoor_k)
            keys = self.workload.advance(fleet, dt_s)
        if self._plant is not None:
            mean_w = (float(fleet.state.energy_j.sum()) - before_j) / dt_s
            self.cooling = self._plant.step(mean_w, self.outdoor_k, dt_s)
            self._cooling_energy_j += self.cooling.cooling_w * dt_s
        self.time_s += dt_s
        for key in keys:
            self.workload.remove(key)
        return [Finished(key, self.time_s) for key in keys]

    def _set_load(self) -> None:
        """Hand the fleet what runs now, where it is not what ran before: operating points are most of a step's work."""
        load, before = self.workload.load(self.fleet), self.fleet.load
        columns = [(getattr(load, item.name), getattr(before, item.name)) for item in fields(FleetLoad)]
        differs = [(now != then).reshape(len(now), -1).any(axis=1) for now, then in columns]
        changed = np.logical_or.reduce(differs) | self._new_fleet
        self._new_fleet = False
        nodes = np.flatnonzero(changed)
        self.fleet.set_load(FleetLoad(*(now[nodes] for now, _ in columns)), nodes)

    @property
    def node_names(self) -> Sequence[str]:
        """The simulated nodes in the order of the fleet's arrays."""
        return [spec.name for spec in self.fleet.specs]

    @property
    def it_energy_j(self) -> float:
        """Energy of all nodes since the start, those that are gone included, J."""
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
        """Total over IT power; None while nothing draws power."""
        return 1.0 + self.cooling.cooling_w / self.it_power_w if self.it_power_w > 0.0 else None

    def rack_power_w(self) -> dict[str, float]:
        """Power by rack, W."""
        return self._grouped(self.fleet.wall_w, {name: place.rack for name, place in self._places.items()})

    def zones(self) -> list[str]:
        """The cooling zones that nodes carry."""
        return sorted({place.zone for place in self._places.values() if place.zone is not None})

    def energy(self) -> dict[str, Any]:
        """Energy since the start, kWh, and power now: in all, for cooling, and by node that is there now."""
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
        """What a node's sensors say, as GET /telemetry/{node} gives it.

        Raises:
            UnknownNodeError: no such node.
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
                "capWattsPerGpu": float(state.gpu_cap_w[i]),
                "devices": [{"index": n, "powerWatts": power_w} for n, power_w in enumerate(devices_w)],
            }
        return telemetry

    def state(self, node: str) -> dict[str, Any]:
        """Telemetry and what lies behind it: identity, place, pods.

        Raises:
            UnknownNodeError: no such node.
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
        """Carry out a request of POST /control/{node}.

        Raises:
            UnknownNodeError: no such node.
        """
        i = self._place(node)
        try:
            outcome = self._control(i, action, fields)
        except (InvalidQuantityError, TypeError, ValueError) as error:
            outcome = ControlResult("error", str(error))
        self.note("control", node=node, action=action, result=outcome.result, message=outcome.message)
        return outcome

    def note(self, kind: str, **facts: Any) -> None:
        """Remember an event for /debug/events."""
        self.events.append({"simulatedSeconds": self.time_s, "kind": kind, **facts})

    def put_pod(self, pod: RunningPod) -> None:
        """A pod runs on a node."""
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
                limit_w = self.fleet.cap_gpus(i, _watts(fields, "capWattsPerGpu"))
                if limit_w is None:
                    return ControlResult("blocked", "the node has no GPUs")
                return ControlResult("applied", f"GPU limit {limit_w:g} W")
            case _:
                known = "rapl.set_power_cap_watts, dvfs.set_throttle_pct, gpu.set_power_cap_watts"
                return ControlResult("error", f"unknown action {action!r}; known: {known}")

    def _place(self, node: str) -> int:
        try:
            return self._index[node]
        except KeyError:
            raise UnknownNodeError(f"node {node!r} is not simulated") from None

    def _fleet(self, specs: Sequence[NodeSpec]) -> LiveFleet:
        return LiveFleet(specs, ambient_k=self.outdoor_k, idle_states=self._idle_states, gpu_model=self._gpu_model)

    def _grouped(self, values: FloatArray, group_of: Mapping[str, str | None]) -> dict[str, float]:
        totals: dict[str, float] = {}
        for name, i in self._index.items():
            group = group_of.get(name)
            if group is not None:
                totals[group] = totals.get(group, 0.0) + float(values[i])
        return totals


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _watts(fields: Mapping[str, Any], name: str) -> float | None:
    """A cap of a request: null lifts it, a missing one is an error."""
    if name not in fields:
        raise ValueError(f"{name} is missing")
    value = fields[name]
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ValueError(f"{name} must be a number of watts or null, got {value!r}")
    return value


def pods_by_node(pods: Iterable[RunningPod]) -> dict[str, int]:
    """How many pods run on each node."""
    counts: dict[str, int] = {}
    for pod in pods:
        counts[pod.node] = counts.get(pod.node, 0) + 1
    return counts


WORK_RATE_HELP = "Work that a running pod does in a second: GPU-seconds with GPUs, else core-seconds."


def work_rates(world: World) -> Iterator[tuple[dict[str, str], float]]:
    """The work of running pods in a second, by their labels."""
    for key, rate in world.workload.work_rates(world.fleet).items():
        namespace, _, name = key.partition("/")
        yield {"namespace": namespace, "pod": name}, rate
