"""Writes of the grid controller to pods, and their order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from enum import IntEnum
from itertools import count
from typing import Any

from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.resources import PODS
from joulie.adapters.kubernetes.times import rfc3339
from joulie.adapters.kubernetes.wire import PatchKind
from joulie.domain.grid import names
from joulie.domain.grid.deferral import Conditions, HoldReason
from joulie.domain.grid.signals import GridSignal
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

    async def lift(self, key: Key, uid: str, annotations: Mapping[str, str]) -> None:
        """Remove Joulie's scheduling gate and annotate the pod; gates of other controllers stay.

        Raises:
            KubernetesError: as `annotate`.
        """
        body: dict[str, Any] = {
            "metadata": {"uid": uid, "annotations": dict(annotations)},
            "spec": {"schedulingGates": [{"$patch": "delete", "name": names.GATE}]},
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


def noted_at_hold(
    reason: HoldReason, conditions: Conditions, present: Mapping[str, str], now_s: float
) -> dict[str, str]:
    """Annotations to add to a held pod.

    Args:
        reason: reason of the hold.
        conditions: conditions in its zone.
        present: its current annotations.
        now_s: s since the epoch.
    """
    wanted = _initial(conditions)
    by_price = reason is HoldReason.PRICE or (reason is HoldReason.WINDOW and conditions.carbon is None)
    if not by_price:
        wanted[names.CARBON_DELAY_TIMESTAMP] = rfc3339(now_s)
    if by_price or reason is HoldReason.BOTH:
        wanted[names.PRICE_DELAY_TIMESTAMP] = rfc3339(now_s)
    if any(key in present for key in (names.CARBON_DELAY_TIMESTAMP, names.PRICE_DELAY_TIMESTAMP)):
        # The initial values are those at the start of the hold, known or not.
        wanted = {key: value for key, value in wanted.items() if key.endswith("-delay-timestamp")}
    return {key: value for key, value in wanted.items() if key not in present}


def noted_at_release(conditions: Conditions, present: Mapping[str, str], now_s: float) -> dict[str, str]:
    """Annotations to write on a released pod.

    Args:
        conditions: conditions in its zone.
        present: its current annotations.
        now_s: s since the epoch.
    """
    bound = {names.BIND_TIMESTAMP: rfc3339(now_s)}
    bound |= _values(conditions, names.BIND_CARBON_INTENSITY, names.BIND_ELECTRICITY_RATE)
    held = any(key in present for key in (names.CARBON_DELAY_TIMESTAMP, names.PRICE_DELAY_TIMESTAMP))
    return bound if held else _initial(conditions) | bound


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
