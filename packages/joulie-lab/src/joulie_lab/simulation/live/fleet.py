"""Physics of simulated nodes under their current load, vectorised over nodes.

The formulas are those of `joulie.domain.power`, connected by first-order lags (source: spec, simulator physics).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields

import numpy as np

from joulie.domain.dynamics import lagged, lagged_mean
from joulie.domain.hardware import GpuModel
from joulie.domain.hardware.idle_readings import IDLE_READINGS
from joulie.domain.power.cpu import FREQUENCY_EXPONENT, CpuPower
from joulie.domain.power.gpu import DEEP_IDLE_SHARE, natural_power_w, operate_gpu
from joulie.domain.units import BoolArray, FloatArray, IntArray, finite, positive
from joulie_lab.simulation.gpu_response import JobDeviation
from joulie_lab.simulation.job_response import GpuResponse, IdleStates, activity_factor, throughput_model
from joulie_lab.simulation.live.dynamics import (
    SETTLED_SHARE,
    Dynamics,
    Limits,
    NodeState,
    OperatingPoint,
    steady_temperature_k,
    thermal_throttle,
)
from joulie_lab.simulation.live.nodes import FleetLoad, GpuJob, NodeSpec

UNCAPPED_TDPS = 4.0
"""Target of a lifted cap, as a multiple of the TDP: above any power draw, and finite, so that it can lag."""
CAP_FLOOR_SHARE = 0.2
"""Minimum package cap that a simulated CPU accepts, as a share of its TDP (assumed: RAPL goes far below cTDP)."""

_SLOWDOWN_TOLERANCE = 1e-6
_NO_GPUS = -1
_MIN_STEP_S = 0.1


class LiveFleet:
    """Simulated nodes whose time is advanced in steps by the caller.

    Attributes:
        specs: hardware of the nodes, in the order of all arrays.
        state: state of the nodes between steps.
        cores: cores of each node.
        gpus: number of GPUs of each node.
        n_devices: maximum number of GPUs of a node, at least 1: the columns of GPU arrays.
        gpu_device_w: current power of each GPU, W, shape ``(n_nodes, n_devices)``; 0 where a node has no such GPU.
        load: current load.
        frequency: clock as a share of the highest, shape ``(n_nodes,)``.
        gpu_throughput: rate of work of each GPU as a share of its uncapped rate, shape ``(n_nodes, n_devices)``.
        mean_frequency: mean clock over the last step.
        mean_gpu_throughput: mean rate of GPU work over the last step.
        saturated: whether the CPU cap cannot be met, shape ``(n_nodes,)``.
        moving: whether a cap or clock limit has not settled at its target, shape ``(n_nodes,)``.
        gpu_jobs: jobs with a response of their own by node and device; the others respond as their GPU model does.
        busy_gpu_j: energy of GPUs while pods held them, J.
        busy_gpu_s: time for which pods held GPUs, GPU-s.
    """

    def __init__(
        self,
        specs: Sequence[NodeSpec],
        *,
        ambient_k: float,
        dynamics: Dynamics | None = None,
        idle_states: IdleStates = IdleStates.ALL,
        managed: Sequence[bool] | None = None,
        gpu_model: str = "measured",
        seed: int | None = None,
    ) -> None:
        """Start all nodes idle and uncapped, in equilibrium.

        Args:
            specs: hardware of the nodes, with unique names.
            ambient_k: ambient air temperature, K.
            dynamics: lags and thermal limits; None for the defaults.
            idle_states: which nodes enter deep idle states.
            managed: which nodes Joulie manages, in the order of `specs`; None for all of them.
            gpu_model: name of the GPU throughput model, see `joulie_lab.simulation.job_response`.
            seed: draws how jobs on each GPU model depart from those on others; None for typical GPUs.
        """
        self.specs = tuple(specs)
        self._dynamics = dynamics or Dynamics()
        n_nodes = len(self.specs)
        self.cores = np.array([spec.cores for spec in self.specs])
        self._deep_idle = idle_states.allowed(np.ones(n_nodes) if managed is None else list(managed))
        self.max_package_w = np.array([spec.cpu.tdp_w * spec.sockets for spec in self.specs])
        self._conductance_w_per_k = self.max_package_w / self._dynamics.rise_at_tdp_k
        self.gpus = np.array([spec.gpus for spec in self.specs], dtype=np.float64)
        self.n_devices = max([1, *(spec.gpus for spec in self.specs)])
        devices = (n_nodes, self.n_devices)
        self._has_device = np.arange(self.n_devices) < self.gpus[:, np.newaxis]
        self.gpu_device_w = np.zeros(devices)
        self._gpu_idle_w = np.array([spec.gpu.idle_w if spec.gpu else 0.0 for spec in self.specs])
        self._gpu_default_w = np.array([spec.gpu.default_w if spec.gpu else 0.0 for spec in self.specs])
        self._gpu_unused_w = self._gpu_idle_w * np.where(self._deep_idle, DEEP_IDLE_SHARE, 1.0)
        if idle_states is IdleStates.MEASURED:
            self._gpu_unused_w = np.array([_read_idle_w(spec.gpu) for spec in self.specs])
        self._cpu, self._cpu_kind = _cpu_kinds(self.specs)
        self._gpu, self._gpu_kind = _gpu_kinds(self.specs, gpu_model, seed)
        zero = np.zeros(n_nodes)
        self.state = NodeState(
            cpu_cap_w=np.full(n_nodes, np.inf),
            cpu_cap_now_w=self.max_package_w * UNCAPPED_TDPS,
            throttle=np.ones(n_nodes),
            throttle_now=np.ones(n_nodes),
            gpu_cap_w=np.repeat(self._gpu_default_w[:, np.newaxis], self.n_devices, axis=1),
            gpu_cap_now_w=np.repeat(self._gpu_default_w[:, np.newaxis], self.n_devices, axis=1),
            package_w=zero.copy(),
            gpu_w=zero.copy(),
            platform_w=zero.copy(),
            package_mean_w=zero.copy(),
            gpu_mean_w=zero.copy(),
            temperature_k=np.full(n_nodes, float(positive("ambient_k", ambient_k))),
            energy_j=zero.copy(),
        )
        self.frequency = np.ones(n_nodes)
        self.gpu_throughput = np.ones(devices)
        self.mean_frequency = np.ones(n_nodes)
        self.mean_gpu_throughput = np.ones(devices)
        self.saturated: BoolArray = np.zeros(n_nodes, dtype=np.bool_)
        self.moving: BoolArray = np.zeros(n_nodes, dtype=np.bool_)
        self.busy_gpu_j = 0.0
        self.busy_gpu_s = 0.0
        self.load = FleetLoad.idle(n_nodes, self.n_devices)
        self.gpu_jobs: Mapping[tuple[int, int], GpuJob] = {}
        if n_nodes:
            self._settle(ambient_k)

    def adopt(self, other: LiveFleet) -> None:
        """Copy the state of the nodes that `other` also has, so that nodes keep theirs when others come and go."""
        place = {spec: index for index, spec in enumerate(other.specs)}
        pairs = [(mine, place[spec]) for mine, spec in enumerate(self.specs) if spec in place]
        if not pairs:
            return
        mine, theirs = (np.array(side) for side in zip(*pairs, strict=True))
        devices = min(self.n_devices, other.n_devices)
        for item in fields(NodeState):
            kept, known = getattr(self.state, item.name), getattr(other.state, item.name)
            if kept.ndim == 1:
                kept[mine] = known[theirs]
            else:
                kept[mine, :devices] = known[theirs, :devices]
        self.moving[mine] = other.moving[theirs]

    def cap_cpu(self, index: int, cap_w_per_package: float | None) -> float | None:
        """Cap each package of a node, W; None lifts the cap. Returns the cap clamped to the accepted range."""
        spec = self.specs[index]
        self.moving[index] = True
        if cap_w_per_package is None:
            self.state.cpu_cap_w[index] = np.inf
            return None
        wanted_w = float(positive("cap_w_per_package", cap_w_per_package))
        cap_w = min(max(wanted_w, CAP_FLOOR_SHARE * spec.cpu.tdp_w), spec.cpu.tdp_w)
        self.state.cpu_cap_w[index] = cap_w * spec.sockets
        return cap_w

    def cap_range_w(self, index: int) -> dict[str, float]:
        """Range of caps that each package of a node accepts, W."""
        tdp_w = self.specs[index].cpu.tdp_w
        return {"minWattsPerSocket": CAP_FLOOR_SHARE * tdp_w, "maxWattsPerSocket": tdp_w}

    def throttle_cpu(self, index: int, throttle_pct: float) -> float:
        """Limit a node's clock: 0 % is the highest clock, 100 % the lowest. Returns the throttle in force, percent."""
        percent = float(finite("throttle_pct", throttle_pct, minimum=0.0, maximum=100.0))
        floor = float(self._cpu[self._cpu_kind[index]].frequency_floor)
        self.moving[index] = True
        self.state.throttle[index] = 1.0 - (1.0 - floor) * percent / 100.0
        return percent

    def cap_gpus(self, index: int, cap_w: float | None, device: int | None = None) -> float | None:
        """Limit the GPUs of a node.

        Args:
            index: the node.
            cap_w: limit, W; None restores the default.
            device: index of one GPU; None for each of them.

        Returns:
            The limit in force, W; None without GPUs.
        """
        gpu = self.specs[index].gpu
        if gpu is None:
            return None
        limit_w = gpu.default_w if cap_w is None else gpu.cap_range.clamped(cap_w)
        limits_w = self.state.gpu_cap_w[index, slice(None) if device is None else slice(device, device + 1)]
        if (limits_w != limit_w).any():
            limits_w[:] = limit_w
            self.moving[index] = True
        return limit_w

    def step(self, dt_s: float, load: FleetLoad, ambient_k: float) -> None:
        """Advance all nodes by `dt_s` under a constant load.

        Raises:
            InvalidQuantityError: an input is NaN or out of range.
        """
        self.set_load(load)
        self.advance(dt_s, ambient_k)

    def set_load(self, load: FleetLoad, nodes: IntArray | None = None) -> None:
        """Set the load of nodes; their power follows at once.

        Args:
            load: load of these nodes.
            nodes: indices of the nodes, each once; None for all nodes.

        Raises:
            InvalidQuantityError: an input is NaN or out of range.
        """
        indices = np.arange(len(self.specs)) if nodes is None else nodes
        for item in fields(FleetLoad):
            getattr(self.load, item.name)[indices] = getattr(load, item.name)
        self.follow_load(indices)

    def follow_load(self, nodes: IntArray) -> None:
        """Bring the power of nodes up to date after their `load` was changed in place."""
        if len(nodes):
            self._set_point(nodes, self._operate(nodes, self._limits_now(nodes)))

    def advance(self, dt_s: float, ambient_k: float) -> None:
        """Advance all nodes by `dt_s` under their current load.

        While all limits are settled, power is constant and a step of any length is exact. A cap that is still moving
        counts by its mean over the step, which is exact if it binds during the whole step or not at all. Nodes hot
        enough to be throttled are advanced in short steps.

        Raises:
            InvalidQuantityError: an input is NaN or out of range.
        """
        left_s = float(positive("dt_s", dt_s))
        longest_s = left_s
        if self._hot(ambient_k).any():
            longest_s = min(left_s, max(self._dynamics.thermal_tau_s / 10.0, _MIN_STEP_S))
        n_steps = math.ceil(left_s / longest_s)
        if n_steps == 1:
            self._advance_once(left_s, ambient_k)
            return
        frequency, throughput = np.zeros_like(self.frequency), np.zeros_like(self.gpu_throughput)
        for _ in range(n_steps):
            self._advance_once(left_s / n_steps, ambient_k)
            frequency += self.mean_frequency / n_steps
            throughput += self.mean_gpu_throughput / n_steps
        self.mean_frequency, self.mean_gpu_throughput = frequency, throughput

    def advance_steady(self, dt_s: float, ambient_k: float) -> None:
        """`advance` while no node is `unsteady`: the means over the step are the current values, and are not kept."""
        self._advance_once(float(positive("dt_s", dt_s)), ambient_k)

    def _advance_once(self, dt_s: float, ambient_k: float) -> None:
        state, lags = self.state, self._dynamics
        package_w, wall_w = state.package_w, self.wall_w
        gpu_w = state.gpu_w
        self.mean_frequency = self.frequency.copy()
        self.mean_gpu_throughput = self.gpu_throughput.copy()
        nodes = self.unsteady(ambient_k)
        if len(nodes):
            target, start = self._target_limits(nodes), self._start_limits(nodes)
            mean = self._operate(nodes, start.after(target, dt_s, lags, lagged_mean))
            package_w, gpu_w, wall_w = package_w.copy(), gpu_w.copy(), wall_w.copy()
            package_w[nodes], gpu_w[nodes] = mean.package_w, mean.gpu_w
            wall_w[nodes] = mean.package_w + mean.platform_w + mean.gpu_w
            self.mean_frequency[nodes], self.mean_gpu_throughput[nodes] = mean.frequency, mean.gpu_throughput
        state.energy_j += wall_w * dt_s
        self.busy_gpu_j += float(self.gpu_device_w[self.load.gpu_busy].sum()) * dt_s
        self.busy_gpu_s += int(self.load.gpu_busy.sum()) * dt_s
        target_k = ambient_k + package_w / self._conductance_w_per_k
        state.temperature_k = target_k + (state.temperature_k - target_k) * decay(dt_s, lags.thermal_tau_s)
        if len(nodes):
            self._set_limits(nodes, start.after(target, dt_s, lags, lagged), target)
            self._set_point(nodes, self._operate(nodes, self._limits_now(nodes)))
        state.package_mean_w = package_w + (state.package_mean_w - package_w) * decay(dt_s, lags.cpu_window_s)
        state.gpu_mean_w = gpu_w + (state.gpu_mean_w - gpu_w) * decay(dt_s, lags.gpu_window_s)

    def unsteady(self, ambient_k: float) -> IntArray:
        """Indices of the nodes whose clock changes under a constant load: limits not settled, or thermal throttling."""
        return np.flatnonzero(self.moving | self._hot(ambient_k))

    @property
    def settling_s(self) -> float:
        """Time that a limit set now takes to settle at its target, s."""
        lags = self._dynamics
        return -math.log(SETTLED_SHARE / UNCAPPED_TDPS) * max(lags.cpu_cap_tau_s, lags.gpu_cap_tau_s, lags.dvfs_tau_s)

    @property
    def telemetry_settling_s(self) -> float:
        """Time until an earlier power no longer changes the averages of telemetry, at the precision of a float, s."""
        lags = self._dynamics
        return -math.log(np.finfo(np.float64).eps) * max(lags.cpu_window_s, lags.gpu_window_s)

    @property
    def at_cap(self) -> BoolArray:
        """Nodes whose CPUs or GPUs are slowed by a power cap or a clock limit."""
        slowed_gpus = (self.gpu_throughput < 1.0 - _SLOWDOWN_TOLERANCE).any(axis=1)
        return np.asarray((self.frequency < 1.0 - _SLOWDOWN_TOLERANCE) | slowed_gpus)

    @property
    def throttled(self) -> BoolArray:
        """Nodes that are thermally throttled."""
        return np.asarray(self.state.temperature_k > self._dynamics.throttle_start_k)

    @property
    def sensed_w(self) -> FloatArray:
        """Power of CPUs and GPUs together as telemetry reports it, averaged over its window, W."""
        return np.asarray(self.state.package_mean_w + self.state.gpu_mean_w)

    @property
    def wall_w(self) -> FloatArray:
        """Current power of each whole node, W."""
        return np.asarray(self.state.package_w + self.state.platform_w + self.state.gpu_w)

    @property
    def node_peak_w(self) -> FloatArray:
        """Power of each node at full load, W."""
        cpu_w = np.array([float(self._cpu[kind].curve_w[-1]) for kind in self._cpu_kind.tolist()])
        return np.asarray(cpu_w + self._gpu_default_w * self.gpus)

    @property
    def peak_w(self) -> float:
        """Power of all nodes at full load, W."""
        return float(self.node_peak_w.sum())

    def gpu_under(
        self, index: int, limits_w: FloatArray, *, util: float, memory_share: float, deviation: JobDeviation
    ) -> tuple[FloatArray, FloatArray]:
        """What limits would do to a job on a GPU of a node: power, W, and rate of work as a share of the uncapped one.

        Args:
            index: the node, which has GPUs.
            limits_w: limits, W, shape ``(n,)``.
            util: utilisation of the GPU, 0..1.
            memory_share: share of its work that is memory-bound, 0..1.
            deviation: how the job responds to a limit.
        """
        response = self._gpu[self._gpu_kind[index]].for_jobs(np.array(deviation))
        idle_w, max_w = self._gpu_idle_w[index], self._gpu_default_w[index]
        state = operate_gpu(idle_w, max_w, util, limits_w, memory_share=memory_share, response=response)
        return state.power_w, state.throughput.median

    def _settle(self, ambient_k: float) -> None:
        self.set_load(self.load)
        self.state.package_mean_w = self.state.package_w.copy()
        self.state.gpu_mean_w = self.state.gpu_w.copy()
        self.state.temperature_k = steady_temperature_k(ambient_k, self.state.package_w, self._conductance_w_per_k)

    def _hot(self, ambient_k: float) -> BoolArray:
        """Nodes that are thermally throttled, or whose steady-state temperature would throttle them."""
        start_k = self._dynamics.throttle_start_k
        # Even at TDP no node can reach the throttle start at this ambient temperature: no need to check each target.
        if ambient_k + self._dynamics.rise_at_tdp_k < start_k:
            return np.asarray(self.state.temperature_k > start_k)
        target_k = ambient_k + self.state.package_w / self._conductance_w_per_k
        return np.asarray((self.state.temperature_k > start_k) | (target_k > start_k))

    def _target_limits(self, nodes: IntArray) -> Limits:
        state = self.state
        cpu_w = np.minimum(state.cpu_cap_w[nodes], self.max_package_w[nodes] * UNCAPPED_TDPS)
        return Limits(cpu_w, state.throttle[nodes], state.gpu_cap_w[nodes])

    def _start_limits(self, nodes: IntArray) -> Limits:
        """Limits at the start of a step.

        A falling cap starts from the current power draw, however far above it was before.
        """
        state, target = self.state, self._target_limits(nodes)
        cpu_w = np.minimum(state.cpu_cap_now_w[nodes], np.maximum(state.package_w[nodes], target.cpu_w))
        return Limits(cpu_w, state.throttle_now[nodes], state.gpu_cap_now_w[nodes])

    def _limits_now(self, nodes: IntArray) -> Limits:
        state = self.state
        return Limits(state.cpu_cap_now_w[nodes], state.throttle_now[nodes], state.gpu_cap_now_w[nodes])

    def _set_limits(self, nodes: IntArray, limits: Limits, target: Limits) -> None:
        """Store the limits at the end of a step; settled ones are set to their target."""
        state = self.state
        settled = limits.settled_at(target)
        state.cpu_cap_now_w[nodes] = np.where(settled, target.cpu_w, limits.cpu_w)
        state.throttle_now[nodes] = np.where(settled, target.clock, limits.clock)
        state.gpu_cap_now_w[nodes] = np.where(settled[:, np.newaxis], target.gpu_w, limits.gpu_w)
        self.moving[nodes] = ~settled

    def _set_point(self, nodes: IntArray, point: OperatingPoint) -> None:
        state = self.state
        state.package_w[nodes] = point.package_w
        state.platform_w[nodes] = point.platform_w
        state.gpu_w[nodes] = point.gpu_w
        self.gpu_device_w[nodes] = point.gpu_device_w
        self.frequency[nodes] = point.frequency
        self.gpu_throughput[nodes] = point.gpu_throughput
        self.saturated[nodes] = point.saturated

    def _operate(self, nodes: IntArray, limits: Limits) -> OperatingPoint:
        """Operating points of some nodes under their load and these limits."""
        n_nodes, devices = len(nodes), (len(nodes), self.n_devices)
        package_w, platform_w, frequency = np.zeros((3, n_nodes))
        saturated = np.zeros(n_nodes, dtype=np.bool_)
        point = OperatingPoint(package_w, platform_w, frequency, np.zeros(devices), np.ones(devices), saturated)
        cpu_kinds, gpu_kinds = self._cpu_kind[nodes], self._gpu_kind[nodes]
        for kind in sorted(set(cpu_kinds.tolist())):
            here = np.flatnonzero(cpu_kinds == kind)
            self._operate_cpus(self._cpu[kind], nodes[here], here, limits, point)
        for kind in sorted(set(gpu_kinds.tolist()) - {_NO_GPUS}):
            here = np.flatnonzero(gpu_kinds == kind)
            self._operate_gpus(self._gpu[kind], nodes[here], here, limits, point)
        return point

    def _operate_cpus(
        self, model: CpuPower, nodes: IntArray, here: IntArray, limits: Limits, point: OperatingPoint
    ) -> None:
        """Fill in the CPUs of `nodes`, whose positions in `limits` and `point` are `here`."""
        load, dynamics = self.load, self._dynamics
        util, deep_idle = load.cpu_util[nodes], self._deep_idle[nodes]
        activity = activity_factor(load.memory_intensity[nodes], load.io_intensity[nodes])
        clock, cap_w = limits.clock[here], limits.cpu_w[here]
        temperature_k = self.state.temperature_k[nodes]
        if (temperature_k > dynamics.throttle_start_k).any():
            start_k, full_k = dynamics.throttle_start_k, dynamics.throttle_full_k
            clock = np.minimum(clock, thermal_throttle(temperature_k, start_k, full_k, dynamics.throttle_floor))
        if (clock < 1.0).any():
            # A clock limit becomes the power cap that this clock would meet, so that one model covers both.
            free = model.operate(util, activity=activity, deep_idle=deep_idle)
            idle = model.operate(np.zeros(len(nodes)), deep_idle=deep_idle)
            dynamic_w = np.maximum(free.package_w - idle.package_w, 0.0)
            by_clock_w = idle.package_w + dynamic_w * clock**FREQUENCY_EXPONENT
            cap_w = np.where(clock < 1.0, np.minimum(cap_w, by_clock_w), cap_w)
        cpu = model.operate(util, cap_w, activity=activity, deep_idle=deep_idle)
        point.package_w[here] = cpu.package_w
        point.platform_w[here] = cpu.wall_w - cpu.package_w
        point.frequency[here] = cpu.frequency
        point.saturated[here] = cpu.saturated

    def _operate_gpus(
        self, model: GpuResponse, nodes: IntArray, here: IntArray, limits: Limits, point: OperatingPoint
    ) -> None:
        """Fill in the GPUs of `nodes`, whose positions in `limits` and `point` are `here`.

        A limit acts on each GPU by the power that its own work draws, not by the node's mean.
        """
        load, idle_w, max_w = self.load, self._gpu_idle_w[nodes, np.newaxis], self._gpu_default_w[nodes, np.newaxis]
        util, memory_share = load.gpu_util[nodes], load.gpu_memory_share[nodes]
        busy, cap_w = load.gpu_busy[nodes], limits.gpu_w[here]
        busy_w = natural_power_w(idle_w, max_w, util, memory_share)
        if (busy & (cap_w < max_w)).any():
            response = model.for_jobs(load.gpu_deviation[nodes])
            capped = operate_gpu(idle_w, max_w, util, cap_w, memory_share=memory_share, response=response)
            # A GPU that nobody holds is not slowed, whatever the limits of others in this call.
            busy_w, point.gpu_throughput[here] = capped.power_w, np.where(busy, capped.throughput.median, 1.0)
        unused_w = np.where(self._has_device[nodes], self._gpu_unused_w[nodes, np.newaxis], 0.0)
        point.gpu_device_w[here] = np.where(busy, busy_w, unused_w)
        for place, node in zip(here.tolist(), nodes.tolist(), strict=True) if self.gpu_jobs else ():
            for device in range(self.specs[node].gpus):
                if (job := self.gpu_jobs.get((node, device))) is not None:
                    power_w, throughput = job.operate(float(limits.gpu_w[place, device]))
                    point.gpu_device_w[place, device], point.gpu_throughput[place, device] = power_w, throughput


def decay(dt_s: float, tau_s: float) -> float:
    """Share of a deviation that remains after a step: that of `lagged`, without its checks."""
    return math.exp(-dt_s / tau_s) if tau_s > 0.0 else 0.0


def _read_idle_w(gpu: GpuModel | None) -> float:
    """Power of a GPU that no pod holds as users read it, W; the catalogue's where there is no reading."""
    if gpu is None:
        return 0.0
    found = IDLE_READINGS.get(gpu.key)
    return gpu.idle_w if found is None else found.median_w


def _cpu_kinds(specs: Sequence[NodeSpec]) -> tuple[list[CpuPower], IntArray]:
    """Power models of all kinds of CPUs, and the index of each node's kind."""
    models = {(spec.cpu.key, spec.sockets): spec for spec in specs}
    kinds = sorted(models)
    which = [kinds.index((spec.cpu.key, spec.sockets)) for spec in specs]
    return [CpuPower.of(models[kind].cpu, kind[1]) for kind in kinds], np.array(which, dtype=np.int64)


def _gpu_kinds(specs: Sequence[NodeSpec], name: str, seed: int | None) -> tuple[list[GpuResponse], IntArray]:
    """Response models of all GPU models, and the index of each node's, or `_NO_GPUS`."""
    models = {spec.gpu.key: spec.gpu for spec in specs if spec.gpu is not None}
    kinds = sorted(models)
    which = [kinds.index(spec.gpu.key) if spec.gpu is not None else _NO_GPUS for spec in specs]
    return [throughput_model(name, models[kind], seed) for kind in kinds], np.array(which, dtype=np.int64)
