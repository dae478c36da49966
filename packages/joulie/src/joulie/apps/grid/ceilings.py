"""Lowers the maximum of autoscalers while power is dirty or dear, and restores it.

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
from joulie.adapters.kubernetes.autoscalers import RESOURCES, Autoscaler, autoscaler_of, find_keda, write_change
from joulie.adapters.kubernetes.cache import Cache, Key
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import ConflictError, KubernetesError, NotFoundError
from joulie.adapters.kubernetes.events import EventRecorder, Severity
from joulie.adapters.kubernetes.resources import DEPLOYMENTS, HORIZONTAL_POD_AUTOSCALERS, SCALED_OBJECTS
from joulie.adapters.kubernetes.times import rfc3339
from joulie.adapters.kubernetes.writer import write_all
from joulie.apps.grid.facts import Asking, Owner
from joulie.apps.grid.metrics import ControllerMetrics
from joulie.apps.grid.observe import GridView
from joulie.domain.grid import names
from joulie.domain.grid.ceilings import (
    Ceiling,
    CeilingReason,
    Change,
    Record,
    Scaling,
    ceiling_request,
    change,
    decide,
    effective,
    next_change,
    overridden,
)
from joulie.domain.grid.deferral import Conditions, duration_text
from joulie.program.leadership import NotLeadingError

_OWNER = Owner(DEPLOYMENTS.kind, "", "")
"""As if it were a Deployment's pod: a namespace's policies for services hold."""
STEP_S = 15.0
"""Interval of the steps, s."""
LOOK_AGAIN_S = 300.0
"""Interval at which a cluster without KEDA is checked for it, s."""
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
        told: last text of each kind of event.
        changed_s: when its maximum was changed last, s since the epoch.
        restored_s: when somebody restored its original maximum.
    """

    uid: str
    state: str = ""
    told: dict[str, str] = field(default_factory=dict)
    changed_s: float = 0.0
    restored_s: list[float] = field(default_factory=list)

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
        client: Kubernetes client.
        view: watch caches with the namespaces.
        look: conditions in a zone; None while its sources have not been queried yet.
        events: event recorder.
        metrics: metrics of the controller.
        dry_run: lower nothing.
        may_write: whether this replica leads.
        now_s: current time, s since the epoch.

    Attributes:
        caches: autoscalers that ask for a ceiling or have one, by kind.
    """

    def __init__(
        self,
        client: KubeClient,
        view: GridView,
        look: Callable[[str], Conditions | None],
        events: EventRecorder,
        metrics: ControllerMetrics,
        *,
        dry_run: bool,
        may_write: Callable[[], bool],
        now_s: Callable[[], float],
    ) -> None:
        self._client = client
        self._view = view
        self._look = look
        self._events = events
        self._metrics = metrics
        self._dry_run = dry_run
        self._may_write = may_write
        self._now_s = now_s
        self._followed: dict[tuple[str, Key], Followed] = {}
        self.caches: dict[str, Cache[Any, Autoscaler]] = {
            kind: Cache(client, resource, _keep) for kind, resource in RESOURCES.items()
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
        running = {
            (SCALED_OBJECTS.kind, Key(key.namespace, one.scaled_object)): one.running for (_, key), one in found.items()
        }
        return {
            place: msgspec.structs.replace(one, running=running.get(place, one.running))
            for place, one in found.items()
            if not one.scaled_object
        }

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
        states = Counter(one.state for one in self._followed.values())
        for state in _STATES:
            self._metrics.replica_ceilings.labels(state).set(states[state])

    async def _process(self, key: Key, one: Autoscaler, memory: Followed) -> None:
        try:
            seen = Seen(key, one, one.record, memory)
        except ValueError as error:
            memory.state = "invalid"
            text = f"{error}. The maximum stays as it is: set the one you want and remove this annotation"
            self._tell(Seen(key, one, None, memory), "Warning", "InvalidAnnotation", text)
            return
        if overridden(one.maximum, seen.record):
            await self._accept(seen)
            return
        scaling = self._scaling(seen)
        conditions = self._look(self._view.zone(scaling.request, _asking(one)))
        if conditions is not None:
            wanted = self._decide(seen, scaling, conditions)
            await self._follow(seen, scaling, wanted, conditions)

    def _scaling(self, seen: Seen) -> Scaling:
        one, record = seen.one, seen.record
        request = self._view.request(seen.key.namespace, _asking(one), _OWNER)
        asked = ceiling_request(one.annotations)
        for mistake in (*asked.mistakes, *request.mistakes):
            self._tell(seen, "Warning", "InvalidAnnotation", mistake)
        if record is None:
            return Scaling(request, asked, effective(one.maximum), one.minimum)
        original, present = effective(record.original), effective(one.maximum)
        in_force = present if present < original else None
        return Scaling(request, asked, original, one.minimum, in_force, record.since_s)

    def _decide(self, seen: Seen, scaling: Scaling, conditions: Conditions) -> Ceiling | None:
        """What the maximum should be; None to leave it alone."""
        now_s, memory = self._now_s(), seen.memory
        wanted = decide(scaling, conditions, now_s)
        memory.state = str(wanted.reason)
        if wanted.reason is CeilingReason.MISSING:
            self._tell(seen, "Warning", "GridSignalMissing", f"no ceiling holds: {wanted.text}")
        else:
            memory.told.pop("GridSignalMissing", None)
        if self._dry_run or self._view.observes(seen.key.namespace):
            memory.state = "observed"
            if wanted.maximum < scaling.original:
                text = f"would lower the maximum from {scaling.original} to {wanted.maximum}"
                self._tell(seen, "Normal", "CeilingPlanned", text, wanted.text)
            return _OPEN
        if memory.contested(now_s):
            memory.state = "contested"
            return None
        return wanted

    async def _follow(self, seen: Seen, scaling: Scaling, wanted: Ceiling | None, conditions: Conditions) -> None:
        if wanted is None:
            return
        one, now_s = seen.one, self._now_s()
        todo = change(one.maximum, one.running, seen.record, wanted, seen.memory.changed_s, now_s)
        if todo is None or not await self._write(seen, todo):
            return
        old, new = effective(one.maximum), effective(todo.maximum)
        if new == old:
            return
        reason = "CeilingLifted" if new == scaling.original else "CeilingLowered" if new < old else "CeilingRaised"
        text = f"maximum {old} -> {new}, of {scaling.original} originally: {wanted.text}"
        if todo.record is not None:
            text += _expected(replace(scaling, in_force=new, since_s=todo.record.since_s), conditions, now_s)
        self._tell(seen, "Normal", reason, text)

    async def _accept(self, seen: Seen) -> None:
        """Take the maximum that somebody else has set for the original one."""
        maximum, record = seen.one.maximum, seen.record
        assert record is not None
        if not await self._write(seen, Change(maximum, None)):
            return
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

    def _tell(self, seen: Seen, severity: Severity, reason: str, text: str, detail: str = "") -> None:
        """Emit an event, unless the last one of this reason had the same text; details may differ."""
        if seen.memory.told.get(reason) != text:
            seen.memory.told[reason] = text
            message = f"{text}: {detail}" if detail else text
            self._events.emit(seen.one.reference(seen.key), severity, reason, message)
            level = logging.WARNING if severity == "Warning" else logging.INFO
            extra = {"object": f"{seen.one.kind} {seen.key}", "reason": reason, "detail": message}
            _log.log(level, "replica ceiling", extra=extra)


def _keep(found: HorizontalPodAutoscaler | ScaledObject) -> Autoscaler | None:
    one = autoscaler_of(found)
    return one if one.scaled_object or any(key in one.annotations for key in _ASKS) else None


def _asking(one: Autoscaler) -> Asking:
    return Asking(annotations=one.annotations)


def _expected(scaling: Scaling, conditions: Conditions, now_s: float) -> str:
    later = next_change(scaling, conditions, now_s)
    return "" if later is None else f"; expected to become {later[1].maximum} at {rfc3339(later[0])}"
