"""The accounting cycle: sample the cluster's power, append to the ledger, act on budgets, and report.

The ledger holds the only durable state. If a cycle cannot be written, the next one covers its time too; the end of a
pod is reported to the ledger in every cycle until it is recorded. So a crash loses nothing, and a repeated report is
not counted twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from joulie.adapters.kubernetes.api.meta import ObjectReference
from joulie.adapters.kubernetes.events import EventRecorder
from joulie.apps.accounting.async_ledger import AsyncLedger
from joulie.apps.accounting.budgets import Budgets
from joulie.apps.accounting.closing import Closing
from joulie.apps.accounting.energy_budgets import EnergyBudgets
from joulie.apps.accounting.facts import AccountedNamespace, AccountedPod
from joulie.apps.accounting.functional_units import FunctionalUnits
from joulie.apps.accounting.holdouts import Holdouts
from joulie.apps.accounting.metrics import AccountingMetrics
from joulie.apps.accounting.policies import pod_policy
from joulie.apps.accounting.runs import runs_of
from joulie.apps.accounting.sampler import Sampler
from joulie.apps.accounting.signals import Feed, published, zone_signals
from joulie.apps.accounting.usage import UsageReader
from joulie.apps.accounting.view import ClusterView
from joulie.domain.accounting.budget import Budget
from joulie.domain.accounting.journal import Correction
from joulie.domain.accounting.records import Completion, Cycle, OpenPod
from joulie.domain.grid.signals import Basis
from joulie.ports.ledger import LedgerError

PRUNE_EVERY_S = 600.0
FIRST_SIGNALS_S = 15.0
"""How long the first cycle waits for grid signals, s, so that the time since the last run gets emissions."""
_WAIT_STEP_S = 0.5
_REMEMBERED_MISTAKES = 10_000

_log = logging.getLogger(__name__)


class ClockError(RuntimeError):
    """Raised when the clock is at or before a time that was already accounted for."""


@dataclass(frozen=True)
class Components:
    """Components of the accounting cycle.

    Attributes:
        view: cached view of the cluster.
        usage: reader of the power and use of pods.
        sampler: makes samples from the readings.
        feed: carbon intensity and prices of the grid.
        ledger: energy ledger.
        budgets: acts on exceeded energy budgets in annotations.
        energy_budgets: measures the EnergyBudgets.
        events: event recorder.
        metrics: accounting metrics.
        closing: closes months.
        functional_units: books what workloads have delivered.
        holdouts: measures what waiting saves, and keeps what limits of GPUs are known to save.
    """

    view: ClusterView
    usage: UsageReader
    sampler: Sampler
    feed: Feed
    ledger: AsyncLedger
    budgets: Budgets
    energy_budgets: EnergyBudgets
    events: EventRecorder
    metrics: AccountingMetrics
    closing: Closing
    functional_units: FunctionalUnits
    holdouts: Holdouts


class Accountant:
    """Accounts for the energy of pods.

    Args:
        components: components of the cycle.
        interval_s: interval between two cycles, s.
        basis: basis of the carbon intensity (marginal or average) for signals without one.
        now_s: current time, s since the epoch.
    """

    def __init__(self, components: Components, interval_s: float, basis: Basis, now_s: Callable[[], float]) -> None:
        self._components = components
        self._interval_s = interval_s
        self._basis = basis
        self._now_s = now_s
        self._open: Mapping[str, OpenPod] | None = None
        self._last_s: float | None = None
        self._pruned_s = now_s()
        self._reported: dict[tuple[str, str], None] = {}

    async def run(self) -> None:
        """Run cycles until cancelled."""
        loop = asyncio.get_running_loop()
        await self._components.view.wait_synced()
        await self._await_signals()
        while True:
            began_s = loop.time()
            await self.step()
            await asyncio.sleep(max(0.0, began_s + self._interval_s - loop.time()))

    async def step(self) -> None:
        """Run one cycle. A failure is logged and counted; the next cycle covers its time."""
        metrics = self._components.metrics
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
            await self._components.energy_budgets.report_failure(str(error), self._now_s())
            metrics.budgets({}, {}, self._components.energy_budgets.use)
        except Exception:
            metrics.cycles.labels("error").inc()
            self._open = None
            _log.exception("cycle failed")

    async def _await_signals(self) -> None:
        """Wait for the first grid signals of all zones, for a limited time."""
        zones = self._components.sampler.zones(self._components.view.snapshot())
        until_s = self._now_s() + FIRST_SIGNALS_S
        for zone in zones:
            self._components.feed.want(zone)
        while self._now_s() < until_s and not all(self._components.feed.asked(zone) for zone in zones):
            await asyncio.sleep(_WAIT_STEP_S)

    # ---- the cycle

    async def _cycle(self) -> None:
        components, now_s = self._components, self._now_s()
        known = await self._open_pods()
        if self._last_s is not None and now_s <= self._last_s:
            raise ClockError("the clock went backwards: accounting is paused until it has caught up")
        await components.view.keep_labels_of(components.energy_budgets.labelled_namespaces)
        pods = {pod.uid: pod for pod in components.view.pods}
        departed = dict(components.view.departed)
        running = [pod for pod in pods.values() if pod.running]
        short_lived = self._short_lived(known, pods, departed)
        readings = await components.usage.read(
            {(pod.namespace, pod.name) for pod in running}, components.view.node_index()
        )
        cluster = components.view.snapshot()
        sampling = await asyncio.to_thread(
            components.sampler.sample, cluster, running, list(short_lived.values()), readings
        )
        sampled = {one.pod.uid for one in sampling.samples}
        ends = {uid: _ended_s(uid, pods, departed, known[uid].sampled_s) for uid in known.keys() - sampled}
        ends |= {uid: _ended_s(uid, pods, departed, now_s) for uid in short_lived}
        everyone = pods | {uid: pod for uid, (pod, _seen_s) in departed.items()}
        cycle = Cycle(
            now_s,
            sampling.samples,
            [_completion(uid, time_s, everyone.get(uid), cluster.namespaces) for uid, time_s in ends.items()],
            zone_signals(components.feed, sampling.zones, self._basis, now_s),
            components.energy_budgets.scopes(everyone.values(), known, now_s),
            sampling.pue_sources,
        )
        result = await components.ledger.call(lambda ledger: ledger.append(cycle))
        self._open = now_open = await components.ledger.call(lambda ledger: ledger.open_pods())
        self._last_s = now_s
        for uid in departed.keys() - now_open.keys():
            components.view.departed.pop(uid, None)

        components.holdouts.deferral.completed(result.completed, everyone)
        components.metrics.holdout(components.holdouts.deferral.evidence.now)
        components.metrics.cycled(sampling, now_open, result, now_s, cluster.namespaces)
        if runs := list(runs_of(result.completed, everyone)):
            await components.ledger.call(lambda ledger: ledger.record_runs(runs))
        limits = {**_limits(ends, everyone, cluster.namespaces), **sampling.budgets}
        mistakes = await components.budgets.evaluate(everyone, limits, cluster.namespaces, now_open, result, now_s)
        await components.energy_budgets.declare(components.budgets.declared)
        await components.energy_budgets.report(now_s)
        components.metrics.budgets(components.budgets.used, now_open, components.energy_budgets.use)
        self._report_mistakes({**sampling.mistakes, **mistakes})
        await self._maintain(sampling.zones, now_s)
        components.metrics.show_status(
            await components.ledger.call(lambda ledger: ledger.counts()), components.usage.states.up
        )

    async def _open_pods(self) -> Mapping[str, OpenPod]:
        """Pods whose end the ledger has not recorded; read from the ledger after a start and after a failure."""
        if self._open is not None:
            return self._open
        ledger, self._open = self._components.ledger, None
        await self._components.holdouts.load()
        known = await ledger.call(lambda ledger: ledger.open_pods())
        totals = await ledger.call(lambda ledger: ledger.totals())
        savings = await ledger.call(lambda ledger: ledger.savings())
        self._components.metrics.restore(totals, savings)
        self._components.budgets.forget()
        times_s = [one.sampled_s for one in known.values()]
        if times_s:
            self._last_s = max(times_s)
        return known

    def _short_lived(
        self,
        known: Mapping[str, OpenPod],
        pods: Mapping[str, AccountedPod],
        departed: Mapping[str, tuple[AccountedPod, float]],
    ) -> dict[str, AccountedPod]:
        """Pods that started and ended since the last cycle: never sampled, they are accounted for by their requests."""
        if self._last_s is None:
            return {}
        gone = {uid: pod for uid, (pod, _seen_s) in departed.items()}
        ended = {uid: pod for uid, pod in pods.items() if not pod.running}
        return {
            uid: pod
            for uid, pod in {**gone, **ended}.items()
            if uid not in known and pod.started_s is not None and _ended_s(uid, pods, departed, 0.0) > self._last_s
        }

    async def _maintain(self, zones: Iterable[str], now_s: float) -> None:
        """Correct the past by what has become known of the grid, drop and fold what is old, and close months."""
        if now_s - self._pruned_s < PRUNE_EVERY_S:
            return
        components = self._components
        history = published(components.feed, zones, self._basis, now_s)
        corrected = await components.ledger.call(lambda ledger: ledger.rebook(history, now_s))
        _log_corrections(corrected)
        components.metrics.corrections.inc(len(corrected))
        await components.ledger.call(lambda ledger: ledger.prune(now_s))
        await components.holdouts.copy_limits()
        await components.holdouts.keep()
        await components.functional_units.book_due(now_s)
        await components.closing.close_due(now_s)
        self._pruned_s = now_s

    def _report_mistakes(self, mistakes: Mapping[ObjectReference, Iterable[str]]) -> None:
        """Emit an event for each invalid annotation, once."""
        for regarding, sentences in mistakes.items():
            for sentence in sentences:
                key = regarding.uid or regarding.name, sentence
                if key not in self._reported:
                    self._reported[key] = None
                    self._components.events.emit(regarding, "Warning", "InvalidAnnotation", sentence)
        while len(self._reported) > _REMEMBERED_MISTAKES:
            del self._reported[next(iter(self._reported))]


def _log_corrections(corrected: Sequence[Correction]) -> None:
    """One line for all corrections of a look: they are listed by `joulie ledger corrections`."""
    if not corrected:
        return
    changes = corrected[0].changes
    _log.info(
        "the past was corrected by signals of the grid",
        extra={
            "entries": len(corrected),
            "factors": len(changes),
            "from_s": min(one.from_s for one in changes),
            "until_s": max(one.until_s for one in changes),
            "emissions_g": sum(one.entry.energy.emissions_g for one in corrected),
        },
    )


def _limits(
    uids: Iterable[str], pods: Mapping[str, AccountedPod], namespaces: Mapping[str, AccountedNamespace]
) -> dict[str, Budget]:
    """Budgets of pods by UID, including pods that have ended, since they may have exceeded theirs at the end."""
    known = ((uid, pods[uid]) for uid in uids if uid in pods)
    budgets = ((uid, pod_policy(pod, namespaces.get(pod.namespace)).budget) for uid, pod in known)
    return {uid: budget for uid, budget in budgets if budget is not None}


def _completion(
    uid: str, time_s: float, pod: AccountedPod | None, namespaces: Mapping[str, AccountedNamespace]
) -> Completion:
    """The end of a pod, with what it has delivered if it succeeded."""
    if pod is None or not pod.succeeded:
        return Completion(uid, time_s)
    return Completion(uid, time_s, pod_policy(pod, namespaces.get(pod.namespace)).delivers)


def _ended_s(
    uid: str,
    pods: Mapping[str, AccountedPod],
    departed: Mapping[str, tuple[AccountedPod, float]],
    otherwise_s: float,
) -> float:
    """When a pod ended: as its status says, else when it was seen to leave the cluster while running.

    `otherwise_s` if neither is known: the pod left while this program was down, or it failed at an unknown time.
    """
    pod = pods.get(uid)
    if pod is not None and pod.ended_s is not None:
        return pod.ended_s
    if uid in departed:
        gone, seen_s = departed[uid]
        if gone.running or gone.ended_s is not None:
            return min(seen_s, gone.ended_s or seen_s)
    return otherwise_s
