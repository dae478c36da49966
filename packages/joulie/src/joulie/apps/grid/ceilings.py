"""Lowers the maximum of autoscalers while power is dirty or expensive, and restores it.

What is decided follows from the annotations, the signals and the clock; what was lowered is recorded on the autoscaler
itself. So another replica goes on where this one died, and the guard restores the maximum if none does.

Somebody else's change of the maximum wins: it becomes the original one. If somebody keeps restoring it, such as a
GitOps controller, the autoscaler is left alone for a while, since a fight would start and stop replicas all the time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import msgspec

from joulie.adapters.kubernetes.api.autoscaling import HorizontalPodAutoscaler, ScaledObject
from joulie.adapters.kubernetes.autoscalers import (
    RESOURCES,
    Autoscaler,
    autoscaler_of,
    find_keda,
    replica_requests,
    write_change,
)
from joulie.adapters.kubernetes.cache import Cache, Key
from joulie.adapters.kubernetes.errors import ConflictError, KubernetesError, NotFoundError
from joulie.adapters.kubernetes.events import Severity
from joulie.adapters.kubernetes.resources import DEPLOYMENTS, HORIZONTAL_POD_AUTOSCALERS, SCALED_OBJECTS
from joulie.adapters.kubernetes.times import rfc3339
from joulie.adapters.kubernetes.writer import write_all
from joulie.adapters.program_api.grid import CeilingItem
from joulie.apps.grid.facts import Asking, Owner
from joulie.apps.grid.leader import Leader
from joulie.domain.grid import names
from joulie.domain.grid.ceilings import Ceiling, CeilingReason, Scaling, ceiling_request, change, decide, next_change
from joulie.domain.grid.deferral import Conditions, duration_text
from joulie.domain.grid.maxima import Change, Record, effective, overridden
from joulie.domain.grid.signals import GridSignal
from joulie.domain.grid.withheld import Withheld
from joulie.domain.quantities import SECONDS_PER_HOUR
from joulie.program.leadership import NotLeadingError

_OWNER = Owner(DEPLOYMENTS.kind, "", "")
"""As if it were a Deployment's pod: a namespace's policies for services hold."""
STEP_S = 15.0
"""Interval of the steps, s."""
LOOK_AGAIN_S = 300.0
"""Interval at which a cluster without KEDA is checked for it, s."""
FORECAST_EVERY_S = 900.0
"""How often it is computed when a maximum is expected to change, s."""
RESTORED_TIMES = 2
"""How often somebody restores the original maximum before the autoscaler is left alone."""
BACK_OFF_S = 6 * 3600.0
"""How long it is left alone then, s."""
_CONCURRENCY = 8
_ASKS = (names.CARBON_MAX_REPLICAS, names.PRICE_MAX_REPLICAS, names.REPLICA_CEILING)
_OPEN = Ceiling(2**31 - 1, CeilingReason.SKIP, "nothing is held in a dry run or in observe mode")
_STATES = (*(str(reason) for reason in CeilingReason), "observed", "contested", "invalid")

_log = logging.getLogger(__name__)


@dataclass
class Followed:
    """What is remembered of an autoscaler while this replica leads.

    Attributes:
        uid: its UID.
        state: what is decided, for the metric.
        text: the same in words.
        told: text in force of each kind of event that tells a state.
        changed_s: when its maximum was changed last, s since the epoch.
        restored_s: when somebody restored its original maximum.
        expected_s: when the maximum is expected to change next, s since the epoch; None if no change is forecast.
        forecast_s: when that was computed, s since the epoch.
        withheld: what the present ceiling has withheld, as far as this replica has seen.
        withheld_now: number of replicas that it withholds now.
        counted_s: until when, s since the epoch; None before the first step with it.
        power_w: assumed power of one replica, W; None if unknown.
    """

    uid: str
    state: str = ""
    text: str = ""
    told: dict[str, str] = field(default_factory=dict)
    changed_s: float = 0.0
    restored_s: list[float] = field(default_factory=list)
    expected_s: float | None = None
    forecast_s: float = 0.0
    withheld: Withheld = field(default_factory=Withheld)
    withheld_now: int = 0
    counted_s: float | None = None
    power_w: float | None = None

    def contested(self, now_s: float) -> bool:
        """Whether somebody keeps restoring the original maximum."""
        self.restored_s = [time_s for time_s in self.restored_s if now_s - time_s < BACK_OFF_S]
        return len(self.restored_s) >= RESTORED_TIMES


class Seen(NamedTuple):
    """An autoscaler in one step.

    Attributes:
        key: namespace and name.
        one: the autoscaler.
        record: what was done to it; None if nothing was.
        memory: what is remembered of it.
    """

    key: Key
    one: Autoscaler
    record: Record | None
    memory: Followed


class ReplicaCeilings:
    """Lowers and restores maxima while this replica leads.

    Args:
        leader: this replica while it leads.
        look: conditions in a zone; None while its sources have not been queried yet.

    Attributes:
        caches: autoscalers that ask for a ceiling or have one, by kind.
    """

    def __init__(self, leader: Leader, look: Callable[[str], Conditions | None]) -> None:
        self._client, self._view, self._settings = leader.client, leader.view, leader.settings
        self._metrics, self._events = leader.metrics, leader.events
        self._may_write, self._now_s = leader.may_write, leader.now_s
        self._look = look
        self._followed: dict[tuple[str, Key], Followed] = {}
        self.caches: dict[str, Cache[Any, Autoscaler]] = {
            kind: Cache(leader.client, resource, _keep) for kind, resource in RESOURCES.items()
        }

    async def run(self) -> None:
        """Lower and restore until cancelled."""
        hpas, scaled_objects = (self.caches[one.kind] for one in (HORIZONTAL_POD_AUTOSCALERS, SCALED_OBJECTS))
        async with asyncio.TaskGroup() as group:
            group.create_task(hpas.run())
            group.create_task(self._follow_keda(scaled_objects))
            await hpas.wait_synced()
            while True:
                try:
                    await self.step()
                except Exception:
                    _log.exception("step of replica ceilings failed")
                await asyncio.sleep(STEP_S)

    async def _follow_keda(self, scaled_objects: Cache[Any, Autoscaler]) -> None:
        """Watch ScaledObjects, once the cluster has KEDA."""
        while True:
            try:
                if await find_keda(self._client):
                    await scaled_objects.run()
            except KubernetesError as error:
                _log.warning("cannot detect KEDA", extra={"problem": str(error)})
            await asyncio.sleep(LOOK_AGAIN_S)

    def _autoscalers(self) -> dict[tuple[str, Key], Autoscaler]:
        """Those that may be lowered; a ScaledObject with the number of replicas that its own autoscaler reports."""
        found = {(kind, key): one for kind, cache in self.caches.items() for key, one in cache.objects.items()}
        own = {(SCALED_OBJECTS.kind, Key(key.namespace, one.scaled_object)): one for (_, key), one in found.items()}

        def reported(place: tuple[str, Key], one: Autoscaler) -> Autoscaler:
            by = own.get(place, one)
            return msgspec.structs.replace(one, running=by.running, wanted=by.wanted, target=by.target)

        return {place: reported(place, one) for place, one in found.items() if not one.scaled_object}

    def items(self) -> list[CeilingItem]:
        """All autoscalers that ask for a ceiling, as of the last step; lowered ones first."""
        found = self._autoscalers()
        items = [
            _item(key, one, self._followed[kind, key], self._now_s())
            for (kind, key), one in found.items()
            if (kind, key) in self._followed
        ]
        return sorted(items, key=lambda item: (not item.lowered, item.namespace, item.name, item.kind))

    async def step(self) -> None:
        """Decide about every autoscaler, and write what changes."""
        found = self._autoscalers()
        before, self._followed = self._followed, {}
        for place, one in found.items():
            old = before.get(place)
            self._followed[place] = old if old is not None and old.uid == one.uid else Followed(one.uid)
        jobs = [partial(self._process, place[1], one, self._followed[place]) for place, one in found.items()]
        for failure in await write_all(jobs, concurrency=_CONCURRENCY):
            if not isinstance(failure.error, NotFoundError | ConflictError):  # the watch reports what became of it
                self._metrics.write_errors.labels("ceiling").inc()
                _log.warning("replica ceiling not kept", extra={"problem": str(failure.error)})
        self._metrics.withheld_replicas.set(sum(one.withheld_now for one in self._followed.values()))
        expected_s = (one.expected_s for one in self._followed.values() if one.expected_s is not None)
        self._metrics.next_ceiling_change_s.set(min(expected_s, default=0.0))
        states = Counter(one.state for one in self._followed.values())
        for state in _STATES:
            self._metrics.replica_ceilings.labels(state).set(states[state])

    async def _process(self, key: Key, one: Autoscaler, memory: Followed) -> None:
        await asyncio.sleep(0)  # thousands of them must not keep the lease from being renewed
        try:
            seen = Seen(key, one, one.record, memory)
        except ValueError as error:
            memory.state = "invalid"
            memory.text = text = f"{error}. The maximum stays as it is: set the one you want and remove this annotation"
            self._tell_once(Seen(key, one, None, memory), "Warning", "InvalidAnnotation", text)
            return
        if overridden(one.maximum, seen.record):
            await self._accept(seen)
            return
        scaling = self._scaling(seen)
        conditions = self._look(self._view.zone(scaling.request, _asking(one)))
        if conditions is not None:
            await self._account(seen, scaling, conditions)
            wanted = self._decide(seen, scaling, conditions)
            if wanted is not None:
                await self._follow(seen, scaling, wanted, conditions)
            if self._now_s() - memory.forecast_s >= FORECAST_EVERY_S:
                self._expect(memory, scaling, conditions)

    def _scaling(self, seen: Seen) -> Scaling:
        one, record = seen.one, seen.record
        request = self._view.request(seen.key.namespace, _asking(one), _OWNER)
        asked = ceiling_request(one.annotations)
        self._tell_once(seen, "Warning", "InvalidAnnotation", "; ".join((*asked.mistakes, *request.mistakes)))
        if record is None:
            return Scaling(request, asked, effective(one.maximum), one.minimum)
        original, present = effective(record.original), effective(one.maximum)
        in_force = present if present < original else None
        return Scaling(request, asked, original, one.minimum, in_force, record.since_s)

    def _decide(self, seen: Seen, scaling: Scaling, conditions: Conditions) -> Ceiling | None:
        """What the maximum should be; None to leave it alone."""
        now_s, memory = self._now_s(), seen.memory
        wanted = decide(scaling, conditions, now_s)
        memory.state, memory.text = str(wanted.reason), wanted.text
        missing = f"no ceiling holds: {wanted.text}" if wanted.reason is CeilingReason.MISSING else ""
        self._tell_once(seen, "Warning", "GridSignalMissing", missing)
        if self._settings.dry_run_enabled or self._view.observes(seen.key.namespace):
            memory.state = "observed"
            lower = wanted.maximum < scaling.original
            plan = f"would lower the maximum from {scaling.original} to {wanted.maximum}" if lower else ""
            self._tell_once(seen, "Normal", "CeilingPlanned", plan, wanted.text)
            return _OPEN
        if memory.contested(now_s):
            memory.state = "contested"
            return None
        return wanted

    async def _follow(self, seen: Seen, scaling: Scaling, wanted: Ceiling, conditions: Conditions) -> None:
        one, now_s = seen.one, self._now_s()
        todo = change(one.maximum, one.running, seen.record, wanted, seen.memory.changed_s, now_s)
        if todo is None or not await self._write(seen, todo):
            return
        old, new = effective(one.maximum), effective(todo.maximum)
        if new == old:
            return
        reason = "CeilingLifted" if new == scaling.original else "CeilingLowered" if new < old else "CeilingRaised"
        text = f"maximum {old} -> {new}, of {scaling.original} originally: {wanted.text}"
        if new == scaling.original:
            text += self._settle(seen, conditions)
        if todo.record is not None:
            lowered = replace(scaling, in_force=new, since_s=todo.record.since_s)
            text += self._expect(seen.memory, lowered, conditions)
        self._tell(seen, "Normal", reason, text)

    def _expect(self, memory: Followed, scaling: Scaling, conditions: Conditions) -> str:
        """Note when the ceiling is expected to change next. Returns the same in words."""
        now_s = self._now_s()
        memory.forecast_s = now_s
        later = next_change(scaling, conditions, now_s)
        memory.expected_s = None if later is None else later[0]
        return "" if later is None else f"; expected to become {later[1].maximum} at {rfc3339(later[0])}"

    # ---- accounting

    async def _account(self, seen: Seen, scaling: Scaling, conditions: Conditions) -> None:
        """Count what the ceiling has withheld since the last step."""
        one, memory, now_s = seen.one, seen.memory, self._now_s()
        counted_s, memory.counted_s = memory.counted_s, now_s
        memory.withheld_now = 0
        if scaling.in_force is None:
            memory.counted_s = None
            return
        if counted_s is None:
            memory.power_w = await self._power_w(seen)
            return
        memory.withheld_now = max(0, min(one.wanted or 0, scaling.original) - scaling.in_force)
        hours = (now_s - counted_s) / SECONDS_PER_HOUR
        before = memory.withheld
        values = (_value(conditions.carbon), _value(conditions.price))
        memory.withheld = before.plus(memory.withheld_now, hours, memory.power_w, *values)
        added = memory.withheld.replica_hours - before.replica_hours, memory.withheld.energy_kwh - before.energy_kwh
        self._metrics.withheld(seen.key.namespace, *added)

    async def _power_w(self, seen: Seen) -> float | None:
        """Assumed power of one replica by its requests; None if they are unknown."""
        try:
            requests = await replica_requests(self._client, seen.key, seen.one.target)
        except KubernetesError as error:
            extra = {"object": f"{seen.one.kind} {seen.key}", "problem": str(error)}
            _log.warning("the power of replicas is unknown, their energy is not counted", extra=extra)
            return None
        return None if requests is None else self._settings.assumed_power_w(requests)

    def _settle(self, seen: Seen, conditions: Conditions) -> str:
        """Book what a ceiling that ends has changed if all that it withheld runs now. Returns the same in words."""
        withheld, seen.memory.withheld = seen.memory.withheld, Withheld()
        if not withheld.replica_hours:
            return ""
        saved_g = withheld.carbon.saved(_value(conditions.carbon))
        saved_cost = withheld.price.saved(_value(conditions.price))
        self._metrics.ceiling_saved(seen.key.namespace, saved_g, saved_cost)
        text = f"; withheld {withheld.replica_hours:.1f} replica hours, about {withheld.energy_kwh:.3g} kWh"
        parts = [] if saved_g is None else [f"{saved_g:.0f} gCO2eq"]
        parts += [] if saved_cost is None else [f"{saved_cost:.2f} in currency"]
        return f"{text}; if all of that runs now, it saves {' and '.join(parts)}" if parts else text

    # ---- writing

    async def _accept(self, seen: Seen) -> None:
        """Take the maximum that somebody else has set for the original one."""
        maximum, record = seen.one.maximum, seen.record
        assert record is not None
        if not await self._write(seen, Change(maximum, None)):
            return
        seen.memory.withheld = Withheld()  # it ends at an unknown time before
        now_s, memory = self._now_s(), seen.memory
        text = f"somebody else set the maximum to {effective(maximum)}, which counts as its original one now"
        self._tell(seen, "Normal", "CeilingOverridden", text)
        if maximum == record.original:
            memory.restored_s.append(now_s)
        if memory.contested(now_s):
            text = (
                f"somebody else restored the maximum {RESTORED_TIMES} times, so it is left alone for "
                f"{duration_text(BACK_OFF_S)}: let the GitOps controller ignore this field, or ask for no ceiling"
            )
            self._tell(seen, "Warning", "CeilingContested", text)

    async def _write(self, seen: Seen, todo: Change) -> bool:
        if not self._may_write():
            raise NotLeadingError("lost leadership: not written")
        if not await write_change(self._client, seen.key, seen.one, todo):
            return False
        seen.memory.changed_s = self._now_s()
        self._metrics.writes.labels("ceiling").inc()
        return True

    # ---- telling

    def _tell_once(self, seen: Seen, severity: Severity, reason: str, text: str, detail: str = "") -> None:
        """Emit an event when its text becomes another one; an empty text ends it."""
        told = seen.memory.told
        if text and told.get(reason) != text:
            self._tell(seen, severity, reason, f"{text}: {detail}" if detail else text)
        told[reason] = text

    def _tell(self, seen: Seen, severity: Severity, reason: str, text: str) -> None:
        self._events.emit(seen.one.reference(seen.key), severity, reason, text)
        level = logging.WARNING if severity == "Warning" else logging.INFO
        extra = {"object": f"{seen.one.kind} {seen.key}", "reason": reason, "detail": text}
        _log.log(level, "replica ceiling", extra=extra)


def _keep(found: HorizontalPodAutoscaler | ScaledObject) -> Autoscaler | None:
    one = autoscaler_of(found)
    return one if one.scaled_object or any(key in one.annotations for key in _ASKS) else None


def _item(key: Key, one: Autoscaler, memory: Followed, now_s: float) -> CeilingItem:
    maximum = effective(one.maximum)
    try:
        record = one.record
    except ValueError:  # the event and the state say so
        record = None
    return CeilingItem(
        kind=one.kind,
        namespace=key.namespace,
        name=key.name,
        maximum=maximum,
        original=maximum if record is None else effective(record.original),
        decision=memory.state,
        running=one.running,
        withheld=memory.withheld_now,
        expected_in_s=None if memory.expected_s is None else round(max(0.0, memory.expected_s - now_s), 1),
        text=memory.text,
    )


def _value(signal: GridSignal | None) -> float | None:
    return None if signal is None or not signal.known else signal.value


def _asking(one: Autoscaler) -> Asking:
    return Asking(annotations=one.annotations)
