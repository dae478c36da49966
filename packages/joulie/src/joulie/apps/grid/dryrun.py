"""A dry run: pods start as they always did, and the same decisions are made beside them, for the record.

Each pod waits in a room of its own world until the decision would have released it. What that would have saved is known
when the pod has ended and the run that it would have had is over, too: its real runtime, at the intensity and the price
that really were, against the same runtime from the moment of its release. Energy is estimated from its requests.
"""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count

import msgspec

from joulie.adapters.grid.feed import GridFeed
from joulie.adapters.kubernetes.api.core import Pod
from joulie.adapters.kubernetes.cache import Cache, Key
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.requests import Requests, pod_requests
from joulie.adapters.kubernetes.resources import DAEMON_SETS, NODES, PODS
from joulie.adapters.kubernetes.times import parse_rfc3339, rfc3339
from joulie.apps.grid.apply import PodWriter, Rank, WriteQueue
from joulie.apps.grid.cases import case_of
from joulie.apps.grid.dryrun_metrics import DryRunMetrics
from joulie.apps.grid.facts import GatedPod, asking_of, created_s, owner_of
from joulie.apps.grid.observe import GridView
from joulie.apps.grid.room import Case, Decision, Waiter, WaitingRoom
from joulie.apps.grid.settings import ControllerSettings, DryRunFilter, DryRunMode
from joulie.domain.grid import names
from joulie.domain.grid.deferral import Conditions, Hold, HoldReason
from joulie.domain.grid.release import Limits
from joulie.domain.grid.signals import GridSignal, Measure
from joulie.domain.quantities import joules_to_kwh

MOST_PODS = 20_000
"""Pods that are followed at one time; what comes beyond is not evaluated."""
_ENDED = frozenset({"Succeeded", "Failed"})
_AT_ONCE = Limits(1.0, MOST_PODS)
_DELAY_TYPES = {HoldReason.PRICE: "price", HoldReason.BOTH: "both"}
_EVALUATED = names.DRY_RUN_PREFIX + "evaluated"

_log = logging.getLogger(__name__)


class DryPod(msgspec.Struct, frozen=True):
    """What is kept of a pod.

    Attributes:
        pod: as if it had the gate.
        requests: as kube-scheduler counts them.
        started_s: since when it runs, s since the epoch; None before.
        bound: whether it has a node.
        ended: whether it is over.
    """

    pod: GatedPod
    requests: Requests
    started_s: float | None
    bound: bool
    ended: bool


@dataclass(slots=True)
class Shadow:
    """A pod that is followed until what it would have saved is known.

    Attributes:
        key: of the pod.
        facts: the pod, as last seen.
        case: what it would have waited for.
        decision: the first one; None before.
        released_s: when it would have started; None while it would still wait.
        ended_s: when it ended; None while it runs.
    """

    key: Key
    facts: DryPod
    case: Case
    decision: Decision | None = None
    released_s: float | None = None
    ended_s: float | None = None

    @property
    def runtime_s(self) -> float | None:
        """How long it ran; None while it runs, and where it never did."""
        started_s = self.facts.started_s
        return None if self.ended_s is None or started_s is None else max(0.0, self.ended_s - started_s)


class DryRun:
    """The dry run of one term of leadership.

    Args:
        client: to watch and write with.
        settings: of the program.
        view: of what pods belong to.
        feed: signals of the grid, and what they were.
        metrics: to count in.
        writes: takes annotations.
        wake: called when a pod changed.
        now_s: s since the epoch.

    Attributes:
        room: where the pods would wait.
        pods: that the dry run looks at.
    """

    def __init__(
        self,
        client: KubeClient,
        settings: ControllerSettings,
        view: GridView,
        feed: GridFeed,
        metrics: DryRunMetrics,
        writes: WriteQueue,
        *,
        wake: Callable[[], None],
        now_s: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._view = view
        self._feed = feed
        self._metrics = metrics
        self._writes = writes
        self._wake = wake
        self._now_s = now_s
        self._began_s = now_s()
        self._writer = PodWriter(client)
        self.room = WaitingRoom(_AT_ONCE, self._began_s)
        self._shadows: dict[str, Shadow] = {}
        self._uids: dict[Key, str] = {}
        self._changed: dict[Key, None] = {}
        self._over: list[tuple[float, int, Shadow]] = []
        self._count = count()
        self.pods: Cache[Pod, DryPod] = Cache(client, PODS, self._keep)
        self.pods.add_listener(self._pod_changed)

    @property
    def next_s(self) -> float:
        """When there is something to do, s since the epoch."""
        return min(self.room.next_decision_s, self._over[0][0] if self._over else math.inf)

    def step(self, look: Callable[[str], Conditions | None]) -> None:
        """Take in what changed, decide what is due, and settle what is over.

        Args:
            look: conditions in a zone; None while its sources have not been asked yet.
        """
        now_s = self._now_s()
        changed, self._changed = self._changed, {}
        for key in changed:
            try:
                self._take_in(key, self.pods.objects.get(key), now_s)
            except Exception:  # what is odd about one pod must not keep the others out
                _log.exception("pod not followed", extra={"pod": str(key)})
        for group in self.room.decide(look, now_s):
            assert group.decision is not None
            for place in list(group.pods):
                self._decided(self._shadows[place.name], group.decision, look(group.case.zone) or Conditions(), now_s)
        while self._over and self._over[0][0] <= now_s:
            self._settle(heapq.heappop(self._over)[2])

    # ---- pods

    def _keep(self, pod: Pod) -> DryPod | None:
        """What is kept of a pod; nothing of those that a dry run does not look at."""
        meta, settings = pod.metadata, self._settings
        watched, owner = settings.dry_run_namespaces, owner_of(meta)
        if meta.deletion_timestamp is not None or (watched and meta.namespace not in watched):
            return None
        if owner is not None and owner.kind in {DAEMON_SETS.kind, NODES.kind}:
            return None
        asking = asking_of(meta, pod.spec)
        if settings.dry_run_filter_mode == DryRunFilter.NAMESPACE:
            asking = msgspec.structs.replace(asking, annotations={names.DEFER: "true", **asking.annotations})
        elif not self._view.request(meta.namespace, asking, owner).defer:
            return None
        started = pod.status.start_time
        return DryPod(
            GatedPod(meta.uid, created_s(meta), pod.spec.priority or 0, owner, asking),
            pod_requests(pod)[0],
            None if started is None else parse_rfc3339(started),
            bool(pod.spec.node_name),
            pod.status.phase in _ENDED,
        )

    def _pod_changed(self, key: Key, _old: DryPod | None, _new: DryPod | None) -> None:
        self._changed[key] = None
        self._wake()

    def _take_in(self, key: Key, facts: DryPod | None, now_s: float) -> None:
        uid = self._uids.get(key)
        if uid is not None and (facts is None or facts.pod.uid != uid):
            self._end(self._shadows[uid], now_s)  # deleted: what ran, ran
            uid = None
        if facts is None:
            return
        if uid is None:
            if self._is_new(facts):
                self._follow(key, facts)
            return
        self._shadows[uid].facts = facts
        if facts.ended:
            self._end(self._shadows[uid], now_s)

    def _is_new(self, facts: DryPod) -> bool:
        """Whether the pod came in this term or has not begun to run, and nobody has evaluated it before."""
        came = facts.pod.created_s >= math.floor(self._began_s) or not facts.bound
        return came and not facts.ended and _EVALUATED not in facts.pod.asking.annotations

    def _follow(self, key: Key, facts: DryPod) -> None:
        if len(self._shadows) >= MOST_PODS:
            self._metrics.not_followed.inc()
            return
        pod = facts.pod
        shadow = Shadow(key, facts, case_of(key, pod, self._view))
        self._shadows[pod.uid] = shadow
        self._uids[key] = pod.uid
        self.room.put(Waiter(_place(shadow), pod.uid, pod.priority, pod.created_s), shadow.case)

    # ---- decisions

    def _decided(self, shadow: Shadow, decision: Decision, conditions: Conditions, now_s: float) -> None:
        if shadow.decision is None:
            shadow.decision = decision
            self._record(shadow, decision, conditions, now_s)
        if isinstance(decision, Hold):
            return
        shadow.released_s = now_s
        self.room.remove(_place(shadow))
        self._conclude(shadow)

    def _record(self, shadow: Shadow, decision: Decision, conditions: Conditions, now_s: float) -> None:
        """Say what was decided first about a pod, and what that is expected to save."""
        namespace = shadow.key.namespace
        self._metrics.evaluated(namespace, _value(conditions.carbon), _value(conditions.price))
        annotations = _annotations(shadow.case, decision, conditions, now_s)
        if isinstance(decision, Hold):
            request = shadow.case.waiting.request
            energy_kwh = joules_to_kwh(self._power_w(shadow) * request.runtime_s)
            saved_g, saved_cost = (
                None if per_kwh is None else per_kwh * energy_kwh
                for per_kwh in (
                    expected_saving(
                        conditions.carbon, request.carbon_threshold_g_per_kwh, shadow.case, decision, now_s
                    ),
                    expected_saving(conditions.price, request.price_threshold_per_kwh, shadow.case, decision, now_s),
                )
            )
            self._metrics.would_delay(namespace, _DELAY_TYPES.get(decision.reason, "carbon"), saved_g, saved_cost)
            annotations |= _estimates(saved_g, saved_cost)
        if self._settings.dry_run_mode == DryRunMode.ANNOTATE:
            write = partial(self._writer.annotate, shadow.key, shadow.facts.pod.uid, annotations)
            self._writes.put(Rank.NOTE, write, partial(self._not_written, shadow.key))

    def _not_written(self, key: Key, error: Exception) -> None:
        _log.info("dry run not noted", extra={"pod": str(key), "problem": str(error)})

    # ---- what came of it

    def _end(self, shadow: Shadow, now_s: float) -> None:
        """A pod is over; it is followed on only while it would still wait or run."""
        del self._uids[shadow.key]
        shadow.ended_s = now_s
        runtime_s = shadow.runtime_s
        if runtime_s is None or shadow.decision is None:
            self.room.remove(_place(shadow))
            del self._shadows[shadow.facts.pod.uid]
            return
        energy_kwh = joules_to_kwh(self._power_w(shadow) * runtime_s)
        self._metrics.completed(shadow.key.namespace, runtime_s, energy_kwh)
        self._conclude(shadow)

    def _conclude(self, shadow: Shadow) -> None:
        """Once it is known when a pod would have run and for how long, wait for the end of that run."""
        if shadow.released_s is None or shadow.runtime_s is None:
            return
        heapq.heappush(self._over, (shadow.released_s + shadow.runtime_s, next(self._count), shadow))

    def _settle(self, shadow: Shadow) -> None:
        """Count what a pod would have saved; nothing is counted that is not known."""
        del self._shadows[shadow.facts.pod.uid]
        if not isinstance(shadow.decision, Hold):
            return
        assert shadow.ended_s is not None
        assert shadow.facts.started_s is not None
        assert shadow.released_s is not None
        runtime_s = shadow.ended_s - shadow.facts.started_s
        energy_kwh = joules_to_kwh(self._power_w(shadow) * runtime_s)
        saved = []
        for measure in (Measure.CARBON, Measure.PRICE):
            known = self._feed.history(measure, shadow.case.zone)
            was = None if known is None else known.mean(shadow.facts.started_s, shadow.ended_s)
            would = None if known is None else known.mean(shadow.released_s, shadow.released_s + runtime_s)
            saved.append(None if was is None or would is None else energy_kwh * (was - would))
        self._metrics.saved(shadow.key.namespace, *saved)

    def _power_w(self, shadow: Shadow) -> float:
        """Power that a pod is assumed to draw, W: so much for each core, GiB and GPU that it requests."""
        requests, settings = shadow.facts.requests, self._settings
        return (
            requests.cpu_cores * settings.dry_run_watts_per_core
            + requests.memory_gib * settings.dry_run_watts_per_gib
            + requests.gpus * settings.dry_run_watts_per_gpu
        )


def _place(shadow: Shadow) -> Key:
    """Where a pod waits: by its UID, since another one of its name may come while it would still wait."""
    return Key(shadow.key.namespace, shadow.facts.pod.uid)


def expected_saving(
    signal: GridSignal | None, limit: float | None, case: Case, hold: Hold, now_s: float
) -> float | None:
    """What a pod that is held is expected to save, gCO2eq/kWh or currency/kWh; None where nobody can say.

    Args:
        signal: carbon intensity or price; None where it is not watched.
        limit: of the pod. Without a forecast it stands for the value at the release.
        case: of the pod.
        hold: the decision, which names the moment when something is expected to change.
        now_s: s since the epoch.
    """
    if signal is None or signal.value is None:
        return None
    runtime_s, ahead = case.waiting.request.runtime_s, signal.forecast
    if ahead is not None:
        at_once = ahead.mean(now_s, now_s + runtime_s)
        later = ahead.mean(hold.wake_s, hold.wake_s + runtime_s)
        if at_once is not None and later is not None:
            return at_once - later
    return None if limit is None else signal.value - min(limit, signal.value)


def _annotations(case: Case, decision: Decision, conditions: Conditions, now_s: float) -> dict[str, str]:
    request = case.waiting.request
    held = isinstance(decision, Hold)
    said = {
        "evaluated": "true",
        "timestamp": rfc3339(now_s),
        "would-delay": "true" if held else "false",
        "delay-type": _DELAY_TYPES.get(decision.reason, "carbon") if isinstance(decision, Hold) else None,
        "reason": decision.text,
        "carbon-intensity": _number(_value(conditions.carbon), 2),
        "carbon-threshold": _number(request.carbon_threshold_g_per_kwh, 2),
        "price": _number(_value(conditions.price), 6),
        "price-threshold": _number(request.price_threshold_per_kwh, 6) if request.price_enabled else None,
    }
    return {names.DRY_RUN_PREFIX + key: value for key, value in said.items() if value is not None}


def _estimates(saved_g: float | None, saved_cost: float | None) -> dict[str, str]:
    said = {
        "estimated-carbon-savings-gco2": _number(saved_g, 2),
        "estimated-cost-savings-usd": _number(saved_cost, 6),
    }
    return {names.DRY_RUN_PREFIX + key: value for key, value in said.items() if value is not None}


def _number(value: float | None, decimals: int) -> str | None:
    return None if value is None else f"{value:.{decimals}f}"


def _value(signal: GridSignal | None) -> float | None:
    return None if signal is None else signal.value
