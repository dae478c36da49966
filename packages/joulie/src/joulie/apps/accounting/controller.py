"""The cycle of accounting: look at the cluster, sample, write to the ledger, act on budgets, and say what happened.

The ledger is the only memory that counts. A cycle that cannot be written is followed by one that covers its time too;
a pod that has ended is named to the ledger in every cycle until it knows. So nothing is lost when this program dies,
and nothing is counted twice when it says something again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from joulie.adapters.kubernetes.api.meta import ObjectReference
from joulie.adapters.kubernetes.events import EventRecorder
from joulie.apps.accounting.async_ledger import AsyncLedger
from joulie.apps.accounting.budgets import Budgets
from joulie.apps.accounting.facts import AccountedNamespace, AccountedPod
from joulie.apps.accounting.metrics import AccountingMetrics
from joulie.apps.accounting.policies import pod_policy
from joulie.apps.accounting.sampler import Sampler
from joulie.apps.accounting.signals import Feed, zone_signals
from joulie.apps.accounting.usage import UsageReader
from joulie.apps.accounting.view import ClusterView
from joulie.domain.accounting.budget import Budget
from joulie.domain.accounting.records import Completion, Cycle, OpenPod
from joulie.domain.grid.signals import Basis
from joulie.ports import LedgerError

PRUNE_EVERY_S = 600.0
FIRST_SIGNALS_S = 15.0
"""How long the first cycle waits for the grid, so that the time since the last run has emissions."""
_WAIT_STEP_S = 0.5
_REMEMBERED_MISTAKES = 10_000

_log = logging.getLogger(__name__)


class ClockError(RuntimeError):
    """Time that was accounted already."""


@dataclass(frozen=True)
class Tools:
    """What a cycle works with.

    Attributes:
        view: of the cluster.
        usage: what pods draw and use.
        sampler: makes samples of that.
        feed: of the grid.
        ledger: energy ledger.
        budgets: acts on those that are crossed.
        events: to tell people.
        metrics: to show.
    """

    view: ClusterView
    usage: UsageReader
    sampler: Sampler
    feed: Feed
    ledger: AsyncLedger
    budgets: Budgets
    events: EventRecorder
    metrics: AccountingMetrics


class Accountant:
    """Accounts for the energy of pods.

    Args:
        tools: to work with.
        interval_s: between two cycles, s.
        basis: of carbon intensity, where signals do not say.
        now_s: s since the epoch.
    """

    def __init__(self, tools: Tools, interval_s: float, basis: Basis, now_s: Callable[[], float]) -> None:
        self._tools = tools
        self._interval_s = interval_s
        self._basis = basis
        self._now_s = now_s
        self._open: Mapping[str, OpenPod] | None = None
        self._last_s: float | None = None
        self._pruned_s = now_s()
        self._told: dict[tuple[str, str], None] = {}

    async def run(self) -> None:
        """Account until cancelled."""
        loop = asyncio.get_running_loop()
        await self._tools.view.wait_synced()
        await self._await_signals()
        while True:
            began_s = loop.time()
            await self.step()
            await asyncio.sleep(max(0.0, began_s + self._interval_s - loop.time()))

    async def step(self) -> None:
        """One cycle. One that fails is logged and counted, and the next makes up for it."""
        metrics = self._tools.metrics
        try:
            with metrics.cycle_seconds.time():
                await self._cycle()
            metrics.cycles.labels("ok").inc()
        except ClockError as error:
            metrics.cycles.labels("error").inc()
            _log.error(str(error), extra={"behind_s": round((self._last_s or 0.0) - self._now_s())})
        except LedgerError as error:
            metrics.cycles.labels("error").inc()
            self._open = None
            _log.error("the ledger failed, the next cycle covers the time of this one", extra={"problem": str(error)})
        except Exception:
            metrics.cycles.labels("error").inc()
            self._open = None
            _log.exception("cycle failed")

    async def _await_signals(self) -> None:
        """Give the grid's sources a moment."""
        zones = self._tools.sampler.zones(self._tools.view.snapshot())
        until_s = self._now_s() + FIRST_SIGNALS_S
        for zone in zones:
            self._tools.feed.want(zone)
        while self._now_s() < until_s and not all(self._tools.feed.asked(zone) for zone in zones):
            await asyncio.sleep(_WAIT_STEP_S)

    # ---- the cycle

    async def _cycle(self) -> None:
        tools, now_s = self._tools, self._now_s()
        known = await self._standing()
        if self._last_s is not None and now_s <= self._last_s:
            raise ClockError("the clock went backwards: nothing is accounted until it has caught up")
        pods = {pod.uid: pod for pod in tools.view.pods}
        departed = dict(tools.view.departed)
        running = [pod for pod in pods.values() if pod.running]
        brief = self._brief(known, pods, departed)
        readings = await tools.usage.read({(pod.namespace, pod.name) for pod in running}, tools.view.node_index())
        cluster = tools.view.snapshot()
        sampling = await asyncio.to_thread(tools.sampler.sample, cluster, running, list(brief.values()), readings)
        sampled = {one.pod.uid for one in sampling.samples}
        ends = {uid: _ended_s(uid, pods, departed, known[uid].sampled_s) for uid in known.keys() - sampled}
        ends |= {uid: _ended_s(uid, pods, departed, now_s) for uid in brief}
        cycle = Cycle(
            now_s,
            sampling.samples,
            [Completion(uid, time_s) for uid, time_s in ends.items()],
            zone_signals(tools.feed, sampling.zones, self._basis, now_s),
        )
        result = await tools.ledger.call(lambda ledger: ledger.append(cycle))
        self._open = now_open = await tools.ledger.call(lambda ledger: ledger.open_pods())
        self._last_s = now_s
        for uid in departed.keys() - now_open.keys():
            tools.view.departed.pop(uid, None)

        tools.metrics.cycled(sampling, now_open, result, now_s, cluster.namespaces)
        everyone = pods | {uid: pod for uid, (pod, _seen_s) in departed.items()}
        limits = {**_limits(ends, everyone, cluster.namespaces), **sampling.budgets}
        mistakes = await tools.budgets.look(everyone, limits, cluster.namespaces, now_open, result, now_s)
        tools.metrics.budgets(tools.budgets.used, now_open)
        self._complain({**sampling.mistakes, **mistakes})
        for zone in result.conflicts:
            _log.error("the ledger has intensities on another basis, which are never mixed", extra={"zone": zone})
        await self._prune(now_s)
        tools.metrics.tell(await tools.ledger.call(lambda ledger: ledger.counts()), tools.usage.states.up)

    async def _standing(self) -> Mapping[str, OpenPod]:
        """Pods whose end the ledger does not know; read from it after a start, and after a failure."""
        if self._open is not None:
            return self._open
        ledger, self._open = self._tools.ledger, None
        known = await ledger.call(lambda ledger: ledger.open_pods())
        totals = await ledger.call(lambda ledger: ledger.totals())
        savings = await ledger.call(lambda ledger: ledger.savings())
        self._tools.metrics.begin(totals, savings)
        self._tools.budgets.forget()
        times_s = [one.sampled_s for one in known.values()]
        if times_s:
            self._last_s = max(times_s)
        return known

    def _brief(
        self,
        known: Mapping[str, OpenPod],
        pods: Mapping[str, AccountedPod],
        departed: Mapping[str, tuple[AccountedPod, float]],
    ) -> dict[str, AccountedPod]:
        """Pods that came and went since the last cycle: nothing has sampled them, so their requests must do."""
        if self._last_s is None:
            return {}
        gone = {uid: pod for uid, (pod, _seen_s) in departed.items()}
        ended = {uid: pod for uid, pod in pods.items() if not pod.running}
        return {
            uid: pod
            for uid, pod in {**gone, **ended}.items()
            if uid not in known and pod.started_s is not None and _ended_s(uid, pods, departed, 0.0) > self._last_s
        }

    async def _prune(self, now_s: float) -> None:
        if now_s - self._pruned_s >= PRUNE_EVERY_S:
            await self._tools.ledger.call(lambda ledger: ledger.prune(now_s))
            self._pruned_s = now_s

    def _complain(self, mistakes: Mapping[ObjectReference, Iterable[str]]) -> None:
        """Report what cannot be read, each once."""
        for regarding, sentences in mistakes.items():
            for sentence in sentences:
                key = regarding.uid or regarding.name, sentence
                if key not in self._told:
                    self._told[key] = None
                    self._tools.events.emit(regarding, "Warning", "InvalidAnnotation", sentence)
        while len(self._told) > _REMEMBERED_MISTAKES:
            del self._told[next(iter(self._told))]


def _limits(
    uids: Iterable[str], pods: Mapping[str, AccountedPod], namespaces: Mapping[str, AccountedNamespace]
) -> dict[str, Budget]:
    """Budgets of pods: those that have ended may have crossed theirs at last."""
    known = ((uid, pods[uid]) for uid in uids if uid in pods)
    budgets = ((uid, pod_policy(pod, namespaces.get(pod.namespace)).budget) for uid, pod in known)
    return {uid: budget for uid, budget in budgets if budget is not None}


def _ended_s(
    uid: str,
    pods: Mapping[str, AccountedPod],
    departed: Mapping[str, tuple[AccountedPod, float]],
    otherwise_s: float,
) -> float:
    """When a pod ended: by its own word, else when it was seen to leave the cluster while it ran.

    Where neither says, it is `otherwise_s`: of one that left while this program was down, and of one that had failed,
    long ago perhaps, without a word of when.
    """
    pod = pods.get(uid)
    if pod is not None and pod.ended_s is not None:
        return pod.ended_s
    if uid in departed:
        gone, seen_s = departed[uid]
        if gone.running or gone.ended_s is not None:
            return min(seen_s, gone.ended_s or seen_s)
    return otherwise_s
