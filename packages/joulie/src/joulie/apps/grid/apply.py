"""Writes of the grid controller to pods, and their order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from enum import IntEnum
from itertools import count
from typing import Any

from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.resources import PODS
from joulie.adapters.kubernetes.times import rfc3339, time_or_none
from joulie.adapters.kubernetes.wire import PatchKind
from joulie.apps.grid.facts import JobFacts
from joulie.domain.grid import names
from joulie.domain.grid.deferral import Conditions
from joulie.domain.grid.signals import GridSignal, Measure
from joulie.program.leadership import NotLeadingError

FIELD_MANAGER = "joulie-grid"

_log = logging.getLogger(__name__)

Write = Callable[[], Awaitable[None]]


class Rank(IntEnum):
    """Priority of a write; lower values go first."""

    URGENT = 0
    RELEASE = 1
    NOTE = 2


class WriteQueue:
    """Priority queue of writes with bounded concurrency.

    Args:
        concurrency: maximum number of writes in flight.
        may_write: whether this replica leads.
    """

    def __init__(self, concurrency: int, may_write: Callable[[], bool]) -> None:
        self._concurrency = concurrency
        self._may_write = may_write
        self._queue: asyncio.PriorityQueue[tuple[int, int, Write, Callable[[Exception], None]]] = (
            asyncio.PriorityQueue()
        )
        self._count = count()

    def put(self, rank: Rank, write: Write, failed: Callable[[Exception], None]) -> None:
        """Queue a write.

        Args:
            rank: priority.
            write: performs the write.
            failed: called with the exception that it raised.
        """
        self._queue.put_nowait((rank, next(self._count), write, failed))

    async def run(self) -> None:
        """Process writes until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._concurrency):
                group.create_task(self._work())

    async def settled(self) -> None:
        """Wait until every queued write has succeeded or failed."""
        await self._queue.join()

    async def _work(self) -> None:
        while True:
            _rank, _number, write, failed = await self._queue.get()
            try:
                await self._write(write)
            except Exception as error:
                failed(error)
            finally:
                self._queue.task_done()

    async def _write(self, write: Write) -> None:
        if not self._may_write():
            raise NotLeadingError("lost leadership: not written")
        await write()


class PodWriter:
    """Annotates pods and lifts their gates.

    Args:
        client: Kubernetes client.
    """

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def annotate(self, key: Key, uid: str, annotations: Mapping[str, str]) -> None:
        """Annotate a pod.

        Raises:
            KubernetesError: the pod was deleted or replaced by one with another UID.
        """
        body = {"metadata": {"uid": uid, "annotations": dict(annotations)}}
        await self._client.patch(PODS, key.name, body, namespace=key.namespace, field_manager=FIELD_MANAGER)

    async def lift(self, key: Key, uid: str, annotations: Mapping[str, str], gate: str = names.GATE) -> None:
        """Remove a scheduling gate of Joulie's and annotate the pod; other gates stay.

        Raises:
            KubernetesError: as `annotate`.
        """
        body: dict[str, Any] = {
            "metadata": {"uid": uid, "annotations": dict(annotations)},
            "spec": {"schedulingGates": [{"$patch": "delete", "name": gate}]},
        }
        await self._client.patch(
            PODS,
            key.name,
            body,
            kind=PatchKind.STRATEGIC,
            namespace=key.namespace,
            field_manager=FIELD_MANAGER,
        )


# ---- annotations


def noted_of_place(deferral_zones: Collection[str], chosen: str) -> dict[str, str]:
    """The annotation of the zone that was chosen for a workload that may run in several, which the extender prefers."""
    return {names.CHOSEN_ZONE: chosen} if len(deferral_zones) > 1 else {}


DELAY_TIMESTAMPS = {Measure.CARBON: names.CARBON_DELAY_TIMESTAMP, Measure.PRICE: names.PRICE_DELAY_TIMESTAMP}
"""Annotations that mark a workload as held, now or before, by the signal that holds it."""


def was_held(annotations: Mapping[str, str]) -> bool:
    """Whether annotations mark a workload as held, now or before."""
    return any(key in annotations for key in DELAY_TIMESTAMPS.values())


def noted_at_hold(
    held_by: Iterable[Measure], conditions: Conditions, present: Mapping[str, str], now_s: float
) -> dict[str, str]:
    """Annotations to add to a held workload.

    Args:
        held_by: the signals that hold it.
        conditions: conditions in its zone.
        present: its current annotations.
        now_s: s since the epoch.
    """
    wanted = {DELAY_TIMESTAMPS[measure]: rfc3339(now_s) for measure in held_by}
    # The initial values are those at the start of the hold, known or not.
    if not was_held(present):
        wanted |= _initial(conditions)
    return {key: value for key, value in wanted.items() if key not in present}


def noted_at_pause(
    held_by: Iterable[Measure], conditions: Conditions, present: Mapping[str, str], ran_s: float, now_s: float
) -> dict[str, str]:
    """Annotations to write on a Job that is suspended, which its pods inherit when it goes on.

    Earlier holds move on by the time that the Job has run since: what is left would have run then, had it not been
    suspended.

    Args:
        held_by: the signals that suspend it.
        conditions: conditions in its zone.
        present: its annotations of an earlier suspension.
        ran_s: time that it has run since then, s.
        now_s: s since the epoch.
    """
    return noted_at_hold(held_by, conditions, present, now_s) | _later(present, ran_s)


def inherited_at_release(job: JobFacts, now_s: float) -> dict[str, str]:
    """Annotations that a pod inherits from its Job, which has been suspended: since when it is held, at what values.

    Args:
        job: its Job, which runs again.
        now_s: s since the epoch; a pod that comes later would have come later without the suspension, too.
    """
    return job.held | _later(job.held, max(0.0, now_s - (time_or_none(job.resumed_since) or now_s)))


def _later(annotations: Mapping[str, str], seconds: float) -> dict[str, str]:
    """The timestamps of holds, moved; malformed ones are left out."""
    times = {key: time_or_none(annotations.get(key)) for key in DELAY_TIMESTAMPS.values()}
    return {key: rfc3339(time_s + seconds) for key, time_s in times.items() if time_s is not None}


def noted_at_release(conditions: Conditions, present: Mapping[str, str], now_s: float) -> dict[str, str]:
    """Annotations to write on a released pod.

    Args:
        conditions: conditions in its zone.
        present: its current annotations.
        now_s: s since the epoch.
    """
    bound = {names.BIND_TIMESTAMP: rfc3339(now_s)}
    bound |= _values(conditions, names.BIND_CARBON_INTENSITY, names.BIND_ELECTRICITY_RATE)
    return bound if was_held(present) else _initial(conditions) | bound


def _initial(conditions: Conditions) -> dict[str, str]:
    return _values(conditions, names.INITIAL_CARBON_INTENSITY, names.INITIAL_ELECTRICITY_RATE)


def _values(conditions: Conditions, carbon_key: str, price_key: str) -> dict[str, str]:
    found = {carbon_key: _value(conditions.carbon, 2), price_key: _value(conditions.price, 6)}
    return {key: value for key, value in found.items() if value is not None}


def _value(signal: GridSignal | None, decimals: int) -> str | None:
    """The current value; None if unknown."""
    if signal is None or not signal.known or signal.value is None:
        return None
    return f"{signal.value:.{decimals}f}"
