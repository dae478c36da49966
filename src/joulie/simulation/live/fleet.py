"""The physics of simulated nodes under the load of the moment, as arrays over nodes.

Source of all formulas: spec, simulator physics; they are those of `joulie.domain.power`, joined by first-order lags.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from joulie.domain.hardware import CpuModel, GpuModel
from joulie.domain.power.cpu import FREQUENCY_EXPONENT, CpuPower, IdleStates, activity_factor
from joulie.domain.power.dynamics import lagged, steady_temperature_k, thermal_throttle
from joulie.domain.power.gpu import DEEP_IDLE_SHARE, ThroughputModel, operate_gpu, throughput_model
from joulie.domain.units import ZERO_CELSIUS_K, BoolArray, FloatArray, IntArray, finite, non_negative, positive

UNCAPPED_TDPS = 4.0
"""What a lifted cap tends to, as a multiple of the TDP: above any draw, and finite, so that it can lag."""
CAP_FLOOR_SHARE = 0.2
"""Smallest package cap that a simulated CPU accepts, as a share of its TDP (assumed: RAPL takes far less than cTDP)."""


@dataclass(frozen=True)
class Dynamics:
    """Time constants and thermal limits of simulated nodes; all of them assumed.

    Attributes:
        cpu_cap_tau_s: lag of a CPU cap, s.
        gpu_cap_tau_s: lag of a GPU power limit, s.
        dvfs_tau_s: lag of a frequency limit, s.
        cpu_window_s: averaging window of CPU telemetry, s.
        gpu_window_s: averaging window of GPU telemetry, s; NVML averages over a second on many cards.
        thermal_tau_s: time constant of the packages' temperature, s.
        rise_at_tdp_k: rise above ambient of a package at its TDP, K.
        throttle_start_k: temperature at which the clock begins to fall, K.
        throttle_full_k: temperature at which it has fallen to `throttle_floor`, K.
        throttle_floor: lowest clock of the thermal throttle, as a share of the highest.
    """

    cpu_cap_tau_s: float = 1.0
    gpu_cap_tau_s: float = 0.5
    dvfs_tau_s: float = 0.5
    cpu_window_s: float = 2.0
    gpu_window_s: float = 1.0
    thermal_tau_s: float = 30.0
    rise_at_tdp_k: float = 50.0
    throttle_start_k: float = ZERO_CELSIUS_K + 90.0
    throttle_full_k: float = ZERO_CELSIUS_K + 100.0
    throttle_floor: float = 0.5

    def __post_init__(self) -> None:
        for item in fields(self):
            non_negative(item.name, getattr(self, item.name))
        positive("rise_at_tdp_k", self.rise_at_tdp_k)
        positive("throttle_full_k - throttle_start_k", self.throttle_full_k - self.throttle_start_k)


@dataclass(frozen=True)
class NodeSpec:
    """The hardware of one simulated node.

    Attributes:
        name: node name.
        cpu: CPU model.
        sockets: CPUs.
        cores: cores that pods can request.
        gpu: GPU model, None without GPUs.
        gpus: GPUs.
    """

    name: str
    cpu: CpuModel
    sockets: int
    cores: float
    gpu: GpuModel | None = None
    gpus: int = 0

    def __post_init__(self) -> None:
        positive("sockets", self.sockets)
        positive("cores", self.cores)
        if (self.gpu is None) != (self.gpus == 0):
            raise ValueError(f"node {self.name}: a GPU model and a GPU count belong together")


@dataclass(frozen=True, eq=False)
class FleetLoad:
    """What runs on the nodes, arrays of shape ``(n_nodes,)``.

    Attributes:
        cpu_util: share of the node's cores in use, 0..1.
        memory_intensity: of the CPU work, 0..1.
        io_intensity: of the CPU work, 0..1.
        gpus_busy: GPUs with work.
        gpu_util: utilisation of a busy GPU, 0..1.
        gpu_memory_share: how far the GPU work is bound by memory, 0..1.
    """

    cpu_util: FloatArray
    memory_intensity: FloatArray
    io_intensity: FloatArray
    gpus_busy: FloatArray
    gpu_util: FloatArray
    gpu_memory_share: FloatArray

    @classmethod
    def idle(cls, n_nodes: int) -> FleetLoad:
        """Nothing runs."""
        return cls(*(np.zeros(n_nodes) for _ in fields(cls)))


@dataclass(eq=False)
class _State:
    """What a node carries from one step to the next; arrays of shape ``(n_nodes,)``.

    Attributes:
        cpu_cap_w: cap on all packages together as asked for, W; inf where uncapped.
        cpu_cap_now_w: the cap as it acts, W.
        throttle: clock limit asked for as a share of the highest.
        throttle_now: the limit as it acts.
        gpu_cap_w: limit of each GPU as asked for, W.
        gpu_cap_now_w: the limit as it acts, W.
        package_w: power of all packages, W.
        gpu_w: power of all GPUs, W.
        platform_w: the rest of the node, W.
        package_mean_w: averaged power of all packages, as telemetry gives it, W.
        gpu_mean_w: averaged power of all GPUs, W.
        temperature_k: of the packages, K.
        energy_j: energy of the whole node since the start, J.
    """

    cpu_cap_w: FloatArray
    cpu_cap_now_w: FloatArray
    throttle: FloatArray
    throttle_now: FloatArray
    gpu_cap_w: FloatArray
    gpu_cap_now_w: FloatArray
    package_w: FloatArray
    gpu_w: FloatArray
    platform_w: FloatArray
    package_mean_w: FloatArray
    gpu_mean_w: FloatArray
    temperature_k: FloatArray
    energy_j: FloatArray


class LiveFleet:
    """Simulated nodes.

    Attributes:
        specs: the nodes, in the order of all arrays.
        state: see `_State`.
        cores: cores of each node.
        gpus: GPUs of each node.
        load: of the last step.
        frequency: clock as a share of the highest, shape ``(n_nodes,)``.
        gpu_throughput: rate of GPU work as a share of the uncapped rate, shape ``(n_nodes,)``.
        saturated: the CPU cap cannot be met, shape ``(n_nodes,)``.
    """

    def __init__(
        self,
        specs: Sequence[NodeSpec],
        *,
        ambient_k: float,
        dynamics: Dynamics | None = None,
        idle_states: IdleStates = IdleStates.ALL,
        gpu_model: str = "measured",
    ) -> None:
        """Start all nodes idle and uncapped, in equilibrium.

        Args:
            specs: the nodes, names unique.
            ambient_k: temperature of the air, K.
            dynamics: lags and thermal limits.
            idle_states: which nodes enter deep idle; under `MANAGED` all of these, which Joulie manages.
            gpu_model: GPU throughput model by name, see `joulie.domain.power.gpu`.
        """
        self.specs = tuple(specs)
        self._dynamics = dynamics or Dynamics()
        n_nodes = len(self.specs)
        self.cores = np.array([spec.cores for spec in self.specs])
        self._deep_idle = bool(idle_states.allowed(True))
        self.max_package_w = np.array([spec.cpu.tdp_w * spec.sockets for spec in self.specs])
        self.gpus = np.array([spec.gpus for spec in self.specs], dtype=np.float64)
        self._gpu_idle_w = np.array([spec.gpu.idle_w if spec.gpu else 0.0 for spec in self.specs])
        self._gpu_default_w = np.array([spec.gpu.default_w if spec.gpu else 0.0 for spec in self.specs])
        self._cpu = _cpu_power(self.specs)
        self._by_gpu = _throughput_groups(self.specs, gpu_model)
        zero = np.zeros(n_nodes)
        self.state = _State(
            cpu_cap_w=np.full(n_nodes, np.inf),
            cpu_cap_now_w=self.max_package_w * UNCAPPED_TDPS,
            throttle=np.ones(n_nodes),
            throttle_now=np.ones(n_nodes),
            gpu_cap_w=self._gpu_default_w.copy(),
            gpu_cap_now_w=self._gpu_default_w.copy(),
            package_w=zero.copy(),
            gpu_w=zero.copy(),
            platform_w=zero.copy(),
            package_mean_w=zero.copy(),
            gpu_mean_w=zero.copy(),
            temperature_k=np.full(n_nodes, float(positive("ambient_k", ambient_k))),
            energy_j=zero.copy(),
        )
        self.frequency = np.ones(n_nodes)
        self.gpu_throughput = np.ones(n_nodes)
        self.saturated: BoolArray = np.zeros(n_nodes, dtype=np.bool_)
        self.load = FleetLoad.idle(n_nodes)
        if n_nodes:
            self._settle(ambient_k)

    def adopt(self, other: LiveFleet) -> None:
        """Take over the state of the nodes that `other` also has: a node keeps its history when others come and go."""
        place = {spec: index for index, spec in enumerate(other.specs)}
        pairs = [(mine, place[spec]) for mine, spec in enumerate(self.specs) if spec in place]
        if not pairs:
            return
        mine, theirs = (np.array(side) for side in zip(*pairs, strict=True))
        for item in fields(_State):
            getattr(self.state, item.name)[mine] = getattr(other.state, item.name)[theirs]

    def cap_cpu(self, index: int, cap_w_per_package: float | None) -> float | None:
        """Cap each package of a node, W; None lifts the cap. Returns the cap in force, clamped to what it accepts."""
        spec = self.specs[index]
        if cap_w_per_package is None:
            self.state.cpu_cap_w[index] = np.inf
            return None
        wanted_w = float(positive("cap_w_per_package", cap_w_per_package))
        cap_w = min(max(wanted_w, CAP_FLOOR_SHARE * spec.cpu.tdp_w), spec.cpu.tdp_w)
        self.state.cpu_cap_w[index] = cap_w * spec.sockets
        return cap_w

    def cap_range_w(self, index: int) -> dict[str, float]:
        """Caps that each package of a node accepts, W."""
        tdp_w = self.specs[index].cpu.tdp_w
        return {"minWattsPerSocket": CAP_FLOOR_SHARE * tdp_w, "maxWattsPerSocket": tdp_w}

    def throttle_cpu(self, index: int, throttle_pct: float) -> float:
        """Limit a node's clock: 0 % is the highest clock, 100 % the lowest. Returns what is in force, percent."""
        percent = float(finite("throttle_pct", throttle_pct, minimum=0.0, maximum=100.0))
        floor = float(self._cpu.frequency_floor[index])
        self.state.throttle[index] = 1.0 - (1.0 - floor) * percent / 100.0
        return percent

    def cap_gpus(self, index: int, cap_w: float | None) -> float | None:
        """Limit each GPU of a node, W; None restores the default. Returns what is in force; None without GPUs."""
        gpu = self.specs[index].gpu
        if gpu is None:
            return None
        limit_w = gpu.default_w if cap_w is None else gpu.cap_range.clamped(cap_w)
        self.state.gpu_cap_w[index] = limit_w
        return limit_w

    def step(self, dt_s: float, load: FleetLoad, ambient_k: float) -> None:
        """Advance all nodes by `dt_s` under a constant load.

        Raises:
            InvalidQuantityError: an input is NaN or out of range.
        """
        positive("dt_s", dt_s)
        state, lags = self.state, self._dynamics
        asked_w = np.minimum(state.cpu_cap_w, self.max_package_w * UNCAPPED_TDPS)
        # A falling cap bites from the present draw on; how far it was above that does not matter.
        acting_w = np.minimum(state.cpu_cap_now_w, np.maximum(state.package_w, asked_w))
        state.cpu_cap_now_w = lagged(acting_w, asked_w, dt_s, lags.cpu_cap_tau_s)
        state.throttle_now = lagged(state.throttle_now, state.throttle, dt_s, lags.dvfs_tau_s)
        state.gpu_cap_now_w = lagged(state.gpu_cap_now_w, state.gpu_cap_w, dt_s, lags.gpu_cap_tau_s)
        before_w = self.wall_w
        self._operate(load)
        state.energy_j += (before_w + self.wall_w) / 2.0 * dt_s
        state.package_mean_w = lagged(state.package_mean_w, state.package_w, dt_s, lags.cpu_window_s)
        state.gpu_mean_w = lagged(state.gpu_mean_w, state.gpu_w, dt_s, lags.gpu_window_s)
        target_k = steady_temperature_k(ambient_k, state.package_w, self._conductance_w_per_k)
        state.temperature_k = lagged(state.temperature_k, target_k, dt_s, lags.thermal_tau_s)

    @property
    def wall_w(self) -> FloatArray:
        """Power of each whole node now, W."""
        return np.asarray(self.state.package_w + self.state.platform_w + self.state.gpu_w)

    @property
    def peak_w(self) -> float:
        """Power of all nodes at full load, W."""
        return float(self._cpu.curve_w[..., -1].sum() + (self._gpu_default_w * self.gpus).sum())

    def gpu_device_w(self, index: int) -> list[float]:
        """Power of each GPU of a node, W: the busy ones first."""
        busy, idle_w = self.load.gpus_busy[index], self._gpu_floor_w(index)
        n_busy = round(float(busy))
        busy_w = (self.state.gpu_w[index] - idle_w * (self.gpus[index] - busy)) / max(busy, 1.0)
        return [float(busy_w)] * n_busy + [idle_w] * (self.specs[index].gpus - n_busy)

    @property
    def _conductance_w_per_k(self) -> FloatArray:
        return np.asarray(self.max_package_w / self._dynamics.rise_at_tdp_k)

    def _gpu_floor_w(self, index: int) -> float:
        return float(self._gpu_idle_w[index]) * (DEEP_IDLE_SHARE if self._deep_idle else 1.0)

    def _settle(self, ambient_k: float) -> None:
        self._operate(self.load)
        self.state.package_mean_w = self.state.package_w.copy()
        self.state.gpu_mean_w = self.state.gpu_w.copy()
        self.state.temperature_k = steady_temperature_k(ambient_k, self.state.package_w, self._conductance_w_per_k)

    def _operate(self, load: FleetLoad) -> None:
        state, limits = self.state, self._dynamics
        self.load = load
        activity = activity_factor(load.memory_intensity, load.io_intensity)
        hot = thermal_throttle(
            state.temperature_k, limits.throttle_start_k, limits.throttle_full_k, limits.throttle_floor
        )
        clock_limit = np.minimum(state.throttle_now, hot)
        free = self._cpu.operate(load.cpu_util, activity=activity, deep_idle=self._deep_idle)
        idle = self._cpu.operate(np.zeros(len(self.specs)), deep_idle=self._deep_idle)
        # A limit on the clock is the cap that this clock would meet: one model of frequency for both.
        dynamic_w = np.maximum(free.package_w - idle.package_w, 0.0)
        by_clock_w = idle.package_w + dynamic_w * clock_limit**FREQUENCY_EXPONENT
        cap_w = np.where(clock_limit < 1.0, np.minimum(state.cpu_cap_now_w, by_clock_w), state.cpu_cap_now_w)
        cpu = self._cpu.operate(load.cpu_util, cap_w, activity=activity, deep_idle=self._deep_idle)
        state.package_w = cpu.package_w
        state.platform_w = cpu.wall_w - cpu.package_w
        self.frequency = cpu.frequency
        self.saturated = cpu.saturated
        for nodes, model in self._by_gpu:
            self._operate_gpus(nodes, model, load)

    def _operate_gpus(self, nodes: IntArray, model: ThroughputModel, load: FleetLoad) -> None:
        state = self.state
        idle_w, max_w = self._gpu_idle_w[nodes], self._gpu_default_w[nodes]
        busy = operate_gpu(
            idle_w,
            max_w,
            load.gpu_util[nodes],
            state.gpu_cap_now_w[nodes],
            memory_share=load.gpu_memory_share[nodes],
            throughput=model,
        )
        unused = operate_gpu(idle_w, max_w, np.zeros(len(idle_w)), deep_idle=self._deep_idle, throughput=model)
        n_busy = load.gpus_busy[nodes]
        state.gpu_w[nodes] = busy.power_w * n_busy + unused.power_w * (self.gpus[nodes] - n_busy)
        self.gpu_throughput[nodes] = busy.throughput.median


def _cpu_power(specs: Sequence[NodeSpec]) -> CpuPower:
    kinds = sorted({(spec.cpu.key, spec.sockets) for spec in specs})
    by_kind = {(spec.cpu.key, spec.sockets): CpuPower.of(spec.cpu, spec.sockets) for spec in specs}
    rows = {kind: row for row, kind in enumerate(kinds)}
    which = np.array([rows[spec.cpu.key, spec.sockets] for spec in specs], dtype=np.int64)
    if not kinds:
        return CpuPower(np.ones((0, 11)), np.ones(0), np.ones(0), np.ones(0))
    return CpuPower.fleet([by_kind[kind] for kind in kinds], which)


def _throughput_groups(specs: Sequence[NodeSpec], name: str) -> list[tuple[IntArray, ThroughputModel]]:
    """Nodes by GPU model, each with its throughput model."""
    models = {spec.gpu.key: spec.gpu for spec in specs if spec.gpu is not None}
    return [
        (
            np.array([i for i, spec in enumerate(specs) if spec.gpu is not None and spec.gpu.key == key]),
            throughput_model(name, models[key]),
        )
        for key in sorted(models)
    ]
