"""A random course of faults for the whole operator: its own loops over the fake cluster, and machines that draw power.

In each step of two seconds machines draw, agents set and confirm limits, sources are read, and the operator looks at
its budgets and runs cycles; it is killed, doubled, cut off, blinded or misled as the course has it. What must hold is
checked after each step, by what the machines do, not by what the operator believes.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import httpx2
import numpy as np

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.kubernetes.errors import KubernetesError
from joulie.adapters.kubernetes.resources import EVENTS, NODE_TWINS, NODES, PODS, POWER_BUDGETS
from joulie.adapters.kubernetes.times import rfc3339
from joulie.adapters.prometheus import Prometheus
from joulie.apps.operator.facts import asked_caps
from joulie.domain.capping.trip import EARLIEST
from joulie.domain.hardware import CapRange
from joulie.domain.mode import Mode
from joulie.domain.policy import PolicySettings
from joulie.ports.power_switch import PowerState
from joulie.program.leadership import NotLeadingError
from joulie_lab.fakes.kubernetes.api import Writer
from support.operator_stage import Stage, staged, until
from support.power_switches import OFF, ON, FakeMachine, Site

STEP_S, RESPONSE_S = 2.0, 15.0
CONFIRM_S = 4 * STEP_S
"""What agents of a course need to set and confirm a limit."""
BLIND_S = RESPONSE_S / 2.0 + 2 * STEP_S
"""After which a feed says that it is blind."""
CYCLE_STEPS = 30
"""Between cycles that nothing asks for, a minute as by default."""
FAULTS = (
    "agents killed", "operator killed", "API away", "two leaders", "clock jumps", "lowered", "power cut",
    "late", "lost", "stuck", "lying", "demand", "pods", "pods wait", "does not wake", "job ends",
    "lease lost", "wakes twice", "dies asleep",
)  # fmt: skip
READINGS = ("late", "lost", "stuck", "lying")
CPUS, GPUS = 2, 8
CPU_W, GPU_W = CapRange(320.0, 360.0, 360.0), CapRange(350.0, 700.0, 700.0)
"""Range of the limits of an EPYC 9654 and an H100."""
OTHER = 0.2
STANDBY_W = 50.0
JOB_W = 450.0
"""Limit of its GPUs that a job states."""
SLEEPERS = ("n1", "n5")
"""Nodes with a power switch; the others stay awake."""
LOOK_STEPS, BOOT_STEPS, AGENT_STEPS = 5, 7, 3
"""Between two looks at sleep; what a machine takes to boot, the last of them with a kubelet and no agent."""
TOLD_STEPS = 4 * LOOK_STEPS
"""After which a pod that waits has been told why."""
SETTLES_STEPS = 8
"""In which a slow agent has set and confirmed what one leader alone asks for."""
EPS_W = 2.0
STATUS_BAND = 0.1
"""By how much of its limit a status may be off once all is calm."""
NODE_LABEL = "course"
GPU_LABELS = {names.HW_GPU_MODEL_LABEL: "NVIDIA-H100-80GB-HBM3", names.HW_GPU_COUNT_LABEL: str(GPUS)}


@dataclass
class Machine:
    """A node: its devices, and its agent, which sets a limit in one step or two and confirms it in the next."""

    name: str
    rack: str
    gpus: int = GPUS
    demand: float = 0.9
    cpu_w: float = CPU_W.base_w
    gpu_w: float = GPU_W.base_w
    on: bool = True
    boot: int = 1
    boots: int = 0
    """Steps until it has booted."""
    told: tuple[bool, int] = (True, 0)
    """Whether its kubelet said that it is ready, and in which boot."""
    agent: bool = True
    slow: bool = False
    late: bool = False
    """Whether a slow agent has let a step pass already."""
    set_generation: int | None = None
    job: str = ""
    """Pod that holds its GPUs and states a limit for them."""
    confirmed: tuple[int, int, str] | None = None

    @property
    def other_w(self) -> float:
        return OTHER * (CPUS * CPU_W.base_w + self.gpus * GPU_W.base_w)

    def _sum_w(self, cpu_w, gpu_w):
        return self.other_w + CPUS * cpu_w + self.gpus * gpu_w if self.on else STANDBY_W

    @property
    def drawn_w(self) -> float:
        return self._sum_w(min(self.cpu_w, self.demand * CPU_W.base_w), min(self.gpu_w, self.demand * GPU_W.base_w))

    @property
    def worst_w(self) -> float:
        return self._sum_w(self.cpu_w, self.gpu_w)

    @property
    def floor_w(self) -> float:
        return self._sum_w(CPU_W.min_w, GPU_W.min_w)

    @property
    def full_w(self) -> float:
        return self._sum_w(CPU_W.base_w, GPU_W.base_w)

    def start(self):
        self.on, self.boot, self.boots = True, self.boot + 1, BOOT_STEPS

    def cut(self):
        self.on, self.set_generation, self.confirmed = False, None, None
        self.cpu_w, self.gpu_w = CPU_W.base_w, GPU_W.base_w

    def could_w(self, twin):
        """Worst case under what is set, and what may be set at any time, W."""
        limits_w = self.cpu_w, self.gpu_w
        return self._sum_w(*(limits_w if twin is None else map(max, limits_w, self.asked(twin))))

    def asked(self, twin):
        """Limits of one package and one GPU that a NodeTwin asks for, W; a GPU's own holds where it is lower."""
        cpu_w, gpu_w = (
            limits.base_w if cap is None else cap.for_device(limits)
            for cap, limits in zip(asked_caps(twin), (CPU_W, GPU_W), strict=True)
        )
        return cpu_w, min((gpu_w, *(one.watts for one in twin.spec.gpu_limits)))


@dataclass
class SlowSwitch(FakeMachine):
    """A machine whose BMC is slow to answer: meanwhile something happens, perhaps."""

    meanwhile: Callable[[PowerState], None] = lambda _: None

    async def state(self):
        power = await super().state()
        self.meanwhile(power)
        return power


@dataclass
class BrokenError(AssertionError):
    """What did not hold, and the course up to there."""

    what: str
    step: int
    course: list = field(default_factory=list)

    def __str__(self):
        return f"step {self.step}: {self.what}; course {self.course}"


class Course:
    """One course, drawn from a seed."""

    def __init__(self, stage: Stage, seed: int, *, uncapped: bool) -> None:
        self.stage, self.rng = stage, np.random.default_rng(seed)
        self.machines = {
            name: Machine(name, rack, gpus, slow=name in ("n0", "n3", "n4"))
            for name, rack, gpus in (
                ("n0", "r0", GPUS), ("n1", "r0", GPUS), ("n2", "r1", GPUS), ("n3", "r1", GPUS),
                ("n4", "r2", 0), ("n5", "r2", 0),
            )
        }  # fmt: skip
        self.uncapped = uncapped
        """Whether no policy caps nodes."""
        self.budgets: dict[str, float] = {}
        self.over_s: Counter[str] = Counter()
        self.could_w: dict[str, float] = {}
        """What nodes under each budget that was said to fit could draw after the step before, W."""
        self.now_s, self.jump_s, self.steps = stage.now_s, 0.0, 0
        self.away = self.headless = False
        self.readings = "true"
        self.held: dict[str, float] = {}
        self.taken: list[tuple[float, dict[str, float]]] = []
        self.unread_s = self.longest_s = 0.0
        self.heat = 0.5
        self.old_loop = None
        self.unsettled = 0
        """Step until which what two leaders asked for may be in force."""
        self.pods: dict[str, str] = {}
        self.site = Site()
        self.site.machines = {name: SlowSwitch() for name in SLEEPERS}
        self.volumes = stage.loop._sleep._volumes
        self.work: list[str] = []
        self.waiting: dict[str, tuple[str, int]] = {}
        """Pods that wait, with their node, and since which step they have while somebody could tell them why."""
        self.played: list[tuple] = []

    # ---- the world

    async def begin(self):
        for one in self.machines.values():
            labels = {names.RACK_LABEL: one.rack, NODE_LABEL: one.name} | (GPU_LABELS if one.gpus else {})
            if one.name not in SLEEPERS:
                labels[names.KEEP_AWAKE_LABEL] = "true"
            await self.stage.add_node(one.name, **labels)
        for name in SLEEPERS:
            switch = {"metadata": {"annotations": {names.POWER_SWITCH_ANNOTATION: "redfish"}}}
            switch["spec"] = {"taints": []}  # as a real node has one
            await self.stage.client.patch(NODES, name, switch)
        await until(lambda: all(self.stage.view.node(name).power_switch for name in SLEEPERS))
        await until(lambda: self.volumes.all is not None)
        self._equip()
        await self._machines()
        await self.stage.step()
        full_w = {rack: sum(one.full_w for one in self._of(rack)) for rack in ("", "r0", "r1")}
        self.rated_w = 0.9 * full_w["r1"]
        await self._budget("hall", full_w[""] * self.rng.uniform(0.85, 0.95))
        await self._budget("rack", full_w["r0"] * self.rng.uniform(0.8, 0.95), rack="r0")
        await self._budget("feed", 0.99 * self.rated_w, rack="r1", breaker={"ratedWatts": self.rated_w})
        await self._begin_job()
        for _ in range(12):
            await self.step()

    def _some(self, items, count):
        items = list(items)
        return [items[index] for index in self.rng.permutation(len(items))[:count].tolist()]

    def _one(self, items):
        return self._some(items, 1)[0]

    def _count(self, low, high):
        return int(self.rng.integers(low, high + 1))

    def _of(self, rack):
        return [one for one in self.machines.values() if rack in ("", one.rack)]

    def covered(self, budget):
        return self._of({"hall": "", "rack": "r0", "feed": "r1"}[budget])

    async def _budget(self, name, watts, rack="", **spec):
        selector = {"nodeSelector": {names.RACK_LABEL: rack}} if rack else {}
        body = {"metadata": {"name": name}, "spec": {"watts": watts} | selector | spec}
        await self.stage.client.create(POWER_BUDGETS, body)
        self.budgets[name] = watts

    def _equip(self):
        """What a new term has besides."""
        self.stage.loop._sleep._volumes = self.volumes
        self.stage.loop._sleep._power._switches = self.site

    async def _machines(self):
        """Machines obey their switches and boot, and kubelets say so where the API server hears them."""
        for one in self.machines.values():
            switched_on = one.name not in SLEEPERS or self.site.machines[one.name].power is ON
            if one.name in SLEEPERS and one.on != switched_on:
                one.start() if switched_on else self._switched_off(one)
            one.boots = max(one.boots - 1, 0)
            now = (one.on and one.boots <= AGENT_STEPS, one.boot)
            # A kubelet that falls silent says nothing of its boot.
            if now != one.told and not self.away and (now[0] or one.told[0]):
                await self._kubelet(one, *now)

    def _switched_off(self, one):
        lost = [pod["metadata"]["name"] for pod in self._stored(PODS) if pod["spec"].get("nodeName") == one.name]
        if lost:
            self._broken(f"{one.name} is switched off with {lost} on it")
        one.cut()

    def _stored(self, resource):
        """The objects of a kind as the API server has them."""
        return [one.obj for one in self._table(resource).values()]

    def _table(self, resource):
        api = self.stage.cluster.api
        return api.store.table(api.kind(resource.group, resource.version, resource.plural)).objects

    async def _kubelet(self, one, ready, boot):
        condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": rfc3339(self.stage.now_s)}
        status = {"conditions": [condition], "nodeInfo": {"bootID": f"boot-{boot}"}}
        await self.stage.client.patch(NODES, one.name, {"status": status}, subresource="status")
        one.told = ready, boot
        await until(
            lambda: (facts := self.stage.view.node(one.name)).ready == ready and facts.boot_id == f"boot-{boot}"
        )

    async def _schedule(self):
        """Bind the pods whose node is open, as kube-scheduler does."""
        for name, (node, _) in list(self.waiting.items()):
            facts = self.stage.view.node(node)
            if facts.ready and not facts.asleep and not facts.sleep_mark:
                target = {"target": {"kind": "Node", "name": node}}
                await self.stage.client.create_subresource(PODS, name, "binding", target, "default")
                await self._phase(name, "Running")
                del self.waiting[name]
                self.work.append(name)

    async def _phase(self, name, phase):
        await self.stage.client.patch(
            PODS, name, {"status": {"phase": phase}}, namespace="default", subresource="status"
        )
        await until(
            lambda: (seen := self.stage.view.pods.get(Key("default", name))) and str(seen.phase) == phase.lower()
        )

    def _agents(self):
        if self.away:
            return
        for one in self.machines.values():
            twin = self.stage.view.twin_of(one.name)
            if twin is None or not (one.on and one.agent) or one.boots:
                continue
            if one.set_generation is not None and one.confirmed != (one.set_generation, one.boot, one.job):
                self._confirm(one)
            one.late = one.slow and not one.late and one.set_generation != twin.metadata.generation
            if one.late:
                continue
            one.cpu_w, one.gpu_w = one.asked(twin)
            one.set_generation = twin.metadata.generation

    def _confirm(self, one):
        applied = {"backend": "http", "result": "applied"}
        report = {"cpu": applied} | ({"gpu": applied} if one.gpus else {})
        report |= {"observedGeneration": one.set_generation, "bootID": f"boot-{one.boot}"}
        holders = [{"namespace": "default", "name": one.job}] if one.job else []
        limits = {"limitWatts": one.gpu_w, "originalWatts": GPU_W.base_w, "minWatts": GPU_W.min_w, "pods": holders}
        report["gpus"] = [{"id": f"GPU-{number}"} | limits for number in range(one.gpus)]
        api = self.stage.cluster.api
        kind = api.kind("joulie.io", "v1alpha1", "nodetwins")
        writer = Writer(names.AGENT_FIELD_MANAGER, "status")
        config = {
            "apiVersion": "joulie.io/v1alpha1",
            "kind": "NodeTwin",
            "metadata": {"name": names.object_name(one.name)},
            "status": {"controlStatus": report},
        }
        api.apply(kind, "", names.object_name(one.name), config, writer, force=True)
        one.confirmed = (one.set_generation, one.boot, one.job)

    def answer(self, _request):
        """Prometheus: the power of whole nodes, as the course has it read."""
        time_s, power_w = self.taken[max(len(self.taken) - 1 - 5, 0) if self.readings == "late" else -1]
        if self.readings == "stuck":
            power_w = self.held
        if self.readings == "lost":
            power_w = {}
        factor = 0.95 if self.readings == "lying" else 1.0
        result = [{"metric": {"node": name}, "value": [time_s, str(watts * factor)]} for name, watts in power_w.items()]
        return httpx2.Response(200, json={"status": "success", "data": {"resultType": "vector", "result": result}})

    # ---- one step

    async def step(self):
        stage = self.stage
        self.steps += 1
        self.now_s += STEP_S
        stage.now_s = self.now_s + self.jump_s
        await self._machines()
        self._agents()
        self._check_power()
        if not self.away:
            await self._schedule()
        power_w = {one.name: one.drawn_w * (1.0 - 1e-4 * (self.steps % 3)) for one in self.machines.values() if one.on}
        self.taken = [*self.taken[-8:], (stage.now_s, power_w)]
        if self.readings != "stuck":
            self.held = power_w
        if not self.headless:
            await self._operate()
        await self._caught_up()
        self._check_raises()
        bad = self.readings in ("late", "lost", "stuck")
        self.unread_s = self.unread_s + STEP_S if bad and not (self.headless or self.away) else 0.0
        if not (self.headless or self.away):
            await self._check_reports()

    async def _operate(self):
        stage = self.stage
        await stage.loop._power.poll()
        for loop in [stage.loop] if self.old_loop is None else self._some([stage.loop, self.old_loop], 2):
            try:
                await loop._budgets.look()
            except (KubernetesError, NotLeadingError):
                assert self.away or not stage.leading, "a look fails only without the API server or the lease"
        if (stage.wake.is_set() and self.steps % 2) or self.steps % CYCLE_STEPS == 0:
            stage.wake.clear()
            await stage.loop.step()
        if self.steps % LOOK_STEPS == 0:
            await stage.loop._gpu_limits.look()
            await self._sleep()

    async def _operate_without_lease(self):
        """All that a process does that has not noticed yet that it leads no longer: nothing of it may be written."""
        kinds, machines = (NODES, NODE_TWINS, POWER_BUDGETS), self.site.machines

        def written():
            found = {(kind.plural, key): one.revision for kind in kinds for key, one in self._table(kind).items()}
            return found | {name: len(machine.calls) for name, machine in machines.items()}

        before = written()
        with contextlib.suppress(NotLeadingError):
            await self.stage.loop._budgets.look()
        await self.stage.loop.step()
        await self._sleep()
        changed = [key for key, value in written().items() if value != before.get(key)]
        if changed:
            self._broken(f"{changed} written without the lease")

    async def _sleep(self):
        stage = self.stage
        try:
            await stage.loop._sleep.look()
            await stage.loop._events.flush()
        except (KubernetesError, NotLeadingError):
            assert self.away or not stage.leading, "a look fails only without the API server or the lease"

    async def _caught_up(self):
        view, store = self.stage.view, self.stage.cluster.api
        kinds = [store.kind("joulie.io", "v1alpha1", plural) for plural in ("nodetwins", "powerbudgets")]

        def shown():
            return all(
                {key.name: int(one.metadata.resource_version) for key, one in cache.items()}
                == {key.name: one.revision for key, one in store.store.table(kind).objects.items()}
                for cache, kind in zip((view.twins, view.power_budgets), kinds, strict=True)
            )

        await until(shown)
        nodes = store.store.table(store.kind("", "v1", "nodes")).objects
        await until(
            lambda: all(
                (facts := view.node(key.name)).sleep_mark
                == node.obj["metadata"].get("annotations", {}).get(names.SLEEP_STATE_ANNOTATION, "")
                for key, node in nodes.items()
            )
        )

    # ---- what must hold

    def _check_power(self):
        """By what the machines draw."""
        for name, limit_w in self.budgets.items():
            covered = self.covered(name)
            # While it boots a machine takes no limits.
            least_w = sum(one.floor_w if one.agent and not one.boots else one.worst_w for one in covered)
            drawn_w = sum(one.drawn_w for one in covered)
            if name == "feed":
                self._check_breaker(drawn_w)
                continue
            within = drawn_w <= max(limit_w, least_w) + EPS_W
            counts = not (self.headless or self.away)
            self.over_s[name] = 0.0 if within else self.over_s[name] + (STEP_S if counts else 0.0)
            self.longest_s = max(self.longest_s, self.over_s[name])
            silent = any(not one.agent or not one.on for one in covered)
            allowed_s = RESPONSE_S + (RESPONSE_S + CONFIRM_S if silent else 0.0)
            if self.over_s[name] > allowed_s:
                self._broken(f"{name} over by {drawn_w - limit_w:.0f} W for {self.over_s[name]:.0f} s")
        for twin in self.stage.view.twins.values():
            for cap, limits in zip(asked_caps(twin), (CPU_W, GPU_W), strict=True):
                if cap is not None and cap.watts is not None and cap.watts < limits.min_w:
                    self._broken(f"{twin.spec.node_name} is asked for {cap.watts:.0f} W")

    def _check_raises(self):
        """Power is raised, and nodes wake, only into room that others gave before: by what is set, and what is written.

        Behind a breaker the worst case may be raised beyond the limit; two leaders raise into the same room. Where it
        is not known to fit, policies may raise to ceilings, and ceilings may change below what counts as in force.
        """
        before_w, self.could_w = self.could_w, {}
        if self.old_loop is not None or self.steps < self.unsettled:
            return
        for name, limit_w in self.budgets.items():
            could_w = sum(
                replace(one, on=one.on or not self._is_off(one)).could_w(self.stage.view.twin_of(one.name))
                for one in self.covered(name)
            )
            if name != "feed" and before_w.get(name, could_w) <= limit_w < could_w - EPS_W:
                self._broken(f"{name} of {limit_w:.0f} W is raised: from {before_w[name]:.0f} to {could_w:.0f} W")
            status = self.stage.view.power_budgets[Key("", name)].status
            if any(one.reason == "WorstCaseFits" for one in status.conditions):
                self.could_w[name] = could_w

    def _is_off(self, one):
        """Whether its switch is off; what has lost its power otherwise may be back at any time, without its limits."""
        return one.name in SLEEPERS and self.site.machines[one.name].power is OFF

    def _check_breaker(self, drawn_w):
        if self.headless or self.away:
            return  # nobody lowers limits then, as documented
        self.heat = float(EARLIEST.heated(self.heat, drawn_w / self.rated_w, STEP_S))
        if EARLIEST.trips(self.heat, drawn_w / self.rated_w):
            self._broken("the breaker trips")

    async def _check_reports(self):
        """By what statuses say."""
        for name, limit_w in self.budgets.items():
            stored = next((one for key, one in self.stage.view.power_budgets.items() if key.name == name), None)
            conditions = {one.type: one for one in stored.status.conditions}
            worst_w = sum(one.worst_w for one in self.covered(name))
            kept = conditions.get("Enforced")
            if kept is None or abs(stored.status.limit_watts - limit_w) > EPS_W:
                continue  # it has yet to be looked at
            if kept.reason == "WorstCaseFits" and worst_w > limit_w + EPS_W:
                self._broken(f"{name} is said to fit, and nodes could draw {worst_w - limit_w:.0f} W more")
            if name == "feed" and self.unread_s > BLIND_S and conditions["Blind"].status != "True":
                self._broken(f"{name} is not said to be blind after {self.unread_s:.0f} s")

        self._check_waiting()
        for one in self.machines.values():
            if one.name not in SLEEPERS and self.stage.view.node(one.name).sleep_mark:
                self._broken(f"{one.name} is to stay awake, and is marked")

    def _check_waiting(self):
        """No pod waits without a reason for long."""
        told = {one["involvedObject"]["name"] for one in self._stored(EVENTS) if one["reason"] == "WaitsForNode"}
        for name, (node, since) in self.waiting.items():
            if self.steps - since > TOLD_STEPS and name not in told:
                self._broken(f"{name} waits for {node} and was not told why")

    def _broken(self, what):
        raise BrokenError(what, self.steps, self.played)

    # ---- faults

    async def play(self):
        """Every fault once, in any order, and then peace."""
        for kind in self._some(FAULTS, len(FAULTS)):
            await self._fault(kind, self._count(1, 12))
        await self.peace()

    async def _fault(self, kind, steps):
        self.played.append((self.steps, kind, steps))
        if kind in ("API away", "operator killed", "agents killed"):
            await self._change_budget(curtails=True)  # so that it comes in the middle of it
        for _ in range(self._count(0, 3)):
            self._one(self.machines.values()).demand = self.rng.uniform(0.5, 1.0)
        await getattr(self, "_" + kind.replace(" ", "_").lower(), self._plainly)(kind, steps)

    async def _plainly(self, kind, steps):
        self.readings, self.unread_s = kind if kind in READINGS else "true", 0.0
        await self._steps(steps)
        self.readings = "true"

    async def _steps(self, steps):
        for _ in range(steps):
            await self.step()

    async def _demand(self, _kind, steps):
        for one in self.machines.values():
            one.demand = 1.0
        await self._steps(steps)

    async def _agents_killed(self, _kind, steps):
        killed = self._some(self.machines.values(), self._count(1, 2))
        for one in killed:
            one.agent = False
        await self._steps(20 + steps)  # beyond what may be over then
        for one in killed:
            one.agent = True

    async def _operator_killed(self, _kind, steps):
        """Between two writes, after a budget was lowered perhaps; then another leads."""
        self._kill_after(self._count(0, 4))
        await self.step()
        self._kill_after(0)
        await self._add_waiting()
        await self._without_leader(steps)

    async def _lease_lost(self, _kind, steps):
        """While a switch is read, of a node that is to be switched next."""
        calls = []

        def lose(name, power):
            mark = next(one for one in self._stored(NODES) if one["metadata"]["name"] == name)
            wants = mark["metadata"].get("annotations", {}).get(names.SLEEP_STATE_ANNOTATION, "").partition(" ")[0]
            if (wants, power) in (("waking", OFF), ("asleep", ON)) and self.stage.leading:
                self.stage.leading = False
                calls.extend(self._switch_calls())

        for name, machine in self.site.machines.items():
            machine.meanwhile = partial(lose, name)
        await self._pods_wait("", 0)
        for _ in range(TOLD_STEPS):
            if self.stage.leading:
                await self.step()
        for machine in self.site.machines.values():
            machine.meanwhile = lambda _: None
        if self.stage.leading:
            return
        if self._switch_calls() != calls:
            self._broken("power is switched without the lease")
        await self._without_leader(steps)

    async def _without_leader(self, steps):
        await self._operate_without_lease()
        self.headless = True
        await self._steps(steps)
        self.headless, self.stage.leading = False, True
        await self._lead()

    def _switch_calls(self):
        return [list(machine.calls) for machine in self.site.machines.values()]

    def _kill_after(self, writes):
        stage = self.stage
        left = [writes]

        def may_write():
            left[0] -= 1
            return left[0] >= 0

        for part in (stage.loop._budgets, stage.loop._publisher, stage.loop._sleep, stage.loop._sleep._power):
            part._may_write = may_write
        stage.leading = False

    async def _lead(self):
        """A new term, as it begins."""
        self.stage.loop._publisher.close()
        self.stage.start()
        self._equip()
        self.stage.loop._budgets.begin()
        await self.stage.loop.step()
        await self._sleep()
        await self._caught_up()
        self._check_raises()
        self._heard()

    def _heard(self):
        """From now on somebody could tell pods why they wait."""
        self.waiting = {name: (node, self.steps) for name, (node, _) in self.waiting.items()}

    async def _api_away(self, _kind, steps):
        cluster = self.stage.cluster
        self.away = True
        cluster.fail_next(1_000_000, 503)
        for _ in range(steps):
            self.now_s += self.rng.uniform(0.0, 50.0)
            await self.step()
        cluster.recover()
        self.away = False
        self._heard()

    async def _two_leaders(self, _kind, steps):
        self.old_loop, old = self.stage.loop, self.stage.loop
        self.stage.start()
        self._equip()
        self.stage.loop._budgets.begin()
        await self.stage.loop.step()
        await self._sleep()
        await self._steps(min(steps, 4))
        self.old_loop = None
        old._publisher.close()
        # Its last write lands late.
        one = self._one([one for one in self.machines.values() if one.gpus])
        late = {"spec": {"gpu": {"powerCap": {"capWattsPerGpu": 700}}}}
        await self.stage.client.patch(NODE_TWINS, names.object_name(one.name), late)
        self.unsettled = self.steps + SETTLES_STEPS
        await self._steps(2)

    async def _clock_jumps(self, _kind, steps):
        self.jump_s += self._one([-3600.0, -60.0, -5.0, 5.0, 60.0, 3600.0])
        await self._steps(steps)

    async def _lowered(self, _kind, steps):
        await self._change_budget()
        await self._steps(steps)

    async def _change_budget(self, *, curtails=False):
        """Change a budget: to less than is drawn, or to anything, below what is possible perhaps."""
        name = self._one(["hall", "rack"])
        watts = sum(one.full_w for one in self.covered(name)) * self.rng.uniform(0.55, 0.95)
        if curtails:
            for one in self.machines.values():
                one.demand = 1.0
            drawn_w, floor_w = (
                sum(getattr(one, kind) for one in self.covered(name)) for kind in ("drawn_w", "floor_w")
            )
            watts = floor_w + self.rng.uniform(0.2, 0.8) * (drawn_w - floor_w)
        if watts > 0.0:
            await self.stage.client.patch(POWER_BUDGETS, name, {"spec": {"watts": watts}})
            self.budgets[name] = watts
            await self._caught_up()

    async def _power_cut(self, _kind, steps):
        """A node loses its power, and with it its limits."""
        one = self._one([one for one in self.machines.values() if one.name not in SLEEPERS])
        one.cut()
        self.could_w.clear()
        await self._steps(12 + steps)
        one.start()

    async def _pods(self, _kind, steps):
        """Pods that need full power come and go."""
        if self.pods and self.rng.random() < 0.4:
            name = self._one(sorted(self.pods))
            node = self.pods.pop(name)
            await self._end_pod(name)
        else:
            node, name = self._one([name for name in self.machines if name not in SLEEPERS]), f"pod-{self.steps}"
            self.pods[name] = node
            await self.stage.add_pod(name, node, workload_class="performance")
        count = sum(one == node for one in self.pods.values())
        await until(lambda: self.stage.view.ledger.full_power.get(node, 0) == count)
        await self._steps(steps)

    async def _end_pod(self, name):
        await self.stage.client.delete(PODS, name, "default", grace_s=0)
        await until(lambda: Key("default", name) not in self.stage.view.pods)

    async def _pods_wait(self, _kind, steps):
        """For a node that sleeps, perhaps; one that is done makes room."""
        if self.work:
            await self._end_pod(self.work.pop())
        await self._add_waiting()
        await self._steps(steps)

    async def _add_waiting(self):
        node, name = self._one(SLEEPERS), f"work-{self.steps}"
        spec = {"nodeSelector": {NODE_LABEL: node}, "containers": [{"name": "c"}]}
        await self.stage.client.create(PODS, {"metadata": {"name": name}, "spec": spec}, "default")
        await self._phase(name, "Pending")
        self.waiting[name] = node, self.steps

    async def _begin_job(self):
        """A pod that states a limit for the GPUs of a node that stays awake."""
        one = self._one([one for one in self.machines.values() if one.gpus and one.name not in SLEEPERS])
        name = one.job = f"job-{self.steps}"
        container = {"name": "c", "resources": {"limits": {"nvidia.com/gpu": str(GPUS)}}}
        annotations = {names.GPU_POWER_LIMIT_ANNOTATION: str(JOB_W), names.GPU_LIMITS_ANNOTATION: "false"}
        body = {"metadata": {"name": name, "annotations": annotations}}
        body["spec"] = {"nodeName": one.name, "containers": [container]}
        await self.stage.client.create(PODS, body, "default")
        status = {"phase": "Running", "startTime": rfc3339(self.stage.now_s)}
        await self.stage.client.patch(PODS, name, {"status": status}, namespace="default", subresource="status")
        await until(lambda: (seen := self.stage.view.pods.get(Key("default", name))) and seen.running_since_s)

    async def _end_job(self):
        (one,) = (one for one in self.machines.values() if one.job)
        await self._end_pod(one.job)
        one.job = ""
        return one

    async def _job_ends(self, _kind, steps):
        """And another one begins, elsewhere perhaps."""
        await self._end_job()
        await self._begin_job()
        await self._steps(steps)

    async def _check_job(self):
        """The GPUs of a job have the limit that it states, and no longer than it runs."""
        (one,) = (one for one in self.machines.values() if one.job)
        if self.uncapped and one.gpu_w > JOB_W:
            self._broken(f"{one.job} states {JOB_W} W, and {one.name} has {one.gpu_w:.0f} W")
        await self._end_job()
        await self._steps(SETTLES_STEPS + LOOK_STEPS)
        if self.stage.view.twin_of(one.name).spec.gpu_limits:
            self._broken(f"{one.name} is limited for a job that has ended")

    async def _does_not_wake(self, _kind, steps):
        machine = self.site.machines[self._one(SLEEPERS)]
        machine.wakes = False
        await self._steps(steps)
        machine.wakes = True

    async def _wakes_twice(self, _kind, steps):
        """A node that wakes starts anew before its agent does."""
        await self._add_waiting()
        for _ in range(TOLD_STEPS):
            booting = [one for name in SLEEPERS if (one := self.machines[name]).boots]
            if booting:
                self._one(booting).start()
                break
            await self.step()
        await self._steps(steps)

    async def _dies_asleep(self, _kind, steps):
        """Neither the machine nor its BMC hears anything until it is repaired, while a pod waits for it perhaps."""
        machine = self.site.machines[self._one(SLEEPERS)]
        machine.answers = machine.wakes = False
        await self._pods_wait("", 2 * LOOK_STEPS + steps)
        machine.answers = machine.wakes = True

    # ---- the end

    async def peace(self):
        """After the last fault: budgets are kept or said to be infeasible, critical nodes give last, limits return."""
        for one in self.machines.values():
            one.demand = 1.0
        await self._steps(25)
        for _ in range(60):
            if not self.waiting and not any(one.boots for one in self.machines.values()) and not self._restless():
                break
            await self.step()
        await self._check_job()
        self._check_conditions()
        self._check_statuses()
        await self._check_who_gives()
        self._check_asleep()
        for name in list(self.budgets):
            await self.stage.client.delete(POWER_BUDGETS, name)
        self.budgets = {}
        await self._steps(10)
        for one in self.machines.values():
            cpu, gpu = asked_caps(self.stage.view.twin_of(one.name))
            if any(cap is not None and cap.watts is not None for cap in (cpu, gpu)):
                self._broken(f"{one.name} is limited after all budgets have ended: {cpu}, {gpu}")

    def _check_conditions(self):
        """Budgets are kept, or said to be infeasible."""
        status = {key.name: one.status for key, one in self.stage.view.power_budgets.items()}
        for name, limit_w in self.budgets.items():
            conditions = {one.type: (one.status, one.reason) for one in status[name].conditions}
            covered = self.covered(name)
            floor_w = sum(one.floor_w for one in covered)
            if conditions["Infeasible"][0] != str(floor_w > limit_w + EPS_W):
                self._broken(f"{name} says {conditions}, floor {floor_w:.0f} W, limit {limit_w:.0f} W")
            if conditions["Enforced"][0] != str(floor_w <= limit_w + EPS_W):
                self._broken(f"{name} says {conditions}, floor {floor_w:.0f} W, limit {limit_w:.0f} W")
            if conditions["Blind"][0] != "False":
                self._broken(f"{name} says {conditions}")
            if sum(one.drawn_w for one in covered) > max(limit_w, floor_w) + EPS_W and name != "feed":
                self._broken(f"{name} is over after all faults")

    def _check_statuses(self):
        """Statuses say what is drawn, what could be, and who gives; no more is given than budgets need."""
        status = {key.name: one.status for key, one in self.stage.view.power_budgets.items()}
        given = {name: {one.node for one in status[name].curtailed} for name in self.budgets}
        full = set()
        for name, limit_w in self.budgets.items():
            covered = self.covered(name)
            drawn_w, worst_w = (sum(getattr(one, what) for one in covered) for what in ("drawn_w", "worst_w"))
            for what, told_w, true_w in (
                ("draw", status[name].measured_watts, drawn_w), ("could draw", status[name].worst_case_watts, worst_w),
            ):  # fmt: skip
                # What limits may be raised to counts: by policies up to a ceiling, behind a breaker at any time.
                exact = what == "draw" or (self.uncapped and name != "feed")
                too_much = exact and told_w - true_w > STATUS_BAND * limit_w
                if too_much or true_w - told_w > STATUS_BAND * limit_w:
                    self._broken(f"{name} says that nodes {what} {told_w:.0f} W, and it is {true_w:.0f} W")
            if (drawn_w if name == "feed" else worst_w) >= (1.0 - STATUS_BAND) * limit_w:
                full.add(name)
        for one in self.machines.values():
            covering = sorted(name for name in self.budgets if one in self.covered(name))
            twin = self.stage.view.twin_of(one.name)
            if list(twin.status.power_budgets) != covering:
                self._broken(f"{one.name} is said to be under {twin.status.power_budgets}, and is under {covering}")
            ceiling = self.stage.loop._budgets.of_node(one.name)
            if not one.on or ceiling is None or (ceiling.cpu_w, ceiling.gpu_w) == (None, None):
                continue
            if not any(one.name in given[name] for name in covering):
                self._broken(f"{one.name} gives and no budget says so: {ceiling}, {given}")
            if self.uncapped and full.isdisjoint(covering):
                self._broken(f"{one.name} gives, and no budget over it needs that: {ceiling}")

    def _restless(self):
        """Nodes that could sleep and are on."""
        used = {pod["spec"].get("nodeName") for pod in self._stored(PODS)} | {node for node, _ in self.waiting.values()}
        return [name for name in SLEEPERS if name not in used and self.site.machines[name].power is ON]

    def _check_asleep(self):
        """Nodes without pods sleep.

        A pod still waits only for a node whose boot some budget has no room for, with all others at their floor.
        """
        if self._restless():
            self._broken(f"{self._restless()} are empty and on after all faults")
        for name, (node, _) in self.waiting.items():
            one = self.machines[node]
            others_w = {
                budget: sum(other.floor_w for other in self.covered(budget) if other is not one)
                for budget in self.budgets
                if one in self.covered(budget)
            }
            boot_w = replace(one, on=True).full_w
            if all(watts + boot_w <= self.budgets[budget] for budget, watts in others_w.items()):
                self._broken(f"{name} waits for {node} after all faults, {boot_w:.0f} W beside {others_w}")

    async def _check_who_gives(self):
        critical = set(self.pods.values())
        for one in self.machines.values():
            ceiling = self.stage.loop._budgets.of_node(one.name)
            if one.name not in critical or ceiling is None:
                continue
            # Some budget over it has no standard node left that could give.
            if not any(
                all(
                    other.name in critical or other.worst_w <= other.floor_w + 0.02 * other.full_w
                    for other in self.covered(budget)
                )
                for budget in self.budgets
                if one in self.covered(budget)
            ):
                worst = {other.name: round(other.worst_w - other.floor_w) for other in self.machines.values()}
                self._broken(f"{one.name} gives before others: above their floor are {worst}, critical {critical}")


async def played(tmp_path, seed):
    """Play one course and return it; raises `BrokenError` where something does not hold."""
    courses = []

    def answer(request):
        return courses[0].answer(request)

    environment = {
        "POWER_SOURCES": "prometheus",
        "POWER_PROMETHEUS_ADDRESS": "http://prometheus",
        "POWER_PROMETHEUS_QUERY": "node_watts",
        "POWER_POLL_INTERVAL": "20s",  # the course polls itself: this is how long an answer may take
        "POWER_STALE_AFTER": "30s",
        "TWIN_STALENESS_THRESHOLD": "2m",
        "GPU_LIMITS": "true",
        "SLEEP": "enforce",
        "SLEEP_EMPTY": "20s",
        "SLEEP_SETTLE": "10s",
        "SLEEP_WAKE_TIMEOUT": "2m",
        "SLEEP_STANDBY_WATTS": str(STANDBY_W),
    }
    kind = partial(Stage, transport=httpx2.MockTransport(answer))
    uncapped = seed % 2 == 1
    policy = PolicySettings(static_hp_frac=1.0 if uncapped else 0.5)
    async with staged(tmp_path, environment, kind=kind, mode=Mode.ENFORCE, policy=policy) as stage:
        stage.loop._publisher.close()
        stage.prometheus = Prometheus("http://prometheus", stage.http)
        stage.start()
        course = Course(stage, seed, uncapped=uncapped)
        courses.append(course)
        watching = asyncio.create_task(course.volumes.run())
        try:
            await course.begin()
            await course.play()
        finally:
            watching.cancel()
            await asyncio.wait([watching])
        return course
