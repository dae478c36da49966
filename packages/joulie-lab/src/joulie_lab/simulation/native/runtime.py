"""Discrete-event run of a trace on a simulated cluster, with the same decisions as Joulie's programs.

Events are: a job arrives or ends, the operator or an agent acts, a power limit settles. Between two events nothing
changes but what follows a limit with a lag, so the run jumps from event to event, however far apart they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from joulie.collector import no_collection
from joulie.domain.grid.series import Series
from joulie.domain.policies import StaticPartition
from joulie.domain.policy import PolicySettings
from joulie.domain.scoring.extender import NodeClass, TwinView
from joulie.domain.units import FloatArray, IntArray, finite, positive
from joulie_lab.simulation.climate import Climate
from joulie_lab.simulation.cooling_plant import CoolingPlant
from joulie_lab.simulation.experiment.outcome import NodeOutcome, Outcome
from joulie_lab.simulation.experiment.scenario import ControlTimes, SchemeName
from joulie_lab.simulation.job_response import IdleStates
from joulie_lab.simulation.live.facility import Weather
from joulie_lab.simulation.live.fleet import LiveFleet
from joulie_lab.simulation.native.admission import Admission
from joulie_lab.simulation.native.capacity import NodeCapacity
from joulie_lab.simulation.native.control import Control, NativeControl
from joulie_lab.simulation.native.facility import Facility
from joulie_lab.simulation.native.fleet import CompiledFleet
from joulie_lab.simulation.native.gate import GangGate
from joulie_lab.simulation.native.gpu_schemes import (
    PERFORMANCE_SLOWDOWN,
    BestLimits,
    GpuScheme,
    NodeWideLimits,
    limit_all,
)
from joulie_lab.simulation.native.jobs import Jobs
from joulie_lab.simulation.native.kinds import KindTable
from joulie_lab.simulation.native.limits import GpuLimits, LimitSearch
from joulie_lab.simulation.native.nodes import MANAGED_LABEL, SimNode
from joulie_lab.simulation.native.pods import PRIORITIES, SimPod
from joulie_lab.simulation.native.queue import PendingQueue
from joulie_lab.simulation.native.recorder import Recorder
from joulie_lab.simulation.native.running import RunningJobs
from joulie_lab.simulation.native.scheduling import compiled_scheduler, make_scheduler
from joulie_lab.simulation.schedulers import KUBE, native_scheduler
from joulie_lab.simulation.trace import TraceJob

Plant = Callable[[float], CoolingPlant | None]
"""Makes the cooling plant for a given power of all nodes at full load, W; returns None for no plant."""
OnProgress = Callable[[float, float], None]
"""Called with (simulated seconds done, simulated seconds in total)."""
Gangs = Literal["together", "singly"]


class Sample(NamedTuple):
    """State of a run at a sample of its series."""

    twins: TwinView | None
    """Twins of all nodes; None if neither operator nor scheduler measures power."""
    it_j: float
    """Energy of the nodes so far, J."""
    cooling_j: float
    """Energy of the cooling plant so far, J."""
    node_j: FloatArray
    """Energy of each node so far, J; the run's own array, to be copied."""


OnSample = Callable[[Sample], None]

_TIME_TOLERANCE_S = 1e-6
_PLANT_STEP_S = 1.0
"""Minimum step of a cooling plant, s: events closer together than this are merged into one step."""
_NO_NODES: IntArray = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Setup:
    """Configuration of a run: everything except its jobs.

    Attributes:
        nodes: nodes of the cluster.
        duration_s: length of the run, s; unfinished jobs stay unfinished.
        arrivals_s: jobs submitted at or after this time are left out, and counted, s.
        control: Joulie's operator and agents; None without Joulie.
        scheduler: one of `joulie_lab.simulation.schedulers.NATIVE_SCHEDULERS`. All but `kube` keep performance pods
            off eco and draining nodes, as the extender does.
        times: intervals of operator and agents.
        idle_states: which nodes enter deep idle; without Joulie no node is managed.
        gpu_throughput: model by name of how GPU work slows under a power limit.
        gpu_limits: search for the limit of each workload's GPUs; None without it.
        gpu_limit_pct: fixed limit of all GPUs over the run, % of the default one; None without it.
        gpu_scheme: other limits of GPUs by name, see `Variant.gpu_scheme`; None without them.
        gpu_speeds: whether GPU work runs at each node's own speed; if not, a GPU-hour is the same work on every GPU.
        climate: climate, for the outdoor temperature.
        plant: makes the cooling plant.
        seed: seed of the weather, of the GPU models' responses and of the scheduler's tie-breaking.
        gangs: whether the pods of a gang are held until all of them fit, or are scheduled one by one.
        share_gpus: whether pods that need a share of a GPU share it; if not, each gets a whole GPU.
        priorities: value by PriorityClass.
        intensity_g_per_kwh: carbon intensity over the run from 0 s on, gCO2eq/kWh; None if unknown.
        price_per_kwh: price of a kWh over the run from 0 s on; None if unknown.
        n_samples: number of samples in the series; energy is exact whatever their number.
        facility_step_s: maximum step of the cooling plant, and of carbon and cost, s.
        compiled: whether compiled loops do the frequent work; if not, the plain formulas that these are held against.
    """

    nodes: tuple[SimNode, ...]
    duration_s: float
    arrivals_s: float = math.inf
    control: Control | None = None
    scheduler: str = KUBE
    times: ControlTimes = field(default_factory=ControlTimes)
    idle_states: IdleStates = IdleStates.ALL
    gpu_throughput: str = "measured"
    gpu_limits: GpuLimits | None = None
    gpu_limit_pct: float | None = None
    gpu_scheme: SchemeName | None = None
    gpu_speeds: bool = False
    climate: Climate = field(default_factory=Climate)
    plant: Plant = lambda peak_w: None
    seed: int = 0
    gangs: Gangs = "together"
    share_gpus: bool = False
    priorities: Mapping[str, int] = field(default_factory=lambda: PRIORITIES)
    intensity_g_per_kwh: Series | None = None
    price_per_kwh: Series | None = None
    n_samples: int = 2000
    facility_step_s: float = 300.0
    compiled: bool = True

    def __post_init__(self) -> None:
        positive("duration_s", self.duration_s)
        positive("facility_step_s", self.facility_step_s)
        finite("n_samples", self.n_samples, minimum=2.0)
        if not self.nodes:
            raise ValueError("invalid setup: a run needs at least one node")


def run(
    setup: Setup,
    jobs: Iterable[TraceJob],
    on_progress: OnProgress | None = None,
    on_sample: OnSample | None = None,
) -> Outcome:
    """Simulate the jobs of a trace on a cluster.

    Args:
        setup: configuration of the run.
        jobs: jobs of the trace.
        on_progress: called at each sample with the progress of the run.
        on_sample: called at each sample with the state of the run.

    Raises:
        UnknownSchedulerError: no scheduler has that name.
        CoolingPlantError: the plant cannot be used, or failed during the run.
    """
    with no_collection(), ExitStack() as stack:
        return _Run(setup, jobs, stack).run(on_progress, on_sample)


class _Run:
    """The state of a run."""

    def __init__(self, setup: Setup, jobs: Iterable[TraceJob], stack: ExitStack) -> None:
        self._setup = setup
        self._jobs = Jobs(jobs, setup.nodes, setup.arrivals_s, setup.priorities, share_gpus=setup.share_gpus)
        self._weather = Weather(setup.climate, setup.seed, setup.duration_s)
        # A scheduler that uses measured power needs an operator even without Joulie: one that caps nothing.
        control = setup.control or (
            Control(_ALL_PERFORMANCE) if native_scheduler(setup.scheduler).looks_at_power else None
        )
        self._first_s = 0.0 if control is None else -_pre_roll_s(control, setup.times)
        self._now_s = self._first_s
        self._control = None if control is None else NativeControl(control, setup.nodes, setup.times)
        managed = [setup.control is not None and node.labels.get(MANAGED_LABEL) == "true" for node in setup.nodes]
        fleet = CompiledFleet if setup.compiled else LiveFleet
        self._fleet = fleet(
            [node.spec for node in setup.nodes],
            ambient_k=self._weather.outdoor_k(0.0),
            idle_states=setup.idle_states,
            managed=managed,
            gpu_model=setup.gpu_throughput,
            seed=setup.seed,
        )
        self._limits = _scheme(setup, self._fleet)
        if setup.gpu_limit_pct is not None:
            limit_all(self._fleet, setup.gpu_limit_pct)
        self._gpu_speed = np.array([node.gpu_speed if setup.gpu_speeds else 1.0 for node in setup.nodes])
        plant = setup.plant(self._fleet.peak_w)
        started = None if plant is None else stack.enter_context(plant)
        self._facility = Facility(started, setup.intensity_g_per_kwh, setup.price_per_kwh)
        self._counted_j = 0.0
        self._counted_s = 0.0
        self._capacity = NodeCapacity(setup.nodes)
        self._admission = Admission(setup.nodes, class_rule=setup.scheduler != KUBE)
        self._kinds = KindTable(self._capacity, self._admission)
        self._queue = PendingQueue(self._kinds)
        self._running = RunningJobs(len(setup.nodes), self._fleet.n_devices, self._jobs.gang_sizes)
        held = self._jobs.gang_sizes if setup.gangs == "together" else {}
        counted = self._kinds if setup.compiled else None
        self._gate = GangGate(held, self._capacity, self._admission, self._choose, counted)
        self._scheduler = make_scheduler(
            setup.scheduler, setup.nodes, self._capacity, self._twins, np.random.default_rng(setup.seed)
        )
        compiled = compiled_scheduler(self._scheduler, self._capacity, self._kinds) if setup.compiled else None
        self._choose_compiled = None if compiled is None else compiled.choose
        self._recorder = Recorder(setup.duration_s, setup.n_samples)
        n_nodes = len(setup.nodes)
        self._demand = 0
        self._blocking: IntArray = np.zeros(n_nodes, dtype=np.int64)
        self._full_power: IntArray = np.zeros(n_nodes, dtype=np.int64)
        self._performance: IntArray = np.zeros(n_nodes, dtype=np.int64)
        self._on_eco = 0
        self._freed_nodes: set[int] = set()
        self._loaded: set[int] = set()
        self._unsteady = _NO_NODES
        self._dirty_s = self._fleet.telemetry_settling_s + setup.times.operator_s
        self._dirty_until_s = -math.inf

    def run(self, on_progress: OnProgress | None, on_sample: OnSample | None) -> Outcome:
        """Run from the pre-roll to the end."""
        end_s = self._setup.duration_s
        self._mark_dirty()
        self._process_events()
        while self._now_s < end_s:
            self._advance(min(self._next_event_s(), end_s))
            self._process_events()
            if self._recorder.next_s <= self._now_s:
                self._sample()
                if on_sample is not None:
                    on_sample(self._current_sample())
                if on_progress is not None:
                    on_progress(self._now_s, end_s)
        self._count_facility()
        return self._outcome()

    # ---- time

    def _next_event_s(self) -> float:
        """Time of the next event, s."""
        now_s = self._now_s
        due_s = [self._recorder.next_s, self._running.next_end_s, self._jobs.next_submit_s]
        if self._facility.counts and now_s >= 0.0:
            due_s.append(self._counted_s + self._setup.facility_step_s)
        if len(self._unsteady):
            due_s.append(now_s + self._fleet.settling_s)
        if self._limits is not None:
            due_s.append(self._limits.next_s)
        if self._control is not None:
            due_s.append(self._control.next_change_s(now_s))
            if now_s < self._dirty_until_s:
                operator_s = self._setup.times.operator_s
                due_s.append((math.floor(now_s / operator_s + 1e-9) + 1) * operator_s)
        return max(min(due_s), now_s)

    def _advance(self, until_s: float) -> None:
        dt_s = until_s - self._now_s
        if dt_s <= 0.0:
            return
        fleet = self._fleet
        if not len(self._unsteady):
            fleet.advance_steady(dt_s, self._outdoor_k)
            self._now_s = until_s
        else:
            fleet.advance(dt_s, self._outdoor_k)
            self._now_s = until_s
            gpu_rate = fleet.mean_gpu_throughput * self._gpu_speed[:, np.newaxis]
            self._running.advance(self._unsteady, until_s, fleet.mean_frequency, gpu_rate)
        if self._first_s < 0.0 and until_s == 0.0:
            fleet.state.energy_j[:] = 0.0
        # A plant's power is not linear in the heat, so its steps must not average over a long time with many events.
        step_s = _PLANT_STEP_S if self._facility.cooled else self._setup.facility_step_s
        if until_s >= self._counted_s + step_s:
            self._count_facility()

    @property
    def _outdoor_k(self) -> float:
        """Outdoor temperature now, K; during the pre-roll that of the start."""
        return self._weather.outdoor_k(max(self._now_s, 0.0))

    def _count_facility(self) -> None:
        if self._now_s <= self._counted_s:
            return
        total_j = float(self._fleet.state.energy_j.sum())
        outdoor_k = self._weather.outdoor_k(self._counted_s)
        self._facility.advance(total_j - self._counted_j, outdoor_k, self._counted_s, self._now_s)
        self._counted_j, self._counted_s = total_j, self._now_s

    # ---- events

    def _process_events(self) -> None:
        """Process what happens now: jobs end, operator and agents act, jobs arrive, pods are placed, loads change."""
        for pod in self._running.done(self._now_s):
            self._finish(pod)
        if self._control is not None:
            self._cycle(self._control)
        if self._limits is not None:
            self._loaded |= self._limits.cycle(self._now_s)
        for pod in self._jobs.submitted(self._now_s + _TIME_TOLERANCE_S):
            self._submit(pod)
        self._schedule()
        self._update_load()

    def _finish(self, pod: SimPod) -> None:
        node, devices = self._jobs.finished(pod, self._now_s)
        self._running.finish(pod)
        if self._limits is not None:
            self._loaded |= self._limits.finish(pod, self._now_s)
        self._capacity.release(pod.kind, node, devices)
        self._blocking[node] -= pod.blocks
        self._full_power[node] -= pod.lifts_caps
        self._count_performance(node, -pod.view.performance)
        self._demand -= pod.view.performance
        self._freed_nodes.add(node)
        self._loaded.add(node)
        self._mark_dirty()

    def _submit(self, pod: SimPod) -> None:
        self._demand += pod.view.performance
        self._gate.submit(pod, self._queue)
        self._mark_dirty()

    def _cycle(self, control: NativeControl) -> None:
        now_s, times = self._now_s, self._setup.times
        if _is_multiple(now_s, times.operator_s):
            moved = control.cycle(now_s, self._demand, self._blocking, self._fleet.sensed_w, self._full_power)
            if moved:
                self._admission.set_classes(control.node_class)
                self._kinds.refresh()
                self._capacity.mark_changed(moved)
                # Pods may select either class, and kube-scheduler retries whenever a node's labels change.
                self._freed_nodes.update(moved)
                self._on_eco = int(self._performance[control.eco].sum())
                self._recorder.observe(self._on_eco)
                self._mark_dirty()
        if _is_multiple(now_s, times.agent_s):
            for cap in control.caps_due(now_s):
                self._fleet.cap_cpu(cap.node, cap.cpu_w)
                self._fleet.cap_gpus(cap.node, cap.gpu_w)
                self._loaded.add(cap.node)
                self._mark_dirty()

    def _schedule(self) -> None:
        """Place what fits: first the pods in the scheduler's queue, then gangs in the remaining capacity."""
        changed = sorted(self._freed_nodes)
        self._freed_nodes.clear()
        self._queue.schedule(changed, self._place)
        for placed in self._gate.release(changed=bool(changed)):
            self._start(*placed)

    def _place(self, pod: SimPod) -> bool:
        node = self._choose(pod)
        if node is None:
            return False
        self._start(pod, node, self._capacity.allocate(pod.kind, node))
        return True

    def _choose(self, pod: SimPod) -> int | None:
        if self._choose_compiled is not None:
            return self._choose_compiled(pod)
        candidates = np.flatnonzero(self._capacity.feasible(pod.kind) & self._admission.allowed_nodes(pod.kind))
        return self._scheduler.choose(pod, candidates) if len(candidates) else None

    def _start(self, pod: SimPod, node: int, devices: tuple[int, ...]) -> None:
        self._jobs.started(pod, node, devices, self._now_s)
        self._running.start(pod, node, devices, self._now_s)
        self._blocking[node] += pod.blocks
        self._full_power[node] += pod.lifts_caps
        self._count_performance(node, pod.view.performance)
        self._loaded.add(node)
        if self._limits is not None:
            self._limits.start(pod, node, devices, self._now_s)
        self._recorder.observe(self._on_eco)

    def _update_load(self) -> None:
        """Update power and rates of work after loads and limits changed."""
        fleet, running = self._fleet, self._running
        loaded = np.array(sorted(self._loaded), dtype=np.int64)
        self._loaded.clear()
        if len(loaded):
            running.load(loaded, fleet.cores, fleet.load)
            fleet.follow_load(loaded)
        if len(loaded) or len(self._unsteady):
            changed = np.union1d(loaded, self._unsteady) if len(self._unsteady) else loaded
            running.rerate(changed, self._now_s, fleet.frequency, fleet.gpu_throughput, self._gpu_speed)
            self._mark_dirty()
        self._unsteady = fleet.unsteady(self._outdoor_k)
        if len(self._unsteady):
            running.catch_up(self._unsteady, self._now_s)

    # ---- outputs

    def _twins(self) -> TwinView:
        assert self._control is not None
        return self._control.twin_view(self._now_s)

    def _mark_dirty(self) -> None:
        """Note a change: the operator must run its cycles until telemetry has settled at the new power."""
        self._dirty_until_s = self._now_s + self._dirty_s

    def _count_performance(self, node: int, change: int) -> None:
        """Count performance pods that start or end on a node, also among those on eco nodes."""
        self._performance[node] += change
        if self._control is not None and int(self._control.node_class[node]) == NodeClass.ECO:
            self._on_eco += change

    def _sample(self) -> None:
        control, none = self._control, np.zeros(len(self._setup.nodes), dtype=np.bool_)
        self._recorder.observe(self._on_eco)
        self._recorder.sample(
            self._fleet,
            cooling_w=self._facility.latest.cooling_w,
            outdoor_k=self._outdoor_k,
            running=len(self._running),
            waiting=len(self._queue) + len(self._gate),
            eco=none if control is None else control.eco,
            draining=none if control is None else control.draining,
        )

    def _current_sample(self) -> Sample:
        self._count_facility()
        twins = None if self._control is None else self._twins()
        node_j = self._fleet.state.energy_j
        return Sample(twins, float(node_j.sum()), self._facility.cooling_j, node_j)

    def _outcome(self) -> Outcome:
        setup, facility = self._setup, self._facility
        energy_j = self._fleet.state.energy_j
        nodes = [
            NodeOutcome(node.name, node.family, float(used_j))
            for node, used_j in zip(setup.nodes, energy_j, strict=True)
        ]
        drains = () if self._control is None else self._control.drains()
        return Outcome(
            duration_s=setup.duration_s,
            it_j=float(energy_j.sum()),
            cooling_j=facility.cooling_j if facility.cooled else None,
            jobs=self._jobs.outcomes(self._running, setup.duration_s),
            nodes=tuple(sorted(nodes, key=lambda node: node.name)),
            drains=tuple(drain for drain in drains if drain.start_s >= 0.0),
            series=self._recorder.series(),
            busy_gpu_j=self._fleet.busy_gpu_j,
            busy_gpu_s=self._fleet.busy_gpu_s,
            carbon_g=None if setup.intensity_g_per_kwh is None else facility.carbon_g,
            cost=None if setup.price_per_kwh is None else facility.cost,
            notes=self._jobs.notes,
        )


def _scheme(setup: Setup, fleet: LiveFleet) -> GpuScheme | None:
    if setup.gpu_limits is not None:
        return LimitSearch(setup.gpu_limits, fleet)
    match setup.gpu_scheme:
        case "node-wide":
            return NodeWideLimits(fleet)
        case "best":
            return BestLimits(fleet, GpuLimits().standard.max_slowdown, None)
        case "best-all":
            return BestLimits(fleet, GpuLimits().standard.max_slowdown, PERFORMANCE_SLOWDOWN)
        case None:
            return None


_ALL_PERFORMANCE = StaticPartition(PolicySettings(static_hp_frac=1.0))


def _pre_roll_s(control: Control, times: ControlTimes) -> float:
    """Time before the start in which a cluster settles, s: planned drains complete, all caps are applied."""
    settling_s = control.settings.drain.settling_s + control.settings.trend_window_s + 3.0 * times.agent_s
    return (math.ceil(settling_s / times.operator_s) + 3.0) * times.operator_s


def _is_multiple(time_s: float, interval_s: float) -> bool:
    return abs(time_s - round(time_s / interval_s) * interval_s) < _TIME_TOLERANCE_S
