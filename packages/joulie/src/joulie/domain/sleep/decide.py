"""Which nodes sleep and which wake: a pure decision about a snapshot of the cluster.

`decide` goes through these steps. It advances the state of each node by what is seen of it. It gives pending pods room:
on nodes that are awake or waking, else on one that is woken for them; then it gives room to pods that are only
expected. It keeps as many nodes of each family awake as the administrator asks for. And it cordons, of the nodes that
are left, those that have been empty for long enough; one with few pods is emptied where that pays
(`joulie.domain.sleep.consolidate`). Every pending pod gets the reason for which it waits.

Commands are values. Whoever carries them out checks with `still_holds` that the node is as the decision saw it.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace

from joulie.domain.scheduling.node_rules import NodeRules
from joulie.domain.scoring.energy import EnergyPolicy, marginal_cost_w_min
from joulie.domain.sleep.commands import Action, Command, Move, SleepDecision
from joulie.domain.sleep.consolidate import Consolidation, why_not_emptied
from joulie.domain.sleep.snapshot import ExpectedPods, Room, SleepNode, SleepSettings, SleepSnapshot, WaitingPod
from joulie.domain.sleep.states import ANY_BOOT, Asleep, Awake, Cordoned, Emptying, Failed, SleepState, Waking

_POLICY = EnergyPolicy()
_WOKEN = "{} is being woken for it"


def decide(snapshot: SleepSnapshot, settings: SleepSettings) -> SleepDecision:
    """Decide which nodes sleep and which wake."""
    decision = _Decision(snapshot, settings)
    for node in snapshot.nodes:
        decision.advance(node)
    for pod in snapshot.pods:
        decision.make_room(pod)
    decision.note_room()
    for expected in snapshot.expected:
        decision.expect(expected)
    decision.keep_reserve()
    if settings.consolidation.max_nodes:
        decision.consolidate()
    for node in sorted(snapshot.nodes, key=lambda one: (-one.base_w, one.name)):
        decision.cordon_idle(node)
    decision.switch_off()
    return decision.result()


class _Decision:
    """A decision in the making."""

    def __init__(self, snapshot: SleepSnapshot, settings: SleepSettings) -> None:
        self._snapshot, self._now_s, self._settings = snapshot, snapshot.now_s, settings
        self._nodes, self._pods = snapshot.nodes, snapshot.pods
        self._states: dict[str, SleepState] = {}
        self._commands: list[Command] = []
        self._waits: dict[str, str] = {}
        self._free = {node.name: node.free for node in snapshot.nodes}
        self._needed: set[str] = set()
        self._ready_to_sleep: list[tuple[SleepNode, Cordoned]] = []
        self._hopeless: dict[tuple[Room, NodeRules], tuple[str, bool]] = {}
        self._held: set[str] = set()
        self._index = {node.name: index for index, node in enumerate(snapshot.nodes)}
        self._next: dict[tuple[type[SleepState], Room, NodeRules], int] = {}
        self._resting: dict[tuple[Room, NodeRules, float], deque[SleepNode]] = {}
        self._failed = [node for node in snapshot.nodes if isinstance(node.state, Failed | Waking)]
        self._missing: Counter[str] = Counter()
        self._n_waking = sum(isinstance(node.state, Waking) for node in snapshot.nodes)
        self._room = snapshot.wake_room
        self._left_w = dict(snapshot.wake_room.left_w)
        self._wanted: set[str] = set()
        self._ahead: set[str] = set()
        self._moves: tuple[Move, ...] = ()
        self._free_for_moves: dict[str, Room] = {}
        self._needed_now: set[str] = set()
        self._some_stay_on = not all(node.switchable for node in snapshot.nodes)

    def result(self) -> SleepDecision:
        """The decision."""
        return SleepDecision(
            self._states,
            tuple(self._commands),
            self._waits,
            frozenset(self._held),
            frozenset(self._wanted),
            frozenset(self._ahead),
            self._moves,
        )

    # ---- what is seen of a node

    def advance(self, node: SleepNode) -> None:
        """Advance the state of a node by what is seen of it."""
        match node.state:
            case Awake() as state:
                self._states[node.name] = state.seen(empty=node.jobs == 0, now_s=self._now_s)
            case Emptying() as state:
                self._advance_emptying(node, state)
            case Cordoned() as state:
                self._advance_cordoned(node, state)
            case Asleep() as state:
                self._advance_asleep(node, state)
            case Waking() as state:
                self._advance_waking(node, state)
            case Failed() as state:
                self._states[node.name] = state
                if node.ready:
                    self._uncordon(node, "ready after it was given up")
                elif node.jobs:
                    self._retry_failed(node, state)

    def _advance_emptying(self, node: SleepNode, state: Emptying) -> None:
        settings = self._settings.consolidation
        held = any(self._fits(pod, node) for pod in self._pods)
        state = state.seen(empty=node.jobs == 0, held=held, now_s=self._now_s)
        self._states[node.name] = state
        reason = why_not_emptied(node, state, self._snapshot, settings)
        if reason:
            self._uncordon(node, reason)
        elif state.quiet_looks >= self._settings.settle_looks:
            self._states[node.name] = state.cordoned(self._now_s)
            self._commands.append(Command(Action.CORDON, node.name, "its pods were moved"))

    def _advance_cordoned(self, node: SleepNode, state: Cordoned) -> None:
        reason = "a pod came" if node.jobs else node.keep
        if reason or not node.ready:
            self._uncordon(node, reason or "not ready")
            return
        state = state.quiet()
        self._states[node.name] = state
        quiet_s = self._now_s - state.since_s
        if quiet_s < 0.0:  # the clock went back: settle anew
            self._states[node.name] = Cordoned(self._now_s, state.quiet_looks)
        elif quiet_s >= self._settings.settle_s and state.quiet_looks >= self._settings.settle_looks:
            self._ready_to_sleep.append((node, state))

    def switch_off(self) -> None:
        """Switch those cordoned nodes off that nobody has needed in this decision."""
        for node, state in self._ready_to_sleep:
            if self._states[node.name] == state:
                self._states[node.name] = state.asleep(self._now_s, node.boot if node.switchable else "")
                self._commands.append(Command(Action.POWER_OFF, node.name, "empty and cordoned"))

    def _advance_asleep(self, node: SleepNode, state: Asleep) -> None:
        self._states[node.name] = state
        if node.keep:
            self._wake(node, node.keep)
        elif node.jobs:
            # Bound by name, or by a scheduler that had not seen the taint yet.
            self._wake(node, "a pod is bound to it")
        elif node.ready and node.switchable:
            state = self._states[node.name] = state.still_on()
            if self._did_not_obey(state):
                self._uncordon(node, "on, although it was switched off")

    def _advance_waking(self, node: SleepNode, state: Waking) -> None:
        if state.since_s > self._now_s:  # the clock went back: wait anew
            state = replace(state, since_s=self._now_s)
        self._states[node.name] = state
        waited_s = self._now_s - state.since_s
        if node.ready and node.switchable and node.boot and state.boot in (node.boot, ANY_BOOT):
            # On its way down, or it did not obey: that it is ready does not say that it is back.
            state = self._states[node.name] = state.still_on()
            if self._did_not_obey(state):
                self._n_waking -= 1
                self._uncordon(node, "on, although it was switched off")
        elif node.ready:
            self._n_waking -= 1
            self._uncordon(node, "woken")
        elif waited_s >= self._settings.wake_timeout_s:
            waited = f"not ready {waited_s:.0f} s after attempt {state.attempt}"
            if state.attempt < self._settings.wake_attempts:
                self._states[node.name] = state.told_again(self._now_s)
                self._commands.append(Command(Action.POWER_ON, node.name, waited))
            else:
                self._n_waking -= 1
                self._states[node.name] = state.failed(self._now_s)
                self._commands.append(Command(Action.GIVE_UP, node.name, waited))

    def _did_not_obey(self, state: Asleep | Waking) -> bool:
        """Whether a node that is on was told to switch off too long ago to be on its way down still."""
        return self._now_s - state.since_s >= self._settings.wake_timeout_s and state.looks >= self._settings.obey_looks

    def _retry_failed(self, node: SleepNode, state: Failed) -> bool:
        """Whether a node that was given up is tried again, now that it is needed still."""
        if abs(self._now_s - state.since_s) < self._settings.failed_s or not self._has_wake_slot():
            return False
        self._n_waking += 1
        self._moved(node, state.waking(self._now_s))
        self._commands.append(Command(Action.POWER_ON, node.name, "given up before, and needed still"))
        return True

    # ---- pods

    def make_room(self, pod: WaitingPod) -> None:
        """Give a pending pod room, and say why it waits."""
        kind = pod.requests, pod.rules
        if kind not in self._hopeless:
            if self._found_room(pod):
                return
            self._hopeless[kind] = self._why_none(pod)
        self._waits[pod.name], held = self._hopeless[kind]
        if held:
            self._held.add(pod.name)

    def _found_room(self, pod: WaitingPod) -> bool:
        for kind, told in ((Awake, "{} has room"), (Waking, "{} is waking")):
            node = self._first(pod, kind)
            if node is not None:
                return self._assign(pod, node, told, held=kind is Waking)
        for closed in (Cordoned, Emptying):
            node = self._first(pod, closed)
            if node is not None:
                self._uncordon(node, f"pod {pod.name} needs it")
                return self._assign(pod, node, "{} was opened for it")
        resting = self._cheapest_asleep(pod)
        for node in resting:
            if self._fits(pod, node) and self._wake(node, f"pod {pod.name} needs it"):
                told = "{} wakes for it once power budgets have room" if node.name in self._wanted else _WOKEN
                return self._assign(pod, node, told)
        for node in () if resting else self._failed:
            state = self._states[node.name]
            if isinstance(state, Failed) and self._fits(pod, node) and self._retry_failed(node, state):
                return self._assign(pod, node, "{} was given up and is tried again")
        return False

    def _first(self, pod: WaitingPod, kind: type[Awake | Waking | Cordoned | Emptying]) -> SleepNode | None:
        """The first node in a state that has room for a pod.

        Room only shrinks, so the search for a pod like an earlier one goes on where that one ended, or at a node whose
        state has changed since.
        """
        key = kind, pod.requests, pod.rules
        nodes = self._nodes
        for index in range(self._next.get(key, 0), len(nodes)):
            node = nodes[index]
            if (
                isinstance(self._states[node.name], kind)
                and (kind is not Awake or node.ready)
                and self._fits(pod, node)
            ):
                self._next[key] = index
                return node
        self._next[key] = len(nodes)
        return None

    def _cheapest_asleep(self, pod: WaitingPod) -> deque[SleepNode]:
        """Nodes that sleep, those first on which the pod costs least; the first of them has room for it."""
        key = pod.requests, pod.rules, pod.duration_min
        resting = self._resting.get(key)
        if resting is None:
            fitting = [
                node for node in self._nodes if isinstance(self._states[node.name], Asleep) and self._fits(pod, node)
            ]
            fitting.sort(key=lambda one: (self._cost_w_min(pod, one), one.name))
            resting = self._resting[key] = deque(fitting)
        while resting and not (isinstance(self._states[resting[0].name], Asleep) and self._fits(pod, resting[0])):
            resting.popleft()
        return resting

    def _why_none(self, pod: WaitingPod) -> tuple[str, bool]:
        """Why a pod waits in vain, and whether that is because nodes sleep."""
        fitting = [node for node in self._nodes if self._fits(pod, node)]
        if any(isinstance(self._states[node.name], Asleep) for node in fitting):
            return "a sleeping node has room for it; it waits for power, or for others to have woken", True
        given_up = [node.name for node in fitting if isinstance(self._states[node.name], Failed)]
        if given_up:
            return f"the nodes that have room for it do not wake: {', '.join(given_up[:3])}", True
        if fitting:
            return f"{fitting[0].name} has room for it and is not ready", False
        return "no node, awake or asleep, has room for it", False

    def _fits(self, pod: WaitingPod, node: SleepNode) -> bool:
        return self._free[node.name].holds(pod.requests) and pod.rules.admits(node.labels, node.name, node.taints)

    def _assign(self, pod: WaitingPod, node: SleepNode, told: str, *, held: bool = True) -> bool:
        if held:
            self._held.add(pod.name)
        self._take(pod, node)
        self._waits[pod.name] = told.format(node.name)
        return True

    def _take(self, pod: WaitingPod, node: SleepNode) -> None:
        self._free[node.name] = self._free[node.name].less(pod.requests)
        self._needed.add(node.name)

    def _cost_w_min(self, pod: WaitingPod, node: SleepNode) -> float:
        """Cost of the pod on a sleeping node, W min: that of SCORING=marginal."""
        free, gpus = self._free[node.name], node.allocatable.gpus
        return float(
            marginal_cost_w_min(
                node.base_w,
                -_POLICY.wake_stay_min,
                0.0,
                1.0 if gpus > 0.0 else 0.0,
                free.cores,
                free.gpus,
                _POLICY.stranded_gpu * node.base_w / max(1.0, gpus),
                _POLICY.gpu_node_surcharge * node.base_w / max(1.0, node.allocatable.cores),
                _POLICY.cores_per_gpu,
                pod.duration_min,
                pod.requests.cores,
                pod.requests.gpus,
            )
        )

    # ---- the forecast

    def expect(self, pods: ExpectedPods) -> None:
        """Give pods room that are only expected: nodes are woken for those that come soon, and kept for the others."""
        pod = WaitingPod("", pods.requests, pods.rules)
        for index in range(pods.later):
            node = self._room_ahead(pod, pods.soon if index < pods.soon else 0)
            if node is None:
                return
            if node.name not in self._needed and node.jobs == 0:
                self._ahead.add(node.name)
            self._take(pod, node)

    def _room_ahead(self, pod: WaitingPod, soon: int) -> SleepNode | None:
        for kind in (Awake, Waking):
            node = self._first(pod, kind)
            if node is not None:
                return node
        reason = f"{soon or 'more'} pods with {pod.requests.cores:g} cores are expected"
        for closed in (Cordoned, Emptying):
            node = self._first(pod, closed)
            if node is not None:
                self._uncordon(node, reason)
                return node
        # Sorting those that sleep takes long on a large cluster.
        may_wake = soon and (self._has_slot_ahead() or self._some_stay_on)
        for node in self._cheapest_asleep(pod) if may_wake else ():
            if self._fits(pod, node) and self._wake_ahead(node, reason):
                return node
        return None

    def _wake_ahead(self, node: SleepNode, reason: str) -> bool:
        """Wake a node for pods that are only expected: a slot is left for those that wait, and nobody is curtailed."""
        if node.switchable and not (self._has_slot_ahead() and self._room.may_wake(node.name)):
            return False
        return self._wake(node, reason)

    def _has_slot_ahead(self) -> bool:
        return self._n_waking < self._settings.max_waking - 1

    # ---- the reserve

    def keep_reserve(self) -> None:
        """Have as many nodes of each family awake or waking as the settings ask for."""
        for node in self._nodes:
            self._missing.setdefault(node.family, self._settings.min_awake)
            state = self._states[node.name]
            if isinstance(state, Waking) or (isinstance(state, Awake) and node.ready):
                self._missing[node.family] -= 1
        for node in sorted(self._nodes, key=lambda one: (one.base_w, one.name)):
            if self._missing[node.family] <= 0:
                continue
            state = self._states[node.name]
            if isinstance(state, Cordoned | Emptying):
                self._uncordon(node, "reserve")
            elif not (isinstance(state, Asleep) and self._wake(node, "reserve")):
                continue
            self._needed.add(node.name)
            self._missing[node.family] -= 1

    # ---- sleep

    def note_room(self) -> None:
        """Note what is free before expected pods take of it: consolidation keeps room for them on full nodes."""
        if self._settings.consolidation.max_nodes:
            self._free_for_moves, self._needed_now = dict(self._free), set(self._needed)

    def consolidate(self) -> None:
        """Move pods off the nodes that are emptied, and begin with another one where that pays and nobody waits."""
        emptying = [node for node in self._nodes if isinstance(self._states[node.name], Emptying)]
        settled = not self._held and not any(isinstance(state, Waking) for state in self._states.values())
        begin = settled and len(emptying) < self._settings.consolidation.max_nodes
        if not (emptying or begin):
            return
        nodes = [node for node in self._nodes if isinstance(self._states[node.name], Awake)]
        plan = Consolidation(nodes, self._free_for_moves, self._snapshot, self._settings.consolidation)
        for node in emptying:
            state = self._states[node.name]
            assert isinstance(state, Emptying)
            if not plan.go_on(node, state):
                self._uncordon(node, "its pods find no room elsewhere")
        if begin:
            spare = [node for node in nodes if node.name not in self._needed_now and self._missing[node.family] < 0]
            waiting = {(pod.requests, pod.rules): pod for pod in self._pods}.values()
            found = plan.begin(node for node in spare if not any(self._fits(pod, node) for pod in waiting))
            if found is not None:
                node, reason = found
                self._missing[node.family] += 1
                self._states[node.name] = Emptying(self._now_s)
                self._commands.append(Command(Action.EMPTY, node.name, reason))
        self._moves = plan.moves

    def cordon_idle(self, node: SleepNode) -> None:
        """Cordon a node that has been empty for long enough, if nobody needs it."""
        state = self._states[node.name]
        if not isinstance(state, Awake) or state.empty_since_s is None or not node.ready or node.keep:
            return
        idle_s = self._now_s - state.empty_since_s
        if idle_s < self._settings.empty_s or node.name in self._needed or self._missing[node.family] >= 0:
            return
        self._missing[node.family] += 1
        self._states[node.name] = state.cordoned(self._now_s)
        self._commands.append(Command(Action.CORDON, node.name, f"empty for {idle_s:.0f} s"))

    # ---- commands

    def _moved(self, node: SleepNode, state: SleepState) -> None:
        """A node becomes one that pods may wait for."""
        self._states[node.name] = state
        index = self._index[node.name]
        for key, start in self._next.items():
            self._next[key] = min(start, index)

    def _uncordon(self, node: SleepNode, reason: str) -> None:
        state = self._states.get(node.name, node.state)
        self._moved(node, state.given_up(self._now_s) if isinstance(state, Emptying) else Awake())
        self._commands.append(Command(Action.UNCORDON, node.name, reason))

    def _has_wake_slot(self) -> bool:
        return self._n_waking < self._settings.max_waking

    def _want(self, node: SleepNode) -> bool:
        """Whether power budgets can make room for a node to wake, beside those that wake or are wanted already."""
        budgets, extra_w = self._room.budgets.get(node.name, ()), self._room.extra_w.get(node.name, 0.0)
        if not self._room.known or any(self._left_w[budget] < extra_w for budget in budgets):
            return False
        self._wanted.add(node.name)
        return True

    def _wake(self, node: SleepNode, reason: str) -> bool:
        """Wake a sleeping node, if another one may, or have power budgets make room for it first."""
        state = self._states[node.name]
        if not isinstance(state, Asleep):
            return False
        if not node.switchable:
            self._uncordon(node, reason)
            return True
        if node.name in self._wanted:
            return True
        if not self._has_wake_slot() or not (self._room.may_wake(node.name) or self._want(node)):
            return False
        self._n_waking += 1
        for budget in self._room.budgets.get(node.name, ()):
            self._left_w[budget] -= self._room.extra_w[node.name]
        if node.name in self._wanted:
            return True
        self._moved(node, state.waking(self._now_s))
        self._commands.append(Command(Action.POWER_ON, node.name, reason))
        return True
