"""Dry run and observe mode: pods start undelayed, while the same decisions are made and recorded.

Each pod is followed in a queue of its own until the decision would have released it. Its saving is known once both
the real run and the deferred run are over: the real runtime at the intensity and price that occurred, compared with
the same runtime starting at the release. Energy is estimated from the pod's requests.
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
from joulie.apps.grid.deferrals import deferral_of
from joulie.apps.grid.dryrun_metrics import DryRunMetrics
from joulie.apps.grid.facts import GatedPod, asking_of, created_s, owner_of
from joulie.apps.grid.observe import GridView
from joulie.apps.grid.pending import Decision, Deferral, PendingPod, PendingQueue
from joulie.apps.grid.settings import ControllerSettings, DryRunFilter, DryRunMode
from joulie.domain.grid import names
from joulie.domain.grid.deferral import Conditions, Hold
from joulie.domain.grid.release import Limits
from joulie.domain.grid.signals import GridSignal, Measure
from joulie.domain.quantities import joules_to_kwh

MAX_FOLLOWED_PODS = 20_000
"""Maximum number of pods followed at a time; pods beyond it are not evaluated."""
_ENDED = frozenset({"Succeeded", "Failed"})
_AT_ONCE = Limits(1.0, MAX_FOLLOWED_PODS)
_EVALUATED = names.DRY_RUN_PREFIX + "evaluated"

_log = logging.getLogger(__name__)


class DryPod(msgspec.Struct, frozen=True):
    """Cached facts of a pod.

    Attributes:
        pod: the pod as if it had the gate.
        requests: resource requests as kube-scheduler counts them.
        started_s: start time, s since the epoch; None before.
        bound: whether it is bound to a node.
        ended: whether it succeeded or failed.
    """

    pod: GatedPod
    requests: Requests
    started_s: float | None
    bound: bool
    ended: bool


@dataclass(slots=True)
class Shadow:
    """A pod that is followed until its saving is known.

    Attributes:
        key: namespace and name.
        facts: the pod as last seen.
        deferral: its deferral.
        decision: the first decision; None before.
        released_s: when it would have started; None while it would still wait.
        ended_s: when it ended; None while it runs.
    """

    key: Key
    facts: DryPod
    deferral: Deferral
    decision: Decision | None = None
    released_s: float | None = None
    ended_s: float | None = None

    @property
    def runtime_s(self) -> float | None:
        """How long it ran, s; None while it runs or if it never started."""
        started_s = self.facts.started_s
        return None if self.ended_s is None or started_s is None else max(0.0, self.ended_s - started_s)


class DryRun:
    """The dry run of the leading replica.

    Args:
        client: Kubernetes client for watches and writes.
        settings: settings of the program.
        view: watch caches of owners and namespaces.
        feed: carbon intensity and prices, with their history.
        metrics: metrics of the dry run.
        writes: queue of writes to the API server.
        wake: called when a pod changed.
        now_s: current time, s since the epoch.

    Attributes:
        pending: queue in which the pods would wait.
        pods: cache of the evaluated pods.
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
        self.pending = PendingQueue(_AT_ONCE, self._began_s)
        self._shadows: dict[str, Shadow] = {}
        self._uids: dict[Key, str] = {}
        self._changed: dict[Key, None] = {}
        self._over: list[tuple[float, int, Shadow]] = []
        self._count = count()
        self.pods: Cache[Pod, DryPod] = Cache(client, PODS, self._keep)
        self.pods.add_listener(self._pod_changed)

    @property
    def next_s(self) -> float:
        """Time of the next decision or end of a deferred run, s since the epoch."""
        return min(self.pending.next_decision_s, self._over[0][0] if self._over else math.inf)

    def step(self, look: Callable[[str], Conditions | None]) -> None:
        """Take in changes, decide what is due, and settle runs that are over.

        Args:
            look: conditions in a zone; None while its sources have not been queried yet.
        """
        now_s = self._now_s()
        changed, self._changed = self._changed, {}
        for key in changed:
            try:
                self._take_in(key, self.pods.objects.get(key), now_s)
            except Exception:  # one malformed pod must not block the others
                _log.exception("pod not followed", extra={"pod": str(key)})
        for group in self.pending.decide(look, now_s):
            assert group.decision is not None
            for place in list(group.pods):
                self._decided(
                    self._shadows[place.name], group.decision, look(group.deferral.zone) or Conditions(), now_s
                )
        while self._over and self._over[0][0] <= now_s:
            self._settle(heapq.heappop(self._over)[2])

    # ---- pods

    def _keep(self, pod: Pod) -> DryPod | None:
        """The cached facts of a pod; None for pods that the dry run does not evaluate."""
        meta, settings, owner = pod.metadata, self._settings, owner_of(pod.metadata)
        if meta.deletion_timestamp is not None or not self._evaluates(meta.namespace):
            return None
        if owner is not None and owner.kind in {DAEMON_SETS.kind, NODES.kind}:
            return None
        asking = asking_of(meta, pod.spec)
        if settings.dry_run_enabled and settings.dry_run_filter_mode == DryRunFilter.NAMESPACE:
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

    def _evaluates(self, namespace: str) -> bool:
        """Whether pods of a namespace are evaluated: in a dry run by its filter, else those in observe mode."""
        if not self._settings.dry_run_enabled:
            return self._view.observes(namespace)
        watched = self._settings.dry_run_namespaces
        return not watched or namespace in watched

    def _pod_changed(self, key: Key, _old: DryPod | None, _new: DryPod | None) -> None:
        self._changed[key] = None
        self._wake()

    def _take_in(self, key: Key, facts: DryPod | None, now_s: float) -> None:
        uid = self._uids.get(key)
        if uid is not None and (facts is None or facts.pod.uid != uid):
            self._end(self._shadows[uid], now_s)  # deleted: its run so far counts
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
        """Whether the pod was created since this replica leads, or is not bound, and has not been evaluated before."""
        came = facts.pod.created_s >= math.floor(self._began_s) or not facts.bound
        return came and not facts.ended and _EVALUATED not in facts.pod.asking.annotations

    def _follow(self, key: Key, facts: DryPod) -> None:
        if len(self._shadows) >= MAX_FOLLOWED_PODS:
            self._metrics.not_followed.inc()
            return
        pod = facts.pod
        shadow = Shadow(key, facts, deferral_of(key, pod, self._view))
        self._shadows[pod.uid] = shadow
        self._uids[key] = pod.uid
        self.pending.put(PendingPod(_place(shadow), pod.uid, pod.priority, pod.created_s), shadow.deferral)

    # ---- decisions

    def _decided(self, shadow: Shadow, decision: Decision, conditions: Conditions, now_s: float) -> None:
        if shadow.decision is None:
            shadow.decision = decision
            self._record(shadow, decision, conditions, now_s)
        if isinstance(decision, Hold):
            return
        shadow.released_s = now_s
        self.pending.remove(_place(shadow))
        self._conclude(shadow)

    def _record(self, shadow: Shadow, decision: Decision, conditions: Conditions, now_s: float) -> None:
        """Record the first decision about a pod and its expected saving."""
        namespace = shadow.key.namespace
        self._metrics.evaluated(namespace, _value(conditions.carbon), _value(conditions.price))
        annotations = _annotations(shadow.deferral, decision, conditions, now_s)
        if isinstance(decision, Hold):
            request = shadow.deferral.waiting.request
            energy_kwh = joules_to_kwh(self._power_w(shadow) * request.runtime_s)
            saved_g, saved_cost = (
                None if per_kwh is None else per_kwh * energy_kwh
                for per_kwh in (
                    expected_saving(
                        conditions.carbon, request.carbon_threshold_g_per_kwh, shadow.deferral, decision, now_s
                    ),
                    expected_saving(
                        conditions.price, request.price_threshold_per_kwh, shadow.deferral, decision, now_s
                    ),
                )
            )
            self._metrics.would_delay(namespace, _delay_type(decision), saved_g, saved_cost)
            annotations |= _estimates(saved_g, saved_cost)
        annotates = self._settings.dry_run_enabled and self._settings.dry_run_mode == DryRunMode.ANNOTATE
        if annotates and not self._view.observes(namespace):
            write = partial(self._writer.annotate, shadow.key, shadow.facts.pod.uid, annotations)
            self._writes.put(Rank.NOTE, write, partial(self._not_written, shadow.key))

    def _not_written(self, key: Key, error: Exception) -> None:
        _log.info("cannot annotate dry-run result", extra={"pod": str(key), "problem": str(error)})

    # ---- outcome

    def _end(self, shadow: Shadow, now_s: float) -> None:
        """End a pod; it is followed further only while its deferred run would still wait or run."""
        del self._uids[shadow.key]
        shadow.ended_s = now_s
        runtime_s = shadow.runtime_s
        if runtime_s is None or shadow.decision is None:
            self.pending.remove(_place(shadow))
            del self._shadows[shadow.facts.pod.uid]
            return
        energy_kwh = joules_to_kwh(self._power_w(shadow) * runtime_s)
        self._metrics.completed(shadow.key.namespace, runtime_s, energy_kwh)
        self._conclude(shadow)

    def _conclude(self, shadow: Shadow) -> None:
        """Schedule the settlement at the end of the deferred run, once its start and runtime are known."""
        if shadow.released_s is None or shadow.runtime_s is None:
            return
        heapq.heappush(self._over, (shadow.released_s + shadow.runtime_s, next(self._count), shadow))

    def _settle(self, shadow: Shadow) -> None:
        """Count the saving of a pod; unknown savings are counted as unknown."""
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
            known = self._feed.history(measure, shadow.deferral.zone)
            was = None if known is None else known.mean(shadow.facts.started_s, shadow.ended_s)
            would = None if known is None else known.mean(shadow.released_s, shadow.released_s + runtime_s)
            saved.append(None if was is None or would is None else energy_kwh * (was - would))
        self._metrics.saved(shadow.key.namespace, *saved)

    def _power_w(self, shadow: Shadow) -> float:
        return self._settings.assumed_power_w(shadow.facts.requests)


def _place(shadow: Shadow) -> Key:
    """Key of a pod in the queue: by UID, since a new pod of the same name may arrive while it would still wait."""
    return Key(shadow.key.namespace, shadow.facts.pod.uid)


def expected_saving(
    signal: GridSignal | None, limit: float | None, deferral: Deferral, hold: Hold, now_s: float
) -> float | None:
    """Expected saving of a held pod per energy, gCO2eq/kWh or currency/kWh; None if unknown.

    Args:
        signal: carbon intensity or price; None if not configured.
        limit: threshold of the pod; without a forecast it stands for the value at the release.
        deferral: deferral of the pod.
        hold: the decision, with the time at which it expects a change.
        now_s: s since the epoch.
    """
    if signal is None or signal.value is None:
        return None
    runtime_s, ahead = deferral.waiting.request.runtime_s, signal.forecast
    if ahead is not None:
        at_once = ahead.mean(now_s, now_s + runtime_s)
        later = ahead.mean(hold.wake_s, hold.wake_s + runtime_s)
        if at_once is not None and later is not None:
            return at_once - later
    return None if limit is None else signal.value - min(limit, signal.value)


def _annotations(deferral: Deferral, decision: Decision, conditions: Conditions, now_s: float) -> dict[str, str]:
    request = deferral.waiting.request
    held = isinstance(decision, Hold)
    said = {
        "evaluated": "true",
        "timestamp": rfc3339(now_s),
        "would-delay": "true" if held else "false",
        "delay-type": _delay_type(decision) if isinstance(decision, Hold) else None,
        "reason": decision.text,
        "carbon-intensity": _number(_value(conditions.carbon), 2),
        "carbon-threshold": _number(request.carbon_threshold_g_per_kwh, 2),
        "price": _number(_value(conditions.price), 6),
        "price-threshold": _number(request.price_threshold_per_kwh, 6) if request.price_enabled else None,
    }
    return {names.DRY_RUN_PREFIX + key: value for key, value in said.items() if value is not None}


def _delay_type(hold: Hold) -> str:
    return hold.held_by[0].value if len(hold.held_by) == 1 else "both"


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
