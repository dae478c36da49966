"""Extenders in processes of their own: Joulie's with a fleet that changes as a cluster does, and one of constants."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from itertools import cycle
from multiprocessing.connection import Connection
from time import time

import numpy as np

from joulie.adapters.kubernetes.pods import PodFacts, ProfileFacts
from joulie.apps.extender import wire
from joulie.apps.extender.fleet import Fleet
from joulie.apps.extender.main import VIEW_S
from joulie.apps.extender.metrics import ExtenderMetrics
from joulie.apps.extender.node_facts import LoadFacts, TwinFacts, TwinNumbers
from joulie.apps.extender.power_room import BoundPod, BudgetRoom, PowerRoom
from joulie.apps.extender.server import Extender, max_body_bytes, read_body
from joulie.domain.grid.names import MAX_POWER_WATTS, MIN_EFFICIENCY, POLICY_PREFIX, PREFIX
from joulie.domain.scoring.extender import NodeClass
from joulie.domain.scoring.marginal_energy import ScoringAim
from joulie.domain.scoring.occupancy import LifeClass, Occupancy, PlacedPod
from joulie.domain.scoring.shared_gpus import GpuDemand, SharedGpus, SharingPod
from joulie.domain.scoring.sharing import FULL_GPU_MILLI
from joulie.program.http import AsgiApp, Probes, Receive, Scope, Send, Server, observability_app, respond
from joulie_lab.benchmarks.extender.calls import NAMESPACE, RACK, is_crowded, is_eco

MAX_CANDIDATES = 10_000
_NEUTRAL = 5
_STALENESS_S = 300.0
_TWINS_CHANGED_S = 500
"""Twins that change in a second, one by one as a watch reports them: of 5,000 nodes each every ten seconds."""
_PODS_OF_A_NODE = 10
_FULL_POWER_PODS = 2
"""Of those of a node that is not eco."""
_GPU_PODS = 6
"""Of those of a node, with SCORING=frugal: fewer than it has GPUs, so that any of them fit."""
_PARTS_MILLI = (250, 500, FULL_GPU_MILLI)
_NAMESPACES = 200
"""Namespaces with policies."""
_RACKS_OF_A_ROW = 16
_BUDGET_STATUS_S = 20.0
"""Mean time between changes of a budget's status."""
_ROOMY_W = 1e6
_CROWDED_W = -50.0
_TICK_S = 0.01

Tick = Callable[[], None]
"""What changes in `_TICK_S`."""


class World:
    """What an extender knows of a cluster, and how it changes.

    Attributes:
        fleet: the nodes.
        occupancy: their pods with SCORING=marginal.
    """

    def __init__(
        self,
        names: list[str],
        scoring: ScoringAim = ScoringAim.HEADROOM,
        *,
        policies: bool = False,
        watts: bool = False,
        crowded: bool = False,
    ) -> None:
        """Create a cluster.

        Args:
            names: of its nodes, half of which are eco.
            scoring: the extender's.
            policies: whether namespaces limit the power and the efficiency of nodes, which all nodes keep.
            watts: whether racks, rows and the cluster have power budgets.
            crowded: whether the budgets of every other rack have nothing left.
        """
        self._names = names
        self._rng = np.random.default_rng(2)
        self._crowded = crowded
        self.occupancy = Occupancy() if scoring is ScoringAim.MARGINAL else None
        self._shared = SharedGpus() if scoring is ScoringAim.FRUGAL else None
        self._power = PowerRoom(ready=True) if watts else None
        self._budgets: list[str] = []
        if watts:
            self._budgets = list(dict.fromkeys(one for index in range(len(names)) for one in _budgets(index)))
        self.fleet = Fleet(_STALENESS_S, scoring, occupancy=self.occupancy, shared=self._shared, power=self._power)
        gpus = 8.0 if self._shared is not None else 0.0
        load = LoadFacts(cores=96.0, cpu_max_w=700.0, gpus=gpus, gpu_max_w=400.0, gpu_idle_w=50.0 * gpus, floor_w=250.0)
        for index, name in enumerate(names):
            self._change_twin(index)
            self.fleet.set_load(name, load)
        for index in range(len(self._budgets)):
            self._change_budget(index)
        counts_pods = any(one is not None for one in (self.occupancy, self._shared, self._power))
        for pod in range(_PODS_OF_A_NODE * len(names) if counts_pods else 0):
            self._change_pod(pod, age_s=self._rng.exponential(7200.0))
        if policies:
            limits = {MAX_POWER_WATTS: "10000", MIN_EFFICIENCY: "0.001"}
            texts = {key.replace(PREFIX, POLICY_PREFIX): text for key, text in limits.items()}
            for namespace in (NAMESPACE, *(f"team-{number}" for number in range(_NAMESPACES))):
                self.fleet.set_policies(namespace, texts)
        if self.occupancy is not None:
            self.occupancy.refresh(time())

    def change(self) -> None:
        """What changes in a tick: some twins, the pod of one node, now and then the status of a budget."""
        changed = self._rng.integers(len(self._names), size=round(_TWINS_CHANGED_S * _TICK_S)).tolist()
        for index in changed:
            self._change_twin(index)
        self._change_pod(changed[0] + len(self._names) * int(self._rng.integers(_PODS_OF_A_NODE)), age_s=0.0)
        for index in np.flatnonzero(self._rng.random(len(self._budgets)) < _TICK_S / _BUDGET_STATUS_S).tolist():
            self._change_budget(index)

    def _change_twin(self, index: int) -> None:
        """Any state of a node."""
        eco = is_eco(index)
        draw = self._rng.uniform(0.0, 1.0, 4).tolist()
        numbers = TwinNumbers(
            capped_w=600.0 if eco else 1000.0,
            measured_w=100.0 + 500.0 * draw[0],
            cooling_stress_pct=100.0 * draw[1],
            headroom_score=100.0 * draw[2],
            trend_w_per_min=100.0 * draw[3] - 50.0,
            cpu_cap_fraction=0.6 if eco else 1.0,
            gpu_cap_fraction=1.0,
        )
        budgets = _budgets(index) if self._power is not None else ()
        node_class = NodeClass.ECO if eco else NodeClass.PERFORMANCE
        self.fleet.set_twin(self._names[index], TwinFacts(node_class, numbers, time(), budgets=budgets))

    def _change_budget(self, index: int) -> None:
        name = self._budgets[index]
        kind, _, number = name.partition("-")
        short = self._crowded and kind == "rack" and is_crowded(int(number))
        if self._power is not None:
            self._power.set_budget(name, BudgetRoom(_CROWDED_W if short else _ROOMY_W, time()))

    def _change_pod(self, pod: int, age_s: float) -> None:
        """Replace a pod by one that started so long ago, of one of some hundred workloads."""
        rank, node = divmod(pod, len(self._names))
        name, workload, cores = self._names[node], int(self._rng.integers(300)), int(self._rng.integers(1, 9))
        started_s = time() - age_s
        if self.occupancy is not None:
            life = LifeClass(workload, service=False, gpu=False)
            self.occupancy.set_pod(pod, PlacedPod(name, float(cores), 0.0, life, started_s), time())
        if self._shared is not None:
            milli = _PARTS_MILLI[workload % len(_PARTS_MILLI)]
            demand = GpuDemand(1, milli) if rank < _GPU_PODS else GpuDemand()
            self._shared.set_pod(pod, SharingPod(name, str(pod), 1000 * cores, demand))
        if self._power is not None:
            full_power = rank < _FULL_POWER_PODS and not is_eco(node)
            self._power.set_pod(pod, BoundPod(name, str(pod), 6 * cores, full_power, started_s), time())


def _budgets(node: int) -> tuple[str, ...]:
    """The power budgets that cover a node."""
    rack = node // RACK
    return f"rack-{rack}", f"row-{rack // _RACKS_OF_A_ROW}", "cluster-0"


def no_profile(_pod: PodFacts) -> ProfileFacts:
    """No WorkloadProfile applies."""
    return ProfileFacts()


def _joulie(
    names: list[str],
    scoring: ScoringAim = ScoringAim.HEADROOM,
    *,
    policies: bool = False,
    watts: bool = False,
    crowded: bool = False,
) -> tuple[AsgiApp, Tick]:
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry()
    world = World(names, scoring, policies=policies, watts=watts, crowded=crowded)
    extender = Extender(world.fleet, no_profile, lambda: (), ExtenderMetrics(registry), time)
    extender.refresh()

    view_due = cycle([False] * (round(VIEW_S / _TICK_S) - 1) + [True])
    busy_due = cycle([False] * (round(Occupancy().refresh_s / _TICK_S) - 1) + [True])

    def tick() -> None:
        world.change()
        if world.occupancy is not None and next(busy_due):
            world.occupancy.refresh(time())
        if next(view_due):
            extender.refresh()

    return extender.app(observability_app(Probes(), registry)), tick


def _constants(names: list[str]) -> tuple[AsgiApp, Tick]:
    """A minimal extender: parse the call and return the same score for every candidate."""
    entries = {name: wire.host_score(wire.json_text(name), _NEUTRAL) for name in names}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        _, given = wire.read_args(await read_body(receive, max_body_bytes("filter", MAX_CANDIDATES)))
        assert isinstance(given, list)
        if scope["path"] == "/filter":
            answer = wire.filter_result(names=wire.json_text(given))
        else:
            answer = wire.json_array([entries[name] for name in given])
        await respond(send, 200, answer, b"application/json")

    return app, lambda: None


APPS: Mapping[str, Callable[[list[str]], tuple[AsgiApp, Tick]]] = {
    "constants": _constants,
    "joulie": _joulie,
    "policies": partial(_joulie, policies=True),
    "watts": partial(_joulie, watts=True),
    "watts_crowded": partial(_joulie, watts=True, crowded=True),
    "marginal": partial(_joulie, scoring=ScoringAim.MARGINAL),
    "marginal_watts": partial(_joulie, scoring=ScoringAim.MARGINAL, policies=True, watts=True),
    "frugal": partial(_joulie, scoring=ScoringAim.FRUGAL),
    "frugal_watts": partial(_joulie, scoring=ScoringAim.FRUGAL, policies=True, watts=True),
}


@contextmanager
def served(name: str, names: list[str], *, core: int | None = None) -> Iterator[int]:
    """The port of an extender in a process of its own.

    Args:
        name: of `APPS`; constants gives every candidate the same.
        names: the nodes that it knows.
        core: which of the processor's it stays on; where the system puts it if not given.
    """
    ours, theirs = multiprocessing.Pipe()
    arguments = (name, names, core, theirs)
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=arguments, daemon=True)
    process.start()
    theirs.close()  # so that a process that dies is not waited for
    try:
        yield int(ours.recv())
    finally:
        with suppress(OSError):
            ours.send(None)
        process.join(timeout=10.0)
        process.kill()


def _serve(name: str, names: list[str], core: int | None, pipe: Connection) -> None:
    import gc

    import uvloop

    if core is not None:
        pin(core)

    async def main() -> None:
        app, tick = APPS[name](names)
        async with Server(app, ("127.0.0.1", 0)) as server:
            gc.collect()
            gc.freeze()
            pipe.send(server.port)
            while not pipe.poll():
                await asyncio.sleep(_TICK_S)
                tick()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def pin(core: int) -> None:
    """Stay on one core: the first for servers, the last for the caller."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[core]})
